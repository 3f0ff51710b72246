"""Rounding of compiled programs: within the stated bounds, and the same for any number of threads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

import tinyjax
from tinyjax import lax
from tinyjax import numpy as jnp
from tinyjax.lowering.schedule import FOLD_CHAIN

SIZES = [1, 7, 1000, 65_537, 1_000_003]
DRAWS = {
    "uniform": lambda rng, n: rng.random(n),
    "mixed signs": lambda rng, n: rng.standard_normal(n),
    "wide range": lambda rng, n: rng.standard_normal(n) * 10.0 ** rng.integers(-6, 6, n),
    "cancelling": lambda rng, n: rng.permutation(np.resize([1e6, -1e6, 0.1, 3e-3], n)),
}


def bound(values: np.ndarray) -> float:
    """(chunk + log2 n) ulp of the sum of magnitudes, for a float64 sum of what was really added."""
    ulps = FOLD_CHAIN + np.log2(max(values.size, 2))
    return ulps * np.finfo(values.dtype).eps * np.abs(values.astype(np.float64)).sum()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("n", SIZES)
def test_error_of_a_sum_is_within_its_bound(n, draw, dtype):
    values = DRAWS[draw](np.random.default_rng(n), n).astype(dtype)
    exact = float(np.sum(values.astype(np.longdouble)))
    with tinyjax.enable_x64(dtype == np.float64):
        whole = float(tinyjax.jit(jnp.sum)(values))
        columns = np.asarray(tinyjax.jit(lambda x: jnp.sum(x, 0))(np.stack([values, -values], 1)))
        fused = float(tinyjax.jit(lambda x: jnp.sum(x * 2.0))(values)) / 2
    for got in (whole, columns[0], -columns[1], fused):
        assert abs(got - exact) <= bound(values)


def programs():
    """Programs whose results could depend on who computes what: all of them combine values."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((300, 301)).astype("f4") for _ in range(2))
    long = rng.standard_normal(3_000_001).astype("f4")
    where = rng.integers(0, 1000, 200_000)

    def loss(w, x):
        return jnp.square(tinyjax.nn.softmax(jnp.tanh(x @ w)) - 0.1).mean()

    yield "sum", jnp.sum, long
    yield "rows", lambda x: x.sum(1), a
    yield "columns", lambda x: x.sum(0), np.resize(long, (30_000, 97))
    yield "mean and variance", lambda x: (x.mean(), x.var()), long
    yield "logsumexp", tinyjax.nn.logsumexp, long
    yield "argmax", jnp.argmax, long
    yield "cumsum", jnp.cumsum, long
    yield "sort", jnp.sort, long
    yield "matmul", lambda x, y: x @ y.T, a, b
    yield "tall matmul", lambda x: x.T @ x, np.resize(long, (50_000, 24))
    yield "matrix-vector", lambda x, y: x @ y[0], a, b
    yield "scatter-add", lambda x: jnp.zeros(1000).at[where].add(x), long[: where.size]
    yield "gradient", tinyjax.grad(loss), a[:, :200], b.T[:, :300]
    yield (
        "scan",
        lambda x: lax.scan(lambda c, r: (jnp.tanh(c @ r), c.sum()), x, x[None] * 0.1),
        a[:, :300],
    )
    yield "normals", lambda x: tinyjax.random.normal(tinyjax.random.key(3), x.shape), long


def digest() -> str:
    """The bits of all results."""
    found = hashlib.sha256()
    for name, f, *args in programs():
        for leaf in tinyjax.tree.leaves(tinyjax.jit(f)(*args)):
            found.update(np.asarray(leaf).tobytes())
        print(name, found.hexdigest())
    return found.hexdigest()


def test_results_do_not_depend_on_the_number_of_threads():
    def with_threads(count: int) -> list[str]:
        script = "from tests.test_numerics import digest; digest()"
        env = os.environ | {
            "TINYJAX_NUM_THREADS": str(count),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        done = subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    one = with_threads(1)
    assert len(one) == len(list(programs()))
    assert with_threads(2) == one
    assert with_threads(5) == one
