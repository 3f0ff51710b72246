"""Flat body -> flat body in the normal form that fusion expects: one bottom-up walk.

* Values without elements are constants of no consequence: reductions over nothing become the
  identity, updates by nothing the operand, joins with nothing the rest.
* Every DOT is [B,M,K] x [B,K,N] (dot_layout.py).
* A large fold into few results becomes two: partial results that threads share out, then their
  fold. The number of parts depends on the shape only, so results do not depend on the machine.
"""

from __future__ import annotations

import math

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const, toposort, tuple_of
from tinyjax.lowering import costs
from tinyjax.lowering.dot_layout import canonical_dot

FEW_RESULTS = 32
MOST_PARTS = 64


def prepare(body: UOp) -> UOp:
    """The normal form of a flat body; kept on the body."""
    found: UOp | None = body.derived.get("prepare")
    if found is None:
        done: dict[UOp, UOp] = {}
        for node in toposort(body.src):
            src = (*node.bodies, *(done[s] for s in node.operands))
            done[node] = _prepare_node(node if src == node.src else node.with_src(src))
        found = tuple_of([done[o] for o in body.src])
        body.derived["prepare"] = found
    return found


def _prepare_node(n: UOp) -> UOp:
    op = n.op
    if op is Op.DOT:
        if 0 in n.src[0].aval.shape or 0 in n.src[1].aval.shape:
            return _full(n.aval, 0)
        return canonical_dot(n.src[0], n.src[1], n.arg)
    if op is Op.REDUCE:
        x = n.src[0]
        if not x.aval.size:
            return _full(n.aval, identity_of(n.arg[0], n.aval.dtype))
        return _split_fold(n)
    if not isinstance(n.aval, Aval) or not n.src:
        return n
    if op is Op.PAD and not n.src[0].aval.size:
        return UOp(Op.EXPAND, (n.src[1],), (n.aval.shape, ()))
    if op in (Op.SCATTER, Op.DYNAMIC_UPDATE):
        update = n.src[2] if op is Op.SCATTER else n.src[1]
        return n if update.aval.size else n.src[0]
    if op is Op.CONCAT and any(not s.aval.size for s in n.src):
        kept = tuple(s for s in n.src if s.aval.size)
        return UOp(Op.CONCAT, kept, n.arg) if len(kept) > 1 else (kept or n.src)[0]
    return n


def _full(of: Aval, value: object) -> UOp:
    scalar = const(value, of.dtype)
    return UOp(Op.EXPAND, (scalar,), (of.shape, ())) if of.shape else scalar


def identity_of(kind: str, dtype: object) -> object:
    """What a fold of no elements gives."""
    if kind in ("add", "or", "xor"):
        return 0
    if kind == "mul":
        return 1
    if dtypes.is_bool(dtype):
        return kind in ("and", "min")
    if kind == "and":
        return int(np.bitwise_not(np.zeros((), dtype)))  # type: ignore[call-overload]
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        return int(info.min if kind == "max" else info.max)
    return -math.inf if kind == "max" else math.inf


def _split_fold(n: UOp) -> UOp:
    """fold(x) -> fold over parts of (fold within each part)"""
    x = n.src[0]
    kind, axes = n.arg
    shape = x.aval.shape
    if n.aval.size > FEW_RESULTS or x.aval.size < costs.PARTIAL_FOLD:
        return n
    axis = max(axes, key=lambda a: (shape[a], -a))
    parts = next((p for p in range(MOST_PARTS, 7, -1) if shape[axis] % p == 0), 0)
    if parts == 0 or parts == shape[axis] and len(axes) == 1:
        return n
    split = (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :])
    wide = UOp(Op.RESHAPE, (x,), split)
    inner = tuple(sorted((*(a if a < axis else a + 1 for a in axes if a != axis), axis + 1)))
    partial = UOp(Op.REDUCE, (wide,), (kind, inner))
    place = axis - sum(a < axis for a in axes)
    return UOp(Op.REDUCE, (partial,), (kind, (place,)))
