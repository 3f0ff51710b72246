"""custom_jvp, custom_vjp: derivative rules written by the user, held by a CALL as closed bodies.

Interpreters ask a CALL's rule for bodies at its own unbatched avals and batch or differentiate
those like any other; the Python rule is not run again on batched values. Two ways to make them:

* Staged (`StagedRule`): under jit, vmap, scan the function is staged, and the rule when first
  needed; inside of a derivative that they hold the rule alone, which gives the values too. What both
  close over is matched by variable, so it follows the call's current arguments.
* Run now (`PinnedRule`): when an argument is being differentiated outside of staging, the rule runs
  at the call, in place of the function, on variables bound to the arguments. Python control flow on
  values works in it, and it runs once. A bwd runs when the cotangents are known, on variables bound
  to these.

Both rules may be given to one function: forward mode uses the jvp rule, reverse mode the vjp rule.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import is_not
from types import CellType, FunctionType
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import TOKEN, Aval, aval
from tinyjax.core.body import (
    close,
    fresh_var,
    open_body,
    open_calls,
    open_vars,
    outer_variables,
    reclose,
)
from tinyjax.core.errors import UnexpectedTracerError, require_callable, user_line
from tinyjax.core.infos import Backward, CallInfo
from tinyjax.core.ops import Op
from tinyjax.core.prune import prune
from tinyjax.core.source import api_boundary, call_site
from tinyjax.core.tree import (
    leaf_paths,
    tree_map,
    tree_structure,
    tree_unflatten,
)
from tinyjax.core.treedef import PyTreeDef, tree_flatten
from tinyjax.core.uop import UOp, Var, tuple_of
from tinyjax.engine.array import Array
from tinyjax.engine.derivatives import float0_zeros, leave
from tinyjax.engine.effects import next_token, perform
from tinyjax.engine.refs import Ref, assign, cell_of, current, mapped, refuse_value
from tinyjax.engine.tracing import argument_paths, name_of, output_nodes
from tinyjax.engine.values import finish_all, is_array_like, lift, shaped_abstractify
from tinyjax.interpreters.effects import has_effects
from tinyjax.interpreters.jvp import Tangent, add_tangents, instantiate, jvp
from tinyjax.interpreters.linearize import refuse_tangents, values_apart, zero_tangents
from tinyjax.interpreters.midway import tangents_of
from tinyjax.interpreters.trace import (
    Cell,
    Chain,
    Trace,
    differentiated,
    differentiated_outside,
    innermost,
    linear_apart,
    linear_part,
    open_trace,
    outside,
    state,
    unbound,
)

Flags = tuple[bool, ...]
NUMBERS = (bool, int, float, complex)


class CustomVJPException(UnexpectedTracerError):
    """A function with a custom rule closes over a value that is being differentiated."""

    def __init__(self, name: str = "the function", what: str = "") -> None:
        super().__init__(
            f"Detected differentiation of {name}, which has a custom derivative rule, with respect "
            f"to a closed-over value{f' ({what})' if what else ''}; its rule cannot give that "
            f"derivative, and zero would be wrong.\n{user_line(call_site())}\n"
            "  Pass the value as an explicit argument, or apply lax.stop_gradient to it."
        )


class FunctionNeeded(Exception):
    """What a rule touches, or closes over, can be judged only when its function has run."""


def hidden(name: str, value: UOp) -> UnexpectedTracerError:
    """The error for a rule that is staged when the call of its function is past, and then finds a traced
    value that the call does not know of (`reachable`)."""
    return UnexpectedTracerError(
        f"a custom derivative rule of {name} uses a traced value {value.aval.str_short()} from outside "
        f"that is hidden in an object.\n{user_line(call_site())}\n"
        "  Let the rule close over it directly or in a pytree, or pass it as an argument."
    )


AS_FUNCTION = "  Return as the value what the function itself returns for the same arguments."
AS_ARGUMENT = "  Return the containers of the argument, or None for a part that is zero."
"""What the rules of a function are to return."""


class SymbolicZero:
    """A structurally zero tangent or cotangent (seen by rules with symbolic_zeros=True)."""

    def __init__(self, aval: Aval) -> None:
        self.aval = aval

    @staticmethod
    def from_primal_value(val: Any) -> SymbolicZero:
        """The zero tangent of a value."""
        return SymbolicZero(zero_aval(shaped_abstractify(val)))

    shape = property(lambda self: self.aval.shape)
    dtype = property(lambda self: self.aval.dtype)
    ndim = property(lambda self: self.aval.ndim)
    size = property(lambda self: self.aval.size)
    weak_type = property(lambda self: self.aval.weak_type)

    def __repr__(self) -> str:
        return f"SymbolicZero({self.aval.str_short()})"


def zero_aval(of: Aval) -> Aval:
    """Aval of the tangent of a value: float0 if it has none."""
    if dtypes.is_inexact(of.dtype):
        return of.strip_weak_type()
    return aval(of.shape, dtypes.float0)


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """A zero tangent of a value: an array, float0 zeros for integers, or a `SymbolicZero`."""
    zero = SymbolicZero.from_primal_value(val)
    if symbolic_zeros:
        return zero
    if zero.dtype == dtypes.float0:
        return float0_zeros(zero.shape)
    return finish_all([b.zeros(zero.aval)])[0]


def custom_vjp_primal_tree_values(tree: Any) -> Any:
    """A tree of `CustomVJPPrimal`s (what fwd gets with symbolic_zeros=True) as one of values."""

    def value(leaf: Any) -> Any:
        if type(leaf) is not CustomVJPPrimal:
            raise TypeError(f"unexpected leaf type {type(leaf)}")
        return leaf.value

    return tree_map(value, tree)


class CustomVJPPrimal:
    """A primal and whether it is perturbed (seen by fwd with symbolic_zeros=True)."""

    def __init__(self, value: Any, perturbed: bool) -> None:
        self.value, self.perturbed = value, perturbed


def inexact_positions(avals: Sequence[Aval]) -> list[int]:
    """Where those are that have tangents."""
    return [i for i, a in enumerate(avals) if dtypes.is_inexact(a.dtype)]


def inexact_of(avals: Sequence[Aval]) -> list[Aval]:
    """Those that have tangents."""
    return [avals[i] for i in inexact_positions(avals)]


@dataclass(frozen=True, slots=True)
class ResidualTree:
    """The tree of a fwd's residuals; Python numbers (sizes, flags) and Refs reach bwd as they are."""

    tree: PyTreeDef
    numbers: tuple[bool | int | float | complex | Ref | None, ...]  # None where a leaf is an array

    def unflatten(self, arrays: Sequence[Array]) -> Any:
        """The residuals, from those that are arrays."""
        given = iter(arrays)
        return tree_unflatten(self.tree, [next(given) if n is None else n for n in self.numbers])


