"""Expressions emitted inside a loop nest written by hand, as the DOT generator does."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests.lowering.kernels import buffer, cast, load, loop, node, plus, store
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.lowering.expression import Expressions
from tinyjax.lowering.irtext import F32, I64, PTR, Module, vec
from tinyjax.lowering.registers import FLOAT32, Register
from tinyjax.lowering.target import host
from tinyjax.runtime import cpu, loader


@pytest.mark.parametrize("along", ["row", "col"])
@pytest.mark.parametrize("count", [8, 5])
def test_an_operand_is_loaded_along_either_axis_and_an_epilogue_stores_it(
    along: str, count: int
) -> None:
    """y[m, k] = relu(placeholder + bias[k]) with placeholder = int8 x[k, m] as float32."""
    m, k = loop(8, 0), loop(8, 1)
    operand = cast(load(buffer(1, (8, 8), np.int8), plus((k, 8), m)), np.float32)
    # Any node can stand for the accumulated value; this one is never evaluated.
    sums = load(buffer(9, (8, 8), np.float32), plus((m, 8), k))
    biased = node(Op.ADD, sums, load(buffer(2, (8,), np.float32), k))
    target = store(buffer(0, (8, 8), np.float32), plus((m, 8), k), node(Op.MAX, biased, 0.0), m, k)

    module = Module()
    b = module.function("kernel", [("slots", PTR), ("dims", PTR), ("lo", I64), ("hi", I64)])
    slots = {i: b.load(PTR, b.gep(PTR, b.args[0], i), align=8) for i in range(3)}
    inside = Expressions(b, host(), slots, [operand, target.src[0]])
    vector = m if along == "row" else k
    mask = None if count == 8 else b.first_lanes(count, 8)
    with b.loop(b.args[2], b.args[3]) as other:
        zero = b.sub(other.index, other.index)
        at: dict[UOp, Any] = (
            {m: other.index, k: zero} if along == "col" else {m: zero, k: other.index}
        )
        loaded = inside.value(operand, at, vector, 8, mask)
        assert loaded.value is not None and loaded.value.type is vec(F32, 8)
        known = {sums: Register(FLOAT32, b.mul(loaded.value, 2.0))}
        inside.store(target.src[0], at, vector, 8, mask, known)
    b.ret()
    code = loader.load(cpu.compile_ir(module.text(), "kernel"), ["kernel"])
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

    rng = np.random.default_rng(0)
    x = rng.integers(-100, 100, (8, 8)).astype(np.int8)
    bias = rng.normal(size=8).astype(np.float32)
    y = np.full((8, 8), -1, np.float32)
    addresses = (ctypes.c_void_p * 3)(y.ctypes.data, x.ctypes.data, bias.ctypes.data)
    run(code.addresses["kernel"])(addresses, None, 0, 8)
    expected = np.maximum(2 * x.T.astype(np.float32) + bias, 0)
    done = np.zeros((8, 8), bool)
    done[(slice(None), slice(count)) if along == "col" else (slice(count),)] = True
    np.testing.assert_allclose(y, np.where(done, expected, -1))
