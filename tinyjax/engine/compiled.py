"""Compiled bodies: lowered on first use, kept with the body, run on buffers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinyjax.core import execute
from tinyjax.core.ops import Op
from tinyjax.core.uop import Buffer, UOp, tuple_of
from tinyjax.interpreters.evaluate import evaluate_body


class Executable:
    """A body ready to run."""

    __slots__ = ("avals", "body")

    def __init__(self, body: UOp) -> None:
        self.body = body
        self.avals = body.aval.elts

    def run(self, buffers: Sequence[Buffer], donated: frozenset[int] = frozenset()) -> list[Buffer]:
        """Outputs in fresh buffers."""
        values = evaluate_body(self.body, [b.value for b in buffers])
        return [Buffer(v, a) for v, a in zip(values, self.avals, strict=True)]


def executable(body: UOp) -> Executable:
    """The compiled form of a body; made once."""
    found = body.derived.get("executable")
    if found is None:
        found = body.derived["executable"] = Executable(body)
    return found  # type: ignore[no-any-return]


def run_node(node: UOp, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a CALL, SCAN, WHILE or COND met by the evaluator as a compiled program."""
    body = node.src[0] if node.op is Op.CALL else tuple_of([node])
    return evaluate_body(body, list(args))


execute.install(run_node)
