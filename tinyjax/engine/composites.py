"""Composites where the layers meet: how the library's functions make them, and when users' are found.

Users' formulas are raised (core/composites.py) in two places: before nodes are differentiated, and
before a body is lowered. Operations that run at once are left as they are: NumPy computes whole
matrices either way, so only bodies of calls and loops are entered then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinyjax.core import sites
from tinyjax.core.avals import Aval
from tinyjax.core.body import close, fresh_var
from tinyjax.core.composites import KIND, everywhere, inside, raise_composites
from tinyjax.core.config import config
from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, get
from tinyjax.interpreters.jvp import Tangent
from tinyjax.interpreters.jvp import jvp as jvp_nodes
from tinyjax.interpreters.trace import open_trace, state


def composite(name: str, fun: Callable[..., UOp], *args: UOp, **static: Any) -> UOp:
    """`fun(*args, **static)` as one call named `name`; the plain nodes if nothing is being traced.

    `fun` maps nodes to a node and closes over nothing; `static` is hashable. Its body is made once
    per avals and static values.
    """
    if not state.staging and not any(a.free for a in args):
        return fun(*args, **static)
    avals = tuple(a.aval for a in args)
    body = composite_body(fun, avals, tuple(static.items()), config.epoch())
    return get(UOp(Op.CALL, (body, *args), CallInfo(KIND, name)), 0)


@functools.lru_cache(maxsize=1024)
def composite_body(
    fun: Callable[..., UOp],
    avals: tuple[Aval, ...],
    static: tuple[tuple[str, Any], ...],
    epoch: int,
) -> UOp:
    """The closed body of `fun` at these avals."""
    variables = [fresh_var(a) for a in avals]
    with open_trace(KIND, fun, staging=True):
        body, captured = close([fun(*variables, **dict(static))], variables)
    assert not captured, f"the body of a composite captures {captured}"
    return body


def raised(nodes: Sequence[UOp]) -> list[UOp]:
    """`nodes` with their composites as calls. Values that Python looked at stay known, and so do
    the lines that nodes come from."""
    memo: dict[UOp, UOp] = {}
    out = raise_composites(nodes, memo, everywhere if state.staging else inside)
    for old, new in memo.items() if out != list(nodes) else ():
        if old is not new:
            sites.rewritten(new, old)
            if old in state.forced:
                state.forced.setdefault(new, state.forced[old])
    return out


def jvp(outputs: Sequence[UOp], tangents: Mapping[UOp, UOp]) -> tuple[list[UOp], list[Tangent]]:
    """Outputs and their tangents, composites differentiated as wholes."""
    return jvp_nodes(raised(outputs), tangents)
