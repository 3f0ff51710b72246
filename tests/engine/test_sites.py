"""The user's line of each equation, through derivatives and batching; debug_nans and debug_infs."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp

x3 = np.arange(3.0, dtype="f4")


def lines(fun, *args):
    """Operation, text of the user's line, and mark of each equation of a jaxpr."""
    text = jax.make_jaxpr(fun)(*args).pretty_print(source_info=True)
    found = []
    for line in text.splitlines():
        match = re.search(r"= (\w+).*# test_sites.py:(\d+)(?: in \S+)?(?: \((.*)\))?$", line)
        if match:
            op, number, mark = match.groups()
            with open(__file__) as source:
                found.append((op, source.readlines()[int(number) - 1].strip(), mark or ""))
    return found


def layer(x):
    y = jnp.tanh(x)
    return jnp.sin(y)


def test_equations_name_the_line_that_made_them():
    assert lines(layer, x3) == [
        ("tanh", "y = jnp.tanh(x)", ""),
        ("sin", "return jnp.sin(y)", ""),
    ]


def test_plain_text_has_no_lines():
    assert "#" not in str(jax.make_jaxpr(layer)(x3))
    assert "#" not in jax.make_jaxpr(layer)(x3).pretty_print()


def test_equations_of_inner_jaxprs_know_their_lines_and_are_shown_once():
    f = jax.checkpoint(layer)
    made = jax.make_jaxpr(lambda x: f(x) + f(2 * x))(x3)
    first, second = (e.params["jaxpr"] for e in made.eqns if e.primitive.name == "remat2")
    number = layer.__code__.co_firstlineno
    assert [str(e.source_info) for e in first.eqns] == [
        f"test_sites.py:{number + i} in layer" for i in (1, 2)
    ]
    assert first.eqns is second.eqns


def test_equations_of_a_derivative_name_the_line_they_derive_from():
    found = lines(jax.grad(lambda x: layer(x).sum()), x3)
    back = [(op, line) for op, line, mark in found if mark.startswith("transpose")]
    assert ("mul", "y = jnp.tanh(x)") in back and ("mul", "return jnp.sin(y)") in back
    assert ("cos", "return jnp.sin(y)", "jvp()") in found


def test_lines_survive_batching():
    assert lines(jax.vmap(layer), np.ones((2, 3), "f4")) == lines(layer, x3)


def test_bodies_of_loops_and_calls_have_lines():
    def step(c, x):
        d = jnp.sin(c)
        return d * x, None

    def loss(c):
        return jax.lax.scan(step, jax.jit(layer)(c), x3)[0]

    found = lines(loss, 1.0)
    assert ("tanh", "y = jnp.tanh(x)", "") in found
    assert ("sin", "d = jnp.sin(c)", "") in found and ("mul", "return d * x, None", "") in found
    found = lines(jax.grad(loss), 1.0)
    assert ("mul", "return d * x, None", "transpose(jvp())") in found
    assert ("cos", "d = jnp.sin(c)", "jvp()") in found


def test_equal_functions_keep_their_own_lines():
    def one(x):
        return jnp.cos(x)

    def two(x):
        return jnp.cos(x)  # another line, the same body

    assert jax.jit(one).trace(x3).body is jax.jit(two).trace(x3).body
    assert lines(one, x3) != lines(two, x3)
    assert lines(one, x3)[0][1] == "return jnp.cos(x)"


def test_equations_of_the_object_carry_their_source():
    eqn = jax.make_jaxpr(layer)(x3).eqns[0]
    assert "test_sites.py" in str(eqn.source_info)


# --- debug_nans and debug_infs ----------------------------------------------------------------------


def log1(x):
    return jnp.log(x - 1)


def masked_root(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0)


def loop(x):
    return jax.lax.scan(lambda c, _: (jnp.log(c), None), x, None, length=5)[0]


def branch(x):
    return jax.lax.cond(x < 9, lambda x: jnp.log(-x), lambda x: x, x)


def search(x):
    return jax.lax.while_loop(lambda c: c > 0, lambda c: jnp.log(c - 2), x)


