"""Kernels in plain Python: a stage-2 SINK or a stage-3 list, run on buffers.

The meaning of every kernel-stage op, written without LLVM and without vectors, so that a fusion
decision, a range rewrite or generated code can be checked against it on small shapes. Everything is
a NumPy scalar of the node's dtype; narrow floats are computed in float32 and rounded once per op;
transcendentals are computed in float64 (complex128) and rounded once.

A FOLD is evaluated once per value of the ranges it still depends on and remembered. A PREFIX keeps
its running value per value of the *other* ranges, so its own range may be anywhere in the nest as
long as it runs upwards.

Cost: about 2 us per node and iteration. For tests only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const_value, toposort
from tinyjax.lowering.nest import (
    Accumulate,
    Line,
    Loop,
    Nest,
    Write,
    extent,
    fold_operands,
    limit,
    ranges_of,
)  # fmt: skip

Ranges = frozenset[UOp]
Buffers = Sequence[np.ndarray[Any, Any]]
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


def free_ranges(nodes: Sequence[UOp]) -> dict[UOp, Ranges]:
    """Ranges each node, sources first, still depends on; FOLD and END close some."""
    free: dict[UOp, Ranges] = {}
    for node in nodes:
        found: Ranges = frozenset((node,)) if node.op is Op.RANGE else frozenset()
        for source in node.src:
            found |= free[source]
        if node.op in (Op.FOLD, Op.END):
            found -= frozenset(ranges_of(node))
        free[node] = found
    return free


def interpret(sink: UOp, buffers: Buffers, dims: Sequence[int] = ()) -> None:
    """Run a stage-2 SINK on `buffers` (one C-contiguous array per PARAM slot), in place.

    `dims` are the symbolic sizes of the program, by default the largest ones.
    """
    with np.errstate(all="ignore"):
        machine = Machine(sink, buffers, dims)
        for end in sink.src:
            store, ranges = end.src[0], [s for s in end.src[1:] if s.op is Op.RANGE]
            for values in machine.iterations(ranges):
                machine.store(store, dict(zip(ranges, values)))


class Machine:
    """State of one interpretation: buffers as flat views, remembered folds, running prefixes."""

    def __init__(self, sink: UOp, buffers: Buffers, dims: Sequence[int] = ()) -> None:
        self.dims = dims
        self.flat = [b.reshape(-1) for b in buffers]
        assert all(f.base is not None or f is b for f, b in zip(self.flat, buffers))
        self.free = free_ranges(toposort([sink]))
        self.orders: dict[UOp, list[UOp]] = {}
        self.folds: dict[tuple[UOp, tuple[int, ...]], Any] = {}
        self.running: dict[tuple[UOp, tuple[int, ...]], Any] = {}

    def steps(self, r: UOp) -> int:
        """Iterations of a range."""
        bound = limit(r)
        return extent(r) if bound is None else min(extent(r), int(self.value(bound, {})))

    def iterations(self, ranges: Sequence[UOp]) -> Iterator[tuple[int, ...]]:
        """All index tuples, the last range fastest."""
        return itertools.product(*(range(self.steps(r)) for r in ranges))

    def order(self, root: UOp) -> list[UOp]:
        """What to evaluate for `root`, sources first; not what is inside a FOLD."""
        found = self.orders.get(root)
        if found is None:
            found, seen, stack = [], set[UOp](), [root]
            while stack:
                node = stack[-1]
                src = () if node.op is Op.FOLD else node.src
                pending = [s for s in src if s not in seen]
                if node not in seen and pending:
                    stack.extend(reversed(pending))
                    continue
                stack.pop()
                if node not in seen:
                    seen.add(node)
                    found.append(node)
            self.orders[root] = found
        return found

    def key(self, node: UOp, env: dict[UOp, int]) -> tuple[int, ...]:
        return tuple(env[r] for r in sorted(self.free[node], key=lambda r: r.arg[0]))

    def store(self, store: UOp, env: dict[UOp, int]) -> None:
        """Perform one STORE, unless its INDEX says that it is not valid."""
        index, value = store.src
        where = self.value(index, env)
        new = self.value(value, env)
        if where is not None:
            self.flat[index.src[0].arg[0]][where] = new

    def value(self, root: UOp, env: dict[UOp, int]) -> Any:
        """Value of `root` where the ranges are as in `env`."""
        done: dict[UOp, Any] = {}
        for node in self.order(root):
            done[node] = self.step(node, done, env)
        return done[root]

    def step(self, node: UOp, done: dict[UOp, Any], env: dict[UOp, int]) -> Any:
        op = node.op
        if op is Op.RANGE:
            return np.int64(env[node])
        if op is Op.CONST:
            return const_value(node)
        if op is Op.PARAM:
            return None
        if op is Op.DIM:
            return np.int64(self.dims[node.arg.number] if self.dims else node.arg)
        if op is Op.INDEX:
            if len(node.src) == 3 and not done[node.src[2]]:
                return None
            at = int(done[node.src[1]])
            size = self.flat[node.src[0].arg[0]].size
            assert 0 <= at < size, f"index {at} of slot {node.src[0].arg[0]} with {size} elements"
            return at
        if op is Op.LOAD:
            where = done[node.src[0]]
            if where is None:
                return done[node.src[1]] if len(node.src) > 1 else node.aval.dtype.type(0)
            return self.flat[node.src[0].src[0].arg[0]][where]
        if op is Op.FOLD:
            key = (node, self.key(node, env))
            if key not in self.folds:
                self.folds[key] = self.fold(node, env)
            return self.folds[key]
        if op is Op.PREFIX:
            others = {r: v for r, v in env.items() if r is not node.src[1]}
            key = (node, tuple(others[r] for r in sorted(others, key=lambda r: r.arg[0])))
            new = done[node.src[0]]
            if env[node.src[1]] > 0:
                new = combine(node.arg[0], self.running[key], new)
            self.running[key] = new
            return new
        if op is Op.GETTUPLE:
            return done[node.src[0]][node.arg]
        if op is Op.STAGE:
            return done[node.src[0]]
        return apply(op, node.arg, node.aval.dtype, [done[s] for s in node.src])

    def fold(self, node: UOp, env: dict[UOp, int]) -> Any:
        """Fold over the node's ranges, in row-major order."""
        count = 2 if node.arg in ("argmax", "argmin") else 1  # an index may itself be a range
        operands, ranges = node.src[:count], node.src[count:]
        if count == 2:
            return self.arg_fold(node, operands, ranges, env)
        value = operands[0]
        total: Any = None
        for values in self.iterations(ranges):
            new = self.value(value, env | dict(zip(ranges, values)))
            total = started(node, new) if total is None else combine(node.arg, total, new)
        return identity(node.arg, value.aval.dtype) if total is None else total

    def arg_fold(
        self, node: UOp, operands: Sequence[UOp], ranges: Sequence[UOp], env: dict[UOp, int]
    ) -> Any:
        """First extreme; NaN is extreme; ties go to the smaller index."""
        best: Any = None
        for values in self.iterations(ranges):
            inner = env | dict(zip(ranges, values))
            value, index = self.value(operands[0], inner), self.value(operands[1], inner)
            if best is None or comes_first(node.arg, value, index, *best):
                best = (value, index)
        return best


