"""What a forward derivative makes of values while its function is still running.

`jvp` of a running function knows the tangents of its variables, so those of any value can be had: a
rule that runs at the call of its function gets them, as numbers that Python may look at. And what
Python sees of a value is what the derivative will return for it: of calls of staged functions with
custom rules inside, what the rules compute of values and tangents, which may differ from what the
functions do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinyjax.core.body import close, open_body
from tinyjax.core.ops import BODIES, Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.interpreters.effects import quiet
from tinyjax.interpreters.jvp import Tangent, jvp
from tinyjax.interpreters.trace import Trace, linear_apart, open_chain, rebind, state


def tangents_of(nodes: Sequence[UOp], at: Trace) -> list[Tangent] | None:
    """The tangents that the running jvp `at` will give nodes. None for another derivative, and where
    effects have been put off, which it would have twice."""
    if not at.seeds or any(c.waits for c in state.chains):
        return None
    values, tangents, effects = derived(seen_by(nodes, at), at)
    return None if effects else tangents


def under_rules(nodes: Sequence[UOp], known: Mapping[UOp, Any]) -> list[UOp]:
    """Nodes of the values that the running jvps will return for `nodes`, which may have values already."""
    if not any(n not in known and n.free and holds_rules(n, known) for n in nodes):
        return list(nodes)
    outermost = next(t for t in state.traces if t.seeds)
    return derived(seen_by(nodes, outermost), outermost)[0]


def seen_by(nodes: Sequence[UOp], at: Trace) -> list[UOp]:
    """What nodes are for an open trace: those inside of it have done what they do, and their variables
    give way to what they stand for."""
    for trace in reversed(state.traces[state.traces.index(at) + 1 :]):
        if trace.seeds:
            nodes, _, _ = derived(nodes, trace)
        mine = dict.fromkeys(v for n in nodes for v in n.free if v.trace is trace and v.bound)
        variables = [UOp(Op.VAR, (), v) for v in mine]
        if variables:
            nodes = rebind(nodes, {v: trace.stands_for.get(v, v.arg.bound) for v in variables})
    return list(nodes)


def derived(nodes: Sequence[UOp], at: Trace) -> tuple[list[UOp], list[Tangent], bool]:
    """What a running jvp makes of nodes, their tangents, and whether rules that it asks have effects:
    those have not happened, and the values are without."""
    memo, at.made = at.made, ({}, {})  # unless all goes well
    with linear_apart(None), open_chain() as chain:
        values, tangents = jvp(nodes, at.seeds, memo)
    if chain.start is None or chain.last is None:
        at.made = memo
        return values, tangents, False
    roots = [*values, chain.last]
    body, captured = close(roots, [], last=[chain.start])
    silent = quiet(body, [c.aval for c in captured])
    return open_body(silent, captured), [None] * len(values), True


def holds_rules(node: UOp, known: Mapping[UOp, Any]) -> bool:
    """Whether a call that a node needs, and that has not run yet, has a jvp rule or holds one that has."""
    todo = toposort([node], keep=lambda n: bool(n.free) and n not in known)
    return any(n.op in BODIES and any(map(has_rules, (n, *n.bodies))) for n in todo)


def has_rules(node: UOp) -> bool:
    """Whether this is a call of a staged function with a jvp rule, or a body with one inside."""
    if node.op is Op.TUPLE:
        found = node.derived.get("has rules")
        if found is None:
            found = any(map(has_rules, toposort([node], bodies=True)[:-1]))
            node.derived["has rules"] = found
        return bool(found)
    return node.op is Op.CALL and getattr(node.arg.rule, "has_jvp", False)
