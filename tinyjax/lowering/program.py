"""`lower(body)`: a closed stage-1 body -> a printable `Lowered`, and from it a runtime Program.

    lowered = lower(body)
    lowered.fusion          the decision tables, one per body
    lowered.groups          every group of every body
    lowered.kernels         distinct kernels: loop nests, DOT nests, sorts
    lowered.schedule        the steps as text
    lowered.plan            arena, peak bytes, in-place and copy decisions
    lowered.program()       compiled: `run(*input addresses, *output addresses)`
    lowered.interpret(args) the same schedule over stage-2 kernels in plain Python, without LLVM

Scratch memory of kernels (packed operands, partial sums, merge buffers, workspaces of nested
programs) is one region behind the arena, shared by all steps, because only one step runs at a time.

Routines that need Python (FFT through NumPy, HOST_CALL, CALLBACK, CHECK) leave the native program
with a RETURN step; `core.execute.run` does what lies above this layer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinyjax.core import execute
from tinyjax.core.avals import Aval
from tinyjax.core.body import params_of
from tinyjax.core.config import config
from tinyjax.core.errors import KernelBoundsError
from tinyjax.core.memory import ALIGNMENT
from tinyjax.core.ops import Op
from tinyjax.core.record import recording
from tinyjax.core.uop import UOp, toposort
from tinyjax.lowering import plan as planning
from tinyjax.lowering.codegen import compile_kernels
from tinyjax.lowering.dims import Bounded, Sizes, at_sizes, sizes_of
from tinyjax.lowering.dot_kernel import DotKernel
from tinyjax.lowering.driver import run
from tinyjax.lowering.fusion import CONTRACTION, Group
from tinyjax.lowering.harden import RECORD_BYTES, Access, harden
from tinyjax.lowering.interpret import interpret
from tinyjax.lowering.kernel import Code, Kernel
from tinyjax.lowering.passes import FLATTEN, RANGEIFY, codes_of
from tinyjax.lowering.plan import Plan, Slot
from tinyjax.lowering.rangeify import is_update, rangeify
from tinyjax.lowering.sort import SortKernel
from tinyjax.lowering.target import Target, host

Array = np.ndarray[Any, Any]
SHORT_CYCLES = 30_000
"""Programs below about 10 us keep the GIL: releasing and taking it again would cost a tenth."""


# --- kernels ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoopKernel(Kernel):
    """A fused group as a stage-2 nest."""

    body: UOp

    @property
    def sink(self) -> UOp:
        """The stage-2 kernel."""
        return rangeify(self.body)

    def title(self) -> str:
        """The op of its last output, for people."""
        return self.body.src[-1].op.name.lower()

    def __str__(self) -> str:
        """The nest as loops."""
        from tinyjax.core.kernel_text import print_kernel  # only for people who look

        return print_kernel(self.sink)

    def codes(self, target: Target) -> list[Code]:
        """One call, or two for a big reduction with few results."""
        return [
            Code(
                k.ir_text,
                k.passes,
                k.tasks.total,
                k.tasks.chunk,
                k.scratch,
                cycles=k.cycles,
                actions=k.schedule,
                units=None if k.tasks.limit is None else k.tasks.units,
            )
            for k in compile_kernels(run(RANGEIFY, self.body), target, "k", self.slots)
        ]

    @property
    def slots(self) -> int:
        """Number of outputs and inputs; scratch comes after them."""
        inputs = [n.arg[0] for n in toposort([self.body]) if n.op is Op.PARAM]
        return max(inputs, default=-1) + 1 + (0 if is_update(self.body) else len(self.body.src))

    def interpret(self, arrays: Sequence[Array], dims: Sequence[int] = ()) -> None:
        """Run the nest in plain Python."""
        interpret(self.sink, arrays, dims)


def kernel_of(step: planning.Launch | planning.Routine) -> Kernel | None:
    """The kernel a step runs; None if it runs in Python."""
    if isinstance(step, planning.Routine):
        return SortKernel.of(step.node) if step.node.op is Op.SORT else None
    made = step.body.derived.get("kernel")
    if made is None:
        made = DotKernel(step.body) if step.kind == CONTRACTION else LoopKernel(step.body)
        step.body.derived["kernel"] = made
    assert isinstance(made, Kernel)
    return made


# --- lowered ------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Lowered:
    """A flat body and its plan; see the module's docstring."""

    body: UOp
    plan: Plan
    sizes: Sizes
    names: dict[Any, str] = field(default_factory=dict)

    @property
    def groups(self) -> list[Group]:
        """Groups of all bodies."""
        return [g for _, fusion in self.plan.fusions for g in fusion.groups]

    @property
    def fusion(self) -> str:
        """The decision tables as text."""
        return "\n".join(f"{name}:\n{fusion.table()}" for name, fusion in self.plan.fusions)

    @property
    def kernels(self) -> list[Kernel]:
        """Distinct kernels in order of first use; equal groups of any body are one."""
        found: dict[Kernel, None] = {}
        for step in walk(self.plan.steps):
            if isinstance(step, planning.Launch | planning.Routine):
                kernel = kernel_of(step)
                if kernel is not None:
                    found[kernel] = None
        return list(found)

    @property
    def schedule(self) -> str:
        """The steps as text."""
        numbers = {k: f"k{i}.{k.title()}" for i, k in enumerate(self.kernels)}
        names = {}
        for step in walk(self.plan.steps):
            if isinstance(step, planning.Launch):
                kernel = kernel_of(step)
                assert kernel is not None
                names[step.body] = numbers[kernel]
        return planning.show(self.plan.steps, names)

    def decisions(self, target: Target | None = None) -> str:
        """How each kernel runs: per native function, the actions its code was made by."""
        lines = []
        for i, kernel in enumerate(self.kernels):
            for code in codes_of(kernel, target or host()):
                lines.append(f"k{i}.{kernel.title()}: {', '.join(code.actions) or 'scalar'}")
        return "\n".join(lines)

    def __str__(self) -> str:
        notes = "\n".join(self.plan.notes)
        memory = f"arena {self.plan.arena_bytes} bytes, peak {self.plan.peak_bytes} bytes"
        return "\n".join(part for part in (self.schedule, memory, notes) if part)

    def interpret(self, args: Sequence[Array], dims: Sequence[int] = ()) -> list[Array]:
        """Run the plan in plain Python: for tests, about 2 us per node and element.

        `dims` are the values of `sizes`; results are dense, with the first axis at its actual size.
        """
        return _Interpreter(self, dims).run(args)

    def program(self, target: Target | None = None, name: str = "program") -> Any:
        """The runtime Program: `run(*addresses of inputs, *addresses of outputs)`."""
        return _Builder(self, target or host(), name).program()


