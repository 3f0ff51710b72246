"""The option `tinyjax_hardened` from a user's function down to its kernels."""

from __future__ import annotations

from tests.runtime.ir import run_python
from tinyjax.runtime import hardened

RIGHT = """
import numpy as np
import tinyjax as jax
from tinyjax import numpy as jnp
f = jax.jit(lambda x, i: (jnp.cumsum(x[i]) @ jnp.ones(3), jnp.sort(x)))
a, b = f(jnp.array([3.0, 1.0, 2.0]), jnp.array([0, 2, 7]))
print(float(a), b.tolist())
"""

CRASH = """
import tinyjax as jax
from tests.runtime.ir import CRASH
from tinyjax import numpy as jnp
from tinyjax.lowering import program
x = jnp.arange(7.0)
jax.jit(jnp.sin)(x).block_until_ready()
program.harden = lambda ir, extents, dims: (CRASH, ())  # no check finds it
print("so far so good", flush=True)
jax.jit(lambda x: jnp.cos(x))(x).block_until_ready()
print("not reached")
"""


def test_programs_compute_the_same(tmp_path):
    plain = run_python(RIGHT, tmp_path)
    checked = run_python(RIGHT, tmp_path, TINYJAX_HARDENED="1", TMPDIR=str(tmp_path))
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout == plain.stdout != ""
    assert checked.stderr == ""


def test_a_crash_in_a_users_program_names_the_kernel(tmp_path):
    done = run_python(CRASH, tmp_path / "cache", TINYJAX_HARDENED="1", TMPDIR=str(tmp_path))
    assert done.returncode < 0 and done.stdout == "so far so good\n", done.stderr
    (file,) = tmp_path.glob("tinyjax-last-kernel-*")
    assert hardened.last_kernels(file)[:2] == ["cos", "sin"]


WRONG = """
import tinyjax as jax
from tinyjax import numpy as jnp
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, substitute, toposort
from tinyjax.errors import KernelBoundsError
from tinyjax.lowering import program
from tests.lowering.test_harden import shifted
right = program.compile_kernels
x, w = jnp.arange(1000.0), jnp.ones((1000, 3))
print(float(jax.jit(lambda x: (jnp.sin(x) @ w).sum())(x)))
program.compile_kernels = lambda sink, *how: right(shifted(sink, Op.STORE, 1), *how)
try:
    jax.jit(lambda x: jnp.cos(x))(x).block_until_ready()
except KernelBoundsError as error:
    print(str(error).split(".")[0])
program.compile_kernels = right
print(float(jax.jit(lambda x: jnp.tan(x))(x)[0]))
"""


def test_a_wrong_kernel_of_a_users_program_is_an_error_with_names(tmp_path):
    done = run_python(WRONG, tmp_path, TINYJAX_HARDENED="1", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    _, error, after = done.stdout.splitlines()
    assert error == (
        "kernel cos was about to write element 1000 of slot 0, out0:f32[1000], outside of its "
        "extent 1000"
    )
    assert after == "0.0"
