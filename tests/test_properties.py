"""Laws of the transformations, on hypothesis-made programs with control flow and nested calls.

A program is a list of steps, each a map of a vector to a vector of the same length; steps with
bodies (loops, branches, calls, transformations) hold programs, which read the outer program's
variables. The laws need no oracle: jit(f) = f, vmap(f) = a Python loop, jvp = central differences,
<v, jvp(u)> = <vjp(v), u>, linear_transpose = the transposed matrix, a Hessian is symmetric.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinyjax
from tinyjax import lax
from tinyjax import numpy as jnp

N = 3
EXAMPLES = int(os.environ.get("TINYJAX_TEST_EXAMPLES", "20"))
MIX = np.cos(1.0 + np.arange(N * N)).reshape(N, N) / N
WEIGHTS = np.sin(2.0 + np.arange(N))


@pytest.fixture(autouse=True, scope="module")
def float64():
    with tinyjax.enable_x64(True):
        yield


@dataclass(frozen=True)
class Step:
    """A name of one of the tables below, a small number, and the programs of its bodies."""

    name: str
    number: int
    bodies: tuple[tuple[Step, ...], ...] = ()

    def __repr__(self) -> str:
        inner = "".join(f", {list(body)}" for body in self.bodies)
        return f"{self.name}({self.number}{inner})"


# Each gets x, the outer program's vector y, and the step's number. Values stay of order one.
PLAIN = {
    "sin": lambda x, y, k: jnp.sin(x + k),
    "tanh": lambda x, y, k: jnp.tanh(x * y),
    "bell": lambda x, y, k: jnp.exp(-x * x),
    "log1p": lambda x, y, k: jnp.log1p(x * x),
    "logistic": lambda x, y, k: tinyjax.nn.sigmoid(x),
    "power": lambda x, y, k: 1 / jnp.sqrt(1 + x**2),
    "divide": lambda x, y, k: x / (1 + y * y),
    "add": lambda x, y, k: x + y,
    "mul": lambda x, y, k: x * y,
    "where": lambda x, y, k: jnp.where(x > y, x, 0.5 * y),
    "maximum": lambda x, y, k: jnp.maximum(x, y - 0.1 * k),
    "flip": lambda x, y, k: x[::-1],
    "roll": lambda x, y, k: jnp.roll(x, k),
    "join": lambda x, y, k: jnp.concatenate([x[1:], y[:1]]),
    "matmul": lambda x, y, k: MIX @ x,
    "outer": lambda x, y, k: jnp.tanh(jnp.outer(x, y)).sum(k % 2),
    "cumsum": lambda x, y, k: jnp.cumsum(x) / N,
    "cumprod": lambda x, y, k: jnp.cumprod(jnp.tanh(x)),
    "sort": lambda x, y, k: jnp.sort(x),
    "take": lambda x, y, k: x[jnp.argsort(y)],
    "scatter": lambda x, y, k: x.at[np.array([k % N, 0])].add(y[:2]),
    "at static": lambda x, y, k: y.at[k % N].set(x[0]),
    "dynamic": lambda x, y, k: lax.dynamic_update_slice(
        y, lax.dynamic_slice(x, (jnp.argmax(y) % 2,), (2,)), (k % 2,)
    ),
    "softmax": lambda x, y, k: tinyjax.nn.softmax(x),
    "logsumexp": lambda x, y, k: x - tinyjax.nn.logsumexp(y),
    "norm": lambda x, y, k: x / jnp.sqrt(1 + (y * y).sum()),
    "solve": lambda x, y, k: jnp.linalg.solve(MIX + 2 * np.eye(N) + 0.1 * jnp.outer(y, y), x),
    "stop": lambda x, y, k: x * lax.stop_gradient(y),
    "complex": lambda x, y, k: jnp.real(jnp.exp(1j * x) * y),
    "named": lambda x, y, k: tinyjax.ad_checkpoint.checkpoint_name(x, "x") * 2,
}


def scan(x, y, k, body):
    c, ys = lax.scan(lambda c, row: (body(c) + row, jnp.sin(c)), x, jnp.stack([y, x, y])[: k % 4])
    return jnp.tanh(c + ys.sum(0))


def reversed_scan(x, y, k, body):
    return lax.scan(lambda c, i: (body(c) * 0.5, c[i]), x, np.arange(N), reverse=True)[1]


def fori(x, y, k, body):
    return lax.fori_loop(0, k % 4, lambda i, c: jnp.tanh(body(c)) + 0.1 * i, x)


def while_loop(x, y, k, body):
    return lax.while_loop(
        lambda c: (c[0] < 4) & (c[1].sum() < 9), lambda c: (c[0] + 1, jnp.tanh(body(c[1]))), (k, x)
    )[1]


def mapped_scalars(x, y, k, body):
    return lax.map(lambda a: body(jnp.full(N, a) * y).sum(), x)


def associative(x, y, k, body):
    return body(lax.associative_scan(lambda a, b: 0.5 * (a + b), jnp.stack([x, y, x]))[-1])


def custom(x, y, k, body):
    """A rule that is right, so that the laws hold: the body's own derivative."""

    @tinyjax.custom_jvp
    def f(x, y):
        return jnp.tanh(x) * y

    @f.defjvp
    def rule(primals, tangents):
        (x, y), (dx, dy) = primals, tangents
        t = jnp.tanh(x)
        return t * y, (1 - t * t) * y * dx + t * dy

    return f(body(x), y)


