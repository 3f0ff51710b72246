"""The one place where layers below `engine` ask for something to be run. `engine` installs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core.avals import Aval
from tinyjax.core.dtypes import is_key
from tinyjax.core.uop import Buffer, UOp

Runner = Callable[[UOp, Sequence[Any]], list[Any]]


def _missing(node: UOp, args: Sequence[Any]) -> list[Any]:
    raise AssertionError("tinyjax.engine has not been imported: nothing can run a call")


_runner: Runner = _missing


def install(runner: Runner) -> None:
    """Set what runs a CALL, SCAN, WHILE or COND node on ndarray operands."""
    global _runner
    _runner = runner


def run(node: UOp, args: Sequence[Any]) -> list[Any]:
    """Results (ndarrays) of a node with bodies, its operands given as ndarrays."""
    return _runner(node, args)


def new_buffer(of: Aval) -> Buffer:
    """Uninitialised memory for a value of this aval (64-byte aligned once the runtime is in use)."""
    shape = of.shape
    dtype = of.dtype
    if is_key(dtype):
        shape, dtype = shape + dtype.key_shape, np.dtype(np.uint32)
    return Buffer(_allocate(shape, dtype), of)


def _plain(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.empty(shape, dtype)


_allocate: Callable[[tuple[int, ...], Any], np.ndarray] = _plain


def install_allocator(allocate: Callable[[tuple[int, ...], Any], np.ndarray]) -> None:
    """Set where buffers come from."""
    global _allocate
    _allocate = allocate
