"""Symbolic sizes in a program: axes of the largest size, walked as far as a run's size.

`bound_sizes` gives every symbolic axis its upper bound, as a `Bounded` integer that remembers which
of the program's sizes it is. Every pass may take it for the integer; the loops over it have the
run's size as their limit (`RANGE(extent, limit)`), read from the program's `dims`. So all strides
and offsets are constants, memory is planned for the largest sizes, and work is done for the actual
ones. What lies behind the limit of an axis is never read.

Two things depend on more than the bounds, and are made explicit here:

* **Layout.** Inside a program an array is row-major with its upper bounds. Arguments and results
  are dense at their actual sizes: parameters and outputs are over `dense_shape`, in which only the
  first axis is symbolic, and are gathered from there and to there. So is a RESHAPE that joins or
  splits a symbolic axis.
* **Ends.** Ops that count from the end of a symbolic axis (FLIP, PAD, CONCAT, SLICE, windows,
  clamped indices) become gathers at indices computed with the size, a DIM scalar.

Sizes are numbered by first use, expressions like 2*n + 1 too; the host computes them all for each
combination of dimensions (`Sizes.values`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from tinyjax.core.avals import Aval, TupleAval, aval
from tinyjax.core.build import take
from tinyjax.core.dims import (
    Atom,
    DimExpr,
    Size,
    bounds_of,
    dims_of,
    evaluate,
    is_symbolic,
    largest,
)  # fmt: skip
from tinyjax.core.errors import LoweringError
from tinyjax.core.infos import CallbackInfo, GatherInfo, HostCallInfo
from tinyjax.core.ops import ELEMENTWISE, Op
from tinyjax.core.prune import inherit
from tinyjax.core.uop import UOp, const, const_value, get, param, results, toposort, tuple_of

INT64 = np.dtype(np.int64)
FAR = 1 << 40
"""An index outside of every axis."""


class Bounded(int):
    """The upper bound of a size that is known at run time: `size`, with a number in the program.

    Equal only to the same size: an axis of 64 and one of at most 64 are not interchangeable, nor
    are bodies over other sizes with the same numbers and bounds, whose programs are theirs alone.
    """

    number: int
    size: DimExpr | None

    def __new__(cls, bound: int, number: int, size: DimExpr | None = None) -> Bounded:
        made = super().__new__(cls, bound)
        made.number, made.size = number, size
        return made

    @property
    def bounds(self) -> tuple[int, int]:
        """Inclusive bounds, as a DimExpr has them."""
        return 0 if self.size is None else self.size.bounds[0], int(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bounded):
            return False
        same = self.number == other.number and int(self) == int(other)
        return same and self.size is other.size

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((int(self), self.number, self.size))

    def __repr__(self) -> str:
        return f"d{self.number}<={int(self)}"

    def __str__(self) -> str:
        return f"d{self.number}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Bounded, (int(self), self.number, self.size)


def limit_of(size: int) -> UOp | None:
    """The run's size of an axis, an int64 scalar; None if it is what it says."""
    return UOp(Op.DIM, (), size) if isinstance(size, Bounded) else None


def product_of(limit: UOp, of: Callable[[int], Size]) -> Size:
    """The size that a loop's limit is, for the sizes of a program by their numbers."""
    if limit.op is Op.DIM:
        return of(limit.arg.number)
    if limit.op is Op.MUL:
        return product_of(limit.src[0], of) * product_of(limit.src[1], of)
    return int(const_value(limit))


def joined(sizes: Sequence[int]) -> int:
    """The size of several axes as one. Of those longer than 1 none is bounded, or it is alone."""
    long = [s for s in sizes if s != 1]
    if len(long) == 1:
        return long[0]
    assert not any(isinstance(s, Bounded) for s in long), "a symbolic axis is joined with another"
    return math.prod(long)


Limits = tuple[tuple[int, Bounded], ...]


def limits(shape: Sequence[int]) -> Limits:
    """(stride, size) of the bounded axes of a shape, outermost first."""
    found: list[tuple[int, Bounded]] = []
    stride = 1
    for size in reversed(shape):
        if isinstance(size, Bounded):
            found.append((stride, size))
        stride *= int(size)
    return tuple(reversed(found))


