"""A stage-2 kernel -> code for the CPU. The entry points of the lowering for everything but DOT.

`compile_kernel` is pure and cached per (SINK, target): equal kernels are one object. Nothing is
compiled here: the result holds LLVM text, which the runtime compiles, caches and loads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.lowering.emit import emit
from tinyjax.lowering.nest import Loop, Nest, Write
from tinyjax.lowering.schedule import TaskSplit, merge_ranges, schedule
from tinyjax.lowering.target import Target, host


@dataclass(frozen=True, slots=True)
class KernelCode:
    """LLVM text of one kernel and what the runtime and the plan need to know of it.

    `passes` is the runtime's kind of compilation ("vector" needs no LLVM passes). Thread counts
    never matter: tasks are [0, tasks.total) units, taken `tasks.chunk` at a time.
    """

    name: str
    ir_text: str
    passes: str
    tasks: TaskSplit
    flops: int
    bytes: int
    cycles: float  # the schedule's estimate, all tasks together
    schedule: tuple[str, ...]
    listing: str


_cache: WeakKeyDictionary[UOp, dict[tuple[Target, str], KernelCode]] = WeakKeyDictionary()


def compile_kernel(sink: UOp, target: Target | None = None, name: str = "kernel") -> KernelCode:
    """LLVM text and task split of a stage-2 SINK."""
    target = target or host()
    made = _cache.setdefault(sink, {})
    found = made.get((target, name))
    if found is None:
        found = made[target, name] = _compile(sink, target, name)
    return found


def _compile(sink: UOp, target: Target, name: str) -> KernelCode:
    nest = Nest(merge_ranges(sink))
    plan = schedule(nest, target)
    flops, nbytes = _work(nest)
    return KernelCode(
        name,
        emit(plan, target, name),
        "vector" if any("vector" in a for a in plan.actions) else "scalar",
        plan.tasks,
        flops,
        nbytes,
        plan.cycles,
        tuple(plan.actions),
        nest.text(),
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