def comes_first(kind: str, value: Any, index: Any, best: Any, best_index: Any) -> bool:
    """Whether (value, index) beats the best so far in an argmax or argmin."""
    nan, best_nan = bool(value != value), bool(best != best)
    if nan or best_nan:
        return nan and (not best_nan or bool(index < best_index))
    if value == best:
        return bool(index < best_index)
    return bool(value > best) if kind == "argmax" else bool(value < best)


FOLD_OPS = {
    "add": Op.ADD, "mul": Op.MUL, "max": Op.MAX, "min": Op.MIN,
    "and": Op.AND, "or": Op.OR, "xor": Op.XOR,
}  # fmt: skip


def started(fold: UOp, first: Any) -> Any:
    """The first step of a fold: sums of several floats start from +0.0, so none is -0.0."""
    steps = math.prod(extent(r) for r in ranges_of(fold))
    if fold.arg != "add" or steps == 1 or not dtypes.is_inexact(fold.aval.dtype):
        return first
    return combine("add", identity("add", fold.aval.dtype), first)


def combine(kind: str, x: Any, y: Any) -> Any:
    """One step of a fold; for bools add is or, mul is and."""
    return apply(FOLD_OPS[kind], None, x.dtype, [x, y])


def identity(kind: str, dtype: Any) -> Any:
    """What an empty fold gives."""
    if kind in ("add", "or", "xor"):
        return np.zeros((), dtype)[()]
    if kind == "mul":
        return np.ones((), dtype)[()]
    if kind == "and":
        return np.array(True) if dtypes.is_bool(dtype) else ~np.zeros((), dtype)
    if dtypes.is_bool(dtype):
        return np.array(kind == "min")
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        return np.array(info.min if kind == "max" else info.max, dtype)[()]
    if dtypes.is_complex(dtype):
        limit = -np.inf if kind == "max" else np.inf
        return dtype.type(complex(limit, limit))
    bound = np.array(-np.inf if kind == "max" else np.inf, F64).astype(dtype)
    if dtypes.is_float(dtype) and not np.isinf(bound.astype(F64)):  # formats without infinity
        info = dtypes.finfo(dtype)
        bound = np.array(float(info.min if kind == "max" else info.max), F64).astype(dtype)
    return bound[()]


