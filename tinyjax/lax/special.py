"""Special functions of two and three arguments, and Bessel functions, with their derivatives.

Each is computed at once for all elements: a series or a continued fraction runs until every element
has converged, and a select takes the form that converges fast for each. Narrow floats are computed
in float32. Sources: Abramowitz and Stegun (1964); Press et al., "Numerical Recipes", 5.2 and 6.2 to
6.4; Figurnov et al., "Implicit reparameterization gradients" (2018) for the derivative of a gamma
variate.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.custom_rules import SymbolicZero, custom_jvp
from tinyjax.engine.values import finish, finish_all, lift
from tinyjax.lax.control_flow import while_loop
from tinyjax.lax.elementwise import operands

ArrayLike = Any

MAX_STEPS = 2000  # of a series or fraction; a > 1e6 would need more, and is off by less than 1e-3
BESSEL_SPLIT = 20.0  # below: the power series; above, 30 terms of the asymptotic one reach float64
POWER_TERMS, ASYMPTOTIC_TERMS = 50, 30


def computed(name: str, *args: ArrayLike) -> tuple[list[UOp], Any]:
    """Operands of one shape in a dtype wide enough to compute in, and the dtype of the result."""
    nodes = operands(name, *args)
    dtype = nodes[0].dtype
    if not dtypes.is_float(dtype):
        raise TypeError(
            f"{name} does not accept dtype {dtype.name}. Accepted dtypes are subtypes of floating.\n"
            "  Convert it with .astype(float)."
        )
    shape = next((n.shape for n in nodes if n.shape), ())
    wide = dtype if dtype in (np.float32, np.float64) else np.dtype(np.float32)
    return [b.fill_to(b.cast(n, wide), shape) for n in nodes], dtype


def constant(x: UOp, value: float) -> UOp:
    """`value` in the shape and dtype of x."""
    return b.full(x.shape, b.scalar(value, x.dtype))


def iterate(
    step: Callable[[UOp, Sequence[UOp]], tuple[list[UOp], UOp]], start: Sequence[UOp]
) -> list[UOp]:
    """Repeat `step(n, state) -> (state, converged)` for n = 1, 2, ... until all elements
    converged."""
    of = start[0]

    def running(carry: Any) -> Array:
        n, going, _ = carry
        enough = b.lt(n.node, b.scalar(MAX_STEPS, of.dtype))
        return finish(b.and_(enough, going.node))

    def body(carry: Any) -> Any:
        n, _, state = carry
        new, converged = step(n.node, [s.node for s in state])
        going = b.reduce("or", b.not_(converged), range(converged.ndim))
        return (*finish_all([b.add(n.node, b.like(n.node, 1)), going]), tuple(finish_all(new)))

    first = (Array(b.scalar(1, of.dtype)), Array(b.scalar(True, b.BOOL)), tuple(map(Array, start)))
    return [lift(s) for s in while_loop(running, body, first)[2]]


def small(change: UOp, total: UOp) -> UOp:
    """Whether a change no longer matters."""
    eps = float(dtypes.finfo(total.dtype).eps)
    return b.le(b.abs_(change), b.mul(b.abs_(total), b.like(total, eps / 2)))


# --- incomplete gamma ----------------------------------------------------------------------------


def gamma_series(a: UOp, x: UOp) -> tuple[UOp, UOp]:
    """S = sum of x^n / (a (a+1) ... (a+n)), with P(a, x) = x^a e^-x / Gamma(a) S, and dS/da."""
    first = b.reciprocal(a)

    def step(n: UOp, state: Sequence[UOp]) -> tuple[list[UOp], UOp]:
        term, harmonic, total, slope = state
        here = b.reciprocal(b.add(a, n))
        term = b.mul(term, b.mul(x, here))
        harmonic = b.add(harmonic, here)
        change = b.mul(term, harmonic)
        total, slope = b.add(total, term), b.sub(slope, change)
        done = b.or_(b.and_(small(term, total), small(change, slope)), b.ne(total, total))
        return [term, harmonic, total, slope], done

    start = [first, first, first, b.neg(b.square(first))]
    _, _, total, slope = iterate(step, start)
    return total, slope


def gamma_fraction(a: UOp, x: UOp) -> tuple[UOp, UOp]:
    """f with Q(a, x) = x^a e^-x / Gamma(a) / f, by Lentz's method, and d log f / da."""
    one = b.like(x, 1)
    b0 = b.sub(b.add(x, one), a)
    tiny = b.like(x, 1e-30)

    def nonzero(v: UOp) -> UOp:
        return b.where(b.eq(v, b.like(v, 0)), tiny, v)

    def step(n: UOp, state: Sequence[UOp]) -> tuple[list[UOp], UOp]:
        f, slope, c, dc, d, dd = state
        numerator = b.neg(b.mul(n, b.sub(n, a)))  # its derivative is n
        denominator = b.add(b0, b.mul(n, b.like(n, 2)))  # its derivative is -1
        new_d = b.reciprocal(nonzero(b.add(denominator, b.mul(numerator, d))))
        new_dd = b.add(b.mul(n, d), b.mul(numerator, dd))
        new_dd = b.neg(b.mul(b.square(new_d), b.sub(new_dd, one)))
        new_c = nonzero(b.add(denominator, b.div(numerator, c)))
        new_dc = b.sub(b.div(b.sub(n, b.mul(numerator, b.div(dc, c))), c), one)
        factor = b.mul(new_c, new_d)
        change = b.add(b.div(new_dc, new_c), b.div(new_dd, new_d))
        f, slope = b.mul(f, factor), b.add(slope, change)
        near = b.le(b.abs_(b.sub(factor, one)), b.like(f, 2 * float(dtypes.finfo(f.dtype).eps)))
        flat = b.le(b.abs_(change), b.like(f, 4 * float(dtypes.finfo(f.dtype).eps)))
        done = b.or_(b.and_(near, flat), b.ne(f, f))
        return [f, slope, new_c, new_dc, new_d, new_dd], done

    f0 = nonzero(b0)
    zero = constant(x, 0)
    state = iterate(step, [f0, b.neg(b.reciprocal(f0)), f0, constant(x, -1), zero, zero])
    return state[0], state[1]


