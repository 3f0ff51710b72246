"""Scaled dot-product attention, with `jax.nn.dot_product_attention`'s arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.uop import UOp
from tinyjax.engine.values import finish, lift
from tinyjax.nn.activations import softmax

ArrayLike = Any


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """softmax(q k^T scale + bias, masked) v per head.

    Shapes: query [B, T, N, H] (or without B), key and value [B, S, K, H] with N a multiple of K
    (grouped queries); bias and mask broadcast to [B, N, T, S]; result like query.
    Dtype: that of query; scores and softmax in float32.
    """
    q, k, v = lift(query), lift(key), lift(value)
    single = q.ndim == 3
    if single:
        q, k, v = (b.unsqueeze(x, 0) for x in (q, k, v))
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape:
        raise ValueError(
            f"attention needs query [B,T,N,H] and key, value [B,S,K,H]; got {q.shape}, {k.shape}, "
            f"{v.shape}"
        )
    batch, length, heads, width = q.shape
    _, source, groups, _ = k.shape
    if heads % groups or k.shape[0] != batch or k.shape[3] != width:
        raise ValueError(
            f"query heads ({heads}) must be a multiple of key/value heads ({groups}), batch and "
            "head size equal; got "
            f"{q.shape} and {k.shape}"
        )
    per = heads // groups
    factor = 1.0 / math.sqrt(width) if scale is None else scale
    q5 = b.reshape(q, (batch, length, groups, per, width))
    # scores: batch, group, length, per, source -> batch, group, per, length, source
    scores = b.dot(q5, k, ((4,), (3,)), ((0, 2), (0, 2)))
    scores = b.cast(b.permute(scores, (0, 1, 3, 2, 4)), np.float32)
    scores = b.mul(scores, b.scalar(factor, np.float32))
    full = (batch, heads, length, source)
    scores = b.reshape(scores, full)
    if bias is not None:
        scores = b.add(scores, b.broadcast(b.cast(four(lift(bias)), np.float32), full))
    allowed = allowed_pairs(
        full, mask, is_causal, query_seq_lengths, key_value_seq_lengths, local_window_size
    )
    if allowed is not None:
        scores = b.where(
            allowed, scores, b.scalar(-0.7 * float(np.finfo(np.float32).max), np.float32)
        )
    weights = lift(softmax(finish(scores), axis=-1))
    weights = b.reshape(b.cast(weights, v.dtype), (batch, groups, per, length, source))
    # batch, group, per, length, width -> batch, length, heads, width
    out = b.dot(weights, v, ((4,), (1,)), ((0, 1), (0, 2)))
    out = b.reshape(b.permute(out, (0, 3, 1, 2, 4)), (batch, length, heads, width))
    if query_seq_lengths is not None:
        inside = b.lt(
            b.iota((batch, length, heads, width), 1),
            b.expand(b.cast(lift(query_seq_lengths), b.INT32), (batch, length, heads, width), (0,)),
        )
        out = b.where(inside, out, b.like(out, 0))
    out = b.cast(out, q.dtype)
    result = finish(b.squeeze(out, (0,)) if single else out)
    if not return_residual:
        return result
    from tinyjax.nn.activations import logsumexp

    residual = lift(logsumexp(finish(scores), axis=-1))
    residual = b.permute(residual, (0, 2, 1))
    return result, finish(b.squeeze(residual, (0,)) if single else residual)


def four(x: UOp) -> UOp:
    """Leading axes up to rank 4."""
    return b.reshape(x, (1,) * (4 - x.ndim) + x.shape)


def allowed_pairs(
    full: tuple[int, ...],
    mask: Any,
    causal: bool,
    query_lengths: Any,
    source_lengths: Any,
    window: Any,
) -> UOp | None:
    """Which (query, source) pairs may attend, or None for all."""
    parts: list[UOp] = []
    if mask is not None:
        m = lift(mask)
        if m.dtype != np.bool_:
            raise ValueError(f"Mask must be boolean dtype, but got {m.dtype.name}.")
        parts.append(b.broadcast(four(m), full))
    rows, cols = b.iota(full, 2), b.iota(full, 3)
    if causal:
        parts.append(b.ge(rows, cols))
    if window is not None:
        left, right = (window, window) if isinstance(window, int) else window
        parts.append(b.le(b.sub(rows, cols), b.scalar(int(left), b.INT32)))
        parts.append(b.le(b.sub(cols, rows), b.scalar(int(right), b.INT32)))
    for lengths, place in ((query_lengths, rows), (source_lengths, cols)):
        if lengths is not None:
            n = lift(lengths)
            if n.ndim != 1 or not dtypes.is_integer(n.dtype):
                raise ValueError(
                    f"sequence lengths must be integers of shape ({full[0]},), got "
                    f"{n.aval.str_short()}"
                )
            parts.append(b.lt(place, b.expand(b.cast(n, b.INT32), full, (0,))))
    out: UOp | None = None
    for p in parts:
        out = p if out is None else b.and_(out, p)
    return out
