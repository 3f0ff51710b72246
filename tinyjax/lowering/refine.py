"""Loops split where their variable is divided: `r // d` and `r % d` become loop variables.

What a reshape leaves behind in an index is a quotient and a remainder of a range. If d divides the
range's extent, the range is two,

    r  ->  outer*d + inner      r // d  ->  outer      r % d  ->  inner

so that no division is left, strides are visible and `inner` can be a vector. Chains (r // 64 % 6)
give several ranges. Indices are then simplified under the condition that guards them
(core/integers.py), which also removes the divisions that only the guard makes trivial.

`merge_ranges` runs afterwards and puts back together what need not have been split.
"""

from __future__ import annotations

from tinyjax.core import integers
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const, const_value, toposort
from tinyjax.lowering.nest import extent, is_index, ranges_of
from tinyjax.lowering.registers import INT64

MOST_RANGES = 12
"""A kernel with more loops than this is left as it is."""


def split_ranges(sink: UOp) -> UOp:
    """A SINK with the same effects whose ranges are not divided where that can be had."""
    order = toposort([sink])
    divisions = [n for n in order if n.op in (Op.IDIV, Op.MOD) and is_index(n)]
    if not divisions:
        return sink
    cuts: dict[UOp, set[int]] = {}
    for node in divisions:
        found = _cut(node)
        if found is not None:
            cuts.setdefault(found[0], set()).add(found[1])
    ranges = [n for n in order if n.op is Op.RANGE]
    number = 1 + max((r.arg[0] for r in ranges), default=-1)
    pieces: dict[UOp, tuple[UOp, ...]] = {}
    values: dict[UOp, UOp] = {}
    for r, divisors in cuts.items():
        sizes = _sizes(extent(r), sorted(divisors))
        if len(sizes) < 2 or r.arg[1] == "serial" or len(ranges) + number > 4 * MOST_RANGES:
            continue
        made = []
        for size in sizes:
            made.append(UOp(Op.RANGE, (const(size, INT64),), (number, r.arg[1])))
            number += 1
        pieces[r] = tuple(made)
        total = made[0]
        for size, piece in zip(sizes[1:], made[1:], strict=True):
            total = integers.add(integers.mul(total, const(size, INT64)), piece)
        values[r] = total
    return _rebuilt(sink, order, pieces, values)


def _cut(node: UOp) -> tuple[UOp, int] | None:
    """(range, d) if a division is of a range or of a quotient of one: d is the product."""
    at, size = node.src
    total = 1
    while at.op is Op.IDIV and at.src[1].op is Op.CONST:
        total *= int(const_value(at.src[1]))
        at = at.src[0]
    if at.op is not Op.RANGE or size.op is not Op.CONST:
        return None
    return at, total * int(const_value(size))


def _sizes(whole: int, divisors: list[int]) -> list[int]:
    """Extents of the pieces, outermost first; divisors that do not fit the chain are left out."""
    chain = [1]
    for d in divisors:
        if d < whole and whole % d == 0 and d % chain[-1] == 0 and d > chain[-1]:
            chain.append(d)
    chain.append(whole)
    return [b // a for a, b in zip(chain, chain[1:])][::-1]


def _rebuilt(
    sink: UOp, order: list[UOp], pieces: dict[UOp, tuple[UOp, ...]], values: dict[UOp, UOp]
) -> UOp:
    """Replace ranges by their pieces, simplify what indexes and what is counted with."""
    done: dict[UOp, UOp] = dict(values)
    for node in order:
        if node in done:
            continue
        if node.op is Op.FOLD or node.op is Op.END:
            old = ranges_of(node)
            first = len(node.src) - len(old)
            kept = [x for r in old for x in pieces.get(r, (r,))]
            done[node] = UOp(node.op, (*(done[s] for s in node.src[:first]), *kept), node.arg)
            continue
        src = tuple(done[s] for s in node.src)
        if node.op is Op.INDEX:
            valid = src[2] if len(src) > 2 else None
            at, valid = integers.simplify_gated(src[1], valid)
            done[node] = UOp(Op.INDEX, (src[0], at) if valid is None else (src[0], at, valid))
            continue
        if not is_scalar_index(node):
            src = tuple(integers.simplify(s) if is_scalar_index(s) else s for s in src)
        done[node] = node if src == node.src else UOp(node.op, src, node.arg)
    return done[sink]


def is_scalar_index(node: UOp) -> bool:
    """Integer arithmetic on loop variables (not a value that was loaded or accumulated)."""
    return node.op in (Op.ADD, Op.SUB, Op.MUL, Op.IDIV, Op.MOD, Op.MAX, Op.MIN) and is_index(node)
