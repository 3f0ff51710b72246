"""Schedule and memory plan: fused groups -> an ordered tree of steps over slots of memory.

**Slots.** Every value that exists in memory has a `Slot`: an argument of the program (input or
output), a place in the arena, or a pointer variable of a loop. Each slot has a lifetime, in ticks
of a clock that runs through the steps, bodies of loops included; arena slots whose lifetimes do not
meet share bytes. What lives outside a loop and is used in it lives until the loop ends.

**Updates in place.** SCATTER and DYNAMIC_UPDATE change the buffer of their operand if this body
owns it, nothing reads the old value later (readers are ordered before the update unless that closes
a cycle) and it is not a result by itself; else the buffer is copied first. A loop carry that is
only updated so stays where it is, any other carry goes back and forth between two buffers.

**Kernels in place.** An output is written over an input of its size and dtype that nothing reads
later, if the kernel reads each element of it only where it writes that one: a temporary over a
temporary, a result over a donated argument. A result of a loop lies in the donated argument that
starts its carry. `Plan.notes` lists each of these decisions with its
reason.

Outputs that are inputs, or the same value twice, are copied: every output has memory of its own.
Values without elements have no memory and no steps.

Cost: linear in groups and buffers, apart from a heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tinyjax.core.avals import Aval, TupleAval
from tinyjax.core.body import params_of
from tinyjax.core.errors import LoweringError
from tinyjax.core.memory import ALIGNMENT
from tinyjax.core.ops import ELEMENTWISE, Op
from tinyjax.core.uop import UOp
from tinyjax.lowering.dims import Bounded, Sizes
from tinyjax.lowering.fusion import ROUTINE, UPDATE, FusionPlan, Group, base
from tinyjax.lowering.inline import storage_aval
from tinyjax.lowering.order import Ordered
from tinyjax.lowering.passes import schedule_of

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
    sizes: tuple[int, ...] = ()  # the numbers of its sizes among the caller's


@dataclass(frozen=True, slots=True)
class Move:
    """Copy a value."""

    dst: Slot
    src: Slot
    nbytes: int


@dataclass(frozen=True, slots=True)
class Point:
    """dst = src + offset bytes, for a pointer slot; offset * stride if it is a run's size."""

    dst: Slot
    src: Slot
    offset: int = 0
    stride: int = 1


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


def plan(
    body: UOp, num_inputs: int, owned: frozenset[int] = frozenset(), sizes: Sizes | None = None
) -> Plan:
    """Plan a flat body with this many inputs; those in `owned` (donated) may be overwritten.

    `sizes` numbers the symbolic sizes of the body; with any, nothing is overwritten.
    """
    sizes = Sizes() if sizes is None else sizes
    return _Planner(body, num_inputs, frozenset() if sizes else owned, sizes).plan


# --- the planner --------------------------------------------------------------------------------


