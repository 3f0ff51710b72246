"""Host functions in the graph: pure_callback, io_callback, debug.callback.

A pure callback is called when its results are needed. The others are effects (engine/effects.py):
their number and order are those of the program's text.
"""

from __future__ import annotations

import ast
import itertools
import string
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.errors import CallbackResultError, fill_text
from tinyjax.core.infos import CallbackInfo
from tinyjax.core.ops import Op
from tinyjax.core.source import api_boundary, call_site, locate
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import PyTreeDef, tree_flatten
from tinyjax.core.uop import UOp, results
from tinyjax.engine.array import Array
from tinyjax.engine.effects import next_token, perform
from tinyjax.engine.tracing import name_of
from tinyjax.engine.values import (
    finish_all,
    from_pickle,
    is_array_like,
    lift,
    shaped_abstractify,
)

METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized")
_sequence = itertools.count(1)


class HostFunction:
    """A user's function of arrays, called with the flat ndarrays of a node.

    `tree` is that of (args, kwargs); `statics` are the leaves that are no arrays, by position;
    `keys` the dtypes of those that are typed keys. Equal ones make equal nodes: two traces of a
    function are one body.
    """

    __slots__ = ("callback", "keys", "out_tree", "statics", "tree")

    def __init__(
        self,
        callback: Callable[..., Any],
        tree: PyTreeDef,
        statics: Sequence[tuple[int, Any]] = (),
        keys: Sequence[tuple[int, Any]] = (),
        out_tree: PyTreeDef | None = None,
    ) -> None:
        self.callback, self.tree, self.out_tree = callback, tree, out_tree
        self.statics, self.keys = tuple(statics), tuple(keys)

    @property
    def __name__(self) -> str:
        return name_of(self.callback)

    def __call__(self, *values: Any) -> Any:
        leaves = [
            from_pickle(np.array(v), dict(self.keys).get(i), False) for i, v in enumerate(values)
        ]
        for place, value in self.statics:
            leaves.insert(place, value)
        given, named = tree_unflatten(self.tree, leaves)
        result = self.callback(*given, **named)
        if self.out_tree is None:
            return []
        found, found_tree = tree_flatten(result)
        if found_tree != self.out_tree:
            raise CallbackResultError(
                f"callback {name_of(self.callback)} returned the tree {found_tree}, {self.out_tree} "
                "was stated.\n  Return the containers of result_shape_dtypes, or state others there."
            )
        return [np.asarray(x) for x in found]

    def __hash__(self) -> int:
        return hash((self.tree, self.out_tree, self.keys))

    def __eq__(self, other: Any) -> bool:
        return (
            type(other) is type(self)  # by identity: compared when Python ends, too
            and same_function(self.callback, other.callback)
            and (self.tree, self.out_tree, self.keys) == (other.tree, other.out_tree, other.keys)
            and len(self.statics) == len(other.statics)
            and all(
                i == j and same_static(a, b)
                for (i, a), (j, b) in zip(self.statics, other.statics, strict=True)
            )
        )


def same_function(f: Any, g: Any) -> bool:
    """By identity, but bound methods are new objects at every access, and so are formatters."""
    return f is g or (type(f) in (MethodType, Formatter) and type(f) is type(g) and f == g)


def same_static(a: Any, b: Any) -> bool:
    """Objects by identity, texts by value."""
    return a is b or (type(a) is str and type(b) is str and a == b)


def host_function(
    callback: Callable[..., Any], args: Any, kwargs: Any, out_tree: PyTreeDef | None
) -> tuple[HostFunction, list[UOp]]:
    """The function of the array leaves of its arguments, and these as nodes."""
    leaves, tree = tree_flatten((args, kwargs))
    nodes: list[UOp] = []
    statics: list[tuple[int, Any]] = []
    keys: list[tuple[int, Any]] = []
    for i, leaf in enumerate(leaves):
        if not is_array_like(leaf):
            statics.append((i, leaf))
            continue
        node = lift(leaf)
        if dtypes.is_key(node.dtype):
            keys.append((len(nodes), node.dtype))
        nodes.append(node)
    return HostFunction(callback, tree, statics, keys, out_tree), nodes


