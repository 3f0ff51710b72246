"""custom_root, custom_linear_solve and bounded_while: derivatives at the solution, and of loops."""

from __future__ import annotations

from typing import Any

import jax as oracle
import jax.flatten_util as oracle_flatten_util
import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, check, numbers, raises
from tinyjax import lax
from tinyjax import numpy as jnp

assert oracle_flatten_util  # jax loads it on request only
A = np.float32([[4, 1], [0.5, 3]])
V = np.float32([1, 2])
S = np.float32([2, 3, 5])


def square_root(J: Any, aux: bool = False) -> Any:
    """Newton in a while loop, which has no reverse mode of its own."""

    def root(a: Any) -> Any:
        f = lambda x: x**2 - a

        def newton(f: Any, x: Any) -> Any:
            step = lambda s: s - f(s) / J.grad(f)(s)
            found = J.lax.while_loop(lambda s: abs(f(s)) > 1e-5, step, x)
            return (found, {"residual": f(found) * 0}) if aux else found

        return J.lax.custom_root(f, 1.0, newton, lambda g, y: y / g(1.0), has_aux=aux)

    return root


def fixed_point(J: Any) -> Any:
    """The fixed point of a contraction over a tree."""

    def solve(w: Any, x: Any) -> Any:
        step = lambda t: {"u": 0.3 * J.numpy.tanh(w @ t["v"]), "v": 0.2 * t["u"] + x}
        f = lambda t: J.tree.map(lambda p, q: p - q, step(t), t)
        run = lambda f, t: J.lax.fori_loop(0, 30, lambda _, s: step(s), t)

        def tangent(g: Any, y: Any) -> Any:
            flat, back = J.flatten_util.ravel_pytree(y)
            matrix = J.jacobian(lambda z: J.flatten_util.ravel_pytree(g(back(z)))[0])(flat)
            return back(J.numpy.linalg.solve(matrix, flat))

        zero = J.numpy.zeros(2)
        out = J.lax.custom_root(f, {"u": zero, "v": zero}, run, tangent)
        return out["u"].sum() + (out["v"] ** 2).sum()

    return solve


ROOTS: dict[str, Case] = {
    "value": lambda J: square_root(J)(2.0),
    "grad": lambda J: J.grad(square_root(J))(2.0),
    "second": lambda J: J.grad(J.grad(square_root(J)))(2.0),
    "third": lambda J: J.jvp(J.grad(J.grad(square_root(J))), (2.0,), (1.0,)),
    "jvp": lambda J: J.jvp(square_root(J), (2.0,), (1.0,)),
    "jit grad": lambda J: J.jit(J.grad(square_root(J)))(2.0),
    "grad jit": lambda J: J.grad(J.jit(square_root(J)))(2.0),
    "vmap": lambda J: J.vmap(square_root(J))(S),
    "vmap grad": lambda J: J.vmap(J.grad(square_root(J)))(S),
    "grad of vmap": lambda J: J.grad(lambda s: J.vmap(square_root(J))(s).sum())(S),
    "scan": lambda J: J.lax.scan(lambda c, a: (c + J.grad(square_root(J))(a), c), 0.0, S),
    "grad of scan": lambda J: J.grad(
        lambda s: J.lax.scan(lambda c, a: (c + square_root(J)(a), None), 0.0, s)[0]
    )(S),
    "checkpoint": lambda J: J.grad(J.checkpoint(square_root(J)))(2.0),
    "aux": lambda J: square_root(J, aux=True)(2.0),
    "aux grad": lambda J: J.grad(square_root(J, aux=True), has_aux=True)(2.0),
    "tree": lambda J: fixed_point(J)(A * 0.3, V),
    "tree grad": lambda J: J.grad(fixed_point(J), (0, 1))(A * 0.3, V),
    "tree hessian": lambda J: J.hessian(fixed_point(J))(A * 0.3, V),
}  # fmt: skip


@pytest.mark.parametrize("name", ROOTS)
def test_custom_root_is_that_of_jax(name: str):
    check(ROOTS[name], 2e-4, weak=False)


def solved(J: Any, a: Any, v: Any, aux: bool = False, **options: Any) -> Any:
    def solve(matvec: Any, b: Any) -> Any:
        x = J.numpy.linalg.solve(J.jacobian(matvec)(b), b)
        return (x, {"steps": 3}) if aux else x

    options = options or {"transpose_solve": solve}
    return J.lax.custom_linear_solve(lambda x: a @ x, v, solve, has_aux=aux, **options)


def energy(J: Any, **options: Any) -> Any:
    return lambda a, v: (solved(J, a, v, **options) ** 2).sum()


