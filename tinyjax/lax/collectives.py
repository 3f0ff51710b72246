"""Collectives over named axes: psum, all_gather, ppermute, ... and axis_index.

An axis name is opened by `vmap(axis_name=...)`. A collective takes the axis' index variable as a
further operand, so that the node mentions the axis wherever it is staged (jit, scan, custom rules),
and vmap finds it even if nothing else of it is batched.

The transpose of psum is psum, as in JAX for vmapped axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import aval
from tinyjax.core.errors import AxisError
from tinyjax.core.ops import Op
from tinyjax.core.shapes import canonical_axis
from tinyjax.core.tree import tree_map
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.devices import device_put
from tinyjax.engine.values import finish, lift
from tinyjax.interpreters.trace import state

AxisName = Any


def open_axis(name: AxisName) -> tuple[int, UOp]:
    """Size and index variable of an axis. Raises: `AxisError` (NameError) listing the open ones."""
    try:
        found = state.axes.get(name)
    except TypeError:
        found = None
    if found is None:
        listed = ", ".join(map(repr, state.axes)) or "none"
        raise AxisError(
            f"Found an unbound axis name: {name}. Open axes here: {listed}.\n"
            f"  Name the axis where it is mapped: jax.vmap(f, axis_name={name!r})."
        )
    return found  # type: ignore[no-any-return]


def names_of(axis_name: AxisName) -> tuple[AxisName, ...]:
    """One name or several."""
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


def no_groups(name: str, groups: Any) -> None:
    """Groups of participants are for meshes."""
    if groups is not None:
        raise NotImplementedError(
            f"{name}: axis_index_groups is not supported over vmapped axes. Reshape the axis into "
            "two "
            "and name both."
        )


def axis_size(axis_name: AxisName) -> int:
    """Number of participants of an axis (of all, for several)."""
    return b.prod([open_axis(name)[0] for name in names_of(axis_name)])


def axis_index(axis_name: AxisName) -> Array:
    """Which participant this is, int32; row-major over several axes."""
    out: UOp | None = None
    for name in names_of(axis_name):
        size, index = open_axis(name)
        out = index if out is None else b.add(b.mul(out, b.like(out, size)), index)
    assert out is not None
    return finish(out)


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """A tree that lies as `shardings` says: `device_put` outside of a trace, and itself inside."""
    return device_put(x, shardings)


def all_reduce(kind: str, x: Any, axis_name: AxisName) -> Array:
    """Fold over named axes, and over positional ones (integers)."""
    n = lift(x)
    if n.dtype == np.bool_ and kind == "add":
        n = b.cast(n, dtypes.default_int_dtype())
    names = names_of(axis_name)
    positions = sorted(canonical_axis(i, n.ndim) for i in names if isinstance(i, int))
    named = tuple(i for i in names if not isinstance(i, int))
    n = b.reduce(kind, n, positions)
    if not named:
        return finish(n)
    indices = [open_axis(name)[1] for name in named]
    return finish(UOp(Op.ALL_REDUCE, (n, *indices), (kind, named)))


def psum(x: Any, axis_name: AxisName, *, axis_index_groups: Any = None) -> Any:
    """Sum of a tree over mapped axes; every participant gets the result.

    A Python number is the same for all: it is multiplied by the size, and stays a number.
    Shapes and dtypes: unchanged (bools count). Raises: `AxisError` for a name that is not open.
    """
    no_groups("psum", axis_index_groups)

    def one(leaf: Any) -> Any:
        if isinstance(leaf, (int, float, complex)) and not isinstance(leaf, np.generic):
            return leaf * axis_size(axis_name)
        return all_reduce("add", leaf, axis_name)

    return tree_map(one, x)


def pmean(x: Any, axis_name: AxisName, *, axis_index_groups: Any = None) -> Any:
    """Mean of a tree over mapped axes."""
    total = psum(x, axis_name, axis_index_groups=axis_index_groups)
    count = psum(1, axis_name)

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Array):
            return leaf / count
        n = leaf.node
        if not dtypes.is_inexact(n.dtype):
            n = b.cast(n, dtypes.default_float_dtype())
        return finish(b.div(n, b.like(n, count)))

    return tree_map(one, total)


def pmax(x: Any, axis_name: AxisName, *, axis_index_groups: Any = None) -> Any:
    """Maximum of a tree over mapped axes."""
    no_groups("pmax", axis_index_groups)
    return tree_map(lambda leaf: all_reduce("max", leaf, axis_name), x)


def pmin(x: Any, axis_name: AxisName, *, axis_index_groups: Any = None) -> Any:
    """Minimum of a tree over mapped axes."""
    no_groups("pmin", axis_index_groups)
    return tree_map(lambda leaf: all_reduce("min", leaf, axis_name), x)


def exchange(op: Op, x: Any, axis_name: AxisName, arg: Callable[[UOp, int], Any]) -> Any:
    """A moving collective on each leaf; `arg(node, size)` follows the name."""
    size, index = open_axis(axis_name)

    def one(leaf: Any) -> Array:
        n = lift(leaf)
        return finish(UOp(op, (n, index), (axis_name, *arg(n, size))))

    return tree_map(one, x)


def single(name: str, axis_name: AxisName) -> AxisName:
    """These take one axis."""
    names = names_of(axis_name)
    if len(names) != 1:
        raise NotImplementedError(
            f"{name} over several axes at once is not supported.\n  Apply it to one after the other."
        )
    return names[0]


GATHER_TO = "varying", "invarying", "reduced"


def all_gather(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: Any = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
) -> Any:
    """Values of all participants, stacked along a new axis (joined along an old one if tiled).

    `to` says what the type checks of a mesh program are told of the result ("varying", "invarying",
    "reduced"). A mapped axis has no such checks: the values are the same for each.
    Raises: ValueError for another `to`.
    """
    if to not in GATHER_TO:
        raise ValueError(
            f"Got unexpected `to` value {to!r} for `jax.lax.all_gather`. Allowed `to` values are: "
            f"{', '.join(map(repr, GATHER_TO))}"
        )
    no_groups("all_gather", axis_index_groups)

    def arg(n: UOp, size: int) -> tuple[Any, ...]:
        place = axis % (n.ndim if tiled else n.ndim + 1)
        shape = list(n.shape)
        if tiled:
            shape[place] *= size
        else:
            shape.insert(place, size)
        return place, bool(tiled), aval(tuple(shape), n.dtype, n.aval.weak_type)

    return exchange(Op.ALL_GATHER, x, single("all_gather", axis_name), arg)


def psum_scatter(
    x: Any,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Any = None,
    tiled: bool = False,
) -> Any:
    """Sum over an axis of which each participant keeps its part of a dimension."""
    no_groups("psum_scatter", axis_index_groups)

    def arg(n: UOp, size: int) -> tuple[Any, ...]:
        place = canonical_axis(scatter_dimension, n.ndim, "scatter_dimension")
        have = n.shape[place]
        if have % size if tiled else have != size:
            raise ValueError(
                f"reduce_scatter operand scatter dimension size {have} must "
                f"{'be divisible by' if tiled else 'match'} the size {size} of axis "
                f"{axis_name!r}: got shape {n.shape}.\n{fitting_size(place, have, size, tiled)}"
            )
        middle = (have // size,) if tiled else ()
        shape = (*n.shape[:place], *middle, *n.shape[place + 1 :])
        return place, bool(tiled), aval(shape, n.dtype, n.aval.weak_type)

    return exchange(Op.REDUCE_SCATTER, x, single("psum_scatter", axis_name), arg)


def fitting_size(axis: int, have: int, size: int, tiled: bool) -> str:
    """What to do about an axis that cannot be dealt out to the participants of a mapped one."""
    if not tiled and have and have % size == 0:
        return "  Pass tiled=True to divide the axis."
    wanted = f"a multiple of {size}" if tiled else f"{size}"
    return f"  Pad or reshape the operand so that the size of its axis {axis} is {wanted}."


def ppermute(x: Any, axis_name: AxisName, perm: Sequence[tuple[int, int]]) -> Any:
    """Send to other participants: `perm` has (source, destination) pairs; the rest get zeros."""
    pairs = tuple((int(i), int(j)) for i, j in perm)
    size = open_axis(single("ppermute", axis_name))[0]
    sources, targets = [i for i, _ in pairs], [j for _, j in pairs]
    if len(set(sources)) != len(pairs) or len(set(targets)) != len(pairs):
        raise ValueError(
            f"ppermute sources and destinations must be unique, got {pairs}.\n"
            "  Let each send once and receive once; lax.all_gather gives all values to all."
        )
    if any(not 0 <= i < size for i in (*sources, *targets)):
        raise ValueError(
            f"ppermute got {pairs} for axis {axis_name!r} of size {size}.\n"
            f"  Sources and destinations are counted from 0 to {size - 1}."
        )
    return exchange(Op.PPERMUTE, x, single("ppermute", axis_name), lambda n, _: (pairs,))


def pshuffle(x: Any, axis_name: AxisName, perm: Sequence[int]) -> Any:
    """Participant i gets the value of participant perm[i]."""
    order = [int(i) for i in perm]
    size = axis_size(axis_name)
    if set(order) != set(range(size)):
        raise ValueError(
            f"`perm` does not represent a permutation: {order} for axis {axis_name!r} of size {size}.\n"
            f"  Name each of 0 to {size - 1} once."
        )
    return ppermute(x, axis_name, [(source, i) for i, source in enumerate(order)])


def all_to_all(
    x: Any,
    axis_name: AxisName,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Any = None,
    tiled: bool = False,
) -> Any:
    """Split an axis over participants, and join what they send along another.

    Untiled, `split_axis` has the size of the mapped axis, disappears, and a new axis appears at
    `concat_axis`; tiled, sizes are divided and multiplied.
    """
    no_groups("all_to_all", axis_index_groups)

    def arg(n: UOp, size: int) -> tuple[Any, ...]:
        split = canonical_axis(split_axis, n.ndim, "split_axis")
        concat = canonical_axis(concat_axis, n.ndim, "concat_axis")
        have = n.shape[split]
        if have % size if tiled else have != size:
            raise ValueError(
                f"all_to_all requires the size of the mapped axis axis_name to equal "
                f"x.shape[split_axis], but they are {size} and {have} respectively.\n"
                + fitting_size(split, have, size, tiled)
            )
        shape = list(n.shape)
        if tiled:
            shape[split] //= size
            shape[concat] *= size
        else:
            del shape[split]
            shape.insert(concat, size)
        return split, concat, bool(tiled), aval(tuple(shape), n.dtype, n.aval.weak_type)

    return exchange(Op.ALL_TO_ALL, x, single("all_to_all", axis_name), arg)


def pswapaxes(x: Any, axis_name: AxisName, axis: int, *, axis_index_groups: Any = None) -> Any:
    """The mapped axis and an axis of the value change places."""
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


def pbroadcast(x: Any, axis_name: AxisName, source: int) -> Any:
    """Everyone gets the value of participant `source`."""
    mine = axis_index(axis_name).node

    def one(leaf: Any) -> Array:
        n = lift(leaf)
        chosen = b.eq(mine, b.like(mine, int(source)))
        return all_reduce("add", finish(b.where(chosen, n, b.like(n, 0))), axis_name)

    return tree_map(one, x)
