"""Determinants, by LU factors.

The logarithm's derivative is that of the factors. `det` has a rule of its own, because it is smooth
where the matrix is singular and the factors are not.
"""

from __future__ import annotations

from typing import Any

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.matrices import across, adjoint, diagonal, eye, matmul, transposed
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.custom_rules import custom_jvp
from tinyjax.engine.values import finish
from tinyjax.lax import linalg as lapack


def pivots_and_parity(a: Array) -> tuple[UOp, UOp]:
    """(the diagonal of U, whether the row swaps are odd)."""
    lu, swaps, _ = (x.node for x in lapack.lu(a))
    last = swaps.ndim - 1
    moved = b.cast(b.ne(swaps, b.iota(swaps.shape, last)), b.INT32)
    odd = b.and_(b.sum_(moved, (last,)), b.scalar(1, b.INT32))
    return diagonal(lu), b.eq(odd, b.like(odd, 1))


def sign_and_logdet(a: Array) -> tuple[Array, Array]:
    """Sign (or phase) and log |det|; (0, -inf) where singular."""
    d, odd = pivots_and_parity(a)
    last = d.ndim - 1
    size = b.abs_(d)
    if dtypes.is_complex(d.dtype):
        zero = b.eq(size, b.like(size, 0))
        one = b.fill_to(b.like(size, 1), size.shape)
        phase = b.div(d, b.cast(b.where(zero, one, size), d.dtype))
    else:
        phase = b.sign(d)
    product = b.reduce("mul", phase, (last,))
    return finish(b.where(odd, b.neg(product), product)), finish(b.sum_(b.log(size), (last,)))


@custom_jvp
def determinant(a: Array) -> Array:
    """Determinant of square matrices."""
    d, odd = pivots_and_parity(a)
    product = b.reduce("mul", d, (d.ndim - 1,))
    return finish(b.where(odd, b.neg(product), product))


@determinant.defjvp
def _determinant_rule(primals: Any, tangents: Any) -> Any:
    """d det a = sum(cofactors * da)"""
    y = determinant(*primals)
    product = b.mul(transposed(adjugate(primals[0])), tangents[0].node)
    return y, finish(b.sum_(product, (product.ndim - 2, product.ndim - 1)))


def adjugate(a: Array) -> UOp:
    """det(a) a^-1, which exists for singular matrices too: from the singular values there.

    Where a is invertible the inverse is used, because its own derivative is exact.
    """
    n, y = a.node, determinant(a).node

    def wide(x: UOp) -> UOp:
        return b.expand(x, n.shape, tuple(range(n.ndim - 2)))

    good = wide(b.ne(y, b.like(y, 0)))
    safe = b.where(good, n, eye(n))
    plain = b.mul(wide(y), lapack.solve(finish(safe), finish(eye(n))).node)
    u, s, vh = (x.node for x in lapack.svd(finish(b.stop_gradient(n)), full_matrices=False))
    # Product of the other singular values: each row is s, with a one in its own place.
    square = (*s.shape, s.shape[-1])
    axis = s.ndim
    factors = b.where(
        b.eq(b.iota(square, axis - 1), b.iota(square, axis)),
        b.like(s, 1),
        b.expand(s, square, (*range(axis - 1), axis)),
    )
    others = b.cast(b.reduce("mul", factors, (axis,)), n.dtype)
    turn = b.mul(determinant(finish(u)).node, determinant(finish(vh)).node)
    scaled = b.mul(adjoint(vh), across(others, vh, rows=False))
    singular = b.mul(wide(turn), matmul(scaled, adjoint(u)))
    return b.where(good, plain, singular)
