"""Effects under transformations: order among derivatives, and an effect apart from its computation.

An effect takes the token of the one before it and gives one to the next (`core.avals.TOKEN`), so
interpreters that keep data flow keep effects. Two things remain:

* Rules of custom functions, checkpoint and transposition make effects that were not there. They join
  the innermost open `Chain` (interpreters/trace.py).
* `split` takes a body apart into one that has the effects and one that computes the same without
  them, given what the callbacks returned. So an effect happens once while its computation stays in
  the graph to be differentiated, and a checkpoint repeats its prints but not its callbacks. If it
  will be differentiated, custom functions first give way to their rules (`ruled`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes, sites
from tinyjax.core.avals import TOKEN, Aval, TupleAval, aval
from tinyjax.core.body import (
    fresh_id,
    fresh_var,
    open_body,
    open_calls,
    open_vars,
    params_of,
    reclose,
    substitute_params,
)
from tinyjax.core.infos import CallbackInfo, CallInfo, DerivedRule, ScanInfo, each_backward
from tinyjax.core.ops import Op
from tinyjax.core.prune import prune
from tinyjax.core.uop import (
    UOp,
    active,
    const,
    depends_on,
    get,
    results,
    substitute,
    token_of,
    toposort,
    tuple_of,
)
from tinyjax.interpreters.jvp import Tangent, jvp
from tinyjax.interpreters.trace import Chain, state, uses_vjp

START = const(False, dtypes.bool_, True)
"""The token of an effect that nothing precedes: one that happens now."""


class NewEffects(NotImplementedError):
    """A transformed body has effects that the body had not, and takes no token for them."""


def has_effects(body: UOp) -> bool:
    """Whether a closed body gives a token."""
    return token_of(body.src) is not None


def is_effect(node: UOp) -> bool:
    """Whether a node is an effect itself, and not what has one inside."""
    return node.op is Op.CHECK or (node.op is Op.CALLBACK and not node.arg.pure)


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


def apply_rule(
    body: UOp, args: Sequence[UOp], token: UOp | None, once: bool = False
) -> tuple[list[UOp], UOp | None]:
    """Outputs of a rule's body. Its effects come after `token`, or join the open chain.

    `once`: it has run for this one application, so what has a value keeps it.
    """
    opened = substitute_params if once else open_body
    if not has_effects(body):
        return opened(body, args), token
    chain = state.chains[-1]
    values = opened(body, [*args, chain.take() if token is None else token])
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


def token_through(node: UOp, token: UOp) -> tuple[UOp, int, int]:
    """A call, loop or branch without effects with a token that goes through it; the place of the token
    among its operands and among its results."""
    args = node.operands
    at, out = len(args), len(node.aval.elts)
    info, avals = node.arg, [a.aval for a in args]
    if node.op is Op.SCAN:
        at, out = info.num_consts + info.num_carry, info.num_carry
        avals = slice_avals(args, info)
        info = replace(info, num_carry=out + 1)
    elif node.op is Op.COND:
        avals = avals[1:]
    bodies = []
    for i, body in enumerate(node.bodies):
        mine = avals
        if node.op is Op.WHILE:
            consts = info.cond_consts
            mine = (
                [*avals[:consts], *avals[consts + info.body_consts :]] if i == 0 else avals[consts:]
            )
        params, outs = open_vars(body, mine)
        passed = fresh_var(TOKEN)
        condition = node.op is Op.WHILE and i == 0
        place = at if node.op is Op.SCAN else len(params)
        bodies.append(
            reclose(
                outs if condition else inserted(outs, out, passed), inserted(params, place, passed)
            )
        )
    return UOp(node.op, (*bodies, *inserted(args, at, token)), info), at, out


def slice_avals(args: Sequence[UOp], info: ScanInfo) -> list[Aval]:
    """Avals of the body's parameters: xs lose their leading axis."""
    lead = info.num_consts + info.num_carry
    out = [a.aval for a in args[:lead]]
    return out + [a.aval.update(shape=a.aval.shape[1:]) for a in args[lead:]]


