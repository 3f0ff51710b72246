"""Rangeify: the closed stage-1 body of one fused group -> one stage-2 kernel.

A tensor expression is a function from an index to a value. There is one loop variable per axis of
what the kernel writes; index expressions are pushed from there towards the inputs, and every
movement op is only a function on them (tinygrad's idea). What remains are scalars: loads at affine
addresses, elementwise ops, folds over further loop variables.

Validity travels with the index: below a PAD, a filled GATHER or one part of a CONCAT an element may
not exist, so loads carry the condition and never leave their buffer.

All outputs of a body lie over one *domain*: the largest output has every axis of it, a smaller one
has a prefix (row results), compared by row-major position, so reshapes do not matter. Neighbouring
loops that every address treats as one are merged later, by the schedule.

Evaluation is a trampoline: a rule is a generator that asks for operands with `yield`, so the depth
of a user's program never becomes Python recursion. One memo per kernel: (node, index, validity).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval, aval
from tinyjax.core.errors import LoweringError
from tinyjax.core.infos import GatherInfo, ScatterInfo
from tinyjax.core.ops import ELEMENTWISE, Op
from tinyjax.core.uop import UOp, const, is_const, param, toposort
from tinyjax.lowering.affine import (
    FALSE,
    ZERO,
    IndexSpace,
    Lin,
    both,
    index_const,
    lit,
)  # fmt: skip
from tinyjax.lowering.dims import limits

INT64 = np.dtype(np.int64)
UINT32, UINT64, FLOAT32 = np.dtype(np.uint32), np.dtype(np.uint64), np.dtype(np.float32)
BOOL = np.dtype(np.bool_)

Index = tuple[Lin, ...]
Wanted = tuple[UOp, Index, UOp | None]
Running = Generator[Wanted, UOp, UOp]
Rule = Running | UOp
"""A rule has the value at once, or asks for operands and returns it."""

SCATTER_OPS = {"add": Op.ADD, "mul": Op.MUL, "min": Op.MIN, "max": Op.MAX}
FLOAT_SUMS = ("add", "mul")


def accumulator(dtype: Any) -> Any:
    """The dtype a fold runs in: narrow floats in float32, rounded once at the end."""
    return FLOAT32 if dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype


def rangeify(body: UOp) -> UOp:
    """group body -> kernel: movement ops become index arithmetic over ranges

    Kept on the body, so equal groups are rangeified once. Slots of the kernel: the outputs in order,
    then the inputs (the body's own slots, shifted). A body whose root is SCATTER or DYNAMIC_UPDATE
    writes into the buffer of its operand: slot 0 is both, and the body's PARAM 0 has no other slot
    (see `is_update`).
    """
    sink: UOp | None = body.derived.get("rangeify")
    if sink is None:
        sink = body.derived["rangeify"] = _Kernel(body).sink()
    return sink


@dataclass(frozen=True, slots=True)
class Contraction:
    """The epilogue of a DOT group: stores over (batch, row, column) of a finished product.

    `product` stands for the value of the accumulator: a LOAD from the slot behind all others, which
    only the interpreter has. `ranges` has None where the extent is 1.
    """

    sink: UOp
    product: UOp
    ranges: tuple[UOp | None, UOp | None, UOp | None]


def contraction_of(body: UOp, accumulate: Any) -> Contraction:
    """Rangeify the part of a DOT group's body that follows the DOT; kept on the body."""
    found: Contraction | None = body.derived.get("contraction")
    if found is None:
        found = body.derived["contraction"] = _Kernel(body).contraction(accumulate)
    return found


@dataclass(frozen=True, slots=True)
class Element:
    """A scalar of a DOT's operand over the loops of each of its axes (None: one iteration)."""

    root: UOp
    ranges: tuple[tuple[UOp | None, ...], ...]


def elements_of(body: UOp, node: UOp, sizes: Sequence[Sequence[int]]) -> tuple[Element, Element]:
    """An element of `node`, part of a DOT group's body: over the parts `sizes` of each axis, and
    over the axes as they are. Buffers have the slots of the group's kernel.
    """
    key = ("elements", node, tuple(map(tuple, sizes)))
    found: tuple[Element, Element] | None = body.derived.get(key)
    if found is None:
        kernel = _Kernel(body)
        whole = [(s,) for s in node.aval.shape]
        found = body.derived[key] = kernel.element(node, sizes), kernel.element(node, whole)
    return found


def core_dot(body: UOp) -> UOp:
    """The DOT of a contraction group's body."""
    (dot,) = (n for n in toposort(body.src) if n.op is Op.DOT)
    return dot


def is_update(body: UOp) -> bool:
    """Whether the kernel of this body changes its first input in place."""
    return body.src[0].op in (Op.SCATTER, Op.DYNAMIC_UPDATE)


# --- the domain ---------------------------------------------------------------------------------


def aligned_shapes(outputs: Sequence[UOp]) -> list[tuple[int, ...]]:
    """Shapes of the outputs and of what is read at the same row-major position, largest first."""
    seen = dict.fromkeys(outputs)
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node.op in ELEMENTWISE or node.op is Op.RESHAPE:
            for s in node.src:
                if s not in seen and s.aval.size == node.aval.size:
                    seen[s] = None
                    stack.append(s)
    return sorted(dict.fromkeys(n.aval.shape for n in seen), key=lambda s: -math.prod(s))


def domain_of(outputs: Sequence[UOp]) -> tuple[int, ...]:
    """Sizes of the loops over which all outputs lie: a common refinement of their axes.

    Cuts are positions in the product of leading sizes. The sizes of smaller outputs must be cuts;
    axis borders of outputs and of what is reshaped into them are taken as long as they divide one
    another, so that a reshape costs no division.
    """
    sizes = [o.aval.size for o in outputs]
    largest = max(outputs, key=lambda o: o.aval.size).aval
    bounded = {largest.size // (stride * size): size for stride, size in limits(largest.shape)}
    cuts = {1, *sizes, *bounded, *(at * bound for at, bound in bounded.items())}
    for shape in aligned_shapes(outputs):
        borders = {math.prod(shape[:i]) for i in range(len(shape) + 1)}
        borders = {b for b in borders if not any(at < b < at * n for at, n in bounded.items())}
        chain = sorted(cuts | borders)
        if all(b % a == 0 for a, b in itertools.pairwise(chain) if a):
            cuts |= borders
    chain = sorted(cuts)
    if 0 in chain:
        return (0,)
    return tuple(bounded.get(a, b // a) for a, b in itertools.pairwise(chain))


@dataclass(frozen=True, slots=True)
class _Loops:
    """Loop variables over some axes: the RANGE nodes and the index per axis."""

    nodes: tuple[UOp, ...]
    index: Index
    sizes: tuple[int, ...]


class _Kernel:
    """One rangeification."""

    def __init__(self, body: UOp) -> None:
        self.body = body
        self.space = IndexSpace()
        self.memo: dict[Wanted, UOp] = {}
        self.numbers = itertools.count()
        self.folds: dict[Any, _Loops] = {}
        self.levels = fold_levels(body)
        self.update = is_update(body)
        self.products: dict[tuple[UOp, Index], UOp] = {}  # DOTs whose value is computed elsewhere

    def nest(self, sizes: Sequence[int], kind: str) -> _Loops:
        """Fresh loops of these sizes; a loop of one iteration is the constant index 0."""
        index = tuple(
            ZERO if size == 1 else self.space.range(size, next(self.numbers), kind)
            for size in sizes
        )
        return _Loops(tuple(n for i in index for n, _ in i[1]), index, tuple(sizes))

    # --- the whole kernel -----------------------------------------------------------------------

    def sink(self) -> UOp:
        root = self.body.src[0]
        if self.update:
            rule = self.scatter if root.op is Op.SCATTER else self.dynamic_update
            return UOp(Op.SINK, (rule(root),))
        if root.op is Op.PREFIX:
            return UOp(Op.SINK, (self.prefix(root),))
        return UOp(Op.SINK, tuple(self.map_stores()))

    def map_stores(self) -> list[UOp]:
        """One store per output, over the loops of the domain (a prefix of them for row results)."""
        sizes = domain_of(self.body.src)
        loops = self.nest(sizes, "loop")
        stores = []
        for slot, out in enumerate(self.body.src):
            depth, size = 0, 1
            while size < out.aval.size:
                size *= sizes[depth]
                depth += 1
            lead = loops.index[:depth]
            if sizes[:depth] == out.aval.shape:
                idx = lead
            else:
                flat = self.space.ravel(lead, sizes[:depth])
                idx = self.space.unravel(flat, out.aval.shape)
            value = self.value(out, idx, None)
            stores.append(
                self.store(slot, out.aval, idx, value, [n for i in lead for n, _ in i[1]])
            )
        return stores

    def contraction(self, accumulate: Any) -> Contraction:
        """Stores of the outputs at each element of the DOT they are computed from."""
        dot = core_dot(self.body)
        shape = dot.aval.shape
        loops = self.nest(shape, "loop")
        slots = len(self.body.src) + 1 + max(n.arg[0] for n in self.levels if n.op is Op.PARAM)
        place = self.index(param(slots, aval(shape, accumulate)), loops.index, None)
        product = UOp(Op.LOAD, (place,))
        rounded = product
        if accumulate != dot.aval.dtype:
            rounded = UOp(Op.CAST, (product,), (dot.aval.dtype, False))
        self.products[dot, loops.index] = rounded
        flat = self.space.ravel(loops.index, shape)
        stores = []
        moved = self.moved_to(self.body.src[0], dot, loops.index)
        if moved is not None:
            stores.append(self.store(0, self.body.src[0].aval, moved, rounded, loops.nodes))
        for slot, out in enumerate(self.body.src if moved is None else ()):
            idx = self.space.unravel(flat, out.aval.shape)
            value = self.value(out, idx, None)
            stores.append(self.store(slot, out.aval, idx, value, loops.nodes))
        at = tuple(i[1][0][0] if i[1] else None for i in loops.index)
        return Contraction(UOp(Op.SINK, tuple(stores)), product, at)  # type: ignore[arg-type]

    def element(self, node: UOp, sizes: Sequence[Sequence[int]]) -> Element:
        """`node` over the given parts of its axes."""
        loops = [self.nest(part, "loop") for part in sizes]
        idx = tuple(self.space.ravel(each.index, each.sizes) for each in loops)
        root = self.value(node, idx, None)
        ranges = tuple(tuple(i[1][0][0] if i[1] else None for i in each.index) for each in loops)
        return Element(root, ranges)

    def moved_to(self, out: UOp, node: UOp, idx: Index) -> Index | None:
        """Where an element of `node` is in `out`, if a PERMUTE and only movement lies between."""
        chain = []
        while out is not node:
            if out.op not in (Op.RESHAPE, Op.PERMUTE):
                return None
            chain.append(out)
            out = out.src[0]
        if all(n.op is Op.RESHAPE for n in chain):
            return None
        for n in reversed(chain):
            if n.op is Op.PERMUTE:
                idx = tuple(idx[axis] for axis in n.arg)
            else:
                idx = self.space.unravel(self.space.ravel(idx, n.src[0].aval.shape), n.aval.shape)
        return idx

    def store(
        self,
        slot: int,
        of: Aval,
        idx: Index,
        value: UOp,
        ranges: Sequence[UOp],
        valid: UOp | None = None,
    ) -> UOp:
        """END(STORE) of one element."""
        target = self.index(param(slot, of), idx, valid)
        return UOp(Op.END, (UOp(Op.STORE, (target, value)), *ranges))

    def index(self, buffer: UOp, idx: Index, valid: UOp | None) -> UOp:
        flat = self.space.node(self.space.ravel(idx, buffer.aval.shape))
        return UOp(Op.INDEX, (buffer, flat) if valid is None else (buffer, flat, valid))

    # --- evaluation -----------------------------------------------------------------------------

    def value(self, node: UOp, idx: Index, valid: UOp | None) -> UOp:
        """The scalar of `node` at an index, meaningful where `valid` holds."""
        memo = self.memo
        wanted: Wanted = (node, idx, valid)
        if wanted not in memo:
            made = self.rule(wanted)
            if isinstance(made, UOp):
                memo[wanted] = made
            else:
                self.evaluate(wanted, made)
        return memo[wanted]

    def evaluate(self, wanted: Wanted, first: Running) -> None:
        """Run a rule and those of the operands it asks for."""
        memo = self.memo
        stack: list[tuple[Wanted, Running]] = [(wanted, first)]
        answer: UOp | None = None
        while stack:
            key, running = stack[-1]
            try:
                asked = running.send(answer)  # type: ignore[arg-type]
            except StopIteration as stop:
                memo[key] = answer = stop.value
                stack.pop()
                continue
            answer = memo.get(asked)
            if answer is None:
                made = self.rule(asked)
                if isinstance(made, UOp):
                    memo[asked] = answer = made
                else:
                    stack.append((asked, made))

    def rule(self, wanted: Wanted) -> Rule:
        node, idx, valid = wanted
        if node.op in ELEMENTWISE:
            return self.elementwise(node, idx, valid)
        found = RULES.get(node.op)
        if found is None:
            raise LoweringError(f"{node.op.name} cannot be part of a kernel")
        return found(self, node, idx, valid)

    def elementwise(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        src = []
        for s in node.src:
            src.append((yield s, idx if s.aval.shape else (), valid))
        if node.op in (Op.IDIV, Op.MOD):
            return floor_division(node.op, *src)
        return UOp(node.op, tuple(src), node.arg)

    def load(self, node: UOp, idx: Index, valid: UOp | None) -> UOp:
        """PARAM: a load; the kernel's slots of inputs lie behind those of the outputs."""
        if valid is FALSE or not node.aval.size:
            return const(0, node.aval.dtype)
        shift = 0 if self.update else len(self.body.src)
        buffer = param(node.arg[0] + shift, node.aval)
        where = self.index(buffer, idx, valid)
        if valid is None:
            return UOp(Op.LOAD, (where,))
        return UOp(Op.LOAD, (where, const(0, node.aval.dtype)))

    def constant(self, node: UOp, idx: Index, valid: UOp | None) -> UOp:
        return node

    def iota(self, node: UOp, idx: Index, valid: UOp | None) -> UOp:
        of, axis = node.arg
        at = self.space.node(idx[axis])
        return at if of.dtype == INT64 else UOp(Op.CAST, (at,), (of.dtype, False))

    def identity(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        return (yield node.src[0], idx, valid)

    # --- movement -------------------------------------------------------------------------------

    def reshape(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        x = node.src[0]
        flat = self.space.ravel(idx, node.aval.shape)
        return (yield x, self.space.unravel(flat, x.aval.shape), valid)

    def permute(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        inner = [ZERO] * len(idx)
        for i, axis in zip(idx, node.arg, strict=True):
            inner[axis] = i
        return (yield node.src[0], tuple(inner), valid)

    def expand(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        x = node.src[0]
        dims = node.arg[1]
        inner = tuple(ZERO if s == 1 else idx[d] for s, d in zip(x.aval.shape, dims, strict=True))
        return (yield x, inner, valid)

    def slice(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        inner = tuple(
            self.space.shift(self.space.scale(i, step), start)
            for i, (start, _, step) in zip(idx, node.arg, strict=True)
        )
        return (yield node.src[0], inner, valid)

    def flip(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        shape = node.aval.shape
        inner = tuple(
            self.space.shift(self.space.scale(i, -1), shape[a] - 1) if a in node.arg else i
            for a, i in enumerate(idx)
        )
        return (yield node.src[0], inner, valid)

    def pad(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        """Inside the border x, elsewhere the fill value."""
        x, fill = node.src
        inside: list[UOp | None] = []
        inner = []
        for i, (lo, _, interior), size in zip(idx, node.arg, x.aval.shape, strict=True):
            at = self.space.shift(i, -lo)
            if interior:
                reach = (size - 1) * (interior + 1) + 1 if size else 0
                inside.append(self.space.within(at, 0, reach))
                at, odd = self.space.divmod(at, interior + 1)
                inside.append(self.space.within(odd, 0, 1))
            else:
                inside.append(self.space.within(at, 0, size))
            inner.append(at)
        here = both(inside)
        guard = both([valid, here])
        value = yield x, tuple(inner), guard
        if here is None:
            return value
        other = yield fill, (), valid
        return self.choose(here, value, other, guard)

    def choose(self, here: UOp, value: UOp, other: UOp, guard: UOp | None) -> UOp:
        """where(here, value, other); a load guarded by just that takes a constant itself."""
        if here is FALSE:
            return other
        if value.op is Op.LOAD and other.op is Op.CONST and len(value.src) == 2:
            if value.src[0].src[2] is guard:
                return UOp(Op.LOAD, (value.src[0], other))
        return value if value is other else UOp(Op.WHERE, (here, value, other))

    def concat(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        """A chain of selections by the position along the axis; empty parts are skipped."""
        axis, start = node.arg, 0
        parts: list[tuple[UOp | None, UOp]] = []
        for x in node.src:
            size = x.aval.shape[axis]
            if size:
                at = self.space.shift(idx[axis], -start)
                here = self.space.within(at, 0, size)
                inner = (*idx[:axis], at, *idx[axis + 1 :])
                parts.append((here, (yield x, inner, both([valid, here]))))
            start += size
        value = parts[-1][1]
        for here, part in reversed(parts[:-1]):
            value = part if here is None else UOp(Op.WHERE, (here, part, value))
        return value

    def window(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        axis, _, stride, dilation = node.arg
        at = self.space.add(
            self.space.scale(idx[axis], stride), self.space.scale(idx[-1], dilation)
        )
        return (yield node.src[0], (*idx[:axis], at, *idx[axis + 1 : -1]), valid)

    # --- folds ----------------------------------------------------------------------------------

    def fold_loops(self, node: UOp, idx: Index, sizes: Sequence[int]) -> _Loops:
        """Loops of a fold; independent folds over equal sizes at one place share them (a sweep)."""
        key = ("fold", idx, tuple(sizes), self.levels[node])
        if key not in self.folds:
            self.folds[key] = self.nest(sizes, "reduce")
        return self.folds[key]

    def reduce(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        x = node.src[0]
        kind, axes = node.arg
        loops = self.fold_loops(node, idx, [x.aval.shape[a] for a in axes])
        outer, inner = iter(idx), iter(loops.index)
        full = tuple(next(inner) if a in axes else next(outer) for a in range(x.aval.ndim))
        value = yield x, full, valid
        dtype = x.aval.dtype
        wide = accumulator(dtype) if kind in FLOAT_SUMS else dtype
        if wide != dtype:
            value = UOp(Op.CAST, (value,), (wide, False))
        if loops.nodes:
            value = UOp(Op.FOLD, (value, *loops.nodes), kind)
        elif kind == "mul" and dtypes.is_complex(dtype):
            # A product starts from 1, and 1 * (nan + 0j) is nan + nanj.
            value = UOp(Op.MUL, (const(1, dtype), value))
        return value if wide == dtype else UOp(Op.CAST, (value,), (dtype, False))

    def argreduce(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        x = node.src[0]
        kind, axis, index_dtype = node.arg
        loops = self.fold_loops(node, idx, [x.aval.shape[axis]])
        (at,) = loops.index
        value = yield x, (*idx[:axis], at, *idx[axis:]), valid
        position = UOp(Op.CAST, (self.space.node(at),), (index_dtype, False))
        if index_dtype == INT64:
            position = self.space.node(at)
        if not loops.nodes:
            return UOp(Op.TUPLE, (value, position))
        return UOp(Op.FOLD, (value, position, *loops.nodes), "arg" + kind.removeprefix("arg"))

    def gettuple(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        pair = yield node.src[0], idx, valid
        return pair.src[node.arg] if pair.op is Op.TUPLE else UOp(Op.GETTUPLE, (pair,), node.arg)

    def dot(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        """A contraction as a sum of products (tiny ones; the others have their own nest)."""
        if (node, idx) in self.products:
            return self.products[node, idx]
        assert not self.products, "an epilogue reads its product at another element"
        x, y = node.src
        (cx, cy), (bx, by) = node.arg.contract, node.arg.batch
        loops = self.fold_loops(node, idx, [x.aval.shape[a] for a in cx])
        dtype = node.aval.dtype
        nb = len(bx)
        free_x = [a for a in range(x.aval.ndim) if a not in cx and a not in bx]
        free_y = [a for a in range(y.aval.ndim) if a not in cy and a not in by]
        at_x: dict[int, Lin] = dict(zip(bx, idx))
        at_y: dict[int, Lin] = dict(zip(by, idx))
        at_x |= dict(zip(cx, loops.index))
        at_y |= dict(zip(cy, loops.index))
        at_x |= dict(zip(free_x, idx[nb:]))
        at_y |= dict(zip(free_y, idx[nb + len(free_x) :]))
        a = yield x, tuple(at_x[i] for i in range(x.aval.ndim)), valid
        b = yield y, tuple(at_y[i] for i in range(y.aval.ndim)), valid
        wide = accumulator(dtype)
        a, b = (v if v.aval.dtype == wide else UOp(Op.CAST, (v,), (wide, False)) for v in (a, b))
        value = UOp(Op.AND if wide == BOOL else Op.MUL, (a, b))
        if loops.nodes:
            value = UOp(Op.FOLD, (value, *loops.nodes), "or" if wide == BOOL else "add")
        return value if wide == dtype else UOp(Op.CAST, (value,), (dtype, False))

    # --- indexed reads --------------------------------------------------------------------------

    def gather(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        g: GatherInfo = node.arg
        x, indices = node.src[:2]
        batch = tuple(i for a, i in enumerate(idx) if a not in g.offset_dims)
        window = iter(idx[a] for a in g.offset_dims)
        skip = (*g.collapsed_slice_dims, *g.operand_batching_dims)
        inner: list[Lin] = [ZERO if a in skip else next(window) for a in range(x.aval.ndim)]
        for a, i in zip(g.operand_batching_dims, g.start_indices_batching_dims, strict=True):
            inner[a] = batch[i]
        inside: list[UOp | None] = []
        for k, axis in enumerate(g.start_index_map):
            start = self.space.value((yield indices, (*batch, lit(k)), valid))
            last = x.aval.shape[axis] - g.slice_sizes[axis]
            if g.mode == "fill":
                inside.append(self.space.within(start, 0, last + 1))
            else:  # a broken promise must not read foreign memory
                start = self.space.clamp(start, 0, last)
            inner[axis] = self.space.add(inner[axis], start)
        here = both(inside)
        guard = both([valid, here])
        value = yield x, tuple(inner), guard
        if here is None:
            return value
        if len(node.src) > 2:
            other = yield node.src[2], (), valid
        else:
            other = const(default_fill(x.aval.dtype), x.aval.dtype)
        return self.choose(here, value, other, guard)

    def dynamic_slice(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        x = node.src[0]
        inner = []
        for axis, i in enumerate(idx):
            start = self.space.value((yield node.src[1 + axis], (), None))
            last = x.aval.shape[axis] - node.aval.shape[axis]
            inner.append(self.space.add(self.space.clamp(start, 0, last), i))
        return (yield x, tuple(inner), valid)

    def random_bits(self, node: UOp, idx: Index, valid: UOp | None) -> Running:
        """Threefry of (position >> 32, position) under the key of the batch element."""
        keys = node.src[0]
        shape, width = node.arg
        lead = keys.aval.ndim - 1
        k0 = yield keys, (*idx[:lead], ZERO), valid
        k1 = yield keys, (*idx[:lead], lit(1)), valid
        flat = self.space.ravel(idx[lead:], shape)
        at = self.space.node(flat)
        low = UOp(Op.CAST, (at,), (UINT32, False))
        if self.space.limits(flat)[1] >> 32:
            high = UOp(Op.CAST, (UOp(Op.SHRL, (at, index_const(32))),), (UINT32, False))
        else:
            high = const(0, UINT32)
        return bits_of_width(*threefry2x32(k0, k1, high, low), width)

    # --- roots that are loops of their own ------------------------------------------------------

    def prefix(self, node: UOp) -> UOp:
        """A running fold along one axis: the axis is a serial loop inside the others."""
        kind, axis, reverse = node.arg
        of, x = node.aval, node.src[0]
        others = [s for a, s in enumerate(of.shape) if a != axis]
        outer = self.nest(others, "loop")
        serial = self.nest([of.shape[axis]], "serial")
        (at,) = serial.index
        place = self.space.shift(self.space.scale(at, -1), of.shape[axis] - 1) if reverse else at
        rest = iter(outer.index)
        idx = tuple(place if a == axis else next(rest) for a in range(of.ndim))
        value = self.value(x, idx, None)
        wide = accumulator(of.dtype) if kind in FLOAT_SUMS else of.dtype
        if wide != of.dtype:
            value = UOp(Op.CAST, (value,), (wide, False))
        if serial.nodes:
            value = UOp(Op.PREFIX, (value, *serial.nodes), (kind, reverse))
        if wide != of.dtype:
            value = UOp(Op.CAST, (value,), (of.dtype, False))
        return self.store(0, of, idx, value, outer.nodes + serial.nodes)

    def dynamic_update(self, node: UOp) -> UOp:
        """Write the update into the operand's buffer."""
        x, update = node.src[:2]
        loops = self.nest(update.aval.shape, "loop")
        idx = []
        for axis, i in enumerate(loops.index):
            start = self.space.value(self.value(node.src[2 + axis], (), None))
            last = x.aval.shape[axis] - update.aval.shape[axis]
            idx.append(self.space.add(self.space.clamp(start, 0, last), i))
        value = self.value(update, loops.index, None)
        return self.store(0, x.aval, tuple(idx), value, loops.nodes)

    def scatter(self, node: UOp) -> UOp:
        """Apply the updates one after another to the operand's buffer.

        An axis of the updates is a parallel loop if no two of its iterations can meet in one
        element: batching axes, and window axes along which the window does not move. The others are
        serial loops, inside, in row-major order of the indices.
        """
        x, indices, updates = node.src
        s: ScatterInfo = node.arg
        shape = updates.aval.shape
        window_dims = s.update_window_dims
        skip = (*s.inserted_window_dims, *s.operand_batching_dims)
        placed = [a for a in range(x.aval.ndim) if a not in skip]
        target = dict(zip(window_dims, placed, strict=True))
        batch_axes = [a for a in range(len(shape)) if a not in window_dims]
        free = {a for a in window_dims if target[a] not in s.scatter_dims_to_operand_dims}
        free |= {batch_axes[i] for i in s.scatter_indices_batching_dims}
        if s.unique_indices:
            free = set(range(len(shape)))
        parallel = [a for a in range(len(shape)) if a in free]
        serial = [a for a in range(len(shape)) if a not in free]
        outer = self.nest([shape[a] for a in parallel], "loop")
        inner = self.nest([shape[a] for a in serial], "serial")
        at = dict(zip(parallel, outer.index)) | dict(zip(serial, inner.index))
        idx = tuple(at[a] for a in range(len(shape)))
        batch = tuple(at[a] for a in batch_axes)
        place: list[Lin] = [ZERO] * x.aval.ndim
        sizes = [1] * x.aval.ndim
        for a, axis in target.items():
            place[axis], sizes[axis] = at[a], shape[a]
        for axis, i in zip(s.operand_batching_dims, s.scatter_indices_batching_dims, strict=True):
            place[axis] = batch[i]
        inside: list[UOp | None] = []
        for k, axis in enumerate(s.scatter_dims_to_operand_dims):
            start = self.space.value(self.value(indices, (*batch, lit(k)), None))
            last = x.aval.shape[axis] - sizes[axis]
            if s.mode == "clip":
                start = self.space.clamp(start, 0, last)
            else:  # a broken promise must not write to foreign memory
                inside.append(self.space.within(start, 0, last + 1))
            place[axis] = self.space.add(place[axis], start)
        valid = both(inside)
        value = self.value(updates, idx, None)
        if s.kind != "set":
            where = self.index(param(0, x.aval), tuple(place), valid)
            old = UOp(Op.LOAD, (where,) if valid is None else (where, const(0, x.aval.dtype)))
            value = UOp(SCATTER_OPS[s.kind], (old, value))
        return self.store(0, x.aval, tuple(place), value, outer.nodes + inner.nodes, valid)


RULES: dict[Op, Callable[[_Kernel, UOp, Index, UOp | None], Rule]] = {
    Op.PARAM: _Kernel.load,
    Op.CONST: _Kernel.constant,
    Op.DIM: _Kernel.constant,
    Op.IOTA: _Kernel.iota,
    Op.REMAT: _Kernel.identity,
    Op.OPTIMIZATION_BARRIER: _Kernel.identity,
    Op.COPY: _Kernel.identity,
    Op.RESHAPE: _Kernel.reshape,
    Op.PERMUTE: _Kernel.permute,
    Op.EXPAND: _Kernel.expand,
    Op.SLICE: _Kernel.slice,
    Op.FLIP: _Kernel.flip,
    Op.PAD: _Kernel.pad,
    Op.CONCAT: _Kernel.concat,
    Op.WINDOW: _Kernel.window,
    Op.REDUCE: _Kernel.reduce,
    Op.ARGREDUCE: _Kernel.argreduce,
    Op.GETTUPLE: _Kernel.gettuple,
    Op.DOT: _Kernel.dot,
    Op.GATHER: _Kernel.gather,
    Op.DYNAMIC_SLICE: _Kernel.dynamic_slice,
    Op.RANDOM_BITS: _Kernel.random_bits,
}
"""(kernel, node, index, validity) -> the node's scalar there; elementwise ops have one rule."""


def fold_levels(body: UOp) -> dict[UOp, int]:
    """Folds on the deepest path below each node, itself included: equal levels share loops."""
    levels: dict[UOp, int] = {}
    for node in toposort([body]):
        below = max((levels[s] for s in node.operands), default=0)
        levels[node] = below + (node.op in (Op.REDUCE, Op.ARGREDUCE, Op.DOT))
    return levels


def floor_division(op: Op, x: UOp, y: UOp) -> UOp:
    """Floor division of data (its IDIV and MOD are for indices, whose sign is known), y > 0."""
    zero = const(0, x.aval.dtype)
    rest = UOp(Op.REM, (x, y))
    below = UOp(Op.CMPLT, (rest, zero))
    if op is Op.MOD:
        return UOp(Op.WHERE, (below, UOp(Op.ADD, (rest, y)), rest))
    quotient = UOp(Op.DIV, (x, y))
    less = UOp(Op.SUB, (quotient, const(1, x.aval.dtype)))
    return UOp(Op.WHERE, (below, less, quotient))


def default_fill(dtype: Any) -> Any:
    """What a filling gather gives out of bounds: NaN, the least integer (the largest unsigned)."""
    if dtypes.is_inexact(dtype):
        return np.nan
    if dtypes.is_bool(dtype):
        return True
    info = dtypes.iinfo(dtype)
    return int(info.max if dtypes.is_unsigned(dtype) else info.min)


# --- random bits --------------------------------------------------------------------------------

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry2x32(k0: UOp, k1: UOp, x0: UOp, x1: UOp) -> tuple[UOp, UOp]:
    """The Threefry-2x32 block cipher with 20 rounds (Salmon et al., SC 2011), on uint32 scalars."""

    def u32(value: int) -> UOp:
        return const(value, UINT32)

    def add(a: UOp, b: UOp) -> UOp:
        return a if is_const(b, 0) else b if is_const(a, 0) else UOp(Op.ADD, (a, b))

    def rotate(x: UOp, by: int) -> UOp:
        return UOp(Op.OR, (UOp(Op.SHL, (x, u32(by))), UOp(Op.SHRL, (x, u32(32 - by)))))

    k2 = UOp(Op.XOR, (UOp(Op.XOR, (k0, k1)), u32(0x1BD11BDA)))
    keys = (k0, k1, k2)
    x0, x1 = add(x0, k0), add(x1, k1)
    for block in range(5):
        for by in ROTATIONS[block % 2]:
            x0 = add(x0, x1)
            x1 = UOp(Op.XOR, (rotate(x1, by), x0))
        x0 = add(x0, keys[(block + 1) % 3])
        x1 = add(add(x1, keys[(block + 2) % 3]), u32(block + 1))
    return x0, x1


def bits_of_width(x0: UOp, x1: UOp, width: int) -> UOp:
    """The two words of a block as one random number of `width` bits."""
    if width == 64:
        high, low = (UOp(Op.CAST, (x,), (UINT64, False)) for x in (x0, x1))
        return UOp(Op.OR, (UOp(Op.SHL, (high, const(32, UINT64))), low))
    word = UOp(Op.XOR, (x0, x1))
    if width == 32:
        return word
    return UOp(Op.CAST, (word,), (np.dtype(f"u{width // 8}"), False))
