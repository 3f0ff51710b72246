"""Programs do what their steps say."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from tests.runtime.ir import (
    ADD,
    ADD_TO,
    COPY_WORD,
    INC,
    LESS,
    PUSH,
    RANGES,
    SIZES,
    kernels,
)
from tinyjax.core.memory import address
from tinyjax.runtime.program import Program
from tinyjax.runtime.steps import (
    Advance,
    Branch,
    Call,
    CallProgram,
    Cell,
    Copy,
    Dim,
    Fill,
    Layout,
    Loop,
    Point,
    Return,
    StepError,
    Swap,
    While,
)


def run(steps, arrays, *dims, texts=(), offsets=(), arena_bytes=0, **options):
    """Run steps once: slots are the arrays, then the constants, then the workspace offsets."""
    constants = options.get("constants", ())
    layout = Layout(len(arrays), len(constants), offsets, arena_bytes, len(dims))
    program = Program("test", steps, layout, kernels=kernels(*texts), **options)
    program.run(*map(address, arrays), *dims)
    return program


def words(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("short", [True, False])
def test_a_kernel_sees_its_slots_in_its_own_order(short):
    a, b, c = np.float32([1, 2, 3]), np.float32([10, 20, 30]), np.zeros(3, np.float32)
    run([Call(0, (0, 2, 1), 0, 3)], [a, c, b], texts=[ADD], short=short)
    np.testing.assert_array_equal(c, [11, 22, 33])


def ranges_of(call, *dims):
    """The (lo, hi) pairs of the kernel calls that one step makes on one thread."""
    seen, count = words(*[-1] * 40), words(0)
    run([call], [seen, count, words(23)], *dims, texts=[RANGES])
    return [tuple(pair) for pair in seen[: count[0]].reshape(-1, 2).tolist()]


def test_ranges_come_from_constants_dims_and_cells():
    assert ranges_of(Call(0, (0, 1), 3, 8)) == [(3, 8)]
    assert ranges_of(Call(0, (0, 1), Dim(1), Dim(0)), 9, 4) == [(4, 9)]
    assert ranges_of(Call(0, (0, 1), 0, Cell(2))) == [(0, 23)]


def test_a_call_without_chunks_happens_once_whatever_its_range():
    assert ranges_of(Call(0, (0, 1), 5, 5)) == [(5, 5)]
    assert ranges_of(Call(0, (0, 1), 0, Dim(0)), 0) == [(0, 0)]


def test_loop_counters_rise_or_fall_and_trips_come_from_anywhere():
    for trip, dims in ((4, ()), (Dim(0), (4,)), (Cell(1), ())):
        out = words(0)
        body = (Call(0, (0, 2)),)
        steps = [Loop(trip, body, counter=2), Loop(trip, body, counter=2, reverse=True)]
        run(steps, [out, words(4)], *dims, texts=[PUSH], offsets=(0,), arena_bytes=8)
        assert out[0] == 1233210  # 0 1 2 3 then 3 2 1 0


@pytest.mark.parametrize("trip", [0, -3])
def test_a_loop_without_trips_does_nothing_not_even_its_counter(trip):
    out = words(5, 77)
    run([Loop(trip, (Call(0, (0,)),), counter=1)], [out, out[1:]], texts=[INC])
    assert out.tolist() == [5, 77]


def test_nested_loops_count_apart():
    out = words(0)
    inner = Loop(2, (Call(0, (0, 1)), Call(0, (0, 2))), counter=2)
    run([Loop(3, (inner,), counter=1)], [out], texts=[PUSH], offsets=(0, 8), arena_bytes=16)
    assert f"{out[0]:012d}" == "000110112021"


def test_while_runs_until_its_predicate_is_false():
    value, limit = words(2), words(7)
    steps = [While((Call(0, (0, 2, 1)),), 2, (Call(1, (0,)),))]
    run(steps, [value, limit], texts=[LESS, INC], offsets=(0,), arena_bytes=8)
    assert value[0] == 7
    value[0] = 9
    run(steps, [value, limit], texts=[LESS, INC], offsets=(0,), arena_bytes=8)
    assert value[0] == 9


@pytest.mark.parametrize(
    ("index", "taken"), [(-(2**31), 0), (-1, 0), (0, 0), (1, 1), (2, 2), (3, 2), (2**31 - 1, 2)]
)
def test_a_branch_index_is_an_int32_clamped_into_range(index, taken):
    # The upper half of the word is not part of the index.
    chosen, out = np.array([index, 1], np.int32), words(0)
    branches = tuple((Call(0, (0, digit)),) for digit in (2, 3, 4))
    digits = [words(digit) for digit in (1, 2, 3)]
    run([Branch(1, branches)], [out, chosen, *digits], texts=[PUSH])
    assert out[0] == taken + 1


def test_a_boolean_branch_takes_the_second_branch_if_true():
    for value in (False, True):
        chosen, out = np.array([value, True]), words(0)
        run([Branch(1, ((), (Call(0, (0,)),)), boolean=True)], [out, chosen], texts=[INC])
        assert out[0] == value


def test_pointers_advance_point_and_swap():
    xs, out = words(1, 2, 3, 4), words(0)
    forward = [Loop(4, (Call(0, (0, 1)), Advance(1, 8)))]
    run(forward, [out, xs], texts=[PUSH])
    assert out[0] == 1234

    out[0] = 0
    backward = [Point(2, 1, 3, 8), Loop(4, (Call(0, (0, 2)), Advance(2, -8)))]
    run(backward, [out, xs], texts=[PUSH], offsets=(0,))
    assert out[0] == 4321

    out[0] = 0
    by_counter = [Loop(Dim(0), (Point(2, 1, Cell(3), Dim(1)), Call(0, (0, 2))), counter=3)]
    run(by_counter, [out, xs], 2, 16, texts=[PUSH], offsets=(0, 0), arena_bytes=8)
    assert out[0] == 13

    out[0] = 0
    ping_pong = [Loop(5, (Call(0, (0, 1)), Swap(1, 2)))]
    run(ping_pong, [out, xs, xs[3:]], texts=[PUSH])
    assert out[0] == 14141


def test_slots_start_afresh_in_every_call():
    xs, out = words(1, 2, 3, 4), words(0)
    program = run([Loop(2, (Call(0, (0, 1)), Advance(1, 8)))], [out, xs], texts=[PUSH])
    program.run(address(out), address(xs))
    assert out[0] == 1212


def test_copy_allows_overlap_and_fill_sets_bytes():
    data = np.arange(8, dtype=np.uint8)
    steps = [Copy(1, 0, 4), Fill(0, 0x1FF, Dim(0))]
    run(steps, [data, data[2:]], 1)
    assert data.tolist() == [255, 1, 0, 1, 2, 3, 6, 7]


def test_constants_are_slots_and_stay_alive():
    out = words(0)
    program = run(
        [Call(0, (0, 1)), Call(0, (0, 2))],
        [out],
        texts=[PUSH],
        constants=[words(3), words(8)],
    )
    gc.collect()
    program.run(address(out))
    assert out[0] == 3838


def test_dims_reach_kernels():
    out = words(0, 0, 0)
    run([Call(0, (0,), 0, 3)], [out], 5, 6, 7, texts=[SIZES])
    assert out.tolist() == [5, 6, 7]


def nested_programs(depth_handler=None):
    """outer(x, d0, d1): for i in 0..1: inner(x, i; dims d1, d0), which pushes i three times and its
    own dims, each call with workspace of its own inside the outer's."""
    handlers = [depth_handler] if depth_handler else []
    push, sizes = kernels(PUSH, SIZES)
    pause = (Return(0, (0,)),) if depth_handler else ()
    inner = Program(
        "inner",
        [
            Loop(3, (Call(0, (0, 1)), *pause), counter=2),
            Call(1, (3,), 0, 2),
            Call(0, (0, 3)),
            Call(0, (0, 4)),
        ],
        Layout(2, offsets=(0, 64, 72), arena_bytes=128, dims=2),
        kernels=[push, sizes],
        handlers=handlers,
    )
    outer = Program(
        "outer",
        [Loop(2, (CallProgram(0, (0, 1), 2, (1, 0)),), counter=1)],
        Layout(1, offsets=(0, 64), arena_bytes=64 + inner.workspace_bytes, dims=2),
        programs=[inner],
    )
    return outer


