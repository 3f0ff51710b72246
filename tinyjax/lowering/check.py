"""Running kernels on small made-up buffers, to compare them before and after a pass.

For option `tinyjax_verify` 2 (driver.py): the plain Python interpreters are the reference. Kernels
with much work are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.lowering.nest import extent

Array = np.ndarray[Any, Any]
MAX_WORK = 2000
"""Iterations of all ranges together that level 2 interprets; about 10 us each and node."""


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


def results_of(sinks: Sequence[UOp], run: Callable[[list[Array]], None]) -> list[Array] | None:
    """What `run` leaves in made-up buffers for these kernels; None if that would take long."""
    if max(map(work_of, sinks), default=0) > MAX_WORK:
        return None
    buffers = made_up_buffers(sinks, slots_of(*sinks))
    run(buffers)
    return buffers


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
