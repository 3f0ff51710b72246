"""Tracing with symbolic sizes: one trace, with its dimensions bound, is the function at these sizes.

Every program is traced once with `Dim`s in its shapes. Bound at several sizes (`bind_sizes`) and
evaluated, it must give what the same function gives when it is called with arrays of that size: in
shape, dtype and value. Some are compared with jax as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import tinyjax
from tests.golden import assert_jaxpr, f32
from tinyjax.core.bind_sizes import bind_sizes
from tinyjax.core.dims import Dim, DimExpr, evaluate
from tinyjax.core.infos import Backward
from tinyjax.core.ops import Op
from tinyjax.core.uop import nodes_created, toposort
from tinyjax.core.verify import verify
from tinyjax.interpreters.evaluate import evaluate_body

n, m, k, p = Dim("n", 1, 64), Dim("m", 1, 32), Dim("k", 2, 33), Dim("p", 3, 64)
e = Dim("e", 8, 64, multiple_of=8)
SIZES = [
    {n: 1, m: 1, k: 2, p: 3, e: 8},
    {n: 2, m: 3, k: 3, p: 4, e: 16},
    {n: 7, m: 5, k: 8, p: 9, e: 24},
]
D = 4

Row = tuple[Callable[..., Any], tuple[Any, ...], float]


def programs(J: Any) -> dict[str, Row]:
    """The programs, in terms of a library. Shapes may end with a dtype; `key` is a random key."""
    jnp, lax, nn, random = J.numpy, J.lax, J.nn, J.random
    f32, X, key = "float32", (n, D), ("key",)
    table: dict[str, Row] = {}

    def row(name: str, f: Callable[..., Any], *shapes: Any, tol: float = 2e-5) -> None:
        assert name not in table
        table[name] = f, shapes, tol

    row("add_1d", lambda x, y: x + y, X, (1, D))
    row("add_d", lambda x, y: x * y, X, (D,))
    row("scalar", lambda x: jnp.sin(x) * 2.0 + 1, X)
    row("outer", lambda x, y: x[:, None] - y[None, :], (n,), (m,))
    row("mean", lambda x: x.mean(0), X)
    row("mean_all", lambda x: jnp.mean(x), X)
    row("var", lambda x: jnp.var(x, axis=0), X)
    row("std", lambda x: jnp.std(x, axis=-1, keepdims=True), X)
    row("var_ddof", lambda x: jnp.var(x, axis=1, ddof=1), X)
    row("softmax", lambda x: nn.softmax(x, axis=0), X)
    row("softmax1", lambda x: nn.softmax(x), X)
    row("logsumexp", lambda x: nn.logsumexp(x, axis=0), X)
    row("log_softmax", lambda x: nn.log_softmax(x), X)
    row("norm", lambda x: jnp.linalg.norm(x), X)
    row("norm_axis", lambda x: jnp.linalg.norm(x, axis=0), X)
    row("matmul", lambda x, w: x @ w, X, (D, 3))
    row("matmul_c", lambda x, y: x.T @ y, X, (n, 3))
    row("gram", lambda x: x @ x.T, X)
    row("batched", lambda x, y: x @ y, (n, 3, D), (n, D, 2))
    row("batched_bcast", lambda x, y: x @ y, (n, 3, D), (D, 2))
    row("einsum", lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), (m, n, 2, 3), (m, n, 2, 3))
    row("einsum2", lambda q, k: jnp.einsum("ij,jk->ik", q, k), (n, m), (m, n))
    row("einsum3", lambda a, b, c: jnp.einsum("ij,jk,kl->il", a, b, c), (n, m), (m, 3), (3, n))
    row(
        "dot_general",
        lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((0,), (0,)))),
        (n, m, 3),
        (n, m, 4),
    )
    row("tensordot", lambda x, y: jnp.tensordot(x, y, axes=1), (n, m), (m, n))
    row("vdot", lambda x, y: jnp.vdot(x, y), (n,), (n,))
    row("outer_fn", lambda x, y: jnp.outer(x, y), (n,), (m,))
    row("arange", lambda x: jnp.arange(x.shape[0]), X)
    row("arange2", lambda x: jnp.arange(1, x.shape[0] + 1), X)
    row("arange_step", lambda x: jnp.arange(0, 2 * x.shape[0], 2), X)
    row("arange_f", lambda x: x + jnp.arange(x.shape[0], dtype=f32)[:, None], X)
    row("arange_rev", lambda x: jnp.arange(x.shape[0] - 1, -1, -1), X)
    row("zeros", lambda x: jnp.zeros((x.shape[0], 3)), X)
    row("zeros1", lambda x: jnp.zeros(x.shape[0]), X)
    row("ones", lambda x: jnp.ones(x.shape), X)
    row("full", lambda x: jnp.full((x.shape[0], 2), 7.0), X)
    row("zeros_like", lambda x: jnp.zeros_like(x) + jnp.ones_like(x), X)
    row("full_like", lambda x: jnp.full_like(x, 3), X)
    row("eye", lambda x: jnp.eye(x.shape[0]), X)
    row("eye2", lambda x: jnp.eye(x.shape[0], 3, k=1), X)
    row("identity", lambda x: jnp.identity(x.shape[0]), X)
    row("tril", lambda x: jnp.tril(x @ x.T), X)
    row("triu", lambda x: jnp.triu(jnp.ones((x.shape[0], x.shape[0])), k=1), X)
    row("tri", lambda x: jnp.tri(x.shape[0]), X)
    row("linspace", lambda x: jnp.linspace(0.0, 1.0, x.shape[0]), X)
    row("linspace_ne", lambda x: jnp.linspace(0.0, 1.0, x.shape[0], endpoint=False), X)
    row("diag", lambda x: jnp.diag(x), (n,))
    row("diag2", lambda x: jnp.diag(x), (n, n))
    row("diagonal", lambda x: jnp.diagonal(x), (n, n))
    row("trace", lambda x: jnp.trace(x), (n, n))
    row("meshgrid", lambda x, y: jnp.meshgrid(x, y), (n,), (m,))
    row("slice1", lambda x: x[1:], X)
    row("slice_1", lambda x: x[:-1], X)
    row("slice22", lambda x: x[::2], X)
    row("slicerev", lambda x: x[::-1], X)
    row("slicehalf", lambda x: x[x.shape[0] // 2 :], X)
    row("slicehalf2", lambda x: x[: x.shape[0] // 2], X)
    row("slice_m3", lambda x: x[-3:], X)
    row("slice_12", lambda x: x[1::2], X)
    row("slice_r2", lambda x: x[::-2], X)
    row("slice_to5", lambda x: x[:5], X)
    row("slice_mid", lambda x: x[1:-1], X)
    row("slice_n", lambda x: x[: x.shape[0]], X)
    row("diff", lambda x: x[1:] - x[:-1], X)
    row("jnp_diff", lambda x: jnp.diff(x, axis=0), X)
    row("idx0", lambda x: x[0], X)
    row("idx_1", lambda x: x[-1], X)
    row("idx_col", lambda x: x[:, 2], X)
    row("idx_none", lambda x: x[:, None, :], X)
    row("idx_ell", lambda x: x[..., 0], X)
    row("idx_arr", lambda x, i: x[i], X, (3, "int32"))
    row("idx_arr2", lambda x, i: x[i], X, (n, "int32"))
    row("idx_pair", lambda x, i: x[jnp.arange(x.shape[0]), i], X, (n, "int32"))
    row("idx_n_1", lambda x: x[x.shape[0] - 1], X)
    row("idx_dyn", lambda x, i: x[i], X, ("int32",))
    row("idx_mask_where", lambda x: jnp.where(x > 0, x, 0), X)
    row("at_set", lambda x: x.at[0].set(1.0), X)
    row("at_add", lambda x, i: x.at[i].add(1.0), X, (3, "int32"))
    row("at_slice", lambda x: x.at[1:].set(0.0), X)
    row("at_slice_m1", lambda x: x.at[:-1].add(x[1:]), X)
    row("at_pair", lambda x, i: x.at[jnp.arange(x.shape[0]), i].add(1.0), X, (n, "int32"))
    row("at_last", lambda x: x.at[-1].mul(2.0), X)
    row("at_col", lambda x: x.at[:, 1].set(0.0), X)
    row("take_along", lambda x, i: jnp.take_along_axis(x, i[:, None], axis=1), X, (n, "int32"))
    row("take", lambda x, i: jnp.take(x, i, axis=0), X, (3, "int32"))
    row("dynslice", lambda x, i: lax.dynamic_slice(x, (i, 0), (1, D)), X, ("int32",))
    row("dynslice_n", lambda x, i: lax.dynamic_slice(x, (0, i), (x.shape[0], 2)), X, ("int32",))
    row("dynslice_in_dim", lambda x, i: lax.dynamic_slice_in_dim(x, i, 1, axis=0), X, ("int32",))
    row(
        "dynindex",
        lambda x, i: lax.dynamic_index_in_dim(x, i, axis=0, keepdims=False),
        X,
        ("int32",),
    )
    row(
        "dynupdate",
        lambda x, i: lax.dynamic_update_slice(x, jnp.ones((1, D)), (i, 0)),
        X,
        ("int32",),
    )
    row(
        "dynupdate2",
        lambda x, i: lax.dynamic_update_index_in_dim(x, jnp.ones((D,)), i, 0),
        X,
        ("int32",),
    )
    row("lax_slice_in_dim", lambda x: lax.slice_in_dim(x, 0, -1, axis=0), X)
    row("concat", lambda x, y: jnp.concatenate([x, y, x]), X, (m, D))
    row("concat1", lambda x, y: jnp.concatenate([x, jnp.zeros((1, D))]), X, X)
    row("stack", lambda x: jnp.stack([x, x * 2], axis=1), X)
    row("hstack", lambda x: jnp.hstack([x, x]), X)
    row("vstack", lambda x, y: jnp.vstack([x, y]), (n,), (n,))
    row("append", lambda x: jnp.append(x, jnp.zeros(3)), (n,))
    row("pad", lambda x: jnp.pad(x, ((1, 2), (0, 0))), X)
    row("pad_to", lambda x: jnp.pad(x, ((0, 64 - x.shape[0]), (0, 0))), X)
    row("pad_edge", lambda x: jnp.pad(x, ((1, 2), (0, 0)), mode="edge"), X)
    row("lax_pad", lambda x: lax.pad(x, 0.0, ((1, -1, 0), (0, 0, 1))), X)
    row("roll", lambda x: jnp.roll(x, 1, axis=0), X)
    row("roll_m", lambda x: jnp.roll(x, -2, axis=0), X)
    row("roll_flat", lambda x: jnp.roll(x, 1), X)
    row("flip", lambda x: jnp.flip(x, 0), X)
    row("tile", lambda x: jnp.tile(x, (2, 1)), X)
    row("tile_n", lambda x, y: jnp.tile(y, (x.shape[0], 1)), X, (D,))
    row("repeat", lambda x: jnp.repeat(x, 3, axis=0), X)
    row("repeat_n", lambda x, y: jnp.repeat(y, x.shape[0], axis=0), X, (D,))
    row("split", lambda x: jnp.split(x, 2, axis=1), X)
    row("split_e", lambda x: jnp.split(x, 4, axis=0), (e,))
    row("split_n_idx", lambda x: jnp.split(x, [1], axis=0), X)
    row("reshape_m1", lambda x: x.reshape(-1), X)
    row("ravel", lambda x: x.ravel(), (n, m))
    row("reshape_bn", lambda x: x.reshape(x.shape[0] * x.shape[1], D), (m, n, D))
    row("reshape_back", lambda x: x.reshape(-1, D).reshape(x.shape), (m, n, D))
    row("reshape_h", lambda x: x.reshape(x.shape[0], 2, -1), X)
    row("reshape_h2", lambda x: x.reshape(x.shape[0], 2, x.shape[1] // 2), X)
    row("reshape_e", lambda x: x.reshape(x.shape[0] // 8, 8), (e,))
    row("reshape_e_m1", lambda x: x.reshape(-1, 8).sum(-1), (e,))
    row("reshape_e_2", lambda x: x.reshape(8, -1), (e,))
    row("lax_collapse", lambda x: lax.collapse(x, 0, 2), (m, n, D))
    row("transpose", lambda x: x.transpose(1, 0, 2), (m, n, D))
    row("swapaxes", lambda x: jnp.swapaxes(x, 0, 1), (m, n, D))
    row("moveaxis", lambda x: jnp.moveaxis(x, 0, -1), (m, n, D))
    row("expand_dims", lambda x: jnp.expand_dims(x, 0), X)
    row("squeeze_ax", lambda x: jnp.squeeze(x[None], 0), X)
    row("where", lambda x, y: jnp.where(x > 0, x, y), X, (D,))
    row("where_s", lambda x: jnp.where(x > 0, x, 0.0), X)
    row("select", lambda x: lax.select(x > 0, x, x * 2), X)
    row("clip", lambda x: jnp.clip(x, -1, 1), X)
    row("lax_clamp", lambda x: lax.clamp(-1.0, x, 1.0), X)
    row("maximum", lambda x: jnp.maximum(x, 0), X)
    row("cumsum", lambda x: jnp.cumsum(x, axis=0), X)
    row("cumsum_flat", lambda x: jnp.cumsum(x), X)
    row("cumprod", lambda x: jnp.cumprod(x, axis=0), X)
    row("cummax", lambda x: lax.cummax(x, axis=0, reverse=True), X)
    row("argmax", lambda x: jnp.argmax(x, axis=0), X)
    row("argmax_f", lambda x: jnp.argmax(x), X)
    row("argmin", lambda x: jnp.argmin(x, axis=-1), X)
    row("sort", lambda x: jnp.sort(x, axis=0), X)
    row("argsort", lambda x: jnp.argsort(x, axis=0), X)
    row("topk", lambda x: lax.top_k(x, 2), X)
    row("sort_pair", lambda x, y: lax.sort((x, y), num_keys=1), (n,), (n,))
    row("median", lambda x: jnp.median(x, axis=1), X)
    row("median_n", lambda x: jnp.median(x, axis=0), X)
    row("quantile_n", lambda x: jnp.quantile(x, 0.3, axis=0), X)
    row("one_hot", lambda i: nn.one_hot(i, 5), (n, "int32"))
    row("one_hot_n", lambda i, x: nn.one_hot(i, x.shape[0]), (3, "int32"), X)
    row("any_all", lambda x: (jnp.any(x > 0, axis=0), jnp.all(x > 0)), X)
    row("prod", lambda x: jnp.prod(x, axis=0), X)
    row("minmax", lambda x: (x.min(0), x.max()), X)
    row("ptp", lambda x: jnp.ptp(x, axis=0), X)
    row("average", lambda x: jnp.average(x, axis=0), X)
    row("avg_w", lambda x, w: jnp.average(x, axis=0, weights=w), X, (n,))
    row("cov", lambda x: jnp.cov(x.T), (n, 3))
    row("nanmean", lambda x: jnp.nanmean(x, axis=0), X)
    row("count_nonzero", lambda x: jnp.count_nonzero(x > 0), X)

    def layer_norm(x):
        mu = x.mean(-1, keepdims=True)
        v = x.var(-1, keepdims=True)
        return (x - mu) * lax.rsqrt(v + 1e-5)

    row("gelu", lambda x: nn.gelu(x), X)
    row("relu6", lambda x: nn.relu6(x) + nn.silu(x) + nn.softplus(x), X)
    row("layernorm", layer_norm, X)
    row("layernorm0", lambda x: layer_norm(x.T).T, X)
    row("rmsnorm", lambda x: x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6), X)
    row(
        "attention",
        lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True),
        (2, n, 2, 4),
        (2, n, 2, 4),
        (2, n, 2, 4),
    )
    row(
        "attention_nc",
        lambda q, k, v: nn.dot_product_attention(q, k, v),
        (m, n, 2, 4),
        (m, n, 2, 4),
        (m, n, 2, 4),
    )
    row(
        "attention_x",
        lambda q, k, v: nn.dot_product_attention(q, k, v),
        (2, n, 2, 4),
        (2, m, 2, 4),
        (2, m, 2, 4),
    )

    def hand_attention(x, w):
        b_, t, d = x.shape
        q, k, v = jnp.split(x @ w, 3, axis=-1)
        q, k, v = [a.reshape(b_, t, 2, d // 2).transpose(0, 2, 1, 3) for a in (q, k, v)]
        s = q @ k.swapaxes(-1, -2) * (d // 2) ** -0.5
        mask = jnp.tril(jnp.ones((t, t), bool))
        s = jnp.where(mask, s, -jnp.inf)
        o = nn.softmax(s) @ v
        return o.transpose(0, 2, 1, 3).reshape(b_, t, d)

    row("hand_attention", hand_attention, (m, n, 4), (4, 12))
    row(
        "grad_attention",
        lambda x, w: J.grad(lambda w: hand_attention(x, w).sum())(w),
        (m, n, 4),
        (4, 12),
        tol=1e-4,
    )
    row(
        "ce",
        lambda x, y: -jnp.mean(jnp.take_along_axis(nn.log_softmax(x), y[:, None], axis=1)),
        X,
        (n, "int32"),
    )
    row(
        "ce2",
        lambda x, y: -jnp.mean(jnp.sum(nn.one_hot(y, D) * nn.log_softmax(x), -1)),
        X,
        (n, "int32"),
    )
    row(
        "ce_grad",
        lambda x, y: J.grad(lambda x: -jnp.mean(nn.log_softmax(x)[jnp.arange(x.shape[0]), y]))(x),
        X,
        (n, "int32"),
    )
    row("normal", lambda k, x: random.normal(k, (x.shape[0], D)), key, X)
    row("uniform", lambda k, x: random.uniform(k, x.shape), key, X)
    row("bernoulli", lambda k, x: random.bernoulli(k, 0.3, x.shape), key, X)
    row("dropout", lambda k, x: jnp.where(random.bernoulli(k, 0.9, x.shape), x / 0.9, 0.0), key, X)
    row("randint", lambda k, x: random.randint(k, (x.shape[0],), 0, 10), key, X)
    row("gumbel", lambda k, x: random.gumbel(k, x.shape), key, X)
    row("categorical", lambda k, x: random.categorical(k, x), key, X)
    row("categorical_n", lambda k, x: random.categorical(k, x, axis=0), key, X)
    row("split_key", lambda k, x: random.normal(random.split(k)[0], x.shape), key, X)
    row("split_n", lambda k, x: random.key_data(random.split(k, x.shape[0])), key, X)
    row(
        "split_vmap",
        lambda k, x: J.vmap(lambda k: random.normal(k, (3,)))(random.split(k, x.shape[0])),
        key,
        X,
    )
    row("permutation", lambda k, x: random.permutation(k, x), key, X)
    row("choice", lambda k, x: random.choice(k, x.shape[0], (3,)), key, X)
    row("exponential", lambda k, x: random.exponential(k, x.shape), key, X)
    row("trunc", lambda k, x: random.truncated_normal(k, -1.0, 1.0, x.shape), key, X)
    row("div_n", lambda x: x / x.shape[0], X)
    row("mul_half", lambda x: x * (x.shape[0] * 0.5), X)
    row("size", lambda x: x.sum() / x.size, X)
    row("ndim", lambda x: x * x.ndim, X)
    row("sqrt_n", lambda x: x / jnp.sqrt(x.shape[0]), X)
    row("pow_n", lambda x: x / x.shape[0] ** 0.5, X)
    row("cmp_n", lambda x: jnp.arange(64) < x.shape[0], X)
    row("array_n", lambda x: jnp.array([x.shape[0], 2]), X)
    row("array_sh", lambda x: jnp.array(x.shape), X)
    row("asarray_n", lambda x: jnp.asarray(x.shape[0], jnp.float32), X)
    row("float32_n", lambda x: jnp.float32(x.shape[0]) * x, X)
    row("add_n", lambda x: x + x.shape[0], X)
    row("int_n", lambda x: jnp.sum(x > 0) // x.shape[0], X)
    row("scan", lambda x: lax.scan(lambda c, y: (c + y, c * 2), jnp.zeros(D), x), X)
    row(
        "scan_rev",
        lambda x: lax.scan(lambda c, y: (c + y, c * 2), jnp.zeros(D), x, reverse=True),
        X,
    )
    row(
        "scan_len",
        lambda x: lax.scan(lambda c, _: (c * 0.9, None), x, None, length=x.shape[0])[0],
        X,
    )
    row("scan_inner", lambda x: lax.scan(lambda c, y: (c + y, c.sum()), x, jnp.ones(3))[1], X)
    row("fori", lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i], jnp.zeros(D)), X)
    row("fori2", lambda x: lax.fori_loop(0, 3, lambda i, c: c * 1.1, x), X)
    row("fori_at", lambda x: lax.fori_loop(1, x.shape[0], lambda i, c: c.at[i].add(c[i - 1]), x), X)
    row(
        "while",
        lambda x: lax.while_loop(
            lambda c: c[0] < x.shape[0], lambda c: (c[0] + 1, c[1] * 1.1), (0, x)
        ),
        X,
    )
    row("cond", lambda x: lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, x), X)
    row("cond_n", lambda x: lax.cond(x.shape[0] > x.sum(), lambda x: x + 1, lambda x: x - 1, x), X)
    row("switch", lambda x: lax.switch(1, [lambda x: x + 1, lambda x: x - 1], x), X)
    row("vmap_n", lambda x, w: J.vmap(lambda r: w @ r)(x), X, (3, D))
    row("vmap_in1", lambda x: J.vmap(lambda c: jnp.sort(c)[0] + c.mean(), in_axes=1)(x), X)
    row("vmap_out", lambda x: J.vmap(lambda r: jnp.sin(r), out_axes=1)(x), X)
    row(
        "vmap_nested",
        lambda x, y: J.vmap(lambda a: J.vmap(lambda c: jnp.dot(a, c))(y))(x),
        X,
        (m, D),
    )
    row("vmap_beside", lambda x: J.vmap(lambda r: r @ r, in_axes=0)(x), (3, n))
    row("vmap_idx", lambda x, i: J.vmap(lambda r, j: r[j])(x, i), X, (n, "int32"))
    row("vmap_idx2", lambda x, i: J.vmap(lambda j: x[j])(i), X, (3, "int32"))
    row("vmap_at", lambda x, i: J.vmap(lambda r, j: r.at[j].set(0.0))(x, i), X, (n, "int32"))
    row(
        "vmap_dyn",
        lambda x, i: J.vmap(lambda r, j: lax.dynamic_slice(r, (j,), (2,)))(x, i),
        X,
        (n, "int32"),
    )
    row(
        "vmap_scan",
        lambda x: J.vmap(lambda r: lax.scan(lambda c, y: (c + y, c), 0.0, r))(x),
        (m, n),
    )
    row(
        "vmap_cond",
        lambda x: J.vmap(lambda r: lax.cond(r.sum() > 0, lambda r: r, lambda r: -r, r))(x),
        X,
    )
    row(
        "vmap_while",
        lambda x: J.vmap(lambda r: lax.while_loop(lambda c: c < 3.0, lambda c: c + 1.0, r))(x),
        (n,),
    )
    row("lax_map", lambda x: lax.map(lambda r: r.sum(), x), X)
    row("assoc_scan", lambda x: lax.associative_scan(jnp.add, x), X)
    row("grad", lambda x: J.grad(lambda x: jnp.sum(jnp.sin(x) ** 2))(x), X)
    row("grad_w", lambda x, w: J.grad(lambda w: jnp.mean((x @ w) ** 2))(w), X, (D, 3))
    row("vg", lambda x, w: J.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w), X, (D, 3))
    row("grad_slice", lambda x: J.grad(lambda x: (x[1:] * x[:-1]).sum())(x), X)
    row("grad_slice2", lambda x: J.grad(lambda x: (x[::2] ** 2).sum() + (x[-3:] ** 3).sum())(x), X)
    row("grad_slicer", lambda x: J.grad(lambda x: (x[::-2] ** 2).sum())(x), X)
    row("grad_idx", lambda x, i: J.grad(lambda x: (x[i] ** 2).sum())(x), X, (m, "int32"))
    row("grad_idxs", lambda x: J.grad(lambda x: x[0].sum() * x[-1].sum())(x), X)
    row(
        "grad_concat",
        lambda x, y: J.grad(lambda x: (jnp.concatenate([x, y]) ** 2).sum())(x),
        X,
        (m, D),
    )
    row(
        "grad_pad",
        lambda x: J.grad(lambda x: (jnp.pad(x, ((1, 2), (0, 0)), constant_values=2.0) ** 2).sum())(
            x
        ),
        X,
    )
    row("grad_cumsum", lambda x: J.grad(lambda x: (jnp.cumsum(x, 0) ** 2).sum())(x), X, tol=1e-4)
    row("grad_cumprod", lambda x: J.grad(lambda x: (jnp.cumprod(x, 0)).sum())(x), X, tol=1e-3)
    row("grad_cummax", lambda x: J.grad(lambda x: (lax.cummax(x, 0) ** 2).sum())(x), X)
    row(
        "grad_sort",
        lambda x: J.grad(lambda x: (jnp.sort(x, 0) * jnp.arange(x.shape[0])[:, None]).sum())(x),
        X,
    )
    row("grad_max", lambda x: J.grad(lambda x: x.max(0).sum())(x), X)
    row("grad_prod", lambda x: J.grad(lambda x: x.prod())(x), (n,))
    row("grad_softmax", lambda x: J.grad(lambda x: (nn.softmax(x, 0) ** 2).sum())(x), X)
    row("grad_lse", lambda x: J.grad(lambda x: nn.logsumexp(x))(x), X)
    row("grad_norm", lambda x: J.grad(lambda x: jnp.linalg.norm(x))(x), X)
    row("grad_ln", lambda x: J.grad(lambda x: (layer_norm(x) ** 3).sum())(x), X, tol=2e-3)
    row("grad_var", lambda x: J.grad(lambda x: jnp.var(x, 0).sum())(x), X)
    row("grad_std", lambda x: J.grad(lambda x: (x.std(1)).sum())(x), X)
    row(
        "grad_einsum",
        lambda q, k: J.grad(lambda q: (jnp.einsum("bqhd,bkhd->bhqk", q, k) ** 2).sum())(q),
        (m, n, 2, 3),
        (m, n, 2, 3),
        tol=1e-3,
    )
    row(
        "grad_scan",
        lambda x: J.grad(
            lambda x: lax.scan(lambda c, y: (jnp.sin(c * y), c), jnp.ones(D), x)[1].sum()
        )(x),
        X,
        tol=1e-4,
    )
    row(
        "grad_scan2",
        lambda x, w: J.grad(
            lambda w: lax.scan(lambda c, y: (jnp.tanh(c @ w + y), c.sum()), jnp.ones(D), x)[1].sum()
        )(w),
        X,
        (D, D),
        tol=1e-3,
    )
    row(
        "grad_fori",
        lambda x: J.jvp(
            lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c * x[i], jnp.ones(D)), (x,), (x,)
        ),
        X,
    )
    row(
        "grad_cond",
        lambda x: J.grad(
            lambda x: lax.cond(x.sum() > 0, lambda x: (x**2).sum(), lambda x: x.sum(), x)
        )(x),
        X,
    )
    row("grad_where", lambda x: J.grad(lambda x: jnp.where(x > 0, x**2, 0.0).sum())(x), X)
    row("grad_bcast", lambda x, y: J.grad(lambda y: (x * y).sum())(y), X, (D,))
    row("grad_bcast2", lambda x, y: J.grad(lambda y: (x * y[None]).sum())(y), X, (D,))
    row("grad_bcast1", lambda x, y: J.grad(lambda y: (x * y).sum())(y), X, (1, D))
    row("grad_reshape", lambda x: J.grad(lambda x: (x.reshape(-1, D)[1:] ** 2).sum())(x), (m, n, D))
    row("grad_tile", lambda x: J.grad(lambda x: (jnp.tile(x, (2, 1)) ** 2).sum())(x), X)
    row("grad_repeat", lambda x: J.grad(lambda x: (jnp.repeat(x, 2, 0) ** 2).sum())(x), X)
    row("grad_roll", lambda x: J.grad(lambda x: (jnp.roll(x, 1, 0) * x).sum())(x), X)
    row(
        "grad_at", lambda x, i: J.grad(lambda x: (x.at[i].add(x[0]) ** 2).sum())(x), X, (m, "int32")
    )
    row("grad_at_set", lambda x: J.grad(lambda x: (x.at[1:].set(2.0) ** 2).sum())(x), X)
    row("grad_at_set2", lambda x: J.grad(lambda x: (x.at[1::2].mul(2.0) ** 2).sum())(x), X)
    row(
        "grad_tal",
        lambda x, i: J.grad(lambda x: (jnp.take_along_axis(x, i[:, None], 1) ** 2).sum())(x),
        X,
        (n, "int32"),
    )
    row(
        "grad_dyn",
        lambda x, i: J.grad(lambda x: (lax.dynamic_slice_in_dim(x, i, 1, 0) ** 2).sum())(x),
        X,
        ("int32",),
    )
    row(
        "grad_dynu",
        lambda x, i: J.grad(
            lambda x: (lax.dynamic_update_slice_in_dim(x, x[:1] * 2, i, 0) ** 2).sum()
        )(x),
        X,
        ("int32",),
    )
    row("jvp", lambda x: J.jvp(lambda x: jnp.tanh(x).mean(0), (x,), (jnp.ones_like(x),)), X)
    row("vjp", lambda x: J.vjp(lambda x: jnp.tanh(x).mean(0), x)[1](jnp.ones(D)), X)
    row("linearize", lambda x: J.linearize(lambda x: jnp.sin(x).sum(0), x)[1](x), X)
    row("linear_transpose", lambda x: J.linear_transpose(lambda x: x.sum(0) * 2, x)(jnp.ones(D)), X)
    row("checkpoint", lambda x: J.grad(J.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum()))(x), X)
    row(
        "checkpoint_p",
        lambda x, w: J.grad(
            J.checkpoint(lambda x: jnp.sin(x @ w).sum(), policy=J.checkpoint_policies.dots_saveable)
        )(x),
        X,
        (D, D),
    )

    @J.custom_jvp
    def cj(x):
        return jnp.sin(x)

    cj.defjvp(lambda p, t: (cj(*p), 2 * t[0] * jnp.cos(p[0])))

    @J.custom_vjp
    def cv(x):
        return jnp.sin(x) * x.shape[0]

    cv.defvjp(lambda x: (cv(x), jnp.cos(x)), lambda r, ct: (3 * ct * r,))
    row("custom_jvp", lambda x: cj(x), X)
    row("custom_jvp_g", lambda x: J.grad(lambda x: cj(x).sum())(x), X)
    row("custom_vjp", lambda x: cv(x), X)
    row("custom_vjp_g", lambda x: J.grad(lambda x: cv(x).sum())(x), X)
    row("custom_vjp_jg", lambda x: J.jit(J.grad(lambda x: cv(x).sum()))(x), X)
    row(
        "custom_vjp_scan",
        lambda x: J.grad(
            lambda x: lax.scan(lambda c, y: (cv(c) * 0.1 + y, None), jnp.ones(D), x)[0].sum()
        )(x),
        X,
    )
    row("custom_vmap_vjp", lambda x: J.vmap(J.grad(lambda r: cv(r).sum()))(x), X)
    row("hessian", lambda x, w: J.hessian(lambda w: jnp.sum(jnp.tanh(x @ w)))(w), X, (D,), tol=1e-4)
    row("hessian_n", lambda x: J.hessian(lambda x: jnp.sum(jnp.tanh(x) ** 2))(x), (n,))
    row("jacfwd", lambda x: J.jacfwd(lambda x: x**2)(x), (n,))
    row("jacrev", lambda x: J.jacrev(lambda x: jnp.cumsum(x))(x), (n,))
    row(
        "gradgrad",
        lambda x: J.grad(lambda x: (J.grad(lambda x: jnp.sum(jnp.sin(x) ** 3))(x) ** 2).sum())(x),
        X,
        tol=1e-4,
    )
    row("jit_in", lambda x: J.jit(lambda x: jnp.tanh(x) * x.shape[0])(x), X)
    row("jit_twice", lambda x: (lambda f: f(f(x)))(J.jit(lambda x: jnp.tanh(x))), X)
    row("jit_grad", lambda x: J.grad(lambda x: J.jit(lambda x: (jnp.tanh(x) ** 2).sum())(x))(x), X)
    row("e_reshape", lambda x: x.reshape(x.shape[0] // 8, 8).sum(1), (e,))
    row("e_reshape2", lambda x: x.reshape(8, x.shape[0] // 8, D).mean(0), (e, D))
    row(
        "e_patches",
        lambda x: (
            x.reshape(x.shape[0] // 4, 4, x.shape[1] // 4, 4, 3)
            .transpose(0, 2, 1, 3, 4)
            .reshape(-1, 48)
        ),
        (e, 8, 3),
    )
    row(
        "conv",
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"),
        (n, 3, 8, 8),
        (4, 3, 3, 3),
        tol=1e-4,
    )
    row(
        "conv_sp",
        lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME"),
        (2, 3, n),
        (4, 3, 3),
        tol=1e-4,
    )
    row(
        "conv_grad",
        lambda x, w: J.grad(lambda w: (lax.conv_general_dilated(x, w, (1, 1), "SAME") ** 2).sum())(
            w
        ),
        (n, 3, 4, 4),
        (4, 3, 3, 3),
        tol=1e-3,
    )
    row("pool", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"), X)
    row("pool_n", lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 1), (1, 1), "SAME"), X)
    row("searchsorted", lambda x, v: jnp.searchsorted(jnp.sort(x), v), (n,), (3,))
    row("interp", lambda x, v: jnp.interp(v, jnp.arange(x.shape[0], dtype=f32), x), (n,), (3,))
    row("histogram", lambda x: jnp.histogram(x, bins=4), (n,))
    row("bincount", lambda x: jnp.bincount(x, length=4), (n, "int32"))
    row("segment_sum", lambda x, i: J.ops.segment_sum(x, i, num_segments=3), X, (n, "int32"))
    row(
        "segment_sum_n",
        lambda x, i: J.ops.segment_sum(x, i, num_segments=x.shape[0]),
        X,
        (n, "int32"),
    )
    row(
        "convolve",
        lambda x: jnp.convolve(jnp.concatenate([x, jnp.ones(3)]), jnp.ones(3), mode="same"),
        (n,),
    )
    row("vander", lambda x: jnp.vander(x, 3), (n,))
    row("polyval", lambda x: jnp.polyval(jnp.ones(3), x), (n,))
    row("trapezoid", lambda x: jnp.trapezoid(x), (n,))
    row("fft", lambda x: jnp.fft.fft(x, axis=1), X)
    row("inner", lambda x, y: jnp.inner(x, y), X, (m, D))
    row("kron", lambda x, y: jnp.kron(x, y), (n,), (m,))
    row("cross", lambda x, y: jnp.cross(x, y), (n, 3), (n, 3))
    row("corrcoef", lambda x: jnp.corrcoef(x.T), (n, 3), tol=1e30)
    row("solve", lambda x: jnp.linalg.solve(jnp.eye(x.shape[1]) * 2, x.T), X)
    row(
        "cholesky_b",
        lambda x: jnp.linalg.cholesky(jnp.einsum("ni,nj->nij", x, x) + 4 * jnp.eye(D)),
        X,
        tol=1e-4,
    )
    row(
        "inv_b",
        lambda x: jnp.linalg.inv(jnp.einsum("ni,nj->nij", x, x) + 4 * jnp.eye(D)),
        X,
        tol=1e-4,
    )
    row(
        "det_b",
        lambda x: jnp.linalg.det(jnp.einsum("ni,nj->nij", x[:, :3], x[:, :3]) + 4 * jnp.eye(3)),
        X,
        tol=1e-4,
    )
    row("broadcast_to", lambda x, y: jnp.broadcast_to(y, x.shape), X, (D,))
    row("broadcast_arrays", lambda x, y: jnp.broadcast_arrays(x, y), X, (D,))
    row("lax_broadcast", lambda x: lax.broadcast(x, (x.shape[0],)), X)
    row("bid", lambda x, y: lax.broadcast_in_dim(y, x.shape, (1,)), X, (D,))
    row("lax_iota", lambda x: lax.iota("int32", x.shape[0]), X)
    row("biota", lambda x: lax.broadcasted_iota("int32", x.shape, 0), X)
    row("lax_full", lambda x: lax.full(x.shape, 1.0), X)
    row("lax_reduce", lambda x: lax.reduce(x, 0.0, lax.add, (0,)), X)
    row("rev", lambda x: lax.rev(x, (0,)), X)
    row("lax_concat", lambda x, y: lax.concatenate([x, y], 0), X, (m, D))
    row("batch_matmul", lambda x, y: lax.batch_matmul(x, y), (n, 3, D), (n, D, 2))
    row("map_tree", lambda x: J.tree.map(lambda a: a * 2, {"a": x, "b": x.sum(0)}), X)
    row("ravel_pytree", lambda x: J.flatten_util.ravel_pytree({"a": x, "b": x[0]})[0], X)
    row("unique_n", lambda x: jnp.unique(x, size=4, fill_value=0), (n, "int32"))
    row("nonzero_s", lambda x: jnp.nonzero(x, size=4, fill_value=0), (n, "int32"))
    row("where_1", lambda x: jnp.argwhere(x, size=4), (n, "int32"))
    row("nan_to_num", lambda x: jnp.nan_to_num(x), X)
    row("allclose", lambda x: jnp.allclose(x, x), X)
    row("array_equal", lambda x: jnp.array_equal(x, x * 1), X)
    row("lexsort", lambda x, y: jnp.lexsort((x, y)), (n,), (n,))
    row("partition", lambda x: jnp.partition(x, 0), (n,))
    row("percentile", lambda x: jnp.percentile(x, 50, axis=1), X)
    row("ediff", lambda x: jnp.ediff1d(x), (n,))
    row("gradient", lambda x: jnp.gradient(x, axis=1), X)
    row(
        "rope",
        lambda x: (
            lambda t, c: jnp.concatenate(
                [
                    x[..., :2] * jnp.cos(t * c) - x[..., 2:] * jnp.sin(t * c),
                    x[..., 2:] * jnp.cos(t * c) + x[..., :2] * jnp.sin(t * c),
                ],
                -1,
            )
        )(jnp.arange(x.shape[1])[None, :, None].astype(f32), jnp.ones(2)),
        (m, n, 4),
    )
    row(
        "mask_pad",
        lambda x, l: jnp.where(jnp.arange(x.shape[1])[None, :] < l[:, None], x, 0.0).sum(1) / l,
        (m, n),
        (m, "int32"),
        tol=1e30,
    )
    row("ens", lambda x: jnp.einsum("...i,i->...", x, x[0]), (m, n))
    row("einsum_tr", lambda x: jnp.einsum("ii->i", x), (n, n))
    row("einsum_el", lambda x, y: jnp.einsum("...ij,...jk->...ik", x, y), (m, n, 3), (m, 3, 2))
    row("idx5", lambda x: x[jnp.int32(0)], X)
    row("idx_static5", lambda x: x.at[5].get(mode="clip"), X)
    row("idx_static5f", lambda x: x.at[5].get(mode="fill", fill_value=0.0), X)
    row("at5_drop", lambda x: x.at[5].set(0.0, mode="drop"), X)
    row("mixed", lambda x, i: x[1:, None, i], X, (2, "int32"))
    row("mixed2", lambda x, i: x[i, :, None], X, (m, "int32"))
    row("mixed3", lambda x, i: x[::2, i], X, (2, "int32"))
    row("mixed4", lambda x, i: x[:, i], (n, m), (3, "int32"))
    row("mixed5", lambda x, i: x[i, 1:], (n, m), (3, "int32"))
    row("mixed6", lambda x, i: x[:, :, i], (m, n, D), (3, "int32"))
    row("mixed7", lambda x, i: x[i, 0, i], (n, 1, n), (3, "int32"))
    row("mixed8", lambda x, i, j: x[i[:, None], j[None]], (n, m), (3, "int32"), (2, "int32"))
    row("causal_idx", lambda x: x[jnp.arange(x.shape[0])[::-1]], X)
    row("pairs", lambda x: x[:, None, :] - x[None, :, :], X)
    row("pdist", lambda x: jnp.sqrt(((x[:, None] - x[None]) ** 2).sum(-1) + 1e-9), X)
    row("knn", lambda x: jnp.argsort(((x[:, None] - x[None]) ** 2).sum(-1), axis=1)[:, 0], X)
    row("sum_where", lambda x: jnp.sum(x, where=x > 0, axis=0), X)
    row(
        "mean_where",
        lambda x, l: jnp.mean(x, where=jnp.arange(x.shape[1])[None] <= l[:, None], axis=1),
        (m, n),
        (m, "int32"),
    )
    row("softmax_where", lambda x: nn.softmax(x, axis=0, where=x > -100.0), X)
    row("array_split", lambda x: jnp.array_split(x, 2, axis=1), X)
    row("T", lambda x: x.T, X)
    row("mT", lambda x: x.mT, (m, n, D))
    row(
        "vectorize",
        lambda x, w: jnp.vectorize(lambda a, c: a @ c, signature="(d),(d)->()")(x, w),
        X,
        (D,),
    )
    row("apply_along", lambda x: jnp.apply_along_axis(lambda r: r.sum(), 1, x), X)
    row("piecewise", lambda x: jnp.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v]), X)
    row("select_np", lambda x: jnp.select([x < 0, x > 1], [x, x * 2], 0.0), X)
    row("select_n", lambda x: lax.select_n(x > 0, x, x * 2), X)
    row("eval_shape", lambda x: x * 0 + len(J.eval_shape(lambda a: a.sum(0), x).shape), X)
    row(
        "checkpoint_scan",
        lambda x, w: J.grad(
            lambda w: lax.scan(
                J.checkpoint(lambda c, y: (jnp.tanh(c @ w + y), None)), jnp.ones(D), x
            )[0].sum()
        )(w),
        X,
        (D, D),
        tol=1e-3,
    )
    row(
        "checkpoint_scan2",
        lambda x, w: J.grad(
            lambda w: lax.scan(
                J.checkpoint(lambda c, _: (jnp.tanh(c @ w), None)), x, None, length=3
            )[0].sum()
        )(w),
        X,
        (D, D),
        tol=1e-3,
    )
    row(
        "layers_scan",
        lambda x, ws: J.grad(
            lambda ws: lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0].sum()
        )(ws),
        X,
        (3, D, D),
        tol=1e-3,
    )
    row(
        "scan_grad_x",
        lambda x, ws: J.grad(
            lambda x: lax.scan(lambda c, w: (jnp.tanh(c @ w), c.mean()), x, ws)[0].sum()
        )(x),
        X,
        (3, D, D),
        tol=1e-3,
    )
    row(
        "vmap_grad",
        lambda x, w: J.vmap(J.grad(lambda w, r: jnp.tanh(r @ w)), in_axes=(None, 0))(w, x),
        X,
        (D,),
    )
    row(
        "per_example_norm",
        lambda x, w: jnp.linalg.norm(
            J.vmap(J.grad(lambda w, r: jnp.tanh(r @ w).sum()), in_axes=(None, 0))(w, x), axis=(1, 2)
        ),
        X,
        (D, 2),
    )
    row(
        "vmap_attn",
        lambda q: J.vmap(lambda a: nn.dot_product_attention(a, a, a, is_causal=True))(q),
        (m, 2, n, 2, 4),
    )
    row("vmap_sort", lambda x: J.vmap(jnp.sort)(x), X)
    row("vmap_where", lambda x: J.vmap(lambda r: jnp.where(r > 0, r, r.mean()))(x), X)
    row("vmap_concat", lambda x: J.vmap(lambda r: jnp.concatenate([r, jnp.ones(2)]))(x), X)
    row("vmap_pad", lambda x: J.vmap(lambda r: jnp.pad(r, (1, 1)))(x), X)
    row("vmap_slice", lambda x: J.vmap(lambda r: r[1:] * r[:-1])(x), (m, n))
    row("vmap_slice1", lambda x: J.vmap(lambda r: r[::-2], in_axes=1, out_axes=1)(x), (n, m))
    row("vmap_cumsum", lambda x: J.vmap(lambda r: jnp.cumsum(r))(x), (m, n))
    row("vmap_argmax", lambda x: J.vmap(jnp.argmax)(x), (m, n))
    row("vmap_dot", lambda x, y: J.vmap(jnp.dot, in_axes=(0, 1))(x, y), (m, n, 3), (3, m))
    row(
        "vmap_tal",
        lambda x, i: J.vmap(lambda r, j: jnp.take_along_axis(r, j, 0))(x, i),
        (m, n),
        (m, 2, "int32"),
    )
    row(
        "vmap_rand",
        lambda k, x: J.vmap(lambda kk, r: r + random.normal(kk, r.shape))(
            random.split(k, x.shape[0]), x
        ),
        key,
        (m, n),
    )
    row(
        "vmap_dynu",
        lambda x, i: J.vmap(lambda r, j: lax.dynamic_update_index_in_dim(r, 0.0, j, 0))(x, i),
        (m, n),
        (m, "int32"),
    )
    row(
        "vmap_fori",
        lambda x: J.vmap(lambda r: lax.fori_loop(0, r.shape[0], lambda i, c: c + r[i], 0.0))(x),
        (m, n),
    )
    row("vmap_custom", lambda x: J.vmap(lambda r: nn.relu(r))(x), X)
    row("vmap_jit", lambda x: J.vmap(J.jit(lambda r: nn.softmax(r)))(x), (m, n))
    row(
        "vmap_linalg",
        lambda x: J.vmap(lambda r: jnp.linalg.inv(jnp.outer(r, r) + jnp.eye(D) * 4))(x),
        X,
        tol=1e-4,
    )
    row("vmap_axisname", lambda x: J.vmap(lambda r: r - lax.pmean(r, "i"), axis_name="i")(x), X)
    row("vmap_psum", lambda x: J.vmap(lambda r: r / lax.psum(1, "i"), axis_name="i")(x), X)
    row("vmap_axisidx", lambda x: J.vmap(lambda r: r * lax.axis_index("i"), axis_name="i")(x), X)
    row(
        "vmap_allgather",
        lambda x: J.vmap(lambda r: lax.all_gather(r, "i").sum(0), axis_name="i")(x),
        X,
    )
    row("vmap_axis_size", lambda x: J.vmap(lambda: jnp.ones(2), axis_size=x.shape[0])(), X)
    row(
        "grad_vmap",
        lambda x, w: J.grad(lambda w: J.vmap(lambda r: jnp.tanh(r @ w))(x).sum())(w),
        X,
        (D,),
        tol=1e-4,
    )
    row(
        "jvp_vjp",
        lambda x: J.jvp(J.grad(lambda x: (jnp.sin(x) ** 2).sum()), (x,), (x,))[1],
        X,
        tol=1e-4,
    )
    row(
        "hvp",
        lambda x, w: J.jvp(J.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean()), (w,), (w,))[1],
        X,
        (D,),
        tol=1e-4,
    )
    row("jac_n", lambda x: J.jacfwd(lambda x: nn.softmax(x))(x), (n,))
    row("jac_beside", lambda x: J.jacrev(lambda x: x.sum(0) * x[0])(x), X)
    row("jac_rev_n", lambda x: J.jacrev(lambda x: jnp.sin(x).sum(1))(x), X)
    row("vjp_n", lambda x: J.vjp(lambda x: x * x.sum(), x)[1](x), X)
    row("stopgrad", lambda x: J.grad(lambda x: (x * lax.stop_gradient(x)).sum())(x), X)
    row("grad_median", lambda x: J.grad(lambda x: jnp.median(x, axis=0).sum())(x), X)
    row(
        "grad_take", lambda x, i: J.grad(lambda x: jnp.take(x, i, axis=0).sum())(x), X, (3, "int32")
    )
    row("grad_flip", lambda x: J.grad(lambda x: (jnp.flip(x, 0) * x).sum())(x), X)
    row(
        "grad_kron",
        lambda x, y: J.grad(lambda x: (jnp.kron(x, y) ** 2).sum())(x),
        (n,),
        (m,),
        tol=1e-3,
    )
    row("grad_diag", lambda x: J.grad(lambda x: (jnp.diag(x) ** 2).sum())(x), (n, n))
    row("grad_trace", lambda x: J.grad(lambda x: jnp.trace(x @ x))(x), (n, n), tol=1e-3)
    row("grad_tril", lambda x: J.grad(lambda x: (jnp.tril(x) ** 2).sum())(x), (n, n))
    row(
        "grad_pool",
        lambda x: J.grad(
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 1), (1, 1), "SAME").sum()
        )(x),
        X,
    )
    row(
        "grad_conv_n",
        lambda x, w: J.grad(lambda w: (lax.conv_general_dilated(x, w, (1,), "SAME") ** 2).sum())(w),
        (2, 3, n),
        (4, 3, 3),
        tol=1e-3,
    )
    row(
        "grad_conv_x",
        lambda x, w: J.grad(lambda x: (lax.conv_general_dilated(x, w, (1,), "SAME") ** 2).sum())(x),
        (2, 3, n),
        (4, 3, 3),
        tol=1e-3,
    )
    row(
        "conv_stride",
        lambda x, w: lax.conv_general_dilated(x, w, (2,), "SAME"),
        (2, 3, n),
        (4, 3, 3),
        tol=1e-3,
    )
    row(
        "conv_stride_g",
        lambda x, w: J.grad(lambda w: (lax.conv_general_dilated(x, w, (2,), "SAME") ** 2).sum())(w),
        (2, 3, n),
        (4, 3, 3),
        tol=1e-3,
    )
    row("avgpool_n", lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 1), (2, 1), "VALID"), (e, D))
    row(
        "nn_conv_e",
        lambda x, w: lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        (m, e, 8, 3),
        (3, 3, 3, 4),
        tol=1e-3,
    )
    row(
        "batchnorm",
        lambda x: (
            (x - x.mean((0, 2, 3), keepdims=True))
            / jnp.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5)
        ),
        (n, 3, 4, 4),
        tol=1e-3,
    )
    row(
        "bn_grad",
        lambda x: J.grad(lambda x: (((x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-1)) ** 3).sum())(x),
        X,
        tol=2e-3,
    )
    row("glu", lambda x: nn.glu(x), X)
    row("normalize", lambda x: nn.standardize(x, axis=0), X, tol=1e30)
    row("logsumexp_b", lambda x: nn.logsumexp(x, axis=0, b=2.0 * jnp.ones_like(x)), X)
    row(
        "bf16",
        lambda x: (x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16).T).astype(f32),
        X,
        tol=1e-1,
    )
    row("complex", lambda x: jnp.abs(lax.complex(x, x) * jnp.exp(1j * x)), X)
    row("fft_axis0err", lambda x: jnp.real(jnp.fft.fft(x, axis=1)), (m, 4))
    row("pmod", lambda x: x % x.shape[0], X)
    row("shape_arith", lambda x: jnp.zeros(2 * x.shape[0] + 1), X)
    row("shape_mul", lambda x, y: jnp.zeros((x.shape[0] * y.shape[0],)), X, (m,))
    row("concat_slice", lambda x, y: jnp.concatenate([x, y])[x.shape[0] :], X, (m, D))
    row("shift_right", lambda x: jnp.concatenate([jnp.zeros((1, D)), x[:-1]]), X)
    row("shift_pad", lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:-1], X)
    row("shift_pad2", lambda x: jnp.pad(x[1:], ((0, 1), (0, 0))), X)
    row("kvcache", lambda c, x, i: lax.dynamic_update_slice(c, x, (i, 0)), (64, D), X, ("int32",))
    row("kvread", lambda c, x: c[: x.shape[0]] * x, (64, D), X)
    row("kvread2", lambda c, x: lax.dynamic_slice(c, (0, 0), x.shape) * x, (64, D), X)
    row(
        "mask64",
        lambda c, x: jnp.where(jnp.arange(64)[:, None] < x.shape[0], c, 0.0).sum(0),
        (64, D),
        X,
    )
    row("pos_embed", lambda x, p: x + p[: x.shape[1]], (m, n, D), (64, D))
    row("pos_embed2", lambda x, p: x + p[jnp.arange(x.shape[1])], (m, n, D), (64, D))
    row(
        "rel_bias",
        lambda x, p: p[jnp.arange(x.shape[0])[:, None] - jnp.arange(x.shape[0])[None] + 31],
        X,
        (64,),
    )
    row(
        "alibi",
        lambda x: -jnp.abs(jnp.arange(x.shape[0])[:, None] - jnp.arange(x.shape[0])[None]) * 0.5,
        X,
    )
    row("embedding", lambda t, w: w[t], (m, n, "int32"), (10, D))
    row(
        "embedding_g",
        lambda t, w: J.grad(lambda w: (w[t] ** 2).sum())(w),
        (m, n, "int32"),
        (10, D),
        tol=1e-4,
    )
    row(
        "lm_loss",
        lambda t, w: (
            -jnp.take_along_axis(nn.log_softmax(w[t[:, :-1]] @ w.T), t[:, 1:, None], axis=-1).mean()
        ),
        (m, k, "int32"),
        (10, D),
    )
    row("scan_vmap_len", lambda x: lax.scan(lambda c, r: (c + 1, r.sum() * c), 0, x)[1], X)
    row("mapbatch", lambda x: lax.map(lambda r: r * 2, x), X)
    row(
        "nested_jit_sizes",
        lambda x: (lambda f: f(x) + f(x[: x.shape[0]]))(J.jit(lambda a: a * a.shape[0])),
        X,
    )
    row("jit_static", lambda x: J.jit(lambda a, k: a * k, static_argnums=1)(x, x.shape[0]), X)
    row("jit_dimarg", lambda x: J.jit(lambda a, k: a * k)(x, x.shape[0]), X)
    row("opt_step", lambda x, w: w - 0.1 * J.grad(lambda w: ((x @ w) ** 2).mean())(w), X, (D,))
    row(
        "reduce_and",
        lambda x: lax.reduce_and(x > 0, (0,)) if hasattr(lax, "reduce_and") else jnp.all(x > 0, 0),
        X,
    )
    row("unstack", lambda x: jnp.unstack(x, axis=1), X)
    row("tuple_sum", lambda x: sum(x[:, i] for i in range(x.shape[1])), X)
    row("digitize", lambda x: jnp.digitize(x, jnp.array([0.0, 1.0])), X)
    row("isin", lambda x: jnp.isin(x, jnp.array([1, 2])), (n, "int32"))
    row("gammaln", lambda x: J.scipy.special.gammaln(jnp.abs(x) + 1), X)
    row("norm_logpdf", lambda x: J.scipy.stats.norm.logpdf(x).sum(), X)
    row("clip_grad_norm", lambda x: x * jnp.minimum(1.0, 1.0 / jnp.sqrt((x**2).sum())), X)
    row(
        "named",
        lambda x: J.grad(lambda x: J.ad_checkpoint.checkpoint_name(jnp.sin(x), "a").sum())(x),
        X,
    )
    row("eye_sub", lambda x: x - jnp.eye(x.shape[0]), (n, n))
    row("block_diag", lambda x: jnp.block([[x, jnp.zeros((x.shape[0], 1))]]), X)
    row("r_", lambda x: jnp.hstack([x, jnp.ones((x.shape[0], 1))]), X)
    row("ones_col", lambda x: jnp.column_stack([x, jnp.ones(x.shape[0])]), X)
    row("cumsum_excl", lambda x: jnp.cumsum(x, 0) - x, X)
    row("csum_rev", lambda x: jnp.cumsum(x[::-1], 0)[::-1], X)
    row("logcumsumexp", lambda x: lax.cumlogsumexp(x, axis=0), X)
    row("logcse_g", lambda x: J.grad(lambda x: lax.cumlogsumexp(x, axis=0).sum())(x), X, tol=1e-3)
    row(
        "ssm",
        lambda a, x: lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, x))[
            1
        ],
        X,
        X,
        tol=1e-3,
    )
    row(
        "ssm_g",
        lambda a, x: J.grad(
            lambda a: lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, x))[
                1
            ].sum()
        )(a),
        X,
        X,
        tol=1e-2,
    )
    row("initializer", lambda k, x: nn.initializers.normal()(k, (x.shape[0], 3)), key, X)
    for mode in ("fan_in", "fan_out", "fan_avg", "fan_geo_avg"):
        fans = nn.initializers.variance_scaling(2.0, mode, "truncated_normal")
        row(mode, lambda k, x, fans=fans: fans(k, (x.shape[0], 3)), key, X)
    row("kernel", lambda k, x: nn.initializers.he_uniform()(k, (2, x.shape[0], 3)), key, X)
    row(
        "mvn",
        lambda k, x: random.multivariate_normal(k, jnp.zeros(2), jnp.eye(2), (x.shape[0],)),
        key,
        X,
    )
    row("dirichlet", lambda k, x: random.dirichlet(k, jnp.ones(3), (x.shape[0],)), key, X)
    row("gamma", lambda k, x: random.gamma(k, 2.0, (x.shape[0],)), key, X, tol=1e-3)
    row("laplace", lambda k, x: random.laplace(k, x.shape), key, X)
    row("rademacher", lambda k, x: random.rademacher(k, x.shape), key, X)
    row("choice_p", lambda k, x: random.choice(k, x.shape[0], (3,), p=nn.softmax(x)), key, (n,))
    row("perm_int", lambda k, x: random.permutation(k, x.shape[0]), key, X)
    row("fold_in", lambda k, x: random.uniform(random.fold_in(k, x.shape[0])), key, X)
    row("ball", lambda k, x: random.ball(k, 3, shape=(x.shape[0],)), key, X, tol=1e-3)
    row("bits", lambda k, x: random.bits(k, x.shape), key, X)
    row("poisson", lambda k, x: random.poisson(k, 2.0, x.shape), key, X)

    @J.custom_batching.custom_vmap
    def cvm(r):
        return jnp.sin(r)

    @cvm.def_vmap
    def _(size, batched, r):
        return jnp.sin(r) * 2, True

    row("svd", lambda x: jnp.linalg.svd(x, compute_uv=False), (n, 3, 2), tol=1e-3)
    row(
        "eigh", lambda x: jnp.linalg.eigvalsh(jnp.einsum("nij,nkj->nik", x, x)), (n, 3, 3), tol=1e-3
    )
    row("qr", lambda x: jnp.abs(jnp.linalg.qr(x)[1]), (n, 3, 3), tol=1e-3)
    row("lstsq_free", lambda x: jnp.linalg.pinv(jnp.eye(3) * 2) @ x, (3, n))
    row(
        "tri_solve",
        lambda x: J.scipy.linalg.solve_triangular(
            jnp.eye(3) * 2 + jnp.tril(jnp.ones((3, 3)), -1), x, lower=True
        ),
        (3, n),
    )
    row(
        "cho_solve",
        lambda x: J.scipy.linalg.cho_solve(J.scipy.linalg.cho_factor(jnp.eye(3) * 2), x),
        (3, n),
    )
    row(
        "root",
        lambda x: lax.custom_root(
            lambda y: y * 2 - x, x, lambda f, x0: x0 - f(x0) / 2, lambda g, y: y / 2
        ),
        (n,),
    )
    row(
        "lin_solve",
        lambda x: J.grad(
            lambda x: lax.custom_linear_solve(
                lambda v: 2 * v, x, lambda mv, b: b / 2, transpose_solve=lambda mv, b: b / 2
            ).sum()
        )(x),
        (n,),
    )
    row("custom_vmap", lambda x: J.vmap(cvm)(x), X)
    row(
        "odeint",
        lambda x: J.experimental.ode.odeint(lambda y, t: -y, x, jnp.array([0.0, 0.5])),
        (n,),
        tol=1e-3,
    )
    row(
        "jet",
        lambda x: J.experimental.jet.jet(
            lambda x: jnp.sin(x) * x.shape[0], (x,), ((jnp.ones_like(x),),)
        ),
        (n,),
    )
    row(
        "checkify",
        lambda x: J.experimental.checkify.checkify(lambda x: jnp.log(x * x + 1))(x)[1],
        (n,),
    )
    row("closure", lambda x: J.closure_convert(lambda y: y * x.shape[0], x)[0](x), (n,))
    row("pad_reflect", lambda x: jnp.pad(x, (2, 1), mode="reflect"), (p,))
    row("pad_wrap", lambda x: jnp.pad(x, (2, 1), mode="wrap"), (p,))
    row("pad_sym", lambda x: jnp.pad(x, (2, 1), mode="symmetric"), (p,))
    row("pad_mean", lambda x: jnp.pad(x, (2, 1), mode="mean"), (n,))
    row("pad_ramp", lambda x: jnp.pad(x, (2, 1), mode="linear_ramp"), (n,))
    row("conv_full", lambda x: jnp.convolve(x, jnp.ones(3)), (p,))
    row("corr", lambda x: jnp.correlate(x, jnp.ones(3), mode="same"), (p,))
    row("rfft_b", lambda x: jnp.abs(jnp.fft.rfft2(x)), (n, 4, 4), tol=1e-3)
    row(
        "resize",
        lambda x: J.image.resize(x, (x.shape[0], 8), "linear") if hasattr(tinyjax, "image") else x,
        X,
        tol=1e-3,
    )
    row(
        "logdet",
        lambda x: jnp.linalg.slogdet(jnp.einsum("ni,nj->nij", x, x) + jnp.eye(D))[1],
        X,
        tol=1e-3,
    )
    row("expm", lambda x: J.scipy.linalg.expm(jnp.einsum("ni,nj->nij", x, x) * 0.1), X, tol=1e-3)
    row("mean_cov_inv", lambda x: jnp.linalg.inv(x.T @ x / x.shape[0] + jnp.eye(D)), X, tol=1e-3)
    row(
        "power_iter",
        lambda x: lax.fori_loop(
            0,
            5,
            lambda i, v: (lambda w: w / jnp.linalg.norm(w))(x @ (x.T @ v)),
            jnp.ones(x.shape[0]),
        ),
        X,
        tol=1e-3,
    )
    row("blockd", lambda x: J.scipy.linalg.block_diag(x, jnp.ones((1, 1))), X)
    row("nanquant", lambda x: jnp.nanmedian(x, axis=1), X)
    row("apply_over", lambda x: jnp.apply_over_axes(jnp.sum, x, [0]), X)
    row("unravel", lambda x: jnp.stack(jnp.unravel_index(jnp.arange(3) * 0, x.shape)), X)
    row(
        "ravel_multi",
        lambda x: jnp.ravel_multi_index(
            (jnp.zeros(2, int), jnp.ones(2, int)), x.shape, mode="clip"
        ),
        X,
    )
    row("indices", lambda x: jnp.indices(x.shape), X)
    row("fill_diag", lambda x: jnp.fill_diagonal(x, 0.0, inplace=False), (n, n))
    row("ix_", lambda x: x[jnp.ix_(jnp.arange(x.shape[0]), jnp.array([0, 2]))], X)
    row("choose", lambda i: jnp.choose(i, [1.0, 2.0, 3.0], mode="clip"), (n, "int32"))
    row("compress", lambda x: jnp.compress(jnp.array([True, False, True, True]), x, axis=1), X)
    row("extract", lambda x: jnp.extract(x > 0, x, size=3), (n,))
    row("delete", lambda x: jnp.delete(x, 1, axis=1), X)
    row("delete_n", lambda x: jnp.delete(x, 0, axis=0), X)
    row("insert", lambda x: jnp.insert(x, 1, 0.0, axis=1), X)
    row("rot90", lambda x: jnp.rot90(x), X)
    row("fliplr", lambda x: jnp.fliplr(x), X)
    row("triu_idx", lambda x: jnp.triu(x, 1), X)
    row("tri3", lambda x: jnp.tril(x, -1), (m, n, n))
    row("cumtrap", lambda x: jnp.cumsum((x[1:] + x[:-1]) / 2), (n,))
    row("nancumsum", lambda x: jnp.nancumsum(x, axis=0), X)
    row("vecdot", lambda x, y: jnp.vecdot(x, y), X, X)
    row("matvec", lambda x, y: jnp.matvec(x, y), (n, m), (m,))
    row("multi_dot", lambda x, y: jnp.linalg.multi_dot([x, y, jnp.ones((3,))]), (n, m), (m, 3))
    row("matrix_power", lambda x: jnp.linalg.matrix_power(x * 0.1, 3), (n, n))
    row("geomspace", lambda x: jnp.geomspace(1.0, 10.0, x.shape[0] + 1), X, tol=1e-3)
    row("blackman", lambda x: jnp.hanning(5) * x.shape[0], X)
    row("frexp", lambda x: jnp.frexp(x)[0], X)
    row("einsum_batch_dim", lambda x, y: jnp.einsum("nd,nd->n", x, y), X, X)
    row("einsum_outer", lambda x, y: jnp.einsum("n,m->nm", x, y), (n,), (m,))
    row("einsum_sum", lambda x, y: jnp.einsum("nm,nm->", x, y), (n, m), (n, m))
    row(
        "ein3path",
        lambda x, y, z: jnp.einsum("bnm,bmk,bk->bn", x, y, z),
        (2, n, m),
        (2, m, 3),
        (2, 3),
    )
    row("reduce_precision", lambda x: lax.reduce_precision(x, 5, 10), X)
    row("bitcast", lambda x: lax.bitcast_convert_type(x, jnp.int32), X)
    row("bitcast8", lambda x: lax.bitcast_convert_type(x, jnp.uint8), X)
    row("ragged", lambda x, w: lax.ragged_dot(x, w, jnp.array([1, 0])), X, (2, D, 3))
    row("scatter_add", lambda x, i: jnp.zeros((5, D)).at[i].add(x), X, (n, "int32"))
    row("scatter_max", lambda x, i: jnp.full((5, D), -9.0).at[i].max(x), X, (n, "int32"))
    row("seg_max", lambda x, i: J.ops.segment_max(x, i, num_segments=3), X, (n, "int32"))
    row(
        "moe",
        lambda x, w: jnp.einsum("ne,nd,edf->nf", nn.softmax(x @ jnp.ones((D, 3))), x, w),
        X,
        (3, D, 2),
    )
    row(
        "gnn",
        lambda x, s, r: jnp.zeros_like(x).at[r % x.shape[0]].add(x[s % x.shape[0]]),
        X,
        (m, "int32"),
        (m, "int32"),
    )
    row(
        "sinkhorn",
        lambda x: lax.fori_loop(
            0,
            3,
            lambda i, a: (
                (a / a.sum(0, keepdims=True)) / (a / a.sum(0, keepdims=True)).sum(1, keepdims=True)
            ),
            jnp.exp(x),
        ),
        (n, m),
        tol=1e-4,
    )
    row("beam", lambda x: lax.top_k(x.reshape(x.shape[0], -1), 2)[0], (n, 2, D))
    row("roll2", lambda x: jnp.roll(x, (1, 2), axis=(0, 1)), X)
    row("roll_traced", lambda x, i: jnp.roll(x, i, axis=0), X, ("int32",))
    row("roll_n", lambda x: jnp.roll(x, x.shape[0] // 2, axis=0), X)
    row("shift_scan", lambda x: lax.scan(lambda c, r: (r, c), jnp.zeros(D), x)[1], X)
    row("len_like", lambda x: x * np.int64(2) * x.shape[0], X)
    row("np_mul", lambda x: jnp.zeros(np.int64(2) * x.shape[0]), X)
    row("np_float", lambda x: x * (np.float32(0.5) * x.shape[0]), X)
    row("np_arr", lambda x: x[:1] * (np.ones(D, np.float32) * x.shape[0]), X)
    row("maximum_dim", lambda x: jnp.maximum(x.shape[0], 3) * x, X)
    row("mod_eq", lambda x: jnp.where(jnp.arange(64) % x.shape[0] == 0, 1, 0), X)
    row(
        "nested_scan",
        lambda x: lax.scan(
            lambda c, r: (c + lax.scan(lambda d, q: (d + q, None), 0.0, r)[0], None), 0.0, x
        )[0],
        (m, n),
    )
    row("nested_vmap_jit", lambda x: J.vmap(J.vmap(J.jit(lambda r: r * 2)))(x), (m, n, 2))
    row("nn_pool", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 2), "SAME"), X)
    row(
        "logits_mask",
        lambda x, l: jnp.where(nn.one_hot(l, x.shape[1]) > 0, x, -1e9),
        (n, m),
        (n, "int32"),
    )
    row(
        "vocab_n",
        lambda x, l: jnp.take_along_axis(nn.log_softmax(x), l[:, None] % x.shape[1], 1),
        (n, m),
        (n, "int32"),
    )

    return table


OURS = programs(tinyjax)


def function(x: Any) -> Any:
    """Compiled on its own; JAX has no such thing."""
    return tinyjax.function(lambda x: tinyjax.numpy.tanh(x) ** 2, precompile=True)(x)


OURS["function"] = function, ((n, D),), 2e-5
OURS["grad of function"] = tinyjax.grad(lambda x: function(x).sum()), ((n, D),), 2e-5


def split_dtype(shape: tuple[Any, ...]) -> tuple[tuple[Any, ...], str]:
    """A shape of the table and its dtype."""
    return (shape[:-1], shape[-1]) if shape and isinstance(shape[-1], str) else (shape, "float32")


def symbolic(shape: tuple[Any, ...]) -> Any:
    """What a program is traced with."""
    sizes, dtype = split_dtype(shape)
    return tinyjax.random.key(0) if dtype == "key" else tinyjax.ShapeDtypeStruct(sizes, dtype)


def value(library: Any, shape: tuple[Any, ...], sizes: dict[Dim, int], seed: int) -> Any:
    """An argument of a program at given sizes."""
    symbols, dtype = split_dtype(shape)
    if dtype == "key":
        return library.random.key(3)
    at = {d.atom: size for d, size in sizes.items()}
    shape = tuple(evaluate(s, at) for s in symbols)
    rng = np.random.default_rng(seed)
    if dtype == "int32":
        return library.numpy.asarray(rng.integers(0, 3, shape), dtype)
    return library.numpy.asarray(rng.standard_normal(shape), dtype)


def raw(x: Any) -> np.ndarray:
    """An array as NumPy has it."""
    if str(getattr(x, "dtype", "")).startswith("key<"):
        x = (tinyjax if isinstance(x, tinyjax.Array) else jax).random.key_data(x)
    return np.asarray(x)


def traced(name: str) -> tuple[Any, Any]:
    """The one trace of a program, and the tree of its result."""
    f, shapes, _ = OURS[name]
    jaxpr, out = tinyjax.make_jaxpr(f, return_shape=True)(*map(symbolic, shapes))
    return jaxpr, tinyjax.tree.structure(out)


def results(jaxpr: Any, sizes: dict[Dim, int], args: list[Any]) -> list[np.ndarray]:
    """What a trace gives at these sizes."""
    body = bind_sizes(jaxpr.body, {d.atom: size for d, size in sizes.items()})
    verify(body, "jaxpr")
    return [raw(v) for v in evaluate_body(body, [*map(raw, args), *map(raw, jaxpr.consts)])]


def assert_close(got: np.ndarray, want: np.ndarray, tol: float) -> None:
    """Equal in shape and dtype, and close."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


