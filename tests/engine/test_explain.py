"""explain: why a jitted function was traced again."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
from tests.golden import assert_text
from tinyjax import explain, jit


def test_each_trace_says_what_differed_from_the_nearest_one():
    @jit
    def step(params, x):
        return params["w"] * x

    step({"w": np.ones(3, "f4")}, 2.0)
    step({"w": np.ones(3, "f4")}, 3.0)
    step({"w": np.ones(3, "f4")}, np.float32(2.0))
    step({"w": np.ones(5, "f4")}, 2.0)
    step({"w": np.ones(5, "f4"), "b": 1.0}, 2.0)
    assert_text(
        str(explain(step)),
        """
        step: 4 traces, 1 general-path hits
          trace 1: (params['w']: f32[3], x: f32[] (weak))
            because of the first call
          trace 2: (params['w']: f32[3], x: f32[])
            because of x: f32[] (weak) -> f32[]
          trace 3: (params['w']: f32[5], x: f32[] (weak))
            because of params['w']: f32[3] -> f32[5]
          trace 4: (params['b']: f32[] (weak), params['w']: f32[5], x: f32[] (weak))
            because of the tree of the arguments: PyTreeDef((({'w': *}, *), {})) -> PyTreeDef((({'b': *, 'w': *}, *), {}))""",
    )


def test_static_arguments_and_configuration_are_reasons():
    @tinyjax.jit
    def f(x):
        return x

    g = jit(lambda x, n: x * n, static_argnames="n")
    g(1.0, n=2)
    g(1.0, n=3)
    assert explain(g).reasons[1] == ["static n: 2 -> 3"]
    f(1.0)
    with tinyjax.enable_x64(True):
        f(1.0)
    assert len(explain(f).reasons) == 2


def test_it_needs_a_jitted_function():
    with pytest.raises(TypeError, match="needs a jitted function"):
        explain(np.sin)
