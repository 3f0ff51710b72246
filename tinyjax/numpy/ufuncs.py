"""Elementwise functions of `tinyjax.numpy`: NumPy's names, JAX's promotion."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dims import as_int
from tinyjax.core.errors import DtypeArgumentError, DtypeError
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const_value
from tinyjax.engine.array import Array
from tinyjax.engine.custom_rules import custom_jvp
from tinyjax.engine.eager import eager
from tinyjax.engine.values import finish
from tinyjax.lax.control_flow import while_loop
from tinyjax.lax.elementwise import power_node
from tinyjax.numpy.promotion import (
    broadcast,
    checked,
    inexact_operands,
    no_out,
    operands,
    promote_dtypes,
    promote_inexact,
)

ArrayLike = Any

LOG10_E = 0.4342944819032518  # 1 / math.log(10) is a unit less
LOG10_E_PARTS = {
    np.dtype(np.float32): (0.434326171875, -3.168997174817235e-05),
    np.dtype(np.float64): (0.4342944845557213, -2.6524694553078553e-09),
}
"""log10(e) as a number of half the bits, and what is left."""


def _unary(op: Op, name: str, inexact: bool = False) -> Callable[[ArrayLike], Array]:
    def apply(x: ArrayLike, /) -> Array:
        (n,) = inexact_operands(name, x) if inexact else checked(name, x)
        return finish(UOp(op, (n,)))

    apply.__name__ = apply.__qualname__ = name
    kind = "Integers become floating." if inexact else "Dtype: unchanged."
    apply.__doc__ = f"Elementwise {op.meaning}. {kind}"
    return eager(apply)


def _binary(
    op: Op,
    name: str,
    inexact: bool = False,
    convert: Callable[[list[UOp]], list[UOp]] | None = None,
) -> Callable[[ArrayLike, ArrayLike], Array]:
    def apply(x: ArrayLike, y: ArrayLike, /) -> Array:
        nodes = inexact_operands(name, x, y) if inexact else operands(name, x, y)
        return finish(UOp(op, tuple(convert(nodes) if convert else nodes)))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"Elementwise {op.meaning}. Operands are promoted and broadcast."
    return eager(apply)


exp = _unary(Op.EXP, "exp", True)
exp2 = _unary(Op.EXP2, "exp2", True)
expm1 = _unary(Op.EXPM1, "expm1", True)
log = _unary(Op.LOG, "log", True)
log1p = _unary(Op.LOG1P, "log1p", True)
sin = _unary(Op.SIN, "sin", True)
cos = _unary(Op.COS, "cos", True)
tan = _unary(Op.TAN, "tan", True)
arcsin = asin = _unary(Op.ASIN, "arcsin", True)
arccos = acos = _unary(Op.ACOS, "arccos", True)
arctan = atan = _unary(Op.ATAN, "arctan", True)
sinh = _unary(Op.SINH, "sinh", True)
cosh = _unary(Op.COSH, "cosh", True)
tanh = _unary(Op.TANH, "tanh", True)
arcsinh = asinh = _unary(Op.ASINH, "arcsinh", True)
arccosh = acosh = _unary(Op.ACOSH, "arccosh", True)
arctanh = atanh = _unary(Op.ATANH, "arctanh", True)
sqrt = _unary(Op.SQRT, "sqrt", True)
cbrt = _unary(Op.CBRT, "cbrt", True)
invert = bitwise_not = bitwise_invert = _unary(Op.NOT, "invert")


def _to_bits(nodes: list[UOp]) -> list[UOp]:
    """Shifts of bools are shifts of integers."""
    return [b.cast(n, b.INT32) if n.dtype == np.bool_ else n for n in nodes]


def _sum_of_bools(op: Op, logical: Op, name: str) -> Callable[[ArrayLike, ArrayLike], Array]:
    """add and multiply of bools are or and and."""

    def apply(x: ArrayLike, y: ArrayLike, /) -> Array:
        p, q = operands(name, x, y)
        return finish(UOp(logical if p.dtype == np.bool_ else op, (p, q)))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"Elementwise {op.meaning}. Operands are promoted and broadcast."
    return eager(apply)


add = _sum_of_bools(Op.ADD, Op.OR, "add")
multiply = _sum_of_bools(Op.MUL, Op.AND, "multiply")
maximum = _sum_of_bools(Op.MAX, Op.OR, "maximum")
minimum = _sum_of_bools(Op.MIN, Op.AND, "minimum")
arctan2 = atan2 = _binary(Op.ATAN2, "arctan2", True)
nextafter = _binary(Op.NEXTAFTER, "nextafter", True)
bitwise_and = _binary(Op.AND, "bitwise_and")
bitwise_or = _binary(Op.OR, "bitwise_or")
bitwise_xor = _binary(Op.XOR, "bitwise_xor")
left_shift = bitwise_left_shift = _binary(Op.SHL, "left_shift", convert=_to_bits)
equal = _binary(Op.CMPEQ, "equal")
not_equal = _binary(Op.CMPNE, "not_equal")
less = _binary(Op.CMPLT, "less")
less_equal = _binary(Op.CMPLE, "less_equal")


@eager
def greater(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise x > y. Operands are promoted and broadcast."""
    p, q = operands("greater", x, y)
    return finish(b.gt(p, q))


