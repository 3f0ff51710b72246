"""Reverse of linear maps: (outputs linear in variables, cotangents) -> cotangents of the variables.

A rule gets the node, its cotangent (a list for nodes with several results, `None` = zero) and for
each operand whether it is linear; it returns one cotangent per operand, `None` where there is none.
Linear ops are about two dozen; every other node in a linear graph is known and never visited.
Cotangents of a node used n times are added pairwise in order of arrival.

Conventions are JAX's: transposition is bilinear, without conjugation.
Reference: Frostig et al., "Decomposing reverse-mode automatic differentiation" (2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes, sites
from tinyjax.core.avals import Aval
from tinyjax.core.body import fresh_var, open_body, open_vars, reclose
from tinyjax.core.dims import maximum
from tinyjax.core.errors import NotLinearError
from tinyjax.core.infos import Backward, CallInfo, CustomLinInfo, ScanInfo, ScatterInfo
from tinyjax.core.ops import Op
from tinyjax.core.prune import fewer
from tinyjax.core.rules import padded
from tinyjax.core.uop import UOp, depends_on, results, toposort
from tinyjax.interpreters.effects import apply_rule, has_effects, join, of_repeat, slice_avals
from tinyjax.interpreters.host_rules import host_call_transpose
from tinyjax.interpreters.jvp import add_tangents, gather_of_scatter
from tinyjax.interpreters.trace import Cell, open_chain, state, unbound

Cotangent = UOp | None
Linear = Sequence[bool]
TransposeRule = Callable[[UOp, Any, Linear], Sequence[Cotangent]]


def instantiate(ct: Cotangent, of: Aval) -> UOp:
    """A cotangent as a node: zeros where it is structurally zero."""
    return b.zeros(of.strip_weak_type()) if ct is None else ct


def onto(ct: UOp, operand: UOp) -> UOp:
    """The cotangent of an operand that may have been a broadcast scalar."""
    return b.unbroadcast(ct, operand.shape)


# --- elementwise ----------------------------------------------------------------------------------


def add_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """To each linear operand unchanged."""
    return [onto(ct, s) if on else None for s, on in zip(n.src, linear, strict=True)]


def sub_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """To x unchanged, to y negated."""
    x, y = n.src
    return [onto(ct, x) if linear[0] else None, onto(b.neg(ct), y) if linear[1] else None]


def mul_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """Times the other operand."""
    x, y = n.src
    return [
        onto(b.mul(ct, y), x) if linear[0] else None,
        onto(b.mul(x, ct), y) if linear[1] else None,
    ]


def div_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """Only the numerator is linear."""
    return [onto(b.div(ct, n.src[1]), n.src[0]), None]


def where_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """To the chosen case."""
    cond, x, y = n.src
    none = b.like(ct, 0)
    return [
        None,
        onto(b.where(cond, ct, none), x) if linear[1] else None,
        onto(b.where(cond, none, ct), y) if linear[2] else None,
    ]


def cast_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """Convert back; real to complex keeps the real part."""
    to = n.src[0].dtype
    if dtypes.is_complex(ct.dtype) and not dtypes.is_complex(to):
        ct = b.real(ct)
    return [b.cast(ct, to)]


def complex_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """Re(ct z) = Re(ct) x - Im(ct) y for z = x + iy"""
    x, y = n.src
    return [
        onto(b.real(ct), x) if linear[0] else None,
        onto(b.neg(b.imag(ct)), y) if linear[1] else None,
    ]


def real_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """ct + 0i"""
    return [b.complex_(ct, b.like(ct, 0))]


def imag_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """0 - i ct"""
    return [b.complex_(b.like(ct, 0), b.neg(ct))]


# --- movement ------------------------------------------------------------------------------------------


def permute_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """The inverse permutation."""
    return [b.permute(ct, tuple(int(i) for i in np.argsort(n.arg)))]


def expand_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """Sum over the repeated axes."""
    x, (shape, dims) = n.src[0], n.arg
    repeated = [i for i in range(len(shape)) if i not in dims or x.shape[dims.index(i)] != shape[i]]
    return [b.reshape(b.sum_(ct, repeated), x.shape)]


def pad_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """To x: what stayed visible of it; to the fill: the sum of all the rest."""
    x = n.src[0]
    # Undo lo/hi with the opposite padding, then take every (interior + 1)-th element.
    uncropped, config = ct, [(-lo, -hi, 0) for lo, hi, _ in n.arg]
    if not linear[1]:  # else all of the cotangent is summed
        uncropped, config = _cropped_product(ct, config)
    uncropped = b.pad(uncropped, config)
    inside = b.slice_(
        uncropped,
        (0,) * x.ndim,
        uncropped.shape,
        tuple(interior + 1 for _, _, interior in n.arg),
    )
    d_fill = None
    if linear[1]:
        d_fill = b.sub(b.sum_(ct, range(ct.ndim)), b.sum_(inside, range(ct.ndim)))
    return [inside if linear[0] else None, d_fill]


def _cropped_product(
    ct: UOp, config: list[tuple[int, int, int]]
) -> tuple[UOp, list[tuple[int, int, int]]]:
    """Crop a contraction's operands rather than its result; what is left to pad or crop."""
    product = ct
    while product.op is Op.PERMUTE:
        product = product.src[0]
    if product.op is Op.DOT:
        for axis, (lo, hi, interior) in enumerate(config):
            crop = maximum(-lo, 0), maximum(-hi, 0)
            if any(crop):
                ct = _cropped(ct, axis, *crop)
                config[axis] = (maximum(lo, 0), maximum(hi, 0), interior)
    return ct, config


