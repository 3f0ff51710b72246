"""The MLP in NumPy, its backward pass by hand."""

from __future__ import annotations

import numpy as np

from benchmarks.models import data


def mlp(peer, params, x, y):
    params = [{k: p.copy() for k, p in layer.items()} for layer in params]
    leaves = [layer[name] for layer in params for name in ("w", "b")]
    means = [np.zeros_like(p) for p in leaves]
    squares = [np.zeros_like(p) for p in leaves]
    count = 0

    def loss_and_gradients():
        inputs = [x]
        for layer in params[:-1]:
            inputs.append(np.maximum(inputs[-1] @ layer["w"] + layer["b"], 0))
        logits = inputs[-1] @ params[-1]["w"] + params[-1]["b"]
        shifted = logits - logits.max(-1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        rows = np.arange(len(y))
        ct = np.exp(log_p)
        ct[rows, y] -= 1
        ct /= len(y)
        gradients = []
        for layer, a in zip(params[::-1], inputs[::-1], strict=True):
            gradients += [ct.sum(0), a.T @ ct]
            ct = (ct @ layer["w"].T) * (a > 0)
        return -log_p[rows, y].mean(), gradients[::-1]

    def step():
        nonlocal count
        count += 1
        loss, gradients = loss_and_gradients()
        c1, c2 = 1 / (1 - 0.9**count), 1 / (1 - 0.999**count)
        for p, g, m, s in zip(leaves, gradients, means, squares, strict=True):
            m += np.float32(0.1) * (g - m)
            s += np.float32(0.001) * (g * g - s)
            p -= np.float32(data.LEARNING_RATE * c1) * m / (np.sqrt(np.float32(c2) * s) + 1e-8)
        return loss

    return step
