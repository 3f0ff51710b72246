"""simplify_indices: addresses and their conditions in the one form of the algebra.

What rangeify makes has it already; kernels of other origin have not.
"""

from __future__ import annotations

import numpy as np

from tests.golden import assert_text
from tests.lowering.kernels import buffer, kernel, load, loop, node, store
from tinyjax.core.kernel_text import print_kernel
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.lowering.substitute import simplify_indices

F32 = np.dtype(np.float32)
X = buffer(1, (120,), F32)
R, S = loop(8, 0), loop(15, 1)


def changed(index: UOp, valid: UOp | None = None) -> str:
    """A kernel that copies one element, before and after."""
    value = load(X, index) if valid is None else load(X, index, valid)
    before = kernel(
        store(buffer(0, (120,), F32), node(Op.ADD, node(Op.MUL, R, 15), S), value, R, S)
    )
    return f"{print_kernel(before)}\n\n{print_kernel(simplify_indices(before))}"


def test_a_quotient_and_its_remainder_give_the_value_back():
    at = node(Op.ADD, node(Op.MUL, R, 15), S)
    whole = node(Op.ADD, node(Op.MUL, node(Op.IDIV, at, 10), 10), node(Op.MOD, at, 10))
    assert_text(
        changed(whole),
        """
        kernel(p0: f32[120], p1: f32[120]):
          for r0 in 0..8 (loop):
            for r1 in 0..15 (loop):
              a = r0*15 + r1
              p0[a] = p1[a//10*10 + a%10]

        kernel(p0: f32[120], p1: f32[120]):
          for r0 in 0..8 (loop):
            for r1 in 0..15 (loop):
              a = r0*15 + r1
              p0[a] = p1[a]""",
    )


def test_a_quotient_of_what_is_in_range_vanishes():
    assert_text(
        changed(node(Op.MOD, node(Op.ADD, S, node(Op.MUL, R, 30)), 15)),
        """
        kernel(p0: f32[120], p1: f32[120]):
          for r0 in 0..8 (loop):
            for r1 in 0..15 (loop):
              p0[r0*15 + r1] = p1[(r1 + r0*30)%15]

        kernel(p0: f32[120], p1: f32[120]):
          for r0 in 0..8 (loop):
            for r1 in 0..15 (loop):
              p0[r0*15 + r1] = p1[r1]""",
    )
