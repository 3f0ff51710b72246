"""Work is linear in the graph: counts of nodes made, never seconds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tinyjax
from tests.lowering.bodies import transformer
from tinyjax import numpy as jnp
from tinyjax.core.uop import nodes_created
from tinyjax.lowering.program import lower

SALTS = itertools.count(1)


def chain(length):
    """Sines and factors that no other chain has, so that none of its nodes is there already."""
    salt = next(SALTS)

    def f(x):
        for i in range(length):
            x = jnp.sin(x) * (salt + i * 1e-3)
        return x

    return f


def made_by(job):
    """Nodes a call makes."""
    before = nodes_created()
    job()
    return nodes_created() - before


JOBS = {
    "trace": lambda f: tinyjax.make_jaxpr(f)(1.0),
    "jvp": lambda f: tinyjax.make_jaxpr(lambda x: tinyjax.jvp(f, (x,), (x,)))(1.0),
    "transpose": lambda f: tinyjax.make_jaxpr(tinyjax.grad(f))(1.0),
    "batch": lambda f: tinyjax.make_jaxpr(tinyjax.vmap(f))(jnp.ones(3)),
    "lowering": lambda f: tinyjax.jit(f).lower(1.0).compile(),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_chain_four_times_as_long_makes_about_four_times_the_nodes(name):
    JOBS[name](chain(5))  # what is made once
    short = made_by(lambda: JOBS[name](chain(50)))
    long = made_by(lambda: JOBS[name](chain(200)))
    assert 3.8 * short < long < 4.2 * short


def test_more_equal_layers_need_no_more_kernels():
    counts = {}
    for layers in (3, 6, 12):
        body, inputs = transformer(layers)
        counts[layers] = len(lower(body, inputs).kernels)
    assert counts[3] == counts[6] == counts[12]


def deep(layers):
    """Loss and gradients of a residual network; the layers are equal.

    Values are large enough that reading a buffer is cheaper than adding up again what several
    layers left in a cotangent (which is right for a few hundred elements).
    """

    def loss(params, x):
        for w, b, scale in params:
            h = x - x.mean(-1, keepdims=True)
            h = h * tinyjax.lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-5) * scale
            x = x + jnp.tanh(h @ w + b) @ w.T
        return (x * x).mean()

    params = [(jnp.ones((64, 96)), jnp.zeros(96), jnp.ones(64)) for _ in range(layers)]
    return tinyjax.jit(tinyjax.value_and_grad(loss)), (params, jnp.ones((128, 64)))


def test_more_equal_layers_need_no_more_kernels_backwards_either():
    counts = {}
    for layers in (6, 24):
        step, args = deep(layers)
        counts[layers] = len(step.lower(*args).kernels)
    assert counts[6] == counts[24]


def test_sums_inside_of_sums_make_code_in_proportion():
    """A sum within a sum is one sweep more over all that is below it. Once a group took any number
    of them, so that its code, sums times nodes, took minutes to compile."""

    def size(count):
        def f(x):
            for i in range(count):
                x = x + jnp.sin(x).sum() * (i % 7)
            return x

        return len(tinyjax.jit(f).lower(jnp.ones(4)).llvm.splitlines())

    assert size(160) <= 4.6 * size(40)


def test_a_long_chain_is_traced_compiled_and_run_without_recursion():
    @tinyjax.jit
    def f(x):
        for _ in range(10_000):
            x = jnp.sin(x) + 1e-3
        return x

    expected = 0.5
    for _ in range(10_000):
        expected = np.sin(expected) + 1e-3
    assert float(f(0.5)) == pytest.approx(expected, rel=1e-4)


def test_lowering_equal_layers_makes_nodes_in_proportion():
    lower(*transformer(1))
    # Another length each time: graphs of equal shapes would share their nodes.
    made = {n: made_by(lambda n=n: lower(*transformer(n, time=9 + n))) for n in (4, 8, 16)}
    assert made[4] < made[8] < made[16] <= 2.3 * made[8]


def test_a_deep_graph_needs_no_recursion():
    def f(x):
        for _ in range(20_000):
            x = x + 1.0
        return x

    assert float(tinyjax.grad(f)(0.0)) == 1.0
