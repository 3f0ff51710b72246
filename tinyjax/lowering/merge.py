"""Fewer ranges for the same kernel: those of one iteration vanish, contiguous neighbours merge.

Two ranges are walked as one by every index expression if the coefficient of the outer is that of
the inner times the inner's extent. So elementwise kernels over dense arrays have one long loop
whatever their rank, and a reduction over several dense axes is one reduction.
"""

from __future__ import annotations

from tinyjax.core.integers import integer, linear, mul
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.lowering.nest import extent, is_index, limit, ranges_of
from tinyjax.lowering.substitute import substitute


def _affine_roots(order: list[UOp]) -> list[UOp]:
    """Index expressions as a whole: int64 operands of nodes that are not parts of a sum.

    Those inside the atoms of a form that the kernel itself does not hold are looked at as well. A
    product of two atoms is itself an atom: walked as one range, `r*r` is another function.
    """
    found: dict[UOp, None] = {}
    seen = set(order)
    queue = list(order)
    for node in queue:  # grows
        if node.op in (Op.ADD, Op.SUB, Op.MUL, Op.NEG) and is_index(node):
            if linear(node) != (0, ((node, 1),)):
                continue
        if node.op in (Op.END, Op.RANGE):
            continue
        skip = ranges_of(node) if node.op is Op.FOLD else ()
        for s in node.src:
            if s.op is not Op.CONST and hasattr(s.aval, "dtype") and is_index(s) and s not in skip:
                found[s] = None
                strange = [atom for atom, _ in linear(s)[1] if atom not in seen]
                if strange:
                    queue += [n for n in toposort(strange) if n not in seen]
                    seen.update(toposort(strange))
    return list(found)


def merge_ranges(sink: UOp) -> UOp:
    """neighbouring ranges that every index walks as one -> one range; ranges of one step -> 0"""
    order = toposort([sink])
    ranges = [n for n in order if n.op is Op.RANGE]
    mapping: dict[UOp, UOp] = {r: integer(0) for r in ranges if extent(r) == 1}
    live = [r for r in ranges if r not in mapping]
    fixed = {n.src[1] for n in order if n.op is Op.PREFIX}
    fixed |= {r for n in order if n.op is Op.FOLD and n.arg in ("argmax", "argmin")
              for r in ranges_of(n)}  # fmt: skip
    forms = [dict(linear(root)[1]) for root in _affine_roots(order)] if len(live) > 1 else []
    # The coefficient vector of each range, and the sets of ranges closed together.
    size = {r: extent(r) for r in live}
    limits = {r: bound for r in live if (bound := limit(r)) is not None}
    coefficients = {r: tuple(f.get(r, 0) for f in forms) for r in live}
    closed = [
        tuple(r for r in ranges_of(n) if r in size) for n in order if n.op in (Op.END, Op.FOLD)
    ]
    member = {r: tuple(i for i, c in enumerate(closed) if r in c) for r in live}
    changed = True
    while changed:
        changed = False
        for inner in list(live):
            if inner in fixed or inner.arg[1] == "serial" or inner in limits:
                continue
            scaled = tuple(c * size[inner] for c in coefficients[inner])
            for outer in live:
                if (
                    outer is not inner
                    and coefficients[outer] == scaled
                    and any(scaled)
                    and member[outer] == member[inner]
                    and outer.arg[1] == inner.arg[1]
                    and outer not in fixed
                ):
                    mapping[outer] = integer(0)
                    if outer in limits:
                        limits[inner] = mul(limits.pop(outer), integer(size[inner]))
                    size[inner] *= size[outer]
                    live.remove(outer)
                    changed = True
                    break
            if changed:
                break
    for r in live:
        if size[r] != extent(r):
            src = (integer(size[r]), limits[r]) if r in limits else (integer(size[r]),)
            mapping[r] = UOp(Op.RANGE, src, r.arg)
    return substitute(sink, mapping)
