"""SORT: compiled and interpreted against each other and against NumPy's stable order."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.lowering.bodies import arg, run
from tinyjax.core import build as B
from tinyjax.core.uop import tuple_of
from tinyjax.lowering.program import lower
from tinyjax.lowering.sort import INSERTION, parts_of, sort_keys

DTYPES = [
    "bool", "uint8", "int8", "int16", "uint32", "int32", "int64", "uint64", "float32", "float64",
    "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "complex64",
]  # fmt: skip


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def some(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Values with ties; for floats NaN, infinities and zeros of both signs."""
    rng = np.random.default_rng(7)
    x = (rng.normal(size=shape) * 3).astype(np.float32)
    if dtype.kind in "iub":
        return x.astype(np.int64).astype(dtype)
    flat = x.reshape(-1)
    flat[::5], flat[1::7], flat[2::7], flat[3::11] = np.nan, -0.0, 0.0, -np.inf
    if dtype.kind == "c":
        made = np.empty(shape, dtype)
        made.real, made.imag = np.round(x), np.round(x[::-1])
        return made
    return x.astype(dtype)


def sorted_by(arrays: list[np.ndarray], axis: int, num_keys: int) -> list[np.ndarray]:
    """Compiled result, after checking that the interpreter gives the same bits."""
    params = [arg(i, a.shape, a.dtype) for i, a in enumerate(arrays)]
    low = lower(tuple_of(B.sort(params, axis, num_keys)), len(arrays))
    found = run(low, arrays)
    for fast, slow in zip(found, low.interpret(arrays), strict=True):
        assert fast.tobytes() == slow.tobytes()
    return found


@pytest.mark.parametrize("length", [1, 2, INSERTION, INSERTION + 1, 300])
@pytest.mark.parametrize("name", DTYPES)
def test_sorting_is_stable_with_nan_last(name, length):
    dtype = dtype_of(name)
    x = some(dtype, (3, length))
    places = np.tile(np.arange(length, dtype=np.int32), (3, 1))
    values, order = sorted_by([x, places], 1, 1)
    assert values.tobytes() == np.take_along_axis(x, order, 1).tobytes()
    wide = x.astype(
        np.complex128 if dtype.kind == "c" else object if dtype.itemsize == 8 else np.float64
    )
    for row, picked in zip(wide, order):
        if dtype.kind == "c":
            keys = [(bool(v.real != v.real), v.real, bool(v.imag != v.imag), v.imag) for v in row]
            keys = [tuple(0 if c != c else c + 0 for c in k) for k in keys]
        else:
            keys = [(True, 0) if v != v else (False, v + 0) for v in row]
        assert picked.tolist() == sorted(range(length), key=lambda i, k=keys: k[i])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_any_axis(axis):
    x = np.random.default_rng(0).normal(size=(6, 50, 5)).astype(np.float32)
    np.testing.assert_array_equal(sorted_by([x], axis, 1)[0], np.sort(x, axis))


def test_several_keys_are_lexicographic():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 3, size=(4, 60)).astype(np.int32)
    b = rng.integers(0, 3, size=(4, 60)).astype(np.float32)
    c = np.tile(np.arange(60, dtype=np.int16), (4, 1))
    first, second, place = sorted_by([a, b, c], 1, 2)
    for i in range(4):
        wanted = sorted(range(60), key=lambda j, i=i: (a[i, j], b[i, j]))
        assert place[i].tolist() == wanted
        np.testing.assert_array_equal(first[i], a[i][wanted])
        np.testing.assert_array_equal(second[i], b[i][wanted])


def test_many_rows_are_shared_out_in_fixed_blocks():
    x = np.random.default_rng(0).normal(size=(1000, 7)).astype(np.float32)
    np.testing.assert_array_equal(sorted_by([x], 1, 1)[0], np.sort(x, 1))


def test_keys_order_extremes_of_integers():
    for name in ("int8", "int64", "uint64"):
        info = np.iinfo(name)
        x = np.array([info.max, 0, info.min], name)
        (key,) = sort_keys(x)
        assert np.argsort(key, kind="stable").tolist() == np.argsort(x, kind="stable").tolist()
    assert [p.offset for p in parts_of(np.dtype(np.complex128))] == [0, 8]
