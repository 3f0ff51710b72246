"""Steps: what a compiled program does, as plain data, and the table of words they pack into.

A program is data. Its steps are packed into one array of int64 words that a prebuilt native walker
(`native_ir.py`) follows; compiling a driver function per program instead would cost 7 to 20 ms.

**Slots.** An invocation owns an array of pointers, its slots, in this order: the arguments (inputs
and outputs, given per call), the constants (fixed addresses), the workspace slots (base of this
invocation's workspace plus a fixed offset). Steps name slots by index. A slot is a variable of the
invocation: POINT, ADVANCE and SWAP change it, and nothing but this invocation sees that. A scalar
that steps read or write (loop counter, trip count, predicate) is memory behind a slot, so kernels
read it like any other operand.

**Operands** of a step are constants (`int`), symbolic dimensions (`Dim(i)`: the i-th int64 given
per call) or cells (`Cell(s)`: the int64 that slot `s` points at).

**Meaning of each step**, with its packed words (o, v = operand kind and word; targets are word
offsets from the step's own first word):

    CALL      fn lo hi n slot*n         kernel(gathered slots, dims, lo, hi), on this thread, once.
    SPREAD    fn o v o v chunk n slot*n as CALL with operands for lo and hi. chunk > 0: the range
              [lo, hi) is cut into [lo, lo+chunk), [lo+chunk, ...), the last one shorter, and the
              pool's threads and this one take them; none if hi <= lo. Chunks depend on the step
              alone: whoever runs them, the calls made are the same.
    PROGRAM   desc slot n slot*n m dim*m   walk another table: its arguments are these slots, its
              dims these dims, its workspace is where `slot` points.
    LOOP      o v counter reverse state exit   trip count; if it is < 1 go to exit. Otherwise the
              iteration number (0 first, or trip-1 first if reverse) is stored as int64 behind slot
              `counter` (-1: nowhere) and the body follows.
    NEXT      back counter reverse state   next iteration: count, store, go back; polls.
    JUMP      target polls              polls only if the word is 1.
    UNLESS    pred target               go to target if the byte behind slot `pred` is 0.
    BRANCH    index kind n target*n     go to the target chosen by the int32 (kind 0) or the bool
              byte (kind 1) behind slot `index`, clamped to [0, n-1].
    POINT     dst src o v o v           slots[dst] = slots[src] + index * stride (bytes).
    ADVANCE   slot o v                  slots[slot] += stride (bytes, may be negative).
    SWAP      a b                       exchange two slots: the ping-pong of a carry.
    COPY      dst src o v               memmove of nbytes.
    FILL      dst byte o v              memset of nbytes.
    RETURN    code n slot*n             leave for Python: `handlers[code]` is called with the
              gathered pointers and the dims; when it returns, the walk goes on after this step;
              when it raises, it never does.
    TRACE     name                      write the next kernel's name where it survives a crash.
    END                                 of this table: back to the caller's, or to Python.

*Polls*: if SIGINT arrived since this invocation last looked, leave for Python, which raises
KeyboardInterrupt in the main thread; a handler that does not raise lets the walk go on.

Loop counts are kept in the invocation's frame, so a table is read-only and one program may run in
several threads at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Dim:
    """The `index`-th symbolic dimension of the call."""

    index: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The int64 that a slot points at when the step runs."""

    slot: int


Operand: TypeAlias = int | Dim | Cell


