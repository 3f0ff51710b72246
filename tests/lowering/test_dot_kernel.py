"""Contraction groups: prologues, epilogues and windows evaluated inside the nest, every dtype."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.lowering.bodies import arg, normal, run, scalar
from tinyjax.core import build as B
from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, tuple_of
from tinyjax.interpreters.evaluate import evaluate_body
from tinyjax.lowering import program
from tinyjax.lowering.program import Lowered, lower
from tinyjax.lowering.target import host
from tinyjax.runtime import cpu, loader

Array = np.ndarray[Any, Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = [(13, 33, 70), (40, 600, 35), (3, 50, 300), (50, 40, 2), (97, 1100, 65)]


def compiled(*outputs: UOp, inputs: int) -> Lowered:
    return lower(tuple_of(list(outputs)), inputs)


def kinds(low: Lowered) -> list[str]:
    return [g.kind for g in low.groups]


def near(got: Array, want: Array, tolerance: float = 3e-6) -> None:
    got, want = got.astype(np.float64), want.astype(np.float64)
    scale = np.abs(want[np.isfinite(want)]).max(initial=1.0)
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale)


def row(x: UOp, like: UOp) -> UOp:
    """A bias, repeated over rows."""
    return B.expand(x, like.shape, (like.ndim - 1,))


def cast(x: UOp, dtype: Any) -> UOp:
    return UOp(Op.CAST, (x,), (np.dtype(dtype), False))


def gelu(x: UOp) -> UOp:
    cube = B.mul(B.mul(x, x), x)
    inner = B.mul(scalar(0.7978846), B.add(x, B.mul(scalar(0.044715), cube)))
    return B.mul(B.mul(scalar(0.5), x), B.add(scalar(1.0), B.tanh(inner)))


EPILOGUES = {
    "bias": lambda x, bias, other: B.add(x, row(bias, x)),
    "bias relu": lambda x, bias, other: B.max_(B.add(x, row(bias, x)), scalar(0.0)),
    "bias gelu": lambda x, bias, other: gelu(B.add(x, row(bias, x))),
    "residual": lambda x, bias, other: B.add(other, B.mul(x, scalar(0.5))),
    "cast": lambda x, bias, other: cast(B.add(x, row(bias, x)), BFLOAT16),
    "tanh of all": lambda x, bias, other: B.tanh(B.add(B.mul(x, scalar(0.1)), other)),
}


# ---------------------------------------------------------------------------------------- epilogues


@pytest.mark.parametrize(
    ("name", "shape"),
    [(n, s) for n in EPILOGUES for s in (SHAPES if n == "bias gelu" else SHAPES[1::2])],
)
def test_an_elementwise_tail_is_one_kernel_with_its_product(
    name: str, shape: tuple[int, int, int]
) -> None:
    m, k, n = shape
    x, w, bias, other = arg(0, (m, k)), arg(1, (k, n)), arg(2, (n,)), arg(3, (m, n))
    out = EPILOGUES[name](B.dot(x, w, ((1,), (0,))), bias, other)
    low = compiled(out, inputs=4)
    assert kinds(low) == ["contraction"] and low.plan.arena_bytes == 0
    args = [normal(i, *s) for i, s in enumerate(((m, k), (k, n), (n,), (m, n)))]
    wide = [a.astype(np.float64) for a in args]
    product = wide[0] @ wide[1]
    tail = tuple_of([EPILOGUES[name](arg(0, (m, n)), arg(1, (n,)), arg(2, (m, n)))])
    (want,) = evaluate_body(tail, [product.astype(np.float32), *args[2:]])
    near(run(low, args)[0], want, 2**-7 if name == "cast" else 2e-5)


def test_a_long_epilogue_is_a_function_of_its_own() -> None:
    """Its literals would otherwise be hoisted into the registers that the tile needs."""
    x, w = arg(0, (64, 300)), arg(1, (300, 128))
    (kernel,) = compiled(gelu(B.dot(x, w, ((1,), (0,)))), inputs=2).kernels
    text = kernel.codes(host())[-1].ir_text
    main, finish = text.split("define internal")
    assert "@k_finish" in finish and "fdiv" in finish and "fdiv" not in main


def test_special_values_pass_through_product_and_epilogue() -> None:
    """-0, infinities, NaN and subnormals: as the evaluator has them, element by element."""
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, -1.0], np.float32)
    x = np.zeros((len(special), 40), np.float32)
    x[:, 3] = special
    w = np.zeros((40, 33), np.float32)
    w[3] = np.where(np.arange(33) % 2, 1.0, -2.0)
    w[:, 32] = -0.0
    low_x, low_w, bias = arg(0, x.shape), arg(1, w.shape), arg(2, (33,))
    product = B.dot(low_x, low_w, ((1,), (0,)))
    outs = [B.max_(product, scalar(0.0)), B.add(product, row(bias, product))]
    body = tuple_of(outs)
    args = [x, w, np.full(33, -0.0, np.float32)]
    for got, want in zip(run(lower(body, 3), args), evaluate_body(body, args), strict=True):
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[want == 0]))


# ---------------------------------------------------------------------------------------- prologues


def where_positive(x: UOp, y: UOp) -> UOp:
    return UOp(
        Op.WHERE, (UOp(Op.CMPLT, (B.expand(scalar(0.0), x.shape, ()), x)), y, B.mul(y, scalar(0.0)))
    )


@pytest.mark.parametrize("shape", [*SHAPES, (200, 96, 1100)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_operands_are_evaluated_where_they_are_packed(
    shape: tuple[int, int, int], transposed: bool
) -> None:
    """relu's derivative on the left, dequantisation on the right; either may lie transposed."""
    m, k, n = shape
    left, right = ((k, m), (n, k)) if transposed else ((m, k), (k, n))
    x, ct = arg(0, left), arg(1, left)
    codes, scale = arg(2, right, np.int8), arg(3, (n,))
    a = where_positive(x, ct)
    b = cast(codes, np.float32)
    b = B.mul(b, B.expand(scale, right, (0 if transposed else 1,)))
    contract = ((0,), (1,)) if transposed else ((1,), (0,))
    out = B.dot(a, b, contract)
    low = compiled(out, inputs=4)
    small = min(m, n) <= 4
    assert kinds(low) == (["loop", "contraction"] if small else ["contraction"])
    rng = np.random.default_rng(0)
    args = [normal(0, *left), normal(1, *left), rng.integers(-99, 99, right).astype(np.int8)]
    args.append(normal(2, n))
    p = np.where(args[0] > 0, args[1], 0).astype(np.float64)
    q = args[2].astype(np.float64)
    q = q.T * args[3] if transposed else q * args[3]
    near(run(low, args)[0], (p.T if transposed else p) @ q)
    if m * n * k < 1 << 15:
        near(low.interpret(args)[0], (p.T if transposed else p) @ q)