def token_passed(node: UOp, token: UOp, like: UOp | None = None) -> UOp:
    """The results of a node, `token` in place of the one that it (or `like`) gives."""
    place = token_of(results(node if like is None else like))
    return tuple_of(inserted(without(results(node), place), place, token))


@dataclass(frozen=True, slots=True)
class Apart:
    """Outputs and the effects before them without those that see tangents, which come `late`: from a
    token variable to the last token, a chain of their own among what makes the tangents."""

    outs: list[UOp]
    last: UOp
    touts: list[Tangent]
    late: tuple[UOp, UOp] | None


def apart(outs: Sequence[UOp], last: UOp, touts: Sequence[Tangent], dots: Sequence[UOp]) -> Apart:
    """Take a chain of effects with its last token apart. An effect sees tangents (`dots`) if an
    operand other than its token depends on one."""
    if not depends_on([last], [t.arg for t in dots])(last):
        return Apart(list(outs), last, list(touts), None)
    start, seen = fresh_var(TOKEN), set(dots)
    known: dict[UOp, UOp] = {}
    late: dict[UOp, UOp] = {}
    for n in toposort([*outs, last, *(t for t in touts if t is not None)]):
        if n.aval is TOKEN and n.op is Op.GETTUPLE:
            (of,) = n.src
            (taken,) = (s for s in of.operands if s.aval is TOKEN)
            if of in seen:
                known[n], late[n] = known.get(taken, taken), get(late[of], n.arg)
            else:
                known[n], late[n] = get(known[of], n.arg), late.get(taken, start)
            continue
        sees = n in seen or any(s in seen for s in n.src if s.aval is not TOKEN)
        if not n.src:
            known[n], late[n] = n, start if n.aval is TOKEN else n
            continue
        src = tuple(
            late.get(s, start) if sees and s.aval is TOKEN
            else (late if s in seen else known).get(s, s)
            for s in n.src
        )  # fmt: skip
        new = n if src == n.src else n.with_src(src)
        sites.rewritten(new, n)
        (late if sees else known)[n] = new
        if sees:
            seen.add(n)
    moved = [t if t is None else (late if t in seen else known)[t] for t in touts]
    return Apart([known[o] for o in outs], known[last], moved, (start, late[last]))


# --- custom functions as their rules ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ruled(DerivedRule):
    """The rule of a call whose body is the rule's own: what it computes of the function's results.

    `zero` says for which of the inexact arguments the rule was asked (zero: not differentiated), and
    `reverse` whether it was the vjp rule.
    """

    zero: tuple[bool, ...]
    reverse: bool

    has_jvp = property(lambda self: not self.reverse)
    has_vjp = property(lambda self: self.reverse)

    def jvp_body(self, avals: Sequence[Aval], zero: tuple[bool, ...]) -> tuple[UOp, Any]:
        """The rule's, for the same arguments as before."""
        found: tuple[UOp, Any] = self.rule.jvp_body(avals, self.zero)
        return found

    def vjp_bodies(self, avals: Sequence[Aval], zero: tuple[bool, ...]) -> tuple[UOp, Any]:
        """The rule's, for the same arguments as before."""
        found: tuple[UOp, Any] = self.rule.vjp_bodies(avals, self.zero)
        return found


def ruled(body: UOp, avals: Sequence[Aval], on: tuple[bool, ...]) -> UOp:
    """A body with effects whose custom functions, where they depend on parameters flagged, do what
    their rules do: in place of the function its fwd (or its jvp rule) runs when it is differentiated.

    Effects of rules come where the call stands. Raises: Unkept if they are to see tangents in their
    place, or if results do.
    """
    key = ("ruled", on, state.linear)
    found = body.derived.get(key)
    if found is None:
        found = body.derived[key] = _ruled(body, avals, on)
    return found


