"""Functions with a jvp rule and a vjp rule: forward mode is the former's, with all that it writes and
prints, reverse mode the latter's. (In JAX a function has one of them.)"""

from __future__ import annotations

import pytest

import tinyjax as jax
from tinyjax import numpy as jnp

AROUND = {
    "alone": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
    "cond": lambda f: lambda x: jax.lax.cond(x > 0, f, lambda x: x, x),
}
FORWARD = {
    "jvp": lambda f, x: jax.jvp(f, (x,), (1.0,))[1],
    "linearize": lambda f, x: jax.linearize(f, x)[1](1.0),
    "jit of jvp": lambda f, x: jax.jit(lambda x: jax.jvp(f, (x,), (1.0,))[1])(x),
}
REVERSE = {
    "grad": lambda f, x: jax.grad(f)(x),
    "vjp": lambda f, x: jax.vjp(f, x)[1](1.0)[0],
    "jit of grad": lambda f, x: jax.jit(jax.grad(f))(x),
    "jvp of grad": lambda f, x: jax.jvp(jax.grad(f), (x,), (0.0,))[0],
}


def function(did):
    """`did(rule, value)` is called by each rule; the slope is 2 in reverse, 3 in forward mode."""
    f = jax.custom_vjp(lambda x: jnp.sin(x))

    def fwd(x):
        did("fwd", x)
        return jnp.sin(x), x

    def bwd(x, ct):
        return (ct * 2.0,)

    def rule(primals, tangents):
        did("jvp", primals[0])
        return jnp.sin(primals[0]), 3.0 * tangents[0]

    f.defvjp(fwd, bwd)
    f.defjvp(rule)
    return f


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("slope", [*FORWARD, *REVERSE])
def test_the_rule_that_is_used_writes_and_the_other_does_not(slope, around):
    writes = {"fwd": jax.new_ref(jnp.zeros(())), "jvp": jax.new_ref(jnp.zeros(()))}

    def did(rule, value):
        writes[rule][...] = jax.lax.stop_gradient(value)

    forward = slope in FORWARD
    found = (FORWARD if forward else REVERSE)[slope](AROUND[around](function(did)), 0.5)
    assert float(found) == (3.0 if forward else 2.0)
    assert float(writes["jvp"][...]) == (0.5 if forward else 0.0)
    assert float(writes["fwd"][...]) == (0.0 if forward else 0.5)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("slope", [*FORWARD, *REVERSE])
def test_the_rule_that_is_used_prints_and_the_other_does_not(slope, around):
    seen = set()

    def did(rule, value):
        jax.debug.callback(lambda _: seen.add(rule), value)

    forward = slope in FORWARD
    (FORWARD if forward else REVERSE)[slope](AROUND[around](function(did)), 0.5)
    jax.effects_barrier()
    assert seen == ({"jvp"} if forward else {"fwd"})


def test_each_order_of_modes_uses_the_rule_of_each():
    f = jax.custom_vjp(lambda x: x**2)
    f.defvjp(lambda x: (x**2, x), lambda x, ct: (ct * 10 * x**3,))
    f.defjvp(lambda p, t: (p[0] ** 2, t[0] * 100 * p[0] ** 5))
    slope = lambda x: jax.jvp(f, (x,), (1.0,))[1]
    for stage in (lambda f: f, jax.jit):
        assert float(stage(jax.grad(slope))(2.0)) == 500 * 2.0**4
        assert float(stage(lambda x: jax.jvp(jax.grad(f), (x,), (1.0,))[1])(2.0)) == 30 * 2.0**2
        assert float(stage(jax.grad(jax.grad(f)))(2.0)) == 30 * 2.0**2
        assert float(stage(jax.jacfwd(jax.jacfwd(f)))(2.0)) == 500 * 2.0**4
