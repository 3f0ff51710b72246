"""The passes from a stage-1 body to LLVM text, as data. `print(PASSES)` shows them.

    body -> flat body                                                   one per program
    flat body -> normal form -> groups -> ordered groups                one per body in it
    group body -> kernel -> ... -> kernel -> nest -> schedule -> code   loop kernels
    contraction -> code, sort -> code                                   own generators

To add a pass, write a function from one stage's value to another's whose docstring begins with a
line `before -> after`, and put a `Pass` with it into the list: the driver (driver.py) runs,
verifies, records and times it. A parameter named `target`, `name` or `slots` is filled in.
Conditions are functions as well; what their docstrings say is checked under `tinyjax_verify`.

Between ordered groups and kernels lies the memory plan (plan.py), which makes no code.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinyjax.core import integers
from tinyjax.core.ops import J, K, Op
from tinyjax.core.prune import prune
from tinyjax.core.record import recording
from tinyjax.core.uop import UOp, toposort
from tinyjax.core.verify import verify_kernel, verify_stage
from tinyjax.lowering import nest as nests
from tinyjax.lowering.code import emit_kernel
from tinyjax.lowering.collapse import close_folds
from tinyjax.lowering.dims import bound_sizes, is_symbolic_body
from tinyjax.lowering.dot_kernel import DotKernel
from tinyjax.lowering.driver import Pass, Passes, Stage, run
from tinyjax.lowering.fusion import FusionPlan, plan_fusion, source_of
from tinyjax.lowering.guards import gate_loads, shrink_ranges
from tinyjax.lowering.inline import ERASED, inline
from tinyjax.lowering.interpret import interpret, interpret_nest
from tinyjax.lowering.kernel import Code, Kernel
from tinyjax.lowering.merge import merge_ranges
from tinyjax.lowering.nest import Nest, extent, place
from tinyjax.lowering.order import Ordered, order_groups
from tinyjax.lowering.prepare import prepare
from tinyjax.lowering.rangeify import rangeify
from tinyjax.lowering.refine import split_ranges
from tinyjax.lowering.schedule import Schedule, schedule
from tinyjax.lowering.simplify import simplify
from tinyjax.lowering.sort import SortKernel
from tinyjax.lowering.split import split_folds
from tinyjax.lowering.substitute import simplify_indices
from tinyjax.lowering.target import Target
from tinyjax.lowering.tasks import wanted_chunks

# --- stages -------------------------------------------------------------------------------------


def _count(*roots: UOp) -> int:
    return len(toposort(roots))


def _show_body(body: UOp) -> str:
    from tinyjax.core.printer import print_body  # only for people who look

    return print_body(body)


def _show_kernel(sink: UOp) -> str:
    from tinyjax.core.kernel_text import print_kernel  # only for people who look

    return print_kernel(sink)


def _show_groups(plan: FusionPlan | Ordered) -> str:
    from tinyjax.core.printer import aval_text  # only for people who look

    lines = []
    for i, g in enumerate(plan.groups):
        writes = ", ".join(f"{o.op.name.lower()} {aval_text(o.aval)}" for o in g.outputs)
        lines.append(f"group {i}: {g.kind}, {len(g.inputs)} inputs, writes {writes}")
    return "\n".join(lines)


def _show_schedule(plan: Schedule) -> str:
    return "\n".join((*plan.actions, plan.nest.text()))


def _verify_groups(plan: FusionPlan | Ordered) -> None:
    """Every group reads parameters, literals and what earlier groups write."""
    written: set[UOp] = set()
    for group in plan.groups:
        for n in group.inputs:
            ready = n.op in (Op.PARAM, Op.CONST) or source_of(n) in written
            assert ready, f"{group.kind} reads {n!r} before it is written"
        written.update(map(source_of, group.outputs))


def _verify_body(body: UOp) -> None:
    verify_stage(body.src, J)


def _sinks(plan: Schedule) -> list[UOp]:
    return [plan.nest.sink]


BODY = Stage("body", _verify_body, _count, _show_body)
GROUPS = Stage("groups", _verify_groups, lambda p: len(p.groups), _show_groups)
KERNEL = Stage("kernel", verify_kernel, _count, _show_kernel, lambda k: [k], interpret)
NEST = Stage(
    "nest", nests.verify, lambda n: len(n.order), Nest.text, lambda n: [n.sink], interpret_nest
)
SCHEDULE = Stage(
    "schedule",
    lambda s: nests.verify(s.nest),
    lambda s: len(s.nest.order),
    _show_schedule,
    _sinks,
    lambda s, buffers: interpret_nest(s.nest, buffers),
)
CODE = Stage("code", lambda c: None, lambda c: c.ir_text.count("\n"), lambda c: c.ir_text)
CONTRACTION = Stage(
    "contraction", lambda k: None, lambda k: _count(k.body), lambda k: _show_body(k.body)
)
SORT = Stage("sort", lambda k: None, lambda k: 1, str)
CODES = Stage(
    "code",
    lambda codes: None,
    lambda codes: sum(c.ir_text.count("\n") for c in codes),
    lambda codes: "\n\n".join(c.ir_text for c in codes),
)


# --- conditions ---------------------------------------------------------------------------------


def flat(body: UOp) -> bool:
    """nothing that only marks: no names, wrapped keys, derivative rules"""
    return all(n.op not in ERASED and n.op is not Op.CUSTOM_LIN for n in toposort(body.src))


def bounded(body: UOp) -> bool:
    """every size is a number, or one that the program numbers, with its upper bound"""
    return not is_symbolic_body(body)


def normal(body: UOp) -> bool:
    """every DOT is [B,M,K] by [B,K,N], and nothing but a parameter is empty"""
    for n in toposort(body.src):
        if n.op is Op.DOT and (n.aval.ndim != 3 or n.arg.contract != ((2,), (1,))):
            return False
        shaped = hasattr(n.aval, "shape") and n.op not in (Op.PARAM, Op.EXPAND, Op.RESHAPE)
        if shaped and 0 in n.aval.shape:
            return False
    return True


def indices_only(sink: UOp) -> bool:
    """no movement ops; what is read and written are elements"""
    return all(n.op.stages & K for n in toposort([sink]))


def canonical(sink: UOp) -> bool:
    """every address and its condition is in the algebra's one form"""
    return all(
        integers.simplify(x) is x for n in toposort([sink]) if n.op is Op.INDEX for x in n.src[1:]
    )


