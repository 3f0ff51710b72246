"""pmap: jit of vmap with pmap's rules, on as many virtual devices as the configuration says."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import tinyjax
from tests.oracle import Case, check, raises

ONE: dict[str, Case] = {
    "one device": lambda J: J.pmap(lambda x: x * 2)(J.numpy.ones((1, 3))),
    "psum": lambda J: J.pmap(lambda x: J.lax.psum(x, "i"), axis_name="i")(J.numpy.ones(1)),
    "no axis out": lambda J: J.pmap(lambda x: x + 1, out_axes=None)(J.numpy.ones(1)),
}


@pytest.mark.parametrize("name", ONE)
def test_one_device_is_enough_for_an_axis_of_one(name: str):
    check(ONE[name])


ERRORS: dict[str, Case] = {
    "too long": lambda J: J.pmap(lambda x: x)(J.numpy.ones(3)),
    "scalar": lambda J: J.pmap(lambda x: x)(1.0),
    "nothing mapped": lambda J: J.pmap(lambda x: x, in_axes=None)(J.numpy.ones(1)),
    "no arguments": lambda J: J.pmap(lambda: 1.0)(),
    "in_axes": lambda J: J.pmap(lambda x: x, in_axes="a")(J.numpy.ones(1)),
    "too many in_axes": lambda J: J.pmap(lambda x: x, in_axes=(0, 0))(J.numpy.ones(1)),
    "backend": lambda J: J.pmap(lambda x: x, backend="xyz")(J.numpy.ones(1)),
    "not callable": lambda J: J.pmap(3),
    "static": lambda J: J.pmap(lambda x: x, static_broadcasted_argnums=3)(J.numpy.ones(1)),
    "unhashable": lambda J: J.pmap(lambda n, x: x, static_broadcasted_argnums=0)(
        [3], J.numpy.ones(1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_jax(name: str):
    raises(ERRORS[name])


FOUR = """
import numpy as np
if {ours}:
    import tinyjax as jax
    jax.config.update("jax_num_cpu_devices", 4)
else:
    import jax
jnp, x, y = jax.numpy, np.arange(4.0, dtype="f4"), np.ones((3, 4, 2), "f4")
f = lambda x: x * 2
show = lambda *values: [print(str(v.shape), np.round(np.asarray(v), 4).astype("f8").round(3).tolist()) for v in jax.tree.leaves(values)]
print(len(jax.devices()), jax.local_device_count(), jax.devices()[3].id)
third = jax.sharding.SingleDeviceSharding(jax.devices()[2])
for v in (
    jnp.zeros(3, device=third), jnp.arange(3, device=jax.devices()[1]), jnp.eye(2, device=third),
    jnp.linspace(0, 1, 3, device=third), jnp.ones(3).astype("int32", device=third),
    jnp.asarray(jnp.ones(3), device=third), jnp.fft.fftfreq(4, device=third),
    jax.lax.full((2,), 1.0, sharding=third), jax.lax.full_like(x, 2.0, None, None, third),
    jax.jit(lambda: jnp.zeros(3, device=jax.devices()[0]))(),
):
    print(sorted(d.id for d in v.devices()), v.dtype, v.tolist())
show(jax.pmap(f)(x), jax.pmap(f)(x[:2]), jax.pmap(lambda t: t["a"] * 2, in_axes=0)({{"a": x}}))
show(jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(x))
show(jax.pmap(lambda x: jax.lax.psum(x, "i"), "i", out_axes=None)(x))
show(jax.pmap(lambda x: (x, x), out_axes=(None, 0))(x))
show(jax.pmap(lambda n, x: x * n, static_broadcasted_argnums=0)(3, x))
show(jax.pmap(lambda x, y: x[0] + y, in_axes=(1, None), out_axes=1)(y, 3.0))
show(jax.pmap(lambda x, *, k: x + k)(x, k=x))
show(jax.grad(lambda x: (jax.pmap(jnp.sin)(x) ** 2).sum())(x))
show(jax.jit(jax.pmap(f))(x), jax.vmap(jax.pmap(f))(np.ones((2, 4), "f4")))
show(jax.pmap(f, devices=jax.devices()[:2])(x[:2]), jax.pmap(f, donate_argnums=0)(jnp.ones(4)))
show(jax.pmap(lambda x: jax.lax.axis_index("i") + x, "i")(x))
def where(v):
    shards = [(s.device.id, str(s.index), s.replica_id, np.asarray(s.data).tolist()) for s in v.addressable_shards]
    ids = sorted(d.id for d in v.devices())
    print(ids, sorted(d.id for d in v.sharding.device_set), v.sharding.num_devices, v.committed)
    print(v.sharding.shard_shape(v.shape), v.is_fully_replicated, v.is_fully_addressable, shards)
    print(np.asarray(v.addressable_data(0)).tolist(), v.sharding == v.sharding, len({{v.sharding}}))
