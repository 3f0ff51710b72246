"""grad, value_and_grad, jvp, vjp, linearize, linear_transpose: forward rules, then transposition.

Each hands the function variables bound to its arguments, so Python control flow on values works,
and rewrites the graph that comes back. Nothing is run twice: values that Python looked at are kept
beside their nodes (interpreters/trace.py).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import Aval
from tinyjax.core.body import close, fresh_var, open_body
from tinyjax.core.dims import Size, is_symbolic
from tinyjax.core.errors import GradTypeError, NotLinearError, make_error, require_callable
from tinyjax.core.ops import Op
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import (
    leaf_paths,
    register_pytree_node,
    tree_flatten_with_path,
    tree_unflatten,
)
from tinyjax.core.treedef import PyTreeDef, keystr, tree_flatten
from tinyjax.core.uop import UOp, substitute, toposort
from tinyjax.engine.array import Array, line_of_user
from tinyjax.engine.composites import jvp as jvp_nodes
from tinyjax.engine.effects import settle
from tinyjax.engine.refs import (
    AbstractRef,
    Ref,
    RefArgument,
    addupdate,
    current,
    held,
    opened,
    refuse_twice,
    store,
    through,
)
from tinyjax.engine.tracing import (
    Traced,
    argument_paths,
    name_of,
    output_nodes,
    parameter_names,
    stage,
)
from tinyjax.engine.values import finish_all, is_array_like, lift, shaped_abstractify
from tinyjax.interpreters.effects import apply_rule, has_effects, jvp_in_chain
from tinyjax.interpreters.linearity import NotLinear, dependence
from tinyjax.interpreters.linearize import known_apart, known_frontier, tangent_aval
from tinyjax.interpreters.residuals import LITERALS
from tinyjax.interpreters.trace import Cell, Trace, linear_apart, open_trace, rebind
from tinyjax.interpreters.transpose import RefsInBody, transpose, transposed_body

Argnums = int | Sequence[int]


@dataclass(frozen=True, slots=True)
class Float0Zeros:
    """Zeros of dtype float0 where a size is symbolic, which no NumPy array is."""

    shape: tuple[Size, ...]

    dtype = property(lambda self: dtypes.float0)
    ndim = property(lambda self: len(self.shape))


def float0_zeros(shape: tuple[Size, ...]) -> np.ndarray | Float0Zeros:
    """The derivative of a value that has none, at the public border."""
    return Float0Zeros(shape) if any(map(is_symbolic, shape)) else np.zeros(shape, dtypes.float0)


def derivative(value: UOp | None, of: Aval) -> UOp:
    """A (co)tangent as the user sees it: zeros for None, the dtype and weak flag of the primal."""
    return b.zeros(of) if value is None else b.cast_like(value, of)


def lift_leaves(
    tree: Any, paths: Callable[[], Sequence[str]], what: str
) -> tuple[list[UOp], PyTreeDef]:
    """Leaves as nodes; a leaf that is not an array is an error with its path."""
    leaves, treedef = tree_flatten(tree)
    nodes = []
    for i, leaf in enumerate(leaves):
        if type(leaf) is Array:
            nodes.append(leaf.node)
            continue
        if not is_array_like(leaf):
            raise (RefArgument if isinstance(leaf, Ref) else TypeError)(
                f"{what} must be arrays or numbers, but {paths()[i]} is {leaf!r} of type "
                f"{type(leaf)}.\n{line_of_user()}  Close over it, or give it to the function as a "
                "static value (functools.partial)."
            )
        nodes.append(lift(leaf))
    return nodes, treedef


def lift_with_refs(
    tree: Any, paths: Callable[[], Sequence[str]], what: str
) -> tuple[list[UOp], tuple[Aval | AbstractRef, ...], list[Ref], PyTreeDef]:
    """Arrays among the leaves as nodes, what all leaves are, the mutable arrays among them."""
    leaves, treedef = tree_flatten(tree)
    refs = [x for x in leaves if isinstance(x, Ref)]
    if not refs:
        nodes, _ = lift_leaves(tree, paths, what)
        return nodes, tuple(n.aval for n in nodes), [], treedef
    arrays = [i for i, x in enumerate(leaves) if not isinstance(x, Ref)]
    nodes, _ = lift_leaves([leaves[i] for i in arrays], lambda: [paths()[i] for i in arrays], what)
    rest = iter(nodes)
    avals = [AbstractRef(x.aval_) if isinstance(x, Ref) else next(rest).aval for x in leaves]
    return nodes, tuple(avals), refs, treedef


def bind(
    trace: Trace, nodes: Sequence[UOp], paths: Sequence[str], differentiable: bool = True
) -> list[UOp]:
    """Variables bound to these nodes."""
    return [
        trace.variable(n.aval, p, bound=n, differentiable=differentiable)
        for n, p in zip(nodes, paths, strict=True)
    ]


def leave(trace: Trace, roots: Sequence[UOp], mapping: dict[UOp, UOp]) -> list[UOp]:
    """`roots` of a trace that ends, its variables replaced; its effects go on or happen now, and
    mutable arrays from outside get their values."""
    cells = list(dict.fromkeys(trace.touched))
    found = rebind([*roots, *(c.node for c in cells), *trace.chain.tokens], mapping)
    if trace.chain.tokens:
        trace.chain.last = found.pop()
    found = settle(trace, found)
    for cell, value in zip(cells, finish_all(found[len(roots) :]), strict=True):
        cell.node = value.node
    return found[: len(roots)]


def linearized_nodes(
    outs: Sequence[UOp],
    aux: Sequence[UOp],
    tangents: dict[UOp, UOp],
    trace: Trace,
    what: str = "transposed",
) -> tuple[list[UOp], list[UOp], list[UOp | None], tuple[UOp, UOp] | None]:
    """Outputs, aux and the tangents of the outputs, linear in `tangents`, on which neither outputs nor
    effects depend. Aux are values of the same computation: it does not run twice.

    If the linear part is to be "applied": the first and last token of the effects that see tangents.
    """
    chain, late = trace.chain, None
    cells = list(dict.fromkeys(trace.touched))
    with linear_apart(what):
        roots = [*outs, *aux, *(c.node for c in cells)]
        values, touts = jvp_in_chain(roots, tangents, chain, jvp_nodes)
        touts = [t if i < len(outs) else None for i, t in enumerate(touts)]
        if chain.last is not None:
            dots = list(tangents.values())
            (*values, chain.last), (*touts, _), late = known_apart(
                [*values, chain.last], [*touts, None], dots
            )
    values = hold(cells, values)
    return values[: len(outs)], values[len(outs) :], touts[: len(outs)], late


def hold(cells: Sequence[Cell], values: Sequence[UOp]) -> list[UOp]:
    """Let mutable arrays hold the last values; the others. What was written in a function is
    differentiated with it: a custom rule may write in place of its function."""
    count = len(values) - len(cells)
    for cell, value in zip(cells, values[count:], strict=True):
        cell.node = value
    return list(values[:count])


def apply_effectful(fun: Any, body: UOp, args: Sequence[UOp]) -> list[UOp]:
    """Outputs of a body on nodes, its effects included."""
    if not has_effects(body):
        return open_body(body, args)
    with open_trace("vjp", fun, staging=False) as trace:
        values, _ = apply_rule(body, args, None)
        return settle(trace, values)


def looks_at_values(linear: UOp) -> bool:
    """Whether a backward rule in a linear body may look at cotangents or write to Refs."""
    found = linear.derived.get("looks at values")
    if found is None:
        rules = [n.arg for n in toposort(linear.src) if n.op is Op.CUSTOM_LIN]
        found = any(rule.refs or getattr(rule.backward, "look", None) for rule in rules)
        linear.derived["looks at values"] = found
    return bool(found)


def transpose_now(
    fun: Any, linear: UOp, held: Sequence[UOp], avals: Sequence[Aval], cts: Sequence[UOp]
) -> list[UOp | None]:
    """Cotangents of the linear arguments of a body, without making a body of that."""
    with open_trace("vjp", fun, staging=False) as trace:
        tangents = [fresh_var(a) for a in avals]
        found = transpose(open_body(linear, [*held, *tangents]), list(cts), tangents)
        settled = iter(leave(trace, [v for v in found if v is not None], {}))
        return [None if v is None else next(settled) for v in found]


def pick_arguments(
    fun: Any, argnums: Argnums, args: Sequence[Any], what: str
) -> tuple[tuple[int, ...], bool]:
    """Normalised argnums and whether one int was given."""
    single = isinstance(argnums, (int, np.integer))
    try:
        given: Any = (argnums,) if single else argnums
        numbers = tuple(operator.index(i) for i in given)
    except TypeError:
        raise TypeError(
            f"argnums of {what} must be an int or a tuple of ints, got {argnums!r}.\n"
            "  Arguments are counted from 0; those given by keyword cannot be differentiated."
        ) from None
    if not numbers and not single:
        raise ValueError(
            f"{what} needs at least one argnum; got an empty tuple.\n"
            "  Leave argnums out for the derivative with respect to the first argument."
        )
    if any(not -len(args) <= i < len(args) for i in numbers):
        raise TypeError(
            f"Positional argnums {numbers if not single else argnums} of {what} require at least "
            f"{max(i + 1 if i >= 0 else -i for i in numbers)} positional arguments; "
            f"{name_of(fun)} was called with {len(args)}. Keyword arguments cannot be "
            "differentiated.\n  Pass the argument by position; positions are counted from 0."
        )
    normal = tuple(i % len(args) for i in numbers)
    if len(set(normal)) < len(normal):
        raise ValueError(
            f"argnums of {what} must name different arguments, got {argnums!r} for "
            f"{len(args)} positional arguments of {name_of(fun)}.\n  Counted from the front they are "
            f"{normal}: name each once."
        )
    return normal, single


def picked_paths(fun: Any, numbers: Sequence[int], args: Sequence[Any]) -> list[str]:
    """Paths of the leaves of the chosen arguments."""
    names = parameter_names(fun, len(args))
    return [
        names[i] + keystr(path) for i in numbers for path, _ in tree_flatten_with_path(args[i])[0]
    ]


def check_input_dtype(node: UOp, path: str, what: str, holomorphic: bool, allow_int: bool) -> None:
    """grad needs inexact inputs, complex ones with holomorphic=True, integers with allow_int=True.

    jacfwd needs real ones: along which of the two real directions of a complex number?
    """
    dtype = node.dtype
    if holomorphic:
        if not dtypes.is_complex(dtype):
            raise GradTypeError(
                f"{what} with holomorphic=True requires inputs with complex dtype, but got "
                f"{dtypes.short_name(dtype)} for {path}.\n"
                f"  Convert it: jnp.asarray({path}, complex); or leave holomorphic=True out."
            )
    elif dtypes.is_complex(dtype) and what == "jacfwd":
        raise GradTypeError(
            f"{what} requires real-valued inputs (input dtype that is a sub-dtype of np.floating), "
            f"but got {dtype.name} for {path}. For holomorphic differentiation, pass "
            "holomorphic=True. For differentiation of non-holomorphic functions involving complex "
            "inputs, use jax.jvp or jax.vjp directly."
        )
    elif not dtypes.is_inexact(dtype) and not allow_int:
        hint = (
            f"  Perhaps convert it: {path}.astype(float), or close over it."
            if node.ndim
            else "  Perhaps pass a float: write 3.0 instead of 3, or x.astype(float)."
        )
        raise GradTypeError(
            f"{what} requires real- or complex-valued inputs (input dtype that is a sub-dtype of "
            f"np.inexact), but got {dtypes.short_name(dtype)}[{','.join(map(str, node.shape))}] "
            "for "
            f"{path}. If you want to use Boolean- or integer-valued inputs, use vjp or set "
            f"allow_int to True.\n{hint}"
        )


def check_scalar_output(out: Any, fun: Any, what: str, holomorphic: bool, has_aux: bool) -> UOp:
    """grad needs one real scalar."""
    if not is_array_like(out):
        hint = (
            "\n  To return further values beside the loss, pass has_aux=True and return (loss, "
            "aux)."
            if isinstance(out, (tuple, list, dict)) and not has_aux
            else "\n  Perhaps a return statement is missing."
            if out is None
            else "\n  Return one number, an array of shape ()."
        )
        raise GradTypeError(
            f"Gradient only defined for scalar-output functions. {name_of(fun)} returned "
            f"{type(out).__name__}: {_short(out)}.{hint}"
        )
    node = lift(out)
    if node.shape:
        raise GradTypeError(
            "Gradient only defined for scalar-output functions. Output of "
            f"{name_of(fun)} had shape: {node.shape}.\n"
            + line_of_user()
            + "  Reduce it (jnp.sum, jnp.mean), or use jax.jacrev for all derivatives, or "
            "jax.vmap(jax.grad(f)) for one per example."
        )
    if holomorphic and not dtypes.is_complex(node.dtype):
        raise GradTypeError(
            f"{what} with holomorphic=True requires outputs with complex dtype, but got "
            f"{node.dtype.name}.\n{NOT_HOLOMORPHIC}"
        )
    if not holomorphic and not dtypes.is_float(node.dtype):
        raise GradTypeError(
            f"{what} requires real-valued outputs (output dtype that is a sub-dtype of "
            f"np.floating), but got {dtypes.short_name(node.dtype)}. "
            + (
                "For holomorphic differentiation, pass holomorphic=True. For differentiation of "
                "functions with complex outputs, use jax.vjp directly."
                if dtypes.is_complex(node.dtype)
                else "For differentiation of functions with integer outputs, use jax.vjp directly."
            )
        )
    return node


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) < 60 else text[:57] + "..."


def value_and_grad(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:
    """A function that returns both `fun`'s value and its gradient.

    `fun` returns a real scalar, or `(scalar, aux)` with `has_aux=True`. The gradient has the tree
    of the argument (a tuple of trees if `argnums` is a sequence), dtypes those of the inputs;
    integer inputs (with `allow_int`) give float0 zeros.
    `reduce_axes` has no meaning any more and must be empty, as in JAX.
    Raises: `GradTypeError` (TypeError) for wrong inputs or outputs, naming the argument path.
    Cost: a small multiple of that of `fun` (reverse mode), memory for its intermediate values.
    Source: Griewank and Walther, "Evaluating Derivatives".
    """
    _no_reduce_axes("value_and_grad", reduce_axes)
    return _value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, "value_and_grad")


def _no_reduce_axes(name: str, reduce_axes: Any) -> None:
    if reduce_axes:
        raise NotImplementedError(
            f"reduce_axes argument to {name} is deprecated, got {reduce_axes!r}.\n"
            "  Sum the gradients with lax.psum instead."
        )


def _value_and_grad(
    fun: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
    holomorphic: bool,
    allow_int: bool,
    what: str,
) -> Callable[..., Any]:
    require_callable(fun)

    @functools.wraps(fun, updated=())
    @api_boundary
    def value_and_grad_of(*args: Any, **kwargs: Any) -> Any:
        numbers, single = pick_arguments(fun, argnums, args, what)
        chosen = tuple(args[i] for i in numbers)
        paths = picked_paths(fun, numbers, args)
        nodes, tree = lift_leaves(chosen, lambda: paths, f"arguments of {what}")
        for node, path in zip(nodes, paths, strict=True):
            check_input_dtype(node, path, what, holomorphic, allow_int)
        with open_trace("grad", fun, staging=False) as trace:
            variables = bind(trace, nodes, paths)
            new_args = list(args)
            arrays = tree_unflatten(tree, [Array(v) for v in variables])
            for i, value in zip(numbers, arrays, strict=True):
                new_args[i] = value
            out = fun(*new_args, **kwargs)
            aux: Any = None
            if has_aux:
                if not (isinstance(out, (tuple, list)) and len(out) == 2):
                    raise GradTypeError(
                        f"with has_aux=True, {name_of(fun)} must return a pair (value, aux); got "
                        f"{type(out).__name__}: {_short(out)}.\n{NO_AUX}"
                    )
                out, aux = out
            y = check_scalar_output(out, fun, what, holomorphic, has_aux)
            inexact = [v for v in variables if dtypes.is_inexact(v.dtype)]
            tangents = {v: fresh_var(tangent_aval(v.aval)) for v in inexact}
            aux_leaves, aux_tree = tree_flatten(aux)
            aux_nodes = [x.node for x in aux_leaves if type(x) is Array]
            (y,), aux_nodes, (ty,), _ = linearized_nodes([y], aux_nodes, tangents, trace)
            seed = b.scalar(1, y.dtype)
            cts = transpose([ty], [seed], list(tangents.values())) if ty is not None else []
            cts = cts or [None] * len(inexact)
            gradients = {v: derivative(ct, v.aval) for v, ct in zip(inexact, cts, strict=True)}
            roots = [y, *gradients.values(), *aux_nodes]
            arrays_out = finish_all(leave(trace, roots, dict(zip(variables, nodes, strict=True))))
        value = arrays_out[0]
        by_var = dict(zip(gradients, arrays_out[1 : 1 + len(gradients)], strict=True))
        flat = [by_var[v] if v in by_var else float0_zeros(v.shape) for v in variables]
        result = tree_unflatten(tree, flat)
        gradient = result[0] if single else tuple(result)
        if not has_aux:
            return value, gradient
        rest = iter(arrays_out[1 + len(gradients) :])
        aux_out = tree_unflatten(
            aux_tree, [next(rest) if type(x) is Array else x for x in aux_leaves]
        )
        return (value, aux_out), gradient

    return value_and_grad_of


def grad(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:
    """A function that returns the gradient of `fun` (and aux with `has_aux=True`).

    Arguments, errors and cost as `value_and_grad`.
    Example: `grad(lambda x: x**2)(3.0)` is `6.0`.
    """
    _no_reduce_axes("grad", reduce_axes)
    both = _value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, "grad")

    @functools.wraps(fun, updated=())
    @api_boundary
    def grad_of(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return grad_of


def split_aux(out: Any, fun: Any, has_aux: bool) -> tuple[Any, Any]:
    """(value, aux) of a function's result."""
    if not has_aux:
        return out, None
    if not (isinstance(out, (tuple, list)) and len(out) == 2):
        raise TypeError(
            f"expected function with aux output to return a two-element tuple, but {name_of(fun)} "
            f"returned {type(out).__name__}: {_short(out)}.\n{NO_AUX}"
        )
    return out[0], out[1]


