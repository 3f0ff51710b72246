"""Programs with symbolic sizes: compiled once, right at every size, natively and interpreted."""

from contextlib import contextmanager

import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp
from tests.golden import assert_text
from tinyjax import Dim, lax
from tinyjax import ShapeDtypeStruct as Struct
from tinyjax.core.dims import evaluate
from tinyjax.core.errors import LoweringError
from tinyjax.core.ops import Op
from tinyjax.core.uop import toposort
from tinyjax.lowering.dims import Bounded, bound_sizes, limits, nest_together, sizes_of
from tinyjax.lowering.inline import inline
from tinyjax.lowering.nest import extent, limit
from tinyjax.lowering.program import LoopKernel

N, M = Dim("n", 1, 64), Dim("m", 2, 32)
SIZES = [{N.atom: n, M.atom: m} for n, m in ((1, 2), (2, 32), (3, 3), (16, 8), (33, 31), (64, 17))]
F, I = "float32", "int32"


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 3.0
    place = jnp.arange(q.shape[1])
    scores = jnp.where(place[:, None] >= place, scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def summed(f):
    return lambda *args: jnp.sum(f(*args) ** 2)


precompiled = jax.function(precompile=True)(lambda x, w: (jnp.tanh(x @ w), x.sum(1)))
recurrence = lambda c, row: (0.5 * c + row, c)
heads = ((2, N, 3, 8), F)

PROGRAMS = {
    "elementwise": (lambda x: jnp.tanh(x) + x, ((N, 4), F)),
    "elementwise_of_a_vector": (lambda x: jnp.tanh(x) + x, ((N,), F)),
    "elementwise_in_the_middle": (lambda x: jnp.exp(x) * 2, ((3, N, 4), F)),
    "elementwise_at_the_end": (lambda x: jnp.exp(x) * 2, ((3, N), F)),
    "two_sizes": (lambda x, y: x[:, None] * y, ((N,), F), ((M,), F)),
    "argument_returned": (lambda x: x, ((3, N, 4), F)),
    "argument_returned_twice": (lambda x: (x, x + 1, x), ((N, 4), F)),
    "size_as_a_number": (lambda x: x / x.shape[0] + 0.5 * x.shape[0] ** 2, ((N, 3), F)),
    "size_returned": (lambda x: jnp.asarray(x.shape[0] * 2 + 1), ((N, 3), F)),
    "iota": (lambda x: x + jnp.arange(x.shape[0]), ((N,), F)),
    "transpose": (lambda x: jnp.transpose(x, (1, 0, 2)) + 1, ((3, N, 4), F)),
    "sum_of_the_axis": (lambda x: x.sum(0), ((N, 4), F)),
    "sum_beside_the_axis": (lambda x: x.sum(1), ((N, 40), F)),
    "sum_of_all": (lambda x: x.sum(), ((3, N, 40), F)),
    "mean_and_variance": (lambda x: (x.mean(0), x.var(0)), ((N, 4), F)),
    "max_and_argmax": (lambda x: (x.max(0), jnp.argmax(x, 0)), ((N, 4), F)),
    "softmax_beside_the_axis": (lambda x: jax.nn.softmax(x), ((N, 10), F)),
    "softmax_of_the_axis": (lambda x: jax.nn.softmax(x), ((3, N), F)),
    "cumulative_sum": (lambda x: jnp.cumsum(x, 0), ((N, 4), F)),
    "cumulative_sum_reversed": (lambda x: lax.cumsum(x, 0, reverse=True), ((N, 4), F)),
    "flip": (lambda x: jnp.flip(x, (0, 1)), ((N, 4), F)),
    "slices": (lambda x: x[1:] - x[:-1], ((N + 1, 3), F)),
    "steps": (lambda x: x[::2, 1:], ((N, 3), F)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y * 2, x]), ((N, 3), F), ((M, 3), F)),
    "pad": (lambda x: jnp.pad(x, ((2, 1), (1, 0)), constant_values=7), ((N, 3), F)),
    "interior_padding": (lambda x: lax.pad(x, -1.0, ((1, 2, 2),)), ((N,), F)),
    "reshape_to_one_axis": (lambda x: x.reshape(-1) + 1, ((N, 6), F)),
    "reshape_joining": (lambda x: x.reshape(-1, 6) + 1, ((3, N, 6), F)),
    "reshape_there_and_back": (
        lambda x: (jnp.tanh(x.reshape(-1, 6))[::-1]).reshape(x.shape) * 2,
        ((3, N, 6), F),
    ),
    "windows": (lambda x: lax.reduce_window(x, 0.0, lax.add, (3,), (1,), "valid"), ((N + 2,), F)),
    "matmul_rows": (lambda x, w: x @ w, ((N, 40), F), ((40, 50), F)),
    "matmul_columns": (lambda x, w: x @ w, ((40, 30), F), ((30, N), F)),
    "matmul_inner": (lambda x, w: x @ w, ((40, N), F), ((N, 50), F)),
    "matmul_all": (lambda x, w: x @ w, ((N, M), F), ((M, N), F)),
    "gram": (lambda x: x @ x.T, ((N, 30), F)),
    "matmul_batch": (lambda x, w: jnp.einsum("nij,njk->nik", x, w), ((N, 20, 24), F), ((N, 24, 28), F)),
    "matmul_beside_a_batch": (lambda x, w: x @ w, ((3, N, 40), F), ((40, 50), F)),
    "weight_gradient": (
        lambda x, y: jnp.einsum("bnd,bnk->dk", x, y), ((3, N, 40), F), ((3, N, 50), F),
    ),
    "matmul_two_free_sizes": (lambda x, w: x @ w, ((N, M, 16), F), ((16, 24), F)),
    "matmul_of_bytes": (
        lambda x, w: lax.dot(x, w, preferred_element_type=jnp.int32), ((N, 40), "int8"), ((40, 50), "int8"),
    ),
    "matmul_complex": (lambda x, w: x @ w, ((N, 12), "complex64"), ((12, 9), "complex64")),
    "epilogue": (lambda x, w: jnp.tanh(x @ w + 1) * 2, ((N, 40), F), ((40, 50), F)),
    "attention": (attention, heads, heads, heads),
    "embedding": (lambda e, i: e[i], ((10, 8), F), ((3, N), I)),
    "rows_by_index": (lambda x, i: x[i], ((N, 8), F), ((5,), I)),
    "scatter_into_the_axis": (lambda x, i: x.at[i].add(1.0), ((N, 3), F), ((7,), I)),
    "scatter_dropped": (lambda x, i: x.at[i].set(9.0, mode="drop"), ((N,), F), ((40,), I)),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i[0], 0), (1, 3)), ((N, 3), F), ((2,), I)),
    "dynamic_update": (
        lambda x, i: lax.dynamic_update_slice(x, jnp.ones((1, 2)), (i[0], i[1])), ((N, 3), F), ((2,), I),
    ),
    "last_of_the_axis": (lambda x: (x[-1], jnp.roll(x, 1, 0), x[x.shape[0] // 2 :]), ((N, 3), F)),
    "axis_cut_at_a_size": (lambda x, y: jnp.roll(y, x.shape[0], 0), ((N,), F), ((5, 2), F)),
    "place_in_an_axis_of_known_size": (
        lambda x, y: y.at[x.shape[0] // 8].add(1.0)[::2], ((N,), F), ((9, 2), F),
    ),
    "update_that_starts_behind_the_bounds": (
        lambda x, y: y.at[:, x.shape[0] - 1 :].add(1.0), ((N,), F), ((4, 3), F),
    ),
    "scalar_beside_what_may_be_empty": (
        lambda x, y: (y[0], jnp.sin(x[: x.shape[0] // 2, None, None] * y) + y[0]), ((N,), F), ((M, 16), F),
    ),
    "carry_in_a_result": (
        lambda x: [x * 2, lax.fori_loop(0, x.shape[0], lambda i, c: c.at[i].set(c[0] + i), x * 2)],
        ((N,), F),
    ),
    "call_of_known_sizes": (lambda x, w: (x + 1, precompiled(w, w)[0]), ((N,), F), ((5, 5), F)),
    "outer_product_of_narrow_floats": (
        lambda x, y: x[:, None] * y, ((N,), "bfloat16"), ((M,), "bfloat16"),
    ),
    "sort_beside_the_axis": (lambda x: jnp.sort(x, axis=1), ((N, 9), F)),
    "sort_along_the_axis": (
        lambda x: (jnp.sort(x, 0), jnp.argsort(-x, 0), jnp.sort(x.T), jnp.median(x, 0)), ((N, 3), F),
    ),
    "sort_and_update": (
        lambda x: (jnp.argsort(x, 1).at[0].multiply(3), jnp.sort(x, 0).at[0].add(1)), ((N, 9), F),
    ),
    "fourier_along_the_axis": (
        lambda x: [jnp.abs(f(x, axis=0)) for f in (jnp.fft.fft, jnp.fft.rfft, jnp.fft.ifft)], ((N, 3), F),
    ),
    "fourier_of_the_plane": (lambda x: jnp.abs(jnp.fft.rfft2(x, norm="ortho")), ((3, N), F)),
    "systems_of_equations": (
        lambda x: jnp.linalg.solve(x @ x.T + 4 * jnp.eye(x.shape[0]), x), ((N, 3), F),
    ),
    "batch_of_decompositions": (
        lambda x: jnp.linalg.cholesky(jnp.einsum("nij,nkj->nik", x, x) + jnp.eye(3)), ((N, 3, 3), F),
    ),
    "callback": (
        lambda x: jax.pure_callback(lambda a: np.cumsum(a, 1), Struct(x.shape, F), x) * 2, ((3, N), F),
    ),
    "callback_under_vmap": (
        lambda x: jax.vmap(
            lambda r: jax.pure_callback(np.sort, Struct((4,), F), r, vmap_method="sequential")
        )(x),
        ((N, 4), F),
    ),
    "fourier_beside_the_axis": (lambda x: jnp.abs(jnp.fft.fft(x)), ((N, 8), F)),
    "random": (
        lambda x: jax.random.uniform(jax.random.key(3), x.shape) + x * 0, ((3, N), F),
    ),
    "scan_over_the_axis": (lambda x: lax.scan(recurrence, jnp.zeros(4), x), ((N, 4), F)),
    "scan_over_the_axis_reversed": (
        lambda x: lax.scan(recurrence, jnp.zeros(4), x, reverse=True), ((N, 4), F),
    ),
    "scan_carrying_the_axis": (lambda x: lax.scan(recurrence, x[0] * 0, x), ((5, N), F)),
    "loop_to_the_size_in_a_loop": (
        lambda x: lax.scan(
            lambda c, _: (lax.fori_loop(0, x.shape[0], lambda i, s: 0.5 * s + i, c), None), 0.0, None, 3
        )[0] + x,
        ((N,), F),
    ),
    "fori_loop_to_the_size": (lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i], 0.0), ((N,), F)),
    "while_loop": (
        lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 1.5), (0, x)), ((N, 2), F),
    ),
    "cond": (lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), ((N, 2), F)),
    "vmap_over_the_axis": (lambda x: jax.vmap(lambda r: jnp.tanh(r) @ jnp.ones((4, 3)))(x), ((N, 4), F)),
    "call_compiled_on_its_own": (lambda x, w: precompiled(x + 1, w), ((3, N, 16), F), ((16, 16), F)),
    "gradient_of_layers": (
        jax.grad(summed(lambda w, x: jax.nn.log_softmax(jnp.tanh(x @ w)))), ((40, 30), F), ((3, N, 40), F),
    ),
    "gradient_of_attention": (jax.grad(summed(attention), (0, 1, 2)), heads, heads, heads),
    "gradient_of_an_embedding": (jax.grad(summed(lambda e, i: e[i])), ((10, 8), F), ((3, N), I)),
    "gradient_of_a_call": (
        jax.grad(summed(lambda w, x: precompiled(x, w)[0])), ((16, 16), F), ((3, N, 16), F),
    ),
    "gradient_of_a_scan": (
        jax.grad(summed(lambda x: lax.scan(recurrence, jnp.zeros(4), x)[1])), ((N, 4), F),
    ),
    "checkpointed": (
        jax.grad(summed(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x) @ x.T) @ x))), ((N, 4), F),
    ),
    "second_derivative": (
        lambda x: jax.jvp(jax.grad(summed(jnp.sin)), (x,), (jnp.ones_like(x),)), ((N, 4), F),
    ),
}  # fmt: skip


