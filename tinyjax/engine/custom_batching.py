"""custom_vmap: a function with a batching rule written by the user, held by a CALL.

Batching such a call asks its rule for a body over the batched arguments (`batched`) in place of the
batched function. Its derivative is linear in the tangents and batches by the derivative of the
user's rule, its transpose by the transpose of that; so the rule also decides what `vmap(grad(f))`
and `grad(vmap(f))` compute, to any order.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval
from tinyjax.core.body import close, fresh_var, open_body, outer_variables, reclose
from tinyjax.core.errors import require_callable
from tinyjax.core.infos import CallInfo, CustomLinInfo
from tinyjax.core.ops import Op
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import PyTreeDef, tree_flatten
from tinyjax.core.uop import UOp, results
from tinyjax.engine.array import Array
from tinyjax.engine.custom_rules import resolve_arguments
from tinyjax.engine.derivatives import lift_leaves
from tinyjax.engine.effects import next_token, perform
from tinyjax.engine.tracing import argument_paths, name_of, output_nodes
from tinyjax.interpreters.batch import batched as with_batch_axis
from tinyjax.interpreters.effects import has_effects, quiet
from tinyjax.interpreters.jvp import Tangent, instantiate, jvp
from tinyjax.interpreters.linearize import tangent_aval
from tinyjax.interpreters.trace import open_trace
from tinyjax.interpreters.transpose import transposed_body

Flags = tuple[bool, ...]


class BatchingRule(ABC):
    """What a CALL does under vmap instead of batching its body; and how that is differentiated.

    `body` is the function of one example. `batched` returns a closed body over the arguments, those
    flagged with a leading batch axis, and which of its outputs have one.
    """

    has_jvp = True
    has_vjp = False

    def __init__(self, body: UOp, name: str) -> None:
        self.body, self.name = body, name
        self._made: dict[Any, Any] = {}

    def batched(self, avals: Sequence[Aval], flags: Flags, size: int) -> tuple[UOp, Flags]:
        """The body over all examples; `avals` are those of one example."""
        key = "batched", tuple(avals), tuple(flags), size
        if key not in self._made:
            self._made[key] = self.make_batched(list(avals), tuple(flags), size)
        return self._made[key]  # type: ignore[no-any-return]

    @abstractmethod
    def make_batched(self, avals: list[Aval], flags: Flags, size: int) -> tuple[UOp, Flags]:
        """`batched`, made anew."""

    def call(self, args: Sequence[UOp]) -> UOp:
        """The function applied."""
        return UOp(Op.CALL, (self.body, *args), CallInfo("custom_vmap", self.name, rule=self))

    def jvp_body(self, avals: Sequence[Aval], zero: Flags) -> tuple[UOp, Flags]:
        """(args, tangents of inexact args) -> (outputs, tangents of inexact outputs)."""
        key = "jvp", tuple(avals)
        if key not in self._made:
            params = [fresh_var(a) for a in avals]
            dots = [fresh_var(tangent_aval(a)) for a in avals if dtypes.is_inexact(a.dtype)]
            plain = quiet(self.body, avals)
            touts = Derivative(self, plain, list(avals)).linear(params, dots)
            if has_effects(self.body):
                token = fresh_var(self.body.src[-1].aval)
                *outs, last = results(self.call([*params, token]))
                made = reclose([*outs, *touts, last], [*params, *dots, token])
            else:
                made = reclose([*results(self.call(params)), *touts], [*params, *dots])
            self._made[key] = made, (False,) * len(touts)
        return self._made[key]  # type: ignore[no-any-return]


class Derivative(BatchingRule):
    """(args, tangents of inexact args) -> tangents of inexact outputs; linear in the tangents."""

    def __init__(self, of: BatchingRule, plain: UOp, avals: list[Aval]) -> None:
        self.of, self.avals = of, avals
        self.inexact = [i for i, a in enumerate(avals) if dtypes.is_inexact(a.dtype)]
        params = [fresh_var(a) for a in avals]
        super().__init__(self._tangents(plain, params), f"jvp({of.name})")

    def _tangents(self, body: UOp, params: Sequence[UOp]) -> UOp:
        """The tangents of a body as a body."""
        dots = [fresh_var(tangent_aval(params[i].aval)) for i in self.inexact]
        seeds = dict(zip((params[i] for i in self.inexact), dots, strict=True))
        outs, touts = jvp(open_body(body, params), seeds)
        live = [
            instantiate(t, o)
            for o, t in zip(outs, touts, strict=True)
            if dtypes.is_inexact(o.dtype)
        ]
        return reclose(live, [*params, *dots])

    def make_batched(self, avals: list[Aval], flags: Flags, size: int) -> tuple[UOp, Flags]:
        """The derivative of the batched body; an argument is batched if it or its tangent is."""
        count = len(self.avals)
        wide = list(flags[:count])
        for i, on in zip(self.inexact, flags[count:], strict=True):
            wide[i] = wide[i] or on
        body, out_flags = self.of.batched(self.avals, tuple(wide), size)
        kinds = [with_batch(a, on, size) for a, on in zip(self.avals, wide, strict=True)]
        body = self._tangents(quiet(body, kinds), [fresh_var(k) for k in kinds])
        given = [fresh_var(with_batch(a, on, size)) for a, on in zip(avals, flags, strict=True)]
        wanted = [*wide, *(wide[i] for i in self.inexact)]
        spread = [
            with_batch_axis(v, on or not want, size)
            for v, on, want in zip(given, flags, wanted, strict=True)
        ]
        outs = [
            on
            for on, o in zip(out_flags, self.of.body.src, strict=False)
            if dtypes.is_inexact(o.dtype)
        ]
        return reclose(open_body(body, spread), given), tuple(outs)

    def linear(self, params: Sequence[UOp], dots: Sequence[UOp]) -> list[UOp]:
        """Its value, as a linear map that knows its transpose."""
        if not self.body.src:
            return []
        kinds = [fresh_var(p.aval) for p in params]
        seeds = [fresh_var(d.aval) for d in dots]
        outs = tuple(o.aval for o in self.body.src)
        forward = reclose(results(self.call([*kinds, *seeds])), [*kinds, *seeds])
        cts = [fresh_var(a) for a in outs]
        transposed = Transposed(self)
        backward = reclose(results(transposed.call([*kinds, *cts])), [*kinds, *cts])
        info = CustomLinInfo(len(kinds), outs, backward, self.of.name, forward)
        return results(UOp(Op.CUSTOM_LIN, (*params, *dots), info))


class Transposed(BatchingRule):
    """(args, cotangents of inexact outputs) -> cotangents of inexact args."""

    def __init__(self, of: Derivative) -> None:
        self.of = of
        super().__init__(self._transpose(of.body, of.avals), of.name.replace("jvp", "transpose"))

    def _transpose(self, body: UOp, kinds: Sequence[Aval]) -> UOp:
        """The transpose of (args, tangents) -> tangents; args are of these kinds."""
        dots = [tangent_aval(kinds[i]) for i in self.of.inexact]
        linear = (False,) * len(kinds) + (True,) * len(dots)
        back, got = transposed_body(body, [*kinds, *dots], linear, (True,) * len(body.src))
        params = [fresh_var(a) for a in kinds]
        cts = [fresh_var(o.aval.strip_weak_type()) for o in body.src]
        values = iter(open_body(back, [*params, *cts]))
        full: list[Tangent] = [next(values) if on else None for on in got]
        likes = (fresh_var(d) for d in dots)
        return reclose(
            [instantiate(v, d) for v, d in zip(full, likes, strict=True)], [*params, *cts]
        )

    def make_batched(self, avals: list[Aval], flags: Flags, size: int) -> tuple[UOp, Flags]:
        """All arguments with a derivative, and all cotangents, are batched."""
        count = len(self.of.avals)
        wide = [
            on or dtypes.is_inexact(a.dtype)
            for a, on in zip(self.of.avals, flags[:count], strict=True)
        ]
        every = (*wide, *(True,) * len(self.of.inexact))
        kinds = [*self.of.avals, *(tangent_aval(self.of.avals[i]) for i in self.of.inexact)]
        body, out_flags = self.of.batched(kinds, every, size)
        params = [fresh_var(with_batch(a, on, size)) for a, on in zip(kinds, every, strict=True)]
        outs = [
            with_batch_axis(o, on, size)
            for o, on in zip(open_body(body, params), out_flags, strict=True)
        ]
        body = self._transpose(reclose(outs, params), [p.aval for p in params[:count]])
        given = [fresh_var(with_batch(a, on, size)) for a, on in zip(avals, flags, strict=True)]
        wanted = [*wide, *(True,) * (len(avals) - count)]
        spread = [
            with_batch_axis(v, on or not want, size)
            for v, on, want in zip(given, flags, wanted, strict=True)
        ]
        return reclose(open_body(body, spread), given), (True,) * len(self.of.inexact)


def with_batch(of: Aval, on: bool, size: int) -> Aval:
    """The aval with a leading axis if `on`."""
    return of.update(shape=(size, *of.shape)) if on else of


class UserRule(BatchingRule):
    """The rule that the user wrote. `captures` are further arguments: what the function closes over."""

    def __init__(
        self,
        body: UOp,
        owner: custom_vmap,
        in_tree: PyTreeDef,
        out_tree: PyTreeDef,
        captures: Sequence[UOp],
    ) -> None:
        super().__init__(body, name_of(owner.fun))
        self.owner, self.in_tree, self.out_tree = owner, in_tree, out_tree
        self.captures = list(captures)

    def make_batched(self, avals: list[Aval], flags: Flags, size: int) -> tuple[UOp, Flags]:
        """Run the rule on batched variables."""
        rule = self.owner.vmap_rule
        assert rule is not None
        count = len(avals) - len(self.captures)
        if any(flags[count:]):
            raise ValueError(
                f"custom_vmap function {self.name} closes over a value that vmap maps over: its "
                "rule cannot know. Pass the value as an argument."
            )
        with open_trace("custom_vmap rule", rule, True) as trace:
            own = [
                trace.variable(with_batch(a, on, size))
                for a, on in zip(avals[:count], flags[:count], strict=True)
            ]
            args = tree_unflatten(self.in_tree, [Array(v) for v in own])
            which = list(tree_unflatten(self.in_tree, list(flags[:count])))
            result = rule(size, which, *args)
            if not (isinstance(result, (tuple, list)) and len(result) == 2):
                raise TypeError(
                    f"custom vmap rule ({name_of(rule)}) must return a pair (output, which parts "
                    f"of it are batched), got {result!r}.\n"
                    "  Return (output, True) for one array whose first axis is the batch."
                )
            outs, out_tree = output_nodes(result[0], rule, "custom_vmap")
            on, on_tree = tree_flatten(result[1])
            self._check(rule, outs, out_tree, on, on_tree, size)
            chain = trace.chain
            given = [*own, *self.captures]
            body, captured = close(
                [*outs, *chain.tokens], [*given, *chain.starts], keep_memory=True
            )
        if captured:
            raise ValueError(
                f"custom vmap rule ({name_of(rule)}) closes over a traced value that {self.name} "
                "does not close over. Pass the value as an argument."
            )
        return body, tuple(bool(x) for x in on)

    def _check(
        self,
        rule: Any,
        outs: Sequence[UOp],
        out_tree: PyTreeDef,
        on: Sequence[Any],
        on_tree: PyTreeDef,
        size: int,
    ) -> None:
        """The rule's results must look like the function's, batched as it says."""
        if out_tree != on_tree:
            raise ValueError(
                "structure of output value and output batching specification returned by custom "
                f"vmap rule ({name_of(rule)}) do not match.\nOutput values: {out_tree}\n"
                f"Batching spec: {on_tree}\n"
                "  Return a tree of bools like the output: jax.tree.map(lambda _: True, output)."
            )
        if out_tree != self.out_tree:
            raise ValueError(
                f"structure of output returned by custom vmap rule ({name_of(rule)}) does not "
                f"match that of original custom-vmapped function.\nOriginal output: "
                f"{self.out_tree}\nRule output: {out_tree}\n"
                f"  Return the containers that {self.name} returns, with the batch axis in the arrays."
            )
        for o, flag, of in zip(outs, on, self.body.src, strict=False):
            want = with_batch(of.aval, bool(flag), size)
            if (o.shape, o.dtype) != (want.shape, want.dtype):
                raise ValueError(
                    f"custom vmap rule ({name_of(rule)}) returned {o.aval.str_short()} where "
                    f"{want.str_short()} is needed: {self.name} gives {of.aval.str_short()}"
                    f"{f' per example, and there are {size}' if flag else ''}.\n"
                    "  Put the batch axis first (jnp.moveaxis), convert with .astype, and say False of "
                    "what has no batch axis."
                )


class custom_vmap:
    """A function with a batching rule, `f.def_vmap(rule)`.

    `rule(axis_size, in_batched, *args)` gets which leaves are batched (a list with a tree of bools
    per argument), and the arguments with the batch axis first where they are; it returns the output
    and a tree of bools like it. Give derivative rules by wrapping the result in `custom_vjp` or
    `custom_jvp`; without them derivatives are those of function and rule.

    Example: `f = custom_vmap(jnp.sin)`, then `f.def_vmap(lambda n, on, x: (jnp.sin(x), True))`.
    """

    @api_boundary
    def __init__(self, fun: Callable[..., Any]) -> None:
        require_callable(fun)
        self.fun = fun
        self.vmap_rule: Callable[..., tuple[Any, Any]] | None = None
        functools.update_wrapper(self, fun, updated=())

    def def_vmap(self, vmap_rule: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
        """Give the rule; returns it."""
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            args = resolve_arguments(self.fun, args, kwargs)
        except TypeError as error:
            raise TypeError(
                f"The input arguments to the custom_vmap-decorated function {name_of(self.fun)} "
                "could not be resolved to positional-only arguments. Binding failed with the "
                f"error:\n{error}\n"
                f"  Call it as {name_of(self.fun)}{inspect.signature(self.fun)}."
            ) from error
        if self.vmap_rule is None:
            raise AttributeError(
                f"No batching rule defined for custom_vmap function {name_of(self.fun)} using "
                "def_vmap.\n  Give one: f.def_vmap(rule), with rule(axis_size, in_batched, *args)."
            )
        nodes, in_tree = lift_leaves(
            args,
            lambda: argument_paths(self.fun, args, {}),
            f"arguments of custom_vmap function {name_of(self.fun)}",
        )
        with open_trace("custom_vmap", self.fun, True) as trace:
            own = [trace.variable(n.aval) for n in nodes]
            result = self.fun(*tree_unflatten(in_tree, [Array(v) for v in own]))
            outs, out_tree = output_nodes(result, self.fun, "custom_vmap")
            chain = trace.chain
            captures = outer_variables([*outs, *chain.tokens], [*own, *chain.starts])
            body, memory = close([*outs, *chain.tokens], [*own, *captures], last=chain.starts)
        rule = UserRule(body, self, in_tree, out_tree, [*captures, *memory])
        operands = [*nodes, *captures, *memory]
        token = [next_token(operands)] if has_effects(body) else []
        if not body.src:
            return tree_unflatten(out_tree, [])
        return tree_unflatten(out_tree, perform(rule.call([*operands, *token])))

    def __repr__(self) -> str:
        return f"<custom_vmap function {name_of(self.fun)}>"
