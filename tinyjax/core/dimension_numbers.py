"""Names for the layouts and modes of indexed operations, FFTs, rounding and accuracy, as JAX spells
them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
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


class AccuracyMode(enum.Enum):
    """How accurate a function is asked to be."""

    HIGHEST = 1
    DEFAULT = 2


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An error that is small enough: absolute, relative, in units in the last place."""

    atol: float = 0.0
    rtol: float = 0.0
    ulps: int = 0

    def __post_init__(self) -> None:
        parts = self.atol, self.rtol, self.ulps
        if any(part < 0 for part in parts):
            raise ValueError("Tolerances must be non-negative.")
        if not any(parts):
            raise ValueError("At least one of atol, rtol, or ulps must be set.")


class FftType(enum.Enum):
    """Kinds of `lax.fft`."""

    FFT = "fft"
    IFFT = "ifft"
    RFFT = "rfft"
    IRFFT = "irfft"