def interpret_nest(nest: Nest, buffers: Buffers, dims: Sequence[int] = ()) -> None:
    """Run a stage-3 list (lowering/nest.py) line by line, as scalars; vectors are ignored."""
    machine = Machine(nest.sink, buffers, dims)
    env: dict[UOp, int] = {}
    values: dict[UOp, Any] = {}
    totals: dict[UOp, Any] = {}

    def value(node: UOp) -> Any:
        if node.op is Op.FOLD:
            done = totals[node]
            return identity(node.arg, node.aval.dtype) if done is None else done
        if node.op in (Op.CONST, Op.RANGE, Op.PARAM, Op.DIM):
            return machine.step(node, {}, env)
        if node.op is Op.INDEX or node not in values:  # index arithmetic is not a line
            return machine.step(node, {s: value(s) for s in node.src}, env)
        return values[node]

    def step(line: Line) -> None:
        if isinstance(line, Loop):
            for fold in line.starts:
                totals[fold] = None
            outside = len(values)
            for i in range(machine.steps(line.range)):
                env[line.range] = i
                for inner in line.lines:
                    step(inner)
                while len(values) > outside:  # an index may hold a node that is a later line
                    values.popitem()
            del env[line.range]
        elif isinstance(line, Accumulate):
            new = tuple(value(s) for s in fold_operands(line.fold))
            old = totals[line.fold]
            if len(new) == 1:
                if old is None:
                    totals[line.fold] = started(line.fold, new[0])
                else:
                    totals[line.fold] = combine(line.fold.arg, old, new[0])
            elif old is None or comes_first(line.fold.arg, *new, *old):
                totals[line.fold] = new
        elif isinstance(line, Write):
            index, stored = line.store.src
            at, new_value = value(index), value(stored)
            if at is not None:
                machine.flat[index.src[0].arg[0]][at] = new_value
        else:
            values[line] = machine.step(line, {s: value(s) for s in line.src}, env)

    with np.errstate(all="ignore"):
        for line in nest.lines:
            step(line)


# --- elementwise ops on NumPy scalars ------------------------------------------------------------


