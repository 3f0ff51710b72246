"""custom_vmap: the call of a batched argument is what the rule makes of it."""

from __future__ import annotations

import tinyjax as jax
from tests.golden import assert_jaxpr, f32
from tinyjax import numpy as jnp
from tinyjax.custom_batching import custom_vmap


@custom_vmap
def norm(x):
    return jnp.sqrt((x * x).sum())


@norm.def_vmap
def norm_vmap(axis_size, in_batched, x):
    return jnp.sqrt(jnp.einsum("bi,bi->b", x, x)), True


def test_alone_it_is_a_call_of_the_function():
    assert_jaxpr(
        norm,
        [f32[3]],
        """
        { lambda a:f32[3]. let
            b:f32[] = custom_vmap[
              name=norm
              body={ lambda a:f32[3]. let
                  b:f32[3] = mul a a
                  c:f32[] = reduce_add[axes=(0)] b
                  d:f32[] = sqrt c
                in (d,) }
              rule=UserRule
            ] a
          in (b,) }""",
    )


def test_batched_it_is_the_rule():
    assert_jaxpr(
        jax.vmap(norm),
        [f32[2, 3]],
        """
        { lambda a:f32[2,3]. let
            b:f32[2] = dot[contract=((1),(1)) batch=((0),(0))] a a
            c:f32[2] = sqrt b
          in (c,) }""",
    )
