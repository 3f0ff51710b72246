"""Special functions that NumPy lacks, vectorised, accurate to a few units of float64.

float32 operands are computed in float64 and rounded once. Polynomials are in falling powers, for
Horner's scheme; they were fitted in 40 digits by `mpmath.chebyfit(function, interval, terms)`, as
stated at each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ERF = (
    -7.795898827002142e-10, 1.3720064546777686e-08, -1.6208483801871705e-07,
    1.6447424703317362e-06, -1.492473690741966e-05, 0.00012055294904839707,
    -0.0008548325975389692, 0.0052239776071164225, -0.02686617064323777,
    0.11283791670945006, -0.37612638903183543, 1.1283791670955126,
)  # fmt: skip
"""erf(sqrt(u)) / sqrt(u) on [0, 1]; error 7e-18."""

ERF_SLOPE = 1.128379225730896, -5.863538342219759e-08
"""2 / sqrt(pi), the last of them, as a float32 and the rest."""

ERFC_SCALE = 3.0
ERFC_TAIL = (
    3.4067993470325632e-09, -7.763887917930938e-09, -2.030202389500691e-08,
    4.404797875133832e-08, 1.1067996426745221e-07, -1.464210882999557e-07,
    -6.230702404690642e-07, 3.6111326505816053e-07, 3.4754123465335582e-06,
    -7.33686426065499e-07, -2.0101508706745832e-05, 4.950173560521449e-06,
    0.00012509955426271118, -0.0001051599365097246, -0.0007798323014462081,
    0.001888690375555504, 0.0025293918188247794, -0.02377051491972935,
    0.06830802734382649, -0.11927366341527468, 0.12964515870276463,
    -0.04756229435345113, -0.1356211061245812, 1.2530080582697296,
)  # fmt: skip
"""erfc(x) e**(x*x) (1 + 2x) in t = (x - 3) / (x + 3), x from 0.5 to infinity; error 1e-17.

The substitution is that of Shepherd and Laframboise, Mathematics of Computation 36 (1981).
"""

LGAMMA_AT_2 = (
    6.379047507619774e-08, -1.3412819758517287e-07, 2.0304806751615227e-07,
    -4.303558760359961e-07, 9.578663334114758e-07, -2.0449201467015115e-06,
    4.374374916915131e-06, -9.438458716242811e-06, 2.050726741605779e-05,
    -4.4926351103833334e-05, 9.945750909889392e-05, -0.00022315475074520367,
    0.0005096695248853096, -0.0011927539120010226, 0.002890510330738737,
    -0.0073855510286681535, 0.02058080842778457, -0.06735230105319814,
    0.3224670334241132, 0.42278433509846713,
)  # fmt: skip
"""log(gamma(2 + z)) / z on [-1/2, 1/2]."""

STIRLING = (
    0.17964437236883057, -0.029550653594771242, 0.00641025641025641,
    -0.0019175269175269176, 0.0008417508417508417, -0.0005952380952380953,
    0.0007936507936507937, -0.002777777777777778, 0.08333333333333333,
)  # fmt: skip
"""B(2k) / (2k (2k-1)), k from 9 to 1: Stirling's series in 1/x**2."""

DIGAMMA = (
    3.0539543302701198, -0.4432598039215686, 0.08333333333333333,
    -0.021092796092796094, 0.007575757575757576, -0.004166666666666667,
    0.003968253968253968, -0.008333333333333333, 0.08333333333333333,
)  # fmt: skip
"""B(2k) / (2k), k from 9 to 1."""


def horner(coefficients: Sequence[float], x: Array) -> Array:
    """Polynomial with coefficients in falling powers."""
    y = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y *= x
        y += c
    return y


