"""Group bodies -> kernels: index rules as text, values through the stage-2 interpreter."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.golden import assert_text
from tests.lowering.bodies import F32, I32, arg, normal, rows, scalar, softmax
from tinyjax.core import build as B
from tinyjax.core.infos import GatherInfo, ScatterInfo
from tinyjax.core.kernel_text import print_kernel
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, nodes_created, toposort, tuple_of
from tinyjax.lowering.inline import inline
from tinyjax.lowering.interpret import interpret
from tinyjax.lowering.rangeify import domain_of, is_update, rangeify, threefry2x32

X, Y = arg(0, (4, 6)), arg(1, (4, 6))
x, y = normal(0, 4, 6), normal(1, 4, 6)


def sink_of(*outputs: UOp) -> UOp:
    return rangeify(inline(tuple_of(list(outputs))))


def text(*outputs: UOp) -> str:
    return print_kernel(sink_of(*outputs))


def loops(*outputs: UOp) -> list[str]:
    """The loops of a kernel as printed: extent and kind."""
    return re.findall(r"for r\d+ in (.*):", text(*outputs))


def values(outputs: list[UOp], args: list[Any]) -> list[np.ndarray]:
    """What the kernel leaves in its outputs."""
    body = inline(tuple_of(outputs))
    if is_update(body):
        made = [args[0].copy()]
        interpret(rangeify(body), made + list(args[1:]))
        return made
    made = [np.zeros(o.shape, o.dtype) for o in body.src]
    interpret(rangeify(body), made + list(args))
    return made


def check(outputs: list[UOp], args: list[Any], *expected: Any) -> None:
    for found, want in zip(values(outputs, args), expected, strict=True):
        np.testing.assert_allclose(found, np.asarray(want), rtol=1e-5, atol=1e-6)


def test_elementwise_over_all_axes():
    assert_text(
        text(B.add(X, B.mul(Y, scalar(2)))),
        """
        kernel(p0: f32[4,6], p1: f32[4,6], p2: f32[4,6]):
          for r0 in 0..4 (loop):
            for r1 in 0..6 (loop):
              a = r0*6 + r1
              p0[a] = p1[a] + p2[a]*2.0""",
    )


def test_softmax_is_three_sweeps_over_a_row_and_its_sum_a_second_output():
    e = B.exp(B.sub(X, rows(B.reduce("max", X, [1]), X)))
    total = B.sum_(e, [1])
    assert_text(
        text(B.div(e, rows(total, e)), total),
        """
        kernel(p0: f32[4,6], p1: f32[4], p2: f32[4,6]):
          for r0 in 0..4 (loop):
            a = r0*6
            c = max of nothing
            for r2 in 0..6 (reduce):
              c = max(c, p2[a + r2])
            d = add of nothing
            for r3 in 0..6 (reduce):
              d += exp(p2[a + r3] - c)
            for r1 in 0..6 (loop):
              b = a + r1
              p0[b] = exp(p2[b] - c)/d
            p1[r0] = d""",
    )
    weights = np.exp(x - x.max(1, keepdims=True))
    check(
        [B.div(e, rows(total, e)), total],
        [x],
        weights / weights.sum(1, keepdims=True),
        weights.sum(1),
    )


def test_independent_folds_of_one_row_share_their_sweep():
    sink = sink_of(B.add(B.sum_(X, [1]), B.sum_(B.mul(X, X), [1])))
    folds = [n for n in toposort([sink]) if n.op is Op.FOLD]
    assert len(folds) == 2 and folds[0].src[1] is folds[1].src[1]


def test_a_fold_that_needs_another_has_loops_of_its_own():
    sink = sink_of(softmax(X))
    loops = {n.src[1] for n in toposort([sink]) if n.op is Op.FOLD}
    assert len(loops) == 2


def test_a_permuted_reshape_keeps_the_axes_of_its_source():
    node = B.reshape(B.permute(B.reshape(X, (4, 2, 3)), (1, 0, 2)), (8, 3))
    assert domain_of([node]) == (2, 4, 3)
    assert_text(
        text(node),
        """
        kernel(p0: f32[8,3], p1: f32[4,6]):
          for r0 in 0..2 (loop):
            for r1 in 0..4 (loop):
              for r2 in 0..3 (loop):
                p0[r0*12 + r1*3 + r2] = p1[r0*3 + r1*6 + r2]""",
    )
    check([node], [x], x.reshape(4, 2, 3).transpose(1, 0, 2).reshape(8, 3))


@pytest.mark.parametrize("shape", [(24,), (2, 12), (3, 8), (2, 2, 6), (1, 4, 6, 1)])
def test_reshapes_never_leave_division(shape):
    sink = sink_of(B.exp(B.reshape(B.neg(B.reshape(X, shape)), (4, 6))))
    assert not any(n.op in (Op.IDIV, Op.MOD) for n in toposort([sink]))
    check([B.exp(B.reshape(B.neg(B.reshape(X, shape)), (4, 6)))], [x], np.exp(-x))


def test_concat_selects_by_position_and_guards_its_loads():
    assert_text(
        text(B.concat([X, Y], 0)),
        """
        kernel(p0: f32[8,6], p1: f32[4,6], p2: f32[4,6]):
          for r0 in 0..8 (loop):
            b = r0 < 4
            for r1 in 0..6 (loop):
              a = r0*6 + r1
              c = where(b, p1[a if b] else 0.0, p2[a - 24 if 4 <= r0] else 0.0)
              p0[a] = c""",
    )
    check([B.concat([X, Y, X], 0)], [x, y], np.concatenate([x, y, x]))


def test_pad_takes_its_fill_as_the_alternative_of_the_load():
    assert_text(
        text(B.pad(X, [(1, 2, 0), (0, 0, 1)], scalar(7))),
        """
        kernel(p0: f32[7,11], p1: f32[4,6]):
          for r0 in 0..7 (loop):
            for r1 in 0..11 (loop):
              p0[r0*11 + r1] = p1[r0*6 + r1//2 - 6 if r0 < 5 & 1 <= r0 & r1%2 < 1] else 7.0""",
    )
    wanted = np.full((7, 11), 7, np.float32)
    wanted[1:5, ::2] = x
    check([B.pad(X, [(1, 2, 0), (0, 0, 1)], scalar(7))], [x], wanted)


