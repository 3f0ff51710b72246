"""The graph: equal structure is one object, also between threads; walks need no recursion."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from tinyjax.core import build
from tinyjax.core.avals import aval, tuple_aval
from tinyjax.core.body import fresh_var
from tinyjax.core.infos import DotInfo
from tinyjax.core.ops import ANY_ARITY, ELEMENTWISE, J, K, Op, P
from tinyjax.core.uop import (
    RULES,
    UOp,
    active,
    buffer,
    const,
    const_value,
    dead,
    depends_on,
    forget_dead,
    get,
    nodes_created,
    param,
    substitute,
    toposort,
    tuple_of,
)

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
X, Y = param(0, aval((3,), F32)), param(1, aval((3,), F32))


def test_equal_structure_is_one_object() -> None:
    assert build.add(build.sin(X), Y) is build.add(build.sin(X), Y)
    assert build.add(X, Y) is not build.add(Y, X)
    assert aval((3,), F32) is aval((3,), np.dtype("float32"))
    assert aval((3,), F32) is not aval((3,), F32, True)
    assert tuple_aval((X.aval, Y.aval)) is tuple_aval((X.aval, X.aval))


def test_literals_are_their_bits() -> None:
    assert const(0.0, F32) is not const(-0.0, F32)
    assert const(1, F32) is const(1.0, F32)
    assert const(1, F32) is not const(1, F64)
    assert const(1, F32, True) is not const(1, F32)
    assert const(float("nan"), F32) is const(float("nan"), F32)
    assert const_value(const(0.1, F32)) == np.float32(0.1)


def test_nodes_die_with_their_last_reader_and_can_be_made_again() -> None:
    node = build.sin(build.add(X, build.mul(Y, const(7.25, F32))))
    gone = weakref.ref(node)
    before = nodes_created()
    assert build.sin(node.src[0]) is node and nodes_created() == before
    inner = node.src[0]
    del node
    gc.collect()
    assert gone() is None
    again = build.sin(inner)
    assert nodes_created() == before + 1 and again is build.sin(inner)


def test_no_code_of_ours_runs_when_a_node_goes_and_its_entry_goes_with_the_next_node() -> None:
    """An interrupt that came then would be lost, and another thread might change the table."""
    forget_dead()
    node = build.sin(build.cos(const(8.5, F32)))
    source = weakref.ref(node.src[0])
    seen: list[str] = []
    sys.setprofile(lambda frame, event, arg: seen.append(event))
    try:
        del node
    finally:
        sys.setprofile(None)
    assert "call" not in seen and len(dead) == 1 and source() is not None
    kept = const(9.5, F32)
    assert kept is not None and source() is None and not dead


def test_equal_nodes_that_live_are_one_while_threads_make_and_drop_them(monkeypatch: Any) -> None:
    problems: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: problems.append(event.exc_value))
    interval = sys.getswitchinterval()

    def work() -> None:
        for i in range(4000):
            a = const(1.5 + i % 2, F32)
            b = const(1.5 + i % 2, F32)
            if a is not b:
                problems.append(a)
            del a, b

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not problems


def test_threads_that_build_at_once_get_the_same_nodes() -> None:
    made: list[list[UOp]] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        node, found = X, []
        for i in range(400):
            node = build.sin(build.add(node, const(i + 0.125, F32)))
            found.append(node)
        made.append(found)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 8
    for other in made[1:]:
        assert all(a is b for a, b in zip(made[0], other, strict=True))


def test_every_op_says_what_it_is() -> None:
    for op in Op:
        assert op.meaning and op.stages & (J | K | P), op
        assert op.arity >= ANY_ARITY and op in RULES
        if op in ELEMENTWISE:
            assert op.stages & J and 1 <= op.arity <= 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build.add(X, const(1, F64)), r"add: dtypes must be equal; got f32\[3\], f64\[\]"),
        (lambda: build.add(X, param(1, aval((4,), F32))), "equal shapes"),
        (lambda: build.sin(const(1, np.dtype("i4"))), "needs a floating dtype"),
        (lambda: UOp(Op.RESHAPE, (X,), (2, 2)), "3 elements into 4"),
        (lambda: UOp(Op.PERMUTE, (X,), (1,)), "must name each axis once"),
        (lambda: UOp(Op.WHERE, (X, X, X)), "condition must be bool"),
        (
            lambda: UOp(Op.DOT, (X, param(1, aval((4,), F32))), DotInfo(((0,), (0,)))),
            "axis 0 of the first has size 3, axis 0 of the second 4",
        ),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_made(make: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()  # type: ignore[operator]


def test_walks_are_sources_first_left_to_right_and_visit_once() -> None:
    a, b = build.sin(X), build.cos(Y)
    root = build.add(build.mul(a, b), a)
    assert toposort([root]) == [X, a, Y, b, root.src[0], root]
    assert toposort([root], keep=lambda n: n is not a) == [Y, b, root.src[0], root]


def test_deep_graphs_need_no_recursion() -> None:
    v = fresh_var(aval((), F32))
    node = v
    for _ in range(100_000):
        node = build.neg(build.exp(node))
    assert len(toposort([node])) == 200_001
    (replaced,) = substitute([node], {v: const(2.0, F32)})
    assert not replaced.free and node.free == {v.arg}
    assert active(node) == frozenset()
    del node, replaced  # and they are freed without recursion as well
    gc.collect()


def test_substitution_keeps_what_does_not_change() -> None:
    v, w = fresh_var(aval((3,), F32)), fresh_var(aval((3,), F32))
    kept = build.sin(w)
    root = build.add(build.mul(v, v), kept)
    (new,) = substitute([root], {v: X})
    assert new is build.add(build.mul(X, X), kept)
    assert depends_on([root], [v.arg])(root) and not depends_on([root], [v.arg])(kept)


def test_reading_a_tuple_folds() -> None:
    pair = tuple_of([X, Y])
    assert get(pair, 1) is Y
    assert isinstance(pair.aval, type(tuple_aval(())))


def test_closed_nodes_pickle_to_themselves_and_open_ones_refuse() -> None:
    node = build.dot(X, Y, ((0,), (0,)))
    assert pickle.loads(pickle.dumps(node)) is node
    for bad in (build.sin(fresh_var(aval((), F32))), buffer(np.ones(3, F32))):
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(bad)
