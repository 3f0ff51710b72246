"""merge_ranges: loops that every index walks as one are one."""

from __future__ import annotations

from tests.golden import assert_pass, f32


def test_an_elementwise_kernel_has_one_loop():
    assert_pass(
        "merge_ranges",
        lambda x, y: x * y + 1.0,
        [f32[3, 4, 5], f32[3, 4, 5]],
        """
          kernel(p0: f32[3,4,5], p1: f32[3,4,5], p2: f32[3,4,5]):
        -   for r0 in 0..3 (loop):
        +   for r2 in 0..60 (loop):
        -     for r1 in 0..4 (loop):
        -       for r2 in 0..5 (loop):
        -         a = r0*20 + r1*5 + r2
        -         p0[a] = p1[a]*p2[a] + 1.0
        +     p0[r2] = p1[r2]*p2[r2] + 1.0""",
    )


def test_a_row_value_keeps_the_loop_over_rows():
    assert_pass(
        "merge_ranges",
        lambda x, y: x * y[:, None, None],
        [f32[3, 4, 5], f32[3]],
        """
          kernel(p0: f32[3,4,5], p1: f32[3,4,5], p2: f32[3]):
            for r0 in 0..3 (loop):
        -     for r1 in 0..4 (loop):
        -       for r2 in 0..5 (loop):
        +     for r2 in 0..20 (loop):
        -         a = r0*20 + r1*5 + r2
        +       a = r0*20 + r2
        -         p0[a] = p1[a]*p2[r0]
        +       p0[a] = p1[a]*p2[r0]""",
    )
