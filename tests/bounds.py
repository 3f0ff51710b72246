"""The reference evaluator with a bound on the error of every element, for comparing two results.

`evaluate_with_bounds(body, args)` gives (value, error) per output: a correct implementation differs
from `value` by at most `error`, elementwise. 0 means the same bits (signs of zeros too, any NaN for
a NaN); infinity means unknown: rounding upstream may have changed a comparison, a branch or an
index. Errors are carried through the graph, so what a compiler may do to a deep graph is bounded
without guessing one tolerance for all: exact ops stay exact, and a sum has an error of (terms) ulp
of its absolute sum.

How an error goes through an elementwise op: the op is evaluated again with its operands moved by
their errors, and twice the largest change is added to the op's own error. Ops for which the corners
of a box say too little (poles, branch cuts, remainders) give unknown instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval, TupleAval, aval
from tinyjax.core.ops import COMPARISONS, ELEMENTWISE, IDENTITIES, MOVEMENT, Op
from tinyjax.core.uop import UOp, const_value, param, toposort
from tinyjax.interpreters.convert import convert
from tinyjax.interpreters.evaluate import apply_op
from tinyjax.interpreters.quiet import quietly

Array = np.ndarray[Any, Any]
Known = tuple[Array, Array | None]  # value, error (None: exact)

TINY = 5e-324
"""The error of a zero whose sign is not specified."""
UNKNOWN = math.inf
MAX_TRIPS = 1000

EXACT = frozenset(
    {
        Op.NEG, Op.ABS, Op.SIGN, Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC, Op.SQRT, Op.IS_FINITE,
        Op.NOT, Op.POPCOUNT, Op.CLZ, Op.REAL, Op.IMAG, Op.CONJ, Op.CAST, Op.BITCAST,
        Op.REDUCE_PRECISION, Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.REM, Op.MAX, Op.MIN, Op.NEXTAFTER,
        Op.AND, Op.OR, Op.XOR, Op.SHL, Op.SHRL, Op.SHRA, Op.COMPLEX, Op.IDIV, Op.MOD, *COMPARISONS,
    }
)  # fmt: skip
"""Ops with one right result for real operands."""
COMPLEX_EXACT = frozenset(
    {Op.NEG, Op.REAL, Op.IMAG, Op.CONJ, Op.CAST, Op.BITCAST, Op.REDUCE_PRECISION, Op.ADD, Op.SUB,
     Op.MAX, Op.MIN, Op.COMPLEX, Op.IS_FINITE, *COMPARISONS}
)  # fmt: skip
SMOOTH_COMPLEX = COMPLEX_EXACT | {Op.MUL, Op.DIV, Op.ABS, Op.EXP, Op.SIGN}
ULPS = {Op.LGAMMA: 64, Op.DIGAMMA: 64, Op.POW: 6}
"""Error of the two implementations together, in ulp; 4 for the ops not listed."""
COMPLEX_ULPS = 64


def mantissa_bits(dtype: Any) -> int:
    """Stored mantissa bits of a real floating dtype."""
    return int(dtypes.finfo(dtype).nmant)


def finite_size(x: Array) -> Array:
    """|x|, or its finite part."""
    y = as_float(x) if dtypes.is_inexact(x.dtype) else x.astype(np.float64)
    if y.dtype.kind == "c":
        return finite_size(y.real.copy()) + finite_size(y.imag.copy())
    return np.where(np.isfinite(y), np.abs(y), 0)


def ulp(value: Array, dtype: Any) -> Array:
    """Distance between neighbours in a real or complex dtype near each value, as float64."""
    if dtypes.is_complex(dtype):
        dtype = dtypes.to_floating_dtype(dtype)
    size = np.abs(value.astype(np.complex128 if value.dtype.kind == "c" else np.float64))
    info = dtypes.finfo(dtype)
    _, exponent = np.frexp(np.where(np.isfinite(size), size, 0))
    step = np.ldexp(1.0, exponent - 1 - mantissa_bits(dtype))
    return np.maximum(step, max(float(info.smallest_subnormal), TINY))


def largest(dtype: Any) -> float:
    """Largest finite value."""
    if dtypes.is_complex(dtype):
        dtype = dtypes.to_floating_dtype(dtype)
    return float(dtypes.finfo(dtype).max)


def accumulator(dtype: Any) -> Any:
    """What sums of a dtype are computed in."""
    return np.dtype(np.float32) if dtypes.bit_width(dtype) < 32 else dtype


def as_float(x: Array) -> Array:
    """Magnitudes can be taken of it in 64 bits."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def zeros_of(value: Array) -> Array:
    """Where a value, or a part of a complex one, is zero."""
    x = as_float(value)
    return (x.real == 0) | (x.imag == 0) if x.dtype.kind == "c" else x == 0


