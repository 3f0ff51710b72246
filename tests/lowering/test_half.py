"""float16 on CPUs without its conversions: all code is integer code, no library is called."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.lowering.bodies import arg
from tinyjax.core import build as B
from tinyjax.core import dtypes
from tinyjax.core.infos import GatherInfo, ScatterInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, get, tuple_of
from tinyjax.lowering.program import kernel_of, lower, walk
from tinyjax.lowering.target import describe, host
from tinyjax.runtime import cpu

F16 = np.dtype(np.float16)
OLD = describe(host().triple, "x86-64-v2", frozenset({"sse4.2"}))

x86 = pytest.mark.skipif("x86_64" not in host().triple, reason="the CPU is named")


def compiled(*outputs: UOp) -> str:
    """The text of all kernels of a body, compiled for the old CPU (which checks what they call)."""
    lowered = lower(tuple_of(list(outputs)))
    texts = []
    for step in walk(lowered.plan.steps):
        kernel = kernel_of(step)
        for code in kernel.codes(OLD):
            cpu.compile_ir(code.ir_text, "half", passes=code.passes, cpu=OLD.cpu)
            texts.append(code.ir_text)
    return "\n".join(texts)


def assert_emulated(*outputs: UOp) -> None:
    assert not re.search(r"\bhalf\b", compiled(*outputs))


@x86
@pytest.mark.parametrize("sizes", [(3, 4, 5), (70, 65, 33), (1, 300, 64), (64, 2000, 3)], ids=str)
def test_a_dot_of_half_precision(sizes):
    m, k, n = sizes
    x, y = arg(0, (m, k), F16), arg(1, (k, n), F16)
    product = B.dot(x, y, ((1,), (0,)))
    assert_emulated(product)
    assert_emulated(B.permute(product, (1, 0)), B.exp(product))
    assert_emulated(B.dot(B.permute(x, (1, 0)), B.permute(y, (1, 0)), ((0,), (1,))))


@x86
def test_folds_and_indexed_writes_of_half_precision():
    x, at = arg(0, (40, 33), F16), arg(1, (9, 1), np.int32)
    assert_emulated(B.sum_(x, [1]), B.reduce("max", x, [0]), B.argreduce("argmin", x, 1)[1])
    assert_emulated(UOp(Op.PREFIX, (x,), ("add", 1, False)))
    assert_emulated(get(UOp(Op.SORT, (x,), (1, 1, True)), 0))
    assert_emulated(B.gather(x, at, GatherInfo((1,), (0,), (0,), (1, 33))))
    new = arg(2, (9, 33), F16)
    assert_emulated(B.scatter(x, at, new, ScatterInfo("add", (1,), (0,), (0,))))


@x86
@pytest.mark.parametrize("other", [d for d in dtypes.DTYPES.values() if d != F16], ids=str)
def test_conversions_of_half_precision(other):
    assert_emulated(B.cast(arg(0, (37,), F16), other))
    assert_emulated(B.cast(arg(0, (37,), other), F16))


@x86
def test_functions_of_half_precision():
    x, y = arg(0, (37,), F16), arg(1, (37,), F16)
    outputs = [f(x) for f in (B.exp, B.sin, B.tanh, B.log, B.sqrt, B.rsqrt, B.neg, B.abs_)]
    assert_emulated(*outputs, B.add(x, y), B.div(x, y), B.max_(x, y), UOp(Op.NEXTAFTER, (x, y)))
    assert_emulated(UOp(Op.REDUCE_PRECISION, (x,), (4, 3)), UOp(Op.POW, (x, y)))
