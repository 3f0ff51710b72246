"""Applying staged functions: CALL nodes, run at once when nothing is open."""

from __future__ import annotations

from collections.abc import Sequence

from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.effects import perform
from tinyjax.engine.tracing import Traced


def apply_call(traced: Traced, args: Sequence[UOp], info: CallInfo) -> list[Array]:
    """Results of a staged function on nodes."""
    if not traced.body.src:
        return []
    call = UOp(Op.CALL, (traced.body, *traced.operands(args)), info)
    return traced.deliver(perform(call))
