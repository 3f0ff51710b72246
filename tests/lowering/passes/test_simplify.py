"""simplify: what cancels goes away, and no bit of a result changes."""

from __future__ import annotations

from tests.golden import assert_pass, f32
from tinyjax import lax
from tinyjax import numpy as jnp


def test_a_division_by_a_power_of_two_is_a_product():
    assert_pass(
        "simplify",
        lambda x: x / 8.0 + x / 3.0,
        [f32[3]],
        """
          { lambda a:f32[3]. let
        -     b:f32[3] = div a 8.0
        +     b:f32[3] = mul a 0.125
              c:f32[3] = div a 3.0
              d:f32[3] = add b c
            in (d,) }""",
    )


def test_a_part_of_a_complex_number_just_made_is_that_part():
    assert_pass(
        "simplify",
        lambda x, y: lax.imag(lax.complex(x, jnp.sin(y))),
        [f32[3], f32[3]],
        """
        + { lambda _ a:f32[3]. let b:f32[3] = sin a in (b,) }
        - { lambda a:f32[3] b:f32[3]. let
        -     c:f32[3] = sin b
        -     d:c64[3] = complex a c
        -     e:f32[3] = imag d
        -   in (e,) }""",
    )


def test_a_wider_float_and_back_is_nothing():
    assert_pass(
        "simplify",
        lambda x: x.astype(jnp.float16).astype("float32").astype(jnp.float16),
        [f32[3].update(dtype=jnp.float16)],
        """
        - { lambda a:f16[3]. let
        + { lambda a:f16[3]. let in (a,) }
        -     b:f32[3] = cast a
        -     c:f16[3] = cast b
        -   in (c,) }""",
    )