def _cropped(x: UOp, axis: int, lo: int, hi: int) -> UOp:
    """x without the first `lo` and last `hi` elements of an axis, cropped as deep as possible."""
    if x.op is Op.PERMUTE:
        return b.permute(_cropped(x.src[0], x.arg[axis], lo, hi), x.arg)
    if x.op is Op.PAD and x.arg[axis][2] == 0:
        config = list(x.arg)
        config[axis] = (config[axis][0] - lo, config[axis][1] - hi, 0)
        return b.pad(x.src[0], config, x.src[1])
    if x.op is Op.WINDOW and x.arg[2] == 1 and axis < x.ndim - 1:
        return UOp(Op.WINDOW, (_cropped(x.src[0], axis, lo, hi),), x.arg)
    origin = _origin_in_product(x).get(axis) if x.op is Op.DOT else None
    if origin is not None:
        factors = list(x.src)
        factors[origin[0]] = _cropped(factors[origin[0]], origin[1], lo, hi)
        return UOp(Op.DOT, tuple(factors), x.arg)
    return b.slice_axis(x, axis, lo, x.shape[axis] - hi)


def _origin_in_product(n: UOp) -> dict[int, tuple[int, int]]:
    """Free axes of a DOT's result: the operand (0 or 1) and its axis that each comes from."""
    free = [
        (place, a)
        for place, x in enumerate(n.src)
        for a in range(x.ndim)
        if a not in n.arg.contract[place] and a not in n.arg.batch[place]
    ]
    return dict(enumerate(free, len(n.arg.batch[0])))


def slice_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """Zeros around and between."""
    config = []
    for (start, _, step), size, count in zip(n.arg, n.src[0].shape, ct.shape, strict=True):
        config.append((start, size - start - padded(count, 0, 0, step - 1), step - 1))
    return [b.pad(ct, config)]


def concat_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """Each operand's piece."""
    out: list[Cotangent] = []
    start = 0
    for s, on in zip(n.src, linear, strict=True):
        stop = start + s.shape[n.arg]
        out.append(b.slice_axis(ct, n.arg, start, stop) if on else None)
        start = stop
    return out


def window_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """Overlap-add: spread windows apart, slide each to its place, sum.

    d x[i] = sum over k of ct[o, k] with o*stride + k*dilation = i: interior padding by the stride,
    then windows of the reversed inner axis over the padded outer axis. Of a contraction's result it
    is a contraction again (a convolution's gradient is a convolution).
    """
    axis, size, stride, dilation = n.arg
    x = n.src[0]
    contracted = _windows_added(n, ct) if stride == 1 else None
    if contracted is not None:
        return [contracted]
    total: Cotangent = None
    for k in range(size):
        piece = b.squeeze(b.slice_axis(ct, ct.ndim - 1, k, k + 1), (ct.ndim - 1,))
        count = piece.shape[axis]
        reach = padded(count, 0, 0, stride - 1)
        start = k * dilation
        config = [(0, 0, 0)] * x.ndim
        config[axis] = (start, x.shape[axis] - start - reach, stride - 1)
        total = add_tangents(total, b.pad(piece, config))
    return [total]


