"""gather and scatter of `lax`, in XLA's general form with JAX's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dimension_numbers import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
)
from tinyjax.core.infos import GatherInfo, ScatterInfo
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, lift, lift_for
from tinyjax.lax.elementwise import accept, same_dtypes

ArrayLike = Any


def ints(xs: Sequence[int]) -> tuple[int, ...]:
    """Python integers."""
    return tuple(int(x) for x in xs)


def index_node(indices: ArrayLike, name: str) -> UOp:
    """Indices as an integer node."""
    n = lift(indices)
    if not dtypes.is_integer(n.dtype):
        raise ValueError(
            f"{name}: indices must have an integer type, got {n.aval.str_short()}.\n"
            "  Convert them with .astype(int)."
        )
    return n


def gather(
    operand: ArrayLike,
    start_indices: ArrayLike,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: Any = None,
    fill_value: Any = None,
) -> Array:
    """Slices of the operand at run-time starts.

    Out of bounds: mode "clip" (default) moves the slice inside, "fill" gives `fill_value` (by
    default
    NaN for floats, the least value for signed integers, the greatest for unsigned, True for bools).
    """
    d = dimension_numbers
    if mode is None:
        mode = "clip" if fill_value is None else "fill"
    info = GatherInfo(
        ints(d.offset_dims),
        ints(d.collapsed_slice_dims),
        ints(d.start_index_map),
        ints(slice_sizes),
        ints(d.operand_batching_dims),
        ints(d.start_indices_batching_dims),
        GatherScatterMode.from_any(mode).value,
        indices_are_sorted,
        unique_indices,
    )
    x = lift(operand)
    fill = None
    if info.mode == "fill" and fill_value is not None:
        fill = b.cast(lift_for(fill_value, x.dtype), x.dtype)
    return finish(b.gather(x, index_node(start_indices, "gather"), info, fill))


def _scatter(kind: str, name: str, doc: str) -> Callable[..., Array]:
    def apply(
        operand: ArrayLike,
        scatter_indices: ArrayLike,
        updates: ArrayLike,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
    ) -> Array:
        d = dimension_numbers
        info = ScatterInfo(
            kind,
            ints(d.update_window_dims),
            ints(d.inserted_window_dims),
            ints(d.scatter_dims_to_operand_dims),
            ints(d.operand_batching_dims),
            ints(d.scatter_indices_batching_dims),
            GatherScatterMode.from_any(mode).value,
            indices_are_sorted,
            unique_indices,
        )
        x, u = lift(operand), lift(updates)
        accept(name, x, u)
        x, u = same_dtypes(name, [x, u])
        return finish(b.scatter(x, index_node(scatter_indices, name), u, info))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{doc} Updates out of bounds are dropped (mode fill) or moved inside (clip)."
    return apply


scatter = _scatter(
    "set", "scatter", "Write updates at run-time indices; the last of duplicates wins."
)
scatter_add = _scatter("add", "scatter_add", "Add updates at run-time indices.")
scatter_mul = _scatter("mul", "scatter_mul", "Multiply by updates at run-time indices.")
scatter_min = _scatter("min", "scatter_min", "Minimum with updates at run-time indices.")
scatter_max = _scatter("max", "scatter_max", "Maximum with updates at run-time indices.")


def scatter_sub(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Array:
    """Subtract updates at run-time indices. Updates out of bounds: as in `scatter_add`."""
    x, u = lift(operand), lift(updates)
    accept("scatter_sub", x, u)
    return scatter_add(
        finish(x),
        scatter_indices,
        finish(b.neg(u)),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )


def scatter_apply(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    func: Callable[[Array], Any],
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Sequence[int] = (),
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Array:
    """`func` applied to the elements at run-time indices (once, where indices repeat)."""
    x, indices = lift(operand), index_node(scatter_indices, "scatter_apply")
    touched = scatter(
        finish(b.full(x.shape, b.scalar(0, b.INT32))),
        finish(indices),
        finish(b.full(ints(update_shape), b.scalar(1, b.INT32))),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    ).node
    changed = b.cast(lift(func(finish(x))), x.dtype)
    return finish(b.where(b.ne(touched, b.like(touched, 0)), changed, x))


def index_take(src: ArrayLike, idxs: Sequence[ArrayLike], axes: Sequence[int]) -> Array:
    """Slices of `src` at positions given for each of `axes`."""
    x = lift(src)
    columns = [index_node(i, "index_take") for i in idxs]
    vectors = b.concat([b.unsqueeze(c, c.ndim) for c in columns], columns[0].ndim)
    places = ints(axes)
    info = GatherInfo(
        offset_dims=tuple(range(1, x.ndim - len(places) + 1)),
        collapsed_slice_dims=places,
        start_index_map=places,
        slice_sizes=tuple(1 if i in places else s for i, s in enumerate(x.shape)),
        mode="clip",
    )
    return finish(b.gather(x, vectors, info))
