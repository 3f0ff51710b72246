"""Locks of module state, and forks during imports and compilations."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from tinyjax.core.locks import shared_lock


def python(script, *args, **environment):
    """What a process of its own printed, and how it ended."""
    return subprocess.run(
        [sys.executable, "-c", script, *args],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


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


FORKING = """
import importlib, os, signal, sys, threading, time, warnings

warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: what is tested here
import tinyjax

NAMES = '''
    ad_checkpoint api_util custom_batching custom_derivatives debug dlpack errors export flatten_util ops
    ref scipy.special scipy.linalg scipy.stats sharding stages test_util experimental.checkify
    experimental.jet experimental.ode extend.core engine.jaxprs engine.primitives
'''.split()


class Slow:
    def find_spec(self, name, path, target=None):
        if name == wanted:
            begun.set()
            time.sleep(0.01)


sys.meta_path.insert(0, Slow())
forks = 0
for name in NAMES:
    wanted, begun = "tinyjax." + name, threading.Event()
    if wanted in sys.modules:  # an earlier one needed it
        continue
    other = threading.Thread(target=importlib.import_module, args=(wanted,))
    other.start()
    assert begun.wait(30)
    if forks % 2:
        time.sleep(0.0105)  # while the module runs, not while it is looked for
    child = os.fork()
    if not child:
        signal.alarm(20)
        module = importlib.import_module(wanted)
        os._exit(1 if module.__spec__._initializing else 7)
    other.join()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 7, (wanted, code)
    forks += 1
print("forks", forks)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_child_forked_while_another_thread_imports_a_module_of_ours_can_import_it_too():
    done = python(FORKING)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) >= 15


COMPILING = """
import faulthandler, os, signal, sys, threading, time, warnings

warnings.simplefilter("ignore", DeprecationWarning)
import tinyjax
import tinyjax.numpy as jnp

sys.setswitchinterval(0.2)
x, begun = jnp.ones(4), threading.Event()


class Slow:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            begun.set()
            time.sleep(0.05)


sys.meta_path.insert(0, Slow())
other = threading.Thread(target=lambda: tinyjax.jit(lambda x: jnp.sin(x) * 2)(x))
other.start()
assert begun.wait(60)
child = os.fork()
if not child:
    faulthandler.dump_traceback_later(20, exit=True)
    tinyjax.jit(lambda x: jnp.cos(x) * 3)(x)
    os._exit(7)
other.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.parametrize("module", ["tinyjax.runtime.cpu", "llvmlite"])
def test_a_child_forked_while_another_thread_imports_the_compiler_can_compile(module, tmp_path):
    done = python(COMPILING, module, TINYJAX_CACHE_DIR=str(tmp_path))
    assert (done.stdout, done.stderr) == ("7\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_thread_may_fork_while_it_is_importing_a_module_of_ours(tmp_path):
    (tmp_path / "forks.py").write_text(
        "import os, sys\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    import tinyjax.scipy.special\n"
        "    os._exit(7)\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
    )
    script = (
        f"import tinyjax; tinyjax.__path__.append({str(tmp_path)!r})\n"
        "import tinyjax.forks; print(tinyjax.forks.code)"
    )
    done = python(script)
    assert done.stdout == "7\n", done.stderr
