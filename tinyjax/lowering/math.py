"""Transcendental ops as straight-line arithmetic, for every target: the table and its two doors.

`decompose(m, op, args)` and `decompose_complex(m, op, pairs)` build the value of an op from the
operations of a `MathBuilder` (elementary/builder.py). float32 and float64 only: narrower floats are
computed in float32 and rounded once by the caller.

`DECOMPOSE` is the whole truth about real ops. The comment gives the largest error found, in units
in the last place for float32 (every 37th float) and float64 (10**6 samples over all exponents), and
the number of operations for both; `rare` code is counted apart. With AVX-512, 20 float32 operations
take about 0.13 ns per element. Infinities, NaN, signed zeros and subnormals are C99's.
Coefficients: `tools/fit_polynomials.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinyjax.core.ops import Op
from tinyjax.lowering.elementary import complex as complexes
from tinyjax.lowering.elementary import (
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
    "EXP": exponential.exp,  # 0.87, 0.86 ulp; 20, 25 operations
    "EXP2": exponential.exp2,  # 0.86, 0.76; 19, 25
    "EXPM1": exponential.expm1,  # 1.42, 1.78; 22, 27
    "LOGISTIC": exponential.logistic,  # 2.00, 1.98; 22, 27
    "TANH": exponential.tanh,  # 1.39, 1.31; 28, 40
    "SINH": exponential.sinh,  # 1.43, 1.40; 32, 37
    "COSH": exponential.cosh,  # 1.80, 1.48; 26, 31
    "LOG": logarithm.log,  # 0.92, 1.05; 29, 40
    "LOG2": logarithm.log2,  # 1.00, 0.98; 31, 42
    "LOG1P": logarithm.log1p,  # 1.44, 1.76; 36, 47
    "ASINH": logarithm.asinh,  # 1.00, 1.06; 95, 113
    "ACOSH": logarithm.acosh,  # 1.00, 1.06; 81, 92
    "ATANH": logarithm.atanh,  # 1.05, 1.04; 46, 64
    "SIN": trigonometric.sin,  # 1.54, 1.40; 20, 25 (rare path 82, 143)
    "COS": trigonometric.cos,  # 1.77, 1.57; 20, 25 (82, 143)
    "TAN": trigonometric.tan,  # 1.18, 1.18; 48, 56 (85, 146)
    "ASIN": trigonometric.asin,  # 1.14, 1.07; 23, 31
    "ACOS": trigonometric.acos,  # 1.13, 1.06; 24, 32
    "ATAN": trigonometric.atan,  # 1.18, 1.13; 22, 33
    "ATAN2": trigonometric.atan2,  # 1.40, 1.39; 36, 47
    "ERF": special.erf,  # 1.04, 0.97; 34, 56
    "ERFC": special.erfc,  # 1.52, 1.59; 67, 91
    "ERFINV": special.erfinv,  # 1.96, 1.81; 60, 157
    "POW": power.power,  # 0.87, 0.85; 121, 132
    "CBRT": power.cbrt,  # 0.50, 0.50; 52, 58
    "RSQRT": power.rsqrt,  # 1.49, 1.48; 2, 2
    "LGAMMA": gamma.lgamma,  # 1.97, 1.69 for x > 0, see gamma.py; 150, 219
    "DIGAMMA": gamma.digamma,  # 1.89, 1.75 for x > 0; 107, 153
}


def decompose(m: MathBuilder, op: Op | str, args: Sequence[Value]) -> Value:
    """The value of a real op; `op` is an `Op` or its name."""
    name = op if isinstance(op, str) else op.name
    return DECOMPOSE[name](*[Num(m, x, m.dtype(x)) for x in args]).raw


def decompose_complex(m: MathBuilder, op: Op | str, pairs: Sequence[Pair]) -> Sequence[Value]:
    """The (re, im) of a complex op over (re, im) pairs; one value for ABS."""
    name = op if isinstance(op, str) else op.name
    operands = [complexes.Complex(*(Num(m, x, m.dtype(x)) for x in pair)) for pair in pairs]
    result = complexes.DECOMPOSE[name](*operands)
    if isinstance(result, Num):
        return (result.raw,)
    return (result.re.raw, result.im.raw)
