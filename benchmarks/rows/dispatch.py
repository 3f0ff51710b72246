"""Cost of a call on small arrays."""

from __future__ import annotations

import numpy as np

from benchmarks.row import Row, normals


def many_small_arrays():
    return (normals(*[(4,)] * 100), normals(*[(4,)] * 100))


def add_trees(_, a, b):
    return [x + y for x, y in zip(a, b, strict=True)]


def eager(peer, x, y):
    return lambda: x * y + 1


ROWS = [
    Row(
        "jitted x + 1 on 3 floats",
        lambda: normals((3,)),
        {
            "jax": lambda jax, x: x + 1,
            "torch": lambda torch, x: x + 1,
            "tinygrad": lambda tg, x: x + 1,
            "numpy": lambda x: x + 1,
        },
        reference=lambda x: x + 1,
        target="1.0x JAX",
        calls=100,
    ),
    Row(
        "jitted add of trees of 100 arrays",
        many_small_arrays,
        {
            "jax": add_trees,
            "torch": add_trees,
            "tinygrad": add_trees,
            "numpy": lambda a, b: add_trees(None, a, b),
        },
        reference=lambda a, b: add_trees(None, a, b),
        target="0.5x JAX",
        calls=10,
    ),
    Row(
        "eager x * y + 1 on 16 floats, per op",
        lambda: normals((16,), (16,)),
        {
            "jax": eager,
            "torch": eager,
            "numpy": eager,
        },
        reference=lambda x, y: x * y + np.float64(1),
        target="3 us",
        stateful=True,
        calls=100,
        per_call=2,
    ),
]
