"""What a checkpoint keeps: the values nearest to its linear part that its policy lets be saved.

The walk goes from the linear part back through what is known, and does not look behind a value that
is saved: what only that needs is neither kept nor computed again. A scan is looked into: values of its
steps that may be saved become outputs of the loop that runs forward, stacked, and inputs of the loop
that computes the rest again. As in JAX, policies are not asked about the inside of while loops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tinyjax.core.avals import Aval
from tinyjax.core.body import fresh_var, open_calls, open_vars, reclose
from tinyjax.core.ops import Op
from tinyjax.core.prune import fewer
from tinyjax.core.uop import UOp, depends_on, get, substitute, token_of, toposort
from tinyjax.interpreters.residuals import LITERALS

Policy = Callable[[UOp], Any]


def saveable(
    params: Sequence[UOp],
    outputs: Sequence[UOp],
    roots: Sequence[UOp],
    linear: Sequence[UOp],
    policy: Policy | None,
) -> tuple[list[UOp], list[UOp], list[UOp]]:
    """Outputs of a body, roots of its linear part, and the values that the latter keeps: inputs, and
    what the policy lets be saved. All else is computed again."""
    is_linear = depends_on([], [v.arg for v in linear])
    outputs, roots = list(outputs), list(roots)
    kept: list[UOp] = []
    if policy is not None:
        outputs, roots, kept = _look_into_loops(params, outputs, roots, is_linear, policy)
    leaves = {*params, *kept}
    reach = _visited(roots, leaves, is_linear, policy)
    inputs = [p for p in params if p in reach]
    saved = [n for n in reach if n in kept or (n not in leaves and _saved(n, is_linear, policy))]
    return outputs, roots, [*inputs, *saved]


def _saved(n: UOp, is_linear: Callable[[UOp], bool], policy: Policy | None) -> bool:
    if policy is None or is_linear(n) or n.op in LITERALS or not isinstance(n.aval, Aval):
        return False
    return n.op is not Op.VAR and bool(policy(n))


def _visited(
    roots: Sequence[UOp],
    leaves: Collection[UOp],
    is_linear: Callable[[UOp], bool],
    policy: Policy | None,
) -> dict[UOp, None]:
    """Nodes from which the roots are computed, sources first, up to leaves and what is saved."""
    stop: dict[UOp, bool] = {}

    def ends(n: UOp) -> bool:
        if n not in stop:
            stop[n] = n in leaves or _saved(n, is_linear, policy)
        return stop[n]

    seen: set[UOp] = set()
    todo = list(roots)
    while todo:
        n = todo.pop()
        if n not in seen:
            seen.add(n)
            todo += () if ends(n) else n.operands
    return dict.fromkeys(toposort(roots, keep=lambda n: n in seen))


def _look_into_loops(
    params: Sequence[UOp],
    outputs: list[UOp],
    roots: list[UOp],
    is_linear: Callable[[UOp], bool],
    policy: Policy,
) -> tuple[list[UOp], list[UOp], list[UOp]]:
    """Known scans in two: one gives what may be saved of its steps, one computes from that again.

    In the roots a variable stands for a saved value until all loops are done, for the loops before
    it are another in what is known than in what is computed again.
    """
    stand_ins: list[UOp] = []
    values: list[UOp] = []
    done: set[UOp] = set()
    while True:
        reach = _visited(roots, {*params, *stand_ins}, is_linear, policy)
        loops = [
            n
            for n in reach
            if n.op is Op.SCAN
            and n not in done
            and not is_linear(n)
            and token_of(n.operands) is None
        ]
        if not loops:
            break
        loop = loops[-1]
        done.add(loop)
        read = {n.arg for n in reach if n.op is Op.GETTUPLE and n.src[0] is loop}
        split = _split(loop, read, policy)
        if split is None:
            continue
        forward, more, again = split
        stand_ins += more
        first = len(loop.aval.elts)
        values += [get(forward, first + i) for i in range(len(more))]
        known = substitute([*outputs, *values], {loop: forward})
        outputs, values = known[: len(outputs)], known[len(outputs) :]
        roots = substitute(roots, {get(loop, i): r for i, r in again.items()})
        done.update(r.src[0] for r in again.values())
    return outputs, substitute(roots, dict(zip(stand_ins, values, strict=True))), values


def _split(
    loop: UOp, read: set[int], policy: Policy
) -> tuple[UOp, list[UOp], dict[int, UOp]] | None:
    """The scan with saved values of its steps as further outputs; variables for these; results in
    `read` computed again from them. None if there is nothing to save."""
    info, operands = loop.arg, loop.operands
    given = info.num_consts + info.num_carry
    avals = [
        a.aval if i < given else a.aval.update(shape=a.aval.shape[1:])
        for i, a in enumerate(operands)
    ]
    own, opened = open_vars(loop.src[0], avals)
    outs = open_calls(opened, lambda inner: inner.kind == "jit" and inner.rule is None)
    carry = own[info.num_consts : given]
    live = set(read)
    while True:  # what is read, and the carries that it takes
        reach = _visited([outs[i] for i in sorted(live)], own, _never, policy)
        more = {i for i, c in enumerate(carry) if c in reach} - live
        if not more:
            break
        live |= more
    saved = [n for n in reach if n not in own and _saved(n, _never, policy)]
    if not saved:
        return None
    forward = UOp(Op.SCAN, (reclose([*outs, *saved], own), *operands), info)
    steps = [fresh_var(n.aval) for n in saved]
    body = reclose(substitute(outs, dict(zip(saved, steps, strict=True))), [*own, *steps])
    first = len(outs)
    stacked = [fresh_var(forward.aval.elts[first + i]) for i in range(len(saved))]
    return forward, stacked, fewer(UOp(Op.SCAN, (body, *operands, *stacked), info), read)


def _never(n: UOp) -> bool:
    return False
