"""The LLVM IR text builder: golden text, control flow that runs, constants that are exact."""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyjax.lowering.irtext import (
    BF16,
    F16,
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    PTR,
    Function,
    Module,
    Value,
    bits_of,
    const,
    const_bits,
    iota,
    vec,
)
from tinyjax.runtime import cpu, loader


def compiled(module: Module, name: str, result: Any, *arguments: Any) -> Any:
    """The one function of a module, callable; the code lives as long as the returned object."""
    code = loader.load(cpu.compile_ir(module.text(), name, allowed=()), [name], ())
    function = ctypes.CFUNCTYPE(result, *arguments)(code.addresses[name])
    function.code = code  # type: ignore[attr-defined]
    return function


def integer_function(body: Any, count: int = 1) -> Any:
    """An i64 function of `count` i64 parameters."""
    module = Module()
    b = module.function("f", [(f"x{i}", I64) for i in range(count)], I64)
    b.ret(body(b, *b.args))
    return compiled(module, "f", ctypes.c_int64, *[ctypes.c_int64] * count)


def test_a_loop_is_rotated_and_holds_what_changes_and_equal_addresses_are_written_once() -> None:
    module = Module()
    b = module.function("saxpy", [("x", PTR), ("y", PTR), ("a", F32), ("count", I64)])
    x, y, a, count = b.args
    with b.loop(0, count, 4) as loop:
        old = b.load(vec(F32, 4), b.gep(F32, y, loop.index), align=4)
        new = b.load(vec(F32, 4), b.gep(F32, x, loop.index), align=4)
        b.store(b.fma(b.splat(a, 4), new, old), b.gep(F32, y, loop.index), align=4)
    b.ret()
    assert module.text() == (
        """\
define void @saxpy(ptr %x, ptr %y, float %a, i64 %count) nounwind {
entry:
  %v3 = icmp slt i64 0, %count
  %v9 = insertelement <4 x float> poison, float %a, i32 0
  %v10 = shufflevector <4 x float> %v9, <4 x float> poison, <4 x i32> zeroinitializer
  br i1 %v3, label %loop.1, label %done.2
loop.1:
  %v4 = phi i64 [ 0, %entry ], [ %v12, %loop.1 ]
  %v5 = getelementptr float, ptr %y, i64 %v4
  %v6 = load <4 x float>, ptr %v5, align 4
  %v7 = getelementptr float, ptr %x, i64 %v4
  %v8 = load <4 x float>, ptr %v7, align 4
  %v11 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v10, <4 x float> %v8, <4 x float> %v6)
  store <4 x float> %v11, ptr %v5, align 4
  %v12 = add i64 %v4, 4
  %v13 = icmp slt i64 %v12, %count
  br i1 %v13, label %loop.1, label %done.2
done.2:
  ret void
}
declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)
"""
    )


def test_what_does_not_change_in_a_loop_is_written_before_it() -> None:
    module = Module()
    b = module.function("f", [("y", PTR), ("stride", I64), ("rows", I64), ("divisor", I64)])
    y, stride, rows, divisor = b.args
    with b.loop(0, rows) as row, b.loop(0, 8) as col:
        with b.if_(b.cmp("ne", divisor, 0)):  # once before both loops, not for each element
            start = b.add(b.mul(row.index, stride), b.mul(stride, 3))  # 3*stride before both
            start = b.add(start, b.udiv(row.index, 5))  # for each row
            start = b.add(start, b.udiv(stride, divisor))  # may trap: where it stands
            b.store(col.index, b.gep(I64, y, b.add(start, col.index)))
    b.ret()
    entry, outer, inner = module.text().split("\nloop.")
    assert "icmp ne" in entry and "mul i64 %stride, 3" in entry
    assert outer.count(" mul i64") == 1 and ", 5" in outer and outer.count(" add i64") >= 2
    assert "udiv i64 %stride, %divisor" in inner and " mul " not in inner


def test_a_value_before_a_loop_is_reused_in_the_next_loop_only_where_it_is_known() -> None:
    def twice(b: Function, n: Value, m: Value) -> Value:
        total = const(I64, 0)
        for _ in range(2):
            with b.if_(b.cmp("sgt", n, 0)) as branch:
                with b.loop(0, n, carried=[total]) as loop:
                    loop.next(b.add(loop.carried[0], b.mul(b.mul(m, 3), m)))
            total = branch.join(loop.results[0], total)
        return total

    f = integer_function(twice, 2)
    assert [f(n, 2) for n in (-1, 0, 1, 4)] == [0, 0, 24, 96]


