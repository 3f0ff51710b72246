"""Bytes that the steps of a plan read and write: what `lower(...).cost["bytes accessed"]` says.

A kernel reads or writes, of each buffer, as many elements as its loads or stores have different
iterations, at most the whole buffer: a fused group counts its border, an update of one element that
element, a gather the rows it takes, a repeated read nothing more. Loops count their length (WHILE:
one iteration), branches the most expensive one, symbolic sizes their upper bounds. Guards are
taken to hold.

Cost: linear in the nodes of the distinct kernels and in the steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinyjax.core.dims import largest
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.lowering import plan as planning
from tinyjax.lowering.interpret import free_ranges
from tinyjax.lowering.nest import extent
from tinyjax.lowering.program import Lowered, lower
from tinyjax.lowering.rangeify import rangeify


def bytes_moved(lowered: Lowered) -> int:
    """Bytes read and written by one run."""
    return sum(map(_of, lowered.plan.steps))


def _sum(steps: Sequence[planning.Step]) -> int:
    return sum(map(_of, steps))


def _of(step: planning.Step) -> int:
    match step:
        case planning.Launch(_, body, _):
            return kernel_bytes(body)
        case planning.Routine():
            return largest(sum(of.nbytes for of in step.avals))
        case planning.Nested(body, slots):
            return bytes_moved(lower(body, len(slots) - len(body.src)))
        case planning.Move(_, _, nbytes):
            return 2 * int(nbytes)
        case planning.Loop(trip, inner):
            return int(trip) * _sum(inner)
        case planning.While(cond, _, inner):
            return _sum(cond) + _sum(inner)
        case planning.Branch(_, branches):
            return max(map(_sum, branches))
    return 0  # a pointer is moved


def kernel_bytes(body: UOp) -> int:
    """Bytes that the kernel of a group body reads and writes."""
    found = body.derived.get("bytes moved")
    if found is None:
        found = body.derived["bytes moved"] = _accessed(rangeify(body))
    return int(found)


def _accessed(sink: UOp) -> int:
    nodes = toposort([sink])
    free = free_ranges(nodes)
    elements: dict[tuple[UOp, Op], int] = {}
    for node in nodes:
        if node.op in (Op.LOAD, Op.STORE):
            index = node.src[0]
            place = (index.src[0], node.op)
            times = math.prod(extent(r) for r in free[index])
            elements[place] = elements.get(place, 0) + times
    return sum(
        min(count, largest(buffer.aval.size)) * buffer.aval.dtype.itemsize
        for (buffer, _), count in elements.items()
    )
