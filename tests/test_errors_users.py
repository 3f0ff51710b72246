"""What a user reads after a mistake: exception, argument path, user's line, fix.

One row per mistake; every fragment must be in the message.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp
from tinyjax import errors, export, flatten_util, lax, test_util
from tinyjax.ad_checkpoint import saved_residuals
from tinyjax.experimental import checkify
from tinyjax.scipy import special

X3 = np.ones(3, np.float32)
HERE = "test_errors_users.py:"
Row = tuple[Callable[[], Any], type[Exception], list[str]]
ROWS: dict[str, Row] = {}


def mistake(expected: type[Exception], *fragments: str) -> Callable[[Callable[[], Any]], Any]:
    def add(f: Callable[[], Any]) -> Callable[[], Any]:
        ROWS[f.__name__] = (f, expected, list(fragments))
        return f

    return add


# --- values of traced arrays in Python ------------------------------------------------------------


@mistake(
    errors.TracerBoolConversionError,
    "Attempted boolean conversion", "argument x['a'] of jit of step at " + HERE,
    """in if_under_jit.<locals>.step:  if x["a"].sum() > 0:""", "jnp.where, lax.cond",
    "static_argnames",
)  # fmt: skip
def if_under_jit() -> Any:
    def step(scale: Any, x: Any) -> Any:
        if x["a"].sum() > 0:
            return scale
        return x["a"]

    return jax.jit(step)(1.0, {"a": X3})


@mistake(errors.TracerBoolConversionError, "argument v of vmap of", "jnp.where, lax.cond")
def if_under_vmap() -> Any:
    return jax.vmap(lambda v: v if v > 0 else -v)(X3)


@mistake(errors.TracerBoolConversionError, "argument c of scan of body at " + HERE, "if c > 0:")
def if_in_scan() -> Any:
    def body(c: Any, x: Any) -> Any:
        if c > 0:
            return c, x
        return -c, x

    return jax.lax.scan(body, 1.0, X3)


@mistake(errors.ConcretizationTypeError, "concrete value is expected", "argument t of jit of", HERE)
def float_under_jit() -> Any:
    return jax.jit(lambda t: float(t))(1.0)


@mistake(errors.ConcretizationTypeError, "argument t of jit of", "static_argnames")
def math_sin_under_jit() -> Any:
    return jax.jit(lambda t: math.sin(t))(1.0)


@mistake(errors.ConcretizationTypeError, "argument n of jit of", "int32[]")
def int_under_jit() -> Any:
    return jax.jit(lambda n: int(n))(3)


@mistake(
    errors.TracerIntegerConversionError, "__index__()", "argument n of jit of", "lax.fori_loop"
)
def range_under_jit() -> Any:
    return jax.jit(lambda n: list(range(n)))(3)


@mistake(errors.TracerIntegerConversionError, "__index__()", "jnp.asarray(xs)[i]")
def list_index_under_jit() -> Any:
    return jax.jit(lambda n: [1, 2, 3][n])(1)


@mistake(
    errors.TracerArrayConversionError, "__array__()", "argument w['k'] of jit of",
    "Use the jax.numpy function of the same name", "pure_callback",
)  # fmt: skip
def numpy_under_jit() -> Any:
    return jax.jit(lambda w: np.sin(w["k"]))({"k": X3})


@mistake(errors.TracerArrayConversionError, "argument v of vmap of")
def asarray_under_vmap() -> Any:
    return jax.vmap(lambda v: np.asarray(v))(X3)


@mistake(
    TypeError, "Shapes must be 1D sequences of concrete values", "depends on argument n of jit",
    "static_argnames",
)  # fmt: skip
def shape_under_jit() -> Any:
    return jax.jit(lambda n: jnp.zeros(n))(3)


@mistake(
    errors.NonConcreteBooleanIndexError, "must be concrete", "jnp.where", "jnp.nonzero(mask, size="
)
def mask_under_jit() -> Any:
    return jax.jit(lambda x: x[x > 0])(X3)


# --- values of differentiated arrays: a plain number would drop the gradient ----------------------


@mistake(
    errors.ConcretizationTypeError, "float() of f32[]", "inside grad of loss at " + HERE,
    "would drop its gradient with respect to p['w']", """return float(p["w"]) * p["w"]""",
    "stop_gradient", "has_aux=True",
)  # fmt: skip
def float_under_grad() -> Any:
    def loss(p: Any) -> Any:
        return float(p["w"]) * p["w"]

    return jax.grad(loss)({"w": 1.0})


@mistake(errors.ConcretizationTypeError, "would drop its gradient with respect to t", "math.sin(t)")
def math_sin_under_grad() -> Any:
    return jax.grad(lambda t: math.sin(t) * t)(1.0)


@mistake(errors.TracerArrayConversionError, "np.asarray() of f32[3]", "would drop its gradient")
def numpy_under_grad() -> Any:
    return jax.grad(lambda x: np.asarray(x).sum() * 1.0)(X3)


@mistake(errors.ConcretizationTypeError, "tolist() of f32[3]", "would drop its gradient")
def tolist_under_grad() -> Any:
    return jax.grad(lambda x: x.tolist()[0] * 1.0)(X3)


@mistake(errors.ConcretizationTypeError, "complex() of f32[]", "would drop its gradient")
def complex_under_jvp() -> Any:
    return jax.jvp(lambda x: x * complex(x).real, (1.0,), (1.0,))


# --- escaped tracers ------------------------------------------------------------------------------


@mistake(
    errors.UnexpectedTracerError, "f32[3] escaped from jit of step at " + HERE,
    "depends on argument weights['w']", """  made at test_errors_users.py:""",
    """in escape_from_jit.<locals>.step:  kept.append(weights["w"] * 2)""",
    "must return what it computes",
)  # fmt: skip
def escape_from_jit() -> Any:
    kept = []

    def step(weights: Any) -> Any:
        kept.append(weights["w"] * 2)
        return weights

    jax.jit(step)({"w": X3})
    return kept[0] + 1


@mistake(errors.UnexpectedTracerError, "escaped from vmap of", "argument v")
def escape_from_vmap() -> Any:
    kept = []
    jax.vmap(lambda v: kept.append(v * 2) or v)(X3)
    return np.asarray(kept[0])


@mistake(errors.UnexpectedTracerError, "escaped from scan of", "argument c")
def escape_from_scan() -> Any:
    kept = []
    jax.lax.scan(lambda c, x: (kept.append(c) or c, x), 0.0, X3)
    return float(kept[0])


def test_a_value_that_escapes_from_grad_still_has_its_value() -> None:
    kept = []

    def loss(x: Any) -> Any:
        kept.append(x * 2)
        return x**2

    assert float(jax.grad(loss)(3.0)) == 6
    assert float(kept[0]) == 6
    assert float(kept[0] + 1) == 7


# --- leaves that are not arrays -------------------------------------------------------------------


@mistake(TypeError, "argument params['name'] to f", "'layer'", "static_argnames='params'")
def string_leaf_under_jit() -> Any:
    def f(params: Any) -> Any:
        return params

    return jax.jit(f)({"name": "layer"})


@mistake(TypeError, "p['name'] is 'adam'", HERE, "Close over it")
def string_leaf_under_grad() -> Any:
    return jax.grad(lambda p: p["w"])({"w": 1.0, "name": "adam"})


@mistake(TypeError, "p['name'] is 'adam'", "arguments of vmap")
def string_leaf_under_vmap() -> Any:
    return jax.vmap(lambda p: p["w"])({"w": X3, "name": "adam"})


@mistake(TypeError, "type <class 'str'> at output component ['msg']", "Return arrays")
def string_returned_under_jit() -> Any:
    return jax.jit(lambda x: {"a": x, "msg": "hello"})(1.0)


@mistake(TypeError, "object", "not a valid JAX type")
def object_operand() -> Any:
    return jax.lax.sin(object())


# --- gradients that do not exist ------------------------------------------------------------------


@mistake(errors.GradTypeError, "got i32[] for x", "write 3.0 instead of 3")
def gradient_of_an_integer() -> Any:
    return jax.grad(lambda x: x * 2.0)(3)


@mistake(errors.GradTypeError, "i32[3] for p['n']", "p['n'].astype(float)")
def gradient_of_an_integer_leaf() -> Any:
    return jax.grad(lambda p: p["w"] * 2.0)({"w": 1.0, "n": jnp.arange(3)})


@mistake(errors.GradTypeError, "scalar-output", "had shape: (3,)", HERE, "jax.jacrev", "jnp.sum")
def gradient_of_a_vector() -> Any:
    return jax.grad(lambda x: x * 2)(X3)


@mistake(errors.GradTypeError, "scalar-output", "returned tuple", "has_aux=True")
def gradient_of_a_tuple() -> Any:
    return jax.grad(lambda x: (x.sum(), x))(X3)


@mistake(errors.GradTypeError, "real-valued outputs", "c64", "holomorphic=True")
def gradient_of_a_complex_result() -> Any:
    return jax.grad(lambda z: z * 2)(1j)


@mistake(errors.GradTypeError, "complex64 for z", "holomorphic=True", "jax.jvp or jax.vjp")
def columns_of_the_jacobian_of_a_complex_argument() -> Any:
    return jax.jacfwd(lambda z: (z * 2).real)(1j)


@mistake(errors.GradTypeError, "real-valued outputs", "i32")
def gradient_with_an_integer_output() -> Any:
    return jax.grad(lambda x: x.astype(int))(1.0)


@mistake(
    TypeError, "argnums 2 of grad require at least 3 positional arguments", "was called with 1"
)
def gradient_of_a_missing_argument() -> Any:
    return jax.grad(lambda x: x, argnums=2)(1.0)


@mistake(ValueError, "Reverse-mode differentiation does not work for lax.while_loop", "lax.scan")
def reverse_mode_of_a_while_loop() -> Any:
    loop = lambda x: jax.lax.while_loop(lambda c: c < 3, lambda c: c * 2, x)
    return jax.grad(loop)(1.0)


@mistake(ValueError, "primal shape (3,) and tangent shape as (2,) for a")
def tangent_of_another_shape() -> Any:
    return jax.jvp(lambda a: a, (X3,), (np.ones(2, np.float32),))


@mistake(
    TypeError,
    "dtypes must be equal",
    "expected tangent dtype float32, but got tangent dtype int32 for a",
)
def tangent_of_another_dtype() -> Any:
    return jax.jvp(lambda a: a, (X3,), (np.ones(3, np.int32),))


@mistake(ValueError, "tree structure of argument to vjp function", "expected to match")
def cotangent_of_another_structure() -> Any:
    return jax.vjp(lambda a: (a, a), X3)[1](X3)


# --- shapes ---------------------------------------------------------------------------------------


@mistake(
    errors.DotShapeError, "axis 1 of a (size 4) with axis 0 of b (size 3)",
    "a = params['w1']  f32[8,4]", "b = x  f32[3]", """in layer:  return params["w1"] @ x""",
)  # fmt: skip
def matrix_product() -> Any:
    def layer(params: Any, x: Any) -> Any:
        return params["w1"] @ x

    layer.__qualname__ = "layer"
    layer.__code__ = layer.__code__.replace(co_qualname="layer")
    return layer({"w1": jnp.ones((8, 4))}, jnp.ones(3))


@mistake(
    errors.BroadcastError, "incompatible shapes for broadcasting: (2, 3), (4,)", "return w + x"
)
def addition_under_jit() -> Any:
    def layer(w: Any, x: Any) -> Any:
        return w + x

    return jax.jit(layer)(jnp.ones((2, 3)), jnp.ones(4))


W, C, V = np.ones((3, 4), np.float32), np.ones((5, 4), np.float32), np.ones(5, np.float32)
P = {"w": W, "c": C}
FITS = {
    "operator": (lambda p, v: p["w"] * v, "x = p['w']  f32[3,4]      y = v  f32[5]"),
    "swapped": (lambda p, v: np.ones(5) * p["w"], "x = np.ones(5)  f64[5]      y = p['w']  f32"),
    "power": (lambda p, v: p["w"] ** v, "x = p['w']  f32[3,4]      y = v  f32[5]"),
    "comparison": (lambda p, v: p["w"] < v, "x = p['w']  f32[3,4]      y = v  f32[5]"),
    "add": (lambda p, v: jnp.add(p["w"], v), "x = p['w']  f32[3,4]      y = v  f32[5]"),
    "where": (
        lambda p, v: jnp.where(v > 0, p["w"], 1.0),
        "condition = v > 0  bool[5]      x = p['w']  f32[3,4]",
    ),
    "method": (lambda p, v: p["w"].clip(v), "self = p['w']  f32[3,4]      min = v  f32[5]"),
    "lax": (lambda p, v: jax.lax.add(p["w"], p["c"]), "x = p['w']  f32[3,4]      y = p['c']  f32[5"),
    "ranks": (lambda p, v: jax.lax.add(p["w"], v), "x = p['w']  f32[3,4]      y = v  f32[5]"),
    "select": (
        lambda p, v: jax.lax.select(p["w"] > 0, p["w"], p["c"]),
        "on_true = p['w']  f32[3,4]      on_false = p['c']  f32[5,4]",
    ),
    "clamp": (lambda p, v: jax.lax.clamp(p["c"], p["w"], 1.0), "min = p['c']  f32[5,4]      x = p['w']"),
    "update": (
        lambda p, v: jax.lax.dynamic_update_slice(p["w"], p["c"], (0, 0)),
        "operand = p['w']  f32[3,4]      update = p['c']  f32[5,4]",
    ),
    "concatenate": (
        lambda p, v: jnp.concatenate([p["w"], p["c"]], axis=1),
        "arrays[0] = p['w']  f32[3,4]      arrays[1] = p['c']  f32[5,4]",
    ),
    "lax_concatenate": (
        lambda p, v: jax.lax.concatenate((p["w"], p["c"]), 1),
        "operands[0] = p['w']  f32[3,4]      operands[1] = p['c']  f32[5,4]",
    ),
    "stack": (lambda p, v: jnp.stack([p["w"], p["c"]]), "arrays[1] = p['c']  f32[5,4]"),
    "vstack": (lambda p, v: jnp.vstack([p["w"], v]), "tup[1] = v  f32[5]"),
    "einsum": (lambda p, v: jnp.einsum("ij,j", p["w"], v), "  p['w']  f32[3,4]      v  f32[5]"),
    "dot_general": (
        lambda p, v: jax.lax.dot_general(p["w"], v, (((1,), (0,)), ((), ()))),
        "lhs = p['w']  f32[3,4]      rhs = v  f32[5]",
    ),
    "multi_dot": (lambda p, v: jnp.linalg.multi_dot([p["w"], p["c"]]), "arrays[0] = p['w']  f32[3,4]"),
    "solve": (lambda p, v: jnp.linalg.solve(p["w"], v), "a = p['w']  f32[3,4]      b = v  f32[5]"),
    "reshape": (lambda p, v: p["w"].reshape(5, 5), "self = p['w']  f32[3,4]"),
    "masked": (lambda p, v: p["w"].sum(where=v > 0), "a = p['w']  f32[3,4]      where = v > 0  bool[5]"),
    "softmax": (lambda p, v: jax.nn.softmax(p["w"], where=v > 0), "where = v > 0  bool[5]"),
    "update_at": (lambda p, v: p["w"].at[0].set(v), "values = v  f32[5]"),
    "index": (lambda p, v: p["w"][np.arange(2), np.arange(3)], "index[1] = np.arange(3)  i64[3]"),
    "of_a_result": (lambda p, v: jnp.sin(p["w"]) + v, "x = jnp.sin(p['w'])  f32[3,4]      y = v  f32[5]"),
}  # fmt: skip
"""Shapes that do not fit, and the operands as the message names them."""


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.grad])
@pytest.mark.parametrize("name", FITS)
def test_shapes_that_do_not_fit_are_told_with_the_operands_as_written(name, around):
    f, operands = FITS[name]
    given = jax.tree.map(jnp.asarray, (P, V))
    with pytest.raises((TypeError, ValueError)) as caught:
        around(f)(*given)
    told, line = str(caught.value).split("\n")[1:3]
    assert told.startswith("  ") and operands in told, str(caught.value)
    assert line.startswith("  at " + HERE), str(caught.value)


def test_an_operand_that_is_an_argument_by_another_name_is_told_with_its_path() -> None:
    def layer(p: Any, v: Any) -> Any:
        w = p["w"]
        return w + v

    for f in (jax.jit(layer), jax.grad(layer)):
        with pytest.raises(errors.BroadcastError) as caught:
            f(P, V)
        assert "\n  x = w (argument p['w'])  f32[3,4]      y = v  f32[5]\n" in str(caught.value)
    with pytest.raises(errors.BroadcastError) as caught:
        jax.jit(lambda p, v: jnp.add(*[p["w"], v]))(P, V)
    assert "\n  x = argument p['w']  f32[3,4]      y = argument v  f32[5]\n" in str(caught.value)


def test_functions_of_ours_that_call_others_tell_their_own_operands() -> None:
    """`rel_entr` broadcasts by a function of jnp; how that is called is nobody's business."""
    with pytest.raises(errors.BroadcastError) as caught:
        jax.jit(lambda p, v: special.rel_entr(q=v, p=p["w"]))(P, V)
    told = str(caught.value).split("\n")[1:]
    assert told[0] == "  q = v  f32[5]      p = p['w']  f32[3,4]" and len(told) == 2


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda p, v: lax.conv_general_dilated(p["w"], v, (1,), "SAME"),
            "lhs = p['w']  f32[3,4]      rhs = v  f32[5]",
        ),
        (
            lambda p, v: jnp.take_along_axis(p["w"], v.astype("int32"), axis=0),
            "arr = p['w']  f32[3,4]      indices = v.astype('int32')  i32[5]",
        ),
        (lambda p, v: jnp.einsum("ijk,j->i", p["w"], v), "p['w']  f32[3,4]      v  f32[5]"),
    ],
)
def test_messages_about_ranks_list_operands(call, told) -> None:
    for f in (call, jax.jit(call)):
        with pytest.raises((TypeError, ValueError)) as caught:
            f(P, V)
        assert str(caught.value).split("\n")[1] == f"  {told}"


