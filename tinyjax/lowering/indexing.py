"""Index expressions of a kernel, read back: affine forms over atoms, and what fits 32 bits.

`linear` sees an address as `const + sum(coefficient * atom)`, where an atom is a RANGE or a node
that is not a sum (quotients, remainders, clamps, loaded integers). Strides, contiguity and the
splitting of an address over loop levels follow from it. Forms and bounds are those of core's
algebra; addresses are canonical in a kernel (`simplify_indices`), so their atoms are its nodes.

Memoised per kernel; one visit per node.
"""

from __future__ import annotations

from tinyjax.core import dtypes
from tinyjax.core.algebra import PLAIN
from tinyjax.core.intervals import INT64, Span, dtype_span, within
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp

Linear = tuple[int, dict[UOp, int]]

LANE: Span = (-(1 << 31), (1 << 31) - 1)
LANE_OPS = frozenset({
    Op.ADD, Op.SUB, Op.NEG, Op.MUL, Op.IDIV, Op.MOD, Op.MAX, Op.MIN, Op.CONST, Op.RANGE,
})  # fmt: skip
"""Index arithmetic that emission does in 32-bit lanes where the bounds allow it."""


class Indexing:
    """Affine forms and widths of the index expressions of one kernel."""

    def __init__(self) -> None:
        self._linear: dict[UOp, Linear] = {}
        self._fits: dict[UOp, bool] = {}

    def linear(self, node: UOp) -> Linear:
        """(constant, {atom: coefficient}) of an int64 node."""
        found = self._linear.get(node)
        if found is None:
            constant, terms = PLAIN.linear(node)
            found = self._linear[node] = constant, dict(terms)
        return found

    def bounds(self, node: UOp) -> Span:
        """Inclusive bounds of an integer or bool node, at worst its dtype's."""
        return PLAIN.bounds(node)

    def fits32(self, node: UOp) -> bool:
        """Whether an index and everything it is computed from stay within 32 bits."""
        found = self._fits.get(node)
        if found is None:
            found = self._fits[node] = self._in_lanes(node)
        return found

    def _in_lanes(self, node: UOp) -> bool:
        if node.op is Op.CAST:  # of an integer that is no wider
            of = node.src[0].aval.dtype
            span = dtype_span(of)
            whole = node.aval.dtype == INT64 and span is not None and not dtypes.is_bool(of)
            return whole and span is not None and within(span, LANE)
        if node.aval.dtype != INT64 or node.op not in LANE_OPS:
            return False
        if not within(PLAIN.bounds(node), LANE):
            return False
        return node.op is Op.RANGE or all(self.fits32(s) for s in node.src)
