"""Variables that may be bound: when Python may look at a value, and what is left behind."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

import tinyjax
from tinyjax import grad, jit, jvp, lax, vmap
from tinyjax import numpy as jnp
from tinyjax.core.uop import nodes_created
from tinyjax.engine.array import Tracer
from tinyjax.errors import (
    ConcretizationTypeError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
)
from tinyjax.interpreters.trace import state

X = np.array([1.0, 2.0, 3.0], "f4")


def test_python_may_look_at_values_under_grad():
    seen = []

    def f(x):
        seen.append((bool(x > 1), int(x), x.item(), f"{x:.1f}", str(x), [7, 8, 9][jnp.int32(x)]))
        return x * x if x > 1 else x

    assert float(grad(f)(2.0)) == 4.0 and float(grad(f)(0.5)) == 1.0
    assert seen[0] == (True, 2, 2.0, "2.0", "2.0", 9)
    assert float(jvp(f, (2.0,), (1.0,))[1]) == 4.0


LOSSES = {
    "float()": lambda x: x * float(x),
    "complex()": lambda x: x * complex(x).real,
    "math.sin": lambda x: x * math.sin(x),
    "tolist()": lambda x: x * x.tolist(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_plain_number_of_a_differentiated_value_would_lose_its_gradient(name):
    with pytest.raises(ConcretizationTypeError) as e:
        grad(LOSSES[name])(2.0)
    assert "would drop its gradient with respect to x" in str(e.value)
    assert "stop_gradient" in str(e.value) and "has_aux" in str(e.value)


@pytest.mark.parametrize("use", [np.asarray, np.sin, np.array])
def test_a_numpy_array_of_a_differentiated_value_would_lose_its_gradient(use):
    with pytest.raises(TracerArrayConversionError, match="would drop its gradient"):
        grad(lambda x: jnp.sum(x * use(x)))(X)


def test_constants_and_integers_derived_from_a_differentiated_value_may_leave():
    f = lambda x: x * float(lax.stop_gradient(x)) * float(jnp.argmax(x)) + float(x > 1)
    assert float(grad(f)(2.0)) == 0.0
    g = lambda x: jnp.sum(x * np.asarray(lax.stop_gradient(x)))
    np.testing.assert_array_equal(np.asarray(grad(g)(X)), X)


UNBOUND = {
    "jit": lambda f: jit(f)(X[0]),
    "vmap": lambda f: vmap(f)(X),
    "scan": lambda f: lax.scan(lambda c, x: (f(x), None), 0.0, X),
    "checkpoint": lambda f: grad(tinyjax.checkpoint(f))(1.0),
    "jit of grad": lambda f: jit(grad(f))(1.0),
    "grad of jit": lambda f: grad(jit(f))(1.0),
}


@pytest.mark.parametrize("name", UNBOUND)
def test_an_unbound_variable_has_no_value(name):
    apply = UNBOUND[name]
    with pytest.raises(TracerBoolConversionError):
        apply(lambda x: x if x > 0 else -x)
    with pytest.raises(TracerIntegerConversionError):
        apply(lambda x: x * len(range(x.astype(int))))
    with pytest.raises(ConcretizationTypeError):
        apply(lambda x: x * float(x))
    with pytest.raises(TracerArrayConversionError):
        apply(lambda x: x * np.sin(x))


def test_the_message_names_function_argument_and_remedy():
    def step(params, lr):
        return params["w"] if lr > 0 else params["b"]

    with pytest.raises(TracerBoolConversionError) as e:
        jit(step)({"w": 1.0, "b": 2.0}, 0.1)
    text = str(e.value)
    assert "argument lr of jit of step" in text and "test_trace.py" in text
    assert "static_argnames" in text


def test_what_escapes_from_grad_is_an_ordinary_value():
    kept = []

    def f(x):
        kept.append(x * x)
        return x

    grad(f)(3.0)
    (value,) = kept
    assert float(value) == 9.0 and not isinstance(value, Tracer)
    assert float(value + 1) == 10.0 and isinstance(np.asarray(value), np.ndarray)
    assert float(jit(lambda y: 2 * y)(value)) == 18.0
    assert float(grad(lambda y: y * value)(5.0)) == 9.0
    assert "differentiated" not in repr(value)


LEAKS = {
    "jit": lambda f: jit(f)(X),
    "vmap": lambda f: vmap(f)(X),
    "scan": lambda f: lax.scan(lambda c, x: (c, f(x)), 0.0, X),
}
USES = {
    "adding": lambda x: x + 1,
    "numpy": lambda x: np.asarray(x),
    "jit": lambda x: jit(lambda y: y + x)(1.0),
    "grad": lambda x: float(grad(lambda y: jnp.sum(y + x))(1.0) + jnp.sum(x)),
    "grad that needs it": lambda x: grad(lambda y: jnp.sum(y * x))(1.0),
    "jvp": lambda x: jvp(lambda y: y * x, (1.0,), (1.0,)),
    "vmap": lambda x: vmap(lambda y: y * x)(X),
    "vmap in grad": lambda x: grad(lambda y: jnp.sum(vmap(lambda z: z * x)(y)))(X),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("leak", LEAKS)
def test_what_escapes_from_jit_names_its_origin(leak, use):
    kept = []

    def leaky(x):
        kept.append(x * 2)
        return x

    LEAKS[leak](leaky)
    with pytest.raises(UnexpectedTracerError, match=f"escaped from {leak}"):
        USES[use](kept[0])


def test_isinstance_tracer():
    found = []

    def note(*values):
        found.append([isinstance(v, Tracer) for v in values])
        return values[0] * 1.0

    grad(lambda x: note(x, x * 2, x > 1, lax.stop_gradient(x), jnp.ones(2)))(1.0)
    jit(lambda x: note(x, jnp.ones(2) + 1))(1.0)
    vmap(lambda x: note(x))(X)
    note(jnp.ones(2), jnp.ones(2) * 3)
    assert found == [[True, True, False, False, False], [True, True], [True], [False, False]]


def test_values_looked_at_are_computed_once():
    calls = []

    def slow(x):
        calls.append(1)
        return np.asarray(x) * 2

    def f(x):
        y = tinyjax.pure_callback(
            slow, tinyjax.ShapeDtypeStruct((), np.float32), lax.stop_gradient(x)
        )
        for _ in range(3):
            if y > 0:
                x = x * 2
        return x * y

    grad(f)(1.0)
    assert len(calls) <= 2


FAILURES = {
    "jit": lambda f: jit(f)(1.0),
    "grad": lambda f: grad(f)(1.0),
    "vmap": lambda f: vmap(f)(X),
    "scan": lambda f: lax.scan(lambda c, x: (f(x), None), 0.0, X),
    "vmap with a name": lambda f: vmap(f, axis_name="i")(X),
    "nested": lambda f: jit(lambda x: grad(lambda y: vmap(f)(X * y).sum())(x))(1.0),
}


@pytest.mark.parametrize("name", FAILURES)
def test_an_exception_leaves_no_state(name):
    def fail(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        FAILURES[name](fail)
    assert not state.traces and not state.staging and not state.forced and not state.axes
    assert float(jit(lambda x: x + 1)(1.0)) == 2.0


def test_a_trace_that_fails_leaves_no_entry():
    broken = [True]

    @jit
    def f(x):
        if broken[0]:
            raise ValueError("not yet")
        return x + 1

    with pytest.raises(ValueError, match="not yet"):
        f(1.0)
    broken[0] = False
    assert float(f(1.0)) == 2.0


def test_a_trace_that_captured_an_outer_variable_is_not_reused_after_it():
    @jit
    def inner(y):
        return outer_value[0] * y

    outer_value = [None]

    def f(x):
        outer_value[0] = x
        return inner(2.0) * x

    assert float(grad(f)(1.0)) == 4.0
    assert float(grad(f)(5.0)) == 20.0
    assert float(jit(f)(3.0)) == 18.0


def test_two_threads_trace_at_once():
    results, errors = {}, []

    def work(i):
        try:
            f = jit(lambda x: jnp.sin(x) * i + x)
            for _ in range(5):
                results[i] = float(grad(lambda x: jnp.sum(vmap(f)(x)))(X)[0])
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert all(abs(results[i] - (math.cos(1.0) * i + 1)) < 1e-5 for i in range(4))


def test_tracing_again_makes_no_nodes():
    f = lambda x: jnp.tanh(x @ x.T).sum()
    first = jit(f).trace(np.ones((3, 3), "f4"))
    count = nodes_created()
    again = jit(lambda x: jnp.tanh(x @ x.T).sum()).trace(np.ones((3, 3), "f4"))
    assert again.body is first.body
    assert nodes_created() - count < 20  # the nodes over the variable, none of the body
