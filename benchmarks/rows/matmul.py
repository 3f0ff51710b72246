"""Products of matrices: square, batched, with a vector, and in narrow types."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.row import Row, normals


def product(name: str, target: str, *shapes, dtype=np.float32, tolerance=1e-4, **overrides) -> Row:
    programs = {
        "jax": lambda jax, a, b: a @ b,
        "torch": lambda torch, a, b: a @ b,
        "tinygrad": lambda tg, a, b: a @ b,
        "numpy": np.matmul,
    }
    return Row(
        name,
        lambda: normals(*shapes, dtype=dtype),
        {**programs, **overrides},
        target,
        reference=np.matmul,
        tolerance=tolerance,
    )


def square(n: int) -> Row:
    return product(f"matmul {n}", "0.95x", (n, n), (n, n))


def bfloat16(n: int) -> Row:
    row = product(
        f"matmul bf16 {n}", "1.0x", (n, n), (n, n), dtype=ml_dtypes.bfloat16, tolerance=1e-2
    )
    del row.programs["numpy"]  # has no bfloat16 product
    return row


def int8_inputs(n: int):
    rng = np.random.default_rng(0)
    return tuple(rng.integers(-128, 128, (n, n)).astype(np.int8) for _ in range(2))


def int8_to_int32(n: int) -> Row:
    return Row(
        f"matmul int8 to int32 {n}",
        lambda: int8_inputs(n),
        {
            "jax": lambda jax, a, b: jax.lax.dot(a, b, preferred_element_type=jax.numpy.int32),
            "torch": lambda torch, a, b: torch._int_mm(a, b),
            "tinygrad": lambda tg, a, b: a.matmul(b, dtype=tg.dtypes.int32),
        },
        "1.0x",
        reference=lambda a, b: a.astype(np.float64) @ b.astype(np.float64),
        tolerance=0.0,
    )


ROWS = [
    *map(square, (256, 512, 1024, 2048, 4096)),
    product("64 products of 128x128", "0.6x", (64, 128, 128), (64, 128, 128)),
    product("matrix-vector 4096", "0.95x", (4096, 4096), (4096,)),
    *map(bfloat16, (1024, 2048)),
    int8_to_int32(1024),
]
