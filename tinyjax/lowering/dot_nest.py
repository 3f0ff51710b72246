"""The loops of a DOT around its register tile, the partial sums, the epilogue.

One kernel computes blocks of C. A task is (batch, split of K, block of columns, block of rows),
rows fastest. Within a task: for each block of K, pack what the schedule says, then for each panel
of nr columns and each panel of mr rows run the register tile. Sums that are visited more than once
wait in the accumulator type, padded, as [row panel][column panel][mr][nr]: in scratch, for the
task's block; if K is split, one behind the other for all splits and batches.

Task scratch is addressed by the first task of the chunk being run: chunks are disjoint, so threads
never meet, and the scratch stays warm from one task of a chunk to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tinyjax.lowering.dot_frame import Kernel, Nest, open_side
from tinyjax.lowering.dot_operands import (
    Store,
)
from tinyjax.lowering.dot_pack import copier, row_copier
from tinyjax.lowering.dot_schedule import (
    CHUNK,
    COL_BLOCKS,
    K_BLOCK,
    K_SPLIT,
    ROW_BLOCKS,
    SPLITS,
    row_stride,
)
from tinyjax.lowering.dot_tile import (
    Block,
    Place,
    Rows,
    Tile,
    inner_tile,
    outer_tile,
    source_a,
    source_b,
    source_rows,
)
from tinyjax.lowering.irtext import (
    I1,
    I64,
    Value,
    const,
    vec,
    zero,
)

STREAMED_TILE = 8  # vectors: such tiles are finished in registers even if sums are visited often


class Finish:
    """The function that takes a tile from its buffer to where it belongs.

    It adds what earlier blocks of K left at `sums`, then leaves the total there or stores it by the
    epilogue, which is written once, in a loop over rows and, if it is long, vectors.
    """

    def __init__(
        self, main: Kernel, blocked: bool, split: bool, inline: bool, width: int, ragged: bool
    ) -> None:
        nest = main.nest
        names = ("sums", "batch", "row", "col", "skip", "height", "left", "first", "last")
        array = nest.schedule.mr * nest.schedule.nr * nest.acc.nbytes
        suffix = f"_finish{width}_edge" if ragged else f"_finish{width}"
        self.kernel = kernel = Kernel(nest, suffix, main, names, array)
        b, acc, schedule = kernel.b, nest.acc, nest.schedule
        sums, batch, row, col, skip, height, left, first, last, tile = kernel.extra
        lanes = schedule.lanes if schedule.kind == "outer" else 1
        wide = vec(acc, lanes)
        store = None if split else nest.out.open(b, kernel.slots, kernel.params)
        partial = kernel.workspace(nest.partial_slot) if blocked else tile

        def vector(down: Value, across: Value) -> None:
            at = b.add(b.mul(down, schedule.nr), across)
            x = b.load(wide, b.gep(acc, tile, at), align=wide.nbytes)
            place = b.gep(acc, partial, b.add(sums, at))
            if blocked:
                with b.if_(b.cmp("ne", first, 0)) as branch:
                    pass
                with branch.otherwise():
                    added = b.add(b.load(wide, place, align=wide.nbytes), x)
                x = branch.join(x, added)

            def emit(x: Value) -> None:
                assert store is not None
                mask = None
                if ragged:
                    mask = b.first_lanes(b.sub(left, across), lanes)
                store(b, batch, b.add(row, down), b.add(col, across), x, "col", mask)

            if not blocked:
                emit(x)
            elif split:
                b.store(x, place, align=wide.nbytes)
            else:
                with b.if_(b.cmp("ne", last, 0)) as branch:
                    emit(x)
                with branch.otherwise():
                    b.store(x, place, align=wide.nbytes)

        with b.loop(skip, height) as down:
            if inline and not blocked:
                for at in range(0, width, lanes):
                    vector(down.index, const(I64, at))
            else:
                with b.loop(0, width, lanes) as across:
                    vector(down.index, across.index)
        b.ret()


class _Main:
    """The kernel that computes C, or its partial sums when K is split."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.kernel = kernel = Kernel(nest, "")
        self.b = b = kernel.b
        self.schedule = schedule = nest.schedule
        self.a, self.bs = open_side(kernel, True), open_side(kernel, False)
        self.split = schedule.split_k > 0
        self.store: Store | None = None
        if not self.split:
            self.store = nest.out.open(b, kernel.slots, kernel.params)
        self.row_blocks, self.col_blocks = kernel.size(ROW_BLOCKS), kernel.size(COL_BLOCKS)
        self.a_base = None if schedule.pack_a == "none" else kernel.workspace(nest.a_slot)
        self.b_base = None if schedule.pack_b == "none" else kernel.workspace(nest.b_slot)
        self.partial = kernel.workspace(nest.partial_slot) if self.blocked else None
        self.inline = nest.out.inline and not self.split
        self.vector = schedule.lanes if schedule.kind == "outer" else 1
        # Where a tile overlaps the one before, what is stored twice must be repeatable.
        self.once = kernel.overlaps and not nest.out.repeatable
        small = schedule.mr * schedule.nr <= STREAMED_TILE * self.vector
        self.direct = self.inline and not self.blocked and (small or not self.once)
        self.copiers: dict[bool, Kernel] = {}
        self.rows_copier: Kernel | None = None
        self.a_rows: Rows | None = None
        self.a_panel: Callable[[Value], Value] | None = None  # address of a packed panel
        self.b_panel: Callable[[Value], Value] | None = None
        self.buffer: Value | None = None
        self.finishers: dict[tuple[int, bool], Finish] = {}
        if not self.direct:
            self.buffer = b.alloca(nest.acc, schedule.mr * schedule.nr)

    @property
    def blocked(self) -> bool:
        """Whether sums may be visited more than once."""
        return self.split or self.schedule.kc > 0

    # -- what happens to a tile ------------------------------------------------------------

    def partial_at(self, block: Block, here: Place) -> Value:
        """Where the partial sums of a tile are."""
        b, kernel, schedule = self.b, self.kernel, self.schedule
        within = b.add(b.mul(here.row_offset, schedule.nr), here.offset)
        size = schedule.mr * schedule.nr
        if self.split:
            at = b.add(b.mul(block.split, kernel.batch), block.batch)
            at = b.add(b.mul(at, kernel.panels), here.row_panel)
            at = b.add(b.mul(at, kernel.columns), here.panel)
        else:  # of this task's block only, in the scratch of its chunk
            rows, columns = self.largest()
            at = b.mul(b.udiv(kernel.lo, kernel.size(CHUNK)), b.mul(rows, columns))
            at = b.add(at, b.mul(b.sub(here.row_panel, block.rows), columns))
            at = b.add(at, b.sub(here.panel, block.columns))
        return b.add(b.mul(at, size), within)

    def largest(self) -> tuple[Value, Value]:
        """Panels of rows and of columns in the largest block of C."""
        b, kernel = self.b, self.kernel
        rows = b.udiv(b.add(kernel.panels, b.sub(self.row_blocks, 1)), self.row_blocks)
        columns = b.udiv(b.add(kernel.columns, b.sub(self.col_blocks, 1)), self.col_blocks)
        return rows, columns

    def tile_buffer(self) -> Value:
        """Stack memory of one register tile."""
        assert self.buffer is not None, "this schedule needs no tile buffer"
        return self.buffer

    def keep(self, tile: Tile) -> None:
        """Put the tile into its buffer, rows `nr` elements apart."""
        b, nr = self.b, self.schedule.nr
        for i, row in enumerate(tile):
            for v, x in enumerate(row):
                at = i * nr + v * x.type.width
                b.store(x, b.gep(self.nest.acc, self.tile_buffer(), at), align=x.type.nbytes)

    def visit(self, block: Block, here: Place, height: Value) -> None:
        """Finish the buffered tile, as far as row `height` of it: see `Finish`."""
        b, sums = self.b, const(I64, 0)
        if self.blocked:
            sums = self.partial_at(block, here)
        state = [b.cast(x, I64, signed=False) for x in (block.first, block.last)]
        which = (here.width, here.ragged)
        if which not in self.finishers:
            self.finishers[which] = Finish(
                self.kernel, self.blocked, self.split, self.inline, *which
            )
        self.finishers[which].kernel.call(
            self.kernel,
            [sums, block.batch, here.row, here.col, here.skip, height, here.left, *state,
             self.tile_buffer()],
        )  # fmt: skip

    def finish(self, block: Block, tile: Tile, here: Place, rows: list[Value], full: bool) -> None:
        """Store a tile that is complete at once, or leave it to `visit`."""
        b = self.b
        height = const(I64, len(tile))
        if not full:
            height = b.smin(b.sub(self.kernel.m, here.row), height)
        small = len(tile) * len(tile[0]) <= STREAMED_TILE
        if self.direct:
            self.store_tile(block, tile, here, rows, full)
        elif small and self.blocked and (self.inline or self.split):
            self.accumulate(block, tile, here, rows, full)
        else:
            self.keep(tile)
            self.visit(block, here, height)

    def accumulate(
        self, block: Block, tile: Tile, here: Place, rows: list[Value], full: bool
    ) -> None:
        """`visit` in registers, for tiles that are visited after a few elements of K."""
        b, acc, nr = self.b, self.nest.acc, self.schedule.nr
        assert self.partial is not None
        at = self.partial_at(block, here)
        base = b.gep(acc, self.partial, at)
        places = [
            [b.gep(acc, base, i * nr + v * x.type.width) for v, x in enumerate(row)]
            for i, row in enumerate(tile)
        ]
        with b.if_(block.first) as branch:
            pass
        with branch.otherwise():
            sums = [
                [b.add(b.load(x.type, places[i][v], align=x.type.nbytes), x) for v, x in row]
                for i, row in enumerate(map(enumerate, tile))
            ]
        joined = [
            [branch.join(x, total) for x, total in zip(*pair, strict=True)]
            for pair in zip(tile, sums, strict=True)
        ]

        def leave() -> None:
            for place, row in zip(places, joined, strict=True):
                for at, x in zip(place, row, strict=True):
                    b.store(x, at, align=x.type.nbytes)

        if self.split:
            leave()
            return
        with b.if_(block.last) as branch:
            self.store_tile(block, joined, here, rows, full)
        with branch.otherwise():
            leave()

    def store_tile(
        self, block: Block, tile: Tile, here: Place, rows: list[Value], full: bool
    ) -> None:
        """The epilogue straight from registers."""
        if self.schedule.kind == "inner":
            return self.store_scalars(block, tile, here, rows)
        b = self.b
        for i, row in enumerate(tile):
            if self.once and i < len(tile) - 1:
                due = b.cmp("sle", here.skip, i)
            elif not full and i > 0:
                due = b.cmp("slt", rows[i], self.kernel.m)
            else:
                self.store_row(block, rows[i], row, here)
                continue
            with b.if_(due):
                self.store_row(block, rows[i], row, here)
        return None

    def store_row(self, block: Block, row: Value, values: list[Value], here: Place) -> None:
        """One row of a tile; vectors that may reach past the edge are masked."""
        b, lanes = self.b, self.schedule.lanes
        assert self.store is not None
        for v, x in enumerate(values):
            mask = here.mask(b, v, lanes)
            self.store(b, block.batch, row, b.add(here.col, v * lanes), x, "col", mask)

    def store_scalars(self, block: Block, tile: Tile, here: Place, rows: list[Value]) -> None:
        """A tile of scalars, as vectors along the rows where that is the cheap axis."""
        b, store = self.b, self.store
        assert store is not None
        if self.nest.out.axis == "row" and len(rows) & (len(rows) - 1) == 0:
            for j in range(len(tile[0])):
                x = b.pack([row[j] for row in tile])
                store(b, block.batch, rows[0], b.add(here.col, j), x, "row", None)
            return
        for i, values in enumerate(tile):
            for j, x in enumerate(values):
                store(b, block.batch, rows[i], b.add(here.col, j), x, "col", None)

    # -- the loops ---------------------------------------------------------------------------

    def emit(self) -> str:
        """The whole kernel."""
        b, kernel = self.b, self.kernel

        def tasks() -> Value:
            blocks = b.mul(self.row_blocks, self.col_blocks)
            return b.mul(b.mul(kernel.batch, kernel.size(SPLITS)), blocks)

        kernel.run_only(tasks)
        with b.loop(kernel.lo, kernel.hi) as task:
            rest, row_block = self.divide(task.index, self.row_blocks)
            rest, col_block = self.divide(rest, self.col_blocks)
            batch, split = rest, const(I64, 0)
            k_start, k_end = const(I64, 0), kernel.k
            if self.split:
                batch, split = self.divide(rest, kernel.size(SPLITS))
                k_start = b.mul(split, kernel.size(K_SPLIT))
                k_end = b.smin(b.add(k_start, kernel.size(K_SPLIT)), kernel.k)
            rows = self.share(row_block, self.row_blocks, kernel.panels)
            columns = self.share(col_block, self.col_blocks, kernel.columns)
            if not self.blocked:
                always = const(I1, True)
                count = b.sub(k_end, k_start)
                block = Block(batch, k_start, count, always, always, split, rows[0], columns[0])
                self.pack(block, rows, columns)
                self.panels(block, rows, columns)
            else:
                # K = 0 still visits every tile once: the epilogue of zero is due.
                end = b.smax(k_end, b.add(k_start, 1))
                with b.loop(k_start, end, kernel.size(K_BLOCK), nonempty=True) as loop:
                    k0 = loop.index
                    after = b.add(k0, kernel.size(K_BLOCK))
                    block = Block(
                        batch,
                        k0,
                        b.sub(b.smin(after, k_end), k0),
                        b.cmp("eq", k0, k_start),
                        b.cmp("sge", after, k_end),
                        split,
                        rows[0],
                        columns[0],
                    )
                    self.pack(block, rows, columns)
                    self.panels(block, rows, columns)
        b.ret()
        return kernel.text()

    def divide(self, x: Value, y: Value) -> tuple[Value, Value]:
        """Quotient and remainder."""
        quotient = self.b.udiv(x, y)
        return quotient, self.b.sub(x, self.b.mul(quotient, y))

    def share(self, index: Value, parts: Value, total: Value) -> tuple[Value, Value]:
        """The `index`-th of `parts` nearly equal ranges of `total`."""
        b = self.b
        start = b.udiv(b.mul(index, total), parts)
        return start, b.udiv(b.mul(b.add(index, 1), total), parts)

    def scratch(self, largest: Value, panel: Value) -> Value:
        """Where this chunk's task scratch starts: room for the largest block, `panel` units each."""
        b = self.b
        number = b.udiv(self.kernel.lo, self.kernel.size(CHUNK))
        return b.mul(number, b.mul(largest, panel))

    def pack(self, block: Block, rows: tuple[Value, Value], columns: tuple[Value, Value]) -> None:
        """Pack the block's panels into task scratch, where the schedule says so."""
        b, kernel, schedule = self.b, self.kernel, self.schedule
        unit = self.nest.unit
        for side, how, base in (
            (self.a, schedule.pack_a, self.a_base),
            (self.bs, schedule.pack_b, self.b_base),
        ):
            if how == "none":
                continue
            assert base is not None
            first, end = rows if side.is_a else columns
            total = kernel.panels if side.is_a else kernel.columns
            if how == "rows":
                self.copy_rows(block, base, first, end)
                continue
            if how == "task":
                stride = b.mul(kernel.units(kernel.size(K_BLOCK)), side.tile)
                offset = self.scratch(self.largest()[0 if side.is_a else 1], stride)
                region = b.gep(unit, base, offset)
                copy = self.copiers.get(side.is_a)
                if copy is None:
                    copy = self.copiers[side.is_a] = copier(kernel, side.is_a)
                with b.loop(first, end) as loop:
                    into = b.add(offset, b.mul(b.sub(loop.index, first), stride))
                    mn = b.mul(loop.index, side.tile)
                    if side.is_a:
                        mn = kernel.panel_rows(loop.index)[0]
                    copy.call(kernel, [block.batch, mn, block.k0, block.count, into])
                origin = first
            else:
                stride = b.mul(kernel.k_rows, side.tile)
                region = b.gep(unit, base, b.mul(kernel.units(block.k0), side.tile))
                origin = const(I64, 0)
                if not side.operand.shared:
                    origin = b.neg(b.mul(block.batch, total))

            def panel(
                index: Value, region: Value = region, stride: Value = stride, origin: Value = origin
            ) -> Value:
                return b.gep(unit, region, b.mul(b.sub(index, origin), stride))

            if side.is_a:
                self.a_panel = panel
            else:
                self.b_panel = panel

    def copy_rows(self, block: Block, base: Value, first: Value, end: Value) -> None:
        """Copy the block's rows of A into task scratch; `a_rows` then reads them."""
        b, kernel, schedule = self.b, self.kernel, self.schedule
        stride = b.add(kernel.units(kernel.size(K_BLOCK)), row_stride(schedule, 0))
        offset = self.scratch(self.largest()[0], b.mul(stride, schedule.mr))
        row = kernel.panel_rows(first)[0]
        rows = b.sub(b.smin(b.mul(end, schedule.mr), kernel.m), row)
        if self.rows_copier is None:
            self.rows_copier = row_copier(kernel)
        self.rows_copier.call(
            kernel, [block.batch, row, rows, block.k0, block.count, stride, offset]
        )
        self.a_rows = Rows(b.gep(self.nest.unit, base, offset), row, stride)

    def panels(self, block: Block, rows: tuple[Value, Value], columns: tuple[Value, Value]) -> None:
        """All tiles of a block of C for one block of K."""
        b, schedule = self.b, self.schedule
        step, nr = self.vector, schedule.nr
        with b.loop(columns[0], columns[1]) as loop:
            col = b.mul(loop.index, nr)
            left = b.sub(self.kernel.n, col)

            def strip(width: int, offset: Value, ragged: bool) -> None:
                place = Place(
                    loop.index, offset, b.add(col, offset), b.sub(left, offset), width, ragged
                )
                self.down(block, rows, place)

            start = const(I64, 0)
            if schedule.edge == "masked":
                strip(nr, start, True)
                return
            with b.if_(b.cmp("sge", left, nr)) as branch:
                strip(nr, start, False)
            with branch.otherwise(), b.loop(0, b.smin(left, nr), step) as narrow:
                strip(step, narrow.index, step > 1)

    def down(self, block: Block, rows: tuple[Value, Value], here: Place) -> None:
        """The tiles of one strip of columns: mr rows at a time, then the last `tail` by `tail`."""
        b, kernel, mr = self.b, self.kernel, self.schedule.mr
        full = kernel.panels if kernel.overlaps else b.udiv(kernel.m, mr)
        with b.loop(rows[0], b.smin(rows[1], full)) as loop:
            row, skip, _ = kernel.panel_rows(loop.index)
            self.tile(block, replace(here, row=row, row_panel=loop.index, skip=skip), mr, True)
        if mr > 1 and not kernel.overlaps:  # only the block of the last panel has rows left
            start = b.mul(b.smax(rows[0], full), mr)
            end = b.smin(b.mul(rows[1], mr), kernel.m)
            with b.loop(start, end, self.schedule.tail) as loop:
                panel = b.udiv(loop.index, mr)
                inside = b.sub(loop.index, b.mul(panel, mr))
                there = replace(here, row=loop.index, row_panel=panel, row_offset=inside)
                self.tile(block, there, self.schedule.tail, False)

    def tile(self, block: Block, here: Place, height: int, full: bool) -> None:
        """One register tile."""
        b, kernel, unit = self.b, self.kernel, self.nest.unit
        rows = [b.add(here.row, i) for i in range(height)]
        read = rows if full else [b.smin(r, b.sub(kernel.m, 1)) for r in rows]
        if self.schedule.kind == "inner":
            cols = [b.add(here.col, j) for j in range(here.width)]
            values = inner_tile(kernel, block, self.a, self.bs, read, cols)
        else:
            at_a = at_b = None
            if self.a_panel is not None:
                at_a = b.gep(unit, self.a_panel(here.row_panel), here.row_offset)
            if self.b_panel is not None:
                at_b = b.gep(unit, self.b_panel(here.panel), here.offset)
            if self.a_rows is None:
                left = source_a(kernel, block, self.a, at_a, read, full)
            else:
                left = source_rows(kernel, self.a_rows, read, full)
            right = source_b(kernel, block, self.bs, at_b, here)
            vectors = here.width // self.schedule.lanes
            values = outer_tile(kernel, block, left, right, height, vectors)
        self.finish(block, values, here, rows, full)


