"""The evaluator against JAX, op by op, on the values where operations go wrong."""

from __future__ import annotations

import cmath
import functools
import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import aval
from tinyjax.core.body import close, fresh_var
from tinyjax.core.infos import (
    CallbackInfo,
    CallInfo,
    CheckInfo,
    CustomLinInfo,
    DotInfo,
    GatherInfo,
    HostCallInfo,
    ScanInfo,
    ScatterInfo,
    WhileInfo,
)
from tinyjax.core.memory import ALIGNMENT, address
from tinyjax.core.ops import ELEMENTWISE, J, Op
from tinyjax.core.treedef import tree_flatten
from tinyjax.core.uop import UOp, buffer, const, get, param, results, tuple_of
from tinyjax.interpreters import evaluate_elementwise as el
from tinyjax.interpreters import quiet
from tinyjax.interpreters.effects import START
from tinyjax.interpreters.evaluate import (
    EVAL,
    FRESH,
    NOT_EVALUATED,
    CheckFailed,
    apply_op,
    evaluate,
    evaluate_body,
    plan_of,
)

INTS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
NARROW_INTS = "int4 uint4"
FLOATS = "float32 float64 float16 bfloat16"
COMPLEX = "complex64 complex128"


@pytest.fixture(autouse=True, scope="module")
def x64():
    with jax.enable_x64(True):
        yield


