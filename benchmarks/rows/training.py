"""Training steps of whole models, a long recurrence, and the memory of the largest."""

from __future__ import annotations

from benchmarks.models import data, jax_models, numpy_models, tinygrad_models, torch_models
from benchmarks.row import ProcessRow, Row, normals


def scan_many_steps(jax, xs):
    step = lambda y, x: (0.9 * jax.numpy.tanh(y) + x, y.sum())
    return jax.lax.scan(step, xs[0], xs)


def causal_attention(jax, q, k, v):
    jnp = jax.numpy
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1) @ v


def causal_attention_gradients(jax, q, k, v):
    loss = lambda *qkv: (causal_attention(jax, *qkv) ** 2).sum()
    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def torch_causal_attention(torch, q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def torch_causal_attention_gradients(torch, q, k, v):
    arguments = [a.detach().requires_grad_() for a in (q, k, v)]
    loss = (torch_causal_attention(torch, *arguments) ** 2).sum()
    return torch.autograd.grad(loss, arguments)


LONG = (1, 4, 2048, 64)


def model_row(name: str, model: str, target: str, **more) -> Row:
    modules = {
        "jax": jax_models,
        "torch": torch_models,
        "tinygrad": tinygrad_models,
        "numpy": numpy_models,
    }
    programs = {f: getattr(m, model) for f, m in modules.items() if hasattr(m, model)}
    return Row(
        name,
        getattr(data, model),
        programs,
        target,
        stateful=True,
        **{"tolerance": 1e-3, "checked_steps": 3, **more},
    )


PEAK_MEMORY = """
import resource
from benchmarks.models import data, {family}_models
from benchmarks.peers import make_peer
peer = make_peer("{peer}")
step = {family}_models.gpt(peer, *peer.arrays(data.gpt()))
for _ in range(4):
    peer.wait(step())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


ROWS = [
    Row(
        "causal attention, 4 heads x 2048",
        lambda: normals(LONG, LONG, LONG),
        {"jax": causal_attention, "torch": torch_causal_attention},
        "1.0x",
        tolerance=1e-3,
    ),
    Row(
        "causal attention, 4 heads x 2048, with backward",
        lambda: normals(LONG, LONG, LONG),
        {"jax": causal_attention_gradients, "torch": torch_causal_attention_gradients},
        "1.0x",
        tolerance=1e-3,
    ),
    model_row("MLP train step", "mlp", "0.8x"),
    model_row("GPT train step", "gpt", "0.75x"),
    model_row("small CNN train step", "cnn", "0.9x"),
    model_row("LSTM 128 steps with backward", "lstm", "0.9x", checked_steps=1),
    Row(
        "scan of 20,000 tiny steps, per step",
        lambda: normals((20_000, 4)),
        {"jax": scan_many_steps},
        "1.0x",
        per_call=20_000,
        tolerance=1e-3,
    ),
    ProcessRow(
        "peak memory, GPT train step",
        dict.fromkeys(("jax", "torch", "tinygrad"), PEAK_MEMORY),
        "1.0x",
        unit="MB",
    ),
]
