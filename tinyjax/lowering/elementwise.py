"""Elementwise ops on registers: one stage-2 op -> LLVM instructions, for scalars and vectors alike.

`Elementwise.apply(op, arg, dtype, operands)` is total: guarded division, clamped shifts, saturating
conversions, NaN-propagating max and min, no fast-math, no poison, no trap, no library call except
`fmod` for REM of floats. Narrow floats compute in float32 and round once per op; complex ops work
on pairs; transcendentals come from the decompositions of `lowering/math.py`.

Constant operands are recognised by their text (irtext folds them), so dividing by a literal needs
no guard.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

from tinyjax.core import dtypes
from tinyjax.core.ops import COMPARISONS, Op
from tinyjax.lowering import irtext, narrow
from tinyjax.lowering import math as decompositions
from tinyjax.lowering.irtext import F32, F64, I1, I8, I32, I64, IRBuilder, Value, vec
from tinyjax.lowering.registers import (
    BOOL,
    FLOAT32,
    FLOAT64,
    PREDICATES,
    UNSIGNED_OF,
    Register,
    RegisterBuilder,
    is_narrow,
    kind_of,
    register_type,
)
from tinyjax.lowering.target import Target


class Elementwise:
    """Emits ops on registers of one lane count (0: scalars) through one IR builder.

    A narrow float gets its second form where that is asked for first, and is then in `converted`:
    code that this place does not dominate must not use the form (`forget`).
    """

    def __init__(self, b: IRBuilder, target: Target, lanes: int = 0) -> None:
        self.b, self.target, self.lanes = b, target, lanes
        self.converted: list[tuple[Register, str]] = []
        self.math = RegisterBuilder(b, lanes)

    def of_lanes(self, lanes: int) -> Elementwise:
        """The same for another lane count."""
        made = Elementwise(self.b, self.target, lanes)
        made.converted = self.converted
        return made

    # --- forms of a register ---------------------------------------------------------------------

    def forget(self, count: int) -> None:
        """Take away the second forms made since `converted` had this length."""
        while len(self.converted) > count:
            register, form = self.converted.pop()
            setattr(register, form, None)

    def raw(self, x: Register) -> Value:
        """Storage bits of a narrow float; the value itself of anything else that has one part."""
        if len(x.parts) == 1 and x.other is not None:
            x.value = narrow.narrow(self.b, self.target, x.dtype, x.other)
            self.converted.append((x, "value"))
        return x.value

    def wide(self, x: Register) -> Value:
        """A narrow float as float32."""
        if x.other is None:
            assert x.value is not None
            x.other = narrow.widen(self.b, self.target, x.dtype, x.value)
            self.converted.append((x, "other"))
        return x.other

    def constant(self, dtype: Any, value: Any) -> Register:
        """A NumPy scalar as a register."""
        if dtypes.is_complex(dtype):
            kind = vec(register_type(dtype), self.lanes)
            parts = [_exact(kind, p) for p in (value.real, value.imag)]
            return Register(dtype, *parts)
        if is_narrow(dtype):
            kind = vec(register_type(dtype), self.lanes)
            bits = int(value.view(f"u{dtype.itemsize}"))
            wide = _exact(vec(F32, self.lanes), value.astype("f4"))
            return Register(dtype, irtext.const(kind, bits), wide)
        kind = vec(register_type(dtype), self.lanes)
        if dtypes.is_float(dtype):
            return Register(dtype, _exact(kind, value))
        return Register(dtype, irtext.const(kind, int(value)))

    def splat(self, x: Register) -> Register:
        """A scalar register in every lane."""
        lanes = self.lanes
        parts = [None if v is None else self.b.splat(v, lanes) for v in (x.value, x.other)]
        return Register(x.dtype, *parts)

    # --- memory ----------------------------------------------------------------------------------

    def from_storage(self, dtype: Any, stored: Value) -> Register:
        """What a load of the storage type gives, as a register (not for complex)."""
        if dtype == BOOL:
            return Register(dtype, self.b.cmp("ne", stored, 0))
        if dtypes.is_integer(dtype):  # the upper bits of an int4 byte mean nothing
            stored = self.normalise(dtype, stored)
        return Register(dtype, stored)

    def to_storage(self, x: Register) -> Value:
        """The value a store writes (not for complex)."""
        if x.dtype == BOOL:
            assert x.value is not None
            return self.b.cast(x.value, I8, signed=False)
        bits = self.raw(x)
        if dtypes.is_integer(x.dtype) and dtypes.bit_width(x.dtype) < bits.type.bits:
            return self.b.and_(bits, (1 << dtypes.bit_width(x.dtype)) - 1)
        return bits

    # --- ops -------------------------------------------------------------------------------------

    def apply(self, op: Op, arg: Any, dtype: Any, args: Sequence[Register]) -> Register:
        """One elementwise op; `dtype` is the result's."""
        if op is Op.CAST:
            return self.cast(args[0], dtype)
        if op is Op.BITCAST:
            return self.bitcast(args[0], dtype)
        if op is Op.WHERE:
            return self.where(*args)
        if op is Op.COMPLEX:
            return Register(dtype, args[0].value, args[1].value)
        source = args[0].dtype
        if dtypes.is_complex(source):
            return self.complex_op(op, arg, dtype, args)
        if is_narrow(source):
            return self.narrow_op(op, arg, dtype, args)
        if op in COMPARISONS:
            return self.compare(op, args[0], args[1])
        if source == BOOL:
            return self.bool_op(op, args)
        if dtypes.is_integer(source):
            return self.integer_op(op, dtype, args)
        return self.float_op(op, arg, dtype, args)

    def compare(self, op: Op, x: Register, y: Register) -> Register:
        """Comparisons of anything but complex; NaN is unequal to everything."""
        predicate = PREDICATES[COMPARE_NAMES[op]][kind_of(x.dtype)]
        assert x.value is not None and y.value is not None
        return Register(BOOL, self.b.cmp(predicate, x.value, y.value))

    def where(self, condition: Register, x: Register, y: Register) -> Register:
        """Selects the form both operands already have."""
        b, c = self.b, condition.value
        assert c is not None
        if is_narrow(x.dtype):
            if None in (x.value, y.value):
                return Register(x.dtype, None, b.select(c, self.wide(x), self.wide(y)))
            return Register(x.dtype, b.select(c, x.value, y.value))
        parts = [b.select(c, v, w) for v, w in zip(x.parts, y.parts, strict=True)]
        return Register(x.dtype, *parts)

    # --- bools and integers ----------------------------------------------------------------------

    def bool_op(self, op: Op, args: Sequence[Register]) -> Register:
        """add and max are or, mul and min are and."""
        b, values = self.b, [a.value for a in args]
        if op is Op.IS_FINITE:
            return Register(BOOL, irtext.const(vec(I1, self.lanes), True))
        if op is Op.NOT:
            return Register(BOOL, b.not_(values[0]))
        if op in (Op.OR, Op.ADD, Op.MAX):
            return Register(BOOL, b.or_(*values))
        if op in (Op.AND, Op.MUL, Op.MIN):
            return Register(BOOL, b.and_(*values))
        assert op is Op.XOR, op
        return Register(BOOL, b.xor(*values))

    def normalise(self, dtype: Any, x: Value) -> Value:
        """Bring an int2/int4 result back into its own range."""
        excess = x.type.bits - dtypes.bit_width(dtype)
        if excess <= 0 or dtype == BOOL:
            return x
        if dtypes.is_signed(dtype):
            return self.b.ashr(self.b.shl(x, excess), excess)
        return self.b.and_(x, (1 << dtypes.bit_width(dtype)) - 1)

    def integer_op(self, op: Op, dtype: Any, args: Sequence[Register]) -> Register:
        """Wrapping arithmetic; every op is total."""
        source = args[0].dtype
        values = [a.value for a in args]
        if op is Op.IS_FINITE:
            return Register(BOOL, irtext.const(vec(I1, self.lanes), True))
        if op in (Op.REAL, Op.CONJ):
            return args[0]
        if op is Op.IMAG:
            return self.constant(dtype, 0)
        made = INTEGER[op](self.b, dtypes.is_signed(source), dtypes.bit_width(source), *values)
        return Register(dtype, self.normalise(dtype, made))

    # --- floats ----------------------------------------------------------------------------------

    def narrow_op(self, op: Op, arg: Any, dtype: Any, args: Sequence[Register]) -> Register:
        """Through float32, rounded once; sign ops and NEXTAFTER work on the stored bits."""
        source = args[0].dtype
        if op in (Op.REAL, Op.CONJ):
            return args[0]
        if op is Op.NEXTAFTER:
            return self.next_after(args[0], args[1], narrow.layout(source))
        if op is Op.REDUCE_PRECISION and source.itemsize == 2:
            of = narrow.layout(source)
            fields = (15 - of.mantissa, of.mantissa)
            return Register(source, self.rounded_bits(self.raw(args[0]), fields, arg))
        wide = [Register(FLOAT32, self.wide(a)) for a in args]
        if op in COMPARISONS:
            return self.compare(op, wide[0], wide[1])
        if op is Op.IS_FINITE:
            return self.float_op(op, arg, BOOL, wide)
        result = self.float_op(op, arg, FLOAT32, wide).value
        assert result is not None
        if op in (Op.MAX, Op.MIN):  # exact: no rounding needed
            return Register(source, None, result)
        # Rounding is part of the op: later arithmetic must see the rounded value.
        return Register(source, narrow.narrow(self.b, self.target, source, result))

    def float_op(self, op: Op, arg: Any, dtype: Any, args: Sequence[Register]) -> Register:
        """An op on float32 or float64 registers."""
        simple = FLOAT.get(op)
        if simple is not None:
            return Register(dtype, simple(self.b, *(a.value for a in args)))
        if op in (Op.REAL, Op.CONJ):
            return args[0]
        if op is Op.IMAG:
            return self.constant(dtype, dtype.type(0))
        if op is Op.REDUCE_PRECISION:
            return self.reduce_precision(args[0], *arg)
        if op is Op.NEXTAFTER:
            return self.next_after(args[0], args[1], None)
        made: Register = decompositions.decompose(self.math, op, args)
        return made

    def reduce_precision(self, x: Register, exponent_bits: int, mantissa_bits: int) -> Register:
        """REDUCE_PRECISION of a float32 or float64."""
        word, fields = (I64, (11, 52)) if x.dtype == FLOAT64 else (I32, (8, 23))
        bits = self.b.bitcast(x.value, vec(word, self.lanes))
        made = self.rounded_bits(bits, fields, (exponent_bits, mantissa_bits))
        return Register(x.dtype, self.b.bitcast(made, x.value.type))

    def rounded_bits(self, bits: Value, own: tuple[int, int], to: tuple[int, int]) -> Value:
        """Round a float of `own` (exponent, mantissa) widths, given as its bits, to other widths.

        Ties to even, overflow to infinity, no subnormal results if the exponent becomes narrower.
        """
        b = self.b
        own_exponent, own_mantissa = own
        exponent_bits, mantissa_bits = to
        top = 1 << (bits.type.bits - 1)
        infinity = ((1 << own_exponent) - 1) << own_mantissa
        magnitude = start = b.and_(bits, top - 1)
        drop = own_mantissa - mantissa_bits
        if drop > 0:
            odd = b.and_(b.lshr(magnitude, drop), 1)
            magnitude = b.add(b.add(magnitude, (1 << (drop - 1)) - 1), odd)
            magnitude = b.and_(magnitude, -(1 << drop))
        if exponent_bits < own_exponent:
            bias, own_bias = (1 << (exponent_bits - 1)) - 1, (1 << (own_exponent - 1)) - 1
            first_infinite = (own_bias + bias + 1) << own_mantissa
            first_normal = (own_bias - bias + 1) << own_mantissa
            over = b.cmp("uge", magnitude, first_infinite)
            under = b.cmp("ult", magnitude, first_normal)
            magnitude = b.select(over, infinity, b.select(under, 0, magnitude))
        result = b.or_(magnitude, b.and_(bits, -top))
        return b.select(b.cmp("uge", start, infinity), bits, result)

    def next_after(self, x: Register, y: Register, of: narrow.Layout | None) -> Register:
        """One step in the order of bit patterns; NaN if either is, y if they are equal."""
        b, dtype = self.b, x.dtype
        if of is None:
            unsigned = UNSIGNED_OF[dtype.itemsize * 8]
            word = vec(register_type(unsigned), self.lanes)
            assert x.value is not None and y.value is not None
            fx, fy = x.value, y.value
            bx, by = b.bitcast(fx, word), b.bitcast(fy, word)
            sign, nan = 1 << (word.bits - 1), None
        else:
            fx, fy, bx, by = self.wide(x), self.wide(y), self.raw(x), self.raw(y)
            sign, nan = of.sign, narrow_nan(of)
        if of is not None and of.specials == "scale":  # codes rise with the values
            step = b.select(b.cmp("olt", fx, fy), b.add(bx, 1), b.sub(bx, 1))
            step = b.select(b.cmp("oeq", fx, fy), by, step)
            return Register(dtype, b.select(b.cmp("uno", fx, fy), 255, step))
        magnitude = b.and_(bx, sign - 1)
        zero = b.cmp("oeq", fx, 0.0)
        smallest = b.or_(b.and_(by, sign), 1)
        # Away from zero when y is further on x's own side.
        negative = b.cmp("ne", b.and_(bx, sign), 0)
        up = b.cmp("olt", fx, fy)
        away = b.xor(negative, up)
        step = b.select(away, b.add(bx, 1), b.sub(bx, 1))
        if of is not None and of.specials == "fnuz":
            # Crossing to zero from below gives +0, the only zero there is.
            step = b.select(b.cmp("eq", step, sign), 0, step)
        if of is not None and of.specials == "none":
            # No code beyond the largest: stay.
            stuck = b.and_(b.cmp("eq", magnitude, sign - 1), away)
            step = b.select(stuck, bx, step)
        result = b.select(b.cmp("oeq", fx, fy), by, b.select(zero, smallest, step))
        unordered = b.cmp("uno", fx, fy)
        if of is None:
            made = b.select(unordered, b.add(fx, fy), b.bitcast(result, fx.type))
            return Register(dtype, made)
        return Register(dtype, b.select(unordered, nan, result) if nan is not None else result)

    # --- conversions -----------------------------------------------------------------------------

    def cast(self, x: Register, dtype: Any) -> Register:
        """CAST: exact or rounded once; to integers saturating, NaN -> 0; to bool it is x != 0."""
        source, b = x.dtype, self.b
        if source == dtype:
            return x
        if dtypes.is_complex(source):
            if dtypes.is_complex(dtype):
                kind = register_type(dtype)
                return Register(dtype, *(b.cast(p, kind) for p in x.parts))
            part = FLOAT32 if source.itemsize == 8 else FLOAT64
            return self.cast(Register(part, x.value), dtype)
        if dtypes.is_complex(dtype):
            part = FLOAT32 if dtype.itemsize == 8 else FLOAT64
            real = self.cast(x, part).value
            assert real is not None
            return Register(dtype, real, irtext.zero(real.type))
        if is_narrow(source):
            return self.cast(Register(FLOAT32, self.wide(x)), dtype)
        value = x.value
        assert value is not None
        if dtype == BOOL:
            return Register(BOOL, b.cast(value, I1))
        if is_narrow(dtype):
            return self._to_narrow(source, value, dtype)
        kind = register_type(dtype)
        if dtypes.is_float(source):
            if dtypes.is_float(dtype):
                return Register(dtype, b.cast(value, kind))
            return Register(dtype, self._to_integer(value, dtype))
        if dtypes.is_float(dtype):
            return Register(dtype, b.cast(value, kind, signed=dtypes.is_signed(source)))
        made = b.cast(value, kind, signed=dtypes.is_signed(source))
        return Register(dtype, self.normalise(dtype, made))

    def _to_narrow(self, source: Any, value: Value, dtype: Any) -> Register:
        """Everything reaches a narrow float through float32."""
        single = self.b.cast(value, F32, signed=dtypes.is_signed(source))
        return Register(dtype, narrow.narrow(self.b, self.target, dtype, single))

    def _to_integer(self, value: Value, dtype: Any) -> Value:
        """Saturating; small integers clamp in i32, which is cheaper than LLVM's narrow forms."""
        b, signed, width = self.b, dtypes.is_signed(dtype), dtypes.bit_width(dtype)
        kind = register_type(dtype)
        if width >= 32:
            return b.cast(value, kind, signed=signed)
        wide = b.cast(value, I32, signed=True)
        low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, 2**width - 1)
        clamped = b.smin(b.smax(wide, low), high)
        return b.cast(clamped, kind)

    def bitcast(self, x: Register, dtype: Any) -> Register:
        """The same bits."""
        if x.dtype == dtype:
            return x
        bits = self.to_storage(x)
        kind = register_type(dtype)
        if dtype == BOOL:
            return self.from_storage(dtype, bits)
        if not is_narrow(dtype):
            bits = self.b.bitcast(bits, vec(kind, self.lanes))
        return Register(dtype, self.normalise(dtype, bits) if dtypes.is_integer(dtype) else bits)

    # --- complex ---------------------------------------------------------------------------------

    def complex_op(self, op: Op, arg: Any, dtype: Any, args: Sequence[Register]) -> Register:
        """On pairs; multiplication is the plain formula, the rest by `lowering/math.py`."""
        b = self.b
        source = args[0].dtype
        part = FLOAT32 if source.itemsize == 8 else FLOAT64
        (re, im), *rest = (a.parts for a in args)
        if op is Op.REAL:
            return Register(part, re)
        if op is Op.IMAG:
            return Register(part, im)
        if op is Op.CONJ:
            return Register(dtype, re, b.neg(im))
        if op is Op.REDUCE_PRECISION:
            return Register(dtype, *(self.reduce_precision(Register(part, p), *arg).value
                                     for p in (re, im)))  # fmt: skip
        if op is Op.NEG:
            return Register(dtype, b.neg(re), b.neg(im))
        if op is Op.IS_FINITE:
            finite = [FLOAT[Op.IS_FINITE](b, p) for p in (re, im)]
            return Register(BOOL, b.and_(*finite))
        if rest:
            re2, im2 = rest[0]
            if op in (Op.ADD, Op.SUB):
                f = b.add if op is Op.ADD else b.sub
                return Register(dtype, f(re, re2), f(im, im2))
            if op is Op.MUL:
                real = b.sub(b.mul(re, re2), b.mul(im, im2))
                return Register(dtype, real, b.add(b.mul(re, im2), b.mul(im, re2)))
            if op is Op.CMPEQ:
                return Register(BOOL, b.and_(b.cmp("oeq", re, re2), b.cmp("oeq", im, im2)))
            if op is Op.CMPNE:
                return Register(BOOL, b.or_(b.cmp("une", re, re2), b.cmp("une", im, im2)))
            if op in (Op.CMPLT, Op.CMPLE, Op.MAX, Op.MIN):
                return self._lexicographic(op, args[0], args[1])
        pairs = [(Register(part, a.value), Register(part, a.other)) for a in args]
        made = decompositions.decompose_complex(self.math, op, pairs)
        first: Register = made[0]
        if dtypes.is_complex(dtype):
            return Register(dtype, first.value, made[1].value)
        return first

    def _lexicographic(self, op: Op, x: Register, y: Register) -> Register:
        b = self.b
        (re, im), (re2, im2) = x.parts, y.parts

        def below(last: str, r: Value, i: Value, r2: Value, i2: Value) -> Value:
            ties = b.and_(b.cmp("oeq", r, r2), b.cmp(last, i, i2))
            return b.or_(b.cmp("olt", r, r2), ties)

        if op in (Op.CMPLT, Op.CMPLE):
            return Register(BOOL, below("olt" if op is Op.CMPLT else "ole", re, im, re2, im2))
        # y where they are unordered
        first = below("olt", re2, im2, re, im) if op is Op.MAX else below("olt", re, im, re2, im2)
        return self.where(Register(BOOL, first), x, y)