def test_messages_about_something_else_do_not_list_operands() -> None:
    with pytest.raises(ValueError) as caught:
        jnp.cumsum(jnp.ones((2, 3)), axis=7)
    assert "f32[2,3]" not in str(caught.value)


@mistake(errors.ReshapeError, "shape (2, 3) (size 6) into shape (4, 2) (size 8)", HERE)
def reshape() -> Any:
    return jax.lax.reshape(jnp.ones((2, 3)), (4, 2))


@mistake(errors.ConcatenateError, "dimension 0 for shapes (2, 3), (2, 4)", HERE)
def concatenate() -> Any:
    return jax.lax.concatenate([jnp.ones((2, 3)), jnp.ones((2, 4))], 0)


@mistake(errors.DtypeError, "requires arguments to have the same dtypes, got f32, i32", "jnp.add")
def mixed_dtypes_in_lax() -> Any:
    return jax.lax.add(X3, np.ones(3, np.int32))


@mistake(errors.JAXIndexError, "index 7 is out of bounds for axis 1 with size 4", HERE)
def static_index_out_of_range() -> Any:
    return jnp.ones((3, 4))[1, 7]


@mistake(TypeError, "immutable", "x.at[idx].set(y)")
def item_assignment() -> Any:
    jnp.ones(3)[0] = 1  # type: ignore[index]


