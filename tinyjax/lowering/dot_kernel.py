"""DOT groups as kernels: from the closed body of a contraction to the nest's operands and store.

The object code depends on dtypes, layouts and the schedule only: sizes and strides other than 0 and
1 are read at run time, so equal layouts share one compiled object whatever their shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const_value, toposort
from tinyjax.lowering.dot import (
    DOT_PARAMS, DotSpec, DotTarget, Operand, Param, choose_schedule, dot_params, gemm_kernels,
    strided, strided_store,
)  # fmt: skip
from tinyjax.lowering.dot_layout import View, view_of, view_source
from tinyjax.lowering.irtext import IRBuilder, Value
from tinyjax.lowering.kernel import Code, Kernel
from tinyjax.lowering.target import Target

F32 = np.dtype(np.float32)


def accumulate_dtype(x: Any, result: Any) -> Any:
    """The dtype of the sums: float32 for narrow floats, else the operands' (or a wider result)."""
    if dtypes.is_float(x) and x.itemsize < 4:
        return np.dtype(np.float64) if result == np.float64 else F32
    return result


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Run-time parameters of one DOT, collected while its operands are described."""

    values: list[int]

    def size(self, value: int) -> int | Param:
        """0 and 1 are compiled in (they choose the code); other strides are read."""
        if value in (0, 1):
            return value
        self.values.append(value)
        return Param(DOT_PARAMS + len(self.values) - 1)


def operand_of(slot: int, dtype: Any, view: View, sizes: _Sizes) -> Operand:
    """A view of a buffer as a nest operand; a batch that is split has its address computed."""
    row, col = sizes.size(view.row), sizes.size(view.col)
    offset = sizes.size(view.offset)
    if view.batch is None:
        return strided(slot, dtype, row=row, col=col, offset=offset)
    if view.batch is view.over:
        return strided(slot, dtype, row=row, col=col, batch=1, offset=offset)
    if view.batch.op is Op.MUL and view.batch.src[0] is view.over:
        stride = int(const_value(view.batch.src[1]))
        return strided(slot, dtype, row=row, col=col, batch=sizes.size(stride), offset=offset)
    plain = strided(slot, dtype, row=row, col=col, batch=1, offset=offset)
    expression, over = view.batch, view.over
    nodes = toposort([expression])
    names = {n: f"v{i}" for i, n in enumerate(nodes)}
    text = ";".join(
        f"{n.op.name}({','.join(names[s] for s in n.src)})"
        + (f"={const_value(n)}" if n.op is Op.CONST else "")
        for n in nodes
    )

    def open(b: IRBuilder, slots: Value, params: Value) -> Any:
        inner = plain.open(b, slots, params)

        def load(
            b: IRBuilder, batch: Value, row: Value, col: Value, width: int, axis: Any,
            mask: Value | None = None,
        ) -> Value:  # fmt: skip
            at = emit_index(b, nodes, over, batch)
            return inner(b, at, row, col, width, axis, mask)

        return load

    return replace(plain, open=open, key=f"{plain.key}[{text}]", cheap=False)


def emit_index(b: IRBuilder, nodes: Sequence[UOp], over: UOp | None, batch: Value) -> Value:
    """The element offset of a matrix, an expression over the batch index (never negative)."""
    done: dict[UOp, Any] = {}
    for n in nodes:
        if n is over:
            done[n] = batch
        elif n.op is Op.CONST:
            done[n] = int(const_value(n))
        elif n.op is Op.RANGE:
            raise AssertionError("a batch address mentions another loop")
        else:
            emit = {Op.ADD: b.add, Op.MUL: b.mul, Op.IDIV: b.udiv, Op.MOD: b.urem}[n.op]
            done[n] = emit(done[n.src[0]], done[n.src[1]])
    return done[nodes[-1]]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class DotKernel(Kernel):
    """The closed body of a contraction group: TUPLE(DOT) over views of parameters."""

    body: UOp

    def title(self) -> str:
        """For listings."""
        return "dot"

    def views(self) -> list[View]:
        """Where the two operands lie in their buffers."""
        return [view_of(s) for s in self.body.src[0].src]

    def sources(self) -> list[int]:
        """The body's parameters that hold the operands."""
        return [int(view_source(s).arg[0]) for s in self.body.src[0].src]

    def codes(self, target: Target) -> list[Code]:
        """Packing, the product, the sum of parts: as the schedule says."""
        dot = self.body.src[0]
        batch, m, k = dot.src[0].aval.shape
        n = dot.src[1].aval.shape[2]
        sizes = _Sizes([])
        sources = self.sources()
        a, b = (
            operand_of(1 + p, s.aval.dtype, v, sizes)
            for v, p, s in zip(self.views(), sources, dot.src, strict=True)
        )
        out = strided_store(
            0, dot.aval.dtype, row=sizes.size(n), col=1,
            batch=sizes.size(m * n) if batch > 1 else 0,
        )  # fmt: skip
        accumulate = accumulate_dtype(dot.src[0].aval.dtype, dot.aval.dtype)
        workspace = 2 + max(sources)
        facts = DotTarget(target.vector_bytes, target.registers, target.fma)
        spec = DotSpec("k", accumulate, facts, workspace, params_slot=workspace + 3)
        schedule = choose_schedule(facts, accumulate, a, b, out, batch=batch, m=m, n=n, k=k)
        params = dot_params(schedule, batch, m, n, k) + tuple(sizes.values)
        steps = gemm_kernels(spec, schedule, a, b, out)
        scratch = [0, 0, 0]
        for step in steps:
            for space in step.workspaces:
                scratch[space.slot - workspace] = space.nbytes(params)
        cycles = 2.0 * batch * m * n * k / target.lanes(accumulate.itemsize) / 2
        return [
            Code(step.ir_text, "vector", step.tasks(params), 1, tuple(scratch), params, cycles)
            for step in steps
        ]

    def interpret(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        """Gather the operands, multiply with NumPy in the accumulator's dtype."""
        dot = self.body.src[0]
        accumulate = accumulate_dtype(dot.src[0].aval.dtype, dot.aval.dtype)
        x, y = (
            _gather(arrays[1 + p].reshape(-1), s.aval.shape, v).astype(accumulate)
            for v, p, s in zip(self.views(), self.sources(), dot.src, strict=True)
        )
        arrays[0].reshape(dot.aval.shape)[...] = np.matmul(x, y).astype(dot.aval.dtype)


def _gather(flat: np.ndarray[Any, Any], shape: Sequence[int], view: View) -> np.ndarray[Any, Any]:
    b, i, j = np.ogrid[: shape[0], : shape[1], : shape[2]]
    at = view.offset + view.row * i + view.col * j
    if view.batch is not None:
        done: dict[UOp, Any] = {}
        for n in toposort([view.batch]):
            if n is view.over:
                done[n] = b
            elif n.op is Op.CONST:
                done[n] = int(const_value(n))
            else:
                x, y = (done[s] for s in n.src) if n.op is not Op.RANGE else (0, 0)
                done[n] = {
                    Op.ADD: np.add, Op.MUL: np.multiply, Op.IDIV: np.floor_divide, Op.MOD: np.mod,
                }[n.op](x, y)  # fmt: skip
        at = at + done[view.batch]
    return flat[np.broadcast_to(at, tuple(shape))]