def given_derivative(x: Any, of: Aval, name: str = "") -> tuple[UOp | None, Aval, Aval]:
    """A (co)tangent that the user gives of a value `of`: a node (None for float0), its aval, and the
    one it should have. The caller compares shapes and dtypes, which must be equal: nothing is
    promoted, weakly typed or not, as in JAX."""
    found, expected = shaped_abstractify(x, name), of.to_tangent_aval()
    if dtypes.float0 in (found.dtype, expected.dtype):
        return None, found, expected
    return lift(x, name), found, expected


def tangent_node(t: Any, primal: UOp, path: str) -> UOp | None:
    """A tangent given by the user, checked against its primal; None for float0."""
    node, found, expected = given_derivative(t, primal.aval, path)
    if found.dtype != expected.dtype:
        raise TypeError(
            "primal and tangent arguments to jax.jvp do not match; dtypes must be equal, or in case of "
            "int/bool primal dtype the tangent dtype must be float0. Got primal dtype "
            f"{dtype_name(primal.dtype)} and so expected tangent dtype {dtype_name(expected.dtype)}, "
            f"but got tangent dtype {dtype_name(found.dtype)} for {path}.\n"
            + conversion("tangent", found, expected)
        )
    if found.shape != expected.shape:
        raise ValueError(
            "jvp called with different primal and tangent shapes; "
            f"Got primal shape {primal.shape} and tangent shape as {found.shape} for {path}.\n"
            + conversion("tangent", found, expected)
        )
    return None if node is None else b.cast(node, primal.dtype)


