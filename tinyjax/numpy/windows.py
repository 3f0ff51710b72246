"""Window functions of signal processing, and the modified Bessel function of order 0 they need."""

from __future__ import annotations

import math

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, lift
from tinyjax.numpy.promotion import ArrayLike, inexact_operands

# Chebyshev coefficients of exp(-x) I0(x) in x/4 - 1 on [0, 8], and of sqrt(x) exp(-x) I0(x) in
# 16/x - 1 on [8, inf), computed with mpmath at 50 digits.
I0E_SMALL: tuple[float, ...] = (
    0.33839763720473803,
    -0.3046826723431984,
    0.17162090152220877,
    -0.09490109704804764,
    0.04930528423967071,
    -0.02373741480589947,
    0.010546460394594998,
    -0.004324309995050576,
    0.0016394756169413357,
    -0.0005763755745385824,
    0.00018850288509584165,
    -5.754195010082104e-05,
    1.6448448070728896e-05,
    -4.4167383584587505e-06,
    1.1173875391201037e-06,
    -2.670793853940612e-07,
    6.046995022541919e-08,
    -1.300025009986248e-08,
    2.6598237246823866e-09,
    -5.189795601635263e-10,
    9.675809035373237e-11,
    -1.726826291441556e-11,
    2.95505266312964e-12,
    -4.856446783111929e-13,
    7.676185498604936e-14,
    -1.1685332877993451e-14,
    1.715391285555133e-15,
    -2.431279846547955e-16,
    3.3307945188222384e-17,
    -4.4153416464793395e-18,
)
I0E_LARGE: tuple[float, ...] = (
    0.4022452055070544,
    0.0033691164782556943,
    6.889758346916825e-05,
    2.8913705208347567e-06,
    2.0489185894690638e-07,
    2.266668990498178e-08,
    3.3962320257083865e-09,
    4.94060238822497e-10,
    1.1889147107846439e-11,
    -3.1499165279632416e-11,
    -1.3215811840447713e-11,
    -1.7941785315068062e-12,
    7.180124451383666e-13,
    3.8527783827421426e-13,
    1.54008621752141e-14,
    -4.150569347287222e-14,
    -9.554846698828307e-15,
    3.8116806693526224e-15,
    1.7725601330565263e-15,
    -3.425485619677219e-16,
    -2.8276239805165836e-16,
    3.461222867697461e-17,
    4.46562142029676e-17,
    -4.830504485944182e-18,
    -7.233180487874754e-18,
)


def chebyshev(x: UOp, coefficients: tuple[float, ...]) -> UOp:
    """Sum of c[k] T_k(x) by Clenshaw's recurrence, the highest order first in the loop."""
    two_x = b.add(x, x)
    later, latest = b.like(x, 0), b.like(x, 0)
    for c in coefficients[:0:-1]:
        later, latest = latest, b.add(b.sub(b.mul(two_x, latest), later), b.like(x, c))
    return b.add(b.sub(b.mul(x, latest), later), b.like(x, coefficients[0]))


def i0e_node(x: UOp) -> UOp:
    """exp(-|x|) I0(x): Chebyshev series in |x| up to 8, in 1/|x| beyond.

    Accuracy: 4e-16 relative (fitted with 50 digits). Narrow floats are computed in float32.
    """
    wide = b.cast(x, np.float32) if dtypes.bit_width(x.dtype) < 32 else x
    size = b.abs_(wide)
    eight = b.like(size, 8)
    small = chebyshev(
        b.sub(b.mul(b.min_(size, eight), b.like(size, 0.25)), b.like(size, 1)), I0E_SMALL
    )
    far = b.max_(size, eight)
    t = b.sub(b.div(b.like(size, 16), far), b.like(size, 1))
    large = b.div(chebyshev(t, I0E_LARGE), b.sqrt(far))
    return b.cast_like(b.where(b.le(size, eight), small, large), x.aval)


def i0(x: ArrayLike) -> Array:
    """Modified Bessel function of the first kind, order 0."""
    (n,) = inexact_operands("i0", x)
    if dtypes.is_complex(n.dtype):
        raise ValueError(f"Unsupported input type to jax.numpy.i0: {n.dtype}")
    return finish(b.mul(i0e_node(n), b.exp(b.abs_(n))))


def positions(size: int) -> UOp:
    """0, 1, ..., size-1 in the default float."""
    return b.cast(b.iota((size,), 0), dtypes.default_float_dtype())


def cosine_sum(M: int, *terms: float) -> Array:
    """Sum of terms[k] cos(2 pi k i / (M-1)); ones for M <= 1."""
    size = int(M)
    dtype = dtypes.default_float_dtype()
    if size <= 1:
        return finish(b.full((max(size, 0),), b.scalar(1, dtype)))
    n = positions(size)
    out = b.full((size,), b.scalar(terms[0], dtype))
    for k, term in enumerate(terms[1:], 1):
        angle = b.mul(n, b.like(n, 2 * math.pi * k / (size - 1)))
        out = b.add(out, b.mul(b.like(n, term), b.cos(angle)))
    return finish(out)


def hanning(M: int) -> Array:
    """Raised cosine window."""
    return cosine_sum(M, 0.5, -0.5)


def hamming(M: int) -> Array:
    """Raised cosine window on a pedestal."""
    return cosine_sum(M, 0.54, -0.46)


def blackman(M: int) -> Array:
    """Window of three cosine terms."""
    return cosine_sum(M, 0.42, -0.5, 0.08)


def bartlett(M: int) -> Array:
    """Triangular window."""
    size = int(M)
    dtype = dtypes.default_float_dtype()
    if size <= 1:
        return finish(b.full((max(size, 0),), b.scalar(1, dtype)))
    n = positions(size)
    distance = b.abs_(b.sub(b.add(n, n), b.like(n, size - 1)))
    return finish(b.sub(b.like(n, 1), b.div(distance, b.like(n, size - 1))))


def kaiser(M: int, beta: ArrayLike) -> Array:
    """I0 window with shape parameter beta."""
    size = int(M)
    dtype = dtypes.default_float_dtype()
    if size <= 1:
        return finish(b.full((max(size, 0),), b.scalar(1, dtype)))
    n = positions(size)
    half = b.like(n, 0.5 * (size - 1))
    ratio = b.div(b.sub(n, half), half)
    shape = b.cast(lift(beta), dtype)
    inner = b.mul(b.sqrt(b.max_(b.sub(b.like(n, 1), b.square(ratio)), b.like(n, 0))), shape)
    return finish(b.div(i0(finish(inner)).node, i0(finish(shape)).node))