def _ruled(body: UOp, avals: Sequence[Aval], on: tuple[bool, ...]) -> UOp:
    params = [fresh_var(a) for a in avals]
    token = params[token_of(params) or 0]
    done: dict[UOp, UOp] = {}
    for n in in_order(body.src):
        if n.op is Op.PARAM:
            done[n] = params[n.arg[0]]
            continue
        src = [done.get(s, s) for s in n.src]
        if n.op is Op.GETTUPLE:
            done[n] = get(src[0], n.arg)
            continue
        place = token_of(n.operands)
        if place is not None:
            src[len(n.src) - len(n.operands) + place] = token
        new = n.with_src(tuple(src))
        flags = tuple(any(on[slot] for slot in active(s)) for s in n.operands)
        if any(flags):
            new = RULED.get(n.op, lambda node, flags, token: node)(new, flags, token)
        done[n] = new
        last = token_of(results(new)) if isinstance(new.aval, TupleAval) else None
        token = token if last is None else results(new)[last]
    place = token_index(body)
    outs = [done[o] for o in body.src]
    return reclose(inserted(without(outs, place), place, token), params)


def settled(body: UOp) -> UOp:
    """A body whose custom functions are what their rules have made of them (`ruled`), and no more: a
    later derivative is one of that."""
    found = body.derived.get("settled")
    if found is None:
        new: dict[UOp, UOp] = {}
        for n in in_order(body.src):
            operands = tuple(new.get(s, s) for s in n.operands)
            if n.op is Op.GETTUPLE:
                new[n] = get(operands[0], n.arg)
                continue
            info = n.arg
            if n.op is Op.CALL and isinstance(info.rule, Ruled):
                info = replace(info, kind="jit", rule=None)
            src = (*map(settled, n.bodies), *operands) if n.bodies else operands
            new[n] = UOp(n.op, src, info) if n.src else n
        found = body.derived["settled"] = tuple_of([new[o] for o in body.src])
    return found


def ruled_call(n: UOp, flags: tuple[bool, ...], token: UOp) -> UOp:
    """A custom function as its rule, other calls with their bodies done; the token of one that has no
    effects, but whose rule has, is `token`."""
    info, place = n.arg, token_of(n.operands)
    if info.rule is None:
        return n if place is None else with_bodies(n, flags, [a.aval for a in n.operands])
    rule, args = info.rule, without(n.operands, place)
    if not isinstance(rule, Ruled):
        if not (getattr(rule, "has_jvp", False) or getattr(rule, "has_vjp", False)):
            return n
        given = without(flags, place)
        inexact = [i for i, a in enumerate(args) if dtypes.is_inexact(a.dtype)]
        rule = Ruled(rule, tuple(not given[i] for i in inexact), uses_vjp(rule))
    avals = [a.aval for a in args]
    dots = [] if rule.reverse else tangents_of(avals)
    body = rule.vjp_bodies(avals, ())[0] if rule.reverse else rule.jvp_body(avals, ())[0]
    if place is None and not has_effects(body):
        return n
    count = len(results(n)) - (place is not None)
    if not rule.reverse and state.linear is not None:
        from tinyjax.interpreters.linearize import values_apart  # it stands on this file

        body = values_apart(body, [*avals, *(t.aval for t in dots)], len(args), count)
    if sees_tangents(body, len(args), count):
        raise Unkept
    params = [fresh_var(a) for a in (*avals, TOKEN)]
    values, last = apply_rule(body, [*params[:-1], *dots], params[-1])
    assert last is not None
    known = apart(values[:count], last, [], dots)
    if known.late is not None and state.linear is None:
        raise Unkept
    own = reclose([*known.outs, known.last], params)
    return UOp(Op.CALL, (own, *args, token), replace(info, rule=rule))


def sees_tangents(body: UOp, arguments: int, count: int) -> bool:
    """Whether one of the first `count` results of a rule depends on more than its arguments, which are
    the first parameters: on tangents."""
    return reads_more(prune(tuple_of(body.src[:count])), arguments)


def reads_more(body: UOp, arguments: int) -> bool:
    """Whether a body reads parameters, tokens aside, behind its first `arguments`."""
    return any(i >= arguments and aval is not TOKEN for i, aval in params_of(body).items())


