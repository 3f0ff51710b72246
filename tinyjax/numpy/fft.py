"""tinyjax.numpy.fft: discrete Fourier transforms over the last axes, as FFT nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dims import Size, as_sizes, is_symbolic, maximum
from tinyjax.core.ops import Op
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.devices import place_results as _place_results
from tinyjax.engine.values import finish, lift
from tinyjax.numpy.promotion import ArrayLike, canonical_axes, canonical_axis, checked
from tinyjax.numpy.shaping import roll
from tinyjax.numpy.ufuncs import conjugate

# FFT transforms this many axes at once; more are done in turns.
FFT_RANK = 3


def fit(n: UOp, axis: int, size: Size) -> UOp:
    """An axis cut or padded with zeros to a size."""
    have = n.shape[axis]
    if size is have:
        return n
    if size < have:
        return b.slice_axis(n, axis, 0, size)
    return b.pad(n, [(0, size - have, 0) if i == axis else (0, 0, 0) for i in range(n.ndim)])


def scaled(n: UOp, norm: str | None, count: Size, inverse: bool) -> UOp:
    """A transform of so many points with what `norm` adds to the op's own scaling, which is none
    forwards and 1/count backwards."""
    if norm is not None and not isinstance(norm, str):
        raise invalid_norm(norm)
    if norm in (None, "backward"):
        return n
    if norm in ("ortho", "forward"):
        if is_symbolic(count):
            factor = b.cast(b.size(count, dtypes.real_dtype(n.dtype)), n.dtype)
        else:
            factor = b.like(n, float(count))
        if norm == "ortho":
            factor = b.sqrt(factor)
        return b.mul(n, factor) if inverse else b.div(n, factor)
    raise invalid_norm(norm)


def invalid_norm(norm: Any) -> ValueError:
    """For what is no normalisation."""
    return ValueError(f'Invalid norm value {norm}; should be "backward", "ortho" or "forward".')


def transform(
    name: str,
    a: ArrayLike,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
) -> Array:
    """The common part: `name` is fft, ifft, rfft or irfft, over one or more axes."""
    (n,) = checked(f"jnp.fft.{name}", a)
    s = None if s is None else as_sizes(s, "s")
    if axes is None:
        count = n.ndim if s is None else len(s)
        axes = range(n.ndim - count, n.ndim)
    places = [canonical_axis(i, n.ndim) for i in as_sizes(axes, "axes")]
    if len(set(places)) != len(places):
        raise ValueError(
            f"jax.numpy.fft.{name}n does not support repeated axes. Got axes {tuple(axes)}."
        )
    if s is not None and len(s) != len(places):
        raise ValueError("Shape and axes have different lengths.")
    if not places:
        return finish(b.cast(n, dtypes.to_complex_dtype(n.dtype)))
    if name == "rfft":
        if dtypes.is_complex(n.dtype):
            raise ValueError(
                f"only real valued inputs supported for rfft, got {n.aval.str_short()}.\n  Use fft."
            )
        n = b.cast(n, dtypes.real_dtype(dtypes.to_complex_dtype(n.dtype)))
    else:
        n = b.cast(n, dtypes.to_complex_dtype(n.dtype))
    if s is not None:
        sizes = list(s)
    else:
        sizes = [n.shape[i] for i in places]
        if name == "irfft":
            sizes[-1] = maximum(0, 2 * (sizes[-1] - 1))
    if any(v < 1 for v in sizes):
        raise ValueError(f"Invalid number of data points ({min(sizes)}) specified.")
    for i, size in zip(places, sizes, strict=True):
        wanted = size // 2 + 1 if name == "irfft" and i == places[-1] else size
        n = fit(n, i, wanted)
    rest = [i for i in range(n.ndim) if i not in places]
    perm = [*rest, *places]
    n = b.permute(n, perm)
    n = scaled(over_axes(name, n, sizes), norm, math.prod(sizes), name in ("ifft", "irfft"))
    back = tuple(int(i) for i in np.argsort(perm))
    return finish(b.permute(n, back))


def over_axes(name: str, n: UOp, sizes: list[Size]) -> UOp:
    """FFT of the last axes; real transforms are real in the last one only."""
    if len(sizes) <= FFT_RANK:
        return UOp(Op.FFT, (n,), (name, tuple(sizes)))
    front, last = sizes[:-FFT_RANK], sizes[-FFT_RANK:]
    complex_name = "fft" if name in ("fft", "rfft") else "ifft"
    rank, count = n.ndim, len(sizes)
    if name != "irfft":
        n = UOp(Op.FFT, (n,), (name, tuple(last)))
    # Bring the front axes to the end, transform them there, and bring them back.
    head = list(range(rank - count))
    fronts = list(range(rank - count, rank - FFT_RANK))
    lasts = list(range(rank - FFT_RANK, rank))
    order = [*head, *lasts, *fronts]
    n = over_axes(complex_name, b.permute(n, order), front)
    n = b.permute(n, tuple(int(i) for i in np.argsort(order)))
    return UOp(Op.FFT, (n,), (name, tuple(last))) if name == "irfft" else n


def one_axis(name: str, a: ArrayLike, n: int | None, axis: Any, norm: str | None) -> Array:
    """A transform of one axis."""
    if isinstance(axis, (tuple, list)):
        raise ValueError(
            f"jax.numpy.fft.{name} does not support multiple axes. Please use "
            f"jax.numpy.fft.{name}n. Got axis = {axis!r}."
        )
    return transform(name, a, None if n is None else [n], [axis], norm)


def fft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Fourier transform of an axis, cut or padded to n."""
    return one_axis("fft", a, n, axis, norm)