class GammaParts:
    """What P, Q and their derivatives are made of, for legal a and x; each form sees only its own
    x."""

    def __init__(self, a: UOp, x: UOp) -> None:
        one = b.like(x, 1)
        zero_a = b.eq(a, b.like(a, 0))
        negative = b.or_(b.lt(a, b.like(a, 0)), b.lt(x, b.like(x, 0)))
        self.bad = b.or_(negative, b.or_(b.ne(a, a), b.ne(x, x)))
        infinite = b.or_(b.eq(x, b.like(x, np.inf)), b.eq(a, b.like(a, np.inf)))
        self.ordinary = b.not_(
            b.or_(b.or_(self.bad, infinite), b.or_(zero_a, b.eq(x, b.like(x, 0))))
        )
        a = b.where(self.ordinary, a, constant(a, 1))
        x = b.where(self.ordinary, x, constant(x, 1))
        self.a, self.x = a, x
        self.by_series = b.or_(b.le(x, one), b.le(x, a))
        log_x = b.log(x)
        self.scale = b.exp(b.sub(b.sub(b.mul(a, log_x), x), UOp(Op.LGAMMA, (a,))))
        self.scale_slope = b.sub(log_x, UOp(Op.DIGAMMA, (a,)))
        one_, two = constant(x, 1), constant(x, 2)
        self.series = gamma_series(
            b.where(self.by_series, a, one_), b.where(self.by_series, x, one_)
        )
        self.fraction = gamma_fraction(
            b.where(self.by_series, one_, a), b.where(self.by_series, two, x)
        )

    def chosen(self, series: UOp, fraction: UOp) -> UOp:
        """One of the two forms for each element."""
        return b.where(self.by_series, series, fraction)


def lower_gamma(a: UOp, x: UOp, upper: bool) -> UOp:
    """P, or Q = 1 - P, with their values at the border of the domain."""
    parts = GammaParts(a, x)
    p = b.mul(parts.scale, parts.series[0])
    q = b.div(parts.scale, parts.fraction[0])
    one, zero = b.like(p, 1), b.like(p, 0)
    out = parts.chosen(b.sub(one, p), q) if upper else parts.chosen(p, b.sub(one, q))
    at_zero, at_infinity = (one, zero) if upper else (zero, one)
    infinite_a = b.eq(a, b.like(a, np.inf))
    border = b.where(b.or_(b.eq(x, b.like(x, 0)), infinite_a), at_zero, at_infinity)
    both = b.and_(infinite_a, b.eq(x, b.like(x, np.inf)))
    border = b.where(b.or_(parts.bad, both), b.like(p, np.nan), border)
    return b.where(parts.ordinary, out, b.fill_to(border, out.shape))


