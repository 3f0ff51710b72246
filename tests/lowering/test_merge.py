"""Ranges that become one: what each index then gives is what it gave before."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lowering.kernels import buffer, check, kernel, literal, loop, node, plus, store
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.lowering.interpret import interpret
from tinyjax.lowering.merge import merge_ranges
from tinyjax.lowering.substitute import simplify_indices

I64 = np.dtype(np.int64)
M, N = 6, 5
I, J = loop(M, 0), loop(N, 1)
FLAT = plus((I, N), J)
THIRD = node(Op.IDIV, FLAT, 7)

VALUES: dict[str, tuple[UOp, int]] = {
    "their position": (FLAT, 1),
    "a multiple of it": (node(Op.MUL, FLAT, 3), 1),
    "its negative": (node(Op.NEG, FLAT), 1),
    "a quotient of it": (THIRD, 1),
    "a product of quotients of it": (node(Op.MUL, THIRD, THIRD), 1),
    "one of them": (I, 2),
    "a square of one": (node(Op.MUL, I, I), 2),
    "a multiple of a square": (plus((node(Op.MUL, I, I), 2), FLAT), 2),
    "a product of both": (node(Op.MUL, I, J), 2),
    "a square of the other": (node(Op.SUB, FLAT, node(Op.MUL, J, J)), 2),
    "a square of a sum of one": (node(Op.MUL, plus(I, 1), plus(I, 1)), 2),
}


@pytest.mark.parametrize("canonical", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_ranges_merge_only_where_a_value_is_one_function_of_their_position(
    name: str, canonical: bool
) -> None:
    """Seeds 9904, 13120: i*i over dense (i, j) became r*r of the merged range, with i = 0."""
    value, loops = VALUES[name]
    before = kernel(store(buffer(0, (M * N,), I64), FLAT, value, I, J))
    after = merge_ranges(simplify_indices(before) if canonical else before)
    assert sum(n.op is Op.RANGE for n in toposort([after])) == loops
    expected, found = np.zeros(M * N, I64), np.zeros(M * N, I64)
    interpret(before, [expected])
    interpret(after, [found])
    np.testing.assert_array_equal(found, expected)
    assert expected.any()
    check(after, [np.zeros_like(expected)])


def test_ranges_of_one_step_vanish() -> None:
    once = loop(1, 2)
    before = kernel(store(buffer(0, (M,), I64), plus(I, once), node(Op.MUL, once, once), I, once))
    (end,) = merge_ranges(before).src
    assert end.src[1:] == (I,) and end.src[0].src[1] is literal(0)
