"""Closed bodies: PARAM inputs, TUPLE outputs, alpha-normal, so two traces of the same maths are one object.

`close` turns nodes over open variables into a body; what the nodes take from outside (values in
memory, nodes of outer traces) becomes further arguments, never constants. `inline` is its inverse.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinyjax.core import sites
from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, Var, param, substitute, toposort, tuple_of

_fresh = itertools.count(1)


def fresh_id() -> int:
    """An id no other node has: REMAT and pure callbacks use it to stay apart from equal nodes."""
    return next(_fresh)


def close(
    outputs: Sequence[UOp],
    variables: Sequence[UOp],
    keep_memory: bool = False,
    last: Sequence[UOp] = (),
    table: sites.Table | None = None,
    computed_here: Callable[[UOp], bool] | None = None,
) -> tuple[UOp, list[UOp]]:
    """The body computing `outputs` from `variables`, and the captured nodes, its further arguments.

    Parameters are numbered: first `variables` in order, then captures in order of first use, then
    the variables in `last`. What is known of the nodes' sources is entered into `table`.
    A node of outer traces that does not depend on `variables` is captured as a whole (so what does
    not change in a loop is computed before it), unless it was `computed_here`. A value in memory is
    captured unless `keep_memory` (bodies of derivative rules keep theirs as leaves).
    """
    own = frozenset(v.arg for v in (*variables, *last))
    mapping: dict[UOp, UOp] = {v: param(i, v.aval) for i, v in enumerate(variables)}
    ids = itertools.count(1)

    def foreign(n: UOp) -> bool:
        if n.op is Op.BUFFER:
            return not keep_memory
        if not n.free or not own.isdisjoint(n.free):
            return False
        return n.op is Op.VAR or computed_here is None or not computed_here(n)

    order = _walk_until(outputs, foreign)
    captured = [n for n in order if foreign(n)]
    for i, node in enumerate((*captured, *last)):
        mapping[node] = param(len(variables) + i, node.aval)
    for node in order:
        if node in mapping:
            continue
        src = tuple(mapping.get(s, s) for s in node.src)
        arg = node.arg
        if node.op is Op.REMAT:
            arg = next(ids)
        elif node.op is Op.CALLBACK and arg.pure:
            arg = replace(arg, sequence=next(ids))
        if src == node.src and arg == node.arg:
            mapping[node] = node
        else:
            mapping[node] = UOp(node.op, src, arg)
    body = tuple_of([mapping[o] for o in outputs])
    own_sites = sites.closed(body, mapping)
    if table is not None:
        table.update(own_sites)
    return body, captured


def sources(body: UOp) -> sites.Table:
    """A source per node of a body, as far as any is known."""
    return inherited(body.src, body.derived.get(sites.KEY, {}))


def inherited(roots: Sequence[UOp], table: Mapping[UOp, Any]) -> sites.Table:
    """`table` with a source for each node that a node with one reads."""
    found: dict[UOp, Any] = {}
    for node in reversed(toposort(roots)) if table else ():
        source = table.get(node) or found.get(node)
        if source is None:
            continue
        found[node] = source
        for s in node.operands:
            if s.src and s not in table:
                found.setdefault(s, source)
    return found


def reclose(outputs: Sequence[UOp], variables: Sequence[UOp]) -> UOp:
    """`close` for what was derived from a closed body: there is nothing to capture."""
    body, captured = close(outputs, variables, keep_memory=True)
    assert not captured, f"a derived body mentions foreign variables: {captured}"
    return body


def hoist_memory(body: UOp, count: int) -> tuple[UOp, list[UOp]]:
    """`body` (of `count` parameters) with its memory leaves as further parameters, and those leaves.

    Bodies inside are treated alike; their leaves become arguments of the node that holds them. A
    CUSTOM_LIN whose forward body has some becomes a call of it.
    Only bodies of derivative rules have memory leaves, so most calls return at once.
    """
    if not _has_memory(body):
        return body, []
    found = body.derived.get(("hoist", count))
    if found is not None:
        return found  # type: ignore[no-any-return]
    leaves: dict[UOp, UOp] = {}
    mapping: dict[UOp, UOp] = {}

    def lifted(leaf: UOp) -> UOp:
        if leaf not in leaves:
            leaves[leaf] = param(count + len(leaves), leaf.aval)
        return leaves[leaf]

    for node in toposort(body.src):
        if node.op is Op.BUFFER:
            mapping[node] = lifted(node)
        elif node.bodies or _has_memory_inside(node):
            operands = tuple(mapping[s] for s in node.operands)
            mapping[node] = _hoist_node(node, operands, lifted)
        else:
            mapping[node] = node.with_src(tuple(mapping[s] for s in node.src))
    out = (tuple_of([mapping[o] for o in body.src]), list(leaves))
    body.derived[("hoist", count)] = out
    return out


def _has_memory(body: UOp) -> bool:
    found = body.derived.get("has memory")
    if found is None:
        nodes = toposort(body.src, bodies=True)
        found = any(n.op is Op.BUFFER or _has_memory_inside(n) for n in nodes)
        body.derived["has memory"] = found
    return bool(found)


def _has_memory_inside(node: UOp) -> bool:
    """Whether it is a linear function of the user's that has memory leaves."""
    forward = node.arg.forward if node.op is Op.CUSTOM_LIN else None
    return forward is not None and _has_memory(forward)


