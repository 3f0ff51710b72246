"""How each op is typed: aval of a node from the avals of its sources and its `arg`.

A rule gets the node (op, src and arg are set) and returns an `Aval` or a `TupleAval`, or raises
TypeError/ValueError saying what does not fit. These are the last line of defence: user-level
functions check their arguments first and name them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import TOKEN, Aval, TupleAval, aval, tuple_aval
from tinyjax.core.dims import maximum
from tinyjax.core.errors import BroadcastError, ConcatenateError, DtypeArgumentError, make_error
from tinyjax.core.ops import COMPARISONS, ELEMENTWISE, Op
from tinyjax.core.uop import RULES, UOp

BOOL = np.dtype(np.bool_)
INDEX_DTYPE = np.dtype(np.int64)


def rule(*ops: Op) -> Callable[[Callable[[UOp], Any]], Callable[[UOp], Any]]:
    """Register the aval rule of these ops."""

    def register(f: Callable[[UOp], Any]) -> Callable[[UOp], Any]:
        for op in ops:
            RULES[op] = f
        return f

    return register


def fail(node: UOp, why: str, error: type[TypeError] = TypeError) -> TypeError:
    """The error for operands that do not fit, with the user's line.

    The operands are those of the op. What the user called, and with what, is added where the
    exception leaves us (core/source.py).
    """
    kinds = ", ".join(
        s.aval.str_short() if isinstance(s.aval, Aval) else repr(s.aval) for s in node.operands
    )
    return make_error(error, f"{node.op.name.lower()}: {why}; got {kinds}")


def need_numbers(node: UOp, *operands: UOp) -> None:
    """Raise where arithmetic or an order meets typed keys, which are moved, selected and ==."""
    if any(dtypes.is_key(s.aval.dtype) for s in operands):
        raise fail(node, "typed keys have no arithmetic; use random.split, fold_in or key_data")


# --- leaves ------------------------------------------------------------------------------------


@rule(Op.CONST)
def const_rule(n: UOp) -> Aval:
    return aval((), n.arg[0], n.arg[2])


@rule(Op.IOTA)
def iota_rule(n: UOp) -> Aval:
    return n.arg[0]  # type: ignore[no-any-return]


@rule(Op.VAR, Op.BUFFER)
def leaf_rule(n: UOp) -> Aval:
    return n.arg.aval  # type: ignore[no-any-return]


@rule(Op.DIM)
def dim_rule(n: UOp) -> Aval:
    return aval((), INDEX_DTYPE)


@rule(Op.PARAM)
def param_rule(n: UOp) -> Aval:
    return n.arg[1]  # type: ignore[no-any-return]


# --- elementwise ---------------------------------------------------------------------------------


def elementwise_shape(n: UOp) -> tuple[int, ...]:
    """Shape of the operands that are not scalars; they must agree."""
    shape: tuple[int, ...] = ()
    for s in n.src:
        if s.aval.shape and s.aval.shape != shape:
            if shape:
                raise fail(n, "elementwise operands need equal shapes (or rank 0)", BroadcastError)
            shape = s.aval.shape
    return shape


FLOAT_ONLY = frozenset(
    Op[name]
    for name in (
        "SQRT RSQRT CBRT EXP EXP2 EXPM1 LOG LOG2 LOG1P SIN COS TAN ASIN ACOS ATAN SINH COSH TANH "
        "ASINH ACOSH ATANH LOGISTIC ERF ERFC ERFINV LGAMMA DIGAMMA FLOOR CEIL ROUND TRUNC ATAN2 "
        "NEXTAFTER POW REDUCE_PRECISION"
    ).split()
)
NOT_COMPLEX = frozenset(
    Op[name]
    for name in ("FLOOR CEIL ROUND TRUNC CBRT ERF ERFC ERFINV LGAMMA DIGAMMA NEXTAFTER REM").split()
)
BITS_ONLY = frozenset({Op.AND, Op.OR, Op.XOR, Op.NOT})
INTEGER_ONLY = frozenset({Op.SHL, Op.SHRL, Op.SHRA, Op.POPCOUNT, Op.CLZ, Op.IDIV, Op.MOD})


@rule(*(ELEMENTWISE - {Op.CAST, Op.BITCAST, Op.WHERE, Op.COMPLEX, Op.IS_FINITE}))
def elementwise_rule(n: UOp) -> Aval:
    op, src = n.op, n.src
    first: Aval = src[0].aval
    dtype, weak, shape = first.dtype, first.weak_type, first.shape
    if len(src) == 2:
        second: Aval = src[1].aval
        if second.dtype != dtype:
            raise fail(n, "dtypes must be equal")
        weak = weak and second.weak_type
        if second.shape != shape:
            shape = elementwise_shape(n)
    if op is Op.CMPEQ or op is Op.CMPNE:
        return aval(shape, BOOL)
    need_numbers(n, src[0])
    if op in COMPARISONS:
        return aval(shape, BOOL)
    if op in FLOAT_ONLY and not dtypes.is_inexact(dtype):
        raise fail(n, "needs a floating dtype")
    if op in NOT_COMPLEX and dtypes.is_complex(dtype):
        raise fail(n, "does not accept complex numbers")
    if op in BITS_ONLY and not (dtype == BOOL or dtypes.is_integer(dtype)):
        raise fail(n, "needs an integer or bool dtype")
    if op in INTEGER_ONLY and not dtypes.is_integer(dtype):
        raise fail(n, "needs an integer dtype")
    if dtypes.is_complex(dtype) and op in (Op.ABS, Op.REAL, Op.IMAG):
        return aval(shape, dtypes.to_floating_dtype(dtype), weak)
    return aval(shape, dtype, weak)


@rule(Op.IS_FINITE)
def is_finite_rule(n: UOp) -> Aval:
    need_numbers(n, n.src[0])
    return aval(n.src[0].aval.shape, BOOL)


@rule(Op.COMPLEX)
def complex_rule(n: UOp) -> Aval:
    a, b = n.src[0].aval, n.src[1].aval
    if a.dtype != b.dtype or a.dtype not in (np.float32, np.float64):
        raise fail(n, "needs two float32 or two float64 operands")
    dtype = np.dtype(np.complex64 if a.dtype == np.float32 else np.complex128)
    return aval(elementwise_shape(n), dtype, a.weak_type and b.weak_type)


@rule(Op.CAST)
def cast_rule(n: UOp) -> Aval:
    dtype, weak = n.arg
    if dtypes.is_key(dtype) != dtypes.is_key(n.src[0].aval.dtype):
        why = f"to {dtype.name}: typed keys are no numbers; see random.key_data and wrap_key_data"
        raise fail(n, why, DtypeArgumentError)
    return aval(n.src[0].aval.shape, dtype, weak)


@rule(Op.BITCAST)
def bitcast_rule(n: UOp) -> Aval:
    of = n.src[0].aval
    if dtypes.bit_width(of.dtype) != dtypes.bit_width(n.arg):
        raise fail(n, f"cannot reinterpret as {n.arg}: the widths differ")
    return aval(of.shape, n.arg)


@rule(Op.WHERE)
def where_rule(n: UOp) -> Aval:
    c, x, y = (s.aval for s in n.src)
    if c.dtype != BOOL:
        raise fail(n, "the condition must be bool")
    if x.dtype != y.dtype:
        raise fail(n, "both cases need the same dtype")
    return aval(elementwise_shape(n), x.dtype, x.weak_type and y.weak_type)


# --- movement -----------------------------------------------------------------------------------------


@rule(Op.RESHAPE)
def reshape_rule(n: UOp) -> Aval:
    of = n.src[0].aval
    if math.prod(n.arg) != of.size:
        raise fail(n, f"cannot reshape to {n.arg}: {of.size} elements into {math.prod(n.arg)}")
    return aval(n.arg, of.dtype, of.weak_type)


@rule(Op.PERMUTE)
def permute_rule(n: UOp) -> Aval:
    of = n.src[0].aval
    if sorted(n.arg) != list(range(of.ndim)):
        raise fail(n, f"permutation {n.arg} must name each axis once")
    return aval(tuple(of.shape[i] for i in n.arg), of.dtype, of.weak_type)


@rule(Op.EXPAND)
def expand_rule(n: UOp) -> Aval:
    of, (shape, dims) = n.src[0].aval, n.arg
    if len(dims) != of.ndim or list(dims) != sorted(set(dims)):
        why = f"dims {dims} must give each axis an increasing place in {shape}"
        raise fail(n, why, BroadcastError)
    for size, d in zip(of.shape, dims, strict=True):
        if not 0 <= d < len(shape) or size not in (1, shape[d]):
            raise fail(n, f"cannot broadcast to {shape} with dims {dims}", BroadcastError)
    return aval(shape, of.dtype, of.weak_type)


def padded(size: int, lo: int, hi: int, interior: int) -> int:
    """Length of an axis after PAD."""
    if not (lo or hi or interior):
        return size
    return size + lo + hi + (maximum(size - 1, 0) * interior if interior else 0)


@rule(Op.PAD)
def pad_rule(n: UOp) -> Aval:
    of, fill = n.src[0].aval, n.src[1].aval
    if fill.shape != () or fill.dtype != of.dtype:
        raise fail(n, "the fill value must be a scalar of the same dtype")
    if len(n.arg) != of.ndim or any(i < 0 for _, _, i in n.arg):
        raise fail(n, f"padding {n.arg} needs (lo, hi, interior >= 0) for each axis")
    shape = tuple(padded(s, *p) for s, p in zip(of.shape, n.arg, strict=True))
    if any(s < 0 for s in shape):
        raise fail(n, f"padding {n.arg} would give the negative shape {shape}")
    return aval(shape, of.dtype, of.weak_type and fill.weak_type)


def sliced(start: int, stop: int, step: int) -> int:
    """Length of an axis after SLICE."""
    if step != 1:
        return -((start - stop) // step)
    return stop - start if start else stop


@rule(Op.SLICE)
def slice_rule(n: UOp) -> Aval:
    of = n.src[0].aval
    if len(n.arg) != of.ndim:
        raise fail(n, f"slice {n.arg} needs (start, stop, step) for each axis")
    for (start, stop, step), size in zip(n.arg, of.shape, strict=True):
        if not (0 <= start <= stop <= size and step > 0):
            raise fail(n, f"slice {start}:{stop}:{step} does not lie in an axis of size {size}")
    shape = tuple(sliced(*part) for part in n.arg)
    return aval(shape, of.dtype, of.weak_type)


@rule(Op.FLIP)
def flip_rule(n: UOp) -> Aval:
    if any(not 0 <= a < n.src[0].aval.ndim for a in n.arg):
        raise fail(n, f"axes {n.arg} out of range")
    return n.src[0].aval  # type: ignore[no-any-return]


@rule(Op.CONCAT)
def concat_rule(n: UOp) -> Aval:
    first, axis = n.src[0].aval, n.arg
    if not 0 <= axis < first.ndim:
        raise fail(n, f"axis {axis} out of range")
    for s in n.src[1:]:
        shape = s.aval.shape
        if s.aval.dtype != first.dtype or (
            shape[:axis] + shape[axis + 1 :] != first.shape[:axis] + first.shape[axis + 1 :]
            or len(shape) != first.ndim
        ):
            raise fail(n, f"operands may differ along axis {axis} only", ConcatenateError)
    total = sum(s.aval.shape[axis] for s in n.src)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    return aval(shape, first.dtype, all(s.aval.weak_type for s in n.src))


@rule(Op.WINDOW)
def window_rule(n: UOp) -> Aval:
    of, (axis, size, stride, dilation) = n.src[0].aval, n.arg
    reach = (size - 1) * dilation + 1 if size else 0
    count = maximum(0, (of.shape[axis] - reach) // stride + 1)
    shape = (*of.shape[:axis], count, *of.shape[axis + 1 :], size)
    return aval(shape, of.dtype, of.weak_type)


# --- reductions, contraction, indexed --------------------------------------------------------------------


@rule(Op.REDUCE)
def reduce_rule(n: UOp) -> Aval:
    need_numbers(n, n.src[0])
    of, (kind, axes) = n.src[0].aval, n.arg
    if list(axes) != sorted(set(axes)) or any(not 0 <= a < of.ndim for a in axes):
        raise fail(n, f"axes {axes} must be increasing and in range")
    if kind in ("and", "or", "xor") and not (of.dtype == BOOL or dtypes.is_integer(of.dtype)):
        raise fail(n, f"{kind} needs an integer or bool dtype")
    shape = tuple(s for i, s in enumerate(of.shape) if i not in axes)
    return aval(shape, of.dtype, of.weak_type)


@rule(Op.ARGREDUCE)
def argreduce_rule(n: UOp) -> TupleAval:
    need_numbers(n, n.src[0])
    of, (_, axis, index_dtype) = n.src[0].aval, n.arg
    shape = of.shape[:axis] + of.shape[axis + 1 :]
    return tuple_aval((aval(shape, of.dtype, of.weak_type), aval(shape, index_dtype)))


@rule(Op.PREFIX)
def prefix_rule(n: UOp) -> Aval:
    if len(n.src) == 2:  # kernel stage: (scalar value, serial range)
        return n.src[0].aval  # type: ignore[no-any-return]
    need_numbers(n, n.src[0])
    if not 0 <= n.arg[1] < n.src[0].aval.ndim:
        raise fail(n, f"axis {n.arg[1]} out of range")
    return n.src[0].aval  # type: ignore[no-any-return]


@rule(Op.DOT)
def dot_rule(n: UOp) -> Aval:
    need_numbers(n, *n.src)
    a, b = n.src[0].aval, n.src[1].aval
    (ca, cb), (ba, bb) = n.arg.contract, n.arg.batch
    for i, j in zip(ca + ba, cb + bb, strict=True):
        if a.shape[i] != b.shape[j]:
            raise fail(
                n,
                f"axis {i} of the first has size {a.shape[i]}, axis {j} of the second {b.shape[j]}",
            )
    free_a = tuple(s for i, s in enumerate(a.shape) if i not in ca and i not in ba)
    free_b = tuple(s for i, s in enumerate(b.shape) if i not in cb and i not in bb)
    batch = tuple(a.shape[i] for i in ba)
    if n.arg.dtype is None and a.dtype != b.dtype:
        raise fail(n, "dtypes must be equal unless a result dtype is given")
    weak = n.arg.dtype is None and a.weak_type and b.weak_type
    return aval(batch + free_a + free_b, n.arg.dtype or a.dtype, weak)


@rule(Op.GATHER)
def gather_rule(n: UOp) -> Aval:
    x, indices, g = n.src[0].aval, n.src[1].aval, n.arg
    if indices.ndim < 1 or indices.shape[-1] != len(g.start_index_map):
        raise fail(n, f"index vectors need length {len(g.start_index_map)} along the last axis")
    for size, dim in zip(g.slice_sizes, x.shape, strict=True):
        if not 0 <= size <= dim:
            raise fail(n, f"slice sizes {g.slice_sizes} must fit {x.shape}")
    skip = g.collapsed_slice_dims + g.operand_batching_dims
    window = [s for i, s in enumerate(g.slice_sizes) if i not in skip]
    batch = list(indices.shape[:-1])
    if len(window) != len(g.offset_dims):
        raise fail(n, f"offset_dims {g.offset_dims} must place {len(window)} window axes")
    shape, w, b = [], iter(window), iter(batch)
    for i in range(len(window) + len(batch)):
        shape.append(next(w) if i in g.offset_dims else next(b))
    return aval(tuple(shape), x.dtype, x.weak_type)


@rule(Op.SCATTER)
def scatter_rule(n: UOp) -> Aval:
    x, indices, updates, s = n.src[0].aval, n.src[1].aval, n.src[2].aval, n.arg
    if s.kind != "set":
        need_numbers(n, n.src[0])
    if updates.dtype != x.dtype:
        raise fail(n, "updates need the dtype of the operand")
    if updates.ndim != len(s.update_window_dims) + indices.ndim - 1:
        raise fail(n, "updates need one axis per index axis and per window axis")
    return aval(x.shape, x.dtype, x.weak_type and updates.weak_type)


@rule(Op.DYNAMIC_SLICE)
def dynamic_slice_rule(n: UOp) -> Aval:
    x = n.src[0].aval
    if len(n.arg) != x.ndim or len(n.src) != 1 + x.ndim:
        raise fail(n, "one start and one size are needed for each axis")
    if any(not 0 <= size <= dim for size, dim in zip(n.arg, x.shape, strict=True)):
        raise fail(n, f"slice sizes {n.arg} must fit {x.shape}")
    return aval(n.arg, x.dtype, x.weak_type)


@rule(Op.DYNAMIC_UPDATE)
def dynamic_update_rule(n: UOp) -> Aval:
    x, update = n.src[0].aval, n.src[1].aval
    if update.ndim != x.ndim or len(n.src) != 2 + x.ndim or update.dtype != x.dtype:
        raise fail(n, "the update needs the rank and dtype of the operand, and one start per axis")
    if any(u > d for u, d in zip(update.shape, x.shape, strict=True)):
        raise fail(n, "the update must fit the operand")
    return aval(x.shape, x.dtype, x.weak_type)


@rule(Op.SORT)
def sort_rule(n: UOp) -> TupleAval:
    need_numbers(n, *n.src[: n.arg[1]])
    if len({s.aval.shape for s in n.src}) != 1:
        raise fail(n, "operands need equal shapes")
    return tuple_aval(tuple(s.aval for s in n.src))


UINTS = {8: np.dtype("u1"), 16: np.dtype("u2"), 32: np.dtype("u4"), 64: np.dtype("u8")}


@rule(Op.RANDOM_BITS)
def random_bits_rule(n: UOp) -> Aval:
    keys, (shape, width) = n.src[0].aval, n.arg
    if keys.dtype != np.uint32 or keys.ndim < 1 or keys.shape[-1] != 2:
        raise fail(n, "needs uint32 key data of shape [..., 2]")
    return aval(keys.shape[:-1] + shape, UINTS[width])


@rule(Op.FFT)
def fft_rule(n: UOp) -> Aval:
    of, (kind, lengths) = n.src[0].aval, n.arg
    lead = of.shape[: of.ndim - len(lengths)]
    if kind == "rfft":
        shape = lead + lengths[:-1] + (lengths[-1] // 2 + 1,)
        return aval(shape, np.dtype(np.complex64 if of.dtype == np.float32 else np.complex128))
    if kind == "irfft":
        return aval(lead + lengths, dtypes.to_floating_dtype(of.dtype))
    return aval(lead + lengths, of.dtype)


# --- calls and control flow ----------------------------------------------------------------------------------


@rule(Op.TUPLE)
def tuple_rule(n: UOp) -> TupleAval:
    return tuple_aval(tuple(s.aval for s in n.src))


@rule(Op.GETTUPLE)
def gettuple_rule(n: UOp) -> Aval:
    return n.src[0].aval.elts[n.arg]  # type: ignore[no-any-return]


@rule(Op.CALL)
def call_rule(n: UOp) -> TupleAval:
    return n.src[0].aval  # type: ignore[no-any-return]


@rule(Op.SCAN)
def scan_rule(n: UOp) -> TupleAval:
    outs, info = n.src[0].aval.elts, n.arg
    carry = n.src[1 + info.num_consts : 1 + info.num_consts + info.num_carry]
    for out, c in zip(outs, carry, strict=False):
        if out.shape != c.aval.shape or out.dtype != c.aval.dtype:
            raise fail(n, f"carry enters as {c.aval.str_short()} and leaves as {out.str_short()}")
    ys = tuple(aval((info.length, *y.shape), y.dtype, y.weak_type) for y in outs[info.num_carry :])
    return tuple_aval(outs[: info.num_carry] + ys)


@rule(Op.WHILE)
def while_rule(n: UOp) -> TupleAval:
    return n.src[1].aval  # type: ignore[no-any-return]


@rule(Op.COND)
def cond_rule(n: UOp) -> TupleAval:
    first = n.src[0].aval
    for other in n.src[1 : n.arg]:
        for a, b in zip(first.elts, other.aval.elts, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                raise fail(n, f"branches give {a.str_short()} and {b.str_short()}")
    return first  # type: ignore[no-any-return]


@rule(Op.CUSTOM_LIN, Op.HOST_CALL)
def stated_rule(n: UOp) -> TupleAval:
    return tuple_aval(n.arg.out)


@rule(Op.CALLBACK)
def callback_rule(n: UOp) -> TupleAval:
    return tuple_aval(n.arg.out if n.arg.pure else (*n.arg.out, token_aval(n)))


@rule(Op.CHECK)
def check_rule(n: UOp) -> TupleAval:
    return tuple_aval((token_aval(n),))


def token_aval(n: UOp) -> Aval:
    """That of the token an effect takes and gives: TOKEN, after lowering an ordinary bool."""
    of: Aval | None = n.src[-1].aval if n.src else None
    if of is None or of.strip_weak_type() is not TOKEN.strip_weak_type():
        raise fail(n, "an effect takes the token of the one before it last")
    return of


@rule(Op.KERNEL)
def kernel_rule(n: UOp) -> TupleAval:
    return tuple_aval(n.arg.out)


# --- identities -----------------------------------------------------------------------------------------------


@rule(Op.STOP_GRADIENT, Op.NAME, Op.OPTIMIZATION_BARRIER, Op.REMAT, Op.COPY, Op.PCAST)
def identity_rule(n: UOp) -> Any:
    return n.src[0].aval


@rule(Op.KEY_WRAP)
def key_wrap_rule(n: UOp) -> Aval:
    of, tail = n.src[0].aval, n.arg.key_shape
    lead = of.ndim - len(tail)
    if of.dtype != np.uint32 or lead < 0 or of.shape[lead:] != tail:
        raise fail(n, f"key data of {n.arg} is uint32[..., {', '.join(map(str, tail))}]")
    return aval(of.shape[:lead], n.arg)


@rule(Op.KEY_UNWRAP)
def key_unwrap_rule(n: UOp) -> Aval:
    of = n.src[0].aval
    if not dtypes.is_key(of.dtype):
        raise fail(n, "needs typed keys")
    return aval(of.shape + of.dtype.key_shape, np.dtype(np.uint32))


# --- collectives ------------------------------------------------------------------------------------------------


@rule(Op.AXIS_INDEX)
def axis_index_rule(n: UOp) -> Aval:
    return aval((), np.dtype(np.int32))


@rule(Op.ALL_REDUCE, Op.PPERMUTE)
def same_shape_rule(n: UOp) -> Aval:
    return n.src[0].aval  # type: ignore[no-any-return]


@rule(Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL)
def collective_shape_rule(n: UOp) -> Aval:
    """Axis sizes live with the trace that opened the axis; `arg[-1]` is the result aval."""
    return n.arg[-1]  # type: ignore[no-any-return]


# --- kernel and program stages --------------------------------------------------------------------------------------


@rule(Op.RANGE)
def range_rule(n: UOp) -> Aval:
    return aval((), INDEX_DTYPE)


@rule(Op.FOLD)
def fold_rule(n: UOp) -> Any:
    if n.arg in ("argmax", "argmin"):
        return tuple_aval((n.src[0].aval, n.src[1].aval))
    return n.src[0].aval


@rule(Op.INDEX, Op.STAGE, Op.AFTER, Op.SPLAT, Op.HFOLD, Op.END)
def of_first_rule(n: UOp) -> Any:
    return n.src[0].aval


@rule(Op.LOAD)
def load_rule(n: UOp) -> Aval:
    return aval((), n.src[0].aval.dtype)


@rule(Op.FMA)
def fma_rule(n: UOp) -> Aval:
    return n.src[0].aval  # type: ignore[no-any-return]


@rule(Op.STORE, Op.SINK, Op.IF, Op.ENDIF)
def effect_rule(n: UOp) -> TupleAval:
    return tuple_aval(())


@rule(Op.ACC)
def acc_rule(n: UOp) -> Aval:
    return aval((), n.arg[1])


@rule(Op.LANES)
def lanes_rule(n: UOp) -> Aval:
    return aval((), INDEX_DTYPE)


missing = [op.name for op in Op if op not in RULES]
assert not missing, f"ops without an aval rule: {missing}"
