"""`x[...]` and `x.at[...]`: NumPy's index rules as movement, gather and scatter.

An index is parsed into one entry per axis. What is static becomes SLICE, FLIP and RESHAPE when read
and DYNAMIC_UPDATE (or PAD and WHERE, for strides) when written; one position known only at run time
becomes DYNAMIC_SLICE; index arrays become one GATHER or SCATTER; its windows cover the other axes.

Out of bounds, as in JAX: reads are clamped, writes are dropped, unless `mode` says otherwise. A
Python integer that is out of range is an error, because it is known to be a mistake; passing a mode
allows it. A traced boolean mask cannot select (the size would depend on values), but `x.at[mask]`
with a value for every element, or one for all, is a WHERE.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dims import (
    Size,
    is_symbolic,
    largest,
    maximum,
    minimum,
)
from tinyjax.core.errors import (
    BroadcastError,
    InconclusiveDimensionOperation,
    IndexTypeError,
    JAXIndexError,
    NonConcreteBooleanIndexError,
    make_error,
)
from tinyjax.core.infos import GatherInfo, ScatterInfo
from tinyjax.core.shapes import broadcast_shapes, same_shape, same_size, slice_steps
from tinyjax.core.source import api_boundary
from tinyjax.core.uop import UOp, const
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, is_array_like, lift, lift_for
from tinyjax.interpreters.trace import state, values_of
from tinyjax.lax.control_flow import while_loop
from tinyjax.numpy.creation import array as array_of
from tinyjax.numpy.promotion import ArrayLike, checked
from tinyjax.numpy.ufuncs import divide, power

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


# --- parsing ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class New:
    """`None`: a new axis of size 1."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A slice of an axis: `count` elements from `start` in steps of `step` (any sign).

    If size or bounds are symbolic there is `stop`, an end of which a step may fall short: it may
    not be known whether there is a last element.
    """

    axis: int
    start: Size
    count: Size
    step: int
    stop: Size | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """A static position, in range unless a mode was given."""

    axis: int
    position: Size


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
            return array_of(item)
        made = np.asarray(item)
        return made.astype(np.int32) if made.size == 0 else made
    if item is None or item is Ellipsis or isinstance(item, slice) or is_array_like(item):
        return item  # a symbolic size is array-like
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
    if isinstance(item, int) or is_symbolic(item):
        return INT64
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
    if isinstance(item, (int, np.integer)) or is_symbolic(item):
        position = item if is_symbolic(item) else int(item)
        try:
            inside = -size <= position < size
            checkified = any(t.kind == "checkify" for t in state.traces)
            later = default_mode and not inside and checkified
        except InconclusiveDimensionOperation:
            later = True
        if later:  # as in JAX, it is looked at when the program runs
            at = finish(b.scalar(position, index_dtype((size,))))
            return Picked(axis, counted_from_front(at, size, wrap))
        if default_mode and not inside:
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
                    f"Slice entries must be static integers. Got {item} at position {place}.\n"
                    f"{value._origin_msg()}\n"
                    "  Use lax.dynamic_slice or lax.dynamic_slice_in_dim for a start that is traced; "
                    "the length must be static."
                )
            value = int(known) if dtypes.is_integer(value.dtype) else known
        if value is not None and not hasattr(value, "__index__"):
            raise IndexTypeError(
                f"'{type(value).__name__}' object cannot be interpreted as an integer"
            )
        bounds.append(value)
    return Taken(axis, *slice_steps(slice(*bounds), size))


def index_dtype(sizes: Sequence[Size]) -> Any:
    """int32 unless an axis is longer."""
    return INT64 if any(largest(s) > INT32_MAX for s in sizes) else b.INT32


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
        limited = np.minimum(known, np.asarray(largest(size)).astype(known.dtype)) if (
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


# --- layout -------------------------------------------------------------------------------------


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
        common = broadcast_shapes(*shapes)
    except ValueError:
        raise make_error(
            BroadcastError,
            f"Incompatible shapes for broadcasting: shapes={shapes}",
            rule="the arrays of an index are broadcast together",
            fix="Index with ix_, or give one of them a new axis, to take all combinations.",
        ) from None
    adjacent = not advanced or advanced[-1] - advanced[0] + 1 == len(advanced)
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
            value = b.scalar(e.position, index_dtype((e.position,)))
            columns.append((e.axis, b.full(batch_shape, value)))
        elif isinstance(e, Picked):
            n = e.positions
            columns.append(
                (e.axis, b.expand(n, batch_shape, advanced_places[len(common) - n.ndim :]))
            )
        elif isinstance(e, Taken) and e.step != 1:
            place = batch.index(("grid", e))
            columns.append((e.axis, b.expand(positions(e), batch_shape, (place,))))
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


def positions(e: Taken) -> UOp:
    """The positions of a slice, as a vector."""
    if e.stop is None:
        row = np.arange(e.start, e.start + e.step * e.count, e.step, dtype=np.int32)
        return lift(row[: e.count])
    steps = b.mul(b.iota((e.count,), 0), b.scalar(e.step, b.INT32))
    return b.add(steps, b.scalar(e.start, b.INT32))


def index_vectors(plan: Layout, operand: UOp) -> tuple[UOp, tuple[int, ...]]:
    """The indices of GATHER and SCATTER, and the operand axis of each component."""
    parts = list(plan.columns)
    for axis, start, size in plan.windows:
        if not same_shape((size,), (operand.shape[axis],)):
            parts.append((axis, b.full(plan.batch_shape, b.scalar(start, b.INT32))))
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


# --- reading ------------------------------------------------------------------------------------


def take_slices(x: UOp, entries: Sequence[Entry], sizes: dict[int, int]) -> UOp:
    """SLICE and FLIP of the axes that slices and integers restrict, but not of those in `sizes`."""
    starts, stops, steps, flipped, turned = [], [], [], [], []
    by_axis = {e.axis: e for e in entries if not isinstance(e, New)}
    for axis, size in enumerate(x.shape):
        e = by_axis.get(axis)
        if axis in sizes or not isinstance(e, (Taken, Fixed)):
            start, stop, step = 0, size, 1
        elif isinstance(e, Fixed):
            position = minimum(maximum(e.position, 0), size - 1)
            start, stop, step = position, position + 1, 1
        elif e.count == 0:
            start, stop, step = 0, 0, 1
        elif e.step == 1:
            start, stop, step = e.start, e.start + e.count, 1
        elif e.stop is not None and e.step > 0:
            start, stop, step = e.start, e.stop, e.step
        elif e.stop is not None:  # counted from the other end
            start, stop, step = size - 1 - e.start, size - 1 - e.stop, -e.step
            turned.append(axis)
        else:
            last = e.start + (e.count - 1) * e.step
            start, stop, step = min(e.start, last), max(e.start, last) + 1, abs(e.step)
            if e.step < 0 and e.count > 1:
                flipped.append(axis)
        starts.append(start)
        stops.append(stop)
        steps.append(step)
    x = b.flip(x, tuple(turned))
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
            Picked(e.axis, b.scalar(e.position, b.INT32)) if e is first else e for e in entries
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
    fill = None
    if fill_value is not None and how == "fill":
        fill = b.cast(lift_for(fill_value, x.dtype), x.dtype)
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
        if type(size) is int and -size <= index < size:
            i = index % size
            n = x.node
            stops = (i + 1, *n.shape[1:])
            starts = (i,) + (0,) * (n.ndim - 1)
            return finish(b.reshape(b.slice_(n, starts, stops), n.shape[1:]))
    return finish(gather_node(x.node, index))


# --- writing ------------------------------------------------------------------------------------

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
    if isinstance(values, int) and dtypes.is_integer(x.dtype):
        limits = dtypes.iinfo(x.dtype)
        if limits.min <= values <= limits.max:  # which the default dtype need not hold
            return b.scalar(values, x.dtype, x.aval.weak_type)
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
    if same_shape(value.shape, shape):
        return value
    lead = value.ndim - len(shape)
    if lead > 0 and all(s == 1 for s in value.shape[:lead]):
        value = b.reshape(value, value.shape[lead:])
    try:
        fitting = broadcast_shapes(value.shape, shape) == shape
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
    how = canonical_mode(mode, "fill")
    value = update_value(x, values)
    masked = masked_update(x, index, value, kind)
    if masked is not None:
        return masked
    parsed = parse(x, index, mode is None, wrap)
    target, entries = parsed.operand, parsed.entries
    shape = x.shape
    strided = [e for e in entries if isinstance(e, Taken) and e.step != 1 and e.stop is not None]
    if parsed.is_static and not strided:
        return b.reshape(write_static(target, entries, value, kind, how), shape)
    plan = layout(parsed)
    unique_indices = unique_indices or parsed.is_static
    value = b.reshape(fit_update(value, plan.full_shape), plan.shape)
    if 0 in value.shape or any(target.shape[axis] == 0 for axis, _ in plan.columns):
        return x
    vectors, start_map = index_vectors(plan, target)
    unique_indices = unique_indices or same_size(vectors.aval.size, len(start_map))  # one place
    if kind == "mul" and not unique_indices:
        unique_indices = known_unique(vectors, target.shape, start_map, how)
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


def known_unique(
    vectors: UOp, shape: tuple[int, ...], start_map: tuple[int, ...], how: str
) -> bool:
    """Whether index vectors whose values are known differ from each other.

    Asked for products only: their derivative exists for different places.
    """
    if vectors.free or vectors.aval.size > 2**20 or how == "clip":
        return False
    rows = np.reshape(values_of([vectors])[0], (-1, len(start_map)))
    inside = np.all((rows >= 0) & (rows < np.take(shape, start_map)), axis=1)
    rows = rows[inside]
    return len(np.unique(rows, axis=0)) == len(rows)


def scatter_any(x: UOp, vectors: UOp, value: UOp, info: ScatterInfo) -> UOp:
    """SCATTER; bools are combined as bytes (or is max, and is min)."""
    if x.dtype == np.bool_ and info.kind != "set":
        info = replace(info, kind="max" if info.kind in ("add", "max") else "min")
        wide = b.scatter(b.cast(x, np.uint8), vectors, b.cast(value, np.uint8), info)
        return b.ne(wide, b.like(wide, 0))
    return b.scatter(x, vectors, value, info)


def write_static(x: UOp, entries: Sequence[Entry], value: UOp, kind: str, how: str) -> UOp:
    """A write to a known place: DYNAMIC_UPDATE at constant starts, or PAD and WHERE if strided."""
    value = fit_update(value, static_shape(entries))
    by_axis = [e for e in entries if not isinstance(e, New)]
    outside = [e for e in by_axis if isinstance(e, Fixed) and not 0 <= e.position < x.shape[e.axis]]
    if 0 in value.shape or 0 in x.shape or (outside and how == "fill"):
        return x
    part = tuple(e.count if isinstance(e, Taken) else 1 for e in by_axis)
    value = b.reshape(value, part)
    flipped = tuple(e.axis for e in by_axis if isinstance(e, Taken) and e.step < 0 and e.count != 1)
    value = b.flip(value, flipped)
    old = b.flip(take_slices(x, entries, {}), flipped)
    new = combine(kind, old, value)
    starts, steps = [], []
    for e in by_axis:
        if isinstance(e, Fixed):
            starts.append(minimum(maximum(e.position, 0), x.shape[e.axis] - 1))
            steps.append(1)
        elif isinstance(e, Taken) and e.step == 1:
            starts.append(e.start)
            steps.append(1)
        elif isinstance(e, Taken):
            last = e.start + (e.count - 1) * e.step
            starts.append(min(e.start, last))
            steps.append(abs(e.step) if e.count > 1 else 1)
    if same_shape(part, x.shape) and all(s == 1 for s in steps):
        return b.cast_like(new, x.aval.update(weak_type=new.aval.weak_type and x.aval.weak_type))
    if all(s == 1 for s in steps):
        return b.dynamic_update(x, new, [b.scalar(s, index_dtype((s,))) for s in starts])
    config = [
        (start, size - start - (n - 1) * step - 1, step - 1)
        for start, step, n, size in zip(starts, steps, part, x.shape, strict=True)
    ]
    here = b.pad(b.full(part, b.scalar(True, b.BOOL)), config)
    return b.where(here, b.pad(new, config), x)


def masked_update(x: UOp, index: Any, value: UOp, kind: str) -> UOp | None:
    """`x.at[mask]` with one value for all, or one per element of x, as WHERE; None otherwise.

    The mask may be traced, and may stand among full slices: no size depends on its values.
    """
    found = lone_mask(x, index)
    if found is None:
        return None
    mask, axis = found
    rank = np.ndim(mask)
    expected = x.shape[axis : axis + rank]
    if mask.shape != expected:
        raise JAXIndexError(
            f"boolean index did not match shape of indexed array in index {axis}: got "
            f"{mask.shape}, expected {list(expected)}"
        )
    rest = x.shape[:axis] + (1,) + x.shape[axis + rank :]
    whole = same_shape(value.shape, x.shape)
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
    if any(
        i is not mask and i is not Ellipsis and i != slice(None) for i in items if i is not mask
    ):
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

    @api_boundary
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

    @api_boundary
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

    @api_boundary
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

    @api_boundary
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

    @api_boundary
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

    @api_boundary
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
        return divide(
            self.array,
            IndexUpdateRef(self._ones(), self.index).multiply(
                values,
                indices_are_sorted=indices_are_sorted,
                unique_indices=unique_indices,
                mode=mode,
                wrap_negative_indices=wrap_negative_indices,
            ),
        )

    @api_boundary
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
        return power(
            self.array,
            IndexUpdateRef(self._ones(), self.index).multiply(
                values,
                indices_are_sorted=indices_are_sorted,
                unique_indices=unique_indices,
                mode=mode,
                wrap_negative_indices=wrap_negative_indices,
            ),
        )

    def _ones(self) -> Array:
        return finish(b.ones(self.array.aval))

    @api_boundary
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

    @api_boundary
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

    @api_boundary
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
        count = IndexUpdateRef(hits, self.index).add(
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

        def running(c: Any) -> Array:
            n = b.reduce("max", c[0].node, range(c[0].ndim))
            return finish(b.gt(n, b.like(n, 0)))

        return while_loop(running, once, (count, x))[1]  # type: ignore[no-any-return]
