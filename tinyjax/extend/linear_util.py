"""Functions on the way to being staged: `tinyjax.extend.linear_util`, with `tinyjax.api_util`.

JAX stacks transformations on a `WrappedFun`. Transformations of graphs need no such stack, so here it
is the function with its keyword arguments and its `DebugInfo`; `make_jaxpr` stages its `call_wrapped`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinyjax.core.source import publish_functions as _publish_functions


class StoreException(Exception):
    """What a function gives beside its results was asked for before the call, or after a second."""


@dataclass(frozen=True, slots=True)
class WrappedFun:
    """`f` with keyword arguments `params`."""

    f: Callable[..., Any]
    params: Mapping[str, Any] = field(default_factory=dict)
    debug_info: Any = None

    def call_wrapped(self, *args: Any, **kwargs: Any) -> Any:
        """`f(*args, **params, **kwargs)`"""
        return self.f(*args, **{**self.params, **kwargs})


def wrap_init(
    f: Callable[..., Any], params: Mapping[str, Any] | None = None, *, debug_info: Any = None
) -> WrappedFun:
    """`f` with keyword arguments `params`, for `api_util.flatten_fun`."""
    return WrappedFun(f, {} if params is None else dict(params), debug_info)


_publish_functions(globals())

__all__ = ["StoreException", "WrappedFun", "wrap_init"]
