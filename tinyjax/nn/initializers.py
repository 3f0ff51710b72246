"""Initialisers: functions `(key, shape, dtype) -> array`, with `jax.nn.initializers`' names.

Sources: Glorot and Bengio (2010); He et al. (2015); LeCun et al. (1998); Saxe et al. (2014).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax import random
from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dims import Size, is_symbolic
from tinyjax.core.ops import Op
from tinyjax.core.shapes import canonical_axis
from tinyjax.core.source import api_boundary
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.devices import placing
from tinyjax.engine.values import canonical_shape, finish, lift
from tinyjax.numpy import diagonal, linalg

Initializer = Callable[..., Array]


def default_dtype(dtype: Any) -> Any:
    """The dtype an initialiser makes; None means the default float."""
    return (
        dtypes.canonicalize_dtype(np.float64)
        if dtype is None
        else dtypes.user_dtype(dtype, "initializer")
    )


def initializer(make: Callable[[Any, tuple[Any, ...], Any], Array], default: Any) -> Initializer:
    """The function users call, from one of key, shape and dtype."""

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
        kind = default_dtype(default if dtype is None else dtype)
        return make(key, canonical_shape(shape), kind)

    return api_boundary(placing(init))


zeros = initializer(lambda key, shape, kind: finish(b.full(shape, b.scalar(0, kind))), None)
ones = initializer(lambda key, shape, kind: finish(b.full(shape, b.scalar(1, kind))), None)
for _init, _name in ((zeros, "zeros"), (ones, "ones")):
    _init.__module__, _init.__name__, _init.__qualname__ = __name__, _name, _name
    _init.__doc__ = f"{_name.capitalize()} (the key is ignored)."


def constant(value: Any, dtype: Any = None) -> Initializer:
    """A constant."""

    def make(key: Any, shape: tuple[Any, ...], kind: Any) -> Array:
        return finish(b.broadcast(b.cast(lift(value), kind), shape))

    return initializer(make, dtype)


def scaled(x: Array, scale: Any) -> Array:
    """x * scale, a number or a scalar."""
    n = lift(x)
    factor = b.cast(scale.node, n.dtype) if type(scale) is Array else b.scalar(scale, n.dtype)
    return finish(b.mul(n, factor))


def uniform(scale: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Uniform in [0, scale)."""
    return initializer(lambda key, *of: scaled(random.uniform(key, *of), scale), dtype)


