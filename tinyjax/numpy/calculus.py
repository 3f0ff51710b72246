"""Sampled functions: diff, gradient, trapezoid, interp, convolve, unwrap, cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dims import as_int, is_symbolic, maximum
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, lift
from tinyjax.lax.contracting import kept_kind
from tinyjax.numpy.contract import contraction
from tinyjax.numpy.indexing import gather_node
from tinyjax.numpy.promotion import (
    ArrayLike,
    broadcast,
    canonical_axes,
    canonical_axis,
    checked,
    inexact_operands,
    promote_dtypes,
    promote_inexact,
)
from tinyjax.numpy.reductions import cumprod, cumsum, sum_dtype
from tinyjax.numpy.sorting import search_node
from tinyjax.numpy.ufuncs import remainder


def differences(n: UOp, axis: int) -> UOp:
    """Each element minus the one before; bools differ by xor."""
    size = n.shape[axis]
    if not is_symbolic(size) and size < 2:
        return b.slice_axis(n, axis, 0, 0)
    high, low = b.slice_axis(n, axis, 1, size), b.slice_axis(n, axis, 0, size - 1)
    return b.ne(high, low) if n.dtype == np.bool_ else b.sub(high, low)


def diff(
    a: ArrayLike,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> Array:
    """The n-th differences along an axis, with values put before and after it first."""
    (node,) = checked("diff", a)
    times = as_int(n, "n")
    if times < 0:
        raise ValueError(f"order must be non-negative but got {n}")
    if not node.ndim:
        raise ValueError(f"diff requires input that is at least one dimensional; got {a}")
    if times == 0:
        return finish(node)
    place = canonical_axis(axis, node.ndim)

    def border(values: ArrayLike) -> UOp:
        (v,) = checked("diff", values)
        if v.ndim:
            return v
        return b.fill_to(v, (*node.shape[:place], 1, *node.shape[place + 1 :]))

    parts = [node]
    if prepend is not None:
        parts.insert(0, border(prepend))
    if append is not None:
        parts.append(border(append))
    node = b.concat(promote_dtypes(parts), place)
    for _ in range(times):
        node = differences(node, place)
    return finish(node)


def ediff1d(
    ary: ArrayLike, to_end: ArrayLike | None = None, to_begin: ArrayLike | None = None
) -> Array:
    """Differences of the flattened array, with values joined at its ends."""
    (n,) = checked("ediff1d", ary)
    parts = [differences(b.reshape(n, (n.aval.size,)), 0)]
    for extra, place in ((to_begin, 0), (to_end, len(parts))):
        if extra is not None:
            (e,) = checked("ediff1d", extra)
            flat = b.cast(b.reshape(e, (e.aval.size,)), n.dtype)
            parts = [flat, *parts] if place == 0 else [*parts, flat]
    return finish(b.concat([b.cast(p, n.dtype) for p in parts], 0))


def slope(n: UOp, axis: int, spacing: UOp) -> UOp:
    """Central differences inside, one-sided ones at both ends; spacing is a scalar or positions."""
    size = n.shape[axis]

    def part(start: int, stop: int) -> UOp:
        return b.slice_axis(n, axis, start, stop)

    if not spacing.ndim:
        h = b.cast(spacing, n.dtype)
        inner = b.mul(b.sub(part(2, size), part(0, size - 2)), b.like(n, 0.5))
        first, last = (
            b.sub(part(1, 2), part(0, 1)),
            b.sub(part(size - 1, size), part(size - 2, size - 1)),
        )
        return b.div(b.concat([first, inner, last], axis), h)
    if spacing.shape != (size,):
        raise ValueError(
            "Spacing arrays must have the same length as the dimension along which the "
            "gradient is calculated."
        )
    steps = b.cast(differences(spacing, 0), n.dtype)

    def along(v: UOp, count: int) -> UOp:
        shape = (*n.shape[:axis], count, *n.shape[axis + 1 :])
        return b.expand(v, shape, (axis,))

    h = along(steps, size - 1)

    def step(start: int, stop: int) -> UOp:
        return b.slice_axis(h, axis, start, stop)

    left, right = step(0, size - 2), step(1, size - 1)
    total = b.add(left, right)
    low = b.neg(b.div(right, b.mul(left, total)))
    middle = b.div(b.sub(right, left), b.mul(left, right))
    high = b.div(left, b.mul(right, total))
    inner = b.add(
        b.add(b.mul(low, part(0, size - 2)), b.mul(middle, part(1, size - 1))),
        b.mul(high, part(2, size)),
    )
    first = b.div(b.sub(part(1, 2), part(0, 1)), step(0, 1))
    last = b.div(b.sub(part(size - 1, size), part(size - 2, size - 1)), step(size - 2, size - 1))
    return b.concat([first, inner, last], axis)


def gradient(
    f: ArrayLike,
    *varargs: ArrayLike,
    axis: int | Sequence[int] | None = None,
    edge_order: int | None = None,
) -> Any:
    """Numerical derivative along axes (a list of them, or one array for one axis).

    `varargs`: no spacing (1), one number for all axes, or a number or positions per axis.
    """
    if edge_order is not None:
        raise NotImplementedError(
            "The 'edge_order' argument to jnp.gradient is not supported: ends are first order."
        )
    (n,) = inexact_operands("gradient", f)
    axes = canonical_axes(axis, n.ndim)
    spacings = checked("gradient", *varargs) if varargs else [b.scalar(1, n.dtype)]
    if len(spacings) == 1:
        if spacings[0].ndim and len(axes) != 1:
            raise ValueError("1-D spacing array needs one axis")
        spacings = spacings * len(axes)
    if len(spacings) != len(axes):
        raise TypeError(f"Invalid number of spacing arguments {len(varargs)} for axes={axes}")
    for i in axes:
        if n.shape[i] < 2:
            raise ValueError(
                "Shape of array too small to calculate a numerical gradient, at least 2 elements "
                "are required."
            )
    out = [finish(slope(n, i, s)) for i, s in zip(axes, spacings, strict=True)]
    return out[0] if len(out) == 1 else out


def trapezoid(
    y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1
) -> Array:
    """Integral by the trapezoidal rule over positions `x` or steps `dx`."""
    if x is None:
        n, step = promote_inexact(checked("trapezoid", y, dx))
        n = b.moveaxis(n, canonical_axis(axis, n.ndim), n.ndim - 1)
    else:
        n, points = promote_inexact(checked("trapezoid", y, x))
        if not points.ndim:
            raise ValueError("trapezoid: the positions x must have an axis, got a scalar.")
        place = canonical_axis(axis, n.ndim)
        n = b.moveaxis(n, place, n.ndim - 1)
        if points.ndim > 1:
            points = b.moveaxis(points, place, points.ndim - 1)
        step = differences(points, points.ndim - 1)
    last, size = n.ndim - 1, n.shape[-1]
    pairs = b.add(b.slice_axis(n, last, 1, size), b.slice_axis(n, last, 0, size - 1))
    terms = b.mul(*broadcast("trapezoid", [step, pairs]))
    total = b.sum_(terms, (terms.ndim - 1,))
    out = b.mul(total, b.like(total, 0.5))
    return finish(b.cast(out, out.dtype))


def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    left: Any = None,
    right: Any = None,
    period: ArrayLike | None = None,
) -> Array:
    """Piecewise linear interpolation of (xp, fp) at x; the end values outside.

    `left` and `right` may be values or "extrapolate"; with a period xp is wrapped and sorted.
    """
    _, given_xp, given_fp = checked("interp", x, xp, fp)
    if given_xp.shape != given_fp.shape or given_xp.ndim != 1:
        raise ValueError(
            "xp and fp must be one-dimensional arrays of equal size, got shapes "
            f"{given_xp.shape} and {given_fp.shape}."
        )
    q, points, values = checked("interp", x, xp, fp)
    if dtypes.is_complex(values.dtype):
        q, points = promote_inexact([q, points])
    else:
        q, points, values = promote_inexact([q, points, values])
    if dtypes.is_complex(q.dtype):
        raise ValueError("jnp.interp: complex x values not supported.")
    if period is not None:
        span = b.abs_(b.cast(checked("interp", period)[0], q.dtype))
        q = remainder(finish(q), finish(span)).node
        wrapped = remainder(finish(points), finish(span)).node
        points, values = b.sort([wrapped, values], 0)
        count = points.shape[0]
        before = b.sub(b.slice_axis(points, 0, count - 1, count), span)
        after = b.add(b.slice_axis(points, 0, 0, 1), span)
        points = b.concat([before, points, after], 0)
        values = b.concat(
            [b.slice_axis(values, 0, count - 1, count), values, b.slice_axis(values, 0, 0, 1)], 0
        )
    count = points.shape[0]
    place = search_node(points, q, True)
    one = b.scalar(1, b.INT32)
    place = b.max_(one, b.min_(place, b.scalar(maximum(count - 1, 1), b.INT32)))

    def at(n: UOp, i: UOp) -> UOp:
        return gather_node(n, finish(i), "clip")

    before = b.sub(place, one)
    x0, y0 = at(points, before), at(values, before)
    dy = b.sub(at(values, place), y0)
    dx = b.sub(at(points, place), x0)
    delta = b.sub(q, x0)
    tiny = b.le(b.abs_(dx), b.like(dx, float(np.spacing(np.asarray(1.0, np.float32)))))
    safe = b.where(tiny, b.fill_to(b.like(dx, 1), dx.shape), dx)
    ratio = b.cast(b.div(delta, safe), values.dtype)
    out = b.where(tiny, y0, b.add(y0, b.mul(ratio, dy)))
    ends = {"left": (left, 0, b.lt), "right": (right, count - 1, b.gt)}
    for side, (choice, position, outside) in ends.items():
        if isinstance(choice, str):
            if choice != "extrapolate":
                raise ValueError(
                    f"the only valid string value of `{side}` is 'extrapolate', but got: {choice!r}"
                )
            if period is not None:
                raise ValueError("jnp.interp: left and right are not supported with period")
            continue
        if period is not None:
            continue
        edge = b.squeeze(b.slice_axis(points, 0, position, position + 1), (0,))
        if choice is None:
            value = b.squeeze(b.slice_axis(values, 0, position, position + 1), (0,))
        else:
            value = b.cast(lift(choice), out.dtype)
        out = b.where(outside(q, edge), b.broadcast(value, out.shape) if value.ndim else value, out)
    return finish(b.cast(out, out.dtype))


def _correlate(
    name: str, a: ArrayLike, v: ArrayLike, mode: str, precision: Any, preferred: Any, flip: bool
) -> Array:
    """Sliding dot product: a WINDOW and one DOT. The shorter operand slides, so the result of a
    correlation is reversed if that is the first one."""
    p, q = promote_inexact(checked(name, a, v))
    if p.ndim != 1 or q.ndim != 1:
        raise ValueError(f"{name}() only support 1-dimensional inputs.")
    if not p.shape[0] or not q.shape[0]:
        raise ValueError(f"{name}: inputs cannot be empty, got shapes {p.shape} and {q.shape}.")
    kept_kind(preferred, name, p.dtype)
    dtype = None if preferred is None else dtypes.user_dtype(preferred, name)
    swapped = p.shape[0] < q.shape[0]
    if not flip:
        q = b.conj(q)
    if swapped:
        p, q = q, p
    kernel = b.flip(q, (0,)) if flip else q
    long, short = p.shape[0], q.shape[0]
    if mode == "full":
        lo = hi = short - 1
    elif mode == "same":
        lo, hi = short // 2, short - short // 2 - 1
    elif mode == "valid":
        lo = hi = 0
    else:
        raise ValueError("mode must be one of ['full', 'same', 'valid']")
    windows = b.window(b.pad(p, [(lo, hi, 0)]), 0, short)
    out = contraction(windows, kernel, ((1,), (0,)), dtype=dtype or p.dtype, precision=precision)
    assert out.shape[0] == long + lo + hi - short + 1
    return finish(b.flip(out, (0,)) if swapped and not flip else out)


def convolve(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = "full",
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Convolution of two vectors: mode "full", "same" (as long as the longer one) or "valid"."""
    return _correlate("convolve", a, v, mode, precision, preferred_element_type, True)


