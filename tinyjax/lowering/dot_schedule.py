"""Which nest a DOT gets: target facts, the schedule, the heuristic, the run-time parameters.

A `DotSchedule` has two kinds of entries. Compiled in: kind, swap, lanes, mr, nr, tail, edge,
unroll, packing, and whether K is split. Read at run time from the step's parameters (`dot_params`):
everything that depends on sizes, so one object serves every shape. Only kc and split_k change the
order of summation and neither depends on the number of threads; mc and nc only cut work into tasks.

Source of the blocking: Goto and van de Geijn 2008; BLIS (Van Zee and van de Geijn 2015).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.dims import Size, maximum
from tinyjax.lowering.dot_operands import Epilogue, Operand, transposed
from tinyjax.lowering.target import Target

Packing = Literal["none", "task", "step", "rows"]
Kind = Literal["outer", "inner"]
Edge = Literal["masked", "narrow"]


@dataclass(frozen=True, slots=True)
class DotTarget:
    """What the nest needs to know of a processor."""

    vector_bytes: int = 64
    registers: int = 32
    fma: bool = True
    half: bool = True  # converts float16 in hardware
    bf16_dot: bool = False  # sums of 2 products of bfloat16, 512 bits wide
    int16_dot: str = ""  # sums of 2 products of 16-bit integers: "madd", or "vnni" (with the add)
    int8_dot: bool = False  # sums of 4 products of unsigned and signed bytes, 512 bits wide
    l2_bytes: int = 1 << 20

    @property
    def masks(self) -> bool:
        """Predicated loads and stores of every element size."""
        return self.vector_bytes >= 64

    def lanes(self, accumulate: np.dtype) -> int:
        """Elements of the accumulator type in one register."""
        return self.vector_bytes // accumulate.itemsize


def dot_target(target: Target) -> DotTarget:
    """The facts about a target that matter here, with the dot instructions it has."""
    on = {word[1:] for word in target.features.split(",") if word.startswith("+")}
    x86, wide = "x86_64" in target.triple, target.vector_bytes == 64
    vnni = wide and "avx512vnni" in on
    return DotTarget(
        target.vector_bytes,
        target.registers,
        target.fma,
        target.half,
        bf16_dot=wide and "avx512bf16" in on,
        int16_dot="vnni" if vnni else "madd" if x86 else "",
        int8_dot=vnni,
    )


@dataclass(frozen=True, slots=True)
class DotSchedule:
    """How one DOT runs; `str()` is the printable list, `parse` its inverse.

    kind      outer: a tile of mr rows x nr columns, broadcast A times vectors of B;
              inner: the same tile, each element a vector of partial sums along K.
    swap      compute C^T = B^T A^T instead, so that mr, mc belong to columns of C.
    lanes     elements per vector.
    mr, nr    register tile, in elements.
    tail      height of the tile for the last rows of a matrix (divides mr). 0: there is none, the
              last whole tile begins earlier and overlaps the one before (of at least mr rows).
    edge      the last columns. masked: every tile has masks; narrow: whole tiles have none, what
              is left is done a (masked) vector at a time: more code, for small N or without masks.
    unroll    vectors along K per iteration of the inner kind, each with sums of its own.
    pack_a/b  none: operands are read where they lie; task: each task packs its block into its own
              scratch; step: a kernel of its own packs everything first; rows (A only): as task, but
              rows stay rows, which the tile reads like an A that lies in memory.
    mc, nc    rows and columns of a task's block, at most.
    kc        elements of K between visits to the partial sums; 0: sums stay in registers.
    split_k   elements of K per task; partial sums are added by a kernel of its own. 0: not split.
    group     consecutive k that one instruction multiplies and adds: 2 (bfloat16, 16-bit integers)
              or 4 (bytes). Packed elements are then words of 32 bits that hold a group.
    """

    kind: Kind
    swap: bool
    lanes: int
    mr: int
    nr: int
    tail: int
    edge: Edge
    unroll: int
    pack_a: Packing
    pack_b: Packing
    mc: int
    nc: int
    kc: int
    split_k: int = 0
    group: int = 1

    def __str__(self) -> str:
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    @staticmethod
    def parse(text: str) -> DotSchedule:
        """Read what `str` printed."""
        words = dict(word.split("=") for word in text.split())
        plain = {"True": True, "False": False}
        typed = {
            name: int(word) if word.isdigit() else plain.get(word, word)
            for name, word in words.items()
        }
        return DotSchedule(**typed)  # type: ignore[arg-type]

    @property
    def vectors(self) -> int:
        """Vectors across the tile."""
        return max(1, self.nr // self.lanes)


# ------------------------------------------------------------------------------------- parameters

BATCH, M, N, K, ROW_BLOCKS, COL_BLOCKS, K_BLOCK, K_SPLIT, SPLITS, CHUNK = range(10)
DOT_PARAMS = 12  # strides and whatever the callbacks need start here


def ceil_div(x: Any, y: int) -> Any:
    """x / y rounded up."""
    return -(-x // y)


def round_up(x: int, y: int) -> int:
    """The least multiple of y that is at least x."""
    return int(ceil_div(x, y)) * y


def k_align(schedule: DotSchedule) -> int:
    """Blocks of K start at multiples of this: a packing transpose writes `lanes` rows at once."""
    packs = (schedule.pack_a, schedule.pack_b) != ("none", "none")
    return schedule.lanes * schedule.group if packs else 1


def dot_params(schedule: DotSchedule, batch: int, m: int, n: int, k: int) -> tuple[int, ...]:
    """The first `DOT_PARAMS` int64 of a step's parameters; the caller's own follow."""
    if schedule.swap:
        m, n = n, m
    assert schedule.tail or not 0 < m < schedule.mr, f"{m} rows are less than a tile: {schedule}"
    panels, columns = ceil_div(m, schedule.mr), ceil_div(n, schedule.nr)
    align = k_align(schedule)
    part = min(k, schedule.split_k) if schedule.split_k else k
    part = round_up(max(part, 1), align)
    blocks = max(1, ceil_div(part, schedule.kc)) if schedule.kc else 1
    values = [0] * DOT_PARAMS
    values[BATCH], values[M], values[N], values[K] = batch, m, n, k
    values[ROW_BLOCKS] = ceil_div(panels, max(1, schedule.mc // schedule.mr))
    values[COL_BLOCKS] = ceil_div(columns, max(1, schedule.nc // schedule.nr))
    values[K_BLOCK] = round_up(ceil_div(part, blocks), align)
    values[K_SPLIT] = part
    values[SPLITS] = ceil_div(k, part) if schedule.split_k else 1
    tasks = batch * values[SPLITS] * values[ROW_BLOCKS] * values[COL_BLOCKS]
    scratch = schedule.kc or schedule.pack_a in ("task", "rows") or schedule.pack_b == "task"
    values[CHUNK] = max(1, ceil_div(tasks, MOST_CHUNKS)) if scratch else 1
    return tuple(values)


def run_params(
    schedule: DotSchedule, params: Sequence[int], sizes: Mapping[int, Size]
) -> list[Size]:
    """`dot_params` for a run with these sizes (by BATCH, M, N, K), where they count tasks.

    `params` are those of the largest sizes, whose blocks of K are kept.
    """
    values: list[Size] = list(params)
    turned = {M: N, N: M} if schedule.swap else {}
    for i, size in sizes.items():
        values[turned.get(i, i)] = size
    panels, columns = ceil_div(values[M], schedule.mr), ceil_div(values[N], schedule.nr)
    values[ROW_BLOCKS] = ceil_div(panels, max(1, schedule.mc // schedule.mr))
    values[COL_BLOCKS] = ceil_div(columns, max(1, schedule.nc // schedule.nr))
    if schedule.split_k:
        values[SPLITS] = maximum(ceil_div(values[K], values[K_SPLIT]), 1)
    return values


MOST_CHUNKS = 48
"""Chunks of tasks with scratch of their own: what they hold stays small and is used again, warm."""


def row_stride(schedule: DotSchedule, k_block: int) -> int:
    """Units from row to row of an A packed as rows: a line more, so that rows share no cache set."""
    return k_block // schedule.group + schedule.lanes


# -------------------------------------------------------------------------------------- heuristic

SKINNY = 4  # rows (or columns) up to which a long operand is only streamed, never packed
STRIP = 8  # vectors across the tile of one row: enough chains to hide the latency of an FMA
# From memory, B is read STREAMED_ROWS at a time over its whole width and the tasks divide K:
# 26 GB/s; 16 rows 21, cutting the columns into 1024s 19, whole columns of one strip 6.
STREAMED_STRIP, STREAMED_ROWS, STREAMED_PARTS, STREAMED_LEAST = 4, 8, 16, 256
INNER_LIMIT, INNER_LEAST_K = 12, 64  # A B^T with this few rows: packing B costs as much as using it
INNER_SUMS, INNER_ROWS = 16, 8  # accumulators of an inner tile; streams one core prefetches well
K_BLOCK_BYTES = 2048  # kc: a panel of 4 packed vectors is 128 KiB, an eighth of L2
ROW_BLOCK, COLUMN_BLOCK = 96, 1024  # mc, nc
LEAST_ROWS = 24  # of a task: fewer would not repay reading B from a cache further away
# B is read in place if it is small or few rows use it: 115 against 110 GFLOP/s at 128x784x512, 99
# against 99 at 256x1024x1024; at 1024x1024x1024 98 against 105.
UNPACKED_B_BYTES, UNPACKED_ROWS = 1 << 20, 256
# A^T in place uses a few elements of each cache line, one line per k: 99 against 103 GFLOP/s at
# 1024x1024x1024, 100 against 106 at twice that; 107 against 106 at 384x512x1536.
TRANSPOSED_A_BYTES = 2 << 20
PACKED_BY_TASK_COLUMNS = 512  # a wider product would pack the same rows of A for several tasks
WORK_PER_TASK = 1 << 19  # multiply-adds: about 10 us, twice the cost of a parallel launch
STREAMED_PER_TASK = 1 << 16  # the same where every multiply-add costs a load from memory
TASKS_PER_THREAD = 3  # so that waiting for the last chunk costs at most a third of a share
SPLIT_TILES, SPLIT_MIN = 16, 4096  # K is split if there are this few tiles and K is that long
# A sum over far more than the result has rows or columns (a convolution's weight gradient) is split
# so that each task reads a part of the operands once; the partial results stay below DEEP_BYTES.
DEEP, DEEP_PARTS, DEEP_BYTES = 16, 32, 8 << 20
PACKED_BYTES = 32 << 20  # a computed B above this is packed by tasks, again for each block of rows
COMPUTED_ROWS, COMPUTED_COLUMNS = 576, 4  # and these are its blocks: rows, panels of columns

# Register tiles by vectors across: (rows, rows at the bottom edge). Measured on Zen 4, 1024^3:
# 6 x 4 vectors 109 GFLOP/s, 8 x 3 and 12 x 2 107; with A read in place 6 x 4 wins by more.
TILES = {1: (12, 4), 2: (12, 4), 3: (8, 4), 4: (6, 2)}
SIGNED_BYTES_TILE = (5, 1)
GROUP_LEAST_K = 16  # below, packing and padding cost more than they save
TILES_16_REGISTERS = {1: (6, 2), 2: (6, 2)}


def choose_schedule(
    target: DotTarget,
    accumulate: np.dtype,
    a: Operand,
    b: Operand,
    out: Epilogue,
    *,
    batch: int,
    m: int,
    n: int,
    k: int,
    threads: int = 8,
    varying: Collection[int] = (),
) -> DotSchedule:
    """The schedule for one shape, the largest where sizes are symbolic: `varying` of BATCH, M, N, K.

    `threads` (an upper bound will do) changes how the work is cut (mc, nc), never the order of
    summation.
    """
    along_k = (a.unit == "col", b.unit == "row")
    short = min(m, n)
    if short <= SKINNY:  # the shorter operand may be gathered
        inner = along_k[n > m]
    else:
        inner = short <= INNER_LIMIT and k >= INNER_LEAST_K and all(along_k)
    if inner:
        swap = n > m
    elif short <= SKINNY:
        swap = n < m or (n == m and b.unit != "col")
    elif a.runs and a.unit == "row":  # runs across K are to be B
        swap = not (b.runs and b.unit == "col" and n >= m)
    elif b.computed and b.unit == "row":  # rows along K are to be A
        swap = not (a.computed and a.unit == "col" and m >= n)
    else:
        swap = out.axis == "row"
    if swap:
        a, b, m, n = transposed(b), transposed(a), n, m
    tails = (N if swap else M) in varying
    if inner:
        schedule = _inner(target, accumulate, m, n)
    elif m <= SKINNY and b.unit == "col":
        schedule = _skinny(target, accumulate, m, n, k, tails)
    else:
        schedule = _packed(target, accumulate, a, b, m, n, k, tails)
    if schedule.pack_b == "task" and b.computed and k >= DEEP * max(m, n):
        parts = min(DEEP_PARTS, DEEP_BYTES // (batch * m * n * accumulate.itemsize))
        if parts > 1:
            split = round_up(max(SPLIT_MIN, ceil_div(k, parts)), k_align(schedule))
            schedule = replace(schedule, split_k=split)
    tiles = batch * ceil_div(m, schedule.mr) * ceil_div(n, schedule.nr)
    if k >= SPLIT_MIN and 0 < tiles <= SPLIT_TILES and not schedule.split_k:
        streamed = schedule.pack_b == "none"
        split = STREAMED_PER_TASK // (schedule.mr * schedule.nr) if streamed else SPLIT_MIN
        schedule = replace(schedule, split_k=max(SPLIT_MIN // 2, split))
    return _cut(replace(schedule, swap=swap), batch, m, n, k, threads)


def _inner(target: DotTarget, accumulate: np.dtype, m: int, n: int) -> DotSchedule:
    """Few columns, rows contiguous along K: no packing, vectors along K."""
    lanes = target.lanes(accumulate)
    nr = min(max(n, 1), SKINNY)
    sums = min(INNER_SUMS, target.registers // 2)
    mr = min(INNER_ROWS, max(1, sums // nr), m)
    mr = 1 << max(mr, 1).bit_length() - 1
    unroll = max(1, INNER_ROWS // (mr * nr))
    return DotSchedule(
        "inner", False, lanes, mr, nr, 1, "narrow", unroll, "none", "none", ROW_BLOCK, 1 << 30, 0
    )


def _skinny(
    target: DotTarget, accumulate: np.dtype, m: int, n: int, k: int, tails: bool
) -> DotSchedule:
    """Few rows, B contiguous along columns: B is streamed once, in place."""
    lanes, mr = target.lanes(accumulate), max(m, 1)
    streamed = n * k * accumulate.itemsize > target.l2_bytes
    most = STREAMED_STRIP if streamed else STRIP
    vectors = max(1, min(most, ceil_div(n, lanes), (target.registers - 4) // (2 * mr)))
    kc = STREAMED_ROWS if streamed else 0
    split = round_up(max(ceil_div(k, STREAMED_PARTS), STREAMED_LEAST), kc) if streamed else 0
    return DotSchedule(
        "outer", False, lanes, mr, vectors * lanes, int(tails), "narrow", 1, "none", "none",
        mr, round_up(max(n, 1), vectors * lanes), kc, split,
    )  # fmt: skip


def _packed(
    target: DotTarget, accumulate: np.dtype, a: Operand, b: Operand, m: int, n: int, k: int,
    tails: bool,
) -> DotSchedule:  # fmt: skip
    """The general product; packing where an operand does not lie as the tile wants it."""
    lanes, size = target.lanes(accumulate), accumulate.itemsize
    tiles = TILES if target.registers >= 32 else TILES_16_REGISTERS
    vectors = min(max(tiles), ceil_div(max(n, 1), lanes))
    group = _group(target, accumulate, a, b, k) if m > SKINNY else 1
    mr, tail = tiles[vectors]
    if group == 4 and dtypes.is_signed(a.dtype) and dtypes.is_signed(b.dtype):
        mr, tail = SIGNED_BYTES_TILE  # one row less: its registers hold the correction
    if not tails:
        mr, tail = ceil_div(max(m, 1), ceil_div(max(m, 1), mr)), 0
    elif m < mr:
        mr = max(tail, round_up(m, tail))
    nr = vectors * lanes
    small = n * k * size <= UNPACKED_B_BYTES
    mc, nc = round_up(ROW_BLOCK, mr), COLUMN_BLOCK
    pack_b: Packing = "step"
    if b.unit == "col" and (m <= mr or (b.cheap and (small or m <= UNPACKED_ROWS))):
        pack_b = "none"
    elif small and not b.shared and m <= 2 * ROW_BLOCK:
        pack_b = "task"
        mc, nc = round_up(max(m, 1), mr), round_up(max(n, 1), nr)
    elif b.computed and (m <= 2 * ROW_BLOCK or n * k * size > PACKED_BYTES):
        pack_b = "task"
        mc, nc = min(round_up(m, mr), round_up(COMPUTED_ROWS, mr)), COMPUTED_COLUMNS * nr
    pack_a: Packing = "none"
    wide = n > PACKED_BY_TASK_COLUMNS and m * k * size > TRANSPOSED_A_BYTES
    if a.unit == "row" and wide and not (pack_b == "task" and mc >= m and a.cheap):
        pack_a = "step"
    elif a.unit == "col" and (group > 1 or not a.cheap):
        pack_a = "rows"
    elif group > 1 or not a.cheap:
        pack_a = "task" if n <= PACKED_BY_TASK_COLUMNS else "step"
    if group > 1 and pack_b == "none":
        pack_b = "step"
    kc = K_BLOCK_BYTES * group // size
    if k <= (2 * kc if pack_a == "rows" else kc) or (pack_a == "none" and pack_b == "none"):
        kc = 0
    wasteful = 0 < n % nr <= nr - lanes and n < 8 * nr
    edge: Edge = "narrow" if wasteful or not target.masks else "masked"
    return DotSchedule(
        "outer", False, lanes, mr, nr, tail, edge, 1, pack_a, pack_b, mc, nc, kc, 0, group
    )


def _group(target: DotTarget, accumulate: np.dtype, a: Operand, b: Operand, k: int) -> int:
    """How many products the target adds at once for these dtypes."""
    kinds = (a.dtype, b.dtype)
    if k < GROUP_LEAST_K:
        return 1
    if accumulate == np.float32:
        return 2 if target.bf16_dot and all(d.name == "bfloat16" for d in kinds) else 1
    if accumulate != np.int32 or not all(d.name in ("int8", "uint8", "int16") for d in kinds):
        return 1
    signed = sum(d.name == "int8" for d in kinds)
    if target.int8_dot and signed and signed + sum(d.name == "uint8" for d in kinds) == 2:
        return 4
    return 2 if target.int16_dot else 1


def _cut(schedule: DotSchedule, batch: int, m: int, n: int, k: int, threads: int) -> DotSchedule:
    """Shrink nc, then mc, until every thread finds `TASKS_PER_THREAD` tasks of worthwhile size."""
    streamed = schedule.kind == "inner" or m <= SKINNY
    least = STREAMED_PER_TASK if streamed else WORK_PER_TASK
    wanted = min(TASKS_PER_THREAD * threads, batch * m * n * k // least)

    def tasks(mc: int, nc: int) -> int:
        blocks = int(ceil_div(max(m, 1), mc) * ceil_div(max(n, 1), nc))
        splits = ceil_div(max(k, 1), schedule.split_k) if schedule.split_k else 1
        return max(batch, 1) * blocks * int(splits)

    mr, nr = schedule.mr, schedule.nr
    mc = min(schedule.mc, round_up(max(m, 1), mr))
    nc = min(schedule.nc, round_up(max(n, 1), nr))
    smallest = nr if streamed or schedule.pack_b == "task" else 8 * nr
    if streamed and schedule.kc:
        smallest = nc
    while tasks(mc, nc) < wanted and nc > smallest:
        nc = max(smallest, round_up(nc // 2, nr))
    least_rows = mr if streamed else round_up(min(mc, LEAST_ROWS), mr)
    while tasks(mc, nc) < wanted and mc > least_rows:
        mc = max(least_rows, round_up(mc // 2, mr))
    return replace(schedule, mc=mc, nc=nc)
