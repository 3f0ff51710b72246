"""Activation functions, softmax and its kin, with `jax.nn`'s names and conventions.

Functions with a corner (relu, ...) have JAX's derivative there; those that could give NaN by a
branch not taken use the double-where form.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinyjax.core import build, dtypes
from tinyjax.core import build as b
from tinyjax.core.dims import as_size
from tinyjax.core.ops import Op
from tinyjax.core.shapes import broadcast_shapes, canonical_axis
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.composites import composite
from tinyjax.engine.custom_rules import custom_jvp
from tinyjax.engine.values import finish, lift
from tinyjax.numpy.promotion import canonical_axes, checked, promote_inexact
from tinyjax.numpy.reductions import keep, masked, mean_node, var_node
from tinyjax.numpy.reductions import mean as mean_of
from tinyjax.numpy.reductions import var as var_of
from tinyjax.numpy.ufuncs import logaddexp

ArrayLike = Any


def number(x: UOp, value: float) -> UOp:
    """A literal like x."""
    return b.like(x, value)


def inexact(name: str, x: ArrayLike) -> UOp:
    """The operand in floating point."""
    return promote_inexact(checked(name, x))[0]


def identity(x: ArrayLike) -> Array:
    """x itself."""
    return finish(checked("identity", x)[0])


def _relu(x: Array) -> Array:
    n = lift(x)
    return finish(b.max_(n, number(n, 0)))


_relu_rule = custom_jvp(_relu)


def _relu_jvp(primals: Any, tangents: Any) -> Any:
    """Derivative 0 at 0, as JAX's; NaN stays NaN in the value."""
    (x,), (t,) = primals, tangents
    n = lift(x)
    positive = b.gt(n, number(n, 0))
    return _relu_rule(x), finish(b.where(positive, lift(t), number(n, 0)))


_relu_rule.defjvp(_relu_jvp)


def relu(x: ArrayLike) -> Array:
    """max(x, 0)."""
    n = checked("relu", x)[0]
    return _relu_rule(finish(n)) if dtypes.is_inexact(n.dtype) else _relu(finish(n))


def relu6(x: ArrayLike) -> Array:
    """min(max(x, 0), 6), with derivative 0 outside (0, 6)."""
    n = inexact("relu6", x)
    inside = b.and_(b.gt(n, number(n, 0)), b.lt(n, number(n, 6)))
    edge = b.where(b.ge(n, number(n, 6)), number(n, 6), number(n, 0))
    out = b.where(inside, n, edge)
    return finish(b.where(b.ne(n, n), n, out))


def sigmoid(x: ArrayLike) -> Array:
    """1 / (1 + exp(-x))."""
    return finish(UOp(Op.LOGISTIC, (inexact("sigmoid", x),)))


def hard_sigmoid(x: ArrayLike) -> Array:
    """relu6(x + 3) / 6."""
    n = inexact("hard_sigmoid", x)
    six = lift(relu6(finish(b.add(n, number(n, 3)))))
    return finish(b.div(six, number(six, 6)))


def softplus(x: ArrayLike) -> Array:
    """log(1 + exp(x))."""
    n = inexact("softplus", x)
    return logaddexp(finish(n), finish(b.full(n.shape, number(n, 0))))


def squareplus(x: ArrayLike, b: ArrayLike = 4) -> Array:
    """(x + sqrt(x**2 + b)) / 2."""
    n = inexact("squareplus", x)
    offset = build.cast(lift(b), n.dtype)
    root = build.sqrt(build.add(build.square(n), offset))
    return finish(build.div(build.add(n, root), number(n, 2)))


def soft_sign(x: ArrayLike) -> Array:
    """x / (|x| + 1)."""
    n = inexact("soft_sign", x)
    return finish(b.div(n, b.add(b.abs_(n), number(n, 1))))


def silu(x: ArrayLike) -> Array:
    """x * sigmoid(x)."""
    n = inexact("silu", x)
    return finish(b.mul(n, UOp(Op.LOGISTIC, (n,))))


swish = silu


def hard_silu(x: ArrayLike) -> Array:
    """x * hard_sigmoid(x)."""
    n = inexact("hard_silu", x)
    return finish(b.mul(n, lift(hard_sigmoid(finish(n)))))


hard_swish = hard_silu


