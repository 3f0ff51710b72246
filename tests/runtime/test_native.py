"""The native module compiles for every machine we name, and works without pool and signals."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.ir import INC, kernels
from tests.runtime.test_program import nested_programs
from tests.runtime.test_threads import partial_sums
from tinyjax.core.config import config
from tinyjax.core.memory import address
from tinyjax.runtime import cpu, loader, native
from tinyjax.runtime.native_ir import SYMBOLS, native_ir
from tinyjax.runtime.program import Program
from tinyjax.runtime.steps import Call, Layout, Loop

TRIPLES = {
    "x86_64": "x86_64-unknown-linux-gnu",
    "aarch64": "aarch64-unknown-linux-gnu",
    "arm64": "arm64-apple-darwin",
}


@pytest.mark.parametrize(
    ("machine", "pool"), [("x86_64", True), ("aarch64", True), ("arm64", False), ("x86_64", False)]
)
@pytest.mark.parametrize("sigint", [True, False])
def test_the_module_compiles_for_each_machine(machine, pool, sigint):
    import llvmlite.binding as llvm

    with cpu._llvm_lock:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = cpu.Target(TRIPLES[machine], "", "")
        made = cpu._machine(target)
        text = native_ir(machine, pool=pool, sigint=sigint)
        with cpu._parsed(llvm, text, "native", target, made) as module:
            cpu._run_passes(llvm, module, made, "scalar")
            assembly = made.emit_assembly(module)
            needed = set(loader.undefined_symbols(made.emit_object(module)))
    assert ("pause" in assembly or "yield" in assembly or "hint" in assembly) == pool
    assert ("sigaction" in assembly) == sigint
    assert needed <= SYMBOLS
    if "linux" in TRIPLES[machine]:
        assert ("pthread_create" in needed) == pool and "memmove" in needed


@pytest.fixture
def portable(monkeypatch):
    """The native module as systems without futex have it."""
    before = config.tinyjax_num_threads
    config.update("tinyjax_num_threads", 4)
    monkeypatch.setattr(native, "has_pool", lambda: False)
    monkeypatch.setattr(native, "_native", [])
    yield
    config.update("tinyjax_num_threads", before)


def test_without_a_pool_the_chunks_are_the_same(portable):
    xs = np.random.default_rng(1).standard_normal(12_345, dtype=np.float32)
    sums, calls = partial_sums(xs)
    assert native.native().started.value == 0
    assert (calls == 1).all()
    expected = [np.add.accumulate(xs[at : at + 1000])[-1] for at in range(0, xs.size, 1000)]
    np.testing.assert_array_equal(sums, expected)


def test_without_a_pool_programs_loop_and_return(portable):
    out = np.zeros(1, np.int64)
    seen = []
    nested_programs(lambda pointers, dims: seen.append(int(out[0]))).run(address(out), 7, 8)
    assert out[0] == 8711187
    assert seen == [0, 0, 0, 871, 8711, 87111]


def test_a_program_of_another_module_object_still_runs(portable):
    """Programs hold the entry points they were made with."""
    out = np.zeros(1, np.int64)
    program = Program("p", [Loop(3, (Call(0, (0,)),))], Layout(1), kernels=kernels(INC))
    native._native.clear()
    program.run(address(out))
    assert out[0] == 3
