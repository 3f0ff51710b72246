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


def slopes(J, p, t):
    return J.numpy.sin(p), J.numpy.cos(p) * t


TOGETHER = {
    "call": lambda J: J.jit(lambda p, t: slopes(J, p[0], t[0])),
    "branch": lambda J: (
        lambda p, t: J.lax.cond(
            p[0] > 0,
            lambda x, t: slopes(J, x, t),
            lambda x, t: slopes(J, -x, t),
            p[0],
            t[0],
        )
    ),
    "loop": lambda J: (
        lambda p, t: J.lax.fori_loop(0, 2, lambda i, c: slopes(J, *c), (p[0], t[0]))
    ),
    "loop in a call": lambda J: J.jit(
        lambda p, t: J.lax.scan(lambda c, _: (slopes(J, *c), None), (p[0], t[0]), None, length=2)[0]
    ),
    "derivative of a call": lambda J: lambda p, t: J.jvp(J.jit(lambda x: J.numpy.sin(x)), p, t),
    "print of a value": lambda J: J.jit(
        lambda p, t: (J.debug.print("{}", p[0]), slopes(J, p[0], t[0]))[1]
    ),
    "print of a tangent": lambda J: J.jit(
        lambda p, t: (J.debug.print("{}", t[0]), slopes(J, p[0], t[0]))[1]
    ),
}  # fmt: skip
AROUND_STEPS = ["alone", "jit", "scan", "checkpoint", "cond"]


def in_one_step(J, form):
    f = J.custom_jvp(lambda x: J.numpy.sin(x))
    f.defjvp(TOGETHER[form](J))
    return f


@pytest.mark.parametrize("around", AROUND_STEPS)
@pytest.mark.parametrize("form", TOGETHER)
def test_a_rule_may_compute_value_and_tangent_in_one_step(form, around):
    """Only what the value itself is computed from counts."""

    def case(J):
        f = AROUND[around](J, in_one_step(J, form))
        return J.value_and_grad(f)(0.7)

    check(case, weak=False)


@pytest.mark.parametrize("slope", ["linearize", "jit of grad", "grad of grad"])
@pytest.mark.parametrize("around", ["alone", "scan"])
@pytest.mark.parametrize("form", ["call", "branch", "loop"])
def test_other_derivatives_of_such_a_rule(form, around, slope):
    def case(J):
        f = AROUND[around](J, in_one_step(J, form))
        if slope == "linearize":
            value, linear = J.linearize(f, np.float32(0.7))
            return value, linear(np.float32(2))
        return J.jit(J.grad(f))(0.7) if "jit" in slope else J.grad(J.grad(f))(0.7)

    check(case, weak=False)


def test_python_may_look_at_the_value_of_such_a_rule():
    def case(J):
        def g(x):
            y = in_one_step(J, "loop in a call")(x)
            return y * 2 if y > 0.5 else y

        return J.value_and_grad(g)(0.7)

    check(case, weak=False)


@pytest.mark.parametrize("around", AROUND_STEPS)
@pytest.mark.parametrize("form", ["call", "loop"])
def test_a_tangent_that_is_not_linear_is_refused(form, around):
    square = lambda J, x, t: (J.numpy.sin(x), t * t)
    forms = {
        "call": lambda J: J.jit(lambda p, t: square(J, p[0], t[0])),
        "loop": lambda J: (
            lambda p, t: J.lax.fori_loop(0, 2, lambda i, c: square(J, *c), (p[0], t[0]))
        ),
    }

    def case(J):
        f = J.custom_jvp(lambda x: J.numpy.sin(x))
        f.defjvp(forms[form](J))
        return J.grad(AROUND[around](J, f))(0.7)

    with pytest.raises(jax.errors.NotLinearError, match="linear in its tangents"):
        case(jax)
    with pytest.raises(Exception):  # noqa: B017  JAX's own is of several kinds
        case(oracle)


LOOKS = {
    "bool": lambda J, y: bool(y > 1.5),
    "if": lambda J, y: "large" if y > 1.5 else "small",
    "print": lambda J, y: print(y) or [],
    "of what is constant": lambda J, y: float(J.lax.stop_gradient(y)),
    "float": lambda J, y: float(y),
    "array": lambda J, y: np.asarray(y),
}
EAGER = AROUND | {
    "vmap": lambda J, f: lambda x: J.vmap(f)(x[None])[0],
    "twice": lambda J, f: lambda x: f(f(x) * x),
}
EAGER["while"] = lambda J, f: lambda x: J.lax.fori_loop(0, 3, lambda i, c: f(c), x)


