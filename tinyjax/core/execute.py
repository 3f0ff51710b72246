"""The one place where layers below `engine` ask for something to be run. `engine` installs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinyjax.core.uop import UOp

Runner = Callable[[UOp, Sequence[Any]], list[Any]]


def _missing(node: UOp, args: Sequence[Any]) -> list[Any]:
    raise AssertionError("tinyjax.engine has not been imported: nothing can run a call")


_runner: Runner = _missing


def install(runner: Runner) -> None:
    """Set what runs a CALL, SCAN, WHILE or COND node on ndarray operands."""
    global _runner
    _runner = runner


def run(node: UOp, args: Sequence[Any]) -> list[Any]:
    """Results (ndarrays) of a node with bodies, its operands given as ndarrays."""
    return _runner(node, args)
