"""Reductions, cumulative operations, sorting and windows of `lax`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import aval
from tinyjax.core.dimension_numbers import FftType
from tinyjax.core.dims import as_size, as_sizes, is_symbolic, largest
from tinyjax.core.errors import DtypeError, ShapeError, make_error, require_callable
from tinyjax.core.ops import Op
from tinyjax.core.shapes import canonical_axis
from tinyjax.core.source import function_location
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import tree_flatten
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.tracing import stage
from tinyjax.engine.values import finish, finish_all, lift
from tinyjax.engine.vectorize import vmap
from tinyjax.lax.elementwise import operand_of

ArrayLike = Any


def axes_of(axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Increasing non-negative axes. Raises: ValueError for an axis given twice."""
    found = sorted(canonical_axis(a, ndim) for a in as_sizes(axes, "axes"))
    if len(set(found)) < len(found):
        raise ValueError(f"duplicate value in 'axes' of reduction: {tuple(axes)}")
    return tuple(found)


def _reduce(kind: str, name: str) -> Callable[[ArrayLike, Sequence[int]], Array]:
    def apply(operand: ArrayLike, axes: Sequence[int]) -> Array:
        n = operand_of(name, operand)
        return finish(b.reduce(kind, n, axes_of(axes, n.ndim)))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"Fold axes with {kind}. Dtype: unchanged; narrow floats accumulate in float32."
    return apply


def reduce_sum(operand: ArrayLike, axes: Sequence[int], *, out_sharding: Any = None) -> Array:
    """Sum over axes. Dtype: unchanged; narrow floats accumulate in float32.

    `out_sharding` must be None: there are no meshes yet.
    """
    n = operand_of("reduce_sum", operand)
    return finish(b.reduce("add", n, axes_of(axes, n.ndim)))


reduce_prod = _reduce("mul", "reduce_prod")
reduce_max = _reduce("max", "reduce_max")
reduce_min = _reduce("min", "reduce_min")
reduce_and = _reduce("and", "reduce_and")
reduce_or = _reduce("or", "reduce_or")
reduce_xor = _reduce("xor", "reduce_xor")

COMBINES = {
    Op.ADD: "add", Op.MUL: "mul", Op.MAX: "max", Op.MIN: "min", Op.AND: "and", Op.OR: "or",
    Op.XOR: "xor",
}  # fmt: skip


def monoid_of(computation: Callable[..., Any], dtype: Any) -> str | None:
    """The fold a binary function is, if it is one of ours: `lax.add`, `jnp.maximum`, a lambda of
    +."""
    scalar = aval((), dtype)
    tree = tree_flatten(((0, 0), {}))[1]
    body = stage(computation, tree, [scalar, scalar], "reduce").body
    if len(body.src) == 1 and body.src[0].op in COMBINES:
        slots = [s.arg[0] if s.op is Op.PARAM else None for s in body.src[0].src]
        if sorted(slots, key=str) == [0, 1]:
            return COMBINES[body.src[0].op]
    return None


