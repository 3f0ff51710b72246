"""Integer algebra, proved by enumeration: what is simplified is evaluated over its whole domain."""

from __future__ import annotations

import gc
import itertools
import math
import os
import random
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyjax.core import integers, magic
from tinyjax.core.avals import aval
from tinyjax.core.intervals import INT64, INT64_SPAN
from tinyjax.core.kernel_text import expression
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const, const_value, nodes_created, param, toposort
from tinyjax.core.weak import forget_dead

I32 = np.dtype(np.int32)
ROOT = Path(__file__).parents[2]
c = integers.integer


def loop(number: int, extent: int) -> UOp:
    return UOp(Op.RANGE, (c(extent),), (number, "loop"))


ANY = param(0, aval((), INT64))  # an int64 about which nothing is known
WILD = np.array([0, 1, -1, 5, 7, -13, 2**62, -(2**62), 2**63 - 1, -(2**63)])

NUMPY: dict[Op, Any] = {
    Op.ADD: np.add, Op.SUB: np.subtract, Op.MUL: np.multiply, Op.NEG: np.negative,
    Op.MAX: np.maximum, Op.MIN: np.minimum, Op.IDIV: np.floor_divide, Op.MOD: np.mod,
    Op.CMPLT: np.less, Op.CMPLE: np.less_equal, Op.CMPEQ: np.equal, Op.CMPNE: np.not_equal,
    Op.AND: np.bitwise_and, Op.OR: np.bitwise_or, Op.XOR: np.bitwise_xor, Op.NOT: np.invert,
    Op.ABS: np.abs, Op.SIGN: np.sign, Op.WHERE: np.where, Op.REM: np.fmod,
    Op.SHL: np.left_shift, Op.SHRA: np.right_shift, Op.SHRL: np.right_shift,
    Op.DIV: lambda a, b: (a - np.fmod(a, b)) // b,
}  # fmt: skip


def evaluate(root: UOp, env: dict[UOp, Any]) -> Any:
    """The values of a node over the points of `env`."""
    done = dict(env)
    with np.errstate(all="ignore"):
        for n in toposort([root], keep=lambda m: m not in done):
            src = [done[s] for s in n.src]
            if n.op is Op.CONST:
                done[n] = const_value(n)
            elif n.op is Op.CAST:
                done[n] = np.asarray(src[0]).astype(n.arg[0])
            else:
                done[n] = NUMPY[n.op](*src)
    size = len(next(iter(env.values())))
    return np.broadcast_to(done[root], (size,))


def grid(loops: list[UOp], wild: bool = False) -> dict[UOp, Any]:
    """All points of some loops (times a few values of ANY)."""
    axes = [np.arange(int(const_value(r.src[0]))) for r in loops] + [WILD if wild else WILD[:1]]
    points = np.meshgrid(*axes, indexing="ij")
    return {r: p.ravel() for r, p in zip([*loops, ANY], points)}


# --- expressions made by hypothesis ------------------------------------------------------------

EXTENTS = (1, 2, 3, 4, 5, 6, 8, 12)
DIVISORS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30)
FACTORS = (-3, -1, 2, 3, 4, 5, 6, 8, 10, 12, 15)
COMPARE = (Op.CMPLT, Op.CMPLE, Op.CMPEQ, Op.CMPNE)
STEP = st.tuples(*(st.integers(0, 2**16) for _ in range(4)))


