"""Shapes: reshape, transpose, join, split, repeat, roll, and others that only move elements."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.describe import describe_value
from tinyjax.core.dims import (
    DimExpr,
    as_int,
    as_size,
    as_sizes,
    describe,
    is_symbolic,
    maximum,
    minimum,
)
from tinyjax.core.errors import (
    BroadcastError,
    ConcatenateError,
    ConcretizationTypeError,
    InconclusiveDimensionOperation,
    ReshapeError,
    ShapeError,
    make_error,
)
from tinyjax.core.ops import Op
from tinyjax.core.shapes import broadcast_shapes as common_shape
from tinyjax.core.shapes import reshaped, same_shape, unequal
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import canonical_shape, finish, lift
from tinyjax.numpy import reductions, statistics
from tinyjax.numpy.creation import array_node, linspace
from tinyjax.numpy.indexing import concrete, gather_node, scatter_node
from tinyjax.numpy.promotion import (
    ArrayLike,
    canonical_axes,
    canonical_axis,
    checked,
    no_out,
    promote_dtypes,
)
from tinyjax.numpy.sorting import argsort, sort
from tinyjax.numpy.ufuncs import truth

Axis = int | Sequence[int] | None


def sequence(name: str, arrays: Any) -> list[UOp]:
    """The operands of a joining function: a sequence of arrays, or one array split along axis 0."""
    if isinstance(arrays, (Array, np.ndarray)):
        if not arrays.ndim:
            raise ValueError(f"Need at least one array to {name}.")
        return [
            b.squeeze(b.slice_axis(n, 0, i, i + 1), (0,))
            for n in [lift(arrays)]
            for i in range(n.shape[0])
        ]
    if not isinstance(arrays, (list, tuple)):
        try:
            arrays = list(arrays)
        except TypeError:
            raise TypeError(
                f"{name} requires ndarray or scalar arguments, got {type(arrays)} at position 0."
            ) from None
    return checked(name, *arrays)


# --- one array, other axes ----------------------------------------------------------------------


def reshape_node(n: UOp, shape: Any, name: str = "reshape") -> UOp:
    """Same elements in row-major order; one size may be -1."""
    if isinstance(shape, (int, np.integer, DimExpr)) or type(shape) is Array:
        shape = (shape,)
    try:
        sizes = [as_size(s) for s in shape]
    except TypeError as error:
        canonical_shape(shape)  # raises JAX's message
        raise AssertionError("a shape of integers was refused") from error
    fitting = reshaped(n.shape, sizes)
    if fitting is None:
        raise reshape_error(n, sizes)
    return b.reshape(n, fitting)


def reshape_error(n: UOp, sizes: list[int]) -> Exception:
    """The element counts differ, or the sizes are none."""
    if sum(s < 0 for s in sizes) > 1 or any(s < -1 for s in sizes):
        return ReshapeError(
            f"cannot reshape array of shape {n.shape} (size {n.aval.size}) into shape "
            f"{tuple(sizes)}: sizes must be non-negative, and only one may be -1."
        )
    wanted = math.prod(s for s in sizes if s != -1)
    many = f"a multiple of {wanted}" if -1 in sizes else f"{wanted}"
    return make_error(
        ReshapeError,
        f"cannot reshape array of shape {n.shape} (size {n.aval.size}) into shape {tuple(sizes)} "
        f"(size {many})",
        rule="the number of elements must stay the same",
    )


def check_order(order: str) -> str:
    """C or F."""
    if order in ("C", "F"):
        return order
    if order == "A":
        raise NotImplementedError("np.reshape order=A is not implemented.")
    raise ValueError(f"Unexpected value for 'order' argument: {order}.")


def reshape(
    a: ArrayLike,
    shape: Any,
    order: str = "C",
    *,
    copy: bool | None = None,
    out_sharding: Any = None,
) -> Array:
    """The same elements in another shape; one size may be -1. Order "F" reads columns first."""
    (n,) = checked("reshape", a)
    if check_order(order) == "F":
        reverse = tuple(range(n.ndim))[::-1]
        dims = [shape] if isinstance(shape, (int, np.integer, DimExpr)) else list(shape)
        flipped = reshape_node(b.permute(n, reverse), dims[::-1])
        return finish(b.permute(flipped, tuple(range(flipped.ndim))[::-1]))
    return finish(reshape_node(n, shape))


def ravel(a: ArrayLike, order: str = "C", *, out_sharding: Any = None) -> Array:
    """Flattened to one axis."""
    if order == "K":
        raise NotImplementedError("Ravel not implemented for order='K'.")
    (n,) = checked("ravel", a)
    return reshape(finish(n) if n.src else a, (n.aval.size,), order)


class PermutationError(ShapeError, ValueError):
    """Axes that are no permutation (JAX raises TypeError, or NumPy's ValueError)."""


def permute_node(n: UOp, axes: Any) -> UOp:
    """Axes in another order; None reverses them."""
    if axes is None:
        return b.permute(n, tuple(range(n.ndim))[::-1])
    given = tuple(as_int(a, "axes") for a in as_sizes(axes, "axes"))
    order = tuple(a % n.ndim for a in given if -n.ndim <= a < n.ndim)
    if not len(given) == len(set(order)) == n.ndim:
        raise PermutationError(
            f"transpose permutation isn't a permutation of operand dimensions, got permutation "
            f"{given} for operand shape {n.shape}."
        )
    return b.permute(n, order)


def transpose(a: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Axes reversed, or in the given order."""
    return finish(permute_node(checked("transpose", a)[0], axes))


def permute_dims(a: ArrayLike, /, axes: tuple[int, ...]) -> Array:
    """Axes in the given order."""
    return finish(permute_node(checked("permute_dims", a)[0], as_sizes(axes, "axes")))


def matrix_transpose(x: ArrayLike, /) -> Array:
    """The last two axes exchanged."""
    (n,) = checked("matrix_transpose", x)
    if n.ndim < 2:
        raise ValueError(
            f"x must be at least two-dimensional for matrix_transpose; got ndim={n.ndim}"
        )
    order = list(range(n.ndim))
    order[-2:] = [n.ndim - 1, n.ndim - 2]
    return finish(b.permute(n, order))


def swapaxes(a: ArrayLike, axis1: int, axis2: int) -> Array:
    """Two axes exchanged."""
    (n,) = checked("swapaxes", a)
    i, j = canonical_axis(axis1, n.ndim), canonical_axis(axis2, n.ndim)
    order = list(range(n.ndim))
    order[i], order[j] = j, i
    return finish(b.permute(n, order))


def axis_list(axis: Any) -> tuple[Any, ...]:
    """One axis or several, as a tuple of what the user gave."""
    several = isinstance(axis, (tuple, list, range)) or bool(getattr(axis, "ndim", 0))
    return tuple(axis) if several else (axis,)


def moveaxis(a: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """Axes moved to new places, the others keeping their order."""
    (n,) = checked("moveaxis", a)
    sources, targets = (canonical_axes(axis_list(at), n.ndim) for at in (source, destination))
    if len(sources) != len(targets):
        raise ValueError(
            f"Inconsistent number of elements: {len(sources)} vs {len(targets)} in moveaxis"
        )
    order = [i for i in range(n.ndim) if i not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return finish(b.permute(n, order))


def rollaxis(a: ArrayLike, axis: int, start: int = 0) -> Array:
    """One axis moved in front of `start` (kept for old programs; `moveaxis` is clearer)."""
    (n,) = checked("rollaxis", a)
    origin = canonical_axis(axis, n.ndim)
    if not -n.ndim <= start <= n.ndim:
        raise ValueError(f"start={start} must satisfy {-n.ndim}<=start<={n.ndim}")
    target = start + n.ndim if start < 0 else start
    return finish(b.moveaxis(n, origin, target - 1 if target > origin else target))


def expand_dims(a: ArrayLike, axis: int | Sequence[int]) -> Array:
    """New axes of size 1 at these places of the result."""
    (n,) = checked("expand_dims", a)
    places = axis_list(axis)
    rank = n.ndim + len(places)
    new = canonical_axes(places, rank)
    sizes = iter(n.shape)
    return finish(b.reshape(n, tuple(1 if i in new else next(sizes) for i in range(rank))))


def squeeze(a: ArrayLike, axis: Axis = None) -> Array:
    """Axes of size 1 dropped: all, or the given ones."""
    (n,) = checked("squeeze", a)
    if axis is None:
        return finish(b.reshape(n, tuple(s for s in n.shape if s != 1)))
    axes = canonical_axes(axis, n.ndim)
    if any(n.shape[i] != 1 for i in axes):
        raise ValueError(
            "cannot select an axis to squeeze out which has size not equal to one, got "
            f"shape={n.shape} and dimensions={axes}"
        )
    return finish(b.squeeze(n, axes))


# --- broadcasting -------------------------------------------------------------------------------


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The common shape of several."""
    try:
        return common_shape(*(canonical_shape(s) for s in shapes))
    except ValueError:
        raise BroadcastError(
            f"Incompatible shapes for broadcasting: shapes={[canonical_shape(s) for s in shapes]}"
        ) from None


def broadcast_to(array: ArrayLike, shape: Any, *, out_sharding: Any = None) -> Array:
    """`array` repeated to a shape."""
    (n,) = checked("broadcast_to", array)
    target = canonical_shape(shape)
    fits = n.ndim <= len(target) and builtins.all(
        s in (1, t) for s, t in zip(n.shape[::-1], target[::-1], strict=False)
    )
    if not fits:
        raise BroadcastError(
            f"Incompatible shapes for broadcasting: {n.shape} and requested shape {target}"
        )
    return finish(b.broadcast(n, target))


def broadcast_arrays(*args: ArrayLike) -> list[Array]:
    """All repeated to their common shape."""
    nodes = checked("broadcast_arrays", *args)
    shape = broadcast_shapes(*(n.shape for n in nodes)) if nodes else ()
    return [finish(b.broadcast(n, shape)) for n in nodes]


def _at_least(name: str, arys: tuple[ArrayLike, ...], change: Callable[[UOp], UOp]) -> Any:
    made = [finish(change(n)) for n in checked(name, *arys)]
    return made[0] if len(made) == 1 else made


def atleast_1d(*arys: ArrayLike) -> Any:
    """Arrays with one axis or more."""
    return _at_least("atleast_1d", arys, lambda n: n if n.ndim else b.reshape(n, (1,)))


def two_axes(n: UOp) -> UOp:
    """A node with at least two axes."""
    return n if n.ndim >= 2 else b.reshape(n, (1, n.aval.size))


def three_axes(n: UOp) -> UOp:
    """A node with at least three axes; vectors lie along the second."""
    if n.ndim == 2:
        return b.reshape(n, (*n.shape, 1))
    return n if n.ndim > 2 else b.reshape(n, (1, n.aval.size, 1))


def atleast_2d(*arys: ArrayLike) -> Any:
    """Arrays with two axes or more; vectors become rows."""
    return _at_least("atleast_2d", arys, two_axes)


def atleast_3d(*arys: ArrayLike) -> Any:
    """Arrays with three axes or more."""
    return _at_least("atleast_3d", arys, three_axes)


# --- joining ------------------------------------------------------------------------------------


def concat_nodes(name: str, nodes: list[UOp], axis: int, dtype: Any = None) -> UOp:
    """Joined along an existing axis."""
    if not nodes:
        raise ValueError(f"Need at least one array to {name}.")
    first = nodes[0]
    if not first.ndim:
        raise ValueError("Zero-dimensional arrays cannot be concatenated.")
    place = canonical_axis(axis, first.ndim)
    for i, n in enumerate(nodes):
        if n.ndim != first.ndim:
            error: type[Exception] = ConcatenateError
            rule = fix = ""
            what = f"ranks differ, {first.ndim} and {n.ndim}"
        else:
            rest, wanted = (m.shape[:place] + m.shape[place + 1 :] for m in (n, first))
            if same_shape(rest, wanted):
                continue
            pairs = [s for pair in zip(rest, wanted, strict=True) for s in pair]
            error, rule, fix = unequal(ConcatenateError, *pairs)
            what = f"shapes {first.shape} and {n.shape} differ in another axis than {place}"
        if error is ConcatenateError:
            rule = f"arrays may differ in size along axis {place} only"
        raise make_error(
            error,
            f"Cannot {name} arrays with different shapes: arrays 0 and {i}: {what}",
            rule=rule,
            fix=fix,
        )
    if dtype is not None:
        kind = dtypes.user_dtype(dtype, name)
        nodes = [b.cast(n, kind) for n in nodes]
    else:
        nodes = promote_dtypes(nodes)
    return b.concat(nodes, place)


def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Array:
    """Arrays joined along an existing axis (flattened first if None)."""
    nodes = sequence("concatenate", arrays)
    if axis is None:
        nodes = [b.reshape(n, (n.aval.size,)) for n in nodes]
        axis = 0
    return finish(concat_nodes("concatenate", nodes, axis, dtype))


def concat(arrays: Sequence[ArrayLike], /, *, axis: int | None = 0) -> Array:
    """Arrays joined along an existing axis."""
    return concatenate(arrays, axis)


def stack(arrays: Any, axis: int = 0, out: None = None, dtype: Any = None) -> Array:
    """Arrays of one shape joined along a new axis."""
    no_out("stack", out)
    nodes = sequence("stack", arrays)
    if not nodes:
        raise ValueError("Need at least one array to stack.")
    if any_differs := [n.shape for n in nodes if n.shape != nodes[0].shape]:
        raise ValueError(
            f"All input arrays must have the same shape; got {nodes[0].shape} and {any_differs[0]}."
        )
    place = canonical_axis(axis, nodes[0].ndim + 1)
    return finish(concat_nodes("stack", [b.unsqueeze(n, place) for n in nodes], place, dtype))


def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices of an axis."""
    (n,) = checked("unstack", x)
    if not n.ndim:
        raise ValueError(
            "Unstack requires arrays with rank > 0, however a scalar array was passed."
        )
    place = canonical_axis(axis, n.ndim)
    return tuple(
        finish(b.squeeze(b.slice_axis(n, place, i, i + 1), (place,))) for i in range(n.shape[place])
    )


def vstack(tup: Any, dtype: Any = None) -> Array:
    """Joined along the first axis; vectors are rows."""
    return finish(concat_nodes("vstack", [two_axes(n) for n in sequence("vstack", tup)], 0, dtype))


def hstack(tup: Any, dtype: Any = None) -> Array:
    """Joined along the second axis (the first, for vectors)."""
    nodes = [n if n.ndim else b.reshape(n, (1,)) for n in sequence("hstack", tup)]
    return finish(concat_nodes("hstack", nodes, 0 if nodes and nodes[0].ndim == 1 else 1, dtype))


def dstack(tup: Any, dtype: Any = None) -> Array:
    """Joined along the third axis."""
    return finish(
        concat_nodes("dstack", [three_axes(n) for n in sequence("dstack", tup)], 2, dtype)
    )


def column_stack(tup: Any) -> Array:
    """Vectors as columns, matrices side by side."""
    nodes = [
        n if n.ndim >= 2 else b.reshape(n, (n.aval.size, 1)) for n in sequence("column_stack", tup)
    ]
    return finish(concat_nodes("column_stack", nodes, 1))


def block(arrays: Any) -> Array:
    """A matrix from nested lists of blocks; the innermost lists join along the last axis."""

    def depth(x: Any) -> int:
        if not isinstance(x, list):
            return 0
        if not x:
            raise ValueError("jax.numpy.block does not allow empty list arguments")
        depths = {depth(i) for i in x}
        if len(depths) > 1:
            raise ValueError("Mismatched list depths in jax.numpy.block")
        return 1 + depths.pop()

    levels = depth(arrays)

    def leaves(x: Any) -> list[UOp]:
        if isinstance(x, list):
            return [n for i in x for n in leaves(i)]
        if isinstance(x, tuple):
            raise ValueError(f"jax.numpy.block does not allow tuples, got {x}")
        return checked("block", x)

    rank = max(levels, *(n.ndim for n in leaves(arrays)))

    def join(x: Any, level: int) -> UOp:
        if isinstance(x, list):
            parts = [join(i, level + 1) for i in x]
            return concat_nodes("block", parts, -(levels - level))
        (n,) = checked("block", x)
        return b.reshape(n, (1,) * (rank - n.ndim) + n.shape)

    return finish(join(arrays, 0))


def append(arr: ArrayLike, values: ArrayLike, axis: int | None = None) -> Array:
    """`values` joined to the end of `arr` (both flattened if axis is None)."""
    if axis is None:
        nodes = [b.reshape(n, (n.aval.size,)) for n in checked("append", arr, values)]
        return finish(concat_nodes("append", nodes, 0))
    return concatenate([arr, values], axis)


# --- splitting ----------------------------------------------------------------------------------


def split_points(name: str, size: int, sections: Any, exact: bool) -> list[int]:
    """Borders between the parts."""
    if isinstance(sections, (int, np.integer)):
        count = int(sections)
        if count <= 0:
            raise ValueError("number sections must be larger than 0.")
        each, rest = divmod(size, count)
        if is_symbolic(rest):
            raise InconclusiveDimensionOperation(
                f"{name}: whether an axis of size {size} has {count} equal parts depends on its size, "
                f"{describe(size)}.\n  Dim(..., multiple_of={count}) says that it has."
            )
        if rest and exact:
            raise ValueError(f"array split does not result in an equal division: rest is {rest}")
        sizes = [each + 1] * rest + [each] * (count - rest)
        return [0, *accumulate(sizes)]
    points = [as_size(p, "each element of indices_or_sections") for p in positions_of(sections)]
    limited = [minimum(maximum(p + size if p < 0 else p, 0), size) for p in points]
    return [0, *limited, size]


def positions_of(sections: Any) -> Sequence[Any]:
    """Where to split, as a sequence. Raises: ValueError for what is none."""
    if isinstance(sections, (tuple, list)):
        return sections
    if not hasattr(sections, "ndim") or sections.ndim != 1:
        raise ValueError(
            "indices_or_sections must be an integer or a 1D sequence of integers, got "
            f"{describe_value(sections)}."
        )
    return np.asarray(sections).tolist()  # type: ignore[no-any-return]


def split_along(name: str, ary: ArrayLike, sections: Any, axis: int, exact: bool) -> list[Array]:
    """Parts of an axis."""
    (n,) = checked(name, ary)
    place = canonical_axis(axis, n.ndim)
    points = split_points(name, n.shape[place], sections, exact)
    return [
        finish(b.slice_axis(n, place, start, maximum(start, stop)))
        for start, stop in zip(points[:-1], points[1:], strict=True)
    ]


def split(ary: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """Equal parts, or parts between the given positions."""
    return split_along("split", ary, indices_or_sections, axis, True)


def array_split(ary: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """Parts that are as equal as possible, or parts between the given positions."""
    return split_along("array_split", ary, indices_or_sections, axis, False)


def vsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Array]:
    """`split` along the first axis."""
    return split_along("vsplit", ary, indices_or_sections, 0, True)


def hsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Array]:
    """`split` along the second axis (the first, for vectors)."""
    (n,) = checked("hsplit", ary)
    return split_along("hsplit", ary, indices_or_sections, 0 if n.ndim == 1 else 1, True)


def dsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Array]:
    """`split` along the third axis."""
    return split_along("dsplit", ary, indices_or_sections, 2, True)


# --- repeating ----------------------------------------------------------------------------------


def tile_node(n: UOp, reps: tuple[int, ...]) -> UOp:
    """An array repeated as a block along each axis: one EXPAND between two reshapes."""
    rank = max(n.ndim, len(reps))
    shape = (1,) * (rank - n.ndim) + n.shape
    times = (1,) * (rank - len(reps)) + reps
    wide = tuple(v for t, s in zip(times, shape, strict=True) for v in (t, s))
    spread = b.expand(b.reshape(n, shape), wide, tuple(range(1, 2 * rank, 2)))
    return b.reshape(spread, tuple(t * s for t, s in zip(times, shape, strict=True)))


def tile(A: ArrayLike, reps: Any) -> Array:
    """`A` repeated as a block, `reps` times along each axis."""
    (n,) = checked("tile", A)
    times = canonical_shape(reps)
    return finish(tile_node(n, times))


def repeat(
    a: ArrayLike,
    repeats: ArrayLike,
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
    out_sharding: Any = None,
) -> Array:
    """Each element repeated in place, a fixed number of times or one number per element.

    Under jit an array of repeats needs `total_repeat_length`; what is missing repeats the last one.
    """
    (n,) = checked("repeat", a)
    if axis is None:
        n, axis = b.reshape(n, (n.aval.size,)), 0
    elif not n.ndim:
        n = b.reshape(n, (1,))
    place = canonical_axis(axis, n.ndim)
    size = n.shape[place]
    (counts,) = checked("repeat", repeats) if not isinstance(repeats, (list, tuple)) else [
        array_node(repeats, None)
    ]  # fmt: skip
    given = isinstance(repeats, (int, np.integer, DimExpr))
    if given or (not counts.ndim and total_repeat_length is None):
        times = as_size(repeats, "repeats")
        if times < 0:
            raise ValueError("repeats may not contain negative values.")
        spread = (*n.shape[: place + 1], times, *n.shape[place + 1 :])
        dims = tuple(i for i in range(n.ndim + 1) if i != place + 1)
        shape = (*n.shape[:place], size * times, *n.shape[place + 1 :])
        out = b.reshape(b.expand(n, spread, dims), shape)
        if total_repeat_length is None:
            return finish(out)
        counts = lift(np.full((size,), times))
    counts = b.broadcast(counts, (size,)) if counts.ndim == 0 or counts.shape == (1,) else counts
    if counts.shape != (size,):
        raise ValueError(
            f"operands could not be broadcast together: repeats has shape {counts.shape}, the axis "
            f"has size {size}"
        )
    known = concrete(finish(counts))
    if known is not None and total_repeat_length is None:
        chosen = finish(lift(np.repeat(np.arange(size, dtype=np.int32), known)))
    elif total_repeat_length is None:
        raise ConcretizationTypeError(
            Array(counts),
            "  When jit-compiling jnp.repeat, the total number of repeats must be static. To fix "
            "this, either specify a static value for `repeats`, or pass a static value to "
            "`total_repeat_length`.",
        )
    else:
        # Output place p belongs to the number of elements whose repeats end at or before p.
        ends = b.prefix("add", b.cast(counts, b.INT32), 0)
        total = as_int(total_repeat_length, "total_repeat_length")
        places = b.expand(b.iota((total,), 0), (total, size), (0,))
        passed = b.le(b.expand(ends, (total, size), (1,)), places)
        number = b.sum_(b.cast(passed, b.INT32), (1,))
        chosen = finish(b.min_(number, b.like(number, max(size - 1, 0))))
    return finish(gather_node(n, (slice(None),) * place + (chosen,), mode="clip"))


def resize(a: ArrayLike, new_shape: Any) -> Array:
    """The flattened elements, repeated as often as needed, in a new shape."""
    (n,) = checked("resize", a)
    shape = canonical_shape(new_shape)
    wanted, have = math.prod(shape), n.aval.size
    if not wanted or not have:
        return finish(b.full(shape, b.like(n, 0)))
    flat = b.reshape(n, (have,))
    times = -(-wanted // have)
    return finish(b.reshape(b.slice_axis(tile_node(flat, (times,)), 0, 0, wanted), shape))


# --- reversing and rolling ----------------------------------------------------------------------


def flip(m: ArrayLike, axis: Axis = None) -> Array:
    """Axes reversed (all of them by default)."""
    (n,) = checked("flip", m)
    return finish(b.flip(n, canonical_axes(axis, n.ndim)))


def fliplr(m: ArrayLike) -> Array:
    """The second axis reversed."""
    (n,) = checked("fliplr", m)
    if n.ndim < 2:
        raise ValueError(f"Input must be >= 2-d; got {n.ndim}")
    return finish(b.flip(n, (1,)))


def flipud(m: ArrayLike) -> Array:
    """The first axis reversed."""
    (n,) = checked("flipud", m)
    return finish(b.flip(n, (canonical_axis(0, n.ndim),)))


def rot90(m: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """Rotated by k quarter turns in the plane of two axes."""
    (n,) = checked("rot90", m)
    first, second = canonical_axes(tuple(axes), n.ndim)
    turns = k % 4
    order = list(range(n.ndim))
    order[first], order[second] = second, first
    if turns == 0:
        return finish(n)
    if turns == 2:
        return finish(b.flip(n, (first, second)))
    if turns == 1:
        return finish(b.permute(b.flip(n, (second,)), order))
    return finish(b.flip(b.permute(n, order), (second,)))


def roll(a: ArrayLike, shift: Any, axis: Axis = None) -> Array:
    """Elements moved along axes, coming back in at the other end. The shift may be traced."""
    (n,) = checked("roll", a)
    if axis is None:
        flat = roll(finish(b.reshape(n, (n.aval.size,))), shift, 0)
        return finish(b.reshape(flat.node, n.shape))
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    if isinstance(shift, (tuple, list)):
        shifts = list(shift)
    elif np.ndim(shift):
        shifts = [shift[i] for i in range(np.shape(shift)[0])]
    else:
        shifts = [shift]
    if len(shifts) != len(axes):
        if len(shifts) == 1:
            shifts = shifts * len(axes)
        elif len(axes) == 1:
            axes = axes * len(shifts)
        else:
            raise ValueError(
                f"shift and axis must be scalars or of equal length, got {len(shifts)} and "
                f"{len(axes)}"
            )
    for s, at in zip(shifts, axes, strict=True):
        n = roll_one(n, s, canonical_axis(at, n.ndim))
    return finish(n)


def roll_one(n: UOp, shift: Any, axis: int) -> UOp:
    """One axis rolled: a slice of the array beside itself."""
    size = n.shape[axis]
    if size == 0:
        return n
    if isinstance(shift, (int, np.integer, DimExpr)):
        k = as_size(shift) % size
        if not k:
            return n
        tail = b.slice_axis(n, axis, size - k, size)
        return b.concat([tail, b.slice_axis(n, axis, 0, size - k)], axis)
    (s,) = checked("roll", shift)
    s = b.cast(s, b.INT32)
    rest = UOp(Op.REM, (s, b.like(s, size)))
    k_node = b.where(b.lt(rest, b.like(rest, 0)), b.add(rest, b.like(rest, size)), rest)
    start = b.sub(b.like(k_node, size), k_node)
    zero = b.like(start, 0)
    starts = [start if i == axis else zero for i in range(n.ndim)]
    return b.dynamic_slice(b.concat([n, n], axis), starts, n.shape)


# --- padding ------------------------------------------------------------------------------------

PadWidths = list[tuple[int, int]]


def pad_widths(pad_width: Any, ndim: int) -> PadWidths:
    """(before, after) per axis."""
    if isinstance(pad_width, dict):
        table: dict[int, Any] = {canonical_axis(k, ndim): v for k, v in pad_width.items()}
        both = [table.get(i, 0) for i in range(ndim)]
        return [
            (as_size(v), as_size(v)) if np.ndim(v) == 0 else (as_size(v[0]), as_size(v[1]))
            for v in both
        ]
    widths = np.asarray(pad_width)
    if widths.dtype.kind not in "iub" and not any(map(is_symbolic, widths.flat)):
        raise TypeError("`pad_width` must be of integral type.")
    try:
        pairs = np.broadcast_to(widths, (ndim, 2)).tolist()
    except ValueError:
        raise ValueError(
            f"jnp.pad: pad_width with shape {widths.shape} could not be broadcast to ({ndim}, 2)"
        ) from None
    return [(as_size(lo), as_size(hi)) for lo, hi in pairs]


PAD_OPTIONS: dict[str, tuple[str, ...]] = {
    "constant": ("constant_values",),
    "empty": (),
    "edge": (),
    "wrap": (),
    "linear_ramp": ("end_values",),
    "maximum": ("stat_length",),
    "mean": ("stat_length",),
    "median": ("stat_length",),
    "minimum": ("stat_length",),
    "reflect": ("reflect_type",),
    "symmetric": ("reflect_type",),
}


def pad(array: ArrayLike, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Array:
    """`array` with a border. `mode`: constant, edge, reflect, symmetric, wrap, linear_ramp, empty,
    maximum, minimum, mean, median, or a function as NumPy's."""
    (n,) = checked("pad", array)
    widths = pad_widths(pad_width, n.ndim)
    if any_negative := [w for w in widths if w[0] < 0 or w[1] < 0]:
        raise ValueError(f"index can't contain negative values, got {any_negative[0]}")
    if callable(mode):
        return pad_by_function(n, widths, mode, kwargs)
    if mode not in PAD_OPTIONS:
        raise NotImplementedError(f"Unimplemented padding mode '{mode}' for np.pad.")
    unknown = set(kwargs) - set(PAD_OPTIONS[mode])
    if unknown:
        raise ValueError(f"unsupported keyword arguments for mode '{mode}': {unknown}")
    if mode == "constant":
        return finish(pad_constant(n, widths, kwargs.get("constant_values", 0)))
    if mode == "empty":
        return finish(b.pad(n, [(lo, hi, 0) for lo, hi in widths]))
    for axis, (lo, hi) in enumerate(widths):
        if not lo and not hi:
            continue
        if n.shape[axis] == 0:
            raise ValueError(
                f"Cannot apply '{mode}' padding to empty axis {axis} of an array of shape {n.shape}"
            )
        if mode == "edge":
            n = pad_edge(n, axis, lo, hi)
        elif mode == "wrap":
            n = pad_wrap(n, axis, lo, hi)
        elif mode in ("reflect", "symmetric"):
            n = pad_mirror(n, axis, lo, hi, mode, kwargs.get("reflect_type", "even"))
        elif mode == "linear_ramp":
            n = pad_ramp(n, axis, lo, hi, kwargs.get("end_values", 0))
        else:
            n = pad_statistic(n, axis, lo, hi, mode, kwargs.get("stat_length"))
    return finish(n)


def per_side(values: Any, ndim: int, dtype: Any) -> list[tuple[UOp, UOp]]:
    """A value per axis and side, from NumPy's shorthand."""
    v = array_node(values, None)
    v = b.cast(v, dtype)
    pairs = b.broadcast(v, (ndim, 2))

    def at(i: int, j: int) -> UOp:
        return b.reshape(b.slice_(pairs, (i, j), (i + 1, j + 1)), ())

    return [(at(i, 0), at(i, 1)) for i in range(ndim)]


def pad_constant(n: UOp, widths: PadWidths, values: Any) -> UOp:
    """A constant border; one PAD where all sides have one value."""
    if np.ndim(values) == 0 and not isinstance(values, (list, tuple)):
        (value,) = checked("pad", values)
        fill = b.cast(value, n.dtype, n.aval.weak_type)
        return b.pad(n, [(lo, hi, 0) for lo, hi in widths], fill)
    for axis, ((lo, hi), (low, high)) in enumerate(
        zip(widths, per_side(values, n.ndim, n.dtype), strict=True)
    ):
        none = [(0, 0, 0)] * n.ndim
        n = b.pad(n, [*none[:axis], (lo, 0, 0), *none[axis + 1 :]], low)
        n = b.pad(n, [*none[:axis], (0, hi, 0), *none[axis + 1 :]], high)
    return n


def repeated(part: UOp, axis: int, count: int) -> list[UOp]:
    """A part of size 1 along an axis, `count` times; nothing for 0."""
    if not count:
        return []
    shape = (*part.shape[:axis], count, *part.shape[axis + 1 :])
    return [b.expand(part, shape, tuple(range(part.ndim)))]


def pad_edge(n: UOp, axis: int, lo: int, hi: int) -> UOp:
    """The border repeats the outermost elements."""
    size = n.shape[axis]
    first, last = b.slice_axis(n, axis, 0, 1), b.slice_axis(n, axis, size - 1, size)
    return b.concat([*repeated(first, axis, lo), n, *repeated(last, axis, hi)], axis)


def pad_wrap(n: UOp, axis: int, lo: int, hi: int) -> UOp:
    """The array repeats itself."""
    size = n.shape[axis]
    copies = (-(-lo // size), -(-hi // size))
    wide = b.concat([n] * (copies[0] + 1 + copies[1]), axis)
    start = copies[0] * size - lo
    return b.slice_axis(wide, axis, start, start + lo + size + hi)


def pad_mirror(n: UOp, axis: int, lo: int, hi: int, mode: str, kind: str) -> UOp:
    """The array is mirrored at its ends, as often as needed; "odd" turns it about the end value."""
    if kind not in ("even", "odd"):
        raise ValueError("reflect_type must be 'even' or 'odd'.")
    skip = 1 if mode == "reflect" else 0
    size = n.shape[axis]
    if size == 1 and skip:
        return pad_edge(n, axis, lo, hi)
    for before in (True, False):
        left = lo if before else hi
        while left:
            now = n.shape[axis]
            count = min(left, now - skip)
            end = b.slice_axis(n, axis, 0, 1) if before else b.slice_axis(n, axis, now - 1, now)
            start = skip if before else now - skip - count
            mirrored = b.flip(b.slice_axis(n, axis, start, start + count), (axis,))
            if kind == "odd":
                (wide,) = repeated(end, axis, count)
                mirrored = b.sub(b.add(wide, wide), mirrored)
            n = b.concat([mirrored, n] if before else [n, mirrored], axis)
            left -= count
    return n


def pad_ramp(n: UOp, axis: int, lo: int, hi: int, end_values: Any) -> UOp:
    """The border falls linearly to an end value."""
    low, high = per_side(end_values, n.ndim, n.dtype)[axis]
    size = n.shape[axis]

    def ramp(outer: UOp, inner: UOp, count: int) -> UOp:
        edge = b.squeeze(inner, (axis,))
        made = linspace(
            finish(b.fill_to(outer, edge.shape)),
            finish(edge),
            count,
            endpoint=False,
            dtype=n.dtype,
            axis=axis,
        ).node
        return b.cast_like(made, n.aval)

    parts = [n]
    if lo:
        parts.insert(0, ramp(low, b.slice_axis(n, axis, 0, 1), lo))
    if hi:
        parts.append(b.flip(ramp(high, b.slice_axis(n, axis, size - 1, size), hi), (axis,)))
    return b.concat(parts, axis)


def pad_statistic(n: UOp, axis: int, lo: int, hi: int, mode: str, stat_length: Any) -> UOp:
    """The border is the maximum, minimum, mean or median of the (outermost) elements."""
    functions: dict[str, Callable[..., Array]] = {
        "maximum": reductions.max,
        "minimum": reductions.min,
        "mean": reductions.mean,
        "median": statistics.median,
    }
    size = n.shape[axis]
    if stat_length is None:
        lengths = (size, size)
    else:
        lengths = pad_widths(stat_length, n.ndim)[axis]
        if min(lengths) <= 0:
            raise ValueError(f"stat_length of {min(lengths)} must be positive")
        lengths = (min(lengths[0], size), min(lengths[1], size))

    def statistic(start: int, stop: int) -> UOp:
        of = finish(b.slice_axis(n, axis, start, stop))
        out = functions[mode](of, axis=axis, keepdims=True).node
        if dtypes.is_integer(n.dtype) and dtypes.is_inexact(out.dtype):
            out = UOp(Op.ROUND, (out,))
        return b.cast_like(out, n.aval)

    before = repeated(statistic(0, lengths[0]), axis, lo)
    after = repeated(statistic(size - lengths[1], size), axis, hi)
    return b.concat([*before, n, *after], axis)


def pad_by_function(n: UOp, widths: PadWidths, function: Any, kwargs: dict[str, Any]) -> Array:
    """NumPy's protocol: `function(vector, (lo, hi), axis, kwargs)` returns the padded vector."""
    from tinyjax.numpy.functional import apply_along_axis  # it stands on this file

    out = finish(b.pad(n, [(lo, hi, 0) for lo, hi in widths]))
    for axis, pair in enumerate(widths):
        out = apply_along_axis(function, axis, out, pair, axis, kwargs)
    return out


# --- inserting and deleting ---------------------------------------------------------------------


def delete(
    arr: ArrayLike, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False
) -> Array:
    """Without the elements at these positions: an int, a slice, indices or a mask."""
    (n,) = checked("delete", arr)
    if axis is None:
        n, axis = b.reshape(n, (n.aval.size,)), 0
    place = canonical_axis(axis, n.ndim)
    size = n.shape[place]
    lead = (slice(None),) * place
    if isinstance(obj, slice):
        kept = np.delete(np.arange(size), obj)
        return finish(gather_node(n, (*lead, kept)))
    where = array_node(obj, None)
    if not dtypes.is_integer(where.dtype) and where.dtype != np.bool_ and where.aval.size:
        raise ValueError(
            f"np.delete(arr, obj): got obj.dtype={where.dtype.name}; must be integer or bool."
        )
    if isinstance(obj, (int, np.integer)) and not -size <= obj < size:
        raise IndexError(f"index {obj} is out of bounds for axis {place} with size {size}")
    known = concrete(finish(where) if where.src else Array(where))
    if known is not None:
        if known.dtype == np.bool_:
            if known.shape != (size,):
                raise ValueError(
                    f"np.delete(arr, obj): for boolean indices, obj must be one-dimensional with "
                    f"length matching specified axis; got {known.shape}, expected ({size},)."
                )
            return finish(gather_node(n, (*lead, np.flatnonzero(~known))))
        if known.size == 0:
            return finish(n)
        if known.ndim == 0:
            i = int(known)
            if not -size <= i < size:
                raise IndexError(f"index {i} is out of bounds for axis {place} with size {size}")
            i %= size
            parts = [b.slice_axis(n, place, 0, i), b.slice_axis(n, place, i + 1, size)]
            return finish(b.concat(parts, place))
        inside = known[(known >= -size) & (known < size)]
        return finish(gather_node(n, (*lead, np.delete(np.arange(size), inside))))
    if where.dtype == np.bool_:
        raise_traced_delete(where)
    if where.ndim and not assume_unique_indices and where.aval.size > 1:
        raise_traced_delete(where)
    at = b.reshape(b.cast(where, b.INT32), (where.aval.size,))
    at = b.where(b.lt(at, b.like(at, 0)), b.add(at, b.like(at, size)), at)
    sorted_at = sort(finish(at)).node
    count = sorted_at.shape[0]
    # Kept element k sits after the deleted ones whose position less their rank is at most k.
    shifted = b.sub(sorted_at, b.iota((count,), 0))
    wide = (size - count, count)
    places = b.expand(b.iota((size - count,), 0), wide, (0,))
    before = b.le(b.expand(shifted, wide, (1,)), places)
    chosen = b.add(b.iota((size - count,), 0), b.sum_(b.cast(before, b.INT32), (1,)))
    return finish(gather_node(n, (*lead, finish(chosen)), mode="clip"))


def raise_traced_delete(where: UOp) -> None:
    """The size of the result would depend on values."""
    raise ConcretizationTypeError(
        Array(where),
        "  The size of jnp.delete's result depends on how many different positions are deleted: "
        "pass static positions, or assume_unique_indices=True.",
    )


def insert(arr: ArrayLike, obj: Any, values: ArrayLike, axis: int | None = None) -> Array:
    """With `values` inserted before the given positions."""
    a, v = checked("insert", arr, values)
    if axis is None:
        a, axis = b.reshape(a, (a.aval.size,)), 0
    place = canonical_axis(axis, a.ndim)
    size = a.shape[place]
    if isinstance(obj, slice):
        where = lift(np.arange(size)[obj])
    else:
        where = array_node(obj, None)
    if not dtypes.is_integer(where.dtype) and where.dtype != np.bool_ and where.aval.size:
        raise ValueError(
            f"jnp.insert(): index array must be integer typed; got {where.aval.str_short()}."
        )
    if where.dtype == np.bool_:
        known = concrete(finish(where) if where.src else Array(where))
        if known is None:
            raise_traced_delete(where)
        assert known is not None
        where = lift(np.flatnonzero(known))
    if where.ndim > 1:
        raise ValueError("jnp.insert(): obj must be a slice, a one-dimensional array, or a scalar")
    many = where.ndim == 1
    at = b.reshape(b.cast(where, b.INT32), (where.aval.size,))
    at = b.where(b.lt(at, b.like(at, 0)), b.add(at, b.like(at, size)), at)
    v = b.reshape(v, (1,) * (a.ndim - v.ndim) + v.shape)
    if not many and v.ndim == a.ndim and place == 0 and np.ndim(values) == a.ndim:
        pass
    elif not many and v.ndim == a.ndim:
        v = b.moveaxis(v, 0, place)
    count = at.shape[0]
    if count == 1 and v.shape[place] > 1:
        count = v.shape[place]
        at = b.expand(at, (count,), (0,))
    block = (*a.shape[:place], count, *a.shape[place + 1 :])
    v = b.cast(b.broadcast(v, block), a.dtype, a.aval.weak_type)
    order = argsort(finish(at)).node
    at = gather_node(at, finish(order))
    v = gather_node(v, (slice(None),) * place + (finish(order),))
    target = finish(b.add(at, b.iota((count,), 0)))
    total = size + count
    is_new = scatter_node(
        b.full((total,), b.scalar(False, b.BOOL)), target, True, "set", unique_indices=True
    )
    lead = (slice(None),) * place
    out = b.full((*a.shape[:place], total, *a.shape[place + 1 :]), b.like(a, 0))
    out = scatter_node(out, (*lead, target), finish(v), "set", unique_indices=True)
    # Old element i moves by the number of new ones before it.
    old_rank = b.sub(b.iota((total,), 0), b.prefix("add", b.cast(is_new, b.INT32), 0))
    old = gather_node(a, (*lead, finish(b.max_(old_rank, b.like(old_rank, 0)))), mode="clip") if (
        size
    ) else out  # fmt: skip
    mask = b.expand(is_new, out.shape, (place,))
    return finish(b.where(mask, out, old))


def trim_zeros(filt: ArrayLike, trim: str = "fb", axis: int | Sequence[int] | None = None) -> Array:
    """Without zeros at the front and back, along one axis or all (values must be known)."""
    (n,) = checked("trim_zeros", filt)
    known = concrete(finish(truth(n)))
    if known is None:
        raise ConcretizationTypeError(
            finish(n), "  The size of jnp.trim_zeros's result depends on values."
        )
    starts, stops = [0] * n.ndim, list(n.shape)
    found = np.argwhere(known)
    for i in canonical_axes(axis, n.ndim):
        low, high = (found[:, i].min(), found[:, i].max() + 1) if len(found) else (0, 0)
        starts[i] = int(low) if "f" in trim.lower() else 0
        stops[i] = max(int(high) if "b" in trim.lower() else n.shape[i], starts[i])
        if not len(found):
            starts[i] = stops[i] = 0
    return finish(b.slice_(n, tuple(starts), tuple(stops)))
