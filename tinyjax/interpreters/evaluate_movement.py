"""Rows of the evaluator for movement ops, and what they share: typed keys as opaque elements.

Every result is C-contiguous. RESHAPE returns a view of its operand, the others fresh memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinyjax.core import dtypes, memory
from tinyjax.core.uop import UOp

Array = np.ndarray[Any, Any]
Row = Callable[[UOp, list[Array]], Array]


def contiguous(x: Array) -> Array:
    """`x` in row-major order (`np.ascontiguousarray` would turn rank 0 into rank 1)."""
    return x if x.flags.c_contiguous else x.copy()


def pack_words(data: Array, dtype: dtypes.KeyDType) -> Array:
    """Key data uint32[*s, *key_shape] as uint32[*s, words]."""
    return data.reshape(*data.shape[: data.ndim - len(dtype.key_shape)], -1)


def pack_keys(data: Array, dtype: dtypes.KeyDType) -> Array:
    """Key data uint32[*s, *key_shape] as an array of shape s with one opaque element per key."""
    return contiguous(pack_words(data, dtype)).view(np.dtype((np.void, dtype.itemsize)))[..., 0]


def unpack_keys(keys: Array, dtype: dtypes.KeyDType) -> Array:
    """Inverse of `pack_keys`."""
    return contiguous(keys)[..., None].view(np.uint32).reshape(keys.shape + dtype.key_shape)


def on_keys_too(row: Row) -> Row:
    """The row, which must only move elements, for typed keys as well: they move as a whole."""

    def keyed(node: UOp, args: list[Array]) -> Array:
        dtype = node.aval.dtype
        if type(dtype) is not dtypes.KeyDType:
            return row(node, args)
        packed = [
            pack_keys(x, dtype) if s.aval.dtype is dtype else x for s, x in zip(node.src, args)
        ]
        return unpack_keys(row(node, packed), dtype)

    return keyed


def reshape(node: UOp, args: list[Array]) -> Array:
    """Same elements in row-major order; shares memory."""
    return args[0].reshape(node.arg)


def permute(node: UOp, args: list[Array]) -> Array:
    """Axis i of the result is axis arg[i]."""
    return memory.copy_of(args[0].transpose(node.arg))


def expand(node: UOp, args: list[Array]) -> Array:
    """Axis i becomes axis dims[i]; new axes and axes of size 1 repeat."""
    shape, dims = node.arg
    x = args[0]
    y = memory.empty(shape, x.dtype)
    if not dims or len(dims) == len(shape):
        y[...] = x
        return y
    aligned = [1] * len(shape)
    for size, d in zip(x.shape, dims):
        aligned[d] = size
    y[...] = x.reshape(aligned)
    return y


def pad(node: UOp, args: list[Array]) -> Array:
    """Element i of an axis lands at lo + i*(interior + 1), if that is inside."""
    x, fill = args
    y = memory.empty(_outer(node), x.dtype)
    y[...] = fill
    source, target = [], []
    for size, length, (lo, _, interior) in zip(x.shape, y.shape, node.arg):
        step = interior + 1
        first = max(0, -(lo // step))  # ceil(-lo / step): the first element at or after 0
        last = min(size, -((lo - length) // step))  # elements before `length`
        if last <= first:
            return y
        source.append(slice(first, last))
        start = lo + first * step
        target.append(slice(start, start + (last - first - 1) * step + 1, step))
    y[tuple(target)] = x[tuple(source)]
    return y


def _outer(node: UOp) -> tuple[int, ...]:
    return node.aval.shape  # type: ignore[no-any-return]


def slice_(node: UOp, args: list[Array]) -> Array:
    """Every step-th element of each axis."""
    return memory.copy_of(args[0][tuple(slice(*bounds) for bounds in node.arg)])


def flip(node: UOp, args: list[Array]) -> Array:
    """Axes reversed."""
    return memory.copy_of(np.flip(args[0], node.arg))


def concat(node: UOp, args: list[Array]) -> Array:
    """Operands joined along an axis."""
    y = memory.empty(_outer(node), args[0].dtype)
    np.concatenate(args, node.arg, y)
    return y


def window(node: UOp, args: list[Array]) -> Array:
    """The axis becomes window positions o; a new last axis k has index o*stride + k*dilation."""
    axis, size, stride, dilation = node.arg
    x = args[0]
    y = memory.empty(_outer(node), x.dtype)
    count = y.shape[axis]
    lead = (slice(None),) * axis
    for k in range(size if count else 0):
        start = k * dilation
        y[..., k] = x[(*lead, slice(start, start + (count - 1) * stride + 1, stride))]
    return y
