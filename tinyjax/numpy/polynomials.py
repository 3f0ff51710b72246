"""Polynomials as coefficient vectors, highest power first."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dims import as_int
from tinyjax.core.errors import ConcretizationTypeError, ShapeError
from tinyjax.core.shapes import broadcast_shapes
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish
from tinyjax.lax.control_flow import scan
from tinyjax.numpy.calculus import convolve
from tinyjax.numpy.creation import array_node, vander
from tinyjax.numpy.indexing import concrete
from tinyjax.numpy.linalg import eigvals, inv, lstsq
from tinyjax.numpy.promotion import ArrayLike, checked, promote_dtypes, promote_inexact
from tinyjax.numpy.shaping import trim_zeros

# Horner's rule is unrolled up to this many coefficients; longer polynomials run as a scan.
UNROLL_LIMIT = 64


def polyval(p: ArrayLike, x: ArrayLike, *, unroll: int = 16) -> Array:
    """Value of a polynomial, by Horner's rule."""
    coefficients, points = promote_dtypes(checked("polyval", p, x))
    coefficients, points = (b.cast(n, n.dtype) for n in (coefficients, points))
    if coefficients.ndim < 1:
        raise ValueError("polyval: p must have at least one dimension")
    count = coefficients.shape[0]
    shape = broadcast_shapes(coefficients.shape[1:], points.shape)
    points = b.broadcast(points, shape)
    if count > UNROLL_LIMIT:
        start = finish(b.full(shape, b.like(points, 0)))

        def step(c: Any, k: Any) -> Any:
            return finish(b.add(b.mul(c.node, points), b.broadcast(k.node, shape))), None

        return scan(step, start, finish(coefficients), unroll=unroll)[0]  # type: ignore[no-any-return]
    total = b.full(shape, b.like(points, 0))
    for i in range(count):
        c = b.squeeze(b.slice_axis(coefficients, 0, i, i + 1), (0,))
        total = b.add(b.mul(total, points), b.broadcast(c, shape))
    return finish(total)


class CoefficientError(ShapeError, ValueError):
    """Coefficients that are not one row (JAX raises TypeError for scalars, ValueError for more)."""


def coefficient_rows(name: str, *args: ArrayLike, most: int = 1) -> list[UOp]:
    """Coefficients, which have one axis (and at most `most`)."""
    nodes = checked(name, *args)
    for n in nodes:
        if not 1 <= n.ndim <= most:
            raise CoefficientError(
                f"{name}: coefficients must be a one-dimensional array, got shape {n.shape}."
            )
    return nodes


def aligned(name: str, a1: ArrayLike, a2: ArrayLike) -> tuple[UOp, UOp]:
    """Both padded in front to the longer length."""
    p, q = promote_dtypes(coefficient_rows(name, a1, a2, most=2))
    size = max(p.shape[0], q.shape[0])
    return (
        b.pad(p, [(size - p.shape[0], 0, 0)]),
        b.pad(q, [(size - q.shape[0], 0, 0)]),
    )