def placeable(sink: UOp) -> bool:
    """addresses are canonical, every range has more than one step"""
    return canonical(sink) and all(extent(n) != 1 for n in toposort([sink]) if n.op is Op.RANGE)


# --- passes that need others --------------------------------------------------------------------


def share(
    plan: Schedule, target: Target, slots: int | None = None
) -> Schedule | tuple[Schedule, ...]:
    """big reduction of few results -> partial results in chunks, and a kernel that adds them"""
    chunks = wanted_chunks(plan.tasks, plan.cycles)
    split = split_folds(plan.nest.sink, chunks, slots) if chunks > 1 else None
    if split is None:
        return plan
    made: tuple[Schedule, ...] = run(AGAIN, (split.partial, split.final), target=target)
    for part in made:
        part.scratch = split.scratch
    return made


def contract(kernel: DotKernel, target: Target) -> list[Code]:
    """contraction -> packing, register-tiled product with prologue and epilogue, sum of parts"""
    return kernel.codes(target)


def sort(kernel: SortKernel, target: Target) -> list[Code]:
    """sort -> stable insertion or radix sort of rows"""
    return kernel.codes(target)


# --- the list -----------------------------------------------------------------------------------

FLATTEN = Passes((
    Pass(inline, BODY, BODY, after=flat),
    Pass(prune, BODY, BODY, before=flat, after=flat),
    Pass(bound_sizes, BODY, BODY, before=flat, after=bounded),
))  # fmt: skip
ARRANGE = Passes((
    Pass(simplify, BODY, BODY, before=flat, after=flat),
    Pass(prepare, BODY, BODY, before=flat, after=normal),
    Pass(plan_fusion, BODY, GROUPS, before=normal),
    Pass(order_groups, GROUPS, GROUPS),
))  # fmt: skip
RANGEIFY = Passes((Pass(rangeify, BODY, KERNEL, after=indices_only),))
REFINE = Passes((
    Pass(simplify_indices, KERNEL, KERNEL, after=canonical),
    Pass(split_ranges, KERNEL, KERNEL, before=canonical),
    Pass(close_folds, KERNEL, KERNEL),
    Pass(gate_loads, KERNEL, KERNEL),
    Pass(shrink_ranges, KERNEL, KERNEL, after=canonical),
))  # fmt: skip
AGAIN = Passes((
    Pass(merge_ranges, KERNEL, KERNEL, after=placeable),
    Pass(place, KERNEL, NEST, before=placeable),
    Pass(schedule, NEST, SCHEDULE),
))  # fmt: skip
SHARE = Passes((Pass(share, SCHEDULE, SCHEDULE),))
FINISH = Passes((Pass(emit_kernel, SCHEDULE, CODE),))
CONTRACT = Passes((Pass(contract, CONTRACTION, CODES),))
SORTS = Passes((Pass(sort, SORT, CODES),))

WHOLE = Passes((*REFINE, *AGAIN))
LOOPS = Passes((*WHOLE, *SHARE, *FINISH))
PASSES = Passes((*FLATTEN, *ARRANGE, *RANGEIFY, *LOOPS, *CONTRACT, *SORTS))
"""All passes, in order."""


# --- running them -------------------------------------------------------------------------------


def schedule_of(body: UOp) -> Ordered:
    """Fuse and order a flat body; kept on it, so that a loop body is planned once."""
    found: Ordered | None = body.derived.get("schedule")
    if found is None or recording():
        found = body.derived["schedule"] = run(ARRANGE, body)
    return found


def codes_of(kernel: Kernel, target: Target) -> Sequence[Code]:
    """The native functions of a kernel."""
    own = {DotKernel: CONTRACT, SortKernel: SORTS}.get(type(kernel))
    found: Sequence[Code] = kernel.codes(target) if own is None else run(own, kernel, target=target)
    return found