def lower(
    body: UOp, num_inputs: int | None = None, donated: frozenset[int] = frozenset()
) -> Lowered:
    """Lower a closed body. `num_inputs` counts parameters, those that the body does not read too.

    Inputs in `donated` may be overwritten; `plan.aliases` says which outputs then lie in one.
    If the body has symbolic sizes, programs take `sizes.values(dims)` after the addresses, and
    nothing is donated.
    """
    if num_inputs is None:
        num_inputs = max(params_of(body), default=-1) + 1
    key = ("lower", num_inputs, donated)
    found: Lowered | None = body.derived.get(key)
    if found is None or recording():
        flat = run(FLATTEN, body)
        sizes = sizes_of(flat)
        made = planning.plan(flat, num_inputs, donated, sizes)
        found = body.derived[key] = Lowered(flat, made, sizes)
    return found


def walk(steps: Sequence[planning.Step]) -> list[planning.Step]:
    """All steps, bodies of loops included."""
    found: list[planning.Step] = []
    for step in steps:
        found.append(step)
        match step:
            case planning.Loop(_, inner):
                found += walk(inner)
            case planning.While(cond, _, inner):
                found += walk(cond) + walk(inner)
            case planning.Branch(_, branches):
                for branch in branches:
                    found += walk(branch)
    return found