def none_if_zero(error: Array | None) -> Array | None:
    """Exact values carry no array of zeros; what cannot be computed is unknown."""
    if error is None or not np.any(error):
        return None
    return np.where(np.isnan(error), UNKNOWN, error)


def errors_of(known: Known) -> Array:
    """The error of a value as an array."""
    value, error = known
    return np.zeros(value.shape) if error is None else error


def unknown(shape: tuple[int, ...]) -> Array:
    """Nothing is known of an array of this shape."""
    return np.full(shape, UNKNOWN)


# --- elementwise ------------------------------------------------------------------------------------


def moved(value: Array, by: Array) -> Array:
    """`value + by` in the dtype of `value`."""
    if value.dtype.kind == "c":
        return (value + by).astype(value.dtype)
    return convert(value.astype(np.float64) + by, value.dtype)


def change(a: Array, b: Array) -> Array:
    """|a - b|; unknown where only one is NaN or they are different infinities."""
    if not dtypes.is_inexact(a.dtype):
        return np.where(a == b, 0, UNKNOWN)
    x, y = as_float(a), as_float(b)
    if x.dtype.kind == "c":
        return change(x.real, y.real) + change(x.imag, y.imag)
    gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, np.abs(x - y))
    gap = np.where(np.isnan(gap), UNKNOWN, gap)
    turned = (x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y))
    return np.where(turned, TINY, gap)


def own_error(node: UOp, value: Array, args: Sequence[Array]) -> Array | None:
    """What two right implementations of an op may differ by on the same operands."""
    op, dtype = node.op, value.dtype
    complex_args = any(a.dtype.kind == "c" for a in args)
    if not dtypes.is_inexact(dtype):
        return None
    if complex_args or dtype.kind == "c":
        if op in COMPLEX_EXACT:
            return None
        count = COMPLEX_ULPS
        size = np.abs(as_float(value))
        if op is Op.POW:
            power = np.abs(as_float(args[1]) * np.log(as_float(args[0])))
            count = COMPLEX_ULPS * (1 + np.where(np.isfinite(power), power, 0))
        if op is Op.ATAN2:  # a logarithm of something near 1
            size = np.maximum(size, 1)
        if op is Op.MUL:  # relative to the terms that may cancel
            size = np.abs(as_float(args[0])) * np.abs(as_float(args[1]))
        error = count * ulp(size, dtype)
        if op is Op.ATAN2:  # on the logarithm's cut, the rounding of the quotient chooses a side
            on_cut = np.abs(np.abs(as_float(value).real) - np.pi) <= error
            error = np.where(on_cut, UNKNOWN, error)
        # inf - inf, or a fused subtraction before the overflow: docs/ops.md leaves it open.
        return np.where(size < 0.99 * largest(dtype), error, UNKNOWN)
    if op in EXACT:
        return None
    if dtypes.bit_width(dtype) < 32:
        error = ulp(value, dtype)
    else:
        size = value
        if op in (Op.LGAMMA, Op.DIGAMMA):  # roots: absolute near them
            size = np.maximum(np.abs(value), 1)
        error = ULPS.get(op, 4) * ulp(size, dtype)
        error = np.where(value == 0, 0, error)  # zeros and their signs are exact
    finite = np.isfinite(value.astype(np.float64))
    return np.where(finite, error, 0)


def overflow_border(node: UOp, value: Array, args: Sequence[Array]) -> Array:
    """Where a result with an error of its own is about as large as a dtype can hold."""
    size = np.abs(as_float(value))
    near = np.isfinite(size) & (size > 0.99 * largest(value.dtype))
    if np.isinf(size).any() or (np.isnan(size).any() and dtypes.bit_width(value.dtype) <= 8):
        shrunk = [moved(a, -1e-3 * np.abs(as_float(a)) * np.isfinite(as_float(a))) if
                  dtypes.is_inexact(a.dtype) else a for a in args]  # fmt: skip
        grown = [moved(a, 1e-3 * np.abs(as_float(a)) * np.isfinite(as_float(a))) if
                 dtypes.is_inexact(a.dtype) else a for a in args]  # fmt: skip
        for corner in (shrunk, grown):
            again = as_float(apply_op(node, corner))
            near |= np.isfinite(again) != np.isfinite(size)
    return near


