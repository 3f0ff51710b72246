"""Sizes, starting weights and batches, as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

Tree = Any

LEARNING_RATE = 1e-3

GPT_LAYERS, GPT_WIDTH, GPT_HEADS, GPT_TIME, GPT_VOCABULARY, GPT_BATCH = 6, 384, 6, 128, 512, 4
LSTM_STEPS, LSTM_HIDDEN, LSTM_BATCH = 128, 256, 32


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal, scaled by the inputs, which are all axes but the last."""
    scale = np.float32(np.prod(shape[:-1]) ** -0.5)
    return rng.standard_normal(shape, np.float32) * scale


def labels(rng: np.random.Generator, classes: int, *shape: int) -> np.ndarray:
    return rng.integers(0, classes, shape).astype(np.int32)


def mlp() -> tuple[Tree, np.ndarray, np.ndarray]:
    """784-512-512-10, batch 128."""
    rng = np.random.default_rng(0)
    sizes = (784, 512, 512, 10)
    params = [
        {"w": weights(rng, m, n), "b": np.zeros(n, np.float32)}
        for m, n in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    return params, rng.standard_normal((128, 784), np.float32), labels(rng, 10, 128)


def gpt(layers: int = GPT_LAYERS) -> tuple[Tree, np.ndarray]:
    rng = np.random.default_rng(0)
    d = GPT_WIDTH

    def norm() -> Tree:
        return {"scale": np.ones(d, np.float32), "shift": np.zeros(d, np.float32)}

    blocks = [
        {
            "norm1": norm(),
            "qkv": weights(rng, d, 3 * d),
            "project": weights(rng, d, d),
            "norm2": norm(),
            "expand": weights(rng, d, 4 * d),
            "contract": weights(rng, 4 * d, d),
        }
        for _ in range(layers)
    ]
    params = {
        "tokens": weights(rng, GPT_VOCABULARY, d),
        "positions": weights(rng, GPT_TIME, d),
        "blocks": blocks,
        "norm": norm(),
        "readout": weights(rng, d, GPT_VOCABULARY),
    }
    return params, labels(rng, GPT_VOCABULARY, GPT_BATCH, GPT_TIME + 1)


def cnn() -> tuple[Tree, np.ndarray, np.ndarray]:
    """28x28 pictures, batch 64: conv 16, pool, conv 32, pool, dense. NHWC and HWIO."""
    rng = np.random.default_rng(0)
    params = {
        "conv1": weights(rng, 3, 3, 1, 16),
        "conv2": weights(rng, 3, 3, 16, 32),
        "dense": weights(rng, 7 * 7 * 32, 10),
    }
    return params, rng.standard_normal((64, 28, 28, 1), np.float32), labels(rng, 10, 64)


def lstm() -> tuple[Tree, np.ndarray]:
    """Gates in the order input, forget, cell, output (torch's); inputs (time, batch, features)."""
    rng = np.random.default_rng(0)
    h = LSTM_HIDDEN
    params = {"input": weights(rng, h, 4 * h), "hidden": weights(rng, h, 4 * h)}
    return params, rng.standard_normal((LSTM_STEPS, LSTM_BATCH, h), np.float32)