@api_boundary
def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: Any = None,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """`callback(*args, **kwargs)` on values; the results have the stated shapes and dtypes.

    The callback must be pure: it may run once, several times, or not at all if nothing needs its
    results. `vmap_method`: under vmap it is called once per example ("sequential"), or once with a
    leading axis for all arguments ("broadcast_all"), of size 1 for the shared ones ("expand_dims"),
    or for the mapped ones only ("legacy_vectorized").
    `sharding` changes nothing: there is one device.
    Raises: ValueError under differentiation (give the caller a custom_jvp); NotImplementedError if an
    argument is mapped and no method was given. What the callback raises ends the computation and
    reaches the caller.
    """
    if vmap_method not in (None, *METHODS):
        raise ValueError(f"vmap_method must be one of {METHODS} or None, got {vmap_method!r}")
    specs, out_tree = tree_flatten(result_shape_dtypes)
    out = tuple(shaped_abstractify(s).strip_weak_type() for s in specs)
    if not out:
        return tree_unflatten(out_tree, [])
    function, nodes = host_function(callback, args, kwargs, out_tree)
    info = CallbackInfo(function, out, sequence=next(_sequence), vectorized=vmap_method)
    values: list[Array] = finish_all(results(UOp(Op.CALLBACK, tuple(nodes), info)))
    return tree_unflatten(out_tree, values)


@api_boundary
def io_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: Any = None,
    ordered: bool = False,
    **kwargs: Any,
) -> Any:
    """`callback(*args, **kwargs)` on values, for its effect and its results of the stated types.

    It is called as often as the program says, used or not, and in the program's order. Under vmap it
    is called once per example, which `ordered=True` forbids.
    `sharding` changes nothing: there is one device.
    Raises: ValueError under differentiation and for vmap of an ordered one. What the callback raises
    ends the computation and reaches the caller.
    """
    specs, out_tree = tree_flatten(result_shape_dtypes)
    out = tuple(shaped_abstractify(s).strip_weak_type() for s in specs)
    function, nodes = host_function(callback, args, kwargs, out_tree)
    info = CallbackInfo(function, out, "io", ordered=ordered)
    return tree_unflatten(out_tree, effect(nodes, info))