def with_bodies(n: UOp, flags: tuple[bool, ...], avals: Sequence[Aval]) -> UOp:
    """A node with effects, its bodies done; they take all its operands."""
    bodies = [ruled(body, avals, flags) for body in n.bodies]
    return UOp(n.op, (*bodies, *n.operands), n.arg)


def ruled_scan(n: UOp, flags: tuple[bool, ...], token: UOp) -> UOp:
    """The loop with its body done."""
    if token_of(n.operands) is None:
        return n
    info = n.arg
    lead = info.num_consts + info.num_carry
    avals = [a.aval for a in n.operands[:lead]]
    avals += [a.aval.update(shape=a.aval.shape[1:]) for a in n.operands[lead:]]
    return with_bodies(n, grown(n.src[0], flags, info.num_consts, info.num_carry), avals)


def ruled_while(n: UOp, flags: tuple[bool, ...], token: UOp) -> UOp:
    """The loop with its body done; conditions have no effects."""
    if token_of(n.operands) is None:
        return n
    lead, count = n.arg.cond_consts, n.arg.body_consts
    mine = grown(n.src[1], flags[lead:], count, len(n.operands) - lead - count)
    body = ruled(n.src[1], [a.aval for a in n.operands[lead:]], mine)
    return n.with_src((n.src[0], body, *n.src[2:]))


def ruled_cond(n: UOp, flags: tuple[bool, ...], token: UOp) -> UOp:
    """The branches done."""
    if token_of(n.operands) is None:
        return n
    bodies = [ruled(body, [a.aval for a in n.operands[1:]], flags[1:]) for body in n.bodies]
    return n.with_src((*bodies, *n.operands))


def ruled_callback(n: UOp, flags: tuple[bool, ...], token: UOp) -> UOp:
    """A debug callback sees the primal value, no other can."""
    if n.arg.kind != "debug":
        refuse_derivative(n)
    return n


def refuse_derivative(callback: UOp) -> NoReturn:
    """Raise ValueError: a Python callback has no derivative of its own."""
    kind = "Pure" if callback.arg.pure else "IO"
    raise ValueError(
        f"{kind} callbacks do not support JVP. Please use `jax.custom_jvp` to use callbacks while "
        "taking gradients."
    )


def grown(body: UOp, on: tuple[bool, ...], consts: int, carry: int) -> tuple[bool, ...]:
    """Flags of a loop body's parameters with those that its carry brings in later steps."""
    while True:
        depends = [any(on[slot] for slot in active(o)) for o in body.src[:carry]]
        new = [p or q for p, q in zip(on[consts : consts + carry], depends, strict=True)]
        after = (*on[:consts], *new, *on[consts + carry :])
        if after == on:
            return on
        on = after


RULED = {
    Op.CALL: ruled_call,
    Op.SCAN: ruled_scan,
    Op.WHILE: ruled_while,
    Op.COND: ruled_cond,
    Op.CALLBACK: ruled_callback,
}


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
    once: bool = False  # holds a `Tape`


QUIET, PRINTS, TAPED = "quiet", "prints", "taped"
"""How to split: without effects; leave debug callbacks in the replay; for one run, what callbacks in
while loops return being kept on a `Tape`."""


def split(body: UOp, avals: Sequence[Aval], mode: str = QUIET, late: Sequence[int] = ()) -> Split:
    """Take a body of parameters `avals` apart.

    Effects that depend on parameters `late` (tangents) are left in the replay: they are to come.
    """
    key = ("split effects", mode, tuple(late))
    found = body.derived.get(key)
    if found is None:
        found = _split(body, avals, mode, late)
        if not found.once:
            body.derived[key] = found
    return found


