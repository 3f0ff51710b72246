"""vmap: run the function on one example's variables, batch the graph that comes back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core.avals import aval
from tinyjax.core.dims import as_size
from tinyjax.core.errors import require_callable
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import leaf_paths, tree_unflatten
from tinyjax.core.treedef import PyTreeDef, tree_flatten
from tinyjax.core.treematch import flatten_axes
from tinyjax.core.uop import UOp, active
from tinyjax.engine.array import Array
from tinyjax.engine.derivatives import lift_leaves
from tinyjax.engine.effects import settle
from tinyjax.engine.refs import Ref, opened, through
from tinyjax.engine.tracing import argument_paths, name_of, output_nodes
from tinyjax.engine.values import asarray, finish_all
from tinyjax.interpreters.batch import batch, spread
from tinyjax.interpreters.trace import open_trace, rebind, state

SHARED = (
    "  Give it in_axes=None (and by position) if all examples share it, or an axis that it has."
)
"""What to do with an argument that has no axis to be mapped."""


def in_axes_per_leaf(fun: Any, in_axes: Any, args: tuple[Any, ...], tree: Any) -> list[Any]:
    """One axis (or None) per leaf of the positional arguments."""
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    one = isinstance(in_axes, (int, type(None))) and not isinstance(in_axes, bool)
    if not one and not isinstance(in_axes, tuple) and not _single_tree(in_axes, args):
        raise TypeError(
            f"vmap in_axes must be an int, None, or a tuple of entries corresponding to the "
            f"positional arguments passed to the function, but got {in_axes!r}.\n"
            "  Write in_axes=(axes of the first argument, axes of the second, ...)."
        )
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise ValueError(
            f"vmap in_axes must be an int, None, or a tuple of entries corresponding to the "
            f"positional arguments passed to the function, but got len(in_axes)={len(in_axes)}, "
            f"len(args)={len(args)} for {name_of(fun)}.\n"
            "  Give each argument its axis, and None to one that all examples share."
        )
    if not isinstance(in_axes, (int, tuple, type(None))):
        in_axes = (in_axes,)  # one argument whose tree it matches
    return flatten_axes("vmap in_axes", tree, in_axes, value_name="the arguments")


def _single_tree(in_axes: Any, args: tuple[Any, ...]) -> bool:
    """Whether `in_axes={'a': 0}` was given for a function of one argument."""
    return len(args) == 1 and isinstance(in_axes, dict)


def mapped_nodes(
    leaves: Sequence[Any], axes: Sequence[Any], paths: Sequence[str]
) -> list[UOp | None]:
    """Nodes of what is mapped; None for what all examples share."""
    mapped = [i for i, axis in enumerate(axes) if axis is not None]
    given = [leaves[i] for i in mapped]
    nodes = iter(lift_leaves(given, lambda: [paths[i] for i in mapped], "arguments of vmap")[0])
    return [None if axis is None else next(nodes) for axis in axes]


def mapped_size(
    fun: Any,
    nodes: Sequence[UOp | None],
    axes: Sequence[Any],
    paths: Sequence[str],
    axis_size: int | None,
) -> tuple[int, list[Any]]:
    """The common size of the mapped axes, and the axes made non-negative."""
    sizes: dict[int, list[str]] = {}
    normal: list[Any] = []
    for node, axis, path in zip(nodes, axes, paths, strict=True):
        if node is None:
            normal.append(None)
            continue
        if not isinstance(axis, (int, np.integer)):
            raise TypeError(
                f"vmap in_axes must be integers or None, but the entry for {path} is {axis!r}.\n"
                "  Give the number of its axis, or None if all examples share it."
            )
        if not node.shape:
            raise ValueError(
                f"vmap was requested to map its argument along axis {axis}, which implies that its "
                f"rank should be at least {axis + 1 if axis >= 0 else -axis}, but is only 0 (its "
                f"shape is ()): argument {path} of {name_of(fun)}.\n{SHARED}"
            )
        if not -node.ndim <= axis < node.ndim:
            raise ValueError(
                f"vmap was requested to map its argument along axis {axis}, which implies that its "
                f"rank should be at least {axis + 1 if axis >= 0 else -axis}, but is only "
                f"{node.ndim} (its shape is {node.shape}): argument {path} of {name_of(fun)}.\n{SHARED}"
            )
        position = int(axis) % node.ndim
        normal.append(position)
        sizes.setdefault(node.shape[position], []).append(
            f"{path} has shape {node.shape} and is mapped along axis {position}"
        )
    if axis_size is not None:
        sizes.setdefault(as_size(axis_size), []).append(f"axis_size={axis_size} was given")
    if not sizes:
        raise ValueError(
            "vmap must have at least one non-None value in in_axes.\n"
            "  Give what differs between examples its axis, as in in_axes=(0, None)."
            if axes
            else f"vmap wrapped function {name_of(fun)} must be passed at least one argument "
            "containing an array, got empty *args and **kwargs.\n"
            "  Pass what is mapped as an argument, or give axis_size."
        )
    if len(sizes) > 1:
        lines = [f"  * size {size}: {line}" for size, where in sizes.items() for line in where]
        raise ValueError(
            "vmap got inconsistent sizes for array axes to be mapped:\n"
            + "\n".join(lines)
            + "\n  Give the arguments to be shared in_axes=None."
        )
    return next(iter(sizes)), normal


def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    sum_match: bool = False,
) -> Callable[..., Any]:
    """`fun` over a batch of examples.

    `in_axes` and `out_axes` are an axis, None (shared / unbatched), or trees of these that are
    prefixes of the arguments and results. What is shared reaches `fun` as it is given, so it may be a
    flag or a function. Keyword arguments are mapped along axis 0. `axis_name` names
    the axis for collectives, `axis_size` states its size where nothing is mapped. `spmd_axis_name` and
    `sum_match` are for meshes and change nothing.
    Raises: ValueError naming the argument path whose size or rank does not fit.
    Cost: that of `fun` on arrays with one more axis; nothing is looped over.
    """
    require_callable(fun)

    @functools.wraps(fun, updated=())
    @api_boundary
    def vmapped(*args: Any, **kwargs: Any) -> Any:
        paths = argument_paths(fun, args, kwargs)
        given, tree = tree_flatten((args, kwargs))
        if any(isinstance(x, Ref) for x in given):
            return with_refs(args, kwargs)
        args_tree, kwargs_tree = tree.children()
        axes = in_axes_per_leaf(fun, in_axes, args, args_tree) if args else []
        axes += [0] * kwargs_tree.num_leaves
        nodes = mapped_nodes(given, axes, paths)
        size, axes = mapped_size(fun, nodes, axes, paths, axis_size)
        with open_trace("vmap", fun, staging=False) as trace, named_axis(axis_name, size, trace):
            inputs: dict[UOp, UOp] = {}
            leaves = []
            for leaf, node, axis, path in zip(given, nodes, axes, paths, strict=True):
                if node is None:  # shared: it may be anything, such as a flag or a function
                    leaves.append(asarray(leaf) if isinstance(leaf, np.ndarray) else leaf)
                    continue
                shape = node.shape[:axis] + node.shape[axis + 1 :]
                of = aval(shape, node.dtype, node.aval.weak_type)
                v = trace.variable(of, path, outer=active(node))
                inputs[v] = b.moveaxis(node, axis, 0)
                leaves.append(Array(v))
            if axis_name is not None:
                own = state.axes[axis_name][1]
                inputs[own] = b.iota((size,), 0)
            new_args, new_kwargs = tree_unflatten(tree, leaves)
            outs, out_tree = output_nodes(fun(*new_args, **new_kwargs), fun, "vmap")
            tokens, trace.chain.last = trace.chain.tokens, trace.chain.start
            values, flags = batch([*outs, *tokens], inputs, size, trace.chain)
            targets = flatten_axes(
                "vmap out_axes", out_tree, out_axes, value_name="the return value"
            )
            final = [
                place_axis(v, flag, axis, size, out, (fun, out_tree, i))
                for i, (v, flag, axis, out) in enumerate(zip(values, flags, targets, outs))
            ]
            arrays = finish_all(settle(trace, rebind(final, {})))
        return tree_unflatten(out_tree, arrays)

    def with_refs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """With mutable arrays among the arguments: they are mapped as arrays are."""
        leaves, tree = tree_flatten((args, kwargs))
        args_tree, kwargs_tree = tree.children()
        axes = in_axes_per_leaf(fun, in_axes, args, args_tree) + [0] * kwargs_tree.num_leaves
        flat, places = opened(fun, tree, leaves, name_of(fun))
        mapped = vmap(
            flat,
            (axes,),
            (out_axes, [axes[i] for i in places]),
            axis_name,
            axis_size,
            spmd_axis_name,
            sum_match,
        )
        return through(leaves, places, mapped)

    return vmapped


def place_axis(
    value: UOp, flag: bool, axis: Any, size: int, out: UOp, at: tuple[Any, PyTreeDef, int]
) -> UOp:
    """The batch axis of a result where the user wants it; `at`: function, tree, number of it."""
    fun, tree, number = at
    if axis is None:
        if flag:
            raise ValueError(
                f"vmap has mapped output (axis_name=None) but out_axes is None for a result of "
                f"{name_of(fun)} with shape {out.shape} per example "
                f"({leaf_paths('output', tree)[number]}): it differs between examples, "
                "so its out_axes must be an axis."
            )
        return value
    rank = out.ndim + 1
    if not -rank <= axis < rank:
        raise ValueError(
            f"axis {axis} is out of bounds for array of dimension {rank}: out_axes of vmap of "
            f"{name_of(fun)} for {leaf_paths('output', tree)[number]}.\n"
            f"  With the batch axis it has {rank}: give one from {-rank} to {rank - 1}."
        )
    return b.moveaxis(value if flag else spread(value, size), 0, axis % rank)


class named_axis:
    """Make an axis name known to collectives for the duration of a block."""

    def __init__(self, name: Any, size: int, trace: Any) -> None:
        self.name, self.size, self.trace = name, size, trace
        self.outer: Any = None

    def __enter__(self) -> None:
        if self.name is not None:
            self.outer = state.axes.get(self.name)
            index = self.trace.variable(aval((), b.INT32), f"axis_index({self.name!r})")
            state.axes[self.name] = (self.size, index)

    def __exit__(self, *exc: object) -> None:
        if self.name is not None:
            if self.outer is None:
                del state.axes[self.name]
            else:
                state.axes[self.name] = self.outer