def gamma_slope(a: UOp, x: UOp) -> UOp:
    """dP/da."""
    parts = GammaParts(a, x)
    total, slope = parts.series
    by_series = b.mul(parts.scale, b.add(slope, b.mul(total, parts.scale_slope)))
    f, log_slope = parts.fraction
    by_fraction = b.neg(b.mul(b.div(parts.scale, f), b.sub(parts.scale_slope, log_slope)))
    out = parts.chosen(by_series, by_fraction)
    border = b.where(parts.bad, b.like(out, np.nan), b.like(out, 0))
    return b.where(parts.ordinary, out, b.fill_to(border, out.shape))


def variate_slope(a: UOp, x: UOp) -> UOp:
    """-(dP/da) / (dP/dx): the common factor x^a e^-x / Gamma(a) cancels and cannot underflow."""
    parts = GammaParts(a, x)
    total, slope = parts.series
    by_series = b.neg(b.add(slope, b.mul(total, parts.scale_slope)))
    f, log_slope = parts.fraction
    by_fraction = b.div(b.sub(parts.scale_slope, log_slope), f)
    out = b.mul(parts.x, parts.chosen(by_series, by_fraction))
    border = b.where(parts.bad, b.like(out, np.nan), b.like(out, 0))
    return b.where(parts.ordinary, out, b.fill_to(border, out.shape))


def elementwise(
    name: str, names: str, value: Callable[..., UOp], doc: str
) -> tuple[Callable[..., Array], custom_jvp]:
    """A public function of arguments with these names that computes in a wide enough dtype, and the
    custom rule it goes through."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(n, kind) for n in names.split()])

    def compute(*args: Array) -> Array:
        return finish(value(*(lift(x) for x in args)))

    compute.__name__ = name
    compute.__signature__ = signature  # type: ignore[attr-defined]
    rule = custom_jvp(compute)

    def apply(*args: ArrayLike, **kwargs: ArrayLike) -> Array:
        try:
            given = signature.bind(*args, **kwargs).args
        except TypeError as error:
            raise TypeError(f"{name}() got other arguments than {signature}: {error}") from None
        nodes, dtype = computed(name, *given)
        return finish(b.cast(lift(rule(*finish_all(nodes))), dtype))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = doc
    apply.__signature__ = signature  # type: ignore[attr-defined]
    return apply, rule


def derivative(rule: custom_jvp, slopes: Sequence[Callable[..., UOp] | None]) -> None:
    """Give a rule its partial derivatives `slope(y, *args)`; None where there is none."""
    names = tuple(inspect.signature(rule.fun).parameters)

    def jvp(primals: Any, tangents: Any) -> Any:
        y = rule(*primals)
        total: UOp | None = None
        for slope, t, name in zip(slopes, tangents, names, strict=True):
            if isinstance(t, SymbolicZero):
                continue
            if slope is None:
                raise ValueError(
                    f"{rule.fun.__name__} is not differentiable with respect to {name}: its "
                    "derivative "
                    "has no closed form.\n  Apply lax.stop_gradient to that argument."
                )
            part = b.mul(lift(t), slope(lift(y), *(lift(p) for p in primals)))
            total = part if total is None else b.add(total, part)
        return y, finish(b.zeros(lift(y).aval) if total is None else total)

    rule.defjvp(jvp, symbolic_zeros=True)


def gamma_density(a: UOp, x: UOp) -> UOp:
    """dP/dx = x^(a-1) e^-x / Gamma(a)."""
    power = b.mul(b.sub(a, b.like(a, 1)), b.log(x))
    return b.exp(b.sub(b.sub(power, x), UOp(Op.LGAMMA, (a,))))


igamma, _igamma = elementwise(
    "igamma",
    "a x",
    lambda a, x: lower_gamma(a, x, upper=False),
    "Regularised lower incomplete gamma function P(a, x); NaN unless a >= 0 and x >= 0.",
)
igammac, _igammac = elementwise(
    "igammac",
    "a x",
    lambda a, x: lower_gamma(a, x, upper=True),
    "Regularised upper incomplete gamma function Q(a, x) = 1 - P(a, x), accurate where it is "
    "small.",
)
igamma_grad_a, _igamma_grad_a = elementwise(
    "igamma_grad_a", "a x", gamma_slope, "Derivative of P(a, x) with respect to a."
)
random_gamma_grad, _random_gamma_grad = elementwise(
    "random_gamma_grad",
    "a x",
    variate_slope,
    "Derivative with respect to a of a gamma variate x of shape a, by implicit differentiation.",
)


def plain_slope(rule: custom_jvp) -> Callable[..., UOp]:
    """A rule's function as a slope of another."""
    return lambda y, *args: lift(rule(*(Array(x) for x in args)))