def apply(op: Op, arg: Any, dtype: Any, args: Sequence[Any]) -> Any:
    """One elementwise op; `dtype` is the result's."""
    if op is Op.CAST:
        return convert(args[0], dtype)
    if op is Op.BITCAST:
        return np.asarray(args[0]).reshape(1).view(arg)[0]
    if op is Op.WHERE:
        return args[1] if args[0] else args[2]
    source = args[0].dtype
    if op is Op.NEXTAFTER:
        return args[1] if args[0] == args[1] else np.nextafter(args[0], args[1])
    if op in COMPARES and not dtypes.is_complex(source):
        return np.bool_(COMPARES[op](args[0], args[1]))
    if dtypes.is_bool(source):
        return BOOLS[op](*(bool(a) for a in args))
    if dtypes.is_integer(source):
        return integer_op(op, source, dtype, args)
    if op is Op.REDUCE_PRECISION and (dtypes.is_complex(source) or source.itemsize == 2):
        return reduce_precision(args[0], *arg)
    if dtypes.is_complex(source):
        return np.asarray(complex_op(op, args)).astype(dtype)[()]
    if op is Op.COMPLEX:
        made = np.empty((), dtype)
        made.real, made.imag = args
        return made[()]
    if op is Op.IS_FINITE:
        return np.bool_(np.isfinite(np.float64(args[0])))
    if source not in (F32, F64):
        wide = [np.float32(a) for a in args]
        return convert(float_op(op, arg, F32, wide), dtype)
    return np.asarray(float_op(op, arg, source, args)).astype(dtype)[()]


COMPARES: dict[Op, Callable[[Any, Any], Any]] = {
    Op.CMPEQ: lambda x, y: x == y,
    Op.CMPNE: lambda x, y: x != y,
    Op.CMPLT: lambda x, y: x < y,
    Op.CMPLE: lambda x, y: x <= y,
}

BOOLS: dict[Op, Callable[..., Any]] = {
    Op.NOT: lambda x: np.bool_(not x),
    Op.AND: lambda x, y: np.bool_(x and y),
    Op.OR: lambda x, y: np.bool_(x or y),
    Op.XOR: lambda x, y: np.bool_(x != y),
    Op.ADD: lambda x, y: np.bool_(x or y),
    Op.MUL: lambda x, y: np.bool_(x and y),
    Op.MAX: lambda x, y: np.bool_(x or y),
    Op.MIN: lambda x, y: np.bool_(x and y),
    Op.IS_FINITE: lambda x: np.bool_(True),
}


def wrap(value: int, dtype: Any) -> Any:
    """An integer reduced modulo 2**width into the dtype."""
    width = dtypes.bit_width(dtype)
    value &= (1 << width) - 1
    if dtypes.is_signed(dtype) and value >> (width - 1):
        value -= 1 << width
    return np.array(value, np.int64 if value < 1 << 63 else np.uint64).astype(dtype)[()]


def truncating_div(x: int, y: int) -> int:
    """x / y towards zero; -1 for y = 0."""
    if y == 0:
        return -1
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def _shift(op: Op, x: int, y: int, width: int) -> int:
    """Shifts by `width` or more, or by a negative count, are over-wide."""
    wide = not 0 <= y < width
    if op is Op.SHRA:  # the top bit is copied, of unsigned values as well
        x -= (x >> (width - 1) & 1) << width if x >= 0 else 0
        return (-1 if x < 0 else 0) if wide else x >> y
    if wide:
        return 0
    return x << y if op is Op.SHL else (x & ((1 << width) - 1)) >> y


INTEGERS: dict[Op, Callable[..., int]] = {
    Op.NEG: lambda x: -x,
    Op.ABS: abs,
    Op.SIGN: lambda x: (x > 0) - (x < 0),
    Op.NOT: lambda x: ~x,
    Op.ADD: lambda x, y: x + y,
    Op.SUB: lambda x, y: x - y,
    Op.MUL: lambda x, y: x * y,
    Op.DIV: truncating_div,
    Op.REM: lambda x, y: x if y == 0 else x - y * truncating_div(x, y),
    Op.IDIV: lambda x, y: x // y,
    Op.MOD: lambda x, y: x % y,
    Op.MAX: max,
    Op.MIN: min,
    Op.AND: lambda x, y: x & y,
    Op.OR: lambda x, y: x | y,
    Op.XOR: lambda x, y: x ^ y,
}


def integer_op(op: Op, source: Any, dtype: Any, args: Sequence[Any]) -> Any:
    """Total integer semantics: everything wraps, nothing traps."""
    x, width = [int(a) for a in args], dtypes.bit_width(source)
    if op is Op.IS_FINITE:
        return np.bool_(True)
    if op in (Op.SHL, Op.SHRL, Op.SHRA):
        return wrap(_shift(op, x[0], x[1], width), dtype)
    if op is Op.POPCOUNT:
        return wrap((x[0] & ((1 << width) - 1)).bit_count(), dtype)
    if op is Op.CLZ:
        return wrap(width - (x[0] & ((1 << width) - 1)).bit_length(), dtype)
    return wrap(INTEGERS[op](*x), dtype)