@dataclass(slots=True)
class Application:
    """One application of a function with custom rules: the rules, and how arguments are laid out.

    `arrange` puts the flat dynamic arguments and the static (nondiff) ones in the user's order.
    `out_tree` is that of the function's value, if it was run or if a rule stands for it.
    """

    owner: CustomFunction
    in_tree: PyTreeDef
    arrange: Callable[[Any], tuple[Any, ...]]
    statics: tuple[Any, ...]
    out_tree: PyTreeDef | None = None
    out_avals: Sequence[Aval] | None = None
    refs: dict[int, Ref] = field(default_factory=dict)

    def arguments(self, leaves: Sequence[Any]) -> Any:
        """The tree of the dynamic arguments: these arrays, and the Refs among the arguments."""
        rest = iter(leaves)
        count = len(leaves) + len(self.refs)
        full = [self.refs[i] if i in self.refs else next(rest) for i in range(count)]
        return tree_unflatten(self.in_tree, full)

    @property
    def name(self) -> str:
        return name_of(self.owner.fun)

    def primal(self, nodes: Sequence[UOp]) -> tuple[list[UOp], PyTreeDef]:
        """The user's function on these nodes."""
        args = self.arrange(self.arguments([Array(n) for n in nodes]))
        return output_nodes(self.owner.fun(*args), self.owner.fun, self.owner.kind)

    def learn(self, outs: Sequence[UOp], tree: PyTreeDef) -> None:
        """What a rule gives is what the function would have given, if that has not run."""
        if self.out_tree is None:
            self.out_tree, self.out_avals = tree, [o.aval for o in outs]

    def check_outputs(self, rule: Any, outs: Sequence[UOp], tree: PyTreeDef, kind: str) -> None:
        """The rule's value must look like the function's."""
        if self.out_tree is not None and tree != self.out_tree:
            raise TypeError(
                f"Custom {kind} rule {name_of(rule)} for function {self.name} must produce a pair "
                "whose first element has the same container (pytree) structure as the value of "
                f"{self.name}: got {tree}, expected {self.out_tree}.\n{AS_FUNCTION}"
            )
        for o, of in zip(outs, self.out_avals or (), strict=False):
            if o.shape != of.shape or o.dtype != of.dtype:
                raise TypeError(
                    f"Custom {kind} rule {name_of(rule)} for function {self.name} must produce a "
                    f"pair whose first element has the shapes and dtypes of the value of "
                    f"{self.name}: got {o.aval.str_short()}, expected {of.str_short()}.\n"
                    + AS_FUNCTION
                )

    def pair(self, rule: Any, result: Any, kind: str, second: str) -> tuple[Any, Any]:
        """Check that a rule returned two things."""
        if not (isinstance(result, (tuple, list)) and len(result) == 2):
            raise TypeError(
                f"Custom {kind} rule {name_of(rule)} for function {self.name} must produce a pair "
                f"(list or tuple of length two) representing the primal output and {second}, but "
                f"got {result!r}.\n  Return (value, {second.split()[0]}): the value of {self.name} first."
            )
        return result[0], result[1]

    def jvp(
        self, nodes: Sequence[UOp], dots: Sequence[UOp], zero: Flags
    ) -> tuple[list[UOp], list[Tangent], PyTreeDef]:
        """The user's jvp rule: outputs, tangents (None for zero or no tangent), output tree."""
        rule = self.owner.jvp_rule
        assert rule is not None
        symbolic = self.owner.jvp_symbolic
        given = iter(zip(dots, zero, strict=True))
        tangents: list[Any] = []
        for n in nodes:
            if not dtypes.is_inexact(n.dtype):
                zero_tangent = SymbolicZero(zero_aval(n.aval))
                tangents.append(zero_tangent if symbolic else float0_zeros(n.shape))
                continue
            dot, is_zero = next(given)
            tangents.append(SymbolicZero(zero_aval(n.aval)) if symbolic and is_zero else Array(dot))
        primals = self.arguments([Array(n) for n in nodes])
        result = rule(*self.statics, tuple(primals), tuple(self.arguments(tangents)))
        value, tangent = self.pair(rule, result, "JVP", "tangent outputs")
        outs, out_tree = output_nodes(value, rule, "custom_jvp")
        self.check_outputs(rule, outs, out_tree, "JVP")
        leaves, t_tree = tree_flatten(tangent, is_leaf=lambda x: isinstance(x, SymbolicZero))
        if out_tree != t_tree:
            raise TypeError(
                f"Custom JVP rule {name_of(rule)} for function {self.name} must produce primal and "
                "tangent outputs with equal container (pytree) structures, but got "
                f"{out_tree} and {t_tree} respectively.\n"
                "  Return a tangent for each array of the value, jnp.zeros_like(it) if it has none."
            )
        return (
            outs,
            [self._tangent(rule, o, t) for o, t in zip(outs, leaves, strict=True)],
            out_tree,
        )

    def _tangent(self, rule: Any, out: UOp, t: Any) -> Tangent:
        if isinstance(t, SymbolicZero) or not dtypes.is_inexact(out.dtype):
            return None
        node = lift(t)
        if node.shape != out.shape or (node.dtype != out.dtype and not node.aval.weak_type):
            raise TypeError(
                f"Custom JVP rule {name_of(rule)} for function {self.name} must produce primal and "
                f"tangent outputs with equal shapes and dtypes, but got {out.aval.str_short()} and "
                f"{node.aval.str_short()}.\n  Bring the tangent to the value's: jnp.broadcast_to, "
                ".astype."
            )
        return b.cast(node, out.dtype)

    def fwd(
        self, nodes: Sequence[UOp], zero: Flags
    ) -> tuple[list[UOp], list[UOp], PyTreeDef, ResidualTree]:
        """The user's fwd: outputs, residuals, and the trees of both."""
        assert self.owner.vjp_rule is not None
        rule = self.owner.vjp_rule[0]
        leaves: list[Any] = [Array(n) for n in nodes]
        if self.owner.vjp_symbolic:
            given = iter(zero)
            leaves = [
                CustomVJPPrimal(x, dtypes.is_inexact(x.dtype) and not next(given)) for x in leaves
            ]
        result = rule(*self.arrange(self.arguments(leaves)))
        value, residuals = self.pair(rule, result, "VJP fwd", "residuals")
        outs, out_tree = output_nodes(value, rule, "custom_vjp")
        self.check_outputs(rule, outs, out_tree, "VJP fwd")
        given_held, held_tree = tree_flatten(residuals)
        arrays = [0 if isinstance(x, Ref) else x for x in given_held]
        held, _ = output_nodes(tree_unflatten(held_tree, arrays), rule, "custom_vjp residuals")
        numbers = tuple(x if type(x) in (*NUMBERS, Ref) else None for x in given_held)
        held = [h for h, number in zip(held, numbers, strict=True) if number is None]
        return outs, held, out_tree, ResidualTree(held_tree, numbers)

    def bwd(
        self,
        held: Sequence[UOp],
        held_tree: ResidualTree,
        cts: Sequence[Tangent],
        outs: Sequence[Aval],
        out_tree: PyTreeDef,
        avals: Sequence[Aval],
    ) -> tuple[list[UOp], dict[Ref, UOp]]:
        """The user's bwd: a cotangent for each inexact argument leaf, and those given for what mutable
        arrays among them hold, added to those of what they hold afterwards. A `ct` of None is zero."""
        assert self.owner.vjp_rule is not None
        rule = self.owner.vjp_rule[1]
        given = iter(cts)
        leaves: list[Any] = []
        for o in outs:
            ct = next(given) if dtypes.is_inexact(o.dtype) else None
            if ct is not None:
                leaves.append(Array(ct))
            elif self.owner.vjp_symbolic:
                leaves.append(SymbolicZero(zero_aval(o)))
            else:
                leaves.append(float0_zeros(o.shape))
        result = rule(
            *self.statics,
            held_tree.unflatten([Array(h) for h in held]),
            tree_unflatten(out_tree, leaves),
        )
        result = tuple(result) if isinstance(result, list) else result
        trees = self.in_tree.children()
        if not isinstance(result, tuple) or len(result) != len(trees):
            raise TypeError(
                f"Custom VJP bwd rule {name_of(rule)} for function {self.name} must produce a "
                "tuple "
                "of length equal to the number of its differentiable arguments, "
                f"{len(trees)}, but got {result!r}.\n  Return a cotangent per argument, (ct,) for one "
                "argument, and None where it is zero."
            )
        flat: list[Any] = []
        for i, (part, tree) in enumerate(zip(result, trees, strict=True)):
            if part is None:
                flat += [None] * tree.num_leaves
                continue
            try:
                flat += tree.flatten_up_to(part)
            except ValueError:
                raise TypeError(
                    f"Custom VJP bwd rule {name_of(rule)} for function {self.name} must produce "
                    "cotangents with the tree structure of the arguments: for argument "
                    f"{i} got {tree_structure(part)}, expected {tree}.\n{AS_ARGUMENT}"
                ) from None
        numbered = [(i, ct) for i, ct in enumerate(flat) if i not in self.refs]
        found = [
            self._cotangent(rule, ct, of, i)
            for (i, ct), of in zip(numbered, avals, strict=True)
            if dtypes.is_inexact(of.dtype)
        ]
        of_refs = {
            ref: self._cotangent(rule, flat[i], ref.aval_, i)
            for i, ref in self.refs.items()
            if flat[i] is not None and dtypes.is_inexact(ref.dtype)
        }
        return found, of_refs

    def _cotangent(self, rule: Any, ct: Any, of: Aval, leaf: int) -> UOp:
        if (
            ct is None
            or isinstance(ct, SymbolicZero)
            or getattr(ct, "dtype", None) == dtypes.float0
        ):
            return b.zeros(of.strip_weak_type())
        if not is_array_like(ct):
            raise TypeError(
                f"Custom VJP bwd rule {name_of(rule)} for function {self.name} must produce "
                "cotangents with the tree structure of the arguments: where an argument has an "
                f"array {of.str_short()}, {leaf_paths('args', self.in_tree)[leaf]}, got "
                f"{tree_structure(ct)}.\n{AS_ARGUMENT}"
            )
        node = lift(ct)
        if node.shape != of.shape:
            raise ValueError(
                f"Custom VJP bwd rule {name_of(rule)} for function {self.name} must produce "
                f"cotangents of the arguments' shapes: got {node.aval.str_short()}, expected "
                f"{of.str_short()}, for {leaf_paths('args', self.in_tree)[leaf]}.\n"
                "  Sum it over the axes along which the argument was broadcast."
            )
        return b.cast(node, of.dtype)


