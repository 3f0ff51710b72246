"""How often the user's Python runs: exactly as often as under JAX, for a table of call sequences.

Each case gets the library and `counted`, which wraps a function so that its runs are recorded in
order. Where tinyjax differs on purpose, DIFFERENT says how and why.
"""

from __future__ import annotations

import contextlib
import functools

import jax as oracle
import numpy as np
import pytest

import tinyjax
from tinyjax.core.ops import Op
from tinyjax.core.uop import toposort
from tinyjax.engine.tracing import Traced, traces

x3, x2 = np.arange(3.0, dtype="f4"), np.arange(2.0, dtype="f4")


def runs(jax, case) -> list[str]:
    """Names of the counted functions in the order in which Python ran them."""
    log: list[str] = []

    def counted(f, name="f"):
        @functools.wraps(f)
        def wrapped(*args, **kwargs):
            log.append(name)
            return f(*args, **kwargs)

        return wrapped

    case(jax, counted)
    return log


def repeat(times, f, *args, **kwargs):
    for _ in range(times):
        f(*args, **kwargs)


def jit_new_shapes(J, counted):
    f = J.jit(counted(lambda x: x * 2))
    for x in (x3, x2, x3, x2, x3[:1], 1.0, 2.0, 1, 2, np.float32(1), True):
        f(x)


def jit_weak_and_strong(J, counted):
    f = J.jit(counted(lambda x: x * 2))
    for x in (J.numpy.float32(1), 1.0, J.numpy.asarray(1.0), J.numpy.ones(3), x3, x3 * 2.0):
        f(x)


def jit_equal_statics(J, counted):
    f = J.jit(counted(lambda x, n: x * len(n)), static_argnums=1)
    for n in ((1, 2), (1, 2), (1, 3), "ab", "a" + "b"):
        f(x3, n)


def jit_static_names(J, counted):
    f = J.jit(counted(lambda x, flag=True: x if flag else -x), static_argnames="flag")
    f(x3), f(x3, flag=True), f(x3, True), f(x3, flag=False), f(x3, False)


def jit_keyword_order(J, counted):
    f = J.jit(counted(lambda a, b: a - b))
    f(a=x3, b=x2[:1]), f(b=x2[:1], a=x3), f(x3, b=x2[:1]), f(x3, x2[:1])


def jit_trees(J, counted):
    f = J.jit(counted(lambda t: t))
    for tree in ({"a": 1.0, "b": x3}, {"b": x3, "a": 1.0}, [1.0, x3], (1.0, x3), (1.0, None)):
        repeat(2, f, tree)


def jit_partials(J, counted):
    f = counted(lambda k, x: x * k)
    for k in (2.0, 2.0, 3.0):
        J.jit(functools.partial(f, k))(x3)


def jit_methods(J, counted):
    class Model:
        def __init__(self, w):
            self.w = w

        def __call__(self, x):
            return x * self.w

    Model.apply = counted(Model.__call__)
    a, b = Model(2.0), Model(3.0)
    for m in (a, b, a, b):
        J.jit(m.apply)(x3)


def jit_same_function_twice(J, counted):
    f = counted(lambda x: x + 1)
    J.jit(f)(x3), J.jit(f)(x3), J.jit(f)(x2)


def jit_new_lambda_each_time(J, counted):
    for _ in range(3):
        J.jit(counted(lambda x: x + 1))(x3)


def jit_nested(J, counted):
    inner = J.jit(counted(lambda x: J.numpy.sin(x), "inner"))
    outer = J.jit(counted(lambda x: inner(x) + inner(x * 2) + inner(x[:2]).sum(), "outer"))
    repeat(2, outer, x3)
    inner(x3), inner(x2)


def jit_of_jit(J, counted):
    f = J.jit(J.jit(counted(lambda x: x + 1)))
    repeat(2, f, x3)


def jit_and_eager_share(J, counted):
    f = J.jit(counted(lambda x: x + 1))
    f(x3)
    J.jit(lambda x: f(x) * 2)(x3)
    J.vmap(f)(x3[None])
    J.grad(lambda x: f(x).sum())(x3)
    J.jvp(f, (x3,), (x3,))


