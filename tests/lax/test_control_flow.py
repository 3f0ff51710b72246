"""scan, while_loop, cond, switch, fori_loop, map, associative_scan against jax."""

from __future__ import annotations

from typing import Any

import jax as oracle
import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp
from tests.oracle import Case, check, numbers, pullback, raises, x64
from tinyjax import lax

X = numbers(5)
M = numbers(5, 3)
W = numbers(3, 3, seed=1)


def rnn(J: Any, w: Any, h: Any, xs: Any, **options: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        new = J.numpy.tanh(w @ h + x)
        return new, {"y": new.sum(), "z": (x, h)}

    return J.lax.scan(cell, h, xs, **options)


CASES: dict[str, Case] = {
    "scan": lambda J: rnn(J, W, W[0], M),
    "scan reverse": lambda J: rnn(J, W, W[0], M, reverse=True),
    "scan unroll": lambda J: rnn(J, W, W[0], M, unroll=2),
    "scan unroll all": lambda J: rnn(J, W, W[0], M, unroll=True),
    "scan no xs": lambda J: J.lax.scan(lambda c, _: (c * 2, c), 1.0, None, length=4),
    "scan length and xs": lambda J: J.lax.scan(lambda c, x: (c + x, None), 0.0, X, length=5),
    "scan zero length": lambda J: J.lax.scan(lambda c, x: (c + x, c), 0.0, X[:0]),
    "scan tree": lambda J: J.lax.scan(
        lambda c, x: ({"a": c["a"] + x[0], "b": c["b"]}, (c["a"], None)), {"a": 0.0, "b": 2}, (X, M)
    ),
    "scan weak carry": lambda J: J.lax.scan(lambda c, x: (c + x, c), 0, X),
    "scan weak carry stays weak": lambda J: J.lax.scan(lambda c, x: (c + 1, x), 0.0, X),
    "scan weak int carry": lambda J: (
        J.lax.scan(lambda c, x: (c + x, c), 0, np.arange(3, dtype=np.int32))
    ),
    "scan bool carry": lambda J: J.lax.scan(lambda c, x: (c | (x > 1), c), False, X),
    "scan key carry": lambda J: J.lax.scan(
        lambda k, _: tuple(J.random.split(k)), J.random.PRNGKey(0), None, length=3
    ),
    "scan constant output": lambda J: J.lax.scan(lambda c, x: (c, 1.0), 0.0, X),
    "scan carry only": lambda J: J.lax.scan(lambda c, x: (c + x.sum(), None), 0.0, M)[0],
    "scan nested": lambda J: J.lax.scan(
        lambda c, row: J.lax.scan(lambda d, x: (d * 0.5 + x, d), c, row), 0.0, M
    ),
    "scan under jit": lambda J: J.jit(lambda w: rnn(J, w, w[0], M))(W),
    "scan under vmap": lambda J: J.vmap(lambda h: rnn(J, W, h, M))(W),
    "scan vmapped xs": lambda J: J.vmap(lambda xs: J.lax.scan(lambda c, x: (c + x, c), 0.0, xs))(M),
    "scan gradient": lambda J: pullback(J, lambda w, h, xs: rnn(J, w, h, xs), W, W[0], M),
    "scan gradient reverse": lambda J: pullback(
        J, lambda w, xs: rnn(J, w, w[0], xs, reverse=True, unroll=2), W, M
    ),
    "scan second derivative": lambda J: J.grad(
        lambda w: J.grad(lambda v: rnn(J, v, v[0], M)[0].sum())(w)[0, 0] * w[1, 1]
    )(W),
    "scan int carry gradient": lambda J: J.grad(
        lambda s: J.lax.scan(lambda c, x: ((c[0] + 1, c[1] * x * s), None), (0, 1.0), X)[0][1]
    )(0.7),
    "map": lambda J: J.lax.map(lambda x: x * 2 + x[0], M),
    "map tree": lambda J: J.lax.map(lambda t: {"s": t[0] + t[1].sum()}, (X, M)),
    "map batch_size": lambda J: J.lax.map(lambda x: x * 2, M, batch_size=2),
    "map batch_size of nothing": lambda J: J.lax.map(lambda x: x * 2, M[:0], batch_size=2),
    "map batch_size rest": lambda J: J.lax.map(lambda x: (x, x.sum()), M, batch_size=3),
    "map batch_size whole": lambda J: J.lax.map(lambda x: x.sum(), M, batch_size=5),
    "while": lambda J: J.lax.while_loop(lambda c: c < 100, lambda c: c * 3, 2),
    "while tree": lambda J: J.lax.while_loop(
        lambda c: c["i"] < 4, lambda c: {"i": c["i"] + 1, "x": c["x"] * W}, {"i": 0, "x": W}
    ),
    "while weak": lambda J: (
        J.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * X[0], c[1] + 1), (1, 0))
    ),
    "while never": lambda J: J.lax.while_loop(lambda c: False, lambda c: c + 1, 5),
    "while captures": lambda J: J.jit(
        lambda s, t: J.lax.while_loop(lambda c: c < t, lambda c: c * s, 1.0)
    )(2.0, 50.0),
    "while vmapped": lambda J: J.vmap(
        lambda x: J.lax.while_loop(lambda c: c[0] < 10, lambda c: (c[0] + x, c[1] + 1), (x, 0))
    )(np.float32([1, 2, 3.5])),
    "while vmapped captures": lambda J: J.vmap(
        lambda x, n: J.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * x), (0, 1.0))
    )(np.float32([1, 2, 3]), np.int32([3, 0, 2])),
    "while vmapped body only": lambda J: J.vmap(
        lambda x: J.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + x), (0, 0.0))[1]
    )(X),
    "while forward mode": lambda J: J.jvp(
        lambda x: J.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))[1],
        (np.float32(1.5),), (np.float32(1),),
    ),
    "fori": lambda J: J.lax.fori_loop(0, 5, lambda i, c: c + i * X, X),
    "fori weak": lambda J: J.lax.fori_loop(0, 5, lambda i, c: c * 2, 1),
    "fori backwards bounds": lambda J: J.lax.fori_loop(5, 2, lambda i, c: c + 1, 7),
    "fori dynamic": lambda J: J.jit(lambda n: J.lax.fori_loop(0, n, lambda i, c: c + i, 0))(5),
    "fori unroll": lambda J: J.lax.fori_loop(0, 6, lambda i, c: c + i, 0.0, unroll=3),
    "fori gradient": lambda J: (
        J.grad(lambda s: J.lax.fori_loop(0, 4, lambda i, c: c * s, 1.0))(1.5)
    ),
    "fori index dtype": lambda J: J.lax.fori_loop(
        np.int32(0), np.int32(3), lambda i, c: c + i, np.int32(0)
    ),
    "fori index of Python and NumPy bounds": lambda J: [
        J.lax.fori_loop(low, high, lambda i, c: c + i, 0)
        for low, high in ((np.int8(0), 3), (np.int8(0), np.int8(3)), (0, np.int32(3)))
    ],
    "fori index of traced bounds": lambda J: [
        J.jit(lambda n, low=low: J.lax.fori_loop(low, n, lambda i, c: c + i, 0))(high)
        for low, high in ((0, 3), (np.int8(0), np.int8(3)), (0, np.int16(3)), (np.int32(0), 3))
    ],
    "promoted carry is strong": lambda J: (
        J.lax.scan(lambda c, _: (c + 1.5, c), 0, None, length=3),
        J.lax.while_loop(lambda c: c < 3, lambda c: c + 1.5, 0),
        J.lax.fori_loop(0, 3, lambda i, c: c + 1.5, 0),
    ),
    "cond true": lambda J: J.lax.cond(True, lambda x: x + 1, lambda x: x - 1, 3.0),
    "cond number": lambda J: J.lax.cond(0, lambda: 1, lambda: 2),
    "cond array": lambda J: J.lax.cond(X[0] > 0, lambda a, b: a * b, lambda a, b: a - b, X, 2.0),
    "cond weak joins strong": lambda J: (
        J.lax.cond(True, lambda: 1.0, lambda: J.numpy.asarray(X)[0])
    ),
    "cond tree": lambda J: J.lax.cond(X[0] < 0, lambda t: t, lambda t: {"a": t["a"] * 2}, {"a": X}),
    "cond none": lambda J: J.lax.cond(True, lambda: None, lambda: None),
    "cond captures under jit": lambda J: J.jit(
        lambda p, y: J.lax.cond(p, lambda: y * 2, lambda: y + X)
    )(False, X),
    "cond operand keyword": lambda J: J.lax.cond(False, lambda x: x, lambda x: -x, operand=X),
    "cond vmapped predicate": lambda J: J.vmap(
        lambda p, x: J.lax.cond(p, lambda v: v + 1, lambda v: v * 10, x)
    )(X > 0, X),
    "cond vmapped operand": lambda J: J.vmap(
        lambda x: J.lax.cond(True, lambda v: v + 1, lambda v: v * 10, x)
    )(X),
    "cond gradient": lambda J: J.grad(
        lambda x: J.lax.cond(x > 1, lambda v: v**2, lambda v: v * 3, x)
    )(2.0),
    "cond gradient captured": lambda J: J.grad(
        lambda x: J.lax.cond(x < 1, lambda: x**2, lambda: J.numpy.sin(x) * x)
    )(2.0),
    "cond no nan leaks": lambda J: J.vmap(
        J.grad(lambda x: J.lax.cond(x > 0, lambda v: J.numpy.sqrt(v), lambda v: v * 0.0, x))
    )(np.float32([4, 0, -1])),
    "switch": lambda J: [
        J.lax.switch(i, [lambda x: x, lambda x: x * 2, lambda x: -x], 3.0) for i in (-1, 0, 1, 2, 9)
    ],
    "switch vmapped": lambda J: J.vmap(
        lambda i, x: J.lax.switch(i, [lambda v: v, lambda v: v * 2, lambda v: -v], x)
    )(np.int32([0, 1, 2, 5, -3]), X),
    "switch one": lambda J: J.lax.switch(4, [lambda x: x + 1], 1),
    "switch gradient": lambda J: J.grad(
        lambda x: J.lax.switch(1, [lambda v: v, lambda v: v**3], x)
    )(2.0),
    "associative gradient": lambda J: pullback(
        J, lambda x: J.lax.associative_scan(J.lax.mul, x), X
    ),
    "associative vmapped": lambda J: J.vmap(
        lambda x: J.lax.associative_scan(J.numpy.maximum, x, reverse=True)
    )(M),
    "cumulative gradients": lambda J: pullback(
        J, lambda x: (J.lax.cumsum(x), J.lax.cumprod(x), J.lax.cummax(x), J.lax.cumlogsumexp(x)), X
    ),
    "loop in cond in scan": lambda J: J.lax.scan(
        lambda c, x: (
            J.lax.cond(x > 0, lambda: J.lax.fori_loop(0, 3, lambda i, v: v + x, c), lambda: c *
            0.5), c
        ), 0.0, X,
    ),
    "custom rule in scan": lambda J: J.grad(
        lambda s: J.lax.scan(lambda c, x: (J.nn.relu(c * s + x), None), 1.0, X)[0]
    )(0.5),
    "checkpoint in scan": lambda J: J.grad(
        lambda s: J.lax.scan(J.checkpoint(lambda c, x: (J.numpy.sin(c * s + x), c)), 1.0, X)[0]
    )(0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_jax(name: str) -> None:
    # jax keeps the weak type of a carry through cond, which promotion could not tell apart.
    check(CASES[name], weak=name != "loop in cond in scan")


WITH_X64 = [n for n in CASES if ("weak" in n and "joins" not in n) or n.startswith("fori")]


@pytest.mark.parametrize("name", WITH_X64)
def test_carry_types_are_those_of_jax_with_x64(name: str) -> None:
    with x64():
        check(CASES[name])


EAGER = [
    "scan",
    "scan reverse",
    "scan tree",
    "while tree",
    "fori",
    "switch",
    "cond tree",
    "map tree",
    "while vmapped",
    "fori backwards bounds",
]


@pytest.mark.parametrize("name", EAGER)
def test_loops_run_in_python_with_jit_disabled(name: str) -> None:
    theirs = CASES[name](oracle)
    with jax.disable_jit():
        ours = CASES[name](jax)
    mine, other = jax.tree.leaves(ours), oracle.tree.leaves(theirs)
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5)


