"""Calls, loops and branches without what nobody reads: results, and the operands only they need.

A derivative asks for some results of a loop or a precompiled call and not for others: residuals of
a zero cotangent, primal outputs beside a gradient. In the flat part of a body such nodes are simply
never visited; what is inside of another body must be taken out of it, and the values that only it
read with it, up to the fixed point that the carry of a loop asks for.

Effects stay: their tokens are results that the body's own token reads. Calls with a derivative rule
stay as they are; where a program is made there are none.

Cost: one walk over each body per set of results that are read; kept on the body.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tinyjax.core.avals import Aval
from tinyjax.core.body import open_vars, params_of, reclose
from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import BODIES, Op
from tinyjax.core.uop import UOp, get, token_of, toposort, tuple_of

Slots = tuple[int, ...]


def prune(body: UOp) -> UOp:
    """flat body -> the same without results of calls, loops and branches that nobody reads"""
    return _of_results(body, tuple(range(len(body.src))))


def _of_results(body: UOp, live: Slots) -> UOp:
    """The body of these results only, over the same parameters."""
    key = ("prune", live)
    found: UOp | None = body.derived.get(key)
    if found is None:
        found = tuple_of(_pruned([body.src[i] for i in live]))
        body.derived[key] = found
        inherit(found, body)
    return found


def inherit(made: UOp, body: UOp) -> None:
    """A body made of a pruned one is pruned, and flat if that is."""
    made.derived["prune", tuple(range(len(made.src)))] = made
    if body.derived.get("inline") is body:  # it is flat (lowering/inline.py)
        made.derived["inline"] = made


def fewer(n: UOp, read: set[int]) -> dict[int, UOp]:
    """Results of a node with bodies, by number, of the smaller one that has those in `read`."""
    less = _Less(n, read)
    made = less.node([n.operands[i] for i in less.operands])
    return {i: get(made, at) for at, i in enumerate(less.results)}


def _pruned(outputs: Sequence[UOp]) -> list[UOp]:
    order = toposort(outputs)
    if not any(n.op in BODIES for n in order):
        return list(outputs)
    # Calls of one program stay so: it gives what any of them is read for.
    shared: dict[UOp, set[int]] = {}
    grows = True
    while grows:
        live, made, grows = _read(order, outputs, shared)
    new: dict[UOp, UOp] = {}
    for n in order:
        if n not in live:
            continue
        if n in made:
            new[n] = made[n].node([new[n.operands[i]] for i in made[n].operands])
        elif n.op is Op.GETTUPLE and n.src[0] in made:
            new[n] = get(new[n.src[0]], made[n.src[0]].results.index(n.arg))
        else:
            new[n] = n.with_src(tuple(new[s] for s in n.src))
    return [new[o] for o in outputs]


def _read(
    order: Sequence[UOp], outputs: Sequence[UOp], shared: dict[UOp, set[int]]
) -> tuple[set[UOp], dict[UOp, _Less], bool]:
    """Nodes that are read, those with bodies made smaller, and whether `shared` has grown."""
    live = set(outputs)
    read: dict[UOp, set[int]] = {}
    made: dict[UOp, _Less] = {}
    before = sum(map(len, shared.values()))
    for n in reversed(order):
        if n not in live:
            continue
        if n.op is Op.GETTUPLE and n.src[0].op in BODIES:
            read.setdefault(n.src[0], set()).add(n.arg)
            live.add(n.src[0])
        elif n.op in BODIES:
            if n.op is Op.CALL:
                read[n] |= shared.get(n.src[0], set())
                shared[n.src[0]] = read[n]
            made[n] = _Less(n, read[n])
            live.update(n.operands[i] for i in made[n].operands)
        else:
            live.update(n.operands)
    calls = [n.src[0] for n in made if n.op is Op.CALL]
    several = len(calls) > len(set(calls))
    return live, made, several and sum(map(len, shared.values())) > before


class _Less:
    """A node with bodies of which some results are read: which results and operands it keeps."""

    def __init__(self, n: UOp, read: set[int]) -> None:
        self.of = n
        token = token_of([get(n, i) for i in range(len(n.aval.elts))])
        if token is not None:
            read.add(token)
        rule = {Op.SCAN: self._scan, Op.WHILE: self._while, Op.COND: self._cond}
        self.results: list[int] = []
        self.operands: list[int] = []
        self.bodies: list[UOp] = []
        self.arg = n.arg
        rule.get(n.op, self._call)(read)

    def node(self, operands: Sequence[UOp]) -> UOp:
        """The smaller node over these operands."""
        return UOp(self.of.op, (*self.bodies, *operands), self.arg)

    def _keep(self, results: Iterable[int], operands: Iterable[int]) -> None:
        self.results, self.operands = sorted(results), sorted(operands)

    def _call(self, read: set[int]) -> None:
        info: CallInfo = self.of.arg
        if info.rule is not None or info.repeat is not None:
            # Derivatives of a rule, and effects to be repeated, speak of all operands and results.
            self._keep(range(len(self.of.aval.elts)), range(len(self.of.operands)))
            self.bodies = [self.of.src[0]]
            return
        body = _of_results(self.of.src[0], tuple(sorted(read)))
        self._keep(read, params_of(body))
        avals = [a.aval for a in self.of.operands]
        self.bodies = [_renumbered(body, avals, self.operands)]

    def _cond(self, read: set[int]) -> None:
        live = tuple(sorted(read))
        branches = [_of_results(b, live) for b in self.of.bodies]
        slots = sorted(set[int]().union(*map(params_of, branches)))
        self._keep(read, [0, *(1 + i for i in slots)])
        avals = [a.aval for a in self.of.operands[1:]]
        self.bodies = [_renumbered(b, avals, slots) for b in branches]

    def _scan(self, read: set[int]) -> None:
        info, body = self.of.arg, self.of.src[0]
        first, count = info.num_consts, info.num_carry
        carry = {i for i in read if i < count}
        while True:
            live = carry | {i for i in read if i >= count}
            less = _of_results(body, tuple(sorted(live)))
            reads = set(params_of(less))
            more = {i - first for i in reads if first <= i < first + count} - carry
            if not more:
                break
            carry |= more
        slots = sorted(reads | {first + i for i in carry})
        self._keep(live, slots)
        avals = [a.aval for a in self.of.operands]
        step = [a if i < first + count else _slice(a) for i, a in enumerate(avals)]
        self.bodies = [_renumbered(less, step, slots)]
        consts = sum(i < first for i in slots)
        self.arg = replace(info, num_consts=consts, num_carry=len(carry))

    def _while(self, read: set[int]) -> None:
        info = self.of.arg
        cond, body = self.of.bodies
        cond = prune(cond)
        nc, nb = info.cond_consts, info.body_consts
        asked = set(params_of(cond))
        carry = read | {i - nc for i in asked if i >= nc}
        while True:
            less = _of_results(body, tuple(sorted(carry)))
            reads = set(params_of(less))
            more = {i - nb for i in reads if i >= nb} - carry
            if not more:
                break
            carry |= more
        carried = sorted(carry)
        avals = [a.aval for a in self.of.operands]
        of_cond, of_body, of_carry = avals[:nc], avals[nc : nc + nb], avals[nc + nb :]
        cond_slots = [i for i in sorted(asked) if i < nc]
        body_slots = [i for i in sorted(reads) if i < nb]
        places = [*cond_slots, *(nc + i for i in body_slots), *(nc + nb + i for i in carried)]
        self._keep(carry, places)
        self.bodies = [
            _renumbered(cond, [*of_cond, *of_carry], [*cond_slots, *(nc + i for i in carried)]),
            _renumbered(less, [*of_body, *of_carry], [*body_slots, *(nb + i for i in carried)]),
        ]
        self.arg = replace(info, cond_consts=len(cond_slots), body_consts=len(body_slots))


def _slice(of: Aval) -> Aval:
    return of.update(shape=of.shape[1:])


def _renumbered(body: UOp, avals: Sequence[Aval], slots: Sequence[int]) -> UOp:
    """The body over these of its parameters."""
    if list(slots) == list(range(len(avals))):
        return body
    key = ("renumber", tuple(slots))
    found: UOp | None = body.derived.get(key)
    if found is None:
        params, outputs = open_vars(body, avals)
        found = body.derived[key] = reclose(outputs, [params[i] for i in slots])
        inherit(found, body)
    return found
