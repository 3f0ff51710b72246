"""tinyjax.lax.linalg: matrix factorisations and solves, by LAPACK through NumPy, in batches.

Matrices are the last two axes. Derivative rules are in interpreters/host_rules.py. Where LAPACK
fails, that matrix's results are NaN. float16 and bfloat16 are refused, as in JAX.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from tinyjax.core import build, dtypes
from tinyjax.core import build as b
from tinyjax.core.avals import Aval, aval
from tinyjax.core.dims import as_int, as_sizes
from tinyjax.core.errors import ShapeError
from tinyjax.core.matrices import adjoint, eye, host_call, matmul, transposed, triangle
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, finish_all, lift
from tinyjax.lax.control_flow import scan
from tinyjax.lax.elementwise import operand_of, same_dtypes

ArrayLike = Any
INT32 = np.dtype(np.int32)


class ShapeMismatch(ShapeError, ValueError):
    """Operands of a solve do not fit; JAX raises TypeError for ranks and ValueError for sizes."""


class EigImplementation(enum.Enum):
    """Who computes `eig` (LAPACK here, whatever is asked for)."""

    CUSOLVER = "cusolver"
    MAGMA = "magma"
    LAPACK = "lapack"


class EighImplementation(enum.Enum):
    """Who computes `eigh` (LAPACK here, whatever is asked for)."""

    QR = "QR"
    JACOBI = "Jacobi"
    QDWH = "QDWH"


class SvdAlgorithm(enum.Enum):
    """How `svd` is computed (LAPACK's divide and conquer here, whatever is asked for)."""

    DEFAULT = "default"
    QR = "QR"
    JACOBI = "Jacobi"
    POLAR = "polar"


def matrix(name: str, x: ArrayLike, square: bool = False) -> UOp:
    """An operand that is a matrix (or a batch of them) of a dtype LAPACK has."""
    n = operand_of(name, x)
    if dtypes.is_integer(n.dtype) or n.dtype == np.bool_:
        n = b.cast(n, dtypes.default_float_dtype())
    if n.dtype not in (np.float32, np.float64, np.complex64, np.complex128):
        raise TypeError(
            f"{name} does not accept dtype {n.dtype.name}. Accepted dtypes are float32, float64, "
            "complex64 and complex128."
        )
    if n.ndim < 2:
        raise ShapeMismatch(
            f"Argument to {name} must have ndims >= 2, got shape {n.shape}.\n"
            "  Give it two axes: jnp.atleast_2d(x)."
        )
    if square and n.shape[-1] != n.shape[-2]:
        raise ShapeMismatch(f"Arguments to {name} must be square matrices, got shape {n.shape}")
    return b.cast(n, n.dtype)


def subset(indices: Any, size: int) -> tuple[int, int]:
    """The range of `subset_by_index`."""
    found = as_sizes(indices, "subset_by_index")
    if len(found) != 2 or not 0 <= found[0] <= found[1] <= size:
        raise ValueError(
            f"subset_by_index must be (start, stop) with 0 <= start <= stop <= {size}, got {found}."
        )
    return found[0], found[1]


def shaped(n: UOp, *tail: int, dtype: Any = None) -> Aval:
    """A result with the batch axes of n."""
    return aval((*n.shape[:-2], *tail), n.dtype if dtype is None else np.dtype(dtype))


def symmetrized(n: UOp) -> UOp:
    """(a + a^H) / 2."""
    return b.mul(b.add(n, adjoint(n)), b.like(n, 0.5))


def cholesky(x: ArrayLike, *, symmetrize_input: bool = True) -> Array:
    """Lower L with L L^H = x, for Hermitian positive definite x; NaN otherwise.

    With `symmetrize_input` x is replaced by its Hermitian part, so that gradients are Hermitian;
    else only the lower triangle is read.
    """
    n = matrix("cholesky", x, square=True)
    n = symmetrized(n) if symmetrize_input else n
    return finish(host_call("cholesky", (), [n], [n.aval])[0])


def qr(
    x: ArrayLike,
    *,
    pivoting: bool = False,
    full_matrices: bool = True,
    use_magma: bool | None = None,
) -> tuple[Array, Array]:
    """(q, r) with q r = x, q with orthonormal columns, r upper triangular.

    `use_magma` is for GPUs and changes nothing.
    """
    if pivoting:
        raise ValueError(
            "qr with pivoting=True needs a LAPACK routine that NumPy does not offer.\n"
            "  Call scipy.linalg.qr through jax.pure_callback."
        )
    n = matrix("qr", x)
    rows, columns = n.shape[-2:]
    k = rows if full_matrices else min(rows, columns)
    q, r = finish_all(
        host_call("qr", (bool(full_matrices),), [n], [shaped(n, rows, k), shaped(n, k, columns)])
    )
    return q, r


def eigh(
    x: ArrayLike,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    implementation: EighImplementation | None = None,
) -> tuple[Array, Array]:
    """(v, w): eigenvectors in columns and ascending eigenvalues of a Hermitian matrix.

    `sort_eigenvalues` and `implementation` change nothing: it is LAPACK's, which sorts.
    """
    n = matrix("eigh", x, square=True)
    n = symmetrized(n) if symmetrize_input else n
    size = n.shape[-1]
    real = dtypes.to_floating_dtype(n.dtype)
    v, w = host_call("eigh", (bool(lower),), [n], [n.aval, shaped(n, size, dtype=real)])
    if subset_by_index is not None:
        start, stop = subset(subset_by_index, size)
        v, w = b.slice_axis(v, v.ndim - 1, start, stop), b.slice_axis(w, w.ndim - 1, start, stop)
    vectors, values = finish_all([v, w])
    return vectors, values


def eig(
    x: ArrayLike,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    implementation: EigImplementation | None = None,
) -> list[Array]:
    """[w, left vectors, right vectors] of a square matrix, complex; only those asked for.

    Left vectors u have u^H x = w u^H; rows of the inverse of the right ones, normalised.
    `implementation` changes nothing: it is LAPACK's.
    """
    n = matrix("eig", x, square=True)
    kind = dtypes.to_complex_dtype(n.dtype)
    size = n.shape[-1]
    w, right = host_call(
        "eig", (), [n], [shaped(n, size, dtype=kind), shaped(n, size, size, dtype=kind)]
    )
    out = [w]
    if compute_left_eigenvectors:
        inverse = adjoint(host_call("solve", (), [right, eye(right)], [right.aval])[0])
        norm = b.sqrt(b.sum_(b.real(b.mul(inverse, b.conj(inverse))), (inverse.ndim - 2,)))
        lead = (*range(inverse.ndim - 2), inverse.ndim - 1)
        out.append(b.div(inverse, b.expand(b.cast(norm, kind), inverse.shape, lead)))
    if compute_right_eigenvectors:
        out.append(right)
    return finish_all(out)


def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: SvdAlgorithm | None = None,
) -> Any:
    """(u, s, vh) with u diag(s) vh = x, s descending; s alone without `compute_uv`.

    `algorithm` changes nothing: it is LAPACK's.
    """
    n = matrix("svd", x)
    rows, columns = n.shape[-2:]
    k = min(rows, columns)
    real = dtypes.to_floating_dtype(n.dtype)
    start, stop = (0, k) if subset_by_index is None else subset(subset_by_index, k)
    if not compute_uv:
        (s,) = host_call("svd", (bool(full_matrices), False), [n], [shaped(n, k, dtype=real)])
        return finish(b.slice_axis(s, s.ndim - 1, start, stop))
    if subset_by_index is not None and full_matrices and (start, stop) != (0, k):
        raise ValueError(
            "full_matrices and subset_by_index cannot both be set.\n"
            "  Pass full_matrices=False: a subset has no added vectors."
        )
    left, right = (rows, columns) if full_matrices else (k, k)
    out = [shaped(n, k, dtype=real), shaped(n, rows, left), shaped(n, right, columns)]
    s, u, vh = host_call("svd", (bool(full_matrices), True), [n], out)
    if (start, stop) != (0, k):
        s = b.slice_axis(s, s.ndim - 1, start, stop)
        u = b.slice_axis(u, u.ndim - 1, start, stop)
        vh = b.slice_axis(vh, vh.ndim - 2, start, stop)
    return tuple(finish_all([u, s, vh]))