def ref(f, *args):
    """The oracle's results as ndarrays, compiled once and without optimisation (it is faster)."""
    args = tuple(jax.tree.map(jnp.asarray, a) for a in args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own numerical warnings are not ours
        program = jax.jit(f).lower(*args).compile({"xla_backend_optimization_level": 0})
        return jax.tree.map(np.asarray, program(*args))


def run(op: Op, *args: np.ndarray, arg: Any = None) -> Any:
    """One node over values in memory, evaluated."""
    node = UOp(op, tuple(buffer(np.asarray(a)) for a in args), arg)
    (y,) = evaluate([node])
    check_form(node, y)
    operands = [s.arg.value for s in node.operands]
    if op in FRESH:  # these are not asked again whether they copied
        row = apply_op(node, operands)
        assert not any(np.may_share_memory(row, x) for x in operands)
        assert address(row) % ALIGNMENT == 0 or op not in ELEMENTWISE
    return y


def check_form(node: UOp, y: Any) -> None:
    """Results are aligned, C-contiguous, writable ndarrays of the stated aval."""
    pairs = zip(node.aval.elts, y) if isinstance(y, list) else [(node.aval, y)]
    for of, v in pairs:
        assert type(v) is np.ndarray
        assert v.shape == of.shape and v.dtype == of.dtype
        assert v.flags.c_contiguous and v.flags.writeable
        assert address(v) % ALIGNMENT == 0


# --- values and comparison --------------------------------------------------------------------


def edges(name: str) -> np.ndarray:
    """Values of a dtype where operations go wrong. No subnormals: XLA flushes them, we do not."""
    dtype = dtypes.DTYPES[name]
    if dtype == np.bool_:
        return np.array([False, True])
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        values = [
            0,
            1,
            2,
            3,
            7,
            8,
            13,
            31,
            32,
            63,
            64,
            100,
            high,
            high - 1,
            high // 2,
            low,
            low + 1,
        ]
        values += [-1, -2, -3, -7, -64] if low < 0 else []
        return (
            np.array([v for v in values if low <= v <= high], object)
            .astype(np.int64 if high < 2**63 else np.uint64)
            .astype(dtype)
        )
    if dtypes.is_complex(dtype):
        line = np.array([0.0, -0.0, 1, -1, 0.5, -2.5, 3, np.inf, -np.inf, np.nan])
        z = np.empty((line.size, line.size), dtype)
        z.real, z.imag = line[:, None], line
        return z.reshape(-1)
    values = [
        0.0,
        -0.0,
        1,
        -1,
        0.5,
        -0.5,
        1.5,
        -1.5,
        2.5,
        2,
        -2,
        3,
        -3,
        0.1,
        -0.3,
        10,
        -10,
        50,
        -60,
    ]
    values += [88.5, -104, 1e-5, 1e10, -1e20, np.inf, -np.inf, np.nan, np.pi, -7.0001, 0.99, -0.999]
    with np.errstate(all="ignore"):
        return np.array(values).astype(dtype)


def pairs(name: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of edge values (of every third, for complex)."""
    x = edges(name)
    x = x[::3] if dtypes.is_complex(x.dtype) else x
    return np.repeat(x, len(x)), np.tile(x, len(x))


TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 1.6e-2}


def assert_same(y: np.ndarray, r: np.ndarray, *operands: np.ndarray, exact: bool = False) -> None:
    """Equal where the result is discrete (zeros with their sign, NaN, inf), else within a few ulp.

    Complex results are compared as numbers, where neither operand nor result has a NaN.
    """
    assert y.dtype == r.dtype and y.shape == r.shape
    if not dtypes.is_inexact(y.dtype):
        np.testing.assert_array_equal(y, r)
        return
    if any(dtypes.is_complex(x.dtype) for x in operands) and not dtypes.is_complex(y.dtype):
        keep = ~np.isnan(operands[0])
        y, r = y[keep], r[keep]
    if dtypes.is_complex(y.dtype):
        clean = ~np.isnan(r)
        for x in operands:
            clean = clean & ~np.isnan(x)
        size = np.abs(r)
        for a, c in ((y.real, r.real), (y.imag, r.imag)):
            with np.errstate(invalid="ignore"):
                near = (a == c) | (np.abs(a - c) <= TOLERANCE[a.dtype.name] * size * 4)
            assert (near | ~clean).all(), mismatch(near | ~clean, y, r, operands)
        return
    a, c = y.astype(np.float64), r.astype(np.float64)
    same = (np.isnan(a) & np.isnan(c)) | ((a == c) & (np.signbit(a) == np.signbit(c)))
    if not exact:
        tiny = 2 * float(ml_dtypes.finfo(y.dtype).tiny)
        with np.errstate(invalid="ignore"):
            near = np.abs(a - c) <= TOLERANCE[y.dtype.name] * np.abs(c) + tiny
        same |= near & np.isfinite(c) & ((c != 0) | (np.abs(a) <= tiny))
    assert same.all(), mismatch(same, y, r, operands)


def mismatch(
    same: np.ndarray, y: np.ndarray, r: np.ndarray, operands: tuple[np.ndarray, ...]
) -> str:
    bad = np.flatnonzero(~same.reshape(-1))[:5]
    return "\n".join(
        f"{[x.reshape(-1)[i] for x in operands]}: {y.reshape(-1)[i]}, JAX {r.reshape(-1)[i]}"
        for i in bad
    )


# --- the table is complete --------------------------------------------------------------------


def test_every_stage_1_op_has_a_row_or_a_reason():
    stage_1 = {op for op in Op if op.stages & J}
    assert stage_1 == set(EVAL) | set(NOT_EVALUATED)
    assert not set(EVAL) & set(NOT_EVALUATED)


# --- elementwise ------------------------------------------------------------------------------

UNARY = {
    "NEG": (lax.neg, f"{FLOATS} {INTS} {COMPLEX} int4"),
    "ABS": (lax.abs, f"{FLOATS} int8 int32 int64 {COMPLEX}"),
    "SIGN": (lax.sign, f"{FLOATS} {INTS}"),
    "FLOOR": (lax.floor, FLOATS),
    "CEIL": (lax.ceil, FLOATS),
    "ROUND": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), FLOATS),
    "TRUNC": (jnp.trunc, FLOATS),
    "SQRT": (lax.sqrt, f"{FLOATS} {COMPLEX}"),
    "RSQRT": (lax.rsqrt, f"{FLOATS} {COMPLEX}"),
    "CBRT": (lax.cbrt, FLOATS),
    "EXP": (lax.exp, f"{FLOATS} {COMPLEX}"),
    "EXP2": (lambda x: lax.exp2(x.astype(jnp.float64)).astype(x.dtype), "float32 bfloat16"),
    "EXPM1": (lax.expm1, f"{FLOATS} {COMPLEX}"),
    "LOG": (lax.log, f"{FLOATS} {COMPLEX}"),
    "LOG2": (jnp.log2, "float32 float64"),
    "LOG1P": (lax.log1p, f"{FLOATS} {COMPLEX}"),
    "SIN": (lax.sin, f"{FLOATS} {COMPLEX}"),
    "COS": (lax.cos, f"{FLOATS} {COMPLEX}"),
    "TAN": (lax.tan, f"{FLOATS} {COMPLEX}"),
    "ASIN": (lax.asin, f"{FLOATS} {COMPLEX}"),
    "ACOS": (lax.acos, f"{FLOATS} {COMPLEX}"),
    "ATAN": (lax.atan, f"{FLOATS} {COMPLEX}"),
    "SINH": (lax.sinh, f"{FLOATS} {COMPLEX}"),
    "COSH": (lax.cosh, f"{FLOATS} {COMPLEX}"),
    "TANH": (lax.tanh, f"{FLOATS} {COMPLEX}"),
    "ASINH": (lax.asinh, f"{FLOATS} {COMPLEX}"),
    "ACOSH": (lax.acosh, f"{FLOATS} {COMPLEX}"),
    "ATANH": (lax.atanh, f"{FLOATS} {COMPLEX}"),
    "LOGISTIC": (lax.logistic, f"{FLOATS} {COMPLEX}"),
    "ERF": (lax.erf, FLOATS),
    "ERFC": (lax.erfc, FLOATS),
    "ERFINV": (lax.erf_inv, FLOATS),
    "LGAMMA": (lax.lgamma, "float16"),
    "DIGAMMA": (lax.digamma, "float16 bfloat16"),
    "IS_FINITE": (lax.is_finite, FLOATS),
    "NOT": (lax.bitwise_not, f"{INTS} {NARROW_INTS} bool"),
    "POPCOUNT": (lax.population_count, f"{INTS} uint4"),  # JAX counts the padding of int4
    "CLZ": (lax.clz, f"{INTS} {NARROW_INTS}"),
    "REAL": (lax.real, COMPLEX),
    "IMAG": (lax.imag, COMPLEX),
    "CONJ": (lax.conj, COMPLEX),
}

BINARY = {
    "ADD": (lax.add, f"{FLOATS} {INTS} {COMPLEX} {NARROW_INTS}"),
    "SUB": (lax.sub, f"{FLOATS} {INTS} {COMPLEX} {NARROW_INTS}"),
    "MUL": (lax.mul, f"{FLOATS} {INTS} {NARROW_INTS}"),
    "DIV": (lax.div, f"{FLOATS} {INTS} {COMPLEX} {NARROW_INTS}"),
    "REM": (lax.rem, f"{FLOATS} {INTS} {NARROW_INTS}"),
    "POW": (lax.pow, FLOATS),
    "MAX": (lax.max, f"{FLOATS} {INTS} {COMPLEX} bool int4"),
    "MIN": (lax.min, f"{FLOATS} {INTS} {COMPLEX} bool int4"),
    "ATAN2": (lax.atan2, FLOATS),
    "NEXTAFTER": (lax.nextafter, FLOATS),
    "AND": (lax.bitwise_and, f"{INTS} {NARROW_INTS} bool"),
    "OR": (lax.bitwise_or, f"{INTS} {NARROW_INTS} bool"),
    "XOR": (lax.bitwise_xor, f"{INTS} {NARROW_INTS} bool"),
    "SHL": (lax.shift_left, f"{INTS} {NARROW_INTS}"),
    "SHRL": (lax.shift_right_logical, f"{INTS} {NARROW_INTS}"),
    "SHRA": (lax.shift_right_arithmetic, f"{INTS} {NARROW_INTS}"),
    "CMPEQ": (lax.eq, f"{FLOATS} {INTS} {COMPLEX} bool"),
    "CMPNE": (lax.ne, f"{FLOATS} {INTS} {COMPLEX} bool"),
    "CMPLT": (lax.lt, f"{FLOATS} {INTS} {NARROW_INTS} bool"),
    "CMPLE": (lax.le, f"{FLOATS} {INTS} {NARROW_INTS} bool"),
}


SAMPLED = set("float32 bfloat16 complex64 int8 uint32 int4 bool".split())
"""Dtypes of the default run, one per code path; the others are `slow`."""


@functools.cache
def oracle(arity: int, sampled: bool) -> dict[tuple[str, str], np.ndarray]:
    """JAX's results for a whole table by one compilation: one per op takes five times as long."""
    table, inputs = (UNARY, lambda d: (edges(d),)) if arity == 1 else (BINARY, pairs)
    keys = [k for k in op_cases(table) if (k[1] in SAMPLED) is sampled]
    operands = {dtype: inputs(dtype) for _, dtype in keys}
    return dict(
        zip(keys, ref(lambda v: [table[name][0](*v[dtype]) for name, dtype in keys], operands))
    )


def op_cases(table):
    return [(name, dtype) for name, (_, names) in table.items() for dtype in names.split()]


def cases(table):
    return [
        pytest.param(*key, marks=() if key[1] in SAMPLED else pytest.mark.slow)
        for key in op_cases(table)
    ]


HAS_BRANCH_CUT = set("SQRT ASIN ACOS ATAN ASINH ACOSH ATANH".split())


@pytest.mark.parametrize("name, dtype", cases(UNARY))
def test_unary_ops_agree_with_jax_on_edge_values(name, dtype):
    x = edges(dtype)
    r = oracle(1, dtype in SAMPLED)[name, dtype]
    if name in ("SINH", "COSH") and dtype == "float64":
        x, r = x[np.abs(x) < 100], r[np.abs(x) < 100]  # XLA's lose digits near overflow
    if name in HAS_BRANCH_CUT and dtype in COMPLEX:
        # JAX ignores the sign of a zero that says on which side of a cut x lies; C99 does not
        cut = (np.signbit(x.real) & (x.real == 0)) | (np.signbit(x.imag) & (x.imag == 0))
        x, r = x[~cut], r[~cut]
    assert_same(run(Op[name], x), r, x)


def test_the_sign_of_zero_chooses_the_side_of_a_branch_cut_as_in_c99():
    z = np.array([complex(-2, 0.0), complex(-2, -0.0), complex(2, 0.0), complex(2, -0.0)])
    for name in ("sqrt", "log", "asin", "acos", "atanh", "acosh"):
        f = getattr(cmath, name)
        np.testing.assert_allclose(run(Op[name.upper()], z), [f(v) for v in z.tolist()], 1e-14)
    for op, f in ((Op.ATAN, cmath.atan), (Op.ASINH, cmath.asinh)):
        turned = np.array([complex(0.0, 2), complex(-0.0, 2), complex(0.0, -2), complex(-0.0, -2)])
        np.testing.assert_allclose(run(op, turned), [f(v) for v in turned.tolist()], 1e-14)


@pytest.mark.parametrize("name, dtype", cases(BINARY))
def test_binary_ops_agree_with_jax_on_pairs_of_edge_values(name, dtype):
    x, y = pairs(dtype)
    assert_same(run(Op[name], x, y), oracle(2, dtype in SAMPLED)[name, dtype], x, y)


def test_no_elementwise_op_is_left_untested():
    elsewhere = set("CAST BITCAST REDUCE_PRECISION COMPLEX WHERE IDIV MOD".split())
    assert {op.name for op in ELEMENTWISE} == set(UNARY) | set(BINARY) | elsewhere


@pytest.mark.parametrize("name", ["ERF", "ERFC", "ERFINV", "LGAMMA", "DIGAMMA"])
def test_special_functions_are_accurate_to_float64(name):
    mp = pytest.importorskip("mpmath")
    inverse = name == "ERFINV"
    x = np.array([1e-300, 1e-9, 0.1, 0.49999, 0.5, 0.7, 0.9999, 1 - 2.0**-52], np.float64)
    if not inverse:
        more = [1.0000001, 1.4, 1.6, 1.999, 2.3, 2.5, 3.7, 5.9, 7.99, 8.01, 23.88, 26.5, 1e3, 1e15]
        x = np.concatenate([x, more, [-0.3, -0.75, -1.5, -2.00001, -3.7, -5.3, -10.6]])
    else:
        x = np.concatenate([x, -x])
    f = {
        "ERF": mp.erf, "ERFC": mp.erfc, "ERFINV": mp.erfinv, "DIGAMMA": mp.digamma,
        "LGAMMA": lambda v: mp.log(abs(mp.gamma(v))) if v < 100 else mp.loggamma(v),
    }[name]  # fmt: skip
    with mp.workdps(40):
        exact = np.array([float(f(mp.mpf(float(v)))) for v in x])
        # near a zero or a pole the value moves by more than itself when x moves by half an ulp
        wobble = np.array(
            [
                float(abs(mp.diff(f, mp.mpf(float(v))) * v)) if name in ("DIGAMMA",) else 0.0
                for v in x
            ]
        )
    error = np.abs(run(Op[name], x) - exact)
    floor = 1.0 if name in ("LGAMMA", "DIGAMMA") else 0.0
    assert (error <= 4e-15 * np.maximum(np.abs(exact), floor) + 3e-16 * wobble + 1e-320).all()


def test_float16_and_smaller_floats_compute_in_float32_and_round_once():
    for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"):
        dtype = dtypes.DTYPES[name]
        x, y = (
            a.astype(np.float32).astype(dtype)
            for a in np.random.default_rng(0).normal(size=(2, 99))
        )
        wide = x.astype(np.float32), y.astype(np.float32)
        for op, f in ((Op.ADD, np.add), (Op.MUL, np.multiply), (Op.POW, np.power)):
            with np.errstate(all="ignore"):
                exact = f(*wide)
                # A NaN's sign does not pick the zero it becomes in a format without NaN.
                expected = np.where(np.isnan(exact), np.float32(np.nan), exact).astype(dtype)
            assert_same(run(op, x, y), expected, exact=True)


@pytest.mark.parametrize("name", "CMPLT CMPLE".split())
def test_complex_order_is_lexicographic_and_false_for_nan(name):
    x = np.array([1 + 2j, 1 + 2j, 1 + 2j, 2, complex(np.nan, 0), complex(1, np.nan)], np.complex64)
    y = np.array([1 + 3j, 1 + 2j, 0 + 9j, 1, 0, 1], np.complex64)
    expected = {"CMPLT": [1, 0, 0, 0, 0, 0], "CMPLE": [1, 1, 0, 0, 0, 0]}[name]
    assert run(Op[name], x, y).tolist() == [bool(v) for v in expected]


def test_complex_sign_and_pow_agree_with_jax_on_finite_values():
    z = edges("complex64")
    z = z[np.isfinite(z)]
    assert_same(run(Op.SIGN, z), ref(lax.sign, z), z)
    x, y = np.repeat(z, len(z)), np.tile(z, len(z))
    keep = (x != 0) & (np.abs(y) < 4)
    x, y = x[keep], y[keep]
    np.testing.assert_allclose(run(Op.POW, x, y), ref(lax.pow, x, y), rtol=1e-4, atol=1e-6)


def test_values_at_the_ends_of_the_range_are_not_lost_to_an_overflow_on_the_way():
    most = np.finfo(np.float64).max
    np.testing.assert_array_equal(run(Op.LGAMMA, np.array([-most, -1e300])), np.inf)
    root = np.sqrt(0.5)
    np.testing.assert_allclose(run(Op.SIGN, np.array([complex(-most, most)])), complex(-root, root))


def test_complex_product_of_finite_values_agrees_with_jax():
    z = edges("complex64")
    z = z[np.isfinite(z)]
    x, y = np.repeat(z, len(z)), np.tile(z, len(z))
    assert_same(run(Op.MUL, x, y), ref(lax.mul, x, y), x, y)


def test_floor_division_and_modulo_of_index_integers():
    x = np.array([-7, -1, 0, 6, 7], np.int64)
    y = np.full_like(x, 3)
    assert run(Op.IDIV, x, y).tolist() == [-3, -1, 0, 2, 2]
    assert run(Op.MOD, x, y).tolist() == [2, 2, 0, 0, 1]


def test_complex_is_built_bit_for_bit_and_scalars_broadcast():
    re = np.array([0.0, -0.0, np.inf, np.nan], np.float32)
    z = run(Op.COMPLEX, re, np.array(-0.0, np.float32))
    assert z.real.tobytes() == re.tobytes() and np.signbit(z.imag).all()


def test_a_scalar_operand_broadcasts_from_either_side():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    s = np.array(2, np.float32)
    np.testing.assert_array_equal(run(Op.SUB, x, s), x - 2)
    np.testing.assert_array_equal(run(Op.SUB, s, x), 2 - x)
    np.testing.assert_array_equal(run(Op.WHERE, np.array(True), x, s), x)
    np.testing.assert_array_equal(run(Op.WHERE, x > 2, s, s), np.full((2, 3), 2.0))


AROUND_A_BLOCK = [0, 1, el.BLOCK - 1, el.BLOCK, el.BLOCK + 1, 3 * el.BLOCK + 5]


def in_one_call(monkeypatch, f, *args):
    with monkeypatch.context() as patch:
        patch.setattr(el, "BLOCK", 1 << 62)
        return f(*args)


def written(f, *args):
    """What a writer gives for float32 operands."""
    out = np.empty(np.broadcast_shapes(*(x.shape for x in args)), np.float32)
    f(*args, out)
    return out


def same_bits(got, want):
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("size", AROUND_A_BLOCK)
@pytest.mark.parametrize("op", [Op.EXP, Op.LOG2, Op.TAN, Op.LOGISTIC, Op.ATAN2])
def test_blocks_give_the_bits_of_one_call(monkeypatch, op, size):
    rng = np.random.default_rng(size)
    for dtype in (np.float32, np.float16, np.float64):
        x, y = (4 * rng.normal(size=(2, size))).astype(dtype)
        x[-3:] = [np.inf, -np.inf, np.nan][: len(x[-3:])]
        args = (x, y) if op is Op.ATAN2 else (x,)
        same_bits(run(op, *args), in_one_call(monkeypatch, run, op, *args))


@pytest.mark.parametrize("swapped", [False, True])
def test_blocks_of_scalars_strided_and_broadcast_operands_give_the_bits_of_one_call(
    monkeypatch, swapped
):
    rows = el.BLOCK // 50
    x = np.random.default_rng(0).normal(size=(rows, 200)).astype(np.float32)
    atan2 = el.rounded_once(np.arctan2)
    pairs = [(x, np.array(0.3, np.float32)), (x, x[:, ::-1]), (x[:, ::2], x[:, 1::2])]
    pairs += [(x, x.T.copy().T), (x, x[:, :1]), (x, x[0]), (x[:, :1], x[0])]
    for pair in pairs:
        args = pair[::-1] if swapped else pair
        want = np.arctan2(*args, dtype=np.float64).astype(np.float32)
        np.testing.assert_array_equal(written(atan2, *args), want)
    for f in (el.logistic, el.rounded_once(np.exp)):
        for operand in (x[:, ::2], x.T, np.broadcast_to(x[:1], (rows, 200))):
            want = in_one_call(monkeypatch, written, f, operand)
            np.testing.assert_array_equal(written(f, operand), want)


def test_a_function_in_blocks_never_sees_more_than_a_block():
    seen = []

    def f(x, y, out):
        seen.append((x.shape, y.shape, out.shape))
        np.add(x, y, out)

    x, out = np.ones((2, el.BLOCK), np.float32), np.zeros((2, el.BLOCK))
    el.in_blocks(f, x, np.float32(1).reshape(()), out)
    assert seen == [((el.BLOCK,), (), (el.BLOCK,))] * 2
    assert (out == 2).all()


@pytest.mark.parametrize("size", [0, 1, el.SELECTED_BY_BITS, el.BLOCK + 7])
@pytest.mark.parametrize("dtype", "bool_ int8 bfloat16 float32 complex64 complex128".split())
def test_a_selection_keeps_every_bit(dtype, size):
    rng = np.random.default_rng(size)
    dtype = np.dtype(getattr(dtypes, dtype))
    raw = rng.integers(0, 2 if dtype == np.bool_ else 256, (2, size * dtype.itemsize), np.uint8)
    x, y = raw.view(dtype)
    mask = rng.random(size) < 0.5
    for where in (mask, np.array(True), np.array(False)):
        for p, q in ((x, y), (x, y[:1].reshape(())) if size else (x, y)):
            same_bits(run(Op.WHERE, where, p, q), np.where(where, p, q) if size else p)


# --- conversions ------------------------------------------------------------------------------

CAST_TYPES = f"bool {INTS} {NARROW_INTS} {FLOATS} float8_e4m3fn float8_e5m2".split()


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(t, marks=() if t in SAMPLED | {"float64", "float8_e5m2"} else pytest.mark.slow)
        for t in [*CAST_TYPES, "complex64"]
    ],
)
def test_casts_agree_with_jax_on_edge_values(source):
    x = edges(source)
    if dtypes.is_float(x.dtype) and x.dtype.itemsize >= 4:
        more = [
            127.6,
            -128.9,
            255.5,
            300,
            -300,
            2.0**31,
            -(2.0**31),
            2.0**63,
            2.0**64,
            1e38,
            464,
            465,
        ]
        x = np.concatenate([x, np.array(more, x.dtype)])
    targets = [dtypes.DTYPES[t] for t in CAST_TYPES if t != source]
    expected = ref(lambda v: [lax.convert_element_type(v, t) for t in targets], x)
    for dtype, r in zip(targets, expected):
        assert_same(run(Op.CAST, x, arg=(dtype, False)), r, exact=True)


