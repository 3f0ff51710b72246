"""custom_jvp: the call keeps its body; its derivative is the rule's, forwards and transposed."""

from __future__ import annotations

import tinyjax as jax
from tests.golden import assert_jaxpr, f32
from tinyjax import numpy as jnp


@jax.custom_jvp
def soft(x):
    return jnp.log1p(jnp.exp(x))


@soft.defjvp
def soft_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return soft(x), jax.nn.sigmoid(x) * dx


def test_without_a_derivative_it_is_a_call_of_the_function():
    assert_jaxpr(
        soft,
        [f32[3]],
        """
        { lambda a:f32[3]. let
            b:f32[3] = custom_jvp[
              name=soft
              body={ lambda a:f32[3]. let
                  b:f32[3] = exp a
                  c:f32[3] = log1p b
                in (c,) }
              rule=StagedRule
            ] a
          in (b,) }""",
    )


def test_the_tangent_is_that_of_the_rule():
    assert_jaxpr(
        lambda x, dx: jax.jvp(soft, (x,), (dx,))[1],
        [f32[3], f32[3]],
        """
        { lambda a:f32[3] b:f32[3]. let
            c:f32[3] = logistic a
            d:f32[3] = mul c b
          in (d,) }""",
    )


def test_the_gradient_is_the_rule_transposed():
    assert_jaxpr(
        jax.grad(lambda x: soft(x).sum()),
        [f32[3]],
        """
        { lambda a:f32[3]. let
            b:f32[3] = logistic a
            c:f32[3] = expand[dims=()] 1.0:f32[]
            d:f32[3] = mul b c
          in (d,) }""",
    )