def test_loops_nest_carry_values_and_may_run_no_time() -> None:
    def triangle(b: Function, n: Value) -> Value:
        with b.loop(0, n, carried=[const(I64, 0)]) as outer:
            with b.loop(0, outer.index, carried=outer.carried) as inner:
                inner.next(b.add(inner.carried[0], 1))
            outer.next(*inner.results)
        return outer.results[0]

    f = integer_function(triangle)
    assert [f(n) for n in (-3, 0, 1, 2, 5)] == [0, 0, 0, 1, 10]


def test_a_loop_whose_constant_range_is_empty_gives_the_initial_values() -> None:
    def body(b: Function, x: Value) -> Value:
        with b.loop(3, 3, carried=[x]) as loop:
            loop.next(b.add(loop.carried[0], 1))
        return loop.results[0]

    assert integer_function(body)(7) == 7


def test_branches_join_and_forget_what_only_one_arm_computed() -> None:
    def body(b: Function, x: Value, y: Value) -> Value:
        with b.if_(b.cmp("slt", x, y)) as branch:
            left = b.mul(b.add(x, y), 2)
        with branch.otherwise():
            right = b.mul(b.add(x, y), 3)  # x+y of the other arm does not dominate this one
        joined = branch.join(left, right)
        return b.add(joined, b.add(x, y))

    f = integer_function(body, 2)
    assert (f(1, 2), f(2, 1)) == (9, 12)


def test_a_while_tests_before_its_body() -> None:
    def collatz(b: Function, start: Value) -> Value:
        with b.while_([start, const(I64, 0)]) as loop:
            x, steps = loop.carried
            loop.test(b.cmp("ne", x, 1))
            odd = b.cmp("ne", b.and_(x, 1), 0)
            x = b.select(odd, b.add(b.mul(x, 3), 1), b.ashr(x, 1))
            loop.next(x, b.add(steps, 1))
        return loop.results[1]

    f = integer_function(collatz)
    assert [f(n) for n in (1, 2, 6, 27)] == [0, 1, 8, 111]


def test_integer_constants_fold_so_that_addresses_stay_short() -> None:
    b = Module().function("f", [("x", I64)])
    (x,) = b.args
    assert b.add(x, 0) is x and b.mul(1, x) is x and b.sub(x, 0) is x
    assert b.mul(x, 0).const == 0
    assert b.add(b.mul(const(I64, 6), 7), 1).const == 43
    assert b.add(const(I8, 127), 1).const == -128
    assert b.cmp("slt", const(I64, 3), 4).text == "true"
    assert b.add(3, x) is b.add(x, 3)
    assert b.gep(F32, Value("%p", PTR), 0).text == "%p"
    assert b.lines == ["  %v1 = add i64 %x, 3"]


def test_operands_of_different_types_are_refused() -> None:
    b = Module().function("f", [("x", I64), ("y", I32)])
    with pytest.raises(TypeError, match=r"i64 %x and i32 %y in f"):
        b.add(*b.args)
    with pytest.raises(TypeError, match="changes type"):
        with b.loop(0, 3, carried=[b.args[0]]) as loop:
            loop.next(b.args[1])


