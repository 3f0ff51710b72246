"""Reductions: sum, mean, max, ... over axes, with `where`, `initial`, `keepdims` as in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.shapes import broadcast_shapes
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish
from tinyjax.numpy.creation import diagonal
from tinyjax.numpy.promotion import (
    canonical_axes,
    canonical_axis,
    checked,
    no_out,
    promote_inexact,
)
from tinyjax.numpy.ufuncs import truth

ArrayLike = Any
Axis = int | Sequence[int] | None


def keep(node: UOp, axes: tuple[int, ...], shape: tuple[int, ...], keepdims: bool) -> UOp:
    """Reduced axes kept with size 1, if asked."""
    if not keepdims:
        return node
    return b.reshape(node, tuple(1 if i in axes else s for i, s in enumerate(shape)))


def neutral(kind: str, dtype: Any) -> Any:
    """The value that does not change a reduction."""
    if kind in ("add", "or", "xor"):
        return 0
    if kind in ("mul", "and"):
        return 1 if kind == "mul" else (True if dtype == np.bool_ else -1)
    if dtype == np.bool_:
        return kind == "min"
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        return int(info.min) if kind == "max" else int(info.max)
    return -np.inf if kind == "max" else np.inf


def masked(node: UOp, where: Any, value: Any) -> UOp:
    """`value` where the mask is false."""
    if where is None:
        return node
    (mask,) = checked("where", where)
    if mask.dtype != np.bool_:
        raise ValueError(
            f"where must be None or a boolean array; got {mask.aval.str_short()}.\n"
            "  Compare first: where=(mask != 0)."
        )
    shape = broadcast_shapes(mask.shape, node.shape)
    return b.where(
        b.broadcast(mask, shape) if mask.ndim else mask,
        b.broadcast(node, shape),
        b.like(node, value),
    )


def sum_dtype(dtype: Any) -> Any:
    """Bools and integers narrower than the default integer are summed in it, as in NumPy."""
    if dtype == np.bool_:
        return dtypes.default_int_dtype()
    if not dtypes.is_integer(dtype):
        return dtype
    if dtypes.is_unsigned(dtype):
        wide = dtypes.default_uint_dtype()
    else:
        wide = dtypes.default_int_dtype()
    return wide if dtypes.bit_width(dtype) < dtypes.bit_width(wide) else dtype


def fold(
    name: str,
    kind: str,
    a: ArrayLike,
    axis: Axis,
    keepdims: bool,
    initial: Any,
    where: Any,
    dtype: Any = None,
    widen: bool = False,
    needs_identity: bool = False,
) -> Array:
    """The general reduction."""
    (n,) = checked(name, a)
    axes = canonical_axes(axis, n.ndim)
    if dtype is not None:
        n = b.cast(n, dtypes.user_dtype(dtype, name))
    elif widen:
        n = b.cast(n, sum_dtype(n.dtype))
    n = b.cast(n, n.dtype)  # a reduction's result is never weakly typed
    if needs_identity:
        if where is not None and initial is None:
            raise ValueError(
                f"reduction operation {name} does not have an identity, so to use a where mask one "
                "has to specify 'initial'"
            )
        if initial is None and 0 in [n.shape[i] for i in axes]:
            raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
    shape = n.shape
    n = masked(n, where, neutral(kind, n.dtype))
    out = b.reduce(kind, n, axes)
    if initial is not None:
        (first,) = checked(name, initial)
        if first.shape:
            raise ValueError(f"{name}: initial value must be a scalar, got shape {first.shape}.")
        first = b.cast(first, out.dtype)
        combine: dict[str, Callable[[UOp, UOp], UOp]] = {
            "add": b.add, "mul": b.mul, "max": b.max_, "min": b.min_, "and": b.and_, "or": b.or_,
        }  # fmt: skip
        out = combine[kind](out, first)
    return finish(keep(out, axes, shape, keepdims))


def sum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Array:
    """Sum over axes. Dtype: of `a`; bools and small integers in the default integer type.

    Accuracy: several accumulators and pairwise combination; float16/bfloat16 accumulate in float32.
    """
    no_out("sum", out)
    return fold("sum", "add", a, axis, keepdims, initial, where, dtype, widen=promote_integers)


def prod(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Array:
    """Product over axes."""
    no_out("prod", out)
    return fold("prod", "mul", a, axis, keepdims, initial, where, dtype, widen=promote_integers)


def max(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Largest element; NaN wins. The gradient is shared between ties."""
    no_out("max", out)
    return fold("max", "max", a, axis, keepdims, initial, where, needs_identity=True)