def in_float64(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`f` for arrays of any rank and float dtype, computed in float64."""

    def wrapped(x: Array) -> Array:
        y = f(x.astype(np.float64).reshape(-1))
        return y.reshape(x.shape).astype(x.dtype, copy=False)

    wrapped.__name__, wrapped.__doc__ = f.__name__, f.__doc__
    return wrapped


# --- error function ---------------------------------------------------------------------------


def in_float32(x: Array) -> Array:
    """x rounded to 24 bits, of which a product with 24 others is exact."""
    return x.astype(np.float32).astype(np.float64)


def erfc_tail(x: Array) -> Array:
    """erfc for x >= 0.5: e**(-x*x) / (1 + 2x) * Q(t); 0 from 27 on.

    What the rounding of x*x, which e** would magnify by x*x, and that of 1 + 2x change is added
    at the end.
    """
    x = np.minimum(x, 30.0)  # NaN stays; infinity would give inf/inf
    t = (x - ERFC_SCALE) / (x + ERFC_SCALE)
    high = in_float32(x)  # 24 bits: its square is exact
    below = 1 + 2 * x
    lost = (2 * x - (below - 1)) / below
    y: Array = np.exp(-high * high) * (horner(ERFC_TAIL, t) / below)
    y += y * (np.expm1(-(x - high) * (x + high)) - lost)
    return y


def erf_minus(x: Array, p: Array) -> Array:
    """erf(x) - p for |x| <= 1, with the leading term's product exact."""
    high = in_float32(x)
    lead, rest = ERF_SLOPE
    u = x * x
    y: Array = high * rest + (x - high) * ERF[-1] + x * u * horner(ERF[:-1], u)
    y += high * lead - p
    return y


def erf_near_zero(x: Array) -> Array:
    """erf for |x| <= 1."""
    return x * horner(ERF, x * x)


@in_float64
def erf(x: Array) -> Array:
    """Error function; odd, erf(-0) = -0."""
    size = np.abs(x)
    y = erf_near_zero(np.where(size < 1, x, 0.0))
    far = ~(size < 1)
    if far.any():
        y[far] = np.copysign(1 - erfc_tail(size[far]), x[far])
    return y


@in_float64
def erfc(x: Array) -> Array:
    """1 - erf(x), with full relative accuracy in the right tail."""
    y = 1 - erf_near_zero(np.where(x < 0.5, np.maximum(x, -1.0), 0.0))
    right = ~(x < 0.5)
    if right.any():
        y[right] = erfc_tail(x[right])
    left = x < -1
    if left.any():
        y[left] = 2 - erfc_tail(-x[left])
    return y


@in_float64
def erfinv(y: Array) -> Array:
    """Inverse of erf: Winitzki's approximation, then three Halley steps (each triples the digits).

    +-1 give infinities, beyond them NaN. For |x| > 1 the steps solve erfc(x) = 1 - |y|, which is
    exact there and keeps relative accuracy in the tail.
    """
    p = np.abs(y)
    inner = p < 1
    p = np.where(inner, p, 0.0)
    log = np.log1p(-p * p)
    a = 0.147
    b = 2 / (math.pi * a) + log / 2
    x = np.sqrt(np.sqrt(b * b - log / a) - b)
    x = np.where(p < 1e-8, p * (math.sqrt(math.pi) / 2), x)
    low = p <= 0.84  # erf(1) is a little more
    for _ in range(3):
        near = erf_minus(np.where(low, x, 0.0), p)
        excess = np.where(low, near, (1 - p) - erfc_tail(np.where(low, 1.0, x)))
        step = excess / (ERF[-1] * np.exp(-x * x))
        x = x - step / (1 + x * step)
    x = np.where(inner, x, np.where(np.abs(y) == 1, math.inf, math.nan))
    return np.copysign(x, y)


# --- gamma function ---------------------------------------------------------------------------


def sin_pi(x: Array) -> Array:
    """|sin(pi x)|, exact zeros at the integers."""
    y: Array = np.sin(math.pi * np.abs(x - np.rint(x)))
    return y


def lgamma_positive(x: Array) -> Array:
    """log gamma for x >= 0.5: recurrence to [1.5, 2.5) below 8, Stirling's series from 8 on."""
    large = x >= 8
    # below 8: gamma(x) = (x-1)(x-2)...(x-n) gamma(x-n), and gamma(x) = gamma(x+1) / x
    small = np.where(large, 2.0, x)
    product = np.ones_like(small)
    for _ in range(6):
        above = small >= 2.5
        small = np.where(above, small - 1, small)
        product = np.where(above, product * small, product)
    below = small < 1.5
    shifted = np.where(below, small - 1, small - 2)  # distance from 2 after the shift
    y = shifted * horner(LGAMMA_AT_2, shifted) + np.log(product)
    y = y - np.where(below, np.log1p(small - 1), 0.0)
    if large.any():
        z = x[large]
        w = 1 / z
        series = w * horner(STIRLING, w * w) + 0.5 * math.log(2 * math.pi)
        y[large] = np.where(np.isinf(z), math.inf, (z - 0.5) * (np.log(z) - 1) - 0.5 + series)
    return np.where(np.isnan(x), x, y)


@in_float64
def lgamma(x: Array) -> Array:
    """log |gamma(x)|; infinite at 0, at negative integers and at both infinities.

    Left of 1/2 by reflection: gamma(x) gamma(1 - x) = pi / sin(pi x).
    """
    left = x < 0.5
    y = lgamma_positive(np.where(left, 1 - x, x))
    if left.any():
        z = x[left]
        tiny = np.abs(z) < 1e-17  # 1 - z is 1, and pi / sin(pi z) is 1 / z
        sine = sin_pi(z)
        pole = np.isinf(z) | (sine == 0)  # the largest have an infinite y as well
        reflected = np.log(math.pi / sine) - y[left]
        y[left] = np.where(pole, math.inf, np.where(tiny, -np.log(np.abs(z)), reflected))
    return y


@in_float64
def digamma(x: Array) -> Array:
    """Derivative of lgamma; NaN at 0, at negative integers and at -infinity.

    Left of 1/2: psi(x) = psi(1 - x) - pi / tan(pi x). Then psi(x) = psi(x+1) - 1/x up to 10, and
    the asymptotic series from there.
    """
    left = x < 0.5
    z = np.where(left, 1 - x, x)
    y = np.zeros_like(z)
    for _ in range(10):
        low = z < 10
        y = np.where(low, y - 1 / z, y)
        z = np.where(low, z + 1, z)
    w = 1 / z
    y = y + np.log(z) - 0.5 * w - w * w * horner(DIGAMMA, w * w)
    if left.any():
        part = x[left]
        offset = part - np.rint(part)
        pole = (offset == 0) | np.isinf(part)
        y[left] = np.where(pole, math.nan, y[left] - math.pi / np.tan(math.pi * offset))
    return y
