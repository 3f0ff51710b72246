"""What a user waits for before the first result."""

from __future__ import annotations

from benchmarks.row import ProcessRow


def timed_import(name: str) -> str:
    return f"import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"


JAX_FIRST_GRADIENT = """
import numpy as np
import {jax} as jax
import {jax}.numpy as jnp
rng = np.random.default_rng(0)
params = [rng.standard_normal(s, np.float32) for s in ((784, 128), (128,), (128, 10), (10,))]
x, y = rng.standard_normal((32, 784), np.float32), rng.integers(0, 10, 32)
def loss(params, x, y):
    w1, b1, w2, b2 = params
    log_p = jax.nn.log_softmax(jnp.tanh(x @ w1 + b1) @ w2 + b2)
    return -jnp.mean(log_p[jnp.arange(32), y])
print(float(jnp.sum(jax.jit(jax.grad(loss))(params, x, y)[0])))
"""

TORCH_FIRST_GRADIENT = """
import torch
torch.manual_seed(0)
params = [torch.randn(s, requires_grad=True) for s in ((784, 128), (128,), (128, 10), (10,))]
x, y = torch.randn(32, 784), torch.randint(0, 10, (32,))
w1, b1, w2, b2 = params
torch.nn.functional.cross_entropy(torch.tanh(x @ w1 + b1) @ w2 + b2, y).backward()
print(float(w1.grad.sum()))
"""

TINYGRAD_FIRST_GRADIENT = """
from tinygrad import Tensor
shapes = ((784, 128), (128,), (128, 10), (10,))
params = [Tensor.randn(*s).is_param_() for s in shapes]
x, y = Tensor.randn(32, 784), Tensor.randint(32, low=0, high=10)
w1, b1, w2, b2 = params
((x @ w1 + b1).tanh() @ w2 + b2).sparse_categorical_crossentropy(y).backward()
print(float(w1.grad.sum().item()))
"""

ROWS = [
    ProcessRow(
        "import",
        {
            "jax": timed_import("{jax}"),
            "torch": timed_import("torch"),
            "tinygrad": timed_import("tinygrad"),
            "numpy": timed_import("numpy"),
        },
        target="0.4x JAX",
    ),
    ProcessRow(
        "start to first gradient, cold",
        {
            "jax": JAX_FIRST_GRADIENT,
            "torch": TORCH_FIRST_GRADIENT,
            "tinygrad": TINYGRAD_FIRST_GRADIENT,
        },
        target="0.6x JAX",
        wall=True,
    ),
    ProcessRow(
        "start to first gradient, disk cache warm",
        {"tinyjax": JAX_FIRST_GRADIENT},
        target="0.4x JAX cold",
        wall=True,
        warm=True,
    ),
]
