"""Row blocks: which bodies are cut and where, values of cut bodies, and the planned memory."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
from tests.golden import assert_text, f32
from tests.oracle import assert_same, x64
from tinyjax import nn
from tinyjax import numpy as jnp
from tinyjax.core.ops import Op
from tinyjax.core.printer import Jaxpr
from tinyjax.core.uop import toposort
from tinyjax.interpreters import composites as rules
from tinyjax.interpreters.evaluate import evaluate_body
from tinyjax.lowering import blocks
from tinyjax.lowering.blocks import in_row_blocks
from tinyjax.lowering.inline import inline


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 4 rows, of anything."""
    monkeypatch.setattr(blocks, "WHOLE_BYTES", 0)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 0)
    monkeypatch.setattr(blocks, "MIN_BLOCK_ROWS", 4)
    monkeypatch.setattr(rules, "KEPT_BYTES", 0)


def flat(f, *args):
    return inline(tinyjax.jit(f).trace(*args).body)


def cut(f, *args):
    """The body of `f` in row blocks, made now."""
    body = flat(f, *args)
    body.derived.pop("row blocks", None)
    return in_row_blocks(body)


def loops(body):
    return [n for n in toposort(body.src) if n.op is Op.SCAN]


def attention(q, k, v):
    """`jnp` of either library."""
    scores = q @ k.swapaxes(-1, -2) * 0.3
    e = jnp.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def causal(q, k, v):
    scores = q @ k.swapaxes(-1, -2)
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return nn.softmax(jnp.where(mask, scores, -jnp.inf)) @ v


# --- what is made -----------------------------------------------------------------------------------


def test_rows_that_do_not_fill_a_block_are_a_block_of_their_own(small_blocks):
    body = cut(attention, f32[10, 2], f32[9, 2], f32[9, 2])
    assert_text(
        str(Jaxpr(body, 3)),
        """
        { lambda a:f32[10,2] b:f32[9,2] c:f32[9,2]. let
            d:f32[2,9] = permute[perm=(1,0)] b
            e:i32[2] = iota[axis=0]
            f:i32[2] = mul e 4
            g:f32[2,4,2] = scan[
              body={ lambda a:f32[10,2] b:f32[2,9] c:f32[9,2] d:i32[]. let
                  e:f32[4,2] = dynamic_slice[sizes=(4,2)] a d 0:i32[]
                  f:f32[4,9] = dot[contract=((1),(0))] e b
                  g:f32[4,9] = mul f 0.3
                  h:f32[4] = reduce_max[axes=(1)] g
                  i:f32[4,1] = reshape h
                  j:f32[4,9] = expand[dims=(0,1)] i
                  k:f32[4,9] = sub g j
                  l:f32[4,9] = exp k
                  m:f32[4] = reduce_add[axes=(1)] l
                  n:f32[4,1] = reshape m
                  o:f32[4,9] = expand[dims=(0,1)] n
                  p:f32[4,9] = div l o
                  q:f32[4,2] = dot[contract=((1),(0))] p c
                in (q,) }
              num_consts=3
              num_carry=0
              length=2
            ] a d c f
            h:f32[8,2] = reshape g
            i:f32[2,2] = dynamic_slice[sizes=(2,2)] a 8:i32[] 0:i32[]
            j:f32[2,9] = dot[contract=((1),(0))] i d
            k:f32[2,9] = mul j 0.3
            l:f32[2] = reduce_max[axes=(1)] k
            m:f32[2,1] = reshape l
            n:f32[2,9] = expand[dims=(0,1)] m
            o:f32[2,9] = sub k n
            p:f32[2,9] = exp o
            q:f32[2] = reduce_add[axes=(1)] p
            r:f32[2,1] = reshape q
            s:f32[2,9] = expand[dims=(0,1)] r
            t:f32[2,9] = div p s
            u:f32[2,2] = dot[contract=((1),(0))] t c
            v:f32[10,2] = concat[axis=0] h u
          in (v,) }""",
    )


