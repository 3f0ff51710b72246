"""odeint: against jax, and its adjoint against differences and known solutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.experimental.ode as oracle_ode
import jax.flatten_util as oracle_flatten_util
import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, check, raises, x64
from tinyjax import numpy as jnp
from tinyjax.experimental.ode import odeint

assert oracle_ode and oracle_flatten_util  # jax loads these on request only
TIMES = np.linspace(0.0, 2.0, 4)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with x64():
        yield


def spring(J: Any) -> Any:
    field = lambda y, t, a: {"u": -a * y["v"] + J.numpy.sin(t), "v": y["u"]}

    def run(y0: Any, ts: Any, a: Any) -> Any:
        out = J.experimental.ode.odeint(field, y0, ts, a, rtol=1e-9, atol=1e-9)
        return out["u"].sum() + (out["v"] ** 2).sum()

    return run


def start(J: Any) -> Any:
    return {"u": J.numpy.array([1.0, 2.0]), "v": J.numpy.array([0.5, -1.0])}


CASES: dict[str, Case] = {
    "value": lambda J: spring(J)(start(J), J.numpy.array(TIMES), 1.5),
    "all gradients": lambda J: J.jit(J.grad(spring(J), (0, 1, 2)))(
        start(J), J.numpy.array(TIMES), 1.5
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_odeint_is_that_of_jax(name: str):
    check(CASES[name], 1e-6, weak=False)


def test_a_function_is_traced_as_often_as_in_jax():
    def counts(J: Any) -> list[int]:
        found, traces = [], []
        odeint = J.experimental.ode.odeint
        ts = J.numpy.asarray(TIMES)

        def field(y: Any, t: Any, a: Any) -> Any:
            traces.append(1)
            return -a * y

        def solve(y: Any, a: Any, rtol: float = 1e-4) -> Any:
            out = odeint(field, y, ts, a, rtol=rtol, atol=1e-4)
            found.append(len(traces))
            return out

        one = J.numpy.ones(())
        for scale in (1.0, 2.0, 3.0):
            solve(one * scale, one)
        solve(one, 3.0)  # weakly typed
        solve(one, 3.0, 1e-3)
        solve(J.numpy.ones(2), one)
        for a in (2.0, 3.0):
            J.grad(lambda a: solve(one, a)[-1])(a)
        return found

    assert counts(tinyjax) == counts(__import__("jax"))


def test_repeated_calls_compile_nothing():
    solve = lambda a: odeint(decay, jnp.ones(2), jnp.asarray(TIMES), a, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(solve(1.0)[-1], np.exp(-2.0), rtol=1e-5)
    with tinyjax.record_rewrites() as log:
        solve(2.0)
    assert not log.passes


def decay(y: Any, t: Any, k: Any) -> Any:
    return -k * y


def test_a_known_solution_and_its_derivatives():
    total = lambda k: odeint(decay, jnp.array([2.0]), jnp.array(TIMES), k).sum()
    exact = lambda k, n: (2.0 * (-TIMES) ** n * np.exp(-k * TIMES)).sum()
    np.testing.assert_allclose(total(1.5), exact(1.5, 0), rtol=1e-7)
    np.testing.assert_allclose(tinyjax.grad(total)(1.5), exact(1.5, 1), rtol=1e-6)
    second = tinyjax.grad(tinyjax.grad(total))(1.5)
    np.testing.assert_allclose(second, exact(1.5, 2), rtol=1e-5)


def test_captured_values_are_differentiated():
    def total(k: Any) -> Any:
        return odeint(lambda y, t: -k * y, jnp.array([1.0]), jnp.array(TIMES)).sum()

    exact = (-TIMES * np.exp(-1.5 * TIMES)).sum()
    np.testing.assert_allclose(tinyjax.grad(total)(1.5), exact, rtol=1e-6)


def test_integers_among_the_arguments_have_no_derivative():
    def total(k: Any, n: Any) -> Any:
        field = lambda y, t, k, n: -k * n * y
        return odeint(field, jnp.array([1.0]), jnp.array(TIMES), k, n).sum()

    exact = (-2 * TIMES * np.exp(-3.0 * TIMES)).sum()
    np.testing.assert_allclose(tinyjax.grad(total)(1.5, 2), exact, rtol=1e-6)


def test_batched():
    last = lambda k: odeint(decay, 1.0, jnp.array(TIMES), k)[-1]
    ks = np.array([0.5, 1.0, 3.0])
    np.testing.assert_allclose(tinyjax.vmap(last)(ks), np.exp(-ks * 2.0), rtol=1e-6)


def test_loose_tolerances_take_fewer_steps_and_are_less_exact():
    ts = jnp.array([0.0, 2.0])
    wave = lambda y, t: jnp.stack([y[1], -y[0]])
    error = lambda tol: abs(
        float(odeint(wave, jnp.array([0.0, 1.0]), ts, rtol=tol, atol=tol)[1, 0]) - np.sin(2.0)
    )
    assert error(1e-10) < 1e-8 < error(1e-3) < 1e-2


def test_mxstep_bounds_the_steps_and_hmax_their_size():
    ts = jnp.array([0.0, 1.0])
    stuck = odeint(decay, 1.0, ts, 200.0, mxstep=2)
    assert abs(float(stuck[1]) - np.exp(-200.0)) > 1e-3
    spike = lambda y, t: jnp.exp(-(((t - 0.5) / 0.01) ** 2)) * 1.0
    careful = odeint(spike, 0.0, ts, hmax=0.01)
    np.testing.assert_allclose(careful[1], 0.01 * np.sqrt(np.pi), rtol=1e-4)


ERRORS: dict[str, Case] = {
    "argument": lambda J: J.experimental.ode.odeint(
        lambda y, t, a: y, 1.0, J.numpy.array(TIMES), "a"
    ),
    "times": lambda J: J.experimental.ode.odeint(lambda y, t: y, 1.0, J.numpy.arange(3)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_jax(name: str):
    raises(ERRORS[name])
