"""Picking elements: where, nonzero, take, select, put, and index arrays such as tril_indices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dims import as_int, as_size, is_symbolic, largest, maximum, minimum
from tinyjax.core.errors import (
    BroadcastError,
    ConcretizationTypeError,
    IndexTypeError,
    JAXIndexError,
    make_error,
)
from tinyjax.core.infos import GatherInfo, ScatterInfo
from tinyjax.core.ops import Op
from tinyjax.core.shapes import broadcast_shapes
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import canonical_shape, finish, lift
from tinyjax.numpy.creation import array_node, ones
from tinyjax.numpy.indexing import (
    canonical_mode,
    concrete,
    counted_from_front,
    gather_node,
    scatter_node,
)
from tinyjax.numpy.promotion import (
    ArrayLike,
    broadcast_shapes_of,
    canonical_axis,
    checked,
    no_out,
    promote_dtypes,
)
from tinyjax.numpy.shaping import resize, sequence, tile_node
from tinyjax.numpy.ufuncs import truth


def where(
    condition: ArrayLike,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    /,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """x where the condition holds, else y; with one argument the positions (see `nonzero`)."""
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x is None or y is None:
        raise ValueError(
            "Either both or neither of the x and y arguments should be provided to "
            f"jax.numpy.where, got {x} and {y}."
        )
    if size is not None or fill_value is not None:
        raise ValueError(
            "size and fill_value arguments cannot be used in three-term where function."
        )
    c, p, q = checked("where", condition, x, y)
    p, q = promote_dtypes([p, q])
    c = truth(c)

    shape = broadcast_shapes_of("where", [c, p, q])
    c, p, q = [n if not n.ndim else b.broadcast(n, shape) for n in (c, p, q)]
    if not (c.ndim or p.ndim or q.ndim) or c.ndim or (p.ndim and q.ndim):
        return finish(b.where(c, p, q))
    # Neither the condition nor one case has axes: the scalar case is spread.
    return finish(b.where(c, b.fill_to(p, shape), b.fill_to(q, shape)))


def nonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> tuple[Array, ...]:
    """Positions of the elements that are not zero, one array per axis.

    `size` fixes their number (needed under jit): the first `size` ones, then `fill_value` (0, or a
    tuple with one per axis). Raises: ConcretizationTypeError under jit without a size.
    """
    (n,) = checked("nonzero", a)
    if not n.ndim:
        raise ValueError(
            "Calling nonzero on 0d arrays is not allowed. Use jnp.atleast_1d(scalar).nonzero() "
            "instead."
        )
    dtype = dtypes.default_int_dtype()
    mask = truth(n)
    if size is None:
        known = concrete(finish(mask))
        if known is None:
            raise ConcretizationTypeError(
                Array(mask),
                "  The size argument of jnp.nonzero must be statically specified to use "
                "jnp.nonzero "
                "within JAX transformations.",
            )
        return tuple(finish(lift(p.astype(dtype))) for p in np.nonzero(known))
    count = as_int(size, "size")
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * n.ndim
    if len(fills) != n.ndim:
        raise ValueError(
            f"fill_value must be a scalar or a tuple of length {n.ndim}; got {fill_value}"
        )
    total = n.aval.size
    if not total or not count:
        return tuple(
            finish(b.full((count,), b.cast(lift(0 if f is None else f), dtype))) for f in fills
        )
    flat = b.cast(b.reshape(mask, (total,)), b.INT32)
    # The k-th True is written to place k; places beyond `size`, and False, are dropped.
    rank = b.sub(b.prefix("add", flat, 0), b.like(flat, 1))
    place = b.where(b.ne(flat, b.like(flat, 0)), rank, b.like(flat, count))
    info = ScatterInfo("set", (), (0,), (0,), mode="fill")
    found = b.scatter(
        b.full((count,), b.scalar(0, b.INT32)),
        b.unsqueeze(place, 1),
        b.iota((total,), 0),
        info,
    )
    filled = b.ge(b.iota((count,), 0), b.sum_(flat, (0,)))
    out = []
    stride = total
    for axis, f in enumerate(fills):
        stride //= n.shape[axis]
        position = UOp(
            Op.REM, (UOp(Op.DIV, (found, b.like(found, stride))), b.like(found, n.shape[axis]))
        )
        position = b.cast(position, dtype)
        fill = b.cast(lift(0 if f is None else f), dtype)
        out.append(finish(b.where(filled, b.fill_to(fill, (count,)), position)))
    return tuple(out)


def flatnonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Positions of nonzero elements of the flattened array."""
    (n,) = checked("flatnonzero", a)
    return nonzero(finish(b.reshape(n, (n.aval.size,))), size=size, fill_value=fill_value)[0]


