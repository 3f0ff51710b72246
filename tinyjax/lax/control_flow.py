"""scan, map, fori_loop, while_loop, cond, switch: control flow inside the graph.

Bodies are staged once; values they close over become constants of the loop (arguments, so they may
be differentiated and batched). Carries must keep tree, shapes and dtypes; weak types are promoted
to
a fixed point first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import TOKEN, Aval, aval
from tinyjax.core.body import fresh_var, open_body, open_vars, params_of, reclose
from tinyjax.core.config import MISSING, config
from tinyjax.core.dims import as_int, as_size, is_symbolic, maximum
from tinyjax.core.errors import CarryTypeError, ConcretizationTypeError, require_callable
from tinyjax.core.infos import ScanInfo, WhileInfo
from tinyjax.core.ops import Op
from tinyjax.core.source import api_boundary, function_location
from tinyjax.core.tree import (
    tree_flatten_with_path,
    tree_map,
    tree_structure,
    tree_unflatten,
)
from tinyjax.core.treedef import PyTreeDef, keystr, tree_flatten
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array, line_of_user
from tinyjax.engine.derivatives import lift_leaves, lift_with_refs
from tinyjax.engine.effects import next_token, perform
from tinyjax.engine.jit import jit
from tinyjax.engine.refs import Ref, RefArgument, assign, current, opened, through
from tinyjax.engine.tracing import Traced, argument_paths, name_of, stage, stage_cached
from tinyjax.engine.values import finish, finish_all, lift
from tinyjax.engine.vectorize import vmap
from tinyjax.interpreters.trace import state, unbound


def staged(
    fun: Callable[..., Any],
    args: Sequence[Any],
    kind: str,
    avals: Sequence[Aval],
    *,
    again: bool = False,
) -> Traced:
    """Stage `fun` of positional arguments with the trees of `args`; `again` also if it was before."""
    leaves, tree = tree_flatten((tuple(args), {}))
    del leaves

    def paths() -> list[str]:
        return argument_paths(fun, args, {})

    if again:
        return stage(fun, tree, avals, kind, paths)
    return stage_cached(fun, tree, tuple(avals), kind, paths)


def carry_error(
    name: str, before: PyTreeDef, after: PyTreeDef, a_in: Sequence[Aval], a_out: Sequence[Aval]
) -> CarryTypeError:
    """The carry came back different: only the leaves that differ are listed."""
    if before != after:
        return CarryTypeError(
            f"{name} function carry input and carry output must have the same pytree structure, "
            "but "
            f"they differ:\n  the input carry is {before}\n  the output carry is {after}\n"
            f"{line_of_user()}  Return the carry in the form in which the body got it."
        )
    paths = [
        keystr(p) for p, _ in tree_flatten_with_path(tree_unflatten(before, range(len(a_in))))[0]
    ]
    lines = [
        f"  carry{p} enters as {i.str_short()} and leaves as {o.str_short()}"
        for p, i, o in zip(paths, a_in, a_out, strict=True)
        if i.shape != o.shape or i.dtype != o.dtype
    ]
    fix = (
        "  Give the initial value the dtype that the body returns (for example with "
        ".astype), or convert the body's result."
        if all(i.shape == o.shape for i, o in zip(a_in, a_out, strict=True))
        else "  A carry keeps its shape: collect growing results as the scanned output ys instead."
    )
    return CarryTypeError(
        f"{name} function carry input and carry output must have equal types (e.g. shapes and "
        "dtypes "
        "of arrays), but they differ:\n" + "\n".join(lines) + "\n" + line_of_user() + fix
    )


def promote_carry(nodes: list[UOp], outs: Sequence[Aval]) -> list[UOp] | None:
    """Weakly typed initial values in the dtypes the body returns; None if no dtype changes.

    A carry may enter weak and leave strong, as in JAX: the body is not staged again for that. One
    that is promoted is strong, so staging again ends after as many turns as there are leaves.
    """
    new = []
    for n, o in zip(nodes, outs, strict=True):
        if n.aval.weak_type and n.shape == o.shape and n.dtype != o.dtype:
            dtype, _ = dtypes.lattice_promote((n.dtype, True), (o.dtype, o.weak_type))
            new.append(b.cast(n, dtype) if dtype == o.dtype else n)
        else:
            new.append(n)
    return None if all(x is y for x, y in zip(new, nodes, strict=True)) else new


@api_boundary
def scan(
    f: Callable[..., Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> tuple[Any, Any]:
    """`carry, y = f(carry, x)` along the leading axis of `xs`: (last carry, stacked ys).

    `_split_transpose` changes nothing.
    Shapes: leaves of `xs` are [length, ...], of ys [length, ...]; the carry keeps its shapes.
    Raises: TypeError if the carry changes type (only the differing leaves are listed); ValueError
    if leading axes differ. Cost: the body is staged and compiled once; differentiable both ways.
    """
    require_callable(f, what="lax.scan: f argument should be a callable")
    try:
        x_nodes, x_tree = lift_leaves(xs, lambda: tree_paths("xs", xs), "xs of scan")
    except RefArgument:
        return scan_over_refs(f, init, xs, length=length, reverse=reverse, unroll=unroll)
    lengths: dict[int, str] = {}
    for i, n in enumerate(x_nodes):
        if not n.shape:
            raise ValueError(
                f"scan got value with no leading axis to scan over: {tree_paths('xs', xs)[i]} is "
                "a scalar.\n  Close over what is the same in all steps, or put it into the carry."
            )
        lengths.setdefault(n.shape[0], tree_paths("xs", xs)[i])
    if length is not None:
        length = as_size(length)
        if any(size != length for size in lengths):
            raise ValueError(
                f"scan got `length` argument of {length} which disagrees with leading axis sizes "
                f"{list(lengths)}.\n  Leave `length` out, or cut or pad xs to it."
            )
    elif len(lengths) > 1:
        listed = ", ".join(f"{p}: {size}" for size, p in lengths.items())
        raise ValueError(
            f"scan got values with different leading axis sizes: {listed}.\n  Cut or pad them to one "
            "length; close over what is the same in all steps."
        )
    elif not lengths:
        raise ValueError(
            "scan got no values to scan over and `length` not provided.\n"
            "  Say how many steps there are: length=n."
        )
    else:
        (length,) = lengths
    carry_nodes, carry_tree = lift_leaves(init, lambda: tree_paths("init", init), "init of scan")
    if config.jax_disable_jit:
        return scan_in_python(f, init, x_nodes, x_tree, length, reverse)
    x_avals = [n.aval.update(shape=n.shape[1:]) for n in x_nodes]
    x_example = tree_unflatten(x_tree, range(len(x_nodes)))
    traced, out_tree, carry_nodes = stage_carry(
        "scan", f, init, carry_nodes, carry_tree, x_example, x_avals
    )
    nk = len(carry_nodes)
    consts, token = split_operands(traced, [*carry_nodes, *x_nodes])
    carried = [*carry_nodes, *token]
    info = ScanInfo(len(consts), len(carried), length, bool(reverse), steps(unroll, length))
    body = consts_first(traced, nk, len(x_avals))
    node = UOp(Op.SCAN, (body, *consts, *carried, *x_nodes), info)
    outs = perform(node) if traced.body.src else []
    end = nk + len(traced.refs)
    outs = traced.deliver([*outs[:nk], *outs[end:], *outs[nk:end]])
    y_tree = out_tree.children()[1]
    return tree_unflatten(carry_tree, outs[:nk]), tree_unflatten(y_tree, outs[nk:])


def scan_over_refs(f: Callable[..., Any], init: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
    """scan with mutable arrays among the xs: a step gets, as a mutable array, its slice of each."""
    leaves, tree = tree_flatten(((xs,), {}))

    @functools.wraps(f, updated=())
    def step(carry: Any, x: Any) -> Any:
        out, after = opened(functools.partial(f, carry), tree, leaves, name_of(f))[0](x)
        pair = isinstance(out, (tuple, list)) and len(out) == 2
        return (out[0], (out[1], after)) if pair else out

    def call(values: Any) -> Any:
        carry, (ys, after) = scan(step, init, values, **options)
        return (carry, ys), after

    carry, ys = through(leaves, [i for i, x in enumerate(leaves) if isinstance(x, Ref)], call)
    return carry, ys


def steps(unroll: int | bool, length: int) -> int:
    """`unroll=True` means all of it; a symbolic number of steps is not unrolled."""
    if is_symbolic(length):
        unroll = 1
    if unroll is True:
        return max(length, 1)
    turns = as_int(unroll, "unroll")
    if turns < 0:
        raise ValueError(f"`unroll` must be a bool or a non-negative int, got {unroll}.")
    return max(turns, 1)


def tree_paths(name: str, tree: Any) -> list[str]:
    """`xs['a'][0]` for each leaf."""
    return [name + keystr(path) for path, _ in tree_flatten_with_path(tree)[0]]


def split_operands(traced: Traced, args: Sequence[UOp]) -> tuple[list[UOp], list[UOp]]:
    """What a loop takes beside its arguments: captured values, and further carries: what mutable
    arrays hold, the token of its effects."""
    more = traced.operands(args)[len(args) :]
    count = len(traced.captured)
    return more[:count], more[count:]


def consts_first(traced: Traced, carry: int, xs: int = 0) -> UOp:
    """The staged body of a loop: captures come first; mutable arrays and a token end the carry."""
    captured, outputs = len(traced.captured), len(traced.out_avals)
    if not captured and not (traced.state and xs) and outputs == carry:
        return traced.body
    key = ("consts first", carry, xs)
    found = traced.body.derived.get(key)
    if found is None:
        count = carry + xs
        v, outs = open_vars(traced.body, traced_avals(traced, count))
        end = count + captured
        order = [*v[count:end], *v[:carry], *v[end:], *v[carry:count]]
        found = reclose([*outs[:carry], *outs[outputs:], *outs[carry:outputs]], order)
        traced.body.derived[key] = found
    return found


def traced_avals(traced: Traced, count: int) -> list[Aval]:
    """Avals of all parameters; those the body does not read are given as scalars."""
    known = params_of(traced.body)
    unread = aval((), np.dtype(np.bool_))
    more = len(traced.captured) + len(traced.refs) + traced.effects
    return [known.get(i, unread) for i in range(count + more)]


def stage_carry(
    name: str,
    f: Callable[..., Any],
    init: Any,
    nodes: list[UOp],
    tree: PyTreeDef,
    x_example: Any,
    x_avals: Sequence[Aval],
) -> tuple[Traced, PyTreeDef, list[UOp]]:
    """Stage a scan body; weak initial values are promoted until the carry keeps its dtypes."""
    example = tree_unflatten(tree, range(len(nodes)))
    while True:
        avals = [n.aval for n in nodes] + list(x_avals)
        traced = staged(f, (example, x_example), name, avals)
        out_tree = traced.out_tree
        parts = out_tree.children()
        kind = out_tree.node_data()
        if kind is None or kind[0] not in (tuple, list) or len(parts) != 2:
            raise TypeError(
                f"{name} body output must be a pair (carry, y), got a result of structure "
                f"{out_tree}.\n  Return (carry, None) where there is nothing to collect."
            )
        outs = traced.out_avals[: parts[0].num_leaves]
        if parts[0] != tree:
            raise carry_error(name, tree, parts[0], [], [])
        promoted = promote_carry(nodes, outs)
        if promoted is None:
            break
        nodes = promoted
    a_in = [n.aval for n in nodes]
    if any(i.shape != o.shape or i.dtype != o.dtype for i, o in zip(a_in, outs, strict=True)):
        raise carry_error(name, tree, parts[0], a_in, outs)
    return traced, out_tree, nodes


def scan_in_python(
    f: Any, init: Any, x_nodes: Sequence[UOp], x_tree: PyTreeDef, length: int, reverse: bool
) -> tuple[Any, Any]:
    """The same loop, run step by step (with jit disabled)."""
    carry, ys = init, []
    order = range(length)[::-1] if reverse else range(length)
    for i in order:
        parts = finish_all([b.squeeze(b.slice_axis(n, 0, i, i + 1), (0,)) for n in x_nodes])
        carry, y = f(carry, tree_unflatten(x_tree, parts))
        ys.append(y)
    if reverse:
        ys.reverse()
    if not ys:
        raise ValueError(
            "zero-length scan is not supported with jit disabled.\n  Leave the loop out if there are "
            "no steps, or run it within jax.disable_jit(False)."
        )
    leaves = [tree_flatten(y)[0] for y in ys]
    y_tree = tree_flatten(ys[0])[1]
    stacked = [
        finish_all([b.concat([b.unsqueeze(lift(v), 0) for v in column], 0)])[0]
        for column in zip(*leaves, strict=True)
    ]
    return carry, tree_unflatten(y_tree, stacked)


def map(f: Callable[..., Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """`f` on each slice of the leading axis, one after the other (`vmap` in chunks of
    `batch_size`)."""
    require_callable(f, what="lax.map: f argument should be callable")
    if batch_size is not None:
        return map_in_batches(f, xs, as_size(batch_size, "batch_size"))
    return scan(lambda _, x: ((), f(x)), (), xs)[1]


def map_in_batches(f: Callable[..., Any], xs: Any, batch_size: int) -> Any:
    """Full chunks by scan over vmap, the rest by vmap."""
    if batch_size < 1:
        raise ValueError(f"lax.map: batch_size must be positive, got {batch_size}.")
    shapes = [lift(x).shape for x in tree_flatten(xs)[0]]
    if len({s[:1] for s in shapes}) != 1 or not all(s and s[0] for s in shapes):
        return map(f, xs)  # nothing to do, or to be refused
    total = shapes[0][0]
    whole = total // batch_size * batch_size
    parts = []
    if whole:

        def chunked(x: Any) -> Any:
            n = lift(x)
            n = b.slice_axis(n, 0, 0, whole)
            return finish_all([b.reshape(n, (whole // batch_size, batch_size, *n.shape[1:]))])[0]

        done = map(vmap(f), tree_map(chunked, xs))
        parts.append(
            tree_map(lambda y: finish_all([b.reshape(lift(y), (whole, *y.shape[2:]))])[0], done)
        )
    if whole < total:
        rest = tree_map(lambda x: finish_all([b.slice_axis(lift(x), 0, whole, total)])[0], xs)
        parts.append(vmap(f)(rest))
    if len(parts) == 1:
        return parts[0]
    return tree_map(lambda p, q: finish_all([b.concat([lift(p), lift(q)], 0)])[0], *parts)


@api_boundary
def while_loop(
    cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any
) -> Any:
    """Apply `body_fun` while `cond_fun` holds. Forward-mode differentiable.

    The value keeps its tree, shapes and dtypes. Raises: TypeError if it does not or if the
    condition
    is not one bool.
    """
    what = "lax.while_loop: body_fun and cond_fun arguments should be callable"
    require_callable(body_fun, cond_fun, what=what)
    nodes, tree = lift_leaves(
        init_val, lambda: tree_paths("init_val", init_val), "init_val of while_loop"
    )
    if config.jax_disable_jit:
        value = tree_unflatten(tree, [Array(n) for n in nodes])
        try:
            while cond_fun(value):
                value = body_fun(value)
            return value
        except ConcretizationTypeError:  # under vmap there is one answer per example
            pass
    cond, body, nodes = stage_while("while_loop", cond_fun, body_fun, nodes, tree)
    if cond.state:
        return while_with_effects(
            cond_fun, body_fun, tree_unflatten(tree, [Array(n) for n in nodes])
        )
    count = len(nodes)
    consts, token = split_operands(body, [*cond.captured, *nodes])
    info = WhileInfo(len(cond.captured), len(consts))
    bodies = (consts_first(cond, count), consts_first(body, count))
    node = UOp(Op.WHILE, (*bodies, *cond.captured, *consts, *nodes, *token), info)
    found = body.deliver(perform(node)) if body.body.src else []
    for i, (out, given) in enumerate(zip(body.body.src, nodes)):
        if out.op is Op.PARAM and out.arg[0] == i:  # not the loop's: it has a derivative
            found[i] = finish(given)
    return tree_unflatten(tree, found)


def stage_while(
    name: str,
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    nodes: list[UOp],
    tree: PyTreeDef,
) -> tuple[Traced, Traced, list[UOp]]:
    """Stage condition and body; weak initial values are promoted until the carry keeps its dtypes.

    Raises: TypeError if the carry changes type or if the condition is not one bool.
    """
    example = tree_unflatten(tree, range(len(nodes)))
    while True:
        avals = [n.aval for n in nodes]
        cond = staged(cond_fun, (example,), f"{name} cond", avals)
        body = staged(body_fun, (example,), name, avals)
        if body.out_tree != tree:
            raise carry_error(f"{name} body", tree, body.out_tree, [], [])
        promoted = promote_carry(nodes, body.out_avals)
        if promoted is None:
            break
        nodes = promoted
    a_in = [n.aval for n in nodes]
    if any(
        i.shape != o.shape or i.dtype != o.dtype for i, o in zip(a_in, body.out_avals, strict=True)
    ):
        raise carry_error(f"{name} body", tree, body.out_tree, a_in, body.out_avals)
    out = cond.out_avals
    if len(out) != 1 or cond.out_tree.num_nodes != 1 or out[0].shape or out[0].dtype != np.bool_:
        got = ", ".join(a.str_short() for a in out)
        raise TypeError(
            f"cond_fun must return a boolean scalar, but got output type(s) [{got}].\n"
            f"{line_of_user()}  Compare ({function_location(cond_fun)} may return a number), or "
            "reduce "
            "with .all() or .any()."
        )
    return cond, body, nodes


def while_with_effects(
    cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any
) -> Any:
    """The same loop, its condition computed where it has effects: before it and after each step.

    A condition has no derivative, so its callbacks do not refuse one.
    """

    def holds(value: Any) -> Any:
        return cond_fun(tree_map(lambda x: Array(b.stop_gradient(lift(x))), value))

    def advance(carry: Any) -> Any:
        running, before = carry
        value = body_fun(before)
        # Under vmap an example that is done keeps its value: the condition is asked about that one.
        mask = functools.partial(kept_unless, running.node)
        if tree_structure(value) == tree_structure(before):
            value = tree_map(mask, value, before)
        return holds(value), value

    first = jit(holds)(init_val)
    return while_loop(lambda carry: carry[0], advance, (first, init_val))[1]


def kept_unless(running: UOp, after: Any, before: Any) -> Any:
    """A step's result while the loop runs, else what was before it."""
    new, old = lift(after), lift(before)
    if new.shape != old.shape or new.dtype != old.dtype:
        return after  # refused, or promoted, by the loop
    return finish_all([b.where(running, new, old)])[0]


