"""Equal kernels are one object; the helper thread, the disk and fork do not change results."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest

from tests.runtime.ir import ADD, INC, body, run_python
from tinyjax.core.config import config
from tinyjax.runtime import cpu, kernels
from tinyjax.runtime.cache import DiskCache
from tinyjax.runtime.kernels import KernelStore


def numbered(number):
    """A kernel text like no other."""
    return body(f"  store i64 {number}, ptr %p0\n  ret void")


@pytest.fixture
def store(tmp_path):
    """A store with a disk cache of its own."""
    return KernelStore(DiskCache(tmp_path / "cache"))


def test_equal_texts_are_one_kernel_whatever_their_names(store):
    first = store.get(INC, "first")
    assert store.get(INC, "second") is first
    assert store.get(INC, "first", passes="scalar") is not first
    assert store.compiled == 2


def test_a_second_process_compiles_nothing(store):
    store.get(INC, "inc")
    store.get(ADD, "add")
    later = KernelStore(DiskCache(store.disk.directory))
    later.get(ADD, "add")
    later.get(INC, "inc")
    assert (later.compiled, later.disk.stats.hits) == (0, 2)


def test_without_a_disk_kernels_are_compiled_in_each_process():
    first, second = KernelStore(None), KernelStore(None)
    first.get(INC, "inc")
    second.get(INC, "inc")
    assert (first.compiled, second.compiled) == (1, 1)


def test_the_key_depends_on_text_passes_and_machine(store):
    base = store.key(INC, "vector", "machine")
    assert store.key(INC, "vector", "machine") == base
    others = {
        store.key(ADD, "vector", "machine"),
        store.key(INC, "scalar", "machine"),
        store.key(INC, "vector", "other"),
        base,
    }
    assert len(others) == 4


def test_a_damaged_entry_is_made_again(store):
    store.get(INC, "inc")
    (path,) = [path for path, _ in store.disk.entries()]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    later = KernelStore(DiskCache(store.disk.directory))
    later.get(INC, "inc")
    assert (later.compiled, later.disk.stats.damaged) == (1, 1)
    latest = KernelStore(DiskCache(store.disk.directory))
    latest.get(INC, "inc")
    assert latest.compiled == 0


def test_an_intact_entry_that_does_not_load_is_made_again(store):
    key = store.key(INC, "vector", cpu.machine_id())
    store.disk.put(key, {}, b"not object code")
    store.get(INC, "inc")
    assert (store.compiled, store.disk.stats.hits) == (1, 1)


def test_kernels_that_nobody_holds_are_unloaded_beyond_a_number(store, monkeypatch):
    monkeypatch.setattr(kernels, "KEEP_LOADED", 2)
    held = store.get(numbered(0), "held")
    alive = [weakref.ref(store.get(numbered(n), "n")) for n in range(1, 5)]
    gc.collect()
    assert [ref() is not None for ref in alive] == [False, False, True, True]
    assert store.get(numbered(0), "held") is held
    assert store.compiled == 5


@pytest.mark.parametrize("text", ["; nothing\n", INC + "define void @other() {\n  ret void\n}\n"])
def test_a_module_must_define_one_function(store, text):
    with pytest.raises(cpu.CompileError, match="defines one external function"):
        store.get(text, "none")


def test_submitted_kernels_arrive_and_equal_ones_are_one_job(store):
    pending = [store.submit(numbered(n % 3), f"n{n}") for n in range(9)]
    found = [each.result() for each in pending]
    assert len({id(kernel) for kernel in found}) == 3
    assert store.compiled == 3
    assert store.submit(numbered(1), "again").done()


def test_an_error_is_raised_by_every_result_and_does_not_stop_the_helper(store):
    bad = store.submit(body("  ret void %missing"), "bad")
    good = store.submit(numbered(10), "good")
    for _ in range(2):
        with pytest.raises(cpu.CompileError, match="kernel bad"):
            bad.result()
    assert good.result().name == "good"


def test_waiting_for_a_job_that_nobody_began_does_it(store, monkeypatch):
    monkeypatch.setattr(kernels._helper, "add", lambda job: None)
    pending = store.submit(numbered(20), "mine")
    assert not pending.done()
    assert pending.result() is store.get(numbered(20), "mine")


def test_many_threads_get_one_kernel(store):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(store.get(numbered(30), "shared")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(kernel) for kernel in found}) == 1


def test_the_options_choose_folder_limit_and_whether(tmp_path):
    saved = {
        name: config.read(name)
        for name in (
            "tinyjax_cache_dir",
            "jax_compilation_cache_dir",
            "jax_compilation_cache_max_size",
            "jax_enable_compilation_cache",
        )
    }
    try:
        config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
        config.update("tinyjax_cache_dir", str(tmp_path / "ours"))
        config.update("jax_compilation_cache_max_size", 12345)
        assert kernels.disk_settings() == (str(tmp_path / "ours"), 12345)
        assert kernels.store() is kernels.store()
        assert kernels.store().disk.directory == tmp_path / "ours"
        config.update("tinyjax_cache_dir", None)
        assert kernels.disk_settings()[0] == str(tmp_path / "jax")
        config.update("jax_enable_compilation_cache", False)
        assert kernels.store().disk is None
    finally:
        for name, value in saved.items():
            config.update(name, value)


WARM = """
import sys
from tests.runtime.ir import ADD, INC, kernels
from tinyjax.runtime import kernels as store
from tinyjax.core.memory import address
from tinyjax.runtime.program import Program
from tinyjax.runtime.steps import Call, Layout
import numpy as np
x = np.zeros(1, np.int64)
Program("p", [Call(0, (0,))], Layout(1), kernels=kernels(INC)).run(address(x))
print(int(x[0]), store.store().compiled, "llvmlite.binding" in sys.modules)
"""


def test_a_process_that_finds_everything_on_disk_loads_no_llvm(tmp_path):
    cold = run_python(WARM, tmp_path)
    assert cold.stdout == "1 2 True\n", cold.stderr
    warm = run_python(WARM, tmp_path)
    assert warm.stdout == "1 0 False\n", warm.stderr


FORK = """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: what is tested here
from tests.runtime.test_kernels import numbered
from tinyjax.runtime import kernels
pending = [kernels.submit(numbered(n), "n") for n in range(12)]
statuses = []
for _ in range(3):
    child = os.fork()
    if not child:
        good = all(each.result().address for each in pending)
        good = good and kernels.submit(numbered(100), "new").result().address
        os._exit(7 if good else 1)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(statuses, all(each.result().address for each in pending))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_forked_child_finishes_the_jobs_it_inherits(tmp_path):
    done = run_python(FORK, tmp_path)
    assert done.stdout == "[7, 7, 7] True\n", done.stderr


