"""The thread pool: the same calls whoever makes them, one owner, fork, and how many threads."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from tests.runtime.ir import PARTIAL_SUMS, RANGES, kernels, run_python
from tinyjax.core.config import config
from tinyjax.core.memory import address
from tinyjax.runtime import native, threads
from tinyjax.runtime.program import Program
from tinyjax.runtime.steps import Call, Dim, Layout, Loop

needs_pool = pytest.mark.skipif(not native.has_pool(), reason="the pool needs Linux")


@pytest.fixture
def thread_option():
    """Restores the number of threads."""
    before = config.tinyjax_num_threads
    yield lambda n: config.update("tinyjax_num_threads", n)
    config.update("tinyjax_num_threads", before)


def partial_sums(xs, repeats=1):
    """Sum of each 1000 of xs, and how often each was computed."""
    chunks = -(-xs.size // 1000)
    sums, calls = np.zeros(chunks, np.float32), np.zeros(chunks, np.int64)
    call = Call(0, (0, 1, 2), 0, Dim(0), 1000)
    program = Program(
        "sums", [Loop(repeats, (call,))], Layout(3, dims=1), kernels=kernels(PARTIAL_SUMS)
    )
    program.run(address(xs), address(sums), address(calls), xs.size)
    return sums, calls


def test_chunks_cover_a_range_once_and_do_not_depend_on_threads(thread_option):
    rng = np.random.default_rng(0)
    for size in (1, 999, 1000, 1001, 2000, 57_321):
        xs = rng.standard_normal(size, dtype=np.float32)
        thread_option(1)
        alone, calls = partial_sums(xs)
        assert (calls == 1).all()
        for count in (2, 3, 8):
            thread_option(count)
            together, calls = partial_sums(xs)
            assert (calls == 1).all()
            assert together.tobytes() == alone.tobytes()


def test_an_empty_range_makes_no_calls():
    seen, count = np.zeros(8, np.int64), np.zeros(1, np.int64)
    for lo, hi in ((0, 0), (5, 3)):
        steps = [Call(0, (0, 1), lo, hi, 4)]
        program = Program("none", steps, Layout(2), kernels=kernels(RANGES))
        program.run(address(seen), address(count))
    assert count[0] == 0


def test_one_thread_takes_chunks_in_order(thread_option):
    thread_option(1)
    seen, count = np.zeros(8, np.int64), np.zeros(1, np.int64)
    program = Program("order", [Call(0, (0, 1), 3, 14, 4)], Layout(2), kernels=kernels(RANGES))
    program.run(address(seen), address(count))
    assert seen[: count[0]].tolist() == [3, 7, 7, 11, 11, 14]


@needs_pool
def test_many_small_jobs_lose_no_chunk(thread_option):
    """Launches in quick succession: helpers come late, spin, sleep and are woken."""
    thread_option(4)
    xs = np.ones(5_500, np.float32)
    sums, calls = partial_sums(xs, repeats=20_000)
    assert sums.tolist() == [1000] * 5 + [500]
    assert calls.tolist() == [20_000] * 6
    assert native.native().started.value >= 3


@needs_pool
def test_two_python_threads_share_the_pool(thread_option):
    """Whoever does not own it runs its chunks alone; results are the same."""
    thread_option(3)
    xs = np.arange(20_000, dtype=np.float32) / 7
    expected, _ = partial_sums(xs)
    results = []
    workers = [
        threading.Thread(target=lambda: results.append(partial_sums(xs, repeats=300)))
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 3
    for sums, calls in results:
        assert sums.tobytes() == expected.tobytes()
        assert (calls == 300).all()


FORK = """
import os, sys, threading, time, warnings
import numpy as np
warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: what is tested here
from tinyjax.core.config import config
config.update("tinyjax_num_threads", 3)
from tests.runtime.test_threads import partial_sums
from tinyjax.runtime import native
xs = np.arange(30_000, dtype=np.float32)
expected, _ = partial_sums(xs)
assert native.native().started.value == 2
# Another thread owns the pool most of the time while the process forks.
stop = []
def busy():
    while not stop:
        partial_sums(xs, repeats=50)
worker = threading.Thread(target=busy)
worker.start()
statuses = []
for _ in range(5):
    time.sleep(0.005)
    child = os.fork()
    if not child:
        assert native.native().started.value == 0
        sums, calls = partial_sums(xs, repeats=50)
        good = sums.tobytes() == expected.tobytes() and (calls == 50).all()
        good = good and native.native().started.value == 2
        os._exit(7 if good else 1)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.append(1)
worker.join()
print(statuses)
"""


@needs_pool
def test_a_forked_child_starts_a_pool_of_its_own(cache_folder):
    done = run_python(FORK, cache_folder)
    assert done.stdout == "[7, 7, 7, 7, 7]\n", done.stderr


def test_threads_follow_affinity():
    if hasattr(threads.os, "sched_getaffinity"):
        assert threads.affinity_count() == len(threads.os.sched_getaffinity(0))
    assert threads.thread_count(5) == 5
    assert 1 <= threads.thread_count(0) <= threads.affinity_count()


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/b/cpu.max": "50000 100000", "a/cpu.max": "150000 100000"}, 0.5),
        ("0::/", {"cpu.max": "max 100000"}, float("inf")),
        ("0::/gone", {"cpu.max": "200000 100000"}, 2),
        (
            "4:cpu,cpuacct:/job",
            {"cpu/job/cpu.cfs_quota_us": "300000", "cpu/job/cpu.cfs_period_us": "100000"},
            3,
        ),
        (
            "4:cpu:/job",
            {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"},
            float("inf"),
        ),
        ("5:memory:/job", {"memory/job/cpu.max": "100000 100000"}, float("inf")),
    ],
)
def test_quotas_of_control_groups_are_found(tmp_path, group, files, cores):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    for name, text in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert threads.quota_count(tmp_path / "proc", tmp_path / "groups") == cores


def test_a_system_without_control_groups_has_no_quota(tmp_path):
    assert threads.quota_count(tmp_path, tmp_path) == float("inf")


@pytest.mark.parametrize(("quota", "count"), [(0.5, 1), (1.5, 2), (2.0, 2), (float("inf"), 4)])
def test_a_fractional_quota_is_rounded_up(monkeypatch, quota, count):
    monkeypatch.setattr(threads, "quota_count", lambda: quota)
    monkeypatch.setattr(threads, "affinity_count", lambda: 4)
    assert threads.thread_count(0) == count


assert sys.maxsize > 2**32, "addresses and words are 64 bits wide"