def test_a_body_is_staged_once() -> None:
    count = [0]

    def body(c: Any, x: Any) -> Any:
        count[0] += 1
        return c + x, c

    jax.lax.scan(body, 0.0, X)
    jax.lax.scan(body, 0.0, X * 2)
    assert count[0] <= 2  # a weakly typed carry may be staged again, strong


def test_values_that_do_not_change_are_not_carried() -> None:
    """A captured matrix is an input of the loop, not a constant of its body."""
    big = jax.numpy.ones((64, 64))
    f = jax.jit(lambda w, x: jax.lax.scan(lambda c, _: (w @ c, None), x, None, length=3)[0])
    text = str(f.trace(big, big[0]).jaxpr)
    assert "f32[64,64]" in text
    np.testing.assert_allclose(f(big, big[0]), np.full(64, 64.0**3), rtol=1e-6)


def test_a_promotion_may_need_any_number_of_stagings() -> None:
    """Each staging promotes one more leaf; the last one is of what the loop really carries."""

    def body(c: Any, _: Any = None) -> Any:
        return (*c[1:], c[-1] + np.float32(0.5)), c[0]

    init = (1, 2, 3, 4, 5)
    carry, ys = jax.lax.scan(body, init, None, length=2)
    assert [str(c.dtype) for c in (*carry, ys)] == ["float32"] * 6
    np.testing.assert_array_equal(ys, [1, 2])
    np.testing.assert_array_equal(carry, [3, 4, 5, 5.5, 6])
    last = jax.lax.while_loop(lambda c: c[-1] < 6, lambda c: body(c)[0], init)
    np.testing.assert_array_equal(last, [3, 4, 5, 5.5, 6])


