"""Elementwise operations of `lax`: equal dtypes and shapes (or scalars), no promotion.

Python numbers take the dtype of the arrays beside them. `tinyjax.numpy` has the forms that promote
and broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dimension_numbers import AccuracyMode, RoundingMethod, Tolerance
from tinyjax.core.dims import as_int, as_size
from tinyjax.core.errors import BroadcastError, DtypeError, make_error
from tinyjax.core.ops import Op
from tinyjax.core.shapes import broadcast_shapes
from tinyjax.core.tree import tree_map
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, lift, lift_for

ArrayLike = Any


def same_dtypes(name: str, nodes: list[UOp]) -> list[UOp]:
    """Weakly typed operands converted to the dtype of the others; the rest must agree."""
    first = nodes[0].dtype
    if all(n.dtype == first for n in nodes):
        return nodes
    strong = [n for n in nodes if not n.aval.weak_type] or nodes
    want = strong[0].dtype
    out = []
    for n in nodes:
        if n.dtype != want:
            fits = n.aval.weak_type and not dtypes.is_key(want)
            if fits:
                dtype, _ = dtypes.lattice_promote((n.dtype, True), (want, False))
                fits = dtype == want
            if not fits:
                names = ", ".join(dtypes.short_name(m.dtype) for m in nodes)
                raise make_error(
                    DtypeError,
                    f"lax.{name} requires arguments to have the same dtypes, got {names}",
                    fix=f"jnp.{name} is a similar function that promotes; or convert with .astype.",
                )
            n = b.cast(n, want)
        out.append(n)
    return out


def same_shapes(name: str, nodes: list[UOp]) -> list[UOp]:
    """Shapes must be equal, or of equal rank with size 1 broadcast, or scalars."""
    shapes = {n.shape for n in nodes if n.shape}
    if len(shapes) <= 1:
        return nodes
    ranks = {len(s) for s in shapes}
    if len(ranks) > 1:
        raise make_error(
            BroadcastError,
            f"{name}: arrays must have same number of dimensions, got "
            f"{', '.join(map(str, shapes))}",
            fix=f"jnp.{name} broadcasts; or reshape.",
        )
    try:
        want = broadcast_shapes(*shapes)
    except ValueError:
        raise make_error(
            BroadcastError,
            f"{name} got incompatible shapes for broadcasting: {', '.join(map(str, shapes))}",
        ) from None
    return [b.broadcast(n, want) if n.shape else n for n in nodes]


NUMBERS = ("integer", "floating", "complexfloating")
ACCEPTED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("add", "sub", "mul", "div", "neg", "sign", "square", "integer_pow", "cumsum", "cumprod",
         "cummax", "cummin", "reduce_sum", "reduce_prod", "scatter_add", "scatter_sub",
         "scatter_mul"), NUMBERS),
    "abs": ("signed integer", "floating", "complexfloating"),
    "reciprocal": ("floating", "complexfloating"),
    "rem": ("integer", "floating"),
    **dict.fromkeys(("lt", "le", "gt", "ge"), ("integer", "floating", "bool")),
    **dict.fromkeys(("real", "imag"), ("complexfloating",)),
    "conj": ("float32", "float64", "complexfloating"),
    **dict.fromkeys(("is_finite", "reduce_precision"), ("floating",)),
    "mulhi": ("integer",),
    **dict.fromkeys(("reduce_and", "reduce_or", "reduce_xor"), ("integer", "bool")),
    **dict.fromkeys(
        ("qr", "svd", "lu", "eig", "triangular_solve", "householder_product"),
        ("floating", "complexfloating")),
}  # fmt: skip
"""What functions take of the dtypes that their ops would (core/rules.py); JAX refuses the rest."""

KINDS: dict[str, Callable[[Any], bool]] = {
    "bool": dtypes.is_bool,
    "integer": dtypes.is_integer,
    "signed integer": dtypes.is_signed,
    "floating": dtypes.is_float,
    "complexfloating": dtypes.is_complex,
    "float32": lambda dtype: dtype == np.float32,
    "float64": lambda dtype: dtype == np.float64,
}


def accept(name: str, *nodes: UOp) -> None:
    """Raises: DtypeError if function `name` does not take the dtype of one of its operands."""
    kinds = ACCEPTED.get(name)
    if kinds is None:
        return
    for i, n in enumerate(nodes):
        if not any(KINDS[kind](n.dtype) for kind in kinds):
            place = f" at position {i}" if len(nodes) > 1 else ""
            raise make_error(
                DtypeError,
                f"{name} does not accept dtype {n.dtype.name}{place}",
                rule=f"accepted dtypes are {', '.join(kinds)}",
                fix=_other_function(name, n.dtype),
            )


def _other_function(name: str, dtype: Any) -> str:
    """What to write instead."""
    if dtypes.is_key(dtype):
        return "Typed keys have no arithmetic; use random.split, fold_in or key_data."
    return "Convert with .astype first, or use the function of jnp, which does."


def operands(name: str, *args: ArrayLike) -> list[UOp]:
    """Nodes with equal dtypes that `name` takes, and matching shapes."""
    nodes = [lift(a) for a in args]
    accept(name, *nodes)
    return same_shapes(name, same_dtypes(name, nodes))


def operand_of(name: str, x: ArrayLike) -> UOp:
    """The one operand of `name`, of a dtype that it takes."""
    n = lift(x)
    accept(name, n)
    return n


def _named(apply: Any, name: str, doc: str) -> Any:
    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = doc
    return apply


def _unary(op: Op, name: str, doc: str) -> Callable[[ArrayLike], Array]:
    def apply(x: ArrayLike) -> Array:
        return finish(UOp(op, (operand_of(name, x),)))

    return _named(apply, name, f"{doc}\n\n{UNARY_NOTE}")  # type: ignore[no-any-return]


def _graded(op: Op, name: str, doc: str) -> Callable[..., Array]:
    """A function of which JAX may be asked for less accuracy, or more."""

    def apply(x: ArrayLike, *, accuracy: Accuracy = None) -> Array:
        checked_accuracy(accuracy)
        return finish(UOp(op, (lift(x),)))

    return _named(apply, name, f"{doc}\n\n{UNARY_NOTE}\n{ACCURACY_NOTE}")  # type: ignore[no-any-return]


UNARY_NOTE = "Shapes, dtype: unchanged. Raises: TypeError for a dtype the operation lacks."
ACCURACY_NOTE = (
    "`accuracy` (a `Tolerance` or `AccuracyMode`) changes nothing: there is one version of the "
    "function, good to a few units in the last place."
)
Accuracy = Tolerance | AccuracyMode | None


def checked_accuracy(accuracy: Any) -> None:
    """Raises: TypeError if it is none."""
    if accuracy is not None and not isinstance(accuracy, (Tolerance, AccuracyMode)):
        raise TypeError(
            f"accuracy must be a Tolerance, an AccuracyMode or None, got {accuracy!r}.\n"
            "  Leave it out, or pass lax.AccuracyMode.HIGHEST or lax.Tolerance(...)."
        )


def _binary(op: Op, name: str, doc: str) -> Callable[[ArrayLike, ArrayLike], Array]:
    def apply(x: ArrayLike, y: ArrayLike) -> Array:
        return finish(UOp(op, tuple(operands(name, x, y))))

    doc = f"{doc}\n\nShapes: equal, or a scalar. Dtypes: equal (no promotion)."
    return _named(apply, name, doc)  # type: ignore[no-any-return]


neg = _unary(Op.NEG, "neg", "-x.")
sign = _unary(Op.SIGN, "sign", "-1, 0 or 1; x/|x| for complex.")
floor = _unary(Op.FLOOR, "floor", "Largest integer <= x.")
ceil = _unary(Op.CEIL, "ceil", "Smallest integer >= x.")
exp = _graded(Op.EXP, "exp", "e**x.")
exp2 = _graded(Op.EXP2, "exp2", "2**x.")
expm1 = _graded(Op.EXPM1, "expm1", "e**x - 1, accurate near 0.")
log = _graded(Op.LOG, "log", "Natural logarithm.")
log1p = _graded(Op.LOG1P, "log1p", "log(1 + x), accurate near 0.")
sin = _graded(Op.SIN, "sin", "Sine of an angle in radians.")
cos = _graded(Op.COS, "cos", "Cosine of an angle in radians.")
tan = _graded(Op.TAN, "tan", "Tangent of an angle in radians.")
asin = _unary(Op.ASIN, "asin", "Arc sine.")
acos = _unary(Op.ACOS, "acos", "Arc cosine.")
atan = _unary(Op.ATAN, "atan", "Arc tangent.")
sinh = _unary(Op.SINH, "sinh", "Hyperbolic sine.")
cosh = _unary(Op.COSH, "cosh", "Hyperbolic cosine.")
tanh = _graded(Op.TANH, "tanh", "Hyperbolic tangent.")
asinh = _unary(Op.ASINH, "asinh", "Inverse hyperbolic sine.")
acosh = _unary(Op.ACOSH, "acosh", "Inverse hyperbolic cosine.")
atanh = _unary(Op.ATANH, "atanh", "Inverse hyperbolic tangent.")
logistic = _graded(Op.LOGISTIC, "logistic", "1 / (1 + e**-x).")
sqrt = _graded(Op.SQRT, "sqrt", "Square root.")
rsqrt = _graded(Op.RSQRT, "rsqrt", "1/sqrt(x).")
cbrt = _graded(Op.CBRT, "cbrt", "Cube root.")
abs = _unary(Op.ABS, "abs", "|x|; real for complex x.")
is_finite = _unary(Op.IS_FINITE, "is_finite", "Neither infinite nor NaN.")
bitwise_not = _unary(Op.NOT, "bitwise_not", "~x.")
population_count = _unary(Op.POPCOUNT, "population_count", "Number of one bits.")
clz = _unary(Op.CLZ, "clz", "Number of leading zero bits.")
erf = _unary(Op.ERF, "erf", "Error function.")
erfc = _unary(Op.ERFC, "erfc", "1 - erf(x).")
erf_inv = _unary(Op.ERFINV, "erf_inv", "Inverse error function.")
lgamma = _unary(Op.LGAMMA, "lgamma", "log |gamma(x)|.")
digamma = _unary(Op.DIGAMMA, "digamma", "Derivative of lgamma.")

add = _binary(Op.ADD, "add", "x + y.")
sub = _binary(Op.SUB, "sub", "x - y.")
div = _binary(Op.DIV, "div", "x / y; integers truncate towards zero.")
rem = _binary(Op.REM, "rem", "Remainder with the sign of x.")
max = _binary(Op.MAX, "max", "Larger of two; NaN wins.")
min = _binary(Op.MIN, "min", "Smaller of two; NaN wins.")
atan2 = _binary(Op.ATAN2, "atan2", "Angle of the point (y, x): atan2(y, x).")
bitwise_and = _binary(Op.AND, "bitwise_and", "x & y.")
bitwise_or = _binary(Op.OR, "bitwise_or", "x | y.")
bitwise_xor = _binary(Op.XOR, "bitwise_xor", "x ^ y.")
shift_left = _binary(Op.SHL, "shift_left", "x << y; 0 when over-wide.")
shift_right_logical = _binary(Op.SHRL, "shift_right_logical", "x >> y, zeros shifted in.")
shift_right_arithmetic = _binary(Op.SHRA, "shift_right_arithmetic", "x >> y, sign shifted in.")
eq = _binary(Op.CMPEQ, "eq", "x == y.")
ne = _binary(Op.CMPNE, "ne", "x != y.")
lt = _binary(Op.CMPLT, "lt", "x < y.")
le = _binary(Op.CMPLE, "le", "x <= y.")
complex = _binary(Op.COMPLEX, "complex", "x + iy from real parts.")


def mul(x: ArrayLike, y: ArrayLike, *, out_dtype: Any = None) -> Array:
    """x * y, of operands converted to `out_dtype` if it is given (they may then differ in dtype).

    Shapes: equal, or a scalar. Dtypes: equal without `out_dtype` (no promotion).
    """
    if out_dtype is None:
        return finish(b.mul(*operands("mul", x, y)))
    accept("mul", lift(x), lift(y))
    wide = [convert_element_type(v, out_dtype).node for v in (x, y)]
    return finish(b.mul(*same_shapes("mul", wide)))


def nextafter(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Next float from x1 towards x2.

    Shapes: equal, or a scalar. Dtypes: equal (no promotion).
    """
    return finish(UOp(Op.NEXTAFTER, tuple(operands("nextafter", x1, x2))))


