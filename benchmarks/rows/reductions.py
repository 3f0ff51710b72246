"""Sums, maxima, and what is built of them: softmax, logsumexp, layer norm."""

from __future__ import annotations

import numpy as np

from benchmarks.row import Row, normals

MILLION = 1 << 20


def numpy_softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def numpy_logsumexp(x):
    top = x.max(-1, keepdims=True)
    return np.log(np.exp(x - top).sum(-1)) + top[..., 0]


def numpy_layer_norm(x, scale, shift):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def jax_layer_norm(jax, x, scale, shift):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * scale + shift


def torch_layer_norm(torch, x, scale, shift):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, shift)


def tinygrad_layer_norm(_, x, scale, shift):
    return x.layernorm(eps=1e-5) * scale + shift


# Forward and backward: the gradients of sum(layer_norm(x)^2 w) in all of its arguments.


def jax_layer_norm_gradients(jax, x, scale, shift, weight):
    loss = lambda *args: (jax_layer_norm(jax, *args) ** 2 * weight).sum()
    return jax.grad(loss, argnums=(0, 1, 2))(x, scale, shift)


def torch_layer_norm_gradients(torch, x, scale, shift, weight):
    arguments = [a.detach().requires_grad_() for a in (x, scale, shift)]
    loss = (torch_layer_norm(torch, *arguments) ** 2 * weight).sum()
    return torch.autograd.grad(loss, arguments)


def tinygrad_layer_norm_gradients(tg, x, scale, shift, weight):
    loss = (tinygrad_layer_norm(tg, x, scale, shift) ** 2 * weight).sum()
    return list(loss.gradient(x, scale, shift))


def numpy_layer_norm_gradients(x, scale, shift, weight):
    centred = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    normal = centred * inverse
    ct = 2 * (normal * scale + shift) * weight
    by_normal = ct * scale
    along = (by_normal * normal).mean(-1, keepdims=True)
    dx = inverse * (by_normal - by_normal.mean(-1, keepdims=True) - normal * along)
    return dx, (ct * normal).sum(0), ct.sum(0)


def sums(axis):
    return {
        "jax": lambda jax, x: jax.numpy.sum(x, axis),
        "torch": lambda torch, x: torch.sum(x) if axis is None else torch.sum(x, axis),
        "tinygrad": lambda tg, x: x.sum(axis),
        "numpy": lambda x: np.sum(x, axis),
    }


def uniform(*shape):
    return lambda: (np.random.default_rng(0).random(shape, np.float32),)


ROWS = [
    Row("sum of 64M", uniform(64 * MILLION), sums(None), "1.0x", reference=np.sum),
    Row(
        "sum of 8192x8192, axis 0",
        uniform(8192, 8192),
        sums(0),
        "0.7x",
        reference=lambda x: np.sum(x, 0),
    ),
    Row(
        "sum of 8192x8192, axis 1",
        uniform(8192, 8192),
        sums(1),
        "1.0x",
        reference=lambda x: np.sum(x, 1),
    ),
    Row(
        "softmax 4096x4096",
        lambda: normals((4096, 4096)),
        {
            "jax": lambda jax, x: jax.nn.softmax(x),
            "torch": lambda torch, x: torch.softmax(x, -1),
            "tinygrad": lambda tg, x: x.softmax(-1),
            "numpy": numpy_softmax,
        },
        "0.6x",
        reference=numpy_softmax,
    ),
    Row(
        "logsumexp 4096x4096",
        lambda: normals((4096, 4096)),
        {
            "jax": lambda jax, x: jax.nn.logsumexp(x, -1),
            "torch": lambda torch, x: torch.logsumexp(x, -1),
            "tinygrad": lambda tg, x: x.logsumexp(-1),
            "numpy": numpy_logsumexp,
        },
        "0.95x",
        reference=numpy_logsumexp,
    ),
    Row(
        "argmax 4096x4096",
        lambda: normals((4096, 4096)),
        {
            "jax": lambda jax, x: jax.numpy.argmax(x, -1),
            "torch": lambda torch, x: torch.argmax(x, -1),
            "tinygrad": lambda tg, x: x.argmax(-1),
            "numpy": lambda x: np.argmax(x, -1),
        },
        "0.95x",
        reference=lambda x: np.argmax(x, -1),
        tolerance=0.0,
    ),
    Row(
        "layer norm 8192x1024",
        lambda: normals((8192, 1024), (1024,), (1024,)),
        {
            "jax": jax_layer_norm,
            "torch": torch_layer_norm,
            "tinygrad": tinygrad_layer_norm,
            "numpy": numpy_layer_norm,
        },
        "0.8x",
        reference=numpy_layer_norm,
    ),
    Row(
        "layer norm 8192x1024 with backward",
        lambda: normals((8192, 1024), (1024,), (1024,), (8192, 1024)),
        {
            "jax": jax_layer_norm_gradients,
            "torch": torch_layer_norm_gradients,
            "tinygrad": tinygrad_layer_norm_gradients,
            "numpy": numpy_layer_norm_gradients,
        },
        "0.6x",
        reference=numpy_layer_norm_gradients,
        tolerance=1e-3,
    ),
]
