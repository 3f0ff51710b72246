"""ERF ERFC ERFINV LGAMMA DIGAMMA."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinyjax.lowering.elementary import coefficients as table
from tinyjax.lowering.elementary.builder import (
    Num,
    at_most,
    fast_two_sum,
    fma,
    horner,
    sign_of,
    two_product,
    where,
    with_sign,
)
from tinyjax.lowering.elementary.exponential import SPARE, centre, power_of_two, reduce_ln2
from tinyjax.lowering.elementary.logarithm import join, log1p_tail, split_exponent

ERF_HIGH = {32: 4.0, 64: 6.0}
"""Above, erf(x) rounds to 1."""
ERFC_HIGH = {32: 10.5, 64: 27.5}
"""Above, erfc(x) rounds to 0."""
ERFCX_CENTRE = {32: 2.0, 64: 4.0}
"""The k of `erfc`: best for the range of the dtype."""


def erf(x: Num) -> Num:
    """x + x*P(x**2) below 1, then 1 - exp(P(a)): erfc < 0.16 damps the error of exp there."""
    form = x.format
    a = abs(x)
    z = a * a
    small = fma(a, horner(z, table.ERF_SMALL[form.bits]), a)
    y = horner(at_most(a, ERF_HIGH[form.bits]), table.ERF_LARGE[form.bits])
    t, r = reduce_ln2(y, centre(form))
    large = 1.0 - power_of_two(t) * horner(r, (1.0, 1.0, *table.EXP[form.bits]))
    return with_sign(where(a < 1.0, small, large), sign_of(x))


def erfc(x: Num) -> Num:
    """exp(-a**2) * P(t) / (1 + 2a) with t = (a - k)/(a + k); 1 - erf(x) below 3/4.

    The factor 1 + 2a leaves a function of t so flat that the rounding of t does not matter
    (Shepherd and Laframboise 1981). a**2 and P/(1 + 2a) are carried in two parts.
    """
    form = x.format
    a = abs(x)
    z = a * a
    small = fma(-x, horner(z, table.ERF_SMALL[form.bits]), 1.0 - x)

    b = at_most(a, ERFC_HIGH[form.bits])
    k = ERFCX_CENTRE[form.bits]
    head, head_lo, *others = table.ERFCX[form.bits]
    u = (b - k) / (b + k)
    p, p_lo = fast_two_sum(b.const(head), u * horner(u, others))
    double = b + b
    d = double + 1.0
    d_lo = 1.0 - (d - double)
    inverse = 1.0 / d
    c = p * inverse
    c_lo = (fma(-c, d_lo, fma(-c, d, p)) + (p_lo + head_lo)) * inverse
    square = b * b
    spare = SPARE[form.bits]
    hi, lo, _ = table.LN2[form.bits]
    shift = centre(form) + spare
    t = fma(square, -table.LOG2E[form.bits][0], shift)
    n = t - shift
    r = fma(n, -hi, -square)  # exact; what it lacks is a factor 1 - rest
    rest = fma(n, lo, fma(b, b, -square))
    q = fma(r * r, horner(r, table.EXP[form.bits]), r)
    c_lo = fma(-rest, c, c_lo)
    c_lo = fma(c_lo, q, c_lo)
    right = (c + fma(c, q, c_lo)) * power_of_two(t) * 2.0**-spare
    return where(a < 0.75, small, where(x < 0, 2.0 - right, right))


def split_horner(u: Num, coefficients: Sequence[float], lo: Num | float) -> tuple[Num, Num]:
    """P(u) + lo as a constant and a smaller rest; the first two coefficients are that constant."""
    head, head_lo, *rest = coefficients
    return u.const(head), fma(u, horner(u, rest), lo + head_lo)


def erfinv(x: Num) -> Num:
    """x * P(w) with w = -log(1 - x**2), and x * P(sqrt(w)) for w > 5 (Giles 2010).

    P is a constant plus a smaller rest, so that few of the rounding errors count in full. In the
    tail the result is nearly proportional to sqrt(w): float64 needs its rounding error s_lo there
    (times the slope, which is 1 within 2%); float32 stays below 2 ulp without.
    """
    form = x.format
    a = abs(x)
    inside = a < 1.0
    e, f = split_exponent(where(inside, fma(-a, a, 1.0), 1.0))
    w = -join(e, f)
    s = w.sqrt()
    s_lo: Num | float = 0.0
    if form.bits == 64:
        hi, lo, _ = table.LN2[form.bits]
        product, error = two_product(e, e.const(hi))
        total, total_lo = fast_two_sum(product, fma(f * f, log1p_tail(f), f))
        s_lo = (fma(-s, s, -total) - fma(e, lo, error + total_lo)) / (s + s)

    head, head_lo = table.HALF_ROOT_PI[form.bits]
    p = fma(w, horner(w - 2.5, table.ERFINV[form.bits]), head_lo)
    tail_head, tail = split_horner(s - 3.0, table.ERFINV_TAIL[form.bits], s_lo)
    far = w > 5.0
    constant, p = where(far, tail_head, head), where(far, tail, p)
    if form.bits == 64:  # in float32, w < 16
        far_head, far_tail = split_horner(s - 5.0, table.ERFINV_FAR[form.bits], s_lo)
        far = s > 4.0
        constant, p = where(far, far_head, constant), where(far, far_tail, p)
    y = fma(a, constant, a * p)
    outside = where(a.eq(1.0), a.const(math.inf), math.nan)
    return with_sign(where(inside, y, outside), sign_of(x))
