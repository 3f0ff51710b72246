"""Schedule and memory plan: fused groups -> an ordered tree of steps over slots of memory.

**Slots.** Every value that exists in memory has a `Slot`: an argument of the program (input or
output), a place in the arena, or a pointer variable of a loop. Each slot has a lifetime, in ticks
of a clock that runs through the steps, bodies of loops included; arena slots whose lifetimes do not
meet share bytes. What lives outside a loop and is used in it lives until the loop ends.

**Order.** Groups are placed last to first: of those whose readers are all placed, the one that
makes the fewest bytes live (what it reads and nobody reads later, minus what it writes). So a
recomputation behind REMAT comes right before its reader and a weight gradient as soon as its
operands are there. Ties keep the program's order.

**Updates in place.** SCATTER and DYNAMIC_UPDATE change the buffer of their operand if this body
owns it, nothing reads the old value later (readers are ordered before the update unless that closes
a cycle) and it is not a result by itself; else the buffer is copied first. A loop carry that is
only updated so stays where it is, any other carry goes back and forth between two buffers.
`Plan.notes` lists each of these decisions with its reason.

Outputs that are inputs, or the same value twice, are copied: every output has memory of its own.
Values without elements have no memory and no steps.

Cost: linear in groups and buffers, apart from a heap.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tinyjax.core.avals import Aval, TupleAval
from tinyjax.core.ops import EFFECTS, Op
from tinyjax.core.uop import UOp
from tinyjax.lowering.check import after_pass
from tinyjax.lowering.fusion import (
    ROUTINE,
    UPDATE,
    FusionPlan,
    Group,
    base,
    plan_fusion,
    source_of,
)  # fmt: skip
from tinyjax.lowering.inline import LoweringError, inline, storage_aval
from tinyjax.lowering.prepare import prepare

ALIGNMENT = 64


# --- slots and steps ----------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Slot:
    """Memory of one value. `kind`: input, output, arena, or pointer (a variable of a loop)."""

    kind: str
    aval: Aval
    name: str
    first: int = -1
    last: int = -1
    offset: int = -1
    behind: tuple[Slot, ...] = ()  # what a pointer may point into

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return self.aval.nbytes

    def __str__(self) -> str:
        return f"{self.name}:{self.aval.str_short()}"


@dataclass(frozen=True, slots=True)
class Launch:
    """Run the kernel of a group body on slots: outputs, then inputs (see rangeify)."""

    kind: str
    body: UOp
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Routine:
    """Run a routine (SORT, FFT, HOST_CALL, CALLBACK, CHECK): `node` on slots, results first."""

    node: UOp
    slots: tuple[Slot, ...]
    results: int

    @property
    def avals(self) -> tuple[Aval, ...]:
        """What the routine finds in its slots; a slot itself may have the aval before a reshape."""
        of = self.node.aval
        results = of.elts if isinstance(of, TupleAval) else (of,)
        return (*results, *(s.aval for s in self.node.operands))


@dataclass(frozen=True, slots=True)
class Nested:
    """Run a program of its own (a precompiled CALL): its inputs, then its outputs."""

    body: UOp
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Copy a value."""

    dst: Slot
    src: Slot


@dataclass(frozen=True, slots=True)
class Point:
    """dst = src + offset bytes, for a pointer slot."""

    dst: Slot
    src: Slot
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Advance:
    """Move a pointer slot by some bytes."""

    slot: Slot
    stride: int


@dataclass(frozen=True, slots=True)
class Swap:
    """Exchange two pointer slots."""

    a: Slot
    b: Slot


