"""The lock of module state."""

from __future__ import annotations

import os
import threading

import pytest

from tinyjax.core.locks import shared_lock


def test_the_thread_that_holds_it_may_take_it_again_and_others_wait():
    lock = shared_lock()
    tried = []
    with lock, lock:
        other = threading.Thread(target=lambda: tried.append(lock.acquire(blocking=False)))
        other.start()
        other.join()
    assert tried == [False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # jax, if another test loaded it
def test_a_forked_child_finds_it_free():
    lock = shared_lock()
    held, release = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if not child:
        os._exit(7 if lock.acquire(timeout=5) else 1)
    release.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
