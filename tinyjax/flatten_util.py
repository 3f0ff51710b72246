"""ravel_pytree: a tree of arrays as one vector, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.source import api_boundary as _api_boundary
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import tree_flatten
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, finish_all, lift


def ravel_pytree(pytree: Any) -> tuple[Array, Callable[[Any], Any]]:
    """(vector of all elements in a common dtype, function from such a vector to the tree).

    Leaves of one dtype take that of the vector that the function is given.
    Raises (the function): TypeError for a vector of another dtype if those of the leaves differ,
    ValueError for another length.
    """
    leaves, tree = tree_flatten(pytree)
    nodes = [lift(x) for x in leaves]
    shapes = [n.shape for n in nodes]
    kinds = [n.dtype for n in nodes]
    dtype = dtypes.result_type(*kinds) if kinds else dtypes.canonicalize_dtype(float)
    mixed = any(kind != dtype for kind in kinds)
    flat = [b.reshape(b.cast(n, dtype), (n.aval.size,)) for n in nodes]
    vector = b.concat(flat, 0) if flat else b.full((0,), b.scalar(0, dtype))
    total = sum(math.prod(s) for s in shapes)

    @_api_boundary
    def unravel(arr: Any) -> Any:
        n = lift(arr)
        if n.shape != (total,):
            raise ValueError(
                f"unravel function expected input of shape {(total,)}, got shape {n.shape}.\n"
                "  Give a vector with the elements of all arrays, as ravel_pytree makes one."
            )
        if mixed and n.dtype != dtype:
            raise TypeError(
                f"unravel function given array of dtype {n.dtype.name}, but expected dtype "
                f"{dtype.name}.\n  Convert it with .astype({dtype.name!r})."
            )
        out, start = [], 0
        for shape, kind in zip(shapes, kinds, strict=True):
            size = math.prod(shape)
            part = b.slice_axis(n, 0, start, start + size)
            out.append(b.reshape(b.cast(part, kind) if mixed else part, shape))
            start += size
        return tree_unflatten(tree, finish_all(out))

    return finish(vector), unravel


__all__ = ["ravel_pytree"]

_publish_functions(globals())