def argument(spec, dims, seed):
    shape, dtype = spec
    shape = tuple(evaluate(size, dims) for size in shape)
    rng = np.random.default_rng([seed, *shape])
    if dtype == I:
        return jnp.asarray(rng.integers(0, min(5, *dims.values()), shape), dtype)
    if dtype == "int8":
        return jnp.asarray(rng.integers(-100, 100, shape), dtype)
    if dtype == "bfloat16":
        return jnp.asarray(rng.integers(-8, 8, shape), dtype)
    if dtype == "complex64":
        return jnp.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape), dtype)
    return jnp.asarray(rng.standard_normal(shape), dtype)


@contextmanager
def hardened():
    """Programs with guard bytes around buffers and checked accesses."""
    jax.config.update("tinyjax_hardened", True)
    yield
    jax.config.update("tinyjax_hardened", False)


def compiled_for(fun, *specs):
    return jax.jit(fun).lower(*(Struct(*spec) for spec in specs)).compile()


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_is_right_at_every_size(name):
    fun, *specs = PROGRAMS[name]
    compiled = compiled_for(fun, *specs)
    lowered = compiled._executable.lowered
    consts = [np.asarray(b.value) for b in compiled._captured]
    for dims in SIZES:
        args = [argument(spec, dims, i) for i, spec in enumerate(specs)]
        wanted = [np.asarray(x) for x in jax.tree.leaves(fun(*args))]
        found = [[np.asarray(x) for x in jax.tree.leaves(compiled(*args))]]
        if max(dims.values()) <= 3 and "random" not in name:
            found.append(lowered.interpret([*map(np.asarray, args), *consts],
                                           lowered.sizes.values(dims)))  # fmt: skip
        for results in found:
            for got, want in zip(results, wanted, strict=True):
                assert got.size == want.size
                np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-4, atol=2e-4)


