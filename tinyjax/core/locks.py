"""Forks: locks of module state, free in a child; imports and compilations, which a fork waits for.

A module of ours that is first used in a thread is imported there. Python holds a lock of that module
meanwhile, and a child forked then would inherit it with nobody to open it: the child's own import
of the module would never return. So a fork waits until no thread is importing what we import.

Hooks that a module registers while a fork waits for its import come too late for that fork: their
`before` is not run, but their `after` is. So modules imported later register nothing `before`; the
lock they would take there is here.
"""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any

_imports: Any = getattr(importlib, "_bootstrap", None)  # nothing public knows the locks
_known = hasattr(_imports, "_module_locks") and hasattr(_imports, "_lock_unlock_module")

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


held_across_forks: Any = threading.RLock()
"""Held by the thread that forks, so that a child never inherits in the middle of something what is
done under it (LLVM)."""


def importing() -> set[str]:
    """The modules of `IMPORTED` packages that threads are in the middle of importing."""
    names = list(_imports._module_locks) if _known else []
    return {name for name in names if name.partition(".")[0] in IMPORTED}


def before_fork() -> None:
    """Take `held_across_forks` when no other thread is importing a module of an `IMPORTED` package.

    Modules that this thread is importing are not waited for, nor any twice.
    """
    seen: set[str] = set()
    while True:
        while names := importing() - seen:
            for name in names:
                _imports._lock_unlock_module(name)
            seen |= names
        # Who holds it may import something first, and an import may be waiting for it: the imports
        # are neither waited for under it nor taken as finished before it was there.
        held_across_forks.acquire()
        if not importing() - seen:
            return
        held_across_forks.release()


# `before` hooks run last first. This module is imported before all others of ours that have hooks,
# but hooks registered before it run after this one: where they wait for another thread, it may
# begin an import that the fork cuts in two. Python has no hook that is sure to be the last.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=before_fork,
        after_in_parent=held_across_forks.release,
        after_in_child=held_across_forks.release,
    )
