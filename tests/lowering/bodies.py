"""Bodies for the lowering tests: parameters, small models, and how to run what is lowered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as B
from tinyjax.core import memory
from tinyjax.core.avals import aval
from tinyjax.core.infos import GatherInfo
from tinyjax.core.uop import UOp, param, tuple_of
from tinyjax.lowering.program import Lowered, lower
from tinyjax.runtime import buffers

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)


def arg(slot: int, shape: tuple[int, ...], dtype: Any = F32) -> UOp:
    """Parameter `slot`."""
    return param(slot, aval(shape, np.dtype(dtype)))


def scalar(value: float, dtype: Any = F32) -> UOp:
    return B.scalar(value, np.dtype(dtype))


def normal(seed: int, *shape: int) -> np.ndarray:
    """Fixed float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def rows(x: UOp, like: UOp) -> UOp:
    """A value per row, repeated along the last axis."""
    return B.expand(x, like.shape, tuple(range(like.ndim - 1)))


def softmax(x: UOp) -> UOp:
    axis = x.ndim - 1
    e = B.exp(B.sub(x, rows(B.reduce("max", x, [axis]), x)))
    return B.div(e, rows(B.sum_(e, [axis]), e))


def layer_norm(x: UOp) -> UOp:
    axis, size = x.ndim - 1, x.shape[-1]
    centred = B.sub(x, rows(B.mul(B.sum_(x, [axis]), scalar(1 / size)), x))
    variance = B.mul(B.sum_(B.mul(centred, centred), [axis]), scalar(1 / size))
    return B.mul(centred, rows(B.rsqrt(B.add(variance, scalar(1e-5))), x))


def transformer(
    layers: int, batch: int = 2, time: int = 8, width: int = 32, heads: int = 4
) -> tuple[UOp, int]:
    """A decoder's forward pass; returns the body and the number of its parameters."""
    made: list[UOp] = []

    def new(shape: tuple[int, ...], dtype: Any = F32) -> UOp:
        made.append(arg(len(made), shape, dtype))
        return made[-1]

    tokens, table = new((batch, time), I32), new((50, width))
    picked = GatherInfo((2,), (0,), (0,), (1, width))
    x = B.gather(table, B.reshape(tokens, (batch, time, 1)), picked)
    causal = B.ge(B.iota((time, time), 0), B.iota((time, time), 1))
    last = ((2,), (0,))
    for _ in range(layers):
        qkv = B.dot(layer_norm(x), new((width, 3 * width)), last)
        q, k, v = (
            B.reshape(
                B.slice_axis(qkv, 2, i * width, (i + 1) * width),
                (batch, time, heads, width // heads),
            )
            for i in range(3)
        )
        scores = B.mul(B.dot(q, k, ((3,), (3,)), ((0, 2), (0, 2))), scalar(0.3))
        scores = B.where(
            B.expand(causal, scores.shape, (2, 3)), scores, B.full(scores.shape, scalar(-1e30))
        )
        mixed = B.dot(softmax(scores), v, ((3,), (1,)), ((0, 1), (0, 2)))
        joined = B.reshape(B.permute(mixed, (0, 2, 1, 3)), (batch, time, width))
        x = B.add(x, B.dot(joined, new((width, width)), last))
        hidden = B.tanh(B.dot(layer_norm(x), new((width, 4 * width)), last))
        x = B.add(x, B.dot(hidden, new((4 * width, width)), last))
    logits = B.dot(layer_norm(x), table, ((2,), (1,)))
    return tuple_of([logits]), len(made)


def run(lowered: Lowered, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Results of the compiled program."""
    program = lowered.program()
    outputs = [buffers.pool.empty(s.aval.shape, s.aval.dtype) for s in lowered.plan.outputs]
    inputs = [
        np.ascontiguousarray(a, s.aval.dtype)
        for a, s in zip(args, lowered.plan.inputs, strict=True)
    ]
    program.run(*(memory.address(a) if a.size else 0 for a in [*inputs, *outputs]))
    return outputs


def check(
    outputs: Sequence[UOp],
    args: Sequence[np.ndarray],
    expected: Sequence[Any],
    *,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    native: bool = True,
) -> Lowered:
    """Interpreted plan and compiled program both give `expected`; exactly if it is not floating."""
    lowered = lower(tuple_of(list(outputs)), len(args))
    found = [lowered.interpret(args)]
    if native:
        found.append(run(lowered, args))
    for results in found:
        assert len(results) == len(expected)
        for result, want in zip(results, expected):
            want = np.asarray(want)
            assert result.shape == want.shape
            if result.dtype.kind in "biu":
                np.testing.assert_array_equal(result, want)
            else:
                wide = result if result.dtype.kind in "fc" else result.astype(np.float32)
                np.testing.assert_allclose(wide, want, rtol=rtol, atol=atol)
    return lowered
