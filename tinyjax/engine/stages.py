"""Looking at a function before and after compilation: trace, lower, compile; make_jaxpr,
eval_shape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval, aval
from tinyjax.core.body import hoist_memory, inherited, params_of
from tinyjax.core.composites import raised_body
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import PyTreeDef, tree_flatten
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.compiled import executable
from tinyjax.engine.jit import Jitted, as_buffer
from tinyjax.engine.refs import current
from tinyjax.engine.tracing import Traced
from tinyjax.engine.values import lift, shaped_abstractify
from tinyjax.interpreters.count import arithmetic
from tinyjax.interpreters.effects import START

if TYPE_CHECKING:
    from tinyjax.engine.jaxprs import ClosedJaxpr


class ShapeDtypeStruct:
    """Shape and dtype of an array that need not exist."""

    __slots__ = ("dtype", "shape", "sharding", "weak_type")

    def __init__(
        self, shape: Sequence[int], dtype: Any, *, sharding: Any = None, weak_type: bool = False
    ) -> None:
        if dtype is None:
            raise ValueError("ShapeDtypeStruct: dtype must be specified.")
        self.shape = tuple(shape)
        self.dtype = dtype if dtypes.is_key(dtype) else dtypes.as_dtype(dtype)
        self.sharding, self.weak_type = sharding, weak_type

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return aval(self.shape, self.dtype).size

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def update(self, **fields: Any) -> ShapeDtypeStruct:
        """The same with some fields replaced."""
        kept = {
            "shape": self.shape,
            "dtype": self.dtype,
            "sharding": self.sharding,
            "weak_type": self.weak_type,
        }
        kept.update(fields)
        return ShapeDtypeStruct(kept.pop("shape"), kept.pop("dtype"), **kept)

    def __repr__(self) -> str:
        name = self.dtype.name
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={name}{weak})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.shape, self.dtype, self.sharding, self.weak_type


def struct_of(a: Aval) -> ShapeDtypeStruct:
    """The public form of an aval."""
    return ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type)


class Stages:
    """A staged function: its jaxpr and result types; `lower()` goes on to machine code."""

    def __init__(
        self,
        jitted: Jitted,
        traced: Traced,
        in_avals: tuple[Aval, ...],
        in_tree: PyTreeDef,
        donated: frozenset[int],
    ) -> None:
        self.jitted, self.traced, self.in_avals, self.in_tree = jitted, traced, in_avals, in_tree
        self.donated = donated

    @staticmethod
    def of(jitted: Jitted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stages:
        """Stage for these arguments, which may be arrays, numbers or shape structs."""
        dynamic, rest, _ = jitted._split(args, kwargs)
        leaves, tree = tree_flatten((tuple(dynamic), rest))
        avals = tuple(shaped_abstractify(x) for x in leaves)
        traced, donated = jitted._stage_avals(args, kwargs, avals, tree)
        return Stages(jitted, traced, avals, tree, donated)

    @property
    def fun_name(self) -> str:
        """Name of the function."""
        return self.jitted.info.name

    @property
    def body(self) -> UOp:
        """The closed body."""
        return self.traced.body

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The body, to print or to walk over; captured arrays are its consts."""
        from tinyjax.engine.jaxprs import closed_jaxpr  # only for people who look

        consts = [Array(c) for c in (*self.traced.captured, *map(current, self.traced.refs))]
        consts += [Array(START)] * self.traced.effects
        table = inherited(self.traced.body.src, self.traced.sites)
        return closed_jaxpr(self.traced.body, self.in_avals, consts, table)

    @property
    def out_info(self) -> Any:
        """Shapes and dtypes of the results, in their tree."""
        return tree_unflatten(self.traced.out_tree, [struct_of(a) for a in self.traced.out_avals])

    def lower(self, **options: Any) -> Lowered:
        """Go on to kernels and machine code."""
        return Lowered(self)


