"""The fusion plan: a flat stage-1 body -> groups, each of which becomes one kernel or one routine.

One walk from the outputs to the inputs. When a node is reached, everything that reads it has been
placed, so it is known which groups want its value, how often, and in which order. It is then

* *inlined*: evaluated inside every group that reads it, or
* *realised*: it gets a buffer; written by one of the groups that read it (which computes it anyway)
  if that closes no cycle, otherwise by a new group.

Groups hence grow by absorbing producers (prologues), by becoming the epilogue of a fold they read,
and by taking on further outputs; readers of one value with equal loops are joined (siblings).

A read is *aligned* when the element wanted is the current one: the same row-major position, or
that of the row (trailing axes broadcast). Aligned values live in registers, and a fold over
trailing axes that is read aligned is one more sweep over the row: softmax and layer norm are single
kernels.

What is decided by cost is in `_Planner.inline_or_realise`; terms are in costs.py, every decision is
a row of the table.

Cost: linear in nodes and reads; reachability between groups is one integer bit set per group.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from tinyjax.core.avals import Aval
from tinyjax.core.errors import LoweringError
from tinyjax.core.ops import ELEMENTWISE, Op
from tinyjax.core.uop import UOp, param, toposort, tuple_of
from tinyjax.lowering import costs
from tinyjax.lowering.dims import nest_together
from tinyjax.lowering.dot_layout import can_be_packed, view_source
from tinyjax.lowering.dot_schedule import SKINNY

LEAVES = frozenset({Op.PARAM, Op.CONST})
FREE = frozenset({Op.CONST, Op.DIM})
"""Leaves that are no buffers."""
MAPS = ELEMENTWISE | frozenset(
    {
        Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.PAD, Op.SLICE, Op.FLIP, Op.CONCAT, Op.WINDOW, Op.IOTA,
        Op.GATHER, Op.DYNAMIC_SLICE, Op.RANDOM_BITS, Op.REMAT, Op.OPTIMIZATION_BARRIER, Op.DIM,
    }
)  # fmt: skip
MOVED = frozenset({Op.PERMUTE, Op.EXPAND, Op.PAD, Op.SLICE, Op.FLIP, Op.WINDOW})
FOLDS = frozenset({Op.REDUCE, Op.ARGREDUCE})
UPDATES = frozenset({Op.SCATTER, Op.DYNAMIC_UPDATE})
ROUTINES = frozenset({Op.SORT, Op.FFT, Op.HOST_CALL, Op.CALLBACK, Op.CHECK, Op.CALL, Op.COPY})
CONTROL = frozenset({Op.SCAN, Op.WHILE, Op.COND})

MOST_SIBLINGS = 8
"""Groups compared with each other around one value: bounds the work per node."""

LOOP, CONTRACTION, PREFIX, UPDATE, ROUTINE = "loop", "contraction", "prefix", "update", "routine"


CLASSES = {
    **dict.fromkeys(LEAVES, "leaf"),
    **dict.fromkeys(MAPS, "map"),
    **dict.fromkeys(FOLDS, "fold"),
    **dict.fromkeys(UPDATES, "update"),
    **dict.fromkeys(ROUTINES, "routine"),
    **dict.fromkeys(CONTROL, "control"),
    Op.PREFIX: "sequential",
    Op.TUPLE: "tuple",
}


def class_of(node: UOp) -> str:
    """How a node takes part in fusion: its class in `CLASSES`, where its op alone decides."""
    found = CLASSES.get(node.op)
    if found is not None:
        return found
    if node.op is Op.GETTUPLE:
        return "fold" if node.src[0].op is Op.ARGREDUCE else "result"
    if node.op is Op.DOT:
        return "fold" if is_loop_dot(node) else "contraction"
    raise LoweringError(f"{node.op.name} has no lowering")


def is_loop_dot(node: UOp) -> bool:
    """Whether a canonical DOT is a plain loop: tiny, or with a vector on one side (memory bound)."""
    b, m, k = node.src[0].aval.shape
    n = node.src[1].aval.shape[2]
    return bool(m == 1 or n == 1 or b * m * n * k <= costs.TINY_DOT)


Late = tuple[int, int]
"""The newest REMAT and the newest OPTIMIZATION_BARRIER above a node, as numbers that rise."""


def newest(*lates: Late) -> Late:
    """What is above all of them."""
    return max((a for a, _ in lates), default=0), max((b for _, b in lates), default=0)


@dataclass(slots=True)
class Group:
    """What becomes one kernel (or routine): the nodes it writes and the buffers it reads.

    `body` is its closed, alpha-normal form: parameter i is `inputs[i]`. Equal groups have the same
    body. For a routine `body` is None and `outputs[0]` is the node itself (or its results).
    """

    kind: str
    outputs: list[UOp] = field(default_factory=list)
    inputs: list[UOp] = field(default_factory=list)
    body: UOp | None = None
    nodes: int = 0  # counted once for every sweep they are computed in
    loops: frozenset[tuple[object, ...]] = (
        frozenset()
    )  # its folds: operand shape and what is folded
    late: Late = (0, 0)  # groups for which it differs are never joined


@dataclass(frozen=True, slots=True)
class Decision:
    """A row of the printed table."""

    node: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.node:<34} {self.what:<22} {self.why}"


@dataclass(slots=True)
class FusionPlan:
    """The groups of a body in a valid order, and how they came about."""

    body: UOp
    groups: list[Group]
    decisions: list[Decision]
    visits: int

    def table(self) -> str:
        """The decision table as text."""
        return "\n".join(map(str, self.decisions))


def base(node: UOp) -> UOp:
    """The node whose buffer holds the same bytes: reshapes, REMAT, barriers are looked through."""
    while True:
        if node.op in (Op.RESHAPE, Op.REMAT, Op.OPTIMIZATION_BARRIER):
            node = node.src[0]
        elif node.op in (Op.EXPAND, Op.PERMUTE) and _keeps_order(node):
            node = node.src[0]
        else:
            return node


def _keeps_order(node: UOp) -> bool:
    """Whether an EXPAND or PERMUTE only adds or moves axes of size 1."""
    x = node.src[0].aval
    if node.op is Op.EXPAND:
        return bool(x.size == node.aval.size)
    moved = [a for a in node.arg if x.shape[a] != 1]
    return moved == sorted(moved)


def _broadcasts_trailing(node: UOp) -> bool:
    """Whether an EXPAND repeats x along axes behind all its own (a row value read by the row)."""
    x, (shape, dims) = node.src[0].aval, node.arg
    own = [d for d, s in zip(dims, x.shape, strict=True) if s != 1]
    leading = [d for d in range(len(shape)) if shape[d] != 1][: len(own)]
    return own == leading


def _folds_trailing(node: UOp) -> bool:
    """Whether a fold runs over the last axes (those of size 1 aside)."""
    shape = node.src[0].aval.shape
    axes = node.arg[1] if node.op is Op.REDUCE else (node.arg[1],)
    kept = [a for a in range(len(shape)) if a not in axes and shape[a] != 1]
    return all(k < a for k in kept for a in axes if shape[a] != 1)


SAME_PLACE = (Op.RESHAPE, Op.REMAT, Op.OPTIMIZATION_BARRIER, Op.GETTUPLE)
"""Besides elementwise ops, those that read their operand at the element they give."""

SWEEP = frozenset({(0, 0)})
"""The place of what the loops over the outputs compute; a fold's loops are (level, size)."""


