"""tinyjax.scipy: functions with SciPy's names. Submodules load when first used."""

from __future__ import annotations

import importlib
from typing import Any

SUBMODULES = ("linalg", "special", "stats")

__all__ = list(SUBMODULES)


def __getattr__(name: str) -> Any:
    if name in SUBMODULES:
        return importlib.import_module(f"tinyjax.scipy.{name}")
    raise AttributeError(f"module 'tinyjax.scipy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
