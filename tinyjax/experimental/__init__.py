"""Names of `jax.experimental`. Modules in here load when first used."""

import importlib as _importlib
from typing import Any as _Any

from tinyjax.engine.callbacks import io_callback as io_callback

_LAZY = ("checkify", "jet", "ode")


def __getattr__(name: str) -> _Any:
    if name in _LAZY:
        return _importlib.import_module(f"tinyjax.experimental.{name}")
    raise AttributeError(f"module 'tinyjax.experimental' has no attribute {name!r}")
