"""trace, lower, compile: everything between the jaxpr and machine code can be read."""

from __future__ import annotations

import jax as oracle
import jax.stages
import numpy as np
import pytest

import tinyjax
from tinyjax import jit
from tinyjax import numpy as jnp

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def f(x, w):
    return jnp.tanh(x @ w).sum(), {"x": x + 1}


@pytest.fixture(scope="module")
def lowered():
    return jit(f).lower(X, X.T)


def test_each_stage_can_be_read(lowered):
    assert "dot" in str(lowered.jaxpr) and "tanh" in str(lowered.jaxpr)
    assert lowered.kernels and all(str(k) for k in lowered.kernels)
    assert "arena" in lowered.schedule
    assert "define" in lowered.llvm
    assert lowered.asm.strip()
    assert lowered.as_text("jaxpr") == str(lowered.jaxpr)
    assert "<details>" in lowered._repr_html_()
    with pytest.raises(ValueError, match="unknown dialect"):
        lowered.as_text("hlo")


def test_cost_counts_arithmetic_and_memory(lowered):
    cost = lowered.cost
    assert cost["flops"] == 2 * 3 * 3 * 4 + 9 + 9 + 12
    assert cost["bytes accessed"] == 4 * (12 + 12) + 4 * (1 + 12) + 4 * 12  # two kernels read x
    assert cost["kernels"] >= 1 and cost["peak bytes"] >= 0
    assert lowered.cost_analysis() == cost


def test_result_types_are_known_before_running(lowered):
    total, rest = lowered.out_info
    assert total.shape == () and rest["x"].shape == (3, 4)
    assert jit(f).eval_shape(X, X.T)[1]["x"].dtype == np.float32


def test_a_compiled_function_runs_for_its_types_only(lowered):
    run = lowered.compile()
    want = f(jnp.asarray(X), jnp.asarray(X.T))
    got = run(X, X.T)
    np.testing.assert_allclose(np.asarray(got[0]), np.asarray(want[0]), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(got[1]["x"]), X + 1)
    with pytest.raises(TypeError, match="compiled for"):
        run(X[:2], X.T)
    with pytest.raises(TypeError, match="pytree"):
        run((X,), X.T)
    with pytest.raises(TypeError, match="Cannot apply JAX transformations"):
        tinyjax.grad(lambda x: run(x, X.T)[0])(X)


def test_lowering_takes_shapes_and_keeps_static_arguments():
    g = jit(lambda x, n: x * n, static_argnames="n")
    run = g.lower(tinyjax.ShapeDtypeStruct((2,), np.float32), n=3).compile()
    np.testing.assert_array_equal(np.asarray(run(np.ones(2, "f4"), n=3)), [3, 3])


def test_captured_arrays_are_kept_by_the_compiled_function():
    w = jnp.asarray(X)
    run = jit(lambda x: x + w).lower(X).compile()
    np.testing.assert_array_equal(np.asarray(run(X)), 2 * X)


def test_the_schedule_lists_the_decisions_of_every_kernel():
    def g(x, w):
        y = jnp.tanh(x @ w)
        return jnp.sort(y, axis=1), (x * 2.0).sum(axis=0), y.sum()

    lowered = jit(g).lower(jnp.ones((70, 200)), jnp.ones((200, 90)))
    decisions = lowered.schedule.split("\n\n")[-1]
    for i, kernel in enumerate(lowered.kernels):
        assert f"k{i}.{kernel.title()}: " in decisions
    assert "dot(kind=" in decisions and "radix(90)" in decisions and "vector(" in decisions
    assert lowered.compile().as_text() == lowered.schedule


def test_record_rewrites_shows_every_pass_and_the_rules_it_applied():
    with tinyjax.record_rewrites() as log:
        jit(lambda x: x / 4.0).lower(jnp.ones(9)).as_text("llvm")
    assert [r.name for r in log.passes][:2] == ["raise_composites", "inline"]
    assert "define void" in log.passes[-1].after
    assert [rule for _, rule, _, _ in log] == ["multiply_by_inverse"]


