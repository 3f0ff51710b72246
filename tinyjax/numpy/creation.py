"""Making arrays: `array`, `zeros`, `arange`, `linspace`, ... with JAX's dtypes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.describe import describe_value
from tinyjax.core.dims import as_int, as_size, is_size, is_symbolic, maximum, minimum
from tinyjax.core.errors import DtypeArgumentError
from tinyjax.core.ops import Op
from tinyjax.core.shapes import broadcast_shapes
from tinyjax.core.treedef import tree_flatten
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import (
    PYTHON_SCALARS,
    canonical_shape,
    finish,
    is_array_like,
    lift,
    lift_for,
    number,
)
from tinyjax.lax.elementwise import power_node
from tinyjax.numpy.promotion import (
    canonical_axis,
    checked,
    inexact_operands,
    promote_dtypes,
    promote_inexact,
)
from tinyjax.numpy.ufuncs import log10, power

ArrayLike = Any
Shape = int | Sequence[int]


def float_default() -> Any:
    """float64 with x64, else float32."""
    return dtypes.canonicalize_dtype(np.float64)


def given_dtype(dtype: Any, default: Any, name: str) -> tuple[Any, bool]:
    """A user's dtype argument (or the default) and whether it is weak (`float`, `int`)."""
    if dtype is None:
        return default, False
    return dtypes.user_dtype(dtype, name), False


def array(
    object: Any,
    dtype: Any = None,
    *args: Any,
    copy: bool = True,
    order: str | None = "K",
    ndmin: int = 0,
    device: Any = None,
    out_sharding: Any = None,
) -> Array:
    """An array from numbers, nested sequences, NumPy arrays or arrays.

    Dtype: promoted from the elements; Python numbers give the 32-bit defaults (64-bit with x64).
    Raises: TypeError for elements that are not numbers, with the offending value.
    """
    positional: list[Any] = [copy, order, ndmin]  # once they were
    positional[: len(args)] = args
    copy, order, ndmin = positional
    row_major(order)
    node, ndmin = array_node(object, dtype), as_int(ndmin, "ndmin")
    if node.ndim < ndmin:
        node = b.reshape(node, (1,) * (ndmin - node.ndim) + node.shape)
    return finish(node)


def array_node(obj: Any, dtype: Any) -> UOp:
    """The node of `array(obj, dtype)`."""
    if dtype is not None and not dtypes.is_key(dtype):
        wanted = dtypes.user_dtype(dtype, "array")
    else:
        wanted = None
    if wanted is not None and is_real_number(obj):
        return number(obj, wanted)
    if is_array_like(obj):
        node = lift(obj)
    elif hasattr(obj, "__array__"):
        node = lift(np.asarray(obj))
    elif isinstance(obj, (list, tuple, range)):
        node = sequence_node(list(obj) if isinstance(obj, range) else obj, wanted)
    elif obj is None:
        raise ValueError("None is not a valid value for jnp.array")
    else:
        try:
            node = lift(np.asarray(memoryview(obj)))
        except TypeError:
            raise TypeError(f"Unexpected input type for array: {type(obj)}") from None
    if wanted is not None:
        if dtypes.is_complex(node.dtype) and not dtypes.is_complex(wanted):
            raise TypeError(f"cannot convert a complex value to {wanted.name}; take its real part.")
        return b.cast(node, wanted)
    if dtypes.is_key(dtype):
        return b.cast(node, dtype)
    if isinstance(obj, PYTHON_SCALARS):
        return b.cast(node, node.dtype, node.aval.weak_type)
    return b.cast(node, node.dtype)


def is_real_number(x: Any) -> bool:
    """Whether `x` is a Python number that is not complex (NumPy's scalars are arrays)."""
    return isinstance(x, (bool, int, float)) and not isinstance(x, np.generic)