def test_what_is_summed_over_rows_is_carried(small_blocks):
    f = lambda q, k, ct: (q @ k.T).T * 2.0 @ ct
    body = cut(f, f32[8, 2], f32[5, 2], f32[8, 2])
    assert_text(
        str(Jaxpr(body, 3)),
        """
        { lambda a:f32[8,2] b:f32[5,2] c:f32[8,2]. let
            d:f32[2,5] = permute[perm=(1,0)] b
            e:f32[5,2] = expand[dims=()] 0.0:f32[]
            f:i32[2] = iota[axis=0]
            g:i32[2] = mul f 4
            h:f32[5,2] = scan[
              body={ lambda a:f32[8,2] b:f32[2,5] c:f32[8,2] d:f32[5,2] e:i32[]. let
                  f:f32[4,2] = dynamic_slice[sizes=(4,2)] a e 0:i32[]
                  g:f32[4,5] = dot[contract=((1),(0))] f b
                  h:f32[5,4] = permute[perm=(1,0)] g
                  i:f32[5,4] = mul h 2.0
                  j:f32[4,2] = dynamic_slice[sizes=(4,2)] c e 0:i32[]
                  k:f32[5,2] = dot[contract=((1),(0))] i j
                  l:f32[5,2] = add d k
                in (l,) }
              num_consts=3
              num_carry=1
              length=2
            ] a d c e g
          in (h,) }""",
    )


def test_a_block_of_heads_that_is_still_large_is_cut_into_rows(small_blocks):
    body = cut(attention, f32[3, 10, 2], f32[3, 9, 2], f32[3, 9, 2])
    (heads,) = loops(body)
    assert heads.arg.length == 3
    (rows,) = loops(heads.src[0])
    assert rows.arg.length == 2


LEFT = {
    "the long axis is folded by max": lambda q, k: (q @ k.T).max(0),
    "rows read a sum over rows": lambda q, k: (q @ k.T - (q @ k.T).sum(0)).sum(1),
    "rows are sorted": lambda q, k: jnp.sort(q @ k.T, axis=0)[:, :1],
    "rows are also columns": lambda q, k: jnp.exp(q @ q.T).sum(1) + k.sum(),
}


@pytest.mark.parametrize("name", LEFT)
def test_an_axis_that_may_not_be_cut(name, small_blocks):
    body = flat(LEFT[name], f32[12, 2], f32[3, 2])
    body.derived.pop("row blocks", None)
    assert in_row_blocks(body) is body


def test_small_values_stay_whole():
    body = flat(attention, f32[64, 8], f32[64, 8], f32[64, 8])
    assert in_row_blocks(body) is body


def test_a_value_no_larger_than_inputs_stays_whole(small_blocks):
    body = flat(lambda x: jnp.exp(jnp.sin(x) * 3.25), f32[64, 8])
    assert in_row_blocks(body) is body


# --- values -----------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)


def normal(*shape, dtype="f8"):
    return RNG.normal(size=shape).astype(dtype)


@pytest.mark.parametrize("rows", [8, 11])
@pytest.mark.parametrize("f", [attention, causal], ids=lambda f: f.__name__)
def test_a_cut_body_computes_the_same(f, rows, small_blocks):
    with x64():
        args = [normal(2, rows, 3), normal(2, 12, 3), normal(2, 12, 3)]
        if f is causal:
            args = [a[:, :rows] for a in args]
        body = cut(f, *args)
        assert loops(body)
        (want,) = evaluate_body(flat(f, *args), args)
        (got,) = evaluate_body(body, args)
        np.testing.assert_allclose(got, want, rtol=1e-13)