@mistake(ValueError, "truth value of an array with several elements", "a.any() or a.all()")
def truth_of_a_vector() -> Any:
    return bool(jnp.ones(3))


# --- vmap -----------------------------------------------------------------------------------------


@mistake(
    ValueError, "inconsistent sizes", "size 3: a has shape (3,)", "size 4: b['k'] has shape (4, 2)",
    "in_axes=None",
)  # fmt: skip
def vmap_of_unequal_sizes() -> Any:
    return jax.vmap(lambda a, b: a)(X3, {"k": jnp.ones((4, 2))})


@mistake(ValueError, "rank should be at least 1, but is only 0", "argument p['a']")
def vmap_of_a_scalar() -> Any:
    return jax.vmap(lambda p: p)({"a": 1.0})


@mistake(ValueError, "len(in_axes)=1, len(args)=2")
def vmap_with_too_few_axes() -> Any:
    return jax.vmap(lambda a, b: a + b, in_axes=(0,))(X3, X3)


@mistake(
    ValueError, "must be a tree prefix of the arguments", "vmap in_axes[0]", "symmetric difference"
)
def vmap_axes_of_another_structure() -> Any:
    return jax.vmap(lambda p: p["a"], in_axes=({"b": 0},))({"a": X3})


@mistake(ValueError, "out_axes is None", "differs between examples")
def vmap_output_that_differs() -> Any:
    return jax.vmap(lambda p: p, out_axes=None)(X3)


