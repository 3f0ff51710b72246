"""Devices, and moving values to and from them.

There is one place, the CPU of this process, and every array lies there. With `jax_num_cpu_devices` it
counts as several devices, so programs written for several (`pmap`) run; they share its memory
(engine/placement.py).
"""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.config import config
from tinyjax.core.tree import tree_map, tree_unflatten
from tinyjax.core.treedef import tree_flatten
from tinyjax.core.treematch import broadcast_prefix
from tinyjax.engine.array import Array
from tinyjax.engine.placement import CPU as CPU
from tinyjax.engine.placement import ON_FIRST, Sharding, SingleDeviceSharding, place
from tinyjax.engine.placement import Device as Device
from tinyjax.engine.values import asarray, is_array_like

F = TypeVar("F", bound=Callable[..., Any])


def checked_backend(backend: str | None) -> None:
    """Only the CPU exists here."""
    if backend not in (None, "cpu"):
        raise RuntimeError(
            f"Unknown backend: '{backend}' requested, but no platforms that are instances of "
            f"{backend} "
            'are present. Platforms present are: cpu\n  Leave it out, or name "cpu".'
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
    """The devices of this process.

    `host_id`, an older name of `process_index`, changes nothing.
    """
    if process_index not in (None, 0):
        raise ValueError(
            f"Unknown process_index {process_index}: there is one process.\n  Leave it out, or give 0."
        )
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


def as_sharding(target: Any, name: str = "device_put: device") -> Sharding | None:
    """A device or sharding of this process as a sharding; None for no wish.

    Raises: ValueError for anything else that was given as argument `name`.
    """
    if target is None or isinstance(target, Sharding):
        return target
    if not isinstance(target, Device):
        here = ", ".join(map(repr, _all_devices()))
        raise ValueError(
            f"{name} must be a jax.Device, a jax.sharding.Sharding or None, got {target!r}. "
            f"The only devices here are {here}."
        )
    return SingleDeviceSharding(target)


def device_put(
    x: Any,
    device: Any = None,
    *,
    src: Any = None,
    donate: Any = False,
    may_alias: Any = None,
) -> Any:
    """A tree of arrays and numbers as arrays on a device (`device` may be a sharding).

    `device` may also be a tree of them, a prefix of `x`. An array that lies there already is itself;
    one put elsewhere, or with `may_alias=False`, is copied; it remembers where it lies
    (engine/placement.py). `src` and `donate` change nothing.
    Raises: ValueError for what is no device, or a shape that a sharding cannot divide.
    """

    def one(leaf: Any, target: Any) -> Array:
        if not is_array_like(leaf):
            raise TypeError(f"Value {leaf!r} of type {type(leaf)} is not a valid JAX type")
        sharding = as_sharding(target)
        array = asarray(leaf)
        put = array if sharding is None else place(array, sharding)
        return copy.copy(put) if put is leaf and may_alias is False else put

    leaves, tree = tree_flatten(x)
    if device is None or isinstance(device, (Device, Sharding)):
        targets = [device] * len(leaves)
    else:
        targets = broadcast_prefix(device, x, is_leaf=lambda d: d is None)
    return tree_unflatten(tree, [one(v, t) for v, t in zip(leaves, targets, strict=True)])


PLACES = ("device", "sharding", "out_sharding")
"""Parameters that say where a result is to lie."""


def places_of(fun: Callable[..., Any]) -> list[tuple[str, int]]:
    """The parameters of a function that say where its result is to lie, and their positions."""
    code = inspect.unwrap(fun).__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [
        (name, i if i < code.co_argcount else sys.maxsize)
        for i, name in enumerate(names)
        if name in PLACES
    ]


def placing(fun: F) -> F:
    """`fun` with its parameters `device` and `sharding` obeyed: its result is put there.

    `fun` itself need not read them. Under a trace they are checked and change nothing, as in
    `with_sharding_constraint`. `out_sharding` is for meshes, which do not exist yet.
    Raises (the function): ValueError for what is no device or sharding, TypeError for any
    `out_sharding`.
    """
    places = places_of(fun)

    @functools.wraps(fun)
    def put(*args: Any, **kwargs: Any) -> Any:
        target = None
        for name, position in places:
            given = args[position] if len(args) > position else kwargs.get(name)
            if given is None:
                continue
            if name == "out_sharding":
                raise TypeError(
                    f"`out_sharding` argument of {fun.__name__} only supports instances of "
                    f"`NamedSharding` or `PartitionSpec`, which do not exist yet; got {given!r}.\n"
                    "  Leave it out, or put the result on a device with jax.device_put."
                )
            target = as_sharding(given, f"{fun.__name__}: {name}")
        out = fun(*args, **kwargs)
        return out if target is None else device_put(out, target)

    return cast(F, put)


def place_results(namespace: dict[str, Any]) -> None:
    """Make `placing` the functions of a public module that have such parameters."""
    made: dict[Any, Any] = {}
    for name, f in list(namespace.items()):
        if type(f) is FunctionType and not name.startswith("_") and places_of(f):
            if f not in made:
                made[f] = placing(f)
            namespace[name] = made[f]


def device_get(x: Any) -> Any:
    """A tree of arrays as NumPy arrays (read-only views of the same memory).

    Traced values stay as they are, and keep their gradients.
    """

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Array) and not (leaf.is_tracer or dtypes.is_key(leaf.dtype)):
            return np.asarray(leaf)
        return leaf

    return tree_map(one, x)


