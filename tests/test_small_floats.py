"""float8 and its kin: codes, rounding, arithmetic, order; eager and compiled."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tinyjax
from tests.differential import run_compiled
from tinyjax import numpy as jnp
from tinyjax.core import build as B
from tinyjax.core import dtypes
from tinyjax.core.avals import aval
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, param, tuple_of
from tinyjax.interpreters.evaluate import evaluate_body
from tinyjax.interpreters.quiet import quietly

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
FNUZ = [d for d in dtypes.FLOAT8 if d.name.endswith("fnuz") and "e8m0" not in d.name]
SIGNED = [d for d in dtypes.FLOAT8 if "e8m0" not in d.name]
WAYS = {
    "eager": lambda body, args: quietly(evaluate_body, body, args),
    "compiled": run_compiled,
}


@pytest.fixture(params=list(WAYS))
def run(request):
    """Computes one output from arrays."""

    def run_one(make, *args: np.ndarray) -> np.ndarray:
        body = tuple_of([make(*(param(i, aval(a.shape, a.dtype)) for i, a in enumerate(args)))])
        (found,) = WAYS[request.param](body, list(args))
        return found

    return run_one


def codes(dtype) -> np.ndarray:
    return np.arange(1 << dtypes.bit_width(dtype)).astype(f"u{dtype.itemsize}").view(dtype)


def bits(x: np.ndarray) -> list[int]:
    return x.view(f"u{x.dtype.itemsize}").tolist()


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("float8_e4m3fn", 448), ("float8_e5m2", 57344), ("float8_e4m3fnuz", 240),
        ("float8_e5m2fnuz", 57344),
    ],
)  # fmt: skip
def test_the_largest_finite_number(run, name, largest):
    dtype = dtypes.DTYPES[name]
    values = codes(dtype).astype(F64)
    assert max(values[np.isfinite(values)]) == largest == float(jnp.finfo(dtype).max)
    above = np.array([largest, -largest, np.nextafter(np.float32(largest), np.float32(0))], F32)
    found = run(lambda x: B.cast(x, dtype), above)
    assert found.astype(F64).tolist() == [largest, -largest, largest]


@pytest.mark.parametrize("dtype", FNUZ, ids=str)
def test_fnuz_formats_have_one_nan_and_no_negative_zero(run, dtype):
    assert np.isnan(codes(dtype).astype(F64)).nonzero()[0].tolist() == [0x80]
    x = np.array([np.inf, -np.inf, np.nan, -np.nan, -0.0, 0.0, 1e9, -1e-9], F32)
    assert bits(run(lambda x: B.cast(x, dtype), x)) == [0x80] * 4 + [0, 0, 0x80, 0]
    assert bits(run(B.neg, np.zeros(3, dtype))) == [0, 0, 0]


def test_e4m3fn_has_no_infinity_and_keeps_the_sign_of_nan(run):
    dtype = dtypes.float8_e4m3fn
    x = np.array([np.inf, -np.inf, np.nan, np.copysign(np.nan, -1), -0.0, 1e9], F32)
    found = bits(run(lambda x: B.cast(x, dtype), x))
    assert found == [0x7F, 0xFF, 0x7F, 0xFF, 0x80, 0x7F]


WIDER = [
    (small, wide)
    for small in dtypes.SMALL_FLOATS
    for wide in (dtypes.float16, dtypes.bfloat16, F32, F64)
    if (small, wide) != (dtypes.float8_e8m0fnu, dtypes.float16)  # of 5 exponent bits
]


@pytest.mark.parametrize(("dtype", "wide"), WIDER, ids=str)
def test_every_code_survives_a_wider_type(run, dtype, wide):
    x = codes(dtype)
    back = run(lambda x: B.cast(B.cast(x, wide), dtype), x)
    number = ~np.isnan(x.astype(F32))
    assert bits(back[number]) == bits(x[number])
    assert np.isnan(back[~number].astype(F32)).all()


def nearest_even(x: np.ndarray, dtype) -> np.ndarray:
    """Of the two codes around a number the nearer one, of two equally near ones the even one."""
    order = np.arange(1 << (dtypes.bit_width(dtype) - 1))
    values = codes(dtype)[order].astype(F64)
    order, values = order[np.isfinite(values)], values[np.isfinite(values)]
    above = np.searchsorted(values, x).clip(1, len(values) - 1)
    low, high = x - values[above - 1], values[above] - x
    up = (high < low) | ((high == low) & (order[above] % 2 == 0))
    return order[np.where(up, above, above - 1)]


@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_rounding_is_to_nearest_even_subnormals_included(run, dtype):
    values = np.unique(codes(dtype).astype(F64))
    values = values[np.isfinite(values) & (values >= 0)]
    middle = (values[1:] + values[:-1]) / 2
    near = [np.nextafter(middle.astype(F32), F32.type(s)).astype(F64) for s in (0, np.inf)]
    x = np.concatenate([values, middle, *near])
    for source in (F32, F64):
        found = run(lambda x: B.cast(x, dtype), x.astype(source))
        # from float64 by way of float32, where these numbers are exact
        np.testing.assert_array_equal(bits(found), nearest_even(x, dtype))


@pytest.mark.parametrize("dtype", [*dtypes.SMALL_FLOATS, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("op", [Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MAX, Op.MIN])
def test_arithmetic_is_float32_rounded_once(run, dtype, op):
    every = codes(dtype)
    every = every[np.random.default_rng(0).permutation(len(every))[:256]]
    x, y = np.repeat(every, len(every)), np.tile(every, len(every))
    function = {
        Op.ADD: np.add, Op.SUB: np.subtract, Op.MUL: np.multiply, Op.DIV: np.divide,
        Op.MAX: np.maximum, Op.MIN: np.minimum,
    }[op]  # fmt: skip
    with np.errstate(all="ignore"):
        exact = function(x.astype(F32), y.astype(F32))
        expected = exact.astype(dtype)
    found = run(lambda x, y: UOp(op, (x, y)), x, y)
    nan = np.isnan(exact)
    keep = ~nan
    if op in (Op.MAX, Op.MIN):  # which zero NumPy gives is not defined
        keep &= exact != 0
    assert bits(found[keep]) == bits(expected[keep])
    lost = found[nan].astype(F32)
    assert np.isnan(lost).all() if dtypes.bit_width(dtype) >= 8 else not lost.any()


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_limits_are_those_of_ml_dtypes(dtype):
    ours, theirs = jnp.finfo(dtype), ml_dtypes.finfo(dtype)
    for field in ("max", "min", "eps", "tiny", "smallest_subnormal", "bits", "nmant", "nexp"):
        assert getattr(ours, field) == getattr(theirs, field), field


@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_extremes_and_order_are_those_of_the_values(run, dtype):
    x = codes(dtype)
    x = x[~np.isnan(x.astype(F32))]
    x = x[np.random.default_rng(1).permutation(len(x))]
    order = np.sort(x.astype(F32))
    for kind, want in (("max", order[-1]), ("min", order[0])):
        assert float(run(lambda x: B.reduce(kind, x, [0]), x)) == want
    found = run(lambda x: B.sort([x], 0, 1)[0], x)
    np.testing.assert_array_equal(found.astype(F32), order)


@pytest.mark.parametrize(("kind", "value"), [("max", False), ("min", True)])
def test_the_extremes_of_no_bools(run, kind, value):
    empty = np.zeros((2, 0), np.bool_)
    assert run(lambda x: B.reduce(kind, x, [1]), empty).tolist() == [value] * 2


@pytest.mark.parametrize("dtype", (*dtypes.UNSIGNED, *dtypes.SIGNED), ids=str)
@pytest.mark.parametrize("jit", [False, True])
def test_clipping_integers_to_their_own_limits_changes_nothing(dtype, jit):
    info = dtypes.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    values = sorted({low, low + 1, 0, high - 1, high})
    x = np.array(values, np.uint64 if low == 0 else np.int64)
    with tinyjax.enable_x64(True):
        clip = tinyjax.jit(jnp.clip) if jit else jnp.clip
        top = np.uint64(high) if high >= 1 << 63 else high  # no Python int is that large
        found = clip(jnp.asarray(x.astype(dtype)), low, top)
        assert found.dtype == dtype
        assert [int(v) for v in found] == values
