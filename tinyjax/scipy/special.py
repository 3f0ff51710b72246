"""Special functions with SciPy's names: `tinyjax.scipy.special`.

Integers are computed in floating point. Where a function is finite although a part of its formula
is not (x log y at x = 0, ...), so are its derivatives.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinyjax import lax
from tinyjax import numpy as jnp
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.engine.array import Array
from tinyjax.engine.custom_rules import custom_jvp
from tinyjax.engine.values import finish_all
from tinyjax.nn import activations
from tinyjax.nn.activations import logsumexp
from tinyjax.numpy import ufuncs
from tinyjax.numpy.promotion import checked, promote_inexact

ArrayLike = Any


def promoted(name: str, *args: ArrayLike) -> list[Array]:
    """Operands in one inexact dtype, broadcast against each other."""
    nodes = promote_inexact(checked(name, *args))
    arrays = finish_all(list(nodes))
    return jnp.broadcast_arrays(*arrays) if len(arrays) > 1 else arrays


def real_only(name: str, x: Array) -> Array:
    """Most of these are defined for real arguments here."""
    ufuncs.real_only(name, x.node)
    return x


# --- exponentials -----------------------------------------------------------------------------------


def softmax(x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """`nn.softmax`, over all elements unless axes are given."""
    return activations.softmax(x, axis)


def log_softmax(x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """`nn.log_softmax`, over all elements unless axes are given."""
    return activations.log_softmax(x, axis)


# --- gamma and beta -------------------------------------------------------------------------------


def gammaln(x: ArrayLike) -> Array:
    """log |gamma(x)|."""
    (x,) = promoted("gammaln", x)
    return lax.lgamma(real_only("gammaln", x))


loggamma = gammaln


def gammasgn(x: ArrayLike) -> Array:
    """Sign of gamma(x): 1 for x > 0, alternating below, NaN at negative integers."""
    (x,) = promoted("gammasgn", x)
    floor = jnp.floor(x)
    negative = jnp.where(floor % 2 != 0, -1.0, 1.0).astype(x.dtype)
    pole = (x < 0) & (x == floor) | (x == -jnp.inf)
    sign = jnp.where(x < 0, jnp.where(pole, jnp.nan, negative), 1.0)
    sign = jnp.where((x == 0) & jnp.signbit(x), -1.0, sign)
    return jnp.where(jnp.isnan(x), x, sign).astype(x.dtype)  # type: ignore[no-any-return]


def gamma(x: ArrayLike) -> Array:
    """Gamma function."""
    (x,) = promoted("gamma", x)
    return gammasgn(x) * jnp.exp(lax.lgamma(x))


def factorial(n: ArrayLike, exact: bool = False) -> Array:
    """n! as gamma(n + 1); 0 for n < 0."""
    if exact:
        raise NotImplementedError("factorial with exact=True")
    (n,) = promoted("factorial", n)
    return jnp.where(n < 0, 0, jnp.exp(lax.lgamma(n + 1)))  # type: ignore[no-any-return]


def digamma(x: ArrayLike) -> Array:
    """Derivative of gammaln."""
    (x,) = promoted("digamma", x)
    return lax.digamma(x)


psi = digamma


def polygamma(n: ArrayLike, x: ArrayLike) -> Array:
    """n-th derivative of digamma."""
    n, x = promoted("polygamma", n, x)
    return lax.polygamma(n, x)


def zeta(x: ArrayLike, q: ArrayLike | None = None) -> Array:
    """Hurwitz zeta function; Riemann's with q None."""
    x, q = promoted("zeta", x, 1.0 if q is None else q)
    return lax.zeta(x, q)


def gammainc(a: ArrayLike, x: ArrayLike) -> Array:
    """Regularised lower incomplete gamma function."""
    a, x = promoted("gammainc", a, x)
    return lax.igamma(a, x)


def gammaincc(a: ArrayLike, x: ArrayLike) -> Array:
    """Regularised upper incomplete gamma function."""
    a, x = promoted("gammaincc", a, x)
    return lax.igammac(a, x)


def betaln(a: ArrayLike, b: ArrayLike) -> Array:
    """log of the beta function."""
    a, b = promoted("betaln", a, b)
    return lax.lgamma(a) + lax.lgamma(b) - lax.lgamma(a + b)


