"""Mutable arrays: values and errors are JAX's, whatever staged functions stand between."""

from __future__ import annotations

import jax as oracle
import numpy as np
import pytest

import tinyjax
from tests.oracle import assert_same

x3 = np.arange(3.0, dtype="f4")
CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


@case
def at_once(J):
    r = J.new_ref(J.numpy.asarray(x3))
    r[0] = 5.0
    a = r[...]
    r[...] = a * 2
    r[1] += 1
    r[1:] = r[1:] + 10
    return r[...], r[1], r[-1], J.freeze(r), r.shape, r.ndim, r.size


@case
def inside_jit(J):
    @J.jit
    def f(x):
        r = J.new_ref(x)
        r[0] = r[1] * 2
        r[...] += 1
        return J.freeze(r)

    return f(x3), f(x3 + 1)


@case
def as_an_argument(J):
    r, other = J.new_ref(J.numpy.asarray(x3)), J.new_ref(J.numpy.ones(3))

    @J.jit
    def f(r, v):
        r[0] += v
        return r[...].sum()

    return f(r, 1.0), f(r, 2.0), f(other, 1.0), r[...], other[...]


@case
def closed_over(J):
    r = J.new_ref(J.numpy.asarray(x3))

    @J.jit
    def f(v):
        r[0] += v
        return r[...].sum()

    first = f(1.0)
    r[1] = 50.0
    return first, f(2.0), r[...]


@case
def scan(J):
    def run(x):
        r = J.new_ref(J.numpy.zeros(()))

        def step(c, x):
            r[...] += x
            return c + 1, r[...]

        return J.lax.scan(step, 0.0, x), r[...]

    return run(J.numpy.asarray(x3)), J.jit(run)(x3)


@case
def loops(J):
    r, s = J.new_ref(J.numpy.zeros(3)), J.new_ref(J.numpy.zeros(()))

    def body(i):
        s[...] += i
        return i + 1

    J.lax.fori_loop(0, 3, lambda i, _: r.__setitem__(i, i * 2.0), None)
    return J.lax.while_loop(lambda i: i < 4, body, 0), r[...], s[...]


@case
def branches(J):
    r = J.new_ref(J.numpy.zeros(2))

    def add(v):
        r[0] += v

    def sub(v):
        r[1] -= v

    J.lax.cond(True, add, sub, 3.0)
    J.lax.cond(False, add, lambda v: None, 5.0)
    f = J.jit(lambda i: J.lax.switch(i, [add, sub, lambda v: None], 2.0))
    for i in range(3):
        f(i)
    return r[...]


@case
def nested(J):
    r = J.new_ref(J.numpy.zeros(()))

    @J.jit
    def f(x):
        @J.jit
        def g(y):
            r[...] += y
            return r[...]

        return J.lax.scan(lambda c, v: (g(v), None), 0.0, x)[0]

    return f(x3), f(x3), r[...]


@case
def grad_through_a_local_one(J):
    def f(x):
        r = J.new_ref(x)
        r[0] = r[1] * r[2]
        return r[...].sum()

    def g(x):
        r = J.new_ref(J.numpy.ones(()))

        def step(c, v):
            r[...] *= v * c
            return c, None

        J.lax.scan(step, x, J.numpy.asarray(x3) + 1)
        return r[...]

    return J.grad(f)(x3), J.jit(J.grad(f))(x3), J.jit(J.grad(g))(2.0), J.grad(g)(2.0)


@case
def plumbing_out_of_grad(J):
    r = J.new_ref(J.numpy.zeros(()))

    def f(x):
        r[...] += J.lax.stop_gradient(x * 3)
        return J.numpy.sin(x)

    first = J.grad(f)(1.0)
    return first, J.grad(f)(2.0), r[...], J.jit(J.value_and_grad(f))(1.0), r[...]


@case
def vmap(J):
    def local(x):
        r = J.new_ref(x)
        r[...] *= 2
        return r[...]

    r, shared = J.new_ref(J.numpy.asarray(x3)), J.new_ref(J.numpy.ones(()))

    def f(r, v):
        r[...] += v
        return r[...] * shared[...]

    return J.vmap(local)(x3), J.vmap(f)(r, x3), r[...], J.jit(J.vmap(f))(r, x3), r[...]


@pytest.mark.parametrize("name", CASES)
def test_values_are_jaxs(name):
    assert_same(CASES[name](tinyjax), CASES[name](oracle), weak=False)


ERRORS = [
    (lambda J: J.new_ref(J.numpy.ones(3)).__setitem__(..., J.numpy.ones(4)), "Invalid shape"),
    (lambda J: J.new_ref(J.numpy.arange(3)).__setitem__(0, J.numpy.ones(())), "Invalid dtype"),
    (lambda J: J.new_ref(J.numpy.arange(3)).__setitem__(0, 2.5), "Invalid dtype"),
    (lambda J: J.jit(lambda x: J.new_ref(x))(x3), "mutable array reference"),
    (lambda J: twice(J, J.new_ref(J.numpy.ones(3))), "only one reference"),
    (lambda J: written_under(J, J.vmap, x3), "with vmapped value on an unbatched"),
    (lambda J: written_under(J, J.grad, 1.0), "with a differentiated value on a"),
]


def twice(J, r):
    return J.jit(lambda a, b: a[0])(r, r)


def written_under(J, transform, x):
    r = J.new_ref(J.numpy.zeros(()))

    def f(v):
        r[...] = v * 1.0
        return v

    transform(f)(x)


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors_say_what_jaxs_say(number):
    run, text = ERRORS[number]
    with pytest.raises(Exception, match=text):
        run(oracle)
    with pytest.raises(ValueError, match=text):
        run(tinyjax)


def test_a_condition_may_read_what_the_body_writes():
    J = tinyjax
    r = J.new_ref(J.numpy.zeros(()))

    def body(i):
        r[...] += 2
        return i + 1

    assert J.lax.while_loop(lambda i: r[...] < 5, body, 0) == 3
    assert r[...] == 6


def test_a_custom_rule_refuses_one_from_outside():
    J = tinyjax
    r = J.new_ref(J.numpy.zeros(()))

    @J.custom_vjp
    def f(x):
        r[...] = x
        return x

    f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct,))
    with pytest.raises(ValueError, match="uses a Ref from outside"):
        J.jit(f)(1.0)


def test_functions_of_the_module():
    J = tinyjax
    r = J.new_ref(J.numpy.asarray(x3))
    assert J.ref.swap(r, 0, 7.0) == 0 and J.ref.get(r, 0) == 7
    J.ref.addupdate(r, 0, 1.0)
    J.ref.set(r, 1, 5.0)
    assert r[...].tolist() == [8, 5, 2] and len(r) == 3
    assert repr(r) == "Ref([8., 5., 2.], dtype=float32)"


def test_the_text_shows_the_state():
    J = tinyjax
    r = J.new_ref(J.numpy.zeros(()))

    def f(x):
        r[...] += x
        return x

    text = "{ lambda a:f32[] b:f32[]. let c:f32[] = add b a in (a, c) }"
    assert str(J.make_jaxpr(f)(np.float32(1))) == text