def elementwise(node: UOp, known: list[Known]) -> Known:
    """Corners of the box of operands, plus the op's own error; see the module's docstring."""
    op = node.op
    args = [v for v, _ in known]
    value = apply_op(node, args)
    shape = value.shape
    if op is Op.WHERE:
        c, x, y = known
        if all(e is None for _, e in known):
            return value, None
        error = np.where(c[0], errors_of(x), errors_of(y))
        return value, none_if_zero(
            np.broadcast_to(np.where(errors_of(c) > 0, UNKNOWN, error), shape)
        )
    own = own_error(node, value, args)
    if own is not None:
        own = np.broadcast_to(own, shape)
        if op not in EXACT:
            own = np.where(overflow_border(node, value, args), UNKNOWN, own)
    moving = [i for i, (_, e) in enumerate(known) if e is not None]
    if op is Op.BITCAST and dtypes.is_inexact(args[0].dtype):  # which NaN it is says no row
        own = np.where(np.isnan(as_float(args[0])), UNKNOWN, 0)
    if not moving:
        return value, none_if_zero(own)
    lost = np.zeros(shape, np.bool_)
    boxes: list[Array] = []
    for i in moving:
        error = errors_of(known[i])
        lost = lost | np.isinf(error)
        if dtypes.is_inexact(args[i].dtype):
            lost = lost | ((error > 0) & ~np.isfinite(as_float(args[i])))
        boxes.append(np.where(np.isinf(error), 0, error))
    lost = lost | refused(node, args, known, value)
    total = np.zeros(shape) if own is None else own
    directions: list[tuple[complex, ...]] = []
    for i in moving:
        if args[i].dtype.kind == "c":
            directions.append((1, -1, 1j, -1j))
        elif dtypes.is_inexact(args[i].dtype):
            directions.append((1, -1))
        else:
            directions.append((0,))
    for signs in itertools.product(*directions):
        corner = list(args)
        for i, box, sign in zip(moving, boxes, signs):
            if sign:
                corner[i] = moved(args[i], box * sign)
        again = apply_op(node, corner)
        gap = change(value, again)
        total = np.maximum(total, (0 if own is None else own) + np.where(gap == TINY, gap, 2 * gap))
    total = np.where(lost, UNKNOWN, total)
    return value, none_if_zero(np.broadcast_to(total, shape))


def refused(node: UOp, args: list[Array], known: list[Known], value: Array) -> Array | bool:
    """Where corners do not bound an op."""
    op = node.op
    errors = [errors_of(k) for k in known]
    anywhere: Array = np.zeros((), np.bool_)
    for e in errors:
        anywhere = anywhere | (e > TINY)
    if op is Op.BITCAST:
        return errors[0] > 0
    if any(a.dtype.kind == "c" for a in args):
        if op not in SMOOTH_COMPLEX or op in (Op.MAX, Op.MIN, *COMPARISONS):
            return anywhere | (errors[0] > 0) | (errors[-1] > 0)
        if op is Op.DIV:
            return np.abs(as_float(args[1])) <= 4 * errors[1]
        return False
    if op in (Op.CMPEQ, Op.CMPNE):
        if not dtypes.is_inexact(args[0].dtype):
            return False
        gap = np.abs(as_float(args[0]) - as_float(args[1]))
        return anywhere & (gap <= errors[0] + errors[1])
    if op in (Op.SIN, Op.COS, Op.TAN):
        wild = errors[0] > 0.25
        return wild | ((np.abs(value.astype(np.float64)) > 10) & anywhere) if op is Op.TAN else wild
    if op in (Op.LGAMMA, Op.DIGAMMA):
        return anywhere & (args[0].astype(np.float64) <= errors[0])
    if op is Op.DIV and dtypes.is_inexact(args[0].dtype):
        return (errors[1] > 0) & (np.abs(args[1].astype(np.float64)) <= errors[1])
    if op is Op.POW:
        return (errors[0] > 0) & (args[0].astype(np.float64) <= errors[0])
    if op in (Op.RSQRT, Op.LOG, Op.LOG2):
        return (errors[0] > 0) & (args[0].astype(np.float64) <= errors[0])
    if op is Op.REM and dtypes.is_inexact(args[0].dtype):
        x, y = (a.astype(np.float64) for a in args)
        quotient = np.abs(x / y)
        slack = (errors[0] + quotient * errors[1]) / np.abs(y)
        near = np.abs(quotient - np.round(quotient)) <= 2 * slack
        return anywhere & (near | ~np.isfinite(quotient) | (slack > 0.1))
    if op is Op.NEXTAFTER:
        return anywhere & (np.abs(as_float(args[0]) - as_float(args[1])) <= errors[0] + errors[1])
    return False


# --- the other classes ---------------------------------------------------------------------------------


