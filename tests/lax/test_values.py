"""Every function of `tinyjax.lax` gives what `jax.lax` gives: values, shapes, dtypes, weak
types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.oracle import Case, check, numbers, x64

X = numbers(2, 3)
Y = numbers(2, 3, seed=1)
P = np.abs(X) + np.float32(0.1)
U = np.clip(X, -0.9, 0.9)
C = numbers(2, 3, dtype=np.complex64)
D = numbers(2, 3, dtype=np.complex64, seed=5)
I = numbers(2, 3, dtype=np.int32, low=-9, high=9)
K = numbers(2, 3, dtype=np.int32, low=1, high=7, seed=3)
W = np.asarray(I & 255, np.uint8)
B = X > 0
# Without subnormals, which XLA flushes to zero and we keep.
EDGE = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-30, 1e30], np.float32)
V = numbers(7, seed=2)
M = numbers(4, 5, seed=4)
T = numbers(2, 3, 4, seed=6)
H = X.astype(ml_dtypes.bfloat16)
E = X.astype(ml_dtypes.float8_e4m3fn)

FLOAT_UNARY = (
    "neg sign floor ceil exp exp2 expm1 log log1p sin cos tan asin acos atan sinh cosh tanh asinh "
    "acosh "
    "atanh logistic sqrt rsqrt cbrt abs is_finite erf erfc erf_inv lgamma digamma square "
    "reciprocal round "
    "bessel_i0e bessel_i1e"
).split()
COMPLEX_UNARY = (
    "neg sign exp expm1 log log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "logistic "
    "sqrt rsqrt abs real imag conj square reciprocal"
).split()
INT_UNARY = "neg sign abs bitwise_not population_count clz square".split()
BINARY = "add sub mul div max min atan2 nextafter eq ne lt le gt ge rem pow".split()
INT_BINARY = (
    "add sub mul div rem max min bitwise_and bitwise_or bitwise_xor shift_left shift_right_logical "
    "shift_right_arithmetic eq ne lt le gt ge"
).split()

CASES: dict[str, Case] = {}


def add(name: str, case: Case) -> None:
    assert name not in CASES
    CASES[name] = case


for _n in FLOAT_UNARY:
    add(f"{_n} f32", lambda J, n=_n: getattr(J.lax, n)(X))
    if _n not in ("digamma", "lgamma"):
        add(f"{_n} edges", lambda J, n=_n: getattr(J.lax, n)(EDGE))
for _n in COMPLEX_UNARY:
    add(f"{_n} c64", lambda J, n=_n: getattr(J.lax, n)(C))
for _n in INT_UNARY:
    add(f"{_n} i32", lambda J, n=_n: getattr(J.lax, n)(I))
    if _n not in ("abs", "sign"):
        add(f"{_n} u8", lambda J, n=_n: getattr(J.lax, n)(W))
for _n in ("neg", "exp", "tanh", "floor", "sqrt", "logistic"):
    add(f"{_n} bf16", lambda J, n=_n: getattr(J.lax, n)(H))
    add(f"{_n} weak", lambda J, n=_n: getattr(J.lax, n)(0.75))
for _n in BINARY:
    add(f"{_n} f32", lambda J, n=_n: getattr(J.lax, n)(P if n == "pow" else X, Y))
    add(f"{_n} edges", lambda J, n=_n: getattr(J.lax, n)(EDGE[:, None], EDGE[None, :]))
    add(f"{_n} weak scalar", lambda J, n=_n: getattr(J.lax, n)(P, 2.0))
for _n in INT_BINARY:
    add(f"{_n} i32", lambda J, n=_n: getattr(J.lax, n)(I, K))
    add(f"{_n} u8", lambda J, n=_n: getattr(J.lax, n)(W, W >> 3))
for _n in ("add", "mul", "div", "pow", "eq", "max"):
    add(f"{_n} c64", lambda J, n=_n: getattr(J.lax, n)(C, D))
for _n in ("bitwise_and", "bitwise_or", "bitwise_xor", "eq", "max"):
    add(f"{_n} bool", lambda J, n=_n: getattr(J.lax, n)(B, ~B))
for _n in ("add", "mul", "max"):
    add(f"{_n} two weak", lambda J, n=_n: getattr(J.lax, n)(1.5, 2.5))
    add(f"{_n} bf16", lambda J, n=_n: getattr(J.lax, n)(H, H))

MORE: dict[str, Case] = {
    "mulhi": lambda J: J.lax.mulhi(I * 123456789, K * 987654321),
    "mulhi u32": lambda J: J.lax.mulhi((I * 123456789).astype(np.uint32), np.uint32(4000000000)),
    "pow integer exponent": lambda J: J.lax.pow(X, I),
    "pow weak base": lambda J: J.lax.pow(2.0, X),
    "integer_pow 3": lambda J: J.lax.integer_pow(X, 3),
    "integer_pow -2": lambda J: J.lax.integer_pow(X, -2),
    "integer_pow 0": lambda J: J.lax.integer_pow(I, 0),
    "round even": lambda J: J.lax.round(np.array([0.5, 1.5, 2.5, -0.5], np.float32), 1),
    "round away": lambda J: J.lax.round(np.array([0.5, 1.5, 2.5, -0.5, 0.49999997], np.float32)),
    "round enum": lambda J: J.lax.round(X, J.lax.RoundingMethod.TO_NEAREST_EVEN),
    "clamp": lambda J: J.lax.clamp(-1.0, X, 0.5),
    "clamp arrays": lambda J: J.lax.clamp(U - 1, X, U),
    "clamp nan": lambda J: J.lax.clamp(0.0, EDGE, 1.0),
    "select": lambda J: J.lax.select(B, X, Y),
    "select scalar": lambda J: J.lax.select(True, X, Y),
    "select_n bool": lambda J: J.lax.select_n(B, X, Y),
    "select_n int": lambda J: J.lax.select_n(np.clip(I, 0, 2), X, Y, P),
    "complex": lambda J: J.lax.complex(X, Y),
    "conj real": lambda J: J.lax.conj(X),
    "real": lambda J: J.lax.real(C),
    "imag": lambda J: J.lax.imag(C),
    "convert float": lambda J: J.lax.convert_element_type(I, float),
    "convert int": lambda J: J.lax.convert_element_type(EDGE, np.int32),
    "convert u8": lambda J: J.lax.convert_element_type(X * 300, np.uint8),
    "convert bool": lambda J: J.lax.convert_element_type(EDGE, bool),
    "convert bf16": lambda J: J.lax.convert_element_type(X, J.numpy.bfloat16),
    "convert weak": lambda J: J.lax.convert_element_type(1.5, np.float32),
    "convert int4": lambda J: J.lax.convert_element_type(I, J.numpy.int4),
    "bitcast same": lambda J: J.lax.bitcast_convert_type(X, np.int32),
    "bitcast narrow": lambda J: J.lax.bitcast_convert_type(X, np.uint8),
    "bitcast wide": lambda J: J.lax.bitcast_convert_type(W[:, :2], np.uint16),
    "reduce_precision": lambda J: J.lax.reduce_precision(X, 5, 7),
    "erf bf16": lambda J: J.lax.erf(H),
    "igamma": lambda J: J.lax.igamma(P * 3, np.abs(Y) * 2),
    "igamma edges": lambda J: (
        J.lax.igamma(np.float32([1, 0, -1, 2, 3, np.nan]), np.float32([0, 1, 1, np.inf, -1, 1]))
    ),
    "igammac": lambda J: J.lax.igammac(P * 3, np.abs(Y) * 2),
    "igammac large": lambda J: J.lax.igammac(P * 30, P * 40),
    "igamma_grad_a": lambda J: J.lax.igamma_grad_a(P * 3, np.abs(Y) * 2),
    "random_gamma_grad": lambda J: J.lax.random_gamma_grad(P * 3, np.abs(Y) * 2 + np.float32(0.1)),
    "betainc": lambda J: J.lax.betainc(P, P + 1, (U + 1) / 2),
    "zeta": lambda J: J.lax.zeta(P + 1.5, np.abs(Y) + 1),
    "polygamma": lambda J: J.lax.polygamma(np.float32([[1, 2, 3], [1, 1, 2]]), P + 1),
    "polygamma 0": lambda J: J.lax.polygamma(np.float32([0, 0, 1]), np.float32([1.5, 2.5, 3.5])),
    # shapes
    "reshape": lambda J: J.lax.reshape(X, (3, 2)),
    "reshape dimensions": lambda J: J.lax.reshape(X, (6,), (1, 0)),
    "broadcast": lambda J: J.lax.broadcast(X, (4, 1)),
    "broadcast_in_dim": lambda J: J.lax.broadcast_in_dim(X, (2, 5, 3), (0, 2)),
    "broadcast_in_dim weak": lambda J: J.lax.broadcast_in_dim(1.0, (2,), ()),
    "broadcast_shapes": lambda J: J.lax.broadcast_shapes((2, 1), (3,), (1, 1, 1)),
    "broadcast_to_rank": lambda J: J.lax.broadcast_to_rank(X, 4),
    "transpose": lambda J: J.lax.transpose(T, (2, 0, 1)),
    "squeeze": lambda J: J.lax.squeeze(X[None, :, None], (0, -2)),
    "expand_dims": lambda J: J.lax.expand_dims(X, (0, -1)),
    "collapse": lambda J: J.lax.collapse(T, 0, 2),
    "collapse rest": lambda J: J.lax.collapse(T, 1),
    "slice": lambda J: J.lax.slice(M, (1, 0), (4, 5), (2, 3)),
    "slice_in_dim": lambda J: J.lax.slice_in_dim(M, 1, -1, 2, 1),
    "slice_in_dim None": lambda J: J.lax.slice_in_dim(M, None, None),
    "index_in_dim": lambda J: J.lax.index_in_dim(M, -1, 1, False),
    "dynamic_slice": lambda J: J.lax.dynamic_slice(M, (1, 3), (2, 2)),
    "dynamic_slice clamped": lambda J: J.lax.dynamic_slice(M, (9, -2), (2, 2)),
    "dynamic_slice array": lambda J: J.lax.dynamic_slice(M, np.array([1, 2]), (2, 2)),
    "dynamic_slice_in_dim": lambda J: J.lax.dynamic_slice_in_dim(M, 2, 2, 1),
    "dynamic_index_in_dim": lambda J: J.lax.dynamic_index_in_dim(M, 2, 1, False),
    "dynamic_update_slice": lambda J: J.lax.dynamic_update_slice(M, M[:2, :2] * 9, (3, 1)),
    "dynamic_update_slice_in_dim": lambda J: J.lax.dynamic_update_slice_in_dim(M, M[:2], 1, 0),
    "dynamic_update_index_in_dim": lambda J: J.lax.dynamic_update_index_in_dim(M, V[:5], 2, 0),
    "concatenate": lambda J: J.lax.concatenate([X, Y, X], 1),
    "concatenate weak": lambda J: (
        J.lax.concatenate([J.lax.full((2,), 1.0), J.lax.full((2,), 2.0)], 0)
    ),
    "pad": lambda J: J.lax.pad(X, 7.0, ((1, 2, 0), (0, -1, 2))),
    "rev": lambda J: J.lax.rev(T, (0, 2)),
    "iota": lambda J: J.lax.iota(np.float32, 5),
    "iota int": lambda J: J.lax.iota(int, 5),
    "broadcasted_iota": lambda J: J.lax.broadcasted_iota(np.uint8, (2, 3), 1),
    "full": lambda J: J.lax.full((2, 2), 3.5),
    "full dtype": lambda J: J.lax.full((2, 2), 3.5, np.int32),
    "full_like": lambda J: J.lax.full_like(X, 2),
    "full_like shape": lambda J: J.lax.full_like(I, 2.5, np.float32, (3,)),
    "full_like weak": lambda J: J.lax.full_like(J.numpy.asarray(1.0), 2),
    "empty": lambda J: J.lax.empty((2, 3), np.float32).shape,
    "split": lambda J: J.lax.split(M, (2, 3), 1),
    "stack": lambda J: J.lax.stack([X, Y], 1),
    "unstack": lambda J: J.lax.unstack(X, 1),
    "tile": lambda J: J.lax.tile(X, (2, 2)),
    "broadcast_like": lambda J: J.lax.broadcast_like(X[:1], Y),
    "shape_as_value": lambda J: J.lax.shape_as_value((2, 3)),
    "dtype": lambda J: J.lax.dtype(X),
    "padtype_to_pads": lambda J: J.lax.padtype_to_pads((8, 9), (3, 2), (2, 3), "SAME"),
    "conv_shape_tuple": lambda J: (
        J.lax.conv_shape_tuple((2, 3, 8, 8), (5, 3, 3, 3), (1, 2), "VALID")
    ),
    "conv_general_shape_tuple": lambda J: J.lax.conv_general_shape_tuple(
        (2, 8, 8, 3), (3, 3, 3, 5), (1, 2), "SAME", ("NHWC", "HWIO", "NHWC")
    ),
    "conv_transpose_shape_tuple": lambda J: J.lax.conv_transpose_shape_tuple(
        (2, 8, 8, 3), (3, 3, 3, 5), (2, 2), "SAME", ("NHWC", "HWIO", "NHWC")
    ),
    "conv_general_permutations": lambda J: (
        J.lax.conv_general_permutations(("NHWC", "HWIO", "NCHW"))
    ),
    "reduce_window_shape_tuple": lambda J: J.lax.reduce_window_shape_tuple(
        (7, 8), (2, 3), (1, 2), ((0, 1), (1, 1))
    ),
    "optimization_barrier": lambda J: J.lax.optimization_barrier({"a": X, "b": I}),
    # reductions
    "reduce_sum": lambda J: J.lax.reduce_sum(T, (0, 2)),
    "reduce_prod": lambda J: J.lax.reduce_prod(T, (1,)),
    "reduce_max": lambda J: J.lax.reduce_max(T, (2,)),
    "reduce_min": lambda J: J.lax.reduce_min(T, (0,)),
    "reduce_and": lambda J: J.lax.reduce_and(B, (0,)),
    "reduce_or": lambda J: J.lax.reduce_or(I, (1,)),
    "reduce_xor": lambda J: J.lax.reduce_xor(I, (1,)),
    "reduce_max nan": lambda J: J.lax.reduce_max(EDGE, (0,)),
    "reduce_sum bf16": lambda J: J.lax.reduce_sum(H, (0, 1)),
    "reduce add": lambda J: J.lax.reduce(X, np.float32(1), J.lax.add, (0,)),
    "reduce max": lambda J: J.lax.reduce(X, np.float32(0), J.lax.max, (0, 1)),
    "reduce lambda": lambda J: J.lax.reduce(P, np.float32(1), lambda a, b: a * b, (1,)),
    "reduce pair": lambda J: J.lax.reduce(
        (X, I), (np.float32(-9), np.int32(0)),
        lambda a, b: tuple(J.lax.select(a[0] > b[0], p, q) for p, q in zip(a, b)), (1,)
    ),
    "argmax": lambda J: J.lax.argmax(T, 1, np.int32),
    "argmin": lambda J: J.lax.argmin(T, 2, np.int32),
    "argmax nan": lambda J: J.lax.argmax(EDGE, 0, np.int32),
    "cumsum": lambda J: J.lax.cumsum(T, 1),
    "cumsum reverse": lambda J: J.lax.cumsum(T, 2, reverse=True),
    "cumprod": lambda J: J.lax.cumprod(T, 0),
    "cummax": lambda J: J.lax.cummax(T, 2),
    "cummin reverse": lambda J: J.lax.cummin(T, 2, reverse=True),
    "cumlogsumexp": lambda J: J.lax.cumlogsumexp(T, 2),
    "cumlogsumexp reverse": lambda J: J.lax.cumlogsumexp(V, 0, reverse=True),
    "sort": lambda J: J.lax.sort(T, 1),
    "sort edges": lambda J: J.lax.sort(EDGE),
    "sort several": lambda J: J.lax.sort((K, I, X), num_keys=2),
    "sort_key_val": lambda J: J.lax.sort_key_val(K, X),
    "sort complex": lambda J: J.lax.sort(C),
    "top_k": lambda J: J.lax.top_k(M, 2),
    "top_k ties": lambda J: J.lax.top_k(np.array([1, 3, 3, 2, 3], np.float32), 4),
    "top_k axis": lambda J: J.lax.top_k(M, 2, axis=0),
    "top_k nan": lambda J: J.lax.top_k(EDGE, 4),
    "approx_max_k": lambda J: J.lax.approx_max_k(M, 2),
    "approx_min_k": lambda J: J.lax.approx_min_k(M, 2),
    "associative_scan": lambda J: J.lax.associative_scan(J.lax.add, V),
    "associative_scan reverse": lambda J: (
        J.lax.associative_scan(J.lax.mul, M, reverse=True, axis=1)
    ),
    "associative_scan tree": lambda J: J.lax.associative_scan(
        lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (V, V * 2)
    ),
    "reduce_window max": lambda J: J.lax.reduce_window(
        M, -np.inf, J.lax.max, (2, 2), (1, 2), "SAME"
    ),
    "reduce_window sum dilated": lambda J: J.lax.reduce_window(
        M, 0.0, J.lax.add, (2, 2), (1, 1), ((1, 0), (0, 1)), (2, 1), (1, 2)
    ),
    "reduce_window other": lambda J: (
        J.lax.reduce_window(M, 1.0, J.lax.mul, (2, 1), (1, 1), "VALID")
    ),
    "fft": lambda J: J.lax.fft(C, "FFT", (3,)),
    "fft enum": lambda J: J.lax.fft(C, J.lax.FftType.IFFT, (3,)),
    "rfft": lambda J: J.lax.fft(T, J.lax.FftType.RFFT, (3, 4)),
    "irfft": lambda J: J.lax.fft(C, J.lax.FftType.IRFFT, (4,)),
    # contractions
    "dot vv": lambda J: J.lax.dot(V, V),
    "dot mv": lambda J: J.lax.dot(M, M[0]),
    "dot mm": lambda J: J.lax.dot(M, M.T),
    "dot int": lambda J: J.lax.dot(I, I.T),
    "dot preferred": lambda J: J.lax.dot(H, H.T, preferred_element_type=np.float32),
    "dot_general": lambda J: J.lax.dot_general(T, T, (((2,), (2,)), ((0,), (0,)))),
    "dot_general outer": lambda J: J.lax.dot_general(V, V, (((), ()), ((), ()))),
    "dot_general bf16": lambda J: J.lax.dot_general(H, H, (((1,), (1,)), ((), ()))),
    "dot_general mixed": lambda J: J.lax.dot_general(H, X, (((1,), (1,)), ((), ()))),
    "dot_general bool": lambda J: J.lax.dot_general(B, B, (((1,), (1,)), ((), ()))),
    "dot_general f8": lambda J: J.lax.dot_general(
        E, E, (((1,), (1,)), ((), ())), preferred_element_type=np.float32
    ),
    "batch_matmul": lambda J: J.lax.batch_matmul(T, np.swapaxes(T, 1, 2)),
    "ragged_dot": lambda J: J.lax.ragged_dot(
        numbers(6, 3), numbers(3, 3, 4), np.array([2, 1, 3], np.int32)
    ),
    "ragged_dot short": lambda J: J.lax.ragged_dot(
        numbers(6, 3), numbers(3, 3, 4), np.array([2, 0, 3], np.int32)
    ),
    # gather, scatter
    "gather": lambda J: J.lax.gather(
        M, np.array([[1], [3], [9]]), J.lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 5)
    ),
    "gather clip": lambda J: J.lax.gather(
        M, np.array([[1], [9]]), J.lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 5), mode="clip"
    ),
    "gather fill value": lambda J: J.lax.gather(
        I, np.array([[1], [9]]), J.lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 3),
        mode="fill", fill_value=-7,
    ),
    "gather batching": lambda J: J.lax.gather(
        T, np.array([[[1], [2]], [[0], [1]]]),
        J.lax.GatherDimensionNumbers((2,), (1,), (1,), (0,), (0,)), (1, 1, 4),
    ),
    "index_take": lambda J: J.lax.index_take(M, (np.array([0, 2]), np.array([1, 4])), (0, 1)),
}  # fmt: skip
for _n, _c in MORE.items():
    add(_n, _c)

_DN = {1: ("NCH", "OIH", "NCH"), 2: ("NHWC", "HWIO", "NHWC")}
L1, R1 = numbers(2, 4, 9), numbers(6, 4, 3, seed=1)
L2, R2 = numbers(2, 6, 7, 4), numbers(3, 2, 4, 6, seed=1)
CONVOLUTIONS: dict[str, Case] = {
    "conv": lambda J: J.lax.conv(L1, R1, (2,), "SAME"),
    "conv_with_general_padding": lambda J: J.lax.conv_with_general_padding(
        L1, R1, (2,), ((1, 3),), (2,), (2,)
    ),
    "conv same_lower": lambda J: J.lax.conv_general_dilated(L1, R1, (2,), "SAME_LOWER"),
    "conv nhwc": lambda J: J.lax.conv_general_dilated(
        L2, R2, (1, 2), "SAME", dimension_numbers=_DN[2]
    ),
    "conv mixed layout": lambda J: J.lax.conv_general_dilated(
        L2, R2, (1, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "CWHN")
    ),
    "conv dilated": lambda J: J.lax.conv_general_dilated(
        L2, R2, (1, 1), ((1, 2), (-1, 3)), (2, 1), (1, 3), _DN[2]
    ),
    "conv groups": lambda J: J.lax.conv_general_dilated(
        L2, R2[:, :, :2], (1, 1), "VALID", dimension_numbers=_DN[2], feature_group_count=2
    ),
    "conv depthwise": lambda J: J.lax.conv_general_dilated(
        L2, numbers(3, 2, 1, 8), (1, 1), "SAME", dimension_numbers=_DN[2], feature_group_count=4
    ),
    "conv batch groups": lambda J: J.lax.conv_general_dilated(
        L2, R2, (1, 1), "VALID", dimension_numbers=_DN[2], batch_group_count=2
    ),
    "conv 0d": lambda J: J.lax.conv_general_dilated(M, numbers(3, 5), (), ()),
    "conv bf16": lambda J: J.lax.conv_general_dilated(
        L1.astype(ml_dtypes.bfloat16), R1.astype(ml_dtypes.bfloat16), (1,), "VALID",
        preferred_element_type=np.float32,
    ),
    "conv_transpose same": lambda J: J.lax.conv_transpose(L2, R2, (2, 3), "SAME"),
    "conv_transpose valid": lambda J: J.lax.conv_transpose(L2, R2, (2, 3), "VALID"),
    "conv_transpose explicit": lambda J: J.lax.conv_transpose(
        L2, R2, (1, 2), ((1, 1), (0, 2)), rhs_dilation=(1, 2)
    ),
    "conv_transpose kernel": lambda J: J.lax.conv_transpose(
        L2, np.swapaxes(R2, 2, 3), (2, 2), "SAME", transpose_kernel=True
    ),
    "conv_transpose 1d": lambda J: J.lax.conv_transpose(
        numbers(2, 5, 3), numbers(4, 3, 2), (2,), "VALID"
    ),
    "conv patches": lambda J: J.lax.conv_general_dilated_patches(
        L1, (3,), (2,), "SAME", rhs_dilation=(2,)
    ),
    "conv patches nhwc": lambda J: J.lax.conv_general_dilated_patches(
        L2, (2, 2), (1, 2), "VALID", dimension_numbers=_DN[2]
    ),
    "conv local": lambda J: J.lax.conv_general_dilated_local(
        numbers(2, 3, 6), numbers(5, 6, 5), (1,), "VALID", (2,)
    ),
}  # fmt: skip
for _n, _c in CONVOLUTIONS.items():
    add(_n, _c)

SC = np.array([[1], [3], [1], [7]])
SU = numbers(4, 5, seed=9)
for _n in ("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "scatter_sub"):
    for _mode in (None, "clip"):
        add(
            f"{_n} {_mode}",
            lambda J, n=_n, mode=_mode: getattr(J.lax, n)(
                M, SC, SU, J.lax.ScatterDimensionNumbers((1,), (0,), (0,)), mode=mode
            ),
        )
add(
    "scatter_add window",
    lambda J: J.lax.scatter_add(
        M,
        np.array([[0, 1], [2, 3]]),
        numbers(2, 2, 2),
        J.lax.ScatterDimensionNumbers((1, 2), (), (0, 1)),
    ),
)
add(
    "scatter_apply",
    lambda J: J.lax.scatter_apply(
        M, SC[:2], J.lax.sin, J.lax.ScatterDimensionNumbers((1,), (0,), (0,)), update_shape=(2, 5)
    ),
)
# XLA:CPU's own approximations of these lose more than one or two ulps.
LOOSE = {
    "igamma": 3e-5, "igammac": 3e-5, "igammac large": 3e-5, "igamma_grad_a": 2e-4, "betainc": 3e-5,
    "random_gamma_grad": 2e-4, "zeta": 3e-5, "polygamma": 3e-5, "digamma f32": 2e-5,
    "lgamma f32": 2e-5,
    "erf_inv f32": 2e-5, "acosh c64": 2e-5, "asinh c64": 2e-5, "pow f32": 2e-5,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_jax(name: str) -> None:
    check(CASES[name], LOOSE.get(name))


X64 = [
    "add two weak", "full", "iota int", "convert float", "convert weak", "argmax", "igamma",
    "betainc",
    "polygamma", "zeta", "top_k", "exp weak", "random_gamma_grad", "select_n int",
    "dynamic_slice array", "cumlogsumexp", "mulhi",
]  # fmt: skip


@pytest.mark.parametrize("name", X64)
def test_values_are_those_of_jax_with_x64(name: str) -> None:
    with x64():
        check(CASES[name], LOOSE.get(name))


W64 = numbers(3, 4, dtype=np.float64)
CASES_64: dict[str, Case] = {
    f"{n} f64": lambda J, n=n: getattr(J.lax, n)(np.abs(W64) / 3 + 1e-3)
    for n in "exp log tanh erf erf_inv lgamma digamma sin expm1 cbrt bessel_i0e bessel_i1e".split()
}
CASES_64["igamma f64"] = lambda J: J.lax.igamma(np.abs(W64) * 5, np.abs(W64[:, ::-1]) * 5)
CASES_64["betainc f64"] = lambda J: J.lax.betainc(
    np.abs(W64) * 5, np.abs(W64[::-1]) * 5, np.abs(W64) / 3
)
CASES_64["dot f64"] = lambda J: J.lax.dot(W64, W64.T)


@pytest.mark.parametrize("name", CASES_64)
def test_float64_values_are_those_of_jax(name: str) -> None:
    with x64():
        check(CASES_64[name], 1e-11)
