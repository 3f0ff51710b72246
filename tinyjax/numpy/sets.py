"""Sets: unique and set operations. Under jit `size=` fixes how many results there are."""

from __future__ import annotations

from typing import Any, NamedTuple

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dims import as_int
from tinyjax.core.errors import ConcretizationTypeError
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, lift
from tinyjax.numpy.indexing import concrete, gather_node, scatter_node
from tinyjax.numpy.picking import nonzero
from tinyjax.numpy.promotion import ArrayLike, canonical_axis, checked, promote_dtypes
from tinyjax.numpy.sorting import search_node


class Unique(NamedTuple):
    """What `unique_all` returns."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns."""

    values: Array
    inverse_indices: Array


def same_as_previous(columns: list[UOp], equal_nan: bool) -> UOp:
    """Whether each element (of all columns) equals the one before it; False for the first."""
    same: UOp | None = None
    for n in columns:
        left, right = b.slice_axis(n, 0, 0, n.shape[0] - 1), b.slice_axis(n, 0, 1, n.shape[0])
        now = b.eq(left, right)
        if equal_nan and dtypes.is_inexact(n.dtype):
            now = b.or_(now, b.and_(b.ne(left, left), b.ne(right, right)))
        same = now if same is None else b.and_(same, now)
    assert same is not None
    return b.pad(same, [(1, 0, 0)])


def rows_of(n: UOp, axis: int | None) -> tuple[UOp, int]:
    """The elements to compare as rows [N, ...] and the axis they are counted along."""
    if axis is None:
        return b.reshape(n, (n.aval.size,)), 0
    place = canonical_axis(axis, n.ndim)
    return b.moveaxis(n, place, 0), place


def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    sorted: bool = True,
) -> Any:
    """The different elements (or slices of an axis), sorted; with first positions, inverse, counts.

    `size` fixes their number (needed under jit): further ones are dropped, missing ones filled with
    `fill_value` (the smallest element by default).
    """
    (n,) = checked("unique", ar)
    shape = n.shape
    rows, place = rows_of(n, axis)
    count = rows.shape[0]
    dtype = dtypes.default_int_dtype()
    if count == 0:
        return empty_unique(
            n,
            rows,
            place,
            size,
            fill_value,
            (return_index, return_inverse, return_counts),
            shape,
            axis,
        )
    width = rows.aval.size // count
    flat = b.reshape(rows, (count, width))
    columns = [b.squeeze(b.slice_axis(flat, 1, i, i + 1), (1,)) for i in range(width)]
    if not columns:  # slices without elements are all equal
        columns = [b.full((count,), b.scalar(0, b.INT32))]
    found = b.sort([*columns, b.iota((count,), 0, dtype)], 0, len(columns))
    ordered, order = found[:-1], found[-1]
    first = b.not_(same_as_previous(ordered, equal_nan))
    if size is None:
        known = concrete(finish(first))
        if known is None:
            raise ConcretizationTypeError(
                Array(n),
                "  The error arose in jnp.unique(): the number of results depends on values. "
                "To make "
                "jnp.unique() compatible with JIT and other transforms, you can specify a concrete "
                "value for the size argument, which will determine the output size.",
            )
        total = int(known.sum())
    else:
        total = as_int(size, "size")
    starts = nonzero(finish(first), size=total, fill_value=count)[0].node
    real = b.lt(starts, b.like(starts, count))
    safe = finish(b.min_(starts, b.like(starts, count - 1)))
    source = gather_node(order, safe, "clip")  # position in the input of each unique element
    values = gather_node(rows, finish(source), "clip")
    if size is not None:
        if fill_value is not None:
            (fill,) = checked("unique", fill_value)
            fill = b.broadcast(b.cast(fill, values.dtype), values.shape)
        else:
            head = b.slice_axis(values, 0, 0, 1) if total else values
            fill = b.broadcast(b.reshape(head, values.shape[1:]), values.shape) if total else values
        values = b.where(b.expand(real, values.shape, (0,)), values, fill)
    out: list[Array] = [finish(b.moveaxis(values, 0, place))]
    if return_index:
        index = source
        if size is not None and total:
            head = b.squeeze(b.slice_axis(source, 0, 0, 1), (0,))
            index = b.where(real, source, b.fill_to(head, source.shape))
        out.append(finish(b.cast(index, dtype)))
    if return_inverse:
        number = b.sub(b.prefix("add", b.cast(first, dtype), 0), b.scalar(1, dtype))
        inverse = scatter_node(
            b.full((count,), b.scalar(0, dtype)), finish(order), finish(number), "set",
            unique_indices=True,
        )  # fmt: skip
        if axis is None:
            inverse = b.reshape(inverse, shape)
        out.append(finish(inverse))
    if return_counts:
        ends = (
            b.concat([b.slice_axis(starts, 0, 1, total), b.full((1,), b.like(starts, count))], 0)
            if total
            else starts
        )
        out.append(finish(b.cast(b.sub(ends, starts), dtype)))
    return out[0] if len(out) == 1 else tuple(out)