def test_negative_padding_crops():
    check([B.pad(X, [(-1, 1, 0), (0, -2, 0)])], [x], np.pad(x[1:, :4], ((0, 1), (0, 0))))


def test_sums_below_a_pad_and_pads_below_a_sum():
    check([B.pad(B.sum_(X, [1]), [(1, 1, 0)])], [x], np.pad(x.sum(1), 1))
    check([B.sum_(B.pad(X, [(1, 1, 0), (2, 0, 0)], scalar(1)), [1])], [x], [8, *(x.sum(1) + 2), 8])


def test_movement_ops_are_index_maps():
    check([B.flip(B.slice_(X, (0, 1), (4, 6), (2, 2)), (1,))], [x], x[::2, 1::2][:, ::-1])
    windows = np.stack([x[:, i : i + 3] for i in (0, 2)], 1)
    check([B.window(X, 1, 3, 2)], [x], windows)
    check([B.window(X, 1, 3, 1, 2)], [x], np.stack([x[:, i : i + 5 : 2] for i in (0, 1)], 1))
    check([B.sum_(B.window(X, 1, 3, 2), [2])], [x], windows.sum(2))
    check([B.expand(B.sum_(X, [1]), (3, 4), (1,))], [x], np.broadcast_to(x.sum(1), (3, 4)))


def test_iota_has_its_dtype():
    (found,) = values([B.iota((3, 4), 1, np.int8)], [])
    assert found.dtype == np.int8 and found.tolist() == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_sums_run_in_float32_and_round_once(dtype):
    import ml_dtypes

    dt = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    sink = sink_of(B.sum_(arg(0, (300,), dt), [0]))
    (fold,) = [n for n in toposort([sink]) if n.op is Op.FOLD]
    assert fold.aval.dtype == np.float32
    ones = np.full(300, 1.0078125 if dtype == "bfloat16" else 1.001, dt)
    (found,) = values([B.sum_(arg(0, (300,), dt), [0])], [ones])
    assert found == np.asarray(ones.astype(np.float32).sum(), dt)