# --- control flow ---------------------------------------------------------------------------------


@mistake(
    errors.CarryTypeError, "carry['n'] enters as i32[] and leaves as f32[]", HERE, ".astype",
)  # fmt: skip
def scan_carry_of_another_dtype() -> Any:
    body = lambda c, x: ({"h": c["h"] + x, "n": c["n"] * 1.5}, None)
    return jax.lax.scan(body, {"h": 0.0, "n": jnp.int32(1)}, X3)


@mistake(
    errors.CarryTypeError, "carry enters as f32[3] and leaves as f32[6]", "collect growing results"
)
def scan_carry_that_grows() -> Any:
    return jax.lax.scan(lambda c, x: (jnp.concatenate([c, c]), x), X3, X3)


@mistake(errors.CarryTypeError, "same pytree structure", "the output carry is PyTreeDef((*, *))")
def scan_carry_of_another_structure() -> Any:
    return jax.lax.scan(lambda c, x: ((c, c), None), 0.0, X3)


@mistake(TypeError, "must be a pair (carry, y)")
def scan_body_without_output() -> Any:
    return jax.lax.scan(lambda c, x: c, 0.0, X3)


@mistake(ValueError, "different leading axis sizes: xs['a']: 3, xs['b']: 4")
def scan_of_unequal_lengths() -> Any:
    return jax.lax.scan(lambda c, x: (c, x), 0.0, {"a": X3, "b": np.ones(4)})


@mistake(ValueError, "`length` argument of 5", "[3]")
def scan_of_another_length() -> Any:
    return jax.lax.scan(lambda c, x: (c, x), 0.0, X3, length=5)