def correlate(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = "valid",
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Cross-correlation of two vectors, the second conjugated."""
    return _correlate("correlate", a, v, mode, precision, preferred_element_type, False)


def unwrap(
    p: ArrayLike,
    discont: ArrayLike | None = None,
    axis: int = -1,
    period: ArrayLike = 2 * math.pi,
) -> Array:
    """Jumps of more than half a period removed by adding periods."""
    (n,) = checked("unwrap", p)
    if dtypes.is_complex(n.dtype):
        raise ValueError("jnp.unwrap does not support complex inputs.")
    if not n.ndim or not n.shape[canonical_axis(axis, n.ndim)]:
        return finish(n)
    n, span = promote_dtypes([n, *checked("unwrap", period)])
    place = canonical_axis(axis, n.ndim)
    whole = dtypes.is_integer(n.dtype)
    half = UOp(Op.DIV, (span, b.like(span, 2)))
    step = differences(n, place)
    shifted = remainder(finish(b.add(step, half)), finish(span)).node
    wrapped = b.sub(shifted, half)
    zero = b.like(step, 0)
    at_edge = b.eq(wrapped, b.neg(half))
    if whole:
        ambiguous = b.eq(UOp(Op.REM, (span, b.like(span, 2))), b.like(span, 0))
        at_edge = b.and_(at_edge, ambiguous)
    wrapped = b.where(b.and_(at_edge, b.gt(step, zero)), half, wrapped)
    change = b.sub(wrapped, step)
    limit = half if discont is None else b.cast(checked("unwrap", discont)[0], n.dtype)
    change = b.where(b.lt(b.abs_(step), limit), zero, change)
    total = b.prefix("add", change, place)
    n = b.cast(n, n.dtype)
    return finish(
        b.add(n, b.pad(total, [(1, 0, 0) if i == place else (0, 0, 0) for i in range(n.ndim)]))
    )


def _cumulative(
    name: str, function: Any, x: ArrayLike, axis: int | None, dtype: Any, first: Any, include: bool
) -> Array:
    (n,) = checked(name, x)
    if not n.ndim:
        raise ValueError(f"The input must be non-scalar to take a {name.replace('_', ' ')}.")
    if axis is None:
        if n.ndim > 1:
            raise ValueError(
                f"The input array has rank {n.ndim}, however axis was not set to an explicit "
                "value. "
                "The axis argument is only optional for one-dimensional arrays."
            )
        axis = 0
    place = canonical_axis(axis, n.ndim)
    if dtype is None:
        n = b.cast(n, sum_dtype(n.dtype), n.aval.weak_type)
    out = function(finish(n), axis=place, dtype=dtype).node
    if include:
        config = [(1, 0, 0) if i == place else (0, 0, 0) for i in range(n.ndim)]
        out = b.pad(out, config, b.like(out, first))
    return finish(out)


def cumulative_sum(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
) -> Array:
    """Cumulative sum (array API), with a leading 0 if asked for."""
    return _cumulative("cumulative_sum", cumsum, x, axis, dtype, 0, include_initial)


def cumulative_prod(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
) -> Array:
    """Cumulative product (array API), with a leading 1 if asked for."""
    return _cumulative("cumulative_prod", cumprod, x, axis, dtype, 1, include_initial)
