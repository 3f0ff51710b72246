"""How a kernel's loops run: merged ranges, the vector loop of each sweep, unrolling, tasks.

`merge_ranges` rewrites the SINK: ranges of one iteration disappear, and neighbouring ranges that
every index expression walks as one (coefficient of the outer = coefficient of the inner * extent of
the inner) become one long range. `schedule` then decides, on the nest of the result, by one cost
model in cycles:

* **vector(r)** (a serial loop that only runs prefixes is scanned a vector at a time): at most one loop on each path from the root to a step becomes `lanes` wide. For
  every loop the cost of vectorising it (gathers where its stride is not 1, idle lanes where its
  extent is short) is compared with the best that its inner loops can do.
* **unroll(r, n)**: a vector loop that accumulates runs `n` vectors per step, each with accumulators
  of its own, to cover the latency of the additions; they are combined in a fixed tree.
* **columns(r, n)**: a reduction over rows keeps the accumulators of `n` columns in memory and
  reads whole pieces of rows (columns.py), where the vector loop is too wide for registers.
* **chunk(r, n)**: a long floating sum is flushed into an outer accumulator every `n` steps, so that
  its error grows with n + iterations/n, not with the iterations.
* **stream(slot)**: a large output is written with stores that bypass the caches.
* **partition(r, n)**: the tasks of a scatter of rows; each goes through all indices and writes the
  rows that it owns, so updates of one row stay in order.
* **tasks(r..., n)**: outermost parallel loops are cut into units of `n` iterations; a task is a
  number of units that takes about `TASK_CYCLES`. Only shapes decide.

All numbers are named below. The list of actions is printable and is all that emission reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const, get, toposort
from tinyjax.lowering.cycles import CYCLES, CYCLES_ALU, CYCLES_LANE_GATHER, CYCLES_MEMORY
from tinyjax.lowering.indexing import Indexing
from tinyjax.lowering.nest import Accumulate, Line, Loop, Nest, Write, extent, is_index, ranges_of
from tinyjax.lowering.registers import INT64
from tinyjax.lowering.target import Target

TASK_CYCLES = 100_000
"""A task is about 30 us: ten times what handing it to a thread costs."""
MAX_TASKS = 256
"""More tasks than this help no machine of today; fewer atomic increments."""
ENOUGH_UNITS = 16
"""With at least this many units a kernel needs no split reduction to keep threads busy."""
MAX_CHUNKS = 64
"""Chunks of a split reduction: enough for the threads of a large machine."""
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
SCATTER_TASKS = 8
"""Tasks of a scatter by destination: every one of them reads all indices."""
ROW_BYTES = 128
"""Rows of a scatter at least this long are worth looking at every index for."""
STREAM_BYTES = 32 << 20
"""Outputs from this size on do not stay in a last-level cache; writing them past it saves reading
every line first (measured: copy 58 instead of 42 GB/s on one thread)."""
FOLD_CHAIN = 256
"""Sequential additions into one accumulator before it is flushed."""
UNROLL_WEIGHT = 32
"""Instructions of an unrolled body; a long body has parallelism enough of its own, and code is
compile time."""


@dataclass(frozen=True, slots=True)
class TaskSplit:
    """[0, total) units; a thread takes `chunk` of them at a time."""

    total: int
    chunk: int


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


@dataclass(eq=False, slots=True)
class Schedule:
    """A nest with decisions on its loops, and how tasks cut it."""

    nest: Nest
    lanes: int
    tasks: TaskSplit
    task_loops: list[Loop] = field(default_factory=list)  # outermost first; cut by tasks together
    block: int = 1  # iterations of the last task loop per unit
    actions: list[str] = field(default_factory=list)
    cycles: float = 0.0
    streams: tuple[int, ...] = ()  # slots written past the caches
    partition: Partition | None = None


# --- ranges --------------------------------------------------------------------------------------


def _affine_roots(order: list[UOp]) -> list[UOp]:
    """Index expressions as a whole: int64 operands of nodes that are not index additions."""
    found: dict[UOp, None] = {}
    for node in order:
        if node.op in (Op.ADD, Op.SUB, Op.MUL, Op.NEG) and is_index(node):
            continue
        if node.op in (Op.END, Op.RANGE):
            continue
        skip = ranges_of(node) if node.op is Op.FOLD else ()
        for s in node.src:
            if s.op is not Op.CONST and hasattr(s.aval, "dtype") and is_index(s) and s not in skip:
                found[s] = None
    return list(found)


def merge_ranges(sink: UOp) -> UOp:
    """A SINK with the same effects and fewer ranges; see the module's text."""
    order = toposort([sink])
    ranges = [n for n in order if n.op is Op.RANGE]
    mapping: dict[UOp, UOp] = {r: const(0, INT64) for r in ranges if extent(r) == 1}
    live = [r for r in ranges if r not in mapping]
    fixed = {n.src[1] for n in order if n.op is Op.PREFIX}
    fixed |= {r for n in order if n.op is Op.FOLD and n.arg in ("argmax", "argmin")
              for r in ranges_of(n)}  # fmt: skip
    indexing = Indexing()
    forms = [indexing.linear(root)[1] for root in _affine_roots(order)] if len(live) > 1 else []
    # The coefficient vector of each range, and the sets of ranges closed together.
    size = {r: extent(r) for r in live}
    coefficients = {r: tuple(f.get(r, 0) for f in forms) for r in live}
    closed = [
        tuple(r for r in ranges_of(n) if r in size) for n in order if n.op in (Op.END, Op.FOLD)
    ]
    member = {r: tuple(i for i, c in enumerate(closed) if r in c) for r in live}
    changed = True
    while changed:
        changed = False
        for inner in list(live):
            if inner in fixed or inner.arg[1] == "serial":
                continue
            scaled = tuple(c * size[inner] for c in coefficients[inner])
            for outer in live:
                if (
                    outer is not inner
                    and coefficients[outer] == scaled
                    and any(scaled)
                    and member[outer] == member[inner]
                    and outer.arg[1] == inner.arg[1]
                    and outer not in fixed
                ):
                    mapping[outer] = const(0, INT64)
                    size[inner] *= size[outer]
                    live.remove(outer)
                    changed = True
                    break
            if changed:
                break
    for r in live:
        if size[r] != extent(r):
            mapping[r] = UOp(Op.RANGE, (const(size[r], INT64),), r.arg)
    return _rebuild(sink, order, mapping) if mapping else sink


