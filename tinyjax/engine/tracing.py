"""Staging a Python function into a closed body, and the cache of such traces.

Key of a trace: the function (held weakly, by its own `==`, so `jit(f)` twice shares), the argument
tree, avals with weak flags, static values, the config epoch and the open named axes. A trace that
captured variables of an outer trace is reused only while that trace is open; a trace that fails
leaves no entry.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import numpy as np

from tinyjax.core import sites
from tinyjax.core.avals import TOKEN, Aval
from tinyjax.core.body import close, outer_variables
from tinyjax.core.config import config
from tinyjax.core.sites import Table
from tinyjax.core.tree import tree_flatten_with_path, tree_unflatten
from tinyjax.core.treedef import PyTreeDef, keystr, tree_flatten
from tinyjax.core.uop import UOp, const, nodes_created
from tinyjax.core.weak import WeakKeys, dead, forget_dead
from tinyjax.engine.array import Array, refuse_escaped
from tinyjax.engine.effects import next_token
from tinyjax.engine.refs import (
    AbstractRef,
    Ref,
    assign,
    current,
    parameter,
    refuse_closed_over,
    refuse_twice,
    touched,
)
from tinyjax.engine.values import is_array_like, lift
from tinyjax.interpreters.effects import has_effects
from tinyjax.interpreters.trace import Trace, open_trace, state


@dataclass(slots=True)
class Traced:
    """A staged function: body, captured nodes (its last arguments), output tree.

    Mutable arrays that it touches are the next parameters and outputs, and with effects a token is
    the last parameter and output. `given` are those among its arguments. `sites` says where the
    nodes of the body come from. The first captured nodes are the indices of the named axes `axes`.
    """

    body: UOp
    captured: list[UOp]
    out_tree: PyTreeDef
    owners: tuple[Trace, ...]
    sites: Table
    refs: tuple[Ref, ...] = ()
    given: tuple[Ref, ...] = ()
    axes: tuple[Any, ...] = ()

    def over(self, indices: Callable[[Any], UOp]) -> Traced:
        """The same for other indices of the named axes."""
        if not self.axes:
            return self
        return replace(self, captured=[*map(indices, self.axes), *self.captured[len(self.axes) :]])

    def bound(self, refs: Sequence[Ref], name: str) -> Traced:
        """The same with these mutable arrays as arguments."""
        if not refs:
            return self
        refuse_twice(refs, name)
        refuse_closed_over(refs, [r for r in self.refs if r not in self.given], name)
        actual = dict(zip(self.given, refs, strict=True))
        return replace(self, refs=tuple(actual.get(r, r) for r in self.refs), given=tuple(refs))

    @property
    def usable(self) -> bool:
        """Whether the outer traces it captured variables of are open, on this thread."""
        return all(t in state.traces for t in self.owners)

    @property
    def effects(self) -> bool:
        """Whether it does more than compute."""
        outs = self.body.src
        return bool(outs) and outs[-1].aval is TOKEN

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        """Avals of the flat outputs."""
        elts: tuple[Aval, ...] = self.body.aval.elts
        return elts[: len(elts) - len(self.refs) - self.effects]

    @property
    def state(self) -> bool:
        """Whether it has effects or touches mutable arrays."""
        return self.effects or bool(self.refs)

    def operands(self, args: Sequence[UOp], body: UOp | None = None) -> list[UOp]:
        """What a call takes: arguments, captured values, what mutable arrays hold, a token (if the
        body made of the function's that is called has effects)."""
        given = [*args, *self.captured, *map(current, self.refs)]
        effects = has_effects(self.body if body is None else body)
        return [*given, next_token(given)] if effects else given

    def deliver(self, results: Sequence[Array]) -> list[Array]:
        """The user's results of a call (without token); the rest goes into the mutable arrays."""
        count = len(results) - len(self.refs)
        for ref, value in zip(self.refs, results[count:], strict=True):
            assign(ref, value.node)
        return list(results[:count])


def name_of(fun: Any) -> str:
    """The function's name, for printing."""
    fun = inspect.unwrap(fun) if callable(fun) else fun
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__name__", None) or type(fun).__name__


def parameter_names(fun: Any, count: int) -> list[str]:
    """Names of the first `count` positional parameters (`args[i]` where there are none)."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return [f"args[{i}]" for i in range(count)]
    names: list[str] = []
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
        elif p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}[{i}]" for i in range(count - len(names))]
    return (names + [f"args[{i}]" for i in range(len(names), count)])[:count]


def argument_paths(fun: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    """`params['w1']` for each leaf of the arguments, in flattening order."""
    paths = []
    for name, arg in zip(parameter_names(fun, len(args)), args, strict=True):
        paths += [name + keystr(path) for path, _ in tree_flatten_with_path(arg)[0]]
    for name in sorted(kwargs):
        paths += [name + keystr(path) for path, _ in tree_flatten_with_path(kwargs[name])[0]]
    return paths


def with_fixed(fun: Callable[..., Any], fixed: Mapping[Any, Any], count: int) -> Callable[..., Any]:
    """`fun` of `count` positional arguments, without those `fixed` by place or name."""
    named = {k: v for k, v in fixed.items() if isinstance(k, str)}

    def partial(*moving: Any, **kwargs: Any) -> Any:
        it = iter(moving)
        full = [fixed[i] if i in fixed else next(it) for i in range(count)]
        return fun(*full, **kwargs, **named)

    return partial


def output_nodes(out: Any, fun: Any, kind: str) -> tuple[list[UOp], PyTreeDef]:
    """Leaves of a function's result as nodes; anything that is not an array is an error."""
    leaves, tree = tree_flatten(out)
    try:
        return [x.node if type(x) is Array else _output(x) for x in leaves], tree
    except TypeError:
        for path, leaf in tree_flatten_with_path(out)[0]:
            if isinstance(leaf, Ref):
                raise ValueError(
                    f"function {name_of(fun)} traced for {kind} returned a mutable array reference "
                    f"of type Ref{{{leaf.aval_.str_short()}}}, but mutable array references cannot "
                    "be returned.\n  Return its value, jax.freeze(ref)."
                ) from None
            if not is_array_like(leaf):
                raise TypeError(
                    f"function {name_of(fun)} traced for {kind} returned a value of type "
                    f"{type(leaf)} at output component {keystr(path) or 'the result itself'}, "
                    "which is not a valid JAX type.\n"
                    "  Return arrays or Python numbers; return None for nothing."
                ) from None
        raise


def _output(x: Any) -> UOp:
    return lift(x)


def own_part(kind: str) -> AbstractContextManager[Callable[[UOp], bool] | None]:
    """What a branch computes from outer values alone is its own: it may not be the one that runs."""
    branch = kind in ("cond", "switch")
    return sites.apart(nodes_created()) if branch else nullcontext()


def stage(
    fun: Callable[..., Any],
    in_tree: PyTreeDef,
    avals: Sequence[Aval | AbstractRef],
    kind: str,
    paths: Sequence[str] | Callable[[], Sequence[str]] = (),
    name_from: Any = None,
) -> Traced:
    """Run `fun` on unbound variables with every operation recorded. `in_tree` is of (args,
    kwargs)."""
    names = list(paths() if callable(paths) else paths) or [""] * len(avals)
    with open_trace(kind, name_from or fun, staging=True) as trace, own_part(kind) as own:
        variables: list[UOp] = []
        given: list[Ref] = []
        leaves: list[Any] = []
        for a, p in zip(avals, names, strict=True):
            if isinstance(a, AbstractRef):
                given.append(parameter(trace, a.inner_aval, p))
                leaves.append(given[-1])
            else:
                variables.append(trace.variable(a, p))
                leaves.append(Array(variables[-1]))
        args, kwargs = tree_unflatten(in_tree, leaves)
        nodes, out_tree = output_nodes(fun(*args, **kwargs), name_from or fun, kind)
        chain = trace.chain
        table: Table = {}
        roots = [*nodes, *(c.node for c in trace.cells.values()), *chain.tokens]
        roots += [r.cell.node for r in given]
        cells = {r: r.cell for r in given if touched(r, roots)} | trace.cells
        starts = [c.start for c in cells.values() if c.start is not None]
        indices = {index: name for name, (_, index) in state.axes.items()}
        used = [v for v in outer_variables(roots, variables) if v in indices] if indices else []
        body, captured = close(
            [*nodes, *(c.node for c in cells.values()), *chain.tokens],
            [*variables, *used],
            last=[*starts, *chain.starts],
            table=table,
            computed_here=own,
        )
        for c in captured:
            refuse_escaped(c)
        owners = {v.trace for c in captured for v in c.free if v.trace is not None}
        owners |= {r.trace for r in trace.cells if r.trace is not None}
    axes = tuple(indices[v] for v in used)
    captured = [*used, *captured]
    return Traced(body, captured, out_tree, tuple(owners), table, tuple(cells), tuple(given), axes)


def ambient_key() -> Hashable:
    """What a trace depends on besides its arguments."""
    return config.trace_epoch(), tuple((name, size) for name, (size, _) in state.axes.items())


class TraceCache:
    """Traces by function and key; entries of a function die with it.

    A bound method is a new object at every access, so its traces are those of one `jit` of it: what
    the object holds may have changed by the next access.
    """

    def __init__(self) -> None:
        self._weak: WeakKeys[Any, dict[Hashable, Traced]] = WeakKeys()

    def table(self, fun: Any) -> dict[Hashable, Traced]:
        """The entries of one function."""
        # Variables of a function that is gone may keep it, and one equal to it is asked for.
        if dead:
            forget_dead()
        if type(fun) is functools.partial:
            given = partial_key(fun)
            if given is not None:
                return self.table(fun.func).setdefault(given, {})  # type: ignore[return-value, arg-type]
        try:
            return self._weak.setdefault(fun, {})
        except TypeError:  # neither hashable nor weakly referable: traced anew
            return {}

    def clear(self) -> None:
        """Forget all traces."""
        self._weak.clear()


PLAIN = (int, float, complex, bool, str, bytes, type(None), FunctionType)
"""What a partial may have been given for its traces to be shared: compared by value and type."""


def partial_key(fun: functools.partial[Any]) -> Hashable:
    """Equal for partials of equal plain values; None where that cannot be told."""
    items = [*enumerate(fun.args), *sorted(fun.keywords.items())]
    if any(type(v) not in PLAIN for _, v in items):
        return None
    # repr keeps 0.0 and -0.0 apart
    return "partial", tuple(
        (k, type(v), repr(v) if type(v) in (float, complex) else v) for k, v in items
    )


traces = TraceCache()


def stage_cached(
    fun: Callable[..., Any],
    in_tree: PyTreeDef,
    avals: tuple[Aval | AbstractRef, ...],
    kind: str,
    paths: Sequence[str] | Callable[[], Sequence[str]] = (),
    statics: Hashable = None,
    table_of: Any = None,
    name_from: Any = None,
) -> Traced:
    """`stage`, remembered per (function, tree, avals, statics, configuration)."""
    table = traces.table(fun if table_of is None else table_of)
    key = (kind, in_tree, avals, statics, ambient_key())
    found = table.get(key)
    if found is not None and found.usable:
        return found.over(lambda name: state.axes[name][1])
    made = stage(fun, in_tree, avals, kind, paths, name_from)
    # What is kept mentions no variable of the vmap that opened an axis.
    kept = table[key] = made.over(lambda name: const(0, np.int32))

    def drop() -> None:
        if table.get(key) is kept:
            del table[key]

    for owner in made.owners:
        owner.at_end.append(drop)
    return made
