"""`tinyjax.ops` against JAX's."""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax
from tests.oracle import check

IDS = np.int32([0, 2, 0, -1, 9, 3, 2])
ROWS = np.float32([[1, -2], [3, 4], [5, 0.5], [7, 7], [8, 8], [-1, 2], [0.25, 6]])
NAMES = ["segment_sum", "segment_prod", "segment_max", "segment_min"]


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_segments_are_those_of_jax(name, dtype):
    data = (
        np.abs(ROWS).astype(dtype) if dtype == "uint8" else ROWS.astype(tinyjax.numpy.dtype(dtype))
    )
    check(lambda J: getattr(J.ops, name)(data, IDS, num_segments=5))
    check(lambda J: getattr(J.ops, name)(data, IDS, 5, bucket_size=3))
    check(lambda J: getattr(J.ops, name)(data[:, 0], np.abs(IDS)))


def test_segments_under_transformations():
    check(lambda J: J.jit(J.grad(lambda x: (J.ops.segment_sum(x, IDS, 4) ** 2).sum()))(ROWS))
    check(lambda J: J.vmap(lambda x: J.ops.segment_max(x, IDS, 4), 1, 1)(ROWS))


def test_the_number_of_segments_must_be_known():
    with pytest.raises(tinyjax.errors.ConcretizationTypeError, match="Pass num_segments="):
        tinyjax.jit(tinyjax.ops.segment_sum)(ROWS, IDS)
    with pytest.raises(ValueError, match="non-negative"):
        tinyjax.ops.segment_sum(ROWS, IDS, -1)