class StagedRule:
    """Bodies made on demand. `captures` are the outer variables that the function mentions or that
    its rules close over: further arguments of the call, in this order. `body` is the function's own,
    of `count` arguments; the last of these, and of the outputs, are what the mutable arrays `held`
    hold: those from outside that the function or a forward rule may touch; `left` says which the
    function leaves alone. The derivative of what one holds passes through a rule that leaves it
    alone, or had it as an argument.
    Those in `kept`, with the vmap that they are outside of, must not be written; those in
    `unlinked` are what the function wrote, without a derivative."""

    def __init__(
        self,
        application: Application,
        count: int,
        captures: Sequence[UOp],
        body: UOp | None = None,
        held: Sequence[Ref] = (),
        left: Sequence[bool] = (),
    ) -> None:
        self.application, self.body, self.held = application, body, tuple(held)
        self.count, self.captures, self.left = count, list(captures), left
        self.is_argument = [any(r is x for x in application.refs.values()) for r in held]
        self._made: dict[Any, Any] = {}
        self._grows = False
        self._at: Trace | None = None
        self.refs: tuple[Ref, ...] = ()
        self.kept: dict[Ref, Trace] = {}
        self.unlinked: set[Ref] = set()
        self._linked: dict[Any, list[bool]] = {}
        self._lost: dict[Any, list[bool]] = {}

    @property
    def applies(self) -> bool:
        """Whether a derivative that is taken now is the rule's: one that it was settled for has it, of
        a value that this one did not see (aux) a later one is that of the function, as in JAX."""
        return self._at is None or self._at.open

    has_jvp = property(lambda self: self.application.owner.jvp_rule is not None)
    has_vjp = property(lambda self: self.application.owner.vjp_rule is not None)

    @property
    def passes(self) -> dict[int, int]:
        """What a mutable array holds that is an argument: its derivative, whatever is written."""
        first, own = len(self.application.out_avals or ()), self.count - len(self.held)
        return {first + i: own + i for i, on in enumerate(self.is_argument) if on}

    @property
    def cut(self) -> frozenset[int]:
        """Outputs that have no derivative: what a rule has written to mutable arrays."""
        first = len(self.application.out_avals or ())
        written = (i for each in self._linked.values() for i, on in enumerate(each) if not on)
        return frozenset(first + i for i in written)

    def _key(self, kind: str, avals: Sequence[Aval], zero: Flags) -> Any:
        owner = self.application.owner
        zero = zero if (owner.jvp_symbolic if kind == "jvp" else owner.vjp_symbolic) else ()
        return kind, tuple(a.strip_weak_type() for a in self._user(avals)), zero

    def settle(self, nodes: Sequence[UOp]) -> list[UOp]:
        """Make the rule's bodies for these arguments now; what only they close over is captured too.

        Later the variables of the open traces could not be matched to arguments of the call.
        """
        args = [*nodes, *self.captures]
        known = len(self.captures)
        at = innermost(nodes)
        # What stands for another value, in a vmap or a loop, may depend on a derivative further in.
        inside = (v for n in nodes for v in n.free if not outside(v, at))
        self._at = None if any(v.bound is None for v in inside) else at
        self._grows = True
        try:
            given = args if self._at is not None else nodes
            none = (True,) * len(inexact_of([n.aval for n in args[len(given) :]]))
            makers, before = self._makers(), -1
            while before < len(self.captures):
                before = len(self.captures)
                self._made.clear()
                for make in makers:
                    avals = [n.aval for n in (*nodes, *self.captures)]
                    more = (True,) * len(inexact_of(avals[len(args) :]))
                    make(avals, zero_at(at, given) + none + more)
                if len(makers) == 1:  # of two, each takes what the other captures
                    break
        finally:
            self._grows = False
        return self.captures[known:]

    def value_body(self, nodes: Sequence[UOp]) -> UOp | None:
        """A body of the function's values, as the rule that was made for it computes them; None if they,
        or effects of the rule, depend on tangents."""
        assert self.application.out_avals is not None
        avals = [n.aval for n in (*nodes, *self.captures)]
        for (kind, *_), (body, _) in self._made.items():
            dots = [a.strip_weak_type() for a in inexact_of(avals)] if kind == "jvp" else []
            (*given, start), outs = open_vars(body, [*avals, *dots, TOKEN])
            starts, tokens = ([start], outs[-1:]) if has_effects(body) else ([], [])
            roots = [*outs[: len(self.application.out_avals)], *tokens]
            tangents = {v.arg for v in given[len(avals) :]}
            if all(tangents.isdisjoint(root.free) for root in roots):
                return reclose(roots, [*given[: len(avals)], *starts])
        return None

    def _makers(self) -> list[Callable[..., Any]]:
        """What makes the bodies that the derivative, if it is known, may use."""
        forward, reverse = self.application.owner.rules_for(self._at)
        return [*[self.jvp_body] * forward, *[self.vjp_bodies] * reverse]

    def _capture(self, nodes: Sequence[UOp], local: Sequence[UOp]) -> None:
        if self._grows:
            if self._at is not None:
                self.application.owner._refuse_active(nodes, self._at)
            self.captures += outer_variables(nodes, [*local, *self.captures])

    def _close(self, nodes: Sequence[UOp], own: Sequence[UOp], more: Sequence[UOp]) -> UOp:
        """Parameters: own variables, the call's captures, then `more`."""
        body, captured = close(nodes, [*own, *self.captures, *more], keep_memory=True)
        if captured:
            raise hidden(self.application.name, captured[0])
        return body

    def _user(self, avals: Sequence[Aval]) -> Sequence[Aval]:
        return avals[: self.count]

    def _plain(self, own: Sequence[Any]) -> list[Any]:
        """Of arguments, those that are not what mutable arrays hold."""
        return list(own[: self.count - len(self.held)])

    def _hold(self, trace: Trace, own: Sequence[UOp]) -> list[UOp]:
        """Let the mutable arrays hold the last arguments in a rule's trace; the others."""
        plain = self._plain(own)
        starts = own[len(plain) :]
        trace.cells.update((r, Cell(v, v)) for r, v in zip(self.held, starts, strict=True))
        return plain

    def _after(self, trace: Trace, rule: Any) -> list[UOp]:
        """What they hold when the rule has run."""
        hidden_refs = [ref for ref in trace.cells if ref not in self.held]
        if hidden_refs and self.body is None:
            raise FunctionNeeded
        refuse_refs(hidden_refs, rule)
        return [trace.cells[ref].node for ref in self.held]

    def _note(
        self, key: Any, outs: Sequence[UOp], starts: Sequence[UOp], after: Sequence[UOp]
    ) -> None:
        """Which mutable arrays keep their derivative in a rule, and which would lose one."""
        left, lost = leaves_alone(outs, starts, after)
        for ref, node, same in zip(self.held, after, left, strict=True):
            if ref in self.kept and not same:
                refuse_value(ref, node, self.kept[ref], ())
        self._linked[key] = [same or arg for same, arg in zip(left, self.is_argument, strict=True)]
        self._lost[key] = [bad and not arg for bad, arg in zip(lost, self.is_argument, strict=True)]

    def _refuse_active_refs(self, key: Any, avals: Sequence[Aval], zero: Flags) -> None:
        """Raise if what a mutable array holds has a derivative that would be lost."""
        active = {i for i, is_zero in zip(inexact_positions(avals), zero) if not is_zero}
        states = zip(self.held, self._lost[key], self._linked[key], strict=True)
        for i, (ref, lost, linked) in enumerate(states, self.count - len(self.held)):
            if i in active and (lost or (linked and ref in self.unlinked)):
                raise CustomVJPException(self.application.name, "what a Ref holds")

    def after_call(self, ref: Ref, settled: bool) -> str:
        """What a call does with a mutable array: it is kept, passed through, or written.

        The function decides, unless an argument is being differentiated already (`settled`): then the
        rule, which stands for it. A vmap forbids writing and is not asked about rules that may stand
        for the function later: they are refused what they write when they do.
        """
        at = self.held.index(ref)
        if settled:
            if self.is_argument[at]:
                return "passed"
            return "kept" if all(each[at] for each in self._linked.values()) else "written"
        if not self.left[at]:
            if self.is_argument[at]:
                return "passed"
            self.unlinked.add(ref)
            return "written"
        vmap = mapped(ref)
        if vmap is None:
            return "passed"
        self.kept[ref] = vmap
        return "kept"

    def _refuse_active_captures(self, avals: Sequence[Aval], zero: Flags) -> None:
        """Raise if the function depends differentiably on a capture that has a tangent."""
        active = {i for i, is_zero in zip(inexact_positions(avals), zero) if not is_zero}
        active &= set(range(self.count, len(avals)))
        if not active:
            return
        if self.body is None:
            raise FunctionNeeded
        for i in sorted(active):
            params, outs = open_vars(self.body, [*avals, TOKEN])
            _, touts = jvp(outs, {params[i]: trace_free(params[i])})
            if any(t is not None for t in touts):
                capture = self.captures[i - self.count]
                path = capture.arg.path if capture.op is Op.VAR else ""
                raise CustomVJPException(self.application.name, path)

    def jvp_body(self, avals: Sequence[Aval], zero: Flags) -> tuple[UOp, Flags]:
        """(args, tangents of inexact args) -> (outputs, nonzero tangents); which are zero."""
        key = self._key("jvp", avals, zero)
        self._refuse_active_captures(avals, zero)
        if key not in self._made:
            with open_trace("custom_jvp rule", self.application.owner.jvp_rule, True) as trace:
                chain = trace.chain
                own = [trace.variable(a) for a in self._user(avals)]
                dots = [trace.variable(a.strip_weak_type()) for a in inexact_of(avals)]
                user = self._hold(trace, own)
                mine = len(inexact_of([v.aval for v in user]))
                outs, touts, tree = self.application.jvp(user, dots[:mine], zero[:mine])
                self.application.learn(outs, tree)
                starts, after = (
                    own[len(user) :],
                    self._after(trace, self.application.owner.jvp_rule),
                )
                self._note(key, outs, starts, after)
                outs += after
                moving = iter(dots[mine:])
                of_refs = [next(moving) if dtypes.is_inexact(v.dtype) else None for v in starts]
                linked = self._linked[key]
                touts += [t if on else None for t, on in zip(of_refs, linked, strict=True)]
                nodes = [*outs, *(t for t in touts if t is not None), *chain.tokens]
                count = len(self.captures)
                self._capture(nodes, [*own, *dots, *chain.starts])
                dots += [trace_free(c) for c in self.captures[count:] if dtypes.is_inexact(c.dtype)]
                body = self._close(nodes, own, [*dots, *chain.starts])
            self._made[key] = body, zero_tangents(outs, touts)
        self._refuse_active_refs(key, avals, zero)
        return self._made[key]  # type: ignore[no-any-return]

    def vjp_bodies(self, avals: Sequence[Aval], zero: Flags) -> tuple[UOp, Any]:
        """args -> (outputs, residuals); (residuals, cotangents) -> cotangents of inexact args.

        With symbolic zeros the latter is a `Backward`: bwd runs for each pattern of zeros.
        """
        key = self._key("vjp", avals, zero)
        self._refuse_active_captures(avals, zero)
        if key not in self._made:
            application = self.application
            assert application.owner.vjp_rule is not None
            fwd, bwd = application.owner.vjp_rule
            symbolic = application.owner.vjp_symbolic
            with open_trace("custom_vjp fwd", fwd, True) as trace:
                own = [trace.variable(a) for a in self._user(avals)]
                outs, held, out_tree, held_tree = application.fwd(self._hold(trace, own), zero)
                chain = trace.chain
            application.learn(outs, out_tree)
            kinds = [o.aval for o in outs]
            after = self._after(trace, fwd)
            self._note(key, outs, own[len(own) - len(after) :], after)
            outs += after
            self._capture([*outs, *held, *chain.tokens], [*own, *chain.starts])
            user = self._plain(avals)
            all_kinds = [o.aval for o in outs]
            res_kinds = [h.aval for h in held]

            def backward(zero_cts: Flags) -> UOp:
                with open_trace("custom_vjp bwd", bwd, True) as trace:
                    res = [trace.variable(of) for of in res_kinds]
                    cts = [
                        None if is_zero else trace.variable(o.strip_weak_type())
                        for o, is_zero in zip(inexact_of(all_kinds), zero_cts, strict=True)
                    ]
                    mine = cts[: len(inexact_of(kinds))]
                    nodes, given = application.bwd(res, held_tree, mine, kinds, out_tree, user)
                    linked = dict(zip(self.held, self._linked[key], strict=True))
                    nodes += cotangents_of_refs(linked, cts[len(mine) :], given)
                    self.refs, starts, finals = written(trace)
                    late = [*starts, *trace.chain.starts]
                    live = [ct for ct in cts if ct is not None]
                    self._capture([*nodes, *finals, *trace.chain.tokens], [*res, *live, *late])
                    if symbolic:
                        back.refs = self.refs
                    rest = inexact_of([c.aval for c in self.captures])
                    nodes += [b.zeros(a.strip_weak_type()) for a in rest]
                    nodes += [*finals, *trace.chain.tokens]
                    params = [*res, *self.captures, *live, *late]
                    body, captured = close(nodes, params, keep_memory=True)
                if captured:
                    raise hidden(application.name, captured[0])
                return body

            none = (False,) * len(inexact_of(all_kinds))
            back: Any = Backward(backward)
            back = back if symbolic else back.body(none)
            # What the call captures is handed to bwd as residuals.
            made = [*outs, *held, *self.captures, *chain.tokens]
            self._made[key] = self._close(made, own, chain.starts), back
        self._refuse_active_refs(key, avals, zero)
        return self._made[key]  # type: ignore[no-any-return]


