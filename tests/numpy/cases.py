"""Expressions over named operands, for comparison with NumPy (values) and JAX (types, errors).

An expression names its library `np`; it is evaluated with NumPy, jax.numpy and tinyjax.numpy. One
that starts with "!" has no NumPy counterpart (or another meaning there): its value is JAX's.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy

R = numpy.random.RandomState(0)

OPERANDS: dict[str, Any] = {
    "a": R.randn(2, 3).astype("f4"),
    "w": R.randn(3, 4).astype("f4"),
    "v": R.randn(3).astype("f4"),
    "p": R.rand(2, 3).astype("f4") * 0.8 + 0.1,
    "b3": R.randn(2, 3, 4).astype("f4"),
    "sq": (lambda m: m @ m.T + 3 * numpy.eye(3))(R.randn(3, 3)).astype("f4"),
    "long": R.randn(50).astype("f4"),
    "n": numpy.array([[1.5, numpy.nan, -2.0], [numpy.inf, 0.0, -numpy.inf]], "f4"),
    "z": numpy.array([[-0.0, 0.0, 1.0], [2.5, -2.5, 3.5]], "f4"),
    "i": R.randint(-5, 6, (2, 3)).astype("i4"),
    "j": R.randint(1, 4, (2, 3)).astype("i4"),
    "u": R.randint(0, 250, (2, 3)).astype("u1"),
    "t": numpy.array([[True, False, True], [False, False, True]]),
    "k": numpy.array([2, 0, 1, 1], "i4"),
    "row": numpy.array([1, 0], "i4"),
    "m3": numpy.array([True, False, True]),
    "c": (R.randn(2, 3) + 1j * R.randn(2, 3)).astype("c8"),
    "h": R.randn(2, 3).astype("f2"),
    "bf": R.randn(2, 3).astype(ml_dtypes.bfloat16),
    "i8": R.randint(-100, 100, (2, 3)).astype("i1"),
    "s": 2,
    "x": 2.5,
}

UFUNCS = [
    *(
        f"np.{f}(a)"
        for f in (
            "exp expm1 sin cos tan arctan sinh cosh tanh arcsinh sqrt cbrt exp2 floor ceil trunc rint sign "
            "absolute fabs negative positive square reciprocal isnan isinf isfinite signbit deg2rad "
            "rad2deg sinc isposinf isneginf logical_not degrees radians real imag conjugate angle spacing"
        ).split()
    ),
    *(f"np.{f}(p)" for f in "log log2 log10 log1p arcsin arccos arctanh sqrt".split()),
    *(f"np.{f}(n)" for f in "exp sqrt floor sign absolute isnan isfinite nan_to_num tanh".split()),
    *(f"np.{f}(c)" for f in "exp sin sqrt log absolute square reciprocal conjugate angle sign".split()),
    *(f"np.{f}(i)" for f in "exp sin absolute negative square sign floor sqrt invert isnan".split()),
    *(f"np.{f}(h)" for f in "exp sin absolute sqrt".split()),
    *(
        f"np.{f}(a, v)"
        for f in (
            "add subtract multiply divide true_divide floor_divide remainder fmod maximum minimum "
            "fmax fmin arctan2 hypot copysign nextafter equal not_equal less less_equal greater greater_equal "
            "logaddexp logaddexp2 logical_and logical_or logical_xor heaviside"
        ).split()
    ),
    *(
        f"np.{f}(i, j)"
        for f in (
            "add subtract multiply divide floor_divide remainder fmod maximum power gcd lcm bitwise_and "
            "bitwise_or bitwise_xor left_shift right_shift equal less logical_and arctan2"
        ).split()
    ),
    "np.add(i, x)", "np.add(i, a)", "np.add(u, s)", "np.add(t, t)", "np.multiply(t, t)", "np.add(u, i)",
    "np.add(h, s)", "np.add(h, a)", "np.multiply(c, x)", "np.maximum(n, 0)", "np.minimum(n, a)",
    "np.power(a, 3)", "np.power(p, v)", "np.power(i, 2)", "np.power(p, -2)", "np.power(j, 0.5)",
    "np.float_power(j, 2)", "np.power(c, 2)", "np.ldexp(a, i)", "np.frexp(a)", "np.modf(a)",
    "np.divmod(a, v)", "np.divmod(i, j)", "np.round(z)", "np.round(a, 2)", "np.around(a, 1)",
    "np.clip(a, -0.5, 0.5)", "np.clip(i, 0, 3)", "np.clip(a, None, 0)", "np.nan_to_num(n, nan=1.0)",
    "np.isclose(a, a + 1e-7)", "np.isclose(n, n, equal_nan=True)", "np.allclose(a, a)",
    "np.array_equal(a, a)", "np.array_equal(a, v)", "np.array_equiv(a, a)", "np.where(t, a, v)",
    "np.where(t, 1, 2.5)", "np.where(t, i, 0)", "np.select([a > 0, v > 0], [a, i], 7)",
    "np.piecewise(a, [a < 0, a > 1], [-1, lambda q: q * 2, 0])", "np.i0(v)", "np.bitwise_count(i)",
    "np.iscomplex(c)", "np.isreal(c)", "np.real(c)", "np.imag(c)", "np.unwrap(v * 9)", "np.signbit(z)",
    "np.ptp(a)", "np.interp(v, np.arange(3.0), v)", "np.logical_not(i)", "np.spacing(p)",
]  # fmt: skip

REDUCTIONS = [
    *(
        f"np.{f}({args})"
        for f in "sum prod max min mean std var any all argmax argmin count_nonzero median".split()
        for args in ("a", "a, axis=0", "b3, axis=1, keepdims=True", "i, axis=1")
    ),
    *(f"np.{f}(b3, axis=(0, 2))" for f in "sum max mean var all".split()),
    *(
        f"np.{f}(n, axis=1)"
        for f in "nansum nanprod nanmax nanmin nanmean max min argmax sum nanargmax nancumsum".split()
    ),
    *(f"np.{f}(a, axis=1)" for f in "cumsum cumprod nancumsum nanvar nanstd nanmedian".split()),
    "np.sum(t)", "np.sum(u)", "np.sum(i8, axis=0)", "np.prod(u)", "np.mean(i)", "np.mean(h)", "np.mean(t)",
    "np.sum(c)", "np.mean(c, axis=0)", "np.var(c)", "np.sum(a, where=t)", "np.mean(a, where=t)",
    "np.max(a, where=t, initial=-9)", "np.sum(a, initial=3)", "np.min(a, axis=1, initial=0)",
    "np.std(a, ddof=1)", "np.var(a, axis=0, ddof=1)", "np.average(a, weights=p)", "np.average(a, axis=0)",
    "np.average(a, axis=1, weights=v)", "np.cumsum(a)", "np.cumsum(t)", "np.cumprod(i, axis=0)",
    "np.argmax(n)", "np.argmax(a, axis=1, keepdims=True)", "np.cov(a)", "np.cov(a, rowvar=False)",
    "np.cov(c)", "np.corrcoef(b3[0])", "np.cov(a, aweights=v**2)", "np.cov(a, fweights=j[0])",
    "np.quantile(a, 0.3)", "np.quantile(b3, np.array([0.1, 0.9], 'f4'), axis=1)", "np.percentile(a, 40, axis=0)",
    "np.nanquantile(n[:1], 0.5, axis=1)", "np.quantile(a, 0.5, method='nearest', axis=1)",
    "np.quantile(a, 0.3, method='lower')", "np.quantile(a, 0.3, method='higher', keepdims=True)",
    "np.histogram(long, 5)", "np.histogram(long, 5, range=(-1, 1))", "np.histogram(long, 4, weights=long)",
    "np.histogram(long, np.array([-1.0, 0, 0.5, 2]))", "np.histogram(long, 5, density=True)",
    "np.histogram2d(long, long[::-1], 3)", "np.histogram_bin_edges(long, 3)", "np.bincount(k)",
    "np.bincount(k, weights=w[0])", "np.bincount(k, minlength=6)", "np.digitize(v, np.array([-1.0, 0, 1]))",
    "np.digitize(v, np.array([1.0, 0, -1]))", "np.digitize(v, np.array([-1.0, 0, 1]), right=True)",
    "np.trapezoid(a)", "np.trapezoid(a, x=v, axis=1)", "np.trapezoid(a, dx=0.5, axis=0)",
    "np.diff(a)", "np.diff(a, axis=0)", "np.diff(b3, n=2)", "np.diff(t)", "np.diff(a, prepend=0, append=a)",
    "np.ediff1d(a, to_end=9, to_begin=v)", "np.gradient(b3)", "np.gradient(a, 0.5, axis=1)",
    "np.gradient(v, np.array([0.0, 1.0, 3.0], 'f4'))", "np.cumulative_sum(v)",
    "np.cumulative_sum(v, include_initial=True)", "np.cumulative_prod(a, axis=1, include_initial=True)",
]  # fmt: skip

SHAPES = [
    "np.reshape(a, (3, 2))", "np.reshape(a, -1)", "np.reshape(b3, (4, -1))", "np.reshape(a, (3, 2), order='F')",
    "np.ravel(a)", "np.ravel(a, order='F')", "np.transpose(b3)", "np.transpose(b3, (1, 0, 2))",
    "np.permute_dims(b3, (2, 0, 1))", "np.matrix_transpose(b3)", "np.swapaxes(b3, 0, -1)",
    "np.moveaxis(b3, 0, -1)", "np.moveaxis(b3, (0, 1), (2, 0))", "np.rollaxis(b3, 2)", "np.rollaxis(b3, 0, 3)",
    "np.expand_dims(a, 1)", "np.expand_dims(a, (0, -1))", "np.squeeze(a[None])", "np.squeeze(a[None, :, None], (0, 2))",
    "np.broadcast_to(v, (2, 3))", "np.broadcast_arrays(a, v, 1)", "np.atleast_1d(x)", "np.atleast_2d(v, a)",
    "np.atleast_3d(v)", "np.atleast_3d(a)", "np.concatenate([a, a])", "np.concatenate([a, i], axis=1)",
    "np.concatenate([a, v], axis=None)", "np.concat([a, a], axis=1)", "np.stack([a, a], axis=1)", "np.stack([v, v], -1)",
    "np.vstack([a, v])", "np.hstack([a, a])", "np.hstack([v, v])", "np.dstack([a, a])", "np.column_stack([v, v])",
    "np.split(b3, 2, axis=2)", "np.split(v, [1, 2])", "np.array_split(v, 2)", "np.vsplit(a, 2)", "np.hsplit(b3, 3)",
    "np.dsplit(b3, 2)", "np.tile(v, 2)", "np.tile(a, (2, 1, 3))", "np.repeat(a, 2)", "np.repeat(a, 3, axis=1)",
    "np.repeat(v, np.array([1, 0, 2]))", "np.repeat(a, np.array([2, 1]), axis=0)", "np.resize(a, (2, 5))",
    "np.flip(a)", "np.flip(b3, (0, 2))", "np.fliplr(a)", "np.flipud(a)", "np.rot90(a)", "np.rot90(b3, 2, (1, 2))",
    "np.rot90(a, -1)", "np.roll(a, 1)", "np.roll(b3, (1, 2), (0, 2))", "np.roll(a, -1, axis=1)", "np.pad(a, 1)",
    "np.pad(a, ((1, 0), (0, 2)), constant_values=9)", "np.pad(a, 2, mode='edge')", "np.pad(a, 2, mode='wrap')",
    "np.pad(a, 5, mode='reflect')", "np.pad(a, 3, mode='symmetric')", "np.pad(a, 2, mode='reflect', reflect_type='odd')",
    "np.pad(a, 2, mode='linear_ramp', end_values=1.5)", "np.pad(a, 1, mode='maximum')", "np.pad(i, 1, mode='mean')",
    "np.pad(a, 1, mode='minimum', stat_length=1)", "np.pad(v, (1, 2), constant_values=(3, 4))",
    "np.append(a, v)", "np.append(a, a, axis=0)", "np.delete(a, 1, axis=1)", "np.delete(v, np.array([0, 2]))",
    "np.delete(a, slice(0, 2), 1)", "np.insert(v, 1, 9)", "np.insert(a, 1, v, axis=0)", "np.insert(a, np.array([0, 2]), 5, axis=1)",
    "np.insert(a, 1, np.array([7, 8]), axis=1)", "np.block([[a, a], [a, a]])", "np.trim_zeros(np.array([0, 0, 1, 2, 0]))",
    "np.unstack(a)", "np.diag(v)", "np.diag(sq)", "np.diag(v, 1)", "np.diag(sq, -1)", "np.diagonal(b3, 1, 1, 2)", "np.diagflat(a)",
    "np.tril(sq)", "np.triu(b3, 1)", "np.tri(3, 4, 1)", "np.eye(3)", "np.eye(2, 4, 1, dtype='int32')", "np.identity(2)",
    "np.vander(v, 3)", "np.meshgrid(v, v[:2])", "np.meshgrid(v, v[:2], indexing='ij', sparse=True)", "np.indices((2, 3))",
    "np.arange(5)", "np.arange(1.0, 2.0, 0.25)", "np.linspace(0, 1, 5)", "np.linspace(v, 2, 4, endpoint=False)",
    "np.logspace(0, 2, 4)", "np.geomspace(1, 8, 4)", "np.zeros((2, 3))", "np.ones(3, dtype='int32')", "np.full((2, 2), 7)",
    "np.full((2,), 1.5)", "np.zeros_like(i)", "np.ones_like(a)", "np.full_like(i, 3)", "np.array([1, 2])", "np.array([1.0, 2])",
    "np.array([[1, 2.5], [3, 4]])", "np.asarray(3)", "np.asarray(True)", "np.array(2.5)", "np.array([a, a])",
    "np.astype(a, np.int32)", "np.fromfunction(lambda q, r: q + r, (2, 3))", "np.packbits(t, axis=1)", "np.unpackbits(u, axis=1)",
    "np.hanning(6)", "np.hamming(5)", "np.blackman(5)", "np.bartlett(5)", "np.kaiser(5, 4.0)", "np.r_[v, 1, 2]", "np.c_[v, v]",
    "np.mgrid[0:2, 0:3]", "np.ogrid[0:2, 0:3]", "np.r_[0:1:5j]", "np.broadcast_shapes((2, 1), (3,))", "np.size(a)", "np.ndim(a)",
]  # fmt: skip

INDEXING = [
    "a[0]", "a[-1]", "a[:, 1]", "a[0, 2]", "a[..., 0]", "a[None]", "a[:, None, 1:]", "b3[1, ..., ::2]", "b3[::-1, 1:, ::-2]",
    "b3[0, 2:0:-1]", "v[5:9]", "v[2:1]", "a[()]", "a[...]", "a[k[1:3] - 1]", "a[row]", "b3[:, k[:3]]", "b3[:, k[:3], 1]",
    "b3[0, k[:3]]", "b3[row, :, k[:2]]", "b3[row, k[:2]]", "b3[row[:, None], k[None, :2]]", "b3[:, None, k[:3], 0]",
    "b3[row, None, 1:, k[:2]]", "b3[..., k]", "b3[1, row[:, None], ..., row]", "a[-row - 1]", "a[t]", "b3[t]", "b3[:, m3]",
    "b3[:, m3, ::2]", "b3[row, m3]", "a[True]", "a[False]", "a[0, True]", "v[np.array(1)]", "a[np.array(1), 0:2]",
    "b3[np.array(1), :, np.array(-1)]", "a[row, ::-1]", "b3[row, ::-1, ::2]", "a[np.array([], 'int32')]", "a[row.astype('uint8')]",
    "b3[0, :, row]", "b3[:, 0, row]", "b3[row, :, 0]", "b3[0, row, 0]", "b3[None, row, 0, None]", "b3[[0, 1], [1, 2]]" , "b3[(1, 0), :]",
    "np.take(a, k, axis=1)", "np.take(a, row)", "np.take(b3, row[:, None], axis=2)", "np.take(a, -1, axis=1)", "np.take(v, k + 7, mode='wrap')",
    "np.take_along_axis(a, row[:, None], axis=1)", "np.take_along_axis(b3, np.argsort(b3, axis=1), axis=1)", "np.take_along_axis(v, k, None)",
    "np.compress(m3, a, axis=1)", "np.extract(t, a)", "np.choose(row, [row * 3, row + 7])", "np.nonzero(t)", "np.argwhere(t)",
    "np.flatnonzero(t)", "np.where(t)", "np.unravel_index(k, (2, 3))", "np.ravel_multi_index((row, k[:2]), (2, 3))", "np.diag_indices(3)",
    "np.tril_indices(3)", "np.triu_indices(3, 1, 4)", "np.tril_indices_from(sq)", "a[np.ix_(row, k[:2])]", "np.mask_indices(3, np.triu)",
    "a[np.s_[0:1, ::2]]", "a[np.index_exp[0]]",
]  # fmt: skip

UPDATES = [
    *(
        f"!a.at[{where}].{op}({value})"
        for where, value in (
            ("0", "v"), ("1, 2", "7"), (":, 1", "row"), ("::2, ::-1", "v"), ("..., 1:", "2.5"), ("row", "a"), ("row[:1], ::2", "3"),
            ("k[:2], k[:2]", "5"), ("row, :2", "1.5"), ("np.array([0, 0])", "v"), ("t", "4"), ("None, 0", "v"), ("1:1", "3"), ("np.array(1)", "v"),
            ("np.array([0, 5])", "2"), ("row, 1:", "a[:, 1:]"), ("row[:, None], k[:2]", "9"), ("1:, k[:2]", "a[1:, :2]"),
        )
        for op in ("set", "add", "multiply", "min", "max")
    ),
    *(f"!a.at[{where}].{op}({value})" for where, value in (("0", "v"), ("row", "2"), ("::2", "2.5")) for op in ("subtract", "divide", "power")),
    "!a.at[0].apply(np.sin)", "!a.at[np.array([0, 0])].apply(lambda q: q * 2)", "!i.at[0].set(7)", "!i.at[row].add(1)", "!u.at[0, 1].add(250)",
    "!t.at[0].set(False)", "!c.at[0].set(1j)", "!a.at[np.array([5])].get()", "!a.at[np.array([5])].get(mode='fill')", "!a.at[5].get(mode='clip')",
    "!a.at[np.array([5, -1])].get(mode='fill', fill_value=9)", "!a.at[5].set(1, mode='drop')", "!a.at[np.array([5])].set(1, mode='clip')",
    "!i.at[np.array([5])].get(mode='fill')", "!u.at[np.array([5])].get(mode='fill')", "!a.at[t].set(v[:2].sum())", "!b3.at[:, k[:3]].set(0)",
    "!b3.at[row, :, k[:2]].add(1)", "!b3.at[0, :, row].set(5)", "!b3.at[:, m3].set(1)", "!b3.at[t].set(w[0])", "!b3.at[t].add(w[:3])",
    "!h.at[row].add(1)", "!bf.at[np.array([0, 0, 0])].add(bf[0])", "!np.put_along_axis(a, row[:, None], 9, 1, inplace=False)",
    "!np.fill_diagonal(sq, 0, inplace=False)", "!np.fill_diagonal(a, v, inplace=False)", "!np.put(a, k, v, inplace=False)", "!np.place(a, t, v, inplace=False)",
]  # fmt: skip

SIZED = [
    "!np.nonzero(t, size=4, fill_value=7)", "!np.nonzero(t, size=2)", "!np.where(t, size=5)", "!np.argwhere(t, size=4, fill_value=-1)",
    "!np.flatnonzero(t, size=4, fill_value=9)", "!np.unique(k, size=5)", "!np.unique(k, size=2)", "!np.unique(k, size=4, fill_value=8)",
    "!np.unique(k, return_index=True, return_inverse=True, return_counts=True, size=5)", "!np.compress(m3, a, axis=1, size=3, fill_value=5)",
    "!np.bincount(k, length=2)", "!np.bincount(k, length=6)", "!np.repeat(v, k[:3], total_repeat_length=5)", "!np.union1d(k, row, size=5)",
    "!np.setdiff1d(k, row, size=3)", "!np.setdiff1d(k, row, size=3, fill_value=9)", "!np.intersect1d(k, row, size=3)", "!np.setxor1d(k, row, size=3)",
    "!np.unravel_index(np.array([7, -1]), (2, 3))", "!np.take(a, np.array([9, -9]))", "!np.take(i, np.array([9]), axis=1)", "!np.take(a, 9, mode='clip')",
    "!np.take_along_axis(a, row[:, None] + 5, 1)", "!np.take(a, np.array([9]), fill_value=3)", "!np.float32(i)", "!np.int32(2.7)", "!np.bfloat16(a)",
    "!np.bool_(i)", "!a.view(np.int32)", "!a.view(np.uint8)", "!u[:, :2].view(np.uint16)", "!c.view(np.float32)", "!np.sort(n, descending=True)",
    "!np.argsort(z, descending=True)", "!np.piecewise(a, [a < 0], [1])", "!np.interp(v, np.arange(3.0), v, left='extrapolate', right='extrapolate')",
    "!np.interp(v, np.arange(3.0), v, period=2.0)", "!np.polyval(v, a)", "!np.polydiv(w[0], v[:2])", "!np.vectorize(lambda q, r: q + r)(a, v)",
    "!np.sum(u, promote_integers=False)", "!np.convolve(i[0], i[1], preferred_element_type='float32')", "!np.matmul(i, j.T, preferred_element_type='float32')",
    "!np.apply_over_axes(np.sum, b3, (0, 2))", "!np.choose(k, [k, k * 2], mode='clip')", "!np.ravel_multi_index((row, k[:2]), (2, 2), mode='clip')",
]  # fmt: skip

ORDER = [
    "np.sort(a)", "np.sort(a, axis=0)", "np.sort(a, axis=None)", "np.sort(n)", "np.sort(i)", "np.sort(c)", "np.sort(t)", "np.sort(h)",
    "np.argsort(a)", "np.argsort(long)", "np.argsort(i, axis=0)", "np.argsort(n)", "np.lexsort((k, k[::-1]))", "np.sort_complex(c[0])",
    "np.lexsort(a)", "np.searchsorted(np.sort(long), v)", "np.searchsorted(np.sort(v), a, side='right')", "np.searchsorted(np.array([1, 2, 2, 3]), k)",
    "np.searchsorted(np.sort(n[0]), n)", "np.searchsorted(v, a, sorter=np.argsort(v))", "np.unique(k)", "np.unique(a)", "np.unique(k, return_counts=True)",
    "np.unique(k, return_index=True, return_inverse=True, return_counts=True)", "np.unique(np.array([[1, 2], [1, 2], [0, 3]]), axis=0)", "np.unique(n)",
    "np.unique(t)", "np.unique_all(k)", "np.unique_counts(k)", "np.unique_inverse(k)", "np.unique_values(k)", "np.isin(i, k)", "np.isin(k, long)",
    "np.isin(i, k, invert=True)", "np.union1d(k, row)", "np.setdiff1d(k, row)", "np.setxor1d(k, row)", "np.intersect1d(k, row)",
    "np.intersect1d(k, row, return_indices=True)", "np.convolve(v, w[0])", "np.convolve(w[0], v, 'same')", "np.convolve(v, w[0], 'valid')", "np.correlate(w[0], v)",
    "np.correlate(v, w[0], 'full')", "np.correlate(w[0], v, 'same')", "np.correlate(v, w[0], 'same')", "np.convolve(c[0], c[1])", "np.correlate(c[0], c[1], 'full')",
    "np.polyadd(v, w[0])", "np.polysub(v, w[0])", "np.polymul(v, w[0])", "np.polyder(w[0], 2)", "np.polyint(v, 2)", "np.polyint(v, 1, 3)", "np.polyval(v, 2.0)",
    "np.polyval(v, a)", "np.poly(v)", "np.polyfit(np.arange(4.0), w[0], 2)", "np.apply_along_axis(np.sum, 0, a)", "np.apply_along_axis(lambda q: q[:2] * 2, 1, b3)",
]  # fmt: skip

CONTRACTIONS = [
    "a @ w", "np.dot(a, w)", "np.dot(v, v)", "np.dot(a, v)", "np.dot(b3, w.T)", "np.dot(a, 2)", "np.dot(2.5, 3)", "np.matmul(b3, w.T)",
    "np.matmul(a, b3)", "np.matmul(b3[:, None], w.T[None])", "np.matmul(v, w)", "np.matmul(v, b3)", "np.matmul(b3.transpose(0, 2, 1), v)", "np.matmul(i, j.T)",
    "np.matmul(t, t.T)", "np.matmul(c, c.T)", "np.vdot(a, a)", "np.vdot(c, c)", "np.inner(a, v)", "np.inner(a, b3.transpose(0, 2, 1))", "np.inner(a, 2)", "np.outer(a, v)",
    "np.tensordot(b3, w, axes=([2], [1]))", "np.tensordot(b3, b3, 2) if False else np.tensordot(b3, w.T, 1)", "np.tensordot(b3, b3, axes=([0, 2], [0, 2]))",
    "np.tensordot(v, v, 0)", "np.kron(a, v)", "np.kron(a, sq)", "np.cross(a, v)", "np.cross(a[:, :2], a[:, 1:]) if False else np.cross(v, a)", "np.trace(sq)", "np.trace(b3, 1, 1, 2)",
    "np.vecdot(a, v)", "np.vecdot(c, c)", "np.matvec(b3.transpose(0, 2, 1), v)", "np.vecmat(v, b3)", "np.einsum('ij,jk->ik', a, w)", "np.einsum('ij,jk', a, w)", "np.einsum('ii', sq)",
    "np.einsum('ii->i', sq)", "np.einsum('ij->ji', a)", "np.einsum('ij->', a)", "np.einsum('ij,ij->i', a, a)", "np.einsum('i,j->ij', v, v)", "np.einsum('bij,jk->bik', b3, w.T)",
    "np.einsum('...ij,...jk->...ik', b3, w.T)", "np.einsum('bij,bkj,i->bk', b3, b3, v)", "np.einsum('ij,j', a, v)", "np.einsum(a, [0, 1], v, [1], [0])", "np.einsum('i...,i...->...', sq, sq)",
    "np.einsum('ij,kj,jl,lm->ikm', a, a, w, w.T)", "np.einsum('ab,ab,ab->a', a, a, a)", "np.einsum('bij->b', b3)", "np.einsum('ij,ij->ij', a, a)", "np.einsum('ij,ji', sq, sq)", "np.einsum('i,i', i[0], i[1])",
    "np.linalg.norm(a)", "np.linalg.norm(v, 1)", "np.linalg.norm(v, np.inf)", "np.linalg.norm(a, axis=1)", "np.linalg.norm(a, 'nuc')", "np.linalg.norm(a, 2)", "np.linalg.norm(sq, -2)", "np.linalg.norm(v, 3)",
    "np.linalg.norm(b3, axis=(0, 2), ord=1)", "np.linalg.norm(c)", "np.linalg.norm(a, np.inf, keepdims=True)", "np.linalg.inv(sq)", "np.linalg.det(sq)", "np.linalg.det(np.kron(sq[:2, :2], sq))", "np.linalg.slogdet(sq)",
    "np.linalg.solve(sq, v)", "np.linalg.solve(sq, a.T)", "np.linalg.cholesky(sq)", "np.linalg.cholesky(sq, upper=True)", "np.linalg.eigvalsh(sq)", "np.linalg.svdvals(a)", "np.linalg.pinv(a)", "np.linalg.matrix_rank(sq)",
    "np.linalg.matrix_power(sq, 3)", "np.linalg.matrix_power(sq, -2)", "np.linalg.multi_dot([a, w, w.T, v])", "np.linalg.lstsq(w.T, w[0])[0]", "np.linalg.cond(sq)", "np.linalg.cond(sq, 1)", "np.linalg.tensorinv(np.eye(6).reshape(2, 3, 3, 2))",
    "np.linalg.tensorsolve(np.eye(6).reshape(2, 3, 6), a)", "np.linalg.vector_norm(a)", "np.linalg.vector_norm(b3, axis=(0, 1), ord=1)", "np.linalg.matrix_norm(b3)", "np.linalg.cross(a, v)", "np.linalg.outer(v, v)",
    "np.linalg.diagonal(b3)", "np.linalg.trace(b3)", "np.linalg.matrix_transpose(a)", "np.linalg.vecdot(a, v)", "np.fft.fft(a)", "np.fft.rfft(a, 4)", "np.fft.irfft(c, 5)", "np.fft.fft2(b3)", "np.fft.ifftn(c)",
    "np.fft.fftfreq(5, 0.5)", "np.fft.fftshift(v)", "np.fft.hfft(c[0])",
]  # fmt: skip

OPERATORS = [
    *(f"a {op} v" for op in "+ - * / // % ** == != < <= > >= @".split() if op != "**"),
    *(f"2 {op} p" for op in "+ - * / // % ** < >=".split()),
    *(f"p {op} 2.5" for op in "+ - * / // % ** ==".split()),
    *(f"i {op} 3" for op in "+ - * / // % ** & | ^ << >> < ==".split() if op not in ("**",)),
    *(f"3 {op} j" for op in "+ - * / // % & | ^ << >>".split()),
    "-a", "+a", "abs(a)", "~i", "~t", "t & t", "t | False", "divmod(a, 2)", "divmod(7, j)", "a**2", "i**2", "p**-1", "p**0.5", "2**i.astype('f4')", "i + a", "i + x", "u + s", "h * 2", "bf + 1", "bf * a",
    "c * 2", "t + 1", "t * 2.5", "a.sum()", "a.mean(0)", "a.reshape(3, 2)", "a.reshape(-1)", "a.reshape((3, 2))", "a.T", "b3.mT", "b3.transpose(1, 0, 2)", "b3.transpose((2, 0, 1))", "a.astype('int32')", "a.flatten()",
    "a.ravel()", "a[None].squeeze()", "a.dot(w)", "a.max(axis=1)", "a.argmax()", "a.min()", "a.argmin(1)", "a.std()", "a.var(1)", "a.cumsum(1)", "a.cumprod(0)", "a.clip(-1, 1)", "a.round(1)", "t.any()", "t.all(0)", "a.repeat(2, 1)", "a.swapaxes(0, 1)",
    "sq.trace()", "b3.diagonal()", "t.nonzero()", "c.real", "c.imag", "c.conj()", "a.prod()", "a.take(row)", "a.argsort(1)", "a.searchsorted if False else np.sort(v).searchsorted(v)", "a.copy()", "a.item(2)", "a.tolist()", "len(a)", "a.size", "a.ndim", "a.nbytes",
    "[q for q in v]", "(a > 0).sum()", "round(v[0].item(), 2)", "a.compress(m3, axis=1)", "a.choose if False else row.choose([row, row])", "float(v[1])", "int(i[0, 0])", "bool(t[0, 0])", "v[0] in v",
]  # fmt: skip

TABLES = {
    "ufuncs": UFUNCS,
    "reductions": REDUCTIONS,
    "shapes": SHAPES,
    "indexing": INDEXING,
    "updates": UPDATES,
    "sized": SIZED,
    "order": ORDER,
    "contractions": CONTRACTIONS,
    "operators": OPERATORS,
}