@mistake(
    errors.CarryTypeError, "differ at output['y']", "true_fun", "returns f32[3]", "returns f32[4]",
    HERE,
)  # fmt: skip
def branches_of_unequal_shapes() -> Any:
    return jax.lax.cond(True, lambda: {"y": jnp.ones(3)}, lambda: {"y": jnp.ones(4)})


@mistake(errors.CarryTypeError, "same pytree structure", "'a'", "'b'", "same keys")
def branches_of_unequal_structure() -> Any:
    return jax.lax.cond(True, lambda: {"a": 1.0}, lambda: {"b": 1.0})


@mistake(TypeError, "Pred must be a scalar", "jnp.where")
def condition_that_is_a_vector() -> Any:
    return jax.lax.cond(X3 > 0, lambda: 1, lambda: 2)


@mistake(TypeError, "must return a boolean scalar", "[i32[]]", HERE)
def while_condition_that_is_a_number() -> Any:
    return jax.lax.while_loop(lambda c: c, lambda c: c + 1, 0)


@mistake(errors.CarryTypeError, "while_loop body", "carry[1] enters as f32[] and leaves as f32[2]")
def while_carry_of_another_shape() -> Any:
    body = lambda c: (c[0], jnp.ones(2))
    return jax.lax.while_loop(lambda c: c[0] < 3, body, (0, 1.0))


# --- jit ------------------------------------------------------------------------------------------


@mistake(ValueError, "static argument 1 of", "<class 'list'> is not hashable", "Pass a tuple")
def static_list() -> Any:
    return jax.jit(lambda x, n: x, static_argnums=1)(1.0, [1])


@mistake(ValueError, "invalid argnames {'steps'}", "Valid names: x")
def static_name_that_does_not_exist() -> Any:
    return jax.jit(lambda x: x, static_argnames="steps")


@mistake(
    RuntimeError, "has been deleted with shape=f32[300]", "donated to a jitted function", "copy"
)
def use_after_donation() -> Any:
    x = jnp.ones(300)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    return x + 1


@mistake(TypeError, "Expected a callable value", "3")
def jit_of_a_number() -> Any:
    return jax.jit(3)


@mistake(RuntimeError, "may be traced 1 times", "x: f32[3] -> f32[4]", "pad")
def too_many_traces() -> Any:
    f = jax.jit(lambda x: x, max_traces=1)
    f(jnp.ones(3))
    return f(jnp.ones(4))


# --- random numbers, names, options ---------------------------------------------------------------


@mistake(TypeError, "normal accepts a PRNG key (jax.random.key(seed))", "got 3")
def seed_for_a_key() -> Any:
    return jax.random.normal(3)


@mistake(ValueError, "single key", "shape (2,)", "jax.vmap")
def batch_of_keys() -> Any:
    return jax.random.normal(jax.random.split(jax.random.key(0)))


@mistake(TypeError, "key<fry>", "keys do not mix")
def arithmetic_with_a_key() -> Any:
    return jax.random.key(0) + 1


@mistake(NameError, "unbound axis name: batch", "axis_name='batch'")
def unbound_axis_name() -> Any:
    return jax.lax.psum(X3, "batch")


@mistake(AttributeError, "jax_enable_x46")
def misspelt_option() -> Any:
    return jax.config.update("jax_enable_x46", True)


@mistake(TypeError, "floor", "does not accept complex numbers", "c64[]")
def floor_of_a_complex() -> Any:
    return jax.jit(jnp.floor)(1j)


@mistake(TypeError, "and: needs an integer or bool dtype", "f32[3], f32[3]")
def bits_of_floats() -> Any:
    return jnp.asarray(X3) & X3


@mistake(TypeError, "Shapes must be 1D sequences", "got (2, 1.5)")
def shape_that_is_not_whole() -> Any:
    return jnp.ones((2, 1.5))


@mistake(errors.SizeError, "Shapes must be non-negative, got (-1,)")
def negative_size_under_jit() -> Any:
    return jax.jit(lambda x: jax.lax.full((-1,), x))(1.0)


@mistake(errors.SizeError, "Shapes must be non-negative, got (-2,)")
def negative_number_of_keys() -> Any:
    return jax.random.split(jax.random.key(0), -2)


@mistake(errors.SizeError, "Shapes must be non-negative, got (-3,)")
def negative_number_of_steps() -> Any:
    return jax.lax.scan(lambda c, _: (c, c), 0.0, None, length=-3)


@mistake(errors.SizeError, "Shapes must be non-negative, got (-1,)")
def random_numbers_of_a_negative_shape() -> Any:
    return jax.random.normal(jax.random.key(0), (-1,))


@mistake(ValueError, "argnums of grad must name different arguments, got (0, -2)")
def argnums_twice() -> Any:
    return jax.grad(lambda x, y: x * y, argnums=(0, -2))(1.0, 2.0)


@mistake(TypeError, "argnums of grad must be an int or a tuple of ints, got 'x'")
def argnums_by_name() -> Any:
    return jax.grad(lambda x: x, argnums="x")(1.0)


@mistake(errors.GradTypeError, "returned NoneType: None", "Perhaps a return statement is missing")
def gradient_without_a_return() -> Any:
    return jax.grad(lambda x: None)(1.0)


@mistake(ValueError, "static_argnums or donate_argnums (5,)", "only accepts 2", "x, y")
def static_number_that_does_not_exist() -> Any:
    return jax.jit(lambda x, y: x, static_argnums=5)


@mistake(OverflowError, "1099511627776 out of bounds for int32", HERE, "wider dtype")
def number_that_does_not_fit() -> Any:
    return jnp.int32(2**40)