def _exact(kind: irtext.Type, value: Any) -> Value:
    """A float constant with the bits of a NumPy scalar."""
    return irtext.const_bits(kind, int(value.view(f"u{value.dtype.itemsize}")))


def narrow_nan(of: narrow.Layout) -> int | None:
    """A NaN code of a narrow format."""
    if of.specials == "ieee":
        return of.infinity | 1 << (of.mantissa - 1)
    if of.specials == "none":
        return None
    return of.infinity if of.specials == "fn" else of.sign


COMPARE_NAMES = {Op.CMPEQ: "eq", Op.CMPNE: "ne", Op.CMPLT: "lt", Op.CMPLE: "le"}


# --- integer tables: f(b, signed, width, *values) ------------------------------------------------


def known(x: Value) -> int | None:
    """The number a constant holds in every lane."""
    if x.const is not None:
        return x.const
    if x.text == "zeroinitializer":
        return 0
    if x.text.startswith("splat (i"):
        return int(x.text.rsplit(" ", 1)[1].rstrip(")"))
    return None


def _guarded(b: IRBuilder, signed: bool, x: Value, y: Value) -> tuple[Value, Value | None]:
    """A divisor that cannot trap, and where it replaced zero (None: never)."""
    divisor = known(y)
    if divisor is not None and divisor not in (0, -1):
        return y, None
    zero = b.cmp("eq", y, 0)
    bad = zero
    if signed:
        least = b.cmp("eq", x, -(1 << (x.type.bits - 1)))
        bad = b.or_(zero, b.and_(least, b.cmp("eq", y, -1)))
    return b.select(bad, 1, y), zero