derivative(_igamma, [plain_slope(_igamma_grad_a), lambda y, a, x: gamma_density(a, x)])
derivative(
    _igammac,
    [
        lambda y, a, x: b.neg(plain_slope(_igamma_grad_a)(y, a, x)),
        lambda y, a, x: b.neg(gamma_density(a, x)),
    ],
)


def mixed_slope(y: UOp, a: UOp, x: UOp) -> UOp:
    """d2P/da dx = density * (log x - digamma(a))."""
    return b.mul(gamma_density(a, x), b.sub(b.log(x), UOp(Op.DIGAMMA, (a,))))


derivative(_igamma_grad_a, [None, mixed_slope])
derivative(_random_gamma_grad, [None, None])


# --- incomplete beta -----------------------------------------------------------------------------


def beta_fraction(p: UOp, q: UOp, x: UOp) -> UOp:
    """The continued fraction of I_x(p, q), by Lentz's method; fast for x < (p + 1) / (p + q +
    2)."""
    one = b.like(x, 1)
    tiny = b.like(x, 1e-30)
    total = b.add(p, q)

    def nonzero(v: UOp) -> UOp:
        return b.where(b.lt(b.abs_(v), tiny), tiny, v)

    def turn(coefficient: UOp, c: UOp, d: UOp, h: UOp) -> tuple[UOp, UOp, UOp, UOp]:
        d = b.reciprocal(nonzero(b.add(one, b.mul(coefficient, d))))
        c = nonzero(b.add(one, b.div(coefficient, c)))
        factor = b.mul(c, d)
        return c, d, b.mul(h, factor), factor

    def step(n: UOp, state: Sequence[UOp]) -> tuple[list[UOp], UOp]:
        c, d, h = state
        twice = b.mul(n, b.like(n, 2))
        at = b.add(p, twice)
        even = b.div(b.mul(b.mul(n, b.sub(q, n)), x), b.mul(b.sub(at, one), at))
        c, d, h, _ = turn(even, c, d, h)
        odd = b.neg(b.div(b.mul(b.mul(b.add(p, n), b.add(total, n)), x), b.mul(at, b.add(at, one))))
        c, d, h, factor = turn(odd, c, d, h)
        near = b.le(b.abs_(b.sub(factor, one)), b.like(h, 2 * float(dtypes.finfo(h.dtype).eps)))
        return [c, d, h], b.or_(near, b.ne(h, h))

    first = b.neg(b.div(b.mul(total, x), b.add(p, one)))
    d0 = b.reciprocal(nonzero(b.add(one, first)))
    return iterate(step, [constant(x, 1), d0, d0])[2]


def log_beta(p: UOp, q: UOp) -> UOp:
    """log B(p, q)."""
    lgamma = [UOp(Op.LGAMMA, (v,)) for v in (p, q, b.add(p, q))]
    return b.sub(b.add(lgamma[0], lgamma[1]), lgamma[2])