z = np.ones((2, 3), "f4")
for out in (jax.pmap(f)(x), jax.pmap(f)(z), jax.pmap(f, out_axes=1)(z), jax.pmap(f, out_axes=None)(z)):
    where(out)
where(jax.pmap(f, devices=jax.devices()[2:])(z))
where(jax.pmap(lambda n, x: x * n, static_broadcasted_argnums=0)(3, z))
one, all_here = jax.device_put(x, jax.devices()[1]), jax.pmap(f)(x).sharding
where(one)
where(jax.device_put([x, z], [jax.devices()[2], None])[0])
where(jax.device_put(np.ones((4, 2), "f4"), all_here))
where(jnp.ones(3).to_device(jax.devices()[3]))
where(jax.make_array_from_callback((4, 2), all_here, lambda index: np.ones((4, 2), "f4")[index]))
where(jax.make_array_from_single_device_arrays((4,), all_here, [jax.device_put(x[i : i + 1], d) for i, d in enumerate(jax.devices())]))
print(jnp.ones(2).device, one.device, jax.jit(lambda x: jax.device_put(x, jax.devices()[1]) * 2)(x).tolist())
for bad in (lambda: jax.device_put(1.0, all_here), lambda: jax.device_put(x, "gpu:0")):
    try:
        bad()
    except ValueError:
        print("ValueError")
for name in ("devices", "committed", "addressable_shards", "sharding"):
    try:
        jax.jit(lambda x: (getattr(x, name)() if name == "devices" else getattr(x, name), x)[1])(x)
    except (AttributeError, TypeError) as error:
        print(name, isinstance(error, AttributeError))
for bad in (lambda: jax.pmap(f)(np.ones(5, "f4")), lambda: jax.config.update("jax_num_cpu_devices", 9)):
    try:
        bad()
    except (ValueError, RuntimeError) as error:
        print(isinstance(error, ValueError), isinstance(error, RuntimeError))
"""


def run(ours: bool) -> str:
    environment = dict(os.environ, JAX_NUM_CPU_DEVICES="4")
    command: list[Any] = [sys.executable, "-W", "ignore", "-c", FOUR.format(ours=ours)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_several_devices_as_in_jax():
    assert run(ours=True).splitlines() == run(ours=False).splitlines()


def test_an_axis_that_the_devices_do_not_divide_is_told_with_what_to_do():
    from tinyjax.engine.placement import Device, PmapSharding

    half = PmapSharding([Device("cpu", 0), Device("cpu", 1)], 0)
    assert half.shard_shape((4, 3)) == (2, 3)
    with pytest.raises(
        ValueError, match=r"shape \(3,\) .* axis 0 must be divisible by 2 devices"
    ) as e:
        tinyjax.device_put(tinyjax.numpy.arange(3.0), half)
    assert str(e.value).endswith("\n  Pad it, or use fewer devices.")


def test_a_copy_elsewhere_shares_no_memory_and_forgets_with_the_array():
    from tinyjax.engine.placement import PLACED, Device, SingleDeviceSharding, place, sharding_of

    x = tinyjax.numpy.arange(3.0)
    there = SingleDeviceSharding(Device("cpu", 1))
    y = place(x, there)
    assert sharding_of(y) == there and sharding_of(x) != there and sharding_of(y + 1) != there
    assert place(y, there) is y
    x.delete()
    assert y.tolist() == [0, 1, 2]
    count = len(PLACED)
    del y
    assert len(PLACED) == count - 1
