"""What a decomposition needs from its target: `MathBuilder`, and `Num`, its values with operators.

A builder makes nodes (UOps, LLVM instructions, NumPy arrays) of float32, float64, int32, int64,
uint32, uint64 and bool, scalars or vectors alike. The decompositions are straight-line code: no
loop, no table lookup, no library call, and no branch except `rare`.

What they rely on, and every builder must keep:

* IEEE arithmetic, round to nearest even, subnormals kept, no re-association: `(x + c) - c` rounds.
* `fma` rounds once. Where it is emulated by mul and add, the 2 ulp bound is lost.
* A comparison with NaN is false, except `ne`. `where(c < x, c, x)` therefore keeps a NaN in x; it
  is one min or max instruction on x86.
* Integer add, sub, mul and shl wrap. `shrl` fills with zeros, `shra` with the sign. Shift counts
  are in range.
* `cast` between integers wraps or extends (by the source's sign); between integer and float only
  exactly representable values are cast; bool to integer gives 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Value = Any
"""A value of the builder's own kind."""

BOOL = np.dtype(np.bool_)
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
I32, I64 = np.dtype(np.int32), np.dtype(np.int64)
U32, U64 = np.dtype(np.uint32), np.dtype(np.uint64)


class MathBuilder(Protocol):
    """Operations on values that carry a dtype; both operands of one have the same dtype."""

    def dtype(self, x: Value) -> np.dtype:
        """The element dtype of a value."""

    def const(self, dtype: np.dtype, value: float | int) -> Value:
        """A constant: floats are rounded to the dtype, integers taken modulo 2**bits."""

    def add(self, a: Value, b: Value) -> Value:
        """a + b, float or integer."""

    def sub(self, a: Value, b: Value) -> Value:
        """a - b, float or integer."""

    def mul(self, a: Value, b: Value) -> Value:
        """a * b, float or integer."""

    def div(self, a: Value, b: Value) -> Value:
        """a / b, float only, correctly rounded."""

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, float only, one rounding."""

    def neg(self, x: Value) -> Value:
        """-x: flips the sign bit of a float, NaN included."""

    def abs(self, x: Value) -> Value:
        """|x|: clears the sign bit of a float, NaN included."""

    def sqrt(self, x: Value) -> Value:
        """Square root, correctly rounded."""

    def floor(self, x: Value) -> Value:
        """Largest integer not above x, as a float."""

    def lt(self, a: Value, b: Value) -> Value:
        """a < b, float or integer (by the dtype's sign)."""

    def le(self, a: Value, b: Value) -> Value:
        """a <= b."""

    def eq(self, a: Value, b: Value) -> Value:
        """a == b; -0 equals 0."""

    def ne(self, a: Value, b: Value) -> Value:
        """a != b; true if either is NaN."""

    def where(self, condition: Value, x: Value, y: Value) -> Value:
        """x where the bool condition holds, else y."""

    def and_(self, a: Value, b: Value) -> Value:
        """Bitwise and, on integers or bools."""

    def or_(self, a: Value, b: Value) -> Value:
        """Bitwise or, on integers or bools."""

    def xor(self, a: Value, b: Value) -> Value:
        """Bitwise exclusive or, on integers or bools."""

    def not_(self, x: Value) -> Value:
        """Bitwise complement, on integers or bools."""

    def shl(self, x: Value, count: Value) -> Value:
        """x << count."""

    def shrl(self, x: Value, count: Value) -> Value:
        """x >> count, zeros shifted in."""

    def shra(self, x: Value, count: Value) -> Value:
        """x >> count, copies of the sign bit shifted in."""

    def cast(self, x: Value, dtype: np.dtype) -> Value:
        """Convert the value (see the module's text for what is in range)."""

    def bitcast(self, x: Value, dtype: np.dtype) -> Value:
        """The same bits as another dtype of equal size."""

    def rare(
        self, condition: Value, slow: Slow, x: Value, fast: Sequence[Value]
    ) -> Sequence[Value]:
        """`[where(condition, s, f) for s, f in zip(slow(x), fast)]`.

        The condition is seldom true and `slow` is long (reduction of huge arguments): a builder may
        call it out of line, behind a branch that is taken if the condition holds in any lane. It is
        a function of the module's top level, which its name tells from others.
        """


@dataclass(frozen=True, slots=True)
class Format:
    """The layout of a float dtype, with the integer dtypes of its size."""

    bits: int
    float_dtype: np.dtype
    int_dtype: np.dtype
    uint_dtype: np.dtype
    mantissa: int  # explicit bits
    bias: int

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.bits - 1)

    @property
    def magic(self) -> float:
        """1.5 * 2**mantissa: adding it rounds to an integer, which lies in the low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def smallest_normal(self) -> float:
        """Below this, values are subnormal."""
        return 2.0 ** (1 - self.bias)


FORMATS = {
    F32: Format(32, F32, I32, U32, 23, 127),
    F64: Format(64, F64, I64, U64, 52, 1023),
}

Scalar = float | int


class Num:
    """A builder's value with operators; Python numbers become constants of its dtype.

    `==` is identity as for any object: equality of values is `eq` and `ne`.
    """

    __slots__ = ("dtype", "m", "raw")

    def __init__(self, m: MathBuilder, raw: Value, dtype: np.dtype) -> None:
        self.m, self.raw, self.dtype = m, raw, dtype

    @property
    def format(self) -> Format:
        """Layout of this float value."""
        return FORMATS[self.dtype]

    def like(self, value: Num | Scalar) -> Value:
        """The raw value of an operand, made a constant of this dtype if it is a number."""
        if isinstance(value, Num):
            assert value.dtype == self.dtype, f"{value.dtype} with {self.dtype}"
            return value.raw
        return self.m.const(self.dtype, value)

    def const(self, value: Scalar) -> Num:
        """A constant of this dtype."""
        return Num(self.m, self.m.const(self.dtype, value), self.dtype)

    def _made(self, raw: Value) -> Num:
        return Num(self.m, raw, self.dtype)

    def _bool(self, raw: Value) -> Num:
        return Num(self.m, raw, BOOL)

    def __add__(self, other: Num | Scalar) -> Num:
        return self._made(self.m.add(self.raw, self.like(other)))

    def __radd__(self, other: Scalar) -> Num:
        return self._made(self.m.add(self.like(other), self.raw))

    def __sub__(self, other: Num | Scalar) -> Num:
        return self._made(self.m.sub(self.raw, self.like(other)))

    def __rsub__(self, other: Scalar) -> Num:
        return self._made(self.m.sub(self.like(other), self.raw))

    def __mul__(self, other: Num | Scalar) -> Num:
        return self._made(self.m.mul(self.raw, self.like(other)))

    def __rmul__(self, other: Scalar) -> Num:
        return self._made(self.m.mul(self.like(other), self.raw))

    def __truediv__(self, other: Num | Scalar) -> Num:
        return self._made(self.m.div(self.raw, self.like(other)))

    def __rtruediv__(self, other: Scalar) -> Num:
        return self._made(self.m.div(self.like(other), self.raw))

    def __neg__(self) -> Num:
        return self._made(self.m.neg(self.raw))

    def __abs__(self) -> Num:
        return self._made(self.m.abs(self.raw))

    def __lt__(self, other: Num | Scalar) -> Num:
        return self._bool(self.m.lt(self.raw, self.like(other)))

    def __le__(self, other: Num | Scalar) -> Num:
        return self._bool(self.m.le(self.raw, self.like(other)))

    def __gt__(self, other: Num | Scalar) -> Num:
        return self._bool(self.m.lt(self.like(other), self.raw))

    def __ge__(self, other: Num | Scalar) -> Num:
        return self._bool(self.m.le(self.like(other), self.raw))

    def eq(self, other: Num | Scalar) -> Num:
        """Where the two are equal."""
        return self._bool(self.m.eq(self.raw, self.like(other)))

    def ne(self, other: Num | Scalar) -> Num:
        """Where they differ; `x.ne(x)` is where x is NaN."""
        return self._bool(self.m.ne(self.raw, self.like(other)))

    def __and__(self, other: Num | Scalar) -> Num:
        return self._made(self.m.and_(self.raw, self.like(other)))

    def __or__(self, other: Num | Scalar) -> Num:
        return self._made(self.m.or_(self.raw, self.like(other)))

    def __xor__(self, other: Num | Scalar) -> Num:
        return self._made(self.m.xor(self.raw, self.like(other)))

    def __invert__(self) -> Num:
        return self._made(self.m.not_(self.raw))

    def __lshift__(self, count: Num | Scalar) -> Num:
        return self._made(self.m.shl(self.raw, self.like(count)))

    def __rshift__(self, count: Num | Scalar) -> Num:
        """Arithmetic for signed dtypes, logical for unsigned ones."""
        shift = self.m.shra if self.dtype.kind == "i" else self.m.shrl
        return self._made(shift(self.raw, self.like(count)))

    def sqrt(self) -> Num:
        """Square root."""
        return self._made(self.m.sqrt(self.raw))

    def floor(self) -> Num:
        """Largest integer not above."""
        return self._made(self.m.floor(self.raw))

    def cast(self, dtype: np.dtype) -> Num:
        """Converted to another dtype."""
        return Num(self.m, self.m.cast(self.raw, dtype), dtype)

    def bitcast(self, dtype: np.dtype) -> Num:
        """The same bits read as another dtype."""
        return Num(self.m, self.m.bitcast(self.raw, dtype), dtype)

    @property
    def int_bits(self) -> Num:
        """The bits of a float as a signed integer."""
        return self.bitcast(self.format.int_dtype)

    @property
    def uint_bits(self) -> Num:
        """The bits of a float as an unsigned integer."""
        return self.bitcast(self.format.uint_dtype)


def fma(a: Num, b: Num | Scalar, c: Num | Scalar) -> Num:
    """a * b + c, rounded once."""
    return a._made(a.m.fma(a.raw, a.like(b), a.like(c)))


def where(condition: Num, x: Num | Scalar, y: Num | Scalar) -> Num:
    """x where the condition holds, else y; at least one of them is a Num."""
    kind = x if isinstance(x, Num) else y
    assert isinstance(kind, Num)
    return kind._made(kind.m.where(condition.raw, kind.like(x), kind.like(y)))


Slow = Callable[[Num], tuple[Num, ...]]


def rare(condition: Num, slow: Slow, x: Num, fast: tuple[Num, ...]) -> list[Num]:
    """`where` per result of slow(x) for a condition that seldom holds; see `MathBuilder.rare`."""
    m = condition.m
    raw = m.rare(condition.raw, slow, x.raw, [f.raw for f in fast])
    return [Num(m, r, f.dtype) for r, f in zip(raw, fast, strict=True)]


def at_most(x: Num, high: float) -> Num:
    """min(x, high); NaN stays."""
    return where(high < x, high, x)


def at_least(x: Num, low: float) -> Num:
    """max(x, low); NaN stays."""
    return where(x < low, low, x)


def horner(x: Num, coefficients: Sequence[float]) -> Num:
    """c[0] + c[1]*x + ..., one fma per degree."""
    total: Num | float = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = fma(x, total, c)
    assert isinstance(total, Num)
    return total


def sign_of(x: Num) -> Num:
    """The sign bit of x in place, as an unsigned integer."""
    return x.uint_bits & x.format.sign


def with_sign(magnitude: Num, sign: Num) -> Num:
    """The magnitude (sign bit clear) with its sign flipped where `sign` has the sign bit set."""
    return (magnitude.uint_bits ^ sign).bitcast(magnitude.dtype)


def two_sum(a: Num, b: Num) -> tuple[Num, Num]:
    """s, e with s = round(a + b) and s + e = a + b exactly (Knuth)."""
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def fast_two_sum(a: Num, b: Num) -> tuple[Num, Num]:
    """`two_sum` for |a| >= |b| or a = 0 (Dekker)."""
    s = a + b
    return s, b - (s - a)


def two_product(a: Num, b: Num) -> tuple[Num, Num]:
    """p, e with p = round(a * b) and p + e = a * b exactly, barring underflow of e."""
    p = a * b
    return p, fma(a, b, -p)