def gt(x: ArrayLike, y: ArrayLike) -> Array:
    """x > y."""
    p, q = operands("gt", x, y)
    return finish(b.gt(p, q))


def ge(x: ArrayLike, y: ArrayLike) -> Array:
    """x >= y."""
    p, q = operands("ge", x, y)
    return finish(b.ge(p, q))


def mulhi(x: ArrayLike, y: ArrayLike, /) -> Array:
    """The high half of the double-width product of integers."""
    return finish(mulhi_node(*operands("mulhi", x, y)))


def mulhi_node(x: UOp, y: UOp) -> UOp:
    """Schoolbook product of halves, in the operands' own width (there may be no wider type).

    Source: Warren, "Hacker's Delight", 8-2.
    """
    half = dtypes.bit_width(x.dtype) // 2
    mask, shift = b.like(x, (1 << half) - 1), b.like(x, half)
    right = Op.SHRA if dtypes.is_signed(x.dtype) else Op.SHRL

    def halves(v: UOp) -> tuple[UOp, UOp]:
        return b.and_(v, mask), UOp(right, (v, shift))

    (x0, x1), (y0, y1) = halves(x), halves(y)
    low = UOp(Op.SHRL, (b.mul(x0, y0), shift))
    t0, t1 = halves(b.add(b.mul(x1, y0), low))
    middle = UOp(right, (b.add(b.mul(x0, y1), t0), shift))
    return b.add(b.add(b.mul(x1, y1), t1), middle)


