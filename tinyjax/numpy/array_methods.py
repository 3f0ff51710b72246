"""Operators, methods and indexing of `Array`: what joins the value type to the functions here.

`install(Array)` is called once, when tinyjax is imported. Operators return NotImplemented for
operands they do not know, so that other classes get their turn; lists and the like are refused,
because JAX refuses them (converting them silently is slow).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.source import api_boundary, hide_frames
from tinyjax.core.uop import UOp
from tinyjax.engine.array import NO_AXIS, Array
from tinyjax.engine.devices import device_put
from tinyjax.engine.values import finish, is_array_like
from tinyjax.lax.elementwise import bitcast_node
from tinyjax.numpy import (
    comparing,
    contract,
    creation,
    indexing,
    picking,
    reductions,
    shaping,
    sorting,
    ufuncs,
)
from tinyjax.numpy.promotion import no_out

ACCEPTED = (Array, int, float, complex, np.ndarray, np.generic)
REJECTED = (list, tuple, set, dict)


def defer(symbol: str, f: Callable[[Any, Any], Any], swapped: bool = False) -> Any:
    """A binary operator from a function of two arrays."""

    def operator(self: Array, other: Any) -> Any:
        try:
            if not isinstance(other, ACCEPTED):
                if isinstance(other, REJECTED):
                    raise TypeError(
                        f"unsupported operand type(s) for {symbol}: 'Array' and "
                        f"'{type(other).__name__}'. Convert it with jnp.asarray."
                    )
                if not is_array_like(other):
                    return NotImplemented
            return f(other, self) if swapped else f(self, other)
        except Exception as error:
            hide_frames(error, (f, (other, self) if swapped else (self, other), {}))
            raise

    return operator


BINARY: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "add": ("+", ufuncs.add),
    "sub": ("-", ufuncs.subtract),
    "mul": ("*", ufuncs.multiply),
    "truediv": ("/", ufuncs.true_divide),
    "floordiv": ("//", ufuncs.floor_divide),
    "mod": ("%", ufuncs.remainder),
    "divmod": ("divmod", ufuncs.divmod),
    "pow": ("**", ufuncs.power),
    "matmul": ("@", contract.matmul),
    "and": ("&", ufuncs.bitwise_and),
    "or": ("|", ufuncs.bitwise_or),
    "xor": ("^", ufuncs.bitwise_xor),
    "lshift": ("<<", ufuncs.left_shift),
    "rshift": (">>", ufuncs.right_shift),
}
COMPARISONS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "eq": ("==", ufuncs.equal),
    "ne": ("!=", ufuncs.not_equal),
    "lt": ("<", ufuncs.less),
    "le": ("<=", ufuncs.less_equal),
    "gt": (">", ufuncs.greater),
    "ge": (">=", ufuncs.greater_equal),
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": ufuncs.negative,
    "pos": ufuncs.positive,
    "abs": ufuncs.absolute,
    "invert": ufuncs.invert,
}


# --- methods ------------------------------------------------------------------------------------


def method_reshape(
    self: Array, *args: Any, order: str = "C", copy: bool | None = None, out_sharding: Any = None
) -> Array:
    """The same elements in another shape, given as a sequence or as several ints."""
    shape = args[0] if len(args) == 1 and not isinstance(args[0], (int, np.integer)) else args
    return shaping.reshape(self, shape, order)


def method_transpose(self: Array, *args: Any) -> Array:
    """Axes reversed, or in the order given as a sequence or as several ints."""
    if not args or (len(args) == 1 and args[0] is None):
        return shaping.transpose(self)
    axes = args[0] if len(args) == 1 and not isinstance(args[0], (int, np.integer)) else args
    return shaping.transpose(self, axes)


def method_astype(self: Array, dtype: Any, copy: bool = False, device: Any = None) -> Array:
    """Converted to a dtype."""
    out = creation.astype(self, dtype, copy=copy)
    return out if device is None else device_put(out, device)


def method_flatten(self: Array, order: str = "C", *, out_sharding: Any = None) -> Array:
    """All elements along one axis."""
    return shaping.ravel(self, order)


def method_dot(
    self: Array, b: Any, *, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """Product with another array: see `jax.numpy.dot`."""
    return contract.dot(self, b, precision=precision, preferred_element_type=preferred_element_type)


def method_view(self: Array, dtype: Any = None, type: None = None) -> Array:
    """The same bytes as another dtype; the last axis grows or shrinks with the width."""
    if dtype is None:
        return self
    n = self.node
    kind = dtypes.user_dtype(dtype, "view")
    if kind == n.dtype:
        return self
    if not n.ndim and dtypes.bit_width(kind) != dtypes.bit_width(n.dtype):
        raise ValueError("view() cannot change the itemsize of a 0d array.")
    if n.dtype == np.bool_:
        n = b.cast(n, np.uint8)
    if dtypes.is_complex(n.dtype):
        part = dtypes.real_dtype(n.dtype)
        halves = [b.unsqueeze(p, n.ndim) for p in (b.real(n), b.imag(n))]
        n = b.concat(halves, n.ndim)
        n = b.reshape(n, (*n.shape[:-2], n.shape[-2] * 2) if n.ndim > 1 else n.shape)
        if kind == part:
            return finish(n)
    if dtypes.is_complex(kind):
        part = dtypes.real_dtype(kind)
        n = method_view(finish(n) if n.src else Array(n), part).node
        pairs = b.reshape(n, (*n.shape[:-1], n.shape[-1] // 2, 2))
        at = pairs.ndim - 1
        halves = [b.squeeze(b.slice_axis(pairs, at, i, i + 1), (at,)) for i in (0, 1)]
        return finish(b.complex_(*halves))
    target = np.dtype(np.uint8) if kind == np.bool_ else kind
    old, new = dtypes.bit_width(n.dtype), dtypes.bit_width(target)
    if old < new:
        times = new // old
        if n.shape[-1] % times:
            raise ValueError(
                f"When changing to a larger dtype, its size must be a divisor of the total size in "
                f"bytes of the last axis of the array; got {n.aval.str_short()} to {kind}."
            )
        n = b.reshape(n, (*n.shape[:-1], n.shape[-1] // times, times))
    out = bitcast_node(n, target)
    if old > new:
        out = b.reshape(out, (*out.shape[:-2], out.shape[-2] * out.shape[-1]))
    return finish(b.ne(out, b.like(out, 0)) if kind == np.bool_ else out)


def method_clip(self: Array, min: Any = None, max: Any = None) -> Array:
    """Limited to [min, max]."""
    return comparing.clip(self, min, max)


def method_copy(self: Array) -> Array:
    """A copy in memory of its own."""
    return finish(UOp(Op.COPY, (self.node,)))


def method_contains(self: Array, item: Any) -> bool:
    """Whether some element equals `item`."""
    return bool(reductions.any(ufuncs.equal(self, item)))


def method_iter(self: Array) -> Iterator[Array]:
    """The slices of the first axis, made as they are asked for."""
    if not self.aval.shape:
        raise TypeError(f"iteration over a 0-d array\n{NO_AXIS}")
    return (indexing.getitem(self, i) for i in range(self.aval.shape[0]))


def method_round(self: Array, ndigits: int | None = None) -> Array:
    """round(x, ndigits); integers without `ndigits`, like Python's."""
    rounded = ufuncs.round(self, ndigits or 0)
    if ndigits is not None:
        return rounded
    return finish(b.cast(rounded.node, dtypes.default_int_dtype()))


