"""Rows of the evaluator that combine elements: REDUCE, ARGREDUCE, PREFIX, DOT, SORT, FFT.

Floats below 32 bits accumulate in float32 and are rounded once; integers wrap in their own dtype.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from tinyjax.core import dtypes, memory
from tinyjax.core.uop import UOp
from tinyjax.interpreters.evaluate_elementwise import (
    BUILTIN,
    WIDE,
    complex_max,
    complex_min,
    narrow,
    widen,
)

Array = np.ndarray[Any, Any]

FOLDS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


DOUBLE = {dtypes.float32: dtypes.float64, dtypes.complex64: dtypes.complex128}


def least(dtype: Any) -> Any:
    """The identity of max: -inf, the smallest integer, False (for a compute dtype)."""
    if dtype.kind in "fc":
        return -math.inf
    return False if dtype == np.bool_ else np.iinfo(dtype).min


def greatest(dtype: Any) -> Any:
    """The identity of min."""
    if dtype.kind in "fc":
        return math.inf
    return True if dtype == np.bool_ else np.iinfo(dtype).max


def identity(kind: str, dtype: Any) -> Any:
    """What a fold over nothing gives, as a scalar of the compute dtype."""
    if kind == "max":
        return np.array(least(dtype), dtype)
    if kind == "min":
        return np.array(greatest(dtype), dtype)
    return np.array({"add": 0, "mul": 1, "and": True, "or": 0, "xor": 0}[kind], dtype)


def empty_fold(node: UOp, kind: str, dtype: Any) -> Array:
    """A fold over nothing; the limits are those of the dtype itself, not of its compute dtype."""
    y = np.empty(node.aval.shape, dtype)
    if kind == "and":
        y[...] = True if dtype == np.bool_ else narrow(np.array(-1, np.int64), dtype)
    elif kind in ("max", "min") and dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        y[...] = np.array(int(info.min if kind == "max" else info.max)).astype(dtype)
    else:
        y[...] = narrow(identity(kind, WIDE.get(dtype, dtype)), dtype)
    return y


def reduce(node: UOp, args: list[Array]) -> Array:
    """Fold over axes; sums of floats are pairwise along the last axis (NumPy)."""
    kind, axes = node.arg
    x = args[0]
    dtype = x.dtype
    if not x.size:
        return empty_fold(node, kind, dtype)
    if dtype.num >= BUILTIN:
        x = x.astype(WIDE[dtype])
    if dtype.kind == "c" and kind in ("max", "min"):
        return complex_extreme(x, kind, axes)
    if kind == "add" and x.dtype.kind in "fc":
        return narrow(sum_floats(x, axes), dtype)
    y = memory.empty(node.aval.shape, x.dtype)
    FOLDS[kind].reduce(x, axes, x.dtype, y)
    return narrow(y, dtype)


BLOCK = 32
"""Longest run of terms added one after the other."""


def sum_floats(x: Array, axes: tuple[int, ...]) -> Array:
    """Sum with an error that grows with the logarithm of the count, whichever axes are summed.

    NumPy adds pairwise along a contiguous last axis only; over a leading axis it adds row by row
    (a million times 0.1 in float32 is 1% off). There we add blocks, then the blocks' sums.
    """
    shape, last = x.shape, x.ndim - 1
    count = math.prod(shape[a] for a in axes)
    if count <= BLOCK or len(axes) == x.ndim:
        y = memory.empty(tuple(n for a, n in enumerate(shape) if a not in axes), x.dtype)
        np.add.reduce(x, axes, out=y)
        return y
    first = axes[0]
    if axes[-1] - first != len(axes) - 1:  # not one run of axes: make it the last one
        kept = [a for a in range(x.ndim) if a not in axes]
        x = x.transpose(*kept, *axes).reshape(*(shape[a] for a in kept), count)
        return np.asarray(np.add.reduce(x, axis=-1))
    lead, trail = shape[:first], shape[axes[-1] + 1 :]
    if axes[-1] == last:
        return np.asarray(np.add.reduce(x.reshape(*lead, count), axis=-1))
    x = x.reshape(math.prod(lead), count, math.prod(trail))
    while x.shape[1] > BLOCK:
        whole = x.shape[1] // BLOCK * BLOCK
        blocks = x[:, :whole].reshape(x.shape[0], -1, BLOCK, x.shape[2])
        parts = [np.add.reduce(blocks, axis=2), np.add.reduce(x[:, whole:], axis=1)[:, None]]
        x = np.concatenate(parts, axis=1)
    return np.asarray(np.add.reduce(x, axis=1)).reshape(lead + trail)


def complex_extreme(x: Array, kind: str, axes: tuple[int, ...]) -> Array:
    """Lexicographic extreme, halving the folded axis (NaN as in MAX and MIN)."""
    pick = complex_max if kind == "max" else complex_min
    kept = [i for i in range(x.ndim) if i not in axes]
    shape = tuple(x.shape[i] for i in kept)
    x = x.transpose(*axes, *kept).reshape((-1, *shape))
    while len(x) > 1:
        half = len(x) // 2
        x = np.concatenate([pick(x[:half], x[half : 2 * half]), x[2 * half :]])
    return np.array(x[0])


def argreduce(node: UOp, args: list[Array]) -> list[Array]:
    """(extreme, its first index); the first NaN if there is one."""
    kind, axis, index_dtype = node.arg
    x = args[0]
    value, index = node.aval.elts
    if not x.shape[axis]:
        raise ValueError(f"arg{kind} of an axis of size 0 has no index")
    compute = widen(x)
    find = np.argmax if kind == "max" else np.argmin
    at = np.asarray(find(compute, axis=axis))
    found = np.take_along_axis(x, np.expand_dims(at, axis), axis)
    return [found.reshape(value.shape), at.astype(index_dtype)]


def prefix(node: UOp, args: list[Array]) -> Array:
    """Fold of all elements up to and including each one, from either end."""
    kind, axis, reverse = node.arg
    x = widen(args[0])
    if reverse:
        x = np.flip(x, axis)
    if x.dtype.kind == "c" and kind in ("max", "min"):
        y = x.copy()
        pick = complex_max if kind == "max" else complex_min
        moved = np.moveaxis(y, axis, 0)
        for i in range(1, len(moved)):
            moved[i] = pick(moved[i - 1], moved[i])
    else:
        # sums and products run one by one, so float32 needs more digits on the way
        wide = DOUBLE.get(x.dtype, x.dtype) if kind in ("add", "mul") else x.dtype
        y = FOLDS[kind].accumulate(x, axis=axis, dtype=wide)
    if reverse:
        y = np.flip(y, axis)
    return np.ascontiguousarray(narrow(y, args[0].dtype))


# --- contraction ------------------------------------------------------------------------------


MATRIX_PRODUCT = ((1,), (0,))
PLAIN = frozenset({dtypes.float32, dtypes.float64, *dtypes.COMPLEXES})


def dot(node: UOp, args: list[Array]) -> Array:
    """Batched matrix product of the operands brought to [batch, free, contracted]."""
    x, y = args
    info, result = node.arg, node.aval.dtype
    if x.ndim == 2 and y.ndim == 2 and info.contract == MATRIX_PRODUCT and x.dtype in PLAIN:
        if x.dtype == y.dtype == result and not info.batch[0]:  # the general form costs 6 us more
            matrix = memory.empty(node.aval.shape, result)
            np.matmul(x, y, matrix)
            return matrix
    (cx, cy), (bx, by) = info.contract, info.batch
    compute = dot_compute_dtype(x.dtype, y.dtype, result)
    x, y = converted(x, compute), converted(y, compute)
    fx = [i for i in range(x.ndim) if i not in cx and i not in bx]
    fy = [i for i in range(y.ndim) if i not in cy and i not in by]
    batch = tuple(x.shape[i] for i in bx)
    free_x, free_y = tuple(x.shape[i] for i in fx), tuple(y.shape[i] for i in fy)
    depth = math.prod(x.shape[i] for i in cx)
    rows, columns = math.prod(free_x), math.prod(free_y)
    left = x.transpose(*bx, *fx, *cx).reshape(*batch, rows, depth)
    right = y.transpose(*by, *cy, *fy).reshape(*batch, depth, columns)
    product = memory.empty(batch + free_x + free_y, compute)
    np.matmul(left, right, out=product.reshape(*batch, rows, columns))
    return converted(product, result)


@functools.lru_cache(1024)
def dot_compute_dtype(x: Any, y: Any, result: Any) -> np.dtype[Any]:
    """Widest of the three, at least float32 if one is inexact; integers compute in the result's."""
    if not any(map(dtypes.is_inexact, (x, y, result))):
        integer: np.dtype[Any] = WIDE.get(result, result)
        return integer
    found = np.dtype(np.float32)
    for dtype in (x, y, result):
        if dtypes.is_inexact(dtype):
            found = np.promote_types(found, WIDE.get(dtype, dtype))
    return found