REFUSED: list[tuple[Case, str]] = [
    (lambda J: J.lax.scan(lambda c, x: (c, x), 0.0, 3.0), "no leading axis"),
    (lambda J: J.lax.scan(3, 0.0, X), "callable"),
    (lambda J: J.lax.scan(lambda c, x: (c, x), 0.0), "`length` not provided"),
    (lambda J: J.lax.scan(lambda c, x: (c, x), 0.0, (X, X[:2])), "different leading axis sizes"),
    (lambda J: J.lax.scan(lambda c, x: (M, x), X, X), "leaves as f32[5,3]"),
    (lambda J: J.lax.while_loop(lambda c: X > 0, lambda c: c, 0), "boolean scalar"),
    (lambda J: J.lax.while_loop(lambda c: c < 3, lambda c: (c, c), 0), "same pytree structure"),
    (
        lambda J: J.lax.while_loop(lambda c: c < 3, lambda c: c * 1.5, np.int32(1)),
        "leaves as f32[]",
    ),
    (lambda J: J.lax.fori_loop(0.5, 3, lambda i, c: c, 0), "integer"),
    (lambda J: J.lax.fori_loop(np.int8(0), np.int16(3), lambda i, c: c, 0), "equal types"),
    (lambda J: J.lax.fori_loop(0, np.uint8(3), lambda i, c: c, 0), "int32 and uint8"),
    (
        lambda J: J.jit(lambda n: J.lax.fori_loop(0, n, lambda i, c: c, 0, unroll=2))(3),
        "statically known",
    ),
    (lambda J: J.lax.cond(True, 3, lambda: 1), "callable"),
    (lambda J: J.lax.switch(0, []), "Empty branch sequence"),
    (lambda J: J.lax.switch(0.5, [lambda: 1, lambda: 2]), "Index type must be an integer"),
    (lambda J: J.lax.switch(X, [lambda: 1, lambda: 2]), "must be scalar"),
    (lambda J: J.lax.cond(True, lambda: 1, lambda: 2.0), "equal output types"),
    (lambda J: J.lax.associative_scan(3, X), "callable"),
    (lambda J: J.lax.associative_scan(J.lax.add, (X, X[:2])), "same first dimension"),
]


