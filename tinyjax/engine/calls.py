"""Applying staged functions: CALL nodes, run at once when nothing is open."""

from __future__ import annotations

from collections.abc import Sequence

from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, results
from tinyjax.engine.array import Array
from tinyjax.engine.tracing import Traced
from tinyjax.engine.values import finish_all


def apply_call(traced: Traced, args: Sequence[UOp], info: CallInfo) -> list[Array]:
    """Results of a staged function on nodes."""
    if not traced.body.src:
        return []
    call = UOp(Op.CALL, (traced.body, *args, *traced.captured), info)
    return finish_all(results(call))
