"""linear_transpose: the transpose of a linear function, from the types of its arguments alone."""

from __future__ import annotations

import tinyjax as jax
from tests.golden import assert_jaxpr, f32
from tinyjax import numpy as jnp


def test_a_matrix_acts_from_the_other_side():
    def f(a, ct):
        return jax.linear_transpose(lambda x: a @ x, f32[3])(ct)[0]

    assert_jaxpr(
        f,
        [f32[2, 3], f32[2]],
        """
        { lambda a:f32[2,3] b:f32[2]. let c:f32[3] = dot[contract=((0),(0))] b a in (c,) }""",
    )


def test_movement_is_undone():
    def f(ct):
        return jax.linear_transpose(lambda x: jnp.pad(x.T, ((1, 0), (0, 0)))[::-1], f32[2, 3])(ct)[
            0
        ]

    assert_jaxpr(
        f,
        [f32[4, 2]],
        """
        { lambda a:f32[4,2]. let
            b:f32[4,2] = flip[axes=(0)] a
            c:f32[3,2] = pad[lo=(-1,0) hi=(0,0)] b 0.0:f32[]
            d:f32[2,3] = permute[perm=(1,0)] c
          in (d,) }""",
    )
