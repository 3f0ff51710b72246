"""Which operation makes a NaN or an inf: a body run node by node, loops step by step.

Slow, and only for people who look for the cause: `debug_nans`, `debug_infs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.body import inherited, sources
from tinyjax.core.ops import Op
from tinyjax.core.source import call_site, name_stack_text, user_line
from tinyjax.core.uop import UOp, const_value, toposort
from tinyjax.interpreters.evaluate import evaluate_body, row_of
from tinyjax.interpreters.quiet import quietly

Array = np.ndarray[Any, Any]
Bad = Callable[[Array], str]
"""What is wrong with a value: "nan", "inf", or nothing."""


def judge(nans: bool, infs: bool) -> Bad:
    """Looks for NaNs, infs, or both."""

    def bad(x: Array) -> str:
        if not dtypes.is_inexact(x.dtype):
            return ""
        if nans and np.isnan(x).any():
            return "nan"
        return "inf" if infs and np.isinf(x).any() else ""

    return bad


def faults(value: Any, bad: Bad) -> str:
    """What is wrong with the results of a node."""
    values = value if isinstance(value, list) else [value]
    return next((found for v in values if (found := bad(v))), "")


def check_body(
    body: UOp, args: Sequence[Array], bad: Bad, table: Mapping[UOp, Any] | None = None
) -> list[Array]:
    """Outputs of a body, run node by node.

    Raises: FloatingPointError if one is bad, naming the operation whose bad result reached it.
    """
    values: dict[UOp, Any] = {}
    for node in toposort(body.src):
        if node.op is Op.PARAM:
            values[node] = args[node.arg[0]]
        else:
            given = [values[s] for s in node.operands]
            values[node] = quietly(row_of(node), node, given)
    known = sources(body) if table is None else inherited(body.src, table)
    check_roots(body.src, values, bad, known)
    return [values[o] for o in body.src]


def check_roots(
    roots: Sequence[UOp], values: Mapping[UOp, Any], bad: Bad, table: Mapping[UOp, Any]
) -> None:
    """Raise if the value of a root is bad; `values` are those of all nodes but literals."""

    def of(node: UOp) -> Any:
        if node in values:
            return values[node]
        return np.asarray(node.arg.value if node.op is Op.BUFFER else const_value(node))

    for node in roots:
        if not faults(of(node), bad):
            continue
        while True:  # back to where it came from
            cause = next((s for s in node.operands if s.src and faults(of(s), bad)), None)
            if cause is None:
                break
            node = cause
        report(node, [of(s) for s in node.operands], bad, table.get(node), of(node))


def report(node: UOp, args: Sequence[Array], bad: Bad, source: Any, value: Any) -> None:
    """Raise for this node, or for the one inside it that is to blame."""
    inside = INSIDE.get(node.op)
    if inside is not None:
        inside(node, args, bad)
    site, stack = source or (call_site(), ())
    marks = name_stack_text(stack)
    line = user_line(site)
    raise FloatingPointError(
        f"invalid value ({faults(value, bad)}) encountered in {op_name(node)}."
        + (f"\n{line}" if line else "")
        + (f"\n  It belongs to {marks} of that line." if marks else "")
    )


def op_name(node: UOp) -> str:
    """As jaxprs name it."""
    if node.op is Op.REDUCE:
        return f"reduce_{node.arg[0]}"
    if not node.src:
        return "an argument"
    return node.op.name.lower()


def in_call(node: UOp, args: Sequence[Array], bad: Bad) -> None:
    check_body(node.src[0], args, bad)


def in_scan(node: UOp, args: Sequence[Array], bad: Bad) -> None:
    info = node.arg
    first = info.num_consts + info.num_carry
    consts, carry, xs = args[: info.num_consts], list(args[info.num_consts : first]), args[first:]
    steps = range(info.length)
    for i in reversed(steps) if info.reverse else steps:
        outs = check_body(node.src[0], [*consts, *carry, *(x[i] for x in xs)], bad)
        carry = outs[: info.num_carry]


def in_while(node: UOp, args: Sequence[Array], bad: Bad) -> None:
    info = node.arg
    cond, body = node.src[:2]
    first = info.cond_consts + info.body_consts
    carry = list(args[first:])
    while evaluate_body(cond, [*args[: info.cond_consts], *carry])[0]:
        carry = check_body(body, [*args[info.cond_consts : first], *carry], bad)


def in_cond(node: UOp, args: Sequence[Array], bad: Bad) -> None:
    check_body(node.src[min(max(int(args[0]), 0), node.arg - 1)], args[1:], bad)


INSIDE: dict[Op, Callable[[UOp, Sequence[Array], Bad], None]] = {
    Op.CALL: in_call,
    Op.SCAN: in_scan,
    Op.WHILE: in_while,
    Op.COND: in_cond,
}
"""Nodes with bodies: where to look for the one to blame."""
