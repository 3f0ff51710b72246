"""The evaluator gives what docs/ops.md says, for every example and every dtype it lists."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tests.ops_table import Example, Row, rows
from tinyjax.core import dtypes
from tinyjax.core.ops import ELEMENTWISE, J, Op
from tinyjax.core.uop import UOp, buffer
from tinyjax.interpreters.evaluate import evaluate

ROWS = rows()
EXAMPLES = [(row.op, example) for row in ROWS for example in row.examples]


def test_the_page_has_one_row_for_each_op_of_stage_1():
    assert sorted(r.op.name for r in ROWS) == sorted(op.name for op in Op if op.stages & J)


def test_each_op_with_a_choice_has_an_example():
    without = {r.op.name for r in ROWS if not r.examples}
    structure = set(
        "CONST DIM VAR PARAM BUFFER TUPLE GETTUPLE CALL SCAN WHILE COND CUSTOM_LIN".split()
    )
    outside = set(
        "KEY_WRAP KEY_UNWRAP HOST_CALL CALLBACK CHECK KERNEL ALL_REDUCE ALL_GATHER".split()
    )
    mesh = set("REDUCE_SCATTER PPERMUTE ALL_TO_ALL AXIS_INDEX".split())
    assert without == structure | outside | mesh


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.op.name)
def test_an_elementwise_op_whose_row_lists_no_complex_dtype_refuses_them(row: Row):
    """When the node is made, on the user's line: code generation would fail far from it."""
    if row.op not in ELEMENTWISE or set(row.operands) & set(dtypes.COMPLEXES):
        return
    z = buffer(np.ones(2, np.complex64))
    with pytest.raises(TypeError, match=row.op.name.lower()):
        UOp(row.op, (z,) * row.op.arity)


@pytest.mark.parametrize("op, example", EXAMPLES, ids=[f"{o.name} {e.text}" for o, e in EXAMPLES])
def test_example(op: Op, example: Example):
    node = UOp(op, tuple(map(buffer, example.operands)), example.arg)
    (found,) = evaluate([node])
    found = found if isinstance(found, list) else [found]
    assert len(found) == len(example.results)
    for y, expected in zip(found, example.results):
        assert y.dtype == expected.dtype and y.shape == expected.shape
        assert_equal_bits_or_close(y, expected)


def assert_equal_bits_or_close(y: np.ndarray, expected: np.ndarray) -> None:
    """Signs of zeros and NaN must match; finite floats agree to 6 digits (the page rounds them)."""
    if not dtypes.is_inexact(y.dtype):
        assert y.tolist() == expected.tolist()
        return
    kind = np.complex128 if dtypes.is_complex(y.dtype) else np.float64
    a, b = y.astype(kind), expected.astype(kind)
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=0)
    for part in ("real", "imag"):
        zero = getattr(b, part) == 0
        np.testing.assert_array_equal(
            np.signbit(getattr(a, part)[zero]), np.signbit(getattr(b, part)[zero])
        )


ARGS = {
    Op.CAST: (dtypes.float32, False), Op.REDUCE_PRECISION: (5, 2),
    Op.REDUCE: ("max", (0,)), Op.PREFIX: ("add", 0, False), Op.SORT: (0, 1, True),
    Op.ARGREDUCE: ("max", 0, dtypes.int32), Op.RESHAPE: (5, 5), Op.PERMUTE: (0,),
    Op.EXPAND: ((2, 25), (1,)), Op.SLICE: ((3, 20, 4),), Op.FLIP: (0,), Op.CONCAT: 0,
    Op.WINDOW: (0, 3, 2, 4),
}  # fmt: skip


def totality_cases() -> list[tuple[Row, object]]:
    mine = ELEMENTWISE | set(ARGS)
    return [(r, d) for r in ROWS if r.op in mine for d in r.operands if takes(r.op, d)]


def takes(op: Op, dtype: object) -> bool:
    """COMPLEX has two operand dtypes; BITCAST needs another dtype of the same width."""
    if op is Op.COMPLEX:
        return dtype in (dtypes.float32, dtypes.float64)
    return True


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.op in ELEMENTWISE | set(ARGS)], ids=lambda r: r.op.name
)
def test_every_listed_dtype_has_a_result_for_every_bit_pattern_without_warnings(row: Row):
    raw = np.random.default_rng(0).integers(0, 256, 25 * 16, dtype=np.uint8)
    for dtype in row.operands:
        if not takes(row.op, dtype):
            continue
        if dtype == np.bool_:
            x = raw[:25] < 128
        elif dtype in dtypes.NARROW_SIGNED + dtypes.NARROW_UNSIGNED:
            x = raw[:25].view(np.int8).astype(dtype)
        else:
            x = np.frombuffer(raw[: 25 * dtype.itemsize].tobytes(), dtype)
        y = np.roll(x, 7)
        operands = [x] * max(row.op.arity, 1) if row.op.arity != 2 else [x, y]
        if row.op is Op.WHERE:
            operands = [raw[:25] < 128, x, y]
        arg = dtype if row.op is Op.BITCAST else ARGS.get(row.op)
        node = UOp(row.op, tuple(map(buffer, operands)), arg)
        with np.errstate(all="raise"), warnings.catch_warnings():
            warnings.simplefilter("error")
            (z,) = evaluate([node])
        for of, v in zip(
            getattr(node.aval, "elts", (node.aval,)), z if isinstance(z, list) else [z]
        ):
            assert v.dtype == of.dtype and v.shape == of.shape
