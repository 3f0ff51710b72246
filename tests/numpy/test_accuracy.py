"""Elementary functions are within 2 units of the last place, called at once and compiled."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax as jax
from tests.lowering.test_math import DTYPES, WIDER, exact_error, samples, ulp_errors
from tinyjax import lax
from tinyjax import numpy as jnp
from tinyjax.interpreters import evaluate_elementwise

WIDE = np.longdouble

SAME_NAME = "exp exp2 expm1 tanh sinh cosh log log2 log1p sin cos tan cbrt".split()
FUNCTIONS = {name.upper(): getattr(jnp, name) for name in SAME_NAME} | {
    "ASINH": jnp.arcsinh,
    "ACOSH": jnp.arccosh,
    "ATANH": jnp.arctanh,
    "ASIN": jnp.arcsin,
    "ACOS": jnp.arccos,
    "ATAN": jnp.arctan,
    "ATAN2": jnp.arctan2,
    "POW": jnp.power,
    "RSQRT": lax.rsqrt,
    "LOGISTIC": lax.logistic,
}


def around_powers_of_ten(dtype):
    """Where the logarithm's unit is large against that of the result, and everywhere else."""
    rng = np.random.default_rng(0)
    draws = [rng.uniform(0.5, 4, 20_000), np.exp(rng.uniform(-4, 4, 20_000))]
    draws += [10.0 ** rng.uniform(k, k + 0.2, 1000) for k in range(-30, 30)]
    return np.concatenate([*samples("LOG", dtype, 20_000), *draws]).astype(dtype)


def within_2_ulp(f, exact, args):
    dtype = args[0].dtype
    with np.errstate(all="ignore"):
        want = exact(*(x.astype(WIDE) for x in args))
    with jax.enable_x64(dtype == np.float64):
        for way in (f, jax.jit(f)):
            got = np.asarray(way(*map(jnp.asarray, args)))
            assert got.dtype == dtype
            errors = ulp_errors(got, want)
            worst = int(np.argmax(errors))
            assert errors[worst] <= 2, ([x[worst] for x in args], errors[worst])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "f"), [("ERF", lax.erf), ("ERFINV", lax.erf_inv)])
def test_the_error_function_and_its_inverse_are_within_2_ulp_of_120_bit_arithmetic(name, f, dtype):
    (x,) = samples(name, dtype, 800)
    inside = np.linspace(-0.999, 0.999, 400).astype(dtype)
    x = np.concatenate([x, inside])
    with jax.enable_x64(dtype is np.float64):
        for way in (f, jax.jit(f)):
            errors = [exact_error(name, (p,), y) for p, y in zip(x, np.asarray(way(x)))]
            worst = int(np.argmax(errors))
            assert errors[worst] <= 2, (x[worst], errors[worst])


def test_every_function_with_a_wider_one_to_compare_with_is_here():
    assert set(FUNCTIONS) == set(WIDER)


@pytest.mark.skipif(np.finfo(WIDE).nmant < 63, reason="no wider float than float64")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_within_2_ulp_of_long_double(name, dtype):
    within_2_ulp(FUNCTIONS[name], WIDER[name], samples(name, dtype, 20_000))


@pytest.mark.skipif(np.finfo(WIDE).nmant < 63, reason="no wider float than float64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_log10_is_within_2_ulp_of_long_double(dtype):
    within_2_ulp(jnp.log10, np.log10, (around_powers_of_ten(dtype),))


@pytest.mark.parametrize("dtype", DTYPES)
def test_log10_of_a_power_of_ten_is_its_exponent(dtype):
    exponents = np.arange(11 if dtype is np.float32 else 23)  # these powers are exact
    powers = np.array([10 ** int(k) for k in exponents], dtype)
    with jax.enable_x64(dtype is np.float64):
        for way in (jnp.log10, jax.jit(jnp.log10)):
            np.testing.assert_array_equal(way(powers), exponents)


@pytest.mark.parametrize("dtype", DTYPES)
def test_log10_at_the_ends_of_its_domain(dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([0.0, -0.0, -1.0, -tiny, np.inf, -np.inf, np.nan, tiny, 1.0], dtype)
    want = [-np.inf, -np.inf, *[np.nan] * 2, np.inf, *[np.nan] * 2, np.log10(tiny), 0.0]
    with jax.enable_x64(dtype is np.float64):
        for way in (jnp.log10, jax.jit(jnp.log10)):
            np.testing.assert_allclose(way(x), np.array(want, dtype), rtol=np.finfo(dtype).eps)


def test_log10_of_many_elements_has_the_bits_of_log10_of_few():
    n = evaluate_elementwise.BLOCK
    x = np.random.default_rng(0).normal(size=n + 5).astype(np.float32)  # NaN for negative ones
    for many in (x, x[:n], x.reshape(-1, 1)):
        few = np.concatenate([np.asarray(jnp.log10(part)) for part in np.array_split(many, 7)])
        assert np.asarray(jnp.log10(many)).tobytes() == few.tobytes()


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_derivatives_of_log10_are_those_of_the_logarithm(transform):
    x = np.array([0.0, -2.0, 0.3, 1.0, 1e30, np.inf, np.nan], np.float32)
    slope = transform(jax.vmap(jax.grad(jnp.log10)))(x)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(slope, np.log10(np.e) / x, rtol=3e-7)
    second = transform(jax.grad(jax.grad(jnp.log10)))(np.float32(0.3))
    np.testing.assert_allclose(second, -np.log10(np.e) / 0.3**2, rtol=1e-6)