def _windows_added(n: UOp, ct: UOp) -> UOp | None:
    """sum over k of dot(u, v)[i - k*dilation, k] -> dot(window(pad(u)), flip(v)), contracting k too

    If the outer axis comes from one factor of the contraction and the inner one from the other.
    """
    axis, size, _, dilation = n.arg
    places = list(range(ct.ndim))
    while ct.op is Op.PERMUTE:
        places, ct = [ct.arg[a] for a in places], ct.src[0]
    if ct.op is not Op.DOT:
        return None
    factors, contract = list(ct.src), list(ct.arg.contract)
    origin = _origin_in_product(ct)
    outer, inner = origin.get(places[axis]), origin.get(places[-1])
    if outer is None or inner is None or outer[0] == inner[0]:
        return None
    u, v = factors[outer[0]], factors[inner[0]]
    reach = (size - 1) * dilation
    config = [(0, 0, 0)] * u.ndim
    config[outer[1]] = (reach, n.src[0].shape[axis] - u.shape[outer[1]], 0)
    factors[outer[0]] = b.window(b.pad(u, config), outer[1], size, 1, dilation)
    factors[inner[0]] = b.flip(v, (inner[1],))
    contract[outer[0]] = (*contract[outer[0]], u.ndim)
    contract[inner[0]] = (*contract[inner[0]], inner[1])
    (left, right), contracted = factors, (contract[0], contract[1])
    product = b.dot(left, right, contracted, ct.arg.batch, ct.arg.dtype, ct.arg.precision)
    gone = places.pop()
    return b.permute(product, tuple(p - (p > gone) for p in places))


# --- reductions, contraction, indexed ----------------------------------------------------------------------


def reduce_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """A sum spreads its cotangent."""
    kind, axes = n.arg
    assert kind == "add", f"reduce_{kind} is not linear"
    shape = n.src[0].shape
    return [b.expand(ct, shape, tuple(i for i in range(len(shape)) if i not in axes))]


def prefix_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """A cumulative sum runs the other way."""
    kind, axis, reverse = n.arg
    return [b.prefix(kind, ct, axis, not reverse)]


def dot_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """A contraction of the cotangent with the other operand, axes put back in place."""
    x, y = n.src
    (cx, cy), (bx, by) = n.arg.contract, n.arg.batch
    free_x = [i for i in range(x.ndim) if i not in cx and i not in bx]
    free_y = [i for i in range(y.ndim) if i not in cy and i not in by]
    nb, nx = len(bx), len(free_x)
    batch_ct = tuple(range(nb))
    out: list[Cotangent] = [None, None]
    if linear[0]:
        ct_free_y = tuple(range(nb + nx, ct.ndim))
        d = _dot_back(ct, y, (ct_free_y, tuple(free_y)), (batch_ct, by), x.dtype, n.arg.precision)
        # The contracted axes of x come in the order they have in y.
        rest = [cx[cy.index(j)] for j in sorted(cy)]
        out[0] = _arranged(d, bx, free_x, rest)
    if linear[1]:
        ct_free_x = tuple(range(nb, nb + nx))
        d = _dot_back(ct, x, (ct_free_x, tuple(free_x)), (batch_ct, bx), y.dtype, n.arg.precision)
        rest = [cy[cx.index(j)] for j in sorted(cx)]
        out[1] = _arranged(d, by, free_y, rest)
    return out


def _arranged(d: UOp, batch: Sequence[int], free: Sequence[int], rest: Sequence[int]) -> UOp:
    """The product with its axes (batch, free, rest) where the operand has them.

    If the operand has `rest` before `free` the factors change places, which costs nothing; a
    permutation would.
    """
    swapped = [*batch, *rest, *free]
    if d.op is Op.DOT and swapped == sorted(swapped) and rest and free:
        x, y = d.src
        (cx, cy), (bx, by) = d.arg.contract, d.arg.batch
        return b.dot(y, x, (cy, cx), (by, bx), d.arg.dtype, d.arg.precision)
    return b.permute(d, _inverse([*batch, *free, *rest]))


def _dot_back(
    ct: UOp,
    other: UOp,
    contract: tuple[tuple[int, ...], tuple[int, ...]],
    batch: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: Any,
    precision: Any,
) -> UOp:
    """ct . other with the result in `dtype`; operands of unequal dtype are widened first."""
    wide = dtypes.promote_types(ct.dtype, other.dtype) if ct.dtype != other.dtype else ct.dtype
    d = b.dot(b.cast(ct, wide), b.cast(other, wide), contract, batch, None, precision)
    return b.cast(d, dtype)


def _inverse(perm: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argsort(perm))


