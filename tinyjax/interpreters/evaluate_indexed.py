"""Rows of the evaluator for indexed ops: GATHER, SCATTER, DYNAMIC_SLICE, DYNAMIC_UPDATE.

Gather and scatter are XLA's general form with batching dimensions. Both reduce to NumPy's fancy
indexing: every operand axis that is indexed, batched or cut to a window gets an array of positions
that broadcasts over (batch axes..., window axes...); an axis taken whole stays a plain slice.
Source: https://openxla.org/xla/operation_semantics#gather
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinyjax.core import dtypes, memory
from tinyjax.core.uop import UOp
from tinyjax.interpreters.evaluate_elementwise import BUILTIN, WIDE, narrow

Array = np.ndarray[Any, Any]


def as_positions(indices: Array) -> Array:
    """Indices as int64; uint64 beyond its range stays out of bounds on the high side."""
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
    return indices.astype(np.int64)


def clamped_starts(
    starts: list[Array], shape: tuple[int, ...], sizes: tuple[int, ...]
) -> list[int]:
    """Start of each axis, moved so that the slice fits."""
    return [min(max(int(start), 0), dim - size) for start, dim, size in zip(starts, shape, sizes)]


def dynamic_slice(node: UOp, args: list[Array]) -> Array:
    """Slice of static sizes at run-time starts, which are clamped."""
    x, sizes = args[0], node.arg
    starts = clamped_starts(args[1:], x.shape, sizes)
    return memory.copy_of(x[tuple(slice(s, s + n) for s, n in zip(starts, sizes))])


def dynamic_update(node: UOp, args: list[Array]) -> Array:
    """A copy of x with `update` written at run-time starts, which are clamped."""
    x, update = args[:2]
    starts = clamped_starts(args[2:], x.shape, update.shape)
    y = memory.copy_of(x)
    y[tuple(slice(s, s + n) for s, n in zip(starts, update.shape))] = update
    return y


def split_starts(
    indices: Array, index_map: tuple[int, ...], shape: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[dict[int, Array], Array]:
    """Start per indexed operand axis, clamped, and where all of them were in bounds before."""
    positions = as_positions(indices)
    inside = np.ones(positions.shape[:-1], np.bool_)
    starts = {}
    for k, axis in enumerate(index_map):
        start, last = positions[..., k], shape[axis] - sizes[axis]
        inside &= (start >= 0) & (start <= last)
        starts[axis] = np.clip(start, 0, last)
    return starts, inside


def positions_of(
    axis: int,
    starts: dict[int, Array],
    batching: dict[int, int],
    batch_shape: tuple[int, ...],
    window: list[int],
    sizes: tuple[int, ...],
) -> Array:
    """Positions along an operand axis, broadcasting over batch axes, then the `window` axes."""
    rank = len(batch_shape) + len(window)
    shape = [1] * rank
    if axis in batching:
        place = batching[axis]
        shape[place] = batch_shape[place]
        return np.arange(batch_shape[place]).reshape(shape)
    position = np.zeros(shape, np.int64)
    if axis in window:
        shape[len(batch_shape) + window.index(axis)] = sizes[axis]
        position = np.arange(sizes[axis]).reshape(shape)
    if axis in starts:
        start = starts[axis]
        position = position + start.reshape(start.shape + (1,) * len(window))
    return position


def gather(node: UOp, args: list[Array]) -> Array:
    """The window at each index vector; out of bounds gives the fill value or a clamped window."""
    x, indices, info = args[0], args[1], node.arg
    sizes, batch_shape = info.slice_sizes, indices.shape[:-1]
    starts, inside = split_starts(indices, info.start_index_map, x.shape, sizes)
    batching = dict(zip(info.operand_batching_dims, info.start_indices_batching_dims))
    skipped = info.collapsed_slice_dims + info.operand_batching_dims
    window = [a for a in range(x.ndim) if a not in skipped]
    whole = [a for a in window if a not in starts and sizes[a] == x.shape[a]]
    picked = [a for a in range(x.ndim) if a not in whole]
    cut = [a for a in window if a not in whole]
    if picked:
        where = tuple(positions_of(a, starts, batching, batch_shape, cut, sizes) for a in picked)
        where = np.broadcast_arrays(*where, np.empty(batch_shape + (1,) * len(cut), np.bool_))[:-1]
        y = np.asarray(x.transpose(*picked, *whole)[tuple(where)])  # a scalar if nothing is left
    else:
        y = np.broadcast_to(x, batch_shape + x.shape)
    # y has axes (batch..., cut..., whole...); they go to their places in the result
    batch_places = [i for i in range(y.ndim) if i not in info.offset_dims]
    place_of = dict(zip(window, sorted(info.offset_dims)))
    places = batch_places + [place_of[a] for a in (*cut, *whole)]
    if info.mode == "fill" and not inside.all():
        fill = args[2] if len(args) > 2 else default_fill(x.dtype)
        y = np.where(inside.reshape(inside.shape + (1,) * len(window)), y, fill)
    axes = np.argsort(places)
    if not (axes == range(y.ndim)).all():
        y = y.transpose(axes)
    result = y if y.base is None else memory.copy_of(y)
    return result


def default_fill(dtype: Any) -> Array:
    """What an out-of-bounds read gives: NaN, the least signed or largest unsigned integer, True.

    Typed keys: all bits set.
    """
    if dtype == np.bool_:
        return np.array(True)
    if dtypes.is_inexact(dtype):
        return np.array(math.nan).astype(dtype)
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        return np.array(int(info.max if dtypes.is_unsigned(dtype) else info.min)).astype(dtype)
    key: Array = np.frombuffer(b"\xff" * dtype.itemsize, dtype)
    return key.reshape(())


COMBINE: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def extreme_at(kind: str, y: Array, places: Array, values: Array) -> None:
    """y[places] = the min or max with each of values; -0 is below +0 (NumPy leaves it to chance)."""
    first = y.copy()
    COMBINE[kind].at(y, places, values)
    for at, x in ((np.arange(y.size), first), (places, values)):
        wins = (x == 0) & (np.signbit(x) == (kind == "min")) & (y[at] == 0)
        y[at[wins]] = x[wins]


def scatter(node: UOp, args: list[Array]) -> Array:
    """A copy of x with windows combined into it, in row-major order of the index array.

    Narrow floats combine in float32 and are rounded once.
    """
    x, indices, updates = args
    info = node.arg
    batch_shape = indices.shape[:-1]
    skipped = info.inserted_window_dims + info.operand_batching_dims
    window = [a for a in range(x.ndim) if a not in skipped]
    sizes = [1] * x.ndim
    for axis, place in zip(window, sorted(info.update_window_dims)):
        sizes[axis] = updates.shape[place]
    starts, inside = split_starts(indices, info.scatter_dims_to_operand_dims, x.shape, tuple(sizes))
    batching = dict(zip(info.operand_batching_dims, info.scatter_indices_batching_dims))
    batch_places = [i for i in range(updates.ndim) if i not in info.update_window_dims]
    values = updates.transpose(*batch_places, *sorted(info.update_window_dims))
    flat = np.zeros((), np.int64)
    for axis in range(x.ndim):
        at = positions_of(axis, starts, batching, batch_shape, window, tuple(sizes))
        flat = flat * x.shape[axis] + at
    flat = np.broadcast_to(flat, values.shape)
    if info.mode != "clip" and not inside.all():
        flat, values = flat[inside], values[inside]
    y = memory.copy_of(x)
    if info.kind == "set":
        y.reshape(-1)[flat.reshape(-1)] = values.reshape(-1)
        return y
    if x.dtype.num >= BUILTIN:
        wide = WIDE[x.dtype]
        y, values = y.astype(wide), values.astype(wide)
    places, values = flat.reshape(-1), values.reshape(-1)
    if info.kind in ("min", "max") and y.dtype.kind == "f":
        extreme_at(info.kind, y.reshape(-1), places, values)
    else:
        COMBINE[info.kind].at(y.reshape(-1), places, values)
    return narrow(y, x.dtype)