def test_argmax_folds_value_and_index_together():
    assert_text(
        text(B.argreduce("max", X, 1)[1]),
        """
        kernel(p0: i32[4], p1: f32[4,6]):
          for r0 in 0..4 (loop):
            a = argmax of nothing
            for r1 in 0..6 (reduce):
              a = argmax(a, p1[r0*6 + r1], i32(r1))
            p0[r0] = a.1""",
    )
    check([B.argreduce("min", X, 0)[1]], [x], x.argmin(0))
    one = arg(0, (4, 1))
    check(list(B.argreduce("max", one, 1)), [x[:, :1]], x[:, 0], np.zeros(4))


def test_prefix_runs_serially_and_backwards_by_its_index():
    assert_text(
        text(B.prefix("add", X, 1, True)),
        """
        kernel(p0: f32[4,6], p1: f32[4,6]):
          for r0 in 0..4 (loop):
            for r1 in 0..6 (serial):
              a = r0*6 - r1 + 5
              p0[a] = prefix_add(p1[a], r1)""",
    )
    check([B.prefix("add", X, 1, True)], [x], x[:, ::-1].cumsum(1)[:, ::-1])
    check([B.prefix("max", B.neg(X), 0)], [x], np.maximum.accumulate(-x, 0))


INDEX = np.array([[1], [7], [3], [-1]], np.int32)


@pytest.mark.parametrize("mode", ["fill", "clip"])
def test_gather_modes_for_rows_out_of_bounds(mode):
    node = B.gather(X, arg(1, (4, 1), I32), GatherInfo((1,), (0,), (0,), (1, 6), mode=mode))
    inside = (INDEX[:, 0] >= 0) & (INDEX[:, 0] < 4)
    wanted = x[np.clip(INDEX[:, 0], 0, 3)]
    if mode == "fill":
        wanted = np.where(inside[:, None], wanted, np.nan)
    check([node], [x, INDEX], wanted)


def test_gather_fills_with_its_operand_and_promises_need_no_guard():
    node = B.gather(X, arg(1, (4, 1), I32), GatherInfo((1,), (0,), (0,), (1, 6)), scalar(5))
    check([node], [x, INDEX], [x[1], [5] * 6, x[3], [5] * 6])
    promised = GatherInfo((1,), (0,), (0,), (1, 6), mode="promise_in_bounds")
    sink = sink_of(B.gather(X, arg(1, (4, 1), I32), promised))
    assert all(len(n.src) == 2 for n in toposort([sink]) if n.op is Op.INDEX)


def test_gather_with_batching_dims_takes_along_rows():
    info = GatherInfo((), (1,), (1,), (1, 1), (0,), (0,))
    index = np.array([[[5], [0]], [[1], [1]], [[2], [9]], [[0], [3]]], np.int32)
    node = B.gather(X, arg(1, (4, 2, 1), I32), info)
    wanted = [[x[i, j] if j < 6 else np.nan for (j,) in index[i]] for i in range(4)]
    check([node], [x, index], wanted)


def scattered(kind: str, mode: str) -> np.ndarray:
    out = x.copy()
    for (i,), row in zip(INDEX, y):
        if mode == "clip":
            i = min(max(i, 0), 3)
        elif not 0 <= i < 4:
            continue
        combine = {
            "set": lambda a, b: b,
            "add": np.add,
            "mul": np.multiply,
            "min": np.minimum,
            "max": np.maximum,
        }
        out[i] = combine[kind](out[i], row)
    return out


@pytest.mark.parametrize("mode", ["fill", "clip"])
@pytest.mark.parametrize("kind", ["set", "add", "mul", "min", "max"])
def test_scatter_kinds_and_modes(kind, mode):
    info = ScatterInfo(kind, (1,), (0,), (0,), mode=mode)
    check(
        [B.scatter(X, arg(1, (4, 1), I32), arg(2, (4, 6)), info)],
        [x, INDEX, y],
        scattered(kind, mode),
    )