def test_a_cast_that_only_changes_the_weak_flag_copies_for_the_caller():
    x = buffer(np.ones(3, np.float32))
    (y,) = evaluate([b.cast(x, np.float32, weak_type=True)])
    assert not np.shares_memory(y, x.arg.value) and y.tolist() == [1, 1, 1]


def test_bitcast_reinterprets_the_bits():
    x = np.array([1.0, -0.0, np.nan], np.float32)
    y = run(Op.BITCAST, x, arg=np.dtype(np.uint32))
    assert y.tolist() == [0x3F800000, 0x80000000, 0x7FC00000]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_reduce_precision_agrees_with_jax(dtype):
    x = np.concatenate(
        [edges(dtype), np.random.default_rng(1).normal(size=200).astype(dtypes.DTYPES[dtype])]
    )
    formats = ((5, 10), (8, 7), (4, 3), (5, 2), (8, 23), (3, 0))
    expected = ref(lambda v: [lax.reduce_precision(v, *f) for f in formats], x)
    for arg, r in zip(formats, expected):
        assert_same(run(Op.REDUCE_PRECISION, x, arg=arg), r, exact=True)


# --- movement ---------------------------------------------------------------------------------


def test_movement_ops_agree_with_jax():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    same = np.testing.assert_array_equal
    same(run(Op.RESHAPE, x, arg=(4, 6)), x.reshape(4, 6))
    same(run(Op.PERMUTE, x, arg=(2, 0, 1)), x.transpose(2, 0, 1))
    same(run(Op.FLIP, x, arg=(0, 2)), x[::-1, :, ::-1])
    same(run(Op.CONCAT, x, x[:, :1], arg=1), np.concatenate([x, x[:, :1]], 1))
    same(run(Op.SLICE, x, arg=((0, 2, 1), (1, 3, 2), (0, 4, 3))), x[0:2, 1:3:2, 0:4:3])
    small = x[:, :1, 0]
    arg = ((2, 5, 7, 3), (0, 2))
    x = x[..., :1].copy()
    same(
        run(Op.EXPAND, x, arg=((2, 3, 5, 4), (0, 1, 3))),
        np.broadcast_to(x[:, :, None], (2, 3, 5, 4)),
    )
    same(run(Op.EXPAND, small, arg=arg), ref(lambda v: lax.broadcast_in_dim(v, *arg), small))
    same(run(Op.EXPAND, np.array(3, np.int8), arg=((2, 2), ())), np.full((2, 2), 3))


