"""Distributions of `jax.random`: the same bits, and the same formulas on them.

Sources are named per function; integers and uniforms equal JAX's exactly, transformed values up to
the last bits of elementary functions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinyjax.core import build, dtypes
from tinyjax.core import build as b
from tinyjax.core.dims import is_symbolic, largest
from tinyjax.core.ops import Op
from tinyjax.core.shapes import broadcast_shapes, canonical_axis
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.custom_rules import custom_jvp
from tinyjax.engine.values import canonical_shape, finish, finish_all, lift
from tinyjax.engine.vectorize import vmap
from tinyjax.lax.control_flow import while_loop
from tinyjax.lax.special import random_gamma_grad
from tinyjax.numpy import diagonal, linalg, searchsorted
from tinyjax.random.keys import KeyLike, data_of, split_data

UINTS = {8: np.dtype("u1"), 16: np.dtype("u2"), 32: np.dtype("u4"), 64: np.dtype("u8")}
RealArray = Any
Shape = Any


def float_dtype(dtype: Any, name: str) -> Any:
    """A floating dtype argument; None means float32 (float64 with x64)."""
    kind = (
        dtypes.canonicalize_dtype(np.float64) if dtype is None else dtypes.user_dtype(dtype, name)
    )
    if not dtypes.is_float(kind):
        raise ValueError(f"dtype argument to `{name}` must be a float dtype, got {kind.name}")
    return kind


def joined_shape(name: str, shape: Any, *parameters: UOp) -> tuple[int, ...]:
    """The result shape: given (parameters must broadcast to it) or that of the parameters."""
    common = broadcast_shapes(*(p.shape for p in parameters))
    if shape is None:
        return tuple(common)
    target = canonical_shape(shape)
    try:
        if broadcast_shapes(target, common) != target:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{name} parameter shapes must be broadcast-compatible with shape argument, and the "
            "result of "
            "broadcasting the shapes must equal the shape argument, but got "
            f"{[p.shape for p in parameters]} and {target}"
        ) from None
    return target


def parameter(name: str, x: Any, dtype: Any) -> UOp:
    """The parameter `name` in the dtype of the samples. Raises: for a complex one, if that is real."""
    n = lift(x, name)
    if dtypes.is_complex(n.dtype) and not dtypes.is_complex(dtype):
        raise dtypes.TypePromotionError(
            f"cannot safely cast argument {name} of type {n.dtype.name} to {dtype.name}."
        )
    return b.cast(n, dtype)


def inverse(name: str, x: Any, dtype: Any, shape: tuple[int, ...]) -> UOp:
    """1 / x, of this shape."""
    if isinstance(x, (int, float)):
        return b.fill_to(b.scalar(1 / x, dtype), shape)
    return b.broadcast(b.reciprocal(parameter(name, x, dtype)), shape)


def spread(x: UOp, shape: tuple[int, ...]) -> UOp:
    """A parameter broadcast to the shape (scalars stay)."""
    return x if not x.shape else b.broadcast(x, shape)


def split2(data: UOp, count: int = 2) -> list[UOp]:
    """`count` keys from one, as data nodes."""
    both = split_data(data, (count,))
    return [b.squeeze(b.slice_axis(both, 0, i, i + 1), (0,)) for i in range(count)]


def bits(key: KeyLike, shape: Shape = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Uniform random bits of an unsigned dtype (default uint32, uint64 with x64)."""
    kind = (
        dtypes.canonicalize_dtype(np.uint64) if dtype is None else dtypes.user_dtype(dtype, "bits")
    )
    if not dtypes.is_unsigned(kind):
        raise ValueError(f"dtype argument to `bits` must be an unsigned int dtype, got {kind.name}")
    data, _ = data_of(key, "bits")
    return finish(b.random_bits(data, canonical_shape(shape), drawable(kind)))


def drawable(dtype: Any) -> int:
    """The bits of an element. Raises: TypeError for a dtype that no generator draws."""
    width = dtypes.bit_width(dtype)
    if width not in UINTS:
        raise TypeError(
            f"only dtypes of {', '.join(map(str, UINTS))} bits can be drawn, got {dtype.name}: draw "
            "a wider one and convert it with .astype."
        )
    return width


def uniform_node(data: UOp, shape: tuple[int, ...], dtype: Any) -> UOp:
    """Uniform in [0, 1): random mantissa bits under the exponent of 1, minus 1."""
    info = dtypes.finfo(dtype)
    width, mantissa = drawable(dtype), int(info.nmant)
    drawn = 8 if mantissa < 8 else width
    raw = b.random_bits(data, shape, drawn)
    unsigned = UINTS[width]
    raw = b.cast(raw, unsigned)
    raw = UOp(Op.SHRL, (raw, b.like(raw, drawn - mantissa)))
    one = np.ones((), dtype).view(f"u{width // 8}")
    pattern = b.or_(raw, b.like(raw, int(one)))
    return b.sub(b.bitcast(pattern, dtype), b.scalar(1, dtype))