def test_scatter_rows_keep_their_order_and_columns_are_free():
    info = ScatterInfo("add", (1,), (0,), (0,))
    node = B.scatter(X, arg(1, (4, 1), I32), arg(2, (4, 6)), info)
    assert loops(node) == ["0..6 (loop)", "0..4 (serial)"]
    unique = ScatterInfo("add", (1,), (0,), (0,), unique_indices=True)
    node = B.scatter(X, arg(1, (4, 1), I32), arg(2, (4, 6)), unique)
    assert loops(node) == ["0..4 (loop)", "0..6 (loop)"]


def test_scatter_windows_that_move_are_serial():
    info = ScatterInfo("add", (1,), (), (0,))  # windows of 2 along the scattered axis
    vector, index, update = arg(0, (6,)), arg(1, (3, 1), I32), arg(2, (3, 2))
    node = B.scatter(vector, index, update, info)
    assert loops(node) == ["0..3 (serial)", "0..2 (serial)"]
    at, wanted = np.array([[0], [1], [5]], np.int32), x[0].copy()
    wanted[0:2] += y[0, :2]
    wanted[1:3] += y[1, :2]  # the window at 5 does not fit: dropped as a whole
    check([node], [x[0], at, y[:3, :2].copy()], wanted)


def test_dynamic_slice_and_update_clamp_their_starts():
    starts = [np.array(3, np.int32), np.array(-2, np.int32)]
    node = B.dynamic_slice(X, [arg(1, (), I32), arg(2, (), I32)], (2, 3))
    check([node], [x, *starts], x[2:4, 0:3])
    wanted = x.copy()
    wanted[2:4, 0:3] = y[:2, :3]
    update = B.dynamic_update(X, arg(1, (2, 3)), [arg(2, (), I32), arg(3, (), I32)])
    check([update], [x, y[:2, :3].copy(), *starts], wanted)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint64])
def test_starts_of_any_integer_dtype(dtype):
    big = np.array(np.iinfo(dtype).max, dtype)
    check([B.dynamic_slice(X, [arg(1, (), dtype), arg(1, (), dtype)], (2, 3))], [x, big], x[2:, 3:])


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_random_bits_are_jax_bits(width):
    jax = pytest.importorskip("jax")
    key = np.array([1234567, 42], np.uint32)
    with jax.enable_x64(True):
        wanted = jax.random.bits(jax.random.wrap_key_data(key), (3, 5), f"uint{width}")
    (found,) = values([B.random_bits(arg(0, (2,), np.uint32), (3, 5), width)], [key])
    np.testing.assert_array_equal(found, np.asarray(wanted))


def test_random_bits_of_batched_keys_are_those_of_each_key():
    pairs = np.array([[1, 2], [3, 4], [5, 6]], np.uint32)
    (found,) = values([B.random_bits(arg(0, (3, 2), np.uint32), (4,), 32)], [pairs])
    for row, key in zip(found, pairs):
        (one,) = values([B.random_bits(arg(0, (2,), np.uint32), (4,), 32)], [key])
        np.testing.assert_array_equal(row, one)


def test_threefry_matches_the_published_vector():
    zero = scalar(0, np.uint32)
    words = threefry2x32(zero, zero, zero, zero)
    (found,) = values([B.concat([B.reshape(w, (1,)) for w in words], 0)], [])
    assert [hex(w) for w in found] == ["0x6b200159", "0x99ba4efe"]


def test_equal_groups_are_rangeified_once():
    body = tuple_of([B.add(X, scalar(1.5))])
    first = rangeify(body)
    before = nodes_created()
    assert rangeify(tuple_of([B.add(X, scalar(1.5))])) is first
    assert nodes_created() == before


def test_deep_expressions_need_no_recursion():
    node = X
    for _ in range(3000):
        node = B.sin(node)
    assert len(toposort([sink_of(node)])) > 3000
    assert F32 == node.dtype