def _sign(x: Any) -> Any:
    return x if x == 0 or x != x else np.copysign(x.dtype.type(1), x)


def _maximum(x: Any, y: Any) -> Any:
    """NaN wins, +0 is larger than -0."""
    if x == 0 and y == 0:
        return y if np.signbit(x) else x
    return np.maximum(x, y)


def _minimum(x: Any, y: Any) -> Any:
    if x == 0 and y == 0:
        return x if np.signbit(x) else y
    return np.minimum(x, y)


EXACT: dict[Op, Callable[..., Any]] = {
    Op.NEG: lambda x: -x,
    Op.ABS: np.abs,
    Op.SIGN: _sign,
    Op.FLOOR: np.floor,
    Op.CEIL: np.ceil,
    Op.ROUND: np.rint,
    Op.TRUNC: np.trunc,
    Op.SQRT: np.sqrt,
    Op.ADD: lambda x, y: x + y,
    Op.SUB: lambda x, y: x - y,
    Op.MUL: lambda x, y: x * y,
    Op.DIV: lambda x, y: x / y,
    Op.REM: np.fmod,
    Op.MAX: _maximum,
    Op.MIN: _minimum,
    Op.REAL: lambda x: x,
    Op.IMAG: lambda x: x.dtype.type(0),
    Op.CONJ: lambda x: x,
}


def _python(f: Callable[[float], float]) -> Callable[[Any], float]:
    """A function of `math` with NaN where it would raise."""

    def total(x: Any) -> float:
        try:
            return f(float(x))
        except (ValueError, OverflowError):
            return math.nan

    return total


def _lgamma(x: float) -> float:
    if math.isinf(x) or x > 1e305 or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _digamma(x: float) -> float:
    """Reflection, recurrence to x >= 10, then the asymptotic series (Abramowitz and Stegun 6.3)."""
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return x if x == math.inf else math.nan
    if x < 0:
        return _digamma(1 - x) - math.pi / math.tan(math.pi * x)
    result = 0.0
    while x < 10:
        result -= 1 / x
        x += 1
    y = 1 / (x * x)
    series = 0.0
    for c in (-691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12):
        series = y * (c + series)
    return result + math.log(x) - 0.5 / x - series


def _erfinv(x: float) -> float:
    """Giles' first guess, then Newton steps on erf or erfc."""
    if not -1 < x < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    if x == 0:
        return x
    w = -math.log1p(-x * x)
    guess = math.copysign(math.sqrt(w) if w > 5 else abs(x) * 0.886, x)
    for _ in range(60):
        slope = 2 / math.sqrt(math.pi) * math.exp(-guess * guess)
        error = math.erf(guess) - x
        if abs(x) >= 0.5:  # the same without cancellation
            error = math.copysign(1, x) * ((1 - abs(x)) - math.erfc(abs(guess)))
        step = error / slope
        guess -= step
        if abs(step) <= 1e-17 * abs(guess):
            break
    return guess


ROUNDED: dict[Op, Callable[..., Any]] = {
    Op.RSQRT: lambda x: 1 / np.sqrt(x),
    Op.CBRT: np.cbrt,
    Op.EXP: np.exp,
    Op.EXP2: np.exp2,
    Op.EXPM1: np.expm1,
    Op.LOG: np.log,
    Op.LOG2: np.log2,
    Op.LOG1P: np.log1p,
    Op.SIN: np.sin,
    Op.COS: np.cos,
    Op.TAN: np.tan,
    Op.ASIN: np.arcsin,
    Op.ACOS: np.arccos,
    Op.ATAN: np.arctan,
    Op.SINH: np.sinh,
    Op.COSH: np.cosh,
    Op.TANH: np.tanh,
    Op.ASINH: np.arcsinh,
    Op.ACOSH: np.arccosh,
    Op.ATANH: np.arctanh,
    Op.LOGISTIC: lambda x: 1 / (1 + np.exp(-x)),
    Op.ERF: _python(math.erf),
    Op.ERFC: _python(math.erfc),
    Op.ERFINV: _python(_erfinv),
    Op.LGAMMA: _python(_lgamma),
    Op.DIGAMMA: _python(_digamma),
    Op.POW: lambda x, y: np.power([x], [y])[0],  # of scalars, (-inf)**0.5 is NaN in NumPy
    Op.ATAN2: np.arctan2,
}


