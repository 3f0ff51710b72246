"""Compiled bodies: lowered on first use, kept with the body, run on buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyjax.core import execute, memory
from tinyjax.core.avals import Aval
from tinyjax.core.body import close, fresh_var, hoist_memory, params_of
from tinyjax.core.composites import raised_body
from tinyjax.core.config import config
from tinyjax.core.dims import Atom, evaluate
from tinyjax.core.dtypes import is_key
from tinyjax.core.errors import deleted
from tinyjax.core.locks import shared_lock
from tinyjax.core.ops import BODIES, Op
from tinyjax.core.uop import Buffer, UOp, results
from tinyjax.interpreters.evaluate import EVAL
from tinyjax.runtime.buffers import pool, shared

Array = np.ndarray[Any, Any]


def storage(of: Aval) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype a value has in memory: typed keys are uint32 with a trailing axis."""
    if is_key(of.dtype):
        return of.shape + of.dtype.key_shape, np.dtype(np.uint32)
    return of.shape, of.dtype


def address_of(buffer: Buffer) -> int:
    """Where a buffer lies; found once. A deleted one lies nowhere."""
    if buffer.deleted:
        raise deleted(buffer.aval)
    if not buffer.address:
        buffer.address = memory.address(buffer.value)
    return buffer.address


