"""Tangents and cotangents that users give: accepted and refused where JAX accepts and refuses them."""

from __future__ import annotations

import functools

import jax as oracle
import numpy as np
import pytest

import tinyjax as jax
from tests.oracle import check, raises

FLOAT0 = np.zeros((), oracle.dtypes.float0)
GIVEN = {
    "bool": lambda J: True,
    "int": lambda J: 1,
    "float": lambda J: 1.0,
    "complex": lambda J: 1j,
    "int array": lambda J: J.numpy.int32(1),
    "float array": lambda J: J.numpy.float32(1),
    "weak float array": lambda J: J.numpy.asarray(1.0),
    "half array": lambda J: J.numpy.float16(1),
    "complex array": lambda J: J.numpy.complex64(1),
    "vector": lambda J: J.numpy.ones(2),
    "float0": lambda J: FLOAT0,
    "float0 vector": lambda J: np.zeros(2, oracle.dtypes.float0),
}
PRIMALS = {
    "float": 2.0,
    "half": np.float16(2),
    "complex": np.complex64(2),
    "int": np.int32(2),
    "bool": np.bool_(True),
}


def twice(x):
    return x * 2


def forward(J, primal, given):
    return J.jvp(twice, (J.numpy.asarray(primal),), (given,))


def linearized(J, primal, given):
    return J.linearize(twice, primal)[1](given)


def backward(J, primal, given):
    return J.vjp(twice, primal)[1](given)


def transposed(J, primal, given):
    return J.linear_transpose(twice, primal)(given)


def accepted(case):
    try:
        case(oracle)
    except (TypeError, ValueError):
        return False
    return True


@pytest.mark.parametrize("way", [forward, linearized, backward], ids=lambda way: way.__name__)
@pytest.mark.parametrize("primal", PRIMALS)
def test_what_jax_refuses_is_refused_and_nothing_else(way, primal):
    for given in GIVEN.values():

        def case(J, given=given):
            return way(J, PRIMALS[primal], given(J))

        check(case, weak=False) if accepted(case) else raises(case)


@pytest.mark.parametrize("given", ["float", "float array", "half array", "complex array"])
@pytest.mark.parametrize("primal", ["float", "half", "complex", "int"])
def test_cotangents_of_a_transpose_are_refused_as_by_jax(primal, given):
    def case(J):
        return transposed(J, PRIMALS[primal], GIVEN[given](J))

    check(case, weak=False) if accepted(case) else raises(case)


WORDS = {
    "primal dtype int32 and so expected tangent dtype float0, but got tangent dtype int32 for p['n']": (
        lambda J, tree: J.jvp(lambda p: p["x"], (tree,), (tree,))
    ),
    "Got tangent aval i32[] for primal aval i32[] but expected float0[] (argument tangents[0]['n']": (
        lambda J, tree: J.linearize(lambda p: p["x"], tree)[1](tree)
    ),
    "got i32[], but expected f32[] because the corresponding output of the function <lambda> had JAX "
    "type f32[] (output['x'])": (
        lambda J, tree: J.vjp(lambda p: p, tree)[1](tree | {"x": np.int32(1)})
    ),
}


@pytest.mark.parametrize("words", WORDS)
def test_the_refusal_names_the_leaf(words):
    tree = {"n": np.int32(1), "x": np.float32(1)}
    assert words in str(raises(functools.partial(WORDS[words], tree=tree)))


def test_tangents_of_a_traced_integer_are_refused_too():
    def case(J):
        return J.jit(lambda n: J.jvp(twice, (n,), (n,)))(np.int32(1))

    raises(case)


def test_a_refused_tangent_is_not_taken_for_zero():
    with pytest.raises(TypeError, match="float0"):
        jax.jvp(lambda n, x: n * x, (2, 1.0), (1, 1.0))