def log_sigmoid(x: ArrayLike) -> Array:
    """log(sigmoid(x)) = -softplus(-x)."""
    n = inexact("log_sigmoid", x)
    return finish(b.neg(lift(softplus(finish(b.neg(n))))))


def log1mexp(x: ArrayLike) -> Array:
    """log(1 - exp(-x)) for x > 0, accurate at both ends; NaN below 0.

    Source: Maechler, "Accurately computing log(1 - exp(-|a|))" (2012).
    """
    n = inexact("log1mexp", x)
    near = b.le(n, number(n, math.log(2)))
    small = b.where(near, n, b.fill_to(number(n, 0.5), n.shape))
    large = b.where(near, b.fill_to(number(n, 1.0), n.shape), n)
    by_expm1 = b.log(b.neg(UOp(Op.EXPM1, (b.neg(small),))))
    by_log1p = UOp(Op.LOG1P, (b.neg(b.exp(b.neg(large))),))
    return finish(b.where(near, by_expm1, by_log1p))


def tanh(x: ArrayLike, /) -> Array:
    """Hyperbolic tangent."""
    return finish(b.tanh(inexact("tanh", x)))


def hard_tanh(x: ArrayLike) -> Array:
    """x clipped to [-1, 1]."""
    n = checked("hard_tanh", x)[0]
    out = b.where(
        b.gt(n, number(n, 1)), number(n, 1), b.where(b.lt(n, number(n, -1)), number(n, -1), n)
    )
    return finish(out)


def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 1e-2) -> Array:
    """x where x >= 0, else slope * x."""
    n = inexact("leaky_relu", x)
    slope = b.cast(lift(negative_slope), n.dtype)
    return finish(b.where(b.ge(n, number(n, 0)), n, b.mul(slope, n)))


def elu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Array:
    """x where x > 0, else alpha (exp(x) - 1)."""
    n = inexact("elu", x)
    positive = b.gt(n, number(n, 0))
    safe = b.where(positive, b.fill_to(number(n, 0), n.shape), n)
    return finish(b.where(positive, n, b.mul(b.cast(lift(alpha), n.dtype), UOp(Op.EXPM1, (safe,)))))


def celu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Array:
    """x where x > 0, else alpha (exp(x/alpha) - 1)."""
    n = inexact("celu", x)
    a = b.cast(lift(alpha), n.dtype)
    positive = b.gt(n, number(n, 0))
    safe = b.where(positive, b.fill_to(number(n, 0), n.shape), n)
    return finish(b.where(positive, n, b.mul(a, UOp(Op.EXPM1, (b.div(safe, a),)))))


def selu(x: ArrayLike) -> Array:
    """Scaled elu with the self-normalising constants (Klambauer et al., 2017)."""
    n = inexact("selu", x)
    out = lift(elu(finish(n), 1.6732632423543772848170429916717))
    return finish(b.mul(number(out, 1.0507009873554804934193349852946), out))


def gelu(x: ArrayLike, approximate: bool = True) -> Array:
    """x Phi(x): by the tanh approximation (default) or exactly by erfc (Hendrycks and Gimpel,
    2016)."""
    n = inexact("gelu", x)
    if approximate:
        inner = b.add(n, b.mul(number(n, 0.044715), b.mul(b.mul(n, n), n)))
        cdf = b.mul(
            number(n, 0.5),
            b.add(number(n, 1.0), b.tanh(b.mul(number(n, math.sqrt(2 / math.pi)), inner))),
        )
        return finish(b.mul(n, cdf))
    tail = UOp(Op.ERFC, (b.mul(b.neg(n), number(n, math.sqrt(0.5))),))
    return finish(b.mul(b.mul(number(n, 0.5), n), tail))