def two_uniforms(data: UOp, shape: tuple[int, ...], dtype: Any) -> tuple[UOp, UOp]:
    """Two draws of a shape from one key."""
    both = uniform_node(data, (2, *shape), dtype)
    first, second = (b.squeeze(b.slice_axis(both, 0, i, i + 1), (0,)) for i in (0, 1))
    return first, second


def uniform_between(data: UOp, shape: tuple[int, ...], dtype: Any, low: UOp, high: UOp) -> UOp:
    """Uniform in [low, high)."""
    low, high = spread(b.cast(low, dtype), shape), spread(b.cast(high, dtype), shape)
    u = uniform_node(data, shape, dtype)
    return b.max_(low, b.add(b.mul(u, b.sub(high, low)), low))


def uniform(
    key: KeyLike,
    shape: Shape = (),
    dtype: Any = None,
    minval: RealArray = 0.0,
    maxval: RealArray = 1.0,
    *,
    out_sharding: Any = None,
) -> Array:
    """Uniform in [minval, maxval)."""
    kind = float_dtype(dtype, "uniform")
    data, _ = data_of(key, "uniform")
    low, high = lift(minval), lift(maxval)
    target = joined_shape("uniform", shape, low, high)
    return finish(uniform_between(data, target, kind, low, high))