def test_a_called_program_has_slots_dims_and_workspace_of_its_own():
    out = words(0)
    nested_programs().run(address(out), 7, 8)
    assert out[0] == int("000" + "87" + "111" + "87")


def test_python_is_entered_and_left_at_any_depth():
    seen = []
    out = words(0)
    outer = nested_programs(lambda pointers, dims: seen.append((pointers, dims, int(out[0]))))
    outer.run(address(out), 7, 8)
    assert out[0] == 8711187
    at = [address(out)]
    values = [0, 0, 0, 871, 8711, 87111]
    assert seen == [(at, [8, 7], value) for value in values]


def test_a_handler_that_raises_ends_the_call_and_the_program_stays_usable():
    out = words(0)
    fail = [True]

    def handler(pointers, dims):
        if fail[0]:
            raise ZeroDivisionError("from the handler")

    steps = [Call(0, (0,)), Return(0), Call(0, (0,))]
    program = Program(
        "test", steps, Layout(1), kernels=kernels(INC), handlers=[handler], short=True
    )
    with pytest.raises(ZeroDivisionError, match="from the handler"):
        program.run(address(out))
    assert out[0] == 1
    fail[0] = False
    program.run(address(out))
    assert out[0] == 3


def test_a_handler_may_run_the_same_program():
    depth = [0]
    out = words(0)

    def handler(pointers, dims):
        depth[0] += 1
        if depth[0] < 4:
            program.run(*pointers)

    steps = [Loop(3, (Call(0, (0, 1)),), counter=1), Return(0, (0,)), Call(0, (0, 1))]
    layout = Layout(1, offsets=(0,), arena_bytes=8)
    program = Program("test", steps, layout, kernels=kernels(PUSH), handlers=[handler])
    program.run(address(out))
    assert out[0] == int("012" * 4 + "2222")


