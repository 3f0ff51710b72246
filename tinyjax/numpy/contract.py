"""Contractions: dot, matmul, einsum and their relatives, all as DOT with dimension numbers."""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core.config import config
from tinyjax.core.dims import largest
from tinyjax.core.errors import BroadcastError, DotShapeError, make_error
from tinyjax.core.shapes import broadcast_shapes, same_size, unequal
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish
from tinyjax.lax.contracting import accumulate_dtype, canonical_precision
from tinyjax.numpy.creation import diagonal
from tinyjax.numpy.promotion import (
    ArrayLike,
    canonical_axis,
    checked,
    no_out,
    promote_dtypes,
)
from tinyjax.numpy.reductions import sum as sum_of
from tinyjax.numpy.shaping import ravel
from tinyjax.numpy.ufuncs import conjugate

Axes = tuple[int, ...]


def dot_operands(
    name: str, a: ArrayLike, c: ArrayLike, preferred: Any
) -> tuple[UOp, UOp, Any, bool]:
    """Promoted operands, the result dtype, and whether it is weak."""
    p, q = promote_dtypes(checked(name, a, c))
    if preferred is None:
        return p, q, p.dtype, p.aval.weak_type and q.aval.weak_type
    return p, q, accumulate_dtype(preferred, name, p.dtype), False


def contraction(
    p: UOp,
    q: UOp,
    contract: tuple[Axes, Axes],
    batch: tuple[Axes, Axes] = ((), ()),
    dtype: Any = None,
    precision: Any = None,
) -> UOp:
    """DOT in the result dtype. `precision` defaults to jax_default_matmul_precision."""
    if precision is None:
        precision = config.jax_default_matmul_precision
    return b.dot(
        p, q, contract, batch, None if dtype == p.dtype else dtype, canonical_precision(precision)
    )


def mismatch(name: str, a: Any, c: Any, axis_a: int, axis_b: int, p: UOp, q: UOp) -> Exception:
    """The contracted sizes differ."""
    sizes = q.shape
    error, rule, fix = unequal(DotShapeError, p.shape[axis_a], sizes[axis_b])
    if q.ndim == 2 and same_size(p.shape[axis_a], sizes[1 - axis_b % 2]) and q.ndim > axis_b:
        fix = "Perhaps b should be transposed."
    elif p.ndim == 2 and same_size(p.shape[1 - axis_a % 2], sizes[axis_b]):
        fix = "Perhaps a should be transposed."
    return make_error(
        error,
        f"{name} contracts axis {axis_a} of a (size {p.shape[axis_a]}) with axis {axis_b} of b "
        f"(size {q.shape[axis_b]})",
        rule=rule,
        operands={
            "a": Array(p) if not isinstance(a, Array) else a,
            "b": Array(q) if not isinstance(c, Array) else c,
        },
        fix=fix,
    )


def dot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Product of vectors or matrices: the last axis of `a` with the second to last of `b`.

    Shapes: a's free axes, then b's; a scalar multiplies. Dtype: promoted; `preferred_element_type`
    is what products are summed and returned in. Raises: DotShapeError.
    """
    return finish(dot_node("dot", a, b, precision, preferred_element_type))


def dot_node(name: str, a: ArrayLike, c: ArrayLike, precision: Any, preferred: Any) -> UOp:
    """`dot` as a node."""
    p, q, dtype, weak = dot_operands(name, a, c, preferred)
    if not p.ndim or not q.ndim:
        return product_of(p, q, dtype, weak)
    axis_a, axis_b = p.ndim - 1, builtins.max(q.ndim - 2, 0)
    if not same_size(p.shape[axis_a], q.shape[axis_b]):
        raise mismatch(name, a, c, axis_a, axis_b, p, q)
    return contraction(p, q, ((axis_a,), (axis_b,)), dtype=dtype, precision=precision)


def product_of(p: UOp, q: UOp, dtype: Any, weak: bool) -> UOp:
    """Elementwise product in the result dtype; bools multiply with and."""
    p, q = b.cast(p, dtype, weak), b.cast(q, dtype, weak)
    return b.and_(p, q) if dtype == np.bool_ else b.mul(p, q)


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Matrix product of the last two axes; leading axes are broadcast. `a @ b`.

    Shapes: [..., n, k] @ [..., k, m] -> [..., n, m]; a vector counts as a row or a column.
    Dtype: promoted; `preferred_element_type` is what products are summed and returned in.
    Raises: DotShapeError; ValueError for scalars.
    """
    return finish(matmul_node("matmul", a, b, precision, preferred_element_type))