def randint(
    key: KeyLike,
    shape: Shape,
    minval: Any,
    maxval: Any,
    dtype: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Uniform integers in [minval, maxval): two draws combined, so that the bias is below
    2**-32. Those of 8 and 16 bits are drawn as int32."""
    result = (
        dtypes.canonicalize_dtype(np.int64)
        if dtype is None
        else dtypes.user_dtype(dtype, "randint")
    )
    if not dtypes.is_integer(result):
        raise TypeError(f"randint only accepts integer dtypes, got {result.name}")
    kind = result if dtypes.bit_width(result) >= 32 else b.INT32
    data, _ = data_of(key, "randint")
    low, high = (
        n if dtypes.is_integer(n.dtype) else b.cast(n, dtypes.default_int_dtype())
        for n in (lift(minval), lift(maxval))
    )
    target = joined_shape("randint", shape, low, high)
    if kind != result:
        info = dtypes.iinfo(result)
        low = clamp_cast(low, kind, int(info.min), int(info.max))
        high = clamp_cast(high, kind, int(info.min), int(info.max) + 1)
    info = dtypes.iinfo(kind)
    top, bottom = int(info.max), int(info.min)
    wide = np.dtype(np.int64)
    beyond = (
        b.gt(b.cast(high, wide), b.scalar(top, wide))
        if dtypes.bit_width(kind) < 64
        else b.scalar(False, b.BOOL)
    )
    low = clamp_cast(low, kind, bottom, top)
    high = clamp_cast(high, kind, bottom, top)
    first, second = split2(data)
    width = dtypes.bit_width(kind)
    unsigned = UINTS[width]
    upper, lower = b.random_bits(first, target, width), b.random_bits(second, target, width)
    low, high = spread(low, target), spread(high, target)
    span = b.bitcast(b.sub(high, low), unsigned)
    span = b.where(b.le(high, low), b.like(span, 1), span)
    span = b.where(
        b.and_(spread(beyond, target), b.gt(high, low)), b.add(span, b.like(span, 1)), span
    )
    multiplier = UOp(Op.REM, (b.like(span, 1 << (width // 2)), span))
    multiplier = UOp(Op.REM, (b.mul(multiplier, multiplier), span))
    offset = b.add(b.mul(UOp(Op.REM, (upper, span)), multiplier), UOp(Op.REM, (lower, span)))
    offset = UOp(Op.REM, (offset, span))
    out = b.add(low, b.bitcast(offset, kind))
    return finish(b.fill_to(b.cast(out, result), target))


def clamp_cast(x: UOp, kind: Any, bottom: int, top: int) -> UOp:
    """An integer converted with saturation."""
    own = dtypes.iinfo(x.dtype)
    if int(own.min) < bottom:
        x = b.max_(x, b.like(x, bottom))
    if int(own.max) > top:
        x = b.min_(x, b.like(x, top))
    return b.cast(x, kind)


def normal_node(data: UOp, shape: tuple[int, ...], dtype: Any) -> UOp:
    """sqrt(2) erfinv(u), u uniform in (-1, 1)."""
    low = np.nextafter(np.array(-1, dtype), np.array(0, dtype), dtype=dtype)
    u = uniform_between(data, shape, dtype, b.scalar(low, dtype), b.scalar(1, dtype))
    return b.mul(b.scalar(np.sqrt(2), dtype), UOp(Op.ERFINV, (u,)))


def normal(
    key: KeyLike, shape: Shape = (), dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Standard normal; complex dtypes have independent parts of variance 1/2."""
    kind = (
        dtypes.canonicalize_dtype(np.float64)
        if dtype is None
        else dtypes.user_dtype(dtype, "normal")
    )
    data, _ = data_of(key, "normal")
    target = canonical_shape(shape)
    if dtypes.is_complex(kind):
        real = dtypes.to_floating_dtype(kind)
        first, second = split2(data)
        scale = b.scalar(np.sqrt(2), kind)
        value = b.complex_(normal_node(first, target, real), normal_node(second, target, real))
        return finish(b.div(value, scale))
    if not dtypes.is_float(kind):
        raise ValueError(
            f"dtype argument to `normal` must be a float or complex dtype, got {kind.name}"
        )
    return finish(normal_node(data, target, kind))


def truncated_normal(
    key: KeyLike,
    lower: RealArray,
    upper: RealArray,
    shape: Shape = None,
    dtype: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Standard normal conditioned on (lower, upper)."""
    kind = float_dtype(dtype, "truncated_normal")
    data, _ = data_of(key, "truncated_normal")
    low, high = parameter("lower", lower, kind), parameter("upper", upper, kind)
    target = joined_shape("truncated_normal", shape, low, high)
    low, high = spread(low, target), spread(high, target)
    root2 = b.scalar(np.sqrt(2), kind)
    a, c = UOp(Op.ERF, (b.div(low, root2),)), UOp(Op.ERF, (b.div(high, root2),))
    u = uniform_between(data, target, kind, a, c)
    out = b.mul(root2, UOp(Op.ERFINV, (u,)))
    inside_low = next_towards(low, np.inf)
    inside_high = next_towards(high, -np.inf)
    return finish(b.min_(b.max_(out, inside_low), inside_high))


def next_towards(x: UOp, limit: float) -> UOp:
    """The neighbouring float."""
    return UOp(Op.NEXTAFTER, (x, b.like(x, limit)))


def bernoulli(
    key: KeyLike,
    p: RealArray = 0.5,
    shape: Shape = None,
    mode: str = "low",
    *,
    out_sharding: Any = None,
) -> Array:
    """True with probability p."""
    if mode not in ("low", "high"):
        raise ValueError(f"got {mode=}, expected 'high' or 'low'")
    data, _ = data_of(key, "bernoulli")
    prob = lift(p)
    if dtypes.is_complex(prob.dtype):
        raise TypeError(
            f"bernoulli probability `p` must have a floating dtype, got {prob.dtype.name}."
        )
    dtype = (
        dtypes.canonicalize_dtype(np.float64)
        if prob.aval.weak_type or not dtypes.is_float(prob.dtype)
        else prob.dtype
    )
    prob = b.cast(prob, dtype)
    target = joined_shape("bernoulli", shape, prob)
    if mode == "high":
        # Twice the resolution: u from [0, 1) plus a finer one below its last bit.
        u1, u2 = two_uniforms(data, target, dtype)
        u2 = b.mul(u2, b.like(u2, 2.0 ** -int(dtypes.finfo(dtype).nmant)))
        return finish(b.lt(u2, b.sub(spread(prob, target), u1)))
    return finish(b.fill_to(b.lt(uniform_node(data, target, dtype), spread(prob, target)), target))


def exponential_node(data: UOp, shape: tuple[int, ...], dtype: Any) -> UOp:
    """-log(1 - u)."""
    u = uniform_node(data, shape, dtype)
    return b.neg(UOp(Op.LOG1P, (b.neg(u),)))


def exponential(
    key: KeyLike, shape: Shape = (), dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Exponential of rate 1."""
    kind = float_dtype(dtype, "exponential")
    data, _ = data_of(key, "exponential")
    return finish(exponential_node(data, canonical_shape(shape), kind))


def gumbel(
    key: KeyLike,
    shape: Shape = (),
    dtype: Any = None,
    mode: str | None = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Standard Gumbel: -log(-log u)."""
    kind = float_dtype(dtype, "gumbel")
    data, _ = data_of(key, "gumbel")
    return finish(gumbel_node(data, canonical_shape(shape), kind, mode or "low"))


def gumbel_node(data: UOp, shape: tuple[int, ...], dtype: Any, mode: str) -> UOp:
    """-log(-log u), or from the exponential of two draws (mode high)."""
    if mode == "high":
        # Twice the resolution near 0, where the logarithm of u decides.
        high, low = two_uniforms(data, shape, dtype)
        info = dtypes.finfo(dtype)
        fine = b.add(
            b.mul(low, b.like(low, 2.0 ** -int(info.nmant))), b.like(low, float(info.tiny))
        )
        u = b.where(b.ge(high, b.like(high, 0.5)), high, b.add(high, fine))
        return b.neg(b.log(b.neg(UOp(Op.LOG1P, (b.neg(u),)))))
    if mode != "low":
        raise ValueError(f"Must provide valid mode for gumbel got: {mode}")
    tiny = b.scalar(float(dtypes.finfo(dtype).tiny), dtype)
    u = uniform_between(data, shape, dtype, tiny, b.scalar(1, dtype))
    return b.neg(b.log(b.neg(b.log(u))))


def laplace(
    key: KeyLike, shape: Shape = (), dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Standard Laplace."""
    kind = float_dtype(dtype, "laplace")
    data, _ = data_of(key, "laplace")
    low = b.scalar(-1 + float(dtypes.finfo(kind).epsneg), kind)
    u = uniform_between(data, canonical_shape(shape), kind, low, b.scalar(1, kind))
    return finish(b.mul(b.sign(u), UOp(Op.LOG1P, (b.neg(b.abs_(u)),))))


def logistic(
    key: KeyLike, shape: Shape = (), dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Standard logistic: logit of a uniform, which may be as small as a normal number is."""
    kind = float_dtype(dtype, "logistic")
    data, _ = data_of(key, "logistic")
    tiny = b.scalar(float(dtypes.finfo(kind).tiny), kind)
    u = uniform_between(data, canonical_shape(shape), kind, tiny, b.scalar(1, kind))
    return finish(b.sub(b.log(u), UOp(Op.LOG1P, (b.neg(u),))))


def cauchy(
    key: KeyLike, shape: Shape = (), dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Standard Cauchy: tan(pi (u - 1/2))."""
    kind = float_dtype(dtype, "cauchy")
    data, _ = data_of(key, "cauchy")
    eps = b.scalar(float(dtypes.finfo(kind).eps), kind)
    u = uniform_between(data, canonical_shape(shape), kind, eps, b.scalar(1, kind))
    return finish(UOp(Op.TAN, (b.mul(b.sub(u, b.like(u, 0.5)), b.like(u, math.pi)),)))


def rademacher(
    key: KeyLike, shape: Shape = (), dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """-1 or 1, equally likely."""
    kind = (
        dtypes.canonicalize_dtype(np.int64)
        if dtype is None
        else dtypes.user_dtype(dtype, "rademacher")
    )
    data, _ = data_of(key, "rademacher")
    half = b.lt(
        uniform_node(data, canonical_shape(shape), dtypes.canonicalize_dtype(np.float64)),
        b.scalar(0.5, dtypes.canonicalize_dtype(np.float64)),
    )
    sign = b.cast(half, kind)
    return finish(b.sub(b.mul(b.like(sign, 2), sign), b.like(sign, 1)))


def pareto(
    key: KeyLike, b: RealArray, shape: Shape = None, dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Pareto of shape parameter b."""
    kind = float_dtype(dtype, "pareto")
    data, _ = data_of(key, "pareto")
    power = build.cast(lift(b), kind)
    target = joined_shape("pareto", shape, power)
    return finish(build.exp(build.div(exponential_node(data, target, kind), spread(power, target))))


def weibull_min(
    key: KeyLike, scale: RealArray, concentration: RealArray, shape: Shape = (), dtype: Any = None
) -> Array:
    """Weibull: (-log(1 - u))**(1/concentration) * scale.

    Shapes: one u for each element of `shape`; parameters are broadcast against it, as in JAX.
    """
    kind = float_dtype(dtype, "weibull_min")
    data, _ = data_of(key, "weibull_min")
    s, c = parameter("scale", scale, kind), parameter("concentration", concentration, kind)
    drawn = exponential_node(data, canonical_shape(shape), kind)
    target = broadcast_shapes(drawn.shape, c.shape, s.shape)
    power = b.fill_to(b.reciprocal(spread(c, target)), target)
    return finish(b.mul(b.pow_(b.broadcast(drawn, target), power), spread(s, target)))


def maxwell(
    key: KeyLike, shape: Shape = (), dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Norm of a 3-dimensional standard normal."""
    kind = float_dtype(dtype, "maxwell")
    data, _ = data_of(key, "maxwell")
    target = (*canonical_shape(shape), 3)
    x = normal_node(data, target, kind)
    return finish(b.sqrt(b.sum_(b.square(x), (len(target) - 1,))))


def rayleigh(
    key: KeyLike,
    scale: RealArray,
    shape: Shape = None,
    dtype: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Rayleigh: scale sqrt(-2 log u)."""
    kind = float_dtype(dtype, "rayleigh")
    data, _ = data_of(key, "rayleigh")
    s = parameter("scale", scale, kind)
    target = joined_shape("rayleigh", shape, s)
    u = uniform_node(data, target, kind)
    return finish(b.mul(b.sqrt(b.mul(b.log(u), b.scalar(-2, kind))), spread(s, target)))


def multivariate_normal(
    key: KeyLike,
    mean: RealArray,
    cov: RealArray,
    shape: Shape = None,
    dtype: Any = None,
    method: str = "cholesky",
    *,
    out_sharding: Any = None,
) -> Array:
    """Normal vectors of a mean and covariance: mean + L z, L the Cholesky factor."""
    if method not in ("cholesky", "svd", "eigh"):
        raise ValueError("method must be one of {'svd', 'eigh', 'cholesky'}")
    kind = float_dtype(dtype, "multivariate_normal")
    data, _ = data_of(key, "multivariate_normal")
    m, c = parameter("mean", mean, kind), parameter("cov", cov, kind)
    if m.ndim < 1 or c.ndim < 2 or c.shape[-2:] != (m.shape[-1], m.shape[-1]):
        raise ValueError(
            "multivariate_normal requires mean.ndim >= 1 and cov of shape (..., n, n) for n = "
            "mean.shape[-1]; got "
            f"{m.shape} and {c.shape}."
        )
    batch = (
        broadcast_shapes(m.shape[:-1], c.shape[:-2]) if shape is None else canonical_shape(shape)
    )
    if method == "cholesky":
        factor = lift(linalg.cholesky(finish(c)))
    elif method == "eigh":
        w, v = linalg.eigh(finish(c))
        factor = b.mul(lift(v), b.broadcast(b.unsqueeze(b.sqrt(lift(w)), w.ndim - 1), v.shape))
    else:
        u, s, _ = linalg.svd(finish(c))
        factor = b.mul(lift(u), b.broadcast(b.unsqueeze(b.sqrt(lift(s)), s.ndim - 1), u.shape))
    n = m.shape[-1]
    target = (*batch, n)
    z = normal_node(data, target, kind)
    factor = b.broadcast(factor, (*batch, n, n))
    lead = tuple(range(len(batch)))
    moved = b.dot(factor, z, ((len(batch) + 1,), (len(batch),)), (lead, lead))
    return finish(b.add(b.broadcast(m, target), moved))


def permutation_node(data: UOp, x: UOp, axis: int) -> UOp:
    """Shuffle slices along an axis by sorting random keys, often enough to make ties harmless.

    For a symbolic axis that is as often as its largest size asks for.
    """
    size = x.shape[axis]
    if not largest(size):
        return x
    exponent = 3
    most = max(1, largest(size))
    rounds = int(np.ceil(exponent * np.log(most) / np.log(np.iinfo(np.uint32).max)))
    order = b.iota((size,), 0)
    for _ in range(rounds):
        data, sub = split2(data)
        sort_keys = b.random_bits(sub, (size,), 32)
        order = b.sort([sort_keys, order], 0, 1, True)[1]
    return b.take(x, order, axis)


def permutation(
    key: KeyLike, x: Any, axis: int = 0, independent: bool = False, *, out_sharding: Any = None
) -> Array:
    """A random permutation of range(x), or of the slices of an array along an axis."""
    data, _ = data_of(key, "permutation")
    n = lift(x)
    if not n.shape:
        if not dtypes.is_integer(n.dtype):
            raise TypeError("x must be an integer or at least 1-dimensional")
        return finish(
            permutation_node(
                data, b.iota(canonical_shape(x), 0, dtypes.canonicalize_dtype(np.int64)), 0
            )
        )
    a = canonical_axis(axis, n.ndim)
    if independent:
        return finish(shuffle_each(data, n, a))
    return finish(permutation_node(data, n, a))


def shuffle_each(data: UOp, x: UOp, axis: int) -> UOp:
    """Shuffle every line along an axis on its own."""
    rounds = int(np.ceil(3 * np.log(max(1, x.aval.size)) / np.log(np.iinfo(np.uint32).max)))
    for _ in range(rounds):
        data, sub = split2(data)
        x = b.sort([b.random_bits(sub, x.shape, 32), x], axis, 1, True)[1]
    return x


def choice(
    key: KeyLike,
    a: Any,
    shape: Shape = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    mode: str | None = None,
) -> Array:
    """Random elements of an array (or of range(a)), with or without replacement and weights."""
    data, _ = data_of(key, "choice")
    n = lift(a)
    target = canonical_shape(shape)
    number = b.prod(target)
    size = n.shape[canonical_axis(axis, n.ndim)] if n.shape else a if is_symbolic(a) else int(a)
    if size <= 0 and number > 0:
        raise ValueError("a must be greater than 0 unless no samples are taken")
    if not replace and number > size:
        raise ValueError(
            f"Cannot take a larger sample (size {number}) than population (size {size}) when "
            "'replace=False'"
        )
    if p is None:
        if replace:
            index = lift(randint(key, target, 0, size))
        else:
            index = lift(permutation(key, size))
            index = b.reshape(b.slice_axis(index, 0, 0, number), target)
    else:
        weights = lift(p)
        if not dtypes.is_float(weights.dtype):
            weights = b.cast(weights, dtypes.canonicalize_dtype(np.float64))
        if weights.shape != (size,):
            raise ValueError(
                "p must be None or a 1D vector with the same size as a.shape[axis]. p has shape "
                f"{weights.shape} and a.shape[axis] is {size}."
            )
        if replace:
            total = b.prefix("add", weights, 0)
            last = b.squeeze(b.slice_axis(total, 0, size - 1, size), (0,))
            u = uniform_node(data, target, weights.dtype)
            r = b.mul(last, b.sub(b.scalar(1, weights.dtype), u))
            index = lift(searchsorted(finish(total), finish(b.fill_to(r, target))))
        else:
            g = b.add(
                b.neg(gumbel_node(data, (size,), weights.dtype, mode or "low")),
                b.neg(b.log(weights)),
            )
            order = b.sort([g, b.iota((size,), 0)], 0, 1, True)[1]
            index = b.reshape(b.slice_axis(order, 0, 0, number), target)
    if not n.shape:
        return finish(
            b.cast(index, dtypes.canonicalize_dtype(np.int64))
            if dtypes.is_integer(n.dtype)
            else index
        )
    ax = canonical_axis(axis, n.ndim)
    flat = b.take(n, b.reshape(index, (number,)), ax)
    return finish(b.reshape(flat, (*n.shape[:ax], *target, *n.shape[ax + 1 :])))


def categorical(
    key: KeyLike,
    logits: RealArray,
    axis: int = -1,
    shape: Shape = None,
    replace: bool = True,
    mode: str | None = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Indices drawn with probabilities softmax(logits), by the Gumbel-max trick."""
    data, _ = data_of(key, "categorical")
    n = lift(logits)
    if dtypes.is_complex(n.dtype):
        raise ValueError(f"categorical: logits must have a floating dtype, got {n.dtype.name}.")
    ax = canonical_axis(axis, n.ndim)
    batch = n.shape[:ax] + n.shape[ax + 1 :]
    target = batch if shape is None else canonical_shape(shape)
    if broadcast_shapes(target, batch) != tuple(target):
        raise ValueError(f"categorical shape {target} must be compatible with batch shape {batch}")
    if not replace:
        return categorical_unique(data, n, ax, target, mode or "low")
    lead = target[: len(target) - len(batch)]
    drawn_axis = ax + len(lead)
    full = list(target[len(lead) :])
    full.insert(ax, n.shape[ax])
    noise = gumbel_node(data, (*lead, *full), n.dtype, mode or "low")
    scores = b.add(noise, b.broadcast(n, noise.shape))
    return finish(b.argreduce("max", scores, drawn_axis, dtypes.canonicalize_dtype(np.int64))[1])


def categorical_unique(data: UOp, n: UOp, axis: int, target: tuple[int, ...], mode: str) -> Array:
    """Without replacement: the k largest perturbed logits (Kool et al., "Gumbel-top-k", 2019)."""
    batch = n.shape[:axis] + n.shape[axis + 1 :]
    count = b.prod(target[: len(target) - len(batch)])
    if count > n.shape[axis]:
        raise ValueError(
            f"Number of samples without replacement ({count}) cannot exceed number of categories "
            f"({n.shape[axis]})."
        )
    scores = b.add(n, gumbel_node(data, n.shape, n.dtype, mode))
    values = b.moveaxis(scores, axis, n.ndim - 1)
    last = values.ndim - 1
    # Descending and stable: the negated scores ascend.
    _, order = b.sort([b.neg(values), b.iota(values.shape, last)], last, 1, True)
    chosen = b.moveaxis(b.slice_axis(order, last, 0, count), last, 0)
    return finish(b.reshape(b.cast(chosen, dtypes.canonicalize_dtype(np.int64)), target))


def ball(
    key: KeyLike,
    d: int,
    p: float = 2,
    shape: Shape = (),
    dtype: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Uniform in the unit ball of the p-norm."""
    kind = float_dtype(dtype, "ball")
    data, _ = data_of(key, "ball")
    k1, k2 = split2(data)
    target = canonical_shape(shape)
    g = lift(generalized_normal(finish(k1), p, (*target, d), kind))
    e = exponential_node(k2, target, kind)
    exponent = b.broadcast(parameter("p", p, kind), g.shape)
    norm = b.sum_(b.pow_(b.abs_(g), exponent), (len(target),))
    scale = b.pow_(b.add(norm, e), inverse("p", p, kind, target))
    return finish(b.div(g, b.expand(scale, g.shape, tuple(range(len(target))))))


def generalized_normal(
    key: KeyLike, p: float, shape: Shape = (), dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Density proportional to exp(-|x|**p)."""
    kind = float_dtype(dtype, "generalized_normal")
    data, _ = data_of(key, "generalized_normal")
    k1, k2 = split2(data)
    target = canonical_shape(shape)
    power = inverse("p", p, kind, target)
    g = lift(gamma(finish(k1), finish(power), target, kind))
    r = b.cast(lift(rademacher(finish(k2), target, kind)), kind)
    return finish(b.mul(r, b.pow_(g, power)))


# --- gamma and its relatives ----------------------------------------------------------------------


def log_gamma_one(data: UOp, alpha: UOp) -> UOp:
    """log of one gamma variate per key, by rejection.

    Source: Marsaglia and Tsang, "A simple method for generating gamma variables" (2000). For alpha
    below 1 a variate of alpha + 1 is scaled by u**(1/alpha).
    """
    dtype = alpha.dtype
    one, third = b.scalar(1, dtype), b.scalar(1 / 3, dtype)
    boosted = b.ge(alpha, one)
    shape = b.where(boosted, alpha, b.add(alpha, one))
    d = b.sub(shape, third)
    c = b.div(third, b.sqrt(d))
    data, sub = split2(data)

    def step(state: Any) -> Any:
        key_data, _, _, _ = (lift(s) for s in state)
        key_data, x_key, u_key = split2(key_data, 3)

        def positive(inner: Any) -> Array:
            return finish(b.le(lift(inner[2]), b.scalar(0, dtype)))

        def draw(inner: Any) -> Any:
            k = lift(inner[0])
            k, sub_key = split2(k)
            x = normal_node(sub_key, (), dtype)
            v = b.add(one, b.mul(x, c))
            return tuple(finish_all([k, x, v]))

        start = (finish(x_key), finish(b.scalar(0, dtype)), finish(b.scalar(-1, dtype)))
        _, x_array, v_array = while_loop(positive, draw, start)
        x, v = lift(x_array), lift(v_array)
        return tuple(
            finish_all(
                [key_data, b.square(x), b.mul(b.mul(v, v), v), uniform_node(u_key, (), dtype)]
            )
        )

    def running(state: Any) -> Array:
        _, square, v, u = (lift(s) for s in state)
        quick = b.ge(u, b.sub(one, b.mul(b.scalar(0.0331, dtype), b.square(square))))
        bound = b.add(b.mul(b.scalar(0.5, dtype), square), b.mul(d, b.add(b.sub(one, v), b.log(v))))
        return finish(b.and_(quick, b.ge(b.log(u), bound)))

    start = (finish(data), finish(b.scalar(0, dtype)), finish(one), finish(b.scalar(2, dtype)))
    _, _, v_array, _ = while_loop(running, step, start)
    v = lift(v_array)
    u = uniform_node(sub, (), dtype)
    log_u = UOp(Op.LOG1P, (b.neg(u),))
    zero_alpha = b.eq(alpha, b.scalar(0, dtype))
    safe = b.where(zero_alpha, one, alpha)
    boost = b.where(
        b.or_(boosted, b.eq(log_u, b.scalar(0, dtype))), b.scalar(0, dtype), b.div(log_u, safe)
    )
    out = b.add(b.add(b.log(d), b.log(v)), boost)
    return b.where(zero_alpha, b.scalar(-np.inf, dtype), out)


def loggamma(
    key: KeyLike, a: RealArray, shape: Shape = None, dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """log of gamma variates of shape parameter a (accurate for small a).

    The derivative with respect to `a` is that of the inverse distribution function, by implicit
    differentiation of the accepted sample.
    """
    kind = float_dtype(dtype, "loggamma")
    data, _ = data_of(key, "loggamma")
    alpha = parameter("a", a, kind)
    target = joined_shape("loggamma", shape, alpha)
    alpha = b.broadcast(alpha, target)
    count = b.prod(target)
    keys = split_data(data, (count,))
    flat = b.reshape(alpha, (count,))
    if not count:
        return finish(b.zeros(alpha.aval))
    out = _log_gamma_draws(finish(keys), finish(flat))
    return finish(b.reshape(lift(out), target))


@custom_jvp
def _log_gamma_draws(keys: Array, alpha: Array) -> Array:
    """One variate per key."""
    return vmap(lambda k, al: finish(log_gamma_one(lift(k), lift(al))))(keys, alpha)  # type: ignore[no-any-return]


@_log_gamma_draws.defjvp
def _log_gamma_draws_jvp(primals: Any, tangents: Any) -> Any:
    """d log x / da at a fixed distribution function; where x underflows, from its leading term."""
    keys, alpha = primals
    out = _log_gamma_draws(keys, alpha)
    y, a = lift(out), lift(alpha)
    x = b.exp(y)
    gone = b.eq(x, b.like(x, 0))
    safe = b.where(gone, b.fill_to(b.like(x, 1), x.shape), x)
    slope = b.div(lift(random_gamma_grad(finish(a), finish(safe))), safe)
    # P(a, x) = x**a / Gamma(a + 1) for small x.
    gap = b.sub(UOp(Op.DIGAMMA, (b.add(a, b.like(a, 1)),)), y)
    slope = b.where(gone, b.div(gap, a), slope)
    return out, finish(b.mul(lift(tangents[1]), slope))


def gamma(
    key: KeyLike, a: RealArray, shape: Shape = None, dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Gamma variates of shape parameter a and scale 1."""
    return finish(b.exp(lift(loggamma(key, a, shape, dtype))))


def beta(
    key: KeyLike,
    a: RealArray,
    b: RealArray,
    shape: Shape = None,
    dtype: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Beta variates from two gamma variates, in log space."""
    kind = float_dtype(dtype, "beta")
    data, _ = data_of(key, "beta")
    x, y = parameter("a", a, kind), parameter("b", b, kind)
    target = joined_shape("beta", shape, x, y)
    k1, k2 = split2(data)
    la = lift(loggamma(finish(k1), finish(build.broadcast(x, target)), target, kind))
    lb = lift(loggamma(finish(k2), finish(build.broadcast(y, target)), target, kind))
    top = build.max_(la, lb)
    ea, eb = build.exp(build.sub(la, top)), build.exp(build.sub(lb, top))
    return finish(build.div(ea, build.add(ea, eb)))


def dirichlet(
    key: KeyLike,
    alpha: RealArray,
    shape: Shape = None,
    dtype: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Dirichlet vectors: softmax of log-gamma variates."""
    kind = float_dtype(dtype, "dirichlet")
    n = parameter("alpha", alpha, kind)
    if n.ndim < 1:
        raise ValueError(f"dirichlet requires alpha.ndim >= 1, got alpha.ndim == {n.ndim}")
    batch = n.shape[:-1] if shape is None else canonical_shape(shape)
    logs = lift(
        loggamma(key, finish(b.broadcast(n, (*batch, n.shape[-1]))), (*batch, n.shape[-1]), kind)
    )
    last = logs.ndim - 1
    keep = tuple(range(last))
    e = b.exp(b.sub(logs, b.expand(b.reduce("max", logs, (last,)), logs.shape, keep)))
    return finish(b.div(e, b.expand(b.sum_(e, (last,)), logs.shape, keep)))


def chisquare(
    key: KeyLike, df: RealArray, shape: Shape = None, dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Chi-squared with df degrees of freedom."""
    kind = float_dtype(dtype, "chisquare")
    n = parameter("df", df, kind)
    target = joined_shape("chisquare", shape, n)
    half = finish(b.broadcast(b.mul(n, b.like(n, 0.5)), target))
    logs = lift(loggamma(key, half, target, kind))
    return finish(b.mul(b.like(logs, 2), b.exp(logs)))


def t(
    key: KeyLike, df: RealArray, shape: Shape = None, dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Student's t with df degrees of freedom."""
    kind = float_dtype(dtype, "t")
    data, _ = data_of(key, "t")
    n = parameter("df", df, kind)
    target = joined_shape("t", shape, n)
    k1, k2 = split2(data)
    z = normal_node(k1, target, kind)
    half = spread(b.mul(n, b.like(n, 0.5)), target)
    g = lift(gamma(finish(k2), finish(b.fill_to(half, target)), target, kind))
    return finish(b.mul(z, b.sqrt(b.div(half, g))))


def double_sided_maxwell(
    key: KeyLike, loc: RealArray, scale: RealArray, shape: Shape = (), dtype: Any = None
) -> Array:
    """Maxwell with a random sign, shifted and scaled."""
    kind = float_dtype(dtype, "double_sided_maxwell")
    data, _ = data_of(key, "double_sided_maxwell")
    low, s = parameter("loc", loc, kind), parameter("scale", scale, kind)
    shapes = joined_shape("double_sided_maxwell", None, low, s)
    target = (*canonical_shape(shape), *shapes)
    k1, k2 = split2(data)
    size = lift(maxwell(finish(k1), target, kind))
    sign = lift(rademacher(finish(k2), target, kind))
    return finish(b.add(b.mul(b.mul(size, sign), spread(s, target)), spread(low, target)))


def orthogonal(
    key: KeyLike,
    n: int,
    shape: Shape = (),
    dtype: Any = None,
    m: int | None = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Uniform orthogonal (unitary) matrices: QR of normals, with the signs of R's diagonal taken
    out."""
    kind = (
        dtypes.canonicalize_dtype(np.float64)
        if dtype is None
        else dtypes.user_dtype(dtype, "orthogonal")
    )
    cols = n if m is None else m
    lead = canonical_shape(shape)
    z = normal(key, (*lead, max(n, cols), min(n, cols)), kind)
    q, r = linalg.qr(z)
    d = lift(diagonal(r, axis1=-2, axis2=-1))
    sign = b.div(d, b.cast(b.abs_(d), d.dtype))
    out = b.mul(lift(q), b.broadcast(b.unsqueeze(sign, sign.ndim - 1), q.shape))
    if n < cols:
        out = b.permute(out, (*range(out.ndim - 2), out.ndim - 1, out.ndim - 2))
    return finish(out)


def lognormal(
    key: KeyLike,
    sigma: RealArray = 1.0,
    shape: Shape = None,
    dtype: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """exp(sigma z)."""
    kind = float_dtype(dtype, "lognormal")
    data, _ = data_of(key, "lognormal")
    s = parameter("sigma", sigma, kind)
    target = joined_shape("lognormal", shape, s)
    return finish(b.exp(b.mul(normal_node(data, target, kind), spread(s, target))))


def geometric(
    key: KeyLike, p: RealArray, shape: Shape = None, dtype: Any = None, *, out_sharding: Any = None
) -> Array:
    """Trials up to the first success: floor(log u / log(1 - p)) + 1."""
    kind = (
        dtypes.canonicalize_dtype(np.int64)
        if dtype is None
        else dtypes.user_dtype(dtype, "geometric")
    )
    if not dtypes.is_integer(kind):
        raise ValueError(f"dtype argument to `geometric` must be an int dtype, got {kind.name}")
    data, _ = data_of(key, "geometric")
    prob = lift(p)
    if dtypes.is_complex(prob.dtype):
        raise ValueError(f"geometric: p must have a floating dtype, got {prob.dtype.name}.")
    if not dtypes.is_float(prob.dtype):
        prob = b.cast(prob, dtypes.canonicalize_dtype(np.float64))
    target = joined_shape("geometric", shape, prob)
    u = uniform_node(data, target, prob.dtype)
    ratio = b.div(b.log(u), UOp(Op.LOG1P, (b.neg(spread(prob, target)),)))
    return finish(b.cast(b.add(UOp(Op.FLOOR, (ratio,)), b.like(ratio, 1)), kind))
