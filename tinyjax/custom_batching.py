"""Batching rules written by the user, by JAX's names: `tinyjax.custom_batching`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinyjax import lax
from tinyjax.core.tree import tree_map, tree_unflatten
from tinyjax.core.treedef import tree_flatten
from tinyjax.engine.custom_batching import custom_vmap


def sequential_vmap(f: Callable[..., Any]) -> custom_vmap:
    """`f`, called once per example, one after the other (`lax.map`), when it is batched."""
    mapped = custom_vmap(f)

    def rule(axis_size: int, in_batched: list[Any], *args: Any) -> Any:
        leaves, tree = tree_flatten(args)
        flags = tree_flatten(tuple(in_batched))[0]

        def one(moving: list[Any]) -> Any:
            rest = iter(moving)
            full = [next(rest) if on else x for x, on in zip(leaves, flags, strict=True)]
            return mapped(*tree_unflatten(tree, full))

        out = lax.map(one, [x for x, on in zip(leaves, flags, strict=True) if on])
        return out, tree_map(lambda _: True, out)

    mapped.def_vmap(rule)
    return mapped


__all__ = ["custom_vmap", "sequential_vmap"]
