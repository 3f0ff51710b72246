"""Stage verifiers: a graph that a broken pass could make is refused with the node and the rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinyjax.core import build
from tinyjax.core.avals import aval
from tinyjax.core.body import fresh_var
from tinyjax.core.errors import InvariantError
from tinyjax.core.infos import CallInfo, ScanInfo, WhileInfo
from tinyjax.core.integers import integer
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, buffer, const, param, toposort, tuple_of
from tinyjax.core.verify import StageError, verify

F32, BOOL = np.dtype(np.float32), np.dtype(np.bool_)


def p(slot: int, *shape: int, dtype: Any = F32) -> UOp:
    return param(slot, aval(shape, dtype))


def loop(number: int, extent: int, kind: str = "loop") -> UOp:
    return UOp(Op.RANGE, (integer(extent),), (number, kind))


def refused(graph: Any, stage: str, match: str) -> None:
    with pytest.raises(InvariantError, match=match):
        verify(graph, stage)


def kernel(*stores: UOp) -> UOp:
    return UOp(Op.SINK, stores)


def row_sums() -> UOp:
    """out[r0] = sum over r1 of x[r0*4 + r1]"""
    r0, r1 = loop(0, 8), loop(1, 4, "reduce")
    at = UOp(Op.ADD, (UOp(Op.MUL, (r0, integer(4))), r1))
    total = UOp(Op.FOLD, (UOp(Op.LOAD, (UOp(Op.INDEX, (p(1, 8, 4), at)),)), r1), "add")
    store = UOp(Op.STORE, (UOp(Op.INDEX, (p(0, 8), r0)), total))
    return kernel(UOp(Op.END, (store, r0)))


# --- stage 1 -----------------------------------------------------------------------------------


def test_closed_bodies_pass() -> None:
    add = tuple_of([build.add(p(0), p(1)), build.mul(p(0), p(1))])
    scan = UOp(Op.SCAN, (add, const(0, F32), p(0, 5)), ScanInfo(0, 1, 5))
    call = UOp(Op.CALL, (tuple_of([build.sin(p(0, 5))]), p(0, 5)), CallInfo("jit", "f"))
    verify(tuple_of([UOp(Op.GETTUPLE, (scan,), 1), UOp(Op.GETTUPLE, (call,), 0)]), "jaxpr")


def test_a_body_holds_no_variables_memory_or_kernel_ops() -> None:
    refused(tuple_of([build.sin(fresh_var(aval((), F32)))]), "jaxpr", "no open variable")
    refused(tuple_of([buffer(np.ones(3, F32))]), "jaxpr", "arguments of a closed body")
    refused(tuple_of([loop(0, 3)]), "jaxpr", "not an op of the jaxpr stage")
    refused(p(0), "jaxpr", "a body is a TUPLE")


def test_a_slot_has_one_type() -> None:
    refused(tuple_of([p(0), p(0, 3)]), "jaxpr", "two parameters have its slot")


def test_calls_pass_what_their_bodies_take() -> None:
    body = tuple_of([build.sin(p(1, 3))])
    few = UOp(Op.CALL, (body, p(0, 3)), CallInfo("jit", "f"))
    refused(tuple_of([UOp(Op.GETTUPLE, (few,), 0)]), "jaxpr", "its body reads slot 1")
    other = UOp(Op.CALL, (body, p(0, 3), p(1, 4)), CallInfo("jit", "f"))
    wrong = tuple_of([UOp(Op.GETTUPLE, (other,), 0)])
    refused(wrong, "jaxpr", r"passes f32\[4\] where its body takes f32\[3\]")


def test_loops_keep_their_carry_and_conditions_are_bool() -> None:
    grow = tuple_of([build.add(p(0), p(1))])
    short = UOp(Op.SCAN, (grow, p(0), p(1, 4)), ScanInfo(0, 1, 5))
    refused(tuple_of([UOp(Op.GETTUPLE, (short,), 0)]), "jaxpr", r"scans f32\[4\] over 5 steps")
    step = tuple_of([build.sin(p(0))])
    loops = UOp(Op.WHILE, (tuple_of([p(0)]), step, p(0)), WhileInfo(0, 0))
    refused(tuple_of([UOp(Op.GETTUPLE, (loops,), 0)]), "jaxpr", "gives one scalar bool")
    stop = tuple_of([UOp(Op.CMPLT, (p(0), const(3, F32)))])
    narrow = tuple_of([build.cast(p(0), np.float16)])
    loops = UOp(Op.WHILE, (stop, narrow, p(0)), WhileInfo(0, 0))
    refused(tuple_of([UOp(Op.GETTUPLE, (loops,), 0)]), "jaxpr", r"is f16\[\] where f32\[\] fits")


def test_arity_and_type_are_checked() -> None:
    refused(tuple_of([UOp(Op.NEG, (p(0), p(1)))]), "jaxpr", "takes 1 operands, has 2")
    node = UOp(Op.EXP, (p(5, 7),))
    node.aval = aval((3,), F32)  # as a pass might that writes into a node
    refused(tuple_of([node]), "jaxpr", "has the type")
    node.aval = aval((7,), F32)


# --- stage 2 -----------------------------------------------------------------------------------


def test_a_kernel_passes() -> None:
    verify(row_sums(), "kernel")


def test_ranges_are_closed_once_and_ids_are_unique() -> None:
    r0, r1 = loop(0, 8), loop(1, 4)
    value = UOp(Op.CAST, (r1,), (F32, False))
    store = UOp(Op.STORE, (UOp(Op.INDEX, (p(0, 8), r0)), value))
    refused(kernel(UOp(Op.END, (store, r0))), "kernel", r"never closed: \[1\]")
    twin = loop(0, 9)
    both = UOp(Op.STORE, (UOp(Op.INDEX, (p(0, 8), r0)), UOp(Op.CAST, (twin,), (F32, False))))
    refused(kernel(UOp(Op.END, (both, r0, twin))), "kernel", "two ranges have its id")
    refused(kernel(UOp(Op.END, (store, r0, r0))), "kernel", "closes a range once")


def test_loads_and_stores_are_well_formed() -> None:
    r0 = loop(0, 8)
    at = UOp(Op.INDEX, (p(0, 8), r0))
    whole = UOp(Op.STORE, (at, const(0, np.dtype(np.int32))))
    refused(kernel(UOp(Op.END, (whole, r0))), "kernel", "scalar of the buffer's dtype")
    real = UOp(Op.INDEX, (p(0, 8), const(0.5, F32)))
    store = UOp(Op.STORE, (real, const(0, F32)))
    refused(kernel(UOp(Op.END, (store, r0))), "kernel", "scalar int64")
    refused(kernel(UOp(Op.STORE, (at, const(0, F32)))), "kernel", "holds ENDs")


def test_the_pass_is_named() -> None:
    with pytest.raises(StageError, match="after pass no_movement_ops: .*RESHAPE"):
        verify(kernel(build.reshape(p(0, 4), (2, 2))), "kernel", "no_movement_ops")


# --- stage 3 -----------------------------------------------------------------------------------


def test_lists_define_before_use_and_nest_their_loops() -> None:
    r0, r1 = loop(0, 8), loop(1, 4)
    at = UOp(Op.INDEX, (p(0, 32), UOp(Op.ADD, (UOp(Op.MUL, (r0, integer(4))), r1))))
    store = UOp(Op.STORE, (at, const(0, F32)))
    good = [*toposort([store]), UOp(Op.END, (store, r0, r1))]
    verify([n for n in good if n.op is not Op.CONST], "program")
    verify(good, "program")
    refused(good[::-1], "program", "before it is made")
    refused(good[:-1], "program", "is never closed")
    refused([*good[:-1], UOp(Op.END, (store, r1, r0))], "program", "not the innermost")
    refused([*good, good[-1]], "program", "stands twice")
