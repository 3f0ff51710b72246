"""Looking at a function before and after compilation: trace, lower, compile; make_jaxpr,
eval_shape."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval, aval
from tinyjax.core.body import hoist_memory, inherited
from tinyjax.core.composites import raised_body
from tinyjax.core.dims import as_sizes, largest
from tinyjax.core.errors import require_callable
from tinyjax.core.prune import prune
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import PyTreeDef, tree_flatten
from tinyjax.core.uop import UOp
from tinyjax.engine.array import NO_AXIS, Array
from tinyjax.engine.compiled import SizedRun, executable
from tinyjax.engine.jit import Jitted, as_buffer
from tinyjax.engine.placement import ON_FIRST
from tinyjax.engine.refs import AbstractRef, Ref, current
from tinyjax.engine.sized import find_sizes
from tinyjax.engine.tracing import Traced, name_of
from tinyjax.engine.values import lift, shaped_abstractify
from tinyjax.engine.vectorize import named_axis
from tinyjax.interpreters.count import arithmetic
from tinyjax.interpreters.effects import START
from tinyjax.interpreters.trace import open_trace

if TYPE_CHECKING:
    from tinyjax.engine.jaxprs import ClosedJaxpr


PLATFORM = "cpu"


class ShapeDtypeStruct:
    """Shape and dtype of an array that need not exist. `sharding` is kept, and changes nothing."""

    __slots__ = ("dtype", "shape", "sharding", "weak_type")

    @api_boundary
    def __init__(
        self, shape: Sequence[int], dtype: Any, *, sharding: Any = None, weak_type: bool = False
    ) -> None:
        if dtype is None:
            raise ValueError(
                "ShapeDtypeStruct: dtype must be specified.\n  Give one: ShapeDtypeStruct(x.shape, x.dtype)."
            )
        self.shape: tuple[int, ...] = as_sizes(shape, "shape of ShapeDtypeStruct")
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

    @api_boundary
    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of unsized object\n{NO_AXIS}")
        return self.shape[0]

    @staticmethod
    def like(x: Any) -> ShapeDtypeStruct:
        """Of an array or number."""
        return struct_of(shaped_abstractify(x))

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
        where = "" if self.sharding is None else f", sharding={self.sharding}"
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={name}{where}{weak})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.shape, self.dtype, self.sharding, self.weak_type


def struct_of(a: Aval) -> ShapeDtypeStruct:
    """The public form of an aval."""
    return ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type)


@dataclass(frozen=True, slots=True)
class ArgInfo:
    """What a stage knows of one argument."""

    _aval: Any
    donated: bool

    shape = property(lambda self: self._aval.shape)
    dtype = property(lambda self: self._aval.dtype)


class Stage:
    """What every stage of a function knows of its arguments and results."""

    stages: Stages

    @property
    def in_tree(self) -> PyTreeDef:
        """Structure of (args, kwargs), static arguments left out."""
        return self.stages.tree

    @property
    def in_avals(self) -> Any:
        """Types of the arguments: (args, kwargs)."""
        return tree_unflatten(self.in_tree, self.stages.leaves)

    @property
    def args_info(self) -> Any:
        """An `ArgInfo` per argument: (args, kwargs)."""
        given = set(self.donate_argnums)
        infos = [ArgInfo(a, i in given) for i, a in enumerate(self.stages.leaves)]
        return tree_unflatten(self.in_tree, infos)

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """Which arguments, counted as leaves, may lend their memory."""
        leaves = self.stages.leaves
        arrays = [i for i, a in enumerate(leaves) if not isinstance(a, AbstractRef)]
        return tuple(arrays[k] for k in sorted(self.stages.donated))

    @property
    def out_tree(self) -> PyTreeDef:
        """Structure of the results."""
        return self.stages.traced.out_tree

    @property
    def out_info(self) -> Any:
        """Shapes and dtypes of the results, in their tree."""
        traced = self.stages.traced
        return tree_unflatten(traced.out_tree, [struct_of(a) for a in traced.out_avals])


class Stages(Stage):
    """A staged function: its jaxpr and result types; `lower()` goes on to machine code.

    `avals` are those of the arguments that are arrays, flat; `leaves` has one for each Ref too.
    """

    def __init__(
        self,
        jitted: Jitted,
        traced: Traced,
        leaves: Sequence[Aval | AbstractRef],
        tree: PyTreeDef,
        donated: frozenset[int],
    ) -> None:
        self.jitted, self.traced, self.tree, self.donated = jitted, traced, tree, donated
        self.leaves = tuple(leaves)
        self.avals = tuple(a for a in leaves if not isinstance(a, AbstractRef))
        self.stages = self

    @staticmethod
    def of(jitted: Jitted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stages:
        """Stage for these arguments, which may be arrays, numbers or shape structs."""
        dynamic, rest, _ = jitted._split(args, kwargs)
        leaves, tree = tree_flatten((tuple(dynamic), rest))
        avals = [
            AbstractRef(x.aval_) if isinstance(x, Ref) else shaped_abstractify(x) for x in leaves
        ]
        if jitted.dynamic_shapes is not None:
            avals = jitted._abstract(args, kwargs, avals)
        traced, donated = jitted._stage_avals(args, kwargs, tuple(avals), tree)
        traced = traced.bound([x for x in leaves if isinstance(x, Ref)], name_of(jitted.fun))
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
        return closed_jaxpr(self.traced.body, self.avals, consts, table)

    @property
    def out_avals(self) -> Any:
        """Types of the results, in their tree."""
        return tree_unflatten(self.traced.out_tree, list(self.traced.out_avals))

    @api_boundary
    def lower(self, *, lowering_platforms: Sequence[str] | None = None) -> Lowered:
        """Go on to kernels and machine code. Raises: ValueError for a platform other than the CPU."""
        other = [p for p in lowering_platforms or () if p != PLATFORM]
        if other:
            raise ValueError(
                f"cannot lower for platforms {other}: there is only {PLATFORM!r}.\n"
                "  Leave lowering_platforms out."
            )
        return Lowered(self)


class Lowered(Stage):
    """What the compiler makes of a function: `.jaxpr`, `.kernels`, `.schedule`, `.llvm`, `.asm`,
    `.cost`."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        traced = stages.traced
        self.count = len(stages.avals) + len(traced.captured) + len(traced.refs)
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
        """Arithmetic, memory traffic of all kernels, planned memory, and each in-place decision."""
        from tinyjax.lowering.inline import inline  # the compiler is loaded on first use
        from tinyjax.lowering.traffic import bytes_moved

        plan = self._lowered.plan
        return {
            "flops": arithmetic(prune(inline(self.stages.body))),
            "bytes accessed": bytes_moved(self._lowered),
            "kernels": len(self.kernels),
            "steps": len(plan.steps),
            "arena bytes": plan.arena_bytes,
            "peak bytes": plan.peak_bytes,
            "decisions": list(plan.notes),
        }

    def cost_analysis(self) -> dict[str, Any]:
        """JAX's name for `cost`."""
        return self.cost

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The program as text: "jaxpr", "llvm", "asm", or the schedule.

        `debug_info` adds the user's lines to a jaxpr; the other texts have none.
        """
        texts: dict[str | None, Callable[[], str]] = {
            None: lambda: self.schedule,
            "jaxpr": lambda: str(self.jaxpr.pretty_print(source_info=debug_info)),
            "llvm": lambda: self.llvm,
            "asm": lambda: self.asm,
        }
        if dialect not in texts:
            raise ValueError(
                f"unknown dialect {dialect!r}; use jaxpr, llvm, asm or None for the schedule"
            )
        return texts[dialect]()

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """The kernels, for a dialect of `as_text` its text: what follows lowering is text here."""
        return self.kernels if dialect is None else self.as_text(dialect)

    def compile(self, compiler_options: Any = None, *, device_assignment: Any = None) -> Compiled:
        """Machine code for exactly these argument types.

        `compiler_options` and `device_assignment` are for XLA and change nothing; tinyjax.config has
        the options of this compiler.
        """
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


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Memory of a compiled function, in bytes; by JAX's names."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    peak_memory_in_bytes: int
    generated_code_size_in_bytes: int


def code_bytes(program: Any) -> int:
    """Machine code of a program's kernels and of those of the programs it calls."""
    seen, todo = {}, [program]
    while todo:
        made = todo.pop()
        seen.update({kernel.key: kernel.nbytes for kernel in made.kernels})
        todo += made.programs
    return sum(seen.values())