def reduce(
    operands: Any,
    init_values: Any,
    computation: Callable[..., Any],
    dimensions: Sequence[int],
    out_sharding: Any = None,
) -> Any:
    """Fold axes with a binary function of (trees of) scalars; associative as in XLA.

    Known monoids become one reduction; any other function is folded along the flattened axes by
    halving, log2(n) steps.
    `out_sharding` must be None: there are no meshes yet.
    """
    leaves, tree = tree_flatten(operands)
    inits, _ = tree_flatten(init_values)
    nodes = [lift(x) for x in leaves]
    starts = [b.cast(lift(i), n.dtype) for i, n in zip(inits, nodes, strict=True)]
    axes = axes_of(dimensions, nodes[0].ndim)
    if len(nodes) == 1:
        kind = monoid_of(computation, nodes[0].dtype)
        if kind is not None:
            folded = b.reduce(kind, nodes[0], axes)
            binary = next(op for op, k in COMBINES.items() if k == kind)
            return tree_unflatten(tree, [finish(UOp(binary, (folded, starts[0])))])
    keep = tuple(i for i in range(nodes[0].ndim) if i not in axes)
    total = b.prod([nodes[0].shape[i] for i in axes])
    shape = tuple(nodes[0].shape[i] for i in keep)
    flat = [b.reshape(b.permute(n, axes + keep), (total, *shape)) for n in nodes]

    def combine(x: list[UOp], y: list[UOp]) -> list[UOp]:
        f: Callable[..., Any] = lambda p, q: tree_flatten(
            computation(tree_unflatten(tree, list(p)), tree_unflatten(tree, list(q)))
        )[0]
        for _ in range(x[0].ndim):
            f = vmap(f)
        return [lift(v) for v in f(finish_all(x), finish_all(y))]

    while total > 1:
        half = total // 2
        low = [b.slice_axis(n, 0, 0, half) for n in flat]
        high = [b.slice_axis(n, 0, half, 2 * half) for n in flat]
        rest = [b.slice_axis(n, 0, 2 * half, total) for n in flat]
        flat = [b.concat([m, r], 0) for m, r in zip(combine(low, high), rest, strict=True)]
        total = flat[0].shape[0]
    spread = [b.full((1, *shape), s) for s in starts]
    out = combine(spread, flat) if total else spread
    return tree_unflatten(tree, finish_all([b.squeeze(n, (0,)) for n in out]))


def argmax(operand: ArrayLike, axis: int, index_dtype: Any) -> Array:
    """Index of the first largest element along an axis."""
    return _argreduce("max", operand, axis, index_dtype)


def argmin(operand: ArrayLike, axis: int, index_dtype: Any) -> Array:
    """Index of the first smallest element along an axis."""
    return _argreduce("min", operand, axis, index_dtype)


def _argreduce(kind: str, operand: ArrayLike, axis: int, index_dtype: Any) -> Array:
    n = lift(operand)
    a = canonical_axis(axis, n.ndim)
    if not largest(n.shape[a]):
        raise ValueError(
            f"arg{kind} requires a non-empty reduced dimension, got axis {a} of shape {n.shape}.\n"
            "  Pad the axis first, or test its size in Python."
        )
    dtype = dtypes.user_dtype(index_dtype, f"arg{kind}")
    if not dtypes.is_integer(dtype):
        raise DtypeError(
            f"arg{kind}: index_dtype must be an integer type, but got {dtype.name}.\n"
            "  Give jnp.int32, and convert the result with .astype."
        )
    return finish(b.argreduce(kind, n, a, dtype)[1])