def gather_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """Scatter-add; what was out of bounds contributes to the fill alone."""
    x, indices, g = n.src[0], n.src[1], n.arg
    info = ScatterInfo(
        "add",
        update_window_dims=g.offset_dims,
        inserted_window_dims=g.collapsed_slice_dims,
        scatter_dims_to_operand_dims=g.start_index_map,
        operand_batching_dims=g.operand_batching_dims,
        scatter_indices_batching_dims=g.start_indices_batching_dims,
        mode=g.mode,
        indices_are_sorted=g.indices_are_sorted,
        unique_indices=g.unique_indices,
    )
    out: list[Cotangent] = [None] * len(n.src)
    zeros = b.zeros(x.aval.strip_weak_type())
    if linear[0]:
        out[0] = b.scatter(zeros, indices, ct, info)
    if len(n.src) == 3 and linear[2]:
        # The fill is used exactly where a gather of ones with fill 0 gives 0.
        inside = b.gather(b.ones(zeros.aval), indices, g, b.like(ct, 0))
        out[2] = b.sum_(b.mul(ct, b.sub(b.like(ct, 1), inside)), range(ct.ndim))
    return out


def scatter_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """add: both see the cotangent. set: the operand where nothing was written, the updates where
    they were the last to be written. mul: the operand times the updates."""
    x, indices, updates = n.src
    info = n.arg
    read = replace(gather_of_scatter(info, x.shape, updates.shape), mode=info.mode)
    if info.kind == "add":
        return [
            ct if linear[0] else None,
            None,
            b.gather(ct, indices, read, b.like(ct, 0)) if linear[2] else None,
        ]
    if info.kind == "mul":
        assert linear[0] and not linear[2]
        return [b.scatter(ct, indices, updates, info), None, None]
    assert info.kind == "set", f"scatter_{info.kind} is not linear"
    d_x = d_updates = None
    if linear[0]:
        d_x = b.scatter(ct, indices, b.zeros(updates.aval.strip_weak_type()), info)
    if linear[2]:
        d_updates = b.gather(ct, indices, read, b.like(ct, 0))
        if not info.unique_indices:
            # Number the updates, write the numbers, read them back: the survivors are the winners.
            count = b.prod(updates.shape)
            numbers = b.reshape(b.iota((count,), 0), updates.shape)
            numbers = b.add(numbers, b.like(numbers, 1))
            written = b.scatter(
                b.full(x.shape, b.scalar(0, np.dtype("i4"))), indices, numbers, info
            )
            back = b.gather(written, indices, read, b.like(written, 0))
            d_updates = b.where(b.eq(back, numbers), d_updates, b.like(d_updates, 0))
    return [d_x, None, d_updates]


def dynamic_slice_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """Into zeros, at the same place."""
    zeros = b.zeros(n.src[0].aval.strip_weak_type())
    return [b.dynamic_update(zeros, ct, n.src[1:]), *[None] * (len(n.src) - 1)]


def dynamic_update_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """To the update what lies under it, to the operand the rest."""
    update, starts = n.src[1], n.src[2:]
    out: list[Cotangent] = [None] * len(n.src)
    if linear[0]:
        out[0] = b.dynamic_update(ct, b.zeros(update.aval.strip_weak_type()), starts)
    if linear[1]:
        out[1] = b.dynamic_slice(ct, starts, update.shape)
    return out


def fft_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """The DFT matrix is symmetric; the real transforms drop or double mirrored frequencies."""
    kind, lengths = n.arg
    if kind in ("fft", "ifft"):
        return [UOp(Op.FFT, (ct,), n.arg)]
    x = n.src[0]
    last = x.ndim - 1
    size = lengths[-1]
    if kind == "rfft":
        config = [(0, 0, 0)] * ct.ndim
        config[last] = (0, size - ct.shape[last], 0)
        return [b.real(UOp(Op.FFT, (b.pad(ct, config),), ("fft", lengths)))]
    bins = size // 2 + 1
    spectrum = b.conj(UOp(Op.FFT, (ct,), ("rfft", lengths)))
    place = b.iota(spectrum.shape, last)
    single = b.eq(place, b.like(place, 0))
    if size % 2 == 0:
        single = b.or_(single, b.eq(place, b.like(place, bins - 1)))
    real = dtypes.to_floating_dtype(x.dtype)
    total = b.prod(lengths)
    weight = b.where(single, b.scalar(1 / total, real), b.scalar(2 / total, real))
    return [b.mul(spectrum, b.cast(weight, x.dtype))]


# --- calls and control flow ------------------------------------------------------------------------------------