def test_what_lies_behind_a_size_is_neither_read_nor_written():
    """Buffers are as large as the sizes say: with guard bytes around every one, nothing breaks."""
    fun, *specs = PROGRAMS["gradient_of_layers"]
    with hardened():
        compiled = compiled_for(lambda *a: fun(*a), *specs)
        for dims in SIZES[:4]:
            args = [argument(spec, dims, i) for i, spec in enumerate(specs)]
            for got, want in zip(
                jax.tree.leaves(compiled(*args)), jax.tree.leaves(fun(*args)), strict=True
            ):
                np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def test_work_is_done_for_the_size_of_the_run():
    """A loop over a symbolic axis has it as its limit, in every kernel."""
    compiled = compiled_for(lambda x, w: jnp.exp(x @ w).sum(0), ((N, 40), F), ((40, 50), F))
    text = compiled.lowered.llvm
    assert "%dims" in text
    (rows,) = (
        r
        for kernel in compiled.lowered.kernels
        if isinstance(kernel, LoopKernel)
        for r in toposort([kernel.sink])
        if r.op is Op.RANGE and extent(r) == 64
    )
    assert limit(rows).op is Op.DIM


def test_the_pass_gives_axes_their_bounds_and_arguments_their_dense_shape():
    body = jax.jit(lambda x: jnp.flip(x, 1)).trace(Struct((3, N, 4), F)).traced.body
    bounded = bound_sizes(inline(body))
    sizes = sizes_of(bounded)
    assert [str(size) for size in sizes.numbers] == ["3*n", "n", "n - 1"]
    (parameter,) = (n for n in toposort([bounded]) if n.op is Op.PARAM)
    rows, columns = parameter.aval.shape
    assert isinstance(rows, Bounded) and rows.number == 0 and (int(rows), columns) == (192, 4)
    assert sizes.values({N.atom: 5})[0] == 15


