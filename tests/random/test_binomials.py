"""binomial and multinomial draw jax's numbers; parameters shared by all distributions."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, check, raises, x64

F = np.float32
CASES: dict[str, Case] = {
    "few": lambda J: J.random.binomial(J.random.key(3), 10, 0.3, (50,)),
    "many": lambda J: J.random.binomial(J.random.key(3), 1000, 0.7, (50,)),
    "mixed": lambda J: J.random.binomial(
        J.random.key(1), F([5, 50, 1e6, 3]), F([0.1, 0.9, 1e-3, 0.5]), (20, 4)
    ),
    "edges": lambda J: J.random.binomial(
        J.random.key(2), F([-1, np.nan, np.inf, 4, 4, 7, 7]),
        F([0.5, 0.5, 0.5, np.nan, -0.1, 0.0, 1.0]),
    ),
    "raw key": lambda J: J.random.binomial(J.random.PRNGKey(0), 20, F([0.2, 0.5])),
    "jit": lambda J: J.jit(lambda k, p: J.random.binomial(k, 30, p))(J.random.key(0), F([0.2, 0.9])),
    "multinomial": lambda J: J.random.multinomial(
        J.random.key(1), F([20, 300]), F([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
    ),
    "multinomial shape": lambda J: J.random.multinomial(
        J.random.key(1), 50, F([0.2, 0.5, 0.3]), shape=(4, 3), dtype=np.int32, unroll=3
    ),
    "multinomial zero tail": lambda J: J.random.multinomial(
        J.random.key(1), F(9), F([0.5, 0.5, 0.0])
    ),
    "key dtype": lambda J: J.random.key_data(
        J.random.key(3, dtype=J.random.key_dtype("threefry2x32"))
    ),
    "wrapped": lambda J: J.random.key_data(
        J.random.wrap_key_data(np.uint32([1, 2]), dtype="threefry2x32")
    ),
    "names": lambda J: (
        J.random.beta(J.random.key(0), a=2.0, b=3.0, shape=(3,), out_sharding=None),
        J.random.pareto(J.random.key(0), b=2.0, shape=(3,)),
        J.random.t(J.random.key(0), df=F([3.0, 4.0])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_of_jax(name: str):
    check(CASES[name], 1e-5, weak=False)


def test_in_double_precision():
    case: Case = lambda J: J.random.binomial(J.random.key(5), 40, 0.4, (20,))
    with x64():
        check(case, weak=False)


def test_counts_add_up():
    p = F([0.1, 0.2, 0.3, 0.4])
    counts = tinyjax.random.multinomial(tinyjax.random.key(0), 1000, p, shape=(64, 4))
    np.testing.assert_array_equal(counts.sum(-1), 1000)
    np.testing.assert_allclose(counts.mean(0), 1000 * p, rtol=0.05)


ERRORS: dict[str, Case] = {
    "dtype": lambda J: J.random.binomial(J.random.key(0), 3, 0.5, dtype=np.int32),
    "shape": lambda J: J.random.binomial(J.random.key(0), F([3, 4]), 0.5, (3,)),
    "impl and dtype": lambda J: J.random.key(0, impl="threefry2x32", dtype="threefry2x32"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_jax(name: str):
    raises(ERRORS[name])
