"""Poisson variates, and distributions made from several others. Bits are those of JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, finish_all, lift
from tinyjax.lax.control_flow import while_loop
from tinyjax.random.distributions import (
    RealArray,
    Shape,
    chisquare,
    float_dtype,
    joined_shape,
    normal_node,
    parameter,
    split2,
    uniform_node,
)
from tinyjax.random.keys import KeyLike, data_of

F32 = np.dtype(np.float32)
KNUTH_LIMIT = 10.0  # means from here on go by rejection, whose cost does not grow with the mean


def count_dtype(dtype: Any, name: str) -> Any:
    """An integer dtype argument; None means int32 (int64 with x64)."""
    kind = dtypes.canonicalize_dtype(np.int64) if dtype is None else dtypes.user_dtype(dtype, name)
    if not dtypes.is_integer(kind):
        raise ValueError(f"dtype argument to `{name}` must be an int dtype, got {kind.name}")
    return kind


def poisson_by_products(data: UOp, lam: UOp, kind: Any) -> UOp:
    """Count uniforms until their product falls below exp(-lam). Source: Knuth, TAOCP 3.4.1."""
    shape = lam.shape
    lam_neg = b.neg(lam)

    def running(carry: Any) -> Array:
        below = b.gt(carry[2].node, lam_neg)
        return finish(b.reduce("or", below, range(below.ndim)))

    def step(carry: Any) -> Any:
        count, keys, log_product = (c.node for c in carry)
        keys, sub = split2(keys)
        more = b.gt(log_product, lam_neg)
        count = b.where(more, b.add(count, b.like(count, 1)), count)
        u = uniform_node(sub, shape, F32)
        return tuple(finish_all([count, keys, b.add(log_product, b.log(u))]))

    zeros = b.full(shape, b.scalar(0, F32))
    start = (Array(b.full(shape, b.scalar(0, kind))), Array(data), Array(zeros))
    count = lift(while_loop(running, step, start)[0])
    return b.sub(count, b.like(count, 1))


def poisson_by_rejection(data: UOp, lam: UOp, kind: Any) -> UOp:
    """Transformed rejection, PTRS. Source: Hoermann, "The transformed rejection method for
    generating Poisson random variables" (1993)."""
    shape = lam.shape

    def c(value: float) -> UOp:
        return b.scalar(value, F32)

    log_lam = b.log(lam)
    width = b.add(c(0.931), b.mul(c(2.53), b.sqrt(lam)))
    slope = b.add(c(-0.059), b.mul(c(0.02483), width))
    inv_alpha = b.add(c(1.1239), b.div(c(1.1328), b.sub(width, c(3.4))))
    v_r = b.sub(c(0.9277), b.div(c(3.6224), b.sub(width, c(2.0))))

    def running(carry: Any) -> Array:
        waiting = b.not_(carry[1].node)
        return finish(b.reduce("or", waiting, range(waiting.ndim)))

    def step(carry: Any) -> Any:
        count, accepted, keys = (x.node for x in carry)
        keys, first, second = split2(keys, 3)
        u = b.sub(uniform_node(first, shape, F32), c(0.5))
        v = uniform_node(second, shape, F32)
        shifted = b.sub(c(0.5), b.abs_(u))
        centre = b.mul(b.add(b.div(b.mul(c(2.0), slope), shifted), width), u)
        k = UOp(Op.FLOOR, (b.add(b.add(centre, lam), c(0.43)),))
        under = b.add(b.div(slope, b.square(shifted)), width)
        s = b.log(b.div(b.mul(v, inv_alpha), under))
        t = b.sub(b.add(b.neg(lam), b.mul(k, log_lam)), UOp(Op.LGAMMA, (b.add(k, c(1.0)),)))
        quick = b.and_(b.ge(shifted, c(0.07)), b.le(v, v_r))
        corner = b.and_(b.lt(shifted, c(0.013)), b.gt(v, shifted))
        reject = b.or_(b.lt(k, c(0.0)), corner)
        accept = b.or_(quick, b.and_(b.not_(reject), b.le(s, t)))
        count = b.where(accept, k, count)
        return tuple(finish_all([count, b.or_(accepted, accept), keys]))

    start = (
        Array(b.full(shape, c(-1.0))),
        Array(b.full(shape, b.scalar(False, b.BOOL))),
        Array(data),
    )
    return b.cast(lift(while_loop(running, step, start)[0]), kind)


