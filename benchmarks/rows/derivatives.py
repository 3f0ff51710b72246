"""Matrices of derivatives and derivatives per example."""

from __future__ import annotations

import numpy as np

from benchmarks.row import Row, normals


def rosenbrock(x):
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2).sum()


def rosenbrock_hessian(x):
    n = len(x)
    hessian = np.zeros((n, n))
    i = np.arange(n - 1)
    hessian[i, i] += 1200 * x[:-1] ** 2 - 400 * x[1:] + 2
    hessian[i + 1, i + 1] += 200
    hessian[i, i + 1] = hessian[i + 1, i] = -400 * x[:-1]
    return hessian


def layer_jacobian(w, x):
    return (1 - np.tanh(w @ x) ** 2)[:, None] * w


def jacobian_row(name: str, transform: str) -> Row:
    def jax_program(jax, w, x):
        return getattr(jax, transform)(lambda x: jax.numpy.tanh(w @ x))(x)

    def torch_program(torch, w, x):
        return getattr(torch.func, transform)(lambda x: torch.tanh(w @ x))(x)

    return Row(
        name,
        lambda: (normals((100, 100))[0] / 10, normals((100,))[0]),
        {"jax": jax_program, "torch": torch_program, "numpy": layer_jacobian},
        "0.9x",
        reference=layer_jacobian,
        calls=10,
    )


# ---- gradients of an MLP's loss for each of 256 examples -----------------------------------------


def mlp_and_examples():
    w1, w2, x = normals((784, 128), (128, 10), (256, 784))
    return w1 / 28, w2 / 11, x, np.random.default_rng(1).integers(0, 10, 256).astype(np.int32)


def jax_per_example(jax, w1, w2, x, y):
    def loss(params, x, y):
        w1, w2 = params
        return -jax.nn.log_softmax(jax.numpy.tanh(x @ w1) @ w2)[y]

    return jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))((w1, w2), x, y)


def torch_per_example(torch, w1, w2, x, y):
    def loss(params, x, one_hot):
        w1, w2 = params
        return -(torch.log_softmax(torch.tanh(x @ w1) @ w2, -1) * one_hot).sum()

    per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    return per_example((w1, w2), x, torch.nn.functional.one_hot(y.long(), 10))


def numpy_per_example(w1, w2, x, y):
    h = np.tanh(x @ w1)
    logits = h @ w2
    e = np.exp(logits - logits.max(-1, keepdims=True))
    ct = e / e.sum(-1, keepdims=True)
    ct[np.arange(len(y)), y] -= 1
    by_h = (ct @ w2.T) * (1 - h * h)
    return x[:, :, None] * by_h[:, None, :], h[:, :, None] * ct[:, None, :]


ROWS = [
    Row(
        "Hessian, 100 dimensions",
        lambda: normals((100,)),
        {
            "jax": lambda jax, x: jax.hessian(rosenbrock)(x),
            "torch": lambda torch, x: torch.func.hessian(rosenbrock)(x),
            "numpy": rosenbrock_hessian,
        },
        "0.9x",
        reference=rosenbrock_hessian,
        calls=10,
    ),
    jacobian_row("jacfwd 100 to 100", "jacfwd"),
    jacobian_row("jacrev 100 to 100", "jacrev"),
    Row(
        "per-example gradients, MLP, batch 256",
        mlp_and_examples,
        {"jax": jax_per_example, "torch": torch_per_example, "numpy": numpy_per_example},
        "0.9x",
        reference=numpy_per_example,
    ),
]
