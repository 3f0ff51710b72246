"""Derivatives of host routines: forward rules, and transposes of the linear ones.

A forward rule gets the HOST_CALL node and the tangents of its operands and returns a tangent per
result. Matrices are the last two axes; all others are batch axes. Tangents are written with DOT and
triangular solves only, so that they transpose.

Where singular values or eigenvalues coincide, derivatives of vectors do not exist and are infinite
or NaN.

Sources: Giles, "Collected matrix derivative results" (2008); Murray, "Differentiation of the
Cholesky decomposition" (2016); Walter and Lehmann, "On automatic differentiation of QR" (2012);
Townsend, "Differentiating the singular value decomposition" (2016).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import aval
from tinyjax.core.matrices import (
    across,
    adjoint,
    diagonal,
    eye,
    host_call,
    matmul,
    transposed,
    triangle,
)
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, get
from tinyjax.interpreters.jvp import take_along

Tangent = UOp | None


def solve_triangular(
    a: UOp,
    y: UOp,
    left: bool,
    lower: bool,
    transpose: bool = False,
    conjugate: bool = False,
    unit: bool = False,
) -> UOp:
    """x with op(a) x = y, or x op(a) = y."""
    params = (left, lower, transpose, conjugate, unit)
    return host_call("triangular_solve", params, (a, y), (y.aval.strip_weak_type(),))[0]


# --- forward rules --------------------------------------------------------------------------------


def cholesky_rule(n: UOp, da: Tangent) -> list[Tangent]:
    """dL = L phi(L^-1 dA L^-H), phi the lower triangle with its diagonal halved."""
    factor = get(n, 0)
    assert da is not None
    inner = solve_triangular(factor, da, False, True, transpose=True, conjugate=True)
    inner = solve_triangular(factor, inner, True, True)
    half = b.mul(eye(inner), b.like(inner, 0.5))
    phi = b.sub(triangle(inner, True), b.mul(inner, half))
    return [matmul(factor, phi)]


def triangular_solve_rule(n: UOp, da: Tangent, dy: Tangent) -> list[Tangent]:
    """op(a) dx = dy - d op(a) x; only the triangle that is read has a tangent."""
    left, lower, transpose, conjugate, unit = n.arg.params
    a, x = n.src[0], get(n, 0)
    right_side = dy
    if da is not None:
        moved = triangle(da, lower, (-1 if lower else 1) if unit else 0)
        moved = transposed(moved) if transpose else moved
        moved = b.conj(moved) if conjugate else moved
        change = b.neg(matmul(moved, x) if left else matmul(x, moved))
        right_side = change if dy is None else b.add(dy, change)
    assert right_side is not None
    return [solve_triangular(a, right_side, left, lower, transpose, conjugate, unit)]


def solve_rule(n: UOp, da: Tangent, dy: Tangent) -> list[Tangent]:
    """a dx = dy - da x."""
    x = get(n, 0)
    change = None if da is None else b.neg(matmul(da, x))
    right_side = dy if change is None else change if dy is None else b.add(dy, change)
    assert right_side is not None
    out = (x.aval.strip_weak_type(),)
    return [host_call("solve", n.arg.params, (n.src[0], right_side), out)[0]]


def eigh_rule(n: UOp, da: Tangent) -> list[Tangent]:
    """dw = diag(V^H dA V); dV = V (F * V^H dA V), F_ij = 1 / (w_j - w_i), zero on the diagonal."""
    assert da is not None
    vectors, values = get(n, 0), get(n, 1)
    inner = matmul(adjoint(vectors), matmul(da, vectors))
    wide = b.cast(values, vectors.dtype)
    one = eye(vectors)
    gaps = b.sub(across(wide, inner, rows=False), across(wide, inner, rows=True))
    factor = b.sub(b.reciprocal(b.add(gaps, one)), one)
    return [matmul(vectors, b.mul(factor, inner)), b.cast(b.real(diagonal(inner)), values.dtype)]


def eig_rule(n: UOp, da: Tangent) -> list[Tangent]:
    """As eigh with V^-1; vectors keep norm 1 and a real largest component, as LAPACK makes them."""
    assert da is not None
    values, vectors = get(n, 0), get(n, 1)
    product = matmul(b.cast(da, vectors.dtype), vectors)
    inner = host_call("solve", (), (vectors, product), (product.aval,))[0]
    one = eye(vectors)
    gaps = b.sub(across(values, inner, rows=False), across(values, inner, rows=True))
    factor = b.sub(b.reciprocal(b.add(gaps, one)), one)
    moved = matmul(vectors, b.mul(factor, inner))
    rows = vectors.ndim - 2
    growth = b.real(b.sum_(b.mul(b.conj(vectors), moved), (rows,)))
    moved = b.sub(moved, b.mul(vectors, across(b.cast(growth, vectors.dtype), vectors, False)))
    size = b.abs_(vectors)
    _, index = b.argreduce("max", size, rows)
    hit = b.eq(b.iota(vectors.shape, rows), across(index, vectors, False))
    top = b.sum_(b.where(hit, vectors, b.like(vectors, 0)), (rows,))
    top_moved = b.sum_(b.where(hit, moved, b.like(moved, 0)), (rows,))
    turn = b.imag(b.div(top_moved, top))
    turn = b.complex_(b.like(turn, 0), turn)
    moved = b.sub(moved, b.mul(vectors, across(turn, vectors, False)))
    return [diagonal(inner), moved]


def qr_rule(n: UOp, da: Tangent) -> list[Tangent]:
    """With X = dA R^-1 and C = Q^H X: dQ = X + Q (D - C), dR = (C - D) R, D skew from C's lower
    part."""
    assert da is not None
    (full,) = n.arg.params
    q, r = get(n, 0), get(n, 1)
    rows, columns = da.shape[-2:]
    if full and rows > columns:
        raise NotImplementedError(
            "The derivative of qr with full_matrices=True is defined for square and wide matrices "
            "only: the added columns of q are not unique. Use full_matrices=False."
        )
    axis = da.ndim - 1
    k = min(rows, columns)
    head, r_head = b.slice_axis(da, axis, 0, k), b.slice_axis(r, axis, 0, k)
    x = solve_triangular(r_head, head, False, False)
    c = matmul(adjoint(q), x)
    low = triangle(c, True, -1)
    skew = b.sub(low, adjoint(low))
    if dtypes.is_complex(c.dtype):
        imaginary = b.sub(c, b.cast(b.real(c), c.dtype))
        skew = b.add(skew, b.mul(eye(c), imaginary))
    dq = b.add(x, matmul(q, b.sub(skew, c)))
    dr = matmul(b.sub(c, skew), r_head)
    if columns > k:
        rest, r_rest = (b.slice_axis(m, axis, k, columns) for m in (da, r))
        # q r_rest = a_rest, and q^H dq is `skew`.
        dr = b.concat([dr, b.sub(matmul(adjoint(q), rest), matmul(skew, r_rest))], axis)
    return [dq, dr]


def svd_rule(n: UOp, da: Tangent) -> list[Tangent]:
    """Townsend's formulas; unique up to signs, so gradients through u and v alone need distinct
    s."""
    assert da is not None
    full, vectors_too = n.arg.params
    rows, columns = da.shape[-2:]
    k = min(rows, columns)
    s = get(n, 0)
    if vectors_too:
        u, vh = get(n, 1), get(n, 2)
        if full and rows != columns:
            raise NotImplementedError(
                "Singular value decomposition JVP not implemented for full matrices: the added "
                "vectors are not unique. Use full_matrices=False."
            )
    else:
        lead = n.src[0].shape[:-2]
        kind = n.src[0].dtype
        out = (s.aval, aval((*lead, rows, k), kind), aval((*lead, k, columns), kind))
        _, u, vh = host_call("svd", (False, True), n.src, out)
    v = adjoint(vh)
    inner = matmul(adjoint(u), matmul(da, v))
    ds = b.cast(b.real(diagonal(inner)), s.dtype)
    if not vectors_too:
        return [ds]
    wide = b.cast(s, inner.dtype)
    by_row, by_column = across(wide, inner, True), across(wide, inner, False)
    one = eye(inner)
    gaps = b.mul(b.add(by_column, by_row), b.sub(by_column, by_row))
    factor = b.sub(b.reciprocal(b.add(gaps, one)), one)
    inner_s, s_inner = b.mul(inner, by_column), b.mul(by_row, inner)
    none = b.cast(b.eq(s, b.like(s, 0)), s.dtype)
    inverse = b.cast(b.sub(b.reciprocal(b.add(s, none)), none), inner.dtype)
    # For complex matrices the phase of each pair is free; half of the skew part goes to u.
    phase = b.mul(b.mul(b.sub(inner, adjoint(inner)), one), b.like(inner, 0.5))
    phase = b.mul(phase, across(inverse, inner, False))
    du = matmul(u, b.add(b.mul(factor, b.add(inner_s, adjoint(inner_s))), phase))
    dv = matmul(v, b.mul(factor, b.add(s_inner, adjoint(s_inner))))
    if rows > columns:
        product = matmul(da, v)
        outside = b.sub(product, matmul(u, matmul(adjoint(u), product)))
        du = b.add(du, b.mul(outside, across(inverse, outside, False)))
    if columns > rows:
        product = matmul(adjoint(da), u)
        outside = b.sub(product, matmul(v, matmul(adjoint(v), product)))
        dv = b.add(dv, b.mul(outside, across(inverse, outside, False)))
    return [ds, du, adjoint(dv)]


def lu_rule(n: UOp, da: Tangent) -> list[Tangent]:
    """With M = L^-1 P dA U^-1: d(L\\U) = L tril(M, -1) + triu(M) U, factors squared up by
    identities."""
    assert da is not None
    factors, permutation = get(n, 0), get(n, 2)
    rows, columns = da.shape[-2:]
    k = min(rows, columns)
    moved = take_rows(da, permutation)
    row, column = da.ndim - 2, da.ndim - 1

    def square(part: UOp, size: int) -> UOp:
        config = [(0, 0, 0)] * part.ndim
        config[row] = (0, size - part.shape[row], 0)
        config[column] = (0, size - part.shape[column], 0)
        return b.pad(part, config)

    low = square(triangle(b.slice_axis(factors, column, 0, k), True, -1), rows)
    low = b.add(low, eye(low))
    high = square(triangle(b.slice_axis(factors, row, 0, k), False), columns)
    place = b.iota(high.shape, row)
    beyond = b.ge(place, b.like(place, k))
    high = b.where(beyond, eye(high), high)
    middle = solve_triangular(low, moved, True, True, unit=True)
    middle = solve_triangular(high, middle, False, False)
    total = b.add(matmul(low, triangle(middle, True, -1)), matmul(triangle(middle, False), high))
    return [total, None, None]


def take_rows(x: UOp, order: UOp) -> UOp:
    """Rows of each matrix in the given order."""
    return take_along(x, across(order, x, rows=True), x.ndim - 2)


HOST_JVP: dict[str, Callable[..., list[Tangent]]] = {
    "cholesky": cholesky_rule,
    "triangular_solve": triangular_solve_rule,
    "solve": solve_rule,
    "eigh": eigh_rule,
    "eig": eig_rule,
    "qr": qr_rule,
    "svd": svd_rule,
    "lu": lu_rule,
}


def host_call_jvp(node: UOp, dsrc: Sequence[Tangent]) -> tuple[UOp, list[Tangent]]:
    """The rule of the routine."""
    rule = HOST_JVP.get(node.arg.routine)
    if rule is None:
        raise NotImplementedError(f"no derivative is known for {node.arg.routine}")
    return node, rule(node, *dsrc)


# --- transposes -----------------------------------------------------------------------------------


def host_call_transpose(n: UOp, cts: Sequence[Tangent], linear: Sequence[bool]) -> list[Tangent]:
    """Solves are linear in their right side: solve with the transposed matrix."""
    ct = cts[0]
    assert ct is not None and linear[1] and not linear[0], f"{n.arg.routine} is not linear"
    if n.arg.routine == "triangular_solve":
        left, lower, transpose, conjugate, unit = n.arg.params
        info = replace(n.arg, params=(left, lower, not transpose, conjugate, unit))
        return [None, get(UOp(Op.HOST_CALL, (n.src[0], ct), info), 0)]
    assert n.arg.routine == "solve"
    return [None, get(UOp(Op.HOST_CALL, (transposed(n.src[0]), ct), n.arg), 0)]