def _cumulative(kind: str, name: str) -> Callable[..., Array]:
    def apply(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
        n = operand_of(name, operand)
        return finish(b.prefix(kind, n, canonical_axis(axis, n.ndim), bool(reverse)))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"Inclusive cumulative {kind} along an axis."
    return apply


cumsum = _cumulative("add", "cumsum")
cumprod = _cumulative("mul", "cumprod")
cummax = _cumulative("max", "cummax")
cummin = _cumulative("min", "cummin")


def logaddexp(x: Array, y: Array) -> Array:
    """log(exp(x) + exp(y)); differences of infinities are taken as 0."""
    p, q = lift(x), lift(y)
    high, low = b.max_(p, q), b.min_(p, q)
    gap = b.where(b.eq(low, high), b.like(low, 0), b.sub(low, high))
    return finish(b.add(high, UOp(Op.LOG1P, (b.exp(gap),))))


def cumlogsumexp(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Cumulative log of a sum of exponentials, by an associative scan of logaddexp."""
    x = finish(lift(operand))
    return associative_scan(logaddexp, x, reverse=reverse, axis=axis)  # type: ignore[no-any-return]


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """Sort along an axis; several operands are sorted together by the first `num_keys`."""
    several = isinstance(operand, (tuple, list))
    nodes = [lift(x) for x in (operand if several else [operand])]
    num_keys = as_size(num_keys, "num_keys")
    if not nodes:
        raise TypeError(
            "sort requires at least one operand.\n  Pass an array, or a tuple of keys and values."
        )
    if len({n.shape for n in nodes}) > 1:
        raise ShapeError(
            "Arguments to sort must have equal shapes, got: "
            f"{', '.join(str(n.shape) for n in nodes)}.\n"
            "  Sort indices along with the keys, and take other arrays by them."
        )
    if not 1 <= num_keys <= len(nodes):
        raise ValueError(
            f"num_keys={num_keys} must be from 1 to the number of operands, {len(nodes)}."
        )
    axis = canonical_axis(dimension, nodes[0].ndim)
    out = finish_all(b.sort(nodes, axis, num_keys, bool(is_stable)))
    return tuple(out) if several else out[0]


def sort_key_val(
    keys: ArrayLike, values: ArrayLike, dimension: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """Keys sorted, and values moved along."""
    return sort((keys, values), dimension, is_stable)  # type: ignore[no-any-return]


def top_k(operand: ArrayLike, k: int, *, axis: int = -1) -> list[Array]:
    """The k largest elements along an axis, largest first, and their indices (int32)."""
    n = lift(operand)
    k = as_size(k, "k")
    if dtypes.is_complex(n.dtype):
        raise ValueError(
            f"top_k is not compatible with complex inputs, got {n.aval.str_short()}.\n"
            "  Take them by magnitude: lax.top_k(jnp.abs(x), k)."
        )
    a = canonical_axis(axis, n.ndim) if n.ndim else 0
    if not n.ndim:
        raise TypeError(
            "top_k operand must have >= 1 dimension, got ().\n  Give it one: jnp.atleast_1d(x)."
        )
    if not 0 <= k <= n.shape[a]:
        raise ValueError(
            f"k argument to top_k must be no larger than size along axis; got k={k} with shape "
            f"{n.shape} and axis={axis}.\n  Take min(k, x.shape[axis])."
        )
    places = b.iota(n.shape, a)
    # Descending and stable: sort the reversed axis ascending, then reverse.
    flipped = [b.flip(x, (a,)) for x in (n, places)]
    values, order = b.sort(flipped, a, 1, True)
    size = n.shape[a]
    out = [b.slice_axis(b.flip(x, (a,)), a, 0, min(k, size)) for x in (values, order)]
    return finish_all(out)


def approx_max_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> list[Array]:
    """The k largest and their indices (exact here, so that the options change nothing).

    They are `recall_target`, `reduction_input_size_override` and `aggregate_to_topk`.
    """
    n = _floating(operand)
    a, k = top_of(n, k, reduction_dimension)
    return top_k(finish(n), k, axis=a)


def approx_min_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> list[Array]:
    """The k smallest and their indices (exact here, so that the options change nothing).

    They are `recall_target`, `reduction_input_size_override` and `aggregate_to_topk`.
    """
    n = _floating(operand)
    a, k = top_of(n, k, reduction_dimension)
    values, order = b.sort([n, b.iota(n.shape, a)], a, 1, True)
    return finish_all([b.slice_axis(x, a, 0, min(k, n.shape[a])) for x in (values, order)])


def top_of(n: UOp, k: Any, dimension: int) -> tuple[int, Any]:
    """The axis, and a k from 1 to its size."""
    if not n.ndim:
        raise TypeError(
            "approx_top_k operand must have >= 1 dimension, got ().\n"
            "  Give it one: jnp.atleast_1d(x)."
        )
    a, k = canonical_axis(dimension, n.ndim, "reduction_dimension"), as_size(k, "k")
    if not 1 <= k <= n.shape[a]:
        raise ValueError(
            f"k must be positive and no larger than the size of reduction_dimension {a}, got {k} "
            f"for shape {n.shape}."
        )
    return a, k


def _floating(operand: ArrayLike) -> UOp:
    n = lift(operand)
    if not dtypes.is_float(n.dtype):
        raise ValueError(
            f"operand must be a floating type, got {n.aval.str_short()}.\n"
            "  Convert it with .astype(float), or use lax.top_k."
        )
    return n


def associative_scan(
    fn: Callable[..., Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """All prefixes under an associative function of trees; log2(n) levels of halving.

    A symbolic axis cannot be halved: it takes log2 of its largest size steps over all elements.
    Raises: ShapeError if `fn` returns arrays of other shapes than it gets, ValueError for another
    number of arrays.
    Sources: Blelloch, "Prefix sums and their applications" (1990); Hillis and Steele, "Data parallel
    algorithms" (1986).
    """
    require_callable(fn, what="lax.associative_scan: fn argument should be callable")
    leaves, tree = tree_flatten(elems)
    nodes = [lift(x) for x in leaves]
    if any(n.ndim == 0 for n in nodes):
        raise ValueError(
            "associative_scan needs arrays with the scanned axis, got a scalar.\n"
            "  Stack the elements first: jnp.stack([a, b, c])."
        )
    a = canonical_axis(axis, nodes[0].ndim)
    size = nodes[0].shape[a]
    if any(n.shape[a] != size for n in nodes):
        raise ValueError(
            "Array inputs to associative_scan must have the same first dimension. (saw: "
            f"{[n.shape for n in nodes]})\n  Cut or pad them to one size along the scanned axis."
        )
    if reverse:
        nodes = [b.flip(n, (a,)) for n in nodes]

    def combine(x: list[UOp], y: list[UOp]) -> list[UOp]:
        out = fn(tree_unflatten(tree, finish_all(x)), tree_unflatten(tree, finish_all(y)))
        found, out_tree = tree_flatten(out)
        if len(found) != len(x):
            raise ValueError(
                f"fn of associative_scan ({function_location(fn)}) must return a tree like that of "
                f"each argument, {tree}, got {out_tree}.\n"
                "  Return the containers that fn got as its first argument."
            )
        results = [lift(v) for v in found]
        for given, result in zip(x, results, strict=True):
            if given.shape != result.shape:
                raise make_error(
                    ShapeError,
                    f"fn of associative_scan ({function_location(fn)}) got two arrays of shape "
                    f"{given.shape} and returned one of shape {result.shape}",
                    rule="it combines many elements at once, along the scanned axis, so shapes must "
                    "be equal",
                    fix="Write fn elementwise along that axis, for example with jax.vmap.",
                )
        return results

    def run(xs: list[UOp]) -> list[UOp]:
        n = xs[0].shape[a]
        if n < 2:
            return xs
        even = [b.slice_axis(x, a, 0, n - n % 2, 2) for x in xs]
        odd = [b.slice_axis(x, a, 1, n, 2) for x in xs]
        sums = run(combine(even, odd))  # prefixes that end at odd positions
        kept = [b.slice_axis(s, a, 0, (n + 1) // 2 - 1) for s in sums]
        later = [b.slice_axis(x, a, 2, n, 2) for x in xs]
        tail = combine(kept, later) if later[0].shape[a] else []
        evens = (
            [b.concat([b.slice_axis(x, a, 0, 1), t], a) for x, t in zip(xs, tail, strict=True)]
            if tail
            else [b.slice_axis(x, a, 0, 1) for x in xs]
        )
        return [interleave(e, s, a) for e, s in zip(evens, sums, strict=True)]

    def run_by_doubling(xs: list[UOp]) -> list[UOp]:
        step = 1
        while step < largest(size):
            back = b.scalar(step, b.INT32)
            before = b.max_(b.sub(b.iota((size,), 0), back), b.scalar(0, b.INT32))
            new = combine([b.take(x, before, a) for x in xs], xs)
            xs = [
                b.where(b.ge(b.iota(x.shape, a), back), y, x) for x, y in zip(xs, new, strict=True)
            ]
            step *= 2
        return xs

    out = run_by_doubling(nodes) if is_symbolic(size) else run(nodes)
    if reverse:
        out = [b.flip(n, (a,)) for n in out]
    return tree_unflatten(tree, finish_all(out))


def interleave(x: UOp, y: UOp, axis: int) -> UOp:
    """x0, y0, x1, y1, ... (x may be one longer), by interior padding and a sum of disjoint
    parts."""
    total = x.shape[axis] + y.shape[axis]
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (0, total - (2 * x.shape[axis] - 1), 1)
    first = b.pad(x, config)
    config[axis] = (1, total - 2 * y.shape[axis], 1)
    second = b.pad(y, config)
    place = b.iota(first.shape, axis)
    odd = b.eq(b.and_(place, b.like(place, 1)), b.like(place, 1))
    return b.where(odd, second, first)


# --- windows --------------------------------------------------------------------------------------


def window_padding(
    padding: Any,
    shape: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> list[tuple[int, int]]:
    """Explicit (low, high) pairs of "SAME", "VALID", "SAME_LOWER" or given ones."""
    if not isinstance(padding, (str, tuple, list)):
        raise ValueError(
            f"padding must be a string or a sequence of (low, high) pairs, got {padding!r}."
        )
    if not isinstance(padding, str):
        pairs = [(int(lo), int(hi)) for lo, hi in padding]
        if len(pairs) != len(shape):
            raise TypeError(
                f"Wrong number of explicit pads: expected {len(shape)}, got {len(pairs)}."
            )
        return pairs
    if padding.upper() == "VALID":
        return [(0, 0)] * len(shape)
    if padding.upper() not in ("SAME", "SAME_LOWER"):
        raise RuntimeError(
            f"Unknown padding type: {padding!r}; use 'SAME', 'SAME_LOWER', 'VALID' or pairs."
        )
    out = []
    for size, w, s, d in zip(shape, window, strides, dilation, strict=True):
        reach = (w - 1) * d + 1
        needed = max((-(-size // s) - 1) * s + reach - size, 0)
        low = needed // 2 if padding.upper() == "SAME" else needed - needed // 2
        out.append((low, needed - low))
    return out


def check_window(
    name: str, rank: int, miscounted: type[Exception], **numbers: Sequence[int]
) -> None:
    """Strides, dilations and the like: one for each windowed axis, strides and dilations positive.

    Raises:
        miscounted: another number of them.
        TypeError: a stride or dilation below one.
    """
    for what, values in numbers.items():
        if len(values) != rank:
            raise miscounted(f"{name} {what} must have length {rank}, got {tuple(values)}.")
        if what != "window_dimensions" and min(values, default=1) < 1:
            raise TypeError(f"{name} {what} must be positive, got {tuple(values)}.")


def windows_of(
    n: UOp,
    fill: UOp,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Any,
    base_dilation: Sequence[int] | None,
    window_dilation: Sequence[int] | None,
) -> tuple[UOp, tuple[int, ...]]:
    """All windows: axes of positions, then one axis per axis windowed; and those last axes."""
    rank = n.ndim
    base = list(base_dilation or [1] * rank)
    dilation = list(window_dilation or [1] * rank)
    check_window(
        "reduce_window",
        rank,
        TypeError,
        window_dimensions=window,
        window_strides=strides,
        base_dilation=base,
        window_dilation=dilation,
    )
    dilated = [max((s - 1) * d + 1, 0) for s, d in zip(n.shape, base, strict=True)]
    pads = window_padding(padding, dilated, window, strides, dilation)
    n = b.pad(n, [(lo, hi, d - 1) for (lo, hi), d in zip(pads, base, strict=True)], fill)
    inner = []
    for axis in range(rank):
        if window[axis] == 1 and strides[axis] == 1:
            continue
        n = b.window(n, axis, int(window[axis]), int(strides[axis]), int(dilation[axis]))
        inner.append(n.ndim - 1)
    return n, tuple(inner)


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[..., Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | int | None = None,
    padding: Any = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Fold each window with a binary function (max and average pooling)."""
    n = lift(operand)
    every = 1 if window_strides is None else window_strides
    strides = [every] * n.ndim if isinstance(every, int) else list(every)
    init = b.cast(lift(init_value), n.dtype)
    views, inner = windows_of(
        n, init, window_dimensions, strides, padding, base_dilation, window_dilation
    )
    if not inner:
        return finish(views)
    return reduce(finish(views), finish(init), computation, inner)


def _window_fold(kind: str, name: str, neutral: Callable[[Any], Any]) -> Callable[..., Array]:
    def apply(
        operand: ArrayLike,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Any,
        base_dilation: Sequence[int] | None = None,
        window_dilation: Sequence[int] | None = None,
    ) -> Array:
        n = lift(operand)
        fill = b.like(n, neutral(n.dtype))
        views, inner = windows_of(
            n, fill, window_dimensions, window_strides, padding, base_dilation, window_dilation
        )
        return finish(b.reduce(kind, views, inner))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"Fold each window with {kind}."
    return apply


def lowest(dtype: Any) -> Any:
    """The least value of a dtype."""
    if dtypes.is_inexact(dtype):
        return -np.inf
    return False if dtype == np.bool_ else int(dtypes.iinfo(dtype).min)


def highest(dtype: Any) -> Any:
    """The greatest value of a dtype."""
    if dtypes.is_inexact(dtype):
        return np.inf
    return True if dtype == np.bool_ else int(dtypes.iinfo(dtype).max)


reduce_window_sum = _window_fold("add", "reduce_window_sum", lambda d: 0)
reduce_window_max = _window_fold("max", "reduce_window_max", lowest)
reduce_window_min = _window_fold("min", "reduce_window_min", highest)


def reduce_window_shape_tuple(
    operand_shape: Sequence[int],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """The shape that reduce_window gives."""
    rank = len(operand_shape)
    base, dilation = base_dilation or [1] * rank, window_dilation or [1] * rank
    out = []
    for i, size in enumerate(operand_shape):
        spread = max((size - 1) * base[i] + 1, 0) + sum(padding[i])
        reach = (window_dimensions[i] - 1) * dilation[i] + 1
        out.append(max((spread - reach) // window_strides[i] + 1, 0))
    return tuple(out)


def padtype_to_pads(
    in_shape: Sequence[int],
    window_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
) -> list[tuple[int, int]]:
    """(low, high) padding of each axis for "SAME", "SAME_LOWER" or "VALID"."""
    return window_padding(padding, in_shape, window_shape, window_strides, [1] * len(in_shape))


def fft(x: ArrayLike, fft_type: Any, fft_lengths: Sequence[int]) -> Array:
    """Discrete Fourier transform of the last axes; type "fft", "ifft", "rfft" or "irfft"."""
    kind = fft_kind(fft_type)
    lengths = as_sizes(fft_lengths, "fft_lengths")
    n = lift(x)
    if dtypes.is_key(n.dtype):
        raise DtypeError(f"fft does not accept typed keys, got {n.aval.str_short()}")
    if kind == "rfft":
        n = b.cast(n, dtypes.to_inexact_dtype(n.dtype))
        if n.dtype not in (np.float32, np.float64):
            raise ValueError(
                f"RFFT input must be float32 or float64, got {n.dtype.name}.\n"
                "  Use FFT for complex numbers; convert others with .astype(float)."
            )
    else:
        n = b.cast(n, dtypes.to_complex_dtype(n.dtype))
    if not lengths:
        return finish(n)
    if len(lengths) > n.ndim:
        raise ValueError(
            f"FFT input shape {n.shape} must have at least as many input dimensions as fft_lengths "
            f"{lengths}."
        )
    checked = slice(-len(lengths), -1 if kind == "irfft" else None)
    if n.shape[checked] != lengths[: len(lengths) - (kind == "irfft")]:
        raise ValueError(
            f"{kind.upper()} input shape {n.shape} minor dimensions must be equal to fft_lengths "
            f"{lengths}{' except for the last' if kind == 'irfft' else ''}."
        )
    return finish(UOp(Op.FFT, (n,), (kind, lengths)))


def fft_kind(fft_type: Any) -> str:
    """ "fft", "ifft", "rfft" or "irfft", from an `FftType` or its name."""
    if isinstance(fft_type, FftType):
        return fft_type.name.lower()
    if not isinstance(fft_type, str):
        raise TypeError(f"Unknown FFT type value {fft_type!r}; use lax.FftType")
    if fft_type.upper() not in FftType.__members__:
        raise ValueError(
            f"Unknown FFT type {fft_type!r}; use one of {', '.join(FftType.__members__)}"
        )
    return fft_type.lower()
