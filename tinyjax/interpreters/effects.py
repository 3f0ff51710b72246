"""Effects under transformations: order among derivatives, and an effect apart from its computation.

An effect takes the token of the one before it and gives one to the next (`core.avals.TOKEN`), so
interpreters that keep data flow keep effects. Two things remain:

* Rules of custom functions, checkpoint and transposition make effects that were not there. They join
  the innermost open `Chain` (interpreters/trace.py).
* `split` takes a body apart into one that has the effects and one that computes the same without
  them, given what the callbacks returned. So an effect happens once while its computation stays in
  the graph to be differentiated, and a checkpoint repeats its prints but not its callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import TOKEN, Aval
from tinyjax.core.body import fresh_var, open_body, reclose
from tinyjax.core.infos import DerivedRule
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const, get, results, substitute, token_of, toposort, tuple_of
from tinyjax.interpreters.jvp import Tangent, jvp
from tinyjax.interpreters.trace import Chain, state

START = const(False, dtypes.bool_, True)
"""The token of an effect that nothing precedes: one that happens now."""


def has_effects(body: UOp) -> bool:
    """Whether a closed body gives a token."""
    return token_of(body.src) is not None


def token_index(body: UOp) -> int:
    """Where a body with effects gives its token."""
    place = token_of(body.src)
    assert place is not None
    return place


def without(items: Sequence[Any], place: int | None) -> list[Any]:
    """The items except the one at a place."""
    return [x for i, x in enumerate(items) if i != place]


def inserted(items: Sequence[Any], place: int | None, item: Any) -> list[Any]:
    """The items with one more at a place."""
    return list(items) if place is None else [*items[:place], item, *items[place:]]


def join(node: UOp) -> list[UOp]:
    """Results of a node that took the open chain's token last; its token, its last result, is the
    chain's."""
    *values, state.chains[-1].last = results(node)
    return values


def apply_rule(body: UOp, args: Sequence[UOp], token: UOp | None) -> tuple[list[UOp], UOp | None]:
    """Outputs of a rule's body. Its effects come after `token`, or join the open chain."""
    if not has_effects(body):
        return open_body(body, args), token
    chain = state.chains[-1]
    values = open_body(body, [*args, chain.take() if token is None else token])
    last = values.pop(token_index(body))
    if token is None:
        chain.last = last
        return values, None
    return values, last


def jvp_in_chain(
    outputs: Sequence[UOp],
    tangents: Mapping[UOp, UOp],
    chain: Chain,
    differentiate: Callable[..., tuple[list[UOp], list[Tangent]]] = jvp,
) -> tuple[list[UOp], list[Tangent]]:
    """`jvp`, the effects of `chain` included; those that rules add come after them."""
    before = chain.last
    if before is None:
        return differentiate(outputs, tangents)
    mark = chain.last = fresh_var(TOKEN)
    (*outs, after), (*touts, _) = differentiate([*outputs, before], tangents)
    if chain.last is mark:
        chain.last = after
        return outs, touts
    given = [t for t in touts if t is not None]
    *moved, chain.last = substitute([*outs, *given, chain.last], {mark: after})
    rest = iter(moved[len(outs) :])
    return moved[: len(outs)], [None if t is None else next(rest) for t in touts]


# --- effects apart from the computation -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Split:
    """A body taken apart.

    `record`: the same with the results of its callbacks (avals `kept`) as further outputs.
    `replay`: (parameters, these results) -> outputs, without effects and token. If prints were to be
    kept, it still takes and gives its token.
    """

    record: UOp
    replay: UOp
    kept: tuple[Aval, ...]


def split(body: UOp, avals: Sequence[Aval], prints: bool = False) -> Split:
    """Take a body of parameters `avals` apart; `prints`: leave debug callbacks in the replay."""
    key = ("split effects", prints)
    found = body.derived.get(key)
    if found is None:
        found = body.derived[key] = _split(body, avals, prints)
    return found


def _split(body: UOp, avals: Sequence[Aval], prints: bool) -> Split:
    params = [fresh_var(a) for a in avals]
    token = token_of(params)
    again = params if prints else inserted(without(params, token), token, START)
    first: dict[UOp, UOp] = {}
    second: dict[UOp, UOp] = {}
    kept: list[UOp] = []
    held: list[UOp] = []
    for node in in_order(body.src):
        if node.op is Op.PARAM:
            first[node], second[node] = params[node.arg[0]], again[node.arg[0]]
            continue
        src = tuple(first.get(s, s) for s in node.src)
        src_again = tuple(second.get(s, s) for s in node.src)
        if node.op is Op.GETTUPLE:
            first[node], second[node] = get(src[0], node.arg), get(src_again[0], node.arg)
        elif token_of(node.operands) is None:
            first[node], second[node] = node.with_src(src), node.with_src(src_again)
        else:
            first[node], values, hold, second[node] = SPLIT[node.op](node, src, src_again, prints)
            kept += values
            held += hold
    outs = [first[o] for o in body.src]
    outs_again = [second[o] for o in body.src]
    if not prints:
        outs_again = without(outs_again, token_of(body.src))
        params_again = without(params, token)
    else:
        params_again = params
    return Split(
        reclose([*outs, *kept], params),
        reclose(outs_again, [*params_again, *held]),
        tuple(k.aval for k in kept),
    )


