"""A stage-2 kernel -> code for the CPU. The entry points of the lowering for everything but DOT.

`compile_kernels` is pure and cached per (SINK, target): equal kernels are one object. Nothing is
compiled here: the result holds LLVM text, which the runtime compiles, caches and loads.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinyjax.core.record import recording
from tinyjax.core.uop import UOp
from tinyjax.core.weak import WeakKeys
from tinyjax.lowering.code import KernelCode
from tinyjax.lowering.driver import run
from tinyjax.lowering.passes import FINISH, KERNEL, LOOPS, NEST, WHOLE
from tinyjax.lowering.schedule import replay
from tinyjax.lowering.target import Target, host

_cache: WeakKeys[UOp, dict[tuple[Target, str, int | None], tuple[KernelCode, ...]]] = WeakKeys()


def compile_kernels(
    sink: UOp, target: Target | None = None, name: str = "kernel", slots: int | None = None
) -> tuple[KernelCode, ...]:
    """The kernels that do what a stage-2 SINK says, in order: one, or two for a split reduction.

    `slots` is the number of slots the caller passes before scratch (default: those the SINK uses).
    """
    target = target or host()
    made = _cache.setdefault(sink, {})
    key = (target, name, slots)
    found = made.get(key)
    if found is None or recording():
        found = made[key] = run(LOOPS, (sink,), target=target, name=name, slots=slots)
    return found


def compile_kernel(
    sink: UOp,
    target: Target | None = None,
    name: str = "kernel",
    actions: Sequence[str] | None = None,
) -> KernelCode:
    """A SINK as exactly one kernel, whatever its size.

    `actions` replace the schedule's own decisions; see `schedule.replay`.
    """
    context = {"target": target or host(), "name": name}
    if actions is None:
        made: KernelCode = run((*WHOLE, *FINISH), sink, **context)
    else:
        nest = run(WHOLE.between(KERNEL, NEST), sink, **context)
        made = run(FINISH, replay(nest, actions), **context)
    return made
