"""Draw the figures of the documentation anew, from what the pages themselves compute.

    python tools/draw_docs.py

Writes docs/checkpoint_memory.svg. The same numbers make the same bytes, with one release of
Matplotlib.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.test_docs import ROOT, blocks

STYLE = {
    "svg.hashsalt": "tinyjax",  # ids would be random
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
COLORS = {"plain": "#b2452f", "products kept": "#8a6d1d", "inputs kept": "#1f6f8b"}
PER_LAYER = {"plain": 22, "products kept": 9, "inputs kept": 1}
"""Layer inputs that a layer leaves for the backward pass, counted by hand in docs/checkpoint.md."""


def names_of(page: Path) -> dict[str, Any]:
    """What the examples of a page define."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        for code, _ in blocks(page):
            exec(compile(code, str(page), "exec"), names)
    return names


def checkpoint_memory() -> Figure:
    """Peak planned memory against depth: planned (dots), and the lines that theory gives."""
    page = names_of(ROOT / "docs" / "checkpoint.md")
    depths = range(2, 13)
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for name, wrap in page["wrappers"].items():
        peaks = [page["peak"](wrap, n) for n in depths]
        line = [peaks[0] + PER_LAYER[name] * (n - depths[0]) for n in depths]
        slope = PER_LAYER[name]
        axes.plot(depths, line, color=COLORS[name], linewidth=1.2)
        axes.plot(depths, peaks, "o", color=COLORS[name], markersize=4.5)
        axes.annotate(
            f"{name}\n{slope} per layer",
            (depths[-1], peaks[-1]),
            xytext=(9, 0),
            textcoords="offset points",
            color=COLORS[name],
            va="center",
        )
    axes.set_xlabel("layers")
    axes.set_ylabel("peak planned memory, MiB")
    axes.set_title("Dots: planned. Lines: what a layer keeps, counted by hand.", loc="left",
                   fontsize=10)  # fmt: skip
    axes.set_xlim(1.5, 14.6)
    axes.set_xticks(range(2, 13, 2))
    axes.set_ylim(0, 280)
    axes.spines["bottom"].set_bounds(2, 12)
    return figure


if __name__ == "__main__":
    with matplotlib.rc_context(STYLE):
        checkpoint_memory().savefig(
            ROOT / "docs" / "checkpoint_memory.svg", metadata={"Date": None, "Creator": None}
        )
