"""Threads, exceptions and forks: nothing that is interrupted leaves state behind."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import tinyjax
from tinyjax import lax
from tinyjax import numpy as jnp
from tinyjax.interpreters import trace


def together(*jobs):
    """Run each in a thread of its own; what they return, in order; the first error is raised."""
    results, errors = [None] * len(jobs), []

    def run(i, job):
        try:
            results[i] = job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


def test_two_threads_trace_while_a_third_runs():
    running = tinyjax.jit(lambda x: jnp.sin(x).sum())
    x = jnp.arange(8.0)
    wanted = float(running(x))

    def traces(k):
        found = []
        for i in range(20):
            f = tinyjax.jit(tinyjax.grad(lambda x, i=i: (x * (k + i)).sum() * 1.0))
            found.append(np.asarray(f(x)).tolist() == [float(k + i)] * 8)
        return all(found)

    def runs():
        return all(float(running(x)) == wanted for _ in range(300))

    assert together(lambda: traces(1), lambda: traces(100), runs) == [True, True, True]


def test_one_jitted_function_in_several_threads_is_right_in_each():
    f = tinyjax.jit(lambda x: jnp.cumsum(x) * 2)
    inputs = [np.arange(k, k + 9, dtype=np.float32) for k in range(6)]
    found = together(*(lambda x=x: [np.asarray(f(x)) for _ in range(30)] for x in inputs))
    for x, results in zip(inputs, found):
        assert all((y == np.cumsum(x) * 2).all() for y in results)


def test_eight_threads_trace_differentiate_and_run_shared_functions():
    """Functions, their gradients and their batched forms are shared; shapes arrive in any order."""
    inner = tinyjax.jit(lambda x: jnp.tanh(x) * 2)
    block = tinyjax.function(lambda x: lax.scan(lambda c, r: (inner(c) + r, c), x[0], x)[0].sum())
    loss = tinyjax.jit(lambda x: tinyjax.checkpoint(block)(x) * 0.5)
    gradient = tinyjax.jit(tinyjax.grad(loss))

    def work(k):
        results = []
        for step in range(6):
            x = jnp.full((2 + (k + step) % 4, 3), 0.1 * (k + 1))
            batch = jnp.stack([x, 2 * x])
            results.append(
                (
                    x.shape,
                    np.asarray(loss(x)),
                    np.asarray(gradient(x)),
                    np.asarray(tinyjax.vmap(gradient)(batch)),
                )
            )
        return results

    alone = [work(k) for k in range(8)]
    tinyjax.clear_caches()
    for mine, theirs in zip(alone, together(*(lambda k=k: work(k) for k in range(8)))):
        for a, b in zip(mine, theirs):
            assert a[0] == b[0]
            assert all(np.array_equal(p, q) for p, q in zip(a[1:], b[1:]))


def test_a_callback_may_call_the_function_it_is_called_from():
    @tinyjax.jit
    def countdown(n):
        def below(n):
            return np.asarray(countdown(n - 1)) if n > 0 else np.float32(0)

        rest = tinyjax.pure_callback(below, tinyjax.ShapeDtypeStruct((), jnp.float32), n)
        return rest * 2 + n

    assert float(countdown(jnp.float32(5))) == sum(n * 2 ** (5 - n) for n in range(6))
    found = together(*(lambda n=n: float(countdown(jnp.float32(n))) for n in (3, 4, 5, 6)))
    assert found == [sum(k * 2 ** (n - k) for k in range(n + 1)) for n in (3, 4, 5, 6)]


class Stop(BaseException):
    """Like KeyboardInterrupt: no handler for Exception sees it."""


def scan_body(error):
    def body(carry, x):
        raise error

    return lambda: lax.scan(body, 0.0, jnp.arange(3.0))


def in_jit(error):
    def f(x):
        jnp.sin(x)
        raise error

    return lambda: tinyjax.jit(f)(jnp.ones(2))


def in_grad_of_vmap(error):
    def f(x):
        raise error

    return lambda: tinyjax.grad(lambda x: tinyjax.vmap(f)(x).sum())(jnp.ones(2))


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), Stop()], ids=repr)
@pytest.mark.parametrize("place", [scan_body, in_jit, in_grad_of_vmap])
def test_an_exception_in_the_middle_of_tracing_leaves_no_state(place, error):
    before = dict(vars(trace.state))
    with pytest.raises(type(error)):
        place(error)()
    assert dict(vars(trace.state)) == before
    assert float(tinyjax.jit(lambda x: x + 1)(1.0)) == 2.0
    assert float(tinyjax.grad(lambda x: x * x)(3.0)) == 6.0


def test_a_trace_that_fails_once_is_traced_again():
    calls = []

    def f(x):
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("first")
        return x * 3

    g = tinyjax.jit(f)
    with pytest.raises(ValueError, match="first"):
        g(jnp.float32(2))
    assert float(g(jnp.float32(2))) == 6.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # jax, if another test loaded it
def test_a_forked_child_goes_on_computing():
    f = tinyjax.jit(lambda x: jnp.sum(x * x))
    assert float(f(jnp.arange(4.0))) == 14.0
    child = os.fork()
    if not child:
        code = 1
        try:
            same = float(f(jnp.arange(4.0))) == 14.0
            new = float(tinyjax.jit(lambda x: jnp.exp(x).sum() * 0 + 5)(jnp.ones(33))) == 5.0
            code = 7 if same and new else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# --- a callback that raises -------------------------------------------------------------------


class Refused(Exception):
    """What the callbacks below raise."""


def failing_when(bad):
    """A function for callbacks that refuses one value."""

    def host(x):
        if x == bad[0]:
            raise Refused(f"value {float(x)}")
        return np.float32(x * 2)

    spec = tinyjax.ShapeDtypeStruct((), jnp.float32)
    return lambda x: tinyjax.pure_callback(host, spec, x, vmap_method="sequential")


def in_a_jitted_function(f):
    return tinyjax.jit(lambda x: jnp.sin(f(x)) + f(x + 1))


def in_a_scan(f):
    def step(carry, x):
        return carry + f(x), carry

    return lambda x: lax.scan(step, x, jnp.arange(4.0) + x)


def in_a_while_loop_in_a_jitted_function(f):
    return tinyjax.jit(lambda x: lax.while_loop(lambda y: y < 20.0, lambda y: f(y) + 1.0, x))


def in_a_branch(f):
    return tinyjax.jit(lambda x: lax.cond(x > 0, f, lambda y: y, x))


def in_every_row(f):
    return tinyjax.vmap(f)


CALLERS = [
    in_a_jitted_function, in_a_scan, in_a_while_loop_in_a_jitted_function, in_a_branch, in_every_row,
]  # fmt: skip


@pytest.mark.parametrize("caller", CALLERS)
def test_a_callback_that_raises_leaves_no_state(caller):
    """The user's exception comes out as it is; then everything works as if nothing had been."""
    bad = [np.float32(3)]
    before = dict(vars(trace.state))
    f = caller(failing_when(bad))
    x = jnp.arange(1.0, 5.0) if caller is in_every_row else jnp.float32(3)
    with pytest.raises(Refused, match="value 3"):
        tinyjax.block_until_ready(f(x))
    bad[0] = np.float32(-100)
    first = tinyjax.tree.map(np.asarray, f(x))
    bad[0] = np.float32(3)
    for _ in range(3):
        with pytest.raises(Refused):
            tinyjax.block_until_ready(f(x))
    bad[0] = np.float32(-100)
    again = tinyjax.tree.map(np.asarray, f(x))
    fresh = tinyjax.tree.map(np.asarray, caller(failing_when(bad))(x))
    for a, b, c in zip(*map(tinyjax.tree.leaves, (first, again, fresh))):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert dict(vars(trace.state)) == before


