"""What docs/ops.md says of each op, from the compiler: interpreted kernels and compiled ones."""

from __future__ import annotations

import numpy as np
import pytest

from tests.interpreters.test_ops_table import assert_equal_bits_or_close
from tests.lowering.bodies import arg, run
from tests.ops_table import Example, rows
from tinyjax.core.avals import TupleAval
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, get, tuple_of
from tinyjax.lowering.program import lower

EXAMPLES = [(row.op, example) for row in rows() for example in row.examples]


@pytest.mark.parametrize("op, example", EXAMPLES, ids=[f"{o.name} {e.text}" for o, e in EXAMPLES])
def test_example(op: Op, example: Example):
    params = tuple(arg(i, a.shape, a.dtype) for i, a in enumerate(example.operands))
    node = UOp(op, params, example.arg)
    outputs = [node]
    if isinstance(node.aval, TupleAval):
        outputs = [get(node, i) for i in range(len(node.aval.elts))]
    lowered = lower(tuple_of(outputs), len(params))
    for found in (lowered.interpret(example.operands), run(lowered, example.operands)):
        for y, expected in zip(found, example.results, strict=True):
            assert y.dtype == expected.dtype and y.shape == expected.shape
            assert_equal_bits_or_close(np.asarray(y), expected)
