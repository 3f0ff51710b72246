"""Routines of HOST_CALL: linear algebra by NumPy's LAPACK, batched over leading axes.

A routine is `(params, *operands) -> results`; `HostCallInfo.out` states the results' avals. Where
LAPACK fails for one matrix of a batch, that matrix's results are NaN and the others stand; nothing
is raised, as in JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.interpreters.evaluate_elementwise import narrow, widen

Array = np.ndarray[Any, Any]
Routine = Callable[..., list[Array]]


def per_matrix(f: Callable[..., Sequence[Array]], *operands: Array) -> list[Array]:
    """`f` on a batch at once or, if LAPACK fails, on each matrix alone with NaN for the failing."""
    try:
        return list(f(*operands))
    except np.linalg.LinAlgError:
        pass
    batch = operands[0].shape[:-2]
    rows: list[Sequence[Array] | None] = []
    for index in np.ndindex(batch):
        try:
            rows.append(f(*(x[index] for x in operands)))
        except np.linalg.LinAlgError:
            rows.append(None)
    example = next((r for r in rows if r is not None), None)
    if example is None:  # all fail: the identity shows the shapes
        eye = np.eye(operands[0].shape[-2], operands[0].shape[-1], dtype=operands[0].dtype)
        example = f(eye, *(x[(0,) * len(batch)] for x in operands[1:]))
    results = []
    for k, like in enumerate(example):
        y = np.full((len(rows), *like.shape), np.nan, like.dtype)
        for i, row in enumerate(rows):
            if row is not None:
                y[i] = row[k]
        results.append(y.reshape(batch + like.shape))
    return results


def cholesky(params: tuple[Any, ...], a: Array) -> list[Array]:
    """Lower factor of a Hermitian a, of which the lower triangle is read; NaN if not positive."""
    a = widen(a)
    low = np.tril(a)
    full = low + np.conj(np.swapaxes(np.tril(a, -1), -1, -2))
    (factor,) = per_matrix(lambda m: [np.linalg.cholesky(m)], full)
    return [np.tril(factor)]  # zero above the diagonal also where it is NaN


def qr(params: tuple[Any, ...], a: Array) -> list[Array]:
    """(q, r). params: (full_matrices,)."""
    (full_matrices,) = params
    q, r = np.linalg.qr(widen(a), "complete" if full_matrices else "reduced")
    return [q, r]


def eigh(params: tuple[Any, ...], a: Array) -> list[Array]:
    """(eigenvectors, eigenvalues ascending) of a Hermitian matrix. params: (lower,)."""
    (lower,) = params

    def both(m: Array) -> Sequence[Array]:
        w, v = np.linalg.eigh(m, "L" if lower else "U")
        return [v, w]

    return per_matrix(both, widen(a))


def eig(params: tuple[Any, ...], a: Array) -> list[Array]:
    """(eigenvalues, right eigenvectors), complex, of a square matrix."""
    a = widen(a)
    a = a.astype(np.promote_types(a.dtype, np.complex64))
    return per_matrix(np.linalg.eig, a)


def svd(params: tuple[Any, ...], a: Array) -> list[Array]:
    """(s,) or (s, u, vh), s descending. params: (full_matrices, compute_uv)."""
    full_matrices, compute_uv = params

    def factors(m: Array) -> Sequence[Array]:
        if not compute_uv:
            return [np.linalg.svd(m, compute_uv=False)]
        u, s, vh = np.linalg.svd(m, full_matrices)
        return [s, u, vh]

    return per_matrix(factors, widen(a))


def triangular_solve(params: tuple[Any, ...], a: Array, b: Array) -> list[Array]:
    """x with op(a) x = b, or x op(a) = b. Only the named triangle of a is read.

    params: (left_side, lower, transpose_a, conjugate_a, unit_diagonal). A zero on the diagonal
    gives infinities or NaN. Substitution row by row, over all matrices and columns at once.
    """
    left_side, lower, transpose_a, conjugate_a, unit_diagonal = params
    dtype = a.dtype
    a, b = widen(a), widen(b)
    if conjugate_a:
        a = np.conj(a)
    if transpose_a:
        a, lower = np.swapaxes(a, -1, -2), not lower
    if not left_side:  # x a = b is a.T x.T = b.T
        a, lower, b = np.swapaxes(a, -1, -2), not lower, np.swapaxes(b, -1, -2)
    n = a.shape[-1]
    x = b.astype(np.promote_types(a.dtype, b.dtype))
    for i in range(n) if lower else reversed(range(n)):
        known = slice(0, i) if lower else slice(i + 1, n)
        row = x[..., i, :] - np.matmul(a[..., i : i + 1, known], x[..., known, :])[..., 0, :]
        x[..., i, :] = row if unit_diagonal else row / a[..., i, i, None]
    return [narrow(x if left_side else np.swapaxes(x, -1, -2), dtype)]


def solve(params: tuple[Any, ...], a: Array, b: Array) -> list[Array]:
    """x with a x = b for square a; NaN where a is singular."""
    return per_matrix(lambda m, v: [np.linalg.solve(m, v)], widen(a), widen(b))


def lu(params: tuple[Any, ...], a: Array) -> list[Array]:
    """(lu, pivots int32, permutation int32): row-pivoted factors in one matrix, as LAPACK's getrf.

    Right-looking elimination, one column at a time over all matrices of the batch; a zero pivot
    leaves its column alone, so singular matrices have factors too.
    """
    a = widen(a).copy()
    rows, columns = a.shape[-2:]
    batch = a.shape[:-2]
    flat = a.reshape(math.prod(batch), rows, columns)  # -1 cannot be told where there are none
    which = np.arange(len(flat))
    pivots = np.zeros((len(flat), min(rows, columns)), np.int32)
    permutation = np.tile(np.arange(rows, dtype=np.int32), (len(flat), 1))
    for k in range(min(rows, columns)):
        best = k + np.argmax(np.abs(flat[:, k:, k]), axis=1)
        pivots[:, k] = best
        for m in (flat, permutation):
            m[which, k], m[which, best] = m[which, best], m[which, k].copy()
        pivot = flat[:, k, k]
        ratio = flat[:, k + 1 :, k] / np.where(pivot == 0, np.ones((), pivot.dtype), pivot)[:, None]
        flat[:, k + 1 :, k] = ratio
        flat[:, k + 1 :, k + 1 :] -= ratio[:, :, None] * flat[:, k, None, k + 1 :]
    return [
        flat.reshape(a.shape),
        pivots.reshape(*batch, min(rows, columns)),
        permutation.reshape(*batch, rows),
    ]


ROUTINES: dict[str, Routine] = {
    "cholesky": cholesky,
    "qr": qr,
    "eigh": eigh,
    "eig": eig,
    "svd": svd,
    "triangular_solve": triangular_solve,
    "solve": solve,
    "lu": lu,
}
