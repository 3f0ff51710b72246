"""Rows of the evaluator for elementwise ops: one NumPy expression each, in the op's compute dtype.

Row: `(node, operands) -> ndarray`; the functions behind rows write to their last argument, as ufuncs
do, which is fresh aligned memory (`core/memory.py`). Compute dtypes: float16, bfloat16 and smaller
floats in float32 with one rounding at the end; integers below 8 bits in 8 bits, wrapped at the end;
all others in their own. Floating-point flags are the caller's business (`quiet`). Results are always
ndarrays: NumPy makes scalars of rank-0 results that it allocates itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinyjax.core import dtypes, memory
from tinyjax.core.uop import UOp

Array = np.ndarray[Any, Any]
Row = Callable[[UOp, list[Array]], Array]
Writer = Callable[..., Any]
"""`f(*operands, out)` fills `out`, which has the operands' shape (some may have rank 0)."""

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
    """A computed value as an ndarray of `dtype`; rounds or wraps if that is narrower.

    In fresh aligned memory, unless it has that dtype already.
    """
    z: Array = np.asarray(y)
    if z.dtype == dtype:
        return z
    if z.dtype.kind in "fc" and dtype in WIDE and z.dtype != np.float32:
        z = z.astype(np.float32)  # one path for every float64 -> narrow conversion (see CAST)
    if dtype in NANLESS and z.dtype.kind == "f":
        z = np.where(z != z, np.float32(np.nan), z)
    return as_dtype(z, dtype)


def as_dtype(x: Array, dtype: Any) -> Array:
    """NumPy's conversion, `x.astype(dtype)`, into aligned memory."""
    y = memory.empty(x.shape, dtype)
    np.copyto(y, x, casting="unsafe")
    return y


def unary(f: Writer) -> Row:
    """Row of a function whose result has the operand's dtype."""

    def row(node: UOp, args: list[Array]) -> Array:
        x = args[0]
        dtype = x.dtype
        if dtype.num < BUILTIN:
            y = memory.empty(x.shape, dtype)
            f(x, y)
            return y
        wide = WIDE[dtype]
        y = np.empty(x.shape, wide)
        f(x.astype(wide), y)
        return narrow(y, dtype)

    return row


def binary(f: Writer) -> Row:
    """Row of a function of two operands whose result has their dtype."""

    def row(node: UOp, args: list[Array]) -> Array:
        x, y = args
        dtype, shape = x.dtype, x.shape or y.shape
        if dtype.num < BUILTIN:
            z = memory.empty(shape, dtype)
            f(x, y, z)
            return z
        wide = WIDE[dtype]
        z = np.empty(shape, wide)
        f(x.astype(wide), y.astype(wide), z)
        return narrow(z, dtype)

    return row


def writing(f: Callable[..., Any]) -> Writer:
    """The writer of a function that returns its value."""

    def write(*args: Array) -> None:
        np.copyto(args[-1], f(*args[:-1]), casting="same_kind")

    return write


BLOCK = 1 << 16
"""Elements that functions of several passes take at a time (16k: up to a quarter slower)."""


def in_blocks(f: Writer, *args: Array) -> None:
    """`f(*operands, out)` of an elementwise `f`, a block at a time: its temporaries stay in the
    cache. Cost: 1 us, and 1 us per block."""
    size = args[-1].size
    if size <= BLOCK:
        f(*args)
        return
    lines = [x.reshape(-1) if x.ndim else x for x in args]
    for start in range(0, size, BLOCK):
        end = start + BLOCK
        f(*[x[start:end] if x.ndim else x for x in lines])


def rounded_once(f: np.ufunc) -> Writer:
    """`f` with float32 computed in float64, at most 0.5 units of the last place off.

    For the functions whose float32 loop was found to be off by more than 2, over every 16th float
    (every one for log2): 2.1 (log2) to 3.8 (tan). Cost: per element what the float64 loop takes, 3
    to 6 times the float32 one: 1.3 ns for exp, log and log2, 1.4 to 2.1 for cosh, expm1, asin and
    tan, 3.4 for atan2; NumPy converts in the cache.
    """

    def write(*args: Array) -> None:
        if args[-1].dtype == np.float32:
            f(*args, dtype=np.float64)
        else:
            f(*args)

    return write


def predicate(f: Writer) -> Row:
    """Row of a function with a bool result."""

    def row(node: UOp, args: list[Array]) -> Array:
        x = args[0]
        y = memory.empty(x.shape or args[-1].shape, dtypes.bool_)
        if x.dtype.num < BUILTIN:
            f(*args, y)
        else:
            f(*map(widen, args), y)
        return y

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


def shift_right_logical(node: UOp, args: list[Array]) -> Array:
    """Zeros come in from the left, for signed integers too; 0 when over-wide."""
    x, amount = args
    dtype = x.dtype
    if dtype.num >= BUILTIN:
        return narrow(np.right_shift(unsigned(x), unsigned(amount)), dtype)
    y = memory.empty(x.shape or amount.shape, dtype)
    np.right_shift(unsigned(x), unsigned(amount), unsigned(y))
    return y


def shift_right_arithmetic(node: UOp, args: list[Array]) -> Array:
    """Copies of the highest bit come in from the left, for unsigned integers too (as in JAX)."""
    x, amount = args
    dtype = x.dtype
    if dtype.num >= BUILTIN:
        bits = dtypes.bit_width(dtype)
        signed = (unsigned(x) << np.uint8(8 - bits)).view(np.int8) >> np.int8(8 - bits)
        return as_dtype(np.asarray(np.right_shift(signed, unsigned(amount).view(np.int8))), dtype)
    y = memory.empty(x.shape or amount.shape, dtype)
    as_signed = f"i{dtype.itemsize}"
    np.right_shift(x.view(as_signed), amount.view(as_signed), y.view(as_signed))
    return y


