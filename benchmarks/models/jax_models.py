"""The models in tinyjax and JAX: one source. `jax` is the module."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.models import data


def cross_entropy(jax, logits, targets):
    log_p = jax.nn.log_softmax(logits)
    return -jax.numpy.mean(jax.numpy.take_along_axis(log_p, targets[..., None], axis=-1))


def mlp_loss(jax, params, x, y):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return cross_entropy(jax, x @ params[-1]["w"] + params[-1]["b"], y)


def layer_norm(jax, p, x):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["shift"]


def attention(jax, p, x):
    jnp = jax.numpy
    batch, time, d = x.shape
    head = d // data.GPT_HEADS
    qkv = (x @ p["qkv"]).reshape(batch, time, 3, data.GPT_HEADS, head)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    scores = q @ k.transpose(0, 1, 3, 2) * head**-0.5
    causal = jnp.tril(jnp.ones((time, time), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(batch, time, d) @ p["project"]


def gpt_loss(jax, params, tokens):
    x = params["tokens"][tokens[:, :-1]] + params["positions"]
    for p in params["blocks"]:
        x = x + attention(jax, p, layer_norm(jax, p["norm1"], x))
        x = x + jax.nn.gelu(layer_norm(jax, p["norm2"], x) @ p["expand"]) @ p["contract"]
    logits = layer_norm(jax, params["norm"], x) @ params["readout"]
    return cross_entropy(jax, logits, tokens[:, 1:])


def cnn_loss(jax, params, x, y):
    lax = jax.lax
    for name in ("conv1", "conv2"):
        x = lax.conv_general_dilated(
            x, params[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x)
        x = lax.reduce_window(x, -float("inf"), lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return cross_entropy(jax, x.reshape(len(x), -1) @ params["dense"], y)


def lstm_loss(jax, params, xs):
    jnp = jax.numpy

    def cell(state, x):
        h, c = state
        gates = x @ params["input"] + h @ params["hidden"]
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zeros = jnp.zeros((xs.shape[1], data.LSTM_HIDDEN), xs.dtype)
    (h, _), _ = jax.lax.scan(cell, (zeros, zeros), xs)
    return jnp.mean(h**2)


# ---- training ------------------------------------------------------------------------------------


def adam_init(jax, params):
    mean, square = (jax.tree.map(jax.numpy.zeros_like, params) for _ in range(2))
    return {"step": jax.numpy.zeros(()), "mean": mean, "square": square}


def adam_step(jax, loss_fn, params, state, *batch):
    loss, grads = jax.value_and_grad(partial(loss_fn, jax))(params, *batch)
    step = state["step"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, state["square"], grads)
    c1, c2 = 1 / (1 - 0.9**step), 1 / (1 - 0.999**step)
    update = lambda p, m, s: p - data.LEARNING_RATE * c1 * m / (jax.numpy.sqrt(c2 * s) + 1e-8)
    params = jax.tree.map(update, params, mean, square)
    return params, {"step": step, "mean": mean, "square": square}, loss


def trained(loss_fn, peer, params, *batch):
    jax = peer.module
    state = adam_init(jax, params)
    train = jax.jit(partial(adam_step, jax, loss_fn), donate_argnums=(0, 1))

    def step():
        nonlocal params, state
        params, state, loss = train(params, state, *batch)
        return loss

    return step


mlp = partial(trained, mlp_loss)
gpt = partial(trained, gpt_loss)
cnn = partial(trained, cnn_loss)


def lstm(peer, params, xs):
    """Loss and gradients, no update."""
    value_and_grad = peer.jit(peer.module.value_and_grad(partial(lstm_loss, peer.module)))
    return lambda: value_and_grad(params, xs)


LOSSES = {"mlp": mlp_loss, "gpt": gpt_loss, "cnn": cnn_loss}


def compile_seconds(jax, model: str, **sizes: int) -> float:
    """Seconds to trace, lower and compile the training step, arrays being there already."""
    params, *batch = getattr(data, model)(**sizes)
    params = jax.tree.map(jax.numpy.asarray, params)
    batch = [jax.numpy.asarray(x) for x in batch]
    state = adam_init(jax, params)
    jax.block_until_ready((params, batch, state))
    step = partial(adam_step, jax, LOSSES[model])
    start = time.perf_counter()
    jax.jit(step, donate_argnums=(0, 1)).lower(params, state, *batch).compile()
    return time.perf_counter() - start


def trace_seconds(jax, model: str, **sizes: int) -> float:
    """Seconds to build the gradient's program, before any compilation: JAX's trace and lowering to
    StableHLO; of tinyjax the jaxpr (trace, jvp, transpose), which is what its compiler starts from.
    """
    params, *batch = getattr(data, model)(**sizes)
    params = jax.tree.map(jax.numpy.asarray, params)
    batch = [jax.numpy.asarray(x) for x in batch]
    jax.block_until_ready((params, batch))
    gradient = jax.grad(partial(LOSSES[model], jax))
    start = time.perf_counter()
    traced = jax.jit(gradient).trace(params, *batch)
    if jax.__name__ == "jax":
        traced.lower()
    return time.perf_counter() - start
