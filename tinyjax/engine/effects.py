"""When effects happen: now, at the user's line, or where the open trace says.

An effect happens at once unless something is being staged or it depends on a variable without a
value; then it joins the chain of the innermost open trace (interpreters/trace.py), which hands it on
when it ends. What has happened leaves the graph: a call that was run for its effects stays as the
same call without them, so its results can be differentiated.

Cost: an effectful call of values that are being differentiated outside of jit computes what its
effects need twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinyjax.core import execute
from tinyjax.core.body import fresh_var, reclose
from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import BODIES, Op
from tinyjax.core.uop import UOp, get, results, token_of, toposort, tuple_of
from tinyjax.engine.array import Array, buffer_node
from tinyjax.engine.values import finish_all, own
from tinyjax.interpreters.effects import RULED, SPLIT, START, TAPED, inserted, without
from tinyjax.interpreters.linearize import callback_jvp
from tinyjax.interpreters.trace import (
    Trace,
    differentiated,
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
        or any(c.last is not None for c in state.chains)
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
    if node.operands[token_of(node.operands) or 0] is START:
        return without(happen(node), place)
    state.chains[-1].last = values[place]
    return without(values, place)


def happen(node: UOp) -> list[UOp]:
    """Run an effect whose operands have values. Its results (START for the token), as nodes.

    Not through the memo of values: two equal effects are two.
    """
    if node.op in BODIES and node.free:
        return happen_inside(node)
    if node.op is Op.CALLBACK and node.arg.kind == "io" and any(map(differentiated, node.src)):
        callback_jvp(node, ())
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
        inner = RULED[node.op](inner, flags, again[token_of(operands) or 0])
    parts = SPLIT[node.op](inner, inner.src, inner.src, TAPED)
    body = reclose([get(parts.node, place or 0), *parts.kept], again)
    if not parts.once:
        memory = node.src[0].derived.setdefault("effects alone", {})
        memory[body] = body  # its program lives as long as the function's body
    call = UOp(Op.CALL, (body, *operands), CallInfo("jit", "effects"))
    _, *found = execute.run(call, values_of(operands))
    recorded = [buffer_node(own(v, k.aval)) for v, k in zip(found, parts.kept, strict=True)]
    mapping = dict(zip([*again, *parts.held], [*operands, *recorded], strict=True))
    return inserted(rebind(without(results(parts.replay), place), mapping), place, START)


def settle(trace: Trace, roots: Sequence[UOp]) -> list[UOp]:
    """`roots` of a trace that ends; its effects are handed to the trace around it, or happen now.

    Called inside the trace's block, when its variables have been replaced.
    """
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
        or any(c.last is not None for c in state.chains)
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
        done[n] = new if token_of(n.operands) is None else tuple_of(happen(new))
    return [done[r] for r in roots]
