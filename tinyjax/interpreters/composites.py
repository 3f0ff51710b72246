"""Derivatives of composites (core/composites.py) as wholes: tangents from what is kept anyway.

softmax is differentiated from its output alone, which a contraction keeps anyway. All others are
differentiated through their plain bodies; so is a composite that was differentiated before (second
derivatives), because it then returns residuals too. Equations were tried for log_softmax (from its
output) and logsumexp (from input and output): their exponentials are other ones than those of the
forward pass, which a compiled step then cannot share (60% and 25% more time for their gradients).

Attention with a large weight matrix keeps the logsumexp of each row in its place, and the weights
are computed again from queries and keys where the linear part needs them:
weights = exp(logits - logsumexp(logits)). Unlike in a kernel that also cuts the keys, rows are
whole in every block, so the output of the forward pass is not needed. Source: Dao, Fu, Ermon,
Rudra and Ré, "FlashAttention" (2022), section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.body import open_body
from tinyjax.core.composites import KIND, is_composite, summed_axes
from tinyjax.core.dims import largest
from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, substitute, toposort

Axes = tuple[int, ...]
Equation = Callable[[UOp, UOp, UOp, Axes], UOp]

KEPT_BYTES = 32 << 20
"""Weight matrices up to this size are kept for the backward pass. Making them again costs a seventh
of attention's multiplications and its exponentials: 13 to 30% more time measured for gradients of
heads of 512 to 2048 rows, at a fifth to a tenth of the memory."""


def spread(v: UOp, shape: Axes, axes: Axes) -> UOp:
    """A value without `axes` (or with them at size 1) over `shape`."""
    rest = tuple(i for i in range(len(shape)) if i not in axes)
    return b.expand(b.reshape(v, tuple(shape[i] for i in rest)), shape, rest)


def softmax_tangent(y: UOp, x: UOp, dx: UOp, axes: Axes) -> UOp:
    """dy = y (dx - sum(y dx))"""
    mean = b.sum_(b.mul(y, dx), axes)
    return b.mul(y, b.sub(dx, spread(mean, x.shape, axes)))


EQUATIONS: dict[str, Equation] = {
    "softmax": softmax_tangent,
}


def composite_tangent(
    info: CallInfo | None,
    body: UOp,
    outputs: Sequence[UOp],
    params: Sequence[UOp],
    tangent: UOp | None,
) -> UOp | None:
    """The tangent of the only output of a composite that has an equation, else None."""
    equation = EQUATIONS.get(info.name) if info is not None and info.kind == KIND else None
    if equation is None or tangent is None or len(params) != 1 or len(outputs) != 1:
        return None
    axes = summed_axes(body)
    return None if axes is None else equation(outputs[0], params[0], tangent, axes)


def attention_residuals(parts: Any) -> list[UOp] | None:
    """Inputs and the logsumexp in place of the weights of a large attention; None if it is small.

    The linear part in `parts` is changed to compute the weights from these.
    """
    found = [n for n in toposort(parts.linear_roots) if is_composite(n, "softmax")]
    if len(found) != 1 or largest(found[0].aval.nbytes) <= KEPT_BYTES:
        return None
    (weights,) = found
    body, logits = weights.src[0].src
    axes = summed_axes(body)
    inside = toposort(open_body(body, [logits]), keep=lambda n: n is not logits)
    folds = {n.arg[0]: n for n in inside if n.op is Op.REDUCE}
    if axes is None or not {"max", "add"} <= folds.keys():
        return None
    top = folds["max"]
    # Constant for differentiation where it is in the sum: the two derivatives cancel.
    top = next((n for n in inside if n.op is Op.STOP_GRADIENT and n.src[0] is top), top)
    wide = np.dtype(np.float32) if dtypes.bit_width(logits.dtype) < 32 else logits.dtype
    statistic = b.add(b.log(b.cast(folds["add"], wide)), b.cast(top, wide))
    again = b.exp(b.sub(b.cast(logits, wide), spread(statistic, logits.shape, axes)))
    mapping = {weights: b.cast_like(again, weights.aval)}
    roots = iter(substitute(parts.linear_roots, mapping))
    parts.out_tangents = [None if t is None else next(roots) for t in parts.out_tangents]
    reached = set(toposort(parts.linear_roots))
    return [*(p for p in parts.params if p in reached), statistic]
