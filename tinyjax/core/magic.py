"""Integer division by a constant as multiplication and shifts, exact over a proven range.

`magic_divide(d, low, high, bits, rounding)` returns the shortest of a few straight-line programs
that gives floor(n / d) or trunc(n / d) for every n in [low, high]. With 2**s = d*m + e (0 <= e <
d),

    n*m + b, shifted right by s, is floor(n / d) for all n if b >= e*high/d and d*b - e*low < 2**s

because n*m/2**s = n/d - n*e/(d*2**s): the error stays below one part in d as long as s is large
enough. So one multiplication, at most one addition and one shift serve both signs; powers of two
need the shift alone. Where the product would not fit (64-bit dividends), the high half of a
double-width product is used on n xor sign(n), which is never negative; floor(n / d) = ~floor(~n
/ d).

Truncation is floor for n >= 0, and one more for the negative n that d does not divide: with the
multiplier rounded up, multiples of d round down to one less as well, and subtracting the sign
serves all.

Reference: Granlund and Montgomery, "Division by invariant integers using multiplication" (1994);
Robison, "N-bit unsigned division via N-bit multiply-add" (2005). Proved in the tests by
enumeration.
"""

from __future__ import annotations

from dataclasses import dataclass

Step = tuple[str, int]


@dataclass(frozen=True, slots=True)
class MagicDivision:
    """A straight-line program over one value x, which starts as the dividend n.

    Steps: ("mul", m) x*m, ("mulhi", m) the high half of the unsigned double-width product,
    ("add", b), ("shr", s) arithmetic and ("shru", s) logical shift right, ("flip", 0) x xor
    sign(n), ("sub_sign", 0) x - sign(n), ("bias", d - 1) x + (sign(n) & (d - 1)), ("neg", 0);
    sign(n) is -1 for negative n, else 0. `bits` is the width of the dividend, `product_bits`
    that in which the steps are exact (the dividend is sign-extended to it first).
    """

    divisor: int
    bits: int
    product_bits: int
    rounding: str
    steps: tuple[Step, ...]

    def __call__(self, n: int) -> int:
        """The quotient by the program; asserts that no step leaves `product_bits`."""
        sign = -1 if n < 0 else 0
        unsigned = any(kind == "mulhi" for kind, _ in self.steps)
        x = n
        for kind, k in self.steps:
            if kind == "mul":
                x = x * k
            elif kind == "mulhi":
                assert x >= 0 and 0 <= k < 1 << self.product_bits
                x = x * k >> self.product_bits
            elif kind == "add":
                x = x + k
            elif kind == "shr":
                x = x >> k
            elif kind == "shru":
                assert x >= 0
                x = x >> k
            elif kind == "flip":
                x = x ^ sign
            elif kind == "bias":
                x = x + (sign & k)
            elif kind == "sub_sign":
                x = x - sign
            else:
                x = -x
            limit = 1 << (self.product_bits - 1)
            top = 2 * limit if unsigned else limit
            assert -limit <= x < top, f"{self} leaves {self.product_bits} bits at {n}"
        return x


def magic_divide(
    d: int, low: int, high: int, bits: int = 64, rounding: str = "floor"
) -> MagicDivision:
    """The program for n / d, n in [low, high] of `bits` (32 or 64), rounded "floor" or "trunc".

    d > 0, or d != 0 for truncation (of a range that does not hold INT_MIN together with d = -1).
    Programs that stay in `bits` are preferred to those that need 64-bit products of 32-bit values.
    """
    limit = 1 << (bits - 1)
    if bits not in (32, 64) or rounding not in ("floor", "trunc"):
        raise ValueError(f"magic_divide takes bits 32 or 64, floor or trunc: {bits}, {rounding}")
    if not -limit <= low <= high < limit or d == 0 or (d < 0 and rounding == "floor"):
        raise ValueError(f"magic_divide cannot divide [{low}, {high}] by {d} in {bits} bits")
    if d < 0:
        inner = magic_divide(-d, low, high, bits, rounding)
        steps = (*inner.steps, ("neg", 0))
        return MagicDivision(d, bits, inner.product_bits, rounding, steps)
    if d == 1:
        return MagicDivision(d, bits, bits, rounding, ())
    mixed = rounding == "trunc" and low < 0
    if d & (d - 1) == 0:
        return _power_of_two(d, high, bits, rounding, mixed)
    for width in (32, 64) if bits == 32 else (64,):
        found = _signed_trunc(d, low, high, width) if mixed else _floor(d, low, high, width)
        if found is not None:
            return MagicDivision(d, bits, width, rounding, found)
    return MagicDivision(d, bits, bits, rounding, _high_half(d, low, high, bits, mixed))


def _power_of_two(d: int, high: int, bits: int, rounding: str, mixed: bool) -> MagicDivision:
    """A shift; truncation of negative dividends adds d - 1 first, which keeps them negative."""
    shift = ("shr", d.bit_length() - 1)
    steps: tuple[Step, ...] = (("bias", d - 1), shift) if mixed else (shift,)
    return MagicDivision(d, bits, bits, rounding, steps)


def _floor(d: int, low: int, high: int, width: int) -> tuple[Step, ...] | None:
    """(n*m + b) >> s with the least s that is exact; None if it does not fit `width`.

    Where n is never negative, rounding m up often does without b.
    """
    limit = 1 << (width - 1)
    for s in range(1, width) if low >= 0 else ():
        m = (1 << s) // d + 1
        if high * (m * d - (1 << s)) < 1 << s and high * m < limit:
            return ("mul", m), ("shr", s)
    for s in range(1, width):
        m, e = divmod(1 << s, d)
        b = max(0, -(-e * high // d))
        if d * b - e * low < 1 << s and -limit <= low * m and high * m + b < limit:
            add: tuple[Step, ...] = (("add", b),) if b else ()
            return ("mul", m), *add, ("shr", s)
    return None


def _signed_trunc(d: int, low: int, high: int, width: int) -> tuple[Step, ...] | None:
    """((n*m) >> s) - sign(n) with m = floor(2**s / d) + 1; None if it does not fit `width`."""
    limit = 1 << (width - 1)
    most = max(high, -low)
    for s in range(1, width):
        m = (1 << s) // d + 1
        if most * (m * d - (1 << s)) < 1 << s:
            return (("mul", m), ("shr", s), ("sub_sign", 0)) if most * m < limit else None
    return None


def _high_half(d: int, low: int, high: int, bits: int, mixed: bool) -> tuple[Step, ...]:
    """mulhi of a value that is not negative; powers of two in d are shifted out first.

    floor: x = n xor sign, q = x // d, result q xor sign. trunc: the same on |n|, that is with the
    sign taken off and given back by `flip` and `sub_sign`, as -n = ~n + 1; |INT_MIN| is unsigned.
    """
    twos = (d & -d).bit_length() - 1
    odd = d >> twos
    most = (max(high, -1 - low) + (1 if mixed else 0)) >> twos
    signed = low < 0
    for s in range(bits, 2 * bits):
        m = (1 << s) // odd + 1
        if most * (m * odd - (1 << s)) < 1 << s and m < 1 << bits:
            break
    else:
        raise AssertionError(f"no multiplier of {bits} bits divides by {d}")
    shift: tuple[Step, ...] = (("shru", twos),) if twos else ()
    after: tuple[Step, ...] = (("shru", s - bits),) if s > bits else ()
    core = (*shift, ("mulhi", m), *after)
    if mixed:
        return (("flip", 0), ("sub_sign", 0), *core, ("flip", 0), ("sub_sign", 0))
    return (("flip", 0), *core, ("flip", 0)) if signed else core
