"""Effects of functions that are differentiated: how many, in which order, and what they cost.

All callbacks here are ordered, so JAX's order is a promise.
"""

from __future__ import annotations

import jax as oracle
import numpy as np
import pytest

import tinyjax
from tests.engine.test_effects import INSIDE, Log
from tests.oracle import assert_same

x, two = np.float32(0.7), np.float32(2)


def seen(J, run):
    """What a program gives and what its callbacks saw; of an error, its class."""
    log = Log(J)
    note = lambda tag, *args: log(tag, *args, ordered=True)
    try:
        out = run(J, note)
    except Exception as error:
        out = type(error)
    J.effects_barrier()
    return out, log.seen


def agree(run):
    (ours, mine), (theirs, other) = seen(tinyjax, run), seen(oracle, run)
    assert mine == other
    if isinstance(theirs, type):
        assert isinstance(ours, type) and issubclass(ours, theirs), (ours, theirs)
    else:
        assert_same(ours, theirs, weak=False)


def noting(J, note, tangents=True):
    """sin, whose jvp rule notes what it is given, used twice with notes between."""
    sin = J.custom_jvp(lambda x: (note("f", x), J.numpy.sin(x))[1])

    @sin.defjvp
    def rule(primals, dots):
        (x,), (t,) = primals, dots
        note("x", x)
        if tangents:
            note("t", t)
        y = J.numpy.sin(x)
        note("y", y)
        return y, J.numpy.cos(x) * t

    def f(x):
        note("a", x)
        y = sin(x * 2)
        note("b", y)
        z = sin(y)
        note("c", z)
        return z * x

    return f


AROUND = {
    "nothing": lambda J, f: f,
    "jit": lambda J, f: J.jit(f),
    "jit in a function": lambda J, f: lambda x: J.jit(f)(x) + x,
    "scan": INSIDE["scan"],
    "cond": INSIDE["cond"],
    "checkpoint": INSIDE["checkpoint"],
}
FORWARD = {
    "jvp": lambda J, f: J.jvp(f, (x,), (two,)),
    "jvp in jit": lambda J, f: J.jit(lambda x: J.jvp(f, (x,), (x,)))(x),
    "jacfwd": lambda J, f: J.jacfwd(f)(x),
    "jvp of jvp": lambda J, f: J.jvp(lambda x: J.jvp(f, (x,), (two,))[1], (x,), (two,)),
    "grad of jvp": lambda J, f: J.grad(lambda x: J.jvp(f, (x,), (two,))[1])(x),
}
REVERSE = {
    "grad": lambda J, f: J.grad(f)(x),
    "vjp": lambda J, f: J.vjp(f, x)[1](two),
    "grad of grad": lambda J, f: J.grad(J.grad(f))(x),
    "jvp of grad": lambda J, f: J.jvp(J.grad(f), (x,), (two,)),
    "grad of grad in jit": lambda J, f: J.jit(J.grad(J.grad(f)))(x),
}


@pytest.mark.parametrize("around", AROUND)
def test_effects_that_see_tangents_come_in_their_place(around):
    """In forward mode, at once; where the linear part comes later, the others do not wait for them."""
    for derive in FORWARD.values():
        agree(lambda J, note, derive=derive: derive(J, AROUND[around](J, noting(J, note))))
    if around != "checkpoint":
        agree(lambda J, note: J.linearize(AROUND[around](J, noting(J, note)), x)[1](two))


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("tangents", [False, True])
def test_what_comes_after_an_effect_that_reverse_mode_drops_comes_in_its_place(around, tangents):
    for derive in REVERSE.values():
        agree(
            lambda J, note, derive=derive: derive(J, AROUND[around](J, noting(J, note, tangents)))
        )


def test_python_may_look_at_values_after_effects_that_see_tangents():
    def run(J, note):
        f = noting(J, note)

        def g(x):
            y = J.jit(f)(x)
            note("positive" if y > 0 else "negative", y)
            return y * f(x)

        return J.jvp(g, (x,), (two,)), J.grad(g)(x)

    agree(run)


def test_values_that_depend_on_tangents_in_a_jvp_of_a_jvp():
    """What is put off by the inner derivative is put off by the outer one as well."""

    def run(J, note):
        f = J.custom_jvp(lambda x: J.numpy.sin(x))
        f.defjvp(lambda p, t: (note("r", p[0]), (p[0] * t[0], J.numpy.cos(p[0]) * t[0]))[1])
        inner = lambda x: J.jvp(J.jit(lambda x: (note("a", x), f(x))[1]), (x,), (x,))[0]
        return J.jvp(inner, (x,), (two,))

    agree(run)


# --- cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("around", ["nothing", "jit", "scan", "cond"])
@pytest.mark.parametrize("derive", ["jvp", "linearize", "grad"])
def test_what_effects_need_is_computed_once(around, derive):
    """Counted by a pure callback, which runs as often as its value is computed."""

    def run(J, note):
        spec = J.ShapeDtypeStruct((), np.float32)

        def count(v):
            calls[J].append(1)
            return np.sin(v)

        sin = J.custom_jvp(lambda x: J.pure_callback(count, spec, x))
        sin.defjvp(lambda p, t: (sin(p[0]), J.numpy.cos(p[0]) * t[0]))

        def f(x):
            y = sin(x) * 2
            note("y", y)
            return J.numpy.exp(y)

        g = f if around == "nothing" else INSIDE[around](J, f)
        if derive == "jvp":
            return J.jvp(g, (x,), (two,))
        return J.grad(g)(x) if derive == "grad" else J.linearize(g, x)[1](two)

    calls = {tinyjax: [], oracle: []}
    agree(run)
    assert len(calls[tinyjax]) == len(calls[oracle])