def build(steps: list[tuple[int, ...]], loops: list[UOp], wild: bool) -> list[UOp]:
    """One expression per step, over earlier ones: a few numbers decide."""
    values = [*loops, ANY] if wild else list(loops)
    conditions: list[UOp] = []
    made = []
    for kind, i, j, k in steps:
        x = values[i % len(values)]
        y = values[j % len(values)] if k % 3 else c(j % 41 - 20)
        d, f = c(DIVISORS[k % len(DIVISORS)]), c(FACTORS[k % len(FACTORS)])
        choices: list[tuple[Op, tuple[UOp, ...]]] = [
            (Op.ADD, (x, y)), (Op.ADD, (x, y)), (Op.SUB, (x, y)), (Op.MUL, (x, f)),
            (Op.MUL, (x, f)), (Op.IDIV, (x, d)), (Op.IDIV, (x, d)), (Op.MOD, (x, d)),
            (Op.MOD, (x, d)), (Op.MAX, (x, y)), (Op.MIN, (x, y)), (Op.MUL, (x, y)),
            (Op.DIV, (x, d)), (Op.REM, (x, d)), (Op.AND, (x, c((-1, 0, 1, 3, 7)[k % 5]))),
            ((Op.NEG, Op.NOT, Op.ABS)[k % 3], (x,)), ((Op.SHL, Op.SHRA)[k % 2], (x, c(j % 5))),
            (COMPARE[k % 4], (x, y)), (COMPARE[k % 4], (y, x)),
        ]  # fmt: skip
        if conditions:
            p, q = conditions[i % len(conditions)], conditions[j % len(conditions)]
            choices += [(Op.WHERE, (p, x, y)), (Op.AND, (p, q)), (Op.OR, (p, q)), (Op.NOT, (p,))]
        node = UOp(*choices[kind % len(choices)])
        (values if node.dtype == INT64 else conditions).append(node)
        made.append(node)
    return made


def check_expressions(seed: int) -> None:
    """A few expressions over three loops: simplified ones are equal, bounded and final."""
    rng = random.Random(seed)
    extents = [rng.choice(EXTENTS) for _ in range(3)]
    steps = [tuple(rng.randrange(2**16) for _ in range(4)) for _ in range(rng.randint(3, 14))]
    wild = seed % 3 == 0
    loops = [loop(i, n) for i, n in enumerate(extents)]
    env = grid(loops, wild)
    made = build(steps, loops, wild)
    conditions = [n for n in made if n.dtype != INT64]
    for node in made:
        want = evaluate(node, env)
        simple = integers.simplify(node)
        assert (evaluate(simple, env) == want).all(), expression(node)
        assert integers.simplify(simple) is simple, expression(node)
        low, high = integers.bounds(node)
        assert low <= want.min() and want.max() <= high, expression(node)
        for valid in conditions[-2:]:
            where = evaluate(valid, env)
            gated = integers.simplify_index(node, valid)
            assert (evaluate(gated, env) == want)[where].all(), expression(node)
            if where.any():
                low, high = integers.assume(valid).bounds(node)
                assert low <= want[where].min() and want[where].max() <= high
    for valid in conditions:
        simple = integers.simplify_valid(valid)
        assert (evaluate(simple, env) == evaluate(valid, env)).all(), expression(valid)


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(st.integers(0, 2**40))
def test_simplified_expressions_are_equal_bounded_and_final(seed: int) -> None:
    check_expressions(seed)


@pytest.mark.slow
def test_many_more_simplified_expressions_are_equal_bounded_and_final() -> None:
    for seed in range(50_000):
        check_expressions(seed)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(STEP, min_size=2, max_size=8), st.sampled_from(["i1", "u1", "i4", "u4"]))
def test_narrow_integers_wrap_and_are_widened_only_when_they_do_not(
    steps: list[tuple[int, ...]], name: str
) -> None:
    dtype = np.dtype(name)
    loops = [loop(0, 6), loop(1, 9)]
    env = grid(loops)
    narrow = [UOp(Op.CAST, (r,), (dtype, False)) for r in loops]
    for kind, i, j, k in steps:
        x, y = narrow[i % len(narrow)], narrow[j % len(narrow)]
        y = y if k % 2 else const(k % 100, dtype)
        choices: list[tuple[Op, tuple[UOp, ...]]] = [
            (Op.ADD, (x, y)), (Op.SUB, (x, y)), (Op.MUL, (x, y)), (Op.MAX, (x, y)),
            (Op.MIN, (x, y)), (Op.AND, (x, y)), (Op.OR, (x, y)), (Op.XOR, (x, y)),
            (Op.DIV, (x, const(1 + k % 9, dtype))), (Op.REM, (x, const(1 + k % 9, dtype))),
        ]  # fmt: skip
        node = UOp(*choices[kind % len(choices)])
        narrow.append(node)
        want = evaluate(node, env)
        low, high = integers.bounds(node)
        assert low <= want.min() and want.max() <= high
        assert (evaluate(integers.index(node), env) == want.astype(np.int64)).all()
        less = UOp(Op.CMPLT, (x, y))
        assert (evaluate(integers.simplify(less), env) == evaluate(less, env)).all()


