"""What is known of an integer scalar: its bounds, its form as a sum, its place in the total order.

Facts are kept on the nodes (for the algebra without assumptions) or in a table (under
assumptions), are found in one walk and die with the nodes. `Facts` is the lowest layer of the
algebra: sums.py, division.py, conditions.py and algebra.py stand on it.

**Order.** Terms of a sum and parts of a condition are sorted by the deepest RANGE they mention,
then by kind, span and structure, so that sums over outer loops come first and can leave the inner
ones. The order is the same in every process.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from tinyjax.core import rules  # noqa: F401  (fills the aval table)
from tinyjax.core.intervals import BIT, BOOL, INT64, INT64_SPAN, Span, dtype_span, within
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const, toposort

Terms = tuple[tuple[UOp, int], ...]
Form = tuple[int, Terms]
"""(constant, ((atom, coefficient), ...)): atoms in order, coefficients not 0."""

ZERO: Form = (0, ())

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


def is_index(node: UOp) -> bool:
    """A scalar integer or bool."""
    of = node.aval
    return of.shape == () and dtype_span(of.dtype) is not None


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


class Facts(ABC):
    """Facts of nodes, filled when asked for. `atoms`, `true` and `false` are what is assumed."""

    plain: ClassVar[Facts]
    """The algebra without assumptions, from which the order of terms follows (algebra.py)."""

    def __init__(self, facts: dict[UOp, Fact] | None) -> None:
        self.facts = facts  # None: facts are kept on the nodes
        self.atoms: dict[UOp, Span] = {}
        self.true: set[UOp] = set()
        self.false: set[UOp] = set()

    @abstractmethod
    def opens(self, op: Op) -> bool:
        """Whether nodes of this op are walked into; all others are leaves."""

    @abstractmethod
    def limits(self, form: Form) -> Span:
        """Bounds of the mathematical value of a form; it may not fit 64 bits."""

    @abstractmethod
    def _visit(self, node: UOp) -> None:
        """Facts of a node whose integer operands are known."""

    def fact(self, node: UOp) -> Fact:
        """Facts of a node; walks below it if it was never seen."""
        found = self._seen(node)
        if found is not None:
            return found
        if not self.opens(node.op) or not is_index(node):
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
        return self.opens(node.op) and is_index(node) and self._seen(node) is None

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
        elif op is Op.DIM:
            span = node.arg.bounds
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

    def bounds(self, node: UOp) -> Span:
        """Proven inclusive bounds of an integer or bool scalar, by default its dtype's."""
        fact = self.fact(node)
        if fact.bounds is None:
            if fact.form is None:
                raise TypeError(f"bounds are for integers and bools, not {node!r}")
            limits = self.limits(fact.form)
            fact.bounds = limits if within(limits, INT64_SPAN) else INT64_SPAN
        return fact.bounds


# --- the total order ------------------------------------------------------------------------------

RANKS: dict[Op, int] = {op: i for i, op in enumerate(Op)}


def seal(node: UOp) -> tuple[int, int]:
    """(greatest RANGE id below a node or -1, structural hash that is the same in every process)."""
    found = Facts.plain.fact(node).seal
    if found is not None:
        return found
    for n in toposort([node], keep=lambda m: Facts.plain.fact(m).seal is None):
        seals = [Facts.plain.fact(s).seal for s in n.operands]
        own = n.arg[0] if n.op is Op.RANGE else -1
        deepest = max((s[0] for s in seals if s is not None), default=-1)
        arg = zlib.crc32(repr(n.arg).encode())
        Facts.plain.fact(n).seal = max(own, deepest), hash((RANKS[n.op], arg, *seals))
    return Facts.plain.fact(node).seal  # type: ignore[return-value]


def order(node: UOp) -> tuple[int, ...]:
    """Sort key of atoms and conditions: deepest range, kind, span, structure."""
    fact = Facts.plain.fact(node)
    if fact.order is None:
        deepest, structure = seal(node)
        span = Facts.plain.bounds(node) if dtype_span(node.aval.dtype) is not None else BIT
        kind = -1 if node.op is Op.RANGE else RANKS[node.op]
        fact.order = deepest, kind, *span, structure
    return fact.order


def term_order(term: tuple[UOp, int]) -> tuple[int, ...]:
    """`order` of a term's atom; the hot path of every sum, so without its calls when it is known."""
    try:
        found: tuple[int, ...] | None = term[0]._fact.order
    except AttributeError:
        found = None
    return order(term[0]) if found is None else found
