"""jit: stage once per signature, compile once per body, then run by a short path.

The short path of a call: the last entry's guard, compiled for its argument tree, reads the leaves
or refuses; if their avals are the entry's, the program runs on their buffers. Otherwise the entry
is looked up by (tree, avals, configuration). Both apply when no trace is open and every leaf is an
array in memory; everything else takes the general path, which is the specification.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tinyjax.core.avals import Aval
from tinyjax.core.body import open_body
from tinyjax.core.config import MISSING, config
from tinyjax.core.dims import as_int
from tinyjax.core.errors import StaticArgumentError, require_callable
from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import Op
from tinyjax.core.source import api_boundary, hide_frames
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import PyTreeDef, tree_flatten
from tinyjax.core.uop import UOp
from tinyjax.core.weak import dead, forget_dead
from tinyjax.engine.array import Array
from tinyjax.engine.compiled import Executable, SizedRun, executable
from tinyjax.engine.effects import perform
from tinyjax.engine.explain import History
from tinyjax.engine.refs import AbstractRef, Ref
from tinyjax.engine.sized import find_sizes, symbolic_avals
from tinyjax.engine.tracing import (
    Traced,
    argument_paths,
    name_of,
    stage,
    stage_cached,
    traces,
    with_fixed,
)
from tinyjax.engine.values import finish_all, is_array_like, lift
from tinyjax.interpreters.trace import state, values_of

Names = str | Iterable[str] | None
Numbers = int | Sequence[int] | None


def as_numbers(x: Numbers, name: str = "argnums") -> tuple[int, ...]:
    """argnums, the argument `name`, as a tuple. Raises: TypeError for other things."""
    if x is None:
        return ()
    if isinstance(x, (int, np.integer)):
        return (x,)
    if isinstance(x, Iterable) and not isinstance(x, (str, bytes)):
        numbers = tuple(x)
        if all(hasattr(i, "__index__") for i in numbers):
            return numbers
    raise TypeError(
        f"{name} must be an int or a tuple of ints, got {x!r}.\n"
        "  Arguments are counted from 0; the argnames tell them by name."
    )


def as_names(x: Names, name: str = "argnames") -> tuple[str, ...]:
    """argnames, the argument `name`, as a tuple. Raises: TypeError for other things."""
    if x is None:
        return ()
    if isinstance(x, str):
        return (x,)
    names = tuple(x) if isinstance(x, Iterable) else (x,)
    if not all(isinstance(i, str) for i in names):
        raise TypeError(
            f"{name} must be a str or a tuple of strs, got {x!r}.\n"
            "  Name parameters of the function; to count them, use argnums."
        )
    return names


FLAGS = ("precompile", "precompile_backward", "allow_implicit")
"""Options that are True or False. Those of JAX's `jit` take anything that has a truth value."""