def test_constructors_give_what_simplifying_afterwards_gives() -> None:
    rng = random.Random(0)
    for _ in range(300):
        loops = [loop(i, rng.choice(EXTENTS)) for i in range(3)]
        raw: list[UOp] = list(loops)
        built = list(loops)
        for _ in range(8):
            i, j, d = rng.randrange(len(raw)), rng.randrange(len(raw)), c(rng.choice(DIVISORS))
            op, make = rng.choice(
                [(Op.ADD, integers.add), (Op.SUB, integers.sub), (Op.MUL, integers.mul),
                 (Op.IDIV, integers.idiv), (Op.MOD, integers.mod), (Op.MAX, integers.max_)]
            )  # fmt: skip
            small = op in (Op.MUL, Op.IDIV, Op.MOD)
            raw.append(UOp(op, (raw[i], d if small else raw[j])))
            built.append(make(built[i], d if small else built[j]))
            assert integers.simplify(raw[-1]) is built[-1]


# --- the cases of the first compiler -----------------------------------------------------------


def test_a_quotient_and_its_remainder_give_the_value_back() -> None:
    a, b = loop(0, 8), loop(1, 15)
    x = integers.add(integers.mul(a, c(15)), b)
    tens = integers.mul(integers.idiv(x, c(10)), c(10))
    assert integers.add(tens, integers.mod(x, c(10))) is x
    twos = integers.mul(integers.idiv(x, c(10)), c(2))
    joined = integers.add(twos, integers.mod(integers.idiv(x, c(5)), c(2)))
    assert joined is integers.add(integers.mul(a, c(3)), integers.idiv(b, c(5)))
    assert expression(joined) == "r0*3 + r1//5"
    y = integers.add(integers.mul(a, c(6)), loop(1, 6))
    twelves = integers.mul(integers.idiv(y, c(12)), c(12))
    assert integers.add(twelves, integers.mod(y, c(12))) is y


def unravel(x: UOp, shape: list[int]) -> list[UOp]:
    out = []
    for n in reversed(shape[1:]):
        out.append(integers.mod(x, c(n)))
        x = integers.idiv(x, c(n))
    return [x, *reversed(out)]


def ravel(idx: list[UOp], shape: list[int]) -> UOp:
    flat = c(0)
    for i, n in zip(idx, shape):
        flat = integers.add(integers.mul(flat, c(n)), i)
    return flat


def factors(total: int, rng: random.Random) -> list[int]:
    out: list[int] = []
    while total > 1 and len(out) < 4:
        d = rng.choice([d for d in range(2, total + 1) if total % d == 0])
        out.append(d)
        total //= d
    return [*out, total] if total > 1 else out


def test_reshaping_there_and_back_leaves_nothing() -> None:
    for seed in range(400):
        rng = random.Random(seed)
        total = rng.choice([12, 24, 36, 48, 60, 72, 120, 180, 210, 360])
        first, second, third = (factors(total, rng) for _ in range(3))
        x = ravel([loop(i, n) for i, n in enumerate(first)], first)
        there = unravel(x, second)
        assert ravel(there, second) is x
        assert ravel(unravel(ravel(there, second), third), third) is x
        # Joining some of the axes is one remainder, dropping the last is one quotient.
        assert ravel(there[1:], second[1:]) is integers.mod(x, c(math.prod(second[1:])))
        assert ravel(there[:-1], second[:-1]) is integers.idiv(x, c(second[-1]))


def test_sums_have_one_order_whatever_the_order_of_their_making() -> None:
    terms = [integers.mul(loop(i, 5), c(i + 2)) for i in range(4)] + [ANY, c(7)]
    found = set()
    for order in itertools.permutations(terms):
        total = c(0)
        for t in order:
            total = integers.add(total, t)
        found.add(total)
    assert len(found) == 1
    assert expression(found.pop()) == "p0 + r0*2 + r1*3 + r2*4 + r3*5 + 7"


