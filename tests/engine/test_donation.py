"""Donating an array changes no other: not those that are the same memory, nor what others see of it."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading

import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp
from tinyjax import lax

GIVEN = np.arange(5, dtype=np.float32)

SAME = {
    "reshape": lambda x: x.reshape(5),
    "ravel": jnp.ravel,
    "ellipsis": lambda x: x[...],
    "all": lambda x: x[:],
    "transpose": lambda x: x.T,
    "squeeze": jnp.squeeze,
    "swapaxes": lambda x: jnp.swapaxes(x, 0, 0),
    "astype": lambda x: x.astype(x.dtype, copy=True),
    "convert": lambda x: lax.convert_element_type(x, jnp.float32),
    "bitcast": lambda x: lax.bitcast_convert_type(x, jnp.float32),
    "broadcast": lambda x: jnp.broadcast_to(x, x.shape),
    "concatenate": lambda x: jnp.concatenate([x]),
    "split": lambda x: jnp.split(x, 1)[0],
    "positive": lambda x: +x,
    "real": lambda x: x.real,
    "conj": jnp.conj,
    "clip": jnp.clip,
    "where": lambda x: jnp.where(True, x, x),
    "array": jnp.array,
    "copy": lambda x: x.copy(),
    "copied": copy.copy,
    "placed": lambda x: jax.device_put(x, may_alias=False),
    "jit": jax.jit(lambda x: x),
    "vmap": lambda x: jax.vmap(lambda v: v)(x),
    "checkpoint": lambda x: jax.checkpoint(lambda v: v)(x),
    "vjp": lambda x: jax.vjp(lambda v: v, x)[0],
    "jvp": lambda x: jax.jvp(lambda v: v, (x,), (x,))[1],
    "reference": lambda x: jax.new_ref(x),
    "pullback": lambda x: jax.vjp(lambda v: v * v, x)[1](jnp.full(5, 0.5))[0],
    "NumPy": lambda x: np.asarray(x.ravel()),
}


@pytest.mark.parametrize("made", [jnp.asarray, lambda v: jnp.asarray(v) * 1.0, jax.jit(jnp.array)])
@pytest.mark.parametrize("form", SAME)
def test_what_is_the_same_memory_stays(form, made):
    x = made(GIVEN)
    y = SAME[form](x)
    z = jax.jit(lambda v: v * 0 + 7, donate_argnums=0)(x)
    np.testing.assert_array_equal(np.asarray(y[...]), GIVEN)
    assert z.tolist() == [7] * 5


def test_a_pullback_keeps_what_it_needs():
    x = jnp.arange(6.0)
    _, pull = jax.vjp(lambda v: v * v, x)
    jax.jit(lambda v: v * 0 + 7, donate_argnums=0)(x)
    assert pull(jnp.ones(6))[0].tolist() == [0, 2, 4, 6, 8, 10]


def test_a_donated_argument_may_be_another_one_too():
    x = jnp.arange(6.0)
    f = jax.jit(lambda a, b: (a * 10)[::-1] + b, donate_argnums=0)
    assert f(x, x.ravel()).tolist() == [50, 41, 32, 23, 14, 5]


@pytest.mark.parametrize("alias", [lambda x: x, lambda x: x.reshape(-1)])
def test_memory_of_others_is_not_written_to(alias, tmp_path):
    np.ones(64, np.float32).tofile(tmp_path / "data")
    mapped = np.memmap(tmp_path / "data", np.float32, mode="r")
    for shared in (np.ones(1024, np.float32)[:512], mapped):
        x = alias(jnp.from_dlpack(shared))
        gc.collect()
        jax.jit(lambda v: v + 1, donate_argnums=0)(x)
        assert (shared == 1).all()


def test_a_view_of_numpys_stays_when_an_alias_is_donated():
    x = jnp.arange(5.0) + 0
    view = np.asarray(x)
    y = x.ravel()
    del x
    jax.jit(lambda v: v + 1, donate_argnums=0)(y)
    assert view.tolist() == [0, 1, 2, 3, 4]


def test_an_array_that_nothing_else_holds_is_donated():
    x = jnp.arange(5.0) + 0
    at = x._buffer.value.ctypes.data
    y = jax.jit(lambda v: v + 1, donate_argnums=0)(x)
    assert x.is_deleted() and y._buffer.value.ctypes.data == at
    z = jax.jit(lambda v: v + 1, donate_argnums=0)(y)
    assert y.is_deleted() and z._buffer.value.ctypes.data == at


@pytest.mark.parametrize("stop", ["exception", "signal"])
def test_an_argument_that_was_being_written_to_is_gone(stop):
    def fail(v):
        if stop == "exception":
            raise ValueError("stop")
        return v

    def f(x):
        x = x.at[0].set(77)
        x = x + jax.pure_callback(fail, jnp.float32(0), jnp.float32(0))
        return lax.fori_loop(0, 1 if stop == "exception" else 2**30, lambda i, v: v + 1, x)

    x = jnp.ones(1000) * 1
    if stop == "signal":
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises((ValueError, KeyboardInterrupt)):
        jax.jit(f, donate_argnums=0)(x)
    assert x.is_deleted()


def test_an_array_pickled_out_of_band_has_memory_of_its_own():
    x = jnp.arange(5.0) + 0
    parts: list[pickle.PickleBuffer] = []
    y = pickle.loads(pickle.dumps(x, protocol=5, buffer_callback=parts.append), buffers=parts)
    jax.jit(lambda v: v + 1, donate_argnums=0)(y)
    assert x.tolist() == [0, 1, 2, 3, 4]
    given = bytearray(np.full(5, 3, np.float32).tobytes())
    z = pickle.loads(pickle.dumps(x, protocol=5, buffer_callback=[].append), buffers=[given])
    given[:] = bytes(20)
    assert z.tolist() == [3] * 5


def test_one_result_that_is_there_twice():
    x = jnp.arange(4.0) + 1
    first, second = jax.vjp(lambda a, b: a + b, x, x)[1](x)
    jax.jit(lambda v: v * 0, donate_argnums=0)(first)
    assert second.tolist() == x.tolist() == [1, 2, 3, 4]
    p = {"a": jnp.ones(4), "b": jnp.ones(4)}
    g = jax.grad(lambda p: jnp.cos(p["a"] + p["b"]).sum())(p)
    twice = jax.jit(lambda g: jax.tree.map(lambda v: v * 2, g), donate_argnums=0)(g)
    np.testing.assert_allclose(twice["a"], np.full(4, -2 * np.sin(2)), rtol=1e-6)
    np.testing.assert_allclose(twice["b"], np.full(4, -2 * np.sin(2)), rtol=1e-6)


def moves_of_large(f, *args):
    """Copies of more than a scalar in the program, and whether the first argument's memory is
    where a result lies."""
    schedule = jax.jit(f, donate_argnums=0).lower(*args).schedule
    copies = [
        line for line in schedule.splitlines() if line.startswith("copy") and "[1000]" in line
    ]
    return len(copies), " lies in the donated in0" in schedule.replace("no result lies", "")


X = np.arange(1000, dtype=np.float32)
LOOPS = {
    # name: (function, copies outside the loop, whether a result lies in the argument)
    "even": (lambda x: lax.fori_loop(0, 4, lambda i, c: c * 2 + i, x), 0, True),
    "odd: it starts on the other side": (
        lambda x: lax.fori_loop(0, 5, lambda i, c: c * 2 + i, x), 1, True,
    ),
    "changed in place": (lambda x: lax.fori_loop(0, 5, lambda i, c: c.at[i].set(7), x), 0, True),
    "while: where it ends is not known before": (
        lambda x: lax.while_loop(lambda c: c.sum() < 1e8, lambda c: c * 2 + 1, x), 1, True,
    ),
    "outputs as well": (lambda x: lax.scan(lambda c, v: (c + v, c.sum()), x, X[:4]), 0, True),
    "read in the loop as well": (
        lambda x: lax.scan(lambda c, v: (c + x, c.sum()), x, X[:4]), 1, False,
    ),
    "read afterwards": (lambda x: (lax.fori_loop(0, 4, lambda i, c: c + i, x), x.sum()), 1, False),
    "a result itself": (lambda x: (lax.fori_loop(0, 4, lambda i, c: c + i, x), x), 1, True),
    "not a result": (lambda x: lax.fori_loop(0, 4, lambda i, c: c + i, x)[::-1] * 2, 1, False),
    "two loops": (
        lambda x: lax.fori_loop(0, 2, lambda i, c: c * 3, lax.fori_loop(0, 2, lambda i, c: c + i, x)),
        2, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOPS)
def test_a_donated_array_that_starts_a_carry_is_where_the_loop_works(case):
    f, copies, there = LOOPS[case]
    assert moves_of_large(f, X) == (copies, there)
    x = jnp.asarray(X)
    want = jax.tree.map(np.array, f(jnp.asarray(X)))
    got = jax.jit(f, donate_argnums=0)(x)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-6), got, want)
    assert x.is_deleted()


def test_two_donated_arrays_that_trade_places_in_a_loop():
    def f(pair):
        return lax.fori_loop(0, 3, lambda i, c: (c[1], c[0] * 2), pair)

    want = jax.tree.map(np.array, f((jnp.asarray(X), jnp.asarray(X + 1))))
    got = jax.jit(f, donate_argnums=0)((jnp.asarray(X), jnp.asarray(X + 1)))
    jax.tree.map(np.testing.assert_array_equal, got, want)
