"""LLVM IR as text: typed values, one builder per function, declarations collected per module.

Kernels are written straight into text because parsing is cheap next to code generation and a
Python object per instruction (use lists, parents) is not: one instruction here is one formatted
line and one small `Value`, about 1 us. Three things are optimised because they cost nothing here
and code generation time later: integer constants fold (`x+0`, `x*1`, constants); an integer
operation, address, comparison or cast that was already written where it dominates is reused; and
one whose operands do not change in a loop is written before that loop. So the inner loops hold what
changes, and LLVM's loop passes have nothing left to find (`runtime/cpu.py` leaves them out).

Conventions: types are interned, so they compare by identity; operands that are Python numbers take
the other operand's type; every loop is emitted rotated (test at the bottom, a guard before it
unless the trip count is known to be positive), because no LLVM pass will rotate it later.
Text is emitted in program order but for what moves before a loop; `loop`, `while_` and `if_` begin
and close the blocks.

Example (y[i] = a*x[i] + y[i] for 16 lanes at a time, count a multiple of 16):

    module = Module()
    b = module.function("saxpy", [("x", PTR), ("y", PTR), ("a", F32), ("count", I64)])
    x, y, a, count = b.args
    wide = b.splat(a, 16)
    with b.loop(0, count, 16) as loop:
        at = b.gep(F32, y, loop.index)
        product = b.fma(wide, b.load(vec(F32, 16), b.gep(F32, x, loop.index), align=4),
                        b.load(vec(F32, 16), at, align=4))
        b.store(product, at, align=4)
    b.ret()
    text = module.text()

Source: the LLVM Language Reference, release 22.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Literal

import numpy as np

# ------------------------------------------------------------------------------------------ types

Kind = Literal["int", "float", "ptr", "struct", "void"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Type:
    """A scalar (`lanes == 0`) or fixed-width vector type; interned, so compare with `is`."""

    text: str
    kind: Kind
    bits: int
    lanes: int
    suffix: str  # how overloaded intrinsics name it: v16f32
    element: Type | None = None  # of a vector

    @property
    def scalar(self) -> Type:
        """The element type of a vector, a scalar itself."""
        return self if self.element is None else self.element

    @property
    def width(self) -> int:
        """Number of elements: lanes of a vector, 1 for a scalar."""
        return self.lanes or 1

    @property
    def nbytes(self) -> int:
        """Bytes of the value in memory (i1 is stored as a byte by convention of the callers)."""
        return max(self.bits, 8) // 8 * self.width

    def __repr__(self) -> str:
        return self.text


VOID = Type("void", "void", 0, 0, "")
I1, I8, I16, I32, I64, I128 = (
    Type(f"i{bits}", "int", bits, 0, f"i{bits}") for bits in (1, 8, 16, 32, 64, 128)
)
F16 = Type("half", "float", 16, 0, "f16")
BF16 = Type("bfloat", "float", 16, 0, "bf16")
F32 = Type("float", "float", 32, 0, "f32")
F64 = Type("double", "float", 64, 0, "f64")
PTR = Type("ptr", "ptr", 64, 0, "p0")

_VECTORS: dict[tuple[Type, int], Type] = {}

_OF_DTYPE: dict[str, Type] = {
    "bool": I8,  # in memory; in registers a predicate is I1
    "int8": I8, "uint8": I8, "int16": I16, "uint16": I16, "int32": I32, "uint32": I32,
    "int64": I64, "uint64": I64, "float16": F16, "bfloat16": BF16, "float32": F32, "float64": F64,
}  # fmt: skip


def type_of(dtype: np.dtype) -> Type:
    """The storage type of a NumPy dtype (bool is a byte; float8 and int4 are bytes as well)."""
    found = _OF_DTYPE.get(dtype.name)
    if found is None and dtype.itemsize == 1:
        return I8
    if found is None:
        raise KeyError(f"dtype {dtype.name} has no single LLVM storage type")
    return found


def vec(scalar: Type, lanes: int) -> Type:
    """`<lanes x scalar>`; one lane or none means the scalar itself."""
    if lanes <= 1:
        return scalar
    key = (scalar, lanes)
    made = _VECTORS.get(key)
    if made is None:
        assert not scalar.lanes, f"vector of vector: {scalar}"
        text, suffix = f"<{lanes} x {scalar.text}>", f"v{lanes}{scalar.suffix}"
        made = _VECTORS[key] = Type(text, scalar.kind, scalar.bits, lanes, suffix, scalar)
    return made


# ------------------------------------------------------------------------------ values, constants


@dataclass(slots=True, eq=False)
class Value:
    """An SSA name or a constant, with its type.

    `const` is set on scalar integer constants; `depth` counts the loops around its definition.
    """

    text: str
    type: Type
    const: int | None = None
    depth: int = 0

    def __str__(self) -> str:
        return f"{self.type.text} {self.text}"


Operand = Value | int | float | bool


def bits_of(scalar: Type, value: float) -> int:
    """The bit pattern of `value` rounded to nearest even in a float type."""
    if scalar is F64:
        return int(struct.unpack("<Q", struct.pack("<d", value))[0])
    with np.errstate(over="ignore"):
        if scalar is F16:
            return int(np.float16(value).view(np.uint16))
        near = np.float32(value)
    bits = int(near.view(np.uint32))
    if scalar is F32:
        return bits
    assert scalar is BF16, f"no bit pattern for {scalar}"
    if np.isfinite(near) and float(near) != value:  # to odd first: rounding again is exact
        bits = (bits - (abs(float(near)) > abs(value))) | 1
    if near != near:
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _float_text(scalar: Type, bits: int) -> str:
    """LLVM's exact spelling; a float is written as the double of equal value, NaN payload kept."""
    if scalar is F64:
        return f"0x{bits:016X}"
    if scalar is F16:
        return f"0xH{bits:04X}"
    if scalar is BF16:
        return f"0xR{bits:04X}"
    exponent, mantissa = bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:  # infinity and NaN: widen by hand, a conversion would quiet the NaN
        wide = (bits >> 31) << 63 | 0x7FF << 52 | mantissa << 29
    else:
        value = struct.unpack("<f", struct.pack("<I", bits))[0]
        wide = struct.unpack("<Q", struct.pack("<d", value))[0]
    return f"0x{wide:016X}"