@dataclass(slots=True)
class _Access:
    """How a group reads a value: at the current element or elsewhere, and how many evaluations.

    `places` are the sweeps in which an aligned value is computed: once in each.
    """

    aligned: bool
    evals: int
    places: frozenset[tuple[int, int]] = SWEEP

    def times(self, size: int) -> int:
        """How many elements are evaluated in all."""
        return max(self.evals, size * len(self.places)) if self.aligned else self.evals


class _Planner:
    def __init__(self, body: UOp) -> None:
        self.order = [n for n in toposort(body.src) if n.op is not Op.TUPLE]
        self.groups: list[Group] = []
        self.after: list[int] = []  # bit set of groups that (transitively) read each group
        self.home: dict[UOp, int] = {}  # realised node -> group that writes it
        self.uses: dict[UOp, dict[int, _Access]] = {n: {} for n in self.order}
        self.must: set[UOp] = set()
        self.frontier: list[set[UOp]] = []  # values a group reads that are not inlined into it
        self.work: dict[UOp, float] = {}
        self.bytes: dict[UOp, float] = {}
        self.late: dict[UOp, Late] = {}  # (0, 0) where it is missing
        self.walls: set[UOp] = set()  # values behind barriers: written by groups before them
        self.tails: set[UOp] = set()  # elementwise results of a contraction, whoever else reads it
        self.over_dot: set[UOp] = set()  # what may become the epilogue of a contraction
        self.levels: dict[UOp, int] = {}  # folds on the deepest path below a node, itself included
        self.decisions: list[Decision] = []
        self.names = {n: i for i, n in enumerate(self.order)}
        for out in body.src:
            self.require(out)
        for n in self.order:
            if n.op is Op.OPTIMIZATION_BARRIER and base(n).op is not Op.CONST:
                self.require(n)
                self.walls.add(base(n))
        self.estimate()

    # --- estimates ------------------------------------------------------------------------------

    def estimate(self) -> None:
        """Time and bytes per element if what is cheap below a node is inlined into it.

        An operand with several readers counts as a buffer unless it is only a view: it will be one,
        or its work would be counted again in all that follows (a residual stream).
        """
        readers: dict[UOp, int] = {}
        for n in self.order:
            for s in n.operands:
                readers[s] = readers.get(s, 0) + 1
        operand: dict[UOp, tuple[float, float]] = {}
        for n in self.order:
            kind = class_of(n)
            item = float(n.aval.dtype.itemsize) if isinstance(n.aval, Aval) else 8.0
            work, read = costs.element_ns(n.op), item
            if kind == "map":
                read = 0.0
                for s in n.src:
                    if s.op is not Op.CONST and s.aval.size > 1:
                        more = operand[s]
                        work, read = work + more[0], read + more[1]
            self.work[n], self.bytes[n] = work, read
            shared = readers.get(n, 0) > 1 and n.op in ELEMENTWISE
            operand[n] = (0.0, item) if shared or kind != "map" else (work, read)
            below = max((self.levels[s] for s in n.operands), default=0)
            self.levels[n] = below + (kind == "fold" and n.op is not Op.GETTUPLE)
            same = [s for s in n.operands if isinstance(s.aval, Aval) and s.aval.size == _size(n)]
            if kind == "contraction" or (
                (n.op in ELEMENTWISE or n.op is Op.RESHAPE) and any(s in self.tails for s in same)
            ):
                self.tails.add(n)
            if kind == "contraction" or (
                (n.op in ELEMENTWISE or n.op is Op.RESHAPE)
                and any(
                    s in self.over_dot and readers[s] == 1 and s.aval.size == n.aval.size
                    for s in n.src
                )
            ):
                self.over_dot.add(n)
            ages = [self.late[s] for s in n.operands if s in self.late]
            if n.op is Op.REMAT:
                ages.append((n.arg, 0))
            elif n.op is Op.OPTIMIZATION_BARRIER:
                ages.append((0, self.names[n] + 1))
            if ages:
                self.late[n] = newest(*ages)

    # --- groups ---------------------------------------------------------------------------------

    def new_group(self, kind: str) -> int:
        self.groups.append(Group(kind))
        self.after.append(0)
        self.frontier.append(set())
        return len(self.groups) - 1

    def require(self, node: UOp) -> None:
        """`node` must have a buffer: the one of its base."""
        at = base(node)
        if at.op is not Op.PARAM:
            self.must.add(at)
            if at.op is Op.CONST:
                self.uses.setdefault(at, {})

    def reads(self, group: int, node: UOp, access: _Access) -> None:
        """Record that a group wants `node` (not a constant)."""
        if node.op in FREE:
            return
        self.frontier[group].add(node)
        found = self.uses[node].get(group)
        if found is None:
            self.uses[node][group] = access
        elif found.aligned and access.aligned:
            found.evals = max(found.evals, access.evals)
            found.places |= access.places
        else:
            found.evals += access.evals
            found.aligned = found.aligned or access.aligned

    def depends(self, writer: int, readers: Iterable[int]) -> None:
        """Readers come after the writer, and so after all that comes before it."""
        bits = 0
        for r in readers:
            if r != writer:
                bits |= self.after[r] | 1 << r
        new = bits & ~self.after[writer]
        if new:
            self.after[writer] |= bits
            mark = 1 << writer
            for g, after in enumerate(self.after):
                if after & mark:
                    self.after[g] |= bits

    def can_write(self, group: int, node: UOp) -> bool:
        """No other reader of `node` comes before the group, and no barrier lies between them."""
        if node in self.walls and self.groups[group].late[1] > self.late.get(node, (0, 0))[1]:
            return False
        mark = 1 << group
        return all(not self.after[r] & mark for r in self.uses[node] if r != group)

    def fits(self, group: int, node: UOp) -> bool:
        """Whether evaluating `node` in the group keeps it within the limits."""
        g = self.groups[group]
        if g.nodes >= costs.MAX_NODES:
            return False
        wanted = {s for s in node.src if s.op not in FREE}
        return len((self.frontier[group] - {node}) | wanted) + len(g.outputs) < costs.MAX_BUFFERS

    # --- siblings -------------------------------------------------------------------------------

    def merge_readers(self, node: UOp) -> None:
        """Join groups that run the same loops over `node`, so that it is read once.

        Same loops: only elementwise over equally many elements, or the same folds over the same
        axes (the gradients of a bias and of a scale). Neither may come before the other.
        """
        kept: list[int] = []
        for g in list(self.uses[node]):
            group = self.groups[g]
            if group.kind != LOOP or not self.uses[node][g].evals >= node.aval.size > 1:
                continue
            for other in kept:
                if self.same_loops(group, self.groups[other]) and self.may_merge(g, other):
                    self.merge(g, other)
                    self.say(node, f"join {g} to {other}", "equal loops over it")
                    break
            else:
                kept.append(g)
                if len(kept) == MOST_SIBLINGS:
                    return

    def same_loops(self, a: Group, b: Group) -> bool:
        shapes = [o.aval for o in (*a.outputs, *b.outputs)]
        alike = all(
            x.size == shapes[0].size and nest_together(x.shape, shapes[0].shape) for x in shapes
        )
        return alike and a.loops == b.loops and a.late == b.late

    def may_merge(self, a: int, b: int) -> bool:
        if self.after[a] >> b & 1 or self.after[b] >> a & 1:
            return False
        one, two = self.groups[a], self.groups[b]
        buffers = len(self.frontier[a] | self.frontier[b]) + len(one.outputs) + len(two.outputs)
        return buffers <= costs.MAX_BUFFERS and one.nodes + two.nodes <= costs.MAX_MERGED

    def merge(self, a: int, b: int) -> None:
        """Everything group `a` does is done by group `b`; number `a` stays unused."""
        gone, kept = self.groups[a], self.groups[b]
        for n in self.frontier[a]:
            access = self.uses[n].pop(a)
            self.reads(b, n, access)
        for n in gone.outputs:
            self.home[n] = b
        kept.outputs += gone.outputs
        kept.nodes += gone.nodes
        gone.outputs = []
        self.frontier[a] = set()
        bits = self.after[a] | self.after[b]
        either = 1 << a | 1 << b
        for g, after in enumerate(self.after):
            if after & either:
                self.after[g] |= bits | either
        self.after[b] = bits
        # Readers noted under the old number (results of a routine not yet placed) mean `b` now.
        self.after[a] = bits | 1 << b

    def drop_merged(self) -> None:
        """Renumber after the walk."""
        numbers: dict[int, int] = {}
        for g, group in enumerate(self.groups):
            if group.outputs:
                numbers[g] = len(numbers)
        self.groups = [g for g in self.groups if g.outputs]
        self.home = {n: numbers[g] for n, g in self.home.items()}

    # --- the walk -------------------------------------------------------------------------------

    def run(self) -> None:
        for node in reversed(self.order):
            if node.op is Op.CONST and node not in self.must:
                continue
            if len(self.uses[node]) > 1 and isinstance(node.aval, Aval):
                self.merge_readers(node)
            if node.op is not Op.PARAM:
                self.place(node)

    def place(self, node: UOp) -> None:
        kind = class_of(node)
        uses = self.uses[node]
        if kind == "result":  # GETTUPLE of a routine: its buffer is one of the routine's
            self.depends_later(node)
        elif kind in ("routine", "control"):
            self.routine(node)
        elif kind == "contraction":
            self.contraction(node)
        elif kind == "sequential":
            self.root(node, PREFIX, "running fold")
        elif kind == "update":
            self.root(node, UPDATE, "changes a buffer")
        elif kind in ("map", "leaf"):
            if uses or node in self.must:
                self.map(node)
        elif node.op is Op.ARGREDUCE:
            self.inline(node, uses)
        else:
            self.fold(node)

    def depends_later(self, node: UOp) -> None:
        """Reads of a routine's result are reads of the routine."""
        source = node.src[0]
        for g, access in self.uses[node].items():
            self.uses[source].setdefault(g, _Access(False, access.evals))

    def say(self, node: UOp, what: str, why: str) -> None:
        name = f"%{self.names.get(node, '')} {node.op.name.lower()}"
        if isinstance(node.aval, Aval):
            name += f" {node.aval.str_short()}"
        self.decisions.append(Decision(name, what, why))

    def inline(self, node: UOp, uses: dict[int, _Access], why: str = "") -> None:
        """Evaluate `node` in every group that reads it."""
        for g, access in list(uses.items()):
            self.evaluate(node, g, access)
        if why and uses:
            self.say(node, f"inline in {_list(uses)}", why)

    def evaluate(self, node: UOp, group: int, access: _Access) -> None:
        """The group computes `node`: it reads the node's operands."""
        g = self.groups[group]
        g.nodes += len(access.places)
        if class_of(node) == "fold" and node.op is not Op.GETTUPLE:
            axes = None if node.op is Op.DOT else node.arg[1]
            g.loops |= {(node.op, node.src[0].aval.shape, axes, self.levels[node])}
        if node in self.late:
            g.late = newest(g.late, self.late[node])
        self.frontier[group].discard(node)
        for s, inner in _operand_accesses(node, access, self.levels[node]):
            self.reads(group, s, inner)

    def realise(self, node: UOp, group: int, why: str) -> None:
        """The group writes `node` to a buffer that the other readers load."""
        g = self.groups[group]
        self.home[node] = group
        g.outputs.append(node)
        self.depends(group, self.uses[node])
        access = self.uses[node].get(group) or _Access(True, node.aval.size)
        places = access.places | SWEEP
        self.evaluate(node, group, _Access(True, max(access.evals, node.aval.size), places))
        others = [r for r in self.uses[node] if r != group]
        where = f"buffer, group {group}" + (f" -> {_list(others)}" if others else "")
        self.say(node, where, why)

    def root(self, node: UOp, kind: str, why: str) -> None:
        """A node that is a group of its own; its operands may be expressions."""
        group = self.new_group(kind)
        if node.op in UPDATES:
            self.require(node.src[0])
        self.realise(node, group, why)

    def routine(self, node: UOp) -> None:
        """Operands and results in memory."""
        group = self.new_group(ROUTINE)
        self.home[node] = group
        self.groups[group].outputs.append(node)
        self.depends(group, self.uses[node])
        self.groups[group].late = self.late.get(node, (0, 0))
        for s in node.operands:
            self.require(s)
            self.reads(group, s, _Access(False, s.aval.size))
        self.say(node, f"routine, group {group}", "its own steps")

    def contraction(self, node: UOp) -> None:
        self.epilogue(node)
        for place, s in enumerate(node.src):
            source = view_source(s)
            if source.op is Op.CONST:
                self.require(s)
            elif not self.is_prologue(node, place, source):
                self.require(source)

    def is_prologue(self, node: UOp, place: int, source: UOp) -> bool:
        """Whether an operand of a contraction may be evaluated where it is packed.

        Not what can be the epilogue of the contraction that makes it: that has it in registers. Nor
        the smaller operand of a product of few rows, which is read again for each strip of columns.
        """
        if class_of(source) != "map" or source in self.tails:
            return False
        if self.work[source] > costs.PROLOGUE_NS:
            return False
        s, other = node.src[place], node.src[1 - place]
        if min(node.aval.shape[1:]) <= SKINNY and s.aval.size <= other.aval.size:
            return False
        return can_be_packed(s, 1 - place)

    def epilogue(self, node: UOp) -> None:
        """Give a contraction to the elementwise group that reads it, or a group of its own."""
        uses = self.uses[node]
        for g in self.candidates(node):
            if self.may_be_epilogue(g, node.aval):
                self.groups[g].kind = CONTRACTION
                if len(uses) == 1 and node not in self.must:
                    self.evaluate(node, g, uses[g])
                    self.say(node, f"inline in {g}", "its epilogue")
                else:
                    self.realise(node, g, "its epilogue also writes it")
                return
        mover = self.only_moved_by(node)
        if mover is None:
            self.realise(node, self.new_group(CONTRACTION), "contraction")
        else:
            self.groups[mover].kind = CONTRACTION
            self.evaluate(node, mover, uses[mover])
            self.say(node, f"inline in {mover}", "stored where it is moved to")

    def may_be_epilogue(self, group: int, of: Aval) -> bool:
        """Whether a group is elementwise over as many elements and small."""
        g = self.groups[group]
        same = all(
            o.aval.size == of.size and nest_together(o.aval.shape, of.shape) for o in g.outputs
        )
        return g.kind == LOOP and same and not g.loops and g.nodes <= costs.MAX_EPILOGUE

    def only_moved_by(self, node: UOp) -> int | None:
        """The group, if there is but one, that only permutes and reshapes `node`."""
        uses = self.uses[node]
        if len(uses) != 1 or node in self.must:
            return None
        (g,) = uses
        group = self.groups[g]
        if group.kind != LOOP or len(group.outputs) != 1:
            return None
        moved = group.outputs[0]
        while moved.op in (Op.RESHAPE, Op.PERMUTE):
            moved = moved.src[0]
        return g if moved is node else None

    def candidates(self, node: UOp) -> list[int]:
        """Groups that could write `node` besides what they do: they compute it as it is needed."""
        size = node.aval.size
        found: list[int] = []
        for g, access in self.uses[node].items() if size else ():
            group = self.groups[g]
            if group.kind != LOOP or not access.aligned or access.evals != size:
                continue
            if self.fits(g, node) and self.can_write(g, node) and self.nested(group, node):
                found.append(g)
        return found

    def nested(self, group: Group, node: UOp) -> bool:
        """Whether the group's loops and those of `node` nest, with enough rows to share out.

        The outer loops are over the smaller of the two; the rest of the work runs inside one row.
        """
        size = node.aval.size
        sizes = [o.aval.size for o in group.outputs]
        if any(max(size, s) % max(min(size, s), 1) for s in sizes):
            return False
        if not all(nest_together(node.aval.shape, o.aval.shape) for o in group.outputs):
            return False
        rows, total = min(size, *sizes), max(_read_size(node), *sizes)
        same = rows == max(size, *sizes) and size <= min(sizes)
        return bool(same or rows >= costs.MIN_ROWS or total <= costs.SMALL)

    def map(self, node: UOp) -> None:
        uses = self.uses[node]
        if base(node) is not node and node not in self.must:
            self.inline(node, uses)  # a view
            return
        size = node.aval.size
        if node not in self.must and node.op in MOVED and self.only_packed(node):
            self.inline(node, uses, "moved while a contraction packs it")
            return
        if len(uses) == 1 and node not in self.must:
            ((group, access),) = uses.items()
            if access.times(size) <= size and self.fits(group, node):
                self.inline(node, uses)
                return
        self.inline_or_realise(node, uses)

    def only_packed(self, node: UOp) -> bool:
        """Whether contractions alone read a node: packing moves elements anyway."""
        kinds = [self.groups[g].kind == CONTRACTION for g in self.uses[node]]
        return all(kinds) and all(self.fits(g, node) for g in self.uses[node])

    def inline_or_realise(self, node: UOp, uses: dict[int, _Access]) -> None:
        """The cheapest of: evaluate it wherever read; let a reader write it; a group of its own."""
        size, item = node.aval.size, node.aval.dtype.itemsize
        work, read = size * self.work[node], size * self.bytes[node] * costs.NS_PER_BYTE
        move = size * item * costs.NS_PER_BYTE
        times = {g: a.times(size) for g, a in uses.items()}
        evaluate = {g: self.work[node] * t for g, t in times.items()}
        load = sum(times.values()) * costs.CHEAP_NS
        ways: list[tuple[float, str, int]] = []
        if node not in self.must and all(self.fits(g, node) for g in uses):
            ways.append((sum(evaluate.values()) + len(uses) * read, "inline", -1))
        for g in self.candidates(node):
            loads = load - times[g] * costs.CHEAP_NS
            cost = evaluate[g] + read + len(uses) * move + loads
            if node in self.over_dot and self.may_be_epilogue(g, node.aval):
                cost -= 2 * move
            ways.append((cost, "reader", g))
        own = work + read + (1 + len(uses)) * move + load + costs.LAUNCH_NS
        if node in self.over_dot:  # an epilogue: no launch, and the product itself is not written
            own -= costs.LAUNCH_NS + 2 * move
        ways.append((own, "own", -1))
        _, what, group = min(ways, key=lambda w: w[0])
        why = ", ".join(f"{name} {cost:.0f}" for cost, name, _ in ways) + " ns"
        if node in self.must:
            why = f"needed in memory; {why}"
        if what == "inline":
            self.inline(node, uses, why)
        else:
            self.realise(node, group if what == "reader" else self.new_group(LOOP), why)

    def fold(self, node: UOp) -> None:
        """Inline a fold only where it is evaluated once per result; otherwise write it."""
        uses = self.uses[node]
        if not uses and node not in self.must:
            return
        home = self.candidates(node)
        if not home and node.op is Op.GETTUPLE:
            home = self.sibling_result(node)
        if list(uses) == home and node not in self.must:
            self.inline(node, uses, "once per result, where it is read")
        elif home:
            self.realise(node, home[0], "its reader computes it")
        else:
            self.realise(node, self.new_group(LOOP), "fold")

    def sibling_result(self, node: UOp) -> list[int]:
        """The group that writes the other result of the same ARGREDUCE."""
        for other in self.home:
            if other.op is Op.GETTUPLE and other.src == node.src:
                g = self.home[other]
                return [g] if self.can_write(g, node) else []
        return []


