"""prepare: contractions are batches of matrices, and nothing is empty."""

from __future__ import annotations

from tests.golden import assert_pass, f32
from tinyjax import numpy as jnp


def test_a_contraction_is_a_product_of_batches_of_matrices():
    assert_pass(
        "prepare",
        lambda a, b: jnp.einsum("iaj,jbi->ab", a, b),
        [f32[2, 3, 4], f32[4, 5, 2]],
        """
        - { lambda a:f32[2,3,4] b:f32[4,5,2]. let c:f32[3,5] = dot[contract=((0,2),(2,0))] a b in (c,) }
        + { lambda a:f32[2,3,4] b:f32[4,5,2]. let
        +     c:f32[3,2,4] = permute[perm=(1,0,2)] a
        +     d:f32[1,3,8] = reshape c
        +     e:f32[2,4,5] = permute[perm=(2,0,1)] b
        +     f:f32[1,8,5] = reshape e
        +     g:f32[1,3,5] = dot[contract=((2),(1)) batch=((0),(0))] d f
        +     h:f32[3,5] = reshape g
        +   in (h,) }""",
    )


def test_what_is_empty_is_not_computed():
    assert_pass(
        "prepare",
        lambda x: jnp.concatenate([jnp.sin(x[:0]), x]),
        [f32[3]],
        """
        - { lambda a:f32[3]. let
        + { lambda a:f32[3]. let in (a,) }
        -     b:f32[0] = slice[start=(0) stop=(0)] a
        -     c:f32[0] = sin b
        -     d:f32[3] = concat[axis=0] c a
        -   in (d,) }""",
    )
