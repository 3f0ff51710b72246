"""Checks on values: raised when a program runs, or returned as values by `checkify`.

`check` and `error_if` are effects: in compiled code too they raise when they fail, with the values
that the message asks for. `checkify` makes a function return its first error instead
(interpreters/functionalize.py), under jit, vmap and derivatives alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import TOKEN
from tinyjax.core.errors import fill_text
from tinyjax.core.infos import CallInfo, CheckInfo
from tinyjax.core.ops import Op
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import register_pytree_node, tree_structure, tree_unflatten
from tinyjax.core.treedef import tree_flatten
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.effects import next_token, perform
from tinyjax.engine.refs import current
from tinyjax.engine.tracing import argument_paths, name_of, stage, stage_cached
from tinyjax.engine.values import is_array_like, lift
from tinyjax.interpreters.effects import without_dead_effects
from tinyjax.interpreters.evaluate import CheckFailed
from tinyjax.interpreters.functionalize import CODE, DIV, INDEX, NAN, USER, Site, functionalize

T = TypeVar("T")


class JaxException(Exception):
    """Base of what a check can find."""


class FailedCheckError(JaxException):
    """A `check` of the user failed."""


class NaNError(JaxException):
    """An operation made a NaN."""


class DivisionByZeroError(JaxException):
    """A divisor was zero."""


class OOBError(JaxException):
    """An index was out of bounds."""


KINDS = {FailedCheckError: USER, NaNError: NAN, DivisionByZeroError: DIV, OOBError: INDEX}
CLASSES = {kind: cls for cls, kind in KINDS.items()}
user_checks = frozenset({FailedCheckError})
nan_checks = frozenset({NaNError})
index_checks = frozenset({OOBError})
div_checks = frozenset({DivisionByZeroError})
float_checks = nan_checks | div_checks
automatic_checks = float_checks | index_checks
all_checks = automatic_checks | user_checks


class Error:
    """The first error of a checked function, a pytree: `err.get()` is a text or None, `err.throw()`
    raises it. Under vmap it holds one per example."""

    __slots__ = ("code", "sites", "slots")

    def __init__(self, code: Any, slots: Sequence[Any], sites: tuple[Site, ...]) -> None:
        self.code, self.slots, self.sites = code, list(slots), sites

    def _text(self, place: tuple[int, ...], code: int) -> str:
        """The message of one example."""
        site = self.sites[code - 1]
        first = sum(len(s.slots) for s in self.sites[: code - 1])
        mine = self.slots[first : first + len(site.slots)]
        values = [np.asarray(v)[place] for v in mine]
        if site.tree is None:
            return site.message.format(*values)
        given, named = tree_unflatten(site.tree, values)
        return fill_text("check", site.message, given, named)

    def _found(self) -> list[tuple[tuple[int, ...], int]]:
        codes = np.asarray(self.code)
        return [(place, int(codes[place])) for place in np.ndindex(codes.shape) if codes[place]]

    @api_boundary
    def get(self) -> str | None:
        """The message; None if nothing failed. With several examples, a line for each."""
        found = self._found()
        if not found:
            return None
        if found[0][0] == ():
            return self._text(*found[0])
        lines = []
        for place, code in found:
            where = ", ".join(map(str, place))
            lines.append(f"at mapped index {where}: {self._text(place, code)}")
        return "\n".join(lines)

    @api_boundary
    def get_exception(self) -> JaxException | None:
        """The error as an exception of its class, of the first example that has one."""
        found = self._found()
        if not found:
            return None
        place, code = found[0]
        return CLASSES[self.sites[code - 1].kind](self._text(place, code))

    def throw(self) -> None:
        """Raise `JaxRuntimeError` (a ValueError) with the message if something failed.

        While a function is being traced this is `check_error`: raised when the program runs.
        """
        check_error(self)

    def __repr__(self) -> str:
        return f"Error({', '.join(sorted({s.kind for s in self.sites})) or 'no checks'})"


register_pytree_node(
    Error,
    lambda e: ((e.code, *e.slots), e.sites),
    lambda sites, leaves: Error(leaves[0], leaves[1:], sites),
)


def apply_check(holds: UOp, info: CheckInfo, values: Sequence[UOp]) -> None:
    """Raise now, or when the program runs."""
    operands = [holds, *values]
    perform(UOp(Op.CHECK, (*operands, next_token(operands)), info))


@api_boundary
def check(pred: Any, msg: str, *fmt_args: Any, debug: bool = False, **fmt_kwargs: Any) -> None:
    """Require that `pred` holds when the program runs.

    `msg` is formatted with the values (arrays and trees of arrays). Raises: `JaxRuntimeError` (a
    ValueError) where the check fails, unless the function is wrapped in `checkify`, which returns
    it. With `debug=True` it exists only under `checkify`.
    Example: `check(x > 0, "x must be positive, is {x}", x=x)`.
    """
    node = lift(pred) if is_array_like(pred) else None
    if node is None or node.shape or not dtypes.is_bool(node.dtype):
        raise TypeError(
            f"check takes a scalar pred as argument, got {pred!r}; reduce with jnp.all."
        )
    leaves, tree = tree_flatten((fmt_args, fmt_kwargs))
    for leaf in leaves:
        if not is_array_like(leaf):
            raise TypeError(
                "Formatting arguments to checkify.check need to be PyTrees of arrays, but got "
                f"{leaf!r} of type {type(leaf)}.\n"
                "  Write what Python knows into the message itself, as an f-string does."
            )
    tree_unflatten(tree, [""] * len(leaves))
    info = CheckInfo(f"{msg} (`check` failed)", tree, debug)
    apply_check(node, info, [lift(x) for x in leaves])


def debug_check(pred: Any, msg: str, *fmt_args: Any, **fmt_kwargs: Any) -> None:
    """`check` that does nothing unless the function is wrapped in `checkify`."""
    check(pred, msg, *fmt_args, debug=True, **fmt_kwargs)


@api_boundary
def error_if(x: T, pred: Any, msg: str) -> T:
    """`x`, once it is known that no element of `pred` holds.

    Raises: `JaxRuntimeError` (a ValueError) with `msg` when the program runs.
    """
    node = lift(pred)
    failed = b.reduce("or", b.cast(node, np.bool_), tuple(range(node.ndim)))
    apply_check(b.not_(failed), CheckInfo(msg), ())
    return x


@api_boundary
def check_error(error: Error) -> None:
    """Raise the error, or check for it when the program runs; inside another `checkify` it joins the
    errors of that one."""
    code = lift(error.code)
    axes = tuple(range(code.ndim))
    place = 0
    for number, site in enumerate(error.sites, 1):
        hit = b.eq(code, b.like(code, number))
        values = [lift(v) for v in error.slots[place : place + len(site.slots)]]
        place += len(site.slots)
        if axes:  # the last example that failed so, as in JAX
            size = code.aval.size
            at = b.cast(b.last_true(b.reshape(hit, (size,))), CODE)
            values = [one_of(v, code.ndim, size, at) for v in values]
        tree = tree_flatten((tuple(values), {}))[1] if site.tree is None else site.tree
        apply_check(b.not_(b.reduce("or", hit, axes)), CheckInfo(site.message, tree), values)


def one_of(x: UOp, ndim: int, size: int, at: UOp) -> UOp:
    """Example `at` of a value with `ndim` batch axes."""
    rest = x.shape[ndim:]
    flat = b.reshape(x, (size, *rest))
    starts = [at, *[b.scalar(0, CODE)] * len(rest)]
    return b.reshape(b.dynamic_slice(flat, starts, (1, *rest)), rest)


def checkify(
    f: Callable[..., Any], errors: frozenset[type[JaxException]] = user_checks
) -> Callable[..., tuple[Error, Any]]:
    """`f` that returns `(error, result)`: its first error of these kinds, and nothing raises.

    `errors`: `user_checks` (those of `check`), `nan_checks`, `div_checks`, `index_checks`, and their
    unions `float_checks`, `automatic_checks`, `all_checks`. Arguments that are no arrays of the library
    (Python numbers, NumPy's arrays, texts) reach `f` as they are: what Python or NumPy computes of them
    is not checked.
    Cost: traced once per signature if all arguments are arrays, else at each call; a few scalar
    operations per check; automatic checks read each result once more.
    Example: `err, y = checkify(f)(x); err.throw()`.
    """
    kinds = frozenset(KINDS[e] for e in errors)

    @functools.wraps(f, updated=())
    @api_boundary
    def checked(*args: Any, **kwargs: Any) -> tuple[Error, Any]:
        leaves, tree = tree_flatten((args, kwargs))
        places = [i for i, x in enumerate(leaves) if type(x) is Array]
        nodes = [leaves[i].node for i in places]
        avals = tuple(n.aval for n in nodes)

        def paths() -> list[str]:
            every = argument_paths(f, args, kwargs)
            return [every[i] for i in places]

        def of_arrays(*arrays: Array) -> Any:
            given = dict(zip(places, arrays, strict=True))
            own, named = tree_unflatten(tree, [given.get(i, x) for i, x in enumerate(leaves)])
            return f(*own, **named)

        if len(places) == len(leaves):
            traced = stage_cached(f, tree, avals, "checkify", paths)
        else:
            arrays = tree_structure((tuple(nodes), {}))
            traced = stage(of_arrays, arrays, avals, "checkify", paths, f)
        given = [*nodes, *traced.captured, *map(current, traced.refs)]
        kinds_in = [*(n.aval for n in given), *[TOKEN] * traced.effects]
        made = functionalize(traced.body, kinds_in, kinds)
        body = without_dead_effects(made.body, kinds_in)
        call = UOp(Op.CALL, (body, *traced.operands(nodes, body)), CallInfo("jit", name_of(f)))
        found: list[Array] = perform(call)
        count = len(traced.out_avals) + len(traced.refs)
        code, *slots = found[count:]
        results = traced.deliver(found[:count])
        return Error(code, slots, made.sites), tree_unflatten(traced.out_tree, results)

    return checked


JaxRuntimeError = CheckFailed
