"""`device=`, `sharding=` and `out_sharding=` of all functions: one mechanism (engine/devices.py).

Several devices: tests/engine/test_pmap.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp
from tests.oracle import raises

KEY = jax.random.key(0)
HERE = jax.devices()[0]
LIES = jnp.ones(3).sharding
M = np.ones((2, 2), np.float32)


def test_a_device_is_accepted_outside_and_inside_of_a_trace():
    for f in (
        lambda: jnp.zeros(3, device=HERE), lambda: jnp.full_like(M, 2, device=HERE),
        lambda: jax.lax.full_like(M, 2.0, None, None, LIES),
        lambda: jnp.ones(3).astype("int32", device=HERE),
    ):  # fmt: skip
        np.testing.assert_array_equal(f(), jax.jit(f)())
        assert f().devices() == {HERE}


def test_what_is_no_device_is_refused_by_every_function():
    for f in (
        lambda d: jnp.zeros(3, device=d), lambda d: jnp.array(3, device=d),
        lambda d: jnp.linspace(0, 1, 3, device=d), lambda d: jnp.fft.rfftfreq(3, device=d),
        lambda d: jax.lax.full((3,), 1.0, sharding=d), lambda d: jnp.ones(3).astype(int, device=d),
        lambda d: jax.jit(lambda: jnp.zeros(3, device=d))(),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must be a jax.Device, a jax.sharding.Sharding"):
            f("gpu")
    with pytest.raises(ValueError, match=r"zeros: device must be .* got 'gpu'\. The only devices"):
        jnp.zeros(3, device="gpu")


def test_out_sharding_needs_a_mesh_and_there_are_none():
    cases: list[Any] = [
        lambda J, s: J.numpy.zeros(3, out_sharding=s),
        lambda J, s: J.numpy.matmul(M, M, out_sharding=s),
        lambda J, s: J.numpy.einsum("ij,jk", M, M, out_sharding=s),
        lambda J, s: J.lax.dot(M, M, out_sharding=s),
        lambda J, s: J.lax.reduce_sum(M, (0,), out_sharding=s),
        lambda J, s: J.random.normal(J.random.key(0), (3,), out_sharding=s),
        lambda J, s: J.nn.initializers.zeros(J.random.key(0), (3,), out_sharding=s),
    ]
    for case in cases:
        message = str(raises(lambda J, case=case: case(J, J.devices()[0])))
        assert "`out_sharding` argument of" in message and "do not exist yet" in message
    assert jnp.zeros(3, out_sharding=None).shape == (3,)
