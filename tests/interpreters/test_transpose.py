"""Reverse of linear maps: what each rule gives, as jaxprs, and that <Ax, y> = <x, A'y>."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
from tests.golden import assert_jaxpr, f32
from tests.oracle import check, numbers, pullback
from tinyjax import lax
from tinyjax import numpy as jnp


def transposed(f, *shapes):
    """cotangent -> cotangents of the arguments of a linear function."""
    return lambda ct: tinyjax.linear_transpose(f, *shapes)(ct)


def backward(f):
    """(args..., cotangent) -> cotangents of the arguments."""
    return lambda *args: tinyjax.vjp(f, *args[:-1])[1](args[-1])


def test_a_broadcast_is_a_sum_backwards():
    f = lambda x: jnp.broadcast_to(x, (4, 3))
    assert_jaxpr(
        transposed(f, f32[3]),
        [f32[4, 3]],
        """
        { lambda a:f32[4,3]. let b:f32[3] = reduce_add[axes=(0)] a in (b,) }""",
    )


def test_a_broadcast_scalar_operand_is_a_sum_backwards():
    assert_jaxpr(
        transposed(lambda x: x * np.ones((2, 3), "f4"), f32[()]),
        [f32[2, 3]],
        """
        { lambda a:f32[2,3] b:f32[2,3]. let
            c:f32[2,3] = mul a b
            d:f32[] = reduce_add[axes=(0,1)] c
          in (d,) }""",
    )


def test_a_slice_is_a_pad_backwards():
    assert_jaxpr(
        transposed(lambda x: x[1:8:3], f32[10]),
        [f32[3]],
        """
        { lambda a:f32[3]. let b:f32[10] = pad[lo=(1) hi=(2) interior=(2)] a 0.0:f32[] in (b,) }""",
    )


def test_a_pad_is_a_slice_backwards():
    f = lambda x: lax.pad(x, 0.0, [(2, -1, 1)])
    assert_jaxpr(
        transposed(f, f32[5]),
        [f32[10]],
        """
        { lambda a:f32[10]. let
            b:f32[9] = pad[lo=(-2) hi=(1)] a 0.0:f32[]
            c:f32[5] = slice[start=(0) stop=(9) step=(2)] b
          in (c,) }""",
    )


def test_a_concatenation_is_sliced_backwards():
    f = lambda x, y: jnp.concatenate([x, y])
    assert_jaxpr(
        transposed(f, f32[2], f32[3]),
        [f32[5]],
        """
        { lambda a:f32[5]. let
            b:f32[2] = slice[start=(0) stop=(2)] a
            c:f32[3] = slice[start=(2) stop=(5)] a
          in (b, c) }""",
    )


def test_a_gather_is_a_scatter_add_backwards():
    at = np.array([2, 0, 2])
    assert_jaxpr(
        transposed(lambda x: x[at], f32[4]),
        [f32[3]],
        """
        { lambda a:f32[3] b:i32[3]. let
            c:f32[4] = expand[dims=()] 0.0:f32[]
            d:i32[3,1] = reshape b
            e:f32[4] = scatter_add[
              update_window_dims=()
              inserted_window_dims=(0)
              scatter_dims_to_operand_dims=(0)
              mode=clip
            ] c d a
          in (e,) }""",
    )


def test_a_cumulative_sum_runs_the_other_way():
    assert_jaxpr(
        transposed(jnp.cumsum, f32[5]),
        [f32[5]],
        """
        { lambda a:f32[5]. let b:f32[5] = prefix_add[axis=0 reverse=True] a in (b,) }""",
    )


def test_a_matrix_product_needs_no_transposition_backwards():
    assert_jaxpr(
        backward(lambda x, w: x @ w),
        [f32[5, 3], f32[3, 4], f32[5, 4]],
        """
        { lambda a:f32[5,3] b:f32[3,4] c:f32[5,4]. let
            d:f32[5,3] = dot[contract=((1),(1))] c b
            e:f32[3,4] = dot[contract=((0),(0))] a c
          in (d, e) }""",
    )


def test_a_batched_product_keeps_its_batch_axis():
    f = lambda x, w: jnp.einsum("bik,bjk->bij", x, w)
    assert_jaxpr(
        backward(f),
        [f32[6, 2, 3], f32[6, 4, 3], f32[6, 2, 4]],
        """
        { lambda a:f32[6,2,3] b:f32[6,4,3] c:f32[6,2,4]. let
            d:f32[6,2,3] = dot[contract=((2),(1)) batch=((0),(0))] c b
            e:f32[6,4,3] = dot[contract=((1),(1)) batch=((0),(0))] c a
          in (d, e) }""",
    )


def test_cotangents_of_a_value_used_twice_add():
    assert_jaxpr(
        transposed(lambda x: 2 * x + jnp.flip(x), f32[3]),
        [f32[3]],
        """
        { lambda a:f32[3]. let
            b:f32[3] = flip[axes=(0)] a
            c:f32[3] = mul 2.0 a
            d:f32[3] = add b c
          in (d,) }""",
    )


def test_a_scan_runs_backwards_and_sums_the_cotangents_of_its_constants():
    def f(w, xs):
        return lax.scan(lambda c, x: (c + w * x, None), 0.0, xs)[0]

    assert_jaxpr(
        backward(f),
        [f32[()], f32[5], f32[()]],
        """
        { lambda a:f32[] b:f32[5] c:f32[]. let
            _:f32[] d:f32[] e:f32[5] = scan[
              body={ lambda a:f32[] b:f32[] c:f32[] d:f32[]. let
                  e:f32[] = mul b d
                  f:f32[] = add c e
                  g:f32[] = mul a b
                in (b, f, g) }
              num_consts=1
              num_carry=2
              length=5
              reverse=True
            ] a c 0.0:f32[] b
          in (d, e) }""",
    )


def test_branches_return_the_cotangents_that_any_of_them_needs():
    def f(x, y):
        return lax.cond(jnp.sum(y) > 0, lambda x: 2 * x, lambda x: jnp.zeros(3), x)

    assert_jaxpr(
        lambda x, y, ct: tinyjax.vjp(lambda x: f(x, y), x)[1](ct),
        [f32[3]] * 3,
        """
        { lambda a:f32[3] b:f32[3] c:f32[3]. let
            d:f32[] = reduce_add[axes=(0)] b
            e:bool[] = cmplt 0.0 d
            f:i32[] = cast e
            g:f32[3] = cond[
              branches=(
                { lambda a:f32[3] b:f32[3]. let c:f32[3] = expand[dims=()] 0.0:f32[] in (c,) }
                { lambda a:f32[3] b:f32[3]. let c:f32[3] = mul 2.0 b in (c,) }
              )
            ] f a c
          in (g,) }""",
    )


def test_an_output_without_a_cotangent_costs_nothing():
    f = tinyjax.function(lambda x: (jnp.sin(x), jnp.exp(x)), name="f")
    assert_jaxpr(
        tinyjax.grad(lambda x: jnp.sum(f(x)[0])),
        [f32[3]],
        """
        { lambda a:f32[3]. let
            _:f32[3] b:f32[3] = function[
              name=f
              body={ lambda a:f32[3]. let
                  b:f32[3] = sin a
                  c:f32[3] = exp a
                in (b, c) }
            ] a
            c:f32[3] = expand[dims=()] 1.0:f32[]
            d:f32[3] = function[
              name=transpose(f)
              body={ lambda a:f32[3] b:f32[3] c:f32[3]. let
                  d:f32[3] = cos a
                  e:f32[3] = mul c d
                in (e,) }
            ] a b c
          in (d,) }""",
    )


def test_reverse_mode_of_an_unbounded_loop_says_what_to_use():
    f = lambda x: lax.while_loop(lambda v: v < 10, lambda v: 2 * v, x)
    with pytest.raises(ValueError, match="Try using lax.scan"):
        tinyjax.grad(f)(1.0)


def test_a_function_that_is_not_linear_cannot_be_transposed_but_has_a_vjp():
    check(lambda J: pullback(J, lambda x: J.numpy.sin(x) * x, numbers(3)))


X = numbers(4, 6)
LINEAR = {
    "reshape": lambda J, x: x.reshape(3, 8),
    "transpose": lambda J, x: x.T,
    "flip": lambda J, x: J.numpy.flip(x, 1),
    "roll": lambda J, x: J.numpy.roll(x, 2, 1),
    "strided slice": lambda J, x: x[::3, 5:1:-2],
    "negative pad": lambda J, x: J.lax.pad(x, np.float32(0), [(-1, 2, 1), (3, -2, 0)]),
    "padding value": lambda J, x: J.lax.pad(x, x[0, 0], [(1, 2, 1), (3, -2, 0)]),
    "convolution": lambda J, x: J.lax.conv_general_dilated(
        x.reshape(1, 1, 4, 6), np.ones((2, 1, 2, 3), "f4"), (1, 2), "SAME"
    ),
    "window sum": lambda J, x: J.lax.reduce_window(
        x, np.float32(0), J.lax.add, (2, 3), (1, 2), "SAME"
    ),
    "dynamic slice": lambda J, x: J.lax.dynamic_slice(x, (1, 9), (2, 3)),
    "dynamic update": lambda J, x: J.lax.dynamic_update_slice(x, 2 * x[:2, :3], (3, 1)),
    "gather rows": lambda J, x: x[np.array([3, 0, 3])],
    "gather out of bounds": lambda J, x: x.at[np.array([3, 9])].get(mode="fill", fill_value=0),
    "gather clipped": lambda J, x: x.at[np.array([3, 9])].get(mode="clip"),
    "scatter add": lambda J, x: x.at[np.array([1, 1, 9])].add(2 * x[:3]),
    "scatter set": lambda J, x: x.at[np.array([1, 1, 0])].set(2 * x[:3]),
    "where": lambda J, x: J.numpy.where(np.arange(6) > 2, x, 3 * x),
    "cast": lambda J, x: x.astype("bfloat16").astype("float32"),
    "take": lambda J, x: J.numpy.take_along_axis(x, np.array([[1], [0], [5], [5]]), 1),
    "cumsum": lambda J, x: J.numpy.cumsum(x, 1),
    "fft": lambda J, x: J.numpy.abs(J.numpy.fft.fft(x)),
    "rfft": lambda J, x: J.numpy.abs(J.numpy.fft.rfft(x)),
    "irfft": lambda J, x: J.numpy.fft.irfft(x + 1j * x**2),
    "complex": lambda J, x: (J.lax.complex(x, 2 * x) * (1 + 2j)).imag,
    "outer": lambda J, x: J.numpy.einsum("ij,kl->ikjl", x, x),
    "tensordot": lambda J, x: J.numpy.tensordot(x, x, ((1,), (1,))),
}


@pytest.mark.parametrize("name", LINEAR)
def test_pullbacks_agree_with_jax(name):
    check(lambda J: pullback(J, lambda x: LINEAR[name](J, x), X), tolerance=2e-5)


LAYOUTS = ["mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->mn", "bmk,bkn->bmn", "mbk,kbn->nbm", "mk,kn->nm", "k,kn->n", "mk,k->m", "mkl,kln->mn", "mkl,nlk->nm"]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_of_every_layout_have_jaxs_pullback(layout):
    sizes = dict(zip("bmknl", (2, 3, 4, 5, 6)))
    x, y = (numbers(*(sizes[c] for c in part)) for part in layout.split("->")[0].split(","))
    check(lambda J: pullback(J, lambda x, y: J.numpy.einsum(layout, x, y), x, y), tolerance=2e-5)
