"""Index arithmetic that simplifies as it is written: constructors, bounds, assumptions.

    r, s = loops of 8 and 15 iterations;  x = add(mul(r, integer(15)), s)
    add(mul(idiv(x, integer(10)), integer(10)), mod(x, integer(10))) is x
    bounds(x) == (0, 119);  lt(x, integer(30)) is lt(r, integer(2))

Every function takes any int64 (or bool) scalar nodes and returns *the* canonical node, in about
10 us; two equal expressions are one object wherever the algebra (core/algebra.py) can tell.
`simplify` does the same to an expression built by whatever means, in one walk; `simplify_index`
under the condition that guards it; `guarded_span` says which iterations of a loop matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from tinyjax.core.algebra import PLAIN, Algebra
from tinyjax.core.conditions import chain
from tinyjax.core.facts import FALSE, TRUE, Form, int_value, integer, order
from tinyjax.core.intervals import INT64, Span, hull
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, toposort

__all__ = [
    "FALSE", "PLAIN", "TRUE", "Algebra", "Form", "add", "and_", "assume", "bounds", "eq",
    "from_linear", "ge", "gt", "guarded_span", "idiv", "index", "int_value", "integer", "le",
    "linear", "lt", "max_", "min_", "mod", "mul", "ne", "neg", "not_", "or_", "simplify",
    "simplify_gated", "simplify_index", "simplify_valid", "sub", "where",
]  # fmt: skip


def bounds(node: UOp) -> Span:
    """Proven inclusive bounds of an integer or bool scalar, by default its dtype's."""
    return PLAIN.bounds(node)


def linear(node: UOp) -> Form:
    """`constant + sum(coefficient * atom)` of an int64 scalar."""
    return PLAIN.linear(node)


def from_linear(form: Form) -> UOp:
    """The node of a form made by `linear` or the methods of `PLAIN`."""
    return PLAIN.node(form)


def index(x: UOp) -> UOp:
    """Any integer scalar as a canonical int64 expression."""
    return PLAIN.node(PLAIN.wide(x))


def add(x: UOp, y: UOp) -> UOp:
    """x + y"""
    return PLAIN.node(PLAIN.plus(PLAIN.linear(x), PLAIN.linear(y)))


def sub(x: UOp, y: UOp) -> UOp:
    """x - y"""
    return PLAIN.node(PLAIN.plus(PLAIN.linear(x), PLAIN.linear(y), -1))


def neg(x: UOp) -> UOp:
    """-x"""
    return PLAIN.node(PLAIN.scale(PLAIN.linear(x), -1))


def mul(x: UOp, y: UOp) -> UOp:
    """x * y"""
    return PLAIN.node(PLAIN.times(PLAIN.linear(x), PLAIN.linear(y)))


def idiv(x: UOp, y: UOp) -> UOp:
    """x // y, rounding down, y > 0"""
    return PLAIN.canonical(UOp(Op.IDIV, (x, y)))


def mod(x: UOp, y: UOp) -> UOp:
    """x % y, the sign of y, y > 0"""
    return PLAIN.canonical(UOp(Op.MOD, (x, y)))


def max_(x: UOp, y: UOp) -> UOp:
    """The larger"""
    return PLAIN.node(PLAIN.extreme(Op.MAX, [PLAIN.linear(x), PLAIN.linear(y)]))


def min_(x: UOp, y: UOp) -> UOp:
    """The smaller"""
    return PLAIN.node(PLAIN.extreme(Op.MIN, [PLAIN.linear(x), PLAIN.linear(y)]))


def where(c: UOp, x: UOp, y: UOp) -> UOp:
    """x where c, else y"""
    return PLAIN.canonical(UOp(Op.WHERE, (c, x, y)))


def lt(x: UOp, y: UOp) -> UOp:
    """x < y"""
    return PLAIN.compare(Op.CMPLT, x, y)


def le(x: UOp, y: UOp) -> UOp:
    """x <= y"""
    return PLAIN.compare(Op.CMPLE, x, y)


def gt(x: UOp, y: UOp) -> UOp:
    """x > y"""
    return PLAIN.compare(Op.CMPLT, y, x)


def ge(x: UOp, y: UOp) -> UOp:
    """x >= y"""
    return PLAIN.compare(Op.CMPLE, y, x)


def eq(x: UOp, y: UOp) -> UOp:
    """x == y"""
    return PLAIN.compare(Op.CMPEQ, x, y)


