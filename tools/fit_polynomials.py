"""Fit the polynomials of `tinyjax/lowering/elementary` and write its `coefficients.py`.

    python tools/fit_polynomials.py              # all fits, writes the file (a few minutes)
    python tools/fit_polynomials.py EXP ERF      # only these: prints them and their errors

Every entry of `FITS` says: approximate F on [a, b] by a polynomial with a given number of terms,
so that max |weight * (F - P)| is least; the weight turns that into the relative error of the
function that is computed from P. The minimax polynomial comes from Remez exchange in 70-digit
arithmetic (Remez 1934; Muller, Elementary Functions, ch. 3). Coefficients are rounded to the
target's dtype at once, or one after the other from the lowest power with the others fitted again
by least squares so that they absorb the error: whichever is better on a grid, which is also
where the printed error comes from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np

mp.mp.dps = 70
TARGET = Path(__file__).parent.parent / "tinyjax" / "lowering" / "elementary" / "coefficients.py"
GRID = 400

Real = mp.mpf
Function = Callable[[Real], Real]


@dataclass(frozen=True, slots=True)
class Fit:
    """P(x) ~ F(x) on [a, b] under a weight; `terms` for float32 and float64."""

    function: Function | dict[int, Function]  # by bits where they differ
    weight: Function | dict[int, Function]
    interval: tuple[Real, Real] | dict[int, tuple[Real, Real]]
    terms: tuple[int, int]  # 0: not needed
    note: str
    split: bool = False  # the first coefficient as a sum of two floats

    def of(self, bits: int) -> Fit:
        """The fit for one dtype."""

        def pick(entry: Any) -> Any:
            return entry[bits] if isinstance(entry, dict) else entry

        chosen = (pick(self.function), pick(self.weight), pick(self.interval))
        return Fit(*chosen, self.terms, self.note, self.split)


def solve(function: Function, weight: Function, points: list[Real], terms: int) -> list[Real]:
    """Coefficients c and levelled error E with weight*(F - P) = +-E at terms + 1 points."""
    rows = mp.matrix(terms + 1, terms + 1)
    right = mp.matrix(terms + 1, 1)
    for i, x in enumerate(points):
        for k in range(terms):
            rows[i, k] = x**k
        rows[i, terms] = (-1) ** i / weight(x)
        right[i] = function(x)
    return list(mp.lu_solve(rows, right))[:terms]


def horner(coefficients: list[Real], x: Real) -> Real:
    """P(x)."""
    total = mp.mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def remez(
    function: Function, weight: Function, a: Real, b: Real, terms: int
) -> tuple[list[Real], Real]:
    """The minimax polynomial and its largest weighted error."""
    grid = [(a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * i / GRID) for i in range(GRID + 1)]
    values = [function(x) for x in grid]
    weights = [weight(x) for x in grid]
    known = dict(zip(grid, values, strict=True))
    heavy = dict(zip(grid, weights, strict=True))
    heaviest = max(abs(w) for w in weights)
    inside = [i for i, w in enumerate(weights) if abs(w) > heaviest * mp.mpf(10) ** -9]
    picks = [inside[round(j * (len(inside) - 1) / terms)] for j in range(terms + 1)]
    points = [grid[i] for i in picks]
    best: tuple[list[Real], Real] | None = None
    for _ in range(12):
        coefficients = solve(known.__getitem__, heavy.__getitem__, points, terms)
        errors = [
            w * (v - horner(coefficients, x)) for x, v, w in zip(grid, values, weights, strict=True)
        ]
        worst = max(abs(e) for e in errors)
        if best is None or worst < best[1]:
            best = (coefficients, worst)
        runs: list[int] = []  # the extremum of each run of one sign
        for i, e in enumerate(errors):
            if e == 0:
                continue
            if runs and (errors[runs[-1]] > 0) == (e > 0):
                if abs(e) > abs(errors[runs[-1]]):
                    runs[-1] = i
            else:
                runs.append(i)
        while len(runs) > terms + 1:
            drop = min((0, -1), key=lambda j: abs(errors[runs[j]]))
            runs.pop(drop)
        if len(runs) < terms + 1:
            break
        new = [grid[i] for i in runs]
        if new == points:
            break
        points = new
    assert best is not None
    return best


def rounded(value: Real, bits: int) -> float:
    """Nearest float32 or float64, as a Python float."""
    return float(np.float32(float(value))) if bits == 32 else float(value)


def refit(spec: Fit, fixed: list[Real], points: list[Real], terms: int) -> list[Real]:
    """Weighted least squares for the powers above those in `fixed`."""
    start = len(fixed)
    rows = mp.matrix(len(points), terms - start)
    right = mp.matrix(len(points), 1)
    for i, x in enumerate(points):
        heavy = spec.weight(x)
        right[i] = heavy * (spec.function(x) - horner(fixed, x))
        for k in range(start, terms):
            rows[i, k - start] = heavy * x**k
    transposed = rows.T
    return list(mp.lu_solve(transposed * rows, transposed * right))


def fit(spec: Fit, bits: int) -> tuple[list[float], float]:
    """Coefficients in the dtype, lowest power first, and log2 of the largest weighted error."""
    spec = spec.of(bits)
    a, b = (mp.mpf(x) for x in spec.interval)
    terms = spec.terms[bits == 64]
    ideal, _ = remez(nonzero(spec.function), nonzero(spec.weight), a, b, terms)
    grid = [a + (b - a) * (i + mp.mpf(1) / 2) / 600 for i in range(600)]
    values = [(spec.weight(x), spec.function(x), x) for x in grid]

    def error(coefficients: list[Real]) -> Real:
        return max(abs(w * (v - horner(coefficients, x))) for w, v, x in values)

    first = parts(ideal[0], 1 + spec.split, bits)
    plain = [sum(first, mp.mpf(0)), *(mp.mpf(rounded(c, bits)) for c in ideal[1:])]
    points = [
        (a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / (6 * terms))
        for i in range(6 * terms)
    ]
    careful = plain[:1]
    while len(careful) < terms:
        careful.append(mp.mpf(rounded(refit(spec, careful, points, terms)[0], bits)))
    best = min((plain, careful), key=error)
    return first + [float(c) for c in best[1:]], float(mp.log(error(best), 2))


def parts(value: Real, count: int, bits: int) -> list[float]:
    """The value as an unevaluated sum of `count` floats, each the nearest to what is left."""
    result = []
    for _ in range(count):
        result.append(rounded(value, bits))
        value -= mp.mpf(result[-1])
    return result


def nonzero(function: Function) -> Function:
    """The function with 0 replaced by 1e-16: all our F have removable singularities only there."""
    tiny = mp.mpf(10) ** -16
    return lambda x: function(x if abs(x) > tiny else tiny)


def z_of(function: Function) -> Function:
    """The same function of z = x**2."""
    return lambda z: function(mp.sqrt(z))


def odd_tail(function: Function) -> Function:
    """(f(x) - x) / x**3, as a function of z = x**2: f(x) = x + x*z*F(z)."""
    return z_of(lambda x: (function(x) - x) / x**3)


def odd_weight(function: Function) -> Function:
    """Makes an error of `odd_tail(f)` relative to f."""
    return z_of(lambda x: x**3 / function(x))


def log_erfc(a: Real) -> Real:
    """log(erfc(a))."""
    return mp.log(mp.erfc(a))


def erfcx(a: Real) -> Real:
    """exp(a**2) * erfc(a)."""
    return mp.exp(a * a) * mp.erfc(a)


def flat_erfcx(k: int) -> Function:
    """erfcx(a) * (1 + 2a) as a function of t = (a - k)/(a + k)."""

    def of_t(t: Real) -> Real:
        a = k * (1 + t) / (1 - t)
        return erfcx(a) * (1 + 2 * a)

    return of_t


def erfinv_ratio(w: Real) -> Real:
    """erfinv(x)/x where w = -log(1 - x**2)."""
    if w < mp.mpf(10) ** -20:
        return mp.sqrt(mp.pi) / 2
    x = mp.sqrt(-mp.expm1(-w))
    return mp.erfinv(x) / x


def shifted(function: Function, centre: float, power: int = 1) -> Function:
    """u -> function((u + centre)**power)."""
    return lambda u: function((u + centre) ** power)


def inverse_of(function: Function) -> Function:
    """The weight that makes an error relative."""
    return lambda x: 1 / function(x)


def stirling_rest(x: Real) -> Real:
    """What Stirling's formula for lgamma lacks, times x."""
    return (mp.loggamma(x) - (x - mp.mpf(1) / 2) * mp.log(x) + x - mp.log(2 * mp.pi) / 2) * x


