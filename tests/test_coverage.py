"""Every op has a rule in every table, or a reason why not: an op that is added is added everywhere."""

from __future__ import annotations

import pytest

from tests.ops_table import rows
from tinyjax.core.ops import COMPARISONS, Op
from tinyjax.core.ops import J as JAXPR
from tinyjax.core.uop import RULES
from tinyjax.interpreters.batch import BATCH
from tinyjax.interpreters.evaluate import EVAL, NOT_EVALUATED
from tinyjax.interpreters.jvp import EXTERNAL, JVP, NOT_DIFFERENTIABLE
from tinyjax.interpreters.linearize import BODY_JVP
from tinyjax.interpreters.transpose import TRANSPOSE
from tinyjax.lowering.fusion import CLASSES
from tinyjax.lowering.inline import ERASED

OPS = [op for op in Op if op.stages & JAXPR]
DRIVERS = {Op.TUPLE, Op.GETTUPLE}  # handled by each driver itself
LEAVES = {Op.CONST, Op.IOTA, Op.DIM, Op.VAR, Op.PARAM, Op.BUFFER, Op.AXIS_INDEX}

NOT_LINEAR = {
    **dict.fromkeys(COMPARISONS, "bool results"),
    **dict.fromkeys(LEAVES, "a leaf"),
    **dict.fromkeys(set(NOT_DIFFERENTIABLE), "no derivative"),
    **dict.fromkeys((Op.ABS, Op.SQRT, Op.RSQRT, Op.CBRT, Op.EXP, Op.EXP2, Op.EXPM1, Op.LOG, Op.LOG2, Op.LOG1P, Op.SIN, Op.COS, Op.TAN, Op.ASIN, Op.ACOS, Op.ATAN, Op.SINH, Op.COSH, Op.TANH, Op.ASINH, Op.ACOSH, Op.ATANH, Op.LOGISTIC, Op.ERF, Op.ERFC, Op.ERFINV, Op.LGAMMA, Op.DIGAMMA, Op.REM, Op.POW, Op.MAX, Op.MIN, Op.ATAN2, Op.ARGREDUCE, Op.SORT), "its tangent is made of linear ops"),
    **dict.fromkeys((Op.SIGN, Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC, Op.NEXTAFTER), "locally constant"),
    **dict.fromkeys((Op.CALLBACK, Op.CHECK, Op.KERNEL), "has no derivative of its own"),
}  # fmt: skip

NOT_BATCHED = {
    **dict.fromkeys(LEAVES - {Op.AXIS_INDEX}, "a leaf has no operands"),
    Op.AXIS_INDEX: "a variable of the trace that opens the axis stands for it",
    Op.KERNEL: "its own batch rule is the user's",
}

NOT_LOWERED = {
    **dict.fromkeys((Op.VAR, Op.BUFFER), "not in a closed body"),
    **dict.fromkeys((Op.DOT, Op.GETTUPLE), "its class depends on its operands (fusion.class_of)"),
    **dict.fromkeys(ERASED, "erased when calls are inlined"),
    Op.CUSTOM_LIN: "replaced by its bodies when calls are inlined",
    Op.KERNEL: "a later issue",
    **dict.fromkeys((Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.PPERMUTE, Op.ALL_TO_ALL, Op.AXIS_INDEX), "vmap turns it into an ordinary op; on a mesh a later issue"),
}  # fmt: skip


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_op_is_in_every_table_or_excused(op: Op):
    assert op in RULES, "no rule for its aval (core/rules.py)"
    assert op.meaning
    if op in DRIVERS:
        return
    assert op in JVP or op in BODY_JVP or op in NOT_DIFFERENTIABLE, "interpreters/jvp.py"
    assert op in TRANSPOSE or op in NOT_LINEAR, "interpreters/transpose.py"
    assert op in BATCH or op in NOT_BATCHED, "interpreters/batch.py"
    assert op in EVAL or op in NOT_EVALUATED, "interpreters/evaluate.py"
    assert op in CLASSES or op in NOT_LOWERED, "lowering/fusion.py"


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_op_has_a_row_in_the_documentation(op: Op):
    assert op in {row.op for row in rows()}, "docs/ops.md"


def test_no_excuse_is_stale():
    assert not set(NOT_LINEAR) & set(TRANSPOSE)
    assert not set(NOT_BATCHED) & set(BATCH)
    assert not set(NOT_DIFFERENTIABLE) & (set(JVP) | set(BODY_JVP))
    assert not set(NOT_EVALUATED) & set(EVAL)
    assert not set(NOT_LOWERED) & set(CLASSES)


def test_what_is_excused_from_differentiation_says_why():
    assert all(NOT_DIFFERENTIABLE.values()) and all(NOT_EVALUATED.values())


def test_ops_without_bodies_that_have_a_rule_of_several_results_are_known_to_the_driver():
    assert set(BODY_JVP) - {Op.CALL, Op.SCAN, Op.WHILE, Op.COND} == EXTERNAL
