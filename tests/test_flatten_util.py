"""ravel_pytree: a vector of all leaves, and back."""

from __future__ import annotations

import jax.flatten_util as oracle  # jax loads it on request only
import numpy as np
import pytest

from tests.oracle import Case, check, raises

assert oracle
TREE = {"a": np.arange(6, dtype="f4").reshape(2, 3), "b": [np.float32(2.0)]}
MIXED = {"a": TREE["a"], "n": np.arange(2, dtype="i4"), "h": np.ones(2, "f2")}

CASES: dict[str, Case] = {
    "one dtype": lambda J: back(J, TREE, lambda v: v),
    "one dtype, another vector": lambda J: back(J, TREE, lambda v: v.astype("int32")),
    "one dtype, a narrow vector": lambda J: back(J, TREE, lambda v: v.astype("float16")),
    "mixed": lambda J: back(J, MIXED, lambda v: v * 2),
    "empty": lambda J: back(J, {}, lambda v: v),
    "hessian": lambda J: J.hessian(lambda v: (back(J, TREE, lambda _: v)[1]["a"] ** 3).sum())(
        np.arange(7, dtype="f4")
    ),
}
REFUSED: dict[str, Case] = {
    "mixed, another dtype": lambda J: back(J, MIXED, lambda v: v.astype("int32")),
    "another length": lambda J: back(J, TREE, lambda v: v[1:]),
}


def back(J, tree, change):
    """The vector and what becomes of it when it is changed and unravelled."""
    vector, unravel = J.flatten_util.ravel_pytree(tree)
    return vector, unravel(change(vector))


@pytest.mark.parametrize("name", CASES)
def test_vectors_and_trees_are_jaxs(name: str):
    check(CASES[name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_refuses_is_refused_with_its_type(name: str):
    raises(REFUSED[name])
