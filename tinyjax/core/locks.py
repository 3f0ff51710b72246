"""The lock of module state: free in a forked child, and open to the thread that holds it."""

from __future__ import annotations

import os
import threading
from typing import Any


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