def bytes_of(avals: Iterable[Aval]) -> int:
    """Bytes of values; symbolic sizes count as their upper bounds."""
    return sum(largest(a.nbytes) for a in avals)


class Compiled(Stage):
    """A function compiled for exact argument types. Other types raise TypeError."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        stages = self.stages = lowered.stages
        self._executable = executable(stages.body, lowered.count, stages.donated)
        self._captured = [as_buffer(n) for n in stages.traced.operands([])]

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The same as calling it."""
        return self(*args, **kwargs)

    @property
    def input_shardings(self) -> Any:
        """Where the arguments lie: (args, kwargs)."""
        return tree_unflatten(self.in_tree, [ON_FIRST] * self.in_tree.num_leaves)

    @property
    def output_shardings(self) -> Any:
        """Where the results lie, in their tree."""
        return tree_unflatten(self.out_tree, [ON_FIRST] * self.out_tree.num_leaves)

    def runtime_executable(self) -> Any:
        """What runs it: a program and its buffers (engine/compiled.py)."""
        return self._executable

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        stages = self.stages
        dynamic, rest, _ = stages.jitted._split(args, kwargs)
        leaves, tree = tree_flatten((tuple(dynamic), rest))
        if tree != stages.in_tree:
            raise TypeError(
                f"Function compiled with input pytree {stages.in_tree} but called with {tree}.\n"
                "  Call it with the containers it was lowered for, without the static arguments."
            )
        nodes = [lift(x) for x in leaves if not isinstance(x, Ref)]
        paths = functools.partial(stages.jitted._paths, args, kwargs)
        sizes = find_sizes(stages.avals, [n.aval for n in nodes], paths)
        if any(n.free for n in nodes):
            raise TypeError(
                "Cannot apply JAX transformations to a function lowered and compiled for a "
                "particular signature.\n  Transform first, then compile: jax.jit(jax.grad(f)).lower(x)."
            )
        refs = [x for x in leaves if isinstance(x, Ref)]
        traced = stages.traced.bound(refs, name_of(stages.jitted.fun))
        captured = self._captured
        if traced.refs:
            captured = [as_buffer(n) for n in traced.operands([])]
        compiled = SizedRun(self._executable, sizes) if sizes else self._executable
        outs = compiled.run([as_buffer(n) for n in nodes] + captured)
        values = [Array.from_buffer(o) for o in outs[: len(outs) - traced.effects]]
        return tree_unflatten(traced.out_tree, traced.deliver(values))

    def cost_analysis(self) -> dict[str, Any]:
        """Arithmetic and memory."""
        return self.lowered.cost

    def memory_analysis(self) -> MemoryStats:
        """Bytes of arguments, results, and what is planned between them."""
        stages, cost = self.stages, self.lowered.cost
        donated = [a.nbytes for i, a in enumerate(stages.avals) if i in stages.donated]
        return MemoryStats(
            argument_size_in_bytes=bytes_of(stages.avals),
            output_size_in_bytes=bytes_of(stages.traced.out_avals),
            alias_size_in_bytes=sum(donated),
            temp_size_in_bytes=cost["arena bytes"],
            peak_memory_in_bytes=cost["peak bytes"],
            generated_code_size_in_bytes=code_bytes(self._executable.program),
        )

    def as_text(self) -> str:
        """The schedule."""
        return self.lowered.schedule


def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[Any, int]] | None = None,
    return_shape: bool = False,
) -> Callable[..., Any]:
    """A function that returns the jaxpr of `fun` at given arguments (and result types if asked).

    `axis_env` has (name, size) of axes that collectives in `fun` may mention; the jaxpr has the
    place along each that is mentioned as a constant without a value.
    """
    require_callable(fun)

    @functools.wraps(fun, updated=())
    def jaxpr_of(*args: Any, **kwargs: Any) -> Any:
        jitted = Jitted(fun, static_argnums=static_argnums or None)
        with contextlib.ExitStack() as scope:
            if axis_env:
                trace = scope.enter_context(open_trace("make_jaxpr", fun, staging=False))
                for name, size in axis_env:
                    scope.enter_context(named_axis(name, size, trace))
            stages = Stages.of(jitted, args, kwargs)
            return (stages.jaxpr, stages.out_info) if return_shape else stages.jaxpr

    return jaxpr_of


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Shapes and dtypes of `fun`'s results; nothing is computed. Arguments may be shape structs."""
    return Stages.of(Jitted(fun), args, kwargs).out_info
