"""Buffers: aligned memory that is reused, so that large results need not be paged in again.

Fresh output memory costs more than most arithmetic (64M floats, a*x+y: 80 ms into new memory, 9 to
13 ms into reused memory; `GOALS.md`). A block belongs to a size class (64 bytes and up, four
classes per doubling, so at most 25% is lost) with a free list of addresses. Blocks below 128 KB are
cut from pieces of 2 MB slabs; larger ones are mappings of their own, from 2 MB on aligned for huge
pages.

An array from `empty` has as its base a small ctypes object that owns the block; when the last
array, view, memoryview or DLPack capsule over it goes, the block returns to its free list. No
locks: free lists are Python lists, whose append and pop are atomic under the GIL, so a finaliser
may run at any point of any thread, and fork finds nothing half done.

Idle memory beyond `keep_bytes` goes back to the system when a large block is released. `max_bytes`
bounds all memory of the pool; beyond it `MemoryError`, after everything idle was given back.

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
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from tinyjax.core.config import config
from tinyjax.core.memory import ALIGNMENT, address

SLAB_BYTES = 2 << 20
SMALL_BYTES = 4096  # arrays of which several may share a block
SHARED_BYTES = 8192  # aimed at for such a block, of 4 to 16 arrays; any one of them keeps all of it
LARGE_BYTES = PIECE_BYTES = 128 << 10  # mappings of their own from here on
CHECK_EVERY_BYTES = 64 << 20  # released bytes between two looks at how much lies idle
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


class _SizeClass:
    """One size: its free addresses and how to make the object that owns a block of it."""

    __slots__ = ("free", "nbytes", "owner_at", "pop")

    def __init__(self, nbytes: int, pool: BufferPool) -> None:
        self.nbytes = nbytes
        self.free: list[int] = []
        self.pop = self.free.pop
        addressof = ctypes.addressof
        if nbytes < LARGE_BYTES:
            append = self.free.append

            def release(block: Any) -> None:
                append(addressof(block))

        else:

            def release(block: Any) -> None:
                pool.give(addressof(block), nbytes)

        members = {"_type_": ctypes.c_char, "_length_": nbytes, "__del__": release}
        owner: Any = type(f"Block{nbytes}", (ctypes.Array,), members)
        self.owner_at: Callable[[int], Any] = owner.from_address


def _guarded_owner(pool: BufferPool) -> Any:
    """The owner type of blocks with canaries: a block of any size, checked when it goes."""

    ending = sys.is_finalizing  # by then the names of this module mean nothing

    class Guarded(ctypes.c_char * ALIGNMENT):  # type: ignore[misc]
        """Stands before the data: its own bytes are the front canary."""

        def __del__(self) -> None:
            if ending():
                return
            address = ctypes.addressof(self)
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
        self._released = 0  # bytes, since idle memory was last looked at
        self.guarded: dict[int, int] = {}  # canary address -> bytes of data
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
            found = self.by_class.setdefault(size, _SizeClass(size, self))
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
        found = self.by_size.get(nbytes) or self.size_class(nbytes)
        try:
            return found.pop()
        except IndexError:
            return self._new_block(found)

    def give(self, address: int, nbytes: int, large: int = LARGE_BYTES) -> None:
        """Return a block from `take`. (`large`: a default outlives the module's names at exit.)"""
        found = self.by_size.get(nbytes) or self.size_class(nbytes)
        found.free.append(address)
        if found.nbytes >= large and CHECK_EVERY_BYTES is not None:
            self._released += found.nbytes
            if self._released > CHECK_EVERY_BYTES:
                self._released = 0
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
            found.nbytes * len(found.free)
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
                    address = found.free.pop()
                except IndexError:
                    break
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
        """An uninitialised, C-contiguous, 64-byte aligned array that owns a block of the pool.

        Cost: about 0.6 us when a block of the size is free; `maker` is for fixed shapes.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if config.tinyjax_hardened:
            return self._guarded_empty(shape, dtype, nbytes)
        found = self.by_size.get(nbytes) or self.size_class(nbytes)
        try:
            return ndarray(shape, dtype, found.owner_at(found.pop()))
        except IndexError:
            return ndarray(shape, dtype, found.owner_at(self._new_block(found)))

    def shared(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """`empty`, where several small arrays of one shape share a block, which goes with the last.

        Cost: 0.2 us up to 4 KB.
        """
        try:
            return self.small[shape, dtype].pop()
        except LookupError:  # used up, or large
            pass
        shape = tuple(map(operator.index, shape))  # raises for a symbolic size
        nbytes = math.prod(shape) * dtype.itemsize
        if not 0 < nbytes <= SMALL_BYTES or config.tinyjax_hardened:
            return self.empty(shape, dtype)
        stride = -(-nbytes // ALIGNMENT) * ALIGNMENT
        count = min(max(SHARED_BYTES // stride, 4), 16)
        block = self.size_class(count * stride).owner_at(self.take(count * stride))
        rows: Any = ndarray((count, stride // dtype.itemsize), dtype, block)
        if shape:
            cut = list(rows[:, : nbytes // dtype.itemsize].reshape(count, *shape))
        else:
            cut = [rows[i, :1].reshape(()) for i in range(count)]
        array: NDArray[Any] = cut.pop()
        if len(self.small) > 1024:  # a program of ever new shapes
            self.small.clear()
        self.small[shape, dtype] = cut
        return array

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
                return array, address(array)

            return make_guarded
        found = self.size_class(nbytes)
        pop, owner_at = found.pop, found.owner_at

        def make() -> tuple[NDArray[Any], int]:
            try:
                at = pop()
            except IndexError:
                at = self._new_block(found)
            return ndarray(shape, dtype, owner_at(at)), at

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
            problem = self.canary_problem(start, nbytes)
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