def test_the_last_branch_of_a_long_program_is_reached():
    """Word offsets are 64 bits wide and steps may be many."""
    out = words(0)
    run([Call(0, (0,))] * 3000 + [Branch(1, ((), (Call(0, (0,)),)))], [out, words(1)], texts=[INC])
    assert out[0] == 3001


@pytest.mark.parametrize("short", [True, False])
def test_a_wrong_number_of_values_is_a_type_error_that_says_what_is_wanted(short):
    program = Program("step", [Call(0, (0,))], Layout(1, dims=1), kernels=kernels(INC), short=short)
    for values in ((), (1,), (1, 2, 3), (None, 1)):
        with pytest.raises(TypeError, match="program step takes 1 addresses and 1 dims"):
            program.run(*values)


def test_constants_must_be_as_many_as_the_layout_says():
    with pytest.raises(StepError, match="1 constants for 0 slots"):
        Program("test", [], Layout(0), constants=[words(1)])


def test_run_outlives_its_program_and_neither_holds_the_other():
    out = words(0)
    outer = nested_programs()
    run_outer = outer.run
    alive = weakref.ref(outer)
    gc.disable()
    try:
        del outer
        assert alive() is None
    finally:
        gc.enable()
    run_outer(address(out), 7, 8)
    assert out[0] == 8711187


def test_threads_run_one_program_at_the_same_time():
    """Each call counts in its own workspace, and the GIL is free meanwhile."""
    trips = 300_000
    layout = Layout(1, offsets=(0, 8), arena_bytes=16)
    steps = [Fill(2, 0, 8), Loop(trips, (Call(0, (2, 1)),), counter=1), Call(1, (0, 2))]
    program = Program("sum", steps, layout, kernels=kernels(ADD_TO, COPY_WORD))
    outs = [words(0) for _ in range(8)]
    threads = [threading.Thread(target=program.run, args=(address(out),)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [int(out[0]) for out in outs] == [trips * (trips - 1) // 2] * 8


def test_a_listing_names_kernels():
    program = Program("test", [Call(0, (0,))], Layout(1), kernels=kernels(INC))
    assert program.listing() == f"{program.kernels[0].name}(%0)"
