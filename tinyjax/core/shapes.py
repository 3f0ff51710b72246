"""Shapes whose sizes may be symbolic: what NumPy and Python do with shapes of integers.

Sizes are compared with `==`, which raises where it depends on the size of a dimension. Where both
answers are right, because the work that an equality would save may as well be done, ask `same_shape`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinyjax.core.dims import DimExpr, Size, as_int, describe, maximum, minimum
from tinyjax.core.errors import AxisNumberError, BroadcastError, InconclusiveDimensionOperation

Shape = tuple[Any, ...]


def canonical_axis(axis: Any, ndim: int, name: str = "axis") -> int:
    """A non-negative axis number, from one that may count from the end.

    Raises: TypeError for what is no integer, AxisNumberError for one that is out of range.
    """
    number = as_int(axis, name)
    if not -ndim <= number < ndim:
        raise AxisNumberError(f"{name} {number} is out of bounds for array of dimension {ndim}")
    return number % ndim


def same_shape(a: Shape, b: Shape) -> bool:
    """Whether two shapes are equal, whatever the sizes of symbolic dimensions are."""
    if len(a) != len(b):
        return False
    try:
        return a == b
    except InconclusiveDimensionOperation:
        return False


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are equal, whatever the sizes of symbolic dimensions are."""
    return same_shape((a,), (b,))


def unequal(error: type[Exception], *sizes: Size) -> tuple[type[Exception], str, str]:
    """Class, rule and fix of the error for sizes that ought to be equal, pair by pair.

    `error` if they are not, InconclusiveDimensionOperation if that depends on a dimension.
    """
    for a, b in zip(sizes[::2], sizes[1::2], strict=True):
        try:
            if a != b:
                return error, "sizes must be equal", ""
        except InconclusiveDimensionOperation:
            rule = f"{a} and {b} are equal for some sizes only, {describe(a, b)}"
            return InconclusiveDimensionOperation, rule, "Use the same Dim for axes that are equal."
    raise AssertionError("the sizes are equal")


def broadcast_shapes(*shapes: Sequence[Size]) -> Shape:
    """The shape that NumPy broadcasting gives; a symbolic size is that of an axis, never 1.

    Raises: BroadcastError for sizes that differ, InconclusiveDimensionOperation if that depends on the
    size of a dimension.
    """
    rank = max(map(len, shapes), default=0)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for place, size in enumerate(shape, rank - len(shape)):
            found = result[place]
            if found is size or size == 1:
                continue
            if found == 1:
                result[place] = size
            elif not equal_sizes(found, size, "Incompatible shapes for broadcasting", shapes):
                raise BroadcastError(f"Incompatible shapes for broadcasting: {listed(shapes)}")
    return tuple(result)


def reshaped(old: Shape, sizes: Sequence[Size]) -> Shape | None:
    """`sizes`, one of which may be -1, for the elements of a shape; None if they do not fit.

    Raises: InconclusiveDimensionOperation if whether they fit depends on the size of a dimension.
    """
    total, known = math.prod(old), math.prod(sizes)
    if -1 not in sizes:
        fits = equal_sizes(total, known, "Cannot reshape", (old, sizes))
        return tuple(sizes) if fits and all(s >= 0 for s in sizes) else None
    known = -known
    if known <= 0 or sum(s < 0 for s in sizes) > 1:
        return None
    rest: Size = total % known
    if isinstance(rest, DimExpr):
        raise InconclusiveDimensionOperation(
            f"Cannot divide evenly the sizes of shapes {tuple(old)} and {tuple(sizes)}: the remainder "
            f"{rest} is 0 for some sizes only, {describe(rest)}.\n  Dim(..., multiple_of=) says what "
            "divides a dimension."
        )
    return None if rest else tuple(total // known if s == -1 else s for s in sizes)


def equal_sizes(a: Size, b: Size, what: str, shapes: Sequence[Sequence[Size]]) -> bool:
    """a == b; where that depends on the size of a dimension, an error about these shapes."""
    try:
        return bool(a == b)
    except InconclusiveDimensionOperation:
        raise InconclusiveDimensionOperation(
            f"{what}: {listed(shapes)}. {a} and {b} are equal for some sizes only, "
            f"{describe(a, b)}.\n  Use the same Dim for axes that are equal."
        ) from None


def listed(shapes: Sequence[Sequence[Size]]) -> str:
    """Shapes in a message."""
    return ", ".join(str(tuple(s)) for s in shapes)


def slice_steps(bounds: slice, size: Size) -> tuple[Size, Size, int, Size | None]:
    """(start, number of positions, step, stop) of a Python slice of an axis.

    The stop is None if all is known, else it is not on the wrong side of start.

    Raises: ValueError for a step of zero, InconclusiveDimensionOperation where a bound may count from
    either end.
    """
    start, stop, step = bounds.start, bounds.stop, bounds.step
    if not isinstance(size, DimExpr) and not any(isinstance(x, DimExpr) for x in (start, stop)):
        chosen = range(*bounds.indices(size))
        return chosen.start, len(chosen), chosen.step, None
    step = 1 if step is None else step.__index__()
    if not step:
        raise ValueError("slice step cannot be zero")
    first, last = (0, size) if step > 0 else (-1, size - 1)

    def inside(bound: Any, default: Size) -> Size:
        if bound is None:
            return default
        if not isinstance(bound, DimExpr):
            bound = bound.__index__()
        return minimum(maximum(bound + size if bound < 0 else bound, first), last)

    start = inside(start, first if step > 0 else last)
    stop = inside(stop, last if step > 0 else first)
    if step > 0:
        stop = maximum(stop, start)
        return start, -((start - stop) // step), step, stop
    stop = minimum(stop, start)
    return start, -((stop - start) // -step), step, stop