def checked_options(of: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `jit` or `function` in their normal forms; None stays what it is.

    Raises: TypeError for a value that an option does not take, ValueError for a negative number.
    """
    checked = dict(options)
    for name, value in options.items():
        what = f"{name} of {of}"
        if value is None:
            continue
        if name.endswith("argnums"):
            checked[name] = as_numbers(value, what)
        elif name.endswith("argnames"):
            checked[name] = as_names(value, what)
        elif name == "max_traces":
            checked[name] = as_int(value, what)
            if checked[name] < 0:
                raise ValueError(f"{what} must not be negative, got {value}.")
        elif name in FLAGS and not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{what} must be True or False, got {value!r}.")
    return checked


class Entry:
    """What the short path needs: a guard, an executable, captured arrays, the output tree."""

    __slots__ = (
        "avals",
        "captured",
        "epoch",
        "executable",
        "in_tree",
        "out_tree",
        "read",
        "single",
    )

    def __init__(
        self,
        compiled: Executable | SizedRun,
        captured: list[Any],
        out_tree: PyTreeDef,
        in_tree: PyTreeDef,
        avals: tuple[Any, ...],
        epoch: int,
    ) -> None:
        self.executable, self.captured, self.out_tree = compiled, captured, out_tree
        self.avals, self.epoch, self.in_tree = list(avals), epoch, in_tree
        self.read: Callable[[Any], list[Any] | None] | None = None  # compiled on the second call
        self.single = out_tree.num_leaves == 1 and out_tree.num_nodes == 1


class Jitted:
    """A staged function. Attributes as `jax.jit`'s: `lower`, `trace`, `eval_shape`,
    `clear_cache`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        static_argnums: Numbers = None,
        static_argnames: Names = None,
        donate_argnums: Numbers = None,
        donate_argnames: Names = None,
        keep_unused: bool = False,
        inline: bool = False,
        max_traces: int | None = None,
        dynamic_shapes: Any = None,
        info: CallInfo | None = None,
        kind: str = "jit",
        made_of: tuple[Any, Hashable] | None = None,
    ) -> None:
        """`made_of`: the user's function and what `fun` does with it, if `fun` is not the user's;
        objects for which these are equal share traces."""
        require_callable(fun)
        self.fun, self.kind = fun, kind
        self.made_of = (fun, None) if made_of is None else made_of
        self.info = info or CallInfo("jit", name_of(fun), inline=inline)
        self.max_traces, self.dynamic_shapes = max_traces, dynamic_shapes
        self.static_argnums, self.static_argnames = self._resolve(static_argnums, static_argnames)
        self.donate_argnums, self.donate_argnames = self._resolve(donate_argnums, donate_argnames)
        both = [x for x in self.static_argnames if x in self.donate_argnames]
        if both:
            raise ValueError(
                "static_argnames and donate_argnames cannot intersect: "
                f"{', '.join(map(repr, both))} of {name_of(fun)} is in both. A static argument is "
                "a value of Python, whose memory cannot be donated.\n  Name it in one of them."
            )
        self.keep_traces = True
        self._entries: dict[Hashable, Entry] = {}
        self._recent: Entry | None = None
        self._plain = not (
            self.static_argnums
            or self.static_argnames
            or self.donate_argnums
            or self.donate_argnames
        )
        self.history = History(fun)
        functools.update_wrapper(self, fun, updated=())

    def _resolve(self, numbers: Numbers, names: Names) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Fill in names from numbers and numbers from names by the signature."""
        nums, strs = as_numbers(numbers), as_names(names)
        try:
            parameters = list(inspect.signature(self.fun).parameters.values())
        except (TypeError, ValueError):
            return nums, strs
        positional = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        has_kwargs = any(p.kind is p.VAR_KEYWORD for p in parameters)
        known = {p.name for p in parameters}
        count = len(positional)
        for i in nums:
            if not variadic and not -count <= i < count:
                raise ValueError(
                    f"jitted function has static_argnums or donate_argnums {nums} but only accepts "
                    f"{count} positional arguments: {', '.join(positional) or 'none'}."
                )
        for name in strs:
            if name not in known and not has_kwargs:
                raise ValueError(
                    f"jitted function has invalid argnames {{{name!r}}} in static_argnames or "
                    f"donate_argnames. Function {name_of(self.fun)} does not take these args. "
                    "Valid "
                    f"names: {', '.join(sorted(known))}."
                )
        nums = tuple(i % count if i < 0 and not variadic else i for i in nums)
        if names is None:
            strs = tuple(positional[i] for i in nums if i < count)
        elif numbers is None:
            nums = tuple(positional.index(n) for n in strs if n in positional)
        return nums, strs

    # --- calling -------------------------------------------------------------------------------

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if self._plain and not kwargs and not state.traces:
                entry = self._recent
                if entry is not None and entry.epoch == config.epoch():
                    leaves = entry.read(args)  # type: ignore[misc]
                    if leaves is not None:
                        try:
                            if [
                                x.aval for x in leaves
                            ] == entry.avals:  # interned: identity decides
                                buffers = [x._buffer for x in leaves]
                                if None not in buffers:
                                    return self._run(entry, buffers)
                        except AttributeError:  # a leaf that is not an Array
                            pass
                leaves, tree = tree_flatten(args)
                try:
                    key = (tree, tuple([x.aval for x in leaves]), config.epoch())
                    entry = self._entries.get(key)
                    buffers = [x._buffer for x in leaves]
                except AttributeError:  # a leaf that is not an Array: converted (or refused) below
                    entry = None
                if entry is not None and None not in buffers:
                    if entry.read is None:
                        entry.read = entry.in_tree.flattener()
                    self._recent = entry
                    return self._run(entry, buffers)
            return self._general(args, kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def _run(self, entry: Entry, buffers: list[Any]) -> Any:
        if dead:
            forget_dead()
        outs = entry.executable.run(buffers + entry.captured if entry.captured else buffers)
        if entry.single:
            return Array.from_buffer(outs[0])
        return tree_unflatten(entry.out_tree, [Array.from_buffer(o) for o in outs])

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if config.jax_disable_jit:
            return self.fun(*args, **kwargs)
        traced, nodes, donated = self._stage(args, kwargs)
        operands = traced.operands(nodes)
        if state.staging or any(n.free for n in operands):
            if not traced.body.src:
                return tree_unflatten(traced.out_tree, [])
            if self.info.inline and not traced.state:
                opened = finish_all(open_body(traced.body, operands))
                return tree_unflatten(traced.out_tree, opened)
            call = UOp(Op.CALL, (traced.body, *operands), self.info)
            return tree_unflatten(traced.out_tree, traced.deliver(perform(call)))
        buffers = [as_buffer(n) for n in operands]
        checked = config.jax_debug_nans or config.jax_debug_infs
        compiled: Executable | SizedRun
        if self.dynamic_shapes is None:
            lent = frozenset() if checked else usable(donated, buffers)
            compiled = executable(traced.body, len(operands), lent)
        else:
            given = [n.aval for n in nodes]
            symbolic = [a for a in self._abstract(args, kwargs, given) if isinstance(a, Aval)]
            sizes = find_sizes(symbolic, given, lambda: self._paths(args, kwargs))
            compiled = SizedRun(executable(traced.body, len(operands)), sizes)
        outs = compiled.run(buffers)
        if checked:
            check_results(traced, operands, outs)
        elif self._plain and not kwargs and self.keep_traces and not traced.state:
            tree = tree_flatten(args)[1]
            key = (tree, tuple(n.aval for n in nodes), config.epoch())
            captured = [as_buffer(n) for n in traced.captured]
            self._entries[key] = Entry(compiled, captured, traced.out_tree, tree, key[1], key[2])
        values = [Array.from_buffer(o) for o in outs[: len(outs) - traced.effects]]
        return tree_unflatten(traced.out_tree, traced.deliver(values))

    def _split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any], tuple[Any, ...]]:
        """Dynamic arguments, dynamic keywords, and the static ones as a hashable key."""
        if not self.static_argnums and not self.static_argnames:
            return list(args), kwargs, ()
        statics: list[Any] = []
        dynamic: list[Any] = []
        for i, a in enumerate(args):
            if i in self.static_argnums:
                statics.append((i, self._hashable(a, f"argument {i}")))
            else:
                dynamic.append(a)
        rest = {}
        for name, value in kwargs.items():
            if name in self.static_argnames:
                statics.append((name, self._hashable(value, f"argument {name!r}")))
            else:
                rest[name] = value
        return dynamic, rest, tuple(sorted(statics, key=lambda s: str(s[0])))

    def _hashable(self, value: Any, where: str) -> Any:
        try:
            hash(value)
        except TypeError:
            raise StaticArgumentError(
                f"Non-hashable static arguments are used in a jit function: static {where} of "
                f"{name_of(self.fun)} of type {type(value)} is not hashable. Static arguments are "
                "compared by value to find the compiled code.\n  Pass a tuple instead of a list, a "
                "frozen dataclass instead of a dict, or make it an array argument."
            ) from None
        return Static(value)

    def _stage(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Traced, list[UOp], Any]:
        """Trace (or find) the body for these arguments; returns it with the argument nodes."""
        dynamic, rest, _ = self._split(args, kwargs)
        leaves, tree = tree_flatten((tuple(dynamic), rest))
        nodes: list[UOp] = []
        avals: list[Aval | AbstractRef] = []
        refs: list[Ref] = []
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Ref):
                refs.append(leaf)
                avals.append(AbstractRef(leaf.aval_))
                continue
            if not is_array_like(leaf):
                raise TypeError(self._bad_leaf(args, kwargs, leaf, i))
            nodes.append(lift(leaf))
            avals.append(nodes[-1].aval)
        if self.dynamic_shapes is not None and not (state.staging or any(n.free for n in nodes)):
            avals = self._abstract(args, kwargs, avals)
        traced, donated = self._stage_avals(args, kwargs, tuple(avals), tree)
        return traced.bound(refs, name_of(self.fun)), nodes, donated

    def _abstract(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], avals: list[Any]
    ) -> list[Any]:
        """The avals of the dynamic leaves with the sizes that `dynamic_shapes` makes symbolic."""
        keep = [None if i in self.static_argnums else a for i, a in enumerate(args)]
        rest = {k: v for k, v in kwargs.items() if k not in self.static_argnames}
        paths = functools.partial(self._paths, args, kwargs)
        return symbolic_avals(self.fun, self.dynamic_shapes, keep, rest, avals, paths)

    def _stage_avals(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], avals: tuple[Any, ...], tree: PyTreeDef
    ) -> tuple[Traced, frozenset[int]]:
        """Trace (or find) the body for arguments of these avals."""
        statics = self._split(args, kwargs)[2]
        fun = self._with_statics(args, statics) if statics else self.fun

        def paths() -> list[str]:
            return self._paths(args, kwargs)

        before = self.history.misses

        def run(*a: Any, **k: Any) -> Any:
            self.history.miss(tree, avals, statics, paths, self.max_traces)
            return fun(*a, **k)

        if not self.keep_traces:
            return stage(run, tree, avals, self.kind, paths, self.fun), frozenset()
        owner, use = self.made_of
        traced = stage_cached(
            run, tree, avals, self.kind, paths, (statics, self.info.kind, use), owner, self.fun
        )
        if self.history.misses == before:
            self.history.hits += 1
        donated = self._donated(args, kwargs)
        if donated:
            arrays = [i for i, a in enumerate(avals) if not isinstance(a, AbstractRef)]
            donated = frozenset(k for k, i in enumerate(arrays) if i in donated)
        return traced, donated

    def _paths(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """Argument paths of the dynamic leaves."""
        if not self.static_argnums and not self.static_argnames:
            return argument_paths(self.fun, args, kwargs)
        keep = [None if i in self.static_argnums else a for i, a in enumerate(args)]
        rest = {k: v for k, v in kwargs.items() if k not in self.static_argnames}
        return argument_paths(self.fun, keep, rest)

    def _bad_leaf(self, args: Any, kwargs: Any, leaf: Any, index: int) -> str:
        path = self._paths(args, kwargs)[index]
        return (
            f"Cannot interpret value of type {type(leaf)} as an abstract array; it does not have a "
            f"dtype attribute: error interpreting argument {path} to {name_of(self.fun)} as an "
            f"abstract array. Got {leaf!r}.\n  Arrays and numbers are traced. If this argument is "
            "meant to be a constant, mark it static: jit(f, "
            f"static_argnames={path.split('[')[0].split('.')[0]!r})."
        )

    def _with_statics(self, args: tuple[Any, ...], statics: tuple[Any, ...]) -> Callable[..., Any]:
        """The function of the dynamic arguments alone."""
        return with_fixed(self.fun, {k: v.value for k, v in statics}, len(args))

    def _donated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> frozenset[int]:
        """Leaf positions whose memory may be reused for results."""
        if not self.donate_argnums and not self.donate_argnames:
            return frozenset()
        positions: list[int] = []
        count = 0
        for i, a in enumerate(args):
            if i in self.static_argnums:
                continue
            n = len(tree_flatten(a)[0])
            if i in self.donate_argnums:
                positions += range(count, count + n)
            count += n
        for name in sorted(kwargs):
            if name in self.static_argnames:
                continue
            n = len(tree_flatten(kwargs[name])[0])
            if name in self.donate_argnames:
                positions += range(count, count + n)
            count += n
        return frozenset(positions)

    # --- looking -------------------------------------------------------------------------------

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Stage for these arguments (arrays or avals) without compiling."""
        from tinyjax.engine.stages import Stages  # it stands on this file

        return Stages.of(self, args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Everything the compiler does for these arguments, to read."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the results; nothing runs."""
        return self.trace(*args, **kwargs).out_info

    def clear_cache(self) -> None:
        """Forget all traces and programs of this function."""
        self._entries.clear()
        self._recent = None
        traces.table(self.fun).clear()

    def _cache_size(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<jitted {name_of(self.fun)}>"


def check_results(traced: Traced, operands: Sequence[UOp], outs: Sequence[Any]) -> None:
    """Under debug_nans or debug_infs: if a result is bad, run op by op to find out where it came
    from. Raises: FloatingPointError naming the operation and the user's line."""
    if not (config.jax_debug_nans or config.jax_debug_infs):
        return
    from tinyjax.interpreters import find_bad  # only for people who look for a cause

    bad = find_bad.judge(config.jax_debug_nans, config.jax_debug_infs)
    if any(bad(o.value) for o in outs):
        find_bad.check_body(traced.body, values_of(operands), bad, traced.sites)


def usable(donated: frozenset[int], buffers: Sequence[Any]) -> frozenset[int]:
    """Donated inputs whose memory nobody else sees: not NumPy, no other array, not passed twice."""
    if not donated:
        return donated
    return frozenset(
        i
        for i in donated
        if buffers[i].value.flags.writeable
        and sys.getrefcount(buffers[i].value) == 2  # the buffer, and the question
        and sum(b is buffers[i] for b in buffers) == 1
    )


class Static:
    """A static value in a key: equal only to a value of the same type (1 is not True or 1.0)."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Static)
            and type(self.value) is type(other.value)
            and bool(self.value == other.value)
        )

    def __repr__(self) -> str:
        return repr(self.value)


def as_buffer(node: UOp) -> Any:
    """The buffer of a node without open variables."""
    if node.op is Op.BUFFER:
        return node.arg
    return finish_all([node])[0]._buffer


def jit(
    fun: Callable[..., Any] = MISSING,
    /,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
    donate_argnums: Numbers = None,
    donate_argnames: Names = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: Any = None,
    max_traces: int | None = None,
    dynamic_shapes: Any = None,
) -> Any:
    """Compile `fun`: traced once per tree, shapes, dtypes and static values, then machine code.

    Static arguments are compared by value and may be anything hashable. With `inline`, what calls
    the function while it is traced holds its operations rather than a call. Donated arguments may lend
    their memory to the results. With `max_traces=n`, tracing an (n+1)-th signature raises with the
    difference. Usable as a decorator with or without arguments, on functions and methods.
    `dynamic_shapes` gives axes of arguments symbolic sizes, for which the function is traced and
    compiled once: `{"tokens": {1: Dim("n", 1, 4096)}}` (engine/sized.py). Donated arguments are then
    kept.
    Accepted without effect: `in_shardings`, `out_shardings`, `device` and `backend` (there is one
    device), `compiler_options` (XLA's), `keep_unused` (arguments are never dropped).
    Raises: TypeError for a leaf that is not an array (with its path); JAX's tracer errors when
    Python needs a traced value.
    """
    options = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "keep_unused": keep_unused,
        "inline": inline,
        "max_traces": max_traces,
        "dynamic_shapes": dynamic_shapes,
    }
    checked = checked_options("jit", options)

    @api_boundary
    def staged(f: Callable[..., Any]) -> Jitted:
        return Jitted(f, **checked)

    return staged if fun is MISSING else staged(fun)