TANGENTS = (
    "  Give one tangent per array of the arguments: jax.tree.map(jnp.zeros_like, args) has them."
)
COTANGENT = (
    "  Give one cotangent per array of the output: jax.tree.map(jnp.ones_like, out) has them."
)
NO_AUX = "  Return (value, aux), or leave has_aux=True out."
NOT_HOLOMORPHIC = "  Return a complex value, or leave holomorphic=True out."
"""What to do, where several errors have it in common."""


def conversion(what: str, found: Aval, expected: Aval) -> str:
    """What to do about a tangent or cotangent that does not fit."""
    shape, dtype = expected.shape, dtype_name(expected.dtype)
    if expected.dtype == dtypes.float0:
        return f"  Integers have none that moves: give np.zeros({shape}, jax.dtypes.float0)."
    if found.shape != shape:
        return f"  Give a {what} of that shape, as jnp.ones({shape}, {dtype!r}) is."
    return f"  Convert it: jnp.asarray({what}, {dtype!r})."


def dtype_name(dtype: Any) -> str:
    """`float32`; float0, whose own name says nothing, as such."""
    return "float0" if dtype == dtypes.float0 else str(dtype.name)


def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> Any:
    """`(fun(*primals), derivative of fun along tangents)`; forward mode.

    Shapes and dtypes of tangents are those of the primals (float0 for integer primals).
    Raises: TypeError/ValueError naming the argument that does not match.
    Cost: about twice that of `fun`, no memory for intermediate values.
    """
    return _jvp(fun, primals, tangents, has_aux)


