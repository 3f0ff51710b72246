"""Exact conversions between float32 and narrower floats, as integer code without library calls.

Every format is sign, exponent and mantissa fields; formats differ in bias and in what the top codes
mean (`specials`):

    ieee   infinities and NaNs at the all-ones exponent (float16, bfloat16, e3m4, e4m3, e5m2)
    fn     no infinity; all ones is NaN; overflow gives NaN (e4m3fn)
    fnuz   no infinity, no -0; the code of -0 is NaN; overflow gives NaN
    none   neither; overflow saturates, NaN becomes -0 (float6, float4)
    scale  an exponent only (e8m0fnu): powers of two, ties away from zero, no zero

Widening places the fields where float32 has them and multiplies by 2**(127 - bias), which also
normalises subnormals. Narrowing rounds to nearest even on the integer bits; for subnormal results
the float adder does the rounding (adding 2**k with ulp = the format's smallest subnormal).
Results are those of ml_dtypes, bit by bit, NaN signs included (but the sign of a NaN does not pick
the zero it becomes).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from tinyjax.core import dtypes
from tinyjax.lowering import irtext
from tinyjax.lowering.irtext import F32, I8, I16, I32, IRBuilder, Type, Value, vec
from tinyjax.lowering.target import Target


@dataclass(frozen=True, slots=True)
class Layout:
    """Field widths of a narrow float and what its top codes mean."""

    bits: int
    mantissa: int
    bias: int
    specials: str

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.bits - 1)

    @property
    def infinity(self) -> int:
        """Code of infinity (ieee), or the first code past the largest finite one."""
        if self.specials == "ieee":
            return self.sign - (1 << self.mantissa)
        return self.sign - 1 if self.specials == "fn" else self.sign

    @property
    def storage(self) -> Type:
        """Integer type of the stored bits."""
        return I16 if self.bits > 8 else I8


@functools.cache
def layout(dtype: Any) -> Layout:
    """The layout of a narrow float dtype."""
    name = dtype.name
    if name == "bfloat16":
        return Layout(16, 7, 127, "ieee")
    if name == "float16":
        return Layout(16, 10, 15, "ieee")
    if name == "float8_e8m0fnu":
        return Layout(8, 0, 127, "scale")
    info = dtypes.finfo(dtype)
    if name.endswith("fnuz"):
        specials = "fnuz"
    elif info.bits < 8:
        specials = "none"
    else:
        specials = "fn" if name.endswith("fn") else "ieee"
    return Layout(int(info.bits), int(info.nmant), 1 - int(info.minexp), specials)


def _words(x: Value, scalar: Type) -> Type:
    return vec(scalar, x.type.lanes)


def widen(b: IRBuilder, target: Target, dtype: Any, bits: Value) -> Value:
    """Stored bits (i8 or i16, scalar or vector) -> float32, exactly."""
    of = layout(dtype)
    if dtype.name == "float16" and target.half:
        half = b.bitcast(bits, _words(bits, irtext.F16))
        return b.convert("fpext", half, F32)
    wide = b.cast(bits, I32, signed=False)
    as_float = _words(bits, F32)
    if dtype.name == "bfloat16":
        return b.bitcast(b.shl(wide, 16), as_float)
    if of.specials == "scale":
        power = b.select(b.cmp("eq", wide, 0), 0x00400000, b.shl(wide, 23))
        return b.bitcast(b.select(b.cmp("eq", wide, 255), 0x7FC00000, power), as_float)
    magnitude = b.and_(wide, of.sign - 1)
    placed = b.shl(magnitude, 23 - of.mantissa)
    scaled = b.mul(b.bitcast(placed, as_float), 2.0 ** (127 - of.bias))
    result = b.bitcast(scaled, _words(bits, I32))
    if of.specials == "ieee":
        special = b.cmp("uge", magnitude, of.infinity)
        result = b.select(special, b.or_(placed, 0x7F800000), result)
    elif of.specials == "fn":
        result = b.select(b.cmp("eq", magnitude, of.infinity), 0x7FC00000, result)
    sign = b.shl(b.and_(wide, of.sign), 32 - of.bits)
    result = b.or_(result, sign)
    if of.specials == "fnuz":
        result = b.select(b.cmp("eq", wide, of.sign), 0xFFC00000, result)
    return b.bitcast(result, as_float)


def narrow(b: IRBuilder, target: Target, dtype: Any, x: Value) -> Value:
    """float32 -> stored bits (i8 or i16), rounded once to nearest even."""
    of = layout(dtype)
    if dtype.name == "float16" and target.half:
        half = b.convert("fptrunc", x, irtext.F16)
        return b.bitcast(half, _words(x, I16))
    bits = b.bitcast(x, _words(x, I32))
    magnitude = b.and_(bits, 0x7FFFFFFF)
    if of.specials == "scale":
        return _narrow_to_scale(b, bits, magnitude)
    sign = b.and_(b.lshr(bits, 32 - of.bits), of.sign)
    is_nan = b.cmp("ugt", magnitude, 0x7F800000)
    drop = 23 - of.mantissa
    odd = b.and_(b.lshr(magnitude, drop), 1)
    rounded = b.lshr(b.add(b.add(magnitude, (1 << (drop - 1)) - 1), odd), drop)
    if dtype.name == "bfloat16":  # same exponents: subnormals and overflow need no care
        return b.cast(b.or_(b.select(is_nan, 0x7FC0, rounded), sign), I16)
    code = b.sub(rounded, (127 - of.bias) << of.mantissa)
    smallest = (127 + 1 - of.bias) << 23  # bits of the smallest normal number
    step = 2.0 ** (24 - of.bias - of.mantissa)
    shifted = b.bitcast(b.add(b.bitcast(magnitude, _words(x, F32)), step), _words(x, I32))
    tiny = b.sub(shifted, irtext.bits_of(F32, step))
    code = b.select(b.cmp("ult", magnitude, smallest), tiny, code)
    over = b.cmp("sge", code, of.infinity)
    if of.specials == "none":
        code = b.or_(b.select(over, of.infinity - 1, code), sign)
        code = b.select(is_nan, of.sign, code)
    elif of.specials == "fnuz":
        code = b.select(b.cmp("eq", code, 0), 0, b.or_(code, sign))
        code = b.select(b.or_(over, is_nan), of.sign, code)
    elif of.specials == "fn":
        code = b.or_(b.select(b.or_(over, is_nan), of.infinity, code), sign)
    else:
        code = b.select(over, of.infinity, code)
        quiet = of.infinity | 1 << (of.mantissa - 1)
        code = b.or_(b.select(is_nan, quiet, code), sign)
    return b.cast(code, of.storage)


def _narrow_to_scale(b: IRBuilder, bits: Value, magnitude: Value) -> Value:
    """Nearest power of two as its biased exponent; what is not positive and finite is NaN (255)."""
    exponent = b.lshr(b.add(magnitude, 0x400000), 23)
    exponent = b.select(b.cmp("ule", magnitude, 0x00400000), 0, exponent)
    exponent = b.umin(exponent, 255)
    # Negative or zero: as a signed integer not above 0.
    return b.cast(b.select(b.cmp("sle", bits, 0), 255, exponent), I8)
