"""When effects happen: now, at the user's line, or where the open trace says.

An effect happens at once unless something is being staged or it depends on a variable without a
value; then it joins the chain of the innermost open trace (interpreters/trace.py), which hands it on
when it ends. What has happened leaves the graph: a call that was run for its effects stays as the
same call without them, so its results can be differentiated.

A call that will be differentiated is taken apart before it runs (`taken_ahead`), or if tangents are known
runs with its derivative (`taken_along`), so that nothing is computed twice. Cost: in while loops, if what
callbacks return is needed, and for the outer one of two derivatives what the effects need is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyjax.core import build as b
from tinyjax.core import execute
from tinyjax.core.body import fresh_var, reclose
from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import BODIES, Op
from tinyjax.core.uop import UOp, get, results, token_of, toposort, tuple_of
from tinyjax.engine.array import Array, buffer_node, refuse_escaped
from tinyjax.engine.values import finish_all, own
from tinyjax.interpreters.effects import (
    RULED,
    SPLIT,
    START,
    TAPED,
    Unkept,
    inserted,
    refuse_derivative,
    without,
)
from tinyjax.interpreters.jvp import Tangent
from tinyjax.interpreters.linearize import Advanced, Along, taken_ahead, taken_along
from tinyjax.interpreters.midway import tangents_of
from tinyjax.interpreters.trace import (
    Chain,
    Trace,
    differentiated,
    innermost,
    linear_apart,
    linear_part,
    rebind,
    state,
    unbound,
    values_of,
)


def noted(operands: Sequence[UOp]) -> bool:
    """Whether an effect of these values is noted in the open chain instead of happening now.

    Effects that follow one that was noted are too, so they stay in order.
    """
    if not state.chains:
        return False
    return (
        state.staging > 0
        or state.chains[-1].deferred
        or any(c.waits for c in state.chains)
        or any(unbound(n) is not None for n in operands)
    )


def next_token(operands: Sequence[UOp]) -> UOp:
    """The token that an effect of these values takes; START if it is to happen now."""
    return state.chains[-1].take() if noted(operands) else START


def perform(node: UOp) -> list[Array]:
    """Results of a node but for its token: its effect happens, or is noted."""
    return finish_all(effect_results(node))


def effect_results(node: UOp) -> list[UOp]:
    """`perform`, as nodes."""
    values = results(node)
    place = token_of(values)
    if place is None:
        return values
    chain = state.chains[-1] if state.chains else None
    return without(happened_or_noted(node, chain), place)


def happened_or_noted(node: UOp, chain: Chain | None) -> list[UOp]:
    """Results of an effect: it happens if it takes START, and gives that, or else joins the chain."""
    if node.operands[token_of(node.operands) or 0] is START:
        try:
            return happen(node)
        except Unkept:  # rules whose values or effects see tangents: when these are known
            assert chain is not None
            node = node.with_src(tuple(chain.take() if s is START else s for s in node.src))
    assert chain is not None
    values = results(node)
    chain.last = values[token_of(values) or 0]
    return values


def happen(node: UOp) -> list[UOp]:
    """Run an effect whose operands have values. Its results (START for the token), as nodes.

    Not through the memo of values: two equal effects are two.
    """
    if node.op in BODIES and node.free:
        return happen_inside(node)
    if node.op is Op.CALLBACK and node.arg.kind == "io" and any(map(differentiated, node.src)):
        refuse_derivative(node)
    values = execute.run(node, values_of(node.operands))
    place = token_of(results(node))
    elts = without(node.aval.elts, place)
    outs = [buffer_node(own(v, of)) for v, of in zip(without(values, place), elts, strict=True)]
    return inserted(outs, place, START)


def happen_inside(node: UOp) -> list[UOp]:
    """A call or loop on bound variables: run it for its effects, and leave the rest in the graph.

    Rules of custom functions apply where they would when the node is differentiated.
    """
    operands, place = node.operands, token_of(results(node))
    again = [fresh_var(s.aval) for s in operands]
    inner = UOp(node.op, (*node.bodies, *again), node.arg)
    flags = tuple(bool(differentiated(s)) for s in operands)
    if any(flags):
        at = innermost(operands)
        tangents = None if at is None else tangents_of(operands, at)
        if tangents is not None and not any(t is not None and unbound(t) for t in tangents):
            along = taken_along(inner, [t is not None for t in tangents])
            if along is not None:
                return inserted(happen_along(node, along, tangents), place, START)
        with linear_apart(linear_part(at)):
            inner = RULED[node.op](inner, flags, again[token_of(operands) or 0])
        ahead = taken_ahead(inner, linear_flags(operands, at), linear_part(at))
        if ahead is not None:
            return inserted(happen_ahead(node, ahead), place, START)
    parts = SPLIT[node.op](inner, inner.src, inner.src, TAPED)
    body = reclose([get(parts.node, place or 0), *parts.kept], again)
    _, *found = run_for_effects(node, body, operands, keep=not parts.once)
    recorded = [buffer_node(own(v, k.aval)) for v, k in zip(found, parts.kept, strict=True)]
    mapping = dict(zip([*again, *parts.held], [*operands, *recorded], strict=True))
    return inserted(rebind(without(results(parts.replay), place), mapping), place, START)


def run_for_effects(node: UOp, body: UOp, operands: Sequence[UOp], keep: bool = True) -> list[Any]:
    """Values of a body made of a node's; its program lives as long as that."""
    if keep:
        node.src[0].derived.setdefault("effects alone", {})[body] = body
    call = UOp(Op.CALL, (body, *operands), CallInfo("jit", "effects"))
    return execute.run(call, values_of(operands))


