"""Copies equal their originals, of every size class of the copier and every layout."""

from __future__ import annotations

import numpy as np
import pytest

from tinyjax.core.memory import address
from tinyjax.runtime import buffers, transfer


@pytest.mark.parametrize(
    "nbytes",
    [0, 1, transfer.SHARED_BYTES - 1, transfer.SHARED_BYTES + 77, transfer.STREAMED_BYTES + 77],
)
def test_bytes_are_copied_and_nothing_else_is(nbytes):
    source = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    for shift in (0, 1):
        target = buffers.empty((nbytes + 100,), np.dtype(np.uint8))
        target[:] = 7
        transfer.copy_bytes(address(target) + shift, address(source), nbytes)
        np.testing.assert_array_equal(target[shift : shift + nbytes], source)
        assert (target[:shift] == 7).all() and (target[shift + nbytes :] == 7).all()


def test_snapshots_are_contiguous_whatever_the_original():
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    wide = np.arange(1 << 19, dtype=np.float32).reshape(512, 1024)
    frozen = base.copy()
    frozen.flags.writeable = False
    for array in (base, base.T, base[:, ::2], frozen, np.array(3.5), wide, wide.T, wide[:0]):
        copy = transfer.snapshot(array)
        np.testing.assert_array_equal(copy, array)
        assert copy.dtype == array.dtype and copy.flags.c_contiguous and copy.flags.writeable
        assert not np.shares_memory(copy, array)
        assert address(copy) % 64 == 0
