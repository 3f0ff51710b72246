"""custom_vmap and sequential_vmap: the user's rule decides what vmap does, in derivatives too."""

from __future__ import annotations

from typing import Any

import jax.custom_batching as oracle_custom_batching
import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, check, raises
from tinyjax import numpy as jnp
from tinyjax.custom_batching import custom_vmap, sequential_vmap

assert oracle_custom_batching  # jax loads it on request only
X = np.float32([0.5, 1, 2])
Y = np.float32([3, -1, 4])


def telling(J: Any) -> Any:
    """Batched it computes something else, so that it is seen which one ran."""
    f = J.custom_batching.custom_vmap(lambda x, y: {"a": J.numpy.sin(x) * y, "b": y})

    @f.def_vmap
    def rule(size: int, on: list[bool], x: Any, y: Any) -> Any:
        assert isinstance(on, list) and size == 3
        return {"a": x**3 * y, "b": y * 10}, {"a": on[0] or on[1], "b": on[1]}

    return f


CASES: dict[str, Case] = {
    "plain": lambda J: telling(J)(1.0, 2.0),
    "keywords": lambda J: telling(J)(y=1.0, x=2.0),
    "vmap": lambda J: J.vmap(telling(J))(X, Y),
    "one batched": lambda J: J.vmap(telling(J), (0, None))(J.numpy.array(X), 2.0),
    "other batched": lambda J: J.vmap(telling(J), (None, 0))(2.0, J.numpy.array(X)),
    "last axis": lambda J: J.vmap(
        J.custom_batching.sequential_vmap(lambda x: x.sum() * x), in_axes=1, out_axes=1
    )(np.outer(X, Y[:2])),
    "jit": lambda J: J.jit(J.vmap(telling(J)))(X, Y),
    "vmap of jit": lambda J: J.vmap(J.jit(telling(J)))(X, Y),
    "scan": lambda J: J.lax.scan(
        lambda c, x: (c + J.vmap(telling(J))(c, x)["a"], None), X, np.stack([X, Y])
    )[0],
    "vmap of scan": lambda J: J.vmap(
        lambda c: J.lax.scan(lambda c, x: (telling(J)(c, x)["a"], None), c, Y)[0]
    )(X),
    "jvp": lambda J: J.jvp(telling(J), (1.0, 2.0), (1.0, 0.5)),
    "vmap of jvp": lambda J: J.vmap(lambda *a: J.jvp(telling(J), a, a))(X, Y),
    "jvp of vmap": lambda J: J.jvp(J.vmap(telling(J)), (X, Y), (Y, X)),
    "grad of vmap": lambda J: J.grad(lambda x: J.vmap(telling(J))(x, Y)["a"].sum())(X),
    "sequential": lambda J: J.vmap(J.custom_batching.sequential_vmap(lambda x, y: x * y.sum()))(
        X, np.outer(X, Y)
    ),
    "sequential shared": lambda J: J.vmap(
        J.custom_batching.sequential_vmap(lambda x, t: (x * t["u"].sum(), t["u"])), (0, None)
    )(X, {"u": Y}),
    "sequential jvp": lambda J: J.jvp(
        J.vmap(J.custom_batching.sequential_vmap(lambda x: J.numpy.sin(x) * x)), (X,), (Y,)
    ),
    "inside custom_vjp": lambda J: J.vmap(J.grad(with_vjp(J)))(X),
}  # fmt: skip


def with_vjp(J: Any) -> Any:
    f = J.custom_batching.custom_vmap(lambda x: J.numpy.sin(x))
    f.def_vmap(lambda size, on, x: (x**3, True))
    g = J.custom_vjp(f)
    g.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * 7 * x,))
    return g


@pytest.mark.parametrize("name", CASES)
def test_custom_vmap_is_that_of_jax(name: str):
    check(CASES[name], weak=False)


def cube_when_batched() -> Any:
    f = custom_vmap(jnp.sin)
    f.def_vmap(lambda size, on, x: (x**3, True))
    return f