@dataclass(frozen=True, slots=True)
class Call:
    """Run kernel `kernel` of the program over [lo, hi); `chunk > 0` shares the range out.

    Without `chunk` the kernel is called exactly once, whatever lo and hi are.
    """

    kernel: int
    slots: tuple[int, ...]
    lo: Operand = 0
    hi: Operand = 0
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class CallProgram:
    """Run program `program` of the program on these slots; its workspace is at slot `workspace`."""

    program: int
    slots: tuple[int, ...]
    workspace: int
    dims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """Run the body `trip` times; `counter` is a slot whose int64 holds the iteration number.

    `reverse` only makes the counter fall from trip-1 to 0; pointers move as the body says.
    """

    trip: Operand
    body: tuple[Step, ...]
    counter: int | None = None
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class While:
    """Run `cond`, stop if the bool behind slot `pred` is false, run `body`, and again."""

    cond: tuple[Step, ...]
    pred: int
    body: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Run the branch chosen by the value behind slot `index`, clamped into range.

    The index is an int32, or with `boolean` a bool: false is branch 0, true is branch 1.
    """

    index: int
    branches: tuple[tuple[Step, ...], ...]
    boolean: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """slots[dst] = slots[src] + index * stride; with neither it copies the pointer."""

    dst: int
    src: int
    index: Operand = 0
    stride: Operand = 0


@dataclass(frozen=True, slots=True)
class Advance:
    """slots[slot] += stride, in bytes."""

    slot: int
    stride: Operand


@dataclass(frozen=True, slots=True)
class Swap:
    """Exchange two slots."""

    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy nbytes from behind `src` to behind `dst`; they may overlap."""

    dst: int
    src: int
    nbytes: Operand


@dataclass(frozen=True, slots=True)
class Fill:
    """Set nbytes behind `dst` to `byte`."""

    dst: int
    byte: int
    nbytes: Operand


@dataclass(frozen=True, slots=True)
class Return:
    """Leave for Python: call `handlers[handler](pointers of slots, dims)`, then go on."""

    handler: int
    slots: tuple[int, ...] = ()


Step: TypeAlias = (
    Call | CallProgram | Loop | While | Branch | Point | Advance | Swap | Copy | Fill | Return
)


class Opcode(IntEnum):
    """First word of a packed step; `native_ir.py` has one case per entry."""

    END = 0
    CALL = 1
    SPREAD = 2
    PROGRAM = 3
    LOOP = 4
    NEXT = 5
    JUMP = 6
    UNLESS = 7
    BRANCH = 8
    POINT = 9
    ADVANCE = 10
    SWAP = 11
    COPY = 12
    FILL = 13
    RETURN = 14
    TRACE = 15


