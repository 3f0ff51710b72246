"""Every elementwise op on every dtype, edge values included, against the interpreter."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.lowering.kernels import (
    NARROW_TARGETS,
    buffer,
    cast,
    check,
    kernel,
    literal,
    load,
    loop,
    map_kernel,
    node,
    store,
)
from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
TINY = ["int4", "uint4", "int2", "uint2"]
WIDE = ["float32", "float64"]
HALVES = ["float16", "bfloat16"]
SMALL = [d.name for d in dtypes.SMALL_FLOATS]
FLOATS = WIDE + HALVES + SMALL
COMPLEX = ["complex64", "complex128"]


def dtype_of(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def values_of(name: str) -> np.ndarray[Any, Any]:
    """Edge values and a few random ones."""
    dtype = dtype_of(name)
    rng = np.random.default_rng(7)
    if dtypes.is_bool(dtype):
        return np.array([False, True])
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        edges = {low, low + 1, -1, 0, 1, 2, 3, high - 1, high, 7, 31, 32, -5}
        kept = sorted(v for v in edges if low <= v <= high)
        kept += [int(v) for v in rng.integers(max(low, -(2**40)), min(high, 2**40), 5)]
        wide = np.array(kept, np.uint64 if low == 0 else np.int64)
        return wide.astype(dtype)
    if dtypes.is_complex(dtype):
        part = [0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, np.nan]
        grid = [complex(a, b) for a in part for b in part]
        return np.array(grid + list(rng.normal(size=8) + 1j * rng.normal(size=8)), dtype)
    info = dtypes.finfo(dtype)
    tiny, most = float(info.smallest_subnormal), float(info.max)
    some = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        3.5,
        tiny,
        -tiny,
        float(info.tiny),
        most,
        -most,
    ]
    some += [
        np.inf,
        -np.inf,
        np.nan,
        float(info.tiny) * 0.75,
        1 + float(info.eps),
        *rng.normal(size=6),
    ]
    with np.errstate(all="ignore"):
        return np.array(some, np.float64).astype(dtype)


def pairs(name: str, count: int = 2) -> list[np.ndarray[Any, Any]]:
    """All combinations of the dtype's values, as `count` arrays."""
    values = values_of(name)
    grid = list(itertools.product(range(len(values)), repeat=count))
    return [values[[g[k] for g in grid]] for k in range(count)]


def result(op: Op, name: str) -> Any:
    one = literal(1, dtype_of(name))
    arity = op.arity
    return UOp(op, (one,) * arity).aval.dtype


def run_op(op: Op, name: str, tolerance: float = 0.0, arg: Any = None, target: Any = None) -> None:
    arrays = pairs(name, op.arity)
    out = UOp(op, (literal(1, dtype_of(name)),) * op.arity, arg).aval.dtype
    sink = map_kernel(
        lambda *x: node(op, *x, arg=arg), len(arrays[0]), out, *[dtype_of(name)] * op.arity
    )
    check(sink, [np.zeros(len(arrays[0]), out), *arrays], tolerance, target)


EXACT_UNARY = [Op.NEG, Op.ABS, Op.SIGN]
EXACT_BINARY = [Op.ADD, Op.SUB, Op.MUL, Op.MAX, Op.MIN]
COMPARE = [Op.CMPEQ, Op.CMPNE, Op.CMPLT, Op.CMPLE]
ROUNDINGS = [Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC, Op.SQRT]


@pytest.mark.parametrize("name", INTEGERS + TINY)
@pytest.mark.parametrize(
    "op",
    [*EXACT_UNARY, *EXACT_BINARY, *COMPARE, Op.DIV, Op.REM, Op.AND, Op.OR, Op.XOR, Op.NOT]
    + [Op.SHL, Op.SHRL, Op.SHRA, Op.POPCOUNT, Op.CLZ, Op.IS_FINITE],
    ids=lambda op: op.name,
)
def test_integer_op(op: Op, name: str) -> None:
    run_op(op, name)


@pytest.mark.parametrize("name", ["int32", "uint8", "int4"])
@pytest.mark.parametrize("target", NARROW_TARGETS[1:], ids=lambda t: t.cpu)
def test_integer_division_on_smaller_cpus(name: str, target: Any) -> None:
    run_op(Op.DIV, name, target=target)
    run_op(Op.SHRA, name, target=target)