# --- routines in Python -------------------------------------------------------------------------


def run_in_python(step: planning.Routine, arrays: Sequence[Array], dims: Sequence[int]) -> None:
    """Compute a routine's results, the first arrays, from the others.

    Axes of the arrays have their upper bounds; the routine sees what there is at the run's sizes.
    """
    node = step.node
    if dims and any(isinstance(s, Bounded) for of in step.avals for s in of.shape):
        node = at_sizes(node, dims)
        given = list(arrays)
        for i, of in enumerate(step.avals):
            for axis, size in enumerate(of.shape):
                if isinstance(size, Bounded):
                    given[i] = given[i][(slice(None),) * axis + (slice(dims[size.number]),)]
        arrays = given
    args = [a.copy() for a in arrays[step.results :]]
    if node.op is Op.FFT:
        found: Sequence[Any] = [fft(node, args[0])]
    elif node.op is Op.COPY:
        found = args
    else:
        found = execute.run(node, args)
    for result, array in zip(found, arrays, strict=False):
        array[...] = np.asarray(result).reshape(array.shape).astype(array.dtype, copy=False)


FFTS: dict[str, Callable[..., Any]] = {
    "fft": np.fft.fftn,
    "ifft": np.fft.ifftn,
    "rfft": np.fft.rfftn,
    "irfft": np.fft.irfftn,
}


def fft(node: UOp, x: Array) -> Array:
    """NumPy's transforms over the last axes; single precision stays single."""
    kind, lengths = node.arg
    axes = tuple(range(x.ndim - len(lengths), x.ndim))
    shape = lengths if kind in ("rfft", "irfft") else None
    found = FFTS[kind](x, s=shape, axes=axes)
    return np.asarray(found).astype(node.aval.dtype)


def array_at(address: int, of: Aval) -> Array:
    """The memory at an address as an array; whoever owns it keeps it alive."""
    if not of.nbytes:
        return np.empty(of.shape, of.dtype)
    raw = memoryview((ctypes.c_uint8 * of.nbytes).from_address(address))
    array: Array = np.frombuffer(raw, dtype=np.uint8).view(of.dtype).reshape(of.shape)
    return array


# --- interpretation -----------------------------------------------------------------------------