def incomplete_beta(p: UOp, q: UOp, x: UOp) -> UOp:
    """I_x(p, q), mirrored where that converges faster."""
    zero, one = b.like(x, 0), b.like(x, 1)
    bad = b.or_(b.or_(b.le(p, zero), b.le(q, zero)), b.or_(b.lt(x, zero), b.gt(x, one)))
    bad = b.or_(bad, b.or_(b.ne(x, x), b.or_(b.ne(p, p), b.ne(q, q))))
    inside = b.and_(b.and_(b.gt(x, zero), b.lt(x, one)), b.not_(bad))
    ps, qs = (b.where(inside, v, constant(x, 1)) for v in (p, q))
    xs = b.where(inside, x, constant(x, 0.5))
    mirrored = b.gt(xs, b.div(b.add(ps, one), b.add(b.add(ps, qs), b.like(x, 2))))
    p1, q1 = b.where(mirrored, qs, ps), b.where(mirrored, ps, qs)
    x1 = b.where(mirrored, b.sub(one, xs), xs)
    log_x, log_rest = b.log(x1), UOp(Op.LOG1P, (b.neg(x1),))
    front = b.exp(b.sub(b.add(b.mul(p1, log_x), b.mul(q1, log_rest)), log_beta(p1, q1)))
    value = b.mul(b.div(front, p1), beta_fraction(p1, q1, x1))
    value = b.where(mirrored, b.sub(one, value), value)
    border = b.where(bad, b.like(x, np.nan), b.where(b.le(x, zero), zero, one))
    return b.where(inside, value, b.fill_to(border, value.shape))


def beta_density(y: UOp, p: UOp, q: UOp, x: UOp) -> UOp:
    """x^(p-1) (1-x)^(q-1) / B(p, q)."""
    one = b.like(x, 1)
    powers = b.add(b.mul(b.sub(p, one), b.log(x)), b.mul(b.sub(q, one), UOp(Op.LOG1P, (b.neg(x),))))
    return b.exp(b.sub(powers, log_beta(p, q)))


betainc, _betainc = elementwise(
    "betainc",
    "a b x",
    incomplete_beta,
    "Regularised incomplete beta function I_x(a, b); NaN unless a, b > 0 and 0 <= x <= 1.",
)
derivative(_betainc, [None, None, beta_density])


# --- zeta and polygamma --------------------------------------------------------------------------

# Bernoulli numbers B_2k / (2k)!, of the Euler-Maclaurin formula.
EULER_MACLAURIN = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000,
    1 / 74724249600, -3617 / 10670622842880000,
)  # fmt: skip
SHIFT = 10


def hurwitz(s: UOp, q: UOp) -> UOp:
    """sum of (q + k)^-s: ten terms, then the Euler-Maclaurin formula at q + 10."""
    one, zero = b.like(s, 1), b.like(s, 0)
    whole_q = b.eq(UOp(Op.FLOOR, (q,)), q)
    pole = b.and_(b.le(q, zero), whole_q)
    undefined = b.or_(b.lt(s, one), b.and_(b.lt(q, zero), b.ne(UOp(Op.FLOOR, (s,)), s)))
    safe = b.and_(b.not_(b.or_(undefined, pole)), b.gt(s, one))
    s1, q1 = b.where(safe, s, constant(s, 2)), b.where(safe, q, constant(q, 1))

    def power(base: UOp) -> UOp:
        return b.pow_(base, b.neg(s1))

    # A negative q is moved up until the formula holds; ten terms are enough from 0 on.
    def step(n: UOp, state: Sequence[UOp]) -> tuple[list[UOp], UOp]:
        total, at = state
        low = b.lt(at, b.like(at, SHIFT))
        total = b.where(low, b.add(total, power(at)), total)
        at = b.where(low, b.add(at, one), at)
        return [total, at], b.ge(at, b.like(at, SHIFT))

    total, at = iterate(step, [constant(s, 0), q1])
    last = power(at)
    tail = b.div(b.mul(last, at), b.sub(s1, one))
    out = b.add(b.add(total, tail), b.mul(last, b.like(s, 0.5)))
    factor = b.div(b.mul(last, s1), at)
    for k, coefficient in enumerate(EULER_MACLAURIN):
        out = b.add(out, b.mul(factor, b.like(s, coefficient)))
        rise = b.mul(b.add(s1, b.like(s, 2 * k + 1)), b.add(s1, b.like(s, 2 * k + 2)))
        factor = b.div(b.mul(factor, rise), b.square(at))
    out = b.where(b.lt(at, b.like(at, SHIFT)), b.like(s, np.nan), out)
    nan = b.or_(undefined, b.or_(b.ne(s, s), b.ne(q, q)))
    edge = b.where(nan, b.like(s, np.nan), b.like(s, np.inf))
    return b.where(safe, out, b.fill_to(edge, out.shape))


