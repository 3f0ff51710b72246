"""How a kernel's loops run: merged ranges, the vector loop of each sweep, unrolling, tasks.

`merge_ranges` rewrites the SINK: ranges of one iteration disappear, and neighbouring ranges that
every index expression walks as one (coefficient of the outer = coefficient of the inner * extent of
the inner) become one long range. `schedule` then decides, on the nest of the result, by one cost
model in cycles:

* **vector(r)**: at most one loop on each path from the root to a step becomes `lanes` wide. For
  every loop the cost of vectorising it (gathers where its stride is not 1, idle lanes where its
  extent is short) is compared with the best that its inner loops can do.
* **unroll(r, n)**: a vector loop that accumulates runs `n` vectors per step, each with accumulators
  of its own, to cover the latency of the additions; they are combined in a fixed tree.
* **columns(r, n)**: a reduction over rows keeps the accumulators of `n` columns in memory and
  reads whole pieces of rows (columns.py), where the vector loop is too wide for registers.
* **chunk(r, n)**: a long floating sum is flushed into an outer accumulator every `n` steps, so that
  its error grows with n + iterations/n, not with the iterations.
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
from tinyjax.lowering.indexing import Indexing
from tinyjax.lowering.nest import Accumulate, Line, Loop, Nest, Write, extent, is_index, ranges_of
from tinyjax.lowering.registers import INT64
from tinyjax.lowering.target import Target

# Cycles of one instruction on one vector (or scalar), reciprocal throughput on recent x86 cores.
# Memory is what a stream from DRAM costs; it is within a factor of three of L2.
CYCLES_ALU = 0.5
CYCLES_MEMORY = 4.0
CYCLES_LANE_GATHER = 1.5
CYCLES: dict[Op, float] = {
    Op.DIV: 8, Op.REM: 40, Op.SQRT: 8, Op.RSQRT: 16, Op.CBRT: 30, Op.EXP: 12, Op.EXP2: 10,
    Op.EXPM1: 14, Op.LOG: 14, Op.LOG2: 14, Op.LOG1P: 20, Op.SIN: 20, Op.COS: 20, Op.TAN: 28,
    Op.ASIN: 20, Op.ACOS: 20, Op.ATAN: 18, Op.SINH: 24, Op.COSH: 24, Op.TANH: 18, Op.ASINH: 30,
    Op.ACOSH: 30, Op.ATANH: 30, Op.LOGISTIC: 20, Op.ERF: 24, Op.ERFC: 40, Op.ERFINV: 40,
    Op.LGAMMA: 80, Op.DIGAMMA: 60, Op.POW: 50, Op.ATAN2: 30, Op.IDIV: 12, Op.MOD: 12,
}  # fmt: skip
"""Ops that cost more than CYCLES_ALU."""

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
        if loop.kind != "serial" and loop.extent > 1:
            own = self.loop(loop, loop.bit)
            if own < cycles:
                return own, [loop]
        return cycles, chosen


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
    return made


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


def _split_tasks(made: Schedule) -> None:
    """Cut the outermost parallel loops into units, and units into tasks of about TASK_CYCLES."""
    nest = made.nest
    tops = [x for x in nest.lines if isinstance(x, Loop)]
    if len(tops) != 1 or made.cycles < 2 * TASK_CYCLES:
        return
    loops: list[Loop] = []
    line = tops[0]
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