def cotangents_of_refs(
    linked: dict[Ref, bool], cts: Sequence[Tangent], given: dict[Ref, UOp]
) -> list[UOp]:
    """Cotangents of what mutable arrays held before a rule: those of what they hold after, where the
    derivative passes through, and those that bwd gives."""
    inexact = [(ref, on) for ref, on in linked.items() if dtypes.is_inexact(ref.dtype)]
    found = []
    for (ref, on), ct in zip(inexact, cts, strict=True):
        total = add_tangents(ct if on else None, given.get(ref))
        found.append(b.zeros(ref.aval_.strip_weak_type()) if total is None else total)
    return found


@dataclass(slots=True, eq=False)
class PinnedRule:
    """Bodies of rules that have run for the derivative `at`. A later derivative, of a value that this
    one did not see, is one of what the rules have computed."""

    at: Trace | None
    jvp: tuple[UOp, Flags] | None = None
    vjp: tuple[UOp, Any] | None = None
    pinned: bool = True  # what the bodies hold is what has run
    passes: dict[int, int] = field(default_factory=dict)  # see StagedRule

    has_jvp = property(lambda self: self.jvp is not None)
    has_vjp = property(lambda self: self.vjp is not None)

    def jvp_body(self, avals: Sequence[Aval], zero: Flags) -> tuple[UOp, Flags]:
        assert self.jvp is not None
        return self.jvp

    def vjp_bodies(self, avals: Sequence[Aval], zero: Flags) -> tuple[UOp, Any]:
        assert self.vjp is not None
        return self.vjp

    def after_call(self, ref: Ref, settled: bool) -> str:
        """The mutable arrays that it knows of are arguments."""
        return "passed"

    @property
    def applies(self) -> bool:
        """Whether a derivative that is taken now is the rules'."""
        return self.at is None or self.at.open


