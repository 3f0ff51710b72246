"""Hardened mode: every load and store of a kernel checks its address against its buffer.

A pass over the finished text of a module, so it covers whatever wrote it (nests, DOT with its
packing, sorts) and code that is not hardened cannot depend on it. All emitters write through
`irtext`, whose forms are regular; a memory access of any other form is an error here, never an
access without a check.

    %x = load <8 x float>, ptr %p, align 4
->
    %check.1 = ptrtoint ptr %p to i64
    %check.2 = sub i64 %check.1, %slot.3             ; bytes from the buffer's start
    %check.3 = icmp ugt i64 %check.2, 96             ; the extent (128) less the access (32)
    br i1 %check.3, label %outside.4, label %inside.4
  outside.4:
    call void @violation(ptr %record, i64 7, i64 %check.2)
    ret void
  inside.4:
    %x = load <8 x float>, ptr %p, align 4

Masked accesses, gathers and scatters check each lane that is on. A violation writes nothing: the
task leaves the kernel, or the function of it that the access is in. The first one is kept in the
record of the run, three int64 behind the last slot: set, number of the access, bytes from the
buffer's start.

Which buffer an address belongs to is followed through the text: from the load of a slot's pointer,
a stack array or a constant table through `getelementptr`, `select` and `phi`.
Cost: about 4 instructions and a branch never taken per access; kernels run 1.4 to 3 times slower.
Source: G. Necula et al., CCured (2005): bounds belong to the buffer a pointer was derived from.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tinyjax.lowering import irtext
from tinyjax.lowering.irtext import I64, vec
from tinyjax.lowering.plan import Slot

RECORD_BYTES = 24

VIOLATION = """
define internal void @violation(ptr %record, i64 %access, i64 %offset) noinline nounwind {
entry:
  %swapped = cmpxchg ptr %record, i64 0, i64 1 monotonic monotonic
  %first = extractvalue { i64, i1 } %swapped, 1
  br i1 %first, label %write, label %done
write:
  %access.at = getelementptr i64, ptr %record, i64 1
  store i64 %access, ptr %access.at
  %offset.at = getelementptr i64, ptr %record, i64 2
  store i64 %offset, ptr %offset.at
  br label %done
done:
  ret void
}
"""


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store in a kernel's text: of a slot, or of a kernel's own array (a name)."""

    writes: bool
    buffer: int | str
    extent: int  # bytes

    def violation(self, kernel: str, offset: int, slots: Sequence[Slot]) -> str:
        """What went wrong, for people; slots behind those of the plan are the kernel's scratch."""
        itemsize, what = 1, f"{self.buffer}, {self.extent} bytes"
        if isinstance(self.buffer, int) and self.buffer < len(slots):
            slot = slots[self.buffer]
            itemsize = max(1, int(slot.aval.dtype.itemsize))
            what = f"slot {self.buffer}, {slot}"
        elif isinstance(self.buffer, int):
            what = f"slot {self.buffer}, scratch memory or parameters, {self.extent} bytes"
        unit = "element" if itemsize > 1 or "bytes" not in what else "byte"
        return (
            f"kernel {kernel} was about to {'write' if self.writes else 'read'} {unit} "
            f"{offset // itemsize} of {what}, outside of its extent {self.extent // itemsize}. "
            "The program was stopped; its outputs are incomplete. Please report this bug."
        )


class HardenError(AssertionError):
    """A memory access of a form, or to a place, that `harden` does not know: a bug of ours."""


@dataclass(frozen=True, slots=True)
class _Root:
    """The buffer an address was derived from: its start as an integer, and its size in bytes."""

    buffer: int | str
    start: str
    extent: int


_DEFINE = re.compile(r"define [^@]*@([\w.]+)\(ptr (%\w+), ptr (%\w+)((?:, i64 %\w+)*)(.*?)\) no")
_ARRAY = re.compile(r", ptr dereferenceable\((\d+)\) (%\w+)")
_TABLE = re.compile(r"(@[\w.]+) = .*constant \[(\d+) x (\w+)\]")
_VECTOR = re.compile(r"<(\d+) x (\w+)>")
_LABEL = re.compile(r"([\w.]+):")
_HARMLESS = "@llvm.x86.sse.sfence"
_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64, "ptr": 64}


