"""How arrays show themselves: text like JAX's, and HTML for notebooks. No large value is formatted
whole."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.interpreters.trace import differentiated, escaped, unbound

if TYPE_CHECKING:
    from tinyjax.engine.array import Array


def origin(x: Array) -> str:
    """What traces an array without a visible value: `traced by jit of f`, or empty."""
    node = x.node
    gone = escaped(node)
    if gone is not None:
        return f"escaped from {gone.trace.describe()}"
    var = unbound(node)
    if var is not None:
        return f"traced by {var.trace.describe()}" if var.trace is not None else "traced"
    return "staged" if not node.free else ""


def array_repr(x: Array) -> str:
    """`Array([1., 2.], dtype=float32)`; a traced one shows its type and what traces it.

    Printing never loses a gradient, so a differentiated value shows its numbers.
    """
    if x._buffer is None and x._hidden():
        return f"Array({x.aval.str_short()}, {origin(x)})"
    if x._buffer is not None and x._buffer.deleted:
        return f"Array({x.aval.str_short()}, deleted)"
    weak = ", weak_type=True" if x.aval.weak_type else ""
    if dtypes.is_key(x.aval.dtype):
        return f"Array({x.shape}, dtype={x.dtype}) overlaying:\n{x._value}"
    value = x._value
    text = np.array2string(value, separator=", ", prefix="Array(") if value.size else "[]"
    shape = f", shape={x.shape}" if not value.size and x.shape != (0,) else ""
    suffix = ", differentiated" if x._buffer is None and differentiated(x.node) else ""
    return f"Array({text}{shape}, dtype={x.dtype.name}{weak}{suffix})"


def summary(value: np.ndarray[Any, Any]) -> str:
    """Range and mean of finite elements, and how many are not finite."""
    if value.dtype == bool:
        return f"{int(value.sum())} of {value.size} true"
    wide = value.astype(np.float64) if not np.iscomplexobj(value) else np.abs(value)
    finite = np.isfinite(wide)
    if not finite.any():
        return "no finite element"
    bad = value.size - int(finite.sum())
    part = wide[finite]
    text = f"min {part.min():.4g} · mean {part.mean():.4g} · max {part.max():.4g}"
    return text + (f" · {bad} not finite" if bad else "")


def heat_map(value: np.ndarray[Any, Any], limit: int = 32) -> str:
    """A small table of coloured cells for a 2-D array, sampled down to `limit` a side."""
    rows = np.unique(np.linspace(0, value.shape[0] - 1, min(limit, value.shape[0])).astype(int))
    cols = np.unique(np.linspace(0, value.shape[1] - 1, min(limit, value.shape[1])).astype(int))
    part = value[np.ix_(rows, cols)].astype(np.float64)
    finite = part[np.isfinite(part)]
    top = float(np.abs(finite).max()) if finite.size else 0.0
    cells = []
    for row in part:
        line = []
        for v in row:
            style = f"padding:0;width:8px;height:8px;background:{colour(v, top)}"
            line.append(f'<td title="{v:.4g}" style="{style}"></td>')
        cells.append(f"<tr>{''.join(line)}</tr>")
    return f'<table style="border-collapse:collapse;border-spacing:0">{"".join(cells)}</table>'


def colour(v: float, top: float) -> str:
    """Blue below zero, red above, white at zero, grey where not finite."""
    if not np.isfinite(v):
        return "#888"
    share = 0.0 if top == 0 else min(abs(v) / top, 1.0)
    pale = int(255 - 175 * share)
    return f"rgb(255,{pale},{pale})" if v >= 0 else f"rgb({pale},{pale},255)"


def array_html(x: Array) -> str:
    """Header, summary statistics, and a heat map for small 2-D arrays or the first elements."""
    head = f"<b>Array</b> {html.escape(x.aval.str_short())}"
    if x._buffer is None and x._hidden():
        return f"<div>{head} <i>{html.escape(origin(x))}</i></div>"
    if dtypes.is_key(x.aval.dtype):
        return f"<div>{head}<pre>{html.escape(str(x._value))}</pre></div>"
    value = x._value
    if value.ndim == 2 and value.size and not np.iscomplexobj(value):
        body = heat_map(value)
    else:
        body = f"<pre>{html.escape(np.array2string(value, threshold=60, separator=', '))}</pre>"
    facts = f"<div><small>{summary(value)}</small></div>" if value.size else ""
    return f"<div>{head}{facts}{body}</div>"
