"""What a kernel is to the program builder, whatever generator makes its code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tinyjax.core.dims import Size
from tinyjax.lowering.target import Target


@dataclass(frozen=True, slots=True)
class Code:
    """One native function `void k(slots, dims, lo, hi)` and the call of it.

    Its slots are those of the kernel, then one per entry of `scratch` (bytes each), then, if there
    are `params`, the address of these int64. `actions` are the decisions it was made by.
    `units` are the units of a run where they may be fewer than `total`: of the sizes of the
    program, by their numbers.
    """

    ir_text: str
    passes: Literal["vector", "scalar"]
    total: int
    chunk: int
    scratch: tuple[int, ...] = ()
    params: tuple[int, ...] = ()
    cycles: float = 0.0
    actions: tuple[str, ...] = ()
    units: Callable[[Callable[[int], Size]], Size] | None = None


class Kernel(ABC):
    """Hashable; equal kernels are compiled once. Slots: outputs first, then inputs."""

    __slots__ = ()

    @abstractmethod
    def title(self) -> str:
        """A short name for listings."""

    @abstractmethod
    def codes(self, target: Target) -> list[Code]:
        """The native functions, called in this order."""

    @abstractmethod
    def interpret(self, arrays: Sequence[np.ndarray[Any, Any]], dims: Sequence[int] = ()) -> None:
        """Run on arrays, without native code; `dims` are the symbolic sizes of the program."""