def float_op(op: Op, arg: Any, dtype: Any, args: Sequence[Any]) -> Any:
    """An op on float32 or float64 operands."""
    if op in EXACT:
        return EXACT[op](*args)
    if op is Op.REDUCE_PRECISION:
        return reduce_precision(args[0], *arg)
    if op is Op.FMA:
        if dtype == F32:
            return np.float32(np.longdouble(args[0]) * args[1] + args[2])
        return np.float64(math.fma(*args)) if hasattr(math, "fma") else _fma64(*args)
    return dtype.type(ROUNDED[op](*(np.float64(a) for a in args)))


def _fma64(x: Any, y: Any, z: Any) -> Any:
    from fractions import Fraction  # only Python before 3.13 needs it

    if not all(map(np.isfinite, (x, y, z))):
        return x * y + z
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    return np.float64(float(exact)) if exact else x * y + z


def _lexicographic(x: Any, y: Any, strict: bool) -> bool:
    if x.real != y.real:
        return bool(x.real < y.real)
    return bool(x.imag < y.imag if strict else x.imag <= y.imag)


def _complex_sign(x: Any) -> Any:
    return x if x == 0 else x / np.abs(x)


def _complex_div(x: Any, y: Any) -> Any:
    """Quotient with C99's repair (G.5.1) of a result that is NaN in both parts."""
    q = x / y
    if q.real == q.real or q.imag == q.imag:
        return q
    a, b, c, d = x.real, x.imag, y.real, y.imag
    finite = [np.isfinite(v) for v in (a, b, c, d)]

    def box(v: Any) -> Any:
        return np.copysign(1.0 if np.isinf(v) else 0.0, v)

    if c == 0 and d == 0 and (a == a or b == b):
        pole = np.copysign(np.inf, c)
        return np.complex128(complex(pole * a, pole * b))
    if (np.isinf(a) or np.isinf(b)) and finite[2] and finite[3]:
        a, b, factor = box(a), box(b), np.inf
    elif (np.isinf(c) or np.isinf(d)) and finite[0] and finite[1]:
        c, d, factor = box(c), box(d), 0.0
    else:
        return q
    return np.complex128(complex(factor * (a * c + b * d), factor * (b * c - a * d)))


COMPLEXES: dict[Op, Callable[..., Any]] = {
    Op.NEG: lambda x: -x,
    Op.ABS: np.abs,
    Op.SIGN: _complex_sign,
    Op.REAL: lambda x: x.real,
    Op.IMAG: lambda x: x.imag,
    Op.CONJ: np.conj,
    Op.SQRT: np.sqrt,
    Op.RSQRT: lambda x: 1 / np.sqrt(x),
    Op.EXP: np.exp,
    Op.EXP2: np.exp2,
    Op.EXPM1: np.expm1,
    Op.LOG: np.log,
    Op.LOG2: np.log2,
    Op.LOG1P: np.log1p,
    Op.SIN: np.sin,
    Op.COS: np.cos,
    Op.TAN: np.tan,
    Op.ASIN: np.arcsin,
    Op.ACOS: np.arccos,
    Op.ATAN: np.arctan,
    Op.SINH: np.sinh,
    Op.COSH: np.cosh,
    Op.TANH: np.tanh,
    Op.ASINH: np.arcsinh,
    Op.ACOSH: np.arccosh,
    Op.ATANH: np.arctanh,
    Op.LOGISTIC: lambda x: 1 / (1 + np.exp(-x)),
    Op.IS_FINITE: np.isfinite,
    Op.ADD: lambda x, y: x + y,
    Op.SUB: lambda x, y: x - y,
    Op.MUL: lambda x, y: x * y,
    Op.DIV: _complex_div,
    Op.POW: np.power,
    Op.ATAN2: lambda y, x: -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y)),
    Op.MAX: lambda x, y: x if _lexicographic(y, x, True) else y,
    Op.MIN: lambda x, y: x if _lexicographic(x, y, True) else y,
    Op.CMPEQ: lambda x, y: x == y,
    Op.CMPNE: lambda x, y: x != y,
    Op.CMPLT: lambda x, y: _lexicographic(x, y, True),
    Op.CMPLE: lambda x, y: _lexicographic(x, y, False),
}