CASES = [
    (log1, x3, "log", "return jnp.log(x - 1)"),
    (jax.jit(log1), x3, "log", "return jnp.log(x - 1)"),
    (jax.jit(lambda x: jnp.sin(log1(x))), x3, "log", "return jnp.log(x - 1)"),
    (jax.vmap(log1), x3, "log", "return jnp.log(x - 1)"),
    (jax.grad(masked_root), 0.0, "div", "return jnp.where(x > 0, jnp.sqrt(x), 0.0)"),
    (jax.jit(jax.grad(masked_root)), 0.0, "div", "return jnp.where(x > 0, jnp.sqrt(x), 0.0)"),
    (jax.grad(jax.jit(masked_root)), 0.0, "div", "return jnp.where(x > 0, jnp.sqrt(x), 0.0)"),
    (loop, 3.0, "log", "return jax.lax.scan(lambda c, _: (jnp.log(c), None), x, None, length=5)[0]"),
    (jax.jit(loop), 3.0, "log", "return jax.lax.scan(lambda c, _: (jnp.log(c), None), x, None"),
    (jax.jit(branch), 3.0, "log", "lambda x: jnp.log(-x)"),
    (jax.jit(search), 3.5, "log", "lambda c: jnp.log(c - 2)"),
    (lambda x: x / x, jnp.asarray(x3), "div", "lambda x: x / x, jnp"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)))
def test_debug_nans_names_the_operation_and_the_line(case):
    fun, x, op, line = CASES[case]
    with jax.debug_nans(True), pytest.raises(FloatingPointError) as caught:
        fun(x)
    assert str(caught.value).startswith(f"invalid value (nan) encountered in {op}.")
    assert line in str(caught.value)
    assert ("transpose" in str(caught.value)) == ("sqrt" in line)
    fun(x)  # nothing is checked without the option


def test_nans_that_are_masked_are_nobodys_fault():
    with jax.debug_nans(True):
        out = jax.jit(lambda x: jnp.where(x > 1, log1(x), 0.0))(x3)
    np.testing.assert_allclose(out, [0, 0, 0])


def test_debug_infs():
    with jax.debug_infs(True):
        with pytest.raises(FloatingPointError, match=r"invalid value \(inf\) encountered in exp"):
            jax.jit(jnp.exp)(np.float32(1000))
        with pytest.raises(FloatingPointError, match=r"invalid value \(inf\) encountered in div"):
            1 / jnp.zeros(2)
        assert np.isnan(jax.jit(jnp.log)(np.float32(-1)))


def test_donated_arguments_stay_when_nans_are_looked_for():
    x = jnp.asarray(x3)
    with jax.debug_nans(True):
        jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.tolist() == [0, 1, 2]


def test_programs_with_effects_are_checked_too():
    def f(x):
        jax.debug.callback(lambda v: None, x)
        return jnp.log(x)

    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="in log"):
        jax.jit(f)(-1.0)


def reciprocal(x):
    return 1 / x  # the line to be named


AROUND = {
    "jit": lambda f: jax.jit(f),
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), c), x, None, length=1)[0],
    "while": lambda f: (
        lambda x: jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]
    ),
    "cond": lambda f: lambda x: jax.lax.cond(x < 1, f, lambda x: x, x),
    "checkpoint": lambda f: jax.checkpoint(f),
}
DERIVED = {
    "value": lambda f: f,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x + 1,)),
    "grad": lambda f: jax.grad(f),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x + 1),
}


@pytest.mark.parametrize("derived", DERIVED)
@pytest.mark.parametrize("around", AROUND)
def test_the_line_is_named_after_the_body_was_compiled_without_looking(around, derived):
    """Equal bodies are one object; a rewrite that ends at the same body does not lose its lines."""
    if (around, derived) == ("while", "grad"):
        return
    f = lambda: jax.jit(DERIVED[derived](AROUND[around](reciprocal)))
    kept = f()
    kept(np.float32(0))
    line = reciprocal.__code__.co_firstlineno + 1
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=f"test_sites.py:{line} in"):
        f()(np.float32(0))