def on_errors(
    node: UOp, errors: Sequence[Array], others: Sequence[Array] = (), arg: Any = None
) -> Array:
    """The same movement, of errors; `others` are further operands as they are."""
    operands = [*errors, *others]
    src = tuple(param(i, aval(a.shape, a.dtype)) for i, a in enumerate(operands))
    found = apply_op(UOp(node.op, src, node.arg if arg is None else arg), list(operands))
    return found  # type: ignore[return-value]


def movement(node: UOp, known: list[Known]) -> Known:
    """Errors move along."""
    value = apply_op(node, [v for v, _ in known])
    if all(e is None for _, e in known):
        return value, None
    return value, none_if_zero(on_errors(node, [errors_of(k) for k in known]))


def summed(
    node: UOp, terms: Array, size: Array, count: int, value: Array, moved_by: Array
) -> Array:
    """Error of a sum of `count` terms of absolute sum `size`, whose terms may move by `moved_by`."""
    dtype = node.aval.dtype
    acc = accumulator(dtype)
    unit = ulp(np.ones(()), acc)
    error = moved_by + (count + 8) * unit * size
    if dtypes.bit_width(dtype) < 32:
        error = error + ulp(value, dtype)
    error = np.where(zeros_of(value), np.maximum(error, TINY), error)
    # Where a partial sum may overflow, the order of the terms decides.
    error = np.where(size * 1.01 >= min(largest(acc), largest(dtype)), UNKNOWN, error)
    broken = ~np.isfinite(as_float(value))
    if dtype.kind == "c":  # the other part may be finite
        return np.where(broken & np.isinf(moved_by), UNKNOWN, error)
    return np.where(
        broken & np.isinf(moved_by), UNKNOWN, np.where(broken & ~(size >= largest(acc)), 0, error)
    )


def reduce(node: UOp, known: list[Known]) -> Known:
    """Sums and products by their terms; extremes move by at most the largest error."""
    kind, axes = node.arg
    x, error = known[0]
    value = apply_op(node, [x])
    if not dtypes.is_inexact(x.dtype) or not x.size:
        return value, none_if_zero(
            None if error is None else np.where(np.any(error > 0, axes), UNKNOWN, 0)
        )
    errors = errors_of(known[0])
    count = math.prod(x.shape[a] for a in axes)
    if count == 1:
        zero = zeros_of(value)
        return value, none_if_zero(
            np.where(zero, np.maximum(errors.sum(axes), TINY), errors.sum(axes))
        )
    size = np.abs(as_float(x))
    lost = np.isinf(errors).any(axes)
    lost |= ((errors > 0) & ~np.isfinite(size)).any(axes)
    finite = finite_size(x)
    if kind == "add":
        error = summed(
            node, x, finite.sum(axes), count, value, np.where(np.isinf(errors), 0, errors).sum(axes)
        )
    elif kind == "mul":
        errors = np.where(np.isinf(errors), 0, errors)
        high = np.prod(finite + errors, axes)
        base = np.prod(finite, axes)
        acc = accumulator(x.dtype)
        error = 2 * (high - base) + (count + 8) * 4 * ulp(np.ones(()), acc) * high
        error = error + ulp(value, x.dtype) * (2 if dtypes.bit_width(x.dtype) < 32 else 8)
        if x.dtype.kind == "f" or x.dtype.kind == "V":
            value64 = value.astype(np.float64)
            # Zeros give a zero; of unspecified sign if one of theirs is (too small to multiply).
            zero = np.where((errors > 0).any(axes), TINY, 0)
            error = np.where(np.isfinite(value64) & (high == 0), zero, error)
        # Order matters where a partial product leaves the range.
        grown = np.prod(np.maximum(finite + errors, 1), axes)
        nonzero = np.where(finite > 0, finite, 1)
        shrunk = np.prod(np.minimum(nonzero, 1), axes)
        least = float(dtypes.finfo(dtypes.to_floating_dtype(acc)).smallest_normal)
        lost |= (grown >= 0.99 * min(largest(acc), largest(x.dtype))) | (shrunk <= least)
        if x.dtype.kind == "c":
            lost |= ~np.isfinite(as_float(value))
    else:
        error = errors.max(axes)
        if x.dtype.kind == "c":
            lost |= (errors > 0).any(axes) | np.isnan(as_float(x)).any(axes)
        else:
            error = np.where(zeros_of(value), np.maximum(error, TINY), error)
            error = np.where(np.isnan(as_float(value)) & ~lost, 0, error)
    return value, none_if_zero(np.where(lost, UNKNOWN, error))


