"""Guards: loads that take a selection's condition, and loops no longer than they need to be."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.golden import assert_text
from tests.lowering.kernels import (
    buffer,
    cast,
    check,
    fold,
    kernel,
    literal,
    load,
    loop,
    node,
    plus,
    same_bits,
    store,
)  # fmt: skip
from tinyjax.core import integers
from tinyjax.core.kernel_text import print_kernel
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.core.verify import verify_kernel
from tinyjax.lowering.guards import gate_loads, shrink_ranges
from tinyjax.lowering.interpret import interpret
from tinyjax.lowering.merge import merge_ranges
from tinyjax.lowering.nest import extent
from tinyjax.lowering.substitute import simplify_indices
from tinyjax.lowering.target import Target

F32, I32, BOOL = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.bool_)
MASKS, AVX2, SSE2 = (
    Target("x86_64-linux", "", "", size, 16, masks, True, True)
    for size, masks in ((64, True), (32, False), (16, False))
)
N = 204
R = loop(N, 1, "reduce")
X = load(buffer(1, (N,), F32), R)
ZERO = literal(0, F32)


def where(condition: UOp, x: UOp, y: UOp) -> UOp:
    return UOp(Op.WHERE, (condition, x, y))


def below(limit: int, r: UOp = R) -> UOp:
    return node(Op.CMPLT, r, limit)


def summed(value: UOp, kind: str = "add") -> UOp:
    """A kernel that folds a value over R."""
    return kernel(store(buffer(0, (1,), value.aval.dtype), literal(0), fold(kind, value, R)))


def guarded(sink: UOp) -> UOp:
    """The kernel after the passes of this file, with the same results on any numbers."""
    made = shrink_ranges(gate_loads(simplify_indices(sink), MASKS))
    verify_kernel(made)
    return made


def extents(sink: UOp) -> list[int]:
    return [extent(n) for n in toposort([sink]) if n.op is Op.RANGE]


def numbers(dtype: Any, seed: int = 0) -> np.ndarray:
    """Numbers of both signs, zeros of both signs; beyond the 15th infinities and NaN."""
    x = np.random.default_rng(seed).integers(-4, 5, N).astype(np.float64)
    x[::7] = -0.0
    if np.dtype(dtype).kind in "fc":
        x[15::3], x[16::3], x[17::3] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        return x.astype(dtype)


def same(before: UOp, after: UOp, *arrays: np.ndarray) -> np.ndarray:
    """Both give the same bits; the generated code too."""
    results = []
    for sink in (before, after):
        out = np.zeros(1, before.src[0].src[0].src[1].aval.dtype)
        interpret(sink, [out, *(a.copy() for a in arrays)])
        results.append(out)
    same_bits(results[1], results[0])
    check(before, [np.zeros_like(results[0]), *arrays])
    return results[0]


# --- how long a loop is: each row of the seed cases ----------------------------------------------

GUARDED = load(buffer(1, (N,), F32), R, below(4), ZERO)
EIGHT = load(buffer(2, (N,), F32), R, below(8), ZERO)
LENGTHS: dict[str, tuple[UOp, int]] = {
    "one guard": (GUARDED, 4),
    "two guards": (node(Op.ADD, GUARDED, EIGHT), 8),
    "a guard that always holds": (load(buffer(1, (N,), F32), R, below(300), ZERO), N),
    "one unguarded use": (node(Op.ADD, GUARDED, load(buffer(2, (N,), F32), R)), N),
    "the loop variable itself": (node(Op.ADD, GUARDED, cast(R, F32)), N),
    "a selection": (where(below(4), X, ZERO), 4),
    "a selection the other way round": (where(UOp(Op.NOT, (below(4),)), ZERO, X), 4),
    "a middle part": (where(node(Op.AND, below(14), UOp(Op.CMPLE, (literal(4), R))), X, ZERO), 10),
    "a scaled selection": (node(Op.MUL, where(below(4), X, ZERO), 3.0), 4),
    "a mask times a finite number": (node(Op.MUL, cast(below(4), F32), 3.0), 4),
    "a mask times anything": (node(Op.MUL, cast(below(4), F32), X), N),
    "another identity": (where(below(4), X, literal(1, F32)), N),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_a_loop_has_the_iterations_that_matter(name: str) -> None:
    value, length = LENGTHS[name]
    before = summed(value)
    after = guarded(before)
    assert extents(after) == [length]
    found = same(before, after, numbers(F32), numbers(F32, 1))
    assert np.isfinite(found).all() or length == N


def test_a_loop_of_one_iteration_disappears_and_its_sum_is_not_minus_zero() -> None:
    before = summed(load(buffer(1, (N,), F32), R, below(1), ZERO))
    after = merge_ranges(guarded(before))
    assert extents(after) == []
    x = numbers(F32)
    x[0] = -0.0
    found = same(before, after, x)
    assert found[0] == 0 and not np.signbit(found[0])


@pytest.mark.parametrize("kind, dtype, idle", [
    ("add", np.int8, 0), ("add", np.uint32, 0), ("add", np.float64, 0), ("add", np.complex64, 0),
    ("add", BOOL, 0), ("max", np.float32, -np.inf), ("min", np.float64, np.inf),
    ("max", np.int32, -(2**31)), ("min", np.uint8, 255), ("or", np.int32, 0), ("xor", np.int32, 0),
    ("and", np.int32, -1), ("mul", np.float32, 1), ("mul", np.int16, 1),
])  # fmt: skip
def test_each_kind_of_fold_and_dtype_shrinks_at_its_identity(kind, dtype, idle) -> None:
    dtype = np.dtype(dtype)
    x = load(buffer(1, (N,), dtype), R)
    before = summed(where(below(13), x, literal(idle, dtype)), kind)
    after = guarded(before)
    assert extents(after) == [13]
    same(before, after, numbers(dtype))


def test_a_maximum_over_a_fill_that_is_not_the_least_keeps_its_loop() -> None:
    assert extents(guarded(summed(where(below(13), X, literal(-1e30, F32)), "max"))) == [N]


def test_sums_that_share_a_loop_share_what_they_need() -> None:
    first, second = fold("add", where(below(4), X, ZERO), R), fold("max", X, R)
    out = buffer(0, (2,), F32)
    both = kernel(store(out, literal(0), first), store(out, literal(1), second))
    assert extents(guarded(both)) == [N]


def test_conditions_that_always_hold_in_the_shorter_loop_vanish() -> None:
    i = loop(6, 0)
    r = loop(20, 1, "reduce")
    middle = node(Op.AND, UOp(Op.CMPLE, (literal(3), r)), below(9, r))
    value = load(buffer(1, (6, 15), F32), plus((i, 15), r, -3), middle, ZERO)
    sink = kernel(store(buffer(0, (6,), F32), i, fold("add", value, r), i))
    assert_text(
        print_kernel(guarded(sink)),
        """
        kernel(p0: f32[6], p1: f32[6,15]):
          for r0 in 0..6 (loop):
            a = add of nothing
            for r1 in 0..6 (reduce):
              a += p1[r0*15 + r1]
            p0[r0] = a""",
    )


def test_stores_behind_a_condition_shorten_their_loops() -> None:
    """`where(r < 4, v, nothing)`: the other elements of the buffer stay as they are."""
    for valid in (below(4, loop(N, 0)), UOp(Op.NOT, (node(Op.CMPLE, literal(4), loop(N, 0)),))):
        r = loop(N, 0)
        sink = kernel(store(buffer(0, (N,), F32), r, cast(r, F32), r, valid=valid))
        after = guarded(sink)
        assert extents(after) == [4]
        out = np.full(N, 7, F32)
        interpret(after, [out])
        np.testing.assert_array_equal(out, np.where(np.arange(N) < 4, np.arange(N), 7))


def test_a_running_sum_keeps_the_iterations_it_runs_through() -> None:
    r = loop(N, 0, "serial")
    running = UOp(Op.PREFIX, (load(buffer(1, (N,), F32), r), r), ("add", False))
    valid = UOp(Op.CMPLE, (literal(100), r))
    sink = kernel(store(buffer(0, (N,), F32), r, running, r, valid=valid))
    assert extents(guarded(sink)) == [N]


# --- gated loads ----------------------------------------------------------------------------------


def gated(value: UOp, target: Target = MASKS) -> UOp:
    i = loop(N, 1)
    sink = kernel(store(buffer(0, (N,), value.aval.dtype), i, value, i))
    return gate_loads(sink, target).src[0].src[0].src[1]


I = loop(N, 1)
PLAIN_LOAD = load(buffer(1, (N,), F32), I)
SMALL = integers.lt(I, literal(9))


def test_a_selection_between_a_load_and_a_literal_is_the_loads_condition() -> None:
    seven = literal(7, F32)
    wanted = load(buffer(1, (N,), F32), I, SMALL, seven)
    assert gated(where(SMALL, PLAIN_LOAD, seven)) is wanted
    assert gated(where(integers.not_(SMALL), seven, PLAIN_LOAD)) is wanted
    assert gated(where(UOp(Op.NOT, (SMALL,)), seven, PLAIN_LOAD)) is wanted


def test_a_selection_by_a_loads_own_condition_gives_it_the_literal() -> None:
    seven = literal(7, F32)
    given = load(buffer(1, (N,), F32), I, SMALL, ZERO)
    wanted = load(buffer(1, (N,), F32), I, SMALL, seven)
    assert gated(where(SMALL, given, seven)) is wanted
    assert gated(where(integers.not_(SMALL), seven, given)) is wanted


def test_a_selection_that_the_loads_condition_implies_is_dropped() -> None:
    more = integers.and_(SMALL, integers.ge(I, literal(2)))
    given = load(buffer(1, (N,), F32), I, more, ZERO)
    assert gated(where(SMALL, given, ZERO)) is given
    kept = where(SMALL, given, literal(7, F32))
    assert gated(kept) is kept


def test_loads_that_gain_nothing_are_left_alone() -> None:
    other = load(buffer(2, (N,), BOOL), I)
    backwards = load(buffer(1, (N,), F32), plus((I, -1), N - 1))
    twice = node(Op.ADD, where(SMALL, PLAIN_LOAD, ZERO), PLAIN_LOAD)
    for value in (where(other, PLAIN_LOAD, ZERO), where(SMALL, backwards, ZERO), twice,
                  where(SMALL, PLAIN_LOAD, load(buffer(2, (N,), F32), I))):  # fmt: skip
        assert gated(value) is value


def test_loads_are_gated_where_the_machine_has_masked_ones() -> None:
    narrow = where(SMALL, load(buffer(1, (N,), np.int8), I), literal(0, np.int8))
    wide = where(SMALL, PLAIN_LOAD, ZERO)
    for target, gates_narrow, gates_wide in ((MASKS, 1, 1), (AVX2, 0, 1), (SSE2, 0, 0)):
        assert (gated(narrow, target) is not narrow) == gates_narrow
        assert (gated(wide, target) is not wide) == gates_wide


@pytest.mark.parametrize("low, high", list(itertools.combinations(range(0, 21, 5), 2)))
def test_gated_and_shortened_kernels_run_right(low: int, high: int) -> None:
    """A banded matrix: rows as lanes, columns as lanes, every border inside and outside."""
    i, r = loop(20, 0), loop(37, 1, "reduce")
    band = node(Op.AND, UOp(Op.CMPLE, (plus(i, low), r)), UOp(Op.CMPLT, (r, plus(i, high))))
    value = where(band, load(buffer(1, (20, 37), F32), plus((i, 37), r)), ZERO)
    sink = kernel(store(buffer(0, (20,), F32), i, fold("add", value, r), i))
    after = guarded(sink)
    assert extents(after) == [20, min(37, 19 + high) - low]
    rng = np.random.default_rng(low * 100 + high)
    x = rng.integers(-9, 9, (20, 37)).astype(F32)
    columns, rows = np.arange(37), np.arange(20)[:, None]
    outside = (columns < rows + low) | (columns >= rows + high)
    x[outside] = np.nan
    check(sink, [np.zeros(20, F32), x])
    out = np.zeros(20, F32)
    interpret(after, [out, x])
    np.testing.assert_array_equal(out, np.where(outside, 0, x).sum(1))
