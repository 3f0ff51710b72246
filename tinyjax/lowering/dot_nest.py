"""The loops of a DOT around its register tile, the partial sums, the epilogue.

One kernel computes blocks of C. A task is (batch, split of K, block of columns, block of rows),
rows fastest. Within a task: for each block of K, pack what the schedule says, then for each panel
of nr columns and each panel of mr rows run the register tile. Sums that are visited more than once
wait in the accumulator type, padded, as [split][batch][row panel][column panel][mr][nr].

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
from tinyjax.lowering.dot_pack import pack_panel
from tinyjax.lowering.dot_schedule import (
    COL_BLOCKS,
    K_BLOCK,
    K_SPLIT,
    ROW_BLOCKS,
    SPLITS,
)
from tinyjax.lowering.dot_tile import Block, Place, Tile, inner_tile, outer_tile, source_a, source_b
from tinyjax.lowering.irtext import (
    I1,
    I64,
    Value,
    const,
    vec,
    zero,
)

STREAMED_TILE = 8  # vectors: such tiles are finished in registers even if sums are visited often


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
        self.k_block, self.k_split = kernel.size(K_BLOCK), kernel.size(K_SPLIT)
        self.splits = kernel.size(SPLITS)
        self.a_base = None if schedule.pack_a == "none" else kernel.workspace(nest.a_slot)
        self.b_base = None if schedule.pack_b == "none" else kernel.workspace(nest.b_slot)
        self.partial = kernel.workspace(nest.partial_slot) if self.blocked else None
        self.inline = nest.out.inline and not self.split
        self.direct = self.inline and not self.blocked
        self.vector = schedule.lanes if schedule.kind == "outer" else 1
        self.a_panel: Callable[[Value], Value] | None = None  # address of a packed panel
        self.b_panel: Callable[[Value], Value] | None = None
        self.buffer: Value | None = None
        if not self.direct:
            self.buffer = b.alloca(nest.acc, schedule.mr * schedule.nr)

    @property
    def blocked(self) -> bool:
        """Whether sums may be visited more than once."""
        return self.split or self.schedule.kc > 0

    # -- what happens to a tile ------------------------------------------------------------

    def partial_at(self, block: Block, row: Value, panel: Value, offset: Value) -> Value:
        """Address of the partial sums of row `row`, column panel `panel`, from column `offset`."""
        b, kernel, schedule = self.b, self.kernel, self.schedule
        assert self.partial is not None
        at = block.batch
        if self.split:
            at = b.add(b.mul(block.split, kernel.batch), at)
        row_panel = b.udiv(row, schedule.mr)
        inside = b.sub(row, b.mul(row_panel, schedule.mr))
        at = b.add(b.mul(at, kernel.panels), row_panel)
        at = b.add(b.mul(at, kernel.columns), panel)
        within = b.add(b.mul(inside, schedule.nr), offset)
        flat = b.add(b.mul(at, schedule.mr * schedule.nr), within)
        return b.gep(self.nest.acc, self.partial, flat)

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
        """Finish `height` rows of the buffered tile: add what earlier blocks of K left, then store.

        The epilogue is written once, in a loop over rows and vectors.
        """
        b, acc = self.b, self.nest.acc
        wide = vec(acc, self.vector)
        with b.loop(0, height) as down, b.loop(0, here.width, self.vector) as across:
            at = b.add(b.mul(down.index, self.schedule.nr), across.index)
            x = b.load(wide, b.gep(acc, self.tile_buffer(), at), align=wide.nbytes)
            if not self.blocked:
                return self.emit_one(block, b.add(here.row, down.index), here, across.index, x)
            base = self.partial_at(block, here.row, here.panel, here.offset)
            place = b.gep(acc, base, at)
            with b.if_(block.first) as branch:
                pass
            with branch.otherwise():
                added = b.add(b.load(wide, place, align=wide.nbytes), x)
            x = branch.join(x, added)
            if self.split:
                return b.store(x, place, align=wide.nbytes)
            with b.if_(block.last) as branch:
                self.emit_one(block, b.add(here.row, down.index), here, across.index, x)
            with branch.otherwise():
                b.store(x, place, align=wide.nbytes)
        return None

    def emit_one(self, block: Block, row: Value, here: Place, inside: Value, x: Value) -> None:
        """The epilogue of one vector (or scalar) of the buffer."""
        b = self.b
        assert self.store is not None
        mask = b.first_lanes(b.sub(here.left, inside), self.vector) if here.ragged else None
        self.store(b, block.batch, row, b.add(here.col, inside), x, "col", mask)

    def finish(self, block: Block, tile: Tile, here: Place, rows: list[Value], full: bool) -> None:
        """Store a tile that is complete at once, or leave it to `visit`."""
        b = self.b
        height = const(I64, len(tile))
        if not full:
            height = b.smin(b.sub(self.kernel.m, here.row), height)
        small = len(tile) * len(tile[0]) <= STREAMED_TILE
        if self.direct:
            self.store_tile(block, tile, here, rows, full)
        elif small and (self.inline or self.split):
            self.accumulate(block, tile, here, rows, full)
        elif not self.inline:
            self.keep(tile)
            self.visit(block, here, height)
        else:
            with b.if_(b.and_(block.first, block.last)) as branch:
                self.store_tile(block, tile, here, rows, full)
            with branch.otherwise():
                self.keep(tile)
                self.visit(block, here, height)

    def accumulate(
        self, block: Block, tile: Tile, here: Place, rows: list[Value], full: bool
    ) -> None:
        """`visit` in registers, for tiles that are visited after a few elements of K."""
        b, acc, nr = self.b, self.nest.acc, self.schedule.nr
        base = self.partial_at(block, here.row, here.panel, here.offset)
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
            if full or i == 0:
                self.store_row(block, rows[i], row, here)
                continue
            with b.if_(b.cmp("slt", rows[i], self.kernel.m)):
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
        with b.loop(kernel.lo, kernel.hi) as task:
            rest, row_block = self.divide(task.index, self.row_blocks)
            rest, col_block = self.divide(rest, self.col_blocks)
            batch, split = rest, const(I64, 0)
            k_start, k_end = const(I64, 0), kernel.k
            if self.split:
                batch, split = self.divide(rest, self.splits)
                k_start = b.mul(split, self.k_split)
                k_end = b.smin(b.add(k_start, self.k_split), kernel.k)
            rows = self.share(row_block, self.row_blocks, kernel.panels)
            columns = self.share(col_block, self.col_blocks, kernel.columns)
            if not self.blocked:
                always = const(I1, True)
                block = Block(batch, k_start, b.sub(k_end, k_start), always, always, split)
                self.pack(block, rows, columns)
                self.panels(block, rows, columns)
            else:
                # K = 0 still visits every tile once: the epilogue of zero is due.
                end = b.smax(k_end, b.add(k_start, 1))
                with b.loop(k_start, end, self.k_block, nonempty=True) as loop:
                    k0 = loop.index
                    after = b.add(k0, self.k_block)
                    block = Block(
                        batch,
                        k0,
                        b.sub(b.smin(after, k_end), k0),
                        b.cmp("eq", k0, k_start),
                        b.cmp("sge", after, k_end),
                        split,
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

    def scratch(self, base: Value, blocks: Value, total: Value, tile: int) -> Value:
        """This chunk's region of task scratch: room for the largest block of panels."""
        b = self.b
        largest = b.udiv(b.add(total, b.sub(blocks, 1)), blocks)
        size = b.mul(b.mul(largest, tile), self.kernel.units(self.k_block))
        return b.gep(self.nest.unit, base, b.mul(self.kernel.lo, size))

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
            if how == "task":
                blocks = self.row_blocks if side.is_a else self.col_blocks
                region = self.scratch(base, blocks, total, side.tile)
                stride = b.mul(kernel.units(self.k_block), side.tile)
                with b.loop(first, end) as loop:
                    into = b.gep(unit, region, b.mul(b.sub(loop.index, first), stride))
                    pack_panel(
                        kernel,
                        side,
                        block.batch,
                        b.mul(loop.index, side.tile),
                        block.k0,
                        block.count,
                        into,
                    )
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
        full = b.udiv(kernel.m, mr)
        with b.loop(rows[0], b.smin(rows[1], full)) as loop:
            self.tile(block, here, b.mul(loop.index, mr), mr, True)
        if mr > 1:  # only the block that holds the last panel has rows left
            start = b.mul(b.smax(rows[0], full), mr)
            end = b.smin(b.mul(rows[1], mr), kernel.m)
            with b.loop(start, end, self.schedule.tail) as loop:
                self.tile(block, here, loop.index, self.schedule.tail, False)

    def tile(self, block: Block, here: Place, row: Value, height: int, full: bool) -> None:
        """One register tile at (row, here.col)."""
        b, kernel, mr, unit = self.b, self.kernel, self.schedule.mr, self.nest.unit
        here = replace(here, row=row)
        rows = [b.add(row, i) for i in range(height)]
        read = rows if full else [b.smin(r, b.sub(kernel.m, 1)) for r in rows]
        if self.schedule.kind == "inner":
            cols = [b.add(here.col, j) for j in range(here.width)]
            values = inner_tile(kernel, block, self.a, self.bs, read, cols)
        else:
            at_a = at_b = None
            if self.a_panel is not None:
                panel = b.udiv(row, mr)
                at_a = b.gep(unit, self.a_panel(panel), b.sub(row, b.mul(panel, mr)))
            if self.b_panel is not None:
                at_b = b.gep(unit, self.b_panel(here.panel), here.offset)
            left = source_a(kernel, block, self.a, at_a, read, full)
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
    with b.loop(kernel.lo, kernel.hi) as task:
        batch = b.udiv(task.index, kernel.panels)
        first = b.mul(b.urem(task.index, kernel.panels), schedule.mr)
        rows = b.smin(b.sub(kernel.m, first), schedule.mr)
        tile_row = b.gep(acc, partial, b.mul(b.mul(task.index, kernel.columns), size))
        with b.loop(0, rows) as row, b.loop(0, kernel.n, lanes) as col:
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