def _divide(b: IRBuilder, signed: bool, width: int, x: Value, y: Value) -> Value:
    safe, zero = _guarded(b, signed, x, y)
    quotient = b.sdiv(x, safe) if signed else b.udiv(x, safe)
    return quotient if zero is None else b.select(zero, -1, quotient)


def _remainder(b: IRBuilder, signed: bool, width: int, x: Value, y: Value) -> Value:
    safe, zero = _guarded(b, signed, x, y)
    rest = b.srem(x, safe) if signed else b.urem(x, safe)
    return rest if zero is None else b.select(zero, x, rest)


def _floor_divide(b: IRBuilder, signed: bool, width: int, x: Value, y: Value) -> Value:
    divisor = known(y)
    if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
        return (
            b.ashr(x, divisor.bit_length() - 1) if signed else b.lshr(x, divisor.bit_length() - 1)
        )
    if not signed:
        return b.udiv(x, y)
    quotient = b.sdiv(x, y)
    rest = b.sub(x, b.mul(quotient, y))
    return b.add(quotient, b.cast(b.cmp("slt", rest, 0), x.type.scalar))


def _floor_modulo(b: IRBuilder, signed: bool, width: int, x: Value, y: Value) -> Value:
    divisor = known(y)
    if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
        return b.and_(x, divisor - 1)
    if not signed:
        return b.urem(x, y)
    rest = b.srem(x, y)
    return b.add(rest, b.select(b.cmp("slt", rest, 0), y, irtext.zero(y.type)))


