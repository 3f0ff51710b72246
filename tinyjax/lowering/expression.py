"""Stage-2 scalar expressions inside a nest that somebody else writes (the DOT generator).

An `Expressions` belongs to one function. `value` evaluates a node where the loop variables have
given values; one range may be a vector, whose lanes are consecutive. `store` performs a STORE
there. Nothing is remembered between calls: every value is emitted where it is asked for.

Example: the operand A(m, k) = LOAD(x[m*K + k]) of a packing loop over k, 16 at a time:

    inside = Expressions(b, target, {1: pointer}, [a])
    lanes = inside.value(a, {m: row, k: col}, vector=k, lanes=16, mask=mask)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tinyjax.core.uop import UOp, toposort
from tinyjax.lowering import memory
from tinyjax.lowering.emit import Bases, Emitter, Place
from tinyjax.lowering.indexing import Indexing
from tinyjax.lowering.irtext import IRBuilder, Value
from tinyjax.lowering.nest import range_bits
from tinyjax.lowering.registers import Register
from tinyjax.lowering.target import Target


class Expressions:
    """Evaluates expressions over ranges in a function; `slots` are the buffers' addresses.

    `sizes` are literals of addresses that are read instead (`dot_sizes.py`).
    """

    def __init__(
        self,
        b: IRBuilder,
        target: Target,
        slots: Mapping[int, Value],
        roots: Sequence[UOp],
        sizes: Mapping[Place, Callable[[], Value]] | None = None,
    ) -> None:
        self.free = range_bits(toposort(roots))
        self.e = Emitter(b, target, slots, self.free, Indexing(), sizes=sizes)

    def _enter(
        self,
        at: Mapping[UOp, Value],
        vector: UOp | None,
        lanes: int,
        mask: Value | None,
        known: Mapping[UOp, Register],
    ) -> None:
        e = self.e
        e.open, e.base = list(at), {r: Bases(e.b, x) for r, x in at.items()}
        wide = vector is not None and lanes > 1
        e.vec_bit = 1 << vector.arg[0] if vector is not None and wide else 0
        e.lanes = lanes if wide else 0
        e.vectors = e.scalars.of_lanes(e.lanes) if wide else e.scalars
        e.mask = mask if wide else None
        for node, register in known.items():
            e.remember(node, [register])

    def value(
        self,
        root: UOp,
        at: Mapping[UOp, Value],
        vector: UOp | None = None,
        lanes: int = 0,
        mask: Value | None = None,
        known: Mapping[UOp, Register] | None = None,
    ) -> Register:
        """`root` where the ranges (outermost first) are as in `at`; a vector if `vector` is given.

        `at[vector]` is the index of lane 0. Lanes that `mask` switches off touch no memory; loads
        give zero there. `known` are nodes whose registers the caller has (placeholders).
        """
        with self.e.scope():
            self._enter(at, vector, lanes, mask, known or {})
            return self.e.value(root, True)[0]

    def stored(self, x: Register) -> Value:
        """What a store of this value writes."""
        return self.e.scalars.to_storage(x)

    def store(
        self,
        store: UOp,
        at: Mapping[UOp, Value],
        vector: UOp | None = None,
        lanes: int = 0,
        mask: Value | None = None,
        known: Mapping[UOp, Register] | None = None,
    ) -> None:
        """Perform a STORE there; arguments as for `value`."""
        with self.e.scope():
            self._enter(at, vector, lanes, mask, known or {})
            index, value = store.src
            wide = bool(self.free[index] & self.e.vec_bit)
            memory.store(self.e, store, self.e.value(value, wide))
