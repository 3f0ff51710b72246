"""pmap: one program over a mapped axis, an example per device.

Devices of one process share its memory and its threads, so the axis is a batch axis: `pmap` is
`jit` of `vmap`, with pmap's rules for axes, static arguments and the number of devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from tinyjax.core import build as b
from tinyjax.core.errors import require_callable
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_structure, tree_unflatten
from tinyjax.core.treedef import PyTreeDef, tree_flatten
from tinyjax.core.treematch import flatten_axes
from tinyjax.engine.array import Array
from tinyjax.engine.devices import Device
from tinyjax.engine.devices import devices as devices_of
from tinyjax.engine.jit import Jitted, as_numbers
from tinyjax.engine.placement import PmapSharding, placed
from tinyjax.engine.tracing import argument_paths, name_of, with_fixed
from tinyjax.engine.values import finish
from tinyjax.engine.vectorize import in_axes_per_leaf, vmap


def axis_size_of(
    fun: Any, args: Sequence[Any], kwargs: dict[str, Any], axes: Any, given: int | None
) -> int:
    """Size of the first mapped axis. Raises: ValueError if nothing is mapped."""
    tree = tree_structure(tuple(args))
    flat = in_axes_per_leaf(fun, axes, tuple(args), tree) if args else []
    flat += [0] * tree_structure(kwargs).num_leaves
    leaves = tree_flatten((tuple(args), kwargs))[0]
    paths = argument_paths(fun, args, kwargs)
    for leaf, axis, path in zip(leaves, flat, paths, strict=True):
        if axis is None:
            continue
        shape = leaf.shape
        if not -len(shape) <= axis < len(shape):
            raise ValueError(
                f"pmap requires at least one argument with a mapped axis: {path} of "
                f"{name_of(fun)} has shape {shape}, and axis {axis} of it is to be mapped.\n"
                f"  Give it in_axes=None to share it, or an axis that it has."
            )
        return int(shape[axis])
    raise ValueError(
        f"pmap requires at least one argument with a mapped axis: {name_of(fun)} has none"
        f"{'' if given is None else f', and axis_size={given} alone does not say what to map'}.\n"
        "  Pass an array with one slice per device, and its axis in in_axes."
    )


@api_boundary
def pmap(
    fun: Callable[..., Any],
    axis_name: Any = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    devices: Sequence[Device] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
) -> Any:
    """`fun` on slices of its arguments, one per device, compiled; collectives work over `axis_name`.

    `in_axes` and `out_axes` are as for `vmap`, except that `out_axes=None` gives the first device's
    value. Static arguments are compared by value. There are `jax_num_cpu_devices` devices (one, if
    that is not set); they share the threads of the process, so this is a batched program and not
    faster than `jit(vmap(fun))`. A result's `sharding` says which device has which slice.
    Raises: ValueError if nothing is mapped, sizes differ, or the axis is longer than the number of
    devices; RuntimeError for an unknown backend.
    """
    require_callable(fun)
    static = as_numbers(_sequence(static_broadcasted_argnums))
    available = devices_of(backend) if devices is None else list(devices)

    def split(args: Sequence[Any]) -> tuple[dict[int, Any], list[Any], Any]:
        """Static arguments by position, the others, and the axes of the others."""
        if any(not -len(args) <= i < len(args) for i in static):
            raise ValueError(
                f"pmapped function has static_broadcasted_argnums={static} but was called with "
                f"only {len(args)} positional arguments. All static broadcasted arguments must be "
                "passed positionally."
            )
        fixed = {i % len(args): args[i] for i in static}
        moving = [a for i, a in enumerate(args) if i not in fixed]
        axes = in_axes
        if isinstance(axes, (tuple, list)) and len(axes) == len(args):
            axes = tuple(a for i, a in enumerate(axes) if i not in fixed)
        return fixed, moving, axes

    def out_axes_of(tree: PyTreeDef) -> list[int | None]:
        return flatten_axes("pmap out_axes", tree, out_axes, value_name="the return value")

    def mapped(*args: Any, **kwargs: Any) -> Any:
        fixed, moving, axes = split(args)
        example = with_fixed(fun, fixed, len(args)) if fixed else fun
        size = axis_size_of(fun, moving, kwargs, axes, axis_size)
        if size > len(available):
            raise ValueError(
                f"compiling computation that requires {size} logical devices, but only "
                f"{len(available)} devices are available: pmap of {name_of(fun)} over an axis of size "
                f"{size}.\n  Use vmap, or set jax_num_cpu_devices before the first use of a device."
            )
        out = vmap(example, axes, 0, axis_name, axis_size)(*moving, **kwargs)
        leaves, tree = tree_flatten(out)
        return tree_unflatten(
            tree, [_moved(x, axis) for x, axis in zip(leaves, out_axes_of(tree), strict=True)]
        )

    mapped.__name__ = name_of(fun)
    mapped.__wrapped__ = fun  # type: ignore[attr-defined]
    use = "pmap", axis_name, *map(_axes_key, (in_axes, out_axes)), static, len(available), axis_size
    compiled = Jitted(
        mapped,
        static_argnums=static,
        donate_argnums=_sequence(donate_argnums),
        made_of=(fun, use),
    )

    @functools.wraps(fun, updated=())
    @api_boundary
    def pmapped(*args: Any, **kwargs: Any) -> Any:
        out = compiled(*args, **kwargs)
        _, moving, axes = split(args)
        used = available[: axis_size_of(fun, moving, kwargs, axes, axis_size)]
        leaves, tree = tree_flatten(out)
        for x, axis in zip(leaves, out_axes_of(tree), strict=True):
            placed(x, PmapSharding(used, None if axis is None else axis % x.ndim))
        return out

    pmapped.lower, pmapped.trace = compiled.lower, compiled.trace  # type: ignore[attr-defined]
    return pmapped


def _axes_key(axes: Any) -> Hashable:
    """Equal for equal axes; they may be dicts."""
    leaves, tree = tree_flatten(axes, lambda x: x is None)
    return tuple(leaves), tree


def _sequence(numbers: int | Iterable[int]) -> int | tuple[int, ...]:
    return numbers if isinstance(numbers, int) else tuple(numbers)


def _moved(x: Array, axis: int | None) -> Array:
    """A result with its device axis where it belongs, or the first device's."""
    n = x.node
    if axis is None:
        return finish(b.squeeze(b.slice_axis(n, 0, 0, 1), (0,)))
    return finish(b.moveaxis(n, 0, axis % n.ndim))
