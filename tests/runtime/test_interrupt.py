"""Ctrl-C ends a program that loops, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.runtime.ir import ROOT

pytestmark = pytest.mark.skipif(os.name != "posix", reason="SIGINT as a signal")

COMMON = r"""
import os, signal, sys, threading, time
import numpy as np
from tests.runtime.ir import INC, LESS, kernels
from tinyjax.core.memory import address
from tinyjax.runtime.program import Program
from tinyjax.runtime.steps import *
value, limit = (np.array([n], np.int64) for n in (0, 1 << 62))
forever = Program("forever", [Return(0), While((Call(1, (0, 2, 1)),), 2, (Call(0, (0,)),))],
                  Layout(2, offsets=(0,), arena_bytes=8), kernels=kernels(INC, LESS),
                  handlers=[lambda pointers, dims: announce()])
ready = ["ready"]
def announce():
    while ready:
        say(ready.pop())
def run():
    forever.run(address(value), address(limit))
def say(text):
    os.write(1, f"{text}\n".encode())  # print may not be interrupted by itself
"""


def interrupted(code, folder, signals=1):
    """Output of `code`, which gets SIGINT half a moment after each "ready" line."""
    with subprocess.Popen(
        [sys.executable, "-c", COMMON + code],
        cwd=ROOT,
        env={"PATH": "", "TINYJAX_CACHE_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            lines = []
            for _ in range(signals):
                while (line := process.stdout.readline()) and line != "ready\n":
                    lines.append(line.strip())
                process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    return lines + rest.split("\n")[:-1], process.returncode, errors


def test_control_c_raises_keyboard_interrupt_and_the_program_can_run_again(cache_folder):
    code = """
for _ in range(2):
    try:
        ready[:] = ["ready"]
        run()
    except KeyboardInterrupt:
        say("interrupted")
ready.clear()
limit[0] = value[0] + 3
run()
say(int(limit[0] - value[0]))
"""
    lines, status, errors = interrupted(code, cache_folder, signals=2)
    assert (lines, status) == (["interrupted", "interrupted", "0"], 0), errors


def test_a_handler_that_does_not_raise_lets_the_program_go_on(cache_folder):
    code = """
def handler(number, frame):
    say("handled")
    limit[0] = value[0] + 1000
signal.signal(signal.SIGINT, handler)
run()
say(bool(value[0] >= limit[0]))
"""
    lines, status, errors = interrupted(code, cache_folder)
    assert (lines, status) == (["handled", "True"], 0), errors


def test_a_handler_set_after_the_first_run_is_served_as_well(cache_folder):
    """`signal.signal` puts Python's C handler in place of ours; the next run puts ours back."""
    code = """
ready.clear()
limit[0] = 5
run()
limit[0] = 1 << 62
ready.append("ready")
class Stop(Exception): pass
def handler(number, frame):
    raise Stop
signal.signal(signal.SIGINT, handler)
try:
    run()
except Stop:
    say("stopped")
"""
    lines, status, errors = interrupted(code, cache_folder)
    assert (lines, status) == (["stopped"], 0), errors


def test_a_signal_while_another_thread_runs_goes_to_the_main_thread(cache_folder):
    code = """
worker = threading.Thread(target=run)
try:
    worker.start()
    worker.join()
except KeyboardInterrupt:
    say("interrupted")
before = int(value[0])
while int(value[0]) == before:
    pass
say("still running")
limit[0] = 0
worker.join()
"""
    lines, status, errors = interrupted(code, cache_folder)
    assert (lines, status) == (["interrupted", "still running"], 0), errors


def test_an_ignored_signal_stays_ignored(cache_folder):
    code = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
def later():
    time.sleep(0.2)
    limit[0] = 0
threading.Thread(target=later).start()
run()
say("ended")
"""
    lines, status, errors = interrupted(code, cache_folder)
    assert (lines, status) == (["ended"], 0), errors


def test_blocking_calls_of_python_are_still_interrupted(cache_folder):
    """Our handler keeps the flags of Python's: no SA_RESTART, so a read ends with EINTR."""
    code = """
ready.clear()
limit[0] = 5
run()
read, write = os.pipe()
try:
    say("ready")
    os.read(read, 1)
except KeyboardInterrupt:
    say("interrupted")
"""
    lines, status, errors = interrupted(code, cache_folder)
    assert (lines, status) == (["interrupted"], 0), errors
