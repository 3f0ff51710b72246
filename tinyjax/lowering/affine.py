"""Index expressions while a kernel is being made: affine forms over loop variables.

An index is `const + sum(coefficient * atom)`: plain Python tuples, no graph nodes, so that movement
ops cost a few dictionary operations each. Atoms are stage-2 nodes (RANGE, loaded integers) with
known bounds, and the quotients and remainders that reshapes leave behind. `divmod` keeps them few:

    (c*q*X + R) // c   = q*X + R//c
    R // c, R % c      = 0, R                 when 0 <= R < c is proven
    (g*X + B) // (g*d) = (X + B//g) // d      and the remainder is g*((X + B//g) % d) + B % g

What must stay becomes a pair of atoms (L // d, L % d) that remembers its origin, and addition puts
`k*d*(L // d) + k*(L % d)` back together as `k*L`. So a reshape there and back leaves nothing, and
a row-major address never holds the division that split its index.

Bounds are Python integers: no overflow. Everything here is exact for any sign.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const

INT64 = np.dtype(np.int64)
BOOL = np.dtype(np.bool_)
UNKNOWN = 1 << 62
"""Bound of a loaded integer about which nothing is known."""

Lin = tuple[int, tuple[tuple[UOp, int], ...]]
"""(constant, ((atom, coefficient), ...)) with atoms in order of creation, coefficients nonzero."""

ZERO: Lin = (0, ())
FALSE = const(False, BOOL)


def lit(value: int) -> Lin:
    """A constant index."""
    return (value, ())


def index_const(value: int) -> UOp:
    """An int64 literal."""
    return const(value, INT64)


class IndexSpace:
    """The atoms of one kernel: their order, bounds, and the quotient/remainder pairs."""

    def __init__(self) -> None:
        self.order: dict[UOp, int] = {}
        self.bounds: dict[UOp, tuple[int, int]] = {}
        self.remainder_of: dict[UOp, tuple[UOp, Lin, int]] = {}  # L % d -> (L // d, L, d)
        self.nodes: dict[Lin, UOp] = {}

    # --- atoms ----------------------------------------------------------------------------------

    def atom(self, node: UOp, low: int, high: int) -> Lin:
        """`node` as an index with these (inclusive) bounds."""
        if node not in self.order:
            self.order[node] = len(self.order)
            self.bounds[node] = (low, high)
        return (0, ((node, 1),))

    def range(self, extent: int, number: int, kind: str) -> Lin:
        """A loop variable; one that runs once is the constant 0."""
        if extent == 1:
            return ZERO
        node = UOp(Op.RANGE, (index_const(extent),), (number, kind))
        return self.atom(node, 0, extent - 1)

    # --- arithmetic -----------------------------------------------------------------------------

    def _make(self, constant: int, terms: dict[UOp, int]) -> Lin:
        pairs = self.remainder_of
        for node in [n for n in terms if n in pairs]:
            quotient, whole, divisor = pairs[node]
            k = terms.get(node, 0)
            if k and terms.get(quotient, 0) == k * divisor:
                del terms[node], terms[quotient]
                return self.add((constant, tuple(terms.items())), self.scale(whole, k))
        found = [(n, c) for n, c in terms.items() if c]
        if len(found) > 1:
            found.sort(key=lambda t: self.order[t[0]])
        return (constant, tuple(found))

    def add(self, a: Lin, b: Lin) -> Lin:
        """a + b"""
        if not b[1]:
            return (a[0] + b[0], a[1]) if b[0] else a
        if not a[1]:
            return (a[0] + b[0], b[1]) if a[0] else b
        terms = dict(a[1])
        for node, c in b[1]:
            terms[node] = terms.get(node, 0) + c
        return self._make(a[0] + b[0], terms)

    def scale(self, a: Lin, k: int) -> Lin:
        """k * a"""
        if k == 1:
            return a
        return (a[0] * k, tuple((n, c * k) for n, c in a[1])) if k else ZERO

    def shift(self, a: Lin, k: int) -> Lin:
        """a + k"""
        return (a[0] + k, a[1])

    def limits(self, a: Lin) -> tuple[int, int]:
        """Inclusive bounds."""
        low = high = a[0]
        for node, c in a[1]:
            lo, hi = self.bounds[node]
            low += c * (lo if c > 0 else hi)
            high += c * (hi if c > 0 else lo)
        return low, high

    def divmod(self, a: Lin, d: int) -> tuple[Lin, Lin]:
        """(a // d, a % d) with floor division, d > 0."""
        if d == 1:
            return a, ZERO
        quotient: dict[UOp, int] = {}
        rest: dict[UOp, int] = {}
        for node, c in a[1]:
            q = c // d if c > 0 else -(-c // d)
            if q:
                quotient[node] = q
            if c - q * d:
                rest[node] = c - q * d
        low, high = self.limits((a[0], tuple(rest.items())))
        k = low // d
        whole: Lin = (k, tuple(quotient.items()))
        left = self._make(a[0] - k * d, rest)
        if high - k * d < d:
            return whole, left
        small, g = self._split(left, d)
        if g > 1:
            large: Lin = (0, tuple((n, c // g) for n, c in left[1] if (n, c) not in small[1]))
            carry, under = self.divmod(small, g)
            over, kept = self.divmod(self.add(large, carry), d // g)
            return self.add(whole, over), self.add(self.scale(kept, g), under)
        over, kept = self._pair(left, d)
        return self.add(whole, over), kept

    def _split(self, a: Lin, d: int) -> tuple[Lin, int]:
        """(B, g) with a = g*X + B and g dividing d: the largest g for which B < g, else any g."""
        best: tuple[Lin, int] = (a, 1)
        terms = sorted(a[1], key=lambda t: -abs(t[1]))
        g = d
        for count, (_, c) in enumerate(terms, 1):
            g = math.gcd(g, c)
            if g == 1:
                break
            keep = {n for n, _ in terms[count:]}
            rest: Lin = (a[0], tuple(t for t in a[1] if t[0] in keep))
            low, high = self.limits(rest)
            if 0 <= low and high < g:
                return rest, g
            best = (rest, g)
        return best

    def _pair(self, a: Lin, d: int) -> tuple[Lin, Lin]:
        """The atoms a // d and a % d."""
        node, divisor = self.node(a), index_const(d)
        low, high = self.limits(a)
        over = UOp(Op.IDIV, (node, divisor))
        under = UOp(Op.MOD, (node, divisor))
        result = self.atom(over, low // d, high // d), self.atom(under, 0, d - 1)
        self.remainder_of[under] = (over, a, d)
        return result

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
        """The index of the element at a row-major position."""
        out: list[Lin] = []
        for size in reversed(shape[1:]):
            if size == 1:
                out.append(ZERO)
            else:
                flat, low = self.divmod(flat, size)
                out.append(low)
        if shape:
            out.append(flat if shape[0] != 1 else ZERO)
        return tuple(reversed(out))

    # --- nodes ----------------------------------------------------------------------------------

    def node(self, a: Lin) -> UOp:
        """The stage-2 node of an index."""
        found = self.nodes.get(a)
        if found is None:
            parts = [n if c == 1 else UOp(Op.MUL, (n, index_const(c))) for n, c in a[1]]
            if a[0] or not parts:
                parts.append(index_const(a[0]))
            found = parts[0]
            for part in parts[1:]:
                found = UOp(Op.ADD, (found, part))
            self.nodes[a] = found
        return found

    def within(self, a: Lin, low: int, high: int) -> UOp | None:
        """The condition low <= a < high; None when it always holds, FALSE when it never does."""
        least, most = self.limits(a)
        if most < low or least >= high:
            return FALSE
        shift, moving = a[0], self.node((0, a[1]))
        conditions = []
        if least < low:
            conditions.append(UOp(Op.CMPLE, (index_const(low - shift), moving)))
        if most >= high:
            conditions.append(UOp(Op.CMPLT, (moving, index_const(high - shift))))
        return both(conditions)

    def clamp(self, a: Lin, low: int, high: int) -> Lin:
        """min(max(a, low), high), low <= high."""
        least, most = self.limits(a)
        if low <= least and most <= high:
            return a
        if low == high:
            return lit(low)
        node = self.node(a)
        if least < low:
            node = UOp(Op.MAX, (node, index_const(low)))
        if most > high:
            node = UOp(Op.MIN, (node, index_const(high)))
        return self.atom(node, max(low, min(least, high)), min(high, max(most, low)))


def both(conditions: Iterable[UOp | None]) -> UOp | None:
    """Conjunction of conditions; None means always true, FALSE never."""
    out: UOp | None = None
    for c in conditions:
        if c is FALSE:
            return FALSE
        if c is not None:
            out = c if out is None or out is c else UOp(Op.AND, (out, c))
    return out
