"""Handwritten digits: a multilayer perceptron and a small convolutional network.

    python examples/digits.py

scikit-learn's 1,797 pictures of 8x8 pixels; every fifth is held out. Both networks train on
randomly shifted copies of the pictures and average their weights over the last steps. The MLP must
reach 97% and the CNN 98% of the held-out pictures, both in under half a minute on two cores.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import tinyjax as jax
import tinyjax.numpy as jnp

Params = Any  # a tree of arrays


def load_data():
    """(train images, train labels, held-out images, held-out labels); images are (n, 8, 8, 1)."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., None]
    labels = digits.target.astype(np.int32)
    held_out = np.arange(len(labels)) % 5 == 4
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


# ---- models: (init, apply) ----------------------------------------------------------------------


def weights(key, *shape: int):
    """He initialisation (He et al. 2015): every axis but the last is summed over."""
    return jax.random.normal(key, shape) * np.sqrt(2 / np.prod(shape[:-1])).astype(np.float32)


def init_mlp(key, sizes=(64, 256, 256, 10)) -> Params:
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [{"w": weights(k, m, n), "b": jnp.zeros(n)} for k, m, n in shapes]


def mlp(params: Params, images):
    x = images.reshape(len(images), -1)
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def init_cnn(key, channels: int = 16, hidden: int = 64) -> Params:
    k1, k2, k3, k4 = jax.random.split(key, 4)
    return {
        "conv1": {"w": weights(k1, 3, 3, 1, channels), "b": jnp.zeros(channels)},
        "conv2": {"w": weights(k2, 3, 3, channels, 2 * channels), "b": jnp.zeros(2 * channels)},
        "dense": {"w": weights(k3, 4 * 4 * 2 * channels, hidden), "b": jnp.zeros(hidden)},
        "out": {"w": weights(k4, hidden, 10), "b": jnp.zeros(10)},
    }


def conv3x3(layer, x):
    layout = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, layer["w"], (1, 1), "SAME", dimension_numbers=layout)
    return jax.nn.relu(y + layer["b"])


def cnn(params: Params, images):
    x = conv3x3(params["conv2"], conv3x3(params["conv1"], images))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ params["dense"]["w"] + params["dense"]["b"])
    return x @ params["out"]["w"] + params["out"]["b"]


# ---- training -----------------------------------------------------------------------------------


def shifted(images, key):
    """Each image moved by -1, 0 or 1 pixels in both directions; what leaves the frame is lost."""
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    corners = jax.random.randint(key, (len(images), 2), 0, 3)
    crop = lambda image, at: jax.lax.dynamic_slice(image, (at[0], at[1], 0), (8, 8, 1))
    return jax.vmap(crop)(padded, corners)


@dataclass(frozen=True)
class Result:
    params: Params
    accuracy: float
    seconds: float


def train(init, apply, steps: int, *, batch: int = 128, rate: float = 3e-3, seed: int = 0):
    """Adam (Kingma, Ba 2015) with a linearly falling rate; returns the averaged weights."""
    start = time.perf_counter()
    images, labels, test_images, test_labels = load_data()
    rng = np.random.default_rng(seed)
    params = init(jax.random.key(seed))
    state = [jax.tree.map(jnp.zeros_like, params) for _ in range(2)] + [params]

    def loss(params, images, labels):
        log_p = jax.nn.log_softmax(apply(params, images))
        return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, 10) * log_p, axis=-1))

    @jax.jit
    def step(params, state, images, labels, key, i):
        mean, square, average = state
        grads = jax.grad(loss)(params, shifted(images, key), labels)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, grads)
        scale = rate * (1 - i / steps) * jnp.sqrt(1 - 0.99 ** (i + 1)) / (1 - 0.9 ** (i + 1))
        move = lambda p, m, s: p - scale * m / (jnp.sqrt(s) + 1e-8)
        params = jax.tree.map(move, params, mean, square)
        new = jnp.maximum(0.02, 5 / (i + 5))  # the first steps are soon forgotten
        average = jax.tree.map(lambda a, p: a + new * (p - a), average, params)
        return params, [mean, square, average]

    keys = jax.random.split(jax.random.key(seed + 1), steps)
    for i in range(steps):
        chosen = rng.integers(0, len(images), batch)
        params, state = step(params, state, images[chosen], labels[chosen], keys[i], float(i))
    predicted = jnp.argmax(jax.jit(apply)(state[2], test_images), axis=-1)
    accuracy = float(np.mean(np.asarray(predicted) == test_labels))
    return Result(state[2], accuracy, time.perf_counter() - start)


def train_mlp(steps: int = 800) -> Result:
    return train(init_mlp, mlp, steps)


def train_cnn(steps: int = 500) -> Result:
    return train(init_cnn, cnn, steps, batch=64, rate=5e-3)


def main() -> None:
    for name, run, goal in (("MLP", train_mlp, 0.97), ("CNN", train_cnn, 0.98)):
        result = run()
        print(f"{name}: {result.accuracy:.2%} of the held-out digits (goal {goal:.0%})", end="")
        print(f" in {result.seconds:.1f} s")


if __name__ == "__main__":
    main()
