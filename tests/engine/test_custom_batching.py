"""custom_vmap and sequential_vmap: the user's rule decides what vmap does, in derivatives too."""

from __future__ import annotations

from typing import Any

import jax as oracle
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


# --- effects of rules -----------------------------------------------------------------------------


def printing(J: Any, own: bool = False, io: bool = False) -> Any:
    """A function whose rule prints, and calls back, where the function may not."""

    @J.custom_batching.custom_vmap
    def f(x, y):
        if own:
            J.debug.print("alone {:.2f}", x)
        return J.numpy.sin(x) * y

    @f.def_vmap
    def rule(size: int, on: list[bool], x: Any, y: Any) -> Any:
        x, y = (v if o else J.numpy.full(size, v) for v, o in zip((x, y), on, strict=True))
        J.debug.print("rule for {:.2f}", J.numpy.sum(x))
        if io:
            x = J.experimental.io_callback(lambda v: np.asarray(v) * 2, like(J, x), x)
        return J.numpy.cos(x) * y, True

    return f


def like(J: Any, x: Any) -> Any:
    return J.ShapeDtypeStruct(x.shape, x.dtype)


def shown(J: Any, x: Any) -> Any:
    J.debug.print("between {:.2f}", x)
    return x


EFFECTS: dict[str, Any] = {
    "vmap": lambda J, f: J.vmap(f)(X, Y),
    "jit": lambda J, f: J.jit(J.vmap(f))(X, Y),
    "vmap of jit": lambda J, f: J.vmap(J.jit(f))(X, Y),
    "vmap of vmap": lambda J, f: J.vmap(J.vmap(f, (0, None)), (None, 0))(X, Y),
    "checkpoint": lambda J, f: J.vmap(J.checkpoint(f))(X, Y),
    "scan": lambda J, f: J.vmap(lambda x: J.lax.scan(lambda c, y: (f(c, y), c), x, Y))(X),
    "jitted scan of calls": lambda J, f: J.jit(
        J.vmap(lambda x: J.lax.scan(lambda c, y: (J.jit(f)(c, y), c), x, Y))
    )(X),
    "while": lambda J, f: J.vmap(
        lambda x: J.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, f(s[1], x)), (0, x))
    )(X),
    "while with a predicate per example": lambda J, f: J.vmap(
        lambda x: J.lax.while_loop(lambda c: c < 3, lambda c: c + J.numpy.abs(f(c, x)) + 1, x)
    )(X),
    "cond": lambda J, f: J.vmap(
        lambda x: J.lax.scan(
            lambda c, y: (J.lax.cond(y > 0, f, lambda c, y: c, c, y), c), x, J.numpy.array(Y)
        )
    )(X),
    "cond with a predicate per example": lambda J, f: J.vmap(
        lambda x: J.lax.cond(x > 0.7, lambda: f(x, x), lambda: shown(J, x))
    )(X),
    "map in batches": lambda J, f: J.lax.map(lambda x: f(x, x), X, batch_size=2),
    "before and after effects": lambda J, f: J.vmap(lambda x, y: f(shown(J, f(x, y)), y))(X, Y),
    "before and after effects in a loop": lambda J, f: J.vmap(
        lambda x: J.lax.fori_loop(0, 2, lambda i, c: f(shown(J, f(c, x)), x), x)
    )(X),
}  # fmt: skip
DERIVATIVES: dict[str, Any] = {
    "jvp of vmap": lambda J, f: J.jvp(J.vmap(f), (X, Y), (Y, X)),
    "vmap of jvp": lambda J, f: J.vmap(lambda x, y: J.jvp(f, (x, y), (y, x)))(X, Y),
    "grad of vmap": lambda J, f: J.grad(lambda x: J.vmap(f)(x, Y).sum())(J.numpy.array(X)),
}


@pytest.mark.parametrize("io", [False, True])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", EFFECTS | DERIVATIVES)
def test_rules_have_their_effects_as_in_jax(name, own, io, capsys):
    """As often as in JAX, and where they depend on each other in this order."""
    if io and (name in DERIVATIVES or "per example" in name):
        return  # JAX refuses both
    run = (EFFECTS | DERIVATIVES)[name]
    found = []
    for J in (tinyjax, oracle):
        out = run(J, printing(J, own, io))
        J.effects_barrier()
        leaves = [np.asarray(x) for x in J.tree.leaves(out)]
        found.append((leaves, capsys.readouterr().out.splitlines()))
    (ours, printed), (theirs, expected) = found
    assert sorted(printed) == sorted(expected) and "rule" in "".join(printed)
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5)
    if name == "before and after effects":
        assert [line.split()[0] for line in printed] == ["rule", *["between"] * 3, "rule"]


def test_effects_of_a_rule_that_have_no_place_are_refused():
    f = printing(tinyjax)
    with pytest.raises(NotImplementedError, match="rule of a custom_vmap function prints") as e:
        tinyjax.vmap(lambda x: tinyjax.lax.while_loop(lambda c: f(c, x) < 2, lambda c: c + 1, x))(X)
    assert str(e.value).endswith("Take the effects out of the rule given to def_vmap.")
