"""close_folds: sums over a loop variable of counts, masks and selections have closed forms."""

from __future__ import annotations

from tests.golden import assert_pass, f32, i32
from tinyjax import numpy as jnp


def test_a_count_is_a_number():
    assert_pass(
        "close_folds",
        lambda i: jnp.arange(100).sum() + i,
        [i32[()]],
        """
          kernel(p0: i32[], p1: i32[]):
        -   a = add of nothing
        -   for r0 in 0..100 (reduce):
        -     a += i32(r0)
        -   p0[0] = a + p1[0]
        +   p0[0] = i32(4950) + p1[0]""",
    )


def test_a_mask_is_counted():
    assert_pass(
        "close_folds",
        lambda n: (jnp.arange(100) < n).sum(),
        [i32[()]],
        """
          kernel(p0: i32[], p1: i32[]):
        +   p0[0] = i32(max(min(i64(p1[0]) - 1, 99), -1) + 1)
        -   a = add of nothing
        -   for r0 in 0..100 (reduce):
        -     a += i32(i32(r0) < p1[0])
        -   p0[0] = a""",
    )


def test_a_one_hot_selection_is_a_load():
    assert_pass(
        "close_folds",
        lambda i, t: jnp.where(jnp.arange(50) == i, t, 0.0).sum(),
        [i32[()], f32[50]],
        """
          kernel(p0: f32[], p1: i32[], p2: f32[50]):
        +   a = i64(p1[0])
        +   p0[0] = where(a < 50 & 0 <= a, p2[min(max(a, 0), 49)] + 0.0, 0.0)
        -   a = add of nothing
        -   for r0 in 0..50 (reduce):
        -     a += where(i32(r0) == p1[0], p2[r0], 0.0)
        -   p0[0] = a""",
    )


def test_a_sum_of_what_does_not_move_is_a_product():
    assert_pass(
        "close_folds",
        lambda x: jnp.repeat(x, 3).sum(),
        [f32[4]],
        """
          kernel(p0: f32[], p1: f32[4]):
            a = add of nothing
            for r1 in 0..4 (reduce):
        -     for r2 in 0..3 (reduce):
        -       a += p1[r1]
        +     a += p1[r1]
        -   p0[0] = a
        +   p0[0] = a*3.0 + 0.0""",
    )
