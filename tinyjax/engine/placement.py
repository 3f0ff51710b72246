"""Where arrays lie: devices, shardings, and the arrays that were put somewhere.

There is one memory, that of this process. With `jax_num_cpu_devices` it counts as several devices,
and what `pmap` and `device_put` return remembers on which of them it was put (`place`). That is all:
other operations neither move data nor ask where it is, and what they compute lies on the first
device. So a placed array is described by an entry beside its buffer, and the others cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyjax.core.errors import ConcretizationTypeError
from tinyjax.core.memory import copy_of
from tinyjax.core.uop import Buffer
from tinyjax.core.weak import WeakKeys
from tinyjax.engine.array import Array

Index = tuple[slice, ...]


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

    @property
    def host_id(self) -> int:
        """An older name of `process_index`."""
        return self.process_index

    def memory_stats(self) -> dict[str, int] | None:
        """What the allocator counts: nothing for a CPU, as in JAX."""
        return None

    def __repr__(self) -> str:
        return f"CpuDevice(id={self.id})"

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"


CPU = Device("cpu", 0)


class Sharding:
    """How an array lies on devices: on one, on each of several, or in slices along an axis."""

    __slots__ = ("_axis", "_devices")

    _devices: tuple[Device, ...]
    _axis: int | None

    is_fully_addressable = True
    memory_kind = "device"

    @property
    def device_set(self) -> set[Device]:
        """The devices that hold a part."""
        return set(self._devices)

    @property
    def addressable_devices(self) -> set[Device]:
        """Those of this process: all."""
        return self.device_set

    @property
    def num_devices(self) -> int:
        """How many devices hold a part."""
        return len(self._devices)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds all of the array."""
        return self._axis is None or len(self._devices) == 1

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of each part."""
        shape = list(global_shape)
        if self._axis is not None:
            shape[self._axis] = self._part(shape)
        return tuple(shape)

    def devices_indices_map(self, global_shape: Sequence[int]) -> Mapping[Device, Index]:
        """Which part of the array each device holds.

        Raises: ValueError if the axis cannot be divided among the devices.
        """
        found: dict[Device, Index] = {}
        for i, device in enumerate(self._devices):
            index = [slice(None)] * len(global_shape)
            if self._axis is not None:
                part = self._part(global_shape)
                index[self._axis] = slice(i * part, (i + 1) * part, None)
            found[device] = tuple(index)
        return found

    addressable_devices_indices_map = devices_indices_map

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        """Whether the same devices hold the same parts."""
        same_axis = self._axis == other._axis or (
            self.is_fully_replicated and other.is_fully_replicated
        )
        return same_axis and self._devices == other._devices

    def _part(self, shape: Sequence[int]) -> int:
        assert self._axis is not None
        if len(shape) <= self._axis or shape[self._axis] % len(self._devices):
            raise ValueError(
                f"an array of shape {tuple(shape)} cannot lie as {self!r}: axis {self._axis} must be "
                f"divisible by {len(self._devices)} devices.\n  Pad it, or use fewer devices."
            )
        return shape[self._axis] // len(self._devices)

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is type(self)
            and isinstance(other, Sharding)
            and (self._devices, self._axis) == (other._devices, other._axis)
        )

    def __hash__(self) -> int:
        return hash((self._devices, self._axis))


class SingleDeviceSharding(Sharding):
    """All of it on one device."""

    __slots__ = ()

    def __init__(self, device: Device = CPU, *, memory_kind: str | None = None) -> None:
        self._devices, self._axis = (device,), None

    def __repr__(self) -> str:
        return f"SingleDeviceSharding(device={self._devices[0]!r}, memory_kind=device)"


class PmapSharding(Sharding):
    """What pmap makes: slices along an axis, one per device; or for None, all of it on each."""

    __slots__ = ()

    def __init__(self, devices: Sequence[Device], axis: int | None) -> None:
        self._devices, self._axis = tuple(devices), axis

    def __repr__(self) -> str:
        return f"PmapSharding(devices={list(self._devices)!r}, axis={self._axis})"


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of an array that one device holds; `data` shares no memory with it."""

    device: Device
    index: Index
    replica_id: int
    data: Array


# --- the arrays that were put somewhere ---------------------------------------------------------

ON_FIRST = SingleDeviceSharding()

PLACED: WeakKeys[Buffer, Sharding] = WeakKeys()
"""What `place` was told. An array that is not in here lies on the first device."""


def sharding_of(x: Array) -> Sharding:
    """How an array lies on devices. Raises: ConcretizationTypeError for a traced one."""
    if x.is_tracer:
        raise ConcretizationTypeError(x)
    return ON_FIRST if x._buffer is None else PLACED.get(x._buffer) or ON_FIRST


def place(x: Array, sharding: Sharding) -> Array:
    """`x` there. A copy, unless it lies there already: each of the two may be donated.

    Raises: ValueError if it cannot be divided among the devices. A traced array is itself.
    """
    if x.is_tracer:
        return x
    sharding.shard_shape(x.shape)
    if sharding_of(x) == sharding:
        return x
    return placed(Array.from_buffer(Buffer(copy_of(x._value), x.aval)), sharding)


def placed(x: Array, sharding: Sharding) -> Array:
    """`x`, a result that nobody else has, marked as lying there (a traced one is not)."""
    if x._buffer is not None and sharding != ON_FIRST:
        PLACED.setdefault(x._buffer, sharding)
    return x


def shards(x: Array) -> list[Shard]:
    """The parts of an array, in the order of its devices."""
    sharding = sharding_of(x)
    of = x.aval.update(shape=sharding.shard_shape(x.shape))
    found = []
    for i, (device, index) in enumerate(sharding.devices_indices_map(x.shape).items()):
        part = Array.from_buffer(Buffer(copy_of(x._value[index]), of))
        data = placed(part, SingleDeviceSharding(device))
        found.append(Shard(device, index, i if sharding.is_fully_replicated else 0, data))
    return found
