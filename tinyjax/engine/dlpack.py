"""DLPack both ways: other libraries read our memory and we read theirs, without a copy.

Export: NumPy's own exporter makes the capsule, and the struct inside is patched for dtypes NumPy
does not know. A capsule made by hand with Python callbacks loses errors and leaks memory when the
consumer raises, so there are none. Import: the capsule is read in place and kept alive by the
array's memory.
Reference: DLPack 1.1 (dlpack.h).
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import aval
from tinyjax.core.memory import ALIGNMENT, copy_of
from tinyjax.core.uop import Buffer
from tinyjax.engine.array import Array
from tinyjax.engine.values import asarray

CPU = (1, 0)

# dlpack.h's type codes.
INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6
KINDS = {"i": INT, "u": UINT, "f": FLOAT, "c": COMPLEX, "b": BOOL}
NARROW: dict[Any, tuple[int, int]] = {
    np.dtype(ml_dtypes.bfloat16): (BFLOAT, 16),
    np.dtype(ml_dtypes.float8_e3m4): (7, 8),
    np.dtype(ml_dtypes.float8_e4m3): (8, 8),
    np.dtype(ml_dtypes.float8_e4m3b11fnuz): (9, 8),
    np.dtype(ml_dtypes.float8_e4m3fn): (10, 8),
    np.dtype(ml_dtypes.float8_e4m3fnuz): (11, 8),
    np.dtype(ml_dtypes.float8_e5m2): (12, 8),
    np.dtype(ml_dtypes.float8_e5m2fnuz): (13, 8),
    np.dtype(ml_dtypes.float8_e8m0fnu): (14, 8),
}
BY_CODE = {code: dtype for dtype, code in NARROW.items()}


class DLDevice(ctypes.Structure):
    """Kind and number of a device."""

    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    """Type code, bits, and vector lanes."""

    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    """A strided array; strides count elements and may be NULL (row-major)."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensorVersioned(ctypes.Structure):
    """Since DLPack 1.0: version and flags before the tensor."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def tensor_in(capsule: Any) -> DLTensor:
    """The struct inside a capsule that nobody has consumed yet."""
    name = _name_of(capsule)
    if name not in (b"dltensor", b"dltensor_versioned"):
        raise ValueError(f"not a DLPack capsule, or one that was used already: {name!r}")
    pointer = _pointer_of(capsule, name)
    if name == b"dltensor":
        return DLTensor.from_address(pointer)
    managed = DLManagedTensorVersioned.from_address(pointer)
    if managed.major != 1:
        raise BufferError(f"DLPack version {managed.major} is not supported, only 1")
    return managed.tensor  # type: ignore[no-any-return]


def code_of(dtype: Any) -> tuple[int, int] | None:
    """Type code and bits, or None where DLPack has none."""
    if dtype in NARROW:
        return NARROW[dtype]
    if dtype.kind in KINDS and dtype.type.__module__ == "numpy":
        return KINDS[dtype.kind], 8 * dtype.itemsize
    return None


def is_supported_dtype(dtype: Any) -> bool:
    """Whether arrays of this dtype can be shared."""
    if dtypes.is_key(dtype):
        return False
    return code_of(dtypes.as_dtype(dtype)) is not None


def export(
    x: Array,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
    **unknown: Any,
) -> Any:
    """`x.__dlpack__(...)`: a capsule over the array's memory, read-only unless copied.

    Raises: BufferError for typed keys, dtypes DLPack lacks, devices other than the CPU, and for
    consumers of old DLPack (which has no read-only flag) that refuse a copy.
    """
    if unknown:
        raise TypeError(f"__dlpack__ got unexpected arguments {sorted(unknown)}")
    if dtypes.is_key(x.dtype):
        raise BufferError(
            "typed PRNG keys cannot be exported by DLPack; export jax.random.key_data(keys)"
        )
    code = code_of(x.dtype)
    if code is None:
        raise BufferError(f"dtype {x.dtype.name} cannot be exported by DLPack")
    if dl_device is not None and tuple(map(int, dl_device)) != CPU:
        raise BufferError(
            f"cannot export to device {tuple(dl_device)}: the array is on the CPU {CPU}"
        )
    if stream is not None and stream != -1:
        raise BufferError("a stream makes no sense for an array on the CPU")
    value = np.asarray(x)  # raises for tracers; marks the memory, so that it is not donated
    versioned = max_version is not None and max_version[0] >= 1
    if copy:
        value = copy_of(value)
    elif not value.flags.writeable and not versioned:
        # jax and old consumers pass no version. They promise nothing about writing, but arrays here
        # are immutable only by convention as well; NumPy refuses, so hand it a writable view.
        value = writable_view(value)
    carrier = value if x.dtype not in NARROW else value.view(f"u{x.dtype.itemsize}")
    options: dict[str, Any] = {"max_version": max_version} if versioned else {}
    capsule = carrier.__dlpack__(**options)
    if x.dtype in NARROW:
        tensor = tensor_in(capsule)
        tensor.dtype.code, tensor.dtype.bits = code
    return capsule


class _Memory:
    """An owner of memory that NumPy sees through `__array_interface__`."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__, self.owner = interface, owner


