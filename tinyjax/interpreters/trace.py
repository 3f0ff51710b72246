"""Running a user's function on variables: open traces, bound and unbound variables, values on demand.

A transformation opens a `Trace` and hands the function variables. Those of grad, jvp, vjp and
linearize are *bound*: they stand for known values, and Python may look at them (`if x > 0`). Those
of jit, vmap, scan and the like are unbound: looking at one is an error that says whose it is.

While a *staging* trace is open (jit, scan bodies) every operation is recorded, also those on plain
values. Otherwise an operation without open variables runs at once. All state is per thread and is
restored on any exception. Values that were looked at are remembered beside their nodes until the
outermost trace ends.

Effects that cannot happen yet (`print` of a value that has none) are noted in the `Chain` of the
innermost trace: each takes the token of the one before, so order and existence are data flow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tinyjax.core import execute, sites
from tinyjax.core.avals import TOKEN, Aval
from tinyjax.core.body import inherited
from tinyjax.core.config import config
from tinyjax.core.ops import Op
from tinyjax.core.source import current_source, function_location
from tinyjax.core.uop import UOp, Var, active, toposort
from tinyjax.core.weak import dead, forget_dead
from tinyjax.interpreters.evaluate import evaluate


class Chain:
    """The effects noted in one open function or body: from token `start` to token `last`.

    Both are None while there are none. `deferred`: also effects whose values are known are noted
    (the backward rule of a custom function that runs early). `late`: what is noted here sees tangents
    that come when all is over, so others do not wait for it. `cells` are the mutable arrays that
    backward rules in a body touch.
    """

    __slots__ = ("cells", "deferred", "last", "late", "start", "trace")

    def __init__(self, trace: Trace | None = None, deferred: bool = False) -> None:
        self.start: UOp | None = None
        self.last: UOp | None = None
        self.trace, self.deferred, self.late = trace, deferred, False
        self.cells: dict[Any, Cell] = {}

    def take(self) -> UOp:
        """The token that the next effect takes."""
        if self.last is None:
            self.start = self.last = UOp(Op.VAR, (), Var(TOKEN, self.trace))
        return self.last

    @property
    def waits(self) -> bool:
        """Whether there are effects that others must follow."""
        return self.last is not None and not self.late

    @property
    def starts(self) -> list[UOp]:
        """The token variable, if there are effects."""
        return [] if self.start is None else [self.start]

    @property
    def tokens(self) -> list[UOp]:
        """The last token, if there are effects: what keeps them alive."""
        return [] if self.last is None else [self.last]


class Cell:
    """The node that a mutable array (engine/refs.py) stands for, and the variable it began with if it
    comes from outside of the staged function that touches it."""

    __slots__ = ("node", "start")

    def __init__(self, node: UOp, start: UOp | None = None) -> None:
        self.node, self.start = node, start


class Trace:
    """One run of a function on variables. `kind` is "jit", "grad", "vmap", "scan", ...

    `at_end` is called when the trace ends: caches drop what mentions its variables. `cells` are
    the mutable arrays from outside that a staged function touches, `touched` those that another one
    wrote values to that mention its variables. `stands_for`: what those of its variables are that are
    bound to something without derivatives; `seeds`: the tangents of the others, if known, and `made`:
    what was derived with these (interpreters/midway.py).
    """

    __slots__ = (
        "at_end", "cells", "chain", "fun", "kind", "made", "open", "seeds", "staging", "stands_for",
        "touched",
    )  # fmt: skip

    def __init__(self, kind: str, fun: Any, staging: bool, deferred: bool = False) -> None:
        self.kind, self.fun, self.staging, self.open = kind, fun, staging, True
        self.chain = Chain(self, deferred)
        self.at_end: list[Callable[[], None]] = []
        self.cells: dict[Any, Cell] = {}
        self.touched: list[Cell] = []
        self.stands_for: dict[UOp, UOp] = {}
        self.seeds: dict[UOp, UOp] = {}
        self.made: tuple[dict[UOp, UOp], dict[UOp, Any]] = {}, {}

    def variable(
        self,
        of: Aval,
        path: str = "",
        bound: UOp | None = None,
        differentiable: bool = False,
        outer: frozenset[Var] = frozenset(),
    ) -> UOp:
        """A fresh variable of this trace; `path` names the argument in messages."""
        return UOp(Op.VAR, (), Var(of, self, path, bound, differentiable, outer))

    def describe(self) -> str:
        """`jit of loss at train.py:12`"""
        name = getattr(self.fun, "__name__", None) or type(self.fun).__name__
        _, found, line = function_location(self.fun).rpartition(" at ")
        return f"{self.kind} of {name}" + (f" at {line}" if found else "")


class State(threading.local):
    """What is being traced on this thread."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.chains: list[Chain] = []
        self.staging = 0
        self.folding = False  # what is known runs at once, in staging traces too
        self.linear: str | None = None
        self.forced: dict[UOp, Any] = {}
        self.axes: dict[Any, Any] = {}


state = State()