@api_boundary
def debug_callback(
    callback: Callable[..., Any] | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    **kwargs: Any,
) -> Callable[..., None] | None:
    """`callback(*args, **kwargs)` on values, for its effect: its result is ignored.

    Leaves that are no arrays are passed as they are. Called as often as the program says and in the
    program's order: once per step of a loop, per example of a vmap (in order), once under
    differentiation (with primal values), once more when a checkpoint recomputes.
    What the callback raises ends the computation and reaches the caller.
    `debug.callback(ordered=True)(callback, *args, **kwargs)` keeps options and arguments apart.
    `partitioned` is for meshes and changes nothing.
    Raises: TypeError if the callback is none, or options and arguments come without one.
    """

    @api_boundary
    def call(callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if not callable(callback):
            raise TypeError(
                "first argument to jax.debug.callback must be callable, but got an object of type "
                f"{type(callback)}.\n  Pass the function first, then its arguments: "
                "jax.debug.callback(f, x)."
            )
        function, nodes = host_function(callback, args, kwargs, None)
        effect(nodes, CallbackInfo(function, (), "debug", ordered=ordered))

    return at_once_or_later(call, callback, args, kwargs, "debug_callback")


def at_once_or_later(
    call: Callable[..., None], first: Any, args: Any, kwargs: Any, name: str
) -> Callable[..., None] | None:
    """`call` applied, or itself if its first argument was not given."""
    if first is not None:
        call(first, *args, **kwargs)
        return None
    if args or kwargs:
        raise TypeError(
            f"{name} received unexpected arguments in the two-call form: args={args} kwargs={kwargs}.\n"
            "  Give them to what it returns, or the callback before them."
        )
    return call


@dataclass(frozen=True, slots=True)
class Formatter:
    """What `debug.print` calls: writes a text with values, with NumPy's print options of the call.

    A text without placeholders is followed by the values. `logged` is the line for the log in whose
    place the text is not written to stdout.
    """

    text: str
    options: str
    logged: tuple[str, int] | None = None

    @property
    def __name__(self) -> str:
        return f"print {self.text!r}"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if any(name is not None for _, name, _, _ in string.Formatter().parse(self.text)):
            with np.printoptions(**ast.literal_eval(self.options)):
                text = self.text.format(*args, **kwargs)
        else:
            text = " ".join((self.text.format(), *map(str, args)))
        if self.logged is None:
            sys.stdout.write(text + "\n")
            return
        import logging  # only where `debug.log` writes: "tinyjax.debug", at level INFO

        log = logging.getLogger("tinyjax.debug")
        log.handle(log.makeRecord(log.name, logging.INFO, *self.logged, text, (), None))


PRINT_OPTIONS = ("precision", "threshold", "edgeitems", "linewidth", "suppress", "nanstr", "infstr",
                 "sign", "floatmode")  # fmt: skip


class FormatCheck(string.Formatter):
    """Formats without values, to find mistakes where they are made."""

    def check_unused_args(self, used: Any, args: Any, kwargs: Any) -> None:
        unused = [i for i in range(len(args)) if i not in used]
        if unused:
            raise ValueError(
                f"Unused positional arguments to `jax.debug.print`: {unused}. The text has no "
                "placeholder for them.\n  Write {} in the text for each."
            )
        names = [k for k in kwargs if k not in used]
        if names:
            raise ValueError(
                f"Unused keyword arguments to `jax.debug.print`: {names}. Did you forget the "
                "braces, as in jax.debug.print('x = {x}', x=x)? An f-string would be formatted too "
                "early."
            )

    def format_field(self, value: Any, spec: str) -> str:
        return ""

    def get_field(self, name: str, args: Any, kwargs: Any) -> Any:
        first = name.replace("[", ".").split(".")[0]
        key: Any = int(first) if first.isdigit() else first
        self.get_value(key, args, kwargs)
        return "", key

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return value


@api_boundary
def debug_print(
    fmt: str | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: Any,
) -> Callable[..., None] | None:
    """Print `fmt.format(*args, **kwargs)` when the values are known, also in compiled code.

    See `debug_callback` for how often, and for the form `debug.print(ordered=True)(fmt, x)`.
    `skip_format_check`: arguments without placeholder are written after the text.
    `partitioned` is for meshes and changes nothing.
    Raises: ValueError for an argument without placeholder.
    Example: `jax.debug.print("loss {x:.3f}", x=loss)`.
    """
    return formatted(fmt, args, kwargs, ordered, skip_format_check, "debug_print")


@api_boundary
def debug_log(
    fmt: str | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: Any,
) -> Callable[..., None] | None:
    """As `debug_print`, but the text goes to the logger "tinyjax.debug" at level INFO, with the line
    of this call.

    `partitioned` is for meshes and changes nothing.
    """
    return formatted(fmt, args, kwargs, ordered, skip_format_check, "debug_log")


def formatted(
    fmt: str | None, args: Any, kwargs: Any, ordered: bool, skip_check: bool, name: str
) -> Callable[..., None] | None:
    """`debug_print` and `debug_log`."""

    @api_boundary
    def write(fmt: str, *args: Any, **kwargs: Any) -> None:
        if not skip_check:
            fill_text(name.replace("_", "."), fmt, args, kwargs, FormatCheck().format)
        options = {k: v for k, v in np.get_printoptions().items() if k in PRINT_OPTIONS}
        site = call_site() if name == "debug_log" else None
        line = None if site is None else (locate(site).file, locate(site).line)
        function, nodes = host_function(Formatter(fmt, repr(options), line), args, kwargs, None)
        effect(nodes, CallbackInfo(function, (), "debug", ordered=ordered))

    return at_once_or_later(write, fmt, args, kwargs, name)


def effect(nodes: list[UOp], info: CallbackInfo) -> list[Array]:
    """Apply a callback that is an effect."""
    return perform(UOp(Op.CALLBACK, (*nodes, next_token(nodes)), info))


def effects_barrier() -> None:
    """Wait until all effects have happened. They have, when a call returns."""
