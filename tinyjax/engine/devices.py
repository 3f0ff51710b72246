"""Devices, and moving values to and from them.

There is one place, the CPU of this process, and every array lies there. With `jax_num_cpu_devices` it
counts as several devices, so programs written for several (`pmap`) run; they share its memory.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.config import config
from tinyjax.core.tree import tree_map
from tinyjax.engine.array import Array
from tinyjax.engine.values import asarray, is_array_like


class Device:
    """A place where programs run and arrays lie."""

    __slots__ = ("device_kind", "id", "platform", "process_index")

    def __init__(self, platform: str, number: int) -> None:
        self.platform, self.id = platform, number
        self.process_index, self.device_kind = 0, platform

    @property
    def local_hardware_id(self) -> int:
        """Number of the device on its host."""
        return self.id

    def __repr__(self) -> str:
        return f"CpuDevice(id={self.id})"

    def __str__(self) -> str:
        return f"{self.platform.upper()}_{self.id}"


CPU = Device("cpu", 0)


class Sharding:
    """How an array lies on devices."""


class SingleDeviceSharding(Sharding):
    """All of it on one device."""

    __slots__ = ("_device",)

    def __init__(self, device: Device = CPU, *, memory_kind: str | None = None) -> None:
        self._device = device

    @property
    def device_set(self) -> set[Device]:
        """The devices that hold a part."""
        return {self._device}

    is_fully_replicated = True
    is_fully_addressable = True

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of each part."""
        return tuple(global_shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SingleDeviceSharding) and other._device is self._device

    def __hash__(self) -> int:
        return hash(self._device)

    def __repr__(self) -> str:
        return f"SingleDeviceSharding(device={self._device!r})"


def checked_backend(backend: str | None) -> None:
    """Only the CPU exists here."""
    if backend not in (None, "cpu"):
        raise RuntimeError(
            f"Unknown backend: '{backend}' requested, but no platforms that are instances of "
            f"{backend} "
            "are present. Platforms present are: cpu"
        )


def devices(backend: str | None = None) -> list[Device]:
    """All devices of a backend."""
    checked_backend(backend)
    return _all_devices()


@functools.cache
def _all_devices() -> list[Device]:
    """As many as the configuration says when first asked; after that it cannot change."""
    config.before_update("jax_num_cpu_devices", _too_late)
    return [CPU, *(Device("cpu", i) for i in range(1, config.jax_num_cpu_devices))]


def _too_late(value: Any) -> None:
    raise RuntimeError(
        "jax_num_cpu_devices config should be updated before backends are initialized i.e. before "
        "any JAX operation is executed. You should initialize this config immediately after `import "
        "jax`."
    )


def local_devices(
    process_index: int | None = None, backend: str | None = None, host_id: int | None = None
) -> list[Device]:
    """The devices of this process."""
    if process_index not in (None, 0):
        raise ValueError(f"Unknown process_index {process_index}")
    return devices(backend)


def device_count(backend: str | None = None) -> int:
    """Number of devices."""
    return len(devices(backend))


def local_device_count(backend: str | None = None) -> int:
    """Number of devices of this process."""
    return len(devices(backend))


def default_backend() -> str:
    """Platform of the default device."""
    return "cpu"


def process_index(backend: str | None = None) -> int:
    """Number of this process."""
    checked_backend(backend)
    return 0


def process_count(backend: str | None = None) -> int:
    """How many processes compute together."""
    checked_backend(backend)
    return 1


def process_indices(backend: str | None = None) -> list[int]:
    """Numbers of all processes."""
    checked_backend(backend)
    return [0]


def checked_target(target: Any) -> None:
    """A device, sharding or None that names the CPU."""
    places = target.device_set if isinstance(target, Sharding) else {target}  # type: ignore[attr-defined]
    if places not in ({None}, {CPU}):
        raise ValueError(f"device_put to {target!r}: the only device here is {CPU!r}")


def device_put(
    x: Any,
    device: Any = None,
    *,
    src: Any = None,
    donate: Any = False,
    may_alias: Any = None,
    out_axes: Any = None,
) -> Any:
    """A tree of arrays and numbers as arrays on a device (`device` may be a sharding)."""
    if device is None or isinstance(device, (Device, Sharding)):
        checked_target(device)
    else:
        tree_map(checked_target, device)

    def one(leaf: Any) -> Array:
        if not is_array_like(leaf):
            raise TypeError(f"Value {leaf!r} of type {type(leaf)} is not a valid JAX type")
        return asarray(leaf)

    return tree_map(one, x)


def device_get(x: Any) -> Any:
    """A tree of arrays as NumPy arrays (read-only views of the same memory)."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Array) and not dtypes.is_key(leaf.dtype):
            return np.asarray(leaf)
        return leaf

    return tree_map(one, x)


def make_array_from_callback(
    shape: Sequence[int],
    sharding: Any,
    data_callback: Callable[[tuple[slice, ...]], Any],
    dtype: Any = None,
) -> Array:
    """An array from `data_callback(index)`, called once per part: once, with the whole index."""
    checked_target(sharding)
    index = tuple(slice(None) for _ in shape)
    value = np.asarray(data_callback(index))
    if value.shape != tuple(shape):
        raise ValueError(
            f"make_array_from_callback: the callback returned shape {value.shape} for index "
            f"{index}, "
            f"{tuple(shape)} is needed"
        )
    return asarray(value if dtype is None else value.astype(dtype))


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Any, arrays: Sequence[Any], *, dtype: Any = None
) -> Array:
    """An array from its parts, of which there is one."""
    checked_target(sharding)
    if len(arrays) != 1 or tuple(np.shape(arrays[0])) != tuple(shape):
        raise ValueError(
            f"one array of shape {tuple(shape)} is needed, got shapes "
            f"{[np.shape(a) for a in arrays]}"
        )
    return asarray(arrays[0])


def copy_to_host_async(x: Any) -> Any:
    """Begin copying to the host: nothing to do here."""
    return x


def live_arrays(platform: str | None = None) -> list[Array]:
    """All arrays of this process that hold memory. Cost: one walk over Python's objects."""
    checked_backend(platform)
    return [x for x in gc.get_objects() if type(x) is Array and x._buffer is not None]