def custom_reverse(x, y, k, body):
    @tinyjax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.cos(x) * g,))
    return f(body(x))


WITH_BODIES = {
    "scan": scan,
    "reversed scan": reversed_scan,
    "fori": fori,
    "while": while_loop,
    "cond": lambda x, y, k, f, g: lax.cond(x.sum() > y[0], f, g, x),
    "switch": lambda x, y, k, f, g: lax.switch(k, [f, g, jnp.sin], x),
    "map": mapped_scalars,
    "associative": associative,
    "jit": lambda x, y, k, f: tinyjax.jit(f)(x),
    "function": lambda x, y, k, f: tinyjax.function(f)(x),
    "precompiled": lambda x, y, k, f: tinyjax.function(f, precompile=True)(x),
    "checkpoint": lambda x, y, k, f: tinyjax.checkpoint(f)(x),
    "vmap": lambda x, y, k, f: tinyjax.vmap(f)(jnp.stack([x, 0.5 * x])).sum(0),
    "vmap columns": lambda x, y, k, f: tinyjax.vmap(f, 1, 1)(jnp.outer(x, y)).mean(1),
    "psum": lambda x, y, k, f: tinyjax.vmap(lambda v: lax.psum(f(v), "i"), axis_name="i")(
        jnp.stack([x, y])
    )[0],
    "jvp": lambda x, y, k, f: tinyjax.jvp(f, (x,), (jnp.cos(y),))[1],
    "custom jvp": custom,
    "grad": lambda x, y, k, f: tinyjax.grad(lambda x: (f(x) * y).sum())(x),
    "vjp": lambda x, y, k, f: tinyjax.vjp(f, x)[1](jnp.cos(y))[0],
    "linearize": lambda x, y, k, f: tinyjax.linearize(f, x)[1](jnp.cos(y)),
    "custom vjp": custom_reverse,
}
REVERSE = {"grad", "vjp"}  # need a body that can be transposed
FORWARD = {"jvp", "linearize"}  # need a body without a custom_vjp
TWO_BODIES = {"cond", "switch"}


def run(program, x, y):
    for step in program:
        if step.name in PLAIN:
            x = PLAIN[step.name](x, y, step.number)
        else:
            bodies = [lambda v, b=b, outer=x: run(b, v, outer) for b in step.bodies]
            x = WITH_BODIES[step.name](x, y, step.number, *bodies)
    return x


def uses(program, names) -> bool:
    return any(s.name in names or any(uses(b, names) for b in s.bodies) for s in program)


@st.composite
def programs(draw, depth=2, without=frozenset(), size=4):
    """A tuple of steps; `without` names the kinds that may not occur at any depth."""
    made = []
    for _ in range(draw(st.integers(1, size))):
        nested = depth > 0 and draw(st.booleans())
        names = [n for n in (WITH_BODIES if nested else PLAIN) if n not in without]
        name = draw(st.sampled_from(names))
        inner = set(without)
        if name in REVERSE:
            inner.add("while")
        if name in FORWARD:
            inner.add("custom vjp")
        count = 0 if not nested else 2 if name in TWO_BODIES else 1
        bodies = tuple(
            draw(programs(depth=depth - 1, without=frozenset(inner), size=2)) for _ in range(count)
        )
        made.append(Step(name, draw(st.integers(0, 3)), bodies))
    return tuple(made)


ANY = programs()
FORWARD_ONLY = programs(without=frozenset({"custom vjp"}))
BOTH_MODES = programs(without=frozenset({"custom vjp", "while"}))
REVERSIBLE = programs(without=frozenset({"while"}))
POINTS = st.integers(0, 10**6)