def argreduce(node: UOp, known: list[Known]) -> list[Known]:
    """The index is unknown if another element comes as close as their errors."""
    kind, axis, _ = node.arg
    x, error = known[0]
    value, index = apply_op(node, [x])
    if error is None:
        return [(value, None), (index, None)]
    wide = as_float(x) if dtypes.is_inexact(x.dtype) else x.astype(np.float64)
    best = np.expand_dims(value, axis).astype(np.float64)
    at = np.expand_dims(index.astype(np.int64), axis)
    own = np.take_along_axis(error, at, axis)
    gap = np.abs(wide - best)
    rival = (gap <= error + own) & ((error > 0) | (own > 0)) | np.isinf(error)
    rival |= (error > 0) & ~np.isfinite(wide)
    np.put_along_axis(
        rival,
        at,
        np.isinf(own) | ((own > 0) & ~np.isfinite(np.take_along_axis(wide, at, axis))),
        axis,
    )
    lost = rival.any(axis)
    worst = error.max(axis)
    near = np.where(
        np.isinf(worst) | ~np.isfinite(value.astype(np.float64)) & (worst > 0), UNKNOWN, worst
    )
    return [(value, none_if_zero(near)), (index, none_if_zero(np.where(lost, UNKNOWN, 0)))]


def prefix(node: UOp, known: list[Known]) -> Known:
    """As a reduction, for each prefix."""
    kind, axis, reverse = node.arg
    x, error = known[0]
    value = apply_op(node, [x])

    def along(f: np.ufunc, y: Array) -> Array:
        y = np.flip(y, axis) if reverse else y
        y = f.accumulate(y, axis=axis)
        return np.flip(y, axis) if reverse else y

    if not dtypes.is_inexact(x.dtype):
        return value, none_if_zero(None if error is None else along(np.maximum, error))
    errors = errors_of(known[0])
    if not x.size:
        return value, None
    size = np.abs(as_float(x))
    lost = (
        along(
            np.maximum, (np.isinf(errors) | ((errors > 0) & ~np.isfinite(size))).astype(np.float64)
        )
        > 0
    )
    errors = np.where(np.isinf(errors), 0, errors)
    finite = finite_size(x)
    if kind == "add":
        made = summed(node, x, along(np.add, finite), x.shape[axis], value, along(np.add, errors))
    elif kind == "mul":
        high, base = along(np.multiply, finite + errors), along(np.multiply, finite)
        acc = accumulator(x.dtype)
        made = 2 * (high - base) + (x.shape[axis] + 8) * 4 * ulp(np.ones(()), acc) * high
        made = made + ulp(value, x.dtype) * 8
        grown = along(np.multiply, np.maximum(finite + errors, 1))
        shrunk = along(np.multiply, np.minimum(np.where(finite > 0, finite, 1), 1))
        least = float(dtypes.finfo(dtypes.to_floating_dtype(acc)).smallest_normal)
        lost |= (grown >= 0.99 * min(largest(acc), largest(x.dtype))) | (shrunk <= least)
        lost |= ~np.isfinite(as_float(value)) if x.dtype.kind == "c" else False
        made = np.where(np.isfinite(as_float(value)), made, 0)
    else:
        made = along(np.maximum, errors)
        if x.dtype.kind == "c":
            lost |= along(np.maximum, ((errors > 0) | np.isnan(as_float(x))).astype(np.float64)) > 0
        else:
            made = np.where(zeros_of(value), np.maximum(made, TINY), made)
            made = np.where(np.isnan(as_float(value)), 0, made)
    return value, none_if_zero(np.where(lost, UNKNOWN, made))