@pytest.mark.parametrize("name", OURS)
def test_one_trace_serves_all_sizes(name: str) -> None:
    f, shapes, tol = OURS[name]
    jaxpr, tree = traced(name)
    assert "Dim" not in str(jaxpr)
    for seed, sizes in enumerate(SIZES):
        args = [value(tinyjax, s, sizes, seed) for s in shapes]
        want, want_tree = tinyjax.tree.flatten(f(*args))
        assert tree == want_tree
        for a, b in zip(results(jaxpr, sizes, args), want, strict=True):
            assert_close(a, raw(b), tol)


@functools.cache
def theirs() -> dict[str, Row]:
    """The programs in terms of jax."""
    return programs(jax)


ALSO_JAX = """
add_1d outer var_ddof softmax logsumexp norm_axis batched einsum3 arange_step arange_rev eye2 tri
linspace linspace_ne diagonal slice1 slice_m3 slice_12 slice_r2 slicehalf idx_pair at_slice at_slice_m1
at_pair take_along dynslice pad_to pad_edge roll_m repeat_n split_n_idx reshape_e_2 cumprod argmax topk
median_n one_hot_n cov attention hand_attention ce_grad normal bernoulli permutation categorical
array_n add_n scan_rev fori_at vmap_in1 vmap_nested assoc_scan grad_slicer grad_cummax grad_roll
grad_at_set2 custom_vjp_g hessian_n e_patches conv_grad mixed3 mixed5 mixed7 rel_bias kvcache lm_loss ssm
quantile_n interp batchnorm vmap_dynu jac_rev_n
""".split()