many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def vector(seed, index=0):
    return np.random.default_rng([seed, index]).uniform(-1.2, 1.2, N)


def function_of(program, seed):
    """f of one vector, with the outer vector y captured."""
    y = jnp.asarray(vector(seed, 9))
    return lambda x: run(program, x, y)


def close(got, want, tolerance=1e-9):
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype
    scale = max(1.0, np.max(np.abs(want), initial=0.0))
    # Written so that a nan on one side fails.
    error = np.where(np.isnan(got) & np.isnan(want), 0, np.abs(got - want))
    assert np.all(error <= tolerance * scale), (got, want)


@many
@given(ANY, POINTS)
def test_jit_changes_nothing(program, seed):
    f, x = function_of(program, seed), vector(seed)
    close(tinyjax.jit(f)(x), f(jnp.asarray(x)))


@many
@given(ANY, POINTS)
def test_vmap_is_a_loop(program, seed):
    f = function_of(program, seed)
    xs = np.stack([vector(seed, i) for i in range(4)])
    want = np.stack([np.asarray(f(jnp.asarray(x))) for x in xs])
    close(tinyjax.vmap(f)(xs), want)
    close(tinyjax.jit(tinyjax.vmap(f, in_axes=1, out_axes=1))(xs.T), want.T)


@many
@given(FORWARD_ONLY, POINTS)
def test_jvp_is_a_central_difference(program, seed):
    # Compiled once: the differences need many values at nearly one point.
    program = tuple(s for s in program if not uses((s,), {"stop"}))
    f, x, u = function_of(program, seed), vector(seed), vector(seed, 1)
    value, tangent = tinyjax.jvp(f, (x,), (u,))
    g = tinyjax.jit(f)
    close(g(x), value)
    rough = [(np.asarray(g(x + h * u)) - np.asarray(g(x - h * u))) / (2 * h) for h in (1e-5, 2e-5)]
    if np.max(np.abs(rough[0] - rough[1]), initial=0.0) < 1e-6 * max(
        1, np.max(np.abs(rough[0]), initial=0)
    ):
        close(tangent, rough[0], 1e-5)  # else a kink lies between the points


@many
@given(BOTH_MODES, POINTS)
def test_reverse_is_the_transpose_of_forward(program, seed):
    f, x, u, v = function_of(program, seed), vector(seed), vector(seed, 1), vector(seed, 2)
    value, tangent = tinyjax.jvp(f, (x,), (u,))
    again, pullback = tinyjax.vjp(f, x)
    close(again, value)
    (cotangent,) = pullback(jnp.asarray(v))
    close(np.dot(cotangent, u), np.dot(v, tangent))
    jitted = tinyjax.jit(lambda x, v: tinyjax.vjp(f, x)[1](v)[0])(x, v)
    close(jitted, cotangent)


@many
@given(REVERSIBLE, POINTS)
def test_jit_and_vmap_of_a_gradient_change_nothing(program, seed):
    f = function_of(program, seed)
    g = tinyjax.grad(lambda x: (f(x) * WEIGHTS).sum())
    xs = np.stack([vector(seed, i) for i in range(3)])
    want = np.stack([np.asarray(g(x)) for x in xs])
    close(tinyjax.jit(g)(xs[0]), want[0])
    close(tinyjax.vmap(g)(xs), want)


@many
@given(BOTH_MODES, POINTS)
def test_linear_transpose_is_the_transposed_matrix(program, seed):
    f, x = function_of(program, seed), vector(seed)
    _, linear = tinyjax.linearize(f, x)
    matrix = np.stack([np.asarray(linear(e)) for e in np.eye(N)], 1)
    transpose = tinyjax.linear_transpose(linear, x)
    transposed = np.stack([np.asarray(transpose(jnp.asarray(e))[0]) for e in np.eye(N)], 1)
    close(transposed, matrix.T)
    close(tinyjax.jacfwd(f)(x), matrix)


@many
@given(BOTH_MODES, POINTS)
def test_a_hessian_is_symmetric_and_the_same_in_both_modes(program, seed):
    f, x = function_of(program, seed), vector(seed)

    def scalar(x):
        return (f(x) * WEIGHTS).sum()

    if uses(program, {"stop"}):
        return
    forward = np.asarray(tinyjax.jacfwd(tinyjax.grad(scalar))(x))
    close(forward, forward.T, 1e-8)
    close(tinyjax.jit(tinyjax.jacrev(tinyjax.grad(scalar)))(x), forward, 1e-8)
