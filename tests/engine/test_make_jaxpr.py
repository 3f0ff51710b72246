"""make_jaxpr, eval_shape: a function as text and types, without running it."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
from tests.golden import assert_jaxpr, f32, i32
from tests.oracle import check
from tinyjax import eval_shape, jit, make_jaxpr
from tinyjax import numpy as jnp


def test_literals_stand_where_they_are_used():
    assert_jaxpr(
        lambda x: 2 * x + 1,
        [f32[3]],
        """
        { lambda a:f32[3]. let
            b:f32[3] = mul 2.0 a
            c:f32[3] = add b 1.0
          in (c,) }""",
    )


def test_captured_arrays_are_further_inputs():
    w = jnp.ones((3, 2))
    assert_jaxpr(
        lambda x: x @ w,
        [f32[5, 3]],
        """
        { lambda a:f32[5,3] b:f32[3,2]. let c:f32[5,2] = dot[contract=((1),(0))] a b in (c,) }""",
    )


def test_equal_expressions_are_one():
    assert_jaxpr(
        lambda x, y: (x + y) * (x + y),
        [f32[3], f32[3]],
        """
        { lambda a:f32[3] b:f32[3]. let
            c:f32[3] = add a b
            d:f32[3] = mul c c
          in (d,) }""",
    )


def test_results_that_are_inputs_and_inputs_that_are_unused():
    assert_jaxpr(
        lambda x, y: (x, x),
        [f32[3], i32[2]],
        """
        { lambda a:f32[3] _. let in (a, a) }""",
    )


def test_jit_inside_is_a_call():
    assert_jaxpr(
        lambda x: jit(jnp.sin)(x) + 1,
        [f32[3]],
        """
        { lambda a:f32[3]. let
            b:f32[3] = jit[name=sin body={ lambda a:f32[3]. let b:f32[3] = sin a in (b,) }] a
            c:f32[3] = add b 1.0
          in (c,) }""",
    )


def test_names_do_not_depend_on_history():
    f = lambda x: jnp.tanh(x) * jnp.sum(x)
    first = str(make_jaxpr(f)(f32[3]))
    make_jaxpr(lambda x: jnp.sum(x) + jnp.tanh(x))(f32[3])
    assert str(make_jaxpr(lambda x: jnp.tanh(x) * jnp.sum(x))(f32[3])) == first


def test_return_shape_and_static_arguments():
    jaxpr, shape = make_jaxpr(lambda x, n: {"y": x * n}, static_argnums=1, return_shape=True)(
        1.0, 3
    )
    assert shape["y"].shape == () and "mul" in str(jaxpr)


def test_eval_shape_takes_avals_and_runs_nothing():
    def f(a, b):
        return {"s": a @ b, "t": (a.sum(), a > 0)}

    out = eval_shape(f, f32[2, 3], f32[3, 4])
    assert out["s"].shape == (2, 4) and out["t"][1].dtype == np.bool_
    big = eval_shape(lambda x: jnp.zeros((1 << 20, 1 << 20)) + x, 1.0)
    assert big.shape == (1 << 20, 1 << 20)
    check(lambda J: str(J.eval_shape(lambda x: (x, x.astype(int)), 1.0)[1].dtype))


def test_shape_structs_compare_by_value():
    s = tinyjax.ShapeDtypeStruct((2, 3), np.float32)
    assert s == tinyjax.ShapeDtypeStruct([2, 3], "float32") and hash(s) == hash(s.update())
    assert s.update(shape=(4,)).shape == (4,) and len(s) == 2 and s.ndim == 2 and s.size == 6


def test_axes_may_be_named_for_collectives():
    f = lambda x: tinyjax.lax.psum(x, "i") / tinyjax.lax.axis_size("i")
    closed = make_jaxpr(f, axis_env=[("i", 4)])(np.float32(1))
    assert "all_reduce_add[axis_name=(i)]" in str(closed) and closed.out_avals[0].shape == ()
    assert make_jaxpr(f, axis_env=[("i", 4)], return_shape=True)(1.0)[1].shape == ()
    with pytest.raises(NameError, match="unbound axis name: i"):
        make_jaxpr(f)(1.0)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        make_jaxpr(f, abstracted_axes=("n",))