@pytest.mark.parametrize("name", ALSO_JAX)
def test_one_trace_gives_what_jax_gives(name: str) -> None:
    f, shapes, tol = theirs()[name]
    sizes = SIZES[2]
    want = jax.tree.leaves(f(*(value(jax, s, sizes, 2) for s in shapes)))
    got = results(traced(name)[0], sizes, [value(tinyjax, s, sizes, 2) for s in shapes])
    for a, b in zip(got, want, strict=True):
        assert_close(a, raw(b), max(tol, 1e-4))


def test_sizes_are_printed_as_expressions() -> None:
    f = lambda x: x[1:].sum(0) / x.shape[0]
    x = f32[n, 4]
    assert_jaxpr(
        f,
        [x],
        """
        { lambda a:f32[n,4]. let
            b:f32[n - 1,4] = slice[start=(1,0) stop=(n,4)] a
            c:f32[4] = reduce_add[axes=(0)] b
            d:i64[] = dim[size=n]
            e:i32[]{weak} = cast d
            f:f32[] = cast e
            g:f32[4] = div c f
          in (g,) }""",
    )
    shown = [e for e in tinyjax.make_jaxpr(f)(x).eqns if e.primitive.name == "dim_as_value"]
    assert [e.params["dim"] for e in shown] == [n]


