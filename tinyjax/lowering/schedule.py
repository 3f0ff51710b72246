"""How a kernel's loops run: the vector loop of each sweep, unrolling, tiles; tasks by tasks.py.

`schedule` decides on a nest (nest.py, after merge.py), by one cost model in cycles:

* **vector(r)**: at most one loop on each path from the root to a step becomes `lanes` wide. For
  every loop the cost of vectorising it (gathers where its stride is not 1, idle lanes where its
  extent is short) is compared with the best that its inner loops can do. A serial loop that only
  runs prefixes may be one too: a vector of iterations is scanned at a time.
* **square(r, s)**: where a load is contiguous along r and the stores along s, tiles of lanes x
  lanes elements are transposed in registers.
* **unroll(r, n)**: a vector loop that accumulates runs `n` vectors per step, each with accumulators
  of its own, to cover the latency of the additions; they are combined in a fixed tree.
* **columns(r, n)**: a reduction over rows keeps the accumulators of `n` columns in memory and
  reads whole pieces of rows (columns.py), where the vector loop is too wide for registers.
* **chunk(r, n)**: a long floating sum is flushed into an outer accumulator every `n` steps, so that
  its error grows with n + iterations/n, not with the iterations.
* **stream(slot)**: a large output is written with stores that bypass the caches.
All numbers are named below. The list of actions is printable and is all that emission reads:
`replay` applies a list, or a part of one, to a nest again (tools/reduce_case.py drops actions).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.lowering.cycles import (
    CYCLES,
    CYCLES_ALU,
    CYCLES_LANE_GATHER,
    CYCLES_MEMORY,
    CYCLES_SCALAR_MEMORY,
)
from tinyjax.lowering.nest import Accumulate, Line, Loop, Nest, Write, is_index
from tinyjax.lowering.target import Target
from tinyjax.lowering.tasks import Tasks, cut, recut, step_of

FOLD_VECTORS = 8
"""Accumulators per sum: latency 4 x 2 additions per cycle."""
MAX_ACCUMULATORS = 16
"""All folds of a sweep together; half of AVX-512's registers."""
OUTER_VECTORS = 8
"""Vectors side by side when the vector loop is outside a reduction (columns): whole cache lines."""
COLUMN_BYTES = 4096
"""Accumulators of a column block per fold: a page of each row, well inside L1."""
COLUMN_ROWS = 8
"""Rows added at a time: as many streams as prefetchers follow."""
MAX_SQUARE, SQUARE_WEIGHT = 16, 8
"""Largest square tile of a transposed read, and the longest body around one (it has a copy of the
body per row in registers)."""
STREAM_BYTES = 32 << 20
"""Outputs from this size on do not stay in a last-level cache; writing them past it saves reading
every line first (measured: copy 58 instead of 42 GB/s on one thread)."""
FOLD_CHAIN = 256
"""Sequential additions into one accumulator before it is flushed."""
UNROLL_WEIGHT = 32
"""Instructions of an unrolled body; a long body has parallelism enough of its own, and code is
compile time."""


@dataclass(eq=False, slots=True)
class Schedule:
    """A nest with decisions on its loops, and how tasks cut it."""

    nest: Nest
    lanes: int
    tasks: Tasks = field(default_factory=Tasks)
    actions: list[str] = field(default_factory=list)
    cycles: float = 0.0
    streams: tuple[int, ...] = ()  # slots written past the caches
    scratch: tuple[int, ...] = ()  # bytes of slots behind those of the kernel


# --- cost ----------------------------------------------------------------------------------------