def dot(node: UOp, known: list[Known]) -> Known:
    """|x|·ey + ex·|y| + ex·ey and one rounding per term."""
    (x, ex), (y, ey) = known
    value = apply_op(node, [x, y])
    inexact = dtypes.is_inexact(value.dtype)

    def product(a: Array, b: Array) -> Array:
        return apply_op(
            UOp(Op.DOT, (param(0, aval(a.shape, a.dtype)), param(1, aval(b.shape, b.dtype))),
                type(node.arg)(node.arg.contract, node.arg.batch)), [a, b],
        )  # type: ignore[return-value]  # fmt: skip

    def flag(k: Known) -> Array:
        e = errors_of(k)
        bad = np.isinf(e)
        if dtypes.is_inexact(k[0].dtype):
            bad = bad | ((e > 0) & ~np.isfinite(as_float(k[0])))
        return bad.astype(np.float64)

    lost = np.zeros(value.shape, np.bool_)
    if ex is not None or ey is not None:
        ones_x, ones_y = np.ones(x.shape), np.ones(y.shape)
        lost = (product(flag(known[0]), ones_y) > 0) | (product(ones_x, flag(known[1])) > 0)
    if not inexact:
        return value, none_if_zero(np.where(lost, UNKNOWN, 0))

    def sizes(k: Known) -> tuple[Array, Array]:
        e = errors_of(k)
        return finite_size(k[0]), np.where(np.isinf(e), 0, e)

    count = math.prod(x.shape[a] for a in node.arg.contract[0])
    (sx, dx), (sy, dy) = sizes(known[0]), sizes(known[1])
    if value.dtype.kind == "c":
        sx, sy = 2 * sx, 2 * sy  # parts are summed apart
    size = product(sx, sy)
    moved_by = product(sx, dy) + product(dx, sy) + product(dx, dy)
    if x.dtype.name == y.dtype.name == "bfloat16":
        # The processor's bfloat16 instruction takes subnormal factors and sums for 0 (docs/ops.md).
        least = float(dtypes.finfo(x.dtype).smallest_normal)
        fx, fy = (np.where(s < least, s, 0) for s in (sx, sy))
        moved_by = moved_by + product(fx, sy) + product(sx, fy) + 2 * count * least
        tx, ty = ((f > 0).astype(np.float64) for f in (fx, fy))
        ix, iy = (np.isinf(as_float(k[0])).astype(np.float64) for k in known)
        lost = lost | (product(tx, iy) > 0) | (product(ix, ty) > 0)
    error = summed(node, x, size, count, value, moved_by)
    if value.dtype.kind == "c" and not (
        np.isfinite(as_float(x)).all() and np.isfinite(as_float(y)).all()
    ):
        error = np.where(np.isfinite(as_float(value)), error, UNKNOWN)
    # Inexact infinities times an uncertain zero are NaN or infinite.
    if (ex is not None or ey is not None) and not np.isfinite(size).all():
        lost = lost | ~np.isfinite(size)
    if ex is not None or ey is not None:
        special = product((~np.isfinite(as_float(x))).astype(np.float64), np.ones(y.shape)) > 0
        special |= product(np.ones(x.shape), (~np.isfinite(as_float(y))).astype(np.float64)) > 0
        lost = lost | special
    return value, none_if_zero(np.where(lost, UNKNOWN, error))


def gather(node: UOp, known: list[Known]) -> Known:
    """The same windows of the errors."""
    value = apply_op(node, [v for v, _ in known])
    if known[1][1] is not None:
        return value, unknown(value.shape)
    if known[0][1] is None and (len(known) < 3 or known[2][1] is None):
        return value, None
    fill = errors_of(known[2]) if len(known) > 2 else np.zeros(())
    return value, none_if_zero(on_errors(node, [errors_of(known[0])], [known[1][0], fill]))


def scatter(node: UOp, known: list[Known]) -> Known:
    """Errors of what was combined; sums and products by their order-free bounds."""
    (x, ex), (indices, ei), (updates, eu) = known
    value = apply_op(node, [x, indices, updates])
    if ei is not None:
        return value, unknown(value.shape)
    kind = node.arg.kind
    inexact = dtypes.is_inexact(x.dtype)
    if ex is None and eu is None and (kind in ("set", "max", "min") or not inexact):
        if inexact and kind in ("max", "min"):
            return value, none_if_zero(np.where(zeros_of(value), TINY, 0))
        return value, None
    from dataclasses import replace

    def combine(a: Array, b: Array, how: str) -> Array:
        return on_errors(node, [a], [indices, b], replace(node.arg, kind=how))

    errors, moved_by = errors_of(known[0]), errors_of(known[2])
    if kind == "set":
        return value, none_if_zero(combine(errors, moved_by, "set"))
    worst = combine(errors, moved_by, "max")
    if not inexact or kind in ("max", "min"):
        if inexact:
            worst = np.where(zeros_of(value), np.maximum(worst, TINY), worst)
            worst = np.where((worst > TINY) & ~np.isfinite(as_float(value)), UNKNOWN, worst)
        return value, none_if_zero(worst)
    sx, su = np.abs(as_float(x)), np.abs(as_float(updates))
    touched = combine(np.zeros(x.shape), np.ones(updates.shape), "add")
    if kind == "add":
        finite_x, finite_u = finite_size(x), finite_size(updates)
        count = int(touched.max(initial=0)) + 1
        moving = combine(
            np.where(np.isinf(errors), 0, errors), np.where(np.isinf(moved_by), 0, moved_by), "add"
        )
        made = summed(node, x, combine(finite_x, finite_u, "add"), count, value, moving)
        made = np.where((worst > 0) & ~np.isfinite(as_float(value)), UNKNOWN, made)
    else:
        made = np.where(touched > 1, UNKNOWN, 8 * ulp(value, x.dtype))
        if ex is not None or eu is not None:
            high = combine(sx + errors, su + moved_by, "mul")
            made = made + 2 * (high - combine(sx, su, "mul"))
            made = np.where(
                np.isnan(made) | (worst > 0) & ~np.isfinite(as_float(value)), UNKNOWN, made
            )
        elif x.dtype.kind != "c":
            made = np.where(touched > 1, UNKNOWN, 0)
        if x.dtype.kind == "c":
            made = np.where(combine(sx, su, "mul") < 0.99 * largest(x.dtype), made, UNKNOWN)
    made = np.where(touched > 0, made, errors)
    return value, none_if_zero(np.where(np.isinf(worst), UNKNOWN, made))


