"""Flat body -> flat body in the normal form that fusion expects: one bottom-up walk.

* Values without elements are constants that nothing is computed for: reductions over nothing
  become the identity, updates by nothing the operand, joins with nothing the rest.
* Sums of narrow floats by SCATTER are in float32.
* Every DOT is [B,M,K] x [B,K,N] (dot_layout.py), real, and of elements of at least a byte.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const, toposort, tuple_of
from tinyjax.lowering.dot_layout import canonical_dot


def prepare(body: UOp) -> UOp:
    """flat body -> normal form: nothing empty, DOTs real and of batches of matrices"""
    found: UOp | None = body.derived.get("prepare")
    if found is None:
        done: dict[UOp, UOp] = {}
        order = toposort(body.src)
        readers: dict[UOp, int] = {}
        for node in (*order, body):
            for s in node.src:
                readers[s] = readers.get(s, 0) + 1
        for node in order:
            swapped = _swapped_dot(node, done) if node.op is Op.PERMUTE else None
            if swapped is not None and readers[node.src[0]] == 1:
                done[node] = swapped
                continue
            src = (*node.bodies, *(done[s] for s in node.operands))
            done[node] = _prepare_node(node if src == node.src else node.with_src(src))
        found = tuple_of([done[o] for o in body.src])
        body.derived["prepare"] = found
    return found


def _prepare_node(n: UOp) -> UOp:
    op = n.op
    if isinstance(n.aval, Aval) and not n.aval.size and op is not Op.PARAM:
        return _full(n.aval, 0)
    if op is Op.DOT:
        if 0 in n.src[0].aval.shape or 0 in n.src[1].aval.shape:
            return _full(n.aval, 0)
        if dtypes.is_complex(n.aval.dtype):
            return _complex_dot(n)
        if any(
            dtypes.is_integer(x.aval.dtype) and dtypes.bit_width(x.aval.dtype) < 8 for x in n.src
        ):
            return _bytes_dot(n)
        return canonical_dot(n.src[0], n.src[1], n.arg)
    if op is Op.REDUCE:
        x = n.src[0]
        if not x.aval.size:
            return _full(n.aval, identity_of(n.arg[0], n.aval.dtype))
        return n
    if not isinstance(n.aval, Aval) or not n.src:
        return n
    if op is Op.PAD and not n.src[0].aval.size:
        return UOp(Op.EXPAND, (n.src[1],), (n.aval.shape, ()))
    if op in (Op.SCATTER, Op.DYNAMIC_UPDATE):
        update = n.src[2] if op is Op.SCATTER else n.src[1]
        return _wide_scatter(n) if update.aval.size else n.src[0]
    if op is Op.CONCAT and len(n.src) > 1 and len(set(n.src)) == 1:
        return repeated(n)
    if op is Op.CONCAT and any(not s.aval.size for s in n.src):
        kept = tuple(s for s in n.src if s.aval.size)
        return UOp(Op.CONCAT, kept, n.arg) if len(kept) > 1 else kept[0]
    return n


def _wide_scatter(n: UOp) -> UOp:
    """Sums and products of narrow floats in float32, rounded once, as everywhere."""
    dtype = n.aval.dtype
    if n.op is not Op.SCATTER or n.arg.kind not in ("add", "mul") or n.arg.unique_indices:
        return n
    if not dtypes.is_float(dtype) or dtypes.bit_width(dtype) >= 32:
        return n
    x, indices, updates = n.src
    wide = (np.dtype(np.float32), False)
    x, updates = UOp(Op.CAST, (x,), wide), UOp(Op.CAST, (updates,), wide)
    return UOp(Op.CAST, (UOp(Op.SCATTER, (x, indices, updates), n.arg),), (dtype, False))


def _swapped_dot(n: UOp, done: dict[UOp, UOp]) -> UOp | None:
    """permute(dot(x, y)) that exchanges their free axes -> dot(y, x)"""
    dot = n.src[0]
    if dot.op is not Op.DOT or dtypes.is_complex(dot.aval.dtype) or not dot.aval.size:
        return None
    x, y = dot.src
    info = dot.arg
    if not x.aval.size:
        return None
    batch = len(info.batch[0])
    free_x = x.aval.ndim - batch - len(info.contract[0])
    middle, end = batch + free_x, n.aval.ndim
    if n.arg != (*range(batch), *range(middle, end), *range(batch, middle)):
        return None
    swapped = replace(
        info,
        contract=(info.contract[1], info.contract[0]),
        batch=(info.batch[1], info.batch[0]),
        dtype=info.dtype or x.aval.dtype,
    )
    return canonical_dot(done[y], done[x], swapped)


def _bytes_dot(n: UOp) -> UOp:
    """Operands of less than a byte as bytes, which a contraction can load; the sum is cut again."""
    x, y = (
        UOp(Op.CAST, (s,), (np.dtype(np.int8), False)) if dtypes.bit_width(s.aval.dtype) < 8 else s
        for s in n.src
    )
    dtype, total = n.aval.dtype, np.dtype(np.int32)
    narrow = dtypes.is_integer(dtype) and dtypes.bit_width(dtype) < 8
    product = canonical_dot(x, y, replace(n.arg, dtype=total if narrow else dtype))
    return UOp(Op.CAST, (product,), (dtype, False)) if narrow else product


def _complex_dot(n: UOp) -> UOp:
    """(a+ib)(c+id) as real contractions; an operand that is real has no second part."""
    real = dtypes.real_dtype(n.aval.dtype)
    info = replace(n.arg, dtype=None)

    def parts(x: UOp) -> list[UOp]:
        split = dtypes.is_complex(x.aval.dtype)
        found = [UOp(Op.REAL, (x,)), UOp(Op.IMAG, (x,))] if split else [x]
        return [p if p.aval.dtype == real else UOp(Op.CAST, (p,), (real, False)) for p in found]

    a, c = parts(n.src[0]), parts(n.src[1])
    products = [[canonical_dot(x, y, info) for y in c] for x in a]
    if len(a) == len(c) == 2:
        re = UOp(Op.SUB, (products[0][0], products[1][1]))
        im = UOp(Op.ADD, (products[0][1], products[1][0]))
    else:
        re, im = [p for row in products for p in row]
    return UOp(Op.COMPLEX, (re, im))


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


def repeated(n: UOp) -> UOp:
    """concat(x, x, ...) -> reshape(expand(x)): one load per element, not one guarded load per copy."""
    x, axis, shape = n.src[0], n.arg, n.src[0].aval.shape
    wide = (*shape[:axis], len(n.src), *shape[axis:])
    dims = tuple(i for i in range(len(wide)) if i != axis)
    return UOp(Op.RESHAPE, (UOp(Op.EXPAND, (x,), (wide, dims)),), n.aval.shape)