def triangular_solve(
    a: ArrayLike,
    b: ArrayLike,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Array:
    """x with op(a) x = b (`left_side`) or x op(a) = b; only the named triangle of a is read.

    Dtype: unchanged; narrow floats are solved in float32.
    """
    na, nb = same_dtypes("triangular_solve", [lift(a), lift(b)])
    narrow = nb.dtype if dtypes.is_float(nb.dtype) and dtypes.bit_width(nb.dtype) < 32 else None
    if narrow is not None:
        na, nb = (build.cast(n, np.float32) for n in (na, nb))
    na = matrix("triangular_solve", finish(na), square=True)
    vector = nb.ndim == na.ndim - 1
    if vector:
        nb = build.unsqueeze(nb, nb.ndim if left_side else nb.ndim - 1)
    contracted = nb.ndim - 2 if left_side else nb.ndim - 1
    if nb.ndim != na.ndim or nb.shape[:-2] != na.shape[:-2] or nb.shape[contracted] != na.shape[-1]:
        raise ShapeMismatch(
            "triangular_solve requires both arguments to have the same number of dimensions and "
            f"equal batch dimensions, and the sizes to fit, got a.shape={na.shape} and "
            f"b.shape={lift(b).shape}"
        )
    params = (
        bool(left_side), bool(lower), bool(transpose_a), bool(conjugate_a), bool(unit_diagonal),
    )  # fmt: skip
    (x,) = host_call("triangular_solve", params, [na, nb], [nb.aval.strip_weak_type()])
    x = x if narrow is None else build.cast(x, narrow)
    return finish(build.squeeze(x, (x.ndim - 1 if left_side else x.ndim - 2,)) if vector else x)


def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """x with a x = b for square a and a matrix b; NaN where a is singular. (JAX has it in
    numpy.)"""
    na, nb = same_dtypes("solve", [lift(a), lift(b)])
    na = matrix("solve", finish(na), square=True)
    return finish(host_call("solve", (), [na, nb], [nb.aval.strip_weak_type()])[0])


def lu(x: ArrayLike) -> list[Array]:
    """[lu, pivots, permutation]: x[permutation] = L U, both factors in one matrix."""
    n = matrix("lu", x)
    rows, columns = n.shape[-2:]
    out = [n.aval, shaped(n, min(rows, columns), dtype=INT32), shaped(n, rows, dtype=INT32)]
    return finish_all(host_call("lu", (), [n], out))


def lu_pivots_to_permutation(pivots: ArrayLike, permutation_size: int) -> Array:
    """The permutation that a sequence of row swaps makes."""
    n = lift(pivots)
    if not dtypes.is_integer(n.dtype) or n.ndim < 1:
        raise TypeError(
            f"pivots must be an array of integers, got {n.aval.str_short()}.\n"
            "  Pass the second result of lax.linalg.lu."
        )
    swaps = n.shape[-1]
    permutation_size = as_int(permutation_size, "permutation_size")
    if permutation_size < swaps:
        raise ValueError(
            f"Output permutation size {permutation_size} has to exceed the trailing dimension of "
            "the "
            f"pivots. Got pivots size {swaps}.\n  Give the number of rows of the matrix."
        )
    lead = n.shape[:-1]
    last = len(lead)
    shape = (*lead, permutation_size)
    place = b.iota(shape, last)

    def swap(order: Any, step: Any) -> Any:
        i, target = (lift(s) for s in step)
        now = order.node
        here = b.eq(place, b.fill_to(i, shape))
        there = b.eq(place, b.expand(b.cast(target, INT32), shape, tuple(range(last))))

        def value_at(mask: UOp) -> UOp:
            found = b.sum_(b.where(mask, now, b.like(now, 0)), (last,))
            return b.expand(found, shape, tuple(range(last)))

        first, second = value_at(here), value_at(there)
        return finish(b.where(here, second, b.where(there, first, now))), None

    steps = finish_all([b.iota((swaps,), 0), b.moveaxis(n, last, 0)])
    return scan(swap, finish(place), tuple(steps))[0]  # type: ignore[no-any-return]


def symmetric_product(
    a_matrix: ArrayLike,
    c_matrix: ArrayLike,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    symmetrize_output: bool = False,
) -> Array:
    """alpha a a^T + beta c."""
    na, nc = same_dtypes("symmetric_product", [lift(a_matrix), lift(c_matrix)])
    out = b.mul(b.like(na, alpha), matmul(na, transposed(na)))
    out = b.add(out, b.mul(b.like(nc, beta), nc))
    if symmetrize_output:
        low = triangle(out, True)
        out = b.add(low, transposed(triangle(out, True, -1)))
    return finish(out)


def householder_product(a: ArrayLike, taus: ArrayLike) -> Array:
    """The first columns of H_1 ... H_k, H_i = I - tau_i v_i v_i^H with v_i in the columns of a."""
    n, t = matrix("householder_product", a), lift(taus)
    rows, columns = n.shape[-2:]
    if rows < columns or t.shape[:-1] != n.shape[:-2] or not 1 <= t.ndim <= n.ndim:
        raise ShapeMismatch(
            "householder_product takes a[..., m, n] with m >= n and taus[..., k], got shapes "
            f"{n.shape} and {t.shape}."
        )
    lead = tuple(range(n.ndim - 2))
    unit = b.slice_axis(eye(n, rows), n.ndim - 1, 0, columns)
    vectors = b.add(triangle(n, True, -1), unit)
    out = unit
    for i in reversed(range(t.shape[-1])):
        v = b.slice_axis(vectors, n.ndim - 1, i, i + 1)
        tau = b.reshape(b.slice_axis(t, t.ndim - 1, i, i + 1), (*t.shape[:-1], 1, 1))
        update = b.mul(
            b.expand(tau, n.shape, (*lead, n.ndim - 2, n.ndim - 1)),
            matmul(v, matmul(adjoint(v), out)),
        )
        out = b.sub(out, update)
    return finish(out)


def tridiagonal_solve(
    dl: ArrayLike, d: ArrayLike, du: ArrayLike, b: ArrayLike, *, perturb_singular: bool = False
) -> Array:
    """x with T x = b, T tridiagonal with diagonals dl (dl[0] unused), d, du (du[-1] unused).

    By elimination without pivoting (Thomas), a scan down and a scan up; not for ill-conditioned T.
    Raises: NotImplementedError for `perturb_singular`, which needs pivots.
    """
    if perturb_singular:
        raise NotImplementedError(
            "tridiagonal_solve eliminates without pivoting and cannot perturb a singular matrix: add "
            "a small multiple of the identity to d."
        )
    lower, main, upper, rhs = same_dtypes("tridiagonal_solve", [lift(x) for x in (dl, d, du, b)])
    if not lower.shape == main.shape == upper.shape or rhs.shape[:-1] != main.shape:
        raise ValueError(
            "tridiagonal_solve needs diagonals of equal shape [..., n] and b of shape [..., n, "
            "k], got "
            f"{lower.shape}, {main.shape}, {upper.shape} and {rhs.shape}"
        )
    axis = main.ndim - 1

    def column(x: UOp, like: UOp) -> UOp:
        return build.expand(x, like.shape, tuple(range(x.ndim)))

    def down(carry: Any, row: Any) -> Any:
        above, value = (lift(c) for c in carry)
        lo, di, up, r = (lift(x) for x in row)
        pivot = build.sub(di, build.mul(lo, above))
        next_above = build.div(up, pivot)
        change = build.sub(r, build.mul(column(lo, r), value))
        next_value = build.div(change, column(pivot, r))
        out = tuple(finish_all([next_above, next_value]))
        return out, out

    def up_again(below: Any, row: Any) -> Any:
        above, value = (lift(x) for x in row)
        x = finish(build.sub(value, build.mul(column(above, value), below.node)))
        return x, x

    rows = tuple(finish_all([build.moveaxis(x, axis, 0) for x in (lower, main, upper, rhs)]))
    zero = build.zeros(rows[0].aval.update(shape=rows[0].shape[1:]))
    none = build.zeros(rows[3].aval.update(shape=rows[3].shape[1:]))
    _, (ratios, values) = scan(down, (finish(zero), finish(none)), rows)
    out = scan(up_again, finish(none), (ratios, values), reverse=True)[1]
    return finish(build.moveaxis(lift(out), 0, axis))


__all__ = [
    "EigImplementation", "EighImplementation", "SvdAlgorithm", "cholesky", "eig", "eigh",
    "householder_product", "lu", "lu_pivots_to_permutation", "qr", "solve", "svd",
    "symmetric_product",
    "triangular_solve", "tridiagonal_solve",
]  # fmt: skip

_publish_functions(globals())