class _Interpreter:
    """Runs the steps over bytes: the arena is one array, as it is in a program."""

    def __init__(self, lowered: Lowered, dims: Sequence[int]) -> None:
        self.lowered, self.dims = lowered, dims
        self.at: dict[Slot, tuple[Array, int]] = {}

    def run(self, args: Sequence[Array]) -> list[Array]:
        plan = self.lowered.plan
        for slot, value in zip(plan.inputs, args, strict=True):
            owned = np.array(value, slot.aval.dtype, order="C").reshape(-1).view(np.uint8)
            whole = np.full(slot.nbytes, 0xA5, np.uint8)
            whole[: owned.size] = owned[: whole.size]
            self.at[slot] = (whole, 0)
        outputs = [np.zeros(s.aval.shape, s.aval.dtype) for s in plan.outputs]
        for slot, value in zip(plan.outputs, outputs, strict=True):
            self.at[slot] = (value.reshape(-1).view(np.uint8), 0)
        arena = np.full(plan.arena_bytes, 0xA5, np.uint8)
        for slot in plan.arena:
            self.at[slot] = (arena, max(slot.offset, 0))
        self.steps(plan.steps)
        for number, source in plan.aliases.items():
            raw, _ = self.at[plan.inputs[source]]
            of = plan.outputs[number].aval
            outputs[number] = raw.view(of.dtype).reshape(of.shape)
        return [o[: self.number(s.aval.shape[0])] if o.ndim else o
                for o, s in zip(outputs, plan.outputs, strict=True)]  # fmt: skip

    def number(self, value: int) -> int:
        """A number of the plan that may be one of the sizes."""
        return self.dims[value.number] if isinstance(value, Bounded) else value

    def array(self, slot: Slot) -> Array:
        raw, offset = self.at[slot]
        own = raw[offset : offset + slot.nbytes]
        array: Array = own.view(slot.aval.dtype).reshape(slot.aval.shape)
        return array

    def steps(self, steps: Sequence[planning.Step]) -> None:
        for step in steps:
            self.step(step)

    def step(self, step: planning.Step) -> None:
        at = self.at
        match step:
            case planning.Launch(_, _, slots):
                kernel = kernel_of(step)
                assert kernel is not None
                kernel.interpret([self.array(s) for s in slots], self.dims)
            case planning.Routine(_, slots, _):
                shapes = [of.shape for of in step.avals]
                arrays = [self.array(s).reshape(h) for s, h in zip(slots, shapes, strict=True)]
                kernel = kernel_of(step)
                if kernel is not None:
                    kernel.interpret(arrays, self.dims)
                else:
                    run_in_python(step, arrays, self.dims)
            case planning.Nested(body, slots, sizes):
                count = len(slots) - len(body.src)
                inner = [self.dims[i] for i in sizes]
                found = lower(body, count).interpret([self.array(s) for s in slots[:count]], inner)
                for result, slot in zip(found, slots[count:], strict=True):
                    self.array(slot).reshape(-1)[: result.size] = result.reshape(-1)
            case planning.Move(dst, src, _):
                self.array(dst)[...] = self.array(src).copy().reshape(dst.aval.shape)
            case planning.Point(dst, src, offset, stride):
                raw, start = at[src]
                at[dst] = (raw, start + self.number(offset) * stride)
            case planning.Advance(slot, stride):
                raw, start = at[slot]
                at[slot] = (raw, start + stride)
            case planning.Swap(a, b):
                at[a], at[b] = at[b], at[a]
            case planning.Loop(trip, inner):
                for _ in range(self.number(trip)):
                    self.steps(inner)
            case planning.While(cond, pred, inner):
                while True:
                    self.steps(cond)
                    if not self.array(pred):
                        break
                    self.steps(inner)
            case planning.Branch(index, branches):
                chosen = int(self.array(index))
                self.steps(branches[min(max(chosen, 0), len(branches) - 1)])


# --- the program --------------------------------------------------------------------------------


