"""custom_root and custom_linear_solve: solvers differentiated at their solution, not through it.

Both are a CALL whose body is the staged solver. Its rule knows the equation that the solution
satisfies, as closed bodies over the solution and what the user's functions close over, so
derivatives of any order and mode, batching and staging follow without running Python again.

    f(m, x) = 0        ∂x = -(∂f/∂x)^-1 (∂f/∂m)[∂m]        custom_root
    A(m) x = b         ∂x = A^-1 (∂b - (∂A)[∂m] x)         custom_linear_solve

The inverse in the second line is again a linear solve: a CUSTOM_LIN whose transpose is the solve of
the transposed equation.
Reference: Blondel et al., "Efficient and Modular Implicit Differentiation" (2022).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tinyjax.core import build, dtypes
from tinyjax.core.avals import TOKEN, Aval
from tinyjax.core.body import fresh_var, open_body, reclose
from tinyjax.core.infos import CallInfo, CustomLinInfo
from tinyjax.core.ops import Op
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import PyTreeDef
from tinyjax.core.uop import UOp, results, substitute, token_of
from tinyjax.engine.array import Array
from tinyjax.engine.derivatives import lift_leaves, linear_transpose, linearize
from tinyjax.engine.effects import next_token, perform
from tinyjax.engine.tracing import Traced
from tinyjax.interpreters.effects import has_effects, quiet, without
from tinyjax.interpreters.jvp import Tangent, instantiate, jvp
from tinyjax.interpreters.linearize import tangent_aval
from tinyjax.lax.control_flow import staged, tree_paths

Flags = tuple[bool, ...]


def check_tree(name: str, expected_name: str, out: PyTreeDef, tree: PyTreeDef, aux: bool) -> None:
    """The solution part of `out` must be `tree`. Raises: TypeError, ValueError without aux."""
    if aux:
        parts = out.children()
        if len(parts) != 2:
            raise ValueError(
                f"{name}() produced a pytree with structure {out}, but a pytree tuple with "
                "auxiliary output was expected because has_aux was set to True.\n"
                f"  Return (x, aux) from {name}, or leave has_aux out."
            )
        out = parts[0]
    if out != tree:
        raise TypeError(
            f"{name}() output pytree structure must match {expected_name}, got {out} and {tree}.\n"
            f"  Return the containers of {expected_name} from {name}."
        )


def check_shapes(name: str, got: Sequence[Aval], wanted: Sequence[Aval]) -> None:
    """Raises: ValueError if shapes differ."""
    shapes = [a.shape for a in got[: len(wanted)]], [a.shape for a in wanted]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{name}() output shapes must match b, got {shapes[0]} and {shapes[1]}.\n"
            f"  Reshape what {name} returns like b, array by array."
        )


class ImplicitRule(ABC):
    """A derivative rule in terms of bodies: `tangents(params, dots)` of a call's arguments.

    `params` are the arguments of the call, `dots` their tangents (None for zero).
    """

    has_jvp = True
    has_vjp = False

    def __init__(self) -> None:
        self._made: dict[Any, tuple[UOp, Flags]] = {}

    body: UOp
    info: CallInfo

    @abstractmethod
    def tangents(
        self, params: Sequence[UOp], dots: Sequence[Tangent], outs: Sequence[UOp]
    ) -> list[Tangent]:
        """Tangents of the outputs of the call."""

    def outputs(self, values: Sequence[UOp]) -> tuple[list[UOp], list[UOp]]:
        """Results of the call, and its token if it has effects."""
        place = token_of(values)
        return without(values, place), [] if place is None else [values[place]]

    def run(self, args: Sequence[UOp]) -> list[Array]:
        """The call of nodes; its effects happen or are noted."""
        token = [next_token(args)] if has_effects(self.body) else []
        return perform(UOp(Op.CALL, (self.body, *args, *token), self.info))

    def jvp_body(self, avals: Sequence[Aval], zero: Flags) -> tuple[UOp, Flags]:
        """(args, tangents of inexact args) -> (outputs, nonzero tangents); which are zero."""
        key = tuple(avals), zero
        if key not in self._made:
            params = [fresh_var(a) for a in avals]
            seeds = [fresh_var(tangent_aval(a)) for a in avals if dtypes.is_inexact(a.dtype)]
            given = iter(zip(seeds, zero, strict=True))
            dots: list[Tangent] = []
            for a in avals:
                seed, is_zero = next(given) if dtypes.is_inexact(a.dtype) else (None, True)
                dots.append(None if is_zero else seed)
            tokens = [fresh_var(TOKEN)] * has_effects(self.body)
            call = UOp(Op.CALL, (self.body, *params, *tokens), self.info)
            outs, last = self.outputs(results(call))
            touts = self.tangents(params, dots, outs)
            live = [t for t in touts if t is not None]
            body = reclose([*outs, *live, *last], [*params, *seeds, *tokens])
            pairs = zip(outs, touts, strict=True)
            self._made[key] = body, tuple(t is None for o, t in pairs if dtypes.is_inexact(o.dtype))
        return self._made[key]


def moved(body: UOp, point: Sequence[UOp], consts: Sequence[UOp], dots: Sequence[Tangent]) -> Any:
    """Tangents of `body(point, consts)` along the consts alone."""
    free = [fresh_var(p.aval) for p in point]
    own = [fresh_var(c.aval) for c in consts]
    outs = open_body(body, [*free, *own])
    seeds = {v: d for v, d in zip(own, dots, strict=True) if d is not None}
    _, touts = jvp(outs, seeds)
    back = dict(zip([*free, *own], [*point, *consts], strict=True))
    return [None if t is None else substitute([t], back)[0] for t in touts]


def split(values: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """Consecutive parts of these sizes."""
    parts, start = [], 0
    for size in sizes:
        parts.append(list(values[start : start + size]))
        start += size
    return parts


# --- roots --------------------------------------------------------------------------------------------


class Root(ImplicitRule):
    """Arguments of the call: guess, then captures of f, of the solver, of the tangent solver."""

    def __init__(self, kinds: Sequence[Aval], f: Traced, solve: Traced, tangent: Traced) -> None:
        super().__init__()
        self.f, self.tangent = f, tangent
        self.sizes = [len(kinds), *(len(t.captured) for t in (f, solve, tangent))]
        params = [fresh_var(n.aval) for n in (*f.captured, *solve.captured, *tangent.captured)]
        guess = [fresh_var(a) for a in kinds]
        _, _, own, _ = split([*guess, *params], self.sizes)
        token = [fresh_var(TOKEN)] * solve.effects
        self.body = reclose(
            open_body(solve.body, [*guess, *own, *token]), [*guess, *params, *token]
        )
        self.info = CallInfo("custom_root", rule=self)

    def tangents(
        self, params: Sequence[UOp], dots: Sequence[Tangent], outs: Sequence[UOp]
    ) -> list[Tangent]:
        count = self.sizes[0]
        _, consts, _, held = split(params, self.sizes)
        _, const_dots, _, _ = split(dots, self.sizes)
        solution = outs[:count]
        rhs = moved(self.f.body, solution, consts, const_dots)
        if all(t is None for t in rhs):
            return [None] * len(outs)
        given = [instantiate(t, x) for t, x in zip(rhs, solution, strict=True)]
        found = open_body(self.tangent.body, [*solution, *given, *held])
        touts: list[Tangent] = [
            build.neg(t) if dtypes.is_inexact(x.dtype) else None
            for t, x in zip(found, solution, strict=True)
        ]
        return [*touts, *[None] * (len(outs) - count)]


@api_boundary
def custom_root(
    f: Callable[[Any], Any],
    initial_guess: Any,
    solve: Callable[[Callable[[Any], Any], Any], Any],
    tangent_solve: Callable[[Callable[[Any], Any], Any], Any],
    has_aux: bool = False,
) -> Any:
    """`solve(f, initial_guess)`, a root of `f`, differentiated by the implicit function theorem.

    Derivatives are with respect to what `f` closes over; the initial guess has none. `solve`
    returns the root (or `(root, aux)` with `has_aux`) and need not be differentiable.
    `tangent_solve(g, y)` returns `x` with `g(x) = y` for the linear map `g`, `f` linearized at the
    root: `y / g(1.0)` for a scalar; it must be differentiable to be used in reverse mode.
    Raises: TypeError if a function returns another tree than that of the guess.
    Cost of a derivative: one `tangent_solve`.
    """
    nodes, tree = lift_leaves(
        initial_guess, lambda: tree_paths("initial_guess", initial_guess), "initial_guess"
    )
    avals = [n.aval for n in nodes]
    example = tree_unflatten(tree, range(len(nodes)))
    traced = staged(f, (example,), "custom_root f", avals)
    check_tree("f", "initial_guess", traced.out_tree, tree, False)
    solver = staged(lambda x: solve(f, x), (example,), "custom_root solve", avals)
    check_tree("solve", "initial_guess", solver.out_tree, tree, has_aux)
    tangent = staged(
        lambda x, y: tangent_solve(linearize(f, x)[1], y),
        (example, example),
        "custom_root tangent_solve",
        [*solver.out_avals[: len(nodes)], *map(tangent_aval, solver.out_avals[: len(nodes)])],
    )
    check_tree("tangent_solve", "x", tangent.out_tree, tree, False)
    traced = silenced(traced, avals)
    root = Root(avals, traced, solver, silenced(tangent, [*avals, *avals]))
    args = [*nodes, *traced.captured, *solver.captured, *tangent.captured]
    outs = root.run(args) if solver.body.src else []
    return tree_unflatten(solver.out_tree, outs)


# --- linear equations ---------------------------------------------------------------------------------


def silenced(traced: Any, kinds: Sequence[Aval]) -> Any:
    """A staged function without its effects."""
    if traced is None or not traced.effects:
        return traced
    return replace(traced, body=quiet(traced.body, [*kinds, *(c.aval for c in traced.captured)]))


class LinearSolve(ImplicitRule):
    """Arguments of the call: b, then captures of matvec, vecmat, solve, transpose_solve.

    The parts that belong to the transposed equation are None if it cannot be solved.
    """

    def __init__(self, kinds: Sequence[Aval], parts: Sequence[Traced | None]) -> None:
        super().__init__()
        self.kinds, self.parts = list(kinds), list(parts)
        self.sizes = [len(kinds), *(len(t.captured) if t else 0 for t in parts)]
        held = [fresh_var(n.aval) for t in parts if t for n in t.captured]
        rhs = [fresh_var(a) for a in kinds]
        _, _, _, own, _ = split([*rhs, *held], self.sizes)
        solve = parts[2]
        assert solve is not None
        token = [fresh_var(TOKEN)] * solve.effects
        self.body = reclose(open_body(solve.body, [*rhs, *own, *token]), [*rhs, *held, *token])
        self.info = CallInfo("custom_linear_solve", rule=self)
        self._transposed: LinearSolve | None = None

    @functools.cached_property
    def silent(self) -> LinearSolve:
        """The same without effects: what solves for derivatives."""
        return LinearSolve(self.kinds, [silenced(t, self.kinds) for t in self.parts])

    @property
    def transposed(self) -> LinearSolve | None:
        """The solve of the transposed equation."""
        matvec, vecmat, solve, transpose_solve = self.parts
        if transpose_solve is None:
            return None
        if self._transposed is None:
            other = LinearSolve(self.kinds, [vecmat, matvec, transpose_solve, solve])
            self._transposed, other._transposed = other, self
        return self._transposed

    def tangents(
        self, params: Sequence[UOp], dots: Sequence[Tangent], outs: Sequence[UOp]
    ) -> list[Tangent]:
        count = self.sizes[0]
        matvec = self.parts[0]
        assert matvec is not None
        solution = outs[:count]
        rhs, consts, *_ = split(params, self.sizes)
        rhs_dots, const_dots, *_ = split(dots, self.sizes)
        bent = moved(matvec.body, solution, consts, const_dots)
        total = [
            r if m is None else build.neg(m) if r is None else build.sub(r, m)
            for r, m in zip(rhs_dots, bent, strict=True)
        ]
        if all(t is None for t in total):
            return [None] * len(outs)
        given = [
            build.cast_like(instantiate(t, r), tangent_aval(r.aval))
            for t, r in zip(total, rhs, strict=True)
        ]
        touts: list[Tangent] = list(self.linear(given, params[count:]))
        return [*touts, *[None] * (len(outs) - count)]

    def linear(self, given: Sequence[UOp], held: Sequence[UOp]) -> list[UOp]:
        """The solve as a linear map of the right-hand side, with its transpose."""
        if any(t is not None and t.effects for t in self.parts):
            return self.silent.linear(given, held)
        count = self.sizes[0]
        residuals = [fresh_var(h.aval) for h in held]
        tangents = [fresh_var(tangent_aval(a)) for a in self.kinds]
        forward = reclose(self.cast_call(tangents, residuals), [*residuals, *tangents])
        backward = None
        other = self.transposed
        if other is not None:
            matvec, vecmat, solve, transpose_solve = split(residuals, self.sizes[1:])
            swapped = [*vecmat, *matvec, *transpose_solve, *solve]
            backward = reclose(other.cast_call(tangents, swapped), [*residuals, *tangents])
        kinds = tuple(tangent_aval(a) for a in self.kinds)
        info = CustomLinInfo(len(held), kinds, backward, "custom_linear_solve", forward)
        return results(UOp(Op.CUSTOM_LIN, (*held, *given), info))[:count]

    def cast_call(self, rhs: Sequence[UOp], held: Sequence[UOp]) -> list[UOp]:
        """The solution in the type of the right-hand side, without aux."""
        given = [build.cast_like(r, a) for r, a in zip(rhs, self.kinds, strict=True)]
        outs = results(UOp(Op.CALL, (self.body, *given, *held), self.info))[: self.sizes[0]]
        return [build.cast_like(o, tangent_aval(a)) for o, a in zip(outs, self.kinds, strict=True)]


@api_boundary
def custom_linear_solve(
    matvec: Callable[[Any], Any],
    b: Any,
    solve: Callable[[Callable[[Any], Any], Any], Any],
    transpose_solve: Callable[[Callable[[Any], Any], Any], Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """`solve(matvec, b)`, the solution of `matvec(x) = b`, differentiated at the solution.

    Derivatives are with respect to `b` and what `matvec` closes over. Reverse mode needs
    `transpose_solve(vecmat, b)`, which solves the transposed equation (`solve` itself if
    `symmetric`). With `has_aux` both solvers return `(x, aux)`; aux has no derivative.
    Shapes: leaves of `b`, of the solution and of what `matvec` returns agree.
    Raises: TypeError if trees differ, ValueError if shapes do; TypeError in reverse mode without
    `transpose_solve`. Cost of a derivative: one more solve (forward), one transposed solve
    (reverse).
    """
    if transpose_solve is None and symmetric:
        transpose_solve = solve
    nodes, tree = lift_leaves(b, lambda: tree_paths("b", b), "b of custom_linear_solve")
    kinds = [n.aval for n in nodes]
    example = tree_unflatten(tree, range(len(nodes)))

    def part(fun: Callable[[Any], Any], name: str, aux: bool) -> Traced:
        traced = staged(fun, (example,), f"custom_linear_solve {name}", kinds, again=True)
        check_tree(name, "b", traced.out_tree, tree, aux)
        check_shapes(name, traced.out_avals, kinds)
        return traced

    parts: list[Traced | None] = [part(matvec, "matvec", False), None, None, None]
    solver = part(lambda y: solve(matvec, y), "solve", has_aux)
    parts[2] = solver
    if transpose_solve is not None:
        given_solve = transpose_solve
        vecmat = matvec
        parts[1] = parts[0]
        if not symmetric:
            transposed = linear_transpose(matvec, b)

            def vecmat(y: Any) -> Any:
                return transposed(y)[0]

            parts[1] = part(vecmat, "vecmat", False)
        parts[3] = part(lambda y: given_solve(vecmat, y), "transpose_solve", has_aux)
    parts = [t if i == 2 else silenced(t, kinds) for i, t in enumerate(parts)]
    call = LinearSolve(kinds, parts)
    held = [n for t in parts if t for n in t.captured]
    outs = call.run([*nodes, *held]) if solver.body.src else []
    return tree_unflatten(solver.out_tree, outs)