def test_an_interrupted_thread_leaves_its_work_to_the_next(store, monkeypatch):
    """Once the KeyboardInterrupt of the thread at work was raised by every thread that waited."""
    monkeypatch.setattr(kernels._helper, "add", lambda job: None)
    compile_ir, begun, waiting = cpu.compile_ir, threading.Event(), threading.Event()
    main = threading.current_thread()

    def interrupted(*args, **kwargs):
        if threading.current_thread() is main:
            begun.set()
            waiting.wait()
            raise KeyboardInterrupt
        return compile_ir(*args, **kwargs)

    monkeypatch.setattr(cpu, "compile_ir", interrupted)
    pending, found = store.submit(numbered(30), "shared"), []

    def other():
        begun.wait()
        same = store.submit(numbered(30), "shared")
        waiting.set()
        found.append(same.result())

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        pending.result()
    thread.join()
    assert found[0].address and pending.result() is found[0]


FORK_AMID = """
import os, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: what is tested here
from tests.runtime.test_kernels import numbered
from tinyjax.runtime import kernels
over = threading.Event()
def work(first):
    for n in range(first, first + 100_000):
        if over.is_set():
            return
        kernels.kernel(numbered(n), "n")
threads = [threading.Thread(target=work, args=(k * 1_000_000,)) for k in range(1, 4)]
for thread in threads:
    thread.start()
kernels.kernel(numbered(0), "LLVM is loaded")
statuses = []
for k in range(8):
    child = os.fork()
    if not child:
        os._exit(7 if kernels.submit(numbered(9_000_000 + k), "new").result().address else 1)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.set()
print(statuses)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_child_forked_while_other_threads_compile_goes_on(tmp_path):
    """Once what another thread held at that moment was held for ever."""
    done = run_python(FORK_AMID, tmp_path)
    assert done.stdout == f"{[7] * 8}\n", done.stderr


EXIT = """
from tests.runtime.test_kernels import numbered
from tinyjax.runtime import kernels
pending = [kernels.submit(numbered(n), "n") for n in range(40)]
pending[0].result()
"""


def test_a_process_may_end_while_kernels_are_being_made(tmp_path):
    done = run_python(EXIT, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
