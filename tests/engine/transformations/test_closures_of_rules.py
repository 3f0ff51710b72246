"""What functions with custom rules, or the rules alone, close over, differentiated from outside.

A rule runs for the innermost derivative that its arguments take part in. What it computes is an
ordinary value for the derivatives around that one, those of closed-over values included.
"""

from __future__ import annotations

import functools
import unittest.mock

import jax as oracle
import numpy as np
import pytest

import tinyjax as jax
from tests.oracle import check, raises
from tinyjax.custom_derivatives import CustomVJPException
from tinyjax.errors import UnexpectedTracerError


def jvp_and_function(J, w):
    f = J.custom_jvp(lambda x: J.numpy.sin(w * x))
    f.defjvp(lambda p, t: (J.numpy.sin(w * p[0]), w * J.numpy.cos(w * p[0]) * t[0]))
    return f


def jvp_alone(J, w):
    f = J.custom_jvp(lambda x: J.numpy.sin(x))
    f.defjvp(lambda p, t: (J.numpy.sin(p[0]), w * w * J.numpy.cos(p[0]) * t[0]))
    return f


def fwd_alone(J, w):
    f = J.custom_vjp(lambda x: J.numpy.sin(x))
    f.defvjp(lambda x: (J.numpy.sin(x), (x, w * w)), lambda r, ct: (ct * J.numpy.cos(r[0]) * r[1],))
    return f


def bwd_alone(J, w):
    f = J.custom_vjp(lambda x: J.numpy.sin(x))
    f.defvjp(lambda x: (J.numpy.sin(x), x), lambda r, ct: (ct * J.numpy.cos(r) * w * w,))
    return f


def vjp_and_function(J, w):
    f = J.custom_vjp(lambda x: J.numpy.sin(w * x))
    f.defvjp(lambda x: (J.numpy.sin(w * x), x), lambda r, ct: (ct * J.numpy.cos(r * w) * w,))
    return f


def static_argument(J, w):
    @functools.partial(J.custom_vjp, nondiff_argnums=(0,))
    def f(k, x):
        return J.numpy.sin(k(x))

    f.defvjp(lambda k, x: (J.numpy.sin(k(x)), x), lambda k, r, ct: (ct * J.numpy.cos(k(r)),))
    return lambda x: f(lambda y: y * w, x)


def custom_gradient(J, w):
    return J.custom_gradient(
        lambda x: (J.numpy.sin(w * x), lambda ct: (ct * J.numpy.cos(w * x) * w,))
    )


def argument_and_rule(J, w):
    f = J.custom_vjp(lambda x, u: J.numpy.sin(u * x))
    f.defvjp(
        lambda x, u: (J.numpy.sin(u * x), (x, u)),
        lambda r, ct: (ct * J.numpy.cos(r[0] * r[1]) * w, ct * w),
    )
    return lambda x: f(x, w)


FORWARD = [jvp_and_function, jvp_alone]
REVERSE = [
    fwd_alone, bwd_alone, vjp_and_function, static_argument, custom_gradient, argument_and_rule,
]  # fmt: skip

INNER = {
    "grad": lambda J, f, x: J.grad(f)(x),
    "vjp": lambda J, f, x: J.vjp(f, x)[1](J.numpy.cos(x))[0],
    "jvp": lambda J, f, x: J.jvp(f, (x,), (1.5,))[1],
    "linearize": lambda J, f, x: J.linearize(f, x)[1](1.5),
    "jit(grad)": lambda J, f, x: J.jit(J.grad(f))(x),
    "checkpoint(grad)": lambda J, f, x: J.checkpoint(J.grad(f))(x),
    "grad(checkpoint)": lambda J, f, x: J.grad(J.checkpoint(f))(x),
    "cond(grad)": lambda J, f, x: J.lax.cond(x > 0, J.grad(f), lambda x: x, x),
    "scan(grad)": lambda J, f, x: J.lax.scan(lambda c, _: (J.grad(f)(c), None), x, None, length=2)[
        0
    ],
    "grad(vmap)": lambda J, f, x: J.grad(lambda xs: J.vmap(f)(xs).sum())(
        J.numpy.stack([x, 2 * x])
    ).sum(),
    "grad(grad)": lambda J, f, x: J.grad(J.grad(f))(x),
    "jvp(grad)": lambda J, f, x: J.jvp(J.grad(f), (x,), (1.5,))[1],
    "grad with aux": lambda J, f, x: sum(J.grad(lambda x: (f(x) * x, f(x)), has_aux=True)(x)),
    "value_and_grad": lambda J, f, x: sum(J.value_and_grad(f)(x)),
}
OUTER = {
    "grad": lambda J, g, w: J.grad(g)(w),
    "jvp": lambda J, g, w: J.jvp(g, (w,), (1.25,))[1],
    "jit(grad)": lambda J, g, w: J.jit(J.grad(g))(w),
    "vmap(grad)": lambda J, g, w: J.vmap(J.grad(g))(J.numpy.stack([w, 2 * w])),
    "grad(grad)": lambda J, g, w: J.grad(J.grad(g))(w),
}


