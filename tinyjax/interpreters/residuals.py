"""Which known values a linear map keeps: a minimum cut, by bytes, through what may be recomputed.

Between the inputs of a body and its linear part lie known values. Elementwise and movement ops may
be recomputed where the linear map runs; contractions, reductions, sorts, random bits, loops and
calls may not. The cheapest set of values that separates the two sides is a minimum vertex cut;
inputs and outputs of the body cost nothing, since they are kept anyway. Among equal cuts the one
nearest to the linear part is taken (least recomputation).

Source: Dinic, "Algorithm for solution of a problem of maximum flow in networks" (1970).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence

from tinyjax.core import build as b
from tinyjax.core.avals import Aval
from tinyjax.core.dims import largest
from tinyjax.core.ops import ELEMENTWISE, IDENTITIES, MOVEMENT, Op
from tinyjax.core.uop import UOp

RECOMPUTABLE = (ELEMENTWISE | MOVEMENT | IDENTITIES) - {Op.OPTIMIZATION_BARRIER, Op.COPY}
LITERALS = frozenset({Op.CONST, Op.IOTA, Op.DIM})
INFINITE = 1 << 60


class _Flow:
    """Maximum flow by Dinic's method over a graph given as arcs; arc i and i^1 are a pair."""

    def __init__(self) -> None:
        self.head: list[list[int]] = []
        self.to: list[int] = []
        self.capacity: list[int] = []

    def vertex(self) -> int:
        self.head.append([])
        return len(self.head) - 1

    def arc(self, u: int, v: int, capacity: int) -> None:
        self.head[u].append(len(self.to))
        self.to.append(v)
        self.capacity.append(capacity)
        self.head[v].append(len(self.to))
        self.to.append(u)
        self.capacity.append(0)

    def levels(self, source: int, sink: int) -> list[int] | None:
        level = [-1] * len(self.head)
        level[source] = 0
        queue = deque([source])
        while queue:
            u = queue.popleft()
            for a in self.head[u]:
                v = self.to[a]
                if level[v] < 0 and self.capacity[a] > 0:
                    level[v] = level[u] + 1
                    queue.append(v)
        return level if level[sink] >= 0 else None

    def saturate(self, source: int, sink: int) -> None:
        while (level := self.levels(source, sink)) is not None:
            cursor = [0] * len(self.head)
            while self._augment(source, sink, level, cursor):
                pass

    def _augment(self, source: int, sink: int, level: list[int], cursor: list[int]) -> bool:
        """One path along increasing levels (iterative depth-first search)."""
        path: list[int] = []
        u = source
        while u != sink:
            arcs = self.head[u]
            while cursor[u] < len(arcs):
                a = arcs[cursor[u]]
                if self.capacity[a] > 0 and level[self.to[a]] == level[u] + 1:
                    break
                cursor[u] += 1
            else:
                if not path:
                    return False
                u = self.to[path.pop() ^ 1]
                cursor[u] += 1
                continue
            path.append(a)
            u = self.to[a]
        amount = min(self.capacity[a] for a in path)
        for a in path:
            self.capacity[a] -= amount
            self.capacity[a ^ 1] += amount
        return True

    def reaching(self, sink: int) -> set[int]:
        """Vertices from which the sink can still be reached."""
        seen, queue = {sink}, deque([sink])
        while queue:
            v = queue.popleft()
            for a in self.head[v]:
                u = self.to[a]
                if u not in seen and self.capacity[a ^ 1] > 0:
                    seen.add(u)
                    queue.append(u)
        return seen


def choose_residuals(frontier: Sequence[UOp], free: Collection[UOp]) -> list[UOp]:
    """The values to keep so that every node of `frontier` can be recomputed from them.

    `free` are values kept anyway (inputs and outputs of the body). Literals need not be kept.
    """
    free = set(free)
    needed = [n for n in frontier if n.op not in LITERALS]
    if all(n in free for n in needed):
        return needed
    flow = _Flow()
    source, sink = flow.vertex(), flow.vertex()
    enter: dict[UOp, int] = {}
    leave: dict[UOp, int] = {}
    stack = list(reversed(needed))
    order: list[UOp] = []
    while stack:
        node = stack.pop()
        if node in enter:
            continue
        enter[node], leave[node] = flow.vertex(), flow.vertex()
        order.append(node)
        flow.arc(enter[node], leave[node], 0 if node in free else largest(node.aval.nbytes))
        if node.op in RECOMPUTABLE and node not in free:
            stack.extend(s for s in reversed(node.src) if s.op not in LITERALS)
    for node in order:
        if node.op in RECOMPUTABLE and node not in free:
            for s in node.src:
                if s.op not in LITERALS:
                    flow.arc(leave[s], enter[node], INFINITE)
        else:
            flow.arc(source, enter[node], INFINITE)
    for node in needed:
        flow.arc(leave[node], sink, INFINITE)
    flow.saturate(source, sink)
    behind = flow.reaching(sink)
    return [n for n in order if leave[n] in behind and enter[n] not in behind]


def shared_slots(values: Sequence[Sequence[UOp]]) -> tuple[list[Aval], list[list[int]]]:
    """Places for what each of several branches keeps, and which of them it uses: values of different
    branches share a place if they have one aval."""
    slots: list[Aval] = []
    of_kind: dict[Aval, list[int]] = {}
    places: list[list[int]] = []
    for of_branch in values:
        mine: list[int] = []
        used: Counter[Aval] = Counter()
        for value in of_branch:
            kind = value.aval.strip_weak_type()
            known = of_kind.setdefault(kind, [])
            if used[kind] == len(known):
                known.append(len(slots))
                slots.append(kind)
            mine.append(known[used[kind]])
            used[kind] += 1
        places.append(mine)
    return slots, places


def in_slots(values: Sequence[UOp], places: Sequence[int], slots: Sequence[Aval]) -> list[UOp]:
    """What a branch puts into all places: its values, and zeros."""
    mine = dict(zip(places, values, strict=True))
    return [b.cast_like(mine[i], s) if i in mine else b.zeros(s) for i, s in enumerate(slots)]
