"""What a kernel does behind a condition: gated loads, and loops no longer than their guards let.

`gate_loads` is a table of rules: a selection between a load and a literal becomes the load's own
condition, so that memory is not touched where the value is not used.

`shrink_ranges` shortens a range to the iterations that matter. A fold's value is *idle* where it
is the identity of the fold (0 in a sum, -inf in a maximum): behind a false condition of a
selection or of a load. A store is idle where its own condition is false. A range closed by several
folds or stores keeps what any of them needs:

    for r in 0..204: a += where(r < 4, x[r], 0)      ->      for r in 0..4: a += x[r]

Infinities and NaN outside the guard never mattered: a product is idle where a factor is zero only
if the other factor is an integer or a finite literal.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinyjax.core import dtypes
from tinyjax.core.algebra import PLAIN
from tinyjax.core.conditions import chain
from tinyjax.core.facts import FALSE, TRUE
from tinyjax.core.integers import add, guarded_span, integer
from tinyjax.core.ops import Op
from tinyjax.core.rewrite import P, Rules, rewrite
from tinyjax.core.uop import UOp, const, const_value, toposort
from tinyjax.lowering.collapse import is_identity, without_minus_zero
from tinyjax.lowering.nest import extent, fold_operands, limit, ranges_of
from tinyjax.lowering.substitute import substitute
from tinyjax.lowering.target import Target

# --- gated loads ----------------------------------------------------------------------------------

gates = Rules("gate_loads")
CONDITION, LITERAL = P.any("condition"), P.const("literal")
GATED = P.load(rest="operands", name="load")

AVX_BYTES = 32
"""Vectors from this size on have masked loads of 4- and 8-byte elements on every CPU."""


@dataclass(frozen=True, slots=True)
class Gating:
    """What the rules know of the kernel: how often a node is read, what a masked load can load."""

    readers: dict[UOp, int]
    sizes: frozenset[float]

    def may_gate(self, load: UOp) -> bool:
        """Whether a load has one reader and can be masked without being taken apart into lanes."""
        return self.readers.get(load, 0) <= 1 and load.aval.dtype.itemsize in self.sizes


def gate_loads(sink: UOp, target: Target) -> UOp:
    """where(condition, load, literal) -> a load that has the condition and the literal itself"""
    order = toposort([sink])
    if not any(n.op is Op.WHERE for n in order):
        return sink
    readers: dict[UOp, int] = {}
    for node in order:
        for s in node.src:
            readers[s] = readers.get(s, 0) + 1
    sizes = (1, 2, 4, 8) if target.masks else (4, 8) if target.vector_bytes >= AVX_BYTES else ()
    ctx = Gating(readers, frozenset(sizes))
    return rewrite([sink], gates, pass_name="gate_loads", ctx=ctx)[0]


def gated(load: UOp, condition: UOp, literal: UOp, ctx: Gating) -> UOp | None:
    """The load under a condition, `literal` where that is false; None if it is not better."""
    index = load.src[0]
    condition = PLAIN.canonical(condition)
    if len(index.src) > 2:
        parts = chain(index.src[2], Op.AND)
        if condition is index.src[2]:
            return UOp(Op.LOAD, (index, literal))
        implied = all(c in parts for c in chain(condition, Op.AND))
        return load if implied and load.src[1:] == (literal,) else None
    if not ctx.may_gate(load):
        return None
    if any(n.op in (Op.LOAD, Op.FOLD, Op.PREFIX) for n in toposort([condition])):
        return None  # known only when other memory has been read
    ranges = [(n.arg[0], c) for n, c in PLAIN.linear(index.src[1])[1] if n.op is Op.RANGE]
    if not ranges or max(ranges)[1] != 1:
        return None  # not read in order
    return UOp(Op.LOAD, (UOp(Op.INDEX, (*index.src, condition)), literal))


@gates.rule(P.where(CONDITION, GATED, LITERAL))
def gate_where_true(condition: UOp, load: UOp, literal: UOp, ctx: Gating) -> UOp | None:
    """where(c, load(x), k) -> load(x if c else k)"""
    return gated(load, condition, literal, ctx)


@gates.rule(P.where(CONDITION, LITERAL, GATED))
def gate_where_false(condition: UOp, load: UOp, literal: UOp, ctx: Gating) -> UOp | None:
    """where(c, k, load(x)) -> load(x if not c else k)"""
    return gated(load, PLAIN.negation(PLAIN.canonical(condition)), literal, ctx)


# --- where a value is idle ------------------------------------------------------------------------

KEEPS_ZERO = frozenset({Op.NEG, Op.ABS, Op.SIGN, Op.SQRT, Op.FLOOR, Op.CEIL})
"""Ops of one operand that make zero of zero."""


def is_finite(node: UOp) -> bool:
    """Whether 0 * node is zero: an integer, one that was converted, or a finite literal."""
    if not dtypes.is_inexact(node.aval.dtype):
        return True
    if node.op is Op.CAST:
        return is_finite(node.src[0])
    return node.op is Op.CONST and abs(complex(const_value(node))) < 1e30


def busy(value: UOp, kind: str) -> UOp:
    """A condition outside of which `value` is the identity of a fold; TRUE if nothing is known."""
    found: dict[UOp, UOp] = {}
    for n in toposort([value], keep=lambda m: m.op in LOOKED_THROUGH):
        src = [found[s] if s in found else busy_leaf(s, kind) for s in n.src]
        found[n] = busy_node(n, kind, src)
    return found[value] if value in found else busy_leaf(value, kind)


def busy_leaf(n: UOp, kind: str) -> UOp:
    """`busy` of what is not looked through: a literal, a gated load, a comparison."""
    if n.op is Op.CONST:
        return FALSE if is_identity(n, kind) else TRUE
    if n.op is Op.LOAD and len(n.src) > 1 and len(n.src[0].src) > 2:
        return n.src[0].src[2] if is_identity(n.src[1], kind) else TRUE
    if n.op in CONDITIONS and kind in ZERO_KINDS:
        return PLAIN.canonical(n)
    return TRUE


def busy_node(n: UOp, kind: str, src: list[UOp]) -> UOp:
    """`busy` of a node from that of its operands."""
    zero, op = kind in ZERO_KINDS, n.op
    if all(s is TRUE for s in src[-2:]) and op is not Op.AND:
        return TRUE
    if op is Op.WHERE:
        c = PLAIN.canonical(n.src[0])
        yes = PLAIN.junction(Op.AND, [c, src[1]])
        return PLAIN.junction(Op.OR, [yes, PLAIN.junction(Op.AND, [PLAIN.negation(c), src[2]])])
    if op is Op.MAX or op is Op.MIN:
        return either(src) if zero or kind == op.name.lower() else TRUE
    if not zero:
        return TRUE
    if op is Op.MUL:
        left = src[0] if is_finite(n.src[1]) else TRUE
        right = src[1] if is_finite(n.src[0]) else TRUE
        return PLAIN.junction(Op.AND, [left, right, either(src)])
    if op is Op.AND:
        return PLAIN.junction(Op.AND, src)
    if op in (Op.ADD, Op.SUB, Op.OR, Op.XOR):
        return either(src)
    return src[0]  # CAST and KEEPS_ZERO


def either(conditions: list[UOp]) -> UOp:
    """Their disjunction; TRUE if it is long."""
    if sum(len(chain(c, Op.OR)) for c in conditions) > MOST_PARTS:
        return TRUE
    return PLAIN.junction(Op.OR, conditions)


MOST_PARTS = 8
"""A sum of more guarded values than this is taken to be busy everywhere: joining their conditions
would cost the square of their number."""
ZERO_KINDS = frozenset({"add", "or", "xor"})
"""Folds whose identity is zero."""
CONDITIONS = frozenset({Op.CMPLT, Op.CMPLE, Op.CMPEQ, Op.CMPNE, Op.NOT})
LOOKED_THROUGH = KEEPS_ZERO | {
    Op.WHERE, Op.CAST, Op.MUL, Op.AND, Op.ADD, Op.SUB, Op.OR, Op.XOR, Op.MAX, Op.MIN,
}  # fmt: skip


# --- shrinking ------------------------------------------------------------------------------------


def shrink_ranges(sink: UOp) -> UOp:
    """range of whose steps only low..high do anything -> a range of high - low + 1 steps"""
    order = toposort([sink])
    guards: dict[UOp, list[UOp]] = {}
    folds: list[UOp] = []
    for node in order:
        if node.op is Op.FOLD:
            folds.append(node)
            plain = len(fold_operands(node)) == 1
            guard = busy(node.src[0], node.arg) if plain else TRUE
        elif node.op is Op.END:
            index = node.src[0].src[0]
            guard = index.src[2] if len(index.src) > 2 else TRUE
        elif node.op is Op.PREFIX:
            guards.setdefault(node.src[1], []).append(TRUE)
            continue
        else:
            continue
        for r in ranges_of(node):
            guards.setdefault(r, []).append(guard)
    values: dict[UOp, UOp] = {}
    closes: dict[UOp, tuple[UOp, ...]] = {}
    for r, conditions in guards.items():
        if any(c is TRUE for c in conditions):
            continue
        low, high = guarded_span(r, conditions)
        if limit(r) is not None:
            low, high = 0, max(high, 1)  # the limit counts from the start and may be 0
        if (low, high) == (0, extent(r) - 1):
            continue
        shorter = UOp(Op.RANGE, (integer(high - low + 1), *r.src[1:]), r.arg)
        values[r] = add(shorter, integer(low))
        closes[r] = (shorter,)
    if not values:
        return sink
    single = {r for r, (x,) in closes.items() if extent(x) == 1 and limit(x) is None}
    last: dict[UOp, UOp] = {}
    for f in folds:  # the loop around the only value left vanishes, and with it where it starts
        if single.issuperset(ranges_of(f)):
            if f.arg == "add":
                last[f] = without_minus_zero(f)
            elif f.arg == "mul" and dtypes.is_complex(f.aval.dtype):
                last[f] = UOp(Op.MUL, (const(1, f.aval.dtype), f))
    return substitute(substitute(sink, last), values, closes)
