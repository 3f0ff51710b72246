"""log and its relatives: LOG LOG2 LOG1P ASINH ACOSH ATANH.

x = 2**e * (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2): subtracting the bits of sqrt(1/2) makes the
exponent field say which e that is. log(1 + f) is a polynomial in f, not in f/(2 + f): the longer
polynomial costs less than the division on every target. f is exact, so the error stays relative
near x = 1.
"""

from __future__ import annotations

import math

import numpy as np

from tinyjax.lowering.elementary import coefficients as table
from tinyjax.lowering.elementary.builder import (
    Format,
    Num,
    fast_two_sum,
    fma,
    horner,
    sign_of,
    two_sum,
    where,
    with_sign,
)


def root_half(form: Format) -> int:
    """The bits of sqrt(1/2)."""
    unsigned = np.array(math.sqrt(0.5), form.float_dtype).view(form.uint_dtype)
    return int(unsigned)


def exponent_of(x: Num) -> tuple[Num, Num]:
    """For a positive normal x: e (integer) and the bits of x * 2**-e in [sqrt(1/2), sqrt(2))."""
    form = x.format
    e = (x.int_bits - root_half(form)) >> form.mantissa
    return e, x.int_bits - (e << form.mantissa)


def as_float(e: Num, form: Format, offset: Num | float = 0.0) -> Num:
    """A small integer as a float, minus an offset: added to the bits of `magic`, which sits above
    the integers; a conversion from int64 does not exist on many targets."""
    magic = int(np.array(form.magic, form.float_dtype).view(form.uint_dtype))
    raised = (e + magic).bitcast(form.float_dtype)
    return raised - (form.magic + offset)


def split_exponent(x: Num) -> tuple[Num, Num]:
    """e (a float) and f with x = 2**e * (1 + f), for any positive finite x."""
    form = x.format
    small = x < form.smallest_normal
    raise_by = float(form.mantissa + 1)
    normal = where(small, x * 2.0**raise_by, x)
    e, bits = exponent_of(normal)
    offset = where(small, x.const(form.magic + raise_by), form.magic)
    magic = int(np.array(form.magic, form.float_dtype).view(form.uint_dtype))
    return (e + magic).bitcast(form.float_dtype) - offset, bits.bitcast(form.float_dtype) - 1.0


def log1p_tail(f: Num) -> Num:
    """(log(1 + f) - f) / f**2 on sqrt(1/2) <= 1 + f <= sqrt(2)."""
    return horner(f, (-0.5, *table.LOG[f.format.bits]))


def join(e: Num, f: Num) -> Num:
    """e * ln(2) + log(1 + f)."""
    hi, lo, _ = table.LN2[f.format.bits]
    return fma(e, hi, fma(e, lo, fma(f * f, log1p_tail(f), f)))


def join_parts(e: Num, f: Num, f_lo: Num | None = None) -> tuple[Num, Num]:
    """e * ln(2) + log(1 + f + f_lo) in two parts: three bits more than the dtype holds."""
    hi, lo, _ = table.LN2[f.format.bits]
    total, error = fast_two_sum(e * hi, f)  # unless e is 0, the first is the larger one
    rest = fma(e, lo, error if f_lo is None else fma(-f, f_lo, f_lo) + error)
    return fast_two_sum(total, fma(f * f, log1p_tail(f), rest))


def log_parts(x: Num) -> tuple[Num, Num]:
    """log(x) for positive finite x in two parts."""
    return join_parts(*split_exponent(x))


def with_log_specials(x: Num, y: Num) -> Num:
    """y where 0 < x < inf; -inf at 0, NaN below, inf and NaN as they are."""
    y = where(x < math.inf, y, x)
    y = where(x < 0, math.nan, y)
    return where(x.eq(0), -math.inf, y)


def log(x: Num) -> Num:
    """Natural logarithm."""
    return with_log_specials(x, join(*split_exponent(x)))


def log2(x: Num) -> Num:
    """Base-2 logarithm, exact at powers of 2: the product with 1/ln(2) is made in two parts."""
    hi, lo = table.LOG2E[x.format.bits]
    e, f = split_exponent(x)
    tail = f * f * log1p_tail(f)
    return with_log_specials(x, e + fma(f, hi, fma(f, lo, tail * hi)))