@api_boundary
def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
) -> Any:
    """`for i in range(lower, upper): val = body_fun(i, val)`.

    With bounds known in Python this is a scan (differentiable both ways), else a while_loop.
    Dtype: `i` is weak like a Python int if both bounds are known, else it has that of the bounds.
    Raises: TypeError for bounds of different dtypes, unless one is a Python int.
    """
    require_callable(body_fun, what="lax.fori_loop: body_fun argument should be callable")
    low, high = lift(lower, "lower"), lift(upper, "upper")
    for n, name in ((low, "lower"), (high, "upper")):
        if n.shape or not dtypes.is_integer(n.dtype):
            raise TypeError(
                f"lower and upper arguments to fori_loop must be integer scalars, got "
                f"{n.aval.str_short()} for {name}.\n  Convert it: int({name}), or "
                f"{name}.astype(int) if it is traced."
            )
    dtype, weak = index_type(low.aval, high.aval)
    static = all(known(x) for x in (lower, upper))
    if static:
        start, stop = as_size(lower), as_size(upper)
        count = maximum(stop - start, 0)
        if config.jax_disable_jit and not is_symbolic(count) and count == 0:
            return init_val
        first = b.scalar(start, dtypes.default_int_dtype(), True)

        def step(carry: Any, _: None) -> Any:
            i, value = carry
            new = finish_all([b.add(i.node, b.like(i.node, 1))])[0]
            return (new, body_fun(i, value)), None

        (_, value), _ = scan(step, (Array(first), init_val), None, length=count, unroll=unroll or 1)
        return value
    if unroll is not None and unroll is not False and unroll != 1:
        raise ValueError(
            "Can only use `unroll` in `fori_loop` if the loop bounds are statically known.\n"
            "  Give the bounds as Python ints (static arguments of jit), or leave `unroll` out."
        )

    def running(carry: Any) -> Any:
        i, end, _ = carry
        return finish_all([b.lt(i.node, end.node)])[0]

    def advance(carry: Any) -> Any:
        i, end, value = carry
        return finish_all([b.add(i.node, b.like(i.node, 1))])[0], end, body_fun(i, value)

    begin = Array(b.cast(low, dtype, weak))
    end = Array(b.cast(high, dtype, high.aval.weak_type))
    return while_loop(running, advance, (begin, end, init_val))[2]


