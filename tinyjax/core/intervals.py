"""Interval arithmetic of integers and bools: the span of a result from the spans of its operands.

A span is `(least, greatest)`, inclusive, in Python integers. `unwrapped` gives that of a result
before wrapping: one that leaves its dtype may have wrapped, so callers then take the span of the
whole dtype, and know that the value is not what mathematics says.

Reference: Moore, "Interval Analysis" (1966); the bit rules follow Warren, "Hacker's Delight", 4-3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.ops import Op

Span = tuple[int, int]

BOOL = np.dtype(np.bool_)
INT64 = np.dtype(np.int64)
INT64_SPAN: Span = (-(1 << 63), (1 << 63) - 1)
BIT: Span = (0, 1)


@functools.cache
def dtype_span(dtype: Any) -> Span | None:
    """Least and greatest value of an integer dtype or bool; None for other dtypes."""
    if dtype == BOOL:
        return BIT
    if not dtypes.is_integer(dtype):
        return None
    info = dtypes.iinfo(dtype)
    return int(info.min), int(info.max)


def within(span: Span, limit: Span) -> bool:
    """Whether every value of `span` lies in `limit`."""
    return limit[0] <= span[0] and span[1] <= limit[1]


def hull(x: Span, y: Span) -> Span:
    """The least span that contains both."""
    return min(x[0], y[0]), max(x[1], y[1])


def corners(f: Callable[[int, int], int], x: Span, y: Span) -> Span:
    """Span of an operation that is monotone in each operand when the other is fixed."""
    values = [f(a, b) for a in x for b in y]
    return min(values), max(values)


# --- one function per op; operands are spans of the operands' dtype -------------------------------


def truncated_quotient(a: int, b: int) -> int:
    """a / b towards zero."""
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def div_span(x: Span, y: Span) -> Span | None:
    """Truncating division; nothing is known when the divisor may be zero."""
    return None if y[0] <= 0 <= y[1] else corners(truncated_quotient, x, y)


def rem_span(x: Span, y: Span) -> Span | None:
    """The remainder has the sign of x and is smaller than y, unless y may be zero."""
    if y[0] <= 0 <= y[1]:
        return None
    most = max(abs(y[0]), abs(y[1])) - 1
    return max(min(x[0], 0), -most), min(max(x[1], 0), most)


def floor_div_span(x: Span, y: Span) -> Span | None:
    """Floor division by a positive divisor."""
    return corners(lambda a, b: a // b, x, y) if y[0] > 0 else None


def floor_mod_span(x: Span, y: Span) -> Span | None:
    """Floor modulo by a positive divisor: the identity when x already lies below it."""
    if y[0] <= 0:
        return None
    if y[0] == y[1] and x[0] // y[0] == x[1] // y[0]:
        return x[0] % y[0], x[1] % y[0]
    return (0, min(x[1], y[1] - 1)) if x[0] >= 0 else (0, y[1] - 1)


def and_span(x: Span, y: Span) -> Span | None:
    """A non-negative operand bounds the result; two possibly negative ones do not."""
    bounds = [s[1] for s in (x, y) if s[0] >= 0]
    return (0, min(bounds)) if bounds else None


def or_span(x: Span, y: Span) -> Span | None:
    """At least either operand, at most all bits up to the highest."""
    if x[0] < 0 or y[0] < 0:
        return None
    return max(x[0], y[0]), (1 << max(x[1].bit_length(), y[1].bit_length())) - 1


def xor_span(x: Span, y: Span) -> Span | None:
    """At most all bits up to the highest."""
    if x[0] < 0 or y[0] < 0:
        return None
    return 0, (1 << max(x[1].bit_length(), y[1].bit_length())) - 1


def shift_left_span(x: Span, y: Span) -> Span | None:
    """Multiplication by a power of two; over-wide shifts give 0, which is why 64 is the limit."""
    return corners(lambda a, b: a << b, x, y) if 0 <= y[0] and y[1] < 64 else None


def shift_right_span(x: Span, y: Span) -> Span | None:
    """Division by a power of two, rounding down; over-wide shifts leave the sign."""
    if y[0] < 0:
        return None
    return corners(lambda a, b: a >> b, x, (y[0], min(y[1], 64)))


def logical_shift_span(x: Span, y: Span) -> Span | None:
    """As the arithmetic shift for non-negative operands."""
    return shift_right_span(x, y) if x[0] >= 0 else None


def abs_span(x: Span) -> Span:
    """|x|"""
    if x[0] >= 0:
        return x
    return (-x[1], -x[0]) if x[1] <= 0 else (0, max(-x[0], x[1]))


def sign_span(x: Span) -> Span:
    """-1, 0 or 1"""
    return (x[0] > 0) - (x[0] < 0), (x[1] > 0) - (x[1] < 0)


SPANS: dict[Op, Callable[..., Span | None]] = {
    Op.ADD: lambda x, y: (x[0] + y[0], x[1] + y[1]),
    Op.SUB: lambda x, y: (x[0] - y[1], x[1] - y[0]),
    Op.MUL: lambda x, y: corners(lambda a, b: a * b, x, y),
    Op.NEG: lambda x: (-x[1], -x[0]),
    Op.ABS: abs_span,
    Op.SIGN: sign_span,
    Op.MAX: lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    Op.MIN: lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    Op.DIV: div_span,
    Op.REM: rem_span,
    Op.IDIV: floor_div_span,
    Op.MOD: floor_mod_span,
    Op.AND: and_span,
    Op.OR: or_span,
    Op.XOR: xor_span,
    Op.SHL: shift_left_span,
    Op.SHRA: shift_right_span,
    Op.SHRL: logical_shift_span,
    Op.WHERE: lambda _, x, y: hull(x, y),
}
"""Ops whose result has the dtype of their (last) operand."""


def compare_span(op: Op, x: Span, y: Span) -> Span:
    """Comparison of integers: decided when the spans do not overlap in the wrong way."""
    if op is Op.CMPLT:
        return int(x[1] < y[0]), int(x[0] < y[1])
    if op is Op.CMPLE:
        return int(x[1] <= y[0]), int(x[0] <= y[1])
    may_equal = x[0] <= y[1] and y[0] <= x[1]
    must_equal = x[0] == x[1] == y[0] == y[1]
    if op is Op.CMPEQ:
        return int(must_equal), int(may_equal)
    return int(not may_equal), int(not must_equal)


def unwrapped(op: Op, dtype: Any, spans: tuple[Span, ...]) -> Span | None:
    """Span of an op's mathematical result, before it is fitted into `dtype`; None if not known."""
    if op is Op.NOT:
        (low, high), total = spans[0], dtype_span(dtype)
        top = -1 if total is None or total[0] < 0 else total[1]
        return top - high, top - low
    rule = SPANS.get(op)
    return None if rule is None else rule(*spans)


def cast_span(of: Span, source: Any, dtype: Any) -> Span | None:
    """Conversion of an integer or bool. To bool it is `x != 0`; what does not fit wraps, so a
    conversion to a narrower or unsigned type is not monotone."""
    total = dtype_span(dtype)
    if total is None:
        return None
    if dtype == BOOL:
        return int(not of[0] <= 0 <= of[1]), int(of != (0, 0))
    return of if within(of, total) else total
