"""Shrink a body that goes wrong to a small one, or a kernel's schedule; print it as a test.

    smaller, values = reduce_case(body, args, fails)     fails(body, args) -> bool
    print(print_case(smaller, values))

    fewer = reduce_schedule(actions, fails)              fails(actions) -> bool
    print(print_schedule(sink, fewer, arrays))

`wrong_kernels(smaller, values)` are the kernels of a body that go wrong, their schedules reduced;
`wrong_kernel` is the `fails` that compares native code with the interpreter.

A candidate is kept if it still fails. First the outputs: one of them, or any node below, alone.
Then the inputs: a node becomes a parameter that holds the value the evaluator gives it, so what is
above it goes away. Then operands: a node gives way to one of its own of the same kind. Then loops
and calls open up, and values become zeros and ones. Each accepted step makes the case smaller, so
the loop ends. `fails` must answer for any well-typed body; what raises counts as `fails` says.

Cost: a call of `fails` per node and step, some hundreds for a body of fifty nodes.
Source: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002).
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval
from tinyjax.core.body import open_body
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const_value, get, param, substitute, toposort, tuple_of
from tinyjax.interpreters.evaluate import evaluate
from tinyjax.lowering import program
from tinyjax.lowering.codegen import compile_kernel
from tinyjax.lowering.interpret import interpret
from tinyjax.lowering.program import lower
from tinyjax.lowering.schedule import ScheduleError
from tinyjax.runtime import kernels

Array = np.ndarray[Any, Any]
Fails = Callable[[UOp, list[Array]], bool]
Case = tuple[UOp, list[Array]]


# --- shrinking ------------------------------------------------------------------------------------


def reduce_case(body: UOp, args: Sequence[Array], fails: Fails, limit: int = 2000) -> Case:
    """A body and arguments that fail as well and cannot be made smaller by any one step.

    At most `limit` candidates are tried. Raises: ValueError if the case does not fail.
    """
    case = renumbered(body, list(args))
    if not fails(*case):
        raise ValueError("the case does not fail: there is nothing to reduce")
    tried = 0
    progress = True
    while progress:
        progress = False
        for candidate in candidates(*case):
            tried += 1
            if tried > limit:
                return case
            if size(*candidate) < size(*case) and fails(*candidate):
                case, progress = candidate, True
                break
    return case


def size(body: UOp, args: Sequence[Array]) -> tuple[int, int, int, int]:
    """What shrinks: nodes (those in loop bodies too), outputs, elements, values that are not 0."""
    nodes = len(toposort(body.src, bodies=True))
    elements = sum(a.size for a in args)
    return nodes, len(body.src), elements, sum(int(np.count_nonzero(a)) for a in args)


def candidates(body: UOp, args: list[Array]) -> Iterator[Case]:
    """Smaller cases, the most promising first."""
    order = [n for n in toposort(body.src) if isinstance(n.aval, Aval) and n.op is not Op.CONST]
    if len(body.src) > 1:
        for out in body.src:
            yield renumbered(tuple_of([out]), args)
        for i in range(len(body.src)):
            yield renumbered(tuple_of([*body.src[:i], *body.src[i + 1 :]]), args)
    for node in order:
        if node.op is not Op.PARAM:
            yield renumbered(tuple_of([node]), args)
    inner = [n for n in order if n.op not in (Op.PARAM, Op.TUPLE)]
    known = values_of(inner, args)
    for node in reversed(inner):
        if node not in body.src:
            fresh = param(len(args), node.aval)
            cut = tuple_of(substitute(body.src, {node: fresh}))
            yield renumbered(cut, [*args, known[node]])
    for node in inner:
        for s in node.operands:
            if s.aval is node.aval:
                yield renumbered(tuple_of(substitute(body.src, {node: s})), args)
    for node in toposort(body.src):
        if node.op is Op.CALL:
            outs = open_body(node.src[0], node.operands)
            mapping = {n: outs[n.arg] for n in order if n.op is Op.GETTUPLE and n.src[0] is node}
            yield renumbered(tuple_of(substitute(body.src, mapping)), args)
    for i, value in enumerate(args):
        for new in (np.zeros_like(value), np.ones_like(value)):
            yield body, [*args[:i], new, *args[i + 1 :]]
        flat = value.reshape(-1)
        for j in np.flatnonzero(flat != np.zeros((), value.dtype))[:64]:
            new = value.copy()
            new.reshape(-1)[j] = np.zeros((), value.dtype)
            yield body, [*args[:i], new, *args[i + 1 :]]


def values_of(nodes: Sequence[UOp], args: Sequence[Array]) -> dict[UOp, Array]:
    """What the evaluator gives for nodes of a body."""
    found = evaluate(list(nodes), {}, leaf=lambda n: args[n.arg[0]])
    return dict(zip(nodes, found, strict=True))


def renumbered(body: UOp, args: Sequence[Array]) -> Case:
    """Parameters that nothing reads go away; a bare parameter as output stays one."""
    slots = sorted({n.arg[0]: None for n in toposort([body]) if n.op is Op.PARAM})
    place = {slot: i for i, slot in enumerate(slots)}
    mapping = {
        n: param(place[n.arg[0]], n.arg[1]) for n in toposort([body]) if n.op is Op.PARAM
    }  # fmt: skip
    return tuple_of(substitute(body.src, mapping)), [args[s] for s in slots]


# --- schedules ------------------------------------------------------------------------------------


def reduce_schedule(actions: Sequence[str], fails: Callable[[list[str]], bool]) -> list[str]:
    """The actions without which the case does not fail: none of them can be dropped alone.

    What `fails` raises ScheduleError for (an action needs one that was dropped) does not count.
    Raises: ValueError if the whole list does not fail.
    """

    def still(some: list[str]) -> bool:
        try:
            return fails(some)
        except ScheduleError:
            return False

    kept = list(actions)
    if not still(kept):
        raise ValueError("the schedule does not fail: there is nothing to reduce")
    if still([]):
        return []
    progress = True
    while progress:
        progress = False
        for i in reversed(range(len(kept))):
            fewer = kept[:i] + kept[i + 1 :]
            if still(fewer):
                kept, progress = fewer, True
    return kept


@dataclasses.dataclass(frozen=True, slots=True)
class KernelCase:
    """A stage-2 kernel with the actions of its schedule and what its buffers held before it ran."""

    sink: UOp
    actions: tuple[str, ...]
    arrays: list[Array]


def kernels_of(body: UOp, args: Sequence[Array]) -> list[KernelCase]:
    """The loop kernels of a body, as the interpreted plan meets them."""
    found: list[KernelCase] = []
    lowered = lower(body, len(args))

    def note(sink: UOp, arrays: Sequence[Array], dims: Sequence[int]) -> None:
        found.append(KernelCase(sink, compile_kernel(sink).schedule, [a.copy() for a in arrays]))
        interpret(sink, arrays, dims)

    with mock.patch.object(program, "interpret", note):
        lowered.interpret(args)
    return found


def wrong_kernel(
    sink: UOp,
    actions: Sequence[str],
    arrays: Sequence[Array],
    expected: Sequence[Array] | None = None,
    tolerance: float = 1e-5,
) -> bool:
    """Whether native code under a schedule does not leave what is `expected` in the arrays.

    By default that is what the interpreter makes of them. Raises: ScheduleError.
    """
    code = compile_kernel(sink, name="k", actions=actions)
    found = [a.copy() for a in arrays]
    if expected is None:
        expected = [a.copy() for a in arrays]
        interpret(sink, expected)
    made = kernels.kernel(code.ir_text, "reduced", passes=code.passes)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(made.address)
    call((ctypes.c_void_p * len(found))(*(a.ctypes.data for a in found)), None, 0, code.tasks.total)
    for got, want in zip(found, expected, strict=True):
        kind = np.complex128 if dtypes.is_complex(got.dtype) else np.float64
        got, want = got.astype(kind), want.astype(kind)
        if not np.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True):
            return True
    return False


def wrong_kernels(body: UOp, args: Sequence[Array]) -> list[KernelCase]:
    """The loop kernels of a body that native code gets wrong, with as few actions as it takes."""

    def reduced(case: KernelCase) -> KernelCase:
        fewer = reduce_schedule(case.actions, lambda a: wrong_kernel(case.sink, a, case.arrays))
        return dataclasses.replace(case, actions=tuple(fewer))

    cases = kernels_of(body, args)
    return [reduced(c) for c in cases if wrong_kernel(c.sink, c.actions, c.arrays)]


# --- printing ---------------------------------------------------------------------------------------


def print_case(body: UOp, args: Sequence[Array], name: str = "reduced", notes: str = "") -> str:
    """Python of a test that compares native code with the evaluator.

    Its function `name` rebuilds the body and its arguments, bit by bit. `notes` (a schedule, what
    was wrong) become comments in front.
    """
    lines = [f"# {line}".rstrip() for line in notes.splitlines()]
    lines += [f"def {name}():"]
    printer = _Printer()
    result = printer.body(body)
    lines += [f"    {line}" for line in printer.lines]
    lines += ["    args = ["]
    lines += [f"        {text_of_array(a)}," for a in args]
    lines += ["    ]", f"    return {result}, args", "", ""]
    lines += [f"def test_{name}():", f"    wrong = disagreement(Graph(*{name}()))"]
    lines += ["    assert not wrong, wrong"]
    imports = [
        *HEADER[:2],
        "from tests.differential import disagreement",
        "from tests.graphs import Graph",
        *HEADER[2:],
    ]
    return "\n".join([*imports, "", "", *lines]) + "\n"


def print_schedule(
    sink: UOp, actions: Sequence[str], arrays: Sequence[Array], name: str = "reduced"
) -> str:
    """Python of a test that runs a kernel under these actions and compares it with `interpret`."""
    printer = _Printer()
    for node in toposort([sink]):
        printer.node(node)
    lines = [f"def test_{name}():", *(f"    {line}" for line in printer.lines)]
    lines += ["    arrays = [", *(f"        {text_of_array(a)}," for a in arrays), "    ]"]
    lines += ["    actions = [", *(f'        "{a}",' for a in actions), "    ]"]
    lines += [f"    check({printer.names[sink]}, arrays, 1e-5, actions=actions)"]
    imports = [*HEADER[:2], "from tests.lowering.kernels import check", *HEADER[2:]]
    return "\n".join([*imports, "", "", *lines]) + "\n"


HEADER = (
    "import numpy as np",
    "",
    "from tinyjax.core import build as B",
    "from tinyjax.core import dtypes",
    "from tinyjax.core.avals import aval",
    "from tinyjax.core.infos import CallInfo, DotInfo, GatherInfo, ScanInfo, ScatterInfo, WhileInfo",
    "from tinyjax.core.ops import Op",
    "from tinyjax.core.uop import UOp, get, param, tuple_of",
)


class _Printer:
    """Names nodes in order and writes one line for each."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[UOp, str] = {}

    def body(self, body: UOp) -> str:
        """The name of a closed body."""
        if body not in self.names:
            for node in toposort(body.src):
                self.node(node)
            outputs = ", ".join(self.names[o] for o in body.src)
            self.name(body, f"tuple_of([{outputs}])", "body")
        return self.names[body]

    def name(self, node: UOp, text: str, prefix: str = "n") -> None:
        self.names[node] = f"{prefix}{len(self.names)}"
        self.lines.append(f"{self.names[node]} = {text}")

    def node(self, n: UOp) -> None:
        if n in self.names:
            return
        if n.op is Op.PARAM:
            self.name(n, f"param({n.arg[0]}, {text_of(n.arg[1])})", "x")
        elif n.op is Op.CONST:
            value = np.asarray(const_value(n))
            self.name(n, f"B.scalar({text_of_array(value)}[()], {text_of(value.dtype)})")
        elif n.op is Op.GETTUPLE:
            self.name(n, f"get({self.names[n.src[0]]}, {n.arg})")
        else:
            sources = [self.body(b) for b in n.bodies]
            sources += [self.names[s] for s in n.operands]
            comma = "," if len(sources) == 1 else ""
            arg = "" if n.arg is None else f", {text_of(n.arg)}"
            self.name(n, f"UOp(Op.{n.op.name}, ({', '.join(sources)}{comma}){arg})")


