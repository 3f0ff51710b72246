"""The reducer finds the one op, and the one action, that a broken emitter gets wrong; it prints a
test."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.differential import disagreement
from tests.graphs import Graph
from tests.lowering import kernels as K
from tests.lowering.random_programs import Program
from tinyjax.core import build as B
from tinyjax.core import dtypes
from tinyjax.core.avals import aval
from tinyjax.core.ops import Op
from tinyjax.core.uop import param, toposort, tuple_of
from tinyjax.lowering import accumulate, codegen, columns, elementwise
from tinyjax.lowering.codegen import compile_kernel
from tinyjax.lowering.interpret import interpret
from tinyjax.lowering.program import LoopKernel, lower
from tinyjax.lowering.schedule import ScheduleError
from tools.reduce_case import (
    kernels_of,
    print_case,
    print_schedule,
    reduce_case,
    reduce_schedule,
    wrong_kernel,
    wrong_kernels,
)

F32 = np.dtype(np.float32)


@pytest.fixture
def miscompiled(monkeypatch):
    """A code generator that floors where it should round up."""
    monkeypatch.setitem(elementwise.FLOAT, Op.CEIL, lambda b, x: b.floor(x))
    monkeypatch.setattr(codegen, "_cache", type(codegen._cache)())


def big_case():
    x, y = param(0, aval((3, 17), F32)), param(1, aval((17,), F32))
    z = B.add(B.mul(x, B.expand(y, (3, 17), (1,))), B.exp(x))
    w = B.sum_(B.unary(Op.CEIL, B.flip(z, (0,))), [1])
    body = tuple_of([B.sub(w, B.scalar(2.5, F32)), B.permute(z, (1, 0)), B.max_(z, x)])
    rng = np.random.default_rng(0)
    return body, [rng.normal(size=a).astype(F32) for a in ((3, 17), (17,))]


def fails(body, args):
    return bool(disagreement(Graph(body, args)))


def test_a_miscompiled_op_is_isolated(miscompiled):
    body, args = reduce_case(*big_case(), fails)
    assert [n.op for n in toposort(body.src)] == [Op.PARAM, Op.CEIL]
    assert len(args) == 1 and np.count_nonzero(args[0]) == 1


def test_the_printed_case_rebuilds_the_body_and_its_arguments(miscompiled):
    body, args = reduce_case(*big_case(), fails)
    scope: dict = {}
    exec(print_case(body, args, notes="output 0 differs"), scope)
    again, values = scope["reduced"]()
    assert again is body
    assert [v.tobytes() for v in values] == [a.tobytes() for a in args]
    assert fails(again, values)
    with pytest.raises(AssertionError, match="output 0"):
        scope["test_reduced"]()


def test_a_printed_graph_passes_once_the_bug_is_gone():
    scope: dict = {}
    x = param(0, aval((5,), F32))  # a body that no broken emitter has met
    exec(print_case(tuple_of([B.unary(Op.CEIL, x)]), [np.full(5, 0.5, F32)]), scope)
    scope["test_reduced"]()


@pytest.mark.parametrize("dtype", dtypes.DTYPES.values())
def test_every_dtype_can_be_printed(dtype):
    x = np.zeros(3, dtype)
    scope: dict = {}
    exec(print_case(tuple_of([B.flip(param(0, aval((3,), x.dtype)), (0,))]), [x]), scope)
    _, (again,) = scope["reduced"]()
    assert again.dtype == x.dtype and again.tobytes() == x.tobytes()


# --- schedules ------------------------------------------------------------------------------------


def row_sums(rows: int):
    """Large enough, its schedule has vectors, unrolled accumulators and tasks."""
    x = param(0, aval((rows, 260), F32))
    args = [np.random.default_rng(0).normal(size=(rows, 260)).astype(F32)]
    return tuple_of([B.sum_(B.exp(x), [1])]), args


def names(actions):
    return [a.partition("(")[0] for a in actions]


@pytest.fixture
def lost_accumulator(monkeypatch):
    """A code generator that forgets the last accumulator of an unrolled sum."""
    right = accumulate.finish

    def finish(e, fold, path):
        parts = e.accumulators[fold]
        e.accumulators[fold] = parts[: max(1, len(parts) - 1)]
        right(e, fold, path)

    monkeypatch.setattr(accumulate, "finish", finish)
    monkeypatch.setattr(codegen, "_cache", type(codegen._cache)())


def test_a_bug_behind_one_action_is_isolated(lost_accumulator):
    body, (x,) = row_sums(3000)
    (kernel,) = lower(body, 1).kernels
    actions = compile_kernel(kernel.sink).schedule
    assert names(actions) == ["vector", "unroll", "tasks"]
    arrays, expected = [np.zeros(3000, F32), x], [np.exp(x).sum(1), x]
    fewer = reduce_schedule(actions, lambda a: wrong_kernel(kernel.sink, a, arrays, expected))
    assert names(fewer) == ["unroll"]


def test_an_action_that_another_one_needs_stays(monkeypatch):
    """A bug in sums over rows, which need vectors: both actions are left, unrolling is not."""
    right = columns._Columns.read

    def read(self, fold, at):
        return right(self, fold, self.e.b.mul(at, 0))

    monkeypatch.setattr(columns._Columns, "read", read)
    x = np.random.default_rng(0).normal(size=(40, 700)).astype(F32)
    (kernel,) = lower(tuple_of([B.sum_(param(0, aval(x.shape, F32)), [0])]), 1).kernels
    actions = compile_kernel(kernel.sink).schedule
    assert names(actions) == ["vector", "columns", "unroll"]
    arrays, expected = [np.zeros(700, F32), x], [x.sum(0), x]
    fewer = reduce_schedule(actions, lambda a: wrong_kernel(kernel.sink, a, arrays, expected))
    assert names(fewer) == ["vector", "columns"]


def test_a_graph_and_its_schedule_shrink_to_a_printed_test(lost_accumulator):
    x = param(0, aval((3, 260), F32))
    body = tuple_of([B.cos(B.sum_(B.exp(x), [1])), B.tanh(x)])
    args = [np.random.default_rng(0).normal(size=(3, 260)).astype(F32)]
    body, args = reduce_case(body, args, fails, limit=60)
    (whole,) = kernels_of(body, args)
    (case,) = wrong_kernels(body, args)
    assert names(whole.actions) == ["vector", "unroll"] and names(case.actions) == ["unroll"]
    text = print_schedule(case.sink, case.actions, case.arrays)
    scope: dict = {}
    exec(text, scope)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        scope["test_reduced"]()


def test_the_printed_test_passes_once_the_bug_is_gone():
    body, args = row_sums(2)
    (case,) = kernels_of(body, args)
    scope: dict = {}
    exec(print_schedule(case.sink, case.actions, case.arrays), scope)
    scope["test_reduced"]()


def test_any_part_of_a_schedule_computes_the_same():
    """Replayed whole, it is the same code; what cannot be left out is refused, not miscompiled."""
    x = param(0, aval((40, 48), F32))
    square = tuple_of([B.permute(x, (1, 0))])
    wide = tuple_of([B.sum_(param(0, aval((40, 700), F32)), [0])])
    rng = np.random.default_rng(0)
    for body, shape in ((square, (40, 48)), (wide, (40, 700)), (row_sums(5)[0], (5, 260))):
        (case,) = kernels_of(body, [rng.normal(size=shape).astype(F32)])
        whole = compile_kernel(case.sink)
        again = compile_kernel(case.sink, actions=whole.schedule)
        assert (again.ir_text, again.schedule) == (whole.ir_text, whole.schedule)
        expected = [a.copy() for a in case.arrays]
        interpret(case.sink, expected)
        for count in range(len(case.actions) + 1):
            for some in itertools.combinations(case.actions, count):
                try:
                    assert not wrong_kernel(case.sink, some, case.arrays, expected)
                except ScheduleError as error:
                    assert "needs vector(r" in str(error)


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_the_printed_actions_are_all_of_a_schedule(seed):
    """Kernels of random programs: their actions, replayed, give the same code."""
    lowered = lower(tuple_of(Program(seed, 40).outputs), 3)
    sinks = [k.sink for k in lowered.kernels if isinstance(k, LoopKernel)]
    assert sinks
    for sink in sinks:
        whole = compile_kernel(sink)
        assert compile_kernel(sink, actions=whole.schedule).ir_text == whole.ir_text


def test_two_loops_over_one_range_have_two_names():
    """Once both were r1, and the vector loop meant by the schedule was not the one that became it."""
    r0, r1 = K.loop(3, 0), K.loop(64, 1, "reduce")
    total = K.fold("add", K.load(K.buffer(1, (64,), F32), r1), r1)
    rows = K.fold("add", K.load(K.buffer(2, (3, 64), F32), K.plus((r0, 64), r1)), r1)
    sink = K.kernel(K.store(K.buffer(0, (3,), F32), r0, K.node(Op.ADD, total, rows), r0))
    rng = np.random.default_rng(0)
    arrays = [np.zeros(3, F32), *(rng.normal(size=s).astype(F32) for s in ((64,), (3, 64)))]
    made = K.check(sink, arrays, 1e-5)
    vectors = [a.partition(",")[0] for a in made.code.schedule if a.startswith("vector")]
    assert vectors == ["vector(r1", "vector(r1.2"]
    only = [a for a in made.code.schedule if "r1.2" in a]
    assert 0 < len(only) < len(made.code.schedule)
    K.check(sink, arrays, 1e-5, actions=only)


def test_a_schedule_that_does_not_fail_is_refused():
    with pytest.raises(ValueError, match="does not fail"):
        reduce_schedule(["vector(r0, 16)"], lambda actions: False)


def test_a_case_that_does_not_fail_is_refused():
    with pytest.raises(ValueError, match="does not fail"):
        reduce_case(*big_case(), lambda body, args: False)
