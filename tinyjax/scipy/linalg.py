"""Linear algebra with SciPy's names and defaults: `tinyjax.scipy.linalg`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyjax import lax
from tinyjax import numpy as jnp
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.engine.array import Array
from tinyjax.engine.derivatives import jvp
from tinyjax.engine.values import finish_all
from tinyjax.numpy.promotion import checked, promote_inexact

ArrayLike = Any


def floats(name: str, *args: ArrayLike) -> list[Array]:
    """Operands in one inexact dtype, shapes unchanged."""
    return finish_all(list(promote_inexact(checked(name, *args))))


def adjoint(a: Array) -> Array:
    """Conjugate transpose."""
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def cholesky(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Array:
    """Cholesky factor: upper by default; NaN if not positive definite."""
    (a,) = floats("cholesky", a)
    if lower:
        return lax.linalg.cholesky(a, symmetrize_input=False)
    return adjoint(lax.linalg.cholesky(adjoint(a), symmetrize_input=False))


def cho_factor(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, bool]:
    """(factor, lower) for `cho_solve`."""
    return cholesky(a, lower=lower), lower


def cho_solve(
    c_and_lower: tuple[ArrayLike, bool],
    b: ArrayLike,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Array:
    """x with a x = b, from `cho_factor(a)`."""
    c, lower = c_and_lower
    y = solve_triangular(c, b, trans=0 if lower else 2, lower=lower)
    return solve_triangular(c, y, trans=2 if lower else 0, lower=lower)


TRANS = {0: (False, False), "N": (False, False), 1: (True, False), "T": (True, False)}
TRANS |= {2: (True, True), "C": (True, True)}


def solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: Any = None,
    check_finite: bool = True,
) -> Array:
    """x with op(a) x = b for triangular a; trans 0/N, 1/T, 2/C."""
    if trans not in TRANS:
        raise ValueError(f"Invalid 'trans' value {trans}")
    transpose, conjugate = TRANS[trans]
    a, b = floats("solve_triangular", a, b)
    vector = b.ndim == 1 or b.ndim == a.ndim - 1
    rhs = b[..., None] if vector else b
    lead = jnp.broadcast_shapes(a.shape[:-2], rhs.shape[:-2])
    out = lax.linalg.triangular_solve(
        jnp.broadcast_to(a, lead + a.shape[-2:]),
        jnp.broadcast_to(rhs, lead + rhs.shape[-2:]),
        left_side=True,
        lower=lower,
        transpose_a=transpose,
        conjugate_a=conjugate,
        unit_diagonal=unit_diagonal,
    )
    return out[..., 0] if vector else out


def solve(
    a: ArrayLike,
    b: ArrayLike,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Array:
    """x with a x = b; assume_a "pos" goes by Cholesky."""
    if assume_a == "pos":
        return cho_solve(cho_factor(a, lower=lower), b)
    if assume_a not in ("gen", "sym", "her"):
        raise ValueError(
            f"Expected assume_a to be one of ['gen', 'sym', 'her', 'pos']; got {assume_a!r}"
        )
    a, b = floats("solve", a, b)
    out = lax.linalg.solve(a, b[..., None] if b.ndim == a.ndim - 1 else b)
    return out[..., 0] if b.ndim == a.ndim - 1 else out


def inv(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Inverse matrix."""
    (a,) = floats("inv", a)
    return lax.linalg.solve(a, jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape))