def linear_flags(nodes: Sequence[UOp], at: Trace | None) -> list[bool]:
    """Which depend differentiably on what the derivative `at` is asked for, if it has a linear part."""
    known = linear_part(at) is not None
    return [known and any(v.trace is at for v in differentiated(n)) for n in nodes]


def happen_ahead(node: UOp, ahead: Advanced) -> list[UOp]:
    """A call on bound variables that will be differentiated: all that its derivative needs is
    computed with its effects, and remembered beside the nodes that stay in the graph."""
    place = token_of(node.operands)
    given = without(node.operands, place)
    *values, _ = run_for_effects(node, ahead.known, [*given, node.operands[place or 0]])
    forward = UOp(Op.CALL, (ahead.forward, *given), CallInfo("jit", "forward"))
    call = UOp(Op.CALL, (ahead.quiet, *given), CallInfo("custom_jvp", "ahead", rule=ahead.rule))
    outs = results(call)
    state.forced[forward], state.forced[call] = values, values[: len(outs)]
    return outs


def happen_along(node: UOp, along: Along, tangents: Sequence[Tangent]) -> list[UOp]:
    """A call on bound variables whose tangents are known: its derivative is computed with its effects,
    in one step, and remembered beside the nodes that will stand for it."""
    place = token_of(node.operands)
    given = without(node.operands, place)
    rows = zip(node.operands, tangents, strict=True)
    dots = [b.cast(t, s.dtype) if t.dtype != s.dtype else t for s, t in rows if t is not None]
    *values, _ = run_for_effects(node, along.known, [*given, *dots, node.operands[place or 0]])
    forward = UOp(Op.CALL, (along.forward, *given, *dots), CallInfo("jit", "forward"))
    call = UOp(Op.CALL, (along.quiet, *given), CallInfo("custom_jvp", "along", rule=along.rule))
    outs = results(call)
    state.forced[forward], state.forced[call] = values, values[: len(outs)]
    return outs


def settle(trace: Trace, roots: Sequence[UOp]) -> list[UOp]:
    """`roots` of a trace that ends; its effects are handed to the trace around it, or happen now.

    Called inside the trace's block, when its variables have been replaced. Raises:
    `UnexpectedTracerError` if a root depends on what escaped from another trace: it would have no
    value outside either.
    """
    for root in roots:
        if root.free:
            refuse_escaped(root)
    chain = trace.chain
    if chain.start is None or chain.last is None:
        return list(roots)
    start, last = chain.start, chain.last
    chain.start = chain.last = None
    others = [v for v in last.free if v is not start.arg]
    outer = state.chains[-2] if len(state.chains) > 1 else None
    if outer is not None and (
        state.staging
        or outer.deferred
        or any(c.waits for c in state.chains)
        or any(v.bound is None or unbound(v.bound) is not None for v in others)
    ):
        *roots, outer.last = rebind([*roots, last], {start: outer.take()})
        return list(roots)
    *roots, last = rebind([*roots, last], {start: START})
    done: dict[UOp, UOp] = {}
    forced = state.forced
    for n in toposort([last, *roots]):
        src = tuple(done.get(s, s) for s in n.src)
        if n.op is Op.GETTUPLE:
            done[n] = get(src[0], n.arg)
            continue
        new = n.with_src(src)
        if n in forced and new is not n:
            forced.setdefault(new, forced[n])
        effect = token_of(n.operands) is not None
        done[n] = tuple_of(happened_or_noted(new, outer)) if effect else new
    return [done[r] for r in roots]