@pytest.mark.parametrize(
    "config",
    [
        ((1, 2, 0), (0, 0, 0)), ((0, 0, 2), (3, 1, 1)), ((-1, 0, 0), (0, -2, 0)),
        ((-2, 5, 2), (-1, -1, 1)), ((-4, 1, 0), (-3, 7, 3)), ((7, -6, 1), (0, -4, 0)),
        ((-3, -1, 1), (2, -7, 1)),
    ],
)  # fmt: skip
def test_pad_agrees_with_jax_for_every_sign_and_interior(config):
    x = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
    y = run(Op.PAD, x, np.array(-5, np.int32), arg=config)
    np.testing.assert_array_equal(y, ref(lambda v: lax.pad(v, jnp.int32(-5), config), x))


def test_pad_of_an_empty_array_is_all_fill():
    y = run(Op.PAD, np.zeros((0, 2), np.int8), np.array(7, np.int8), arg=((1, 2, 3), (0, 0, 1)))
    assert y.shape == (3, 3) and (y == 7).all()


@pytest.mark.parametrize("size, stride, dilation", [(3, 1, 1), (2, 3, 2), (1, 1, 1), (5, 2, 3)])
def test_window_places_index_o_stride_plus_k_dilation(size, stride, dilation):
    x = np.arange(2 * 9 * 3).reshape(2, 9, 3)
    y = run(Op.WINDOW, x, arg=(1, size, stride, dilation))
    for o in range(y.shape[1]):
        for k in range(size):
            np.testing.assert_array_equal(y[:, o, :, k], x[:, o * stride + k * dilation])


# --- folds ------------------------------------------------------------------------------------

REDUCE = {
    "add": (jnp.add, 0), "mul": (jnp.multiply, 1), "max": (jnp.maximum, None),
    "min": (jnp.minimum, None), "and": (jnp.bitwise_and, -1), "or": (jnp.bitwise_or, 0),
    "xor": (jnp.bitwise_xor, 0),
}  # fmt: skip


def numbers(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    of = dtypes.DTYPES[dtype]
    if of == np.bool_:
        return rng.random(shape) < 0.5
    if dtypes.is_integer(of):
        return rng.integers(0, 7, shape).astype(of)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if dtypes.is_complex(of) else x).astype(of)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint32", "bool", "complex64", "bfloat16"])
@pytest.mark.parametrize("kind", list(REDUCE))
def test_reduce_agrees_with_numpy_in_the_accumulator_dtype(kind, dtype):
    of = dtypes.DTYPES[dtype]
    if kind in ("and", "or", "xor") and dtypes.is_inexact(of):
        with pytest.raises(TypeError):
            run(Op.REDUCE, numbers(dtype, (2,)), arg=(kind, (0,)))
        return
    x = numbers(dtype, (3, 4, 5))
    y = run(Op.REDUCE, x, arg=(kind, (0, 2)))
    f = {
        "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[kind]  # fmt: skip
    wide = x.astype(np.float32) if dtype == "bfloat16" else x
    expected = f.reduce(wide, axis=(0, 2), dtype=wide.dtype).astype(of)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    "dtype", ["float32", "int8", "uint8", "bool", "complex64", "bfloat16", "int4"]
)
def test_a_fold_over_nothing_gives_the_identity(dtype):
    of = dtypes.DTYPES[dtype]
    x = np.zeros((0, 2), of)
    for kind in REDUCE if not dtypes.is_inexact(of) else ("add", "mul", "max", "min"):
        y = run(Op.REDUCE, x, arg=(kind, (0,)))
        other = edges(dtype)
        other = other[~np.isnan(other)] if dtypes.is_inexact(of) else other
        pair = np.stack([np.broadcast_to(y[:1], other.shape), other])
        folded = run(Op.REDUCE, pair, arg=(kind, (0,)))
        np.testing.assert_array_equal(
            folded[np.isfinite(folded.astype(complex))], other[np.isfinite(folded.astype(complex))]
        )


def test_bfloat16_sums_do_not_stall():
    x = np.ones(100_000, ml_dtypes.bfloat16)
    assert float(run(Op.REDUCE, x, arg=("add", (0,)))) == 99840.0  # the bfloat16 nearest to 100000
    assert float(run(Op.PREFIX, x, arg=("add", 0, False))[-1]) == 99840.0