@dataclass(slots=True)
class Run:
    """What running a rule on bound variables gave: nodes to be closed over args and captures. The last
    outputs, as the last arguments, are what the mutable arrays `held_refs` hold."""

    at: Trace | None  # the derivative that the rules are for
    held_refs: list[Ref] = field(default_factory=list)
    outs: list[UOp] = field(default_factory=list)
    out_tree: Any = None
    tangents: list[Tangent] = field(default_factory=list)
    dots: list[UOp] = field(default_factory=list)
    held: list[UOp] = field(default_factory=list)
    res: list[UOp] = field(default_factory=list)
    cts: list[UOp] = field(default_factory=list)
    back: list[UOp] = field(default_factory=list)
    refs: tuple[Ref, ...] = ()  # that bwd touches; what they held before and hold after
    starts: list[UOp] = field(default_factory=list)
    finals: list[UOp] = field(default_factory=list)
    chain: Chain = field(default_factory=Chain)  # effects of the jvp rule that see tangents
    back_chain: Chain = field(default_factory=Chain)

    def everything(self) -> list[UOp]:
        return [
            *self.outs,
            *(t for t in self.tangents if t is not None),
            *self.held,
            *self.back,
            *self.finals,
            *self.chain.tokens,
            *self.back_chain.tokens,
        ]


