"""Order statistics and counting: median, quantiles, histograms, bincount, digitize."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dims import as_int, bounds_of
from tinyjax.core.errors import ConcretizationTypeError
from tinyjax.core.infos import ScatterInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, lift, size_array
from tinyjax.numpy.creation import array_node, linspace
from tinyjax.numpy.indexing import concrete
from tinyjax.numpy.promotion import (
    ArrayLike,
    canonical_axes,
    checked,
    inexact_operands,
    no_out,
    promote_dtypes,
    promote_inexact,
)
from tinyjax.numpy.sorting import check_method, search_node

Axis = int | Sequence[int] | None
METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


def at_position(n: UOp, positions: UOp) -> UOp:
    """Elements along the last axis: `positions` are [k, *lead] with the result [k, *lead]."""
    from tinyjax.numpy.picking import take_along_node  # it stands on this file

    lead = n.ndim - 1
    moved = b.permute(positions, (*range(1, lead + 1), 0))
    picked = take_along_node(n, moved, lead, "clip", wrap=False)
    return b.permute(picked, (lead, *range(lead)))


def weights_like(w: UOp, n: UOp, axes: tuple[int, ...]) -> UOp:
    """Weights in the shape of `n`: given so, or along the one axis."""
    if w.shape == n.shape:
        return w
    if len(axes) != 1 or w.shape != (n.shape[axes[0]],):
        raise ValueError(
            f"weights of shape {w.shape} need the shape {n.shape} of a, or one axis and its size"
        )
    return b.expand(w, n.shape, axes)


def quantile_node(
    n: UOp,
    q: UOp,
    axis: Axis,
    method: str,
    keepdims: bool,
    skip_nan: bool,
    weights: UOp | None = None,
) -> UOp:
    """Quantiles of an inexact real node over axes; axes of q come first."""
    if method not in METHODS:
        raise ValueError("method can only be 'linear', 'lower', 'higher', 'midpoint', or 'nearest'")
    if q.ndim > 1:
        raise ValueError(f"q must be have rank <= 1, got shape {q.shape}")
    axes = canonical_axes(axis, n.ndim)
    rest = [i for i in range(n.ndim) if i not in axes]
    lead = tuple(n.shape[i] for i in rest)
    count = b.prod([n.shape[i] for i in axes])
    flat = b.reshape(b.permute(n, (*rest, *axes)), (*lead, count))
    last = len(lead)
    nan = b.like(n, np.nan)
    good = b.eq(flat, flat)
    if not skip_nan:  # one NaN makes its whole row NaN
        clean = b.reduce("and", good, (last,))
        flat = b.where(b.expand(clean, flat.shape, tuple(range(last))), flat, nan)
    if weights is None:
        (ordered,) = b.sort([flat], last)
    else:
        spread = weights_like(weights, n, axes)
        spread = b.reshape(b.permute(spread, (*rest, *axes)), flat.shape)
        ordered, spread = b.sort([flat, b.where(good, spread, b.like(spread, 0))], last)
    levels = q.shape[0] if q.ndim else 1
    shape = (levels, *lead)
    q_wide = b.expand(b.reshape(q, (levels,)), shape, (0,))
    if skip_nan:
        counts = b.cast(b.sum_(b.cast(good, b.INT32), (last,)), q.dtype)
        top = b.sub(counts, b.like(counts, 1))
        limit = b.expand(top, shape, tuple(range(1, last + 1)))
        place = b.mul(q_wide, limit)
    else:
        limit = b.fill_to(b.like(q, count - 1), shape)
        place = b.mul(q_wide, limit)
    if method == "inverted_cdf":
        # The first element at which the share of the weights reaches q.
        one = b.like(place, 1)
        if weights is None:
            place = b.sub(UOp(Op.CEIL, (b.mul(q_wide, b.add(limit, one)),)), one)
        else:
            total = b.prefix("add", spread, last)
            whole = b.slice_axis(total, last, count - 1, count)
            share = b.div(total, b.expand(whole, total.shape, tuple(range(total.ndim))))
            share = b.where(b.eq(share, b.like(share, 0)), b.like(share, -1), share)
            wide = (levels, *lead, count)
            below = b.lt(
                b.expand(share, wide, tuple(range(1, last + 2))),
                b.cast(b.expand(q_wide, wide, tuple(range(last + 1))), share.dtype),
            )
            place = b.sum_(b.cast(below, place.dtype), (last + 1,))
    low, high = UOp(Op.FLOOR, (place,)), UOp(Op.CEIL, (place,))
    weight = b.sub(place, low)
    zero = b.like(low, 0)
    positions = [
        b.cast(b.max_(zero, b.min_(p, limit)), dtypes.default_int_dtype()) for p in (low, high)
    ]
    lower, upper = (at_position(ordered, p) for p in positions)
    if method == "linear":
        share = b.cast(weight, n.dtype)
        one = b.like(share, 1)
        out = b.add(b.mul(lower, b.sub(one, share)), b.mul(upper, share))
    elif method in ("lower", "inverted_cdf"):
        out = lower
    elif method == "higher":
        out = upper
    elif method == "nearest":
        half = b.le(weight, b.like(weight, 0.5))
        out = b.where(half, lower, upper)
    else:
        out = b.mul(b.add(lower, upper), b.like(lower, 0.5))
    if keepdims:
        kept = tuple(1 if i in axes else s for i, s in enumerate(n.shape))
        out = b.reshape(out, (levels, *kept))
    if not q.ndim:
        out = b.squeeze(out, (0,))
    return b.cast(out, n.dtype, n.aval.weak_type)


def _quantile(
    name: str,
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis,
    method: str,
    keepdims: bool,
    skip_nan: bool,
    scale: float = 1.0,
    weights: Any = None,
) -> Array:
    if weights is not None and method != "inverted_cdf":
        raise NotImplementedError(
            f"{method} doesn't support weights. Only method 'inverted_cdf' supports weights."
        )
    given, levels = checked(name, a, q)
    (n,) = promote_inexact([given])
    n = b.cast(n, n.dtype)
    _, levels = promote_inexact([n, levels])
    if dtypes.is_complex(n.dtype):
        raise ValueError(
            f"{name} does not support complex input, as the operation is poorly defined."
        )
    if scale != 1.0:
        levels = b.div(levels, b.like(levels, scale))
    w = None
    if weights is not None:
        (w,) = promote_inexact(checked(name, weights))
    return finish(quantile_node(n, levels, axis, method, keepdims, skip_nan, w))


def not_in_place(name: str, out: None, overwrite_input: bool) -> None:
    """Raises: for NumPy's ways to ask that an array be changed."""
    no_out(name, out)
    if overwrite_input:
        raise ValueError(
            f"jax.numpy.{name} does not support overwrite_input=True: arrays are immutable."
        )


def quantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """The values below which the fractions `q` of the elements lie. NaN if any element is NaN."""
    not_in_place("quantile", out, overwrite_input)
    return _quantile("quantile", a, q, axis, method, keepdims, False, weights=weights)


def nanquantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Quantiles, NaN ignored."""
    not_in_place("nanquantile", out, overwrite_input)
    return _quantile("nanquantile", a, q, axis, method, keepdims, True, weights=weights)


def percentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
    out_sharding: Any = None,
) -> Array:
    """Quantiles with `q` in percent."""
    not_in_place("percentile", out, overwrite_input)
    return _quantile("percentile", a, q, axis, method, keepdims, False, 100.0, weights)


def nanpercentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Percentiles, NaN ignored."""
    not_in_place("nanpercentile", out, overwrite_input)
    return _quantile("nanpercentile", a, q, axis, method, keepdims, True, 100.0, weights)


def median(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """The middle element, or the mean of the two middle ones."""
    not_in_place("median", out, overwrite_input)
    return _quantile("median", a, 0.5, axis, "midpoint", keepdims, False)


def nanmedian(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """Median, NaN ignored."""
    not_in_place("nanmedian", out, overwrite_input)
    return _quantile("nanmedian", a, 0.5, axis, "midpoint", keepdims, True)


# --- counting -----------------------------------------------------------------------------------


def count_into(length: int, positions: UOp, weights: UOp) -> UOp:
    """Sums of weights by position; what is out of range is dropped."""
    info = ScatterInfo("add", (), (0,), (0,), mode="fill")
    return b.scatter(
        b.full((length,), b.like(weights, 0)), b.unsqueeze(positions, 1), weights, info
    )


def bincount(
    x: ArrayLike,
    weights: ArrayLike | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
    out_sharding: Any = None,
) -> Array:
    """How often each non-negative integer occurs (or the sum of its weights).

    `length` fixes the size (needed under jit): larger values are dropped, negative ones count as 0.
    """
    (n,) = checked("bincount", x)
    if not dtypes.is_integer(n.dtype) and n.dtype != np.bool_:
        raise TypeError(f"x argument to bincount must have an integer type; got {n.dtype}")
    if n.ndim != 1:
        raise ValueError("only 1-dimensional input supported.")
    if n.dtype == np.bool_:
        n = b.cast(n, b.INT32)
    if length is None:
        known = concrete(finish(n))
        if known is None:
            raise ConcretizationTypeError(
                Array(n),
                "  The error occurred because of argument 'x' of jnp.bincount. To avoid this "
                "error, pass a static `length` argument.",
            )
        length = builtins.max(
            as_int(minlength, "minlength"), int(known.max()) + 1 if known.size else 0
        )
    else:
        length = builtins.max(as_int(minlength, "minlength"), as_int(length, "length"))
    positions = n if dtypes.is_unsigned(n.dtype) else b.max_(n, b.like(n, 0))
    positions = b.min_(
        positions, b.like(positions, builtins.min(length, int(dtypes.iinfo(n.dtype).max)))
    )
    positions = b.cast(positions, b.INT32)
    if weights is None:
        each = b.full(n.shape, b.scalar(1, dtypes.default_int_dtype()))
    else:
        (each,) = checked("bincount", weights)
        if each.shape != n.shape:
            raise ValueError("shape of weights must match shape of x.")
    return finish(count_into(length, positions, b.cast(each, each.dtype)))


def digitize(
    x: ArrayLike, bins: ArrayLike, right: bool = False, *, method: str | None = None
) -> Array:
    """The number of the bin of each element; bins are monotone, in either direction."""
    if method is not None:
        check_method(method)
    n, edges = promote_dtypes(checked("digitize", x, bins))
    if edges.ndim != 1:
        raise ValueError(
            f"digitize: bins must be a 1-dimensional array; got bins of shape {edges.shape}"
        )
    size = edges.shape[0]
    if not size:
        return finish(b.full(n.shape, b.scalar(0, b.INT32)))
    first, last = (b.squeeze(b.slice_axis(edges, 0, i, i + 1), (0,)) for i in (0, size - 1))
    rising = search_node(edges, n, not right)
    falling = b.sub(b.scalar(size, b.INT32), search_node(b.flip(edges, (0,)), n, right))
    return finish(b.where(b.ge(last, first), rising, falling))


def span_of(n: UOp) -> tuple[UOp, UOp]:
    """The least and the greatest element; 0 and 1 where there are none."""
    low, high = b.like(n, 0), b.like(n, 1)
    size, every = n.aval.size, tuple(builtins.range(n.ndim))
    if bounds_of(size)[1] == 0:
        return low, high
    found = b.reduce("min", n, every), b.reduce("max", n, every)
    if bounds_of(size)[0] > 0:
        return found
    total = size_array(size).node
    empty = b.eq(total, b.like(total, 0))
    return b.where(empty, low, found[0]), b.where(empty, high, found[1])


def histogram_bin_edges(
    a: ArrayLike,
    bins: Any = 10,
    range: Any = None,
    weights: Any = None,
) -> Array:
    """Borders of the bins: evenly spaced over the data or over `range`, or as given."""
    (n,) = promote_inexact([array_node(a, None)])
    if isinstance(bins, str):
        raise NotImplementedError("string values for `bins` not implemented.")
    if np.ndim(bins) == 1:
        return finish(b.cast(array_node(bins, None), n.dtype))
    if range is None:
        low, high = span_of(n)
    else:
        if np.ndim(range) != 1 or len(range) != 2:
            raise ValueError(
                f"`range` must be either None or a sequence of two scalars, got {range!r}."
            )
        pair = array_node(range, None) if not isinstance(range, (tuple, list)) else None
        ends = range if pair is None else [finish(pair)[0], finish(pair)[1]]
        low, high = (b.cast(lift(x), n.dtype) for x in ends)
    same = b.eq(low, high)
    half = b.like(low, 0.5)
    low, high = b.where(same, b.sub(low, half), low), b.where(same, b.add(high, half), high)
    count = as_int(bins, "bins") + 1
    edges: Array = linspace(finish(low), finish(high), count, dtype=n.dtype)
    return edges


def histogram(
    a: ArrayLike,
    bins: Any = 10,
    range: Any = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[Array, Array]:
    """(counts per bin, borders). The last bin contains its upper border."""
    if weights is None:
        (n,) = inexact_operands("histogram", a)
        each = b.full(n.shape, b.like(n, 1))
    else:
        n, each = promote_inexact(checked("histogram", a, weights))
        if n.shape != each.shape:
            raise ValueError("weights should have the same shape as a.")
    edges = histogram_bin_edges(finish(n), bins, range).node
    size = edges.shape[0]
    flat, each = b.reshape(n, (n.aval.size,)), b.reshape(each, (n.aval.size,))
    place = bin_of(edges, flat)
    # Bin 0 is below the first border, bin `size` above the last.
    counts = count_into(size + 1, place, b.cast(each, each.dtype))
    counts = b.slice_axis(counts, 0, 1, size)
    if density:
        widths = b.sub(b.slice_axis(edges, 0, 1, size), b.slice_axis(edges, 0, 0, size - 1))
        counts = b.div(b.div(counts, widths), b.sum_(counts, (0,)))
    return finish(counts), finish(edges)


def bin_of(edges: UOp, x: UOp) -> UOp:
    """Number of the bin, counted from 1; the last border belongs to the last bin."""
    edges, x = promote_dtypes([edges, x])
    size = edges.shape[0]
    place = search_node(edges, x, True)
    last = b.slice_axis(edges, 0, size - 1, size)
    on_border = b.eq(x, b.squeeze(last, (0,)))
    return b.where(on_border, b.like(place, size - 1), place)


def histogramdd(
    sample: Any,
    bins: Any = 10,
    range: Any = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[Array, list[Array]]:
    """Histogram of points [N, D] (or D coordinate vectors) and the borders along each axis."""
    if isinstance(sample, (list, tuple)):
        columns = [array_node(c, None) for c in sample]
    else:
        (points,) = checked("histogramdd", sample)
        if points.ndim not in (1, 2):
            raise ValueError(
                f"histogramdd: sample must have shape (N, D) or (N,), got {points.shape}."
            )
        if points.ndim == 1:
            points = b.unsqueeze(points, 1)
        columns = [
            b.squeeze(b.slice_axis(points, 1, i, i + 1), (1,))
            for i in builtins.range(points.shape[1])
        ]
    given = [] if weights is None else checked("histogramdd", weights)
    columns = promote_inexact([*columns, *given])
    each = columns.pop() if given else None
    rank, count = len(columns), columns[0].shape[0]
    if range is not None and len(range) != rank:
        raise ValueError(f"For sample.shape={(count, rank)}, expected range of length {rank}.")
    try:
        per_axis = list(bins)
        if len(per_axis) != rank:
            raise ValueError("should be a bin for each dimension.")
    except TypeError:
        per_axis = [bins] * rank
    borders = [
        histogram_bin_edges(finish(c), per_axis[i], None if range is None else range[i]).node
        for i, c in enumerate(columns)
    ]
    # Counting with a bin below and above each axis, then cutting those off.
    sizes = [e.shape[0] + 1 for e in borders]
    flat = b.full((count,), b.scalar(0, b.INT32))
    for c, e, s in zip(columns, borders, sizes, strict=True):
        flat = b.add(b.mul(flat, b.like(flat, s)), bin_of(e, c))
    if each is None:
        each = b.full((count,), b.scalar(1, dtypes.default_int_dtype()))
    if each.shape != (count,):
        raise ValueError(
            f"histogramdd: weights must have one weight for each of {count} samples, got shape "
            f"{each.shape}."
        )
    counts = count_into(int(np.prod(sizes)), flat, b.cast(each, each.dtype))
    counts = b.reshape(counts, sizes)
    counts = b.slice_(counts, (1,) * rank, tuple(s - 1 for s in sizes))
    if density:
        counts = b.cast(counts, columns[0].dtype)
        total = b.sum_(counts, builtins.range(rank))
        for i, e in enumerate(borders):
            widths = b.sub(b.slice_axis(e, 0, 1, e.shape[0]), b.slice_axis(e, 0, 0, e.shape[0] - 1))
            counts = b.div(counts, b.expand(widths, counts.shape, (i,)))
        counts = b.div(counts, total)
    return finish(counts), [finish(e) for e in borders]


def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    bins: Any = 10,
    range: Any = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[Array, Array, Array]:
    """(counts [nx, ny], borders along x, borders along y)."""
    try:
        count = len(bins)
    except TypeError:
        count = 1
    if count not in (1, 2):
        bins = [bins, bins]
    counts, (ex, ey) = histogramdd([x, y], bins, range, weights, density)
    return counts, ex, ey
