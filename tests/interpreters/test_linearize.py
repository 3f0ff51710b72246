"""Calls under differentiation: one forward call that keeps residuals, one backward call."""

from __future__ import annotations

import jax as oracle
import numpy as np
import pytest

import tinyjax
from tests.golden import assert_jaxpr, f32
from tinyjax import lax
from tinyjax import numpy as jnp
from tinyjax.core.ops import Op
from tinyjax.core.uop import toposort
from tinyjax.interpreters.count import arithmetic

M = f32[4, 4]


def body_of(f, *args):
    return tinyjax.jit(f).trace(*args).body


def ops(body, inside=True):
    """All nodes of a body, those of the bodies inside included."""
    return list(toposort([body], bodies=inside))


def calls(f, *args):
    return [n for n in toposort(body_of(f, *args).src) if n.op is Op.CALL]


two = tinyjax.function(lambda t, w1, w2: (t @ w1) @ w2, name="two")


def test_gradients_of_two_weights_come_from_one_backward_call_and_none_for_x():
    loss = lambda t, w1, w2: jnp.sum(two(t, w1, w2))
    assert_jaxpr(
        tinyjax.grad(loss, (1, 2)),
        [M, M, M],
        """
        { lambda a:f32[4,4] b:f32[4,4] c:f32[4,4]. let
            _:f32[4,4] d:f32[4,4] = function[
              name=two
              body={ lambda a:f32[4,4] b:f32[4,4] c:f32[4,4]. let
                  d:f32[4,4] = dot[contract=((1),(0))] a b
                  e:f32[4,4] = dot[contract=((1),(0))] d c
                in (e, d) }
            ] a b c
            e:f32[4,4] = expand[dims=()] 1.0:f32[]
            f:f32[4,4] g:f32[4,4] = function[
              name=transpose(two)
              body={ lambda a:f32[4,4] b:f32[4,4] c:f32[4,4] d:f32[4,4]. let
                  e:f32[4,4] = dot[contract=((1),(1))] d b
                  f:f32[4,4] = dot[contract=((0),(0))] a e
                  g:f32[4,4] = dot[contract=((0),(0))] c d
                in (f, g) }
            ] a c d e
          in (f, g) }""",
    )


def test_an_intermediate_that_is_returned_is_a_residual_and_not_computed_again():
    both = tinyjax.function(lambda t, w1, w2: (t @ w1, (t @ w1) @ w2), name="both")
    loss = lambda t, w1, w2: jnp.sum(both(t, w1, w2)[1])
    plain = lambda t, w1, w2: jnp.sum(two(t, w1, w2))
    more = arithmetic(body_of(tinyjax.value_and_grad(loss, (0, 1, 2)), M, M, M))
    assert more <= arithmetic(body_of(tinyjax.value_and_grad(plain, (0, 1, 2)), M, M, M))
    assert_jaxpr(
        tinyjax.grad(loss, 1),
        [M, M, M],
        """
        { lambda a:f32[4,4] _ b:f32[4,4]. let
            c:f32[4,4] = expand[dims=()] 1.0:f32[]
            d:f32[4,4] = function[
              name=transpose(both)
              body={ lambda a:f32[4,4] b:f32[4,4] c:f32[4,4]. let
                  d:f32[4,4] = dot[contract=((1),(1))] c b
                  e:f32[4,4] = dot[contract=((0),(0))] a d
                in (e,) }
            ] a b c
          in (d,) }""",
    )


def test_the_forward_is_not_recomputed_in_the_backward():
    loss = lambda t, w1, w2: jnp.sum(two(t, w1, w2))
    dots = [n for n in ops(body_of(tinyjax.grad(loss, (0, 1, 2)), M, M, M)) if n.op is Op.DOT]
    # forward t@w1 and (.)@w2; backward ct@w2.T, h.T@ct, (.)@w1.T, t.T@(.)
    assert len(dots) == 6