@api_boundary
def _jvp(fun: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool) -> Any:
    require_callable(fun)
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise TypeError(
            "primal and tangent arguments to jax.jvp must be tuples or lists; found "
            f"{type(primals).__name__} and {type(tangents).__name__}.\n"
            "  Write jvp(f, (x,), (dx,)) for one argument."
        )
    paths = argument_paths(fun, primals, {})
    try:
        nodes, tree = lift_leaves(tuple(primals), lambda: paths, "primals of jvp")
    except RefArgument:
        return jvp_with_refs(fun, primals, tangents, has_aux)
    t_leaves, t_tree = tree_flatten(tuple(tangents))
    if t_tree != tree:
        raise TypeError(
            "primal and tangent arguments to jax.jvp must have the same tree structure; primals "
            f"have tree structure {tree} whereas tangents have tree structure {t_tree}.\n{TANGENTS}"
        )
    given = [tangent_node(t, n, p) for t, n, p in zip(t_leaves, nodes, paths, strict=True)]
    with open_trace("jvp", fun, staging=False) as trace:
        variables = bind(trace, nodes, paths)
        seeds = {v: t for v, t in zip(variables, given, strict=True) if t is not None}
        trace.seeds = seeds
        out = fun(*tree_unflatten(tree, [Array(v) for v in variables]))
        out, aux = split_aux(out, fun, has_aux)
        outs, out_tree = output_nodes(out, fun, "jvp")
        aux_leaves, aux_tree = tree_flatten(aux)
        aux_nodes = [x.node for x in aux_leaves if type(x) is Array]
        cells = list(dict.fromkeys(trace.touched))
        roots = [*outs, *aux_nodes, *(c.node for c in cells)]
        values, touts = jvp_in_chain(roots, seeds, trace.chain, jvp_nodes)
        values, touts = hold(cells, values), touts[: len(outs)]
        outs, aux_nodes = values[: len(outs)], values[len(outs) :]
        live = [
            derivative(t, o.aval)
            for o, t in zip(outs, touts, strict=True)
            if dtypes.is_inexact(o.dtype)
        ]
        mapping = dict(zip(variables, nodes, strict=True))
        final = finish_all(leave(trace, [*outs, *live, *aux_nodes], mapping))
    count = len(outs)
    rest = iter(final[count : count + len(live)])
    t_out = [next(rest) if dtypes.is_inexact(o.dtype) else float0_zeros(o.shape) for o in outs]
    primal_out = tree_unflatten(out_tree, final[:count])
    tangent_out = tree_unflatten(out_tree, t_out)
    if not has_aux:
        return primal_out, tangent_out
    more = iter(final[count + len(live) :])
    return (
        primal_out,
        tangent_out,
        tree_unflatten(aux_tree, [next(more) if type(x) is Array else x for x in aux_leaves]),
    )