def test_overflow_is_never_assumed_away() -> None:
    """(x + 1 < 0 is not x < -1, and (2*x)//2 not x, for an int64 that may be anything.)"""
    env = {ANY: WILD}
    for node in (
        UOp(Op.CMPLT, (UOp(Op.ADD, (ANY, c(1))), c(0))),
        UOp(Op.IDIV, (UOp(Op.MUL, (ANY, c(2))), c(2))),
        UOp(Op.CMPLT, (ANY, UOp(Op.ADD, (ANY, c(1))))),
    ):
        assert (evaluate(integers.simplify(node), env) == evaluate(node, env)).all()
    assert integers.simplify(UOp(Op.SUB, (UOp(Op.ADD, (ANY, c(1))), ANY))) is c(1)
    # A sum that may wrap is not its form, so 2*(s//2) < b - s%2 is not s < b.
    r = loop(0, 3)
    h = UOp(Op.IDIV, (ANY, c(4)))
    total = UOp(Op.ADD, (UOp(Op.MUL, (h, c(8))), r))
    half, rest = UOp(Op.IDIV, (total, c(2))), UOp(Op.MOD, (total, c(2)))
    other = UOp(Op.SUB, (UOp(Op.ADD, (UOp(Op.MUL, (h, c(4))), c(2))), rest))
    less = UOp(Op.CMPLT, (UOp(Op.MUL, (half, c(2))), other))
    points = grid([r], wild=True)
    assert (evaluate(integers.simplify(less), points) == evaluate(less, points)).all()


