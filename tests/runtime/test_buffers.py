"""Buffers are aligned, reused only when nothing can see them, and bounded."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest

from tinyjax.core.config import config
from tinyjax.core.memory import _address_by_interface, address
from tinyjax.runtime import buffers
from tinyjax.runtime.buffers import LARGE_BYTES, BufferPool, CanaryError

F32 = np.dtype(np.float32)


@pytest.mark.parametrize(
    "shape", [(), (0,), (3,), (5, 7), (0, 4), (1 << 10, 33), (1 << 20,), (2, 3, 5, 7)]
)
@pytest.mark.parametrize("dtype", [np.bool_, np.complex128, ml_dtypes.bfloat16, np.int64])
def test_arrays_are_aligned_contiguous_and_writable(shape, dtype):
    array = buffers.empty(shape, np.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert address(array) % 64 == 0
    assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned
    array[...] = 1
    assert (array == 1).all()


def test_addresses_are_numpys():
    base = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    frozen = base.copy()
    frozen.flags.writeable = False
    for array in (base, base[1:, ::2], base.T, base[..., -1], frozen, np.zeros(()), base[:0]):
        assert address(array) == array.ctypes.data
        assert _address_by_interface(array) == array.ctypes.data


@pytest.mark.parametrize("shape", [(), (3,), (16,), (2, 64), (256,)])
def test_small_arrays_share_a_piece_that_goes_with_the_last(shape):
    pool = BufferPool()
    arrays = [pool.shared(shape, F32)]
    arrays += [pool.shared(shape, F32) for _ in pool.small[shape, F32].copy()]
    nbytes = max(arrays[0].nbytes, 64)
    places = sorted(map(address, arrays))
    assert [p - places[0] for p in places] == [i * nbytes for i in range(len(arrays))]
    assert places[0] % 64 == 0 and pool.small[shape, F32] == []
    for a in arrays:
        assert a.shape == shape and a.dtype == F32 and a.flags.c_contiguous and a.flags.writeable
    piece = arrays[0]
    while isinstance(piece.base, np.ndarray):
        piece = piece.base
    gone = []
    weakref.finalize(piece, gone.append, True)
    del piece
    a = last = arrays.pop()
    arrays.clear()
    assert not gone
    del a, last
    assert gone


def test_arrays_that_are_not_small_share_nothing():
    pool = BufferPool()
    for shape in ((0,), (257,), (3, 0)):
        assert address(pool.shared(shape, F32)) % 64 == 0
    assert not pool.small


def test_a_block_is_reused_when_its_last_view_is_gone():
    pool = BufferPool()
    side = 200  # 160 kB
    array = pool.empty((side * side,), F32)
    first = address(array)
    view = array[10:]
    second = memoryview(array.reshape(side, side))
    del array
    assert address(pool.empty((side * side,), F32)) != first
    del view
    assert address(pool.empty((side * side,), F32)) != first
    second.release()
    del second
    pool.empty((side * side,), F32)  # there are two now
    both = [pool.empty((side * side,), F32) for _ in range(2)]
    assert first in map(address, both)


def test_no_code_of_ours_runs_when_a_block_goes():
    """An interrupt that came then would be lost."""
    pool = BufferPool()
    array = pool.empty((LARGE_BYTES,), F32)
    seen = []
    sys.setprofile(lambda frame, event, arg: seen.append((event, frame.f_code.co_name)))
    try:
        del array
    finally:
        sys.setprofile(None)
    assert not any(event == "call" for event, _ in seen)
    assert pool.idle_bytes() > 0


def test_live_arrays_never_overlap():
    pool = BufferPool()
    sizes = [int(size) for size in np.random.default_rng(0).integers(0, 400_000, 100)]
    arrays = []
    for round_ in range(4):
        for number, size in enumerate(sizes):
            array = pool.empty((size,), np.dtype(np.uint8))
            array[:] = number % 251
            arrays.append((number % 251, array))
        for value, array in arrays:
            assert (array == value).all()
        arrays = arrays[round_ % 3 :: 2]  # the others' blocks are used again in the next round


def test_a_size_class_wastes_at_most_a_quarter():
    pool = BufferPool()
    for nbytes in [1, 63, 64, 65, 129, 1000, 4097, 100_001, LARGE_BYTES + 1, (1 << 30) + 1]:
        size = pool.size_class(nbytes).nbytes
        assert size % 64 == 0
        assert nbytes <= size <= max(nbytes * 1.25, nbytes + 64)


def test_small_blocks_share_slabs():
    pool = BufferPool()
    blocks = [pool.take(size) for size in range(1, 2000)]
    assert len(pool.slabs) == 2
    assert len(set(blocks)) == len(blocks)


def test_memory_of_small_arrays_serves_other_sizes():
    """All of it is free when the next size comes, so it is not more than one size needs."""
    code = "\n".join(
        [
            "import numpy as np, resource",
            "from tinyjax.runtime.buffers import pool",
            "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10",
            "before = peak()",
            "for nbytes in range(120_000, 20_000, -10_000):",
            "    held = [pool.shared((nbytes,), np.dtype(np.uint8)) for _ in range(4 * 10**7 // nbytes)]",
            "    for a in held: a[...] = 1",
            "    del held, a",
            "print(peak() - before)",
        ]
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 120  # MB


def test_blocks_of_a_huge_page_are_aligned_to_one():
    pool = BufferPool()
    for nbytes in (2 << 20, 5 << 20):
        assert pool.take(nbytes) % (2 << 20) == 0


def test_the_limit_counts_what_is_live_and_idle_memory_makes_room():
    pool = BufferPool(max_bytes=10 << 20)
    a = pool.empty((4 << 20,), np.dtype(np.uint8))
    b = pool.empty((5 << 20,), np.dtype(np.uint8))
    with pytest.raises(MemoryError, match=r"4194304 bytes wanted, \d+ of the pool's limit"):
        pool.empty((4 << 20,), np.dtype(np.uint8))
    del b
    assert pool.idle_bytes() == 5 << 20
    c = pool.empty((6 << 20,), np.dtype(np.uint8))
    assert pool.idle_bytes() == 0
    a[:], c[:] = 1, 2
    assert a[-1] == 1


def test_a_request_beyond_any_address_space_is_a_memory_error():
    with pytest.raises(MemoryError, match="beyond any address space"):
        BufferPool().empty((1 << 60,), F32)


def test_idle_memory_is_given_back_beyond_the_share_that_is_kept():
    pool = BufferPool(keep_bytes=30 << 20)
    for _ in range(4):
        arrays = [pool.empty((4 << 20,), np.dtype(np.uint8)) for _ in range(20)]
        assert pool.mapped_bytes() >= 80 << 20
        del arrays
    array = pool.empty((4 << 20,), np.dtype(np.uint8))  # is when it is looked at
    assert pool.mapped_bytes() <= (30 << 20) + buffers.CHECK_EVERY_BYTES
    del array
    pool.trim()
    assert pool.mapped_bytes() == 0


def test_threads_get_blocks_of_their_own():
    pool = BufferPool()
    failures = []

    def work(number):
        for step in range(2000):
            size = 16 if step % 2 else LARGE_BYTES
            array = pool.empty((size + step % 64,), np.dtype(np.uint8))
            other = pool.empty((size + step % 64,), np.dtype(np.uint8))
            array[:], other[:] = number, number + 100
            if not ((array == number).all() and (other == number + 100).all()):
                failures.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("shape", [(), (3, 5), (0, 5), (30, 50), (300, 500)])
def test_a_maker_makes_what_empty_makes(shape):
    make = BufferPool().maker(shape, F32)
    made = [make() for _ in range(40)]
    for array, at in made:
        assert address(array) == at and at % 64 == 0
        assert (array.shape, array.dtype) == (shape, F32)
        array[...] = at % 1013
    assert all((array == at % 1013).all() for array, at in made)
    assert len({at for _, at in made}) == 40


def test_workspaces_come_from_the_same_blocks_as_arrays():
    pool = BufferPool()
    at = pool.take(LARGE_BYTES)
    pool.give(at, LARGE_BYTES)
    array = pool.empty((LARGE_BYTES,), np.dtype(np.uint8))
    assert address(array) == at


@pytest.fixture
def hardened():
    """Hardened mode for the test."""
    before = config.tinyjax_hardened
    config.update("tinyjax_hardened", True)
    yield
    config.update("tinyjax_hardened", before)


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (-1, "before a buffer of 40 bytes .* 1 bytes before its start"),
        (-64, "64 bytes before its start"),
        (40, "after a buffer of 40 bytes .* 0 bytes after its end"),
        (103, "63 bytes after its end"),
    ],
)
def test_a_write_outside_a_hardened_buffer_is_found(hardened, offset, message):
    pool = BufferPool()
    array, _ = pool.maker((10,), F32)()
    other = pool.empty((10,), F32)
    assert np.isnan(array).all() and np.isnan(other).all()
    array[:] = 1
    pool.check_canaries()
    at = ctypes.c_uint8.from_address(address(array) + offset)
    saved, at.value = at.value, 0
    with pytest.raises(CanaryError, match=message):
        pool.check_canaries()
    at.value = saved
    del array, other
    gc.collect()
    assert not pool.guarded


def test_a_damaged_hardened_buffer_reports_when_it_goes(hardened, monkeypatch):
    seen = []
    monkeypatch.setattr("sys.unraisablehook", lambda event: seen.append(event.exc_value))
    pool = BufferPool()
    array = pool.empty((), F32)
    ctypes.c_uint8.from_address(address(array) + 4).value = 0
    del array
    gc.collect()
    assert len(seen) == 1 and isinstance(seen[0], CanaryError)
    assert not pool.guarded
