"""Buffers: aligned memory that is reused, so that large results need not be paged in again.

Fresh output memory costs more than most arithmetic (64M floats, a*x+y: 80 ms into new memory, 9 to
13 ms into reused memory; `GOALS.md`). A block belongs to a size class (64 bytes and up, four
classes per doubling, so at most 25% is lost) with a free list of addresses. Blocks below 128 KB are
cut from pieces of 2 MB slabs and serve as workspaces; larger ones are mappings of their own, from
2 MB on aligned for huge pages. Arrays below 128 KB lie in memory of NumPy's, whose allocator reuses
it well.

A large array from `empty` has as its base a small ctypes object that owns the block; when the last
array, view, memoryview or DLPack capsule over it goes, a weak reference to that object enters the
list of what was dropped: no Python code runs, so Ctrl-C cannot strike and be lost there. No locks:
the lists' append and pop are atomic under the GIL, so a block may be dropped at any point of any
thread, and fork finds nothing half done.

Idle memory beyond `keep_bytes` goes back to the system when a large block is asked for or given back.
`max_bytes` bounds all memory of the pool; beyond it `MemoryError`, after everything idle was given
back.

Hardened mode (`tinyjax_hardened`) puts 64 known bytes before and after every block and
`check_canaries` verifies them.
"""

from __future__ import annotations

import bisect
import ctypes
import math
import mmap
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from tinyjax.core import memory
from tinyjax.core.config import config
from tinyjax.core.memory import ALIGNMENT

SLAB_BYTES = 2 << 20
SMALL_BYTES = 1024  # arrays of which several are cut from one piece of memory
SHARED_BYTES = 4096  # aimed at for such a piece, of 4 to 16 arrays; any one of them keeps all of it
LARGE_BYTES = PIECE_BYTES = 128 << 10  # mappings of their own from here on
CHECK_EVERY_BYTES = 64 << 20  # bytes asked for and given back between two looks at what lies idle
HUGE_PAGE = 2 << 20
CANARY = bytes((0xA5, 0x5A, 0xC3, 0x3C)) * (ALIGNMENT // 4)
POISON = 0xFF  # floats: NaN; integers: -1; bools: neither 0 nor 1

# Idle memory kept for reuse: a share of what the machine has, since a training step wants all its
# buffers again at once.
KEEP_SHARE = 0.25

MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)


class CanaryError(RuntimeError):
    """A kernel wrote outside its buffers (hardened mode)."""


