"""How much arithmetic a body does: a figure for costs and for tests that count recomputation."""

from __future__ import annotations

import math

from tinyjax.core.avals import Aval
from tinyjax.core.dims import largest
from tinyjax.core.ops import BODIES, ELEMENTWISE, Op
from tinyjax.core.uop import UOp, toposort

FREE = frozenset({Op.CAST, Op.BITCAST, Op.REAL, Op.IMAG, Op.COMPLEX})


def arithmetic(body: UOp) -> int:
    """Scalar operations of one run: elementwise ops count 1 per element, contractions 2 per product.

    Loops count their length (WHILE: one iteration), branches the most expensive one, symbolic sizes
    their upper bounds.
    """
    found = body.derived.get("arithmetic")
    if found is None:
        found = body.derived["arithmetic"] = sum(_of(n) for n in toposort(body.src))
    return int(found)


def _of(n: UOp) -> int:
    if n.op in BODIES:
        inner = [arithmetic(b) for b in n.bodies]
        if n.op is Op.SCAN:
            return inner[0] * largest(n.arg.length)
        return max(inner) if n.op is Op.COND else sum(inner)
    if not isinstance(n.aval, Aval):
        return largest(n.src[0].aval.size) if n.op in (Op.ARGREDUCE, Op.SORT) and n.src else 0
    if n.op in ELEMENTWISE:
        return 0 if n.op in FREE else largest(n.aval.size)
    if n.op is Op.DOT:
        x = n.src[0]
        return largest(2 * n.aval.size * math.prod(x.shape[i] for i in n.arg.contract[0]))
    if n.op in (Op.REDUCE, Op.PREFIX):
        return largest(n.src[0].aval.size)
    if n.op is Op.SCATTER:
        return largest(n.src[2].aval.size)
    return 0
