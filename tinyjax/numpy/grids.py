"""`mgrid`, `ogrid`, `r_`, `c_`: arrays written as index expressions."""

from __future__ import annotations

from typing import Any

from tinyjax.engine.array import Array
from tinyjax.numpy import creation, shaping


def axis_of(key: slice) -> Array:
    """start:stop:step, or start:stop:nj for n points with both ends."""
    start = 0 if key.start is None else key.start
    step = 1 if key.step is None else key.step
    if isinstance(step, complex):
        return creation.linspace(start, key.stop, int(abs(step)))  # type: ignore[no-any-return]
    return creation.arange(start, key.stop, step)


class MeshGrid:
    """`mgrid[0:3, 0:1:5j]`: coordinate arrays, stacked (or an open grid)."""

    def __init__(self, sparse: bool) -> None:
        self.sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return axis_of(key)
        if self.sparse:
            return creation.meshgrid(*(axis_of(k) for k in key), indexing="ij", sparse=True)
        rows = [axis_of(k) for k in key]
        return shaping.stack(creation.meshgrid(*rows, indexing="ij"))


class AxisConcatenator:
    """`r_[...]` joins along the first axis, `c_[...]` puts columns side by side.

    A leading string such as "0,2,1" gives the axis, the least rank, and where new axes go.
    """

    def __init__(self, axis: int, ndmin: int, trans1d: int) -> None:
        self.axis, self.ndmin, self.trans1d = axis, ndmin, trans1d

    def __len__(self) -> int:
        return 0

    def __getitem__(self, key: Any) -> Array:
        items = list(key) if isinstance(key, tuple) else [key]
        axis, ndmin, trans1d = self.axis, self.ndmin, self.trans1d
        if items and isinstance(items[0], str):
            directive = items.pop(0)
            if directive in ("r", "c"):
                raise NotImplementedError("Matrix objects are not supported by r_ and c_")
            parts = [int(p) for p in directive.split(",")]
            axis = parts[0]
            ndmin = parts[1] if len(parts) > 1 else ndmin
            trans1d = parts[2] if len(parts) > 2 else trans1d
        arrays = []
        for item in items:
            made = axis_of(item) if isinstance(item, slice) else creation.asarray(item)
            rank = made.ndim
            if rank < ndmin:
                made = creation.array(made, ndmin=ndmin)
                if isinstance(item, slice) or rank:
                    # Where the old axes start among the new ones.
                    start = trans1d + ndmin - rank + 1 if trans1d < 0 else trans1d
                    order = list(range(ndmin - rank))
                    order[start:start] = list(range(ndmin - rank, ndmin))
                    made = shaping.transpose(made, order)
            arrays.append(shaping.atleast_1d(made))
        return shaping.concatenate(arrays, axis)


mgrid, ogrid = MeshGrid(False), MeshGrid(True)
r_, c_ = AxisConcatenator(0, 1, -1), AxisConcatenator(-1, 2, 0)