def in_order(outputs: Sequence[UOp]) -> list[UOp]:
    """Nodes, sources first, effects in the order of their chain."""
    token = token_of(outputs)
    return toposort(outputs if token is None else [outputs[token], *outputs])


Parts = tuple[UOp, list[UOp], list[UOp], UOp]
"""The node that has the effect, what is kept of it, variables for that, and the replay's results."""


def holders(values: Sequence[UOp]) -> list[UOp]:
    """A variable per value."""
    return [fresh_var(v.aval) for v in values]


def quiet_results(node: UOp, place: int, prints: bool) -> UOp:
    """Results of a replay node, a token where the effect's node gives one."""
    return node if prints else tuple_of(inserted(results(node), place, START))


def split_callback(n: UOp, src: Sequence[UOp], again: Sequence[UOp], prints: bool) -> Parts:
    """What it returned, or a print once more."""
    node = n.with_src(tuple(src))
    if prints and n.arg.kind == "debug":
        return node, [], [], n.with_src(tuple(again))
    values = results(node)[:-1]
    held = holders(values)
    return node, values, held, tuple_of([*held, again[-1]])


def split_check(n: UOp, src: Sequence[UOp], again: Sequence[UOp], prints: bool) -> Parts:
    """A check that held holds."""
    return n.with_src(tuple(src)), [], [], tuple_of([again[-1]])


def split_call(n: UOp, src: Sequence[UOp], again: Sequence[UOp], prints: bool) -> Parts:
    """The call of each part. A custom rule loses its forward effects, a checkpoint repeats prints."""
    info = n.arg
    args, place = n.operands, token_of(n.operands)
    parts = split(n.src[0], [a.aval for a in args], prints)
    node = UOp(Op.CALL, (parts.record, *src[1:]), info)
    values = results(node)[len(n.src[0].src) :]
    held = holders(values)
    given = list(again[1:]) if prints else without(again[1:], place)
    if info.rule is not None:
        info = replace(info, rule=QuietRule(info.rule))
    if info.kind == "checkpoint" and not prints:
        info = replace(info, repeat=repeated(n.src[0], [a.aval for a in args]))
    back = UOp(Op.CALL, (parts.replay, *given, *held), info)
    out = token_of(n.src[0].src)
    assert out is not None
    return node, values, held, quiet_results(back, out, prints)


def repeated(body: UOp, avals: Sequence[Aval]) -> tuple[UOp, int]:
    """The prints of a body: (parameters but the token, callback results, token) -> token.

    Comes with the number of its parameters, the token not counted.
    """
    parts = split(body, avals, prints=True)
    params = [fresh_var(a) for a in (*avals, *parts.kept)]
    place = token_of(params)
    token = substitute_params(parts.replay, params)[token_index(parts.replay)]
    rest = without(params, place)
    return reclose([token], [*rest, params[place or 0]]), len(rest)


def split_scan(n: UOp, src: Sequence[UOp], again: Sequence[UOp], prints: bool) -> Parts:
    """What callbacks return is stacked, and read again step by step."""
    info = n.arg
    lead = info.num_consts + info.num_carry
    avals = [a.aval for a in n.operands[:lead]]
    avals += [a.aval.update(shape=a.aval.shape[1:]) for a in n.operands[lead:]]
    parts = split(n.src[0], avals, prints)
    node = UOp(Op.SCAN, (parts.record, *src[1:]), info)
    values = results(node)[len(n.src[0].src) :]
    held = holders(values)
    given = again[1:] if prints else without(again[1:], token_of(n.operands))
    fewer = info if prints else replace(info, num_carry=info.num_carry - 1)
    back = UOp(Op.SCAN, (parts.replay, *given, *held), fewer)
    return node, values, held, quiet_results(back, token_index(n.src[0]), prints)


