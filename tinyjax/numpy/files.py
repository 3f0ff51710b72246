"""Arrays and the outside: files, buffers, strings, bits, printing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish
from tinyjax.numpy.creation import array
from tinyjax.numpy.promotion import ArrayLike, canonical_axis, checked

get_printoptions = np.get_printoptions


def set_printoptions(*args: Any, **kwargs: Any) -> None:
    """NumPy's printing options, which arrays here print by too."""
    np.set_printoptions(*args, **kwargs)


def printoptions(*args: Any, **kwargs: Any) -> Any:
    """Printing options for a block."""
    return np.printoptions(*args, **kwargs)


def array_str(
    a: ArrayLike,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:
    """The values as text."""
    return np.array_str(np.asarray(a), max_line_width, precision, suppress_small)


def array_repr(
    arr: ArrayLike,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:
    """The array as text, dtype included."""
    text = np.array_repr(np.asarray(arr), max_line_width, precision, suppress_small)
    return text.replace("array(", "Array(", 1) if isinstance(arr, Array) else text


def save(file: Any, arr: ArrayLike, allow_pickle: bool = True) -> None:
    """Write a .npy file; dtypes NumPy does not know are written as bytes with a name."""
    np.save(file, storable(np.asarray(arr)), allow_pickle)


def savez(file: Any, *args: ArrayLike, allow_pickle: bool = True, **kwds: ArrayLike) -> None:
    """Write several arrays to an .npz file."""
    np.savez(
        file,
        *(storable(np.asarray(a)) for a in args),
        allow_pickle=allow_pickle,
        **{k: storable(np.asarray(v)) for k, v in kwds.items()},
    )


def storable(value: np.ndarray) -> np.ndarray:
    """bfloat16 and its kin as a record type that carries their name: NumPy would lose it."""
    if value.dtype.kind == "V" or type(value.dtype).__module__ != "numpy.dtypes":
        name = value.dtype.name
        if name in dtypes.DTYPES and value.dtype.isbuiltin != 1:
            unsigned = np.dtype(f"u{value.dtype.itemsize}")
            return value.view(np.dtype([(name, unsigned)]))
    return value


def restored(value: np.ndarray) -> np.ndarray:
    """The inverse of `storable`."""
    if value.dtype.names is not None and len(value.dtype.names) == 1:
        name = value.dtype.names[0]
        if name in dtypes.DTYPES:
            return value.view(dtypes.DTYPES[name])
    return value


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Read what `save` or `savez` wrote; an .npz file gives NumPy's mapping of arrays."""
    out = np.load(file, *args, **kwargs)
    return array(restored(out)) if isinstance(out, np.ndarray) else out


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> Array:
    """An array from bytes."""
    if isinstance(buffer, Array):
        raise TypeError("jnp.frombuffer takes an object with a buffer, got a JAX array")
    kind = dtypes.as_dtype(dtype) if dtype is not float else np.dtype(np.float64)
    return array(np.frombuffer(buffer, kind, count, offset))


def fromfile(*args: Any, **kwargs: Any) -> Array:
    """Not supported, as in JAX: reading has side effects. Use np.fromfile and jnp.asarray."""
    raise NotImplementedError(
        "jnp.fromfile() is not implemented because it may be non-pure and thus unsafe for use with "
        "JIT and other JAX transformations. Consider using jnp.asarray(np.fromfile(...)) instead, "
        "although care should be taken if np.fromfile is used within a jax transformations because "
        "of its potential side-effect of consuming the file object."
    )


def fromiter(*args: Any, **kwargs: Any) -> Array:
    """Not supported, as in JAX: an iterator is consumed. Use np.fromiter and jnp.asarray."""
    raise NotImplementedError(
        "jnp.fromiter() is not implemented because it may be non-pure and thus unsafe for use with "
        "JIT and other JAX transformations. Consider using jnp.asarray(np.fromiter(...)) instead, "
        "although care should be taken if np.fromiter is used within a jax transformations because "
        "of its potential side-effect of consuming the iterable object."
    )


def fromstring(string: str, dtype: Any = float, count: int = -1, *, sep: str) -> Array:
    """Numbers from text."""
    kind = np.dtype(np.float64) if dtype is float else dtypes.as_dtype(dtype)
    return array(np.fromstring(string, kind, count, sep=sep))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """`tinyjax.dlpack.from_dlpack`: an array over another library's memory where that fits."""
    from tinyjax.engine.dlpack import from_dlpack as over_memory  # ctypes, for exchange only

    return over_memory(x, device, copy)


def packbits(a: ArrayLike, axis: int | None = None, bitorder: str = "big") -> Array:
    """Eight elements (zero or not) per byte of uint8."""
    (n,) = checked("packbits", a)
    if not (dtypes.is_integer(n.dtype) or n.dtype == np.bool_):
        raise TypeError("Expected an input array of integer or boolean data type")
    if bitorder not in ("little", "big"):
        raise ValueError("'order' must be either 'little' or 'big'")
    bits = n if n.dtype == np.bool_ else b.gt(n, b.like(n, 0))
    if axis is None:
        bits, axis = b.reshape(bits, (bits.aval.size,)), 0
    place = canonical_axis(axis, bits.ndim)
    last = bits.ndim - 1
    bits = b.cast(b.moveaxis(bits, place, last), np.uint8)
    rest = -bits.shape[-1] % 8
    bits = b.pad(bits, [(0, 0, 0)] * last + [(0, rest, 0)])
    groups = b.reshape(bits, (*bits.shape[:-1], bits.shape[-1] // 8, 8))
    shifts = b.iota((8,), 0, np.uint8)
    if bitorder == "big":
        shifts = b.flip(shifts, (0,))
    moved = UOp(Op.SHL, (groups, b.expand(shifts, groups.shape, (last + 1,))))
    return finish(b.moveaxis(b.reduce("or", moved, (last + 1,)), last, place))


def unpackbits(
    a: ArrayLike, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> Array:
    """The bits of uint8 elements."""
    (n,) = checked("unpackbits", a)
    if n.dtype != np.uint8:
        raise TypeError("Expected an input array of unsigned byte data type")
    if bitorder not in ("little", "big"):
        raise ValueError("'order' must be either 'little' or 'big'")
    if axis is None:
        n, axis = b.reshape(n, (n.aval.size,)), 0
    place = canonical_axis(axis, n.ndim)
    last = n.ndim - 1
    n = b.moveaxis(n, place, last)
    wide = (*n.shape, 8)
    shifts = b.iota((8,), 0, np.uint8)
    if bitorder == "big":
        shifts = b.flip(shifts, (0,))
    moved = UOp(
        Op.SHRL,
        (b.expand(n, wide, tuple(range(n.ndim))), b.expand(shifts, wide, (last + 1,))),
    )
    bits = b.and_(moved, b.like(moved, 1))
    bits = b.reshape(bits, (*n.shape[:-1], n.shape[-1] * 8))
    if count is not None:
        total = bits.shape[-1]
        if count > total:
            bits = b.pad(bits, [(0, 0, 0)] * last + [(0, count - total, 0)])
        else:
            bits = b.slice_axis(bits, last, 0, count if count >= 0 else total + count)
    return finish(b.moveaxis(bits, last, place))
