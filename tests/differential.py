"""Running one body several ways and saying where the results differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.bounds import check_shapes, different, evaluate_with_bounds
from tests.graphs import Graph
from tinyjax.core.avals import aval
from tinyjax.core.uop import Buffer, UOp
from tinyjax.engine.compiled import executable
from tinyjax.interpreters.quiet import quietly
from tinyjax.lowering.program import lower

Array = np.ndarray[Any, Any]


def run_compiled(body: UOp, args: Sequence[Array]) -> list[Array]:
    """By native code."""
    buffers = [Buffer(a, aval(a.shape, a.dtype)) for a in args]
    return [b.value for b in executable(body, len(args)).run(buffers)]


def run_interpreted(body: UOp, args: Sequence[Array]) -> list[Array]:
    """By the schedule and its stage-2 kernels in plain Python."""
    return quietly(lower(body, len(args)).interpret, args)  # type: ignore[no-any-return]


@dataclass
class Tally:
    """How much was compared: elements with a bound, of all."""

    graphs: int = 0
    elements: int = 0
    bounded: int = 0

    def __str__(self) -> str:
        return f"{self.graphs} graphs, {self.bounded} of {self.elements} elements with a bound"


def disagreement(made: Graph, run: Any = run_compiled, tally: Tally | None = None) -> str:
    """What `run` gets wrong, in words; empty if it agrees with the evaluator."""
    wanted = evaluate_with_bounds(made.body, made.args)
    found = run(made.body, made.args)
    check_shapes(found, made.body.aval)
    for number, (got, (value, error)) in enumerate(zip(found, wanted)):
        if tally is not None:
            tally.elements += value.size
            tally.bounded += value.size - (0 if error is None else int(np.isinf(error).sum()))
        wrong = different(got, value, error)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            allowed = 0 if error is None else error[at]
            return (
                f"output {number} {value.dtype}{list(value.shape)} differs in {int(wrong.sum())} "
                f"elements, first at {at}: {got[at]!r}, expected {value[at]!r} +- {allowed}"
            )
    if tally is not None:
        tally.graphs += 1
    return ""
