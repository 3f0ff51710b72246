"""Gather, scatter and random numbers."""

from __future__ import annotations

import numpy as np

from benchmarks.row import Row, normals

MILLION = 1 << 20


def table_and_tokens():
    tokens = np.random.default_rng(1).integers(0, 50_000, MILLION).astype(np.int32)
    return normals((50_000, 128))[0], tokens


def numpy_embedding_gradient(table, tokens, ct):
    out = np.zeros_like(table)
    np.add.at(out, tokens, ct)
    return out


def rows_and_places():
    places = np.random.default_rng(1).integers(0, 4096, 4096).astype(np.int32)
    return (*normals((4096, 64), (4096, 64)), places)


def numpy_scatter_add(x, updates, places):
    out = x.copy()
    np.add.at(out, places, updates)
    return out


def error_of_normals(outputs: list[np.ndarray]) -> float:
    """Of the first four moments, scaled to have standard deviation 1 over many draws."""
    x = outputs[0].astype(np.float64).reshape(-1)
    moments = [x.mean(), (x**2).mean() - 1, (x**3).mean(), (x**4).mean() - 3]
    scaled = np.array(moments) * np.sqrt(x.size / np.array([1, 2, 15, 96]))
    return float(np.abs(scaled).max())


def jax_normals(peer):
    draw = peer.jit(lambda key: peer.module.random.normal(key, (16 * MILLION,)))
    key = peer.module.random.key(0)
    return lambda: draw(key)


ROWS = [
    Row(
        "embedding lookup, 1M of 50,000x128",
        table_and_tokens,
        {
            "jax": lambda jax, table, tokens: table[tokens],
            "torch": lambda torch, table, tokens: torch.nn.functional.embedding(tokens, table),
            "tinygrad": lambda tg, table, tokens: table[tokens],
            "numpy": lambda table, tokens: table[tokens],
        },
        "0.8x",
        reference=lambda table, tokens: table[tokens],
    ),
    Row(
        "embedding gradient, 1M of 50,000x128",
        lambda: (*table_and_tokens(), normals((MILLION, 128))[0]),
        {
            "jax": lambda jax, table, tokens, ct: jax.vjp(lambda t: t[tokens], table)[1](ct)[0],
            "torch": lambda torch, table, tokens, ct: torch.ops.aten.embedding_dense_backward(
                ct, tokens, 50_000, -1, False
            ),
            "numpy": numpy_embedding_gradient,
        },
        "0.9x",
        reference=numpy_embedding_gradient,
    ),
    Row(
        "scatter-add of 4096 rows into 4096x64",
        rows_and_places,
        {
            "jax": lambda jax, x, updates, places: x.at[places].add(updates),
            "torch": lambda torch, x, updates, places: x.index_add(0, places, updates),
            "tinygrad": lambda tg, x, updates, places: x.scatter_reduce(
                0, places.reshape(-1, 1).expand(4096, 64), updates, "sum"
            ),
            "numpy": numpy_scatter_add,
        },
        "0.9x",
        reference=numpy_scatter_add,
        calls=4,
    ),
    Row(
        "gather of 4096 rows of 4096x64",
        rows_and_places,
        {
            "jax": lambda jax, x, updates, places: x[places],
            "torch": lambda torch, x, updates, places: torch.index_select(x, 0, places),
            "tinygrad": lambda tg, x, updates, places: x[places],
            "numpy": lambda x, updates, places: x[places],
        },
        "0.9x",
        reference=lambda x, updates, places: x[places],
        calls=4,
    ),
    Row(
        "16M normals",
        lambda: (),
        {
            "jax": jax_normals,
            "torch": lambda peer: lambda: peer.module.randn(16 * MILLION),
            "tinygrad": lambda peer: peer.jit(lambda: peer.module.Tensor.randn(16 * MILLION)),
            "numpy": lambda peer: (
                lambda: np.random.default_rng(0).standard_normal(16 * MILLION, np.float32)
            ),
        },
        "0.8x",
        stateful=True,
        check=error_of_normals,
        tolerance=6.0,  # standard deviations
    ),
]