def jit_fails_then_works(J, counted):
    broken = [True]

    def body(x):
        if broken[0]:
            raise ZeroDivisionError
        return x + 1

    f = J.jit(counted(body))
    for state in (True, True, False, False):
        broken[0] = state
        with contextlib.suppress(ZeroDivisionError):
            f(x3)


def jit_concretisation_fails(J, counted):
    f = J.jit(counted(lambda x: x if x.sum() > 0 else -x))
    for _ in range(2):
        with contextlib.suppress(J.errors.TracerBoolConversionError):
            f(x3)


def jit_lower_then_call(J, counted):
    f = J.jit(counted(lambda x: x + 1))
    f.lower(x3), f.lower(x3).compile(), f(x3), f.trace(x3), f.eval_shape(x3)


def jit_config_change(J, counted):
    f = J.jit(counted(lambda x: x + 1))
    f(x3)
    with J.enable_x64(True):
        repeat(2, f, x3)
    f(x3)


def jit_clear_cache(J, counted):
    f = J.jit(counted(lambda x: x + 1))
    f(x3)
    f.clear_cache()
    f(x3)


def jit_disabled(J, counted):
    f = J.jit(counted(lambda x: x + 1))
    f(x3)
    with J.disable_jit():
        repeat(2, f, x3)
    f(x3)


def jit_donates(J, counted):
    f = J.jit(counted(lambda x: x + 1), donate_argnums=0)
    x = J.numpy.ones(4)
    x = f(x)
    f(x)


def grad_repeats(J, counted):
    f = J.grad(counted(lambda x: (x * x).sum()))
    repeat(3, f, x3)


def value_and_grad_in_jit(J, counted):
    f = J.jit(J.value_and_grad(counted(lambda x: (x * x).sum())))
    repeat(3, f, x3)
    f(x2)


def grad_of_grad(J, counted):
    f = J.grad(J.grad(counted(lambda x: x * x * x)))
    repeat(2, f, 2.0)


def grad_over_jit(J, counted):
    f = J.jit(counted(lambda x: (x * x).sum()))
    repeat(2, J.grad(f), x3)
    f(x3)
    J.hessian(f)(x3)


def jit_captures_an_outer_variable(J, counted):
    def loss(w, x):
        inner = J.jit(counted(lambda x: (x * w).sum()))
        return inner(x) + inner(2 * x)

    repeat(2, J.grad(loss), 2.0, x3)


def one_jit_captures_through_a_cell(J, counted):
    cell = [None]
    inner = J.jit(counted(lambda x: (x * cell[0]).sum()))

    def loss(w, x):
        cell[0] = w
        return inner(x) + inner(2 * x)

    J.grad(loss)(2.0, x3)


def vmap_repeats(J, counted):
    f = J.vmap(counted(lambda x: x * 2))
    repeat(2, f, x3)


def vmap_over_jit(J, counted):
    f = J.jit(counted(lambda x: x * 2))
    repeat(2, J.vmap(f), x3)
    J.vmap(J.vmap(f))(np.ones((2, 3), "f4"))


def vmap_with_axis_name_over_jit(J, counted):
    f = J.jit(counted(lambda x: x * J.lax.psum(x, "i") + J.lax.axis_index("i")))
    for x in (x3, x3 + 1, x2):
        J.vmap(f, axis_name="i")(x)
    J.vmap(J.vmap(f, axis_name="i"), axis_name="j")(np.ones((2, 3), "f4"))
    J.vmap(J.grad(lambda x: f(x)), axis_name="i")(x3)


def jit_over_vmap(J, counted):
    f = J.jit(J.vmap(counted(lambda x: x * 2)))
    repeat(2, f, x3)


def scan_eager(J, counted):
    body = counted(lambda c, x: (c + x, c))
    repeat(2, lambda: J.lax.scan(body, 0.0, x3))


def scan_in_jit(J, counted):
    body = counted(lambda c, x: (c + x, c))
    f = J.jit(lambda x: J.lax.scan(body, 0.0, x))
    repeat(2, f, x3)
    f(x2)


def scan_weak_carry(J, counted):
    J.lax.scan(counted(lambda c, x: (c + x, c)), 0, x3)