@mistake(ValueError, "different lengths of list", "rest[0] is one of length 1")
def map_over_unequal_trees() -> Any:
    return jax.tree.map(lambda a, b: a, [1, 2], [1])


@mistake(errors.IndexTypeError, "integer or boolean type", "float64")
def index_that_is_not_whole() -> Any:
    return jnp.ones(3)[1.5]


@mistake(errors.JAXIndexError, "Too many indices: array is 2-dimensional, but 3 were indexed")
def index_with_too_many_axes() -> Any:
    return jnp.ones((2, 3))[0, 0, 0]


@mistake(errors.JAXIndexError, "index 5 is out of bounds for axis 0 with size 2", "mode='clip'")
def update_out_of_range() -> Any:
    return jnp.ones((2, 3)).at[5].set(1.0)


@mistake(errors.BroadcastError, "input type=f32[4] and requested type=f32[3]")
def update_that_does_not_fit() -> Any:
    return jnp.ones((2, 3)).at[0].set(jnp.ones(4))


@mistake(ValueError, "axis 2 is out of bounds for array of dimension 2")
def axis_out_of_range() -> Any:
    return jnp.sum(jnp.ones((2, 3)), axis=2)


@mistake(errors.DotShapeError, "sizes 3 and 2 for the label 'j'")
def einsum_of_unequal_sizes() -> Any:
    return jnp.einsum("ij,jk->ik", jnp.ones((2, 3)), jnp.ones((2, 3)))


@mistake(errors.ReshapeError, "only one may be -1")
def reshape_with_two_unknowns() -> Any:
    return jnp.ones((2, 3)).reshape(-1, -1)


@mistake(ValueError, "jnp.linalg.inv", "[..., n, n], got (2, 3)")
def inverse_of_a_wide_matrix() -> Any:
    return jnp.linalg.inv(jnp.ones((2, 3)))


@mistake(TypeError, "Convert it with jnp.asarray", "'list'")
def list_as_an_operand() -> Any:
    return jnp.ones(3) + [1.0, 2.0, 3.0]


@mistake(ValueError, "implies that its rank should be at least 4", "(2, 3)", "argument x of")
def vmap_over_an_axis_that_is_not_there() -> Any:
    return jax.vmap(lambda x: x, in_axes=3)(jnp.ones((2, 3)))


@mistake(ValueError, "vmap out_axes is a tuple of length 3", "one of length 2")
def vmap_output_axes_of_another_structure() -> Any:
    return jax.vmap(lambda x: (x, x), out_axes=(0, 0, 0))(X3)


@mistake(errors.GradTypeError, "must return a pair (value, aux)", "got Array")
def auxiliary_output_that_is_missing() -> Any:
    return jax.grad(lambda x: x.sum(), has_aux=True)(X3)


@mistake(ValueError, "got f32[4], but expected f32[3]")
def cotangent_of_another_shape() -> Any:
    return jax.vjp(lambda x: x, X3)[1](np.ones(4, np.float32))


@mistake(TypeError, "tuple of length equal to the number", "2")
def backward_rule_with_too_few_results() -> Any:
    f = jax.custom_vjp(lambda x, y: x * y)
    f.defvjp(lambda x, y: (x * y, None), lambda held, ct: (ct,))
    return jax.grad(f)(1.0, 2.0)


@mistake(AttributeError, "No JVP defined for custom_jvp function", "defjvp")
def rule_that_is_missing() -> Any:
    return jax.custom_jvp(lambda x: x)(1.0)


@mistake(errors.UnexpectedTracerError, "closed-over value (s)", "explicit argument")
def rule_that_closes_over_an_active_value() -> Any:
    def loss(s: Any) -> Any:
        f = jax.custom_jvp(lambda x: x * s)
        f.defjvps(lambda dx, value, x: dx)
        return f(2.0)

    return jax.grad(jax.jit(loss))(3.0)


@mistake(TypeError, "lower and upper", "must be integer scalars, got f32[] for lower")
def loop_with_float_bounds() -> Any:
    return jax.lax.fori_loop(0.0, 3.0, lambda i, c: c, 1.0)


@mistake(ValueError, "no values to scan over and `length` not provided")
def scan_of_unknown_length() -> Any:
    return jax.lax.scan(lambda c, x: (c, x), 0.0)


@mistake(TypeError, "Index type must be an integer, got f32[]")
def switch_by_a_float() -> Any:
    return jax.lax.switch(0.5, [lambda: 1, lambda: 2])


@mistake(TypeError, "unhashable")
def array_as_a_dictionary_key() -> Any:
    return {jnp.ones(()): 1}


# --- options and callables --------------------------------------------------------------------------


@mistake(TypeError, "must return a boolean scalar", "[f32[]]", "Compare")
def bounded_condition_that_is_a_number() -> Any:
    return lax.bounded_while(lambda c: c, lambda c: c - 1, 1.0, max_steps=3)


@mistake(TypeError, "max_steps of bounded_while must be an integer, got 2.5")
def bound_that_is_not_whole() -> Any:
    return lax.bounded_while(lambda c: c < 3, lambda c: c + 1, 1.0, max_steps=2.5)  # type: ignore[arg-type]


@mistake(
    errors.CarryTypeError, "bounded_while body function carry input and carry output must have the same",
    "the output carry is PyTreeDef((*, *))", "in the form in which the body got it",
)  # fmt: skip
def bounded_carry_of_another_structure() -> Any:
    return lax.bounded_while(lambda c: c < 3, lambda c: (c, c), 1.0, max_steps=3)


@mistake(
    errors.CarryTypeError, "bounded_while body", "carry[1] enters as f32[] and leaves as f32[2]"
)
def bounded_carry_of_another_shape() -> Any:
    return lax.bounded_while(
        lambda c: c[0] < 3, lambda c: (c[0], jnp.ones(2)), (1.0, 2.0), max_steps=3
    )


