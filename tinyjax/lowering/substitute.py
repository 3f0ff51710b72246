"""Ranges of a kernel replaced by expressions over others: what split, merge and shrink share.

`substitute` rebuilds a SINK over new ranges. Addresses are simplified under the condition that
guards them, conditions by their own parts, and other integers that are counted with by themselves
(core/integers.py); a FOLD or END closes the ranges that stand in for those it closed, and a fold
without ranges is its value. `simplify_indices` is the same without a replacement.
"""

from __future__ import annotations

from collections.abc import Mapping

from tinyjax.core import integers
from tinyjax.core.facts import FALSE, TRUE
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, get, toposort
from tinyjax.lowering.nest import fold_operands, is_index, ranges_of

COUNTING = frozenset({Op.ADD, Op.SUB, Op.NEG, Op.MUL, Op.IDIV, Op.MOD, Op.MAX, Op.MIN})
"""Integer arithmetic that is simplified where a value is computed from it."""


def simplify_indices(sink: UOp) -> UOp:
    """address, condition -> its canonical form, under the condition that guards it"""
    return _Substitution({}, None).run(sink)


def substitute(
    root: UOp, values: Mapping[UOp, UOp], closes: Mapping[UOp, tuple[UOp, ...]] | None = None
) -> UOp:
    """`root` with nodes replaced; ranges by index expressions.

    `closes` says which ranges are closed instead of a replaced one; by default the value itself if
    it is a RANGE, else none.
    """
    return _Substitution(values, closes).run(root) if values else root


class _Substitution:
    """One walk. `counted` are the integers that depend on nothing but loop variables."""

    def __init__(
        self, values: Mapping[UOp, UOp], closes: Mapping[UOp, tuple[UOp, ...]] | None
    ) -> None:
        self.values, self.closes = values, closes or {}
        self.done: dict[UOp, UOp] = dict(values)
        self.counted: set[UOp] = set()

    def run(self, root: UOp) -> UOp:
        done, counted = self.done, self.counted
        for node in toposort([root]):
            if node not in done:
                done[node] = self.rebuilt(node)
            if node.op in (Op.RANGE, Op.CONST) or (
                node.op in COUNTING and is_index(node) and all(s in counted for s in node.src)
            ):
                counted.add(node)
        return done[root]

    def closed(self, node: UOp) -> tuple[UOp, ...]:
        """The ranges that a FOLD or END closes now."""
        kept: dict[UOp, None] = {}
        for r in ranges_of(node):
            value = self.values.get(r, r)
            for x in self.closes.get(r, (value,)):
                if x.op is Op.RANGE:
                    kept[x] = None
        return tuple(kept)

    def rebuilt(self, node: UOp) -> UOp:
        op, done = node.op, self.done
        if op is Op.FOLD or op is Op.END:
            operands = fold_operands(node) if op is Op.FOLD else node.src[:1]
            made = tuple([self.value(s) for s in operands])
            kept = self.closed(node)
            if op is Op.FOLD and not kept:
                return made[0] if len(made) == 1 else UOp(Op.TUPLE, made)
            src = (*made, *kept)
            return node if src == node.src else UOp(op, src, node.arg)
        if op is Op.INDEX:
            return self.index(node)
        src = tuple([done[s] for s in node.src])
        if node.op not in COUNTING:
            src = tuple([self.value(s) for s in node.src])
        if src == node.src:
            return node
        if op is Op.LOAD and len(src) > 1:
            if len(src[0].src) < 3:
                return UOp(op, src[:1])  # its condition always holds
            if src[0].src[2] is FALSE:
                return src[1]
        if op is Op.WHERE:
            chosen = integers.simplify(src[0])
            if chosen.op is Op.CONST:
                return src[1] if chosen is TRUE else src[2]
        if op is Op.GETTUPLE:
            return get(src[0], node.arg)
        if op is Op.PREFIX and src[1].op is not Op.RANGE:
            return src[0]
        return UOp(op, src, node.arg)

    def value(self, node: UOp) -> UOp:
        """What stands for an operand; a count is simplified where it is used."""
        made = self.done[node]
        if node in self.counted and (made is not node or not self.values):
            return integers.simplify(made)
        return made

    def index(self, node: UOp) -> UOp:
        """An address and its condition; those that do not change were simplified before."""
        src = tuple([self.done[s] for s in node.src])
        if src == node.src and self.values:
            return node
        at, valid = integers.simplify_gated(src[1], src[2] if len(src) > 2 else None)
        src = (src[0], at) if valid is None else (src[0], at, valid)
        return node if src == node.src else UOp(Op.INDEX, src)