def normal(stddev: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Normal of this standard deviation."""
    return initializer(lambda key, *of: scaled(random.normal(key, *of), stddev), dtype)


def truncated_normal(
    stddev: Any = 1e-2, dtype: Any = None, lower: Any = -2.0, upper: Any = 2.0
) -> Initializer:
    """Normal truncated to (lower, upper) before scaling."""

    def make(key: Any, shape: tuple[Any, ...], kind: Any) -> Array:
        return scaled(random.truncated_normal(key, lower, upper, shape, kind), stddev)

    return initializer(make, dtype)


def fans(shape: Sequence[Size], in_axis: Any, out_axis: Any, batch_axis: Any) -> tuple[Size, Size]:
    """Fan in and fan out: sizes of these axes times the receptive field (all other axes)."""
    if len(shape) <= 1:
        raise ValueError(
            f"Can't compute input and output sizes of a {len(shape)}-dimensional weights tensor, "
            f"got shape {tuple(shape)}. Must be at least 2D."
        )

    def axes_of(axes: Any, name: str) -> list[int]:
        given = (axes,) if isinstance(axes, int) else axes
        return [canonical_axis(a, len(shape), name) for a in given]

    inner, outer = axes_of(in_axis, "in_axis"), axes_of(out_axis, "out_axis")
    named = {*inner, *outer, *axes_of(batch_axis, "batch_axis")}
    field = b.prod([size for i, size in enumerate(shape) if i not in named])
    return b.prod([shape[i] for i in inner]) * field, b.prod([shape[i] for i in outer]) * field


MODES: dict[str, Callable[[Size, Size], Any]] = {
    "fan_in": lambda fan_in, fan_out: fan_in,
    "fan_out": lambda fan_in, fan_out: fan_out,
    "fan_avg": lambda fan_in, fan_out: (fan_in + fan_out) / 2,
    "fan_geo_avg": lambda fan_in, fan_out: (fan_in * fan_out) ** 0.5,
}


def variance_scaling(
    scale: Any,
    mode: str,
    distribution: str,
    in_axis: int | Sequence[int] = -2,
    out_axis: int | Sequence[int] = -1,
    batch_axis: Sequence[int] = (),
    dtype: Any = None,
) -> Initializer:
    """Variance scale / fan, with fan by `mode` (fan_in, fan_out, fan_avg, fan_geo_avg).

    Raises (the initialiser): ValueError for another mode or distribution, for less than two axes,
    and for a fan of 0.
    """

    def make(key: Any, shape: tuple[Any, ...], kind: Any) -> Array:
        if mode not in MODES:
            raise ValueError(
                f"invalid mode for variance scaling initializer: {mode!r}; use one of "
                f"{', '.join(MODES)}."
            )
        fan = MODES[mode](*fans(shape, in_axis, out_axis, batch_axis))
        if not is_symbolic(fan) and type(fan) is not Array and fan == 0:
            raise ZeroDivisionError(
                f"variance scaling initializer: {mode} of shape {shape} is 0; axes in_axis={in_axis} "
                f"and out_axis={out_axis} must not be empty."
            )
        variance = scale / fan  # an array where a fan is symbolic
        real = dtypes.to_floating_dtype(kind)

        def root(x: Any) -> Any:
            if type(x) is Array:
                return finish(UOp(Op.SQRT, (b.cast(x.node, real),)))
            return np.sqrt(np.asarray(x, real))

        if distribution == "normal":
            return scaled(random.normal(key, shape, kind), root(variance))
        if distribution == "uniform":
            return scaled(random.uniform(key, shape, kind, -1), root(3 * variance))
        if distribution == "truncated_normal":
            # The standard deviation of a normal truncated to (-2, 2).
            stddev = root(variance) / np.asarray(0.87962566103423978, real)
            return scaled(random.truncated_normal(key, -2, 2, shape, kind), stddev)
        raise ValueError(
            f"invalid distribution for variance scaling initializer: {distribution!r}; use normal, "
            "truncated_normal or uniform."
        )

    return initializer(make, dtype)


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

    def make(key: Any, shape: tuple[Any, ...], kind: Any) -> Array:
        if len(shape) < 2:
            raise ValueError(
                f"orthogonal initializer requires at least a 2D shape, got shape {shape}"
            )
        column = canonical_axis(column_axis, len(shape), "column_axis")
        rows, rest = shape[column], (*shape[:column], *shape[column + 1 :])
        cols = b.prod(rest)
        matrix = (cols, rows) if cols > rows else (rows, cols)
        q, r = linalg.qr(random.normal(key, matrix, kind))
        signs = b.sign(lift(diagonal(r)))
        out = b.mul(lift(q), b.broadcast(b.unsqueeze(signs, 0), q.shape))
        if cols < rows:
            out = b.permute(out, (1, 0))
        out = b.reshape(out, (*rest, rows))
        return finish(b.mul(b.scalar(scale, kind), b.moveaxis(out, out.ndim - 1, column)))

    return initializer(make, dtype)


def delta_orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """An orthogonal matrix at the centre of a convolution kernel, zeros around (Xiao et al.,
    2018)."""

    def make(key: Any, shape: tuple[Any, ...], kind: Any) -> Array:
        if len(shape) not in (3, 4, 5):
            raise ValueError(
                f"Delta orthogonal initializer requires a 3D, 4D, or 5D shape, got shape {shape}"
            )
        if shape[-1] < shape[-2]:
            raise ValueError(f"`fan_in` must be less or equal than `fan_out`, got shape {shape}.")
        q = lift(orthogonal(scale, column_axis, kind)(key, (shape[-1], shape[-2])))
        q = b.permute(q, (1, 0))
        config = [((s - 1) // 2, s - 1 - (s - 1) // 2, 0) for s in shape[:-2]] + [(0, 0, 0)] * 2
        return finish(b.pad(b.reshape(q, (*(1 for _ in shape[:-2]), *q.shape)), config))

    return initializer(make, dtype)


_publish_functions(globals())
