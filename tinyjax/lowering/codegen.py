"""A stage-2 kernel -> code for the CPU. The entry points of the lowering for everything but DOT.

`compile_kernels` is pure and cached per (SINK, target): equal kernels are one object. Nothing is
compiled here: the result holds LLVM text, which the runtime compiles, caches and loads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

from tinyjax.core.config import config
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.core.verify import verify_kernel
from tinyjax.lowering import check
from tinyjax.lowering.emit import emit
from tinyjax.lowering.merge import merge_ranges
from tinyjax.lowering.nest import Loop, Nest, Write, verify
from tinyjax.lowering.refine import split_ranges
from tinyjax.lowering.schedule import Schedule, schedule
from tinyjax.lowering.split import split_folds
from tinyjax.lowering.target import Target, host
from tinyjax.lowering.tasks import TaskSplit, wanted_chunks


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


_cache: WeakKeyDictionary[UOp, dict[tuple[Target, str, int | None], tuple[KernelCode, ...]]]
_cache = WeakKeyDictionary()


def compile_kernels(
    sink: UOp, target: Target | None = None, name: str = "kernel", slots: int | None = None
) -> tuple[KernelCode, ...]:
    """The kernels that do what a stage-2 SINK says, in order: one, or two for a split reduction.

    `slots` is the number of slots the caller passes before scratch (default: those the SINK uses).
    """
    target = target or host()
    made = _cache.setdefault(sink, {})
    key = (target, name, slots)
    found = made.get(key)
    if found is None:
        found = made[key] = _compile(sink, target, name, slots)
    return found


def compile_kernel(sink: UOp, target: Target | None = None, name: str = "kernel") -> KernelCode:
    """A SINK as exactly one kernel, whatever its size."""
    target = target or host()
    return _finish(_planned(merge_ranges(split_ranges(sink)), target), target, name, ())


def _planned(sink: UOp, target: Target) -> Schedule:
    nest = Nest(sink)
    plan = schedule(nest, target)
    if config.tinyjax_verify:
        verify_kernel(sink)
        verify(nest)
        check.same_nest(sink, nest)
    return plan


def _compile(sink: UOp, target: Target, name: str, slots: int | None) -> tuple[KernelCode, ...]:
    given, sink = sink, merge_ranges(split_ranges(sink))
    check.same_kernels(given, sink, "merge_ranges")
    plan = _planned(sink, target)
    chunks = wanted_chunks(plan.tasks, plan.cycles)
    split = split_folds(sink, chunks, slots) if chunks > 1 else None
    if split is not None:
        check.same_split(sink, split.partial, split.final)
    if split is None:
        return (_finish(plan, target, name, ()),)
    return tuple(
        _finish(_planned(merge_ranges(part), target), target, name, split.scratch)
        for part in (split.partial, split.final)
    )


def _finish(plan: Schedule, target: Target, name: str, scratch: tuple[int, ...]) -> KernelCode:
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
        scratch,
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
