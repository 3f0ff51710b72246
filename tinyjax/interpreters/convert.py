"""CAST, BITCAST and REDUCE_PRECISION, with JAX's results for every value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tinyjax.core import dtypes, memory
from tinyjax.core.uop import UOp
from tinyjax.interpreters.evaluate_elementwise import BUILTIN, as_dtype, narrow

Array = np.ndarray[Any, Any]


def cast(node: UOp, args: list[Array]) -> Array:
    """The value in another dtype; the operand itself if only the weak flag changes."""
    return convert(args[0], node.arg[0])


def convert(x: Array, dtype: Any) -> Array:
    """`x` as `dtype`.

    float -> int truncates, saturates, NaN -> 0; to bool: x != 0 (so NaN is true); complex to
    anything real (bool too) drops the imaginary part; int -> int wraps; float64 and integers reach
    the floats below 32 bits through float32, as XLA does.
    """
    return x if x.dtype == dtype else converter(x.dtype, dtype)(x)


@functools.lru_cache(2048)
def converter(source: Any, dtype: Any) -> Callable[[Array], Array]:
    """The conversion from one dtype to another one, chosen once for each pair."""
    if dtypes.is_complex(source) and not dtypes.is_complex(dtype):
        part = dtypes.to_floating_dtype(source)
        rest = converter(part, dtype) if part != dtype else np.copy
        return lambda x: rest(x.real)
    if dtype == np.bool_:
        zero = np.array(0).astype(source)  # NaN in a format without a zero: nothing equals it
        return lambda x: np.asarray(x != zero)
    if dtypes.is_integer(dtype) and dtypes.is_float(source):
        return float_to_int(source, dtype)
    steps = [dtype]
    if dtypes.is_integer(dtype) and dtype.num >= BUILTIN:  # below 8 bits: wrap to 8 bits first
        steps = [np.dtype(np.int8), dtype]
    elif dtypes.is_float(dtype) and dtypes.bit_width(dtype) < 32 and source != np.float32:
        steps = [np.dtype(np.float32), dtype]

    def through(x: Array) -> Array:
        for step in steps:
            x = narrow(x, step)
        return x

    return through


def float_to_int(source: Any, dtype: Any) -> Callable[[Array], Array]:
    """Truncation towards zero, saturated at the limits, NaN -> 0."""
    compute = source if source.num < BUILTIN else np.dtype(np.float32)
    storage = dtype if dtype.num < BUILTIN else np.dtype(np.int8)
    info = dtypes.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    # high + 1 is a power of two, exact in every float; a source too narrow for it has infinity
    least, above = np.array(low, compute), np.array(high + 1, compute)

    def through(x: Array) -> Array:
        x = x.astype(compute, copy=False)
        y = as_dtype(x, storage)
        fits = (x >= least) & (x < above)
        if not fits.all():
            whole = np.trunc(x)
            limit = np.where(whole > 0, high, np.where(whole < 0, low, 0)).astype(storage)
            y = np.where((whole >= least) & (whole < above), y, limit)
        return y.astype(dtype, copy=False)

    return through


def bitcast(node: UOp, args: list[Array]) -> Array:
    """The same bits as another dtype."""
    return args[0].view(node.arg)


FORMATS: dict[Any, tuple[int, int]] = {
    dtypes.bfloat16: (8, 7),
    dtypes.float16: (5, 10),
    dtypes.float32: (8, 23),
    dtypes.float64: (11, 52),
}
"""(exponent bits, mantissa bits) of the IEEE-like dtypes."""


def reduce_precision(node: UOp, args: list[Array]) -> Array:
    """`x` rounded to a float with fewer exponent and mantissa bits, kept in its dtype.

    Ties to even; too large becomes infinite; what would be subnormal there becomes a zero.
    """
    exponent, mantissa = node.arg
    x = args[0]
    if dtypes.is_complex(x.dtype):
        z = memory.empty(x.shape, x.dtype)
        z.real = rounded(x.real.copy(), exponent, mantissa)
        z.imag = rounded(x.imag.copy(), exponent, mantissa)
        return z
    if x.dtype in FORMATS:
        return memory.aligned(rounded(x, exponent, mantissa))
    return as_dtype(rounded(x.astype(np.float32), exponent, mantissa), x.dtype)


def rounded(x: Array, exponent: int, mantissa: int) -> Array:
    """`reduce_precision` of one array in one of FORMATS, on the bits."""
    own_exponent, own_mantissa = FORMATS[x.dtype]
    kind = np.dtype(f"u{x.dtype.itemsize}")
    bits = x.view(kind)

    def word(value: int) -> Array:
        return np.array(value, kind)

    sign_bit = word(1 << (own_exponent + own_mantissa))
    sign, size = bits & sign_bit, bits & ~sign_bit
    infinity = word(((1 << own_exponent) - 1) << own_mantissa)
    nan = size > infinity
    drop = own_mantissa - mantissa
    if drop > 0:
        last = (size >> word(drop)) & word(1)
        size = (size + word((1 << (drop - 1)) - 1) + last) & ~word((1 << drop) - 1)
    if exponent < own_exponent:
        bias, reduced = (1 << (own_exponent - 1)) - 1, (1 << (exponent - 1)) - 1
        largest = word(((bias + reduced) << own_mantissa) | ((1 << own_mantissa) - 1))
        least = word((bias - reduced + 1) << own_mantissa)
        size = np.where(size > largest, infinity, np.where(size < least, word(0), size))
    return np.asarray(np.where(nan, bits, size | sign)).view(x.dtype)
