"""Reading with `x[...]` and writing with `x.at[...]`: NumPy's index rules as movement, gather, scatter.

An index is parsed into one entry per axis. What is static becomes SLICE, FLIP and RESHAPE when read
and DYNAMIC_UPDATE (or PAD and WHERE, for strides) when written; one position known only at run time
becomes DYNAMIC_SLICE; index arrays become one GATHER or SCATTER, whose windows cover the other axes.

Out of bounds, as in JAX: reads are clamped, writes are dropped, unless `mode` says otherwise. A
Python integer that is out of range is an error, because it is known to be a mistake; passing a mode
allows it. A traced boolean mask cannot select (the size would depend on values), but `x.at[mask]`
with a value for every element, or one for all, is a WHERE.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.errors import (
    BroadcastError,
    IndexTypeError,
    JAXIndexError,
    NonConcreteBooleanIndexError,
    make_error,
)
from tinyjax.core.infos import GatherInfo, ScatterInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, is_array_like, lift
from tinyjax.numpy.promotion import ArrayLike, checked, promote_dtypes
from tinyjax.numpy.ufuncs import truth

INT64 = np.dtype(np.int64)
INT32_MAX = 2**31 - 1

MODES = {
    "fill": "fill",
    "drop": "fill",
    "clip": "clip",
    "promise_in_bounds": "promise_in_bounds",
}


def canonical_mode(mode: Any, default: str) -> str:
    """A mode given as a string, an enumeration member or None."""
    if mode is None:
        return default
    name = mode if isinstance(mode, str) else getattr(mode, "name", str(mode)).lower()
    found = MODES.get("fill" if name == "fill_or_drop" else name)
    if found is None:
        raise ValueError(f'Unknown gather mode "{mode}"')
    return found


# --- parsing ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class New:
    """`None`: a new axis of size 1."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A slice of an axis: `count` elements from `start` in steps of `step` (any sign)."""

    axis: int
    start: int
    count: int
    step: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """A static position, in range unless a mode was given."""

    axis: int
    position: int


@dataclass(frozen=True, slots=True)
class Picked:
    """Positions along an axis given by an integer array (already counted from the front)."""

    axis: int
    positions: UOp


Entry = New | Taken | Fixed | Picked


@dataclass(frozen=True, slots=True)
class Parsed:
    """The operand (with an axis added per boolean scalar) and the entries of an index."""

    operand: UOp
    entries: tuple[Entry, ...]

    @property
    def is_static(self) -> bool:
        """Whether no entry is an array."""
        return not any(isinstance(e, Picked) for e in self.entries)


def as_tuple(index: Any) -> tuple[Any, ...]:
    """The index as a tuple of entries; bare sequences are refused as JAX refuses them."""
    if isinstance(index, tuple):
        return index
    if isinstance(index, (list, set, bytes)):
        raise IndexTypeError(
            "Using a non-tuple sequence for multidimensional indexing is not allowed; use "
            "`arr[array(seq)]` instead of `arr[seq]`. See "
            "https://github.com/jax-ml/jax/issues/4564 for more information."
        )
    return (index,)


def concrete(x: Any) -> np.ndarray | None:
    """The value of an array if Python may have it now, else None."""
    if isinstance(x, Array):
        if x._buffer is None and x._hidden():
            return None
        return x._value
    return np.asarray(x)


def parse(x: UOp, index: Any, default_mode: bool, wrap: bool = True) -> Parsed:
    """Entries of an index into `x`.

    Raises: IndexError for too many indices, for a static position or a mask that does not fit;
    TypeError for what is no index; NonConcreteBooleanIndexError for a traced mask.
    """
    items = [normal_item(i) for i in as_tuple(index)]
    if any(is_boolean(i) for i in items):
        x, items = without_masks(x, items)
    given = sum(i is not None and i is not Ellipsis for i in items)
    dots = sum(i is Ellipsis for i in items)
    if dots > 1:
        raise JAXIndexError("an index can only have a single ellipsis ('...')")
    if given > x.ndim:
        raise JAXIndexError(
            f"Too many indices: array is {x.ndim}-dimensional, but {given} were indexed"
        )
    if not dots:
        items.append(Ellipsis)
    entries: list[Entry] = []
    axis = 0
    for place, item in enumerate(items):
        if item is Ellipsis:
            for _ in range(x.ndim - given):
                entries.append(Taken(axis, 0, x.shape[axis], 1))
                axis += 1
        elif item is None:
            entries.append(New())
        else:
            entries.append(axis_entry(item, x, axis, place, default_mode, wrap))
            axis += 1
    return Parsed(x, tuple(entries))


def normal_item(item: Any) -> Any:
    """One element of an index: sequences become arrays, foreign arrays are kept."""
    if isinstance(item, str):
        raise IndexTypeError(f"JAX does not support string indexing; got idx={item!r}")
    if isinstance(item, (list, tuple)):
        if any(type(i) is Array for i in item):
            from tinyjax.numpy.creation import array

            return array(item)
        made = np.asarray(item)
        return made.astype(np.int32) if made.size == 0 else made
    if item is None or item is Ellipsis or isinstance(item, slice) or is_array_like(item):
        return item
    if hasattr(item, "__index__"):
        return int(item.__index__())
    raise JAXIndexError(
        "only integers, slices (`:`), ellipsis (`...`), newaxis (`None`) and integer or boolean "
        f"arrays are valid indices. Got {item!r}"
    )


def dtype_of(item: Any) -> Any:
    """The dtype of an index entry, or None for slices and the like."""
    if isinstance(item, bool):
        return np.dtype(bool)
    if isinstance(item, int):
        return np.dtype(np.int64)
    if isinstance(item, (float, complex)):
        return np.dtype(type(item))
    return getattr(item, "dtype", None)


def is_boolean(item: Any) -> bool:
    """A mask, or a boolean scalar."""
    return bool(dtype_of(item) == np.bool_)


def without_masks(x: UOp, items: list[Any]) -> tuple[UOp, list[Any]]:
    """Masks replaced by the positions of their True elements, scalars by a new axis of 0 or 1."""
    out: list[Any] = []
    axis = 0
    rank = sum(
        np.ndim(i) if is_boolean(i) else 1 for i in items if i is not None and i is not Ellipsis
    )
    for place, item in enumerate(items):
        if item is Ellipsis:
            out.append(item)
            axis += x.ndim - rank
        elif item is None:
            out.append(item)
        elif not is_boolean(item):
            out.append(item)
            axis += 1
        else:
            mask = concrete(item)
            if mask is None:
                raise NonConcreteBooleanIndexError(item)
            if mask.ndim == 0:
                x = b.unsqueeze(x, axis)
                out.append(np.zeros(int(mask), np.int32))
                rank += 1
                axis += 1
                continue
            expected = x.shape[axis : axis + mask.ndim]
            if mask.shape != expected:
                raise JAXIndexError(
                    f"boolean index did not match shape of indexed array in index {place}: got "
                    f"{mask.shape}, expected {list(expected)}"
                )
            out.extend(p.astype(np.int32) for p in np.nonzero(mask))
            axis += mask.ndim
    return x, out


