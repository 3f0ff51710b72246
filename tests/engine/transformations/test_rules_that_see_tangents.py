"""jvp rules whose values depend on tangents: forward mode obeys them, reverse mode cannot."""

from __future__ import annotations

import jax as oracle
import numpy as np
import pytest

import tinyjax as jax
from tests.oracle import assert_same, check, raises

AROUND = {
    "alone": lambda J, f: f,
    "jit": lambda J, f: J.jit(f),
    "scan": lambda J, f: (
        lambda x: J.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]
    ),
    "checkpoint": lambda J, f: J.checkpoint(f),
    "cond": lambda J, f: lambda x: J.lax.cond(x > 0, f, lambda x: x, x),
    "while": lambda J, f: lambda x: J.lax.while_loop(lambda c: c < 3, lambda c: f(c) + 2, x),
}  # fmt: skip


def function(J, log, effects):
    """`effects`: which of the function, its rule and what sees tangents in that calls back."""

    @J.custom_jvp
    def f(x):
        if "function" in effects:
            J.debug.callback(lambda x: log.append(("function", float(x))), x)
        return J.numpy.sin(x)

    @f.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        if "rule" in effects:
            J.debug.callback(lambda x: log.append(("rule", float(x))), x)
        if "tangents" in effects:
            J.debug.callback(lambda x, t: log.append(("tangent", float(x), float(t))), x, t)
        return J.numpy.sin(x) + t, J.numpy.cos(x) * t

    return f


def outcome(J, transform, effects):
    log = []
    found = transform(J, function(J, log, effects))
    J.effects_barrier()
    return found, log


EFFECTS = [(), ("function",), ("rule",), ("tangents",), ("function", "rule", "tangents")]


@pytest.mark.parametrize("effects", EFFECTS, ids="+".join)
@pytest.mark.parametrize("around", AROUND)
def test_forward_mode_gives_what_the_rule_says(around, effects):
    def transform(J, f):
        return J.jvp(AROUND[around](J, f), (np.float32(1),), (np.float32(2),))

    (ours, mine), (theirs, other) = (outcome(J, transform, effects) for J in (jax, oracle))
    assert_same(ours, theirs, weak=False)
    assert sorted(name for name, *_ in mine) == sorted(name for name, *_ in other)
    if len(effects) == 1:  # those of one kind come in order
        values = [np.float32([v for _, *v in log]) for log in (mine, other)]
        np.testing.assert_allclose(*values, rtol=1e-6)


@pytest.mark.parametrize("effects", EFFECTS, ids="+".join)
@pytest.mark.parametrize("around", [name for name in AROUND if name != "while"])
@pytest.mark.parametrize("slope", ["grad", "linearize", "jit of grad"])
def test_reverse_mode_is_refused(slope, around, effects):
    def case(J):
        f = AROUND[around](J, function(J, [], effects))
        if slope == "linearize":
            return J.linearize(f, 1.0)
        return (J.jit if "jit" in slope else lambda f: f)(J.grad(f))(1.0)

    assert "known values for all output primals" in str(raises(case))


def test_second_derivatives_in_forward_mode():
    def transform(J, f):
        one = lambda x: J.jvp(J.jit(f), (x,), (np.float32(2),))
        return J.jvp(one, (np.float32(1),), (np.float32(3),))

    (ours, mine), (theirs, other) = (
        outcome(J, transform, ("function", "rule", "tangents")) for J in (jax, oracle)
    )
    assert_same(ours, theirs, weak=False)
    assert sorted(n for n, *_ in mine) == sorted(n for n, *_ in other)


TOGETHER = {
    "call": lambda J: J.jit(lambda p, t: (J.numpy.sin(p[0]), J.numpy.cos(p[0]) * t[0])),
    "branch": lambda J: (
        lambda p, t: J.lax.cond(
            p[0] > 0,
            lambda x, t: (J.numpy.sin(x), J.numpy.cos(x) * t),
            lambda x, t: (-J.numpy.sin(x), -J.numpy.cos(x) * t),
            p[0],
            t[0],
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("slope", ["value_and_grad", "linearize", "jit of grad"])
@pytest.mark.parametrize("around", ["alone", "jit"])
@pytest.mark.parametrize("form", TOGETHER)
def test_a_rule_may_compute_value_and_tangent_in_one_step(form, around, slope):
    """Only what the value itself is computed from counts."""

    def case(J):
        f = J.custom_jvp(lambda x: J.numpy.sin(x))
        f.defjvp(TOGETHER[form](J))
        f = AROUND[around](J, f)
        if slope == "linearize":
            value, linear = J.linearize(f, np.float32(0.7))
            return value, linear(np.float32(2))
        return J.jit(J.grad(f))(0.7) if "jit" in slope else J.value_and_grad(f)(0.7)

    check(case, weak=False)
