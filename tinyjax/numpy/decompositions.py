"""Factorisations with derivatives: LAPACK through HOST_CALL, rules by custom_jvp.

Each function takes and returns arrays with matrices in the last two axes; other axes are a batch.
Rules are written with inverses of known matrices and products, which transpose; so reverse mode and
higher derivatives follow. Where singular or eigenvalues coincide, derivatives of vectors do not
exist and are infinite or NaN.

Source: Giles, "Collected matrix derivative results for forward and reverse mode AD" (2008).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import aval
from tinyjax.core.infos import HostCallInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, results
from tinyjax.engine.array import Array
from tinyjax.engine.custom_rules import custom_jvp
from tinyjax.engine.values import finish, finish_all
from tinyjax.numpy.contract import matmul_node

Shape = tuple[int, ...]


def routine(
    name: str, params: tuple[Any, ...], nodes: Sequence[UOp], out: Sequence[tuple[Shape, Any]]
) -> list[Array]:
    """A host routine on a batch of matrices."""
    info = HostCallInfo(
        name,
        params,
        tuple(aval(s, d) for s, d in out),
        batch_ndim=len(out[0][0]) and nodes[0].ndim - 2,
    )
    return finish_all(results(UOp(Op.HOST_CALL, tuple(nodes), info)))


# --- small helpers on nodes ---------------------------------------------------------------------


def mm(x: UOp, y: UOp) -> UOp:
    """Matrix product, batched."""
    return matmul_node("matmul", Array(x), Array(y), "highest", None)


def transposed(x: UOp) -> UOp:
    """The last two axes exchanged."""
    return b.permute(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def adjoint(x: UOp) -> UOp:
    """Conjugate transpose."""
    return b.conj(transposed(x))


def eye_like(x: UOp, rows: int, cols: int) -> UOp:
    """Identity matrices in the batch shape and dtype of x."""
    shape = (*x.shape[:-2], rows, cols)
    same = b.eq(b.iota(shape, len(shape) - 2), b.iota(shape, len(shape) - 1))
    return b.cast(same, x.dtype)


def lower_part(x: UOp, strict: bool = False) -> UOp:
    """Lower triangle, with or without the diagonal."""
    i, j = b.iota(x.shape, x.ndim - 2), b.iota(x.shape, x.ndim - 1)
    return b.where(b.gt(i, j) if strict else b.ge(i, j), x, b.like(x, 0))


def diagonal_of(x: UOp) -> UOp:
    """Diagonals of square matrices."""
    n = x.shape[-1]
    flat = b.reshape(x, (*x.shape[:-2], n * n))
    return b.slice_axis(flat, flat.ndim - 1, 0, n * n, n + 1) if n else b.reshape(x, x.shape[:-1])


def row_vector(v: UOp, shape: Shape) -> UOp:
    """A vector per matrix, repeated for each row."""
    return b.expand(v, shape, (*range(len(shape) - 2), len(shape) - 1))


def column_vector(v: UOp, shape: Shape) -> UOp:
    """A vector per matrix, repeated for each column."""
    return b.expand(v, shape, tuple(range(len(shape) - 1)))


def real_like(dtype: Any) -> Any:
    """The dtype of real results."""
    return dtypes.to_floating_dtype(dtype)


# --- solve, inverse, determinant ----------------------------------------------------------------


@custom_jvp
def solve_matrix(a: Array, rhs: Array) -> Array:
    """x with a x = rhs, both with matrices in the last two axes."""
    return routine("solve", (), [a.node, rhs.node], [(rhs.shape, rhs.dtype)])[0]


@solve_matrix.defjvp
def _solve_rule(primals: Any, tangents: Any) -> Any:
    """dx = a^-1 (drhs - da x)"""
    (a, rhs), (da, drhs) = primals, tangents
    x = solve_matrix(a, rhs)
    right = b.sub(drhs.node, mm(da.node, x.node))
    return x, finish(mm(inverse(a).node, right))


@custom_jvp
def inverse(a: Array) -> Array:
    """Inverse matrices; NaN or infinities where singular."""
    n = a.node
    return routine("solve", (), [n, eye_like(n, n.shape[-1], n.shape[-1])], [(n.shape, n.dtype)])[0]


@inverse.defjvp
def _inverse_rule(primals: Any, tangents: Any) -> Any:
    """d(a^-1) = -a^-1 da a^-1"""
    y = inverse(*primals)
    return y, finish(b.neg(mm(mm(y.node, tangents[0].node), y.node)))


def lu_factors(n: UOp) -> tuple[UOp, UOp]:
    """(LU in one matrix, pivots)."""
    k = min(n.shape[-2:])
    lead = n.shape[:-2]
    lu, pivots, _ = routine(
        "lu",
        (),
        [n],
        [
            (n.shape, n.dtype),
            ((*lead, k), np.dtype(np.int32)),
            ((*lead, n.shape[-2]), np.dtype(np.int32)),
        ],
    )
    return lu.node, pivots.node


@custom_jvp
def sign_and_logdet(a: Array) -> tuple[Array, Array]:
    """Sign (or phase) and log |det|."""
    lu, pivots = lu_factors(a.node)
    d = diagonal_of(lu)
    last = d.ndim - 1
    swaps = b.ne(pivots, b.iota(pivots.shape, pivots.ndim - 1))
    odd = b.and_(b.sum_(b.cast(swaps, b.INT32), (last,)), b.scalar(1, b.INT32))
    flip = b.where(b.eq(odd, b.like(odd, 1)), b.like(d, -1), b.like(d, 1))
    size = b.abs_(d)
    if dtypes.is_complex(d.dtype):
        zero = b.eq(size, b.like(size, 0))
        phase = b.div(
            d, b.cast(b.where(zero, b.fill_to(b.like(size, 1), size.shape), size), d.dtype)
        )
    else:
        phase = b.sign(d)
    sign = b.mul(flip, b.reduce("mul", phase, (last,)))
    return finish(sign), finish(b.sum_(b.log(size), (last,)))


@sign_and_logdet.defjvp
def _slogdet_rule(primals: Any, tangents: Any) -> Any:
    """d log|det a| = Re tr(a^-1 da); the phase turns by the imaginary part."""
    sign, logdet = sign_and_logdet(*primals)
    product = mm(inverse(primals[0]).node, tangents[0].node)
    trace = b.sum_(diagonal_of(product), (product.ndim - 2,))
    dlog = b.real(trace)
    if dtypes.is_complex(sign.dtype):
        turn = b.sub(trace, b.cast(dlog, trace.dtype))
        return (sign, logdet), (finish(b.mul(turn, sign.node)), finish(dlog))
    return (sign, logdet), (finish(b.zeros(sign.aval)), finish(dlog))


@custom_jvp
def determinant(a: Array) -> Array:
    """Determinant by LU."""
    lu, pivots = lu_factors(a.node)
    d = diagonal_of(lu)
    swaps = b.ne(pivots, b.iota(pivots.shape, pivots.ndim - 1))
    odd = b.and_(b.sum_(b.cast(swaps, b.INT32), (d.ndim - 1,)), b.scalar(1, b.INT32))
    product = b.reduce("mul", d, (d.ndim - 1,))
    return finish(b.where(b.eq(odd, b.like(odd, 1)), b.neg(product), product))


@determinant.defjvp
def _determinant_rule(primals: Any, tangents: Any) -> Any:
    """d det a = sum(cofactors * da)"""
    y = determinant(*primals)
    product = b.mul(transposed(adjugate(primals[0]).node), tangents[0].node)
    return y, finish(b.sum_(product, (product.ndim - 2, product.ndim - 1)))


def adjugate(a: Array) -> Array:
    """det(a) a^-1, which exists for singular matrices too: from the singular values there.

    Where a is invertible the inverse is used, because its own derivative is exact.
    """
    y = determinant(a).node
    good = b.ne(y, b.like(y, 0))
    n = a.node
    wide = b.expand(good, n.shape, tuple(range(n.ndim - 2)))
    eye = eye_like(n, n.shape[-1], n.shape[-1])
    safe = inverse(finish(b.where(wide, n, eye))).node
    plain = b.mul(b.expand(y, n.shape, tuple(range(n.ndim - 2))), safe)
    u, s, vh = (x.node for x in singular_values(finish(b.stop_gradient(n)), False))
    # Product of the other singular values: the matrix of factors with ones on its diagonal.
    size = s.shape[-1]
    square = (*s.shape, size)
    factors = b.where(
        b.eq(b.iota(square, len(square) - 2), b.iota(square, len(square) - 1)),
        b.like(s, 1),
        b.expand(s, square, (*range(s.ndim - 1), s.ndim)),
    )
    others = b.cast(b.reduce("mul", factors, (len(square) - 1,)), n.dtype)
    turn = b.mul(determinant(finish(u)).node, determinant(finish(vh)).node)
    scaled = b.mul(adjoint(vh), row_vector(others, vh.shape))
    singular = b.mul(b.expand(turn, n.shape, tuple(range(n.ndim - 2))), mm(scaled, adjoint(u)))
    return finish(b.where(wide, plain, singular))


# --- Cholesky, QR -------------------------------------------------------------------------------


@custom_jvp
def cholesky_lower(a: Array) -> Array:
    """Lower L with L L^H = a; NaN where a is not positive definite. Reads the lower triangle."""
    return routine("cholesky", (), [a.node], [(a.shape, a.dtype)])[0]


@cholesky_lower.defjvp
def _cholesky_rule(primals: Any, tangents: Any) -> Any:
    """dL = L phi(L^-1 da L^-H), phi: lower triangle with half the diagonal."""
    low = cholesky_lower(*primals)
    inv = inverse_triangular(low, True).node
    da = tangents[0].node
    middle = mm(mm(inv, da), adjoint(inv))
    half = b.mul(lower_part(middle), b.like(middle, 1))
    i, j = b.iota(half.shape, half.ndim - 2), b.iota(half.shape, half.ndim - 1)
    half = b.where(b.eq(i, j), b.mul(half, b.like(half, 0.5)), half)
    return low, finish(mm(low.node, half))


@functools.partial(custom_jvp, nondiff_argnums=(1,))
def inverse_triangular(a: Array, lower: bool) -> Array:
    """Inverse of a triangular matrix."""
    n = a.node
    eye = eye_like(n, n.shape[-1], n.shape[-1])
    params = (True, bool(lower), False, False, False)
    return routine("triangular_solve", params, [n, eye], [(n.shape, n.dtype)])[0]


@inverse_triangular.defjvp
def _inverse_triangular_rule(lower: bool, primals: Any, tangents: Any) -> Any:
    """d(a^-1) = -a^-1 tri(da) a^-1"""
    y = inverse_triangular(primals[0], lower)
    da = tangents[0].node
    part = lower_part(da) if lower else transposed(lower_part(transposed(da)))
    return y, finish(b.neg(mm(mm(y.node, part), y.node)))


@functools.partial(custom_jvp, nondiff_argnums=(1,))
def qr_factors(a: Array, full_matrices: bool) -> tuple[Array, Array]:
    """(q, r); r has its upper triangle only."""
    rows, cols = a.shape[-2:]
    lead = a.shape[:-2]
    inner = rows if full_matrices else min(rows, cols)
    q, r = routine(
        "qr",
        (bool(full_matrices),),
        [a.node],
        [((*lead, rows, inner), a.dtype), ((*lead, inner, cols), a.dtype)],
    )
    return q, r


@qr_factors.defjvp
def _qr_rule(full_matrices: bool, primals: Any, tangents: Any) -> Any:
    """With x = da r^-1: dq = q (omega - q^H x) + x, dr = (q^H x - omega) r."""
    (a,), (da,) = primals, tangents
    rows, cols = a.shape[-2:]
    if rows < cols or (full_matrices and rows != cols):
        raise NotImplementedError(
            "The derivative of a QR decomposition exists here for matrices with at least as "
            "many rows "
            f"as columns, in reduced form; got shape {a.shape}."
        )
    q, r = qr_factors(a, full_matrices)
    x = mm(da.node, inverse_triangular(r, False).node)
    qx = mm(adjoint(q.node), x)
    low = lower_part(qx, strict=True)
    omega = b.sub(low, adjoint(low))
    if dtypes.is_complex(qx.dtype):
        i, j = b.iota(qx.shape, qx.ndim - 2), b.iota(qx.shape, qx.ndim - 1)
        zero = b.zeros(b.imag(qx).aval)
        imaginary = b.complex_(zero, b.imag(qx))
        omega = b.add(omega, b.where(b.eq(i, j), imaginary, b.like(imaginary, 0)))
    rest = b.sub(qx, omega)
    dq = b.add(mm(q.node, b.neg(rest)), x)
    dr = mm(rest, r.node)
    return (q, r), (finish(dq), finish(dr))


# --- eigenvalues, singular values ---------------------------------------------------------------


def inverse_gaps(w: UOp, shape: Shape) -> UOp:
    """1 / (w[j] - w[i]) with zeros on the diagonal."""
    gap = b.sub(row_vector(w, shape), column_vector(w, shape))
    i, j = b.iota(shape, len(shape) - 2), b.iota(shape, len(shape) - 1)
    same = b.eq(i, j)
    safe = b.where(same, b.fill_to(b.like(gap, 1), shape), gap)
    return b.where(same, b.like(gap, 0), b.reciprocal(safe))


@functools.partial(custom_jvp, nondiff_argnums=(1,))
def hermitian_eigen(a: Array, lower: bool) -> tuple[Array, Array]:
    """(eigenvalues ascending, eigenvectors) of Hermitian matrices; reads one triangle."""
    v, w = routine(
        "eigh", (bool(lower),), [a.node], [(a.shape, a.dtype), (a.shape[:-1], real_like(a.dtype))]
    )
    return w, v


@hermitian_eigen.defjvp
def _eigh_rule(lower: bool, primals: Any, tangents: Any) -> Any:
    """With m = v^H da v: dw = diag(m), dv = v (m / (w_j - w_i))."""
    w, v = hermitian_eigen(primals[0], lower)
    m = mm(mm(adjoint(v.node), tangents[0].node), v.node)
    gaps = b.cast(inverse_gaps(w.node, m.shape), m.dtype)
    dv = mm(v.node, b.mul(gaps, m))
    return (w, v), (finish(b.real(diagonal_of(m))), finish(dv))


@custom_jvp
def general_eigen(a: Array) -> tuple[Array, Array]:
    """(eigenvalues, right eigenvectors of length 1), complex."""
    dtype = dtypes.to_complex_dtype(a.dtype)
    w, v = routine("eig", (), [a.node], [(a.shape[:-1], dtype), (a.shape, dtype)])
    return w, v


@general_eigen.defjvp
def _eig_rule(primals: Any, tangents: Any) -> Any:
    """With m = v^-1 da v: dw = diag(m), dv = v (m / (w_j - w_i)), kept at length 1."""
    w, v = general_eigen(*primals)
    da = b.cast(tangents[0].node, v.dtype)
    m = mm(mm(inverse(v).node, da), v.node)
    dv = mm(v.node, b.mul(inverse_gaps(w.node, m.shape), m))
    along = b.real(b.sum_(b.mul(b.conj(v.node), dv), (dv.ndim - 2,)))
    dv = b.sub(dv, b.mul(v.node, b.cast(row_vector(along, dv.shape), dv.dtype)))
    return (w, v), (finish(diagonal_of(m)), finish(dv))


@functools.partial(custom_jvp, nondiff_argnums=(1,))
def singular_values(a: Array, full_matrices: bool) -> tuple[Array, Array, Array]:
    """(u, s descending, v^H)."""
    rows, cols = a.shape[-2:]
    lead, k = a.shape[:-2], min(rows, cols)
    left, right = (rows, cols) if full_matrices else (k, k)
    s, u, vh = routine(
        "svd",
        (bool(full_matrices), True),
        [a.node],
        [
            ((*lead, k), real_like(a.dtype)),
            ((*lead, rows, left), a.dtype),
            ((*lead, right, cols), a.dtype),
        ],
    )
    return u, s, vh


@singular_values.defjvp
def _svd_rule(full_matrices: bool, primals: Any, tangents: Any) -> Any:
    """Giles 2008, 3.4; with the parts outside of the spans of u and v for thin factors."""
    (a,), (da,) = primals, tangents
    rows, cols = a.shape[-2:]
    if full_matrices and rows != cols:
        raise NotImplementedError(
            "Singular value decomposition is differentiable with full_matrices=False only (or for "
            f"square matrices); got shape {a.shape}."
        )
    u_a, s_a, vh_a = singular_values(a, full_matrices)
    u, s, vh, d = u_a.node, s_a.node, vh_a.node, da.node
    v = adjoint(vh)
    m = mm(mm(adjoint(u), d), v)
    ds = b.real(diagonal_of(m))
    shape = m.shape
    s_row, s_col = (b.cast(f(s, shape), m.dtype) for f in (row_vector, column_vector))
    i, j = b.iota(shape, len(shape) - 2), b.iota(shape, len(shape) - 1)
    same = b.eq(i, j)
    difference = b.mul(b.sub(s_row, s_col), b.add(s_row, s_col))
    safe = b.where(same, b.fill_to(b.like(difference, 1), shape), difference)
    f = b.where(same, b.like(safe, 0), b.reciprocal(safe))
    ms, sm = b.mul(m, s_row), b.mul(s_col, m)
    du_inner = b.mul(f, b.add(ms, adjoint(ms)))
    dv_inner = b.mul(f, b.add(sm, adjoint(sm)))
    nonzero = b.ne(s, b.like(s, 0))
    s_inv = b.where(
        nonzero, b.reciprocal(b.where(nonzero, s, b.fill_to(b.like(s, 1), s.shape))), b.like(s, 0)
    )
    if dtypes.is_complex(m.dtype):
        # The phase of each pair of vectors is free: u takes the imaginary part of the diagonal.
        turn = b.mul(b.imag(diagonal_of(m)), s_inv)
        phase = b.complex_(b.zeros(turn.aval), turn)
        du_inner = b.add(du_inner, b.where(same, row_vector(phase, shape), b.like(du_inner, 0)))
    du, dv = mm(u, du_inner), mm(v, dv_inner)

    def inv_row(of: Shape) -> UOp:
        return b.cast(row_vector(s_inv, of), m.dtype)

    if rows > cols:
        dav = mm(d, v)
        outside = b.sub(dav, mm(u, mm(adjoint(u), dav)))
        du = b.add(du, b.mul(outside, inv_row(outside.shape)))
    if cols > rows:
        dau = mm(adjoint(d), u)
        outside = b.sub(dau, mm(v, mm(adjoint(v), dau)))
        dv = b.add(dv, b.mul(outside, inv_row(outside.shape)))
    return (u_a, s_a, vh_a), (finish(du), finish(ds), finish(adjoint(dv)))