@dataclass(frozen=True, slots=True)
class Loop:
    """Run the steps `trip` times."""

    trip: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class While:
    """Run `cond`, stop if the bool in `pred` is false, run `steps`, and again."""

    cond: tuple[Step, ...]
    pred: Slot
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Run the branch chosen by an int32 (clamped) or a bool."""

    index: Slot
    branches: tuple[tuple[Step, ...], ...]


Step: TypeAlias = Launch | Routine | Nested | Move | Point | Advance | Swap | Loop | While | Branch


@dataclass(slots=True)
class Plan:
    """The steps of a program and where everything lies."""

    inputs: list[Slot]
    outputs: list[Slot]
    arena: list[Slot]
    pointers: list[Slot]
    steps: tuple[Step, ...]
    arena_bytes: int
    peak_bytes: int
    notes: list[str]
    aliases: dict[int, int] = field(default_factory=dict)  # output -> the donated input it lies in
    fusions: list[tuple[str, FusionPlan]] = field(default_factory=list)


def plan(body: UOp, num_inputs: int, owned: frozenset[int] = frozenset()) -> Plan:
    """Plan a closed body with this many inputs; those in `owned` (donated) may be overwritten."""
    return _Planner(body, num_inputs, owned).plan


# --- order --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Schedule:
    """A flat body with its groups in the order in which they run."""

    flat: UOp
    fusion: FusionPlan
    groups: list[Group]
    last_read: dict[UOp, int]  # realised node or PARAM -> position of its last reader
    blocked: dict[UOp, str]  # update -> why its operand cannot be ordered to die there


def schedule_of(body: UOp) -> Schedule:
    """Fuse and order a body; kept on it, so that a loop body is planned once."""
    found: Schedule | None = body.derived.get("schedule")
    if found is None:
        flat = after_pass(prepare(after_pass(inline(body), "inline")), "prepare")
        fusion = plan_fusion(flat)
        found = body.derived["schedule"] = _order(flat, fusion)
    return found


def _order(flat: UOp, fusion: FusionPlan) -> Schedule:
    groups = fusion.groups
    writer = {o: i for i, g in enumerate(groups) for o in g.outputs}
    before: list[set[int]] = [set() for _ in groups]
    readers: dict[UOp, list[int]] = {}
    for i, g in enumerate(groups):
        for n in g.inputs:
            readers.setdefault(n, []).append(i)
            w = writer.get(source_of(n))
            if w is not None:
                before[i].add(w)
    reach = _reachable(before)

    def add_edge(a: int, b: int) -> bool:
        """a before b, if b does not reach a."""
        if reach[b] >> a & 1:
            return False
        if a != b and a not in before[b]:
            before[b].add(a)
            bits = reach[b] | 1 << b
            for g in range(len(groups)):
                if g == a or reach[g] >> a & 1:
                    reach[g] |= bits
        return True

    effects = [i for i, g in enumerate(groups) if _has_effect(g)]
    effects.sort(key=lambda i: groups[i].outputs[0].arg.sequence if (
        groups[i].outputs[0].op in EFFECTS) else i)  # fmt: skip
    for a, b in itertools.pairwise(effects):
        add_edge(a, b)
    blocked: dict[UOp, str] = {}
    for i, g in enumerate(groups):
        if g.kind == UPDATE:
            for r in readers.get(g.inputs[0], ()):
                if r != i and not add_edge(r, i):
                    blocked[g.outputs[0]] = f"{_title(groups[r])} reads the old value later"
    order = _last_to_first(groups, before, writer, flat)
    position = {g: p for p, g in enumerate(order)}
    last_read = {n: max(position[r] for r in rs) for n, rs in readers.items()}
    return Schedule(flat, fusion, [groups[g] for g in order], last_read, blocked)


def _has_effect(group: Group) -> bool:
    return group.kind == ROUTINE and bool(group.outputs[0].effects)


def _title(group: Group) -> str:
    return f"{group.kind} {group.outputs[-1].op.name.lower()}"


def _reachable(before: list[set[int]]) -> list[int]:
    """Bit set of the groups that come after each group (groups are in a valid order)."""
    reach = [0] * len(before)
    for i in range(len(before) - 1, -1, -1):
        for w in before[i]:
            reach[w] |= reach[i] | 1 << i
    return reach


def _bytes(node: UOp) -> int:
    if isinstance(node.aval, TupleAval):
        return sum(a.nbytes for a in node.aval.elts)
    return int(node.aval.nbytes)


def _last_to_first(
    groups: Sequence[Group], before: list[set[int]], writer: dict[UOp, int], flat: UOp
) -> list[int]:
    """The order described above, as group numbers from first to last."""
    waiting = [0] * len(groups)
    for sources in before:
        for w in sources:
            waiting[w] += 1
    kept = {source_of(base(o)) for o in flat.src}
    live: set[UOp] = set(kept)
    touching: dict[UOp, list[int]] = {}
    for i, g in enumerate(groups):
        for n in g.inputs:
            touching.setdefault(source_of(n), []).append(i)

    def delta(i: int) -> int:
        g = groups[i]
        gain = sum(_bytes(n) for n in {source_of(n) for n in g.inputs} if (
            n not in live and n.op is not Op.PARAM))  # fmt: skip
        return gain - sum(_bytes(o) for o in g.outputs if o not in kept)

    heap = [(delta(i), -i) for i in range(len(groups)) if not waiting[i]]
    heapq.heapify(heap)
    placed: set[int] = set()
    order: list[int] = []
    while heap:
        _, negative = heapq.heappop(heap)
        i = -negative
        if i in placed:
            continue
        placed.add(i)
        order.append(i)
        for n in {source_of(n): None for n in groups[i].inputs}:
            if n not in live:
                live.add(n)
                for r in touching[n]:
                    if r not in placed and not waiting[r]:
                        heapq.heappush(heap, (delta(r), -r))
        for w in before[i]:
            waiting[w] -= 1
            if not waiting[w]:
                heapq.heappush(heap, (delta(w), -w))
    assert len(order) == len(groups), "the order of the groups has a cycle"
    order.reverse()
    return order


# --- the planner --------------------------------------------------------------------------------


class _Planner:
    """Walks the scheduled groups of a body and, inside loops, of its bodies."""

    def __init__(self, body: UOp, num_inputs: int, owned: frozenset[int]) -> None:
        self.clock = 0
        self.arena: list[Slot] = []
        self.pointers: list[Slot] = []
        self.notes: list[str] = []
        self.open: list[set[Slot]] = []  # slots used in each open loop
        self.fusions: dict[UOp, tuple[str, FusionPlan]] = {}
        self.aliases: dict[int, int] = {}
        avals = _param_avals(body)
        empty = storage_aval(Aval((0,), body.src[0].aval.dtype, False)) if body.src else None
        inputs = [
            Slot("input", avals.get(i, empty), f"in{i}", 0)  # type: ignore[arg-type]
            for i in range(num_inputs)
        ]
        outputs = [
            Slot("output", storage_aval(o.aval), f"out{i}", 0)
            for i, o in enumerate(body.src)
            if isinstance(o.aval, Aval)
        ]
        steps = self.body(body, inputs, outputs, owned, "main")
        arena_bytes, peak = allocate(self.arena)
        self.plan = Plan(
            inputs, outputs, self.arena, self.pointers, tuple(steps), arena_bytes, peak, self.notes,
            self.aliases, list(self.fusions.values()),
        )  # fmt: skip

    # --- slots ----------------------------------------------------------------------------------

    def temporary(self, of: Aval) -> Slot:
        slot = Slot("arena", of, f"t{len(self.arena)}", self.clock, self.clock)
        self.arena.append(slot)
        return slot

    def pointer(self, of: Aval, *behind: Slot) -> Slot:
        slot = Slot("pointer", of, f"p{len(self.pointers)}", self.clock, self.clock, behind=behind)
        self.pointers.append(slot)
        return slot

    def use(self, slot: Slot) -> Slot:
        """Note a use now, by the open loops as well."""
        slot.last = self.clock
        for used in self.open:
            used.add(slot)
        for s in slot.behind:
            self.use(s)
        return slot

    def enter(self) -> int:
        self.open.append(set())
        self.clock += 1
        return self.clock

    def leave(self, start: int) -> None:
        """Close a loop: what came in from outside is needed until now."""
        self.clock += 1
        for slot in self.open.pop():
            if slot.first < start:
                slot.last = self.clock

    # --- bodies ---------------------------------------------------------------------------------

    def body(
        self,
        body: UOp,
        args: list[Slot],
        results: list[Slot],
        owned: frozenset[int],
        name: str,
    ) -> list[Step]:
        """Steps computing `body` of the args into the result slots."""
        made = schedule_of(body)
        self.fusions.setdefault(body, (name, made.fusion))
        return _BodyPlanner(self, made, args, results, owned, name).steps


def _param_avals(body: UOp) -> dict[int, Aval]:
    from tinyjax.core.body import params_of

    return {slot: storage_aval(of) for slot, of in params_of(body).items()}


class _BodyPlanner:
    """Steps of one body; `place` maps realised nodes to slots."""

    def __init__(
        self,
        planner: _Planner,
        made: Schedule,
        args: list[Slot],
        results: list[Slot],
        owned: frozenset[int],
        name: str,
    ) -> None:
        self.planner, self.made, self.args, self.owned, self.name = (
            planner, made, args, owned, name,
        )  # fmt: skip
        self.steps: list[Step] = []
        self.place: dict[UOp, Slot] = {}
        self.results = results
        self.bases = [base(o) for o in made.flat.src if isinstance(o.aval, Aval)]
        self.targets: dict[UOp, Slot] = {}
        for node, slot in zip(self.bases, results, strict=True):
            if node.op is not Op.PARAM:
                self.targets.setdefault(node, slot)
        self.alias_updates()
        for position, group in enumerate(made.groups):
            self.planner.clock += 1
            self.group(group, position)
        self.copies()

    # --- in place -------------------------------------------------------------------------------

    def alias_updates(self) -> None:
        """A result of an update in place is written where the update's operand is made."""
        for position in range(len(self.made.groups) - 1, -1, -1):
            group = self.made.groups[position]
            if group.kind == UPDATE and group.outputs[0] in self.targets:
                x = group.inputs[0]
                if x.op is not Op.PARAM and not self.why_copy(group, position):
                    self.targets[x] = self.targets[group.outputs[0]]

    def why_copy(self, group: Group, position: int) -> str:
        """Why an update cannot change its operand's buffer; empty if it can."""
        x, out = group.inputs[0], group.outputs[0]
        if x.op is Op.PARAM and x.arg[0] not in self.owned:
            return f"the caller keeps {self.args[x.arg[0]].name}"
        if out in self.made.blocked:
            return self.made.blocked[out]
        if self.made.last_read[x] > position:
            return "the old value is read later"
        if x in self.bases:
            return "the old value is a result"
        if x in group.inputs[1:]:
            return "the update reads its own operand"
        return ""

    # --- groups ---------------------------------------------------------------------------------

    def slot_of(self, node: UOp) -> Slot:
        if node.op is Op.PARAM:
            return self.planner.use(self.args[node.arg[0]])
        return self.planner.use(self.place[node])

    def written(self, node: UOp, of: Aval) -> Slot:
        """The slot a node is written to: a result's, or a fresh one."""
        slot = self.targets.get(node) or self.planner.temporary(of)
        self.place[node] = self.planner.use(slot)
        return slot

    def group(self, group: Group, position: int) -> None:
        node = group.outputs[0]
        if group.kind == ROUTINE:
            self.routine(group, node)
        elif group.kind == UPDATE:
            self.update(group, node, position)
        else:
            out = tuple(self.written(o, o.aval) for o in group.outputs)
            if not out[0].nbytes:
                return
            inputs = tuple(self.slot_of(n) for n in group.inputs)
            assert group.body is not None
            self.steps.append(Launch(group.kind, group.body, out + inputs))

    def update(self, group: Group, node: UOp, position: int) -> None:
        x = group.inputs[0]
        why = self.why_copy(group, position)
        old = self.slot_of(x)
        if not why and self.targets.get(node) not in (None, old) and not self.owns(old):
            why = f"the result has memory of its own ({self.targets[node].name})"
        title = f"{self.name}: {node.op.name.lower()} {node.aval.str_short()}"
        if why:
            new = self.written(node, node.aval)
            self.steps.append(Move(new, old))
            self.planner.clock += 1
            self.planner.use(new)
            self.planner.notes.append(f"{title} copies its operand: {why}")
        else:
            new = self.place[node] = self.planner.use(old)
            self.planner.notes.append(f"{title} in place in {old.name}")
        inputs = tuple(self.slot_of(n) for n in group.inputs[1:])
        assert group.body is not None
        self.steps.append(Launch(group.kind, group.body, (new, *inputs)))

    def copies(self) -> None:
        """Outputs that are inputs, or values that already have another output's memory."""
        self.planner.clock += 1
        aliased: set[Slot] = set()
        for node, slot in zip(self.bases, self.results, strict=True):
            if not slot.nbytes:
                continue
            source = self.args[node.arg[0]] if node.op is Op.PARAM else self.place[node]
            if source not in aliased and self.owns(source):
                aliased.add(source)
                number = self.results.index(slot)
                self.planner.aliases[number] = self.args.index(source)
                self.planner.notes.append(f"{slot.name} lies in the donated {source.name}")
            elif source is not slot:
                self.planner.use(source)
                self.planner.use(slot)
                self.steps.append(Move(slot, source))
                why = "an input" if node.op is Op.PARAM else "also another output"
                if self.name == "main":
                    self.planner.notes.append(f"{slot.name} is copied: it is {why}")

    def owns(self, slot: Slot) -> bool:
        """Whether this is a donated input of the program."""
        return slot.kind == "input" and self.name == "main" and self.args.index(slot) in self.owned

    # --- routines -------------------------------------------------------------------------------

    def routine(self, group: Group, node: UOp) -> None:
        """A routine or control flow; results that nobody reads get memory as well."""
        args = [self.slot_of(base(s)) for s in node.operands]
        avals = node.aval.elts if isinstance(node.aval, TupleAval) else (node.aval,)
        if isinstance(node.aval, TupleAval):
            nodes = [UOp(Op.GETTUPLE, (node,), i) for i in range(len(avals))]
        else:
            nodes = [node]
        if all(not a.size for a in avals) and not node.effects and node.op is not Op.CHECK:
            for n, of in zip(nodes, avals, strict=True):
                self.written(n, of)
            return
        results = [self.written(n, of) for n, of in zip(nodes, avals, strict=True)]
        if node.op is Op.SCAN:
            self.scan(node, args, results)
        elif node.op is Op.WHILE:
            self.while_loop(node, args, results)
        elif node.op is Op.COND:
            self.cond(node, args, results)
        elif node.op is Op.CALL:
            self.steps.append(Nested(node.src[0], (*args, *results)))
        elif node.op in (Op.SORT, Op.FFT, Op.HOST_CALL, Op.CALLBACK, Op.CHECK, Op.COPY):
            self.steps.append(Routine(node, (*results, *args), len(results)))
        else:
            raise LoweringError(f"{node.op.name} has no lowering")

    def carry_stays(self, body: UOp, slot: int, out: int) -> bool:
        """Whether carry `out` of a loop body is its own parameter, possibly updated in place."""
        made = schedule_of(body)
        node = base(made.flat.src[out])
        positions = {g.outputs[0]: (i, g) for i, g in enumerate(made.groups) if g.kind == UPDATE}
        bases = [base(o) for o in made.flat.src]
        if bases.count(node) > 1:
            return False
        while node in positions:
            position, group = positions[node]
            x = group.inputs[0]
            later = made.last_read[x] > position or x in group.inputs[1:]
            if later or node in made.blocked or x in bases:
                return False
            node = x
        return node.op is Op.PARAM and node.arg[0] == slot

    def scan(self, node: UOp, args: list[Slot], results: list[Slot]) -> None:
        """LOOP; xs and ys are pointers that advance; carries stay or go back and forth."""
        info, body = node.arg, node.src[0]
        nc, nk = info.num_consts, info.num_carry
        consts, init, xs = args[:nc], args[nc : nc + nk], args[nc + nk :]
        planner, length = self.planner, info.length
        here: list[Slot] = []  # where a carry is read
        there: list[Slot] = []  # where its next value is written
        swaps: list[Swap] = []
        owned: set[int] = set()
        for i, (start, result) in enumerate(zip(init, results, strict=False)):
            if not result.nbytes:
                here.append(result)
                there.append(result)
                continue
            if self.carry_stays(body, nc + i, i):
                owned.add(nc + i)
                self.move(result, start)
                here.append(result)
                there.append(result)
                planner.notes.append(f"{self.name}: scan carry {i} stays in {result.name}")
                continue
            other = planner.temporary(result.aval)
            first, second = (result, other) if length % 2 == 0 else (other, result)
            self.move(first, start)
            a = planner.pointer(result.aval, result, other)
            b = planner.pointer(result.aval, result, other)
            self.steps += [Point(a, first), Point(b, second)]
            here.append(a)
            there.append(b)
            swaps.append(Swap(a, b))
        advances: list[Advance] = []
        elements: list[Slot] = []
        stacked = [s.aval for s in node.operands[nc + nk :]] + list(node.aval.elts[nk:])
        for whole, all_of in zip((*xs, *results[nk:]), stacked, strict=True):
            of = all_of.update(shape=all_of.shape[1:])
            p = planner.pointer(of, whole)
            last = (length - 1) * of.nbytes if info.reverse and length else 0
            self.steps.append(Point(p, whole, last))
            if of.nbytes:
                advances.append(Advance(p, -of.nbytes if info.reverse else of.nbytes))
            elements.append(p)
        start_tick = planner.enter()
        inner = planner.body(
            body,
            [*consts, *here, *elements[: len(xs)]],
            [*there, *elements[len(xs) :]],
            frozenset(owned),
            f"{self.name}.scan",
        )
        planner.clock += 1
        for slot in (*here, *there, *elements):
            planner.use(slot)
        planner.leave(start_tick)
        for slot in (*args, *results):
            planner.use(slot)
        self.steps.append(Loop(length, (*inner, *swaps, *advances)))

    def while_loop(self, node: UOp, args: list[Slot], results: list[Slot]) -> None:
        """WHILE; carries as in SCAN, but where the last value lies is known at run time only."""
        info = node.arg
        cond, body = node.src[:2]
        planner = self.planner
        cond_consts = args[: info.cond_consts]
        body_consts = args[info.cond_consts : info.cond_consts + info.body_consts]
        init = args[info.cond_consts + info.body_consts :]
        here: list[Slot] = []
        there: list[Slot] = []
        swaps: list[Swap] = []
        moves: list[tuple[Slot, Slot]] = []
        owned: set[int] = set()
        for i, (start, result) in enumerate(zip(init, results, strict=True)):
            if not result.nbytes:
                here.append(result)
                there.append(result)
                continue
            self.move(result, start)
            if self.carry_stays(body, info.body_consts + i, i):
                owned.add(info.body_consts + i)
                here.append(result)
                there.append(result)
                planner.notes.append(f"{self.name}: while carry {i} stays in {result.name}")
                continue
            other = planner.temporary(result.aval)
            a = planner.pointer(result.aval, result, other)
            b = planner.pointer(result.aval, result, other)
            self.steps += [Point(a, result), Point(b, other)]
            here.append(a)
            there.append(b)
            swaps.append(Swap(a, b))
            moves.append((result, a))
        pred = planner.temporary(cond.src[0].aval)
        start_tick = planner.enter()
        test = planner.body(cond, [*cond_consts, *here], [pred], frozenset(), f"{self.name}.cond")
        planner.clock += 1
        planner.use(pred)
        inner = planner.body(
            body, [*body_consts, *here], there, frozenset(owned), f"{self.name}.while"
        )
        planner.clock += 1
        for slot in (*here, *there, pred):
            planner.use(slot)
        planner.leave(start_tick)
        for slot in (*args, *results):
            planner.use(slot)
        self.steps.append(While(tuple(test), pred, (*inner, *swaps)))
        for result, a in moves:
            planner.use(a)
            self.steps.append(Move(result, a))

    def cond(self, node: UOp, args: list[Slot], results: list[Slot]) -> None:
        """BRANCH; every branch writes the same results."""
        count = node.arg
        index, operands = args[0], args[1:]
        planner = self.planner
        branches = []
        start_tick = planner.enter()
        for i, body in enumerate(node.src[:count]):
            steps = planner.body(body, operands, results, frozenset(), f"{self.name}.branch{i}")
            planner.clock += 1
            branches.append(tuple(steps))
        for slot in (*args, *results):
            planner.use(slot)
        planner.leave(start_tick)
        self.steps.append(Branch(index, tuple(branches)))

    def move(self, dst: Slot, src: Slot) -> None:
        self.planner.use(dst)
        self.planner.use(src)
        self.steps.append(Move(dst, src))


