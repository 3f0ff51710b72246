"""Collectives over vmapped axes against jax: values, derivatives, and wherever they are staged."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
import tinyjax as J
from tests.oracle import Case, check, numbers, raises

X = numbers(4, 3)
RING = [(0, 2), (2, 1), (1, 3), (3, 0)]
S = numbers(4, 4, 2)
G = numbers(2, 3, 5)
W = numbers(4, 8, 2)

CASES: dict[str, Case] = {
    "psum": lambda J: J.vmap(lambda x: J.lax.psum(x, "i"), axis_name="i")(X),
    "psum tree": lambda J: J.vmap(
        lambda x: J.lax.psum({"a": x, "b": (x * 2, 3)}, "i"), axis_name="i", out_axes={"a": 0, "b":
        (0, None)}
    )(X)["a"],
    "psum number": lambda J: J.vmap(lambda x: x + J.lax.psum(1, "i"), axis_name="i")(X),
    "psum shared": lambda J: J.vmap(
        lambda x, y: J.lax.psum(y, "i") + x, in_axes=(0, None), axis_name="i"
    )(X, X[0]),
    "pmean": lambda J: J.vmap(lambda x: x - J.lax.pmean(x, "i"), axis_name="i")(X),
    "pmax": lambda J: J.vmap(lambda x: J.lax.pmax(x, "i"), axis_name="i")(X),
    "pmin": lambda J: J.vmap(lambda x: J.lax.pmin(x, "i"), axis_name="i")(X),
    "axis_index": lambda J: J.vmap(lambda x: x + J.lax.axis_index("i"), axis_name="i")(X),
    "axis_size": lambda J: J.vmap(lambda x: x * J.lax.axis_size("i"), axis_name="i")(X),
    "two axes": lambda J: J.vmap(
        J.vmap(lambda x: J.lax.psum(x, ("i", "j")), axis_name="j"), axis_name="i"
    )(G),
    "outer axis": lambda J: J.vmap(
        J.vmap(lambda x: x / J.lax.psum(x, "i"), axis_name="j"), axis_name="i"
    )(G),
    "inner of unnamed": lambda J: J.vmap(J.vmap(lambda x: J.lax.psum(x, "j"), axis_name="j"))(G),
    "axis_index two": lambda J: J.vmap(
        J.vmap(lambda x: J.lax.axis_index(("i", "j")) + x[0], axis_name="j"), axis_name="i"
    )(G),
    "under jit": lambda J: J.vmap(J.jit(lambda x: J.lax.psum(x, "i")), axis_name="i")(X),
    "jit outside": lambda J: J.jit(J.vmap(lambda x: J.lax.pmean(x, "i"), axis_name="i"))(X),
    "in scan": lambda J: J.vmap(
        lambda x: J.lax.scan(lambda c, y: (c + J.lax.psum(y, "i"), c), 0.0, x), axis_name="i"
    )(X),
    "in cond": lambda J: J.vmap(
        lambda x: J.lax.cond(x[0] > 0, lambda: x, lambda: x * J.lax.axis_index("i")), axis_name="i"
    )(X),
    "all_gather": lambda J: J.vmap(lambda x: J.lax.all_gather(x, "i"), axis_name="i")(X),
    "all_gather axis": lambda J: (
        J.vmap(lambda x: J.lax.all_gather(x, "i", axis=1), axis_name="i")(X)
    ),
    "all_gather tiled": lambda J: J.vmap(
        lambda x: J.lax.all_gather(x, "i", axis=0, tiled=True), axis_name="i"
    )(X),
    "psum_scatter": lambda J: J.vmap(lambda x: J.lax.psum_scatter(x, "i"), axis_name="i")(S),
    "psum_scatter tiled": lambda J: J.vmap(
        lambda x: J.lax.psum_scatter(x, "i", tiled=True), axis_name="i"
    )(W),
    "ppermute": lambda J: J.vmap(
        lambda x: J.lax.ppermute(x, "i", [(0, 1), (1, 2), (3, 0), (2, 3)]), axis_name="i"
    )(X),
    "pshuffle": lambda J: J.vmap(lambda x: J.lax.pshuffle(x, "i", [2, 0, 3, 1]), axis_name="i")(X),
    "all_to_all": lambda J: J.vmap(lambda x: J.lax.all_to_all(x, "i", 0, 1), axis_name="i")(S),
    "all_to_all tiled": lambda J: J.vmap(
        lambda x: J.lax.all_to_all(x, "i", 0, 1, tiled=True), axis_name="i"
    )(W),
    "pswapaxes": lambda J: J.vmap(lambda x: J.lax.pswapaxes(x, "i", 0), axis_name="i")(S),
    "pbroadcast": lambda J: J.vmap(lambda x: J.lax.all_gather(x, "i")[2], axis_name="i")(X),
    "gradient outside": lambda J: J.grad(
        lambda x: (J.vmap(lambda v: v * J.lax.psum(v**2, "i"), axis_name="i")(x)).sum()
    )(X),
    "gradient inside": lambda J: J.vmap(
        J.grad(lambda v: (v * J.lax.psum(v, "i")).sum()), axis_name="i"
    )(X),
    "gradient of gathers": lambda J: J.grad(
        lambda x: J.vmap(lambda v: J.lax.all_gather(v, "i") * v, axis_name="i")(x).sum()
    )(X),
    "gradient of moves": lambda J: J.grad(
        lambda x: (
            J.vmap(lambda v: J.lax.ppermute(v, "i", RING) * v, axis_name="i")(x).sum()
        )
    )(X),
    "gradient of exchange": lambda J: J.grad(
        lambda x: (J.vmap(lambda v: J.lax.all_to_all(v, "i", 0, 1), axis_name="i")(x) ** 2).sum()
    )(S),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_collectives_are_those_of_jax(name: str) -> None:
    check(CASES[name], weak=False)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (lambda J: J.lax.psum(X, "rows"), "unbound axis name: rows"),
        (lambda J: J.vmap(lambda x: J.lax.psum(x, "j"), axis_name="i")(X), "axis name: j"),
        (
            lambda J: J.vmap(lambda x: J.lax.all_to_all(x, "i", 0, 0), axis_name="i")(X),
            "x.shape[split_axis], but they are 4 and 3",
        ),
        (
            lambda J: J.vmap(lambda x: J.lax.pshuffle(x, "i", [0, 0, 1, 2]), axis_name="i")(X),
            "does not represent a permutation",
        ),
    ],
)
def test_misuse_names_the_axis(case: Case, text: str) -> None:
    assert text in str(raises(case))


def test_an_unbound_axis_lists_the_open_ones() -> None:
    message = str(raises(lambda J: J.vmap(lambda x: J.lax.psum(x, "j"), axis_name="i")(X)))
    assert "Open axes here: 'i'" in message
    assert "axis_name='j'" in message


def test_axes_are_closed_after_an_exception() -> None:
    def bad(x: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tinyjax.vmap(bad, axis_name="i")(np.ones(3))
    with pytest.raises(NameError, match="Open axes here: none"):
        tinyjax.lax.axis_index("i")


def test_the_gradient_of_pmax_goes_to_the_largest() -> None:
    """JAX has no rule; the same function without an axis name is the reference."""
    named = lambda x: (J.vmap(lambda v: v * J.lax.pmax(v, "i"), axis_name="i")(x)).sum()
    plain = lambda x: (x * x.max(0)).sum()
    np.testing.assert_allclose(J.grad(named)(X), J.grad(plain)(X), rtol=1e-6)


def test_participants_that_are_sent_nothing_get_zeros() -> None:
    out = J.vmap(lambda x: J.lax.ppermute(x, "i", [(0, 2)]), axis_name="i")(X)
    np.testing.assert_array_equal(out, np.stack([0 * X[0], 0 * X[0], X[0], 0 * X[0]]))


def test_a_jitted_function_serves_every_mapping_of_an_axis():
    """Its trace is shared; the index is that of the axis it is called under."""
    f = tinyjax.jit(lambda x: x + 10 * tinyjax.lax.axis_index("i"))
    g = lambda x: tinyjax.vmap(f, axis_name="i")(x)
    twice = tinyjax.vmap(lambda r: (g(r), f(r[0])), axis_name="i")
    inner, outer = twice(np.zeros((2, 2), np.float32))
    np.testing.assert_array_equal(inner, [[0, 10], [0, 10]])
    np.testing.assert_array_equal(outer, [0, 10])
    np.testing.assert_array_equal(g(np.ones(2, np.float32)), [1, 11])
