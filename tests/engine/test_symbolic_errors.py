"""What a user reads where a program asks for the size of a symbolic dimension.

One row per mistake: the message names the dimension, its bounds, the user's line, and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyjax
import tinyjax.numpy as jnp
from tinyjax import Dim, errors, lax

n, m = Dim("n", 1, 64), Dim("m", 1, 32)
N, BOTH = "1 <= n <= 64", "with 1 <= n <= 64 and 1 <= m <= 32"
NO_VALUE = "The symbolic dimension n has no value while a function is traced"
LOOP, SAME, NARROW = "lax.fori_loop or lax.scan", "Use the same Dim", "narrower bounds"
HERE = "at test_symbolic_errors.py:"
UNDECIDED = errors.InconclusiveDimensionOperation

Row = tuple[Callable[..., Any], tuple[Any, ...], type[Exception], list[str]]


def in_python(x: Any) -> Any:
    for i in range(x.shape[0]):
        x = x + i
    return x


def with_if(x: Any) -> Any:
    if x.shape[0] > 5:
        return x
    return -x


ROWS: dict[str, Row] = {
    "range": (in_python, ((n,),), UNDECIDED, [NO_VALUE, N, LOOP, "for i in range(x.shape[0]):"]),
    "int": (lambda x: x * int(x.shape[0]), ((n,),), UNDECIDED, [NO_VALUE, N]),
    "float": (lambda x: x * float(x.shape[0]), ((n,),), UNDECIDED, [NO_VALUE, N]),
    "math": (lambda x: x / math.sqrt(x.shape[0]), ((n,),), UNDECIDED, [NO_VALUE, N]),
    "len": (lambda x: x * len(x), ((n,),), UNDECIDED, [NO_VALUE, N]),
    "iteration": (lambda x: list(x), ((n, 4),), UNDECIDED, [NO_VALUE, N, LOOP]),
    "unstack": (lambda x: jnp.unstack(x), ((n, 4),), UNDECIDED, [NO_VALUE, N, LOOP]),
    "list of n": (lambda x: [0.0] * x.shape[0], ((n,),), UNDECIDED, [NO_VALUE, N]),
    "a function of NumPy": (
        lambda x: x / np.sqrt(x.shape[0]), ((n,),), UNDECIDED,
        ["np.sqrt computes with values", "dimension n", N, "jnp.sqrt takes sizes as arrays"],
    ),
    "an array of NumPy": (lambda x: x + np.zeros(x.shape), ((n,),), UNDECIDED, [NO_VALUE, N]),
    "if": (with_if, ((n,),), UNDECIDED, ["'n > 5' is inconclusive", N, NARROW, "if x.shape[0] > 5:"]),
    "equality": (
        lambda x: x if x.shape[0] == 5 else -x, ((n,),), UNDECIDED, ["'n == 5' is inconclusive", N]
    ),
    "max": (
        lambda x: jnp.zeros(max(x.shape[0], 3)), ((n,),), UNDECIDED, ["'n < 3' is inconclusive", N]
    ),
    "n and 5": (
        lambda x, y: x + y, ((n,), (5,)), UNDECIDED,
        ["Incompatible shapes for broadcasting: (n,), (5,)", "n and 5 are equal for some sizes", N, SAME],
    ),
    "n and m": (
        lambda x, y: x + y, ((n,), (m,)), UNDECIDED,
        ["(n,), (m,)", "n and m are equal for some sizes only", BOTH, SAME],
    ),
    "where": (lambda x, y: jnp.where(x > 0, x, y), ((n,), (m,)), UNDECIDED, ["(n,), (m,)", BOTH, SAME]),
    "an update": (lambda x, y: x.at[:].set(y), ((n,), (m,)), UNDECIDED, ["m and n are equal", SAME]),
    "lax.add": (lambda x, y: lax.add(x, y), ((n,), (m,)), UNDECIDED, ["are equal for some sizes", SAME]),
    "matmul": (
        lambda x, y: x @ y, ((4, n), (m, 4)), UNDECIDED,
        ["contracts axis 1 of a (size n) with axis 0 of b (size m)", "n and m are equal for some", BOTH, SAME],
    ),
    "matmul with a hint": (
        lambda x, y: x @ y, ((n, 4), (n, 4)), UNDECIDED,
        ["4 and n are equal for some sizes only", N, "Perhaps b should be transposed"],
    ),
    "dot": (lambda x, y: jnp.dot(x, y), ((n,), (m,)), UNDECIDED, ["n and m are equal for some", BOTH]),
    "lax.dot": (
        lambda x, y: lax.dot(x, y), ((n, 4), (m, 5)), UNDECIDED,
        ["'m == 4' is inconclusive", "1 <= m <= 32", "use the same Dim"],
    ),
    "einsum": (
        lambda x, y: jnp.einsum("ij,jk", x, y), ((4, n), (m, 4)), UNDECIDED,
        ["'n == m' is inconclusive", BOTH],
    ),
    "concatenate": (
        lambda x, y: jnp.concatenate([x, y]), ((3, n), (3, m)), UNDECIDED,
        ["(3, n) and (3, m)", "m and n are equal for some sizes only", SAME],
    ),
    "cotangent": (
        lambda x, y: tinyjax.vjp(lambda x: x * 2, x)[1](y), ((n,), (m,)), UNDECIDED,
        ["'m == n' is inconclusive"],
    ),
    "scan over n and m": (
        lambda x, y: lax.scan(lambda c, t: (c, t), 0.0, (x, y)), ((n,), (m,)), ValueError,
        ["different leading axis sizes: xs[0]: n, xs[1]: m"],
    ),
    "vmap over n and m": (
        lambda x, y: tinyjax.vmap(lambda a, b: a + b)(x, y), ((n,), (m,)), ValueError,
        ["inconsistent sizes", "size n: a has shape (n,)", "size m: b has shape (m,)"],
    ),
    "a carry that shrinks": (
        lambda x: lax.fori_loop(0, 3, lambda i, c: c[:-1], x), ((n,),), TypeError,
        ["enters as f32[n] and leaves as f32[n - 1]"],
    ),
    "branches": (
        lambda x: lax.cond(x.sum() > 0, lambda x: x, lambda x: x[:-1], x), ((n,),), TypeError,
        ["f32[n - 1]", "f32[n]"],
    ),
    "reshape that may not divide": (
        lambda x: x.reshape(-1, 8), ((n, 4),), UNDECIDED,
        ["Cannot divide evenly", "(n, 4) and (-1, 8)", "mod(4*n, 8)", N, "multiple_of="],
    ),
    "reshape to numbers": (
        lambda x: x.reshape(8, 4), ((n, 4),), UNDECIDED, ["Cannot reshape: (n, 4), (8, 4)", "4*n and 32", N]
    ),
    "lax.reshape": (
        lambda x: lax.reshape(x, (8, 4)), ((n, 4),), UNDECIDED, ["Cannot reshape: (n, 4), (8, 4)", N]
    ),
    "equal parts": (
        lambda x: jnp.split(x, 2), ((n,),), UNDECIDED, ["2 equal parts", N, "multiple_of=2"]
    ),
    "top_k": (lambda x: lax.top_k(x, 3), ((n,),), UNDECIDED, ["'n >= 3' is inconclusive", N, NARROW]),
    "lax.slice": (lambda x: lax.slice(x, (0,), (5,)), ((n,),), UNDECIDED, ["'n >= 5'", N, NARROW]),
    "dynamic_slice": (
        lambda x: lax.dynamic_slice(x, (0,), (5,)), ((n,),), UNDECIDED, ["'n >= 5'", N, NARROW]
    ),
    "broadcast_to": (lambda x: jnp.broadcast_to(x, (5,)), ((n,),), UNDECIDED, ["'n == 5'", N]),
    "arange of floats": (
        lambda x: jnp.arange(0.5, x.shape[0]), ((n,),), TypeError,
        ["jnp.arange: got the bound 0.5", "dimension n", "sizes and integers"],
    ),
    "squeeze": (lambda x: jnp.squeeze(x, 0), ((n,),), ValueError, ["shape=(n,)", "not equal to one"]),
    "repeats per element": (
        lambda x: jnp.repeat(x, jnp.ones(x.shape[0], int)), ((n,),), errors.ConcretizationTypeError,
        ["total_repeat_length"],
    ),
    "mask": (lambda x: x[x > 0], ((n,),), errors.NonConcreteBooleanIndexError, ["bool[n]"]),
    "a step": (lambda x: x[:: x.shape[0]], ((n,),), UNDECIDED, [NO_VALUE, N]),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_message(name: str) -> None:
    f, shapes, expected, fragments = ROWS[name]
    with pytest.raises(expected) as caught:
        tinyjax.make_jaxpr(f)(*(tinyjax.ShapeDtypeStruct(s, "float32") for s in shapes))
    message = str(caught.value)
    for fragment in (*fragments, HERE):
        assert fragment in message
    assert message.count(HERE) >= 1
    assert "Dim object" not in message


def test_outside_of_a_trace_a_size_makes_no_array() -> None:
    for make in (lambda: jnp.zeros(n), lambda: jnp.arange(n), lambda: jnp.ones(4) * n):
        with pytest.raises(UNDECIDED, match=r"dimension n has no value[\s\S]*1 <= n <= 64"):
            make()


def test_an_index_that_may_be_outside_is_looked_at_when_the_program_runs() -> None:
    """As in JAX; one that is outside for all sizes is an error."""
    tinyjax.make_jaxpr(lambda x: x[5])(tinyjax.ShapeDtypeStruct((n,), "float32"))
    with pytest.raises(IndexError, match=r"index 64 is out of bounds for axis 0 with size n"):
        tinyjax.make_jaxpr(lambda x: x[64])(tinyjax.ShapeDtypeStruct((n,), "float32"))