def test_equations_can_be_applied_again_at_sizes() -> None:
    x = f32[n, 4]
    f = lambda x: tinyjax.nn.softmax(x[:-1] * x.shape[0], axis=0)
    jaxpr = tinyjax.make_jaxpr(f)(x)
    again = tinyjax.make_jaxpr(tinyjax.extend.core.jaxpr_as_fun(jaxpr))(x)
    assert again.body is jaxpr.body


def test_two_traces_are_one_body_and_so_are_two_bindings() -> None:
    x = f32[n, m]
    first, second = (tinyjax.make_jaxpr(lambda x: (x @ x.T).sum())(x) for _ in range(2))
    assert first.body is second.body
    sizes = {n.atom: 3, m.atom: 2}
    plain = tinyjax.make_jaxpr(lambda x: (x @ x.T).sum())(f32[3, 2])
    assert bind_sizes(first.body, sizes) is bind_sizes(second.body, sizes) is plain.body


def test_binding_walks_each_body_once() -> None:
    """Thirty levels of a function that calls the one below twice: 2**30 calls, 30 bodies."""
    f = tinyjax.jit(lambda x: x * x.shape[0])
    for _ in range(30):
        f = tinyjax.jit(lambda x, f=f: f(f(x)) + 1.0)
    body = tinyjax.make_jaxpr(f)(f32[n]).body
    before = nodes_created()
    bound = bind_sizes(body, {n.atom: 3})
    assert nodes_created() - before < 400
    assert not [x for x in toposort([bound], bodies=True) if x.op is Op.DIM]