def const(type: Type, value: float | int | bool) -> Value:
    """A constant of `type`; a vector type gives a splat."""
    if type.element is not None:
        one = const(type.element, value)
        return Value("zeroinitializer" if one.const == 0 else f"splat ({one})", type)
    if type.kind == "float":
        return Value(_float_text(type, bits_of(type, float(value))), type)
    if type.kind == "ptr":
        assert value == 0, "the only pointer constant is null"
        return Value("null", type)
    if type is I1:
        return Value("true" if value else "false", type, int(bool(value)))
    number = int(value)
    half = 1 << (type.bits - 1)
    number = (number + half) % (half * 2) - half
    return Value(str(number), type, number)


def const_bits(type: Type, bits: int) -> Value:
    """A float constant given by its bit pattern (NaN payloads survive)."""
    one = Value(_float_text(type.scalar, bits), type.scalar)
    return Value(f"splat ({one})", type) if type.lanes else one


def const_vector(scalar: Type, values: Sequence[float | int | bool]) -> Value:
    """A vector constant with one literal per lane."""
    inner = ", ".join(str(const(scalar, value)) for value in values)
    return Value(f"<{inner}>", vec(scalar, len(values)))


def iota(scalar: Type, lanes: int, start: int = 0) -> Value:
    """`<start, start+1, ...>` as a constant; a scalar constant for one lane."""
    if lanes <= 1:
        return const(scalar, start)
    return const_vector(scalar, range(start, start + lanes))


def poison(type: Type) -> Value:
    """An unspecified value: the second operand of a shuffle, the base of an insertion chain."""
    return Value("poison", type)


def zero(type: Type) -> Value:
    """The zero of any type, vectors included."""
    return const(type, 0)


# ---------------------------------------------------------------------------------------- modules


@dataclass(slots=True)
class Module:
    """A set of functions that become one object; holds what they share."""

    functions: list[Function] = field(default_factory=list)
    declarations: dict[str, str] = field(default_factory=dict)
    globals: dict[str, str] = field(default_factory=dict)
    metadata: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    _empty: str = ""

    def function(
        self,
        name: str,
        params: Sequence[tuple[str, Type]],
        returns: Type = VOID,
        *,
        attributes: str = "nounwind",
        convention: str = "",
        param_attributes: Sequence[str] | None = None,
    ) -> Function:
        """Begin `define`; `convention` is what stands before the type, e.g. `internal`."""
        made = Function(self, name, params, returns, attributes, convention, param_attributes)
        self.functions.append(made)
        return made

    def declare(
        self, name: str, returns: Type, params: Iterable[Type], attributes: str = ""
    ) -> str:
        """Declare an external function once; returns `@name`."""
        if name not in self.declarations:
            inner = ", ".join(p.text for p in params)
            tail = f" {attributes}" if attributes else ""
            self.declarations[name] = f"declare {returns.text} @{name}({inner}){tail}"
        return f"@{name}"

    def table(
        self, name: str, scalar: Type, values: Sequence[float | int], align: int = 64
    ) -> Value:
        """A private constant array; returns the pointer to it."""
        if name not in self.globals:
            inner = ", ".join(str(const(scalar, value)) for value in values)
            kind = f"[{len(values)} x {scalar.text}]"
            self.globals[name] = (
                f"@{name} = private unnamed_addr constant {kind} [{inner}], align {align}"
            )
        return Value(f"@{name}", PTR)

    def node(self, text: str) -> str:
        """Add a metadata node, e.g. `!{!"x"}`; `!SELF` stands for its own number."""
        number = f"!{len(self.metadata)}"
        self.metadata.append(f"{number} = {text.replace('!SELF', number)}")
        return number

    def empty_node(self) -> str:
        """The metadata node without contents, which `!invariant.load` names."""
        self._empty = self._empty or self.node("!{}")
        return self._empty

    def text(self) -> str:
        """The module as LLVM assembly."""
        parts = list(self.globals.values())
        parts += [function.text() for function in self.functions]
        parts += self.declarations.values()
        parts += self.metadata
        if self.flags:
            parts.append(f"!llvm.module.flags = !{{{', '.join(self.flags)}}}")
        return "\n".join(parts) + "\n"


# --------------------------------------------------------------------------------------- building

_INT_BINARY_IDENTITY = {"add": 0, "sub": 0, "mul": 1, "shl": 0, "lshr": 0, "ashr": 0, "or": 0,
                        "xor": 0, "sdiv": 1, "udiv": 1}  # fmt: skip
_INT_FOLD = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
}
_COMMUTES = frozenset({"add", "mul", "and", "or", "xor"})
_TRAPS = frozenset({"sdiv", "udiv", "srem", "urem"})  # for some divisors
_FLOAT_NAME = {"add": "fadd", "sub": "fsub", "mul": "fmul"}
_INT_PREDICATES = frozenset({"eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"})
_SIGNED_FOLD = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "slt": lambda x, y: x < y,
    "sle": lambda x, y: x <= y,
    "sgt": lambda x, y: x > y,
    "sge": lambda x, y: x >= y,
}


