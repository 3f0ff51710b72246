"""Order: sort, argsort, lexsort, partition, searchsorted: SORT, or a binary search by GATHER.

NaN comes last and -0.0 equals 0.0; sorts are stable.
"""

from __future__ import annotations

import math
from typing import Any

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dims import largest
from tinyjax.core.infos import GatherInfo
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish
from tinyjax.numpy.indexing import gather_node
from tinyjax.numpy.promotion import (
    ArrayLike,
    canonical_axis,
    checked,
    promote_dtypes,
)

# Below this many sorted values, comparing with all of them is one fused pass and beats a search.
COMPARE_ALL_LIMIT = 32


def check_kind(name: str, kind: Any, order: Any, stable: bool) -> None:
    """What NumPy's arguments may be."""
    if kind is not None:
        raise TypeError(
            f"'kind' argument to {name} is not supported, got {kind!r}. Use stable=True or "
            "stable=False to specify sort stability."
        )
    if order is not None:
        raise TypeError(f"'order' argument to {name} is not supported, got {order!r}.")


def flat_or_axis(n: UOp, axis: int | None) -> tuple[UOp, int]:
    """The operand (flattened if axis is None) and the axis."""
    if axis is None:
        return b.reshape(n, (n.aval.size,)), 0
    return n, canonical_axis(axis, n.ndim)


def sort(
    a: ArrayLike,
    axis: int | None = -1,
    *,
    kind: Any = None,
    order: Any = None,
    stable: bool = True,
    descending: bool = False,
) -> Array:
    """Sorted along an axis (flattened first if None). NaN last, or first if descending."""
    check_kind("sort", kind, order, stable)
    (n,) = checked("sort", a)
    n, place = flat_or_axis(n, axis)
    (out,) = b.sort([n], place, 1, stable)
    return finish(b.flip(out, (place,)) if descending else out)


def argsort_node(n: UOp, axis: int, stable: bool = True, descending: bool = False) -> UOp:
    """Positions that sort an axis; equal elements keep their order, also if descending."""
    positions = b.iota(n.shape, axis, dtypes.default_int_dtype())
    if descending:
        n, positions = b.flip(n, (axis,)), b.flip(positions, (axis,))
    index = b.sort([n, positions], axis, 1, stable)[1]
    return b.flip(index, (axis,)) if descending else index


def argsort(
    a: ArrayLike,
    axis: int | None = -1,
    *,
    kind: Any = None,
    order: Any = None,
    stable: bool = True,
    descending: bool = False,
    dtype: Any = None,
) -> Array:
    """Positions that would sort an axis (of the flattened array if None)."""
    check_kind("argsort", kind, order, stable)
    (n,) = checked("argsort", a)
    n, place = flat_or_axis(n, axis)
    index = argsort_node(n, place, stable, descending)
    return finish(index if dtype is None else b.cast(index, dtypes.user_dtype(dtype, "argsort")))


def lexsort(keys: Any, axis: int = -1) -> Array:
    """Positions that sort by several keys, the last one first."""
    from tinyjax.numpy.shaping import sequence  # it stands on this file

    nodes = sequence("lexsort", keys)
    if not nodes:
        raise TypeError("need sequence of keys with len > 0 in lexsort")
    if any(n.shape != nodes[0].shape for n in nodes):
        raise ValueError("all keys need to be the same shape")
    if not nodes[0].ndim:
        return finish(b.scalar(0, dtypes.default_int_dtype()))
    place = canonical_axis(axis, nodes[0].ndim)
    positions = b.iota(nodes[0].shape, place, dtypes.default_int_dtype())
    return finish(b.sort([*nodes[::-1], positions], place, len(nodes))[-1])


def partition(a: ArrayLike, kth: int, axis: int = -1) -> Array:
    """Rearranged so that element kth is where sorting puts it, smaller ones before it.

    Cost: a full sort, which satisfies this too.
    """
    (n,) = checked("partition", a)
    place = canonical_axis(axis, n.ndim)
    canonical_axis(kth, n.shape[place], "kth")
    return sort(finish(n), place)


