"""SIN COS TAN and ASIN ACOS ATAN ATAN2.

Reduction of |x| < 2**16 (2**30 in float64): r = |x| - n*pi with pi in three floats (Cody and
Waite); the first fma is exact, since its result is a multiple of the last bit of n*pi_1 and less
than 2. One interval of length pi and one polynomial serve sine and cosine, cheaper than two
polynomials on pi/4. Larger arguments take `rare` integer code after Payne and Hanek (1983): the
window of the bits of 1/pi that matters is chosen by a barrel shifter over constants, so there is no
table to load, and the result is right up to the largest float.
"""

from __future__ import annotations

from tinyjax.lowering.elementary import coefficients as table
from tinyjax.lowering.elementary.builder import (
    I32,
    I64,
    U32,
    U64,
    Num,
    fast_two_sum,
    fma,
    horner,
    rare,
    sign_of,
    two_product,
    two_sum,
    where,
    with_sign,
)

FAST_LIMIT = {32: 2.0**16, 64: 2.0**30}
"""|x| below this takes the fast path; `pad` in the slow path follows from it."""

SIN_CORRECTION = -0.0212
"""-1 / (2 r**3 z**2) at r = pi/2, z = r**2."""


def window(position: Num, pad: int, count: int, places: int) -> list[Num]:
    """`count` words of bits of 1/pi from bit `position` on, where bit `pad` has weight 1.

    position // word size has `places` bits; each bit halves the list of candidate words, with one
    `where` per word that can still be wanted. A funnel shift does the rest of the position.
    """
    size = position.dtype.itemsize * 8
    log_size = size.bit_length() - 1
    length = table.INV_PI_BITS + pad + 1
    words = [
        position.const((table.INV_PI_FRACTION >> (length - size * (i + 1))) & ((1 << size) - 1))
        for i in range((1 << places) + count)
    ]
    for place in reversed(range(places)):
        step = 1 << place
        chosen = ((position >> (log_size + place)) & 1).ne(0)
        words = [where(chosen, words[i + step], words[i]) for i in range(step + count)]
    left = position & (size - 1)
    right = (size - 1) - left
    return [(words[i] << left) | ((words[i + 1] >> 1) >> right) for i in range(count)]


def multiply_high(a: Num, b: Num) -> Num:
    """The upper half of the product of two uint64, from products of 32-bit halves."""
    low = 0xFFFFFFFF
    a1, a0, b1, b0 = a >> 32, a & low, b >> 32, b & low
    middle = a1 * b0 + ((a0 * b0) >> 32)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> 32) + (other >> 32)


def turns32(a: Num, halves: int, offset: int) -> tuple[Num, Num, Num, Num]:
    """`turns` for float32: parity, whether f < 0, |f| in two parts."""
    bits = a.uint_bits
    pad = 7  # 2**16 has exponent -7 over its integer mantissa
    position = (bits >> 23) - (150 - pad) + (halves - 1)
    mantissa = ((bits & 0x7FFFFF) | 0x800000).cast(U64)
    w0, w1, w2 = (w.cast(U64) for w in window(position, pad, 3, 2))
    # Fixed point: 2**63 is 1, modulo 2.
    p = ((mantissa * w0) << 32) + mantissa * w1 + ((mantissa * w2) >> 32) + (offset << 62)
    odd = ((p ^ (p << 1)) >> 63).cast(U32)
    f = (p << 1).bitcast(I64)
    negative = f < 0
    magnitude = where(negative, 0 - f, f).bitcast(U64)

    def piece(value: Num, scale: float) -> Num:
        return value.cast(I32).cast(a.dtype) * scale

    top = piece(magnitude >> 40, 2.0**-24)
    middle = piece((magnitude >> 16) & 0xFFFFFF, 2.0**-48)
    hi, lo = fast_two_sum(top, middle)
    lo = lo + piece(magnitude & 0xFFFF, 2.0**-64)
    return odd, negative, hi, lo