def everything(J):
    """What the stages tell of arguments and results, in both libraries."""
    step = J.jit(lambda x, y, *, k: {"a": x * y + k}, donate_argnums=0)
    traced = step.trace(np.ones(3, "f4"), 2.0, k=1)
    lowered = traced.lower()
    compiled = lowered.compile()
    told = []
    for stage in (traced, lowered, compiled):
        infos, names = J.tree.flatten(stage.args_info, is_leaf=lambda x: hasattr(x, "donated"))
        told += [str(names), [(i.shape, str(i.dtype), i.donated) for i in infos]]
        told += [str(stage.in_tree), str(stage.out_tree), stage.donate_argnums]
        told += [[(a.shape, str(a.dtype), a.weak_type) for a in J.tree.leaves(stage.in_avals)]]
        told += [stage.out_info["a"].shape, str(stage.out_info["a"].dtype)]
    told += [traced.fun_name, traced.out_avals["a"].shape, str(compiled.input_shardings)]
    told += [str(compiled.output_shardings), J.stages.ArgInfo(traced.out_avals["a"], True).shape]
    told += [isinstance(x, t) for x, t in ((step, J.stages.Wrapped), (traced, J.stages.Traced))]
    told += [compiled(np.ones(3, "f4"), 2.0, k=1)["a"].tolist()]
    return told


def test_stages_tell_what_they_tell_in_jax():
    for ours, theirs in zip(everything(tinyjax), everything(oracle), strict=True):
        assert ours == theirs


def test_memory_is_told_by_jaxs_names():
    stats = jit(lambda x: jnp.sort(x)[::-1] + x, donate_argnums=0).lower(X).compile()
    found = stats.memory_analysis()
    assert (found.argument_size_in_bytes, found.output_size_in_bytes) == (48, 48)
    assert found.alias_size_in_bytes == 48
    assert found.peak_memory_in_bytes == stats.cost_analysis()["peak bytes"]
    assert found.temp_size_in_bytes == stats.cost_analysis()["arena bytes"]
    more = jit(lambda x: jnp.sort(x) + jnp.cumsum(jnp.sort(x, axis=0), axis=1)).lower(X).compile()
    assert len(more.lowered.kernels) > len(stats.lowered.kernels)
    code = [m.memory_analysis().generated_code_size_in_bytes for m in (stats, more)]
    assert 0 < code[0] < code[1]


def test_operations_are_those_that_run():
    """Not those of a branch's, a loop's or a call's results that nobody reads."""
    f = tinyjax.function(lambda x: (jnp.sin(x), x @ x), precompile=True)
    x = jnp.ones((3, 3))
    assert jit(lambda x: f(x)[0]).lower(x).cost["flops"] == 9
    assert jit(lambda x: f(x)[1] + f(x)[0]).lower(x).cost["flops"] == 9 + 54 + 9


def test_a_lowered_function_goes_through_the_ordinary_doors(lowered):
    assert lowered.compiler_ir() == lowered.kernels
    assert lowered.compiler_ir("llvm") == lowered.llvm
    assert "test_stages.py" in lowered.as_text("jaxpr", debug_info=True)
    assert lowered.compile(device_assignment=None).call(X, X.T)[0].shape == ()
    assert lowered.compile().runtime_executable() is lowered.compile().runtime_executable()
    with pytest.raises(ValueError, match=r"cannot lower for platforms \['tpu'\]"):
        jit(f).trace(X, X.T).lower(lowering_platforms=("cpu", "tpu"))


def test_jit_of_none_is_an_error_and_jit_of_nothing_a_decorator():
    with pytest.raises(TypeError, match="Expected a callable value, got None"):
        jit(None)
    assert float(jit(inline=True)(lambda x: x + 1)(1.0)) == 2


def test_a_shape_struct_is_like_an_array():
    S = tinyjax.ShapeDtypeStruct
    assert S.like(X) == S((3, 4), "float32") and S.like(1.0).weak_type
    where = jnp.ones(1).sharding
    assert repr(S((2,), "int8", sharding=where)) == (
        f"ShapeDtypeStruct(shape=(2,), dtype=int8, sharding={where})"
    )


def test_users_may_make_a_shaped_array():
    made = tinyjax.core.ShapedArray((3, 4), np.float32)
    assert made is jnp.asarray(X).aval and isinstance(made, tinyjax.core.ShapedArray)
    assert tinyjax.eval_shape(jnp.sin, made).shape == (3, 4)
    assert made.to_tangent_aval() is made
    assert made.update(dtype=np.dtype("i4")).to_tangent_aval().dtype == tinyjax.float0
    assert made.str_short(short_dtypes=False) == "float32[3,4]"