def test_unsigned_64_bit_operands_are_not_taken_for_their_value_in_int64() -> None:
    """min and max, division and shifts of a uint64 above 2**63 - 1 are done before it wraps."""
    wide = param(0, aval((), np.dtype(np.uint64)))
    values = np.array([0, 1, 5, 7, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    for op, k in itertools.product((Op.MIN, Op.DIV, Op.REM, Op.SHRL, Op.AND), (1, 3, 8)):
        node = UOp(op, (wide, const(k, wide.aval.dtype)))
        found = integers.simplify(UOp(Op.CAST, (node,), (INT64, False)))
        apply = {Op.MIN: min, Op.DIV: int.__floordiv__, Op.REM: int.__mod__,
                 Op.SHRL: int.__rshift__, Op.AND: int.__and__}[op]  # fmt: skip
        wanted = [apply(int(v), k) for v in values]
        wrapped = [(w + 2**63) % 2**64 - 2**63 for w in wanted]
        assert [int(v) for v in evaluate(found, {wide: values})] == wrapped, (op, k)


def test_the_condition_that_a_sum_lies_in_a_span() -> None:
    r, s = loop(0, 6), loop(1, 5)
    algebra = integers.PLAIN
    for k, shift, low, high in itertools.product((1, -2), (0, 3), (-4, 0, 2), (-5, 1, 9)):
        form = algebra.linear(integers.add(integers.mul(r, c(k)), integers.add(s, c(shift))))
        found = algebra.inside(form, low, high)
        points = grid([r, s])
        total = k * points[r] + points[s] + shift
        np.testing.assert_array_equal(evaluate(found, points), (low <= total) & (total <= high))


def test_bounds_of_bit_operations_and_conversions() -> None:
    x = param(0, aval((), I32))
    assert integers.bounds(UOp(Op.AND, (x, const(-1, I32)))) == (-(2**31), 2**31 - 1)
    assert integers.bounds(UOp(Op.AND, (x, const(7, I32)))) == (0, 7)
    assert integers.bounds(UOp(Op.CAST, (x,), (np.dtype("u1"), False))) == (0, 255)
    assert integers.bounds(UOp(Op.CAST, (x,), (np.dtype(bool), False))) == (0, 1)
    assert integers.bounds(ANY) == INT64_SPAN
    r = loop(0, 10)
    assert integers.bounds(UOp(Op.CAST, (r,), (np.dtype("u1"), False))) == (0, 9)
    low = UOp(Op.SUB, (r, c(5)))  # -5..4 does not fit an unsigned byte: any value is possible
    assert integers.bounds(UOp(Op.CAST, (low,), (np.dtype("u1"), False))) == (0, 255)


def test_conversions_of_loop_variables_vanish() -> None:
    r, s = loop(0, 9), loop(1, 9)
    i, j = (UOp(Op.CAST, (x,), (I32, False)) for x in (r, s))
    assert integers.index(UOp(Op.ADD, (i, const(3, I32)))) is integers.add(r, c(3))
    assert integers.simplify(UOp(Op.CMPLE, (j, i))) is integers.le(s, r)  # a triangular mask


# --- conditions --------------------------------------------------------------------------------


def test_conditions_have_one_form() -> None:
    r, s = loop(0, 10), loop(1, 4)
    assert integers.lt(integers.mul(r, c(4)), c(13)) is integers.lt(r, c(4))
    assert integers.not_(integers.lt(r, c(4))) is integers.le(c(4), r)
    assert integers.ge(r, c(4)) is integers.gt(r, c(3))
    assert integers.lt(integers.idiv(r, c(3)), c(2)) is integers.lt(r, c(6))
    flat = integers.add(integers.mul(r, c(4)), s)
    assert integers.lt(flat, c(12)) is integers.lt(r, c(3))
    assert integers.eq(integers.mul(r, c(2)), c(3)) is integers.FALSE
    assert integers.lt(r, c(10)) is integers.TRUE
    assert integers.eq(r, c(0)) is integers.lt(r, c(1))


def test_conjunctions_keep_what_decides() -> None:
    r, s = loop(0, 10), loop(1, 4)
    small, less, large = integers.lt(r, c(4)), integers.lt(r, c(8)), integers.ge(r, c(6))
    assert integers.and_(small, less) is small
    assert integers.or_(small, less) is less
    assert integers.and_(small, large) is integers.FALSE
    assert integers.or_(integers.lt(r, c(7)), large) is integers.TRUE
    other = integers.eq(s, c(2))
    assert integers.and_(small, integers.or_(small, other)) is small
    assert integers.and_(other, small) is integers.and_(small, other)
    assert integers.not_(integers.and_(small, other)) is integers.or_(
        integers.ge(r, c(4)), integers.ne(s, c(2))
    )


def test_a_condition_drops_what_its_other_parts_imply() -> None:
    r, s = loop(0, 10), loop(1, 4)
    both = UOp(Op.AND, (integers.lt(r, c(3)), integers.lt(integers.add(r, s), c(7))))
    assert integers.simplify_valid(both) is integers.lt(r, c(3))


def test_an_index_is_simplified_under_its_guard() -> None:
    x = integers.add(integers.mul(loop(0, 8), c(15)), loop(1, 15))
    assert integers.simplify_index(integers.mod(x, c(30)), integers.lt(x, c(30))) is x
    # A loaded index that is checked is an index within the buffer.
    row = integers.mod(ANY, c(100))
    valid = UOp(Op.AND, (integers.le(c(0), ANY), integers.lt(ANY, c(100))))
    assert integers.simplify_index(row, valid) is ANY
    assert integers.simplify_gated(row, integers.TRUE) == (row, None)


# --- shrinking ---------------------------------------------------------------------------------


def test_guarded_loops_shrink() -> None:
    r = loop(0, 204)
    four, eight = integers.lt(r, c(4)), integers.lt(r, c(8))
    assert integers.guarded_span(r, [four]) == (0, 3)
    assert integers.guarded_span(r, [four, eight]) == (0, 7)
    assert integers.guarded_span(r, [UOp(Op.CMPLT, (r, c(300)))]) == (0, 203)
    assert integers.guarded_span(r, [four, None]) == (0, 203)
    assert integers.guarded_span(r, [integers.lt(r, c(1))]) == (0, 0)
    assert integers.guarded_span(r, [integers.not_(integers.ge(r, c(4)))]) == (0, 3)
    assert integers.guarded_span(r, []) == (0, 203)
    assert integers.guarded_span(r, [integers.FALSE]) == (0, 0)
    s = loop(1, 5)
    assert integers.guarded_span(r, [integers.lt(integers.add(r, s), c(4))]) == (0, 3)
    middle = integers.and_(integers.ge(r, c(10)), integers.lt(r, c(20)))
    assert integers.guarded_span(r, [middle]) == (10, 19)
    assert integers.guarded_span(r, [middle, integers.eq(r, c(30))]) == (10, 30)


# --- cost --------------------------------------------------------------------------------------


def test_deep_expressions_are_walked_without_recursion_and_once() -> None:
    node = loop(0, 3)
    for i in range(20_000):
        node = UOp(Op.ADD, (node, loop(i % 7, 3)))
    before = nodes_created()
    found = integers.simplify(node)
    assert len(integers.linear(found)[1]) == 7
    assert nodes_created() - before < 50


# --- division by multiplication ----------------------------------------------------------------

RANGES = ((0, 100), (-100, 100), (-100, -3), (0, 2047), (0, 2**20), (-(2**20), 2**20), (5, 9))


def truncated(n: int, d: int) -> int:
    q = abs(n) // abs(d)
    return q if (n < 0) == (d < 0) else -q


def dividends(d: int, low: int, high: int) -> set[int]:
    """All of a short range; else the ends, zero, and what lies around multiples of d."""
    if high - low < 3000:
        return set(range(low, high + 1))
    rng = random.Random(d)
    around = [low, high, 0, -1, (high // d) * d, -(-low // d) * d, low // 2 // d * d]
    around += [k * d for k in (-7, -1, 1, 3, 1000)] + [rng.randint(low, high) for _ in range(20)]
    return {min(max(n + e, low), high) for n in around for e in (-1, 0, 1)}


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("rounding", ["floor", "trunc"])
def test_division_by_multiplication_is_exact(bits: int, rounding: str) -> None:
    top = 1 << (bits - 1)
    whole = ((0, top - 1), (1 - top, top - 1), (-top, top - 1), (-top, -1), (-7, top - 1))
    want = truncated if rounding == "trunc" else (lambda n, d: n // d)
    divisors = [*range(1, 40), 64, 100, 127, 641, 65535, 65536, 65537, 2**31 - 1, 6700417]
    divisors += [-3, -8, -100] if rounding == "trunc" else []
    for d in divisors:
        for low, high in (*RANGES, *whole):
            program = magic.magic_divide(d, low, high, bits, rounding)
            for n in dividends(d, low, high):
                assert program(n) == want(n, d), (program, n)


def test_division_programs_are_short() -> None:
    assert magic.magic_divide(8, -100, 100, 32).steps == (("shr", 3),)
    assert magic.magic_divide(10, 0, 2047, 32).steps == (("mul", 1639), ("shr", 14))
    assert magic.magic_divide(10, 0, 2047, 32).product_bits == 32
    assert magic.magic_divide(10, 0, 2**31 - 1, 32).product_bits == 64
    assert [s for s, _ in magic.magic_divide(12, 0, 2**40).steps] == ["shru", "mulhi"]
    with pytest.raises(ValueError, match="cannot divide"):
        magic.magic_divide(0, 0, 10)


def test_facts_die_with_their_nodes() -> None:
    def work() -> list[weakref.ref[UOp]]:
        x = integers.add(integers.mul(loop(901, 8), c(15)), loop(902, 15))
        rest = integers.mod(x, c(10))
        valid = integers.lt(rest, c(7))
        gated = integers.simplify_index(integers.idiv(x, c(4)), valid)
        return [weakref.ref(n) for n in (x, rest, valid, gated)]

    gone = work()
    forget_dead()
    gc.collect()
    assert [r() for r in gone] == [None] * 4


def test_the_order_of_terms_is_the_same_in_every_process() -> None:
    code = (
        "from tests.core.test_integers import ANY, loop, c, integers\n"
        "from tinyjax.core.kernel_text import expression\n"
        "from tinyjax.core.ops import Op\n"
        "from tinyjax.core.uop import UOp\n"
        "odd = [UOp(op, (ANY, c(k))) for op in (Op.XOR, Op.OR) for k in (3, 5, 6, 9)]\n"
        "total = c(0)\n"
        "for i, n in enumerate(odd):\n"
        "    total = integers.add(total, integers.mul(n, c(i + 2)))\n"
        "print(expression(total))\n"
    )
    texts = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
        texts.add(ran.stdout)
    assert len(texts) == 1
