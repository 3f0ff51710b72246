"""place: every node at the outermost place of the loops where it can be computed."""

from __future__ import annotations

import tinyjax as jax
from tests.golden import assert_pass, f32
from tinyjax import numpy as jnp


def test_what_does_not_move_with_a_loop_is_computed_before_it():
    assert_pass(
        "place",
        lambda x, y: jnp.exp(y)[:, None] * x,
        [f32[3, 40], f32[3]],
        """
        for r0 in 3 loop:
          v0: f32[] = load slot1[r0]
          v1: f32[] = exp v0
          for r1 in 40 loop:
            v2: f32[] = load slot2[r0*40 + r1]
            v3: f32[] = mul v1 v2
            slot0[r0*40 + r1] = v3""",
    )


def test_a_softmax_is_three_sweeps_over_a_row():
    assert_pass(
        "place",
        lambda x: jax.nn.softmax(x),
        [f32[3, 40]],
        """
        for r0 in 3 loop:
          for r2 in 40 reduce:
            v0: f32[] = load slot1[r0*40 + r2]
            v1 max= v0
          for r3 in 40 reduce:
            v2: f32[] = load slot1[r0*40 + r3]
            v3: f32[] = sub v2 v1
            v4: f32[] = exp v3 -> row0
            v5 add= v4
          for r1 in 40 loop:
            v7 = row0
            v8: f32[] = div v7 v5
            slot0[r0*40 + r1] = v8""",
    )