def index_type(low: Aval, high: Aval) -> tuple[Any, bool]:
    """Dtype and weak flag of the index of a fori_loop between bounds of these types."""
    if low.dtype == high.dtype:
        return low.dtype, low.weak_type
    signed = dtypes.is_signed(low.dtype) and dtypes.is_signed(high.dtype)
    if signed and low.weak_type != high.weak_type:
        return (high if low.weak_type else low).dtype, False
    raise TypeError(
        "lower and upper arguments to fori_loop must have equal types, got "
        f"{low.dtype.name} and {high.dtype.name}.\n  Convert one of them, as in "
        f"upper.astype({low.dtype.name!r}), or give a Python int."
    )


def known(x: Any) -> bool:
    """Whether Python knows the value for good (a number, or an array without open variables)."""
    if type(x) is Array:
        return x._buffer is not None or (not x.node.free and not state.staging)
    return True


def with_operand(operands: tuple[Any, ...], operand: Any) -> tuple[Any, ...]:
    """The operands, of which one may come by keyword."""
    if operand is MISSING:
        return operands
    if operands:
        raise TypeError(
            "if 'operand' keyword is passed then no positional operands can be passed, got "
            f"operand={operand!r} and positional operands {operands}.\n  Pass all of them by position."
        )
    return (operand,)


