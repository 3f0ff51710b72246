"""Object code -> executable memory -> addresses of its symbols.

On x86-64 Linux objects are loaded by the code below: read the ELF sections, copy them into one
anonymous mapping, apply the few relocation types that `reloc=pic, codemodel=small` code has, make
the code read-only and executable. It takes about 0.1 ms, needs no LLVM (so a process that finds all
its kernels in the disk cache never imports llvmlite, which saves 60 ms or more), and dropping the
mapping unloads the kernel. Elsewhere objects go through LLVM's own linker (one shared LLJIT).

Memory is never writable and executable at once. Symbols that an object needs but does not define
must be on the caller's allow-list; a kernel normally needs none.

Sources: System V ABI, AMD64 supplement, 4.4 (relocations); TIS ELF specification 1.2.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import platform
import struct
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

# Functions LLVM may call on its own account in kernel code: block memory operations, and what C has
# a function for and the machine has no instruction for (SSE2 lacks floor and fma, all lack frem).
BLOCK_SYMBOLS = frozenset(("memcpy", "memmove", "memset", "memcmp", "bcmp"))
MATH_SYMBOLS = frozenset(
    name + suffix
    for name in (
        ("fmod", "floor", "ceil", "trunc", "rint", "nearbyint", "round", "roundeven", "fma")
        + ("fmin", "fmax", "ldexp", "frexp", "sqrt", "cbrt", "exp", "exp2", "exp10", "expm1")
        + ("log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan", "asin", "acos", "atan")
        + ("atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "hypot")
        + ("nextafter", "lgamma", "tgamma", "copysign")
    )
    for suffix in ("", "f")
)
KERNEL_SYMBOLS = BLOCK_SYMBOLS | MATH_SYMBOLS


class LoadError(Exception):
    """Object code that cannot be loaded here: damaged, of another machine, or needing a symbol."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Code in memory: valid as long as this object lives."""

    addresses: dict[str, int]
    nbytes: int
    memory: Any  # mmap, or LLJIT's resource tracker: dropping it unloads the code


def load(data: bytes, exports: Sequence[str], allowed: Collection[str] = KERNEL_SYMBOLS) -> Loaded:
    """Load one object and find `exports` in it.

    Raises: LoadError if it is damaged, lacks an export, or needs a symbol that is not `allowed`.
    """
    if sys.platform.startswith("linux") and platform.machine() == "x86_64":
        try:
            return _load_elf(data, exports, allowed)
        except (struct.error, IndexError, ValueError) as error:
            raise LoadError(f"damaged ELF object: {error}") from error
    return _load_llvm(data, exports, allowed)


# --------------------------------------------------------------------------------------------- ELF

SHF_WRITE, SHF_ALLOC = 1, 2
SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_UNWIND = 2, 4, 8, 0x70000001
SHN_UNDEF, SHN_ABS, SHN_COMMON = 0, 0xFFF1, 0xFFF2
EM_X86_64 = 62

R_64, R_PC32, R_PLT32, R_GOTPCREL, R_PC64 = 1, 2, 4, 9, 24
R_GOTPCRELX, R_REX_GOTPCRELX = 41, 42
GOT_KINDS = (R_GOTPCREL, R_GOTPCRELX, R_REX_GOTPCRELX)

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QIIq")  # offset, type, symbol, addend

# A stub reaches a function that may lie anywhere: jmp *[rip+0]; .quad target. Its quadword doubles
# as the symbol's GOT entry.
JUMP = b"\xff\x25\x00\x00\x00\x00"
STUB_BYTES = 16


def _text_at(data: bytes, start: int) -> str:
    return data[start : data.index(0, start)].decode()


@dataclass(slots=True)
class _Elf:
    """The parts of a relocatable object that loading needs."""

    data: bytes
    machine: int
    sections: list[tuple[int, ...]]
    symbols: list[tuple[int, ...]]
    names: list[str]

    @staticmethod
    def read(data: bytes) -> _Elf:
        """Raises LoadError unless this is a relocatable 64-bit little-endian object."""
        try:
            ident, kind, machine, *_, section_at, _, _, _, _, _, count, _ = HEADER.unpack_from(data)
            if ident[:6] != b"\x7fELF\x02\x01" or kind != 1:
                raise LoadError("not a relocatable 64-bit ELF object")
            sections = [
                SECTION.unpack_from(data, section_at + number * SECTION.size)
                for number in range(count)
            ]
            symbols: list[tuple[int, ...]] = []
            names: list[str] = []
            for section in sections:
                if section[1] == SHT_SYMTAB:
                    _, _, _, _, start, size, link, *_ = section
                    strings = sections[link][4]
                    symbols = list(SYMBOL.iter_unpack(data[start : start + size]))
                    names = [_text_at(data, strings + symbol[0]) for symbol in symbols]
            return _Elf(data, machine, sections, symbols, names)
        except (struct.error, IndexError, ValueError) as error:
            raise LoadError(f"damaged ELF object: {error}") from error

    def undefined(self) -> list[str]:
        """Names of the symbols it needs."""
        return [
            name
            for name, symbol in zip(self.names, self.symbols, strict=True)
            if name and symbol[3] == SHN_UNDEF
        ]


def undefined_symbols(data: bytes) -> list[str]:
    """What an ELF object needs from outside; [] for other formats (their linker reports it)."""
    return _Elf.read(data).undefined() if data[:4] == b"\x7fELF" else []


