"""`add.reduce`, `maximum.accumulate`, `multiply.outer`: NumPy's ufunc methods of binary functions.

Where a reduction op exists the method is that op; the others fold by a scan (`functional.ufunc`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinyjax.core import build as b
from tinyjax.engine.array import Array
from tinyjax.engine.values import asarray, finish
from tinyjax.numpy import reductions, ufuncs
from tinyjax.numpy.functional import ufunc
from tinyjax.numpy.promotion import canonical_axes
from tinyjax.numpy.ufuncs import truth

Function = Callable[..., Any]


def reduce_with(function: Function) -> Function:
    """`ufunc.reduce` from a reduction of this package."""

    def reduce(
        a: Any, axis: Any, dtype: Any, out: None, keepdims: bool, initial: Any, where: Any
    ) -> Array:
        x: Any = asarray(a)
        x = x if dtype is None else x.astype(dtype)
        options = {} if initial is None else {"initial": initial}
        if where is not None:
            options["where"] = where
        made: Array = function(x, axis=axis, keepdims=keepdims, **options)
        return made

    return reduce


def fold_bits(kind: str, logical: bool) -> Function:
    """`ufunc.reduce` by REDUCE and, or, xor; of truth values if `logical`."""

    def reduce(
        a: Any, axis: Any, dtype: Any, out: None, keepdims: bool, initial: Any, where: Any
    ) -> Array:
        n = asarray(a).node
        n = truth(n) if logical else n
        n = reductions.masked(n, where, reductions.neutral(kind, n.dtype))
        axes = canonical_axes(axis, n.ndim)
        made = b.reduce(kind, n, axes)
        if initial is not None:
            first = b.cast(asarray(initial).node, n.dtype)
            made = {"and": b.and_, "or": b.or_, "xor": b.xor}[kind](made, first)
        return finish(reductions.keep(made, axes, n.shape, keepdims))

    return reduce


def write_with(method: str) -> Function:
    """`ufunc.at` from an update method of `x.at`."""

    def at(x: Any, indices: Any, values: Any) -> Array:
        made: Array = getattr(x.at[indices], method)(values)
        return made

    return at


# function: (identity, reduce, accumulate, at)
TABLE: dict[str, tuple[Any, Function | None, Function | None, Function | None]] = {
    "add": (0, reduce_with(reductions.sum), reductions.cumsum, write_with("add")),
    "multiply": (1, reduce_with(reductions.prod), reductions.cumprod, write_with("multiply")),
    "maximum": (None, reduce_with(reductions.max), None, write_with("max")),
    "minimum": (None, reduce_with(reductions.min), None, write_with("min")),
    "subtract": (None, None, None, write_with("subtract")),
    "logical_and": (True, fold_bits("and", True), None, None),
    "logical_or": (False, fold_bits("or", True), None, None),
    "logical_xor": (False, fold_bits("xor", True), None, None),
    "bitwise_and": (-1, fold_bits("and", False), None, None),
    "bitwise_or": (0, fold_bits("or", False), None, None),
    "bitwise_xor": (0, fold_bits("xor", False), None, None),
    "logaddexp": (-float("inf"), None, None, None),
    "logaddexp2": (-float("inf"), None, None, None),
}


def install() -> None:
    """Give the functions their methods. They stay plain functions, so calls cost nothing more."""
    for name, (identity, reduce, accumulate, at) in TABLE.items():
        function = getattr(ufuncs, name)
        made = ufunc(
            function,
            2,
            1,
            name=name,
            identity=identity,
            call=function,
            reduce=reduce,
            accumulate=accumulate,
            at=at,
        )
        for method in ("reduce", "accumulate", "at", "reduceat", "outer"):
            setattr(function, method, getattr(made, method))
        for fact in ("nin", "nout", "nargs", "identity"):
            setattr(function, fact, getattr(made, fact))