def test_sums_over_leading_axes_keep_their_digits():
    x = np.full((1_000_000, 2), 0.1, np.float32)
    y = run(Op.REDUCE, x, arg=("add", (0,)))
    np.testing.assert_allclose(y, 1e5, rtol=2e-6)


def test_nan_wins_in_max_min_and_complex_extremes_are_lexicographic():
    x = np.array([1, np.nan, 3], np.float32)
    assert np.isnan(run(Op.REDUCE, x, arg=("max", (0,))))
    assert np.isnan(run(Op.REDUCE, x, arg=("min", (0,))))
    z = np.array([1 + 5j, 2 - 1j, 2 - 3j], np.complex64)
    assert run(Op.REDUCE, z, arg=("max", (0,))) == 2 - 1j
    assert run(Op.REDUCE, z, arg=("min", (0,))) == 1 + 5j


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool"])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_argreduce_agrees_with_jax(kind, dtype):
    x = numbers(dtype, (3, 7, 2))
    if dtypes.is_inexact(x.dtype):
        x[0, 2:4, 0] = np.nan
        x[1, :, 1] = -0.0
        x[1, 3, 1] = 0.0
        x[2, :, 0] = -np.inf
    f = lax.argmax if kind == "max" else lax.argmin
    value, index = run(Op.ARGREDUCE, x, arg=(kind, 1, np.dtype(np.int32)))
    r = ref(lambda v: f(v, 1, jnp.int32), x)
    np.testing.assert_array_equal(index, r)
    plain = np.float32 if dtype == "bfloat16" else x.dtype  # NumPy's tests know no bfloat16 NaN
    expected = np.take_along_axis(x, r[:, None], 1)[:, 0].astype(plain)
    np.testing.assert_array_equal(value.astype(plain), expected)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
def test_prefix_agrees_with_jax(kind, reverse):
    f = {"add": lax.cumsum, "mul": lax.cumprod, "max": lax.cummax, "min": lax.cummin}[kind]
    for dtype in ("float32", "int8", "bfloat16"):
        x = numbers(dtype, (3, 6))
        if dtype == "float32" and kind in ("max", "min"):
            x[1, 2] = np.nan
        y = run(Op.PREFIX, x, arg=(kind, 1, reverse))
        r = ref(lambda v: f(v, 1, reverse), x)
        tolerance = 0 if dtype == "int8" else {"float32": 1e-5, "bfloat16": 0.05}[dtype]
        np.testing.assert_allclose(y.astype(np.float32), r.astype(np.float32), tolerance, tolerance)


def test_complex_prefix_of_max_is_lexicographic():
    z = np.array([[1 + 1j, 1 + 0j, 2 - 1j, 2 + 0j]], np.complex64)
    assert run(Op.PREFIX, z, arg=("max", 1, False)).tolist() == [[1 + 1j, 1 + 1j, 2 - 1j, 2 + 0j]]


@pytest.mark.parametrize(
    "x_shape, y_shape, contract, batch",
    [
        ((3, 4), (4, 5), ((1,), (0,)), ((), ())),
        ((4, 3), (5, 4), ((0,), (1,)), ((), ())),
        ((2, 3, 4), (2, 4, 5), ((2,), (1,)), ((0,), (0,))),
        ((3, 2, 4, 6), (4, 5, 2, 6), ((2,), (0,)), ((1, 3), (2, 3))),
        ((3,), (3,), ((0,), (0,)), ((), ())),
        ((2, 3), (4,), ((), ()), ((), ())),
        ((2, 3, 4), (4, 3, 5), ((1, 2), (1, 0)), ((), ())),
        ((2, 0), (0, 3), ((1,), (0,)), ((), ())),
    ],
)
def test_dot_agrees_with_jax_for_every_arrangement_of_axes(x_shape, y_shape, contract, batch):
    x, y = numbers("float32", x_shape), numbers("float32", y_shape, 1)
    z = run(Op.DOT, x, y, arg=DotInfo(contract, batch))
    r = ref(lambda a, c: lax.dot_general(a, c, (contract, batch), precision="highest"), x, y)
    np.testing.assert_allclose(z, r, 1e-5, 1e-6)


def test_dot_accumulates_narrow_floats_in_float32_and_wraps_integers():
    info = DotInfo(((0,), (0,)))
    ones = np.ones(1000, ml_dtypes.bfloat16)
    assert float(run(Op.DOT, ones, ones, arg=info)) == 1000
    x = np.full(1000, 100, np.int8)
    assert int(run(Op.DOT, x, x, arg=info)) == np.array(10_000_000).astype(np.int8)
    wide = DotInfo(((0,), (0,)), dtype=np.dtype(np.int32))
    assert int(run(Op.DOT, x, x, arg=wide)) == 10_000_000
    mixed = DotInfo(((0,), (0,)), dtype=np.dtype(np.float32))
    assert float(run(Op.DOT, x, ones, arg=mixed)) == 100_000
    assert run(Op.DOT, np.array([True, False]), np.array([True, True]), arg=info).item() is True


# --- indexed ----------------------------------------------------------------------------------

MODES = {"fill": lax.GatherScatterMode.FILL_OR_DROP, "clip": lax.GatherScatterMode.CLIP}


def gather_cases():
    """(operand shape, indices shape, GatherInfo) for plain, windowed, partial and batched forms."""
    return [
        ((5, 3), (4, 1), GatherInfo((1,), (0,), (0,), (1, 3))),
        ((5, 3), (2, 4, 1), GatherInfo((0,), (0,), (0,), (1, 3))),
        ((5, 4), (6, 2), GatherInfo((1, 2), (), (0, 1), (2, 3))),
        ((5, 4), (6, 2), GatherInfo((), (0, 1), (1, 0), (1, 1))),
        ((5, 4, 3), (2, 2), GatherInfo((0, 2), (1,), (2, 1), (4, 1, 2))),
        ((3, 5, 4), (3, 7, 1), GatherInfo((2,), (1,), (1,), (1, 1, 4), (0,), (0,))),
        ((3, 5, 4), (6, 3, 2), GatherInfo((0,), (2,), (1, 2), (1, 2, 1), (0,), (1,))),
        ((4, 3), (2,), GatherInfo((0, 1), (), (0, 1), (2, 2))),
        ((4, 3), (0, 1), GatherInfo((1,), (0,), (0,), (1, 3))),
        ((2, 3), (5, 0), GatherInfo((1, 2), (), (), (2, 3))),
    ]


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("case", range(len(gather_cases())))
def test_gather_agrees_with_jax(case, mode):
    shape, index_shape, info = gather_cases()[case]
    info = replace(info, mode=mode)
    x = numbers("float32", shape)
    indices = np.random.default_rng(case).integers(-2, 7, index_shape).astype(np.int32)
    numbers_ = lax.GatherDimensionNumbers(
        info.offset_dims, info.collapsed_slice_dims, info.start_index_map,
        info.operand_batching_dims, info.start_indices_batching_dims,
    )  # fmt: skip
    r = ref(lambda v, i: lax.gather(v, i, numbers_, info.slice_sizes, mode=MODES[mode]), x, indices)
    np.testing.assert_array_equal(run(Op.GATHER, x, indices, arg=info), r)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "bool", "float32", "bfloat16", "complex64", "int4"]
)
def test_an_out_of_bounds_read_gives_jaxs_fill_value(dtype):
    x = numbers(dtype, (3,))
    y = run(Op.GATHER, x, np.array([[5]], np.uint64), arg=GatherInfo((), (0,), (0,), (1,)))
    if dtype == "int4":
        assert int(y[0]) == -8
    else:
        assert_same(y, ref(lambda v: v.at[jnp.array([5])].get(mode="fill"), x))
    given = run(
        Op.GATHER,
        x,
        np.array([[5]]),
        np.array(1).astype(x.dtype),
        arg=GatherInfo((), (0,), (0,), (1,)),
    )
    assert given[0] == np.array(1).astype(x.dtype)


