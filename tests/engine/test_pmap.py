"""pmap: jit of vmap with pmap's rules, on as many virtual devices as the configuration says."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

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
    assert run(ours=True) == run(ours=False)