def _rebuild(sink: UOp, order: list[UOp], mapping: dict[UOp, UOp]) -> UOp:
    """Replace ranges; folds and ENDs lose those that became constants."""
    done: dict[UOp, UOp] = dict(mapping)
    for node in order:
        if node in done:
            continue
        src = tuple(done[s] for s in node.src)
        if src == node.src:
            done[node] = node
        elif node.op is Op.FOLD or node.op is Op.END:
            old = ranges_of(node)
            operands = src[: len(src) - len(old)]
            kept = tuple(s for s in src[len(operands) :] if s.op is Op.RANGE)
            if node.op is Op.FOLD and not kept:
                done[node] = operands[0] if len(operands) == 1 else UOp(Op.TUPLE, operands)
            else:
                done[node] = UOp(node.op, operands + kept, node.arg)
        elif node.op is Op.GETTUPLE:
            done[node] = get(src[0], node.arg)
        elif node.op is Op.PREFIX and src[1].op is Op.CONST:
            done[node] = src[0]
        elif is_linear(node):
            done[node] = _fold_index(node, src)
        else:
            done[node] = UOp(node.op, src, node.arg)
    return done[sink]


def is_linear(node: UOp) -> bool:
    """Index addition or multiplication."""
    return node.op in (Op.ADD, Op.MUL) and is_index(node)


