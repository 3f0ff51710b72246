"""Where values lie: every value that a user can hold starts at a multiple of 64 bytes.

That is a cache line, and what some consumers of DLPack (XLA is one) ask for to take memory without a
copy. NumPy aligns to 16 bytes, so rows of the evaluator ask `empty` for the memory of their results
and `aligned` copies what came from elsewhere. The memory itself is the runtime's
(`runtime/buffers.py`), which `engine/compiled.py` installs here.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tinyjax.core.avals import Aval
from tinyjax.core.dtypes import is_key
from tinyjax.core.uop import Buffer

Array = np.ndarray[Any, Any]
Allocator = Callable[[tuple[int, ...], Any], Array]

ALIGNMENT = 64

# ---------------------------------------------------------------------------------------- addresses

_POINTER_FIELD = object.__basicsize__  # data pointer: the first field after the object header
_pointer_at = ctypes.c_void_p.from_address


def _address_by_layout(array: Array) -> int:
    """Address of an array's first element, read from the object itself: 0.13 us.

    `array.ctypes.data` takes 1 us. The field's place is part of NumPy's ABI, and it is checked when
    this module is loaded.
    """
    return _pointer_at(id(array) + _POINTER_FIELD).value or 0


def _address_by_interface(array: Array) -> int:
    """Address of an array's first element, the official way."""
    return int(array.__array_interface__["data"][0])


def _layout_is_known() -> bool:
    """Whether the fast way gives the right answer for a few arrays."""
    if sys.implementation.name != "cpython":
        return False
    base = np.arange(24, dtype=np.int64).reshape(4, 6)
    return all(
        _address_by_layout(array) == _address_by_interface(array)
        for array in (base, base[1:, 2:], base.T, np.zeros(()), np.frombuffer(b"abc", np.uint8))
    )


address = _address_by_layout if _layout_is_known() else _address_by_interface

# ------------------------------------------------------------------------------------------- memory


def numpys(shape: tuple[int, ...], dtype: Any) -> Array:
    """An uninitialised aligned array in memory that NumPy has allocated. Cost: 0.5 us."""
    raw = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, raw, -address(raw) % ALIGNMENT)


empty: Allocator = numpys
"""`empty(shape, dtype)`: uninitialised C-contiguous memory that nothing else uses, 64-byte aligned.

Call it as `memory.empty`: what it is bound to changes.
"""


def install_allocator(allocate: Allocator) -> None:
    """Set where memory comes from."""
    global empty
    empty = allocate


def copy_of(x: Array) -> Array:
    """`x` in aligned memory of its own, row-major."""
    y = empty(x.shape, x.dtype)
    np.copyto(y, x)
    return y


def aligned(x: Array) -> Array:
    """`x`, copied if it does not start at a multiple of 64 bytes. Cost if it does: 0.2 us."""
    return x if address(x) % ALIGNMENT == 0 else copy_of(x)


def new_buffer(of: Aval) -> Buffer:
    """Uninitialised memory for a value of this aval."""
    shape, dtype = of.shape, of.dtype
    if is_key(dtype):
        shape, dtype = shape + dtype.key_shape, np.dtype(np.uint32)
    return Buffer(empty(shape, dtype), of)
