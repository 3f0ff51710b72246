"""`jit(dynamic_shapes=)` and symbolic ShapeDtypeStructs: one trace, one program, clear errors."""

import inspect

import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp
from tinyjax import Dim, ShapeDtypeStruct

N = Dim("n", 1, 16)


def counting(f):
    def counted(*args, **kwargs):
        counted.traces += 1
        return f(*args, **kwargs)

    counted.traces = 0
    counted.__signature__ = inspect.signature(f)
    return counted


def double(x, w):
    return jnp.tanh(x @ w)


def test_one_trace_and_one_program_serve_all_sizes():
    f = counting(double)
    jitted = jax.jit(f, dynamic_shapes=({0: N}, None))
    w = jnp.ones((3, 4))
    for n in (1, 5, 16, 5):
        x = jnp.arange(3.0 * n).reshape(n, 3) / 40
        out = jitted(x, w)
        assert out.shape == (n, 4)
        np.testing.assert_allclose(out, np.tanh(np.asarray(x) @ np.ones((3, 4))), rtol=1e-6)
    assert f.traces == 1


def test_other_axes_are_part_of_the_signature():
    f = counting(double)
    jitted = jax.jit(f, dynamic_shapes=({0: N}, None))
    for n, d in ((2, 3), (7, 3), (2, 4), (9, 4)):
        jitted(jnp.ones((n, d)), jnp.ones((d, 2)))
    assert f.traces == 2


def test_a_precompiled_function_with_a_symbolic_dimension():
    """The case of the system this project started from: n in 1..16."""

    @jax.function(precompile=True, dynamic_shapes={"x": {0: N}})
    def f(x):
        f.traces += 1
        return x + 1, x.sum()

    f.traces = 0
    for n in range(1, 17):
        x = jnp.arange(float(n))
        y, total = f(x)
        np.testing.assert_array_equal(y, np.arange(n) + 1.0)
        assert total == n * (n - 1) / 2
    assert f.traces == 1


@pytest.mark.parametrize(
    ("spec", "call"),
    [
        ({"params": {"a": {0: N}}, "x": None}, "both"),
        ({"params": {0: N}}, "both"),
        (({"a": (N, None), "b": {0: N}}, {0: N}), "both"),
        ({"x": {-1: N}}, "both"),
        ({"x": {0: N}}, "keyword"),
    ],
)
def test_specifications_are_prefixes_of_the_arguments(spec, call):
    def f(params, x):
        return params["a"].sum(0) + params["b"].sum() + x.sum()

    f = counting(f)
    jitted = jax.jit(f, dynamic_shapes=spec)
    for n in (2, 5):
        params = {"a": jnp.ones((n, 3)), "b": jnp.ones(n)}
        x = jnp.arange(float(n))
        got = jitted(params, x=x) if call == "keyword" else jitted(params, x)
        np.testing.assert_allclose(got, np.full(3, 2.0 * n + n * (n - 1) / 2))
    complete = isinstance(spec, tuple)  # the others leave a size to the signature
    assert f.traces == (1 if complete else 2)


def test_a_size_may_be_an_expression_of_a_dimension():
    f = counting(lambda x, y: x[1:] * y)
    jitted = jax.jit(f, dynamic_shapes=({0: N + 1}, {0: N}))
    only = jax.jit(counting(lambda x: x[:-1].sum()), dynamic_shapes=({0: 2 * N + 1},))
    for n in (1, 4, 16):
        x, y = jnp.arange(n + 1.0), jnp.arange(float(n))
        np.testing.assert_allclose(jitted(x, y), np.arange(1.0, n + 1) * np.arange(n))
        assert only(jnp.ones(2 * n + 1)) == 2 * n
    assert f.traces == 1


def test_a_training_step_with_derivatives_and_static_arguments():
    def step(w, x, rate, power):
        loss = lambda w: jnp.mean(jnp.tanh(x @ w) ** power)
        value, grad = jax.value_and_grad(loss)(w)
        return w - rate * grad, value

    f = counting(step)
    jitted = jax.jit(f, static_argnames="power", dynamic_shapes={"x": {0: N}})
    w = jnp.linspace(-1, 1, 12).reshape(4, 3)
    for n in (1, 3, 8):
        x = jnp.linspace(0, 1, 4 * n).reshape(n, 4)
        for got, want in zip(jitted(w, x, 0.1, power=2), step(w, x, 0.1, 2), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-6)
    assert f.traces == 1


def test_inside_another_transformation_sizes_are_what_they_are():
    f = counting(lambda x: jnp.sum(x * x))
    jitted = jax.jit(f, dynamic_shapes=({0: N},))
    for n in (2, 3):
        x = jnp.arange(float(n))
        np.testing.assert_allclose(jax.grad(jitted)(x), 2 * np.arange(n))
        np.testing.assert_allclose(jax.vmap(jitted)(jnp.ones((4, n))), np.full(4, float(n)))
        np.testing.assert_allclose(
            jax.jit(lambda x: jitted(x) + 1)(x), np.sum(np.arange(n) ** 2) + 1
        )


def test_lowered_for_symbolic_shapes_and_compiled():
    compiled = jax.jit(double).lower(
        ShapeDtypeStruct((N, 3), "float32"), ShapeDtypeStruct((3, 2), "float32")
    ).compile()  # fmt: skip
    assert str(compiled.out_info.shape) == "(n, 2)"
    for n in (1, 16):
        assert compiled(jnp.ones((n, 3)), jnp.ones((3, 2))).shape == (n, 2)
    with pytest.raises(
        TypeError, match=r"argument w compiled for f32\[3,2\], called with f32\[4,2\]"
    ):
        compiled(jnp.ones((2, 3)), jnp.ones((4, 2)))