# --- checkpoints ----------------------------------------------------------------------------------


def nested(J, note, depth, policy=None):
    def f(x):
        note("x", x)
        y = J.numpy.sin(x)
        note("y", y)
        return J.numpy.sin(y)

    for _ in range(depth):
        f = J.checkpoint(f, policy=policy and getattr(J.checkpoint_policies, policy))
    return f


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("jit", [False, True])
def test_every_derivative_repeats_a_print_once_per_checkpoint_around_it(depth, jit):
    """JAX's number where it is the same rule: the first derivative, and one checkpoint."""

    def run(J, note, order):
        f = nested(J, note, depth)
        for _ in range(order):
            f = J.jit(J.grad(f)) if jit else J.grad(f)
        return f(x)

    for order in (1, 2, 3):
        _, calls = seen(tinyjax, lambda J, note, order=order: run(J, note, order))
        assert [tag for tag, _ in calls] == ["x", "y"] * (1 + depth * order)
        if order == 1 or depth < 2:
            agree(lambda J, note, order=order: run(J, note, order))


@pytest.mark.parametrize("policy", ["everything_saveable", "nothing_saveable", "dots_saveable"])
def test_prints_of_what_a_policy_saves_are_not_repeated(policy):
    """If it takes prints for saved, only those of the checkpoint's arguments are."""
    for derive in (*REVERSE.values(), *FORWARD.values()):
        agree(lambda J, note, derive=derive: derive(J, nested(J, note, 1, policy)))
        agree(lambda J, note, derive=derive: derive(J, J.jit(nested(J, note, 1, policy))))


# --- examples -------------------------------------------------------------------------------------

EXAMPLES = {
    "vmap of grad": lambda J, f, v: J.vmap(J.grad(f))(v),
    "jit of vmap of grad": lambda J, f, v: J.jit(J.vmap(J.grad(f)))(v),
    "grad of vmap": lambda J, f, v: J.grad(lambda v: J.vmap(f)(v).sum())(v),
    "grad of vmap of jit": lambda J, f, v: J.grad(lambda v: J.vmap(J.jit(f))(v).sum())(v),
    "jacrev": lambda J, f, v: J.jacrev(f)(x),
    "jit of jacrev": lambda J, f, v: J.jit(J.jacrev(f))(x),
    "of what is shared": lambda J, f, v: J.vmap(lambda v, s: J.grad(f)(s) * v, (0, None))(v, x),
}
FORWARD_EXAMPLES = {
    "vmap of jvp": lambda J, f, v: J.vmap(lambda v: J.jvp(f, (v,), (v,)))(v),
    "jvp of vmap": lambda J, f, v: J.jvp(J.vmap(f), (v,), (v,)),
    "jvp of vmap of jit": lambda J, f, v: J.jvp(J.vmap(J.jit(f)), (v,), (v,)),
    "jacfwd": lambda J, f, v: J.jacfwd(f)(x),
    "jit of jacfwd": lambda J, f, v: J.jit(J.jacfwd(f))(x),
}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("where", ["jvp", "fwd", "bwd"])
@pytest.mark.parametrize("what", ["value", "derivative", "nothing", "its result"])
def test_io_in_a_rule_of_examples_is_refused_where_jax_refuses_it(where, what, ordered):
    """An ordered one that examples give different arguments; one that they share is called once."""

    def run(J, note, derive):
        log = Log(J)
        io = lambda given: log.io(where, given, ordered)
        note.calls = log.seen

        def told(primal, derivative):
            if what == "nothing":
                io(J.numpy.float32(1))
            if what == "derivative":
                io(derivative)
            if what == "value":
                io(primal)
            return io(primal) if what == "its result" else primal

        if where == "jvp":
            f = J.custom_jvp(J.numpy.sin)

            @f.defjvp
            def rule(primals, tangents):
                (x,), (t,) = primals, tangents
                x = told(x, t)
                return J.numpy.sin(x), J.numpy.cos(x) * t

            return derive(J, f, J.numpy.arange(2, dtype=np.float32))
        f = J.custom_vjp(J.numpy.sin)

        def fwd(x):
            x = told(x, x) if where == "fwd" else x
            return J.numpy.sin(x), x

        def bwd(x, ct):
            x = told(x, ct) if where == "bwd" else x
            return (J.numpy.cos(x) * ct,)

        f.defvjp(fwd, bwd)
        return derive(J, f, J.numpy.arange(2, dtype=np.float32))

    for derive in (*EXAMPLES.values(), *(FORWARD_EXAMPLES.values() if where == "jvp" else ())):
        found = []
        for J in (tinyjax, oracle):
            note = lambda tag: None
            try:
                out = run(J, note, derive)
            except Exception as error:
                out = error
            J.effects_barrier()
            found.append((out, note.calls if ordered else sorted(note.calls)))
        (ours, calls), (theirs, others) = found
        assert calls == others
        if isinstance(theirs, Exception):
            assert isinstance(ours, type(theirs)) and "rdered IO" in str(ours)
        else:
            assert_same(ours, theirs, weak=False)
