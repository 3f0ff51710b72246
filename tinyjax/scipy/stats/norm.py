"""The normal distribution: `tinyjax.scipy.stats.norm`."""

from __future__ import annotations

from typing import Any

from tinyjax import numpy as jnp
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.engine.array import Array
from tinyjax.scipy import special

ArrayLike = Any


def standardised(name: str, x: ArrayLike, loc: ArrayLike, scale: ArrayLike) -> tuple[Array, Array]:
    """(x - loc) / scale, and scale."""
    x, loc, scale = special.promoted(name, x, loc, scale)
    return (x - loc) / scale, scale


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """log of the density."""
    z, scale_ = standardised("norm.logpdf", x, loc, scale)
    return special.normal_logpdf(z) - jnp.log(scale_)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Density."""
    return jnp.exp(logpdf(x, loc, scale))


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Distribution function."""
    return special.ndtr(standardised("norm.cdf", x, loc, scale)[0])


def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """log of the distribution function, accurate in both tails."""
    return special.log_ndtr(standardised("norm.logcdf", x, loc, scale)[0])


def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """1 - cdf."""
    return special.ndtr(-standardised("norm.sf", x, loc, scale)[0])


def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """log(1 - cdf)."""
    return special.log_ndtr(-standardised("norm.logsf", x, loc, scale)[0])


def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Quantiles: the inverse of cdf."""
    q, loc, scale = special.promoted("norm.ppf", q, loc, scale)
    return special.ndtri(q) * scale + loc  # type: ignore[no-any-return]


def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The inverse of sf."""
    q, loc, scale = special.promoted("norm.isf", q, loc, scale)
    return loc - special.ndtri(q) * scale  # type: ignore[no-any-return]


_publish_functions(globals())