def test_a_callback_that_raises_in_one_thread_disturbs_no_other():
    bad = [np.float32(7)]
    f = in_a_jitted_function(failing_when(bad))
    wanted = float(f(jnp.float32(1)))

    def refused():
        for _ in range(30):
            with pytest.raises(Refused):
                tinyjax.block_until_ready(f(jnp.float32(7)))

    def fine():
        return {float(f(jnp.float32(1))) for _ in range(30)}

    assert together(refused, fine, refused, fine)[1::2] == [{wanted}, {wanted}]


TRANSFORMS = {
    "grad": tinyjax.grad,
    "jvp": lambda f: lambda x: tinyjax.jvp(f, (x,), (1.0,)),
    "jit": tinyjax.jit,
    "grad of jit": lambda f: tinyjax.grad(tinyjax.jit(f)),
    "vmap": lambda f: lambda x: tinyjax.vmap(f)(jnp.arange(3.0) + x),
    "linearize": lambda f: lambda x: tinyjax.linearize(f, x)[1](1.0),
}


@pytest.mark.parametrize("inner", [jnp.sin, tinyjax.jit(jnp.sin)], ids=["eager", "jit"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_traced_value_computed_with_on_another_thread_is_refused(transform, inner):
    """No trace of that thread could record it: the derivative would be lost."""

    def f(x):
        (y,) = together(lambda: inner(x))
        return y * 2

    with pytest.raises(tinyjax.errors.UnexpectedTracerError, match=r"of f at .*another thread"):
        TRANSFORMS[transform](f)(3.0)
    assert not trace.state.traces and not trace.state.staging


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_transformation_on_another_thread_may_close_over_a_traced_value(transform):
    def f(x):
        (y,) = together(lambda: tinyjax.grad(lambda y: y * x)(2.0))
        return y * 2

    def want(x):
        return tinyjax.grad(lambda y: y * x)(2.0) * 2

    found, wanted = TRANSFORMS[transform](f)(3.0), TRANSFORMS[transform](want)(3.0)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