class Lowered:
    """What the compiler makes of a function: `.jaxpr`, `.kernels`, `.schedule`, `.llvm`, `.asm`,
    `.cost`."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        traced = stages.traced
        self.count = len(stages.in_avals) + len(traced.captured) + len(traced.refs)
        self.count += traced.effects

    @functools.cached_property
    def _lowered(self) -> Any:
        from tinyjax.lowering.program import lower  # the compiler is loaded on first use

        body, leaves = hoist_memory(self.stages.body, self.count)
        return lower(raised_body(body), self.count + len(leaves), self.stages.donated)

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """Stage 1."""
        return self.stages.jaxpr

    @property
    def out_info(self) -> Any:
        """Shapes and dtypes of the results."""
        return self.stages.out_info

    @property
    def fusion(self) -> str:
        """The decision tables of the fusion plan."""
        return str(self._lowered.fusion)

    @property
    def kernels(self) -> list[Any]:
        """The distinct kernels, each printable."""
        return list(self._lowered.kernels)

    @property
    def schedule(self) -> str:
        """The steps of the program, where memory goes, and the decisions each kernel was made by:
        vectors, unrolling, tiles, tasks."""
        return "\n\n".join(part for part in (str(self._lowered), self._lowered.decisions()) if part)

    def _codes(self) -> list[Any]:
        from tinyjax.lowering.passes import codes_of  # the compiler is loaded on first use
        from tinyjax.lowering.target import host

        target = host()
        return [code for kernel in self.kernels for code in codes_of(kernel, target)]

    @property
    def llvm(self) -> str:
        """LLVM IR of all kernels."""
        return "\n".join(code.ir_text for code in self._codes())

    @property
    def asm(self) -> str:
        """Assembly of all kernels, for this machine."""
        from tinyjax.runtime.cpu import assembly  # only for people who look

        return "\n".join(
            assembly(code.ir_text, "kernel", passes=code.passes) for code in self._codes()
        )

    @property
    def cost(self) -> dict[str, Any]:
        """Arithmetic, memory traffic at the border, planned memory, and each in-place decision."""
        plan = self._lowered.plan
        inputs = params_of(self.stages.body)
        return {
            "flops": arithmetic(self.stages.body),
            "bytes accessed": sum(a.nbytes for a in inputs.values())
            + sum(a.nbytes for a in self.stages.traced.out_avals),
            "kernels": len(self.kernels),
            "steps": len(plan.steps),
            "arena bytes": plan.arena_bytes,
            "peak bytes": plan.peak_bytes,
            "decisions": list(plan.notes),
        }

    def cost_analysis(self) -> dict[str, Any]:
        """JAX's name for `cost`."""
        return self.cost

    def as_text(self, dialect: str | None = None) -> str:
        """The program as text: "jaxpr", "llvm", "asm", or the schedule."""
        texts: dict[str | None, Callable[[], str]] = {
            None: lambda: self.schedule,
            "jaxpr": lambda: str(self.jaxpr),
            "llvm": lambda: self.llvm,
            "asm": lambda: self.asm,
        }
        if dialect not in texts:
            raise ValueError(
                f"unknown dialect {dialect!r}; use jaxpr, llvm, asm or None for the schedule"
            )
        return texts[dialect]()

    def compile(self, compiler_options: Any = None) -> Compiled:
        """Machine code for exactly these argument types."""
        return Compiled(self)

    def __str__(self) -> str:
        return self.schedule

    def _repr_html_(self) -> str:
        import html  # only for people who look

        parts = [("jaxpr", str(self.jaxpr)), ("fusion", self.fusion), ("schedule", self.schedule)]
        parts += [(k.title(), str(k)) for k in self.kernels]
        return "".join(
            f"<details><summary>{html.escape(name)}</summary><pre style='overflow-x:auto'>{html.escape(text)}</pre></details>"
            for name, text in parts
        )


class Compiled:
    """A function compiled for exact argument types. Other types raise TypeError."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        stages = lowered.stages
        self._executable = executable(stages.body, lowered.count, stages.donated)
        self._captured = [as_buffer(n) for n in stages.traced.operands([])]

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        stages = self.lowered.stages
        dynamic, rest, _ = stages.jitted._split(args, kwargs)
        leaves, tree = tree_flatten((tuple(dynamic), rest))
        if tree != stages.in_tree:
            raise TypeError(
                f"Function compiled with input pytree {stages.in_tree} but called with {tree}."
            )
        nodes = [lift(x) for x in leaves]
        for i, (n, a) in enumerate(zip(nodes, stages.in_avals, strict=True)):
            if n.shape != a.shape or n.dtype != a.dtype:
                raise TypeError(
                    "Argument types differ from the types for which this computation was compiled: "
                    f"argument {i} compiled for {a.str_short()}, called with {n.aval.str_short()}."
                )
        if any(n.free for n in nodes):
            raise TypeError(
                "Cannot apply JAX transformations to a function lowered and compiled for a "
                "particular signature."
            )
        traced = stages.traced
        captured = self._captured
        if traced.refs:
            captured = [as_buffer(n) for n in traced.operands([])]
        outs = self._executable.run([as_buffer(n) for n in nodes] + captured)
        values = [Array.from_buffer(o) for o in outs[: len(outs) - traced.effects]]
        return tree_unflatten(traced.out_tree, traced.deliver(values))

    def cost_analysis(self) -> dict[str, Any]:
        """Arithmetic and memory."""
        return self.lowered.cost

    def memory_analysis(self) -> dict[str, int]:
        """Planned bytes."""
        cost = self.lowered.cost
        return {k: cost[k] for k in ("arena bytes", "peak bytes")}

    def as_text(self) -> str:
        """The schedule."""
        return self.lowered.schedule


def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Any = None,
    return_shape: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """A function that returns the jaxpr of `fun` at given arguments (and result types if asked)."""
    if not callable(fun):
        raise TypeError(f"Expected a callable value, got {fun!r}")

    @functools.wraps(fun, updated=())
    def jaxpr_of(*args: Any, **kwargs: Any) -> Any:
        jitted = Jitted(fun, static_argnums=static_argnums or None)
        stages = Stages.of(jitted, args, kwargs)
        return (stages.jaxpr, stages.out_info) if return_shape else stages.jaxpr

    return jaxpr_of


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Shapes and dtypes of `fun`'s results; nothing is computed. Arguments may be shape structs."""
    return Stages.of(Jitted(fun), args, kwargs).out_info
