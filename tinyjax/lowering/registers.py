"""Values in registers, and the arithmetic builder that decompositions are written against.

A `Register` is the value of one scalar node, for one element or for a vector of them. Its form
follows from the dtype:

    bool             i1
    int 8-64         the integer
    int 2, 4         i8, normalised (sign- or zero-extended from its own width)
    float32/64       the float
    narrower floats  `value`: the storage bits, `other`: the same as float32; either may be missing
                     and is made on demand (so copies never convert, arithmetic converts once)
    complex          `value`: real part, `other`: imaginary part

`RegisterBuilder` implements `MathBuilder` (elementary/builder.py) by LLVM instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.lowering import irtext
from tinyjax.lowering.elementary.builder import Num, Slow
from tinyjax.lowering.irtext import F32, F64, I1, I8, I16, I32, I64, IRBuilder, Type, Value, vec

BOOL = np.dtype(np.bool_)
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
INT8, INT16 = np.dtype(np.int8), np.dtype(np.int16)
INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)
UINT8, UINT16 = np.dtype(np.uint8), np.dtype(np.uint16)
UINT32, UINT64 = np.dtype(np.uint32), np.dtype(np.uint64)
WORDS = {8: I8, 16: I16, 32: I32, 64: I64}
UNSIGNED_OF = {8: UINT8, 16: UINT16, 32: UINT32, 64: UINT64}

_REGISTER_TYPES: dict[Any, Type] = {BOOL: I1, FLOAT32: F32, FLOAT64: F64}
for _width, _type in WORDS.items():
    _REGISTER_TYPES[np.dtype(f"i{_width // 8}")] = _type
    _REGISTER_TYPES[np.dtype(f"u{_width // 8}")] = _type


def is_narrow(dtype: Any) -> bool:
    """A float that is computed in float32."""
    return dtype not in _REGISTER_TYPES and dtypes.is_float(dtype)


def register_type(dtype: Any) -> Type:
    """Type of `Register.value`: an element, one part of a complex, the bits of a narrow float."""
    found = _REGISTER_TYPES.get(dtype)
    if found is None:
        if dtypes.is_complex(dtype):
            found = F32 if dtype.itemsize == 8 else F64
        else:
            found = WORDS[dtype.itemsize * 8]
    return found


class Register:
    """A scalar or vector value of `dtype`; see the module's text for `value` and `other`."""

    __slots__ = ("dtype", "other", "value")

    dtype: Any
    value: Value
    other: Value | None

    def __init__(self, dtype: Any, value: Value | None, other: Value | None = None) -> None:
        # None for narrow floats only, and those are read through `Elementwise.raw` and `wide`.
        self.dtype, self.value, self.other = dtype, value, other  # type: ignore[assignment]

    @property
    def parts(self) -> tuple[Value, ...]:
        """The LLVM values that hold it."""
        return tuple(v for v in (self.value, self.other) if v is not None)


