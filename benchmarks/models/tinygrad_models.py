"""The models in tinygrad, jitted, with its Adam."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.models import data
from benchmarks.peers import leaves


def mlp_loss(params, x, y):
    for layer in params[:-1]:
        x = (x @ layer["w"] + layer["b"]).relu()
    return (x @ params[-1]["w"] + params[-1]["b"]).sparse_categorical_crossentropy(y)


def layer_norm(p, x):
    return x.layernorm(eps=1e-5) * p["scale"] + p["shift"]


def attention(p, x):
    batch, steps, d = x.shape
    qkv = (x @ p["qkv"]).reshape(batch, steps, 3, data.GPT_HEADS, d // data.GPT_HEADS)
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    out = q.scaled_dot_product_attention(k, v, is_causal=True)
    return out.transpose(1, 2).reshape(batch, steps, d) @ p["project"]


def gpt_loss(params, tokens):
    x = params["tokens"][tokens[:, :-1]] + params["positions"]
    for p in params["blocks"]:
        x = x + attention(p, layer_norm(p["norm1"], x))
        x = x + (layer_norm(p["norm2"], x) @ p["expand"]).gelu() @ p["contract"]
    logits = layer_norm(params["norm"], x) @ params["readout"]
    return logits.flatten(0, 1).sparse_categorical_crossentropy(tokens[:, 1:].flatten())


def cnn_loss(params, x, y):
    for name in ("conv1", "conv2"):
        x = x.conv2d(params[name], padding=1).relu().max_pool2d(2)
    return (x.permute(0, 2, 3, 1).flatten(1) @ params["dense"]).sparse_categorical_crossentropy(y)


def trained(loss_fn, peer, params, *batch):
    tinygrad = peer.module
    weights = [leaf.is_param_() for leaf in leaves(params)]
    optimiser = tinygrad.nn.optim.Adam(weights, lr=data.LEARNING_RATE)

    @tinygrad.TinyJit
    def train():
        optimiser.zero_grad()
        loss = loss_fn(params, *batch).backward()
        return loss.realize(*optimiser.schedule_step())

    def step():
        with tinygrad.helpers.Context(TRAINING=1):
            return train()

    return step


mlp = partial(trained, mlp_loss)
gpt = partial(trained, gpt_loss)


def cnn(peer, params, x, y):
    kernels = {
        name: params[name].permute(3, 2, 0, 1).contiguous().realize() for name in ("conv1", "conv2")
    }
    x = x.permute(0, 3, 1, 2).contiguous().realize()
    return trained(cnn_loss, peer, {**params, **kernels}, x, y)


def compile_seconds(peer, model: str, **sizes: int) -> float:
    """Seconds of the first two steps (build, capture) less those of two later ones."""
    step = globals()[model](peer, *peer.arrays(getattr(data, model)(**sizes)))
    times = []
    for _ in range(4):
        start = time.perf_counter()
        peer.wait(step())
        times.append(time.perf_counter() - start)
    return times[0] + times[1] - times[2] - times[3]