@pytest.mark.parametrize(("case", "text"), REFUSED)
def test_what_jax_refuses_is_refused_with_the_reason(case: Case, text: str) -> None:
    assert text in str(raises(case))


# --- what a branch computes is computed where it runs ---------------------------------------------


def counted(name, counts):
    """A function for callbacks that counts its calls."""

    def host(x):
        counts[name] = counts.get(name, 0) + 1
        return np.asarray(x) * 2

    spec = jax.ShapeDtypeStruct((), np.float32)
    return lambda x: jax.pure_callback(host, spec, x, vmap_method="sequential")


def test_a_branch_that_is_not_taken_calls_nothing_though_it_closes_over_its_values():
    """Once what a branch made of outer values alone was computed in front of the branches."""
    counts: dict = {}
    a, b = counted("a", counts), counted("b", counts)
    one = np.float32(1)

    @jax.jit
    def chosen(x, i):
        return lax.switch(i, [lambda: x, lambda: a(x), lambda: a(x) + b(x)])

    assert [float(chosen(one, i)) for i in range(3)] == [1.0, 2.0, 4.0]
    assert counts == {"a": 2, "b": 1}
    counts.clear()

    @jax.jit
    def in_a_loop(x):
        step = lambda c, i: (lax.cond(i == 1, lambda: a(c), lambda: c), None)
        return lax.scan(step, x, np.arange(4))[0]

    assert float(in_a_loop(one)) == 2.0 and counts == {"a": 1}
    counts.clear()

    @jax.jit
    def nested(x, i):
        inner = lambda: lax.cond(i > 1, lambda: a(x), lambda: b(x))
        return lax.cond(i > 0, inner, lambda: x)

    assert [float(nested(one, i)) for i in range(3)] == [1.0, 2.0, 2.0]
    assert counts == {"a": 1, "b": 1}


def test_a_branch_reads_what_was_computed_outside_and_computes_the_rest():
    def f(w, x):
        g = jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)
        return lax.cond(jnp.isfinite(g).all(), lambda: w - 0.1 * g, lambda: w), g

    text = str(jax.make_jaxpr(f)(np.ones(3, np.float32), np.ones((2, 3), np.float32)))
    before, _, branches = text.partition("cond[")
    assert "tanh" in before and "tanh" not in branches
    assert "mul 0.1" in branches and "mul 0.1" not in before


def test_equal_branches_over_equal_values_each_compute_their_own():
    def f(x, i):
        for n in range(3):
            x = x + lax.cond(i > n, lambda: jnp.sin(x).sum(), lambda: 0.0)
        return x + lax.cond(i > 3, lambda: jnp.cos(x).sum(), lambda: jnp.cos(x).max())

    text = str(jax.make_jaxpr(f)(np.ones(3, np.float32), 1))
    main = text.split(" in\n")[-1]
    assert "sin" not in main and "cos" not in main.partition("cond[")[0]