def beta(a: ArrayLike, b: ArrayLike) -> Array:
    """Beta function."""
    a, b = promoted("beta", a, b)
    sign = gammasgn(a) * gammasgn(b) * gammasgn(a + b)
    return sign * jnp.exp(betaln(a, b))


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Regularised incomplete beta function."""
    a, b, x = promoted("betainc", a, b, x)
    return lax.betainc(a, b, x)


def multigammaln(a: ArrayLike, d: ArrayLike) -> Array:
    """log of the multivariate gamma function of dimension d (a Python integer)."""
    (a,) = promoted("multigammaln", a)
    size = int(d)
    terms = lax.lgamma(a[..., None] - jnp.arange(size, dtype=a.dtype) / 2)
    return terms.sum(-1) + size * (size - 1) * math.log(math.pi) / 4


def poch(z: ArrayLike, m: ArrayLike) -> Array:
    """Rising factorial gamma(z + m) / gamma(z)."""
    z, m = promoted("poch", z, m)
    sign = gammasgn(z + m) * gammasgn(z)
    value = sign * jnp.exp(lax.lgamma(z + m) - lax.lgamma(z))
    return jnp.where(m == 0, 1, value)  # type: ignore[no-any-return]


# --- error function and the normal distribution ---------------------------------------------------


def erf(x: ArrayLike) -> Array:
    """Error function."""
    (x,) = promoted("erf", x)
    return lax.erf(x)


def erfc(x: ArrayLike) -> Array:
    """1 - erf(x), accurate where it is small."""
    (x,) = promoted("erfc", x)
    return lax.erfc(x)


def erfinv(x: ArrayLike) -> Array:
    """Inverse error function."""
    (x,) = promoted("erfinv", x)
    return lax.erf_inv(x)


def ndtr(x: ArrayLike) -> Array:
    """Distribution function of the standard normal."""
    (x,) = promoted("ndtr", x)
    return 0.5 * lax.erfc(-x * np.sqrt(0.5).astype(x.dtype))


LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)


def normal_logpdf(x: Array) -> Array:
    """log density of the standard normal."""
    return -0.5 * x * x - LOG_ROOT_2PI


@custom_jvp
def _log_ndtr(x: Array) -> Array:
    """Below `edge` an asymptotic series (Abramowitz and Stegun 26.2.12), above 0 by log1p."""
    double = x.dtype == np.float64
    edge, terms = (-20.0, 10) if double else (-10.0, 6)
    far = jnp.where(x < edge, x, edge)
    near = jnp.where(x < edge, edge, x)
    inverse = 1 / (far * far)
    series = jnp.ones_like(x)
    for k in range(terms, 0, -1):
        series = 1 - (2 * k - 1) * inverse * series
    tail = normal_logpdf(far) - jnp.log(-far) + jnp.log(series)
    low = jnp.minimum(near, 0.0)
    high = jnp.maximum(near, 0.0)
    body = jnp.where(near > 0, jnp.log1p(-ndtr(-high)), jnp.log(ndtr(low)))
    return jnp.where(x < edge, tail, body)  # type: ignore[no-any-return]


@_log_ndtr.defjvp
def _log_ndtr_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    y = _log_ndtr(x)
    return y, t * jnp.exp(normal_logpdf(x) - y)


def log_ndtr(x: ArrayLike, series_order: int = 3) -> Array:
    """log of the normal distribution function, accurate in both tails."""
    (x,) = promoted("log_ndtr", x)
    return _log_ndtr(real_only("log_ndtr", x))  # type: ignore[no-any-return]


@custom_jvp
def _ndtri(p: Array) -> Array:
    """The inverse by Newton's method on log_ndtr, from an estimate good to a few percent."""
    small = jnp.minimum(p, 1 - p)
    safe = jnp.where((small > 0) & (small < 1), small, 0.25)
    wide = jnp.log(safe)
    t = jnp.sqrt(-2 * wide)
    # Abramowitz and Stegun 26.2.22, off by at most 3e-3.
    z = -(t - (2.30753 + 0.27061 * t) / (1 + t * (0.99229 + 0.04481 * t)))
    for _ in range(4):
        value = _log_ndtr(z)
        z = z - (value - wide) * jnp.exp(value - normal_logpdf(z))
    z = jnp.where(p > 0.5, -z, z)
    z = jnp.where(p == 0.5, 0.0, z)
    edge = jnp.where(p == 0, -jnp.inf, jnp.where(p == 1, jnp.inf, jnp.nan))
    return jnp.where((p > 0) & (p < 1), z, edge).astype(p.dtype)  # type: ignore[no-any-return]


@_ndtri.defjvp
def _ndtri_jvp(primals: Any, tangents: Any) -> Any:
    (p,), (t,) = primals, tangents
    z = _ndtri(p)
    return z, t * jnp.exp(-normal_logpdf(z))


def ndtri(p: ArrayLike) -> Array:
    """Inverse of the normal distribution function; NaN outside [0, 1]."""
    (p,) = promoted("ndtri", p)
    return _ndtri(real_only("ndtri", p))  # type: ignore[no-any-return]


# --- logarithms and entropies ---------------------------------------------------------------------


def expit(x: ArrayLike) -> Array:
    """1 / (1 + exp(-x))."""
    (x,) = promoted("expit", x)
    return lax.logistic(x)


@custom_jvp
def _logit(x: Array) -> Array:
    return jnp.log(x / (1 - x))


@_logit.defjvp
def _logit_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return _logit(x), t / (x * (1 - x))


def logit(x: ArrayLike) -> Array:
    """log(x / (1 - x))."""
    (x,) = promoted("logit", x)
    return _logit(x)  # type: ignore[no-any-return]


