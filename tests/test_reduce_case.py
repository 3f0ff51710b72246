"""The reducer finds the one op that a broken emitter gets wrong, and prints it as a test."""

from __future__ import annotations

import numpy as np
import pytest

from tests.differential import disagreement
from tests.graphs import Graph
from tinyjax.core import build as B
from tinyjax.core.avals import aval
from tinyjax.core.ops import Op
from tinyjax.core.uop import param, toposort, tuple_of
from tinyjax.lowering import codegen, elementwise
from tools.reduce_case import print_case, reduce_case

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


def test_a_case_that_does_not_fail_is_refused():
    with pytest.raises(ValueError, match="does not fail"):
        reduce_case(*big_case(), lambda body, args: False)
