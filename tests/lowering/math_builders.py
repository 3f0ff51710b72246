"""Two implementations of `MathBuilder` for tests: NumPy arrays and compiled LLVM vectors.

Everything a decomposition may use is exactly defined, so both must give the same bits.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tinyjax.lowering.elementary.builder import Num, Slow
from tinyjax.lowering.irtext import I64, PTR, Module, vec
from tinyjax.lowering.math import decompose, decompose_complex
from tinyjax.lowering.registers import Register, RegisterBuilder, register_type
from tinyjax.runtime import cpu, loader

Array = np.ndarray[Any, Any]
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


def round_to_odd(s: Array, error: Array) -> Array:
    """s, moved to the neighbour of s + error that is odd if s is even and not exact.

    Rounding such a sum again to fewer bits gives what one rounding would (Boldo, Melquiond 2008).
    """
    s = np.ascontiguousarray(s)
    bits = s.view(np.int64)
    move = (error != 0) & np.isfinite(error) & (bits & 1 == 0)
    towards = np.where((error > 0) == (s > 0), 1, -1)
    return np.where(move, bits + towards, bits).view(np.float64)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Dekker's, without fma; for operands far from overflow and underflow."""

    def split(x: Array) -> tuple[Array, Array]:
        t = x * 134217729.0
        high = t - (t - x)
        return high, x - high

    p = a * b
    (a1, a0), (b1, b0) = split(a), split(b)
    return p, ((a1 * b1 - p) + a1 * b0 + a0 * b1) + a0 * b0


def exact_fma(a: float, b: float, c: float) -> float:
    """For the few operands that the vectorised form does not cover."""
    value = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def fma64(a: Array, b: Array, c: Array) -> Array:
    a, b, c = np.broadcast_arrays(a, b, c)
    p = a * b
    plain = p + c
    upper, lower = two_product(a, b)
    high, low = two_sum(c, lower)
    top, rest = two_sum(upper, high)
    result = top + round_to_odd(*two_sum(low, rest))

    def between(x: Array, low: float, high: float) -> Array:
        return (np.abs(x) > low) & (np.abs(x) < high)

    safe = between(p, 1e-240, 1e280) & ((c == 0) | between(c, 1e-240, 1e280))
    safe &= between(a, 1e-200, 1e200) & between(b, 1e-200, 1e200)
    special = ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c) | (a == 0) | (b == 0)
    result = np.array(np.where(special, plain, result))
    for i in zip(*np.nonzero(~special & ~safe)):
        result[i] = exact_fma(float(a[i]), float(b[i]), float(c[i]))
    return result


class NumpyMath:
    """`MathBuilder` on arrays; constants are 0-dimensional."""

    def dtype(self, x: Array) -> np.dtype:
        return x.dtype

    def const(self, dtype: np.dtype, value: float | int) -> Array:
        if dtype.kind == "f":
            return np.array(value, dtype)
        unsigned = np.dtype(f"u{dtype.itemsize}")
        return np.array(int(value) % 2 ** (8 * dtype.itemsize), unsigned).view(dtype)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        if a.dtype == F64:
            return fma64(a, b, c)
        exact = np.multiply(a, b, dtype=F64)  # 48 bits
        total, error = two_sum(*np.broadcast_arrays(exact, c.astype(F64)))
        return round_to_odd(total, error).astype(F32)

    def cast(self, x: Array, dtype: np.dtype) -> Array:
        return np.asarray(x).astype(dtype)

    def bitcast(self, x: Array, dtype: np.dtype) -> Array:
        return np.asarray(x).view(dtype)

    def shrl(self, x: Array, count: Array) -> Array:
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        return np.right_shift(x.view(unsigned), count.view(unsigned)).view(x.dtype)

    def rare(self, condition: Array, slow: Slow, x: Array, fast: Sequence[Array]) -> list[Array]:
        slow_values = slow(Num(self, x, x.dtype))
        return [np.where(condition, s.raw, f) for s, f in zip(slow_values, fast)]

    add = staticmethod(np.add)
    sub = staticmethod(np.subtract)
    mul = staticmethod(np.multiply)
    div = staticmethod(np.divide)
    neg = staticmethod(np.negative)
    abs = staticmethod(np.abs)
    sqrt = staticmethod(np.sqrt)
    floor = staticmethod(np.floor)
    lt = staticmethod(np.less)
    le = staticmethod(np.less_equal)
    eq = staticmethod(np.equal)
    ne = staticmethod(np.not_equal)
    where = staticmethod(np.where)
    and_ = staticmethod(np.bitwise_and)
    or_ = staticmethod(np.bitwise_or)
    xor = staticmethod(np.bitwise_xor)
    not_ = staticmethod(np.invert)
    shl = staticmethod(np.left_shift)
    shra = staticmethod(np.right_shift)


def by_numpy(name: str, *args: Array) -> Array:
    """A real op decomposed on arrays."""
    with np.errstate(all="ignore"):
        return np.asarray(decompose(NumpyMath(), name, args))


class Compiled:
    """A decomposition as machine code over whole arrays, `lanes` elements at a time."""

    def __init__(self, name: str, dtype: Any, arity: int = 1, *, complex_op: bool = False) -> None:
        self.dtype = np.dtype(dtype)
        self.lanes = 16 if self.dtype == F32 else 8
        inputs, self.outputs = arity, 1
        if complex_op:
            inputs, self.outputs = 2 * arity, 1 if name == "ABS" else 2
        scalar = register_type(self.dtype)
        wide = vec(scalar, self.lanes)
        size = self.dtype.itemsize
        module = Module()
        pointers = [f"x{i}" for i in range(inputs)] + [f"y{i}" for i in range(self.outputs)]
        b = module.function("apply", [(p, PTR) for p in pointers] + [("count", I64)])
        *places, count = b.args
        with b.loop(0, count, self.lanes) as loop:
            builder = RegisterBuilder(b, self.lanes)
            args = [
                Register(self.dtype, b.load(wide, b.gep(scalar, p, loop.index), align=size))
                for p in places[:inputs]
            ]
            if complex_op:
                pairs = [(args[2 * i], args[2 * i + 1]) for i in range(arity)]
                results = decompose_complex(builder, name, pairs)
            else:
                results = [decompose(builder, name, args)]
            for result, place in zip(results, places[inputs:], strict=True):
                b.store(result.value, b.gep(scalar, place, loop.index), align=size)
        b.ret()
        self.code = loader.load(cpu.compile_ir(module.text(), "apply", allowed=()), ["apply"], ())
        kinds = [ctypes.c_void_p] * (inputs + self.outputs)
        self.function = ctypes.CFUNCTYPE(None, *kinds, ctypes.c_int64)(self.code.addresses["apply"])

    def __call__(self, *args: Any) -> Any:
        count = len(args[0])
        padded = -(-count // self.lanes) * self.lanes
        inputs = [np.resize(np.asarray(x, self.dtype), padded) for x in args]
        results = [np.empty(padded, self.dtype) for _ in range(self.outputs)]
        self.function(*(x.ctypes.data for x in [*inputs, *results]), padded)
        trimmed = [r[:count] for r in results]
        return trimmed[0] if self.outputs == 1 else trimmed
