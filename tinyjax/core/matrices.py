"""Matrices as nodes: what linear algebra and its derivative rules are written with.

A matrix is the last two axes; all axes before are a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyjax.core import build as b
from tinyjax.core.avals import Aval
from tinyjax.core.infos import HostCallInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, results


def transposed(x: UOp) -> UOp:
    """Last two axes swapped."""
    return b.permute(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def adjoint(x: UOp) -> UOp:
    """Conjugate transpose."""
    return b.conj(transposed(x))


def matmul(x: UOp, y: UOp) -> UOp:
    """Matrix product over equal batch axes."""
    lead = tuple(range(x.ndim - 2))
    return b.dot(x, y, ((x.ndim - 1,), (y.ndim - 2,)), (lead, lead))


def eye(x: UOp, size: int | None = None) -> UOp:
    """The identity in the batch shape and dtype of x; of the size of its rows if not given."""
    n = x.shape[-1] if size is None else size
    shape = (*x.shape[:-2], n, n)
    hit = b.eq(b.iota(shape, x.ndim - 2), b.iota(shape, x.ndim - 1))
    return b.cast(hit, x.dtype)


def triangle(x: UOp, lower: bool, offset: int = 0) -> UOp:
    """Elements on and below (above) a diagonal; the rest zero."""
    rows, cols = b.iota(x.shape, x.ndim - 2), b.iota(x.shape, x.ndim - 1)
    rows = b.add(rows, b.like(rows, offset))
    keep = b.le(cols, rows) if lower else b.ge(cols, rows)
    return b.where(keep, x, b.like(x, 0))


def diagonal(x: UOp) -> UOp:
    """The main diagonal of square matrices."""
    return b.sum_(b.mul(x, eye(x)), (x.ndim - 1,))


def across(v: UOp, x: UOp, rows: bool) -> UOp:
    """A vector per matrix along the rows (v_i) or columns (v_j) of x's shape."""
    lead = tuple(range(x.ndim - 2))
    return b.expand(v, x.shape, (*lead, x.ndim - 2 if rows else x.ndim - 1))


def host_call(
    routine: str, params: tuple[Any, ...], operands: Sequence[UOp], out: Sequence[Aval]
) -> list[UOp]:
    """Results of a LAPACK routine (interpreters/host.py), batched over leading axes."""
    info = HostCallInfo(routine, params, tuple(out), max(operands[0].ndim - 2, 0))
    return results(UOp(Op.HOST_CALL, tuple(operands), info))