class _Builder:
    """Numbers the slots, compiles the kernels and turns the plan's steps into the runtime's."""

    def __init__(self, lowered: Lowered, target: Target, name: str) -> None:
        # Drivers and native code load with the first program, not with the package.
        from tinyjax.runtime import kernels, program, steps

        self.runtime_kernels, self.runtime_program, self.rt = kernels, program, steps
        self.plan, self.target, self.name = lowered.plan, target, name
        self.sizes = lowered.sizes
        self.pending: list[Any] = []
        self.kernel_numbers: dict[Kernel, list[int]] = {}
        self.codes: dict[Kernel, list[Code]] = {}
        self.handlers: list[Any] = []
        self.programs: list[Any] = []
        self.program_numbers: dict[UOp, int] = {}
        self.constants: list[Array] = []
        self.constant_numbers: dict[tuple[int, ...], int] = {}
        self.cycles = 0.0
        self.loops = False
        self.scratch_bytes = 0
        self.hardened = config.tinyjax_hardened
        self.accesses: list[tuple[Access, ...]] = []  # of each kernel, in hardened mode
        self.prepare()
        first = len(self.plan.inputs) + len(self.plan.outputs)
        self.first_offset = first + len(self.constants)
        self.offsets: list[int] = []
        self.numbers: dict[Slot, int] = {}
        for number, slot in enumerate((*self.plan.inputs, *self.plan.outputs)):
            self.numbers[slot] = number
        for slot in (*self.plan.arena, *self.plan.pointers):
            self.numbers[slot] = self.first_offset + len(self.offsets)
            self.offsets.append(max(slot.offset, 0))
        self.scratch_at = -(-self.plan.arena_bytes // ALIGNMENT) * ALIGNMENT
        self.scratch_slots: dict[int, int] = {}
        if self.hardened:
            self.record = self.scratch(_aligned(self.scratch_bytes))
            self.scratch_bytes = _aligned(self.scratch_bytes) + RECORD_BYTES

    def prepare(self) -> None:
        """Compile every kernel (on the helper thread) and collect constants and scratch."""
        for step in walk(self.plan.steps):
            if isinstance(step, planning.Launch | planning.Routine):
                kernel = kernel_of(step)
                if kernel is not None and kernel not in self.codes:
                    self.add_kernel(kernel, [s.nbytes for s in step.slots])
            elif isinstance(step, planning.Nested):
                self.add_program(step)
            elif isinstance(step, planning.Loop | planning.While):
                self.loops = True

    def add_kernel(self, kernel: Kernel, extents: list[int]) -> None:
        """`extents` are the bytes behind the kernel's own slots."""
        codes = self.codes[kernel] = list(codes_of(kernel, self.target))
        numbers = self.kernel_numbers[kernel] = []
        for code in codes:
            numbers.append(len(self.pending))
            ir = code.ir_text
            if self.hardened:
                params = [8 * len(code.params)] if code.params else []
                ir, accesses = harden(ir, [*extents, *code.scratch, *params], len(self.sizes))
                self.accesses.append(accesses)
            self.pending.append(self.runtime_kernels.submit(ir, kernel.title(), passes=code.passes))
            self.cycles += code.cycles
            self.scratch_bytes = max(self.scratch_bytes, sum(map(_aligned, code.scratch)))
            if code.params and code.params not in self.constant_numbers:
                self.constant_numbers[code.params] = len(self.constants)
                self.constants.append(np.array(code.params, np.int64))

    def add_program(self, step: planning.Nested) -> None:
        if step.body not in self.program_numbers:
            count = len(step.slots) - len(step.body.src)
            made = nested_program(step.body, count, self.target)
            self.program_numbers[step.body] = len(self.programs)
            self.programs.append(made)
            self.scratch_bytes = max(self.scratch_bytes, made.workspace_bytes)
            self.loops |= made.polls

    def program(self) -> Any:
        steps = self.steps(self.plan.steps)
        if self.hardened:
            steps = (self.rt.Fill(self.record, 0, RECORD_BYTES), *steps)
        layout = self.rt.Layout(
            args=len(self.plan.inputs) + len(self.plan.outputs),
            constants=len(self.constants),
            offsets=tuple(self.offsets),
            arena_bytes=self.scratch_at + self.scratch_bytes,
            dims=len(self.sizes),
        )
        return self.runtime_program.Program(
            self.name,
            steps,
            layout,
            kernels=[p.result() for p in self.pending],
            programs=self.programs,
            handlers=self.handlers,
            constants=self.constants,
            short=not self.loops and not self.handlers and self.cycles < SHORT_CYCLES,
        )

    def scratch(self, offset: int) -> int:
        """The slot of a place in the scratch region."""
        if offset not in self.scratch_slots:
            self.scratch_slots[offset] = self.first_offset + len(self.offsets)
            self.offsets.append(self.scratch_at + offset)
        return self.scratch_slots[offset]

    def slots(self, slots: Sequence[Slot]) -> tuple[int, ...]:
        return tuple(self.numbers[s] for s in slots)

    def steps(self, steps: Sequence[planning.Step]) -> tuple[Any, ...]:
        return tuple(made for step in steps for made in self.step(step))

    def step(self, step: planning.Step) -> list[Any]:
        rt, numbers = self.rt, self.numbers
        match step:
            case planning.Launch(_, _, slots):
                kernel = kernel_of(step)
                assert kernel is not None
                return self.calls(kernel, slots)
            case planning.Routine(_, slots, _):
                kernel = kernel_of(step)
                if kernel is not None:
                    return self.calls(kernel, slots)
                return [rt.Return(self.handler(step), self.slots(slots))]
            case planning.Nested(body, slots):
                # Building a program adds sizes to its own, so they are looked up here.
                inner = lower(body, len(slots) - len(body.src)).sizes.numbers
                number = self.program_numbers[body]
                taken = list(inner)[: self.programs[number].layout.dims]
                sizes = tuple([self.sizes.number(size) for size in taken])
                return [rt.CallProgram(number, self.slots(slots), self.scratch(0), sizes)]
            case planning.Move(dst, src, nbytes):
                return [rt.Copy(numbers[dst], numbers[src], self.operand(nbytes))]
            case planning.Point(dst, src, Bounded() as last, stride):
                return [rt.Point(numbers[dst], numbers[src], self.operand(last), stride)]
            case planning.Point(dst, src, offset):
                index, stride = (1, offset) if offset else (0, 0)
                return [rt.Point(numbers[dst], numbers[src], index, stride)]
            case planning.Advance(slot, stride):
                return [rt.Advance(numbers[slot], stride)]
            case planning.Swap(a, b):
                return [rt.Swap(numbers[a], numbers[b])]
            case planning.Loop(trip, inner):
                return [rt.Loop(self.operand(trip), self.steps(inner))]
            case planning.While(cond, pred, inner):
                return [rt.While(self.steps(cond), numbers[pred], self.steps(inner))]
            case planning.Branch(index, branches):
                boolean = index.aval.dtype == np.bool_
                made = tuple(self.steps(b) for b in branches)
                return [rt.Branch(numbers[index], made, boolean)]

    def operand(self, value: int) -> Any:
        """A number of the step table: a size of the program by its place in the dims."""
        return self.rt.Dim(value.number) if isinstance(value, Bounded) else value

    def calls(self, kernel: Kernel, slots: Sequence[Slot]) -> list[Any]:
        """The calls of a kernel: its slots, then scratch, then its parameters.

        Hardened ones get the record of the run as well, and each call is followed by a look at it.
        """
        made: list[Any] = []
        for number, code in zip(self.kernel_numbers[kernel], self.codes[kernel], strict=True):
            extra: list[int] = []
            offset = 0
            for nbytes in code.scratch:
                extra.append(self.scratch(offset))
                offset += _aligned(nbytes)
            if code.params:
                constants = len(self.plan.inputs) + len(self.plan.outputs)
                extra.append(constants + self.constant_numbers[code.params])
            if self.hardened:
                extra.append(self.record)
            chunk = code.chunk if code.chunk < code.total else 0
            places = (*self.slots(slots), *extra)
            total: Any = code.total
            if code.units is not None and total > 1:
                total = self.operand(self.sizes.bounded(code.units(self.sizes.of)))
            made.append(self.rt.Call(number, places, 0, total, chunk))
            if self.hardened:
                made.append(self.stop_if_violated(kernel, self.accesses[number], slots))
        return made

    def stop_if_violated(
        self, kernel: Kernel, accesses: Sequence[Access], slots: Sequence[Slot]
    ) -> Any:
        """Leave for Python, which raises, if the record of the run is set."""

        def report(pointers: tuple[int, ...], dims: tuple[int, ...]) -> None:
            _, number, offset = (ctypes.c_int64 * 3).from_address(pointers[0])
            raise KernelBoundsError(accesses[number].violation(kernel.title(), offset, slots))

        self.handlers.append(report)
        leave = self.rt.Return(len(self.handlers) - 1, (self.record,))
        return self.rt.Branch(self.record, ((), (leave,)), boolean=True)

    def handler(self, step: planning.Routine) -> int:
        """Register what a RETURN step calls."""
        avals = step.avals

        def serve(pointers: tuple[int, ...], dims: tuple[int, ...]) -> None:
            arrays = [array_at(p, of) for p, of in zip(pointers, avals, strict=True)]
            run_in_python(step, arrays, dims)

        self.handlers.append(serve)
        return len(self.handlers) - 1


def nested_program(body: UOp, count: int, target: Target) -> Any:
    """The program of a precompiled body, shared by all its call sites."""
    key = ("program", count, target, config.tinyjax_hardened)
    found = body.derived.get(key)
    if found is None:
        found = body.derived[key] = lower(body, count).program(target)
    return found


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