class _Planner:
    """Walks the scheduled groups of a body and, inside loops, of its bodies."""

    def __init__(self, body: UOp, num_inputs: int, owned: frozenset[int], sizes: Sizes) -> None:
        self.sizes = sizes
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

    def move(self, dst: Slot, src: Slot) -> Move:
        """Copy a value; only what there is if its first axis is symbolic.

        An argument or result has no memory behind that, and a carry may lie in one.
        """
        of = dst.aval
        whole: int = dst.nbytes
        lead = next((s for s in of.shape if s != 1), 1)
        if isinstance(lead, Bounded):
            whole = self.sizes.multiple(lead, dst.nbytes // int(lead))
        return Move(dst, src, whole)

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


def read_in_place(body: UOp) -> dict[int, int]:
    """Parameters of a group's body that outputs read only at the element they write.

    With each, the last output that reads it: outputs are stored in order, so an earlier one must
    not be written over it.
    """
    found: dict[int, int] | None = body.derived.get("read_in_place")
    if found is None:
        last: dict[int, int] = {}
        elsewhere: set[int] = set()
        for number, out in enumerate(body.src):
            stack = [(out, True)]
            seen = set(stack)
            while stack:
                n, aligned = stack.pop()
                if n.op is Op.PARAM:
                    last[n.arg[0]] = number
                    if not aligned:
                        elsewhere.add(n.arg[0])
                keeps = n.op in ELEMENTWISE or n.op is Op.RESHAPE
                for s in n.operands:
                    inner = (s, aligned and keeps and s.aval.size == n.aval.size)
                    if inner not in seen:
                        seen.add(inner)
                        stack.append(inner)
        found = {slot: number for slot, number in sorted(last.items()) if slot not in elsewhere}
        body.derived["read_in_place"] = found
    return found


def _is_param(n: UOp, number: int) -> bool:
    return n.op is Op.PARAM and bool(n.arg[0] == number)


def _param_avals(body: UOp) -> dict[int, Aval]:
    return {slot: storage_aval(of) for slot, of in params_of(body).items()}


class _BodyPlanner:
    """Steps of one body; `place` maps realised nodes to slots."""

    def __init__(
        self,
        planner: _Planner,
        made: Ordered,
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
        if x.op is Op.PARAM and out not in self.targets:
            return f"no result can lie in {self.args[x.arg[0]].name}"
        if out in self.made.blocked:
            return self.made.blocked[out]
        if self.made.last_read[x] > position:
            return "the old value is read later"
        if x in self.bases:
            return "the old value is a result"
        if x in group.inputs[1:]:
            return "the update reads its own operand"
        return ""

    def reuse(self, group: Group, position: int) -> dict[UOp, Slot]:
        """Outputs of a kernel that are written over an input which nothing reads later.

        A temporary takes a temporary's place, a result that of a donated input. The kernel must
        read each element of it only where it writes that one.
        """
        assert group.body is not None
        taken: dict[UOp, Slot] = {}
        for slot, last in read_in_place(group.body).items():
            x = group.inputs[slot]
            place = self.args[x.arg[0]] if x.op is Op.PARAM else self.place[x]
            result = self.owns(place)
            fits = [
                o
                for o in group.outputs[last:]
                if (o.aval.size, o.aval.dtype) == (x.aval.size, x.aval.dtype)
                and o not in taken
                and (self.targets.get(o) in self.results if result else o not in self.targets)
            ]
            if not fits or place in taken.values() or self.made.last_read[x] > position:
                continue
            temporary = x.op is not Op.PARAM and place.kind == "arena"
            temporary = temporary and place not in self.targets.values()
            if (result or temporary) and x not in self.bases:
                taken[fits[0]] = place
                title = f"{fits[0].op.name.lower()} {fits[0].aval.str_short()}"
                why = "its last reader reads what it writes"
                self.planner.notes.append(f"{self.name}: {title} in place in {place.name}: {why}")
        return taken

    def why_not_reused(self, number: int) -> str:
        """Why no result lies in a donated input."""
        x = next((n for g in self.made.groups for n in g.inputs if _is_param(n, number)), None)
        if x is None:
            return "no kernel reads it"
        if x in self.bases:
            return "it is a result itself"
        last = self.made.groups[self.made.last_read[x]]
        if last.kind == ROUTINE:
            return f"{last.outputs[0].op.name.lower()} reads it, with no result in its place"
        results = [o for o in last.outputs if o in self.targets]
        if all((o.aval.size, o.aval.dtype) != (x.aval.size, x.aval.dtype) for o in results):
            return "its last reader writes no result of its size and dtype"
        return "its last reader reads it elsewhere than it writes, or writes over another"

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
            self.routine(node, position)
        elif group.kind == UPDATE:
            self.update(group, node, position)
        else:
            if group.outputs[0].aval.size:
                for o, slot in self.reuse(group, position).items():
                    self.place[o] = slot
            out = tuple(
                self.planner.use(self.place[o]) if o in self.place else self.written(o, o.aval)
                for o in group.outputs
            )
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
            self.steps.append(self.planner.move(new, old))
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
                self.steps.append(self.planner.move(slot, source))
                why = "an input" if node.op is Op.PARAM else "also another output"
                if self.name == "main":
                    self.planner.notes.append(f"{slot.name} is copied: it is {why}")

        for number in sorted(self.owned - set(self.planner.aliases.values())):
            if self.name == "main" and self.args[number].nbytes:
                why = self.why_not_reused(number)
                self.planner.notes.append(f"no result lies in the donated in{number}: {why}")

    def owns(self, slot: Slot) -> bool:
        """Whether this is a donated input of the program."""
        return slot.kind == "input" and self.name == "main" and self.args.index(slot) in self.owned

    # --- routines -------------------------------------------------------------------------------

    def carried_in_place(self, node: UOp, results: list[UOp], position: int) -> dict[UOp, Slot]:
        """Results of a loop that lie in the donated inputs which start their carries."""
        first = 0
        if node.op is Op.SCAN:
            first, count = node.arg.num_consts, node.arg.num_carry
        elif node.op is Op.WHILE:
            first, count = node.arg.cond_consts + node.arg.body_consts, len(results)
        else:
            return {}
        operands = [base(s) for s in node.operands]
        found = {}
        for x, out in zip(operands[first : first + count], results, strict=False):
            if x.op is not Op.PARAM or not self.owns(self.args[x.arg[0]]) or not x.aval.size:
                continue
            read = operands.count(x) > 1 or self.made.last_read[x] > position or x in self.bases
            if not read and self.targets.get(out) in self.results:
                found[out] = self.args[x.arg[0]]
        return found

    def routine(self, node: UOp, position: int) -> None:
        """A routine or control flow; results that nobody reads get memory as well."""
        args = [self.slot_of(base(s)) for s in node.operands]
        avals = node.aval.elts if isinstance(node.aval, TupleAval) else (node.aval,)
        if isinstance(node.aval, TupleAval):
            nodes = [UOp(Op.GETTUPLE, (node,), i) for i in range(len(avals))]
        else:
            nodes = [node]
        if all(not a.size for a in avals):
            for n, of in zip(nodes, avals, strict=True):
                self.written(n, of)
            return
        self.place.update(self.carried_in_place(node, nodes, position))
        results = [
            self.planner.use(self.place[n]) if n in self.place else self.written(n, of)
            for n, of in zip(nodes, avals, strict=True)
        ]
        if node.op is Op.SCAN:
            self.scan(node, args, results)
        elif node.op is Op.WHILE:
            self.while_loop(node, args, results)
        elif node.op is Op.COND:
            self.cond(node, args, results)
        elif node.op is Op.CALL:
            sizes = node.arg.params[1:] if node.arg.params[:1] == ("sizes",) else ()
            self.steps.append(Nested(node.src[0], (*args, *results), sizes))
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
        ends: list[tuple[Slot, Slot]] = []  # where a carry ends is known at run time only
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
            even = isinstance(length, Bounded) or length % 2 == 0
            first, second = (result, other) if even else (other, result)
            self.move(first, start)
            a = planner.pointer(result.aval, result, other)
            b = planner.pointer(result.aval, result, other)
            self.steps += [Point(a, first), Point(b, second)]
            here.append(a)
            there.append(b)
            swaps.append(Swap(a, b))
            if isinstance(length, Bounded):
                ends.append((result, a))
        advances: list[Advance] = []
        elements: list[Slot] = []
        stacked = [s.aval for s in node.operands[nc + nk :]] + list(node.aval.elts[nk:])
        for whole, all_of in zip((*xs, *results[nk:]), stacked, strict=True):
            of = all_of.update(shape=all_of.shape[1:])
            p = planner.pointer(of, whole)
            if info.reverse and isinstance(length, Bounded):
                last = self.planner.sizes.shifted(length, -1)
                self.steps.append(Point(p, whole, last, of.nbytes))
            else:
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
        for result, a in ends:
            planner.use(a)
            self.steps.append(planner.move(result, a))

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
            self.steps.append(planner.move(result, a))

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
        """Copy a value, unless it is there."""
        if dst is src:
            return
        self.planner.use(dst)
        self.planner.use(src)
        self.steps.append(self.planner.move(dst, src))


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
            case Move(dst, src, _):
                lines.append(f"{indent}copy {dst} from {src}")
            case Point(dst, src, offset, stride):
                moved = f" + {offset}" + (f" * {stride}" if stride != 1 else "") if offset else ""
                lines.append(f"{indent}{dst.name} = {src.name}{moved}")
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
