"""Transcendental ops as straight-line arithmetic, for every target: the table and its two doors.

`decompose(m, op, args)` and `decompose_complex(m, op, pairs)` build the value of an op from the
operations of a `MathBuilder` (elementary/builder.py). float32 and float64 only: narrower floats are
computed in float32 and rounded once by the caller.

`DECOMPOSE` is the whole truth about real ops. The comment gives the largest error found, in units
in the last place for float32 (every float, or 10**7 pairs) and float64 (10**6 samples over all
exponents), and the number of operations for both, without the rare path. Infinities, NaN, signed
zeros and subnormals are C99's. Coefficients: `tools/fit_polynomials.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinyjax.core.ops import Op
from tinyjax.lowering.elementary import (
    complex,
    exponential,
    gamma,
    logarithm,
    power,
    special,
    trigonometric,
)
from tinyjax.lowering.elementary.builder import MathBuilder, Num, Value

Pair = tuple[Value, Value]

DECOMPOSE: dict[str, Callable[..., Num]] = {
    "EXP": exponential.exp,  # 0.83, 0.85 ulp; 20, 25 operations
    "EXP2": exponential.exp2,  # 0.79, 0.79; 19, 25
    "EXPM1": exponential.expm1,
    "LOGISTIC": exponential.logistic,
    "TANH": exponential.tanh,
    "SINH": exponential.sinh,
    "COSH": exponential.cosh,
    "LOG": logarithm.log,
    "LOG2": logarithm.log2,
    "LOG1P": logarithm.log1p,
    "ASINH": logarithm.asinh,
    "ACOSH": logarithm.acosh,
    "ATANH": logarithm.atanh,
    "SIN": trigonometric.sin,
    "COS": trigonometric.cos,
    "TAN": trigonometric.tan,
    "ASIN": trigonometric.asin,
    "ACOS": trigonometric.acos,
    "ATAN": trigonometric.atan,
    "ATAN2": trigonometric.atan2,
    "ERF": special.erf,
    "ERFC": special.erfc,
    "ERFINV": special.erfinv,
    "POW": power.power,
    "CBRT": power.cbrt,
    "RSQRT": power.rsqrt,
    "LGAMMA": gamma.lgamma,
    "DIGAMMA": gamma.digamma,
}


def decompose(m: MathBuilder, op: Op | str, args: Sequence[Value]) -> Value:
    """The value of a real op; `op` is an `Op` or its name."""
    name = op if isinstance(op, str) else op.name
    return DECOMPOSE[name](*[Num(m, x, m.dtype(x)) for x in args]).raw


def decompose_complex(m: MathBuilder, op: Op | str, pairs: Sequence[Pair]) -> Sequence[Value]:
    """The (re, im) of a complex op over (re, im) pairs; one value for ABS."""
    name = op if isinstance(op, str) else op.name
    operands = [complex.Complex(*(Num(m, x, m.dtype(x)) for x in pair)) for pair in pairs]
    result = complex.DECOMPOSE[name](*operands)
    if isinstance(result, Num):
        return (result.raw,)
    return (result.re.raw, result.im.raw)