@dataclass(slots=True)
class Packed:
    """The words of a table, and where the addresses go that are known only when it is loaded."""

    words: list[int] = field(default_factory=list)
    kernels: list[tuple[int, int]] = field(default_factory=list)  # (word position, kernel index)
    programs: list[tuple[int, int]] = field(default_factory=list)
    names: list[tuple[int, int]] = field(default_factory=list)  # TRACE: (position, kernel index)
    loops: int = 0  # loop states a frame needs: the depth of the nesting
    gathered: int = 0  # pointers the largest step gathers
    calls: int = 0  # kernel and program calls in the text of the table
    polls: bool = False  # holds a loop, here or in a callee: may run long
    returns: bool = False
    spreads: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """How many of each thing steps may name; packing checks every index against them."""

    slots: int
    dims: int
    kernels: int
    programs: int
    handlers: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The slots of a program, in this order: arguments, constants, workspace slots.

    `offsets` are the workspace slots' places in an arena of `arena_bytes`, which starts 64-byte
    aligned. Loop counters, predicates and carries are arena bytes like everything else.
    """

    args: int
    constants: int = 0
    offsets: tuple[int, ...] = ()
    arena_bytes: int = 0
    dims: int = 0

    @property
    def slots(self) -> int:
        """How many slots steps may name."""
        return self.args + self.constants + len(self.offsets)


class StepError(ValueError):
    """A step that names something the program does not have: a bug of the pass that made it."""


class _Packer:
    """Appends steps to `Packed`; forward targets are patched when they are known."""

    def __init__(self, limits: Limits, trace: bool) -> None:
        self.limits = limits
        self.trace = trace
        self.out = Packed()

    def check(self, what: str, index: int, bound: int, step: Step) -> int:
        if not 0 <= index < bound:
            raise StepError(f"{step} names {what} {index}; the program has {bound}")
        return index

    def slot(self, index: int, step: Step) -> int:
        return self.check("slot", index, self.limits.slots, step)

    def slots(self, indices: Sequence[int], step: Step) -> list[int]:
        self.out.gathered = max(self.out.gathered, len(indices))
        return [self.slot(index, step) for index in indices]

    def operand(self, operand: Operand, step: Step) -> tuple[int, int]:
        if isinstance(operand, Dim):
            return 1, self.check("dim", operand.index, self.limits.dims, step)
        if isinstance(operand, Cell):
            return 2, self.slot(operand.slot, step)
        return 0, int(operand)

    def emit(self, *words: int) -> int:
        """Append one packed step; returns its position."""
        at = len(self.out.words)
        self.out.words.extend(words)
        return at

    def patch(self, step_at: int, word: int, target: int) -> None:
        """Make word `word` of the step at `step_at` lead to position `target`."""
        self.out.words[step_at + word] = target - step_at

    def steps(self, steps: Iterable[Step], depth: int) -> None:
        for step in steps:
            self.step(step, depth)

    def step(self, step: Step, depth: int) -> None:
        match step:
            case Call():
                self.call(step)
            case CallProgram():
                self.out.calls += 1
                program = self.check("program", step.program, self.limits.programs, step)
                dims = [self.check("dim", dim, self.limits.dims, step) for dim in step.dims]
                slots = self.slots(step.slots, step)
                workspace = self.slot(step.workspace, step)
                at = self.emit(Opcode.PROGRAM, 0, workspace, len(slots), *slots, len(dims), *dims)
                self.out.programs.append((at + 1, program))
            case Loop():
                self.loop(step, depth)
            case While():
                self.out.polls = True
                top = len(self.out.words)
                self.steps(step.cond, depth)
                leave = self.emit(Opcode.UNLESS, self.slot(step.pred, step), 0)
                self.steps(step.body, depth)
                again = self.emit(Opcode.JUMP, 0, 1)
                self.patch(again, 1, top)
                self.patch(leave, 2, len(self.out.words))
            case Branch():
                self.branch(step, depth)
            case Point():
                index = self.operand(step.index, step)
                stride = self.operand(step.stride, step)
                dst, src = self.slot(step.dst, step), self.slot(step.src, step)
                self.emit(Opcode.POINT, dst, src, *index, *stride)
            case Advance():
                stride = self.operand(step.stride, step)
                self.emit(Opcode.ADVANCE, self.slot(step.slot, step), *stride)
            case Swap():
                self.emit(Opcode.SWAP, self.slot(step.a, step), self.slot(step.b, step))
            case Copy():
                nbytes = self.operand(step.nbytes, step)
                self.emit(
                    Opcode.COPY, self.slot(step.dst, step), self.slot(step.src, step), *nbytes
                )
            case Fill():
                nbytes = self.operand(step.nbytes, step)
                self.emit(Opcode.FILL, self.slot(step.dst, step), step.byte & 255, *nbytes)
            case Return():
                self.out.returns = True
                handler = self.check("handler", step.handler, self.limits.handlers, step)
                slots = self.slots(step.slots, step)
                self.emit(Opcode.RETURN, handler, len(slots), *slots)

    def call(self, step: Call) -> None:
        self.out.calls += 1
        kernel = self.check("kernel", step.kernel, self.limits.kernels, step)
        slots = self.slots(step.slots, step)
        if step.chunk < 0:
            raise StepError(f"{step} has a negative chunk")
        if self.trace:
            self.out.names.append((self.emit(Opcode.TRACE, 0) + 1, kernel))
        if isinstance(step.lo, int) and isinstance(step.hi, int) and not step.chunk:
            at = self.emit(Opcode.CALL, 0, step.lo, step.hi, len(slots), *slots)
        else:
            self.out.spreads |= step.chunk > 0
            lo, hi = self.operand(step.lo, step), self.operand(step.hi, step)
            at = self.emit(Opcode.SPREAD, 0, *lo, *hi, step.chunk, len(slots), *slots)
        self.out.kernels.append((at + 1, kernel))

    def loop(self, step: Loop, depth: int) -> None:
        self.out.polls = True
        self.out.loops = max(self.out.loops, depth + 1)
        counter = -1 if step.counter is None else self.slot(step.counter, step)
        reverse = int(step.reverse)
        trip = self.operand(step.trip, step)
        begin = self.emit(Opcode.LOOP, *trip, counter, reverse, depth, 0)
        body = len(self.out.words)
        self.steps(step.body, depth + 1)
        again = self.emit(Opcode.NEXT, 0, counter, reverse, depth)
        self.patch(again, 1, body)
        self.patch(begin, 6, len(self.out.words))

    def branch(self, step: Branch, depth: int) -> None:
        count = len(step.branches)
        if not count:
            raise StepError(f"{step} has no branches")
        index = self.slot(step.index, step)
        choose = self.emit(Opcode.BRANCH, index, int(step.boolean), count, *([0] * count))
        leave = []
        for number, branch in enumerate(step.branches):
            self.patch(choose, 4 + number, len(self.out.words))
            self.steps(branch, depth)
            if number + 1 < count:
                leave.append(self.emit(Opcode.JUMP, 0, 0))
        for jump in leave:
            self.patch(jump, 1, len(self.out.words))


def pack(steps: Iterable[Step], limits: Limits, *, trace: bool = False) -> Packed:
    """Steps -> words, every index checked; `trace` puts a TRACE before each kernel call.

    Raises: StepError naming the step, the index and the bound.
    Cost: about 1 us per step, once per program.
    """
    packer = _Packer(limits, trace)
    packer.steps(steps, 0)
    packer.emit(Opcode.END)
    return packer.out


def _operand_text(operand: Operand) -> str:
    match operand:
        case Dim(index):
            return f"d{index}"
        case Cell(slot):
            return f"[%{slot}]"
        case _:
            return str(operand)


def _slots_text(slots: Iterable[int]) -> str:
    return "(" + ", ".join(f"%{slot}" for slot in slots) + ")"


def _line(step: Step, names: Sequence[str]) -> str:
    """One step without its bodies."""
    match step:
        case Call(kernel, slots, lo, hi, chunk):
            name = names[kernel] if kernel < len(names) else f"kernel{kernel}"
            over = f" over [{_operand_text(lo)}, {_operand_text(hi)})" if (lo, hi) != (0, 0) else ""
            return f"{name}{_slots_text(slots)}{over}" + (f" by {chunk}" if chunk else "")
        case CallProgram(program, slots, workspace, dims):
            sizes = f" dims {', '.join(f'd{dim}' for dim in dims)}" if dims else ""
            return f"program{program}{_slots_text(slots)} in %{workspace}{sizes}"
        case Loop(trip, _, counter, reverse):
            where = f" counter %{counter}" if counter is not None else ""
            return f"loop {_operand_text(trip)}{where}{' reverse' if reverse else ''}"
        case While():
            return "while"
        case Branch(index, _, boolean):
            return f"branch {'bool' if boolean else 'int32'} %{index}"
        case Point(dst, src, index, stride):
            offset = f" + {_operand_text(index)} * {_operand_text(stride)}" if stride != 0 else ""
            return f"%{dst} = %{src}{offset}"
        case Advance(slot, stride):
            return f"%{slot} += {_operand_text(stride)}"
        case Swap(a, b):
            return f"%{a}, %{b} = %{b}, %{a}"
        case Copy(dst, src, nbytes):
            return f"copy {_operand_text(nbytes)} bytes to %{dst} from %{src}"
        case Fill(dst, byte, nbytes):
            return f"fill {_operand_text(nbytes)} bytes of %{dst} with {byte}"
        case Return(handler, slots):
            return f"python {handler}{_slots_text(slots)}"


def show(steps: Iterable[Step], names: Sequence[str] = (), indent: str = "") -> str:
    """The steps as text, one per line, bodies indented; the golden-test format of programs."""
    lines: list[str] = []
    for step in steps:
        lines.append(indent + _line(step, names))
        inner = indent + "  "
        match step:
            case Loop(body=body):
                lines.append(show(body, names, inner))
            case While(cond, pred, body):
                lines.append(show(cond, names, inner))
                lines.append(f"{inner}stop unless %{pred}")
                lines.append(show(body, names, inner))
            case Branch(branches=branches):
                for number, branch in enumerate(branches):
                    lines.append(f"{indent}case {number}")
                    lines.append(show(branch, names, inner))
    return "\n".join(line for line in lines if line)
