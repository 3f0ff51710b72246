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

from tinyjax.core.integers import add, integer, mul
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const_value, toposort
from tinyjax.lowering.nest import extent, is_index, limit
from tinyjax.lowering.substitute import substitute

MOST_RANGES = 12
"""A kernel with more loops than this is left as it is."""


def split_ranges(sink: UOp) -> UOp:
    """r // d and r % d of a range r -> ranges of their own, where d divides its extent"""
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
            made.append(UOp(Op.RANGE, (integer(size),), (number, r.arg[1])))
            number += 1
        pieces[r] = tuple(made)
        total = made[0]
        for size, piece in zip(sizes[1:], made[1:], strict=True):
            total = add(mul(total, integer(size)), piece)
        values[r] = total
    return substitute(sink, values, pieces)


def _cut(node: UOp) -> tuple[UOp, int] | None:
    """(range, d) if a division is of a range or of a quotient of one: d is the product."""
    at, size = node.src
    total = 1
    while at.op is Op.IDIV and at.src[1].op is Op.CONST:
        total *= int(const_value(at.src[1]))
        at = at.src[0]
    if at.op is not Op.RANGE or size.op is not Op.CONST or limit(at) is not None:
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