def flat_with_refs(
    fun: Callable[..., Any], primals: Sequence[Any], has_aux: bool
) -> tuple[Callable[..., Any], list[Any], list[int]]:
    """A function of the list of leaves, arrays in place of mutable arrays, that returns ((result,
    what these hold in the end), aux); the leaves; the places of the mutable arrays."""
    leaves, tree = tree_flatten((tuple(primals), {}))
    flat, places = opened(fun, tree, leaves, name_of(fun))

    @functools.wraps(fun, updated=())
    def of_values(values: Any) -> Any:
        out, after = flat(values)
        out, aux = split_aux(out, fun, has_aux)
        return (out, after), aux

    return of_values, leaves, places


def tangent_refs(leaves: Sequence[Any], places: Sequence[int], name: str) -> None:
    """Raise TypeError unless the tangents of mutable arrays are mutable arrays."""
    for i in places:
        if not isinstance(leaves[i], Ref):
            raise RefArgument(
                f"the tangent of a mutable array must be a mutable array, but {name} got "
                f"{leaves[i]!r}.\n  Pass jax.new_ref(tangent)."
            )


def jvp_with_refs(fun: Any, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool) -> Any:
    """jvp with mutable arrays among the primals: their tangents are mutable arrays too, which hold
    the derivatives of what the former hold."""
    of_values, leaves, places = flat_with_refs(fun, primals, has_aux)
    t_leaves, t_tree = tree_flatten(tuple(tangents))
    if t_tree != tree_flatten(tuple(primals))[1]:
        raise TypeError(
            "primal and tangent arguments to jax.jvp must have the same tree structure, but "
            f"tangents have tree structure {t_tree}.\n{TANGENTS}"
        )
    tangent_refs(t_leaves, places, "jax.jvp")
    refuse_twice([x[i] for x in (leaves, t_leaves) for i in places], name_of(fun))
    (out, after), (t_out, t_after), aux = jvp(
        of_values, (held(leaves),), (held(t_leaves),), has_aux=True
    )
    store([leaves[i] for i in places], after)
    store([t_leaves[i] for i in places], t_after)
    return (out, t_out, aux) if has_aux else (out, t_out)


