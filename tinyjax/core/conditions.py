"""Conditions on integers: comparisons, conjunctions and disjunctions in one way.

A comparison of sums is `sum <= constant` (or an equality) with its terms divided by their common
factor, tails that cannot change it dropped and quotients multiplied out; bounds decide it where
they can. Bounds on one sum are merged, contradictions found, duplicates dropped.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable

from tinyjax.core.division import Division, only
from tinyjax.core.facts import FALSE, TRUE, Fact, Form, Terms, int_value, integer, order
from tinyjax.core.intervals import BIT, BOOL, INT64, compare_span, dtype_span
from tinyjax.core.ops import COMPARISONS, Op
from tinyjax.core.uop import UOp


class Conditions(Division):
    """Comparisons and what is joined of them."""

    @abstractmethod
    def canonical(self, node: UOp) -> UOp:
        """The simplified node: the same value wherever the assumptions hold."""

    def compare(self, op: Op, x: UOp, y: UOp) -> UOp:
        """A comparison of two scalars of one dtype, decided or canonical."""
        if x.aval.dtype == INT64:
            a, b = self.linear(x), self.linear(y)
            if self.exact(a) and self.exact(b):
                difference = self.plus(a, b, -1)
                found = self._compare(op, difference[1], -difference[0])
                if found is not None:
                    return found
            x, y = self.node(a), self.node(b)
        if x.aval.dtype == BOOL:
            x, y = self.canonical(x), self.canonical(y)
            if op in (Op.CMPEQ, Op.CMPNE):
                for one, other in ((x, y), (y, x)):
                    if one.op is Op.CONST:
                        keep = (int_value(one) == 1) == (op is Op.CMPEQ)
                        return other if keep else self.negation(other)
        elif dtype_span(x.aval.dtype) is not None:
            found = self._compare_wide(op, x, y)
            if found is not None:
                return found
        if dtype_span(x.aval.dtype) is not None:
            if x is y:
                return TRUE if op in (Op.CMPEQ, Op.CMPLE) else FALSE
            span = compare_span(op, self.bounds(x), self.bounds(y))
            if span[0] == span[1]:
                return TRUE if span[0] else FALSE
        return self._condition(op, (x, y))

    def _compare_wide(self, op: Op, x: UOp, y: UOp) -> UOp | None:
        """A comparison of narrow integers by their values in int64: decided, or free of
        conversions."""
        a, b = self.wide(x), self.wide(y)
        if not (self.exact(a) and self.exact(b)):
            return None
        difference = self.plus(a, b, -1)
        found = self._compare(op, difference[1], -difference[0])
        if found is None or found.op is Op.CONST:
            return found
        return None if any(n.op is Op.CAST for n, _ in difference[1]) else found

    def _condition(self, op: Op, src: tuple[UOp, ...]) -> UOp:
        node = UOp(op, src)
        if self._seen(node) is None:
            self._keep(node, Fact(BIT))
        return node

    def _compare(self, op: Op, terms: Terms, h: int) -> UOp | None:
        """`sum of terms <op> h` in exact arithmetic, canonical; None if it may not fit 64 bits."""
        if op is Op.CMPLE:
            return self._at_most(terms, h)
        if op is Op.CMPLT:
            return self._at_most(terms, h - 1)
        equal = self._equal(terms, h)
        return equal if op is Op.CMPEQ or equal is None else self.negation(equal)

    def _at_most(self, terms: Terms, h: int) -> UOp | None:
        """`sum of terms <= h`"""
        while True:
            low, high = self.limits((0, terms))
            if high <= h:
                return TRUE
            if low > h:
                return FALSE
            g = math.gcd(*(c for _, c in terms))
            if g > 1:
                terms, h = tuple((n, c // g) for n, c in terms), h // g
            smaller = self._without_tail(terms, h) or self._without_quotient(terms, h)
            if smaller is None:
                break
            terms, h = smaller
        upper = terms[0][1] > 0
        shown = (0, terms) if upper else self.scale((0, terms), -1)
        if not self.exact(shown):
            return None
        if upper:
            return self._condition(Op.CMPLT, (self.node(shown), integer(h + 1)))
        return self._condition(Op.CMPLE, (integer(-h), self.node(shown)))

    def _without_tail(self, terms: Terms, h: int) -> tuple[Terms, int] | None:
        """g*X + B <= h is X <= (h - B)//g when that is the same for every B."""
        ordered = sorted(terms, key=lambda t: -abs(t[1]))
        g = 0
        for count in range(1, len(ordered)):
            g = math.gcd(g, ordered[count - 1][1])
            if g == 1:
                return None
            large = {n for n, _ in ordered[:count]}
            low, high = self.limits((0, tuple(t for t in terms if t[0] not in large)))
            if (h - low) // g == (h - high) // g:
                return tuple((n, c // g) for n, c in terms if n in large), (h - low) // g
        return None

    def _without_quotient(self, terms: Terms, h: int) -> tuple[Terms, int] | None:
        """L//d + A <= h is L + d*A <= d*h + d - 1, and A - L//d <= h is d*A - L <= d*h."""
        for sign in (1, -1):
            atom = only(terms, Op.IDIV, sign)
            if atom is None:
                continue
            value, d = self.linear(atom.src[0]), int_value(atom.src[1])
            rest = self._make(0, {n: c * d for n, c in terms if n is not atom})
            total = self.plus(rest, value, sign)
            if self.exact(value) and self.exact((0, total[1])):
                return total[1], d * h + (d - 1 if sign > 0 else 0) - total[0]
        return None

    def _equal(self, terms: Terms, h: int) -> UOp | None:
        """`sum of terms == h`"""
        low, high = self.limits((0, terms))
        if not low <= h <= high:
            return FALSE
        if low == high:
            return TRUE
        g = math.gcd(*(c for _, c in terms))
        if h % g:
            return FALSE
        if h == low:
            return self._at_most(terms, h)
        if h == high:
            return self._at_most(self.scale((0, terms), -1)[1], -h)
        g = g if terms[0][1] > 0 else -g
        shown: Form = (0, tuple((n, c // g) for n, c in terms))
        if not self.exact(shown):
            return None
        return self._condition(Op.CMPEQ, (self.node(shown), integer(h // g)))

    def negation(self, condition: UOp) -> UOp:
        """not condition (canonical in, canonical out)"""
        op = condition.op
        if op is Op.CONST:
            return FALSE if int_value(condition) else TRUE
        if op is Op.NOT:
            return condition.src[0]
        if op is Op.AND or op is Op.OR:
            parts = [self.negation(c) for c in chain(condition, op)]
            return self.junction(Op.OR if op is Op.AND else Op.AND, parts)
        if op in COMPARISONS:
            x, y = condition.src
            if op is Op.CMPEQ or op is Op.CMPNE:
                other = Op.CMPNE if op is Op.CMPEQ else Op.CMPEQ
                return self._condition(other, (x, y))
            if dtype_span(x.aval.dtype) is not None:
                return self._condition(Op.CMPLE if op is Op.CMPLT else Op.CMPLT, (y, x))
        return self._condition(Op.NOT, (condition,))

    def junction(self, op: Op, conditions: Iterable[UOp]) -> UOp:
        """Conjunction (AND) or disjunction (OR) of canonical conditions.

        Bounds on one sum are merged, contradictions found, duplicates dropped; a disjunction is the
        negation of the conjunction of the negations.
        """
        dual = op is Op.OR
        neutral, absorbing = (FALSE, TRUE) if dual else (TRUE, FALSE)
        spans: dict[Terms, list[int]] = {}
        holes: dict[Terms, dict[int, None]] = {}
        others: dict[UOp, None] = {}
        for given in conditions:
            for c in chain(given, op):
                if c is neutral:
                    continue
                if c is absorbing:
                    return absorbing
                plain = c.op in COMPARISONS
                found = self._span_of(self.negation(c) if dual else c) if plain else None
                if found is None:
                    others[c] = None
                    continue
                terms, low, high, inside = found
                if not inside:
                    holes.setdefault(terms, {})[low] = None
                span = spans.setdefault(terms, list(self.limits((0, terms))))
                if inside:
                    span[0], span[1] = max(span[0], low), min(span[1], high)
        parts: list[UOp] = []
        for terms, (low, high) in spans.items():
            gone = holes.get(terms, {})
            while low in gone and low <= high:
                low += 1
            while high in gone and low <= high:
                high -= 1
            if low > high:
                return absorbing
            made = self._inside(terms, low, high)
            for v in gone:
                equal = self._equal(terms, v) if low < v < high else None
                made += [] if equal is None else [self.negation(equal)]
            parts += [self.negation(c) for c in made] if dual else made
        if any(self.negation(c) in others for c in others):
            return absorbing
        parts += others
        known = dict.fromkeys(parts)
        opposite = Op.AND if dual else Op.OR
        parts = [c for c in known if c.op is not opposite or not known.keys() & chain(c, opposite)]
        if not parts:
            return neutral
        parts.sort(key=order)
        made_of = parts[0]
        for c in parts[1:]:
            made_of = self._condition(op, (made_of, c))
        return made_of

    def inside(self, form: Form, low: int, high: int) -> UOp:
        """The condition low <= form <= high."""
        if self.exact(form):
            terms, c = form[1], form[0]
            low, high = max(low - c, -(1 << 63)), min(high - c, (1 << 63) - 1)
            if not terms:
                return TRUE if low <= 0 <= high else FALSE
            least, most = self.limits((0, terms))
            low, high = max(low, least), min(high, most)
            if low > high:
                return FALSE
            if self.exact((0, terms)):
                return self.junction(Op.AND, self._inside(terms, low, high))
        node = self.node(form)
        parts = (self.compare(Op.CMPLE, integer(low), node),
                 self.compare(Op.CMPLE, node, integer(high)))  # fmt: skip
        return self.junction(Op.AND, parts)

    def _span_of(self, condition: UOp) -> tuple[Terms, int, int, bool] | None:
        """A canonical comparison as (sum, low, high, True), or (sum, v, v, False) for `!= v`."""
        op, src = condition.op, condition.src
        if op not in COMPARISONS or src[0].aval.dtype != INT64:
            return None
        if op is Op.CMPLE:
            form = self.linear(src[1])
            if src[0].op is not Op.CONST or not form[1] or not self.exact(form):
                return None
            return form[1], int_value(src[0]) - form[0], self.limits((0, form[1]))[1], True
        if src[1].op is not Op.CONST:
            return None
        form, c = self.linear(src[0]), int_value(src[1])
        if not self.exact(form) or not form[1]:
            return None
        if op is Op.CMPLT:
            return form[1], self.limits((0, form[1]))[0], c - 1 - form[0], True
        return form[1], c - form[0], c - form[0], op is Op.CMPEQ

    def _inside(self, terms: Terms, low: int, high: int) -> list[UOp]:
        """The conditions for low <= sum <= high that do not hold anyway."""
        if low == high:
            made = [self._equal(terms, low)]
        else:
            negated = self.scale((0, terms), -1)[1]
            made = [self._at_most(negated, -low), self._at_most(terms, high)]
        assert None not in made, "the parts of a canonical condition fit 64 bits"
        return [c for c in made if c is not None and c is not TRUE]


def chain(condition: UOp, op: Op) -> list[UOp]:
    """The conditions joined by `op`, in order."""
    found: list[UOp] = []
    stack = [condition]
    while stack:
        c = stack.pop()
        if c.op is op:
            stack += reversed(c.src)
        else:
            found.append(c)
    return found