def sequence_node(obj: Any, wanted: Any) -> UOp:
    """A nested list: through NumPy if it holds only numbers, else stacked."""
    leaves = tree_flatten(obj, is_leaf=lambda x: x is None)[0]
    for leaf in leaves:
        if leaf is None or not is_array_like(leaf):
            raise TypeError(f"Value {leaf!r} of type {type(leaf)} is not a valid JAX array element")
    if not any(type(x) is Array or hasattr(x, "__jax_array__") for x in leaves):
        if not leaves:
            return lift(np.zeros(np.shape(obj), wanted or float_default()))
        pairs = (
            [dtypes.dtype_and_weak(x) for x in leaves]
            if len(leaves) <= 64
            else list(
                {
                    (type(x), getattr(x, "dtype", None)): dtypes.dtype_and_weak(x) for x in leaves
                }.values()
            )
        )
        dtype = wanted or dtypes.result_type_of_pairs(*pairs)[0]
        return lift(np.array(obj, dtype=dtype))
    if wanted is None:
        nodes = [array_node(x, None) if isinstance(x, (list, tuple)) else lift(x) for x in obj]
    else:
        nodes = [array_node(x, wanted) for x in obj]
    shapes = {n.shape for n in nodes}
    if len(shapes) > 1:
        raise ValueError(f"All input arrays must have the same shape; got {sorted(shapes)}")
    return b.concat([b.unsqueeze(n, 0) for n in promote_dtypes(nodes)], 0)


def asarray(
    a: Any,
    dtype: Any = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    device: Any = None,
    out_sharding: Any = None,
) -> Array:
    """`a` as an array (itself if it is one of this dtype, unless `copy`)."""
    if type(a) is Array and (dtype is None or dtypes.user_dtype(dtype, "asarray") == a.dtype):
        return finish(UOp(Op.COPY, (a.node,))) if copy else a
    return array(a, dtype, order=order)


def row_major(order: str | None) -> None:
    """Raises: NotImplementedError for another order than that of all arrays."""
    if order not in (None, "K", "C", "A"):
        raise NotImplementedError(
            f"Only implemented for order='K' (rows first), got order={order!r}."
        )


def copy(a: ArrayLike, order: str | None = None) -> Array:
    """A copy in memory of its own."""
    row_major(order)
    return finish(UOp(Op.COPY, (array_node(a, None),)))