def _size_classes(largest: int) -> list[int]:
    """64, 128, 192, 256, 320, 384, 448, 512, 640, ...: multiples of 64, four per doubling."""
    sizes = [ALIGNMENT * k for k in (1, 2, 3)]
    power = ALIGNMENT * 4
    while power < largest:
        sizes += [power + power // 4 * k for k in range(4)]
        power *= 2
    return [*sizes, power]


def _physical_bytes() -> int:
    """Memory of this machine, or of the control group this process is confined to."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(file) as limit:
                total = min(total, int(limit.read()))
        except (OSError, ValueError):  # absent, or the word "max"
            continue
    return total


def cut_small(
    shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int
) -> list[tuple[NDArray[Any], int]]:
    """Aligned arrays of one shape, with their addresses, cut from one piece of memory."""
    stride = -(-nbytes // ALIGNMENT) * ALIGNMENT
    count = min(max(SHARED_BYTES // stride, 4), 16)
    rows: Any = memory.numpys((count, stride // dtype.itemsize), dtype)
    if shape:
        arrays = list(rows[:, : nbytes // dtype.itemsize].reshape(count, *shape))
    else:
        arrays = [rows[i, :1].reshape(()) for i in range(count)]
    first = memory.address(rows)
    return list(zip(arrays, range(first, first + count * stride, stride), strict=True))


class _Dropped(weakref.ref[Any]):
    """Knows the address of a block when the object that owned it is gone."""

    __slots__ = ("address",)
    address: int


class _SizeClass:
    """One size: its free addresses, what was dropped, and how to make the owner of a block."""

    __slots__ = ("dropped", "free", "nbytes", "owner", "watched")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.free: list[int] = []
        self.dropped: list[_Dropped] = []
        self.watched: dict[int, _Dropped] = {}  # by address: a reference must outlive its object
        members = {"_type_": ctypes.c_char, "_length_": nbytes}
        self.owner: Any = type(f"Block{nbytes}", (ctypes.Array,), members)

    def pop(self) -> int:
        """A free address; IndexError if there is none."""
        try:
            return self.free.pop()
        except IndexError:
            return self.dropped.pop().address

    def owner_at(self, address: int) -> Any:
        """An object over the block; when it goes, the block is free."""
        block = self.owner.from_address(address)
        self.watched[address] = ref = _Dropped(block, self.dropped.append)
        ref.address = address
        return block

    @property
    def idle(self) -> int:
        """How many blocks are free."""
        return len(self.free) + len(self.dropped)


def _guarded_owner(pool: BufferPool) -> Any:
    """The owner type of blocks with canaries: a block of any size, checked when it goes."""

    ending = sys.is_finalizing  # by then the names of this module mean nothing

    class Guarded(ctypes.c_char * ALIGNMENT):  # type: ignore[misc]
        """Stands before the data: its own bytes are the front canary."""

        def __del__(self) -> None:
            if ending():
                return
            address = ctypes.addressof(self)
            with pool.guard:
                nbytes = pool.guarded.pop(address)
                problem = pool.canary_problem(address, nbytes)
            pool.give(address, nbytes + 2 * ALIGNMENT)
            if problem:
                raise CanaryError(problem)

    return Guarded


class BufferPool:
    """Blocks of memory by size class.

    `take`/`give` work on addresses (workspaces); `empty` makes arrays that give their block back
    by themselves. Sizes passed to `give` must be those passed to `take`.
    """

    def __init__(self, *, max_bytes: int | None = None, keep_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes
        self.keep_bytes = (
            max(int(_physical_bytes() * KEEP_SHARE), 256 << 20)
            if keep_bytes is None
            else keep_bytes
        )
        self.sizes = _size_classes(1 << 46)
        self.by_size: dict[int, _SizeClass] = {}  # exact request -> class, filled as requests come
        self.by_class: dict[int, _SizeClass] = {}
        self.large: dict[int, tuple[mmap.mmap, int]] = {}  # address -> mapping, bytes
        self.slabs: list[mmap.mmap] = []
        self._pieces: list[int] = []
        self._moved = 0  # bytes asked for and given back since idle memory was last looked at
        self.guarded: dict[int, int] = {}  # canary address -> bytes of data
        self.guard = threading.RLock()  # a guarded block may go at any point of its thread
        self._guard_owner = _guarded_owner(self)
        self.small: dict[tuple[tuple[int, ...], Any], list[NDArray[Any]]] = {}  # cut and unused

    # ------------------------------------------------------------------------------------ classes

    def size_class(self, nbytes: int) -> _SizeClass:
        """The class serving requests of `nbytes`; zero bytes get a block as well."""
        if nbytes > self.sizes[-1]:
            raise MemoryError(f"a buffer of {nbytes} bytes is beyond any address space")
        size = self.sizes[bisect.bisect_left(self.sizes, nbytes)]
        found = self.by_class.get(size)
        if found is None:
            found = self.by_class.setdefault(size, _SizeClass(size))
        if len(self.by_size) > 65536:  # a program of ever new sizes
            self.by_size.clear()
        self.by_size[nbytes] = found
        return found

    # ---------------------------------------------------------------------------------- addresses

    def take(self, nbytes: int) -> int:
        """Address of a free block of at least `nbytes`, 64-byte aligned, contents undefined.

        Raises: MemoryError beyond `max_bytes` or if the system has none.
        Cost: 0.1 us when one is free, else one system call (and the page faults of first use).
        """
        return self._take(self.by_size.get(nbytes) or self.size_class(nbytes))

    def _take(self, found: _SizeClass) -> int:
        if found.nbytes >= LARGE_BYTES:
            self._look_at_idle(found.nbytes)
        try:
            return found.pop()
        except IndexError:
            return self._new_block(found)

    def give(self, address: int, nbytes: int) -> None:
        """Return a block from `take`."""
        found = self.by_size.get(nbytes) or self.size_class(nbytes)
        found.free.append(address)
        if found.nbytes >= LARGE_BYTES:
            self._look_at_idle(found.nbytes)

    def owned(self, nbytes: int) -> tuple[Any, int]:
        """An object that owns a block, which is free when it goes, and the address of the block."""
        found = self.size_class(nbytes)
        address = self._take(found)
        return found.owner_at(address), address

    def _look_at_idle(self, nbytes: int) -> None:
        """Give back what lies idle beyond `keep_bytes`, after every so many bytes."""
        self._moved += nbytes
        if self._moved > CHECK_EVERY_BYTES:
            self._moved = 0
            if self.idle_bytes() > self.keep_bytes:
                self.trim(self.keep_bytes)

    def _new_block(self, found: _SizeClass) -> int:
        if found.nbytes >= LARGE_BYTES:
            return self._map_large(found.nbytes)
        piece = self._new_piece()
        last = piece + PIECE_BYTES - found.nbytes
        blocks = range(piece, last + 1, found.nbytes)
        found.free.extend(blocks[1:])
        rest = piece + found.nbytes * len(blocks)
        left = piece + PIECE_BYTES - rest
        if left:
            smaller = self.sizes[bisect.bisect_right(self.sizes, left) - 1]
            self.size_class(smaller).free.append(rest)
        return piece

    def _new_piece(self) -> int:
        try:
            return self._pieces.pop()
        except IndexError:
            self._reserve(SLAB_BYTES)
            slab = _map(SLAB_BYTES)
            self.slabs.append(slab)
            base = _address_of(slab)
            self._pieces.extend(range(base + PIECE_BYTES, base + SLAB_BYTES, PIECE_BYTES))
            return base

    def _map_large(self, nbytes: int) -> int:
        self._reserve(nbytes)
        slack = HUGE_PAGE if nbytes >= HUGE_PAGE else 0
        memory = _map(nbytes + slack)
        base = _address_of(memory)
        address = base + (-base % HUGE_PAGE if slack else 0)
        if slack and MADV_HUGEPAGE is not None:
            try:
                memory.madvise(MADV_HUGEPAGE)
            except OSError:  # a kernel without transparent huge pages
                pass
        self.large[address] = (memory, nbytes)
        return address

    # -------------------------------------------------------------------------------- bookkeeping

    def mapped_bytes(self) -> int:
        """All memory the pool holds, idle or in use."""
        large = sum(nbytes for _, nbytes in list(self.large.values()))
        return large + SLAB_BYTES * len(self.slabs)

    def idle_bytes(self) -> int:
        """Memory in free lists of large blocks."""
        return sum(
            found.nbytes * found.idle
            for found in list(self.by_class.values())
            if found.nbytes >= LARGE_BYTES
        )

    def trim(self, keep: int = 0) -> None:
        """Give idle large blocks back to the system, the largest first, until `keep` bytes idle."""
        for found in sorted(self.by_class.values(), key=lambda c: -c.nbytes):
            if found.nbytes < LARGE_BYTES:
                return
            while self.idle_bytes() > keep:
                try:
                    address = found.pop()
                except IndexError:
                    break
                found.watched.pop(address, None)
                del self.large[address]  # unmaps

    def _reserve(self, nbytes: int) -> None:
        """Make room below `max_bytes`."""
        if self.max_bytes is None or self.mapped_bytes() + nbytes <= self.max_bytes:
            return
        self.trim()
        if self.mapped_bytes() + nbytes > self.max_bytes:
            raise MemoryError(
                f"out of memory: {nbytes} bytes wanted, {self.mapped_bytes()} of the pool's limit "
                f"of {self.max_bytes} in use"
            )

    # ------------------------------------------------------------------------------------- arrays

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An uninitialised, C-contiguous, 64-byte aligned array; a large one owns a block of the pool.

        Cost: about 0.7 us when a block of the size is free; `maker` is for fixed shapes.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if config.tinyjax_hardened:
            return self._guarded_empty(shape, dtype, nbytes)
        if nbytes < LARGE_BYTES:
            return memory.numpys(shape, dtype)
        found = self.by_size.get(nbytes) or self.size_class(nbytes)
        return ndarray(shape, dtype, found.owner_at(self._take(found)))

    def shared(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """`empty`, where several small arrays of one shape are cut from one piece of memory, which
        goes with the last.

        Cost: 0.2 us up to 1 KB.
        """
        if config.tinyjax_hardened:
            return self.empty(shape, dtype)
        cut = self.small.get((shape, dtype))
        if cut:
            try:
                return cut.pop()
            except IndexError:  # another thread took the last
                pass
        shape = tuple(map(operator.index, shape))  # raises for a symbolic size
        nbytes = math.prod(shape) * dtype.itemsize
        if not 0 < nbytes <= SMALL_BYTES:
            return self.empty(shape, dtype)
        if len(self.small) > 1024:  # a program of ever new shapes
            self.small.clear()
        cut = self.small[shape, dtype] = [array for array, _ in cut_small(shape, dtype, nbytes)]
        return cut.pop()

    def maker(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[], tuple[NDArray[Any], int]]:
        """A function that makes (array, address) of one shape and dtype: a program's outputs.

        Whether blocks are guarded (hardened mode) is decided here, once.
        Cost: about 0.4 us per array.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if config.tinyjax_hardened:

            def make_guarded() -> tuple[NDArray[Any], int]:
                array = self._guarded_empty(shape, dtype, nbytes)
                return array, memory.address(array)

            return make_guarded
        if 0 < nbytes <= SMALL_BYTES:
            made: list[tuple[NDArray[Any], int]] = []

            def make_small() -> tuple[NDArray[Any], int]:
                try:
                    return made.pop()
                except IndexError:
                    made.extend(cut_small(shape, dtype, nbytes))
                    return made.pop()

            return make_small
        if nbytes < LARGE_BYTES:

            def make_medium() -> tuple[NDArray[Any], int]:
                array = memory.numpys(shape, dtype)
                return array, memory.address(array)

            return make_medium
        found = self.size_class(nbytes)

        def make() -> tuple[NDArray[Any], int]:
            at = self._take(found)
            return ndarray(shape, dtype, found.owner_at(at)), at

        return make

    # ----------------------------------------------------------------------------- hardened blocks

    def _guarded_empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int
    ) -> NDArray[Any]:
        start = self.guarded_take(nbytes)
        data: Any = (ctypes.c_char * max(nbytes, 1)).from_address(start + ALIGNMENT)
        data.owner = self._guard_owner.from_address(start)
        return ndarray(shape, dtype, data)

    def guarded_take(self, nbytes: int) -> int:
        """A block with canaries around `nbytes` of poison; returns the front canary's address."""
        start = self.take(nbytes + 2 * ALIGNMENT)
        with self.guard:
            ctypes.memmove(start, CANARY, ALIGNMENT)
            ctypes.memset(start + ALIGNMENT, POISON, nbytes)
            ctypes.memmove(start + ALIGNMENT + nbytes, CANARY, ALIGNMENT)
            self.guarded[start] = nbytes
        return start

    def canary_problem(self, start: int, nbytes: int) -> str | None:
        """What is wrong around the guarded block at `start`, or None."""
        data = start + ALIGNMENT
        for place, at in (("before", start), ("after", data + nbytes)):
            found = ctypes.string_at(at, ALIGNMENT)
            if found != CANARY:
                first = next(i for i, (a, b) in enumerate(zip(found, CANARY)) if a != b)
                distance = ALIGNMENT - first if place == "before" else first
                return (
                    f"memory {place} a buffer of {nbytes} bytes at {data:#x} was overwritten, "
                    f"{distance} bytes {place} its {'start' if place == 'before' else 'end'}"
                )
        return None

    def check_canaries(self) -> None:
        """Raise CanaryError if the bytes around any live guarded block have changed."""
        for start, nbytes in list(self.guarded.items()):
            with self.guard:  # else another thread may drop the block and take it again meanwhile
                live = self.guarded.get(start) == nbytes
                problem = self.canary_problem(start, nbytes) if live else None
            if problem:
                raise CanaryError(problem)


def _map(nbytes: int) -> mmap.mmap:
    """Anonymous private memory, zero and not yet backed by pages."""
    if sys.platform == "win32":
        return mmap.mmap(-1, nbytes)
    try:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"the system has no {nbytes} bytes of memory: {error}") from None


def _address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


pool = BufferPool()
empty = pool.empty
shared = pool.shared
