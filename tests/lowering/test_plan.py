"""Order, lifetimes, in-place decisions and loops, as text and as counts of bytes."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

import tinyjax
from tests.lowering.bodies import F32, I32, arg, check, normal, scalar, transformer
from tinyjax.core import build as B
from tinyjax.core import memory
from tinyjax.core.avals import aval
from tinyjax.core.infos import ScanInfo, ScatterInfo, WhileInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, get, tuple_of
from tinyjax.lowering.plan import Slot, allocate, schedule_of
from tinyjax.lowering.program import lower
from tinyjax.lowering.target import host
from tinyjax.runtime import buffers

N = 1 << 14
BIG = 4 * N


def golden(found: str, wanted: str) -> None:
    assert found == textwrap.dedent(wanted).strip("\n")


def slot(first: int, last: int, nbytes: int) -> Slot:
    return Slot("arena", aval((nbytes,), np.dtype(np.uint8)), "s", first, last)


def test_slots_with_separate_lifetimes_share_bytes():
    slots = [slot(0, 1, 128), slot(1, 2, 64), slot(2, 3, 128), slot(3, 4, 64)]
    assert allocate(slots) == (192, 192)
    assert slots[0].offset == slots[2].offset


@pytest.mark.parametrize("seed", range(30))
def test_no_two_live_slots_overlap(seed):
    rng = np.random.default_rng(seed)
    slots = []
    for _ in range(60):
        first = int(rng.integers(0, 50))
        slots.append(slot(first, first + int(rng.integers(0, 12)), int(rng.integers(1, 4000))))
    top, peak = allocate(slots)
    live = max(
        sum(-(-s.nbytes // 64) * 64 for s in slots if s.first <= t <= s.last) for t in range(64)
    )
    assert peak == live <= top <= 1.5 * live
    for a in slots:
        assert a.offset % 64 == 0
        for b in slots:
            if a is not b and a.first <= b.last and b.first <= a.last:
                assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def test_a_chain_of_contractions_needs_two_buffers():
    x = arg(0, (128, 128))
    for i in range(6):
        x = B.dot(x, arg(1 + i, (128, 128)), ((1,), (0,)))
    assert lower(tuple_of([x])).plan.arena_bytes == 2 * 4 * 128 * 128


def test_outputs_that_are_inputs_or_repeated_are_copied():
    x = arg(0, (4,))
    y = B.exp(x)
    low = check([x, y, B.reshape(y, (2, 2)), x], [normal(0, 4)], [
        normal(0, 4), np.exp(normal(0, 4)), np.exp(normal(0, 4)).reshape(2, 2), normal(0, 4)
    ])  # fmt: skip
    golden(
        low.schedule,
        """
        k0.exp out1:f32[4], in0:f32[4]
        copy out0:f32[4] from in0:f32[4]
        copy out2:f32[2,2] from out1:f32[4]
        copy out3:f32[4] from in0:f32[4]
        """,
    )
    assert low.plan.notes == [
        "out0 is copied: it is an input",
        "out2 is copied: it is also another output",
        "out3 is copied: it is an input",
    ]


def test_values_without_elements_have_no_steps():
    empty = arg(0, (0, 4))
    low = check(
        [B.exp(empty), B.sum_(empty, [0]), B.reduce("max", empty, [0])],
        [np.zeros((0, 4), np.float32)],
        [np.zeros((0, 4)), np.zeros(4), np.full(4, -np.inf)],
    )
    assert low.plan.arena_bytes == 0
    check(
        [B.concat([empty, arg(1, (2, 4))], 0)],
        [np.zeros((0, 4)), normal(0, 2, 4)],
        [normal(0, 2, 4)],
    )
    check(
        [B.dot(arg(0, (3, 0)), arg(1, (0, 2)), ((1,), (0,)))],
        [np.zeros((3, 0)), np.zeros((0, 2))],
        [np.zeros((3, 2))],
    )


def test_scalars_and_constants_are_outputs():
    x = arg(0, ())
    check([B.add(x, scalar(1)), scalar(5), B.iota((3,), 0)], [np.float32(2)], [3.0, 5.0, [0, 1, 2]])


# --- updates --------------------------------------------------------------------------------------


def put(x: UOp, at: int, value: UOp) -> UOp:
    return B.dynamic_update(x, value, [scalar(at, I32)])


def test_an_update_of_a_dying_temporary_is_in_place_in_the_result():
    x = B.exp(arg(0, (8,)))
    low = check([put(x, 2, arg(1, (3,)))], [normal(0, 8), normal(1, 3)], [
        np.concatenate([np.exp(normal(0, 8))[:2], normal(1, 3), np.exp(normal(0, 8))[5:]])
    ])  # fmt: skip
    golden(
        low.schedule,
        """
        k0.exp out0:f32[8], in0:f32[8]
        k1.dynamic_update out0:f32[8], in1:f32[3]
        """,
    )
    assert low.plan.notes == ["main: dynamic_update f32[8] in place in out0"]


def test_an_update_of_an_argument_copies_it_unless_it_is_donated():
    body = tuple_of([put(arg(0, (8,)), 2, arg(1, (3,)))])
    low = lower(body)
    assert low.plan.notes == [
        "main: dynamic_update f32[8] copies its operand: the caller keeps in0"
    ]
    given = lower(body, 2, frozenset({0}))
    assert given.plan.aliases == {0: 0}
    assert given.schedule == "k0.dynamic_update in0:f32[8], in1:f32[3]"
    (found,) = given.interpret([normal(0, 8), normal(1, 3)])
    np.testing.assert_array_equal(found[2:5], normal(1, 3))


def test_readers_of_the_old_value_run_before_the_update():
    x = B.exp(arg(0, (8,)))
    new = put(x, 0, arg(1, (3,)))
    old = np.exp(normal(0, 8))
    low = check(
        [new, B.prefix("add", x, 0)],
        [normal(0, 8), normal(1, 3)],
        [np.concatenate([normal(1, 3), old[3:]]), old.cumsum()],
    )
    assert "in place" in low.plan.notes[0]


def test_a_reader_that_needs_the_update_first_forces_a_copy():
    x = B.exp(arg(0, (8,)))
    new = put(x, 0, arg(1, (3,)))
    both = B.prefix("add", B.mul(x, new), 0)
    old = np.exp(normal(0, 8))
    low = check(
        [both],
        [normal(0, 8), normal(1, 3)],
        [(old * np.concatenate([normal(1, 3), old[3:]])).cumsum()],
    )
    assert any("reads the old value later" in n for n in low.plan.notes)


def test_an_old_value_that_is_a_result_is_kept():
    x = B.exp(arg(0, (8,)))
    old = np.exp(normal(0, 8))
    low = check(
        [put(x, 0, arg(1, (3,))), x],
        [normal(0, 8), normal(1, 3)],
        [np.concatenate([normal(1, 3), old[3:]]), old],
    )
    assert any("the old value is a result" in n for n in low.plan.notes)


def test_an_update_with_values_read_from_its_operand_through_a_flip_copies():
    x = B.exp(arg(0, (8,)))
    old = np.exp(normal(0, 8))
    low = check([put(x, 0, B.slice_(B.flip(x, (0,)), (0,), (4,)))], [normal(0, 8)], [
        np.concatenate([old[::-1][:4], old[4:]])
    ])  # fmt: skip
    assert any("reads its own operand" in n for n in low.plan.notes)


def test_a_chain_of_updates_is_one_buffer():
    x = B.full((64,), scalar(0))
    for i in range(10):
        x = put(x, 3 * i, arg(i, (3,)))
    args = [normal(i, 3) for i in range(10)]
    wanted = np.zeros(64, np.float32)
    wanted[:30] = np.concatenate(args)
    low = check([x], args, [wanted])
    assert low.plan.arena_bytes == 0 and not any("copies" in n for n in low.plan.notes)


def test_writing_one_element_moves_one_element():
    x, index = arg(0, (1000,)), arg(1, (1, 1), I32)
    node = B.scatter(x, index, arg(2, (1,)), ScatterInfo("set", (), (0,), (0,)))
    low = lower(tuple_of([node]), 3, frozenset({0}))
    assert low.schedule == "k0.scatter in0:f32[1000], in1:i32[1,1], in2:f32[1]"


# --- loops ------------------------------------------------------------------------------------------


def scan(body: list[UOp], info: ScanInfo, *operands: UOp) -> list[UOp]:
    node = UOp(Op.SCAN, (tuple_of(body), *operands), info)
    return [get(node, i) for i in range(len(node.aval.elts))]


def sums(reverse: bool) -> list[UOp]:
    c, v = arg(0, (3,)), arg(1, (3,))
    return scan(
        [B.add(c, v), B.mul(c, v)], ScanInfo(0, 1, 5, reverse), arg(0, (3,)), arg(1, (5, 3))
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_carries_go_back_and_forth_and_xs_advance(reverse):
    start, xs = normal(0, 3), normal(1, 5, 3)
    c, ys = start.copy(), np.zeros((5, 3), np.float32)
    for t in range(4, -1, -1) if reverse else range(5):
        ys[t], c = c * xs[t], c + xs[t]
    low = check(sums(reverse), [start, xs], [c, ys])
    step = "-= 12" if reverse else "+= 12"
    golden(
        low.schedule.replace("+= -12", "-= 12"),
        f"""
        copy t0:f32[3] from in0:f32[3]
        p0 = t0
        p1 = out0
        p2 = in1{" + 48" if reverse else ""}
        p3 = out1{" + 48" if reverse else ""}
        loop 5
          k0.mul p1:f32[3], p3:f32[3], p0:f32[3], p2:f32[3]
          swap p0, p1
          p2 {step}
          p3 {step}
        """,
    )


def test_a_carry_that_is_only_updated_stays_in_the_result():
    buffer, row, at = arg(0, (5, 3)), arg(1, (3,)), arg(2, (), I32)
    body = [B.dynamic_update(buffer, B.reshape(row, (1, 3)), [at, scalar(0, I32)])]
    outputs = scan(body, ScanInfo(0, 1, 5), arg(0, (5, 3)), arg(1, (5, 3)), arg(2, (5,), I32))
    xs, order = normal(1, 5, 3), np.array([3, 1, 4, 0, 2], np.int32)
    wanted = np.zeros((5, 3), np.float32)
    wanted[order] = xs
    low = check(outputs, [np.zeros((5, 3)), xs, order], [wanted])
    assert "main: scan carry 0 stays in out0" in low.plan.notes
    assert "swap" not in low.schedule and low.plan.arena_bytes == 0


def test_a_carry_whose_old_value_is_also_stacked_does_not_stay():
    buffer, at = arg(0, (4,)), arg(1, (), I32)
    body = [B.dynamic_update(buffer, B.full((1,), scalar(1)), [at]), buffer]
    outputs = scan(body, ScanInfo(0, 1, 3), arg(0, (4,)), arg(1, (3,), I32))
    c, ys = np.zeros(4), []
    for i in (2, 0, 3):
        ys.append(c.copy())
        c[i] = 1
    check(outputs, [np.zeros(4), np.array([2, 0, 3], np.int32)], [c, np.array(ys)])


def test_xs_that_are_reshaped_inputs_advance_by_their_own_elements():
    body = [B.add(arg(0, (3,)), arg(1, (3,))), arg(1, (3,))]
    xs = B.reshape(arg(1, (2, 6)), (4, 3))
    outputs = scan(body, ScanInfo(0, 1, 4), B.reshape(arg(0, (3, 1)), (3,)), xs)
    start, values = normal(0, 3, 1), normal(1, 2, 6)
    stacked = values.reshape(4, 3)
    wanted = [start[:, 0] + stacked.sum(0), stacked.reshape(2, 6)]
    check([outputs[0], B.reshape(outputs[1], (2, 6))], [start, values], wanted)


def test_carries_may_trade_places():
    body = [arg(1, (2,)), arg(0, (2,))]
    a, b = normal(0, 2), normal(1, 2)
    check(scan(body, ScanInfo(0, 2, 3), arg(0, (2,)), arg(1, (2,))), [a, b], [b, a])


def test_scan_of_no_iterations_returns_its_carry():
    outputs = scan([B.exp(arg(0, (2,))), arg(0, (2,))], ScanInfo(0, 1, 0), arg(0, (2,)))
    check(outputs, [normal(0, 2)], [normal(0, 2), np.zeros((0, 2))])


def test_values_from_outside_live_through_the_loop():
    outside = B.exp(arg(0, (N,)))
    body = [B.prefix("add", B.add(arg(1, (N,)), arg(0, (N,))), 0)]
    (out,) = scan(body, ScanInfo(1, 1, 4), outside, B.sin(arg(1, (N,))))
    low = lower(tuple_of([out]))
    (loop_arena,) = [s for s in low.plan.arena if s.name == "t0"]
    assert loop_arena.last >= max(s.last for s in low.plan.arena)


def test_temporaries_of_iterations_share_memory_with_what_follows():
    inner = B.dot(
        B.dot(arg(0, (128, 128)), arg(0, (128, 128)), ((1,), (0,))),
        arg(0, (128, 128)),
        ((1,), (0,)),
    )
    (out,) = scan([inner], ScanInfo(0, 1, 4), arg(0, (128, 128)))
    last = B.dot(B.dot(out, out, ((1,), (0,))), out, ((1,), (0,)))
    assert lower(tuple_of([last])).plan.arena_bytes <= 3 * BIG


def loop_while(limit: int) -> list[UOp]:
    i, v = arg(0, (), I32), arg(1, (3,))
    test = tuple_of([B.lt(i, scalar(limit, I32))])
    body = tuple_of([B.add(i, scalar(1, I32)), B.add(v, v)])
    node = UOp(Op.WHILE, (test, body, scalar(0, I32), arg(0, (3,))), WhileInfo(0, 0))
    return [get(node, 0), get(node, 1)]


@pytest.mark.parametrize("limit", [0, 1, 4, 5])
def test_while_runs_until_its_condition_fails(limit):
    x = normal(0, 3)
    check(loop_while(limit), [x], [np.int32(limit), x * 2.0**limit])


def test_while_with_constants_of_condition_and_body():
    test = tuple_of([B.lt(arg(1, ()), arg(0, ()))])
    body = tuple_of([B.mul(arg(1, ()), arg(0, ()))])
    node = UOp(Op.WHILE, (test, body, arg(0, ()), arg(1, ()), arg(2, ())), WhileInfo(1, 1))
    check([get(node, 0)], [np.float32(100), np.float32(3), np.float32(1)], [243.0])


def branch(index: UOp) -> list[UOp]:
    x = arg(0, (3,))
    bodies = [tuple_of([B.neg(x)]), tuple_of([x]), tuple_of([B.mul(B.exp(x), scalar(3))])]
    node = UOp(Op.COND, (*bodies, index, arg(1, (3,))), 3)
    return [get(node, 0)]


@pytest.mark.parametrize("index", [-5, 0, 1, 2, 9])
def test_cond_clamps_its_index(index):
    x = normal(0, 3)
    wanted = [-x, x, 3 * np.exp(x)][min(max(index, 0), 2)]
    check(branch(arg(0, (), I32)), [np.int32(index), x], [wanted])


def test_cond_on_a_bool():
    x = arg(0, (3,))
    node = UOp(Op.COND, (tuple_of([x]), tuple_of([B.neg(x)]), arg(0, (), bool), arg(1, (3,))), 2)
    check([get(node, 0)], [np.array(True), normal(0, 3)], [-normal(0, 3)])


def test_loops_in_loops_and_branches():
    inner_body = tuple_of([B.add(arg(0, (2,)), arg(1, (2,)))])
    inner = get(UOp(Op.SCAN, (inner_body, arg(0, (2,)), arg(1, (3, 2))), ScanInfo(0, 1, 3)), 0)
    pick = UOp(
        Op.COND,
        (tuple_of([arg(0, (2,))]), tuple_of([B.neg(arg(0, (2,)))]), arg(2, (), bool), inner),
        2,
    )
    outputs = scan(
        [get(pick, 0), inner],
        ScanInfo(0, 1, 4),
        arg(0, (2,)),
        arg(1, (4, 3, 2)),
        arg(2, (4,), bool),
    )
    start, xs, signs = normal(0, 2), normal(1, 4, 3, 2), np.array([True, False, False, True])
    c, ys = start.copy(), []
    for x, s in zip(xs, signs):
        c = c + x.sum(0)
        ys.append(c)
        c = -c if s else c
    check(outputs, [start, xs, signs], [c, np.array(ys)])


# --- order --------------------------------------------------------------------------------------------


def backward(layers: int, remat: bool, size: int = 128) -> UOp:
    """Gradient of a chain h = tanh(h @ w); with remat only every fourth h is kept."""
    dim = (size, size)
    ws = [arg(1 + i, dim) for i in range(layers)]
    left = ((1,), (0,))
    saved, h = [], arg(0, dim)
    for w in ws:
        saved.append(h)
        h = B.tanh(B.dot(h, w, left))
    ct = h
    grads: list[UOp] = [h] * layers
    for start in range(layers - 4, -1, -4):
        inputs = saved[start : start + 4]
        outputs = [*saved[start + 1 : start + 4], saved[start + 4] if start + 4 < layers else h]
        if remat:
            again = UOp(Op.REMAT, (saved[start],), 1 + start)
            inputs, outputs = [], []
            for i in range(start, start + 4):
                inputs.append(again)
                again = B.tanh(B.dot(again, ws[i], left))
                outputs.append(again)
        for i in range(3, -1, -1):
            out = outputs[i]
            ct = B.mul(ct, B.sub(scalar(1), B.mul(out, out)))
            grads[start + i] = B.dot(inputs[i], ct, ((0,), (0,)))
            ct = B.dot(ct, ws[start + i], ((1,), (1,)))
    return tuple_of(grads)


def test_recomputation_lowers_the_peak():
    plain = lower(backward(32, False)).plan.peak_bytes
    remat = lower(backward(32, True)).plan.peak_bytes
    one = 4 * 128 * 128
    assert plain >= 30 * one
    assert remat <= 20 * one


def test_gradients_and_recomputation_are_right():
    rng = np.random.default_rng(0)
    args = [(rng.normal(size=(14, 14)) * 0.3).astype(np.float32) for _ in range(9)]
    plain = lower(backward(8, False, 14))
    again = lower(backward(8, True, 14))
    for a, b in zip(plain.interpret(args), again.interpret(args)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_weight_gradients_run_as_soon_as_they_can():
    low = lower(backward(16, False))
    dots = [i for i, g in enumerate(schedule_of(low.body).groups) if g.kind == "contraction"]
    assert len(dots) == 47
    assert low.plan.peak_bytes <= 20 * 4 * 128 * 128


def test_cheap_results_do_not_wait_for_the_end():
    """Each looks cheap from there; together they would keep the operands of every layer."""

    def peak(layers: int) -> int:
        x, results = arg(0, (32, 32)), []
        for _ in range(layers):
            wide = B.dot(x, arg(1, (32, 256)), ((1,), (0,)))
            old, x = x, B.dot(wide, arg(2, (256, 32)), ((1,), (0,)))
            results.append(B.dot(old, x, ((0,), (0,))))
        return lower(tuple_of(results)).plan.peak_bytes

    assert peak(4) == peak(12) == 4 * (2 * 32 * 32 + 32 * 256)


def test_an_early_result_waits_for_readers_of_what_it_is_written_over():
    w = arg(0, (32, 32))
    x = B.dot(arg(1, (32, 32)), w, ((1,), (0,)))
    y = B.dot(x, w, ((1,), (0,)))
    new = B.sub(w, B.dot(x, x, ((0,), (0,))))
    args = [normal(0, 32, 32), normal(1, 32, 32)]
    assert donated([B.dot(y, y, ((0,), (0,))), new], args, {0}).plan.aliases == {1: 0}


def test_effects_keep_their_order():
    from tinyjax.core.infos import CheckInfo

    ok = B.lt(arg(0, ()), scalar(1))
    token = arg(1, (), np.bool_)
    for name in ("c3", "c1", "c2"):
        token = get(UOp(Op.CHECK, (ok, token), CheckInfo(name)), 0)
    groups = schedule_of(tuple_of([token])).groups
    found = [g.outputs[0].arg.message for g in groups if g.outputs[0].op is Op.CHECK]
    assert found == ["c3", "c1", "c2"]


def test_the_peak_of_a_transformer_does_not_grow_with_its_layers():
    peaks = [lower(*transformer(n)).plan.peak_bytes for n in (4, 12)]
    assert peaks[0] == peaks[1]
    assert F32.itemsize == 4


# --- kernels in place ---------------------------------------------------------------------------


def donated(outputs: list[UOp], args: list[np.ndarray], given: set[int]):
    """Lowered with donated arguments; the compiled program gives what the kept ones give."""
    body = tuple_of(outputs)
    low = lower(body, len(args), frozenset(given))
    want = lower(body, len(args)).interpret(args)
    for got in (low.interpret(args), run_donated(low, args)):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    return low


def run_donated(low, args: list[np.ndarray]) -> list[np.ndarray]:
    """The compiled program; results that lie in a donated argument are read from there."""
    inputs = [np.array(a, s.aval.dtype, order="C") for a, s in zip(args, low.plan.inputs)]
    outputs = [buffers.pool.empty(s.aval.shape, s.aval.dtype) for s in low.plan.outputs]
    low.program().run(*(memory.address(a) for a in [*inputs, *outputs]))
    return [
        inputs[low.plan.aliases[i]].reshape(o.shape) if i in low.plan.aliases else o
        for i, o in enumerate(outputs)
    ]


def test_a_result_is_written_over_a_donated_argument():
    x, y = arg(0, (40, 33)), arg(1, (40, 33))
    out = B.add(B.mul(x, scalar(2.0)), B.mul(y, scalar(3.0)))
    low = donated([out], [normal(0, 40, 33), normal(1, 40, 33)], {0, 1})
    assert low.plan.aliases == {0: 0}
    assert low.plan.notes == [
        "main: add f32[40,33] in place in in0: its last reader reads what it writes",
        "out0 lies in the donated in0",
        "no result lies in the donated in1: its last reader reads it elsewhere than it writes, or "
        "writes over another",
    ]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda x: [B.add(x, B.flip(x, (0,)))], "reads it elsewhere than it writes"),
        (lambda x: [B.permute(x, (1, 0))], "reads it elsewhere than it writes"),
        (lambda x: [B.exp(x), B.prefix("add", x, 0)], "reads it elsewhere than it writes"),
        (lambda x: [B.sum_(x, (0,))], "writes no result of its size and dtype"),
        (lambda x: [UOp(Op.CAST, (x,), (I32, False))], "writes no result of its size and dtype"),
    ],
)
def test_a_donated_argument_that_cannot_be_written_over_says_why(make, why):
    low = donated(make(arg(0, (16, 16))), [normal(0, 16, 16)], {0})
    assert low.plan.aliases == {}
    assert [n for n in low.plan.notes if why in n and "donated in0" in n]


def test_an_argument_that_is_also_a_result_is_not_written_over():
    x = arg(0, (32,))
    low = donated([B.exp(x), x], [normal(0, 32)], {0})
    assert low.plan.aliases == {1: 0}


def test_of_two_outputs_only_one_after_the_last_reader_takes_the_place():
    """Outputs of a kernel are stored one after the other: the first must not hide what the second
    reads."""
    x = arg(0, (64,))
    low = donated([B.exp(x), B.sin(x)], [normal(0, 64)], {0})
    assert low.plan.aliases == {1: 0}


def test_a_temporary_takes_the_place_of_one_that_is_dead():
    """The sum of a residual and a product is written over the residual, which only it reads."""
    x, w = arg(0, (64, 64)), arg(1, (64, 64))
    stream = B.prefix("max", x, 0)
    total = B.add(stream, B.dot(x, w, ((1,), (0,))))
    a, b = normal(0, 64, 64), normal(1, 64, 64)
    want = (np.maximum.accumulate(a, 0) + a @ b) @ b
    low = check([B.dot(total, w, ((1,), (0,)))], [a, b], [want], rtol=1e-4, atol=1e-3)
    assert low.plan.peak_bytes == 64 * 64 * 4
    assert low.plan.notes == [
        "main: add f32[64,64] in place in t0: its last reader reads what it writes"
    ]


def test_a_value_from_outside_a_loop_is_not_written_over_in_it():
    """It is read again by the next iteration, though its last reader in the body is elementwise."""
    c, xs = arg(1, (32,)), arg(2, (5, 32))
    const, carry, x = arg(0, (32,)), arg(1, (32,)), arg(2, (32,))
    body = tuple_of([B.add(B.mul(const, carry), x)])
    start = B.prefix("add", arg(0, (32,)), 0)
    node = UOp(Op.SCAN, (body, start, c, xs), ScanInfo(1, 1, 5, False))
    a, b, rows = normal(0, 32) * 0.1, normal(1, 32), normal(2, 5, 32)
    want, factor = b, np.cumsum(a)
    for r in rows:
        want = factor * want + r
    check([get(node, 0)], [a, b, rows], [want], rtol=1e-4)


def test_an_unusable_donation_leaves_the_argument_as_it_was():
    body = tuple_of([B.sum_(put(arg(0, (8,)), 2, arg(1, (3,))), (0,))])
    low = lower(body, 2, frozenset({0}))
    assert low.plan.aliases == {}
    assert "copies its operand: no result can lie in in0" in low.plan.notes[0]


# --- memory of a convolution --------------------------------------------------------------------


def test_a_convolution_trains_without_its_windows_in_memory():
    """Forward, input and weight gradient: 3 kernels, one temporary as large as the result."""

    def loss(x, w):
        y = tinyjax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return (y**2).sum()

    x, w = normal(0, 24, 28, 28, 32), normal(1, 3, 3, 32, 48)
    lowered = tinyjax.jit(tinyjax.grad(loss, argnums=(0, 1))).lower(x, w)
    assert len(lowered.kernels) == 3
    plan = lowered._lowered.plan
    assert plan.peak_bytes == 24 * 28 * 28 * 48 * 4
    scratch = [sum(code.scratch) for k in lowered.kernels for code in k.codes(host())]
    assert max(scratch) < 9 * x.nbytes / 2