def transposed_body(
    body: UOp, avals: Sequence[Aval], linear: tuple[bool, ...], nonzero: tuple[bool, ...]
) -> tuple[UOp, tuple[bool, ...]]:
    """(known args, cotangents of the outputs flagged) -> cotangents of the linear args.

    Returns the body and which linear args get one. Made once per (body, flags).
    """
    key = ("transpose", linear, nonzero)
    found = body.derived.get(key)
    if found is not None:
        return found  # type: ignore[no-any-return]
    params, outs = open_vars(body, avals)
    cts = [
        fresh_var(o.aval.strip_weak_type()) if on else None
        for o, on in zip(outs, nonzero, strict=True)
    ]
    wanted = [p for p, on in zip(params, linear, strict=True) if on]
    with open_chain() as chain:
        back = transpose(outs, cts, wanted)
    if chain.cells:
        raise RefsInBody(
            "a bwd uses a Ref, and its function is called inside of a branch or a checkpoint that is "
            "being differentiated.\n  Call it outside of that, or let it return what is to be written "
            "as the cotangent of a further argument."
        )
    known = [p for p, on in zip(params, linear, strict=True) if not on]
    roots = [ct for ct in back if ct is not None]
    inputs = [*known, *[ct for ct in cts if ct is not None]]
    new = reclose([*roots, *chain.tokens], [*inputs, *chain.starts])
    out = (new, tuple(ct is not None for ct in back))
    body.derived[key] = out
    return out


def transpose_opened(
    body: UOp, args: Sequence[UOp], linear: Linear, cts: Sequence[Cotangent]
) -> list[Cotangent]:
    """Cotangents of the linear arguments of a call, in the running trace."""
    inside = [fresh_var(a.aval) if on else a for a, on in zip(args, linear, strict=True)]
    wanted = [v for v, on in zip(inside, linear, strict=True) if on]
    found = iter(transpose(open_body(body, inside), cts, wanted))
    return [next(found) if on else None for on in linear]


def call_transpose(n: UOp, cts: Sequence[Cotangent], linear: Linear) -> list[Cotangent]:
    """One backward call that returns every cotangent that is needed."""
    info: CallInfo = n.arg
    body, args = n.src[0], n.src[1:]
    lin = tuple(linear[1:])
    nonzero = tuple(ct is not None for ct in cts)
    try:
        new, gets = transposed_body(body, [a.aval for a in args], lin, nonzero)
    except RefsInBody:
        if info.kind == "checkpoint":
            raise
        return [None, *transpose_opened(body, args, lin, cts)]
    known = [a for a, on in zip(args, lin, strict=True) if not on]
    given = [ct for ct in cts if ct is not None]
    name = info.name.removeprefix("jvp(").removesuffix(")")
    info = replace(info, name=f"transpose({name})")
    again: tuple[UOp, ...] = ()
    if info.repeat is not None:
        prints, _ = info.repeat
        again = tuple(of_repeat(n, args))
        repeat = replace(info, kind="jit", name=f"repeat({name})", repeat=None)
        join(UOp(Op.CALL, (prints, *again, state.chains[-1].take()), repeat))
    if has_effects(new):
        back = UOp(Op.CALL, (new, *known, *given, state.chains[-1].take(), *again), info)
        values = iter(join(back))
    else:
        values = iter(results(UOp(Op.CALL, (new, *known, *given, *again), info)))
    got = iter(gets)
    return [None, *[next(values) if on and next(got) else None for on in lin]]


class RefsInBody(ValueError):
    """A backward rule uses a Ref, and what is being transposed is a body that has no place for it."""


def held_now(ref: Any) -> UOp:
    """What a mutable array holds: in the running trace, or a variable of the body being made."""
    chain = state.chains[-1]
    if chain.trace is not None:
        node: UOp = ref.node
        return node
    if ref not in chain.cells:
        start = fresh_var(ref.aval_)
        chain.cells[ref] = Cell(start, start)
    return chain.cells[ref].node


def let_hold(ref: Any, value: UOp) -> None:
    """The counterpart of `held_now`."""
    chain = state.chains[-1]
    if chain.trace is not None:
        ref.put(value)
    else:
        chain.cells[ref].node = value


