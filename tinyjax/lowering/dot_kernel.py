"""DOT groups as kernels: from the closed body of a contraction to the nest's operands and store.

The object code depends on dtypes, layouts, the schedule and what operands and epilogue compute:
sizes and strides are read at run time (`dot_sizes.py`), so equal layouts share one compiled object
whatever their shapes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.dims import Size
from tinyjax.core.ops import ELEMENTWISE, Op
from tinyjax.core.uop import UOp, const_value, toposort, tuple_of
from tinyjax.lowering.dims import Bounded
from tinyjax.lowering.division import divide_by_size
from tinyjax.lowering.dot import (
    DotSpec,
    Epilogue,
    KernelStep,
    Operand,
    choose_schedule,
    dot_params,
    dot_target,
    gemm_kernels,
    strided,
    strided_store,
)  # fmt: skip
from tinyjax.lowering.dot_expression import computed_operand
from tinyjax.lowering.dot_layout import View, view_of, view_source
from tinyjax.lowering.dot_operands import slot_pointer
from tinyjax.lowering.dot_schedule import BATCH, K, M, N, run_params
from tinyjax.lowering.dot_sizes import Sizes, readers
from tinyjax.lowering.emit import Place
from tinyjax.lowering.expression import Expressions
from tinyjax.lowering.fusion import base
from tinyjax.lowering.interpret import interpret
from tinyjax.lowering.irtext import IRBuilder, Value
from tinyjax.lowering.kernel import Code, Kernel
from tinyjax.lowering.rangeify import contraction_of, core_dot, rangeify
from tinyjax.lowering.registers import Register
from tinyjax.lowering.target import Target

F32 = np.dtype(np.float32)


def accumulate_dtype(x: Any, result: Any) -> Any:
    """The dtype of the sums: float32 for narrow floats, int32 for narrow integers and bools.

    Integer sums wrap, so they may be cut to the result's width at the end; a bool is whether any
    product was true, and there are fewer than 2**31 of them.
    """
    if dtypes.is_float(x) and x.itemsize < 4:
        return np.dtype(np.float64) if result == np.float64 else F32
    if not dtypes.is_float(result) and result.itemsize < 4:
        return np.dtype(np.int32)
    return F32 if dtypes.is_float(result) and result.itemsize < 4 else result


def operand_of(slot: int, dtype: Any, view: View, sizes: Sizes) -> Operand:
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
    literals = sizes.operands(view.batch)
    expression, over = view.batch, view.over

    def matrix(b: IRBuilder, params: Value, batch: Value) -> Value:
        return emit_index(b, expression, over, batch, readers(b, params, literals))

    return strided(slot, dtype, row=row, col=col, batch=1, offset=offset, batch_at=matrix)


def emit_index(
    b: IRBuilder, index: UOp, over: UOp | None, batch: Value,
    sizes: Mapping[Place, Callable[[], Value]],
) -> Value:  # fmt: skip
    """The element offset of a matrix, an expression over the batch index (never negative)."""
    done: dict[UOp, Any] = {}
    for n in toposort([index]):
        if n is over:
            done[n] = batch
        elif n.op is Op.RANGE:
            raise AssertionError("a batch address mentions another loop")
        elif n.op is not Op.CONST:
            emit: Any = {
                Op.ADD: b.add, Op.SUB: b.sub, Op.NEG: b.neg, Op.MUL: b.mul,
                Op.IDIV: functools.partial(divide_by_size, b, n.op),
                Op.MOD: functools.partial(divide_by_size, b, n.op),
            }[n.op]  # fmt: skip
            done[n] = emit(*(sizes[n, s]() if s.op is Op.CONST else done[s] for s in n.src))
    return done[index]  # type: ignore[no-any-return]


def epilogue_of(body: UOp, accumulate: Any, sizes: Sizes, target: Target) -> Epilogue:
    """The stores of a group, emitted where the nest has finished a tile."""
    part = contraction_of(body, accumulate)
    stores = [end.src[0] for end in part.sink.src]
    order = toposort([part.sink])
    product_slot = part.product.src[0].src[0].arg[0]
    slots_used = sorted({n.arg[0] for n in order if n.op is Op.PARAM} - {product_slot})
    literals = sizes.literals(stores, part.ranges[:1])

    def open(b: IRBuilder, slots: Value, params: Value) -> Any:
        pointers = {i: slot_pointer(b, slots, i) for i in slots_used}
        expressions = Expressions(b, target, pointers, stores, readers(b, params, literals))

        def store(
            b: IRBuilder, batch: Value, row: Value, col: Value, x: Value, axis: Any,
            mask: Value | None = None,
        ) -> None:  # fmt: skip
            at = {r: v for r, v in zip(part.ranges, (batch, row, col)) if r is not None}
            vector = part.ranges[1 if axis == "row" else 2]
            known = {part.product: Register(part.product.aval.dtype, x)}
            for each in stores:
                expressions.store(each, at, vector, x.type.width, mask, known)

        return store

    arithmetic = sum(n.op in ELEMENTWISE and n.aval.dtype != np.int64 for n in order)
    only_writes = len(slots_used) == len(stores)
    return Epilogue(open, "col", inline=arithmetic <= 2, repeatable=only_writes)


@dataclass(frozen=True, slots=True)
class DotKernel(Kernel):
    """The closed body of a contraction group: outputs computed from one DOT over views."""

    body: UOp

    @property
    def dot(self) -> UOp:
        """The contraction itself."""
        return core_dot(self.body)

    @property
    def accumulate(self) -> Any:
        """The dtype of the sums."""
        return accumulate_dtype(self.dot.src[0].aval.dtype, self.dot.aval.dtype)

    def title(self) -> str:
        """For listings."""
        return "dot" if base_is(self.body, self.dot) else f"dot_{self.body.src[-1].op.name.lower()}"

    def operand(self, node: UOp, sizes: Sizes, target: Target) -> Operand:
        """An operand of the contraction: a view of a buffer if it is one, else an expression."""
        source = view_source(node)
        if source.op is not Op.PARAM:
            return computed_operand(self.body, node, sizes, target)
        slot = len(self.body.src) + int(source.arg[0])
        return operand_of(slot, node.aval.dtype, view_of(node), sizes)

    def slots(self) -> int:
        """Outputs and inputs."""
        params = [n.arg[0] for n in toposort(self.body.src) if n.op is Op.PARAM]
        return len(self.body.src) + 1 + int(max(params, default=-1))

    def codes(self, target: Target) -> list[Code]:
        """Packing, the product, the sum of parts: as the schedule says."""
        dot, accumulate = self.dot, self.accumulate
        batch, m, k = dot.src[0].aval.shape
        n = dot.src[1].aval.shape[2]
        sizes = Sizes()
        a, b = (self.operand(s, sizes, target) for s in dot.src)
        if base_is(self.body, dot) and not dtypes.is_bool(dot.aval.dtype):
            out = strided_store(
                0, dot.aval.dtype, row=sizes.size(n), col=1,
                batch=sizes.size(m * n) if batch > 1 else 0, half=target.half,
            )  # fmt: skip
        else:
            out = epilogue_of(self.body, accumulate, sizes, target)
        workspace = self.slots()
        facts = dot_target(target)
        given = {BATCH: batch, M: m, N: n, K: k}
        limits = {i: s.number for i, s in given.items() if isinstance(s, Bounded)}
        batch, m, n, k = map(int, given.values())
        some = k > 0 and K not in limits
        spec = DotSpec("k", accumulate, facts, workspace, workspace + 3, some, limits)
        schedule = choose_schedule(
            facts, accumulate, a, b, out, batch=batch, m=m, n=n, k=k, varying=tuple(limits)
        )
        params = dot_params(schedule, batch, m, n, k) + tuple(sizes.values)
        steps = gemm_kernels(spec, schedule, a, b, out)
        scratch = [0, 0, 0]
        for step in steps:
            for space in step.workspaces:
                scratch[space.slot - workspace] = space.nbytes(params)

        def units(step: KernelStep) -> Callable[[Callable[[int], Size]], Size]:
            """The tasks of a step for the sizes of a run."""
            return lambda of: step.tasks(
                run_params(schedule, params, {i: of(number) for i, number in limits.items()})
            )

        cycles = float(batch * m * n * k) / target.lanes(accumulate.itemsize)
        return [
            Code(
                step.ir_text, "vector", int(step.tasks(params)), step.chunk(params), tuple(scratch),
                params, cycles, (f"dot{step.name[1:]}({schedule})",),
                units(step) if limits else None,
            )
            for step in steps
        ]  # fmt: skip

    def interpret(self, arrays: Sequence[np.ndarray[Any, Any]], dims: Sequence[int] = ()) -> None:
        """Multiply with NumPy in the accumulator's dtype, then run the epilogue as a kernel."""
        dot, accumulate = self.dot, self.accumulate
        inputs = arrays[len(self.body.src) :]
        operands = []
        for s in dot.src:
            values = np.zeros(s.aval.shape, s.aval.dtype)
            interpret(rangeify(tuple_of([s])), [values, *inputs], dims)
            operands.append(values.astype(accumulate))
        k = dot.src[0].aval.shape[2]
        terms = dims[k.number] if isinstance(k, Bounded) and dims else int(k)
        operands = [operands[0][:, :, :terms], operands[1][:, :terms]]
        product = np.ascontiguousarray(np.matmul(*operands), accumulate)
        interpret(contraction_of(self.body, accumulate).sink, [*arrays, product], dims)


def base_is(body: UOp, dot: UOp) -> bool:
    """Whether the group only writes its DOT."""
    return len(body.src) == 1 and base(body.src[0]) is dot
