"""Rows of the evaluator for elementwise ops: one NumPy expression each, in the op's compute dtype.

Row: `(node, operands) -> ndarray`. Compute dtypes: float16, bfloat16 and smaller floats in float32
with one rounding at the end; integers below 8 bits in 8 bits, wrapped at the end; all others in
their own. Floating-point flags are the caller's business (`quiet`). Results are always ndarrays:
NumPy makes scalars of rank-0 results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.uop import UOp

Array = np.ndarray[Any, Any]
Row = Callable[[UOp, list[Array]], Array]

ndarray = np.ndarray
BUILTIN = 17
"""NumPy numbers its dtypes; those below are bool, integers, float32, float64 and complex (float16
is 23, ml_dtypes' are above 255). The cheapest test there is: 0.04 us."""

WIDE: dict[Any, np.dtype[Any]] = {
    **dict.fromkeys((*dtypes.SMALL_FLOATS, dtypes.bfloat16, dtypes.float16), dtypes.float32),
    **dict.fromkeys(dtypes.NARROW_SIGNED, dtypes.int8),
    **dict.fromkeys(dtypes.NARROW_UNSIGNED, dtypes.uint8),
}
"""Compute dtype of the dtypes that are not computed in themselves."""

NANLESS = frozenset(d for d in dtypes.SMALL_FLOATS if dtypes.bit_width(d) < 8)
"""Formats in which NaN becomes -0. NumPy's would be a zero of the opposite sign, but the sign of a
NaN is nobody's choice: it differs between libm, the CPU and the compiler. XLA gives -0 as well."""


def widen(x: Array) -> Array:
    """`x` in its compute dtype, exactly."""
    return x if x.dtype.num < BUILTIN else x.astype(WIDE[x.dtype])


def narrow(y: Any, dtype: Any) -> Array:
    """A computed value as an ndarray of `dtype`; rounds or wraps if that is narrower."""
    z: Array = np.asarray(y)
    if z.dtype == dtype:
        return z
    if z.dtype.kind in "fc" and dtype in WIDE and z.dtype != np.float32:
        z = z.astype(np.float32)  # one path for every float64 -> narrow conversion (see CAST)
    if dtype in NANLESS and z.dtype.kind == "f":
        z = np.where(z != z, np.float32(np.nan), z)
    return z.astype(dtype)


def unary(f: Callable[[Array], Any]) -> Row:
    """Row of a function whose result has the operand's dtype."""

    def row(node: UOp, args: list[Array]) -> Array:
        x = args[0]
        if x.dtype.num < BUILTIN:
            y = f(x)
            return y if type(y) is ndarray else np.asarray(y)
        return narrow(f(x.astype(WIDE[x.dtype])), x.dtype)

    return row


def binary(f: Callable[[Array, Array], Any]) -> Row:
    """Row of a function of two operands whose result has their dtype."""

    def row(node: UOp, args: list[Array]) -> Array:
        x, y = args
        dtype = x.dtype
        if dtype.num < BUILTIN:
            z = f(x, y)
            return z if type(z) is ndarray else np.asarray(z)
        wide = WIDE[dtype]
        return narrow(f(x.astype(wide), y.astype(wide)), dtype)

    return row


BLOCK = 1 << 16
"""Elements that functions of several passes take at a time (16k: up to a quarter slower)."""


def in_blocks(f: Callable[..., Any], dtype: Any, *args: Array) -> Any:
    """`f(*args)` of an elementwise `f`, a block at a time: its temporaries stay in the cache.

    Operands have the result's shape or rank 0; others, and small ones, are passed on in one call.
    Dtype: `dtype`; what `f` returns may be wider. Cost: 1 us, and 1 us per block.
    """
    shapes = {x.shape for x in args if x.ndim}
    size = max([x.size for x in args])
    if size <= BLOCK or len(shapes) != 1:
        return f(*args).astype(dtype, copy=False)
    lines = [x.reshape(-1) if x.ndim else x for x in args]
    out: Array = np.empty(shapes.pop(), dtype)
    line = out.reshape(-1)
    for start in range(0, size, BLOCK):
        end = start + BLOCK
        line[start:end] = f(*[x[start:end] if x.ndim else x for x in lines])
    return out


def rounded_once(f: np.ufunc) -> Callable[..., Any]:
    """`f` with float32 computed in float64, at most 0.5 units of the last place off.

    For the functions whose float32 loop was found to be off by more than 2, over every 16th float
    (every one for log2): 2.1 (log2) to 3.8 (tan). Cost: 1 us, and per element what the float64 loop
    takes, 3 to 6 times the float32 one: 1.3 ns for exp, log and log2, 1.4 to 2.1 for cosh, expm1,
    asin and tan, 3.4 for atan2; the conversions are hidden in the cache.
    """

    def wide(*args: Array) -> Any:
        return f(*args, dtype=np.float64)

    def of(*args: Array) -> Any:
        if args[0].dtype != np.float32:
            return f(*args)
        if args[0].size > BLOCK or args[-1].size > BLOCK:
            return in_blocks(wide, np.float32, *args)
        return f(*args, dtype=np.float64).astype(np.float32)

    return of


def predicate(f: Callable[..., Any]) -> Row:
    """Row of a function with a bool result."""

    def row(node: UOp, args: list[Array]) -> Array:
        y = f(*args) if args[0].dtype.num < BUILTIN else f(*map(widen, args))
        return y if type(y) is ndarray else np.asarray(y)

    return row


def by_kind(
    *, real: Row | None = None, complex: Row | None = None, integer: Row | None = None
) -> Row:
    """Row that differs between integers (and bool), floats and complex numbers."""
    if real is None:
        real = integer

    def row(node: UOp, args: list[Array]) -> Array:
        kind = args[0].dtype.kind
        if kind == "f":
            return real(node, args)  # type: ignore[misc]
        if kind == "c":
            return complex(node, args)  # type: ignore[misc]
        if kind == "V" and args[0].dtype not in dtypes._INTEGERS:  # ml_dtypes' floats
            return real(node, args)  # type: ignore[misc]
        return integer(node, args)  # type: ignore[misc]

    return row


# --- integers ---------------------------------------------------------------------------------


def int_div(x: Array, y: Array) -> Any:
    """Quotient towards zero; x/0 = -1 (all bits set), INT_MIN/-1 = INT_MIN."""
    if x.dtype.kind != "i":
        return np.where(y == 0, np.invert(np.zeros((), x.dtype)), np.floor_divide(x, y))
    quotient = np.floor_divide(x, y)
    # floor differs from trunc by one where the division is inexact and the signs differ
    inexact = np.multiply(quotient, y) != x
    quotient = quotient + (inexact & ((x < 0) != (y < 0))).astype(x.dtype)
    return np.where(y == 0, np.array(-1, x.dtype), quotient)


def int_rem(x: Array, y: Array) -> Any:
    """Remainder with the sign of x; x rem 0 = x, INT_MIN rem -1 = 0."""
    return np.where(y == 0, x, np.fmod(x, y))


def unsigned(x: Array) -> Array:
    """The same bits as an unsigned integer of the same width (4 bits stay in the low half)."""
    if x.dtype.num >= BUILTIN:
        bits = dtypes.bit_width(x.dtype)
        return x.astype(np.int8).view(np.uint8) & np.uint8((1 << bits) - 1)
    return x.view(f"u{x.dtype.itemsize}")


def signed_of(bits: Any, dtype: Any) -> Array:
    """Unsigned bits as `dtype` (the inverse of `unsigned`)."""
    found: Array = np.asarray(bits)
    return found.astype(dtype) if dtype.num >= BUILTIN else found.view(dtype)


def shift_right_logical(node: UOp, args: list[Array]) -> Array:
    """Zeros come in from the left, for signed integers too; 0 when over-wide."""
    x, amount = unsigned(args[0]), unsigned(args[1])
    return signed_of(np.right_shift(x, amount), args[0].dtype)


def shift_right_arithmetic(node: UOp, args: list[Array]) -> Array:
    """Copies of the highest bit come in from the left, for unsigned integers too (as in JAX)."""
    x, amount = args
    if x.dtype.num >= BUILTIN:
        bits = dtypes.bit_width(x.dtype)
        signed = (unsigned(x) << np.uint8(8 - bits)).view(np.int8) >> np.int8(8 - bits)
        shifted: Array = np.asarray(np.right_shift(signed, unsigned(amount).view(np.int8)))
        return shifted.astype(x.dtype)
    as_signed = f"i{x.dtype.itemsize}"
    return np.asarray(np.right_shift(x.view(as_signed), amount.view(as_signed))).view(x.dtype)


def popcount(node: UOp, args: list[Array]) -> Array:
    """Number of set bits."""
    return np.asarray(np.bitwise_count(unsigned(args[0]))).astype(args[0].dtype)


def count_leading_zeros(node: UOp, args: list[Array]) -> Array:
    """Zeros above the highest set bit; the width for 0."""
    x = unsigned(args[0])
    width = dtypes.bit_width(args[0].dtype)
    shift = 1
    while shift < width:  # smear the highest bit downwards
        x = x | (x >> np.array(shift, x.dtype))
        shift *= 2
    return np.asarray(width - np.bitwise_count(x).astype(np.int16)).astype(args[0].dtype)


# --- floats -----------------------------------------------------------------------------------


def real_sign(x: Array) -> Any:
    """-1 or 1; zeros keep their sign and NaN stays."""
    return np.copysign(np.sign(x), x)


def complex_sign(x: Array) -> Any:
    """x / |x|; 0 for 0; NaN where |x| is."""
    x = np.where(np.isinf(np.abs(x)), x * x.real.dtype.type(0.5), x)  # |x| of the largest overflows
    size = np.abs(x)
    return np.where(size == 0, np.zeros((), x.dtype), x / size)


def real_rsqrt(x: Array) -> Any:
    """1 / sqrt(x); -inf for -0."""
    return np.reciprocal(np.sqrt(x))


def complex_rsqrt(x: Array) -> Any:
    """1 / sqrt(x)"""
    return complex_div(np.array(complex(1, -0.0), x.dtype), np.sqrt(x))  # -0: conj signs of zero


def complex_div(x: Array, y: Array) -> Any:
    """x / y by Smith's method (NumPy's), infinities and zeros recovered as in C99 Annex G.5.1."""
    z = np.asarray(np.divide(x, y))
    lost = np.isnan(z.real) & np.isnan(z.imag)
    if not lost.any():
        return z
    x, y = np.broadcast_arrays(x, y)
    a, b, c, d = (part[lost] for part in (x.real, x.imag, y.real, y.imag))
    zero = (c == 0) & (d == 0) & ~(np.isnan(a) & np.isnan(b))
    infinite = (np.isinf(a) | np.isinf(b)) & np.isfinite(c) & np.isfinite(d)
    vanishing = (np.isinf(c) | np.isinf(d)) & np.isfinite(a) & np.isfinite(b)
    a, b = (np.where(infinite, boxed(part), part) for part in (a, b))
    c, d = (np.where(vanishing, boxed(part), part) for part in (c, d))
    scale = np.where(infinite, np.inf, np.where(vanishing, 0.0, np.nan))
    re = np.where(zero, np.copysign(np.inf, c) * a, scale * (a * c + b * d))
    im = np.where(zero, np.copysign(np.inf, c) * b, scale * (b * c - a * d))
    z.real[lost], z.imag[lost] = re, im
    return z


def boxed(x: Array) -> Any:
    """Infinities as +-1, all else as +-0."""
    return np.copysign(np.isinf(x).astype(x.dtype), x)


def squared(x: Array) -> tuple[Array, Array]:
    """x * x and its rounding error, for x of moderate size (Veltkamp's split, Dekker's product)."""
    y = x * x
    shifted = (2.0**27 + 1) * x
    high = shifted - (shifted - x)
    low = x - high
    return y, ((high * high - y) + 2 * high * low) + low * low


def two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """x + y and its rounding error (Knuth)."""
    s = x + y
    part = s - x
    return s, (x - (s - part)) + (y - part)


def complex_log1p(z: Array) -> Any:
    """log(1 + z). Near |1 + z| = 1 the real part is log1p(2x + x**2 + y**2)/2 with exact squares:
    NumPy's is what is left when nearly all digits cancel."""
    wide = np.asarray(z, np.complex128)
    x, y = wide.real, wide.imag
    (xx, xx_low), (yy, yy_low) = squared(x), squared(y)
    first, first_low = two_sum(2 * x, xx)
    total, total_low = two_sum(first, yy)
    total = total + ((first_low + total_low) + (xx_low + yy_low))
    found = np.array(np.log1p(wide))
    found.real = np.where((-0.5 < total) & (total < 2), np.log1p(total) / 2, found.real)
    return found.astype(z.dtype, copy=False)


def complex_expm1(x: Array) -> Any:
    """e**x - 1; on the real axis real (NumPy's has NaN there once e**x overflows)."""
    y = np.asarray(np.expm1(x))
    on_axis = x.imag == 0
    if on_axis.any():
        y.imag[on_axis] = x.imag[on_axis]
    return y


def logistic(x: Array) -> Any:
    """1 / (1 + e**-x) without overflow: for x < 0 it is e**x / (1 + e**x)."""
    return in_blocks(_logistic, x.dtype, x)


def _logistic(x: Array) -> Any:
    wide = x.astype(np.float64) if x.dtype == np.float32 else x
    small = np.exp(-np.abs(wide))
    # As small <= 1 this chooses by the sign of x, without branches: those cost 4 ns an element.
    return np.maximum(small, x >= 0) / (1 + small)


def complex_logistic(x: Array) -> Any:
    """1 / (1 + e**-x)"""
    return complex_div(np.ones((), x.dtype), 1 + np.exp(-x))


def real_max(x: Array, y: Array) -> Any:
    """Larger; NaN wins; +0 is larger than -0 (NumPy leaves that to chance)."""
    z = np.maximum(x, y)
    if y.ndim == 0:  # relu and clip: a scalar says what zeros become
        if y:
            return z
        if not np.signbit(y):
            return z + y
    elif z.all():
        return z
    return np.where((x == y) & (z == 0), x + y, z)


def real_min(x: Array, y: Array) -> Any:
    """Smaller; NaN wins; -0 is smaller than +0."""
    z = np.minimum(x, y)
    if y.ndim == 0:
        if y:
            return z
    elif z.all():
        return z
    return np.where((x == y) & (z == 0), -(-x - y), z)


def complex_less(x: Array, y: Array) -> Any:
    """Lexicographic x < y; no comparison with NaN holds."""
    return np.where(x.real == y.real, x.imag < y.imag, x.real < y.real)


def complex_less_equal(x: Array, y: Array) -> Any:
    """Lexicographic x <= y."""
    return np.where(x.real == y.real, x.imag <= y.imag, x.real < y.real)


def complex_max(x: Array, y: Array) -> Any:
    """Lexicographically larger; y where they are unordered."""
    return np.where(complex_less(y, x), x, y)


def complex_min(x: Array, y: Array) -> Any:
    """Lexicographically smaller; y where they are unordered."""
    return np.where(complex_less(x, y), x, y)


def complex_atan2(y: Array, x: Array) -> Any:
    """-i log((x + iy) / sqrt(x**2 + y**2))"""
    return -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y))


def make_complex(node: UOp, args: list[Array]) -> Array:
    """re + i im, bit for bit (adding would lose signed zeros and make NaN of inf)."""
    z = np.empty(node.aval.shape, node.aval.dtype)
    z.real, z.imag = args
    return z


def real_part(node: UOp, args: list[Array]) -> Array:
    """Real part."""
    return args[0].real.copy()


def imag_part(node: UOp, args: list[Array]) -> Array:
    """Imaginary part; zeros for real x."""
    return args[0].imag.copy()


def next_after(node: UOp, args: list[Array]) -> Array:
    """The neighbour of x towards y in x's own dtype (widening would make other neighbours)."""
    x, y = args
    return np.where(x == y, y, np.nextafter(x, y))  # NumPy's float16 returns x for equal ones


def bitwise(f: Callable[..., Any]) -> Row:
    """Row of a bitwise function: no widening needed, except that ml_dtypes integers have none."""
    return lambda node, args: narrow(f(*map(widen, args)), args[0].dtype)


def select(node: UOp, args: list[Array]) -> Array:
    """x where the condition holds, else y."""
    return np.where(*args)
