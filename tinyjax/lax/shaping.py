"""Shape operations of `lax`: reshape, broadcast, slice, pad, concatenate, iota, with JAX's
names."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.describe import describe_value
from tinyjax.core.dims import DimExpr, as_size, as_sizes
from tinyjax.core.errors import BroadcastError, ConcatenateError, ReshapeError, make_error
from tinyjax.core.ops import Op
from tinyjax.core.rules import padded
from tinyjax.core.shapes import broadcast_shapes as common_shape
from tinyjax.core.shapes import canonical_axis, reshaped
from tinyjax.core.tree import tree_map
from tinyjax.core.uop import UOp, const, const_value
from tinyjax.engine.array import Array
from tinyjax.engine.values import (
    canonical_shape,
    finish,
    finish_all,
    lift,
    lift_for,
    shaped_abstractify,
)
from tinyjax.lax.elementwise import same_dtypes

ArrayLike = Any


def static_shape(shape: Any, name: str = "shape") -> tuple[int, ...]:
    """Sizes as Python integers, or symbolic ones, from the argument `name`."""
    return as_sizes(shape, name)


def reshape(
    operand: ArrayLike,
    new_sizes: Sequence[int],
    dimensions: Sequence[int] | None = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """The same elements in row-major order in another shape (one size may be -1).

    `out_sharding` must be None: there are no meshes yet.
    """
    n = lift(operand)
    single = isinstance(new_sizes, (int, np.integer, DimExpr))
    sizes = static_shape((new_sizes,) if single else new_sizes, "new_sizes")
    if dimensions is not None:
        n = transpose(operand, dimensions).node
    fitting = reshaped(n.shape, sizes)
    if fitting is None:
        size = f" (size {math.prod(sizes)})" if all(s >= 0 for s in sizes) else ""
        raise make_error(
            ReshapeError,
            f"cannot reshape array of shape {n.shape} (size {n.aval.size}) into shape {sizes}{size}",
            operands={"operand": operand},
        )
    return finish(b.reshape(n, fitting))


def broadcast(operand: ArrayLike, sizes: Sequence[int], *, out_sharding: Any = None) -> Array:
    """New leading axes of these sizes.

    `out_sharding` must be None: there are no meshes yet.
    """
    n = lift(operand)
    lead = static_shape(sizes, "sizes")
    return finish(b.broadcast(n, lead + n.shape))


def broadcast_in_dim(
    operand: ArrayLike,
    shape: Sequence[int],
    broadcast_dimensions: Sequence[int],
    *,
    out_sharding: Any = None,
) -> Array:
    """Axis i of the operand becomes axis broadcast_dimensions[i] of `shape`.

    `out_sharding` must be None: there are no meshes yet.
    """
    places = as_sizes(broadcast_dimensions, "broadcast_dimensions")
    return finish(b.expand(lift(operand), static_shape(shape), places))


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape NumPy broadcasting gives."""
    return common_shape(*map(canonical_shape, shapes))


def broadcast_to_rank(x: ArrayLike, rank: int) -> Array:
    """Leading axes of size 1 up to a rank."""
    n = lift(x)
    return finish(b.reshape(n, (1,) * (as_size(rank, "rank") - n.ndim) + n.shape))


def transpose(operand: ArrayLike, permutation: Sequence[int]) -> Array:
    """Axis i of the result is axis permutation[i]."""
    n = lift(operand)
    perm = as_sizes(permutation, "permutation")
    if sorted(perm) != list(range(n.ndim)):
        raise TypeError(
            "transpose permutation isn't a permutation of operand dimensions, got permutation "
            f"{perm} "
            f"for operand shape {n.shape}."
        )
    return finish(b.permute(n, perm))


