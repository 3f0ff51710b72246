"""Kernels with loops: reductions, sweeps, argmax, prefixes, scatters, gathers, strides, tasks."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tinyjax
from tests.lowering.kernels import (
    NARROW_TARGETS,
    Compiled,
    buffer,
    cast,
    check,
    close,
    fold,
    kernel,
    literal,
    load,
    loop,
    map_kernel,
    node,
    plus,
    store,
)
from tinyjax import numpy as jnp
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, get
from tinyjax.lowering.codegen import compile_kernel, compile_kernels
from tinyjax.lowering.interpret import interpret
from tinyjax.lowering.merge import merge_ranges
from tinyjax.lowering.split import split_folds

F32, INT64 = np.dtype(np.float32), np.dtype(np.int64)
BF16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(11)


def normal(*shape: int, dtype: Any = F32) -> Any:
    x = RNG.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * RNG.normal(size=shape)
    return x.astype(dtype)


def zeros(*shape: int, dtype: Any = F32) -> Any:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize("target", NARROW_TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 33, 100, 1000])
def test_every_length_has_a_main_part_and_a_tail(n: int, target: Any) -> None:
    sink = map_kernel(lambda x: node(Op.MUL, x, 3.0), n, F32, F32)
    check(sink, [zeros(n), normal(n)], target=target)


def test_neighbouring_ranges_that_are_contiguous_become_one() -> None:
    i, j, k = loop(3, 0), loop(5, 1), loop(7, 2)
    at = plus((i, 35), (j, 7), k)
    sink = kernel(
        store(buffer(0, (3, 5, 7), F32), at, load(buffer(1, (3, 5, 7), F32), at), i, j, k)
    )
    listing = check(sink, [zeros(3, 5, 7), normal(3, 5, 7)]).code.listing
    assert "in 105 loop" in listing and listing.count("for ") == 1


def test_a_transposed_read_keeps_both_loops() -> None:
    i, j = loop(20, 0), loop(37, 1)
    sink = kernel(
        store(
            buffer(0, (20, 37), F32), plus((i, 37), j),
            load(buffer(1, (37, 20), F32), plus((j, 20), i)), i, j,
        )
    )  # fmt: skip
    check(sink, [zeros(20, 37), normal(37, 20)])


@pytest.mark.parametrize("target", NARROW_TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "uint8"])
def test_a_transposed_read_exchanges_squares_in_registers(dtype: str, target: Any) -> None:
    of = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    for m, n in ((64, 64), (37, 130), (50, 48)):
        i, j = loop(m, 0), loop(n, 1)
        x = load(buffer(1, (n, m), of), plus((j, m), i))
        y = load(buffer(2, (m,), of), i)
        value = node(Op.ADD, x, y)
        sink = kernel(store(buffer(0, (m, n), of), plus((i, n), j), value, i, j))
        made = check(sink, [zeros(m, n, dtype=of), some("int32", n, m).astype(of),
                            some("int32", m).astype(of)], target=target)  # fmt: skip
    if target.vector_bytes == 64 and dtype == "float32":
        assert any("square" in a for a in made.code.schedule)


@pytest.mark.parametrize("target", NARROW_TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("kind", ["square", "load"])
def test_a_read_beside_a_transposed_one_that_only_looks_like_it_is_gathered(
    kind: str, target: Any
) -> None:
    """j*n + i + i*i has a coefficient of 1 for i, but its copies are not neighbours."""
    n = 64
    i, j = loop(n, 0), loop(n, 1)
    x = load(buffer(1, (n, n), F32), plus((j, n), i))
    extra = node(Op.MUL, i, i) if kind == "square" else load(buffer(3, (n,), INT64), i)
    y = load(buffer(2, (3 * n * n,), F32), plus((j, n), i, extra))
    sink = kernel(store(buffer(0, (n, n), F32), plus((i, n), j), node(Op.ADD, x, y), i, j))
    arrays = [zeros(n, n), normal(n, n), normal(3 * n * n)]
    made = check(sink, [*arrays, np.arange(n)[::-1].copy()], target=target)
    if target.vector_bytes == 64:
        assert any("square" in a for a in made.code.schedule)


def test_an_index_that_holds_a_node_computed_later_is_not_that_of_the_step_before() -> None:
    """The interpreter of nests kept the values of lines from one iteration to the next."""
    i, j = loop(8, 0), loop(48, 1)
    at = plus((i, 48), j)
    other = node(Op.MOD, node(Op.MUL, node(Op.MIN, at, 29), j), 384)
    x, y = (load(buffer(1, (384,), F32), a) for a in (at, other))
    sink = kernel(store(buffer(0, (384,), F32), at, node(Op.ADD, x, y), i, j))
    check(sink, [zeros(384), normal(384)])


def test_a_fold_of_a_loop_variable_itself() -> None:
    """The interpreter took the folded variable for one that the fold closes."""
    i, k = loop(5, 0), loop(3, 1, "reduce")
    out = np.zeros(5, np.int64)
    sink = kernel(store(buffer(0, (5,), INT64), i, fold("add", i, k), i))
    check(sink, [out])
    interpret(sink, [out])
    assert out.tolist() == [0, 3, 6, 9, 12]


@pytest.mark.parametrize("n", [50, 64])
def test_reversed_and_strided_reads(n: int) -> None:
    i = loop(n, 0)
    x = buffer(1, (3 * n,), F32)
    back = load(x, plus((i, -1), n - 1))
    every = load(x, plus((i, 3), 2))
    sink = kernel(store(buffer(0, (n,), F32), i, node(Op.SUB, back, every), i))
    check(sink, [zeros(n), normal(3 * n)])


def test_a_strided_store() -> None:
    i = loop(50, 0)
    sink = kernel(store(buffer(0, (100,), F32), plus((i, 2), 1), load(buffer(1, (50,), F32), i), i))
    check(sink, [normal(100), normal(50)])


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_is_interleaved_in_memory(dtype: str) -> None:
    n = 37
    i = loop(n, 0)
    x = buffer(1, (2 * n,), dtype)
    value = node(Op.ADD, load(x, i), load(x, plus((i, 2))))
    sink = kernel(store(buffer(0, (n,), dtype), i, value, i))
    check(sink, [zeros(n, dtype=dtype), normal(2 * n, dtype=dtype)])


# --- reductions ----------------------------------------------------------------------------------


REDUCTIONS = [
    (dtype, kind)
    for dtype in ("float32", "float64", "int32", "uint8", "int64", "bool", "complex64")
    for kind in ("add", "mul", "max", "min", "and", "or", "xor")
    if not (kind in ("and", "or", "xor") and dtype[0] in "fc")
    and not (dtype == "complex64" and kind in ("max", "min"))
]


def some(dtype: str, *shape: int) -> Any:
    if dtype == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    if dtype[0] in "fc":
        return (normal(*shape, dtype=dtype) * 0.5 + 1).astype(dtype)
    return RNG.integers(0, 100, shape).astype(dtype)


@pytest.mark.parametrize("dtype, kind", REDUCTIONS)
def test_reduce_the_last_axis(dtype: str, kind: str) -> None:
    tolerance = 2e-5 if dtype[0] in "fc" and kind in ("add", "mul") else 0
    for n in (3, 33, 130):
        i, k = loop(7, 0), loop(n, 1, "reduce")
        x = load(buffer(1, (7, n), dtype), plus((i, n), k))
        sink = kernel(store(buffer(0, (7,), dtype), i, fold(kind, x, k), i))
        check(sink, [zeros(7, dtype=dtype), some(dtype, 7, n)], tolerance)


@pytest.mark.parametrize("dtype, kind", REDUCTIONS)
def test_reduce_the_first_axis(dtype: str, kind: str) -> None:
    tolerance = 2e-5 if dtype[0] in "fc" and kind in ("add", "mul") else 0
    for m, n in ((5, 40), (19, 150)):
        i, k = loop(n, 0), loop(m, 1, "reduce")
        x = load(buffer(1, (m, n), dtype), plus((k, n), i))
        sink = kernel(store(buffer(0, (n,), dtype), i, fold(kind, x, k), i))
        check(sink, [zeros(n, dtype=dtype), some(dtype, m, n)], tolerance)


def test_nan_wins_in_max_and_min_whatever_its_place() -> None:
    for place, kind in itertools.product((0, 5, 16, 63, 70), ("max", "min")):
        x = normal(2, 71)
        x[1, place] = np.nan
        i, k = loop(2, 0), loop(71, 1, "reduce")
        value = fold(kind, load(buffer(1, (2, 71), F32), plus((i, 71), k)), k)
        check(kernel(store(buffer(0, (2,), F32), i, value, i)), [zeros(2), x])


def test_reduce_two_separate_axes() -> None:
    a, b, c = loop(5, 0, "reduce"), loop(6, 1), loop(20, 2, "reduce")
    x = load(buffer(1, (5, 6, 20), F32), plus((a, 120), (b, 20), c))
    sink = kernel(store(buffer(0, (6,), F32), b, fold("add", x, c, a), b))
    check(sink, [zeros(6), normal(5, 6, 20)], 1e-5)


def test_bfloat16_sums_in_float32_and_rounds_once() -> None:
    i, k = loop(3, 0), loop(100, 1, "reduce")
    x = cast(load(buffer(1, (3, 100), BF16), plus((i, 100), k)), F32)
    sink = kernel(store(buffer(0, (3,), BF16), i, cast(fold("add", x, k), BF16), i))
    data = normal(3, 100, dtype=BF16)
    check(sink, [zeros(3, dtype=BF16), data], 1e-2)
    i = loop(3, 0)
    largest = fold("max", load(buffer(1, (3, 100), BF16), plus((i, 100), k)), k)
    check(kernel(store(buffer(0, (3,), BF16), i, largest, i)), [zeros(3, dtype=BF16), data])


def test_a_long_sum_is_accurate() -> None:
    """A million ones and small numbers: one accumulator in sequence would be off by far more."""
    n = 1 << 20
    k = loop(n, 0, "reduce")
    sink = kernel(
        store(buffer(0, (), F32), literal(0), fold("add", load(buffer(1, (n,), F32), k), k))
    )
    x = RNG.random(n, dtype=F32)
    out = zeros()
    Compiled(sink).run([out, x])
    exact = x.astype(np.float64).sum()
    assert abs(float(out) - exact) <= 1e-6 * exact


def test_a_matrix_product_as_multiply_and_add() -> None:
    m, n, k = loop(9, 0), loop(40, 1), loop(21, 2, "reduce")
    a = load(buffer(1, (9, 21), F32), plus((m, 21), k))
    b = load(buffer(2, (21, 40), F32), plus((k, 40), n))
    sink = kernel(
        store(buffer(0, (9, 40), F32), plus((m, 40), n), fold("add", node(Op.MUL, a, b), k), m, n)
    )
    check(sink, [zeros(9, 40), normal(9, 21), normal(21, 40)], 1e-5)


def test_a_reduction_inside_a_reduction() -> None:
    i, r, s = loop(4, 0), loop(30, 1, "reduce"), loop(20, 2, "reduce")
    x = load(buffer(1, (4, 30, 20), F32), plus((i, 600), (r, 20), s))
    inner = fold("max", x, s)
    outer = fold("add", node(Op.MUL, inner, inner), r)
    check(kernel(store(buffer(0, (4,), F32), i, outer, i)), [zeros(4), normal(4, 30, 20)], 1e-5)


# --- several sweeps ------------------------------------------------------------------------------


def rows(slot: int, i: UOp, n: int) -> Any:
    return lambda k: load(buffer(slot, (9, n), F32), plus((i, n), k))


@pytest.mark.parametrize("n", [5, 64, 70])
def test_softmax_is_three_sweeps_over_a_row(n: int) -> None:
    i, a, b, j = loop(9, 0), loop(n, 1, "reduce"), loop(n, 2, "reduce"), loop(n, 3)
    x = rows(1, i, n)
    largest = fold("max", x(a), a)
    total = fold("add", node(Op.EXP, node(Op.SUB, x(b), largest)), b)
    value = node(Op.DIV, node(Op.EXP, node(Op.SUB, x(j), largest)), total)
    sink = kernel(store(buffer(0, (9, n), F32), plus((i, n), j), value, i, j))
    made = check(sink, [zeros(9, n), normal(9, n)], 2e-6)
    assert made.code.listing.count("for r") == 4


def test_layernorm_and_its_statistics_are_stored_by_one_kernel() -> None:
    n = 50
    i, a, b, j = loop(9, 0), loop(n, 1, "reduce"), loop(n, 2, "reduce"), loop(n, 3)
    x = rows(2, i, n)
    mean = node(Op.MUL, fold("add", x(a), a), 1 / n)
    offset = node(Op.SUB, x(b), mean)
    variance = node(Op.MUL, fold("add", node(Op.MUL, offset, offset), b), 1 / n)
    scale = node(Op.RSQRT, node(Op.ADD, variance, 1e-5))
    value = node(Op.MUL, node(Op.SUB, x(j), mean), scale)
    value = node(Op.ADD, value, load(buffer(3, (n,), F32), j))
    sink = kernel(
        store(buffer(0, (9, n), F32), plus((i, n), j), value, i, j),
        store(buffer(1, (9,), F32), i, scale, i),
    )
    check(sink, [zeros(9, n), zeros(9), normal(9, n), normal(n)], 1e-5)


def test_outputs_over_different_loops() -> None:
    i, j = loop(9, 0), loop(33, 1)
    x = load(buffer(2, (9, 33), F32), plus((i, 33), j))
    k = loop(33, 2, "reduce")
    total = fold("add", load(buffer(2, (9, 33), F32), plus((i, 33), k)), k)
    sink = kernel(
        store(buffer(0, (9, 33), F32), plus((i, 33), j), node(Op.NEG, x), i, j),
        store(buffer(1, (9,), F32), i, total, i),
    )
    check(sink, [zeros(9, 33), zeros(9), normal(9, 33)], 1e-5)


# --- argmax --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint32", "bfloat16", "float64", "bool"])
def test_arg_reduction_along_the_last_axis(kind: str, dtype: str) -> None:
    of = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    for n in (4, 70, 300):
        i, k = loop(6, 0), loop(n, 1, "reduce")
        x = load(buffer(2, (6, n), of), plus((i, n), k))
        both = UOp(Op.FOLD, (x, cast(k, np.int32), k), kind)
        sink = kernel(
            store(buffer(0, (6,), of), i, get(both, 0), i),
            store(buffer(1, (6,), np.int32), i, get(both, 1), i),
        )
        data = RNG.integers(0, 5, (6, n)).astype(of)
        if of.kind != "b" and of.kind not in "iu":
            data[1, 2] = data[1, 3] = np.nan
            data[2] = -np.inf
            data[3] = np.inf
        check(sink, [zeros(6, dtype=of), zeros(6, dtype=np.int32), data])


def test_arg_reduction_along_the_first_axis() -> None:
    i, k = loop(75, 0), loop(40, 1, "reduce")
    x = load(buffer(1, (40, 75), F32), plus((k, 75), i))
    both = UOp(Op.FOLD, (x, cast(k, np.int32), k), "argmax")
    data = np.round(normal(40, 75))
    data[:, 3] = -np.inf
    check(
        kernel(store(buffer(0, (75,), np.int32), i, get(both, 1), i)),
        [zeros(75, dtype=np.int32), data],
    )


# --- prefixes, scatters, gathers -----------------------------------------------------------------


def running(kind: str, x: UOp, over: UOp) -> UOp:
    return UOp(Op.PREFIX, (x, over), (kind, False))


@pytest.mark.parametrize("kind, dtype", [("add", "float32"), ("max", "int32"), ("mul", "float64"),
                                         ("min", "float32"), ("add", "complex64")])  # fmt: skip
def test_prefix_along_either_axis(kind: str, dtype: str) -> None:
    tolerance = 1e-5 if kind in ("add", "mul") else 0
    for serial in (0, 1):
        i = loop(20, 0, "serial" if serial == 0 else "loop")
        j = loop(37, 1, "serial" if serial == 1 else "loop")
        at = plus((i, 37), j)
        value = running(kind, load(buffer(1, (20, 37), dtype), at), (i, j)[serial])
        sink = kernel(store(buffer(0, (20, 37), dtype), at, value, i, j))
        check(sink, [zeros(20, 37, dtype=dtype), some(dtype, 20, 37)], tolerance)


def test_a_prefix_in_reverse_reads_and_writes_flipped() -> None:
    i = loop(33, 0, "serial")
    at = plus((i, -1), 32)
    value = running("add", load(buffer(1, (33,), F32), at), i)
    sink = kernel(store(buffer(0, (33,), F32), at, value, i))
    x = normal(33)
    made = check(sink, [zeros(33), x], 1e-5)
    out = zeros(33)
    made.run([out, x])
    close(out, x[::-1].cumsum()[::-1], 1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind, dtype", [("add", "float32"), ("max", "bfloat16"), ("add", "int8")])
def test_a_prefix_over_contiguous_elements_scans_whole_vectors(
    kind: str, dtype: str, reverse: bool
) -> None:
    of = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    for n in (16, 100, 201):
        i = loop(n, 0, "serial")
        at = plus((i, -1), n - 1) if reverse else i
        value = running(kind, load(buffer(1, (n,), of), at), i)
        sink = kernel(store(buffer(0, (n,), of), at, value, i))
        data = RNG.integers(-9, 9, n).astype(of)
        data[0] = 0
        made = check(sink, [zeros(n, dtype=of), data], 1e-6 if kind == "add" and of == F32 else 0)
        assert any("vector" in a for a in made.code.schedule)


def within(index: UOp, size: int) -> UOp:
    return node(Op.AND, node(Op.CMPLE, literal(0), index), node(Op.CMPLT, index, size))


def scatter_add(width: int) -> UOp:
    i, j = loop(30, 0, "serial"), loop(width, 1)
    row = cast(load(buffer(1, (30,), np.int32), i), np.int64)
    at = plus((row, width), j)
    out = buffer(0, (11, width), F32)
    value = node(
        Op.ADD,
        load(out, at, within(row, 11)),
        load(buffer(2, (30, width), F32), plus((i, width), j)),
    )
    return kernel(store(out, at, value, i, j, valid=within(row, 11)))


@pytest.mark.parametrize("width", [1, 5, 20, 64])
def test_scatter_add_of_rows_with_duplicates_and_bad_indices(width: int) -> None:
    index = RNG.integers(-2, 14, 30).astype(np.int32)
    check(scatter_add(width), [normal(11, width), index, normal(30, width)], 1e-5)


def test_tasks_of_a_scatter_own_rows_of_the_destination() -> None:
    m, n, width = 4000, 300, 64
    i, j = loop(m, 0, "serial"), loop(width, 1)
    row = cast(load(buffer(1, (m,), np.int32), i), np.int64)
    at, out = plus((row, width), j), buffer(0, (n, width), F32)
    updates = load(buffer(2, (m, width), F32), plus((i, width), j))
    value = node(Op.ADD, load(out, at, within(row, n)), updates)
    made = Compiled(kernel(store(out, at, value, i, j, valid=within(row, n))))
    total = made.code.tasks.total
    assert total > 1 and any("partition" in a for a in made.code.schedule)
    index = RNG.integers(-3, n + 3, m).astype(np.int32)
    x, update = normal(n, width), normal(m, width)
    together, apart = x.copy(), x.copy()
    made.run([together, index, update])
    made.run([apart, index, update], [(t, t + 1) for t in reversed(range(total))])
    expected = x.astype(np.float64)
    ok = (index >= 0) & (index < n)
    np.add.at(expected, index[ok], update[ok].astype(np.float64))
    close(together, expected, 1e-4)
    assert together.tobytes() == apart.tobytes()


def test_gather_of_rows_fills_where_the_index_is_bad() -> None:
    i, j = loop(30, 0), loop(20, 1)
    row = cast(load(buffer(1, (30,), np.int32), i), np.int64)
    value = load(
        buffer(2, (11, 20), F32), plus((row, 20), j), within(row, 11), literal(np.nan, F32)
    )
    sink = kernel(store(buffer(0, (30, 20), F32), plus((i, 20), j), value, i, j))
    check(sink, [zeros(30, 20), RNG.integers(-2, 14, 30).astype(np.int32), normal(11, 20)])


@pytest.mark.parametrize("target", NARROW_TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64", "bool", "bfloat16", "complex64"])
def test_gather_of_single_elements(dtype: str, target: Any) -> None:
    of = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    i = loop(100, 0)
    raw = cast(load(buffer(1, (100,), np.int32), i), np.int64)
    clamped = node(Op.MAX, node(Op.MIN, raw, 49), 0)
    table = some("bool" if dtype == "bool" else "int32", 50).astype(of)
    index = RNG.integers(-5, 60, 100).astype(np.int32)
    sink = kernel(store(buffer(0, (100,), of), i, load(buffer(2, (50,), of), clamped), i))
    check(sink, [zeros(100, dtype=of), index, table], target=target)
    gated = load(buffer(2, (50,), of), raw, within(raw, 50), literal(1, of))
    sink = kernel(store(buffer(0, (100,), of), i, gated, i))
    check(sink, [zeros(100, dtype=of), index, table], target=target)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bfloat16", "complex64"])
def test_padding_reads_only_where_valid(dtype: str) -> None:
    of = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    i, j = loop(6, 0), loop(40, 1)
    row, col = plus(i, -1), plus(j, -3)
    valid = node(Op.AND, within(row, 4), within(col, 33))
    value = load(buffer(1, (4, 33), of), plus((row, 33), col), valid, literal(7, of))
    sink = kernel(store(buffer(0, (6, 40), of), plus((i, 40), j), value, i, j))
    check(sink, [zeros(6, 40, dtype=of), some("int32", 4, 33).astype(of)])


def test_quotients_and_remainders_of_indices() -> None:
    """Divided by numbers that do not divide the extent, so that divisions stay."""
    i = loop(209, 0)
    at = plus((node(Op.MOD, i, 10), 21), node(Op.IDIV, i, 10))
    sink = kernel(store(buffer(0, (209,), F32), i, load(buffer(1, (10, 21), F32), at), i))
    check(sink, [zeros(209), normal(10, 21)])


def test_a_divided_loop_variable_becomes_several() -> None:
    """[B, H, T, D] written as [B, T, H*D]: the index of the last axis is divided by D."""
    b, t, c = loop(2, 0), loop(5, 1), loop(3 * 32, 2)
    head, d = node(Op.IDIV, c, 32), node(Op.MOD, c, 32)
    x = load(buffer(1, (2, 3, 5, 32), F32), plus((b, 480), (head, 160), (t, 32), d))
    at = plus((b, 480), (t, 96), c)
    sink = kernel(store(buffer(0, (2, 5, 96), F32), at, node(Op.NEG, x), b, t, c))
    listing = check(sink, [zeros(2, 5, 96), normal(2, 3, 5, 32)]).code.listing
    assert "idiv" not in listing and "mod" not in listing and "lanes" in listing


def test_a_division_that_the_guard_decides_is_gone() -> None:
    """Three pieces joined along an axis: each is read where the quotient has its value."""
    r, c = loop(4, 0), loop(96, 1)
    which, d = node(Op.IDIV, c, 32), node(Op.MOD, c, 32)
    total: UOp | None = None
    for k in range(3):
        here = node(Op.CMPEQ, which, k)
        row = node(Op.MOD, plus(r, which, 4 - k), 4)
        value = load(buffer(1 + k, (4, 32), F32), plus((row, 32), d), here, literal(0, F32))
        total = value if total is None else node(Op.ADD, total, value)
    assert total is not None
    sink = kernel(store(buffer(0, (4, 96), F32), plus((r, 96), c), total, r, c))
    made = check(sink, [zeros(4, 96), *(normal(4, 32) for _ in range(3))])
    assert "mod" not in made.code.listing and "idiv" not in made.code.listing


def test_positions_are_values_too() -> None:
    i, j = loop(5, 0), loop(37, 1)
    at = plus((i, 37), j)
    whole = node(Op.SUB, node(Op.MUL, j, 3), i)
    sink = kernel(
        store(buffer(0, (5, 37), np.int64), at, whole, i, j),
        store(buffer(1, (5, 37), np.int32), at, cast(whole, np.int32), i, j),
        store(buffer(2, (5, 37), F32), at, cast(whole, F32), i, j),
        store(buffer(3, (5, 37), bool), at, node(Op.CMPLE, i, j), i, j),
    )
    check(sink, [zeros(5, 37, dtype=t) for t in (np.int64, np.int32, F32, bool)])


def test_index_values_in_32_bit_lanes_meet_64_bit_ones() -> None:
    """Literals, positions and loaded int64 together: alternatives, prefixes, bit casts."""
    n = 40
    i = loop(n, 0)
    valid = node(Op.CMPLT, i, 30)
    x = load(buffer(3, (30,), np.int64), i, valid, literal(1))
    r = loop(n, 1, "serial")
    sink = kernel(
        store(buffer(0, (n,), np.int64), i, node(Op.ADD, x, i), i),
        store(buffer(1, (n,), np.float64), i, node(Op.BITCAST, i, arg=np.dtype(np.float64)), i),
        store(buffer(2, (n,), np.int64), r, running("add", r, r), r),
    )
    data = RNG.integers(-(2**60), 2**60, 30)
    check(
        sink, [zeros(n, dtype=np.int64), zeros(n, dtype=np.float64), zeros(n, dtype=np.int64), data]
    )


# --- tasks, splitting, caching -------------------------------------------------------------------


def test_results_do_not_depend_on_how_tasks_are_grouped() -> None:
    i, k = loop(3000, 0), loop(500, 1, "reduce")
    x = load(buffer(1, (3000, 500), F32), plus((i, 500), k))
    sink = kernel(store(buffer(0, (3000,), F32), i, fold("add", x, k), i))
    made = Compiled(sink)
    total = made.code.tasks.total
    assert total > 8
    data = normal(3000, 500)
    results = []
    for step in (total, 1, 7):
        out = zeros(3000)
        made.run([out, data], [(a, min(a + step, total)) for a in range(0, total, step)][::-1])
        results.append(out)
    close(results[0], data.sum(1, dtype=np.float64), 1e-4)
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()


def test_tasks_over_an_elementwise_kernel_with_a_tail() -> None:
    n = 300_007
    made = Compiled(map_kernel(lambda x: node(Op.EXP, x), n, F32, F32))
    total = made.code.tasks.total
    assert total > 1
    x, out = normal(n), zeros(n)
    made.run([out, x], [(t, t + 1) for t in range(total)])
    close(out, np.exp(x.astype(np.float64)), 1e-6)


def test_tasks_over_two_loops_together() -> None:
    """Few rows, each long: tasks are (row, piece of the row)."""
    i, j = loop(3, 0), loop(300_003, 1)
    x = load(buffer(1, (3, 600_006), F32), plus((i, 600_006), j))
    sink = kernel(store(buffer(0, (3, 300_003), F32), plus((i, 300_003), j), node(Op.EXP, x), i, j))
    made = Compiled(sink)
    total = made.code.tasks.total
    assert total > 3
    data, out = normal(3, 600_006), zeros(3, 300_003)
    made.run([out, data], [(t, t + 1) for t in reversed(range(total))])
    close(out, np.exp(data[:, :300_003].astype(np.float64)), 1e-6)


@pytest.mark.parametrize("kind", ["add", "max", "argmax"])
@pytest.mark.parametrize("leading", [True, False])
def test_a_split_reduction_gives_what_the_whole_one_does(kind: str, leading: bool) -> None:
    m, n = 101, 33
    r, j = loop(m, 0, "reduce"), loop(n, 1)
    at = plus((r, n), j) if leading else plus((j, m), r)
    x = load(buffer(1, (m * n,), F32), at)
    data = np.round(normal(m * n) * 2)
    data[5] = np.nan
    value: UOp = fold(kind, x, r)
    out = F32
    if kind == "argmax":
        value, out = get(UOp(Op.FOLD, (x, cast(r, np.int32), r), kind), 1), np.dtype(np.int32)
    sink = merge_ranges(kernel(store(buffer(0, (n,), out), j, value, j)))
    split = split_folds(sink, 7)
    assert split is not None
    expected = [zeros(n, dtype=out), data]
    interpret(sink, expected)
    arrays = [zeros(n, dtype=out), data, *(np.zeros(s, np.uint8) for s in split.scratch)]
    for part in (split.partial, split.final):
        Compiled(part).run(arrays)
    close(arrays[0], expected[0], 1e-5)


def test_a_big_full_reduction_becomes_two_kernels() -> None:
    n = 1 << 22
    k = loop(n, 0, "reduce")
    sink = kernel(
        store(buffer(0, (), F32), literal(0), fold("add", load(buffer(1, (n,), F32), k), k))
    )
    first, second = compile_kernels(sink)
    assert first.tasks.total >= 8 and second.tasks.total == 1 and first.scratch == second.scratch


def test_equal_kernels_are_compiled_once() -> None:
    def make() -> UOp:
        return map_kernel(lambda x: node(Op.ADD, x, 1.0), 64, F32, F32)

    assert make() is make()
    assert compile_kernels(make()) is compile_kernels(make())
    assert compile_kernel(make()).ir_text == compile_kernel(make()).ir_text


def test_the_listing_reads_as_a_program() -> None:
    i, k = loop(7, 0), loop(64, 1, "reduce")
    x = load(buffer(1, (7, 64), F32), plus((i, 64), k))
    sink = kernel(store(buffer(0, (7,), F32), i, node(Op.NEG, fold("add", x, k)), i))
    made = compile_kernel(sink)
    assert [line.strip().split(" lanes")[0] for line in made.listing.splitlines()] == [
        "for r0 in 7 loop:",
        "for r1 in 64 reduce",
        "v0: f32[] = load slot1[r0*64 + r1]",
        "v1 add= v0",
        "v2: f32[] = neg v1",
        "slot0[r0] = v2",
    ]


@pytest.mark.parametrize("target", NARROW_TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("divisor", [3, 7, 8, 10, 641, 100_003])
@pytest.mark.parametrize("scale, shift", [(1, 0), (3, -500), (1 << 20, -(1 << 28)), (1 << 33, -1)])
def test_index_division_rounds_down_for_every_size_and_sign(
    divisor: int, scale: int, shift: int, target: Any
) -> None:
    """Quotients and remainders as numbers, in 32-bit lanes and in 64-bit ones."""
    i = loop(397, 0)
    x = plus((i, scale), shift)
    out = buffer(0, (397,), np.int64), buffer(1, (397,), np.int64)
    sink = kernel(
        store(out[0], i, node(Op.IDIV, x, divisor), i),
        store(out[1], i, node(Op.MOD, x, divisor), i),
    )
    check(sink, [zeros(397, dtype=np.int64), zeros(397, dtype=np.int64)], target=target)


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x: (x[:, 5].astype("int32") * 3).sum(), (16, 150_000_000)),
        (lambda x: x.reshape(-1, 2).max(0), (2_200_000_000,)),
        (lambda x: (x[:, 5:8] * jnp.float32(2)).T @ jnp.ones((16, 40)), (16, 150_000_000)),
    ],
    ids=["column", "rows", "product"],
)
def test_offsets_of_lanes_have_64_bits_where_32_are_too_few(f: Any, shape: Any) -> None:
    """As 32-bit numbers the last offsets are negative."""
    text = str(tinyjax.jit(f).lower(tinyjax.ShapeDtypeStruct(shape, "uint8")).llvm)
    offsets = [line for line in text.splitlines() if "getelementptr" in line and "00000" in line]
    assert offsets and all("i64 0, i64 " in line and " -" not in line for line in offsets)