def ne(x: UOp, y: UOp) -> UOp:
    """x != y"""
    return PLAIN.compare(Op.CMPNE, x, y)


def and_(*conditions: UOp) -> UOp:
    """All conditions hold; `true` for none."""
    return PLAIN.junction(Op.AND, [PLAIN.canonical(c) for c in conditions])


def or_(*conditions: UOp) -> UOp:
    """Some condition holds; `false` for none."""
    return PLAIN.junction(Op.OR, [PLAIN.canonical(c) for c in conditions])


def not_(condition: UOp) -> UOp:
    """The condition does not hold."""
    return PLAIN.negation(PLAIN.canonical(condition))


def simplify(node: UOp) -> UOp:
    """The canonical form of any integer or bool scalar, built by whatever means."""
    return PLAIN.canonical(node)


# --- under assumptions ----------------------------------------------------------------------------


def assume(*conditions: UOp) -> Algebra:
    """The algebra of places where these conditions hold; keep it while it is used."""
    return Algebra([PLAIN.canonical(c) for c in conditions], {})


def simplify_valid(valid: UOp) -> UOp:
    """A condition without the parts that bounds or its other parts imply.

    Cost: quadratic in the number of parts. Sums of several atoms go first, because bounds on single
    atoms imply them more often than the other way round.
    """
    parts = chain(PLAIN.canonical(valid), Op.AND)
    if len(parts) == 1:
        return parts[0]
    parts.sort(key=lambda c: (-sum(len(PLAIN.linear(s)[1]) for s in c.src if s.aval.dtype == INT64),
                              order(c)))  # fmt: skip
    about = [_about(c) for c in parts]
    for i in range(len(parts)):
        others = [c for j, c in enumerate(parts)
                  if about[j][0] != about[i][0] and about[j][1] & about[i][1] and c is not TRUE]  # fmt: skip
        if others and parts[i] is not TRUE:
            parts[i] = PLAIN.canonical(assume(*others).canonical(parts[i]))
    return PLAIN.junction(Op.AND, parts)


def _about(condition: UOp) -> tuple[object, frozenset[UOp]]:
    """The sum that a condition bounds, and the ranges and loads in it.

    Conditions on one sum are one span already, and those that share nothing imply nothing.
    """
    leaves = frozenset(n for n in toposort([condition]) if n.op in (Op.RANGE, Op.LOAD, Op.PARAM))
    sums = [PLAIN.linear(s)[1] for s in condition.src if s.aval.dtype == INT64]
    return tuple(s for s in sums if s) or condition, leaves


def simplify_index(node: UOp, valid: UOp | None = None) -> UOp:
    """An int64 (or bool) expression, simplified; where `valid` is given, it need only be right
    there."""
    node = PLAIN.canonical(node)
    if valid is None or valid.op is Op.CONST:
        return node
    if node.aval.dtype == INT64 and all(n.op is Op.RANGE for n, _ in PLAIN.linear(node)[1]):
        if all(c.op is not Op.CMPEQ for c in chain(valid, Op.AND)):
            return node  # only a range that has one value could still vanish
    return PLAIN.canonical(assume(valid).canonical(node))


def simplify_gated(node: UOp, valid: UOp | None) -> tuple[UOp, UOp | None]:
    """An index and the condition that guards it, both simplified; None if it always holds."""
    if valid is None:
        return PLAIN.canonical(node), None
    valid = simplify_valid(valid)
    if valid is TRUE:
        return PLAIN.canonical(node), None
    return simplify_index(node, valid), valid


def guarded_span(loop: UOp, uses: Iterable[UOp | None]) -> Span:
    """First and last iteration of a RANGE that matter when each use of it is behind a condition.

    `uses` are the conditions, None for an unguarded use. A loop that is used nowhere keeps its
    iterations, one that never matters keeps the first. What a loop does in the iterations dropped
    must have no other effect than its guarded uses.
    """
    whole = PLAIN.bounds(loop)
    found: Span | None = None
    used = False
    for condition in uses:
        used = True
        if condition is None:
            return whole
        condition = PLAIN.canonical(condition)
        if condition is not FALSE:
            low, high = assume(condition).bounds(loop)
            low, high = max(low, whole[0]), min(high, whole[1])
            found = (low, high) if found is None else hull(found, (low, high))
    return (found or (0, 0)) if used else whole
