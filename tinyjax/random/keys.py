"""PRNG keys: typed (`key`) and raw uint32 (`PRNGKey`), split and fold_in. Bits are those of JAX.

The generator is Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)
in JAX's partitionable layout: value i of a shape depends on the key and i alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.config import config
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const
from tinyjax.engine.array import Array
from tinyjax.engine.values import canonical_shape, finish, lift

KeyLike = Any
UINT32 = np.dtype(np.uint32)
UINT64 = np.dtype(np.uint64)
THREEFRY = "threefry2x32"
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def u32(value: int) -> UOp:
    """A uint32 literal."""
    return const(np.uint32(value), UINT32)


def rotate(x: UOp, by: int) -> UOp:
    """Bits of uint32 rotated left."""
    return b.or_(UOp(Op.SHL, (x, u32(by))), UOp(Op.SHRL, (x, u32(32 - by))))


def threefry(k0: UOp, k1: UOp, x0: UOp, x1: UOp) -> tuple[UOp, UOp]:
    """The 20-round block cipher on elementwise nodes."""
    ks = (k0, k1, b.xor(b.xor(k0, k1), u32(PARITY)))
    x0, x1 = b.add(x0, ks[0]), b.add(x1, ks[1])
    for i in range(5):
        for r in ROTATIONS[i % 2]:
            x0 = b.add(x0, x1)
            x1 = b.xor(rotate(x1, r), x0)
        x0 = b.add(x0, ks[(i + 1) % 3])
        x1 = b.add(x1, b.add(ks[(i + 2) % 3], u32(i + 1)))
    return x0, x1


def resolve_impl(impl: Any) -> dtypes.KeyDType:
    """A key dtype from a name, a dtype or None (the configured default)."""
    if impl is None:
        impl = config.jax_default_prng_impl
    if isinstance(impl, dtypes.KeyDType):
        return impl
    if not isinstance(impl, (str, dtypes.KeyImpl)):
        raise TypeError(
            f"unrecognized type {type(impl)} for specifying PRNG implementation, got {impl!r}."
        )
    of = dtypes.KeyDType(impl)
    if of.impl.name != THREEFRY:
        raise ValueError(f"PRNG implementation {impl!r} is not available; use {THREEFRY!r}.")
    return of


def key_dtype(impl_spec: Any = None) -> dtypes.KeyDType:
    """The dtype of keys of a PRNG implementation (the configured one by default)."""
    return resolve_impl(impl_spec)


def chosen(name: str, impl: Any, dtype: Any) -> Any:
    """The implementation that one of two arguments names."""
    if impl is not None and dtype is not None:
        raise ValueError(f"Cannot specify both `impl` and `dtype` arguments to jax.random.{name}")
    return impl if dtype is None else dtype


def seed_data(seed: Any) -> UOp:
    """Key data of an integer seed: its high and low 32 bits."""
    if config.jax_random_seed_offset:
        seed = seed + config.jax_random_seed_offset
    if isinstance(seed, (int, np.integer)):
        value = int(seed)
        bits = 64 if config.jax_enable_x64 else 32
        if not -(1 << (bits - 1)) <= value < (1 << bits):
            if bits == 32 and -(1 << 63) <= value < (1 << 64):
                value &= 0xFFFFFFFF
            else:
                raise OverflowError(f"Python int {seed} too large to be a PRNG seed")
        value &= (1 << bits) - 1
        parts = [value >> 32, value & 0xFFFFFFFF]
        return b.concat([b.reshape(u32(p), (1,)) for p in parts], 0)
    n = lift(seed)
    if n.shape:
        raise TypeError(
            f"PRNGKey seed must be a scalar; got an array of shape {n.shape}. Use jax.vmap for a "
            "batch of keys."
        )
    if not dtypes.is_integer(n.dtype):
        raise TypeError(f"PRNG key seed must be an integer; got {n.aval.str_short()}")
    low = b.cast(n, UINT32)
    if dtypes.bit_width(n.dtype) == 64:
        wide = b.bitcast(n, UINT64)
        high = b.cast(UOp(Op.SHRL, (wide, b.like(wide, 32))), UINT32)
        low = b.cast(b.and_(wide, b.like(wide, 0xFFFFFFFF)), UINT32)
    else:
        low = b.bitcast(
            b.cast(n, np.int32) if dtypes.is_signed(n.dtype) else b.cast(n, UINT32), UINT32
        )
        high = u32(0)
    return b.concat([b.reshape(high, (1,)), b.reshape(low, (1,))], 0)


def key(seed: Any, *, impl: Any = None, dtype: Any = None) -> Array:
    """A typed key (an array of dtype `key<fry>`) from an integer seed."""
    impl = chosen("key", impl, dtype)
    return finish(UOp(Op.KEY_WRAP, (seed_data(seed),), resolve_impl(impl)))


def PRNGKey(seed: Any, *, impl: Any = None) -> Array:
    """A raw key, uint32[2], from an integer seed; a typed one under `jax_enable_custom_prng`."""
    if config.jax_enable_custom_prng:
        return key(seed, impl=impl)
    resolve_impl(impl)
    return finish(seed_data(seed))


def data_of(k: KeyLike, name: str, batched: bool = False) -> tuple[UOp, Any]:
    """uint32[..., 2] data of a typed or raw key, and the key dtype if it is typed."""
    if not isinstance(k, (Array, np.ndarray)):
        raise TypeError(
            f"{name} accepts a PRNG key (jax.random.key(seed)); got {k!r} of type {type(k)}."
        )
    n = lift(k)
    if dtypes.is_key(n.dtype):
        if n.shape and not batched:
            raise ValueError(
                f"{name} accepts a single key, but was given a key array of shape {n.shape} != (). "
                "Use jax.vmap for batching."
            )
        return UOp(Op.KEY_UNWRAP, (n,)), n.dtype
    if n.dtype != UINT32 or n.ndim < 1 or n.shape[-1] != 2:
        raise TypeError(
            f"{name} accepts a PRNG key: a typed key, or uint32 of shape (2,); got "
            f"{n.aval.str_short()}."
        )
    if n.ndim > 1 and not batched:
        raise ValueError(
            f"{name} accepts a single key, but was given a key array of shape {n.shape}. Use "
            "jax.vmap for batching."
        )
    if config.jax_legacy_prng_key != "allow":
        message = (
            "Legacy uint32 key array passed as key to jax.random function. Please create keys using "
            "jax.random.key(). If use of a raw key array was intended, set "
            'jax_legacy_prng_key="allow".'
        )
        if config.jax_legacy_prng_key == "error":
            raise ValueError(message)
        warnings.warn(message, stacklevel=3)
    return n, None


def like_input(data: UOp, of: Any) -> UOp:
    """Key data as the kind of key that came in."""
    return data if of is None else UOp(Op.KEY_WRAP, (data,), of)


def split_data(data: UOp, shape: tuple[int, ...]) -> UOp:
    """`shape` new keys: the two halves of 64 random bits each."""
    wide = b.random_bits(data, shape, 64)
    high = b.cast(UOp(Op.SHRL, (wide, b.like(wide, 32))), UINT32)
    low = b.cast(b.and_(wide, b.like(wide, 0xFFFFFFFF)), UINT32)
    return b.concat([b.unsqueeze(high, high.ndim), b.unsqueeze(low, low.ndim)], high.ndim)


def split(key: KeyLike, num: int | Sequence[int] = 2) -> Array:
    """New independent keys, as an array of shape [num] (or the shape given)."""
    data, of = data_of(key, "split")
    return finish(like_input(split_data(data, canonical_shape(num)), of))


def fold_in(key: KeyLike, data: Any) -> Array:
    """A new key from a key and an integer (uint32). Raises: OverflowError for a larger one."""
    raw, of = data_of(key, "fold_in")
    n = lift(np.uint32(data) if isinstance(data, int) else data)
    if n.shape:
        raise TypeError(
            f"fold_in accepts a scalar, but was given an array of shape {n.shape} != ()."
        )
    if not dtypes.is_integer(n.dtype):
        raise TypeError(f"fold_in data must be an integer; got {n.aval.str_short()}")
    parts = [b.squeeze(b.slice_axis(raw, 0, i, i + 1), (0,)) for i in (0, 1)]
    word = b.cast(n, UINT32)
    if dtypes.is_signed(n.dtype):
        width = dtypes.bit_width(n.dtype)
        unsigned = np.dtype(f"u{width // 8}")
        word = (
            b.cast(b.bitcast(n, unsigned), UINT32)
            if width >= 32
            else b.bitcast(b.cast(n, np.int32), UINT32)
        )
    x0, x1 = threefry(parts[0], parts[1], u32(0), word)
    return finish(like_input(b.concat([b.reshape(x0, (1,)), b.reshape(x1, (1,))], 0), of))


def key_data(keys: KeyLike) -> Array:
    """The uint32 data of typed keys (or of raw ones, which is they)."""
    n = lift(keys)
    if dtypes.is_key(n.dtype):
        return finish(UOp(Op.KEY_UNWRAP, (n,)))
    return finish(raw_key(n))


def raw_key(n: UOp) -> UOp:
    """`n`, which must be raw keys: uint32[..., 2]."""
    if n.dtype != np.uint32 or not n.ndim or n.shape[-1] != 2:
        raise TypeError(
            f"invalid PRNG key data: expected keys, or raw ones of uint32[..., 2], got "
            f"{n.aval.str_short()}."
        )
    return n


def wrap_key_data(key_bits_array: Any, *, impl: Any = None, dtype: Any = None) -> Array:
    """Typed keys from uint32 data."""
    impl = chosen("wrap_key_data", impl, dtype)
    return finish(UOp(Op.KEY_WRAP, (lift(key_bits_array),), resolve_impl(impl)))


def key_impl(keys: KeyLike) -> str:
    """Name of the generator of a key."""
    n = lift(keys)
    if dtypes.is_key(n.dtype):
        return n.dtype.impl.name  # type: ignore[no-any-return]
    raw_key(n)
    return THREEFRY


def clone(key: KeyLike) -> Array:
    """The same key (key-reuse checks treat it as another)."""
    return finish(lift(key))
