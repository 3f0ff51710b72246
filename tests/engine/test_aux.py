"""`has_aux`: aux belongs to the one run of the function that gives value and derivative."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
import tinyjax.numpy as jnp
from tinyjax import lax


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("way", ["value_and_grad", "vjp", "jvp", "linearize"])
@pytest.mark.parametrize("form", ["scan", "cond", "function", "checkpoint"])
def test_aux_is_of_the_run_that_gives_the_value(form, way, staged):
    """What aux reads is not computed a second time, nor are effects: each call gives a new number."""
    calls = []

    def read():
        calls.append(1)
        return np.float32(len(calls))

    def step(x):
        shape = tinyjax.ShapeDtypeStruct((), "float32")
        return jnp.sin(x) * tinyjax.experimental.io_callback(read, shape)

    f = {
        "scan": lambda x: lax.scan(lambda c, _: (step(c), None), x, None, length=2)[0],
        "cond": lambda x: lax.cond(x > 0, step, lambda v: v, x),
        "function": tinyjax.function(step, precompile=True),
        "checkpoint": tinyjax.checkpoint(step),
    }[form]

    def pair(x):
        y = f(x)
        return y, y

    def run(x):
        if way == "value_and_grad":
            return tinyjax.value_and_grad(pair, has_aux=True)(x)[0]
        if way == "jvp":
            return tinyjax.jvp(pair, (x,), (x,), has_aux=True)[::2]
        made = tinyjax.vjp if way == "vjp" else tinyjax.linearize
        return made(pair, x, has_aux=True)[::2]

    value, aux = (tinyjax.jit(run) if staged else run)(jnp.float32(1))
    assert float(value) == float(aux) != 0
    assert len(calls) == (2 if form == "scan" else 1)


@pytest.mark.parametrize("form", ["scan", "cond", "function"])
def test_aux_costs_no_arithmetic(form):
    def layer(c, w):
        return jnp.tanh(c @ w), None

    f = {
        "scan": lambda x, w: lax.scan(layer, x, w)[0],
        "cond": lambda x, w: lax.cond(x[0, 0] > 0, lambda v: layer(v, w[0])[0], jnp.sin, x),
        "function": tinyjax.function(lambda x, w: layer(x, w[0])[0], precompile=True),
    }[form]
    x, w = jnp.ones((4, 4)), jnp.ones((3, 4, 4))

    def flops(loss, **options):
        staged = tinyjax.jit(tinyjax.value_and_grad(loss, **options)).lower(x, w)
        return staged.cost["flops"]

    def with_aux(x, w):
        y = f(x, w)
        return y.sum(), y

    assert flops(with_aux, has_aux=True) == flops(lambda x, w: f(x, w).sum())
