"""The models in torch, eager or compiled; its fused attention, LSTM and Adam are used."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.models import data
from benchmarks.peers import leaves


def mlp_loss(torch, params, x, y):
    for layer in params[:-1]:
        x = torch.relu(x @ layer["w"] + layer["b"])
    return torch.nn.functional.cross_entropy(x @ params[-1]["w"] + params[-1]["b"], y)


def layer_norm(torch, p, x):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], p["scale"], p["shift"], 1e-5)


def attention(torch, p, x):
    batch, steps, d = x.shape
    qkv = (x @ p["qkv"]).view(batch, steps, 3, data.GPT_HEADS, d // data.GPT_HEADS)
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).reshape(batch, steps, d) @ p["project"]


def gpt_loss(torch, params, tokens):
    functional = torch.nn.functional
    x = functional.embedding(tokens[:, :-1], params["tokens"]) + params["positions"]
    for p in params["blocks"]:
        x = x + attention(torch, p, layer_norm(torch, p["norm1"], x))
        hidden = layer_norm(torch, p["norm2"], x) @ p["expand"]
        x = x + functional.gelu(hidden, approximate="tanh") @ p["contract"]
    logits = layer_norm(torch, params["norm"], x) @ params["readout"]
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten().long())


def cnn_loss(torch, params, x, y):
    """`x` NCHW, kernels OIHW; the dense layer's rows are ordered height, width, channel."""
    for name in ("conv1", "conv2"):
        x = torch.relu(torch.nn.functional.conv2d(x, params[name], padding=1))
        x = torch.nn.functional.max_pool2d(x, 2)
    return torch.nn.functional.cross_entropy(x.permute(0, 2, 3, 1).flatten(1) @ params["dense"], y)


def with_gradients(params):
    for leaf in leaves(params):
        leaf.requires_grad_()
    return params


def trained(loss_fn, peer, params, *batch):
    torch = peer.module
    params = with_gradients(params)
    optimiser = torch.optim.Adam(list(leaves(params)), data.LEARNING_RATE, fused=True)
    loss_of = peer.jit(partial(loss_fn, torch))

    def step():
        optimiser.zero_grad(set_to_none=True)
        loss = loss_of(params, *batch)
        loss.backward()
        optimiser.step()
        return loss.detach()

    return step


def mlp(peer, params, x, y):
    return trained(mlp_loss, peer, params, x, y.long())


gpt = partial(trained, gpt_loss)


def cnn(peer, params, x, y):
    kernels = {name: params[name].permute(3, 2, 0, 1).contiguous() for name in ("conv1", "conv2")}
    return trained(cnn_loss, peer, {**params, **kernels}, x.permute(0, 3, 1, 2), y.long())


def lstm(peer, params, xs):
    torch = peer.module
    layer = torch.nn.LSTM(data.LSTM_HIDDEN, data.LSTM_HIDDEN, bias=False)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(params["input"].T)
        layer.weight_hh_l0.copy_(params["hidden"].T)
    loss_of = peer.jit(lambda xs: (layer(xs)[1][0] ** 2).mean())

    def step():
        loss = loss_of(xs)
        by_input, by_hidden = torch.autograd.grad(loss, (layer.weight_ih_l0, layer.weight_hh_l0))
        return loss, {"input": by_input.T, "hidden": by_hidden.T}

    return step


def compile_seconds(peer, model: str, **sizes: int) -> float:
    """Seconds of the first step less those of a later one; for torch.compile."""
    tree = getattr(data, model)(**sizes)
    step = globals()[model](peer, *peer.arrays(tree))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times[0] - times[-1]