def _sign(b: IRBuilder, signed: bool, width: int, x: Value) -> Value:
    if not signed:
        return b.cast(b.cmp("ne", x, 0), x.type.scalar, signed=False)
    return b.smax(b.smin(x, 1), -1)


def _shift(name: str) -> Callable[..., Value]:
    def emit(b: IRBuilder, signed: bool, width: int, x: Value, y: Value) -> Value:
        count = known(y)
        if name == "shra":  # the top bit is copied, of unsigned values as well
            excess = x.type.bits - width
            if excess and not signed:
                x = b.ashr(b.shl(x, excess), excess)
            if count is None:
                return b.ashr(x, b.umin(y, width - 1))
            return b.ashr(x, count if 0 <= count < width else width - 1)
        if count is not None and not 0 <= count < width:
            return irtext.zero(x.type)
        if name == "shrl" and width < x.type.bits:
            x = b.and_(x, (1 << width) - 1)
        f = b.shl if name == "shl" else b.lshr
        if count is not None:
            return f(x, y)
        fits = b.cmp("ult", y, width)
        return b.select(fits, f(x, b.select(fits, y, 0)), 0)

    return emit


def _clz(b: IRBuilder, signed: bool, width: int, x: Value) -> Value:
    excess = x.type.bits - width
    return b.sub(b.ctlz(b.and_(x, (1 << width) - 1) if excess else x), excess)


