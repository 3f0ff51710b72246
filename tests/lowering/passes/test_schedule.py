"""schedule: vectors, unrolling and tasks of the loops, on a machine with AVX-512."""

from __future__ import annotations

from tests.golden import assert_pass, f32
from tinyjax import numpy as jnp


def test_a_map_is_a_vector_loop():
    assert_pass(
        "schedule",
        lambda x: x + 1.0,
        [f32[1000]],
        """
        vector(r0, 16)
        for r0 in 1000 loop lanes=16:
          v0: f32[] = load slot1[r0]
          v1: f32[] = add v0 1.0
          slot0[r0] = v1""",
    )


def test_a_sum_has_several_accumulators():
    assert_pass(
        "schedule",
        lambda x: x.sum(),
        [f32[1000]],
        """
        vector(r0, 16)
        unroll(r0, 8)
        for r0 in 1000 reduce lanes=16 copies=8:
          v0: f32[] = load slot1[r0]
          v1 add= v0
        slot0[0] = v1""",
    )


def test_rows_are_shared_out():
    assert_pass(
        "schedule",
        lambda x: jnp.exp(x).sum(1),
        [f32[3000, 300]],
        """
        vector(r1, 16)
        unroll(r1, 2)
        tasks(r0; block 1, 3000 units, 334 per task)
        for r0 in 3000 loop:
          for r1 in 300 reduce lanes=16 copies=2:
            v0: f32[] = load slot1[r0*300 + r1]
            v1: f32[] = exp v0
            v2 add= v1
          slot0[r0] = v2""",
    )