@custom_jvp
def _xlogy(x: Array, y: Array) -> Array:
    none = x == 0
    value = jnp.where(none, 0.0, x * jnp.log(jnp.where(none, 1.0, y)))
    return jnp.where(none & jnp.isnan(y), y, value).astype(x.dtype)  # type: ignore[no-any-return]


@_xlogy.defjvp
def _xlogy_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return _xlogy(x, y), dx * jnp.log(y) + dy * (x / y)


def xlogy(x: ArrayLike, y: ArrayLike) -> Array:
    """x log(y), 0 where x is 0."""
    x, y = promoted("xlogy", x, y)
    return _xlogy(x, y)  # type: ignore[no-any-return]


@custom_jvp
def _xlog1py(x: Array, y: Array) -> Array:
    none = x == 0
    value = jnp.where(none, 0.0, x * jnp.log1p(jnp.where(none, 0.0, y)))
    return jnp.where(none & jnp.isnan(y), y, value).astype(x.dtype)  # type: ignore[no-any-return]


@_xlog1py.defjvp
def _xlog1py_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return _xlog1py(x, y), dx * jnp.log1p(y) + dy * (x / (1 + y))


def xlog1py(x: ArrayLike, y: ArrayLike) -> Array:
    """x log(1 + y), 0 where x is 0."""
    x, y = promoted("xlog1py", x, y)
    return _xlog1py(x, y)  # type: ignore[no-any-return]


def entr(x: ArrayLike) -> Array:
    """-x log(x), 0 at 0, -inf below."""
    (x,) = promoted("entr", x)
    safe = jnp.where(x < 0, 1.0, x).astype(x.dtype)
    return jnp.where(x < 0, -jnp.inf, -_xlogy(safe, safe)).astype(x.dtype)  # type: ignore[no-any-return]


def rel_entr(p: ArrayLike, q: ArrayLike) -> Array:
    """p log(p / q); 0 at p = 0 <= q; inf outside the domain."""
    p, q = promoted("rel_entr", p, q)
    zero = (p == 0) & (q >= 0)
    both = (p > 0) & (q > 0)
    ps, qs = jnp.where(both, p, 1.0), jnp.where(both, q, 1.0)
    value = ps * (jnp.log(ps) - jnp.log(qs))
    return jnp.where(both, value, jnp.where(zero, 0.0, jnp.inf)).astype(p.dtype)  # type: ignore[no-any-return]


def kl_div(p: ArrayLike, q: ArrayLike) -> Array:
    """p log(p / q) - p + q."""
    p, q = promoted("kl_div", p, q)
    return rel_entr(p, q) - p + q  # type: ignore[no-any-return]


def boxcox(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """(x**lmbda - 1) / lmbda, log(x) for lmbda = 0."""
    x, lmbda = promoted("boxcox", x, lmbda)
    flat = lmbda == 0
    safe = jnp.where(flat, 1.0, lmbda)
    return jnp.where(flat, jnp.log(x), jnp.expm1(safe * jnp.log(x)) / safe).astype(x.dtype)  # type: ignore[no-any-return]


def boxcox1p(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """((1 + x)**lmbda - 1) / lmbda, log(1 + x) for lmbda = 0."""
    x, lmbda = promoted("boxcox1p", x, lmbda)
    flat = lmbda == 0
    safe = jnp.where(flat, 1.0, lmbda)
    return jnp.where(flat, jnp.log1p(x), jnp.expm1(safe * jnp.log1p(x)) / safe).astype(x.dtype)  # type: ignore[no-any-return]


# --- Bessel functions -----------------------------------------------------------------------------


def i0e(x: ArrayLike) -> Array:
    """exp(-|x|) I0(x)."""
    (x,) = promoted("i0e", x)
    return lax.bessel_i0e(x)


def i0(x: ArrayLike) -> Array:
    """Modified Bessel function of order 0."""
    (x,) = promoted("i0", x)
    return jnp.exp(jnp.abs(x)) * lax.bessel_i0e(x)


def i1e(x: ArrayLike) -> Array:
    """exp(-|x|) I1(x)."""
    (x,) = promoted("i1e", x)
    return lax.bessel_i1e(x)


def i1(x: ArrayLike) -> Array:
    """Modified Bessel function of order 1."""
    (x,) = promoted("i1", x)
    return jnp.exp(jnp.abs(x)) * lax.bessel_i1e(x)


__all__ = [
    "beta", "betainc", "betaln", "boxcox", "boxcox1p", "digamma", "entr", "erf", "erfc", "erfinv",
    "expit", "factorial", "gamma", "gammainc", "gammaincc", "gammaln", "gammasgn", "i0", "i0e",
    "i1",
    "i1e", "kl_div", "log_ndtr", "log_softmax", "loggamma", "logit", "logsumexp", "multigammaln",
    "ndtr", "ndtri", "poch", "polygamma", "psi", "rel_entr", "softmax", "xlog1py", "xlogy", "zeta",
]  # fmt: skip

_publish_functions(globals())