def turns64(a: Num, halves: int, offset: int) -> tuple[Num, Num, Num, Num]:
    """`turns32` for float64, with 128 bits of the product."""
    bits = a.uint_bits
    pad = 22  # 2**30 has exponent -22 over its integer mantissa
    position = (bits >> 52) - (1075 - pad) + (halves - 1)
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    w0, w1, w2 = window(position, pad, 3, 4)
    middle = mantissa * w1
    low = middle + multiply_high(mantissa, w2)
    carry = (low < middle).cast(U64)
    high = mantissa * w0 + multiply_high(mantissa, w1) + carry + (offset << 62)
    odd = (high ^ (high << 1)) >> 63
    high = (high << 1) | (low >> 63)
    low = low << 1
    negative = high.bitcast(I64) < 0
    high = where(negative, ~high + low.eq(0).cast(U64), high)
    low = where(negative, 0 - low, low)

    def piece(value: Num, scale: float) -> Num:
        """52 bits to float64: below the bits of 2**52, which is then taken away."""
        return ((value | (1075 << 52)).bitcast(a.dtype) - 2.0**52) * scale

    top = piece(high >> 12, 2.0**-52)
    rest = piece(((high & 0xFFF) << 40) | (low >> 24), 2.0**-104)
    hi, lo = fast_two_sum(top, rest)
    return odd, negative, hi, lo + piece(low & 0xFFFFFF, 2.0**-128)


def turns(a: Num, halves: int, offset: int) -> tuple[Num, Num, Num]:
    """a * halves/pi + offset/2 = n + f, |f| <= 1/2: parity of n (an integer) and f in two parts.

    a is at least FAST_LIMIT; for infinities f is NaN. Exact up to about 2**-70 (2**-138).
    """
    odd, negative, hi, lo = (turns32 if a.format.bits == 32 else turns64)(a, halves, offset)
    sign = negative.cast(a.format.uint_dtype) << (a.format.bits - 1)
    nan = a - a
    return odd, with_sign(hi, sign) + nan, with_sign(lo, sign)


def times_constant(hi: Num, lo: Num, parts: tuple[float, ...]) -> Num:
    """(hi + lo) * (parts[0] + parts[1]), rounded about once."""
    return fma(hi, parts[0], fma(hi, parts[1], lo * parts[0]))


def slow_reduction(a: Num, offset: int) -> tuple[Num]:
    """`reduce_pi` for a >= FAST_LIMIT."""
    form = a.format
    odd, hi, lo = turns(a, 1, offset)
    r = times_constant(hi, lo, table.PI[form.bits])
    return (with_sign(r, odd << (form.bits - 1)),)


def slow_sine(a: Num) -> tuple[Num]:
    """The reduction of a."""
    return slow_reduction(a, 0)


def slow_cosine(a: Num) -> tuple[Num]:
    """The reduction of a + pi/2."""
    return slow_reduction(a, 1)


def slow_tangent(a: Num) -> tuple[Num, Num, Num]:
    """r in two parts and the parity of the eighth of the circle."""
    half_pi = table.HALF_PI[a.format.bits]
    odd, hi, lo = turns(a, 2, 0)
    product, error = two_product(hi, hi.const(half_pi[0]))
    rest = fma(hi, half_pi[1], fma(lo, half_pi[0], error))
    return (*fast_two_sum(product, rest), odd)


def reduce_pi(a: Num, offset: int) -> Num:
    """r with |r| <= pi/2 and sin(r) = sin(a + offset * pi/2), for a >= 0."""
    form = a.format
    pi = table.PI[form.bits]
    inverse = table.INV_PI[form.bits][0]
    if offset:
        t = fma(a, inverse, -0.5) + (form.magic + 1)
        n = (t - (form.magic + 1)) + 0.5
    else:
        t = fma(a, inverse, form.magic)
        n = t - form.magic
    r = fma(n, -pi[2], fma(n, -pi[1], fma(n, -pi[0], a)))
    r = with_sign(r, t.uint_bits << (form.bits - 1))
    slow = slow_cosine if offset else slow_sine
    (r,) = rare(a >= FAST_LIMIT[form.bits], slow, a, (r,))
    return r


def sin_reduced(r: Num) -> Num:
    """sin(r) for |r| <= pi/2.

    Near pi/2, where z is largest, its rounding error would cost 0.4 ulp. sin(r)/r changes by
    -z_lo / (2 r**3) there, and that is what a change of the second coefficient by SIN_CORRECTION *
    z_lo does; that coefficient is small enough to hold it. Near 0 the term vanishes as r**5.
    """
    c0, c1, *rest = table.SIN[r.format.bits]
    z = r * r
    z_lo = fma(r, r, -z)
    second = fma(z_lo, SIN_CORRECTION, c1)
    p = fma(z, fma(z, horner(z, rest), second), c0)
    return fma(r * z, p, r)


def sin(x: Num) -> Num:
    """Sine, right for every float; 16 instructions in float32 besides the rare path."""
    return with_sign(sin_reduced(reduce_pi(abs(x), 0)), sign_of(x))


