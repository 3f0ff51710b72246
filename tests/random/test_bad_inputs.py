"""Arguments of `random` that fit nowhere: the class of the exception is JAX's, the message names them."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
import tinyjax.numpy as jnp
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


@pytest.mark.parametrize("draw", ["normal", "uniform", "bits"])
def test_dtypes_of_four_bits_are_not_drawn(draw: str):
    dtype = jnp.uint4 if draw == "bits" else jnp.float4_e2m1fn
    with pytest.raises(TypeError, match=f"bits can be drawn, got {dtype.dtype.name}: draw a wider"):
        getattr(tinyjax.random, draw)(tinyjax.random.key(0), (3,), dtype)


NUMERIC = {
    "power": lambda k: k**1,
    "power of an array": lambda k: jnp.power(k, jnp.int32(1)),
    "not": jnp.logical_not,
    "and": lambda k: jnp.logical_and(k, k),
    "or": lambda k: jnp.logical_or(True, k),
    "xor": lambda k: jnp.logical_xor(k, True),
    "any": jnp.any,
    "all": lambda k: k.all(),
    "count_nonzero": jnp.count_nonzero,
    "nonzero": lambda k: k.nonzero(),
    "argwhere": jnp.argwhere,
    "where": jnp.where,
    "where of three": lambda k: jnp.where(k, 1, 2),
    "trim_zeros": jnp.trim_zeros,
}


@pytest.mark.parametrize("name", NUMERIC)
def test_keys_are_no_numbers_and_have_no_truth(name: str):
    keys = tinyjax.random.split(tinyjax.random.key(0), 3)
    for f in (NUMERIC[name], tinyjax.jit(NUMERIC[name])):
        with pytest.raises(TypeError, match="key<fry>"):
            f(keys)


def test_nothing_can_be_permuted():
    check(lambda J: J.random.permutation(J.random.key(0), M[:0]))


def test_the_power_of_a_generalized_normal_may_be_traced():
    random, key = tinyjax.random, tinyjax.random.key(0)
    traced = tinyjax.jit(lambda p: random.generalized_normal(key, p, (3,)))(3.0)
    np.testing.assert_allclose(traced, random.generalized_normal(key, 3.0, (3,)), rtol=1e-6)
    ball = tinyjax.jit(lambda p: random.ball(key, 2, p, (3,)))(3.0)
    np.testing.assert_allclose(ball, random.ball(key, 2, 3.0, (3,)), rtol=1e-6)
