"""`jax.ops`: reductions over segments of rows, by scatter.

A segment is the set of rows with one id. Ids outside [0, num_segments) are dropped, empty segments
hold the reduction's identity: 0, 1, the dtype's least or greatest value (infinities for floats).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinyjax import numpy as jnp
from tinyjax.core import dtypes
from tinyjax.core.errors import ConcretizationTypeError
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.engine.array import Array

__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]

REDUCTIONS: dict[str, Callable[..., Array]] = {
    "add": jnp.sum,
    "mul": jnp.prod,
    "max": jnp.max,
    "min": jnp.min,
}


def identity(kind: str, dtype: Any) -> Any:
    """What changes nothing when combined."""
    if kind in ("add", "mul"):
        return int(kind == "mul")
    if dtypes.is_inexact(dtype):
        return -jnp.inf if kind == "max" else jnp.inf
    if dtype == jnp.bool_:
        return kind == "min"
    limits = jnp.iinfo(dtype)
    return limits.min if kind == "max" else limits.max


def over_segments(name: str, kind: str, what: str) -> Callable[..., Array]:
    """The public function of one reduction."""

    def reduce_segments(
        data: Any,
        segment_ids: Any,
        num_segments: int | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        bucket_size: int | None = None,
        mode: Any = None,
        out_sharding: Any = None,
    ) -> Array:
        data, ids = jnp.asarray(data), jnp.asarray(segment_ids)
        if num_segments is None:
            try:
                num_segments = int(ids.max()) + 1
            except ConcretizationTypeError as error:
                raise type(error)(
                    f"{name}: the number of segments depends on the values of segment_ids, which "
                    f"are not known while tracing.\n  Pass num_segments=.\n{error}"
                ) from None
        if num_segments < 0:
            raise ValueError("num_segments must be non-negative.")
        options: dict[str, Any] = {
            "indices_are_sorted": indices_are_sorted and bucket_size is None,
            "unique_indices": unique_indices,
            "mode": "drop" if mode is None else mode,
            "wrap_negative_indices": False,
        }
        at: Any = ids
        shape: tuple[int, ...] = (num_segments, *data.shape[1:])
        if bucket_size is not None:
            at = (jnp.arange(ids.shape[0]) // bucket_size, ids)
            shape = (-(-ids.size // bucket_size), *shape)
        start = jnp.full(shape, identity(kind, data.dtype), data.dtype)
        update = getattr(start.at[at], "multiply" if kind == "mul" else kind)
        found: Array = update(data, **options)
        return found if bucket_size is None else REDUCTIONS[kind](found, 0).astype(data.dtype)

    reduce_segments.__name__ = reduce_segments.__qualname__ = name
    reduce_segments.__doc__ = f"""{what} of the rows of `data` [n, ...] by `segment_ids` [n].

    Gives [num_segments, ...]; `num_segments` is by default the greatest id plus one, and must be
    given while tracing. `bucket_size` combines runs of that many rows apart first, for accuracy.
    `out_sharding` changes nothing: there is one device.
    Raises: ConcretizationTypeError if the number of segments is not known. Cost: O(data.size).
    """
    return reduce_segments


segment_sum = over_segments("segment_sum", "add", "Sums")
segment_prod = over_segments("segment_prod", "mul", "Products")
segment_max = over_segments("segment_max", "max", "Maxima")
segment_min = over_segments("segment_min", "min", "Minima")

_publish_functions(globals())