# --- the arena ----------------------------------------------------------------------------------


def allocate(slots: Sequence[Slot]) -> tuple[int, int]:
    """Give every arena slot an offset; (bytes of the arena, most bytes live at once).

    Slots are taken by first use; each gets the tightest free gap. Two slots share bytes only if
    their lifetimes, ends included, do not meet: a kernel never writes over what it reads.
    """
    order = sorted((s for s in slots if s.nbytes), key=lambda s: (s.first, -s.nbytes))
    gaps: list[tuple[int, int]] = []  # (offset, bytes), by offset
    ends: list[tuple[int, int, int, int]] = []
    top = live = peak = 0
    for number, slot in enumerate(order):
        size = -(-slot.nbytes // ALIGNMENT) * ALIGNMENT
        while ends and ends[0][0] < slot.first:
            _, _, offset, freed = heapq.heappop(ends)
            live -= freed
            _release(gaps, offset, freed)
        best = min((g for g in gaps if g[1] >= size), key=lambda g: g[1], default=None)
        if best is not None:
            gaps.remove(best)
            slot.offset = best[0]
            if best[1] > size:
                _release(gaps, best[0] + size, best[1] - size)
        elif gaps and sum(gaps[-1]) == top:
            slot.offset = gaps.pop()[0]
            top = slot.offset + size
        else:
            slot.offset = top
            top += size
        heapq.heappush(ends, (slot.last, number, slot.offset, size))
        live += size
        peak = max(peak, live)
    return top, peak


def _release(gaps: list[tuple[int, int]], offset: int, size: int) -> None:
    """Put a gap back, joined with its neighbours."""
    at = 0
    while at < len(gaps) and gaps[at][0] < offset:
        at += 1
    if at < len(gaps) and offset + size == gaps[at][0]:
        size += gaps.pop(at)[1]
    if at and sum(gaps[at - 1]) == offset:
        offset, size = gaps[at - 1][0], gaps[at - 1][1] + size
        gaps[at - 1] = (offset, size)
    else:
        gaps.insert(at, (offset, size))


def show(steps: Sequence[Step], names: dict[Any, str], indent: str = "") -> str:
    """The steps as text, one per line, bodies indented."""
    lines: list[str] = []
    for step in steps:
        inner = indent + "  "
        match step:
            case Launch(kind, body, slots):
                shown = ", ".join(map(str, slots))
                lines.append(f"{indent}{names.get(body, kind)} {shown}")
            case Routine(node, slots, _):
                lines.append(f"{indent}{node.op.name.lower()} {', '.join(map(str, slots))}")
            case Nested(body, slots):
                lines.append(f"{indent}program {', '.join(map(str, slots))}")
            case Move(dst, src):
                lines.append(f"{indent}copy {dst} from {src}")
            case Point(dst, src, offset):
                lines.append(
                    f"{indent}{dst.name} = {src.name}" + (f" + {offset}" if offset else "")
                )
            case Advance(slot, stride):
                lines.append(f"{indent}{slot.name} += {stride}")
            case Swap(a, b):
                lines.append(f"{indent}swap {a.name}, {b.name}")
            case Loop(trip, body_steps):
                lines.append(f"{indent}loop {trip}")
                lines.append(show(body_steps, names, inner))
            case While(cond, pred, body_steps):
                lines.append(f"{indent}while")
                lines.append(show(cond, names, inner))
                lines.append(f"{inner}stop unless {pred.name}")
                lines.append(show(body_steps, names, inner))
            case Branch(index, branches):
                lines.append(f"{indent}branch {index}")
                for i, branch in enumerate(branches):
                    lines.append(f"{indent}case {i}")
                    lines.append(show(branch, names, inner))
    return "\n".join(line for line in lines if line)
