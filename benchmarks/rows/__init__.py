"""The rows of the table by family; a family is a file here."""

from __future__ import annotations

from benchmarks.row import ProcessRow, Row
from benchmarks.rows import (
    compiling,
    convolution,
    derivatives,
    dispatch,
    elementwise,
    indexing,
    matmul,
    ordering,
    reductions,
    startup,
    training,
)

FAMILIES: dict[str, list[Row | ProcessRow]] = {
    module.__name__.rpartition(".")[2]: module.ROWS
    for module in (
        startup,
        dispatch,
        compiling,
        elementwise,
        reductions,
        ordering,
        matmul,
        convolution,
        training,
        derivatives,
        indexing,
    )
}


def find_row(name: str) -> Row | ProcessRow:
    return next(row for rows in FAMILIES.values() for row in rows if row.name == name)


def select(patterns: list[str]) -> list[Row | ProcessRow]:
    """Rows whose family is, or whose name contains, one of the patterns; all without patterns."""
    return [
        row
        for family, rows in FAMILIES.items()
        for row in rows
        if not patterns or any(p == family or p in row.name for p in patterns)
    ]