def zeros(
    shape: Shape, dtype: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Array:
    """Zeros; float32 by default."""
    kind, weak = given_dtype(dtype, float_default(), "zeros")
    return finish(b.full(canonical_shape(shape), b.scalar(0, kind, weak)))


def ones(shape: Shape, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """Ones; float32 by default."""
    kind, weak = given_dtype(dtype, float_default(), "ones")
    return finish(b.full(canonical_shape(shape), b.scalar(1, kind, weak)))


empty = zeros


def fill_node(name: str, value: ArrayLike, dtype: Any) -> UOp:
    """What `name` fills an array of `dtype` (None: that of the value) with."""
    if isinstance(value, int) and dtype is not None:
        return lift_for(value, dtype)
    return checked(name, value)[0]


def full(
    shape: Shape,
    fill_value: ArrayLike,
    dtype: Any = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Array:
    """`fill_value` broadcast to a shape; its dtype by default."""
    kind, weak = given_dtype(dtype, None, "full")
    value = fill_node("full", fill_value, kind)
    weak = weak or (kind is None and value.aval.weak_type)
    value = b.fill_value(value, kind or value.dtype, weak)
    target = canonical_shape(shape)
    if len(target) < value.ndim:
        raise ValueError(f"cannot fill shape {target} with a value of shape {value.shape}")
    return finish(b.broadcast(value, target))


def like_aval(a: Any, dtype: Any, shape: Any, name: str) -> tuple[tuple[int, ...], Any, bool]:
    """Shape, dtype and weak flag of a `*_like` result."""
    if hasattr(a, "shape") and hasattr(a, "dtype"):
        base_shape, base_dtype = tuple(a.shape), a.dtype
        weak = bool(getattr(a, "weak_type", False))
    else:
        (n,) = checked(name, a)
        base_shape, base_dtype, weak = n.shape, n.dtype, n.aval.weak_type
    same = dtypes.canonicalize_dtype(base_dtype, allow_extended_dtype=True)
    kind, given_weak = given_dtype(dtype, same, name)
    weak = given_weak if dtype is not None else weak
    return (base_shape if shape is None else canonical_shape(shape)), kind, weak


def zeros_like(
    a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Array:
    """Zeros of the shape and dtype of `a`."""
    target, kind, weak = like_aval(a, dtype, shape, "zeros_like")
    return finish(b.full(target, b.scalar(0, kind, weak)))


def ones_like(
    a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Array:
    """Ones of the shape and dtype of `a`."""
    target, kind, weak = like_aval(a, dtype, shape, "ones_like")
    return finish(b.full(target, b.scalar(1, kind, weak)))


def empty_like(
    prototype: Any, dtype: Any = None, shape: Any = None, *, device: Any = None
) -> Array:
    """Zeros of the shape and dtype of `prototype`."""
    return zeros_like(prototype, dtype, shape)


def full_like(
    a: Any,
    fill_value: ArrayLike,
    dtype: Any = None,
    shape: Any = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Array:
    """`fill_value` in the shape and dtype of `a`."""
    target, kind, weak = like_aval(a, dtype, shape, "full_like")
    value = fill_node("full_like", fill_value, kind)
    return finish(b.broadcast(b.fill_value(value, kind, weak), target))


def arange(
    start: Any,
    stop: Any = None,
    step: Any = None,
    dtype: Any = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Evenly spaced values in [start, stop). Bounds are static.

    Dtype: that of the bounds. Raises: ConcretizationTypeError for traced bounds.
    """
    bounds = [x for x in (start, stop, step) if x is not None]
    if not bounds:
        raise TypeError("jnp.arange: start must not be None if there is no stop.")
    values = [concrete(x) for x in bounds]
    if dtype is None:
        numbers = [0 if is_symbolic(x) else x for x in bounds]
        kind = dtypes.result_type_of_pairs(*map(dtypes.dtype_and_weak, numbers))[0]
    else:
        kind = dtypes.user_dtype(dtype, "arange")
    if any(isinstance(x, (complex, np.complexfloating)) for x in values):
        raise ValueError("arange does not accept complex bounds: take their real parts.")
    if kind == np.bool_:
        raise TypeError("arange does not accept dtype bool: truth values are not spaced evenly.")
    if any(map(is_symbolic, values)):
        return symbolic_range(values if stop is not None else [0, *values], kind)
    if stop is None and step is None and dtypes.is_integer(kind):
        return finish(b.iota((max(0, math.ceil(values[0])),), 0, kind))
    return finish(lift(static_range(*(values if stop is not None else [0, *values]), dtype=kind)))


def static_range(start: Any, stop: Any, step: Any = 1, *, dtype: Any) -> np.ndarray:
    """start + step * i, each rounded on its own.

    NumPy's arange takes the step to be the difference of the first two elements once they are
    rounded, which is off by 2% for bfloat16 from 1000 in steps of 100; it serves integers that
    `dtype` holds. Floats narrower than 32 bits are rounded once.
    """
    if dtypes.is_integer(dtype) and all(isinstance(x, int) for x in (start, stop, step)):
        limits = dtypes.iinfo(dtype)
        if dtype.kind in "iu" and all(limits.min <= x <= limits.max for x in (start, stop, step)):
            whole: np.ndarray = np.arange(start, stop, step, dtype=dtype)
            return whole
    count = max(0, math.ceil((stop - start) / step))
    narrow = dtypes.is_float(dtype) and dtypes.bit_width(dtype) < 32
    work = dtypes.float32 if narrow else dtype
    first, by = (np.asarray(x).astype(work) for x in (start, step))
    with np.errstate(over="ignore"):  # integers wrap around
        line: np.ndarray = first + by * np.arange(count).astype(work)
        return line.astype(dtype)


def symbolic_range(bounds: list[Any], kind: Any) -> Array:
    """arange of (start, stop, step) of which some are symbolic sizes; the step is 1 by default."""
    for x in bounds:
        if not is_size(x):
            raise TypeError(
                f"jnp.arange: got the bound {x!r} of type {type(x)} beside the symbolic dimension "
                f"{next(filter(is_symbolic, bounds))}; sizes and integers can be bounds then."
            )
    start, stop, step = [*bounds, 1][:3]
    count = maximum(-((start - stop) // step), 0)
    places = b.cast(b.iota((count,), 0, dtypes.default_int_dtype()), kind)
    return finish(b.add(b.mul(places, b.like(places, step)), b.like(places, start)))


def concrete(x: Any) -> Any:
    """A bound of arange as a Python number, or NumPy's for a float of an array.

    How many elements there are is decided in its precision: float32(0.01) fits 100 times into 1.
    """
    if type(x) is Array or isinstance(x, np.ndarray):
        if x.ndim:
            raise ValueError(
                f"jax.numpy.arange: arguments must be scalars; got {describe_value(x)}."
            )
        value = np.asarray(x)[()]
        return value if dtypes.is_float(value.dtype) else value.item()
    if not is_size(x) and not is_array_like(x):
        raise TypeError(
            f"arange requires ndarray, scalar, or None arguments, got {describe_value(x)}."
        )
    return x


def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """`num` evenly spaced values from start to stop."""
    count = as_size(num, "num")
    if count < 0:
        raise ValueError(f"Number of samples, {num}, must be non-negative.")
    p, q = promote_inexact(checked("linspace", start, stop))
    kind = dtypes.user_dtype(dtype, "linspace") if dtype is not None else p.dtype
    shape = broadcast_shapes(p.shape, q.shape)
    p, q = b.broadcast(p, shape), b.broadcast(q, shape)
    div = count - 1 if endpoint else count
    full_shape = (count, *shape)
    place = b.expand(b.iota((count,), 0, b.INT32), full_shape, (0,))
    t = b.cast(place, dtypes.to_floating_dtype(p.dtype))
    t = b.cast(t, p.dtype)
    lead = tuple(range(1, len(shape) + 1))
    low, high = b.expand(p, full_shape, lead), b.expand(q, full_shape, lead)
    many = is_symbolic(div) or div > 0
    divisor = maximum(div, 1)
    step = b.div(b.sub(q, p), b.like(p, divisor)) if many else b.full(shape, b.like(p, np.nan))
    if is_symbolic(div):
        step = b.where(b.eq(b.scalar(div, b.INT32), b.scalar(0, b.INT32)), b.like(p, np.nan), step)
    if many:
        ratio = b.div(t, b.like(t, divisor))
        one = b.like(t, 1)
        out = b.add(b.mul(low, b.sub(one, ratio)), b.mul(high, ratio))
        if endpoint:
            last = b.eq(place, b.like(place, divisor))  # one value is the first
            out = b.where(last, high, out)
    else:
        out = low
    out = b.moveaxis(out, 0, canonical_axis(axis, out.ndim))
    if dtypes.is_integer(kind):
        out = UOp(Op.FLOOR, (out,))
    result = finish(b.cast(out, kind))
    return (result, finish(step)) if retstep else result


def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    base: ArrayLike = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Array:
    """`base` to evenly spaced powers."""
    powers = linspace(start, stop, num, endpoint, dtype=None, axis=axis)
    out = power(asarray(base, powers.dtype), powers)
    return (
        finish(b.cast(out.node, dtypes.user_dtype(dtype, "logspace"))) if dtype is not None else out
    )


def geomspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
    axis: int = 0,
) -> Array:
    """Values in geometric progression from start to stop."""
    p, q = inexact_operands("geomspace", start, stop)
    sign = b.sign(p)
    low = log10(finish(b.div(p, sign)))
    high = log10(finish(b.div(q, sign)))
    powers = linspace(low, high, num, endpoint, axis=axis)
    out = power(asarray(10.0, powers.dtype), powers).node
    out = b.mul(out, b.broadcast(sign, out.shape) if sign.ndim else sign)
    return finish(b.cast(out, dtypes.user_dtype(dtype, "geomspace")) if dtype is not None else out)


def eye(
    N: int, M: int | None = None, k: int = 0, dtype: Any = None, *, device: Any = None
) -> Array:
    """Ones on the k-th diagonal."""
    rows = as_size(N)
    cols = rows if M is None else as_size(M)
    kind = dtypes.user_dtype(dtype, "eye") if dtype is not None else float_default()
    i, j = b.iota((rows, cols), 0), b.iota((rows, cols), 1)
    (shift,) = checked("eye", k)
    return finish(b.cast(b.eq(b.add(i, b.cast(shift, b.INT32)), j), kind))


def identity(n: int, dtype: Any = None) -> Array:
    """The n by n identity matrix."""
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Array:
    """Ones at and below the k-th diagonal."""
    rows = as_size(N)
    cols = rows if M is None else as_size(M)
    kind = dtypes.user_dtype(dtype, "tri") if dtype is not None else np.dtype(np.float32)
    i, j = b.iota((rows, cols), 0), b.iota((rows, cols), 1)
    return finish(b.cast(b.ge(b.add(i, b.scalar(as_int(k, "k"), b.INT32)), j), kind))


def triangle(name: str, m: ArrayLike, k: int, lower: bool) -> Array:
    """Keep one side of the k-th diagonal of the last two axes."""
    (n,) = checked(name, m)
    if n.ndim < 2:
        raise ValueError(f"Argument to jax.numpy.{name} must be at least 2D")
    shape = n.shape[-2:]
    i, j = b.iota(shape, 0), b.iota(shape, 1)
    shifted = b.add(i, b.scalar(as_int(k, "k") - (0 if lower else 1), b.INT32))
    keep = b.ge(shifted, j)
    mask = b.broadcast(keep if lower else b.not_(keep), n.shape)
    return finish(b.where(mask, n, b.like(n, 0)))


def tril(m: ArrayLike, k: int = 0) -> Array:
    """Lower triangle."""
    return triangle("tril", m, k, True)


def triu(m: ArrayLike, k: int = 0) -> Array:
    """Upper triangle."""
    return triangle("triu", m, k, False)


def meshgrid(
    *xi: ArrayLike, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> list[Array]:
    """Coordinate arrays from coordinate vectors."""
    if not copy:
        raise ValueError("jax.numpy.meshgrid only supports copy=True: arrays are never views.")
    if indexing not in ("xy", "ij"):
        raise ValueError(f"Valid values for indexing are 'xy' and 'ij', got {indexing}")
    nodes = [b.reshape(n, (n.aval.size,)) for n in checked("meshgrid", *xi)]
    if any(lift(x).ndim > 1 for x in xi):
        raise ValueError("Arguments to jax.numpy.meshgrid must be 1D")
    order = list(range(len(nodes)))
    if indexing == "xy" and len(nodes) >= 2:
        order[:2] = [1, 0]
    sizes = [0] * len(nodes)
    for i, n in enumerate(nodes):
        sizes[order[i]] = n.shape[0]
    out = []
    for i, n in enumerate(nodes):
        axis = order[i]
        if sparse:
            shape = [1] * len(nodes)
            shape[axis] = n.shape[0]
            out.append(finish(b.reshape(n, shape)))
        else:
            out.append(finish(b.expand(n, tuple(sizes), (axis,))))
    return out


def indices(dimensions: Sequence[int], dtype: Any = None, sparse: bool = False) -> Any:
    """Coordinates of a grid, stacked (or a tuple of open ones if sparse)."""
    kind = (
        dtypes.user_dtype(dtype, "indices")
        if dtype is not None
        else dtypes.canonicalize_dtype(np.int64)
    )
    shape = canonical_shape(dimensions)
    if sparse:
        out = []
        for i, s in enumerate(shape):
            open_shape = [1] * len(shape)
            open_shape[i] = s
            out.append(finish(b.reshape(b.iota((s,), 0, kind), open_shape)))
        return tuple(out)
    parts = [b.unsqueeze(b.iota(shape, i, kind), 0) for i in range(len(shape))]
    return finish(b.concat(parts, 0)) if parts else zeros((0,), kind)


def fromfunction(function: Any, shape: Any, *, dtype: Any = float, **kwargs: Any) -> Any:
    """`function` of coordinate arrays."""
    coordinates = [
        finish(b.iota(canonical_shape(shape), i, dtypes.user_dtype(dtype, "fromfunction")))
        for i in range(len(canonical_shape(shape)))
    ]
    return function(*coordinates, **kwargs)


def diag(v: ArrayLike, k: int = 0) -> Array:
    """A diagonal matrix from a vector, or the diagonal of a matrix."""
    (n,) = checked("diag", v)
    if n.ndim == 1:
        size = n.shape[0] + abs(as_int(k, "k"))
        rows = b.expand(b.pad(n, [(max(k, 0), max(-k, 0), 0)]), (size, size), (1,))
        i, j = b.iota((size, size), 0), b.iota((size, size), 1)
        on = b.eq(b.add(i, b.scalar(as_int(k, "k"), b.INT32)), j)
        return finish(b.where(on, rows, b.like(n, 0)))
    if n.ndim == 2:
        return diagonal(v, k)
    raise ValueError("diag input must be 1d or 2d")


def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The diagonal of two axes, as a new last axis."""
    (n,) = checked("diagonal", a)
    if n.ndim < 2:
        raise ValueError("diagonal requires an array of at least two dimensions.")
    offset = as_int(offset, "the offset of the diagonal")
    first, second = canonical_axis(axis1, n.ndim), canonical_axis(axis2, n.ndim)
    if first == second:
        raise TypeError(f"axis1 and axis2 cannot be the same, got {axis1} and {axis2}.")
    rest = [i for i in range(n.ndim) if i not in (first, second)]
    n = b.permute(n, (*rest, first, second))
    rows, cols = n.shape[-2:]
    top, left = max(0, -offset), max(0, offset)
    size = maximum(0, minimum(rows - top, cols - left))
    starts = (0,) * len(rest) + (top, left)
    n = b.slice_(n, starts, (*n.shape[:-2], top + size, left + size)) if size else n
    if not size:
        return finish(b.full((*n.shape[:-2], 0), b.like(n, 0)))
    # Element i of the flattened square at i*(size+1): a strided slice, no gather.
    flat = b.reshape(n, (*n.shape[:-2], size * size))
    last = flat.ndim - 1
    if is_symbolic(size):  # the first column, once rows are longer by one
        flat = b.pad(flat, [*[(0, 0, 0)] * last, (0, size, 0)])
        square = b.reshape(flat, (*n.shape[:-2], size, size + 1))
        return finish(b.squeeze(b.slice_axis(square, last + 1, 0, 1), (last + 1,)))
    return finish(b.slice_axis(flat, last, 0, size * size, size + 1))


def diagflat(v: ArrayLike, k: int = 0) -> Array:
    """A diagonal matrix from flattened input."""
    (n,) = checked("diagflat", v)
    return diag(finish(b.reshape(n, (n.aval.size,))), k)


def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> Array:
    """Powers of a vector as columns."""
    (n,) = checked("vander", x)
    if n.ndim != 1:
        raise ValueError(f"vander: x must be a one-dimensional array, got shape {n.shape}.")
    count = n.shape[0] if N is None else as_int(N, "N")
    if count < 0:
        raise ValueError(f"vander: N must be nonnegative, got {count}.")
    order = range(count) if increasing else range(count)[::-1]
    columns = [b.unsqueeze(power_node(n, i), 1) for i in order]
    return finish(b.concat(columns, 1)) if columns else zeros((n.shape[0], 0), n.dtype)


def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: bool = False) -> Array:
    """Whether shapes and all elements are equal."""
    p, q = array_node(a1, None), array_node(a2, None)
    if p.shape != q.shape:
        return finish(b.scalar(False, b.BOOL))
    p, q = promote_dtypes([p, q])
    same = b.eq(p, q)
    if equal_nan:
        same = b.or_(same, b.and_(b.ne(p, p), b.ne(q, q)))
    return finish(b.reduce("and", same, range(same.ndim)))


def astype(x: ArrayLike, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Array:
    """`x` converted to a dtype."""
    (n,) = checked("astype", x)
    if dtype is None:
        return finish(b.cast(n, float_default()))
    kind = dtype if dtypes.is_key(dtype) else dtypes.user_dtype(dtype, "astype")
    if dtypes.is_key(kind) or dtypes.is_key(n.dtype):
        if kind != n.dtype:
            raise DtypeArgumentError(
                f"Cannot convert_element_type from {n.dtype} to {kind}: typed keys are no numbers."
            )
        return finish(n)
    if dtypes.is_complex(n.dtype) and not dtypes.is_complex(kind):
        n = b.real(n) if kind != np.bool_ else b.ne(n, b.like(n, 0))
    if kind == np.bool_:
        return finish(n if n.dtype == np.bool_ else b.ne(n, b.like(n, 0)))
    return finish(b.cast(n, kind))
