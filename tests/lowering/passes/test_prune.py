"""prune: calls, loops and branches without results that nobody reads, and what only they need."""

from __future__ import annotations

from tests.golden import assert_pass, f32
from tinyjax import lax


def test_a_carry_that_nobody_reads_leaves_the_loop():
    def f(x):
        return lax.scan(lambda c, _: ((c[0] * 2.0, c[1] + 1.0), None), (x, x), None, length=3)[0][0]

    assert_pass(
        "prune",
        f,
        [f32[3]],
        """
          { lambda a:f32[3]. let
        -     b:f32[3] _:f32[3] = scan[
        +     b:f32[3] = scan[
        +       body={ lambda a:f32[3]. let b:f32[3] = mul a 2.0 in (b,) }
        -       body={ lambda a:f32[3] b:f32[3]. let
        -           c:f32[3] = mul a 2.0
        -           d:f32[3] = add b 1.0
        -         in (c, d) }
                num_consts=0
        -       num_carry=2
        +       num_carry=1
                length=3
        -     ] a a
        +     ] a
            in (b,) }""",
    )