class Costs:
    """Cycles of the loops of a nest, with one range as the vector or none."""

    def __init__(self, nest: Nest, lanes: int, target: Target, squares: dict[int, Loop]) -> None:
        self.nest, self.lanes, self.target, self.squares = nest, lanes, target, squares

    def node(self, node: UOp, bit: int) -> float:
        """One evaluation of a line's node; `bit` is the vector range (0: none)."""
        wide = bool(self.nest.free[node] & bit)
        if node.op is Op.LOAD:
            return self.access(node.src[0], bit)
        cycles = CYCLES.get(node.op, CYCLES_ALU)
        if cycles > CYCLES_ALU and not dtypes.is_inexact(node.aval.dtype):
            return cycles * (self.lanes if wide else 1)  # no vector division of integers
        return cycles

    def access(self, index: UOp, bit: int) -> float:
        """One load or store."""
        if not self.nest.free[index] & bit:
            return CYCLES_SCALAR_MEMORY
        step = stride(self.nest, index, bit)
        if bit in self.squares and _runs_across(self.nest, index, self.squares[bit].bit, bit):
            return 2 * CYCLES_MEMORY
        if step is None or abs(step) > 1:
            return self.lanes * CYCLES_LANE_GATHER + CYCLES_MEMORY
        return CYCLES_MEMORY

    def lines(self, lines: list[Line], bit: int) -> float:
        """All lines once, inner loops scalar unless `bit` is theirs or an outer one's."""
        total = 0.0
        for line in lines:
            if isinstance(line, Loop):
                total += self.loop(line, bit)
            elif isinstance(line, Write):
                total += self.access(line.store.src[0], bit)
            elif isinstance(line, Accumulate):
                total += CYCLES_ALU
            else:
                total += self.node(line, bit)
        return total

    def loop(self, loop: Loop, bit: int) -> float:
        """A loop, vectorised if its range is `bit`."""
        count = loop.extent
        if loop.bit == bit:
            count = -(-count // self.lanes)
        return count * (self.lines(loop.lines, bit) + CYCLES_ALU)

    def best(self, loop: Loop) -> tuple[float, list[Loop]]:
        """The cheapest choice of vector loops inside `loop` (itself included): cycles and which."""
        inner = [line for line in loop.lines if isinstance(line, Loop)]
        rest = self.lines([line for line in loop.lines if not isinstance(line, Loop)], 0)
        cycles, chosen = rest + CYCLES_ALU, list[Loop]()
        for each in inner:
            cost, which = self.best(each)
            cycles += cost
            chosen += which
        cycles *= loop.extent
        if loop.extent > 1 and (loop.kind != "serial" or is_scan(self.nest, loop)):
            own = self.loop(loop, loop.bit)
            if own < cycles:
                return own, [loop]
        return cycles, chosen


def is_scan(nest: Nest, loop: Loop) -> bool:
    """Whether a serial loop only runs prefixes, so that a vector of iterations can be scanned."""
    if any(not isinstance(x, UOp | Write) for x in loop.lines):
        return False
    if any(c.op is not Op.PREFIX or c.src[1] is not loop.range for c in loop.carries):
        return False
    written = {end.src[0].src[0].src[0] for end in nest.sink.src}
    return bool(loop.carries) and all(
        n.src[0].src[0] not in written for n in nest.order if n.op is Op.LOAD
    )


def stride(nest: Nest, index: UOp, bit: int) -> int | None:
    """Coefficient of a range in an INDEX; None if the range also enters in another way."""
    found = 0
    for atom, c in nest.indexing.linear(index.src[1])[1].items():
        if atom.op is Op.RANGE:
            if 1 << atom.arg[0] == bit:
                found = c
        elif nest.free[atom] & bit:
            return None
    return found


# --- decisions -----------------------------------------------------------------------------------


def hot_itemsize(nest: Nest) -> int:
    """Bytes of the widest dtype that values (not indices) are computed in."""
    widest = 1
    for node in nest.order:
        if node.op in (Op.CONST, Op.RANGE, Op.PARAM, Op.INDEX, Op.SINK, Op.END, Op.STORE):
            continue
        of = getattr(node.aval, "dtype", None)
        if of is None or not nest.free[node] or (is_index(node) and node.op is not Op.LOAD):
            continue
        size = of.itemsize
        if dtypes.is_complex(of):
            size //= 2
        elif dtypes.is_float(of) and size < 4 and node.op is not Op.LOAD and node.op is not Op.CAST:
            size = 4  # computed in float32
        widest = max(widest, size)
    return widest


def schedule(nest: Nest, target: Target) -> Schedule:
    """nest -> the same with vectors, unrolling and tasks decided; loops are marked in place"""
    lanes = target.lanes(hot_itemsize(nest))
    across = squares(nest)
    if across:
        lanes = min(lanes, MAX_SQUARE)
    made = Schedule(nest, lanes)
    costs = Costs(nest, lanes, target, across)
    total = 0.0
    for line in nest.lines:
        if isinstance(line, Loop):
            cycles, chosen = costs.best(line)
            total += cycles
            for loop in chosen if lanes > 1 else ():
                _vectorise(made, loop)
    made.cycles = total
    _transpose(made, across)
    _unroll(made, nest.lines)
    made.tasks = cut(nest, made.cycles)
    made.actions += made.tasks.actions
    if "x86_64" in target.triple:
        streams = _streams(nest, lanes)
        if streams:
            act(made, f"stream({', '.join(f'slot{s}' for s in streams)})")
    return made


# --- actions -------------------------------------------------------------------------------------


class ScheduleError(ValueError):
    """An action that a nest does not take: another one that it needs is missing."""


def named_loops(nest: Nest) -> dict[str, Loop]:
    """Loops by their names in actions: r1, and r1.2, r1.3 if further loops run over the range."""
    found: dict[str, Loop] = {}
    times: dict[UOp, int] = {}
    for loop in _loops(nest.lines):
        times[loop.range] = count = times.get(loop.range, 0) + 1
        found[f"r{loop.range.arg[0]}" + (f".{count}" if count > 1 else "")] = loop
    return found


def name_of(made: Schedule, loop: Loop) -> str:
    """The name of a loop in actions."""
    return next(name for name, x in named_loops(made.nest).items() if x is loop)


def act(made: Schedule, action: str) -> None:
    """Apply an action, in its printed form, and note it."""
    made.actions.append(action)
    name = action.partition("(")[0]
    loops = named_loops(made.nest)
    named = re.findall(r"\br\d+(?:\.\d+)?\b", action)
    numbers = [int(n) for n in re.findall(r"(?<![\w.])\d+\b", action)]
    if not loops.keys() >= set(named):
        raise ScheduleError(f"{action}: the nest has loops {', '.join(loops)}")
    chosen = [loops[n] for n in named]
    match name:
        case "vector":
            chosen[0].lanes = numbers[0]
        case "unroll":
            chosen[0].copies = numbers[0]
        case "square":
            chosen[0].copies = _vector(action, chosen[1]).lanes
        case "columns":
            _vector(action, chosen[0]).columns = numbers[0]
        case "tasks" | "partition":
            made.tasks = recut(made.nest, action, chosen, numbers)
        case "stream":
            made.streams = tuple(int(s) for s in re.findall(r"slot(\d+)", action))
        case _:
            raise ScheduleError(f"{action}: no such action")


def _vector(action: str, loop: Loop) -> Loop:
    if loop.lanes == 1:
        raise ScheduleError(f"{action} needs vector(r{loop.range.arg[0]}, ...)")
    return loop


def replay(nest: Nest, actions: Sequence[str]) -> Schedule:
    """A nest without decisions, with exactly these: what `schedule` printed, or a part of it.

    Raises: ScheduleError if an action needs one that is not there.
    """
    made = Schedule(nest, 1)
    for action in actions:
        act(made, action)
    made.lanes = max((x.lanes for x in _loops(nest.lines)), default=1)
    last = made.tasks.loops[-1:]
    if any(made.tasks.block % step_of(x) for x in last):
        raise ScheduleError(f"tasks of {made.tasks.block} iterations cut a step of {last[0]}")
    return made


def _streams(nest: Nest, lanes: int) -> tuple[int, ...]:
    """Slots of large outputs, written by whole aligned vectors, whose lines need no reading."""
    read = {n.src[0].src[0] for n in nest.order if n.op is Op.LOAD}
    vectors = {x.bit for x in _loops(nest.lines) if x.lanes > 1}
    found = []
    for end in nest.sink.src:
        index = end.src[0].src[0]
        buffer = index.src[0]
        if buffer.aval.nbytes < STREAM_BYTES or buffer in read or len(index.src) > 2:
            continue
        if buffer.aval.dtype.itemsize * lanes not in (16, 32, 64):
            continue
        constant, terms = nest.indexing.linear(index.src[1])
        ones = [a for a, c in terms.items() if c == 1]
        if constant % lanes or any(c % lanes for c in terms.values() if c != 1) or len(ones) != 1:
            continue
        if ones[0].op is Op.RANGE and 1 << ones[0].arg[0] in vectors:
            found.append(buffer.arg[0])
    return tuple(dict.fromkeys(found))


def _loops(lines: Sequence[Line]) -> list[Loop]:
    """All loops, outer ones first."""
    found = [x for x in lines if isinstance(x, Loop)]
    return found + [y for x in found for y in _loops(x.lines)]


def _vectorise(made: Schedule, loop: Loop) -> None:
    act(made, f"vector({name_of(made, loop)}, {made.lanes})")


def _weight(lines: list[Line]) -> float:
    """Instructions of a body, roughly: transcendentals count as what they expand to."""
    total = 0.0
    for line in lines:
        if isinstance(line, Loop):
            total += _weight(line.lines)
        elif isinstance(line, UOp):
            total += max(1.0, CYCLES.get(line.op, 1.0))
        else:
            total += 1
    return total


def _unroll(made: Schedule, lines: Sequence[Line]) -> None:
    """Several vectors (or scalars) per step where accumulators or columns profit."""
    for line in lines:
        if not isinstance(line, Loop):
            continue
        inner = [x for x in line.lines if isinstance(x, Loop)]
        if _as_columns(made, line):
            continue
        vectors = line.extent // line.lanes
        copies = 1
        if line.lanes > 1 and inner:
            copies = _largest(vectors, min(OUTER_VECTORS, _affordable(line)))
        elif not inner and line.carries and line.kind == "reduce":
            most = max(1, min(FOLD_VECTORS, MAX_ACCUMULATORS // len(line.carries)))
            if line.lanes == 1 and not _additive(line):
                most = 1
            copies = _largest(vectors, min(most, _affordable(line)))
        if line.copies > 1:
            continue
        if copies > 1 and not _jammed(line):
            act(made, f"unroll({name_of(made, line)}, {copies})")
        if not (line.copies > 1 and inner):
            _unroll(made, inner)


def _as_columns(made: Schedule, loop: Loop) -> bool:
    """Choose `columns` for a wide vector loop around one plain reduction over many rows."""
    rows = [x for x in loop.lines if isinstance(x, Loop)]
    if loop.lanes == 1 or loop.kind != "loop" or len(rows) != 1 or rows[0].kind != "reduce":
        return False
    (inner,) = rows
    if loop.limit is not None:
        return False
    if any(isinstance(x, Loop) for x in inner.lines) or loop.carries:
        return False
    if inner.starts != inner.carries or not _additive(inner):
        return False
    if any(dtypes.is_bool(f.src[0].aval.dtype) for f in inner.starts):
        return False
    if any(n.op is Op.FOLD for f in inner.starts for n in toposort(f.src[:1])):
        return False
    if inner.extent < 2 * COLUMN_ROWS or loop.extent <= OUTER_VECTORS * loop.lanes:
        return False
    if _weight(inner.lines) * COLUMN_ROWS > 4 * UNROLL_WEIGHT:
        return False
    width = max(s.aval.dtype.itemsize for f in inner.starts for s in f.src[:1])
    wide = min(COLUMN_BYTES // max(4, width), -(-loop.extent // loop.lanes) * loop.lanes)
    act(made, f"columns({name_of(made, loop)}, {wide})")
    act(made, f"unroll({name_of(made, inner)}, {COLUMN_ROWS})")
    return True


def squares(nest: Nest) -> dict[int, Loop]:
    """Loops that can be the lanes of register squares, by bit, with the loop of their rows."""
    found: dict[int, Loop] = {}
    for outer in _loops(nest.lines):
        around = [x for x in outer.lines if isinstance(x, Loop)]
        if outer.kind != "loop" or len(around) != 1:
            continue
        (inner,) = around
        alone = all(isinstance(x, UOp) for x in outer.lines if x is not inner)
        if inner.kind != "loop" or not alone or inner.carries or _loops(inner.lines):
            continue
        if outer.limit is not None or inner.limit is not None:
            continue
        if min(outer.extent, inner.extent) < 8 or _weight(inner.lines) > SQUARE_WEIGHT:
            continue
        loads = [x.src[0] for x in inner.lines if isinstance(x, UOp) and x.op is Op.LOAD]
        if any(_runs_across(nest, x, outer.bit, inner.bit) for x in loads):
            found[inner.bit] = outer
    return found


def _runs_across(nest: Nest, index: UOp, outer: int, inner: int) -> bool:
    """Whether a load is contiguous along the outer loop only."""
    step = stride(nest, index, inner)
    return (
        stride(nest, index, outer) == 1 and step not in (None, 0, 1, -1) and (len(index.src) == 2)
    )


def _transpose(made: Schedule, found: dict[int, Loop]) -> None:
    """Square tiles in registers where loads run along the loop around the vector loop."""
    for loop in _loops(made.nest.lines):
        outer = found.get(loop.bit)
        if outer is not None and loop.lanes > 1 and outer.extent >= loop.lanes:
            act(made, f"square({name_of(made, outer)}, {name_of(made, loop)})")


def _affordable(loop: Loop) -> int:
    """Copies that UNROLL_WEIGHT allows."""
    return max(1, int(UNROLL_WEIGHT / _weight(loop.lines)))


def _jammed(loop: Loop) -> bool:
    return any(isinstance(x, Loop) and (x.copies > 1 or _jammed(x)) for x in loop.lines)


def _additive(loop: Loop) -> bool:
    return all(f.arg not in ("argmax", "argmin") for f in loop.carries)


def _largest(count: int, most: int) -> int:
    """Number of copies up to `most`: a good divisor of the count, else a power of two."""
    if count <= most:
        return max(1, count)
    for n in range(most, most // 2, -1):
        if count % n == 0:
            return n
    return 1 << (most.bit_length() - 1)
