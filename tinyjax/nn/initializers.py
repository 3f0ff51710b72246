"""Initialisers: functions `(key, shape, dtype) -> array`, with `jax.nn.initializers`' names.

Sources: Glorot and Bengio (2010); He et al. (2015); LeCun et al. (1998); Saxe et al. (2014).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax import random
from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, lift
from tinyjax.numpy import diagonal, linalg

Initializer = Callable[..., Array]


def default_dtype(dtype: Any) -> Any:
    """The dtype an initialiser makes; None means the default float."""
    return (
        dtypes.canonicalize_dtype(np.float64)
        if dtype is None
        else dtypes.user_dtype(dtype, "initializer")
    )


def zeros(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
    """Zeros (the key is ignored)."""
    return finish(b.full(tuple(shape), b.scalar(0, default_dtype(dtype))))


def ones(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
    """Ones (the key is ignored)."""
    return finish(b.full(tuple(shape), b.scalar(1, default_dtype(dtype))))


def constant(value: Any, dtype: Any = None) -> Initializer:
    """A constant."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
        kind = default_dtype(default if dtype is None else dtype)
        return finish(b.broadcast(b.cast(lift(value), kind), tuple(shape)))

    return init


def scaled(x: Array, scale: Any) -> Array:
    """x * scale."""
    n = lift(x)
    return finish(b.mul(n, b.scalar(scale, n.dtype)))


def uniform(scale: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Uniform in [0, scale)."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
        return scaled(
            random.uniform(key, shape, default_dtype(default if dtype is None else dtype)), scale
        )

    return init


def normal(stddev: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Normal of this standard deviation."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
        return scaled(
            random.normal(key, shape, default_dtype(default if dtype is None else dtype)), stddev
        )

    return init


def truncated_normal(
    stddev: Any = 1e-2, dtype: Any = None, lower: Any = -2.0, upper: Any = 2.0
) -> Initializer:
    """Normal truncated to (lower, upper) before scaling."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
        kind = default_dtype(default if dtype is None else dtype)
        return scaled(random.truncated_normal(key, lower, upper, shape, kind), stddev)

    return init


def fans(shape: Sequence[int], in_axis: Any, out_axis: Any, batch_axis: Any) -> tuple[float, float]:
    """Fan in and fan out: sizes of these axes times the receptive field."""
    if len(shape) <= 1:
        raise ValueError(
            f"Can't compute input and output sizes of a {len(shape)}-dimensional weights tensor. "
            "Must be at least 2D."
        )

    def size(axes: Any) -> int:
        return math.prod(shape[a] for a in ((axes,) if isinstance(axes, int) else axes))

    inner, outer, batch = size(in_axis), size(out_axis), size(batch_axis)
    field = math.prod(shape) / inner / outer / batch
    return inner * field, outer * field


def variance_scaling(
    scale: Any,
    mode: str,
    distribution: str,
    in_axis: int | Sequence[int] = -2,
    out_axis: int | Sequence[int] = -1,
    batch_axis: Sequence[int] = (),
    dtype: Any = None,
) -> Initializer:
    """Variance scale / fan, with fan by `mode` (fan_in, fan_out, fan_avg, fan_geo_avg)."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
        kind = default_dtype(default if dtype is None else dtype)
        fan_in, fan_out = fans(tuple(shape), in_axis, out_axis, batch_axis)
        table = {
            "fan_in": fan_in,
            "fan_out": fan_out,
            "fan_avg": (fan_in + fan_out) / 2,
            "fan_geo_avg": math.sqrt(fan_in * fan_out),
        }
        if mode not in table:
            raise ValueError(f"invalid mode for variance scaling initializer: {mode}")
        real = dtypes.to_floating_dtype(kind)
        variance = np.asarray(scale / table[mode], real)
        if distribution == "normal":
            return scaled(random.normal(key, shape, kind), np.sqrt(variance))
        if distribution == "uniform":
            return scaled(random.uniform(key, shape, kind, -1), np.sqrt(3 * variance))
        if distribution == "truncated_normal":
            # The standard deviation of a normal truncated to (-2, 2).
            stddev = np.sqrt(variance) / np.asarray(0.87962566103423978, real)
            return scaled(random.truncated_normal(key, -2, 2, shape, kind), stddev)
        raise ValueError(f"invalid distribution for variance scaling initializer: {distribution}")

    return init


def _family(scale: float, mode: str, distribution: str, name: str) -> Callable[..., Initializer]:
    def make(
        in_axis: int | Sequence[int] = -2,
        out_axis: int | Sequence[int] = -1,
        batch_axis: Sequence[int] = (),
        dtype: Any = None,
    ) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"variance_scaling({scale}, {mode!r}, {distribution!r})."
    return make


glorot_uniform = xavier_uniform = _family(1.0, "fan_avg", "uniform", "glorot_uniform")
glorot_normal = xavier_normal = _family(1.0, "fan_avg", "truncated_normal", "glorot_normal")
lecun_uniform = _family(1.0, "fan_in", "uniform", "lecun_uniform")
lecun_normal = _family(1.0, "fan_in", "truncated_normal", "lecun_normal")
he_uniform = kaiming_uniform = _family(2.0, "fan_in", "uniform", "he_uniform")
he_normal = kaiming_normal = _family(2.0, "fan_in", "truncated_normal", "he_normal")


def orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """A uniformly distributed orthogonal matrix (rows or columns orthonormal), scaled."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
        kind = default_dtype(default if dtype is None else dtype)
        if len(shape) < 2:
            raise ValueError("orthogonal initializer requires at least a 2D shape")
        rows, cols = shape[column_axis], math.prod(shape) // shape[column_axis]
        matrix = (cols, rows) if cols > rows else (rows, cols)
        q, r = linalg.qr(random.normal(key, matrix, kind))
        signs = b.sign(lift(diagonal(r)))
        out = b.mul(lift(q), b.broadcast(b.unsqueeze(signs, 0), q.shape))
        if cols < rows:
            out = b.permute(out, (1, 0))
        rest = tuple(s for i, s in enumerate(shape) if i != column_axis % len(shape))
        out = b.reshape(out, (*rest, shape[column_axis]))
        out = b.moveaxis(out, out.ndim - 1, column_axis % len(shape))
        return finish(b.mul(b.scalar(scale, kind), out))

    return init


def delta_orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """An orthogonal matrix at the centre of a convolution kernel, zeros around (Xiao et al.,
    2018)."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
        kind = default_dtype(default if dtype is None else dtype)
        if len(shape) not in (3, 4, 5):
            raise ValueError(
                "Delta orthogonal initializer requires a 3D, 4D, or 5D shape, got shape "
                f"{tuple(shape)}"
            )
        if shape[-1] < shape[-2]:
            raise ValueError("`fan_in` must be less or equal than `fan_out`.")
        q = lift(orthogonal(scale, column_axis, kind)(key, (shape[-1], shape[-2])))
        q = b.permute(q, (1, 0))
        config = [((s - 1) // 2, s - 1 - (s - 1) // 2, 0) for s in shape[:-2]] + [(0, 0, 0)] * 2
        return finish(b.pad(b.reshape(q, (*(1 for _ in shape[:-2]), *q.shape)), config))

    return init


_publish_functions(globals())
