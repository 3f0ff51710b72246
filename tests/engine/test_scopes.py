"""Options of jit, and small tools around tracing and memory."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, check, numbers, raises
from tinyjax import jit
from tinyjax import numpy as jnp

X = numbers(3)

CASES: dict[str, Case] = {
    "inline": lambda J: J.jit(lambda x: J.jit(J.numpy.sin, inline=True)(x) * 2)(X),
    "keep_unused": lambda J: J.jit(lambda x, y: x * 2, keep_unused=True)(X, 3.0),
    "decorator factory": lambda J: J.jit(static_argnames="n")(lambda x, n: x * n)(X, n=3),
    "eval_shape": lambda J: [
        (s.shape, str(s.dtype)) for s in J.tree.leaves(
            J.jit(lambda x: {"a": x.sum(), "b": x > 0}).eval_shape(X)
        )
    ],
    "trace": lambda J: J.jit(lambda x: x * 2).trace(X).out_info.shape,
    "trace and lower": lambda J: J.jit(lambda x: x * 2).trace(X).lower().compile()(X),
    "lower of shapes": lambda J: J.jit(lambda x: x * 2).lower(
        J.ShapeDtypeStruct((3,), np.float32)
    ).compile()(X),
    "named_call": lambda J: J.jit(J.named_call(lambda x: x + 1, name="step"))(X),
    "compile time": lambda J: J.jit(lambda x: x * compile_time(J))(X),
    "compile time of what is traced inside": lambda J: traces_inside(J, 2.0),
    "compile time of what is traced inside a jit": lambda J: J.jit(lambda x: traces_inside(J, x))(X),
    "compile time in a grad of a vmap": lambda J: J.grad(
        lambda x: J.vmap(lambda y: traces_inside(J, x * y)[0])(X).sum()
    )(2.0),
    "compile time of a traced value": lambda J: J.jit(lambda x: traced_inside(J, x))(X),
}  # fmt: skip


def compile_time(J: Any) -> float:
    """A value that Python needs while a function is traced."""
    with J.ensure_compile_time_eval():
        return float(J.numpy.sin(J.numpy.arange(3.0)).sum())


def traces_inside(J: Any, x: Any) -> Any:
    """Functions traced at compile time that look at values which do not depend on arguments."""

    def count() -> int:
        return int(J.numpy.arange(3).sum()) + int(J.jit(lambda y: y * 2)(3.0))

    with J.ensure_compile_time_eval():
        table = J.jit(lambda y: y * count() + J.grad(lambda z: z ** count())(1.0))(x)
        last, _ = J.lax.scan(lambda c, t: (c * t + count(), None), 0.0, J.numpy.arange(3.0))
        looped = J.lax.while_loop(lambda c: c < count(), lambda c: c + count(), 0)
        chosen = J.lax.cond(True, lambda v: v * count(), lambda v: v, x)
    return table + last + chosen, J.vmap(lambda y: y + float(last))(X), looped


def traced_inside(J: Any, x: Any) -> Any:
    with J.ensure_compile_time_eval():
        return x * 2


@pytest.mark.parametrize("name", CASES)
def test_options_and_scopes_are_those_of_jax(name: str):
    check(CASES[name], 1e-6, weak=False)


def test_a_traced_value_has_no_value_at_compile_time():
    raises(lambda J: J.jit(lambda x: float(traced_inside(J, x)))(1.0))


def counted() -> tuple[Any, list[int]]:
    runs: list[int] = []
    return jit(lambda x: (runs.append(1), x * 2)[1]), runs


def test_clear_cache_forgets_one_function():
    (f, runs), (g, others) = counted(), counted()
    for h in (f, f, g):
        h(X)
    f.clear_cache()
    f(X), g(X)
    assert (len(runs), len(others)) == (2, 1)


def test_clear_caches_forgets_all():
    f, runs = counted()
    f(X)
    tinyjax.clear_caches()
    f(X)
    assert len(runs) == 2


def test_max_traces_bounds_the_signatures():
    f = jit(lambda x: x * 2, max_traces=2)
    f(X), f(1.0), f(X), f(2.0)
    with pytest.raises(Exception, match="may be traced 2 times"):
        f(np.ones((2, 2), "f4"))
    assert float(f(3.0)) == 6.0


def test_live_arrays_are_those_that_hold_memory():
    x = jnp.arange(4321.0)
    sizes = lambda: [a.size for a in tinyjax.live_arrays()].count(4321)
    assert sizes() == 1 and any(a is x for a in tinyjax.live_arrays("cpu"))
    del x
    gc.collect()
    assert sizes() == 0
    with pytest.raises(RuntimeError, match="xyz"):
        tinyjax.live_arrays("xyz")
