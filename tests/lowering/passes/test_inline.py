"""inline: a body without calls, keys, weak types or marks."""

from __future__ import annotations

import tinyjax as jax
from tests.golden import assert_pass, f32
from tinyjax import lax
from tinyjax import numpy as jnp


def test_a_call_becomes_its_body_and_marks_vanish():
    @jax.jit
    def inner(y):
        return lax.stop_gradient(y) * 2.0

    assert_pass(
        "inline",
        lambda x: inner(inner(x)) + 1.0,
        [f32[3]],
        """
        - let inner = { lambda a:f32[3]. let
        + { lambda a:f32[3]. let
        -     b:f32[3] = stop_gradient a
        +     b:f32[3] = mul a 2.0
              c:f32[3] = mul b 2.0
        -   in (c,) } in
        - { lambda a:f32[3]. let
        -     b:f32[3] = jit[name=inner body=inner] a
        -     c:f32[3] = jit[name=inner body=inner] b
              d:f32[3] = add c 1.0
            in (d,) }""",
    )


def test_a_composite_becomes_its_formula():
    assert_pass(
        "inline",
        lambda x: jax.nn.softmax(x),
        [f32[2, 3]],
        """
          { lambda a:f32[2,3]. let
        -     b:f32[2,3] = composite[
        -       name=softmax
        -       body={ lambda a:f32[2,3]. let
        -           b:f32[2] = reduce_max[axes=(1)] a
        +     b:f32[2] = reduce_max[axes=(1)] a
        -           c:f32[2] = stop_gradient b
        -           d:f32[2,3] = expand[dims=(0)] c
        +     c:f32[2,3] = expand[dims=(0)] b
        -           e:f32[2,3] = sub a d
        +     d:f32[2,3] = sub a c
        -           f:f32[2,3] = exp e
        +     e:f32[2,3] = exp d
        -           g:f32[2] = reduce_add[axes=(1)] f
        +     f:f32[2] = reduce_add[axes=(1)] e
        -           h:f32[2,3] = expand[dims=(0)] g
        +     g:f32[2,3] = expand[dims=(0)] f
        +     h:f32[2,3] = div e g
        -           i:f32[2,3] = div f h
        -         in (i,) }
        -     ] a
        -   in (b,) }
        +   in (h,) }""",
    )


def test_keys_become_their_words():
    assert_pass(
        "inline",
        lambda k: jax.random.key_data(jax.random.wrap_key_data(k)[None]),
        [jax.ShapeDtypeStruct((2,), jnp.uint32)],
        """
        + { lambda a:u32[2]. let b:u32[1,2] = reshape a in (b,) }
        - { lambda a:u32[2]. let
        -     b:key<fry>[] = key_wrap a
        -     c:key<fry>[1] = reshape b
        -     d:u32[1,2] = key_unwrap c
        -   in (d,) }""",
    )
