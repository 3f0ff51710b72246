"""Contractions of `lax`: dot_general, dot, convolutions."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.config import MATMUL_PRECISIONS
from tinyjax.core.describe import describe_value
from tinyjax.core.dims import as_size, as_sizes
from tinyjax.core.errors import DotShapeError, DtypeError, make_error
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, lift
from tinyjax.lax.elementwise import same_dtypes
from tinyjax.lax.reducing import check_window, window_padding

ArrayLike = Any


class Precision(enum.Enum):
    """Requested precision of a contraction. Here float32 products are always exact float32."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


PRECISIONS = {
    "default": "default", "high": "high", "highest": "highest", "fastest": "default",
    "bfloat16": "default", "tensorfloat32": "high", "float32": "highest",
    "bfloat16_3x": "high",
}  # fmt: skip
ALGORITHMS = frozenset(name.lower() for name in MATMUL_PRECISIONS if name and name.isupper())
"""The presets of JAX's DotAlgorithmPreset: how other machines may compute a product."""


def canonical_precision(precision: Any) -> str | None:
    """None, the more exact of the two names, or an algorithm (all products are exact to their
    dtype). Raises: ValueError for what is no precision."""
    if precision is None:
        return None
    if isinstance(precision, (tuple, list)) and len(precision) == 2:
        names = [canonical_precision(p) or "default" for p in precision]
        return max(names, key=lambda name: name in ALGORITHMS or ORDER.index(name))
    name = precision if isinstance(precision, str) else getattr(precision, "name", "")
    name = str(name).lower()
    if name in ALGORITHMS:
        return name
    if name not in PRECISIONS:
        raise ValueError(
            f"precision must be None, a lax.Precision, one of {', '.join(PRECISIONS)}, the name of "
            f"an algorithm, or two of these for the two operands; got {precision!r}."
        )
    return PRECISIONS[name]


Pair = tuple[tuple[int, ...], tuple[int, ...]]
ORDER = ("default", "high", "highest")


def accumulate_dtype(preferred: Any, name: str, of: Any = None) -> Any:
    """`preferred_element_type` as a dtype, or None; `of` is the dtype of the products.

    Raises: DtypeError if that would be narrower (floats excepted).
    """
    if preferred is None:
        return None
    dtype = dtypes.user_dtype(preferred, name)
    part = dtypes.to_floating_dtype(of) if dtypes.is_complex(of) else of
    narrower = of is not None and dtypes.bit_width(dtype) < dtypes.bit_width(part)
    if narrower and not dtypes.is_float(of):
        raise DtypeError(
            f"{name}: `preferred_element_type` must not be narrower than the original type, got "
            f"preferred_element_type of {dtype.name} for result type of {of.name}."
        )
    return dtype


def kept_kind(preferred: Any, name: str, of: Any) -> None:
    """Raises: DtypeError unless products of dtype `of` may be asked for as `preferred`.

    Integers may become floats; otherwise integers, floats and complex numbers stay what they are,
    signed integers stay signed, and nothing gets narrower.
    """
    if preferred is None:
        return
    dtype = dtypes.user_dtype(preferred, name)
    kinds = (dtypes.is_integer, dtypes.is_float, dtypes.is_complex)
    widened = dtypes.is_integer(of) and dtypes.is_float(dtype)
    same = all(is_kind(dtype) for is_kind in kinds if is_kind(of))
    if not widened and not same or dtypes.bit_width(dtype) < dtypes.bit_width(of):
        raise DtypeError(
            f"{name}: preferred_element_type {dtype.name} is incompatible with operands of dtype "
            f"{of.name}; it must be of the same kind (or floating, for integers), and not narrower."
        )
    if dtypes.is_signed(of) and not widened and not dtypes.is_signed(dtype):
        raise DtypeError(
            f"{name}: preferred_element_type {dtype.name} must have the same signedness as the "
            f"operands' dtype {of.name}."
        )