def _fold_index(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """x + 0 -> x, x * 0 -> 0, x * 1 -> x."""
    zero, one = const(0, INT64), const(1, INT64)
    a, b = src
    if node.op is Op.ADD:
        return b if a is zero else a if b is zero else UOp(node.op, src)
    if a is zero or b is zero:
        return zero
    return b if a is one else a if b is one else UOp(node.op, src)


# --- cost ----------------------------------------------------------------------------------------


class Costs:
    """Cycles of the loops of a nest, with one range as the vector or none."""

    def __init__(self, nest: Nest, lanes: int, target: Target) -> None:
        self.nest, self.lanes, self.target = nest, lanes, target

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
            return CYCLES_MEMORY / self.lanes
        step = stride(self.nest, index, bit)
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
    """Decide vectors, unrolling and tasks; the loops of `nest` are marked in place."""
    lanes = target.lanes(hot_itemsize(nest))
    made = Schedule(nest, lanes, TaskSplit(1, 1))
    costs = Costs(nest, lanes, target)
    total = 0.0
    for line in nest.lines:
        if isinstance(line, Loop):
            cycles, chosen = costs.best(line)
            total += cycles
            for loop in chosen if lanes > 1 else ():
                _vectorise(made, loop)
    made.cycles = total
    _unroll(made, nest.lines)
    _split_tasks(made)
    if "x86_64" in target.triple:
        made.streams = _streams(nest, lanes)
        if made.streams:
            made.actions.append(f"stream({', '.join(f'slot{s}' for s in made.streams)})")
    return made


def _streams(nest: Nest, lanes: int) -> tuple[int, ...]:
    """Slots of large outputs, written once, by whole aligned vectors: their lines need no reading."""
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
    loop.lanes = made.lanes
    made.actions.append(f"vector(r{loop.range.arg[0]}, {loop.lanes})")


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
            most = min(FOLD_VECTORS, MAX_ACCUMULATORS // len(line.carries))
            if line.lanes == 1 and not _additive(line):
                most = 1
            copies = _largest(vectors, min(most, _affordable(line)))
        if copies > 1 and not _jammed(line):
            line.copies = copies
            made.actions.append(f"unroll(r{line.range.arg[0]}, {copies})")
        if not (line.copies > 1 and inner):
            _unroll(made, inner)


def _as_columns(made: Schedule, loop: Loop) -> bool:
    """Choose `columns` for a wide vector loop around one plain reduction over many rows."""
    rows = [x for x in loop.lines if isinstance(x, Loop)]
    if loop.lanes == 1 or loop.kind != "loop" or len(rows) != 1 or rows[0].kind != "reduce":
        return False
    (inner,) = rows
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
    loop.columns = min(COLUMN_BYTES // max(4, width), -(-loop.extent // loop.lanes) * loop.lanes)
    inner.copies = COLUMN_ROWS
    made.actions.append(f"columns(r{loop.range.arg[0]}, {loop.columns})")
    made.actions.append(f"unroll(r{inner.range.arg[0]}, {COLUMN_ROWS})")
    return True


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


def wanted_chunks(made: Schedule) -> int:
    """Into how many pieces a big reduction with few parallel units should be cut; 1: not at all."""
    if made.tasks.total >= ENOUGH_UNITS or made.cycles < 4 * TASK_CYCLES:
        return 1
    return min(MAX_CHUNKS, int(made.cycles / TASK_CYCLES / made.tasks.total))


def _partition(made: Schedule, loop: Loop) -> bool:
    """Give each task the destination rows of a range, if a scatter has such rows."""
    nest = made.nest
    if loop.carries or any(isinstance(x, Write) for x in loop.lines):
        return False
    keys = set()
    for end in nest.sink.src:
        index = end.src[0].src[0]
        key, span = [], 0
        for atom, c in nest.indexing.linear(index.src[1])[1].items():
            if atom.op is Op.RANGE and atom.arg[1] == "loop":
                span += abs(c) * (extent(atom) - 1)
            elif nest.free[atom] & ~loop.bit:
                return False
            else:
                key.append((atom, c))
        divisor = math.gcd(*(c for _, c in key)) if key else 0
        if span >= divisor or divisor * index.src[0].aval.dtype.itemsize < ROW_BYTES:
            return False
        keys.add((tuple(key), divisor, index.src[0].aval.size // divisor))
    if len(keys) != 1:
        return False
    ((terms, divisor, count),) = keys
    units = min(SCATTER_TASKS, count)
    if units < 2:
        return False
    made.partition = Partition(loop, terms, divisor, -(-count // units))
    made.tasks = TaskSplit(units, 1)
    made.actions.append(f"partition(r{loop.range.arg[0]}, {units} of {made.partition.rows} rows)")
    return True


def _split_tasks(made: Schedule) -> None:
    """Cut the outermost parallel loops into units, and units into tasks of about TASK_CYCLES."""
    nest = made.nest
    tops = [x for x in nest.lines if isinstance(x, Loop)]
    if len(tops) != 1 or made.cycles < 2 * TASK_CYCLES:
        return
    loops: list[Loop] = []
    line = tops[0]
    if line.kind == "serial" and _partition(made, line):
        return
    if line.kind == "serial":
        inner = [x for x in line.lines if isinstance(x, Loop)]
        outside = any(isinstance(x, Write) for x in line.lines)
        if len(inner) != 1 or inner[0].kind != "loop" or outside:
            return
        line = inner[0]
        loops = [line]
    else:
        if line.kind != "loop":
            return
        loops = [line]
        units = line.extent // (line.columns or line.lanes * line.copies)
        while (
            units < MAX_TASKS // 4
            and line.lanes == 1
            and len(line.lines) >= 1
            and isinstance(line.lines[-1], Loop)
            and sum(not isinstance(x, UOp) for x in line.lines) == 1
            and line.lines[-1].kind == "loop"
        ):
            line = line.lines[-1]
            loops.append(line)
            units *= max(1, line.extent // (line.columns or line.lanes * line.copies))
    last = loops[-1]
    step = last.columns or last.lanes * last.copies
    outer = math.prod(x.extent for x in loops[:-1])
    iterations = -(-last.extent // step)  # steps of the last loop
    wanted = min(MAX_TASKS, max(1, int(made.cycles / TASK_CYCLES)))
    if len(loops) == 1 or outer < wanted:
        per_outer = min(iterations, -(-wanted // outer))
    else:
        per_outer = 1
    block = -(-iterations // per_outer) * step
    if last.lanes == 1 and last.copies == 1 and len(loops) == 1:
        block = 1
    units = outer * -(-last.extent // block)
    if units < 2:
        return
    made.task_loops, made.block = loops, block
    made.tasks = TaskSplit(units, max(1, -(-units // wanted)))
    names = ", ".join(f"r{x.range.arg[0]}" for x in loops)
    made.actions.append(
        f"tasks({names}; block {block}, {units} units, {made.tasks.chunk} per task)"
    )