def argpartition(a: ArrayLike, kth: int, axis: int = -1) -> Array:
    """Positions that partition an axis (see `partition`)."""
    (n,) = checked("argpartition", a)
    place = canonical_axis(axis, n.ndim)
    canonical_axis(kth, n.shape[place], "kth")
    return argsort(finish(n), place)


def sort_complex(a: ArrayLike) -> Array:
    """Sorted by real part, then imaginary part, as complex numbers."""
    (n,) = checked("sort_complex", a)
    (out,) = b.sort([n], canonical_axis(-1, n.ndim))
    return finish(b.cast(out, dtypes.to_complex_dtype(out.dtype)))


def below(x: UOp, y: UOp, or_equal: bool) -> UOp:
    """x < y (or x <= y) with NaN above everything."""
    plain = b.le(x, y) if or_equal else b.lt(x, y)
    if not dtypes.is_inexact(x.dtype):
        return plain
    nan_y = b.ne(y, y)
    if or_equal:
        return b.or_(plain, nan_y)
    return b.or_(plain, b.and_(nan_y, b.eq(x, x)))


def search_node(values: UOp, query: UOp, right: bool) -> UOp:
    """How many of the sorted `values` are below each query (or not above it, if `right`)."""
    size, shape = values.shape[0], query.shape
    if largest(size) <= COMPARE_ALL_LIMIT:
        wide = (*shape, size)
        v = b.expand(values, wide, (len(shape),))
        q = b.expand(query, wide, tuple(range(len(shape))))
        return b.sum_(b.cast(below(v, q, right), b.INT32), (len(shape),))
    info = GatherInfo((), (0,), (0,), (1,), mode="clip")
    # The answer is in [low, low + 2**k - 1] with k falling to 0: each step halves the interval.
    low = b.full(shape, b.scalar(0, b.INT32))
    for k in reversed(range(math.ceil(math.log2(largest(size) + 1)))):
        middle = b.add(low, b.scalar(2**k, b.INT32))
        probe = b.sub(middle, b.scalar(1, b.INT32))
        at = b.gather(values, b.unsqueeze(probe, len(shape)), info)
        inside = b.le(middle, b.scalar(size, b.INT32))
        low = b.where(b.and_(inside, below(at, query, right)), middle, low)
    return low


def check_method(method: Any) -> None:
    """The ways to search that JAX knows. Raises: ValueError for another."""
    if method not in ("scan", "scan_unrolled", "sort", "compare_all"):
        raise ValueError(
            f"{method!r} is an invalid value for keyword 'method'. Expected one of ['sort', "
            "'scan', "
            "'scan_unrolled', 'compare_all']."
        )


def searchsorted(
    a: ArrayLike,
    v: ArrayLike,
    side: str = "left",
    sorter: ArrayLike | None = None,
    *,
    method: str = "scan",
) -> Array:
    """Where `v` would be inserted in the sorted vector `a`: before equal elements, or after them.

    `method` is accepted for compatibility: a short `a` is compared with, a long one searched.
    Cost: log2(len(a)) gathers.
    """
    if side not in ("left", "right"):
        raise ValueError(
            f"{side!r} is an invalid value for keyword 'side'. Expected one of ['left', 'right']."
        )
    check_method(method)
    values, query = checked("searchsorted", a, v)
    if sorter is not None:
        values = gather_node(values, finish(checked("searchsorted", sorter)[0]))
    if values.ndim != 1:
        raise ValueError("a should be 1-dimensional")
    values, query = promote_dtypes([values, query])
    dtype = dtypes.default_int_dtype() if largest(values.shape[0]) > 2**31 - 1 else b.INT32
    if not values.shape[0]:
        return finish(b.full(query.shape, b.scalar(0, dtype)))
    return finish(b.cast(search_node(values, query, side == "right"), dtype))
