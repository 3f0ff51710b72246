"""tinyjax.numpy.linalg: linear algebra over the last two axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.dims import as_int, is_symbolic, maximum
from tinyjax.core.matrices import across, adjoint, eye
from tinyjax.core.matrices import matmul as mm
from tinyjax.core.shapes import broadcast_shapes
from tinyjax.core.source import api_boundary as _api_boundary
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.custom_rules import custom_jvp
from tinyjax.engine.devices import place_results as _place_results
from tinyjax.engine.values import finish
from tinyjax.lax import linalg as lapack
from tinyjax.lax.linalg import ShapeMismatch
from tinyjax.numpy import contract
from tinyjax.numpy.contract import multi_dot as multi_dot
from tinyjax.numpy.creation import diagonal as diagonal_of
from tinyjax.numpy.determinants import determinant, sign_and_logdet
from tinyjax.numpy.indexing import concrete
from tinyjax.numpy.picking import take_along_node
from tinyjax.numpy.promotion import (
    ArrayLike,
    canonical_axes,
    canonical_axis,
    checked,
    promote_inexact,
)
from tinyjax.numpy.shaping import matrix_transpose as matrix_transpose
from tinyjax.numpy.sorting import argsort_node
from tinyjax.numpy.ufuncs import truth


class EighResult(NamedTuple):
    """Result of `eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class EigResult(NamedTuple):
    """Result of `eig`."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """Result of `qr`."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """Result of `svd`."""

    U: Array
    S: Array
    Vh: Array


class SlogdetResult(NamedTuple):
    """Result of `slogdet`."""

    sign: Array
    logabsdet: Array


def matrices(name: str, a: ArrayLike, square: bool = False) -> UOp:
    """An inexact node with two axes or more."""
    (n,) = promote_inexact(checked(f"jnp.linalg.{name}", a))
    if n.ndim < 2:
        raise ShapeMismatch(
            f"Argument to jnp.linalg.{name} must be at least two-dimensional; got shape {n.shape}"
        )
    if square and n.shape[-1] != n.shape[-2]:
        raise ValueError(
            f"Argument to jnp.linalg.{name} must have shape [..., n, n], got {n.shape}"
        )
    return b.cast(n, n.dtype)


# --- factorisations -----------------------------------------------------------------------------


def cholesky(a: ArrayLike, *, upper: bool = False, symmetrize_input: bool = True) -> Array:
    """Lower L with a = L L^H (or upper U with a = U^H U); NaN where a is not positive definite."""
    n = matrices("cholesky", a, square=True)
    if upper and not symmetrize_input:
        n = adjoint(n)
    low = lapack.cholesky(finish(n), symmetrize_input=symmetrize_input)
    return finish(adjoint(low.node)) if upper else low


def qr(a: ArrayLike, mode: str = "reduced") -> Any:
    """(Q, R); mode "reduced", "complete", or "r" for R alone."""
    n = matrices("qr", a)
    if mode not in ("reduced", "complete", "r", "full"):
        raise ValueError(f"Unsupported QR decomposition mode '{mode}'")
    q, r = lapack.qr(finish(n), full_matrices=mode in ("complete", "full"))
    return r if mode == "r" else QRResult(q, r)


def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:
    """(U, S, Vh) with singular values descending, or S alone."""
    n = matrices("svd", a)
    if hermitian:
        w, v = (x.node for x in eigh(a))
        s = b.abs_(w)
        order = argsort_node(s, s.ndim - 1, descending=True)
        s = _along(s, order)
        if not compute_uv:
            return finish(s)
        u = _along(v, across(order, v, rows=False))
        sign = b.cast(b.sign(_along(w, order)), u.dtype)
        vh = adjoint(b.mul(u, across(sign, u, rows=False)))
        return SVDResult(finish(u), finish(s), finish(vh))
    out = lapack.svd(
        finish(n),
        full_matrices=full_matrices,
        compute_uv=compute_uv,
        subset_by_index=subset_by_index,
    )
    return SVDResult(*out) if compute_uv else out


def _along(n: UOp, order: UOp) -> UOp:
    """Elements of the last axis in another order."""
    return take_along_node(n, order, n.ndim - 1, "promise_in_bounds", wrap=False)


def svdvals(x: ArrayLike, /) -> Array:
    """Singular values, descending."""
    return svd(x, compute_uv=False)  # type: ignore[no-any-return]


def eigh(a: ArrayLike, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """Eigenvalues (ascending) and eigenvectors of Hermitian matrices."""
    if UPLO not in (None, "L", "U"):
        raise ValueError(f"UPLO must be one of None, 'L', or 'U', got {UPLO}")
    n = matrices("eigh", a, square=True)
    v, w = lapack.eigh(finish(n), lower=UPLO != "U", symmetrize_input=symmetrize_input)
    return EighResult(w, v)


def eigvalsh(a: ArrayLike, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Array:
    """Eigenvalues of Hermitian matrices, ascending."""
    return eigh(a, UPLO, symmetrize_input).eigenvalues


def eig(a: ArrayLike) -> EigResult:
    """Eigenvalues and right eigenvectors of square matrices, complex."""
    n = finish(matrices("eig", a, square=True))
    return EigResult(*lapack.eig(n, compute_left_eigenvectors=False))


def eigvals(a: ArrayLike) -> Array:
    """Eigenvalues of square matrices, complex."""
    return eig(a).eigenvalues


# --- solving ------------------------------------------------------------------------------------


def inv(a: ArrayLike) -> Array:
    """Inverse matrices; not finite where singular."""
    n = matrices("inv", a, square=True)
    return lapack.solve(finish(n), finish(eye(n)))


def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """x with a x = b. A one-dimensional b is one vector; otherwise columns."""
    return finish(solve_node(a, b))


def solve_node(a: ArrayLike, rhs: ArrayLike) -> UOp:
    """`solve` as a node: batch axes are broadcast."""
    p, q = promote_inexact(checked("jnp.linalg.solve", a, rhs))
    p, q = b.cast(p, p.dtype), b.cast(q, q.dtype)
    if p.ndim < 2 or p.shape[-1] != p.shape[-2]:
        raise ValueError(
            "The arguments to solve must have shapes a=[..., m, m] and b=[..., m, k] or "
            "b=[..., m]; "
            f"got a={p.shape} and b={q.shape}"
        )
    vector = q.ndim == 1
    if not q.ndim or q.shape[0 if vector else -2] != p.shape[-1]:
        raise ValueError(
            "The arguments to solve must have shapes a=[..., m, m] and b=[..., m, k] or "
            "b=[..., m]; "
            f"got a={p.shape} and b={q.shape}"
        )
    if vector:
        q = b.unsqueeze(q, 1)
    lead = broadcast_shapes(p.shape[:-2], q.shape[:-2])
    p, q = b.broadcast(p, (*lead, *p.shape[-2:])), b.broadcast(q, (*lead, *q.shape[-2:]))
    x = lapack.solve(finish(p), finish(q)).node
    return b.squeeze(x, (x.ndim - 1,)) if vector else x


def det(a: ArrayLike) -> Array:
    """Determinant; explicit formulas up to 3 by 3, else by LU."""
    n = matrices("det", a, square=True)
    size = n.shape[-1]
    if is_symbolic(size) or size > 3:
        return determinant(finish(n))  # type: ignore[no-any-return]
    if size == 0:
        return finish(b.full(n.shape[:-2], b.like(n, 1)))

    def at(i: int, j: int) -> UOp:
        row = b.squeeze(b.slice_axis(n, n.ndim - 2, i, i + 1), (n.ndim - 2,))
        return b.squeeze(b.slice_axis(row, row.ndim - 1, j, j + 1), (row.ndim - 1,))

    def minor(i: int, j: int, k: int, m: int) -> UOp:
        return b.sub(b.mul(at(i, k), at(j, m)), b.mul(at(i, m), at(j, k)))

    if size == 1:
        return finish(at(0, 0))
    if size == 2:
        return finish(minor(0, 1, 0, 1))
    terms = [
        b.mul(at(0, 0), minor(1, 2, 1, 2)),
        b.neg(b.mul(at(0, 1), minor(1, 2, 0, 2))),
        b.mul(at(0, 2), minor(1, 2, 0, 1)),
    ]
    return finish(b.add(b.add(terms[0], terms[1]), terms[2]))


def slogdet(a: ArrayLike, *, method: str | None = None) -> SlogdetResult:
    """Sign (or phase) and logarithm of the absolute determinant."""
    if method not in (None, "lu", "qr"):
        raise ValueError(
            f"Unknown slogdet method '{method}'. Supported methods are 'lu' (the default), "
            "and 'qr'."
        )
    return SlogdetResult(*sign_and_logdet(finish(matrices("slogdet", a, square=True))))


def default_rcond(n: UOp) -> float:
    """JAX's cutoff of small singular values."""
    return 10.0 * max(n.shape[-2:]) * float(dtypes.finfo(n.dtype).eps)


def pinv(
    a: ArrayLike,
    rtol: ArrayLike | None = None,
    hermitian: bool = False,
    *,
    rcond: ArrayLike | None = None,
) -> Array:
    """Moore-Penrose inverse; singular values up to rtol times the largest count as 0."""
    n = matrices("pinv", a)
    cutoff = rtol if rtol is not None else rcond
    limit = default_rcond(n) if cutoff is None else cutoff
    (limit_node,) = checked("jnp.linalg.pinv", limit)
    return pseudo_inverse(
        finish(n), finish(b.cast(limit_node, dtypes.to_floating_dtype(n.dtype))), hermitian
    )


def pseudo_inverse(a: Array, limit: Array, hermitian: bool) -> Array:
    """The inverse on the kept singular vectors."""
    if 0 in a.shape:
        return finish(b.full((*a.shape[:-2], a.shape[-1], a.shape[-2]), b.like(a.node, 0)))

    @custom_jvp
    def f(x: Array) -> Array:
        u, s, vh = (y.node for y in svd(x, full_matrices=False, hermitian=hermitian))
        top = b.slice_axis(s, s.ndim - 1, 0, 1)
        cut = b.mul(
            b.broadcast(top, s.shape), b.broadcast(b.unsqueeze(limit.node, limit.ndim), s.shape)
        )
        keep = b.gt(s, cut)
        inverse = b.where(keep, b.reciprocal(b.where(keep, s, b.like(s, 1))), b.like(s, 0))
        scaled = b.mul(u, across(b.cast(inverse, u.dtype), u, rows=False))
        return finish(mm(adjoint(vh), adjoint(scaled)))

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        """Golub and Pereyra 1973: d(a+) = -a+ da a+ and the parts outside of range and kernel."""
        x, dx = primals[0].node, tangents[0].node
        p_a = f(*primals)
        p = p_a.node
        rows, cols = x.shape[-2:]
        out = b.neg(mm(mm(p, dx), p))
        left = b.sub(eye(x, rows), mm(x, p))
        out = b.add(out, mm(mm(mm(p, adjoint(p)), adjoint(dx)), left))
        right = b.sub(eye(x, cols), mm(p, x))
        out = b.add(out, mm(mm(mm(right, adjoint(dx)), adjoint(p)), p))
        return p_a, finish(out)

    return f(a)  # type: ignore[no-any-return]


def lstsq(
    a: ArrayLike,
    b: ArrayLike,
    rcond: float | None = None,
    *,
    numpy_resid: bool = False,
) -> tuple[Array, Array, Array, Array]:
    """(x minimising |a x - b|, residuals, rank, singular values)."""
    return lstsq_nodes(a, b, rcond, numpy_resid)


def lstsq_nodes(
    a: ArrayLike, rhs: ArrayLike, rcond: float | None, numpy_resid: bool
) -> tuple[Array, Array, Array, Array]:
    """`lstsq` by singular values."""
    p, q = promote_inexact(checked("jnp.linalg.lstsq", a, rhs))
    if p.ndim != 2:
        raise TypeError(f"{p.ndim}-dimensional array given. Array must be two-dimensional")
    if q.ndim not in (1, 2) or q.shape[0] != p.shape[0]:
        raise ValueError("Leading dimensions of input arrays must match")
    vector = q.ndim == 1
    q = b.unsqueeze(q, 1) if vector else q
    rows, cols = p.shape
    eps = float(dtypes.finfo(p.dtype).eps)
    factor = maximum(rows, cols) if rcond is None else 1
    cutoff = eps if rcond is None or rcond < 0 else rcond
    u, s, vh = (y.node for y in lapack.svd(finish(p), full_matrices=False))
    top = b.slice_axis(s, 0, 0, 1)
    keep = b.ge(s, b.mul(b.expand(top, s.shape, (0,)), b.mul(b.like(s, cutoff), b.like(s, factor))))
    rank = b.sum_(b.cast(keep, b.INT32), (0,))
    inverse = b.where(keep, b.reciprocal(b.where(keep, s, b.like(s, 1))), b.like(s, 0))
    projected = mm(adjoint(u), q)
    scaled = b.mul(across(b.cast(inverse, p.dtype), projected, rows=True), projected)
    x = mm(adjoint(vh), scaled)
    gap = b.sub(q, mm(p, x))
    square = b.real(b.mul(gap, b.conj(gap)))
    residuals = b.sum_(square, (0,))
    if numpy_resid:
        known = concrete(finish(rank))
        if known is not None and (int(known) < cols or rows <= cols):
            residuals = b.slice_axis(residuals, 0, 0, 0)
    return (
        finish(b.squeeze(x, (1,)) if vector else x),
        finish(residuals),
        finish(rank),
        finish(s),
    )


def tensorinv(a: ArrayLike, ind: int = 2) -> Array:
    """Inverse with respect to tensordot over the first `ind` axes."""
    (n,) = checked("jnp.linalg.tensorinv", a)
    if ind <= 0:
        raise ValueError(f"ind must be a positive integer; got {ind=}")
    first, second = n.shape[:ind], n.shape[ind:]
    if b.prod(first) != b.prod(second):
        raise ValueError(
            f"product of dimensions before and after ind={ind} must be equal; got shape {n.shape}"
        )
    flat = finish(b.reshape(n, (b.prod(first), b.prod(second))))
    return finish(b.reshape(inv(flat).node, (*second, *first)))


def tensorsolve(a: ArrayLike, b: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """x with tensordot(a, x, x.ndim) = b."""
    return tensorsolve_array(a, b, axes)


def tensorsolve_array(a: ArrayLike, rhs: ArrayLike, axes: Sequence[int] | None) -> Array:
    """`tensorsolve` by `solve` of the flattened system."""
    p, q = checked("jnp.linalg.tensorsolve", a, rhs)
    if axes is not None:
        moved = canonical_axes(tuple(axes), p.ndim)
        p = b.permute(p, (*(i for i in range(p.ndim) if i not in moved), *moved))
    shape = p.shape[q.ndim :]
    if p.shape[: q.ndim] != q.shape or b.prod(shape) != q.aval.size:
        raise ValueError(
            f"After moving axes to end, leading shape of a must match shape of b. got a={p.shape}, "
            f"b={q.shape}"
        )
    size = q.aval.size
    x = solve(finish(b.reshape(p, (size, size))), finish(b.reshape(q, (size,))))
    return finish(b.reshape(x.node, shape))


def matrix_power(a: ArrayLike, n: int) -> Array:
    """Integer power by repeated squaring; negative powers through the inverse."""
    node = matrices("matrix_power", a, square=True)
    power = as_int(n, "the exponent n")
    if power == 0:
        return finish(eye(node))
    if power < 0:
        node = inv(finish(node)).node
        power = -power
    out: UOp | None = None
    while power:
        if power & 1:
            out = node if out is None else mm(out, node)
        power >>= 1
        if power:
            node = mm(node, node)
    assert out is not None
    return finish(out)


def matrix_rank(
    M: ArrayLike,
    rtol: ArrayLike | None = None,
    *,
    hermitian: bool = False,
    tol: ArrayLike | None = None,
) -> Array:
    """Number of singular values above a tolerance."""
    (n,) = promote_inexact(checked("jnp.linalg.matrix_rank", M))
    if n.ndim < 2:
        return finish(b.cast(b.reduce("or", truth(n), range(n.ndim)), b.INT32))
    s = svd(finish(n), compute_uv=False, hermitian=hermitian).node
    last = s.ndim - 1
    if tol is None:
        top = b.slice_axis(s, last, 0, 1)
        relative = max(n.shape[-2:]) * float(dtypes.finfo(n.dtype).eps) if rtol is None else rtol
        factor = b.cast(checked("jnp.linalg.matrix_rank", relative)[0], s.dtype)
        factor = b.broadcast(b.unsqueeze(factor, factor.ndim), top.shape) if factor.ndim else factor
        limit = b.mul(top, factor)
    else:
        limit = b.cast(checked("jnp.linalg.matrix_rank", tol)[0], s.dtype)
        limit = b.unsqueeze(limit, limit.ndim) if limit.ndim else limit
    above = b.gt(s, b.broadcast(limit, s.shape))
    return finish(b.sum_(b.cast(above, dtypes.default_int_dtype()), (last,)))


def cond(x: ArrayLike, p: Any = None) -> Array:
    """Condition number with respect to a norm (2 by default)."""
    n = matrices("cond", x)
    if p in (None, 2, -2):
        s = svdvals(finish(n)).node
        last = s.ndim - 1
        first = b.squeeze(b.slice_axis(s, last, 0, 1), (last,))
        final = b.squeeze(b.slice_axis(s, last, s.shape[-1] - 1, s.shape[-1]), (last,))
        out = b.div(final, first) if p == -2 else b.div(first, final)
        return finish(out)
    if n.shape[-1] != n.shape[-2]:
        raise ValueError(f"jnp.linalg.cond with p={p} needs square matrices, got shape {n.shape}")
    out = b.mul(norm(finish(n), p, (-2, -1)).node, norm(inv(finish(n)), p, (-2, -1)).node)
    bad = b.reduce("or", b.ne(n, n), (n.ndim - 2, n.ndim - 1))
    return finish(b.where(b.and_(b.ne(out, out), b.not_(bad)), b.like(out, np.inf), out))


# --- norms --------------------------------------------------------------------------------------


def square_of(n: UOp) -> UOp:
    """|x|**2, real."""
    if dtypes.is_complex(n.dtype):
        return b.add(b.square(b.real(n)), b.square(b.imag(n)))
    return b.square(n)


def root(n: UOp) -> UOp:
    """Square root whose derivative at 0 is that of JAX (infinite slope, NaN where 0 * inf)."""
    return b.sqrt(n)


def vector_norm_node(n: UOp, axes: tuple[int, ...], order: Any) -> UOp:
    """Norm of vectors spread over axes."""
    if order is None or order == 2:
        return root(b.sum_(square_of(n), axes))
    size = b.abs_(n)
    if isinstance(order, str):
        raise ValueError(f"Invalid order '{order}' for vector norm.")
    if order == np.inf:
        return b.reduce("max", size, axes)
    if order == -np.inf:
        return b.reduce("min", size, axes)
    if order == 0:
        return b.sum_(b.cast(b.ne(n, b.like(n, 0)), size.dtype), axes)
    if order == 1:
        return b.sum_(size, axes)
    power = b.like(size, order)
    total = b.sum_(b.pow_(size, power), axes)
    return b.pow_(total, b.like(total, 1.0 / order))


def matrix_norm_node(n: UOp, axes: tuple[int, int], order: Any) -> UOp:
    """Norm of matrices in two axes."""
    row, col = axes
    if row == col:
        raise ValueError(f"Duplicate axes given: axis={axes}")
    if order in (None, "fro", "f"):
        return root(b.sum_(square_of(n), sorted(axes)))
    if order in (1, -1, np.inf, -np.inf):
        along, over = (row, col) if order in (1, -1) else (col, row)
        sums = b.sum_(b.abs_(n), (along,))
        place = over - 1 if over > along else over
        return b.reduce("max" if order > 0 else "min", sums, (place,))
    if order in (2, -2, "nuc"):
        rest = [i for i in range(n.ndim) if i not in axes]
        s = svdvals(finish(b.permute(n, (*rest, row, col)))).node
        last = s.ndim - 1
        if order == "nuc":
            return b.sum_(s, (last,))
        return b.reduce("max" if order == 2 else "min", s, (last,))
    raise ValueError(f"Invalid order '{order}' for matrix norm.")


def norm(
    x: ArrayLike,
    ord: Any = None,
    axis: Any = None,
    keepdims: bool = False,
) -> Array:
    """Norm of a vector or matrix. `ord`: a number, inf, -inf, "fro", "nuc"."""
    (n,) = promote_inexact(checked("jnp.linalg.norm", x))
    shape = n.shape
    if axis is None:
        if ord is None:
            axes: tuple[int, ...] = tuple(range(n.ndim))
            out = root(b.sum_(square_of(n), axes))
            return finish(b.reshape(out, (1,) * n.ndim) if keepdims else out)
        axes = tuple(range(n.ndim))
    else:
        axes = tuple(
            canonical_axis(a, n.ndim)
            for a in (axis if isinstance(axis, (tuple, list)) else (axis,))
        )
    if len(axes) == 1:
        out = vector_norm_node(n, axes, ord)
    elif len(axes) == 2:
        out = matrix_norm_node(n, (axes[0], axes[1]), ord)
    else:
        raise ValueError(
            f"Improper number of axes for norm: axis={axes}. Pass one axis to compute a "
            "vector-norm, or two axes to compute a matrix-norm."
        )
    if keepdims:
        out = b.reshape(out, tuple(1 if i in axes else s for i, s in enumerate(shape)))
    return finish(out)


def vector_norm(
    x: ArrayLike,
    /,
    *,
    axis: Any = None,
    keepdims: bool = False,
    ord: Any = 2,
) -> Array:
    """Norm of vectors spread over any axes."""
    (n,) = promote_inexact(checked("jnp.linalg.vector_norm", x))
    axes = tuple(sorted(canonical_axes(axis, n.ndim)))
    out = vector_norm_node(n, axes, ord)
    if keepdims:
        out = b.reshape(out, tuple(1 if i in axes else s for i, s in enumerate(n.shape)))
    return finish(out)


def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """Norm of matrices in the last two axes."""
    return norm(x, ord, (-2, -1), keepdims)


# --- array API forms ----------------------------------------------------------------------------


def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Array:
    """Cross product of vectors of length 3."""
    p, q = checked("jnp.linalg.cross", x1, x2)
    if p.shape[axis] != 3 or q.shape[axis] != 3:
        raise ValueError(
            "Both input arrays must be (arrays of) 3-dimensional vectors, but they have "
            f"{p.shape[axis]} and {q.shape[axis]} elements."
        )
    return contract.cross(x1, x2, axis=axis)


def outer(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """All products of the elements of two vectors."""
    p, q = checked("jnp.linalg.outer", x1, x2)
    if p.ndim != 1 or q.ndim != 1:
        raise ValueError(
            f"Input arrays must be one-dimensional, but they are {p.ndim} and {q.ndim}"
        )
    return contract.outer(x1, x2)


def matmul(
    x1: ArrayLike, x2: ArrayLike, /, *, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """Matrix product."""
    return contract.matmul(
        x1, x2, precision=precision, preferred_element_type=preferred_element_type
    )


def vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int = -1,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Sum of conj(x1) * x2 along an axis."""
    return contract.vecdot(
        x1, x2, axis=axis, precision=precision, preferred_element_type=preferred_element_type
    )


def tensordot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axes: Any = 2,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Sum over several axes."""
    return contract.tensordot(
        x1, x2, axes, precision=precision, preferred_element_type=preferred_element_type
    )


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Array:
    """Diagonals of the last two axes."""
    return diagonal_of(x, offset, -2, -1)


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Sums of diagonals of the last two axes."""
    return contract.trace(x, offset, -2, -1, dtype)


# Defined elsewhere, so not among the functions that the last line takes for this module's.
multi_dot, matrix_transpose = _api_boundary(multi_dot), _api_boundary(matrix_transpose)
_place_results(globals())
_publish_functions(globals())
