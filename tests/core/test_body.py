"""Closed bodies: alpha-normal, so equal maths is one object; opening makes ids fresh again."""

from __future__ import annotations

import numpy as np

from tinyjax.core import build
from tinyjax.core.avals import TOKEN, aval
from tinyjax.core.body import close, fresh_id, fresh_var, open_body, open_vars, params_of
from tinyjax.core.infos import CheckInfo
from tinyjax.core.ops import Op
from tinyjax.core.printer import print_body
from tinyjax.core.uop import UOp, buffer, const, get, param, token_of, toposort, tuple_of

F32 = np.dtype(np.float32)
VECTOR = aval((3,), F32)


def layer(x: UOp, w: UOp) -> list[UOp]:
    return [build.max_(build.mul(x, w), build.like(x, 0.0)), build.sin(w)]


def test_two_traces_of_the_same_maths_are_one_body() -> None:
    bodies = []
    for _ in range(2):
        x, w = fresh_var(VECTOR), fresh_var(VECTOR)
        body, captured = close(layer(x, w), [x, w])
        assert captured == []
        bodies.append(body)
    assert bodies[0] is bodies[1]
    assert not bodies[0].free and params_of(bodies[0]) == {0: VECTOR, 1: VECTOR}
    x, w = fresh_var(VECTOR), fresh_var(VECTOR)
    assert close(layer(x, w), [w, x])[0] is not bodies[0]


def test_opening_and_closing_are_inverse() -> None:
    x, w = fresh_var(VECTOR), fresh_var(VECTOR)
    outputs = layer(x, w)
    body, _ = close(outputs, [x, w])
    assert open_body(body, [x, w]) == outputs
    variables, opened = open_vars(body, [VECTOR, VECTOR])
    assert close(opened, variables)[0] is body


def test_captured_values_become_arguments_never_constants() -> None:
    x, outer = fresh_var(VECTOR), fresh_var(VECTOR)
    stored = buffer(np.arange(3, dtype=F32))
    whole = build.exp(outer)  # does not depend on x: captured as one value
    body, captured = close([build.add(build.mul(x, stored), whole)], [x])
    assert captured == [stored, whole]
    assert [n.op for n in toposort(body.src)].count(Op.PARAM) == 3
    assert print_body(body) == (
        "{ lambda a:f32[3] b:f32[3] c:f32[3]. let\n"
        "    d:f32[3] = mul a b\n"
        "    e:f32[3] = add d c\n"
        "  in (e,) }"
    )


def remat(x: UOp) -> UOp:
    return UOp(Op.REMAT, (x,), fresh_id())


def test_remat_ids_are_renumbered_when_closed_and_fresh_when_opened() -> None:
    bodies = []
    for _ in range(2):
        x = fresh_var(VECTOR)
        bodies.append(close([build.sin(remat(build.cos(remat(x))))], [x])[0])
    assert bodies[0] is bodies[1]
    ids = [n.arg for n in toposort(bodies[0].src) if n.op is Op.REMAT]
    assert ids == [1, 2]
    first = open_body(bodies[0], [param(0, VECTOR)])
    second = open_body(bodies[0], [param(0, VECTOR)])
    assert first[0] is not second[0]  # recomputed values stay apart from the first ones
    assert close(first, [])[0] is close(second, [])[0]


def test_two_equal_effects_stay_two() -> None:
    holds, token = const(True, np.dtype(bool)), fresh_var(TOKEN)
    first = get(UOp(Op.CHECK, (holds, token), CheckInfo("no")), 0)
    second = get(UOp(Op.CHECK, (holds, first), CheckInfo("no")), 0)
    body, _ = close([second], [token])
    assert len([n for n in toposort(body.src) if n.op is Op.CHECK]) == 2
    assert token_of(body.src) == 0
    other = fresh_var(TOKEN)
    assert close(open_body(body, [other]), [other])[0] is body  # a second trace is the same body


def test_deep_bodies_close_and_open_without_recursion() -> None:
    x = fresh_var(VECTOR)
    node = x
    for _ in range(50_000):
        node = build.neg(build.sin(node))
    body, _ = close([node], [x])
    assert open_body(body, [x]) == [node]
    assert tuple_of([node]) is not body