def scatter_cases():
    """(operand, indices, updates shapes, ScatterInfo fields)."""
    return [
        ((5, 3), (4, 1), (4, 3), ((1,), (0,), (0,))),
        ((5,), (9, 1), (9,), ((), (0,), (0,))),
        ((5, 4), (6, 2), (6, 2, 3), ((1, 2), (), (0, 1))),
        ((5, 4), (6, 2), (2, 6, 3), ((0, 2), (), (1, 0))),
        ((3, 5, 4), (3, 7, 1), (3, 7, 4), ((2,), (1,), (1,), (0,), (0,))),
        ((3, 5, 4), (6, 3, 2), (6, 3, 2), ((2,), (2,), (1, 2), (0,), (1,))),
        ((4, 3), (2,), (2, 2), ((0, 1), (), (0, 1))),
        ((4, 3), (0, 1), (0, 3), ((1,), (0,), (0,))),
    ]


@pytest.mark.parametrize(
    "kind, case",
    # the combiners share all but one line: all index forms for one of them
    [("add", c) for c in range(8)] + [(k, c) for k in ("set", "mul", "min", "max") for c in (1, 4)],
)
def test_scatter_agrees_with_jax(kind, case):
    shape, index_shape, update_shape, fields = scatter_cases()[case]
    rng = np.random.default_rng(case)
    for mode in MODES:
        x = rng.integers(-9, 9, shape).astype(np.int32)
        updates = rng.integers(-9, 9, update_shape).astype(np.int32)
        indices = rng.integers(-1, 6, index_shape)
        f = {"set": lax.scatter, "add": lax.scatter_add, "mul": lax.scatter_mul,
             "min": lax.scatter_min, "max": lax.scatter_max}[kind]  # fmt: skip
        dnums = lax.ScatterDimensionNumbers(*fields)
        r = ref(lambda a, i, u: f(a, i, u, dnums, mode=MODES[mode]), x, indices, updates)
        y = run(Op.SCATTER, x, indices, updates, arg=ScatterInfo(kind, *fields, mode=mode))
        np.testing.assert_array_equal(y, r)


def test_scatter_accumulates_narrow_floats_in_float32():
    x = np.zeros(2, ml_dtypes.bfloat16)
    info = ScatterInfo("add", (), (0,), (0,))
    y = run(Op.SCATTER, x, np.zeros((1000, 1), np.int32), np.ones(1000, x.dtype), arg=info)
    assert y.tolist() == [1000, 0]


def test_dynamic_slice_and_update_clamp_their_starts():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for i, j in ((0, 0), (-3, 2), (5, 9), (1, -1)):
        starts = np.array(i, np.int32), np.array(j, np.int32)
        # JAX wraps negative starts once, above the op, as NumPy's indexing does; here they clamp
        row, column = min(max(i, 0), 1), min(max(j, 0), 1)
        y = run(Op.DYNAMIC_SLICE, x, *starts, arg=(2, 3))
        np.testing.assert_array_equal(y, x[row : row + 2, column : column + 3])
        u = -np.ones((2, 3), np.float32)
        y = run(Op.DYNAMIC_UPDATE, x, u, *starts)
        expected = x.copy()
        expected[row : row + 2, column : column + 3] = u
        np.testing.assert_array_equal(y, expected)
    assert x.min() == 0  # the operand was not written


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool", "complex64"])
def test_sort_agrees_with_jax_and_is_stable(dtype):
    x = numbers(dtype, (2, 40))
    if dtypes.is_inexact(x.dtype):
        x[:, ::5] = np.nan
        x[:, 1::5] = 0.0
        x[:, 2::5] = -0.0
        x[0, 3::7] = np.inf
        x[1, 3::7] = -np.nan
    position = np.broadcast_to(np.arange(40, dtype=np.int32), x.shape).copy()
    y, order = run(Op.SORT, x, position, arg=(1, 1, True))
    r, r_order = ref(lambda a, p: lax.sort((a, p), dimension=1, num_keys=1), x, position)
    np.testing.assert_array_equal(order, r_order)
    plain = np.float32 if dtype == "bfloat16" else x.dtype  # NumPy's tests know no bfloat16 NaN
    np.testing.assert_array_equal(y.astype(plain), r.astype(plain))


def test_sort_by_several_keys_along_any_axis():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 3, (9, 2)).astype(np.int32)
    c = rng.integers(0, 3, (9, 2)).astype(np.float32)
    d = rng.normal(size=(9, 2)).astype(np.float32)
    ours = run(Op.SORT, a, c, d, arg=(0, 2, True))
    theirs = ref(lambda *v: lax.sort(v, dimension=0, num_keys=2), a, c, d)
    for y, r in zip(ours, theirs):
        np.testing.assert_array_equal(y, r)


KEY_DATA = np.arange(12, dtype=np.uint32).reshape(2, 3, 2) * np.uint32(0x9E3779B9)


@functools.cache
def random_oracle():
    """jax.random.bits of each width: one key, one key and rank 0, a batch of keys."""

    def f(data):
        keys = jax.random.wrap_key_data(data)
        out = {}
        for width in (8, 16, 32, 64):
            dtype = jnp.dtype(f"uint{width}")
            batch = jax.vmap(jax.vmap(lambda k: jax.random.bits(k, (4,), dtype)))
            one = keys[0, 1]
            out[width] = [
                jax.random.bits(one, (5, 3), dtype),
                jax.random.bits(one, (), dtype),
                batch(keys),
            ]
        return out

    return ref(f, KEY_DATA)


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_random_bits_are_jaxs_for_single_and_batched_keys(width):
    one, scalar, batch = random_oracle()[width]
    same = np.testing.assert_array_equal
    same(run(Op.RANDOM_BITS, KEY_DATA[0, 1], arg=((5, 3), width)), one)
    same(run(Op.RANDOM_BITS, KEY_DATA[0, 1], arg=((), width)), scalar)
    same(run(Op.RANDOM_BITS, KEY_DATA, arg=((4,), width)), batch)


@pytest.mark.parametrize("kind", ["fft", "ifft", "rfft", "irfft"])
def test_fft_agrees_with_jax(kind):
    for lengths in ((6,), (4, 6)):
        x = numbers("float32" if kind == "rfft" else "complex64", (3, 4, 6))
        if kind == "irfft":
            x = x[..., :4].copy()
        y = run(Op.FFT, x, arg=(kind, lengths))
        names = {"fft": "FFT", "ifft": "IFFT", "rfft": "RFFT", "irfft": "IRFFT"}
        r = ref(lambda v: lax.fft(v, names[kind], lengths), x)
        assert y.dtype == r.dtype
        np.testing.assert_allclose(y, r, 1e-4, 1e-5)


# --- typed keys -------------------------------------------------------------------------------

KEY = dtypes.KeyDType("threefry2x32")


def key_leaf(data: np.ndarray) -> UOp:
    return buffer(data.astype(np.uint32), aval(data.shape[:-1], KEY))


def test_typed_keys_move_as_whole_elements():
    data = np.arange(12, dtype=np.uint32).reshape(2, 3, 2)
    k, one = key_leaf(data), key_leaf(np.array([77, 78]))
    flag = buffer(np.array([[True, False, True], [False, True, False]]))

    def value(node: UOp) -> np.ndarray:
        (y,) = evaluate([node])
        assert y.shape == (*node.aval.shape, 2) and y.dtype == np.uint32 and y.flags.c_contiguous
        return y

    same = np.testing.assert_array_equal
    same(value(b.permute(k, (1, 0))), data.transpose(1, 0, 2))
    same(value(b.reshape(k, (6,))), data.reshape(6, 2))
    same(value(b.expand(one, (2, 2), ())), np.broadcast_to([77, 78], (2, 2, 2)))
    same(value(b.flip(k, (1,))), data[:, ::-1])
    same(value(b.slice_(k, (0, 1), (2, 3))), data[:, 1:])
    same(value(b.concat([k, k], 0)), np.concatenate([data, data]))
    padded = value(b.pad(k, ((1, 0, 0), (0, 0, 0)), one))
    same(padded[0], np.broadcast_to([77, 78], (3, 2)))
    same(padded[1:], data)
    same(value(b.where(flag, k, one))[0, 1], [77, 78])
    same(value(b.window(k, 1, 2))[0, 1], data[0, 1:3])
    i = b.scalar(5, np.int32)
    same(value(b.dynamic_slice(k, (i, i), (1, 1))), data[1:, 2:])
    same(value(b.dynamic_update(k, b.reshape(one, (1, 1)), (i, i)))[1, 2], [77, 78])
    rows = GatherInfo((1,), (0,), (0,), (1, 3), mode="clip")
    same(value(b.gather(k, buffer(np.array([[1], [0], [9]])), rows)), data[[1, 0, 1]])
    filled = value(b.gather(k, buffer(np.array([[9]])), GatherInfo((1,), (0,), (0,), (1, 3))))
    assert (filled == 0xFFFFFFFF).all()
    rows_of = ScatterInfo("set", (1,), (0,), (0,))
    updates = b.expand(one, (1, 3), ())
    same(value(b.scatter(k, buffer(np.array([[1]])), updates, rows_of))[1], [[77, 78]] * 3)