def dynamic(node: UOp, known: list[Known]) -> Known:
    """DYNAMIC_SLICE and DYNAMIC_UPDATE: errors move as values do."""
    value = apply_op(node, [v for v, _ in known])
    first = 1 if node.op is Op.DYNAMIC_SLICE else 2
    if any(e is not None for _, e in known[first:]):
        return value, unknown(value.shape)
    if all(e is None for _, e in known):
        return value, None
    starts = [v for v, _ in known[first:]]
    return value, none_if_zero(on_errors(node, [errors_of(k) for k in known[:first]], starts))


def sort(node: UOp, known: list[Known]) -> list[Known]:
    """Exact keys carry the errors of the rest along; inexact ones make rows of them unknown."""
    axis, num_keys, _ = node.arg
    args = [v for v, _ in known]
    found = apply_op(node, args)
    keys = known[:num_keys]
    if all(e is None for _, e in keys):
        errors = [errors_of(k) for k in known]
        operands = [*args, *errors]
        src = tuple(param(i, aval(a.shape, a.dtype)) for i, a in enumerate(operands))
        made = apply_op(UOp(Op.SORT, src, node.arg), operands)[len(args) :]
        return [(v, none_if_zero(e)) for v, e in zip(found, made)]
    out: list[Known] = []
    shape = found[0].shape
    row = np.zeros(shape, np.bool_)
    for _, e in keys:
        if e is not None:
            row = row | (e > 0).any(axis, keepdims=True)
    if len(found) == 1 and dtypes.is_inexact(found[0].dtype) and found[0].dtype.kind != "c":
        worst = np.broadcast_to(errors_of(known[0]).max(axis, keepdims=True), shape)
        special = (errors_of(known[0]) > 0) & ~np.isfinite(as_float(args[0]))
        worst = np.where(special.any(axis, keepdims=True), UNKNOWN, worst)
        return [(found[0], none_if_zero(worst))]
    for v in found:
        out.append((v, none_if_zero(np.where(np.broadcast_to(row, shape), UNKNOWN, 0))))
    for i, k in enumerate(known[num_keys:]):
        if k[1] is not None:
            out[num_keys + i] = (found[num_keys + i], unknown(shape))
    return out


def fft(node: UOp, known: list[Known]) -> Known:
    """The transform is linear and no larger than the absolute sum."""
    x, error = known[0]
    value = apply_op(node, [x])
    if error is None:
        return value, None  # the program calls the same routine
    worst = np.where(np.isinf(error).any(-1) | ~np.isfinite(as_float(x)).all(-1), UNKNOWN, 0)
    size = np.abs(as_float(x)).sum(-1)
    total = np.where(np.isinf(error), 0, error).sum(-1) + 64 * size * ulp(np.ones(()), x.dtype)
    return value, none_if_zero(np.broadcast_to((worst + total)[..., None], value.shape))


# --- control flow and the driver -----------------------------------------------------------------------


def scan(node: UOp, known: list[Known]) -> list[Known]:
    """Step by step."""
    info = node.arg
    consts = known[: info.num_consts]
    carry = known[info.num_consts : info.num_consts + info.num_carry]
    xs = known[info.num_consts + info.num_carry :]
    steps: list[list[Known]] = []
    order = range(info.length)
    for i in reversed(order) if info.reverse else order:
        row = [(v[i], None if e is None else e[i]) for v, e in xs]
        out = run_body(node.src[0], [*consts, *carry, *row])
        carry = out[: info.num_carry]
        steps.append(out[info.num_carry :])
    if info.reverse:
        steps.reverse()
    stacked: list[Known] = []
    for place, of in enumerate(node.aval.elts[info.num_carry :]):
        value = np.empty(of.shape, of.dtype)
        error = np.zeros(of.shape)
        for i, step in enumerate(steps):
            value[i] = step[place][0]
            error[i] = errors_of(step[place])
        stacked.append((value, none_if_zero(error)))
    return [*carry, *stacked]


