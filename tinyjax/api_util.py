"""Functions of trees as functions of leaves: `tinyjax.api_util`, for libraries.

flat, out_tree = flatten_fun(linear_util.wrap_init(f), in_tree)
jaxpr = make_jaxpr(flat.call_wrapped)(*leaves)
results = tree.unflatten(out_tree(), jaxpr_as_fun(jaxpr)(*leaves))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinyjax.core.source import function_location
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import PyTreeDef, tree_flatten
from tinyjax.engine.tracing import argument_paths, parameter_names
from tinyjax.engine.values import shaped_abstractify as shaped_abstractify
from tinyjax.extend.core import DebugInfo
from tinyjax.extend.linear_util import StoreException, WrappedFun

Thunk = Callable[[], PyTreeDef]


def flatten_fun(fun: WrappedFun, in_tree: PyTreeDef) -> tuple[WrappedFun, Thunk]:
    """(`fun` from leaves to leaves, the tree of its results once it has run).

    `in_tree` is that of `(args, kwargs)`.
    """
    return _flatten(fun, in_tree, lambda tree: tree)


def flatten_fun_nokwargs(fun: WrappedFun, in_tree: PyTreeDef) -> tuple[WrappedFun, Thunk]:
    """As `flatten_fun`, where `in_tree` is that of the tuple of positional arguments."""
    return _flatten(fun, in_tree, lambda tree: (tree, {}))


def _flatten(
    fun: WrappedFun, in_tree: PyTreeDef, arguments: Callable[[Any], tuple[Any, Any]]
) -> tuple[WrappedFun, Thunk]:
    found: list[PyTreeDef] = []

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = arguments(tree_unflatten(in_tree, leaves))
        results, tree = tree_flatten(fun.call_wrapped(*args, **kwargs))
        found.append(tree)
        return results

    def out_tree() -> PyTreeDef:
        if len(found) != 1:
            raise StoreException(
                f"{function_location(fun.f)} has been called {len(found)} times; the tree of its "
                "results is that of exactly one call.\n  Call or stage the flat function first; "
                "flatten again for a second trace."
            )
        return found[0]

    return WrappedFun(flat, debug_info=fun.debug_info), out_tree


def debug_info(
    traced_for: str,
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    static_argnums: Sequence[int] = (),
    static_argnames: Sequence[str] = (),
    result_paths_thunk: Any = None,
    sourceinfo: str | None = None,
    signature: inspect.Signature | None = None,
) -> DebugInfo:
    """What a trace is for: purpose, function, and the path of each leaf that is not static.

    `result_paths_thunk` is kept, `sourceinfo` stands in for the place of `fun`, and `signature`
    changes nothing: names are those of the parameters of `fun`.
    """
    names = parameter_names(fun, len(args))
    moving = [
        None if i in static_argnums or names[i] in static_argnames else x
        for i, x in enumerate(args)
    ]
    named = {name: x for name, x in kwargs.items() if name not in static_argnames}
    paths = tuple(argument_paths(fun, moving, named))
    return DebugInfo(traced_for, sourceinfo or function_location(fun), paths, result_paths_thunk)


def safe_map(f: Callable[..., Any], *args: Any) -> list[Any]:
    """`list(map(f, *args))`. Raises: ValueError if the iterables differ in length."""
    return [f(*row) for row in zip(*args, strict=True)]


_publish_functions(globals())

__all__ = [
    "debug_info",
    "flatten_fun",
    "flatten_fun_nokwargs",
    "safe_map",
    "shaped_abstractify",
]