def check_symbols(needed: Sequence[str], allowed: Collection[str]) -> None:
    """Raise LoadError if a needed symbol is not allowed."""
    foreign = sorted(set(needed) - set(allowed))
    if foreign:
        raise LoadError(
            f"object code calls {', '.join(foreign)}, which is not on the list of functions that "
            "generated code may call"
        )


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    """Where external functions are looked up: the process, then the maths library."""
    found = [ctypes.CDLL(None)]
    try:
        found.append(ctypes.CDLL("libm.so.6"))
    except OSError:  # musl has its functions in libc
        pass
    return tuple(found)


@functools.cache
def external_address(name: str) -> int:
    """Address of a C library function."""
    for library in _libraries():
        try:
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            continue
        if address:
            return address
    raise LoadError(f"object code calls {name}, which this process does not have")


@functools.cache
def _mprotect() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _load_elf(data: bytes, exports: Sequence[str], allowed: Collection[str]) -> Loaded:
    elf = _Elf.read(data)
    if elf.machine != EM_X86_64:
        raise LoadError("not x86-64 code")
    needed = elf.undefined()
    check_symbols(needed, allowed)

    # Layout: code and constants, stubs, then on a page of their own the writable sections.
    place: dict[int, int] = {}
    end = 0
    for writable in (False, True):
        if writable:
            stubs_at = _round_up(end, 16)
            frozen = end = _round_up(stubs_at + STUB_BYTES * len(needed), mmap.PAGESIZE)
        for number, (_, kind, flags, _, _, size, _, _, align, _) in enumerate(elf.sections):
            wanted = flags & SHF_ALLOC and size and kind != SHT_UNWIND  # nothing unwinds
            if wanted and bool(flags & SHF_WRITE) == writable:
                place[number] = end = _round_up(end, max(align, 1))
                end += size
    total = max(end, 1)
    memory = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    for number, at in place.items():
        _, kind, _, _, start, size, *_ = elf.sections[number]
        if kind != SHT_NOBITS:
            memory[at : at + size] = data[start : start + size]
    stubs: dict[str, int] = {}
    for name in needed:
        stubs[name] = at = stubs_at + STUB_BYTES * len(stubs)
        memory[at : at + STUB_BYTES] = JUMP + struct.pack("<Q", external_address(name)) + b"\0\0"

    def symbol_place(index: int) -> int:
        """Where a symbol is, from the start of the mapping."""
        name, (_, _, _, section, value, _) = elf.names[index], elf.symbols[index]
        if section == SHN_UNDEF:
            return stubs[name]
        if section not in place:
            raise LoadError(f"symbol {name or index} lies in a section that is not loaded")
        return place[section] + value

    def got_place(index: int) -> int:
        """A quadword holding the symbol's address."""
        if elf.symbols[index][3] == SHN_UNDEF:
            return stubs[elf.names[index]] + len(JUMP)
        raise LoadError(f"{elf.names[index]} is reached through a GOT: declare it dso_local")

    for _, kind, _, _, start, size, _, target, _, _ in elf.sections:
        if kind != SHT_RELA or target not in place:
            continue
        for offset, how, index, addend in RELOCATION.iter_unpack(data[start : start + size]):
            at = place[target] + offset
            if how in (R_PC32, R_PLT32):
                struct.pack_into("<i", memory, at, symbol_place(index) + addend - at)
            elif how == R_64:
                struct.pack_into("<Q", memory, at, base + symbol_place(index) + addend)
            elif how == R_PC64:
                struct.pack_into("<q", memory, at, symbol_place(index) + addend - at)
            elif how in GOT_KINDS:
                struct.pack_into("<i", memory, at, got_place(index) + addend - at)
            else:
                raise LoadError(f"relocation type {how} is not supported")

    if _mprotect()(base, frozen, mmap.PROT_READ | mmap.PROT_EXEC):
        raise LoadError(f"cannot make code executable: errno {ctypes.get_errno()}")
    addresses = {
        name: base + symbol_place(index)
        for index, name in enumerate(elf.names)
        if name in exports and elf.symbols[index][3] != SHN_UNDEF
    }
    missing = [name for name in exports if name not in addresses]
    if missing:
        raise LoadError(f"object code does not define {', '.join(missing)}")
    return Loaded(addresses, total, memory)


# ------------------------------------------------------------------------------------------- LLJIT

_jit_lock = threading.Lock()
_jit: list[Any] = []
_library_numbers = itertools.count()


def _load_llvm(data: bytes, exports: Sequence[str], allowed: Collection[str]) -> Loaded:
    """Through one shared LLJIT; names of libraries are never used twice, as LLJIT asks."""
    import llvmlite.binding as llvm  # 60 ms: only where the loader above does not apply

    check_symbols(undefined_symbols(data), allowed)
    with _jit_lock:
        if not _jit:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            machine = llvm.Target.from_default_triple().create_target_machine(
                reloc="pic", codemodel="small"
            )
            _jit.append(llvm.create_lljit_compiler(machine))
        builder = llvm.JITLibraryBuilder().add_object_img(data).add_current_process()
        for name in exports:
            builder.export_symbol(name)
        try:
            tracker = builder.link(_jit[0], f"tinyjax.{next(_library_numbers)}")
        except RuntimeError as error:
            raise LoadError(str(error)) from error
    return Loaded({name: tracker[name] for name in exports}, len(data), tracker)