def _split(body: UOp, avals: Sequence[Aval], mode: str, late: Sequence[int]) -> Split:
    once = False
    params = [fresh_var(a) for a in avals]
    token = token_of(params)
    sees = depends_on([], [params[i].arg for i in late])
    prints = mode == PRINTS or bool(late)
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
            given = len(node.src) - len(node.operands) + (token_of(node.operands) or 0)
            if late and any(sees(s) for s in src_again if s.aval is not TOKEN):
                first[node] = token_passed(node.with_src(src), src[given])
                second[node] = node.with_src(src_again)
                continue
            part = SPLIT[node.op](node, src, src_again, mode)
            if late:  # what is replayed hands the token on
                part = replace(part, replay=token_passed(part.replay, src_again[given], node))
            first[node], second[node] = part.node, part.replay
            kept += part.kept
            held += part.held
            once |= part.once
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
        once,
    )


def in_order(outputs: Sequence[UOp]) -> list[UOp]:
    """Nodes, sources first, effects in the order of their chain."""
    token = token_of(outputs)
    return toposort(outputs if token is None else [outputs[token], *outputs])


@dataclass(frozen=True, slots=True)
class Parts:
    """The node that has the effect, what is kept of it, variables for that, the replay's results."""

    node: UOp
    kept: list[UOp]
    held: list[UOp]
    replay: UOp
    once: bool = False


def holders(values: Sequence[UOp]) -> list[UOp]:
    """A variable per value."""
    return [fresh_var(v.aval) for v in values]


def quiet_results(node: UOp, place: int, mode: str) -> UOp:
    """Results of a replay node, a token where the effect's node gives one."""
    return node if mode == PRINTS else tuple_of(inserted(results(node), place, START))


def split_callback(n: UOp, src: Sequence[UOp], again: Sequence[UOp], mode: str) -> Parts:
    """What it returned, or a print once more."""
    node = n.with_src(tuple(src))
    if mode == PRINTS and n.arg.kind == "debug":
        return Parts(node, [], [], n.with_src(tuple(again)))
    values = results(node)[:-1]
    held = holders(values)
    return Parts(node, values, held, tuple_of([*held, again[-1]]))


def split_check(n: UOp, src: Sequence[UOp], again: Sequence[UOp], mode: str) -> Parts:
    """A check that held holds."""
    return Parts(n.with_src(tuple(src)), [], [], tuple_of([again[-1]]))


def split_call(n: UOp, src: Sequence[UOp], again: Sequence[UOp], mode: str) -> Parts:
    """The call of each part. A custom rule loses its forward effects, a checkpoint repeats prints."""
    info, prints = n.arg, mode == PRINTS
    args, place = n.operands, token_of(n.operands)
    avals = [a.aval for a in args]
    if info.kind == "checkpoint" and not prints:
        try:
            parts = split(n.src[0], avals)
            info = replace(info, repeat=repeated(n.src[0], avals, info.policy))
        except Unkept:
            parts = split(n.src[0], avals, mode)
            info = replace(info, kind="jit", policy=None)
    else:
        parts = split(n.src[0], avals, mode)
    node = UOp(Op.CALL, (parts.record, *src[1:]), n.arg)
    values = results(node)[len(n.src[0].src) :]
    held = holders(values)
    given = list(again[1:]) if prints else without(again[1:], place)
    if info.rule is not None and (parts.kept or not prints):
        info = replace(info, rule=QuietRule(info.rule, parts.kept))
    back = UOp(Op.CALL, (parts.replay, *given, *held), info)
    out = token_of(n.src[0].src)
    assert out is not None
    return Parts(node, values, held, quiet_results(back, out, mode), parts.once)


def repeated(
    body: UOp, avals: Sequence[Aval], policy: Callable[[UOp], bool] | None
) -> tuple[UOp, int]:
    """The prints of a body: (parameters but the token, callback results, token) -> token.

    Comes with the number of its parameters, the token not counted. `policy` is that of a checkpoint.
    """
    body = settled(body if policy is None else without_saved(body, avals, policy))
    parts = split(body, avals, PRINTS)
    params = [fresh_var(a) for a in (*avals, *parts.kept)]
    place = token_of(params)
    token = substitute_params(parts.replay, params)[token_index(parts.replay)]
    rest = without(params, place)
    return reclose([token], [*rest, params[place or 0]]), len(rest)