def test_typed_keys_compare_by_all_words():
    x, y = (
        key_leaf(np.array([[1, 2], [3, 4], [5, 6]])),
        key_leaf(np.array([[1, 2], [3, 9], [0, 6]])),
    )
    assert evaluate([b.eq(x, y)])[0].tolist() == [True, False, False]
    assert evaluate([b.ne(x, y)])[0].tolist() == [False, True, True]


def test_wrapping_and_unwrapping_keys_keeps_the_words():
    data = np.arange(6, dtype=np.uint32).reshape(3, 2)
    wrapped = UOp(Op.KEY_WRAP, (buffer(data),), KEY)
    assert wrapped.aval.shape == (3,)
    (y,) = evaluate([UOp(Op.KEY_UNWRAP, (wrapped,))])
    np.testing.assert_array_equal(y, data)
    assert not np.shares_memory(y, data)


# --- calls and control flow -------------------------------------------------------------------

F32 = np.dtype(np.float32)
SCALAR = aval((), F32)


def body_of(f, *avals):
    variables = [fresh_var(a) for a in avals]
    body, captured = close(f(*variables), variables)
    assert not captured
    return body


def test_a_call_applies_its_body():
    body = body_of(lambda x, y: [b.sub(x, y), x], SCALAR, SCALAR)
    call = UOp(Op.CALL, (body, b.scalar(5, F32), b.scalar(3, F32)), CallInfo("jit"))
    assert [v.item() for v in evaluate(results(call))] == [2, 5]
    assert [v.item() for v in evaluate([call])[0]] == [2, 5]


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_carries_and_stacks(reverse):
    body = body_of(lambda k, c, x: [b.add(b.mul(c, k), x), b.mul(c, x)], SCALAR, SCALAR, SCALAR)
    xs = np.array([1, 2, 3, 4], np.float32)
    node = UOp(
        Op.SCAN,
        (body, b.scalar(2, F32), b.scalar(1, F32), buffer(xs)),
        ScanInfo(1, 1, 4, reverse),
    )
    carry, ys = evaluate(results(node))
    step = lambda c, x: (c * 2 + x, c * x)
    r_carry, r_ys = ref(lambda v: lax.scan(step, jnp.float32(1), v, reverse=reverse), xs)
    assert carry == r_carry
    np.testing.assert_array_equal(ys, r_ys)


def test_a_scan_of_no_steps_returns_its_carry_and_empty_stacks():
    body = body_of(lambda c, x: [c, b.add(x, c)], SCALAR, SCALAR)
    node = UOp(Op.SCAN, (body, b.scalar(3, F32), buffer(np.zeros(0, F32))), ScanInfo(0, 1, 0))
    carry, ys = evaluate(results(node))
    assert carry.item() == 3 and ys.shape == (0,)


def test_scan_over_typed_keys_stacks_their_words():
    body = body_of(lambda k: [k], aval((), KEY))
    data = np.arange(6, dtype=np.uint32).reshape(3, 2)
    (ys,) = evaluate(results(UOp(Op.SCAN, (body, key_leaf(data)), ScanInfo(0, 0, 3, True))))
    np.testing.assert_array_equal(ys, data)


def test_while_runs_as_long_as_its_condition_holds():
    holds = body_of(lambda limit, x: [b.lt(x, limit)], SCALAR, SCALAR)
    step = body_of(lambda k, x: [b.mul(x, k)], SCALAR, SCALAR)
    start = [b.scalar(v, F32) for v in (100, 3, 1)]
    node = UOp(Op.WHILE, (holds, step, *start), WhileInfo(1, 1))
    assert evaluate(results(node))[0].item() == 243
    never = UOp(Op.WHILE, (holds, step, b.scalar(0, F32), *start[1:]), WhileInfo(1, 1))
    assert evaluate(results(never))[0].item() == 1


@pytest.mark.parametrize("index, expected", [(-3, 11), (0, 11), (1, 20), (7, 20)])
def test_cond_clamps_its_index(index, expected):
    branches = (
        body_of(lambda x: [b.add(x, b.like(x, 1))], SCALAR),
        body_of(lambda x: [b.mul(x, b.like(x, 2))], SCALAR),
    )
    node = UOp(Op.COND, (*branches, b.scalar(index, np.int32), b.scalar(10, F32)), 2)
    assert evaluate(results(node))[0].item() == expected


def test_a_loop_orders_its_body_once():
    body = body_of(lambda c: [b.add(c, b.like(c, 1))], SCALAR)
    node = UOp(Op.SCAN, (body, b.scalar(0, F32)), ScanInfo(0, 1, 1000))
    assert evaluate(results(node))[0].item() == 1000
    assert plan_of(body) is plan_of(body)
    assert "evaluate" in body.derived


def test_forward_mode_of_a_map_known_by_its_transpose_is_an_error():
    body = body_of(lambda x: [x], SCALAR)
    node = UOp(Op.CUSTOM_LIN, (b.scalar(1, F32),), CustomLinInfo(0, (SCALAR,), body, "f"))
    with pytest.raises(TypeError, match="custom_vjp function \\(f\\)"):
        evaluate(results(node))


# --- the outside world ------------------------------------------------------------------------


def test_effects_run_in_the_order_of_their_tokens_and_once_each():
    log = []

    def note(name):
        def f(x):
            log.append((name, x.item()))
            return x * 2

        return f

    x = b.scalar(3, F32)
    early = UOp(Op.CALLBACK, (x, START), CallbackInfo(note("early"), (SCALAR,), "io"))
    late = UOp(Op.CALLBACK, (x, get(early, 1)), CallbackInfo(note("late"), (SCALAR,), "io"))
    total = b.add(get(late, 0), b.mul(get(early, 0), get(late, 0)))
    assert evaluate([total])[0].item() == 6 + 36
    assert log == [("early", 3), ("late", 3)]


def test_a_callback_must_return_what_it_declared():
    x = b.scalar(3, F32)
    wrong = UOp(Op.CALLBACK, (x,), CallbackInfo(lambda v: np.zeros(2), (SCALAR,)))
    with pytest.raises(ValueError, match=r"shape \(2,\), f32\[\] was declared"):
        evaluate([wrong])
    for value in (np.int8(1), np.float16(1), 1, 1j, True, np.int64(1), None, "1.0"):
        other = UOp(Op.CALLBACK, (x,), CallbackInfo(lambda v, value=value: value, (SCALAR,)))
        with pytest.raises(RuntimeError, match=r"returned dtype .*, f32\[\] was declared"):
            evaluate([other])
    for value in (np.float64(1), 1.0, np.float32(1)):
        same = UOp(Op.CALLBACK, (x,), CallbackInfo(lambda v, value=value: value, (SCALAR,)))
        assert evaluate([same]) == [[1.0]]
    none = UOp(Op.CALLBACK, (x,), CallbackInfo(lambda v: None, ()))
    assert evaluate([none]) == [[]]


def test_a_failed_check_raises_its_message():
    tree = tree_flatten(((1.0,), {"of": 2}))[1]

    def node(flag):
        src = (b.scalar(flag, np.dtype(bool)), b.scalar(-2.5, F32), b.scalar(7, F32), START)
        return UOp(Op.CHECK, src, CheckInfo("x must be positive, is {} of {of}", tree))

    ((token,),) = evaluate([node(True)])
    assert not token
    with pytest.raises(CheckFailed, match=r"x must be positive, is -2.5 of 7.0"):
        evaluate([node(False)])