def test_bodies_that_derivative_rules_hold_are_bound() -> None:
    @tinyjax.custom_vjp
    def scaled(x: Any) -> Any:
        return x * x.shape[0]

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, ct: (ct * ct.shape[0] * 10,))
    tangent = lambda x: tinyjax.jvp(scaled, (x,), (x,))[1]
    body = tinyjax.make_jaxpr(tangent)(f32[n]).body
    (rule,) = (x for x in toposort([body]) if x.op is Op.CUSTOM_LIN)
    (bound,) = (x for x in toposort([bind_sizes(body, {n.atom: 3})]) if x.op is Op.CUSTOM_LIN)
    backward, bound_backward = (
        x.arg.backward.body((False,)) if isinstance(x.arg.backward, Backward) else x.arg.backward
        for x in (rule, bound)
    )
    assert mentions(backward)
    assert not mentions(bound_backward)
    (ct,) = evaluate_body(bound_backward, [np.ones(3, np.float32)])
    np.testing.assert_array_equal(ct, [30.0] * 3)


def mentions(body: Any) -> bool:
    """Whether an aval or an op of a body has a symbolic size."""
    return any(
        node.op is Op.DIM or any(isinstance(s, DimExpr) for a in avals_of(node) for s in a.shape)
        for node in toposort([body], bodies=True)
    )


def avals_of(node: Any) -> tuple[Any, ...]:
    """One, or those of its results."""
    return getattr(node.aval, "elts", (node.aval,))


def test_a_dimension_without_a_size_is_an_error() -> None:
    body = tinyjax.make_jaxpr(lambda x: x * 2)(f32[n, m]).body
    with pytest.raises(KeyError):
        bind_sizes(body, {n.atom: 3})


@pytest.mark.parametrize("name", OURS)
def test_one_program_serves_all_sizes(name: str) -> None:
    f, shapes, tol = OURS[name]
    program = tinyjax.jit(f).lower(*map(symbolic, shapes)).compile()
    for seed, sizes in enumerate(SIZES):
        args = [value(tinyjax, s, sizes, seed) for s in shapes]
        got, want = tinyjax.tree.leaves(program(*args)), tinyjax.tree.leaves(f(*args))
        for a, b in zip(got, want, strict=True):
            assert_close(raw(a), raw(b), max(tol, 1e-4))
