"""bound_sizes: an axis of symbolic size has its upper bound, and what counts from its end computes."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
from tests.golden import assert_pass, f32
from tinyjax import lax
from tinyjax import numpy as jnp
from tinyjax.core.config import verify as verifying
from tinyjax.core.dims import Dim
from tinyjax.core.verify import StageError
from tinyjax.lowering.dims import bound_sizes, sizes_of
from tinyjax.lowering.driver import run
from tinyjax.lowering.passes import ARRANGE, BODY, FLATTEN, Pass, bounded

N = Dim("n", 1, 64)


def test_a_size_is_its_upper_bound_and_its_number():
    assert_pass("bound_sizes", lambda x: jnp.sin(x) + x.shape[0], [f32[N, 3]], """
        - { lambda a:f32[n,3]. let
        + { lambda a:f32[d0,3]. let
        -     b:f32[n,3] = sin a
        +     b:f32[d0,3] = sin a
        -     c:i64[] = dim[size=n]
        +     c:i64[] = dim[size=d0]
              d:i32[] = cast c
              e:f32[] = cast d
        -     f:f32[n,3] = add b e
        +     f:f32[d0,3] = add b e
            in (f,) }""")  # fmt: skip


def test_what_counts_from_the_end_of_an_axis_computes_with_its_size():
    assert_pass("bound_sizes", lambda x: jnp.flip(x), [f32[N]], """
        - { lambda a:f32[n]. let b:f32[n] = flip[axes=(0)] a in (b,) }
        + { lambda a:f32[d0]. let
        +     b:i64[] = dim[size=d1]
        +     c:i64[d0] = iota[axis=0]
        +     d:i64[d0] = sub b c
        +     e:i64[d0,1] = reshape d
        +     f:f32[d0] = gather[
        +       offset_dims=()
        +       collapsed_slice_dims=(0)
        +       start_index_map=(0)
        +       slice_sizes=(1)
        +       mode=promise_in_bounds
        +     ] a e
        +   in (f,) }""")  # fmt: skip


def test_arguments_and_results_are_dense_at_their_own_size():
    assert_pass("bound_sizes", lambda x: jnp.sin(x), [f32[3, N]], """
        - { lambda a:f32[3,n]. let b:f32[3,n] = sin a in (b,) }
        + { lambda a:f32[d0]. let
        +     b:i64[3,d1] = iota[axis=1]
        +     c:i64[3,d1] = iota[axis=0]
        +     d:i64[] = dim[size=d1]
        +     e:i64[3,d1] = mul c d
        +     f:i64[3,d1] = add b e
        +     g:i64[3,d1,1] = reshape f
        +     h:f32[3,d1] = gather[
        +       offset_dims=()
        +       collapsed_slice_dims=(0)
        +       start_index_map=(0)
        +       slice_sizes=(1)
        +       mode=promise_in_bounds
        +     ] a g
        +     i:f32[3,d1] = sin h
        +     j:f32[192] = reshape i
        +     k:i64[d0] = iota[axis=0]
        +     l:i64[d0] = mod k d
        +     m:i64[d0] = idiv k d
        +     n:i64[d0] = mul m 64
        +     o:i64[d0] = add l n
        +     p:i64[d0,1] = reshape o
        +     q:f32[d0] = gather[
        +       offset_dims=()
        +       collapsed_slice_dims=(0)
        +       start_index_map=(0)
        +       slice_sizes=(1)
        +       mode=promise_in_bounds
        +     ] j p
        +   in (q,) }""")  # fmt: skip


def test_the_bodies_of_loops_are_over_the_sizes_of_the_program():
    def f(x):
        return lax.scan(lambda c, row: (c + row, None), jnp.zeros(x.shape[1]), x)[0]

    assert_pass("bound_sizes", f, [f32[4, N]], """
        - { lambda a:f32[4,n]. let
        + { lambda a:f32[d1]. let
        -     b:f32[n] = expand[dims=()] 0.0:f32[]
        +     b:f32[d0] = expand[dims=()] 0.0:f32[]
        +     c:i64[4,d0] = iota[axis=1]
        +     d:i64[4,d0] = iota[axis=0]
        +     e:i64[] = dim[size=d0]
        +     f:i64[4,d0] = mul d e
        +     g:i64[4,d0] = add c f
        +     h:i64[4,d0,1] = reshape g
        +     i:f32[4,d0] = gather[
        +       offset_dims=()
        +       collapsed_slice_dims=(0)
        +       start_index_map=(0)
        +       slice_sizes=(1)
        +       mode=promise_in_bounds
        +     ] a h
        -     c:f32[n] = scan[
        +     j:f32[d0] = scan[
        -       body={ lambda a:f32[n] b:f32[n]. let c:f32[n] = add a b in (c,) }
        +       body={ lambda a:f32[d0] b:f32[d0]. let c:f32[d0] = add a b in (c,) }
                num_consts=0
                num_carry=1
                length=4
        -     ] b a
        +     ] b i
        -   in (c,) }
        +   in (j,) }""")  # fmt: skip


def body_of(f, *shapes):
    return tinyjax.jit(f).trace(*(f32[shape] for shape in shapes)).traced.body


def test_a_body_without_symbolic_sizes_is_itself():
    body = run(FLATTEN, body_of(jnp.flip, (4, 3)))
    assert bound_sizes(body) is body and not sizes_of(body)


def test_what_is_bounded_is_flat_and_is_not_bounded_again():
    body = run(FLATTEN, body_of(jnp.flip, (4, N)))
    assert [str(size) for size in sizes_of(body).numbers] == ["4*n", "n", "n - 1"]
    assert run(FLATTEN, body) is body and bounded(body)


def test_the_pass_is_refused_if_a_symbolic_size_is_left_inside_of_a_loop():
    def f(x):
        return lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0]

    def outside_only(body):
        """flat body -> the same"""
        return body

    passes = [p for p in FLATTEN if p.function is not bound_sizes]
    last = Pass(outside_only, BODY, BODY, before=FLATTEN[-1].before, after=FLATTEN[-1].after)
    with verifying(1), pytest.raises(StageError, match="outside_only ensures: every size is a num"):
        run([*passes, last], body_of(f, (N,)))
    with verifying(1):
        run(FLATTEN, body_of(f, (N,)))


def test_sizes_are_bounded_once_per_program_and_each_body_in_it_is_planned_by_itself():
    def f(x):
        return lax.scan(lambda c, row: (c + jnp.sin(row), None), jnp.zeros(x.shape[1]), x)[0]

    with tinyjax.record_rewrites() as log:
        compiled = tinyjax.jit(f).lower(f32[4, N]).compile()
    ran = [r.name for r in log.passes]
    flatten, arrange = ([p.name for p in part] for part in (FLATTEN, ARRANGE))
    ran = ran[ran.index("inline") : ran.index("rangeify")]
    assert ran[: len(flatten)] == flatten
    bodies, rest = divmod(len(ran) - len(flatten), len(arrange))
    assert ran[len(flatten) :] == arrange * bodies and bodies > 1 and not rest
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    np.testing.assert_allclose(compiled(x), np.sin(x).sum(0), rtol=1e-6)
