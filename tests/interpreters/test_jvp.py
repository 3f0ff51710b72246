"""Forward mode: what each rule gives, as jaxprs, and that it is the derivative."""

from __future__ import annotations

import jax as oracle
import numpy as np
import pytest

import tinyjax
from tests.golden import assert_jaxpr, f32, i32
from tests.oracle import check, numbers, pushforward, x64
from tinyjax import jvp, lax
from tinyjax import numpy as jnp


def forward(f):
    return lambda x, t: jvp(f, (x,), (t,))


def tangent(f):
    return lambda *args: jvp(f, args[: len(args) // 2], args[len(args) // 2 :])[1]


def test_product_rule():
    assert_jaxpr(
        tangent(lambda x, y: x * y),
        [f32[3]] * 4,
        """
        { lambda a:f32[3] b:f32[3] c:f32[3] d:f32[3]. let
            e:f32[3] = mul c b
            f:f32[3] = mul a d
            g:f32[3] = add e f
          in (g,) }""",
    )


def test_a_missing_tangent_costs_nothing():
    assert_jaxpr(
        lambda x, y, t: jvp(lambda x: x * y, (x,), (t,))[1],
        [f32[3]] * 3,
        """
        { lambda _ a:f32[3] b:f32[3]. let c:f32[3] = mul b a in (c,) }""",
    )


def test_exp_reuses_its_own_value():
    assert_jaxpr(
        forward(jnp.exp),
        [f32[3], f32[3]],
        """
        { lambda a:f32[3] b:f32[3]. let
            c:f32[3] = exp a
            d:f32[3] = mul b c
          in (c, d) }""",
    )


def test_quotient_rule_reuses_the_quotient():
    assert_jaxpr(
        tangent(lambda x, y: x / y),
        [f32[3]] * 4,
        """
        { lambda a:f32[3] b:f32[3] c:f32[3] d:f32[3]. let
            e:f32[3] = div c b
            f:f32[3] = div a b
            g:f32[3] = div f b
            h:f32[3] = neg g
            i:f32[3] = mul d h
            j:f32[3] = add e i
          in (j,) }""",
    )


def test_a_matrix_product_is_bilinear():
    shapes = [f32[2, 3], f32[3, 4], f32[2, 3], f32[3, 4]]
    assert_jaxpr(
        tangent(lambda x, y: x @ y),
        shapes,
        """
        { lambda a:f32[2,3] b:f32[3,4] c:f32[2,3] d:f32[3,4]. let
            e:f32[2,4] = dot[contract=((1),(0))] c b
            f:f32[2,4] = dot[contract=((1),(0))] a d
            g:f32[2,4] = add e f
          in (g,) }""",
    )


def test_movement_applies_to_the_tangent_alone():
    assert_jaxpr(
        tangent(lambda x: x.T.reshape(6)),
        [f32[2, 3], f32[2, 3]],
        """
        { lambda _ a:f32[2,3]. let
            b:f32[3,2] = permute[perm=(1,0)] a
            c:f32[6] = reshape b
          in (c,) }""",
    )


def test_a_cast_to_integers_has_no_tangent():
    assert_jaxpr(
        lambda x, t: jvp(lambda x: x * x.astype(int), (x,), (t,))[1],
        [f32[3], f32[3]],
        """
        { lambda a:f32[3] b:f32[3]. let
            c:i32[3] = cast a
            d:f32[3] = cast c
            e:f32[3] = mul b d
          in (e,) }""",
    )


def test_a_comparison_has_no_tangent():
    assert_jaxpr(
        tangent(lambda x: jnp.where(x > 0, x, 2 * x)),
        [f32[3], f32[3]],
        """
        { lambda a:f32[3] b:f32[3]. let
            c:bool[3] = cmplt 0.0 a
            d:f32[3] = mul 2.0 b
            e:f32[3] = where c b d
          in (e,) }""",
    )


def test_a_call_is_a_forward_call_with_residuals_and_a_linear_call():
    f = tinyjax.function(lambda x: jnp.sin(jnp.sum(x)) * x, name="f")
    assert_jaxpr(
        forward(f),
        [f32[3], f32[3]],
        """
        { lambda a:f32[3] b:f32[3]. let
            c:f32[3] d:f32[] = function[
              name=f
              body={ lambda a:f32[3]. let
                  b:f32[] = reduce_add[axes=(0)] a
                  c:f32[] = sin b
                  d:f32[3] = mul c a
                in (d, b) }
            ] a
            e:f32[3] = function[
              name=jvp(f)
              body={ lambda a:f32[] b:f32[3] c:f32[3]. let
                  d:f32[] = reduce_add[axes=(0)] c
                  e:f32[] = cos a
                  f:f32[] = mul d e
                  g:f32[3] = mul f b
                  h:f32[] = sin a
                  i:f32[3] = mul h c
                  j:f32[3] = add g i
                in (j,) }
            ] d a b
          in (c, e) }""",
    )


def test_a_scan_stacks_what_its_tangent_needs():
    def f(w, xs):
        return lax.scan(lambda c, x: (jnp.sin(c * w + x), None), w, xs)[0]

    assert_jaxpr(
        lambda w, xs, t: jvp(lambda w: f(w, xs), (w,), (t,)),
        [f32[()], f32[5], f32[()]],
        """
        { lambda a:f32[] b:f32[5] c:f32[]. let
            d:f32[] e:f32[5] = scan[
              body={ lambda a:f32[] b:f32[] c:f32[]. let
                  d:f32[] = mul b a
                  e:f32[] = add d c
                  f:f32[] = sin e
                in (f, b) }
              num_consts=1
              num_carry=1
              length=5
            ] a a b
            f:f32[] = scan[
              body={ lambda a:f32[] b:f32[] c:f32[] d:f32[] e:f32[]. let
                  f:f32[] = mul c a
                  g:f32[] = mul d b
                  h:f32[] = add f g
                  i:f32[] = mul d a
                  j:f32[] = add i e
                  k:f32[] = cos j
                  l:f32[] = mul h k
                in (l,) }
              num_consts=2
              num_carry=1
              length=5
            ] a c c e b
          in (d, f) }""",
    )


def test_a_while_loop_gets_a_second_loop_read_for_its_tangents_only():
    def f(x):
        return lax.while_loop(lambda v: v < 10, lambda v: v * x, x)

    assert_jaxpr(
        forward(f),
        [f32[()], f32[()]],
        """
        let while_body = { lambda a:f32[]. let b:bool[] = cmplt a 10.0 in (b,) } in
        { lambda a:f32[] b:f32[]. let
            c:f32[] = while[
              cond=while_body
              body={ lambda a:f32[] b:f32[]. let c:f32[] = mul b a in (c,) }
              cond_consts=0
              body_consts=1
            ] a a
            _:f32[] d:f32[] = while[
              cond=while_body
              body={ lambda a:f32[] b:f32[] c:f32[] d:f32[]. let
                  e:f32[] = mul c a
                  f:f32[] = mul d a
                  g:f32[] = mul c b
                  h:f32[] = add f g
                in (e, h) }
              cond_consts=0
              body_consts=2
            ] a b a b
          in (c, d) }""",
    )


def test_branches_share_residual_slots():
    def f(x):
        return lax.cond(jnp.sum(x) > 0, jnp.sin, lambda x: x * x, x)

    assert_jaxpr(
        forward(f),
        [f32[3], f32[3]],
        """
        { lambda a:f32[3] b:f32[3]. let
            c:f32[] = reduce_add[axes=(0)] a
            d:bool[] = cmplt 0.0 c
            e:i32[] = cast d
            f:f32[3] = cond[
              branches=(
                { lambda a:f32[3]. let b:f32[3] = mul a a in (b,) }
                { lambda a:f32[3]. let b:f32[3] = sin a in (b,) }
              )
            ] e a
            g:f32[3] = cond[
              branches=(
                { lambda a:f32[3] b:f32[3]. let
                    c:f32[3] = mul b a
                    d:f32[3] = mul a b
                    e:f32[3] = add c d
                  in (e,) }
                { lambda a:f32[3] b:f32[3]. let
                    c:f32[3] = cos a
                    d:f32[3] = mul b c
                  in (d,) }
              )
            ] e a b
          in (f, g) }""",
    )


def test_stop_gradient_has_no_tangent():
    assert_jaxpr(
        tangent(lambda x: x * lax.stop_gradient(x)),
        [f32[3], f32[3]],
        """
        { lambda a:f32[3] b:f32[3]. let
            c:f32[3] = stop_gradient a
            d:f32[3] = mul b c
          in (d,) }""",
    )


UNARY = {
    "abs": -1.3, "cbrt": 0.4, "exp": 0.3, "exp2": 0.3, "expm1": 0.3, "log": 0.7, "log1p": 0.7,
    "sqrt": 0.7, "rsqrt": 0.7, "sin": 0.7, "cos": 0.7, "tan": 0.7, "asin": 0.3, "acos": 0.3,
    "atan": 0.3, "sinh": 0.3, "cosh": 0.3, "tanh": 0.3, "asinh": 0.3, "acosh": 1.7, "atanh": 0.3,
    "logistic": 0.3, "erf": 0.3, "erfc": 0.3, "erf_inv": 0.3, "lgamma": 2.3, "digamma": 2.3,
    "square": 0.4, "neg": 0.4, "floor": 0.4, "sign": 0.4, "round": 0.4, "reciprocal": 0.4,
}  # fmt: skip


@pytest.mark.parametrize("name, x", UNARY.items())
def test_first_and_second_derivatives_of_unary_functions_agree_with_jax(name, x):
    at = np.array([x, x * 1.1])
    with x64():
        check(lambda J: pushforward(J, getattr(J.lax, name), at), tolerance=1e-11)
        second = lambda J: pushforward(J, lambda v: pushforward_of(J, getattr(J.lax, name), v), at)
        if name not in ("digamma", "lgamma"):  # polygamma(2) is no op
            check(second, tolerance=1e-9)


def pushforward_of(J, f, x):
    return J.jvp(f, (x,), (J.numpy.ones_like(x),))[1]


BINARY = ["add", "sub", "mul", "div", "rem", "pow", "max", "min", "atan2", "nextafter"]


@pytest.mark.parametrize("name", BINARY)
def test_derivatives_of_binary_functions_agree_with_jax(name):
    x, y = np.array([0.7, 2.5, 1.0]), np.array([1.9, 0.8, 1.0])
    if name == "nextafter":
        return check(lambda J: J.grad(lambda a: 1.0 * a.sum())(x))  # no derivative: see coverage
    with x64():
        check(lambda J: pushforward(J, getattr(J.lax, name), x, y), tolerance=1e-11)


def test_the_tangent_at_a_tie_of_max_is_shared():
    check(lambda J: J.jvp(lambda x: J.numpy.maximum(x, 0.0), (0.0,), (1.0,)))
    check(lambda J: J.jvp(J.numpy.max, (np.array([2.0, 2.0, 1.0], "f4"),), (np.array([1.0, 3.0, 9.0], "f4"),)))  # fmt: skip


@pytest.mark.parametrize("row", [[2.0, 3.0, 4.0], [0.0, 3.0, 4.0], [0.0, 0.0, 4.0], [0.0] * 3])
def test_the_gradient_of_a_product_is_right_with_zeros(row):
    check(lambda J: J.grad(J.numpy.prod)(np.array(row, "f4")))
    check(lambda J: J.grad(lambda x: J.numpy.cumprod(x).sum())(np.array(row, "f4")))


@pytest.mark.parametrize("kind", ["max", "min"])
def test_scatter_extremes_share_between_all_that_attain_the_result(kind):
    def f(J):
        def g(x, u):
            at = J.numpy.asarray([0, 1, 1, 3])
            return getattr(x.at[at], kind)(u)

        return pushforward(J, g, np.array([1.0, 2.0, 3.0, 4.0], "f4"), np.array([1.0, 2.0, 2.0, 9.0], "f4"))  # fmt: skip

    check(f)


def test_pow_is_differentiable_at_the_edges():
    for x, e in [(0.0, 2.0), (0.0, 1.0), (2.0, 0.0), (0.0, 3.0)]:
        check(lambda J: J.grad(lambda x: J.numpy.power(x, e))(x), weak=False)


def test_nested_jvp_does_not_confuse_perturbations():
    check(lambda J: J.jvp(lambda x: x * J.jvp(lambda y: x + y, (2.0,), (1.0,))[1], (3.0,), (1.0,)))
    check(lambda J: J.jvp(lambda x: J.jvp(lambda y: x, (1.0,), (1.0,))[1], (2.0,), (1.0,)))


def test_complex_tangents_follow_jax():
    z, t = np.complex64(1 + 2j), np.complex64(0.5 - 1j)
    check(lambda J: J.jvp(lambda z: J.numpy.conj(z) * z, (z,), (t,)))
    check(lambda J: J.jvp(lambda z: J.numpy.abs(z) ** 2, (z,), (t,)))
    check(lambda J: J.jvp(lambda z: J.numpy.sin(z) / z, (z,), (t,)))


def test_a_sorted_tangent_moves_with_its_value():
    x = numbers(4, 5)
    check(lambda J: pushforward(J, lambda x: J.numpy.sort(x, axis=-1), x))
    check(lambda J: pushforward(J, lambda x: J.numpy.max(x, axis=0), x))
    check(lambda J: pushforward(J, lambda x: J.lax.top_k(x, 2)[0], x))


def test_integer_results_have_no_tangent():
    _, t = jvp(lambda x: (x, jnp.argmax(x)), (np.ones(3, "f4"),), (np.ones(3, "f4"),))
    assert t[1].dtype == oracle.dtypes.float0
    assert_jaxpr(
        lambda x, n, t: jvp(lambda x: x * n, (x,), (t,)),
        [f32[3], i32[3], f32[3]],
        """
        { lambda a:f32[3] b:i32[3] c:f32[3]. let
            d:f32[3] = cast b
            e:f32[3] = mul a d
            f:f32[3] = mul c d
          in (e, f) }""",
    )
