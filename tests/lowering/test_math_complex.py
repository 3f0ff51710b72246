"""Complex decompositions: each part in ulp, C99's special values, branch cuts and signed zeros."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from tests.lowering.math_builders import Array, Compiled
from tinyjax.lowering.elementary.complex import DECOMPOSE

mp = mpmath.MPContext()
mp.prec = 500
F32, F64 = np.float32, np.float64
DTYPES = [F32, F64]
BINARY = {"DIV", "POW"}

EXACT: dict[str, Callable[..., Any]] = {
    "ABS": abs,
    "SIGN": lambda z: z / abs(z),
    "SQRT": mp.sqrt,
    "RSQRT": lambda z: 1 / mp.sqrt(z),
    "EXP": mp.exp,
    "EXP2": lambda z: mp.mpf(2) ** z,
    "EXPM1": mp.expm1,
    "LOGISTIC": lambda z: 1 / (1 + mp.exp(-z)),
    "LOG": mp.log,
    "LOG2": lambda z: mp.log(z) / mp.log(2),
    "LOG1P": lambda z: mp.log(1 + z),
    "SIN": mp.sin,
    "COS": mp.cos,
    "TAN": mp.tan,
    "SINH": mp.sinh,
    "COSH": mp.cosh,
    "TANH": mp.tanh,
    "ASIN": mp.asin,
    "ACOS": mp.acos,
    "ATAN": mp.atan,
    "ASINH": mp.asinh,
    "ACOSH": mp.acosh,
    "ATANH": mp.atanh,
    "DIV": lambda z, w: z / w,
    "POW": lambda z, w: mp.exp(w * mp.log(z)),
}
BY_MODULUS = {"EXP2": 16, "EXPM1": 3, "LOGISTIC": 4, "DIV": 4, "POW": 64}
"""Ops whose parts may cancel: the error is bounded relative to the modulus, in eps."""
ULP = 5.0
"""For the others each part has its own bound, in ulp."""


@functools.cache
def compiled(name: str, dtype: Any) -> Compiled:
    return Compiled(name, dtype, 2 if name in BINARY else 1, complex_op=True)


def samples(dtype: Any, count: int, seed: int) -> list[Array]:
    """Four arrays of parts of all kinds of size, often near 1, never 0 (mpmath has no -0)."""
    rng = np.random.default_rng(seed)

    def part() -> Array:
        sizes = rng.choice([1e-12, 1e-5, 0.1, 1.0, 3.0, 20.0], count)
        x = rng.standard_normal(count) * sizes
        near = rng.random(count) < 0.3
        return np.where(near, 1 + rng.standard_normal(count) * 1e-3, x).astype(dtype)

    return [part() for _ in range(4)]


def ulp_error(got: Any, want: Any) -> float:
    info = np.finfo(got.dtype)
    if want == 0:
        return 0.0 if got == 0 else math.inf
    exponent = max(int(mp.floor(mp.log(abs(want), 2))), info.minexp)
    return float(abs(mp.mpf(float(got)) - want) * mp.mpf(2) ** (info.nmant - exponent))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [n for n in DECOMPOSE if n != "ATAN2"])  # a formula of others
def test_both_parts_are_accurate(name: str, dtype: Any) -> None:
    parts = samples(dtype, 250, seed=len(name))
    if name == "POW":
        parts = [np.clip(p, -4, 4) for p in parts]
    used = parts if name in BINARY else parts[:2]
    results = compiled(name, dtype)(*used)
    results = [results] if name == "ABS" else results
    for i in range(len(parts[0])):
        numbers = [float(p[i]) for p in used]
        operands = [mp.mpc(*numbers[k : k + 2]) for k in range(0, len(numbers), 2)]
        want = EXACT[name](*operands)
        got = [r[i] for r in results]
        if name in BY_MODULUS:
            error = abs(mp.mpc(*(float(g) for g in got)) - want) / abs(want)
            allowed = BY_MODULUS[name] * float(np.finfo(dtype).eps)
            if name == "LOGISTIC":  # near its poles
                allowed *= 1 + float(abs(want))
            assert error <= allowed, (numbers, got)
            continue
        for part, exact in zip(got, [mp.re(want), mp.im(want)], strict=False):
            assert ulp_error(part, exact) <= ULP, (numbers, got)


BY_NUMPY: dict[str, Callable[..., Any]] = {
    "ABS": np.abs,
    "SQRT": np.sqrt,
    "EXP": np.exp,
    "LOG": np.log,
    "SIN": np.sin,
    "COS": np.cos,
    "TAN": np.tan,
    "SINH": np.sinh,
    "COSH": np.cosh,
    "TANH": np.tanh,
    "ASIN": np.arcsin,
    "ACOS": np.arccos,
    "ATAN": np.arctan,
    "ASINH": np.arcsinh,
    "ACOSH": np.arccosh,
    "ATANH": np.arctanh,
}
"""NumPy calls the C library here, which has C99's special values."""

