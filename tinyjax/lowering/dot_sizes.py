"""Run-time parameters of a DOT: the strides, offsets and divisors that its addresses have.

All decisions (what is contiguous, what fits 32 bits, what needs a guard) are made from the literals
of the graph. Where the text of a kernel would have one of them, it reads a parameter instead, so
another shape for which the same is decided has the same text, and shares the compiled object.
Parameters are numbered by their places in the graph, not by their values: two that are equal in one
shape may differ in another. 0, 1 and -1 stay in the code, since they choose it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const_value, toposort
from tinyjax.lowering.dot_operands import Param, read_size
from tinyjax.lowering.dot_schedule import DOT_PARAMS
from tinyjax.lowering.emit import Place
from tinyjax.lowering.indexing import Indexing
from tinyjax.lowering.irtext import IRBuilder, Value
from tinyjax.lowering.nest import range_bits
from tinyjax.lowering.registers import INT64


@dataclass(frozen=True, slots=True)
class Sizes:
    """The parameters of one DOT, collected while its operands are described."""

    values: list[int] = field(default_factory=list)

    def size(self, value: int) -> int | Param:
        """0 and 1 are compiled in; others are read."""
        return int(value) if value in (0, 1) else self.read(value)

    def read(self, value: int) -> Param:
        """A new parameter."""
        self.values.append(int(value))
        return Param(DOT_PARAMS + len(self.values) - 1)

    def literals(self, roots: Sequence[UOp], batch: Sequence[UOp | None]) -> dict[Place, Param]:
        """The parameters of the addresses in some expressions; `batch` are the ranges of matrices.

        Divisors are among them where what they divide changes from matrix to matrix only. Others
        divide in the loops, where a division by a literal is a multiplication.
        """
        indexing, nodes, found = Indexing(), toposort(roots), dict[Place, Param]()
        free = range_bits(nodes)
        inner = ~sum(1 << r.arg[0] for r in batch if r is not None)

        def number(place: Place, value: int) -> None:
            if place not in found:
                found[place] = self.read(value)

        for n in nodes:
            if n.op is Op.INDEX:
                constant, terms = indexing.linear(n.src[1])
                if constant:
                    number((n.src[1], None), constant)
                for atom, c in terms.items():
                    if abs(c) > 1:
                        number((n.src[1], atom), c)
            elif n.op in (Op.IDIV, Op.MOD) and n.src[1].op is Op.CONST and n.aval.dtype == INT64:
                divisor = int(const_value(n.src[1]))
                natural = divisor > 0 and indexing.bounds(n.src[0])[0] >= 0
                if natural and free[n] and not free[n] & inner:
                    number((n, n.src[1]), divisor)
        return found

    def operands(self, index: UOp) -> dict[Place, Param]:
        """The parameters that are all literals of an address over the batch alone."""
        places = ((n, s) for n in toposort([index]) for s in n.src if s.op is Op.CONST)
        return {place: self.read(int(const_value(place[1]))) for place in places}


def readers(
    b: IRBuilder, params: Value, literals: Mapping[Place, Param]
) -> dict[Place, Callable[[], Value]]:
    """What an emitter in the function of `b` asks for the values of literals."""
    return {place: functools.partial(read_size, b, params, p) for place, p in literals.items()}