def test_a_prologue_with_a_batch_that_is_split() -> None:
    x, y = arg(0, (2, 24, 3, 40)), arg(1, (2, 24, 3, 40))
    scaled = B.mul(x, scalar(0.125))
    out = B.dot(scaled, y, ((3,), (3,)), ((0, 2), (0, 2)))
    low = compiled(out, inputs=2)
    assert kinds(low) == ["contraction"]
    p, q = normal(0, 2, 24, 3, 40), normal(1, 2, 24, 3, 40)
    near(run(low, [p, q])[0], np.einsum("bihd,bjhd->bhij", p * 0.125, q))


# -------------------------------------------------------------------------------- one object each

Size = tuple[int, int, int]
LAYERS: list[Size] = [(300, 512, 200), (402, 768, 320), (600, 640, 384)]  # M, N, K
SCORES: list[Size] = [(3, 256, 4), (4, 384, 5), (2, 320, 6)]  # examples, tokens, heads


def bias_gelu(m: int, n: int, k: int) -> tuple[UOp, list[Array], Array]:
    args = [normal(0, m, k), normal(1, k, n), normal(2, n)]
    product = B.dot(arg(0, (m, k)), arg(1, (k, n)), ((1,), (0,)))
    z = args[0] @ args[1] + args[2]
    want = 0.5 * z * (1 + np.tanh(0.7978846 * (z + 0.044715 * z**3)))
    return gelu(B.add(product, row(arg(2, (n,)), product))), args, want