def empty_unique(
    n: UOp,
    rows: UOp,
    place: int,
    size: int | None,
    fill_value: Any,
    wanted: tuple[bool, bool, bool],
    shape: tuple[int, ...],
    axis: int | None,
) -> Any:
    """No elements: nothing, or `size` fill values."""
    total = size or 0
    if total and fill_value is None:
        raise ValueError(
            "jnp.unique(): for zero-sized input with nonzero size argument, fill_value must "
            "be specified"
        )
    fill = b.cast(lift(0 if fill_value is None else fill_value), n.dtype)
    values = b.full((total, *rows.shape[1:]), fill)
    dtype = dtypes.default_int_dtype()
    zero = b.scalar(0, dtype)
    parts = [b.moveaxis(values, 0, place)]
    parts += [b.full((total,), zero)] if wanted[0] else []
    parts += [b.full(shape if axis is None else (0,), zero)] if wanted[1] else []
    parts += [b.full((total,), zero)] if wanted[2] else []
    out = [finish(p) for p in parts]
    return out[0] if len(out) == 1 else tuple(out)


def unique_all(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> Unique:
    """Unique values, first positions, inverse and counts."""
    return Unique(*unique(x, True, True, True, equal_nan=False, size=size, fill_value=fill_value))


def unique_counts(
    x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None
) -> UniqueCounts:
    """Unique values and how often each occurs."""
    return UniqueCounts(
        *unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value)
    )


def unique_inverse(
    x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None
) -> UniqueInverse:
    """Unique values and the number of each element among them."""
    return UniqueInverse(
        *unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value)
    )