class CustomFunction:
    """A function with derivative rules of its own."""

    kind = "custom_jvp"

    @api_boundary
    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
        nondiff_argnames: Sequence[str] = (),
    ) -> None:
        require_callable(fun)
        self.fun = fun
        self.nondiff_argnums = (*nondiff_argnums, *positions(fun, nondiff_argnames))
        self.jvp_rule: Callable[..., Any] | None = None
        self.vjp_rule: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self.jvp_symbolic = self.vjp_symbolic = False
        functools.update_wrapper(self, fun, updated=())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Give the forward rule: `jvp(*nondiff, primals, tangents) -> (out, tangent out)`."""
        self.jvp_rule, self.jvp_symbolic = jvp, symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """One rule per argument, `jvp(tangent, out, *primals)`; None for no dependence."""

        def jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
            out = self(*primals)
            parts = [
                rule(t, out, *primals)
                for t, rule in zip(tangents, jvps, strict=True)
                if rule is not None
            ]
            zero = finish_all([b.zeros(lift(out).aval.strip_weak_type())])[0]
            return out, functools.reduce(lambda x, y: x + y, parts) if parts else zero

        self.defjvp(jvp)

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Give the reverse rule: `fwd(*args) -> (out, residuals)`, `bwd(*nondiff, residuals, ct)`.

        `optimize_remat` changes nothing: what nothing reads is never computed.
        """
        self.vjp_rule, self.vjp_symbolic = (fwd, bwd), symbolic_zeros

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.jvp_rule is None and self.vjp_rule is None:
            rule, kind = ("defjvp", "JVP") if self.kind == "custom_jvp" else ("defvjp", "VJP")
            raise AttributeError(
                f"No {kind} defined for {self.kind} function {name_of(self.fun)} using {rule}.\n"
                + (
                    "  Give one: f.defjvp(rule), with rule(primals, tangents) -> (value, tangent)."
                    if kind == "JVP"
                    else "  Give one: f.defvjp(fwd, bwd), with fwd(*args) -> (value, residuals) and "
                    "bwd(residuals, ct)."
                )
            )
        args = resolve_arguments(self.fun, args, kwargs)
        static = frozenset(i % len(args) for i in self.nondiff_argnums)
        statics = tuple(args[i] for i in sorted(static))
        dynamic = tuple(a for i, a in enumerate(args) if i not in static)
        for value in statics:
            for leaf in tree_flatten(value)[0]:
                if type(leaf) is Array and differentiated(leaf.node):
                    raise CustomVJPException(name_of(self.fun), "a nondiff argument")
        leaves, in_tree = tree_flatten(dynamic)
        nodes = []
        refs = {}
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Ref) and self.vjp_rule is not None:
                refs[i] = leaf
                continue
            if not is_array_like(leaf):
                raise TypeError(
                    f"argument {argument_paths(self.fun, dynamic, {})[i]} of {name_of(self.fun)}, "
                    f"which has a custom derivative rule, is {leaf!r} of type {type(leaf)}: not a "
                    "valid JAX type. Name it in nondiff_argnums if it is a constant."
                )
            nodes.append(lift(leaf))

        def arrange(values: Any) -> tuple[Any, ...]:
            moving, fixed = iter(values), iter(statics)
            return tuple(next(fixed) if i in static else next(moving) for i in range(len(args)))

        application = Application(self, in_tree, arrange, statics, refs=refs)
        inputs = [*nodes, *map(current, refs.values())]
        active = any(differentiated(n) for n in inputs)
        if state.staging or any(unbound(n) is not None for n in inputs):
            return self._staged(application, nodes)
        if active:
            return self._run(application, nodes)
        out = self.fun(*args)  # no argument is being transformed
        self._refuse_active([leaf.node for leaf in tree_flatten(out)[0] if type(leaf) is Array])
        return out

    def rules_for(self, at: Trace | None) -> tuple[bool, bool]:
        """Whether a derivative may use the jvp rule, and the vjp rule: of two, reverse mode uses the
        latter, forward mode the former. Both if it is not known which it is."""
        forward, reverse = self.jvp_rule is not None, self.vjp_rule is not None
        if forward and reverse and at is not None:
            reverse = linear_part(at) == "transposed"
            forward = not reverse
        return forward, reverse

    def _staged(self, application: Application, nodes: list[UOp]) -> Any:
        """A CALL of the staged function, its rule to be staged when needed."""
        reached, values = reachable(self, application.statics)
        touched = [*application.refs.values(), *reached]
        if not touched and stands_for_function(nodes):
            found = self._by_rule(application, nodes, values)
            if found is not None:
                return found
        with open_trace(self.kind, self.fun, True) as trace:
            own = [trace.variable(n.aval) for n in nodes]
            for ref in touched:
                current(ref)
            outs, out_tree = application.primal(own)
            refs, starts, finals = written(trace)
            chain = trace.chain
            roots, own = [*outs, *finals, *chain.tokens], [*own, *starts]
            captures = outer_variables([*roots, *values], [*own, *chain.starts])
            body, memory = close(roots, [*own, *captures], last=chain.starts)
        application.out_tree, application.out_avals = out_tree, [o.aval for o in outs]
        left, _ = leaves_alone(outs, starts, finals)
        rule = StagedRule(application, len(own), [*captures, *memory], body, refs, left)
        nodes = [*nodes, *map(current, refs)]
        args = [*nodes, *captures, *memory]
        if any(differentiated(n) for n in nodes):
            more = rule.settle(nodes)
            body = rule.body = with_more(body, args, more)
            args += more
        token = [next_token(args)] if has_effects(body) else []
        return self._call(body, [*args, *token], rule, out_tree, refs)

    def _by_rule(self, application: Application, nodes: list[UOp], values: Sequence[UOp]) -> Any:
        """`_staged` where the derivative is taken that the rule is for: the call has its values from the
        rule and the function does not run. None if the rule does not compute them apart from tangents."""
        rule = StagedRule(application, len(nodes), outer_variables(values, nodes))
        body = None
        with contextlib.suppress(FunctionNeeded):
            rule.settle(nodes)
            body = rule.value_body(nodes)
        if body is None:
            application.out_tree = application.out_avals = None
            return None
        rule.body, args = body, [*nodes, *rule.captures]
        token = [next_token(args)] if has_effects(body) else []
        assert application.out_tree is not None
        return self._call(body, [*args, *token], rule, application.out_tree)

    def _run(self, application: Application, nodes: list[UOp]) -> Any:
        """Run the rules now, on variables bound to the arguments.

        They are active for what differentiates outside of the innermost derivative, the one that
        the rules are for: functions with rules that these call have theirs run in turn.
        """
        avals, refs = [n.aval for n in nodes], list(application.refs.values())
        nodes = [*nodes, *map(current, refs)]
        at, count = innermost(nodes), len(avals)
        outer = differentiated_outside(nodes, at)
        with open_trace(self.kind, self.fun, False) as trace:
            own = [standing_for(trace, n, n.aval, at, outer) for n in nodes]
            user, zero = own[:count], zero_at(at, nodes[:count])
            run = Run(at, held_refs=refs)
            forward, reverse = self.rules_for(at)
            with holding(refs, own[count:]):
                if reverse:
                    run.outs, run.held, run.out_tree, held_tree = application.fwd(user, zero)
                if forward:
                    inexact = [n for n in nodes if dtypes.is_inexact(n.dtype)]
                    run.dots = self._dots(trace, inexact, at)
                    mine = run.dots[: len(inexact_of(avals))]
                    with open_trace("custom_jvp rule", self.jvp_rule, False) as rule_trace:
                        rule_trace.chain.late = linear_part(at) is not None
                        run.outs, run.tangents, run.out_tree = application.jvp(user, mine, zero)
                    run.chain = rule_trace.chain
                    moving = iter(run.dots[len(mine) :])
                    run.tangents += [
                        next(moving) if dtypes.is_inexact(r.dtype) else None for r in refs
                    ]
                results = len(run.outs)
                run.outs += map(current, refs)
            local = [*own, *run.dots, *run.chain.starts]
            self._refuse_active(run.everything(), at)
            captures = outer_variables(run.everything(), local)
            outs = self._values(run, own, captures)
            seen = [d for d in run.dots if any(d.arg in o.free for o in outs)]
            rule = PinnedRule(at, passes={results + i: count + i for i in range(len(refs))})
            if forward:
                rule.jvp = self._close_jvp(run, own, [*captures, *map(trace_free, seen)])
            if reverse:

                def backward(zero_cts: Flags, known: Sequence[UOp] = ()) -> UOp:
                    late = replace(run)
                    self._run_backward(application, late, held_tree, avals, zero_cts, known)
                    self._refuse_active(late.back, at)
                    made.refs, made.captured = late.refs, []
                    return self._close_backward(late, captures, made.captured)

                # The cotangents are known when the result is transposed: bwd runs then.
                made = Backward(backward, backward)
                rule.vjp = self._close_forward(run, own, captures), made
            # What comes after effects that the rule has put off follows the call.
            token = [fresh_var(TOKEN)] if run.chain.waits else []
            body, _ = close([*outs, *token], [*own, *captures, *seen, *token], keep_memory=True)
            self._refuse_written(trace, run.dots)
            leave(trace, [], dict(zip(own, nodes, strict=True)))
        taken = [state.chains[-1].take() for _ in token]
        return self._call(body, [*nodes, *captures, *seen, *taken], rule, run.out_tree, refs)

    def _refuse_written(self, trace: Trace, dots: Sequence[UOp]) -> None:
        """Raise if a jvp rule has written tangents to mutable arrays that are not known yet."""
        late = {d.arg for d in dots if d.arg.bound is None}
        if any(not late.isdisjoint(cell.node.free) for cell in trace.touched):
            raise ValueError(
                f"the jvp rule of {name_of(self.fun)} writes tangents to a Ref, but this derivative "
                f"knows none when the rule runs.\n{user_line(call_site())}\n"
                "  Write values only, or use jax.jvp."
            )

    def _values(self, run: Run, own: list[UOp], captures: list[UOp]) -> Sequence[UOp]:
        """The values that a rule gave, without what only its tangents need."""
        dots = {d.arg for d in run.dots}
        if all(dots.isdisjoint(o.free) for o in run.outs):
            return run.outs
        what = linear_part(run.at)
        if what is None:
            return prune(tuple_of(run.outs)).src
        given, count = [*own, *captures], len(run.outs)
        body, _ = self._close_jvp(run, own, captures)
        late = [a.strip_weak_type() for a in inexact_of([g.aval for g in given])]
        with linear_apart(what):
            body = values_apart(body, [*(g.aval for g in given), *late], len(given), count)
        refuse_tangents(body, len(given), count, name_of(self.fun))
        args = [*given, *map(fresh_var, late), *run.chain.starts]
        return open_body(prune(tuple_of(body.src[:count])), args)

    def _dots(self, trace: Trace, nodes: Sequence[UOp], at: Trace | None) -> list[UOp]:
        """Variables for the tangents of nodes, bound to these if a running jvp knows them."""
        known = None if at is None else tangents_of(nodes, at)
        if known is None:
            return [trace.variable(n.aval.strip_weak_type()) for n in nodes]
        return [
            standing_for(trace, instantiate(t, n), n.aval.strip_weak_type(), at)
            for n, t in zip(nodes, known, strict=True)
        ]

    def _run_backward(
        self,
        application: Application,
        run: Run,
        held_tree: ResidualTree,
        avals: Sequence[Aval],
        zero_cts: Flags,
        known: Sequence[UOp] = (),
    ) -> None:
        """Run bwd on variables for the residuals, bound to them, and for cotangents not flagged, bound
        to those `known`. Those flagged are zeros, unless bwd is to see which they are."""
        assert self.vjp_rule is not None
        kinds = [o.aval for o in run.outs]
        with open_trace("custom_vjp bwd", self.vjp_rule[1], False, deferred=True) as trace:
            run.res = [trace.variable(h.aval, bound=h) for h in run.held]
            inexact, values = inexact_of(kinds), iter(known)

            def cotangent(of: Aval) -> UOp:
                value = next(values, None)
                if value is None:
                    return trace.variable(of.strip_weak_type())
                return standing_for(trace, value, of.strip_weak_type(), run.at)

            cts = [
                None if is_zero else cotangent(o)
                for o, is_zero in zip(inexact, zero_cts, strict=True)
            ]
            run.cts = [ct for ct in cts if ct is not None]
            if not self.vjp_symbolic:
                cts = [
                    b.zeros(o.strip_weak_type()) if ct is None else ct
                    for o, ct in zip(inexact, cts, strict=True)
                ]
            count = len(kinds) - len(run.held_refs)
            mine = cts[: len(inexact_of(kinds[:count]))]
            run.back, given = application.bwd(
                run.res, held_tree, mine, kinds[:count], run.out_tree, avals
            )
            linked = dict.fromkeys(run.held_refs, True)
            run.back += cotangents_of_refs(linked, cts[len(mine) :], given)
            run.refs, run.starts, run.finals = written(trace)
        run.back_chain = trace.chain

    def _close_backward(self, run: Run, captures: Sequence[UOp], more: list[UOp]) -> UOp:
        """bwd may close over what fwd does, which is among its residuals, and over `more`."""
        zeros = [b.zeros(c.aval.strip_weak_type()) for c in captures if dtypes.is_inexact(c.dtype)]
        body, captured = close(
            [*run.back, *zeros, *run.finals, *run.back_chain.tokens],
            [*run.res, *captures, *run.cts, *run.starts, *run.back_chain.starts],
            keep_memory=True,
        )
        more += captured
        return body

    def _close_jvp(self, run: Run, own: list[UOp], captures: list[UOp]) -> tuple[UOp, Flags]:
        """The jvp rule, the captured variables among its arguments."""
        more = [trace_free(c) for c in captures if dtypes.is_inexact(c.dtype)]
        live = [t for t in run.tangents if t is not None]
        body, _ = close(
            [*run.outs, *live, *run.chain.tokens],
            [*own, *captures, *run.dots, *more, *run.chain.starts],
            keep_memory=True,
        )
        return body, zero_tangents(run.outs, run.tangents)

    def _close_forward(self, run: Run, own: list[UOp], captures: list[UOp]) -> UOp:
        """fwd: outputs and residuals, the captured variables among these."""
        nodes = [*run.outs, *run.held, *captures]
        return close(nodes, [*own, *captures], keep_memory=True)[0]

    def _call(
        self,
        body: UOp,
        args: Sequence[UOp],
        rule: Any,
        out_tree: PyTreeDef,
        refs: Sequence[Ref] = (),
    ) -> Any:
        if not body.src:
            return tree_unflatten(out_tree, [])
        info = CallInfo(self.kind, name_of(self.fun), rule=rule)
        settled = any(map(differentiated, args))
        does = [rule.after_call(ref, settled) for ref in refs]
        found = perform(UOp(Op.CALL, (body, *args), info))
        count = out_tree.num_leaves
        for ref, what, after in zip(refs, does, found[count:]):
            if what != "kept":  # rules derive the results only, not what they write
                assign(ref, after.node if what == "passed" else b.stop_gradient(after.node))
        return tree_unflatten(out_tree, found[:count])

    def _refuse_active(self, nodes: Sequence[UOp], at: Trace | None = None) -> None:
        """Raise if one of these is active other than through arguments, unless it is so for what
        differentiates outside of the derivative `at`, which sees what the rules have computed."""
        for n in nodes:
            variables = [v for v in differentiated(n) if not outside(v, at)]
            if variables:
                raise CustomVJPException(name_of(self.fun), variables[0].path)

    def __repr__(self) -> str:
        return f"<{self.kind} function {name_of(self.fun)}>"


