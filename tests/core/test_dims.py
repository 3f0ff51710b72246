"""Symbolic sizes: what they evaluate to, by brute force over small domains, and what they decide."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tinyjax.core.dims import (
    Atom,
    Dim,
    DimExpr,
    InconclusiveDimensionOperation,
    bounds_of,
    describe,
    dims_of,
    evaluate,
    is_size,
    is_symbolic,
    largest,
    max_dim,
    maximum,
    min_dim,
    minimum,
)

N, M, E = Dim("n", 1, 7), Dim("m", 2, 5), Dim("e", 4, 16, multiple_of=4)
VALUES = {N: range(1, 8), M: range(2, 6), E: range(4, 17, 4)}


def domain() -> Iterator[dict[Atom, int]]:
    """Every value of the three dimensions."""
    for values in itertools.product(*VALUES.values()):
        yield {d.atom: v for d, v in zip(VALUES, values, strict=True)}


Build = Callable[[Any, Any, Any], Any]


def random_expression(rng: random.Random, depth: int) -> Build:
    """A formula, for sizes and for ints alike."""
    if depth == 0 or rng.random() < 0.15:
        choice = rng.randrange(4)
        number = rng.randrange(-4, 9)
        return lambda *dims: number if choice == 3 else dims[choice]
    a, b = random_expression(rng, depth - 1), random_expression(rng, depth - 1)
    divisor = rng.choice([-3, -1, 1, 2, 3, 4, 8])
    kinds: list[Build] = [
        lambda *d: a(*d) + b(*d),
        lambda *d: a(*d) - b(*d),
        lambda *d: a(*d) * b(*d),
        lambda *d: -a(*d),
        lambda *d: a(*d) // divisor,
        lambda *d: a(*d) % divisor,
        lambda *d: a(*d) // d[0],
        lambda *d: a(*d) % d[2],
        lambda *d: maximum(a(*d), b(*d)),
        lambda *d: minimum(a(*d), b(*d)),
    ]
    return rng.choice(kinds)


@pytest.mark.parametrize("seed", range(120))
def test_an_expression_is_what_its_formula_gives_and_lies_within_its_bounds(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        build = random_expression(rng, 3)
        size = build(N, M, E)
        low, high = bounds_of(size)
        for sizes in domain():
            value = build(*(sizes[d.atom] for d in VALUES))
            assert evaluate(size, sizes) == value
            assert low <= value <= high


@pytest.mark.parametrize("seed", range(60))
def test_what_a_comparison_decides_holds_for_every_size(seed: int) -> None:
    rng = random.Random(1000 + seed)
    x, y = (random_expression(rng, 2)(N, M, E) for _ in range(2))
    for compare in (
        lambda a, b: a >= b,
        lambda a, b: a > b,
        lambda a, b: a <= b,
        lambda a, b: a < b,
        lambda a, b: a == b if b not in (0, 1) else a == b + 7,
        lambda a, b: a != b if b not in (0, 1) else a != b + 7,
    ):
        if not is_symbolic(x) and is_symbolic(y):
            x, y = y, x
        if is_symbolic(y) and evaluate(y, next(domain())) in (0, 1):
            y = y + 5  # a symbolic size is not one of the two literals
        try:
            answer = compare(x, y)
        except InconclusiveDimensionOperation:
            continue
        for sizes in domain():
            assert compare(evaluate(x, sizes), evaluate(y, sizes)) is answer


EQUAL: list[tuple[Any, Any]] = [
    (N + N, 2 * N),
    ((N + 1) * (N - 1), N * N - 1),
    ((N * 8) // 8, N),
    ((N * M) // M, N),
    ((2 * N + 1) // 2, N),
    ((2 * N + 1) % 2, 1),
    (N * M % N, 0),
    (E // 4 * 4, E),
    (E // 2, 2 * (E // 4)),
    (-(-N // 2), (N + 1) // 2),
    ((N + 3) // 2, (N + 1) // 2 + 1),
    (E % 2, 0),
    (E % 4, 0),
    (math.prod((N, M, 3)), 3 * M * N),
    (sum([N, M, N]), 2 * N + M),
    (maximum(N, 0), N),
    (minimum(N, 100), N),
    (maximum(N - 1, 0), N - 1),
    (N - 0, N),
    (N - N, 0),
    (divmod(N * M + 1, M), (N, 1)),
    (N**2, N * N),
    (N**0, 1),
]


@pytest.mark.parametrize("pair", EQUAL, ids=[str(b) for _, b in EQUAL])
def test_equal_expressions_are_one_object(pair: tuple[Any, Any]) -> None:
    a, b = pair
    if isinstance(b, tuple):
        assert all(x is y for x, y in zip(a, b, strict=True))
    else:
        assert a is b or (not is_symbolic(a) and a == b)


BOUNDS: list[tuple[Any, tuple[int, int]]] = [
    (N, (1, 7)),
    (E, (4, 16)),
    (E // 4, (1, 4)),
    (2 * N - 3, (-1, 11)),
    (-N, (-7, -1)),
    (N * M, (2, 35)),
    (N - N // 2, (1, 4)),  # intervals alone give -2..7
    (N - maximum(N - 3, 0), (1, 3)),
    (N - minimum(N, 3), (0, 4)),
    (-(-N // 2), (1, 4)),
    (N % 3, (0, 2)),
    (5, (5, 5)),
]


@pytest.mark.parametrize("row", BOUNDS, ids=[str(x) for x, _ in BOUNDS])
def test_bounds(row: tuple[Any, tuple[int, int]]) -> None:
    size, want = row
    assert bounds_of(size) == want
    assert largest(size) == want[1]


TEXTS: list[tuple[Any, str]] = [
    (N, "n"),
    (2 * N + 1, "2*n + 1"),
    (N - M, "-m + n"),
    (-N, "-n"),
    (N // 2, "floordiv(n, 2)"),
    (N % M, "mod(n, m)"),
    (E, "e"),
    (3 * E + 4, "3*e + 4"),
    (E // 4, "floordiv(e, 4)"),
    (E // 2, "floordiv(e, 2)"),
    (3 * (E // 2), "3*floordiv(e, 2)"),
    (maximum(N, 3), "max(n, 3)"),
]


@pytest.mark.parametrize("row", TEXTS, ids=[text for _, text in TEXTS])
def test_text(row: tuple[Any, str]) -> None:
    assert str(row[0]) == repr(row[0]) == row[1]


def test_bounds_decide_comparisons() -> None:
    assert N >= 1
    assert N + M > 2
    assert not N > 7
    assert N != 9
    assert (N == N + 1) is False
    assert N <= N * M


@pytest.mark.parametrize(
    "ask",
    [
        lambda: N > 5,
        lambda: N < M,
        lambda: N == 3,
        lambda: N != 3,
        lambda: N == M,
        lambda: (N, 4) == (4, 4),
        lambda: 5 >= N,
        lambda: N in (2, 3),
        lambda: max(N, 3),
    ],
)
def test_what_the_bounds_do_not_decide_raises(ask: Callable[[], Any]) -> None:
    with pytest.raises(InconclusiveDimensionOperation, match=r"inconclusive.*1 <= n <= 7"):
        ask()


def test_an_axis_of_unknown_size_is_not_an_axis_of_size_0_or_1() -> None:
    assert N != 1
    assert (N == 1) is False
    assert N - 1 != 0
    assert bool(N - 1)
    assert N not in (0, 1)


@pytest.mark.parametrize(
    "use",
    [
        lambda: int(N),
        lambda: float(N),
        lambda: range(N),
        lambda: [1, 2, 3][N],
        lambda: math.sqrt(N),
        lambda: [0] * N,
        lambda: math.ceil(math.log2(N + 1)),
    ],
)
def test_a_size_has_no_value_for_python(use: Callable[[], Any]) -> None:
    with pytest.raises(
        InconclusiveDimensionOperation, match=r"dimension n.* has no value.*1 <= n <= 7"
    ):
        use()


def test_division_by_what_may_be_zero_raises() -> None:
    for use in (lambda: N // (N - 1), lambda: N % 0, lambda: 5 // (M - 2)):
        with pytest.raises(ZeroDivisionError):
            use()


@pytest.mark.parametrize(
    "args",
    [("1n", 1, 4), ("", 1, 4), ("n m", 1, 4), ("n", 4, 4), ("n", 5, 4), ("n", -1, 4)],
)
def test_no_dimension(args: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError):
        Dim(*args)


def test_bounds_of_multiples_hold_multiples_only() -> None:
    assert bounds_of(Dim("k", 1, 30, multiple_of=8)) == (8, 24)
    with pytest.raises(ValueError, match="multiple_of=8"):
        Dim("k", 1, 15, multiple_of=8)


def test_same_name_and_bounds_are_the_same_dimension() -> None:
    assert Dim("n", 1, 7) is N
    assert Dim("n", 1, 8) is not N
    assert {N: 1}[Dim("n", 1, 7)] == 1


def test_copies_and_pickles_are_the_object() -> None:
    for size in (N, 2 * E + N, N // 2, maximum(N, 3), E // 2):
        assert copy.deepcopy(size) is size
        assert pickle.loads(pickle.dumps(size)) is size
    assert isinstance(pickle.loads(pickle.dumps(N)), Dim)


def test_questions() -> None:
    assert is_symbolic(N)
    assert not is_symbolic(3)
    assert is_size(N)
    assert is_size(3)
    assert not is_size(3.0)
    assert not is_size("n")
    assert dims_of([2, M + N // 2, E]) == [M.atom, N.atom, E.atom]
    assert describe(E, 2, N + E) == "with 4 <= e <= 16, a multiple of 4 and 1 <= n <= 7"
    assert isinstance(N * 2, DimExpr)
    assert not isinstance(N * 2, Dim)
    assert isinstance(N * 2 - N, Dim)


def test_the_larger_and_the_smaller_of_two_sizes_as_users_give_them():
    assert max_dim(3, True) == 3 and min_dim(3, 5) == 3
    assert max_dim(N, 7) == 7 and min_dim(N, 7) is N
    larger = max_dim(N, 4)
    assert [evaluate(larger, {N.atom: v}) for v in VALUES[N]] == [4, 4, 4, 4, 5, 6, 7]
    with pytest.raises(TypeError, match="d2 must be an integer, got 1.5"):
        max_dim(N, 1.5)
