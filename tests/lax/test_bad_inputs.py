"""Arguments that fit nowhere: the class of the exception is JAX's, and the message names the argument,
what was given, and the user's line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.oracle import Case, raises, refuses

M = np.ones((2, 3), np.float32)
X = np.ones(3, np.float32)
CASES: dict[str, tuple[Case, str]] = {
    "axis that is no integer": (
        lambda J: J.lax.expand_dims(M, ("a",)),
        "each element of dimensions must be an integer, got 'a'",
    ),
    "axis out of range": (
        lambda J: J.lax.reduce_sum(M, (2,)),
        "axis 2 is out of bounds for array of dimension 2",
    ),
    "axis given twice": (
        lambda J: J.lax.reduce_max(M, (0, 0)),
        "duplicate value in 'axes' of reduction: (0, 0)",
    ),
    "no sequence": (
        lambda J: J.lax.broadcast(M, None),
        "sizes must be a sequence of integers, got None",
    ),
    "a shape of text": (lambda J: J.lax.broadcast_shapes("abc"), "got 'abc'"),
    "no sequence of arrays": (
        lambda J: J.lax.concatenate(None, 0),
        "concatenate expects a sequence of arrays, got None",
    ),
    "reversed twice": (
        lambda J: J.lax.rev(M, (0, 0)),
        "got dimensions (0, 0) for operand of shape (2, 3)",
    ),
    "no padding": (lambda J: J.lax.pad(M, 0.0, None), "padding_config must be a sequence of (low,"),
    "padding of one axis": (
        lambda J: J.lax.pad(M, 0.0, ((0, 0, 0),)),
        "for each axis of (2, 3)",
    ),
    "padding with an array": (lambda J: J.lax.pad(M, X, ()), "must be a scalar; got shape (3,)"),
    "slice of another rank": (
        lambda J: J.lax.dynamic_slice(M, (0, 0), (1,)),
        "one size for each axis of the operand of shape (2, 3), got (1,)",
    ),
    "dot of scalars": (lambda J: J.lax.dot(1.0, 2.0), "Incompatible shapes for dot: got () and ()"),
    "dot axis out of range": (
        lambda J: J.lax.dot_general(M, M, (((5,), (0,)), ((), ()))),
        "got contract (5,) and batch () for lhs of shape (2, 3)",
    ),
    "dot axis twice": (
        lambda J: J.lax.dot_general(M, M, (((0, 0), (0, 1)), ((), ()))),
        "to be distinct, got contract (0, 0)",
    ),
    "dot numbers": (lambda J: J.lax.dot_general(M, M, "abc"), "(lhs batch, rhs batch)), got 'abc'"),
    "batch_matmul of vectors": (
        lambda J: J.lax.batch_matmul(X, X),
        "must be at least 2D and have same ndim, got 1, 1",
    ),
    "precision": (lambda J: J.lax.dot(X, X, precision="sharp"), "got 'sharp'"),
    "groups of features": (
        lambda J: J.lax.conv_general_dilated(
            M[None], M[None], (1,), "SAME", feature_group_count=0
        ),
        "must be positive integers, got 0 and 1",
    ),
    "padding that is none": (
        lambda J: J.lax.conv(M[None], M[None], (1,), None),
        "padding must be a string or a sequence of (low, high) pairs, got None",
    ),
    "sort of two shapes": (
        lambda J: J.lax.sort((M, X)),
        "must have equal shapes, got: (2, 3), (3,)",
    ),
    "keys of a sort": (
        lambda J: J.lax.sort((X, X), num_keys=3),
        "num_keys=3 must be from 1 to the number of operands, 2",
    ),
    "no key": (lambda J: J.lax.sort(X, num_keys=0), "num_keys=0"),
    "k": (lambda J: J.lax.top_k(X, 1.5), "k must be an integer, got 1.5"),
    "approximate k": (
        lambda J: J.lax.approx_max_k(X, 4),
        "got 4 for shape (3,)",
    ),
    "bits": (lambda J: J.lax.reduce_precision(X, 0, 3), "exponent_bits must be positive"),
    "argmax of nothing": (
        lambda J: J.lax.argmax(X[:0], 0, np.int32),
        "non-empty reduced dimension, got axis 0 of shape (0,)",
    ),
    "index dtype": (
        lambda J: J.lax.argmin(X, 0, np.float32),
        "index_dtype must be an integer type, but got float32",
    ),
    "array as dtype": (lambda J: J.lax.iota(X, 3), "instead of dtype=x use dtype=x.dtype"),
    "indices of floats": (
        lambda J: J.lax.gather(
            X, X[:, None], J.lax.GatherDimensionNumbers((), (0,), (0,)), slice_sizes=(1,)
        ),
        "indices must have an integer type, got f32[3,1]",
    ),
    "map of no function": (lambda J: J.lax.map(None, X), "f argument should be callable"),
    "branches": (lambda J: J.lax.switch(0, None), "switch branches must be a sequence of functions"),
    "no leaf": (lambda J: J.lax.stop_gradient({"a": "text"}), "'text' of type <class 'str'>"),
    "exponent": (lambda J: J.lax.integer_pow(M, None), "y must be an integer, got None"),
    "unroll": (
        lambda J: J.lax.scan(lambda c, x: (c, x), 0.0, X, unroll=-1),
        "`unroll` must be a bool or a non-negative int, got -1",
    ),
    "transform": (lambda J: J.lax.fft(X, 3, (3,)), "Unknown FFT type value 3; use lax.FftType"),
    "transform of a name": (lambda J: J.lax.fft(X, "DCT", (3,)), "use one of FFT, IFFT, RFFT, IRFFT"),
    "length of a transform": (
        lambda J: J.lax.fft(X, "FFT", (4,)),
        "FFT input shape (3,) minor dimensions must be equal to fft_lengths (4,)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_bad_argument_is_named(name: str):
    refuses(*CASES[name], __file__)


def test_a_weird_argument_of_a_function_without_a_check_is_shown_with_the_call():
    message = str(raises(lambda J: J.lax.round(M, None)))
    assert "in round(x = f32[2,3], rounding_method = None)" in message


def test_arrays_are_joined_by_rows():
    import tinyjax

    joined: Any = tinyjax.lax.concatenate(tinyjax.numpy.ones((2, 2)), 0)
    assert joined.shape == (4,)