def transposed_residual(m: int, n: int, k: int) -> tuple[UOp, list[Array], Array]:
    """What the epilogue adds lies across its vectors: gathers."""
    args = [normal(0, m, k), normal(1, k, n), normal(2, n, m)]
    product = B.dot(arg(0, (m, k)), arg(1, (k, n)), ((1,), (0,)))
    out = B.add(product, B.permute(arg(2, (n, m)), (1, 0)))
    return out, args, args[0] @ args[1] + args[2].T


def dequantised(m: int, n: int, k: int) -> tuple[UOp, list[Array], Array]:
    """A scale per row."""
    codes = np.random.default_rng(0).integers(-9, 9, (m, k)).astype(np.int8)
    args = [codes, normal(1, m), normal(2, k, n)]
    x = cast(arg(0, (m, k), np.int8), np.float32)
    x = B.mul(x, B.expand(arg(1, (m,)), (m, k), (0,)))
    return B.dot(x, arg(2, (k, n)), ((1,), (0,))), args, (codes * args[1][:, None]) @ args[2]


def tokens(m: int, n: int, k: int) -> tuple[UOp, list[Array], Array]:
    """Rows of several examples, which lie in memory as if they were those of one."""
    args = [normal(0, 2, m, k), normal(1, k, n)]
    x = B.mul(arg(0, (2, m, k)), scalar(0.5))
    return B.dot(x, arg(1, (k, n)), ((2,), (0,))), args, 0.5 * args[0] @ args[1]


def causal_scores(b: int, t: int, h: int) -> tuple[UOp, list[Array], Array]:
    """Heads are read where they lie, and the mask is applied where a tile is stored."""
    args = [normal(0, b, t, h, 64), normal(1, b, t, h, 64)]
    x, y = (arg(i, (b, t, h, 64)) for i in range(2))
    scores = B.mul(B.dot(x, y, ((3,), (3,)), ((0, 2), (0, 2))), scalar(0.125))
    seen = B.expand(B.ge(B.iota((t, t), 0), B.iota((t, t), 1)), scores.shape, (2, 3))
    want = np.einsum("bqhd,bkhd->bhqk", *args) * 0.125
    out = B.where(seen, scores, B.full(scores.shape, scalar(-1e3)))
    return out, args, np.where(np.tri(t, dtype=bool), want, -1e3)


def scaled_scores(b: int, t: int, h: int) -> tuple[UOp, list[Array], Array]:
    """The heads are read by a computed operand."""
    args = [normal(0, b, t, h, 64), normal(1, b, t, h, 64)]
    x, y = (arg(i, (b, t, h, 64)) for i in range(2))
    out = B.dot(B.mul(x, scalar(0.125)), y, ((3,), (3,)), ((0, 2), (0, 2)))
    return out, args, np.einsum("bqhd,bkhd->bhqk", args[0] * 0.125, args[1])


def mixed_heads(b: int, t: int, h: int) -> tuple[UOp, list[Array], Array]:
    """Each head's result is stored between those of the others."""
    args = [normal(0, b, h, t, t), normal(1, b, t, h, 64)]
    out = B.dot(arg(0, (b, h, t, t)), arg(1, (b, t, h, 64)), ((3,), (1,)), ((0, 1), (0, 2)))
    return B.permute(out, (0, 2, 1, 3)), args, np.einsum("bhqk,bkhd->bqhd", *args)