def min(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Smallest element; NaN wins. The gradient is shared between ties."""
    no_out("min", out)
    return fold("min", "min", a, axis, keepdims, initial, where, needs_identity=True)


amax, amin = max, min


def all(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Whether all elements are true."""
    no_out("all", out)
    (n,) = checked("all", a)
    return fold("all", "and", finish(truth(n)), axis, keepdims, None, where)


def any(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Whether any element is true."""
    no_out("any", out)
    (n,) = checked("any", a)
    return fold("any", "or", finish(truth(n)), axis, keepdims, None, where)


def count_nonzero(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """How many elements are not zero."""
    (n,) = checked("count_nonzero", a)
    return sum(finish(truth(n)), axis=axis, keepdims=keepdims)


def count_of(n: UOp, axes: tuple[int, ...], where: Any, dtype: Any) -> UOp:
    """Number of elements reduced over, as a float."""
    if where is None:
        return b.scalar(b.prod([n.shape[i] for i in axes]), dtype)
    ones = b.full(n.shape, b.scalar(1, dtype))
    return b.sum_(masked(ones, where, 0), axes)


def mean_node(n: UOp, axes: tuple[int, ...], where: Any = None) -> UOp:
    """Mean of an inexact node."""
    narrow = n.dtype == np.float16 or n.dtype == dtypes.bfloat16
    wide = b.cast(n, np.float32) if narrow else n
    total = b.sum_(masked(wide, where, 0), axes)
    count = count_of(wide, axes, where, dtypes.to_floating_dtype(wide.dtype))
    out = b.div(total, b.cast(count, wide.dtype, count.op is Op.CONST and n.aval.weak_type))
    return b.cast(out, n.dtype, n.aval.weak_type)


def floating_operand(name: str, a: ArrayLike, dtype: Any) -> UOp:
    """`a` in a given dtype, or floating."""
    nodes = checked(name, a)
    if dtype is not None:
        return b.cast(nodes[0], dtypes.user_dtype(dtype, name))
    (n,) = promote_inexact(nodes)
    return b.cast(n, n.dtype)


def mean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Arithmetic mean; integers become floating."""
    no_out("mean", out)
    n = floating_operand("mean", a, dtype)
    axes = canonical_axes(axis, n.ndim)
    return finish(keep(mean_node(n, axes, where), axes, n.shape, keepdims))


def average(
    a: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    returned: bool = False,
    keepdims: bool = False,
) -> Any:
    """Weighted mean."""
    if weights is None:
        out = mean(a, axis, keepdims=keepdims)
        if not returned:
            return out
        (n,) = checked("average", a)
        axes = canonical_axes(axis, n.ndim)
        count = b.prod([n.shape[i] for i in axes])
        return out, finish(b.full(out.shape, b.scalar(count, out.dtype)))
    n, w = (b.cast(k, k.dtype) for k in promote_inexact(checked("average", a, weights)))
    axes = canonical_axes(axis, n.ndim)
    if w.shape != n.shape:
        if axis is None:
            raise ValueError("Axis must be specified when shapes of a and weights differ.")
        if w.ndim != len(axes) or w.shape != tuple(n.shape[i] for i in axes):
            raise ValueError(
                "Shape of weights must be consistent with shape of a along specified axis."
            )
        w = b.expand(w, n.shape, axes)
    total = b.sum_(w, axes)
    out_node = b.div(b.sum_(b.mul(n, w), axes), total)
    result = finish(keep(out_node, axes, n.shape, keepdims))
    return (result, finish(keep(total, axes, n.shape, keepdims))) if returned else result


def var_node(n: UOp, axes: tuple[int, ...], ddof: Any, where: Any, mean: UOp | None = None) -> UOp:
    """Variance (of the real dtype) by two passes: mean, then mean square deviation.

    A mean that is known has the axes of `n`, the reduced ones with size 1.
    """
    narrow = n.dtype == np.float16 or n.dtype == dtypes.bfloat16
    wide = b.cast(n, np.float32) if narrow else n
    rest = tuple(i for i in range(n.ndim) if i not in axes)
    if mean is None:
        center = b.expand(mean_node(wide, axes, where), n.shape, rest)
    else:
        center = b.cast(b.broadcast(mean, n.shape), wide.dtype)
    delta = b.sub(wide, center)
    if dtypes.is_complex(n.dtype):
        square = b.add(b.square(b.real(delta)), b.square(b.imag(delta)))
    else:
        square = b.square(delta)
    total = b.sum_(masked(square, where, 0), axes)
    count = count_of(wide, axes, where, square.dtype)
    (taken,) = checked("ddof", ddof)
    if taken.shape:
        raise TypeError(f"ddof and correction must be scalars, got {taken.aval.str_short()}.")
    divisor = b.sub(count, b.cast(taken, square.dtype))
    out = b.div(total, b.cast(divisor, square.dtype, square.aval.weak_type and divisor.ndim == 0))
    positive = b.gt(divisor, b.like(divisor, 0))
    surely = where is None and type(ddof) in (int, float) and ddof == 0
    out = out if surely else b.where(positive, out, b.like(out, np.nan))
    return b.cast(out, dtypes.to_floating_dtype(n.dtype), n.aval.weak_type)


def var(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    ddof: int = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: int | float | None = None,
) -> Array:
    """Variance with `ddof` degrees of freedom taken off."""
    no_out("var", out)
    n = floating_operand("var", a, dtype)
    axes = canonical_axes(axis, n.ndim)
    given = None
    if mean is not None:
        (given,) = checked("var", mean)
        given = b.cast(given, n.dtype)
        if given.ndim != n.ndim:  # without the reduced axes
            given = keep(given, axes, n.shape, True)
    node = var_node(n, axes, ddof if correction is None else correction, where, given)
    return finish(keep(node, axes, n.shape, keepdims))


def floating_result(name: str, dtype: Any, error: type[Exception] = ValueError) -> None:
    """Raises: `error` if the dtype that is asked for is neither floating nor complex."""
    if dtype is not None and not dtypes.is_inexact(dtypes.user_dtype(dtype, name)):
        raise error(f"dtype argument to jnp.{name} must be inexact; got {dtype}")


def std(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    ddof: int = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: int | float | None = None,
) -> Array:
    """Standard deviation."""
    no_out("std", out)
    floating_result("std", dtype)
    return finish(
        b.sqrt(
            var(
                a, axis, dtype, None, ddof, keepdims, where=where, mean=mean, correction=correction
            ).node
        )
    )


def ptp(a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False) -> Array:
    """Largest minus smallest."""
    no_out("ptp", out)
    return finish(b.sub(max(a, axis, keepdims=keepdims).node, min(a, axis, keepdims=keepdims).node))


def nan_as(name: str, a: ArrayLike, value: Any) -> tuple[UOp, UOp]:
    """`a` with NaN replaced, and the mask of what is not NaN."""
    (n,) = checked(name, a)
    good = b.eq(n, n)
    return b.where(good, n, b.like(n, value)), good


def nansum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Array:
    """Sum, NaN counted as 0."""
    no_out("nansum", out)
    return sum(finish(nan_as("nansum", a, 0)[0]), axis, dtype, None, keepdims, initial, where)


def nanprod(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Array:
    """Product, NaN counted as 1."""
    no_out("nanprod", out)
    return prod(finish(nan_as("nanprod", a, 1)[0]), axis, dtype, None, keepdims, initial, where)


def _nan_extreme(
    name: str, kind: str, a: ArrayLike, axis: Axis, keepdims: bool, initial: Any, where: Any
) -> Array:
    (n,) = checked(name, a)
    if not dtypes.is_inexact(n.dtype):
        return fold(name, kind, a, axis, keepdims, initial, where, needs_identity=True)
    filled, good = nan_as(name, a, neutral(kind, n.dtype))
    axes = canonical_axes(axis, n.ndim)
    out = fold(name, kind, finish(filled), axis, keepdims, initial, where, needs_identity=True).node
    found = keep(b.reduce("or", masked(good, where, False), axes), axes, n.shape, keepdims)
    if initial is not None:
        return finish(out)
    return finish(b.where(found, out, b.like(out, np.nan)))


def nanmax(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Array:
    """Largest element, NaN ignored."""
    no_out("nanmax", out)
    return _nan_extreme("nanmax", "max", a, axis, keepdims, initial, where)


def nanmin(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Array:
    """Smallest element, NaN ignored."""
    no_out("nanmin", out)
    return _nan_extreme("nanmin", "min", a, axis, keepdims, initial, where)


def nanmean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    where: Any = None,
) -> Array:
    """Mean, NaN ignored."""
    no_out("nanmean", out)
    n = floating_operand("nanmean", a, dtype)
    good = b.eq(n, n)
    if where is not None:
        good = b.and_(good, b.broadcast(truth(checked("nanmean", where)[0]), n.shape))
    return mean(finish(b.where(good, n, b.like(n, 0))), axis, keepdims=keepdims, where=finish(good))


def nanvar(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    ddof: int = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: ArrayLike | None = None,
) -> Array:
    """Variance, NaN ignored."""
    no_out("nanvar", out)
    n = floating_operand("nanvar", a, dtype)
    good = b.eq(n, n)
    if where is not None:
        good = b.and_(good, b.broadcast(truth(checked("nanvar", where)[0]), n.shape))
    return var(
        finish(b.where(good, n, b.like(n, 0))),
        axis,
        ddof=ddof,
        keepdims=keepdims,
        where=finish(good),
        mean=mean,
    )


def nanstd(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    ddof: int = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: ArrayLike | None = None,
) -> Array:
    """Standard deviation, NaN ignored."""
    no_out("nanstd", out)
    floating_result("nanstd", dtype, TypeError)
    return finish(b.sqrt(nanvar(a, axis, dtype, None, ddof, keepdims, where, mean).node))


def _arg(name: str, kind: str, a: ArrayLike, axis: int | None, keepdims: bool | None) -> Array:
    (n,) = checked(name, a)
    shape = n.shape
    if axis is None:
        n, position = b.reshape(n, (n.aval.size,)), 0
    else:
        position = canonical_axis(axis, n.ndim)
    if n.shape[position] == 0:
        raise ValueError(f"attempt to get {name} of an empty sequence")
    index = b.argreduce(kind, n, position, dtypes.canonicalize_dtype(np.int64))[1]
    if keepdims:
        full = (
            (1,) * len(shape)
            if axis is None
            else tuple(1 if i == position else s for i, s in enumerate(shape))
        )
        index = b.reshape(index, full)
    return finish(index)


def argmax(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Array:
    """Index of the (first) largest element; NaN counts as largest."""
    no_out("argmax", out)
    return _arg("argmax", "max", a, axis, keepdims)


def argmin(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Array:
    """Index of the (first) smallest element; NaN counts as smallest."""
    no_out("argmin", out)
    return _arg("argmin", "min", a, axis, keepdims)


def _nan_arg(name: str, kind: str, a: ArrayLike, axis: int | None, keepdims: bool | None) -> Array:
    (n,) = checked(name, a)
    filled, good = nan_as(name, a, neutral(kind, n.dtype))
    index = _arg(name, kind, finish(filled), axis, keepdims).node
    axes = canonical_axes(axis, n.ndim)
    found = keep(b.reduce("or", good, axes), axes, n.shape, bool(keepdims))
    return finish(b.where(found, index, b.like(index, -1)))


def nanargmax(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Array:
    """argmax, NaN ignored; -1 where all are NaN."""
    no_out("nanargmax", out)
    return _nan_arg("nanargmax", "max", a, axis, keepdims)


def nanargmin(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Array:
    """argmin, NaN ignored; -1 where all are NaN."""
    no_out("nanargmin", out)
    return _nan_arg("nanargmin", "min", a, axis, keepdims)


def _cumulative(
    name: str, kind: str, a: ArrayLike, axis: int | None, dtype: Any, widen: bool
) -> Array:
    (n,) = checked(name, a)
    if axis is None:
        n, position = b.reshape(n, (n.aval.size,)), 0
    else:
        position = canonical_axis(axis, n.ndim)
    if dtype is not None:
        n = b.cast(n, dtypes.user_dtype(dtype, name))
    elif widen:
        n = b.cast(n, sum_dtype(n.dtype) if n.dtype == np.bool_ else n.dtype)
    n = b.cast(n, n.dtype)
    return finish(b.prefix(kind, n, position))


def cumsum(a: ArrayLike, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Cumulative sum."""
    no_out("cumsum", out)
    return _cumulative("cumsum", "add", a, axis, dtype, True)


def cumprod(a: ArrayLike, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Cumulative product."""
    no_out("cumprod", out)
    return _cumulative("cumprod", "mul", a, axis, dtype, True)


def nancumsum(a: ArrayLike, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Cumulative sum, NaN counted as 0."""
    no_out("nancumsum", out)
    return cumsum(finish(nan_as("nancumsum", a, 0)[0]), axis, dtype)


def nancumprod(a: ArrayLike, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Cumulative product, NaN counted as 1."""
    no_out("nancumprod", out)
    return cumprod(finish(nan_as("nancumprod", a, 1)[0]), axis, dtype)


def observation_weights(name: str, weights: ArrayLike | None, count: int, dtype: Any) -> UOp | None:
    """Weights of the observations, checked."""
    if weights is None:
        return None
    (w,) = checked("cov", weights)
    if w.ndim != 1:
        raise RuntimeError(f"cannot handle multidimensional {name}")
    if w.shape[0] != count:
        raise RuntimeError(f"incompatible numbers of samples and {name}")
    if name == "fweights" and not dtypes.is_integer(w.dtype):
        raise TypeError("fweights must be integer.")
    return b.cast(b.abs_(w) if dtypes.is_signed(w.dtype) else w, dtype)


def real_part(n: UOp) -> UOp:
    """The node without its imaginary part."""
    return b.real(n) if dtypes.is_complex(n.dtype) else n


def cov(
    m: ArrayLike,
    y: ArrayLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: ArrayLike | None = None,
    aweights: ArrayLike | None = None,
    dtype: Any = None,
) -> Array:
    """Covariance matrix of variables in rows, with frequency and reliability weights."""
    floating_result("cov", dtype)
    observed = checked("cov", m, *([] if y is None else [y]))
    weights = checked("cov", *[w for w in (fweights, aweights) if w is not None])
    nodes = promote_inexact([*observed, *map(real_part, weights)])[: len(observed)]
    if any_large := [n for n in nodes if n.ndim > 2]:
        raise ValueError(f"cov: inputs must have at most 2 dimensions, got {any_large[0].ndim}")
    if dtype is not None:
        nodes = [b.cast(n, dtypes.user_dtype(dtype, "cov")) for n in nodes]
    rows = [
        b.reshape(n, (1, n.aval.size))
        if n.ndim < 2
        else (n if rowvar or n.shape[0] == 1 else b.permute(n, (1, 0)))
        for n in nodes
    ]
    x = b.concat(rows, 0)
    count = x.shape[1]
    free = (0 if bias else 1) if ddof is None else ddof
    real = dtypes.to_floating_dtype(x.dtype)
    frequency = observation_weights("fweights", fweights, count, real)
    reliability = observation_weights("aweights", aweights, count, real)
    given = [w for w in (frequency, reliability) if w is not None]
    if not given:
        center = b.expand(mean_node(x, (1,)), x.shape, (0,))
        x = b.sub(x, center)
        right = x
        norm: UOp = b.scalar(count - free, real)
    else:
        w = given[0] if len(given) == 1 else b.mul(*given)
        total = b.sum_(w, (0,))
        wide = b.cast(b.expand(w, x.shape, (1,)), x.dtype)
        average = b.div(b.sum_(b.mul(x, wide), (1,)), b.cast(total, x.dtype))
        x = b.sub(x, b.expand(average, x.shape, (0,)))
        right = b.mul(x, wide)
        if free == 0:
            norm = total
        elif reliability is None:
            norm = b.sub(total, b.like(total, free))
        else:
            share = b.div(b.sum_(b.mul(w, reliability), (0,)), total)
            norm = b.sub(total, b.mul(share, b.like(share, free)))
    c = b.dot(x, b.conj(right), ((1,), (1,)))
    c = b.div(c, b.cast(norm, c.dtype))
    size = c.shape[0]
    return finish(b.reshape(c, ()) if size == 1 else c)


def corrcoef(
    x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, dtype: Any = None
) -> Array:
    """Correlation coefficients."""
    floating_result("corrcoef", dtype)
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return finish(b.div(c.node, c.node))
    d = b.sqrt(b.real(diagonal(c).node))
    size = c.shape[0]
    outer = b.mul(b.expand(d, (size, size), (0,)), b.expand(d, (size, size), (1,)))
    out = b.div(c.node, b.cast(outer, c.dtype))
    if not dtypes.is_complex(out.dtype):
        out = b.min_(b.max_(out, b.like(out, -1)), b.like(out, 1))
    return finish(out)
