"""Is a function linear, up to constants? `linear_transpose` asks before it transposes.

A walk over a body with a flag per node, whether it depends on the linear arguments: a node that does
must be of an op that is linear in the operands that do. Constants may be added, as in JAX. It is a
question of form: `x * x / x` is not linear. Calls and loops are entered; custom rules are looked at
through their functions, a CUSTOM_LIN is linear by the word of whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinyjax.core import dtypes
from tinyjax.core.avals import TupleAval
from tinyjax.core.body import inherited, sources
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, token_of, toposort

Flags = tuple[bool, ...]

ALL = None
LINEAR: dict[Op, tuple[int, ...] | None] = {
    Op.NEG: ALL, Op.ADD: ALL, Op.SUB: ALL, Op.CAST: ALL, Op.REAL: ALL, Op.IMAG: ALL, Op.CONJ: ALL,
    Op.COMPLEX: ALL, Op.REDUCE_PRECISION: ALL, Op.RESHAPE: ALL, Op.PERMUTE: ALL, Op.EXPAND: ALL,
    Op.PAD: ALL, Op.SLICE: ALL, Op.FLIP: ALL, Op.CONCAT: ALL, Op.WINDOW: ALL, Op.REDUCE: ALL,
    Op.PREFIX: ALL, Op.FFT: ALL, Op.NAME: ALL, Op.OPTIMIZATION_BARRIER: ALL, Op.REMAT: ALL,
    Op.COPY: ALL, Op.PCAST: ALL, Op.TUPLE: ALL, Op.MUL: ALL, Op.DOT: ALL, Op.DIV: (0,),
    Op.WHERE: (1, 2), Op.GATHER: (0, 2), Op.SCATTER: (0, 2), Op.DYNAMIC_SLICE: (0,),
    Op.DYNAMIC_UPDATE: (0, 1), Op.HOST_CALL: (1,), Op.ALL_REDUCE: (0,), Op.ALL_GATHER: (0,),
    Op.REDUCE_SCATTER: (0,), Op.PPERMUTE: (0,), Op.ALL_TO_ALL: (0,),
}  # fmt: skip
"""The operands in which an op is linear, jointly but for `BILINEAR`. Others are not linear at all."""

BILINEAR = frozenset({Op.MUL, Op.DOT})
KINDS = {Op.REDUCE: ("add",), Op.PREFIX: ("add",), Op.ALL_REDUCE: ("add",)}
"""Ops whose `arg` begins with a kind, and those that are linear."""


class NotLinear(Exception):
    """A node is not linear in what it depends on; `source` says where it is from, None if unknown."""

    def __init__(self, node: UOp, source: Any) -> None:
        super().__init__(node, source)
        self.node, self.source = node, source


def dependence(body: UOp, linear: Flags, table: Mapping[UOp, Any] | None = None) -> Flags:
    """Which outputs depend on the parameters flagged. `table` has sources of nodes.

    Raises: `NotLinear`. Cost: one walk, remembered by the body.
    """
    key = ("linear in", linear)
    found = body.derived.get(key)
    if found is None:
        known = sources(body) if table is None else inherited(body.src, table)
        found = body.derived[key] = walk(body, linear, known)
    return found


def walk(body: UOp, linear: Flags, known: Mapping[UOp, Any]) -> Flags:
    """`dependence`, not remembered."""
    flags: dict[UOp, Flags] = {}
    for n in toposort(body.src):
        if n.op is Op.PARAM:
            flags[n] = (linear[n.arg[0]],)
            continue
        if n.op is Op.GETTUPLE:
            flags[n] = (flags[n.src[0]][n.arg],)
            continue
        given = tuple(flags[s][0] for s in n.operands)
        count = len(n.aval.elts) if isinstance(n.aval, TupleAval) else 1
        if not any(given) or (n.op in EFFECTS and token_of(n.operands) is not None):
            flags[n] = (False,) * count  # what is printed is none of the result
        elif n.op in INSIDE:
            found = INSIDE[n.op](n, given)
            if found is None:
                raise NotLinear(n, known.get(n))
            flags[n] = found
        elif not is_linear(n, given):
            raise NotLinear(n, known.get(n))
        else:
            flags[n] = (True,) * count
    return tuple(flags[o][0] for o in body.src)


EFFECTS = frozenset({Op.CALLBACK, Op.CHECK})


def is_linear(n: UOp, given: Flags) -> bool:
    """Whether a node is linear in the operands flagged."""
    places = LINEAR.get(n.op, ())
    on = [i for i, flag in enumerate(given) if flag]
    if places is not ALL and not set(on) <= set(places):
        return False
    if n.op in BILINEAR and len(on) > 1:
        return False
    if n.op in KINDS:
        return n.arg[0] in KINDS[n.op]
    if n.op is Op.SCATTER:
        return n.arg.kind in ("add", "set") or (n.arg.kind == "mul" and on == [0])
    if n.op is Op.DIV:
        return dtypes.is_inexact(n.dtype)
    if n.op is Op.CAST:
        kept = dtypes.is_inexact(n.dtype) or not dtypes.is_inexact(n.src[0].dtype)
        return kept and not dtypes.is_bool(n.dtype)
    return n.op is not Op.HOST_CALL or n.arg.routine in ("solve", "triangular_solve")


def in_call(n: UOp, given: Flags) -> Flags | None:
    return dependence(n.src[0], given)


def in_scan(n: UOp, given: Flags) -> Flags | None:
    """Carries that depend on the arguments after some step count as such from the start."""
    info = n.arg
    first = info.num_consts + info.num_carry
    carry = given[info.num_consts : first]
    while True:
        outs = dependence(n.src[0], (*given[: info.num_consts], *carry, *given[first:]))
        after = joined(carry, outs[: info.num_carry])
        if after == carry:
            return outs
        carry = after


def in_while(n: UOp, given: Flags) -> Flags | None:
    """The condition must not depend on the arguments."""
    cond, body = n.src[:2]
    lead, first = n.arg.cond_consts, n.arg.cond_consts + n.arg.body_consts
    carry = given[first:]
    while True:
        after = joined(carry, dependence(body, (*given[lead:first], *carry)))
        if after == carry:
            break
        carry = after
    return None if any(dependence(cond, (*given[:lead], *carry))) else carry


def in_cond(n: UOp, given: Flags) -> Flags | None:
    """The index must not depend on the arguments."""
    outs = [dependence(body, given[1:]) for body in n.bodies]
    return None if given[0] else tuple(map(any, zip(*outs, strict=True)))


def in_custom_lin(n: UOp, given: Flags) -> Flags | None:
    """Linear in all but its residuals."""
    count = n.arg.num_residuals
    return None if any(given[:count]) else (True,) * len(n.arg.out)


def joined(a: Sequence[bool], b: Sequence[bool]) -> Flags:
    """Where either holds."""
    return tuple(p or q for p, q in zip(a, b, strict=True))


INSIDE = {
    Op.CALL: in_call,
    Op.SCAN: in_scan,
    Op.WHILE: in_while,
    Op.COND: in_cond,
    Op.CUSTOM_LIN: in_custom_lin,
}
"""Which results depend on the arguments; None where the node is not linear in them."""
