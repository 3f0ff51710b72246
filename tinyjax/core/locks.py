"""Forks: the lock of module state, free in a child, and imports, which a fork waits for.

A module of ours that is first used in a thread is imported there. Python holds a lock of that module
meanwhile, and a child forked then would inherit it with nobody to open it: the child's own import
of the module would never return. So a fork waits until no thread is importing what we import.
"""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any

_imports: Any = importlib._bootstrap  # nothing public knows the locks

IMPORTED = ("tinyjax", "llvmlite", "ml_dtypes", "numpy", "scipy")
"""Packages whose modules we load when they are first used. Their imports end by themselves; one of a
user's module may be waiting for the thread that forks."""


def shared_lock() -> Any:
    """A reentrant lock for the life of the process.

    Finalizers and signal handlers run between any two steps of the thread that holds it, and may
    come for it again. A forked child gets it free, whichever thread held it: what it guards must be
    in order whenever another thread can run.
    """
    lock: Any = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)
    return lock


def finish_imports() -> None:
    """Wait for the imports of `IMPORTED` packages that other threads are in the middle of.

    Modules that this thread is importing are not waited for, nor any twice.
    """
    seen: set[str] = set()
    while True:
        names = {n for n in list(_imports._module_locks) if n.partition(".")[0] in IMPORTED} - seen
        if not names:
            return
        for name in names:
            _imports._lock_unlock_module(name)
        seen |= names


# Hooks run last first, and this module is imported before all others of ours that have one: between
# this one and the fork no thread begins an import, because none gets the GIL.
_known = hasattr(_imports, "_module_locks") and hasattr(_imports, "_lock_unlock_module")
if _known and hasattr(os, "register_at_fork"):
    os.register_at_fork(before=finish_imports)
