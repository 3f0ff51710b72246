"""DOT nests against NumPy in float64: layouts, dtypes, targets, edges, callbacks, schedules."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyjax.lowering.dot import (
    DOT_PARAMS,
    DotSchedule,
    DotSpec,
    DotTarget,
    Epilogue,
    Operand,
    Param,
    choose_schedule,
    dot_params,
    dot_target,
    gemm_kernels,
    strided,
    strided_store,
)
from tinyjax.lowering.irtext import F32, IRBuilder, Module, Value, const
from tinyjax.lowering.target import host
from tinyjax.runtime import cpu, loader

Array = np.ndarray[Any, Any]
D = DOT_PARAMS
WORKSPACE_SLOT = 6  # slots 0..5 are the caller's

# What other machines get, and this one with all it has; what this one cannot run is left out.
LEVELS = {
    "host": (dot_target(host()), None),
    "v4": (DotTarget(64, 32, True), "x86-64-v4"),
    "v3": (DotTarget(32, 16, True, int16_dot="madd"), "x86-64-v3"),
    "v1": (DotTarget(16, 16, False, False, int16_dot="madd"), "x86-64"),
}
ON_X86 = "x86_64" in host().triple
RUNNABLE = [
    name
    for name, (target, _) in LEVELS.items()
    if name == "host" or (ON_X86 and target.vector_bytes <= host().vector_bytes)
]
TARGET = LEVELS["host"][0]

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# operand dtype -> (accumulator, tolerance relative to the largest element)
DTYPES = {
    np.dtype(np.float32): (np.float32, 2e-6),
    np.dtype(np.float64): (np.float64, 1e-14),
    np.dtype(np.float16): (np.float32, 2e-6),
    BFLOAT16: (np.float32, 2e-6),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.float32, 2e-6),
    np.dtype(np.int8): (np.int32, 0),
    np.dtype(np.uint8): (np.int32, 0),
    np.dtype(np.int16): (np.int32, 0),
    np.dtype(np.int64): (np.int64, 0),
}


@dataclass
class Compiled:
    """The steps of a DOT as functions."""

    steps: list[Any]
    functions: list[Any]
    loaded: list[Any]

    def run(self, params: Sequence[int], arrays: Sequence[Array], chunk: int | None = None) -> None:
        """Run every step over all its tasks, `chunk` at a time."""
        pointers = [array.ctypes.data for array in arrays]
        pointers += [0] * (WORKSPACE_SLOT + 3 - len(pointers))
        spaces = {}
        for step in self.steps:
            for space in step.workspaces:
                if space.slot not in spaces:
                    # NaNs: what is read must have been written.
                    memory = np.full(space.nbytes(params) + 128, 0xFF, np.uint8)
                    spaces[space.slot] = memory
                    pointers[space.slot] = memory.ctypes.data + -memory.ctypes.data % 64
        slots = np.array(pointers, np.uint64)
        numbers = np.array(params, np.int64)
        for step, function in zip(self.steps, self.functions, strict=True):
            tasks = step.tasks(params)
            for lo in range(0, tasks, chunk or max(tasks, 1)):
                hi = min(tasks, lo + (chunk or tasks))
                function(slots.ctypes.data, numbers.ctypes.data, lo, hi)


def compile_steps(steps: list[Any], cpu_name: str | None = None) -> Compiled:
    loaded = [
        loader.load(cpu.compile_ir(s.ir_text, s.name, cpu=cpu_name, allowed=()), [s.name], ())
        for s in steps
    ]
    functions = [KERNEL(x.addresses[s.name]) for x, s in zip(loaded, steps, strict=True)]
    return Compiled(steps, functions, loaded)


def operands(dtype: Any, transpose_a: bool, transpose_b: bool, out: Any) -> Any:
    """A [b,m,k] or [b,k,m], B [b,k,n] or [b,n,k], C [b,m,n]; strides are parameters D..D+5."""
    a = strided(
        0, dtype, batch=Param(D),
        row=1 if transpose_a else Param(D + 1), col=Param(D + 1) if transpose_a else 1,
    )  # fmt: skip
    b = strided(
        1, dtype, batch=Param(D + 2),
        row=1 if transpose_b else Param(D + 3), col=Param(D + 3) if transpose_b else 1,
    )  # fmt: skip
    return a, b, strided_store(2, out, batch=Param(D + 4), row=Param(D + 5), col=1)


def strides(transpose_a: bool, transpose_b: bool, m: int, n: int, k: int) -> tuple[int, ...]:
    return (m * k, m if transpose_a else k, k * n, k if transpose_b else n, m * n, n)


def matrices(dtype: Any, *shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    if dtype.kind in "iu":
        return [
            rng.integers(-100 if dtype.kind == "i" else 0, 100, s).astype(dtype) for s in shapes
        ]
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def expected(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    wide = np.int64 if a.dtype.kind in "iu" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    return np.matmul(x.swapaxes(1, 2) if transpose_a else x, y.swapaxes(1, 2) if transpose_b else y)


def assert_near(got: Array, want: Array, tolerance: float) -> None:
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    np.testing.assert_allclose(got.astype(want.dtype), want, rtol=0, atol=tolerance * scale)


def check(
    dtype: Any, batch: int, m: int, n: int, k: int, ta: bool, tb: bool, level: str,
    schedule: DotSchedule | None = None, out_dtype: Any = None, tolerance: float | None = None,
) -> list[Any]:  # fmt: skip
    """Compile, run whole and in chunks of one task, compare; returns the steps."""
    target, cpu_name = LEVELS[level]
    accumulate, bound = DTYPES[dtype]
    a, b, out = operands(dtype, ta, tb, out_dtype or accumulate)
    if schedule is None:
        schedule = choose_schedule(
            target, np.dtype(accumulate), a, b, out, batch=batch, m=m, n=n, k=k
        )
    spec = DotSpec("dot", np.dtype(accumulate), target, WORKSPACE_SLOT, nonempty=k > 0)
    steps = gemm_kernels(spec, schedule, a, b, out)
    x, y = matrices(
        dtype, (batch, k, m) if ta else (batch, m, k), (batch, n, k) if tb else (batch, k, n)
    )
    params = dot_params(schedule, batch, m, n, k) + strides(ta, tb, m, n, k)
    compiled = compile_steps(steps, cpu_name)
    results = []
    for chunk in (None, 1):
        c = np.full((batch, m, n), 77, out_dtype or accumulate)
        compiled.run(params, [x, y, c], chunk)
        results.append(c)
    assert_near(results[0], expected(x, y, ta, tb), bound if tolerance is None else tolerance)
    np.testing.assert_array_equal(results[0], results[1])
    return steps


SIZES = st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 33, 64, 65, 97, 130]))
DEPTHS = st.one_of(st.integers(0, 20), st.sampled_from([63, 64, 100, 513, 1040]))


@settings(max_examples=30, deadline=None, database=None)
@given(
    st.sampled_from(list(DTYPES)), st.integers(1, 3), SIZES, SIZES, DEPTHS,
    st.booleans(), st.booleans(), st.sampled_from(RUNNABLE),
)  # fmt: skip
def test_any_shape_layout_and_dtype_equals_numpy_whole_or_in_chunks(
    dtype: Any, batch: int, m: int, n: int, k: int, ta: bool, tb: bool, level: str
) -> None:
    check(dtype, batch, m, n, k, ta, tb, level)


@pytest.mark.parametrize("level", RUNNABLE)
@pytest.mark.parametrize("pack_a", ["none", "task", "step"])
@pytest.mark.parametrize("pack_b", ["none", "task", "step"])
def test_every_packing_works_with_blocks_of_k_and_edges_on_all_sides(
    level: str, pack_a: Any, pack_b: Any
) -> None:
    target = LEVELS[level][0]
    lanes = target.lanes(np.dtype(np.float32))
    schedule = DotSchedule(
        "outer", False, lanes, 6, 2 * lanes, 2, "narrow", 1, pack_a, pack_b, 12, 2 * lanes, 16
    )
    ta = (pack_a == "step") != (level == "v3")  # both layouts of both operands are met
    steps = check(np.dtype(np.float32), 2, 23, 5 * lanes + 3, 41, ta, not ta, level, schedule)
    assert len(steps) == 1 + (pack_a == "step") + (pack_b == "step")


@pytest.mark.parametrize("level", RUNNABLE)
@pytest.mark.parametrize("dtype", [BFLOAT16, np.int8, np.uint8, np.int16], ids=str)
def test_groups_of_products_are_added_by_one_instruction_where_there_is_one(
    level: str, dtype: Any
) -> None:
    """K is no multiple of a group, of a vector or of a block; bytes of both signs take a bias."""
    for ta, tb in ((False, False), (True, True)):
        steps = check(np.dtype(dtype), 2, 23, 70, 4099, ta, tb, level)
        target, text = LEVELS[level][0], "".join(step.ir_text for step in steps)
        if dtype is BFLOAT16:
            assert ("dpbf16ps" in text) == target.bf16_dot
        elif np.dtype(dtype) == np.int8 and target.int8_dot:
            assert "vpdpbusd" in text
        elif target.int16_dot:
            assert ("vpdpwssd" if target.int16_dot == "vnni" else "pmadd") in text


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("kind", ["outer", "inner"])
def test_split_k_adds_the_parts_in_a_kernel_of_its_own(kind: Any, swap: bool) -> None:
    lanes = TARGET.lanes(np.dtype(np.float32))
    nr = lanes if kind == "outer" else 3
    schedule = DotSchedule(
        kind, swap, lanes, 4, nr, 1, "narrow", 1, "none", "none", 4, nr, 0, split_k=64
    )
    steps = check(np.dtype(np.float32), 2, 9, 7, 300, False, True, "host", schedule)
    assert [step.name for step in steps] == ["dot", "dot_sum"]
    assert steps[0].tasks(dot_params(schedule, 2, 9, 7, 300)) % 5 == 0  # ceil(300 / 64) parts


def test_one_object_serves_every_shape_of_a_layout() -> None:
    f32 = np.dtype(np.float32)
    a, b, out = operands(f32, False, False, f32)
    spec = DotSpec("dot", f32, TARGET, WORKSPACE_SLOT)
    one = choose_schedule(TARGET, f32, a, b, out, batch=1, m=200, n=512, k=300)
    two = choose_schedule(TARGET, f32, a, b, out, batch=1, m=333, n=448, k=384)
    assert str(one) != str(two)
    steps = gemm_kernels(spec, one, a, b, out)
    others = gemm_kernels(spec, two, a, b, out)
    assert [step.ir_text for step in steps] == [step.ir_text for step in others]
    compiled = compile_steps(steps)
    for batch, m, n, k in ((1, 200, 512, 300), (3, 7, 5, 11), (1, one.mr, 1, 1), (2, 13, 70, 1)):
        x, y = matrices(f32, (batch, m, k), (batch, k, n))
        c = np.zeros((batch, m, n), f32)
        compiled.run(dot_params(one, batch, m, n, k) + strides(False, False, m, n, k), [x, y, c])
        assert_near(c, expected(x, y), 2e-6)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 3), (5, 0, 3), (0, 0, 0), (5, 6, 0)])
def test_empty_dimensions_run_no_task_or_give_zeros(m: int, n: int, k: int) -> None:
    steps = check(np.dtype(np.float32), 2, m, n, k, False, False, "host")
    if m * n == 0:
        a, b, out = operands(np.dtype(np.float32), False, False, np.float32)
        chosen = choose_schedule(TARGET, np.dtype(np.float32), a, b, out, batch=2, m=m, n=n, k=k)
        params = dot_params(chosen, 2, m, n, k)
        assert steps[-1].tasks(params) == 0


# -------------------------------------------------------------------------------------- callbacks


def dequantised(slot: int, scales: int, row: Any, col: Any) -> Operand:
    """int8 codes times a scale per row, as a pass would write it."""
    codes = strided(slot, np.int8, row=row, col=col)
    scale = strided(scales, np.float32, row=1, col=0)

    def open(b: IRBuilder, slots: Value, params: Value) -> Any:
        read, factor = codes.open(b, slots, params), scale.open(b, slots, params)

        def load(
            b: IRBuilder, batch: Value, row: Value, col: Value, width: int, axis: Any,
            mask: Value | None = None,
        ) -> Value:  # fmt: skip
            number = b.cast(read(b, batch, row, col, width, axis, mask), F32)
            if axis == "row":
                return b.mul(number, factor(b, batch, row, col, width, axis, mask))
            return b.mul(number, b.splat(factor(b, batch, row, col, 1, axis), width))

        return load

    return Operand(np.dtype(np.float32), codes.unit, open, shared=True)


def bias_relu(slot: int, bias: int, inline: bool) -> Epilogue:
    """C += relu(x + bias): reads what it overwrites, so a second visit of an element would show."""
    target = strided_store(slot, np.float32, batch=Param(D + 4), row=Param(D + 5), col=1)
    old = strided(slot, np.float32, batch=Param(D + 4), row=Param(D + 5), col=1)
    shift = strided(bias, np.float32, row=0, col=1)

    def open(b: IRBuilder, slots: Value, params: Value) -> Any:
        write = target.open(b, slots, params)
        read, add = old.open(b, slots, params), shift.open(b, slots, params)

        def store(
            b: IRBuilder, batch: Value, row: Value, col: Value, x: Value, axis: Any,
            mask: Value | None = None,
        ) -> None:  # fmt: skip
            width = x.type.width
            x = b.add(x, add(b, batch, row, col, width, axis, mask))
            x = b.maximum(x, const(x.type, 0.0))
            x = b.add(x, read(b, batch, row, col, width, axis, mask))
            write(b, batch, row, col, x, axis, mask)

        return store

    return Epilogue(open, "col", inline)


@pytest.mark.parametrize("level", RUNNABLE)
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(13, 70, 33), (40, 35, 600), (3, 300, 50), (50, 2, 40)])
def test_operand_expressions_and_epilogues_run_once_per_element(
    level: str, inline: bool, m: int, n: int, k: int
) -> None:
    f32, batch = np.dtype(np.float32), 2
    target, cpu_name = LEVELS[level]
    for trans in (False, True):
        a = dequantised(0, 3, 1 if trans else Param(D + 1), Param(D + 1) if trans else 1)
        b = strided(1, f32, batch=Param(D + 2), row=Param(D + 3), col=1)
        out = bias_relu(2, 4, inline)
        schedule = choose_schedule(target, f32, a, b, out, batch=batch, m=m, n=n, k=k)
        steps = gemm_kernels(DotSpec("dot", f32, target, WORKSPACE_SLOT), schedule, a, b, out)
        compiled = compile_steps(steps, cpu_name)
        codes = matrices(np.dtype(np.int8), (k, m) if trans else (m, k))[0]
        y, scales, bias, start = matrices(f32, (batch, k, n), (m,), (n,), (batch, m, n))
        c = start.copy()
        numbers = (0, m if trans else k, k * n, n, m * n, n)
        compiled.run(dot_params(schedule, batch, m, n, k) + numbers, [codes, y, c, scales, bias], 1)
        x = (codes.T if trans else codes).astype(np.float64) * scales[:, None].astype(np.float64)
        want = np.maximum(np.matmul(x, y.astype(np.float64)) + bias, 0) + start
        assert_near(c, want, 2e-6)


def test_windows_of_a_signal_are_an_operand_without_a_buffer() -> None:
    """Implicit GEMM: A[i, j] = x[2*i + j] where it exists, else zero (a padded convolution)."""
    f32, m, n, k, length = np.dtype(np.float32), 19, 40, 9, 40
    signal = strided(0, f32, row=0, col=1)

    def open(b: IRBuilder, slots: Value, params: Value) -> Any:
        read = signal.open(b, slots, params)

        def load(
            b: IRBuilder, batch: Value, row: Value, col: Value, width: int, axis: Any,
            mask: Value | None = None,
        ) -> Value:  # fmt: skip
            lanes = []
            for lane in range(width):
                i, j = (b.add(row, lane), col) if axis == "row" else (row, b.add(col, lane))
                at = b.add(b.mul(i, 2), j)
                inside = b.cmp("slt", at, length)
                if mask is not None:
                    inside = b.and_(inside, b.extract(mask, lane))
                lanes.append(read(b, batch, b.sub(row, row), at, 1, "col", inside))
            return b.pack(lanes)

        return load

    a = Operand(f32, None, open, shared=True)
    b = strided(1, f32, row=Param(D), col=1)
    out = strided_store(2, f32, row=Param(D), col=1)
    schedule = choose_schedule(TARGET, f32, a, b, out, batch=1, m=m, n=n, k=k)
    steps = gemm_kernels(DotSpec("dot", f32, TARGET, WORKSPACE_SLOT), schedule, a, b, out)
    x, y = matrices(f32, (length,), (k, n))
    c = np.zeros((m, n), f32)
    compile_steps(steps).run(dot_params(schedule, 1, m, n, k) + (n,), [x, y, c])
    padded = np.concatenate([x, np.zeros(2 * m + k, f32)])
    windows = np.stack([padded[2 * i : 2 * i + k] for i in range(m)]).astype(np.float64)
    assert_near(c, windows @ y.astype(np.float64), 2e-6)


def test_column_major_results_are_computed_transposed() -> None:
    f32, m, n, k = np.dtype(np.float32), 50, 37, 20
    a, b, _ = operands(f32, False, False, f32)
    out = strided_store(2, f32, row=1, col=Param(D + 5))
    schedule = choose_schedule(TARGET, f32, a, b, out, batch=1, m=m, n=n, k=k)
    assert schedule.swap
    steps = gemm_kernels(DotSpec("dot", f32, TARGET, WORKSPACE_SLOT), schedule, a, b, out)
    x, y = matrices(f32, (1, m, k), (1, k, n))
    c = np.zeros((n, m), f32)
    compile_steps(steps).run(dot_params(schedule, 1, m, n, k) + (0, k, 0, n, 0, m), [x, y, c])
    assert_near(c.T[None], expected(x, y), 2e-6)


def test_a_shared_operand_is_packed_once_and_a_split_batch_has_its_address_computed() -> None:
    f32, batch, m, n, k = np.dtype(np.float32), 6, 30, 33, 70
    # A lies as [2, m, 3, k]: matrix i starts at (i//3)*m*3*k + (i%3)*k.
    a = strided(
        0, f32, batch=1, row=Param(D), col=1,
        batch_at=lambda b, params, i: b.add(
            b.mul(b.udiv(i, 3), m * 3 * k), b.mul(b.urem(i, 3), k)
        ),
    )  # fmt: skip
    b = strided(1, f32, row=1, col=Param(D + 1))
    out = strided_store(2, f32, batch=Param(D + 2), row=Param(D + 3), col=1)
    schedule = choose_schedule(TARGET, f32, a, b, out, batch=batch, m=m, n=n, k=k)
    assert schedule.pack_b == "step"
    steps = gemm_kernels(DotSpec("dot", f32, TARGET, WORKSPACE_SLOT), schedule, a, b, out)
    params = dot_params(schedule, batch, m, n, k) + (3 * k, k, m * n, n)
    assert steps[0].tasks(params) == -(-n // schedule.nr)  # not times the batch
    x, y = matrices(f32, (2, m, 3, k), (n, k))
    c = np.zeros((batch, m, n), f32)
    compile_steps(steps).run(params, [x, y, c], 1)
    heads = x.transpose(0, 2, 1, 3).reshape(batch, m, k)
    assert_near(c, expected(heads, np.broadcast_to(y.T, (batch, k, n))), 2e-6)


def test_parameters_may_lie_behind_a_slot_that_kernels_do_not_share() -> None:
    f32, m, n, k = np.dtype(np.float32), 9, 20, 30
    a, b, out = operands(f32, False, False, f32)
    schedule = choose_schedule(TARGET, f32, a, b, out, batch=1, m=m, n=n, k=k)
    spec = DotSpec("dot", f32, TARGET, WORKSPACE_SLOT, params_slot=5)
    compiled = compile_steps(gemm_kernels(spec, schedule, a, b, out))
    params = dot_params(schedule, 1, m, n, k) + strides(False, False, m, n, k)
    x, y = matrices(f32, (1, m, k), (1, k, n))
    c = np.zeros((1, m, n), f32)
    behind = np.array(params, np.int64)
    slots = [x, y, c, c, c, behind]
    function, (step,) = compiled.functions[0], compiled.steps
    pointers = np.array([s.ctypes.data for s in slots] + [0] * 3, np.uint64)
    function(pointers.ctypes.data, None, 0, step.tasks(params))
    assert_near(c, expected(x, y), 2e-6)


def test_narrow_results_are_rounded_once_and_keep_subnormals() -> None:
    check(BFLOAT16, 1, 20, 40, 30, False, False, "host", out_dtype=BFLOAT16, tolerance=2**-8)
    f32, tiny = np.dtype(np.float32), np.float32(2.0**-130)
    a = strided(0, f32, row=1, col=1)
    b = strided(1, f32, row=Param(D), col=1)
    out = strided_store(2, BFLOAT16, row=Param(D), col=1)
    schedule = choose_schedule(TARGET, f32, a, b, out, batch=1, m=1, n=40, k=1)
    steps = gemm_kernels(DotSpec("dot", f32, TARGET, WORKSPACE_SLOT), schedule, a, b, out)
    c = np.zeros(40, BFLOAT16)
    x, y = np.ones(1, f32), np.full(40, tiny)
    compile_steps(steps).run(dot_params(schedule, 1, 1, 40, 1) + (40,), [x, y, c])
    np.testing.assert_array_equal(c.astype(f32), np.full(40, tiny))


# -------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize(
    ("shape", "transposes", "text"),
    [
        ((1, 128, 128, 128), (False, False), "outer tile 6x64, A none, B none, kc 0"),
        ((1, 1024, 1024, 1024), (False, False), "outer tile 6x64, A none, B step, kc 512"),
        ((1, 1024, 1024, 1024), (False, True), "outer tile 6x64, A none, B step, kc 512"),
        ((1, 1024, 1024, 1024), (True, False), "outer tile 6x64, A step, B step, kc 512"),
        ((1, 384, 1536, 512), (True, False), "outer tile 6x64, A none, B step, kc 0"),
        ((24, 128, 128, 64), (False, True), "outer tile 6x64, A none, B task, kc 0"),
        ((512, 8, 8, 8), (False, False), "outer tile 8x16, A none, B none, kc 0"),
        ((1, 4096, 1, 4096), (False, True), "inner tile 8x1, A none, B none, kc 0"),
        ((1, 1, 4096, 4096), (False, True), "inner swapped tile 8x1, A none, B none, kc 0"),
        ((1, 1, 4096, 4096), (False, False), "outer tile 1x64, A none, B none, kc 8, split 256"),
        ((1, 64, 64, 65536), (True, False), "outer tile 6x64, A none, B none, kc 0, split 2048"),
    ],
)
def test_the_heuristic_picks(
    shape: tuple[int, ...], transposes: tuple[bool, bool], text: str
) -> None:
    f32 = np.dtype(np.float32)
    a, b, out = operands(f32, *transposes, f32)
    batch, m, n, k = shape
    s = choose_schedule(DotTarget(), f32, a, b, out, batch=batch, m=m, n=n, k=k)
    got = (
        f"{s.kind}{' swapped' if s.swap else ''} tile {s.mr}x{s.nr}, A {s.pack_a}, B {s.pack_b},"
        f" kc {s.kc}{f', split {s.split_k}' if s.split_k else ''}"
    )
    assert got == text


def test_a_schedule_prints_as_a_list_that_reads_back() -> None:
    f32 = np.dtype(np.float32)
    a, b, out = operands(f32, False, False, f32)
    s = choose_schedule(DotTarget(), f32, a, b, out, batch=1, m=1024, n=1024, k=1024, threads=1)
    assert str(s) == (
        "kind=outer swap=False lanes=16 mr=6 nr=64 tail=0 edge=masked unroll=1"
        " pack_a=none pack_b=step mc=96 nc=1024 kc=512 split_k=0 group=1"
    )
    assert DotSchedule.parse(str(s)) == s


@given(
    st.integers(1, 3), st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 70000),
    st.sampled_from([1, 2, 64]),
)  # fmt: skip
def test_threads_change_the_cut_into_tasks_but_not_the_order_of_summation(
    batch: int, m: int, n: int, k: int, threads: int
) -> None:
    f32 = np.dtype(np.float32)
    a, b, out = operands(f32, False, False, f32)
    one, many = (
        choose_schedule(TARGET, f32, a, b, out, batch=batch, m=m, n=n, k=k, threads=t)
        for t in (1, threads)
    )
    assert replace(one, mc=0, nc=0) == replace(many, mc=0, nc=0)


def test_transposing_registers_is_a_transposition() -> None:
    from tinyjax.lowering.dot_pack import transpose
    from tinyjax.lowering.irtext import I64, PTR, type_of, vec

    for dtype in (np.float32, np.int32, np.float64, np.int64):
        size = 16 // np.dtype(dtype).itemsize  # of a block of 128 bits
        for lanes in {size, TARGET.vector_bytes // np.dtype(dtype).itemsize}:
            module, element = Module(), type_of(np.dtype(dtype))
            b = module.function("t", [("x", PTR), ("y", PTR), ("lo", I64), ("hi", I64)])
            x, y = b.args[:2]
            rows = [
                b.load(vec(element, size), b.gep(element, x, i * size), align=element.nbytes)
                for i in range(lanes)
            ]
            for i, row in enumerate(transpose(b, rows)):
                b.store(row, b.gep(element, y, i * lanes), align=element.nbytes)
            code = loader.load(cpu.compile_ir(module.text(), "t", allowed=()), ["t"], ())
            source = np.arange(lanes * size, dtype=dtype).reshape(lanes, size)
            result = np.zeros((size, lanes), dtype)
            KERNEL(code.addresses["t"])(source.ctypes.data, result.ctypes.data, 0, 0)
            np.testing.assert_array_equal(result, source.T)