@eager
def greater_equal(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise x >= y. Operands are promoted and broadcast."""
    p, q = operands("greater_equal", x, y)
    return finish(b.ge(p, q))


@eager
def subtract(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise x - y. Operands are promoted and broadcast; bools are refused."""
    p, q = operands("subtract", x, y)
    if p.dtype == np.bool_:
        raise TypeError("subtract does not accept dtype bool; use logical_xor or convert first.")
    return finish(b.sub(p, q))


@eager
def right_shift(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise x >> y: sign fill for signed integers, zeros for unsigned ones."""
    p, q = _to_bits(operands("right_shift", x, y))
    return finish(UOp(Op.SHRL if dtypes.is_unsigned(p.dtype) else Op.SHRA, (p, q)))


bitwise_right_shift = right_shift


@eager
def negative(x: ArrayLike, /) -> Array:
    """Elementwise -x."""
    (n,) = checked("negative", x)
    if n.dtype == np.bool_:
        raise TypeError("negative does not accept dtype bool; use logical_not.")
    return finish(b.neg(n))


def positive(x: ArrayLike, /) -> Array:
    """x itself."""
    return finish(checked("positive", x)[0])


@eager
def absolute(x: ArrayLike, /) -> Array:
    """Elementwise |x|; real for complex x."""
    (n,) = checked("absolute", x)
    same = n.dtype == np.bool_ or dtypes.is_unsigned(n.dtype)
    return finish(n if same else b.abs_(n))


abs = absolute


def fabs(x: ArrayLike, /) -> Array:
    """Elementwise |x| in floating point."""
    (n,) = inexact_operands("fabs", x)
    real_only("fabs", n)
    return finish(b.abs_(n))


@eager
def sign(x: ArrayLike, /) -> Array:
    """-1, 0 or 1; x/|x| for complex x."""
    (n,) = checked("sign", x)
    if n.dtype == np.bool_:
        raise TypeError("sign does not accept dtype bool.")
    if dtypes.is_unsigned(n.dtype):
        return finish(b.cast_like(b.ne(n, b.like(n, 0)), n.aval))
    return finish(b.sign(n))


def signbit(x: ArrayLike, /) -> Array:
    """Whether the sign bit is set (-0.0 and negative NaN included)."""
    (n,) = inexact_operands("signbit", x)
    real_only("signbit", n, ValueError)
    bits = {16: np.dtype("i2"), 32: np.dtype("i4"), 64: np.dtype("i8"), 8: np.dtype("i1")}
    raw = b.bitcast(n, bits[dtypes.bit_width(n.dtype)])
    return finish(b.lt(raw, b.like(raw, 0)))


def real_only(name: str, n: UOp, error: type[Exception] = TypeError) -> None:
    """Raises: `error` for a complex operand."""
    if dtypes.is_complex(n.dtype):
        raise error(f"{name} does not support complex-valued inputs, got {n.aval.str_short()}.")


def copysign(x: ArrayLike, y: ArrayLike, /) -> Array:
    """|x| with the sign of y."""
    p, q = inexact_operands("copysign", x, y)
    real_only("copysign", p)
    magnitude = b.abs_(p)
    negative_y = signbit(finish(q)).node
    out = b.where(negative_y, b.neg(magnitude), magnitude)
    return finish(out)


def floor(x: ArrayLike, /) -> Array:
    """Largest integer <= x; integers stay."""
    return _rounding("floor", Op.FLOOR, x)


def ceil(x: ArrayLike, /) -> Array:
    """Smallest integer >= x; integers stay."""
    return _rounding("ceil", Op.CEIL, x)


def trunc(x: ArrayLike) -> Array:
    """Towards zero; integers stay."""
    return _rounding("trunc", Op.TRUNC, x)


fix = trunc


def rint(x: ArrayLike, /) -> Array:
    """Nearest integer, ties to even."""
    (n,) = inexact_operands("rint", x)
    return finish(_round_parts(n))


def _round_parts(n: UOp) -> UOp:
    if dtypes.is_complex(n.dtype):
        return b.complex_(UOp(Op.ROUND, (b.real(n),)), UOp(Op.ROUND, (b.imag(n),)))
    return UOp(Op.ROUND, (n,))


def _rounding(name: str, op: Op, x: ArrayLike) -> Array:
    (n,) = checked(name, x)
    if n.dtype == np.bool_ or dtypes.is_integer(n.dtype):
        return finish(n)
    return finish(UOp(op, (n,)))


def round(a: ArrayLike, decimals: int = 0, out: None = None) -> Array:
    """To `decimals` places, ties to even."""
    no_out("round", out)
    decimals = as_int(decimals, "decimals")
    (n,) = checked("round", a)
    if dtypes.is_integer(n.dtype) or n.dtype == np.bool_:
        if decimals >= 0:
            return finish(n)
        raise NotImplementedError("integer jnp.round not implemented for decimals < 0")
    if decimals == 0:
        return finish(_round_parts(n))
    factor = 10.0**decimals
    if n.dtype == np.float16 or n.dtype == dtypes.bfloat16:
        wide = b.cast(n, np.float32)
        scaled = b.div(_round_parts(b.mul(wide, b.like(wide, factor))), b.like(wide, factor))
        return finish(b.cast_like(scaled, n.aval))
    return finish(b.div(_round_parts(b.mul(n, b.like(n, factor))), b.like(n, factor)))


around = round


@eager
def true_divide(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise x / y in floating point."""
    p, q = inexact_operands("true_divide", x, y)
    return finish(b.div(p, q))


divide = true_divide


def floor_divide_node(p: UOp, q: UOp) -> UOp:
    """Floor division of equal dtypes."""
    if dtypes.is_unsigned(p.dtype):
        return b.div(p, q)
    if dtypes.is_integer(p.dtype):
        quotient = b.div(p, q)
        differs = b.ne(b.sign(p), b.sign(q))
        inexact = b.ne(UOp(Op.REM, (p, q)), b.like(p, 0))
        return b.where(b.and_(differs, inexact), b.sub(quotient, b.like(p, 1)), quotient)
    # Floats: (x - mod) / y rounded, so that x == q*y + mod holds as well as it can; x/0 is inf.
    whole = _float_divmod(p, q)[0]
    return whole if known_nonzero(q) else b.where(b.eq(q, b.like(q, 0)), b.div(p, q), whole)


def _float_divmod(p: UOp, q: UOp) -> tuple[UOp, UOp]:
    mod = UOp(Op.REM, (p, q))
    quotient = b.div(b.sub(p, mod), q)
    wrong_sign = b.and_(b.ne(mod, b.like(p, 0)), b.ne(b.sign(q), b.sign(mod)))
    mod = b.where(wrong_sign, b.add(mod, q), mod)
    quotient = b.where(wrong_sign, b.sub(quotient, b.like(p, 1)), quotient)
    return UOp(Op.ROUND, (quotient,)), mod


def floor_divide(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise floor(x / y)."""
    p, q = _numbers("floor_divide", x, y)
    return finish(floor_divide_node(p, q))


def _numbers(name: str, x: ArrayLike, y: ArrayLike) -> list[UOp]:
    """Promoted operands; bools become integers."""
    nodes = operands(name, x, y)
    if nodes[0].dtype == np.bool_:
        nodes = [b.cast(n, b.INT32) for n in nodes]
    if dtypes.is_complex(nodes[0].dtype):
        raise TypeError(f"{name} does not support complex-valued inputs")
    return nodes


def known_nonzero(q: UOp) -> bool:
    """Whether a divisor is a literal other than 0."""
    return q.op is Op.CONST and bool(const_value(q) != 0)


def safe_rem(p: UOp, q: UOp) -> UOp:
    """Remainder with the sign of p; integers modulo 0 are 0, as in NumPy."""
    rem = UOp(Op.REM, (p, q))
    if dtypes.is_inexact(p.dtype) or known_nonzero(q):
        return rem
    return b.where(b.eq(q, b.like(q, 0)), b.like(rem, 0), rem)


def remainder(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise remainder with the sign of y."""
    p, q = _numbers("remainder", x, y)
    rem = safe_rem(p, q)
    zero = b.like(p, 0)
    if dtypes.is_unsigned(p.dtype):
        return finish(rem)
    wrong = b.and_(b.ne(b.lt(rem, zero), b.lt(q, zero)), b.ne(rem, zero))
    return finish(b.where(wrong, b.add(rem, q), rem))


mod = remainder


def fmod(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise remainder with the sign of x."""
    p, q = _numbers("fmod", x, y)
    return finish(safe_rem(p, q))


def divmod(x: ArrayLike, y: ArrayLike, /) -> tuple[Array, Array]:
    """(floor_divide, remainder)."""
    return floor_divide(x, y), remainder(x, y)


def modf(x: ArrayLike, /, out: None = None) -> tuple[Array, Array]:
    """Fractional and integral parts, both with the sign of x."""
    no_out("modf", out)
    (n,) = inexact_operands("modf", x)
    whole = UOp(Op.TRUNC, (n,))
    return finish(b.sub(n, whole)), finish(whole)


def static_integer(y: Any) -> int | None:
    """The exponent, if Python knows it: an integer, or an array of rank 0 that holds one."""
    if type(y) is Array and (y._buffer is None or y.ndim or not dtypes.is_integer(y.dtype)):
        return None
    try:
        return operator.index(y)
    except TypeError:
        return None


def power(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise x ** y.

    An integer exponent that Python knows is expanded into products.
    Dtype: that of x for such an exponent, else the common one.
    Raises: TypeError for a negative one of an integer base.
    """
    exponent = static_integer(y)
    if exponent is not None:
        (n,) = checked("power", x)
        if dtypes.is_key(n.dtype):
            raise DtypeError(
                f"power does not accept dtype {n.dtype}; use random.split, fold_in or key_data."
            )
        if n.dtype == np.bool_:
            n = b.cast(n, b.INT32)
        if exponent < 0 and not dtypes.is_inexact(n.dtype):
            raise TypeError(
                "Integers cannot be raised to negative powers, got "
                f"power({n.aval.str_short()}, {exponent}). Convert the base to a float."
            )
        return finish(power_node(n, exponent))
    p, q = checked("power", x, y)
    if dtypes.is_inexact(p.dtype) and dtypes.is_integer(q.dtype):
        q = b.cast(q, p.dtype, q.aval.weak_type)  # a strong exponent makes a strong result
    else:
        p, q = promote_dtypes([p, q])
    p, q = broadcast("power", [p, q])
    if not dtypes.is_inexact(p.dtype):
        return finish(_integer_power(p, q))
    return finish(b.pow_(p, q))


pow = power


def float_power(x: ArrayLike, y: ArrayLike, /) -> Array:
    """x ** y in floating point."""
    p, q = inexact_operands("float_power", x, y)
    return finish(b.pow_(p, q))


def _integer_power(base: UOp, exponent: UOp) -> UOp:
    """Repeated squaring over the bits of an integer exponent; the sign is a bit like others."""
    if base.dtype == np.bool_:
        base, exponent = b.cast(base, b.INT32), b.cast(exponent, b.INT32)
    shape = base.shape or exponent.shape
    acc = b.full(shape, b.scalar(1, base.dtype))
    one = b.like(exponent, 1)
    for _ in range(dtypes.bit_width(exponent.dtype)):
        take = b.ne(b.and_(exponent, one), b.like(exponent, 0))
        acc = b.where(take, b.mul(acc, base), acc)
        base = b.mul(base, base)
        exponent = UOp(Op.SHRL, (exponent, one))
    return acc


def square(x: ArrayLike, /) -> Array:
    """x * x."""
    (n,) = checked("square", x)
    if n.dtype == np.bool_:
        n = b.cast(n, b.INT32)
    return finish(b.square(n))


def reciprocal(x: ArrayLike, /) -> Array:
    """1 / x in floating point."""
    (n,) = inexact_operands("reciprocal", x)
    return finish(b.reciprocal(n))


def log2(x: ArrayLike, /) -> Array:
    """Base-2 logarithm."""
    (n,) = inexact_operands("log2", x)
    n = b.cast(n, n.dtype)
    if dtypes.is_complex(n.dtype):
        return finish(b.mul(b.log(n), b.like(n, 1 / math.log(2))))
    return finish(UOp(Op.LOG2, (n,)))


@eager
def log10(x: ArrayLike, /) -> Array:
    """Base-10 logarithm. Float32 and float64 are within 2 units of the last place.

    Narrower floats are computed in float32.
    """
    (n,) = inexact_operands("log10", x)
    if dtypes.is_complex(n.dtype):
        return finish(b.mul(b.log(b.cast(n, n.dtype)), b.like(n, LOG10_E)))
    wide = b.cast(n, n.dtype if n.dtype in LOG10_E_PARTS else np.dtype(np.float32))
    log = b.log(wide)
    high, low = LOG10_E_PARTS[wide.dtype]
    # Half of the bits of the logarithm times half of those of log10(e) is exact, so that their
    # product is rounded once: a rounding of it is worth two units where the logarithm's is one.
    bits = np.dtype(f"i{wide.dtype.itemsize}")
    kept = b.scalar(-1 << dtypes.finfo(wide.dtype).nmant // 2 + 1, bits)
    head = b.stop_gradient(b.bitcast(b.and_(b.bitcast(log, bits), kept), wide.dtype))
    whole = b.mul(log, b.like(log, LOG10_E))
    rest = b.add(b.mul(head, b.like(log, low)), b.mul(b.sub(log, head), b.like(log, LOG10_E)))
    product = b.add(b.mul(head, b.like(log, high)), rest)
    finite = UOp(Op.IS_FINITE, (log,))
    return finish(b.cast(b.where(finite, product, whole), n.dtype))


def logaddexp_node(p: UOp, q: UOp) -> UOp:
    """log(e**p + e**q) without overflow; equal infinities add up to themselves."""
    top = b.max_(p, q)
    delta = b.sub(p, q)
    same = b.ne(delta, delta)  # inf - inf or NaN
    shifted = b.add(top, UOp(Op.LOG1P, (b.exp(b.neg(b.abs_(delta))),)))
    return b.where(same, b.add(p, q), shifted)


def logaddexp(x: ArrayLike, y: ArrayLike, /) -> Array:
    """log(exp(x) + exp(y))."""
    p, q = inexact_operands("logaddexp", x, y)
    global _logaddexp
    if _logaddexp is None:
        f = custom_jvp(lambda u, v: finish(logaddexp_node(u.node, v.node)))

        def rule(primals: Any, tangents: Any) -> Any:
            u, v = primals
            du, dv = tangents
            out = f(u, v)
            weight_u = exp(where_finite(u, out))
            weight_v = exp(where_finite(v, out))
            return out, du * weight_u + dv * weight_v

        f.defjvp(rule)
        _logaddexp = f
    shape = p.shape or q.shape
    return _logaddexp(finish(b.fill_to(p, shape)), finish(b.fill_to(q, shape)))  # type: ignore[no-any-return]


_logaddexp: Any = None


def where_finite(u: Array, out: Array) -> Array:
    """u - out, with inf - inf counted as 0 (weight one)."""
    delta = b.sub(u.node, out.node)
    same = b.eq(u.node, out.node)
    return finish(b.where(same, b.like(delta, 0), delta))


def logaddexp2(x: ArrayLike, y: ArrayLike, /) -> Array:
    """log2(2**x + 2**y)."""
    p, q = inexact_operands("logaddexp2", x, y)
    ln2 = math.log(2)
    natural = logaddexp(finish(b.mul(p, b.like(p, ln2))), finish(b.mul(q, b.like(q, ln2))))
    return finish(b.div(natural.node, b.like(natural.node, ln2)))


def isfinite(x: ArrayLike, /) -> Array:
    """Neither infinite nor NaN."""
    (n,) = checked("isfinite", x)
    if not dtypes.is_inexact(n.dtype):
        return finish(b.full(n.shape, b.scalar(True, b.BOOL)))
    if dtypes.is_complex(n.dtype):
        parts = [UOp(Op.IS_FINITE, (p,)) for p in (b.real(n), b.imag(n))]
        return finish(b.and_(*parts))
    return finish(UOp(Op.IS_FINITE, (n,)))


def isnan(x: ArrayLike, /) -> Array:
    """Whether NaN."""
    (n,) = checked("isnan", x)
    return finish(b.ne(n, n))


def isinf(x: ArrayLike, /) -> Array:
    """Whether infinite."""
    (n,) = checked("isinf", x)
    if not dtypes.is_inexact(n.dtype):
        return finish(b.full(n.shape, b.scalar(False, b.BOOL)))
    parts = [b.real(n), b.imag(n)] if dtypes.is_complex(n.dtype) else [n]
    hits = [b.eq(b.abs_(p), b.like(p, np.inf)) for p in parts]
    return finish(hits[0] if len(hits) == 1 else b.or_(*hits))


def isposinf(x: ArrayLike, /, out: None = None) -> Array:
    """Whether +inf."""
    no_out("isposinf", out)
    (n,) = checked("isposinf", x)
    real_only("isposinf", n, ValueError)
    if not dtypes.is_inexact(n.dtype):
        return finish(b.full(n.shape, b.scalar(False, b.BOOL)))
    return finish(b.eq(n, b.like(n, np.inf)))


def isneginf(x: ArrayLike, /, out: None = None) -> Array:
    """Whether -inf."""
    no_out("isneginf", out)
    (n,) = checked("isneginf", x)
    real_only("isneginf", n, ValueError)
    if not dtypes.is_inexact(n.dtype):
        return finish(b.full(n.shape, b.scalar(False, b.BOOL)))
    return finish(b.eq(n, b.like(n, -np.inf)))


def truth(n: UOp) -> UOp:
    """x != 0 as bool. Raises: DtypeArgumentError for typed keys."""
    if dtypes.is_key(n.dtype):
        raise DtypeArgumentError(
            f"Cannot convert_element_type from {n.dtype} to bool: typed keys are neither true nor "
            "false."
        )
    return n if n.dtype == np.bool_ else b.ne(n, b.like(n, 0))


def _logical(op: Op, name: str) -> Callable[[ArrayLike, ArrayLike], Array]:
    def apply(x: ArrayLike, y: ArrayLike, /) -> Array:
        p, q = broadcast(name, [truth(n) for n in checked(name, x, y)])
        return finish(UOp(op, (p, q)))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"Elementwise truth of x {op.name.lower()} y."
    return apply


logical_and = _logical(Op.AND, "logical_and")
logical_or = _logical(Op.OR, "logical_or")
logical_xor = _logical(Op.XOR, "logical_xor")


def logical_not(x: ArrayLike, /) -> Array:
    """Elementwise truth of not x."""
    (n,) = checked("logical_not", x)
    return finish(b.not_(truth(n)))


def real(val: ArrayLike, /) -> Array:
    """Real part."""
    return finish(b.real(checked("real", val)[0]))


def imag(val: ArrayLike, /) -> Array:
    """Imaginary part (zeros for real x)."""
    (n,) = checked("imag", val)
    return finish(b.imag(n) if dtypes.is_complex(n.dtype) else b.zeros(n.aval))


def conjugate(x: ArrayLike, /) -> Array:
    """Complex conjugate."""
    return finish(b.conj(checked("conjugate", x)[0]))


conj = conjugate


def angle(z: ArrayLike, deg: bool = False) -> Array:
    """Argument of a complex number, in radians (or degrees)."""
    (n,) = inexact_operands("angle", z)
    n = b.cast(n, n.dtype)
    re = b.real(n)
    im = b.imag(n) if dtypes.is_complex(n.dtype) else b.zeros(n.aval)
    out = UOp(Op.ATAN2, (im, re))
    return finish(b.mul(out, b.like(out, 180 / math.pi)) if deg else out)


def hypot(x: ArrayLike, y: ArrayLike, /) -> Array:
    """sqrt(x**2 + y**2), scaled against overflow."""
    p, q = inexact_operands("hypot", x, y)
    if dtypes.is_complex(p.dtype):
        raise ValueError("jnp.hypot does not support complex-valued inputs.")
    p, q = b.abs_(p), b.abs_(q)
    top, low = b.max_(p, q), b.min_(p, q)
    nothing = b.eq(top, b.like(top, 0))
    ratio = b.div(low, b.where(nothing, b.fill_to(b.like(top, 1), top.shape), top))
    out = b.mul(top, b.sqrt(b.add(b.square(ratio), b.like(ratio, 1))))
    infinite = b.or_(b.eq(p, b.like(p, np.inf)), b.eq(q, b.like(q, np.inf)))
    return finish(b.where(infinite, b.like(top, np.inf), out))


def deg2rad(x: ArrayLike, /) -> Array:
    """Degrees to radians."""
    (n,) = inexact_operands("deg2rad", x)
    return finish(b.mul(n, b.like(n, math.pi / 180)))


def rad2deg(x: ArrayLike, /) -> Array:
    """Radians to degrees."""
    (n,) = inexact_operands("rad2deg", x)
    return finish(b.mul(n, b.like(n, 180 / math.pi)))


radians, degrees = deg2rad, rad2deg


def sinc(x: ArrayLike, /) -> Array:
    """sin(pi x) / (pi x), 1 at 0, smooth there (double where)."""
    (n,) = inexact_operands("sinc", x)
    zero = b.eq(n, b.like(n, 0))
    pix = b.mul(b.like(n, math.pi), n)
    safe = b.where(zero, b.fill_to(b.like(n, 1), n.shape), pix)
    squared = b.square(pix)
    # Near 0 the Maclaurin series carries value and derivatives.
    series = b.like(n, 1 / 362880)
    for c in (-1 / 5040, 1 / 120, -1 / 6, 1.0):
        series = b.add(b.mul(squared, series), b.like(n, c))
    return finish(b.where(zero, series, b.div(b.sin(safe), safe)))


def heaviside(x: ArrayLike, y: ArrayLike, /) -> Array:
    """0, y, 1 for x < 0, x = 0, x > 0."""
    p, q = inexact_operands("heaviside", x, y)
    real_only("heaviside", p)
    zero = b.like(p, 0)
    out = b.where(b.lt(p, zero), zero, b.where(b.gt(p, zero), b.like(p, 1), q))
    return finish(b.where(b.ne(p, p), p, out))


def ldexp(x: ArrayLike, y: ArrayLike, /) -> Array:
    """x * 2**y for integer y."""
    p, q = checked("ldexp", x, y)
    if not dtypes.is_integer(q.dtype) and q.dtype != np.bool_:
        raise ValueError(f"ldexp not supported for input types {(p.dtype.name, q.dtype.name)}")
    real_only("ldexp", p, ValueError)
    (p,) = promote_inexact([p])
    p, q = broadcast("ldexp", [p, b.cast(q, b.INT32) if q.dtype == np.bool_ else q])
    # Two halves, so that neither power of two leaves the range alone.
    half = UOp(Op.SHRA, (q, b.like(q, 1)))
    rest = b.sub(q, half)
    first = UOp(Op.EXP2, (b.cast(half, p.dtype),))
    second = UOp(Op.EXP2, (b.cast(rest, p.dtype),))
    return finish(b.mul(b.mul(p, first), second))


def frexp(x: ArrayLike, /) -> tuple[Array, Array]:
    """Mantissa in [0.5, 1) and exponent with x = m * 2**e."""
    (n,) = inexact_operands("frexp", x)
    magnitude = b.abs_(n)
    odd = b.or_(b.eq(n, b.like(n, 0)), b.not_(UOp(Op.IS_FINITE, (n,))))
    info = dtypes.finfo(n.dtype)
    tiny = b.lt(magnitude, b.like(n, float(info.tiny)))
    lift_by = info.nmant + 1
    scaled = b.where(tiny, b.mul(n, b.like(n, 2.0**lift_by)), n)
    width = dtypes.bit_width(n.dtype)
    ints = np.dtype(f"i{width // 8}")
    bits = b.bitcast(scaled, ints)
    mask = (1 << info.nexp) - 1
    field = b.and_(UOp(Op.SHRL, (bits, b.like(bits, info.nmant))), b.like(bits, mask))
    bias = (1 << (info.nexp - 1)) - 2
    exponent = b.sub(b.cast(field, b.INT32), b.scalar(bias, b.INT32))
    exponent = b.where(tiny, b.sub(exponent, b.scalar(lift_by, b.INT32)), exponent)
    cleared = b.and_(bits, b.like(bits, ~(mask << info.nmant)))
    mantissa = b.bitcast(b.or_(cleared, b.like(bits, bias << info.nmant)), n.dtype)
    zero = b.scalar(0, b.INT32)
    return finish(b.where(odd, n, mantissa)), finish(b.where(odd, zero, exponent))


def bitwise_count(x: ArrayLike, /) -> Array:
    """Number of one bits of |x|, as uint8."""
    (n,) = checked("bitwise_count", x)
    if n.dtype == np.bool_:
        return finish(b.cast(n, np.uint8))
    magnitude = n if dtypes.is_unsigned(n.dtype) else b.abs_(n)
    return finish(b.cast(UOp(Op.POPCOUNT, (magnitude,)), np.uint8))


def _integers(name: str, x: ArrayLike, y: ArrayLike) -> list[UOp]:
    nodes = operands(name, x, y)
    if not dtypes.is_integer(nodes[0].dtype):
        raise ValueError(f"Arguments to jax.numpy.{name} must be integers.")
    return nodes


def gcd(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Greatest common divisor (Euclid's algorithm in a while loop)."""
    p, q = _integers("gcd", x1, x2)
    shape = p.shape or q.shape
    first, second = finish(b.fill_to(b.abs_(p), shape)), finish(b.fill_to(b.abs_(q), shape))

    def running(c: Any) -> Array:
        return finish(b.reduce("or", b.ne(c[1].node, b.like(c[1].node, 0)), range(len(shape))))

    def step(c: Any) -> Any:
        u, v = c[0].node, c[1].node
        zero = b.eq(v, b.like(v, 0))
        safe = b.where(zero, b.fill_to(b.like(v, 1), v.shape), v)
        return (
            finish(b.where(zero, u, v)),
            finish(b.where(zero, b.fill_to(b.like(v, 0), v.shape), UOp(Op.REM, (u, safe)))),
        )

    return while_loop(running, step, (first, second))[0]  # type: ignore[no-any-return]


def lcm(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Least common multiple."""
    p, q = _integers("lcm", x1, x2)
    d = gcd(finish(p), finish(q)).node
    p, q = b.abs_(p), b.abs_(q)
    zero = b.eq(d, b.like(d, 0))
    safe = b.where(zero, b.fill_to(b.like(d, 1), d.shape), d)
    return finish(b.where(zero, b.like(d, 0), b.mul(p, b.div(q, safe))))


def fmax(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Larger of two, NaN ignored."""
    p, q = operands("fmax", x1, x2)
    return finish(b.where(b.or_(b.gt(p, q), b.ne(q, q)), p, q))


def fmin(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Smaller of two, NaN ignored."""
    p, q = operands("fmin", x1, x2)
    return finish(b.where(b.or_(b.lt(p, q), b.ne(q, q)), p, q))


def spacing(x: ArrayLike, /) -> Array:
    """Distance to the next float away from zero, with the sign of x."""
    (n,) = inexact_operands("spacing", x)
    if dtypes.is_complex(n.dtype):
        raise ValueError("jnp.spacing does not support complex inputs.")
    away = copysign(finish(b.full(n.shape, b.like(n, np.inf))), finish(n)).node
    n = b.cast(n, n.dtype)
    return finish(b.sub(UOp(Op.NEXTAFTER, (n, b.cast(away, n.dtype))), n))
