"""Hardened mode: names after a crash, poison in unwritten memory, canaries around buffers."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.runtime.ir import COPY_WORD, INC, PUSH, kernels, run_python
from tinyjax.core.config import config
from tinyjax.core.memory import address
from tinyjax.runtime import hardened
from tinyjax.runtime.buffers import CANARY, CanaryError, pool
from tinyjax.runtime.kernels import Kernel
from tinyjax.runtime.program import Program
from tinyjax.runtime.steps import Call, Layout, Point

CRASH = """
import numpy as np
from tests.runtime.ir import CRASH, INC
from tinyjax.runtime import hardened
from tinyjax.core.memory import address
from tinyjax.runtime.kernels import kernel
from tinyjax.runtime.program import Program
from tinyjax.runtime.steps import Call, Layout
x = np.zeros(1, np.int64)
good, bad = kernel(INC, "good"), kernel(CRASH, "writes_to_8")
program = Program("p", [Call(0, (0,)), Call({which}, (0,))], Layout(1), kernels=[good, bad],
                  hardened=True)
print(hardened.crumb_path(), flush=True)
program.run(address(x))
"""


def test_a_crash_leaves_the_name_of_the_kernel(cache_folder, tmp_path):
    done = run_python(CRASH.replace("{which}", "1"), cache_folder, TMPDIR=str(tmp_path))
    assert done.returncode < 0
    (file,) = tmp_path.iterdir()
    assert str(file) == done.stdout.strip()
    assert hardened.last_kernels(file) == ["writes_to_8", "good"]


def test_an_orderly_end_leaves_no_file(cache_folder, tmp_path):
    done = run_python(CRASH.replace("{which}", "0"), cache_folder, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_last_few_kernels_are_named_newest_first():
    names = ["inc", "push" * 100, "größer"]
    program = Program(
        "names",
        [Call(n, (0, 0)) for n in (0, 1, 2, 0, 0, 2, 1, 0, 1, 2)],
        Layout(1),
        kernels=[_named(name) for name in names],
        hardened=True,
    )
    program.run(address(np.zeros(1, np.int64)))
    long = ("push" * 100)[: hardened.CRUMB_BYTES - 1]
    expected = ["größer", long, "inc", long, "größer", "inc", "inc", "größer"]
    assert hardened.last_kernels() == expected


def _named(name):
    """A kernel that only differs in its name."""
    (real,) = kernels(INC)
    return Kernel(name, real.key, real.address, real.nbytes, real.loaded)


def test_a_file_that_is_missing_or_of_another_kind_names_nothing(tmp_path):
    assert hardened.last_kernels(tmp_path / "none") == []
    (tmp_path / "other").write_bytes(b"abc")
    assert hardened.last_kernels(tmp_path / "other") == []


def test_memory_nobody_wrote_is_poison_in_every_call():
    out = np.zeros(1, np.int64)
    steps = [Call(0, (0, 1)), Call(1, (1,))]
    layout = Layout(1, offsets=(0,), arena_bytes=8)
    program = Program("poison", steps, layout, kernels=kernels(COPY_WORD, INC), hardened=True)
    for _ in range(2):
        out[0] = 0
        program.run(address(out))
        assert out[0] == -1
    assert not pool.guarded


def test_a_kernel_that_writes_past_the_arena_is_found():
    steps = [Point(1, 0, 1, 8), Call(0, (1,))]
    layout = Layout(0, offsets=(0, 0), arena_bytes=8)
    program = Program("past_end", steps, layout, kernels=kernels(INC), hardened=True)
    with pytest.raises(CanaryError, match="bytes after its end") as caught:
        program.run()
    assert "after program past_end; last kernels: ['test0'" in caught.value.__notes__[0]
    assert not pool.guarded


def test_a_kernel_that_writes_past_an_array_is_found():
    before = config.tinyjax_hardened
    config.update("tinyjax_hardened", True)
    try:
        out = pool.empty((2,), np.dtype(np.int64))
        program = Program("past_array", [Call(0, (0, 0))], Layout(1), kernels=kernels(PUSH))
        assert program.hardened
        program.run(address(out))
        with pytest.raises(CanaryError, match="after a buffer of 16 bytes"):
            program.run(address(out) + 16)
        # Repaired, or the array reports once more when it goes.
        ctypes.memmove(address(out) + 16, CANARY, len(CANARY))
    finally:
        config.update("tinyjax_hardened", before)