@mistake(TypeError, "precompile of function must be True or False, got 'yes'")
def precompile_that_is_a_text() -> Any:
    return jax.function(precompile="yes")  # type: ignore[arg-type]


@mistake(TypeError, "precompile_backward of function must be True or False, got 2")
def precompile_backward_that_is_a_number() -> Any:
    return jax.function(lambda x: x, precompile_backward=2)  # type: ignore[arg-type]


@mistake(TypeError, "grad_fxn of function must be a function of (cotangent, *args), got 3")
def gradient_function_that_is_a_number() -> Any:
    return jax.function(lambda x: x, grad_fxn=3)  # type: ignore[arg-type]


@mistake(TypeError, "max_traces of jit must be an integer, got 'a'")
def number_of_traces_that_is_a_text() -> Any:
    return jax.jit(max_traces="a")  # type: ignore[arg-type]


@mistake(ValueError, "max_traces of jit must not be negative, got -1")
def negative_number_of_traces() -> Any:
    return jax.jit(lambda x: x, max_traces=-1)


@mistake(
    TypeError,
    "static_argnums of jit must be an int or a tuple of ints, got 'q'",
    "argnames tell them",
)
def static_number_that_is_a_text() -> Any:
    return jax.jit(static_argnums="q")  # type: ignore[arg-type]


@mistake(TypeError, "donate_argnums of jit must be an int or a tuple of ints, got (0, 'q')")
def donated_number_that_is_a_text() -> Any:
    return jax.jit(lambda x, y: x, donate_argnums=(0, "q"))  # type: ignore[arg-type]


@mistake(TypeError, "static_argnames of jit must be a str or a tuple of strs, got 3", "use argnums")
def static_name_that_is_a_number() -> Any:
    return jax.jit(lambda x: x, static_argnames=3)  # type: ignore[arg-type]


@mistake(TypeError, "static_argnames of jit must be a str or a tuple of strs, got (0,)")
def static_names_that_are_numbers() -> Any:
    return jax.jit(lambda x: x, static_argnames=(0,))  # type: ignore[arg-type]


@mistake(ValueError, "invalid argnames {'q'}")
def static_name_of_a_decorator_that_does_not_exist() -> Any:
    return jax.jit(static_argnames="q")(lambda x: x)


@mistake(TypeError, "shape of ShapeDtypeStruct must be a sequence of integers, got 2")
def type_of_an_array_whose_shape_is_a_number() -> Any:
    return jax.ShapeDtypeStruct(2, "float32")  # type: ignore[arg-type]


@mistake(
    errors.CustomRuleError, "the function of custom_gradient", f"<lambda> at {HERE}",
    "must return a pair (value, vjp)", "got 1.0",
)  # fmt: skip
def custom_gradient_that_is_no_pair() -> Any:
    return jax.custom_gradient(lambda x: x)(1.0)


@mistake(errors.CustomRuleError, "must return a pair (value, vjp)", "3)")
def custom_gradient_whose_rule_is_a_number() -> Any:
    return jax.grad(jax.custom_gradient(lambda x: (x, 3)))(1.0)


@mistake(TypeError, "Expected a callable value, got 3")
def residuals_of_a_number() -> Any:
    return saved_residuals(3)  # type: ignore[arg-type]


@mistake(
    errors.FormatError, "text '{a} {b}' of debug.print has no value for {a}, given are: 1 positional, b",
    "for each placeholder",
)  # fmt: skip
def printed_text_that_lacks_a_name() -> Any:
    return jax.jit(lambda x: jax.debug.print("{a} {b}", 1, b=x))(2.0)


@mistake(errors.FormatError, "no value for one of its placeholders, given are: 1 positional")
def printed_text_that_lacks_a_value() -> Any:
    return jax.debug.print("{} {}", 1)


@mistake(errors.FormatError, "{a}", "of check has no value for {a}, given are: 0 positional, b")
def text_of_a_check_that_lacks_a_name() -> Any:
    return checkify.check(False, "{a}", b=1)


@mistake(errors.FormatError, "of check has no value for {a}, given are: 0 positional, b")
def text_of_an_error_that_lacks_a_name() -> Any:
    error, _ = checkify.checkify(lambda x: checkify.check(x > 5, "{a}", b=x))(1.0)
    return error.get()


@mistake(
    errors.ShapeError, "fn of associative_scan", f"<lambda> at {HERE}", "arrays of shape (1,) and",
    "one of shape ()", "elems = X3  f32[3]", "jax.vmap",
)  # fmt: skip
def scanned_function_that_sums() -> Any:
    return lax.associative_scan(lambda a, b: a.sum(), X3)


@mistake(ValueError, "fn of associative_scan", "a tree like that of each argument", "got PyTreeDef")
def scanned_function_of_another_structure() -> Any:
    return lax.associative_scan(lambda a, b: (a, b), X3)


@mistake(ValueError, "does not have enough dimensions for all core dimensions ('n',)")
def vectorized_over_too_few_axes() -> Any:
    return jnp.vectorize(lambda x: x, signature="(n)->(n)")(1.0)


@mistake(TypeError, "was called with arguments of structure PyTreeDef(())")
def converted_closure_without_its_arguments() -> Any:
    return jax.closure_convert(lambda x: x, 1.0)[0]()


@mistake(ValueError, "unravel function expected input of shape (4,), got shape (3,)")
def vector_of_another_length() -> Any:
    return flatten_util.ravel_pytree({"a": X3, "b": 1.0})[1](X3)


@mistake(TypeError, "'float' object is not iterable", "check_grads(", "args = 1.0")
def derivatives_checked_at_a_number() -> Any:
    return test_util.check_grads(lambda x: x, 1.0, 1)  # type: ignore[arg-type]