SOLVES: dict[str, Case] = {
    "value": lambda J: solved(J, A, V),
    "aux": lambda J: solved(J, A, V, True),
    "aux grad": lambda J: J.grad(lambda v: solved(J, A, v, True)[0].sum())(V),
    "grad": lambda J: J.grad(energy(J), (0, 1))(A, V),
    "jit grad": lambda J: J.jit(J.grad(energy(J), (0, 1)))(A, V),
    "hessian": lambda J: J.hessian(energy(J), (0, 1))(A, V),
    "reverse twice": lambda J: J.jacrev(J.jacrev(energy(J), 0), 1)(A, V),
    "forward of reverse of forward": lambda J: J.jacfwd(J.jacrev(J.jacfwd(energy(J))))(A, V),
    "jvp": lambda J: J.jvp(lambda a, v: solved(J, a, v), (A, V), (A + 1, V)),
    "forward without transpose": lambda J: J.jvp(
        lambda a, v: solved(J, a, v, transpose_solve=None), (A, V), (A, V)
    ),
    "symmetric": lambda J: J.grad(energy(J, symmetric=True), (0, 1))(A + A.T, V),
    "linear_transpose": lambda J: J.linear_transpose(lambda v: solved(J, A, v), V)(V),
    "vmap both": lambda J: J.vmap(lambda a, v: solved(J, a, v))(np.stack([A, 2 * A]), np.eye(2)),
    "vmap matrix": lambda J: J.vmap(J.grad(energy(J)), (0, None))(np.stack([A, 2 * A]), V),
    "vmap vector": lambda J: J.vmap(J.grad(energy(J), 1), (None, 0))(A, np.stack([V, 2 * V])),
    "grad of vmap": lambda J: J.grad(
        lambda a: J.vmap(lambda v: solved(J, a, v))(np.eye(2, dtype="f4")).prod()
    )(A),
    "scan": lambda J: J.grad(
        lambda a: J.lax.scan(lambda c, _: (solved(J, a, c), c), V, None, length=3)[0].sum()
    )(A),
    "linearize": lambda J: J.linearize(lambda v: solved(J, A, v), V)[1](V),
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVES)
def test_custom_linear_solve_is_that_of_jax(name: str):
    check(SOLVES[name], 2e-4, weak=False)


def test_the_solver_is_not_differentiated_through():
    """Its own derivative would be wrong on purpose."""

    def solve(matvec: Any, b: Any) -> Any:
        return lax.stop_gradient(jnp.linalg.solve(A, b))

    def value(v: Any) -> Any:
        return lax.custom_linear_solve(lambda x: A @ x, v, solve, lambda m, b: b * 7.0).sum()

    np.testing.assert_array_equal(tinyjax.grad(value)(V), [7.0, 7.0])