def harden(ir: str, extents: Sequence[int], dims: int = 0) -> tuple[str, tuple[Access, ...]]:
    """A kernel's module with its accesses checked, and what the numbers in a record stand for.

    `extents` are the bytes behind each slot; the record is in the slot after them. `dims` is the
    number of symbolic sizes.
    """
    return _Harden(extents, dims).module(ir)


def split_operands(text: str) -> list[str]:
    """The operands of an instruction: text cut at the commas outside of brackets."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter in "(<[{":
            depth += 1
        elif letter in ")>]}":
            depth -= 1
        elif letter == "," and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    return [*found, text[start:].strip()]


def split_type(operand: str) -> tuple[str, str]:
    """`<4 x ptr> %x` -> (`<4 x ptr>`, `%x`)."""
    if operand.startswith("<"):
        end = operand.index(">") + 1
        return operand[:end], operand[end:].strip()
    kind, _, value = operand.partition(" ")
    return kind, value


def lanes_of(kind: str) -> int:
    """Lanes of a vector type; 0 for a scalar."""
    found = _VECTOR.fullmatch(kind)
    return int(found[1]) if found else 0


def bytes_of(kind: str) -> int:
    """Bytes of a value in memory."""
    found = _VECTOR.fullmatch(kind)
    scalar = found[2] if found else kind
    bits = _BITS.get(scalar) or int(scalar[1:])
    return -(-bits * (int(found[1]) if found else 1) // 8)


class _Harden:
    """One module: rewritten lines, the buffers of its pointers, its accesses."""

    def __init__(self, extents: Sequence[int], dims: int) -> None:
        self.extents, self.dims = extents, dims
        self.accesses: list[Access] = []
        self.declared: dict[str, None] = {}
        self.count = 0
        self.helper = False

    def module(self, ir: str) -> tuple[str, tuple[Access, ...]]:
        self.tables: dict[str, _Root] = {}
        self.own = {f[1] for line in ir.splitlines() if (f := _DEFINE.match(line)) is not None}
        for line in ir.splitlines():
            if (found := _TABLE.match(line)) is not None:
                extent = int(found[2]) * bytes_of(found[3])
                self.tables[found[1]] = _Root(found[1][1:], "", extent)
        out: list[str] = []
        for line in ir.splitlines():
            if line.startswith("define "):
                self.helper = "memory(none)" in line
                if self.helper:
                    out.append(line)
                else:
                    self.begin(line, out)
            elif self.helper:  # a function of the kernel's own, of values
                if re.search(r"\bptr\b", line):
                    raise HardenError(f"memory access in a function without memory: {line}")
                self.helper = line != "}"
                out.append(line)
            elif line == "}":
                self.end(out)
            elif not line.startswith("  "):
                label = _LABEL.fullmatch(line)
                if label is not None:
                    self.label = label[1]
                out.append(line)
            else:
                after = self.instruction(line.strip(), out)
                out += [line, *after]
        declared = [f"declare {d}" for d in self.declared if f"declare {d}\n" not in ir]
        return "\n".join([*out, VIOLATION, *declared]) + "\n", tuple(self.accesses)

    def begin(self, line: str, out: list[str]) -> None:
        """A function: its pointers start from the slots."""
        found = _DEFINE.match(line)
        array = None if found is None else _ARRAY.fullmatch(found[5])
        if found is None or (found[5] and array is None):
            raise HardenError(f"not a kernel: {line}")
        self.roots: dict[str, _Root] = dict(self.tables)
        self.slots: dict[str, int] = {found[2]: 0}
        self.renamed: dict[str, str] = {}
        self.first_line = len(out) + 2  # behind the entry label
        self.entry = [
            *self.buffer(found[3], "dims", 8 * self.dims),
            f"  %record.at = getelementptr ptr, ptr {found[2]}, i64 {len(self.extents)}",
            "  %record = load ptr, ptr %record.at, align 8",
        ]
        if array is not None:
            self.entry += self.buffer(array[2], "stack array", int(array[1]))
        self.label = "entry"
        out.append(line)

    def end(self, out: list[str]) -> None:
        """Blocks that were cut have another name where their successors' phis mention them."""
        for at in range(self.first_line, len(out)):
            if " = phi " in out[at]:
                out[at] = re.sub(
                    r"%([\w.]+) \]", lambda m: f"%{self.renamed.get(m[1], m[1])} ]", out[at]
                )
        out[self.first_line : self.first_line] = self.entry
        out.append("}")

    def fresh(self, stem: str = "check") -> str:
        self.count += 1
        return f"%{stem}.{self.count}"

    # --- which buffer ----------------------------------------------------------------------------

    def instruction(self, line: str, out: list[str]) -> list[str]:
        """Follow pointers through a line; the check of an access goes before it, what is returned
        behind it."""
        name, equals, text = line.partition(" = ")
        if not equals:
            name, text = "", line
        op, _, rest = text.partition(" ")
        match op:
            case "load":
                return self.load(name, rest, out)
            case "store":
                _, where = split_operands(rest)[:2]
                kind, _ = split_type(rest)
                self.check(split_type(where)[1], kind, True, out)
            case "getelementptr":
                self.address(name, rest)
            case "select" if " ptr" in rest or "x ptr>" in rest:
                _, x, y = (split_type(o)[1] for o in split_operands(rest))
                self.derive(name, x, y)
            case "phi" if rest.startswith("ptr"):
                self.derive(name, *re.findall(r"\[ ([^,]+),", rest))
            case "alloca":
                element, count = split_operands(rest)[:2]
                extent = bytes_of(element) * int(split_type(count)[1])
                return self.buffer(name, "stack array", extent)
            case "call":
                self.call(rest, out)
            case "insertelement" | "shufflevector" if " x ptr>" in rest:
                operands = [split_type(o)[1] for o in split_operands(rest)]
                self.derive(name, *operands[:2])
            case "ptrtoint" | "br" | "ret":
                pass
            case _ if re.search(r"\bptr\b", rest):
                raise HardenError(f"memory access of an unknown form: {line}")
        return []

    def buffer(self, pointer: str, name: int | str, extent: int) -> list[str]:
        """A line made the pointer to a buffer; its start as an integer."""
        start = self.fresh("start")
        self.roots[pointer] = _Root(name, start, extent)
        return [f"  {start} = ptrtoint ptr {pointer} to i64"]

    def load(self, name: str, rest: str, out: list[str]) -> list[str]:
        kind, where = split_operands(rest)[:2]
        pointer = split_type(where)[1]
        if pointer not in self.slots:
            self.check(pointer, kind, False, out)
            return []
        slot = self.slots[pointer]
        if kind != "ptr" or not 0 <= slot < len(self.extents):
            raise HardenError(f"{rest} reads slot {slot} of {len(self.extents)}")
        return self.buffer(name, slot, self.extents[slot])

    def address(self, name: str, rest: str) -> None:
        operands = split_operands(rest)
        base, index = split_type(operands[1])[1], split_type(operands[2])[1]
        if base in self.slots:
            self.slots[name] = self.slots[base] + int(index)
        else:
            self.derive(name, base)

    def derive(self, name: str, *sources: str) -> None:
        """A pointer made from others, which must all point into one buffer."""
        roots = [self.roots[s] for s in sources if s in self.roots]
        if not roots or any(r is not roots[0] for r in roots):
            raise HardenError(f"{name}: buffers of {', '.join(sources)} are {roots}")
        self.roots[name] = roots[0]

    # --- accesses --------------------------------------------------------------------------------

    def call(self, rest: str, out: list[str]) -> None:
        """Masked intrinsics; any other call must not touch memory."""
        callee = re.search(r"@([\w.]+)\((.*)\)$", rest)
        if callee is None:
            raise HardenError(f"call of an unknown form: {rest}")
        function, operands = callee[1], split_operands(callee[2])
        match function.split(".")[1:3]:
            case ["masked", "load" | "gather"]:
                self.check_lanes(rest.split(" @")[0], operands[0], operands[1], False, out)
            case ["masked", "store" | "scatter"]:
                kind, _ = split_type(operands[0])
                self.check_lanes(kind, operands[1], operands[2], True, out)
            case _ if function in self.own:  # checks for itself
                pass
            case _:
                if re.search(r"\bptr\b", rest) and not f"@{function}".startswith(_HARMLESS):
                    raise HardenError(f"memory access of an unknown form: {rest}")

    def root_of(self, pointer: str, out: list[str]) -> tuple[_Root, str]:
        """The buffer of a pointer and the name of its start."""
        root = self.roots.get(pointer)
        if root is None:
            raise HardenError(f"no buffer is known for {pointer}")
        if root.start:
            return root, root.start
        start = self.fresh("start")
        out.append(f"  {start} = ptrtoint ptr @{root.buffer} to i64")
        return root, start

    def check(self, pointer: str, kind: str, writes: bool, out: list[str]) -> None:
        """An access of consecutive bytes."""
        root, start = self.root_of(pointer, out)
        address, offset, outside = self.fresh(), self.fresh(), self.fresh()
        last = root.extent - bytes_of(kind)
        out += [
            f"  {address} = ptrtoint ptr {pointer} to i64",
            f"  {offset} = sub i64 {address}, {start}",
            f"  {outside} = icmp ugt i64 {offset}, {last}" if last >= 0
            else f"  {outside} = icmp eq i64 0, 0",
        ]  # fmt: skip
        self.leave(outside, root, writes, [], offset, out)

    def check_lanes(self, kind: str, where: str, mask: str, writes: bool, out: list[str]) -> None:
        """An access of the lanes that `mask` has on, each at its own place."""
        pointers, pointer = split_type(where)
        pointer = pointer.split()[-1]
        root, start = self.root_of(pointer, out)
        lanes = lanes_of(kind)
        size = bytes_of(kind) // lanes
        wide = vec(I64, lanes).text
        last = root.extent - size
        at, offsets, outside, bad, any_bad, worst, offset = (self.fresh() for _ in range(7))
        if lanes_of(pointers):
            out.append(f"  {at} = ptrtoint {pointers} {pointer} to {wide}")
            out.append(f"  {offsets} = sub {wide} {at}, {self.spread(start, lanes, out)}")
        else:
            out.append(f"  {at} = ptrtoint ptr {pointer} to i64")
            scalar = self.fresh()
            out.append(f"  {scalar} = sub i64 {at}, {start}")
            steps = irtext.const_vector(I64, range(0, lanes * size, size)).text
            out.append(f"  {offsets} = add {wide} {self.spread(scalar, lanes, out)}, {steps}")
        on = split_type(mask)[1]
        out += [
            f"  {outside} = icmp ugt {wide} {offsets}, splat (i64 {last})" if last >= 0
            else f"  {outside} = icmp eq {wide} zeroinitializer, zeroinitializer",
            f"  {bad} = and <{lanes} x i1> {outside}, {on}",
            f"  {any_bad} = call i1 @llvm.vector.reduce.or.v{lanes}i1(<{lanes} x i1> {bad})",
        ]  # fmt: skip
        found = [
            f"  {worst} = select <{lanes} x i1> {bad}, {wide} {offsets}, {wide} splat (i64 -1)",
            f"  {offset} = call i64 @llvm.vector.reduce.umin.v{lanes}i64({wide} {worst})",
        ]
        self.declared[f"i1 @llvm.vector.reduce.or.v{lanes}i1(<{lanes} x i1>)"] = None
        self.declared[f"i64 @llvm.vector.reduce.umin.v{lanes}i64({wide})"] = None
        self.leave(any_bad, root, writes, found, offset, out)

    def spread(self, x: str, lanes: int, out: list[str]) -> str:
        """A scalar in every lane."""
        wide, first, made = vec(I64, lanes).text, self.fresh(), self.fresh()
        out.append(f"  {first} = insertelement {wide} poison, i64 {x}, i32 0")
        out.append(
            f"  {made} = shufflevector {wide} {first}, {wide} poison, "
            f"<{lanes} x i32> zeroinitializer"
        )
        return made

    def leave(
        self, outside: str, root: _Root, writes: bool, found: list[str], offset: str, out: list[str]
    ) -> None:
        """Record and return if `outside`; the rest of the block goes on under another name."""
        number = len(self.accesses)
        self.accesses.append(Access(writes, root.buffer, root.extent))
        self.count += 1
        bad, good = f"outside.{self.count}", f"inside.{self.count}"
        out += [
            f"  br i1 {outside}, label %{bad}, label %{good}",
            f"{bad}:",
            *found,
            f"  call void @violation(ptr %record, i64 {number}, i64 {offset})",
            "  ret void",
            f"{good}:",
        ]
        self.renamed[self.label] = good
