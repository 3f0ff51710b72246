"""raise_composites: each formula before and after, and those that look alike and are not."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
from tests.golden import assert_text, f32, pred
from tinyjax import lax, nn
from tinyjax import numpy as jnp
from tinyjax.core.composites import KIND, composites, everywhere, raise_composites, raised_body
from tinyjax.core.ops import Op
from tinyjax.core.printer import Jaxpr
from tinyjax.core.record import counting, record_rewrites
from tinyjax.core.uop import nodes_created, toposort
from tinyjax.interpreters.evaluate import evaluate_body


def body_of(f, *args):
    return tinyjax.jit(f).trace(*args).body


def raised(f, *args):
    """The text of the raised body."""
    return str(Jaxpr(raised_body(body_of(f, *args)), len(args)))


def names(f, *args):
    """Names of the composites in the raised body, in order; bodies of composites are not entered."""
    found = []
    for n in toposort(raised_body(body_of(f, *args)).src):
        if n.op is Op.CALL and n.arg.kind == KIND:
            found.append(n.arg.name)
    return found


X = f32[3, 4]


# --- formulas ---------------------------------------------------------------------------------------


def softmax(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_of_constant_max(x):
    e = jnp.exp(x - lax.stop_gradient(jnp.max(x, axis=0)))
    return e / jnp.sum(e, axis=0)


def softmax_of_all(x):
    e = jnp.exp(x - x.max())
    return e / e.sum()


def log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - jnp.log(jnp.exp(shifted).sum(-1, keepdims=True))


def logsumexp(x):
    top = x.max(-1)
    return top + jnp.log(jnp.exp(x - top[:, None]).sum(-1))


def logsumexp_kept(x):
    top = x.max(-1, keepdims=True)
    return jnp.log(jnp.sum(jnp.exp(x - top), -1, keepdims=True)) + top


def logsumexp_of_finite(x):
    top = x.max(-1, keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    return jnp.log(jnp.sum(jnp.exp(x - top), -1, keepdims=True)) + top


def log_softmax_by_logsumexp(x):
    return x - logsumexp(x)[:, None]


def log_softmax_by_library(x):
    return x - nn.logsumexp(x, axis=-1, keepdims=True)


def layer_norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def layer_norm_by_var(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def layer_norm_with_weights(x):
    return layer_norm(x) * x[0] + 1


def rms_norm(x):
    return x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def rms_norm_by_sqrt(x):
    return x / jnp.sqrt((x * x).sum(-1, keepdims=True) * 0.25 + 1e-6)


FORMULAS = {
    softmax: ["softmax"],
    softmax_of_constant_max: ["softmax"],
    softmax_of_all: ["softmax"],
    log_softmax: ["log_softmax"],
    logsumexp: ["logsumexp"],
    logsumexp_kept: ["logsumexp"],
    logsumexp_of_finite: ["logsumexp"],
    log_softmax_by_logsumexp: ["log_softmax"],
    log_softmax_by_library: ["log_softmax"],
    layer_norm: ["layer_norm"],
    layer_norm_by_var: ["layer_norm"],
    layer_norm_with_weights: ["layer_norm"],
    rms_norm: ["rms_norm"],
    rms_norm_by_sqrt: ["rms_norm"],
    nn.softmax: ["softmax"],
    nn.log_softmax: ["log_softmax"],
    nn.logsumexp: ["logsumexp"],
    nn.standardize: ["layer_norm"],
}


@pytest.mark.parametrize("f", FORMULAS, ids=lambda f: f.__name__)
def test_the_formula_is_found(f):
    assert names(f, X) == FORMULAS[f]


@pytest.mark.parametrize("f", FORMULAS, ids=lambda f: f.__name__)
def test_raising_changes_no_bit(f):
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("f4")
    body = body_of(f, X)
    (before,) = evaluate_body(body, [x])
    (after,) = evaluate_body(raised_body(body), [x])
    assert before.dtype == after.dtype
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("f", FORMULAS, ids=lambda f: f.__name__)
def test_it_is_found_behind_vmap(f):
    assert names(tinyjax.vmap(f), f32[2, 3, 4]) == FORMULAS[f]


def test_softmax_becomes_a_call_of_its_formula():
    assert_text(
        raised(softmax, X),
        """
        { lambda a:f32[3,4]. let
            b:f32[3,4] = composite[
              name=softmax
              body={ lambda a:f32[3,4]. let
                  b:f32[3] = reduce_max[axes=(1)] a
                  c:f32[3,1] = reshape b
                  d:f32[3,4] = expand[dims=(0,1)] c
                  e:f32[3,4] = sub a d
                  f:f32[3,4] = exp e
                  g:f32[3] = reduce_add[axes=(1)] f
                  h:f32[3,1] = reshape g
                  i:f32[3,4] = expand[dims=(0,1)] h
                  j:f32[3,4] = div f i
                in (j,) }
            ] a
          in (b,) }""",
    )


def test_a_log_softmax_that_contains_a_logsumexp_is_one_call_of_a_call():
    assert_text(
        raised(log_softmax_by_logsumexp, X),
        """
        { lambda a:f32[3,4]. let
            b:f32[3,4] = composite[
              name=log_softmax
              body={ lambda a:f32[3,4]. let
                  b:f32[3] = composite[
                    name=logsumexp
                    body={ lambda a:f32[3,4]. let
                        b:f32[3] = reduce_max[axes=(1)] a
                        c:f32[3,1] = reshape b
                        d:f32[3,4] = expand[dims=(0,1)] c
                        e:f32[3,4] = sub a d
                        f:f32[3,4] = exp e
                        g:f32[3] = reduce_add[axes=(1)] f
                        h:f32[3] = log g
                        i:f32[3] = add b h
                      in (i,) }
                  ] a
                  c:f32[3,1] = reshape b
                  d:f32[3,4] = expand[dims=(0,1)] c
                  e:f32[3,4] = sub a d
                in (e,) }
            ] a
          in (b,) }""",
    )


def test_a_layer_norm_ends_before_its_weights():
    assert_text(
        raised(layer_norm_with_weights, X),
        """
        { lambda a:f32[3,4]. let
            b:f32[3,4] = composite[
              name=layer_norm
              body={ lambda a:f32[3,4]. let
                  b:f32[3] = reduce_add[axes=(1)] a
                  c:f32[3] = div b 4.0
                  d:f32[3,1] = reshape c
                  e:f32[3,4] = expand[dims=(0,1)] d
                  f:f32[3,4] = sub a e
                  g:f32[3,4] = mul f f
                  h:f32[3] = reduce_add[axes=(1)] g
                  i:f32[3] = div h 4.0
                  j:f32[3,1] = reshape i
                  k:f32[3,1] = add j 1e-05
                  l:f32[3,1] = rsqrt k
                  m:f32[3,4] = expand[dims=(0,1)] l
                  n:f32[3,4] = mul f m
                in (n,) }
            ] a
            c:f32[1,4] = slice[start=(0,0) stop=(1,4)] a
            d:f32[4] = reshape c
            e:f32[3,4] = expand[dims=(1)] d
            f:f32[3,4] = mul b e
            g:f32[3,4] = add f 1.0
          in (g,) }""",
    )


def test_a_difference_of_integers_that_looks_like_a_log_softmax_stays():
    """The rule asked for the exponential of the inner one, which integers do not have."""
    x = np.arange(12).reshape(3, 4)
    assert names(lambda x: (x - x.max(0)) - x[0], x) == []


def test_an_epsilon_that_is_an_argument_stays_an_argument():
    assert_text(
        raised(lambda x, e: x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + e), X, f32[()]),
        """
        { lambda a:f32[3,4] b:f32[]. let
            c:f32[3,4] = composite[
              name=rms_norm
              body={ lambda a:f32[3,4] b:f32[]. let
                  c:f32[3,4] = mul a a
                  d:f32[3] = reduce_add[axes=(1)] c
                  e:f32[3] = div d 4.0
                  f:f32[3,1] = reshape e
                  g:f32[3,1] = add f b
                  h:f32[3,1] = rsqrt g
                  i:f32[3,4] = expand[dims=(0,1)] h
                  j:f32[3,4] = mul a i
                in (j,) }
            ] a b
          in (c,) }""",
    )


# --- attention --------------------------------------------------------------------------------------

Q = f32[2, 5, 3, 4]


def attention(q, k, v, mask):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
    return jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(jnp.where(mask, scores, -1e9)), v)


def test_attention_takes_queries_keys_values_and_what_masks_them():
    assert_text(
        raised(attention, Q, Q, Q, pred[5, 5]),
        """
        { lambda a:f32[2,5,3,4] b:f32[2,5,3,4] c:f32[2,5,3,4] d:bool[5,5]. let
            e:f32[2,3,5,4] = composite[
              name=attention
              body={ lambda a:f32[2,5,3,4] b:f32[2,5,3,4] c:f32[2,5,3,4] d:bool[5,5]. let
                  e:bool[2,3,5,5] = expand[dims=(2,3)] d
                  f:f32[2,3,5,5] = dot[contract=((3),(3)) batch=((0,2),(0,2))] a b
                  g:f32[2,3,5,5] = mul f 0.5
                  h:f32[2,3,5,5] = where e g -1e+09
                  i:f32[2,3,5,5] = composite[
                    name=softmax
                    body={ lambda a:f32[2,3,5,5]. let
                        b:f32[2,3,5] = reduce_max[axes=(3)] a
                        c:f32[2,3,5] = stop_gradient b
                        d:f32[2,3,5,5] = expand[dims=(0,1,2)] c
                        e:f32[2,3,5,5] = sub a d
                        f:f32[2,3,5,5] = exp e
                        g:f32[2,3,5] = reduce_add[axes=(3)] f
                        h:f32[2,3,5,5] = expand[dims=(0,1,2)] g
                        i:f32[2,3,5,5] = div f h
                      in (i,) }
                  ] h
                  j:f32[2,3,5,4] = dot[contract=((3),(1)) batch=((0,1),(0,2))] i c
                in (j,) }
            ] a b c d
            f:f32[2,5,3,4] = permute[perm=(0,2,1,3)] e
          in (f,) }""",
    )


def causal(q, k, v):
    scores = q @ k.swapaxes(-1, -2)
    size = scores.shape[-1]
    return softmax(jnp.where(jnp.tril(jnp.ones((size, size), bool)), scores, -jnp.inf)) @ v


def grouped(q, k, v):
    scores = jnp.einsum("bqgpd,bkgd->bgpqk", q.reshape(2, 5, 3, 2, 2), k)
    return jnp.einsum("bgpqk,bkgd->bqgpd", nn.softmax(scores), v)


ATTENTIONS = {
    "causal": (causal, [f32[6, 4]] * 3),
    "with heads": (causal, [f32[2, 3, 6, 4]] * 3),
    "itself": (lambda x: causal(x, x, x), [f32[6, 4]]),
    "keys first": (
        lambda q, k, v: jnp.einsum("kq,kd->qd", nn.softmax(k @ q.T, axis=0), v),
        [f32[6, 4]] * 3,
    ),
    "values first": (
        lambda q, k, v: jnp.einsum("kd,qk->dq", v, nn.softmax(q @ k.T)),
        [f32[6, 4]] * 3,
    ),
    "bias": (lambda q, k, v, b: nn.softmax(q @ k.T / 2 + b) @ v, [f32[6, 4]] * 3 + [f32[6]]),
    "groups": (grouped, [f32[2, 5, 3, 4], f32[2, 7, 3, 2], f32[2, 7, 3, 2]]),
    "library": (nn.dot_product_attention, [f32[2, 5, 3, 4]] * 3),
    "two layers": (lambda x: causal(causal(x, x, x), x, x), [f32[6, 4]]),
    "weights in another dtype": (
        lambda q, k, v: nn.softmax(q @ k.T).astype("bfloat16") @ v.astype("bfloat16"),
        [f32[6, 4]] * 3,
    ),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_found(name):
    f, args = ATTENTIONS[name]
    assert names(f, *args) == ["attention"] * (2 if name == "two layers" else 1)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_found_behind_vmap(name):
    f, args = ATTENTIONS[name]
    more = [f32[(3, *a.shape)] for a in args]
    assert names(tinyjax.vmap(f), *more) == ["attention"] * (2 if name == "two layers" else 1)


# --- near misses ------------------------------------------------------------------------------------


def sum_over_another_axis(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(0, keepdims=True)


def max_over_another_axis(x):
    e = jnp.exp(x - x.max(0, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sum_along_another_axis(x):
    """A square matrix, the sums of rows spread over columns."""
    y = x[:, :3]
    e = jnp.exp(y - y.max(-1, keepdims=True))
    return e / e.sum(-1)[None, :]


def max_of_another(x):
    e = jnp.exp(x - jnp.sin(x).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def min_instead_of_max(x):
    e = jnp.exp(x - x.min(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sum_of_another(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / jnp.exp(x).sum(-1, keepdims=True)


def sum_in_another_dtype(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.astype("bfloat16").sum(-1, keepdims=True).astype("float32")


def max_not_added_again(x):
    top = x.max(-1)
    return jnp.log(jnp.exp(x - top[:, None]).sum(-1)) + x.min(-1)


def log_of_another_sum(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - jnp.log(jnp.exp(shifted).sum(0, keepdims=True))


def variance_around_another_mean(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt(((x - x.mean()) ** 2).mean(-1, keepdims=True) + 1e-5)


def half_the_mean_square(x):
    return x * lax.rsqrt((x * x).sum(-1, keepdims=True) / 8 + 1e-5)


def square_of_another(x):
    return x * lax.rsqrt((jnp.sin(x) ** 2).mean(-1, keepdims=True) + 1e-5)


MISSES = [
    sum_over_another_axis,
    max_over_another_axis,
    sum_along_another_axis,
    max_of_another,
    min_instead_of_max,
    sum_of_another,
    sum_in_another_dtype,
    max_not_added_again,
    log_of_another_sum,
    variance_around_another_mean,
    half_the_mean_square,
    square_of_another,
]


@pytest.mark.parametrize("f", MISSES, ids=lambda f: f.__name__)
def test_what_looks_alike_is_left_alone(f):
    body = body_of(f, X)
    assert raised_body(body) is body


def reads_the_weights(q, k, v):
    weights = nn.softmax(q @ k.T)
    return weights @ v, weights


def reads_the_scores(q, k, v):
    scores = q @ k.T
    return nn.softmax(scores) @ v, nn.logsumexp(scores, axis=-1)


def softmax_over_queries(q, k, v):
    return nn.softmax(q @ k.T, axis=0) @ v


def weights_of_two_contractions(q, k, v):
    return nn.softmax(q @ k.T + k @ q.T) @ v


def one_query(q, k, v):
    return nn.softmax(k @ q[0]) @ v


def weights_without_a_contraction(q, k, v):
    return nn.softmax(jnp.sin(q[:, :1] * k[:, 0])) @ v


ATTENTION_MISSES = [
    reads_the_weights,
    reads_the_scores,
    softmax_over_queries,
    weights_of_two_contractions,
    one_query,
    weights_without_a_contraction,
]


@pytest.mark.parametrize("f", ATTENTION_MISSES, ids=lambda f: f.__name__)
def test_what_is_not_attention_stays_a_softmax_between_contractions(f):
    found = names(f, *[f32[6, 4]] * 3)
    assert "softmax" in found
    assert "attention" not in found


def test_reading_the_weights_of_a_lower_layer_leaves_the_upper_one_raised():
    def f(x):
        weights = nn.softmax(x @ x.T)
        return causal(weights @ x, x, x), weights

    assert names(f, f32[6, 4]) == ["softmax", "attention"]


# --- the walk ---------------------------------------------------------------------------------------


def test_every_rewrite_is_recorded_by_name():
    with record_rewrites() as log:
        raised_body(body_of(lambda q, k, v: causal(q, k * 2.5, v), *[f32[6, 4]] * 3))
    assert [(walk, rule) for walk, rule, _, _ in log] == [
        ("raise_composites", "raise_softmax"),
        ("raise_composites", "raise_attention"),
        ("settle_attention", "settle_attention"),
    ]


def test_the_table_says_what_each_rule_does():
    text = str(composites)
    assert text.startswith("raise_composites: 7 rules")
    assert "exp(x - max(x)) / sum(exp(x - max(x))) -> softmax(x)" in text
    assert everywhere.matcher(Op.ADD) is not None
    assert everywhere.matcher(Op.TANH) is None


def test_a_graph_without_composites_is_walked_once_and_stays():
    def f(x):
        for i in range(50):
            x = jnp.tanh(x) + jnp.exp(x * (0.1 + i))
        return x

    body = body_of(f, X)
    roots = list(body.src)
    made = nodes_created()
    with counting() as counts:
        assert raise_composites(roots) == roots
    assert counts.walks == 1
    assert counts.nodes <= len(toposort(roots))
    assert nodes_created() == made


def test_bodies_are_entered_once():
    def step(x, _):
        return softmax(x * 0.37), None  # a body that no other test raises

    body = body_of(
        lambda x: lax.scan(step, lax.scan(step, x, None, length=2)[0], None, length=3), X
    )
    with record_rewrites() as log:
        raised_body(body)
    assert [rule for _, rule, _, _ in log] == ["raise_softmax", "enter_bodies", "enter_bodies"]


def test_equal_layers_share_one_body():
    body = raised_body(body_of(lambda x: softmax(softmax(jnp.sin(softmax(x)))), X))
    assert len({n.src[0] for n in toposort(body.src) if n.op is Op.CALL}) == 1
