"""RANDOM_BITS: the counter-based generator threefry2x32-20, in JAX's partitionable layout.

Bits are a function of (key, position): element i of a shape encrypts the 64-bit counter i, so any
part of the result can be computed alone and batched keys give the bits of the loop over them.
Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinyjax.core import memory
from tinyjax.core.uop import UOp

Array = np.ndarray[Any, Any]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)


def threefry2x32(k0: Array, k1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Twenty rounds over two words of counter with two words of key, elementwise (uint32)."""
    keys = (k0, k1, k0 ^ k1 ^ PARITY)
    x0, x1 = x0 + k0, x1 + k1
    for block in range(5):
        for bits in ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(bits)) | (x1 >> np.uint32(32 - bits))) ^ x0
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + np.uint32(block + 1)
    return x0, x1


def random_bits(node: UOp, args: list[Array]) -> Array:
    """Words of `width` bits for every key of uint32[*b, 2]: shape [*b, *shape].

    64 bits are both words of the block; 32 their exclusive or; 16 and 8 the low bits of that.
    """
    (keys,) = args
    shape, width = node.arg
    size = math.prod(shape)
    counter = np.arange(size, dtype=np.uint64)
    low, high = counter.astype(np.uint32), (counter >> np.uint64(32)).astype(np.uint32)
    flat = keys.reshape(-1, 2)
    x0, x1 = threefry2x32(flat[:, :1], flat[:, 1:], high[None], low[None])
    bits = memory.empty(node.aval.shape, node.aval.dtype)
    of_keys = bits.reshape(x0.shape)
    if width == 64:
        np.bitwise_or(x0.astype(np.uint64) << np.uint64(32), x1, of_keys)
    else:
        np.copyto(of_keys, x0 ^ x1, casting="unsafe")
    return bits
