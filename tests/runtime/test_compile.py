"""IR text becomes object code for a target, and object code becomes addresses."""

from __future__ import annotations

import ctypes
import platform
import sys

import numpy as np
import pytest

from tests.runtime.ir import ADD, INC, body
from tinyjax.core.memory import address
from tinyjax.runtime import cpu, loader

elf = pytest.mark.skipif(
    not (sys.platform.startswith("linux") and platform.machine() == "x86_64"),
    reason="the ELF loader is for x86-64 Linux",
)

WIDE = body(
    """
  %v = load <16 x float>, ptr %p0, align 4
  %w = fadd <16 x float> %v, %v
  store <16 x float> %w, ptr %p0, align 4
  ret void"""
)

# A jump table in read-only data that points into the code, and constants.
SWITCH = body(
    """
  switch i64 %lo, label %other [ i64 0, label %a
                                 i64 1, label %b
                                 i64 2, label %c
                                 i64 3, label %d
                                 i64 4, label %e ]
a:
  store double 1.5, ptr %p0
  ret void
b:
  %bv = load double, ptr %p0
  %b2 = fmul double %bv, 3.25
  store double %b2, ptr %p0
  ret void
c:
  store i64 7, ptr %p0
  ret void
d:
  %at = getelementptr double, ptr %p0, i64 1
  %d1 = load double, ptr %at
  store double %d1, ptr %p0
  ret void
e:
  store i64 0, ptr %p0
  ret void
other:
  ret void"""
)

REMAINDER = "declare double @fmod(double, double)\n" + body(
    """
  %v = load double, ptr %p0
  %r = frem double %v, 3.0
  store double %r, ptr %p0
  ret void"""
)

FOREIGN = "declare i32 @getpid()\n" + body(
    """
  %n = call i32 @getpid()
  store i32 %n, ptr %p0
  ret void"""
)

# Writable data: only the native module has it.
COUNTER = "@count = internal global i64 40\n@zeros = internal global [100 x i64] zeroinitializer\n"
COUNTER += body(
    """
  %v = load i64, ptr @count
  %w = add i64 %v, 1
  store i64 %w, ptr @count
  %z.at = getelementptr i64, ptr @zeros, i64 99
  %z = load i64, ptr %z.at
  %x = add i64 %w, %z
  store i64 %x, ptr %p0
  ret void"""
)


def call(loaded, array, lo=0, hi=0):
    """Call a loaded kernel with one slot."""
    kernel = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    )(loaded.addresses["k"])
    slots = np.array([address(array)], np.int64)
    kernel(address(slots), None, lo, hi)


@pytest.fixture(
    params=[
        pytest.param(loader._load_elf, marks=elf, id="elf"),
        pytest.param(loader._load_llvm, id="llvm"),
    ]
)
def load(request):
    """Both loaders."""
    return request.param


@pytest.mark.parametrize("passes", ["vector", "scalar"])
def test_a_kernel_runs_after_either_pass_list(load, passes):
    counter = np.array([41])
    call(load(cpu.compile_ir(INC, "inc", passes=passes), ["k"], frozenset()), counter)
    assert counter[0] == 42


@pytest.mark.parametrize(("case", "expected"), [(0, 1.5), (1, 6.5), (3, 9.0), (4, 0.0), (9, 2.0)])
def test_constants_and_jump_tables_are_relocated(load, case, expected):
    data = np.array([2.0, 9.0])
    call(load(cpu.compile_ir(SWITCH, "switch"), ["k"], frozenset()), data, case)
    assert data[0] == expected


def test_allowed_functions_of_the_c_library_are_found(load):
    data = np.array([10.5])
    call(load(cpu.compile_ir(REMAINDER, "rem"), ["k"], loader.KERNEL_SYMBOLS), data)
    assert data[0] == 1.5


def test_other_functions_are_refused_when_compiling_and_when_loading(load):
    with pytest.raises(loader.LoadError, match="calls getpid, which is not on the list"):
        cpu.compile_ir(FOREIGN, "foreign")
    data = cpu.compile_ir(FOREIGN, "foreign", allowed={"getpid"})
    with pytest.raises(loader.LoadError, match="getpid"):
        load(data, ["k"], loader.KERNEL_SYMBOLS)


def test_writable_data_is_initialised_and_each_load_has_its_own(load):
    data = cpu.compile_ir(COUNTER, "counter")
    first, second = (load(data, ["k"], frozenset()) for _ in range(2))
    out = np.zeros(1, np.int64)
    for loaded, expected in ((first, 41), (first, 42), (second, 41)):
        call(loaded, out)
        assert out[0] == expected


def test_a_missing_export_is_named(load):
    with pytest.raises(loader.LoadError, match="other"):
        load(cpu.compile_ir(INC, "inc"), ["k", "other"], frozenset())


@elf
def test_a_damaged_object_is_an_error_not_a_crash():
    good = cpu.compile_ir(SWITCH, "switch")
    for damaged in (b"", b"\x7fELF", good[:100], good[:-200], b"MZ" + good[2:]):
        with pytest.raises(loader.LoadError):
            loader._load_elf(damaged, ["k"], frozenset())
    other_machine = good[:18] + b"\xb7\x00" + good[20:]
    with pytest.raises(loader.LoadError, match="x86-64"):
        loader._load_elf(other_machine, ["k"], frozenset())


@elf
def test_code_is_executable_not_writable_and_gone_after_unloading():
    loaded = loader._load_elf(cpu.compile_ir(INC, "inc"), ["k"], frozenset())
    at = loaded.addresses["k"]

    def rights():
        with open("/proc/self/maps") as maps:
            for line in maps:
                start, end = (int(word, 16) for word in line.split()[0].split("-"))
                if start <= at < end:
                    return line.split()[1]
        return None

    assert rights() == "r-xp"
    del loaded
    assert rights() != "r-xp"


def test_rejected_ir_names_the_kernel_and_the_line():
    with pytest.raises(cpu.CompileError, match=r"(?s)rejects kernel softmax_7.*%missing"):
        cpu.compile_ir(body("  %x = add i64 %missing, 1\n  ret void"), "softmax_7")
    invalid = body("  %v = load i64, ptr %p0\n  br label %entry")
    with pytest.raises(cpu.CompileError, match="rejects kernel bad"):
        cpu.compile_ir(invalid, "bad")


@elf
def test_vectors_follow_the_features_asked_for():
    def code(**options):
        return cpu.compile_ir(WIDE, "wide", **options)

    sse = code(cpu="x86-64")
    assert code(cpu="x86-64-v3") != sse
    assert code(cpu="x86-64-v3", features="-avx2,-avx") == code(
        cpu="x86-64-v3", features="-avx,-avx2"
    )
    data = np.ones(16, np.float32)
    call(loader.load(sse, ["k"]), data)
    assert (data == 2).all()


@elf
def test_vector_kernels_keep_their_form_and_scalar_ones_are_cleaned():
    inner = "define internal float @twice(float %x) alwaysinline {\n  %y = fadd float %x, %x\n"
    inner += "  ret float %y\n}\n"
    text = inner + body(
        """
  %v = load float, ptr %p0
  %w = call float @twice(float %v)
  store float %w, ptr %p0
  ret void"""
    )
    assert "twice" in cpu.assembly(text, "call", passes="vector")
    assert "call" not in cpu.assembly(text, "call", passes="scalar")


@elf
def test_llvm_neither_vectorises_nor_unrolls_for_us():
    text = cpu.assembly(ADD, "add", passes="scalar")
    assert text.count("vaddss") + text.count("addss") - text.count("vaddss") == 1
    assert "addps" not in text
