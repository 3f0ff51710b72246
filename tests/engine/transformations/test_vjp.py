"""vjp: the value now, and a function from cotangents of results to those of arguments."""

from __future__ import annotations

import tinyjax as jax
from tests.golden import assert_jaxpr, f32
from tinyjax import numpy as jnp


def test_a_cotangent_goes_back_through_each_operation():
    def f(x, y, ct):
        return jax.vjp(lambda x, y: jnp.sin(x) * y, x, y)[1](ct)

    assert_jaxpr(
        f,
        [f32[3], f32[3], f32[3]],
        """
        { lambda a:f32[3] b:f32[3] c:f32[3]. let
            d:f32[3] = mul c b
            e:f32[3] = cos a
            f:f32[3] = mul d e
            g:f32[3] = sin a
            h:f32[3] = mul g c
          in (f, h) }""",
    )


def test_cotangents_of_a_value_used_twice_are_added():
    assert_jaxpr(
        lambda x, ct: jax.vjp(lambda x: x * x + x, x)[1](ct)[0],
        [f32[3], f32[3]],
        """
        { lambda a:f32[3] b:f32[3]. let
            c:f32[3] = mul a b
            d:f32[3] = add b c
            e:f32[3] = mul b a
            f:f32[3] = add d e
          in (f,) }""",
    )


def test_a_broadcast_sums_and_a_sum_broadcasts():
    assert_jaxpr(
        lambda x, ct: jax.vjp(lambda x: x[None] + x[:, None], x)[1](ct),
        [f32[3], f32[3, 3]],
        """
        { lambda _ a:f32[3,3]. let
            b:f32[3] = reduce_add[axes=(1)] a
            c:f32[3] = reduce_add[axes=(0)] a
            d:f32[3] = add b c
          in (d,) }""",
    )
    assert_jaxpr(
        lambda x, ct: jax.vjp(lambda x: x.sum(0), x)[1](ct),
        [f32[2, 3], f32[3]],
        """
        { lambda _ a:f32[3]. let b:f32[2,3] = expand[dims=(1)] a in (b,) }""",
    )
