"""What nobody reads is taken out of calls, loops and branches: results, operands, carries."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
from tests.lowering.bodies import arg
from tinyjax import lax
from tinyjax import numpy as jnp
from tinyjax.core import build as B
from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import Op
from tinyjax.core.prune import prune
from tinyjax.core.uop import UOp, get, toposort, tuple_of
from tinyjax.lowering.inline import inline

X, Y = arg(0, (4, 4)), arg(1, (4, 4))
W = jnp.eye(4) + 0.1
ONES = jnp.ones((4, 4))


def pruned(f, *args):
    """The only node with a body, before and after."""
    body = inline(tinyjax.jit(f).trace(*args).body)
    (before,), (after,) = (
        [n for n in toposort(b.src) if n.bodies and n.op is not Op.TUPLE]
        for b in (body, prune(body))
    )
    return before, after


def test_a_scan_loses_the_outputs_that_nobody_reads_and_what_only_they_need():
    def f(x, noise):
        def step(c, e):
            return jnp.tanh(c @ W), (jnp.exp(c) + e, jnp.sin(c))

        return lax.scan(step, x, noise)[0]

    before, after = pruned(f, ONES, jnp.ones((5, 4, 4)))
    assert len(before.aval.elts) == 3 and len(after.aval.elts) == 1
    assert {n.op for n in toposort(after.src[0].src)}.isdisjoint({Op.EXP, Op.SIN})
    assert len(before.operands) == 3 and len(after.operands) == 2  # the noise is not read


def test_a_carry_that_only_makes_itself_goes_and_one_that_others_need_stays():
    def f(x):
        def step(c, _):
            a, b, d = c
            return (a + b, b * 2.0, jnp.sin(d)), None

        return lax.scan(step, (x, x, x), None, length=3)[0][0]

    before, after = pruned(f, ONES)
    assert (before.arg.num_carry, after.arg.num_carry) == (3, 2)


def test_a_while_loop_keeps_what_its_condition_reads():
    def f(x, limit):
        def step(c):
            return c[0] + 1.0, c[1] * 2.0, jnp.sin(c[2])

        return lax.while_loop(lambda c: c[0] < limit, step, (0.0, x, x))[1]

    before, after = pruned(f, ONES, 3.0)
    assert len(before.aval.elts) == 3 and len(after.aval.elts) == 2


def test_branches_lose_the_same_results_and_operands():
    def f(p, x, y):
        return lax.cond(p, lambda x, y: (x + 1.0, y @ y), lambda x, y: (x, y), x, y)[0]

    before, after = pruned(f, True, ONES, ONES)
    assert len(before.operands) == 3 and len(after.operands) == 2
    assert all(len(b.src) == 1 for b in after.bodies)


def test_residuals_of_a_zero_cotangent_are_not_stacked():
    def f(x):
        def step(c, _):
            return jnp.tanh(c @ W), jnp.sin(jnp.exp(c))

        return lax.scan(step, x, None, length=64)[0].sum()

    def plain(x):
        return lax.scan(lambda c, _: (jnp.tanh(c @ W), None), x, None, length=64)[0].sum()

    more, less = (tinyjax.jit(tinyjax.grad(g)).lower(ONES).cost for g in (f, plain))
    assert more["peak bytes"] == less["peak bytes"] and more["flops"] == less["flops"]


def test_calls_of_one_program_keep_what_any_of_them_is_read_for():
    inner = tuple_of([B.exp(X), B.dot(X, Y, ((1,), (1,))), B.sin(X)])
    info = CallInfo("function", "g", precompile=True)
    first = UOp(Op.CALL, (inner, X, Y), info)
    second = UOp(Op.CALL, (inner, get(first, 0), Y), info)
    body = prune(tuple_of([B.add(get(second, 0), X), get(second, 1)]))
    calls = [n for n in toposort(body.src) if n.op is Op.CALL]
    assert len(calls) == 2 and calls[0].src[0] is calls[1].src[0]
    assert len(calls[0].aval.elts) == 2


def test_a_precompiled_function_is_compiled_for_the_outputs_that_are_read():
    @tinyjax.function(precompile=True)
    def f(a, b):
        return jnp.sin(a) * 2.0, b @ b

    before, after = pruned(lambda a, b: f(a, b)[0], ONES, ONES)
    assert len(before.operands) == 2 and len(after.operands) == 1
    np.testing.assert_allclose(tinyjax.jit(lambda a: f(a, a)[0])(ONES), np.sin(1) * 2, rtol=1e-6)


def test_inside_of_loops_too():
    def f(x):
        def outer(c, _):
            def inner(d, _):
                return d * 2.0, jnp.sin(d)

            d, ys = lax.scan(inner, c, None, length=3)
            return d, ys

        return lax.scan(outer, x, None, length=2)[0]

    _, after = pruned(f, ONES)
    (loop,) = [n for n in toposort(after.src[0].src) if n.op is Op.SCAN]
    assert len(loop.aval.elts) == 1


@pytest.mark.parametrize("transform", [lambda f: f, tinyjax.grad])
def test_effects_of_what_is_not_read_stay(transform, capfd):
    def f(x):
        def step(c, _):
            tinyjax.debug.print("step {}", c)
            return c * 2.0, None

        lax.scan(step, x, None, length=2)
        return x * 3.0

    transform(tinyjax.jit(f))(1.0)
    tinyjax.effects_barrier()
    assert capfd.readouterr().out.split("\n")[:2] == ["step 1.0", "step 2.0"]


def test_a_body_without_anything_to_drop_stays_the_same_object():
    body = inline(tinyjax.jit(lambda x: lax.scan(lambda c, _: (c * 2.0, c), x, None, length=3)).trace(ONES).body)  # fmt: skip
    assert prune(body) is body


def test_the_backward_loop_does_not_take_residuals_that_it_does_not_read():
    def f(x):
        return lax.scan(lambda c, _: (jnp.tanh(c @ W), jnp.sin(jnp.exp(c))), x, None, length=3)[0]

    jaxpr = tinyjax.make_jaxpr(tinyjax.grad(lambda x: f(x).sum()))(ONES)
    forward, backward = (e for e in jaxpr.eqns if e.primitive.name == "scan")
    assert len(forward.outvars) == 4  # last carry, ys, and two residuals
    assert len(backward.invars) == 3  # W, the cotangent, tanh(c @ W)


@pytest.mark.parametrize("policy", [None, tinyjax.checkpoint_policies.dots_saveable])
def test_calls_with_derivative_rules_keep_what_only_the_rules_read(policy):
    @tinyjax.custom_jvp
    def f(x, y):
        return jnp.sin(x)

    f.defjvp(lambda p, t: (jnp.sin(p[0]), jnp.cos(p[0]) * t[0] * p[1] + 3 * t[1]))

    def loss(c, w):
        step = tinyjax.checkpoint(lambda c, w: c * f(w, w * 2), policy=policy)
        return lax.scan(lambda c, _: (step(c, w), None), c, None, length=3)[0]

    # The slope is sin(w)**3, and the rule says that the derivative of sin(w) is 2 w cos(w) + 6.
    slope = tinyjax.grad(lambda w: tinyjax.grad(loss)(0.7, w))(0.5)
    want = 3 * np.sin(0.5) ** 2 * (2 * 0.5 * np.cos(0.5) + 6)
    np.testing.assert_allclose(slope, want, rtol=1e-5)