def emit_main(nest: Nest) -> str:
    """The kernel over blocks of C."""
    return _Main(nest).emit()


def emit_reduce(nest: Nest) -> str:
    """Add the partial sums of every split in order, then the epilogue; a task is a row panel."""
    kernel = Kernel(nest, "_sum")
    b, schedule, acc = kernel.b, nest.schedule, nest.acc
    store = nest.out.open(b, kernel.slots, kernel.params)
    partial, splits = kernel.workspace(nest.partial_slot), kernel.size(SPLITS)
    lanes = schedule.lanes if schedule.kind == "outer" else 1
    wide, size = vec(acc, lanes), schedule.mr * schedule.nr
    tiles = b.mul(kernel.panels, kernel.columns)
    stride = b.mul(b.mul(kernel.batch, tiles), size)
    kernel.run_only(lambda: b.mul(kernel.batch, kernel.panels))
    with b.loop(kernel.lo, kernel.hi) as task:
        batch = b.udiv(task.index, kernel.panels)
        first, skip, rows = kernel.panel_rows(b.urem(task.index, kernel.panels))
        tile_row = b.gep(acc, partial, b.mul(b.mul(task.index, kernel.columns), size))
        with b.loop(skip, rows) as row, b.loop(0, kernel.n, lanes) as col:
            panel = b.udiv(col.index, schedule.nr)
            inside = b.sub(col.index, b.mul(panel, schedule.nr))
            offset = b.add(b.mul(panel, size), b.add(b.mul(row.index, schedule.nr), inside))
            at = b.gep(acc, tile_row, offset)
            with b.loop(0, splits, carried=[zero(wide), at]) as loop:
                total, here = loop.carried
                loop.next(b.add(total, b.load(wide, here)), b.gep(acc, here, stride))
            mask = None if lanes == 1 else b.first_lanes(b.sub(kernel.n, col.index), lanes)
            store(b, batch, b.add(first, row.index), col.index, loop.results[0], "col", mask)
    b.ret()
    return kernel.text()