def scan_under_grad(J, counted):
    body = counted(lambda c, x: (c * x, c))
    repeat(2, J.grad(lambda x: J.lax.scan(body, 1.0, x)[0]), x3 + 1)


def cond_both_branches(J, counted):
    yes, no = counted(lambda x: x + 1, "yes"), counted(lambda x: x - 1, "no")
    for p in (True, False, True):
        J.lax.cond(p, yes, no, x3)


def switch_branches(J, counted):
    branches = [counted(lambda x, k=k: x + k, str(k)) for k in range(3)]
    J.jit(lambda i, x: J.lax.switch(i, branches, x))(1, x3)


def while_parts(J, counted):
    test, body = counted(lambda x: x < 10, "test"), counted(lambda x: x * 2, "body")
    repeat(2, lambda: J.lax.while_loop(test, body, 1.0))


def fori_body(J, counted):
    body = counted(lambda i, x: x + i, "body")
    J.lax.fori_loop(0, 3, body, 1.0)
    J.jit(lambda n: J.lax.fori_loop(0, n, body, 1.0))(3)


def checkpoint_repeats(J, counted):
    f = J.checkpoint(counted(lambda x: J.numpy.sin(x).sum()))
    repeat(2, f, x3)
    repeat(2, J.grad(f), x3)


def eval_shape_and_make_jaxpr(J, counted):
    f = counted(lambda x: x + 1)
    J.eval_shape(f, x3), J.make_jaxpr(f)(x3), J.make_jaxpr(f)(x3)


def options(J, counted):
    f = J.jit(counted(lambda x: J.numpy.sin(x)))
    for option, value in (
        ("debug_nans", True),
        ("debug_infs", True),
        ("log_compiles", False),
        ("numpy_rank_promotion", "raise"),
        ("default_matmul_precision", "float32"),
        ("enable_x64", True),
    ):
        f(1.0)
        with getattr(J, option)(value):
            f(1.0), J.grad(f)(1.0)


def pmap_objects(J, counted):
    f = counted(lambda x, n=1: x * n)
    ones = np.ones((1, 3), "f4")
    for options in (
        {},
        {},
        {"axis_name": "i"},
        {"axis_name": "i"},
        {"out_axes": 1},
        {"in_axes": 0},
    ):
        J.pmap(f, **options)(ones)
    for n in (2, 2, 3):
        J.pmap(f, static_broadcasted_argnums=1)(ones, n)


def linear_solves(J, counted):
    matvec = counted(lambda x: x * 2.0, "matvec")
    twice = lambda f, b: f(f(b))
    for forms in ({}, {"symmetric": True}, {"transpose_solve": twice}):
        repeat(2, lambda: J.lax.custom_linear_solve(matvec, 1.0, twice, **forms))
    J.grad(lambda b: J.lax.custom_linear_solve(matvec, b, twice, symmetric=True))(1.0)


def roots(J, counted):
    f = counted(lambda x: x - 2.0)
    for _ in range(2):
        J.lax.custom_root(f, 1.0, lambda f, x: x - f(x), lambda g, y: y / g(1.0))


def custom_jvp_rules(J, counted):
    f = J.custom_jvp(counted(lambda x: J.numpy.sin(x)))
    f.defjvp(counted(lambda p, t: (f(p[0]), t[0] * 2), "rule"))
    f(1.0), J.grad(f)(1.0), J.jit(f)(1.0), J.jvp(f, (1.0,), (1.0,))


def custom_vjp_rules(J, counted):
    f = J.custom_vjp(counted(lambda x: J.numpy.sin(x)))
    f.defvjp(counted(lambda x: (J.numpy.sin(x), x), "fwd"), counted(lambda x, g: (g * x,), "bwd"))
    f(1.0), J.grad(f)(1.0), J.jit(f)(1.0), J.jit(J.grad(f))(1.0)


def in_derivatives(J, f, closed):
    """Every way in which a derivative of a function with rules is staged or mapped."""
    total = lambda x: J.numpy.sum(J.vmap(f)(x))
    J.jit(J.grad(f))(1.0), J.vmap(J.grad(f))(x3), J.grad(total)(x3), J.jit(J.grad(total))(x3)
    J.jit(J.value_and_grad(lambda x: f(x) * x))(1.0), J.checkpoint(J.grad(f))(1.0)
    J.lax.scan(lambda c, _: (J.grad(f)(c), None), 1.0, None, 3)
    J.grad(lambda x: J.lax.scan(lambda c, _: (f(c), None), x, None, 3)[0])(1.0)
    J.grad(J.jit(f))(1.0), J.jit(J.grad(J.jit(f)))(1.0)
    J.jit(lambda y: J.grad(closed(y))(1.0))(2.0)


