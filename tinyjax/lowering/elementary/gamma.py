"""LGAMMA DIGAMMA, of library quality: errors are relative for x > 0 and absolute for x < 0.

lgamma: 2 ulp for x > 0, zeros at 1 and 2 included; for x < 0 the error is 8 ulp of the largest of
the terms log|x|, log|sin(pi x)|, lgamma(|x|) (the zeros on the negative axis are not resolved).
digamma: likewise, 2 ulp for x > 0, the zero at 1.46 included; for x < 0 8 ulp of the largest of
digamma(|x|) and pi*cot(pi*x).
"""

from __future__ import annotations

import math

from tinyjax.lowering.elementary import coefficients as table
from tinyjax.lowering.elementary.builder import Num, fast_two_sum, fma, horner, where
from tinyjax.lowering.elementary.logarithm import log, log_parts
from tinyjax.lowering.elementary.trigonometric import sin_reduced

STIRLING = 0.5 * math.log(2 * math.pi) - 0.5


def lgamma(x: Num) -> Num:
    """log|Gamma(x)|; inf at 0, -1, -2, ... and at both infinities.

    Polynomials around the zeros 1 and 2 and the least value between, Stirling's series from 4 on,
    Gamma(x) = Gamma(x + 1)/x below 1/2 and Gamma(-a) Gamma(a) = -pi / (a sin(pi a)) for x < 0. Terms
    of opposite signs have their rounding errors added.
    """
    bits = x.format.bits
    a = abs(x)
    log_a, log_a_lo = log_parts(where(a < math.inf, a, 1.0))
    inverse = 1.0 / a
    series = inverse * horner(inverse * inverse, table.LGAMMA_LARGE[bits])
    factor, factor_lo = fast_two_sum(log_a, x.const(-1.0))
    y = fma(a - 0.5, factor, fma(a - 0.5, factor_lo + log_a_lo, series + STIRLING))
    two = a - 2.0
    y = where(a < 4.0, two * horner(two, table.LGAMMA_TWO[bits]), y)
    root, root_lo = table.DIGAMMA_ROOT[bits]
    least, least_lo = table.LGAMMA_LEAST_VALUE[bits]
    t = (a - root) - root_lo
    bottom = fma(t * t, horner(t, table.LGAMMA_LEAST[bits]), least_lo) + least
    y = where(a < 1.73, bottom, y)
    below = a < 0.5
    one = where(below, a, a - 1.0)
    near_one = fma(one, horner(one, table.LGAMMA_ONE[bits]), 0.0)  # 0, not -0, at 1
    y = where(a < 1.23, where(below, (near_one - log_a_lo) - log_a, near_one), y)

    fraction = a - a.floor()
    r = where(fraction <= 0.5, fraction, 1.0 - fraction)
    sine = sin_reduced(r * table.PI[bits][0]) * table.INV_PI[bits][0]
    reflected = where(r.eq(0), math.inf, -log(sine) - log_a - y)
    y = where(a.eq(0), math.inf, y)
    y = where(x < 0, reflected, y)
    return where(a < math.inf, y, a)


def digamma(x: Num) -> Num:
    """The derivative of lgamma; NaN at 0, -1, -2, ... and at -inf.

    A polynomial around the zero on [1, 3], the asymptotic series from there on, below one step of
    digamma(x + 1) = digamma(x) + 1/x; digamma(-a) = digamma(1 + a) + pi cot(pi a).
    """
    bits = x.format.bits
    a = abs(x)
    positive = 0 < x
    b = where(positive, x, a + 1.0)
    inverse = 1.0 / b
    z = inverse * inverse
    finite = b < math.inf
    log_b, log_b_lo = log_parts(where(finite, b, 1.0))
    large = log_b - (fma(z, horner(z, table.DIGAMMA_LARGE[bits]), 0.5 * inverse) - log_b_lo)

    low = b < 1.0
    c = where(low, b + 1.0, b)
    hi, lo = table.DIGAMMA_ROOT[bits]
    slope = horner(c - 2.0, table.DIGAMMA[bits])
    small = fma(c - hi, slope, -lo * slope)
    inverse_lo = where(inverse < math.inf, fma(-inverse, b, 1.0) * inverse, 0.0)
    small = where(low, (small - inverse_lo) - inverse, small)
    y = where(b < 3.0, small, where(finite, large, b))

    fraction = a - a.floor()
    r = where(fraction <= 0.5, fraction, fraction - 1.0)
    pi = table.PI[bits][0]
    cotangent = sin_reduced((0.5 - abs(r)) * pi) / sin_reduced(r * pi)
    pole = where(r.eq(0), math.nan, fma(cotangent, pi, y))
    return where(positive, y, pole)
