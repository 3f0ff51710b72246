"""IR text -> loaded kernel: one object per distinct kernel, from memory, disk or the compiler.

Kernels with the same text are one kernel, whatever names their users give them: lowering should
name the function of every kernel alike (`k`). A kernel stays loaded while a program holds it and
while it is among the last few thousand made.

`submit` compiles on one helper thread, so that LLVM (which releases the GIL, and serialises its
callers) works while Python lowers the next kernel. More threads would not help.
"""

from __future__ import annotations

import hashlib
import os
import queue
import re
import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from tinyjax.core.config import config
from tinyjax.core.weak import WeakValues
from tinyjax.runtime import cpu
from tinyjax.runtime.cache import DEFAULT_MAX_BYTES, DiskCache, default_directory, key_of
from tinyjax.runtime.loader import KERNEL_SYMBOLS, Loaded, LoadError, load

# Part of every key: raise it when the meaning of kernel code changes (ABI, compile options).
CODE_VERSION = "1"
KEEP_LOADED = 4096

_DEFINED = re.compile(r"^define\s+(?!internal|private)[^@\n]*@([\w.$-]+)\(", re.MULTILINE)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Kernel:
    """A loaded kernel, `void k(void **slots, const i64 *dims, i64 lo, i64 hi)`; `address` is valid
    while this object lives."""

    name: str
    key: str
    address: int
    nbytes: int
    loaded: Loaded


def entry_symbol(ir: str) -> str:
    """The one function a kernel's module defines for others.

    Raises: CompileError if there is none or more than one.
    """
    found = _DEFINED.findall(ir)
    if len(found) != 1:
        raise cpu.CompileError(
            f"a kernel module defines one external function; this one defines {found or 'none'}"
        )
    return str(found[0])


class KernelStore:
    """The kernels of this process. Thread-safe; two threads may at worst compile one twice."""

    def __init__(self, disk: DiskCache | None) -> None:
        self.disk = disk
        self.compiled = 0  # how many times LLVM ran
        self._live: WeakValues[str, Kernel] = WeakValues()
        self._recent: OrderedDict[str, Kernel] = OrderedDict()
        self._lock = threading.RLock()
        self._pending: dict[str, Pending] = {}

    def key(self, ir: str, passes: cpu.Passes, machine: str) -> str:
        """Everything the object code depends on."""
        return key_of(
            {
                "ir": hashlib.blake2b(ir.encode()).hexdigest(),
                "passes": passes,
                "machine": machine,
                "codegen": str(cpu.CODEGEN_LEVEL),
                "version": CODE_VERSION,
            }
        )

    def get(self, ir: str, name: str, *, passes: cpu.Passes = "vector") -> Kernel:
        """The kernel of `ir`, compiled unless it is known in memory or on disk.

        `name` is for people: crash reports, listings. Raises: CompileError, LoadError.
        """
        key = self.key(ir, passes, cpu.machine_id())
        found = self._find(key)
        if found is not None:
            return found
        symbol = entry_symbol(ir)
        loaded = self.module(ir, name, exports=(symbol,), passes=passes)
        return self._keep(Kernel(name, key, loaded.addresses[symbol], loaded.nbytes, loaded))

    def module(
        self,
        ir: str,
        name: str,
        *,
        exports: tuple[str, ...],
        passes: cpu.Passes,
        allowed: Collection[str] = KERNEL_SYMBOLS,
    ) -> Loaded:
        """A module with any exports, from disk or the compiler; the caller keeps it alive."""
        key = self.key(ir, passes, cpu.machine_id())
        data = None if self.disk is None else self.disk.get(key)
        if data is not None:
            try:
                return load(data, exports, allowed)
            except LoadError:  # intact, yet not loadable here: made anew
                pass
        data = cpu.compile_ir(ir, name, passes=passes, allowed=allowed)
        self.compiled += 1
        if self.disk is not None:
            self.disk.put(key, {"name": name, "passes": passes}, data)
        return load(data, exports, allowed)

    def submit(self, ir: str, name: str, *, passes: cpu.Passes = "vector") -> Pending:
        """Start making a kernel on the helper thread; equal kernels under way are one job."""
        key = self.key(ir, passes, cpu.machine_id())
        found = self._find(key)
        if found is not None:
            return Pending(self, key, ir, name, passes, found)
        with self._lock:
            pending = self._pending.get(key)
            if pending is not None:
                return pending
            pending = self._pending[key] = Pending(self, key, ir, name, passes)
        _helper.add(pending)
        return pending

    def reset_locks(self) -> None:
        """After fork: a thread that is gone may have held them."""
        self._lock = threading.RLock()
        for pending in self._pending.values():
            pending.reset()

    def forget(self, pending: Pending) -> None:
        """A job is done: the next equal one looks in memory."""
        with self._lock:
            if self._pending.get(pending.key) is pending:
                del self._pending[pending.key]

    def _find(self, key: str) -> Kernel | None:
        with self._lock:
            found = self._live.get(key)
            if found is not None and key in self._recent:
                self._recent.move_to_end(key)
            return found

    def _keep(self, kernel: Kernel) -> Kernel:
        """Remember a kernel; another thread's equal one wins, so that one stays loaded."""
        with self._lock:
            kept = self._live.setdefault(kernel.key, kernel)
            self._recent[kernel.key] = kept
            dropped = [
                self._recent.popitem(last=False) for _ in range(len(self._recent) - KEEP_LOADED)
            ]
        del dropped  # unloaded outside the lock
        return kept