def product_dtype(x: UOp, y: UOp, name: str) -> Any:
    """The dtype of a contraction: that of the operand of the wider range, as XLA orders dtypes.

    Raises: DtypeError for typed keys and for two dtypes of one range.
    """

    def rank(dtype: Any) -> tuple[bool, int, int, int, bool]:
        real = dtypes.to_floating_dtype(dtype) if dtypes.is_complex(dtype) else dtype
        info = dtypes.finfo(real) if dtypes.is_float(real) else None
        return (
            dtypes.is_complex(dtype), int(info.maxexp) if info else -1,
            int(info.nmant) if info else -1, dtypes.bit_width(real), not dtypes.is_unsigned(real),
        )  # fmt: skip

    kinds = [x.dtype, y.dtype]
    if any(dtypes.is_key(d) for d in kinds):
        raise DtypeError(f"{name} does not accept typed keys, got {x.dtype.name}, {y.dtype.name}")
    ranks = [rank(d) for d in kinds]
    if ranks[0] == ranks[1] and x.dtype != y.dtype:
        raise DtypeError(
            f"{name} argument type error: {x.dtype.name}, {y.dtype.name}.\n  Convert one of them."
        )
    return kinds[ranks[1] > ranks[0]]


def dot_node(
    x: UOp,
    y: UOp,
    contract: tuple[tuple[int, ...], tuple[int, ...]],
    batch: tuple[tuple[int, ...], tuple[int, ...]],
    preferred: Any,
) -> UOp:
    """DOT with operands made equal in dtype; bools contract as or-of-ands through int32."""
    if x.dtype != y.dtype:
        wide = product_dtype(x, y, "dot")
        x, y = b.cast(x, wide, x.aval.weak_type), b.cast(y, wide, y.aval.weak_type)
    if x.dtype == np.bool_:
        out = b.dot(b.cast(x, b.INT32), b.cast(y, b.INT32), contract, batch)
        return b.cast(b.ne(out, b.like(out, 0)), preferred or np.bool_)
    out = b.dot(x, y, contract, batch, None if preferred == x.dtype else preferred)
    return out


def dot_axes(dimension_numbers: Any, x: UOp, y: UOp) -> tuple[Pair, Pair]:
    """Contracted and batch axes, none negative, from what a user gives for operands x and y."""
    try:
        (cx, cy), (bx, by) = dimension_numbers
    except (TypeError, ValueError) as error:
        raise type(error)(
            "dot_general dimension_numbers must be ((lhs contract, rhs contract), (lhs batch, rhs "
            f"batch)), got {describe_value(dimension_numbers)}."
        ) from None
    found = []
    for side, n, lists in (("lhs", x, (cx, bx)), ("rhs", y, (cy, by))):
        given = [as_sizes(axes, f"the {side} axes of dimension_numbers") for axes in lists]
        if not all(-n.ndim <= a < n.ndim for axes in given for a in axes):
            raise DotShapeError(
                f"dot_general requires {side} dimension numbers to be less than the number of axes "
                f"of the {side} value, got contract {given[0]} and batch {given[1]} for {side} of "
                f"shape {n.shape}."
            )
        named = [tuple(a % n.ndim for a in axes) for axes in given]
        if len({*named[0], *named[1]}) < len(named[0]) + len(named[1]):
            raise DotShapeError(
                f"dot_general requires {side} dimension numbers to be distinct, got contract "
                f"{given[0]} and batch {given[1]}."
            )
        found.append(named)
    (contract_x, batch_x), (contract_y, batch_y) = found
    return (contract_x, contract_y), (batch_x, batch_y)


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """General contraction: `((lhs contract, rhs contract), (lhs batch, rhs batch))`.

    `precision` changes nothing: products are as exact as the dtype. `out_sharding` must be None.
    Shapes: batch axes, free axes of lhs, free axes of rhs. Narrow floats accumulate in float32.
    Raises: TypeError naming the axes whose sizes differ.
    """
    canonical_precision(precision)
    if dimension_numbers is None:
        return dot(lhs, rhs, precision=precision, preferred_element_type=preferred_element_type)
    x, y = lift(lhs), lift(rhs)
    contract, batch = dot_axes(dimension_numbers, x, y)
    for what, (ax, ay) in (("contracting", contract), ("batch", batch)):
        if len(ax) != len(ay):
            raise make_error(
                DotShapeError,
                f"dot_general requires equal numbers of {what} dimensions, got {ax} and {ay}",
                operands={"lhs": lhs, "rhs": rhs},
            )
        for i, j in zip(ax, ay, strict=True):
            if x.shape[i] != y.shape[j]:
                raise make_error(
                    DotShapeError,
                    f"dot_general requires {what} dimensions to have the same shape: axis {i} of "
                    "lhs "
                    f"(size {x.shape[i]}) with axis {j} of rhs (size {y.shape[j]})",
                    rule="sizes must be equal",
                    operands={"lhs": lhs, "rhs": rhs},
                )
    if x.dtype != y.dtype and (x.aval.weak_type or y.aval.weak_type):
        x, y = same_dtypes("dot_general", [x, y])
    wide = product_dtype(x, y, "dot_general")
    preferred = accumulate_dtype(preferred_element_type, "dot_general", wide)
    return finish(dot_node(x, y, contract, batch, preferred))


def dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    *,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Vector and matrix products of operands of rank 1 or 2.

    `out_sharding` must be None: there are no meshes yet.
    """
    x, y = lift(lhs), lift(rhs)
    if dimension_numbers is None:
        if not (1 <= x.ndim <= 2 and 1 <= y.ndim <= 2) or x.shape[-1] != y.shape[0]:
            raise make_error(
                DotShapeError,
                f"Incompatible shapes for dot: got {x.shape} and {y.shape}",
                operands={"lhs": lhs, "rhs": rhs},
            )
        dimension_numbers = (((x.ndim - 1,), (0,)), ((), ()))
    return dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)


def batch_matmul(lhs: ArrayLike, rhs: ArrayLike, precision: Any = None) -> Array:
    """Matrix products over equal leading axes."""
    n, other = lift(lhs).ndim, lift(rhs).ndim
    if min(n, other) < 2 or n != other:
        raise DotShapeError(
            f"Arguments to batch_matmul must be at least 2D and have same ndim, got {n}, {other}."
        )
    lead = tuple(range(n - 2))
    return dot_general(lhs, rhs, (((n - 1,), (n - 2,)), (lead, lead)), precision)


# --- convolutions ---------------------------------------------------------------------------------


class ConvDimensionNumbers(NamedTuple):
    """Positions of (batch, feature, *space), (out, in, *space), (batch, feature, *space)."""

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """Layout strings such as ("NHWC", "HWIO", "NHWC") as axis positions."""
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    rank = len(lhs_shape)
    if len(rhs_shape) != rank:
        raise TypeError(
            f"convolution requires lhs and rhs ndim to be equal, got {rank} and {len(rhs_shape)}."
        )
    if dimension_numbers is None:
        plain = tuple(range(rank))
        return ConvDimensionNumbers(plain, plain, plain)
    if not (isinstance(dimension_numbers, (tuple, list)) and len(dimension_numbers) == 3):
        raise TypeError(
            "convolution dimension_numbers must be None or a triple of strings, got "
            f"{dimension_numbers}."
        )
    lhs, rhs, out = dimension_numbers
    specs = []
    for text, first, second, name in (
        (lhs, "N", "C", "lhs"),
        (rhs, "O", "I", "rhs"),
        (out, "N", "C", "out"),
    ):
        if len(text) != rank or first not in text or second not in text or len(set(text)) != rank:
            raise TypeError(
                f"convolution {name} dimension_numbers {text!r} must have {rank} distinct "
                "characters with "
                f"{first!r} and {second!r} among them"
            )
        space = [c for c in (rhs if name == "rhs" else text) if c not in (first, second)]
        if name != "rhs":
            space = [c for c in rhs if c not in "OI"]
        specs.append((text.index(first), text.index(second), *(text.index(c) for c in space)))
    return ConvDimensionNumbers(*specs)


def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Array:
    """n-dimensional convolution (cross-correlation), as in XLA.

    `precision` changes nothing: products are as exact as the dtype. `out_sharding` must be None.
    Shapes: by `dimension_numbers`, default batch, feature, space. `lhs_dilation` spreads the input
    (transposed convolution), `rhs_dilation` the kernel.
    Method: windows (no copies) and one contraction over window and feature axes.
    """
    canonical_precision(precision)
    x, w = same_dtypes("conv_general_dilated", [lift(lhs), lift(rhs)])
    spec = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    x, w = b.permute(x, spec.lhs_spec), b.permute(w, spec.rhs_spec)
    space = x.ndim - 2
    strides = as_sizes(window_strides, "window_strides")
    base = as_sizes(() if lhs_dilation is None else lhs_dilation, "lhs_dilation") or (1,) * space
    dilation = (
        as_sizes(() if rhs_dilation is None else rhs_dilation, "rhs_dilation") or (1,) * space
    )
    check_window(
        "conv_general_dilated",
        space,
        ValueError,
        window_strides=strides,
        lhs_dilation=base,
        rhs_dilation=dilation,
    )
    if isinstance(padding, str) and any(d != 1 for d in base):
        raise ValueError(
            "String padding is not implemented for transposed convolution using this op. Please "
            "either exactly specify the required padding or use conv_transpose."
        )
    groups = as_size(feature_group_count, "feature_group_count")
    batches = as_size(batch_group_count, "batch_group_count")
    if groups < 1 or batches < 1:
        raise ValueError(
            "conv_general_dilated feature_group_count and batch_group_count must be positive "
            f"integers, got {groups} and {batches}."
        )
    if x.shape[1] != w.shape[1] * groups:
        raise ValueError(
            "conv_general_dilated feature_group_count must evenly divide and match: lhs has "
            f"{x.shape[1]} features, rhs takes {w.shape[1]} per group, feature_group_count is "
            f"{groups}."
        )
    if w.shape[0] % groups or x.shape[0] % batches or (batches > 1 and w.shape[0] % batches):
        raise ValueError(
            f"conv_general_dilated: {w.shape[0]} output features and batch {x.shape[0]} must be "
            f"divisible by feature_group_count {groups} and batch_group_count {batches}."
        )
    size = w.shape[2:]
    dilated = [max((s - 1) * d + 1, 0) for s, d in zip(x.shape[2:], base, strict=True)]
    pads = window_padding(padding, dilated, size, strides, dilation)
    config = [
        (0, 0, 0),
        (0, 0, 0),
        *((lo, hi, d - 1) for (lo, hi), d in zip(pads, base, strict=True)),
    ]
    x = b.pad(x, config)
    for i in range(space):
        x = b.window(x, 2 + i, size[i], strides[i], dilation[i])
    # x: batch, feature, positions, window. One contraction over feature and window.
    positions = x.shape[2 : 2 + space]
    kept_kind(preferred_element_type, "conv_general_dilated", x.dtype)
    preferred = accumulate_dtype(preferred_element_type, "conv_general_dilated")
    inner = tuple(range(2 + space, 2 + 2 * space))
    if groups == 1 and batches == 1:
        out = b.dot(w, x, ((1, *range(2, 2 + space)), (1, *inner)), ((), ()), preferred)
        out = b.moveaxis(out, 1, 0)  # features, batch, positions -> batch, features, positions
    elif batches == 1:
        x = b.reshape(x, (x.shape[0], groups, w.shape[1], *x.shape[2:]))
        w = b.reshape(w, (groups, w.shape[0] // groups, *w.shape[1:]))
        shifted = tuple(i + 1 for i in inner)
        out = b.dot(w, x, ((2, *range(3, 3 + space)), (2, *shifted)), ((0,), (1,)), preferred)
        # group, features, batch, positions -> batch, group * features, positions
        out = b.moveaxis(out, 2, 0)
        out = b.reshape(out, (out.shape[0], out.shape[1] * out.shape[2], *positions))
    else:
        x = b.reshape(x, (batches, x.shape[0] // batches, *x.shape[1:]))
        w = b.reshape(w, (batches, w.shape[0] // batches, *w.shape[1:]))
        shifted = tuple(i + 1 for i in inner)
        out = b.dot(w, x, ((2, *range(3, 3 + space)), (2, *shifted)), ((0,), (0,)), preferred)
        out = b.moveaxis(out, 2, 0)
        out = b.reshape(out, (out.shape[0], out.shape[1] * out.shape[2], *positions))
    back = tuple(int(i) for i in np.argsort(spec.out_spec))
    return finish(b.permute(out, back))


def conv(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Convolution in batch, feature, space layout."""
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def conv_with_general_padding(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Any,
    rhs_dilation: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Convolution with padding and dilations in batch, feature, space layout."""
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def conv_transpose(
    lhs: ArrayLike,
    rhs: ArrayLike,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> Array:
    """Fractionally strided convolution ("deconvolution").

    `precision` changes nothing.
    """
    canonical_precision(precision)
    x, w = lift(lhs), lift(rhs)
    space = x.ndim - 2
    if dimension_numbers is None:
        letters = {
            1: ("NHC", "HIO", "NHC"),
            2: ("NHWC", "HWIO", "NHWC"),
            3: ("NHWDC", "HWDIO", "NHWDC"),
        }
        if space not in letters:
            raise ValueError(
                "conv_transpose: give dimension_numbers for an lhs that is not of rank 3, 4 or 5, got "
                f"shape {x.shape}."
            )
        dimension_numbers = letters[space]
    spec = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    sizes = [w.shape[i] for i in spec.rhs_spec[2:]]
    dilation = list(rhs_dilation or [1] * space)
    reach = [(k - 1) * d + 1 for k, d in zip(sizes, dilation, strict=True)]
    if isinstance(padding, str):
        pads = [transposed_padding(k, s, padding) for k, s in zip(reach, strides, strict=True)]
    elif use_consistent_padding:
        pads = [(k - 1 - lo, k - 1 - hi) for k, (lo, hi) in zip(reach, padding, strict=True)]
    else:
        pads = [(int(lo), int(hi)) for lo, hi in padding]
    if transpose_kernel:
        w = b.flip(w, tuple(spec.rhs_spec[2:]))
        perm = list(range(w.ndim))
        perm[spec.rhs_spec[0]], perm[spec.rhs_spec[1]] = spec.rhs_spec[1], spec.rhs_spec[0]
        w = b.permute(w, perm)
    return conv_general_dilated(
        finish(x),
        finish(w),
        [1] * space,
        pads,
        strides,
        dilation,
        spec,
        preferred_element_type=preferred_element_type,
    )


def transposed_padding(reach: int, stride: int, padding: str) -> tuple[int, int]:
    """Padding of the dilated input that undoes a SAME or VALID convolution."""
    if padding == "SAME":
        total = reach + stride - 2
        low = reach - 1 if stride > reach - 1 else -(-total // 2)
    elif padding == "VALID":
        total = reach + stride - 2 + max(reach - stride, 0)
        low = reach - 1
    else:
        raise ValueError("Padding must be 'SAME' or 'VALID'.")
    return low, total - low


def conv_general_dilated_patches(
    lhs: ArrayLike,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """All windows, flattened into the feature axis (features major).

    `precision` changes nothing: no products are made.
    """
    canonical_precision(precision)
    x = lift(lhs)
    space = x.ndim - 2
    window_shape = as_sizes(filter_shape, "filter_shape")
    spec = conv_dimension_numbers(x.shape, (1, 1, *window_shape), dimension_numbers)
    n = b.permute(x, spec.lhs_spec)
    base = list(lhs_dilation or [1] * space)
    dilation = list(rhs_dilation or [1] * space)
    dilated = [max((s - 1) * d + 1, 0) for s, d in zip(n.shape[2:], base, strict=True)]
    pads = window_padding(padding, dilated, window_shape, window_strides, dilation)
    n = b.pad(
        n,
        [(0, 0, 0), (0, 0, 0), *((lo, hi, d - 1) for (lo, hi), d in zip(pads, base, strict=True))],
    )
    for i in range(space):
        n = b.window(n, 2 + i, window_shape[i], int(window_strides[i]), int(dilation[i]))
    order = (0, 1, *range(2 + space, 2 + 2 * space), *range(2, 2 + space))
    n = b.permute(n, order)
    n = b.reshape(n, (n.shape[0], b.prod(n.shape[1 : 2 + space]), *n.shape[2 + space :]))
    if preferred_element_type is not None:
        n = b.cast(n, accumulate_dtype(preferred_element_type, "conv_general_dilated_patches"))
    return finish(b.permute(n, tuple(int(i) for i in np.argsort(spec.out_spec))))


# --- shapes and layouts of convolutions -----------------------------------------------------------

ConvGeneralDilatedDimensionNumbers = None | ConvDimensionNumbers | tuple[str, str, str]
DotDimensionNumbers = tuple[
    tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]
]
PrecisionLike = None | str | Precision | tuple[str, str] | tuple[Precision, Precision]


def conv_general_permutations(
    dimension_numbers: Any,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Permutations to batch-feature-space (and out-in-space) layout, for layout strings."""
    lhs, rhs, out = dimension_numbers
    spec = conv_dimension_numbers([1] * len(lhs), [1] * len(rhs), (lhs, rhs, out))
    return spec.lhs_spec, spec.rhs_spec, spec.out_spec


def conv_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    strides: Sequence[int],
    pads: Any,
    batch_group_count: int = 1,
) -> tuple[int, ...]:
    """Shape of a convolution in batch-feature-space layout; `rhs_shape` with dilation counted
    in."""
    space = len(lhs_shape) - 2
    if len(strides) != space:
        raise TypeError(
            f"Wrong number of strides for {space} spatial dimensions: {tuple(strides)}.\n"
            "  Give one stride per spatial axis, without batch and features."
        )
    pairs = window_padding(pads, lhs_shape[2:], rhs_shape[2:], strides, [1] * space)
    sizes = [
        max((size + lo + hi - k) // s + 1, 0)
        for size, k, s, (lo, hi) in zip(lhs_shape[2:], rhs_shape[2:], strides, pairs, strict=True)
    ]
    return (lhs_shape[0] // batch_group_count, rhs_shape[0], *sizes)


def conv_general_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    dimension_numbers: Any,
) -> tuple[int, ...]:
    """Shape of a convolution in any layout."""
    spec = conv_dimension_numbers(lhs_shape, rhs_shape, dimension_numbers)
    plain = conv_shape_tuple(
        [lhs_shape[i] for i in spec.lhs_spec],
        [rhs_shape[i] for i in spec.rhs_spec],
        window_strides,
        padding,
    )
    return tuple(plain[int(i)] for i in np.argsort(spec.out_spec))


def conv_transpose_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    dimension_numbers: Any,
) -> tuple[int, ...]:
    """Shape of a transposed convolution."""
    spec = conv_dimension_numbers(lhs_shape, rhs_shape, dimension_numbers)
    x = [lhs_shape[i] for i in spec.lhs_spec]
    w = [rhs_shape[i] for i in spec.rhs_spec]
    if isinstance(padding, str):
        pads = [
            transposed_padding(k, s, padding) for k, s in zip(w[2:], window_strides, strict=True)
        ]
    else:
        pads = [(int(lo), int(hi)) for lo, hi in padding]
    spread = [(n - 1) * s + 1 for n, s in zip(x[2:], window_strides, strict=True)]
    plain = conv_shape_tuple([*x[:2], *spread], w, [1] * len(spread), pads)
    return tuple(plain[int(i)] for i in np.argsort(spec.out_spec))


