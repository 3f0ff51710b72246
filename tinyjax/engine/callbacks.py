"""pure_callback: a host function of arrays in the graph, called when its results are needed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tinyjax.core.infos import CallbackInfo
from tinyjax.core.ops import Op
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import tree_flatten
from tinyjax.core.uop import UOp, results
from tinyjax.engine.array import Array
from tinyjax.engine.tracing import name_of
from tinyjax.engine.values import asarray, finish_all, lift, shaped_abstractify

METHODS = ("sequential", "expand_dims", "broadcast_all", "legacy_vectorized")
_sequence = itertools.count(1)


@api_boundary
def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: Any = None,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """`callback(*args, **kwargs)` on values; the results have the stated shapes and dtypes.

    The callback must be pure: it may run once, several times, or not at all if nothing needs its
    results. Under vmap it is called once per example ("sequential"), or once with a leading axis
    for
    all arguments ("broadcast_all") or size 1 for the shared ones ("expand_dims").
    Raises: ValueError under differentiation; give the caller a custom_jvp.
    """
    if vmap_method not in (None, *METHODS):
        raise ValueError(f"vmap_method must be one of {METHODS} or None, got {vmap_method!r}")
    leaves, tree = tree_flatten((args, kwargs))
    nodes = [lift(x) for x in leaves]
    specs, out_tree = tree_flatten(result_shape_dtypes)
    out = tuple(shaped_abstractify(s).strip_weak_type() for s in specs)

    def call(*values: Any) -> Any:
        given, named = tree_unflatten(tree, [asarray(v) for v in values])
        result = callback(*given, **named)
        found, found_tree = tree_flatten(result)
        if found_tree != out_tree:
            raise RuntimeError(
                f"pure_callback {name_of(callback)} returned the tree {found_tree}, {out_tree} "
                "was stated"
            )
        return [np.asarray(x) for x in found]

    info = CallbackInfo(
        call, out, next(_sequence), pure=True, vectorized=vmap_method or "sequential"
    )
    if not out:
        return tree_unflatten(out_tree, [])
    values: list[Array] = finish_all(results(UOp(Op.CALLBACK, tuple(nodes), info)))
    return tree_unflatten(out_tree, values)
