"""Index expressions of a kernel, read back: affine forms over atoms, and bounds.

`linear` sees an int64 node as `const + sum(coefficient * atom)`, where an atom is a RANGE or a node
that is not affine (quotients, remainders, clamps, loaded integers). Strides, contiguity and the
splitting of an address over loop levels follow from it. `bounds` is interval arithmetic; it decides
which index arithmetic fits 32-bit lanes and which divisions see no negative operand.

Both are memoised per kernel and cost one visit per node.
"""

from __future__ import annotations

from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const_value
from tinyjax.lowering.registers import INT64

Linear = tuple[int, dict[UOp, int]]
Bounds = tuple[int, int]

INT32_BOUND = 1 << 31


class Indexing:
    """Affine forms and bounds of the index expressions of one kernel."""

    def __init__(self) -> None:
        self._linear: dict[UOp, Linear] = {}
        self._bounds: dict[UOp, Bounds | None] = {}
        self._fits: dict[UOp, bool] = {}

    def linear(self, node: UOp) -> Linear:
        """(constant, {atom: coefficient}) of an int64 node."""
        found = self._linear.get(node)
        if found is None:
            found = self._linear[node] = self._affine(node)
        return found

    def _affine(self, node: UOp) -> Linear:
        op = node.op
        if op is Op.CONST:
            return int(const_value(node)), {}
        if op is Op.ADD or op is Op.SUB:
            left, right = self.linear(node.src[0]), self.linear(node.src[1])
            sign = 1 if op is Op.ADD else -1
            terms = dict(left[1])
            for atom, c in right[1].items():
                total = terms.get(atom, 0) + sign * c
                if total:
                    terms[atom] = total
                else:
                    del terms[atom]
            return left[0] + sign * right[0], terms
        if op is Op.NEG:
            constant, terms = self.linear(node.src[0])
            return -constant, {a: -c for a, c in terms.items()}
        if op is Op.MUL:
            left, right = self.linear(node.src[0]), self.linear(node.src[1])
            if left[1] and right[1]:
                return 0, {node: 1}
            constant, terms = left if left[1] else right
            k = right[0] if left[1] else left[0]
            return constant * k, ({a: c * k for a, c in terms.items()} if k else {})
        return 0, {node: 1}

    def bounds(self, node: UOp) -> Bounds | None:
        """Inclusive bounds of an int64 or bool node; None if nothing is known."""
        if node not in self._bounds:
            self._bounds[node] = self._interval(node)
        return self._bounds[node]

    def _interval(self, node: UOp) -> Bounds | None:
        op = node.op
        if op is Op.CONST:
            value = int(const_value(node))
            return value, value
        if op is Op.RANGE:
            return 0, max(0, int(const_value(node.src[0])) - 1)
        if op is Op.CAST and node.src[0].aval.dtype.kind in "iu" and node.src[0].op is not Op.LOAD:
            return self.bounds(node.src[0])
        if node.aval.dtype != INT64 or len(node.src) != 2:
            return None
        left, right = self.bounds(node.src[0]), self.bounds(node.src[1])
        if op is Op.MOD and right is not None:
            return 0, right[1] - 1
        if op in (Op.MAX, Op.MIN):
            return _clamped(op, left, right)
        if left is None or right is None:
            return None
        if op is Op.ADD:
            return left[0] + right[0], left[1] + right[1]
        if op is Op.SUB:
            return left[0] - right[1], left[1] - right[0]
        if op is Op.MUL:
            corners = [x * y for x in left for y in right]
            return min(corners), max(corners)
        if op is Op.IDIV and right[0] > 0:
            corners = [x // y for x in left for y in right]
            return min(corners), max(corners)
        return None

    def fits32(self, node: UOp) -> bool:
        """Whether a node and everything it is computed from stay within 32 bits."""
        found = self._fits.get(node)
        if found is None:
            limits = self.bounds(node)
            found = limits is not None and -INT32_BOUND <= limits[0] and limits[1] < INT32_BOUND
            if found and node.op not in (Op.RANGE, Op.CONST):
                found = all(self.fits32(s) for s in node.src)
            self._fits[node] = found
        return found


def _clamped(op: Op, left: Bounds | None, right: Bounds | None) -> Bounds | None:
    """Bounds of max or min when perhaps only one side is known: only useful when clamped twice."""
    low, high = -(1 << 63), (1 << 63) - 1
    left, right = left or (low, high), right or (low, high)
    pick = max if op is Op.MAX else min
    made = pick(left[0], right[0]), pick(left[1], right[1])
    return None if made == (low, high) else made
