"""Compiled programs against NumPy, kernels counted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lowering.bodies import (
    F32,
    I32,
    arg,
    check,
    layer_norm,
    normal,
    run,
    scalar,
    softmax,
    transformer,
)  # fmt: skip
from tinyjax.core import build as B
from tinyjax.core import execute
from tinyjax.core.avals import aval
from tinyjax.core.infos import CallInfo, GatherInfo, HostCallInfo, ScatterInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, get, tuple_of
from tinyjax.lowering.program import LoopKernel, lower

X, Y = arg(0, (5, 7)), arg(1, (5, 7))
x, y = normal(0, 5, 7), normal(1, 5, 7)


def test_elementwise_reduce_and_movement():
    check(
        [
            B.add(X, B.mul(Y, scalar(2))),
            B.sum_(X, [0]),
            B.permute(X, (1, 0)),
            B.reduce("max", X, [0, 1]),
        ],
        [x, y],
        [x + 2 * y, x.sum(0), x.T, x.max()],
    )


def test_softmax_and_layer_norm():
    e = np.exp(x - x.max(1, keepdims=True))
    n = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    check([softmax(X), layer_norm(X)], [x], [e / e.sum(1, keepdims=True), n], rtol=1e-4)


def test_a_large_sum_agrees_with_numpy():
    big = np.arange(1 << 18, dtype=np.float32) % 7
    low = lower(tuple_of([B.sum_(arg(0, big.shape), [0])]))
    (found,) = run(low, [big])
    assert found == big.sum(dtype=np.float64)


CONTRACTIONS = [
    ("ab,bc->ac", (33, 20), (20, 41)),
    ("ab,cb->ac", (33, 20), (41, 20)),
    ("ba,bc->ac", (20, 33), (20, 41)),
    ("ba,cb->ac", (20, 33), (41, 20)),
    ("zab,zbc->zac", (3, 17, 9), (3, 9, 21)),
    ("bthd,bshd->bhts", (2, 9, 4, 16), (2, 11, 4, 16)),
    ("bhts,bshd->bhtd", (2, 4, 9, 11), (2, 11, 4, 16)),
    ("abc,cbd->ad", (12, 5, 6), (6, 5, 30)),
    ("abc,bd->acd", (12, 5, 6), (5, 30)),
    ("ab,b->a", (33, 20), (20,)),
    ("b,bc->c", (20,), (20, 41)),
    ("b,b->", (20,), (20,)),
    ("a,b->ab", (20,), (30,)),
]


@pytest.mark.parametrize(("spec", "left", "right"), CONTRACTIONS)
def test_contractions(spec, left, right):
    names, out = spec.split("->")
    p, q = names.split(",")
    batch = [c for c in p if c in q and c in out]
    contract = [c for c in p if c in q and c not in out]
    node = B.dot(
        arg(0, left),
        arg(1, right),
        (tuple(p.index(c) for c in contract), tuple(q.index(c) for c in contract)),
        (tuple(p.index(c) for c in batch), tuple(q.index(c) for c in batch)),
    )
    order = batch + [c for c in p if c not in q] + [c for c in q if c not in p]
    node = B.permute(node, tuple(order.index(c) for c in out))
    a, b = normal(0, *left), normal(1, *right)
    check([node], [a, b], [np.einsum(spec, a, b)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "bfloat16", "int32", "int8", "uint8", "complex64"]
)
def test_contractions_of_other_dtypes(dtype):
    import ml_dtypes

    dt = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    rng = np.random.default_rng(0)
    left, right = ((33, 20), (20, 41)) if dt.itemsize > 1 else ((9, 20), (20, 14))
    a, b = (rng.integers(-3, 4, size=s).astype(dt) for s in (left, right))
    if dt.kind == "c":
        a = a + (1j * rng.integers(-3, 4, size=a.shape)).astype(dt)
    node = B.dot(arg(0, left, dt), arg(1, right, dt), ((1,), (0,)))
    wide = a.astype(np.complex128 if dt.kind == "c" else np.float64)
    product = wide @ b.astype(wide.dtype)
    if dt.kind in "iu":
        product = product.astype(np.int64)
    check([node], [a, b], [product.astype(dt)], rtol=1e-6)


def test_epilogues_read_other_buffers_and_write_several():
    a, b, bias, residual = normal(0, 33, 20), normal(1, 20, 41), normal(2, 41), normal(3, 33, 41)
    product = B.dot(arg(0, a.shape), arg(1, b.shape), ((1,), (0,)))
    shifted = B.add(product, B.expand(arg(2, bias.shape), (33, 41), (1,)))
    outputs = [shifted, B.add(B.tanh(shifted), arg(3, residual.shape))]
    pre = a @ b + bias
    low = check(
        outputs, [a, b, bias, residual], [pre, np.tanh(pre) + residual], rtol=1e-4, atol=1e-4
    )
    assert len(low.plan.steps) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_epilogue_sees_the_product_rounded_to_its_dtype(dtype):
    import ml_dtypes

    dt = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    a, b = normal(0, 33, 20).astype(dt), normal(1, 20, 41).astype(dt)
    product = B.dot(arg(0, a.shape, dt), arg(1, b.shape, dt), ((1,), (0,)))
    rounded = (a.astype(np.float32) @ b.astype(np.float32)).astype(dt)
    wanted = (rounded.astype(np.float32) * 3).astype(dt).astype(np.float32)
    eps = float(ml_dtypes.finfo(dt).eps)
    check([B.mul(product, scalar(3, dt))], [a, b], [wanted], rtol=2 * eps, atol=1e-2)


def test_a_product_stored_where_it_is_moved_to():
    p, v = normal(0, 2, 4, 9, 11), normal(1, 2, 11, 4, 16)
    mixed = B.dot(arg(0, p.shape), arg(1, v.shape), ((3,), (1,)), ((0, 1), (0, 2)))
    joined = B.reshape(B.permute(mixed, (0, 2, 1, 3)), (2, 9, 64))
    wanted = np.einsum("bhts,bshd->bthd", p, v).reshape(2, 9, 64)
    low = check([joined], [p, v], [wanted], rtol=1e-4, atol=1e-4)
    assert len(low.plan.steps) == 1


def test_a_product_of_a_matrix_with_its_transpose_has_one_input():
    a = normal(0, 33, 20)
    check([B.dot(arg(0, (33, 20)), arg(0, (33, 20)), ((1,), (1,)))], [a], [a @ a.T], rtol=1e-4)


def test_convolution_through_windows():
    image, kernel = normal(0, 2, 3, 10, 9), normal(1, 4, 3, 3, 2)
    w = B.window(B.window(arg(0, image.shape), 2, 3, 2), 3, 2, 1, 2)  # n c oh ow kh kw
    node = B.dot(w, arg(1, kernel.shape), ((1, 4, 5), (1, 2, 3)))  # n oh ow o
    wanted = np.zeros((2, 4, 7, 4), np.float32)
    for i in range(4):
        for j in range(7):
            patch = image[:, :, 2 * i : 2 * i + 3, j : j + 3 : 2]
            wanted[:, i, j] = np.einsum("nchw,ochw->no", patch, kernel)
    check([node], [image, kernel], [wanted], rtol=1e-4, atol=1e-4)


def test_indexed_reads_and_writes():
    index = np.array([[1], [7], [3], [-1]], np.int32)
    picked = B.gather(X, arg(1, (4, 1), I32), GatherInfo((1,), (0,), (0,), (1, 7), mode="clip"))
    check([picked], [x, index], [x[[1, 4, 3, 0]]])
    added = x.copy()
    np.add.at(added, [1, 3], y[[0, 2]])
    node = B.scatter(X, arg(1, (4, 1), I32), arg(2, (4, 7)), ScatterInfo("add", (1,), (0,), (0,)))
    check([node], [x, index, y[:4].copy()], [added])


def test_prefix_and_arg_reductions():
    check(
        [B.prefix("add", X, 1, True), B.prefix("max", X, 0), *B.argreduce("max", X, 1)],
        [x],
        [x[:, ::-1].cumsum(1)[:, ::-1], np.maximum.accumulate(x, 0), x.max(1), x.argmax(1)],
    )


@pytest.mark.parametrize("kind", ["fft", "ifft"])
def test_complex_transforms_return_to_numpy(kind):
    z = (x + 1j * y).astype(np.complex64)
    node = UOp(Op.FFT, (arg(0, z.shape, z.dtype),), (kind, (5, 7)))
    scaled = B.mul(node, scalar(2, z.dtype))
    check([scaled], [z], [2 * getattr(np.fft, kind + "2")(z)], rtol=1e-3, atol=1e-4)


def test_real_transforms():
    forward = UOp(Op.FFT, (X,), ("rfft", (7,)))
    check([forward], [x], [np.fft.rfft(x)], rtol=1e-3, atol=1e-4)
    back = UOp(Op.FFT, (forward,), ("irfft", (7,)))
    check([back], [x], [x], rtol=1e-3, atol=1e-4)


def test_routines_see_their_operands_reshaped():
    flat = arg(0, (35,))
    node = UOp(Op.FFT, (B.reshape(flat, (5, 7)),), ("rfft", (7,)))
    check([B.reshape(node, (20,))], [x.reshape(35)], [np.fft.rfft(x).reshape(20)], rtol=1e-3)


def test_host_calls_go_through_the_hook(monkeypatch):
    info = HostCallInfo("twice", (), (aval((5, 7), F32),))
    node = get(UOp(Op.HOST_CALL, (B.exp(X),), info), 0)
    monkeypatch.setattr(execute, "_runner", lambda n, args: [2 * args[0]])
    check([B.add(node, X)], [x], [2 * np.exp(x) + x])


def test_an_error_in_a_host_call_leaves_the_program(monkeypatch):
    def fail(node, args):
        raise ValueError("no such routine")

    info = HostCallInfo("broken", (), (aval((5, 7), F32),))
    low = lower(tuple_of([get(UOp(Op.HOST_CALL, (X,), info), 0)]))
    monkeypatch.setattr(execute, "_runner", fail)
    with pytest.raises(ValueError, match="no such routine"):
        run(low, [x])


def test_a_precompiled_call_is_a_program_shared_by_its_sites():
    inner = tuple_of([B.exp(X), B.dot(X, Y, ((1,), (1,)))])
    info = CallInfo("function", "g", precompile=True)
    first = UOp(Op.CALL, (inner, X, Y), info)
    second = UOp(Op.CALL, (inner, get(first, 0), Y), info)
    low = check(
        [B.add(get(second, 0), X), get(second, 1)],
        [x, y],
        [np.exp(np.exp(x)) + x, np.exp(x) @ y.T],
        rtol=1e-4,
    )
    program = low.program()
    assert len(program.programs) == 1
    assert low.schedule.count("program") == 2


def test_two_outputs_are_realised_by_one_program():
    t = arg(0, (3,))
    low = check([B.add(t, scalar(1)), B.add(t, scalar(2))], [np.ones(3)], [[2, 2, 2], [3, 3, 3]])
    assert len(low.program().kernels) <= 2


def test_transformer_programs_agree_with_the_interpreter():
    body, count = transformer(1)
    rng = np.random.default_rng(0)
    low = lower(body, count)
    args = [
        rng.integers(0, 50, size=s.aval.shape).astype(np.int32)
        if s.aval.dtype == I32
        else (rng.normal(size=s.aval.shape) * 0.2).astype(np.float32)
        for s in low.plan.inputs
    ]
    (slow,), (fast,) = low.interpret(args), run(low, args)
    np.testing.assert_allclose(fast, slow, rtol=1e-4, atol=1e-5)


def test_many_equal_layers_compile_no_more_than_few():
    counts = [len(lower(*transformer(n)).kernels) for n in (6, 24)]
    assert counts[0] == counts[1] <= 20


def test_every_step_is_printed():
    low = lower(tuple_of([softmax(B.dot(X, Y, ((1,), (1,))))]))
    assert "arena" in str(low) and low.fusion.startswith("main:")
    assert all(isinstance(k, LoopKernel) or k.title() == "dot" for k in low.kernels)
    assert len(low.groups) == len(low.plan.steps)


def test_unread_inputs_have_slots_too():
    low = lower(tuple_of([B.exp(arg(2, (3,)))]), 4)
    (found,) = run(low, [normal(0, 2), normal(1, 2), normal(2, 3), normal(3, 2)])
    np.testing.assert_allclose(found, np.exp(normal(2, 3)), rtol=1e-6)