def make_array_from_callback(
    shape: Sequence[int],
    sharding: Any,
    data_callback: Callable[[tuple[slice, ...]], Any],
    dtype: Any = None,
) -> Array:
    """An array from `data_callback(index)`, called once per device with the index of its part.

    Raises: ValueError if a part has another shape than the sharding says.
    """
    where = as_sharding(sharding) or ON_FIRST
    indices = where.devices_indices_map(shape).values()
    parts = [np.asarray(data_callback(index)) for index in indices]
    for index, part in zip(indices, parts, strict=True):
        if part.shape != where.shard_shape(shape):
            raise ValueError(
                f"make_array_from_callback: the callback returned shape {part.shape} for index "
                f"{index}, {where.shard_shape(shape)} is needed.\n"
                "  Return the part at the index that it is called with, data[index]."
            )
    return place(assembled(shape, where, parts, dtype), where)


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Any, arrays: Sequence[Any], *, dtype: Any = None
) -> Array:
    """An array from its parts, one per device of the sharding."""
    where = as_sharding(sharding) or ON_FIRST
    part = where.shard_shape(shape)
    if len(arrays) != where.num_devices or any(tuple(np.shape(a)) != part for a in arrays):
        count = "one array" if where.num_devices == 1 else f"{where.num_devices} arrays"
        raise ValueError(
            f"{count} of shape {part} is needed, got shapes {[np.shape(a) for a in arrays]}.\n"
            "  Give one part per device of the sharding; sharding.shard_shape(shape) is its shape."
        )
    if len(arrays) == 1:
        return place(asarray(arrays[0]), where)
    return place(assembled(shape, where, [np.asarray(a) for a in arrays], dtype), where)


def assembled(
    shape: Sequence[int], sharding: Sharding, parts: Sequence[np.ndarray], dtype: Any
) -> Array:
    """The array that has these parts on the sharding's devices."""
    value = np.empty(tuple(shape), parts[0].dtype if dtype is None else dtype)
    for index, part in zip(sharding.devices_indices_map(shape).values(), parts, strict=True):
        value[index] = part
    return asarray(value)


def copy_to_host_async(x: Any) -> Any:
    """Begin copying to the host: nothing to do here."""
    return x


def live_arrays(platform: str | None = None) -> list[Array]:
    """All arrays of this process that hold memory. Cost: one walk over Python's objects."""
    checked_backend(platform)
    return [x for x in gc.get_objects() if type(x) is Array and x._buffer is not None]