def test_two_applications_share_their_bodies():
    f = lambda t, w: jnp.sum(layer(layer(t, w), w))
    layer = tinyjax.function(lambda t, w: jnp.tanh(t @ w), name="layer")
    found = calls(tinyjax.grad(f, 1), M, M)
    assert len(found) == 4
    # The first layer's backward has no cotangent to give to t.
    assert len({n.src[0] for n in found if n.arg.name == "layer"}) == 1


def test_derived_bodies_are_made_once():
    f = lambda t, w: jnp.sum(two(t, w, w))
    first = body_of(tinyjax.grad(f, 1), M, M)
    assert body_of(tinyjax.grad(lambda t, w: jnp.sum(two(t, w, w)), 1), M, M) is first


def test_second_derivatives_of_a_call_are_calls_too():
    f = tinyjax.function(lambda x: jnp.sin(x) * x, name="f")
    assert calls(tinyjax.grad(tinyjax.grad(f)), f32[()])
    got, want = (J.grad(J.grad(lambda x: J.numpy.sin(x) * x))(0.7) for J in (tinyjax, oracle))
    np.testing.assert_allclose(np.asarray(tinyjax.grad(tinyjax.grad(f))(0.7)), want, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)


def test_constants_of_a_loop_are_not_stacked():
    def f(w, xs):
        return jnp.sum(lax.scan(lambda c, x: (jnp.tanh(c @ jnp.exp(w)) + x, None), xs[0], xs)[0])

    scans = [
        n for n in toposort(body_of(tinyjax.grad(f), f32[3, 3], f32[5, 3]).src) if n.op is Op.SCAN
    ]
    forward = next(n for n in scans if not n.arg.reverse)
    # the carry before each step, and what tanh needs; never exp(w), of shape [3, 3] each step
    assert all(a.shape != (5, 3, 3) for a in forward.aval.elts)


@pytest.mark.parametrize("order", [1, 2])
def test_a_loop_of_loops_has_jaxs_derivatives(order):
    def f(J):
        def inner(c, x):
            return J.lax.scan(lambda d, y: (J.numpy.sin(d * y) + x, d), c, xs)[0], c

        def g(w):
            return J.lax.scan(inner, w, xs)[0]

        for _ in range(order):
            g = J.grad(g)
        return g(0.3)

    xs = np.array([0.5, -0.3, 0.8], "f4")
    np.testing.assert_allclose(np.asarray(f(tinyjax)), np.asarray(f(oracle)), rtol=1e-5)


def test_the_weights_of_a_scanned_layer_are_saved_once():
    """Residuals of xs are the xs themselves."""

    def f(ws, x):
        return jnp.sum(lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0])

    assert_jaxpr(
        tinyjax.grad(f),
        [f32[6, 3, 3], f32[2, 3]],
        """
        { lambda a:f32[6,3,3] b:f32[2,3]. let
            c:f32[2,3] = expand[dims=()] 1.0:f32[]
            _:f32[2,3] d:f32[6,2,3] e:f32[6,2,3] = scan[
              body={ lambda a:f32[2,3] b:f32[3,3]. let
                  c:f32[2,3] = dot[contract=((1),(0))] a b
                  d:f32[2,3] = tanh c
                in (d, a, d) }
              num_consts=0
              num_carry=1
              length=6
            ] b a
            _:f32[2,3] f:f32[6,3,3] = scan[
              body={ lambda a:f32[2,3] b:f32[3,3] c:f32[2,3] d:f32[2,3]. let
                  e:f32[2,3] = mul d d
                  f:f32[2,3] = sub 1.0 e
                  g:f32[2,3] = mul a f
                  h:f32[2,3] = dot[contract=((1),(1))] g b
                  i:f32[3,3] = dot[contract=((0),(0))] c g
                in (h, i) }
              num_consts=0
              num_carry=1
              length=6
              reverse=True
            ] c a d e
          in (f,) }""",
    )