@mistake(TypeError, "not callable", "f_jvp = 3")
def derivative_that_is_a_number() -> Any:
    return test_util.check_jvp(lambda x: x, 3, (1.0,))  # type: ignore[arg-type]


@mistake(TypeError, "not callable", "f_vjp = 3")
def pullback_that_is_a_number() -> Any:
    return test_util.check_vjp(lambda x: x, 3, (1.0,))  # type: ignore[arg-type]


@mistake(ValueError, "needs 0 <= min < max")
def size_without_values() -> Any:
    return jax.Dim("n", 5, 1)


@mistake(TypeError, "min of Dim must be an integer, got 'a'")
def size_whose_bound_is_a_text() -> Any:
    return jax.Dim("n", "a", 7)  # type: ignore[arg-type]


@mistake(ValueError, "multiple_of of Dim must be at least 1, got 0")
def size_that_is_a_multiple_of_zero() -> Any:
    return jax.Dim("n", 1, 7, multiple_of=0)


@mistake(ValueError, "to be exported must be the result of `jit` but is: 3")
def export_of_a_number() -> Any:
    return export.export(3)


@mistake(ValueError, "are not an exported function")
def other_bytes_as_an_export() -> Any:
    return export.deserialize(b"abc")


@pytest.mark.parametrize("name", ROWS)
def test_a_mistake_is_explained(name: str) -> None:
    make, expected, fragments = ROWS[name]
    with pytest.raises(expected) as caught:
        make()
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message, message


@pytest.mark.parametrize("name", sorted(ROWS.keys() - {"array_as_a_dictionary_key"}))
def test_the_line_of_the_user_is_named(name: str) -> None:
    """And the frames that the traceback shows are the user's."""
    make, expected, _ = ROWS[name]
    with pytest.raises(expected) as caught:
        make()
    assert "\n  at " + HERE in str(caught.value)
    files = {frame.path.name for frame in caught.traceback}
    assert files == {"test_errors_users.py"}


@pytest.mark.parametrize("name", ROWS)
def test_no_internal_term_is_shown(name: str) -> None:
    make, expected, _ = ROWS[name]
    with pytest.raises(expected) as caught:
        make()
    for term in ("UOp", "GETTUPLE", "PARAM", "Traced(", "<tinyjax"):
        assert term not in str(caught.value)
    assert not isinstance(caught.value.__context__, KeyError)


def test_programs_that_catch_the_exceptions_of_jax_keep_working() -> None:
    oracle = pytest.importorskip("jax")
    for name in (
        "ConcretizationTypeError", "TracerBoolConversionError", "TracerArrayConversionError",
        "TracerIntegerConversionError", "NonConcreteBooleanIndexError", "UnexpectedTracerError",
        "KeyReuseError", "JaxRuntimeError", "JAXIndexError", "JAXTypeError",
    ):  # fmt: skip
        ours, theirs = getattr(errors, name), getattr(oracle.errors, name)
        builtins = [c for c in theirs.__mro__ if c.__module__ == "builtins"]
        assert all(issubclass(ours, c) for c in builtins), name
    assert issubclass(errors.TracerBoolConversionError, errors.ConcretizationTypeError)


def test_messages_about_results_name_their_path() -> None:
    both = lambda x: {"a": x, "b": (x, x)}
    rule = jax.custom_vjp(lambda d: d["a"])
    rule.defvjp(lambda d: (d["a"], None), lambda r, ct: ({"a": X3},))
    for call, path in (
        (lambda: jax.vjp(both, 1.0)[1]({"a": 1.0, "b": (1.0, X3)}), "output['b'][1]"),
        (lambda: jax.vmap(both, out_axes={"a": 0, "b": 5})(X3), "output['b'][0]"),
        (lambda: jax.vmap(both, out_axes={"a": 0, "b": (0, None)})(X3), "output['b'][1]"),
        (lambda: jax.grad(rule)({"a": 1.0}), "args[0]['a']"),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert path in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "told"), [("fwd", "tangent of f_jvp"), ("rev", "pullback of f_vjp: <ct, J v> is")]
)
def test_a_derivative_that_is_wrong_is_told_with_the_line_of_the_user(mode: str, told: str) -> None:
    with pytest.raises(AssertionError) as caught:
        test_util.check_grads(lambda x: lax.stop_gradient(x) * x, (1.0,), 1, modes=(mode,))
    assert told in str(caught.value) and "\n  at " + HERE in str(caught.value)
    test_util.check_grads(lambda x: x * x, (1.0,), 2, modes=(mode,))


def test_a_failed_trace_leaves_nothing_behind() -> None:
    """After an exception in the middle of everything, eager code runs and jit traces anew."""
    fail = [True]

    @jax.jit
    def inner(x: Any) -> Any:
        if fail[0]:
            raise KeyError("in the middle")
        return x * 2

    outer = jax.grad(lambda x: jax.vmap(lambda y: inner(y), axis_name="i")(x).sum())
    for _ in range(2):
        with pytest.raises(KeyError):
            outer(X3)
    assert float(jnp.ones(()) + 1) == 2
    assert not isinstance(jnp.ones(3) * 2, jax.core.Tracer)
    fail[0] = False
    np.testing.assert_array_equal(outer(X3), [2, 2, 2])


def test_names_of_partials_and_callables_are_shown() -> None:
    class Model:
        def __call__(self, x: Any) -> Any:
            return float(x)

    with pytest.raises(errors.ConcretizationTypeError, match="jit of Model"):
        jax.jit(Model())(1.0)
    with pytest.raises(errors.ConcretizationTypeError, match="argument b of jit of"):
        jax.jit(functools.partial(lambda a, b: float(b), 1.0))(2.0)
