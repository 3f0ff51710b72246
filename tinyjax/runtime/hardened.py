"""What a crash leaves behind: the names of the last kernels, in a file that outlives the process.

In hardened mode programs are packed with a TRACE step before each kernel call. It copies the
kernel's name into a small ring in a shared file mapping (2 ns): when the process dies of a signal,
the pages are still the file's, and `last_kernels(path)` reads them. The newest name is the kernel
that was running (several threads running programs share the ring, so look at the last few). The
file is removed when the process ends in order, so a file that is there means a crash.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import mmap
import os
import tempfile
from pathlib import Path

from tinyjax.core.locks import shared_lock
from tinyjax.runtime.native_ir import CRUMB_BYTES, CRUMBS

FILE_BYTES = CRUMB_BYTES * (CRUMBS + 1)

_lock = shared_lock()
_open: list[tuple[int, Path, mmap.mmap]] = []  # (process id, file, mapping)


def crumb_name(name: str) -> ctypes.Array[ctypes.c_char]:
    """A kernel name as TRACE copies it: fixed size, cut on a character's border, NUL-padded."""
    text = name.encode()[: CRUMB_BYTES - 1].decode(errors="ignore").encode()
    return ctypes.create_string_buffer(text, CRUMB_BYTES)


def crumb_path(process: int | None = None) -> Path:
    """The file of a process (this one by default)."""
    process = os.getpid() if process is None else process
    return Path(tempfile.gettempdir()) / f"tinyjax-last-kernel-{process}"


def open_crumbs() -> tuple[Path, int]:
    """This process's file (made on the first call, and anew in a forked child) and its address."""
    with _lock:
        if not _open or _open[-1][0] != os.getpid():
            path = crumb_path()
            with contextlib.suppress(FileNotFoundError):
                path.unlink()  # of a process that had our number
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.ftruncate(handle, FILE_BYTES)
                memory = mmap.mmap(handle, FILE_BYTES)
            finally:
                os.close(handle)
            _open.append((os.getpid(), path, memory))
        _, path, memory = _open[-1]
        return path, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def last_kernels(path: Path | None = None) -> list[str]:
    """Names in a crumb file, the newest first; [] if there is none."""
    try:
        data = (path or crumb_path()).read_bytes()
    except OSError:
        return []
    if len(data) != FILE_BYTES:
        return []
    count = int.from_bytes(data[:8], "little")
    names = []
    for number in range(count - 1, max(-1, count - 1 - CRUMBS), -1):
        start = CRUMB_BYTES * (1 + number % CRUMBS)
        names.append(data[start : start + CRUMB_BYTES].split(b"\0")[0].decode(errors="replace"))
    return names


@atexit.register
def _remove() -> None:
    """An orderly end leaves no file."""
    for process, path, _ in _open:
        if process == os.getpid():
            with contextlib.suppress(OSError):
                path.unlink()
