"""POW CBRT RSQRT."""

from __future__ import annotations

import math

from tinyjax.lowering.elementary import coefficients as table
from tinyjax.lowering.elementary.builder import (
    Num,
    at_least,
    at_most,
    fast_two_sum,
    fma,
    horner,
    sign_of,
    two_product,
    where,
    with_sign,
)
from tinyjax.lowering.elementary.exponential import EXP2_RANGE, SPARE, centre, power_of_two
from tinyjax.lowering.elementary.logarithm import split_exponent


def rsqrt(x: Num) -> Num:
    """1/sqrt(x): two correctly rounded operations."""
    return 1.0 / x.sqrt()


def log2_parts(x: Num) -> tuple[Num, Num]:
    """log2(x) for positive finite x in two parts, about 12 bits more than the dtype holds.

    log2(1 + f) = (2s + 2s**3/3 + ...)/ln(2) with s = f/(2 + f). The first term is carried in two
    parts throughout. The second is at most 1/100 of it and needs two parts only in its leading
    coefficient; the rest of the polynomial is plain.
    """
    bits = x.format.bits
    e, f = split_exponent(x)
    g, g_lo = fast_two_sum(f.const(2.0), f)
    inverse = 1.0 / g
    s = f * inverse
    s_lo = fma(-s, g_lo, fma(-s, g, f)) * inverse

    first, *rest = table.LOG2_ATANH[bits]
    square, square_lo = two_product(s, s)
    cube, cube_lo = two_product(s, square)
    cube_lo = cube_lo + fma(s, square_lo, 3.0 * square * s_lo)
    r, r_lo = fast_two_sum(s.const(first), square * horner(square, rest))
    minor, minor_lo = two_product(cube, r)
    minor_lo = minor_lo + fma(cube, r_lo, cube_lo * r)

    scale, scale_lo = table.TWO_LOG2E[bits]
    major, major_lo = two_product(s, s.const(scale))
    major_lo = major_lo + fma(s, scale_lo, s_lo * scale)

    total, total_lo = fast_two_sum(major, minor)
    total_lo = total_lo + (major_lo + minor_lo)
    hi, lo = fast_two_sum(e, total)
    return fast_two_sum(hi, lo + total_lo)


def exp2_sum(hi: Num, lo: Num) -> Num:
    """2**(hi + lo) for a small lo; overflow and underflow by hi."""
    form = hi.format
    low, high = EXP2_RANGE[form.bits]
    clamped = at_least(at_most(hi, high), low)
    lo = where(clamped.eq(hi), lo, 0.0)  # lo is NaN where hi is infinite
    spare = SPARE[form.bits]
    negative = clamped < 0
    shift = where(negative, hi.const(centre(form) + spare), centre(form) - spare)
    t = clamped + shift
    r = (clamped - (t - shift)) + lo
    p = horner(r, (1.0, *table.EXP2[form.bits]))
    return p * power_of_two(t) * where(negative, hi.const(2.0**-spare), 2.0**spare)


def power(x: Num, y: Num) -> Num:
    """x**y = 2**(y log2|x|), and all special cases of C99 (F.9.4.4)."""
    a = abs(x)
    log_hi, log_lo = log2_parts(a)
    product = y * log_hi
    magnitude = exp2_sum(product, fma(y, log_lo, fma(y, log_hi, -product)))
    extreme = a.eq(0) | a.eq(math.inf)
    grows = (1.0 < a) ^ (y < 0)
    magnitude = where(extreme, where(grows, x.const(math.inf), 0.0), magnitude)
    magnitude = where(a.eq(1.0), 1.0, magnitude)  # y may be infinite

    half = 0.5 * y
    whole = y.floor().eq(y)
    odd = whole & half.floor().ne(half)
    result = with_sign(magnitude, where(odd, sign_of(x), 0))
    outside = (x < 0) & (a < math.inf) & ~whole
    result = where(outside | x.ne(x) | y.ne(y), math.nan, result)
    return where(y.eq(0) | x.eq(1.0), 1.0, result)


def cbrt(x: Num) -> Num:
    """w * r**2 with r ~ w**(-1/3) from a short polynomial and Newton steps without division.

    |x| = w * 8**k, 1 <= w < 8. The last step, on y**3 - w computed by fma, makes the error barely
    more than that of the final rounding.
    """
    form = x.format
    a = abs(x)
    small = a < form.smallest_normal
    lift = 24 if form.bits == 32 else 54
    bits = where(small, a * 2.0**lift, a).int_bits
    third = -(-form.bias // 3)
    e = (bits >> form.mantissa) + (3 * third - form.bias)
    k = (e * 21846) >> 16  # e // 3 for 0 <= e < 2**15
    rest = e - 3 * k
    fraction = bits & ((1 << form.mantissa) - 1)
    m = (fraction | (form.bias << form.mantissa)).bitcast(x.dtype)
    w = (fraction | ((rest + form.bias) << form.mantissa)).bitcast(x.dtype)

    step = where(rest.eq(0), x.const(1.0), where(rest.eq(1), x.const(2 ** (-1 / 3)), 2 ** (-2 / 3)))
    r = step * horner(m, table.CBRT_SEED[form.bits])
    for _ in range(1 if form.bits == 32 else 2):  # error 2**-12, 2**-23, 2**-45
        r = fma(r * (1 / 3), fma(-w * r * r, r, 1.0), r)
    square = r * r
    y = w * square
    y2, y2_lo = two_product(y, y)
    residual = fma(-y, y2_lo, fma(-y, y2, w))
    y = fma(residual * (1 / 3), square, y)

    scale = ((k + (form.bias - third)) << form.mantissa).bitcast(x.dtype)
    y = y * where(small, scale * 2.0 ** -(lift // 3), scale)
    y = where(a.eq(0), a, y)
    return with_sign(where(a < math.inf, y, a), sign_of(x))
