"""allow_negative_indices: whether a run-time start below zero counts from the end."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracle import Case, check, raises

X, M, ZEROS = np.arange(5, dtype="f4"), np.arange(9, dtype="f4").reshape(3, 3), np.zeros(2, "f4")
BACK = np.int32(-2)

CASES: dict[str, Case] = {
    "counted from the end": lambda J: J.lax.dynamic_slice(X, (-2,), (2,)),
    "per axis": lambda J: J.jit(
        lambda i, j: J.lax.dynamic_slice(M, (i, j), (1, 1), allow_negative_indices=[True, False])
    )(BACK, BACK),
    "clamped": lambda J: J.jit(
        lambda i: J.lax.dynamic_slice(X, (i,), (2,), allow_negative_indices=False)
    )(BACK),
    "update": lambda J: J.jit(
        lambda i: J.lax.dynamic_update_slice(X, ZEROS, (i,), allow_negative_indices=False)
    )(BACK),
    "slice in dim": lambda J: J.jit(
        lambda i: J.lax.dynamic_slice_in_dim(M, i, 1, 1, allow_negative_indices=False)
    )(BACK),
    "index in dim": lambda J: J.jit(
        lambda i: J.lax.dynamic_index_in_dim(M, i, 1, False, allow_negative_indices=False)
    )(BACK),
    "update slice in dim": lambda J: J.jit(
        lambda i: J.lax.dynamic_update_slice_in_dim(X, ZEROS, i, 0, allow_negative_indices=False)
    )(BACK),
    "update index in dim": lambda J: J.jit(
        lambda i: J.lax.dynamic_update_index_in_dim(X, 9.0, i, 0, allow_negative_indices=False)
    )(BACK),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_starts_below_zero(name: str):
    check(CASES[name])


def test_a_known_start_below_zero_is_refused():
    raises(lambda J: J.lax.dynamic_slice(X, (-2,), (2,), allow_negative_indices=False))