def custom_lin_transpose(n: UOp, cts: Sequence[Cotangent], linear: Linear) -> list[Cotangent]:
    """The user's backward rule."""
    info: CustomLinInfo = n.arg
    if info.backward is None:
        raise TypeError(
            f"transpose_solve required for backwards mode automatic differentiation of {info.name}.\n"
            "  Pass transpose_solve to custom_linear_solve, or symmetric=True if the matrix is."
        )
    held, refs = n.src[: info.num_residuals], info.refs
    captured: Sequence[UOp] = ()
    if isinstance(info.backward, Backward):
        given = [ct for ct in cts if ct is not None]
        now = not state.staging and state.chains[-1].trace is not None
        known = given if now and all(unbound(ct) is None for ct in given) else None
        body = info.backward.body(tuple(ct is None for ct in cts), known)
        refs, captured = info.backward.refs, info.backward.captured
    else:
        body = info.backward
        given = [instantiate(ct, of) for ct, of in zip(cts, info.out, strict=True)]
    back, _ = apply_rule(body, [*held, *given, *map(held_now, refs), *captured], None)
    count = len(back) - len(refs)
    for ref, value in zip(refs, back[count:], strict=True):
        let_hold(ref, value)
    return [*[None] * len(held), *back[:count]]


def scan_transpose(n: UOp, cts: Sequence[Cotangent], linear: Linear) -> list[Cotangent]:
    """A scan in the other direction; cotangents of linear consts accumulate in its carry."""
    info: ScanInfo = n.arg
    body, args, lin = n.src[0], n.src[1:], tuple(linear[1:])
    nc, nk = info.num_consts, info.num_carry
    # Every carry of a linear scan is linear: an initial value that mentions no variable is a zero.
    consts, carry, xs = args[:nc], args[nc : nc + nk], args[nc + nk :]
    known_consts = [c for c, on in zip(consts, lin, strict=False) if not on]
    lin_consts = [c for c, on in zip(consts, lin, strict=False) if on]
    known_xs = [x for x, on in zip(xs, lin[nc + nk :], strict=True) if not on]
    lin_xs = [x for x, on in zip(xs, lin[nc + nk :], strict=True) if on]
    ys_on = tuple(ct is not None for ct in cts[nk:])
    key = ("scan transpose", lin[:nc], lin[nc + nk :], ys_on)
    new = body.derived.get(key)
    if new is None:
        params, outs = open_vars(body, slice_avals(args, info))
        p_consts, p_carry, p_xs = params[:nc], params[nc : nc + nk], params[nc + nk :]
        ct_carry = [fresh_var(o.aval.strip_weak_type()) for o in outs[:nk]]
        ct_ys = [
            fresh_var(o.aval.strip_weak_type()) if on else None
            for o, on in zip(outs[nk:], ys_on, strict=True)
        ]
        lp_consts = [p for p, on in zip(p_consts, lin, strict=False) if on]
        lp_xs = [p for p, on in zip(p_xs, lin[nc + nk :], strict=True) if on]
        with open_chain() as chain:
            back = transpose(outs, [*ct_carry, *ct_ys], [*lp_consts, *p_carry, *lp_xs])
        cells = chain.cells
        befores = [c.start for c in cells.values() if c.start is not None]
        sums = [fresh_var(p.aval.strip_weak_type()) for p in lp_consts]
        new_sums = [
            s if ct is None else b.add(s, ct)
            for s, ct in zip(sums, back[: len(lp_consts)], strict=True)
        ]
        rest = [
            instantiate(ct, p.aval)
            for ct, p in zip(back[len(lp_consts) :], [*p_carry, *lp_xs], strict=True)
        ]
        k_consts = [p for p, on in zip(p_consts, lin, strict=False) if not on]
        k_xs = [p for p, on in zip(p_xs, lin[nc + nk :], strict=True) if not on]
        order = [*k_consts, *ct_carry, *sums, *befores, *chain.starts, *k_xs]
        order += [c for c in ct_ys if c is not None]
        afters = [c.node for c in cells.values()]
        new = reclose([*rest[:nk], *new_sums, *afters, *chain.tokens, *rest[nk:]], order)
        body.derived[key] = new, tuple(cells)
    else:
        new, cells = new
    refs = list(cells)
    init = [instantiate(ct, c.aval) for ct, c in zip(cts[:nk], carry, strict=True)]
    zeros = [b.zeros(c.aval.strip_weak_type()) for c in lin_consts]
    given_ys = [ct for ct in cts[nk:] if ct is not None]
    token = [state.chains[-1].take()] if has_effects(new) else []
    back_scan = UOp(
        Op.SCAN,
        (new, *known_consts, *init, *zeros, *map(held_now, refs), *token, *known_xs, *given_ys),
        replace(
            info,
            num_consts=len(known_consts),
            num_carry=nk + len(lin_consts) + len(refs) + len(token),
            reverse=not info.reverse,
        ),
    )
    # Residuals of what got no cotangent are not handed in.
    values = list(fewer(back_scan, set(range(len(new.src)))).values())
    if token:
        state.chains[-1].last = values.pop(nk + len(lin_consts) + len(refs))
    for ref in refs:
        let_hold(ref, values.pop(nk + len(lin_consts)))
    d_carry = values[:nk]
    d_consts = iter(values[nk : nk + len(lin_consts)])
    d_xs = iter(values[nk + len(lin_consts) :])
    assert len(lin_xs) == len(values) - nk - len(lin_consts)
    assert len(known_xs) + len(lin_xs) == len(xs)
    return [
        None,
        *[next(d_consts) if on else None for on in lin[:nc]],
        *[ct if on else None for ct, on in zip(d_carry, lin[nc : nc + nk], strict=True)],
        *[next(d_xs) if on else None for on in lin[nc + nk :]],
    ]