def argwhere(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Positions of nonzero elements as rows."""
    (n,) = checked("argwhere", a)
    if not n.ndim:
        found = nonzero(finish(b.reshape(n, (1,))), size=size, fill_value=fill_value)[0]
        return finish(b.full((found.shape[0], 0), b.like(found.node, 0)))
    columns = nonzero(finish(n), size=size, fill_value=fill_value)
    return finish(b.concat([b.unsqueeze(c.node, 1) for c in columns], 1))


def take(
    a: ArrayLike,
    indices: ArrayLike,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Array:
    """Elements along an axis (of the flattened array if None).

    `mode`: "fill" (default: NaN out of bounds; the least integer, or the largest unsigned one),
    "clip" (no negative positions), or "wrap".
    """
    no_out("take", out)
    x, i = checked("take", a, indices)
    if axis is None:
        x, axis = b.reshape(x, (x.aval.size,)), 0
    place = canonical_axis(axis, x.ndim)
    if not dtypes.is_integer(i.dtype) and i.dtype != np.bool_:
        raise IndexTypeError(
            f"take requires integer indices, got {i.dtype}; convert them with .astype(int)."
        )
    i = b.cast(i, b.INT32) if i.dtype == np.bool_ else i
    size = x.shape[place]
    if not is_symbolic(size) and size == 0 and 0 not in i.shape:
        raise JAXIndexError("Cannot do a non-empty jnp.take() from an empty axis.")
    if mode == "wrap":
        i = wrapped(i, size)
        how = "promise_in_bounds" if size else "fill"
    elif mode == "clip":
        i = b.min_(b.max_(i, b.like(i, 0)), b.like(i, max(size - 1, 0)))
        how = "clip"
    elif mode == "raise":
        raise NotImplementedError("The 'raise' mode to jnp.take is not supported.")
    elif mode in (None, "fill"):
        how = "fill"
    else:
        raise ValueError(f"Invalid mode {mode!r} for np.take; use 'fill', 'clip' or 'wrap'.")
    where_to = (slice(None),) * place + (finish(b.cast(i, i.dtype)),)
    return finish(
        gather_node(x, where_to, how, fill_value, indices_are_sorted, unique_indices)
    )  # fmt: skip


def wrapped(i: UOp, size: int) -> UOp:
    """Positions modulo the size."""
    if not size:
        return i
    if dtypes.bit_width(i.dtype) < 32:
        i = b.cast(i, b.INT32)
    rest = UOp(Op.REM, (i, b.like(i, size)))
    if dtypes.is_unsigned(i.dtype):
        return rest
    return b.where(b.lt(rest, b.like(rest, 0)), b.add(rest, b.like(rest, size)), rest)


def along_axis(
    x: UOp, i: UOp, axis: int, name: str
) -> tuple[UOp, tuple[Any, ...], tuple[int, ...]]:
    """(x, index, result shape) that picks `i` along `axis` and walks together along the others."""
    if x.ndim != i.ndim:
        raise ValueError(
            f"indices and arr must have the same number of dimensions; {i.ndim} vs. {x.ndim}"
        )
    for d, (s, t) in enumerate(zip(x.shape, i.shape, strict=True)):
        if d != axis and s != t and 1 not in (s, t):
            raise make_error(
                BroadcastError,
                f"{name} got incompatible shapes: arr {x.shape}, indices {i.shape}",
                rule=f"sizes must be equal or 1 except along axis {axis}",
            )
    shape = tuple(
        i.shape[d] if d == axis else max(s, t) if 0 not in (s, t) else 0
        for d, (s, t) in enumerate(zip(x.shape, i.shape, strict=True))
    )
    index: list[Any] = []
    for d in range(x.ndim):
        if d == axis:
            index.append(finish(b.broadcast(i, shape)))
        elif x.shape[d] == 1:
            index.append(finish(b.zeros(i.aval.update(shape=(1,) * x.ndim, dtype=b.INT32))))
        else:
            row = b.iota((x.shape[d],), 0)
            open_shape = [1] * x.ndim
            open_shape[d] = x.shape[d]
            index.append(finish(b.reshape(row, open_shape)))
    return x, tuple(index), shape


def take_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    axis: int | None = -1,
    mode: Any = None,
    fill_value: Any = None,
    *,
    wrap_negative_indices: bool | None = None,
) -> Array:
    """Elements picked along an axis by an array of positions of the same rank.

    Out of bounds is NaN (mode "fill", the default) or clamped ("clip"). Negative positions count from
    the end; not so with mode "promise_in_bounds", unless `wrap_negative_indices`.
    Cost: one GATHER with batch axes.
    """
    x, i = checked("take_along_axis", arr, indices)
    if not dtypes.is_integer(i.dtype):
        raise IndexTypeError(f"take_along_axis indices must be of integer type, got {i.dtype}")
    if axis is None:
        if i.ndim != 1:
            raise ValueError(
                f"take_along_axis indices must be 1D if axis=None, got shape {i.shape}"
            )
        x, axis = b.reshape(x, (x.aval.size,)), 0
    place = canonical_axis(axis, x.ndim)
    how = canonical_mode(mode, "fill")
    wrap = how != "promise_in_bounds" if wrap_negative_indices is None else wrap_negative_indices
    return finish(take_along_node(x, i, place, how, fill_value, wrap))


def take_along_node(
    x: UOp, i: UOp, axis: int, how: str, fill_value: Any = None, wrap: bool = True
) -> UOp:
    """GATHER whose other axes are batching dimensions; axes of size 1 are broadcast."""
    along_axis(x, i, axis, "take_along_axis")  # checks
    shape = tuple(
        i.shape[d] if d == axis else (t if s == 1 else s)
        for d, (s, t) in enumerate(zip(x.shape, i.shape, strict=True))
    )
    i = counted_from_front(finish(i), x.shape[axis], wrap)
    if 0 in shape:
        return b.full(shape, b.like(x, 0))
    # Axes that x does not vary over are dropped from it and stay in the indices.
    once = tuple(d for d in range(x.ndim) if d != axis and x.shape[d] == 1)
    kept = [d for d in range(x.ndim) if d not in once]
    x = b.squeeze(x, once)
    i = b.broadcast(i, shape)
    column = kept.index(axis)
    info = GatherInfo(
        offset_dims=(),
        collapsed_slice_dims=(column,),
        start_index_map=(column,),
        slice_sizes=(1,) * x.ndim,
        operand_batching_dims=tuple(k for k in range(x.ndim) if k != column),
        start_indices_batching_dims=tuple(d for d in kept if d != axis),
        mode=how,
    )
    fill = None if fill_value is None or how != "fill" else b.cast(lift(fill_value), x.dtype)
    return b.gather(x, b.unsqueeze(i, i.ndim), info, fill)


def put_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int | None,
    inplace: bool = True,
    *,
    mode: str | None = None,
) -> Array:
    """`arr` with values written along an axis at an array of positions. `inplace` must be False."""
    if inplace:
        raise ValueError(
            "jax.numpy.put_along_axis cannot modify arrays in-place, because JAX arrays are "
            "immutable. Pass inplace=False to instead return an updated array."
        )
    x, i = checked("put_along_axis", arr, indices)
    shape = x.shape
    if axis is None:
        x, axis = b.reshape(x, (x.aval.size,)), 0
    place = canonical_axis(axis, x.ndim)
    x, index, _ = along_axis(x, i, place, "put_along_axis")
    return finish(b.reshape(scatter_node(x, index, values, "set", mode), shape))


def put(
    a: ArrayLike,
    ind: ArrayLike,
    v: ArrayLike,
    mode: str | None = None,
    *,
    inplace: bool = True,
) -> Array:
    """`a` with values written at positions of the flattened array. `inplace` must be False."""
    if inplace:
        raise ValueError(
            "jax.numpy.put cannot modify arrays in-place, because JAX arrays are immutable. Pass "
            "inplace=False to instead return an updated array."
        )
    x, i, values = checked("put", a, ind, v)
    if not i.aval.size or not values.aval.size:
        return finish(x)
    count = i.aval.size
    flat_i, flat_v = b.reshape(i, (count,)), b.reshape(values, (values.aval.size,))
    if flat_v.shape[0] < count:
        flat_v = tile_node(flat_v, (-(-count // flat_v.shape[0]),))
    flat_v = b.slice_axis(flat_v, 0, 0, count)
    size = x.aval.size
    if mode == "wrap":
        flat_i, mode = wrapped(flat_i, size), "drop"
    elif mode == "clip":
        flat_i = b.min_(b.max_(flat_i, b.like(flat_i, 0)), b.like(flat_i, size - 1))
    elif mode is not None:
        raise ValueError(f"mode should be one of 'wrap' or 'clip'; got mode={mode}")
    flat = b.reshape(x, (size,))
    return finish(
        b.reshape(scatter_node(flat, finish(flat_i), finish(flat_v), "set", mode), x.shape)
    )


def place(arr: ArrayLike, mask: ArrayLike, vals: ArrayLike, *, inplace: bool = True) -> Array:
    """`arr` with values written, in order and repeated, where the mask holds."""
    if inplace:
        raise ValueError(
            "jax.numpy.place cannot modify arrays in-place, because JAX arrays are immutable. Pass "
            "inplace=False to instead return an updated array."
        )
    x, m, values = checked("place", arr, mask, vals)
    flags = b.reshape(truth(m), (m.aval.size,))
    count = values.aval.size
    if not count:
        if not m.aval.size:
            return finish(x)
        raise ValueError("Cannot place values from an empty array")
    rank = b.sub(b.prefix("add", b.cast(flags, b.INT32), 0), b.scalar(1, b.INT32))
    chosen = finish(wrapped(rank, count))
    new = gather_node(b.reshape(values, (count,)), chosen, mode="clip")
    flat = b.reshape(x, (x.aval.size,))
    return finish(b.reshape(b.where(flags, b.cast_like(new, x.aval), flat), x.shape))


def compress(
    condition: ArrayLike,
    a: ArrayLike,
    axis: int | None = None,
    *,
    size: int | None = None,
    fill_value: Any = 0,
    out: None = None,
) -> Array:
    """Slices of an axis where a condition holds; `size` fixes their number (under jit)."""
    no_out("compress", out)
    c, x = checked("compress", condition, a)
    if c.ndim != 1:
        raise ValueError("condition must be a 1D array")
    if axis is None:
        x, axis = b.reshape(x, (x.aval.size,)), 0
    at = canonical_axis(axis, x.ndim)
    limit = min(c.shape[0], x.shape[at])
    if concrete(finish(c)) is not None and np.any(np.asarray(finish(c))[limit:]):
        raise ValueError("condition contains entries that are out of bounds")
    c = b.slice_axis(c, 0, 0, limit)
    found = nonzero(finish(c), size=size, fill_value=x.shape[at])[0]
    index = (slice(None),) * at + (found,)
    return finish(gather_node(x, index, "fill", fill_value))


def extract(
    condition: ArrayLike, arr: ArrayLike, *, size: int | None = None, fill_value: Any = 0
) -> Array:
    """Elements where a condition holds, as a vector; `size` fixes their number (under jit)."""
    (c,) = checked("extract", condition)
    return compress(finish(b.reshape(c, (c.aval.size,))), arr, size=size, fill_value=fill_value)


def choose(a: ArrayLike, choices: Any, out: None = None, mode: str = "raise") -> Array:
    """Elementwise the choice numbered by `a`."""
    no_out("choose", out)

    (i,) = checked("choose", a)
    if not dtypes.is_integer(i.dtype):
        raise ValueError(f"jnp.choose: `a` array must be integer typed, got {i.aval.str_short()}.")
    nodes = promote_dtypes(sequence("choose", choices))
    count = len(nodes)
    if mode == "raise":
        known = concrete(finish(i))
        if known is None:
            raise ConcretizationTypeError(
                Array(i),
                "  The error occurred because jnp.choose was jit-compiled with mode='raise'. Use "
                "mode='wrap' or mode='clip' instead.",
            )
        if known.size and (known.min() < 0 or known.max() >= count):
            raise ValueError(f"invalid entry in choice array. Must be in range [0, {count})")
    elif mode == "wrap":
        i = wrapped(i, count)
    elif mode == "clip":
        i = b.min_(b.max_(i, b.like(i, 0)), b.like(i, count - 1))
    else:
        raise ValueError(f"mode={mode!r} not understood. Must be 'raise', 'wrap', or 'clip'")
    shape = broadcast_shapes(i.shape, *(n.shape for n in nodes))
    i = b.broadcast(i, shape)
    out_node = b.broadcast(nodes[-1], shape)
    for k in range(count - 2, -1, -1):
        out_node = b.where(b.eq(i, b.like(i, k)), b.broadcast(nodes[k], shape), out_node)
    return finish(out_node)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: ArrayLike = 0) -> Array:
    """The choice of the first condition that holds, elementwise; else the default."""
    if len(condlist) != len(choicelist):
        raise ValueError(
            f"condlist must have length equal to choicelist ({len(condlist)} vs {len(choicelist)})"
        )
    if not condlist:
        raise ValueError("condlist must be non-empty")
    conditions = [truth(n) for n in checked("select", *condlist)]
    nodes = promote_dtypes(checked("select", *choicelist, default))
    shape = broadcast_shapes(*(n.shape for n in (*conditions, *nodes)))
    out = b.broadcast(nodes[-1], shape)
    for c, n in zip(conditions[::-1], nodes[-2::-1], strict=True):
        out = b.where(b.broadcast(c, shape), b.broadcast(n, shape), out)
    return finish(out)


def piecewise(x: ArrayLike, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Array:
    """Functions (or constants) applied where conditions hold; the last one, if extra, elsewhere."""

    (n,) = checked("piecewise", x)
    conditions = array_node(condlist, None)
    if conditions.ndim == n.ndim:
        conditions = b.unsqueeze(conditions, 0)
    count, total = conditions.shape[0], len(funclist)
    if total == count + 1:
        functions = [funclist[-1], *funclist[:-1]]
    elif total == count:
        functions = [0, *funclist]
    else:
        raise ValueError(
            f"with {count} condition(s), either {count} or {count + 1} functions are expected; got "
            f"{total}"
        )

    def value(f: Any) -> UOp:
        made = f(finish(n), *args, **kw) if callable(f) else f
        return b.broadcast(b.cast(lift(made), n.dtype, n.aval.weak_type), n.shape)

    out = value(functions[0])
    for k, f in reversed(list(enumerate(functions[1:]))):
        holds = b.squeeze(b.slice_axis(conditions, 0, k, k + 1), (0,))
        out = b.where(b.broadcast(truth(holds), n.shape), value(f), out)
    return finish(out)


def unravel_index(indices: ArrayLike, shape: Any) -> tuple[Array, ...]:
    """Positions along each axis of flat positions; out of range is clamped."""

    (i,) = checked("unravel_index", indices)
    weak = i.aval.weak_type
    given = i.dtype if dtypes.is_integer(i.dtype) else dtypes.default_int_dtype()
    sizes = canonical_shape(shape)
    total = b.prod(sizes)
    if i.dtype == np.bool_ or dtypes.bit_width(i.dtype) < 32:
        i = b.cast(i, dtypes.default_int_dtype())
    i = (
        b.where(b.lt(i, b.like(i, 0)), b.add(i, b.like(i, total)), i)
        if not dtypes.is_unsigned(i.dtype)
        else i
    )
    i = b.min_(b.max_(i, b.like(i, 0)), b.like(i, maximum(total - 1, 0)))
    i = b.cast(i, i.dtype)
    out: list[Array] = []
    for s in sizes[::-1]:
        out.insert(0, finish(b.cast(UOp(Op.REM, (i, b.like(i, s))), given, weak)))
        i = UOp(Op.DIV, (i, b.like(i, s)))
    return tuple(out)


def ravel_multi_index(
    multi_index: Any,
    dims: Sequence[int],
    mode: str = "raise",
    order: str = "C",
    *,
    dtype: Any = None,
) -> Array:
    """Flat positions of positions along each axis. `mode`: raise (values known), wrap, clip."""
    nodes = checked("ravel_multi_index", *multi_index)
    sizes = tuple(map(as_size, dims))
    if dtype is None:
        kind = dtypes.result_type_of_pairs(*((n.dtype, n.aval.weak_type) for n in nodes))[0]
    else:
        kind = dtypes.user_dtype(dtype, "ravel_multi_index")
    if largest(b.prod(sizes)) - 1 > int(dtypes.iinfo(kind).max):
        raise ValueError(
            f"jnp.ravel_multi_index: dtype={kind!r} not large enough to hold flattened index for "
            f"dims={sizes}. Use the dtype argument to pass a suitable dtype."
        )
    if len(nodes) != len(sizes):
        raise ValueError(f"len(multi_index)={len(nodes)} != len(dims)={len(sizes)}")
    if any(not dtypes.is_integer(n.dtype) for n in nodes):
        raise TypeError("only int indices permitted")
    parts = []
    for n, s in zip(nodes, sizes, strict=True):
        if mode == "raise":
            known = concrete(finish(n))
            if known is None:
                raise ConcretizationTypeError(
                    Array(n),
                    "  The error occurred because ravel_multi_index was jit-compiled with "
                    "mode='raise'. Use mode='wrap' or mode='clip' instead.",
                )
            if known.size and (known.min() < 0 or known.max() >= s):
                raise ValueError("invalid entry in coordinates array")
        elif mode == "clip":
            n = b.min_(b.max_(n, b.like(n, 0)), b.like(n, s - 1))
        elif mode == "wrap":
            n = wrapped(n, s)
        else:
            raise ValueError(f"invalid mode={mode!r}. Expected 'raise', 'wrap', or 'clip'")
        parts.append(b.cast(n, kind))
    if order not in ("C", "F"):
        raise ValueError(f"invalid order={order!r}. Expected 'C' or 'F'")
    stride = 1
    shape = broadcast_shapes(*(n.shape for n in parts))
    out = b.full(shape, b.scalar(0, kind))
    pairs = list(zip(parts, sizes, strict=True))
    for n, s in pairs if order == "F" else pairs[::-1]:
        out = b.add(out, b.mul(b.broadcast(n, shape), b.like(n, stride)))
        stride *= s
    return finish(out)


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """Positions of the diagonal of an n by n (by ...) array."""
    size, rank = as_int(n, "n"), as_int(ndim, "ndim")
    if size < 0 or rank < 0:
        raise ValueError(
            f"n and ndim arguments to diag_indices must be nonnegative, got n={n}, ndim={ndim}"
        )
    row = finish(b.iota((size,), 0, dtypes.default_int_dtype()))
    return (row,) * rank


def diag_indices_from(arr: ArrayLike) -> tuple[Array, ...]:
    """Positions of the diagonal of an array with equal sizes."""
    shape = np.shape(arr)
    if len(shape) < 2:
        raise ValueError("input array must be at least 2-d")
    if len(set(shape)) != 1:
        raise ValueError("All dimensions of input must be of equal length")
    return diag_indices(shape[0], len(shape))


def triangle_indices(n: int, k: int, m: int | None, lower: bool) -> tuple[Array, Array]:
    """Positions of a triangle, found at trace time."""
    make = np.tril_indices if lower else np.triu_indices
    rows, cols = make(as_int(n, "n"), as_int(k, "k"), None if m is None else as_int(m, "m"))
    dtype = dtypes.default_int_dtype()
    return finish(lift(rows.astype(dtype))), finish(lift(cols.astype(dtype)))


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Positions at and below the k-th diagonal."""
    return triangle_indices(n, k, m, True)


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Positions at and above the k-th diagonal."""
    return triangle_indices(n, k, m, False)


def matrix_size(arr: Any) -> tuple[int, int]:
    """Shape of a matrix."""
    shape = np.shape(arr)
    if len(shape) != 2:
        raise ValueError("Only 2-D inputs are accepted")
    return int(shape[0]), int(shape[1])


def tril_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """Positions at and below the k-th diagonal of a matrix."""
    rows, cols = matrix_size(arr)
    return triangle_indices(rows, k, cols, True)


def triu_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """Positions at and above the k-th diagonal of a matrix."""
    rows, cols = matrix_size(arr)
    return triangle_indices(rows, k, cols, False)


def mask_indices(
    n: int, mask_func: Callable[..., Any], k: int = 0, *, size: int | None = None
) -> tuple[Array, ...]:
    """Positions that a mask function keeps of an n by n array of ones."""
    rows = as_int(n, "n")
    return nonzero(mask_func(ones((rows, rows)), k), size=size)


def ix_(*args: Any) -> tuple[Array, ...]:
    """Open grids: an index that takes all combinations of several vectors."""

    out = []
    for i, a in enumerate(args):
        n = array_node(a, None)
        if n.ndim != 1:
            raise ValueError(
                f"Arguments to jax.numpy.ix_ must be 1-dimensional, got shape {n.shape}"
            )
        if n.dtype == np.bool_:
            raise NotImplementedError("Boolean arguments to jax.numpy.ix_ are not implemented")
        if not n.aval.size:
            n = b.cast(n, dtypes.default_int_dtype())
        shape = [1] * len(args)
        shape[i] = n.shape[0]
        out.append(finish(b.reshape(n, shape)))
    return tuple(out)


def fill_diagonal(
    a: ArrayLike, val: ArrayLike, wrap: bool = False, *, inplace: bool = True
) -> Array:
    """`a` with its diagonal set. `inplace` must be False."""
    if inplace:
        raise NotImplementedError("JAX arrays are immutable, must use inplace=False")
    if wrap:
        raise NotImplementedError("wrap=True is not implemented, must use wrap=False")

    (n,) = checked("fill_diagonal", a)
    if n.ndim < 2:
        raise ValueError("array must be at least 2-d")
    if n.ndim > 2 and len(set(n.shape)) != 1:
        raise ValueError("All dimensions of input must be of equal length")
    v = array_node(val, None)
    count = functools.reduce(minimum, n.shape)
    if v.ndim:
        v = resize(finish(v), (count,)).node
    row = finish(b.iota((count,), 0)) if is_symbolic(count) else np.arange(count, dtype=np.int32)
    return finish(
        scatter_node(n, (row,) * n.ndim, Array(v), "set", None, True, True)
    )  # fmt: skip


class IndexExpression:
    """`index_exp[...]` and `s_[...]`: an index written as one, kept for later."""

    def __init__(self, maketuple: bool) -> None:
        self.maketuple = maketuple

    def __getitem__(self, item: Any) -> Any:
        return (item,) if self.maketuple and not isinstance(item, tuple) else item


index_exp = IndexExpression(True)
s_ = IndexExpression(False)