def popcount(node: UOp, args: list[Array]) -> Array:
    """Number of set bits."""
    return as_dtype(np.asarray(np.bitwise_count(unsigned(args[0]))), args[0].dtype)


def count_leading_zeros(node: UOp, args: list[Array]) -> Array:
    """Zeros above the highest set bit; the width for 0."""
    x = unsigned(args[0])
    width = dtypes.bit_width(args[0].dtype)
    shift = 1
    while shift < width:  # smear the highest bit downwards
        x = x | (x >> np.array(shift, x.dtype))
        shift *= 2
    return as_dtype(np.asarray(width - np.bitwise_count(x).astype(np.int16)), args[0].dtype)


# --- floats -----------------------------------------------------------------------------------


def real_sign(x: Array, out: Array) -> None:
    """-1 or 1; zeros keep their sign and NaN stays."""
    np.copysign(np.sign(x, out), x, out)


def complex_sign(x: Array) -> Any:
    """x / |x|; 0 for 0; NaN where |x| is."""
    x = np.where(np.isinf(np.abs(x)), x * x.real.dtype.type(0.5), x)  # |x| of the largest overflows
    size = np.abs(x)
    return np.where(size == 0, np.zeros((), x.dtype), x / size)


def real_rsqrt(x: Array, out: Array) -> None:
    """1 / sqrt(x); -inf for -0."""
    np.reciprocal(np.sqrt(x, out), out)


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


def logistic(x: Array, out: Array) -> None:
    """1 / (1 + e**-x) without overflow: for x < 0 it is e**x / (1 + e**x)."""
    in_blocks(_logistic, x, out)


def _logistic(x: Array, out: Array) -> None:
    wide = x.astype(np.float64) if x.dtype == np.float32 else x
    small = np.exp(-np.abs(wide))
    # As small <= 1 this chooses by the sign of x, without branches: those cost 4 ns an element.
    np.divide(np.maximum(small, x >= 0), 1 + small, out)


def complex_logistic(x: Array) -> Any:
    """1 / (1 + e**-x)"""
    return complex_div(np.ones((), x.dtype), 1 + np.exp(-x))


def larger(x: Array, y: Array, out: Array) -> None:
    """NumPy's maximum, whose `out` must be given by name."""
    np.maximum(x, y, out=out)


def smaller(x: Array, y: Array, out: Array) -> None:
    """NumPy's minimum."""
    np.minimum(x, y, out=out)


def real_max(x: Array, y: Array, out: Array) -> None:
    """Larger; NaN wins; +0 is larger than -0 (NumPy leaves that to chance)."""
    larger(x, y, out)
    if y.ndim == 0:  # relu and clip: a scalar says what zeros become
        if y:
            return
        if not np.signbit(y):
            np.add(out, y, out)
            return
    elif out.all():
        return
    np.add(x, y, out, where=(x == y) & (out == 0))


def real_min(x: Array, y: Array, out: Array) -> None:
    """Smaller; NaN wins; -0 is smaller than +0."""
    smaller(x, y, out)
    if y if y.ndim == 0 else out.all():
        return
    np.copyto(out, -(-x - y), where=(x == y) & (out == 0))


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
    z = memory.empty(node.aval.shape, node.aval.dtype)
    z.real, z.imag = args
    return z


def magnitude(node: UOp, args: list[Array]) -> Array:
    """|x| of complex x."""
    y = memory.empty(args[0].shape, node.aval.dtype)
    np.abs(args[0], y)
    return y


def real_part(node: UOp, args: list[Array]) -> Array:
    """Real part."""
    return memory.copy_of(args[0].real)


def imag_part(node: UOp, args: list[Array]) -> Array:
    """Imaginary part; zeros for real x."""
    return memory.copy_of(args[0].imag)


def next_after(node: UOp, args: list[Array]) -> Array:
    """The neighbour of x towards y in x's own dtype (widening would make other neighbours)."""
    x, y = args
    z = memory.empty(x.shape or y.shape, x.dtype)
    np.nextafter(x, y, z)
    np.copyto(z, y, where=x == y)  # NumPy's float16 returns x for equal ones
    return z


def select(node: UOp, args: list[Array]) -> Array:
    """x where the condition holds, else y."""
    where, x, y = args
    z = memory.empty(where.shape or x.shape or y.shape, x.dtype)
    bits = f"u{x.dtype.itemsize}"
    if z.size < SELECTED_BY_BITS or x.dtype.itemsize not in (1, 2, 4, 8):
        np.copyto(z, y)
        np.copyto(z, x, where=where)
    else:
        in_blocks(_select_bits, where, x.view(bits), y.view(bits), z.view(bits))
    return z


SELECTED_BY_BITS = 1 << 13
"""Elements from which on selecting by bits is faster: with branches an unforeseeable condition costs
4 ns an element."""


def _select_bits(where: Array, x: Array, y: Array, out: Array) -> None:
    mask = np.negative(where.astype(out.dtype))  # all bits, or none
    np.bitwise_xor(x, y, out)
    np.bitwise_and(out, mask, out)
    np.bitwise_xor(out, y, out)