@api_boundary
def cond(
    pred: Any,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    *operands: Any,
    operand: Any = MISSING,
) -> Any:
    """`true_fun(*operands)` if `pred` else `false_fun(*operands)`; both are staged, one runs.

    `operand=x` is an older way to pass one operand, which may be None; so is
    `cond(pred, true_operand, true_fun, false_operand, false_fun)`.
    Under vmap with a batched predicate both run and the result is selected, without NaNs leaking
    into gradients. Raises: TypeError if the results differ in tree, shape or dtype.
    """
    given: tuple[Any, ...] = (true_fun, false_fun, *operands)
    if len(given) == 4 and not callable(given[0]) and callable(given[3]):
        x, f, y, g = given
        return cond(pred, lambda x, _: f(x), lambda _, y: g(y), x, y)
    what = "lax.cond: true_fun and false_fun arguments should be callable"
    require_callable(true_fun, false_fun, what=what)
    operands = with_operand(operands, operand)
    node = lift(pred, "pred")
    if node.shape:
        raise TypeError(
            f"Pred must be a scalar, got {pred} of shape {node.shape}; use jnp.where for "
            "elementwise "
            "choice, or jax.vmap."
        )
    if dtypes.is_complex(node.dtype) or dtypes.is_key(node.dtype):
        raise TypeError(
            f"Pred type must be either boolean or number, got {node.aval.str_short()}.\n"
            "  Compare it with something, as in x == y."
        )
    if config.jax_disable_jit and known_value(node):
        return true_fun(*operands) if bool(Array(node)) else false_fun(*operands)
    flag = node if node.dtype == np.bool_ else b.ne(node, b.like(node, 0))
    return branch("cond", b.cast(flag, np.int32), (false_fun, true_fun), operands)