def writable_view(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory, writable, kept alive by the view."""
    kind = np.dtype(f"u{value.dtype.itemsize}") if value.dtype in NARROW else value.dtype
    interface = {
        "shape": value.shape,
        "typestr": kind.str,
        "data": (value.ctypes.data, False),
        "strides": value.strides,
        "version": 3,
    }
    return np.asarray(_Memory(interface, value)).view(value.dtype)


def ndarray_over(tensor: DLTensor, capsule: Any) -> np.ndarray[Any, Any]:
    """An ndarray over a tensor's memory; the capsule lives as long as the memory is in use."""
    if tensor.device.device_type != CPU[0]:
        raise BufferError(
            f"cannot import from device type {tensor.device.device_type}, only CPU (1)"
        )
    code, bits, lanes = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
    kinds = {v: k for k, v in KINDS.items()}
    if lanes != 1:
        raise TypeError(f"DLPack vector types are not supported: {lanes} lanes")
    if (code, bits) in BY_CODE:
        dtype = BY_CODE[code, bits]
    elif code in kinds and bits % 8 == 0 and bits:
        dtype = np.dtype(f"{kinds[code]}{bits // 8}")
    else:
        raise TypeError(f"DLPack type code {code} with {bits} bits is not supported")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = None
    if tensor.strides:
        strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim))
    if 0 in shape:
        return np.empty(shape, dtype)
    storage = np.dtype(f"u{dtype.itemsize}") if dtype in NARROW else dtype
    interface = {
        "shape": shape,
        "typestr": storage.str,
        "data": (tensor.data + tensor.byte_offset, True),
        "strides": strides,
        "version": 3,
    }
    return np.asarray(_Memory(interface, capsule)).view(dtype)


def capsule_of(x: Any) -> Any:
    """Ask for a capsule in the newest protocol that the producer knows."""
    try:
        return x.__dlpack__(max_version=(1, 0))
    except TypeError:
        return x.__dlpack__()


def from_dlpack(external_array: Any, device: Any = None, copy: bool | None = None) -> Array:
    """An array over the memory of another library's array (anything with `__dlpack__`).

    Without a copy if the memory is row-major, 64-byte aligned, and of a dtype that x64 mode allows;
    the producer must then not write to it any more. `copy=True` always copies, `copy=False` raises
    ValueError where a copy would be needed.
    Raises: TypeError for a bare capsule (its device cannot be asked) and unknown dtypes.
    """
    if not hasattr(external_array, "__dlpack__") or not hasattr(
        external_array, "__dlpack_device__"
    ):
        raise TypeError(
            "The array passed to from_dlpack must have __dlpack__ and __dlpack_device__ methods, "
            "got "
            f"{type(external_array)}."
        )
    kind, number = external_array.__dlpack_device__()
    if int(kind) != CPU[0]:
        raise BufferError(
            f"cannot import from device {(int(kind), int(number))}; move the array to the CPU first"
        )
    if isinstance(external_array, Array) and not copy:
        return external_array
    capsule = capsule_of(external_array)
    value = ndarray_over(tensor_in(capsule), capsule)
    fits = (
        value.flags.c_contiguous
        and value.ctypes.data % ALIGNMENT == 0
        and dtypes.canonicalize_dtype(value.dtype) == value.dtype
    )
    if copy or not fits:
        if copy is False:
            raise ValueError(
                "from_dlpack(copy=False): the memory must be row-major, aligned to 64 bytes, and "
                "of a "
                f"dtype that is enabled; got strides {value.strides}, dtype {value.dtype.name}"
            )
        return asarray(value)
    value.flags.writeable = False  # not ours to reuse
    return Array.from_buffer(Buffer(value, aval(value.shape, value.dtype)))
