"""Prefix sums and sorting."""

from __future__ import annotations

import numpy as np

from benchmarks.row import Row, normals

MILLION = 1 << 20

ROWS = [
    Row(
        "cumsum of 4M",
        lambda: normals((4 * MILLION,)),
        {
            "jax": lambda jax, x: jax.numpy.cumsum(x),
            "torch": lambda torch, x: torch.cumsum(x, 0),
            "tinygrad": lambda tg, x: x.cumsum(0),
            "numpy": np.cumsum,
        },
        "0.95x",
        reference=np.cumsum,
        tolerance=1e-3,
    ),
    Row(
        "sort of 1M",
        lambda: normals((MILLION,)),
        {
            "jax": lambda jax, x: jax.numpy.sort(x),
            "torch": lambda torch, x: torch.sort(x).values,
            "tinygrad": lambda tg, x: x.sort()[0],
            "numpy": np.sort,
        },
        "1.2x",
        reference=np.sort,
    ),
]
