"""Composites under the transformations: what is saved, and jax's values for every derivative."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
from tests.golden import assert_jaxpr, f32
from tests.oracle import check, x64
from tinyjax import nn
from tinyjax import numpy as jnp
from tinyjax.core.composites import KIND, raised_body
from tinyjax.core.ops import Op
from tinyjax.core.uop import toposort
from tinyjax.interpreters import composites as rules
from tinyjax.interpreters.evaluate import evaluate_body
from tinyjax.lowering.inline import inline


def calls(f, *args):
    """The composites in the body of `f`, as (name, number of results)."""
    body = tinyjax.jit(f).trace(*args).body
    return [
        (n.arg.name, len(n.aval.elts))
        for n in toposort(body.src)
        if n.op is Op.CALL and n.arg.kind == KIND
    ]


# --- what the library makes -------------------------------------------------------------------------

X = f32[3, 4]
LIBRARY = {
    "softmax": (nn.softmax, [X]),
    "log_softmax": (nn.log_softmax, [X]),
    "logsumexp": (lambda x: nn.logsumexp(x, axis=0, keepdims=True), [X]),
    "layer_norm": (nn.standardize, [X]),
    "attention": (nn.dot_product_attention, [f32[2, 5, 3, 4]] * 3),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_makes_one_call(name):
    f, args = LIBRARY[name]
    assert calls(f, *args) == [(name, 1)]


@pytest.mark.parametrize("name", LIBRARY)
def test_eager_and_plain_values_are_the_same_bits(name):
    f, specs = LIBRARY[name]
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.normal(size=s.shape).astype("f4")) for s in specs]
    eager = f(*args)
    body = tinyjax.jit(f).trace(*args).body
    (value,) = evaluate_body(body, [np.asarray(a) for a in args])
    np.testing.assert_array_equal(eager, value)


PLAIN = {
    "softmax where": lambda x: nn.softmax(x, where=x > 0),
    "log_softmax where": lambda x: nn.log_softmax(x, where=x > 0),
    "logsumexp with weights": lambda x: nn.logsumexp(x, b=2.0),
    "logsumexp with sign": lambda x: nn.logsumexp(x, return_sign=True),
    "standardize with a mean": lambda x: nn.standardize(x, mean=0.0),
    "standardize where": lambda x: nn.standardize(x, where=x > 0),
}


@pytest.mark.parametrize("name", PLAIN)
def test_further_arguments_take_the_plain_path(name):
    assert calls(PLAIN[name], X) == []


# --- what is saved ----------------------------------------------------------------------------------


def test_softmax_is_differentiated_from_its_output_alone():
    assert_jaxpr(
        lambda x, ct: tinyjax.vjp(nn.softmax, x)[1](ct),
        [X, X],
        """
        { lambda a:f32[3,4] b:f32[3,4]. let
            c:f32[3,4] = composite[
              name=softmax
              body={ lambda a:f32[3,4]. let
                  b:f32[3] = reduce_max[axes=(1)] a
                  c:f32[3] = stop_gradient b
                  d:f32[3,4] = expand[dims=(0)] c
                  e:f32[3,4] = sub a d
                  f:f32[3,4] = exp e
                  g:f32[3] = reduce_add[axes=(1)] f
                  h:f32[3,4] = expand[dims=(0)] g
                  i:f32[3,4] = div f h
                in (i,) }
            ] a
            d:f32[3,4] = composite[
              name=transpose(softmax)
              body={ lambda a:f32[3,4] b:f32[3,4]. let
                  c:f32[3,4] = mul a b
                  d:f32[3,4] = neg c
                  e:f32[3] = reduce_add[axes=(1)] d
                  f:f32[3,4] = expand[dims=(0)] e
                  g:f32[3,4] = mul a f
                  h:f32[3,4] = add c g
                in (h,) }
            ] c b
          in (d,) }""",
    )


def test_log_softmax_keeps_its_input_and_two_numbers_a_row():
    assert_jaxpr(
        lambda x, ct: tinyjax.vjp(nn.log_softmax, x)[1](ct),
        [X, X],
        """
        { lambda a:f32[3,4] b:f32[3,4]. let
            _:f32[3,4] c:f32[3] d:f32[3] = composite[
              name=log_softmax
              body={ lambda a:f32[3,4]. let
                  b:f32[3] = reduce_max[axes=(1)] a
                  c:f32[3] = stop_gradient b
                  d:f32[3,4] = expand[dims=(0)] c
                  e:f32[3,4] = sub a d
                  f:f32[3,4] = exp e
                  g:f32[3] = reduce_add[axes=(1)] f
                  h:f32[3] = log g
                  i:f32[3,4] = expand[dims=(0)] h
                  j:f32[3,4] = sub e i
                in (j, c, g) }
            ] a
            e:f32[3,4] = composite[
              name=transpose(log_softmax)
              body={ lambda a:f32[3,4] b:f32[3] c:f32[3] d:f32[3,4]. let
                  e:f32[3,4] = neg d
                  f:f32[3] = reduce_add[axes=(1)] e
                  g:f32[3] = div f c
                  h:f32[3,4] = expand[dims=(0)] g
                  i:f32[3,4] = expand[dims=(0)] b
                  j:f32[3,4] = sub a i
                  k:f32[3,4] = exp j
                  l:f32[3,4] = mul h k
                  m:f32[3,4] = add d l
                in (m,) }
            ] a c d b
          in (e,) }""",
    )


def test_logsumexp_keeps_its_input_and_a_few_numbers_a_row():
    assert_jaxpr(
        lambda x, ct: tinyjax.vjp(lambda y: nn.logsumexp(y, axis=1), x)[1](ct),
        [X, f32[3]],
        """
        { lambda a:f32[3,4] b:f32[3]. let
            _:f32[3] c:f32[3] d:f32[3] = composite[
              name=logsumexp
              body={ lambda a:f32[3,4]. let
                  b:f32[3] = reduce_max[axes=(1)] a
                  c:f32[3] = stop_gradient b
                  d:bool[3] = is_finite c
                  e:f32[3] = where d c 0.0
                  f:f32[3,4] = expand[dims=(0)] e
                  g:f32[3,4] = sub a f
                  h:f32[3,4] = exp g
                  i:f32[3] = reduce_add[axes=(1)] h
                  j:f32[3] = log i
                  k:f32[3] = add j e
                in (k, e, i) }
            ] a
            e:f32[3,4] = composite[
              name=transpose(logsumexp)
              body={ lambda a:f32[3,4] b:f32[3] c:f32[3] d:f32[3]. let
                  e:f32[3] = div d c
                  f:f32[3,4] = expand[dims=(0)] e
                  g:f32[3,4] = expand[dims=(0)] b
                  h:f32[3,4] = sub a g
                  i:f32[3,4] = exp h
                  j:f32[3,4] = mul f i
                in (j,) }
            ] a c d b
          in (e,) }""",
    )


def test_layer_norm_keeps_its_input_and_two_numbers_a_row():
    def f(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    assert_jaxpr(
        lambda x, ct: tinyjax.vjp(f, x)[1](ct),
        [X, X],
        """
        { lambda a:f32[3,4] b:f32[3,4]. let
            c:f32[3,4] d:f32[3,1] e:f32[3,1] = composite[
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
                  l:f32[3,1] = sqrt k
                  m:f32[3,4] = expand[dims=(0,1)] l
                  n:f32[3,4] = div f m
                in (n, l, d) }
            ] a
            f:f32[3,4] = composite[
              name=transpose(layer_norm)
              body={ lambda a:f32[3,1] b:f32[3,4] c:f32[3,1] d:f32[3,4] e:f32[3,4]. let
                  f:f32[3,4] = expand[dims=(0,1)] c
                  g:f32[3,4] = sub b f
                  h:f32[3,4] = expand[dims=(0,1)] a
                  i:f32[3,4] = div d h
                  j:f32[3,4] = neg i
                  k:f32[3,4] = mul e j
                  l:f32[3] = reduce_add[axes=(1)] k
                  m:f32[3,1] = reshape l
                  n:f32[3,1] = div m a
                  o:f32[3,1] = mul n 0.5
                  p:f32[3] = reshape o
                  q:f32[3] = div p 4.0
                  r:f32[3,4] = expand[dims=(0)] q
                  s:f32[3,4] = mul g r
                  t:f32[3,4] = mul r g
                  u:f32[3,4] = add s t
                  v:f32[3,4] = div e h
                  w:f32[3,4] = add u v
                  x:f32[3,4] = neg w
                  y:f32[3] = reduce_add[axes=(1)] x
                  z:f32[3] = div y 4.0
                  aa:f32[3,4] = expand[dims=(0)] z
                  ab:f32[3,4] = add w aa
                in (ab,) }
            ] d a e c b
          in (f,) }""",
    )


def residuals(f, *args):
    """Shapes of what the linear part of `f` holds."""
    held = []

    def run(*a):
        _, back = tinyjax.vjp(f, *a)
        leaves = tinyjax.tree.leaves(back)
        held.extend(x.shape for x in leaves)
        return leaves

    tinyjax.jit(run).trace(*args)
    return sorted(held)


def attention(q, k, v):
    return nn.softmax(q @ k.T * 0.25) @ v


def test_a_small_attention_keeps_its_weights():
    shapes = residuals(attention, f32[6, 4], f32[7, 4], f32[7, 3])
    assert shapes == [(4, 7), (6, 4), (6, 7), (7, 3)]


def test_a_large_attention_keeps_a_number_a_row_instead():
    shapes = residuals(attention, f32[4096, 4], f32[4096, 4], f32[4096, 3])
    assert shapes == [(4, 4096), (4096,), (4096, 3), (4096, 4)]


def test_the_linear_part_of_a_large_attention_makes_the_weights_again(monkeypatch):
    monkeypatch.setattr(rules, "KEPT_BYTES", 0)
    assert_jaxpr(
        lambda q, k, v, ct: tinyjax.vjp(lambda q: attention(q, k, v), q)[1](ct),
        [f32[6, 4], f32[7, 4], f32[7, 3], f32[6, 3]],
        """
        { lambda a:f32[6,4] b:f32[7,4] c:f32[7,3] d:f32[6,3]. let
            e:f32[4,7] = permute[perm=(1,0)] b
            _:f32[6,3] f:f32[6] = composite[
              name=attention
              body={ lambda a:f32[6,4] b:f32[4,7] c:f32[7,3]. let
                  d:f32[6,7] = dot[contract=((1),(0))] a b
                  e:f32[6,7] = mul d 0.25
                  f:f32[6,7] = composite[
                    name=softmax
                    body={ lambda a:f32[6,7]. let
                        b:f32[6] = reduce_max[axes=(1)] a
                        c:f32[6] = stop_gradient b
                        d:f32[6,7] = expand[dims=(0)] c
                        e:f32[6,7] = sub a d
                        f:f32[6,7] = exp e
                        g:f32[6] = reduce_add[axes=(1)] f
                        h:f32[6,7] = expand[dims=(0)] g
                        i:f32[6,7] = div f h
                      in (i,) }
                  ] e
                  g:f32[6,3] = dot[contract=((1),(0))] f c
                  h:f32[6] = reduce_max[axes=(1)] e
                  i:f32[6] = stop_gradient h
                  j:f32[6,7] = expand[dims=(0)] i
                  k:f32[6,7] = sub e j
                  l:f32[6,7] = exp k
                  m:f32[6] = reduce_add[axes=(1)] l
                  n:f32[6] = log m
                  o:f32[6] = add n i
                in (g, o) }
            ] a e c
            g:f32[6,4] = composite[
              name=transpose(attention)
              body={ lambda a:f32[6,4] b:f32[4,7] c:f32[7,3] d:f32[6] e:f32[6,3]. let
                  f:f32[6,7] = dot[contract=((1),(0))] a b
                  g:f32[6,7] = mul f 0.25
                  h:f32[6,7] = expand[dims=(0)] d
                  i:f32[6,7] = sub g h
                  j:f32[6,7] = exp i
                  k:f32[6,7] = dot[contract=((1),(1))] e c
                  l:f32[6,7] = composite[
                    name=transpose(softmax)
                    body={ lambda a:f32[6,7] b:f32[6,7]. let
                        c:f32[6,7] = mul a b
                        d:f32[6,7] = neg c
                        e:f32[6] = reduce_add[axes=(1)] d
                        f:f32[6,7] = expand[dims=(0)] e
                        g:f32[6,7] = mul a f
                        h:f32[6,7] = add c g
                      in (h,) }
                  ] j k
                  m:f32[6,7] = mul l 0.25
                  n:f32[6,4] = dot[contract=((1),(1))] m b
                in (n,) }
            ] a e c f d
          in (g,) }""",
    )


def test_a_small_attention_lowers_to_its_formula():
    body = tinyjax.jit(attention).trace(f32[6, 4], f32[7, 4], f32[7, 3]).body
    raised = raised_body(body)
    assert raised is not body
    assert inline(raised) is inline(body)


def test_the_gradient_of_a_step_raises_its_formulas_before_it_differentiates():
    def loss(x):
        e = jnp.exp(x - x.max(-1, keepdims=True))
        return ((e / e.sum(-1, keepdims=True)) * x).sum()

    assert calls(tinyjax.grad(loss), X) == [("softmax", 1), ("transpose(softmax)", 1)]


def test_a_checkpoint_policy_sees_the_formula():
    policy = tinyjax.checkpoint_policies.dots_saveable
    loss = lambda f: lambda *a: tinyjax.checkpoint(f, policy=policy)(*a).sum()
    args = [f32[6, 4], f32[7, 4], f32[7, 3]]

    def user(q, k, v):
        scores = q @ k.T
        e = jnp.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v

    body = tinyjax.jit(tinyjax.grad(loss(user))).trace(*args).body
    saved = {o.aval.shape for n in toposort(body.src) if n.op is Op.CALL for o in n.operands}
    assert (6, 7) in saved  # the scores


# --- values, in both precisions ---------------------------------------------------------------------


def softmax(J, x):
    e = J.numpy.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax(J, x):
    shifted = x - J.lax.stop_gradient(x.max(0))
    return shifted - J.numpy.log(J.numpy.exp(shifted).sum(0))


def logsumexp(J, x):
    top = x.max(-1)
    return top + J.numpy.log(J.numpy.exp(x - top[:, None]).sum(-1))


def layer_norm(J, x):
    return (x - x.mean(-1, keepdims=True)) / J.numpy.sqrt(x.var(-1, keepdims=True) + 1e-5)


def rms_norm(J, x):
    return x * J.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def self_attention(J, x):
    scores = x @ x.T * 0.4
    scores = J.numpy.where(J.numpy.tril(J.numpy.ones(scores.shape, bool)), scores, -J.numpy.inf)
    return softmax(J, scores) @ J.numpy.cos(x)


FORMULAS = {
    "softmax": softmax,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "self_attention": self_attention,
    "library softmax": lambda J, x: J.nn.softmax(x, axis=(0, 1)),
    "library log_softmax": lambda J, x: J.nn.log_softmax(x, axis=0),
    "library logsumexp": lambda J, x: J.scipy.special.logsumexp(x, axis=0, keepdims=True),
    "library norm": lambda J, x: J.nn.standardize(x, axis=0),
}


def loss_of(J, f):
    return lambda x: (J.numpy.sin(f(J, x)) * f(J, x)).sum()


def second(J, loss):
    return lambda x: (J.grad(loss)(x) * J.numpy.cos(x)).sum()


USES = {
    "gradient": lambda J, f, x: J.grad(loss_of(J, f))(x),
    "compiled gradient": lambda J, f, x: J.jit(J.value_and_grad(loss_of(J, f)))(x),
    "gradient of compiled": lambda J, f, x: J.grad(J.jit(loss_of(J, f)))(x),
    "tangent": lambda J, f, x: J.jit(lambda x, t: J.jvp(lambda y: f(J, y), (x,), (t,)))(x, x[::-1]),
    "second": lambda J, f, x: J.grad(second(J, loss_of(J, f)))(x),
    "compiled second": lambda J, f, x: J.jit(J.grad(second(J, loss_of(J, f))))(x),
    "gradients of many": lambda J, f, x: J.jit(J.vmap(J.grad(loss_of(J, f))))(
        J.numpy.stack([x, 2 * x])
    ),
    "gradient of many": lambda J, f, x: J.jit(J.grad(lambda xs: J.vmap(loss_of(J, f))(xs).sum()))(
        J.numpy.stack([x, 2 * x])
    ),
    "checkpoint": lambda J, f, x: J.jit(J.grad(J.checkpoint(loss_of(J, f))))(x),
    "scan": lambda J, f, x: J.jit(
        J.grad(
            lambda x: J.lax.scan(
                lambda c, _: (c + 0.1 * loss_of(J, f)(c), loss_of(J, f)(c)), x, None, length=3
            )[1].sum()
        )
    )(x),
}


EVERY = ("gradient", "compiled gradient", "second")  # the others take the same path for all
FULLY = ("softmax", "logsumexp", "layer_norm", "self_attention")


@pytest.mark.parametrize(
    ("name", "use"),
    [(name, use) for name in FORMULAS for use in USES if name in FULLY or use in EVERY],
)
def test_values_are_those_of_jax(name, use, monkeypatch):
    monkeypatch.setattr(rules, "KEPT_BYTES", 0)
    x = np.random.default_rng(1).normal(size=(5, 3))
    f, run = FORMULAS[name], USES[use]
    with x64():
        check(lambda J: run(J, f, x), tolerance=1e-10)


@pytest.mark.parametrize("name", FORMULAS)
def test_single_precision_values_are_those_of_jax(name, monkeypatch):
    monkeypatch.setattr(rules, "KEPT_BYTES", 0)
    x = np.random.default_rng(2).normal(size=(5, 3)).astype("f4")
    f = FORMULAS[name]
    check(lambda J: (f(J, x), USES["compiled gradient"](J, f, x)), tolerance=3e-5)
    check(lambda J: USES["compiled second"](J, f, x), tolerance=2e-3)


EDGES = {
    "a row of -inf": np.float32([[-np.inf, -np.inf], [1, -np.inf]]),
    "inf": np.float32([[np.inf, 0], [1, 2]]),
    "large": np.float32([[1e4, -1e4], [3e4, 3e4]]),
}


@pytest.mark.parametrize("name", ["library softmax", "library log_softmax", "library logsumexp"])
@pytest.mark.parametrize("edge", EDGES)
def test_edges_are_those_of_jax(name, edge):
    f = FORMULAS[name]
    check(lambda J: f(J, EDGES[edge]))


def test_a_trace_that_looks_at_values_keeps_them_across_raising():
    looked = []

    @tinyjax.jit
    def inner(x):
        return nn.softmax(x) * 1.5

    def f(x):
        y = inner(x)
        if y.sum() > 0:
            looked.append(True)
        return (y**2).sum()

    x = jnp.arange(4.0)
    want = tinyjax.grad(lambda x: ((nn.softmax(x) * 1.5) ** 2).sum())(x)
    np.testing.assert_allclose(tinyjax.grad(f)(x), want, rtol=1e-6)
    assert looked == [True]