class Function:
    """The builder of one function body; `IRBuilder` is the same class.

    `args` are the parameters; `block` is the label of the block being written, which a phi written
    by hand needs. Each method appends at most a few lines and returns the `Value`.
    """

    __slots__ = ("args", "block", "lines", "module", "name", "_count", "_entry", "_head", "_known",
                 "_loops", "_open", "_scopes")  # fmt: skip

    def __init__(
        self,
        module: Module,
        name: str,
        params: Sequence[tuple[str, Type]],
        returns: Type,
        attributes: str,
        convention: str,
        param_attributes: Sequence[str] | None,
    ) -> None:
        self.module = module
        self.name = name
        self.args = [Value(f"%{label}", type) for label, type in params]
        notes = param_attributes or [""] * len(params)
        inner = ", ".join(
            f"{arg.type.text}{' ' + note if note else ''} {arg.text}"
            for arg, note in zip(self.args, notes, strict=True)
        )
        lead = f"{convention} " if convention else ""
        self._head = f"define {lead}{returns.text} @{name}({inner}) {attributes} {{"
        self._entry: list[str] = []
        self.lines: list[str | list[str]] = []  # a list: what was moved before a loop
        self.block = "entry"
        self._open = True
        self._count = 0
        self._known: dict[str, Value] = {}  # pure instructions that dominate the next line
        self._scopes: list[list[str]] = [[]]  # those of each region left when its end is reached
        self._loops: list[tuple[list[str], int]] = []  # (lines before it, scope of these)

    def text(self) -> str:
        """`define ... { ... }`; a void body still open is closed with `ret void`."""
        if self._open:
            self.ret()
        lines = [self._head, "entry:", *self._entry]
        for line in self.lines:
            if isinstance(line, list):
                lines += line
            else:
                lines.append(line)
        return "\n".join([*lines, "}"])

    # -- primitives -------------------------------------------------------------------------

    def emit(self, text: str, type: Type) -> Value:
        """Append `%v = text` and return it: the door for any instruction not listed below."""
        self._count = count = self._count + 1
        name = f"%v{count}"
        self.lines.append(f"  {name} = {text}")
        return Value(name, type, None, len(self._loops))

    def pure(self, text: str, type: Type, *operands: Value, traps: bool = False) -> Value:
        """As `emit`, but reuse an equal instruction that dominates this point.

        It is written before the outermost loop in which no operand changes, whether that loop runs
        or not, unless it `traps` for some operands.
        """
        known = self._known.get(text)
        if known is not None:
            return known
        depth = max([x.depth for x in operands])
        if traps or depth >= len(self._loops):
            made = self.emit(text, type)
            self._scopes[-1].append(text)
        else:
            before, scope = self._loops[depth]
            self._count = count = self._count + 1
            made = Value(f"%v{count}", type, None, depth)
            before.append(f"  {made.text} = {text}")
            self._scopes[scope].append(text)
        self._known[text] = made
        return made

    def _enter_loop(self) -> None:
        """From here on lines are in a loop; they may move to where this is called."""
        before: list[str] = []
        self.lines.append(before)
        self._loops.append((before, len(self._scopes) - 1))

    def _enter(self) -> None:
        """Begin a region whose instructions do not dominate what follows it."""
        self._scopes.append([])

    def _leave(self) -> None:
        """Forget the pure instructions of the region that was entered last."""
        for text in self._scopes.pop():
            del self._known[text]

    def effect(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    def _pair(self, x: Operand, y: Operand) -> tuple[Value, Value]:
        """Both operands as values of one type; numbers take the other's type."""
        if not isinstance(x, Value):
            assert isinstance(y, Value), "at least one operand must be a Value"
            return const(y.type, x), y
        if not isinstance(y, Value):
            return x, const(x.type, y)
        if x.type is not y.type:
            raise TypeError(f"operands differ in type: {x} and {y} in {self.name}")
        return x, y

    def _int(self, op: str, x: Operand, y: Operand, flags: str = "") -> Value:
        """An integer operation, folding constants."""
        a, c = self._pair(x, y)
        if c.const is not None:
            if a.const is not None and op in _INT_FOLD:
                return const(a.type, _INT_FOLD[op](a.const, c.const))
            if _INT_BINARY_IDENTITY.get(op) == c.const:
                return a
            if c.const == 0 and op in ("mul", "and"):
                return c
        elif a.const is not None and op in _COMMUTES:
            return self._int(op, c, a, flags)
        lead = f"{op} {flags}" if flags else op
        traps = op in _TRAPS and not (c.const is not None and c.const > 0)
        return self.pure(f"{lead} {a.type.text} {a.text}, {c.text}", a.type, a, c, traps=traps)

    def _arith(self, op: str, x: Operand, y: Operand, flags: str) -> Value:
        a, c = self._pair(x, y)
        if a.type.kind != "float":
            return self._int(op, a, c, flags)
        lead = f"{_FLOAT_NAME[op]} {flags}" if flags else _FLOAT_NAME[op]
        return self.emit(f"{lead} {a.type.text} {a.text}, {c.text}", a.type)

    # -- arithmetic -------------------------------------------------------------------------

    def add(self, x: Operand, y: Operand, flags: str = "") -> Value:
        """x + y, integer or float by type; `flags` are LLVM's (nsw, contract, ...)."""
        return self._arith("add", x, y, flags)

    def sub(self, x: Operand, y: Operand, flags: str = "") -> Value:
        """x - y."""
        return self._arith("sub", x, y, flags)

    def mul(self, x: Operand, y: Operand, flags: str = "") -> Value:
        """x * y."""
        return self._arith("mul", x, y, flags)

    def _plain(self, op: str, x: Operand, y: Operand) -> Value:
        a, c = self._pair(x, y)
        return self.emit(f"{op} {a.type.text} {a.text}, {c.text}", a.type)

    def fdiv(self, x: Operand, y: Operand) -> Value:
        """Float quotient."""
        return self._fenced("fdiv", x, y)

    def frem(self, x: Operand, y: Operand) -> Value:
        """Float remainder; a libm call on every CPU target."""
        return self._fenced("frem", x, y)

    def _fenced(self, op: str, x: Operand, y: Operand) -> Value:
        """An operation whose result LLVM must not guess from its operands.

        LLVM 22 selects instructions as if a vector 0/0 or 0%0 were 0 when both zeros are known
        (SimplifyDemandedVectorElts), be they literals or what it makes of our integers. A fence is
        no instruction, and nothing looks through it.
        """
        made = self._plain(op, x, y)
        literals = [v for v in self._pair(x, y) if v.text.startswith("splat")]
        if not made.type.lanes or any(v.text != zero(v.type).text for v in literals):
            return made
        return self.intrinsic("arithmetic.fence", made.type, [made])

    def sdiv(self, x: Operand, y: Operand) -> Value:
        """Signed quotient; the caller guards 0 and INT_MIN / -1, which trap."""
        return self._int("sdiv", x, y)

    def udiv(self, x: Operand, y: Operand) -> Value:
        """Unsigned quotient; the caller guards 0."""
        return self._int("udiv", x, y)

    def srem(self, x: Operand, y: Operand) -> Value:
        """Signed remainder; guarded by the caller like `sdiv`."""
        return self._int("srem", x, y)

    def urem(self, x: Operand, y: Operand) -> Value:
        """Unsigned remainder; guarded by the caller."""
        return self._int("urem", x, y)

    def and_(self, x: Operand, y: Operand) -> Value:
        """Bitwise and (of predicates: logical)."""
        return self._int("and", x, y)

    def or_(self, x: Operand, y: Operand) -> Value:
        """Bitwise or."""
        return self._int("or", x, y)

    def xor(self, x: Operand, y: Operand) -> Value:
        """Bitwise exclusive or."""
        return self._int("xor", x, y)

    def shl(self, x: Operand, y: Operand) -> Value:
        """x << y; poison when y >= bits, so the caller clamps."""
        return self._int("shl", x, y)

    def lshr(self, x: Operand, y: Operand) -> Value:
        """Logical right shift."""
        return self._int("lshr", x, y)

    def ashr(self, x: Operand, y: Operand) -> Value:
        """Arithmetic right shift."""
        return self._int("ashr", x, y)

    def not_(self, x: Value) -> Value:
        """Bitwise complement."""
        return self._int("xor", x, 1 if x.type.bits == 1 else -1)

    def neg(self, x: Value) -> Value:
        """-x; a float keeps the sign rule of IEEE (`fneg`), an integer wraps."""
        if x.type.kind == "float":
            return self.emit(f"fneg {x.type.text} {x.text}", x.type)
        return self._int("sub", 0, x)

    def cmp(self, predicate: str, x: Operand, y: Operand) -> Value:
        """`icmp` or `fcmp` by type; a float predicate is LLVM's (oeq, une, olt, uno, ...)."""
        a, c = self._pair(x, y)
        if a.const is not None and c.const is not None and predicate in _SIGNED_FOLD:
            return const(I1, _SIGNED_FOLD[predicate](a.const, c.const))
        op = "fcmp" if a.type.kind == "float" else "icmp"
        assert op == "fcmp" or predicate in _INT_PREDICATES, f"{predicate} on {a.type}"
        result = vec(I1, a.type.lanes)
        return self.pure(f"{op} {predicate} {a.type.text} {a.text}, {c.text}", result, a, c)

    def select(self, condition: Value, x: Operand, y: Operand) -> Value:
        """condition ? x : y, per lane if the condition is a vector."""
        a, c = self._pair(x, y)
        if condition.const is not None:
            return a if condition.const else c
        return self.emit(
            f"select {condition.type.text} {condition.text}, {a.type.text} {a.text}, "
            f"{c.type.text} {c.text}",
            a.type,
        )

    # -- intrinsics and calls ---------------------------------------------------------------

    def call(
        self, name: str, returns: Type, args: Sequence[Value], attributes: str = ""
    ) -> Value | None:
        """Call a function of this or another module, declaring it if it is not defined here."""
        if not any(function.name == name for function in self.module.functions):
            self.module.declare(name, returns, [arg.type for arg in args], attributes)
        inner = ", ".join([f"{a.type.text} {a.text}" for a in args])
        if returns is VOID:
            self.effect(f"call void @{name}({inner})")
            return None
        return self.emit(f"call {returns.text} @{name}({inner})", returns)

    def intrinsic(
        self, stem: str, returns: Type, args: Sequence[Value], overloads: Sequence[Type] = ()
    ) -> Value:
        """`llvm.<stem>.<overloads>`; without `overloads`, the first argument's type names it.

        LLVM ends the process on a form it does not know: only names tried in a child process.
        """
        types = overloads or (args[0].type,)
        name = ".".join([stem, *[type.suffix for type in types]])
        return self.call_intrinsic(name, returns, args)

    def call_intrinsic(self, stem: str, returns: Type, args: Sequence[Value]) -> Value:
        """An intrinsic whose name is complete after `llvm.` (a target's own, mostly)."""
        name = f"llvm.{stem}"
        if name not in self.module.declarations:
            self.module.declare(name, returns, [arg.type for arg in args])
        inner = ", ".join([f"{a.type.text} {a.text}" for a in args])
        if returns is VOID:
            self.effect(f"call void @{name}({inner})")
            return Value("", VOID)
        return self.emit(f"call {returns.text} @{name}({inner})", returns)

    def _same(self, stem: str, *operands: Operand) -> Value:
        """An intrinsic whose operands and result share one type."""
        type = next(x.type for x in operands if isinstance(x, Value))
        args = [x if isinstance(x, Value) else const(type, x) for x in operands]
        name = f"llvm.{stem}.{type.suffix}"
        if name not in self.module.declarations:
            self.module.declare(name, type, [type] * len(args))
        inner = ", ".join([f"{type.text} {a.text}" for a in args])
        if type.kind == "int":
            return self.pure(f"call {type.text} @{name}({inner})", type, *args)
        return self.emit(f"call {type.text} @{name}({inner})", type)

    def fma(self, x: Operand, y: Operand, z: Operand) -> Value:
        """x*y + z rounded once; a libm call where the target has no FMA."""
        return self._same("fma", x, y, z)

    def sqrt(self, x: Value) -> Value:
        """Square root, correctly rounded."""
        return self._same("sqrt", x)

    def fabs(self, x: Value) -> Value:
        """Clear the sign bit."""
        return self._same("fabs", x)

    def floor(self, x: Value) -> Value:
        """Round towards minus infinity."""
        return self._same("floor", x)

    def ceil(self, x: Value) -> Value:
        """Round towards plus infinity."""
        return self._same("ceil", x)

    def ftrunc(self, x: Value) -> Value:
        """Round towards zero, staying a float."""
        return self._same("trunc", x)

    def round_even(self, x: Value) -> Value:
        """Round to nearest, ties to even."""
        return self._same("roundeven", x)

    def copysign(self, x: Operand, y: Operand) -> Value:
        """Magnitude of x, sign of y."""
        return self._same("copysign", x, y)

    def minimum(self, x: Operand, y: Operand) -> Value:
        """The smaller, NaN if either is, -0 < +0 (NumPy's rule)."""
        return self._same("minimum", x, y)

    def maximum(self, x: Operand, y: Operand) -> Value:
        """The larger, NaN if either is, -0 < +0."""
        return self._same("maximum", x, y)

    def smin(self, x: Operand, y: Operand) -> Value:
        """Signed integer minimum."""
        a, c = self._pair(x, y)
        if a.const is not None and c.const is not None:
            return const(a.type, min(a.const, c.const))
        return self._same("smin", a, c)

    def smax(self, x: Operand, y: Operand) -> Value:
        """Signed integer maximum."""
        a, c = self._pair(x, y)
        if a.const is not None and c.const is not None:
            return const(a.type, max(a.const, c.const))
        return self._same("smax", a, c)

    def umin(self, x: Operand, y: Operand) -> Value:
        """Unsigned integer minimum."""
        return self._same("umin", x, y)

    def umax(self, x: Operand, y: Operand) -> Value:
        """Unsigned integer maximum."""
        return self._same("umax", x, y)

    def iabs(self, x: Value) -> Value:
        """Integer magnitude; INT_MIN stays INT_MIN."""
        return self.intrinsic("abs", x.type, [x, const(I1, False)], [x.type])

    def ctpop(self, x: Value) -> Value:
        """Number of one bits."""
        return self._same("ctpop", x)

    def ctlz(self, x: Value) -> Value:
        """Leading zero bits; the width for 0."""
        return self.intrinsic("ctlz", x.type, [x, const(I1, False)], [x.type])

    def reduce(self, kind: str, x: Value, start: Operand | None = None) -> Value:
        """Across the lanes: add mul and or xor smin smax umin umax, fadd fmul fmin fmax ...

        `fadd` and `fmul` take `start` and are sequential, left to right: callers that may
        reassociate shuffle halves instead (`reduce_tree`).
        """
        scalar = x.type.scalar
        if not x.type.lanes:
            return x
        args = [x] if start is None else [self._typed(start, scalar), x]
        return self.intrinsic(f"vector.reduce.{kind}", scalar, args, [x.type])

    def _typed(self, x: Operand, type: Type) -> Value:
        return x if isinstance(x, Value) else const(type, x)

    # -- casts ------------------------------------------------------------------------------

    def convert(self, op: str, x: Value, scalar: Type) -> Value:
        """A named LLVM cast (`zext`, `sitofp`, `fptrunc`, ...) to `scalar`, lane by lane."""
        target = vec(scalar.scalar, x.type.lanes)
        if target is x.type:
            return x
        return self.pure(f"{op} {x.type.text} {x.text} to {target.text}", target, x)

    def cast(self, x: Value, scalar: Type, *, signed: bool = True) -> Value:
        """Convert numerically, choosing the instruction by types.

        `signed` describes the integer side. Float to integer saturates and sends NaN to 0; an
        integer or float to i1 is `!= 0`. Narrowing floats is one `fptrunc`, which flushes
        bfloat16 subnormals on some units: emitters that must keep them write integer code.
        """
        source, target = x.type.scalar, scalar.scalar
        if source is target:
            return x
        if target is I1:
            return self.cmp("une" if source.kind == "float" else "ne", x, 0)
        if source.kind == "float" and target.kind == "float":
            if source.bits == target.bits:  # half <-> bfloat
                return self.convert("fptrunc", self.convert("fpext", x, F32), target)
            return self.convert("fpext" if source.bits < target.bits else "fptrunc", x, target)
        if source.kind == "float":
            result = vec(target, x.type.lanes)
            stem = "fptosi.sat" if signed else "fptoui.sat"
            return self.intrinsic(stem, result, [x], [result, x.type])
        signed = signed and source is not I1
        if target.kind == "float":
            return self.convert("sitofp" if signed else "uitofp", x, target)
        if x.const is not None:
            mask = (1 << source.bits) - 1
            return const(target, x.const if signed else x.const & mask)
        if source.bits > target.bits:
            return self.convert("trunc", x, target)
        return self.convert("sext" if signed else "zext", x, target)

    def bitcast(self, x: Value, type: Type) -> Value:
        """Reinterpret the bits; total size must match."""
        if type is x.type:
            return x
        return self.emit(f"bitcast {x.type.text} {x.text} to {type.text}", type)

    # -- vectors ----------------------------------------------------------------------------

    def splat(self, x: Value, lanes: int) -> Value:
        """Broadcast a scalar; one lane gives x itself, a constant stays a constant."""
        if lanes <= 1 or x.type.lanes:
            return x
        type = vec(x.type, lanes)
        if not x.text.startswith("%"):
            return Value(f"splat ({x})", type)
        inserted = f"insertelement {type.text} poison, {x.type.text} {x.text}, i32 0"
        first = self.pure(inserted, type, x)
        mask = f"<{lanes} x i32> zeroinitializer"
        spread = f"shufflevector {type.text} {first.text}, {type.text} poison, {mask}"
        return self.pure(spread, type, first)

    def extract(self, x: Value, lane: Operand) -> Value:
        """One lane; a scalar is its own lane 0."""
        if not x.type.lanes:
            return x
        at = self._typed(lane, I32)
        return self.emit(f"extractelement {x.type.text} {x.text}, {at}", x.type.scalar)

    def insert(self, x: Value, item: Value, lane: Operand) -> Value:
        """x with one lane replaced."""
        at = self._typed(lane, I32)
        return self.emit(f"insertelement {x.type.text} {x.text}, {item}, {at}", x.type)

    def pack(self, items: Sequence[Value]) -> Value:
        """A vector from scalars, one insertion each."""
        if len(items) == 1:
            return items[0]
        made = poison(vec(items[0].type, len(items)))
        for lane, item in enumerate(items):
            made = self.insert(made, item, lane)
        return made

    def shuffle(self, x: Value, y: Value | None, lanes: Sequence[int]) -> Value:
        """Lanes of x (0..n-1) and y (n..2n-1) by constant index; -1 leaves a lane unspecified."""
        type = vec(x.type.scalar, len(lanes))
        other = poison(x.type) if y is None else y
        mask = ", ".join([f"i32 {lane}" if lane >= 0 else "i32 poison" for lane in lanes])
        made = f"shufflevector {x}, {other}, <{len(lanes)} x i32> <{mask}>"
        if len(lanes) == 1:
            return self.extract(x, lanes[0])
        return self.emit(made, type)

    def slice_lanes(self, x: Value, start: int, lanes: int) -> Value:
        """`lanes` consecutive lanes from `start`."""
        if start == 0 and lanes == x.type.width:
            return x
        return self.shuffle(x, None, range(start, start + lanes))

    def concat(self, x: Value, y: Value) -> Value:
        """Lanes of x followed by those of y (equal widths)."""
        if not x.type.lanes:
            return self.pack([x, y])
        return self.shuffle(x, y, range(2 * x.type.lanes))

    def reduce_tree(self, x: Value, combine: str) -> Value:
        """Fold halves onto each other with the method named `combine` (add, maxnum, ...).

        The order depends on the lane count only, never on threads. Lanes: a power of two.
        """
        while x.type.lanes:
            half = x.type.lanes // 2
            x = getattr(self, combine)(
                self.slice_lanes(x, 0, half), self.slice_lanes(x, half, half)
            )
        return x

    # -- memory -----------------------------------------------------------------------------

    def gep(self, scalar: Type, base: Value, index: Operand, flags: str = "") -> Value:
        """Address of element `index`; a vector index gives a vector of pointers."""
        at = self._typed(index, I64)
        if at.const == 0:
            return base
        lead = f"getelementptr {flags}" if flags else "getelementptr"
        result = vec(base.type.scalar, at.type.lanes or base.type.lanes)
        return self.pure(f"{lead} {scalar.text}, {base}, {at}", result, base, at)

    def load(self, type: Type, address: Value, *, align: int = 0, notes: str = "") -> Value:
        """Load; `align` 0 means the element's size; `notes` such as `!invariant.load !0`."""
        tail = f", {notes}" if notes else ""
        place = f"{address.type.text} {address.text}"
        return self.emit(f"load {type.text}, {place}, align {align or _natural(type)}{tail}", type)

    def invariant(self, type: Type, address: Value) -> Value:
        """Load what no kernel writes and is always there: it moves and is reused as if computed."""
        place = f"{address.type.text} {address.text}, align {_natural(type)}"
        note = self.module.empty_node()
        return self.pure(f"load {type.text}, {place}, !invariant.load {note}", type, address)

    def store(self, x: Value, address: Value, *, align: int = 0, notes: str = "") -> None:
        """Store; `notes` such as `!nontemporal !1`."""
        tail = f", {notes}" if notes else ""
        where = f"{address.type.text} {address.text}, align {align or _natural(x.type)}"
        self.lines.append(f"  store {x.type.text} {x.text}, {where}{tail}")

    def first_lanes(self, count: Operand, lanes: int, start: int = 0) -> Value:
        """A mask with the lanes on whose number, from `start`, is below `count` (i64, any sign)."""
        left = self._typed(count, I64)
        numbers = range(start, start + lanes)
        if left.const is not None:
            return const_vector(I1, [lane < left.const for lane in numbers])
        # One count for all vectors of a row, whatever their `start`.
        clamped = self.cast(self.smin(self.smax(left, 0), (1 << 31) - 1), I32)
        made = self.cmp("ult", iota(I32, lanes, start), self.splat(clamped, lanes))
        # Frozen, or LLVM repeats the comparison next to every use, in the innermost loop.
        return self.pure(f"freeze {made}", made.type, made)

    def masked_load(
        self, type: Type, address: Value, mask: Value, other: Value | None = None, align: int = 0
    ) -> Value:
        """Load the lanes that are on; the rest take `other` (zero)."""
        name = f"llvm.masked.load.{type.suffix}.{address.type.suffix}"
        fill = zero(type) if other is None else other
        place = f"{address.type.text} align {align or _natural(type)} {address.text}"
        self.module.declare(name, type, [address.type, mask.type, type])
        return self.emit(f"call {type.text} @{name}({place}, {mask}, {fill})", type)

    def masked_store(self, x: Value, address: Value, mask: Value, align: int = 0) -> None:
        """Store the lanes that are on."""
        name = f"llvm.masked.store.{x.type.suffix}.{address.type.suffix}"
        place = f"{address.type.text} align {align or _natural(x.type)} {address.text}"
        self.module.declare(name, VOID, [x.type, address.type, mask.type])
        self.effect(f"call void @{name}({x}, {place}, {mask})")

    def gather(
        self, type: Type, addresses: Value, mask: Value | None = None, other: Value | None = None
    ) -> Value:
        """Load each lane from its own address."""
        name = f"llvm.masked.gather.{type.suffix}.{addresses.type.suffix}"
        on = const(vec(I1, type.lanes), True) if mask is None else mask
        fill = zero(type) if other is None else other
        place = f"{addresses.type.text} align {_natural(type)} {addresses.text}"
        self.module.declare(name, type, [addresses.type, on.type, type])
        return self.emit(f"call {type.text} @{name}({place}, {on}, {fill})", type)

    def scatter(self, x: Value, addresses: Value, mask: Value | None = None) -> None:
        """Store each lane to its own address, lane 0 first where addresses coincide."""
        name = f"llvm.masked.scatter.{x.type.suffix}.{addresses.type.suffix}"
        on = const(vec(I1, x.type.lanes), True) if mask is None else mask
        place = f"{addresses.type.text} align {_natural(x.type)} {addresses.text}"
        self.module.declare(name, VOID, [x.type, addresses.type, on.type])
        self.effect(f"call void @{name}({x}, {place}, {on})")

    def alloca(self, scalar: Type, count: int, align: int = 64) -> Value:
        """Stack scratch of `count` elements, placed in the entry block wherever it is asked for."""
        self._count += 1
        name = f"%v{self._count}"
        self._entry.append(f"  {name} = alloca {scalar.text}, i64 {count}, align {align}")
        return Value(name, PTR)

    # -- control flow -----------------------------------------------------------------------

    def new_label(self, stem: str = "block") -> str:
        """A fresh label name; nothing is written yet."""
        self._count += 1
        return f"{stem}.{self._count}"

    def _place(self, name: str) -> None:
        """Begin block `name`; an open block falls through to it."""
        if self._open:
            self.br(name)
        self.lines.append(f"{name}:")
        self.block = name
        self._open = True

    def br(self, target: str) -> None:
        """Jump."""
        self.lines.append(f"  br label %{target}")
        self._open = False

    def cond_br(self, condition: Value, then: str, otherwise: str) -> None:
        """Branch; a constant condition becomes a jump."""
        if condition.const is not None:
            return self.br(then if condition.const else otherwise)
        self.lines.append(f"  br {condition}, label %{then}, label %{otherwise}")
        self._open = False

    def ret(self, x: Value | None = None) -> None:
        """Return."""
        self.lines.append("  ret void" if x is None else f"  ret {x}")
        self._open = False

    def phi(self, incoming: Sequence[tuple[Value, str]]) -> Value:
        """Join values of predecessor blocks; must come first in its block."""
        type = incoming[0][0].type
        inner = ", ".join([f"[ {value.text}, %{block} ]" for value, block in incoming])
        return self.emit(f"phi {type.text} {inner}", type)

    def loop(
        self,
        lo: Operand,
        hi: Operand,
        step: Operand = 1,
        *,
        carried: Sequence[Value] = (),
        nonempty: bool = False,
        type: Type = I64,
    ) -> Loop:
        """`for index in range(lo, hi, step)`, step > 0, as a `with` block; see `Loop`.

        `nonempty=True` promises lo < hi, which saves the guard and the exit phis.
        """
        bounds = [self._typed(x, type) for x in (lo, hi, step)]
        return Loop(self, bounds[0], bounds[1], bounds[2], list(carried), nonempty)

    def while_(self, carried: Sequence[Value]) -> While:
        """A loop on a condition computed in the loop's head; see `While`."""
        return While(self, list(carried))

    def if_(self, condition: Value) -> If:
        """`with b.if_(c): ...`, optionally followed by `with branch.otherwise(): ...`."""
        return If(self, condition)


IRBuilder = Function


def _natural(type: Type) -> int:
    """Alignment that every buffer has: that of the element."""
    return max(type.bits // 8, 1)


class Loop:
    """A counted loop. In the body: `index`, `carried`; call `next` with the new carried values.

    After the block: `results` are the carried values at exit (the initial ones if no iteration
    ran). `break` does not exist; a search loop is a `While`.
    """

    __slots__ = ("carried", "index", "results", "_b", "_body", "_done", "_hi", "_init", "_lo",
                 "_new", "_nonempty", "_pre", "_step", "_where")  # fmt: skip

    def __init__(
        self, b: Function, lo: Value, hi: Value, step: Value, init: list[Value], nonempty: bool
    ) -> None:
        self._b, self._lo, self._hi, self._step, self._init = b, lo, hi, step, init
        self._nonempty = nonempty or (
            lo.const is not None and hi.const is not None and lo.const < hi.const
        )
        self._new: list[Value] = []
        self.results: list[Value] = []

    def __enter__(self) -> Loop:
        b = self._b
        self._body, self._done = b.new_label("loop"), b.new_label("done")
        b._enter_loop()
        if self._nonempty:
            b.br(self._body)
        else:  # never folded, even if known to be empty: the body needs its predecessor
            guard = b.cmp("slt", self._lo, self._hi)
            b.lines.append(f"  br {guard}, label %{self._body}, label %{self._done}")
            b._open = False
        self._pre = b.block
        b._enter()
        b._place(self._body)
        self._where = len(b.lines)
        self.index = b.emit("", self._lo.type)
        self.carried = [b.emit("", value.type) for value in self._init]
        return self

    def next(self, *values: Value) -> None:
        """Give the carried values of the next iteration, in order; once, at the body's end."""
        assert not self._new, "next was called twice"
        for value, init in zip(values, self._init, strict=True):
            if value.type is not init.type:
                raise TypeError(f"carried value changes type: {init} to {value}")
        self._new = list(values)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        b = self._b
        assert len(self._new) == len(self._init), "a loop with carried values must call next"
        after = b.add(self.index, self._step)
        latch, again = b.block, b.cmp("slt", after, self._hi)
        b.lines.append(f"  br {again}, label %{self._body}, label %{self._done}")
        b._open = False
        phis = zip(
            [self.index, *self.carried], [self._lo, *self._init], [after, *self._new], strict=True
        )
        for offset, (phi, init, new) in enumerate(phis):
            b.lines[self._where + offset] = (
                f"  {phi.text} = phi {phi.type.text} [ {init.text}, %{self._pre} ], "
                f"[ {new.text}, %{latch} ]"
            )
        b._leave()
        b._loops.pop()
        b._place(self._done)
        if self._nonempty:
            self.results = [replace(x, depth=min(x.depth, len(b._loops))) for x in self._new]
        else:
            pairs = zip(self._init, self._new, strict=True)
            self.results = [b.phi([(init, self._pre), (new, latch)]) for init, new in pairs]


class While:
    """`with b.while_([x]) as w: w.test(cond); ...; w.next(new)`: test at the head each time.

    Before `test` is the head (evaluated once more than the body); `results` are the carried
    values when the condition failed.
    """

    __slots__ = ("carried", "results", "_b", "_done", "_head", "_init", "_new", "_pre", "_where")  # fmt: skip

    def __init__(self, b: Function, init: list[Value]) -> None:
        self._b, self._init = b, init
        self._new: list[Value] = []

    def __enter__(self) -> While:
        b = self._b
        self._pre, self._head, self._done = b.block, b.new_label("while"), b.new_label("done")
        b._enter_loop()
        b._place(self._head)
        self._where = len(b.lines)
        self.carried = [b.emit("", value.type) for value in self._init]
        self.results = self.carried
        return self

    def test(self, condition: Value) -> None:
        """Leave the loop unless `condition`."""
        body = self._b.new_label("body")
        self._b.cond_br(condition, body, self._done)
        self._b._enter()
        self._b._place(body)

    def next(self, *values: Value) -> None:
        """Give the carried values of the next iteration."""
        self._new = list(values)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        b, latch = self._b, self._b.block
        assert len(self._new) == len(self._init), "a while with carried values must call next"
        b.br(self._head)
        phis = zip(self.carried, self._init, self._new, strict=True)
        for offset, (phi, init, new) in enumerate(phis):
            b.lines[self._where + offset] = (
                f"  {phi.text} = phi {phi.type.text} [ {init.text}, %{self._pre} ], "
                f"[ {new.text}, %{latch} ]"
            )
        b._leave()
        b._loops.pop()
        b._place(self._done)
        self.results = [replace(x, depth=len(b._loops)) for x in self.carried]


class If:
    """A branch; `join(x, y)` after both arms gives x if the condition held, else y."""

    __slots__ = ("_b", "_before", "_condition", "_else", "_else_end", "_end", "_then_end",
                 "_where")  # fmt: skip

    def __init__(self, b: Function, condition: Value) -> None:
        self._b, self._condition = b, condition
        self._else_end = ""

    def __enter__(self) -> If:
        b = self._b
        then, self._else, self._end = b.new_label("then"), b.new_label("else"), b.new_label("endif")
        self._before, self._where = b.block, len(b.lines)
        b.lines.append(f"  br {self._condition}, label %{then}, label %{self._end}")
        b._open = False
        b._enter()
        b._place(then)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        b = self._b
        self._then_end = b.block
        if b._open:
            b.br(self._end)
        b._leave()
        b._place(self._end)

    def otherwise(self) -> _Else:
        """The other arm; must follow directly, before any other line is written."""
        return _Else(self)

    def join(self, x: Value, y: Value) -> Value:
        """x from the first arm, y from the other (or from before, without `otherwise`)."""
        return self._b.phi([(x, self._then_end), (y, self._else_end or self._before)])


class _Else:
    __slots__ = ("_if",)

    def __init__(self, branch: If) -> None:
        self._if = branch

    def __enter__(self) -> None:
        branch = self._if
        b = branch._b
        closing = b.lines.pop()  # the end label moves behind this arm
        assert closing == f"{branch._end}:", "otherwise must follow its if_ directly"
        line = b.lines[branch._where]
        assert isinstance(line, str)
        b.lines[branch._where] = line.replace(f"%{branch._end}", f"%{branch._else}")
        b.block, b._open = branch._then_end, False
        b._enter()
        b._place(branch._else)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        branch = self._if
        b = branch._b
        branch._else_end = b.block
        if b._open:
            b.br(branch._end)
        b._leave()
        b._place(branch._end)
