"""expm: against JAX in double precision, for all sizes of the norm; its derivatives."""

from __future__ import annotations

from typing import Any

import jax.scipy.linalg as oracle_linalg
import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, check, numbers, raises, x64
from tinyjax import numpy as jnp
from tinyjax.scipy.linalg import expm, expm_frechet

assert oracle_linalg  # jax loads it on request only
A = numbers(3, 3)
STACK = numbers(2, 3, 3) * np.float32([[[0.01]], [[9.0]]])


@pytest.mark.parametrize("scale", [1e-4, 0.3, 2.0, 12.0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_values_are_good_to_the_dtype_whatever_the_norm(dtype: str, scale: float):
    with x64():
        a = (
            numbers(4, 4, dtype=dtype if dtype[0] == "c" else "float64").astype("complex128")
            * scale
        )
        a = (a if dtype[0] == "c" else a.real).astype(dtype)
        got = expm(a)
        want = np.asarray(oracle_linalg.expm(a.astype("complex128")))
        assert got.dtype == dtype
        # The condition number of the exponential is at least the norm.
        allowed = 4 * np.finfo(dtype).eps * max(1.0, np.abs(a).sum(0).max())
        np.testing.assert_allclose(got, want, rtol=0, atol=allowed * np.abs(want).max())


CASES: dict[str, Case] = {
    "a stack, each with its own scaling": lambda J: J.scipy.linalg.expm(STACK),
    "vmap": lambda J: J.vmap(J.scipy.linalg.expm)(STACK),
    "under jit": lambda J: J.jit(J.scipy.linalg.expm)(A),
    "triangular": lambda J: J.scipy.linalg.expm(np.triu(A), upper_triangular=True),
    "integers": lambda J: J.scipy.linalg.expm(np.int32([[1, 2], [3, 4]])),
    "one by one": lambda J: J.scipy.linalg.expm(np.float32([[2.0]])),
    "empty": lambda J: J.scipy.linalg.expm(np.zeros((0, 0), "f4")),
    "too large": lambda J: J.scipy.linalg.expm(A * 1e6, max_squarings=3),
    "NaN": lambda J: J.scipy.linalg.expm(A * np.float32(np.nan)),
    "gradient": lambda J: J.grad(lambda a: (J.scipy.linalg.expm(a) ** 2).sum())(A),
    "gradient at zero": lambda J: J.grad(lambda a: J.scipy.linalg.expm(a).sum())(A * 0),
    "jacfwd": lambda J: J.jacfwd(J.scipy.linalg.expm)(A),
    "frechet": lambda J: J.scipy.linalg.expm_frechet(A, A[::-1]),
    "frechet alone": lambda J: J.scipy.linalg.expm_frechet(STACK, STACK * 2, compute_expm=False),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_that_of_jax(name: str):
    check(CASES[name], 3e-5)


ERRORS: dict[str, Case] = {
    "not square": lambda J: J.scipy.linalg.expm(A[:2]),
    "a vector": lambda J: J.scipy.linalg.expm(A[0]),
    "narrow": lambda J: J.scipy.linalg.expm(A.astype("float16")),
    "shapes": lambda J: J.scipy.linalg.expm_frechet(A, STACK),
    "frechet not square": lambda J: J.scipy.linalg.expm_frechet(A[:2], A[:2]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_jax_refuses_is_refused(name: str):
    raises(ERRORS[name])


@pytest.mark.parametrize("scale", [0.5, 8.0])
def test_derivatives_are_right_to_second_order(scale: float):
    with x64():
        tinyjax.test_util.check_grads(expm, (numbers(3, 3, dtype="f8") * scale,), order=2)


def test_the_derivative_along_a_commuting_direction_is_known():
    with x64():
        a = numbers(3, 3, dtype="f8")
        value, slope = expm_frechet(a, a @ a)
        np.testing.assert_allclose(slope, value @ a @ a, rtol=1e-12)


def test_exponentials_of_multiples_multiply():
    with x64():
        a: Any = numbers(4, 4, dtype="f8")
        np.testing.assert_allclose(expm(3 * a) @ expm(-2 * a), expm(a), rtol=1e-10)
        skew = a - a.T
        np.testing.assert_allclose(expm(skew) @ expm(skew).T, jnp.eye(4), atol=1e-13)