def nest_together(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether loops over one shape are the outer loops of those over the other, limits included."""
    large, small = sorted((a, b), key=math.prod, reverse=True)
    over, under = limits(large), limits(small)
    if not over and not under:
        return True
    ratio = math.prod(large) // max(math.prod(small), 1)
    if any(stride < ratio < stride * size for stride, size in over):
        return False  # the smaller one ends within a bounded axis
    outer = tuple((stride // ratio, size) for stride, size in over if stride >= ratio)
    return outer == under


class Sizes:
    """The symbolic sizes of a program, numbered; their values for given dimensions."""

    def __init__(self) -> None:
        self.numbers: dict[DimExpr, int] = {}
        self.forms: dict[DimExpr, DimExpr] = {}

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def form(self, size: DimExpr) -> DimExpr:
        """The first size with a number that is equal to this one: two forms may be."""
        found = self.forms.get(size)
        if found is None:
            equal = (known for known in self.numbers if bounds_of(known - size) == (0, 0))
            found = self.forms[size] = next(equal, size)
        return found

    def number(self, size: DimExpr) -> int:
        """The number of a size, the next one if it is new."""
        return self.numbers.setdefault(self.form(size), len(self.numbers))

    def bounded(self, size: Size) -> int:
        """A size as the lowering sees it."""
        if not is_symbolic(size):
            return int(size)
        # At least 2, so that no pass takes the axis for one without loop.
        size = self.form(size)
        return Bounded(max(2, largest(size)), self.number(size), size)

    def of(self, number: int) -> DimExpr:
        """The size with a number."""
        return list(self.numbers)[number]

    def multiple(self, bounded: Bounded, factor: int) -> int:
        """`factor` times a size, as a size of the program."""
        return self.bounded(self.of(bounded.number) * factor)

    def shifted(self, bounded: Bounded, by: int) -> int:
        """A size plus a number, as a size of the program."""
        return self.bounded(self.of(bounded.number) + by)

    def shape(self, shape: Sequence[Size]) -> tuple[int, ...]:
        """`bounded` of each size."""
        return tuple(map(self.bounded, shape))

    def values(self, dims: Mapping[Atom, int]) -> tuple[int, ...]:
        """All sizes where dimensions have these values."""
        return tuple(evaluate(size, dims) for size in self.numbers)

    def dims(self) -> list[Atom]:
        """The dimensions that the sizes mention."""
        return dims_of(self.numbers)


def dense_shape(shape: Sequence[Size]) -> tuple[Size, ...]:
    """The shape of the same memory in which no axis but the first is symbolic."""
    last = max((i for i, s in enumerate(shape) if is_symbolic(s)), default=-1)
    return tuple(shape) if last <= 0 else (math.prod(shape[: last + 1]), *shape[last + 1 :])


def is_symbolic_body(body: UOp) -> bool:
    """Whether a flat body has symbolic sizes."""
    found: bool | None = body.derived.get("is_symbolic")
    if found is None:
        nodes = toposort(body.src)
        found = any(_mentions(n) or any(map(is_symbolic_body, n.bodies)) for n in nodes)
        body.derived["is_symbolic"] = found
    return found


def _mentions(n: UOp) -> bool:
    if n.op is Op.DIM:
        return is_symbolic(n.arg)
    if n.op in (Op.SLICE, Op.PAD) and any(is_symbolic(v) for part in n.arg for v in part):
        return True
    if n.op is Op.SCAN and is_symbolic(n.arg.length):
        return True
    avals = n.aval.elts if isinstance(n.aval, TupleAval) else (n.aval,)
    return any(is_symbolic(s) for a in avals for s in a.shape)


def bound_sizes(body: UOp) -> UOp:
    """flat body -> the same over the upper bounds of symbolic sizes, which `sizes_of` numbers

    A body without symbolic sizes is itself. Kept on the body.
    Raises: LoweringError for an op that cannot run over a symbolic axis, naming it.
    """
    if not is_symbolic_body(body):
        return body
    found: UOp | None = body.derived.get("bound_sizes")
    if found is None:
        sizes = Sizes()
        found = body.derived["bound_sizes"] = tuple_of(_Bounder(sizes).program(body))
        known = found.derived.setdefault("sizes", sizes)
        assert known.numbers == sizes.numbers, "equal bodies number their sizes alike"
        inherit(found, body)
    return found


def sizes_of(body: UOp) -> Sizes:
    """The sizes of what `bound_sizes` gave, by their numbers; none of a body that had none."""
    found: Sizes | None = body.derived.get("sizes")
    return Sizes() if found is None else found


class _Bounder:
    """One walk over a body; `done` maps its nodes to the bounded ones."""

    def __init__(self, sizes: Sizes, bodies: dict[UOp, UOp] | None = None) -> None:
        self.sizes = sizes
        self.bodies = {} if bodies is None else bodies
        self.done: dict[UOp, UOp] = {}

    # --- bodies ---------------------------------------------------------------------------------

    def program(self, body: UOp) -> list[UOp]:
        """The outputs of a body whose parameters and outputs are dense in memory."""
        for node in toposort(body.src):
            if node.op is Op.PARAM:
                slot, of = node.arg
                dense = dense_shape(of.shape)
                x = param(slot, aval(self.sizes.shape(dense), of.dtype))
                self.done[node] = self.reshape(x, dense, of.shape)
            else:
                self.done[node] = self.node(node)
        return [self.dense(o) for o in body.src]

    def dense(self, out: UOp) -> UOp:
        """A result as it is returned."""
        shape = out.aval.shape
        return self.reshape(self.done[out], shape, dense_shape(shape))

    def inner(self, body: UOp) -> UOp:
        """The body of a loop or branch: values are laid out as in the program around it."""
        found = self.bodies.get(body)
        if found is None:
            if is_symbolic_body(body):
                walk = _Bounder(self.sizes, self.bodies)
                for node in toposort(body.src):
                    if node.op is Op.PARAM:
                        slot, of = node.arg
                        walk.done[node] = param(slot, self.aval(of))
                    else:
                        walk.done[node] = walk.node(node)
                found = tuple_of([walk.done[o] for o in body.src])
            else:
                found = body
            self.bodies[body] = found
        return found

    # --- sizes and scalars ----------------------------------------------------------------------

    def aval(self, of: Aval) -> Aval:
        """The aval with upper bounds."""
        return aval(self.sizes.shape(of.shape), of.dtype)

    def scalar(self, size: Size) -> UOp:
        """A size as an int64 scalar."""
        bounded = self.sizes.bounded(size)
        return limit_of(bounded) or const(bounded, INT64)

    # --- nodes ----------------------------------------------------------------------------------

    def node(self, n: UOp) -> UOp:
        """A node over the bounded forms of its sources."""
        src = (*map(self.inner, n.bodies), *(self.done[s] for s in n.operands))
        if n.op is Op.DIM:
            return self.scalar(n.arg)
        if n.op is Op.GETTUPLE:
            return get(src[0], n.arg)
        symbolic = _mentions(n) or any(_mentions(s) for s in n.operands)
        if not symbolic and not n.bodies:
            return n if src == n.src else UOp(n.op, src, n.arg)
        if n.op in ELEMENTWISE or n.op in SAME:
            return UOp(n.op, src, n.arg)
        rule = RULES.get(n.op)
        if rule is None:
            raise refused(n)
        return rule(self, n, src)

    def iota_along(self, shape: Sequence[int], axis: int) -> UOp:
        """int64 positions along an axis."""
        return UOp(Op.IOTA, (), (aval(tuple(shape), INT64), axis))

    # --- reshapes -------------------------------------------------------------------------------

    def reshape(self, x: UOp, old: Sequence[Size], new: Sequence[Size]) -> UOp:
        """x, of symbolic shape `old`, with the same elements over `new`."""
        shape = self.sizes.shape(new)
        axis = 0
        for before, after in [] if 0 in shape else _segments(old, new):
            if _is_regular(before, after):
                axis += len(before)
                continue
            x = self.regroup(x, axis, before, after)
            axis += len(after)
        return x if x.aval.shape == shape else UOp(Op.RESHAPE, (x,), shape)

    def regroup(self, x: UOp, axis: int, old: Sequence[Size], new: Sequence[Size]) -> UOp:
        """Axes of sizes `old` from `axis` on become axes of sizes `new`, element by element."""
        bounds = x.aval.shape[axis : axis + len(old)]
        shape = self.sizes.shape(new)
        flat: UOp | None = None  # the row-major position at actual sizes
        stride: Size = 1
        for i in reversed(range(len(new))):
            if shape[i] != 1:
                at = times(self.iota_along(shape, i), self.scalar(stride))
                flat = at if flat is None else UOp(Op.ADD, (flat, at))
            stride = stride * new[i]
        assert flat is not None
        rest, place, stride = flat, None, 1
        for i in reversed(range(len(old))):
            last = all(s == 1 for s in bounds[:i])
            at = rest if last else UOp(Op.MOD, (rest, self.scalar(old[i])))
            rest = rest if last else UOp(Op.IDIV, (rest, self.scalar(old[i])))
            at = times(at, const(stride, INT64))
            place = at if place is None else UOp(Op.ADD, (place, at))
            stride *= int(bounds[i])
            if last:
                break
        assert place is not None
        before, after = x.aval.shape[:axis], x.aval.shape[axis + len(old) :]
        whole = bounds[0] if len(old) == 1 else math.prod(map(int, bounds))
        joined_shape = (*before, whole, *after)
        if x.aval.shape != joined_shape:
            x = UOp(Op.RESHAPE, (x,), joined_shape)
        return take(x, place, axis)


def times(x: UOp, y: UOp) -> UOp:
    """x * y for indices."""
    return x if y is const(1, INT64) else UOp(Op.MUL, (x, y))


def _segments(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[Size], list[Size]]]:
    """The shortest runs of axes of equal products, side by side."""
    found: list[tuple[list[Size], list[Size]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        before, after = list(old[i : i + 1]), list(new[j : j + 1])
        i, j = i + len(before), j + len(after)
        p, q = math.prod(before), math.prod(after)
        while not _same(p, q) and (i < len(old) or j < len(new)):
            if j >= len(new) or (i < len(old) and largest(p) <= largest(q)):
                before.append(old[i])
                p, i = p * old[i], i + 1
            else:
                after.append(new[j])
                q, j = q * new[j], j + 1
        found.append((before, after))
    return found


def _same(p: Size, q: Size) -> bool:
    return p is q or (not is_symbolic(p) and not is_symbolic(q) and p == q)


def _is_regular(before: Sequence[Size], after: Sequence[Size]) -> bool:
    """Whether a run keeps its one symbolic axis, or has none."""
    if not any(map(is_symbolic, (*before, *after))):
        return True
    a, b = ([s for s in sizes if is_symbolic(s) or s != 1] for sizes in (before, after))
    return len(a) == len(b) == 1 and a[0] is b[0]


# --- the rules ------------------------------------------------------------------------------------

Src = tuple[UOp, ...]


def _iota(self: _Bounder, n: UOp, src: Src) -> UOp:
    of, axis = n.arg
    return UOp(Op.IOTA, (), (self.aval(of), axis))


def _reshape(self: _Bounder, n: UOp, src: Src) -> UOp:
    return self.reshape(src[0], n.src[0].aval.shape, n.arg)


def _expand(self: _Bounder, n: UOp, src: Src) -> UOp:
    shape, dims = n.arg
    return UOp(Op.EXPAND, src, (self.sizes.shape(shape), dims))


def _along(self: _Bounder, x: UOp, axis: int, index: Callable[[UOp], UOp], size: Size) -> UOp:
    """x at `index(position)` for each position of an axis that now has `size`."""
    return take(x, index(self.iota_along(self.sizes.shape((size,)), 0)), axis)


def _slice(self: _Bounder, n: UOp, src: Src) -> UOp:
    x, shape = src[0], n.src[0].aval.shape
    plain = []
    for axis, (start, stop, step) in enumerate(n.arg):
        size = shape[axis]
        if not any(map(is_symbolic, (size, start, stop))):
            plain.append((start, stop, step))
            continue
        plain.append((0, self.sizes.bounded(n.aval.shape[axis]), 1))
        if _same(start, 0) and step == 1 and _same(stop, size):
            continue

        def at(i: UOp, start: Size = start, step: int = step) -> UOp:
            return UOp(Op.ADD, (times(i, const(step, INT64)), self.scalar(start)))

        x = _along(self, x, axis, at, n.aval.shape[axis])
    return UOp(Op.SLICE, (x,), tuple(plain))


def _flip(self: _Bounder, n: UOp, src: Src) -> UOp:
    x, shape = src[0], n.aval.shape
    for axis in n.arg:
        if is_symbolic(shape[axis]):
            last = self.scalar(shape[axis] - 1)
            x = _along(self, x, axis, lambda i, last=last: UOp(Op.SUB, (last, i)), shape[axis])  # type: ignore[misc]
    plain = tuple(a for a in n.arg if not is_symbolic(shape[a]))
    return UOp(Op.FLIP, (x,), plain) if plain else x


def _inside(at: UOp, low: UOp, high: UOp) -> UOp:
    """low <= at < high"""
    return UOp(Op.AND, (UOp(Op.CMPLE, (low, at)), UOp(Op.CMPLT, (at, high))))


def _clamped(at: UOp, last: UOp) -> UOp:
    """min(max(at, 0), last)"""
    return UOp(Op.MAX, (UOp(Op.MIN, (at, last)), const(0, INT64)))


def _along_axis(mask: UOp, axis: int, shape: Sequence[int]) -> UOp:
    """A vector repeated over the other axes of a shape."""
    return mask if len(shape) == 1 else UOp(Op.EXPAND, (mask,), (tuple(shape), (axis,)))


def _pad(self: _Bounder, n: UOp, src: Src) -> UOp:
    x, fill = src
    shape = n.src[0].aval.shape
    if any(not is_symbolic(size) and size == 0 for size in shape):
        return UOp(Op.EXPAND, (fill,), (self.sizes.shape(n.aval.shape), ()))
    plain = []
    for axis, (lo, hi, interior) in enumerate(n.arg):
        size = shape[axis]
        if not any(map(is_symbolic, (size, lo, hi))):
            plain.append((lo, hi, interior))
            continue
        plain.append((0, 0, 0))
        if all(_same(v, 0) for v in (lo, hi, interior)):
            continue
        new = n.aval.shape[axis]
        at = UOp(Op.SUB, (self.iota_along(self.sizes.shape((new,)), 0), self.scalar(lo)))
        reach = (size - 1) * (interior + 1) + 1
        here = _inside(at, const(0, INT64), self.scalar(reach))
        if interior:
            step = const(interior + 1, INT64)
            odd = UOp(Op.MOD, (at, step))
            here = UOp(Op.AND, (here, UOp(Op.CMPEQ, (odd, const(0, INT64)))))
            at = UOp(Op.IDIV, (at, step))
        x = take(x, _clamped(at, self.scalar(size - 1)), axis)
        x = UOp(Op.WHERE, (_along_axis(here, axis, x.aval.shape), x, fill))
    if all(p == (0, 0, 0) for p in plain):
        return x
    return UOp(Op.PAD, (x, fill), tuple(plain))


def _concat(self: _Bounder, n: UOp, src: Src) -> UOp:
    axis, shape = n.arg, n.aval.shape
    if not any(is_symbolic(x.aval.shape[axis]) for x in n.src):
        return UOp(Op.CONCAT, src, axis)
    at = self.iota_along(self.sizes.shape((shape[axis],)), 0)
    start: Size = shape[axis]
    made: UOp | None = None
    for x, given in zip(reversed(src), reversed(n.src), strict=True):
        size = given.aval.shape[axis]
        start = start - size
        if not is_symbolic(size) and size == 0:
            continue
        own = UOp(Op.SUB, (at, self.scalar(start)))
        part = take(x, _clamped(own, self.scalar(size - 1)), axis)
        if made is not None:
            here = UOp(Op.CMPLT, (at, self.scalar(start + size)))
            part = UOp(Op.WHERE, (_along_axis(here, axis, part.aval.shape), part, made))
        made = part
    assert made is not None
    return made


def _window(self: _Bounder, n: UOp, src: Src) -> UOp:
    axis, size, stride, dilation = n.arg
    if not is_symbolic(n.aval.shape[axis]) and not is_symbolic(n.src[0].aval.shape[axis]):
        return UOp(Op.WINDOW, src, n.arg)
    shape = self.sizes.shape((n.aval.shape[axis], size))
    at = times(self.iota_along(shape, 0), const(stride, INT64))
    at = UOp(Op.ADD, (at, times(self.iota_along(shape, 1), const(dilation, INT64))))
    made = take(src[0], at, axis)
    rank = made.aval.ndim
    perm = tuple(i for i in range(rank) if i != axis + 1) + (axis + 1,)
    return made if perm == tuple(range(rank)) else UOp(Op.PERMUTE, (made,), perm)


def _prefix(self: _Bounder, n: UOp, src: Src) -> UOp:
    kind, axis, reverse = n.arg
    size = n.aval.shape[axis]
    if not reverse or not is_symbolic(size):
        return UOp(Op.PREFIX, src, n.arg)
    last = self.scalar(size - 1)

    def turned(x: UOp) -> UOp:
        return _along(self, x, axis, lambda i: UOp(Op.SUB, (last, i)), size)

    return turned(UOp(Op.PREFIX, (turned(src[0]),), (kind, axis, False)))


def _dot(self: _Bounder, n: UOp, src: Src) -> UOp:
    """A contraction in which no symbolic axis is joined with another one.

    Free axes beside a symbolic one become batch axes, over which the other operand is repeated;
    contracted ones (and batches) are joined in memory.
    """
    info = n.arg
    (cx, cy), (bx, by) = info.contract, info.batch
    shapes = [s.aval.shape for s in n.src]
    free = [
        [a for a in range(len(shape)) if a not in c and a not in b]
        for shape, c, b in zip(shapes, (cx, cy), (bx, by), strict=True)
    ]

    def mixed(shape: Sequence[Size], axes: Sequence[int]) -> bool:
        sizes = [shape[a] for a in axes if is_symbolic(shape[a]) or shape[a] != 1]
        return len(sizes) > 1 and any(map(is_symbolic, sizes))

    repeated = [
        [a for a in axes if a != max(b for b in axes if is_symbolic(shape[b]))]
        if mixed(shape, axes)
        else []
        for shape, axes in zip(shapes, free, strict=True)
    ]
    if not any(repeated) and not mixed(shapes[0], cx) and not mixed(shapes[0], bx):
        return UOp(Op.DOT, src, info)
    # Both operands as [batch, repeated of x, repeated of y, free or contracted ...].
    kept = [[a for a in axes if a not in rep] for axes, rep in zip(free, repeated, strict=True)]
    orders = [
        (*bx, *repeated[0], *kept[0], *cx),
        (*by, *repeated[1], *cy, *kept[1]),
    ]
    extra = [shapes[i][a] for i in (0, 1) for a in repeated[i]]
    batch_sizes = [shapes[0][a] for a in bx] + extra
    nb, nx, ny = len(bx), len(repeated[0]), len(repeated[1])
    operands: list[UOp] = []
    for i, (x, order) in enumerate(zip(src, orders, strict=True)):
        shape = [shapes[i][a] for a in order]
        if order != tuple(range(len(order))):
            x = UOp(Op.PERMUTE, (x,), tuple(order))
        own = nx if i == 0 else ny
        rest = shape[nb + own :]
        if extra and own != nx + ny:
            places = [*range(nb), *(range(nb, nb + nx) if i == 0 else range(nb + nx, nb + nx + ny))]
            wide = [*batch_sizes, *rest]
            places += range(len(batch_sizes), len(wide))
            x = UOp(Op.EXPAND, (x,), (self.sizes.shape(wide), tuple(places)))
        lead, count = batch_sizes, len(kept[0]) if i == 0 else len(cy)
        whole = [*lead, *rest]
        if mixed(lead, range(len(lead))):
            lead = [math.prod(lead)]
        first, second = rest[:count], rest[count:]
        contracted = first if i else second
        if mixed(contracted, range(len(contracted))):
            contracted = [math.prod(contracted)]
            first, second = (contracted, second) if i else (first, contracted)
        operands.append(self.reshape(x, whole, [*lead, *first, *second]))
    lead_rank = 1 if mixed(batch_sizes, range(len(batch_sizes))) else len(batch_sizes)
    kx, ky = len(kept[0]), len(kept[1])
    ranks = [x.aval.ndim for x in operands]
    contract = (
        tuple(range(lead_rank + kx, ranks[0])),
        tuple(range(lead_rank, ranks[1] - ky)),
    )
    batches = tuple(range(lead_rank))
    dtype = info.dtype or src[0].aval.dtype
    made = UOp(Op.DOT, tuple(operands), replace(info, contract=contract, batch=(batches, batches),
                                                dtype=dtype))  # fmt: skip
    tail = [shapes[0][a] for a in kept[0]] + [shapes[1][a] for a in kept[1]]
    joined_lead = [math.prod(batch_sizes)] if lead_rank != len(batch_sizes) else batch_sizes
    made = self.reshape(made, [*joined_lead, *tail], [*batch_sizes, *tail])
    # From [batch, repeated x, repeated y, kept x, kept y] to [batch, free x, free y].
    at = {("x", a): nb + k for k, a in enumerate(repeated[0])}
    at |= {("y", a): nb + nx + k for k, a in enumerate(repeated[1])}
    at |= {("x", a): nb + nx + ny + k for k, a in enumerate(kept[0])}
    at |= {("y", a): nb + nx + ny + kx + k for k, a in enumerate(kept[1])}
    perm = (*range(nb), *(at["x", a] for a in free[0]), *(at["y", a] for a in free[1]))
    return made if perm == tuple(range(len(perm))) else UOp(Op.PERMUTE, (made,), perm)


def _index_parts(self: _Bounder, vectors: UOp, lasts: Sequence[Size | None], mode: str) -> UOp:
    """Index vectors whose greatest starts are symbolic, component by component (None: leave it).

    "clip" moves them inside; otherwise those outside get FAR.
    """
    parts = []
    shape = vectors.aval.shape
    rank = len(shape)
    for k, last in enumerate(lasts):
        arg = tuple((k, k + 1, 1) if a == rank - 1 else (0, s, 1) for a, s in enumerate(shape))
        part = vectors if shape[-1] == 1 else UOp(Op.SLICE, (vectors,), arg)
        if part.aval.dtype != INT64:
            part = UOp(Op.CAST, (part,), (INT64, False))
        if last is not None:
            end = self.scalar(last)
            if mode == "clip":
                part = _clamped(part, end)
            else:
                here = UOp(Op.AND, (UOp(Op.CMPLE, (const(0, INT64), part)),
                                    UOp(Op.CMPLE, (part, end))))  # fmt: skip
                part = UOp(Op.WHERE, (here, part, const(FAR, INT64)))
        parts.append(part)
    return parts[0] if len(parts) == 1 else UOp(Op.CONCAT, tuple(parts), rank - 1)


def _gather(self: _Bounder, n: UOp, src: Src) -> UOp:
    g: GatherInfo = n.arg
    shape = n.src[0].aval.shape
    if any(_goes_further(self, s, p) for s, p in zip(shape, g.slice_sizes, strict=True)):
        raise refused(n)
    lasts = [_last(shape[a], g.slice_sizes[a]) for a in g.start_index_map]
    info = replace(g, slice_sizes=self.sizes.shape(g.slice_sizes))
    vectors = src[1]
    if any(last is not None for last in lasts):
        mode = "fill" if g.mode == "fill" else "clip"
        vectors = _index_parts(self, vectors, lasts, mode)
    return UOp(Op.GATHER, (src[0], vectors, *src[2:]), info)


def _scatter(self: _Bounder, n: UOp, src: Src) -> UOp:
    s = n.arg
    shape, updates = n.src[0].aval.shape, n.src[2].aval.shape
    skip = (*s.inserted_window_dims, *s.operand_batching_dims)
    placed = [a for a in range(len(shape)) if a not in skip]
    window: dict[int, Size] = {
        axis: updates[a] for a, axis in zip(s.update_window_dims, placed, strict=True)
    }
    if any(_goes_further(self, shape[a], part) for a, part in window.items()):
        raise refused(n)
    axes = s.scatter_dims_to_operand_dims
    lasts = [_last(shape[a], window.get(a, 1)) for a in axes]
    vectors = src[1]
    if s.mode == "clip" and any(last is not None and bounds_of(last)[0] < 0 for last in lasts):
        # Clipped into an axis of no elements an index is outside: clip here, then drop.
        every = [shape[a] - window.get(a, 1) for a in axes]
        vectors = _index_parts(self, vectors, every, "clip")
        s = replace(s, mode="fill")
    if any(last is not None for last in lasts):
        mode = "clip" if s.mode == "clip" else "fill"
        vectors = _index_parts(self, vectors, lasts, mode)
    return UOp(Op.SCATTER, (src[0], vectors, src[2]), s)


def _starts(self: _Bounder, n: UOp, starts: Src, sizes: Sequence[Size]) -> Src:
    """Starts of slices, moved inside symbolic axes."""
    shape = n.src[0].aval.shape
    return tuple(
        _clamped(s if s.aval.dtype == INT64 else UOp(Op.CAST, (s,), (INT64, False)),
                 self.scalar(size - part)) if _last(size, part) is not None else s
        for s, size, part in zip(starts, shape, sizes, strict=True)
    )  # fmt: skip


def _last(size: Size, part: Size) -> Size | None:
    """The greatest start of a part of an axis, if it depends on sizes."""
    return size - part if is_symbolic(size) or is_symbolic(part) else None


def _goes_further(self: _Bounder, size: Size, part: Size) -> bool:
    """Whether a part of an axis may start behind the last start that the bounds of both allow."""
    bounds = self.sizes.bounded(size) - self.sizes.bounded(part)
    return is_symbolic(part) and largest(size - part) > bounds


def _dynamic_slice(self: _Bounder, n: UOp, src: Src) -> UOp:
    x, shape = src[0], n.src[0].aval.shape
    starts = list(_starts(self, n, src[1:], n.arg))
    for axis, (size, part) in enumerate(zip(shape, n.arg, strict=True)):
        if _goes_further(self, size, part):
            first = starts[axis]
            x = _along(self, x, axis, lambda i, first=first: UOp(Op.ADD, (i, first)), part)  # type: ignore[misc]
            starts[axis] = const(0, INT64)
    return UOp(Op.DYNAMIC_SLICE, (x, *starts), self.sizes.shape(n.arg))


def _dynamic_update(self: _Bounder, n: UOp, src: Src) -> UOp:
    x, update = src[:2]
    shape, parts = n.src[0].aval.shape, n.src[1].aval.shape
    starts = list(_starts(self, n, src[2:], parts))
    if not any(_goes_further(self, s, p) for s, p in zip(shape, parts, strict=True)):
        return UOp(Op.DYNAMIC_UPDATE, (x, update, *starts))
    # Every element is chosen, from the update if it is inside.
    whole: UOp | None = None
    for axis, (start, size, part) in enumerate(zip(starts, shape, parts, strict=True)):
        start = start if start.aval.dtype == INT64 else UOp(Op.CAST, (start,), (INT64, False))
        start = _clamped(start, self.scalar(size - part))
        at = UOp(Op.SUB, (self.iota_along(self.sizes.shape((size,)), 0), start))
        update = take(update, _clamped(at, self.scalar(part - 1)), axis)
        here = _inside(at, const(0, INT64), self.scalar(part))
        here = _along_axis(here, axis, x.aval.shape)
        whole = here if whole is None else UOp(Op.AND, (whole, here))
    assert whole is not None
    return UOp(Op.WHERE, (whole, update, x))


def _random_bits(self: _Bounder, n: UOp, src: Src) -> UOp:
    """Bits are numbered densely: those of [b, n] are made as those of [b*n]."""
    shape, width = n.arg
    dense = dense_shape(shape)
    lead = n.src[0].aval.shape[:-1]
    made = UOp(Op.RANDOM_BITS, src, (self.sizes.shape(dense), width))
    return self.reshape(made, (*lead, *dense), (*lead, *shape))


def with_sizes(x: Any, of: Callable[[Any], int]) -> Any:
    """The arg of a routine with `of` of its sizes: those of avals in it, and those that it names."""
    if is_symbolic(x) or isinstance(x, Bounded):
        return of(x)
    if isinstance(x, Aval):
        return x.update(shape=with_sizes(x.shape, of))
    if isinstance(x, tuple):
        return tuple(with_sizes(each, of) for each in x)
    if isinstance(x, (CallbackInfo, HostCallInfo)):
        return replace(x, **{f.name: with_sizes(getattr(x, f.name), of) for f in fields(x)})
    return x


def at_sizes(node: UOp, dims: Sequence[int]) -> UOp:
    """A routine over bounded axes as it is for the sizes of a run."""

    def of(size: Bounded) -> int:
        return dims[size.number]

    src = tuple(param(i, with_sizes(s.aval, of)) for i, s in enumerate(node.operands))
    return UOp(node.op, src, with_sizes(node.arg, of))


def _routine(self: _Bounder, n: UOp, src: Src) -> UOp:
    """What Python computes: it sees the arrays at the sizes of the run."""
    return UOp(n.op, src, with_sizes(n.arg, self.sizes.bounded))


def _fft(self: _Bounder, n: UOp, src: Src) -> UOp:
    kind, lengths = n.arg
    if kind != "rfft" or not is_symbolic(lengths[-1]):
        return _routine(self, n, src)
    # The first half of the whole transform: the op's own rule would take half of the bound.
    wide = UOp(Op.CAST, src, (n.aval.dtype, False))
    made = UOp(Op.FFT, (wide,), ("fft", with_sizes(lengths, self.sizes.bounded)))
    return _along(self, made, n.aval.ndim - 1, lambda i: i, n.aval.shape[-1])


def _scan(self: _Bounder, n: UOp, src: Src) -> UOp:
    return UOp(Op.SCAN, src, replace(n.arg, length=self.sizes.bounded(n.arg.length)))


def _call(self: _Bounder, n: UOp, src: Src) -> UOp:
    """A program of its own: dense arguments and results, and its sizes among ours."""
    body = bound_sizes(n.src[0])
    args = [
        self.reshape(x, s.aval.shape, dense_shape(s.aval.shape))
        for x, s in zip(src[1:], n.operands, strict=True)
    ]
    numbers = tuple(self.sizes.number(size) for size in sizes_of(body).numbers)
    call = UOp(Op.CALL, (body, *args), replace(n.arg, params=("sizes", *numbers)))
    shapes = [a.shape for a in n.aval.elts]
    outs = [
        self.reshape(o, dense_shape(shape), shape)
        for o, shape in zip(results(call), shapes, strict=True)
    ]
    return tuple_of(outs)


SAME = frozenset(
    {
        Op.PERMUTE, Op.REDUCE, Op.ARGREDUCE, Op.REMAT, Op.OPTIMIZATION_BARRIER, Op.WHILE, Op.COND,
        Op.TUPLE, Op.SORT,
    }
)  # fmt: skip
"""Ops that only need their sources bounded; so do elementwise ones."""

RULES: dict[Op, Callable[[_Bounder, UOp, Src], UOp]] = {
    Op.IOTA: _iota,
    Op.RESHAPE: _reshape,
    Op.EXPAND: _expand,
    Op.SLICE: _slice,
    Op.FLIP: _flip,
    Op.PAD: _pad,
    Op.CONCAT: _concat,
    Op.WINDOW: _window,
    Op.PREFIX: _prefix,
    Op.DOT: _dot,
    Op.GATHER: _gather,
    Op.SCATTER: _scatter,
    Op.DYNAMIC_SLICE: _dynamic_slice,
    Op.DYNAMIC_UPDATE: _dynamic_update,
    Op.RANDOM_BITS: _random_bits,
    Op.FFT: _fft,
    Op.HOST_CALL: _routine,
    Op.CALLBACK: _routine,
    Op.CHECK: _routine,
    Op.COPY: _routine,
    Op.SCAN: _scan,
    Op.CALL: _call,
}
"""(walk, node, bounded sources) -> the bounded node, for ops that mention sizes."""


def refused(n: UOp) -> Exception:
    """The error for an op that has no form over symbolic axes."""
    shapes = ", ".join(s.aval.str_short() for s in n.operands if isinstance(s.aval, Aval))
    return LoweringError(
        f"{n.op.name.lower()} of {shapes} cannot be compiled for a symbolic axis. Call the function "
        "with arrays of known size (jit without dynamic_shapes compiles once per size), or do this "
        "step outside of it."
    )
