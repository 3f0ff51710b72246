"""Arguments of `random` that fit nowhere: the class of the exception is JAX's, the message names them."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, check, refuses

M = np.ones((2, 2), np.float32)
CASES: dict[str, tuple[Case, str]] = {
    "complex df": (
        lambda J: J.random.t(J.random.key(0), 1j),
        "cannot safely cast argument df of type complex64 to float32",
    ),
    "complex a": (lambda J: J.random.beta(J.random.key(0), 1j, 2.0), "argument a of type complex64"),
    "complex p": (lambda J: J.random.bernoulli(J.random.key(0), 1j), "floating dtype, got complex64"),
    "complex logits": (
        lambda J: J.random.categorical(J.random.key(0), M * 1j),
        "floating dtype, got complex64",
    ),
    "no keys": (lambda J: J.random.key_data(1.0), "raw ones of uint32[..., 2], got f32[]"),
    "no implementation": (lambda J: J.random.key(0, impl=3), "unrecognized type <class 'int'>"),
    "axis": (
        lambda J: J.random.permutation(J.random.key(0), M, axis=2),
        "axis 2 is out of bounds for array of dimension 2",
    ),
    "shape": (
        lambda J: J.random.normal(J.random.key(0), (2, "a")),
        "Shapes must be 1D sequences of concrete values of integer type, got (2, 'a')",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_bad_argument_is_named(name: str):
    refuses(*CASES[name], __file__)


def test_nothing_can_be_permuted():
    check(lambda J: J.random.permutation(J.random.key(0), M[:0]))


def test_the_power_of_a_generalized_normal_may_be_traced():
    random, key = tinyjax.random, tinyjax.random.key(0)
    traced = tinyjax.jit(lambda p: random.generalized_normal(key, p, (3,)))(3.0)
    np.testing.assert_allclose(traced, random.generalized_normal(key, 3.0, (3,)), rtol=1e-6)
    ball = tinyjax.jit(lambda p: random.ball(key, 2, p, (3,)))(3.0)
    np.testing.assert_allclose(ball, random.ball(key, 2, 3.0, (3,)), rtol=1e-6)
