"""What to do about a mistake: the last line of the message, after the user's line.

One row per message: the call, the exception, words of what happened, and the fix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp
from tests.messages import Mistake, tells
from tinyjax import flatten_util
from tinyjax.ad_checkpoint import checkpoint_policies
from tinyjax.engine.jaxprs import eval_jaxpr
from tinyjax.experimental import checkify

X = np.ones(3, np.float32)
F32 = jax.ShapeDtypeStruct((), "float32")
N = jax.Dim("n", 1, 64)
NUMBER: Any = 1.0
NONE: Any = None
VECTOR: Any = X
TEXT: Any = "dots"


def batched(rule: Callable[..., Any]) -> Any:
    f = jax.custom_batching.custom_vmap(lambda x: x * 1)
    f.def_vmap(rule)
    return jax.vmap(f)(X)


def ruled(rule: Callable[..., Any], around: Callable[..., Any] = lambda f: f) -> Any:
    f = jax.custom_jvp(lambda x: x * 1)
    f.defjvp(rule)
    return jax.jvp(around(f), (1.0,), (1.0,))


def reversed_rule(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> Any:
    f = jax.custom_vjp(lambda x: x * 1)
    f.defvjp(fwd, bwd)
    return jax.grad(f)(1.0)


def of_a_dict(bwd: Callable[..., Any]) -> Any:
    f = jax.custom_vjp(lambda d: d["a"])
    f.defvjp(lambda d: (d["a"], None), bwd)
    return jax.grad(f)({"a": 1.0})


def keyword_rule() -> Any:
    @jax.custom_jvp
    def f(x: Any, *, k: Any) -> Any:
        return x * k

    f.defjvps(lambda t, out, x: t)
    return f(1.0, k=2.0)


def forbidden_trace() -> Any:
    with jax.no_tracing(True):
        return jax.jit(lambda x: x)(X)


def arity_of_a_jaxpr() -> Any:
    closed = jax.make_jaxpr(jnp.sin)(X)
    return eval_jaxpr(closed.jaxpr, closed.consts, X, X)


def both_saved_and_offloaded() -> Any:
    return checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["a"],
        names_which_can_be_offloaded=["a"],
        offload_src="device",
        offload_dst="pinned_host",
    )


def store_of_another_shape() -> Any:
    ref = jax.new_ref(jnp.ones(3))
    ref[...] = X[:2]


CASES: dict[str, Mistake] = {
    "not a function": (
        lambda: jax.jit(NUMBER),
        TypeError,
        "Expected a callable value, got 1.0",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "a result for a function": (
        lambda: jax.vmap(VECTOR),
        TypeError,
        "Expected a callable value, got f32[3]",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "grad of a result": (
        lambda: jax.grad(NUMBER),
        TypeError,
        "Expected a callable value, got 1.0",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "jacobian of a result": (
        lambda: jax.jacrev(NUMBER),
        TypeError,
        "Expected a callable value, got 1.0",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "checkpoint of a result": (
        lambda: jax.checkpoint(NUMBER),
        TypeError,
        "Expected a callable value, got 1.0",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "custom_vmap of a result": (
        lambda: jax.custom_batching.custom_vmap(NUMBER),
        TypeError,
        "Expected a callable value, got 1.0",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "custom_vjp of a result": (
        lambda: jax.custom_vjp(NUMBER),
        TypeError,
        "Expected a callable value, got 1.0",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "pmap of a result": (
        lambda: jax.pmap(NUMBER),
        TypeError,
        "Expected a callable value, got 1.0",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "named_call of a result": (
        lambda: jax.named_call(NUMBER),
        TypeError,
        "Expected a callable value, got 1.0",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "custom_gradient of a result": (
        lambda: jax.custom_gradient(NUMBER),
        TypeError,
        "Expected a callable value, got 1.0",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "make_jaxpr of a result": (
        lambda: jax.make_jaxpr(NUMBER),
        TypeError,
        "Expected a callable value, got 1.0",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "jvp of a result": (
        lambda: jax.jvp(NUMBER, (1.0,), (1.0,)),
        TypeError,
        "Expected a callable value, got 1.0",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "linearize of a result": (
        lambda: jax.linearize(NUMBER, 1.0),
        TypeError,
        "Expected a callable value, got 1.0",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "index that is a vector": (
        lambda: [1, 2][jnp.arange(3)],
        TypeError,
        "converted to a scalar index; got i32[3]",
        "Take one element by an index, or all as lists with x.tolist().",
    ),
    "index that is a float": (
        lambda: [1, 2][jnp.float32(1)],
        TypeError,
        "converted to a scalar index; got f32[]",
        "Convert it: int(x).",
    ),
    "number of a vector": (
        lambda: float(jnp.ones(3)),
        TypeError,
        "converted to Python float; got f32[3]",
        "Take one element by an index, or all as lists with x.tolist().",
    ),
    "view of another dtype": (
        lambda: np.array(jnp.ones(3), np.int32, copy=False),
        ValueError,
        "a copy is needed to convert f32[3] to int32",
        "Leave `copy` out, or ask for the dtype that the array has.",
    ),
    "length of a scalar": (
        lambda: len(jnp.float32(1)),
        TypeError,
        "len() of unsized object",
        "A scalar has no axis: x.size is 1, and jnp.atleast_1d(x) has an axis of size 1.",
    ),
    "length of a type": (
        lambda: len(jax.ShapeDtypeStruct((), "float32")),
        TypeError,
        "len() of unsized object",
        "A scalar has no axis: x.size is 1, and jnp.atleast_1d(x) has an axis of size 1.",
    ),
    "iteration over a scalar": (
        lambda: list(jnp.float32(1)),
        TypeError,
        "iteration over a 0-d array",
        "A scalar has no axis: x.size is 1, and jnp.atleast_1d(x) has an axis of size 1.",
    ),
    "format of a vector": (
        lambda: f"{jnp.ones(3):.2f}",
        TypeError,
        "format '.2f' is for scalars; got f32[3]",
        "Print with np.printoptions(precision=...), or format the elements one by one.",
    ),
    "sharding of a tracer": (
        lambda: jax.jit(lambda x: x.sharding and x)(X),
        AttributeError,
        "'sharding' attribute is not available on a traced f32[3]",
        "Look at it outside of the traced function, or at jax.jit(f)(x).sharding.",
    ),
    "callback of another structure": (
        lambda: jax.pure_callback(lambda x: (x, x), F32, 1.0),
        RuntimeError,
        "was stated",
        "Return the containers of result_shape_dtypes, or state others there.",
    ),
    "callback of another shape": (
        lambda: jax.pure_callback(lambda x: np.ones(2, np.float32), F32, 1.0),
        ValueError,
        "callback returned shape (2,), f32[] was declared",
        "Return what result_shape_dtypes declares, or declare there what is returned.",
    ),
    "callback of another dtype": (
        lambda: jax.jit(lambda x: jax.pure_callback(np.conj, F32, x * 1j))(1.0),
        RuntimeError,
        "callback returned dtype complex64, f32[] was declared",
        "Return what result_shape_dtypes declares, or declare there what is returned.",
    ),
    "debug callback of a number": (
        lambda: jax.debug.callback(3, 1.0),
        TypeError,
        "must be callable, but got an object of type <class 'int'>",
        "Pass the function first, then its arguments: jax.debug.callback(f, x).",
    ),
    "value without a placeholder": (
        lambda: jax.debug.print("{}", 1, 2),
        ValueError,
        "Unused positional arguments to `jax.debug.print`: [1]",
        "Write {} in the text for each.",
    ),
    "closure without its constants": (
        lambda: jax.closure_convert(lambda x: x, 1.0)[0](),
        TypeError,
        "was called with arguments of structure PyTreeDef(())",
        "Pass arguments like the examples, and then what was closed over: converted(*args, *consts).",
    ),
    "custom_gradient without a pair": (
        lambda: jax.custom_gradient(lambda x: x)(1.0),
        TypeError,
        "must return a pair (value, vjp)",
        "Return the value and a function from its cotangent to those of the arguments.",
    ),
    "batching rule without a pair": (
        lambda: batched(lambda n, on, x: x),
        TypeError,
        "must return a pair (output, which parts of it are batched)",
        "Return (output, True) for one array whose first axis is the batch.",
    ),
    "batching rule with other flags": (
        lambda: batched(lambda n, on, x: (x, (True, True))),
        ValueError,
        "output batching specification",
        "Return a tree of bools like the output: jax.tree.map(lambda _: True, output).",
    ),
    "batching rule of another structure": (
        lambda: batched(lambda n, on, x: ((x, x), (True, True))),
        ValueError,
        "does not match that of original custom-vmapped function",
        "Return the containers that <lambda> returns, with the batch axis in the arrays.",
    ),
    "batching rule of another shape": (
        lambda: batched(lambda n, on, x: (x[0], True)),
        ValueError,
        "f32[3] is needed",
        "Put the batch axis first (jnp.moveaxis), convert with .astype, and say False of what has no batch axis.",
    ),
    "custom_vmap of other arguments": (
        lambda: jax.custom_batching.custom_vmap(lambda x: x)(1.0, 2.0),
        TypeError,
        "could not be resolved to positional-only arguments",
        "Call it as <lambda>(x).",
    ),
    "custom_vmap without a rule": (
        lambda: jax.custom_batching.custom_vmap(lambda x: x)(1.0),
        AttributeError,
        "No batching rule defined for custom_vmap function",
        "Give one: f.def_vmap(rule), with rule(axis_size, in_batched, *args).",
    ),
    "jvp rule without a pair": (
        lambda: ruled(lambda p, t: p[0]),
        TypeError,
        "representing the primal output and tangent outputs",
        "Return (value, tangent): the value of <lambda> first.",
    ),
    "jvp rule of another value": (
        lambda: ruled(lambda p, t: ((p[0], p[0]), (t[0], t[0])), jax.jit),
        TypeError,
        "same container (pytree) structure as the value",
        "Return as the value what the function itself returns for the same arguments.",
    ),
    "jvp rule of another shape": (
        lambda: ruled(lambda p, t: (p[0][None], t[0][None]), jax.jit),
        TypeError,
        "the shapes and dtypes of the value",
        "Return as the value what the function itself returns for the same arguments.",
    ),
    "jvp rule of another tangent tree": (
        lambda: ruled(lambda p, t: (p[0], (t[0], t[0]))),
        TypeError,
        "equal container (pytree) structures",
        "Return a tangent for each array of the value, jnp.zeros_like(it) if it has none.",
    ),
    "jvp rule of another tangent": (
        lambda: ruled(lambda p, t: (p[0], t[0][None])),
        TypeError,
        "equal shapes and dtypes, but got f32[] and f32[1]",
        "Bring the tangent to the value's: jnp.broadcast_to, .astype.",
    ),
    "fwd rule without a pair": (
        lambda: reversed_rule(lambda x: x, lambda r, ct: (ct,)),
        TypeError,
        "representing the primal output and residuals",
        "Return (value, residuals): the value of <lambda> first.",
    ),
    "bwd rule without a tuple": (
        lambda: reversed_rule(lambda x: (x, None), lambda r, ct: ct),
        TypeError,
        "tuple of length equal to the number of its differentiable arguments, 1",
        "Return a cotangent per argument, (ct,) for one argument, and None where it is zero.",
    ),
    "bwd rule of another structure": (
        lambda: reversed_rule(lambda x: (x, None), lambda r, ct: ((ct, ct),)),
        TypeError,
        "where an argument has an array f32[], args[0]",
        "Return the containers of the argument, or None for a part that is zero.",
    ),
    "bwd rule of another container": (
        lambda: of_a_dict(lambda r, ct: ([ct],)),
        TypeError,
        "for argument 0 got PyTreeDef([*])",
        "Return the containers of the argument, or None for a part that is zero.",
    ),
    "bwd rule of another shape": (
        lambda: reversed_rule(lambda x: (x, None), lambda r, ct: (ct[None],)),
        ValueError,
        "got f32[1], expected f32[], for args[0]",
        "Sum it over the axes along which the argument was broadcast.",
    ),
    "custom_jvp without a rule": (
        lambda: jax.custom_jvp(lambda x: x)(1.0),
        AttributeError,
        "No JVP defined for custom_jvp function",
        "Give one: f.defjvp(rule), with rule(primals, tangents) -> (value, tangent).",
    ),
    "custom_vjp without a rule": (
        lambda: jax.custom_vjp(lambda x: x)(1.0),
        AttributeError,
        "No VJP defined for custom_vjp function",
        "Give one: f.defvjp(fwd, bwd), with fwd(*args) -> (value, residuals) and bwd(residuals, ct).",
    ),
    "rule of a keyword": (
        lambda: keyword_rule(),
        TypeError,
        "could not be resolved to positions: ['k']",
        "Fix them with functools.partial before the rule is given, or make them positional.",
    ),
    "no argnums": (
        lambda: jax.grad(lambda x: x, argnums=())(1.0),
        ValueError,
        "grad needs at least one argnum",
        "Leave argnums out for the derivative with respect to the first argument.",
    ),
    "argnums that is not there": (
        lambda: jax.grad(lambda x: x, argnums=2)(1.0),
        TypeError,
        "was called with 1",
        "Pass the argument by position; positions are counted from 0.",
    ),
    "argnums twice": (
        lambda: jax.grad(lambda x, y: x * y, argnums=(0, -2))(1.0, 2.0),
        ValueError,
        "must name different arguments, got (0, -2)",
        "Counted from the front they are (0, 0): name each once.",
    ),
    "real argument of a holomorphic function": (
        lambda: jax.grad(lambda z: z, holomorphic=True)(1.0),
        TypeError,
        "requires inputs with complex dtype, but got f32 for z",
        "Convert it: jnp.asarray(z, complex); or leave holomorphic=True out.",
    ),
    "real result of a holomorphic function": (
        lambda: jax.grad(lambda z: z.real, holomorphic=True)(1j),
        TypeError,
        "requires outputs with complex dtype, but got float32",
        "Return a complex value, or leave holomorphic=True out.",
    ),
    "real rows of a holomorphic function": (
        lambda: jax.jacrev(lambda z: z.real, holomorphic=True)(1j),
        TypeError,
        "requires outputs with complex dtype, but got float32",
        "Return a complex value, or leave holomorphic=True out.",
    ),
    "real columns of a holomorphic function": (
        lambda: jax.jacfwd(lambda z: z.real, holomorphic=True)(1j),
        TypeError,
        "requires outputs with complex dtype, but got float32",
        "Return a complex value, or leave holomorphic=True out.",
    ),
    "complex rows": (
        lambda: jax.jacrev(lambda x: x * 1j)(1.0),
        TypeError,
        "jacrev requires real-valued outputs",
        "Pass holomorphic=True if it is, or differentiate real and imaginary part.",
    ),
    "integer rows": (
        lambda: jax.jacrev(lambda x: x.astype(int))(1.0),
        TypeError,
        "jacrev requires real-valued outputs",
        "Return floats: convert with .astype(float).",
    ),
    "text for a loss": (
        lambda: jax.grad(lambda x: "loss")(1.0),
        TypeError,
        "returned str: 'loss'",
        "Return one number, an array of shape ().",
    ),
    "aux that is missing": (
        lambda: jax.grad(lambda x: x, has_aux=True)(1.0),
        TypeError,
        "must return a pair (value, aux)",
        "Return (value, aux), or leave has_aux=True out.",
    ),
    "aux of a vjp that is missing": (
        lambda: jax.vjp(lambda x: x, 1.0, has_aux=True),
        TypeError,
        "to return a two-element tuple",
        "Return (value, aux), or leave has_aux=True out.",
    ),
    "tangent of another dtype": (
        lambda: jax.jvp(lambda x: x, (1.0,), (1,)),
        TypeError,
        "but got tangent dtype int32 for x",
        "Convert it: jnp.asarray(tangent, 'float32').",
    ),
    "tangent of an integer": (
        lambda: jax.jvp(lambda x: x, (1,), (1,)),
        TypeError,
        "expected tangent dtype float0",
        "Integers have none that moves: give np.zeros((), jax.dtypes.float0).",
    ),
    "tangent of another shape": (
        lambda: jax.jvp(lambda x: x, (X,), (X[:2],)),
        ValueError,
        "tangent shape as (2,) for x",
        "Give a tangent of that shape, as jnp.ones((3,), 'float32') is.",
    ),
    "tangents that are no tuple": (
        lambda: jax.jvp(lambda x: x, VECTOR, VECTOR),
        TypeError,
        "must be tuples or lists; found ndarray",
        "Write jvp(f, (x,), (dx,)) for one argument.",
    ),
    "tangents of another structure": (
        lambda: jax.jvp(lambda x: x, (X,), (X, X)),
        TypeError,
        "must have the same tree structure",
        "Give one tangent per array of the arguments: jax.tree.map(jnp.zeros_like, args) has them.",
    ),
    "tangents of a linearized function": (
        lambda: jax.linearize(lambda x: x, X)[1](X, X),
        TypeError,
        "was called with tangents of structure",
        "Give one tangent per array of the arguments: jax.tree.map(jnp.zeros_like, args) has them.",
    ),
    "tangent of a linearized function": (
        lambda: jax.linearize(lambda x: x, X)[1](X[:2]),
        ValueError,
        "Got tangent aval f32[2] for primal aval f32[3]",
        "Give a tangent of that shape, as jnp.ones((3,), 'float32') is.",
    ),
    "two cotangents": (
        lambda: jax.vjp(lambda x: (x, x), X)[1](X, X),
        TypeError,
        "was called with 2 arguments",
        "Pass the cotangents of a tuple as one: f_vjp((ct1, ct2)).",
    ),
    "cotangent of another structure": (
        lambda: jax.vjp(lambda x: (x, x), X)[1](X),
        ValueError,
        "unexpected tree structure of argument to vjp function",
        "Give one cotangent per array of the output: jax.tree.map(jnp.ones_like, out) has them.",
    ),
    "cotangent of another shape": (
        lambda: jax.vjp(lambda x: x, X)[1](X[:2]),
        ValueError,
        "got f32[2], but expected f32[3]",
        "Give a cotangent of that shape, as jnp.ones((3,), 'float32') is.",
    ),
    "cotangent of another dtype": (
        lambda: jax.vjp(lambda x: x, X)[1](np.ones(3, np.int32)),
        ValueError,
        "got i32[3], but expected f32[3]",
        "Convert it: jnp.asarray(cotangent, 'float32').",
    ),
    "transpose of a rounding": (
        lambda: jax.linear_transpose(lambda x: x.astype(int), 1.0),
        TypeError,
        "but got [f32] -> [i32]",
        "Convert the arguments, or the results in the function, with .astype.",
    ),
    "cotangents of a transpose": (
        lambda: jax.linear_transpose(lambda x: x, X)((X, X)),
        TypeError,
        "cotangent tree does not match function output",
        "Give one cotangent per array of the output: jax.tree.map(jnp.ones_like, out) has them.",
    ),
    "cotangent of a transpose": (
        lambda: jax.linear_transpose(lambda x: {"a": x}, X)({"a": X[:2]}),
        TypeError,
        "got f32[2] (output['a'])",
        "Give a cotangent of that shape, as jnp.ones((3,), 'float32') is.",
    ),
    "another backend": (
        lambda: jax.devices("tpu"),
        RuntimeError,
        "Unknown backend: 'tpu' requested",
        'Leave it out, or name "cpu".',
    ),
    "another process": (
        lambda: jax.local_devices(3),
        ValueError,
        "Unknown process_index 3",
        "Leave it out, or give 0.",
    ),
    "part of another shape": (
        lambda: jax.make_array_from_callback((3,), None, lambda i: X[:2]),
        ValueError,
        "the callback returned shape (2,) for index",
        "Return the part at the index that it is called with, data[index].",
    ),
    "parts of another shape": (
        lambda: jax.make_array_from_single_device_arrays((3,), None, [X[:2]]),
        ValueError,
        "one array of shape (3,) is needed, got shapes [(2,)]",
        "Give one part per device of the sharding; sharding.shard_shape(shape) is its shape.",
    ),
    "explanation of a function": (
        lambda: jax.explain(len),
        TypeError,
        "explain needs a jitted function",
        "Keep what jit returns and call and explain that: step = jax.jit(f).",
    ),
    "trace that is forbidden": (
        lambda: forbidden_trace(),
        RuntimeError,
        "but 'no_tracing' is set",
        "Call it with such arguments before tracing is forbidden.",
    ),
    "jaxpr of other arguments": (
        lambda: arity_of_a_jaxpr(),
        TypeError,
        "a jaxpr of 1 arguments and 0 consts was given 2 and 0",
        "Pass arrays, not trees: eval_jaxpr(closed.jaxpr, closed.consts, *jax.tree.leaves(args)).",
    ),
    "static and donated": (
        lambda: jax.jit(lambda x: x, static_argnames="x", donate_argnames="x"),
        ValueError,
        "'x' of",
        "Name it in one of them.",
    ),
    "linear integer": (
        lambda: jax.custom_derivatives.linear_call(lambda r, x: x, lambda r, ct: ct, 1.0, 1),
        TypeError,
        "linear arguments have a floating or complex dtype, got i32[]",
        "Pass integers and flags in residual_args.",
    ),
    "transpose of another structure": (
        lambda: jax.grad(
            lambda x: jax.custom_derivatives.linear_call(
                lambda r, y: y, lambda r, ct: (ct, ct), 1.0, x
            )
        )(1.0),
        TypeError,
        "transpose output pytree structure must match",
        "Return a cotangent for each of the linear arguments, in their containers.",
    ),
    "pmap of a scalar": (
        lambda: jax.pmap(lambda x: x)(jnp.float32(1)),
        ValueError,
        "x of <lambda> has shape (), and axis 0 of it is to be mapped",
        "Give it in_axes=None to share it, or an axis that it has.",
    ),
    "pmap of nothing": (
        lambda: jax.pmap(lambda x: x, in_axes=None)(X),
        ValueError,
        "pmap requires at least one argument with a mapped axis",
        "Pass an array with one slice per device, and its axis in in_axes.",
    ),
    "policy that is a text": (
        lambda: jax.checkpoint(jnp.sin, policy=TEXT)(X),
        TypeError,
        "policy must be callable or None, got 'dots'",
        "Pass one of jax.checkpoint_policies, as save_only_these_names('h') is.",
    ),
    "name to be saved and offloaded": (
        lambda: both_saved_and_offloaded(),
        ValueError,
        "The names should be exclusive and should not intersect. Got ['a']",
        "List each as one to be saved or as one to be offloaded.",
    ),
    "value of a Ref of another shape": (
        lambda: store_of_another_shape(),
        ValueError,
        "Value shape: (2,)",
        "Bring the value to that shape, as jnp.broadcast_to(value, (3,)) does.",
    ),
    "sizes of too many arguments": (
        lambda: jax.jit(jnp.sin, dynamic_shapes=({0: N}, {0: N}))(X),
        ValueError,
        "dynamic_shapes has 2 entries for 1 positional arguments",
        "Give a dict by name for arguments that are passed by keyword.",
    ),
    "size of an axis that is not there": (
        lambda: jax.jit(jnp.sin, dynamic_shapes=({1: N},))(X),
        ValueError,
        "it has no axis 1, its shape is (3,)",
        "Axes are counted from 0.",
    ),
    "size that is no multiple": (
        lambda: jax.jit(lambda x, y: x, dynamic_shapes=({0: N}, {0: 2 * N}))(X, X),
        ValueError,
        "has size 3, but it is",
        "Pad or cut the axis to 6.",
    ),
    "compiled for another type": (
        lambda: jax.jit(jnp.sin).lower(X).compile()(X[:2]),
        TypeError,
        "compiled for f32[3], called with f32[2]",
        "Convert the argument, or lower and compile the function for what it is.",
    ),
    "type without a dtype": (
        lambda: jax.ShapeDtypeStruct((3,), None),
        ValueError,
        "dtype must be specified",
        "Give one: ShapeDtypeStruct(x.shape, x.dtype).",
    ),
    "lowering for another platform": (
        lambda: jax.jit(jnp.sin).trace(X).lower(lowering_platforms=("tpu",)),
        ValueError,
        "cannot lower for platforms ['tpu']",
        "Leave lowering_platforms out.",
    ),
    "compiled for another structure": (
        lambda: jax.jit(lambda x: x).lower(X).compile()((X, X)),
        TypeError,
        "Function compiled with input pytree",
        "Call it with the containers it was lowered for, without the static arguments.",
    ),
    "derivative of a compiled function": (
        lambda: jax.grad(jax.jit(lambda x: x).lower(1.0).compile())(1.0),
        TypeError,
        "lowered and compiled for a particular signature",
        "Transform first, then compile: jax.jit(jax.grad(f)).lower(x).",
    ),
    "texts for numbers": (
        lambda: jax.jit(lambda x: x)(np.array(["a"])),
        TypeError,
        "not a valid JAX array type",
        "Convert it to numbers with .astype(float), or keep it in Python.",
    ),
    "in_axes that are a text": (
        lambda: jax.vmap(lambda x: x, in_axes="a")(X),
        TypeError,
        "but got 'a'",
        "Write in_axes=(axes of the first argument, axes of the second, ...).",
    ),
    "too few in_axes": (
        lambda: jax.vmap(lambda x, y: x, in_axes=(0,))(X, X),
        ValueError,
        "len(in_axes)=1, len(args)=2",
        "Give each argument its axis, and None to one that all examples share.",
    ),
    "in_axes that are not whole": (
        lambda: jax.vmap(lambda x: x, in_axes=(0.5,))(X),
        TypeError,
        "the entry for x is 0.5",
        "Give the number of its axis, or None if all examples share it.",
    ),
    "vmap of a scalar": (
        lambda: jax.vmap(lambda x: x)(1.0),
        ValueError,
        "but is only 0 (its shape is ()): argument x of <lambda>",
        "Give it in_axes=None (and by position) if all examples share it, or an axis that it has.",
    ),
    "vmap over another axis": (
        lambda: jax.vmap(lambda x: x, in_axes=1)(X),
        ValueError,
        "but is only 1 (its shape is (3,)): argument x of <lambda>",
        "Give it in_axes=None (and by position) if all examples share it, or an axis that it has.",
    ),
    "vmap of what all share": (
        lambda: jax.vmap(lambda x: x, in_axes=None)(X),
        ValueError,
        "at least one non-None value in in_axes",
        "Give what differs between examples its axis, as in in_axes=(0, None).",
    ),
    "vmap of nothing": (
        lambda: jax.vmap(lambda: 1.0)(),
        ValueError,
        "must be passed at least one argument containing an array",
        "Pass what is mapped as an argument, or give axis_size.",
    ),
    "out_axes that is not there": (
        lambda: jax.vmap(lambda x: x, out_axes=2)(X),
        ValueError,
        "axis 2 is out of bounds for array of dimension 1",
        "With the batch axis it has 1: give one from -1 to 0.",
    ),
    "text for a value of a check": (
        lambda: checkify.check(False, "{a}", a="x"),
        TypeError,
        "need to be PyTrees of arrays, but got 'x'",
        "Write what Python knows into the message itself, as an f-string does.",
    ),
    "vector of another length": (
        lambda: flatten_util.ravel_pytree({"a": X, "b": 1.0})[1](X),
        ValueError,
        "expected input of shape (4,), got shape (3,)",
        "Give a vector with the elements of all arrays, as ravel_pytree makes one.",
    ),
    "vector of another dtype": (
        lambda: flatten_util.ravel_pytree({"a": X, "b": 1})[1](np.ones(4, np.int32)),
        TypeError,
        "given array of dtype int32, but expected dtype float32",
        "Convert it with .astype('float32').",
    ),
    "arguments before the callback": (
        lambda: jax.debug.callback(NONE, 1.0),
        TypeError,
        "received unexpected arguments in the two-call form",
        "Give them to what it returns, or the callback before them.",
    ),
    "tangents of a Ref of another structure": (
        lambda: jax.jvp(lambda r: r[...], (jax.new_ref(jnp.ones(3)),), ()),
        TypeError,
        "must have the same tree structure, but tangents",
        "Give one tangent per array of the arguments: jax.tree.map(jnp.zeros_like, args) has them.",
    ),
    "tangents of a linearized Ref": (
        lambda: jax.linearize(lambda r: r[...], jax.new_ref(jnp.ones(3)))[1](),
        TypeError,
        "was called with tangents of structure PyTreeDef(())",
        "Give one tangent per array of the arguments: jax.tree.map(jnp.zeros_like, args) has them.",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_comes_with_what_to_do(name: str) -> None:
    tells(CASES[name], __file__)
