"""Options and older calling forms of lax functions are JAX's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.oracle import Case, check, numbers, raises
from tinyjax import lax
from tinyjax import numpy as jnp

X = np.float32([0.5, 1.5, 2.5])
N = np.int8([100, -100, 7])
M = numbers(4, 4)


def over_axis(f: Any) -> Case:
    return lambda J: J.vmap(lambda x: f(J, x), axis_name="i")(X)


def slope_of_square(J: Any) -> Any:
    return J.grad(lambda x: J.lax.mul(x, x, out_dtype=np.float32))(J.numpy.bfloat16(2))


CASES: dict[str, Case] = {
    "mul widens": lambda J: J.lax.mul(N, N, out_dtype=np.int32),
    "mul widens bfloat16": lambda J: (
        J.lax.mul(J.numpy.bfloat16(1.5), J.numpy.bfloat16(1.0078), out_dtype=np.float32)
    ),
    "mul narrows": lambda J: J.lax.mul(X, X, out_dtype=J.numpy.bfloat16),
    "mul of two dtypes": lambda J: J.lax.mul(np.int32([3]), X[:1], out_dtype=np.float32),
    "mul to integers": lambda J: J.lax.mul(X, X, out_dtype=np.int32),
    "mul of complex": lambda J: J.lax.mul(X + 1j, X + 1j, out_dtype=np.complex64),
    "mul gradient": slope_of_square,
    "mul keywords": lambda J: J.lax.mul(x=X, y=X),
    "nextafter": lambda J: J.lax.nextafter(x1=X, x2=X + 1),
    "igamma": lambda J: J.lax.igamma(x=X, a=X + 1),
    "igammac": lambda J: J.lax.igammac(X, x=X),
    "betainc": lambda J: J.lax.betainc(a=X, b=X, x=X / 3),
    "polygamma": lambda J: J.lax.polygamma(m=np.float32([1, 2, 3]), x=X),
    "zeta": lambda J: J.lax.zeta(X + 1, q=X),
    "bessel": lambda J: (J.lax.bessel_i0e(x=X), J.lax.bessel_i1e(x=X)),
    "accuracy": lambda J: J.lax.exp(X, accuracy=J.lax.AccuracyMode.HIGHEST),
    "round": lambda J: J.lax.round(X, J.lax.RoundingMethod.TO_NEAREST_EVEN),
    "round away": lambda J: J.lax.round(X),
    "tolerance": lambda J: J.lax.Tolerance(rtol=1e-3).rtol,
    "reduce_window": lambda J: J.lax.reduce_window(X, 0.0, J.lax.add, (2,)),
    "scatter_sub": lambda J: J.lax.scatter_sub(
        X, np.int32([[1], [5]]), X[:2],
        J.lax.ScatterDimensionNumbers((), (0,), (0,)), mode="clip", unique_indices=False,
    ),
    "all_gather": over_axis(lambda J, x: J.lax.all_gather(x, "i", to="varying")),
    "operand None": lambda J: J.lax.cond(True, lambda x: x is None, lambda x: False, operand=None),
    "operand": lambda J: J.lax.switch(1, [lambda x: x, lambda x: -x], operand=X),
    "five arguments": lambda J: (
        J.lax.cond(False, X, lambda x: x, {"a": X}, lambda t: t["a"] * 2),
        J.jit(lambda p: J.lax.cond(p, 1.0, lambda x: x, 2.0, lambda x: -x))(True),
    ),
    "platform": lambda J: J.lax.platform_dependent(X, cpu=lambda x: x * 2, default=lambda x: x),
    "default platform": lambda J: J.lax.platform_dependent(X, tpu=lambda x: -x, default=lambda x: x),
    "constraint": lambda J: J.lax.with_sharding_constraint(X, J.numpy.ones(1).sharding),
    "full_like": lambda J: J.lax.full_like(X, 2, None, (2,), None),
    "stack": lambda J: J.lax.stack(operands=[X, X], axis=1),
    "broadcast_like": lambda J: J.lax.broadcast_like(arr=X, like_arr=np.ones((2, 3), "f4")),
    "patches": lambda J: J.lax.conv_general_dilated_patches(
        J.numpy.asarray(M[None, None], "bfloat16"), (2, 2), (1, 1), "VALID",
        preferred_element_type=np.float32,
    ),
    "cholesky": lambda J: J.lax.linalg.cholesky(x=M @ M.T + np.eye(4, dtype="f4")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_options_do_what_they_do_in_jax(name: str):
    check(CASES[name], 1e-5)


ERRORS: dict[str, Case] = {
    "mul of two dtypes": lambda J: J.lax.mul(N, X),
    "positional accuracy": lambda J: J.lax.exp(X, None),
    "accuracy of floor": lambda J: J.lax.floor(X, accuracy=None),
    "no tolerance": lambda J: J.lax.Tolerance(),
    "negative tolerance": lambda J: J.lax.Tolerance(atol=-1.0),
    "another to": over_axis(lambda J, x: J.lax.all_gather(x, "i", to="all")),
    "operand twice": lambda J: J.lax.cond(True, lambda x: x, lambda x: x, X, operand=X),
    "no platform": lambda J: J.lax.platform_dependent(X, tpu=lambda x: x),
    "too few": lambda J: J.lax.igamma(X),
    "unknown name": lambda J: J.lax.igamma(X, y=X),
    "mulhi by name": lambda J: J.lax.mulhi(x=N, y=N),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_jax_refuses_is_refused(name: str):
    raises(ERRORS[name])


def test_accuracy_is_a_mode_or_a_tolerance():
    with pytest.raises(TypeError, match="must be a Tolerance, an AccuracyMode or None, got 3"):
        lax.exp(X, accuracy=3)
    assert lax.exp(1.0, accuracy=lax.Tolerance(ulps=2)) == jnp.exp(1.0)


def test_a_missing_argument_of_a_special_function_is_named():
    with pytest.raises(TypeError, match=r"igamma\(\) got other arguments than \(a, x\): .*'x'"):
        lax.igamma(X)


def test_a_singular_tridiagonal_system_is_not_perturbed_silently():
    with pytest.raises(NotImplementedError, match="multiple of the identity"):
        lax.linalg.tridiagonal_solve(X, X, X, X[:, None], perturb_singular=True)