def glu(x: ArrayLike, axis: int = -1) -> Array:
    """First half of an axis times the sigmoid of the second."""
    n = inexact("glu", x)
    a = canonical_axis(axis, n.ndim)
    size = n.shape[a]
    if size % 2:
        raise ValueError(f"axis size must be divisible by 2, got {size} for glu over axis {axis}")
    first = b.slice_axis(n, a, 0, size // 2)
    second = b.slice_axis(n, a, size // 2, size)
    return finish(b.mul(first, UOp(Op.LOGISTIC, (second,))))


def mish(x: ArrayLike) -> Array:
    """x tanh(softplus(x))."""
    n = inexact("mish", x)
    return finish(b.mul(n, b.tanh(lift(softplus(finish(n))))))


def sparse_plus(x: ArrayLike) -> Array:
    """0 below -1, (x + 1)**2 / 4 between, x above 1."""
    n = inexact("sparse_plus", x)
    middle = b.div(b.square(b.add(n, number(n, 1))), number(n, 4))
    return finish(
        b.where(b.le(n, number(n, -1)), number(n, 0), b.where(b.ge(n, number(n, 1)), n, middle))
    )


def sparse_sigmoid(x: ArrayLike) -> Array:
    """(x + 1) / 2 clipped to [0, 1]."""
    n = inexact("sparse_sigmoid", x)
    half = b.mul(number(n, 0.5), b.add(n, number(n, 1)))
    return finish(b.min_(b.max_(half, number(n, 0)), number(n, 1)))


# --- softmax and its kin --------------------------------------------------------------------------


def spread_back(x: UOp, shape: tuple[int, ...], axes: tuple[int, ...]) -> UOp:
    """A reduced value over the original shape."""
    return b.expand(x, shape, tuple(i for i in range(len(shape)) if i not in axes))


def finite_max(n: UOp, axes: tuple[int, ...]) -> UOp:
    """The maximum, a constant for differentiation; 0 where it is infinite, so that x - max is no
    NaN."""
    top = b.stop_gradient(b.reduce("max", n, axes))
    return b.where(UOp(Op.IS_FINITE, (top,)), top, number(top, 0))


def softmax(
    x: ArrayLike,
    axis: int | tuple[int, ...] | None = -1,
    where: ArrayLike | None = None,
    initial: Any = None,
) -> Array:
    """exp(x) / sum(exp(x)) over axes, without overflow."""
    n = inexact("softmax", x)
    axes = canonical_axes(axis, n.ndim)
    if where is None:
        return finish(composite("softmax", softmax_node, n, axes=axes))
    return finish(softmax_node(n, axes, where))


def softmax_node(n: UOp, axes: tuple[int, ...], where: ArrayLike | None = None) -> UOp:
    """The formula, with masked elements out of the sum and 0 in the result."""
    n = masked(n, where, -np.inf)
    top = spread_back(b.stop_gradient(b.reduce("max", n, axes)), n.shape, axes)
    unnormalised = b.exp(b.sub(n, top))
    total = b.sum_(masked(unnormalised, where, 0), axes)
    return masked(b.div(unnormalised, spread_back(total, n.shape, axes)), where, 0)


def log_softmax(
    x: ArrayLike,
    axis: int | tuple[int, ...] | None = -1,
    where: ArrayLike | None = None,
    initial: Any = None,
) -> Array:
    """x - log(sum(exp(x))) over axes, without overflow."""
    n = inexact("log_softmax", x)
    axes = canonical_axes(axis, n.ndim)
    if where is None:
        return finish(composite("log_softmax", log_softmax_node, n, axes=axes))
    return finish(log_softmax_node(n, axes, where))


def log_softmax_node(n: UOp, axes: tuple[int, ...], where: ArrayLike | None = None) -> UOp:
    """The formula, with masked elements out of the sum and -inf in the result."""
    n = masked(n, where, -np.inf)
    top = spread_back(b.stop_gradient(b.reduce("max", n, axes)), n.shape, axes)
    shifted = b.sub(n, top)
    total = b.log(b.sum_(masked(b.exp(shifted), where, 0), axes))
    return masked(b.sub(shifted, spread_back(total, n.shape, axes)), where, -np.inf)


def logsumexp(
    a: ArrayLike,
    axis: int | tuple[int, ...] | None = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Any:
    """log(sum(b exp(a))) over axes, without overflow."""
    n = inexact("logsumexp", a)
    axes = canonical_axes(axis, n.ndim)
    if b is None and where is None and not return_sign:
        node = composite("logsumexp", logsumexp_node, n, axes=axes)
        return finish(keep(node, axes, n.shape, keepdims))
    n = masked(n, where, -np.inf)
    shape = n.shape
    top = finite_max(n, axes)
    weights = None
    if b is not None:
        weights = build.cast(lift(b), n.dtype)
        shape = broadcast_shapes(n.shape, weights.shape)
        n, weights = build.broadcast(n, shape), build.broadcast(weights, shape)
        n = build.where(build.eq(weights, number(weights, 0)), number(n, -np.inf), n)
        top = finite_max(n, axes)
    e = build.exp(build.sub(n, spread_back(top, shape, axes)))
    if weights is not None:
        e = build.mul(e, weights)
    total = build.sum_(e, axes)
    sign = build.sign(total)
    if return_sign or weights is not None:
        magnitude = build.abs_(total) if return_sign else total
    else:
        magnitude = total
    out = build.add(build.log(magnitude), build.cast(top, magnitude.dtype))
    out = keep(out, axes, shape, keepdims)
    if return_sign:
        return finish(out), finish(keep(sign, axes, shape, keepdims))
    return finish(out)


def logsumexp_node(n: UOp, axes: tuple[int, ...]) -> UOp:
    """log(sum(exp(n - max(n)))) + max(n)"""
    top = finite_max(n, axes)
    e = b.exp(b.sub(n, spread_back(top, n.shape, axes)))
    return b.add(b.log(b.sum_(e, axes)), top)


def logmeanexp(
    x: ArrayLike, axis: Any = None, where: ArrayLike | None = None, keepdims: bool = False
) -> Array:
    """log(mean(exp(x))) over axes."""
    n = inexact("logmeanexp", x)
    axes = canonical_axes(axis, n.ndim)
    total = lift(logsumexp(finish(n), axis, keepdims=keepdims, where=where))
    if where is None:
        count = b.prod([n.shape[i] for i in axes])
        shift = number(total, math.log(count) if count else -math.inf)
        return finish(b.sub(total, shift))
    mask = b.broadcast(checked("logmeanexp", where)[0], n.shape)
    found = b.sum_(b.cast(mask, total.dtype), axes)
    return finish(b.sub(total, b.log(keep(found, axes, n.shape, keepdims))))


def standardize(
    x: ArrayLike,
    axis: int | tuple[int, ...] | None = -1,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: ArrayLike = 1e-5,
    where: ArrayLike | None = None,
    *,
    algorithm: str = "fast",
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) over axes.

    `algorithm`: "fast" or "stable", which are the same here: deviations from the mean are squared.
    """
    if algorithm not in ("fast", "stable"):
        raise ValueError(f"Unknown algorithm {algorithm!r}. Expected 'fast' or 'stable'.")
    n = inexact("standardize", x)
    if mean is None and variance is None and where is None and type(epsilon) is float:
        axes = canonical_axes(axis, n.ndim)
        return finish(composite("layer_norm", standardize_node, n, axes=axes, epsilon=epsilon))
    center = mean_of(finish(n), axis, keepdims=True, where=where) if mean is None else mean
    if variance is None:
        variance = var_of(finish(n), axis, keepdims=True, where=where)
    return finish(centered_and_scaled(n, lift(center), lift(variance), lift(epsilon)))


def standardize_node(n: UOp, axes: tuple[int, ...], epsilon: float) -> UOp:
    """By the mean and the variance of the operand itself."""
    strong = b.cast(n, n.dtype)
    center = keep(mean_node(strong, axes), axes, n.shape, True)
    variance = keep(var_node(strong, axes, 0, None), axes, n.shape, True)
    return centered_and_scaled(n, center, variance, lift(epsilon))


def centered_and_scaled(n: UOp, center: UOp, variance: UOp, epsilon: UOp) -> UOp:
    """(n - center) / sqrt(variance + epsilon)"""
    scale = b.rsqrt(b.add(variance, b.cast(epsilon, variance.dtype)))
    return b.mul(b.sub(n, b.broadcast(center, n.shape)), b.broadcast(scale, n.shape))


def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: int = -1) -> Array:
    """1 at index x along a new axis, 0 elsewhere (all 0 if out of range)."""
    n = lift(x)
    kind = (
        dtypes.canonicalize_dtype(np.float64)
        if dtype is None
        else dtypes.user_dtype(dtype, "one_hot")
    )
    rank = n.ndim + 1
    place = canonical_axis(axis, rank)
    shape = list(n.shape)
    shape.insert(place, as_size(num_classes, "num_classes"))
    index = b.cast(n, np.int32) if n.dtype == np.bool_ else n
    counted = index.dtype if dtypes.is_integer(index.dtype) else np.int32
    classes = b.cast(b.iota(tuple(shape), place, counted), index.dtype)
    dims = tuple(i for i in range(rank) if i != place)
    return finish(b.cast(b.eq(b.expand(index, tuple(shape), dims), classes), kind))
