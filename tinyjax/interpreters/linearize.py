"""Forward derivatives of nodes with bodies: a known call that also returns residuals, a linear call.

`jvp(CALL)` is two calls: the forward one computes the outputs and what the linear one needs
(residuals, interpreters/residuals.py); the linear one maps tangents to tangents. Transposition sees
only the linear call, so the backward pass of a call is one call. In a DAG the split into known and
linear part is free: a node is known if it mentions no tangent variable.

Loops are split the same way; WHILE cannot be (its trip count is unknown), so its tangent is a WHILE
over primals and tangents, without effects, of which only the tangents are read. If what a callback
returned would be needed again, or an effect sees a tangent, all is in that loop, and what contains it
cannot be split either (`joint`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import TOKEN, Aval
from tinyjax.core.body import (
    fresh_id,
    fresh_var,
    open_body,
    open_calls,
    open_vars,
    reclose,
)
from tinyjax.core.composites import KIND
from tinyjax.core.infos import CallInfo, CustomLinInfo, ScanInfo
from tinyjax.core.ops import Op
from tinyjax.core.prune import prune
from tinyjax.core.uop import (
    UOp,
    depends_on,
    get,
    results,
    substitute,
    token_of,
    toposort,
    tuple_of,
)
from tinyjax.interpreters.composites import attention_residuals, composite_tangent
from tinyjax.interpreters.effects import (
    QUIET,
    SPLIT,
    START,
    TAPED,
    Apart,
    Unkept,
    apart,
    apply_rule,
    inserted,
    join,
    jvp_in_chain,
    of_repeat,
    quiet,
    reads_more,
    refuse_derivative,
    repeated,
    ruled,
    sees_tangents,
    settled,
    slice_avals,
    split,
    token_index,
    token_through,
    without,
)
from tinyjax.interpreters.host_rules import host_call_jvp
from tinyjax.interpreters.jvp import Tangent, instantiate, jvp
from tinyjax.interpreters.residuals import LITERALS, choose_residuals, in_slots, shared_slots
from tinyjax.interpreters.saveable import saveable
from tinyjax.interpreters.trace import linear_apart, open_chain, state, uses_vjp

Result = tuple[UOp, list[Tangent]]


@dataclass(slots=True)
class Parts:
    """A body taken apart: outputs over `params`, their tangents over `params` and `tangents`.

    `tangents[i]` is None where the input is inactive, `out_tangents[i]` where the output's tangent
    is zero. `residuals` are the known nodes the tangents are to be computed from.
    """

    params: list[UOp]
    tangents: list[UOp | None]
    outputs: list[UOp]
    out_tangents: list[Tangent]
    residuals: list[UOp]
    late: tuple[UOp, UOp] | None = None  # effects that see tangents (effects.Apart)
    grows: bool = False  # a custom rule has effects where the function has none
    joint: bool = False  # outputs depend on tangents: there is a while loop that does both

    @property
    def linear_roots(self) -> list[UOp]:
        """What the linear part gives: tangents and, last, the token of its effects."""
        last = [] if self.late is None else [self.late[1]]
        return [*(t for t in self.out_tangents if t is not None), *last]

    @property
    def linear_inputs(self) -> list[UOp]:
        """What it takes."""
        first = [] if self.late is None else [self.late[0]]
        return [*(t for t in self.tangents if t is not None), *first]


def tangent_aval(of: Aval) -> Aval:
    """Aval of a tangent: that of the primal, strongly typed."""
    return of.strip_weak_type()


def take_apart(
    body: UOp,
    avals: Sequence[Aval],
    active: Sequence[bool],
    choose: Any = None,
    info: CallInfo | None = None,
) -> Parts:
    """Differentiate a body with respect to its active inputs and choose residuals.

    `choose(parts, frontier)` overrides the minimum cut (checkpoint policies). `info` is that of the
    call: composites may be differentiated as wholes.
    """
    params, outs = open_vars(body, avals)
    tangents = [
        fresh_var(tangent_aval(p.aval)) if on and dtypes.is_inexact(p.dtype) else None
        for p, on in zip(params, active, strict=True)
    ]
    whole = composite_tangent(info, body, outs, params, tangents[0] if tangents else None)
    touts: list[Tangent]
    late, grows = None, False
    if whole is not None:
        touts = [whole]
    else:
        seeds = {p: t for p, t in zip(params, tangents, strict=True) if t is not None}
        outs, touts, grows = jvp_of_body(params, outs, seeds)
        outs, touts, late = known_apart(outs, touts, list(seeds.values()))
    parts = Parts(params, tangents, outs, touts, [], late, grows)
    needs_tangent = depends_on(outs, [v.arg for v in parts.linear_inputs])
    parts.joint = any(map(needs_tangent, outs))
    if grows or parts.joint:
        return parts
    frontier = known_frontier(parts.linear_roots, parts.linear_inputs)
    if choose is None:
        parts.residuals = choose_residuals(frontier, {*params, *outs})
    else:
        parts.residuals = choose(parts, frontier)
    return parts


def jvp_of_body(
    params: Sequence[UOp], outs: Sequence[UOp], seeds: dict[UOp, UOp]
) -> tuple[list[UOp], list[Tangent], bool]:
    """`jvp` of an opened body, its effects in order; whether rules add the first ones."""
    place = token_of(outs)
    with open_chain() as chain:
        if place is not None:
            chain.start, chain.last = params[token_of(params) or 0], outs[place]
        values, touts = jvp_in_chain(without(outs, place), seeds, chain)
    grows = place is None and chain.last is not None
    if grows and state.linear == "transposed":  # effects that see tangents are dropped
        assert chain.last is not None
        found = apart(values, chain.last, touts, list(seeds.values()))
        if found.last is chain.start and found.late is not None:
            return found.outs, dropped(found), False
    return inserted(values, place, chain.last), inserted(touts, place, None), grows


def known_apart(
    outs: Sequence[UOp], touts: Sequence[Tangent], dots: Sequence[UOp]
) -> tuple[list[UOp], list[Tangent], tuple[UOp, UOp] | None]:
    """Outputs of a body and tangents, effects that see tangents apart if that is asked for
    (`trace.linear_apart`)."""
    place = token_of(outs)
    if state.linear is None or place is None:
        return list(outs), list(touts), None
    found = apart(without(outs, place), outs[place], without(touts, place), dots)
    moved, late = inserted(found.touts, place, None), found.late
    if late is not None and state.linear == "transposed":
        moved, late = inserted(dropped(found), place, None), None
    return inserted(found.outs, place, found.last), moved, late


def dropped(found: Apart) -> list[Tangent]:
    """The tangents without the effects that see them."""
    assert found.late is not None
    start, _ = found.late
    live = iter(substitute([t for t in found.touts if t is not None], {start: START}))
    return [None if t is None else next(live) for t in found.touts]


def widened(node: UOp, dsrc: Sequence[Tangent], rule: Callable[..., Result]) -> Result:
    """The rule for a node without effects whose derivative has some: a token goes through it."""
    chain = state.chains[-1]
    token = chain.take()
    wide, at, out = token_through(node, token)
    count = len(node.bodies)
    more = [*dsrc[:count], *inserted(dsrc[count:], at, None)]
    primal, touts = rule(wide, more)
    after = get(primal, out)  # and then what the rule itself has added to the chain
    chain.last = substitute([chain.last or token], {token: after})[0]
    values = [get(primal, i) for i in range(len(primal.aval.elts))]
    return tuple_of(without(values, out)), without(touts, out)


def known_frontier(roots: Sequence[UOp], linear: Sequence[UOp]) -> list[UOp]:
    """Known nodes that linear nodes read directly, literals included."""
    is_linear = depends_on(roots, [v.arg for v in linear])
    found: dict[UOp, None] = {}
    for node in toposort(roots, keep=is_linear):
        for s in node.operands:
            if not is_linear(s):
                found[s] = None
    for r in roots:
        if not is_linear(r):
            found[r] = None
    return list(found)


def joint(
    node: UOp,
    tangents: Sequence[Tangent],
    bodies: Sequence[Parts],
    sizes: Sequence[int],
    out_sizes: Sequence[int],
) -> tuple[list[UOp], list[Any], Callable[[UOp], Result]]:
    """Bodies over primals and tangents, and their operands, for a node that cannot be split.

    Operands and results come in groups of these sizes (a loop's consts, carry, xs); the tangents of
    each follow it, and a token is the last. Comes with what takes the new node's results apart.
    """
    args = node.operands[-len(tangents) :]
    on = [t is not None for t in bodies[0].tangents]
    columns = zip(*(p.out_tangents for p in bodies), strict=True)
    nonzero = [any(t is not None for t in column) for column in columns]
    if node.op is Op.SCAN:
        consts, carry = sizes[:2]
        nonzero[:carry] = on[consts : consts + carry]

    def full(values: Sequence[Tangent], of: Sequence[UOp], flags: Sequence[bool]) -> list[Tangent]:
        rows = zip(values, of, flags, strict=True)
        return [instantiate(t, o) if flag else None for t, o, flag in rows]

    def arranged(order: list[tuple[int, int]], *pair: Sequence[Any]) -> list[Any]:
        return [pair[which][i] for which, i in order]

    order = layout(sizes, on, token_of(args))
    out_order = layout(out_sizes, nonzero, token_of(bodies[0].outputs))
    made = [
        reclose(
            arranged(out_order, p.outputs, full(p.out_tangents, p.outputs, nonzero)),
            arranged(order, p.params, p.tangents),
        )
        for p in bodies
    ]

    def parts(new: UOp) -> Result:
        place = dict(zip(out_order, results(new), strict=True))
        outs = [place[0, i] for i in range(len(nonzero))]
        return tuple_of(outs), [place.get((1, i)) for i in range(len(nonzero))]

    return made, arranged(order, args, full(tangents, args, on)), parts


def layout(sizes: Sequence[int], on: Sequence[bool], token: int | None) -> list[tuple[int, int]]:
    """Per group (0, i) for its members and (1, i) for their tangents; the token ends its group."""
    found: list[tuple[int, int]] = []
    start = 0
    for size in sizes:
        mine = range(start, start + size)
        found += [(0, i) for i in mine if i != token]
        found += [(1, i) for i in mine if on[i]]
        found += [(0, i) for i in mine if i == token]
        start += size
    return found


# --- CALL ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinearCall:
    """Closed bodies of the two calls. `residuals[i]` is ("arg", slot) or ("out", index).

    `late`: the linear one has effects.
    """

    forward: UOp
    linear: UOp
    residuals: tuple[tuple[str, int], ...]
    nonzero: tuple[bool, ...]
    late: bool


def linearize_call(
    body: UOp, avals: Sequence[Aval], active: tuple[bool, ...], info: CallInfo
) -> LinearCall | Parts:
    """Derived bodies of a call, or `Parts` if it grows or is joint; made once per (body, active
    inputs, checkpoint policy)."""
    remat = info.kind == "checkpoint"
    composite = info.name if info.kind == KIND else None
    key = (
        "linearize", active, remat, info.policy if remat else None, info.prevent_cse, composite,
        state.linear,
    )  # fmt: skip
    found = body.derived.get(key)
    if found is not None:
        return found  # type: ignore[no-any-return]
    choose = (lambda parts, _: checkpoint_residuals(parts, info.policy)) if remat else None
    own = body
    if remat and info.policy is not None:  # a policy speaks of what jitted functions compute, too
        variables, outs = open_vars(body, avals)
        opened = open_calls(outs, lambda inner: inner.kind == "jit" and inner.rule is None)
        body = body if opened == outs else reclose(opened, variables)
    # What a checkpoint repeats (`repeated_prints`) holds what the checkpoints inside of it would.
    with linear_apart("recomputed" if remat and state.linear == "applied" else state.linear):
        parts = take_apart(body, avals, active, choose, info)
    if parts.grows or parts.joint:
        own.derived[key] = parts
        return parts
    if composite == "attention" and len(parts.outputs) == 1:
        parts.residuals = attention_residuals(parts) or parts.residuals
    where: dict[UOp, tuple[str, int]] = {}
    for i, o in enumerate(parts.outputs):
        where.setdefault(o, ("out", i))
    for i, p in enumerate(parts.params):
        where[p] = ("arg", i)
    extra: list[UOp] = []
    for r in parts.residuals:
        if r not in where:
            where[r] = ("out", len(parts.outputs) + len(extra))
            extra.append(r)
    forward = reclose([*parts.outputs, *extra], parts.params)
    held = [fresh_var(r.aval) for r in parts.residuals]
    mapping = dict(zip(parts.residuals, held, strict=True))
    if remat and info.prevent_cse:
        mapping = {r: UOp(Op.REMAT, (v,), fresh_id()) for r, v in mapping.items()}
    roots = substitute(parts.linear_roots, mapping)
    linear = reclose(roots, [*held, *parts.linear_inputs])
    out = LinearCall(
        forward,
        linear,
        tuple(where[r] for r in parts.residuals),
        tuple(t is not None for t in parts.out_tangents),
        parts.late is not None,
    )
    own.derived[key] = out
    return out


def checkpoint_residuals(parts: Parts, policy: Callable[..., Any] | None) -> list[UOp]:
    """Inputs, and what the policy lets be saved (interpreters/saveable.py)."""
    parts.outputs, roots, kept = saveable(
        parts.params, parts.outputs, parts.linear_roots, parts.linear_inputs, policy
    )
    if parts.late is not None:
        parts.late = parts.late[0], roots.pop()
    given = iter(roots)
    parts.out_tangents = [None if t is None else next(given) for t in parts.out_tangents]
    return kept


def call_jvp(node: UOp, dsrc: Sequence[Tangent]) -> Result:
    """Forward call with residuals, and a linear call; custom rules take the place of the body."""
    info: CallInfo = node.arg
    args, tangents = node.src[1:], list(dsrc[1:])
    if not getattr(info.rule, "applies", True):
        info = replace(info, kind="jit", rule=None)
        node = UOp(Op.CALL, node.src, info)
    if info.rule is not None:
        return custom_jvp_call(node, tangents)
    if info.kind == "checkpoint" and token_of(args) is not None:
        return checkpoint_with_effects_jvp(node, dsrc)
    active = tuple(t is not None for t in tangents)
    made = linearize_call(node.src[0], [a.aval for a in args], active, info)
    if isinstance(made, Parts):
        if made.grows:
            if info.repeat is not None:  # what a checkpoint does for its own effects has been done
                node = UOp(Op.CALL, node.src, replace(info, kind="jit", policy=None))
            return widened(node, dsrc, call_jvp)
        sizes = [len(args)], [len(node.aval.elts)]
        bodies, operands, parts = joint(node, tangents, [made], *sizes)
        both = replace(info, name=f"jvp({info.name})", policy=None, repeat=None)
        return parts(UOp(Op.CALL, (*bodies, *operands), both))
    forward = UOp(Op.CALL, (made.forward, *args), replace(info, repeat=None))
    held = [args[i] if kind == "arg" else get(forward, i) for kind, i in made.residuals]
    linear_info = replace(
        info,
        kind=info.kind if info.kind in ("jit", "function", KIND) else "linear",
        name=f"jvp({info.name})",
        precompile=info.precompile and info.precompile_backward,
        policy=None,
    )
    given = [
        b.cast(t, a.dtype) if t.dtype != a.dtype else t
        for t, a in zip(tangents, args, strict=True)
        if t is not None and dtypes.is_inexact(a.dtype)
    ]
    known = [get(forward, i) for i in range(len(made.nonzero))]
    place = token_of(known)
    token = [known[place or 0]] if made.late else []
    more = of_repeat(node, args)
    linear = UOp(Op.CALL, (made.linear, *held, *given, *token, *more), linear_info)
    outs: list[Tangent] = []
    count = 0
    for on in made.nonzero:
        outs.append(get(linear, count) if on else None)
        count += on
    if made.late:
        known[place or 0] = get(linear, count)
    if info.repeat is not None and state.linear == "applied":
        join(repeated_prints(info, more, given))
    return tuple_of(known), outs


def repeated_prints(info: CallInfo, args: Sequence[UOp], tangents: Sequence[UOp]) -> UOp:
    """The effects of what a checkpoint computes again, last in the open chain. They come with the
    tangents, for whose sake it does."""
    assert info.repeat is not None
    prints, _ = info.repeat
    params = [fresh_var(x.aval) for x in (*args, *tangents)]
    token = fresh_var(TOKEN)
    body = reclose(open_body(prints, [*params[: len(args)], token]), [*params, token])
    again = replace(info, kind="jit", policy=None, name=f"repeat({info.name})", repeat=None)
    return UOp(Op.CALL, (body, *args, *tangents, state.chains[-1].take()), again)


def checkpoint_with_effects_jvp(node: UOp, dsrc: Sequence[Tangent]) -> Result:
    """Effects happen in a call of their own; what is recomputed has none, except that transposing it
    repeats the prints. In forward mode nothing is recomputed: one call does all."""
    info, body, args = node.arg, node.src[0], node.src[1:]
    avals, place, out = [a.aval for a in args], token_of(args), token_index(body)
    if state.linear is None:
        made = scan_parts(body, avals, tuple(t is not None for t in dsrc[1:]))
        bodies, operands, parts_of = joint(node, dsrc[1:], [made], [len(args)], [len(body.src)])
        both = replace(info, name=f"jvp({info.name})")
        return parts_of(UOp(Op.CALL, (*bodies, *operands), both))
    once = replace(info, kind="jit", policy=None)
    try:
        body = ruled(body, avals, tuple(t is not None for t in dsrc[1:]))
        parts, repeat = split(body, avals), repeated(body, avals, info.policy)
    except Unkept:
        return call_jvp(UOp(Op.CALL, (body, *args), once), dsrc)
    happened = UOp(Op.CALL, (settled(parts.record), *args), once)
    outs, kept = results(happened)[: len(body.src)], results(happened)[len(body.src) :]
    plain = UOp(Op.CALL, (parts.replay, *without(args, place), *kept), replace(info, repeat=repeat))
    _, touts = call_jvp(plain, [None, *without(dsrc[1:], place), *[None] * len(kept)])
    return tuple_of(outs), inserted(touts, out, None)


def of_function(
    body: UOp, rule: Any, args: Sequence[UOp], tangents: list[Tangent]
) -> list[Tangent]:
    """The tangents of a call, but for those of captures that only its rules read."""
    count = getattr(rule, "count", None)
    if count is None or all(t is None for t in tangents[count:]):
        return tangents
    params, outs = open_vars(body, [*(a.aval for a in args), TOKEN])

    def reads(i: int) -> bool:
        _, touts = jvp(outs, {params[i]: fresh_var(tangent_aval(args[i].aval))})
        return any(t is not None for t in touts)

    return [t if i < count or t is None or reads(i) else None for i, t in enumerate(tangents)]


def custom_jvp_call(node: UOp, tangents: Sequence[Tangent]) -> Result:
    """The user's rule as closed bodies (engine/custom_rules.py makes them).

    With a jvp rule: its body maps (args, tangents of inexact args) to (outputs, tangents of inexact
    outputs). With a vjp rule: `forward` maps args to (outputs, residuals), and the tangents are a
    CUSTOM_LIN known only by its transpose.
    """
    info: CallInfo = node.arg
    place, out_place = token_of(node.operands), token_of(results(node))
    token = None if place is None else node.operands[place]
    args, rule = without(node.operands, place), info.rule
    tangents = of_function(node.src[0], rule, args, without(tangents, place))
    if all(t is None for t in tangents):
        return node, [None] * len(node.aval.elts)
    kinds_out = without(node.aval.elts, out_place)
    inexact_args = [i for i, a in enumerate(args) if dtypes.is_inexact(a.dtype)]
    given = [instantiate(tangents[i], args[i]) for i in inexact_args]
    outs: list[Tangent] = []
    avals = [a.aval for a in args]
    zero = tuple(tangents[i] is None for i in inexact_args)
    number = len(kinds_out)
    inexact_out = [dtypes.is_inexact(o.dtype) for o in kinds_out]
    once = getattr(rule, "pinned", False)
    if not uses_vjp(rule):
        body, out_zero = rule.jvp_body(avals, zero)
        if state.linear is not None:  # tangents are not known yet
            body = values_apart(body, [*avals, *(t.aval for t in given)], len(args), number)
            refuse_tangents(body, len(args), number, info.name)
        values, token = apply_rule(body, [*args, *given], token, once)
        rest, zeros = iter(values[number:]), iter(out_zero)
        for on in inexact_out:
            outs.append(next(rest) if on and not next(zeros) else None)
        primal = tuple_of(inserted(values[:number], out_place, token))
        return primal, inserted(outs, out_place, None)
    forward, backward = rule.vjp_bodies(avals, zero)
    values, token = apply_rule(forward, args, token, once)
    held = values[number:]
    kinds = tuple(tangent_aval(o) for o, on in zip(kinds_out, inexact_out, strict=True) if on)
    refs = getattr(rule, "refs", ())
    info_lin = CustomLinInfo(len(held), kinds, backward, info.name, refs=refs)
    linear = iter(results(UOp(Op.CUSTOM_LIN, (*held, *given), info_lin)))
    outs = [next(linear) if on else None for on in inexact_out]
    cut = getattr(rule, "cut", ())
    outs = [None if i in cut else t for i, t in enumerate(outs)]
    primal = tuple_of(inserted(values[:number], out_place, token))
    return primal, inserted(outs, out_place, None)


def values_apart(body: UOp, avals: Sequence[Aval], arguments: int, count: int) -> UOp:
    """The body of a jvp rule whose first `count` results, the values, come of other steps than the
    tangents, which are linear in those given (the parameters behind the first `arguments`). The body
    as it is where that cannot be had.

    A step that computes both, such as a loop over both, is the same linear function as its own
    derivative in the tangents, which is computed from residuals.
    """
    if not reads_more(tuple_of(body.src[:count]), arguments):
        return body
    key = ("values apart", arguments, count, state.linear)
    found: UOp | None = body.derived.get(key)
    if found is None:
        found = body.derived[key] = _values_apart(body, avals, arguments, count)
    return found


def _values_apart(body: UOp, avals: Sequence[Aval], arguments: int, count: int) -> UOp:
    place = token_of(body.src)
    params, outs = open_vars(body, [*avals, TOKEN])
    dots, token = params[arguments:-1], params[-1:] if place is not None else []
    sees = depends_on([], [d.arg for d in dots])
    if place is not None:  # effects that see tangents leave a call that computes values
        outs = open_calls(outs, lambda inner: inner.kind == "jit" and inner.rule is None)
        if not any(map(sees, outs[:count])):
            return reclose(outs, [*params[:-1], *token])
    moving = [fresh_var(d.aval) for d in dots]
    values, touts, grows = jvp_of_body(params, outs, dict(zip(dots, moving, strict=True)))
    linear = [
        v if i < count or i == place else instantiate(t, v)
        for i, (v, t) in enumerate(zip(values, touts, strict=True))
    ]
    linear = list(prune(tuple_of(linear)).src)
    if grows or any(map(sees, linear)):
        return body
    return reclose(linear, [*params[:arguments], *moving, *token])


def refuse_tangents(body: UOp, arguments: int, count: int, name: str) -> None:
    """Raise ValueError for a jvp rule in reverse mode if its values see tangents, which come later."""
    if sees_tangents(body, arguments, count):
        raise ValueError(
            "Linearization failed to produce known values for all output primals: the values that the "
            f"jvp rule of {name} returns depend on tangents.\n"
            "  Let only the second of the two things that it returns depend on them, or use jax.jvp."
        )


def custom_lin_jvp(node: UOp, dsrc: Sequence[Tangent]) -> Result:
    """Linear in the tangent inputs; the residuals' dependence is unknown to a vjp rule."""
    info: CustomLinInfo = node.arg
    held = info.num_residuals
    if any(d is not None for d in dsrc[:held]):
        if info.forward is not None:
            values = tuple_of(open_body(info.forward, node.src))
            seeds = {fresh_var(s.aval): (s, d) for s, d in zip(node.src, dsrc, strict=True)}
            outs = open_body(info.forward, list(seeds))
            _, touts = jvp(outs, {v: d for v, (_, d) in seeds.items() if d is not None})
            back = {v: s for v, (s, _) in seeds.items()}
            return values, [None if t is None else substitute([t], back)[0] for t in touts]
        raise TypeError(
            f"can't apply forward-mode differentiation (jvp) to a custom_vjp function: "
            f"{info.name or 'it'} has only a vjp rule. Give it a jvp rule too "
            "(f.defjvp), or use reverse mode."
        )
    given = [instantiate(d, s) for d, s in zip(dsrc[held:], node.src[held:], strict=True)]
    return node, list(results(UOp(Op.CUSTOM_LIN, (*node.src[:held], *given), info)))


# --- SCAN ------------------------------------------------------------------------------------------------


def scan_jvp(node: UOp, dsrc: Sequence[Tangent]) -> Result:
    """A scan that also stacks residuals, and a scan over tangents.

    Residuals that depend on consts alone are computed once outside; those that are consts or xs are
    not stacked again.
    """
    info: ScanInfo = node.arg
    body, args, tangents = node.src[0], node.src[1:], list(dsrc[1:])
    nc, nk = info.num_consts, info.num_carry
    avals = slice_avals(args, info)
    active = [
        t is not None and dtypes.is_inexact(a.dtype) for t, a in zip(tangents, args, strict=True)
    ]
    while True:
        made = scan_parts(body, avals, tuple(active))
        if made.grows:
            return widened(node, dsrc, scan_jvp)
        grown = [
            on or made.out_tangents[i] is not None for i, on in enumerate(active[nc : nc + nk])
        ]
        if grown == active[nc : nc + nk]:
            break
        active[nc : nc + nk] = grown
    if made.joint:
        groups = [nc, nk, len(args) - nc - nk], [nk, len(made.outputs) - nk]
        bodies, operands, parts = joint(node, tangents, [made], *groups)
        wider = replace(
            info,
            num_consts=nc + sum(active[:nc]),
            num_carry=nk + sum(active[nc : nc + nk]),
        )
        return parts(UOp(Op.SCAN, (*bodies, *operands), wider))
    consts = made.params[:nc]
    own_consts = frozenset(p.arg for p in consts)
    const_part = [r for r in made.residuals if r.free <= own_consts]
    step_part = [r for r in made.residuals if not r.free <= own_consts]
    # Forward: ys, then stacked residuals that are neither an x nor already a y.
    where: dict[UOp, tuple[str, int]] = {}
    for i, y in enumerate(made.outputs[nk:]):
        where.setdefault(y, ("y", i))
    for i, x in enumerate(made.params[nc + nk :]):
        where[x] = ("x", i)
    extra: list[UOp] = []
    for r in step_part:
        if r not in where:
            where[r] = ("y", len(made.outputs) - nk + len(extra))
            extra.append(r)
    key = ("scan forward", tuple(active), state.linear)
    forward_body = body.derived.get(key)
    if forward_body is None:
        forward_body = reclose([*made.outputs, *extra], made.params)
        body.derived[key] = forward_body
    forward = UOp(Op.SCAN, (forward_body, *args), info)
    xs = args[nc + nk :]
    held = [
        get(forward, nk + i) if kind == "y" else xs[i] for kind, i in (where[r] for r in step_part)
    ]
    const_values = substitute(const_part, dict(zip(consts, args[:nc], strict=True)))
    # Linear: consts are (const residuals, tangents of consts); xs are (residuals, tangents of xs).
    key = ("scan linear", tuple(active), state.linear)
    linear_body = body.derived.get(key)
    starts, lasts = ([], []) if made.late is None else ([made.late[0]], [made.late[1]])
    t_consts = [t for t in made.tangents[:nc] if t is not None]
    t_carry = [t for t in made.tangents[nc : nc + nk] if t is not None]
    t_xs = [t for t in made.tangents[nc + nk :] if t is not None]
    if linear_body is None:
        hold_const = [fresh_var(r.aval) for r in const_part]
        hold_step = [fresh_var(r.aval) for r in step_part]
        outs = [
            instantiate(t, o)
            for t, o, on in zip(
                made.out_tangents[:nk], made.outputs, active[nc : nc + nk], strict=False
            )
            if on
        ]
        outs += [*lasts, *(t for t in made.out_tangents[nk:] if t is not None)]
        roots = substitute(
            outs, dict(zip([*const_part, *step_part], [*hold_const, *hold_step], strict=True))
        )
        carried = [*t_consts, *t_carry, *starts]
        linear_body = reclose(roots, [*hold_const, *carried, *hold_step, *t_xs])
        body.derived[key] = linear_body
    given = [instantiate(t, a) for t, a, on in zip(tangents, args, active, strict=True) if on]
    ca, ka = sum(active[:nc]), sum(active[nc : nc + nk])
    known = [get(forward, i) for i in range(len(made.outputs))]
    place = token_of(known)
    token = [known[place or 0]] if starts else []
    linear = UOp(
        Op.SCAN,
        (linear_body, *const_values, *given[: ca + ka], *token, *held, *given[ca + ka :]),
        replace(info, num_consts=len(const_values) + ca, num_carry=ka + len(token)),
    )
    values = iter(results(linear))
    out: list[Tangent] = [next(values) if on else None for on in active[nc : nc + nk]]
    if token:
        known[place or 0] = next(values)
    out += [next(values) if t is not None else None for t in made.out_tangents[nk:]]
    return tuple_of(known), out


def scan_parts(body: UOp, avals: Sequence[Aval], active: tuple[bool, ...]) -> Parts:
    """`take_apart`, remembered."""
    key = ("scan parts", active, state.linear)
    if key not in body.derived:
        body.derived[key] = take_apart(body, avals, active)
    return body.derived[key]  # type: ignore[no-any-return]


# --- WHILE -------------------------------------------------------------------------------------------------


def while_jvp(node: UOp, dsrc: Sequence[Tangent]) -> Result:
    """A loop over primals, and one that carries primals and tangents, read for its tangents.

    Effects are in the first, or if they cannot be there is only the second. Where the linear part is
    to be apart (linearize), it is the second loop with all effects again, as in JAX.
    """
    info = node.arg
    cond, body = node.src[:2]
    args, tangents = node.src[2:], list(dsrc[2:])
    cc, bc = info.cond_consts, info.body_consts
    cond_consts, body_consts, carry = args[:cc], args[cc : cc + bc], args[cc + bc :]
    t_consts, t_carry = tangents[cc : cc + bc], tangents[cc + bc :]
    const_on = tuple(t is not None for t in t_consts)
    on = [t is not None for t in t_carry]
    while True:
        params, outs = open_vars(body, [a.aval for a in (*body_consts, *carry)])
        dots = [
            fresh_var(tangent_aval(p.aval)) if flag and dtypes.is_inexact(p.dtype) else None
            for p, flag in zip(params, (*const_on, *on), strict=True)
        ]
        seeds = {p: t for p, t in zip(params, dots, strict=True) if t is not None}
        outs, touts, grows = jvp_of_body(params, outs, seeds)
        if grows:
            return widened(node, dsrc, while_jvp)
        grown = [flag or t is not None for flag, t in zip(on, touts, strict=True)]
        if grown == on:
            break
        on = grown
    if not any(on):
        return node, [None] * len(carry)
    d_consts = [t for t in dots[:bc] if t is not None]
    d_carry = [t for t in dots[bc:] if t is not None]
    moved = [instantiate(t, o) for t, o, flag in zip(touts, outs, on, strict=True) if flag]
    new_body = reclose([*outs, *moved], [*params[:bc], *d_consts, *params[bc:], *d_carry])
    given_consts = [t for t in t_consts if t is not None]
    given_carry = [instantiate(t, c) for t, c, flag in zip(t_carry, carry, on, strict=True) if flag]
    loop = UOp(
        Op.WHILE,
        (cond, new_body, *cond_consts, *body_consts, *given_consts, *carry, *given_carry),
        replace(info, body_consts=bc + len(given_consts)),
    )
    count = len(carry)
    values = results(loop)
    place = token_of(carry)
    if place is not None and state.linear is not None:
        known_outs, _, _ = known_apart(outs, touts, [*d_consts, *d_carry])
        known = results(UOp(Op.WHILE, (cond, reclose(known_outs, params), *args), info))
        at = len(loop.src) - len(loop.operands) + (token_of(loop.operands) or 0)
        applied = state.linear == "applied"
        token = known[place] if applied else START
        values = results(loop.with_src((*loop.src[:at], token, *loop.src[at + 1 :])))
        primal = tuple_of(
            inserted(without(known, place), place, (values if applied else known)[place])
        )
    elif any(map(depends_on(outs, [t.arg for t in (*d_consts, *d_carry)]), outs)):
        primal = tuple_of(values[:count])
    else:  # what rules compute stands for what their functions do
        primal = tuple_of(results(UOp(Op.WHILE, (cond, reclose(outs, params), *args), info)))
        if place is not None:
            try:
                values = results(SPLIT[Op.WHILE](loop, loop.src, loop.src, QUIET).replay)
            except Unkept:
                primal = tuple_of(values[:count])
    out: list[Tangent] = []
    for flag in on:
        out.append(values[count] if flag else None)
        count += flag
    return primal, out


# --- COND ----------------------------------------------------------------------------------------------------


def cond_jvp(node: UOp, dsrc: Sequence[Tangent]) -> Result:
    """Branches that also return residuals, and linear branches."""
    number = node.arg
    branches, index, args = node.src[:number], node.src[number], node.src[number + 1 :]
    tangents = list(dsrc[number + 1 :])
    avals = [a.aval for a in args]
    active = tuple(
        t is not None and dtypes.is_inexact(a.dtype) for t, a in zip(tangents, args, strict=True)
    )
    made = [scan_parts(br, avals, active) for br in branches]
    if any(m.grows for m in made):
        return widened(node, dsrc, cond_jvp)
    if any(m.joint for m in made):
        groups = [len(args)], [len(branches[0].src)]
        bodies, operands, parts = joint(node, tangents, made, *groups)
        return parts(UOp(Op.COND, (*bodies, index, *operands), number))
    key = ("cond parts", branches[1:], active, state.linear)
    split = branches[0].derived.get(key)
    if split is None:
        split = branches[0].derived[key] = linear_branches(made)
    forward = UOp(Op.COND, (*split.forward, index, *args), number)
    given = [instantiate(t, a) for t, a, on in zip(tangents, args, active, strict=True) if on]
    n_out, n_all = len(branches[0].src), len(split.forward[0].src)
    outs = [get(forward, i) for i in range(n_out)]
    held_values = [get(forward, i) for i in range(n_out, n_all)]
    place, at = token_of(args), token_of(outs) or 0
    token = [outs[at]] if split.late else []
    rest = [*held_values, *without(args, place), *given, *token]
    linear = UOp(Op.COND, (*split.linear, index, *rest), number)
    values = iter(results(linear))
    touts = [next(values) if on else None for on in split.nonzero]
    if split.late:
        outs[at] = next(values)
    return tuple_of(outs), touts


@dataclass(frozen=True, slots=True)
class LinearBranches:
    """Bodies of the two COND nodes: `forward` ones give outputs and residuals, `linear` ones take
    residuals, known arguments and tangents; which outputs have tangents; `LinearCall.late`."""

    forward: list[UOp]
    linear: list[UOp]
    nonzero: list[bool]
    late: bool


def linear_branches(made: Sequence[Parts]) -> LinearBranches:
    """Bodies from the parts of each branch; one list of residual slots serves all of them, shared
    where avals agree."""
    place = token_of(made[0].params)
    late = any(m.late is not None for m in made)
    columns = zip(*(m.out_tangents for m in made), strict=True)
    nonzero = [any(t is not None for t in column) for column in columns]
    params = [set(m.params) for m in made]
    rest = [[r for r in m.residuals if r not in own] for m, own in zip(made, params, strict=True)]
    slots, places = shared_slots(rest)
    forward_bodies, linear_bodies = [], []
    for m, values, spots in zip(made, rest, places, strict=True):
        forward_bodies.append(reclose([*m.outputs, *in_slots(values, spots, slots)], m.params))
        held = [fresh_var(s) for s in slots]
        args_held = [fresh_var(p.aval) for p in m.params]
        kept = set(m.residuals)
        mapping = {p: v for p, v in zip(m.params, args_held, strict=True) if p in kept}
        mapping |= {r: held[i] for r, i in zip(values, spots, strict=True)}
        start, last = m.late or (fresh_var(TOKEN),) * 2
        dots = [t for t in m.tangents if t is not None]
        roots = [
            instantiate(t, o)
            for t, o, on in zip(m.out_tangents, m.outputs, nonzero, strict=True)
            if on
        ]
        roots = substitute([*roots, *[last] * late], mapping)
        body = reclose(roots, [*held, *without(args_held, place), *dots, *[start] * late])
        linear_bodies.append(body)
    return LinearBranches(forward_bodies, linear_bodies, nonzero, late)


# --- values that are known already ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Advanced:
    """A node with effects, taken apart before its derivative is asked for.

    Closed bodies: `known` of the operands, the token last, gives the outputs, the residuals of the
    derivative, and a token; `forward` the same without effects; `quiet` the outputs alone.
    `rule` is what derives the latter: its tangents are computed from the results of `forward`.
    """

    known: UOp
    forward: UOp
    quiet: UOp
    rule: AheadRule


class AheadRule:
    """The rule of a call that was taken apart ahead with respect to some inexact arguments.

    `made` is its derivative with respect to these, `plain` a body that has those to any.
    """

    has_jvp, has_vjp = True, False

    def __init__(
        self, flags: tuple[bool, ...], made: tuple[UOp, tuple[bool, ...]], plain: UOp
    ) -> None:
        self.flags, self.made, self.plain = flags, made, plain

    def jvp_body(self, avals: Sequence[Aval], zero: tuple[bool, ...]) -> tuple[UOp, Any]:
        """(args, tangents of inexact ones) -> (outputs, tangents that are not zero); which are zero."""
        if all(flag or is_zero for flag, is_zero in zip(self.flags, zero, strict=True)):
            return self.made
        params, outs = open_vars(self.plain, avals)
        seeds = {p: fresh_var(tangent_aval(p.aval)) for p in params if dtypes.is_inexact(p.dtype)}
        outs, touts = jvp(outs, seeds)
        live = [t for t in touts if t is not None]
        return reclose([*outs, *live], [*params, *seeds.values()]), zero_tangents(outs, touts)


def zero_tangents(outs: Sequence[UOp], touts: Sequence[Tangent]) -> tuple[bool, ...]:
    """For each inexact output whether its tangent is zero."""
    return tuple(t is None for o, t in zip(outs, touts, strict=True) if dtypes.is_inexact(o.dtype))


def taken_ahead(node: UOp, flags: Sequence[bool], what: str | None) -> Advanced | None:
    """Take a call, scan or branch with effects, of variables, apart with respect to the operands flagged;
    `what` happens to the linear part (`trace.linear_apart`).

    None if that needs what its callbacks return, if effects come with the linear part, and for while
    loops.
    """
    place, out = token_of(node.operands), token_of(results(node))
    if not any(flags) or node.op is Op.WHILE:
        return None
    if SPLIT[node.op](node, node.src, node.src, TAPED).kept:
        return None
    dots = [
        fresh_var(tangent_aval(s.aval)) if on and dtypes.is_inexact(s.dtype) else None
        for s, on in zip(node.operands, flags, strict=True)
    ]
    with linear_apart(what), open_chain() as chain:
        primal, touts = BODY_JVP[node.op](node, [*[None] * len(node.bodies), *dots])
    outs, token = without(results(primal), out), results(primal)[out or 0]
    touts = without(touts, out)
    if chain.last is not None or depends_on([token], [d.arg for d in dots if d is not None])(token):
        return None
    roots = [t for t in touts if t is not None]
    given, dots = without(node.operands, place), without(dots, place)
    frontier = known_frontier(roots, [d for d in dots if d is not None])
    frontier = [n for n in frontier if n not in given and n.op not in LITERALS]
    params = [*given, node.operands[place or 0]]
    known = reclose([*outs, *frontier, token], params)
    forward = quiet(known, [p.aval for p in given])
    values = results(UOp(Op.CALL, (forward, *given), CallInfo("jit", "forward")))
    live = substitute(roots, dict(zip(frontier, values[len(outs) :], strict=True)))
    inexact = [i for i, p in enumerate(given) if dtypes.is_inexact(p.dtype)]
    seeds = [dots[i] or fresh_var(tangent_aval(given[i].aval)) for i in inexact]
    made = reclose([*values[: len(outs)], *live], [*given, *seeds]), zero_tangents(outs, touts)
    plain = quiet(reclose(results(node), params), [p.aval for p in given])
    rule = AheadRule(tuple(dots[i] is not None for i in inexact), made, plain)
    return Advanced(known, forward, reclose(values[: len(outs)], given), rule)


@dataclass(frozen=True, slots=True)
class Along:
    """A node with effects and its derivative along known tangents, in one step.

    Closed bodies: `known` of the operands but for the token, the tangents and the token gives outputs,
    tangents that are not zero, and a token; `forward` the same without effects; `quiet` the outputs of
    the operands alone. `rule` is what derives the latter, with the results of `forward`.
    """

    known: UOp
    forward: UOp
    quiet: UOp
    rule: AheadRule


def taken_along(node: UOp, flags: Sequence[bool]) -> Along | None:
    """A call, loop or branch with effects, of variables, with its derivative along tangents of the
    operands flagged. None if it needs what its callbacks return.

    Raises: Unkept if its results depend on tangents.
    """
    place, out = token_of(node.operands), token_of(results(node))
    assert place is not None and out is not None
    dots = [
        fresh_var(tangent_aval(s.aval)) if on and dtypes.is_inexact(s.dtype) else None
        for s, on in zip(node.operands, flags, strict=True)
    ]
    with linear_apart(None), open_chain():
        primal, touts = BODY_JVP[node.op](node, [*[None] * len(node.bodies), *dots])
    outs, touts = results(primal), without(touts, out)
    given, token = without(node.operands, place), node.operands[place]
    seeds = [d for d in dots if d is not None]
    live = [t for t in touts if t is not None]
    avals = [n.aval for n in (*given, *seeds)]
    known = reclose([*without(outs, out), *live, outs[out]], [*given, *seeds, token])
    plain = reclose(results(node), [*given, token])
    if split(known, [*avals, TOKEN]).kept or split(plain, [*avals[: len(given)], TOKEN]).kept:
        return None
    forward, plain = quiet(known, avals), quiet(plain, avals[: len(given)])
    if sees_tangents(forward, len(given), len(outs) - 1):
        raise Unkept
    values = results(UOp(Op.CALL, (forward, *given, *seeds), CallInfo("jit", "forward")))
    count = len(outs) - 1
    inexact = [i for i, p in enumerate(given) if dtypes.is_inexact(p.dtype)]
    mine = without(dots, place)
    every = [mine[i] or fresh_var(tangent_aval(given[i].aval)) for i in inexact]
    derived = reclose(values, [*given, *every]), zero_tangents(without(outs, out), touts)
    rule = AheadRule(tuple(mine[i] is not None for i in inexact), derived, plain)
    alone = reclose(open_body(plain, given)[:count], given)
    return Along(known, forward, alone, rule)


# --- the outside world -----------------------------------------------------------------------------------------


def callback_jvp(node: UOp, dsrc: Sequence[Tangent]) -> Result:
    """A Python callback has no derivative of its own; a debug callback sees the primal value."""
    if node.arg.kind == "debug":
        return node, [None] * len(node.aval.elts)
    refuse_derivative(node)


def check_jvp(node: UOp, dsrc: Sequence[Tangent]) -> Result:
    """A check has no results but its token."""
    return node, [None]


def kernel_jvp(node: UOp, dsrc: Sequence[Tangent]) -> Result:
    """A kernel written by hand needs a rule written by hand."""
    raise NotImplementedError("a custom kernel has no derivative; wrap it in custom_vjp")


BODY_JVP: dict[Op, Callable[[UOp, Sequence[Tangent]], Result]] = {
    Op.CALL: call_jvp,
    Op.SCAN: scan_jvp,
    Op.WHILE: while_jvp,
    Op.COND: cond_jvp,
    Op.CUSTOM_LIN: custom_lin_jvp,
    Op.CALLBACK: callback_jvp,
    Op.HOST_CALL: host_call_jvp,
    Op.CHECK: check_jvp,
    Op.KERNEL: kernel_jvp,
}