def split_while(n: UOp, src: Sequence[UOp], again: Sequence[UOp], prints: bool) -> Parts:
    """How often a loop runs is not known, so what its callbacks return cannot be kept."""
    info = n.arg
    cond, body = n.src[:2]
    lead = info.cond_consts
    inner = [a.aval for a in n.operands[lead:]]
    parts = split(body, inner, prints)
    if parts.kept:
        raise ValueError(
            "io_callback in a while_loop cannot be differentiated step by step, because the number "
            "of its results is not known: put jax.jit around the derivative, or use lax.scan."
        )
    node = n.with_src(tuple(src))
    if prints:
        return node, [], [], UOp(Op.WHILE, (cond, parts.replay, *again[2:]), info)
    place = token_of(n.operands)
    assert place is not None
    carry = [fresh_var(a.aval) for a in n.operands[lead + info.body_consts :]]
    consts = [fresh_var(a.aval) for a in n.operands[:lead]]
    inside = substitute_params(cond, [*consts, *carry])
    quiet = reclose(inside, [*consts, *without(carry, token_of(carry))])
    back = UOp(Op.WHILE, (quiet, parts.replay, *without(again[2:], place)), info)
    return node, [], [], quiet_results(back, token_index(body), prints)


@dataclass(frozen=True, slots=True)
class QuietRule(DerivedRule):
    """A custom rule whose forward effects have happened; those of its backward rule are to come."""

    def jvp_body(self, avals: Sequence[Aval], zero: tuple[bool, ...]) -> tuple[UOp, Any]:
        """The rule's, without effects."""
        body, out_zero = self.rule.jvp_body(avals, zero)
        inexact = [a.strip_weak_type() for a in avals if dtypes.is_inexact(a.dtype)]
        return quiet(body, [*avals, *inexact]), out_zero

    def vjp_bodies(self, avals: Sequence[Aval], zero: tuple[bool, ...]) -> tuple[UOp, UOp]:
        """The rule's, the forward one without effects."""
        forward, backward = self.rule.vjp_bodies(avals, zero)
        return quiet(forward, avals), backward

    @property
    def batched(self) -> Callable[..., Any]:
        """A batching rule's bodies, without effects; AttributeError for rules of other kinds."""
        inner = self.rule.batched

        def made(avals: Sequence[Aval], flags: Sequence[bool], size: int) -> tuple[UOp, Any]:
            body, out_flags = inner(avals, flags, size)
            kinds = [
                a.update(shape=(size, *a.shape)) if on else a
                for a, on in zip(avals, flags, strict=True)
            ]
            return quiet(body, kinds), out_flags

        return made


def quiet(body: UOp, avals: Sequence[Aval]) -> UOp:
    """A body of parameters `avals` (and perhaps a token, last) without its effects."""
    if not has_effects(body):
        return body
    parts = split(body, [*avals, TOKEN])
    if parts.kept:
        raise ValueError(
            "io_callback in the rule of a custom_jvp or custom_vjp function that is called by a "
            "jitted function: put jax.jit around the derivative as well."
        )
    return parts.replay


def substitute_params(body: UOp, args: Sequence[UOp]) -> list[UOp]:
    """The outputs over these arguments."""
    params = [n for n in toposort(body.src) if n.op is Op.PARAM]
    return substitute(body.src, {p: args[p.arg[0]] for p in params})


def split_cond(n: UOp, src: Sequence[UOp], again: Sequence[UOp], prints: bool) -> Parts:
    """Each branch also gives, and reads, what the callbacks of all branches return."""
    number = n.arg
    args = n.operands[1:]
    parts = [split(br, [a.aval for a in args], prints) for br in n.bodies]
    every = [a for p in parts for a in p.kept]
    records, replays = [], []
    before = 0
    for branch, p in zip(n.bodies, parts, strict=True):
        params = [fresh_var(a.aval) for a in args]
        outs = substitute_params(p.record, params)
        count, mine = len(branch.src), len(p.kept)
        rest: list[UOp] = [b.zeros(a) for a in every]
        rest[before : before + mine] = outs[count:]
        records.append(reclose([*outs[:count], *rest], params))
        given = params if prints else without(params, token_of(params))
        held = [fresh_var(a) for a in every]
        again_outs = substitute_params(p.replay, [*given, *held[before : before + mine]])
        replays.append(reclose(again_outs, [*given, *held]))
        before += mine
    node = UOp(Op.COND, (*records, *src[number:]), number)
    values = results(node)[len(n.bodies[0].src) :]
    held = holders(values)
    operands = list(again[number:]) if prints else without(again[number:], token_of(n.operands))
    back = UOp(Op.COND, (*replays, *operands, *held), number)
    return node, values, held, quiet_results(back, token_index(n.bodies[0]), prints)


SPLIT = {
    Op.CALLBACK: split_callback,
    Op.CHECK: split_check,
    Op.CALL: split_call,
    Op.SCAN: split_scan,
    Op.WHILE: split_while,
    Op.COND: split_cond,
}
"""One rule per op that may take a token."""
