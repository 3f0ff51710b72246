"""docs/ops.md as data: one `Row` per op, its examples parsed. For tests of whatever runs ops."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import aval
from tinyjax.core.infos import DotInfo, GatherInfo, ScatterInfo
from tinyjax.core.ops import Op

PAGE = Path(__file__).parent.parent / "docs" / "ops.md"
BY_SHORT_NAME = {dtypes.short_name(d): d for d in dtypes.DTYPES.values()}
NAMES: dict[str, Any] = {
    **BY_SHORT_NAME,
    "aval": aval, "DotInfo": DotInfo, "GatherInfo": GatherInfo, "ScatterInfo": ScatterInfo,
    "nan": float("nan"), "inf": float("inf"), "complex": complex, "zeros": np.zeros,
}  # fmt: skip

KINDS = {
    "b": (dtypes.bool_,),
    "i": dtypes.UNSIGNED + dtypes.SIGNED,
    "f": dtypes.FLOATS,
    "c": dtypes.COMPLEXES,
    "k": (),  # typed keys have tests of their own
}


@dataclass(frozen=True)
class Example:
    """`arg @ operands -> results`, values as ndarrays."""

    text: str
    arg: Any
    operands: tuple[np.ndarray, ...]
    results: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Row:
    """One op: the dtypes it takes and its examples."""

    op: Op
    operands: tuple[Any, ...]
    meaning: str
    examples: tuple[Example, ...]


def rows() -> list[Row]:
    """Every row of the page, in order."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 4 or cells[0] == "Op" or set(cells[0]) == {"-"}:
            continue
        name, kinds, meaning, edges = cells
        letters = list(KINDS) if kinds == "*" else kinds.split()
        accepted = tuple(d for k in letters for d in KINDS[k])
        examples = tuple(map(parse, re.findall(r"`([^`]+)`", edges)))
        found.append(Row(Op[name], accepted, meaning, examples))
    return found


def parse(text: str) -> Example:
    """One example."""
    left, right = text.split("->")
    arg = None
    if "@" in left:
        arg_text, left = left.split("@")
        arg = evaluate(arg_text, {})
    return Example(text, arg, values(left), values(right))


def values(text: str) -> tuple[np.ndarray, ...]:
    """`literal:dtype, ...`"""
    return tuple(value(m[1], m[2]) for m in re.finditer(r"\s*(.+?):(\w+)(?:,|\s*$)", text))


def value(literal: str, short_name: str) -> np.ndarray:
    """A literal of a dtype; `min` and `max` are its limits."""
    dtype = BY_SHORT_NAME[short_name]
    limits = {}
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        limits = {"min": int(info.min), "max": int(info.max)}
    found = evaluate(literal, limits)
    if dtypes.is_integer(dtype) and not isinstance(found, np.ndarray):
        wide = np.array(found, np.uint64 if dtype == np.uint64 else np.int64)
        return wide.astype(dtype)
    return np.array(found).astype(dtype)


def evaluate(text: str, more: dict[str, Any]) -> Any:
    """A Python expression over NAMES."""
    tree = ast.parse(text.strip(), mode="eval")
    return eval(compile(tree, str(PAGE), "eval"), {"__builtins__": {}}, NAMES | more)
