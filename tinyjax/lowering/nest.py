"""Stage 2 -> stage 3: which loops a kernel has, in which order, and where every node is computed.

The result is a `Nest`: an ordered list of lines, where a line is a node (compute it here), a `Loop`
with lines of its own, an `Accumulate` (one step of a FOLD) or a `Write` (a STORE). Rules:

* A node stands at the deepest loop it depends on, before the first loop or line that needs it.
* A FOLD stands where the ranges it depends on are open, no deeper; its loops come before its users.
* Folds and stores that are ready and start with the same range share one loop (a *sweep*); a fold
  that needs another fold's result starts the next sweep.
* A store's loops are its END's in order, except that the range of a PREFIX is innermost. A fold's
  ranges are ordered by stride, the smallest innermost.
* A LOAD of a buffer that the kernel writes is not moved out of the loops that write it.

Which loop is a vector, how often it is unrolled and how tasks split the nest is `schedule.py`'s
decision, recorded on the loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const_value, toposort
from tinyjax.lowering.cycles import CYCLES
from tinyjax.lowering.indexing import Indexing
from tinyjax.lowering.registers import FLOAT32, FLOAT64, INT64

KEPT_CYCLES = 10
"""What recomputing must cost at least for a row buffer to pay."""
KEPT_BYTES, KEPT_BUFFERS = 16 << 10, 4
"""Size of a row buffer (a half of the smallest L1) and how many of them a kernel may have."""

UNPLACED = frozenset({Op.CONST, Op.RANGE, Op.PARAM, Op.DIM})
"""Never lines: constants and loop variables are made where they are used."""


def extent(node: UOp) -> int:
    """Number of iterations of a RANGE, at most if it has a limit."""
    return int(const_value(node.src[0]))


def limit(node: UOp) -> UOp | None:
    """The number of iterations of a RANGE that is known at run time: a product of DIMs."""
    return node.src[1] if len(node.src) > 1 else None


def ranges_of(node: UOp) -> list[UOp]:
    """The ranges that an END or FOLD closes."""
    first = 1
    if node.op is Op.FOLD and node.arg in ("argmax", "argmin"):
        first = 2
    return [s for s in node.src[first:] if s.op is Op.RANGE]


def fold_operands(node: UOp) -> tuple[UOp, ...]:
    """The value (and index) that a FOLD accumulates."""
    return node.src[:2] if node.arg in ("argmax", "argmin") else node.src[:1]


def range_bits(order: Iterable[UOp], written: Mapping[UOp, int] | None = None) -> dict[UOp, int]:
    """Bit set (1 << id) of the ranges that nodes, sources first, depend on; FOLD, END close theirs.

    `written` are buffers whose loads depend on more ranges than their index says.
    """
    free: dict[UOp, int] = {}
    for node in order:
        found = 1 << node.arg[0] if node.op is Op.RANGE else 0
        for s in node.src:
            found |= free[s]
        if node.op is Op.FOLD or node.op is Op.END:
            for r in ranges_of(node):
                found &= ~(1 << r.arg[0])
        elif node.op is Op.LOAD and written:
            found |= written.get(node.src[0].src[0], 0)
        free[node] = found
    return free


@dataclass(eq=False, slots=True)
class Loop:
    """`for range`, `lanes` iterations per vector, `copies` vectors (or scalars) per step.

    `columns` > 0: the reduction inside accumulates blocks of so many columns in memory.
    """

    range: UOp
    lines: list[Line] = field(default_factory=list)
    lanes: int = 1
    copies: int = 1
    columns: int = 0
    keeps: dict[UOp, int] = field(default_factory=dict)  # written to a row buffer: its number
    kept: dict[UOp, int] = field(default_factory=dict)  # read from a row buffer instead
    starts: list[UOp] = field(default_factory=list)  # folds whose outermost loop this is
    carries: list[UOp] = field(default_factory=list)  # folds and prefixes accumulated inside
    indexes: list[UOp] = field(default_factory=list)  # INDEX nodes used inside

    @property
    def extent(self) -> int:
        """Number of iterations."""
        return extent(self.range)

    @property
    def limit(self) -> UOp | None:
        """Iterations of this run, if they are fewer than the extent."""
        return limit(self.range)

    @property
    def kind(self) -> str:
        """loop, reduce or serial."""
        return str(self.range.arg[1])

    @property
    def bit(self) -> int:
        """The range's bit in `Nest.free`."""
        return 1 << int(self.range.arg[0])