def real(x: ArrayLike) -> Array:
    """Real part of a complex array."""
    return finish(UOp(Op.REAL, (operand_of("real", x),)))


def imag(x: ArrayLike) -> Array:
    """Imaginary part of a complex array."""
    return finish(UOp(Op.IMAG, (operand_of("imag", x),)))


def conj(x: ArrayLike) -> Array:
    """Complex conjugate; a float32 or float64 x becomes complex."""
    n = operand_of("conj", x)
    if not dtypes.is_complex(n.dtype):
        n = b.cast(n, dtypes.to_complex_dtype(n.dtype))
    return finish(b.conj(n))


def square(x: ArrayLike) -> Array:
    """x * x."""
    n = operand_of("square", x)
    return finish(b.mul(n, n))


def reciprocal(x: ArrayLike) -> Array:
    """1 / x."""
    return finish(b.reciprocal(operand_of("reciprocal", x)))


def power_node(x: UOp, n: int) -> UOp:
    """x**n by repeated squaring (n any integer)."""
    if n == 0:
        return b.ones(x.aval)
    result: UOp | None = None
    base, k = x, math.fabs(n)
    count = int(k)
    while count:
        if count & 1:
            result = base if result is None else b.mul(result, base)
        count >>= 1
        if count:
            base = b.mul(base, base)
    assert result is not None
    return b.reciprocal(result) if n < 0 else result