# -------------------------------------------------------------------------------- the helper thread


class Pending:
    """A kernel being made, by the thread that holds `_work`; `result` does it if nobody has.

    A thread that is interrupted (KeyboardInterrupt) leaves the work to the next one.
    """

    __slots__ = ("_error", "_kernel", "_work", "ir", "key", "name", "passes", "store")

    def __init__(
        self,
        store: KernelStore,
        key: str,
        ir: str,
        name: str,
        passes: cpu.Passes,
        kernel: Kernel | None = None,
    ) -> None:
        self.store = store
        self.key = key
        self.ir = ir
        self.name = name
        self.passes = passes
        self._kernel = kernel
        self._error: Exception | None = None
        self.reset()

    def reset(self) -> None:
        """As if nobody were at work: also after fork, where the thread that was is gone."""
        self._work = threading.RLock()

    def done(self) -> bool:
        """Whether `result` returns at once."""
        return self._kernel is not None or self._error is not None

    def run(self) -> None:
        """Make the kernel, unless another thread is about it. For threads without signals: one
        between the two lines below would leave the lock held."""
        if self._work.acquire(blocking=False):
            try:
                self._make()
            finally:
                self._work.release()

    def result(self) -> Kernel:
        """The kernel; raises what compiling it raised."""
        if not self.done():
            with self._work:
                self._make()
        if self._error is not None:
            raise self._error
        assert self._kernel is not None
        return self._kernel

    def _make(self) -> None:
        if not self.done():
            try:
                self._kernel = self.store.get(self.ir, self.name, passes=self.passes)
            except Exception as error:
                self._error = error
        self.store.forget(self)


class _Helper:
    """One daemon thread that works off a queue; started on the first job, anew after fork."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.jobs: queue.SimpleQueue[Pending] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        self.lock = threading.RLock()

    def add(self, job: Pending) -> None:
        with self.lock:
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self.work, name="tinyjax-llvm", daemon=True)
                self.thread.start()
        self.jobs.put(job)

    def work(self) -> None:
        while True:
            self.jobs.get().run()


_helper = _Helper()


# -------------------------------------------------------------------------------- the process's own

_stores: dict[tuple[str | None, int], KernelStore] = {}


def disk_settings() -> tuple[str | None, int]:
    """(folder or None, limit in bytes) as the options say."""
    if not config.jax_enable_compilation_cache:
        return None, 0
    folder = config.tinyjax_cache_dir or config.jax_compilation_cache_dir
    limit = config.jax_compilation_cache_max_size
    return str(folder or default_directory(os.environ)), DEFAULT_MAX_BYTES if limit < 0 else limit


def store() -> KernelStore:
    """The kernel store for the options of this moment: one per folder and limit."""
    settings = disk_settings()
    found = _stores.get(settings)
    if found is None:
        folder, limit = settings
        disk = None if folder is None else DiskCache(folder, limit)
        found = _stores.setdefault(settings, KernelStore(disk))
    return found


def kernel(ir: str, name: str, *, passes: cpu.Passes = "vector") -> Kernel:
    """The loaded kernel of a module of IR text."""
    return store().get(ir, name, passes=passes)


def submit(ir: str, name: str, *, passes: cpu.Passes = "vector") -> Pending:
    """Start making a kernel on the helper thread; `.result()` waits for it."""
    return store().submit(ir, name, passes=passes)


def _after_fork() -> None:
    _helper.reset()  # jobs still queued are done by whoever asks for their results
    for made in _stores.values():
        made.reset_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
