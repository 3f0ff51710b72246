"""Which of the user's lines each node comes from, through closing, opening and rewriting.

While a trace is open, a table on the thread maps open nodes to sources (core/source.py). Closing a
body keeps the part that is its own: exactly in the entry of the function that was traced, and beside
the body itself that of the last trace, since equal bodies from different lines are one object.
Opening a body enters its sources again, so what rewrites make of a body keeps them; the nodes that a
derivative rule adds carry a mark (`transpose(…)`).

Only what an operation returns is entered. Nodes inside inherit from what reads them, when somebody
looks (`body.sources`). Cost: one dictionary entry per operation.
"""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tinyjax.core.ops import BODIES
from tinyjax.core.source import Transform

if TYPE_CHECKING:
    from tinyjax.core.uop import UOp

Table = dict[Any, Any]
"""Node -> (site, name stack)."""
KEY = "sites"


class _Open(threading.local):
    """The table of the running trace, None if there is none; inside of `apart`, the tables around
    it; and what was made inside of those that have ended."""

    table: Table | None = None
    outer: tuple[Table, ...] = ()
    ended: Mapping[int, Any] = MappingProxyType({})

    def __init__(self) -> None:
        self.inner: Table = {}


_open = _Open()


def start() -> None:
    """Begin a table for this thread."""
    _open.table = {}


def stop(keep: bool = False) -> None:
    """Forget it; with `keep` all but the lines, for the message about a node that escaped.

    By identity of the node: what escaped is alive, so no other node can have had its.
    """
    if keep and (_open.table or _open.inner):
        every = {**_open.inner, **(_open.table or {})}
        _open.ended = {id(node): source for node, source in every.items()}
    _open.table, _open.inner = None, {}


@contextmanager
def apart(since: int) -> Iterator[Callable[[UOp], bool]]:
    """Enter what operations make inside of the block into a table of its own, and tell it apart.

    Gives a predicate: the node was computed inside, where `since` is the serial number with which
    the block begins. A node that an operation outside made too is not.
    """
    saved, outer = _open.outer, (*_open.outer, _open.table or {})
    before, made = _open.table, dict[Any, Any]()
    _open.table, _open.outer = made, outer

    def computed_here(node: UOp) -> bool:
        return not any(node in t for t in outer) and (node in made or node.serial >= since)

    try:
        yield computed_here
    finally:
        _open.inner.update(made)
        _open.table, _open.outer = before, saved


def origin(node: UOp) -> Any:
    """Where a node of the last staging trace came from; None if it is older or not known."""
    return _open.ended.get(id(node))


def tracing() -> bool:
    """Whether sources are noted."""
    return bool(_open.table)


def known(node: UOp) -> bool:
    """Whether there is nothing to enter for a node: it has a source, or nothing is being traced."""
    return _open.table is None or node in _open.table


def enter(node: UOp, source: Any) -> None:
    """Note where a node comes from; the first source stays."""
    if _open.table is not None and source is not None:
        _open.table.setdefault(node, source)


def table() -> Mapping[UOp, Any]:
    """The sources of open nodes."""
    return ChainMap(_open.table or {}, *reversed(_open.outer))


def rewritten(new: Any, old: UOp, mark: str = "") -> None:
    """`new` (a node, or nodes and None) takes the place of `old`, or is derived from it by `mark`.

    So does what was made on the way to it: nodes that it reads and that have no source yet.
    """
    table = _open.table
    if not table:
        return
    source = table.get(old)
    if source is None:
        return
    nodes = new if type(new) is list or type(new) is tuple else (new,)
    stack = [n for n in nodes if n is not None and n not in table]
    if stack and mark:
        source = (source[0], (Transform(mark), *source[1]))
    while stack:
        node = stack.pop()
        src = node.operands if node.op in BODIES else node.src
        if src and node not in table:
            table[node] = source
            stack += [s for s in src if s.src and s not in table]


def closed(body: UOp, mapping: Mapping[UOp, UOp]) -> Table:
    """Keep what is known of the nodes of a body; `mapping` is from open to closed nodes."""
    table = _open.table
    if not table:
        return {}
    own = {mapping[n]: table[n] for n in mapping.keys() & table.keys()}
    if own:  # a rewrite that ends at the same body may know less of it
        body.derived[KEY] = {**body.derived.get(KEY, {}), **own}
    return own


def opened(body: UOp, mapping: Mapping[UOp, UOp]) -> None:
    """Enter the sources of a body's nodes for the nodes it was opened to."""
    table = _open.table
    if table is None or body._derived is None:
        return
    for node, source in body._derived.get(KEY, {}).items():
        new = mapping.get(node)
        if new is not None:
            table.setdefault(new, source)


def inherit(order: Sequence[Any]) -> None:
    """Give nodes without a source that of a node that reads them; `order` is sources first."""
    table = _open.table or {}
    for node in reversed(order):
        source = table.get(node)
        if source is not None:
            for s in node.operands:
                if s.src:
                    table.setdefault(s, source)