def squeeze(array: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Drop axes of size 1."""
    n = lift(array)
    axes = tuple(canonical_axis(d, n.ndim) for d in as_sizes(dimensions, "dimensions"))
    if any(n.shape[a] != 1 for a in axes):
        raise ValueError(
            "cannot select an axis to squeeze out which has size not equal to one, got "
            f"shape={n.shape} and dimensions={tuple(dimensions)}.\n"
            "  Reduce the axis (lax.reduce_sum), or take one index of it (lax.index_in_dim)."
        )
    return finish(b.squeeze(n, axes))


def expand_dims(array: ArrayLike, dimensions: Sequence[int]) -> Array:
    """New axes of size 1 at these positions of the result."""
    n = lift(array)
    rank = n.ndim + len(as_sizes(dimensions, "dimensions"))
    places = {canonical_axis(d, rank) for d in dimensions}
    if len(places) != len(dimensions):
        raise ValueError(f"repeated axis in lax.expand_dims: {tuple(dimensions)}")
    sizes = iter(n.shape)
    return finish(b.reshape(n, tuple(1 if i in places else next(sizes) for i in range(rank))))


def collapse(operand: ArrayLike, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """Axes [start, stop) joined into one."""
    n = lift(operand)
    start, stop, _ = slice_indices(start_dimension, stop_dimension, n.ndim)
    return finish(b.reshape(n, (*n.shape[:start], math.prod(n.shape[start:stop]), *n.shape[stop:])))


def slice_indices(start: Any, stop: Any, size: int) -> tuple[int, int, int]:
    """Python's slice normalisation."""
    return builtins.slice(start, stop).indices(size)


def slice(
    operand: ArrayLike,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Array:
    """Static slice with positive strides."""
    n = lift(operand)
    starts, stops = static_shape(start_indices), static_shape(limit_indices)
    steps = static_shape(strides) if strides is not None else (1,) * n.ndim
    if not len(starts) == len(stops) == len(steps) == n.ndim:
        raise TypeError(
            f"slice start_indices, limit_indices and strides must have the length of the operand's "
            f"rank {n.ndim}: got {starts}, {stops}, {steps}."
        )
    for lo, hi, size in zip(starts, stops, n.shape, strict=True):
        if not 0 <= lo <= size or not lo <= hi <= size:
            raise TypeError(
                f"slice limit_indices must be between start_indices and the operand shape, got "
                f"start_indices {starts}, limit_indices {stops} for operand shape {n.shape}."
            )
    if any(s <= 0 for s in steps):
        raise TypeError(f"slice strides must be positive, got {steps}")
    return finish(b.slice_(n, starts, stops, steps))


def slice_in_dim(
    operand: ArrayLike,
    start_index: int | None,
    limit_index: int | None,
    stride: int = 1,
    axis: int = 0,
) -> Array:
    """Static slice of one axis; None and negative indices as in Python."""
    n = lift(operand)
    a = canonical_axis(axis, n.ndim)
    size = n.shape[a]
    start = 0 if start_index is None else as_size(start_index)
    stop = size if limit_index is None else as_size(limit_index)
    start, stop = (start + size if start < 0 else start), (stop + size if stop < 0 else stop)
    return finish(b.slice_axis(n, a, start, stop, as_size(stride)))


def index_in_dim(operand: ArrayLike, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """One static index along an axis."""
    n = lift(operand)
    a = canonical_axis(axis, n.ndim)
    i = as_size(index)
    if not -n.shape[a] <= i < n.shape[a]:
        raise IndexError(f"index {i} is out of bounds for axis {a} with size {n.shape[a]}")
    i = i + n.shape[a] if i < 0 else i
    out = b.slice_axis(n, a, i, i + 1)
    return finish(out if keepdims else b.squeeze(out, (a,)))


def start_nodes(
    name: str, starts: Any, shape: tuple[int, ...], negative: bool | Sequence[bool] = True
) -> list[UOp]:
    """Run-time starts, one integer scalar per axis; negative ones count from the end if allowed.

    Where they are not, a start that Python knows to be negative is a ValueError, and any other is
    taken to be none.
    """
    allowed = (
        list(negative) if isinstance(negative, (tuple, list)) else [bool(negative)] * len(shape)
    )
    if len(allowed) != len(shape):
        raise ValueError(
            f"{name}: allow_negative_indices must have one entry per axis, {len(shape)}; got "
            f"{negative}"
        )
    if type(starts) is Array or isinstance(starts, np.ndarray):
        vector = lift(starts)
        if vector.ndim != 1:
            raise TypeError(f"{name} start indices must be a 1D array, got shape {vector.shape}")
        parts = [b.squeeze(b.slice_axis(vector, 0, i, i + 1), (0,)) for i in range(vector.shape[0])]
    elif isinstance(starts, (tuple, list)):
        parts = [lift(s, "start_indices") for s in starts]
    else:
        raise TypeError(
            f"{name} start indices must be a sequence or a 1D array of integers, got "
            f"{describe_value(starts)}."
        )
    if len(parts) != len(shape):
        raise ValueError(
            f"Length of slice indices must match number of operand dimensions ({len(parts)} vs "
            f"{len(shape)})"
        )
    if any(not dtypes.is_integer(p.dtype) for p in parts):
        raise TypeError(
            f"{name} start indices must be integers, got {[p.aval.str_short() for p in parts]}"
        )
    if any(p.shape for p in parts):
        raise TypeError(
            f"{name} start indices must be scalars, got {[p.aval.str_short() for p in parts]}"
        )
    out = []
    for p, size, may in zip(parts, shape, allowed, strict=True):
        if not may and p.op is Op.CONST and const_value(p) < 0:
            raise ValueError(
                f"Index {const_value(p)} is out of bounds for dimension {size} if "
                "allow_negative_indices=False"
            )
        if may and not dtypes.is_unsigned(p.dtype):
            p = b.where(b.lt(p, b.like(p, 0)), b.add(p, b.like(p, size)), p)
        out.append(p)
    if len({p.dtype for p in out}) > 1:
        out = [b.cast(p, np.int32) for p in out]
    return out


def dynamic_slice(
    operand: ArrayLike,
    start_indices: Any,
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Slice of static sizes at run-time starts, clamped so that it fits."""
    n = lift(operand)
    sizes = static_shape(slice_sizes, "slice_sizes")
    if len(sizes) != n.ndim:
        raise ValueError(
            f"dynamic_slice slice_sizes must have one size for each axis of the operand of shape "
            f"{n.shape}, got {sizes}."
        )
    if any(not 0 <= s <= d for s, d in zip(sizes, n.shape, strict=True)):
        raise TypeError(
            "slice slice_sizes must be less than or equal to operand shape, got slice_sizes "
            f"{sizes} "
            f"for operand shape {n.shape}."
        )
    starts = start_nodes("dynamic_slice", start_indices, n.shape, allow_negative_indices)
    return finish(b.dynamic_slice(n, starts, sizes))


def dynamic_update_slice(
    operand: ArrayLike,
    update: ArrayLike,
    start_indices: Any,
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """The operand with `update` written at run-time starts, clamped so that it fits."""
    n, u = same_dtypes("dynamic_update_slice", [lift(operand), lift(update)])
    if u.ndim != n.ndim or any(s > d for s, d in zip(u.shape, n.shape, strict=True)):
        raise TypeError(
            "dynamic_update_slice update shape must be smaller than operand shape, got update "
            "shape "
            f"{u.shape} for operand shape {n.shape}."
        )
    starts = start_nodes("dynamic_update_slice", start_indices, n.shape, allow_negative_indices)
    return finish(b.dynamic_update(n, u, starts))


def dynamic_slice_in_dim(
    operand: ArrayLike,
    start_index: ArrayLike,
    slice_size: int,
    axis: int = 0,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """dynamic_slice of one axis."""
    n = lift(operand)
    a = canonical_axis(axis, n.ndim)
    starts = [const(0, np.dtype(np.int32)) for _ in range(n.ndim)]
    (start,) = start_nodes(
        "dynamic_slice_in_dim", [start_index], (n.shape[a],), allow_negative_indices
    )
    starts = [b.cast(s, start.dtype) if i != a else start for i, s in enumerate(starts)]
    sizes = tuple(as_size(slice_size) if i == a else s for i, s in enumerate(n.shape))
    if sizes[a] > n.shape[a]:
        raise TypeError(
            f"slice size {sizes[a]} is larger than axis {a} of shape {n.shape}.\n"
            "  Give a smaller size, or pad the operand first (lax.pad)."
        )
    return finish(b.dynamic_slice(n, starts, sizes))


def dynamic_index_in_dim(
    operand: ArrayLike,
    index: ArrayLike,
    axis: int = 0,
    keepdims: bool = True,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """One run-time index along an axis."""
    out = dynamic_slice_in_dim(
        operand, index, 1, axis, allow_negative_indices=allow_negative_indices
    )
    return out if keepdims else squeeze(out, (axis,))


def dynamic_update_slice_in_dim(
    operand: ArrayLike,
    update: ArrayLike,
    start_index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """dynamic_update_slice along one axis."""
    n = lift(operand)
    a = canonical_axis(axis, n.ndim)
    starts: list[Any] = [0] * n.ndim
    starts[a] = start_index
    allow = [True] * n.ndim
    allow[a] = allow_negative_indices
    return dynamic_update_slice(operand, update, starts, allow_negative_indices=allow)


def dynamic_update_index_in_dim(
    operand: ArrayLike,
    update: ArrayLike,
    index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Write one run-time index along an axis; the update may lack the axis."""
    n, u = lift(operand), lift(update)
    a = canonical_axis(axis, n.ndim)
    if u.ndim != n.ndim:
        u = b.unsqueeze(u, a)
    return dynamic_update_slice_in_dim(
        operand, finish(u), index, a, allow_negative_indices=allow_negative_indices
    )


def concatenate(operands: Sequence[ArrayLike], dimension: int) -> Array:
    """Join along an axis; other sizes and dtypes must agree."""
    nodes = several(operands, "concatenate")
    if not nodes:
        raise ValueError(
            "concatenate requires a non-empty sequences of arrays.\n"
            "  Make an empty array with jnp.zeros((0,), dtype)."
        )
    axis = as_size(dimension, "dimension")
    rest = {n.shape[:axis] + n.shape[axis + 1 :] for n in nodes}
    if not 0 <= axis < max(nodes[0].ndim, 1) or len({n.ndim for n in nodes}) > 1 or len(rest) > 1:
        raise make_error(
            ConcatenateError,
            "Cannot concatenate arrays with shapes that differ in dimensions other than the one "
            "being "
            f"concatenated: concatenating along dimension {axis} for shapes "
            f"{', '.join(str(n.shape) for n in nodes)}",
        )
    return finish(b.concat(same_dtypes("concatenate", nodes), axis))


def several(operands: Any, name: str) -> list[UOp]:
    """The nodes of a sequence of arrays, or of the rows of one. Raises: TypeError for the rest."""
    if not isinstance(operands, (list, tuple, Array, np.ndarray)):
        raise TypeError(f"{name} expects a sequence of arrays, got {describe_value(operands)}.")
    return [lift(o) for o in operands]


def triples(padding_config: Any) -> list[tuple[Any, ...]]:
    """(low, high, interior) per axis. Raises: ValueError for other numbers of numbers."""
    if not isinstance(padding_config, (list, tuple)):
        raise TypeError(
            "padding_config must be a sequence of (low, high, interior), got "
            f"{describe_value(padding_config)}."
        )
    config = [
        as_sizes(sides, "each element of padding_config")
        if isinstance(sides, (list, tuple))
        else ()
        for sides in padding_config
    ]
    if any(len(sides) != 3 for sides in config):
        raise ValueError(
            f"padding_config must have (low, high, interior) for each axis, got {padding_config}."
        )
    return config


def pad(
    operand: ArrayLike, padding_value: ArrayLike, padding_config: Sequence[tuple[int, int, int]]
) -> Array:
    """A border of (low, high, interior) per axis; negative low and high crop."""
    n, value = lift(operand), lift(padding_value)
    if value.shape:
        raise ValueError(
            f"padding_value must be a scalar; got shape {value.shape}.\n"
            "  Join arrays with lax.concatenate, or write them with lax.dynamic_update_slice."
        )
    config = triples(padding_config)
    if len(config) != n.ndim or any(inner < 0 for _, _, inner in config):
        raise ValueError(
            f"padding_config needs (low, high, interior >= 0) for each axis of {n.shape}, got "
            f"{tuple(config)}."
        )
    n, value = same_dtypes("pad", [n, value])
    shape = tuple(padded(size, *sides) for size, sides in zip(n.shape, config, strict=True))
    if any(size < 0 for size in shape):
        raise ValueError(
            f"padding_config {tuple(config)} would give the negative shape {shape} for an operand "
            f"of shape {n.shape}."
        )
    return finish(b.pad(n, config, value))


def rev(operand: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Reverse axes."""
    n = lift(operand)
    axes = as_sizes(dimensions, "dimensions")
    if any(not -n.ndim <= d < n.ndim for d in axes) or len({d % n.ndim for d in axes}) < len(axes):
        raise TypeError(
            f"rev dimensions must be distinct and less than operand ndim, got dimensions {axes} "
            f"for operand of shape {n.shape}."
        )
    return finish(b.flip(n, tuple(d % n.ndim for d in axes)))


def iota(dtype: Any, size: int) -> Array:
    """0, 1, ..., size - 1."""
    return broadcasted_iota(dtype, (size,), 0)


def broadcasted_iota(
    dtype: Any, shape: Sequence[int], dimension: int, *, out_sharding: Any = None
) -> Array:
    """Position along an axis of a shape.

    `out_sharding` must be None: there are no meshes yet.
    """
    sizes = static_shape(shape)
    kind = dtypes.user_dtype(dtype, "iota")
    if kind == np.bool_ or dtypes.is_key(kind):
        raise TypeError(f"iota does not accept dtype {kind}; it accepts real and complex numbers.")
    axis = canonical_axis(dimension, len(sizes))
    if dtypes.is_integer(kind) or kind in (np.float32, np.float64):
        return finish(b.iota(sizes, axis, kind))
    return finish(b.cast(b.iota(sizes, axis, np.int32), kind))


def full(
    shape: Sequence[int], fill_value: ArrayLike, dtype: Any = None, *, sharding: Any = None
) -> Array:
    """A scalar broadcast to a shape.

    The result lies where `sharding` says.
    """
    wanted = None if dtype is None else dtypes.user_dtype(dtype, "full")
    value = lift(fill_value) if wanted is None else lift_for(fill_value, wanted)
    if value.shape:
        raise TypeError(
            f"full must be called with scalar fill_value, got fill_value.shape {value.shape}."
        )
    if wanted is not None:
        value = b.fill_value(value, wanted)
    return finish(b.full(static_shape(shape), value))


def full_like(
    x: Any, fill_value: ArrayLike, dtype: Any = None, shape: Any = None, sharding: Any = None
) -> Array:
    """A scalar broadcast to the shape and dtype of x.

    The result lies where `sharding` says.
    """
    of = shaped_abstractify(x)
    wanted = of.dtype if dtype is None else dtypes.user_dtype(dtype, "full_like")
    value = lift_for(fill_value, wanted)
    if value.shape:
        raise TypeError(
            f"full must be called with scalar fill_value, got fill_value.shape {value.shape}."
        )
    value = b.fill_value(value, wanted, of.weak_type if dtype is None else False)
    return finish(b.full(of.shape if shape is None else static_shape(shape), value))


def empty(shape: Sequence[int], dtype: Any, *, out_sharding: Any = None) -> Array:
    """An array whose values nobody may rely on (zeros here).

    `out_sharding` must be None: there are no meshes yet.
    """
    return finish(b.full(canonical_shape(shape), b.scalar(0, dtypes.user_dtype(dtype, "empty"))))


def split(operand: ArrayLike, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """Pieces of these sizes along an axis; they must add up to its size."""
    n = lift(operand)
    a = canonical_axis(axis, n.ndim)
    parts = static_shape(sizes, "sizes")
    if sum(parts) != n.shape[a] or any(p < 0 for p in parts):
        raise ValueError(
            f"Sum of sizes {sum(parts)} must be equal to dimension {a} of the operand shape "
            f"{n.shape}: got sizes {parts}."
        )
    starts = [sum(parts[:i]) for i in range(len(parts))]
    return finish_all(
        [b.slice_axis(n, a, lo, lo + size) for lo, size in zip(starts, parts, strict=True)]
    )


def stack(operands: Sequence[ArrayLike], axis: int = 0) -> Array:
    """Equal shapes joined along a new axis."""
    nodes = several(operands, "stack")
    if not nodes:
        raise ValueError(
            "stack requires a non-empty sequence of arrays.\n"
            "  Make an empty array with jnp.zeros((0,), dtype)."
        )
    nodes = same_dtypes("stack", nodes)
    if len({n.shape for n in nodes}) > 1:
        raise make_error(
            ConcatenateError,
            "All input arrays must have the same shape, got "
            f"{', '.join(str(n.shape) for n in nodes)}",
        )
    a = canonical_axis(axis, nodes[0].ndim + 1)
    return finish(b.concat([b.unsqueeze(n, a) for n in nodes], a))


def unstack(x: ArrayLike, axis: int = 0) -> tuple[Array, ...]:
    """The slices along an axis."""
    n = lift(x)
    a = canonical_axis(axis, n.ndim)
    return tuple(
        finish_all([b.squeeze(b.slice_axis(n, a, i, i + 1), (a,)) for i in range(n.shape[a])])
    )


def tile(operand: ArrayLike, reps: Sequence[int]) -> Array:
    """The operand repeated reps[i] times along axis i."""
    n = lift(operand)
    counts = static_shape(reps, "reps")
    if len(counts) != n.ndim:
        raise ValueError(f"tile reps must have length {n.ndim} for shape {n.shape}, got {counts}")
    wide = tuple(s for r, size in zip(counts, n.shape, strict=True) for s in (r, size))
    spread = b.expand(n, wide, tuple(range(1, 2 * n.ndim, 2)))
    return finish(b.reshape(spread, tuple(r * s for r, s in zip(counts, n.shape, strict=True))))


def broadcast_like(arr: ArrayLike, like_arr: ArrayLike) -> Array:
    """`arr` in the shape of `like_arr`; sizes are equal or 1, and ranks may differ at the front."""
    n, shape = lift(arr), lift(like_arr).shape
    lead = len(shape) - n.ndim
    fits = lead >= 0 and all(
        s in (1, t) for s, t in zip(n.shape, shape[max(lead, 0) :], strict=False)
    )
    if not fits:
        raise make_error(
            BroadcastError,
            f"Incompatible shapes for broadcasting: {n.shape} to {shape}",
            operands={"arr": arr, "like_arr": like_arr},
        )
    return finish(b.broadcast(n, shape))


def shape_as_value(shape: Sequence[int]) -> Array:
    """A shape as an integer vector."""
    sizes = [b.scalar(s, dtypes.default_int_dtype()) for s in static_shape(shape)]
    if not sizes:
        return finish(b.full((0,), b.scalar(0, dtypes.default_int_dtype())))
    return finish(b.concat([b.reshape(s, (1,)) for s in sizes], 0))


def dtype(x: Any) -> Any:
    """The dtype an array or number has here."""
    return shaped_abstractify(x).dtype


def zeros_like_array(x: ArrayLike) -> Array:
    """Zeros of the shape and dtype of x."""
    return full_like(x, 0)


def optimization_barrier(operand: Any, /) -> Any:
    """The operand (a tree), not moved or merged across by the compiler."""
    return tree_map(lambda x: finish(UOp(Op.OPTIMIZATION_BARRIER, (lift(x),))), operand)
