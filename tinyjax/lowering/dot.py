"""DOT as kernels: C[b,m,n] = epilogue(sum over k of A[b,m,k] * B[b,k,n]).

    spec = DotSpec("dot_f32", np.dtype("float32"), target, workspace_slot=3)
    a = strided(0, np.float32, row=Param(12), col=1)
    b = strided(1, np.float32, row=Param(13), col=1)
    out = strided_store(2, np.float32, row=Param(14), col=1)
    schedule = choose_schedule(target, spec.accumulate, a, b, out, batch=1, m=m, n=n, k=k)
    steps = gemm_kernels(spec, schedule, a, b, out)
    params = dot_params(schedule, 1, m, n, k) + (k, n, n)

Each step is one kernel `void name(ptr slots, ptr dims, i64 lo, i64 hi)`, run over [0, tasks) in any
chunks, the steps in order. `slots` holds the caller's pointers and, from `workspace_slot` on, the
workspaces that the steps ask for. Sizes come from int64 parameters: `dot_params(...)` followed by
whatever the caller's operands read (`Param(DOT_PARAMS + i)`); they lie behind `dims`, or behind
slot `params_slot` if the kernels of a program share their `dims`.

The text never depends on sizes: equal layouts share one compiled object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinyjax.core.dims import Size
from tinyjax.lowering.dot_frame import Nest
from tinyjax.lowering.dot_nest import emit_main, emit_reduce
from tinyjax.lowering.dot_operands import (
    Epilogue,
    Operand,
    Param,
    strided,
    strided_store,
    transposed,
    transposed_store,
)
from tinyjax.lowering.dot_pack import emit_pack
from tinyjax.lowering.dot_schedule import (
    BATCH,
    CHUNK,
    COL_BLOCKS,
    DOT_PARAMS,
    K_BLOCK,
    ROW_BLOCKS,
    SPLITS,
    DotSchedule,
    DotTarget,
    K,
    M,
    N,
    Packing,
    ceil_div,
    choose_schedule,
    dot_params,
    dot_target,
    k_align,
    round_up,
    row_stride,
)
from tinyjax.lowering.irtext import type_of

__all__ = [
    "DOT_PARAMS", "DotSchedule", "DotSpec", "DotTarget", "Epilogue", "KernelStep", "Operand",
    "Param", "Workspace", "choose_schedule", "dot_params", "dot_target", "gemm_kernels",
    "strided", "strided_store",
]  # fmt: skip

Params = Sequence[Any]
"""Integers, or symbolic sizes among them where only the number of tasks is asked for."""


@dataclass(frozen=True, slots=True)
class DotSpec:
    """What is fixed about a DOT beside its operands.

    `accumulate` is the type of the sums: float32 for narrow floats, int32 for narrow integers.
    `params_slot` None means the parameters are behind the kernel's `dims` argument. `nonempty`
    promises that K is at least 1 in every run. `limits` are
    sizes (BATCH, M, N, K) that differ from run to run: their places in `dims`. The parameters then
    hold their upper bounds, for which scratch and tasks are planned.
    """

    name: str
    accumulate: np.dtype
    target: DotTarget
    workspace_slot: int
    params_slot: int | None = None
    nonempty: bool = False
    limits: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory behind `slot`, 64-byte aligned, live from the first step to the last."""

    slot: int
    nbytes: Callable[[Params], int]


@dataclass(frozen=True, slots=True)
class KernelStep:
    """One parallel kernel; all functions take the step's parameters."""

    name: str
    ir_text: str
    tasks: Callable[[Params], Size]
    chunk: Callable[[Params], int]  # tasks that are run together
    workspaces: tuple[Workspace, ...]


