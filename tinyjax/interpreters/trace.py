"""Running a user's function on variables: open traces, bound and unbound variables, values on demand.

A transformation opens a `Trace` and hands the function variables. Those of grad, jvp, vjp and
linearize are *bound*: they stand for known values, and Python may look at them (`if x > 0`). Those
of jit, vmap, scan and the like are unbound: looking at one is an error that says whose it is.

While a *staging* trace is open (jit, scan bodies) every operation is recorded, also those on plain
values. Otherwise an operation without open variables runs at once. All state is per thread and is
restored on any exception. Values that were looked at are remembered beside their nodes until the
outermost trace ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tinyjax.core import execute
from tinyjax.core.avals import Aval
from tinyjax.core.ops import Op
from tinyjax.core.source import Site, call_site, function_location
from tinyjax.core.uop import UOp, Var, active, toposort
from tinyjax.interpreters.evaluate import evaluate


class Trace:
    """One run of a function on variables. `kind` is "jit", "grad", "vmap", "scan", ...

    `at_end` is called when the trace ends: caches drop what mentions its variables.
    """

    __slots__ = ("at_end", "fun", "kind", "open", "staging")

    def __init__(self, kind: str, fun: Any, staging: bool) -> None:
        self.kind, self.fun, self.staging, self.open = kind, fun, staging, True
        self.at_end: list[Callable[[], None]] = []

    def variable(
        self, of: Aval, path: str = "", bound: UOp | None = None, differentiable: bool = False
    ) -> UOp:
        """A fresh variable of this trace; `path` names the argument in messages."""
        return UOp(Op.VAR, (), Var(of, self, path, bound, differentiable))

    def describe(self) -> str:
        """`jit of loss at train.py:12`"""
        name = getattr(self.fun, "__name__", None) or type(self.fun).__name__
        _, found, line = function_location(self.fun).rpartition(" at ")
        return f"{self.kind} of {name}" + (f" at {line}" if found else "")


class State(threading.local):
    """What is being traced on this thread."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.staging = 0
        self.forced: dict[UOp, Any] = {}
        self.sites: dict[UOp, Site] = {}
        self.axes: dict[Any, Any] = {}


state = State()


@contextmanager
def open_trace(kind: str, fun: Any, staging: bool) -> Iterator[Trace]:
    """A trace for the duration of a block."""
    trace = Trace(kind, fun, staging)
    s = state
    s.traces.append(trace)
    s.staging += staging
    try:
        yield trace
    finally:
        trace.open = False
        s.traces.pop()
        s.staging -= staging
        for drop in trace.at_end:
            drop()
        if not s.traces:
            s.forced.clear()
            s.sites.clear()


@contextmanager
def no_traces() -> Iterator[None]:
    """Run at once whatever is inside, as if no trace were open (constants, initial values)."""
    s = state
    saved = s.staging
    s.staging = 0
    try:
        yield
    finally:
        s.staging = saved


def record_site(node: UOp) -> None:
    """Remember the user's line that made an open node (the first one keeps it)."""
    if node not in state.sites:
        site = call_site()
        if site is not None:
            state.sites[node] = site


def unbound(node: UOp) -> Var | None:
    """A variable without a value that the node depends on, through bound variables too."""
    for v in node.free:
        if v.bound is None:
            return v
        found = unbound(v.bound)
        if found is not None:
            return found
    return None


def value_of(node: UOp) -> np.ndarray:
    """The value of a node all of whose variables are bound. Remembered while a trace is open."""
    return values_of([node])[0]


def values_of(nodes: Sequence[UOp]) -> list[np.ndarray]:
    """Values of several nodes at once; shared parts are computed once."""
    memo = state.forced if state.traces else {}
    out: list[np.ndarray] = evaluate(nodes, memo, bound_value, run=execute.run)
    return out


def bound_value(node: UOp) -> np.ndarray:
    """The value a bound variable stands for."""
    if node.op is not Op.VAR or node.arg.bound is None:
        raise AssertionError(f"{node!r} has no value")
    return value_of(node.arg.bound)


def rebind(roots: Sequence[UOp], mapping: dict[UOp, UOp]) -> list[UOp]:
    """`substitute` that carries remembered values over to the rebuilt nodes."""
    forced = state.forced
    done = dict(mapping)
    for node in toposort(roots, keep=lambda n: n not in done):
        src = node.src
        new = tuple(done.get(s, s) for s in src)
        if new == src:
            done[node] = node
            continue
        rebuilt = UOp(node.op, new, node.arg)
        done[node] = rebuilt
        if node in forced:
            forced.setdefault(rebuilt, forced[node])
    return [done[r] for r in roots]


def differentiated(node: UOp) -> list[Var]:
    """Variables of running grad-like traces that the node depends on differentiably.

    What escaped from a finished one is an ordinary value.
    """
    return [v for v in active(node) if v.trace is None or v.trace.open]


def escaped(node: UOp) -> Var | None:
    """A variable of a finished jit-like trace that the node still mentions."""
    for v in node.free:
        if v.bound is not None:
            found = escaped(v.bound)
            if found is not None:
                return found
        elif v.trace is not None and not v.trace.open:
            return v
    return None


Callback = Callable[..., Any]