def _popcount(b: IRBuilder, signed: bool, width: int, x: Value) -> Value:
    return b.ctpop(b.and_(x, (1 << width) - 1) if width < x.type.bits else x)


INTEGER: dict[Op, Callable[..., Value]] = {
    Op.NEG: lambda b, s, w, x: b.neg(x),
    Op.ABS: lambda b, s, w, x: b.iabs(x) if s else x,
    Op.SIGN: _sign,
    Op.NOT: lambda b, s, w, x: b.not_(x),
    Op.POPCOUNT: _popcount,
    Op.CLZ: _clz,
    Op.ADD: lambda b, s, w, x, y: b.add(x, y),
    Op.SUB: lambda b, s, w, x, y: b.sub(x, y),
    Op.MUL: lambda b, s, w, x, y: b.mul(x, y),
    Op.DIV: _divide,
    Op.REM: _remainder,
    Op.IDIV: _floor_divide,
    Op.MOD: _floor_modulo,
    Op.MAX: lambda b, s, w, x, y: b.smax(x, y) if s else b.umax(x, y),
    Op.MIN: lambda b, s, w, x, y: b.smin(x, y) if s else b.umin(x, y),
    Op.AND: lambda b, s, w, x, y: b.and_(x, y),
    Op.OR: lambda b, s, w, x, y: b.or_(x, y),
    Op.XOR: lambda b, s, w, x, y: b.xor(x, y),
    Op.SHL: _shift("shl"),
    Op.SHRL: _shift("shrl"),
    Op.SHRA: _shift("shra"),
}


