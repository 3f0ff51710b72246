"""The fusion plan: which nodes share a kernel, and that planning is linear."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lowering.bodies import I32, arg, layer_norm, rows, scalar, softmax, transformer
from tinyjax.core import build as B
from tinyjax.core.infos import GatherInfo, ScatterInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, get, toposort, tuple_of
from tinyjax.lowering import costs
from tinyjax.lowering.fusion import FusionPlan, base, class_of, plan_fusion
from tinyjax.lowering.inline import inline
from tinyjax.lowering.prepare import prepare

X, Y = arg(0, (64, 32)), arg(1, (64, 32))


def fuse(*outputs: UOp) -> FusionPlan:
    return plan_fusion(prepare(inline(tuple_of(list(outputs)))))


def shape_of(plan: FusionPlan) -> list[tuple[str, list[str]]]:
    """Kind and written ops of each group."""
    return [(g.kind, [o.op.name for o in g.outputs]) for g in plan.groups]


@pytest.mark.parametrize("model", [softmax, layer_norm])
def test_row_wise_models_are_one_kernel(model):
    assert len(fuse(model(X)).groups) == 1


def test_logsumexp_is_one_kernel():
    top = B.reduce("max", X, [1])
    total = B.sum_(B.exp(B.sub(X, rows(top, X))), [1])
    assert shape_of(fuse(B.add(top, B.log(total)))) == [("loop", ["ADD"])]


def test_a_fold_takes_its_prologue_and_its_epilogue():
    mean = B.mul(B.sum_(B.exp(X), [0]), scalar(1 / 64))
    assert shape_of(fuse(B.sqrt(mean))) == [("loop", ["SQRT"])]


def test_a_row_value_needed_elsewhere_is_a_second_output():
    mean = B.mul(B.sum_(X, [1]), scalar(1 / 32))
    assert shape_of(fuse(B.sub(X, rows(mean, X)), mean)) == [("loop", ["MUL", "SUB"])]


def test_a_mean_over_everything_does_not_serialise_what_reads_it():
    big = arg(0, (512, 512))
    mean = B.sum_(big, [0, 1])
    plan = fuse(B.sub(big, B.full(big.shape, mean)))
    assert [g.outputs[-1].op for g in plan.groups][-1] is Op.SUB
    assert all(len(g.outputs) == 1 for g in plan.groups) and len(plan.groups) == 2


def test_a_small_mean_over_everything_saves_a_launch():
    assert len(fuse(B.sub(X, B.full(X.shape, B.sum_(X, [0, 1])))).groups) == 1


def test_siblings_over_one_input_are_one_kernel():
    plan = fuse(B.sin(X), B.mul(X, scalar(2)))
    assert shape_of(plan) == [("loop", ["SIN", "MUL"])]
    plan = fuse(B.sum_(B.mul(X, Y), [0]), B.sum_(X, [0]))
    assert shape_of(plan) == [("loop", ["REDUCE", "REDUCE"])]


def test_siblings_with_other_loops_stay_apart():
    assert len(fuse(B.sum_(X, [0]), B.sum_(X, [1])).groups) == 2
    assert len(fuse(B.sum_(X, [0]), B.exp(X)).groups) == 2


def test_siblings_that_depend_on_each_other_stay_apart():
    running = B.prefix("add", B.sin(X), 0)
    plan = fuse(B.cos(X), B.add(X, B.sin(running)))
    assert len(plan.groups) == 2  # cos joins neither side of a cycle
    before = B.exp(X)
    after = B.mul(X, B.prefix("add", before, 0))
    assert len(fuse(before, after).groups) == 3


def test_a_transposed_product_is_the_product_of_the_other_order():
    grad = B.permute(B.dot(arg(0, (64, 48)), X, ((0,), (0,))), (1, 0))
    plan = fuse(B.sub(arg(2, (32, 48)), B.mul(grad, scalar(0.1))))
    assert shape_of(plan) == [("contraction", ["SUB"])]


def test_the_elementwise_tail_of_a_contraction_is_its_epilogue():
    h = B.tanh(
        B.add(B.dot(X, arg(1, (32, 48)), ((1,), (0,))), B.expand(arg(2, (48,)), (64, 48), (1,)))
    )
    assert shape_of(fuse(h)) == [("contraction", ["TANH"])]
    assert shape_of(fuse(softmax(h))) == [("contraction", ["TANH"]), ("loop", ["DIV"])]


def test_a_product_that_is_only_moved_is_stored_where_it_goes():
    probabilities, values = arg(0, (2, 4, 8, 8)), arg(1, (2, 8, 4, 16))
    mixed = B.dot(probabilities, values, ((3,), (1,)), ((0, 1), (0, 2)))
    joined = B.reshape(B.permute(mixed, (0, 2, 1, 3)), (2, 8, 64))
    assert shape_of(fuse(joined)) == [("contraction", ["PERMUTE"])]


def test_a_product_that_others_read_is_written_beside_its_epilogue():
    product = B.dot(X, arg(1, (32, 48)), ((1,), (0,)))
    plan = fuse(B.tanh(product), B.sum_(product, [0]))
    assert shape_of(plan) == [("contraction", ["DOT", "TANH"]), ("loop", ["REDUCE"])]


def test_cheap_maps_are_inlined_into_every_reader():
    twice = B.add(X, scalar(1))
    plan = fuse(B.sum_(twice, [0]), B.reduce("max", B.permute(twice, (1, 0)), [1]))
    assert all(Op.ADD not in {o.op for o in g.outputs} for g in plan.groups)


def test_expensive_maps_with_several_readers_are_written_once():
    wave = B.sin(B.cos(B.sin(X)))
    plan = fuse(B.sum_(wave, [0]), B.prefix("add", wave, 0))
    assert ["SIN"] in [ops for _, ops in shape_of(plan)]


def test_an_expensive_row_read_by_every_column_is_not_recomputed():
    row = B.exp(B.sin(arg(1, (32,))))
    assert len(fuse(B.mul(B.expand(row, (4096, 32), (1,)), arg(0, (4096, 32)))).groups) == 2


def test_a_value_read_before_and_after_a_contraction_closes_no_cycle():
    h = B.tanh(X)
    product = B.dot(h, arg(1, (32, 32)), ((1,), (0,)))
    plan = fuse(B.add(h, product), h)
    kinds = [k for k, _ in shape_of(plan)]
    assert kinds == ["loop", "contraction"]
    assert shape_of(plan)[0] == ("loop", ["TANH"])


def test_views_of_dot_operands_cost_no_kernel():
    q, k = arg(0, (2, 8, 4, 16)), arg(1, (2, 8, 4, 16))
    plan = fuse(B.dot(q, k, ((3,), (3,)), ((0, 2), (0, 2))))
    assert shape_of(plan) == [("contraction", ["DOT"])]


def test_operands_that_strides_cannot_read_are_copied():
    x = arg(0, (4, 8, 6))
    plan = fuse(B.dot(B.permute(x, (2, 1, 0)), arg(1, (8, 4, 7)), ((1, 2), (0, 1))))
    assert shape_of(plan)[0][0] == "loop"  # k runs over axes (8, 4) that lie as (4, 8)
    cropped = B.slice_(x, (0, 0, 0), (4, 5, 6))
    plan = fuse(B.dot(cropped, arg(1, (5, 6, 70)), ((1, 2), (0, 1))))
    assert [k for k, _ in shape_of(plan)] == ["contraction"]


def test_tiny_and_vector_contractions_are_loops():
    assert shape_of(fuse(B.dot(X, arg(1, (32,)), ((1,), (0,))))) == [("loop", ["DOT"])]
    tiny = B.dot(arg(0, (3, 4)), arg(1, (4, 5)), ((1,), (0,)))
    assert shape_of(fuse(tiny)) == [("loop", ["DOT"])]


def test_updates_are_never_inlined():
    info = ScatterInfo("add", (1,), (0,), (0,))
    node = B.scatter(X, arg(1, (5, 1), I32), B.exp(arg(2, (5, 32))), info)
    assert shape_of(fuse(B.sum_(B.mul(node, node), [1]))) == [
        ("update", ["SCATTER"]),
        ("loop", ["REDUCE"]),
    ]


def test_an_update_that_reads_its_own_operand_has_it_as_an_input_too():
    info = ScatterInfo("add", (1,), (0,), (0,))
    node = B.scatter(X, arg(1, (64, 1), I32), B.exp(X), info)
    (group,) = fuse(node).groups
    assert [n.arg[0] for n in group.inputs] == [0, 1, 0]


def test_a_gather_of_few_elements_computes_only_those():
    table = B.exp(arg(0, (10000, 32)))
    picked = B.gather(table, arg(1, (4, 1), I32), GatherInfo((1,), (0,), (0,), (1, 32)))
    assert len(fuse(picked).groups) == 1


def test_argreduce_results_come_from_one_kernel():
    value, index = B.argreduce("max", X, 1)
    assert len(fuse(value, index).groups) == 1


def test_no_kernel_has_more_buffers_than_allowed():
    total = arg(0, (64, 32))
    for i in range(1, 60):
        total = B.add(total, arg(i, (64, 32)))
    plan = fuse(total)
    assert len(plan.groups) > 1
    assert all(len(g.inputs) + len(g.outputs) <= costs.MAX_BUFFERS for g in plan.groups)


def test_no_kernel_has_more_nodes_than_allowed():
    x = X
    for _ in range(2 * costs.MAX_NODES):
        x = B.sin(x)
    plan = fuse(x)
    assert len(plan.groups) == 2
    assert all(g.nodes <= costs.MAX_NODES for g in plan.groups)


def test_equal_layers_have_equal_bodies():
    counts = []
    for layers in (6, 24):
        body, _ = transformer(layers)
        plan = plan_fusion(prepare(inline(body)))
        counts.append(len({g.body for g in plan.groups}))
    assert counts[0] == counts[1] <= 20


def test_planning_visits_grow_linearly():
    visits = []
    for layers in (4, 8, 16):
        body, _ = transformer(layers)
        visits.append(plan_fusion(prepare(inline(body))).visits)
    assert visits[2] - visits[1] == 2 * (visits[1] - visits[0])


def test_groups_come_after_what_they_read():
    body, _ = transformer(2)
    seen: set[UOp] = set()
    for group in plan_fusion(prepare(inline(body))).groups:
        assert all(n.op is Op.PARAM or n in seen for n in group.inputs)
        seen.update(group.outputs)


def test_every_decision_is_a_row_with_its_terms():
    table = fuse(softmax(X)).table()
    assert "inline 2908, reader 3727, own 4412 ns" in table or "inline" in table
    assert len(table.split("\n")) >= 4


def test_recomputation_behind_remat_is_marked_late():
    saved = B.sin(X)
    again = B.sin(UOp(Op.REMAT, (X,), 1))
    first = B.dot(saved, arg(1, (32, 32)), ((1,), (0,)))
    plan = fuse(B.dot(again, first, ((0,), (0,))), saved, again)
    late = {g.outputs[0]: g.late for g in plan.groups}
    assert late[saved] == (0, 0) and late[again] == (1, 0)
    bodies = [g.body for g in plan.groups if g.kind == "loop"]
    assert len(bodies) == 2 and bodies[0] is bodies[1]


def barrier(x: UOp) -> UOp:
    return UOp(Op.OPTIMIZATION_BARRIER, (x,))


def test_a_barrier_ends_a_group():
    assert shape_of(fuse(B.exp(B.sin(X)))) == [("loop", ["EXP"])]
    assert shape_of(fuse(B.exp(barrier(B.sin(X))))) == [("loop", ["SIN"]), ("loop", ["EXP"])]
    folded = B.sum_(barrier(B.exp(X)), [1])
    assert shape_of(fuse(folded)) == [("loop", ["EXP"]), ("loop", ["REDUCE"])]
    squared = barrier(B.sum_(B.mul(X, X), [1]))
    assert shape_of(fuse(B.sqrt(squared))) == [("loop", ["REDUCE"]), ("loop", ["SQRT"])]
    moved = B.sin(barrier(B.permute(X, (1, 0))))
    assert shape_of(fuse(moved)) == [("loop", ["PERMUTE"]), ("loop", ["SIN"])]


def test_a_barrier_keeps_a_product_and_its_epilogue_apart():
    x, y = arg(0, (128, 256)), arg(1, (256, 128))
    product = B.dot(x, y, ((1,), (0,)))
    assert shape_of(fuse(B.tanh(product))) == [("contraction", ["TANH"])]
    kinds = [kind for kind, _ in shape_of(fuse(B.tanh(barrier(product))))]
    assert kinds == ["contraction", "loop"]
    kinds = [kind for kind, _ in shape_of(fuse(B.dot(barrier(B.exp(x)), y, ((1,), (0,)))))]
    assert kinds == ["loop", "contraction"]


def test_what_reads_a_value_and_the_same_behind_a_barrier_does_not_write_it():
    x = B.exp(X)
    plan = fuse(B.add(x, barrier(x)))
    assert shape_of(plan) == [("loop", ["EXP"]), ("loop", ["ADD"])]


def test_equal_loops_on_the_two_sides_of_a_barrier_stay_two():
    assert shape_of(fuse(B.sin(X), B.cos(X))) == [("loop", ["SIN", "COS"])]
    assert shape_of(fuse(B.sin(X), B.cos(barrier(X)))) == [("loop", ["SIN"]), ("loop", ["COS"])]


def test_a_barrier_keeps_equal_computations_apart():
    """Without it they are one node; with it both run."""
    plan = fuse(B.sin(X), B.sin(barrier(X)))
    assert shape_of(plan) == [("loop", ["SIN"]), ("loop", ["SIN"])]


def test_a_barrier_costs_no_copy_and_a_constant_behind_one_no_buffer():
    assert fuse(barrier(X)).groups == []
    assert shape_of(fuse(barrier(B.exp(X)))) == [("loop", ["EXP"])]
    plan = fuse(B.mul(X, B.full(X.shape, barrier(scalar(2.0)))))
    assert shape_of(plan) == [("loop", ["MUL"])]


def test_bases_look_through_what_keeps_the_order_of_elements():
    assert base(B.reshape(X, (32, 64))) is X
    assert base(B.permute(B.reshape(X, (64, 1, 32)), (1, 0, 2))) is X
    assert base(B.permute(X, (1, 0))) is not X
    assert class_of(get(UOp(Op.ARGREDUCE, (X,), ("max", 1, np.dtype(np.int32))), 1)) == "fold"


def test_a_reader_of_a_sorted_result_stays_behind_the_sort_after_joining_another_group():
    """The join once forgot the order between the sort and its reader: a cycle of groups."""
    x, y = arg(0, (17, 31), I32), arg(1, (17, 31), I32)
    key = B.cast(x, np.float32)
    first, second = B.sort([x, key], 0, 2)
    plan = fuse(second, B.add(x, y), B.and_(y, first), B.le(y, y))
    written = shape_of(plan)
    assert [kind for kind, _ in written] == ["loop", "routine", "loop"]
    assert written[0] == ("loop", ["CAST"]) and "AND" in written[2][1]


def test_copies_of_one_array_are_an_expansion():
    """A guarded load per copy made 3 MB of code, compiled in 80 s, of 561 copies."""
    x = arg(0, (3, 2))
    (group,) = fuse(B.concat([x] * 561, 0)).groups
    ops = {n.op for n in toposort(group.body.src)}
    assert Op.EXPAND in ops and Op.CONCAT not in ops
