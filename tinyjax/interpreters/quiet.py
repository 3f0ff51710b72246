"""Floating-point flags off: IEEE results are what the ops mean, so NumPy's warnings are noise.

`np.errstate` costs 0.9 us, as much as a small operation; setting the context variable behind it
costs 0.2 us. NumPy keeps that variable private, so without it we fall back to `np.errstate`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

R = TypeVar("R")


def _fallback(f: Callable[..., R], *args: Any) -> R:
    with np.errstate(all="ignore"):
        return f(*args)


try:
    from numpy._core.umath import _extobj_contextvar, _make_extobj

    _IGNORE = _make_extobj(all="ignore")
except (ImportError, TypeError):
    quietly = _fallback
else:

    def quietly(f: Callable[..., R], *args: Any) -> R:
        """`f(*args)` without floating-point warnings or errors, whatever the caller has set."""
        token = _extobj_contextvar.set(_IGNORE)
        try:
            return f(*args)
        finally:
            _extobj_contextvar.reset(token)