def stored(scalar: Any, value: Value) -> int:
    """The bits LLVM gives a constant."""
    module = Module()
    b = module.function("f", [("p", PTR)])
    b.store(value, b.args[0])
    b.ret()
    memory = ctypes.create_string_buffer(8)
    compiled(module, "f", None, ctypes.c_void_p)(ctypes.addressof(memory))
    return int.from_bytes(memory.raw[: scalar.bits // 8], "little")


@pytest.mark.parametrize("scalar", [F16, BF16, F32, F64], ids=str)
@pytest.mark.parametrize("value", [0.0, -0.0, 1 / 3, 1e-40, -math.inf, math.inf, 65504.0, 1e300])
def test_float_constants_are_exact(scalar: Any, value: float) -> None:
    numpy_type = {F16: np.float16, BF16: ml_dtypes.bfloat16, F32: np.float32, F64: np.float64}
    with np.errstate(over="ignore"):
        want = np.asarray(value).astype(numpy_type[scalar]).tobytes()
    assert stored(scalar, const(scalar, value)) == int.from_bytes(want, "little")


def test_a_bfloat16_constant_is_rounded_once() -> None:
    """ml_dtypes rounds to float32 on the way: 1 + 2**-8 + 2**-40 would become a tie, then 1."""
    assert bits_of(BF16, 1 + 2**-8 + 2**-40) == 0x3F81
    assert bits_of(BF16, 1 + 2**-8) == 0x3F80
    assert bits_of(BF16, 1 + 2**-8 - 2**-40) == 0x3F80
    assert bits_of(BF16, math.nan) == 0x7FC0


def test_payloads_of_nans_survive() -> None:
    for scalar, bits in (
        (F32, 0xFFA12345),
        (F64, 0x7FF0000000000001),
        (F16, 0x7D01),
        (BF16, 0xFF81),
    ):
        assert stored(scalar, const_bits(scalar, bits)) == bits


@given(st.floats(width=32, allow_nan=False))
def test_the_text_of_a_float_is_the_double_of_equal_value(value: float) -> None:
    text = const(F32, value).text
    assert struct.unpack(">d", bytes.fromhex(text[2:]))[0] == value
    assert bits_of(F32, value) == int(np.float32(value).view(np.uint32))


def test_what_no_kernel_writes_is_read_once_before_the_loops() -> None:
    module = Module()
    b = module.function("f", [("x", PTR), ("y", PTR), ("n", I64)])
    x, y, n = b.args
    with b.loop(0, n) as row, b.loop(0, 2) as col:
        stride = b.invariant(I64, b.gep(I64, x, 1))
        at = b.gep(I64, y, b.add(b.mul(row.index, stride), col.index))
        b.store(b.add(row.index, b.invariant(I64, b.gep(I64, x, 1))), at)
    b.ret()
    entry, rest = module.text().split("br i1", 1)
    assert entry.count("!invariant.load !0") == 1 and "invariant" not in rest
    f = compiled(module, "f", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    source, result = np.array([7, 3], np.int64), np.zeros(9, np.int64)
    f(source.ctypes.data, result.ctypes.data, 3)
    assert result.tolist() == [3, 3, 0, 4, 4, 0, 5, 5, 0]


def test_masks_turn_on_the_first_lanes_and_masked_memory_is_left_alone() -> None:
    module = Module()
    b = module.function("f", [("x", PTR), ("y", PTR), ("n", I64)])
    x, y, n = b.args
    for start in (0, 8):  # the second mask counts on
        mask = b.first_lanes(n, 8, start)
        loaded = b.masked_load(vec(F32, 8), b.gep(F32, x, start), mask)
        b.masked_store(loaded, b.gep(F32, y, start), mask)
    b.ret()
    assert module.text().count("trunc") == 1
    f = compiled(module, "f", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    source = np.arange(1, 17, dtype=np.float32)
    for n in (-5, 0, 3, 8, 11, 16, 1000, 1 << 31, 1 << 40):
        result = np.full(16, -1, np.float32)
        f(source.ctypes.data, result.ctypes.data, n)
        on = np.arange(16) < n
        np.testing.assert_array_equal(result, np.where(on, source, -1))


def test_gather_scatter_reduce_and_casts_run() -> None:
    module = Module()
    b = module.function("f", [("x", PTR), ("y", PTR)], I64)
    x, y = b.args
    every_other = b.gep(F32, x, b.mul(iota(I64, 4), 2))
    values = b.gather(vec(F32, 4), every_other)
    b.scatter(b.neg(values), b.gep(F32, y, b.sub(3, iota(I64, 4))))
    total = b.reduce_tree(values, "add")
    with_limits = b.add(b.cast(const(F32, 1e30), I8), b.cast(const(F32, math.nan), I8))
    b.ret(b.add(b.cast(total, I64), b.cast(with_limits, I64)))
    f = compiled(module, "f", ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    source, result = np.arange(8, dtype=np.float32), np.zeros(4, np.float32)
    assert f(source.ctypes.data, result.ctypes.data) == 0 + 2 + 4 + 6 + 127 + 0
    np.testing.assert_array_equal(result, [-6, -4, -2, 0])


def test_equal_types_are_one_object() -> None:
    assert vec(F32, 8) is vec(F32, 8)
    assert vec(F32, 1) is F32
    assert vec(I1, 4).text == "<4 x i1>"
