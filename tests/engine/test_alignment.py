"""Every value that a user can hold starts at a multiple of 64 bytes, however it was made."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp
from tinyjax import lax
from tinyjax.core.memory import ALIGNMENT, address

SIZES = [1, 3, 16, 250, 5000, 70000]


def seen(v: float) -> np.ndarray:
    return np.full(np.shape(v), 2, np.float32)


class Tensor:
    """A producer of DLPack whose memory is off by one element."""

    def __init__(self, n: int) -> None:
        base = np.zeros(n + ALIGNMENT, np.float32)
        start = -base.ctypes.data % ALIGNMENT // 4 + 1
        self.value = base[start : start + n]
        self.__dlpack__, self.__dlpack_device__ = self.value.__dlpack__, (lambda: (1, 0))


def scanned(x):
    return lax.scan(lambda c, v: (c + v, c * v), jnp.float32(0), x)


WAYS = {
    "literals": lambda x: [jnp.float32(3), jnp.asarray(2), jnp.array([1.0, 2.0, 3.0])],
    "creation": lambda x: [jnp.zeros_like(x), jnp.arange(x.size), jnp.linspace(0, 1, x.size)],
    "NumPy's": lambda x: [jnp.asarray(np.asarray(x)), jnp.array(np.asarray(x)[::-1])],
    "arithmetic": lambda x: [x + 1, x * x, -x, x < 2, x / 3, x**2, abs(x), 2 - x, x // 2],
    "narrow": lambda x: [x.astype("bfloat16") + 1, x.astype("int4") * 2, x.astype("float8_e4m3fn")],
    "functions": lambda x: [jnp.exp(x), jnp.log10(x), jnp.tanh(x), jax.nn.silu(x), jnp.sinc(x)],
    "bits": lambda x: [x.astype(int) >> 1, lax.population_count(x.astype(int)), x.view("int32")],
    "comparisons": lambda x: [jnp.where(x > 1, x, 0), jnp.maximum(x, 1), jnp.clip(x, 0, 1)],
    "complex": lambda x: [x + 1j, (x + 1j).real, abs(x * 1j), jnp.angle(x + 1j), 1j / (x + 1)],
    "conversions": lambda x: [
        x.astype("int32"),
        x.astype(bool),
        x.astype("float16"),
        x.astype("f"),
    ],
    "movement": lambda x: [
        x[::-1],
        x[1:],
        x[:1],
        x.reshape(-1, 1).T,
        jnp.tile(x, 2),
        jnp.pad(x, 1),
    ],
    "joins": lambda x: [jnp.concatenate([x, x]), jnp.stack([x, x]), *jnp.split(x, [1])],
    "folds": lambda x: [x.sum(), x.max(), x.mean(), jnp.cumsum(x), x.argmax(), x.prod(), x.std()],
    "contractions": lambda x: [x @ x, jnp.outer(x[:9], x[:9]), jnp.einsum("i,i->i", x, x)],
    "indices": lambda x: [x[0], x[jnp.array([0, 0])], x[x > 1e9], x[..., None], jnp.take(x, 0)],
    "updates": lambda x: [x.at[0].set(1), x.at[jnp.array([0])].add(1), x.at[:1].multiply(2)],
    "order": lambda x: [jnp.sort(x), jnp.argsort(x), *lax.top_k(x, 1), jnp.unique(x)],
    "routines": lambda x: [
        jnp.fft.fft(x),
        *jnp.linalg.eigh(jnp.eye(3)),
        jnp.linalg.inv(jnp.eye(5)),
    ],
    "random": lambda x: [jax.random.normal(jax.random.key(0), x.shape), jax.random.PRNGKey(0)],
    "copies": lambda x: [x.copy(), copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))],
    "placed": lambda x: [jax.device_put(x), *[s.data for s in x.addressable_shards]],
    "programs": lambda x: [jax.jit(jnp.exp)(x), *scanned(x), lax.cond(True, jnp.sin, jnp.cos, x)],
    "calls": lambda x: [jax.checkpoint(jnp.sin)(x), jax.pure_callback(seen, x, x)],
    "derivatives": lambda x: [jax.grad(lambda v: v.sum())(x), *jax.jvp(jnp.exp, (x,), (x,))],
    "vmap": lambda x: [jax.vmap(lambda v: v + 1)(x), jax.vmap(jnp.sin, out_axes=0)(x)],
    "pullbacks": lambda x: jax.tree.leaves(jax.vjp(lambda v: v * jnp.sin(v), x)[1]),
    "references": lambda x: [jax.new_ref(x)[...], jax.freeze(jax.new_ref(x))],
    "DLPack": lambda x: [jnp.from_dlpack(Tensor(x.size)), jnp.from_dlpack(np.asarray(x + 1))],
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", WAYS)
def test_values_are_aligned(way: str, size: int) -> None:
    held = []  # memory that is not free again: the next result is elsewhere
    for _ in range(3):
        x = jnp.asarray(np.arange(size, dtype=np.float32))
        for i, y in enumerate(WAYS[way](x)):
            held.append(y)
            assert address(y._buffer.value) % ALIGNMENT == 0, (way, i, y.aval)


def test_many_small_results_do_not_share_memory() -> None:
    arrays = [jnp.float32(i) + 1 for i in range(100)]
    arrays += [jnp.arange(3.0) + i for i in range(100)]
    assert [float(a) for a in arrays[:100]] == [i + 1.0 for i in range(100)]
    assert [a.tolist() for a in arrays[100:]] == [[i, i + 1.0, i + 2.0] for i in range(100)]


def test_an_exported_copy_is_aligned_and_its_own() -> None:
    x = jnp.arange(5.0)
    y = np.from_dlpack(x, copy=True)
    assert y.ctypes.data % ALIGNMENT == 0
    y[...] = 7
    assert x.tolist() == [0, 1, 2, 3, 4]
