"""custom_vjp: fwd in place of the function where a gradient is wanted, bwd in place of its transpose."""

from __future__ import annotations

import tinyjax as jax
from tests.golden import assert_jaxpr, f32
from tinyjax import numpy as jnp


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.clip(ct, -1.0, 1.0) * jnp.cos(x),))


def test_without_a_derivative_it_is_a_call_of_the_function():
    assert_jaxpr(
        clipped,
        [f32[3]],
        """
        { lambda a:f32[3]. let
            b:f32[3] = custom_vjp[
              name=clipped
              body={ lambda a:f32[3]. let b:f32[3] = sin a in (b,) }
              rule=StagedRule
            ] a
          in (b,) }""",
    )


def test_the_gradient_is_that_of_bwd():
    assert_jaxpr(
        jax.grad(lambda x: clipped(x).sum()),
        [f32[3]],
        """
        { lambda a:f32[3]. let
            b:f32[3] = expand[dims=()] 1.0:f32[]
            c:f32[3] = max b -1.0
            d:f32[3] = min c 1.0
            e:f32[3] = cos a
            f:f32[3] = mul d e
          in (f,) }""",
    )


def test_rules_are_batched_as_bodies():
    assert_jaxpr(
        jax.vmap(jax.grad(clipped)),
        [f32[3]],
        """
        { lambda a:f32[3]. let
            b:f32[] = max 1.0:f32[] -1.0:f32[]
            c:f32[] = min b 1.0
            d:f32[3] = cos a
            e:f32[3] = mul c d
          in (e,) }""",
    )