@dataclass(eq=False, slots=True)
class Accumulate:
    """One step of a FOLD."""

    fold: UOp


@dataclass(eq=False, slots=True)
class Write:
    """One STORE."""

    store: UOp


Line = UOp | Loop | Accumulate | Write


@dataclass(eq=False, slots=True)
class _Task:
    """A fold or store still to be placed, with the loops it needs that are not open yet."""

    node: UOp
    roots: tuple[UOp, ...]
    ranges: tuple[UOp, ...]


class Nest:
    """The lines of a kernel and what was found out about its nodes."""

    def __init__(self, sink: UOp) -> None:
        self.sink = sink
        self.order = toposort([sink])
        self.indexing = Indexing()
        self.free = self._free_ranges()
        self._children: dict[UOp, tuple[UOp, ...]] = {}
        self.prefixes = [n for n in self.order if n.op is Op.PREFIX]
        tasks = []
        for end in sink.src:
            store = end.src[0]
            ranges = self._store_order(ranges_of(end), store)
            tasks.append(_Task(store, store.src, ranges))
        self.lines = self._block(0, tasks, frozenset())
        self.row_buffers: list[tuple[UOp, int]] = []  # (a node that is kept, elements)
        self._keep(self.lines)
        self._place(self.lines, 0, set(), {})
        self._note(self.lines)

    # --- facts -----------------------------------------------------------------------------------

    def _free_ranges(self) -> dict[UOp, int]:
        """Bits of the ranges each node depends on; loads of written buffers: all their loops'."""
        written: dict[UOp, int] = {}
        for end in self.sink.src:
            buffer = end.src[0].src[0].src[0]
            for r in ranges_of(end):
                written[buffer] = written.get(buffer, 0) | 1 << r.arg[0]
        return range_bits(self.order, written)

    def _store_order(self, ranges: Sequence[UOp], store: UOp) -> tuple[UOp, ...]:
        """The END's order with the ranges of prefixes innermost."""
        inner = [p.src[1] for p in self.prefixes if p.src[1] in ranges]
        if not inner:
            return tuple(ranges)
        reached = set(toposort([store]))
        inner = [p.src[1] for p in self.prefixes if p in reached]
        return tuple([r for r in ranges if r not in inner] + [r for r in ranges if r in inner])

    def _fold_order(self, fold: UOp) -> tuple[UOp, ...]:
        """Ranges by falling stride; argmax keeps its order, in which the index rises."""
        ranges = ranges_of(fold)
        if len(ranges) < 2 or fold.arg in ("argmax", "argmin"):
            return tuple(ranges)
        stride = dict.fromkeys(ranges, 1 << 62)
        for node in toposort([fold]):
            if node.op is Op.INDEX:
                for atom, c in self.indexing.linear(node.src[1])[1].items():
                    if atom in stride:
                        stride[atom] = min(stride[atom], abs(c))
        return tuple(sorted(ranges, key=lambda r: -stride[r]))

    def children(self, node: UOp) -> tuple[UOp, ...]:
        """What must be computed before a node; an INDEX needs its condition and opaque atoms."""
        found = self._children.get(node)
        if found is None:
            if node.op is Op.FOLD:
                found = ()
            elif node.op is Op.INDEX:
                atoms = self.indexing.linear(node.src[1])[1]
                found = tuple(a for a in (*atoms, *node.src[2:]) if a.op not in UNPLACED)
            else:
                found = tuple(s for s in node.src if s.op not in UNPLACED)
            self._children[node] = found
        return found

    # --- loops -----------------------------------------------------------------------------------

    def _folds_here(
        self, tasks: Iterable[_Task], open_mask: int, done: frozenset[UOp]
    ) -> list[UOp]:
        """Folds that the tasks need, that depend on open ranges only and are not available yet."""
        found: list[UOp] = []
        seen: set[UOp] = set()
        stack = [r for t in tasks for r in reversed(t.roots)]
        while stack:
            node = stack.pop()
            if node in seen or node in done:
                continue
            seen.add(node)
            if node.op is Op.FOLD and not self.free[node] & ~open_mask:
                found.append(node)
            stack.extend(node.src)
        return found

    def _needs(self, task: _Task, folds: Sequence[UOp]) -> set[UOp]:
        """Which of `folds` a task's value is computed from."""
        wanted, found, seen = set(folds), set[UOp](), set[UOp]()
        stack = list(task.roots)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in wanted:
                found.add(node)
            stack.extend(node.src)
        return found

    def _block(self, open_mask: int, tasks: list[_Task], done: frozenset[UOp]) -> list[Line]:
        """Loops and steps for these tasks inside the open ranges, without the nodes yet."""
        own = {t.node for t in tasks}
        folds = [f for f in self._folds_here(tasks, open_mask, done) if f not in own]
        extra = [_Task(f, fold_operands(f), self._fold_order(f)) for f in folds]
        waiting = extra[::-1] + tasks
        needs = {t.node: self._needs(t, folds) for t in waiting} if folds else {}
        lines: list[Line] = []
        finished: set[UOp] = set()
        while waiting:
            ready = [t for t in waiting if needs.get(t.node, finished) <= finished]
            first = next((t for t in ready if t.node.op is Op.FOLD and t.ranges), ready[0])
            if not first.ranges:
                step = Accumulate(first.node) if first.node.op is Op.FOLD else Write(first.node)
                lines.append(step)
                group = [first]
            else:
                at = first.ranges[0]
                group = [t for t in ready if t.ranges and t.ranges[0] is at]
                loop = Loop(at)
                loop.starts = [t.node for t in group if t.node.op is Op.FOLD and t.node in folds]
                inner = [_Task(t.node, t.roots, t.ranges[1:]) for t in group]
                mask = open_mask | 1 << at.arg[0]
                loop.lines = self._block(mask, inner, done | finished)
                lines.append(loop)
            for t in group:
                waiting.remove(t)
                if t.node in folds:
                    finished.add(t.node)
        return lines

    # --- nodes -----------------------------------------------------------------------------------

    def _keep(self, lines: Sequence[Line]) -> None:
        """Let a later sweep read what an earlier one over as many elements has computed.

        exp(x[s] - m) summed over s and exp(x[r] - m) stored over r differ by the loop variable: if
        recomputing costs more than a load, the first sweep writes it to a row buffer.
        """
        sweeps: list[Loop] = []
        for line in lines:
            if not isinstance(line, Loop):
                continue
            if any(isinstance(x, Loop) for x in line.lines):
                self._keep(line.lines)
                continue
            for earlier in sweeps:
                if earlier.extent == line.extent and earlier.kind == "reduce":
                    self._match(earlier, line)
            sweeps.append(line)

    def _match(self, first: Loop, second: Loop) -> None:
        """Find what `second` computes as `first` did."""
        numbers: dict[Any, int] = {}

        def canonical(loop: Loop) -> dict[UOp, int]:
            """Equal numbers for nodes that are equal up to the loop variable."""
            found: dict[UOp, int] = {loop.range: 0}
            for node in toposort(self._roots(loop)):
                if node is loop.range:
                    continue
                key: Any = node
                if self.free[node] & loop.bit:
                    key = (node.op, node.arg, tuple([found[s] for s in node.src]))
                found[node] = numbers.setdefault(key, len(numbers) + 1)
            return found

        before = {n: node for node, n in canonical(first).items() if node not in first.kept}
        after = canonical(second)
        stack, seen = list(self._roots(second)), set[UOp]()
        while stack:
            node = stack.pop()
            if node in seen or node in second.kept or not self.free[node] & second.bit:
                continue
            seen.add(node)
            same = before.get(after[node])
            if same is not None and self._worth_keeping(node, second):
                number = first.keeps.setdefault(same, len(self.row_buffers))
                if number == len(self.row_buffers):
                    self.row_buffers.append((same, first.extent))
                second.kept[node] = number
            else:
                stack.extend(node.src)

    def _worth_keeping(self, node: UOp, loop: Loop) -> bool:
        """A plain number whose computation costs more than writing and reading it."""
        of = node.aval
        if node.op in (Op.LOAD, Op.FOLD, Op.PREFIX) or of.dtype not in (FLOAT32, FLOAT64):
            return False
        if loop.extent * of.dtype.itemsize > KEPT_BYTES or len(self.row_buffers) >= KEPT_BUFFERS:
            return False
        work = 0.0
        for n in toposort([node], keep=lambda n: bool(self.free[n] & loop.bit)):
            work += CYCLES.get(n.op, 0.0)
        return work >= KEPT_CYCLES

    def _place(
        self, lines: list[Line], open_mask: int, placed: set[UOp], kept: Mapping[UOp, int]
    ) -> None:
        """Insert each node before the first line that needs it, at the outermost legal level."""
        out: list[Line] = []
        here: set[UOp] = set()
        for line in lines:
            for node in self._frontier(line, open_mask, placed, here, kept):
                out.append(node)
            out.append(line)
        lines[:] = out
        placed |= here
        for line in lines:
            if isinstance(line, Loop):
                self._place(line.lines, open_mask | line.bit, placed, line.kept)
        placed -= here

    def _frontier(
        self,
        line: Line,
        open_mask: int,
        placed: set[UOp],
        here: set[UOp],
        kept: Mapping[UOp, int],
    ) -> list[UOp]:
        """Nodes that `line` needs and that can be computed where only `open_mask` is open.

        What is `kept` is read from a row buffer, so what it is computed from is not needed.
        """
        found: list[UOp] = []
        seen: set[UOp] = set()
        stack: list[UOp] = list(reversed(self._roots(line)))
        while stack:
            node = stack[-1]
            if node in seen or node in placed or node in here or node.op in UNPLACED:
                stack.pop()
                continue
            children = () if node in kept else self.children(node)
            pending = [c for c in children if c not in seen and c not in placed and c not in here]
            if pending:
                stack.extend(reversed(pending))
                continue
            stack.pop()
            seen.add(node)
            if not self.free[node] & ~open_mask and node.op not in (Op.FOLD, Op.INDEX):
                here.add(node)
                found.append(node)
        return found

    def _roots(self, line: Line) -> list[UOp]:
        """Values that the steps inside a line evaluate."""
        if isinstance(line, Loop):
            return [r for inner in line.lines for r in self._roots(inner)]
        if isinstance(line, Accumulate):
            return list(fold_operands(line.fold))
        if isinstance(line, Write):
            return list(line.store.src)
        return [line]

    def _note(self, lines: Sequence[Line]) -> tuple[list[UOp], list[UOp]]:
        """Fill `carries` and `indexes` of the loops; returns those of `lines`."""
        carried: dict[UOp, None] = {}
        indexes: dict[UOp, None] = {}
        for line in lines:
            if isinstance(line, Loop):
                inner, used = self._note(line.lines)
                line.carries, line.indexes = inner, used
                started = set(line.starts)
                for f in inner:
                    if f not in started and not (f.op is Op.PREFIX and f.src[1] is line.range):
                        carried[f] = None
                indexes.update(dict.fromkeys(used))
            elif isinstance(line, Accumulate):
                carried[line.fold] = None
            elif isinstance(line, Write):
                indexes[line.store.src[0]] = None
            elif line.op is Op.LOAD:
                indexes[line.src[0]] = None
            elif line.op is Op.PREFIX:
                carried[line] = None
        return list(carried), list(indexes)

    # --- text ------------------------------------------------------------------------------------

    def text(self) -> str:
        """The ordered list, one line each, indented by loop."""
        names: dict[UOp, str] = {}

        def name(node: UOp) -> str:
            if node.op is Op.CONST:
                return str(const_value(node))
            if node.op is Op.RANGE:
                return f"r{node.arg[0]}"
            if node.op is Op.DIM:
                return str(node.arg)
            if node.op is Op.PARAM:
                return f"slot{node.arg[0]}"
            if node.op is Op.INDEX:
                constant, terms = self.indexing.linear(node.src[1])
                parts = [name(a) if c == 1 else f"{name(a)}*{c}" for a, c in terms.items()]
                if constant or not parts:
                    parts.append(str(constant))
                gate = f" if {name(node.src[2])}" if len(node.src) > 2 else ""
                return f"{name(node.src[0])}[{' + '.join(parts)}{gate}]"
            if node not in names:
                names[node] = f"v{len(names)}"
            return names[node]

        out: list[str] = []

        def show(lines: Sequence[Line], indent: str, of: Loop | None) -> None:
            for line in lines:
                if isinstance(line, Loop):
                    width = f" lanes={line.lanes}" if line.lanes > 1 else ""
                    width += f" copies={line.copies}" if line.copies > 1 else ""
                    width += f" columns={line.columns}" if line.columns else ""
                    steps = str(line.extent)
                    if line.limit is not None:
                        steps = f"min({name(line.limit)}, {steps})"
                    out.append(f"{indent}for {name(line.range)} in {steps} {line.kind}{width}:")
                    show(line.lines, indent + "  ", line)
                elif isinstance(line, Accumulate):
                    inside = ", ".join(name(s) for s in fold_operands(line.fold))
                    out.append(f"{indent}{name(line.fold)} {line.fold.arg}= {inside}")
                elif isinstance(line, Write):
                    out.append(f"{indent}{name(line.store.src[0])} = {name(line.store.src[1])}")
                else:
                    arg = "" if line.arg is None else f" {line.arg}"
                    inside = " ".join(name(s) for s in line.src)
                    if of is not None and line in of.kept:
                        out.append(f"{indent}{name(line)} = row{of.kept[line]}")
                        continue
                    kind = line.aval.str_short() if hasattr(line.aval, "dtype") else "tuple"
                    if of is not None and line in of.keeps:
                        inside += f" -> row{of.keeps[line]}"
                    value = f"{line.op.name.lower()}{arg} {inside}"
                    out.append(f"{indent}{name(line)}: {kind} = {value}")

        show(self.lines, "", None)
        return "\n".join(out)


