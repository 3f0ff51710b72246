"""What a checkpoint keeps: the values nearest to its linear part that its policy lets be saved.

The walk goes from the linear part back through what is known, and does not look behind a value that
is saved: what only that needs is neither kept nor computed again. Scans and branches are looked into,
and those inside of them: values that may be saved become results of the loop that runs forward,
stacked, and inputs of the loop that computes the rest again. As in JAX, policies are not asked about
the inside of while loops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tinyjax.core import build as b
from tinyjax.core.avals import Aval
from tinyjax.core.body import fresh_var, open_calls, open_vars, reclose
from tinyjax.core.ops import Op
from tinyjax.core.prune import fewer
from tinyjax.core.uop import UOp, depends_on, get, substitute, token_of, toposort
from tinyjax.interpreters.residuals import LITERALS, in_slots, shared_slots

Policy = Callable[[UOp], Any]


def saveable(
    params: Sequence[UOp],
    outputs: Sequence[UOp],
    roots: Sequence[UOp],
    linear: Sequence[UOp],
    policy: Policy | None,
) -> tuple[list[UOp], list[UOp], list[UOp]]:
    """Outputs of a body, roots of its linear part, and the values that the latter keeps: inputs, and
    what the policy lets be saved. All else is computed again."""
    is_linear = depends_on([], [v.arg for v in linear])
    outputs, roots = list(outputs), list(roots)
    saved: list[UOp] = []
    if policy is not None:
        outputs, roots, saved = _divided(params, outputs, roots, is_linear, policy)
    reach = _visited(roots, {*params, *saved}, is_linear, policy)
    return outputs, roots, [*(p for p in params if p in reach), *saved]


def _divided(
    params: Sequence[UOp],
    outputs: list[UOp],
    roots: list[UOp],
    is_linear: Callable[[UOp], bool],
    policy: Policy,
) -> tuple[list[UOp], list[UOp], list[UOp]]:
    """What is computed once, and from the saved values again: `saveable`, inputs left out."""
    outputs, roots, kept = _look_inside(params, outputs, roots, is_linear, policy)
    leaves = {*params, *kept}
    reach = _visited(roots, leaves, is_linear, policy)
    saved = [n for n in reach if n in kept or (n not in leaves and _saved(n, is_linear, policy))]
    return outputs, roots, saved


def _saved(n: UOp, is_linear: Callable[[UOp], bool], policy: Policy | None) -> bool:
    if policy is None or is_linear(n) or n.op in LITERALS or not isinstance(n.aval, Aval):
        return False
    return n.op is not Op.VAR and bool(policy(n))


def _visited(
    roots: Sequence[UOp],
    leaves: Collection[UOp],
    is_linear: Callable[[UOp], bool],
    policy: Policy | None,
) -> dict[UOp, None]:
    """Nodes from which the roots are computed, sources first, up to leaves and what is saved."""
    stop: dict[UOp, bool] = {}

    def ends(n: UOp) -> bool:
        if n not in stop:
            stop[n] = n in leaves or _saved(n, is_linear, policy)
        return stop[n]

    seen: set[UOp] = set()
    todo = list(roots)
    while todo:
        n = todo.pop()
        if n not in seen:
            seen.add(n)
            todo += () if ends(n) else n.operands
    return dict.fromkeys(toposort(roots, keep=lambda n: n in seen))


def _look_inside(
    params: Sequence[UOp],
    outputs: list[UOp],
    roots: list[UOp],
    is_linear: Callable[[UOp], bool],
    policy: Policy,
) -> tuple[list[UOp], list[UOp], list[UOp]]:
    """Known scans and branches in two: one gives what may be saved of it, one computes from that again.

    In the roots a variable stands for a saved value until all are done, for what comes before one of
    them is another in what is known than in what is computed again.
    """
    stand_ins: list[UOp] = []
    values: list[UOp] = []
    done: set[UOp] = set()
    while True:
        reach = _visited(roots, {*params, *stand_ins}, is_linear, policy)
        found = [
            n
            for n in reach
            if n.op in _SPLIT
            and n not in done
            and not is_linear(n)
            and token_of(n.operands) is None
        ]
        if not found:
            break
        node = found[-1]
        done.add(node)
        read = {n.arg for n in reach if n.op is Op.GETTUPLE and n.src[0] is node}
        split = _SPLIT[node.op](node, read, policy)
        if split is None:
            continue
        forward, more, again = split
        stand_ins += more
        first = len(node.aval.elts)
        values += [get(forward, first + i) for i in range(len(more))]
        known = substitute([*outputs, *values], {node: forward})
        outputs, values = known[: len(outputs)], known[len(outputs) :]
        roots = substitute(roots, {get(node, i): r for i, r in again.items()})
        done.update(r.src[0] for r in again.values())
    return outputs, substitute(roots, dict(zip(stand_ins, values, strict=True))), values


Halves = tuple[UOp, list[UOp], dict[int, UOp]]
"""A node with saved values as further results; variables for these; what is read of its results,
computed again from them."""


def _split_scan(loop: UOp, read: set[int], policy: Policy) -> Halves | None:
    """The scan with saved values of its steps as further outputs, stacked. None if there are none."""
    info, operands = loop.arg, loop.operands
    given = info.num_consts + info.num_carry
    avals = [
        a.aval if i < given else a.aval.update(shape=a.aval.shape[1:])
        for i, a in enumerate(operands)
    ]
    own, outs = _opened(loop.src[0], avals)
    carry = own[info.num_consts : given]
    live = set(read)
    while True:  # what is read, and the carries that it takes
        body = _divided(own, outs, [outs[i] for i in sorted(live)], _never, policy)
        reach = _visited(body[1], {*own, *body[2]}, _never, policy)
        more = {i for i, c in enumerate(carry) if c in reach} - live
        if not more:
            break
        live |= more
    known, roots, saved = body
    if not saved:
        return None
    forward = UOp(Op.SCAN, (reclose([*known, *saved], own), *operands), info)
    steps = [fresh_var(n.aval) for n in saved]
    again = _replaced(outs, live, roots, dict(zip(saved, steps, strict=True)))
    first = len(outs)
    stacked = [fresh_var(forward.aval.elts[first + i]) for i in range(len(saved))]
    new = UOp(Op.SCAN, (reclose(again, [*own, *steps]), *operands, *stacked), info)
    return forward, stacked, fewer(new, read)


def _split_cond(node: UOp, read: set[int], policy: Policy) -> Halves | None:
    """The branches with saved values of each as further results, zeros where another one is taken.
    None if there are none."""
    avals = [a.aval for a in node.operands[1:]]
    branches = [_opened(branch, avals) for branch in node.bodies]
    halves = [
        _divided(own, outs, [outs[i] for i in sorted(read)], _never, policy)
        for own, outs in branches
    ]
    slots, places = shared_slots([saved for _, _, saved in halves])
    if not slots:
        return None
    once, again = [], []
    for (own, outs), (known, roots, saved), place in zip(branches, halves, places, strict=True):
        once.append(reclose([*known, *in_slots(saved, place, slots)], own))
        held = [fresh_var(s) for s in slots]
        back = {n: b.cast_like(held[i], n.aval) for n, i in zip(saved, place, strict=True)}
        again.append(reclose(_replaced(outs, read, roots, back), [*own, *held]))
    forward = UOp(Op.COND, (*once, *node.operands), node.arg)
    more = [fresh_var(s) for s in slots]
    return forward, more, fewer(UOp(Op.COND, (*again, *node.operands, *more), node.arg), read)


_SPLIT: dict[Op, Callable[[UOp, set[int], Policy], Halves | None]] = {
    Op.SCAN: _split_scan,
    Op.COND: _split_cond,
}


def _opened(body: UOp, avals: Sequence[Aval]) -> tuple[list[UOp], list[UOp]]:
    """Parameters and outputs of a body, jitted functions in it opened: policies see what they do."""
    own, outs = open_vars(body, avals)
    return own, open_calls(outs, lambda inner: inner.kind == "jit" and inner.rule is None)


def _replaced(
    outs: Sequence[UOp], live: set[int], roots: Sequence[UOp], back: dict[UOp, UOp]
) -> list[UOp]:
    """Outputs of a body, those that are live computed from saved values."""
    found = iter(substitute(roots, back))
    return [next(found) if i in live else o for i, o in enumerate(outs)]


def _never(n: UOp) -> bool:
    return False