def method_setitem(self: Array, index: Any, value: Any) -> None:
    """Arrays do not change."""
    raise TypeError(
        "JAX arrays are immutable and do not support in-place item assignment. Instead of x[idx] = "
        "y, use x = x.at[idx].set(y) or another .at[] method."
    )


def method_array_namespace(self: Array, /, *, api_version: str | None = None) -> Any:
    """The module of functions over this array (array API)."""
    import tinyjax.numpy  # it stands on this file

    if api_version is not None and api_version not in ("2021.12", "2022.12", "2023.12", "2024.12"):
        raise ValueError(f"api_version={api_version!r} is not available")
    return tinyjax.numpy


def method_tobytes(self: Array, order: str = "C") -> bytes:
    """The elements as bytes."""
    return np.asarray(self).tobytes(order)  # type: ignore[arg-type]


def method_take(
    self: Array,
    indices: Any,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Array:
    """Elements along an axis: see `jax.numpy.take`."""
    no_out("take", out)
    return picking.take(
        self, indices, axis, out, mode, unique_indices, indices_are_sorted, fill_value
    )


def method_compress(
    self: Array,
    condition: Any,
    axis: int | None = None,
    *,
    out: None = None,
    size: int | None = None,
    fill_value: Any = 0,
) -> Array:
    """Slices where a condition holds: see `jax.numpy.compress`."""
    no_out("compress", out)
    return picking.compress(condition, self, axis, size=size, fill_value=fill_value)


def method_choose(self: Array, choices: Any, out: None = None, mode: str = "raise") -> Array:
    """Elementwise the choice numbered by this array."""
    no_out("choose", out)
    return picking.choose(self, choices, out, mode)


def method_byteswap(self: Array, inplace: bool = False) -> Array:
    """The bytes of each element reversed; of a complex number, those of each part."""
    if inplace:
        raise ValueError("byteswap cannot be done in place: arrays are immutable")
    n = self.node
    width = dtypes.bit_width(n.dtype) // 8
    if width == 1:
        return self
    as_bytes = method_view(finish(b.reshape(n, (*n.shape, 1))), np.uint8).node
    parts = 2 if dtypes.is_complex(n.dtype) else 1
    apart = b.reshape(as_bytes, (*n.shape, parts, width // parts))
    flipped = b.reshape(b.flip(apart, (n.ndim + 1,)), as_bytes.shape)
    return shaping.reshape(method_view(finish(flipped), n.dtype), n.shape)


def no_flat(self: Array) -> Any:
    """JAX has none either."""
    raise NotImplementedError(
        "Array.flat is not implemented: use x.ravel(), or x.at[...] to write."
    )


METHODS: dict[str, Callable[..., Any]] = {
    "reshape": method_reshape,
    "transpose": method_transpose,
    "astype": method_astype,
    "flatten": method_flatten,
    "dot": method_dot,
    "view": method_view,
    "clip": method_clip,
    "copy": method_copy,
    "clone": method_copy,
    "take": method_take,
    "compress": method_compress,
    "choose": method_choose,
    "tobytes": method_tobytes,
    "byteswap": method_byteswap,
    "ravel": shaping.ravel,
    "squeeze": shaping.squeeze,
    "swapaxes": shaping.swapaxes,
    "repeat": shaping.repeat,
    "diagonal": creation.diagonal,
    "trace": contract.trace,
    "nonzero": picking.nonzero,
    "round": ufuncs.round,
    "conj": ufuncs.conjugate,
    "conjugate": ufuncs.conjugate,
    "all": reductions.all,
    "any": reductions.any,
    "argmax": reductions.argmax,
    "argmin": reductions.argmin,
    "cumprod": reductions.cumprod,
    "cumsum": reductions.cumsum,
    "max": reductions.max,
    "mean": reductions.mean,
    "min": reductions.min,
    "prod": reductions.prod,
    "ptp": reductions.ptp,
    "std": reductions.std,
    "sum": reductions.sum,
    "var": reductions.var,
    "sort": sorting.sort,
    "argsort": sorting.argsort,
    "argpartition": sorting.argpartition,
    "searchsorted": sorting.searchsorted,
}
SPECIAL: dict[str, Callable[..., Any]] = {
    "__getitem__": indexing.getitem,
    "__setitem__": method_setitem,
    "__iter__": method_iter,
    "__contains__": method_contains,
    "__round__": method_round,
    "__array_namespace__": method_array_namespace,
}
PROPERTIES: dict[str, tuple[Callable[[Array], Any], str]] = {
    "T": (shaping.transpose, "The axes reversed."),
    "mT": (shaping.matrix_transpose, "The last two axes exchanged."),
    "real": (ufuncs.real, "Real part."),
    "imag": (ufuncs.imag, "Imaginary part."),
    "at": (indexing.IndexUpdateHelper, "`x.at[index].set(y)` and other functional updates."),
    "flat": (no_flat, "Not available; use ravel()."),
}


def as_method(f: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function as a method with its own name and, after `self`, the same parameters."""

    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        try:
            return f(self, *args, **kwargs)
        except Exception as error:
            hide_frames(error, (f, (self, *args), kwargs))
            raise

    method.__name__, method.__qualname__ = name, f"Array.{name}"
    method.__doc__ = f.__doc__
    signature = inspect.signature(f)
    first, *rest = signature.parameters.values()
    if first.kind is first.POSITIONAL_ONLY:
        first = first.replace(kind=first.POSITIONAL_OR_KEYWORD)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[first.replace(name="self"), *rest]
    )
    return method


def install(cls: type[Array]) -> None:
    """Attach operators, methods and indexing to the class."""
    for name, (symbol, f) in BINARY.items():
        setattr(cls, f"__{name}__", defer(symbol, f))
        setattr(cls, f"__r{name}__", defer(symbol, f, swapped=True))
    for name, (symbol, f) in COMPARISONS.items():
        setattr(cls, f"__{name}__", defer(symbol, f))
    cls.__hash__ = None  # type: ignore[assignment]
    for name, unary in UNARY.items():
        setattr(cls, f"__{name}__", as_method(unary, f"__{name}__"))
    for name, special in SPECIAL.items():
        setattr(cls, name, api_boundary(special))
    for name, function in METHODS.items():
        setattr(cls, name, as_method(function, name))
    for name, (getter, doc) in PROPERTIES.items():
        setattr(cls, name, property(getter, doc=doc))