def place(sink: UOp) -> Nest:
    """kernel -> ordered loops, every node at the outermost place where it can be computed"""
    return Nest(sink)


def verify(nest: Nest) -> None:
    """What must hold of the ordered list, before and after scheduling.

    Everything is computed before it is used and inside the loops it depends on; a fold accumulates
    inside the loops that start it; at most one loop on a path is a vector and one is unrolled.
    """
    finished: set[UOp] = set()

    def fail(line: object, rule: str) -> None:
        raise AssertionError(f"{line}: {rule}\n{nest.text()}")

    def usable(node: UOp, known: set[UOp], open_mask: int, line: object) -> None:
        if node.op is Op.RANGE and not nest.free[node] & open_mask:
            fail(line, f"r{node.arg[0]} is not open")
        elif node.op is Op.FOLD and node not in finished:
            fail(line, "uses a fold that is not finished")
        elif node.op is Op.INDEX:
            for child in (*nest.indexing.linear(node.src[1])[1], *node.src[2:]):
                usable(child, known, open_mask, line)
        elif node.op not in UNPLACED and node.op is not Op.FOLD and node not in known:
            fail(line, f"uses {node!r} before it is computed")

    def visit(lines: Sequence[Line], known: set[UOp], open_mask: int, path: list[Loop]) -> None:
        known = set(known)
        for line in lines:
            if isinstance(line, Loop):
                if line.bit & open_mask:
                    fail(line, "opens a range twice")
                here = [*path, line]
                if sum(x.lanes > 1 for x in here) > 1:
                    fail(line, "is a vector inside a vector")
                if sum(x.copies > 1 for x in here) > 1:
                    fail(line, "is unrolled inside an unrolled loop")
                scans = all(c.op is Op.PREFIX for c in line.carries)
                if line.lanes > 1 and line.kind == "serial" and not (line.carries and scans):
                    fail(line, "is a serial vector")
                visit(line.lines, known, open_mask | line.bit, here)
                finished.update(line.starts)
            elif isinstance(line, Accumulate):
                if sum(line.fold in x.starts for x in path) != 1:
                    fail(line.fold, "accumulates outside its loops")
                for s in fold_operands(line.fold):
                    usable(s, known, open_mask, line.fold)
            elif isinstance(line, Write):
                for s in line.store.src:
                    usable(s, known, open_mask, line.store)
            else:
                if nest.free[line] & ~open_mask:
                    fail(line, "is computed outside its loops")
                if not any(line in x.kept for x in path):
                    for s in line.src:
                        usable(s, known, open_mask, line)
                known.add(line)

    visit(nest.lines, set(), 0, [])


def is_index(node: UOp) -> bool:
    """An int64 scalar: index arithmetic, which may be held in 32-bit lanes."""
    return bool(node.aval.dtype == INT64)
