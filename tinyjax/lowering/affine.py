"""Index expressions of tensors: what shapes make of core's integer algebra.

An index is a form of core/sums.py, `constant + sum(coefficient * atom)`: plain Python tuples, so
that movement ops cost a few dictionary operations each. Floor division and modulo, bounds and
conditions are the algebra's; here are row-major positions and their inverse, borders and clamps.
A reshape there and back leaves nothing, and a row-major address never holds the division that
split its index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tinyjax.core.algebra import PLAIN
from tinyjax.core.facts import FALSE, TRUE, ZERO, Form, integer
from tinyjax.core.intervals import Span
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const, const_value
from tinyjax.lowering.dims import limit_of

__all__ = ["FALSE", "ZERO", "IndexSpace", "Lin", "both", "index_const", "lit"]

Lin = Form
"""(constant, ((atom, coefficient), ...))"""

UINT64 = np.dtype(np.uint64)
FAR = 1 << 62
"""An index as large as this is outside of every buffer."""


def lit(value: int) -> Lin:
    """A constant index."""
    return (value, ())


def index_const(value: int) -> UOp:
    """An int64 literal."""
    return integer(value)


class IndexSpace:
    """Arithmetic of the indices of tensors, in an algebra."""

    __slots__ = ()

    algebra = PLAIN

    # --- atoms ----------------------------------------------------------------------------------

    def range(self, extent: int, number: int, kind: str) -> Lin:
        """A loop variable; one that runs once is the constant 0."""
        if extent == 1:
            return ZERO
        limit = limit_of(extent)
        src = (integer(extent),) if limit is None else (integer(extent), limit)
        return (0, ((UOp(Op.RANGE, src, (number, kind)), 1),))

    def value(self, node: UOp) -> Lin:
        """A scalar of any integer dtype or bool as an index; far outside if it does not fit."""
        if node.aval.dtype == UINT64:
            if node.op is Op.CONST:
                return lit(min(int(const_value(node)), FAR))
            node = UOp(Op.MIN, (node, const(FAR, UINT64)))
        return self.algebra.wide(node)

    # --- arithmetic -----------------------------------------------------------------------------

    def add(self, a: Lin, b: Lin) -> Lin:
        """a + b"""
        return self.algebra.plus(a, b)

    def scale(self, a: Lin, k: int) -> Lin:
        """k * a"""
        return self.algebra.scale(a, k)

    def shift(self, a: Lin, k: int) -> Lin:
        """a + k"""
        return (a[0] + k, a[1])

    def limits(self, a: Lin) -> Span:
        """Inclusive bounds."""
        return self.algebra.limits(a)

    def divmod(self, a: Lin, d: int) -> tuple[Lin, Lin]:
        """(a // d, a % d) with floor division, d > 0."""
        return self.algebra.divide(a, d)

    # --- shapes ---------------------------------------------------------------------------------

    def ravel(self, idx: Sequence[Lin], shape: Sequence[int]) -> Lin:
        """Row-major position of an element."""
        flat, stride = ZERO, 1
        for i, size in zip(reversed(idx), reversed(shape), strict=True):
            if size != 1:
                flat = self.add(flat, self.scale(i, stride))
            stride *= size
        return flat

    def unravel(self, flat: Lin, shape: Sequence[int]) -> tuple[Lin, ...]:
        """The index of the element at a row-major position.

        Positions are inside the shape, or their element is not used: the first axis longer than 1
        needs no remainder.
        """
        lead = next((a for a, size in enumerate(shape) if size != 1), len(shape))
        out: list[Lin] = []
        for size in reversed(shape[lead + 1 :]):
            if size == 1:
                out.append(ZERO)
            else:
                flat, low = self.divmod(flat, size)
                out.append(low)
        if lead < len(shape):
            out.append(flat)
        return (*[ZERO] * lead, *reversed(out))

    # --- nodes ----------------------------------------------------------------------------------

    def node(self, a: Lin) -> UOp:
        """The stage-2 node of an index."""
        return self.algebra.node(a)

    def within(self, a: Lin, low: int, high: int) -> UOp | None:
        """The condition low <= a < high; None when it always holds, FALSE when it never does."""
        found = self.algebra.inside(a, low, high - 1)
        return None if found is TRUE else found

    def clamp(self, a: Lin, low: int, high: int) -> Lin:
        """min(max(a, low), high), low <= high."""
        raised = self.algebra.extreme(Op.MAX, [a, lit(low)])
        return self.algebra.extreme(Op.MIN, [raised, lit(high)])


def both(conditions: Iterable[UOp | None]) -> UOp | None:
    """Conjunction of canonical conditions; None means always true, FALSE never."""
    given = [c for c in conditions if c is not None]
    if len(given) < 2:
        return given[0] if given else None
    found = PLAIN.junction(Op.AND, given)
    return None if found is TRUE else found