def det(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Determinant, from the LU factors."""
    (a,) = floats("det", a)
    factors, pivots, _ = lax.linalg.lu(a)
    swaps = (pivots != jnp.arange(a.shape[-1])).sum(-1) % 2
    sign = (1 - 2 * swaps).astype(a.dtype)
    return sign * jnp.diagonal(factors, axis1=-2, axis2=-1).prod(-1)


def eigh(
    a: ArrayLike,
    b: ArrayLike | None = None,
    lower: bool = True,
    eigvals_only: bool = False,
    **options: Any,
) -> Any:
    """(values, vectors) of a Hermitian matrix, or the values."""
    if b is not None:
        raise NotImplementedError("Only the b=None case of eigh is implemented")
    if any(
        v is not None
        for k, v in options.items()
        if k in ("subset_by_index", "subset_by_value", "eigvals")
    ):
        raise NotImplementedError("eigh: subsets of eigenvalues are not implemented")
    (a,) = floats("eigh", a)
    vectors, values = lax.linalg.eigh(a, lower=lower, symmetrize_input=False)
    return values if eigvals_only else (values, vectors)


def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    """(u, s, vh), or s."""
    (a,) = floats("svd", a)
    return lax.linalg.svd(a, full_matrices=full_matrices, compute_uv=compute_uv)


def qr(
    a: ArrayLike,
    overwrite_a: bool = False,
    lwork: Any = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> Any:
    """(q, r), or (r,) with mode "r"; mode "economic" for thin factors."""
    if mode not in ("full", "r", "economic"):
        raise ValueError(f"Unsupported QR decomposition mode '{mode}'")
    (a,) = floats("qr", a)
    q, r = lax.linalg.qr(a, pivoting=pivoting, full_matrices=mode == "full")
    return (r,) if mode == "r" else (q, r)


def lu_factor(
    a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, Array]:
    """(factors in one matrix, pivots) for `lu_solve`."""
    (a,) = floats("lu_factor", a)
    factors, pivots, _ = lax.linalg.lu(a)
    return factors, pivots


def lu_solve(
    lu_and_piv: tuple[ArrayLike, ArrayLike],
    b: ArrayLike,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Array:
    """x with op(a) x = b, from `lu_factor(a)`; trans 0, 1 (a^T) or 2 (a^H)."""
    if trans not in (0, 1, 2):
        raise ValueError(f"'trans' value must be 0, 1, or 2, got {trans}")
    factors, pivots = lu_and_piv
    factors, b = floats("lu_solve", factors, b)
    vector = b.ndim == 1
    x = b[..., None] if vector else b
    order = lax.linalg.lu_pivots_to_permutation(pivots, factors.shape[-1])
    solve_with = lax.linalg.triangular_solve
    if trans == 0:
        x = solve_with(factors, x[order], left_side=True, lower=True, unit_diagonal=True)
        x = solve_with(factors, x, left_side=True)
    else:
        conjugate = trans == 2
        x = solve_with(factors, x, left_side=True, transpose_a=True, conjugate_a=conjugate)
        x = solve_with(
            factors, x, left_side=True, lower=True, unit_diagonal=True, transpose_a=True,
            conjugate_a=conjugate,
        )  # fmt: skip
        x = x[jnp.argsort(order)]
    return x[..., 0] if vector else x


def lu(
    a: ArrayLike, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Any:
    """(p, l, u) with a = p l u, or (p l, u)."""
    (a,) = floats("lu", a)
    factors, _, order = lax.linalg.lu(a)
    rows, columns = a.shape[-2:]
    k = min(rows, columns)
    low = jnp.tril(factors[..., :, :k], -1) + jnp.eye(rows, k, dtype=a.dtype)
    high = jnp.triu(factors[..., :k, :])
    p = (jnp.arange(rows)[:, None] == order[..., None, :]).astype(a.real.dtype)
    return (jnp.matmul(p.astype(a.dtype), low), high) if permute_l else (p, low, high)


def block_diag(*arrs: ArrayLike) -> Array:
    """Matrices along the diagonal of a larger one."""
    blocks = [jnp.atleast_2d(jnp.asarray(a)) for a in (arrs or ([[]],))]
    if any(m.ndim > 2 for m in blocks):
        raise ValueError("block_diag takes matrices, vectors and numbers")
    dtype = jnp.result_type(*blocks)
    columns = sum(m.shape[1] for m in blocks)
    rows, start = [], 0
    for m in blocks:
        width = m.shape[1]
        rows.append(jnp.pad(m.astype(dtype), ((0, 0), (start, columns - start - width))))
        start += width
    return jnp.concatenate(rows, axis=0)


# --- the exponential -----------------------------------------------------------------------------

# Order of the Pade approximant, and the largest norm for which its backward error is below half a
# unit in the last place: Higham (2005), table 2.3.
PADE = {"f4": (7, 3.925724783138660), "f8": (13, 5.371920351148152)}


def pade_coefficients(order: int) -> list[float]:
    """Of the numerator of the diagonal Pade approximant of e^x, lowest power first; the first is 1."""
    found = [1.0]
    for j in range(order):
        found.append(found[-1] * (order - j) / ((2 * order - j) * (j + 1)))
    return found


def matrix_polynomial(coefficients: Sequence[float], powers: Sequence[Array]) -> Array:
    """sum of c_k S^k from powers = I, S, S^2, S^3: with more than four terms, c_0 + ... + c_3 S^3
    + S^3 (c_4 S + c_5 S^2 + c_6 S^3), which is one more product."""
    low: Array = sum(c * p for c, p in zip(coefficients[:4], powers, strict=False))  # type: ignore[assignment]
    if len(coefficients) <= 4:
        return low
    high = sum(c * p for c, p in zip(coefficients[4:], powers[1:], strict=True))
    return low + powers[3] @ high


def expm(A: ArrayLike, *, upper_triangular: bool = False, max_squarings: int = 16) -> Array:
    """The exponential of matrices: I + A + A A / 2 + ...

    With `upper_triangular` A must be so, and one solve is cheaper. Matrices that are scaled down by
    more than 2**max_squarings give NaN.
    Shapes: [..., n, n]; each matrix of a batch is scaled by its own norm. Dtype: float32, float64 or
    complex; integers become floats. Differentiable in both modes, as often as wanted.
    Raises: ValueError if A is not square, TypeError for narrow floats.
    Cost: 4 products of matrices (float64: 6), one solve, and a product per squaring.
    Source: Higham, "The scaling and squaring method for the matrix exponential revisited" (2005).
    """
    (a,) = floats("expm", A)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"Expected A to be a (batched) square matrix, got A.shape={a.shape}.")
    real = jnp.finfo(a.dtype).dtype
    if real.str[1:] not in PADE:
        raise TypeError(f"expm: dtype {a.dtype} is not supported; use A.astype('float32')")
    if not a.size:
        return a
    order, largest = PADE[real.str[1:]]
    norm = jnp.max(jnp.sum(jnp.abs(lax.stop_gradient(a)), axis=-2), axis=-1)
    wanted = jnp.maximum(jnp.ceil(jnp.log2(norm / largest)), 0.0)
    fits = wanted <= max_squarings  # not so for NaN
    halvings = jnp.where(fits, wanted, 0.0)[..., None, None]
    s = a * jnp.ldexp(jnp.ones_like(halvings), -halvings.astype(jnp.int32)).astype(a.dtype)

    square = s @ s
    powers = [jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape), square]
    powers += [square @ square]
    powers += [powers[2] @ square]
    b = pade_coefficients(order)
    odd = s @ matrix_polynomial(b[1::2], powers)
    even = matrix_polynomial(b[::2], powers)
    if upper_triangular:
        root = solve_triangular(even - odd, even + odd)
    else:
        root = jnp.linalg.solve(even - odd, even + odd)

    def squared(i: Array, r: Array) -> Array:
        unfinished = i < halvings
        more: Array = lax.cond(
            jnp.any(unfinished), lambda r: jnp.where(unfinished, r @ r, r), lambda r: r, r
        )
        return more

    result = lax.fori_loop(0, max_squarings, squared, root)
    final: Array = jnp.where(fits[..., None, None], result, jnp.nan)
    return final


def expm_frechet(
    A: ArrayLike, E: ArrayLike, *, method: str | None = None, compute_expm: bool = True
) -> Array | tuple[Array, Array]:
    """(expm(A), its derivative in the direction E), or the derivative alone.

    It is the forward derivative of `expm`; `method`, which names one of SciPy's, changes nothing.
    Shapes: [..., n, n] both. Raises: ValueError if they are not square and equal.
    """
    a, e = floats("expm_frechet", A, E)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"expected A to be a (batched) square matrix, got A.shape={a.shape}")
    if a.shape != e.shape:
        raise ValueError(
            f"expected A and E to be the same shape, got A.shape={a.shape} E.shape={e.shape}"
        )
    value, derivative = jvp(expm, (a,), (e,))
    return (value, derivative) if compute_expm else derivative


__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "det", "eigh", "expm", "expm_frechet", "inv",
    "lu", "lu_factor", "lu_solve", "qr", "solve", "solve_triangular", "svd",
]  # fmt: skip

_publish_functions(globals())