def _size(node: UOp) -> int:
    return int(node.aval.size) if isinstance(node.aval, Aval) else 0


def _read_size(node: UOp) -> int:
    """Elements a fold reads; of anything else, its own size."""
    if class_of(node) != "fold":
        return int(node.aval.size)
    x = node.src[0] if node.op is not Op.GETTUPLE else node.src[0].src[0]
    return int(x.aval.size)


def _list(groups: Iterable[int]) -> str:
    return ",".join(map(str, groups))


def _operand_accesses(node: UOp, access: _Access, level: int) -> list[tuple[UOp, _Access]]:
    """How each operand is read when `node` is evaluated with this access."""
    op, size, evals = node.op, node.aval.size if isinstance(node.aval, Aval) else 0, access.evals
    out: list[tuple[UOp, _Access]] = []
    for i, s in enumerate(node.operands):
        if s.op in FREE:
            continue
        if s.aval.size == 1 if isinstance(s.aval, Aval) else False:
            inner = _Access(True, 1)
        elif op in ELEMENTWISE or op in SAME_PLACE:
            inner = _Access(access.aligned, evals, access.places)
        elif op is Op.EXPAND and access.aligned and _broadcasts_trailing(node):
            inner = _Access(True, min(evals, s.aval.size))
        elif op is Op.PERMUTE and _keeps_order(node):
            inner = _Access(access.aligned, evals, access.places)
        elif op is Op.DOT and is_loop_dot(node):
            inner = _Access(False, evals * node.src[0].aval.shape[2])
        elif op in (Op.REDUCE, Op.ARGREDUCE):
            x = s.aval.size
            result = node.aval.size if isinstance(node.aval, Aval) else node.aval.elts[0].size
            each = x // max(result, 1)
            aligned = access.aligned and _folds_trailing(node)
            inner = _Access(aligned, evals * each, frozenset({(level, x)}))
        elif op in (Op.PAD, Op.CONCAT):
            inner = _Access(False, s.aval.size * -(-evals // max(size, 1)))
        elif op is Op.SCATTER:
            inner = _Access(False, s.aval.size)
        elif op is Op.DYNAMIC_UPDATE:
            inner = _Access(i == 1, s.aval.size)
        elif op is Op.PREFIX:
            inner = _Access(False, s.aval.size)
        elif op is Op.DOT:
            inner = _Access(False, s.aval.size)
        else:
            inner = _Access(False, evals)
        out.append((s, inner))
    return out


# --- closing groups -----------------------------------------------------------------------------


def plan_fusion(body: UOp) -> FusionPlan:
    """body -> its nodes in groups that become one kernel or routine each"""
    planner = _Planner(body)
    planner.run()
    visits = len(planner.order)
    planner.drop_merged()
    for group in planner.groups:
        group.outputs.sort(key=lambda o: planner.names.get(o, -1))
        visits += close_group(group, planner.home)
    return FusionPlan(body, _topological(planner), planner.decisions, visits)


def _topological(planner: _Planner) -> list[Group]:
    """The groups, writers before readers, otherwise in the order of their outputs."""
    groups, home = planner.groups, planner.home
    readers: list[list[int]] = [[] for _ in groups]
    waiting = [0] * len(groups)
    for i, g in enumerate(groups):
        for w in {home[source_of(n)] for n in g.inputs if n.op is not Op.PARAM}:
            readers[w].append(i)
            waiting[i] += 1
    ready = [(planner.names.get(g.outputs[-1], -1), i) for i, g in enumerate(groups)]
    ready = [r for r in ready if not waiting[r[1]]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(groups[i])
        for r in readers[i]:
            waiting[r] -= 1
            if not waiting[r]:
                heapq.heappush(ready, (planner.names.get(groups[r].outputs[-1], -1), r))
    assert len(order) == len(groups), "fusion made a cycle"
    return order


def source_of(node: UOp) -> UOp:
    """The node whose group writes `node`: the routine of a result, else itself."""
    if node.op is Op.GETTUPLE and node.src[0].op is not Op.ARGREDUCE:
        return node.src[0]
    return node


def close_group(group: Group, home: dict[UOp, int]) -> int:
    """Fill `body` and `inputs`; returns how many nodes were visited.

    Buffers become parameters in order of first use, so equal groups are the same object.
    """
    own = set(group.outputs)
    if group.kind == ROUTINE:
        (node,) = group.outputs
        group.inputs = list(dict.fromkeys(base(s) for s in node.operands))
        return 1
    done: dict[UOp, UOp] = {}
    inputs: list[UOp] = []

    def is_leaf(n: UOp) -> bool:
        if n.op is Op.PARAM:
            return True
        if n in own or n.op is Op.CONST:
            return False
        return source_of(n) in home

    stack = list(reversed(group.outputs))
    if group.kind == UPDATE:
        # The operand is parameter 0, and only that: a second use of it reads another parameter.
        (root,) = group.outputs
        target = param(0, root.src[0].aval)
        inputs.append(base(root.src[0]))
        stack = list(reversed(root.src[1:]))
    visits = 0
    while stack:
        n = stack[-1]
        if n in done:
            stack.pop()
            continue
        if is_leaf(n):
            done[n] = param(len(inputs), n.aval)
            inputs.append(n)
            continue
        pending = [s for s in n.src if s not in done]
        if pending:
            stack.extend(reversed(pending))
            continue
        visits += 1
        if n.op in (Op.REMAT, Op.OPTIMIZATION_BARRIER):
            done[n] = done[n.src[0]]
        else:
            done[n] = n.with_src(tuple(done[s] for s in n.src))
    group.inputs = inputs
    if group.kind == UPDATE:
        src = (target, *(done[s] for s in root.src[1:]))
        group.body = tuple_of([root.with_src(src)])
    else:
        group.body = tuple_of([done[o] for o in group.outputs])
    return visits
