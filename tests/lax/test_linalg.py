"""`tinyjax.lax.linalg` against jax: values, and derivatives in both modes, also in batches."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, assert_same, check, numbers, pullback, pushforward, raises, x64

A = numbers(3, 3, dtype=np.float64)
SPD = A @ A.T + np.eye(3)
Z = numbers(3, 3, dtype=np.complex128)
HPD = Z @ Z.conj().T + np.eye(3)
TALL, WIDE = numbers(2, 4, 3, dtype=np.float64), numbers(3, 5, dtype=np.float64)
BATCH = np.stack([SPD, SPD + np.diag([1.0, 2.0, 0.5])])
RHS = numbers(3, 2, dtype=np.float64, seed=3)
TRI = np.tril(A) + 3 * np.eye(3)

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "cholesky": (lambda J: J.lax.linalg.cholesky, (SPD,)),
    "cholesky batch": (lambda J: J.lax.linalg.cholesky, (BATCH,)),
    "cholesky complex": (lambda J: J.lax.linalg.cholesky, (HPD,)),
    "eigh": (lambda J: lambda a: J.lax.linalg.eigh(a)[1], (BATCH,)),
    "eigh projector": (
        lambda J: lambda a: (lambda v: v[:, :1] @ v[:, :1].T)(J.lax.linalg.eigh(a)[0]), (SPD,)
    ),
    "svd values": (lambda J: lambda a: J.lax.linalg.svd(a, compute_uv=False), (WIDE,)),
    "svd product": (
        lambda J: lambda a: (lambda u, s, v: (u * s**2) @ v)(
            *J.lax.linalg.svd(a, full_matrices=False)
        ), (WIDE,)
    ),
    "svd product tall": (
        lambda J: lambda a: (lambda u, s, v: (u * s**2) @ v)(
            *J.lax.linalg.svd(a, full_matrices=False)
        ), (TALL[0],)
    ),
    "qr": (lambda J: lambda a: J.lax.linalg.qr(a, full_matrices=False), (TALL,)),
    "qr square": (lambda J: J.lax.linalg.qr, (A,)),
    "lu": (lambda J: lambda a: J.lax.linalg.lu(a)[0], (BATCH,)),
    "lu wide": (lambda J: lambda a: J.lax.linalg.lu(a)[0], (WIDE,)),
    "lu tall": (lambda J: lambda a: J.lax.linalg.lu(a)[0], (TALL[1],)),
    "triangular_solve": (
        lambda J: lambda a, y: J.lax.linalg.triangular_solve(a, y, left_side=True, lower=True),
        (TRI, RHS),
    ),
    "triangular_solve right": (
        lambda J: lambda a, y: J.lax.linalg.triangular_solve(a, y, transpose_a=True, lower=True),
        (TRI, RHS.T),
    ),
    "triangular_solve unit conjugate": (
        lambda J: lambda a, y: J.lax.linalg.triangular_solve(
            a, y, left_side=True, unit_diagonal=True, transpose_a=True, conjugate_a=True
        ),
        (HPD, Z),
    ),
    "eig values": (
        lambda J: lambda a: J.lax.linalg.eig(
            a, compute_left_eigenvectors=False, compute_right_eigenvectors=False
        )[0],
        (np.array([[2.0, 1.0], [0.5, 1.0]]),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_tangents_are_those_of_jax(name: str) -> None:
    make, args = FUNCTIONS[name]
    with x64():
        check(lambda J: pushforward(J, make(J), *args), 1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_cotangents_are_those_of_jax(name: str) -> None:
    make, args = FUNCTIONS[name]
    with x64():
        check(lambda J: pullback(J, make(J), *args), 1e-9)


VALUES: dict[str, Case] = {
    "tridiagonal_solve": lambda J: J.lax.linalg.tridiagonal_solve(
        np.float64([0, 1, 0.5]), np.float64([3, 4, 5]), np.float64([1, 1, 0]), RHS
    ),
    "symmetric_product": lambda J: J.lax.linalg.symmetric_product(
        WIDE, SPD, alpha=2.0, beta=0.5, symmetrize_output=True
    ),
    "householder_product": lambda J: J.lax.linalg.householder_product(
        TALL[0], np.array([0.5, 0.25, 1.0])
    ),
    "lu parts": lambda J: J.lax.linalg.lu(TALL),
    "lu of nothing": lambda J: [
        J.lax.linalg.lu(np.zeros(s)) for s in ((0, 0), (2, 0, 0), (0, 3, 3), (2, 0, 3), (2, 3, 0))
    ],
    "determinant of nothing": lambda J: [
        J.numpy.linalg.slogdet(np.zeros(s)) for s in ((0, 0), (2, 0, 0), (0, 3, 3))
    ],
    "pivots": lambda J: J.lax.linalg.lu_pivots_to_permutation(np.int32([[2, 2, 2], [0, 3, 3]]), 4),
    "not definite": lambda J: J.lax.linalg.cholesky(-SPD),
    "one not definite": lambda J: J.lax.linalg.cholesky(np.stack([SPD, -SPD])),
    "svd full": lambda J: [x.shape for x in J.lax.linalg.svd(WIDE)],
    "eigh part": lambda J: J.lax.linalg.eigh(SPD)[1],
    "qr full": lambda J: [x.shape for x in J.lax.linalg.qr(TALL)],
    "vmapped cholesky": lambda J: J.vmap(J.grad(lambda a: J.lax.linalg.cholesky(a).sum()))(BATCH),
    "vmapped shared solve": lambda J: J.vmap(
        lambda y: J.lax.linalg.triangular_solve(TRI, y, left_side=True, lower=True), in_axes=1
    )(RHS[:, :, None]),
    "jitted": lambda J: J.jit(lambda a: J.lax.linalg.cholesky(a) @ a)(SPD),
    "second derivative": lambda J: J.hessian(
        lambda t: J.lax.linalg.cholesky(SPD + t * A @ A.T).sum()
    )(0.5),
}


@pytest.mark.parametrize("name", VALUES)
def test_results_are_those_of_jax(name: str) -> None:
    with x64():
        check(VALUES[name], 1e-10)


def test_eigenvectors_of_a_general_matrix_have_a_derivative() -> None:
    """JAX has none; the reference is a central difference."""
    a = np.array([[2.0, 1.0, 0.3], [0.5, 1.0, -1.0], [0.1, 0.7, -2.0]])
    d = numbers(3, 3, dtype=np.float64, seed=8)

    def vectors(m: Any) -> Any:
        return tinyjax.lax.linalg.eig(m, compute_left_eigenvectors=False)[1]

    with x64():
        _, tangent = tinyjax.jvp(vectors, (a,), (d,))
        h = 1e-6
        numeric = (np.asarray(vectors(a + h * d)) - np.asarray(vectors(a - h * d))) / (2 * h)
        np.testing.assert_allclose(tangent, numeric, atol=1e-7)


def test_left_eigenvectors_satisfy_their_equation() -> None:
    with x64():
        w, left, right = tinyjax.lax.linalg.eig(A)
        u, v = np.asarray(left), np.asarray(right)
        np.testing.assert_allclose(u.conj().T @ A, np.asarray(w)[:, None] * u.conj().T, atol=1e-12)
        np.testing.assert_allclose(A @ v, v * np.asarray(w), atol=1e-12)
        assert_same(w, jax.lax.linalg.eig(A)[0], 1e-10)


def test_a_wide_qr_has_a_derivative() -> None:
    """JAX has none; the reference is a central difference."""
    d = numbers(3, 5, dtype=np.float64, seed=8)
    with x64():
        qr = lambda m: tinyjax.lax.linalg.qr(m, full_matrices=False)
        _, tangents = tinyjax.jvp(qr, (WIDE,), (d,))
        h = 1e-6
        for t, hi, lo in zip(tangents, qr(WIDE + h * d), qr(WIDE - h * d), strict=True):
            np.testing.assert_allclose(t, (np.asarray(hi) - np.asarray(lo)) / (2 * h), atol=1e-7)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (lambda J: J.lax.linalg.cholesky(numbers(2, 3)), "square"),
        (lambda J: J.lax.linalg.cholesky(numbers(3)), "ndims >= 2"),
        (lambda J: J.lax.linalg.triangular_solve(numbers(3, 3), numbers(2, 2)), "b.shape=(2, 2)"),
    ],
)  # fmt: skip
def test_bad_operands_are_named(case: Case, text: str) -> None:
    assert text in str(raises(case))


def test_a_dtype_that_lapack_lacks_is_named() -> None:
    with pytest.raises(TypeError, match="does not accept dtype float16"):
        tinyjax.lax.linalg.cholesky(np.eye(2, dtype=np.float16))
