"""Closed forms of folds: the same numbers as the loop, and no loop left."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.lowering.kernels import (
    buffer,
    cast,
    check,
    fold,
    kernel,
    literal,
    load,
    loop,
    node,
    plus,
    same_bits,
    store,
)  # fmt: skip
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.core.verify import verify_kernel
from tinyjax.lowering.collapse import close_folds
from tinyjax.lowering.interpret import interpret

F32, I32, BOOL = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.bool_)
N = 11
SPECIAL = np.array([1.5, -0.0, np.inf, np.nan, -np.inf, 0.0, -2.5, 3e38, -0.0, 7, 1e-40], F32)


def folds(sink: UOp) -> int:
    return sum(n.op is Op.FOLD for n in toposort([sink]))


def closed(value: UOp, kind: str, *arrays: Any, rows: int = 1, left: int = 0) -> np.ndarray:
    """The fold of `value` over range 1 per row of range 0, in closed form; equal to the loop."""
    r, i = loop(N, 1, "reduce"), loop(rows, 0)
    sink = kernel(store(buffer(0, (rows,), value.aval.dtype), i, fold(kind, value, r), i))
    made = close_folds(sink)
    verify_kernel(made)
    assert folds(made) == left, made
    results = []
    for each in (sink, made):
        buffers = [np.zeros(rows, value.aval.dtype), *(a.copy() for a in arrays)]
        interpret(each, buffers)
        results.append(buffers[0])
    wanted, found = results
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        for x, y in ((found.real, wanted.real), (found.imag, wanted.imag)):
            np.testing.assert_array_equal(np.signbit(x[y == 0]), np.signbit(y[y == 0]))
    exact = wanted.dtype.kind in "biu"
    check(made, [np.zeros(rows, value.aval.dtype), *arrays], 0.0 if exact else 1e-6)
    return found


R, I = loop(N, 1, "reduce"), loop(11, 0)
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64"])
@pytest.mark.parametrize("a, b", [(1, 0), (3, -7), (-5, 100), (60, 2)])
def test_a_sum_of_an_affine_count_is_a_literal(dtype: str, a: int, b: int) -> None:
    """Narrow integers wrap as their sums do."""
    closed(cast(plus((R, a), b), dtype), "add")


def test_a_sum_of_a_count_that_wraps_is_left_alone() -> None:
    narrow = node(Op.MUL, cast(R, "int8"), literal(50, "int8"))
    sink = kernel(store(buffer(0, (1,), np.int8), literal(0), fold("add", narrow, R)))
    assert folds(close_folds(sink)) == 1


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64", "complex64"])
def test_a_sum_of_what_does_not_move_is_a_product(dtype: str) -> None:
    values = np.arange(11).astype(dtype) * np.array(3).astype(dtype)
    closed(load(buffer(1, (11,), dtype), I), "add", values, rows=11)


def test_a_sum_of_special_values_that_do_not_move_keeps_them() -> None:
    """NaN and infinities; n times -0.0 is +0.0, as a sum that starts from +0.0 is."""
    found = closed(load(buffer(1, (11,), F32), I), "add", SPECIAL, rows=11)
    assert np.isnan(found[3]) and np.isinf(found[7]) and not np.signbit(found[1])


@pytest.mark.parametrize("kind", ["max", "min", "or", "and"])
def test_an_idempotent_fold_of_what_does_not_move_is_its_value(kind: str) -> None:
    dtype = I32 if kind in ("or", "and") else F32
    values = np.arange(11, dtype=dtype) if dtype == I32 else SPECIAL
    found = closed(load(buffer(1, (11,), dtype), I), kind, values, rows=11)
    same_bits(found, values)


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "float32", "float64"])
@pytest.mark.parametrize("op", [Op.CMPLT, Op.CMPLE, Op.CMPEQ])
@pytest.mark.parametrize("turned", [False, True])
def test_a_sum_of_a_mask_counts(dtype: str, op: Op, turned: bool) -> None:
    """The border is a loaded integer, below, inside and above the loop."""
    borders = np.array([-(2**31), -5, -1, 0, 1, 4, 9, 10, 11, 12, 2**31 - 1], I32)
    r, k = cast(R, I32), load(buffer(1, (11,), I32), I)
    mask = UOp(op, (k, r) if turned else (r, k))
    closed(cast(mask, dtype), "add", borders, rows=11)


def test_a_sum_under_two_bounds_and_a_condition_elsewhere() -> None:
    flags = np.arange(11) % 2 == 0
    inside = node(Op.AND, UOp(Op.CMPLT, (I, R)), UOp(Op.CMPLE, (R, plus(I, 4))))
    inside = node(Op.AND, inside, load(buffer(1, (11,), BOOL), I))
    value = UOp(Op.WHERE, (inside, load(buffer(2, (11,), F32), I), literal(0, F32)))
    found = closed(value, "add", flags, SPECIAL, rows=11)
    assert found[9] == 0 and not np.isnan(found[3])  # r > 9 once, but the flag is off


def test_infinity_that_no_iteration_selects_is_not_seen() -> None:
    here = UOp(Op.CMPLT, (cast(R, I32), load(buffer(1, (11,), I32), I)))
    value = UOp(Op.WHERE, (here, load(buffer(2, (11,), F32), I), literal(0, F32)))
    nothing = np.zeros(11, I32)
    found = closed(value, "add", nothing, SPECIAL, rows=11)
    np.testing.assert_array_equal(found, np.zeros(11))


@pytest.mark.parametrize("kind, other", [("add", 0), ("max", -np.inf), ("min", np.inf)])
def test_a_one_hot_selection_is_a_load(kind: str, other: float) -> None:
    """Positions outside of the row select nothing and read nothing."""
    places = np.array([0, 10, 5, 3, -1, 11, 2**31 - 1, -(2**31), 1, 2, 4], I32)
    here = UOp(Op.CMPEQ, (cast(R, I32), load(buffer(1, (11,), I32), I)))
    row = load(buffer(2, (11,), F32), R)
    found = closed(UOp(Op.WHERE, (here, row, literal(other, F32))), kind, places, SPECIAL, rows=11)
    assert np.isnan(found[3]) and found[4] == other


def test_a_selection_of_narrow_floats_is_closed_behind_its_conversion() -> None:
    dtype = np.dtype(ml_dtypes.bfloat16)
    places = np.array([3, 12, 0] + [1] * 8, I32)
    here = UOp(Op.CMPEQ, (cast(R, I32), load(buffer(1, (11,), I32), I)))
    row = UOp(Op.WHERE, (here, load(buffer(2, (11,), dtype), R), literal(0, dtype)))
    closed(cast(row, F32), "add", places, np.arange(11).astype(dtype), rows=11)


def test_a_fold_of_nothing_but_the_identity_is_the_identity() -> None:
    closed(literal(-np.inf, F32), "max")
    closed(literal(0, I32), "add")


def test_a_product_with_an_unselected_infinity_stays_a_loop() -> None:
    """0 * inf is NaN, so a mask that multiplies is not a mask that selects."""
    here = UOp(Op.CMPEQ, (cast(R, I32), load(buffer(1, (11,), I32), I)))
    value = node(Op.MUL, cast(here, F32), load(buffer(2, (11,), F32), R))
    closed(value, "add", np.arange(11, dtype=I32), SPECIAL, rows=11, left=1)