def cos(x: Num) -> Num:
    """Cosine as sin(|x| + pi/2), the quarter turn being added before the reduction."""
    return sin_reduced(reduce_pi(abs(x), 1))


def tan(x: Num) -> Num:
    """t = tan(r) in two parts, |r| <= pi/4, and -1/t in odd eighths of the circle."""
    form = x.format
    half_pi = table.HALF_PI[form.bits]
    a = abs(x)
    t = fma(a, 2 * table.INV_PI[form.bits][0], form.magic)
    n = t - form.magic
    first = fma(n, -half_pi[0], a)
    product, error = two_product(n, n.const(half_pi[1]))
    second, lost = two_sum(first, -product)
    fast_hi, fast_lo = fast_two_sum(second, fma(n, -half_pi[2], lost - error))
    fast = (fast_hi, fast_lo, t.uint_bits)
    r, r_lo, parity = rare(a >= FAST_LIMIT[form.bits], slow_tangent, a, fast)
    z = r * r
    cubic = r * z * horner(z, table.TAN[form.bits])
    near = r + cubic
    y, y_lo = fast_two_sum(r, cubic + fma(near * r_lo, near, r_lo))
    q = 1.0 / y
    q = fma(q, fma(-q, y_lo, fma(-q, y, 1.0)), q)
    return with_sign(where((parity & 1).eq(0), y, -q), sign_of(x))


def asin_tail(s: Num, z: Num) -> Num:
    """asin(s) - s for z = s**2 <= 1/4."""
    return s * z * horner(z, table.ASIN[s.format.bits])


def asin(x: Num) -> Num:
    """Above 1/2: pi/2 - 2 asin(sqrt((1 - a)/2)); NaN outside [-1, 1] comes from the root."""
    hi, lo, _ = table.HALF_PI[x.format.bits]
    a = abs(x)
    large = a > 0.5
    z = where(large, fma(a, -0.5, 0.5), a * a)
    s = where(large, z.sqrt(), a)
    tail = asin_tail(s, z)
    left = fma(s, -2.0, hi)
    left_lo = fma(s, -2.0, hi - left)
    y = where(large, left + (left_lo - fma(tail, 2.0, -lo)), s + tail)
    return with_sign(y, sign_of(x))


def acos(x: Num) -> Num:
    """pi/2 - asin(x) up to 1/2, then 2 asin(sqrt((1 - a)/2)) or pi minus that."""
    half_pi, pi = table.HALF_PI[x.format.bits], table.PI[x.format.bits]
    a = abs(x)
    large = a > 0.5
    z = where(large, fma(a, -0.5, 0.5), a * a)
    s = where(large, z.sqrt(), x)
    tail = asin_tail(s, z)
    middle = half_pi[0] - (s - (half_pi[1] - tail))
    double = s + tail
    left = pi[0] - fma(s, 2.0, fma(tail, 2.0, -pi[1]))
    return where(large, where(x < 0, left, double + double), middle)


def atan_tail(q: Num) -> Num:
    """atan(q) - q for |q| <= 1."""
    z = q * q
    return q * z * horner(z, table.ATAN[q.format.bits])


def atan(x: Num) -> Num:
    """Above 1: pi/2 - atan(1/a)."""
    hi, lo, _ = table.HALF_PI[x.format.bits]
    a = abs(x)
    large = a > 1.0
    q = where(large, 1.0 / a, a)
    tail = atan_tail(q)
    y = where(large, hi - (q - (lo - tail)), q + tail)
    return with_sign(y, sign_of(x))


def atan2(y: Num, x: Num) -> Num:
    """The angle of (x, y), C99 special values: +-0 and infinities in both places included."""
    form = x.format
    half_pi, pi = table.HALF_PI[form.bits], table.PI[form.bits]
    ax, ay = abs(x), abs(y)
    steep = ax < ay
    small, big = where(steep, ax, ay), where(steep, ay, ax)
    q = where(small.eq(big), where(big.eq(0), big, 1.0), small / big)  # 0/0 and inf/inf
    tail = atan_tail(q)
    left = x.int_bits < 0
    base = where(steep, half_pi[0], where(left, x.const(pi[0]), 0.0))
    base_lo = where(steep, half_pi[1], where(left, x.const(pi[1]), 0.0))
    flip = (steep ^ left).cast(form.uint_dtype) << (form.bits - 1)
    angle = base + (with_sign(q, flip) + (with_sign(tail, flip) + base_lo))
    return with_sign(angle, sign_of(y))