@contextmanager
def open_trace(kind: str, fun: Any, staging: bool, deferred: bool = False) -> Iterator[Trace]:
    """A trace for the duration of a block."""
    trace = Trace(kind, fun, staging, deferred)
    s = state
    if not s.traces:
        sites.start()
    s.traces.append(trace)
    s.chains.append(trace.chain)
    records = staging and not s.folding
    s.staging += records
    try:
        yield trace
    finally:
        trace.open = False
        trace.seeds, trace.stands_for, trace.made = {}, {}, ({}, {})
        s.traces.pop()
        s.chains.pop()
        s.staging -= records
        for drop in trace.at_end:
            drop()
        trace.chain.trace = None  # no cycle: what the function holds goes with the last variable
        if not s.traces:
            if dead:
                forget_dead()
            s.forced.clear()
            sites.stop(keep=staging)


@contextmanager
def open_chain() -> Iterator[Chain]:
    """A chain for what rewriting a body makes inside the block."""
    chain = Chain()
    state.chains.append(chain)
    try:
        yield chain
    finally:
        state.chains.pop()


@contextmanager
def linear_apart(what: str | None) -> Iterator[None]:
    """What is differentiated inside is taken apart into a known and a linear part, unless None.

    `what` happens to the latter: "applied", or "transposed", which drops the effects that see
    tangents; "recomputed" is applied inside of a checkpoint, which repeats the prints of all inside.
    """
    saved, state.linear = state.linear, what
    try:
        yield
    finally:
        state.linear = saved


def linear_part(trace: Trace | None) -> str | None:
    """What a grad-like trace will do with linear parts, as `linear_apart` has it."""
    kind = None if trace is None else trace.kind
    return "transposed" if kind in ("grad", "vjp") else "applied" if kind == "linearize" else None


def uses_vjp(rule: Any) -> bool:
    """Whether a derivative that is taken now uses a vjp rule: of two rules in reverse mode only."""
    return bool(rule.has_vjp) and (state.linear == "transposed" or not rule.has_jvp)


@contextmanager
def no_traces(folding: bool = False) -> Iterator[None]:
    """Run at once whatever is inside, as if no trace were open (constants, initial values).

    With `folding` that holds in the traces that are opened inside, too, for what does not depend on
    their variables.
    """
    s = state
    saved = s.staging, s.chains, s.folding
    s.staging, s.chains, s.folding = 0, [], s.folding or folding
    try:
        yield
    finally:
        s.staging, s.chains, s.folding = saved


def record_site(node: UOp) -> None:
    """Remember the user's line that made an open node (the first one keeps it)."""
    if not sites.known(node):
        sites.enter(node, current_source())


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
    if any(t.seeds for t in state.traces):
        from tinyjax.interpreters.midway import under_rules  # it needs derivatives, which need this

        nodes = under_rules(nodes, memo)
    out: list[np.ndarray] = evaluate(nodes, memo, bound_value, run=execute.run)
    if config.jax_debug_nans or config.jax_debug_infs:
        check_values(nodes, out)
    return out


def check_values(nodes: Sequence[UOp], values: Sequence[np.ndarray]) -> None:
    """Raise FloatingPointError if debug_nans or debug_infs finds fault with a value."""
    from tinyjax.interpreters import find_bad  # only for people who look for a cause

    bad = find_bad.judge(config.jax_debug_nans, config.jax_debug_infs)
    if any(n.src and bad(v) for n, v in zip(nodes, values, strict=True)):
        env: dict[UOp, Any] = {}
        evaluate(nodes, env, bound_value)
        find_bad.check_roots(nodes, env, bad, inherited(nodes, sites.table()))


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
        sites.rewritten(rebuilt, node)
        if node in forced:
            forced.setdefault(rebuilt, forced[node])
    return [done[r] for r in roots]


def differentiated(node: UOp) -> list[Var]:
    """Variables of running grad-like traces that the node depends on differentiably.

    What escaped from a finished one is an ordinary value.
    """
    return [v for v in active(node) if v.trace is None or v.trace.open]


def dependence(nodes: Sequence[UOp]) -> list[Var]:
    """`differentiated` for several nodes, through what the variables are bound to as well."""
    found: dict[Var, None] = {}
    todo = list(nodes)
    while todo:
        for v in differentiated(todo.pop()):
            if v not in found:
                found[v] = None
                todo += [v.bound] if v.bound is not None else []
    return [v for v in found if v.trace in state.traces]


def innermost(nodes: Sequence[UOp]) -> Trace | None:
    """The innermost grad-like trace that the nodes depend on differentiably."""
    depths = [state.traces.index(v.trace) for v in dependence(nodes)]
    return state.traces[max(depths)] if depths else None


def outside(v: Var, trace: Trace | None) -> bool:
    """Whether a variable of a running trace is of one outside of this one, or this one has ended."""
    if trace is None or not trace.open:
        return trace is not None
    return v.trace in state.traces and state.traces.index(v.trace) < state.traces.index(trace)


def differentiated_outside(nodes: Sequence[UOp], trace: Trace | None = None) -> frozenset[Var]:
    """What of `differentiated` remains when a grad-like trace is done with the nodes: the innermost one
    that they depend on, unless another is given.

    Copies of the variables, which tell a dependence through these nodes from any other.
    """
    trace = trace or innermost(nodes)
    found = [v for v in dependence(nodes) if outside(v, trace)]
    return frozenset(Var(v.aval, v.trace, v.path, v.bound, True) for v in found)


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


def foreign(node: UOp) -> Var | None:
    """A variable of a trace that is open on another thread; nothing may be open on this one."""
    for v in node.free:
        if v.trace is not None and v.trace.open:
            return v
        found = None if v.bound is None else foreign(v.bound)
        if found is not None:
            return found
    return None