PROGRAMS = {
    "value": lambda J, f: f,
    "gradient": lambda J, f: J.grad(lambda *a: J.numpy.sin(f(*a)).sum(), (0, 1, 2)),
    "tangent": lambda J, f: lambda *a: J.jvp(f, a, a[::-1])[1],
    "second": lambda J, f: J.grad(
        lambda *a: sum(
            J.numpy.sin(g).sum() for g in J.grad(lambda *b: J.numpy.sin(f(*b)).sum(), (0, 1, 2))(*a)
        ),
        (0, 1, 2),
    ),
    "gradient of many": lambda J, f: (
        lambda *a: J.vmap(J.grad(lambda *b: J.numpy.sin(f(*b)).sum(), (0, 1, 2)), (0, None, 0))(
            J.numpy.stack([a[0], a[1]]), a[1], J.numpy.stack([a[2], a[0]])
        )
    ),
    "in a scan": lambda J, f: J.grad(
        lambda q, k, v: J.lax.scan(lambda c, _: (f(c, k, v), c.sum()), q, None, length=2)[0].sum()
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_of_a_cut_attention_are_those_of_jax(name, small_blocks):
    import jax

    def of(J):
        def f(q, k, v):
            scores = J.numpy.einsum("qd,kd->qk", q, k) * 0.37
            return J.nn.softmax(scores) @ v

        return J.jit(PROGRAMS[name](J, f))

    with x64():
        args = [normal(11, 3) for _ in range(3)]
        ours = of(tinyjax)
        assert_same(ours(*args), of(jax)(*args), tolerance=1e-11, weak=False)
        # Second derivatives are those of the plain body, which keeps its weights.
        assert ("loop" in ours.lower(*args).schedule) == (name != "second")


def test_bias_and_its_gradient_are_cut_too(small_blocks):
    def f(q, bias, shift):
        return jnp.sin(nn.softmax(q @ q.T * 0.41 + bias + shift[:, None]) @ q).sum()

    q, bias, shift = normal(10, 3, dtype="f4"), normal(10, 10, dtype="f4"), normal(10, dtype="f4")
    whole = tinyjax.grad(f, (0, 1, 2))(q, bias, shift)
    for got, want in zip(
        tinyjax.jit(tinyjax.grad(f, (0, 1, 2)))(q, bias, shift), whole, strict=True
    ):
        np.testing.assert_allclose(got, want, atol=2e-6)


def test_sums_of_narrow_floats_are_kept_in_single_precision(small_blocks):
    body = cut(
        lambda q, k: (jnp.exp((q @ k.T).astype("bfloat16"))).sum(0),
        f32[64, 2],
        f32[9, 2],
    )
    (loop,) = loops(body)
    assert [str(c.dtype) for c in loop.src[1 + loop.arg.num_consts :][: loop.arg.num_carry]] == [
        "float32"
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats_give_what_single_precision_rounds_to(dtype, small_blocks):
    def loss(q, k, v):
        return jnp.sin(causal(q, k, v)).sum()

    args = [normal(11, 3, dtype="f4") for _ in range(3)]
    want = tinyjax.grad(loss, (0, 1, 2))(*args)
    got = tinyjax.jit(tinyjax.grad(loss, (0, 1, 2)))(*[jnp.asarray(a, dtype) for a in args])
    for a, b in zip(got, want, strict=True):
        assert str(a.dtype) == dtype
        np.testing.assert_allclose(a.astype("float32"), b, atol=0.1)


# --- memory -----------------------------------------------------------------------------------------

LENGTH, WIDTH, HEADS = 2048, 64, 4
MATRIX = HEADS * LENGTH * LENGTH * 4
LONG = f32[HEADS, LENGTH, WIDTH]


def peak(f, *args):
    return tinyjax.jit(f).lower(*args)._lowered.plan.peak_bytes


@pytest.mark.parametrize("f", [attention, causal], ids=lambda f: f.__name__)
def test_the_score_matrix_of_a_long_sequence_never_exists(f):
    assert peak(f, LONG, LONG, LONG) < MATRIX / 5


@pytest.mark.parametrize("f", [attention, causal], ids=lambda f: f.__name__)
def test_nor_does_it_in_the_backward_pass(f):
    loss = lambda *a: jnp.sin(f(*a)).sum()
    assert peak(tinyjax.value_and_grad(loss, (0, 1, 2)), LONG, LONG, LONG) < MATRIX / 2


def test_the_library_attention_needs_no_matrix_either():
    x = f32[1, LENGTH, HEADS, WIDTH]
    f = lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True)
    assert peak(f, x, x, x) < MATRIX / 3
    loss = lambda *a: jnp.sin(f(*a)).sum()
    assert peak(tinyjax.grad(loss, (0, 1, 2)), x, x, x) < MATRIX / 1.5