def conv_general_dilated_local(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
) -> Array:
    """A convolution with a kernel of its own at each position ("locally connected").

    `precision` changes nothing.
    Shapes: `rhs` has the size of a flattened patch as its input-feature axis, and output positions
    as its spatial axes.
    """
    canonical_precision(precision)
    spec = conv_dimension_numbers(lift(lhs).shape, lift(rhs).shape, dimension_numbers)
    plain = tuple(range(lift(lhs).ndim))
    patches = conv_general_dilated_patches(
        lhs,
        filter_shape,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        ConvDimensionNumbers(spec.lhs_spec, plain, plain),
    )
    p, w = same_dtypes("conv_general_dilated_local", [lift(patches), lift(rhs)])
    w = b.permute(w, spec.rhs_spec)
    space = tuple(range(2, p.ndim))
    # positions, batch, features -> batch, features, positions
    out = b.dot(p, w, ((1,), (1,)), (space, space))
    count = len(space)
    out = b.permute(out, (count, count + 1, *range(count)))
    return finish(b.permute(out, tuple(int(i) for i in np.argsort(spec.out_spec))))


# --- ragged contractions --------------------------------------------------------------------------


def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: ArrayLike | None = None,
    out_sharding: Any = None,
) -> Array:
    """Rows of `lhs` [m, k] in consecutive groups, each times its own matrix of `rhs` [g, k, n].

    Rows beyond the groups give zeros. Cost: g times that of one product, since rows are masked into
    a contraction over groups and k; no row is copied per matrix element.
    `precision` and `out_sharding` change nothing, as in `dot_general`.
    """
    canonical_precision(precision)
    if group_offset is not None:
        raise ValueError(
            "ragged_dot: group_offset is for shards of groups; there is one here.\n  Leave it out."
        )
    x, w = lift(lhs), lift(rhs)
    sizes = lift(group_sizes)
    if x.ndim != 2 or w.ndim != 3 or sizes.shape != w.shape[:1] or x.shape[1] != w.shape[1]:
        raise make_error(
            DotShapeError,
            f"ragged_dot got shapes {x.shape}, {w.shape} and group_sizes {sizes.shape}",
            rule="they must be [m, k], [g, k, n] and [g]",
            operands={"lhs": lhs, "rhs": rhs, "group_sizes": group_sizes},
        )
    if not dtypes.is_integer(sizes.dtype):
        raise TypeError(
            f"ragged_dot group_sizes must be integers, got {sizes.aval.str_short()}.\n"
            "  Convert them with .astype(int)."
        )
    m, groups = x.shape[0], w.shape[0]
    ends = b.prefix("add", b.cast(sizes, b.INT32), 0)
    starts = b.sub(ends, b.cast(sizes, b.INT32))
    row = b.iota((m, groups), 0)
    mine = b.and_(
        b.ge(row, b.expand(starts, (m, groups), (1,))), b.lt(row, b.expand(ends, (m, groups), (1,)))
    )
    full = (m, groups, x.shape[1])
    masked = b.where(
        b.expand(mine, full, (0, 1)), b.expand(x, full, (0, 2)), b.full(full, b.like(x, 0))
    )
    wide = product_dtype(x, w, "ragged_dot")
    preferred = accumulate_dtype(preferred_element_type, "ragged_dot", wide)
    return finish(dot_node(masked, w, ((1, 2), (0, 1)), ((), ()), preferred))
