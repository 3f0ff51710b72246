"""LLVM IR text -> object code for this machine's CPU.

Kernels come in two kinds, told apart by one rule: `vector` kernels are written with explicit
vectors and SSA values, and skip LLVM's passes (measured: softmax 3.7 ms instead of 15 ms, the same
run time); `scalar` kernels get inlining of `alwaysinline` functions and five short function passes
(about 0.6 ms; the default O1 pipeline takes 2 ms for the same code). LLVM's loop vectoriser, SLP
vectoriser and unroller never run: the lowering has decided vector widths and unrolling already.

LLVM's fatal errors end the process; they are no exceptions. So intrinsics must come from the
lowering's allow-list. Every LLVM call here happens under one lock, which is also taken around
fork, so that a child never inherits LLVM in the middle of something.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import platform
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tinyjax.core.locks import held_across_forks
from tinyjax.runtime.loader import KERNEL_SYMBOLS, check_symbols, undefined_symbols

Passes = Literal["vector", "scalar"]

# Optimisation level of LLVM's code generator (instruction selection, scheduling, registers). Level 2
# takes 15 % longer, and no kernel ran faster for it (28 contractions, reductions, sorts, ...).
CODEGEN_LEVEL = 1

_llvm_lock = held_across_forks


class CompileError(Exception):
    """LLVM rejected the IR of a kernel: a bug of the lowering, with the line it is about."""


@dataclass(frozen=True, slots=True)
class Target:
    """What code is generated for."""

    triple: str
    cpu: str
    features: str


@functools.cache
def _llvm() -> Any:
    """llvmlite.binding, initialised on the first compile."""
    import llvmlite.binding as llvm  # 60 ms

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@functools.cache
def host_target() -> Target:
    """This machine. Loads LLVM; cache keys use `machine_id` instead."""
    with _llvm_lock:
        llvm = _llvm()
        features = llvm.get_host_cpu_features().flatten()
        return Target(llvm.get_default_triple(), llvm.get_host_cpu_name(), features)


@functools.cache
def machine_id() -> str:
    """What decides the code for a given IR, besides the IR, found without loading LLVM.

    The CPU (model and feature flags as the system reports them), the system, and the LLVM library,
    by llvmlite's version and its file's size and time (distributions build their own).
    Cost: about 0.3 ms, once.
    """
    import llvmlite  # the top package only: 1 ms

    spec = importlib.util.find_spec("llvmlite")
    assert spec is not None and spec.origin is not None
    library = "none"
    for file in sorted(Path(spec.origin).parent.joinpath("binding").glob("*llvmlite.*")):
        if file.suffix in (".so", ".dylib", ".dll"):
            stat = file.stat()
            library = f"{stat.st_size}:{stat.st_mtime_ns}"
    parts = (sys.platform, platform.machine(), llvmlite.__version__, library, _cpu_id())
    return "|".join(parts)


def _cpu_id() -> str:
    """The lines of /proc/cpuinfo that name the model and its features; else platform's name."""
    wanted = {"vendor_id", "cpu family", "model", "model name", "stepping", "flags"}
    wanted |= {"Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part"}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = []
            for line in file:
                if not line.strip():  # the blocks of the other cores follow
                    break
                if line.split(":")[0].strip() in wanted:
                    first.append(line.strip())
            return ";".join(first)
    except OSError:
        return platform.processor()


@functools.lru_cache(maxsize=8)
def _machine(target: Target) -> Any:
    """The LLVM target machine for `target`."""
    return (
        _llvm()
        .Target.from_triple(target.triple)
        .create_target_machine(
            cpu=target.cpu,
            features=target.features,
            opt=CODEGEN_LEVEL,
            reloc="pic",
            codemodel="small",
        )
    )


def _run_passes(llvm: Any, module: Any, machine: Any, passes: Passes) -> None:
    """Apply the pass list of a kind of kernel."""
    if passes == "vector":
        return
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    inliner = llvm.create_new_module_pass_manager()
    inliner.add_always_inliner_pass()
    inliner.run(module, builder)
    manager = llvm.create_new_function_pass_manager()
    manager.add_sroa_pass()
    manager.add_instruction_combine_pass()
    manager.add_new_gvn_pass()
    manager.add_simplify_cfg_pass()
    manager.add_aggressive_dce_pass()
    for function in module.functions:
        if not function.is_declaration:
            manager.run(function, builder)


@contextlib.contextmanager
def _code_generator(llvm: Any, passes: Passes) -> Iterator[None]:
    """LLVM's options while it writes machine code for a kind of kernel.

    The loops of vector kernels are written with what changes in them alone, so loop strength
    reduction is left out: it was a third of the time of a contraction, and kernels run as fast
    without. The option belongs to the process, so it is set back for others that use this LLVM.
    """
    if passes == "scalar":
        yield
        return
    llvm.set_option("", "-disable-lsr=true")
    try:
        yield
    finally:
        llvm.set_option("", "-disable-lsr=false")


@contextlib.contextmanager
def _parsed(llvm: Any, ir: str, name: str, target: Target, machine: Any) -> Iterator[Any]:
    """IR text -> verified module for `target`, in a context of its own: what a context interns is
    only freed with it.

    Both are closed by hand: left to the garbage collector, they would be freed while another thread
    compiles, or while the process forks.
    """
    context = llvm.create_context()
    module = None
    try:
        try:
            module = llvm.parse_assembly(ir, context=context)
            module.triple = target.triple
            module.data_layout = str(machine.target_data)
            module.verify()
        except RuntimeError as error:
            raise CompileError(f"LLVM rejects kernel {name}: {error}") from None
        yield module
    finally:
        if module is not None:
            module.close()
        context.close()


def compile_ir(
    ir: str,
    name: str,
    features: str | None = None,
    *,
    cpu: str | None = None,
    passes: Passes = "vector",
    allowed: Collection[str] = KERNEL_SYMBOLS,
) -> bytes:
    """Compile a module of LLVM IR text to an object file for this machine.

    `cpu` and `features` replace those of the host (LLVM's names: "x86-64-v3", "+avx2,-avx512f"),
    to test the code other machines get; replacing `cpu` alone means that CPU's own features.

    Raises: CompileError if LLVM rejects the text; LoadError if the object calls a function that is
    not in `allowed`.
    Cost: 1 to 17 ms; LLVM serialises threads.
    """
    with _llvm_lock:
        llvm = _llvm()
        host = host_target()
        if features is None:
            features = host.features if cpu is None else ""
        target = Target(host.triple, host.cpu if cpu is None else cpu, features)
        machine = _machine(target)
        with _parsed(llvm, ir, name, target, machine) as module:
            _run_passes(llvm, module, machine, passes)
            with _code_generator(llvm, passes):
                data = bytes(machine.emit_object(module))
    check_symbols(undefined_symbols(data), allowed)
    return data


def assembly(ir: str, name: str, *, passes: Passes = "vector") -> str:
    """The machine code of a kernel as assembly text, to be read by people and tests."""
    with _llvm_lock:
        llvm = _llvm()
        target = host_target()
        machine = _machine(target)
        with _parsed(llvm, ir, name, target, machine) as module:
            _run_passes(llvm, module, machine, passes)
            with _code_generator(llvm, passes):
                return str(machine.emit_assembly(module))


# At exit, wait for a compilation under way on the helper thread and let none begin: LLVM's
# destructors must not run under it.
atexit.register(_llvm_lock.acquire)
