"""Random closed bodies with small integer values, so that every order of evaluation is exact."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from tests.lowering.bodies import F32, I32, arg
from tinyjax.core import build as B
from tinyjax.core.infos import GatherInfo, ScatterInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp

BOOL = np.dtype(np.bool_)
SIZES = [1, 2, 3, 4, 6]
LIMIT = 50  # values are clamped, so float32 sums of up to a few hundred of them are exact


class Program:
    """A pool of nodes that grows; `outputs` are some of them, `args` the parameters' values."""

    def __init__(self, seed: int, size: int) -> None:
        self.r, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.args: list[np.ndarray] = []
        self.pool: list[UOp] = []
        for _ in range(3):
            shape = tuple(self.r.choice(SIZES) for _ in range(self.r.randint(0, 3)))
            self.parameter(shape, self.r.choice([F32, F32, I32]))
        while len(self.pool) < size:
            x = self.pick()
            assert x is not None
            made = self.r.choice(MAKERS)(self, x)
            if made is not None and made.aval.size <= 800 and made not in self.pool:
                self.pool.append(self.bounded(made))
        self.outputs = self.r.sample(self.pool[3:], min(4, size - 3))

    def parameter(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.pool.append(arg(len(self.args), shape, dtype))
        self.args.append(self.rng.integers(-3, 4, size=shape).astype(dtype))

    def pick(self, dtype: np.dtype | None = None, fits: Callable[[UOp], bool] | None = None):
        """A node of the pool, mostly a recent one."""
        found = [
            n for n in self.pool if (dtype is None or n.dtype == dtype) and (not fits or fits(n))
        ]
        if not found:
            return None
        return self.r.choice(found[-8:] if self.r.random() < 0.8 else found)

    def scalar(self, dtype: np.dtype) -> UOp:
        return B.scalar(self.r.randint(-2, 3), dtype)

    def like(self, x: UOp) -> UOp:
        """Another value of this aval."""
        other = self.pick(x.dtype, lambda n: n.shape == x.shape)
        if other is not None and self.r.random() < 0.8:
            return other
        return B.broadcast(self.scalar(x.dtype), x.shape)

    def bounded(self, x: UOp) -> UOp:
        if x.dtype == BOOL or x.op not in (Op.MUL, Op.DOT, Op.PREFIX, Op.SCATTER, Op.REDUCE):
            return x
        low, high = (B.full(x.shape, B.scalar(v, x.dtype)) for v in (-LIMIT, LIMIT))
        return B.min_(B.max_(x, low), high)

    def start(self) -> UOp:
        return self.pick(I32, lambda n: n.ndim == 0) or B.scalar(self.r.randint(-1, 3), I32)


def binary(p: Program, x: UOp) -> UOp:
    ops = [Op.AND, Op.OR, Op.XOR] if x.dtype == BOOL else [Op.ADD, Op.SUB, Op.MUL, Op.MAX, Op.MIN]
    return UOp(p.r.choice(ops), (x, p.like(x)))


def compare(p: Program, x: UOp) -> UOp:
    if x.dtype == BOOL:
        return B.not_(x)
    return UOp(p.r.choice([Op.CMPLT, Op.CMPEQ]), (x, p.like(x)))


def select(p: Program, x: UOp) -> UOp | None:
    c = p.pick(BOOL, lambda n: n.shape == x.shape)
    return None if c is None else B.where(c, x, p.like(x))


def cast(p: Program, x: UOp) -> UOp:
    return B.cast(x, p.r.choice([F32, I32]))


def reshape(p: Program, x: UOp) -> UOp:
    shape = list(x.shape)
    p.r.shuffle(shape)
    return B.reshape(x, shape)


def permute(p: Program, x: UOp) -> UOp:
    axes = list(range(x.ndim))
    p.r.shuffle(axes)
    return B.permute(x, axes)


def expand(p: Program, x: UOp) -> UOp | None:
    if x.ndim > 3:
        return None
    at = p.r.randint(0, x.ndim)
    shape = (*x.shape[:at], p.r.choice(SIZES), *x.shape[at:])
    return B.expand(x, shape, [a for a in range(x.ndim + 1) if a != at])


def pad(p: Program, x: UOp) -> UOp | None:
    config = [(p.r.randint(-1, 2), p.r.randint(0, 2), p.r.randint(0, 1)) for _ in range(x.ndim)]
    if any(s == 0 and lo < 0 for s, (lo, _, _) in zip(x.shape, config)):
        return None
    return B.pad(x, config, p.scalar(x.dtype))


def slice_(p: Program, x: UOp) -> UOp | None:
    if not x.ndim or 0 in x.shape:
        return None
    starts = [p.r.randint(0, s - 1) for s in x.shape]
    stops = [p.r.randint(a + 1, s) for a, s in zip(starts, x.shape)]
    return B.slice_(x, tuple(starts), tuple(stops), tuple(p.r.randint(1, 2) for _ in starts))


def flip(p: Program, x: UOp) -> UOp:
    return B.flip(x, tuple(a for a in range(x.ndim) if p.r.random() < 0.5))


def concat(p: Program, x: UOp) -> UOp | None:
    if not x.ndim:
        return None
    axis = p.r.randrange(x.ndim)

    def fits(n: UOp) -> bool:
        return n.ndim == x.ndim and all(
            s == t for a, (s, t) in enumerate(zip(n.shape, x.shape)) if a != axis
        )

    return B.concat([x, *(p.pick(x.dtype, fits) for _ in range(p.r.randint(1, 2)))], axis)


def window(p: Program, x: UOp) -> UOp | None:
    axes = [a for a, s in enumerate(x.shape) if s]
    if not axes:
        return None
    axis = p.r.choice(axes)
    return B.window(x, axis, p.r.randint(1, x.shape[axis]), p.r.randint(1, 2))


def reduce(p: Program, x: UOp) -> UOp:
    kinds = ["and", "or"] if x.dtype == BOOL else ["add", "max", "min"]
    return B.reduce(p.r.choice(kinds), x, [a for a in range(x.ndim) if p.r.random() < 0.6])


def argreduce(p: Program, x: UOp) -> UOp | None:
    axes = [a for a, s in enumerate(x.shape) if s]
    if not axes or x.dtype == BOOL:
        return None
    return B.argreduce(p.r.choice(["max", "min"]), x, p.r.choice(axes))[p.r.randint(0, 1)]


def prefix(p: Program, x: UOp) -> UOp | None:
    if not x.ndim or x.dtype == BOOL:
        return None
    kind = p.r.choice(["add", "max", "min"])
    return B.prefix(kind, x, p.r.randrange(x.ndim), p.r.random() < 0.5)


def sort(p: Program, x: UOp) -> UOp | None:
    if not x.ndim:
        return None
    return B.sort([x, p.like(x)], p.r.randrange(x.ndim))[p.r.randint(0, 1)]


def dot(p: Program, x: UOp) -> UOp | None:
    y = p.pick(x.dtype, lambda n: n.ndim >= 1)
    if y is None or x.dtype == BOOL:
        return None
    pairs = [(i, j) for i in range(x.ndim) for j in range(y.ndim) if x.shape[i] == y.shape[j]]
    if not pairs:
        return None
    i, j = p.r.choice(pairs)
    return B.dot(x, y, ((i,), (j,)))


def gather(p: Program, x: UOp) -> UOp | None:
    index = p.pick(I32, lambda n: n.aval.size <= 40)
    if not x.ndim or not x.shape[0] or index is None:
        return None
    index = B.reshape(index, (*index.shape, 1))
    offsets = tuple(range(index.ndim - 1, index.ndim + x.ndim - 2))
    mode = p.r.choice(["fill", "clip"])
    info = GatherInfo(offsets, (0,), (0,), (1, *x.shape[1:]), mode=mode)
    return B.gather(x, index, info, p.scalar(x.dtype) if mode == "fill" else None)


def scatter(p: Program, x: UOp) -> UOp | None:
    index = p.pick(I32, lambda n: n.aval.size <= 20)
    if not x.ndim or not x.shape[0] or x.dtype == BOOL or index is None:
        return None
    index = B.reshape(index, (*index.shape, 1))
    shape = (*index.shape[:-1], *x.shape[1:])
    update = p.pick(x.dtype, lambda n: n.shape == shape)
    if update is None:
        update = B.broadcast(p.scalar(x.dtype), shape)
    windows = tuple(range(index.ndim - 1, len(shape)))
    kind, mode = p.r.choice(["add", "set", "max"]), p.r.choice(["fill", "clip"])
    return B.scatter(x, index, update, ScatterInfo(kind, windows, (0,), (0,), mode=mode))


def dynamic_slice(p: Program, x: UOp) -> UOp:
    sizes = tuple(p.r.randint(min(1, s), s) for s in x.shape)
    return B.dynamic_slice(x, [p.start() for _ in x.shape], sizes)


def dynamic_update(p: Program, x: UOp) -> UOp | None:
    def fits(n: UOp) -> bool:
        return n.ndim == x.ndim and all(a <= b for a, b in zip(n.shape, x.shape))

    return B.dynamic_update(x, p.pick(x.dtype, fits), [p.start() for _ in x.shape])


MAKERS: list[Callable[[Program, UOp], UOp | None]] = [
    binary, binary, binary, binary, compare, select, cast, reshape, permute, expand, pad, slice_,
    flip, concat, window, reduce, reduce, argreduce, prefix, sort, dot, gather, scatter,
    dynamic_slice, dynamic_update,
]  # fmt: skip
