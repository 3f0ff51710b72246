"""Decompositions: errors in ulp over all exponents, special values, the same bits everywhere."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from tests.lowering.math_builders import Array, Compiled, NumpyMath, by_numpy
from tinyjax.lowering import irtext
from tinyjax.lowering.elementary import coefficients
from tinyjax.lowering.irtext import Module
from tinyjax.lowering.math import DECOMPOSE, decompose
from tinyjax.lowering.registers import Register, RegisterBuilder
from tools import fit_polynomials

mp = mpmath.MPContext()
mp.prec = 120

F32, F64 = np.float32, np.float64
DTYPES = [F32, F64]

# Largest error allowed, in ulp, for float32 and float64: what was measured, rounded up.
BOUNDS: dict[str, tuple[float, float]] = {
    "EXP": (0.9, 0.9),
    "EXP2": (0.9, 0.85),
    "EXPM1": (1.5, 1.85),
    "LOGISTIC": (2.0, 2.0),
    "TANH": (1.45, 1.4),
    "SINH": (1.5, 1.5),
    "COSH": (1.85, 1.85),
    "LOG": (0.95, 1.1),
    "LOG2": (1.05, 1.05),
    "LOG1P": (1.5, 1.85),
    "ASINH": (1.2, 1.2),
    "ACOSH": (1.2, 1.2),
    "ATANH": (1.1, 1.1),
    "SIN": (1.6, 1.5),
    "COS": (1.8, 1.7),
    "TAN": (1.25, 1.2),
    "ASIN": (1.2, 1.15),
    "ACOS": (1.15, 1.1),
    "ATAN": (1.2, 1.2),
    "ATAN2": (1.5, 1.5),
    "ERF": (1.1, 1.0),
    "ERFC": (1.6, 1.65),
    "ERFINV": (1.98, 1.9),
    "POW": (0.95, 0.9),
    "CBRT": (0.51, 0.51),
    "RSQRT": (1.5, 1.5),
}

EXACT: dict[str, Callable[[Any], Any]] = {
    "EXP": mp.exp,
    "EXP2": lambda x: mp.mpf(2) ** x,
    "EXPM1": mp.expm1,
    "LOGISTIC": lambda x: 1 / (1 + mp.exp(-x)),
    "TANH": mp.tanh,
    "SINH": mp.sinh,
    "COSH": mp.cosh,
    "LOG": mp.log,
    "LOG2": lambda x: mp.log(x) / mp.log(2),
    "LOG1P": mp.log1p,
    "ASINH": mp.asinh,
    "ACOSH": mp.acosh,
    "ATANH": mp.atanh,
    "SIN": mp.sin,
    "COS": mp.cos,
    "TAN": mp.tan,
    "ASIN": mp.asin,
    "ACOS": mp.acos,
    "ATAN": mp.atan,
    "ATAN2": mp.atan2,
    "ERF": mp.erf,
    "ERFC": lambda x: mp.erfc(max(min(x, 1000), -1000)),
    "ERFINV": mp.erfinv,
    "POW": mp.power,
    "CBRT": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    "RSQRT": lambda x: 1 / mp.sqrt(x),
}

WIDER: dict[str, Callable[..., Any]] = {
    "EXP": np.exp,
    "EXP2": np.exp2,
    "EXPM1": np.expm1,
    "TANH": np.tanh,
    "SINH": np.sinh,
    "COSH": np.cosh,
    "LOG": np.log,
    "LOG2": np.log2,
    "LOG1P": np.log1p,
    "ASINH": np.arcsinh,
    "ACOSH": np.arccosh,
    "ATANH": np.arctanh,
    "SIN": np.sin,
    "COS": np.cos,
    "TAN": np.tan,
    "ASIN": np.arcsin,
    "ACOS": np.arccos,
    "ATAN": np.arctan,
    "ATAN2": np.arctan2,
    "POW": np.power,
    "CBRT": np.cbrt,
    "RSQRT": lambda x: 1 / np.sqrt(x),
    "LOGISTIC": lambda x: np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x))),
}
"""The same functions for a wider float than the one under test."""

INSIDE_ONE = {"ASIN", "ACOS", "ATANH", "ERFINV"}
POSITIVE = {"LOG", "LOG2", "RSQRT"}
BINARY = ("ATAN2", "POW")


@functools.cache
def compiled(name: str, dtype: Any) -> Compiled:
    return Compiled(name, dtype, 2 if name in BINARY else 1)


def samples(name: str, dtype: Any, count: int, seed: int = 0) -> tuple[Array, ...]:
    """Arguments over all exponents, where the function varies, and next to its singular points."""
    rng = np.random.default_rng([seed, count, len(name)])
    word = np.uint32 if dtype is F32 else np.uint64
    bits = rng.integers(0, np.iinfo(word).max, count, dtype=word, endpoint=True).view(dtype)
    quarter = count // 4
    spread = rng.choice([-1.0, 1.0], quarter) * np.exp(rng.uniform(math.log(1e-4), 7, quarter))
    near_one = 1 - rng.choice([-1.0, 1.0], quarter) * np.exp(rng.uniform(-20, 0, quarter))
    small = rng.standard_normal(quarter)
    others = np.concatenate([spread, near_one, small]).astype(dtype)
    x = np.concatenate([bits[np.isfinite(bits)], others])
    if name in POSITIVE:
        x = np.abs(x)
    if name == "ACOSH":
        x = np.where(np.abs(x) < 1, 2 - np.abs(x), np.abs(x))
    if name == "LOG1P":
        x = x[x > -1]
    if name in INSIDE_ONE:
        x = x[np.abs(x) < 1]
    if name not in BINARY:
        return (x.astype(dtype),)
    y = rng.permutation(x)
    if name == "POW":
        x = np.abs(x)
        x[x == 0] = 1
        high = 90 if dtype is F32 else 740
        half = len(x) // 2  # exponents that keep the result in range
        with np.errstate(all="ignore"):
            y[:half] = rng.uniform(-high, high, half) / np.log(x[:half].astype(F64))
        y[~np.isfinite(y)] = 1
    return x.astype(dtype), y.astype(dtype)


def ulp_errors(got: Array, want: Array) -> Array:
    """|got - want| in units of the last place of `want`, in the wider dtype of `want`.

    Equal infinities are right; so is overflow where `want` rounds to infinity.
    """
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(want)
        place = np.ldexp(want.dtype.type(1), np.maximum(exponent - 1, info.minexp) - info.nmant)
        error = np.abs(got.astype(want.dtype) - want) / place
        same = (want.astype(got.dtype) == got) & ~np.isfinite(got)
    return np.where(same, 0, np.where(np.isnan(error), np.inf, error))


def exact_error(name: str, args: tuple[Any, ...], got: Any) -> float:
    """The same for one result, against 120-bit arithmetic."""
    info = np.finfo(got.dtype)
    want = EXACT[name](*(mp.mpf(float(x)) for x in args))
    if mp.isnan(want) or mp.isinf(want):
        return 0.0 if float(want) == float(got) or math.isnan(float(got)) else math.inf
    limit = mp.mpf(2) ** info.maxexp * (1 - mp.mpf(2) ** -(info.nmant + 2))
    if abs(want) >= limit or not math.isfinite(got):
        return 0.0 if abs(want) >= limit and math.isinf(got) else math.inf
    if want == 0:
        return 0.0 if got == 0 else math.inf
    exponent = max(int(mp.floor(mp.log(abs(want), 2))), info.minexp)
    return float(abs(mp.mpf(float(got)) - want) * mp.mpf(2) ** (info.nmant - exponent))


@pytest.mark.parametrize("name", WIDER)
def test_float32_is_within_its_bound_of_float64(name: str) -> None:
    args = samples(name, F32, 40_000)
    got = compiled(name, F32)(*args)
    with np.errstate(all="ignore"):
        want = WIDER[name](*(x.astype(F64) for x in args))
    errors = ulp_errors(got, want)
    worst = int(np.argmax(errors))
    assert errors[worst] <= BOUNDS[name][0], [x[worst] for x in args]


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no wider float than float64")
@pytest.mark.parametrize("name", WIDER)
def test_float64_is_within_its_bound_of_long_double(name: str) -> None:
    args = samples(name, F64, 10_000)
    got = compiled(name, F64)(*args)
    with np.errstate(all="ignore"):
        want = WIDER[name](*(x.astype(np.longdouble) for x in args))
    errors = ulp_errors(got, want)
    worst = int(np.argmax(errors))
    assert errors[worst] <= BOUNDS[name][1] + 0.002, [x[worst] for x in args]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXACT)
def test_a_function_is_within_its_bound_of_120_bit_arithmetic(name: str, dtype: Any) -> None:
    args = samples(name, dtype, 200 if name in ("ERFINV", "ERFC", "ERF") else 400)
    got = compiled(name, dtype)(*args)
    errors = [exact_error(name, point, y) for *point, y in zip(*args, got)]
    worst = int(np.argmax(errors))
    assert errors[worst] <= BOUNDS[name][dtype is F64], [x[worst] for x in args]


@pytest.mark.parametrize("name", ["EXP", "SIN", "ERFCX"])
def test_coefficients_are_what_the_fitting_tool_finds(name: str) -> None:
    for bits in (32, 64):
        found, _ = fit_polynomials.fit(fit_polynomials.FITS[name], bits)
        assert tuple(found) == getattr(coefficients, name)[bits]


def test_no_bound_is_above_2_ulp_and_every_op_has_one() -> None:
    assert max(max(pair) for pair in BOUNDS.values()) <= 2
    assert set(DECOMPOSE) == set(BOUNDS) | {"LGAMMA", "DIGAMMA"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DECOMPOSE)
def test_numpy_and_llvm_give_the_same_bits(name: str, dtype: Any) -> None:
    args = samples(name, dtype, 400, seed=1)
    got, want = compiled(name, dtype)(*args), by_numpy(name, *args)
    assert got.dtype == want.dtype == dtype
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[got == got]), np.signbit(want[got == got]))


def test_many_sines_share_one_reduction_of_huge_arguments() -> None:
    """Each used to have its own inline: long to compile, and the loop's registers did not do."""
    module = Module()
    b = module.function("chain", [("x", irtext.F64)], irtext.F64)
    x = Register(np.dtype(F64), b.args[0])
    for op in ("SIN", "COS", "SIN", "SIN"):
        x = decompose(RegisterBuilder(b), op, [x])
    b.ret(x.value)
    text = module.text()
    assert (text.count("define internal"), text.count("call {")) == (2, 4)