def text_of(value: Any) -> str:
    """Python for the static data of a node."""
    if isinstance(value, Aval):
        weak = ", True" if value.weak_type else ""
        return f"aval({value.shape}, {text_of(value.dtype)}{weak})"
    if isinstance(value, np.dtype):
        name = "bool_" if value == np.bool_ else value.name
        return f"dtypes.{name}" if hasattr(dtypes, name) else f"dtypes.DTYPES[{name!r}]"
    if isinstance(value, tuple):
        comma = "," if len(value) == 1 else ""
        return f"({', '.join(map(text_of, value))}{comma})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        given = [
            f"{f.name}={text_of(getattr(value, f.name))}"
            for f in fields
            if getattr(value, f.name) != f.default
        ]
        return f"{type(value).__name__}({', '.join(given)})"
    return repr(value)


def text_of_array(x: Array) -> str:
    """Python for an array: its numbers if they are plain, else its bits."""
    plain = dtypes.is_integer(x.dtype) and x.dtype.kind in "iu" or x.dtype == np.bool_
    if x.dtype in (np.float32, np.float64) and x.size:
        plain = bool(np.isfinite(x).all() and not (np.signbit(x) & (x == 0)).any())
    if plain or not x.size:
        numbers = [] if not x.size else x.reshape(-1).tolist()
        text = f"np.array({numbers}, {text_of(x.dtype)})"
        return text if x.ndim == 1 else f"{text}.reshape({x.shape})"
    unit = f"u{x.dtype.itemsize}" if x.dtype.itemsize <= 8 else "u8"
    bits = ", ".join(hex(int(b)) for b in np.ascontiguousarray(x).reshape(-1).view(unit))
    return f'np.array([{bits}], "{unit}").view({text_of(x.dtype)}).reshape({x.shape})'


__all__ = [
    "KernelCase", "get", "kernels_of", "print_case", "print_schedule", "reduce_case",
    "reduce_schedule", "wrong_kernel", "wrong_kernels",
]  # fmt: skip
