"""Functions of functions, files and scalar types."""

from __future__ import annotations

from typing import Any

import numpy

import tinyjax.numpy as np


def test_ufunc_methods() -> None:
    v = np.array([3.0, 1.0, 2.0])
    assert float(np.add.reduce(v)) == 6.0
    assert np.array_equal(np.maximum.accumulate(v), np.array([3.0, 3.0, 3.0]))
    assert np.array_equal(np.multiply.outer(v, v), np.outer(v, v))
    assert np.array_equal(
        np.add.at(v, np.array([0, 0]), 1.0, inplace=False), np.array([5.0, 1.0, 2.0])
    )
    assert np.array_equal(np.subtract.reduce(v), 3.0 - 1.0 - 2.0)
    assert np.array_equal(np.add.reduceat(v, np.array([0, 2])), np.array([4.0, 2.0]))
    assert bool(np.logical_and.reduce(v > 0))
    own = np.frompyfunc(lambda a, b: a * b + 1, 2, 1, identity=0)
    assert float(own.reduce(v)) == ((0 * 3 + 1) * 1 + 1) * 2 + 1


def test_vectorize_maps_over_broadcast_axes_and_keeps_core_dimensions() -> None:
    matrices, vectors = np.ones((4, 1, 2, 3)), np.arange(15.0).reshape(5, 3)
    product = np.vectorize(lambda m, v: m @ v, signature="(m,n),(n)->(m)")(matrices, vectors)
    assert product.shape == (4, 5, 2)
    assert np.array_equal(product, np.matmul(matrices, vectors[..., None])[..., 0])
    excluded = np.vectorize(lambda v, power: v**power, excluded={1})
    assert np.array_equal(excluded(vectors, 2), vectors**2)
    bare = np.vectorize(lambda v, power, scale=None: (v, power, scale)[0] * 2)
    assert np.array_equal(bare(vectors, None, scale=None), vectors * 2)


def test_files_keep_dtypes(tmp_path: Any) -> None:
    for dtype in ("float32", "bfloat16", "float8_e4m3fn", "int8"):
        value = np.arange(3).astype(dtype)
        np.save(tmp_path / "value.npy", value)
        back = np.load(tmp_path / "value.npy")
        assert back.dtype == value.dtype
        assert np.array_equal(back.astype("float32"), value.astype("float32"))


def test_scalar_types_are_dtypes_and_make_arrays() -> None:
    assert np.float32 == numpy.dtype("float32") and np.float32 == numpy.float32
    assert hash(np.float32) == hash(numpy.float32)
    assert np.zeros(2, np.bfloat16).dtype == np.bfloat16
    assert np.float32(3).dtype == numpy.float32 and not np.float32(3).weak_type
    assert numpy.dtype(np.int8) == numpy.int8
    assert isinstance(numpy.float32(1), np.float32) and not isinstance(np.float32(1), np.float32)
