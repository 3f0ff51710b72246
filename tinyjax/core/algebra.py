"""Integer algebra on index expressions: scalar int64 nodes and the conditions on them.

Every int64 node has a *form*, `constant + sum(coefficient * atom)`; an atom is a RANGE, a
quotient, a clamp, a loaded integer or anything else that is not a sum. Two expressions with one
form are one node. Conditions are `sum <= constant`, equalities and their conjunctions and
disjunctions, put in one way. Nothing is ever swept: constructors (`add`, `idiv`, `lt`, ...)
return the canonical node at once and `simplify` visits each node of a foreign expression once.

Division by a constant d > 0 rounds down. Of `sum // d` and `sum % d`

    multiples of d leave the sum         (d*X + R) // d = X + R//d           R between one or two d
    common factors are divided out       (g*X + B) // (g*d) = X//d           if 0 <= B < g
    nested quotients are one             (X + L//g) // d = (g*X + L) // (g*d)
    nested remainders are one            (L % (d*e)) % d = L % d,  (L % (d*e)) // d = (L//d) % e

and what must stay is a quotient or remainder atom. Sums put them together again:

    k*d*(L//d) + k*(L%d) = k*L
    k*L - k*d*(L//d) = k*(L%d)
    k*d*((L//d + Y)%e) + k*(L%d) = k*((L + d*Y)%(d*e))

so a reshape there and back leaves nothing. **Progress**: each rule lowers the number of
quotients and remainders, or that number stays and the dividends get smaller. **Order**: terms of
a sum are sorted by the deepest RANGE they mention, then by kind, span and structure, so that
sums over outer loops come first and can leave the inner ones.

**Overflow.** Sums are exact modulo 2**64 whatever happens. A rule that needs the mathematical value
(all of division and comparison) is applied only where the bounds prove it lies in 64 bits.

**Assumptions.** `assume(condition)` is the same algebra with bounds that hold where the condition
does: an index is simplified under the condition that guards it.

Cost: about 10 us for a constructor, and per node of an expression simplified. Facts are kept on the
nodes. Reference: Granlund and Montgomery 1994 for floor division; the rules are proved in the tests
by enumeration.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tinyjax.core import rules  # noqa: F401  (fills the aval table)
from tinyjax.core.intervals import (
    BIT,
    BOOL,
    INT64,
    INT64_SPAN,
    Span,
    cast_span,
    compare_span,
    dtype_span,
    unwrapped,
    within,
)
from tinyjax.core.ops import COMPARISONS, Op
from tinyjax.core.uop import UOp, const, toposort

Terms = tuple[tuple[UOp, int], ...]
Form = tuple[int, Terms]
"""(constant, ((atom, coefficient), ...)): atoms in order, coefficients not 0."""

ZERO: Form = (0, ())
NEGATABLE: Span = (-INT64_SPAN[1], INT64_SPAN[1])
MAX_PRODUCT_TERMS = 16
"""Products of sums are multiplied out up to this many terms."""
MAX_CLAMPS = 8
"""Operands of one max or min that are compared with each other."""

_literals: dict[int, UOp] = {}


def integer(value: int) -> UOp:
    """The int64 literal `value` (modulo 2**64)."""
    found = _literals.get(value)
    if found is None:
        wrapped = (value + (1 << 63)) % (1 << 64) - (1 << 63)
        found = const(wrapped, INT64)
        if -1024 <= value <= 1024:
            _literals[value] = found
    return found


TRUE, FALSE = const(True, BOOL), const(False, BOOL)


def int_value(node: UOp) -> int:
    """The value of an integer or bool CONST."""
    return int.from_bytes(node.arg[1], "little", signed=node.arg[0].kind == "i")


class Fact:
    """What one algebra knows of one node; filled when asked for.

    `bounds`: proven span (None if not an integer). `form`: for int64 its form, for narrower
    integers that of the widened value; None means the node is an atom. `canonical`: the node for
    it, None for itself. `whole`: of an atom L % d, the (form of L, form of L // d, d). `order`,
    `seal`: place in the total order, structural hash.
    """

    __slots__ = ("bounds", "canonical", "form", "order", "seal", "whole")

    def __init__(self, bounds: Span | None) -> None:
        self.bounds = bounds
        self.canonical: UOp | None = None
        self.form: Form | None = None
        self.whole: tuple[Form, Form, int] | None = None
        self.order: tuple[int, ...] | None = None
        self.seal: tuple[int, int] | None = None


class Algebra:
    """Constructors and simplification under a set of assumptions; `PLAIN` has none.

    Nodes given to the constructors may be any scalars; results are canonical in this algebra.
    """

    def __init__(self, assumed: Iterable[UOp] = (), facts: dict[UOp, Fact] | None = None) -> None:
        self.facts = facts  # None: facts are kept on the nodes
        self.atoms: dict[UOp, Span] = {}
        self.sums: list[tuple[Terms, Span]] = []
        self.true: set[UOp] = set()
        self.false: set[UOp] = set()
        for condition in assumed:
            self._take(condition)
        self._propagate()

    # --- facts ------------------------------------------------------------------------------------

    def fact(self, node: UOp) -> Fact:
        """Facts of a node; walks below it if it was never seen."""
        found = self._seen(node)
        if found is not None:
            return found
        if node.op not in BUILD or not _is_index(node):
            return self._leaf(node)
        for n in toposort([node], keep=self._unseen):
            self._visit(n)
        return self._seen(node)  # type: ignore[return-value]

    def _seen(self, node: UOp) -> Fact | None:
        if self.facts is not None:
            return self.facts.get(node)
        try:
            return node._fact  # type: ignore[no-any-return]
        except AttributeError:
            return None

    def _keep(self, node: UOp, fact: Fact) -> Fact:
        if self.facts is not None:
            self.facts[node] = fact
        else:
            node._fact = fact
        return fact

    def _unseen(self, node: UOp) -> bool:
        return node.op in BUILD and _is_index(node) and self._seen(node) is None

    def _leaf(self, node: UOp) -> Fact:
        """Something not built from integers: a range, a literal, a loaded value, ..."""
        op = node.op
        if op is Op.CONST:
            span = dtype_span(node.arg[0])
            if span is not None:
                value = int_value(node)
                fact = Fact((value, value))
                fact.form = (value, ())
                return self._keep(node, fact)
        elif op is Op.RANGE:
            span = 0, max(0, self.bounds(node.src[0])[1] - 1)
        else:
            span = dtype_span(getattr(node.aval, "dtype", None))
        return self._keep(node, self._assumed(node, Fact(span)))

    def _assumed(self, node: UOp, fact: Fact) -> Fact:
        """The fact of an atom or condition, tightened by what is assumed of it."""
        if self.facts is not None and fact.bounds is not None:
            given = (1, 1) if node in self.true else self.atoms.get(node)
            if given is not None:
                low, high = max(fact.bounds[0], given[0]), min(fact.bounds[1], given[1])
                if low <= high:  # else the condition never holds and anything may be said
                    fact.bounds = low, high
                if low == high and node.aval.dtype == INT64:
                    fact.form = (low, ())
        return fact

    def _atom(self, op: Op, src: tuple[UOp, ...], bounds: Span, arg: Any = None) -> UOp:
        """A node that is not a sum, with proven bounds."""
        node = UOp(op, src, arg)
        if self._seen(node) is None:
            if not within(bounds, INT64_SPAN):
                bounds = INT64_SPAN
            self._keep(node, self._assumed(node, Fact(bounds)))
        return node

    def _visit(self, node: UOp) -> None:
        """Facts of a node whose integer operands are known."""
        fact = Fact(None)
        dtype = node.aval.dtype
        if dtype == INT64:
            form = BUILD[node.op](self, node)
            if form == (0, ((node, 1),)):
                if self._seen(node) is None:
                    self._keep(node, Fact(INT64_SPAN))
                return
            if node in self.atoms and len(form[1]) == 1 and form[1][0][1] == 1 and not form[0]:
                held = self.fact(form[1][0][0])
                assert held.bounds is not None
                given = self.atoms[node]
                low, high = max(held.bounds[0], given[0]), min(held.bounds[1], given[1])
                if low <= high:
                    held.bounds = low, high
            fact.form = form
        elif dtype == BOOL:
            rule = CONDITIONS.get(node.op)
            made = self._held(node if rule is None else rule(self, node))
            value = int_value(made) if made.op is Op.CONST else -1
            fact.bounds = BIT if value < 0 else (value, value)
            if made is not node:
                fact.canonical = made
        else:
            fact.bounds, fact.form = self._narrow(node)
        self._keep(node, fact)

    def _held(self, condition: UOp) -> UOp:
        """The condition, or what it is assumed to be."""
        if condition in self.true:
            return TRUE
        return FALSE if condition in self.false else condition

    def _narrow(self, node: UOp) -> tuple[Span | None, Form | None]:
        """Bounds of an integer that is not int64, and the form of its value in int64.

        There is one when the operation provably does not wrap.
        """
        dtype = node.aval.dtype
        total = dtype_span(dtype)
        if total is None:
            return None, None
        if node.op is Op.CAST:
            of = node.src[0]
            if dtype_span(of.aval.dtype) is None:
                return total, None
            span = self.bounds(of)
            fits = within(span, total) and within(span, INT64_SPAN)
            return cast_span(span, of.aval.dtype, dtype), self.wide(of) if fits else None
        spans = tuple(self.bounds(s) for s in node.src)
        raw = unwrapped(node.op, dtype, spans)
        if raw is None or not within(raw, total):
            return total, None
        if node.op not in WIDENED or not within(raw, INT64_SPAN):
            return raw, None
        src = tuple(s if s.aval.dtype == BOOL else self.node(self.wide(s)) for s in node.src)
        form = self.linear(UOp(node.op, src))
        known = self.limits(form)
        return (max(raw[0], known[0]), min(raw[1], known[1])), form

    def bounds(self, node: UOp) -> Span:
        """Proven inclusive bounds of an integer or bool scalar, by default its dtype's."""
        fact = self.fact(node)
        if fact.bounds is None:
            if fact.form is None:
                raise TypeError(f"bounds are for integers and bools, not {node!r}")
            limits = self.limits(fact.form)
            fact.bounds = limits if within(limits, INT64_SPAN) else INT64_SPAN
        return fact.bounds

    # --- forms ------------------------------------------------------------------------------------

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
        for atom, c in form[1]:
            least, most = self.fact(atom).bounds  # type: ignore[misc]
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
                rest = _merged(form[1], terms, -k)
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
            ends = [c * b for b in span or PLAIN.bounds(atom)]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def exact(self, form: Form) -> bool:
        """Whether the value provably fits 64 bits, so that int64 arithmetic gives it."""
        return within(self.limits(form), INT64_SPAN)

    def plus(self, a: Form, b: Form, k: int = 1) -> Form:
        """a + k*b"""
        if not b[1]:
            return a[0] + k * b[0], a[1]
        if not a[1] and k == 1:
            return a[0] + b[0], b[1]
        return self._make(a[0] + k * b[0], _merged(a[1], b[1], k))

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
                        terms = _merged(_items(terms), change[1], 1)
                        break
        found = [(n, c) for n, c in terms.items() if c]
        if len(found) > 1:
            found.sort(key=_term_order)
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
            gone = _merged(((atom, -k),), quotient[1], -k * d)
            return k * value[0] - k * d * quotient[0], _items(_merged(_items(gone), value[1], k))
        for other, c in terms.items():
            above = self.fact(other).whole if other.op is Op.MOD and c == k * d else None
            if above is None:
                continue
            e = above[2]
            extra = _merged(above[0][1], quotient[1], -1)
            if any(extra.get(n, 0) % e for n, _ in divided):
                continue
            extra = {n: r for n, r in extra.items() if r % e}
            joined = self.plus(value, self._make((above[0][0] - quotient[0]), extra), d)
            if self.exact(above[0]) and self.exact(joined):
                rest = self.remainder(joined, d * e)
                return k * rest[0], _items(_merged(((atom, -k), (other, -c)), rest[1], k))
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
        gone = _merged(((atom, k * d),), value[1], -k)
        return k * rest[0] - k * value[0], _items(_merged(_items(gone), rest[1], k))

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

    # --- division ---------------------------------------------------------------------------------

    def divide(self, form: Form, d: int) -> tuple[Form, Form]:
        """(form // d, form % d), rounding down, d > 0."""
        return self.quotient(form, d), self.remainder(form, d)

    def _split(self, form: Form, d: int) -> tuple[Form, Form]:
        """(W, R) with form = d*W + R, R as small as one look at each coefficient makes it.

        Where R lies in [0, d), it is the remainder and W the quotient.
        """
        best: tuple[Form, Form] | None = None
        for choose in RESIDUES:
            over: list[tuple[UOp, int]] = []
            rest: list[tuple[UOp, int]] = []
            for n, c in form[1]:
                q = choose(c, d)
                if q:
                    over.append((n, q))
                if c != q * d:
                    rest.append((n, c - q * d))
            left: Form = (form[0], tuple(rest))
            low, high = self.limits(left)
            k = low // d
            found: tuple[Form, Form] = (k, tuple(over)), (form[0] - k * d, tuple(rest))
            if high - k * d < d:
                return found
            if best is None:
                best = found
        assert best is not None
        return best

    def _common_factor(self, form: Form, d: int) -> tuple[Form, Form, int] | None:
        """(X, B, g) with form = g*X + B, 0 <= B < g and g > 1 dividing d; the largest such g."""
        terms = sorted(form[1], key=lambda t: -abs(t[1]))
        g = d
        for count, (_, c) in enumerate(terms, 1):
            g = math.gcd(g, c)
            if g == 1:
                return None
            if count < len(terms) and terms[count][1] % g == 0:
                continue
            large = {n for n, _ in terms[:count]}
            small: Form = (form[0], tuple(t for t in form[1] if t[0] not in large))
            low, high = self.limits(small)
            k = low // g
            if high - k * g < g:
                over = tuple((n, c // g) for n, c in form[1] if n in large)
                return (k, over), (small[0] - k * g, small[1]), g
        return None

    def quotient(self, form: Form, d: int) -> Form:
        """form // d, rounding down, d > 0."""
        if d == 1:
            return form
        if not form[1]:
            return form[0] // d, ()
        if not self.exact(form):
            return self._quotient_atom(form, d)
        whole, rest = self._split(form, d)
        if not self.exact(rest):
            return self._quotient_atom(form, d)
        low, high = self.limits(rest)
        if 0 <= low and high < d:
            return whole
        return self.plus(whole, self._small_quotient(rest, d))

    def _small_quotient(self, form: Form, d: int) -> Form:
        """form // d where no coefficient reaches d."""
        factor = self._common_factor(form, d)
        if factor is not None:
            return self.quotient(factor[0], d // factor[2])
        inner = _only(form[1], Op.IDIV, 1)
        if inner is not None:  # (X + L//g) // d
            value, g = self.linear(inner.src[0]), int_value(inner.src[1])
            joined = self._make(form[0] * g, {n: c * g for n, c in form[1] if n is not inner})
            joined = self.plus(joined, value)
            if self.exact(value) and self.exact(joined):
                return self.quotient(joined, d * g)
        if len(form[1]) == 1 and form[0] == 0 and form[1][0][1] == 1:
            atom = form[1][0][0]
            held = self.fact(atom).whole if atom.op is Op.MOD else None
            if held is not None and held[2] % d == 0 and self.exact(held[0]):  # (L % (d*e)) // d
                return self.remainder(self.quotient(held[0], d), held[2] // d)
        return self._quotient_atom(form, d)

    def _quotient_atom(self, form: Form, d: int) -> Form:
        low, high = self.limits(form)
        if not within((low, high), INT64_SPAN):
            low, high = INT64_SPAN
        if low // d == high // d:
            return low // d, ()
        atom = self._atom(Op.IDIV, (self.node(form), integer(d)), (low // d, high // d))
        return self._of_atom(atom)

    def _of_atom(self, atom: UOp) -> Form:
        form = self.fact(atom).form
        return (0, ((atom, 1),)) if form is None else form

    def remainder(self, form: Form, d: int) -> Form:
        """form % d, the sign of d, d > 0."""
        if d == 1:
            return ZERO
        if not form[1]:
            return form[0] % d, ()
        if not self.exact(form):
            return self._remainder_atom(form, d, self._quotient_atom(form, d))
        for n, c in form[1]:
            held = self.fact(n).whole if n.op is Op.MOD else None
            if held is not None and c * held[2] % d == 0:  # (X + c*(L%a)) % d, d divides c*a
                inner = self.plus(self.plus(form, (0, ((n, 1),)), -c), held[0], c)
                if self.exact(held[0]) and self.exact(inner):
                    return self.remainder(inner, d)
        whole, rest = self._split(form, d)
        if not self.exact(rest):
            return self._remainder_atom(form, d, self._quotient_atom(form, d))
        low, high = self.limits(rest)
        if 0 <= low and high < d:
            return rest
        factor = self._common_factor(rest, d)
        if factor is not None:
            large, small, g = factor
            return self.plus(self.scale(self.remainder(large, d // g), g), small)
        return self._remainder_atom(rest, d, self._small_quotient(rest, d))

    def _remainder_atom(self, form: Form, d: int, quotient: Form) -> Form:
        low, high = self.limits(form)
        if not within((low, high), INT64_SPAN):
            low, high = INT64_SPAN
        span = (0, d - 1) if low < 0 else (low, high) if high < d else (0, min(high, d - 1))
        atom = self._atom(Op.MOD, (self.node(form), integer(d)), span)
        fact = self.fact(atom)
        if fact.whole is None:
            fact.whole = form, quotient, d
        return self._of_atom(atom)

    # --- products, clamps, selections -------------------------------------------------------------

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

    # --- comparisons ------------------------------------------------------------------------------

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
            atom = _only(terms, Op.IDIV, sign)
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

    # --- conditions -------------------------------------------------------------------------------

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

    # --- assumptions ------------------------------------------------------------------------------

    def _take(self, condition: UOp) -> None:
        """Note a condition (canonical in PLAIN) that holds."""
        self.true.add(condition)
        for c in chain(condition, Op.AND):
            self.true.add(c)
            self.false.add(PLAIN.negation(c))
            found = PLAIN._span_of(c)
            if found is None:
                self._take_narrow(c)
            if found is None or not found[3]:
                continue
            terms, low, high, _ = found
            if len(terms) == 1 and terms[0][1] == 1:
                atom = terms[0][0]
                old = self.atoms.get(atom, INT64_SPAN)
                self.atoms[atom] = max(low, old[0]), min(high, old[1])
            else:
                self.sums.append((terms, (low, high)))

    def _take_narrow(self, condition: UOp) -> None:
        """Note a comparison of an integer narrower than int64 with a literal."""
        if condition.op not in COMPARISONS or condition.op is Op.CMPNE:
            return
        x, y = condition.src
        total = dtype_span(x.aval.dtype)
        if total is None or (x.op is Op.CONST) == (y.op is Op.CONST):
            return
        value = int_value(x if x.op is Op.CONST else y)
        strict = int(condition.op is Op.CMPLT)
        if condition.op is Op.CMPEQ:
            span = value, value
        elif x.op is Op.CONST:
            span = value + strict, total[1]
        else:
            span = total[0], value - strict
        atom = y if x.op is Op.CONST else x
        old = self.atoms.get(atom, total)
        self.atoms[atom] = max(span[0], old[0]), min(span[1], old[1])

    def _propagate(self) -> None:
        """Bounds of the atoms of an assumed sum, from the bounds of the others."""
        sums = self.sums
        self.sums = []
        for terms, (low, high) in sums:
            spans = {}
            for n, c in terms:
                a, b = PLAIN.bounds(n)
                if n in self.atoms:
                    a, b = max(a, self.atoms[n][0]), min(b, self.atoms[n][1])
                spans[n] = (c * a, c * b) if c > 0 else (c * b, c * a)
            least, most = (sum(s[i] for s in spans.values()) for i in (0, 1))
            for n, c in terms:
                under = low - (most - spans[n][1])
                over = high - (least - spans[n][0])
                ends = (-(-under // c), over // c) if c > 0 else (-(over // -c), -(under // -c))
                old = self.atoms.get(n, INT64_SPAN)
                self.atoms[n] = max(ends[0], old[0]), min(ends[1], old[1])
        if self.facts is not None:
            self.facts.clear()
        self.sums = sums

    # --- whole expressions ------------------------------------------------------------------------

    def canonical(self, node: UOp) -> UOp:
        """The simplified node: the same value wherever the assumptions hold."""
        if node.aval.dtype == INT64:
            return self.node(self.linear(node))
        fact = self.fact(node)
        if node.aval.dtype == BOOL:
            if node.op is Op.CONST or fact.canonical is None:
                return TRUE if node in self.true else node
            return fact.canonical
        return node


def _is_index(node: UOp) -> bool:
    """A scalar integer or bool."""
    of = node.aval
    return of.shape == () and dtype_span(of.dtype) is not None


def _merged(a: Terms, b: Terms, k: int) -> dict[UOp, int]:
    """Coefficients of a + k*b; zeros are dropped."""
    terms = dict(a)
    for atom, c in b:
        total = terms.get(atom, 0) + k * c
        if total:
            terms[atom] = total
        else:
            del terms[atom]
    return terms


def _items(terms: dict[UOp, int]) -> Terms:
    return tuple(terms.items())


def _times(atom: UOp, c: int) -> UOp:
    return UOp(Op.MUL, (atom, integer(c)))


def _only(terms: Terms, op: Op, coefficient: int) -> UOp | None:
    """The only atom of this kind, if its coefficient is as given and its divisor a literal."""
    found = [(n, c) for n, c in terms if n.op is op]
    if len(found) != 1 or found[0][1] != coefficient:
        return None
    return found[0][0] if found[0][0].src[1].op is Op.CONST else None


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


RESIDUES: tuple[Callable[[int, int], int], ...] = (
    lambda c, d: c // d if c >= 0 else -(-c // d),
    lambda c, d: c // d,
    lambda c, d: (2 * c + d) // (2 * d),
)
"""How many times d is taken out of a coefficient: towards zero, down, to the nearest. The first is
what stays when none makes the rest smaller than d."""


# --- the rules per op -----------------------------------------------------------------------------
# Each maps a foreign int64 node whose operands are known to its form.

FormRule = Callable[[Algebra, UOp], Form]
ConditionRule = Callable[[Algebra, UOp], UOp]


def opaque_form(a: Algebra, n: UOp) -> Form:
    """An op without algebra: an atom over canonical operands, bounded by interval arithmetic."""
    src = tuple(a.canonical(s) for s in n.src)
    span = unwrapped(n.op, INT64, tuple(a.bounds(s) for s in src))
    return a._of_atom(a._atom(n.op, src, INT64_SPAN if span is None else span, n.arg))


def divisor_of(a: Algebra, n: UOp) -> int:
    """The divisor of a node if it is a positive literal, else 0."""
    constant, terms = a.linear(n.src[1])
    return constant if not terms and constant > 0 else 0


def idiv_form(a: Algebra, n: UOp) -> Form:
    """Floor division"""
    d = divisor_of(a, n)
    return a.quotient(a.linear(n.src[0]), d) if d else opaque_form(a, n)


def mod_form(a: Algebra, n: UOp) -> Form:
    """Floor modulo"""
    d = divisor_of(a, n)
    return a.remainder(a.linear(n.src[0]), d) if d else opaque_form(a, n)


def div_form(a: Algebra, n: UOp) -> Form:
    """Truncating division: floor division where the sign of the dividend is known."""
    x, d = a.linear(n.src[0]), divisor_of(a, n)
    low, high = a.limits(x)
    if not d or not within((low, high), NEGATABLE) or low < 0 < high:
        return opaque_form(a, n)
    return a.quotient(x, d) if low >= 0 else a.scale(a.quotient(a.scale(x, -1), d), -1)


def rem_form(a: Algebra, n: UOp) -> Form:
    """Truncating remainder: floor modulo where the sign of the dividend is known."""
    x, d = a.linear(n.src[0]), divisor_of(a, n)
    low, high = a.limits(x)
    if not d or not within((low, high), NEGATABLE) or low < 0 < high:
        return opaque_form(a, n)
    return a.remainder(x, d) if low >= 0 else a.scale(a.remainder(a.scale(x, -1), d), -1)


def and_form(a: Algebra, n: UOp) -> Form:
    """x & (2**k - 1) -> x % 2**k, in two's complement for any sign"""
    x, y = (a.linear(s) for s in n.src)
    if not x[1]:
        x, y = y, x
    mask = y[0]
    if y[1] or mask < 0 or mask & (mask + 1):
        return a.scale(x, 1) if not y[1] and mask == -1 else opaque_form(a, n)
    return a.remainder(x, mask + 1) if mask + 1 < 1 << 63 else opaque_form(a, n)


def shift_of(a: Algebra, n: UOp) -> int:
    """The distance of a shift if it is a literal in 0..62, else -1."""
    constant, terms = a.linear(n.src[1])
    return constant if not terms and 0 <= constant < 63 else -1


def shift_left_form(a: Algebra, n: UOp) -> Form:
    """x << k -> x * 2**k"""
    k = shift_of(a, n)
    return opaque_form(a, n) if k < 0 else a.scale(a.linear(n.src[0]), 1 << k)


def shift_right_form(a: Algebra, n: UOp) -> Form:
    """x >> k -> x // 2**k (arithmetic shift; logical where x >= 0)"""
    k, x = shift_of(a, n), a.linear(n.src[0])
    known = n.op is Op.SHRA or (a.bounds(n.src[0])[0] >= 0)
    return a.quotient(x, 1 << k) if k >= 0 and known else opaque_form(a, n)


def abs_form(a: Algebra, n: UOp) -> Form:
    """|x| -> x or -x where the sign is known"""
    low, high = a.bounds(n.src[0])
    if low >= 0 or high <= 0:
        return a.scale(a.linear(n.src[0]), 1 if low >= 0 else -1)
    return opaque_form(a, n)


def cast_form(a: Algebra, n: UOp) -> Form:
    """Conversion to int64: of an integer that fits its value, else an atom."""
    of = n.src[0]
    span = dtype_span(of.aval.dtype)
    if span is not None and within(a.bounds(of), INT64_SPAN):
        return a.wide(of)
    return a._of_atom(a._atom(Op.CAST, (of,), INT64_SPAN, (INT64, False)))


BUILD: dict[Op, FormRule] = {
    Op.ADD: lambda a, n: a.plus(a.linear(n.src[0]), a.linear(n.src[1])),
    Op.SUB: lambda a, n: a.plus(a.linear(n.src[0]), a.linear(n.src[1]), -1),
    Op.NEG: lambda a, n: a.scale(a.linear(n.src[0]), -1),
    Op.NOT: lambda a, n: a.plus((-1, ()), a.linear(n.src[0]), -1),
    Op.MUL: lambda a, n: a.times(a.linear(n.src[0]), a.linear(n.src[1])),
    Op.IDIV: idiv_form,
    Op.MOD: mod_form,
    Op.DIV: div_form,
    Op.REM: rem_form,
    Op.MAX: lambda a, n: a.extreme(Op.MAX, [a.linear(s) for s in n.src]),
    Op.MIN: lambda a, n: a.extreme(Op.MIN, [a.linear(s) for s in n.src]),
    Op.WHERE: lambda a, n: a.select(a.canonical(n.src[0]), a.linear(n.src[1]), a.linear(n.src[2])),
    Op.CAST: cast_form,
    Op.AND: and_form,
    Op.OR: opaque_form,
    Op.XOR: opaque_form,
    Op.SHL: shift_left_form,
    Op.SHRA: shift_right_form,
    Op.SHRL: shift_right_form,
    Op.ABS: abs_form,
    Op.SIGN: opaque_form,
    Op.CMPEQ: opaque_form,
    Op.CMPNE: opaque_form,
    Op.CMPLT: opaque_form,
    Op.CMPLE: opaque_form,
}
"""Ops of integers and bools that are walked into; everything else is a leaf. (Comparisons are here
for that reason; their results are bools, see CONDITIONS.)"""

WIDENED = frozenset(BUILD) - COMPARISONS - {Op.NOT, Op.CAST, Op.SIGN}
"""Ops on narrow integers that are the same op on int64 unless they wrap."""


def comparison_rule(a: Algebra, n: UOp) -> UOp:
    return a.compare(n.op, n.src[0], n.src[1])


def where_rule(a: Algebra, n: UOp) -> UOp:
    """where(c, x, y) of bools -> (c & x) | (~c & y) where a case is a literal"""
    c, x, y = (a.canonical(s) for s in n.src)
    if c.op is Op.CONST:
        return x if int_value(c) else y
    if x is y:
        return x
    if x.op is not Op.CONST and y.op is not Op.CONST:
        return a._condition(Op.WHERE, (c, x, y))
    left = a.junction(Op.AND, [c, x])
    return a.junction(Op.OR, [left, a.junction(Op.AND, [a.negation(c), y])])


def cast_rule(a: Algebra, n: UOp) -> UOp:
    """bool(x) -> x != 0 for integers"""
    of = n.src[0]
    if of.aval.dtype == BOOL:
        return a.canonical(of)
    if dtype_span(of.aval.dtype) is None:
        return n
    return a.compare(Op.CMPNE, of, const(0, of.aval.dtype))


CONDITIONS: dict[Op, ConditionRule] = {
    Op.CMPEQ: comparison_rule,
    Op.CMPNE: comparison_rule,
    Op.CMPLT: comparison_rule,
    Op.CMPLE: comparison_rule,
    Op.AND: lambda a, n: a.junction(Op.AND, [a.canonical(s) for s in n.src]),
    Op.OR: lambda a, n: a.junction(Op.OR, [a.canonical(s) for s in n.src]),
    Op.NOT: lambda a, n: a.negation(a.canonical(n.src[0])),
    Op.XOR: lambda a, n: a.compare(Op.CMPNE, n.src[0], n.src[1]),
    Op.MAX: lambda a, n: a.junction(Op.OR, [a.canonical(s) for s in n.src]),
    Op.MIN: lambda a, n: a.junction(Op.AND, [a.canonical(s) for s in n.src]),
    Op.WHERE: where_rule,
    Op.CAST: cast_rule,
}
"""Scalar bool nodes whose operands are known -> canonical conditions."""


# --- the total order ------------------------------------------------------------------------------

RANKS: dict[Op, int] = {op: i for i, op in enumerate(Op)}


def seal(node: UOp) -> tuple[int, int]:
    """(greatest RANGE id below a node or -1, structural hash that is the same in every process)."""
    found = PLAIN.fact(node).seal
    if found is not None:
        return found
    for n in toposort([node], keep=lambda m: PLAIN.fact(m).seal is None):
        seals = [PLAIN.fact(s).seal for s in n.operands]
        own = n.arg[0] if n.op is Op.RANGE else -1
        deepest = max((s[0] for s in seals if s is not None), default=-1)
        arg = zlib.crc32(repr(n.arg).encode())
        PLAIN.fact(n).seal = max(own, deepest), hash((RANKS[n.op], arg, *seals))
    return PLAIN.fact(node).seal  # type: ignore[return-value]


def order(node: UOp) -> tuple[int, ...]:
    """Sort key of atoms and conditions: deepest range, kind, span, structure."""
    fact = PLAIN.fact(node)
    if fact.order is None:
        deepest, structure = seal(node)
        span = PLAIN.bounds(node) if dtype_span(node.aval.dtype) is not None else BIT
        kind = -1 if node.op is Op.RANGE else RANKS[node.op]
        fact.order = deepest, kind, *span, structure
    return fact.order


def _term_order(term: tuple[UOp, int]) -> tuple[int, ...]:
    return order(term[0])


PLAIN = Algebra()
"""The algebra without assumptions; its facts live on the nodes."""
