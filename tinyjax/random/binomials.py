"""Binomial and multinomial counts. Bits are those of JAX.

Few expected successes (n q <= 10, q the rarer outcome's probability): add up geometric gaps between
successes until they exceed n. Else transformed rejection, whose cost does not grow with n. Source:
Hoermann, "The generation of binomial random variates", algorithms BINV by gaps and BTRS (1993).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tinyjax.numpy as jnp
from tinyjax.core import dtypes
from tinyjax.engine.array import Array
from tinyjax.engine.values import lift
from tinyjax.lax.control_flow import scan, while_loop
from tinyjax.lax.reducing import cumsum
from tinyjax.random.distributions import RealArray, Shape, float_dtype, joined_shape, uniform
from tinyjax.random.keys import KeyLike, data_of, split

FEW = 10.0

STIRLING = (
    0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509,
    0.0166446911898211, 0.0138761288230707, 0.0118967099458917, 0.0104112652619720,
    0.00925546218271273, 0.00833056343336287,
)  # fmt: skip
"""log k! less Stirling's formula, for k up to 9."""


def stirling_tail(k: Array) -> Any:
    """log k! less Stirling's formula: the table, then the series."""
    table = jnp.array(STIRLING, k.dtype)
    small = jnp.clip(k, 0.0, 9.0)
    square = (small + 1) * (small + 1)
    series = (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / square) / square) / (small + 1)
    return jnp.where(k <= 9, table[jnp.floor(small).astype(np.int32)], series)


def by_gaps(key: Array, n: Array, p: Array, limit: Any) -> Any:
    """How many geometric gaps fit into n trials."""
    log_miss = jnp.log1p(-p)

    def running(carry: Any) -> Any:
        i, _, total, _ = carry
        return (total <= n).any() & (i < limit)

    def step(carry: Any) -> Any:
        i, count, total, keys = carry
        sub, keys = split(keys)
        count = jnp.where(total <= n, count + 1, count)
        gap = jnp.ceil(jnp.log(uniform(sub, p.shape, p.dtype)) / log_miss)
        return i + 1, count, total + gap, keys

    zeros = jnp.zeros(p.shape, p.dtype)
    return while_loop(running, step, (0, zeros, zeros, key))[1] - 1


def by_rejection(key: Array, n: Array, p: Array, limit: Any) -> Any:
    """BTRS: a hat with a fast squeeze."""
    spread = jnp.sqrt(n * p * (1 - p))
    width = 1.15 + 2.53 * spread
    slope = -0.0873 + 0.0248 * width + 0.01 * p
    centre = n * p + 0.5
    squeeze = 0.92 - 4.2 / width
    odds = p / (1 - p)
    alpha = (2.83 + 5.1 / width) * spread
    mode = jnp.floor((n + 1) * p)

    def running(carry: Any) -> Any:
        i, _, accepted, _ = carry
        return (~accepted).any() & (i < limit)

    def step(carry: Any) -> Any:
        i, count, accepted, keys = carry
        keys, first, second = split(keys, 3)
        u = uniform(first, p.shape, p.dtype) - 0.5
        v = uniform(second, p.shape, p.dtype)
        edge = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * slope / edge + width) * u + centre)
        bound = (
            (mode + 0.5) * jnp.log((mode + 1) / (odds * (n - mode + 1)))
            + (n + 1) * jnp.log((n - mode + 1) / (n - k + 1))
            + (k + 0.5) * jnp.log(odds * (n - k + 1) / (k + 1))
            + stirling_tail(mode)
            + stirling_tail(n - mode)
            - stirling_tail(k)
            - stirling_tail(n - k)
        )
        quick = (edge >= 0.07) & (v <= squeeze)
        slow = jnp.log(v * alpha / (slope / (edge * edge) + width)) <= bound
        accept = quick | (~((k < 0) | (k > n)) & slow)
        return i + 1, jnp.where(accept, k, count), accepted | accept, keys

    start = (0, jnp.full(p.shape, -1, p.dtype), jnp.full(p.shape, False), key)
    return while_loop(running, step, start)[1]


def binomial(
    key: KeyLike, n: RealArray, p: RealArray, shape: Shape = None, dtype: Any = None
) -> Array:
    """Successes in `n` trials of probability `p`, as floats.

    NaN for `p` below 0 or NaN and for `n` below 0 or NaN; infinity for infinite `n`.
    Shapes: `n` and `p` broadcast to `shape`. Dtype: float32 (float64 with x64).
    """
    kind = float_dtype(dtype, "binomial")
    data_of(key, "binomial")
    chance, trials = jnp.asarray(p), jnp.asarray(n)
    if not dtypes.is_inexact(chance.dtype):
        chance = chance.astype(dtypes.canonicalize_dtype(np.float64))
    trials = trials.astype(chance.dtype)
    target = joined_shape("binomial", shape, lift(trials), lift(chance))
    trials, chance = jnp.broadcast_to(trials, target), jnp.broadcast_to(chance, target)
    rare = chance < 0.5
    q = jnp.where(rare, chance, 1.0 - chance)
    no_trials = jnp.isnan(trials) | (trials < 0.0)
    endless = jnp.isinf(trials)
    no_chance = jnp.isnan(q)
    invalid = (q < 0.0) | no_chance
    q = jnp.where(invalid, jnp.full_like(q, 0.01), q)
    few = no_trials | (trials * q <= FEW)
    trials = jnp.floor(trials)
    limit = jnp.array(dtypes.finfo(kind).max, kind)
    counts = jnp.where(
        few,
        by_gaps(key, jnp.where(few, trials, 0.0), q, limit).astype(kind),
        by_rejection(key, jnp.where(few, 1e4, trials), jnp.where(few, 0.5, q), limit).astype(kind),
    )
    invalid = invalid | no_trials
    counts = jnp.where(invalid, jnp.full_like(counts, np.nan), counts)
    counts = jnp.where(endless & ~invalid, jnp.full_like(counts, np.inf), counts)
    plain = rare | no_trials | no_chance | endless
    out: Array = jnp.where(plain, counts, trials.astype(kind) - counts)
    return out


def multinomial(
    key: KeyLike,
    n: RealArray,
    p: RealArray,
    *,
    shape: Shape = None,
    dtype: Any = None,
    unroll: int | bool = 1,
) -> Array:
    """How many of `n` trials fall into each category of probabilities `p`, [..., categories].

    Binomials one category after the other, each of what the ones before left.
    """
    data_of(key, "multinomial")
    trials, chances = jnp.asarray(n), jnp.asarray(p)
    kind = jnp.result_type(trials, chances)
    if not dtypes.is_inexact(kind):
        kind = dtypes.canonicalize_dtype(np.float64)
    target = chances.shape if shape is None else tuple(shape)
    left = jnp.broadcast_to(trials.astype(kind), target[:-1])
    by_category = jnp.moveaxis(jnp.broadcast_to(chances.astype(kind), target), -1, 0)
    rest = cumsum(by_category, 0, reverse=True)
    ratios = by_category / jnp.where(rest == 0, 1, rest)

    def draw(remaining: Any, given: Any) -> tuple[Any, Any]:
        ratio, sub = given
        count = binomial(sub, remaining, jnp.clip(ratio, 0, 1), dtype=remaining.dtype)
        return remaining - count, count

    keys = split(key, ratios.shape[0])
    counts = jnp.moveaxis(scan(draw, left, (ratios, keys), unroll=unroll)[1], 0, -1)
    return counts if dtype is None else counts.astype(dtype)
