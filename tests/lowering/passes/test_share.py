"""share: a big reduction of few results is done in chunks, whose results another kernel adds."""

from __future__ import annotations

from tests.golden import assert_pass, f32


def test_a_long_sum_is_two_kernels():
    assert_pass(
        "share",
        lambda x: (x * x).sum(),
        [f32[1 << 22]],
        """
        - vector(r0, 16)
        + vector(r2, 16)
        - unroll(r0, 8)
        + unroll(r2, 8)
        + tasks(r1; block 1, 8 units, 1 per task)
        + for r1 in 8 loop:
        - for r0 in 4194304 reduce lanes=16 copies=8:
        +   for r2 in 524288 reduce lanes=16 copies=8:
        -   v0: f32[] = load slot1[r0]
        +     v0: f32[] = load slot1[r1*524288 + r2]
        -   v1: f32[] = mul v0 v0
        +     v1: f32[] = mul v0 v0
        -   v2 add= v1
        +     v2 add= v1
        +   slot2[r1] = v2
        +
        + vector(r3, 16)
        + for r3 in 8 reduce lanes=16:
        +   v0: f32[] = load slot2[r3]
        +   v1 add= v0
        - slot0[0] = v2
        + slot0[0] = v1""",
    )