def cond_transpose(n: UOp, cts: Sequence[Cotangent], linear: Linear) -> list[Cotangent]:
    """Transpose each branch; they return the union of the cotangents needed."""
    number = n.arg
    branches, index, args = n.src[:number], n.src[number], n.src[number + 1 :]
    lin = tuple(linear[number + 1 :])
    nonzero = tuple(ct is not None for ct in cts)
    avals = [a.aval for a in args]
    made = [transposed_body(br, avals, lin, nonzero) for br in branches]
    lin_args = [a for a, on in zip(args, lin, strict=True) if on]
    union = [any(gets[i] for _, gets in made) for i in range(len(lin_args))]
    known = [a for a, on in zip(args, lin, strict=True) if not on]
    given = [ct for ct in cts if ct is not None]
    bodies = []
    token = [state.chains[-1].take()] if any(has_effects(body) for body, _ in made) else []
    for body, gets in made:
        params, outs = open_vars(body, [v.aval for v in (*known, *given, *token)])
        last = outs.pop() if has_effects(body) else params[-1]
        values = iter(outs)
        full = []
        for a, has, use in zip(lin_args, gets, union, strict=True):
            value = next(values) if has else None
            if use:
                full.append(instantiate(value, a.aval))
        bodies.append(reclose([*full, last] if token else full, params))
    node = UOp(Op.COND, (*bodies, index, *known, *given, *token), number)
    back = iter(join(node) if token else results(node))
    used = iter(union)
    out: list[Cotangent] = [None] * (number + 1)
    out += [next(back) if on and next(used) else None for on in lin]
    return out


def while_transpose(n: UOp, cts: Any, linear: Linear) -> list[Cotangent]:
    """The trip count is unknown, so what the backward pass needs cannot be kept."""
    raise ValueError(
        "Reverse-mode differentiation does not work for lax.while_loop or lax.fori_loop with "
        "dynamic start/stop values. Try using lax.scan, or using fori_loop with static start/stop."
    )


# --- collectives --------------------------------------------------------------------------------------------------


# The operands after the first are the axes' index variables (see `lax/collectives.py`).


def exchanged(n: UOp, op: Op, ct: UOp, arg: Any) -> list[Cotangent]:
    """The opposite exchange of the cotangent over the same axes."""
    return [UOp(op, (ct, *n.src[1:]), arg), *[None] * (len(n.src) - 1)]


def all_reduce_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """psum over a vmapped axis is its own transpose."""
    return exchanged(n, Op.ALL_REDUCE, ct, n.arg)


def ppermute_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """The inverse permutation of participants."""
    name, pairs = n.arg
    return exchanged(n, Op.PPERMUTE, ct, (name, tuple((j, i) for i, j in pairs)))


def all_gather_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """Reduce-scatter."""
    return exchanged(n, Op.REDUCE_SCATTER, ct, (*n.arg[:3], n.src[0].aval))


def reduce_scatter_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """All-gather."""
    return exchanged(n, Op.ALL_GATHER, ct, (*n.arg[:3], n.src[0].aval))