def gemm_kernels(
    spec: DotSpec, schedule: DotSchedule, a: Operand, b: Operand, out: Epilogue
) -> list[KernelStep]:
    """The steps of a DOT under a schedule: packing, the product, the sum of split parts.

    Workspace slots are numbered from `spec.workspace_slot` in the order A, B, partial sums,
    whether used or not. Cost: about 2 ms of Python and 25 ms of LLVM per kernel.
    """
    if schedule.swap:
        a, b, out = transposed(b), transposed(a), transposed_store(out)
    turned = {M: N, N: M} if schedule.swap else {}
    slot = spec.workspace_slot
    acc = type_of(spec.accumulate)
    nest = Nest(
        spec.name,
        schedule,
        acc,
        spec.target,
        a,
        b,
        out,
        spec.params_slot,
        {turned.get(i, i): number for i, number in spec.limits.items()},
        spec.nonempty,
        slot,
        slot + 1,
        slot + 2,
    )
    split = schedule.split_k > 0
    packs = {True: schedule.pack_a, False: schedule.pack_b}
    spaces: list[Workspace] = []
    for is_a, how in packs.items():
        if how == "rows":
            spaces.append(_rows(spec, schedule))
        elif how != "none":
            shared = (a if is_a else b).shared
            spaces.append(_packed(spec, schedule, is_a, how, shared))
    if split or schedule.kc:
        spaces.append(_partial(spec, schedule))
    steps: list[KernelStep] = []
    for is_a, how in packs.items():
        if how == "step":
            shared = (a if is_a else b).shared
            tasks = _pack_tasks(schedule, is_a, shared)
            name = spec.name + ("_pack_a" if is_a else "_pack_b")
            steps.append(KernelStep(name, emit_pack(nest, is_a), tasks, _one, tuple(spaces)))
    text = emit_main(nest)
    steps.append(KernelStep(spec.name, text, _blocks, lambda p: p[CHUNK], tuple(spaces)))
    if split:
        tasks = _sum_tasks(schedule)
        text = emit_reduce(nest)
        steps.append(KernelStep(spec.name + "_sum", text, tasks, _one, tuple(spaces)))
    return steps


# --------------------------------------------------------- sizes, as functions of the parameters


def _panels(schedule: DotSchedule, params: Params, is_a: bool) -> Any:
    return ceil_div(params[M], schedule.mr) if is_a else ceil_div(params[N], schedule.nr)


def _one(_: Params) -> int:
    return 1


def _blocks(params: Params) -> Any:
    """Tasks of the product: blocks of C, times splits of K."""
    return params[BATCH] * params[SPLITS] * params[ROW_BLOCKS] * params[COL_BLOCKS]


def _pack_tasks(schedule: DotSchedule, is_a: bool, shared: bool) -> Callable[[Params], Size]:
    """A panel each."""
    return lambda p: _panels(schedule, p, is_a) * (1 if shared else p[BATCH])


def _sum_tasks(schedule: DotSchedule) -> Callable[[Params], Size]:
    """A row panel each."""
    return lambda p: p[BATCH] * _panels(schedule, p, True) if p[N] else 0


def _packed(
    spec: DotSpec, schedule: DotSchedule, is_a: bool, how: Packing, shared: bool
) -> Workspace:
    """Room for one packed operand: all of it, or the largest block of each task."""
    tile = schedule.mr if is_a else schedule.nr
    size = tile * (4 if schedule.group > 1 else spec.accumulate.itemsize)

    def nbytes(p: Params) -> int:
        panels: int = _panels(schedule, p, is_a)
        if how == "step":
            rows = round_up(p[K], k_align(schedule)) // schedule.group
            return panels * size * rows * (1 if shared else int(p[BATCH]))
        largest: int = ceil_div(panels, max(p[ROW_BLOCKS if is_a else COL_BLOCKS], 1))
        return _chunks(p) * largest * size * int(p[K_BLOCK] // schedule.group)

    slot = spec.workspace_slot + (0 if is_a else 1)
    return Workspace(slot, nbytes)


def _chunks(params: Params) -> int:
    """Regions of task scratch."""
    return int(ceil_div(_blocks(params), params[CHUNK]))


def _rows(spec: DotSpec, schedule: DotSchedule) -> Workspace:
    """Room for the rows of A that a chunk works on."""
    unit = 4 if schedule.group > 1 else spec.accumulate.itemsize

    def nbytes(p: Params) -> int:
        largest: int = ceil_div(_panels(schedule, p, True), max(p[ROW_BLOCKS], 1))
        row = row_stride(schedule, p[K_BLOCK]) * unit
        return _chunks(p) * largest * schedule.mr * row

    return Workspace(spec.workspace_slot, nbytes)


def _partial(spec: DotSpec, schedule: DotSchedule) -> Workspace:
    """A padded C for each split, or a block of C for each chunk; nothing if one visit finishes."""
    size = spec.accumulate.itemsize * schedule.mr * schedule.nr

    def nbytes(p: Params) -> int:
        rows, columns = (_panels(schedule, p, is_a) for is_a in (True, False))
        if schedule.split_k:
            return int(p[BATCH] * p[SPLITS] * rows * columns) * size
        if p[K] <= p[K_BLOCK]:
            return 0
        block: int = ceil_div(rows, max(p[ROW_BLOCKS], 1)) * ceil_div(
            columns, max(p[COL_BLOCKS], 1)
        )
        return _chunks(p) * block * size

    return Workspace(spec.workspace_slot + 2, nbytes)
