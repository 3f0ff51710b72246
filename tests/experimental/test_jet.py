"""Taylor mode: against jax's, and where it has no rule, against nested derivatives along a curve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax as oracle
import jax.experimental.jet as oracle_jet
import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, raises, x64
from tinyjax import numpy as jnp
from tinyjax.experimental.jet import jet

X = np.array([0.3, 0.7])
SERIES = [np.array(t) for t in ([1.0, 0.5], [0.2, -0.3], [0.1, 0.9], [-0.4, 0.6], [0.2, 0.3])]


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with x64():
        yield


NAMES = ("sin cos exp log sqrt tanh sinh cosh expm1 log1p square reciprocal").split()
FUNCTIONS: dict[str, Any] = {n: (lambda J, x, n=n: getattr(J.numpy, n)(x)) for n in NAMES}
FUNCTIONS |= {
    "power": lambda J, x: x**2.5,
    "quotient": lambda J, x: J.numpy.sin(x) / (1 + x**2),
    "maximum": lambda J, x: J.numpy.maximum(x, 0.5) + x.max(),
    "logsumexp": lambda J, x: J.nn.logsumexp(x),
    "erf": lambda J, x: J.lax.erf(x),
    "dot": lambda J, x: (x @ np.ones((2, 3))) ** 3,
    "logistic": lambda J, x: J.nn.sigmoid(x),
    "gather": lambda J, x: x[np.array([1, 0, 1])] ** 2,
    "jit": lambda J, x: J.jit(lambda y: J.numpy.exp(y) * y)(x),
}

# Where jax.experimental.jet has no rule, or a wrong one.
LACKING = "tan arctan arcsin exp2 cbrt arcsinh".split()
NESTED: dict[str, Any] = {n: (lambda J, x, n=n: getattr(J.numpy, n)(x)) for n in LACKING}
NESTED |= {
    "product": lambda J, x: J.numpy.prod(x) * x,
    "sort": lambda J, x: J.numpy.sort(-x) ** 3,
    "scan": lambda J, x: J.lax.scan(lambda c, t: (J.numpy.sin(c) * t + x, c * 2), x, x)[1],
    "cond": lambda J, x: J.lax.cond(
        x[0] < 1, lambda y: J.numpy.exp(y) * y, lambda y: y + 1, x
    ),
    "while": lambda J, x: J.lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, J.numpy.sin(s[1]) * x), (0, x)
    )[1],
    "cholesky": lambda J, x: J.numpy.linalg.cholesky(
        J.numpy.outer(x, x) + 3 * J.numpy.eye(2)
    ),
    "solve": lambda J, x: J.numpy.linalg.solve(
        J.numpy.outer(x, x) + 3 * J.numpy.eye(2), x
    ),
    "checkpoint": lambda J, x: J.checkpoint(lambda y: J.numpy.exp(y) * y)(x),
    "power of itself": lambda J, x: x**x,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jet_is_that_of_jax(name: str):
    f = FUNCTIONS[name]
    want, want_terms = oracle_jet.jet(lambda x: f(oracle, x), (X,), (SERIES,))
    value, terms = jet(lambda x: f(tinyjax, x), (X,), (SERIES,))
    assert isinstance(terms, list) and len(terms) == len(SERIES)
    np.testing.assert_allclose(value, want, rtol=1e-12)
    for got, of in zip(terms, want_terms, strict=True):
        assert got.shape == np.shape(of)
        np.testing.assert_allclose(got, of, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NESTED)
def test_jet_gives_the_derivatives_along_the_curve(name: str):
    order = 3
    g = lambda t: NESTED[name](
        tinyjax, X + sum(s * t ** (k + 1) / math.factorial(k + 1) for k, s in enumerate(SERIES[:3]))
    )
    _, terms = jet(lambda x: NESTED[name](tinyjax, x), (X,), (SERIES[:order],))
    for got in terms:
        g = tinyjax.jacfwd(g)
        np.testing.assert_allclose(got, g(0.0), rtol=1e-9, atol=1e-9)


def test_several_arguments_and_results_as_trees():
    case = lambda J, jet: jet(
        lambda x, y: {"p": x * y, "q": (J.numpy.sin(x), 2.0)},
        (0.5, 2.0),
        ([1.0, 0.0, 0.5], [0.0, 1.0, 0.0]),
    )
    ours, theirs = case(tinyjax, jet), case(oracle, oracle_jet.jet)
    assert str(tinyjax.tree.structure(ours)) == str(oracle.tree.structure(theirs))
    for got, of in zip(tinyjax.tree.leaves(ours), oracle.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(got, of, rtol=1e-9, atol=1e-12)


def test_coefficients_without_factorials():
    series = [t / math.factorial(k + 1) for k, t in enumerate(SERIES)]
    _, plain = jet(jnp.exp, (X,), (series,), factorial_scaled=False)
    _, scaled = jet(jnp.exp, (X,), (SERIES,))
    for k, (a, b) in enumerate(zip(plain, scaled, strict=True)):
        np.testing.assert_allclose(a * math.factorial(k + 1), b, rtol=1e-10)


def test_jet_composes():
    third = lambda x: jet(jnp.sin, (x,), ([1.0, 0.0, 0.0],))[1][2]
    np.testing.assert_allclose(third(0.4), -np.cos(0.4), rtol=1e-10)
    np.testing.assert_allclose(tinyjax.grad(third)(0.4), np.sin(0.4), rtol=1e-10)
    np.testing.assert_allclose(tinyjax.jit(tinyjax.vmap(third))(X), -np.cos(X), rtol=1e-10)


def test_the_number_of_operations_is_quadratic_in_the_order():
    def operations(order: int) -> int:
        series = [1.0] + [0.5] * (order - 1)
        f = lambda x: jet(lambda y: jnp.tanh(jnp.exp(jnp.sin(y))), (x,), (series,))[1][-1]
        return len(tinyjax.make_jaxpr(f)(0.3).eqns)

    assert operations(16) < 5 * operations(8)


ERRORS: dict[str, Case] = {
    "lengths": lambda J: J.experimental.jet.jet(
        lambda x, y: x * y, (1.0, 1.0), ([1.0], [1.0, 2.0])
    ),
    "tree": lambda J: J.experimental.jet.jet(lambda x: x[0], ([1.0, 2.0],), ([1.0],)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_jax(name: str):
    raises(ERRORS[name])


def test_each_primal_needs_a_series():
    with pytest.raises(ValueError, match="1 primals and 2 series"):
        tinyjax.experimental.jet.jet(lambda x: x, (1.0,), ((1.0,), (2.0,)))
