"""Vectorisation: what each rule gives, as jaxprs; and that it equals a loop over examples."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import tinyjax
from tests.golden import assert_jaxpr, f32, i32
from tests.oracle import check, numbers
from tinyjax import lax, vmap
from tinyjax import numpy as jnp


def test_elementwise_is_the_same_op():
    assert_jaxpr(
        vmap(lambda x, y: x * y),
        [f32[5, 3]] * 2,
        """
        { lambda a:f32[5,3] b:f32[5,3]. let c:f32[5,3] = mul a b in (c,) }""",
    )


def test_a_shared_operand_is_spread_but_a_shared_scalar_is_not():
    assert_jaxpr(
        vmap(lambda x, y, z: x * y + z, (0, None, None)),
        [f32[5, 3], f32[3], f32[()]],
        """
        { lambda a:f32[5,3] b:f32[3] c:f32[]. let
            d:f32[5,3] = expand[dims=(1)] b
            e:f32[5,3] = mul a d
            f:f32[5,3] = add e c
          in (f,) }""",
    )


def test_a_matrix_vector_product_becomes_one_matrix_product():
    assert_jaxpr(
        vmap(lambda w, x: w @ x, (None, 0)),
        [f32[2, 3], f32[5, 3]],
        """
        { lambda a:f32[2,3] b:f32[5,3]. let c:f32[5,2] = dot[contract=((1),(1))] b a in (c,) }""",
    )


def test_a_product_with_two_batched_operands_gets_a_batch_axis():
    assert_jaxpr(
        vmap(jnp.dot),
        [f32[5, 2, 3], f32[5, 3]],
        """
        { lambda a:f32[5,2,3] b:f32[5,3]. let
            c:f32[5,2] = dot[contract=((2),(1)) batch=((0),(0))] a b
          in (c,) }""",
    )


def test_axes_are_moved_at_the_border_only():
    assert_jaxpr(
        vmap(jnp.sin, in_axes=1, out_axes=1),
        [f32[3, 5]],
        """
        { lambda a:f32[3,5]. let
            b:f32[5,3] = permute[perm=(1,0)] a
            c:f32[5,3] = sin b
            d:f32[3,5] = permute[perm=(1,0)] c
          in (d,) }""",
    )


def test_a_batched_index_makes_a_gather_that_clamps():
    assert_jaxpr(
        vmap(lambda x, i: lax.dynamic_slice(x, (i,), (2,)), (None, 0)),
        [f32[6], i32[4]],
        """
        { lambda a:f32[6] b:i32[4]. let
            c:bool[4] = cmplt b 0
            d:i32[4] = add b 6
            e:i32[4] = where c d b
            f:i32[4,1] = reshape e
            g:f32[4,2] = gather[
              offset_dims=(1)
              collapsed_slice_dims=()
              start_index_map=(0)
              slice_sizes=(2)
              mode=clip
            ] a f
          in (g,) }""",
    )


def test_batched_scatters_get_batching_dimensions():
    assert_jaxpr(
        vmap(lambda x, i: x.at[i].add(1.0)),
        [f32[5, 6], i32[5, 2]],
        """
        { lambda a:f32[5,6] b:i32[5,2]. let
            c:bool[5,2] = cmplt b 0
            d:i32[5,2] = add b 6
            e:i32[5,2] = where c d b
            f:i32[5,2,1] = reshape e
            g:f32[2] = expand[dims=()] 1.0:f32[]
            h:f32[5,2] = expand[dims=(1)] g
            i:f32[5,6] = scatter_add[
              update_window_dims=()
              inserted_window_dims=(1)
              scatter_dims_to_operand_dims=(1)
              operand_batching_dims=(0)
              scatter_indices_batching_dims=(0)
            ] a f h
          in (i,) }""",
    )


def test_a_scan_keeps_its_axis_first_and_the_batch_second():
    f = lambda xs: lax.scan(lambda c, x: (c + x, c), 0.0, xs)
    assert_jaxpr(
        vmap(f),
        [f32[5, 7]],
        """
        { lambda a:f32[5,7]. let
            b:f32[5]{weak} = expand[dims=()] 0.0:f32[]{weak}
            c:f32[7,5] = permute[perm=(1,0)] a
            d:f32[5] e:f32[7,5]{weak} = scan[
              body={ lambda a:f32[5]{weak} b:f32[5]. let
                  c:f32[5] = cast a
                  d:f32[5] = add c b
                in (d, a) }
              num_consts=0
              num_carry=1
              length=7
            ] b c
            f:f32[5,7]{weak} = permute[perm=(1,0)] e
          in (d, f) }""",
    )


def test_a_batched_predicate_keeps_finished_examples():
    f = lambda x: lax.while_loop(lambda v: v < 10, lambda v: 2 * v, x)
    assert_jaxpr(
        vmap(f),
        [f32[5]],
        """
        { lambda a:f32[5]. let
            b:f32[5] = while[
              cond={ lambda a:f32[5]. let
                  b:bool[5] = cmplt a 10.0
                  c:bool[] = reduce_or[axes=(0)] b
                in (c,) }
              body={ lambda a:f32[5]. let
                  b:bool[5] = cmplt a 10.0
                  c:f32[5] = mul 2.0 a
                  d:f32[5] = where b c a
                in (d,) }
              cond_consts=0
              body_consts=0
            ] a
          in (b,) }""",
    )


def test_a_shared_predicate_keeps_one_loop():
    f = lambda n, x: lax.fori_loop(0, n, lambda _, v: 2 * v, x)
    assert_jaxpr(
        vmap(f, (None, 0)),
        [i32[()], f32[5]],
        """
        { lambda a:i32[] b:f32[5]. let
            _:i32[]{weak} _:i32[] c:f32[5] = while[
              cond={ lambda a:i32[]{weak} b:i32[] c:f32[5]. let d:bool[] = cmplt a b in (d,) }
              body={ lambda a:i32[]{weak} b:i32[] c:f32[5]. let
                  d:i32[]{weak} = add a 1
                  e:f32[5] = mul 2.0 c
                in (d, b, e) }
              cond_consts=0
              body_consts=0
            ] 0:i32[]{weak} a b
          in (c,) }""",
    )


def test_a_batched_branch_index_selects():
    f = lambda i, x: lax.cond(i, lambda x: 2 * x, jnp.sin, x)
    assert_jaxpr(
        vmap(f, (0, None)),
        [tinyjax.ShapeDtypeStruct((4,), bool), f32[()]],
        """
        { lambda a:bool[4] b:f32[]. let
            c:i32[4] = cast a
            d:bool[4] = cmple c 0
            e:f32[4] = expand[dims=()] b
            f:f32[4] = stop_gradient e
            g:f32[4] = where d e f
            h:f32[4] = sin g
            i:bool[4] = cmple 1 c
            j:f32[4] = where i e f
            k:f32[4] = mul 2.0 j
            l:f32[4] = where d h k
          in (l,) }""",
    )


def test_a_shared_branch_index_keeps_the_branch():
    f = lambda i, x: lax.cond(i, lambda x: 2 * x, jnp.sin, x)
    assert_jaxpr(
        vmap(f, (None, 0)),
        [tinyjax.ShapeDtypeStruct((), bool), f32[4]],
        """
        { lambda a:bool[] b:f32[4]. let
            c:i32[] = cast a
            d:f32[4] = cond[
              branches=(
                { lambda a:f32[4]. let b:f32[4] = sin a in (b,) }
                { lambda a:f32[4]. let b:f32[4] = mul 2.0 a in (b,) }
              )
            ] c b
          in (d,) }""",
    )


def test_a_call_stays_a_call():
    f = tinyjax.function(lambda x, y: (jnp.sin(x), y), name="f")
    assert_jaxpr(
        vmap(f, (0, None)),
        [f32[5], f32[3]],
        """
        { lambda a:f32[5] b:f32[3]. let
            c:f32[5] d:f32[3] = function[
              name=f
              body={ lambda a:f32[5] b:f32[3]. let c:f32[5] = sin a in (c, b) }
            ] a b
            e:f32[5,3] = expand[dims=(1)] d
          in (c, e) }""",
    )


def test_named_axes_reduce_over_the_batch():
    assert_jaxpr(
        vmap(lambda x: x / lax.psum(x, "i"), axis_name="i"),
        [f32[5]],
        """
        { lambda a:f32[5]. let
            b:f32[] = reduce_add[axes=(0)] a
            c:f32[5] = div a b
          in (c,) }""",
    )


def test_random_bits_of_batched_keys_are_those_of_the_loop():
    keys = tinyjax.random.split(tinyjax.random.key(3), 4)
    whole = vmap(lambda k: tinyjax.random.normal(k, (3,)))(keys)
    one_by_one = jnp.stack([tinyjax.random.normal(k, (3,)) for k in keys])
    np.testing.assert_array_equal(np.asarray(whole), np.asarray(one_by_one))


X, Y = numbers(3, 4, 5), numbers(3, 4, 5, seed=1)
I = np.array([[3, 0], [1, 1], [2, 9]])
BATCHED = {
    "pad": lambda J, x, y: J.lax.pad(x, y[0, 0], [(1, 2, 0), (0, 1, 2)]),
    "concatenate": lambda J, x, y: J.numpy.concatenate([x, y], 1),
    "where": lambda J, x, y: J.numpy.where(x > 0, x, y),
    "clip": lambda J, x, y: J.numpy.clip(x, y[0, 0], 1.0),
    "matmul": lambda J, x, y: x @ y.T,
    "einsum": lambda J, x, y: J.numpy.einsum("ij,kj->ki", x, y),
    "sort": lambda J, x, y: J.lax.sort((x, y), dimension=0, num_keys=1),
    "argmax": lambda J, x, y: (J.numpy.argmax(x, 1), J.numpy.max(y, 0)),
    "cumsum": lambda J, x, y: J.numpy.cumsum(x, 0) + J.numpy.cumsum(y, 1),
    "gather": lambda J, x, y: x[np.array([1, 0]), np.array([4, 4])],
    "conv": lambda J, x, y: J.lax.conv_general_dilated(
        x[None, None], y[None, None, :2, :2], (1, 1), "SAME"
    ),
    "scatter": lambda J, x, y: J.numpy.asarray(x).at[np.array([1, 1, 3])].set(y[:3]),
    "dynamic update": lambda J, x, y: J.lax.dynamic_update_slice(x, y[:2, :2], (1, 9)),
    "window": lambda J, x, y: J.lax.reduce_window(
        x * y, -np.inf, J.lax.max, (2, 2), (1, 1), "SAME"
    ),
    "top_k": lambda J, x, y: J.lax.top_k(x, 2),
    "scan": lambda J, x, y: J.lax.scan(lambda c, r: (c * r[0] + r[1], c), y[0], (x, y)),
    "reversed scan": lambda J, x, y: J.lax.scan(lambda c, r: (c + r, c), x[0], y, reverse=True),
    "while": lambda J, x, y: J.lax.while_loop(
        lambda c: J.numpy.sum(c[0]) < 9, lambda c: (c[0] + 1.0, c[1] * 0.5), (x, y)
    ),
    "cond": lambda J, x, y: J.lax.cond(x[0, 0] > y[0, 0], lambda a: a * 2, J.numpy.sin, x),
    "switch": lambda J, x, y: J.lax.switch(
        (x[0, 0] * 2).astype(int), [lambda a: a, lambda a: a * 2, lambda a: -a], y
    ),
    "inner grad": lambda J, x, y: J.grad(lambda z: J.numpy.sum(J.numpy.sin(z) * y))(x),
    "inner vmap": lambda J, x, y: J.vmap(lambda a, b: a @ b, (1, None))(x, y[:, 0]),
    "argument unused": lambda J, x, y: (J.numpy.ones(2), 3.0),
}
AXES = [(0, 0), (0, None), (None, 0), (1, 0), (-1, 2)]


@pytest.mark.parametrize("name", BATCHED)
def test_every_choice_of_batched_operands_agrees_with_jax(name):
    f = BATCHED[name]
    for axes in AXES:
        x, y = (
            numbers(4, 5, seed=i) if a is None else np.moveaxis(v, 0, a)
            for i, (a, v) in enumerate(zip(axes, (X, Y)))
        )
        check(lambda J: J.vmap(functools.partial(f, J), axes)(x, y), tolerance=1e-5)


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
def test_batched_indices_keep_their_mode(mode):
    at = I if mode != "promise_in_bounds" else np.minimum(I, 3)

    def f(J):
        get = lambda x, i: J.numpy.asarray(x).at[i].get(mode=mode)
        put = lambda x, i: J.numpy.asarray(x).at[i].add(x[:2], mode=mode)
        return [J.vmap(g, a)(v, i) for g in (get, put) for a, v, i in (((0, 0), X, at), ((0, None), X, at[0]), ((None, 0), X[0], at))]  # fmt: skip

    check(f)


def test_dynamic_starts_clamp_alike_batched_and_not():
    starts = np.array([-9, 0, 2, 9])
    x = numbers(4, 6)
    check(lambda J: J.vmap(lambda r, i: J.lax.dynamic_slice(r, (i,), (3,)))(x, starts))
    check(lambda J: J.vmap(lambda i: J.lax.dynamic_slice(x, (i, 1), (2, 3)))(starts))
    check(lambda J: J.vmap(lambda r, i: J.lax.dynamic_update_slice(r, r[:2], (i,)))(x, starts))


def test_no_nan_reaches_the_gradient_through_the_branch_not_taken():
    x = np.array([2.0, 3.0, 6.0], "f4")
    f = lambda J: lambda x: J.lax.cond(x < 4, lambda x: x, lambda x: J.numpy.sqrt(x - 5), x)
    check(lambda J: J.vmap(J.grad(f(J)))(x))


def test_batching_twice_equals_two_loops():
    f = lambda J: J.vmap(J.vmap(lambda a, b: a @ b, (0, None)), (None, 0))(X[0], Y[0])
    check(f, tolerance=1e-5)