def standing_for(
    trace: Trace, node: UOp, of: Aval, at: Trace | None, outer: frozenset[Var] | None = None
) -> UOp:
    """A variable that stands for a node in a rule for the derivative `at`: it does not depend on what
    that differentiates, but does on what those around it (`outer`, if known) do."""
    outer = differentiated_outside([node], at) if outer is None else outer
    made = trace.variable(of, bound=b.stop_gradient(node), outer=outer)
    trace.stands_for[made] = node
    return made


@contextlib.contextmanager
def holding(refs: Sequence[Ref], nodes: Sequence[UOp]) -> Iterator[None]:
    """Let mutable arrays hold other values for the duration of a block."""
    cells = [cell_of(ref) for ref in refs]
    before = [cell.node for cell in cells]
    for cell, node in zip(cells, nodes, strict=True):
        cell.node = node
    try:
        yield
    finally:
        for cell, node in zip(cells, before, strict=True):
            cell.node = node


def written(trace: Trace) -> tuple[tuple[Ref, ...], list[UOp], list[UOp]]:
    """The Refs from outside that a backward rule touches, the variables for what they hold before
    and what they hold after."""
    cells = trace.cells
    starts = [c.start for c in cells.values() if c.start is not None]
    return tuple(cells), starts, [c.node for c in cells.values()]


