"""plan_fusion: which nodes become one kernel."""

from __future__ import annotations

import tinyjax as jax
from tests.golden import assert_pass, f32
from tinyjax import lax
from tinyjax import numpy as jnp


def test_a_softmax_is_one_group():
    assert_pass(
        "plan_fusion",
        lambda x: jax.nn.softmax(x),
        [f32[64, 100]],
        """
        group 0: loop, 1 inputs, writes div f32[64,100]""",
    )


def test_the_elementwise_tail_of_a_product_is_stored_by_it():
    assert_pass(
        "plan_fusion",
        lambda x, w: jnp.tanh(x @ w) + 1.0,
        [f32[64, 64], f32[64, 64]],
        """
        group 0: contraction, 2 inputs, writes add f32[64,64]""",
    )


def test_an_update_and_a_sort_are_groups_of_their_own():
    assert_pass(
        "plan_fusion",
        lambda x: jnp.sort(jnp.sin(x)).at[0].set(lax.reduce_max(x, (0,))),
        [f32[1000]],
        """
        group 0: loop, 1 inputs, writes sin f32[1000]
        group 1: routine, 1 inputs, writes sort (f32[1000])
        group 2: loop, 1 inputs, writes reduce f32[]
        group 3: update, 2 inputs, writes dynamic_update f32[1000]""",
    )