def custom_jvp_rules_in_derivatives(J, counted):
    def made(y):
        f = J.custom_jvp(counted(lambda x: J.numpy.sin(x) * y))
        f.defjvp(counted(lambda p, t: (f(p[0]), t[0] * y), "rule"))
        return f

    in_derivatives(J, made(2.0), made)
    f = made(2.0)
    J.jit(J.grad(lambda x: f(f(x))))(1.0)
    J.jit(lambda x: J.jvp(made(2.0), (x,), (x,)))(1.0)
    J.jit(lambda x: J.linearize(made(2.0), x)[1](x))(1.0)
    J.vmap(lambda x: J.jvp(made(2.0), (x,), (x,)))(x3)


def custom_vjp_rules_in_derivatives(J, counted):
    def made(y):
        f = J.custom_vjp(counted(lambda x: J.numpy.sin(x) * y))
        f.defvjp(
            counted(lambda x: (f(x), (x, y)), "fwd"),
            counted(lambda held, ct: (ct * held[0] * held[1],), "bwd"),
        )
        return f

    in_derivatives(J, made(2.0), made)


CASES = {
    name: f
    for name, f in list(globals().items())
    if getattr(f, "__code__", None) and f.__code__.co_varnames[:2] == ("J", "counted")
}

DIFFERENT = {
    # Equal partials share their traces, which JAX's compare by identity.
    "jit_partials": ["f", "f"],
}


@pytest.mark.parametrize("name", CASES)
def test_python_runs_as_often_as_under_jax(name):
    jax_runs = runs(oracle, CASES[name])
    want = DIFFERENT.get(name, jax_runs)
    assert jax_runs and (name not in DIFFERENT or want != jax_runs)
    assert runs(tinyjax, CASES[name]) == want


@pytest.mark.parametrize("name", CASES)
def test_no_cached_body_holds_a_variable(name):
    """Of finished traces and of none: what a cache keeps is closed."""
    kept = []

    def keep(f, name="f"):
        kept.append(f)
        return f

    CASES[name](tinyjax, keep)
    bodies = [
        traced for f in kept for traced in traces.table(f).values() if isinstance(traced, Traced)
    ]
    for traced in bodies:
        assert not any(n.op is Op.VAR for n in toposort([traced.body]))
        assert not any(n.free for n in traced.captured)


STEPS = {
    "scan": lambda J, f: J.lax.scan(lambda c, _: (f(c), None), 1.0, None, length=2)[0],
    "scan of method": lambda J, f: J.lax.fori_loop(0, 2, f.__self__.step, 1.0),
    "while": lambda J, f: J.lax.while_loop(lambda c: c < 5, f, 1.0),
    "cond": lambda J, f: J.lax.cond(True, f, f, 1.0),
    "checkpoint": lambda J, f: J.checkpoint(f)(1.0),
    "grad of checkpoint": lambda J, f: J.grad(J.checkpoint(f))(1.0),
    "jit": lambda J, f: J.jit(f)(1.0),
    "grad of jit": lambda J, f: J.grad(J.jit(f))(1.0),
}


@pytest.mark.parametrize("name", STEPS)
def test_methods_see_what_their_object_holds_now(name):
    class Model:
        rate = 2.0

        def __eq__(self, other):
            return isinstance(other, Model)

        def __hash__(self):
            return 0

        def apply(self, x):
            return x * self.rate

        def step(self, i, x):
            return x * self.rate

    model, other = Model(), Model()
    other.rate = 7.0
    for J in (tinyjax, oracle):
        model.rate = 2.0
        found = [float(STEPS[name](J, model.apply))]
        model.rate = 3.0
        found += [float(STEPS[name](J, m.apply)) for m in (model, other)]
        if J is tinyjax:
            got = found
    assert got == found and len(set(found)) == 3