def complex_op(op: Op, args: Sequence[Any]) -> Any:
    """An op on complex operands, computed in complex128 unless it only moves or compares."""
    exact = (Op.NEG, Op.REAL, Op.IMAG, Op.CONJ, Op.ADD, Op.SUB, Op.MAX, Op.MIN)
    if op in exact or op in COMPARES:
        return COMPLEXES[op](*args)
    return COMPLEXES[op](*(np.complex128(a) for a in args))


def reduce_precision(x: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """Round to field widths: ties to even, overflow to infinity, no subnormal results."""
    if dtypes.is_complex(x.dtype):
        parts = (reduce_precision(p, exponent_bits, mantissa_bits) for p in (x.real, x.imag))
        return x.dtype.type(complex(*parts))
    own = dtypes.finfo(x.dtype)
    if x != x or np.isinf(np.float64(x)):
        return x
    word = 8 * x.dtype.itemsize
    bits = np.dtype(f"u{x.dtype.itemsize}").type
    own_exponent = word - 1 - own.nmant
    raw = int(x.view(bits))
    sign, magnitude = raw >> (word - 1) << (word - 1), raw & ((1 << (word - 1)) - 1)
    drop = own.nmant - mantissa_bits
    if drop > 0:
        magnitude += (1 << (drop - 1)) - 1 + (magnitude >> drop & 1)
        magnitude = magnitude >> drop << drop
    if exponent_bits < own_exponent:
        bias, own_bias = (1 << (exponent_bits - 1)) - 1, (1 << (own_exponent - 1)) - 1
        exponent = magnitude >> own.nmant
        if exponent > own_bias + bias:
            magnitude = ((1 << own_exponent) - 1) << own.nmant
        elif exponent <= own_bias - bias:
            magnitude = 0
    return bits(sign | magnitude).view(x.dtype)


# --- conversions ---------------------------------------------------------------------------------


def convert(x: Any, dtype: Any) -> Any:
    """CAST: one rounding; to integers saturating with NaN -> 0; to bool it is x != 0."""
    source = x.dtype
    if source == dtype:
        return x
    if dtypes.is_complex(source) and not dtypes.is_complex(dtype):
        return convert(x.real, dtype)
    if dtypes.is_bool(dtype):
        return np.bool_((np.float32(x) if source.itemsize < 4 else x) != 0)
    if dtypes.is_integer(dtype):
        if dtypes.is_float(source):
            wide = np.float64(x)
            info = dtypes.iinfo(dtype)
            if wide != wide:
                return wrap(0, dtype)
            if np.isinf(wide):
                return wrap(int(info.max if wide > 0 else info.min), dtype)
            return wrap(min(max(int(wide), int(info.min)), int(info.max)), dtype)
        return wrap(int(x), dtype)
    if dtypes.is_float(dtype) and dtype not in (F32, F64):
        return narrow(np.float32(x), dtype)  # everything goes through float32
    if dtypes.is_complex(dtype) and source not in (F32, F64):
        x = np.float64(x) if dtypes.is_float(source) else x
    return np.asarray(x).astype(dtype)[()]


def narrow(x: Any, dtype: Any) -> Any:
    """float32 -> a narrower float, ties to even, as ml_dtypes does it but for the sign of a NaN."""
    assert isinstance(x, np.float32) and dtype.itemsize <= 2, (x, dtype)
    if x != x and dtypes.bit_width(dtype) < 8:  # formats without NaN: it becomes -0
        x = np.float32(np.nan)
    return np.asarray(x).astype(dtype)[()]