def axis_entry(item: Any, x: UOp, axis: int, place: int, default_mode: bool, wrap: bool) -> Entry:
    """The entry of one axis for an integer, a slice or an integer array."""
    size = x.shape[axis]
    if isinstance(item, slice):
        return slice_entry(item, size, axis, place)
    dtype = dtype_of(item)
    if not dtypes.is_integer(dtype):
        raise IndexTypeError(
            f"Indexer must have integer or boolean type, got indexer with type {dtype}"
        )
    if isinstance(item, (int, np.integer)):
        position = int(item)
        if default_mode and not -size <= position < size:
            raise make_error(
                JAXIndexError,
                f"index {position} is out of bounds for axis {axis} with size {size}",
                rule="a static index is checked when the function is traced",
                operands=None,
                fix="Pass mode='clip' or mode='fill' to x.at[...] if it is meant.",
            )
        return Fixed(axis, position + size if position < 0 and wrap else position)
    return Picked(axis, counted_from_front(item, size, wrap))


def slice_entry(item: slice, size: int, axis: int, place: int) -> Taken:
    """A slice with static bounds."""
    bounds = []
    for value in (item.start, item.stop, item.step):
        if isinstance(value, Array):
            known = concrete(value)
            if known is None:
                raise JAXIndexError(
                    f"Slice entries must be static integers. Got {item} at position {place}. Use "
                    "lax.dynamic_slice or lax.dynamic_slice_in_dim for a start that is traced; the "
                    "length must be static."
                )
            value = int(known) if dtypes.is_integer(value.dtype) else known
        if value is not None and not hasattr(value, "__index__"):
            raise IndexTypeError(
                f"'{type(value).__name__}' object cannot be interpreted as an integer"
            )
        bounds.append(value)
    if bounds[2] == 0:
        raise ValueError("slice step cannot be zero")
    chosen = range(*slice(*bounds).indices(size))
    return Taken(axis, chosen.start, len(chosen), chosen.step)


def index_dtype(sizes: Sequence[int]) -> Any:
    """int32 unless an axis is longer."""
    return INT64 if any(s > INT32_MAX for s in sizes) else b.INT32


def counted_from_front(item: Any, size: int, wrap: bool) -> UOp:
    """An index array as signed integers, negative positions counted from the end.

    A known array without negative ones is taken as it is, so that nothing runs.
    """
    known = item if isinstance(item, np.ndarray) else None
    if isinstance(item, Array) and item._buffer is not None:
        known = item._buffer.value
    dtype = index_dtype((size,))
    if known is not None and (known.size == 0 or not wrap or known.min() >= 0):
        if known.dtype == dtype:
            return lift(item)
        limited = np.minimum(known, np.asarray(size).astype(known.dtype)) if (
            known.dtype.kind == "u" and known.dtype.itemsize >= 4
        ) else known  # fmt: skip
        return lift(limited.astype(dtype)) if fits(limited, dtype) else lift(known)
    n = lift(item)
    if dtypes.is_unsigned(n.dtype):
        if dtypes.bit_width(n.dtype) >= 32:
            n = b.min_(n, b.like(n, size))
        return b.cast(n, dtype)
    if dtypes.bit_width(n.dtype) < 32:
        n = b.cast(n, b.INT32)
    n = b.cast(n, n.dtype)
    if not wrap:
        return n
    return b.where(b.lt(n, b.like(n, 0)), b.add(n, b.like(n, size)), n)


def fits(known: np.ndarray, dtype: Any) -> bool:
    """Whether all positions can be held by the dtype."""
    return known.size == 0 or bool(known.max() <= np.iinfo(dtype).max)