def matmul_node(name: str, a: ArrayLike, c: ArrayLike, precision: Any, preferred: Any) -> UOp:
    """`matmul` as a node: size-1 batch axes are dropped, the others become batch or free axes."""
    for i, n in enumerate(checked(name, a, c)):
        if n.ndim == 0:
            raise ValueError(
                f"{name} input operand {i} must have ndim at least 1, but it has ndim 0"
            )
    p, q, dtype, _ = dot_operands(name, a, c, preferred)
    axis_a, axis_b = p.ndim - 1, builtins.max(q.ndim - 2, 0)
    if not same_size(p.shape[axis_a], q.shape[axis_b]):
        raise mismatch(name, a, c, axis_a, axis_b, p, q)
    lead_a, lead_b = p.shape[:-2], q.shape[:-2]
    try:
        lead = broadcast_shapes(lead_a, lead_b)
    except ValueError:
        raise make_error(
            BroadcastError,
            f"{name} got incompatible shapes for broadcasting: {p.shape} and {q.shape}",
            rule="axes before the last two are aligned at the end; sizes must be equal or 1",
            operands={"a": Array(p), "b": Array(q)},
        ) from None
    # Names of axes: batch axis i of the result is i; contracted k; rows and columns n, m.
    rank = len(lead)
    names_a: list[Any] = list(range(rank - len(lead_a), rank))
    names_b: list[Any] = list(range(rank - len(lead_b), rank))
    names_a += ["n", "k"][-min(p.ndim, 2) :]
    names_b += ["k", "m"][: min(q.ndim, 2)]
    drop_a = [
        i
        for i, d in enumerate(names_a[: len(lead_a)])
        if p.shape[i] == 1 and lead[d] != 1 or (p.shape[i] == 1 and d in names_b)
    ]
    p = b.squeeze(p, tuple(drop_a))
    names_a = [d for i, d in enumerate(names_a) if i not in drop_a]
    drop_b = [
        i
        for i, d in enumerate(names_b[: len(lead_b)])
        if q.shape[i] == 1 and (lead[d] != 1 or d in names_a)
    ]
    q = b.squeeze(q, tuple(drop_b))
    names_b = [d for i, d in enumerate(names_b) if i not in drop_b]
    shared = [d for d in names_a if d in names_b and d != "k"]
    out = contraction(
        p,
        q,
        ((names_a.index("k"),), (names_b.index("k"),)),
        (tuple(names_a.index(d) for d in shared), tuple(names_b.index(d) for d in shared)),
        dtype,
        precision,
    )
    have = (
        shared
        + [d for d in names_a if d not in shared and d != "k"]
        + [d for d in names_b if d not in shared and d != "k"]
    )
    present = [d for d in range(rank) if d in have]
    want = present + [d for d in ("n", "m") if d in have]
    out = b.permute(out, tuple(have.index(d) for d in want))
    if len(present) < rank:  # size-1 axes of both operands
        tail = out.shape[len(present) :]
        out = b.reshape(out, tuple(lead) + tail)
    return out


