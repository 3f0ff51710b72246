"""Dtypes as users write them: `jnp.float32` (also callable, as `jnp.float32(3)`), kinds, constants.

A scalar type compares and hashes like NumPy's of the same name, so either works as a dtype
argument, a dictionary key or a default; calling it makes an array of that dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.shapes import canonical_axis
from tinyjax.core.source import api_boundary
from tinyjax.engine.array import Array
from tinyjax.numpy.creation import asarray


class ScalarMeta(type):
    """The class of scalar types."""

    dtype: Any

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __eq__(cls, other: Any) -> Any:
        if other is cls:
            return True
        if isinstance(other, ScalarMeta):
            return cls.dtype is other.dtype
        return other is cls.dtype.type or (isinstance(other, np.dtype) and other is cls.dtype)

    @api_boundary
    def __call__(cls, x: Any) -> Array:
        return asarray(x, dtype=cls.dtype)

    def __instancecheck__(cls, instance: Any) -> Any:
        return isinstance(instance, cls.dtype.type)

    def __repr__(cls) -> str:
        return f"<class 'jax.numpy.{cls.__name__}'>"


def scalar_type(name: str) -> Any:
    """The scalar type of a dtype's name."""
    made = ScalarMeta(name, (object,), {"dtype": dtypes.DTYPES[name]})
    made.__module__ = "tinyjax.numpy"
    made.__doc__ = f"A scalar of dtype {name}; calling it makes an array. As a dtype it is {name}."
    return made


bool = bool_ = scalar_type("bool")
uint2, uint4 = scalar_type("uint2"), scalar_type("uint4")
int2, int4 = scalar_type("int2"), scalar_type("int4")
uint8, uint16 = scalar_type("uint8"), scalar_type("uint16")
uint32, uint64 = scalar_type("uint32"), scalar_type("uint64")
int8, int16 = scalar_type("int8"), scalar_type("int16")
int32, int64 = scalar_type("int32"), scalar_type("int64")
float4_e2m1fn = scalar_type("float4_e2m1fn")
float6_e2m3fn, float6_e3m2fn = scalar_type("float6_e2m3fn"), scalar_type("float6_e3m2fn")
float8_e3m4, float8_e4m3 = scalar_type("float8_e3m4"), scalar_type("float8_e4m3")
float8_e8m0fnu = scalar_type("float8_e8m0fnu")
float8_e4m3b11fnuz = scalar_type("float8_e4m3b11fnuz")
float8_e4m3fn, float8_e4m3fnuz = scalar_type("float8_e4m3fn"), scalar_type("float8_e4m3fnuz")
float8_e5m2, float8_e5m2fnuz = scalar_type("float8_e5m2"), scalar_type("float8_e5m2fnuz")
bfloat16, float16 = scalar_type("bfloat16"), scalar_type("float16")
float32, float64 = scalar_type("float32"), scalar_type("float64")
complex64, complex128 = scalar_type("complex64"), scalar_type("complex128")
single, double, csingle, cdouble = float32, float64, complex64, complex128
# NumPy's platform types: 64 bits wide, narrowed like any 64-bit dtype while x64 is off.
int_, uint, float_, complex_ = int64, uint64, float64, complex128

character, flexible, generic, inexact = np.character, np.flexible, np.generic, np.inexact
number, object_, integer, floating = np.number, np.object_, np.integer, np.floating
signedinteger, unsignedinteger = np.signedinteger, np.unsignedinteger
complexfloating = np.complexfloating
ComplexWarning = np.exceptions.ComplexWarning
dtype = np.dtype

pi, e, euler_gamma = float(np.pi), float(np.e), float(np.euler_gamma)
inf, nan, newaxis = float("inf"), float("nan"), None


class finfo:
    """Limits of a float dtype: eps, max, min, tiny, bits, ... (ml_dtypes' object)."""

    def __new__(cls, dtype: Any) -> Any:
        return dtypes.finfo(dtype)


class iinfo:
    """Limits of an integer dtype: min, max, bits (ml_dtypes' object)."""

    def __new__(cls, int_type: Any) -> Any:
        return dtypes.iinfo(int_type)


promote_types, result_type = dtypes.promote_types, dtypes.result_type
isdtype = dtypes.isdtype


def issubdtype(arg1: Any, arg2: Any) -> Any:
    """Whether one dtype or kind lies below another, as in NumPy; key dtypes included."""
    return dtypes.issubdtype(arg1, arg2)


def can_cast(from_: Any, to: Any, casting: str = "safe") -> Any:
    """Whether NumPy's rules allow a conversion."""
    return np.can_cast(from_.dtype if isinstance(from_, Array) else from_, to, casting)  # type: ignore[arg-type]


def ndim(a: Any) -> int:
    """Number of axes."""
    return int(a.ndim) if hasattr(a, "ndim") else np.ndim(a)


def shape(a: Any) -> tuple[int, ...]:
    """Sizes of the axes."""
    return tuple(a.shape) if hasattr(a, "shape") else np.shape(a)


def size(a: Any, axis: Any = None) -> int:
    """Number of elements, or size of one axis (or the product of several)."""
    sizes = shape(a)
    if axis is None:
        return int(np.prod(sizes, dtype=np.int64))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    return int(np.prod([sizes[canonical_axis(i, len(sizes))] for i in axes], dtype=np.int64))