def known_value(node: UOp) -> bool:
    """Whether a node can be evaluated now."""
    return unbound(node) is None and not state.staging


@api_boundary
def switch(
    index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, operand: Any = MISSING
) -> Any:
    """`branches[clamp(index)](*operands)`; all are staged, one runs. `operand`: as in `cond`."""
    if not isinstance(branches, (list, tuple)):
        raise TypeError(
            f"switch branches must be a sequence of functions, got {branches!r}.\n"
            "  Pass a list: lax.switch(index, [f, g], *operands)."
        )
    if not branches:
        raise ValueError(
            "Empty branch sequence.\n  Pass a list with a function for each value of the index."
        )
    what = "lax.switch: branches argument should be a sequence of callables"
    require_callable(*branches, what=what)
    operands = with_operand(operands, operand)
    node = lift(index, "index")
    if node.shape:
        raise TypeError(
            f"Branch index must be scalar, got {index} of shape {node.shape}.\n"
            "  Use jax.vmap for an index per example."
        )
    if not dtypes.is_integer(node.dtype):
        raise TypeError(
            f"Index type must be an integer, got {node.aval.str_short()}.\n"
            "  Convert it with .astype(int); a condition is for lax.cond."
        )
    if len(branches) == 1:
        return branches[0](*operands)
    if config.jax_disable_jit and known_value(node):
        return branches[min(max(int(Array(node)), 0), len(branches) - 1)](*operands)
    last = b.like(node, len(branches) - 1)
    clamped = b.max_(b.min_(node, last), b.like(node, 0))
    return branch("switch", b.cast(clamped, np.int32), tuple(branches), operands)