def test_the_numpy_fma_rounds_once() -> None:
    m = NumpyMath()
    tiny = F32(2.0**-30)  # 1 + 2**-24 is a tie in float32, broken by the last term
    a = np.array([1 + 2.0**-12], F32)
    assert m.fma(a, a, -a)[0] == F32(float(a[0]) * float(a[0]) - float(a[0]))
    assert m.fma(np.array([2.0**-24], F32), np.array([1.0], F32), np.array([1.0], F32))[0] == 1
    assert m.fma(F32(2.0**-24) * (1 + tiny * 128), F32(1), np.array([1.0], F32))[0] > 1
    b = np.array([1 + 2.0**-30], F64)
    assert m.fma(b, b, -(b * b))[0] == 2.0**-60
    small = np.array([2.0**-1060], F64)
    assert m.fma(small, np.array([0.5]), small)[0] == 1.5 * 2.0**-1060


# Special values.

inf, nan = math.inf, math.nan
HALF_PI = math.pi / 2
SPECIAL: dict[str, list[tuple[float, float]]] = {
    "EXP": [(0.0, 1), (-0.0, 1), (inf, inf), (-inf, 0), (1e30, inf), (-1e30, 0)],
    "EXP2": [
        (0.0, 1),
        (inf, inf),
        (-inf, 0),
        (1.0, 2),
        (-1.0, 0.5),
        (10.0, 1024),
        (1e30, inf),
        (-1e30, 0),
    ],
    "EXPM1": [
        (0.0, 0.0),
        (-0.0, -0.0),
        (inf, inf),
        (-inf, -1),
        (1e30, inf),
        (-1e30, -1),
        (1e-30, 1e-30),
    ],
    "LOGISTIC": [(0.0, 0.5), (-0.0, 0.5), (inf, 1), (-inf, 0), (1e30, 1), (-1e30, 0)],
    "TANH": [(0.0, 0.0), (-0.0, -0.0), (inf, 1), (-inf, -1), (1e30, 1), (1e-30, 1e-30)],
    "SINH": [
        (0.0, 0.0),
        (-0.0, -0.0),
        (inf, inf),
        (-inf, -inf),
        (1e30, inf),
        (-1e30, -inf),
        (1e-30, 1e-30),
    ],
    "COSH": [(0.0, 1), (inf, inf), (-inf, inf), (1e30, inf), (-1e30, inf)],
    "LOG": [
        (0.0, -inf),
        (-0.0, -inf),
        (1.0, 0.0),
        (inf, inf),
        (-1.0, nan),
        (-inf, nan),
        (-1e-30, nan),
    ],
    "LOG2": [
        (0.0, -inf),
        (-0.0, -inf),
        (1.0, 0.0),
        (8.0, 3),
        (0.25, -2),
        (inf, inf),
        (-1.0, nan),
        (-inf, nan),
    ],
    "LOG1P": [
        (0.0, 0.0),
        (-0.0, -0.0),
        (-1.0, -inf),
        (inf, inf),
        (-2.0, nan),
        (-inf, nan),
        (1e-30, 1e-30),
    ],
    "ASINH": [(0.0, 0.0), (-0.0, -0.0), (inf, inf), (-inf, -inf), (1e-30, 1e-30)],
    "ACOSH": [(1.0, 0.0), (inf, inf), (0.5, nan), (0.0, nan), (-1.0, nan), (-inf, nan)],
    "ATANH": [
        (0.0, 0.0),
        (-0.0, -0.0),
        (1.0, inf),
        (-1.0, -inf),
        (2.0, nan),
        (-inf, nan),
        (1e-30, 1e-30),
    ],
    "SIN": [(0.0, 0.0), (-0.0, -0.0), (inf, nan), (-inf, nan), (1e-30, 1e-30)],
    "COS": [(0.0, 1), (-0.0, 1), (inf, nan), (-inf, nan)],
    "TAN": [(0.0, 0.0), (-0.0, -0.0), (inf, nan), (-inf, nan), (1e-30, 1e-30)],
    "ASIN": [(0.0, 0.0), (-0.0, -0.0), (1.0, HALF_PI), (-1.0, -HALF_PI), (2.0, nan), (inf, nan)],
    "ACOS": [(1.0, 0.0), (0.0, HALF_PI), (-1.0, math.pi), (2.0, nan), (-inf, nan)],
    "ATAN": [(0.0, 0.0), (-0.0, -0.0), (inf, HALF_PI), (-inf, -HALF_PI), (1e-30, 1e-30)],
    "ERF": [(0.0, 0.0), (-0.0, -0.0), (inf, 1), (-inf, -1), (1e30, 1)],
    "ERFC": [(0.0, 1), (inf, 0), (-inf, 2), (1e30, 0), (-1e30, 2)],
    "ERFINV": [(0.0, 0.0), (-0.0, -0.0), (1.0, inf), (-1.0, -inf), (1.5, nan), (inf, nan)],
    "CBRT": [(0.0, 0.0), (-0.0, -0.0), (27.0, 3), (-8.0, -2), (inf, inf), (-inf, -inf)],
    "RSQRT": [(0.0, inf), (-0.0, -inf), (4.0, 0.5), (inf, 0), (-1.0, nan), (-inf, nan)],
    "LGAMMA": [
        (0.0, inf),
        (-0.0, inf),
        (1.0, 0.0),
        (2.0, 0.0),
        (-3.0, inf),
        (inf, inf),
        (-inf, inf),
    ],
    "DIGAMMA": [(0.0, nan), (-0.0, nan), (-2.0, nan), (inf, inf), (-inf, nan)],
}


