"""checkify: the first check that fails is a value, carried along."""

from __future__ import annotations

from tests.golden import assert_jaxpr, f32
from tinyjax import lax
from tinyjax.experimental import checkify


def test_a_check_becomes_a_code_and_what_its_message_mentions():
    def f(x):
        checkify.check(x > 0, "{x} is not positive", x=x)
        return lax.log(x)

    assert_jaxpr(
        checkify.checkify(f),
        [f32[()]],
        """
        { lambda a:f32[]. let
            b:f32[] c:i32[] d:f32[] = jit[
              name=f
              body={ lambda a:f32[]. let
                  b:f32[] = log a
                  c:bool[] = cmplt 0.0 a
                  d:bool[] = not c
                  e:bool[] = cmpeq 0:i32[] 0:i32[]
                  f:bool[] = and d e
                  g:i32[] = where f 1:i32[] 0:i32[]
                  h:f32[] = stop_gradient a
                in (b, g, h) }
            ] a
          in (c, d, b) }""",
    )
