"""Names for the layouts and modes of indexed operations, FFTs and rounding, as JAX spells them."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple


class GatherScatterMode(enum.Enum):
    """What an out-of-range index does."""

    CLIP = "clip"
    FILL_OR_DROP = "fill"
    PROMISE_IN_BOUNDS = "promise_in_bounds"
    ONE_HOT = "one_hot"

    @staticmethod
    def from_any(mode: Any) -> GatherScatterMode:
        """A mode from its name, or None for the default."""
        if isinstance(mode, GatherScatterMode):
            return mode
        names = {
            "clip": GatherScatterMode.CLIP,
            "fill": GatherScatterMode.FILL_OR_DROP,
            "drop": GatherScatterMode.FILL_OR_DROP,
            None: GatherScatterMode.FILL_OR_DROP,
            "promise_in_bounds": GatherScatterMode.PROMISE_IN_BOUNDS,
        }
        if mode not in names:
            raise ValueError(
                f'Unknown gather mode "{mode}"; use "clip", "fill", "drop" or "promise_in_bounds"'
            )
        return names[mode]


class GatherDimensionNumbers(NamedTuple):
    """How a gather's axes are laid out (see XLA's Gather)."""

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class ScatterDimensionNumbers(NamedTuple):
    """How a scatter's axes are laid out (see XLA's Scatter)."""

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


class RoundingMethod(enum.Enum):
    """How `lax.round` treats ties."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


class FftType(enum.Enum):
    """Kinds of `lax.fft`."""

    FFT = "fft"
    IFFT = "ifft"
    RFFT = "rfft"
    IRFFT = "irfft"