def poisson(
    key: KeyLike,
    lam: RealArray,
    shape: Shape = None,
    dtype: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Poisson counts of mean lam: by products of uniforms below 10, else by rejection."""
    kind = count_dtype(dtype, "poisson")
    data, _ = data_of(key, "poisson")
    mean = parameter("lam", lam, F32)
    target = joined_shape("poisson", shape, mean)
    mean = b.broadcast(mean, target)
    few = b.or_(b.ne(mean, mean), b.lt(mean, b.like(mean, KNUTH_LIMIT)))
    small = b.where(few, mean, b.full(target, b.scalar(0.0, F32)))
    large = b.where(few, b.full(target, b.scalar(1e5, F32)), mean)
    counts = b.where(
        few, poisson_by_products(data, small, kind), poisson_by_rejection(data, large, kind)
    )
    return finish(b.where(b.eq(mean, b.like(mean, 0)), b.like(counts, 0), counts))


def f(
    key: KeyLike,
    dfnum: RealArray,
    dfden: RealArray,
    shape: Shape = None,
    dtype: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """F-distributed: a ratio of chi-squared variates over their degrees of freedom."""
    kind = float_dtype(dtype, "f")
    data, _ = data_of(key, "f")
    top, bottom = parameter("dfnum", dfnum, kind), parameter("dfden", dfden, kind)
    target = joined_shape("f", shape, top, bottom)
    top, bottom = b.broadcast(top, target), b.broadcast(bottom, target)
    k2, k1 = split2(data)  # JAX's order
    numerator = b.div(lift(chisquare(finish(k1), finish(top), target, kind)), top)
    denominator = b.div(lift(chisquare(finish(k2), finish(bottom), target, kind)), bottom)
    return finish(b.div(numerator, denominator))


def triangular(
    key: KeyLike,
    left: RealArray,
    mode: RealArray,
    right: RealArray,
    shape: Shape = None,
    dtype: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Density rising from `left` to `mode` and falling to `right`: by inversion."""
    kind = float_dtype(dtype, "triangular")
    data, _ = data_of(key, "triangular")
    low, top, high = (parameter("left, mode and right", x, kind) for x in (left, mode, right))
    target = joined_shape("triangular", shape, low, top, high)
    low, top, high = (b.broadcast(x, target) for x in (low, top, high))
    u = uniform_node(data, target, kind)
    width = b.sub(high, low)
    share = b.div(b.sub(top, low), width)
    rising = b.add(low, b.sqrt(b.mul(b.mul(u, width), b.sub(top, low))))
    rest = b.mul(b.sub(b.like(u, 1), u), width)
    falling = b.sub(high, b.sqrt(b.mul(rest, b.sub(high, top))))
    return finish(b.where(b.lt(u, share), rising, falling))


def wald(
    key: KeyLike,
    mean: RealArray,
    shape: Shape = None,
    dtype: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Inverse Gaussian of scale 1. Source: Michael, Schucany and Haas (1976)."""
    kind = float_dtype(dtype, "wald")
    data, _ = data_of(key, "wald")
    m = parameter("mean", mean, kind)
    target = joined_shape("wald", shape, m)
    m = b.broadcast(m, target)
    k1, k2 = split2(data)
    v, z = normal_node(k1, target, kind), uniform_node(k2, target, kind)
    y, square = b.square(v), b.square(m)
    root = b.sqrt(b.add(b.mul(b.mul(b.like(m, 4), m), y), b.mul(square, b.square(y))))
    x = b.sub(
        b.add(m, b.mul(b.mul(square, y), b.like(m, 0.5))), b.mul(b.mul(b.like(m, 0.5), m), root)
    )
    keep = b.le(z, b.div(m, b.add(m, x)))
    return finish(b.where(keep, x, b.div(square, x)))