# --- layout -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """How an index with arrays meets its operand.

    `columns` are (axis, positions over the batch axes); `windows` are (axis, start, size). The
    result's axes, new ones left out, are batch or window axes: `window_places` says which are
    windows. `full_shape` has the new axes.
    """

    columns: tuple[tuple[int, UOp], ...]
    windows: tuple[tuple[int, int, int], ...]
    batch_shape: tuple[int, ...]
    window_places: tuple[int, ...]
    shape: tuple[int, ...]
    full_shape: tuple[int, ...]


def layout(parsed: Parsed) -> Layout:
    """Place the axes of an index with arrays by NumPy's rules.

    Arrays and integers are broadcast together; their axes stand where the first of them stood if
    they were adjacent, else in front. A strided or reversed slice is a column of positions on a
    batch axis of its own; a plain one is a window.
    """
    entries = parsed.entries
    advanced = [i for i, e in enumerate(entries) if isinstance(e, (Fixed, Picked))]
    arrays = [e.positions for e in entries if isinstance(e, Picked)]
    shapes = [a.shape for a in arrays]
    try:
        common = np.broadcast_shapes(*shapes)
    except ValueError:
        raise make_error(
            BroadcastError,
            f"Incompatible shapes for broadcasting: shapes={shapes}",
            rule="the arrays of an index are broadcast together",
            fix="Index with ix_, or give one of them a new axis, to take all combinations.",
        ) from None
    adjacent = advanced[-1] - advanced[0] + 1 == len(advanced)
    # Result axes in order: ("adv", k), ("grid", entry), ("window", entry), ("new",).
    axes: list[tuple[Any, ...]] = []
    lead = [("adv", k) for k in range(len(common))]
    if not adjacent:
        axes += lead
    for i, e in enumerate(entries):
        if isinstance(e, (Fixed, Picked)):
            if adjacent and i == advanced[0]:
                axes += lead
        elif isinstance(e, New):
            axes.append(("new",))
        else:
            axes.append(("window" if e.step == 1 else "grid", e))
    kept = [a for a in axes if a[0] != "new"]
    batch = [a for a in kept if a[0] != "window"]
    batch_shape = tuple(common[a[1]] if a[0] == "adv" else a[1].count for a in batch)
    advanced_places = tuple(i for i, a in enumerate(batch) if a[0] == "adv")
    columns: list[tuple[int, UOp]] = []
    for e in entries:
        if isinstance(e, Fixed):
            value = const(e.position, index_dtype((e.position,)))
            columns.append((e.axis, b.full(batch_shape, value)))
        elif isinstance(e, Picked):
            n = e.positions
            columns.append(
                (e.axis, b.expand(n, batch_shape, advanced_places[len(common) - n.ndim :]))
            )
        elif isinstance(e, Taken) and e.step != 1:
            place = batch.index(("grid", e))
            row = np.arange(e.start, e.start + e.step * e.count, e.step, dtype=np.int32)
            columns.append((e.axis, b.expand(lift(row[: e.count]), batch_shape, (place,))))
    windows = [(a[1].axis, a[1].start, a[1].count) for a in kept if a[0] == "window"]

    def size(a: tuple[Any, ...]) -> int:
        if a[0] == "new":
            return 1
        return common[a[1]] if a[0] == "adv" else a[1].count  # type: ignore[no-any-return]

    return Layout(
        tuple(columns),
        tuple(windows),
        batch_shape,
        tuple(i for i, a in enumerate(kept) if a[0] == "window"),
        tuple(size(a) for a in kept),
        tuple(size(a) for a in axes),
    )


def index_vectors(plan: Layout, operand: UOp) -> tuple[UOp, tuple[int, ...]]:
    """The indices of GATHER and SCATTER, and the operand axis of each component."""
    parts = list(plan.columns)
    for axis, start, size in plan.windows:
        if size != operand.shape[axis]:
            parts.append((axis, b.full(plan.batch_shape, const(start, b.INT32))))
    dtype = INT64 if any(n.dtype == INT64 for _, n in parts) else b.INT32
    rank = len(plan.batch_shape)
    vectors = b.concat([b.unsqueeze(b.cast(n, dtype), rank) for _, n in parts], rank)
    return vectors, tuple(axis for axis, _ in parts)


def static_shape(entries: Sequence[Entry]) -> tuple[int, ...]:
    """Result shape of an index without arrays."""
    sizes = []
    for e in entries:
        if isinstance(e, New):
            sizes.append(1)
        elif isinstance(e, Taken):
            sizes.append(e.count)
    return tuple(sizes)


# --- reading ----------------------------------------------------------------------------------------


def take_slices(x: UOp, entries: Sequence[Entry], sizes: dict[int, int]) -> UOp:
    """SLICE and FLIP of the axes that slices and integers restrict. `sizes` gives those cut already."""
    starts, stops, steps, flipped = [], [], [], []
    by_axis = {e.axis: e for e in entries if not isinstance(e, New)}
    for axis, size in enumerate(x.shape):
        e = by_axis.get(axis)
        if axis in sizes or not isinstance(e, (Taken, Fixed)):
            start, stop, step = 0, size, 1
        elif isinstance(e, Fixed):
            position = min(max(e.position, 0), size - 1)
            start, stop, step = position, position + 1, 1
        elif e.count == 0:
            start, stop, step = 0, 0, 1
        else:
            last = e.start + (e.count - 1) * e.step
            start, stop, step = min(e.start, last), max(e.start, last) + 1, abs(e.step)
            if e.step < 0 and e.count > 1:
                flipped.append(axis)
        starts.append(start)
        stops.append(stop)
        steps.append(step)
    return b.flip(b.slice_(x, tuple(starts), tuple(stops), tuple(steps)), tuple(flipped))


def read_static(parsed: Parsed) -> UOp:
    """An index without arrays: no gather."""
    out = take_slices(parsed.operand, parsed.entries, {})
    return b.reshape(out, static_shape(parsed.entries))


def read_one(parsed: Parsed) -> UOp:
    """Positions known only at run time, all of them scalars: a clamped DYNAMIC_SLICE."""
    x, entries = parsed.operand, parsed.entries
    picked = {e.axis: e.positions for e in entries if isinstance(e, Picked)}
    out = take_slices(x, entries, dict.fromkeys(picked, 1))
    zero = const(0, next(iter(picked.values())).dtype)
    starts = [b.cast(picked.get(a, zero), zero.dtype) for a in range(x.ndim)]
    sizes = tuple(1 if a in picked else s for a, s in enumerate(out.shape))
    return b.reshape(b.dynamic_slice(out, starts, sizes), static_shape(entries))


def gather_node(
    x: UOp,
    index: Any,
    mode: Any = None,
    fill_value: Any = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    wrap: bool = True,
) -> UOp:
    """`x[index]`."""
    parsed = parse(x, index, mode is None, wrap)
    how = canonical_mode(mode, "clip")
    x, entries = parsed.operand, parsed.entries
    out_of_range = [
        e for e in entries if isinstance(e, Fixed) and not 0 <= e.position < x.shape[e.axis]
    ]
    if parsed.is_static and not (out_of_range and (how == "fill" or 0 in x.shape)):
        return read_static(parsed)
    if how != "fill" and not out_of_range:
        scalars = [e for e in entries if isinstance(e, Picked)]
        if all(not e.positions.shape and x.shape[e.axis] for e in scalars):
            return read_one(parsed)
    if parsed.is_static:
        first = out_of_range[0]
        entries = tuple(
            Picked(e.axis, const(e.position, b.INT32)) if e is first else e for e in entries
        )
    if any(isinstance(e, Taken) and e.step != 1 for e in entries):
        # Reads need no columns for strides: they are taken first.
        sliced = {e.axis for e in entries if isinstance(e, Taken) and e.step != 1}
        keep = [e for e in entries if isinstance(e, Taken) and e.axis in sliced]
        x = take_slices(x, keep, {})
        entries = tuple(
            Taken(e.axis, 0, e.count, 1) if isinstance(e, Taken) and e.axis in sliced else e
            for e in entries
        )
    plan = layout(Parsed(x, entries))
    fill = None if fill_value is None or how != "fill" else b.cast(lift(fill_value), x.dtype)
    if any(x.shape[axis] == 0 for axis, _ in plan.columns):
        return empty_read(x, plan, fill, how)
    return b.reshape(
        gather_planned(x, plan, how, fill, indices_are_sorted, unique_indices), plan.full_shape
    )


def empty_read(x: UOp, plan: Layout, fill: UOp | None, how: str) -> UOp:
    """Nothing can be read from an axis of size 0: an empty result, or the fill value."""
    if 0 not in plan.shape and how != "fill":
        raise JAXIndexError(f"cannot index an axis of size 0 of an array of shape {x.shape}")
    value = fill if fill is not None else b.like(x, np.nan if dtypes.is_inexact(x.dtype) else 0)
    return b.full(plan.full_shape, value)


def gather_planned(
    x: UOp, plan: Layout, mode: str, fill: UOp | None, is_sorted: bool, unique: bool
) -> UOp:
    """GATHER of a layout; the result has no new axes yet."""
    vectors, start_map = index_vectors(plan, x)
    collapsed = tuple(sorted(axis for axis, _ in plan.columns))
    sizes = dict.fromkeys(collapsed, 1) | {axis: size for axis, _, size in plan.windows}
    info = GatherInfo(
        offset_dims=plan.window_places,
        collapsed_slice_dims=collapsed,
        start_index_map=start_map,
        slice_sizes=tuple(sizes[a] for a in range(x.ndim)),
        mode=mode,
        indices_are_sorted=is_sorted,
        unique_indices=unique,
    )
    return b.gather(x, vectors, info, fill)


def getitem(x: Array, index: Any) -> Array:
    """`x[index]`."""
    if type(index) is int and x.aval.shape:  # iteration and row access
        size = x.aval.shape[0]
        if -size <= index < size:
            i = index % size
            n = x.node
            stops = (i + 1, *n.shape[1:])
            starts = (i,) + (0,) * (n.ndim - 1)
            return finish(b.reshape(b.slice_(n, starts, stops), n.shape[1:]))
    return finish(gather_node(x.node, index))


# --- writing ----------------------------------------------------------------------------------------

COMBINE: dict[str, Callable[[UOp, UOp], UOp]] = {
    "set": lambda old, new: new,
    "add": b.add,
    "mul": b.mul,
    "min": b.min_,
    "max": b.max_,
}
LOGICAL = {"add": b.or_, "mul": b.and_, "min": b.and_, "max": b.or_}


def combine(kind: str, old: UOp, new: UOp) -> UOp:
    """One update; bools add with or and multiply with and."""
    if old.dtype == np.bool_ and kind in LOGICAL:
        return LOGICAL[kind](old, new)
    return COMBINE[kind](old, new)


def update_value(x: UOp, values: Any, warn: bool = True) -> UOp:
    """The update in the dtype of the array; JAX warns where that loses information."""
    (value,) = checked("scatter", values)
    if value.dtype == x.dtype:
        return b.cast(value, x.dtype, x.aval.weak_type and value.aval.weak_type)
    if dtypes.is_key(x.dtype) or dtypes.is_key(value.dtype):
        raise TypeError(f"cannot write values of dtype {value.dtype} into an array of {x.dtype}")
    common = dtypes.lattice_promote(
        (x.dtype, x.aval.weak_type), (value.dtype, value.aval.weak_type)
    )[0]
    if common != x.dtype and warn:
        warnings.warn(
            "scatter inputs have incompatible types: cannot safely cast value from "
            f"dtype={value.dtype.name} to dtype={x.dtype.name} with "
            "jax_numpy_dtype_promotion=standard. In future JAX releases this will result in an "
            "error.",
            FutureWarning,
            stacklevel=dtypes._user_stacklevel(),
        )
    if dtypes.is_complex(value.dtype) and not dtypes.is_complex(x.dtype):
        value = b.real(value)
    return b.cast(value, x.dtype, x.aval.weak_type)


def fit_update(value: UOp, shape: tuple[int, ...]) -> UOp:
    """The update broadcast to the shape that is written."""
    if value.shape == shape:
        return value
    lead = value.ndim - len(shape)
    if lead > 0 and all(s == 1 for s in value.shape[:lead]):
        value = b.reshape(value, value.shape[lead:])
    try:
        fitting = np.broadcast_shapes(value.shape, shape) == shape
    except ValueError:
        fitting = False
    if not fitting:
        raise make_error(
            BroadcastError,
            f"Incompatible types for broadcasting: input type={value.aval.str_short()} and "
            f"requested type={value.aval.update(shape=shape).str_short()}",
            rule="an update is broadcast to the shape of what it is written to",
        )
    return b.broadcast(value, shape)


def scatter_node(
    x: UOp,
    index: Any,
    values: Any,
    kind: str,
    mode: Any = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    wrap: bool = True,
) -> UOp:
    """`x.at[index].kind(values)`."""
    value = update_value(x, values)
    masked = masked_update(x, index, value, kind)
    if masked is not None:
        return masked
    parsed = parse(x, index, mode is None, wrap)
    how = canonical_mode(mode, "fill")
    target, entries = parsed.operand, parsed.entries
    shape = x.shape
    if parsed.is_static:
        return b.reshape(write_static(target, entries, value, kind, how), shape)
    plan = layout(parsed)
    value = b.reshape(fit_update(value, plan.full_shape), plan.shape)
    if 0 in value.shape or any(target.shape[axis] == 0 for axis, _ in plan.columns):
        return x
    vectors, start_map = index_vectors(plan, target)
    info = ScatterInfo(
        kind,
        update_window_dims=plan.window_places,
        inserted_window_dims=tuple(sorted(axis for axis, _ in plan.columns)),
        scatter_dims_to_operand_dims=start_map,
        mode=how,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
    )
    return b.reshape(scatter_any(target, vectors, value, info), shape)


def scatter_any(x: UOp, vectors: UOp, value: UOp, info: ScatterInfo) -> UOp:
    """SCATTER; bools are combined as bytes (or is max, and is min)."""
    if x.dtype == np.bool_ and info.kind != "set":
        from dataclasses import replace

        info = replace(info, kind="max" if info.kind in ("add", "max") else "min")
        wide = b.scatter(b.cast(x, np.uint8), vectors, b.cast(value, np.uint8), info)
        return b.ne(wide, b.like(wide, 0))
    return b.scatter(x, vectors, value, info)


def write_static(x: UOp, entries: Sequence[Entry], value: UOp, kind: str, how: str) -> UOp:
    """A write whose place is known: DYNAMIC_UPDATE at constant starts, or PAD and WHERE if strided."""
    value = fit_update(value, static_shape(entries))
    by_axis = [e for e in entries if not isinstance(e, New)]
    outside = [
        e for e in by_axis if isinstance(e, Fixed) and not 0 <= e.position < x.shape[e.axis]
    ]
    if 0 in value.shape or 0 in x.shape or (outside and how == "fill"):
        return x
    part = tuple(e.count if isinstance(e, Taken) else 1 for e in by_axis)
    value = b.reshape(value, part)
    flipped = tuple(e.axis for e in by_axis if isinstance(e, Taken) and e.step < 0 and e.count > 1)
    value = b.flip(value, flipped)
    old = b.flip(take_slices(x, entries, {}), flipped)
    new = combine(kind, old, value)
    starts, steps = [], []
    for e in by_axis:
        if isinstance(e, Fixed):
            starts.append(min(max(e.position, 0), x.shape[e.axis] - 1))
            steps.append(1)
        else:
            last = e.start + (e.count - 1) * e.step
            starts.append(min(e.start, last))
            steps.append(abs(e.step) if e.count > 1 else 1)
    if part == x.shape and all(s == 1 for s in steps):
        return b.cast_like(new, x.aval.update(weak_type=new.aval.weak_type and x.aval.weak_type))
    if all(s == 1 for s in steps):
        return b.dynamic_update(x, new, [const(s, index_dtype((s,))) for s in starts])
    config = [
        (start, size - start - (n - 1) * step - 1, step - 1)
        for start, step, n, size in zip(starts, steps, part, x.shape, strict=True)
    ]
    here = b.pad(b.full(part, b.scalar(True, b.BOOL)), config)
    return b.where(here, b.pad(new, config), x)


def masked_update(x: UOp, index: Any, value: UOp, kind: str) -> UOp | None:
    """`x.at[mask]` with one value for all, or one per element of x, as WHERE; None otherwise.

    The mask may be traced, and may stand among full slices: the result's size does not depend on it.
    """
    found = lone_mask(x, index)
    if found is None:
        return None
    mask, axis = found
    rank = np.ndim(mask)
    expected = x.shape[axis : axis + rank]
    if mask.shape != expected:
        raise JAXIndexError(
            f"boolean index did not match shape of indexed array in index {axis}: got {mask.shape}, "
            f"expected {list(expected)}"
        )
    rest = x.shape[:axis] + (1,) + x.shape[axis + rank :]
    whole = value.shape == x.shape
    if whole:
        full = value
    elif value.ndim <= len(rest) and broadcasts(value.shape, rest):
        lead = value.ndim - (len(rest) - axis)
        if lead > 0:
            shape = value.shape[:lead] + (1,) * rank + value.shape[lead + 1 :]
            value = b.reshape(value, shape)
        full = b.broadcast(value, x.shape) if value.ndim else value
    elif concrete(mask) is None:
        raise NonConcreteBooleanIndexError(
            Array(lift(mask)),
            f"  The update has shape {value.shape}; under a traced mask it must be one value for "
            f"all chosen places, or have the shape {x.shape} of the array.",
        )
    else:
        return None
    choose = b.expand(lift(mask), x.shape, tuple(range(axis, axis + rank)))
    return b.where(choose, combine(kind, x, full), x)


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether `shape` can be broadcast to `target`."""
    return all(
        s in (1, t) for s, t in zip(shape[::-1], target[::-1], strict=False)
    ) and len(shape) <= len(target)  # fmt: skip