zeta, _zeta = elementwise(
    "zeta", "x q", hurwitz, "Hurwitz zeta function: the sum over k >= 0 of (q + k)**-x, for x > 1."
)
derivative(
    _zeta,
    [
        None,
        lambda y, s, q: b.neg(b.mul(s, lift(_zeta(Array(b.add(s, b.like(s, 1))), Array(q))))),
    ],
)


def polygamma_value(m: UOp, x: UOp) -> UOp:
    """(-1)^(m+1) m! zeta(m + 1, x), and digamma for m = 0; NaN unless m is a natural number."""
    one, zero = b.like(m, 1), b.like(m, 0)
    legal = b.and_(b.ge(m, zero), b.eq(UOp(Op.FLOOR, (m,)), m))
    order = b.where(b.and_(legal, b.gt(m, zero)), m, constant(m, 1))
    n = b.add(order, one)
    size = b.mul(b.exp(UOp(Op.LGAMMA, (n,))), hurwitz(n, x))
    odd = b.ne(UOp(Op.REM, (order, b.like(m, 2))), zero)
    value = b.where(odd, size, b.neg(size))
    value = b.where(b.eq(m, zero), UOp(Op.DIGAMMA, (x,)), value)
    return b.where(legal, value, b.like(value, np.nan))


polygamma, _polygamma = elementwise(
    "polygamma", "m x", polygamma_value, "The m-th derivative of digamma at x, for natural m."
)
derivative(
    _polygamma,
    [None, lambda y, m, x: lift(_polygamma(Array(b.add(m, b.like(m, 1))), Array(x)))],
)


# --- Bessel functions -----------------------------------------------------------------------------


def scaled_bessel(order: int, x: UOp) -> UOp:
    """e^-|x| I_order(x): the power series up to 20, the asymptotic series beyond.

    Nested as s = 1 + t/(k(k + order)) s, no term overflows.
    Source: Abramowitz and Stegun 9.6.10, 9.7.1.
    """
    size = b.abs_(x)
    near = b.le(size, b.like(x, BESSEL_SPLIT))
    inner = b.where(near, size, constant(x, 0))
    t = b.mul(b.square(inner), b.like(x, 0.25))
    power = constant(x, 1)
    for k in range(POWER_TERMS, 0, -1):
        power = b.add(b.like(x, 1), b.mul(b.mul(t, power), b.like(x, 1 / (k * (k + order)))))
    power = b.mul(power, b.exp(b.neg(inner)))
    if order:
        power = b.mul(power, b.mul(inner, b.like(x, 0.5)))
    outer = b.where(near, constant(x, BESSEL_SPLIT), size)
    inverse = b.div(b.like(x, 1 / 8), outer)
    series = constant(x, 1)
    for k in range(ASYMPTOTIC_TERMS, 0, -1):
        coefficient = -(4 * order**2 - (2 * k - 1) ** 2) / k
        series = b.add(b.like(x, 1), b.mul(b.mul(inverse, series), b.like(x, coefficient)))
    series = b.mul(series, b.rsqrt(b.mul(outer, b.like(x, 2 * math.pi))))
    out = b.where(near, power, series)
    out = b.where(b.ne(x, x), x, out)
    return b.mul(out, b.sign(x)) if order else out


bessel_i0e, _bessel_i0e = elementwise(
    "bessel_i0e",
    "x",
    lambda x: scaled_bessel(0, x),
    "Exponentially scaled modified Bessel function of order 0: exp(-|x|) I0(x).",
)
bessel_i1e, _bessel_i1e = elementwise(
    "bessel_i1e",
    "x",
    lambda x: scaled_bessel(1, x),
    "Exponentially scaled modified Bessel function of order 1: exp(-|x|) I1(x).",
)


def i1e_slope(y: UOp, x: UOp) -> UOp:
    """i0e(x) - i1e(x) (sign x + 1/x); 1/2 at 0."""
    at_zero = b.eq(x, b.like(x, 0))
    safe = b.where(at_zero, constant(x, 1), x)
    slope = b.sub(lift(_bessel_i0e(Array(x))), b.mul(y, b.add(b.sign(safe), b.reciprocal(safe))))
    return b.where(at_zero, b.like(slope, 0.5), slope)


derivative(
    _bessel_i0e,
    [lambda y, x: b.sub(lift(_bessel_i1e(Array(x))), b.mul(b.sign(x), y))],
)
derivative(_bessel_i1e, [i1e_slope])
