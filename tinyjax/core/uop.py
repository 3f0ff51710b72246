"""The graph node: hash-consed, immutable, typed at construction.

`UOp(op, src, arg)` returns *the* node with these fields: equal structure is one object, so caches,
tests and rewrites compare by identity and common subexpressions are shared for free. The table
holds nodes weakly. `aval` is derived by the op's rule when a node is made, so a shape or dtype
error is raised on the user's line. `free` is the set of open variables the node mentions.

Reference: Filliâtre and Conchon, "Type-safe modular hash-consing" (2006).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import sites
from tinyjax.core.avals import TOKEN, Aval, TupleAval, aval
from tinyjax.core.dtypes import is_inexact
from tinyjax.core.ops import BODIES, STEPS, Op, num_bodies
from tinyjax.core.weak import Entry, dead, forget_dead, lock, note_death


class Var:
    """Identity of one open variable.

    `bound` is the node this variable stands for (grad, jvp, linearize) or None (jit, vmap, scan).
    `trace` owns it (see interpreters/trace.py) and `path` names the argument for errors. One that
    is not differentiable itself may stand for what depends on the differentiable ones `outer`.
    """

    __slots__ = ("aval", "bound", "differentiable", "outer", "path", "trace")

    def __init__(
        self,
        aval: Aval,
        trace: Any = None,
        path: str = "",
        bound: UOp | None = None,
        differentiable: bool = False,
        outer: frozenset[Var] = frozenset(),
    ) -> None:
        self.aval, self.trace, self.path = aval, trace, path
        self.bound, self.differentiable, self.outer = bound, differentiable, outer


class Buffer:
    """A value in memory: an owned, C-contiguous, read-only-by-convention ndarray and its aval.

    `value` has the storage dtype (uint32 with a trailing axis for typed keys, whose aval hides it).
    `address` is filled by the runtime when first needed, 0 before. Several buffers may hold one
    ndarray (`x.T` of a vector is `x`); what NumPy and other libraries see is marked read-only.
    """

    __slots__ = ("__weakref__", "address", "aval", "deleted", "value")

    def __init__(self, value: np.ndarray, of: Aval, address: int = 0) -> None:
        self.value, self.aval, self.address = value, of, address
        self.deleted = False


Free = frozenset[Var]
NO_VARS: Free = frozenset()


_table: dict[tuple[Op, tuple[Any, ...], Hashable], Entry] = {}
_counts = [0]  # nodes made, for tests that bound the growth of graphs


def union(a: Free, b: Free) -> Free:
    """a | b, returning an operand whenever one contains the other (the common case)."""
    if not b or a is b:
        return a
    if not a:
        return b
    if b <= a:
        return a
    return b if a <= b else a | b


class UOp:
    """One node. Fields: `op`, `src`, `arg`; derived: `aval`, `free`.

    `derived` belongs to closed bodies: transformed versions by (transformation, parameters).
    `_fact` belongs to core/facts.py and is unset until asked for. `serial` rises from node to node.
    """

    __slots__ = (
        "__weakref__", "_active", "_derived", "_fact", "arg", "aval", "free", "op", "serial", "src",
    )  # fmt: skip

    op: Op
    src: tuple[UOp, ...]
    arg: Any
    aval: Any  # Aval, or TupleAval for nodes with several results
    free: Free
    serial: int
    _active: Any
    _derived: dict[Hashable, Any] | None
    _fact: Any

    def __new__(cls, op: Op, src: tuple[UOp, ...] = (), arg: Hashable = None) -> UOp:
        key = (op, src, arg)
        ref = _table.get(key)
        if ref is not None:
            found: UOp | None = ref()
            if found is not None:
                return found
        node = object.__new__(cls)
        node.op, node.src, node.arg = op, src, arg
        free: Free = NO_VARS
        for s in src:
            if s.free is not free:
                free = union(free, s.free)
        if op is Op.VAR:
            free = frozenset((arg,))  # type: ignore[arg-type]
        node.free = free
        node._active = node._derived = None
        node.serial = _counts[0]
        node.aval = RULES[op](node)
        if dead:
            forget_dead()
        with lock:
            ref = _table.get(key)
            if ref is not None:
                live: UOp | None = ref()
                if live is not None:
                    return live
            new = Entry(node, note_death)
            new.key, new.table = key, _table
            _table[key] = new
        _counts[0] += 1
        return node

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self.aval.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> Any:
        """Dtype of the value."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """Rank of the value."""
        return self.aval.ndim  # type: ignore[no-any-return]

    @property
    def bodies(self) -> tuple[UOp, ...]:
        """The closed bodies among the sources (CALL, SCAN, WHILE, COND)."""
        return self.src[: num_bodies(self.op, self.arg)] if self.op in BODIES else ()

    @property
    def operands(self) -> tuple[UOp, ...]:
        """The sources that are values."""
        return self.src[num_bodies(self.op, self.arg) :] if self.op in BODIES else self.src

    @property
    def derived(self) -> dict[Hashable, Any]:
        """Transformed versions of this body; they live as long as it does."""
        if self._derived is None:
            self._derived = {}
        return self._derived

    def with_src(self, src: tuple[UOp, ...]) -> UOp:
        """The same op and arg over other sources."""
        return self if src == self.src else UOp(self.op, src, self.arg)

    def __repr__(self) -> str:
        kind = self.aval.str_short() if isinstance(self.aval, Aval) else repr(self.aval)
        arg = "" if self.arg is None else f" {self.arg!r}"
        return f"<{self.op.name}:{kind}{arg} of {len(self.src)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.free or self.op in (Op.VAR, Op.BUFFER):
            raise TypeError(f"cannot pickle {self!r}: it mentions open variables or memory")
        return UOp, (self.op, self.src, self.arg)


RULES: dict[Op, Callable[[UOp], Any]] = {}
"""Aval rule of each op, filled by core/rules.py (the one file that says how ops are typed)."""


def nodes_created() -> int:
    """How many distinct nodes were made so far; tests bound its growth."""
    return _counts[0]


def const(value: Any, dtype: Any, weak_type: bool = False) -> UOp:
    """Scalar literal. Identity is dtype and bit pattern, so 0.0 and -0.0 differ."""
    raw = np.asarray(value).astype(dtype, copy=False) if not isinstance(value, np.generic) else (
        value if value.dtype == dtype else value.astype(dtype)
    )  # fmt: skip
    return UOp(Op.CONST, (), (dtype, raw.tobytes(), weak_type))


def const_value(node: UOp) -> Any:
    """The NumPy scalar of a CONST."""
    dtype, raw, _ = node.arg
    return np.frombuffer(raw, dtype)[0]


def is_const(node: UOp, value: float | None = None) -> bool:
    """Whether the node is a literal (equal to `value`, if given)."""
    if node.op is not Op.CONST:
        return False
    return value is None or bool(const_value(node) == value)


def param(slot: int, of: Aval) -> UOp:
    """Positional input of a closed body."""
    return UOp(Op.PARAM, (), (slot, of))


def buffer(value: np.ndarray, of: Aval | None = None) -> UOp:
    """A value in memory as a leaf."""
    return UOp(Op.BUFFER, (), Buffer(value, of or aval(value.shape, value.dtype)))


def tuple_of(values: Sequence[UOp]) -> UOp:
    """Several values as one node."""
    return UOp(Op.TUPLE, tuple(values))


def get(node: UOp, index: int) -> UOp:
    """Result `index` of a node with several; folds over TUPLE."""
    return node.src[index] if node.op is Op.TUPLE else UOp(Op.GETTUPLE, (node,), index)


def results(node: UOp) -> list[UOp]:
    """All results of a node with several."""
    assert isinstance(node.aval, TupleAval)
    return [get(node, i) for i in range(len(node.aval.elts))]


def token_of(nodes: Sequence[UOp]) -> int | None:
    """Where among operands, parameters or results the token is; None if there is no effect.

    Bodies, calls and loops with effects take one token and give one.
    """
    for i, n in enumerate(nodes):
        if n.aval is TOKEN:
            return i
    return None


def toposort(
    roots: Iterable[UOp], keep: Callable[[UOp], bool] | None = None, bodies: bool = False
) -> list[UOp]:
    """Nodes reachable from `roots`, sources first; deterministic (depth first, left to right).

    Only nodes for which `keep` holds are visited. Bodies of calls are opaque unless `bodies`.
    """
    order: list[UOp] = []
    seen: set[UOp] = set()
    stack: list[UOp] = [r for r in roots if keep is None or keep(r)][::-1]
    while stack:
        node = stack[-1]
        if node in seen:
            stack.pop()
            continue
        src = node.src if bodies or node.op not in BODIES else node.operands
        if keep is None:
            pending = [s for s in src if s not in seen]
        else:
            pending = [s for s in src if s not in seen and keep(s)]
        if pending:
            stack.extend(reversed(pending))
        else:
            seen.add(node)
            order.append(node)
            stack.pop()
    return order


def substitute(roots: Sequence[UOp], mapping: dict[UOp, UOp]) -> list[UOp]:
    """`roots` with nodes replaced as in `mapping`; bodies are closed, so they are not entered."""
    done = dict(mapping)
    for node in toposort(roots, keep=lambda n: n not in done):
        src = node.src
        new = tuple(done.get(s, s) for s in src)
        if new == src:
            done[node] = node
        else:
            done[node] = UOp(node.op, new, node.arg)
            sites.rewritten(done[node], node)
    return [done[r] for r in roots]


def depends_on(roots: Sequence[UOp], variables: Iterable[Var]) -> Callable[[UOp], bool]:
    """Predicate: the node mentions one of these open variables."""
    wanted = frozenset(variables)
    if len(wanted) == 1:
        (only,) = wanted
        return lambda n: only in n.free
    return lambda n: not wanted.isdisjoint(n.free)


def active_operands(node: UOp, index: int) -> list[UOp]:
    """Operands of a call, loop or branch that a result depends on differentiably, by its bodies, or
    by its rule, if that passes the derivative of an operand (`passes`)."""
    bodies, first, lead, carry = node.bodies, 0, 0, 0
    if node.op is Op.CALL and index in (passes := getattr(node.arg.rule, "passes", ())):
        return [node.operands[passes[index]]]
    if node.op is Op.COND:
        first = 1
    elif node.op is Op.SCAN:
        lead, carry = node.arg.num_consts, node.arg.num_carry
    elif node.op is Op.WHILE:
        bodies, first, lead = bodies[1:], node.arg.cond_consts, node.arg.body_consts
        carry = len(node.operands) - first - lead
    slots: set[int] = set()
    todo = [index]
    while todo:
        at = todo.pop()
        for slot in {s for body in bodies for s in body.src[at]._active or ()} - slots:
            slots.add(slot)
            if lead <= slot < lead + carry:  # what an earlier step made of it
                todo.append(slot - lead)
    return [node.operands[first + slot] for slot in sorted(slots)]


def active(node: UOp) -> frozenset[Any]:
    """What `node` depends on differentiably: `Var`s of grad-like traces and PARAM slots of a body.

    Reached through inexact values only, not behind STOP_GRADIENT or `STEPS`. Through calls, loops
    and branches the dependence is that of the body's result, so `jit(stop_gradient)` is not active.
    Computed when asked for.
    """
    if node._active is not None:
        return node._active  # type: ignore[no-any-return]
    for n in toposort([node], keep=lambda m: m._active is None, bodies=True):
        found: frozenset[Any] = NO_VARS
        of = n.aval
        if isinstance(of, Aval) and not is_inexact(of.dtype):
            pass
        elif n.op is Op.VAR:
            found = frozenset((n.arg,)) if n.arg.differentiable else n.arg.outer
            if not found and n.arg.bound is not None:
                found = active(n.arg.bound)
        elif n.op is Op.PARAM:
            found = frozenset((n.arg[0],))
        elif n.op is Op.STOP_GRADIENT or n.op in STEPS:
            pass
        elif n.op is Op.GETTUPLE and n.src[0].op in BODIES:
            for s in active_operands(n.src[0], n.arg):
                found = union(found, s._active or NO_VARS)
        else:
            for s in n.operands:
                found = union(found, s._active or NO_VARS)
        n._active = found
    return node._active  # type: ignore[return-value]
