"""Index expressions: floor division and modulo by enumeration, and what must simplify away."""

from __future__ import annotations

import itertools
import random
from operator import add, floordiv, mod, mul, sub

import pytest

from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const_value
from tinyjax.lowering.affine import FALSE, ZERO, IndexSpace, Lin, lit


def value(space: IndexSpace, a: Lin, env: dict[UOp, int]) -> int:
    """Evaluate an index where the loop variables have these values."""

    def node(n: UOp) -> int:
        if n in env:
            return env[n]
        if n.op is Op.CONST:
            return int(const_value(n))
        x, *more = (node(s) for s in n.src)
        if n.op is Op.NEG:
            return -x
        (y,) = more
        apply = {Op.IDIV: floordiv, Op.MOD: mod, Op.ADD: add, Op.SUB: sub, Op.MUL: mul}[n.op]
        return apply(x, y)

    return a[0] + sum(c * node(n) for n, c in a[1])


def ranges(space: IndexSpace, *extents: int) -> list[Lin]:
    return [space.range(e, i, "loop") for i, e in enumerate(extents)]


def linear(space: IndexSpace, coefficients: list[int], at: list[Lin], constant: int) -> Lin:
    total = lit(constant)
    for c, r in zip(coefficients, at, strict=True):
        total = space.add(total, space.scale(r, c))
    return total


@pytest.mark.parametrize("seed", range(300))
def test_division_and_modulo_are_exact_bounded_and_rejoin(seed):
    rng = random.Random(seed)
    space = IndexSpace()
    extents = [rng.randint(2, 6) for _ in range(3)]
    at = ranges(space, *extents)
    whole = linear(space, [rng.randint(-20, 20) for _ in at], at, rng.randint(-20, 20))
    d = rng.randint(1, 24)
    quotient, rest = space.divmod(whole, d)
    again, _ = space.divmod(quotient, rng.choice([2, 3, 4]))
    low, high = space.limits(quotient)
    for numbers in itertools.product(*map(range, extents)):
        env = {r[1][0][0]: v for r, v in zip(at, numbers)}
        x = value(space, whole, env)
        assert value(space, quotient, env) == x // d
        assert value(space, rest, env) == x % d
        assert low <= x // d <= high
    assert space.add(space.scale(quotient, d), rest) == whole
    assert space.limits(again)


def test_a_split_by_ten_of_15a_plus_b_rejoins():
    space = IndexSpace()
    a, b = ranges(space, 8, 15)
    x = space.add(space.scale(a, 15), b)
    quotient, rest = space.divmod(x, 10)
    assert space.add(space.scale(quotient, 10), rest) == x


def test_quotient_by_ten_twice_plus_parity_of_quotient_by_five_is_3a_plus_b_over_5():
    space = IndexSpace()
    a, b = ranges(space, 8, 15)
    x = space.add(space.scale(a, 15), b)
    parity = space.divmod(space.divmod(x, 5)[0], 2)[1]
    found = space.add(space.scale(space.divmod(x, 10)[0], 2), parity)
    assert found == space.add(space.scale(a, 3), space.divmod(b, 5)[0])


def test_a_split_by_twelve_of_6a_plus_b_rejoins():
    space = IndexSpace()
    a, b = ranges(space, 8, 6)
    y = space.add(space.scale(a, 6), b)
    quotient, rest = space.divmod(y, 12)
    assert space.add(space.scale(quotient, 12), rest) == y


def test_reshapes_that_keep_axis_borders_leave_no_division():
    space = IndexSpace()
    at = tuple(ranges(space, 4, 6, 5))
    flat = space.ravel(at, (4, 6, 5))
    assert space.unravel(flat, (4, 6, 5)) == at
    merged = space.unravel(flat, (24, 5))
    assert all(n.op is Op.RANGE for i in merged for n, _ in i[1])
    assert space.unravel(space.ravel(merged, (24, 5)), (4, 6, 5)) == at


def test_a_reshape_there_and_back_through_other_borders_leaves_the_address():
    space = IndexSpace()
    at = tuple(ranges(space, 3, 8))
    flat = space.ravel(at, (3, 8))
    other = space.unravel(flat, (4, 6))
    assert space.ravel(other, (4, 6)) == flat


def test_conditions_that_always_hold_vanish_and_constants_move_to_one_side():
    space = IndexSpace()
    (a,) = ranges(space, 8)
    assert space.within(a, 0, 8) is None
    guard = space.within(space.shift(a, -2), 0, 6)
    assert guard.op is Op.CMPLE and const_value(guard.src[0]) == 2
    assert space.within(a, 8, 9) is FALSE
    assert space.divmod(space.scale(a, 6), 3)[1] == ZERO


def test_clamp_of_a_value_inside_its_bounds_is_the_value():
    space = IndexSpace()
    (a,) = ranges(space, 8)
    assert space.clamp(a, 0, 7) == a
    assert space.clamp(a, 5, 5) == lit(5)
    assert space.limits(space.clamp(a, 2, 4)) == (2, 4)
    assert space.range(1, 9, "loop") == ZERO