def same_value(got: Any, want: Any) -> bool:
    """Equal with the sign of zero, or both NaN."""
    if math.isnan(want):
        return math.isnan(got)
    return bool(got == want) and math.copysign(1, got) == math.copysign(1, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name: str, dtype: Any) -> None:
    points, wanted = zip(*SPECIAL[name], (nan, nan))
    got = compiled(name, dtype)(np.array(points, dtype))
    for x, y, want in zip(points, got, wanted, strict=True):
        assert same_value(y, dtype(want)), (x, y, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_special_values_of_two_arguments(name: str, dtype: Any) -> None:
    values = [0.0, 0.5, 1.0, 2.0, 3.0, 2.0**24 - 1, 1e30, inf]
    values += [-v for v in values] + [nan]
    x, y = (np.array(v, dtype) for v in zip(*[(a, b) for a in values for b in values]))
    got = compiled(name, dtype)(x, y)
    with np.errstate(all="ignore"):
        want = WIDER[name](x.astype(F64), y.astype(F64)).astype(dtype)
    for point in zip(x, y, got, want):
        *_, g, w = point
        close = abs(g - w) <= 1e-6 * abs(w) if math.isfinite(w) and w != 0 else same_value(g, w)
        assert close and math.copysign(1, g) == math.copysign(1, w) or math.isnan(w), point


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["SIN", "TANH", "EXPM1", "LOG1P", "ERF", "ASINH", "SINH"])
def test_subnormals_are_kept(name: str, dtype: Any) -> None:
    """f(x) = x there, except erf(x) = 2x/sqrt(pi)."""
    x = np.finfo(dtype).smallest_subnormal * np.array([1, 2, 3, 1001, -7], dtype)
    factor = 2 / math.sqrt(math.pi) if name == "ERF" else 1.0
    want = np.rint(np.array([1, 2, 3, 1001, -7]) * factor) * np.finfo(dtype).smallest_subnormal
    np.testing.assert_array_equal(compiled(name, dtype)(x), want.astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["SIN", "COS", "TAN"])