@pytest.mark.parametrize(
    ("make", "sizes"),
    [(f, LAYERS) for f in (bias_gelu, transposed_residual, dequantised, tokens)]
    + [(f, SCORES) for f in (causal_scores, scaled_scores, mixed_heads)],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_one_object_serves_every_size_of_what_is_computed(make: Any, sizes: list[Size]) -> None:
    texts: set[tuple[str, ...]] = set()
    params: set[tuple[int, ...]] = set()
    for size in sizes:
        out, args, want = make(*size)
        low = compiled(out, inputs=len(args))
        assert kinds(low) == ["contraction"]
        (kernel,) = low.kernels
        codes = kernel.codes(host())
        texts.add(tuple(code.ir_text for code in codes))
        params.add(codes[-1].params)
        near(run(low, args)[0], want, 2e-5)
    assert len(texts) == 1 and len(params) == len(sizes)


def test_examples_with_a_factor_each_are_told_apart() -> None:
    """Rows of several examples are one axis only where everything that is read says so."""
    x, scale, w = arg(0, (3, 40, 64)), arg(1, (3,)), arg(2, (64, 48))
    out = B.dot(B.mul(x, B.expand(scale, (3, 40, 64), (0,))), w, ((2,), (0,)))
    low = compiled(out, inputs=3)
    assert kinds(low) == ["contraction"]
    args = [normal(0, 3, 40, 64), normal(1, 3), normal(2, 64, 48)]
    near(run(low, args)[0], (args[0] * args[1][:, None, None]) @ args[2])


def test_what_can_be_an_epilogue_is_no_prologue() -> None:
    x, w, v = arg(0, (64, 96)), arg(1, (96, 64)), arg(2, (64, 32))
    hidden = gelu(B.dot(x, w, ((1,), (0,))))
    low = compiled(B.dot(hidden, v, ((1,), (0,))), inputs=3)
    assert kinds(low) == ["contraction", "contraction"]
    first, second = low.groups
    assert first.outputs[0].op is Op.MUL and second.outputs[0].op is Op.DOT


def test_results_do_not_depend_on_how_tasks_are_chunked(monkeypatch: Any) -> None:
    """A computed operand, blocks of K, scratch per chunk: shared out, or all in one call."""
    m, k, n = 300, 1200, 70
    out = B.dot(B.mul(arg(0, (m, k)), scalar(2.0)), arg(1, (k, n)), ((1,), (0,)))
    low = compiled(out, inputs=2)
    (kernel,) = low.kernels
    assert kernel.codes(host())[-1].chunk < kernel.codes(host())[-1].total
    args = [normal(0, m, k), normal(1, k, n)]
    shared = run(low, args)[0]
    near(shared, args[0].astype(np.float64) * 2 @ args[1])

    def whole(kernel: Any, target: Any) -> list[Any]:
        return [replace(code, chunk=code.total) for code in kernel.codes(target)]

    monkeypatch.setattr(program, "codes_of", whole)
    np.testing.assert_array_equal(run(low, args)[0], shared)


# ------------------------------------------------------------------------------------------ dtypes

NARROW = [
    np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.float16, BFLOAT16,
    *(getattr(ml_dtypes, n) for n in dir(ml_dtypes) if n.startswith(("float8", "int", "uint"))),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.dtype(t) for t in NARROW], ids=str)
