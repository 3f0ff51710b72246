"""split_ranges: a loop that is only read through // and % becomes two."""

from __future__ import annotations

import tinyjax as jax
from tests.golden import assert_pass, f32
from tinyjax import lax
from tinyjax import numpy as jnp


def test_a_transposition_that_a_reshape_hid_is_two_loops():
    assert_pass(
        "split_ranges",
        lambda x: jnp.argmax(x.T.reshape(12)),
        [f32[3, 4]],
        """
          kernel(p0: i32[], p1: f32[3,4]):
            a = argmax of nothing
        -   for r0 in 0..12 (reduce):
        +   for r1 in 0..4 (reduce):
        +     for r2 in 0..3 (reduce):
        -     a = argmax(a, p1[r0//3 + r0%3*4], i32(r0))
        +       a = argmax(a, p1[r1 + r2*4], i32(r1*3 + r2))
            p0[0] = a.1""",
    )


def test_a_repetition_is_a_loop_over_the_repeats():
    assert_pass(
        "split_ranges",
        lambda x: jnp.repeat(x, 3).sum(),
        [f32[4]],
        """
          kernel(p0: f32[], p1: f32[4]):
            a = add of nothing
        -   for r0 in 0..12 (reduce):
        +   for r1 in 0..4 (reduce):
        +     for r2 in 0..3 (reduce):
        -     a += p1[r0//3]
        +       a += p1[r1]
            p0[0] = a""",
    )


def test_the_gradient_of_a_strided_convolution_has_a_loop_over_the_phases():
    def f(x, w):
        made = lax.conv_general_dilated(x, w, (2,), "SAME")
        return (made * made).sum()

    assert_pass(
        "split_ranges",
        jax.grad(f),
        [f32[1, 1, 12], f32[2, 1, 3]],
        """
          kernel(p0: f32[1,1,12], p1: f32[1,6,3]):
        +   for r1 in 0..6 (loop):
        +     a = r1*3
        -   for r0 in 0..12 (loop):
        +     for r2 in 0..2 (loop):
        -     a = r0//2*3
        -     b = r0%2 < 1
        +       b = r2 < 1
        -     c = r0 + 1
        -     d = (p1[a if r0 < 11 & b] else 0.0) + (p1[c//2*3 - 2 if c%2 < 1 & 1 <= r0] else 0.0)
        +       c = (p1[a if b] else 0.0) + (p1[a + r2*3 - 2 if 1 <= r2] else 0.0)
        -     p0[r0] = d + (p1[a - 1 if b & 2 <= r0] else 0.0)
        +       p0[r1*2 + r2] = c + (p1[a - 1 if 1 <= r1 & b] else 0.0)""",
    )
