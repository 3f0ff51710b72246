"""Constructors of stage-1 nodes: the vocabulary in which rules and user functions are written.

Each returns a node, simplified where that is free and exact (identity reshapes, x*1, double
negation, ...): bits of every result, signed zeros and NaNs included, are those of the plain op.
Nothing here executes or promotes; operands have equal dtypes and shapes as `core/ops.py` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyjax.core import dtypes, rules  # noqa: F401  (rules fills the aval table)
from tinyjax.core.avals import Aval, aval
from tinyjax.core.dims import DimExpr
from tinyjax.core.errors import InconclusiveDimensionOperation
from tinyjax.core.infos import DotInfo, GatherInfo, ScatterInfo
from tinyjax.core.ops import Op
from tinyjax.core.shapes import same_shape
from tinyjax.core.uop import UOp, const, const_value, get, is_const

Axes = tuple[int, ...]
BOOL = np.dtype(np.bool_)
INT32 = np.dtype(np.int32)
UINT32 = np.dtype(np.uint32)


# --- literals -------------------------------------------------------------------------------------


def scalar(value: Any, dtype: Any, weak_type: bool = False) -> UOp:
    """Literal of rank 0, or a symbolic size as one; for a key dtype, a key with this data."""
    if dtypes.is_key(dtype):
        return fill_value(const(value, UINT32), dtype)
    try:
        return const(value, dtype, weak_type)
    except InconclusiveDimensionOperation:
        return size(value, dtype, weak_type)


def like(x: UOp, value: Any) -> UOp:
    """`scalar` with the dtype and weak flag of `x`."""
    return scalar(value, x.aval.dtype, x.aval.weak_type)


def size(value: DimExpr, dtype: Any, weak_type: bool = False) -> UOp:
    """A symbolic size as a scalar of any dtype."""
    return cast(UOp(Op.DIM, (), value), dtype, weak_type)


def full(shape: Axes, value: UOp) -> UOp:
    """`shape` copies of a scalar."""
    return expand(value, shape, ())


def fill_value(value: UOp, dtype: Any, weak_type: bool = False) -> UOp:
    """A scalar as an element of an array of `dtype`; a number fills the data of keys."""
    if dtypes.is_key(dtype) and not dtypes.is_key(value.dtype):
        return UOp(Op.KEY_WRAP, (full(dtype.key_shape, cast(value, UINT32)),), dtype)
    return cast(value, dtype, weak_type)


def zeros(of: Aval) -> UOp:
    """Zeros of this aval (for typed keys there is none)."""
    return full(of.shape, const(0, of.dtype, of.weak_type))


def ones(of: Aval) -> UOp:
    """Ones of this aval."""
    return full(of.shape, const(1, of.dtype, of.weak_type))


def iota(shape: Axes, axis: int, dtype: Any = INT32) -> UOp:
    """Position along `axis`."""
    return UOp(Op.IOTA, (), (aval(shape, np.dtype(dtype)), axis))


# --- elementwise ------------------------------------------------------------------------------------


def unary(op: Op, x: UOp) -> UOp:
    """Any op of one operand without arg."""
    return UOp(op, (x,))


def binary(op: Op, x: UOp, y: UOp) -> UOp:
    """Any op of two operands without arg."""
    return UOp(op, (x, y))


def neg(x: UOp) -> UOp:
    """-x"""
    return x.src[0] if x.op is Op.NEG else UOp(Op.NEG, (x,))


def add(x: UOp, y: UOp) -> UOp:
    """x + y"""
    return UOp(Op.ADD, (x, y))


def sub(x: UOp, y: UOp) -> UOp:
    """x - y"""
    return UOp(Op.SUB, (x, y))


def mul(x: UOp, y: UOp) -> UOp:
    """x * y; multiplying by 1 is x"""
    if is_const(y, 1) and _keeps(x, y):
        return x
    if is_const(x, 1) and _keeps(y, x):
        return y
    return UOp(Op.MUL, (x, y))


def div(x: UOp, y: UOp) -> UOp:
    """x / y (integers truncate); dividing by 1 is x"""
    return x if is_const(y, 1) and _keeps(x, y) else UOp(Op.DIV, (x, y))


def _keeps(x: UOp, one: UOp) -> bool:
    """Whether dropping the operand `one` leaves the aval of x as it would be."""
    return not one.aval.shape and (one.aval.weak_type or not x.aval.weak_type)


def pow_(x: UOp, y: UOp) -> UOp:
    """x ** y for equal inexact dtypes"""
    return UOp(Op.POW, (x, y))


def max_(x: UOp, y: UOp) -> UOp:
    """max(x, y), NaN wins"""
    return UOp(Op.MAX, (x, y))


def min_(x: UOp, y: UOp) -> UOp:
    """min(x, y), NaN wins"""
    return UOp(Op.MIN, (x, y))


def exp(x: UOp) -> UOp:
    """e**x"""
    return UOp(Op.EXP, (x,))


def log(x: UOp) -> UOp:
    """ln x"""
    return UOp(Op.LOG, (x,))


def sqrt(x: UOp) -> UOp:
    """sqrt(x)"""
    return UOp(Op.SQRT, (x,))


def rsqrt(x: UOp) -> UOp:
    """1/sqrt(x)"""
    return UOp(Op.RSQRT, (x,))


def sin(x: UOp) -> UOp:
    """sin x"""
    return UOp(Op.SIN, (x,))


def cos(x: UOp) -> UOp:
    """cos x"""
    return UOp(Op.COS, (x,))


def tanh(x: UOp) -> UOp:
    """tanh x"""
    return UOp(Op.TANH, (x,))


def sign(x: UOp) -> UOp:
    """sign of x"""
    return UOp(Op.SIGN, (x,))


def abs_(x: UOp) -> UOp:
    """|x|"""
    return UOp(Op.ABS, (x,))


def real(x: UOp) -> UOp:
    """Real part; x itself if it is real"""
    return UOp(Op.REAL, (x,)) if dtypes.is_complex(x.aval.dtype) else x


def imag(x: UOp) -> UOp:
    """Imaginary part of a complex x"""
    return UOp(Op.IMAG, (x,))


def conj(x: UOp) -> UOp:
    """Conjugate; x itself if it is real"""
    return UOp(Op.CONJ, (x,)) if dtypes.is_complex(x.aval.dtype) else x


def complex_(re: UOp, im: UOp) -> UOp:
    """re + i im"""
    return UOp(Op.COMPLEX, (re, im))


def square(x: UOp) -> UOp:
    """x * x"""
    return UOp(Op.MUL, (x, x))


def reciprocal(x: UOp) -> UOp:
    """1 / x"""
    return UOp(Op.DIV, (like(x, 1), x))


def eq(x: UOp, y: UOp) -> UOp:
    """x == y"""
    return UOp(Op.CMPEQ, (x, y))


def ne(x: UOp, y: UOp) -> UOp:
    """x != y"""
    return UOp(Op.CMPNE, (x, y))


def lt(x: UOp, y: UOp) -> UOp:
    """x < y"""
    return UOp(Op.CMPLT, (x, y))


def le(x: UOp, y: UOp) -> UOp:
    """x <= y"""
    return UOp(Op.CMPLE, (x, y))


def gt(x: UOp, y: UOp) -> UOp:
    """x > y"""
    return UOp(Op.CMPLT, (y, x))


def ge(x: UOp, y: UOp) -> UOp:
    """x >= y"""
    return UOp(Op.CMPLE, (y, x))


def and_(x: UOp, y: UOp) -> UOp:
    """x & y"""
    return UOp(Op.AND, (x, y))


def or_(x: UOp, y: UOp) -> UOp:
    """x | y"""
    return UOp(Op.OR, (x, y))


def xor(x: UOp, y: UOp) -> UOp:
    """x ^ y"""
    return UOp(Op.XOR, (x, y))


def not_(x: UOp) -> UOp:
    """~x"""
    return UOp(Op.NOT, (x,))


def where(c: UOp, x: UOp, y: UOp) -> UOp:
    """x where c, else y"""
    if x is y and x.aval.shape == (c.aval.shape or x.aval.shape):
        return x
    if c.op is Op.CONST:
        chosen = x if const_value(c) else y
        if chosen.aval is UOp(Op.WHERE, (c, x, y)).aval:
            return chosen
    return UOp(Op.WHERE, (c, x, y))


def cast(x: UOp, dtype: Any, weak_type: bool = False) -> UOp:
    """Convert; nothing if the aval stays. Complex to real keeps the real part."""
    dtype = dtype if dtypes.is_key(dtype) else np.dtype(dtype)
    if x.aval.dtype == dtype and x.aval.weak_type == weak_type:
        return x
    if x.op is Op.CONST:
        folded = cast_literal(x, dtype)
        if folded is not None:
            return const(folded, dtype, weak_type)
    return UOp(Op.CAST, (x,), (dtype, weak_type))


def cast_literal(x: UOp, dtype: Any) -> Any:
    """The value of a literal in another dtype, where NumPy's conversion is what CAST means.

    That is: from bools, integers and floats to floats (those below 32 bits through float32), and
    between integers.
    """
    value = const_value(x)
    if x.aval.dtype == dtype:
        return value
    if value.dtype.kind not in "biuf" or dtypes.is_key(dtype):
        return None
    if dtypes.is_float(dtype):
        steps = (dtype,) if dtype.kind == "f" and dtype.itemsize >= 4 else (np.float32, dtype)
        with np.errstate(over="ignore"):  # infinity, as when the program runs
            for step in steps:
                value = value.astype(step)
        return value
    return value.astype(dtype) if dtype.kind in "iu" and value.dtype.kind != "f" else None


def cast_like(x: UOp, of: Aval) -> UOp:
    """Convert to the dtype and weak flag of an aval."""
    return cast(x, of.dtype, of.weak_type)


def bitcast(x: UOp, dtype: Any) -> UOp:
    """Reinterpret bits of equal width."""
    dtype = np.dtype(dtype)
    return x if x.aval.dtype == dtype else UOp(Op.BITCAST, (x,), dtype)


# --- movement ---------------------------------------------------------------------------------------


def reshape(x: UOp, shape: Sequence[int]) -> UOp:
    """reshape; reshape(reshape(x)) is one"""
    shape = tuple(shape)
    if x.op is Op.RESHAPE:
        x = x.src[0]
    return x if same_shape(x.aval.shape, shape) else UOp(Op.RESHAPE, (x,), shape)


def permute(x: UOp, perm: Sequence[int]) -> UOp:
    """transpose; permute(permute(x)) is one"""
    perm = tuple(perm)
    if x.op is Op.PERMUTE:
        perm, x = tuple(x.arg[i] for i in perm), x.src[0]
    return x if perm == tuple(range(len(perm))) else UOp(Op.PERMUTE, (x,), perm)


def moveaxis(x: UOp, source: int, target: int) -> UOp:
    """Move one axis."""
    perm = [i for i in range(x.aval.ndim) if i != source]
    perm.insert(target, source)
    return permute(x, perm)


def expand(x: UOp, shape: Sequence[int], dims: Sequence[int]) -> UOp:
    """Axis i of x becomes axis dims[i]; new axes and axes of size 1 repeat."""
    shape, dims = tuple(shape), tuple(dims)
    if dims == tuple(range(len(shape))) and same_shape(shape, x.aval.shape):
        return x
    return UOp(Op.EXPAND, (x,), (shape, dims))


def broadcast(x: UOp, shape: Axes) -> UOp:
    """NumPy broadcasting of x to `shape` (axes aligned at the end)."""
    lead = len(shape) - x.aval.ndim
    return expand(x, shape, tuple(range(lead, len(shape))))


def fill_to(x: UOp, shape: Axes) -> UOp:
    """A scalar broadcast to `shape`; anything else unchanged."""
    return x if same_shape(x.aval.shape, shape) else expand(x, shape, ())


def unsqueeze(x: UOp, axis: int) -> UOp:
    """A new axis of size 1."""
    return reshape(x, (*x.aval.shape[:axis], 1, *x.aval.shape[axis:]))


def squeeze(x: UOp, axes: Axes) -> UOp:
    """Drop axes of size 1."""
    return reshape(x, tuple(s for i, s in enumerate(x.aval.shape) if i not in axes))


def pad(x: UOp, config: Sequence[tuple[int, int, int]], fill: UOp | None = None) -> UOp:
    """Border of (lo, hi, interior) per axis, negative lo/hi crop; zeros by default."""
    config = tuple(tuple(c) for c in config)  # type: ignore[misc]
    if not any(map(any, config)):
        return x
    return UOp(Op.PAD, (x, like(x, 0) if fill is None else fill), config)


def slice_(x: UOp, starts: Axes, stops: Axes, steps: Axes | None = None) -> UOp:
    """Static slice with positive steps."""
    steps = steps or (1,) * len(starts)
    arg = tuple(zip(starts, stops, steps, strict=True))
    if not any(starts) and same_shape(stops, x.aval.shape) and all(s == 1 for s in steps):
        return x
    return UOp(Op.SLICE, (x,), arg)


def slice_axis(x: UOp, axis: int, start: int, stop: int, step: int = 1) -> UOp:
    """Static slice of one axis."""
    shape = x.aval.shape
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    stops = tuple(stop if i == axis else s for i, s in enumerate(shape))
    return slice_(x, starts, stops, tuple(step if i == axis else 1 for i in range(len(shape))))


def flip(x: UOp, axes: Axes) -> UOp:
    """Reverse axes."""
    return UOp(Op.FLIP, (x,), tuple(sorted(axes))) if axes else x


def concat(xs: Sequence[UOp], axis: int) -> UOp:
    """Join along an axis."""
    return xs[0] if len(xs) == 1 else UOp(Op.CONCAT, tuple(xs), axis)


def window(x: UOp, axis: int, size: int, stride: int = 1, dilation: int = 1) -> UOp:
    """Sliding windows of one axis; the new last axis runs inside the window."""
    return UOp(Op.WINDOW, (x,), (axis, size, stride, dilation))


# --- reductions, contraction, indexed --------------------------------------------------------------------


def reduce(kind: str, x: UOp, axes: Sequence[int]) -> UOp:
    """Fold axes with add, mul, max, min, and, or, xor."""
    axes = tuple(sorted(axes))
    return UOp(Op.REDUCE, (x,), (kind, axes)) if axes else x


def sum_(x: UOp, axes: Sequence[int]) -> UOp:
    """Sum over axes."""
    return reduce("add", x, axes)


def unbroadcast(x: UOp, shape: Axes) -> UOp:
    """Sum a value that a scalar was broadcast to (transpose of implicit broadcasting)."""
    return x if same_shape(x.aval.shape, shape) else sum_(x, range(x.aval.ndim))


def argreduce(kind: str, x: UOp, axis: int, index_dtype: Any = INT32) -> tuple[UOp, UOp]:
    """(value, index) of the first extreme along an axis."""
    node = UOp(Op.ARGREDUCE, (x,), (kind, axis, np.dtype(index_dtype)))
    return get(node, 0), get(node, 1)


def last_true(flags: UOp) -> UOp:
    """Index (int32) of the last element of a vector of bools that holds; the last if none does."""
    _, back = argreduce("max", cast(flip(flags, (0,)), INT32), 0)
    return sub(scalar(flags.shape[0] - 1, INT32), back)


def prefix(kind: str, x: UOp, axis: int, reverse: bool = False) -> UOp:
    """Cumulative add, mul, max or min."""
    return UOp(Op.PREFIX, (x,), (kind, axis, reverse))


def dot(
    x: UOp,
    y: UOp,
    contract: tuple[Axes, Axes],
    batch: tuple[Axes, Axes] = ((), ()),
    dtype: Any = None,
    precision: Any = None,
) -> UOp:
    """Contraction; result axes are batch, free of x, free of y."""
    contract = (tuple(contract[0]), tuple(contract[1]))
    batch = (tuple(batch[0]), tuple(batch[1]))
    return UOp(Op.DOT, (x, y), DotInfo(contract, batch, dtype, precision))


def gather(x: UOp, indices: UOp, info: GatherInfo, fill: UOp | None = None) -> UOp:
    """XLA gather."""
    return UOp(Op.GATHER, (x, indices) if fill is None else (x, indices, fill), info)


def take(x: UOp, positions: UOp, axis: int) -> UOp:
    """The slices at positions inside of an axis; the axes of the positions take its place."""
    rank = positions.aval.ndim
    info = GatherInfo(
        offset_dims=tuple(i if i < axis else i + rank - 1 for i in range(x.aval.ndim) if i != axis),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        slice_sizes=tuple(1 if i == axis else s for i, s in enumerate(x.aval.shape)),
        mode="promise_in_bounds",
    )
    return gather(x, unsqueeze(positions, rank), info)


def scatter(x: UOp, indices: UOp, updates: UOp, info: ScatterInfo) -> UOp:
    """XLA scatter."""
    return UOp(Op.SCATTER, (x, indices, updates), info)


def dynamic_slice(x: UOp, starts: Sequence[UOp], sizes: Axes) -> UOp:
    """Slice at run-time starts, clamped so that it fits."""
    return UOp(Op.DYNAMIC_SLICE, (x, *starts), tuple(sizes))


def dynamic_update(x: UOp, update: UOp, starts: Sequence[UOp]) -> UOp:
    """Write `update` at run-time starts, clamped so that it fits."""
    return UOp(Op.DYNAMIC_UPDATE, (x, update, *starts))


def sort(xs: Sequence[UOp], axis: int, num_keys: int = 1, stable: bool = True) -> list[UOp]:
    """Sort operands together by the first `num_keys` of them."""
    node = UOp(Op.SORT, tuple(xs), (axis, num_keys, stable))
    return [get(node, i) for i in range(len(xs))]


def random_bits(keys: UOp, shape: Axes, width: int) -> UOp:
    """Threefry bits for each key of uint32[*b, 2]."""
    return UOp(Op.RANDOM_BITS, (keys,), (tuple(shape), width))


def stop_gradient(x: UOp) -> UOp:
    """x, constant for differentiation (nothing to do for dtypes without derivatives)."""
    return UOp(Op.STOP_GRADIENT, (x,)) if dtypes.is_inexact(x.aval.dtype) else x


def prod(shape: Sequence[int]) -> int:
    """Number of elements."""
    return math.prod(shape)
