"""Fewer ranges for the same kernel: those of one iteration vanish, contiguous neighbours merge.

Two ranges are walked as one by every index expression if the coefficient of the outer is that of
the inner times the inner's extent. So elementwise kernels over dense arrays have one long loop
whatever their rank, and a reduction over several dense axes is one reduction.
"""

from __future__ import annotations

from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const, get, toposort
from tinyjax.lowering.indexing import Indexing
from tinyjax.lowering.nest import extent, is_index, ranges_of
from tinyjax.lowering.registers import INT64


def _affine_roots(order: list[UOp]) -> list[UOp]:
    """Index expressions as a whole: int64 operands of nodes that are not index additions."""
    found: dict[UOp, None] = {}
    for node in order:
        if node.op in (Op.ADD, Op.SUB, Op.MUL, Op.NEG) and is_index(node):
            continue
        if node.op in (Op.END, Op.RANGE):
            continue
        skip = ranges_of(node) if node.op is Op.FOLD else ()
        for s in node.src:
            if s.op is not Op.CONST and hasattr(s.aval, "dtype") and is_index(s) and s not in skip:
                found[s] = None
    return list(found)


def merge_ranges(sink: UOp) -> UOp:
    """A SINK with the same effects and fewer ranges; see the module's text."""
    order = toposort([sink])
    ranges = [n for n in order if n.op is Op.RANGE]
    mapping: dict[UOp, UOp] = {r: const(0, INT64) for r in ranges if extent(r) == 1}
    live = [r for r in ranges if r not in mapping]
    fixed = {n.src[1] for n in order if n.op is Op.PREFIX}
    fixed |= {r for n in order if n.op is Op.FOLD and n.arg in ("argmax", "argmin")
              for r in ranges_of(n)}  # fmt: skip
    indexing = Indexing()
    forms = [indexing.linear(root)[1] for root in _affine_roots(order)] if len(live) > 1 else []
    # The coefficient vector of each range, and the sets of ranges closed together.
    size = {r: extent(r) for r in live}
    coefficients = {r: tuple(f.get(r, 0) for f in forms) for r in live}
    closed = [
        tuple(r for r in ranges_of(n) if r in size) for n in order if n.op in (Op.END, Op.FOLD)
    ]
    member = {r: tuple(i for i, c in enumerate(closed) if r in c) for r in live}
    changed = True
    while changed:
        changed = False
        for inner in list(live):
            if inner in fixed or inner.arg[1] == "serial":
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
                    mapping[outer] = const(0, INT64)
                    size[inner] *= size[outer]
                    live.remove(outer)
                    changed = True
                    break
            if changed:
                break
    for r in live:
        if size[r] != extent(r):
            mapping[r] = UOp(Op.RANGE, (const(size[r], INT64),), r.arg)
    return _rebuild(sink, order, mapping) if mapping else sink


def _rebuild(sink: UOp, order: list[UOp], mapping: dict[UOp, UOp]) -> UOp:
    """Replace ranges; folds and ENDs lose those that became constants."""
    done: dict[UOp, UOp] = dict(mapping)
    for node in order:
        if node in done:
            continue
        src = tuple(done[s] for s in node.src)
        if src == node.src:
            done[node] = node
        elif node.op is Op.FOLD or node.op is Op.END:
            old = ranges_of(node)
            operands = src[: len(src) - len(old)]
            kept = tuple(s for s in src[len(operands) :] if s.op is Op.RANGE)
            if node.op is Op.FOLD and not kept:
                done[node] = operands[0] if len(operands) == 1 else UOp(Op.TUPLE, operands)
            else:
                done[node] = UOp(node.op, operands + kept, node.arg)
        elif node.op is Op.GETTUPLE:
            done[node] = get(src[0], node.arg)
        elif node.op is Op.PREFIX and src[1].op is Op.CONST:
            done[node] = src[0]
        elif is_linear(node):
            done[node] = _fold_index(node, src)
        else:
            done[node] = UOp(node.op, src, node.arg)
    return done[sink]


def is_linear(node: UOp) -> bool:
    """Index addition or multiplication."""
    return node.op in (Op.ADD, Op.MUL) and is_index(node)


def _fold_index(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """x + 0 -> x, x * 0 -> 0, x * 1 -> x."""
    zero, one = const(0, INT64), const(1, INT64)
    a, b = src
    if node.op is Op.ADD:
        return b if a is zero else a if b is zero else UOp(node.op, src)
    if a is zero or b is zero:
        return zero
    return b if a is one else a if b is one else UOp(node.op, src)
