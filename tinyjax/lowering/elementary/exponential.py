"""exp and its relatives: EXP EXP2 EXPM1 LOGISTIC TANH SINH COSH.

exp(x) = 2**n * exp(r) with n = round(x / ln 2) and |r| <= ln(2)/2 (Cody and Waite 1980). The
rounding is one fma with `magic`, a constant so large that the sum is an integer; the exponent bias
is part of that constant, so the low bits of the sum, shifted up, *are* the float 2**n: no
conversion to integer, no add (as in many vector libraries; ours differs in the next step). 2**n
itself need not be a normal float, so n is off by `spare` towards zero and a last multiplication by
2**+-spare rounds once into subnormals or overflows.

Suboptimal: with AVX-512's `vscalef` the two scalings would be one instruction.
"""

from __future__ import annotations

from tinyjax.lowering.elementary import coefficients as table
from tinyjax.lowering.elementary.builder import (
    F32,
    Format,
    Num,
    at_least,
    at_most,
    fma,
    horner,
    sign_of,
    where,
    with_sign,
)

EXP_RANGE = {32: (-104.0, 89.0), 64: (-746.0, 710.0)}
"""Below, exp(x) rounds to 0; above, it overflows."""
EXP2_RANGE = {32: (-151.0, 129.0), 64: (-1076.0, 1025.0)}
EXPM1_LOW = {32: -18.0, 64: -38.0}
"""Below, expm1(x) rounds to -1."""
TANH_HIGH = {32: 9.1, 64: 19.1}
"""Above, tanh(x) rounds to 1."""
SINH_HIGH = {32: 89.5, 64: 710.6}
"""Above, sinh(x) and cosh(x) overflow; 2**(n-2) is finite up to here."""
SPARE = {32: 64, 64: 512}


def power_of_two(t: Num) -> Num:
    """2**k of a sum t = magic + bias + k; k + bias must be in [0, 2 * bias + 1)."""
    return (t.int_bits << t.format.mantissa).bitcast(t.dtype)


def reduce_ln2(x: Num, shift: Num | float) -> tuple[Num, Num]:
    """t = shift + n and r = x - n*ln(2), where n = round(x/ln(2)) and shift = magic + integer."""
    hi, lo, _ = table.LN2[x.format.bits]
    t = fma(x, table.LOG2E[x.format.bits][0], shift)
    n = t - shift
    return t, fma(n, -lo, fma(n, -hi, x))


def centre(form: Format) -> float:
    """The sum t for n = 0: `power_of_two(centre)` is 1."""
    return form.magic + form.bias


def exp(x: Num) -> Num:
    """e**x. 19 instructions in float32; clamping keeps NaN."""
    form = x.format
    low, high = EXP_RANGE[form.bits]
    x = at_least(at_most(x, high), low)
    spare = SPARE[form.bits]
    negative = x < 0
    t, r = reduce_ln2(x, where(negative, x.const(centre(form) + spare), centre(form) - spare))
    p = horner(r, (1.0, 1.0, *table.EXP[form.bits]))
    return p * power_of_two(t) * where(negative, x.const(2.0**-spare), 2.0**spare)


def exp2(x: Num) -> Num:
    """2**x; exact for integers."""
    form = x.format
    low, high = EXP2_RANGE[form.bits]
    x = at_least(at_most(x, high), low)
    spare = SPARE[form.bits]
    negative = x < 0
    shift = where(negative, x.const(centre(form) + spare), centre(form) - spare)
    t = x + shift
    p = horner(x - (t - shift), (1.0, *table.EXP2[form.bits]))
    return p * power_of_two(t) * where(negative, x.const(2.0**-spare), 2.0**spare)


def expm1_tail(r: Num) -> Num:
    """e**r - 1 for |r| <= ln(2)/2, with small relative error."""
    return fma(r * r, horner(r, table.EXPM1[r.format.bits]), r)


def expm1(x: Num) -> Num:
    """e**x - 1 = 2**n * (e**r - 1) + (2**n - 1), halved until the end so that 2**n is finite."""
    form = x.format
    clamped = at_least(at_most(x, EXP_RANGE[form.bits][1]), EXPM1_LOW[form.bits])
    t, r = reduce_ln2(clamped, centre(form) - 1)
    half_scale = power_of_two(t)
    half = fma(half_scale, expm1_tail(r), half_scale - 0.5)
    return where(abs(x) < 2.0**-form.mantissa, x, half + half)  # also -0 and subnormals