def all_to_all_transpose(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """The exchange with its two axes swapped."""
    name, split, concat, tiled = n.arg[:4]
    return exchanged(n, Op.ALL_TO_ALL, ct, (name, concat, split, tiled, n.src[0].aval))


def passes(n: UOp, ct: UOp, linear: Linear) -> list[Cotangent]:
    """An identity passes its cotangent."""
    return [ct]


TRANSPOSE: dict[Op, TransposeRule] = {
    Op.NEG: lambda n, ct, linear: [b.neg(ct)],
    Op.ADD: add_transpose,
    Op.SUB: sub_transpose,
    Op.MUL: mul_transpose,
    Op.DIV: div_transpose,
    Op.WHERE: where_transpose,
    Op.CAST: cast_transpose,
    Op.REDUCE_PRECISION: lambda n, ct, linear: [UOp(Op.REDUCE_PRECISION, (ct,), n.arg)],
    Op.REAL: real_transpose,
    Op.IMAG: imag_transpose,
    Op.CONJ: lambda n, ct, linear: [b.conj(ct)],
    Op.COMPLEX: complex_transpose,
    Op.RESHAPE: lambda n, ct, linear: [b.reshape(ct, n.src[0].shape)],
    Op.PERMUTE: permute_transpose,
    Op.EXPAND: expand_transpose,
    Op.PAD: pad_transpose,
    Op.SLICE: slice_transpose,
    Op.FLIP: lambda n, ct, linear: [b.flip(ct, n.arg)],
    Op.CONCAT: concat_transpose,
    Op.WINDOW: window_transpose,
    Op.REDUCE: reduce_transpose,
    Op.PREFIX: prefix_transpose,
    Op.DOT: dot_transpose,
    Op.GATHER: gather_transpose,
    Op.SCATTER: scatter_transpose,
    Op.DYNAMIC_SLICE: dynamic_slice_transpose,
    Op.DYNAMIC_UPDATE: dynamic_update_transpose,
    Op.FFT: fft_transpose,
    Op.NAME: passes,
    Op.OPTIMIZATION_BARRIER: lambda n, ct, linear: [UOp(Op.OPTIMIZATION_BARRIER, (ct,))],
    Op.REMAT: passes,
    Op.COPY: passes,
    Op.CALL: call_transpose,
    Op.CUSTOM_LIN: custom_lin_transpose,
    Op.SCAN: scan_transpose,
    Op.WHILE: while_transpose,
    Op.COND: cond_transpose,
    Op.HOST_CALL: host_call_transpose,
    Op.ALL_REDUCE: all_reduce_transpose,
    Op.ALL_GATHER: all_gather_transpose,
    Op.REDUCE_SCATTER: reduce_scatter_transpose,
    Op.PPERMUTE: ppermute_transpose,
    Op.ALL_TO_ALL: all_to_all_transpose,
    Op.PCAST: lambda n, ct, linear: [UOp(Op.ALL_REDUCE, (ct,), ("add", n.arg))],
}
"""One rule per linear op. Ops that are linear in no operand are absent and never visited."""


def of_tangents_only(node: UOp, linear: Linear) -> bool:
    """Whether this is a product of two tangents, or divides by one."""
    return all(linear[:2]) if node.op in (Op.MUL, Op.DOT) else node.op is Op.DIV and linear[1]


def transpose(
    outputs: Sequence[UOp], cotangents: Sequence[Cotangent], variables: Sequence[UOp]
) -> list[Cotangent]:
    """Cotangents of `variables`, given those of `outputs`, which are linear in them.

    Cost: one walk over the nodes that mention the variables.
    """
    is_linear = depends_on(outputs, [v.arg for v in variables])
    pending: dict[UOp, Any] = {}

    def give(node: UOp, ct: Cotangent) -> None:
        if ct is None:
            return
        if node.op is Op.GETTUPLE:
            parent = node.src[0]
            parts = pending.setdefault(parent, [None] * len(parent.aval.elts))
            parts[node.arg] = add_tangents(parts[node.arg], ct)
        else:
            pending[node] = add_tangents(pending.get(node), ct)

    for out, ct in zip(outputs, cotangents, strict=True):
        if is_linear(out):
            give(out, ct)
    for node in reversed(toposort(outputs, keep=is_linear)):
        if node.op is Op.VAR or node.op is Op.GETTUPLE:
            continue
        ct = pending.pop(node, None)
        if ct is None:
            continue
        linear = [is_linear(s) for s in node.src]
        if node.op is Op.TUPLE:
            parts = ct
        else:
            rule = TRANSPOSE.get(node.op)
            if rule is None or of_tangents_only(node, linear):
                raise NotLinearError(
                    "Transpose rule (for reverse-mode differentiation) for "
                    f"'{node.op.name.lower()}' not implemented: it is not linear, and here it is "
                    "applied to a tangent.\n  A custom_jvp rule must be linear in its tangents."
                )
            parts = rule(node, ct, linear)
            sites.rewritten(parts, node, "transpose")
        for s, part, on in zip(node.src, parts, linear, strict=True):
            if on:
                give(s, part)
    return [pending.get(v) for v in variables]