DIGAMMA_ROOT = mp.findroot(mp.digamma, 1.46163)
LGAMMA_LEAST = mp.loggamma(DIGAMMA_ROOT)
SLACK = 1 + mp.mpf(2) ** -8
"""Ranges are widened by this: the rounded quotient of a reduction is off by a little."""
HALF_LN2 = mp.log(2) / 2 * SLACK
ROOT_HALF, ROOT_TWO = mp.sqrt(0.5), mp.sqrt(2)
LOG_INTERVAL = (ROOT_HALF - 1, ROOT_TWO - 1)
S_MAX = (ROOT_TWO - 1) / (ROOT_TWO + 1)

FITS: dict[str, Fit] = {
    "EXP": Fit(
        lambda r: (mp.exp(r) - 1 - r) / r**2,
        lambda r: r**2 / mp.exp(r),
        (-HALF_LN2, HALF_LN2),
        (5, 10),
        "exp(r) = 1 + r + r**2 * P(r), |r| <= ln(2)/2",
    ),
    "EXPM1": Fit(
        lambda r: (mp.exp(r) - 1 - r) / r**2,
        lambda r: r**2 / mp.expm1(r),
        (-HALF_LN2, HALF_LN2),
        (6, 11),
        "exp(r) - 1 = r + r**2 * P(r), |r| <= ln(2)/2",
    ),
    "EXP2": Fit(
        lambda r: (mp.mpf(2) ** r - 1) / r,
        lambda r: r / mp.mpf(2) ** r,
        (-SLACK / 2, SLACK / 2),
        (6, 12),
        "2**r = 1 + r * P(r), |r| <= 1/2",
    ),
    "LOG": Fit(
        lambda f: (mp.log1p(f) - f + f * f / 2) / f**3,
        lambda f: f**3 / mp.log1p(f),
        LOG_INTERVAL,
        (8, 19),
        "log(1 + f) = f - f**2/2 + f**3 * P(f), sqrt(1/2) <= 1 + f <= sqrt(2)",
    ),
    "LOG2_ATANH": Fit(
        z_of(lambda s: (2 * mp.atanh(s) - 2 * s) / (mp.log(2) * s**3)),
        z_of(lambda s: s**2),
        (mp.mpf(0), S_MAX**2),
        (4, 9),
        "log2((1+s)/(1-s)) = 2s/ln(2) + s**3 * P(s**2); the first coefficient is split in two",
    ),
    "SIN": Fit(
        odd_tail(mp.sin),
        odd_weight(mp.sin),
        (mp.mpf(0), (mp.pi / 2 * SLACK) ** 2),
        (4, 9),
        "sin(r) = r + r**3 * P(r**2), |r| <= pi/2",
    ),
    "TAN": Fit(
        odd_tail(mp.tan),
        odd_weight(mp.tan),
        (mp.mpf(0), (mp.pi / 4 * SLACK) ** 2),
        (7, 15),
        "tan(r) = r + r**3 * P(r**2), |r| <= pi/4",
    ),
    "TANH": Fit(
        odd_tail(mp.tanh),
        odd_weight(mp.tanh),
        (mp.mpf(0), mp.mpf(0.6) ** 2),
        (5, 11),
        "tanh(x) = x + x**3 * P(x**2), |x| <= 0.6",
    ),
    "ASIN": Fit(
        odd_tail(mp.asin),
        odd_weight(mp.asin),
        (mp.mpf(0), mp.mpf(1) / 4),
        (5, 13),
        "asin(s) = s + s**3 * P(s**2), |s| <= 1/2",
    ),
    "ATAN": Fit(
        odd_tail(mp.atan),
        odd_weight(mp.atan),
        (mp.mpf(0), mp.mpf(1)),
        (9, 20),
        "atan(t) = t + t**3 * P(t**2), |t| <= 1",
    ),
    "SINH": Fit(
        odd_tail(mp.sinh),
        odd_weight(mp.sinh),
        (mp.mpf(0), mp.mpf(0.6) ** 2),
        (3, 6),
        "sinh(r) = r + r**3 * P(r**2), |r| <= 0.6",
    ),
    "COSH": Fit(
        z_of(lambda r: (mp.cosh(r) - 1) / r**2),
        z_of(lambda r: r**2 / mp.cosh(r)),
        (mp.mpf(0), HALF_LN2**2),
        (3, 5),
        "cosh(r) = 1 + r**2 * P(r**2), |r| <= ln(2)/2",
    ),
    "ASINH": Fit(
        odd_tail(mp.asinh),
        odd_weight(mp.asinh),
        (mp.mpf(0), mp.mpf(1) / 4),
        (5, 12),
        "asinh(x) = x + x**3 * P(x**2), |x| <= 1/2",
    ),
    "ATANH": Fit(
        odd_tail(mp.atanh),
        odd_weight(mp.atanh),
        (mp.mpf(0), mp.mpf(1) / 4),
        (6, 13),
        "atanh(x) = x + x**3 * P(x**2), |x| <= 1/2",
    ),
    "ERF_SMALL": Fit(
        z_of(lambda x: mp.erf(x) / x - 1),
        z_of(lambda x: x / mp.erf(x)),
        (mp.mpf(0), mp.mpf(1)),
        (7, 13),
        "erf(x) = x + x * P(x**2), |x| <= 1",
    ),
    "ERF_LARGE": Fit(
        log_erfc,
        lambda a: mp.erfc(a) / mp.erf(a),
        {32: (mp.mpf(1), mp.mpf(4)), 64: (mp.mpf(1), mp.mpf(6))},
        (7, 18),
        "log(erfc(a)) = P(a), 1 <= a <= 4 (6)",
    ),
    "ERFCX": Fit(
        {bits: flat_erfcx(k) for bits, k in ((32, 2), (64, 4))},
        {bits: inverse_of(flat_erfcx(k)) for bits, k in ((32, 2), (64, 4))},
        {
            32: ((mp.mpf(0.72) - 2) / (mp.mpf(0.72) + 2), mp.mpf(8.5) / 12.5),
            64: ((mp.mpf(0.72) - 4) / (mp.mpf(0.72) + 4), mp.mpf(23.5) / 31.5),
        },
        (9, 22),
        "erfcx(a) * (1 + 2a) = P((a - k)/(a + k)), 0.75 <= a, k = 2 (4)",
        split=True,
    ),
    "ERFINV": Fit(
        lambda u: (erfinv_ratio(u + 2.5) - mp.sqrt(mp.pi) / 2) / (u + 2.5),
        lambda u: (u + 2.5) / erfinv_ratio(u + 2.5),
        (mp.mpf(-2.5) + mp.mpf(10) ** -9, mp.mpf(2.51)),
        (9, 21),
        "erfinv(x) = x * (sqrt(pi)/2 + w * P(w - 5/2)), w = -log(1 - x**2) <= 5",
    ),
    "ERFINV_TAIL": Fit(
        shifted(erfinv_ratio, 3.0, 2),
        inverse_of(shifted(erfinv_ratio, 3.0, 2)),
        (mp.sqrt(5) - 3, mp.mpf(1.01)),
        (10, 24),
        "erfinv(x) = x * P(sqrt(w) - 3), 5 <= w <= 16",
        split=True,
    ),
    "ERFINV_FAR": Fit(
        shifted(erfinv_ratio, 5.0, 2),
        inverse_of(shifted(erfinv_ratio, 5.0, 2)),
        (mp.mpf(-1.01), mp.mpf(1.05)),
        (0, 20),
        "erfinv(x) = x * P(sqrt(w) - 5), 16 <= w <= 36.05",
        split=True,
    ),
    "LGAMMA_ONE": Fit(
        lambda y: mp.loggamma(1 + y) / y,
        lambda y: y / mp.loggamma(1 + y),
        (mp.mpf(-0.5), mp.mpf(0.5)),
        (13, 28),
        "lgamma(1 + y) = y * P(y), |y| <= 1/2",
    ),
    "LGAMMA_TWO": Fit(
        lambda y: mp.loggamma(2 + y) / y,
        lambda y: y / mp.loggamma(2 + y),
        (mp.mpf(-0.5), mp.mpf(2)),
        (13, 26),
        "lgamma(2 + y) = y * P(y), -1/2 <= y <= 2",
    ),
    "LGAMMA_LARGE": Fit(
        lambda z: stirling_rest(1 / mp.sqrt(z)),
        lambda z: mp.sqrt(z) / mp.loggamma(1 / mp.sqrt(z)),
        (mp.mpf(10) ** -9, mp.mpf(1) / 16),
        (3, 9),
        "lgamma(x) = (x - 1/2)(log(x) - 1) + log(2 pi)/2 - 1/2 + P(1/x**2)/x, x >= 4",
    ),
    "LGAMMA_LEAST": Fit(
        lambda t: (mp.loggamma(DIGAMMA_ROOT + t) - LGAMMA_LEAST) / t**2,
        lambda t: t**2 / mp.loggamma(DIGAMMA_ROOT + t),
        (mp.mpf(-0.24), mp.mpf(0.28)),
        (6, 14),
        "lgamma(root of digamma + t) = least value + t**2 * P(t), -0.24 <= t <= 0.28",
    ),
    "DIGAMMA": Fit(
        lambda u: mp.digamma(u + 2) / (u + 2 - DIGAMMA_ROOT),
        lambda u: (u + 2 - DIGAMMA_ROOT) / mp.digamma(u + 2),
        (mp.mpf(-1), mp.mpf(1)),
        (15, 31),
        "digamma(x) = (x - root) * P(x - 2), 1 <= x <= 3",
    ),
    "DIGAMMA_LARGE": Fit(
        lambda z: (mp.log(1 / mp.sqrt(z)) - mp.sqrt(z) / 2 - mp.digamma(1 / mp.sqrt(z))) / z,
        lambda z: z / mp.digamma(1 / mp.sqrt(z)),
        (mp.mpf(10) ** -9, mp.mpf(1) / 9),
        (4, 12),
        "digamma(x) = log(x) - 1/(2x) - P(1/x**2)/x**2, x >= 3",
    ),
    "CBRT_SEED": Fit(
        lambda m: m ** (-mp.mpf(1) / 3),
        lambda m: m ** (mp.mpf(1) / 3),
        (mp.mpf(1), mp.mpf(2)),
        (5, 5),
        "m**(-1/3) = P(m), 1 <= m <= 2",
    ),
}