def unique_values(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Unique values."""
    return unique(x, equal_nan=False, size=size, fill_value=fill_value)  # type: ignore[no-any-return]


def member_node(x: UOp, among: UOp) -> UOp:
    """Whether each element of x is in a vector: compared with all, or searched if that is long."""
    size = among.shape[0]
    if not size:
        return b.full(x.shape, b.scalar(False, b.BOOL))
    if size <= 16:
        wide = (*x.shape, size)
        same = b.eq(b.expand(x, wide, tuple(range(x.ndim))), b.expand(among, wide, (x.ndim,)))
        return b.reduce("or", same, (x.ndim,))
    (ordered,) = b.sort([among], 0)
    place = search_node(ordered, x, False)
    found = gather_node(ordered, finish(b.min_(place, b.like(place, size - 1))), "clip")
    return b.eq(found, x)


def isin(
    element: ArrayLike,
    test_elements: ArrayLike,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    method: str = "auto",
) -> Array:
    """Whether each element is among `test_elements`."""
    if method not in ("auto", "compare_all", "binary_search", "sort"):
        raise ValueError(f"Unknown method {method!r} for isin")
    x, among = promote_dtypes(checked("isin", element, test_elements))
    out = member_node(x, b.reshape(among, (among.aval.size,)))
    return finish(b.not_(out) if invert else out)


def vectors(name: str, *arrays: ArrayLike) -> list[UOp]:
    """Flattened operands in a common dtype."""
    return [b.reshape(n, (n.aval.size,)) for n in promote_dtypes(checked(name, *arrays))]


def union1d(
    ar1: ArrayLike, ar2: ArrayLike, *, size: int | None = None, fill_value: Any = None
) -> Array:
    """The sorted elements of either array."""
    both = b.concat(vectors("union1d", ar1, ar2), 0)
    return unique(finish(both), size=size, fill_value=fill_value)  # type: ignore[no-any-return]


def chosen(
    values: UOp, keep: UOp, size: int | None, fill_value: Any, name: str
) -> tuple[Array, Array]:
    """The kept elements in order, and their positions; `size` fixes their number."""
    if size is None and concrete(finish(keep)) is None:
        raise ConcretizationTypeError(
            Array(values),
            f"  The number of results of jnp.{name} depends on values: pass a static `size`.",
        )
    (at,) = nonzero(finish(keep), size=size, fill_value=values.shape[0])
    fill = fill_value
    if size is not None and fill is None:
        # The smallest kept element, or 0 if there is none.
        any_kept = b.reduce("or", keep, (0,))
        head = (
            gather_node(values, finish(b.squeeze(b.slice_axis(at.node, 0, 0, 1), (0,))), "clip")
            if size and values.shape[0]
            else b.like(values, 0)
        )
        fill = finish(b.where(any_kept, head, b.like(head, 0)))
    if not values.shape[0]:
        return finish(
            b.full((at.shape[0],), b.cast(lift(0 if fill is None else fill), values.dtype))
        ), at
    out = gather_node(values, at, "fill", fill if fill is not None else 0)
    return finish(out), at


def setdiff1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Array:
    """The elements of `ar1` that are not in `ar2`."""
    x, y = vectors("setdiff1d", ar1, ar2)
    if not assume_unique:
        x, keep = first_of_each(x)
    else:
        keep = b.full(x.shape, b.scalar(True, b.BOOL))
    keep = b.and_(keep, b.not_(member_node(x, y)))
    return chosen(x, keep, size, 0 if fill_value is None else fill_value, "setdiff1d")[0]


def first_of_each(x: UOp) -> tuple[UOp, UOp]:
    """Sorted elements, and which of them are the first of their value."""
    if not x.shape[0]:
        return x, b.full((0,), b.scalar(True, b.BOOL))
    (ordered,) = b.sort([x], 0)
    return ordered, b.not_(same_as_previous([ordered], True))


def setxor1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Array:
    """The sorted elements that are in one of the arrays only."""
    x, y = vectors("setxor1d", ar1, ar2)
    (sx, fx), (sy, fy) = first_of_each(x), first_of_each(y)
    both = b.concat([sx, sy], 0)
    keep = b.concat(
        [b.and_(fx, b.not_(member_node(sx, y))), b.and_(fy, b.not_(member_node(sy, x)))], 0
    )
    if not both.shape[0]:
        return finish(both)
    ordered, kept = b.sort([both, keep], 0)
    return chosen(ordered, kept, size, fill_value, "setxor1d")[0]


def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The sorted elements that are in both arrays (and their first positions in each)."""
    x, y = vectors("intersect1d", ar1, ar2)
    dtype = dtypes.default_int_dtype()
    if not x.shape[0] or not y.shape[0]:
        none = finish(b.full((size or 0,), b.cast(lift(fill_value or 0), x.dtype)))
        spots = finish(b.full((size or 0,), b.scalar(x.shape[0], dtype)))
        return (none, spots, spots) if return_indices else none
    ordered, order = b.sort([x, b.iota(x.shape, 0, dtype)], 0)
    keep = b.and_(b.not_(same_as_previous([ordered], False)), member_node(ordered, y))
    out, at = chosen(ordered, keep, size, fill_value, "intersect1d")
    if not return_indices:
        return out
    inside = b.lt(at.node, b.like(at.node, x.shape[0]))
    first = gather_node(order, at, "clip")
    sorted_y, order_y = b.sort([y, b.iota(y.shape, 0, dtype)], 0)
    place = search_node(sorted_y, b.cast(out.node, sorted_y.dtype), False)
    second = gather_node(order_y, finish(place), "clip")
    return (
        out,
        finish(b.where(inside, first, b.like(first, x.shape[0]))),
        finish(b.where(inside, second, b.like(second, y.shape[0]))),
    )