def integer_pow(x: ArrayLike, y: int) -> Array:
    """x**y for a Python integer y, by repeated squaring."""
    n, y = operand_of("integer_pow", x), as_int(y, "y")
    if y < 0 and not dtypes.is_inexact(n.dtype):
        raise TypeError(
            f"Integers cannot be raised to negative powers, got integer_pow({x}, {y}).\n"
            "  Convert the base with .astype(float)."
        )
    return finish(power_node(n, int(y)))


def pow(x: ArrayLike, y: ArrayLike) -> Array:
    """x**y; y of the dtype of x, or an integer array."""
    p, q = lift(x), lift(y)
    if dtypes.is_integer(q.dtype) and dtypes.is_inexact(p.dtype):
        q = b.cast(q, p.dtype)
    p, q = same_shapes("pow", same_dtypes("pow", [p, q]))
    return finish(b.pow_(p, q))


def round(
    x: ArrayLike, rounding_method: RoundingMethod | int = RoundingMethod.AWAY_FROM_ZERO
) -> Array:
    """To an integral value; ties go away from zero, or to even."""
    n = lift(x)
    if RoundingMethod(rounding_method) is RoundingMethod.TO_NEAREST_EVEN:
        return finish(UOp(Op.ROUND, (n,)))
    # Away from zero: trunc(|x| + 1/2) with the sign of x; exact halves only, so that 0.49999997
    # stays.
    low = UOp(Op.TRUNC, (n,))
    far = b.ge(b.abs_(b.sub(n, low)), b.like(n, 0.5))
    return finish(b.where(far, b.add(low, b.sign(n)), low))