def vdot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Sum of conj(a) * b over all elements."""
    return dot(
        ravel(conjugate(a)),
        ravel(b),
        precision=precision,
        preferred_element_type=preferred_element_type,
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
    """Sum of conj(x1) * x2 along an axis; the other axes are broadcast."""
    p, q, dtype, _ = dot_operands("vecdot", x1, x2, preferred_element_type)
    for n, label in ((p, "x1"), (q, "x2")):
        if not n.ndim:
            raise ValueError(f"vecdot: {label} must have at least one dimension")
    i, j = canonical_axis(axis, p.ndim), canonical_axis(axis, q.ndim)
    if not same_size(p.shape[i], q.shape[j]):
        raise mismatch("vecdot", x1, x2, i, j, p, q)
    p, q = b.moveaxis(b.conj(p), i, p.ndim - 1), b.moveaxis(q, j, q.ndim - 1)
    p = b.reshape(p, (*p.shape[:-1], 1, p.shape[-1]))
    q = b.reshape(q, (*q.shape, 1))
    out = matmul_node(
        "vecdot", finish(p), finish(q), precision, dtype if dtype != p.dtype else None
    )
    return finish(b.squeeze(out, (out.ndim - 2, out.ndim - 1)))


def matvec(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Matrices times vectors over the last axes, broadcast."""
    p, q = checked("matvec", x1, x2)
    out = matmul_node("matvec", finish(p), finish(b.reshape(q, (*q.shape, 1))), None, None)
    return finish(b.squeeze(out, (out.ndim - 1,)))


def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Conjugated vectors times matrices over the last axes, broadcast."""
    p, q = checked("vecmat", x1, x2)
    row = b.conj(b.reshape(p, (*p.shape[:-1], 1, p.shape[-1])))
    out = matmul_node("vecmat", finish(row), finish(q), None, None)
    return finish(b.squeeze(out, (out.ndim - 2,)))


def outer(a: ArrayLike, b: ArrayLike, out: None = None) -> Array:
    """All products of the elements of two flattened arrays."""
    no_out("outer", out)
    return finish(outer_node(a, b))


def outer_node(a: ArrayLike, c: ArrayLike) -> UOp:
    """`outer` as a node."""
    p, q = promote_dtypes(checked("outer", a, c))
    shape = (p.aval.size, q.aval.size)
    p = b.expand(b.reshape(p, (shape[0],)), shape, (0,))
    q = b.expand(b.reshape(q, (shape[1],)), shape, (1,))
    return product_of(p, q, p.dtype, p.aval.weak_type)


def inner(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Sum over the last axes of both."""
    p, q, dtype, weak = dot_operands("inner", a, b, preferred_element_type)
    if not p.ndim or not q.ndim:
        return finish(product_of(p, q, dtype, weak))
    if not same_size(p.shape[-1], q.shape[-1]):
        raise mismatch("inner", a, b, p.ndim - 1, q.ndim - 1, p, q)
    axes = ((p.ndim - 1,), (q.ndim - 1,))
    return finish(contraction(p, q, axes, dtype=dtype, precision=precision))


def tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: Any = 2,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Sum over several axes: the last `axes` of `a` with the first of `b`, or pairs given."""
    p, q, dtype, weak = dot_operands("tensordot", a, b, preferred_element_type)
    if isinstance(axes, (int, np.integer)):
        count = int(axes)
        if count > min(p.ndim, q.ndim):
            raise TypeError(
                f"Number of tensordot axes (axes {count}) exceeds input ranks ({p.shape} and "
                f"{q.shape})"
            )
        first, second = tuple(range(p.ndim - count, p.ndim)), tuple(range(count))
    elif isinstance(axes, (tuple, list)) and len(axes) == 2:
        pair = [(x,) if isinstance(x, (int, np.integer)) else tuple(x) for x in axes]
        if len(pair[0]) != len(pair[1]):
            raise TypeError(
                f"tensordot requires axes lists to have equal length, got {pair[0]} and {pair[1]}."
            )
        first = tuple(canonical_axis(i, p.ndim) for i in pair[0])
        second = tuple(canonical_axis(i, q.ndim) for i in pair[1])
    else:
        raise TypeError(
            f"tensordot requires both axes lists to be either ints, tuples or lists, got {axes!r}."
        )
    for i, j in zip(first, second, strict=True):
        if not same_size(p.shape[i], q.shape[j]):
            raise mismatch("tensordot", a, b, i, j, p, q)
    if not first and not (p.ndim and q.ndim):
        return finish(product_of(p, q, dtype, weak))
    return finish(contraction(p, q, (first, second), dtype=dtype, precision=precision))


def kron(a: ArrayLike, b: ArrayLike) -> Array:
    """Kronecker product."""
    return finish(kron_node(a, b))


def kron_node(a: ArrayLike, c: ArrayLike) -> UOp:
    """`kron` as a node: axes of both interleaved, then merged."""
    p, q = promote_dtypes(checked("kron", a, c))
    rank = builtins.max(p.ndim, q.ndim)
    sa, sb = ((1,) * (rank - n.ndim) + n.shape for n in (p, q))
    wide = tuple(s for pair in zip(sa, sb, strict=True) for s in pair)
    p = b.expand(b.reshape(p, sa), wide, tuple(range(0, 2 * rank, 2)))
    q = b.expand(b.reshape(q, sb), wide, tuple(range(1, 2 * rank, 2)))
    out = product_of(p, q, p.dtype, p.aval.weak_type)
    return b.reshape(out, tuple(s * t for s, t in zip(sa, sb, strict=True)))


def cross(
    a: ArrayLike,
    b: ArrayLike,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Array:
    """Cross product of vectors of length 3 (or 2, whose third component is 0)."""
    return finish(cross_node(a, b, axisa, axisb, axisc, axis))


def cross_node(
    a: ArrayLike, c: ArrayLike, axisa: int, axisb: int, axisc: int, axis: int | None
) -> UOp:
    """`cross` as a node."""
    if axis is not None:
        axisa = axisb = axisc = axis
    p, q = promote_dtypes(checked("cross", a, c))
    p = b.moveaxis(p, canonical_axis(axisa, p.ndim), p.ndim - 1)
    q = b.moveaxis(q, canonical_axis(axisb, q.ndim), q.ndim - 1)
    if p.shape[-1] not in (2, 3) or q.shape[-1] not in (2, 3):
        raise ValueError("Dimension must be either 2 or 3 for cross product")
    planar = p.shape[-1] == 2 and q.shape[-1] == 2
    lead = broadcast_shapes(p.shape[:-1], q.shape[:-1])

    def part(n: UOp, k: int) -> UOp:
        if k >= n.shape[-1]:
            return b.full(lead, b.like(n, 0))
        last = n.ndim - 1
        return b.broadcast(b.squeeze(b.slice_axis(n, last, k, k + 1), (last,)), lead)

    def component(i: int, j: int) -> UOp:
        return b.sub(b.mul(part(p, i), part(q, j)), b.mul(part(p, j), part(q, i)))

    if planar:
        return component(0, 1)
    parts = [component(1, 2), component(2, 0), component(0, 1)]
    out = b.concat([b.unsqueeze(n, n.ndim) for n in parts], len(lead))
    return b.moveaxis(out, out.ndim - 1, canonical_axis(axisc, out.ndim))


def trace(
    a: ArrayLike,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: Any = None,
    out: None = None,
) -> Array:
    """Sum of a diagonal."""
    no_out("trace", out)
    return sum_of(diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


# --- einsum -------------------------------------------------------------------------------------


def parse_einsum(
    operands: tuple[Any, ...],
) -> tuple[list[list[Any]], list[Any], list[Any]]:
    """Labels of each operand, labels of the result, and the operands. Ellipses become labels.

    Takes both forms: a string and arrays, or arrays each followed by a list of labels. A label of
    the ellipsis is an int, counted from the last axis.
    """
    if not operands:
        raise TypeError("einsum requires at least one operand")
    if isinstance(operands[0], str):
        text = operands[0].replace(" ", "")
        arrays = list(operands[1:])
        inputs, arrow, result = text.partition("->")
        terms: list[list[Any]] = [split_labels(t) for t in inputs.split(",")]
        output: list[Any] | None = split_labels(result) if arrow else None
    else:
        rest = list(operands)
        arrays, terms = [], []
        while len(rest) >= 2:
            arrays.append(rest.pop(0))
            terms.append([... if s is Ellipsis else f"#{int(s)}" for s in rest.pop(0)])
        output = [... if s is Ellipsis else f"#{int(s)}" for s in rest[0]] if rest else None
    if len(terms) != len(arrays):
        raise ValueError(
            f"einsum: {len(terms)} terms in the subscripts for {len(arrays)} operands."
        )
    longest = 0
    for k, (term, x) in enumerate(zip(terms, arrays, strict=True)):
        rank = np.ndim(x)
        named = sum(s is not ... for s in term)
        if ... in term:
            extra = rank - named
            if extra < 0:
                raise ValueError(f"einsum: operand {k} has too few dimensions for its subscripts.")
            longest = builtins.max(longest, extra)
            i = term.index(...)
            term[i : i + 1] = list(range(-extra, 0))
        elif named != rank:
            raise ValueError(
                f"einsum: operand {k} has {rank} dimensions, but its subscripts name {named}."
            )
    spread: list[Any] = list(range(-longest, 0))
    if output is None:
        counts = Counter(s for t in terms for s in t if isinstance(s, str))
        once = sorted((s for s, c in counts.items() if c == 1), key=label_order)
        return terms, [*spread, *once], arrays
    if ... in output:
        i = output.index(...)
        output[i : i + 1] = spread
    known = {s for t in terms for s in t}
    for s in output:
        if s not in known:
            raise ValueError(f"einsum: output subscript {s!r} is not in any operand.")
    if len(set(output)) != len(output):
        raise ValueError(f"einsum: output subscripts {output} repeat a label.")
    return terms, output, arrays


def label_order(label: str) -> Any:
    """Letters in alphabetical order, numbers by value."""
    return (1, int(label[1:])) if label.startswith("#") else (0, label)


def split_labels(term: str) -> list[Any]:
    """Letters, and `...`."""
    before, dots, after = term.partition("...")
    if "." in before or "." in after:
        raise ValueError(f"einsum: invalid ellipsis in subscripts {term!r}")
    labels: list[Any] = [*before, *([...] if dots else []), *after]
    for s in labels:
        if s is not ... and not s.isalpha():
            raise ValueError(f"einsum: character {s!r} is not a valid subscript.")
    return labels


def path_of(
    terms: list[list[Any]], output: list[Any], shapes: list[tuple[int, ...]], optimize: Any
) -> list[tuple[int, ...]]:
    """The order of pairwise contractions, found by NumPy on arrays without memory."""
    if len(terms) <= 2:
        return [tuple(range(len(terms)))]
    if isinstance(optimize, (list, tuple)):
        return [tuple(p) for p in optimize if not isinstance(p, str)]
    labels: dict[Any, int] = {}
    for t in terms:
        for s in t:
            labels.setdefault(s, len(labels))
    args: list[Any] = []
    for t, shape in zip(terms, shapes, strict=True):
        sizes = tuple(map(largest, shape))
        args += [np.broadcast_to(np.empty(()), sizes), [labels[s] for s in t]]
    how: Any = {True: "optimal", "auto": "optimal", "dp": "optimal"}.get(optimize, optimize)
    if how not in ("optimal", "greedy", False):
        how = "greedy"
    if how == "optimal" and len(terms) > 6:  # optimal search is factorial
        how = "greedy"
    path, _ = np.einsum_path(*args, [labels[s] for s in output], optimize=how)
    steps = [tuple(p) for p in path[1:]]
    return [p for step in steps for p in pairwise(step)]


def pairwise(step: tuple[int, ...]) -> list[tuple[int, ...]]:
    """A contraction of several operands as contractions of two: the result goes to the end."""
    if len(step) <= 2:
        return [tuple(sorted(step))]
    places = sorted(step)
    # Contract from the back, so that remaining positions stay valid; the result is appended last.
    out: list[tuple[int, ...]] = [(places[-2], places[-1])]
    rest = places[:-2]
    for p in reversed(rest):
        out.append((p, -1))
    return out


def reduce_labels(n: UOp, labels: list[Any], keep: set[Any]) -> tuple[UOp, list[Any]]:
    """Diagonals for repeated labels; labels that nobody else needs are summed."""
    while len(set(labels)) < len(labels):
        label = next(s for s in labels if labels.count(s) > 1)
        i = labels.index(label)
        j = labels.index(label, i + 1)
        if n.shape[i] != n.shape[j]:
            raise ValueError(
                f"einsum: axes labelled {label!r} of one operand have sizes {n.shape[i]} and "
                f"{n.shape[j]}."
            )
        n = diagonal(finish(n), 0, i, j).node
        labels = [s for k, s in enumerate(labels) if k not in (i, j)] + [label]
    gone = [i for i, s in enumerate(labels) if s not in keep]
    if gone:
        n = b.reduce("or" if n.dtype == np.bool_ else "add", n, gone)
        labels = [s for s in labels if s in keep]
    return n, labels


def contract_pair(
    p: UOp, la: list[Any], q: UOp, lb: list[Any], keep: set[Any], dtype: Any, precision: Any
) -> tuple[UOp, list[Any]]:
    """One contraction: shared labels are batch if still needed, else summed."""
    p, la = reduce_labels(p, la, keep | set(lb))
    q, lb = reduce_labels(q, lb, keep | set(la))
    # Size 1 against size n of a shared label is broadcast: the axis of size 1 is dropped.
    shared = [s for s in la if s in lb]
    for s in shared:
        x, y = p.shape[la.index(s)], q.shape[lb.index(s)]
        if x == y:
            continue
        if x == 1:
            p = b.squeeze(p, (la.index(s),))
            la = [t for t in la if t != s]
        elif y == 1:
            q = b.squeeze(q, (lb.index(s),))
            lb = [t for t in lb if t != s]
        else:
            raise make_error(
                DotShapeError,
                f"einsum: the operands have sizes {x} and {y} for the label {s!r}",
                rule="sizes must be equal or 1",
            )
    p, la = reduce_labels(p, la, keep | set(lb))
    q, lb = reduce_labels(q, lb, keep | set(la))
    shared = [s for s in la if s in lb]
    batch = [s for s in shared if s in keep]
    summed = [s for s in shared if s not in keep]
    free_a = [s for s in la if s not in shared]
    free_b = [s for s in lb if s not in shared]
    out = batch + free_a + free_b
    if not summed:
        shape = tuple(p.shape[la.index(s)] if s in la else q.shape[lb.index(s)] for s in out)
        return product_of(spread(p, la, out, shape), spread(q, lb, out, shape), dtype, False), out

    def places(labels: list[Any], chosen: list[Any]) -> Axes:
        return tuple(labels.index(s) for s in chosen)

    node = contraction(
        p,
        q,
        (places(la, summed), places(lb, summed)),
        (places(la, batch), places(lb, batch)),
        dtype,
        precision,
    )
    return node, out


def spread(n: UOp, labels: list[Any], out: list[Any], shape: tuple[int, ...]) -> UOp:
    """An operand with its axes placed among those of a product."""
    order = sorted(range(len(labels)), key=lambda i: out.index(labels[i]))
    return b.expand(b.permute(n, order), shape, tuple(out.index(labels[i]) for i in order))


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
    _dot_general: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Sum of products in Einstein's notation: `einsum("bij,bjk->bik", x, y)`.

    Several operands are contracted in pairs, in an order that costs little (`optimize`: "auto",
    "optimal", "greedy", False, or a path). Dtype: promoted, or `preferred_element_type`.
    Raises: DotShapeError where sizes of a label differ; ValueError for malformed subscripts.
    Cost: one DOT per pair. Source: Smith and Gray, opt_einsum (2018).
    """
    no_out("einsum", out)
    terms, output, arrays = parse_einsum((subscripts, *operands))
    nodes = promote_dtypes(checked("einsum", *arrays))
    weak = all(n.aval.weak_type for n in nodes) and preferred_element_type is None
    products = nodes[0].dtype if len(nodes) > 1 else None
    preferred = accumulate_dtype(preferred_element_type, "einsum", products)
    dtype = nodes[0].dtype if preferred is None else preferred
    items = list(zip(nodes, terms, strict=True))
    for step in path_of(terms, output, [n.shape for n in nodes], optimize):
        if len(step) == 1 and len(items) == 1:
            break
        step = tuple(i % len(items) for i in step)
        chosen = [items[i] for i in step]
        items = [x for i, x in enumerate(items) if i not in step]
        keep = set(output).union(*(labels for _, labels in items))
        if len(chosen) == 1:
            items.append(chosen[0])
            continue
        (p, la), (q, lb) = chosen
        # After a pair, operands may already have the wider dtype.
        if p.dtype != q.dtype:
            p, q = b.cast(p, dtype), b.cast(q, dtype)
        items.append(contract_pair(p, la, q, lb, keep, dtype, precision))
    ((n, labels),) = items
    n, labels = reduce_labels(n, list(labels), set(output))
    n = b.cast(n, dtype, weak)
    return finish(b.permute(n, tuple(labels.index(s) for s in output)))


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "auto") -> tuple[Any, Any]:
    """The order in which `einsum` would contract, pairs of positions, and a report (NumPy's)."""
    how = "optimal" if optimize in ("auto", True) else optimize
    if isinstance(how, (list, tuple)):  # NumPy marks a path by its first entry
        how = ["einsum_path", *(p for p in how if not isinstance(p, str))]
    empty = np.empty(())

    def without_memory(x: Any) -> Any:
        return np.broadcast_to(empty, x.shape) if hasattr(x, "shape") and x.ndim else x

    if isinstance(subscripts, str):
        args = [subscripts, *(without_memory(x) for x in operands)]
    else:
        args = [without_memory(x) for x in (subscripts, *operands)]
    (_, *path), report = np.einsum_path(*args, optimize=how)
    return path, report


def multi_dot(arrays: Sequence[ArrayLike], *, precision: Any = None) -> Array:
    """Product of several matrices in the cheapest order; the ends may be vectors."""
    nodes = checked("jnp.linalg.multi_dot", *arrays)
    if len(nodes) < 2:
        raise ValueError(f"multi_dot requires at least two arrays; got len(arrays)={len(nodes)}")
    for i, n in enumerate(nodes):
        end = i in (0, len(nodes) - 1)
        if n.ndim != 2 and not (end and n.ndim == 1):
            raise ValueError(
                "multi_dot: all arrays must be two-dimensional, except the first and last, which "
                f"may have one; got ndim={n.ndim} at position {i}"
            )
    args: list[Any] = []
    for i, (n, x) in enumerate(zip(nodes, arrays, strict=True)):
        args += [x, [i, i + 1] if n.ndim == 2 else [1 if i == 0 else i]]
    first, last = (0,) if nodes[0].ndim == 2 else (), (len(nodes),) if nodes[-1].ndim == 2 else ()
    return einsum(*args, [*first, *last], optimize="optimal", precision=precision)
