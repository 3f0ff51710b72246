"""Maps over large arrays: arithmetic in one pass, memory traffic, fresh and reused outputs."""

from __future__ import annotations

import numpy as np

from benchmarks.row import Row, normals

MILLION = 1 << 20


def chain(x, tanh, length: int = 500):
    """A contraction, so that neither values nor rounding errors grow with the length."""
    for i in range(length // 5):
        x = tanh(x * 1.1 + 0.01 * i) - 0.3 * x
    return x


def wave(exp, tanh, x):
    return tanh(1.5 * x + 0.5) * 2.5 + exp(-x * x)


def everywhere(jax, torch, tinygrad, numpy):
    return {"jax": jax, "torch": torch, "tinygrad": tinygrad, "numpy": numpy}


def same(f):
    """One formula of operators serves all libraries."""
    return everywhere(*[lambda _, *arrays: f(*arrays)] * 3, f)


def donated(peer, x, y):
    """x = 0.5 x + 0.5 y, again and again in x's memory."""
    f = peer.module.jit(lambda x, y: 0.5 * x + 0.5 * y, donate_argnums=0)

    def step():
        nonlocal x
        x = f(x, y)
        return x

    return step


def in_place(peer, x, y):
    f = peer.jit(lambda x, y: x.mul_(0.5).add_(y, alpha=0.5))
    return lambda: f(x, y)


def assigned(peer, x, y):
    f = peer.jit(lambda x, y: x.assign(0.5 * x + 0.5 * y))
    return lambda: f(x, y)


def numpy_in_place(_, x, y):
    scratch = np.empty_like(x)

    def step():
        np.multiply(x, np.float32(0.5), out=x)
        np.multiply(y, np.float32(0.5), out=scratch)
        return np.add(x, scratch, out=x)

    return step


ROWS = [
    Row(
        "chain of 500 operations, 1M",
        lambda: normals((MILLION,)),
        everywhere(
            lambda jax, x: chain(x, jax.numpy.tanh),
            lambda torch, x: chain(x, torch.tanh),
            lambda tg, x: chain(x, tg.Tensor.tanh),
            lambda x: chain(x, np.tanh),
        ),
        reference=lambda x: chain(x, np.tanh),
        target="1.0x",
    ),
    Row(
        "tanh(a x + b) c + exp(-x x), 16M",
        lambda: normals((16 * MILLION,)),
        everywhere(
            lambda jax, x: wave(jax.numpy.exp, jax.numpy.tanh, x),
            lambda torch, x: wave(torch.exp, torch.tanh, x),
            lambda tg, x: wave(tg.Tensor.exp, tg.Tensor.tanh, x),
            lambda x: wave(np.exp, np.tanh, x),
        ),
        reference=lambda x: wave(np.exp, np.tanh, x),
        target="1.0x",
    ),
    Row(
        "copy of 64M, new output",
        lambda: normals((64 * MILLION,)),
        everywhere(
            lambda jax, x: jax.numpy.copy(x),
            lambda torch, x: x.clone(),
            lambda tg, x: x * 1.0000001,  # tinygrad would skip a copy
            np.copy,
        ),
        reference=lambda x: x,
        target="0.8x",
    ),
    Row(
        "a x + y, 64M, new output",
        lambda: normals((64 * MILLION,), (64 * MILLION,)),
        same(lambda x, y: 1.5 * x + y),
        reference=lambda x, y: 1.5 * x + y,
        target="0.8x",
    ),
    Row(
        "a x + b y, 64M, output donated",
        lambda: normals((64 * MILLION,), (64 * MILLION,)),
        everywhere(donated, in_place, assigned, numpy_in_place),
        reference=lambda x, y: 0.5 * x + 0.5 * y,
        target="0.95x",
        stateful=True,
    ),
]