def test_angles_are_reduced_up_to_the_largest_float(name: str, dtype: Any) -> None:
    """All exponents from the fast path's limit on, and the floats next to multiples of pi/2."""
    info = np.finfo(dtype)
    powers = np.ldexp(dtype(1), np.arange(10, info.maxexp))
    rng = np.random.default_rng(3)
    mantissas = rng.uniform(1, 2, len(powers)).astype(dtype)
    with mp.workprec(1200):
        close = [float(n * mp.pi / 2) for n in (1, 2, 3, 11, 10**5, 10**9, 10**15 + 1)]
    hard = (
        [16367173 * 2.0**72, 0.6381319 * 2.0**90] if dtype is F32 else [6381956970095103 * 2.0**797]
    )
    x = np.concatenate([powers * mantissas, np.array([*close, *hard, info.max], dtype)])
    got = compiled(name, dtype)(x)
    bound = BOUNDS[name][dtype is F64]
    with mp.workprec(2400):
        exact = [EXACT[name](mp.mpf(float(v))) for v in x]
    for v, y, want in zip(x, got, exact, strict=True):
        exponent = max(int(mp.floor(mp.log(abs(want), 2))), info.minexp)
        error = abs(mp.mpf(float(y)) - want) * mp.mpf(2) ** (info.nmant - exponent)
        assert error <= bound, (v, y)


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_gamma_and_digamma_on_both_half_lines(dtype: Any) -> None:
    """Relative for x > 0; for x < 0 relative to the largest term of the reflection formula."""
    rng = np.random.default_rng(5)
    positive = np.concatenate(
        [rng.uniform(0, 9, 400), np.exp(rng.uniform(-60, 60, 60)), [1 + 1e-3, 2 - 1e-3, 1.4616]]
    ).astype(dtype)
    negative = -rng.uniform(0.01, 20, 60).astype(dtype)
    eps = float(np.finfo(dtype).eps)
    for name, exact in (("LGAMMA", mp.loggamma), ("DIGAMMA", mp.digamma)):
        got = compiled(name, dtype)(positive)
        for x, y in zip(positive, got, strict=True):
            with mp.workprec(140):
                want = exact(mp.mpf(float(x)))
                error = float(abs(mp.mpf(float(y)) - want))
            assert error <= 2 * np.spacing(dtype(abs(float(want)))), (name, x)
        got = compiled(name, dtype)(negative)
        for x, y in zip(negative.astype(F64), got, strict=True):
            if name == "LGAMMA":
                want = float(mp.re(mp.loggamma(mp.mpf(x))))
                terms = [math.log(-x), math.log(abs(math.sin(math.pi * x))), math.lgamma(-x)]
            else:
                want = float(mp.digamma(mp.mpf(x)))
                terms = [float(mp.digamma(1 - x)), math.pi / math.tan(math.pi * x)]
            assert abs(y - want) <= 8 * eps * max(abs(t) for t in [*terms, want]), (name, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gamma_functions_of_subnormals(dtype: Any) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([tiny, -tiny], dtype)
    assert compiled("DIGAMMA", dtype)(x).tolist() == [-np.inf, np.inf]
    np.testing.assert_array_max_ulp(compiled("LGAMMA", dtype)(x), -np.log(abs(x)), 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in WIDER if n not in BINARY])
def test_every_float32_is_within_its_bound(name: str) -> None:
    function, chunk = compiled(name, F32), 1 << 22
    worst, where = 0.0, None
    for start in range(0, 1 << 32, chunk):
        x = np.arange(start, start + chunk, dtype=np.uint32).view(F32)
        got = function(x)
        with np.errstate(all="ignore"):
            want = WIDER[name](x.astype(F64))
        errors = np.where(np.isnan(got) & np.isnan(want), 0, ulp_errors(got, want))
        at = int(np.argmax(errors))
        if errors[at] > worst:
            worst, where = float(errors[at]), x[at]
    assert worst <= BOUNDS[name][0], where
