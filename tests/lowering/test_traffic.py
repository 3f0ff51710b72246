"""Bytes that kernels read and write, as `lower(...).cost` says them."""

import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp

A = np.ones((64, 64), np.float32)
MILLION = np.ones(1_000_000, np.float32)
THOUSAND = np.ones(1000, np.float32)
ROWS = np.array([5, 7, 5])
DONATED = {"donate_argnums": 0}


def moved(f, *args, **options):
    return jax.jit(f, **options).lower(*args).cost["bytes accessed"]


CASES = {
    "one element of a donated array": (lambda x: x.at[3].set(1.0), (MILLION,), DONATED, 4),
    "at a place that is read": (lambda x, i: x.at[i].set(1.0), (MILLION, 3), DONATED, 4 + 4),
    "of one that must be kept": (lambda x: x.at[3].set(1.0), (MILLION,), {}, 2 * MILLION.nbytes + 4),
    "rows added to": (
        lambda x, i, v: x.at[i].add(v),
        (A, ROWS, A[:3]),
        DONATED,
        3 * 4 + 3 * 3 * 64 * 4,  # indices; three rows of v, and x before and after
    ),
    "rows taken": (lambda x, i: x[i], (A, ROWS), {}, 3 * 4 + 2 * 3 * 64 * 4),
    "a fused chain": (lambda x: jnp.tanh(x * 2) + x, (A,), {}, 2 * A.nbytes),
    "the whole twice": (lambda x: x.sum(0) + x.sum(1), (A,), {}, A.nbytes + 64 * 4),
    "a part": (lambda x: x[:10] + 1, (MILLION,), {}, 80),
    "neighbours": (lambda x: x[1:] - x[:-1], (THOUSAND,), {}, 4000 + 3996),
    "one column of many": (lambda x: x[:, 3] * 2, (A,), {}, 2 * 64 * 4),
    "padding is not read": (lambda x: jnp.pad(x, 3), (THOUSAND,), {}, 4000 + 4024),
    "a product": (lambda a, b: a @ b, (A, A), {}, 3 * A.nbytes),
    "of a part": (lambda a, b: a[:16] @ b, (A, A), {}, A.nbytes + 2 * 16 * 64 * 4),
    "a sort": (jnp.sort, (THOUSAND,), {}, 8000),
    "nothing but a copy": (lambda x: x, (THOUSAND,), {}, 8000),
    "made from nothing": (lambda: jnp.zeros(1000), (), {}, 4000),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_moved(case):
    f, args, options, expected = CASES[case]
    assert moved(f, *args, **options) == expected


def test_loops_count_their_length_and_branches_the_dearest():
    def steps(n):
        return moved(lambda x: jax.lax.fori_loop(0, n, lambda _, x: jnp.sort(x), x), THOUSAND)

    assert steps(7) - steps(4) == 3 * 8000

    def branches(*fs):
        return moved(lambda i, x: jax.lax.switch(i, fs, x), 1, THOUSAND)

    assert branches(jnp.sort, jnp.sin) == branches(jnp.sin, jnp.sort) >= branches(jnp.sin, jnp.cos)


def test_a_precompiled_call_counts_each_time():
    f = jax.function(lambda x: jnp.sort(x), precompile=True)
    assert moved(lambda x: f(f(x)), THOUSAND) == 2 * moved(f, THOUSAND)