def converted(x: Array, dtype: Any) -> Array:
    """`x` in a compute dtype (or a product in the result dtype); nothing if it is."""
    return x if x.dtype == dtype else narrow(widen(x), dtype)


# --- order ------------------------------------------------------------------------------------


def sort(node: UOp, args: list[Array]) -> list[Array]:
    """Operands permuted so that the keys ascend; stable, -0 equals 0, all NaN equal and last."""
    axis, num_keys, _ = node.arg
    keys: list[Array] = []
    for x in map(widen, args[:num_keys]):
        keys += [x.real, x.imag] if x.dtype.kind == "c" else [x]
    if len(keys) == 1:
        order = np.argsort(keys[0], axis=axis, kind="stable")
    else:
        order = np.lexsort(keys[::-1], axis=axis)
    moved = []
    for x in args:
        index = order.reshape(order.shape + (1,) * (x.ndim - order.ndim))  # the words of typed keys
        moved.append(np.ascontiguousarray(np.take_along_axis(x, index, axis)))
    return moved


# --- Fourier transforms -----------------------------------------------------------------------


def fft(node: UOp, args: list[Array]) -> Array:
    """Transforms over the last `len(lengths)` axes, NumPy's; inverse ones are scaled by 1/n."""
    kind, lengths = node.arg
    axes = tuple(range(-len(lengths), 0))
    if not lengths:
        return args[0].astype(node.aval.dtype)
    y = getattr(np.fft, f"{kind}n")(args[0], s=lengths, axes=axes)
    return np.ascontiguousarray(narrow(y, node.aval.dtype))