def _hoist_node(node: UOp, operands: tuple[UOp, ...], lifted: Any) -> UOp:
    """A node with bodies, the memory leaves of its bodies among its operands."""
    if node.op is Op.CUSTOM_LIN:
        call = UOp(Op.CALL, (node.arg.forward, *operands), CallInfo("jit", node.arg.name))
        return _hoist_node(call, operands, lifted)
    if not any(_has_memory(inner) for inner in node.bodies):
        return UOp(node.op, (*node.bodies, *operands), node.arg)
    if node.op is Op.WHILE:
        cc, bc = node.arg.cond_consts, node.arg.body_consts
        carry = operands[cc + bc :]
        cond, c_extra = _hoist_at(node.src[0], cc, len(carry))
        body, b_extra = _hoist_at(node.src[1], bc, len(carry))
        src = (cond, body, *operands[:cc], *map(lifted, c_extra), *operands[cc : cc + bc])
        info = replace(node.arg, cond_consts=cc + len(c_extra), body_consts=bc + len(b_extra))
        return UOp(Op.WHILE, (*src, *map(lifted, b_extra), *carry), info)
    if node.op is Op.SCAN:
        nc = node.arg.num_consts
        body, extra = _hoist_at(node.src[0], nc, len(operands) - nc)
        info = replace(node.arg, num_consts=nc + len(extra))
        return UOp(Op.SCAN, (body, *operands[:nc], *map(lifted, extra), *operands[nc:]), info)
    if node.op is Op.CALL:
        body, extra = hoist_memory(node.src[0], len(operands))
        return UOp(Op.CALL, (body, *operands, *map(lifted, extra)), node.arg)
    args = operands[1:]
    every: dict[UOp, None] = {}
    for branch in node.bodies:
        every.update(dict.fromkeys(hoist_memory(branch, len(args))[1]))
    order = list(every)
    branches = []
    for branch in node.bodies:
        new, extra = hoist_memory(branch, len(args))
        slots = {len(args) + i: len(args) + order.index(e) for i, e in enumerate(extra)}
        branches.append(_renumber(new, slots))
    return UOp(Op.COND, (*branches, operands[0], *args, *map(lifted, order)), node.arg)


def _hoist_at(body: UOp, position: int, after: int) -> tuple[UOp, list[UOp]]:
    """`hoist_memory` with the new parameters at `position`, before the last `after` ones."""
    new, extra = hoist_memory(body, position + after)
    slots = {i: i + len(extra) for i in range(position, position + after)}
    slots |= {position + after + i: position + i for i in range(len(extra))}
    return _renumber(new, slots), extra


