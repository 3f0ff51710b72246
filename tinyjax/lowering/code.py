"""What is kept of a kernel once its LLVM text is written: the text, tasks, work, decisions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.lowering.emit import emit
from tinyjax.lowering.nest import Loop, Nest, Write
from tinyjax.lowering.schedule import Schedule
from tinyjax.lowering.target import Target
from tinyjax.lowering.tasks import TaskSplit


@dataclass(frozen=True, slots=True)
class KernelCode:
    """LLVM text of one kernel and what the runtime and the plan need to know of it.

    `passes` is the runtime's kind of compilation ("vector" needs no LLVM passes). Thread counts
    never matter: tasks are [0, tasks.total) units, taken `tasks.chunk` at a time. `scratch` are the
    bytes of further slots that the kernel uses after the SINK's own.
    """

    name: str
    ir_text: str
    passes: Literal["vector", "scalar"]
    tasks: TaskSplit
    flops: int
    bytes: int
    cycles: float  # the schedule's estimate, all tasks together
    schedule: tuple[str, ...]
    listing: str
    scratch: tuple[int, ...] = ()


def emit_kernel(plan: Schedule, target: Target, name: str) -> KernelCode:
    """schedule -> LLVM text with explicit vectors"""
    flops, nbytes = _work(plan.nest)
    return KernelCode(
        name,
        emit(plan, target, name),
        "vector" if any("vector" in a for a in plan.actions) else "scalar",
        plan.tasks.split,
        flops,
        nbytes,
        plan.cycles,
        tuple(plan.actions),
        plan.nest.text(),
        plan.scratch,
    )


def _work(nest: Nest) -> tuple[int, int]:
    """Arithmetic operations (a transcendental is one) and bytes of the buffers touched."""
    flops = 0

    def visit(lines: Any, times: int) -> None:
        nonlocal flops
        for line in lines:
            if isinstance(line, Loop):
                visit(line.lines, times * line.extent)
            elif isinstance(line, UOp):
                if line.op not in (Op.LOAD, Op.CAST, Op.BITCAST, Op.GETTUPLE):
                    flops += times
            elif not isinstance(line, Write):
                flops += times

    visit(nest.lines, 1)
    buffers = {n for n in nest.order if n.op is Op.PARAM}
    return flops, sum(p.aval.size * int(math.ceil(p.aval.dtype.itemsize)) for p in buffers)