def ifft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Inverse Fourier transform of an axis."""
    return one_axis("ifft", a, n, axis, norm)


def rfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Fourier transform of real values: the non-negative half of the frequencies."""
    return one_axis("rfft", a, n, axis, norm)


def irfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Inverse of `rfft`: n real values."""
    return one_axis("irfft", a, n, axis, norm)


SWAPPED = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def swapped(norm: str | None) -> str:
    """The norm of the transform in the other direction."""
    if not isinstance(norm, (str, type(None))) or norm not in SWAPPED:
        raise invalid_norm(norm)
    return SWAPPED[norm]


def hfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Fourier transform of values whose spectrum is real."""
    return one_axis("irfft", conjugate(a), n, axis, swapped(norm))


def ihfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Inverse of `hfft`."""
    return conjugate(one_axis("rfft", a, n, axis, swapped(norm)))


def fftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Fourier transform of several axes (all by default)."""
    return transform("fft", a, s, axes, norm)


def ifftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Inverse Fourier transform of several axes."""
    return transform("ifft", a, s, axes, norm)


def rfftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Fourier transform of several axes of real values."""
    return transform("rfft", a, s, axes, norm)


def irfftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Inverse of `rfftn`."""
    return transform("irfft", a, s, axes, norm)


def two(name: str, axes: Sequence[int]) -> Sequence[int]:
    """Two axes."""
    if len(as_sizes(axes, "axes")) != 2:
        raise ValueError(f"jax.numpy.fft.{name}2 only supports 2 axes. Got axes = {tuple(axes)}.")
    return axes


def fft2(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Array:
    """Fourier transform of two axes."""
    return transform("fft", a, s, two("fft", axes), norm)


def ifft2(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Array:
    """Inverse Fourier transform of two axes."""
    return transform("ifft", a, s, two("ifft", axes), norm)


def rfft2(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Array:
    """Fourier transform of two axes of real values."""
    return transform("rfft", a, s, two("rfft", axes), norm)


def irfft2(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Array:
    """Inverse of `rfft2`."""
    return transform("irfft", a, s, two("irfft", axes), norm)


def frequencies(name: str, n: int, d: ArrayLike, dtype: Any, half: bool) -> Array:
    """Sample frequencies in cycles per unit of the spacing d."""
    kind = dtypes.default_float_dtype() if dtype is None else dtypes.user_dtype(dtype, name)
    if not isinstance(n, (int, np.integer)):
        raise ValueError(f"n argument of jax.numpy.fft.{name} must be an int, got {n!r}")
    values = np.arange(n // 2 + 1) if half else np.fft.ifftshift(np.arange(n) - n // 2)
    numbers = lift(values.astype(kind))
    (step,) = checked(name, d)
    if step.ndim:
        raise ValueError(f"The d argument of jax.numpy.fft.{name} should be a single number")
    return finish(b.div(numbers, b.mul(b.cast(step, kind), b.scalar(n, kind))))


def fftfreq(n: int, d: ArrayLike = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Frequencies of `fft`, the negative ones in the second half."""
    return frequencies("fftfreq", n, d, dtype, False)


def rfftfreq(n: int, d: ArrayLike = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Frequencies of `rfft`."""
    return frequencies("rfftfreq", n, d, dtype, True)


def shifted(name: str, x: ArrayLike, axes: Any, sign: int) -> Array:
    """Axes rolled by half their size."""
    (n,) = checked(name, x)
    places = canonical_axes(axes, n.ndim)
    shifts = [n.shape[i] // 2 if sign > 0 else -(n.shape[i] // 2) for i in places]
    return roll(finish(n), shifts, places)


def fftshift(x: ArrayLike, axes: Any = None) -> Array:
    """Frequency zero moved to the middle."""
    return shifted("fftshift", x, axes, 1)


def ifftshift(x: ArrayLike, axes: Any = None) -> Array:
    """Inverse of `fftshift`."""
    return shifted("ifftshift", x, axes, -1)


_place_results(globals())
_publish_functions(globals())