def _renumber(body: UOp, slots: dict[int, int]) -> UOp:
    """The body with parameters at other slots."""
    mapping = {
        n: param(slots[n.arg[0]], n.arg[1])
        for n in toposort(body.src)
        if n.op is Op.PARAM and slots.get(n.arg[0], n.arg[0]) != n.arg[0]
    }
    return tuple_of(substitute(body.src, mapping))


def outer_variables(outputs: Sequence[UOp], variables: Sequence[UOp]) -> list[UOp]:
    """Variables that `outputs` mention beside `variables`, in order of first use."""
    own = set(variables)
    return [
        n for n in toposort(outputs, keep=lambda m: bool(m.free)) if n.op is Op.VAR and n not in own
    ]


def _walk_until(roots: Sequence[UOp], stop: Any) -> list[UOp]:
    """Topological order that does not look behind nodes for which `stop` holds."""
    order: list[UOp] = []
    seen: set[UOp] = set()
    stack = list(roots)[::-1]
    while stack:
        node = stack[-1]
        if node in seen:
            stack.pop()
            continue
        pending = [] if stop(node) else [s for s in node.operands if s not in seen]
        if pending:
            stack.extend(reversed(pending))
        else:
            seen.add(node)
            order.append(node)
            stack.pop()
    return order


def open_body(body: UOp, args: Sequence[UOp]) -> list[UOp]:
    """The outputs of `body` applied to `args`; REMAT ids and pure callbacks become fresh ones.

    Cost: one walk over the body.
    """
    mapping: dict[UOp, UOp] = {}
    for node in toposort(body.src):
        if node.op is Op.PARAM:
            mapping[node] = args[node.arg[0]]
            continue
        src = tuple(mapping[s] if s in mapping else s for s in node.src)
        if node.op is Op.REMAT:
            mapping[node] = UOp(Op.REMAT, src, fresh_id())
        elif node.op is Op.CALLBACK and node.arg.pure:
            mapping[node] = UOp(node.op, src, replace(node.arg, sequence=fresh_id()))
        elif src == node.src:
            mapping[node] = node
        else:
            mapping[node] = _rebuild(node, src)
    sites.opened(body, mapping)
    return [mapping[o] for o in body.src]


def substitute_params(body: UOp, args: Sequence[UOp]) -> list[UOp]:
    """The outputs of `body` applied to `args`, for its one use: nothing becomes fresh."""
    params = [n for n in toposort(body.src) if n.op is Op.PARAM]
    return substitute(body.src, {p: args[p.arg[0]] for p in params})


def _rebuild(node: UOp, src: tuple[UOp, ...]) -> UOp:
    if node.op is Op.GETTUPLE and src[0].op is Op.TUPLE:
        found: UOp = src[0].src[node.arg]
        return found
    return UOp(node.op, src, node.arg)


def open_vars(body: UOp, avals: Sequence[Any]) -> tuple[list[UOp], list[UOp]]:
    """`body` over fresh unbound variables of these avals: (variables, outputs). For graph rewrites."""
    variables = [fresh_var(a) for a in avals]
    return variables, open_body(body, variables)


def open_calls(outputs: Sequence[UOp], which: Callable[[Any], bool]) -> list[UOp]:
    """The outputs with calls, those inside of them too, replaced by what they compute.

    `which(info)` says of which calls; the bodies of loops and branches are left as they are.
    """
    roots = list(outputs)
    while any(n.op is Op.CALL and which(n.arg) for n in toposort(roots)):
        new: dict[UOp, UOp] = {}
        for node in toposort(roots):
            src = tuple(new.get(s, s) for s in node.src)
            if node.op is Op.CALL and which(node.arg):
                new[node] = tuple_of(open_body(src[0], src[1:]))
            else:
                new[node] = _rebuild(node, src)
        roots = [new[r] for r in roots]
    return roots


def fresh_var(of: Any) -> UOp:
    """A new unbound variable."""
    return UOp(Op.VAR, (), Var(of))


def params_of(body: UOp) -> dict[int, Any]:
    """Slots the body reads, with their avals."""
    return {n.arg[0]: n.arg[1] for n in toposort(body.src) if n.op is Op.PARAM}
