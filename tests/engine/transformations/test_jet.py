"""jet: Taylor coefficients of a function along a curve."""

from __future__ import annotations

from tests.golden import assert_jaxpr, f32
from tinyjax import numpy as jnp
from tinyjax.experimental.jet import jet


def test_coefficients_of_a_product_are_a_convolution():
    def f(x, x1, x2):
        return jet(lambda x: x * x, (x,), ((x1, x2),))

    assert_jaxpr(
        f,
        [f32[()], f32[()], f32[()]],
        """
        { lambda a:f32[] b:f32[] c:f32[]. let
            d:f32[] = mul a a
            e:f32[] = mul a b
            f:f32[] = mul b a
            g:f32[] = add e f
            h:f32[] = mul c 0.5
            i:f32[] = mul a h
            j:f32[] = mul b b
            k:f32[] = add i j
            l:f32[] = mul h a
            m:f32[] = add k l
            n:f32[] = mul m 2.0
          in (d, g, n) }""",
    )


def test_coefficients_of_exp_follow_from_its_rule():
    assert_jaxpr(
        lambda x, x1, x2: jet(jnp.exp, (x,), ((x1, x2),)),
        [f32[()], f32[()], f32[()]],
        """
        { lambda a:f32[] b:f32[] c:f32[]. let
            d:f32[] = exp a
            e:f32[] = mul b d
            f:f32[] = mul b e
            g:f32[] = mul c 0.5
            h:f32[] = mul g 2.0
            i:f32[] = mul h d
            j:f32[] = add f i
            k:f32[] = mul j 0.5
            l:f32[] = mul k 2.0
          in (d, e, l) }""",
    )
