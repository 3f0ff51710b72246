"""The native module in this process: loaded once, its entry points as ctypes functions.

See `native_ir.py` for what is in it. The object comes from the kernel cache on disk or is compiled
(about 50 ms) on first use.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

from tinyjax.core.config import config
from tinyjax.core.locks import shared_lock
from tinyjax.runtime import kernels
from tinyjax.runtime.loader import Loaded
from tinyjax.runtime.native_ir import EXPORTS, PAUSE, SYMBOLS, native_ir
from tinyjax.runtime.threads import thread_count

# A block is passed as bytes: building and passing one costs 0.2 us.
_HELD = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)
_FREE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)
_HELD_AT = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_FREE_AT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_SETTER = ctypes.PYFUNCTYPE(None, ctypes.c_int64)
_ACTION = ctypes.PYFUNCTYPE(None)

Enter = Callable[[bytes], int]
Resume = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Native:
    """Entry points; `held` ones keep the GIL (short programs), the others release it."""

    enter_held: Enter
    enter: Enter
    enter_watched: Enter
    resume_held: Resume
    resume: Resume
    set_threads: Callable[[int], None]
    reset_after_fork: Callable[[], None]
    signals: ctypes.c_int64
    started: ctypes.c_int64
    crumbs: ctypes.c_void_p


def has_pool() -> bool:
    """Whether this system has the native thread pool; elsewhere SPREAD runs its chunks in turn."""
    return sys.platform.startswith("linux") and platform.machine() in PAUSE


def _load() -> Native:
    ir = native_ir(platform.machine(), pool=has_pool(), sigint=os.name == "posix")
    loaded = kernels.store().module(ir, "native", exports=EXPORTS, passes="scalar", allowed=SYMBOLS)
    _forever.append(loaded)
    at = loaded.addresses
    made = Native(
        enter_held=_HELD(at["enter"]),
        enter=_FREE(at["enter"]),
        enter_watched=_FREE(at["enter_watched"]),
        resume_held=_HELD_AT(at["resume"]),
        resume=_FREE_AT(at["resume"]),
        set_threads=_SETTER(at["set_threads"]),
        reset_after_fork=_ACTION(at["reset_after_fork"]),
        signals=ctypes.c_int64.from_address(at["signals"]),
        started=ctypes.c_int64.from_address(at["started"]),
        crumbs=ctypes.c_void_p.from_address(at["crumbs"]),
    )
    made.set_threads(thread_count(config.tinyjax_num_threads))
    return made


# Its threads and its signal handler may be in use until the process ends: never unmapped.
_forever: list[Loaded] = []
_lock = shared_lock()
_native: list[Native] = []


def native() -> Native:
    """The native module, loaded on the first call."""
    if not _native:
        with _lock:
            if not _native:
                _native.append(_load())
    return _native[0]


def _set_threads(option: int) -> None:
    for made in _native:
        made.set_threads(thread_count(option))


def _after_fork() -> None:
    for made in _native:
        made.reset_after_fork()


config.before_update("tinyjax_num_threads", _set_threads)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