class LinearFunction:
    """A linear map: a closed body over residuals (arrays, the leaves of this pytree) and tangents.

    What `linearize` returns; `transposed` gives what `vjp` returns. It may cross jit, scan and
    vmap.
    """

    __slots__ = (
        "in_avals",
        "in_tree",
        "linear",
        "name",
        "nonzero",
        "out_avals",
        "out_tree",
        "residuals",
    )

    def __init__(
        self,
        residuals: Sequence[Any],
        linear: UOp,
        in_tree: PyTreeDef,
        in_avals: tuple[Any, ...],
        out_tree: PyTreeDef,
        out_avals: tuple[Any, ...],
        nonzero: tuple[bool, ...],
        name: str,
    ) -> None:
        self.residuals, self.linear = list(residuals), linear
        self.in_tree, self.in_avals = in_tree, in_avals
        self.out_tree, self.out_avals, self.nonzero = out_tree, out_avals, nonzero
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}>"

    def _static(self) -> tuple[Any, ...]:
        return (
            self.linear, self.in_tree, self.in_avals, self.out_tree, self.out_avals, self.nonzero,
            self.name,
        )  # fmt: skip


class Linearized(LinearFunction):
    """Tangents of the inputs -> tangents of the outputs."""

    @api_boundary
    def __call__(self, *tangents: Any) -> Any:
        leaves, tree = tree_flatten(tuple(tangents))
        if tree != self.in_tree:
            raise TypeError(
                f"linearized {self.name} was called with tangents of structure {tree}, but its "
                f"inputs have structure {self.in_tree}.\n{TANGENTS}"
            )
        given = []
        for i, (t, of) in enumerate(zip(leaves, self.in_avals, strict=True)):
            node, found, expected = given_derivative(t, of)
            if (found.shape, found.dtype) != (expected.shape, expected.dtype):
                raise ValueError(
                    "linearized function called on tangent values inconsistent with the original primal "
                    f"values: Got tangent aval {found.str_short()} for primal aval {of.str_short()} but "
                    f"expected {expected.str_short()} (argument "
                    f"{leaf_paths('tangents', self.in_tree)[i]} of the linearized {self.name}).\n"
                    + conversion("tangent", found, expected)
                )
            if node is not None:
                given.append(b.cast(node, of.dtype))
        held = [r.node for r in self.residuals]
        values = iter(apply_effectful(self, self.linear, [*held, *given]))
        nodes = [
            derivative(next(values) if on else None, of)
            for of, on in zip(self.out_avals, self.nonzero, strict=True)
            if dtypes.is_inexact(of.dtype)
        ]
        arrays = iter(finish_all(nodes))
        flat = [
            next(arrays) if dtypes.is_inexact(of.dtype) else float0_zeros(of.shape)
            for of in self.out_avals
        ]
        return tree_unflatten(self.out_tree, flat)


class VjpFunction(LinearFunction):
    """Cotangents of the outputs -> cotangents of the inputs (a tuple, one per argument)."""

    @api_boundary
    def __call__(self, *cotangent: Any) -> Any:
        if len(cotangent) != 1:
            raise TypeError(
                f"The function returned by `jax.vjp` applied to {self.name} was called with "
                f"{len(cotangent)} arguments, but functions returned by `jax.vjp` must be called "
                "with a single argument corresponding to the output of the function being "
                "differentiated (even if that output is a tuple or other container).\n"
                "  Pass the cotangents of a tuple as one: f_vjp((ct1, ct2))."
            )
        leaves, tree = tree_flatten(cotangent[0])
        if tree != self.out_tree:
            raise ValueError(
                "unexpected tree structure of argument to vjp function: got "
                f"{tree}, but expected to match {self.out_tree}.\n{COTANGENT}"
            )
        cts: list[UOp] = []
        for i, (ct, of) in enumerate(zip(leaves, self.out_avals, strict=True)):
            node, found, expected = given_derivative(ct, of)
            # As in JAX, what an integer output gets in the place of float0 does not matter.
            fits = found.dtype == expected.dtype or expected.dtype == dtypes.float0
            if found.shape != expected.shape or not fits:
                raise ValueError(
                    f"unexpected JAX type (e.g. shape/dtype) for argument to vjp function: got "
                    f"{found.str_short()}, but expected {expected.str_short()} because the "
                    f"corresponding output of the function {self.name} had JAX type "
                    f"{of.str_short()} ({leaf_paths('output', self.out_tree)[i]}).\n"
                    + conversion("cotangent", found, expected)
                )
            if node is not None and self.nonzero[i]:
                cts.append(b.cast(node, of.dtype))
        held = [r.node for r in self.residuals]
        inexact = [a for a in self.in_avals if dtypes.is_inexact(a.dtype)]
        avals = [*(h.aval for h in held), *(tangent_aval(a) for a in inexact)]
        linear = (False,) * len(held) + (True,) * len(inexact)
        try:
            if looks_at_values(self.linear):
                raise RefsInBody
            body, got = transposed_body(self.linear, avals, linear, (True,) * len(cts))
            values = iter(apply_effectful(self, body, [*held, *cts]))
        except RefsInBody:
            back = transpose_now(self, self.linear, held, avals[len(held) :], cts)
            got, values = tuple(v is not None for v in back), iter(v for v in back if v is not None)
        nodes = [
            derivative(next(values) if g else None, a) for a, g in zip(inexact, got, strict=True)
        ]
        arrays = iter(finish_all(nodes))
        flat = [
            next(arrays) if dtypes.is_inexact(a.dtype) else float0_zeros(a.shape)
            for a in self.in_avals
        ]
        return tree_unflatten(self.in_tree, flat)

    def with_refs(self, *accumulators: Any) -> Callable[[Any], Any]:
        """The same function, but the cotangents of arguments (or leaves of them) in whose place a
        mutable array stands here are added to what it holds; their entry in the result is None."""
        leaves, tree = tree_flatten(tuple(accumulators))
        if tree != self.in_tree:
            raise TypeError(
                f"with_refs of the vjp of {self.name} got accumulators of structure {tree}, but its "
                f"arguments have structure {self.in_tree}.\n  Put any number where the cotangent is "
                "to be returned."
            )

        @api_boundary
        def accumulate(cotangent: Any) -> Any:
            flat = tree_flatten(self(cotangent))[0]
            for i, (place, ct) in enumerate(zip(leaves, flat, strict=True)):
                if isinstance(place, Ref):
                    addupdate(place, ..., ct)
                    flat[i] = None
            return tree_unflatten(self.in_tree, flat)

        return accumulate


