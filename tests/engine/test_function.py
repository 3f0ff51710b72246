"""`function`: a Python function as one call, compiled and differentiated as a unit."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import tinyjax
from tests.golden import assert_jaxpr, f32
from tinyjax import Dim, function, grad, jit, value_and_grad, vmap
from tinyjax import numpy as jnp
from tinyjax.core.ops import Op
from tinyjax.core.uop import toposort
from tinyjax.interpreters.count import arithmetic

W = np.arange(16, dtype=np.float32).reshape(4, 4)
ONES = np.ones((4, 4), np.float32)


def body_of(f, *args):
    return jit(f).trace(*args).body


def calls(f, *args):
    """The calls of a jaxpr, outermost only, in order."""
    return [n for n in toposort(body_of(f, *args).src) if n.op is Op.CALL]


@pytest.mark.parametrize("precompile", [False, True])
def test_two_outputs_are_made_by_one_program(precompile):
    f = function(lambda t: (t + 1, t + 2), precompile=precompile)
    a, b = f(jnp.ones(3))
    np.testing.assert_array_equal(np.asarray(a), [2, 2, 2])
    np.testing.assert_array_equal(np.asarray(b), [3, 3, 3])
    assert function(f.__wrapped__).lower(jnp.ones(3)).cost["kernels"] == 1


def product(**options):
    return function(lambda t, w1, w2: (t @ w1) @ w2, name="product", **options)


OPTIONS = [{}, {"precompile": True}, {"precompile": True, "precompile_backward": True}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("outer", [lambda f: f, jit])
def test_gradients_of_a_chain_of_products(options, outer):
    f = product(**options)
    d1, d2 = outer(grad(lambda t, w1, w2: jnp.sum(f(t, w1, w2)), (1, 2)))(W, W, W)
    np.testing.assert_allclose(np.asarray(d1), W.T @ ONES @ W.T)
    np.testing.assert_allclose(np.asarray(d2), (W @ W).T @ ONES)


def test_one_backward_call_returns_a_tuple_of_the_two_gradients_asked_for():
    f = product()
    found = calls(grad(lambda t, w1, w2: jnp.sum(f(t, w1, w2)), (1, 2)), W, W, W)
    assert [n.arg.name for n in found] == ["product", "transpose(product)"]
    assert len(found[1].aval.elts) == 2


def test_precompiled_forward_and_backward_are_a_program_each():
    f = product(precompile=True, precompile_backward=True)
    found = calls(grad(lambda t, w1, w2: jnp.sum(f(t, w1, w2)), (1, 2)), W, W, W)
    assert [n.arg.precompile for n in found] == [True, True]
    lowered = jit(grad(lambda t, w1, w2: jnp.sum(f(t, w1, w2)), (1, 2))).lower(W, W, W)
    assert lowered.schedule.count("program") >= 2


def test_only_the_forward_is_precompiled_if_the_backward_is_not_asked_for():
    f = product(precompile=True)
    found = calls(grad(lambda t, w1, w2: jnp.sum(f(t, w1, w2)), (1, 2)), W, W, W)
    assert [n.arg.precompile for n in found] == [True, False]


def test_call_sites_of_one_signature_share_one_program():
    layer = function(lambda x, w: jnp.tanh(x @ w), precompile=True)
    found = calls(lambda x, w: layer(layer(layer(x, w), w), w), W, W)
    assert len(found) == 3 and len({n.src[0] for n in found}) == 1


def test_returning_the_intermediate_costs_no_arithmetic():
    both = function(lambda t, w1, w2: (t @ w1, (t @ w1) @ w2))
    only = product()
    more = value_and_grad(lambda *a: jnp.sum(both(*a)[1]), (0, 1, 2))
    less = value_and_grad(lambda *a: jnp.sum(only(*a)), (0, 1, 2))
    assert arithmetic(body_of(more, W, W, W)) <= arithmetic(body_of(less, W, W, W))


def test_a_missing_cotangent_counts_as_zero():
    f = function(lambda x: (jnp.sin(x), x * x, jnp.exp(x)))
    assert float(grad(lambda x: f(x)[1])(3.0)) == 6.0


def test_cotangents_of_one_output_used_twice_add():
    f = function(lambda x: (x * x, x + 1))
    assert float(grad(lambda x: f(x)[0] + 3 * f(x)[0])(3.0)) == 24.0

    def once(x):
        y, _ = f(x)
        return y + 3 * y

    assert float(grad(once)(3.0)) == 24.0


def test_an_array_given_for_two_parameters_gets_both_gradients():
    f = function(lambda a, b: a * b * b)
    assert float(grad(lambda x: f(x, x))(2.0)) == 12.0
    g = function(lambda a: a * jnp.sin(a) + a)
    np.testing.assert_allclose(float(grad(g)(2.0)), np.sin(2) + 2 * np.cos(2) + 1, rtol=1e-6)


class Layer:
    def __init__(self, w):
        self.w = jnp.asarray(w)

    @function
    def __call__(self, x):
        return x @ self.w

    @function(precompile=True)
    def twice(self, x):
        return self(self(x))

    @function(static_argnames="n")
    def power(self, x, n):
        return x * n + self.w[0, 1]


def test_methods_capture_the_arrays_of_self():
    layer = Layer(W)
    np.testing.assert_allclose(np.asarray(layer(ONES)), ONES @ W)
    np.testing.assert_allclose(np.asarray(layer.twice(ONES)), ONES @ W @ W)
    np.testing.assert_allclose(np.asarray(grad(lambda x: jnp.sum(layer(x)))(ONES)), ONES @ W.T)
    assert len(calls(layer.twice, ONES)) == 1
    assert float(layer.power(2.0, n=3)) == 7.0 and float(layer.power(2.0, 4)) == 9.0
    layer.w = jnp.asarray(2 * W)  # what the object holds is read at each call
    np.testing.assert_allclose(np.asarray(layer(ONES)), ONES @ (2 * W))
    np.testing.assert_allclose(np.asarray(layer.twice(ONES)), ONES @ (2 * W) @ (2 * W))


class Deeper(Layer):
    def __call__(self, x):
        return Layer.__call__(self, x) + 1.0

    @function(static_argnums=2)
    def scaled(self, x, *modes):
        return x * self.w[0, 1] * (2.0 if modes[0] == "double" else 1.0)

    @function(dynamic_shapes=(None, {0: Dim("n", 1, 9)}))
    def wide(self, x):
        TRACED.append(x.shape)
        return x * self.w[0, 1]

    @function(allow_implicit=False)
    def closed(self, x):
        return x @ self.w


TRACED: list[Any] = []


def test_a_method_is_called_through_its_class():
    layer = Deeper(W)
    np.testing.assert_allclose(np.asarray(layer(ONES)), ONES @ W + 1.0)
    assert float(Layer.power(layer, 2.0, n=3)) == float(layer.power(2.0, 3))
    assert float(WithRule.value(WithRule(np.float32([1, 2])), np.float32([3, 4]))) == 11.0


def test_a_method_keeps_the_options_of_its_function():
    layer = Deeper(W)
    assert float(layer.scaled(3.0, "double")) == 2 * float(layer.scaled(3.0, "single"))
    for size in (2, 5):
        assert layer.wide(jnp.ones(size)).shape == (size,)
    assert {str(s) for s in TRACED} == {"(n,)"}
    with pytest.raises(ValueError, match="function closed with allow_implicit=False"):
        layer.closed(ONES)


def test_captured_values_that_are_differentiated_get_gradients():
    def loss(w):
        f = function(lambda x: jnp.sum(x @ w))
        return f(jnp.asarray(ONES))

    np.testing.assert_allclose(np.asarray(grad(loss)(W)), ONES.T @ ONES)


def test_forbidden_captures_are_listed():
    w = jnp.asarray(W)
    with pytest.raises(ValueError, match=r"captures 1 arrays from outside: f32\[4,4\]"):
        function(lambda x: x @ w, allow_implicit=False)(ONES)
    function(lambda x: x @ x, allow_implicit=False)(ONES)


def test_grad_fxn_replaces_the_rule():
    f = function(lambda x, y: x * y, grad_fxn=lambda ct, x, y: (10 * ct * y, None))
    assert [float(g) for g in grad(f, (0, 1))(2.0, 3.0)] == [30.0, 0.0]
    assert float(jit(grad(f))(2.0, 3.0)) == 30.0
    np.testing.assert_allclose(
        np.asarray(vmap(grad(f), (0, None))(np.ones(2, "f4"), 3.0)), [30, 30]
    )


def test_trees_and_static_arguments():
    @function(static_argnames="n")
    def f(p, n):
        return {"out": p["a"] * n, "rest": [p["b"]]}

    out = f({"a": 2.0, "b": jnp.ones(2)}, n=3)
    assert float(out["out"]) == 6.0 and out["rest"][0].shape == (2,)


def test_partial_application_and_wrapping_keep_the_name():
    f = function(functools.partial(lambda x, k: x * k, k=3))
    assert float(f(2.0)) == 6.0

    @function(precompile=True)
    def named(x):
        """doc"""
        return x

    assert named.__name__ == "named" and named.__doc__ == "doc"


def test_no_arguments_and_no_outputs():
    assert function(lambda: None)() is None
    assert float(function(lambda: 3.0)()) == 3.0


def test_a_call_in_a_jaxpr_shows_its_body():
    f = function(lambda x: jnp.sin(x) + 1, name="f")
    assert_jaxpr(
        lambda x: f(f(x)),
        [f32[3]],
        """
        let f = { lambda a:f32[3]. let
            b:f32[3] = sin a
            c:f32[3] = add b 1.0
          in (c,) } in
        { lambda a:f32[3]. let
            b:f32[3] = function[name=f body=f] a
            c:f32[3] = function[name=f body=f] b
          in (c,) }""",
    )


def test_second_derivatives_and_batches_of_a_precompiled_function():
    f = function(lambda x: jnp.sin(x) * x, precompile=True, precompile_backward=True)
    want = [2 * np.cos(x) - x * np.sin(x) for x in (0.3, 0.9)]
    got = jit(vmap(grad(grad(f))))(np.array([0.3, 0.9], "f4"))
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)
    assert tinyjax.make_jaxpr(f)(0.3) is not None


class WithRule:
    def __init__(self, w):
        self.w = jnp.asarray(w)

    @function(grad_fxn=lambda ct, self, x, scale: (None, 10 * ct * self.w * scale, None))
    def value(self, x, scale=1.0):
        return jnp.sum(self.w * x) * scale

    @function(grad_fxn=lambda ct, self, x: (ct, ct))
    def wrong(self, x):
        return x


def test_grad_fxn_on_a_method_gets_self():
    layer, x = WithRule(np.float32([1, 2])), np.float32([3, 4])
    assert float(layer.value(x)) == 11.0
    np.testing.assert_allclose(grad(layer.value)(x), [10, 20])
    np.testing.assert_allclose(jit(grad(layer.value))(x, scale=2.0), [20, 40])
    np.testing.assert_allclose(vmap(grad(layer.value))(np.stack([x, x])), [[10, 20]] * 2)
    layer.w = jnp.asarray(np.float32([5, 5]))  # what the object holds is read at each call
    np.testing.assert_allclose(grad(layer.value)(x), [50, 50])
    with pytest.raises(TypeError, match="None for self"):
        grad(layer.wrong)(1.0)