CONSTANTS: dict[str, tuple[Real, int, str]] = {
    "LN2": (mp.log(2), 3, "log(2)"),
    "LOG2E": (1 / mp.log(2), 2, "1/log(2)"),
    "TWO_LOG2E": (2 / mp.log(2), 2, "2/log(2)"),
    "PI": (mp.pi, 3, "pi"),
    "HALF_PI": (mp.pi / 2, 3, "pi/2"),
    "HALF_ROOT_PI": (mp.sqrt(mp.pi) / 2, 2, "sqrt(pi)/2"),
    "DIGAMMA_ROOT": (DIGAMMA_ROOT, 2, "the positive zero of digamma"),
    "LGAMMA_LEAST_VALUE": (LGAMMA_LEAST, 2, "the least value of lgamma on x > 0"),
    "INV_PI": (1 / mp.pi, 1, "1/pi"),
}
INV_PI_BITS = 1216
"""Fraction bits of 1/pi: the largest float64 has exponent 971 above its mantissa, and the reduction
reads four 64-bit words from there."""


def literal(values: list[float]) -> str:
    """A tuple, one value per line, as the formatter writes it."""
    if len(values) == 1:
        return f"({values[0]!r},)"
    return "(" + "".join(f"\n        {v!r}," for v in values) + "\n    )"