def logistic(x: Num) -> Num:
    """1 / (1 + e**-x); for x < 0 over a denominator scaled down, so that it cannot overflow.

    e**-x = 2**n + 2**n * q goes into the denominator without being rounded on its own; 2**n is
    added last, since (2**n + 1) may be a tie.
    """
    form = x.format
    spare = SPARE[form.bits]
    low, high = EXP_RANGE[form.bits]
    y = at_least(at_most(-x, -low), -high / 2)
    negative = 0.0 < y
    one = where(negative, y.const(2.0**-spare), 1.0)
    t, r = reduce_ln2(y, where(negative, y.const(centre(form) - spare), centre(form)))
    q = fma(r * r, horner(r, table.EXP[form.bits]), r)
    scale = power_of_two(t)
    return one / (fma(scale, q, one) + scale)


def tanh(x: Num) -> Num:
    """1 - 2 / (e**(2|x|) + 1), where n is so small that 2**n needs no care; below 0.6 a polynomial.

    (m / (m + 2) with m = e**(2|x|) - 1 does without the polynomial, but loses 2.5 ulp.)
    """
    form = x.format
    a = abs(x)
    z = a * a
    small = fma(a * z, horner(z, table.TANH[form.bits]), a)
    y = at_most(a + a, 2 * TANH_HIGH[form.bits])
    t = fma(y, table.LOG2E[form.bits][0], centre(form))
    n = t - centre(form)
    r = fma(n, -table.LN2[form.bits][0], y)
    if x.dtype != F32:  # with 24 bits the first part of ln(2) happens to be good enough
        r = fma(n, -table.LN2[form.bits][1], r)
    p = horner(r, (1.0, 1.0, *table.EXP[form.bits]))
    large = 1.0 - 2.0 / fma(power_of_two(t), p, 1.0)
    return with_sign(where(a < 0.6, small, large), sign_of(x))


def sinh_cosh_parts(a: Num, t: Num, shift: float) -> tuple[Num, Num, Num, Num]:
    """For a >= 0, t = shift + n: 2**(n-2) and 2**(-n-2), and sinh(r), cosh(r) - 1."""
    form = a.format
    hi, lo, _ = table.LN2[form.bits]
    n = t - shift
    r = fma(n, -lo, fma(n, -hi, a))
    z = r * r
    sinh_r = fma(r * z, horner(z, table.SINH[form.bits]), r)
    cosh_r = z * horner(z, table.COSH[form.bits])
    shrink = power_of_two(shift - at_most(n, 100.0))
    return power_of_two(t), shrink, sinh_r, cosh_r


def sinh(x: Num) -> Num:
    """sinh(n ln 2) cosh(r) + cosh(n ln 2) sinh(r) with n = 0 below 0.6: nothing cancels."""
    form = x.format
    shift = centre(form) - 2
    magnitude = abs(x)
    a = at_most(magnitude, SINH_HIGH[form.bits])
    t = fma(a, table.LOG2E[form.bits][0], shift)
    t = where(a < 0.6, shift, t)
    grow, shrink, sinh_r, cosh_r = sinh_cosh_parts(a, t, shift)
    difference = grow - shrink
    half = difference + fma(difference, cosh_r, (grow + shrink) * sinh_r)
    tiny = magnitude < 2.0**-form.mantissa
    return with_sign(where(tiny, magnitude, half + half), sign_of(x))


def cosh(x: Num) -> Num:
    """cosh(n ln 2) cosh(r) + sinh(n ln 2) sinh(r)."""
    form = x.format
    shift = centre(form) - 2
    a = at_most(abs(x), SINH_HIGH[form.bits])
    t = fma(a, table.LOG2E[form.bits][0], shift)
    grow, shrink, sinh_r, cosh_r = sinh_cosh_parts(a, t, shift)
    total = grow + shrink
    half = total + fma(total, cosh_r, (grow - shrink) * sinh_r)
    return half + half