def polyadd(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Sum of two polynomials."""
    p, q = aligned("polyadd", a1, a2)
    return finish(b.add(p, q))


def polysub(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Difference of two polynomials."""
    p, q = aligned("polysub", a1, a2)
    return finish(b.sub(p, q))


def polymul(a1: ArrayLike, a2: ArrayLike, *, trim_leading_zeros: bool = False) -> Array:
    """Product of two polynomials; leading zeros can be trimmed where values are known."""
    p, q = promote_inexact(coefficient_rows("polymul", a1, a2))
    left, right = finish(p), finish(q)
    if trim_leading_zeros and p.shape[0] > 1:
        left = trim_zeros(left, "f")
    if trim_leading_zeros and q.shape[0] > 1:
        right = trim_zeros(right, "f")
    if not left.shape[0]:
        left = finish(b.full((1,), b.like(p, 0)))
    if not right.shape[0]:
        right = finish(b.full((1,), b.like(q, 0)))
    return convolve(left, right, mode="full")


def polydiv(u: ArrayLike, v: ArrayLike, *, trim_leading_zeros: bool = False) -> tuple[Array, Array]:
    """(quotient, remainder) of polynomial division."""
    p, q = promote_inexact(coefficient_rows("polydiv", u, v))
    m, n = p.shape[0] - 1, q.shape[0] - 1
    lead = b.squeeze(b.slice_axis(q, 0, 0, 1), (0,))
    parts = []
    rest = p
    for k in range(max(m - n + 1, 1)):
        head = b.div(b.squeeze(b.slice_axis(rest, 0, k, k + 1), (0,)), lead)
        parts.append(b.unsqueeze(head, 0))
        if k + n <= m:
            product = b.mul(b.fill_to(head, q.shape), q)
            rest = b.sub(rest, b.pad(product, [(k, m - k - n, 0)]))
    quotient = b.concat(parts, 0)
    remainder = finish(rest)
    if trim_leading_zeros:
        remainder = trim_near_zeros(remainder)
    return finish(quotient), remainder


def trim_near_zeros(x: Array) -> Array:
    """Leading coefficients within NumPy's tolerance of 0 removed (values must be known)."""
    known = concrete(x)
    if known is None:
        return x
    small = np.isclose(known, 0, rtol=0, atol=1e-14)
    first = int(np.argmin(small)) if not small.all() else len(small) - 1
    return finish(b.slice_axis(x.node, 0, first, len(small)))


def polyder(p: ArrayLike, m: int = 1) -> Array:
    """m-th derivative."""
    (n,) = promote_inexact(coefficient_rows("polyder", p))
    order = as_int(m, "m")
    if order < 0:
        raise ValueError("Order of derivative must be positive")
    if order == 0:
        return finish(n)
    degree = n.shape[0] - 1
    kept = max(degree - order + 1, 0)
    powers = np.arange(degree, degree - kept, -1, dtype=np.float64)
    factor = np.prod([powers - i for i in range(order)], axis=0) if kept else powers
    weights = array_node(factor.tolist(), n.dtype) if kept else b.full((0,), b.like(n, 0))
    return finish(b.mul(b.slice_axis(n, 0, 0, kept), weights))


def polyint(p: ArrayLike, m: int = 1, k: ArrayLike | None = None) -> Array:
    """m-th antiderivative with integration constants k, the first one for the highest order."""
    order = as_int(m, "m")
    constants = 0 if k is None else k
    n, c = promote_inexact([coefficient_rows("polyint", p)[0], array_node(constants, None)])
    if order < 0:
        raise ValueError("Order of integral must be positive")
    if order == 0:
        return finish(n)
    c = b.reshape(c, (c.aval.size,))
    if c.shape == (1,):
        c = b.expand(c, (order,), (0,))
    if c.shape != (order,):
        raise ValueError("k must be a scalar or a rank-1 array of length 1 or m.")
    both = b.concat([n, c], 0)
    size = both.shape[0]
    powers = np.arange(size - 1, -1, -1, dtype=np.float64)
    # Coefficient i was integrated as often as its place allows; constants less often.
    coefficient = np.ones(size)
    for i in range(size):
        times = order if i < n.shape[0] else order - 1 - (i - n.shape[0])
        for j in range(times):
            coefficient[i] *= powers[i] - j
    return finish(b.div(both, array_node(coefficient.tolist(), n.dtype)))


def poly(seq_of_zeros: ArrayLike) -> Array:
    """Coefficients of the polynomial with these roots, or characteristic polynomial."""
    (n,) = promote_inexact(checked("poly", seq_of_zeros))
    if n.ndim == 2:
        if n.shape[0] != n.shape[1] or not n.shape[0]:
            raise ValueError("input must be 1d or non-empty square 2d array.")
        n = eigvals(finish(n)).node
    if n.ndim != 1:
        raise ValueError("input must be 1d or non-empty square 2d array.")
    out = b.full((1,), b.like(n, 1))
    for i in range(n.shape[0]):
        root = b.squeeze(b.slice_axis(n, 0, i, i + 1), (0,))
        shifted = b.mul(b.fill_to(root, out.shape), out)
        out = b.sub(b.pad(out, [(0, 1, 0)]), b.pad(shifted, [(1, 0, 0)]))
    return finish(out)


def roots(p: ArrayLike, *, strip_zeros: bool = True) -> Array:
    """Roots, as eigenvalues of the companion matrix. `strip_zeros=False` is needed under jit."""
    (n,) = promote_inexact(checked("roots", p))
    if n.ndim != 1:
        raise ValueError("Input must be a rank-1 array.")
    if n.shape[0] < 2:
        return finish(b.full((0,), b.scalar(0, dtypes.to_complex_dtype(n.dtype))))
    trailing = 0
    if strip_zeros:
        known = concrete(finish(n))
        if known is None:
            raise ConcretizationTypeError(
                Array(n), "  Use jnp.roots(p, strip_zeros=False) within JAX transformations."
            )
        places = np.flatnonzero(known)
        if not len(places):
            return finish(b.full((0,), b.scalar(0, dtypes.to_complex_dtype(n.dtype))))
        trailing = len(known) - 1 - int(places[-1])
        n = b.slice_axis(n, 0, int(places[0]), int(places[-1]) + 1)
    size = n.shape[0] - 1
    zeros = b.full((trailing,), b.scalar(0, dtypes.to_complex_dtype(n.dtype)))
    if size < 1:
        return finish(zeros)
    lead = b.squeeze(b.slice_axis(n, 0, 0, 1), (0,))
    row = b.neg(b.div(b.slice_axis(n, 0, 1, size + 1), lead))
    below = b.eq(b.iota((size, size), 0), b.add(b.iota((size, size), 1), b.scalar(1, b.INT32)))
    first = b.eq(b.iota((size, size), 0), b.scalar(0, b.INT32))
    matrix = b.where(first, b.expand(row, (size, size), (1,)), b.cast(below, n.dtype))
    found = eigvals(finish(matrix)).node
    return finish(b.concat([found, zeros], 0) if trailing else found)


def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: ArrayLike | None = None,
    cov: bool | str = False,
) -> Any:
    """Least-squares polynomial of degree `deg`, with residuals or covariance if asked."""
    points, values = promote_inexact(checked("polyfit", x, y))
    order = as_int(deg, "deg") + 1
    if order < 1:
        raise ValueError("expected deg >= 0")
    if points.ndim != 1:
        raise TypeError("expected 1D vector for x")
    if not points.shape[0]:
        raise TypeError("expected non-empty vector for x")
    if values.ndim not in (1, 2):
        raise TypeError("expected 1D or 2D array for y")
    if points.shape[0] != values.shape[0]:
        raise TypeError("expected x and y to have same length")
    if rcond is None:
        rcond = points.shape[0] * float(dtypes.finfo(points.dtype).eps)
    left, right = vander(finish(points), order).node, values
    if w is not None:
        (weights,) = promote_inexact(checked("polyfit", w))
        if weights.shape != points.shape:
            raise TypeError("expected w and y to have the same length")
        left, right, weights = promote_dtypes([left, right, weights])
        left = b.mul(left, b.expand(weights, left.shape, (0,)))
        right = b.mul(right, b.expand(weights, right.shape, (0,)))
    scale = b.sqrt(b.sum_(b.square(left), (0,)))
    left = b.div(left, b.expand(scale, left.shape, (1,)))
    c, resid, rank, s = lstsq(finish(left), finish(right), rcond)
    wide = b.expand(scale, c.shape, (0,))
    out = finish(b.div(c.node, wide))
    if full:
        return out, resid, rank, s, np.asarray(rcond, points.dtype)
    if not cov:
        return out
    base = inv(finish(b.dot(left, left, ((0,), (0,))))).node
    square = b.mul(b.expand(scale, base.shape, (0,)), b.expand(scale, base.shape, (1,)))
    base = b.div(base, square)
    if cov == "unscaled":
        return out, finish(base)
    if points.shape[0] <= order:
        raise ValueError(
            "the number of data points must exceed order to scale the covariance matrix"
        )
    factor = b.div(resid.node, b.like(resid.node, points.shape[0] - order))
    if values.ndim == 1:
        (one,) = (b.reshape(factor, ()),)
        return out, finish(b.mul(base, one))
    shape = (*base.shape, values.shape[1])
    return out, finish(b.mul(b.expand(base, shape, (0, 1)), b.expand(factor, shape, (2,))))