HEADER = (
    '"""Written by `tools/fit_polynomials.py`: polynomials and constants, by bits of the float.'
)


def main(names: list[str]) -> None:
    """Fit and print; without names, write the coefficient file too."""
    text = [
        HEADER,
        "",
        "Polynomials: lowest power first. Constants: an unevaluated sum of floats.",
        "The comment gives the formula and log2 of the largest relative error it has.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "Table = dict[int, tuple[float, ...]]",
    ]
    for name, (value, count, note) in CONSTANTS.items():
        made = {bits: parts(value, count, bits) for bits in (32, 64)}
        text += ["", f"{name}: Table = {{  # {note}"]
        text += [f"    {bits}: {literal(values)}," for bits, values in made.items()]
        text += ["}"]
    for name, spec in FITS.items():
        if names and name not in names:
            continue
        lines, errors = [], []
        for bits in (32, 64):
            if not spec.terms[bits == 64]:
                continue
            coefficients, error = fit(spec, bits)
            print(f"{name:12} f{bits}: {len(coefficients):3} terms, 2**{error:.1f}", flush=True)
            lines.append(f"    {bits}: {literal(coefficients)},")
            errors.append(f"{error:.1f}")
        text += ["", f"# {spec.note}; {', '.join(errors)}", f"{name}: Table = {{", *lines, "}"]
    mp.mp.prec = INV_PI_BITS + 64
    inverse = int(mp.floor(mp.ldexp(1 / mp.pi, INV_PI_BITS)))
    digits = f"{inverse:0{INV_PI_BITS // 4}x}"
    text += ["", "# The first fraction bits of 1/pi.", f"INV_PI_BITS = {INV_PI_BITS}"]
    text += ["INV_PI_FRACTION = int("]
    text += [f'    "{digits[i : i + 76]}"' for i in range(0, len(digits) - 76, 76)]
    text += [f'    "{digits[-76:]}",', "    16,", ")"]
    if not names:
        TARGET.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
