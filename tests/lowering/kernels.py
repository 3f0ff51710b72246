"""Hand-built stage-2 kernels for tests, and the comparison of generated code with `interpret`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

import tinyjax.core.rules  # noqa: F401  (fills the aval table)
from tinyjax.core.avals import aval
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const, param
from tinyjax.core.verify import verify_kernel
from tinyjax.lowering.code import KernelCode
from tinyjax.lowering.codegen import compile_kernel
from tinyjax.lowering.driver import run
from tinyjax.lowering.interpret import interpret, interpret_nest
from tinyjax.lowering.nest import verify
from tinyjax.lowering.passes import WHOLE
from tinyjax.lowering.target import Target, host
from tinyjax.runtime import cpu, loader

INT64 = np.dtype(np.int64)
Array = np.ndarray[Any, Any]


def literal(value: Any, dtype: Any = INT64) -> UOp:
    return const(value, np.dtype(dtype))


def loop(extent: int, number: int, kind: str = "loop") -> UOp:
    return UOp(Op.RANGE, (literal(extent),), (number, kind))


def node(op: Op, *src: Any, arg: Any = None) -> UOp:
    """An op whose Python-number operands become literals of the first operand's dtype."""
    dtype = next(s.aval.dtype for s in src if isinstance(s, UOp))
    return UOp(op, tuple(s if isinstance(s, UOp) else literal(s, dtype) for s in src), arg)


def plus(*terms: Any) -> UOp:
    """Sum of index terms; a pair (node, k) is node * k."""
    total: UOp | None = None
    for t in terms:
        x = node(Op.MUL, t[0], t[1]) if isinstance(t, tuple) else t
        x = x if isinstance(x, UOp) else literal(x)
        total = x if total is None else node(Op.ADD, total, x)
    assert total is not None
    return total


def buffer(slot: int, shape: Sequence[int], dtype: Any) -> UOp:
    return param(slot, aval(tuple(shape), np.dtype(dtype)))


def load(of: UOp, at: UOp, valid: UOp | None = None, other: UOp | None = None) -> UOp:
    index = UOp(Op.INDEX, (of, at) if valid is None else (of, at, valid))
    return UOp(Op.LOAD, (index,) if other is None else (index, other))


def store(of: UOp, at: UOp, value: UOp, *ranges: UOp, valid: UOp | None = None) -> UOp:
    index = UOp(Op.INDEX, (of, at) if valid is None else (of, at, valid))
    return UOp(Op.END, (UOp(Op.STORE, (index, value)), *ranges))


def fold(kind: str, value: UOp, *ranges: UOp) -> UOp:
    return UOp(Op.FOLD, (value, *ranges), kind)


def cast(x: UOp, dtype: Any) -> UOp:
    return UOp(Op.CAST, (x,), (np.dtype(dtype), False))


def kernel(*ends: UOp) -> UOp:
    return UOp(Op.SINK, ends)


def map_kernel(function: Any, shape: int, out: Any, *dtypes: Any) -> UOp:
    """out[i] = function(in0[i], in1[i], ...) over one axis."""
    i = loop(shape, 0)
    values = [load(buffer(1 + k, (shape,), d), i) for k, d in enumerate(dtypes)]
    return kernel(store(buffer(0, (shape,), out), i, function(*values), i))


class Compiled:
    """A kernel in memory; `run` calls it on arrays, `parts` are task ranges."""

    def __init__(
        self, sink: UOp, target: Target | None = None, actions: Sequence[str] | None = None
    ) -> None:
        self.code: KernelCode = compile_kernel(sink, target, actions=actions)
        name = self.code.name
        chosen = {} if target is None else {"cpu": target.cpu, "features": target.features}
        data = cpu.compile_ir(self.code.ir_text, name, passes=self.code.passes, **chosen)
        self.loaded = loader.load(data, [name])
        kind = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
        )
        self.call = kind(self.loaded.addresses[name])

    def run(self, arrays: Sequence[Array], parts: Sequence[tuple[int, int]] | None = None) -> None:
        slots = (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
        for lo, hi in parts or [(0, self.code.tasks.total)]:
            self.call(slots, None, lo, hi)


def guarded(a: Array) -> tuple[Array, Array]:
    """A copy of `a` in the middle of a larger array full of a pattern, and that whole array."""
    pad = 256
    whole = np.full(a.nbytes + 2 * pad, 0xA5, np.uint8)
    inner = whole[pad : pad + a.nbytes].view(a.dtype).reshape(a.shape)
    inner[...] = a
    return inner, whole


def same_bits(actual: Array, expected: Array) -> None:
    """Equal bit by bit, except that any NaN equals any NaN."""
    kind = np.complex128 if actual.dtype.kind == "c" else np.float64
    if actual.dtype.kind in "biu":
        np.testing.assert_array_equal(actual, expected)
        return
    a, e = actual.astype(kind), expected.astype(kind)
    np.testing.assert_array_equal(a, e)
    for x, y in ((a.real, e.real), (a.imag, e.imag)):
        keep = ~np.isnan(y)
        np.testing.assert_array_equal(np.signbit(x)[keep], np.signbit(y)[keep])


def close(actual: Array, expected: Array, tolerance: float) -> None:
    kind = np.complex128 if actual.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(
        actual.astype(kind), expected.astype(kind), rtol=tolerance, atol=tolerance
    )


def check(
    sink: UOp,
    arrays: Sequence[Array],
    tolerance: float = 0.0,
    target: Target | None = None,
    actions: Sequence[str] | None = None,
) -> Compiled:
    """Generated code agrees with the interpreter, stays inside its buffers, and any split into
    tasks gives the same bits. `actions` replace the schedule's own."""
    made = Compiled(sink, target, actions)
    verify_kernel(sink)
    expected = [a.copy() for a in arrays]
    interpret(sink, expected)
    nest = run(WHOLE, sink, target=target or host()).nest
    verify(nest)
    listed = [a.copy() for a in arrays]
    interpret_nest(nest, listed)
    for a, e in zip(listed, expected):
        close(a, e, tolerance or 1e-30)
    pairs = [guarded(a) for a in arrays]
    made.run([p[0] for p in pairs])
    for (actual, whole), e in zip(pairs, expected):
        if tolerance:
            close(actual, e, tolerance)
        else:
            same_bits(actual, e)
        assert (whole[:256] == 0xA5).all() and (whole[-256:] == 0xA5).all(), "wrote outside"
    total = made.code.tasks.total
    if total > 1:
        again = [a.copy() for a in arrays]
        cut = total // 3
        made.run(again, [(cut, total), *((i, i + 1) for i in range(cut))])
        for (actual, _), a in zip(pairs, again):
            assert actual.tobytes() == a.tobytes()
    return made


NARROW_TARGETS = [host()]
"""Targets to test: this machine, and AVX2 and SSE2 code where this machine can run them."""
if "x86_64" in host().triple:
    for level in ("x86-64-v3", "x86-64"):
        v3 = level == "x86-64-v3" and host().vector_bytes >= 32
        if v3:
            NARROW_TARGETS.append(Target(host().triple, level, "", 32, 16, False, True, True))
        elif level == "x86-64":
            NARROW_TARGETS.append(Target(host().triple, level, "", 16, 16, False, False, False))
