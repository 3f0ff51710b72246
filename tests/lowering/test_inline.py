"""Flat bodies: calls, marks, weak types and typed keys vanish."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lowering.bodies import F32, I32, arg, scalar
from tinyjax.core import build as B
from tinyjax.core import dtypes
from tinyjax.core.avals import aval
from tinyjax.core.errors import LoweringError
from tinyjax.core.infos import CallInfo, CustomLinInfo, GatherInfo, ScanInfo, WhileInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const, get, nodes_created, param, toposort, tuple_of
from tinyjax.lowering.inline import inline

KEY = dtypes.KeyDType("threefry2x32")
KINDS = ["jit", "function", "checkpoint", "custom_jvp", "custom_vjp", "composite", "named"]


def ops(body: UOp) -> set[Op]:
    return {n.op for n in toposort(body.src)}


def keys(slot: int, *shape: int) -> UOp:
    return param(slot, aval(shape, KEY))


def call(body: UOp, *args: UOp, **info: object) -> UOp:
    return UOp(Op.CALL, (body, *args), CallInfo(**info))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_becomes_its_body(kind):
    inner = tuple_of([B.exp(arg(0, (3,))), B.add(arg(0, (3,)), arg(1, (3,)))])
    node = call(inner, arg(1, (3,)), arg(0, (3,)), kind=kind, name="f", rule=object())
    flat = inline(tuple_of([get(node, 1), get(node, 0)]))
    assert flat is tuple_of([B.add(arg(1, (3,)), arg(0, (3,))), B.exp(arg(1, (3,)))])


def test_a_precompiled_call_stays_and_its_body_is_flat():
    marked = tuple_of([B.stop_gradient(B.exp(arg(0, (3,))))])
    node = call(marked, arg(0, (3,)), kind="function", name="f", precompile=True)
    flat = inline(tuple_of([get(node, 0)]))
    (kept,) = [n for n in toposort(flat.src) if n.op is Op.CALL]
    assert kept.src[0] is tuple_of([B.exp(arg(0, (3,)))])


def test_marks_and_weak_types_are_erased():
    x = param(0, aval((3,), F32, True))
    marked = UOp(Op.NAME, (B.stop_gradient(B.exp(x)),), "y")
    flat = inline(tuple_of([B.mul(marked, B.scalar(2.0, F32, weak_type=True))]))
    assert flat is tuple_of([UOp(Op.MUL, (B.exp(arg(0, (3,))), scalar(2.0)))])
    assert all(not n.aval.weak_type for n in toposort(flat.src))


def test_a_condition_that_is_a_carry_holds_in_the_body():
    """Its select goes, so the carry can stay where it is."""
    running, x = param(0, aval((), np.bool_)), arg(1, (3,))
    body = tuple_of([B.lt(B.reduce("sum", x, (0,)), scalar(5.0)), B.where(running, B.exp(x), x)])
    loop = lambda cond: UOp(Op.WHILE, (tuple_of([cond]), body, running, x), WhileInfo(0, 0))
    (flat,) = [n for n in toposort(inline(tuple_of([get(loop(running), 1)])).src) if n.bodies]
    assert flat.src[1].src == (body.src[0], B.exp(x))
    (kept,) = [
        n
        for n in toposort(inline(tuple_of([get(loop(B.xor(running, running)), 1)])).src)
        if n.bodies
    ]
    assert kept.src[1] is body


def test_two_sites_of_a_checkpoint_keep_their_recomputations_apart():
    inner = tuple_of([UOp(Op.REMAT, (B.exp(arg(0, (3,))),), 1)])
    a = get(call(inner, arg(0, (3,)), kind="checkpoint"), 0)
    b = get(call(inner, B.neg(arg(0, (3,))), kind="checkpoint"), 0)
    flat = inline(tuple_of([a, b]))
    assert sorted(n.arg for n in toposort(flat.src) if n.op is Op.REMAT) == [1, 2]


def test_equal_bodies_from_different_ids_are_one_flat_body():
    def made(number: int) -> UOp:
        return inline(tuple_of([UOp(Op.REMAT, (B.exp(arg(0, (3,))),), number)]))

    assert made(7) is made(9)


def test_dead_code_is_not_visited():
    inner = tuple_of([B.exp(arg(0, (3,))), B.sin(arg(0, (3,)))])
    node = call(inner, arg(0, (3,)), kind="jit")
    assert ops(inline(tuple_of([get(node, 0)]))) == {Op.PARAM, Op.EXP}


def test_scalars_broadcast_without_expand():
    x = arg(0, (4, 3))
    flat = inline(tuple_of([B.add(x, B.full((4, 3), scalar(1.0)))]))
    assert flat is tuple_of([B.add(x, scalar(1.0))])


def test_a_forward_derivative_of_custom_vjp_is_an_error_naming_the_function():
    info = CustomLinInfo(0, (aval((3,), F32),), None, "my_rule")
    with pytest.raises(LoweringError, match="my_rule has only a reverse rule"):
        inline(tuple_of([get(UOp(Op.CUSTOM_LIN, (arg(0, (3,)),), info), 0)]))


class TestKeys:
    """Typed keys are uint32 words along a trailing axis."""

    def words(self, node: UOp) -> UOp:
        (out,) = inline(tuple_of([node])).src
        assert out.aval.dtype == np.uint32
        return out

    def test_wrapping_and_unwrapping_vanish(self):
        data = arg(0, (5, 2), np.uint32)
        assert self.words(UOp(Op.KEY_UNWRAP, (UOp(Op.KEY_WRAP, (data,), KEY),))) is data

    @pytest.mark.parametrize(
        ("node", "shape"),
        [
            (B.reshape(keys(0, 6), (2, 3)), (2, 3, 2)),
            (B.permute(keys(0, 4, 3), (1, 0)), (3, 4, 2)),
            (B.expand(keys(0, 3), (4, 3), (1,)), (4, 3, 2)),
            (B.slice_axis(keys(0, 6), 0, 1, 5, 2), (2, 2)),
            (B.flip(keys(0, 6), (0,)), (6, 2)),
            (B.concat([keys(0, 2), keys(1, 3)], 0), (5, 2)),
            (B.window(keys(0, 6), 0, 3), (4, 3, 2)),
            (UOp(Op.PAD, (keys(0, 3), keys(1)), ((1, 2, 0),)), (6, 2)),
            (B.where(arg(1, (3,), bool), keys(0, 3), keys(2, 3)), (3, 2)),
            (B.where(arg(1, (3,), bool), keys(0), keys(2, 3)), (3, 2)),
            (B.dynamic_slice(keys(0, 6), [arg(1, (), I32)], (2,)), (2, 2)),
            (B.dynamic_update(keys(0, 6), keys(1, 2), [arg(2, (), I32)]), (6, 2)),
            (
                B.gather(keys(0, 6), arg(1, (4, 1), I32), GatherInfo((), (0,), (0,), (1,))),
                (4, 2),
            ),
        ],
    )
    def test_movement_leaves_the_words_alone(self, node, shape):
        assert self.words(node).shape == shape

    def test_equality_compares_all_words(self):
        (out,) = inline(tuple_of([B.eq(keys(0, 3), keys(1, 3))])).src
        assert out.op is Op.REDUCE and out.arg == ("and", (1,)) and out.shape == (3,)

    def test_loops_carry_words(self):
        body = tuple_of([keys(0), keys(1)])
        scan = UOp(Op.SCAN, (body, keys(0), keys(1, 5)), ScanInfo(0, 1, 5))
        flat = inline(tuple_of([get(scan, 1)]))
        (kept,) = [n for n in toposort(flat.src) if n.op is Op.SCAN]
        assert [a.shape for a in kept.aval.elts] == [(2,), (5, 2)]

    def test_arithmetic_is_refused(self):
        with pytest.raises(LoweringError, match="FFT is not defined on typed keys"):
            inline(tuple_of([UOp(Op.FFT, (keys(0, 4),), ("fft", (4,)))]))
        with pytest.raises(TypeError, match="no arithmetic"):
            B.sort([keys(0, 3)], 0)

    def test_a_sort_moves_words(self):
        flat = inline(tuple_of(B.sort([arg(0, (3, 5), I32), keys(1, 3, 5)], 0)))
        assert [o.shape for o in flat.src] == [(3, 5), (3, 5, 2)]
        (kept,) = [n for n in toposort(flat.src) if n.op is Op.SORT]
        assert [s.shape for s in kept.src] == [(3, 5)] * 3


def test_flattening_is_one_walk_per_call_site():
    def chain(length: int) -> UOp:
        inner = arg(0, (3,))
        for _ in range(10):
            inner = B.sin(inner)
        body = tuple_of([inner])
        x = arg(0, (3,))
        for _ in range(length):
            x = get(call(body, x, kind="jit", name=str(length)), 0)
        return tuple_of([x])

    made = []
    for length in (20, 40):
        body = chain(length)
        before = nodes_created()
        inline(body)
        made.append(nodes_created() - before)
    assert made[0] <= 20 * 10 + 20 + 2
    assert made[1] <= 40 * 10 + 40 + 2


def test_constants_keep_their_bits():
    (out,) = inline(tuple_of([const(-0.0, F32, True)])).src
    assert out is const(-0.0, F32)