class Executable:
    """A body ready to run: inputs in PARAM order, then memory its rules hold."""

    __slots__ = (
        "aliases",
        "avals",
        "consumed",
        "extra",
        "lowered",
        "makers",
        "program",
        "run_program",
        "sized",
    )

    def __init__(self, body: UOp, count: int, donated: frozenset[int]) -> None:
        from tinyjax.lowering.program import lower  # the compiler is loaded on first use

        self.avals: tuple[Aval, ...] = body.aval.elts
        hoisted, leaves = hoist_memory(body, count)
        self.extra = [leaf.arg for leaf in leaves]
        self.lowered = lower(raised_body(hoisted), count + len(leaves), donated)
        self.program = self.lowered.program()
        self.run_program: Callable[..., None] = self.program.run
        self.aliases = self.lowered.plan.aliases
        self.consumed = consumed(hoisted, self.avals, donated, self.aliases)
        self.sized: dict[tuple[int, ...], Sized] = {}
        symbolic = bool(self.lowered.sizes)
        self.makers = [] if symbolic else [pool.maker(*storage(a)) for a in self.avals]

    def run(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Outputs in fresh buffers, or in those of donated inputs."""
        addresses = [b.address or address_of(b) for b in buffers]
        if self.extra:
            addresses += [address_of(b) for b in self.extra]
        outs = []
        for make, of in zip(self.makers, self.avals, strict=True):
            value, at = make()
            addresses.append(at)
            outs.append(Buffer(value, of, at))
        if self.aliases:
            first = len(addresses) - len(outs)
            for out, source in self.aliases.items():
                like = outs[out].value
                value = buffers[source].value.reshape(-1).view(like.dtype).reshape(like.shape)
                outs[out] = Buffer(value, self.avals[out], addresses[source])
                addresses[first + out] = addresses[source]
        try:
            self.run_program(*addresses)
        finally:  # interrupted, it may have written to them
            for source in self.consumed:
                give_up(buffers[source])
        return outs

    def sized_for(self, dims: Mapping[Atom, int]) -> Sized:
        """What is known of a run once its dimensions are; kept for the next run with them."""
        key = tuple(dims.values())
        found = self.sized.get(key)
        if found is None:
            unknown = [a.name for a in self.lowered.sizes.dims() if a not in dims]
            if unknown:
                raise ValueError(
                    f"symbolic dimension {', '.join(unknown)} is not the size of an argument, so a "
                    "call does not say what it is.\n  Give an axis of an argument that size."
                )
            avals = [
                of.update(shape=tuple(evaluate(s, dims) for s in of.shape)) for of in self.avals
            ]
            found = self.sized[key] = Sized(
                self.lowered.sizes.values(dims)[: self.program.layout.dims],
                avals,
                [pool.maker(*storage(a)) for a in avals],
            )
        return found

    def run_sized(self, buffers: Sequence[Buffer], dims: Mapping[Atom, int]) -> list[Buffer]:
        """`run` for a body with symbolic sizes, where its dimensions have these values (always the
        same dimensions, in the same order)."""
        sized = self.sized_for(dims)
        addresses = [b.address or address_of(b) for b in (*buffers, *self.extra)]
        outs = []
        for make, of in zip(sized.makers, sized.avals, strict=True):
            value, at = make()
            addresses.append(at)
            outs.append(Buffer(value, of, at))
        self.run_program(*addresses, *sized.values)
        return outs


class SizedRun:
    """An executable for one choice of its dimensions: runs as an `Executable` does."""

    __slots__ = ("compiled", "dims")

    def __init__(self, compiled: Executable, dims: Mapping[Atom, int]) -> None:
        self.compiled, self.dims = compiled, dims

    def run(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Outputs in fresh buffers."""
        return self.compiled.run_sized(buffers, self.dims)


@dataclass(frozen=True, slots=True)
class Sized:
    """Sizes of a program, avals of its results and how they are allocated, for given dimensions."""

    values: tuple[int, ...]
    avals: list[Aval]
    makers: list[Callable[[], tuple[Any, int]]]


def consumed(
    body: UOp, outs: Sequence[Aval], donated: frozenset[int], aliases: dict[int, int]
) -> tuple[int, ...]:
    """Donated inputs that are gone after a call: those a result lies in or could lie in.

    What the plan does not alias is given back to the pool, where the next result finds it.
    """
    taken = set(aliases.values())
    free = [of for i, of in enumerate(outs) if i not in aliases]
    avals = params_of(body) if donated else {}
    for i in sorted(donated - taken):
        of = avals.get(i)
        spot = next((o for o in free if of and (o.shape, o.dtype) == (of.shape, of.dtype)), None)
        if spot is not None:
            free.remove(spot)
            taken.add(i)
    return tuple(sorted(taken))


def give_up(buffer: Buffer) -> None:
    """Mark a donated buffer deleted and let go of its memory."""
    buffer.deleted, buffer.address = True, 0
    buffer.value = np.empty(0, buffer.value.dtype)


_lock = shared_lock()


def executable(body: UOp, count: int, donated: frozenset[int] = frozenset()) -> Executable:
    """The compiled form of a body of `count` inputs; made once per set of donated inputs."""
    key = ("executable", count, donated, config.tinyjax_hardened)
    found = body.derived.get(key)
    if found is None:
        with _lock:
            found = body.derived.get(key)
            if found is None:
                found = body.derived[key] = Executable(body, count, donated)
    return found


def node_body(node: UOp) -> UOp:
    """A body that applies one node with bodies to parameters."""
    if node.op is Op.CALL:
        return node.src[0]
    avals = tuple(s.aval for s in node.operands)
    key = ("as body", node.op, node.arg, node.bodies, avals)
    found = node.src[0].derived.get(key)
    if found is None:
        variables = [fresh_var(a) for a in avals]
        again = UOp(node.op, (*node.bodies, *variables), node.arg)
        found, _ = close(results(again), variables, keep_memory=True)
        node.src[0].derived[key] = found
    return found


def run_node(node: UOp, args: Sequence[Any]) -> list[Any]:
    """Run a CALL, SCAN, WHILE or COND met by the evaluator as a compiled program.

    Routines in Python (HOST_CALL, CALLBACK, CHECK) met by a program are run by the evaluator's row.
    """
    if node.op not in BODIES:
        return EVAL[node.op](node, list(args))  # type: ignore[no-any-return]
    body = node_body(node)
    buffers = [Buffer(v, s.aval) for v, s in zip(args, node.operands, strict=True)]
    return [b.value for b in executable(body, len(buffers)).run(buffers)]


execute.install(run_node)
memory.install_allocator(shared)