def test_captures_of_the_solver_are_followed():
    """A traced value that the solver closes over is that of the call."""

    def value(v: Any, shift: Any) -> Any:
        solve = lambda m, b: jnp.linalg.solve(A, b) + shift
        return lax.custom_linear_solve(lambda x: A @ x, v, solve, solve)

    plain = np.linalg.solve(A, V)
    np.testing.assert_allclose(tinyjax.jit(value)(V, 2.0), plain + 2, rtol=1e-5)
    both = tinyjax.vmap(value, (None, 0))(V, jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(both, [plain + 1, plain + 2], rtol=1e-5)


ERRORS: dict[str, Case] = {
    "tree of f": lambda J: J.lax.custom_root(lambda x: (x,), 1.0, lambda f, x: x, lambda g, y: y),
    "tree of solve": lambda J: J.lax.custom_root(
        lambda x: x, 1.0, lambda f, x: [x], lambda g, y: y
    ),
    "tree of tangent_solve": lambda J: J.lax.custom_root(
        lambda x: x, 1.0, lambda f, x: x, lambda g, y: [y]
    ),
    "no aux": lambda J: J.lax.custom_root(
        lambda x: x, 1.0, lambda f, x: x, lambda g, y: y, has_aux=True
    ),
    "tree of matvec": lambda J: J.lax.custom_linear_solve(lambda x: [x], V, lambda m, b: b),
    "shape of matvec": lambda J: J.lax.custom_linear_solve(lambda x: x[:1], V, lambda m, b: b),
    "shape of solve": lambda J: J.lax.custom_linear_solve(lambda x: x, V, lambda m, b: b[:1]),
    "no transpose": lambda J: J.grad(energy(J, transpose_solve=None))(A, V),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_jax(name: str):
    raises(ERRORS[name])


# --- bounded_while --------------------------------------------------------------------------------------


def doubled(limit: Any, x: Any, steps: int, base: int = 3) -> Any:
    return lax.bounded_while(
        lambda s: s[0] < limit,
        lambda s: (s[0] + 1.0, jnp.sin(s[1]) * x),
        (0.0, x),
        max_steps=steps,
        base=base,
    )


def looped(J: Any, limit: int, x: Any) -> Any:
    for _ in range(limit):
        y = x if _ == 0 else y
        y = J.numpy.sin(y) * x
    return x if limit == 0 else y


@pytest.mark.parametrize("steps", [0, 1, 3, 10, 27])
@pytest.mark.parametrize("limit", [0, 2, 9, 100])
def test_bounded_while_is_the_loop_up_to_its_bound(steps: int, limit: int):
    runs = min(steps, limit)
    count, value = doubled(float(limit), 0.9, steps)
    slope = tinyjax.grad(lambda x: doubled(float(limit), x, steps)[1])(0.9)
    assert float(count) == runs
    np.testing.assert_allclose(value, looped(oracle, runs, 0.9), rtol=1e-5)
    want = oracle.grad(lambda x: looped(oracle, runs, x) * 1.0)(0.9)
    np.testing.assert_allclose(slope, want, rtol=1e-4)


def test_bounded_while_composes():
    f = lambda limit, x: doubled(limit, x, 12)[1]
    xs, limits = numbers(3, low=0.5, high=1.0), np.float32([2, 5, 11])
    want = [oracle.hessian(lambda x: looped(oracle, int(n), x))(x) for n, x in zip(limits, xs)]
    second = tinyjax.jit(tinyjax.vmap(tinyjax.hessian(f, 1)))(limits, xs)
    np.testing.assert_allclose(second, want, rtol=1e-3)
    forward = tinyjax.jvp(lambda x: f(5.0, x), (0.9,), (1.0,))[1]
    np.testing.assert_allclose(forward, tinyjax.grad(f, 1)(5.0, 0.9), rtol=1e-5)


def test_finished_examples_do_not_poison_gradients():
    """1/s would overflow if it ran on for the example that is done."""
    f = lambda n, x: lax.bounded_while(
        lambda s: s[0] < n, lambda s: (s[0] + 1, 1.0 / (s[1] - 1.0)), (0.0, x), max_steps=8, base=2
    )[1]
    slopes = tinyjax.vmap(tinyjax.grad(f, 1))(np.float32([0, 2]), np.float32([1.0, 3.0]))
    assert np.isfinite(slopes).all() and float(slopes[0]) == 1.0


def test_backward_memory_of_bounded_while_grows_with_the_logarithm():
    def residual_bytes(steps: int) -> int:
        f = lambda x: doubled(1e9, x, steps, 4)[1].sum()
        staged = tinyjax.jit(lambda x: tinyjax.grad(f)(x)).lower(np.ones(64, "f4"))
        return staged.cost["peak bytes"]

    small, large = residual_bytes(16), residual_bytes(1024)
    plain = 1024 * 64 * 4  # one value per step
    assert large < plain / 2 and large < 6 * small


def test_bounded_while_promotes_as_the_loop_does():
    """A weak initial value takes the dtype that the body returns."""
    for loop in (lax.while_loop, lambda *a: lax.bounded_while(*a, max_steps=9)):
        found = loop(lambda s: s < 2, lambda s: s + np.float16(0.5), 0)
        assert (float(found), found.dtype) == (2.0, np.float16)


def test_bounded_while_checks_its_options():
    with pytest.raises(ValueError, match="max_steps"):
        doubled(1.0, 1.0, -1)
    with pytest.raises(ValueError, match="base"):
        doubled(1.0, 1.0, 4, base=1)
    with pytest.raises(TypeError):
        lax.bounded_while(lambda s: s < 3, lambda s: (s, s), 0.0, max_steps=4)


def test_effects_of_a_solver_happen_once(capfd):
    def root(a: Any) -> Any:
        def newton(f: Any, x: Any) -> Any:
            tinyjax.debug.print("guess {}", x)
            return lax.fori_loop(0, 5, lambda _, s: s - f(s) / tinyjax.grad(f)(s), x)

        return lax.custom_root(lambda x: x**2 - a, 1.0, newton, lambda g, y: y / g(1.0))

    def halved(v: Any) -> Any:
        def solve(matvec: Any, b: Any) -> Any:
            tinyjax.debug.print("solve {}", b)
            return b / 2

        return lax.custom_linear_solve(lambda x: 2.0 * x, v, solve, solve)

    for f, word in ((root, "guess 1.0"), (halved, "solve 2.0")):
        for run in (f, tinyjax.grad(f), tinyjax.jit(tinyjax.grad(f))):
            run(2.0)
            tinyjax.effects_barrier()
            assert capfd.readouterr().out.splitlines() == [word]