def clamp(min: ArrayLike, x: ArrayLike, max: ArrayLike) -> Array:
    """x limited to [min, max]; the limits are scalars or of the shape of x."""
    low, n, high = same_dtypes("clamp", [lift(min), lift(x), lift(max)])
    for name, limit in (("min", low), ("max", high)):
        if limit.shape not in ((), n.shape):
            raise TypeError(
                f"clamp requires {name}.shape == operand.shape or {name}.shape == (), got "
                f"{name}.shape={limit.shape}, operand.shape={n.shape}.\n"
                "  Use jnp.clip, which broadcasts."
            )
    return finish(b.min_(b.max_(n, low), high))


def select(pred: ArrayLike, on_true: ArrayLike, on_false: ArrayLike) -> Array:
    """on_true where pred, else on_false."""
    return select_n(pred, on_false, on_true)


def select_n(which: ArrayLike, *cases: ArrayLike) -> Array:
    """The case numbered `which` (bool or integer in range), elementwise or for whole arrays."""
    if not cases:
        raise ValueError(
            "select_n requires at least one case.\n"
            "  Pass the cases after `which`: lax.select_n(which, on_false, on_true)."
        )
    w = lift(which)
    nodes = same_dtypes("select_n", [lift(c) for c in cases])
    if any(n.shape != nodes[0].shape for n in nodes):
        raise TypeError(
            "select cases must have the same shapes, got "
            f"[{', '.join(str(n.shape) for n in nodes)}].\n  Use jnp.where, which broadcasts."
        )
    if w.shape not in ((), nodes[0].shape):
        raise TypeError(
            f"select `which` must be scalar or have the same shape as cases, got `which` shape "
            f"{w.shape} but case shape {nodes[0].shape}.\n"
            "  Use jnp.where, which broadcasts."
        )
    if w.dtype == np.bool_:
        if len(nodes) > 2:
            raise TypeError(
                "select_n with a boolean `which` takes at most two cases.\n"
                "  Convert it with .astype(int) for more."
            )
        return finish(nodes[0] if len(nodes) == 1 else b.where(w, nodes[1], nodes[0]))
    if not dtypes.is_integer(w.dtype):
        raise TypeError(
            f"select `which` must be of boolean or integer type, got {w.dtype.name}.\n"
            "  Compare it, as in which > 0, or convert it with .astype(int)."
        )
    out = nodes[-1]
    for i in range(len(nodes) - 2, -1, -1):
        out = b.where(b.le(w, b.like(w, i)), nodes[i], out)
    return finish(out)


def convert_element_type(operand: ArrayLike, new_dtype: Any) -> Array:
    """Convert; float to int saturates and NaN gives 0; complex to real keeps the real part.

    A Python type (`float`) means its default dtype. The result is not weakly typed.
    """
    dtype = dtypes.user_dtype(new_dtype, "convert_element_type")
    n = lift_for(operand, dtype)
    if dtypes.is_key(n.dtype) != dtypes.is_key(dtype):
        raise ValueError(
            f"Cannot convert_element_type from {n.dtype.name} to {dtype.name}: typed keys are no "
            "numbers.\n  Use jax.random.key_data(keys) and jax.random.wrap_key_data(data)."
        )
    if dtypes.is_complex(n.dtype) and not dtypes.is_complex(dtype):
        n = b.real(n)
    return finish(b.cast(n, dtype))