class RegisterBuilder:
    """`MathBuilder` over registers of float32/64, int32/64, uint32/64 and bool (other ints too).

    `lanes` is 0 for scalars; constants are made with that many lanes. The operands' own types
    decide everything else.
    """

    __slots__ = ("b", "lanes")

    def __init__(self, b: IRBuilder, lanes: int = 0) -> None:
        self.b, self.lanes = b, lanes

    def dtype(self, x: Register) -> Any:
        return x.dtype

    def const(self, dtype: Any, value: float | int) -> Register:
        return Register(dtype, irtext.const(vec(register_type(dtype), self.lanes), value))

    def add(self, x: Register, y: Register) -> Register:
        return Register(x.dtype, self.b.add(x.value, y.value))

    def sub(self, x: Register, y: Register) -> Register:
        return Register(x.dtype, self.b.sub(x.value, y.value))

    def mul(self, x: Register, y: Register) -> Register:
        return Register(x.dtype, self.b.mul(x.value, y.value))

    def div(self, x: Register, y: Register) -> Register:
        return Register(x.dtype, self.b.fdiv(x.value, y.value))

    def fma(self, x: Register, y: Register, z: Register) -> Register:
        return Register(x.dtype, self.b.fma(x.value, y.value, z.value))

    def neg(self, x: Register) -> Register:
        return Register(x.dtype, self.b.neg(x.value))

    def abs(self, x: Register) -> Register:
        return Register(x.dtype, self.b.fabs(x.value))

    def sqrt(self, x: Register) -> Register:
        return Register(x.dtype, self.b.sqrt(x.value))

    def floor(self, x: Register) -> Register:
        return Register(x.dtype, self.b.floor(x.value))

    def _compare(self, name: str, x: Register, y: Register) -> Register:
        return Register(BOOL, self.b.cmp(PREDICATES[name][kind_of(x.dtype)], x.value, y.value))

    def lt(self, x: Register, y: Register) -> Register:
        return self._compare("lt", x, y)

    def le(self, x: Register, y: Register) -> Register:
        return self._compare("le", x, y)

    def eq(self, x: Register, y: Register) -> Register:
        return self._compare("eq", x, y)

    def ne(self, x: Register, y: Register) -> Register:
        return self._compare("ne", x, y)

    def where(self, condition: Register, x: Register, y: Register) -> Register:
        return Register(x.dtype, self.b.select(condition.value, x.value, y.value))

    def and_(self, x: Register, y: Register) -> Register:
        return Register(x.dtype, self.b.and_(x.value, y.value))

    def or_(self, x: Register, y: Register) -> Register:
        return Register(x.dtype, self.b.or_(x.value, y.value))

    def xor(self, x: Register, y: Register) -> Register:
        return Register(x.dtype, self.b.xor(x.value, y.value))

    def not_(self, x: Register) -> Register:
        return Register(x.dtype, self.b.not_(x.value))

    def shl(self, x: Register, count: Register) -> Register:
        return Register(x.dtype, self.b.shl(x.value, count.value))

    def shrl(self, x: Register, count: Register) -> Register:
        return Register(x.dtype, self.b.lshr(x.value, count.value))

    def shra(self, x: Register, count: Register) -> Register:
        return Register(x.dtype, self.b.ashr(x.value, count.value))

    def cast(self, x: Register, dtype: Any) -> Register:
        signed = dtypes.is_signed(x.dtype if x.dtype.kind in "iu" else dtype)
        return Register(dtype, self.b.cast(x.value, register_type(dtype), signed=signed))

    def bitcast(self, x: Register, dtype: Any) -> Register:
        return Register(dtype, self.b.bitcast(x.value, vec(register_type(dtype), self.lanes)))

    def any(self, condition: Value) -> Value:
        """Whether a predicate holds in some lane."""
        if not condition.type.lanes:
            return condition
        word = Type(f"i{condition.type.lanes}", "int", condition.type.lanes, 0, "")
        return self.b.cmp("ne", self.b.bitcast(condition, word), 0)

    def rare(
        self, condition: Register, slow: Slow, x: Register, fast: Sequence[Register]
    ) -> list[Register]:
        """The slow values behind a branch that is taken if the condition holds in any lane."""
        b = self.b
        called, returns = slow_function(slow, x.dtype, self.lanes, *[f.value.type for f in fast])
        if called not in b.module.functions:
            b.module.functions.append(called)
            b.module.declarations.update(called.module.declarations)
        with b.if_(self.any(condition.value)) as branch:
            made = b.call(called.name, returns, [x.value])
            assert made is not None
            parts = [
                Register(f.dtype, b.emit(f"extractvalue {made}, {i}", f.value.type))
                for i, f in enumerate(fast)
            ]
            chosen = [self.where(condition, s, f) for s, f in zip(parts, fast, strict=True)]
        return [
            Register(f.dtype, branch.join(c.value, f.value))
            for c, f in zip(chosen, fast, strict=True)
        ]


@cache
def slow_function(slow: Slow, dtype: Any, lanes: int, *types: Type) -> tuple[IRBuilder, Type]:
    """A function that returns the structure of slow's values, and its type; written only once.

    Its constants and temporaries stay out of the registers of the loop that calls it, and a kernel
    of many sines has one reduction of huge arguments.
    """
    of = vec(register_type(dtype), lanes)
    returns = Type(f"{{ {', '.join([t.text for t in types])} }}", "struct", 0, 0, "")
    made = irtext.Module().function(
        f"{slow.__name__}.{of.suffix}",
        [("x", of)],
        returns,
        attributes="nounwind noinline cold memory(none)",
        convention="internal",
    )
    x = Num(RegisterBuilder(made, lanes), Register(dtype, made.args[0]), dtype)
    whole = Value("poison", returns)
    for i, part in enumerate(slow(x)):
        whole = made.emit(f"insertvalue {whole}, {part.raw.value}, {i}", returns)
    made.ret(whole)
    return made, returns


PREDICATES = {
    "lt": {"float": "olt", "signed": "slt", "unsigned": "ult"},
    "le": {"float": "ole", "signed": "sle", "unsigned": "ule"},
    "eq": {"float": "oeq", "signed": "eq", "unsigned": "eq"},
    "ne": {"float": "une", "signed": "ne", "unsigned": "ne"},
}


def kind_of(dtype: Any) -> str:
    """Which of LLVM's comparison families a dtype uses."""
    if dtypes.is_float(dtype):
        return "float"
    return "signed" if dtypes.is_signed(dtype) else "unsigned"