def log1p_sum(hi: Num, lo: Num | None = None, extra: Num | None = None) -> Num:
    """log(1 + hi + lo) + extra*ln(2) for -1 < hi < 2**100 (2**1000) and a small lo.

    e is that of the rounded 1 + hi; f = (1 + hi) * 2**-e - 1 comes without a correction by division:
    from one fma, or in two parts if there is a lo.
    """
    form = hi.format
    e, _ = exponent_of(hi + 1.0)
    one = int(np.array(1.0, form.float_dtype).view(form.uint_dtype))
    scale = (one - (e << form.mantissa)).bitcast(form.float_dtype)
    e_float = as_float(e, form)
    if extra is not None:
        e_float = e_float + extra
    if lo is None:
        return join(e_float, fma(hi, scale, scale - 1.0))
    f, f_lo = two_sum(hi * scale, scale - 1.0)
    total, rest = join_parts(e_float, *fast_two_sum(f, fma(lo, scale, f_lo)))
    return total + rest


LARGE = {32: (2.0**60, 30), 64: (2.0**500, 250)}
"""From here on x is scaled down by 2**k before 1 is added, or before it is squared."""


def log1p(x: Num) -> Num:
    """log(1 + x)."""
    form = x.format
    limit, shift = LARGE[form.bits]
    large = limit < x
    scaled = where(large, x * 2.0**-shift, x)
    y = log1p_sum(scaled, extra=where(large, x.const(float(shift)), 0.0))
    y = where(x < math.inf, y, x)
    y = where(x < -1.0, math.nan, y)
    y = where(x.eq(-1.0), -math.inf, y)
    return where(x.eq(0), x, y)  # keeps -0


def root_sum(w: Num, w_lo: Num, a: Num) -> tuple[Num, Num]:
    """a + sqrt(w + w_lo) in two parts, for a, w > 0."""
    s = w.sqrt()
    s_lo = (fma(-s, s, w) + w_lo) / (s + s)
    total, error = two_sum(a, s)
    return total, error + s_lo


def asinh(x: Num) -> Num:
    """log(a + sqrt(a**2 + 1)), the argument in two parts; a polynomial below 1/2."""
    form = x.format
    limit, shift = LARGE[form.bits]
    a = abs(x)
    z = a * a
    small = fma(a * z, horner(z, table.ASINH[form.bits]), a)
    large = limit < a
    b = where(large, 1.0, a)
    w, w_lo = two_sum(b * b, b.const(1.0))
    u, u_lo = root_sum(w, w_lo + fma(b, b, -(b * b)), b)
    # log(u) = log1p(u - 1): u >= 1.6 here, so 1 is subtracted exactly enough with its error kept.
    v, v_lo = two_sum(u, b.const(-1.0))
    v = where(large, a * 2.0**-shift, v)
    rest = where(large, 0.0, v_lo + u_lo)
    y = log1p_sum(v, rest, where(large, a.const(float(shift + 1)), 0.0))
    y = where(a < 0.5, small, y)
    return with_sign(where(a < math.inf, y, a), sign_of(x))


def acosh(x: Num) -> Num:
    """log1p(t + sqrt(t**2 + 2t)) with t = x - 1, the argument in two parts."""
    form = x.format
    limit, shift = LARGE[form.bits]
    large = limit < x
    t = where(large, 1.0, x - 1.0)
    square = t * t
    w, w_lo = two_sum(t + t, square)
    v, v_lo = root_sum(w, w_lo + fma(t, t, -square), t)
    v = where(large, x * 2.0**-shift, v)
    rest = where(large, 0.0, v_lo)
    y = log1p_sum(v, rest, where(large, x.const(float(shift + 1)), 0.0))
    y = where(x < math.inf, y, x)
    y = where(x.eq(1.0), 0.0, y)  # the correction of sqrt(0) is 0/0
    return where(x < 1.0, math.nan, y)


def atanh(x: Num) -> Num:
    """log1p(2a / (1 - a)) / 2, where 1 - a is exact; a polynomial below 1/2."""
    form = x.format
    a = abs(x)
    z = a * a
    small = fma(a * z, horner(z, table.ATANH[form.bits]), a)
    b = where(a < 1.0, a, 0.5)
    y = 0.5 * log1p_sum((b + b) / (1.0 - b))
    y = where(a < 0.5, small, y)
    outside = where(a.eq(1.0), a.const(math.inf), math.nan)
    return with_sign(where(a < 1.0, y, outside), sign_of(x))
