"""grad: what is traced is the forward part, then the transposed linear part."""

from __future__ import annotations

import tinyjax as jax
from tests.golden import assert_jaxpr, f32
from tinyjax import numpy as jnp


def test_the_gradient_of_a_product_is_the_other_factor():
    assert_jaxpr(
        jax.grad(lambda x, y: x * y, (0, 1)),
        [f32[()], f32[()]],
        """
        { lambda a:f32[] b:f32[]. let in (b, a) }""",
    )


def test_values_of_the_forward_part_are_used_again():
    assert_jaxpr(
        jax.value_and_grad(lambda x: jnp.exp(x).sum()),
        [f32[3]],
        """
        { lambda a:f32[3]. let
            b:f32[3] = exp a
            c:f32[] = reduce_add[axes=(0)] b
            d:f32[3] = expand[dims=()] 1.0:f32[]
            e:f32[3] = mul d b
          in (c, e) }""",
    )


def test_what_is_not_differentiated_costs_nothing():
    assert_jaxpr(
        jax.grad(lambda w, x: ((x @ w) ** 2).sum()),
        [f32[3], f32[4, 3]],
        """
        { lambda a:f32[3] b:f32[4,3]. let
            c:f32[4] = dot[contract=((1),(0))] b a
            d:f32[4] = expand[dims=()] 1.0:f32[]
            e:f32[4] = mul c d
            f:f32[4] = mul d c
            g:f32[4] = add e f
            h:f32[3] = dot[contract=((0),(0))] g b
          in (h,) }""",
    )


def test_a_call_has_one_forward_and_one_backward_call():
    @jax.jit
    def layer(w, x):
        return jnp.tanh(x @ w)

    assert_jaxpr(
        jax.grad(lambda w, x: layer(w, x).sum()),
        [f32[3, 2], f32[4, 3]],
        """
        { lambda a:f32[3,2] b:f32[4,3]. let
            c:f32[4,2] = jit[
              name=layer
              body={ lambda a:f32[3,2] b:f32[4,3]. let
                  c:f32[4,2] = dot[contract=((1),(0))] b a
                  d:f32[4,2] = tanh c
                in (d,) }
            ] a b
            d:f32[4,2] = expand[dims=()] 1.0:f32[]
            e:f32[3,2] = jit[
              name=transpose(layer)
              body={ lambda a:f32[4,3] b:f32[4,2] c:f32[4,2]. let
                  d:f32[4,2] = mul b b
                  e:f32[4,2] = sub 1.0 d
                  f:f32[4,2] = mul c e
                  g:f32[3,2] = dot[contract=((0),(0))] a f
                in (g,) }
            ] b c d
          in (e,) }""",
    )


def test_a_second_derivative_differentiates_the_first():
    assert_jaxpr(
        jax.grad(jax.grad(jnp.sin)),
        [f32[()]],
        """
        { lambda a:f32[]. let
            b:f32[] = sin a
            c:f32[] = neg b
          in (c,) }""",
    )