# --- float table: f(b, *values) ------------------------------------------------------------------


def _float_sign(b: IRBuilder, x: Value) -> Value:
    """±1 with the sign of x; zeros and NaN are kept."""
    keep = b.cmp("ueq", x, 0.0)
    return b.select(keep, x, b.copysign(irtext.const(x.type, 1.0), x))


def _is_finite(b: IRBuilder, x: Value) -> Value:
    """|x| < infinity, false for NaN."""
    bits = 0x7FF0000000000000 if x.type.scalar is F64 else 0x7F800000
    return b.cmp("olt", b.fabs(x), irtext.const_bits(x.type, bits))


def known_float(x: Value) -> float | None:
    """The number a float32 or float64 constant holds in every lane."""
    if x.text.startswith("%") or x.type.scalar not in (F32, F64):
        return None
    if x.text == "zeroinitializer":
        return 0.0
    found = _HEXADECIMAL.search(x.text)
    return None if found is None else struct.unpack("<d", struct.pack("<Q", int(found[1], 16)))[0]


_HEXADECIMAL = re.compile(r"^(?:splat \(\w+ )?0x([0-9A-F]{16})\)?$")


def _extreme(name: str) -> Callable[..., Value]:
    """max or min: NaN wins, -0 < +0. Against a literal, a comparison and a choice suffice."""

    def emit(b: IRBuilder, x: Value, y: Value) -> Value:
        bound = known_float(y)
        if bound is None and known_float(x) is not None:
            x, y, bound = y, x, known_float(x)
        if bound is None or bound != bound:
            return b.maximum(x, y) if name == "max" else b.minimum(x, y)
        negative = math.copysign(1, bound) < 0
        if name == "max":  # +0 replaces -0: for that literal an equal x gives way
            predicate = "ole" if bound == 0 and not negative else "olt"
        else:
            predicate = "oge" if bound == 0 and negative else "ogt"
        return b.select(b.cmp(predicate, x, y), y, x)

    return emit


FLOAT: dict[Op, Callable[..., Value]] = {
    Op.NEG: lambda b, x: b.neg(x),
    Op.ABS: lambda b, x: b.fabs(x),
    Op.SIGN: _float_sign,
    Op.FLOOR: lambda b, x: b.floor(x),
    Op.CEIL: lambda b, x: b.ceil(x),
    Op.ROUND: lambda b, x: b.round_even(x),
    Op.TRUNC: lambda b, x: b.ftrunc(x),
    Op.SQRT: lambda b, x: b.sqrt(x),
    Op.RSQRT: lambda b, x: b.fdiv(irtext.const(x.type, 1.0), b.sqrt(x)),
    Op.IS_FINITE: _is_finite,
    Op.ADD: lambda b, x, y: b.add(x, y),
    Op.SUB: lambda b, x, y: b.sub(x, y),
    Op.MUL: lambda b, x, y: b.mul(x, y),
    Op.DIV: lambda b, x, y: b.fdiv(x, y),
    Op.REM: lambda b, x, y: b.frem(x, y),
    Op.MAX: _extreme("max"),
    Op.MIN: _extreme("min"),
    Op.FMA: lambda b, x, y, z: b.fma(x, y, z),
}
