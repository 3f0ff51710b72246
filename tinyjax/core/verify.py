"""What must hold of a graph at each stage (DESIGN 4). Run between passes in tests, or always with
the option `tinyjax_verify`. A violation is a bug of the pass before, so it is an AssertionError.

`verify_stage` checks what is common: every op may appear in the stage and has its arity.
`verify_kernel` checks a stage-2 SINK: stores, loops, indices, accumulations.
(Stage 3, the ordered list, is checked beside its data type in lowering/nest.py.)
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tinyjax.core.ops import ANY_ARITY, J, K, Op, P
from tinyjax.core.uop import UOp, const_value, toposort

STAGES = {J: "jaxpr", K: "kernel", P: "program"}
BOOL, INT64 = np.dtype(np.bool_), np.dtype(np.int64)
RANGE_KINDS = ("loop", "reduce", "serial")
FOLD_KINDS = ("add", "mul", "max", "min", "and", "or", "xor")
ARG_KINDS = ("argmax", "argmin")
PREFIX_KINDS = ("add", "mul", "max", "min")


class StageError(AssertionError):
    """A node that may not be where it is."""


def require(condition: bool, node: UOp, rule: str) -> None:
    """Raise unless the rule holds."""
    if not condition:
        raise StageError(f"{node!r}: {rule}")


def verify_stage(roots: Iterable[UOp], stage: int) -> list[UOp]:
    """Every node may be in the stage and has its arity; returns the nodes, sources first."""
    order = toposort(roots)
    for node in order:
        require(bool(node.op.stages & stage), node, f"not an op of the {STAGES[stage]} stage")
        arity = node.op.arity
        count = len(node.operands)
        require(arity in (ANY_ARITY, count), node, f"takes {arity} operands, has {count}")
    return order


def verify_kernel(sink: UOp) -> None:
    """The rules of a stage-2 kernel."""
    require(sink.op is Op.SINK, sink, "a kernel is a SINK")
    order = verify_stage([sink], K)
    ids: dict[int, UOp] = {}
    slots: dict[int, UOp] = {}
    free: dict[UOp, frozenset[UOp]] = {}
    for node in order:
        closed = frozenset[UOp]()
        found = frozenset[UOp]().union(*(free[s] for s in node.src))
        if node.op is Op.RANGE:
            verify_range(node)
            require(ids.setdefault(node.arg[0], node) is node, node, "two ranges have its id")
            found = frozenset((node,))
        elif node.op is Op.PARAM:
            require(slots.setdefault(node.arg[0], node) is node, node, "two buffers have its slot")
        elif node.op in (Op.FOLD, Op.END):
            closed = frozenset(verify_closing(node))
            require(
                all(r.arg[1] == "reduce" for r in closed) or node.op is Op.END,
                node,
                "accumulates over ranges of kind reduce",
            )
        else:
            CHECKS.get(node.op, verify_value)(node)
        free[node] = found - closed
    require(
        not free[sink], sink, f"ranges are never closed: {sorted(r.arg[0] for r in free[sink])}"
    )


def verify_range(node: UOp) -> None:
    """A constant, non-negative extent; a number and a kind."""
    size = node.src[0]
    require(size.op is Op.CONST and size.aval.dtype == INT64, node, "extent is an int64 literal")
    require(int(const_value(size)) >= 0, node, "extent is not negative")
    require(isinstance(node.arg[0], int) and node.arg[1] in RANGE_KINDS, node, "arg is (id, kind)")


def verify_closing(node: UOp) -> list[UOp]:
    """FOLD and END: what is closed, which are the last sources and distinct."""
    first = 2 if node.arg in ARG_KINDS else 1
    ranges = list(node.src[first:])
    require(all(r.op is Op.RANGE for r in ranges), node, "closes ranges only")
    require(len(set(ranges)) == len(ranges), node, "closes a range once")
    if node.op is Op.END:
        require(node.src[0].op is Op.STORE, node, "ends a STORE")
        return ranges
    require(node.arg in FOLD_KINDS + ARG_KINDS, node, "unknown kind of accumulation")
    require(bool(ranges), node, "accumulates over at least one range")
    for s in node.src[:first]:
        require(s.aval.shape == (), node, "accumulates scalars")
    return ranges


def verify_index(node: UOp) -> None:
    """INDEX(PARAM, int64[, bool])."""
    require(len(node.src) in (2, 3) and node.src[0].op is Op.PARAM, node, "indexes a PARAM")
    at = node.src[1].aval
    require(at.shape == () and at.dtype == INT64, node, "an index is a scalar int64")
    if len(node.src) == 3:
        valid = node.src[2].aval
        require(valid.shape == () and valid.dtype == BOOL, node, "a condition is a scalar bool")


def verify_load(node: UOp) -> None:
    """LOAD(INDEX[, value where it is not valid])."""
    require(len(node.src) in (1, 2) and node.src[0].op is Op.INDEX, node, "loads from an INDEX")
    if len(node.src) == 2:
        other = node.src[1].aval
        same = other.shape == () and other.dtype == node.aval.dtype
        require(same, node, "the alternative is a scalar of the buffer's dtype")


def verify_store(node: UOp) -> None:
    """STORE(INDEX, value of the buffer's dtype)."""
    index, value = node.src
    require(index.op is Op.INDEX, node, "stores to an INDEX")
    same = value.aval.shape == () and value.aval.dtype == index.src[0].aval.dtype
    require(same, node, "stores a scalar of the buffer's dtype")


def verify_prefix(node: UOp) -> None:
    """PREFIX(value, serial range)."""
    require(len(node.src) == 2 and node.src[1].op is Op.RANGE, node, "runs over one range")
    require(node.src[1].arg[1] == "serial", node, "runs over a serial range")
    require(node.arg[0] in PREFIX_KINDS, node, "unknown kind of prefix")


def verify_sink(node: UOp) -> None:
    """SINK(END, ...)."""
    require(bool(node.src) and all(s.op is Op.END for s in node.src), node, "holds ENDs")


def verify_value(node: UOp) -> None:
    """Everything else is a scalar (or a pair of them)."""
    elts = getattr(node.aval, "elts", (node.aval,))
    require(all(a.shape == () for a in elts), node, "a kernel computes scalars")


CHECKS = {
    Op.INDEX: verify_index,
    Op.LOAD: verify_load,
    Op.STORE: verify_store,
    Op.PREFIX: verify_prefix,
    Op.SINK: verify_sink,
}