def looked(J, look, around, steps=1.0):
    seen = []

    def g(x):
        y = EAGER[around](J, function(J, [], ()))(x)
        seen.append(look(J, y))
        return y * x, y

    return J.jvp(g, (np.float32(1),), (np.float32(2) * steps,), has_aux=True), seen


@pytest.mark.parametrize("around", EAGER)
@pytest.mark.parametrize("look", LOOKS)
def test_python_sees_what_the_rule_makes_of_the_tangents(look, around):
    case = lambda J: looked(J, LOOKS[look], around)
    if look in ("float", "array"):
        assert isinstance(raises(case), jax.errors.ConcretizationTypeError | TypeError)
    else:
        check(case, weak=False)


@pytest.mark.parametrize("outer", ["grad", "jvp"])
@pytest.mark.parametrize("around", ["alone", "jit", "scan", "twice"])
def test_what_python_has_seen_is_differentiated_from_outside(around, outer):
    def case(J):
        seen = []

        def of(w):
            (_, tangent, aux), more = looked(J, LOOKS["bool"], around, w)
            seen.extend(more)
            return tangent * aux

        w = np.float32(1.5)
        return J.grad(of)(w) if outer == "grad" else J.jvp(of, (w,), (w,)), seen

    check(case, weak=False)


INSIDE = {
    "bool": lambda x, t: bool(t > 1),
    "float": lambda x, t: float(t),
    "product": lambda x, t: float(x * t),
    "array": lambda x, t: np.asarray(t),
}


def looks_inside(J, look, seen):
    f = J.custom_jvp(lambda x: J.numpy.sin(x))

    def rule(p, t):
        seen.append(INSIDE[look](p[0], t[0]))
        return J.numpy.sin(p[0]) * t[0], J.numpy.cos(p[0]) * t[0]

    f.defjvp(rule)
    return f


@pytest.mark.parametrize("look", INSIDE)
@pytest.mark.parametrize("where", ["first", "second", "in a rule", "in a jvp", "jit"])
def test_a_rule_that_runs_at_its_call_may_look_at_tangents(where, look):
    def case(J):
        seen = []
        f = looks_inside(J, look, seen)
        g = J.custom_jvp(lambda x: f(x) * 2)

        @g.defjvp
        def rule(p, t):
            y, dy = J.jvp(f, p, t)
            seen.append(float(dy))
            return y + dy * f(p[0]), dy

        def of(x):
            if where == "in a jvp":
                return J.jvp(lambda y: f(y * y), (x,), (np.float32(3),))[1] * f(x)
            inner = {"second": lambda x: f(J.numpy.exp(f(x))), "in a rule": g, "jit": J.jit(f)}
            return inner.get(where, f)(x * x) * x

        return J.jvp(of, (np.float32(0.7),), (np.float32(2),)), seen

    if where == "jit" or (where == "in a jvp" and look != "bool"):
        raises(case)
    else:
        check(case, weak=False)


def test_a_rule_may_not_look_at_tangents_that_come_later():
    for slope in (
        lambda J: J.grad,
        lambda J: lambda f: lambda x: J.linearize(f, x),
        lambda J: J.jacfwd,
    ):
        error = raises(lambda J, slope=slope: slope(J)(looks_inside(J, "bool", []))(np.float32(1)))
        assert isinstance(error, jax.errors.TracerBoolConversionError)


def test_prints_of_tangents_come_in_order(capfd):
    def case(J):
        f = J.custom_jvp(lambda x: J.numpy.sin(x))

        def rule(p, t):
            J.debug.print("{}", t[0])
            print("then")
            return J.numpy.sin(p[0]) + t[0], t[0]

        f.defjvp(rule)
        return J.jvp(lambda x: f(f(x)), (np.float32(1),), (np.float32(2),))

    check(case, weak=False)
    assert capfd.readouterr().out == "2.0\nthen\n" * 4


def test_values_of_rules_with_prints_are_seen_without_these(capfd):
    """They are printed once, when the derivative is taken."""

    def case(J):
        seen = []

        def g(x):
            y = J.jit(function(J, seen, ("rule",)))(x)
            look = bool(y > 1.5)
            return y * look

        return J.jvp(g, (np.float32(1),), (np.float32(2),)), seen

    check(case, weak=False)