def test_reverse_mode_follows_the_function_and_the_rule():
    """JAX has no reverse mode here; ours is that of whichever of the two ran."""
    f = cube_when_batched()
    grad, vmap = tinyjax.grad, tinyjax.vmap
    np.testing.assert_allclose(grad(f)(1.0), np.cos(1.0), rtol=1e-6)
    np.testing.assert_allclose(vmap(grad(f))(X), 3 * X**2, rtol=1e-6)
    np.testing.assert_allclose(vmap(grad(grad(f)))(X), 6 * X, rtol=1e-6)
    np.testing.assert_allclose(tinyjax.jit(vmap(grad(f)))(X), 3 * X**2, rtol=1e-6)
    np.testing.assert_allclose(grad(lambda x: vmap(grad(f))(x).sum())(X), 6 * X, rtol=1e-6)
    np.testing.assert_allclose(vmap(tinyjax.hessian(f))(X), 6 * X, rtol=1e-6)


def test_batched_twice_the_rule_is_batched():
    f = cube_when_batched()
    rows = jnp.array(np.outer(X, Y))
    np.testing.assert_allclose(tinyjax.vmap(tinyjax.vmap(f))(rows), np.outer(X, Y) ** 3, rtol=1e-6)


def test_a_derivative_batched_over_tangents_alone():
    f = custom_vmap(lambda x, y: x * y)
    f.def_vmap(lambda size, on, x, y: (x * y * 2, on[0] or on[1]))
    push = lambda t: tinyjax.jvp(lambda x: f(x, 3.0), (1.0,), (t,))[1]
    np.testing.assert_allclose(tinyjax.vmap(push)(X), 6 * X)
    pull = tinyjax.vjp(lambda x: f(x, 3.0), 1.0)[1]
    np.testing.assert_allclose(tinyjax.vmap(pull)(X)[0], 6 * X)


def test_captured_tracers_are_arguments():
    def outer(a: Any, x: Any) -> Any:
        f = custom_vmap(lambda x: x * a)
        f.def_vmap(lambda size, on, x: (x * a * 100, True))
        return tinyjax.vmap(f)(x)

    np.testing.assert_allclose(tinyjax.jit(outer)(2.0, X), 200 * X)
    np.testing.assert_allclose(
        tinyjax.grad(lambda a: outer(a, X).sum())(2.0), 100 * X.sum(), rtol=1e-6
    )


def test_a_batched_capture_is_refused():
    def per_example(a: Any) -> Any:
        f = custom_vmap(lambda x: x * a)
        f.def_vmap(lambda size, on, x: (x, True))
        return f(2.0)

    with pytest.raises(ValueError, match="closes over a value that vmap maps over"):
        tinyjax.vmap(per_example)(X)


def test_sequential_vmap_calls_examples_one_by_one(capfd):
    f = sequential_vmap(lambda x: (tinyjax.debug.print("x={}", x), x + 1)[1])
    np.testing.assert_allclose(tinyjax.vmap(f)(X), X + 1)
    tinyjax.effects_barrier()
    assert capfd.readouterr().out.split() == ["x=0.5", "x=1.0", "x=2.0"]


def bad(rule: Any) -> Case:
    def case(J: Any) -> Any:
        f = J.custom_batching.custom_vmap(lambda x: (x, x))
        f.def_vmap(rule)
        return J.vmap(f)(X)

    return case


ERRORS: dict[str, Case] = {
    "no rule": lambda J: J.custom_batching.custom_vmap(lambda x: x)(1.0),
    "spec of another tree": bad(lambda size, on, x: ((x, x), True)),
    "output of another tree": bad(lambda size, on, x: (x, True)),
    "too many arguments": lambda J: telling(J)(1.0, 2.0, 3.0),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_jax(name: str):
    raises(ERRORS[name])


def test_outputs_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"returned f32\[\] where f32\[3\] is needed"):
        bad(lambda size, on, x: ((x.sum(), x), (True, True)))(tinyjax)
