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