def without_saved(body: UOp, avals: Sequence[Aval], policy: Callable[[UOp], bool]) -> UOp:
    """A body without the prints that a policy takes for saved: those of values that are not at hand when
    the others are computed again. Inside of loops and branches, all are kept."""
    params, outs = open_vars(body, avals)
    outs = open_calls(outs, lambda inner: inner.kind == "jit" and inner.rule is None)
    at_hand = set(params)
    new: dict[UOp, UOp] = {}
    for n in in_order(outs):
        if not n.src:
            continue
        src = tuple(new.get(s, s) for s in n.src)
        if n.op is Op.GETTUPLE:
            new[n] = get(src[0], n.arg)
            if n.src[0] in at_hand:
                at_hand.add(n)
            continue
        given = [s for s in n.operands if s.aval is not TOKEN and s.op is not Op.CONST]
        if n.op is Op.CALLBACK and n.arg.kind == "debug" and policy(n):
            new[n] = n.with_src(src) if at_hand.issuperset(given) else tuple_of([src[-1]])
            continue
        new[n] = n.with_src(src)
        if isinstance(n.aval, TupleAval) or not policy(n):
            at_hand.add(n)
    return reclose([new.get(o, o) for o in outs], params)


def split_scan(n: UOp, src: Sequence[UOp], again: Sequence[UOp], mode: str) -> Parts:
    """What callbacks return is stacked, and read again step by step."""
    info, prints = n.arg, mode == PRINTS
    lead = info.num_consts + info.num_carry
    avals = [a.aval for a in n.operands[:lead]]
    avals += [a.aval.update(shape=a.aval.shape[1:]) for a in n.operands[lead:]]
    parts = split(n.src[0], avals, mode)
    node = UOp(Op.SCAN, (parts.record, *src[1:]), info)
    values = results(node)[len(n.src[0].src) :]
    held = holders(values)
    given = again[1:] if prints else without(again[1:], token_of(n.operands))
    fewer = info if prints else replace(info, num_carry=info.num_carry - 1)
    back = UOp(Op.SCAN, (parts.replay, *given, *held), fewer)
    return Parts(node, values, held, quiet_results(back, token_index(n.src[0]), mode), parts.once)


class Unkept(Exception):
    """Effects cannot be taken apart from what is computed. The results of callbacks in a while loop
    cannot be kept: nothing can be computed again, so a checkpoint around it is none (and reverse mode is
    refused for the loop). Or the results of a rule depend on tangents, which come later."""


class Tape:
    """What the callbacks of a while loop returned, step by step: how many there will be is not known.

    It lives as long as the nodes that write and read it, and serves one run. A loop that runs more
    than once (inside of another) is told where its steps begin.
    """

    def __init__(self) -> None:
        self.rows: list[list[np.ndarray]] = []

    def begin(self) -> list[np.ndarray]:
        """The number of the first step."""
        return [np.int32(len(self.rows))]  # type: ignore[list-item]

    def write(self, *values: np.ndarray) -> None:
        """One step."""
        self.rows.append([np.array(v) for v in values])

    def read(self, number: np.ndarray) -> list[np.ndarray]:
        """One step again."""
        return self.rows[int(number)]


