"""Names for annotations, as in `jax.typing`."""

from typing import Any, Protocol, TypeAlias

import numpy as np

from tinyjax.engine.array import Array


class SupportsDType(Protocol):
    """An object with a dtype."""

    @property
    def dtype(self) -> Any: ...


ArrayLike: TypeAlias = Array | np.ndarray | np.bool_ | np.number | bool | int | float | complex
DTypeLike: TypeAlias = str | type[Any] | np.dtype | SupportsDType

__all__ = ["ArrayLike", "DTypeLike"]