for _cls in (Linearized, VjpFunction):
    register_pytree_node(
        _cls,
        lambda f: (tuple(f.residuals), f._static()),
        (lambda cls: lambda static, residuals: cls(residuals, *static))(_cls),
    )


def linearize_arguments(
    fun: Callable[..., Any], primals: Sequence[Any], has_aux: bool, kind: str, cls: Any
) -> Any:
    """Run `fun` on bound variables and split: (outputs, linear function, aux)."""
    require_callable(fun)
    paths = argument_paths(fun, primals, {})
    try:
        nodes, tree = lift_leaves(tuple(primals), lambda: paths, f"primals of {kind}")
    except RefArgument:
        if kind != "linearize":
            raise  # a cotangent of what a mutable array holds has no place to go
        return linearize_with_refs(fun, primals, has_aux)
    with open_trace(kind, fun, staging=False) as trace:
        variables = bind(trace, nodes, paths)
        out = fun(*tree_unflatten(tree, [Array(v) for v in variables]))
        out, aux = split_aux(out, fun, has_aux)
        outs, out_tree = output_nodes(out, fun, kind)
        inexact = [v for v in variables if dtypes.is_inexact(v.dtype)]
        tangents = {v: fresh_var(tangent_aval(v.aval)) for v in inexact}
        what = "applied" if kind == "linearize" else "transposed"
        aux_leaves, aux_tree = tree_flatten(aux)
        aux_nodes = [x.node for x in aux_leaves if type(x) is Array]
        outs, aux_nodes, touts, late = linearized_nodes(outs, aux_nodes, tangents, trace, what)
        starts, lasts = ([], []) if late is None else ([late[0]], [late[1]])
        roots = [b.cast(t, o.dtype) for o, t in zip(outs, touts, strict=True) if t is not None]
        roots += lasts
        linear_vars = [*tangents.values(), *starts]
        frontier = [n for n in known_frontier(roots, linear_vars) if n.op not in LITERALS]
        held = [fresh_var(n.aval) for n in frontier]
        cut = substitute(roots, dict(zip(frontier, held, strict=True)))
        linear, captured = close(cut, [*held, *linear_vars])
        assert not captured, "the frontier separates the linear part"
        mapping = dict(zip(variables, nodes, strict=True))
        final = finish_all(leave(trace, [*outs, *frontier, *aux_nodes], mapping))
    count = len(outs)
    function = cls(
        final[count : count + len(frontier)],
        linear,
        tree,
        tuple(n.aval for n in nodes),
        out_tree,
        tuple(o.aval for o in outs),
        tuple(t is not None for t in touts),
        name_of(fun),
    )
    value = tree_unflatten(out_tree, final[:count])
    if not has_aux:
        return value, function
    rest = iter(final[count + len(frontier) :])
    return (
        value,
        function,
        tree_unflatten(aux_tree, [next(rest) if type(x) is Array else x for x in aux_leaves]),
    )


def linearize_with_refs(fun: Any, primals: Sequence[Any], has_aux: bool) -> Any:
    """linearize with mutable arrays among the primals, as `jvp_with_refs`."""
    of_values, leaves, places = flat_with_refs(fun, primals, has_aux)
    tree = tree_flatten(tuple(primals))[1]
    (out, after), linear, aux = linearize(of_values, held(leaves), has_aux=True)
    store([leaves[i] for i in places], after)

    @api_boundary
    def linearized(*tangents: Any) -> Any:
        t_leaves, t_tree = tree_flatten(tuple(tangents))
        if t_tree != tree:
            raise TypeError(
                f"linearized {name_of(fun)} was called with tangents of structure {t_tree}, but its "
                f"inputs have structure {tree}.\n{TANGENTS}"
            )
        tangent_refs(t_leaves, places, f"linearized {name_of(fun)}")
        refuse_twice([t_leaves[i] for i in places], name_of(fun))
        return through(t_leaves, places, linear)

    return (out, linearized, aux) if has_aux else (out, linearized)