def test_a_bounded_size_is_equal_to_the_same_size_only():
    a, b = Bounded(64, 0), Bounded(64, 1)
    assert a == Bounded(64, 0) and a != b and a != 64 and 64 != a
    assert hash(a) == hash(Bounded(64, 0)) and a + 1 == 65
    assert limits((3, a, 4)) == ((4, a),)
    assert nest_together((a, 4), (a,)) and not nest_together((a, 4), (64,))
    assert not nest_together((a, 4), (b, 4)) and nest_together((a, b), (a,))
    assert not nest_together((4,), (a,)) and nest_together((4,), (4, a))
    assert a != Bounded(64, 0, N) and Bounded(64, 0, N).bounds == (1, 64)


EMPTY = {
    "sums": lambda x, i: (x.sum(0), x.sum(1), jnp.prod(x), jnp.any(x > 0, 0), jnp.cumsum(x, 0)),
    "products": lambda x, i: (x @ x.T, x.T @ x, x @ jnp.ones((3, 2))),
    "ends": lambda x, i: (jnp.concatenate([x, jnp.ones((2, 3))]), jnp.pad(x, ((1, 1), (0, 0)))),
    "shapes": lambda x, i: (x[::-1], x.T, x.reshape(-1), x[: x.shape[0] // 2, 0]),
    "sorted": lambda x, i: (
        jnp.sort(x, 0),
        jnp.argsort(x[:, 0]),
        jnp.sort(x.at[i % 2].set(0), 1).at[i % 2].add(1.0),
        jnp.sort(x[None], 2).at[0, i % 2].add(1.0),
    ),
    "indexed": lambda x, i: (jnp.zeros(5).at[i].add(1.0), jax.nn.one_hot(i, 4)),
    "scatter_clipped": lambda x, i: x.at[jnp.arange(3)].add(2.0, mode="clip"),
    "loops": lambda x, i: lax.scan(lambda c, r: (c + r, c * 2), jnp.ones(3), x),
    "callback": lambda x, i: jax.pure_callback(lambda a: a.sum(0), Struct((3,), F), x),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_axis_may_be_empty(name):
    size = Dim("z", 0, 8)
    with hardened():
        compiled = compiled_for(EMPTY[name], ((size, 3), F), ((size,), I))
        for n in (0, 1, 8):
            x, i = jnp.arange(3.0 * n).reshape(n, 3) / 7, jnp.arange(n) % 5
            for got, want in zip(
                jax.tree.leaves(compiled(x, i)), jax.tree.leaves(EMPTY[name](x, i)), strict=True
            ):
                np.testing.assert_allclose(got, want, rtol=1e-5)


def test_effects_see_the_size_of_the_call(capsys):
    def f(x):
        jax.debug.print("{}: {}", x.shape[0], x[:, 0])
        return x * 2

    compiled = compiled_for(f, ((N, 2), F))
    for n in (1, 3):
        compiled(jnp.ones((n, 2)))
    jax.effects_barrier()
    assert capsys.readouterr().out == "1: [1.]\n3: [1. 1. 1.]\n"


def test_a_program_inside_gets_the_sizes_of_its_own_arguments():
    """Two calls with the same bounds have the same numbers, not the same sizes."""
    n, m = Dim("n", 1, 20000), Dim("m", 1, 20000)
    call = jax.function(precompile=True)(lambda x: (jnp.sin(jnp.exp(x)).sum(), jnp.sin(x[::-1])))
    compiled_for(call, ((n,), F))
    compiled = compiled_for(lambda x, y: (call(x), call(y)), ((n,), F), ((m,), F))
    for sizes in ((1, 20000), (20000, 3), (17, 15000)):
        args = [jnp.linspace(0, 1, k) for k in sizes]
        for x, found in zip(args, compiled(*args), strict=True):
            for got, want in zip(found, call(x), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_what_has_no_form_over_a_symbolic_axis_says_so():
    def parts(x, y):
        size = y[x.shape[0] - 1 :].shape  # the longer x, the shorter they are
        return jax.vmap(lambda i: lax.dynamic_slice(y, (i,), size))(jnp.arange(3))

    with pytest.raises(
        LoweringError, match="gather of f32.3., .* cannot be compiled for a symbolic axis"
    ):
        compiled_for(parts, ((N,), F), ((3,), F))


def test_golden_text_of_a_kernel_with_a_limit():
    compiled = compiled_for(lambda x: jnp.tanh(x).sum(1), ((N, 8), F))
    assert_text(
        "\n".join(map(str, compiled.lowered.kernels)),
        """
        kernel(p0: f32[d0], p1: f32[d0,8]):
          for r0 in 0..min(d0, 64) (loop):
            a = add of nothing
            for r1 in 0..8 (reduce):
              a += tanh(p1[r0*8 + r1])
            p0[r0] = a""",
    )
