"""Integer algebra on index expressions: scalar int64 nodes and the conditions on them.

The layers, each a file: what is known of a node (facts.py), sums (sums.py), floor division
(division.py), conditions (conditions.py); here the rules per op that turn foreign nodes into these,
and assumptions. Nothing is ever swept: constructors (core/integers.py) return the canonical node at
once and `canonical` visits each node of a foreign expression once.

**Overflow.** Sums are exact modulo 2**64 whatever happens. A rule that needs the mathematical value
(all of division and comparison) is applied only where the bounds prove it lies in 64 bits.

**Assumptions.** An algebra under conditions has bounds that hold where the conditions do: an index
is simplified under the condition that guards it.

Cost: about 10 us for a constructor, and per node of an expression simplified. Facts are kept on the
nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tinyjax.core.conditions import Conditions, chain
from tinyjax.core.facts import FALSE, TRUE, Fact, Facts, Form, int_value
from tinyjax.core.intervals import (
    BIT,
    BOOL,
    INT64,
    INT64_SPAN,
    Span,
    cast_span,
    dtype_span,
    unwrapped,
    within,
)  # fmt: skip
from tinyjax.core.ops import COMPARISONS, Op
from tinyjax.core.uop import UOp, const

NEGATABLE: Span = (-INT64_SPAN[1], INT64_SPAN[1])


class Algebra(Conditions):
    """Constructors and simplification under a set of assumptions; `PLAIN` has none.

    Nodes given to the constructors may be any scalars; results are canonical in this algebra.
    """

    def __init__(self, assumed: Iterable[UOp] = (), facts: dict[UOp, Fact] | None = None) -> None:
        super().__init__(facts)
        for condition in assumed:
            self._take(condition)
        self._propagate()

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

    def opens(self, op: Op) -> bool:
        """Whether nodes of this op are walked into; all others are leaves."""
        return op in BUILD

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
        if node.op not in MODULAR and not all(within(s, INT64_SPAN) for s in spans):
            return raw, None  # an operand of uint64 is itself modulo 2**64 only
        src = tuple(s if s.aval.dtype == BOOL else self.node(self.wide(s)) for s in node.src)
        form = self.linear(UOp(node.op, src))
        known = self.limits(form)
        return (max(raw[0], known[0]), min(raw[1], known[1])), form

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

MODULAR = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.SHL, Op.AND, Op.OR, Op.XOR})
"""Those whose result modulo 2**64 follows from the operands modulo 2**64."""


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

PLAIN = Algebra()
"""The algebra without assumptions; its facts live on the nodes."""
Facts.plain = PLAIN