def split_while(n: UOp, src: Sequence[UOp], again: Sequence[UOp], mode: str) -> Parts:
    """How often a loop runs is not known, so what its callbacks return can be kept on a tape only."""
    info = n.arg
    cond, body = n.src[:2]
    lead, first = info.cond_consts, info.cond_consts + info.body_consts
    inner = [a.aval for a in n.operands[lead:]]
    parts = split(body, inner, mode)
    if parts.kept and mode != TAPED:
        raise Unkept
    if mode == PRINTS:
        back = UOp(Op.WHILE, (cond, parts.replay, *again[2:]), info)
        return Parts(n.with_src(tuple(src)), [], [], back)
    place = token_of(n.operands)
    assert place is not None
    carry = [fresh_var(a.aval) for a in n.operands[first:]]
    consts = [fresh_var(a.aval) for a in n.operands[:lead]]
    inside = substitute_params(cond, [*consts, *carry])
    lone = without(carry, token_of(carry))
    given = without(again[2:], place)
    if not parts.kept:
        back = UOp(Op.WHILE, (reclose(inside, [*consts, *lone]), parts.replay, *given), info)
        back = back if mode != TAPED else with_repeat(back, n)
        return Parts(n.with_src(tuple(src)), [], [], quiet_results(back, token_index(body), mode))
    tape, out = Tape(), token_index(body)
    params = [fresh_var(a) for a in inner]
    values = substitute_params(parts.record, params)
    outs, kept = values[: len(body.src)], values[len(body.src) :]
    wrote = UOp(Op.CALLBACK, (*kept, outs[out]), CallbackInfo(tape.write, (), "io", ordered=True))
    writing = reclose(inserted(without(outs, out), out, get(wrote, 0)), params)
    number = aval((), np.dtype("i4"))
    begin = UOp(
        Op.CALLBACK, (src[2 + place],), CallbackInfo(tape.begin, (number,), "io", ordered=True)
    )
    operands = inserted(without(src[2:], place), place, get(begin, 1))
    node = UOp(Op.WHILE, (cond, writing, *operands), info)
    step = fresh_var(number)
    (start,) = held = holders([get(begin, 0)])
    reading = CallbackInfo(tape.read, parts.kept, sequence=fresh_id(), vectorized="sequential")
    rows = results(UOp(Op.CALLBACK, (step,), reading))
    quiet_params = without(params, token_of(params))
    again_outs = substitute_params(parts.replay, [*quiet_params, *rows])
    back = UOp(
        Op.WHILE,
        (
            reclose(inside, [*consts, *lone, step]),
            reclose([*again_outs, b.add(step, b.like(step, 1))], [*quiet_params, step]),
            *given,
            start,
        ),
        info,
    )
    replay = tuple_of(inserted(results(with_repeat(back, n))[:-1], out, START))
    return Parts(node, [get(begin, 0)], held, replay, once=True)


def with_repeat(quiet: UOp, n: UOp) -> UOp:
    """The replay of a while loop as a call that has the effects again where its derivative is applied:
    there the loop runs again, which is not known to end when it did."""
    params = holders(quiet.operands)
    token = fresh_var(TOKEN)
    place = token_of(n.operands)
    operands = inserted(params[: len(n.operands) - 1], place, token)
    again = UOp(Op.WHILE, (*n.bodies, *operands), n.arg)
    last = get(again, token_index(n.bodies[1]))
    loop = UOp(Op.WHILE, (*quiet.bodies, *params), quiet.arg)
    body = reclose(results(loop), params)
    repeat = reclose([last], [*params, token]), len(params)
    return UOp(Op.CALL, (body, *quiet.operands), CallInfo("jit", "while_loop", repeat=repeat))


def of_repeat(call: UOp, items: Sequence[Any]) -> list[Any]:
    """Of items, one for each operand of a call, those for what `CallInfo.repeat` takes: the last ones
    without the token."""
    if call.arg.repeat is None:
        return []
    rest = without(items, token_of(call.operands))
    return rest[len(rest) - call.arg.repeat[1] :]


