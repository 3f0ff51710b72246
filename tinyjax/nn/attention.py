"""Scaled dot-product attention, with `jax.nn.dot_product_attention`'s arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.uop import UOp
from tinyjax.engine.composites import composite
from tinyjax.engine.values import finish, lift
from tinyjax.nn.activations import logsumexp, softmax

ArrayLike = Any
FLOAT32 = np.dtype(np.float32)
Given = tuple[str, ...]
"""Names of the arrays an attention was given beside queries, keys and values."""


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
    groups = k.shape[2]
    if heads % groups or k.shape[0] != batch or k.shape[3] != width:
        raise ValueError(
            f"query heads ({heads}) must be a multiple of key/value heads ({groups}), batch and "
            "head size equal; got "
            f"{q.shape} and {k.shape}"
        )
    scale = 1.0 / math.sqrt(width) if scale is None else float(scale)
    causal, window = bool(is_causal), window_of(local_window_size)
    named = {
        "bias": None if bias is None else four(lift(bias)),
        "mask": None if mask is None else four(boolean_mask(mask)),
        "query_lengths": lengths_of(query_seq_lengths, batch),
        "source_lengths": lengths_of(key_value_seq_lengths, batch),
    }
    given = tuple(name for name, x in named.items() if x is not None)
    args = (q, k, v, *(x for x in named.values() if x is not None))
    static: dict[str, Any] = {"given": given, "scale": scale, "causal": causal, "window": window}
    out = finish(composite("attention", attention_node, *args, **static))
    result = finish(b.squeeze(out.node, (0,))) if single else out
    if not return_residual:
        return result
    residual = lift(logsumexp(finish(logits_node(*args, **static)), axis=-1))
    residual = b.permute(residual, (0, 2, 1))
    return result, finish(b.squeeze(residual, (0,)) if single else residual)


def attention_node(q: UOp, k: UOp, v: UOp, *rest: UOp, given: Given, **static: Any) -> UOp:
    """The formula; `given` names what `rest` holds."""
    batch, length, heads, width = q.shape
    source, groups = k.shape[1:3]
    logits = logits_node(q, k, v, *rest, given=given, **static)
    weights = lift(softmax(finish(logits), axis=-1))
    weights = b.cast(weights, v.dtype)
    weights = b.reshape(weights, (batch, groups, heads // groups, length, source))
    # batch, group, per, length, width -> batch, length, heads, width
    out = b.dot(weights, v, ((4,), (1,)), ((0, 1), (0, 2)))
    out = b.reshape(b.permute(out, (0, 3, 1, 2, 4)), q.shape)
    if "query_lengths" in given:
        lengths = rest[given.index("query_lengths")]
        inside = b.lt(b.iota(q.shape, 1), b.expand(b.cast(lengths, b.INT32), q.shape, (0,)))
        out = b.where(inside, out, b.like(out, 0))
    return b.cast(out, q.dtype)


def logits_node(
    q: UOp,
    k: UOp,
    v: UOp,
    *rest: UOp,
    given: Given,
    scale: float,
    causal: bool,
    window: tuple[int, int] | None,
) -> UOp:
    """Scaled scores, float32[batch, heads, length, source], with bias and masks."""
    batch, length, heads, width = q.shape
    source, groups = k.shape[1:3]
    full = (batch, heads, length, source)
    named = dict(zip(given, rest, strict=True))
    q5 = b.reshape(q, (batch, length, groups, heads // groups, width))
    # scores: batch, group, length, per, source -> batch, group, per, length, source
    scores = b.dot(q5, k, ((4,), (3,)), ((0, 2), (0, 2)))
    scores = b.cast(b.permute(scores, (0, 1, 3, 2, 4)), FLOAT32)
    scores = b.reshape(b.mul(scores, b.scalar(scale, FLOAT32)), full)
    if "bias" in named:
        scores = b.add(scores, b.broadcast(b.cast(named["bias"], FLOAT32), full))
    allowed = allowed_pairs(full, named, causal, window)
    if allowed is None:
        return scores
    return b.where(allowed, scores, b.scalar(-0.7 * float(np.finfo(np.float32).max), FLOAT32))


def four(x: UOp) -> UOp:
    """Leading axes up to rank 4."""
    return b.reshape(x, (1,) * (4 - x.ndim) + x.shape)


def boolean_mask(mask: ArrayLike) -> UOp:
    """The mask, which must be boolean."""
    node = lift(mask)
    if node.dtype != np.bool_:
        raise ValueError(f"Mask must be boolean dtype, but got {node.dtype.name}.")
    return node


def lengths_of(lengths: ArrayLike | None, batch: int) -> UOp | None:
    """Sequence lengths, one integer per batch element."""
    if lengths is None:
        return None
    node = lift(lengths)
    if node.ndim != 1 or not dtypes.is_integer(node.dtype):
        raise ValueError(
            f"sequence lengths must be integers of shape ({batch},), got {node.aval.str_short()}"
        )
    return node


def window_of(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """How far to the left and to the right a query may look."""
    if size is None:
        return None
    left, right = (size, size) if isinstance(size, int) else size
    return int(left), int(right)


def allowed_pairs(
    full: tuple[int, ...],
    named: dict[str, UOp],
    causal: bool,
    window: tuple[int, int] | None,
) -> UOp | None:
    """Which (query, source) pairs may attend, or None for all."""
    parts: list[UOp] = []
    if "mask" in named:
        parts.append(b.broadcast(named["mask"], full))
    rows, cols = b.iota(full, 2), b.iota(full, 3)
    if causal:
        parts.append(b.ge(rows, cols))
    if window is not None:
        left, right = window
        parts.append(b.le(b.sub(rows, cols), b.scalar(left, b.INT32)))
        parts.append(b.le(b.sub(cols, rows), b.scalar(right, b.INT32)))
    for name, place in (("query_lengths", rows), ("source_lengths", cols)):
        if name in named:
            lengths = b.cast(named[name], b.INT32)
            parts.append(b.lt(place, b.expand(lengths, full, (0,))))
    out: UOp | None = None
    for p in parts:
        out = p if out is None else b.and_(out, p)
    return out