def host(routine, params, out, *args):
    node = UOp(Op.HOST_CALL, tuple(map(buffer, args)), HostCallInfo(routine, params, out))
    (values,) = evaluate([node])
    return values


def spd(n=4, batch=(2,)):
    a = np.random.default_rng(0).normal(size=(*batch, n, n)).astype(np.float32)
    return a @ a.swapaxes(-1, -2) + n * np.eye(n, dtype=np.float32)


def test_host_factorisations_multiply_back():
    a = spd()
    of = aval(a.shape, F32)
    vector = aval((2, 4), F32)
    t = lambda m: m.swapaxes(-1, -2)
    close_to = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)
    (low,) = host("cholesky", (), (of,), a)
    close_to(low @ t(low), a)
    assert (np.triu(low, 1) == 0).all()
    q, r = host("qr", (True,), (of, of), a)
    close_to(q @ r, a)
    v, w = host("eigh", (True,), (of, vector), a)
    close_to(v @ (w[..., None] * t(v)), a)
    s, u, vh = host("svd", (True, True), (vector, of, of), a)
    close_to(u @ (s[..., None] * vh), a)
    rhs = a[..., :2].copy()
    (x,) = host("solve", (), (aval(rhs.shape, F32),), a, rhs)
    close_to(a @ x, rhs)
    lu, pivots, order = host(
        "lu", (), (of, aval((2, 4), np.dtype(np.int32)), aval((2, 4), np.dtype(np.int32))), a
    )
    lower, upper = np.tril(lu, -1) + np.eye(4, dtype=np.float32), np.triu(lu)
    close_to(lower @ upper, np.take_along_axis(a, order[..., None], 1))
    r_lu, r_pivots, r_order = ref(lax.linalg.lu, a)
    close_to(lu, r_lu)
    np.testing.assert_array_equal(pivots, r_pivots)
    np.testing.assert_array_equal(order, r_order)


def test_a_failing_matrix_is_nan_and_leaves_the_others():
    a = np.stack([np.eye(2, dtype=np.float32), -np.eye(2, dtype=np.float32)])
    (low,) = host("cholesky", (), (aval((2, 2, 2), F32),), a)
    np.testing.assert_array_equal(low[0], np.eye(2))
    assert np.isnan(low[1]).any()


@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower", [True, False])
def test_triangular_solve_agrees_with_jax(left_side, lower):
    rng = np.random.default_rng(0)
    a = (rng.normal(size=(2, 3, 3)) + 3 * np.eye(3) + 1j * rng.normal(size=(2, 3, 3))).astype(
        np.complex64
    )
    y = rng.normal(size=(2, 3, 3)).astype(np.complex64)
    for transpose, conjugate, unit in ((0, 0, 0), (1, 0, 0), (1, 1, 1), (0, 0, 1)):
        params = (left_side, lower, bool(transpose), bool(conjugate), bool(unit))
        (x,) = host("triangular_solve", params, (aval(y.shape, y.dtype),), a, y)
        names = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
        r = ref(lambda m, v: lax.linalg.triangular_solve(m, v, **dict(zip(names, params))), a, y)
        np.testing.assert_allclose(x, r, 1e-4, 1e-4)


# --- the driver -------------------------------------------------------------------------------


def test_a_graph_deeper_than_the_recursion_limit_is_evaluated():
    x = y = buffer(np.zeros(2, np.float32))
    for _ in range(20_000):
        y = b.add(y, b.like(x, 1))
    assert evaluate([y], release=True)[0].tolist() == [20_000, 20_000]


def test_the_environment_is_read_and_filled():
    v = fresh_var(SCALAR)
    y = b.exp(v)
    z = b.add(y, y)
    env = {v: np.array(0, np.float32)}
    assert evaluate([z], env)[0].item() == 2
    assert env[y].item() == 1
    env[y] = np.array(10, np.float32)
    assert evaluate([b.mul(y, v)], env)[0].item() == 0
    assert evaluate([b.add(z, y)], env)[0].item() == 12


def test_leaves_that_the_environment_lacks_are_asked_for():
    v = fresh_var(SCALAR)
    assert evaluate([b.neg(v)], leaf=lambda n: np.array(4, np.float32))[0].item() == -4
    with pytest.raises(TypeError, match="open variable"):
        evaluate([b.neg(v)])


def test_release_keeps_only_what_was_asked_for():
    v = fresh_var(SCALAR)
    y = b.exp(b.neg(v))
    z = b.add(b.sin(y), y)
    env = {v: np.array(0, np.float32)}
    evaluate([z, y], env, release=True)
    assert set(env) == {v, y, z}


def test_outputs_own_their_memory():
    x = np.arange(4, dtype=np.float32)
    leaf = buffer(x)
    nodes = [
        b.reshape(leaf, (2, 2)),
        b.stop_gradient(leaf),
        UOp(Op.COPY, (leaf,)),
        b.scalar(2, F32),
    ]
    for node, y in zip(nodes, evaluate(nodes)):
        check_form(node, y)
        assert not np.shares_memory(x, y)
    assert evaluate([leaf])[0] is x


def test_results_that_are_the_same_array_inside_are_copied_outside():
    body = body_of(lambda x: [x, b.exp(x), b.stop_gradient(b.exp(x))], aval((2,), F32))
    leaf = buffer(np.zeros(2, np.float32))
    call = UOp(Op.CALL, (body, leaf), CallInfo("jit"))
    values = [*evaluate(results(call)), *evaluate([call])[0], leaf.arg.value]
    for i, x in enumerate(values):
        assert not any(np.shares_memory(x, y) for y in values[i + 1 :])


def test_rank_0_results_are_arrays():
    x, y = buffer(np.array(2, np.float32)), buffer(np.ones(3, np.float32))
    nodes = [b.add(x, x), b.exp(x), b.lt(x, x), b.sum_(y, (0,)), b.cast(x, np.int32), b.max_(x, x)]
    for node in nodes:
        y = apply_op(node, [s.arg.value for s in node.src])
        assert type(y) is np.ndarray and y.shape == () and y.dtype == node.aval.dtype


def test_no_floating_point_warning_or_error_reaches_the_user():
    x = np.array([0.0, -1, np.inf, 1e38], np.float32)
    leaf = buffer(x)
    y = [b.div(leaf, b.like(leaf, 0)), b.log(leaf), b.mul(leaf, leaf), b.cast(leaf, np.int8)]
    body = body_of(lambda v: [b.sqrt(b.log(v))], aval((4,), F32))
    loops = [
        UOp(Op.CALL, (body, leaf), CallInfo("jit")),
        UOp(Op.SCAN, (body, leaf), ScanInfo(0, 1, 3)),
    ]
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(y)
        evaluate_body(body, [x])
        apply_op(y[0], [x, np.zeros((), F32)])
        apply_op(y[1], [x])
        for loop in loops:
            apply_op(loop, [x])
        quiet._fallback(np.divide, x, x)
        with pytest.raises(FloatingPointError):  # the user's own setting is back
            np.log(x)


def test_evaluate_body_binds_arguments_to_slots():
    body = tuple_of([b.sub(param(1, SCALAR), param(0, SCALAR)), param(2, SCALAR), const(1.5, F32)])
    args = [np.array(v, np.float32) for v in (1, 5, 9)]
    assert [v.item() for v in evaluate_body(body, args)] == [4, 9, 1.5]


def test_a_deleted_array_cannot_be_read():
    x = buffer(np.ones(2, np.float32))
    x.arg.deleted = True
    with pytest.raises(RuntimeError, match="deleted"):
        evaluate([b.neg(x)])


def test_iota_and_its_conversion():
    assert evaluate([b.iota((2, 3), 1)])[0].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert evaluate([b.iota((3, 2), 0, np.float32)])[0].tolist() == [[0, 0], [1, 1], [2, 2]]
    y = evaluate([b.iota((300,), 0, ml_dtypes.bfloat16)])[0]
    np.testing.assert_array_equal(y, ref(lambda: lax.iota(jnp.bfloat16, 300)))
    assert evaluate([b.iota((300,), 0, np.int8)])[0][-1] == 43