@dataclass(frozen=True, slots=True)
class QuietRule(DerivedRule):
    """A custom rule whose forward effects have happened; those of its backward rule are to come.

    What its callbacks returned (`kept`) are further arguments, without derivative.
    """

    kept: tuple[Aval, ...]

    def jvp_body(self, avals: Sequence[Aval], zero: tuple[bool, ...]) -> tuple[UOp, Any]:
        """The rule's, without effects."""
        own, more, zero = self._own(avals, zero)
        body, out_zero = self.rule.jvp_body(own, zero)
        args, dots = [fresh_var(a) for a in own], tangents_of(own)
        kept = [fresh_var(a) for a in self.kept]
        late = range(len(args), len(args) + len(dots))
        silent = quiet(body, [v.aval for v in (*args, *dots)], self.kept, late)
        token = [fresh_var(TOKEN)] * has_effects(silent)
        outs = open_body(silent, [*args, *dots, *token, *kept])
        return reclose(outs, [*args, *kept, *dots, *tangents_of(more), *token]), out_zero

    def vjp_bodies(self, avals: Sequence[Aval], zero: tuple[bool, ...]) -> tuple[UOp, Any]:
        """The rule's, the forward one without effects."""
        own, more, zero = self._own(avals, zero)
        forward, backward = self.rule.vjp_bodies(own, zero)
        nothing = [b.zeros(t.aval) for t in tangents_of(more)]

        def padded(back: UOp, _: tuple[bool, ...]) -> UOp:
            known, place = params_of(back), token_of(back.src)
            params = [fresh_var(known.get(i, TOKEN)) for i in range(max(known, default=-1) + 1)]
            outs = open_body(back, params)
            last = [] if place is None else [outs[place]]
            return reclose([*without(outs, place), *nothing, *last], params)

        backward = each_backward(backward, padded) if nothing else backward
        return quiet(forward, own, self.kept), backward

    def _own(
        self, avals: Sequence[Aval], zero: tuple[bool, ...]
    ) -> tuple[list[Aval], list[Aval], tuple[bool, ...]]:
        """Avals of the rule's arguments, of what is kept, and the flags of the former."""
        count = len(avals) - len(self.kept)
        own, more = list(avals[:count]), list(avals[count:])
        return own, more, zero[: len(tangents_of(own))]

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


def tangents_of(avals: Sequence[Aval]) -> list[UOp]:
    """A variable for the tangent of each that has one."""
    return [fresh_var(a.strip_weak_type()) for a in avals if dtypes.is_inexact(a.dtype)]


def quiet(
    body: UOp, avals: Sequence[Aval], kept: tuple[Aval, ...] = (), late: Sequence[int] = ()
) -> UOp:
    """A body of parameters `avals` (and perhaps a token, last) without its effects but those that
    depend on parameters `late`; what its callbacks returned, `kept`, are the last parameters."""
    if not has_effects(body):
        return body
    params = [fresh_var(a) for a in (*avals, TOKEN)]
    seen = depends_on([], [params[i].arg for i in late])
    last = open_body(body, params)[token_index(body)]
    late = late if seen(last) else ()
    parts = split(body, [*avals, TOKEN], late=late)
    if parts.kept and parts.kept != kept:
        raise ValueError(
            "io_callback in a rule of a custom function that is not the one that ran: its results "
            "are not known here.\n  Put jax.jit around the derivative as well."
        )
    return parts.replay


def without_dead_effects(body: UOp, avals: Sequence[Aval]) -> UOp:
    """A body without the token that its chain of effects has left if none of them remains."""
    found = body.derived.get("no dead effects")
    if found is None:
        alive = not has_effects(body) or any(map(is_effect, toposort([body], bodies=True)))
        found = body if alive else quiet(body, [a for a in avals if a is not TOKEN])
        body.derived["no dead effects"] = found
    return found


def split_cond(n: UOp, src: Sequence[UOp], again: Sequence[UOp], mode: str) -> Parts:
    """Each branch also gives, and reads, what the callbacks of all branches return."""
    number, prints = n.arg, mode == PRINTS
    args = n.operands[1:]
    parts = [split(br, [a.aval for a in args], mode) for br in n.bodies]
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
    replay = quiet_results(back, token_index(n.bodies[0]), mode)
    return Parts(node, values, held, replay, any(p.once for p in parts))


SPLIT = {
    Op.CALLBACK: split_callback,
    Op.CHECK: split_check,
    Op.CALL: split_call,
    Op.SCAN: split_scan,
    Op.WHILE: split_while,
    Op.COND: split_cond,
}
"""One rule per op that may take a token."""
