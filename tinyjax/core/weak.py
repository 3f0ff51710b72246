"""Tables that hold objects weakly, and drop the entries of those that are gone without Python code.

An object may go at any point of any thread: even while a table is being changed, and where an
interrupt (Ctrl-C) that came during Python code would be lost, as exceptions of weak references'
callbacks are. So its going only appends to the list `dead`, and `forget_dead` drops the entries
later: when a node is made, at each eager operation, at each call of a jitted function.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from tinyjax.core.locks import shared_lock

K = TypeVar("K")
V = TypeVar("V")
H = TypeVar("H", bound=Hashable)

lock = shared_lock()
"""Held while an entry is added or dropped, where two threads could add equal ones."""


class Entry(weakref.ref[Any]):
    """The value of a table, which knows where it is."""

    __slots__ = ("key", "table")
    key: Any
    table: dict[Any, Any]

    def forget(self) -> None:
        """Leave the table, unless another value took the place meanwhile."""
        if self.table.get(self.key) is self:
            del self.table[self.key]


class _Key(Entry):
    """The key of a table."""

    __slots__ = ()

    def forget(self) -> None:
        self.table.pop(self, None)


dead: list[Entry] = []
"""References to what is gone, whose entries keep what they hold alive: see `forget_dead`."""
note_death = dead.append
_forgetting = [False]


def forget_dead() -> None:
    """Drop the entries of what is gone, and of what only they kept alive.

    A new node does so; so does, `if dead`, what may be called often without making any.
    """
    with lock:
        if _forgetting[0]:  # a finalizer that made a node
            return
        _forgetting[0] = True
        try:
            while dead:
                batch = dead[:]
                for ref in batch:
                    ref.forget()
                del dead[: len(batch)]
                del batch, ref  # their keys: now what those hold may go, and is dead as well
        finally:
            _forgetting[0] = False


class WeakValues(Generic[H, V]):
    """A dict whose entries last as long as their values."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[H, Entry] = {}

    def get(self, key: H) -> V | None:
        """The value, None if there is none or it is gone."""
        ref = self._entries.get(key)
        return None if ref is None else ref()

    def setdefault(self, key: H, value: V) -> V:
        """The live value under `key`; `value`, now there, if there was none."""
        with lock:
            found = self.get(key)
            if found is not None:
                return found
            ref = Entry(value, note_death)
            ref.key, ref.table = key, self._entries
            self._entries[key] = ref
            return value

    def __len__(self) -> int:
        return sum(ref() is not None for ref in list(self._entries.values()))


class WeakKeys(Generic[K, V]):
    """A dict whose entries last as long as their keys, which compare by their own `==`.

    Raises: TypeError for a key that cannot be hashed or weakly referred to.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[weakref.ref[K], V] = {}

    def get(self, key: K) -> V | None:
        """The value, None if there is none."""
        return self._entries.get(weakref.ref(key))

    def setdefault(self, key: K, value: V) -> V:
        """The value under `key`; `value`, now there, if there was none."""
        found = self.get(key)
        if found is not None:
            return found
        ref = _Key(key, note_death)
        ref.table = self._entries
        return self._entries.setdefault(ref, value)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()

    def __len__(self) -> int:
        return sum(ref() is not None for ref in list(self._entries))
