"""Folds with a closed form: sums over a loop variable that need no loop.

    sum over r of x                          x * n                                x without r
    sum over r of (a*r + b)                  a*n*(n-1)/2 + b*n                    integers
    sum over r of where(low <= r <= high, x, 0)   x * how many such r there are   x without r
    fold over r of where(r == e, f(r), identity)  where(0 <= e < n, f(e), identity)

Masks over `arange`, one-hot selections and counts are written so. Integer results are exact modulo
their width, as the sums are. A float sum starts from +0.0 and is never -0.0, nor is its closed
form; it is rounded once instead of n times. Infinities and NaN behind a false condition do not
matter, in the closed form as in the sum.

`close_folds` is a table of rules; each removes at least one range of one fold. `e`, `low` and
`high` may depend on anything but r, loaded integers too.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinyjax.core import dtypes
from tinyjax.core.algebra import PLAIN
from tinyjax.core.conditions import chain
from tinyjax.core.facts import FALSE, TRUE, Form, integer
from tinyjax.core.intervals import BOOL, INT64, INT64_SPAN, dtype_span, within
from tinyjax.core.ops import Op
from tinyjax.core.rewrite import P, Rules, rewrite
from tinyjax.core.uop import UOp, const, const_value, toposort
from tinyjax.lowering.interpret import identity
from tinyjax.lowering.nest import extent, limit
from tinyjax.lowering.substitute import substitute

rules = Rules("close_folds")


def close_folds(sink: UOp) -> UOp:
    """sum over a loop variable of a count, a mask or a selection -> its closed form"""
    return rewrite([sink], rules, pass_name="close_folds")[0]


# --- what a value depends on ----------------------------------------------------------------------


def mentions(node: UOp, r: UOp) -> bool:
    """Whether a value changes with a range."""
    return r in toposort([node])


def is_identity(node: UOp, kind: str) -> bool:
    """Whether a literal changes nothing in a fold of this kind; -0.0 is as good as 0.0 in a sum."""
    if node.op is not Op.CONST or not hasattr(node.aval, "dtype"):
        return False
    if kind in ("and", "or", "xor") and dtypes.is_inexact(node.aval.dtype):
        return False  # a float on the way to what is folded, behind a comparison
    return bool(const_value(node) == identity(kind, node.aval.dtype))


def with_fold(value: UOp, ranges: tuple[UOp, ...], kind: str) -> UOp:
    """What is left of a fold."""
    return UOp(Op.FOLD, (value, *ranges), kind) if ranges else value


def without_minus_zero(value: UOp) -> UOp:
    """x + 0.0: a sum that starts from +0.0 is never -0.0."""
    if not dtypes.is_inexact(value.aval.dtype):
        return value
    return UOp(Op.ADD, (value, const(0, value.aval.dtype)))


def times(value: UOp, count: UOp) -> UOp:
    """value added up `count` >= 0 times, `count` an int64 scalar; nothing at all is +0."""
    dtype = value.aval.dtype
    if dtypes.is_complex(dtype):  # part by part: inf * (n + 0j) has a NaN that a sum has not
        parts = (times(UOp(op, (value,)), count) for op in (Op.REAL, Op.IMAG))
        return UOp(Op.COMPLEX, tuple(parts))
    factor = count if dtype == INT64 else UOp(Op.CAST, (count,), (dtype, False))
    if count.op is Op.CONST:
        factor = const(const_value(count), dtype)
    if value.op is Op.CONST and const_value(value) == 1:
        return factor
    product = without_minus_zero(UOp(Op.MUL, (value, factor)))
    least = PLAIN.bounds(count)[0]
    if least > 0 or not dtypes.is_inexact(dtype):
        return product
    some = PLAIN.compare(Op.CMPLT, integer(0), count)
    return UOp(Op.WHERE, (some, product, const(0, dtype)))


# --- conditions on one range ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Solved:
    """A condition as: max(lows) <= r <= min(highs), r == at (all of them), and `rest` without r."""

    lows: tuple[Form, ...]
    highs: tuple[Form, ...]
    at: Form | None
    rest: UOp


def solve(condition: UOp, r: UOp) -> Solved | None:
    """Bounds of r where a condition holds; None if it is no conjunction of such."""
    if limit(r) is not None:
        return None
    lows: list[Form] = [(0, ())]
    highs: list[Form] = [(extent(r) - 1, ())]
    at: Form | None = None
    rest: list[UOp] = []
    for c in chain(PLAIN.canonical(condition), Op.AND):
        if not mentions(c, r):
            rest.append(c)
            continue
        if c.op not in (Op.CMPLT, Op.CMPLE, Op.CMPEQ) or dtype_span(c.src[0].aval.dtype) is None:
            return None
        x, y = (PLAIN.wide(s) for s in c.src)
        if not (PLAIN.exact(x) and PLAIN.exact(y)):
            return None
        difference = PLAIN.plus(x, y, -1)
        k = dict(difference[1]).get(r, 0)
        others: Form = (difference[0], tuple((n, q) for n, q in difference[1] if n is not r))
        if abs(k) != 1 or any(mentions(n, r) for n, _ in others[1]):
            return None
        strict = (1, ()) if c.op is Op.CMPLT else (0, ())
        if k > 0:  # r + others <= 0, or < 0
            bound = PLAIN.scale(PLAIN.plus(others, strict), -1)
        else:
            bound = PLAIN.plus(others, strict)
        if not within(PLAIN.limits(bound), INT64_SPAN):
            return None
        if c.op is Op.CMPEQ:
            at = bound if at is None else at
            lows.append(bound)
            highs.append(bound)
        elif k > 0:
            highs.append(bound)
        else:
            lows.append(bound)
    return Solved(tuple(lows), tuple(highs), at, PLAIN.junction(Op.AND, rest))


def count_of(s: Solved, r: UOp) -> UOp:
    """How many values of r meet the bounds, an int64 scalar."""
    n = extent(r)
    low = PLAIN.extreme(Op.MIN, [PLAIN.extreme(Op.MAX, s.lows), (n, ())])
    high = PLAIN.extreme(Op.MAX, [PLAIN.extreme(Op.MIN, s.highs), (-1, ())])
    length = PLAIN.plus(PLAIN.plus(high, (1, ())), low, -1)
    return PLAIN.node(PLAIN.extreme(Op.MAX, [(0, ()), length]))


def masked(value: UOp, kind: str) -> tuple[UOp, UOp, UOp] | None:
    """(condition, value, identity) of a value that is the identity where a condition is false."""
    if value.op is Op.WHERE:
        c, x, y = value.src
        if is_identity(y, kind):
            return c, x, y
        if is_identity(x, kind):
            return PLAIN.negation(PLAIN.canonical(c)), y, x
    if value.op is Op.CAST and value.src[0].aval.dtype == BOOL and kind == "add":
        dtype = value.aval.dtype
        if dtype != BOOL:
            return value.src[0], const(1, dtype), const(0, dtype)
    if value.op is Op.CAST and kind == "add":  # a count converted afterwards
        inner = masked(value.src[0], kind)
        if inner is not None:
            c, x, y = inner
            return c, UOp(Op.CAST, (x,), value.arg), const(0, value.aval.dtype)
    return None


# --- the rules ------------------------------------------------------------------------------------

ANY_FOLD = P.fold(P.any("value"), rest="ranges", name="fold")
PLAIN_KINDS = frozenset({"add", "mul", "max", "min", "and", "or", "xor"})


@rules.rule(ANY_FOLD)
def fold_of_nothing(fold: UOp, value: UOp) -> UOp | None:
    """fold of the identity -> the identity"""
    if fold.arg not in PLAIN_KINDS or not is_identity(value, fold.arg):
        return None
    return const(identity(fold.arg, value.aval.dtype), value.aval.dtype)


@rules.rule(ANY_FOLD)
def fold_without_its_range(fold: UOp, value: UOp, ranges: tuple[UOp, ...]) -> UOp | None:
    """sum over r of x -> x * n; max, min, and, or over r of x -> x; where x does not mention r"""
    kind = fold.arg
    if kind not in PLAIN_KINDS or kind in ("mul", "xor"):
        return None
    below = set(toposort([value]))
    idle = [r for r in ranges if r not in below and limit(r) is None]
    if not idle:
        return None
    left = with_fold(value, tuple(r for r in ranges if r not in idle), kind)
    if kind != "add" or value.aval.dtype == BOOL:
        return left
    count = 1
    for r in idle:
        count *= extent(r)
    return times(left, integer(count))


@rules.rule(ANY_FOLD)
def sum_of_affine(fold: UOp, value: UOp, ranges: tuple[UOp, ...]) -> UOp | None:
    """sum over r of (a*r + b) -> a*n*(n-1)/2 + b*n, for integers, converted or not"""
    dtype = value.aval.dtype if fold.arg == "add" else BOOL
    if dtype == BOOL:
        return None
    inner = value
    if value.op is Op.CAST and not dtypes.is_complex(dtype) and value.src[0].aval.dtype != BOOL:
        inner = value.src[0]
    if dtype_span(inner.aval.dtype) is None or inner.op in (Op.LOAD, Op.FOLD):
        return None
    form = PLAIN.wide(inner)
    for r in ranges:
        k = dict(form[1]).get(r, 0)
        others: Form = (form[0], tuple((n, q) for n, q in form[1] if n is not r))
        if (
            limit(r) is not None
            or not k
            or not PLAIN.exact(form)
            or any(mentions(n, r) for n, _ in others[1])
        ):
            continue
        n = extent(r)
        total = PLAIN.plus((k * (n * (n - 1) // 2), ()), PLAIN.scale(others, n))
        if not within(PLAIN.limits(total), INT64_SPAN):
            continue
        made = PLAIN.node(total)
        if dtype != INT64:
            made = UOp(Op.CAST, (made,), (dtype, False))
        return with_fold(made, tuple(x for x in ranges if x is not r), "add")
    return None


@rules.rule(ANY_FOLD)
def fold_of_selection(fold: UOp, value: UOp, ranges: tuple[UOp, ...]) -> UOp | None:
    """fold over r of where(r == e, f(r), identity) -> where(0 <= e < n, f(e), identity)"""
    kind = fold.arg
    found = masked(value, kind) if kind in PLAIN_KINDS else None
    if found is None:
        return None
    condition, x, neutral = found
    for r in ranges:
        solved = solve(condition, r) if mentions(condition, r) else None
        if solved is None or solved.at is None:
            continue
        at = solved.at
        middle = PLAIN.node(at)
        inside = [PLAIN.compare(Op.CMPLE, PLAIN.node(b), middle) for b in solved.lows]
        inside += [PLAIN.compare(Op.CMPLE, middle, PLAIN.node(b)) for b in solved.highs]
        here = PLAIN.junction(Op.AND, [*inside, solved.rest])
        # Clamped, so that no load leaves its buffer where the condition is false.
        place = PLAIN.extreme(Op.MIN, [PLAIN.extreme(Op.MAX, [at, (0, ())]), (extent(r) - 1, ())])
        picked = substitute(x, {r: PLAIN.node(place)})
        if kind == "add":
            picked = without_minus_zero(picked)
        made = picked if here is TRUE else UOp(Op.WHERE, (here, picked, neutral))
        return with_fold(neutral if here is FALSE else made,
                         tuple(y for y in ranges if y is not r), kind)  # fmt: skip
    return None


@rules.rule(ANY_FOLD)
def sum_of_mask(fold: UOp, value: UOp, ranges: tuple[UOp, ...]) -> UOp | None:
    """sum over r of where(low <= r <= high, x, 0) -> x * how many, where x does not mention r"""
    found = masked(value, "add") if fold.arg == "add" and value.aval.dtype != BOOL else None
    if found is None:
        return None
    condition, x, neutral = found
    for r in ranges:
        if not mentions(condition, r) or mentions(x, r):
            continue
        solved = solve(condition, r)
        if solved is None:
            continue
        made = times(x, count_of(solved, r))
        if solved.rest is not TRUE:
            made = UOp(Op.WHERE, (solved.rest, made, neutral))
        return with_fold(made, tuple(y for y in ranges if y is not r), "add")
    return None