@pytest.mark.parametrize(
    "op", [Op.NOT, Op.AND, Op.OR, Op.XOR, Op.ADD, Op.MUL, Op.MAX, Op.MIN, *COMPARE],
    ids=lambda op: op.name,
)  # fmt: skip
def test_bool_op(op: Op) -> None:
    run_op(op, "bool")


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize(
    "op",
    [*EXACT_UNARY, *EXACT_BINARY, *COMPARE, *ROUNDINGS, Op.DIV, Op.IS_FINITE, Op.NEXTAFTER],
    ids=lambda op: op.name,
)
def test_exact_float_op(op: Op, name: str) -> None:
    run_op(op, name)


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "int8"])
@pytest.mark.parametrize("bound", [0.0, -0.0, 1.0, -2.0])
@pytest.mark.parametrize("op", [Op.MAX, Op.MIN], ids=lambda op: op.name)
def test_max_and_min_against_a_literal(op: Op, bound: float, name: str) -> None:
    x = values_of(name)
    dtype = dtype_of(name)
    for swap in (False, True):

        def function(a: UOp, swap: bool = swap) -> UOp:
            edge = literal(bound, dtype)
            return node(op, edge, a) if swap else node(op, a, edge)

        check(map_kernel(function, len(x), dtype, dtype), [np.zeros(len(x), dtype), x])


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize("target", NARROW_TARGETS[1:], ids=lambda t: t.cpu)
def test_float_ops_on_smaller_cpus(name: str, target: Any) -> None:
    for op in (Op.ADD, Op.MAX, Op.FLOOR, Op.CMPLT):
        run_op(op, name, target=target)


@pytest.mark.parametrize("name", WIDE + HALVES)
def test_float_remainder(name: str) -> None:
    run_op(Op.REM, name)


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("arg", [(5, 10), (8, 7), (4, 3), (5, 2), (8, 23), (11, 52), (2, 0)])
def test_reduce_precision(name: str, arg: tuple[int, int]) -> None:
    run_op(Op.REDUCE_PRECISION, name, arg=arg)


ALL = ["bool", *INTEGERS, *TINY, *FLOATS, *COMPLEX]


@pytest.mark.parametrize("source", ALL)
def test_cast_to_every_dtype(source: str) -> None:
    """One kernel with a store per target dtype."""
    x = values_of(source)
    if source == "int64":
        extra = [2**53 + 1, 2**60 + 2**30, 2**24 + 1, -(2**62) - 1, 257 * 2**40 + 1]
        x = np.concatenate([x, np.array(extra, np.int64)])
    if source == "float64":
        # Between two bfloat16 neighbours, just above the middle: float32 would round to the tie.
        x = np.concatenate([x, [1 + 2**-8 + 2**-40, 1 + 2**-11 + 2**-40, 1e300, 2**-30 * 1.1]])
    n = len(x)
    i = loop(n, 0)
    targets = [t for t in ALL if not (source in COMPLEX and t in SMALL + TINY)]
    value = load(buffer(0, (n,), dtype_of(source)), i)
    for k in range(0, len(targets), 8):
        some = targets[k : k + 8]
        ends = [
            store(buffer(1 + j, (n,), dtype_of(t)), i, cast(value, dtype_of(t)), i)
            for j, t in enumerate(some)
        ]
        check(kernel(*ends), [x, *(np.zeros(n, dtype_of(t)) for t in some)])


@pytest.mark.parametrize("name", HALVES + SMALL)
def test_every_code_of_a_narrow_float_widens_and_comes_back(name: str) -> None:
    dtype = dtype_of(name)
    bits = np.arange(256 if dtype.itemsize == 1 else 65536, dtype=f"u{dtype.itemsize}")
    if dtypes.bit_width(dtype) < 8:
        bits = bits[: 1 << dtypes.bit_width(dtype)]
    x = bits.view(dtype)
    made = check_widen(dtype, x)
    with np.errstate(all="ignore"):
        expected = x.astype(np.float32)
    np.testing.assert_array_equal(made[0], expected)
    keep = ~np.isnan(expected)
    np.testing.assert_array_equal(made[1].view(bits.dtype)[keep], bits[keep])


