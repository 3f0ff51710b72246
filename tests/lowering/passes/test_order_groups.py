"""order_groups: readers of a buffer come before what updates it in place."""

from __future__ import annotations

from tests.golden import assert_pass, f32, i32
from tinyjax import numpy as jnp


def test_a_reader_is_moved_in_front_of_the_update():
    def f(x, i):
        changed = x.at[i].set(0.0)
        return changed, jnp.sort(x)[:2] + changed[:2]

    assert_pass(
        "order_groups",
        f,
        [f32[1000], i32[()]],
        """
        - group 0: update, 2 inputs, writes scatter f32[1000]
        - group 1: routine, 1 inputs, writes sort (f32[1000])
        + group 0: routine, 1 inputs, writes sort (f32[1000])
        + group 1: update, 2 inputs, writes scatter f32[1000]
          group 2: loop, 2 inputs, writes add f32[2]""",
        donate_argnums=0,
    )