def platform_dependent(
    *args: Any, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]
) -> Any:
    """The function for the platform of the program, here that for `cpu`, or the default, of `args`.

    Raises: NotImplementedError if there is neither.
    """
    chosen = per_platform.get("cpu", default)
    if chosen is None:
        raise NotImplementedError(
            f"lax.platform_dependent has functions for {', '.join(per_platform) or 'no platform'}, none "
            "for cpu, and no default.\n  Pass one as cpu=f or default=f."
        )
    return chosen(*args)


def branch(
    name: str, index: UOp, branches: tuple[Callable[..., Any], ...], operands: tuple[Any, ...]
) -> Any:
    """Stage all branches over the same operands and captures."""
    nodes, kinds, passed, tree = lift_with_refs(
        operands, lambda: tree_paths("operands", operands), f"operands of {name}"
    )
    full = tree_flatten((tree_unflatten(tree, range(len(kinds))), {}))[1]
    avals = [n.aval for n in nodes]
    order = -1 if name == "cond" else 1  # the true branch is staged first
    traced = [
        stage_cached(f, full, kinds, name).bound(passed, name_of(f)) for f in branches[::order]
    ][::order]
    first = traced[0]
    for f, t in zip(branches[1:], traced[1:], strict=True):
        if t.out_tree != first.out_tree:
            raise CarryTypeError(
                f"{name} branch outputs must have the same pytree structure, but they differ:\n"
                f"  {function_location(branches[0])} returns {first.out_tree}\n"
                f"  {function_location(f)} returns {t.out_tree}\n{line_of_user()}"
                "  Return the same containers with the same keys from all branches."
            )
    outs = joined_avals(name, branches, traced)
    captured: dict[UOp, None] = {}
    for t in traced:
        captured.update(dict.fromkeys(t.captured))
    shared = list(captured)
    refs = list(dict.fromkeys(r for t in traced for r in t.refs))
    given = [*nodes, *shared, *(current(r) for r in refs)]
    effects = any(t.effects for t in traced)
    if effects:
        given.append(next_token([index, *given]))
    bodies = [with_captures(t, avals, shared, refs, effects, outs) for t in traced]
    if not bodies[0].src:
        return tree_unflatten(first.out_tree, [])
    found = perform(UOp(Op.COND, (*bodies, index, *given), len(bodies)))
    for ref, value in zip(refs, found[len(outs) :], strict=True):
        assign(ref, value.node)
    return tree_unflatten(first.out_tree, found[: len(outs)])


