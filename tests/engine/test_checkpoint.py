"""checkpoint: what is recomputed, what is saved, and that planned memory really falls."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import tinyjax
from tests.golden import assert_jaxpr, f32
from tests.oracle import check
from tinyjax import checkpoint, grad, jit, lax
from tinyjax import numpy as jnp
from tinyjax.core.ops import BODIES, Op
from tinyjax.core.uop import toposort
from tinyjax.engine.checkpoint import checkpoint_name, checkpoint_policies

X3 = np.array([1.0, 2.0, 3.0], "f4")


def op_counts(f, *args):
    """How often each op occurs, calls entered once per call site."""
    counts: Counter[Op] = Counter()

    def count(body):
        for n in toposort(body.src):
            if n.op in BODIES:
                for inner in n.bodies:
                    count(inner)
            else:
                counts[n.op] += 1

    count(jit(f).trace(*args).body)
    return counts


def test_only_inputs_are_saved_and_the_rest_is_recomputed():
    f = checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sum(jnp.sin(x)) * x)))
    assert_jaxpr(
        grad(f),
        [f32[3]],
        """
        { lambda a:f32[3]. let
            b:f32[3] = linear[
              name=transpose(<lambda>)
              body={ lambda a:f32[3] b:f32[]. let
                  c:f32[3] = remat[id=1] a
                  d:f32[3] = sin c
                  e:f32[] = reduce_add[axes=(0)] d
                  f:f32[3] = expand[dims=()] b
                  g:f32[3] = mul e c
                  h:f32[3] = cos g
                  i:f32[3] = mul f h
                  j:f32[3] = mul e i
                  k:f32[3] = mul i c
                  l:f32[] = reduce_add[axes=(0)] k
                  m:f32[3] = expand[dims=()] l
                  n:f32[3] = cos c
                  o:f32[3] = mul m n
                  p:f32[3] = add j o
                in (p,) }
            ] a 1.0:f32[]
          in (b,) }""",
    )


def block(w, x):
    """sin and two products: something for each policy to say."""
    h = checkpoint_name(jnp.sin(x @ w), "h")
    return jnp.tanh(h @ w)


def loss(policy=None, wrap=True):
    f = checkpoint(block, policy=policy) if wrap else block
    return tinyjax.value_and_grad(lambda w, x: jnp.sum(f(w, x)))


P = checkpoint_policies
# Forward 2 products, backward 3 (none for x); of sin, tanh and the products, what is recomputed.
RECOMPUTED = {
    "without checkpoint": ({"wrap": False}, {Op.DOT: 0, Op.SIN: 0}),
    "nothing saved": ({"policy": P.nothing_saveable}, {Op.DOT: 2, Op.SIN: 1}),
    "no policy": ({}, {Op.DOT: 2, Op.SIN: 1}),
    "everything saved": ({"policy": P.everything_saveable}, {Op.DOT: 0, Op.SIN: 0}),
    "products saved": ({"policy": P.dots_saveable}, {Op.DOT: 0, Op.SIN: 1}),
    "products of weights saved": (
        {"policy": P.dots_with_no_batch_dims_saveable},
        {Op.DOT: 0, Op.SIN: 1},
    ),
    "h saved": ({"policy": P.save_only_these_names("h")}, {Op.DOT: 2, Op.SIN: 0}),
}


@pytest.mark.parametrize("name", RECOMPUTED)
def test_a_policy_recomputes_exactly_what_it_does_not_save(name):
    options, extra = RECOMPUTED[name]
    w, x = f32[4, 4], f32[2, 4]
    got, base = op_counts(loss(**options), w, x), op_counts(loss(wrap=False), w, x)
    assert {op: got[op] - base[op] for op in extra} == extra


@pytest.mark.parametrize(
    "policy", [None, P.dots_saveable, P.save_only_these_names("h"), P.everything_saveable]
)
def test_gradients_do_not_depend_on_the_policy(policy):
    w, x = np.linspace(-1, 1, 16, dtype="f4").reshape(4, 4), np.ones((2, 4), "f4")
    want = np.asarray(loss(wrap=False)(w, x)[1])
    for outer in (lambda f: f, jit):
        np.testing.assert_allclose(np.asarray(outer(loss(policy))(w, x)[1]), want, rtol=1e-5)


def network(wrap):
    """Residual layers whose hidden values are 8 times as wide as what they pass on."""

    def layer(x, w):
        return x + jnp.tanh(jnp.tanh(x @ w) @ w.T)

    one = checkpoint(layer) if wrap else layer

    def f(ws, x):
        for w in ws:
            x = one(x, w)
        return jnp.sum(x)

    return grad(f)


def test_planned_peak_memory_falls_for_twelve_layers():
    ws, x = [f32[32, 256]] * 12, f32[64, 32]
    plain = jit(network(False)).lower(ws, x).cost
    saving = jit(network(True)).lower(ws, x).cost
    hidden = 64 * 256 * 4
    assert plain["peak bytes"] - saving["peak bytes"] > 8 * hidden
    assert saving["flops"] < 1.5 * plain["flops"]


def test_a_checkpointed_layer_more_costs_the_memory_of_its_input():
    def peak(layers):
        return jit(network(True)).lower([f32[32, 256]] * layers, f32[64, 32]).cost["peak bytes"]

    assert peak(12) - peak(4) == 8 * 64 * 32 * 4


def test_planned_peak_memory_of_a_scan_over_checkpointed_layers_falls():
    def f(wrap):
        def layer(x, w):
            return x + jnp.tanh(jnp.tanh(x @ w) @ w.T), None

        body = checkpoint(layer) if wrap else layer
        return grad(lambda ws, x: jnp.sum(lax.scan(body, x, ws)[0]))

    ws, x = f32[12, 32, 256], f32[64, 32]
    plain, saving = (jit(f(wrap)).lower(ws, x).cost["peak bytes"] for wrap in (False, True))
    assert plain - saving > 8 * 64 * 256 * 4


CASES = {
    "first and second derivatives": lambda J: [
        d(J.checkpoint(lambda x: J.numpy.sin(J.numpy.sin(x))))(2.0)
        for d in (J.grad, lambda f: J.jit(J.grad(f)), lambda f: J.grad(J.grad(f)))
    ],
    "closures": lambda J: J.grad(lambda w: J.checkpoint(lambda x: J.numpy.sin(w * x))(w))(2.0),
    "in scan": lambda J: J.grad(
        lambda w: J.lax.scan(J.checkpoint(lambda c, x: (J.numpy.sin(w * c * x), c)), w, X3)[0]
    )(2.0),
    "static arguments": lambda J: J.grad(
        J.checkpoint(lambda x, n: x**n if n > 1 else x, static_argnums=(1,))
    )(2.0, 3),
    "forward mode": lambda J: J.jvp(J.checkpoint(lambda x: J.numpy.sin(x)), (2.0,), (1.0,)),
    "vmap": lambda J: J.vmap(J.grad(J.checkpoint(lambda x: J.numpy.sin(x) * x)))(X3),
    "trees": lambda J: J.grad(
        lambda d: J.checkpoint(lambda d: {"s": J.numpy.sin(d["a"]) * d["b"]})(d)["s"]
    )({"a": 1.0, "b": 2.0}),
    "keywords": lambda J: J.grad(lambda a: J.checkpoint(lambda a, *, b: a * b * a)(a, b=a))(3.0),
    "nested": lambda J: J.grad(
        J.checkpoint(lambda x: J.checkpoint(lambda y: J.numpy.sin(y) * y)(x) * x)
    )(2.0),
    "random bits": lambda J: J.grad(
        J.checkpoint(lambda x: J.numpy.sum(J.random.normal(J.random.key(0), (3,)) * x**2))
    )(2.0),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_jaxs(name):
    check(CASES[name], weak=False, tolerance=1e-5)


def test_it_is_traced_once_per_function_and_signature():
    traces = []

    @checkpoint
    def f(x):
        traces.append(1)
        return jnp.sin(x)

    g = grad(lambda x: f(f(x)) + f(2 * x))
    g(1.0)
    g(2.0)
    assert len(traces) == 1


def test_called_alone_it_is_the_function():
    assert float(checkpoint(lambda x: x * 2)(3.0)) == 6.0
    assert tinyjax.remat is checkpoint


def test_called_alone_it_is_traced_abstractly_as_in_jax():
    with pytest.raises(tinyjax.errors.TracerBoolConversionError):
        checkpoint(lambda x: x * 2 if x > 0 else x)(3.0)