def test_every_narrow_dtype_goes_through_the_nest(dtype: Any) -> None:
    m, k, n = 21, 67, 35
    rng = np.random.default_rng(1)
    if dtypes.is_bool(dtype):
        args = [rng.random(s) < 0.1 for s in ((m, k), (k, n))]
    elif dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        args = [rng.integers(info.min, info.max + 1, s).astype(dtype) for s in ((m, k), (k, n))]
    else:
        args = [rng.integers(-1, 3, s).astype(np.float32).astype(dtype) for s in ((m, k), (k, n))]
    x, w = arg(0, (m, k), dtype), arg(1, (k, n), dtype)
    low = compiled(B.dot(x, w, ((1,), (0,))), inputs=2)
    assert kinds(low) == ["contraction"]
    got = run(low, args)[0]
    if dtypes.is_bool(dtype) or dtypes.is_integer(dtype):
        exact = args[0].astype(np.int64) @ args[1].astype(np.int64)
        want = exact != 0 if dtypes.is_bool(dtype) else exact.astype(np.int32).astype(dtype)
    else:
        want = (args[0].astype(np.float32) @ args[1].astype(np.float32)).astype(dtype)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def test_numbers_of_half_a_byte_may_be_results_of_kernels_themselves() -> None:
    """A kernel leaves the upper half of a byte empty, whatever the sign."""
    int4 = np.dtype(ml_dtypes.int4)
    x, w = arg(0, (20, 40), int4), arg(1, (40, 33), int4)
    low = compiled(B.dot(UOp(Op.NEG, (x,)), w, ((1,), (0,))), UOp(Op.NEG, (x,)), inputs=2)
    rng = np.random.default_rng(0)
    args = [rng.integers(-7, 8, s).astype(int4) for s in ((20, 40), (40, 33))]
    want = -args[0].astype(np.int32) @ args[1].astype(np.int32)
    got = run(low, args)[0]
    np.testing.assert_array_equal(
        got.astype(np.int32), want.astype(np.int8).astype(int4).astype(np.int32)
    )


# ------------------------------------------------------------------------------------- convolutions


def convolution(
    x: UOp, w: UOp, strides: tuple[int, int], dilation: tuple[int, int], pad: int
) -> UOp:
    """NHWC x HWIO -> NHWC, as `lax` writes it: windows and one contraction."""
    x, w = B.permute(x, (0, 3, 1, 2)), B.permute(w, (3, 2, 0, 1))
    x = B.pad(x, [(0, 0, 0), (0, 0, 0), (pad, pad, 0), (pad, pad, 0)])
    for i in range(2):
        x = B.window(x, 2 + i, w.shape[2 + i], strides[i], dilation[i])
    out = B.dot(w, x, ((1, 2, 3), (1, 4, 5)))
    return B.permute(out, (1, 2, 3, 0))


def reference(x: Array, w: Array, strides: Any, dilation: Any, pad: int) -> Array:
    x = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    reach = [(s - 1) * d for s, d in zip(w.shape, dilation, strict=False)]
    size = [(x.shape[1 + i] - reach[i] - 1) // strides[i] + 1 for i in range(2)]
    out = np.zeros((x.shape[0], *size, w.shape[3]))
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            top, left = i * dilation[0], j * dilation[1]
            part = x[:, top:, left:][:, :: strides[0], :: strides[1]][:, : size[0], : size[1]]
            out += part @ w[i, j].astype(np.float64)
    return out


@pytest.mark.parametrize("channels", [1, 6, 32])
@pytest.mark.parametrize(
    ("strides", "dilation", "pad"),
    [((1, 1), (1, 1), 1), ((2, 1), (1, 1), 0), ((1, 2), (2, 1), 2)],
    ids=["same", "strided", "dilated"],
)
def test_windows_are_read_while_they_are_packed(
    channels: int, strides: tuple[int, int], dilation: tuple[int, int], pad: int
) -> None:
    x, w = arg(0, (2, 11, 9, channels)), arg(1, (3, 2, channels, 20))
    low = compiled(convolution(x, w, strides, dilation, pad), inputs=2)
    assert kinds(low) == ["contraction"] and low.plan.arena_bytes == 0
    args = [normal(0, *x.shape), normal(1, *w.shape)]
    want = reference(*args, strides, dilation, pad)
    near(run(low, args)[0], want)
    near(low.interpret(args)[0], want)


def test_nothing_is_read_beyond_the_border_of_padded_windows() -> None:
    """NaN in the rows next to the image: only the border's zeros may enter the sums."""
    x, w = arg(0, (4, 12, 12, 16)), arg(1, (3, 3, 16, 24))
    image = B.slice_(x, (1, 0, 0, 0), (3, 12, 12, 16))
    low = compiled(convolution(image, w, (1, 1), (1, 1), 1), inputs=2)
    values = normal(0, *x.shape)
    values[[0, 3]] = np.nan
    kernel = normal(1, *w.shape)
    near(run(low, [values, kernel])[0], reference(values[1:3], kernel, (1, 1), (1, 1), 1))


@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype(np.int8)], ids=str)
def test_narrow_convolutions_multiply_in_groups(dtype: Any) -> None:
    x, w = arg(0, (2, 10, 10, 24), dtype), arg(1, (3, 3, 24, 40), dtype)
    low = compiled(convolution(x, w, (1, 1), (1, 1), 1), inputs=2)
    assert kinds(low) == ["contraction"]
    rng = np.random.default_rng(2)
    args = [rng.integers(-4, 5, s).astype(np.float32).astype(dtype) for s in (x.shape, w.shape)]
    want = reference(*args, (1, 1), (1, 1), 1)
    if dtype == BFLOAT16:
        near(run(low, args)[0], want, 2**-7)
    else:
        np.testing.assert_array_equal(run(low, args)[0], want.astype(np.int64).astype(np.int8))