def test_sizes_are_kept_apart_in_memory_and_reused():
    """Results of one size do not lie in memory of another, whatever the order of calls."""
    jitted = jax.jit(lambda x: (x * 2, x.reshape(-1)[::-1]), dynamic_shapes=({0: N},))
    kept = [(n, jitted(jnp.full((n, 3), float(n)))) for n in (16, 1, 7, 16, 2)]
    for n, (twice, turned) in kept:
        np.testing.assert_array_equal(twice, np.full((n, 3), 2.0 * n))
        np.testing.assert_array_equal(turned, np.full(3 * n, float(n)))


def test_donated_arguments_are_allowed_and_kept():
    jitted = jax.jit(lambda x: x + 1, donate_argnums=0, dynamic_shapes=({0: N},))
    x = jnp.ones(5)
    np.testing.assert_array_equal(jitted(x), np.full(5, 2.0))
    np.testing.assert_array_equal(x, np.ones(5))


def test_explain_names_the_symbolic_size():
    jitted = jax.jit(lambda x: x * 2, dynamic_shapes=({0: N},))
    jitted(jnp.ones((3, 2)))
    jitted(jnp.ones((4, 2)))
    jitted(jnp.ones((4, 5)))
    assert "f32[n,2]" in str(jax.explain(jitted)) and "f32[n,5]" in str(jax.explain(jitted))


def test_nans_are_found_at_the_size_of_the_call():
    jitted = jax.jit(lambda x: jnp.log(x).sum(), dynamic_shapes=({0: N},))
    with jax.debug_nans(True):
        assert jitted(jnp.ones(3)) == 0
        with pytest.raises(FloatingPointError, match="log"):
            jitted(jnp.array([1.0, -1.0]))


WRONG = {
    "too_large": (
        lambda: jax.jit(jnp.sin, dynamic_shapes=({0: N},))(jnp.ones(17)),
        ValueError, "axis 0 of argument x has size 17, but its dimension is symbolic with 1 <= n <= 16",
    ),
    "not_a_multiple": (
        lambda: jax.jit(lambda x: x, dynamic_shapes=({0: Dim("k", 8, 64, multiple_of=8)},))(jnp.ones(12)),
        ValueError, "8 <= k <= 64, a multiple of 8",
    ),
    "two_sizes_of_one_dimension": (
        lambda: jax.jit(lambda x, y: x, dynamic_shapes=({0: N}, {1: N}))(jnp.ones(3), jnp.ones((2, 4))),
        ValueError, "axis 1 of argument y has size 4, but axis 0 of argument x has size 3; both are n",
    ),
    "no_such_axis": (
        lambda: jax.jit(lambda x: x, dynamic_shapes=({2: N},))(jnp.ones((3, 2))),
        ValueError, r"dynamic_shapes of x: it has no axis 2, its shape is \(3, 2\)",
    ),
    "no_such_argument": (
        lambda: jax.jit(lambda x: x, dynamic_shapes={"y": {0: N}})(jnp.ones(3)),
        ValueError, "dynamic_shapes names 'y', but the arguments are x",
    ),
    "too_many_entries": (
        lambda: jax.jit(lambda x: x, dynamic_shapes=({0: N}, None))(jnp.ones(3)),
        ValueError, "2 entries for 1 positional arguments",
    ),
    "not_a_dimension": (
        lambda: jax.jit(lambda x: x, dynamic_shapes=({0: 5},))(jnp.ones(3)),
        TypeError, "axis 0 has 5; give a Dim",
    ),
    "another_tree": (
        lambda: jax.jit(lambda x: x[0], dynamic_shapes=(({0: N}, None, None),))((jnp.ones(3), jnp.ones(2))),
        ValueError, "does not fit it",
    ),
    "neither_tuple_nor_dict": (
        lambda: jax.jit(lambda x: x, dynamic_shapes=N)(jnp.ones(3)),
        TypeError, "dynamic_shapes must be a tuple",
    ),
    "an_expression_with_another_value": (
        lambda: jax.jit(lambda x, y: x, dynamic_shapes=({0: N}, {0: 2 * N}))(jnp.ones(3), jnp.ones(5)),
        ValueError, r"axis 0 of argument y has size 5, but it is 2\*n = 6 where n = 3",
    ),
    "an_expression_without_its_dimension": (
        lambda: jax.jit(lambda x: x, dynamic_shapes=({0: N * N},))(jnp.ones(4)),
        ValueError, "from which n cannot be told",
    ),
    "python_decides_by_the_size": (
        lambda: jax.jit(lambda x: x if x.shape[0] > 5 else -x, dynamic_shapes=({0: N},))(jnp.ones(4)),
        jax.errors.InconclusiveDimensionOperation, "'n > 5' is inconclusive",
    ),
    "a_dimension_of_no_argument": (
        lambda: jax.jit(lambda x: x + jnp.ones(Dim("m", 2, 5)).sum(), dynamic_shapes=({0: N},))(jnp.ones(4)),
        ValueError, "symbolic dimension m is not the size of an argument",
    ),
    "no_bounds": (lambda: Dim("n", 4, 4), ValueError, "needs 0 <= min < max"),
    "no_name": (lambda: Dim("2n"), ValueError, "must be an identifier"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_named(name):
    call, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        call()
