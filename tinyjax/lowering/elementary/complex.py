"""Complex ops on pairs (re, im): branch cuts, signed zeros and special values of C99 Annex G.

Each component is accurate to a few ulp unless said otherwise: the formulas avoid cancellation
(Kahan, "Branch cuts for complex elementary functions", 1987) and squares that could overflow.
Functions of i*z are the others with real and imaginary part exchanged: sin from sinh, tan from
tanh, asinh from asin, atan from atanh.

Suboptimal: sine and cosine of one angle are reduced twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from tinyjax.lowering.elementary import coefficients as table
from tinyjax.lowering.elementary.builder import Num, fma, sign_of, two_product, two_sum, where
from tinyjax.lowering.elementary.builder import with_sign as flip_sign
from tinyjax.lowering.elementary.exponential import cosh as real_cosh
from tinyjax.lowering.elementary.exponential import exp as real_exp
from tinyjax.lowering.elementary.exponential import exp2 as real_exp2
from tinyjax.lowering.elementary.exponential import expm1 as real_expm1
from tinyjax.lowering.elementary.exponential import sinh as real_sinh
from tinyjax.lowering.elementary.logarithm import asinh as real_asinh
from tinyjax.lowering.elementary.logarithm import log as real_log
from tinyjax.lowering.elementary.logarithm import log1p as real_log1p
from tinyjax.lowering.elementary.logarithm import log1p_sum
from tinyjax.lowering.elementary.trigonometric import atan2
from tinyjax.lowering.elementary.trigonometric import cos as real_cos
from tinyjax.lowering.elementary.trigonometric import sin as real_sin
from tinyjax.lowering.elementary.trigonometric import tan as real_tan


class Complex(NamedTuple):
    """A complex value as two floats."""

    re: Num
    im: Num


def copysign(magnitude: Num, sign: Num) -> Num:
    """|magnitude| with the sign of `sign`."""
    return flip_sign(abs(magnitude), sign_of(sign))


def is_infinite(x: Num) -> Num:
    """Whether |x| is inf."""
    return abs(x).eq(math.inf)


def not_finite(x: Num) -> Num:
    """Whether x is inf or NaN."""
    return ~(abs(x) < math.inf)


def choose(condition: Num, x: Complex, y: Complex) -> Complex:
    """`where` for both parts."""
    return Complex(where(condition, x.re, y.re), where(condition, x.im, y.im))


def swap(z: Complex) -> Complex:
    """im + i re."""
    return Complex(z.im, z.re)


# Modulus, division, square root.

RESCALE = {
    32: (2.0**-50, 2.0**90, 2.0**62, 2.0**-66),
    64: (2.0**-450, 2.0**600, 2.0**510, 2.0**-514),
}
"""Below the first, scale by the second; above the third, by the fourth: sums of two squares are
then safe."""


def scale_of(m: Num) -> tuple[Num, Num]:
    """A power of 4 that brings m near 1 where its square would not be accurate, and its root."""
    low, up, high, down = RESCALE[m.format.bits]
    scale = where(m < low, m.const(up), where(high < m, m.const(down), 1.0))
    root = where(m < low, m.const(math.sqrt(up)), where(high < m, m.const(math.sqrt(down)), 1.0))
    return scale, root


def larger_smaller(z: Complex) -> tuple[Num, Num]:
    """|re| and |im|, the larger first; NaN in either stays in either place."""
    a, b = abs(z.re), abs(z.im)
    return where(a < b, b, a), where(a < b, a, b)


def modulus(z: Complex) -> Num:
    """sqrt(re**2 + im**2), about 1 ulp; inf if a part is infinite, even beside NaN."""
    m, n = larger_smaller(z)
    scale, _ = scale_of(m)
    m, n = m * scale, n * scale
    size = fma(m, m, n * n).sqrt() / scale
    return where(is_infinite(z.re) | is_infinite(z.im), math.inf, size)


def sign(z: Complex) -> Complex:
    """z/|z|; z itself at 0."""
    m, n = larger_smaller(z)
    scale, _ = scale_of(m)
    m, n = m * scale, n * scale
    size = fma(m, m, n * n).sqrt()
    zero = m.eq(0)
    return choose(zero, z, Complex(z.re * scale / size, z.im * scale / size))


def divide(z: Complex, w: Complex) -> Complex:
    """Smith's method (1962) with scaling, then C99's repair of NaN + i NaN (G.5.1).

    Relative to |z/w| the error is a few ulp; a component that cancels has no bound of its own.
    """
    form = w.re.format
    a, b = z
    c, d = w
    steep = abs(c) < abs(d)
    p, q = where(steep, d, c), where(steep, c, d)
    small = abs(p) < 2.0 ** (form.mantissa + 1 - form.bias)
    huge = 2.0 ** (form.bias - 2) < abs(p)
    lift = 2.0 ** (2 * form.mantissa)
    scale = where(small, p.const(lift), where(huge, p.const(0.25), 1.0))
    p, q = p * scale, q * scale
    r = q / p
    denominator = fma(q, r, p)
    top = where(abs(a) < abs(b), abs(b), abs(a))
    shrink = where(2.0 ** (form.bias - 2) < top, p.const(0.25), 1.0)
    u, v = where(steep, b, a) * shrink, where(steep, a, b) * shrink
    unscale = scale / shrink
    re = fma(v, r, u) / denominator * unscale
    im = fma(-u, r, v) / denominator * unscale
    im = where(steep, -im, im)

    broken = re.ne(re) & im.ne(im)
    nonzero_over_zero = c.eq(0) & d.eq(0) & (a.eq(a) | b.eq(b))
    infinite_top = (is_infinite(a) | is_infinite(b)) & ~not_finite(c) & ~not_finite(d)
    infinite_bottom = (is_infinite(c) | is_infinite(d)) & ~not_finite(a) & ~not_finite(b)

    def box(x: Num) -> Num:
        return copysign(where(is_infinite(x), x.const(1.0), 0.0), x)

    a1, b1 = where(infinite_top, box(a), a), where(infinite_top, box(b), b)
    c1, d1 = where(infinite_bottom, box(c), c), where(infinite_bottom, box(d), d)
    # Signs and zeros are all that counts below, so operands of any size go in as +-1 or +-0.
    a1, b1, c1, d1 = (copysign(where(x.eq(0), x.const(0.0), 1.0), x) for x in (a1, b1, c1, d1))
    factor = where(infinite_bottom, a.const(0.0), math.inf)
    pole = copysign(a.const(math.inf), c)
    repaired = Complex(factor * fma(a1, c1, b1 * d1), factor * fma(b1, c1, -(a1 * d1)))
    repaired = choose(nonzero_over_zero, Complex(pole * a, pole * b), repaired)
    repair = broken & (nonzero_over_zero | infinite_top | infinite_bottom)
    return choose(repair, repaired, Complex(re, im))


def sqrt(z: Complex) -> Complex:
    """t = sqrt((|re| + |z|)/2) is one part, im/(2t) the other; the right half plane."""
    x, y = z
    m, _ = larger_smaller(z)
    scale, root = scale_of(m)
    a, b = abs(x) * scale, abs(y) * scale
    t = ((a + fma(a, a, b * b).sqrt()) * 0.5).sqrt() / root
    other = where(t.eq(0), t, abs(y) / (t + t))
    left = x < 0
    re, im = where(left, other, t), where(left, t, other)
    # im = inf wins over anything, then re = inf.
    infinite = is_infinite(x)
    re = where(infinite, where(left, where(y.eq(y), y.const(0.0), math.nan), math.inf), re)
    im = where(infinite, where(left, y.const(math.inf), where(y.eq(y), y.const(0.0), y)), im)
    top = is_infinite(y)
    return Complex(where(top, math.inf, re), copysign(where(top, math.inf, im), y))


def rsqrt(z: Complex) -> Complex:
    """1/sqrt(z)."""
    return divide(Complex(z.re.const(1.0), z.re.const(0.0)), sqrt(z))


# Exponential family.

BIG = {32: (64.0, math.exp(64.0)), 64: (512.0, math.exp(512.0))}
"""e**x = e**(x - k) * e**k for x > k: a product with a small sine does not overflow too early."""


def exp_factors(x: Num) -> tuple[Num, Num]:
    """e**x as a product of two floats, in range for x up to 2k."""
    k, exp_k = BIG[x.format.bits]
    big = k < x
    return real_exp(where(big, x - k, x)), where(big, x.const(exp_k), 1.0)


def exp(z: Complex) -> Complex:
    """e**re * (cos(im) + i sin(im))."""
    x, y = z
    first, second = exp_factors(x)
    re = first * real_cos(y) * second
    im = where(y.eq(0), y, first * real_sin(y) * second)
    wild = not_finite(y)
    re = where(wild & x.eq(math.inf), math.inf, re)
    gone = wild & x.eq(-math.inf)
    return Complex(where(gone, 0.0, re), where(gone, 0.0, im))


def exp2(z: Complex) -> Complex:
    """2**re * cis(im * log(2)); the angle has the rounding error of that product."""
    x, y = z
    angle = y * table.LN2[y.format.bits][0]
    size = real_exp2(x)
    im = where(y.eq(0), y, size * real_sin(angle))
    gone = not_finite(y) & x.eq(-math.inf)
    re = where(not_finite(y) & x.eq(math.inf), math.inf, size * real_cos(angle))
    return Complex(where(gone, 0.0, re), where(gone, 0.0, im))


def expm1(z: Complex) -> Complex:
    """expm1(re) cos(im) - 2 sin(im/2)**2 + i e**re sin(im); re may cancel elsewhere than at 0."""
    x, y = z
    half = real_sin(y * 0.5)
    re = fma(real_expm1(x), real_cos(y), -2.0 * half * half)
    e = exp(z)
    wild = not_finite(y) | not_finite(x) | (BIG[x.format.bits][0] < x)
    return Complex(where(wild, e.re - 1.0, re), e.im)


def logistic(z: Complex) -> Complex:
    """1/(1 + e**-z), through e**z for re < 0."""
    left = z.re < 0
    e = exp(choose(left, z, Complex(-z.re, -z.im)))
    zero = z.re.const(0.0)
    top = choose(left, e, Complex(zero.const(1.0), zero))
    return divide(top, Complex(e.re + 1.0, e.im))


def hyperbolic(x: Num) -> tuple[Num, Num, Num]:
    """sinh(x), cosh(x) and a factor that both still need (1 unless |x| is large)."""
    big = BIG[x.format.bits][0] < abs(x)
    first, second = exp_factors(abs(x))
    half = 0.5 * first
    s = where(big, copysign(half, x), real_sinh(x))
    c = where(big, half, real_cosh(x))
    return s, c, second


def sinh(z: Complex) -> Complex:
    """sinh(re) cos(im) + i cosh(re) sin(im)."""
    x, y = z
    s, c, factor = hyperbolic(x)
    re = where(x.eq(0) & not_finite(y), x, s * real_cos(y) * factor)
    im = where(y.eq(0), y, c * real_sin(y) * factor)
    wild = not_finite(y) & is_infinite(x)
    return Complex(where(wild, x, re), where(wild, math.nan, im))


def cosh(z: Complex) -> Complex:
    """cosh(re) cos(im) + i sinh(re) sin(im)."""
    x, y = z
    s, c, factor = hyperbolic(x)
    re = c * real_cos(y) * factor
    zero = flip_sign(x.const(0.0), sign_of(x) ^ sign_of(y))
    im = where(x.eq(0) | y.eq(0), zero, s * real_sin(y) * factor)
    wild = not_finite(y) & is_infinite(x)
    return Complex(where(wild, math.inf, re), where(wild, math.nan, im))


def sin(z: Complex) -> Complex:
    """sinh(i z) = i sin(z)."""
    return swap(sinh(swap(z)))


def cos(z: Complex) -> Complex:
    """cosh(i z) = cos(z)."""
    return cosh(Complex(-z.im, z.re))


TANH_BIG = {32: 10.0, 64: 20.0}
"""From here on tanh(re) rounds to 1."""


def tanh(z: Complex) -> Complex:
    """Kahan: (b s sqrt(1 + s**2) + i t)/(1 + b s**2), t = tan(im), b = 1 + t**2, s = sinh(re)."""
    x, y = z
    limit = TANH_BIG[x.format.bits]
    big = limit <= abs(x)
    s = real_sinh(where(big, x.const(limit), x))
    t = real_tan(y)
    b = fma(t, t, 1.0)
    d = fma(b * s, s, 1.0)
    re = b * fma(s, s, 1.0).sqrt() * s / d
    im = t / d
    decay = real_exp(-abs(x))
    far = 4.0 * real_sin(y) * real_cos(y) * decay * decay
    far = where(is_infinite(x), where(not_finite(y), 0.0, copysign(x.const(0.0), far)), far)
    re = where(big, copysign(x.const(1.0), x), re)
    return Complex(where(x.eq(0), x, re), where(y.eq(0), y, where(big, far, im)))


def tan(z: Complex) -> Complex:
    """tanh(i z) = i tan(z)."""
    return swap(tanh(swap(z)))


# Logarithm family.


def log_modulus(x: Num, y: Num, minus_one: Num | None = None) -> Num:
    """log|x + iy|. Near |z| = 1, log1p(x**2 + y**2 - 1)/2 with exact squares.

    `minus_one` is an x - 1 known better than x.
    """
    m, n = larger_smaller(Complex(x, y))
    size = m * m + n * n
    near = (0.5 < size) & (size < 3.0)
    if minus_one is None:
        square, square_lo = two_product(m, m)
        other, other_lo = two_product(n, n)
        start, start_lo = two_sum(square, m.const(-1.0))
    else:
        square, square_lo = two_product(minus_one, minus_one)
        other, other_lo = two_product(y, y)
        start, start_lo = two_sum(minus_one + minus_one, square)
    total, total_lo = two_sum(start, other)
    rest = (start_lo + total_lo) + (square_lo + other_lo)
    total, rest = two_sum(total, rest)
    degenerate = m.eq(0) | is_infinite(m)
    ratio = where(degenerate, 0.0, n / m)
    hi = where(near, total, ratio * ratio)
    lo = where(near, rest, 0.0)
    y_value = fma(log1p_sum(hi, lo), 0.5, where(near, 0.0, real_log(m)))
    y_value = where(near & total.eq(0), 0.5 * rest, y_value)
    return where(is_infinite(x) | is_infinite(y), math.inf, where(n.ne(n), math.nan, y_value))


def log(z: Complex) -> Complex:
    """log|z| + i arg(z)."""
    return Complex(log_modulus(z.re, z.im), atan2(z.im, z.re))


def log2(z: Complex) -> Complex:
    """log(z)/log(2), one rounding more."""
    w = log(z)
    factor = table.LOG2E[z.re.format.bits][0]
    return Complex(w.re * factor, w.im * factor)


def log1p(z: Complex) -> Complex:
    """log(1 + z), accurate for small z."""
    x = z.re + 1.0
    re = log_modulus(x, z.im, z.re)
    return Complex(re, atan2(z.im, x))


def roots(z: Complex) -> tuple[Complex, Complex]:
    """sqrt(1 - z) and sqrt(1 + z)."""
    return sqrt(Complex(1.0 - z.re, -z.im)), sqrt(Complex(1.0 + z.re, z.im))


def unit_signs(z: Complex) -> tuple[Num, Num, Num]:
    """Whether a part is infinite; the direction: +-1 for infinite parts, +-0 for finite ones."""
    infinite = is_infinite(z.re) | is_infinite(z.im)

    def unit(x: Num) -> Num:
        return where(x.ne(x), x, copysign(where(is_infinite(x), x.const(1.0), 0.0), x))

    return infinite, unit(z.re), unit(z.im)


def shrunk(z: Complex) -> tuple[Complex, Num]:
    """z/4 and log 4 where |z| could overflow, else z and 0: asin and acos are logarithms there."""
    huge = z.re.const(2.0 ** (z.re.format.bias - 1))
    big = (huge < abs(z.re)) | (huge < abs(z.im))
    scale = where(big, z.re.const(0.25), 1.0)
    return Complex(z.re * scale, z.im * scale), where(big, z.re.const(math.log(4.0)), 0.0)


def asin(z: Complex) -> Complex:
    """Kahan: atan(re / Re(p q)) + i asinh(Im(conj(p) q)), p = sqrt(1 - z), q = sqrt(1 + z).

    Both products are sums of terms of one sign.
    """
    x, y = z
    near, shift = shrunk(z)
    p, q = roots(near)
    re = atan2(near.re, fma(p.re, q.re, -(p.im * q.im)))
    im = abs(real_asinh(fma(p.re, q.im, -(p.im * q.re)))) + shift
    infinite, x1, y1 = unit_signs(z)
    re = where(infinite, atan2(x1, abs(y1)), where(x.eq(0), x, re))
    im = where(infinite, math.inf, where(y.eq(0) & x.ne(x), math.nan, im))
    return Complex(re, copysign(im, y))


def acos(z: Complex) -> Complex:
    """Kahan: 2 atan(Re(p) / Re(q)) - i asinh(Im(conj(p) q)), p and q as in `asin`."""
    x, y = z
    near, shift = shrunk(z)
    p, q = roots(near)
    re = 2.0 * atan2(p.re, q.re)
    im = abs(real_asinh(fma(p.re, q.im, -(p.im * q.re)))) + shift
    infinite, x1, y1 = unit_signs(z)
    re = where(infinite, atan2(abs(y1), x1), re)
    re = where(x.eq(0) & y.ne(y), table.HALF_PI[x.format.bits][0], re)
    im = where(infinite, math.inf, im)
    return Complex(re, copysign(im, -y))


def asinh(z: Complex) -> Complex:
    """i asinh(z) = asin(i z)."""
    return swap(asin(swap(z)))


def acosh(z: Complex) -> Complex:
    """+-i acos(z), whichever lies in the right half plane."""
    w = acos(z)
    nan = z.re.ne(z.re) & z.im.eq(0)
    return Complex(abs(w.im), where(nan, math.nan, copysign(w.re, z.im)))


def atanh(z: Complex) -> Complex:
    """log1p(4x / ((1 - x)**2 + y**2))/4 + i atan2(2y, (1 - x)(1 + x) - y**2)/2 for x = |re|.

    From 2**(bits/2) on: Re(1/z) + i pi/2.
    """
    form = z.re.format
    x, y = abs(z.re), abs(z.im)
    limit = 2.0 ** (form.bias // 2 - 4)
    m = where(x < y, y, x)
    large = (limit < x) | (limit < y)
    a, b = where(large, 0.25, x), where(large, 0.25, y)
    one_less = 1.0 - a
    h = modulus(Complex(one_less, b))
    ratio = a / h
    re = 0.25 * real_log1p(4.0 * ratio / h)
    re = where(h < 2.0 ** (-form.mantissa - 3), 0.5 * (math.log(2.0) - real_log(h)), re)
    im = 0.5 * atan2(b + b, fma(one_less, 1.0 + a, -(b * b)))
    n = where(x < y, x, y)
    r = n / m
    inverse = where(x < y, r, 1.0) / m / fma(r, r, 1.0)
    infinite = is_infinite(x) | is_infinite(y)
    re = where(large, where(infinite, 0.0, inverse), re)
    half_pi = table.HALF_PI[form.bits][0]
    im = where(large, where(y.ne(y), y, half_pi), im)
    re = where(x.eq(0), x, re)
    return Complex(copysign(re, z.re), copysign(im, z.im))


def atan(z: Complex) -> Complex:
    """i atan(z) = atanh(i z)."""
    return swap(atanh(swap(z)))


def power(z: Complex, w: Complex) -> Complex:
    """exp(w log(z)); 1 for w = 0; at z = 0 it is 0 for Re(w) > 0. The error grows as |w log(z)|."""
    l = log(z)
    exponent = Complex(fma(w.re, l.re, -(w.im * l.im)), fma(w.re, l.im, w.im * l.re))
    result = exp(exponent)
    zero = w.re.const(0.0)
    at_zero = z.re.eq(0) & z.im.eq(0) & (0.0 < w.re)
    result = choose(at_zero, Complex(zero, zero), result)
    return choose(w.re.eq(0) & w.im.eq(0), Complex(zero.const(1.0), zero), result)


def angle(z: Complex, w: Complex) -> Complex:
    """ATAN2(z, w) = -i log((w + i z) / sqrt(w**2 + z**2))."""

    def square(x: Complex) -> Complex:
        return Complex(x.re * x.re - x.im * x.im, x.re * x.im + x.im * x.re)

    a, b = square(w), square(z)
    size = sqrt(Complex(a.re + b.re, a.im + b.im))
    found = log(divide(Complex(w.re - z.im, w.im + z.re), size))
    return Complex(found.im, -found.re)


DECOMPOSE: dict[str, Callable[..., Complex | Num]] = {
    "ABS": modulus,
    "SIGN": sign,
    "DIV": divide,
    "SQRT": sqrt,
    "RSQRT": rsqrt,
    "EXP": exp,
    "EXP2": exp2,
    "EXPM1": expm1,
    "LOGISTIC": logistic,
    "LOG": log,
    "LOG2": log2,
    "LOG1P": log1p,
    "SIN": sin,
    "COS": cos,
    "TAN": tan,
    "SINH": sinh,
    "COSH": cosh,
    "TANH": tanh,
    "ASIN": asin,
    "ACOS": acos,
    "ATAN": atan,
    "ASINH": asinh,
    "ACOSH": acosh,
    "ATANH": atanh,
    "POW": power,
    "ATAN2": angle,
}
