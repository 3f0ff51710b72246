"""Networks: layers, losses and attention of several kinds."""

from __future__ import annotations

import numpy as np

from tests.programs.registry import normals, program, tree_of


@program(tree_of(w1=normals(3, 4), b1=normals(4), w2=normals(4, 2), inputs=normals(2, 3)))
def mlp(jax):
    def f(p, _):
        return jax.numpy.tanh(p["inputs"] @ p["w1"] + p["b1"]) @ p["w2"]

    return f


@program(tree_of(image=normals(1, 5, 5, 1), kernel=normals(3, 3, 1, 2), dense=normals(8, 2)))
def convolutional_network(jax):
    lax = jax.lax

    def f(p, _):
        layout = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(
            p["image"], p["kernel"], (1, 1), "SAME", dimension_numbers=layout
        )
        y = jax.nn.gelu(y, approximate=False)
        y = lax.reduce_window(y, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        return y.reshape(1, 8) @ p["dense"]

    return f


@program(tree_of(x=normals(4, 3), q=normals(3, 3), k=normals(3, 3), v=normals(3, 2)))
def causal_attention(jax):
    jnp = jax.numpy

    def f(p, _):
        x = p["x"]
        scores = (x @ p["q"]) @ (x @ p["k"]).T / np.sqrt(3.0)
        mask = jnp.tril(jnp.ones((4, 4), bool))
        return jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1) @ (x @ p["v"])

    return f


@program(tree_of(x=normals(2, 5), scale=normals(5), shift=normals(5)))
def layer_norm(jax):
    jnp = jax.numpy

    def f(p, _):
        x = p["x"]
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        return p["scale"] * centred * jax.lax.rsqrt(variance + 1e-5) + p["shift"]

    return f


@program(
    tree_of(table=normals(6, 3), readout=normals(3, 6)),
    lambda rng: {"tokens": rng.integers(0, 6, 4), "targets": rng.integers(0, 6, 4)},
)
def embedding_and_cross_entropy(jax):
    jnp = jax.numpy

    def f(p, tokens):
        logits = p["table"][tokens["tokens"]] @ p["readout"]
        log_p = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(log_p, tokens["targets"][:, None], axis=-1))

    return f


@program(tree_of(signal=normals(1, 10, 2), kernel=normals(3, 2, 2), bias=normals(2)))
def dilated_convolution_and_max_pool(jax):
    lax = jax.lax

    def f(p, _):
        layout = ("NWC", "WIO", "NWC")
        y = lax.conv_general_dilated(
            p["signal"], p["kernel"], (1,), "VALID", rhs_dilation=(2,), dimension_numbers=layout
        )
        y = jax.nn.silu(y + p["bias"])
        return jax.numpy.max(y.reshape(1, 3, 2, 2), axis=2)

    return f


@program(tree_of(image=normals(1, 2, 4, 4), depthwise=normals(2, 1, 2, 2), up=normals(2, 2, 1, 1)))
def grouped_and_transposed_convolution(jax):
    """A depthwise convolution with strides, and the way back up."""
    lax = jax.lax

    def f(p, _):
        layout = ("NCHW", "OIHW", "NCHW")
        y = lax.conv_general_dilated(
            p["image"],
            p["depthwise"],
            (2, 2),
            "VALID",
            dimension_numbers=layout,
            feature_group_count=2,
        )
        return lax.conv_transpose(
            jax.numpy.tanh(y), p["up"], (2, 2), "SAME", dimension_numbers=layout
        )

    return f


@program(
    tree_of(x=normals(2, 3, 4), qkv=normals(3, 4, 2, 2), out=normals(2, 2, 4)),
    lambda rng: np.array([3, 2]),
)
def multi_head_attention_over_padded_sequences(jax):
    jnp = jax.numpy

    def f(p, lengths):
        q, k, v = jnp.einsum("btd,sdhe->sbhte", p["x"], p["qkv"])
        scores = jnp.einsum("bhte,bhse->bhts", q, k) * 0.7
        valid = jnp.arange(3) < lengths[:, None]
        scores = jnp.where(valid[:, None, None, :], scores, -1e30)
        heads = jnp.einsum("bhts,bhse->bthe", jax.nn.softmax(scores), v)
        return jnp.einsum("bthe,hed->btd", heads, p["out"])

    return f


@program(tree_of(x=normals(4, 3), scale=normals(3), mean=normals(3)))
def batch_norm_with_running_statistics(jax):
    jnp = jax.numpy

    def f(p, _):
        mean, variance = jnp.mean(p["x"], axis=0), jnp.var(p["x"], axis=0)
        y = p["scale"] * (p["x"] - mean) / jnp.sqrt(variance + 1e-3)
        state = {"mean": 0.9 * p["mean"] + 0.1 * jax.lax.stop_gradient(mean), "steps": jnp.int64(1)}
        return jax.nn.softplus(y), state

    return f


@program(tree_of(x=normals(3, 2), gate=normals(2, 4), experts=normals(4, 2, 2)))
def mixture_of_experts_with_top_k_gating(jax):
    def f(p, _):
        weights, chosen = jax.lax.top_k(jax.nn.softmax(p["x"] @ p["gate"]), 2)
        weights = weights / jax.numpy.sum(weights, axis=-1, keepdims=True)
        outputs = jax.numpy.einsum("bi,bkij->bkj", p["x"], p["experts"][chosen])
        return jax.numpy.einsum("bk,bkj->bj", weights, jax.nn.elu(outputs))

    return f


@program(
    tree_of(x=normals(2, 3), encode=normals(3, 4), decode=normals(2, 3)), lambda rng: np.int64(3)
)
def variational_autoencoder(jax):
    jnp = jax.numpy

    def f(p, seed):
        mean, log_std = jnp.split(p["x"] @ p["encode"], 2, axis=-1)
        noise = jax.random.normal(jax.random.key(seed), mean.shape, mean.dtype)
        z = mean + noise * jnp.exp(0.3 * log_std)
        divergence = 0.5 * jnp.sum(mean**2 + jnp.exp(0.6 * log_std) - 0.6 * log_std - 1.0)
        logits = z @ p["decode"]
        targets = jax.nn.sigmoid(p["x"])
        return divergence - jnp.sum(
            targets * jax.nn.log_sigmoid(logits) + (1 - targets) * jax.nn.log_sigmoid(-logits)
        )

    return f