inf, nan = math.inf, math.nan
UNSPECIFIED_SIGN = {
    "EXP": lambda x, y: x == -inf and not math.isfinite(y),
    "SIN": lambda x, y: math.isinf(y) and not math.isfinite(x),
    "COS": lambda x, y: x == 0 and y != y or y == 0 and not math.isfinite(x),
    "SINH": lambda x, y: math.isinf(x) and not math.isfinite(y),
    "COSH": lambda x, y: not math.isfinite(y) and x == 0 or x != x and y == 0,
    "TAN": lambda x, y: math.isinf(y) and not math.isfinite(x),
    "TANH": lambda x, y: math.isinf(x) and not math.isfinite(y),
}
"""Where C99 leaves the sign of a zero or an infinity open."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BY_NUMPY)
def test_special_values_and_branch_cuts(name: str, dtype: Any) -> None:
    values = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, inf, -inf, nan]
    x, y = (np.array(v, dtype) for v in zip(*[(a, b) for a in values for b in values]))
    results = compiled(name, dtype)(x, y)
    z = np.empty(len(x), np.complex128)
    z.real, z.imag = x, y
    with np.errstate(all="ignore"):
        want = BY_NUMPY[name](z)
    wanted, got = ([want], [results]) if name == "ABS" else ([want.real, want.imag], results)
    free = UNSPECIFIED_SIGN.get(name, lambda x, y: False)
    for i in range(len(x)):
        for w, g in zip([v[i] for v in wanted], [v[i] for v in got], strict=True):
            if math.isnan(w):
                assert math.isnan(g), (x[i], y[i], g)
                continue
            assert abs(g) == abs(w) or abs(g - w) <= 1e-6 * abs(w), (x[i], y[i], g, w)
            assert free(x[i], y[i]) or np.signbit(w) == np.signbit(g), (x[i], y[i], g, w)


@pytest.mark.parametrize("dtype", DTYPES)
def test_division_by_zero_and_by_infinity(dtype: Any) -> None:
    """C99 G.5.1: nonzero/0 is infinite, finite/inf is 0, inf/finite is infinite."""
    f = compiled("DIV", dtype)
    cases = [
        ((1, 2), (0, 0), (inf, inf)),
        ((-1, 2), (0, 0), (-inf, inf)),
        ((1, 2), (-0.0, 0), (-inf, -inf)),
        ((1, 2), (inf, 0), (0, 0)),
        ((1, 2), (inf, inf), (0, 0)),
        ((inf, 0), (1, 1), (inf, -inf)),
        ((inf, nan), (1, 1), (inf, -inf)),
        ((1, nan), (2, 1), (nan, nan)),
        ((inf, inf), (inf, 1), (nan, nan)),
    ]
    for (a, b), (c, d), want in cases:
        got = [float(part[0]) for part in f(*([v] for v in (a, b, c, d)))]
        for g, w in zip(got, want, strict=True):
            assert g == w or math.isnan(w) and math.isnan(g), (a, b, c, d, got)


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_operands_neither_overflow_nor_vanish(dtype: Any) -> None:
    info = np.finfo(dtype)
    big, small = float(info.max) / 2, float(info.tiny)

    def close(name: str, operands: list[float], want: list[float]) -> None:
        made = compiled(name, dtype)(*([v] for v in operands))
        got = [made] if name == "ABS" else made
        for g, w in zip(got, want, strict=True):
            assert g[0] == w or abs(float(g[0]) - w) <= 8 * float(info.eps) * abs(w), (
                name,
                operands,
                got,
            )

    close("ABS", [big, big], [big * math.sqrt(2)])
    close("ABS", [small * 3 / 64, small * 4 / 64], [small * 5 / 64])
    close("DIV", [big, big, big, big], [1, 0])
    close("DIV", [small, small, small, small], [1, 0])
    close("DIV", [small, 0, small * 2.0**-10, 0], [1024, 0])
    close("SQRT", [big, 0.0], [math.sqrt(big), 0])
    close("SQRT", [-big, big * small], [0.5 * math.sqrt(big) * small, math.sqrt(big)])
    close("LOG", [big, big], [math.log(big) + 0.5 * math.log(2), math.pi / 4])
    close("SIGN", [big, -big], [math.sqrt(0.5), -math.sqrt(0.5)])
    # The largest of all: |z| is out of range, its root and direction are not.
    most = float(info.max)
    far, near = (math.sqrt((math.sqrt(2) + side) / 2) for side in (1, -1))
    close("SIGN", [-most, most], [-math.sqrt(0.5), math.sqrt(0.5)])
    close("SQRT", [most, most], [math.sqrt(most) * far, math.sqrt(most) * near])
    tall = math.log(most) + math.log(2) + 0.5 * math.log(2)
    close("ACOSH", [most, most], [tall, math.pi / 4])
    close("ASINH", [-most, most], [-tall, math.pi / 4])
    close("ACOS", [most, -most], [math.pi / 4, tall])
    close("ASIN", [most, -most], [math.pi / 4, -tall])
    inverse = math.sqrt(0.5) / math.sqrt(most)
    close("RSQRT", [most, most], [inverse * far, -inverse * near])
    x = math.log(float(info.max)) + 3  # e**x overflows, e**x * sin(0.01) does not
    close("EXP", [x, dtype(0.01) - math.pi / 2], _exp_parts(dtype, x, dtype(0.01) - math.pi / 2))


def _exp_parts(dtype: Any, x: float, y: float) -> list[float]:
    """e**(x + iy) of the rounded operands, the overflowing part as inf."""
    z = mp.exp(mp.mpc(float(dtype(x)), float(dtype(y))))
    largest = float(np.finfo(dtype).max)
    return [float(p) if abs(p) <= largest else float(mp.sign(p)) * inf for p in (z.real, z.imag)]
