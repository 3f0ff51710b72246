"""How a kernel is shared by threads: units of its outermost parallel loops, chosen by shape only.

* **tasks(r..., n)**: the outermost parallel loops are cut into units of `n` iterations of the last
  of them; a task is a number of units that takes about `TASK_CYCLES`. The cut loop may lie inside a
  serial one: every task then runs the serial loop on its part.
* **partition(r, n)**: the tasks of a scatter of rows; each goes through all indices and writes the
  rows that it owns, so updates of one row stay in order.

Results never depend on how many units a call gets or which thread makes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tinyjax.core.dims import Size, divide, maximum
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.lowering.dims import product_of
from tinyjax.lowering.nest import Loop, Nest, Write, extent

TASK_CYCLES = 100_000
"""A task is about 30 us: ten times what handing it to a thread costs."""
MAX_TASKS = 256
"""More tasks than this help no machine of today; fewer atomic increments."""
ENOUGH_UNITS = 16
"""With at least this many units a kernel needs no split reduction to keep threads busy."""
MAX_CHUNKS = 64
"""Chunks of a split reduction: enough for the threads of a large machine."""
SCATTER_TASKS = 8
"""Tasks of a scatter by destination: every one of them reads all indices."""
ROW_BYTES = 128
"""Rows of a scatter at least this long are worth looking at every index for."""


@dataclass(frozen=True, slots=True)
class TaskSplit:
    """[0, total) units; a thread takes `chunk` of them at a time."""

    total: int
    chunk: int
    limit: UOp | None = None  # iterations of the outermost of the cut loops in a run
    block: int = 1  # of them per unit
    inner: int = 1  # units per iteration, of the loops inside

    def units(self, of: Callable[[int], Size]) -> Size:
        """The units of a run, for the sizes of a program by their numbers.

        One at least: it also computes what the kernel has outside of its loops.
        """
        if self.limit is None:
            return self.total
        blocks = divide(product_of(self.limit, of) + (self.block - 1), self.block)
        return maximum(blocks * self.inner, 1)


@dataclass(frozen=True, slots=True)
class Partition:
    """Tasks of a scatter: each runs the whole serial loop but writes only its own rows.

    The row of an iteration is `sum(coefficient * atom) // divisor`; unit u owns rows
    [u * rows, (u + 1) * rows).
    """

    loop: Loop
    key: tuple[tuple[UOp, int], ...]
    divisor: int
    rows: int


@dataclass(frozen=True, slots=True)
class Tasks:
    """The cut of a kernel: units, the loops they cut together (outermost first) or a partition."""

    split: TaskSplit = TaskSplit(1, 1)
    loops: list[Loop] = field(default_factory=list)
    block: int = 1  # iterations of the last loop per unit
    partition: Partition | None = None
    actions: tuple[str, ...] = ()


def wanted_chunks(tasks: Tasks, cycles: float) -> int:
    """Into how many pieces a big reduction with few parallel units should be cut; 1: not at all."""
    if tasks.split.total >= ENOUGH_UNITS or cycles < 4 * TASK_CYCLES:
        return 1
    return min(MAX_CHUNKS, int(cycles / TASK_CYCLES / tasks.split.total))


def _partition(nest: Nest, loop: Loop) -> Tasks | None:
    """Give each task the destination rows of a range, if a scatter has such rows."""
    if loop.carries or any(isinstance(x, Write) for x in loop.lines):
        return None
    keys = set()
    for end in nest.sink.src:
        index = end.src[0].src[0]
        key, span = [], 0
        for atom, c in nest.indexing.linear(index.src[1])[1].items():
            if atom.op is Op.RANGE and atom.arg[1] == "loop":
                span += abs(c) * (extent(atom) - 1)
            elif nest.free[atom] & ~loop.bit:
                return None
            else:
                key.append((atom, c))
        divisor = math.gcd(*(c for _, c in key)) if key else 0
        if span >= divisor or divisor * index.src[0].aval.dtype.itemsize < ROW_BYTES:
            return None
        keys.add((tuple(key), divisor, index.src[0].aval.size // divisor))
    if len(keys) != 1:
        return None
    ((terms, divisor, count),) = keys
    units = min(SCATTER_TASKS, count)
    if units < 2:
        return None
    rows = -(-count // units)
    action = f"partition(r{loop.range.arg[0]}, {units} of {rows} rows)"
    partition = Partition(loop, terms, divisor, rows)
    return Tasks(TaskSplit(units, 1), partition=partition, actions=(action,))


def cut(nest: Nest, cycles: float) -> Tasks:
    """Units and tasks of a nest that takes about so many cycles."""
    tops = [x for x in nest.lines if isinstance(x, Loop)]
    if len(tops) != 1 or cycles < 2 * TASK_CYCLES:
        return Tasks()
    (loop,) = tops
    wanted = min(MAX_TASKS, int(cycles / TASK_CYCLES))
    if loop.kind == "serial":
        inner = [x for x in loop.lines if not isinstance(x, UOp)]
        found = _partition(nest, loop)
        if found is None and len(inner) == 1 and isinstance(inner[0], Loop):
            found = _units([inner[0]], wanted) if inner[0].kind == "loop" else None
        return found or Tasks()
    return (_units(_outermost(loop), wanted) if loop.kind == "loop" else None) or Tasks()


def recut(nest: Nest, action: str, loops: list[Loop], numbers: list[int]) -> Tasks:
    """The cut that `cut` printed as `action`, with its loops and numbers taken out of the text."""
    if action.startswith("partition"):
        found = _partition(nest, loops[0])
        assert found is not None and found.actions == (action,), f"{action} is not {found}"
        return found
    block, units, chunk = numbers
    return Tasks(_split(loops, block, units, chunk), loops, block, actions=(action,))


def step_of(loop: Loop) -> int:
    """Iterations of a loop that are never separated."""
    return loop.columns or loop.lanes * loop.copies


def _outermost(loop: Loop) -> list[Loop]:
    """Parallel loops nested without anything else to do, until there are units enough."""
    loops = [loop]
    units = max(1, loop.extent // step_of(loop))
    while units < MAX_TASKS // 4 and step_of(loop) == 1:
        steps = [x for x in loop.lines if not isinstance(x, UOp)]
        if len(steps) != 1 or not isinstance(steps[0], Loop) or steps[0].kind != "loop":
            break
        loop = steps[0]
        loops.append(loop)
        units *= max(1, loop.extent // step_of(loop))
    return loops


def _units(loops: list[Loop], wanted: int) -> Tasks | None:
    """Cut the last of the loops into blocks, as many as are wanted together with the outer ones."""
    last = loops[-1]
    step = step_of(last)
    outer = math.prod(x.extent for x in loops[:-1])
    steps = -(-last.extent // step)
    pieces = min(steps, -(-wanted // outer)) if len(loops) == 1 or outer < wanted else 1
    block = -(-steps // pieces) * step
    if len(loops) == 1 and step == 1:
        block = 1  # rows: units may be finer than tasks
    units = outer * -(-last.extent // block)
    if units < 2:
        return None
    chunk = -(-units // wanted)
    names = ", ".join(f"r{x.range.arg[0]}" for x in loops)
    action = f"tasks({names}; block {block}, {units} units, {chunk} per task)"
    return Tasks(_split(loops, block, units, chunk), loops, block, actions=(action,))


def _split(loops: list[Loop], block: int, units: int, chunk: int) -> TaskSplit:
    first = loops[0]
    if first.limit is None:
        return TaskSplit(units, chunk)
    if len(loops) == 1:
        return TaskSplit(units, chunk, first.limit, block)
    return TaskSplit(units, chunk, first.limit, 1, units // first.extent)
