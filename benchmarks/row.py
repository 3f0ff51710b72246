"""What a row of the table is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Row:
    """The same computation in each library.

    A program is `f(module, *arrays) -> tree of arrays`; the harness jits it. Where `stateful`, it
    is `f(peer, *arrays) -> step`, and `step()` does one step and returns what is to be compared.
    Programs are keyed by family: "jax" (for tinyjax too), "torch", "tinygrad"; NumPy's takes the
    arrays only. `inputs` makes the NumPy arrays (or trees of them) that all peers get.
    """

    name: str
    inputs: Callable[[], tuple[Any, ...]]
    programs: dict[str, Callable]
    target: str  # a fraction of the fastest peer's time, from the goals; or words
    # NumPy in float64, given the inputs; None: the JAX program, run by JAX in float64.
    reference: Callable | None = None
    tolerance: float = 1e-4  # of the largest magnitude of each output
    stateful: bool = False
    checked_steps: int = 1  # outputs of this many first steps are compared
    calls: int = 1  # calls per sample, for calls too short to time alone
    per_call: int = 1  # the figure is the time of a call divided by this
    check: Callable[[list[np.ndarray]], float] | None = None  # an error, instead of a reference


@dataclass(frozen=True)
class ProcessRow:
    """A script run in a fresh process each time; its last printed line is the figure.

    Scripts are keyed by family; "{jax}" in one stands for tinyjax or jax. A disk cache of compiled
    code is empty at the start of each run unless `warm`.
    """

    name: str
    scripts: dict[str, str]
    target: str
    unit: str = "s"  # or "MB"
    wall: bool = False  # the figure is the time from start to end of the process instead
    warm: bool = False


def normals(*shapes: tuple[int, ...], dtype: Any = np.float32) -> tuple[np.ndarray, ...]:
    """Standard normal arrays, the same in every process."""
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes)
