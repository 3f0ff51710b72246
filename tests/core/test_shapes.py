"""Shapes of symbolic sizes, by brute force over the sizes and against NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tinyjax.core.dims import Dim, evaluate, is_symbolic
from tinyjax.core.errors import InconclusiveDimensionOperation
from tinyjax.core.shapes import broadcast_shapes, reshaped, same_shape, slice_steps

N, M = Dim("n", 1, 6), Dim("m", 1, 4)
E = Dim("e", 4, 12, multiple_of=4)

ENDS: list[Any] = [None, *range(-7, 8), N, N - 1, N // 2, -N, N + 2]
STEPS = [None, 1, 2, 3, -1, -2, -3]


@pytest.mark.parametrize("step", STEPS)
def test_a_slice_of_a_symbolic_axis_takes_what_it_takes_at_each_size(step: int | None) -> None:
    for start, stop in itertools.product(ENDS, ENDS):
        first, count, by, last = slice_steps(slice(start, stop, step), N)
        for size in range(1, 7):
            at = {N.atom: size}
            ends = [x if x is None else evaluate(x, at) for x in (start, stop)]
            want = range(*slice(*ends, step).indices(size))
            assert evaluate(count, at) == len(want)
            if len(want):
                assert evaluate(first, at) == want[0]
            assert by == want.step
            # What SLICE takes, of the axis or of the reversed one.
            low, high = evaluate(first, at), evaluate(last, at)
            if by < 0:
                low, high = size - 1 - low, size - 1 - high
            assert 0 <= low <= high <= size
            assert len(range(low, high, abs(by))) == len(want)


def test_a_symbolic_slice_of_an_axis_of_known_size() -> None:
    first, count, step, last = slice_steps(slice(None, N), 5)
    assert (first, str(count), step, str(last)) == (0, "min(n, 5)", 1, "min(n, 5)")
    assert slice_steps(slice(None, N), 6)[1] is N


def test_known_slices_are_python_s() -> None:
    for start, stop, step in itertools.product(range(-4, 5), range(-4, 5), (-2, -1, 1, 2)):
        chosen = range(*slice(start, stop, step).indices(3))
        assert slice_steps(slice(start, stop, step), 3) == (chosen.start, len(chosen), step, None)


def test_a_bound_that_may_count_from_either_end_is_refused() -> None:
    with pytest.raises(InconclusiveDimensionOperation, match="n - 3 < 0"):
        slice_steps(slice(N - 3, None), N)
    with pytest.raises(ValueError, match="zero"):
        slice_steps(slice(None, None, 0), N)


SHAPES: list[list[tuple[Any, ...]]] = [
    [(3, 1), (1, 4)],
    [(), (2, 3)],
    [(5, 1, 3), (4, 1), (3,)],
    [(0, 1), (1, 7)],
    [(N, 1), (1, M)],
    [(N, 4), (4,), ()],
    [(M, 1, 4), (N, 1)],
    [(2 * N,), (1,), (N + N,)],
    [(1,), (N,)],
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcasting_is_numpy_s_at_each_size(shapes: list[tuple[Any, ...]]) -> None:
    found = broadcast_shapes(*shapes)
    for n, m in itertools.product(range(1, 7), range(1, 5)):
        at = {N.atom: n, M.atom: m}
        actual = [tuple(evaluate(s, at) for s in shape) for shape in shapes]
        assert tuple(evaluate(s, at) for s in found) == np.broadcast_shapes(*actual)


def test_shapes_that_do_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"broadcasting: \(2,\), \(3,\)"):
        broadcast_shapes((2,), (3,))
    with pytest.raises(ValueError):
        broadcast_shapes((N,), (7,))  # n is 6 at most
    with pytest.raises(InconclusiveDimensionOperation, match="n and 5 are equal for some sizes"):
        broadcast_shapes((N,), (5,))
    with pytest.raises(InconclusiveDimensionOperation, match="n and m are equal for some sizes"):
        broadcast_shapes((N,), (M,))


RESHAPES: list[tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...] | None]] = [
    ((6, 4), (-1,), (24,)),
    ((6, 4), (3, -1), (3, 8)),
    ((6, 4), (5, -1), None),
    ((6, 4), (-1, -1), None),
    ((6, 4), (-2, -12), None),
    ((6, 4), (-2, -1, 12), None),
    ((0, 4), (0, -1), None),
    ((0, 4), (2, 0), (2, 0)),
    ((6, 4), (7,), None),
    ((), (1, -1), (1, 1)),
    ((N, 4), (-1,), (4 * N,)),
    ((N, 4), (N, 2, -1), (N, 2, 2)),
    ((N, M, 3), (-1, 3), (M * N, 3)),
    ((N * M, 3), (N, M, -1), (N, M, 3)),
    ((E,), (-1, 4), (E // 4, 4)),
    ((E, 3), (E // 4, -1), (E // 4, 12)),
    ((N, 4), (100,), None),  # 24 at most
]


@pytest.mark.parametrize("row", RESHAPES, ids=str)
def test_reshaped(row: tuple[Any, ...]) -> None:
    old, sizes, want = row
    found = reshaped(old, sizes)
    assert (found is None) == (want is None)
    assert want is None or same_shape(found, want)  # type: ignore[arg-type]


def test_reshapes_that_depend_on_the_size() -> None:
    with pytest.raises(
        InconclusiveDimensionOperation, match="4\\*n and 8 are equal for some sizes"
    ):
        reshaped((N, 4), (8,))
    with pytest.raises(
        InconclusiveDimensionOperation, match=r"remainder mod\(n, 2\) is 0 for some"
    ):
        reshaped((N,), (2, -1))


def test_shapes_are_the_same_if_they_are_for_every_size() -> None:
    assert same_shape((N, 3), (N, 3))
    assert same_shape((2, 3), (2, 3))
    assert same_shape((), ())
    assert not same_shape((N,), (M,))
    assert not same_shape((N, 4), (4,))
    assert not same_shape((N,), (5,))
    assert not same_shape((2,), (3,))
    assert is_symbolic(N)