def nested(flavour, inner, outer, J):
    def g(w):
        return INNER[inner](J, flavour(J, w), 0.7 * w)

    return OUTER[outer](J, g, np.float32(0.9))


FORWARD_MODE = ("jvp", "linearize", "jvp(grad)")
ONES = [(f, i, "grad") for f in FORWARD for i in INNER]
ONES += [(f, i, "jit(grad)") for f in REVERSE for i in INNER if i not in FORWARD_MODE]
ONES += [(f, "grad", o) for f in (jvp_alone, bwd_alone, static_argument) for o in OUTER]
NAMES = [f"{f.__name__}: {o} of {i}" for f, i, o in ONES]


@pytest.mark.parametrize("flavour, inner, outer", ONES, ids=NAMES)
def test_an_outer_derivative_sees_what_rules_close_over(flavour, inner, outer):
    check(functools.partial(nested, flavour, inner, outer), tolerance=2e-5)


@pytest.mark.parametrize("stage", [lambda J: lambda f: f, lambda J: J.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("flavour", [vjp_and_function, static_argument, jvp_and_function])
def test_the_derivative_that_the_rule_is_for_cannot_see_them(flavour, stage):
    def case(J):
        return J.grad(lambda w: stage(J)(lambda w: flavour(J, w)(0.7 * w))(w))(0.9)

    with pytest.raises(CustomVJPException, match="closed-over value"):
        case(jax)
    with pytest.raises(Exception):  # noqa: B017  JAX's own is of a kind that depends on the nesting
        case(oracle)


def test_neither_can_one_that_no_argument_takes_part_in():
    raises(lambda J: J.grad(lambda w: jvp_and_function(J, w)(0.7))(0.9))


@pytest.mark.parametrize("flavour", [jvp_alone, fwd_alone, bwd_alone])
def test_jax_gives_zero_where_a_branch_is_differentiated_and_we_do_not(flavour):
    """JAX takes what a rule closes over for a constant there."""

    def of(w, between):
        return jax.grad(between(flavour(jax, w)))(0.7)

    branch = lambda f: lambda x: jax.lax.cond(x > 0, f, lambda x: x, x)
    straight = jax.grad(lambda w: of(w, lambda f: f))(0.9)
    assert float(straight) != 0.0
    np.testing.assert_allclose(jax.grad(lambda w: of(w, branch))(0.9), straight, rtol=1e-6)


def test_values_in_pytrees_and_functions_that_a_rule_closes_over_are_found():
    """Before the rule has run: a checkpoint stages the function, and its rule comes later."""

    def case(J):
        def of(w):
            held = {"weights": [w * w], 3: "keys have no order"}

            def scaled(x):
                return held["weights"][0] * x

            f = J.custom_jvp(J.numpy.sin)
            f.defjvp(lambda p, t: (J.numpy.sin(p[0]), scaled(J.numpy.cos(p[0])) * t[0]))
            return J.grad(J.checkpoint(f))(0.7)

        return J.grad(of)(0.9)

    check(case)


def test_one_that_is_hidden_in_an_object_is_named_as_what_it_is():
    class Holder:
        def __init__(self, weight):
            self.weight = weight

    def of(w):
        holder = Holder(w)
        f = jax.custom_jvp(jnp_sin)
        f.defjvp(lambda p, t: (jnp_sin(p[0]), holder.weight * t[0]))
        return jax.grad(jax.jit(f))(0.7)

    with pytest.raises(UnexpectedTracerError, match="traced value f32.. .*hidden in an object"):
        jax.grad(of)(0.9)


def jnp_sin(x):
    return jax.numpy.sin(x)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("stage", ["eager", "jit", "scan"])
def test_a_bwd_may_write_to_a_ref_and_close_over_traced_values(stage, symbolic):
    stages = {
        "eager": lambda J, f: f,
        "jit": lambda J, f: J.jit(f),
        "scan": lambda J, f: (
            lambda x, w: J.lax.scan(lambda c, _: (c + f(x, w), None), 0.0, None, length=2)[0]
        ),
    }

    def case(J):
        seen = J.new_ref(J.numpy.zeros(()))

        def loss(x, w):
            def fwd(x):
                x = x.value if symbolic else x
                return x * w, x

            def bwd(x, ct):
                seen[...] = x * w
                return (ct * w,)

            f = J.custom_vjp(lambda x: x * w)
            f.defvjp(fwd, bwd, symbolic_zeros=symbolic)
            return f(x) * 3.0

        return stages[stage](J, J.grad(loss))(2.0, 5.0), seen[...]

    check(case, weak=False)


AROUND = {
    "alone": lambda J, f: f,
    "jit": lambda J, f: J.jit(f),
    "vmap": lambda J, f: lambda x: J.vmap(f)(J.numpy.stack([x, x])).sum(),
    "checkpoint": lambda J, f: J.checkpoint(f),
    "scan": lambda J, f: (
        lambda x: J.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]
    ),
    "cond": lambda J, f: lambda x: J.lax.cond(True, f, lambda x: x, x),
}  # fmt: skip


def straight_through(J, kind):
    round = lambda x: J.numpy.round(x)
    if kind == "jvp":
        f = J.custom_jvp(round)
        f.defjvp(lambda p, t: (round(p[0]), t[0]))
    else:
        f = J.custom_vjp(round)
        f.defvjp(lambda x: (round(x), None), lambda _, ct: (ct,))
    return f


@pytest.mark.parametrize("scaled", [False, True], ids=["argument", "product"])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_a_value_that_left_through_aux_is_an_ordinary_one(kind, around, scaled):
    """The rule was for the derivative that did not see it; the true one of rounding is 0."""

    def case(J):
        f = straight_through(J, kind)

        def aux(w):
            of = lambda x: x * w if scaled else x
            return J.grad(lambda x: (f(of(x)) * x, f(of(x)) * 3), has_aux=True)(w)[1]

        slope = J.grad(AROUND[around](J, aux))
        return slope(np.float32(1.3)), J.jit(slope)(np.float32(1.3))

    check(case, weak=False)


@pytest.mark.parametrize("mode", ["grad", "jvp"])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in another"])
@pytest.mark.parametrize("kind", [jvp_alone, bwd_alone])
def test_what_only_a_rule_reads_has_no_part_in_another_derivative(kind, inside, around, mode):
    """The function's argument is a constant here, so the rule is not asked."""

    def case(J):
        def of(w):
            f = kind(J, w)
            if inside:
                inner, f = f, J.custom_vjp(lambda x: inner(x) * x)
                f.defvjp(lambda x: (inner(x) * x, x), lambda _, ct: (2 * ct,))
            return AROUND[around](J, f)(np.float32(0.5)) * w

        if mode == "jvp":
            return J.jvp(of, (np.float32(0.9),), (np.float32(1),))
        return J.grad(of)(np.float32(0.9))

    check(case, weak=False)


def test_any_object_may_be_closed_over():
    """Objects with every attribute, pytrees that cannot be flattened or hold themselves, ..."""

    class Inventive:
        def __getattr__(self, name):
            return Inventive()

    class Broken:
        pass

    class Endless:
        pass

    def refuse(_):
        raise ValueError("cannot be flattened")

    endless = Endless()
    jax.tree_util.register_pytree_node(Broken, refuse, lambda aux, children: Broken())
    jax.tree_util.register_pytree_node(
        Endless, lambda x: ((x,), None), lambda aux, children: endless
    )
    for held in (unittest.mock.call, Inventive(), Broken(), endless):
        f = jax.custom_jvp(jnp_sin)
        f.defjvp(lambda p, t, held=held: (jnp_sin(p[0]), jax.numpy.cos(p[0]) * t[0]))
        np.testing.assert_allclose(jax.jit(jax.grad(f))(0.5), np.cos(0.5), rtol=1e-6)


@pytest.mark.parametrize("stage", ["scan", "jit", "alone"])
def test_a_rule_is_not_dropped_where_its_function_is_called_by_another_rule(stage):
    """JAX refuses too, but in a scan it differentiates the function in place of asking the rule."""

    def case(J):
        def of(w):
            f = jvp_and_function(J, w)
            g = J.custom_jvp(lambda x: f(x) * x)
            g.defjvp(lambda p, t: (f(p[0]) * p[0], f(p[0]) * t[0] * w))
            around = AROUND[stage]
            return J.grad(around(J, g))(0.7 * w)

        return J.grad(of)(np.float32(0.9))

    with pytest.raises(CustomVJPException, match="closed-over value"):
        case(jax)
    if stage == "scan":
        case(oracle)
    else:
        with pytest.raises(Exception):  # noqa: B017  JAX's own depends on the nesting
            case(oracle)
