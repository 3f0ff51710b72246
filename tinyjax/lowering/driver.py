"""The one driver of the lowering's passes: what a pass is, and how it is run, checked and recorded.

A `Pass` is data: a function with the stage it takes, the stage it gives, and what must hold before
and after it. A `Stage` knows how to verify, count, print and interpret its values. `run` applies
passes in order; a tuple of values goes through a pass one by one, and a pass may make several.

* Option `tinyjax_verify` 1: the stage verifiers and the conditions are checked around every pass.
  2: what can be interpreted is run before and after it on small made-up buffers.
* `tinyjax.record_rewrites()`: text, nodes and time of every pass, and the rules it applied.

Neither costs anything when it is off. The list of passes is in passes.py.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinyjax.core.config import config
from tinyjax.core.record import PassRecord, inside_pass, note_pass, recording
from tinyjax.core.rewrite import argument_names
from tinyjax.core.uop import UOp
from tinyjax.core.verify import StageError
from tinyjax.lowering.check import close, results_of

CONTEXT = ("target", "name", "slots")
"""What a pass may ask for by a parameter of that name."""

Condition = Callable[[Any], bool]
"""Whether something holds of a value; its docstring says what, in the printed list and in errors."""


def verify_level() -> int:
    """How much is checked: `tinyjax_verify`, at least 1 under `jax_enable_checks`."""
    return max(int(config.tinyjax_verify), int(config.jax_enable_checks))


@dataclass(frozen=True, slots=True)
class Stage:
    """A form of the program. `kernels` and `interpret` are for stages that can be run."""

    name: str
    verify: Callable[[Any], None]
    nodes: Callable[[Any], int]
    show: Callable[[Any], str]
    kernels: Callable[[Any], Sequence[UOp]] | None = None  # the SINKs whose buffers it uses
    interpret: Callable[[Any, Any], None] | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of the lowering. Its name is that of its function, its text the docstring."""

    function: Callable[..., Any]
    takes: Stage
    gives: Stage
    before: Condition | None = None
    after: Condition | None = None

    @property
    def name(self) -> str:
        """The function's name."""
        return str(self.function.__name__)

    @property
    def text(self) -> str:
        """What it does, in a line."""
        return first_line(self.function)

    @property
    def stages(self) -> str:
        """What it takes and what it makes."""
        return f"{self.takes.name} -> {self.gives.name}"

    def __call__(self, value: Any, context: Mapping[str, Any]) -> Any:
        """Apply it, with what it asks for from the context."""
        wanted = _wanted(self.function)
        return self.function(value, **{k: context[k] for k in wanted if k in context})


_WANTED: dict[Callable[..., Any], tuple[str, ...]] = {}


def _wanted(function: Callable[..., Any]) -> tuple[str, ...]:
    found = _WANTED.get(function)
    if found is None:
        names = argument_names(function)
        found = _WANTED[function] = tuple(n for n in CONTEXT if n in names)
    return found


def first_line(function: Any) -> str:
    """The first line of a docstring, as one sentence without its dot."""
    return (inspect.getdoc(function) or "").partition("\n")[0].rstrip(".")


class Passes(tuple[Pass, ...]):
    """Passes in order; printable."""

    __slots__ = ()

    def __str__(self) -> str:
        lines = []
        for p in self:
            lines.append(f"{p.name} ({p.stages})")
            lines.append(f"    {p.text}")
            for word, condition in (("needs", p.before), ("ensures", p.after)):
                if condition is not None:
                    lines.append(f"    {word}: {first_line(condition)}")
        return "\n".join(lines)

    def between(self, takes: Stage, gives: Stage) -> Passes:
        """The passes from the first that takes one stage to the last that gives the other."""
        first = next(i for i, p in enumerate(self) if p.takes is takes)
        last = max(i for i, p in enumerate(self) if p.gives is gives)
        return Passes(self[first : last + 1])


def run(passes: Iterable[Pass], value: Any, **context: Any) -> Any:
    """A value after these passes. Raises: StageError naming the pass that broke something."""
    watched = recording() or verify_level()
    for p in passes:
        apply = _watched if watched else Pass.__call__
        if type(value) is tuple:
            value = tuple(y for x in value for y in _several(apply(p, x, context)))
        else:
            value = apply(p, value, context)
    return value


def _several(value: Any) -> Iterator[Any]:
    return iter(value if type(value) is tuple else (value,))


def _watched(p: Pass, value: Any, context: Mapping[str, Any]) -> Any:
    """Apply a pass under checks and into the open logs."""
    takes = p.takes
    if verify_level():
        _require(p, p.before, value, "needs")
        wanted = _results(takes, [value])  # now: some passes work in place
    if not recording():
        made = p(value, context)
    else:
        before, nodes = takes.show(value), takes.nodes(value)
        start = time.thread_time()
        with inside_pass() as log:
            made = p(value, context)
        seconds = time.thread_time() - start
        steps = [s for r in log.passes if not r.stage for s in r.steps]
        for record in log.passes:
            if record.stage:
                note_pass(record)
        results = list(_several(made))
        note_pass(
            PassRecord(
                p.name,
                nodes,
                tuple(steps),
                p.stages,
                sum(map(p.gives.nodes, results)),
                seconds,
                before,
                "\n\n".join(map(p.gives.show, results)),
            )
        )
    if verify_level():
        try:
            for each in _several(made):
                p.gives.verify(each)
            found = _results(p.gives, list(_several(made))) if wanted is not None else None
        except (StageError, AssertionError) as error:
            raise StageError(f"after pass {p.name}: {error}") from None
        for each in _several(made):
            _require(p, p.after, each, "ensures")
        for number, (x, y) in enumerate(zip(wanted or (), found or (), strict=False)):
            if not close(x, y):
                raise StageError(f"pass {p.name} changes what the kernel writes to slot {number}")
    return made


def _require(p: Pass, condition: Condition | None, value: Any, word: str) -> None:
    if condition is not None and not condition(value):
        raise StageError(f"pass {p.name} {word}: {first_line(condition)}")


def _results(stage: Stage, values: Sequence[Any]) -> Any:
    """Level 2: what these values, run one after the other, leave in made-up buffers."""
    interpret = stage.interpret
    if interpret is None or stage.kernels is None or verify_level() < 2:
        return None
    sinks = [k for x in values for k in stage.kernels(x)]

    def all_of(buffers: Any) -> None:
        for x in values:
            interpret(x, buffers)

    return results_of(sinks, all_of)
