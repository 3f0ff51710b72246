"""Programs: a packed step table bound to its kernels, callable with addresses.

`program.run(*values)` takes the addresses of the arguments, then the symbolic dims, and makes one
native call. What a call owns (its frame and arena) is one block of memory, taken per call, so a
program may run in several threads at once and call itself through Python.

RETURN steps and SIGINT leave the native code: `run` then calls the handler (or lets Python raise
KeyboardInterrupt) and resumes. When a handler raises, the call is over: outputs hold whatever was
written so far.

Workspace: [frame | dims | slots | loop states | gathered pointers | arena]; a caller of this
program as a step reserves `workspace_bytes` at one of its own workspace slots.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyjax.core import memory
from tinyjax.core.config import config
from tinyjax.core.weak import WeakValues
from tinyjax.runtime import buffers
from tinyjax.runtime import native_ir as ir
from tinyjax.runtime.hardened import crumb_name, last_kernels, open_crumbs
from tinyjax.runtime.kernels import Kernel
from tinyjax.runtime.native import Native, native
from tinyjax.runtime.steps import Layout, Limits, Packed, Step, StepError, pack, show

Handler = Callable[[list[int], list[int]], None]

# Workspaces up to this size stay with their program between calls: taking one is then a list pop.
# Larger ones go back to the pool, for other programs and for results.
KEEP_WORKSPACE_BYTES = 256 << 10

_live: WeakValues[int, _Bound] = WeakValues()  # by descriptor
_frame_at = (ctypes.c_int64 * (ir.FRAME_BYTES // 8)).from_address
_check_signals = ctypes.pythonapi.PyErr_CheckSignals


def _align(nbytes: int) -> int:
    return -(-nbytes // memory.ALIGNMENT) * memory.ALIGNMENT


def _words(values: Sequence[int]) -> NDArray[np.int64]:
    """Values as int64 memory; never empty, so that it has an address."""
    return np.array([*values, 0], dtype=np.int64)


class _Workspaces:
    """The memory calls of one program own while they run; small ones are its own while it lives."""

    def __init__(self, nbytes: int, hardened: bool) -> None:
        self.nbytes = nbytes
        self.hardened = hardened
        self.pool = buffers.pool
        self.kept: list[int] = []  # its own, not in use
        self.owners: list[Any] = []  # of its own: blocks are free when these go
        self.keep = nbytes <= KEEP_WORKSPACE_BYTES and not hardened

    def take(self) -> int:
        try:
            return self.kept.pop()
        except IndexError:
            pass
        if self.hardened:
            return self.pool.guarded_take(self.nbytes) + memory.ALIGNMENT
        if self.keep:
            owner, address = self.pool.owned(self.nbytes)
            self.owners.append(owner)
            return address
        return self.pool.take(self.nbytes)

    def give(self, address: int) -> None:
        if self.keep:
            self.kept.append(address)
        elif self.hardened:
            start = address - memory.ALIGNMENT
            del self.pool.guarded[start]
            self.pool.give(start, self.nbytes + 2 * memory.ALIGNMENT)
        else:
            self.pool.give(address, self.nbytes)


class _Bound:
    """What the native code of a program reads, and what its RETURN steps call.

    A `run` function holds this and not its Program, so that neither holds itself.
    """

    __slots__ = (
        "__weakref__", "descriptor", "dims", "handlers", "keep", "polls", "workspace_bytes",
    )  # fmt: skip

    descriptor: int
    polls: bool

    def __init__(self, program: Program, packed: Packed) -> None:
        """Fill addresses into the table and lay out the workspace."""
        layout = program.layout
        self.handlers = program.handlers
        self.dims = layout.dims
        self.polls = packed.polls or any(callee.polls for callee in program.programs)
        for at, kernel in packed.kernels:
            packed.words[at] = program.kernels[kernel].address
        for at, callee in packed.programs:
            packed.words[at] = program.programs[callee].bound.descriptor
        crumbs = [crumb_name(kernel.name) for kernel in program.kernels if program.hardened]
        for at, kernel in packed.names:
            packed.words[at] = ctypes.addressof(crumbs[kernel])

        dims_at = ir.FRAME_BYTES
        slots_at = dims_at + 8 * layout.dims
        loops_at = slots_at + 8 * layout.slots
        gather_at = loops_at + 16 * packed.loops
        arena_at = _align(gather_at + 8 * packed.gathered)
        self.workspace_bytes = arena_at + layout.arena_bytes

        constants = [c if isinstance(c, int) else memory.address(c) for c in program.constants]
        table = _words(packed.words)
        addresses = _words(constants)
        offsets = _words([arena_at + offset for offset in layout.offsets])
        fields = {
            ir.TABLE: memory.address(table),
            ir.N_ARGS: layout.args,
            ir.N_CONSTS: layout.constants,
            ir.CONSTS: memory.address(addresses),
            ir.N_OFFSETS: len(layout.offsets),
            ir.OFFSETS: memory.address(offsets),
            ir.N_DIMS: layout.dims,
            ir.DIMS_AT: dims_at,
            ir.SLOTS_AT: slots_at,
            ir.LOOPS_AT: loops_at,
            ir.GATHER_AT: gather_at,
        }
        descriptor = _words([fields[place] for place in range(ir.DESC_WORDS)])
        self.descriptor = memory.address(descriptor)
        callees = tuple(callee.bound for callee in program.programs)
        self.keep = (
            (table, addresses, offsets, descriptor, crumbs)
            + (program.kernels, program.constants, callees)
        )  # fmt: skip
        _live.setdefault(self.descriptor, self)


def _serve(code: Native, workspace: int, status: int, resume: Callable[[int], int]) -> None:
    """Do what a call left the native code for, and resume it, until it ends."""
    root = _frame_at(workspace)
    while status:
        if status == ir.POLLED:
            root[ir.SEEN] = code.signals.value
            _check_signals()  # raises KeyboardInterrupt in the main thread
        else:
            frame = _frame_at(root[ir.CURRENT])[:]
            program = _live.get(frame[ir.DESC])
            assert program is not None  # it runs
            pointers = (ctypes.c_int64 * frame[ir.COUNT]).from_address(frame[ir.GATHER])[:]
            dims = (ctypes.c_int64 * program.dims).from_address(frame[ir.DIMS])[:]
            program.handlers[frame[ir.RESULT]](pointers, dims)
        status = resume(workspace)


class Program:
    """A compiled program on the CPU.

    `steps` name slots (see `steps.py`), and kernels, programs and handlers by their index in the
    sequences given here. `constants` are arrays, kept alive, or addresses. `short` programs hold
    the GIL while they run: right for a few microseconds of work; a program with a loop never does.
    `handlers[i](pointers, dims)` serves RETURN steps.
    """

    def __init__(
        self,
        name: str,
        steps: Sequence[Step],
        layout: Layout,
        *,
        kernels: Sequence[Kernel] = (),
        programs: Sequence[Program] = (),
        handlers: Sequence[Handler] = (),
        constants: Sequence[NDArray[Any] | int] = (),
        short: bool = False,
        hardened: bool | None = None,
    ) -> None:
        if len(constants) != layout.constants:
            raise StepError(f"{name}: {len(constants)} constants for {layout.constants} slots")
        self.name = name
        self.steps = tuple(steps)
        self.layout = layout
        self.kernels = tuple(kernels)
        self.programs = tuple(programs)
        self.handlers = tuple(handlers)
        self.constants = tuple(constants)
        self.hardened = config.tinyjax_hardened if hardened is None else hardened
        limits = Limits(
            slots=layout.slots,
            dims=layout.dims,
            kernels=len(self.kernels),
            programs=len(self.programs),
            handlers=len(self.handlers),
        )
        self.bound = _Bound(self, pack(self.steps, limits, trace=self.hardened))
        self.polls = self.bound.polls
        self.workspace_bytes = self.bound.workspace_bytes
        self.short = short and not self.polls
        self.run = _runner(self)

    def listing(self) -> str:
        """The steps as text."""
        return show(self.steps, [kernel.name for kernel in self.kernels])

    def __repr__(self) -> str:
        return f"<Program {self.name}: {len(self.kernels)} kernels, {self.workspace_bytes} bytes>"


def _runner(program: Program) -> Callable[..., None]:
    """`run(*values)` of a program, with all it needs in local variables.

    Cost: about 0.5 us per call for a short program of one kernel.
    """
    code = native()
    bound, layout, name = program.bound, program.layout, program.name
    pack_block = struct.Struct(f"={3 + layout.args + layout.dims}q").pack
    workspaces = _Workspaces(program.workspace_bytes, program.hardened)
    take, give, kept = workspaces.take, workspaces.give, workspaces.kept
    resume = code.resume_held if program.short else code.resume
    enter = code.enter_held if program.short else code.enter
    if program.polls:
        enter = code.enter_watched
    signals = code.signals

    def wrong_values(values: tuple[Any, ...]) -> TypeError:
        return TypeError(
            f"program {name} takes {layout.args} addresses and {layout.dims} dims as int, "
            f"got {len(values)} values: {values}"
        )

    def run_kept(*values: int) -> None:
        try:
            workspace = kept.pop()
        except IndexError:
            workspace = take()
        try:
            status = enter(pack_block(bound.descriptor, workspace, 0, *values))
            if status:
                _serve(code, workspace, status, resume)
        except struct.error:
            raise wrong_values(values) from None
        finally:
            kept.append(workspace)

    def run_long(*values: int) -> None:
        workspace = take()
        try:
            # A SIGINT between this look at the count and the first poll is seen by that poll.
            status = enter(pack_block(bound.descriptor, workspace, signals.value, *values))
            if status:
                _serve(code, workspace, status, resume)
        except struct.error:
            raise wrong_values(values) from None
        finally:
            give(workspace)

    def run_hardened(*values: int) -> None:
        path, ring = open_crumbs()
        code.crumbs.value = ring
        workspace = take()
        try:
            status = enter(pack_block(bound.descriptor, workspace, signals.value, *values))
            if status:
                _serve(code, workspace, status, resume)
            buffers.pool.check_canaries()
        except struct.error:
            raise wrong_values(values) from None
        except buffers.CanaryError as error:
            error.add_note(f"after program {name}; last kernels: {last_kernels(path)}")
            raise
        finally:
            give(workspace)

    if program.hardened:
        return run_hardened
    return run_kept if workspaces.keep and not program.polls else run_long
