"""Limits and tolerances: clip, isclose, nan_to_num, and the tests of what an object is."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.errors import ConcretizationTypeError
from tinyjax.core.ops import Op
from tinyjax.core.shapes import broadcast_shapes
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish
from tinyjax.numpy.creation import array_node
from tinyjax.numpy.indexing import concrete
from tinyjax.numpy.promotion import (
    ArrayLike,
    broadcast,
    checked,
    inexact_operands,
    promote_dtypes,
)
from tinyjax.numpy.reductions import all as all_of


def clip(
    arr: ArrayLike | None = None,
    /,
    min: ArrayLike | None = None,
    max: ArrayLike | None = None,
) -> Array:
    """`arr` limited to [min, max]; either limit may be None. Dtype: promoted."""
    if arr is None:
        raise ValueError("At least one argument is required: jnp.clip(arr, min, max)")
    (n,) = checked("clip", arr)
    limits = [x for x in (min, max) if x is not None]
    if any(dtypes.is_complex(m.dtype) for m in (n, *checked("clip", *limits))):
        raise ValueError(
            "Clip received a complex value either through the input or the min/max keywords. "
            "Complex values have no ordering and cannot be clipped. Please convert to a real value "
            "or array by taking the real or imaginary components via jax.numpy.real/imag "
            "respectively."
        )
    if min is not None:
        n = b.max_(*broadcast("clip", promote_dtypes([n, *checked("clip", min)])))
    if max is not None:
        n = b.min_(*broadcast("clip", promote_dtypes([n, *checked("clip", max)])))
    return finish(n)


def close_node(p: UOp, q: UOp, rtol: Any, atol: Any, equal_nan: bool) -> UOp:
    """|p - q| <= atol + rtol * |q|, equal infinities being close."""
    if not dtypes.is_inexact(p.dtype):
        return b.eq(p, q)
    real = dtypes.to_floating_dtype(p.dtype)
    r, t = (b.cast(n, real) for n in checked("isclose", rtol, atol))
    limit = b.add(t, b.mul(r, b.abs_(q)))
    near = b.le(b.abs_(b.sub(p, q)), limit)
    finite = [finite_node(n) for n in (p, q)]
    both = b.and_(*finite)
    out = b.or_(b.and_(near, both), b.eq(p, q))
    if equal_nan:
        out = b.or_(out, b.and_(b.ne(p, p), b.ne(q, q)))
    return out


def finite_node(n: UOp) -> UOp:
    """Whether finite, in both parts."""
    if dtypes.is_complex(n.dtype):
        return b.and_(UOp(Op.IS_FINITE, (b.real(n),)), UOp(Op.IS_FINITE, (b.imag(n),)))
    return UOp(Op.IS_FINITE, (n,))


def isclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: ArrayLike = 1e-05,
    atol: ArrayLike = 1e-08,
    equal_nan: bool = False,
) -> Array:
    """Elementwise |a - b| <= atol + rtol * |b|."""
    p, q = broadcast("isclose", promote_dtypes(checked("isclose", a, b)))
    return finish(close_node(p, q, rtol, atol, equal_nan))


def allclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: ArrayLike = 1e-05,
    atol: ArrayLike = 1e-08,
    equal_nan: bool = False,
) -> Array:
    """Whether all elements are close (see `isclose`)."""
    return all_of(isclose(a, b, rtol, atol, equal_nan))


def nan_to_num(
    x: ArrayLike,
    copy: bool = True,
    nan: ArrayLike = 0.0,
    posinf: ArrayLike | None = None,
    neginf: ArrayLike | None = None,
) -> Array:
    """NaN and infinities replaced: by 0 and by the largest finite numbers unless given."""
    (n,) = checked("nan_to_num", x)
    if not dtypes.is_inexact(n.dtype):
        return finish(n)
    n = b.cast(n, n.dtype)
    if dtypes.is_complex(n.dtype):
        parts = [replaced(p, nan, posinf, neginf) for p in (b.real(n), b.imag(n))]
        return finish(b.complex_(*parts))
    return finish(replaced(n, nan, posinf, neginf))


def replaced(n: UOp, nan: Any, posinf: Any, neginf: Any) -> UOp:
    """`nan_to_num` of a real node."""
    info = dtypes.finfo(n.dtype)
    high = info.max if posinf is None else posinf
    low = info.min if neginf is None else neginf
    values = [
        b.cast(v, n.dtype, n.aval.weak_type)
        for v in (
            b.like(n, x) if isinstance(x, np.generic) else checked("nan_to_num", x)[0]
            for x in (nan, high, low)
        )
    ]
    values = [b.broadcast(v, n.shape) if v.ndim else v for v in values]
    n = b.where(b.ne(n, n), values[0], n)
    n = b.where(b.eq(n, b.like(n, np.inf)), values[1], n)
    return b.where(b.eq(n, b.like(n, -np.inf)), values[2], n)


def iscomplex(x: ArrayLike) -> Array:
    """Whether the imaginary part is not zero."""
    (n,) = checked("iscomplex", x)
    if not dtypes.is_complex(n.dtype):
        return finish(b.full(n.shape, b.scalar(False, b.BOOL)))
    part = b.imag(n)
    return finish(b.ne(part, b.like(part, 0)))


def isreal(x: ArrayLike) -> Array:
    """Whether the imaginary part is zero."""
    return finish(b.not_(iscomplex(x).node))


def dtype_of_object(x: Any) -> Any:
    """The dtype of an array or of what NumPy makes of an object."""
    dtype = getattr(x, "dtype", None)
    return np.asarray(x).dtype if dtype is None else dtype


def iscomplexobj(x: Any) -> bool:
    """Whether the dtype is complex."""
    return x is not None and dtypes.is_complex(dtype_of_object(x))


def isrealobj(x: Any) -> bool:
    """Whether the dtype is not complex."""
    return not iscomplexobj(x)


def isscalar(element: Any) -> bool:
    """Whether `element` is a number, or an array without axes."""
    if isinstance(element, (np.ndarray, Array)) or hasattr(element, "__jax_array__"):
        return np.ndim(element) == 0
    return bool(np.isscalar(element))


def iterable(y: Any) -> bool:
    """Whether `iter(y)` works."""
    try:
        iter(y)
    except TypeError:
        return False
    return True


def array_equiv(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Whether two arrays are equal after broadcasting."""
    p, q = promote_dtypes([array_node(a1, None), array_node(a2, None)])
    try:
        broadcast_shapes(p.shape, q.shape)
    except ValueError:
        return finish(b.scalar(False, b.BOOL))
    same = b.eq(*broadcast("array_equiv", [p, q]))
    return finish(b.reduce("and", same, range(same.ndim)))


def real_if_close(a: ArrayLike, tol: float = 100) -> Array:
    """The real part, if all imaginary parts are within `tol` epsilons of 0 (values known)."""
    (n,) = inexact_operands("real_if_close", a)
    if not dtypes.is_complex(n.dtype):
        return finish(n)
    limit = tol * float(dtypes.finfo(n.dtype).eps) if tol > 1 else tol
    known = concrete(finish(b.imag(n)))
    if known is None:
        raise ConcretizationTypeError(Array(n), "  The dtype of real_if_close depends on values.")
    return finish(b.real(n) if bool(np.all(np.abs(known) < limit)) else n)