def leaves_alone(
    outs: Sequence[UOp], starts: Sequence[UOp], after: Sequence[UOp]
) -> tuple[list[bool], list[bool]]:
    """Of a function that finds mutable arrays as `starts` and leaves them as `after`: which it does
    not write to, and of which something else depends on what they held."""
    if not starts:
        return [], []
    opened = open_calls([*outs, *after], lambda inner: True)
    outs, after = opened[: len(outs)], opened[len(outs) :]
    left = [a is s for s, a in zip(starts, after, strict=True)]
    used = [
        any(s.arg in n.free for n in ((*outs,) if same else (*outs, a)))
        for s, a, same in zip(starts, after, left, strict=True)
    ]
    return left, used


def refuse_refs(refs: Iterable[Ref], fun: Any) -> None:
    """Raise ValueError if there are any: Refs that a staged rule may touch are known when it has not
    run yet, those that are arguments or that its function or rules close over."""
    for ref in refs:
        raise ValueError(
            f"{name_of(fun)}, which is a custom derivative rule, uses a Ref of type Ref{{{ref.aval_.str_short()}}} from outside "
            "that is hidden in an object.\n  Close over it directly, or pass it as an argument."
        )


def reachable(owner: CustomFunction, statics: Sequence[Any]) -> tuple[list[Ref], list[UOp]]:
    """The Refs and the values of open traces that a function with rules, its rules and its static
    arguments close over, directly, in pytrees, or in functions that these close over. (Refs that only
    a bwd closes over are its own: it finds them when it runs.)"""
    seen: dict[int, Any] = {}
    forward = closed_over([owner.fun, owner.jvp_rule, *(owner.vjp_rule or ())[:1], *statics], seen)
    both = [*forward, *closed_over((owner.vjp_rule or ())[1:], seen)]
    refs = [x for x in forward if isinstance(x, Ref) and (x.trace is None or x.trace.open)]
    nodes = (x.node for x in both if type(x) is Array)
    values = dict.fromkeys(n for n in nodes if all(v.trace in state.traces for v in n.free))
    return refs, list(values)


def stands_for_function(nodes: Sequence[UOp]) -> bool:
    """Whether the rule of a function of these nodes stands for it: a derivative of them is being taken,
    and nothing that is staged comes between."""
    at = innermost(nodes) if any(map(differentiated, nodes)) else None
    return at is not None and not any(
        trace.staging for trace in state.traces[state.traces.index(at) + 1 :]
    )


NO_ARRAYS = frozenset({int, float, bool, complex, str, bytes, type(None), np.ndarray})


def closed_over(functions: Sequence[Any], seen: dict[int, Any]) -> list[Any]:
    """The arrays and Refs that functions close over; what is `seen` is not looked at again."""
    found: list[Any] = []
    todo = list(functions)
    while todo:
        x = todo.pop()
        if type(x) in NO_ARRAYS or id(x) in seen:
            continue
        seen[id(x)] = x
        if isinstance(x, (Array, Ref)):
            found.append(x)
        elif isinstance(x, FunctionType):
            cells = [c.cell_contents for c in x.__closure__ or () if not empty(c)]
            names = (x.__globals__.get(name) for name in x.__code__.co_names)
            held = [v for v in names if isinstance(v, (Ref, Array))]
            todo += [*cells, *(x.__defaults__ or ()), *held]
        elif isinstance(x, functools.partial):
            todo += [x.func, *x.args, *x.keywords.values()]
        elif isinstance(x, CustomFunction):
            todo += [x.fun, x.jvp_rule, *(x.vjp_rule or ())]
        elif isinstance(x, (tuple, list, dict)):  # keys need not have an order here
            todo += x.values() if isinstance(x, dict) else x
        elif callable(x) and (inner := inspect.getattr_static(x, "__wrapped__", None)) is not None:
            todo.append(inner)
        else:
            with contextlib.suppress(Exception):  # not an argument: it need not be a good pytree
                todo += tree_flatten(x, is_leaf=functools.partial(is_not, x))[0]
    return found


def zero_at(trace: Trace | None, nodes: Sequence[UOp]) -> Flags:
    """Which of the inexact ones the derivative `trace` is not asked for."""
    return tuple(
        all(v.trace is not trace for v in differentiated(n))
        for n in nodes
        if dtypes.is_inexact(n.dtype)
    )


def empty(cell: CellType) -> bool:
    """Whether a variable of a closure has no value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def with_more(body: UOp, args: Sequence[UOp], more: Sequence[UOp]) -> UOp:
    """The body for these arguments and, behind them, further ones that it does not read."""
    if not more or not has_effects(body):
        return body
    params, outs = open_vars(body, [*(a.aval for a in args), TOKEN])
    return reclose(outs, [*params[:-1], *map(trace_free, more), params[-1]])


def trace_free(like: UOp) -> UOp:
    """A variable that nothing mentions: the place of a captured argument's tangent."""
    return fresh_var(like.aval.strip_weak_type())


def positions(fun: Callable[..., Any], names: Sequence[str]) -> tuple[int, ...]:
    """Positions of parameters by name."""
    if not names:
        return ()
    order = list(inspect.signature(fun).parameters)
    return tuple(order.index(n) for n in names)


def resolve_arguments(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Keyword arguments and defaults as positional ones; keyword-only ones keep their defaults."""
    try:
        bound = inspect.signature(fun).bind(*args, **kwargs)
    except ValueError:  # no signature to be had
        return tuple(args)
    bound.apply_defaults()
    passed = sorted(name for name in bound.kwargs if name in kwargs)
    if passed:
        raise TypeError(
            f"keyword-only arguments of {name_of(fun)} could not be resolved to positions: "
            f"{passed}; a function with a custom rule takes positional arguments.\n"
            "  Fix them with functools.partial before the rule is given, or make them positional."
        )
    return bound.args


class custom_jvp(CustomFunction):
    """A function with a forward derivative rule, `f.defjvp(rule)`; reverse mode transposes it.

    Example: see docs/quickstart.md. `nondiff_argnums` are handed to the rule as they are.
    """

    kind = "custom_jvp"

    @property
    def jvp(self) -> Callable[..., Any] | None:
        """The rule, once `defjvp` has given it."""
        return self.jvp_rule

    @property
    def symbolic_zeros(self) -> bool:
        """Whether the rule sees structural zeros as `SymbolicZero`."""
        return self.jvp_symbolic


class custom_vjp(CustomFunction):
    """A function with a reverse derivative rule, `f.defvjp(fwd, bwd)`.

    Give it `defjvp` too to make it differentiable in forward mode.
    """

    kind = "custom_vjp"
