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
    parts = []
    if finite.any():
        part = wide[finite]
        of = " |x|" if np.iscomplexobj(value) else ""
        found = {"min": part.min(), "mean": part.mean(), "max": part.max()}
        parts += [f"{name}{of} {number:.4g}" for name, number in found.items()]
    nans = int(np.isnan(wide).sum())
    infinities = value.size - int(finite.sum()) - nans
    parts += [f"{nans} NaN"] * (nans > 0) + [f"{infinities} infinite"] * (infinities > 0)
    return " · ".join(parts)


CELL = 8
"""Side of a cell of the heat map, in pixels."""
CELLS = 32
"""Cells a side, at most; larger matrices are sampled."""
NUMBERS = 60
"""Elements that are shown as numbers; more of a matrix is a heat map."""


def heat_map(value: np.ndarray[Any, Any]) -> str:
    """A matrix as coloured cells: red above zero, blue below, transparent at zero, so that it reads
    on a dark page too; grey where not finite. An SVG, because notebooks restyle tables."""
    rows, cols = (np.unique(np.linspace(0, n - 1, min(CELLS, n)).astype(int)) for n in value.shape)
    part = value[np.ix_(rows, cols)].astype(np.float64)
    finite = part[np.isfinite(part)]
    top = float(np.abs(finite).max()) if finite.size else 0.0
    cells = [
        f'<rect x="{j * CELL}" y="{i * CELL}" width="{CELL}" height="{CELL}" {fill(v, top)}>'
        f"<title>[{rows[i]}, {cols[j]}] = {v:.4g}</title></rect>"
        for (i, j), v in np.ndenumerate(part)
    ]
    width, height = len(cols) * CELL, len(rows) * CELL
    frame = f'<rect width="{width}" height="{height}" fill="none" stroke="currentColor"'
    svg = (
        f'<svg width="{width + 2}" height="{height + 2}" viewBox="-1 -1 {width + 2} {height + 2}">'
        f'{"".join(cells)}{frame} stroke-opacity="0.4"/></svg>'
    )
    if part.shape == value.shape:
        return svg
    shown = f"{len(rows)} of {value.shape[0]} rows, {len(cols)} of {value.shape[1]} columns"
    return f"{svg}<div><small>{shown}</small></div>"


def fill(v: float, top: float) -> str:
    """Colour of a cell, as opaque as the value is large."""
    if not np.isfinite(v):
        return 'fill="#888"'
    share = 0.0 if top == 0 else min(abs(v) / top, 1.0)
    return f'fill="{"#e0452c" if v >= 0 else "#3b76e0"}" fill-opacity="{share:.2f}"'


def numbers(value: np.ndarray[Any, Any]) -> str:
    """The elements as text: the ends of each axis if there are many. Scrolls, never overflows."""
    ends = 3 if value.ndim < 3 else 1
    text = np.array2string(value, threshold=NUMBERS, edgeitems=ends, separator=", ")
    style = "margin:0;overflow:auto;max-height:20em"
    return f'<pre style="{style}">{html.escape(text)}</pre>'


def array_html(x: Array) -> str:
    """Header, summary statistics, and the elements, or a heat map of a larger matrix."""
    head = f"<b>Array</b> {html.escape(x.aval.str_short())}"
    if x._buffer is None and x._hidden():
        return f"<div>{head} <i>{html.escape(origin(x))}</i></div>"
    if x._buffer is not None and x._buffer.deleted:
        return f"<div>{head} <i>deleted</i></div>"
    value = x._value
    if dtypes.is_key(x.aval.dtype):
        return f"<div>{head}{numbers(np.asarray(value))}</div>"
    many = value.ndim == 2 and min(value.shape) > 1 and value.size > NUMBERS
    matrix = many and not np.iscomplexobj(value)
    body = heat_map(value) if matrix else numbers(value) if value.size else ""
    facts = f"<div><small>{summary(value)}</small></div>" if value.size > 1 else ""
    return f"<div>{head}{facts}{body}</div>"