def lone_mask(x: UOp, index: Any) -> tuple[Any, int] | None:
    """The one mask (not a scalar) of an index of full slices otherwise, and its first axis."""
    items = index if isinstance(index, tuple) else (index,)
    masks = [i for i in items if hasattr(i, "dtype") and is_boolean(i) and np.ndim(i)]
    if len(masks) != 1:
        return None
    (mask,) = masks
    if any(i is not mask and i is not Ellipsis and i != slice(None) for i in items if i is not mask):
        return None
    axis = 0
    for i in items:
        if i is mask:
            return mask, axis
        taken = np.ndim(mask) + sum(isinstance(j, slice) for j in items)
        axis += x.ndim - taken if i is Ellipsis else 1
    return None


class IndexUpdateHelper:
    """`x.at`: index it to get an update reference."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> IndexUpdateRef:
        return IndexUpdateRef(self.array, index)

    def __repr__(self) -> str:
        return f"_IndexUpdateHelper({self.array!r})"


class IndexUpdateRef:
    """`x.at[index]`: every method returns a new array; `x` itself never changes.

    Where an index occurs several times, `set` keeps the last value in row-major order of the
    indices, and the others combine all of them. `mode`: "drop" (default for writes) or "fill" leave
    out what is out of bounds, "clip" moves it inside, "promise_in_bounds" trusts the caller.
    """

    __slots__ = ("array", "index")

    def __init__(self, array: Array, index: Any) -> None:
        self.array, self.index = array, index

    def __repr__(self) -> str:
        return f"_IndexUpdateRef({self.array!r}, {self.index!r})"

    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        fill_value: ArrayLike | None = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x[index]; out of bounds is clamped, or `fill_value` (NaN by default) with mode="fill"."""
        return finish(
            gather_node(
                self.array.node,
                self.index,
                mode,
                fill_value,
                indices_are_sorted,
                unique_indices,
                wrap_negative_indices,
            )
        )

    def _update(
        self, kind: str, values: ArrayLike, is_sorted: bool, unique: bool, mode: Any, wrap: bool
    ) -> Array:
        x = self.array.node
        return finish(scatter_node(x, self.index, values, kind, mode, is_sorted, unique, wrap))

    def set(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] = values."""
        return self._update(
            "set", values, indices_are_sorted, unique_indices, mode, wrap_negative_indices
        )

    def add(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] += values; repeated indices add up."""
        return self._update(
            "add", values, indices_are_sorted, unique_indices, mode, wrap_negative_indices
        )

    def subtract(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] -= values; repeated indices add up."""
        x = self.array.node
        value = update_value(x, values)
        if value.dtype == np.bool_:
            raise TypeError("subtract does not accept dtype bool.")
        return self._update(
            "add",
            finish(b.neg(value)),
            indices_are_sorted,
            unique_indices,
            mode,
            wrap_negative_indices,
        )

    def multiply(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] *= values; repeated indices multiply."""
        return self._update(
            "mul", values, indices_are_sorted, unique_indices, mode, wrap_negative_indices
        )

    mul = multiply

    def divide(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] /= values; repeated indices divide by the product."""
        from tinyjax.numpy.ufuncs import divide

        return divide(
            self.array,
            self._ones().at[self.index].multiply(
                values,
                indices_are_sorted=indices_are_sorted,
                unique_indices=unique_indices,
                mode=mode,
                wrap_negative_indices=wrap_negative_indices,
            ),
        )

    def power(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] **= values; repeated indices multiply exponents."""
        from tinyjax.numpy.ufuncs import power

        return power(
            self.array,
            self._ones().at[self.index].multiply(
                values,
                indices_are_sorted=indices_are_sorted,
                unique_indices=unique_indices,
                mode=mode,
                wrap_negative_indices=wrap_negative_indices,
            ),
        )

    def _ones(self) -> Array:
        return finish(b.ones(self.array.aval))

    def min(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] = minimum(x[index], values)."""
        return self._update(
            "min", values, indices_are_sorted, unique_indices, mode, wrap_negative_indices
        )

    def max(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] = maximum(x[index], values)."""
        return self._update(
            "max", values, indices_are_sorted, unique_indices, mode, wrap_negative_indices
        )

    def apply(
        self,
        func: Callable[[Any], Any],
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x with x[index] = func(x[index]) for an elementwise func; applied once per occurrence.

        Cost: one pass of func over x per occurrence of the most frequent index; one pass, and
        differentiable, where indices are static or said to be unique.
        """
        x = self.array
        hits = finish(b.zeros(x.aval.update(dtype=b.INT32, weak_type=False)))
        count = hits.at[self.index].add(
            1,
            indices_are_sorted=indices_are_sorted,
            unique_indices=unique_indices,
            mode=mode,
            wrap_negative_indices=wrap_negative_indices,
        )

        def once(c: Any) -> Any:
            left, value = c
            new = update_value(x.node, func(value), warn=False)
            now = b.gt(left.node, b.like(left.node, 0))
            return (
                finish(b.sub(left.node, b.like(left.node, 1))),
                finish(b.cast_like(b.where(now, new, value.node), x.aval)),
            )

        known = concrete(count)
        once_only = unique_indices or not any(
            is_array_like(i) and np.ndim(i) for i in as_tuple(self.index)
        )
        times = 1 if once_only else None if known is None else int(known.max(initial=0))
        if times is not None:
            carry: Any = (count, x)
            for _ in range(times):
                carry = once(carry)
            return carry[1]  # type: ignore[no-any-return]
        from tinyjax.lax.control_flow import while_loop

        def running(c: Any) -> Array:
            n = b.reduce("max", c[0].node, range(c[0].ndim))
            return finish(b.gt(n, b.like(n, 0)))

        return while_loop(running, once, (count, x))[1]  # type: ignore[no-any-return]


# --- functions that index -----------------------------------------------------------------------------


def where(
    condition: ArrayLike,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    /,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """x where the condition holds, else y; with one argument the positions (see `nonzero`)."""
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x is None or y is None:
        raise ValueError(
            "Either both or neither of the x and y arguments should be provided to "
            f"jax.numpy.where, got {x} and {y}."
        )
    if size is not None or fill_value is not None:
        raise ValueError(
            "size and fill_value arguments cannot be used in three-term where function."
        )
    c, p, q = checked("where", condition, x, y)
    p, q = promote_dtypes([p, q])
    c = truth(c)
    from tinyjax.numpy.promotion import broadcast_shapes_of

    shape = broadcast_shapes_of("where", [c, p, q])
    c, p, q = [n if not n.ndim else b.broadcast(n, shape) for n in (c, p, q)]
    if not (c.ndim or p.ndim or q.ndim) or c.ndim or (p.ndim and q.ndim):
        return finish(b.where(c, p, q))
    # Neither the condition nor one case has axes: the scalar case is spread.
    return finish(b.where(c, b.fill_to(p, shape), b.fill_to(q, shape)))


def nonzero(
    a: ArrayLike, *, size: int | None = None, fill_value: Any = None
) -> tuple[Array, ...]:
    """Positions of the elements that are not zero, one array per axis.

    `size` fixes their number (needed under jit): the first `size` ones, then `fill_value` (0, or a
    tuple with one per axis). Raises: ConcretizationTypeError under jit without a size.
    """
    (n,) = checked("nonzero", a)
    if not n.ndim:
        raise ValueError(
            "Calling nonzero on 0d arrays is not allowed. Use jnp.atleast_1d(scalar).nonzero() "
            "instead."
        )
    dtype = dtypes.default_int_dtype()
    mask = truth(n)
    if size is None:
        known = concrete(finish(mask))
        if known is None:
            from tinyjax.core.errors import ConcretizationTypeError

            raise ConcretizationTypeError(
                Array(mask),
                "  The size argument of jnp.nonzero must be statically specified to use jnp.nonzero "
                "within JAX transformations.",
            )
        return tuple(finish(lift(p.astype(dtype))) for p in np.nonzero(known))
    count = int(size)
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * n.ndim
    if len(fills) != n.ndim:
        raise ValueError(
            f"fill_value must be a scalar or a tuple of length {n.ndim}; got {fill_value}"
        )
    total = n.aval.size
    if not total or not count:
        return tuple(
            finish(b.full((count,), b.cast(lift(0 if f is None else f), dtype))) for f in fills
        )
    flat = b.cast(b.reshape(mask, (total,)), b.INT32)
    # The k-th True is written to place k; places beyond `size`, and False, are dropped.
    rank = b.sub(b.prefix("add", flat, 0), b.like(flat, 1))
    place = b.where(b.ne(flat, b.like(flat, 0)), rank, b.like(flat, count))
    info = ScatterInfo("set", (), (0,), (0,), mode="fill")
    found = b.scatter(
        b.full((count,), b.scalar(0, b.INT32)),
        b.unsqueeze(place, 1),
        b.iota((total,), 0),
        info,
    )
    filled = b.ge(b.iota((count,), 0), b.sum_(flat, (0,)))
    out = []
    stride = total
    for axis, f in enumerate(fills):
        stride //= n.shape[axis]
        position = UOp(Op.REM, (UOp(Op.DIV, (found, b.like(found, stride))), b.like(found, n.shape[axis])))
        position = b.cast(position, dtype)
        fill = b.cast(lift(0 if f is None else f), dtype)
        out.append(finish(b.where(filled, b.fill_to(fill, (count,)), position)))
    return tuple(out)


def flatnonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Positions of nonzero elements of the flattened array."""
    (n,) = checked("flatnonzero", a)
    return nonzero(finish(b.reshape(n, (n.aval.size,))), size=size, fill_value=fill_value)[0]


def argwhere(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Positions of nonzero elements as rows."""
    (n,) = checked("argwhere", a)
    if not n.ndim:
        found = nonzero(finish(b.reshape(n, (1,))), size=size, fill_value=fill_value)[0]
        return finish(b.full((found.shape[0], 0), b.like(found.node, 0)))
    columns = nonzero(finish(n), size=size, fill_value=fill_value)
    return finish(b.concat([b.unsqueeze(c.node, 1) for c in columns], 1))


def take(
    a: ArrayLike,
    indices: ArrayLike,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Array:
    """Elements along an axis (of the flattened array if None).

    `mode`: "fill" (default: NaN out of bounds; the least integer, or the largest unsigned one),
    "clip" (no negative positions), or "wrap".
    """
    x, i = checked("take", a, indices)
    if axis is None:
        x, axis = b.reshape(x, (x.aval.size,)), 0
    place = _axis(axis, x.ndim)
    if not dtypes.is_integer(i.dtype) and i.dtype != np.bool_:
        raise IndexTypeError(
            f"take requires integer indices, got {i.dtype}; convert them with .astype(int)."
        )
    i = b.cast(i, b.INT32) if i.dtype == np.bool_ else i
    size = x.shape[place]
    if mode == "wrap":
        i = wrapped(i, size)
        how = "promise_in_bounds" if size else "fill"
    elif mode == "clip":
        i = b.min_(b.max_(i, b.like(i, 0)), b.like(i, max(size - 1, 0)))
        how = "clip"
    elif mode == "raise":
        raise NotImplementedError("The 'raise' mode to jnp.take is not supported.")
    else:
        how = "fill" if mode is None else mode
    where_to = (slice(None),) * place + (finish(b.cast(i, i.dtype)),)
    return finish(
        gather_node(x, where_to, how, fill_value, indices_are_sorted, unique_indices)
    )  # fmt: skip


def _axis(axis: Any, ndim: int) -> int:
    from tinyjax.numpy.promotion import canonical_axis

    return canonical_axis(axis, ndim)


def wrapped(i: UOp, size: int) -> UOp:
    """Positions modulo the size."""
    if not size:
        return i
    if dtypes.bit_width(i.dtype) < 32:
        i = b.cast(i, b.INT32)
    rest = UOp(Op.REM, (i, b.like(i, size)))
    if dtypes.is_unsigned(i.dtype):
        return rest
    return b.where(b.lt(rest, b.like(rest, 0)), b.add(rest, b.like(rest, size)), rest)


def along_axis(
    x: UOp, i: UOp, axis: int, name: str
) -> tuple[UOp, tuple[Any, ...], tuple[int, ...]]:
    """(x, index, result shape) that picks `i` along `axis` and walks together along the others."""
    if x.ndim != i.ndim:
        raise ValueError(
            f"indices and arr must have the same number of dimensions; {i.ndim} vs. {x.ndim}"
        )
    for d, (s, t) in enumerate(zip(x.shape, i.shape, strict=True)):
        if d != axis and s != t and 1 not in (s, t):
            raise make_error(
                BroadcastError,
                f"{name} got incompatible shapes: arr {x.shape}, indices {i.shape}",
                rule=f"sizes must be equal or 1 except along axis {axis}",
            )
    shape = tuple(
        i.shape[d] if d == axis else max(s, t) if 0 not in (s, t) else 0
        for d, (s, t) in enumerate(zip(x.shape, i.shape, strict=True))
    )
    index: list[Any] = []
    for d in range(x.ndim):
        if d == axis:
            index.append(finish(b.broadcast(i, shape)))
        elif x.shape[d] == 1:
            index.append(finish(b.zeros(i.aval.update(shape=(1,) * x.ndim, dtype=b.INT32))))
        else:
            row = b.iota((x.shape[d],), 0)
            open_shape = [1] * x.ndim
            open_shape[d] = x.shape[d]
            index.append(finish(b.reshape(row, open_shape)))
    return x, tuple(index), shape


def take_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    axis: int | None = -1,
    mode: Any = None,
    fill_value: Any = None,
) -> Array:
    """Elements picked along an axis by an array of positions of the same rank.

    Out of bounds is NaN (mode "fill", the default) or clamped ("clip", which takes no negatives).
    Cost: one GATHER with batch axes.
    """
    x, i = checked("take_along_axis", arr, indices)
    if not dtypes.is_integer(i.dtype):
        raise IndexTypeError(
            f"take_along_axis indices must be of integer type, got {i.dtype}"
        )
    if axis is None:
        if i.ndim != 1:
            raise ValueError(
                f"take_along_axis indices must be 1D if axis=None, got shape {i.shape}"
            )
        x, axis = b.reshape(x, (x.aval.size,)), 0
    place = _axis(axis, x.ndim)
    how = canonical_mode(mode, "fill")
    return finish(take_along_node(x, i, place, how, fill_value))


def take_along_node(x: UOp, i: UOp, axis: int, how: str, fill_value: Any = None) -> UOp:
    """GATHER whose other axes are batching dimensions; axes of size 1 are broadcast."""
    along_axis(x, i, axis, "take_along_axis")  # checks
    shape = tuple(
        i.shape[d] if d == axis else (t if s == 1 else s)
        for d, (s, t) in enumerate(zip(x.shape, i.shape, strict=True))
    )
    i = counted_from_front(finish(i), x.shape[axis], how != "clip")
    if 0 in shape:
        return b.full(shape, b.like(x, 0))
    # Axes that x does not vary over are dropped from it and stay in the indices.
    once = tuple(d for d in range(x.ndim) if d != axis and x.shape[d] == 1)
    kept = [d for d in range(x.ndim) if d not in once]
    x = b.squeeze(x, once)
    i = b.broadcast(i, shape)
    column = kept.index(axis)
    info = GatherInfo(
        offset_dims=(),
        collapsed_slice_dims=(column,),
        start_index_map=(column,),
        slice_sizes=(1,) * x.ndim,
        operand_batching_dims=tuple(k for k in range(x.ndim) if k != column),
        start_indices_batching_dims=tuple(d for d in kept if d != axis),
        mode=how,
    )
    fill = None if fill_value is None or how != "fill" else b.cast(lift(fill_value), x.dtype)
    return b.gather(x, b.unsqueeze(i, i.ndim), info, fill)


def put_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int | None,
    inplace: bool = True,
    *,
    mode: str | None = None,
) -> Array:
    """`arr` with values written along an axis at an array of positions. `inplace` must be False."""
    if inplace:
        raise ValueError(
            "jax.numpy.put_along_axis cannot modify arrays in-place, because JAX arrays are "
            "immutable. Pass inplace=False to instead return an updated array."
        )
    x, i = checked("put_along_axis", arr, indices)
    shape = x.shape
    if axis is None:
        x, axis = b.reshape(x, (x.aval.size,)), 0
    place = _axis(axis, x.ndim)
    x, index, _ = along_axis(x, i, place, "put_along_axis")
    return finish(b.reshape(scatter_node(x, index, values, "set", mode), shape))


def put(
    a: ArrayLike,
    ind: ArrayLike,
    v: ArrayLike,
    mode: str | None = None,
    *,
    inplace: bool = True,
) -> Array:
    """`a` with values written at positions of the flattened array. `inplace` must be False."""
    if inplace:
        raise ValueError(
            "jax.numpy.put cannot modify arrays in-place, because JAX arrays are immutable. Pass "
            "inplace=False to instead return an updated array."
        )
    x, i, values = checked("put", a, ind, v)
    if not i.aval.size or not values.aval.size:
        return finish(x)
    count = i.aval.size
    flat_i, flat_v = b.reshape(i, (count,)), b.reshape(values, (values.aval.size,))
    if flat_v.shape[0] < count:
        from tinyjax.numpy.shaping import tile_node

        flat_v = tile_node(flat_v, (-(-count // flat_v.shape[0]),))
    flat_v = b.slice_axis(flat_v, 0, 0, count)
    size = x.aval.size
    if mode == "wrap":
        flat_i, mode = wrapped(flat_i, size), "drop"
    elif mode == "clip":
        flat_i = b.min_(b.max_(flat_i, b.like(flat_i, 0)), b.like(flat_i, size - 1))
    elif mode is not None:
        raise ValueError(f"mode should be one of 'wrap' or 'clip'; got mode={mode}")
    flat = b.reshape(x, (size,))
    return finish(
        b.reshape(scatter_node(flat, finish(flat_i), finish(flat_v), "set", mode), x.shape)
    )


def place(
    arr: ArrayLike, mask: ArrayLike, vals: ArrayLike, *, inplace: bool = True
) -> Array:
    """`arr` with values written, in order and repeated, where the mask holds."""
    if inplace:
        raise ValueError(
            "jax.numpy.place cannot modify arrays in-place, because JAX arrays are immutable. Pass "
            "inplace=False to instead return an updated array."
        )
    x, m, values = checked("place", arr, mask, vals)
    flags = b.reshape(truth(m), (m.aval.size,))
    count = values.aval.size
    if not count:
        if not m.aval.size:
            return finish(x)
        raise ValueError("Cannot place values from an empty array")
    rank = b.sub(b.prefix("add", b.cast(flags, b.INT32), 0), b.scalar(1, b.INT32))
    chosen = finish(wrapped(rank, count))
    new = gather_node(b.reshape(values, (count,)), chosen, mode="clip")
    flat = b.reshape(x, (x.aval.size,))
    return finish(b.reshape(b.where(flags, b.cast_like(new, x.aval), flat), x.shape))


def compress(
    condition: ArrayLike,
    a: ArrayLike,
    axis: int | None = None,
    *,
    size: int | None = None,
    fill_value: Any = 0,
    out: None = None,
) -> Array:
    """Slices of an axis where a condition holds; `size` fixes their number (under jit)."""
    c, x = checked("compress", condition, a)
    if c.ndim != 1:
        raise ValueError("condition must be a 1D array")
    if axis is None:
        x, axis = b.reshape(x, (x.aval.size,)), 0
    at = _axis(axis, x.ndim)
    limit = min(c.shape[0], x.shape[at])
    if concrete(finish(c)) is not None and np.any(np.asarray(finish(c))[limit:]):
        raise ValueError("condition contains entries that are out of bounds")
    c = b.slice_axis(c, 0, 0, limit)
    found = nonzero(finish(c), size=size, fill_value=x.shape[at])[0]
    index = (slice(None),) * at + (found,)
    return finish(gather_node(x, index, "fill", fill_value))


def extract(
    condition: ArrayLike, arr: ArrayLike, *, size: int | None = None, fill_value: Any = 0
) -> Array:
    """Elements where a condition holds, as a vector; `size` fixes their number (under jit)."""
    (c,) = checked("extract", condition)
    return compress(finish(b.reshape(c, (c.aval.size,))), arr, size=size, fill_value=fill_value)


def choose(
    a: ArrayLike, choices: Any, out: None = None, mode: str = "raise"
) -> Array:
    """Elementwise the choice numbered by `a`."""
    from tinyjax.numpy.shaping import sequence

    (i,) = checked("choose", a)
    nodes = promote_dtypes(sequence("choose", choices))
    count = len(nodes)
    if mode == "raise":
        known = concrete(finish(i))
        if known is None:
            from tinyjax.core.errors import ConcretizationTypeError

            raise ConcretizationTypeError(
                Array(i),
                "  The error occurred because jnp.choose was jit-compiled with mode='raise'. Use "
                "mode='wrap' or mode='clip' instead.",
            )
        if known.size and (known.min() < 0 or known.max() >= count):
            raise ValueError(f"invalid entry in choice array. Must be in range [0, {count})")
    elif mode == "wrap":
        i = wrapped(i, count)
    elif mode == "clip":
        i = b.min_(b.max_(i, b.like(i, 0)), b.like(i, count - 1))
    else:
        raise ValueError(f"mode={mode!r} not understood. Must be 'raise', 'wrap', or 'clip'")
    shape = np.broadcast_shapes(i.shape, *(n.shape for n in nodes))
    i = b.broadcast(i, shape)
    out_node = b.broadcast(nodes[-1], shape)
    for k in range(count - 2, -1, -1):
        out_node = b.where(b.eq(i, b.like(i, k)), b.broadcast(nodes[k], shape), out_node)
    return finish(out_node)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: ArrayLike = 0) -> Array:
    """The choice of the first condition that holds, elementwise; else the default."""
    if len(condlist) != len(choicelist):
        raise ValueError(
            "condlist must have length equal to choicelist "
            f"({len(condlist)} vs {len(choicelist)})"
        )
    if not condlist:
        raise ValueError("condlist must be non-empty")
    conditions = [truth(n) for n in checked("select", *condlist)]
    nodes = promote_dtypes(checked("select", *choicelist, default))
    shape = np.broadcast_shapes(*(n.shape for n in (*conditions, *nodes)))
    out = b.broadcast(nodes[-1], shape)
    for c, n in zip(conditions[::-1], nodes[-2::-1], strict=True):
        out = b.where(b.broadcast(c, shape), b.broadcast(n, shape), out)
    return finish(out)


def piecewise(
    x: ArrayLike, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any
) -> Array:
    """Functions (or constants) applied where conditions hold; the last one, if extra, elsewhere."""
    from tinyjax.numpy.creation import array_node

    (n,) = checked("piecewise", x)
    conditions = array_node(condlist, None)
    if conditions.ndim == n.ndim:
        conditions = b.unsqueeze(conditions, 0)
    count, total = conditions.shape[0], len(funclist)
    if total == count + 1:
        functions = [funclist[-1], *funclist[:-1]]
    elif total == count:
        functions = [0, *funclist]
    else:
        raise ValueError(
            f"with {count} condition(s), either {count} or {count + 1} functions are expected; got "
            f"{total}"
        )

    def value(f: Any) -> UOp:
        made = f(finish(n), *args, **kw) if callable(f) else f
        return b.broadcast(b.cast(lift(made), n.dtype, n.aval.weak_type), n.shape)

    out = value(functions[0])
    for k, f in reversed(list(enumerate(functions[1:]))):
        holds = b.squeeze(b.slice_axis(conditions, 0, k, k + 1), (0,))
        out = b.where(b.broadcast(truth(holds), n.shape), value(f), out)
    return finish(out)


def unravel_index(indices: ArrayLike, shape: Any) -> tuple[Array, ...]:
    """Positions along each axis of flat positions; out of range is clamped."""
    from tinyjax.numpy.creation import canonical_shape

    (i,) = checked("unravel_index", indices)
    sizes = canonical_shape(shape)
    total = int(np.prod(sizes, dtype=np.int64))
    if i.dtype == np.bool_ or dtypes.bit_width(i.dtype) < 32:
        i = b.cast(i, dtypes.default_int_dtype())
    i = b.where(b.lt(i, b.like(i, 0)), b.add(i, b.like(i, total)), i) if not dtypes.is_unsigned(i.dtype) else i
    i = b.min_(b.max_(i, b.like(i, 0)), b.like(i, max(total - 1, 0)))
    i = b.cast(i, i.dtype)
    out: list[Array] = []
    for s in sizes[::-1]:
        out.insert(0, finish(UOp(Op.REM, (i, b.like(i, s)))))
        i = UOp(Op.DIV, (i, b.like(i, s)))
    return tuple(out)


def ravel_multi_index(
    multi_index: Any, dims: Sequence[int], mode: str = "raise", order: str = "C"
) -> Array:
    """Flat positions of positions along each axis. `mode`: raise (values must be known), wrap, clip."""
    nodes = checked("ravel_multi_index", *multi_index)
    sizes = tuple(int(s) for s in dims)
    if len(nodes) != len(sizes):
        raise ValueError(f"len(multi_index)={len(nodes)} != len(dims)={len(sizes)}")
    if any(not dtypes.is_integer(n.dtype) for n in nodes):
        raise TypeError("only int indices permitted")
    parts = []
    for n, s in zip(nodes, sizes, strict=True):
        if mode == "raise":
            known = concrete(finish(n))
            if known is None:
                from tinyjax.core.errors import ConcretizationTypeError

                raise ConcretizationTypeError(
                    Array(n),
                    "  The error occurred because ravel_multi_index was jit-compiled with "
                    "mode='raise'. Use mode='wrap' or mode='clip' instead.",
                )
            if known.size and (known.min() < 0 or known.max() >= s):
                raise ValueError("invalid entry in coordinates array")
        elif mode == "clip":
            n = b.min_(b.max_(n, b.like(n, 0)), b.like(n, s - 1))
        elif mode == "wrap":
            n = wrapped(n, s)
        else:
            raise ValueError(f"invalid mode={mode!r}. Expected 'raise', 'wrap', or 'clip'")
        parts.append(b.cast(n, dtypes.default_int_dtype()))
    if order not in ("C", "F"):
        raise ValueError(f"invalid order={order!r}. Expected 'C' or 'F'")
    stride = 1
    shape = np.broadcast_shapes(*(n.shape for n in parts))
    out = b.full(shape, b.scalar(0, dtypes.default_int_dtype()))
    pairs = list(zip(parts, sizes, strict=True))
    for n, s in pairs if order == "F" else pairs[::-1]:
        out = b.add(out, b.mul(b.broadcast(n, shape), b.like(n, stride)))
        stride *= s
    return finish(out)


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """Positions of the diagonal of an n by n (by ...) array."""
    size, rank = int(n), int(ndim)
    if size < 0 or rank < 0:
        raise ValueError(
            f"n and ndim arguments to diag_indices must be nonnegative, got n={n}, ndim={ndim}"
        )
    row = finish(b.iota((size,), 0, dtypes.default_int_dtype()))
    return (row,) * rank


def diag_indices_from(arr: ArrayLike) -> tuple[Array, ...]:
    """Positions of the diagonal of an array with equal sizes."""
    shape = np.shape(arr)
    if len(shape) < 2:
        raise ValueError("input array must be at least 2-d")
    if len(set(shape)) != 1:
        raise ValueError("All dimensions of input must be of equal length")
    return diag_indices(shape[0], len(shape))


def triangle_indices(n: int, k: int, m: int | None, lower: bool) -> tuple[Array, Array]:
    """Positions of a triangle, found at trace time."""
    make = np.tril_indices if lower else np.triu_indices
    rows, cols = make(int(n), int(k), None if m is None else int(m))
    dtype = dtypes.default_int_dtype()
    return finish(lift(rows.astype(dtype))), finish(lift(cols.astype(dtype)))


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Positions at and below the k-th diagonal."""
    return triangle_indices(n, k, m, True)


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Positions at and above the k-th diagonal."""
    return triangle_indices(n, k, m, False)


def matrix_size(arr: Any) -> tuple[int, int]:
    """Shape of a matrix."""
    shape = np.shape(arr)
    if len(shape) != 2:
        raise ValueError("Only 2-D inputs are accepted")
    return int(shape[0]), int(shape[1])


def tril_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """Positions at and below the k-th diagonal of a matrix."""
    rows, cols = matrix_size(arr)
    return triangle_indices(rows, k, cols, True)


def triu_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """Positions at and above the k-th diagonal of a matrix."""
    rows, cols = matrix_size(arr)
    return triangle_indices(rows, k, cols, False)


def mask_indices(
    n: int, mask_func: Callable[..., Any], k: int = 0, *, size: int | None = None
) -> tuple[Array, ...]:
    """Positions that a mask function keeps of an n by n array of ones."""
    from tinyjax.numpy.creation import ones

    return nonzero(mask_func(ones((int(n), int(n))), k), size=size)


def ix_(*args: Any) -> tuple[Array, ...]:
    """Open grids: an index that takes all combinations of several vectors."""
    from tinyjax.numpy.creation import array_node

    out = []
    for i, a in enumerate(args):
        n = array_node(a, None)
        if n.ndim != 1:
            raise ValueError("Arguments to jax.numpy.ix_ must be 1-dimensional, got shape {}".format(n.shape))
        if n.dtype == np.bool_:
            raise NotImplementedError("Boolean arguments to jax.numpy.ix_ are not implemented")
        if not n.aval.size:
            n = b.cast(n, dtypes.default_int_dtype())
        shape = [1] * len(args)
        shape[i] = n.shape[0]
        out.append(finish(b.reshape(n, shape)))
    return tuple(out)


def fill_diagonal(
    a: ArrayLike, val: ArrayLike, wrap: bool = False, *, inplace: bool = True
) -> Array:
    """`a` with its diagonal set. `inplace` must be False."""
    if inplace:
        raise NotImplementedError("JAX arrays are immutable, must use inplace=False")
    if wrap:
        raise NotImplementedError("wrap=True is not implemented, must use wrap=False")
    from tinyjax.numpy.creation import array_node

    (n,) = checked("fill_diagonal", a)
    if n.ndim < 2:
        raise ValueError("array must be at least 2-d")
    if n.ndim > 2 and len(set(n.shape)) != 1:
        raise ValueError("All dimensions of input must be of equal length")
    v = array_node(val, None)
    count = min(n.shape)
    if v.ndim:
        from tinyjax.numpy.shaping import resize

        v = resize(finish(v), (count,)).node
    row = np.arange(count, dtype=np.int32)
    return finish(
        scatter_node(n, (row,) * n.ndim, Array(v), "set", None, True, True)
    )  # fmt: skip


class IndexExpression:
    """`index_exp[...]` and `s_[...]`: an index written as one, kept for later."""

    def __init__(self, maketuple: bool) -> None:
        self.maketuple = maketuple

    def __getitem__(self, item: Any) -> Any:
        return (item,) if self.maketuple and not isinstance(item, tuple) else item


index_exp = IndexExpression(True)
s_ = IndexExpression(False)