def vjp(
    fun: Callable[..., Any], *primals: Any, has_aux: bool = False, reduce_axes: Any = ()
) -> Any:
    """`(fun(*primals), f_vjp)`: `f_vjp(cotangent)` is a tuple with one cotangent tree per primal.

    `f_vjp` is a pytree (its residuals are leaves) and may be called more than once. With `has_aux`,
    `(value, f_vjp, aux)`. Integer primals have float0 cotangents.
    `reduce_axes` must be empty, as in JAX.
    """
    _no_reduce_axes("vjp", reduce_axes)
    return api_boundary(linearize_arguments)(fun, primals, has_aux, "vjp", VjpFunction)


def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """`(fun(*primals), f_jvp)`: the derivative at the primals as a linear function of tangents."""
    return api_boundary(linearize_arguments)(fun, primals, has_aux, "linearize", Linearized)


def linear_transpose(
    fun: Callable[..., Any], *primals: Any, reduce_axes: Any = ()
) -> Callable[..., Any]:
    """The transpose of a function that is linear in all arguments (given as arrays or avals).

    Constants that it adds are ignored. It is traced once, here.
    `reduce_axes` must be empty, as in JAX.
    Raises: `NotLinearError` (NotImplementedError) naming the operation that is not linear; TypeError
    unless all arguments and results are floating or complex, or all integers, and for cotangents
    that do not match the result.
    """
    _no_reduce_axes("linear_transpose", reduce_axes)
    leaves, tree = tree_flatten((tuple(primals), {}))
    avals = [shaped_abstractify(x) for x in leaves]
    traced = stage(fun, tree, avals, "linear_transpose", lambda: argument_paths(fun, primals, {}))
    kinds = [a.dtype for a in avals], [a.dtype for a in traced.out_avals]
    inexact = all(map(dtypes.is_inexact, kinds[0])) and all(map(dtypes.is_inexact, kinds[1]))
    if not inexact and not all(dtypes.is_integer(d) for side in kinds for d in side):
        named = [", ".join(dtypes.short_name(d) for d in side) for side in kinds]
        raise TypeError(
            "linear_transpose only supports [float or complex] -> [float or complex], and integer -> "
            f"integer functions, but got [{named[0]}] -> [{named[1]}].\n"
            "  Convert the arguments, or the results in the function, with .astype."
        )
    linear = (True,) * len(avals)
    rest = [*traced.captured, *map(current, traced.refs)]
    try:
        dependence(traced.body, (*linear, *[False] * (len(rest) + 1)), traced.sites)
    except NotLinear as found:
        raise not_linear(fun, found) from None

    @api_boundary
    def transposed(cotangent: Any) -> Any:
        given, given_tree = tree_flatten(cotangent)
        if given_tree != traced.out_tree:
            raise TypeError(
                f"cotangent tree does not match function output, expected {traced.out_tree} but got "
                f"{given_tree}.\n{COTANGENT}"
            )
        cts = [lift(ct) for ct in given]
        for i, (ct, of) in enumerate(zip(cts, traced.out_avals, strict=True)):
            if (ct.shape, ct.dtype) != (of.shape, of.dtype):
                raise TypeError(
                    f"cotangent type does not match function output, expected {of.str_short()} but "
                    f"got {ct.aval.str_short()} ({leaf_paths('output', traced.out_tree)[i]}).\n"
                    + conversion("cotangent", ct.aval, of)
                )
        cts = [b.cast(ct, of.dtype) for ct, of in zip(cts, traced.out_avals, strict=True)]
        if not inexact:  # no tangents, but the function itself is linear
            kept, got = transposed_body(
                traced.body, [*avals, *(r.aval for r in rest)], (*linear, *[False] * len(rest)),
                (True,) * len(cts),
            )  # fmt: skip
            values = iter(open_body(kept, [*rest, *cts]))
            nodes = [derivative(next(values) if g else None, a) for g, a in zip(got, avals)]
            return tree_unflatten(tree, finish_all(nodes))[0]
        zeros = finish_all([b.zeros(a) for a in avals])
        back = vjp(lambda *xs: apply_traced(fun, traced, [lift(x) for x in xs]), *zeros)[1]
        return tree_unflatten(tree, back(list(finish_all(cts))))[0]

    return api_boundary(transposed)


def apply_traced(fun: Any, traced: Traced, args: Sequence[UOp]) -> list[Array]:
    """Flat results of a staged function, opened into the running trace."""
    given = [*args, *traced.captured, *map(current, traced.refs)]
    return traced.deliver(finish_all(apply_effectful(fun, traced.body, given)))


def not_linear(fun: Any, found: NotLinear) -> NotLinearError:
    """The error for a function that cannot be transposed."""
    from tinyjax.interpreters.find_bad import op_name  # only for people who look for a cause

    site = found.source[0] if found.source else None
    return make_error(
        NotLinearError,
        f"Transpose rule for {op_name(found.node)!r} not implemented",
        rule=f"it is not linear in what it depends on here, so {name_of(fun)} is not linear",
        site=site,
        fix="jax.vjp transposes the derivative of any function.",
    )