def roles(name: str, branches: Sequence[Any]) -> list[str]:
    """What the user calls the branches."""
    if name == "cond":
        return ["false_fun", "true_fun"]
    return [f"branches[{i}]" for i in range(len(branches))]


def joined_avals(
    name: str, branches: Sequence[Callable[..., Any]], traced: Sequence[Traced]
) -> list[Aval]:
    """Common avals of the branches' results; weak types give way."""
    outs: list[Aval] = []
    tree = traced[0].out_tree
    example = tree_unflatten(tree, range(tree.num_leaves))
    paths = [keystr(p) for p, _ in tree_flatten_with_path(example)[0]]
    for i, column in enumerate(zip(*(t.out_avals for t in traced), strict=True)):
        strong = [a for a in column if not a.weak_type]
        want = strong[0] if strong else column[0]
        for a in column:
            fits = a.shape == want.shape and a.dtype == want.dtype
            if not fits:
                listed = "\n".join(
                    f"  {role} ({function_location(g)}) returns {x.str_short()}"
                    for role, g, x in zip(roles(name, branches), branches, column, strict=True)
                )
                raise CarryTypeError(
                    f"{name} branches must have equal output types but they differ at "
                    f"output{paths[i]}:"
                    f"\n{listed}\n{line_of_user()}  Convert or reshape in one of the branches."
                )
        outs.append(want)
    return outs


def with_captures(
    t: Traced,
    avals: Sequence[Aval],
    shared: Sequence[UOp],
    refs: Sequence[Ref],
    effects: bool,
    outs: Sequence[Aval],
) -> UOp:
    """A branch body over (operands, captures, mutable arrays and token of all branches) with results
    of these avals, then what the mutable arrays hold, and the token."""
    own = [fresh_var(a) for a in avals]
    place = {s: fresh_var(s.aval) for s in shared}
    held = {r: fresh_var(r.aval_) for r in refs}
    token = [fresh_var(TOKEN)] * effects
    given = [*own, *(place[c] for c in t.captured), *(held[r] for r in t.refs)]
    values = open_body(t.body, [*given, *(token if t.effects else ())])
    count = len(outs)
    after = held | dict(zip(t.refs, values[count:], strict=False))
    results = [b.cast_like(v, o) for v, o in zip(values, outs, strict=False)]
    last = values[-1:] if t.effects else token
    return reclose(
        [*results, *after.values(), *last], [*own, *place.values(), *held.values(), *token]
    )