def check_widen(dtype: Any, x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    from tests.lowering.kernels import Compiled

    n = len(x)
    i = loop(n, 0)
    wide = cast(load(buffer(2, (n,), dtype), i), np.float32)
    back = cast(wide, dtype)
    sink = kernel(
        store(buffer(0, (n,), np.float32), i, wide, i), store(buffer(1, (n,), dtype), i, back, i)
    )
    out = [np.zeros(n, np.float32), np.zeros(n, dtype)]
    Compiled(sink).run([*out, x])
    return out


@pytest.mark.parametrize("name", HALVES + SMALL)
def test_rounding_to_a_narrow_float(name: str) -> None:
    """Values around every pair of neighbours, random bits, overflow and underflow."""
    from tests.lowering.kernels import Compiled

    dtype = dtype_of(name)
    rng = np.random.default_rng(3)
    random = rng.integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        near = np.float32(2) ** rng.integers(-30, 20, 20000).astype(np.float32)
        near = (near * rng.integers(1, 4096, 20000) / 1024).astype(np.float32)
        x = np.concatenate([random, near, -near])
        # Formats without NaN make -0 of it, whatever its sign.
        expected = np.where(np.isnan(x), np.float32(np.nan), x).astype(dtype)
    i = loop(len(x), 0)
    sink = kernel(
        store(buffer(0, x.shape, dtype), i, cast(load(buffer(1, x.shape, np.float32), i), dtype), i)
    )
    out = np.zeros(len(x), dtype)
    Compiled(sink).run([out, x])
    word = f"u{dtype.itemsize}"
    real = ~np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(out.view(word)[real], expected.view(word)[real])
    assert np.isnan(out.astype(np.float32)[~real]).all()


@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.parametrize(
    "op",
    [Op.NEG, Op.CONJ, Op.REAL, Op.IMAG, Op.ADD, Op.SUB, Op.IS_FINITE, Op.MAX, Op.MIN, *COMPARE],
    ids=lambda op: op.name,
)
def test_exact_complex_op(op: Op, name: str) -> None:
    run_op(op, name)


def test_complex_is_made_and_taken_apart() -> None:
    x = values_of("float32")
    n = len(x)
    sink = map_kernel(lambda a, b: node(Op.COMPLEX, a, b), n, "complex64", "float32", "float32")
    check(sink, [np.zeros(n, np.complex64), x, x[::-1].copy()])


@pytest.mark.parametrize(
    "source, target",
    [("float32", "int32"), ("int32", "float32"), ("uint16", "bfloat16"), ("bfloat16", "int16")]
    + [("float16", "uint16"), ("int8", "float8_e5m2"), ("float64", "uint64"), ("int4", "uint4")],
)
def test_bitcast(source: str, target: str) -> None:
    x = values_of(source)
    sink = map_kernel(
        lambda a: node(Op.BITCAST, a, arg=dtype_of(target)),
        len(x),
        dtype_of(target),
        dtype_of(source),
    )
    check(sink, [np.zeros(len(x), dtype_of(target)), x])


@pytest.mark.parametrize("name", ["bool", "int8", "int64", "float32", "bfloat16", "complex64"])
def test_where(name: str) -> None:
    a, b = pairs(name)
    n = len(a)
    c = np.arange(n) % 3 == 0
    dtype = dtype_of(name)
    sink = map_kernel(lambda c, x, y: node(Op.WHERE, c, x, y), n, dtype, "bool", dtype, dtype)
    check(sink, [np.zeros(n, dtype), c, a, b])


def test_a_copied_nan_keeps_its_payload() -> None:
    for name, word in (("float16", "u2"), ("bfloat16", "u2"), ("float32", "u4")):
        bits = np.array([0x7C01, 0x7F81, 0xFFFF, 0x7FA0], word) if word == "u2" else (
            np.array([0x7F800001, 0xFFC12345], word)
        )  # fmt: skip
        x = bits.view(dtype_of(name))
        from tests.lowering.kernels import Compiled

        out = np.zeros(len(x), dtype_of(name))
        Compiled(map_kernel(lambda a: a, len(x), dtype_of(name), dtype_of(name))).run([out, x])
        np.testing.assert_array_equal(out.view(word), bits)


def test_each_op_on_bfloat16_rounds_once() -> None:
    """(x + y) + y differs from a fused x + 2y: every op rounds to bfloat16."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=200).astype(ml_dtypes.bfloat16) for _ in range(2))
    d = dtype_of("bfloat16")
    sink = map_kernel(
        lambda a, b: node(Op.MUL, node(Op.ADD, node(Op.ADD, a, b), b), b), 200, d, d, d
    )
    check(sink, [np.zeros(200, d), x, y])


TRANSCENDENTAL = [
    Op[n] for n in (
        "RSQRT CBRT EXP EXP2 EXPM1 LOG LOG2 LOG1P SIN COS TAN ASIN ACOS ATAN SINH COSH TANH ASINH "
        "ACOSH ATANH LOGISTIC ERF ERFC ERFINV LGAMMA DIGAMMA"
    ).split()
]  # fmt: skip


@pytest.mark.parametrize(
    "name, tolerance", [("float32", 1e-6), ("float64", 1e-14), ("bfloat16", 8e-3)]
)
@pytest.mark.parametrize("op", TRANSCENDENTAL, ids=lambda op: op.name)
def test_transcendental_op(op: Op, name: str, tolerance: float) -> None:
    """Their accuracy is tested with the decompositions; here: reached, with every special value."""
    run_op(op, name, tolerance)


@pytest.mark.parametrize("op", [Op.POW, Op.ATAN2], ids=lambda op: op.name)
def test_binary_transcendental_op(op: Op) -> None:
    run_op(op, "float32", 1e-6)


@pytest.mark.parametrize(
    "op",
    [Op.MUL, Op.DIV, Op.ABS, Op.EXP, Op.LOG, Op.SQRT, Op.TANH, Op.SIGN],
    ids=lambda op: op.name,
)
def test_complex_op_on_finite_values(op: Op) -> None:
    rng = np.random.default_rng(5)
    n = 40
    arrays = [
        (rng.normal(size=n) + 1j * rng.normal(size=n)).astype(np.complex64) for _ in range(op.arity)
    ]
    out = UOp(op, (literal(1, "complex64"),) * op.arity).aval.dtype
    sink = map_kernel(lambda *x: node(op, *x), n, out, *["complex64"] * op.arity)
    check(sink, [np.zeros(n, out), *arrays], 2e-6)