def bitcast_convert_type(operand: ArrayLike, new_dtype: Any) -> Array:
    """Reinterpret bits; between widths the last axis splits or joins."""
    n = lift(operand)
    dtype = dtypes.user_dtype(new_dtype, "bitcast_convert_type")
    if n.dtype == dtype:
        return finish(b.cast(n, dtype))
    if dtypes.is_key(n.dtype) or dtypes.is_key(dtype):
        raise ValueError(
            f"lax.bitcast_convert_type got {n.dtype.name} and new_dtype={dtype.name}: typed keys "
            "have no bits.\n  Use jax.random.key_data(keys)."
        )
    bitcast_fits(n, dtype)
    if any(dtypes.is_bool(d) or dtypes.is_complex(d) for d in (n.dtype, dtype)):
        raise DtypeError(
            "lax.bitcast_convert_type does not support bool or complex values unless the operand "
            f"and destination types match. Got operand dtype={n.dtype.name}, "
            f"new_dtype={dtype.name}.\n  Use x.view(dtype)."
        )
    return finish(bitcast_node(n, dtype))


def bitcast_fits(n: UOp, dtype: Any) -> None:
    """Raises: ValueError if the last axis is not one element of a wider dtype."""
    parts, rest = divmod(dtypes.bit_width(dtype), dtypes.bit_width(n.dtype))
    if parts > 1 and (rest or not n.shape or n.shape[-1] != parts):
        raise ValueError(
            f"Attempting to convert array of shape {n.shape} from {n.dtype.name} to {dtype.name}, "
            f"{parts}x as wide: the last axis must have size {parts}."
        )


UINTS = {8: np.dtype("u1"), 16: np.dtype("u2"), 32: np.dtype("u4"), 64: np.dtype("u8")}


def bitcast_node(n: UOp, dtype: Any) -> UOp:
    """BITCAST between any widths: through unsigned integers, little end first."""
    old, new = dtypes.bit_width(n.dtype), dtypes.bit_width(dtype)
    if old == new:
        return b.bitcast(n, dtype)
    if old > new:
        parts = old // new
        wide = b.bitcast(n, UINTS[old])
        pieces = [
            b.cast(UOp(Op.SHRL, (wide, b.like(wide, new * i))), UINTS[new]) for i in range(parts)
        ]
        return b.bitcast(b.concat([b.unsqueeze(p, p.ndim) for p in pieces], n.ndim), dtype)
    parts = new // old
    bitcast_fits(n, dtype)
    narrow = b.bitcast(n, UINTS[old])
    last = n.ndim - 1
    total: UOp | None = None
    for i in range(parts):
        piece = b.cast(b.squeeze(b.slice_axis(narrow, last, i, i + 1), (last,)), UINTS[new])
        piece = UOp(Op.SHL, (piece, b.like(piece, old * i)))
        total = piece if total is None else b.or_(total, piece)
    assert total is not None
    return b.bitcast(total, dtype)


def reduce_precision(operand: ArrayLike, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round to a float format with these bits, kept in the dtype."""
    n = operand_of("reduce_precision", operand)
    exponent_bits = as_size(exponent_bits, "exponent_bits")
    mantissa_bits = as_size(mantissa_bits, "mantissa_bits")
    if exponent_bits < 1 or mantissa_bits < 0:
        raise ValueError(
            "reduce_precision: exponent_bits must be positive and mantissa_bits non-negative; got "
            f"{exponent_bits} and {mantissa_bits}."
        )
    return finish(UOp(Op.REDUCE_PRECISION, (n,), (exponent_bits, mantissa_bits)))


def stop_gradient(x: Any) -> Any:
    """x (a tree), constant for differentiation."""
    return tree_map(lambda v: finish(b.stop_gradient(lift(v))), x)
