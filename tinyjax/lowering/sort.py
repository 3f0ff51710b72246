"""SORT as a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval
from tinyjax.core.uop import UOp
from tinyjax.lowering.kernel import Code, Kernel
from tinyjax.lowering.target import Target


@dataclass(frozen=True, slots=True)
class SortKernel(Kernel):
    """Operands of these avals sorted together along an axis by the first `num_keys` of them."""

    avals: tuple[Aval, ...]
    axis: int
    num_keys: int

    @staticmethod
    def of(node: UOp) -> SortKernel:
        """The kernel of a SORT node."""
        axis, num_keys, _ = node.arg
        return SortKernel(tuple(s.aval for s in node.src), axis, num_keys)

    def title(self) -> str:
        """For listings."""
        return "sort"

    def codes(self, target: Target) -> list[Code]:
        raise AssertionError

    def interpret(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        """Stable, NaN last, -0 == 0: NumPy's stable sort on order-preserving integers."""
        count = len(self.avals)
        inputs = [np.moveaxis(a, self.axis, -1) for a in arrays[count:]]
        order = np.broadcast_to(np.arange(inputs[0].shape[-1]), inputs[0].shape)
        for key in reversed(inputs[: self.num_keys]):
            ranked = np.take_along_axis(sort_key(key), order, -1)
            order = np.take_along_axis(order, np.argsort(ranked, axis=-1, kind="stable"), -1)
        for out, x in zip(arrays, inputs, strict=False):
            out[...] = np.moveaxis(np.take_along_axis(x, order, -1), -1, self.axis)


def sort_key(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Values whose NumPy order is SORT's."""
    if dtypes.is_complex(x.dtype):
        return x
    if dtypes.is_float(x.dtype):
        return x.astype(np.float64)
    return x
