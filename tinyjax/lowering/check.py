"""Option `tinyjax_verify`: what each level does to a body and to a kernel while it is lowered.

Level 1: the stage verifier runs after every pass (a StageError names the node and the rule).
Level 2: a kernel is run before and after each of its passes on small made-up buffers by the plain
Python interpreters; a pass that changes a result is named. Kernels with much work are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.config import config
from tinyjax.core.ops import J, Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.core.verify import StageError, verify_stage
from tinyjax.lowering.interpret import interpret, interpret_nest
from tinyjax.lowering.nest import Nest, extent

Array = np.ndarray[Any, Any]
MAX_WORK = 2000
"""Iterations of all ranges together that level 2 interprets; about 10 us each and node."""


def after_pass(body: UOp, name: str) -> UOp:
    """`body`, verified as a jaxpr if the option asks for it."""
    if config.tinyjax_verify:
        try:
            verify_stage(body.src, J)
        except StageError as error:
            raise StageError(f"after pass {name}: {error}") from None
    return body


def made_up_buffers(sinks: Sequence[UOp], slots: int) -> list[Array]:
    """One array per slot with small numbers that depend on its number and aval only."""
    found = [np.zeros(1, np.uint8)] * slots
    for node in toposort(sinks):
        if node.op is Op.PARAM:
            slot, of = node.arg
            rng = np.random.default_rng(slot)
            numbers = rng.integers(0, 4, of.size)
            if dtypes.is_inexact(of.dtype):
                numbers = numbers + rng.choice([0.25, 0.5], of.size)
            found[slot] = numbers.astype(of.dtype).reshape(of.shape)
    return found


def work_of(sink: UOp) -> int:
    """Iterations if all ranges were nested."""
    return int(math.prod(max(1, extent(n)) for n in toposort([sink]) if n.op is Op.RANGE))


def slots_of(*sinks: UOp) -> int:
    """Slots these kernels use."""
    return 1 + max(int(n.arg[0]) for n in toposort(sinks) if n.op is Op.PARAM)


def same_results(
    sink: UOp, slots: int, again: Callable[[list[Array]], None], name: str, more: Sequence[UOp] = ()
) -> None:
    """Raise StageError if `again` leaves other numbers in the slots of `sink` than `sink` does.

    `more` are kernels whose further slots (scratch) are made as well.
    """
    if config.tinyjax_verify < 2 or max(map(work_of, (sink, *more))) > MAX_WORK:
        return
    before = made_up_buffers([sink], slots_of(sink))
    after = made_up_buffers([sink, *more], slots)
    interpret(sink, before)
    again(after)
    for number, (x, y) in enumerate(zip(before, after, strict=False)):
        if not close(x, y):
            raise StageError(f"pass {name} changes what the kernel writes to slot {number}")


def same_kernels(before: UOp, after: UOp, name: str) -> None:
    """A pass from one SINK to another."""
    if before is not after:
        same_results(before, slots_of(before), lambda b: interpret(after, b), name)


def same_nest(sink: UOp, nest: Nest) -> None:
    """From a SINK to the ordered list of stage 3."""
    same_results(sink, slots_of(sink), lambda b: interpret_nest(nest, b), "schedule")


def same_split(sink: UOp, partial: UOp, final: UOp) -> None:
    """From a reduction to two kernels with partial results between them."""

    def both(buffers: list[Array]) -> None:
        interpret(partial, buffers)
        interpret(final, buffers)

    slots = slots_of(sink, partial, final)
    same_results(sink, slots, both, "split_folds", (partial, final))


def close(x: Array, y: Array) -> bool:
    """Equal, or as near as sums in another order are."""
    if not dtypes.is_inexact(x.dtype):
        return bool((x == y).all())
    kind = np.complex128 if dtypes.is_complex(x.dtype) else np.float64
    real = dtypes.to_floating_dtype(x.dtype) if dtypes.is_complex(x.dtype) else x.dtype
    tolerance = 64 * float(dtypes.finfo(real).eps)
    return bool(
        np.allclose(x.astype(kind), y.astype(kind), rtol=tolerance, atol=tolerance, equal_nan=True)
    )