# ------------------------------------------------------------------------------- other processors

LEVELS = {
    "x86-64-v4": {},
    "x86-64-v3": {"vector_bytes": 32, "registers": 16, "masks": False},
    "x86-64": {"vector_bytes": 16, "registers": 16, "masks": False, "fma": False, "half": False},
}
CALLED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def run_for(level: str, low: Lowered, args: list[Array]) -> Array:
    """The only kernel, compiled for another processor, chunk by chunk."""
    (kernel,) = low.kernels
    target = replace(host(), cpu=level, features="", **LEVELS[level])
    out = np.zeros(low.plan.outputs[0].aval.shape, low.plan.outputs[0].aval.dtype)
    codes = kernel.codes(target)
    scratch = [np.zeros(n + 64, np.uint8) for n in codes[0].scratch]
    places = [a.ctypes.data + -a.ctypes.data % 64 for a in scratch]
    for code in codes:
        params = np.array(code.params, np.int64)
        pointers = [out.ctypes.data, *(a.ctypes.data for a in args), *places, params.ctypes.data]
        slots = np.array(pointers, np.uint64)
        name = re.search(r"define void @(\w+)\(", code.ir_text)[1]
        data = cpu.compile_ir(code.ir_text, name, cpu=level, allowed={*cpu.KERNEL_SYMBOLS, "fmaf"})
        loaded = loader.load(data, [name], {*cpu.KERNEL_SYMBOLS, "fmaf"})
        for lo in range(0, code.total, code.chunk):
            hi = min(lo + code.chunk, code.total)
            CALLED(loaded.addresses[name])(slots.ctypes.data, None, lo, hi)
    return out


@pytest.mark.skipif("x86_64" not in host().triple, reason="needs an x86-64 processor")
@pytest.mark.parametrize("level", LEVELS)
def test_expressions_are_packed_on_processors_with_shorter_vectors(level: str) -> None:
    if LEVELS[level].get("vector_bytes", 64) > host().vector_bytes:
        pytest.skip("this processor has shorter vectors itself")
    for channels in (3, 6, 32):
        x, w = arg(0, (2, 11, 9, channels)), arg(1, (3, 2, channels, 20))
        args = [normal(0, *x.shape), normal(1, *w.shape)]
        low = compiled(convolution(x, w, (1, 1), (1, 1), 1), inputs=2)
        near(run_for(level, low, args), reference(*args, (1, 1), (1, 1), 1))
    x, w = arg(0, (40, 600)), arg(1, (600, 35))
    product = B.dot(B.mul(x, scalar(0.1)), B.flip(w, (0,)), ((1,), (0,)))
    args = [normal(0, 40, 600), normal(1, 600, 35)]
    want = np.maximum((args[0] * 0.1).astype(np.float64) @ args[1][::-1] + 1, 0)
    tail = B.max_(B.add(product, scalar(1.0)), scalar(0.0))
    near(run_for(level, compiled(tail, inputs=2), args), want)
