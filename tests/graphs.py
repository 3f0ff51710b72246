"""Random well-typed closed bodies and inputs, for tests that compare two ways of running a body.

    made = graph(7)                      from a seed; the same for every run and machine
    @given(graphs())                     from hypothesis, which shrinks what fails

Both draw from the same recipes: which ops take which dtypes is read from docs/ops.md, shapes lean
towards sizes around vector widths, inputs towards values that break compilers. A recipe that finds
no fitting operand makes nothing, so any sequence of choices is a graph.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.ops_table import rows
from tinyjax.core import build as B
from tinyjax.core import dtypes
from tinyjax.core.avals import Aval, aval
from tinyjax.core.infos import CallInfo, DotInfo, GatherInfo, ScanInfo, ScatterInfo, WhileInfo
from tinyjax.core.ops import ELEMENTWISE, Op
from tinyjax.core.uop import UOp, param, results, toposort, tuple_of
from tinyjax.interpreters.convert import convert

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

SIZES = (2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 1, 1, 5, 0)
LIMIT = 600  # elements of a value at most
SMALL = 140  # elements of a value inside a loop

ACCEPTS = {row.op: row.operands for row in rows()}
"""The dtypes of each op, as the page says."""
PLAIN = [op for op in Op if op in ELEMENTWISE]  # in the order of the enumeration
WITH_ARG = (Op.CAST, Op.BITCAST, Op.REDUCE_PRECISION)
UNARY = [op for op in PLAIN if op.arity == 1 and op not in WITH_ARG]
BINARY = [op for op in PLAIN if op.arity == 2 and op not in (Op.COMPLEX, Op.IDIV, Op.MOD)]

COMMON = (dtypes.float32,) * 14 + (dtypes.int32,) * 6 + (
    dtypes.float64, dtypes.float64, dtypes.float64, dtypes.bool_, dtypes.bool_, dtypes.bfloat16,
    dtypes.bfloat16, dtypes.float16, dtypes.float16, dtypes.int8, dtypes.uint8, dtypes.int16,
    dtypes.uint16, dtypes.uint32, dtypes.uint32, dtypes.int64, dtypes.int64, dtypes.uint64,
    dtypes.complex64, dtypes.complex64, dtypes.complex128,
    dtypes.float8_e4m3fn, dtypes.float8_e5m2, dtypes.float8_e4m3fnuz, dtypes.float8_e5m2fnuz,
)  # fmt: skip
RARE = (*dtypes.NARROW_UNSIGNED, *dtypes.NARROW_SIGNED, *dtypes.SMALL_FLOATS)


# --- where choices come from ----------------------------------------------------------------------


class Choices:
    """A source of small numbers: a list that runs out into zeros (hypothesis) or a generator."""

    def __init__(self, given: Sequence[int] | random.Random) -> None:
        self.random = given if isinstance(given, random.Random) else None
        self.given = [] if isinstance(given, random.Random) else list(given)
        self.at = 0

    def below(self, n: int) -> int:
        """0 <= result < n."""
        if self.random is not None:
            return int(self.random.random() * n)
        self.at += 1
        return self.given[self.at - 1] % n if self.at <= len(self.given) else 0

    def pick(self, items: Sequence[Any]) -> Any:
        """One of them; the first ones are the simplest."""
        return items[self.below(len(items))]

    def one_in(self, n: int) -> bool:
        """True once in n times; false when choices have run out."""
        return self.below(n) == n - 1

    def between(self, low: int, high: int) -> int:
        """low <= result <= high."""
        return low + self.below(high - low + 1)

    def order(self, n: int) -> tuple[int, ...]:
        """A permutation of range(n)."""
        left = list(range(n))
        return tuple(left.pop(self.below(len(left))) for _ in range(n))


# --- inputs ---------------------------------------------------------------------------------------


def edge_values(dtype: Any) -> Array:
    """Values of a dtype that programs and compilers like to get wrong."""
    if dtype == np.bool_:
        return np.array([False, True])
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        return np.array([v for v in (0, 1, 2, low, high, low + 1, high - 1, 3) if low <= v <= high],
                        np.uint64 if low == 0 else np.int64).astype(dtype)  # fmt: skip
    if dtypes.is_complex(dtype):
        part = edge_values(dtypes.to_floating_dtype(dtype))
        found = np.empty(part.shape, dtype)
        found.real, found.imag = part, np.roll(part, 3)
        return found
    info = dtypes.finfo(dtype)
    least = float(info.smallest_subnormal)
    found = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, float(info.max),
             float(info.min), float(info.smallest_normal), least, -least, 0.5, 1.5, 2.5]  # fmt: skip
    return convert(np.array(found), dtype)


def values(shape: Shape, dtype: Any, rng: np.random.Generator, edges: bool) -> Array:
    """Numbers of moderate size, with some edge values among them if asked."""
    size = math.prod(shape)
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        low, high = max(-9, int(info.min)), min(9, int(info.max))
        wide = np.uint64 if int(info.min) == 0 else np.int64
        x = rng.integers(low, high + 1, size).astype(wide).astype(dtype)
    elif dtypes.is_complex(dtype):
        x = (rng.normal(size=size) + 1j * rng.normal(size=size)).astype(dtype)
    else:
        x = convert(rng.normal(size=size) * rng.choice([1.0, 1.0, 1.0, 10.0], size), dtype)
    if edges and size:
        special = edge_values(dtype)
        at = rng.random(size) < 0.15
        x[at] = rng.choice(special, int(at.sum()))
    return x.reshape(shape)


# --- graphs ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class Graph:
    """A body and one set of inputs; `seed` rebuilds it, if it came from one."""

    body: UOp
    args: list[Array]
    seed: int | None = None

    def __repr__(self) -> str:
        ops = " ".join(n.op.name for n in toposort(self.body.src) if n.op is not Op.PARAM)
        return f"<graph seed={self.seed} of {ops}>"


class Maker:
    """Grows a pool of nodes over some parameters."""

    def __init__(self, choices: Choices, params: Sequence[UOp], depth: int = 0) -> None:
        self.c, self.depth = choices, depth
        self.limit = SMALL if depth else LIMIT
        self.pool: list[UOp] = list(params)
        self.remat = 0

    # --- operands

    def find(self, fits: Callable[[UOp], bool]) -> UOp | None:
        """A node of the pool, mostly a recent one."""
        found = [n for n in self.pool if fits(n)]
        if not found:
            return None
        recent = found[-6:] if not self.c.one_in(4) else found
        return recent[-1 - self.c.below(len(recent))]  # type: ignore[no-any-return]

    def dtype(self) -> Any:
        return self.c.pick(RARE) if self.c.one_in(14) else self.c.pick(COMMON)

    def scalar(self, dtype: Any) -> UOp:
        """A literal: small, or an edge value."""
        if self.c.one_in(6):
            return B.scalar(self.c.pick(edge_values(dtype)), dtype)
        value = self.c.pick((1, 2, 0, 3, 5))
        if dtypes.is_integer(dtype):
            value = min(value, int(dtypes.iinfo(dtype).max))
        return B.scalar(convert(np.array(value), dtype)[()], dtype)

    def same(self, x: UOp) -> UOp:
        """Another value of the dtype and shape of x, or a scalar that broadcasts."""
        if self.c.one_in(4):
            return self.scalar(x.dtype)
        found = self.find(lambda n: n.dtype == x.dtype and n.shape in (x.shape, ()))
        return self.scalar(x.dtype) if found is None else found

    def with_dtype(self, x: UOp, dtype: Any) -> UOp:
        return B.cast(x, dtype)

    def accepted(self, x: UOp, op: Op) -> UOp:
        """x, cast if the op does not take its dtype."""
        takes = ACCEPTS[op]
        if x.dtype in takes:
            return x
        common = [d for d in COMMON if d in takes]
        return B.cast(x, self.c.pick(common))

    def index(self, shape: Shape, high: int) -> UOp:
        """Integers of a shape, often within [0, high), often not."""
        kind = self.c.pick((dtypes.int32, dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.int8))
        size = math.prod(shape)
        found = self.find(lambda n: n.aval.size == size and dtypes.is_integer(n.dtype)
                          and n.dtype not in RARE)  # fmt: skip
        if found is None:
            x = B.cast(B.reshape(B.iota((size,), 0), shape), kind)
        else:
            x = B.cast(B.reshape(found, shape), kind)
        if self.c.one_in(3) or high < 1:
            return x
        return UOp(Op.REM, (x, B.scalar(min(high, 100), kind)))

    def coerced(self, x: UOp, of: Aval) -> UOp:
        """x as any value of this aval."""
        if x.shape != of.shape:
            if x.aval.size == of.size:
                x = B.reshape(x, of.shape)
            else:
                x = B.full(of.shape, B.reduce("max", x, range(x.ndim)))
        return B.cast(x, of.dtype)

    # --- growth

    def grow(self, count: int) -> None:
        """Make `count` more values, or as many as the recipes can."""
        for _ in range(3 * count):
            if count == 0:
                return
            x = self.find(lambda n: True)
            assert x is not None
            recipes = LEAF_RECIPES if self.depth >= 2 else RECIPES
            made = self.c.pick(recipes)(self, x)
            for node in made if isinstance(made, list) else [made]:
                if node is not None and node.aval.size <= self.limit and node not in self.pool:
                    self.pool.append(node)
                    count = max(count - 1, 0)

    def body(self, avals: Sequence[Aval], out: Sequence[Aval], count: int) -> UOp:
        """A small body of its own with these inputs and outputs."""
        inner = Maker(self.c, [param(i, a) for i, a in enumerate(avals)], self.depth + 1)
        if not inner.pool:
            inner.pool.append(self.scalar(dtypes.float32))
        inner.grow(count)
        last = inner.pool[::-1]
        return tuple_of([inner.coerced(last[i % len(last)], a) for i, a in enumerate(out)])

    def small(self) -> UOp | None:
        return self.find(lambda n: n.aval.size <= SMALL)


# --- recipes --------------------------------------------------------------------------------------

Recipe = Callable[[Maker, UOp], UOp | list[UOp] | None]


def unary(m: Maker, x: UOp) -> UOp:
    op = m.c.pick(UNARY)
    return B.unary(op, m.accepted(x, op))


def binary(m: Maker, x: UOp) -> UOp:
    op = m.c.pick(BINARY)
    x = m.accepted(x, op)
    y = m.same(x)
    return B.binary(op, y, x) if m.c.one_in(3) else B.binary(op, x, y)


ARITHMETIC = (Op.ADD, Op.MUL, Op.SUB, Op.MAX, Op.MIN, Op.DIV)


def arithmetic(m: Maker, x: UOp) -> UOp:
    op = m.c.pick(ARITHMETIC)
    x = m.accepted(x, op)
    return B.binary(op, x, m.same(x))


def chain(m: Maker, x: UOp) -> UOp:
    """Several elementwise ops in a row."""
    for _ in range(m.c.between(2, 5)):
        x = unary(m, x) if m.c.one_in(3) else arithmetic(m, x)
    return x


def floor_division(m: Maker, x: UOp) -> UOp:
    kind = m.c.pick((dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.int8))
    divisor = B.scalar(m.c.pick((3, 2, 7, 16, 1)), kind)
    return UOp(m.c.pick((Op.IDIV, Op.MOD)), (B.cast(x, kind), divisor))


def compare(m: Maker, x: UOp) -> UOp:
    op = m.c.pick((Op.CMPLT, Op.CMPLE, Op.CMPEQ, Op.CMPNE))
    return B.binary(op, x, m.same(x))


def select(m: Maker, x: UOp) -> UOp:
    c = m.find(lambda n: n.dtype == np.bool_ and n.shape in (x.shape, ()))
    if c is None:
        c = compare(m, x)
    return B.where(c, x, m.same(x)) if m.c.one_in(2) else B.where(c, m.same(x), x)


def cast(m: Maker, x: UOp) -> UOp:
    return B.cast(x, m.dtype())


def bitcast(m: Maker, x: UOp) -> UOp | None:
    width = dtypes.bit_width(x.dtype)
    fits = [d for d in (*COMMON, *RARE) if dtypes.bit_width(d) == width and d != x.dtype
            and not dtypes.is_complex(d) and d != np.bool_]  # fmt: skip
    if not fits or dtypes.is_complex(x.dtype) or x.dtype == np.bool_:
        return None
    return B.bitcast(x, m.c.pick(fits))


def reduce_precision(m: Maker, x: UOp) -> UOp:
    x = m.accepted(x, Op.REDUCE_PRECISION)
    return UOp(Op.REDUCE_PRECISION, (x,), m.c.pick(((5, 10), (8, 7), (4, 3), (5, 2), (8, 23))))


def make_complex(m: Maker, x: UOp) -> UOp:
    x = B.cast(x, m.c.pick((dtypes.float32, dtypes.float32, dtypes.float64)))
    return B.complex_(x, m.same(x))


def reshape(m: Maker, x: UOp) -> UOp:
    shape = list(x.shape)
    if m.c.one_in(3):
        shape = [x.aval.size]
    elif m.c.one_in(3):
        shape.insert(m.c.between(0, len(shape)), 1)
    elif shape:
        at = m.c.below(len(shape))
        for factor in (2, 3, 4, 5, 7):
            if shape[at] and shape[at] % factor == 0 and len(shape) < 5:
                shape[at : at + 1] = [factor, shape[at] // factor]
                break
        else:
            shape = [shape[i] for i in m.c.order(len(shape))]
    return B.reshape(x, shape)


def permute(m: Maker, x: UOp) -> UOp:
    return B.permute(x, m.c.order(x.ndim))


def expand(m: Maker, x: UOp) -> UOp | None:
    if x.ndim >= 4:
        return None
    ones = [i for i, s in enumerate(x.shape) if s == 1]
    if ones and m.c.one_in(2):
        at = m.c.pick(ones)
        shape = tuple(m.c.pick(SIZES) if i == at else s for i, s in enumerate(x.shape))
        return B.expand(x, shape, tuple(range(x.ndim)))
    at = m.c.between(0, x.ndim)
    shape = (*x.shape[:at], m.c.pick(SIZES), *x.shape[at:])
    return B.expand(x, shape, [a for a in range(x.ndim + 1) if a != at])


def pad(m: Maker, x: UOp) -> UOp | None:
    config = [(m.c.between(-2, 3), m.c.between(-2, 3), m.c.pick((0, 0, 0, 1, 2))) for _ in x.shape]
    sizes = [s + lo + hi + max(s - 1, 0) * i for s, (lo, hi, i) in zip(x.shape, config)]
    if any(s < 0 for s in sizes):
        return None
    fill = m.find(lambda n: n.dtype == x.dtype and n.shape == ())
    return B.pad(x, config, m.scalar(x.dtype) if fill is None else fill)


def slice_(m: Maker, x: UOp) -> UOp:
    starts = tuple(m.c.between(0, min(s, 5)) for s in x.shape)
    stops = tuple(s - m.c.between(0, min(s - a, 4)) for a, s in zip(starts, x.shape))
    return B.slice_(x, starts, stops, tuple(m.c.pick((1, 1, 2, 3)) for _ in starts))


def flip(m: Maker, x: UOp) -> UOp:
    return B.flip(x, tuple(a for a in range(x.ndim) if m.c.one_in(2)))


def concat(m: Maker, x: UOp) -> UOp | None:
    if not x.ndim:
        return None
    axis = m.c.below(x.ndim)

    def fits(n: UOp) -> bool:
        return n.dtype == x.dtype and n.ndim == x.ndim and all(
            s == t for a, (s, t) in enumerate(zip(n.shape, x.shape)) if a != axis
        )  # fmt: skip

    parts = [m.find(fits) for _ in range(m.c.between(1, 2))]
    return B.concat([x, *(p for p in parts if p is not None)], axis)


def window(m: Maker, x: UOp) -> UOp | None:
    if not x.ndim or x.ndim >= 4:
        return None
    axis = m.c.below(x.ndim)
    size = m.c.between(1, min(x.shape[axis] + 1, 5))
    return B.window(x, axis, size, m.c.between(1, 3), m.c.between(1, 2))


def movement_chain(m: Maker, x: UOp) -> UOp:
    for _ in range(m.c.between(2, 5)):
        made = m.c.pick((reshape, permute, expand, pad, slice_, flip, concat, window))(m, x)
        if made is not None and made.aval.size <= m.limit:
            x = made
    return x


def reduce(m: Maker, x: UOp) -> UOp:
    kinds = ["add", "max", "min", "mul", "add"]
    if x.dtype == np.bool_:
        kinds = ["and", "or", "xor", "max", "min"]
    elif dtypes.is_integer(x.dtype):
        kinds += ["and", "or", "xor"]
    axes = [a for a in range(x.ndim) if not m.c.one_in(2)]
    return B.reduce(m.c.pick(kinds), x, axes)


def normalise(m: Maker, x: UOp) -> UOp:
    """Rows divided by their sum of exponentials: two dependent reductions."""
    x = B.cast(x, m.c.pick((dtypes.float32, dtypes.float32, dtypes.bfloat16, dtypes.float64)))
    if not x.ndim:
        return B.exp(x)
    axis = x.ndim - 1
    dims = tuple(range(axis))
    top = B.reduce("max", x, [axis])
    e = B.exp(B.sub(x, B.expand(top, x.shape, dims)))
    return B.div(e, B.expand(B.sum_(e, [axis]), x.shape, dims))


def argreduce(m: Maker, x: UOp) -> list[UOp] | None:
    axes = [a for a, s in enumerate(x.shape) if s]
    if not axes or dtypes.is_complex(x.dtype):
        return None
    kind = m.c.pick((dtypes.int32, dtypes.int64, dtypes.uint8))
    return list(B.argreduce(m.c.pick(("max", "min")), x, m.c.pick(axes), kind))


def prefix(m: Maker, x: UOp) -> UOp | None:
    if not x.ndim:
        return None
    kinds = ("max", "min") if x.dtype == np.bool_ else ("add", "max", "min", "mul")
    return B.prefix(m.c.pick(kinds), x, m.c.below(x.ndim), m.c.one_in(2))


def dot(m: Maker, x: UOp) -> UOp | None:
    y = m.find(lambda n: n.dtype == x.dtype)
    if y is None:
        return None
    if x.dtype == np.bool_:
        x = y = B.cast(x, dtypes.float32)
    pairs = [(i, j) for i, s in enumerate(x.shape) for j, t in enumerate(y.shape) if s == t]
    contract: list[tuple[int, int]] = []
    batch: list[tuple[int, int]] = []
    for _ in range(m.c.between(1, 3)):
        free = [(i, j) for i, j in pairs
                if all(i != a and j != b for a, b in contract + batch)]  # fmt: skip
        if free:
            (contract if m.c.below(3) < 2 else batch).append(m.c.pick(free))
    wide = {dtypes.int8: dtypes.int32, dtypes.bfloat16: dtypes.float32}.get(x.dtype)
    info = DotInfo(
        (tuple(i for i, _ in contract), tuple(j for _, j in contract)),
        (tuple(i for i, _ in batch), tuple(j for _, j in batch)),
        wide if m.c.one_in(2) else None,
    )
    free_sizes = [s for i, s in enumerate(x.shape) if i not in info.contract[0]]
    free_sizes += [s for j, s in enumerate(y.shape) if j not in info.contract[1] + info.batch[1]]
    return UOp(Op.DOT, (x, y), info) if math.prod(free_sizes) <= m.limit else None


def matmul(m: Maker, x: UOp) -> UOp | None:
    """(x as a matrix) times a matrix made from any value."""
    y = m.small()
    if y is None or not x.ndim or not x.shape[-1] or not y.aval.size:
        return None
    depth, wide = x.shape[-1], m.c.pick((4, 1, 8, 17))
    if depth * wide > LIMIT or x.aval.size // depth * wide > m.limit:
        return None
    flat = B.reshape(y, (y.aval.size,))
    need = depth * wide
    flat = B.concat([flat] * -(-need // y.aval.size), 0)
    right = B.reshape(B.slice_axis(flat, 0, 0, need), (depth, wide))
    if m.c.one_in(2):
        right = B.permute(B.reshape(right, (wide, depth)), (1, 0))
    kind = x.dtype if x.dtype != np.bool_ else dtypes.float32
    return B.dot(B.cast(x, kind), B.cast(right, kind), ((x.ndim - 1,), (0,)))


def take(m: Maker, x: UOp) -> UOp | None:
    """Gather of rows or of windows along one axis."""
    if not x.ndim or 0 in x.shape:
        return None
    axis = m.c.below(x.ndim)
    width = m.c.between(1, min(3, x.shape[axis])) if m.c.one_in(3) else 1
    count = m.c.pick(((3,), (7,), (17,), (2, 3), (), (0,)))
    index = B.reshape(m.index(count, x.shape[axis]), (*count, 1))
    sizes = tuple(width if a == axis else s for a, s in enumerate(x.shape))
    collapsed = (axis,) if width == 1 else ()
    rank = len(count) + x.ndim - len(collapsed)
    windows = x.ndim - len(collapsed)
    at = m.c.between(0, windows) if count else 0
    offsets = tuple(i for i in range(rank) if not at <= i < at + len(count))
    mode = m.c.pick(("fill", "clip", "promise_in_bounds"))
    info = GatherInfo(offsets, collapsed, (axis,), sizes, mode=mode)
    fill = m.scalar(x.dtype) if mode == "fill" and m.c.one_in(2) else None
    return B.gather(x, index, info, fill)


def take_points(m: Maker, x: UOp) -> UOp | None:
    """Gather of single elements by several index columns, or batched along the first axis."""
    if x.ndim < 2 or 0 in x.shape:
        return None
    mode = m.c.pick(("fill", "clip"))
    if m.c.one_in(2):
        count = m.c.pick((4, 9))
        batch = x.shape[0]
        index = B.reshape(m.index((batch, count), x.shape[1]), (batch, count, 1))
        sizes = (1, 1, *x.shape[2:])
        offsets = tuple(range(2, x.ndim))
        info = GatherInfo(offsets, (1,), (1,), sizes, (0,), (0,), mode=mode)
        return B.gather(x, index, info)
    count = m.c.pick((5, 16))
    index = m.index((count, 2), min(x.shape[:2]))
    offsets = tuple(range(1, x.ndim - 1))
    info = GatherInfo(offsets, (0, 1), (0, 1), (1, 1, *x.shape[2:]), mode=mode)
    return B.gather(x, index, info)


def put(m: Maker, x: UOp) -> UOp | None:
    """Scatter of rows or windows along one axis, duplicates included."""
    if not x.ndim or 0 in x.shape:
        return None
    axis = m.c.below(x.ndim)
    width = m.c.between(1, min(3, x.shape[axis])) if m.c.one_in(3) else 0
    count = m.c.pick(((3,), (8,), (2, 3), ()))
    index = B.reshape(m.index(count, x.shape[axis]), (*count, 1))
    shape = (*count, *(width if a == axis else s for a, s in enumerate(x.shape)
                       if width or a != axis))  # fmt: skip
    updates = m.find(lambda n: n.dtype == x.dtype and n.aval.size == math.prod(shape))
    if updates is None:
        updates = m.coerced(x if m.c.one_in(2) else m.scalar(x.dtype), aval(shape, x.dtype))
    updates = B.reshape(updates, shape)
    kinds = ["set", "add", "max", "min", "mul"]
    if x.dtype == np.bool_:
        kinds = ["set", "max", "min"]
    if dtypes.is_complex(x.dtype):
        kinds = ["set", "add", "mul"]
    kind = m.c.pick(kinds)
    windows = tuple(range(len(count), len(shape)))
    inserted = () if width else (axis,)
    mode = m.c.pick(("fill", "clip", "promise_in_bounds"))
    return B.scatter(x, index, updates, ScatterInfo(kind, windows, inserted, (axis,), mode=mode))


def start(m: Maker) -> UOp:
    kind = m.c.pick((dtypes.int32, dtypes.int64, dtypes.int8, dtypes.uint8))
    found = m.find(lambda n: n.shape == () and dtypes.is_integer(n.dtype) and n.dtype not in RARE)
    return B.scalar(m.c.between(0, 4), kind) if found is None else B.cast(found, kind)


def dynamic_slice(m: Maker, x: UOp) -> UOp:
    sizes = tuple(m.c.between(min(1, s), s) for s in x.shape)
    return B.dynamic_slice(x, [start(m) for _ in x.shape], sizes)


def dynamic_update(m: Maker, x: UOp) -> UOp:
    sizes = tuple(m.c.between(min(1, s), s) for s in x.shape)
    update = m.find(lambda n: n.dtype == x.dtype and n.shape == sizes)
    if update is None:
        update = m.coerced(m.find(lambda n: n.dtype == x.dtype) or x, aval(sizes, x.dtype))
    return B.dynamic_update(x, update, [start(m) for _ in x.shape])


def sort(m: Maker, x: UOp) -> list[UOp] | None:
    if not x.ndim:
        return None
    others = [m.find(lambda n: n.shape == x.shape) for _ in range(m.c.between(0, 2))]
    operands = [x, *(o for o in others if o is not None)]
    keys = m.c.between(1, len(operands))
    return B.sort(operands, m.c.below(x.ndim), keys)


def random_bits(m: Maker, x: UOp) -> UOp | None:
    key = m.find(lambda n: dtypes.is_integer(n.dtype) and n.aval.size in (2, 4, 6))
    if key is None:
        key = B.iota((2,), 0)
    keys = B.bitcast(B.cast(B.reshape(key, (key.aval.size // 2, 2)), dtypes.int32), dtypes.uint32)
    if key.aval.size == 2:
        keys = B.reshape(keys, (2,))
    shape = m.c.pick(((3,), (17,), (2, 5), (), (8,)))
    return B.random_bits(keys, shape, m.c.pick((32, 32, 64, 8, 16)))


def iota(m: Maker, x: UOp) -> UOp:
    shape = x.shape or (m.c.pick(SIZES),)
    of = m.c.pick([d for d in COMMON if d != np.bool_])
    return B.iota(shape, m.c.below(len(shape)), of)


def fft(m: Maker, x: UOp) -> UOp | None:
    if not x.ndim or not x.shape[-1]:
        return None
    x = B.cast(x, m.c.pick((dtypes.complex64, dtypes.complex128)))
    return UOp(Op.FFT, (x,), (m.c.pick(("fft", "ifft")), (x.shape[-1],)))


def identity(m: Maker, x: UOp) -> UOp:
    op = m.c.pick((Op.REMAT, Op.COPY, Op.OPTIMIZATION_BARRIER, Op.NAME))
    if op is Op.REMAT:
        m.remat += 1
        return UOp(op, (x,), m.remat)
    return UOp(op, (x,), "n" if op is Op.NAME else None)


def call(m: Maker, x: UOp) -> list[UOp] | None:
    args = [a for a in (m.small() for _ in range(m.c.between(1, 3))) if a is not None]
    if not args:
        return None
    avals = [a.aval for a in args]
    out = [m.c.pick(avals) for _ in range(m.c.between(1, 2))]
    body = m.body(avals, out, m.c.between(1, 4))
    info = CallInfo("jit", "f", precompile=m.c.one_in(3))
    return results(UOp(Op.CALL, (body, *args), info))


def scan(m: Maker, x: UOp) -> list[UOp] | None:
    """A loop over the first axis of some value, with a constant, carries and stacked results."""
    xs = m.find(lambda n: n.ndim >= 1 and n.shape[0] <= 8 and n.aval.size <= SMALL)
    constant, carry = m.small(), m.small()
    if xs is None or constant is None or carry is None:
        return None
    carries = [carry] if m.c.one_in(2) else [carry, m.small() or carry]
    step = aval(xs.shape[1:], xs.dtype)
    inputs = [constant.aval, *(c.aval for c in carries), step]
    ys = [m.c.pick(inputs)] if not m.c.one_in(3) else []
    body = m.body(inputs, [*(c.aval for c in carries), *ys], m.c.between(1, 4))
    info = ScanInfo(1, len(carries), xs.shape[0], reverse=m.c.one_in(3))
    return results(UOp(Op.SCAN, (body, constant, *carries, xs), info))


def while_loop(m: Maker, x: UOp) -> list[UOp] | None:
    """A loop that ends by a counter, or earlier by a condition on the carry."""
    carry, constant = m.small(), m.small()
    if carry is None or constant is None:
        return None
    counter = aval((), dtypes.int32)
    n = param(0, counter)
    go = B.lt(n, B.scalar(m.c.between(0, 5), dtypes.int32))
    if m.c.one_in(3):
        wanted = m.body([counter, carry.aval], [aval((), dtypes.bool_)], 2).src[0]
        go = B.and_(go, B.not_(wanted))
    inner = m.body([constant.aval, counter, carry.aval], [carry.aval], m.c.between(1, 4))
    body = tuple_of([B.add(param(1, counter), B.scalar(1, dtypes.int32)), *inner.src])
    zero = B.scalar(0, dtypes.int32)
    node = UOp(Op.WHILE, (tuple_of([go]), body, constant, zero, carry), WhileInfo(0, 1))
    return results(node)


def cond(m: Maker, x: UOp) -> list[UOp] | None:
    args = [a for a in (m.small() for _ in range(m.c.between(1, 2))) if a is not None]
    if not args:
        return None
    avals = [a.aval for a in args]
    out = [m.c.pick(avals) for _ in range(m.c.between(1, 2))]
    count = m.c.between(2, 3)
    branches = [m.body(avals, out, m.c.between(1, 3)) for _ in range(count)]
    index = start(m)
    index = B.cast(index, dtypes.int32)
    if count == 2 and m.c.one_in(2):
        index = B.cast(index, dtypes.bool_)
    return results(UOp(Op.COND, (*branches, index, *args), count))


LEAF_RECIPES: tuple[Recipe, ...] = (
    arithmetic, unary, binary, chain, chain, arithmetic, unary, binary, cast, cast, select,
    compare, reshape, permute, expand, pad, slice_, flip, concat, window, movement_chain,
    movement_chain, reduce, reduce, reduce, normalise, argreduce, prefix, dot, matmul, take,
    take_points, put, dynamic_slice, dynamic_update, sort, random_bits, iota, bitcast,
    reduce_precision, make_complex, identity, floor_division,
)  # fmt: skip
RECIPES = (*LEAF_RECIPES, *LEAF_RECIPES, call, scan, while_loop, cond, fft)


def shape_of(c: Choices, depth: int) -> Shape:
    rank = c.pick((1, 2, 1, 2, 3, 0, 4))
    return tuple(c.pick(SIZES if rank < 3 else SIZES[:4] + SIZES[-4:]) for _ in range(rank))


def make(choices: Choices, count: int, seed: int | None = None) -> Graph:
    """A graph of about `count` recipes."""
    c = choices
    shapes = [shape_of(c, 0) for _ in range(c.between(1, 2))]
    shapes = [s if math.prod(s) <= LIMIT else s[:1] for s in shapes]
    kinds = [c.pick(RARE) if c.one_in(14) else c.pick(COMMON) for _ in range(c.between(1, 3))]
    avals = [aval(c.pick(shapes), c.pick(kinds)) for _ in range(c.between(1, 4))]
    maker = Maker(c, [param(i, a) for i, a in enumerate(avals)])
    maker.grow(count)
    read = {s for n in toposort(maker.pool) for s in n.operands}
    made = maker.pool[len(avals) :]
    outputs = [n for n in made if n not in read][-5:] or maker.pool[-1:]
    rest = [n for n in made if n not in outputs]
    if rest and c.one_in(2):
        outputs.append(c.pick(rest))
    rng = np.random.default_rng(c.below(1 << 30))
    edges = c.one_in(2)
    args = [values(a.shape, a.dtype, rng, edges) for a in avals]
    return Graph(tuple_of(outputs), args, seed)


def graph(seed: int, count: int = 8) -> Graph:
    """The graph of a seed."""
    return make(Choices(random.Random(seed)), count, seed)


def graphs(count: int = 8) -> st.SearchStrategy[Graph]:
    """Graphs for hypothesis; a failing one shrinks to few and simple choices."""
    numbers = st.lists(st.integers(0, (1 << 30) - 1), max_size=40 * count)
    return st.builds(lambda given, n: make(Choices(given), n), numbers, st.integers(1, count))
