"""In which order the groups of a body run.

Groups are placed last to first: of those whose readers are all placed, the one that makes the
fewest bytes live (what it reads and nobody reads later, minus what it writes). So a recomputation
behind REMAT comes right before its reader. Ties keep the program's order. An update in place comes
after the readers of the old value, unless that closes a cycle.

What makes nothing but results (weight gradients) then moves to where its operands are there: seen
from the end, each of them looks cheap, and all of them together keep the operands of every layer.
Results have memory of their own, so bytes are never more at any time. It stays behind those readers
of a parameter that it may be written over.

Cost: linear in groups and buffers, apart from a heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from tinyjax.core.avals import TupleAval
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.lowering.fusion import UPDATE, FusionPlan, Group, base, source_of


@dataclass(slots=True)
class Ordered:
    """A flat body with its groups in the order in which they run."""

    flat: UOp
    fusion: FusionPlan
    groups: list[Group]
    last_read: dict[UOp, int]  # realised node or PARAM -> position of its last reader
    blocked: dict[UOp, str]  # update -> why its operand cannot be ordered to die there


def order_groups(fusion: FusionPlan) -> Ordered:
    """groups -> the same in the order in which they run, readers before updates in place"""
    flat, groups = fusion.body, fusion.groups
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

    blocked: dict[UOp, str] = {}
    for i, g in enumerate(groups):
        if g.kind == UPDATE:
            for r in readers.get(g.inputs[0], ()):
                if r != i and not add_edge(r, i):
                    blocked[g.outputs[0]] = f"{title_of(groups[r])} reads the old value later"
    kept = {source_of(base(o)) for o in flat.src}
    order = _results_early(groups, before, kept, _last_to_first(groups, before, kept))
    position = {g: p for p, g in enumerate(order)}
    last_read = {n: max(position[r] for r in rs) for n, rs in readers.items()}
    return Ordered(flat, fusion, [groups[g] for g in order], last_read, blocked)


def title_of(group: Group) -> str:
    """A group in a line, for notes."""
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


def _last_to_first(groups: Sequence[Group], before: list[set[int]], kept: set[UOp]) -> list[int]:
    """The greedy order, as group numbers from first to last; `kept` are the results."""
    waiting = [0] * len(groups)
    for sources in before:
        for w in sources:
            waiting[w] += 1
    live = set(kept)
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


def _results_early(
    groups: Sequence[Group], before: list[set[int]], kept: set[UOp], order: Sequence[int]
) -> list[int]:
    """`order`, groups that make results alone moved to the first place where they can run."""
    readers: dict[UOp, list[int]] = {}  # of parameters, so far
    waiting: dict[int, int] = {}
    waited: dict[int, list[int]] = {}
    for i in order:
        params = [n for n in groups[i].inputs if n.op is Op.PARAM]
        if kept.issuperset(groups[i].outputs):
            kinds = {o.aval for o in groups[i].outputs}
            over = {r for n in params if n.aval in kinds for r in readers.get(n, ())}
            needed = before[i] | over
            waiting[i] = len(needed)
            for w in needed:
                waited.setdefault(w, []).append(i)
        for n in params:
            readers.setdefault(n, []).append(i)
    early: dict[int, None] = {}
    for i in order:
        ready = [i]
        while ready:
            g = ready.pop()
            if g in early:
                continue
            early[g] = None
            for r in waited.get(g, ()):
                waiting[r] -= 1
                if not waiting[r]:
                    ready.append(r)
    return list(early)
