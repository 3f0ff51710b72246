"""explain: why a jitted function was traced again."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
from tests.golden import assert_text
from tinyjax import explain, grad, jit
from tinyjax import numpy as jnp


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
    f(np.float32(1))
    with tinyjax.numpy_rank_promotion("raise"):
        f(np.float32(1))
    assert explain(f).reasons[1] == ["option jax_numpy_rank_promotion: 'allow' -> 'raise'"]
    summed = jit(lambda x: tinyjax.lax.psum(x, "i"))
    for size in (3, 5):
        tinyjax.vmap(summed, axis_name="i")(np.ones(size, "f4"))
    assert explain(summed).reasons[1] == ["size of axis i: 3 -> 5"]


def test_a_trace_that_closes_over_another_one_dies_with_it():
    inner = jit(lambda x: x * held[0])
    held = []

    def outer(y):
        held[:] = [y]
        return inner(1.0)

    grad(outer)(2.0), grad(outer)(2.0)
    assert explain(inner).reasons[1] == ["values of an outer trace, or a cleared cache"]


def test_it_needs_a_jitted_function():
    with pytest.raises(TypeError, match="needs a jitted function"):
        explain(np.sin)


def test_traces_can_be_forbidden():
    step = tinyjax.jit(lambda x: x + 1)
    step(1.0)
    with tinyjax.no_tracing(True):
        assert float(step(2.0)) == 3
        with pytest.raises(RuntimeError, match=r"re-tracing function <lambda> for `jit`.*f32\[3\]"):
            step(jnp.ones(3))
    assert step(jnp.ones(3)).shape == (3,), "the refused trace left nothing behind"


def test_traces_and_their_reasons_are_logged_on_demand(caplog: pytest.LogCaptureFixture):
    step = tinyjax.jit(lambda x: x * 2)
    step(jnp.ones(2))
    assert not caplog.records
    with tinyjax.log_compiles(True):
        step(jnp.ones(3))
        step(jnp.ones(3))
    with tinyjax.explain_cache_misses(True):
        step(jnp.ones(4))
    assert [r.getMessage() for r in caplog.records] == [
        "Tracing and compiling <lambda> for (x: f32[3])",
        "TRACING CACHE MISS for <lambda> because of x: f32[2] -> f32[4]",
    ]


def test_our_frames_stay_in_tracebacks_on_demand():
    def files() -> set[str]:
        with pytest.raises(TypeError) as caught:
            jnp.sin("a")
        return {"tinyjax" in str(entry.path) for entry in caught.traceback}

    assert files() == {False}
    tinyjax.config.update("tinyjax_traceback", 1)
    try:
        assert files() == {False, True}
    finally:
        tinyjax.config.update("tinyjax_traceback", 0)
