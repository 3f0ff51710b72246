"""Sums with integer coefficients: how they are put together, and products and extremes of them.

Every int64 node has a *form*, `constant + sum(coefficient * atom)`; an atom is a RANGE, a
quotient, a clamp, a loaded integer or anything else that is not a sum. Two expressions with one
form are one node. Quotients and remainders that belong together leave a sum again:

    k*d*(L//d) + k*(L%d) = k*L
    k*L - k*d*(L//d) = k*(L%d)
    k*d*((L//d + Y)%e) + k*(L%d) = k*((L + d*Y)%(d*e))

so a reshape there and back leaves nothing. Sums are exact modulo 2**64 whatever happens; a rule that
needs the mathematical value asks `exact` first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from tinyjax.core.facts import (
    ZERO,
    Fact,
    Facts,
    Form,
    Terms,
    int_value,
    integer,
    order,
    term_order,
)  # fmt: skip
from tinyjax.core.intervals import BIT, INT64, INT64_SPAN, Span, unwrapped, within
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp

MAX_PRODUCT_TERMS = 16
"""Products of sums are multiplied out up to this many terms."""
MAX_CLAMPS = 8
"""Operands of one max or min that are compared with each other."""


class Sums(Facts):
    """Forms and their arithmetic. `sums` are the sums whose span is assumed."""

    def __init__(self, facts: dict[UOp, Fact] | None) -> None:
        super().__init__(facts)
        self.sums: list[tuple[Terms, Span]] = []

    @abstractmethod
    def remainder(self, form: Form, d: int) -> Form:
        """form % d, the sign of d, d > 0."""

    @abstractmethod
    def _remainder_atom(self, form: Form, d: int, quotient: Form) -> Form:
        """The atom for form % d, given form // d."""

    # --- reading ----------------------------------------------------------------------------------

    def linear(self, node: UOp) -> Form:
        """The form of an int64 node."""
        form = self.fact(node).form
        return (0, ((node, 1),)) if form is None else form

    def wide(self, node: UOp) -> Form:
        """The form of the value of any integer (or bool) node converted to int64."""
        fact = self.fact(node)
        if fact.form is not None:
            return fact.form
        if node.aval.dtype == INT64:
            return 0, ((node, 1),)
        span = fact.bounds
        if span is not None and span[0] == span[1]:
            return span[0], ()
        if span is None or not within(span, INT64_SPAN):
            span = INT64_SPAN
        return 0, ((self._atom(Op.CAST, (node,), span, (INT64, False)), 1),)

    def limits(self, form: Form) -> Span:
        """Bounds of the mathematical value of a form; it may not fit 64 bits."""
        low = high = form[0]
        try:
            known = [n._fact.bounds for n, _ in form[1]] if self.facts is None else None
        except AttributeError:
            known = None
        spans = known or [self.fact(n).bounds for n, _ in form[1]]
        for (_, c), (least, most) in zip(form[1], spans):
            if c > 0:
                low += c * least
                high += c * most
            else:
                low += c * most
                high += c * least
        for terms, (least, most) in self.sums:
            lead, unit = terms[0]
            k = next((c for n, c in form[1] if n is lead), 0)
            if k and k % unit == 0:
                k //= unit
                rest = merged(form[1], terms, -k)
                if len(rest) < len(form[1]):
                    under, over = self._plain_limits((form[0], tuple(rest.items())))
                    ends = k * least, k * most
                    low, high = max(low, under + min(ends)), min(high, over + max(ends))
        return low, high

    def _plain_limits(self, form: Form) -> Span:
        """Bounds from those of the atoms; atoms not met yet are not walked into (they may be
        above)."""
        low = high = form[0]
        for atom, c in form[1]:
            fact = self._seen(atom)
            span = fact.bounds if fact is not None else None
            ends = [c * b for b in span or self.plain.bounds(atom)]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def exact(self, form: Form) -> bool:
        """Whether the value provably fits 64 bits, so that int64 arithmetic gives it."""
        return within(self.limits(form), INT64_SPAN)

    # --- adding -----------------------------------------------------------------------------------

    def plus(self, a: Form, b: Form, k: int = 1) -> Form:
        """a + k*b"""
        if not b[1]:
            return a[0] + k * b[0], a[1]
        if not a[1] and k == 1:
            return a[0] + b[0], b[1]
        return self._make(a[0] + k * b[0], merged(a[1], b[1], k))

    def scale(self, a: Form, k: int) -> Form:
        """k * a"""
        if k == 1:
            return a
        return (a[0] * k, tuple((n, c * k) for n, c in a[1])) if k else ZERO

    def _make(self, constant: int, terms: dict[UOp, int]) -> Form:
        """A form from its parts: quotients and remainders are put together, terms sorted."""
        change: Form | None = ZERO
        while change is not None and len(terms) > 1:
            change = None
            for atom in terms:
                if atom.op is Op.MOD or atom.op is Op.IDIV:
                    change = self._join(atom, terms)
                    if change is not None:
                        constant += change[0]
                        terms = merged(items(terms), change[1], 1)
                        break
        found = [(n, c) for n, c in terms.items() if c]
        if len(found) > 1:
            found.sort(key=term_order)
        return constant, tuple(found)

    def _join(self, atom: UOp, terms: dict[UOp, int]) -> Form | None:
        """What to add to a sum so that `atom` leaves it with a partner; None without one.

        Only where the dividend is exact: a wrapped one equals its form modulo 2**64 only.
        """
        k = terms[atom]
        if atom.op is Op.IDIV:
            return self._join_quotient(atom, k, terms)
        whole = self.fact(atom).whole
        if whole is None or not self.exact(whole[0]):
            return None
        value, quotient, d = whole
        divided = [(n, c) for n, c in quotient[1] if n.op is Op.IDIV or n.op is Op.MOD]
        if divided and all(terms.get(n) == k * d * c for n, c in divided):
            gone = merged(((atom, -k),), quotient[1], -k * d)
            return k * value[0] - k * d * quotient[0], items(merged(items(gone), value[1], k))
        for other, c in terms.items():
            above = self.fact(other).whole if other.op is Op.MOD and c == k * d else None
            if above is None:
                continue
            e = above[2]
            extra = merged(above[0][1], quotient[1], -1)
            if any(extra.get(n, 0) % e for n, _ in divided):
                continue
            extra = {n: r for n, r in extra.items() if r % e}
            joined = self.plus(value, self._make((above[0][0] - quotient[0]), extra), d)
            if self.exact(above[0]) and self.exact(joined):
                rest = self.remainder(joined, d * e)
                return k * rest[0], items(merged(((atom, -k), (other, -c)), rest[1], k))
        return None

    def _join_quotient(self, atom: UOp, m: int, terms: dict[UOp, int]) -> Form | None:
        """k*L - k*d*(L//d) = k*(L%d)"""
        d = int_value(atom.src[1]) if atom.src[1].op is Op.CONST else 0
        if d <= 0 or m % d:
            return None
        value, k = self.linear(atom.src[0]), -m // d
        if not all(terms.get(n) == k * c for n, c in value[1]) or not self.exact(value):
            return None
        rest = self._remainder_atom(value, d, (0, ((atom, 1),)))
        gone = merged(((atom, k * d),), value[1], -k)
        return k * rest[0] - k * value[0], items(merged(items(gone), rest[1], k))

    def node(self, form: Form) -> UOp:
        """The canonical node of a form."""
        constant, terms = form
        if not terms:
            return integer(constant)
        made: UOp | None = None
        if terms[0][1] < 0 and constant:  # n - r rather than -r + n
            made, constant = integer(constant), 0
        for atom, c in terms:
            if made is None:
                made = atom if c == 1 else UOp(Op.NEG, (atom,)) if c == -1 else _times(atom, c)
            elif c < 0:
                made = UOp(Op.SUB, (made, atom if c == -1 else _times(atom, -c)))
            else:
                made = UOp(Op.ADD, (made, atom if c == 1 else _times(atom, c)))
        assert made is not None
        if constant:
            op = Op.SUB if constant < 0 else Op.ADD
            made = UOp(op, (made, integer(abs(constant))))
        if made is not terms[0][0] and self._seen(made) is None:
            fact = Fact(None)
            fact.form = form
            self._keep(made, fact)
        return made

    def _of_atom(self, atom: UOp) -> Form:
        form = self.fact(atom).form
        return (0, ((atom, 1),)) if form is None else form

    # --- products, extremes, selections -----------------------------------------------------------

    def times(self, a: Form, b: Form) -> Form:
        """a * b; sums are multiplied out."""
        if not a[1]:
            return self.scale(b, a[0])
        if not b[1]:
            return self.scale(a, b[0])
        if len(a[1]) * len(b[1]) > MAX_PRODUCT_TERMS:
            return self._product([self.node(a), self.node(b)])
        total = self.plus(self.scale((0, a[1]), b[0]), self.scale((0, b[1]), a[0]))
        total = self.plus(total, (a[0] * b[0], ()))
        for x, c in a[1]:
            for y, e in b[1]:
                total = self.plus(total, self._product([x, y]), c * e)
        return total

    def _product(self, factors: Sequence[UOp]) -> Form:
        flat: list[UOp] = []
        for f in factors:
            while f.op is Op.MUL and f.src[1].op is not Op.CONST:
                flat.append(f.src[1])
                f = f.src[0]
            flat.append(f)
        flat.sort(key=order)
        made = flat[0]
        for f in flat[1:]:
            span = unwrapped(Op.MUL, INT64, (self.bounds(made), self.bounds(f)))
            assert span is not None
            made = self._atom(Op.MUL, (made, f), span)
        return self._of_atom(made)

    def extreme(self, op: Op, forms: Sequence[Form]) -> Form:
        """MAX or MIN of forms: what another one always beats is dropped, nested ones are one."""
        sign = 1 if op is Op.MAX else -1
        flat: list[Form] = []
        stack = list(forms)[::-1]
        while stack:
            form = stack.pop()
            if form[0] == 0 and len(form[1]) == 1 and form[1][0][1] == 1:
                atom = form[1][0][0]
                if atom.op is op:
                    stack += [self.linear(s) for s in reversed(atom.src)]
                    continue
            if form not in flat:
                flat.append(form)
        if len(flat) <= MAX_CLAMPS and all(self.exact(f) for f in flat):
            kept: list[Form] = []
            for i, a in enumerate(flat):
                others = kept + flat[i + 1 :]
                if not any(self._beats(b, a, sign) for b in others):
                    kept.append(a)
            flat = kept
        if len(flat) == 1:
            return flat[0]
        nodes = sorted((self.node(f) for f in flat), key=lambda n: (n.op is Op.CONST, order(n)))
        made = nodes[0]
        for n in nodes[1:]:
            span = unwrapped(op, INT64, (self.bounds(made), self.bounds(n)))
            assert span is not None
            made = self._atom(op, (made, n), span)
        return self._of_atom(made)

    def _beats(self, a: Form, b: Form, sign: int) -> bool:
        return self.limits(self.scale(self.plus(a, b, -1), sign))[0] >= 0

    def select(self, condition: UOp, a: Form, b: Form) -> Form:
        """a where the condition holds, else b"""
        if condition.op is Op.CONST:
            return a if int_value(condition) else b
        if a == b:
            return a
        if condition.op is Op.NOT:
            condition, a, b = condition.src[0], b, a
        x, y = self.node(a), self.node(b)
        span = unwrapped(Op.WHERE, INT64, (BIT, self.bounds(x), self.bounds(y)))
        assert span is not None
        return self._of_atom(self._atom(Op.WHERE, (condition, x, y), span))


def merged(a: Terms, b: Terms, k: int) -> dict[UOp, int]:
    """Coefficients of a + k*b; zeros are dropped."""
    terms = dict(a)
    for atom, c in b:
        total = terms.get(atom, 0) + k * c
        if total:
            terms[atom] = total
        else:
            del terms[atom]
    return terms


def items(terms: dict[UOp, int]) -> Terms:
    return tuple(terms.items())


def _times(atom: UOp, c: int) -> UOp:
    return UOp(Op.MUL, (atom, integer(c)))
