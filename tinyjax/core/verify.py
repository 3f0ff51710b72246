"""What must hold of a graph at each stage. Run between passes in tests, or always with
the option `tinyjax_verify`. A violation is a bug of the pass before, so it is an InvariantError.

`verify(graph, stage, pass_name)` is the entry: a body (TUPLE) at stage "jaxpr", a SINK at
"kernel", a list at "program". `verify_stage` checks what is common: every op may appear in the
stage, has its arity, and has the type that its rule gives. `verify_body` checks that a body is
closed and that calls and loops pass what their bodies take; `verify_kernel` checks stores,
loops, indices, accumulations; `verify_list` checks that a list defines before it uses and that
its loops nest.

Cost: one walk; a body of a call is checked once per graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tinyjax.core.avals import Aval, TupleAval
from tinyjax.core.errors import InvariantError
from tinyjax.core.ops import ANY_ARITY, J, K, Op, P
from tinyjax.core.printer import aval_text
from tinyjax.core.uop import RULES, UOp, const_value, toposort

STAGES = {J: "jaxpr", K: "kernel", P: "program"}
BOOL, INT64 = np.dtype(np.bool_), np.dtype(np.int64)
RANGE_KINDS = ("loop", "reduce", "serial")
FOLD_KINDS = ("add", "mul", "max", "min", "and", "or", "xor")
ARG_KINDS = ("argmax", "argmin")
PREFIX_KINDS = ("add", "mul", "max", "min")


class StageError(InvariantError):
    """A node that may not be where it is."""


def require(condition: bool, node: UOp, rule: str) -> None:
    """Raise unless the rule holds."""
    if not condition:
        raise StageError(f"{node!r}: {rule}")


def verify(graph: UOp | Sequence[UOp], stage: str, pass_name: str = "") -> None:
    """Check a graph at a stage, "jaxpr", "kernel" or "program".

    Raises: StageError (an InvariantError) naming the node, the rule and the pass.
    """
    try:
        if isinstance(graph, UOp):
            check = {"jaxpr": verify_body, "kernel": verify_kernel}[stage]
            check(graph)
        else:
            assert stage == "program", f"a list of nodes is a program, not a {stage}"
            verify_list(graph)
    except StageError as error:
        if not pass_name:
            raise
        raise StageError(f"after pass {pass_name}: {error}") from None


def verify_stage(roots: Iterable[UOp], stage: int) -> list[UOp]:
    """Every node may be in the stage and has its arity; returns the nodes, sources first."""
    order = toposort(roots)
    for node in order:
        require(bool(node.op.stages & stage), node, f"not an op of the {STAGES[stage]} stage")
        arity = node.op.arity
        count = len(node.operands)
        require(arity in (ANY_ARITY, count), node, f"takes {arity} operands, has {count}")
        expected = RULES[node.op](node)
        require(node.aval is expected, node, f"has the type {expected!r}")
    return order


# --- stage 1 --------------------------------------------------------------------------------------


def verify_body(body: UOp) -> None:
    """A closed body, and the bodies of its calls and loops."""
    checked: dict[UOp, dict[int, Aval]] = {}
    for node in toposort([body], bodies=True):
        for inner in node.bodies:
            if inner not in checked:
                checked[inner] = verify_closed(inner)
        if node.bodies:
            verify_call(node, [checked[b] for b in node.bodies])
    if body not in checked:
        verify_closed(body)


def verify_closed(body: UOp) -> dict[int, Aval]:
    """A TUPLE over parameters and literals only; returns the type of each parameter read."""
    require(body.op is Op.TUPLE, body, "a body is a TUPLE")
    slots: dict[int, Aval] = {}
    for node in verify_stage(body.src, J):
        require(node.op is not Op.VAR, node, "a closed body mentions no open variable")
        require(node.op is not Op.BUFFER, node, "values in memory are arguments of a closed body")
        if node.op is Op.PARAM:
            slot, of = node.arg
            require(slot >= 0, node, "slots count from 0")
            require(slots.setdefault(slot, of) is of, node, "two parameters have its slot")
        elif node.op is Op.GETTUPLE:
            several = node.src[0].aval
            require(isinstance(several, TupleAval), node, "reads a node with several results")
            require(0 <= node.arg < len(several.elts), node, "reads a result that exists")
    return slots


def verify_call(node: UOp, params: Sequence[dict[int, Aval]]) -> None:
    """What a call or loop passes is what its bodies take, and its results fit."""
    given = passed(node)
    for types, args in zip(params, given, strict=True):
        for slot, of in types.items():
            require(
                slot < len(args), node, f"passes {len(args)} values; its body reads slot {slot}"
            )
            same = args[slot].shape == of.shape and args[slot].dtype == of.dtype
            detail = f"passes {aval_text(args[slot])} where its body takes {aval_text(of)}"
            require(same, node, detail)
    if node.op is Op.WHILE:
        answer = node.src[0].aval.elts
        one = len(answer) == 1 and answer[0].shape == () and answer[0].dtype == BOOL
        require(one, node, "its condition gives one scalar bool")
        carry = given[1][node.arg.body_consts :]
        same_types(node, node.src[1].aval.elts, carry)
    elif node.op is Op.SCAN:
        carry = given[0][node.arg.num_consts :][: node.arg.num_carry]
        same_types(node, node.src[0].aval.elts[: node.arg.num_carry], carry)
    elif node.op is Op.COND:
        for other in node.bodies[1:]:
            same_types(node, other.aval.elts, node.bodies[0].aval.elts)


def same_types(node: UOp, results: Sequence[Aval], wanted: Sequence[Aval]) -> None:
    """Results of a body that must have given types."""
    require(len(results) == len(wanted), node, f"{len(results)} results where {len(wanted)} fit")
    for got, want in zip(results, wanted):
        same = got.shape == want.shape and got.dtype == want.dtype
        require(same, node, f"a result is {aval_text(got)} where {aval_text(want)} fits")


def passed(node: UOp) -> list[list[Any]]:
    """The types of the values that each body of a node gets."""
    types = [s.aval for s in node.operands]
    if node.op is Op.CALL:
        return [types]
    if node.op is Op.COND:
        require(types[0].shape == (), node, "its index is a scalar")
        return [types[1:]] * node.arg
    info = node.arg
    if node.op is Op.SCAN:
        fixed = info.num_consts + info.num_carry
        for of in types[fixed:]:
            stacked = of.ndim > 0 and of.shape[0] == info.length
            require(stacked, node, f"scans {aval_text(of)} over {info.length} steps")
        return [types[:fixed] + [of.update(shape=of.shape[1:]) for of in types[fixed:]]]
    carry = types[info.cond_consts + info.body_consts :]
    body_consts = types[info.cond_consts : info.cond_consts + info.body_consts]
    return [types[: info.cond_consts] + carry, body_consts + carry]


# --- stage 2 --------------------------------------------------------------------------------------


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
    require(len(node.src) <= 2, node, "takes an extent and perhaps a limit")
    for limit in node.src[1:]:
        plain = all(n.op in (Op.DIM, Op.CONST, Op.MUL) for n in toposort([limit]))
        require(plain and limit.aval.dtype == INT64, node, "its limit is a product of dimensions")
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


# --- stage 3 --------------------------------------------------------------------------------------


def verify_list(nodes: Sequence[UOp]) -> None:
    """Each node stands once and after its sources (literals may be left out); loops and conditions
    are closed in the order opposite to that in which they were opened.
    """
    seen: set[UOp] = set()
    opened: list[UOp] = []
    for node in nodes:
        require(bool(node.op.stages & P), node, "not an op of the program stage")
        require(node not in seen, node, "stands twice")
        for s in node.src:
            require(s in seen or s.op is Op.CONST, node, f"uses {s!r} before it is made")
        if node.op is Op.RANGE or node.op is Op.IF:
            opened.append(node)
        elif node.op is Op.END:
            for r in [s for s in node.src[1:] if s.op is Op.RANGE][::-1]:
                require(bool(opened) and opened[-1] is r, node, f"closes {r!r}, not the innermost")
                opened.pop()
        elif node.op is Op.ENDIF:
            inner = bool(opened) and opened[-1].op is Op.IF and opened[-1] in node.src
            require(inner, node, "closes the innermost condition")
            opened.pop()
        seen.add(node)
    if opened:
        require(False, opened[-1], "is never closed")
