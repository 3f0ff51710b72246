"""Gradients and jvps of the functions, in one random direction against central differences."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import tinyjax
import tinyjax.numpy as np

R = numpy.random.RandomState(1)
A, W, V = R.randn(2, 3), R.randn(3, 4), R.randn(3)
P = R.rand(2, 3) * 0.8 + 0.1
B3 = R.randn(2, 3, 4)
SQ = (lambda m: m @ m.T + 3 * numpy.eye(3))(R.randn(3, 3))
NONSQ = R.randn(4, 3)
ROW = numpy.array([1, 0])
MASK = numpy.array([[True, False, True], [False, True, True]])


def each(label: str, use: Any, x: Any, names: str) -> list[tuple[str, Any, Any]]:
    """A case for each function."""
    return [(label.format(name), use(getattr(np, name)), x) for name in names.split()]


FUNCTIONS: list[tuple[str, Any, Any]] = [
    *each(
        "{}(A)", lambda f: f, A,
        "exp expm1 sin cos tan arctan sinh cosh tanh arcsinh cbrt square absolute sinc i0",
    ),
    *each(
        "{}(P)", lambda f: f, P,
        "log log1p log2 log10 sqrt arcsin arccos arctanh reciprocal",
    ),
    *each(
        "{}(A, V)", lambda f: lambda x: f(x, V), A,
        "add multiply divide maximum minimum arctan2 hypot logaddexp logaddexp2 copysign "
        "fmax fmod remainder",
    ),
    *each(
        "{}(V, A)", lambda f: lambda x: f(V, x), A,
        "subtract divide arctan2 logaddexp",
    ),
    *each(
        "{}(B3, 1)", lambda f: lambda x: f(x, axis=1), B3,
        "sum prod max min mean std var cumsum cumprod median sort nanmean nansum ptp diff "
        "trapezoid",
    ),
    *((name, f, A) for name, f in {
        "power 3": lambda x: x**3, "power -2": lambda x: x**-2, "exponent": lambda x: 2.0**x,
        "where": lambda x: np.where(MASK, x, 2 * x), "clip": lambda x: np.clip(x, -0.5, 0.5),
        "select": lambda x: np.select([x > 0, x > -1], [x, x * x], 3.0),
        "index": lambda x: x[0] * x[1, ::-1], "gather": lambda x: x[ROW] * x[ROW, 1:2],
        "mask": lambda x: x[MASK] ** 2, "take": lambda x: np.take(x, ROW, axis=1),
        "take_along": lambda x: np.take_along_axis(x, ROW[:, None], 1),
        "at set": lambda x: np.asarray(x).at[0].set(2 * x[1]),
        "at add": lambda x: np.asarray(x).at[ROW].add(x**2),
        "at multiply": lambda x: np.asarray(x).at[ROW].multiply(x),
        "at mask": lambda x: np.asarray(x).at[MASK].set(1.0) * x,
        "at strided": lambda x: np.asarray(x).at[:, ::2].add(x[:, 1:]),
        "at divide": lambda x: np.asarray(x).at[0].divide(x[1]),
        "at duplicate": lambda x: np.asarray(x).at[numpy.array([0, 0])].add(x * x),
        "at apply": lambda x: np.asarray(x).at[0].apply(np.sin),
        "reshape": lambda x: x.reshape(3, 2) @ x, "transpose": lambda x: x.T @ x,
        "concatenate": lambda x: np.concatenate([x, x * x], 1),
        "stack": lambda x: np.stack([x, np.sin(x)]), "split": lambda x: np.split(x, 3, 1)[1] * x,
        "tile": lambda x: np.tile(x, (2, 2)) ** 2, "repeat": lambda x: np.repeat(x, 2, 1) ** 2,
        "pad": lambda x: np.pad(x, 1, mode="reflect") ** 2,
        "pad edge": lambda x: np.pad(x, 1, mode="edge") ** 2,
        "roll": lambda x: np.roll(x, 1, 1) * x, "flip": lambda x: np.flip(x) * x,
        "tril": lambda x: np.tril(x) ** 2, "diag": lambda x: np.diag(x[0]) @ x.T,
        "outer": lambda x: np.outer(x, x), "kron": lambda x: np.kron(x, x),
        "cross": lambda x: np.cross(x, x[::-1]), "dot": lambda x: np.dot(x, W),
        "inner": lambda x: np.inner(x, x), "vdot": lambda x: np.vdot(x, x),
        "tensordot": lambda x: np.tensordot(x, x, ((0,), (0,))),
        "einsum": lambda x: np.einsum("ij,kj,jl->ikl", x, x, W),
        "einsum diagonal": lambda x: np.einsum("ii->i", x @ x.T), "norm": np.linalg.norm,
        "norm 3": lambda x: np.linalg.norm(x, 3, axis=1),
        "norm nuc": lambda x: np.linalg.norm(x, "nuc"),
        "average": lambda x: np.average(x, weights=x * x), "cov": np.cov,
        "corrcoef": lambda x: np.corrcoef(x), "convolve": lambda x: np.convolve(x[0], x[1]),
        "correlate": lambda x: np.correlate(x[0], x[1], "full"),
        "interp": lambda x: np.interp(x, np.arange(-3.0, 4.0), np.sin(np.arange(7.0))),
        "gradient": lambda x: np.gradient(x, axis=1),
        "quantile": lambda x: np.quantile(x, 0.3, axis=1),
        "polyval": lambda x: np.polyval(x[0], x[1]),
        "logspace": lambda x: np.logspace(x[0], x[1], 3),
        "linspace": lambda x: np.linspace(x[0], x[1], 4),
        "vectorize": lambda x: np.vectorize(lambda q, r: q * r)(x, x),
        "apply_along_axis": lambda x: np.apply_along_axis(lambda q: np.cumsum(q**2), 1, x),
        "fft": lambda x: np.abs(np.fft.fft(x)) ** 2, "rfft": lambda x: np.fft.rfft(x).real,
        "irfft": lambda x: np.fft.irfft(x + 1j * x, 4), "unwrap": np.unwrap,
        "nan_to_num": np.nan_to_num, "searching": lambda x: x[np.argmax(x, axis=0), np.arange(3)],
        "complex": lambda x: np.abs(np.exp(1j * x) + x), "angle": lambda x: np.angle(x + 1j),
        "roots": lambda x: np.abs(np.roots(x[0], strip_zeros=False)),
    }.items()),
    *((name, f, SQ) for name, f in {
        "inv": np.linalg.inv, "det": np.linalg.det,
        "det 6": lambda x: np.linalg.det(np.kron(SQ[:2, :2], x)) / 1e3,
        "slogdet": lambda x: np.linalg.slogdet(x)[1], "solve": lambda x: np.linalg.solve(x, V),
        "solve matrix": lambda x: np.linalg.solve(x, x @ NONSQ.T), "cholesky": np.linalg.cholesky,
        "cholesky upper": lambda x: np.linalg.cholesky(x, upper=True),
        "eigvalsh": np.linalg.eigvalsh, "eigh": lambda x: np.abs(np.linalg.eigh(x)[1]),
        "svd": lambda x: np.abs(np.linalg.svd(x)[0]),
        "eigvals": lambda x: np.linalg.eigvals(x).real,
        "matrix_power": lambda x: np.linalg.matrix_power(x, -2),
        "eig": lambda x: np.abs(np.linalg.eig(x)[1]),
        "slogdet complex": lambda x: np.linalg.slogdet(x + 1j * x.T + 1)[1],
        "slogdet phase": lambda x: np.linalg.slogdet(x + 1j * x.T + 1)[0].imag,
        "det complex": lambda x: np.linalg.det(np.kron(SQ[:2, :2], x + 1j)).imag / 1e3,
        "multi_dot": lambda x: np.linalg.multi_dot([x, x, V]),
    }.items()),
    *((name, f, NONSQ) for name, f in {
        "qr": lambda x: np.linalg.qr(x)[0], "qr r": lambda x: np.linalg.qr(x)[1],
        "qr wide": lambda x: np.linalg.qr(x.T)[1],
        "svd tall": lambda x: np.abs(np.linalg.svd(x, full_matrices=False)[0]),
        "svd wide": lambda x: np.abs(np.linalg.svd(x.T, full_matrices=False)[2]),
        "svdvals": np.linalg.svdvals, "pinv": np.linalg.pinv,
        "lstsq": lambda x: np.linalg.lstsq(x, x[:, 0] ** 2)[0],
    }.items()),
]  # fmt: skip


def weighted(f: Any) -> Any:
    """A scalar function: all results in a fixed random combination."""

    def g(x: Any) -> Any:
        out = f(x)
        weights = numpy.random.RandomState(3).randn(*out.shape)
        return np.sum(out * weights)

    return g


@pytest.mark.parametrize(("name", "f", "x"), FUNCTIONS, ids=[c[0] for c in FUNCTIONS])
def test_first_derivative(name: str, f: Any, x: Any) -> None:
    g = weighted(f)
    direction = numpy.random.RandomState(5).randn(*x.shape)
    step = 1e-6
    with tinyjax.enable_x64(True):
        want = (float(g(x + step * direction)) - float(g(x - step * direction))) / (2 * step)
        value, tangent = tinyjax.jvp(g, (x,), (direction,))
        gradient = tinyjax.grad(g)(x)
    assert gradient.shape == x.shape
    assert gradient.dtype == numpy.float64
    scale = max(1.0, abs(want))
    assert abs(float(tangent) - want) < 1e-5 * scale
    assert abs(float((numpy.asarray(gradient) * direction).sum()) - want) < 1e-5 * scale


SECOND = [c for c in FUNCTIONS if c[0] in {
    "inv", "det 6", "slogdet", "solve", "cholesky", "eigvalsh", "svdvals", "pinv",
    "logaddexp(A, V)", "hypot(A, V)", "power 3", "at multiply", "sinc(A)", "einsum",
    "cumprod(B3, 1)", "prod(B3, 1)", "norm", "qr", "eigh", "index", "at mask", "fft",
}]  # fmt: skip


@pytest.mark.parametrize(("name", "f", "x"), SECOND, ids=[c[0] for c in SECOND])
def test_second_derivative(name: str, f: Any, x: Any) -> None:
    g = weighted(f)
    direction = numpy.random.RandomState(5).randn(*x.shape)
    step = 1e-5
    with tinyjax.enable_x64(True):
        slope = tinyjax.grad(g)
        ahead, behind = slope(x + step * direction), slope(x - step * direction)
        want = float(np.sum((ahead - behind) * direction)) / (2 * step)
        got = tinyjax.grad(lambda y: np.sum(slope(y) * direction))(x)
        forward = tinyjax.jvp(slope, (x,), (direction,))[1]
    scale = max(1.0, abs(want))
    assert abs(float((numpy.asarray(got) * direction).sum()) - want) < 1e-4 * scale
    assert abs(float((numpy.asarray(forward) * direction).sum()) - want) < 1e-4 * scale


def test_gradients_at_singular_points_are_those_of_jax() -> None:
    # sinc is smooth at 0; the gradient of a maximum is shared between ties.
    assert float(tinyjax.grad(np.sinc)(0.0)) == 0.0
    assert np.array_equal(
        tinyjax.grad(np.max)(np.array([1.0, 2.0, 2.0])), np.array([0.0, 0.5, 0.5])
    )
    with tinyjax.enable_x64(True):
        singular = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]])
        cofactors = tinyjax.grad(lambda x: np.linalg.det(np.kron(np.eye(2), x)[:4, :4]))(singular)
    assert numpy.isfinite(numpy.asarray(cofactors)).all()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_sorting_nothing_has_a_gradient(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape)
    for f in (np.sort, lambda x: np.sort(x, axis=0), lambda x: tinyjax.lax.sort([x, x])[1]):
        for run in (lambda g: g, tinyjax.jit):
            assert run(tinyjax.grad(lambda x, f=f: f(x).sum()))(x).shape == shape
    y, dy = tinyjax.jvp(lambda x: tinyjax.lax.top_k(x, 0)[0], (x,), (x,))
    assert y.shape == dy.shape == (*shape[:-1], 0)


def test_a_power_of_booleans_is_not_weakly_typed() -> None:
    y = np.power(np.array([True, False]), 2)
    assert y.dtype == np.int32 and not y.weak_type