def while_loop(node: UOp, known: list[Known]) -> list[Known]:
    """Until the condition fails; unknown if an error may have decided it."""
    test, body = node.src[:2]
    info = node.arg
    cond_consts = known[: info.cond_consts]
    body_consts = known[info.cond_consts : info.cond_consts + info.body_consts]
    carry = known[info.cond_consts + info.body_consts :]
    lost = False
    for _ in range(MAX_TRIPS):
        (go,) = run_body(test, [*cond_consts, *carry])
        lost = lost or go[1] is not None
        if not go[0]:
            break
        carry = run_body(body, [*body_consts, *carry])
    else:
        raise AssertionError("a loop of a test does not end")
    return [(v, unknown(v.shape)) if lost else (v, e) for v, e in carry]


def cond(node: UOp, known: list[Known]) -> list[Known]:
    """The chosen branch; unknown if an error may have chosen it."""
    index = known[0]
    which = min(max(int(index[0]), 0), node.arg - 1)
    out = run_body(node.src[which], known[1:])
    return [(v, unknown(v.shape)) for v, _ in out] if index[1] is not None else out


def exact_only(node: UOp, known: list[Known]) -> Known:
    """An op that says nothing about inexact operands (RANDOM_BITS)."""
    value = apply_op(node, [v for v, _ in known])
    inexact = any(e is not None for _, e in known)
    return value, unknown(value.shape) if inexact else None


def leaf(node: UOp, known: list[Known]) -> Known:
    return apply_op(node, []), None


TABLE: dict[Op, Any] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(MOVEMENT, movement),
    **dict.fromkeys(IDENTITIES, lambda node, known: known[0]),
    Op.CONST: lambda node, known: (np.asarray(const_value(node)), None),
    Op.IOTA: leaf,
    Op.REDUCE: reduce,
    Op.ARGREDUCE: argreduce,
    Op.PREFIX: prefix,
    Op.DOT: dot,
    Op.GATHER: gather,
    Op.SCATTER: scatter,
    Op.DYNAMIC_SLICE: dynamic,
    Op.DYNAMIC_UPDATE: dynamic,
    Op.SORT: sort,
    Op.RANDOM_BITS: exact_only,
    Op.FFT: fft,
    Op.TUPLE: lambda node, known: known,
    Op.GETTUPLE: lambda node, known: known[0][node.arg],
    Op.CALL: lambda node, known: run_body(node.src[0], known),
    Op.SCAN: scan,
    Op.WHILE: while_loop,
    Op.COND: cond,
}


def run_body(body: UOp, args: Sequence[Known]) -> list[Known]:
    """Values and errors of a body's outputs."""
    done: dict[UOp, Any] = {}
    for node in toposort(body.src):
        if node.op is Op.PARAM:
            done[node] = args[node.arg[0]]
        else:
            done[node] = TABLE[node.op](node, [done[s] for s in node.operands])
    return [done[o] for o in body.src]


def evaluate_with_bounds(body: UOp, args: Sequence[Array]) -> list[Known]:
    """See the module's docstring."""
    return quietly(run_body, body, [(a, None) for a in args])  # type: ignore[no-any-return]


# --- comparison ------------------------------------------------------------------------------------------


def bits(x: Array) -> Array:
    """An array as unsigned integers."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, x.itemsize)


def different(got: Array, value: Array, error: Array | None) -> Array:
    """Which elements of `got` are further from `value` than `error` allows."""
    same = (bits(got) == bits(value)).all(1).reshape(value.shape)
    if value.dtype.kind == "V" and not dtypes.is_inexact(value.dtype):
        same = got == value  # the upper bits of an int4 byte mean nothing
    if dtypes.is_inexact(value.dtype):
        x, y = as_float(got), as_float(value)
        if value.dtype.kind == "c":
            same |= (part_same(x.real, y.real)) & (part_same(x.imag, y.imag))
        else:
            same |= np.isnan(x) & np.isnan(y)
        if error is not None:
            close = np.ones(value.shape, np.bool_)
            for a, b in (
                ((x.real, y.real), (x.imag, y.imag)) if value.dtype.kind == "c" else ((x, y),)
            ):
                close &= (np.abs(a - b) <= error) | (a == b) | (np.isnan(a) & np.isnan(b))
            same |= close & (error > 0)
    if error is not None:
        same |= np.isinf(error)
    return ~same


def part_same(x: Array, y: Array) -> Array:
    """Equal with the signs of zeros, or both NaN."""
    return ((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))


def check_shapes(got: Sequence[Array], of: TupleAval) -> None:
    """Shapes and dtypes are those the body states."""
    for y, a in zip(got, of.elts, strict=True):
        assert isinstance(a, Aval) and y.shape == a.shape and y.dtype == a.dtype, (y.shape, a)
