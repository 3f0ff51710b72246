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
from tinyjax import lax

X = np.ones(3, np.float32)
M = np.ones((2, 4), np.float32)
TRUE: Any = True
NONE: Any = None
VECTOR: Any = X


def same(c: Any, x: Any) -> Any:
    return c, x


def over_names(f: Callable[[Any], Any], *names: str) -> Any:
    for name in reversed(names):
        f = jax.vmap(f, axis_name=name)
    return f(M)


def scan_in_python() -> Any:
    with jax.disable_jit():
        return lax.scan(same, 0.0, X[:0])


def unrolled_loop() -> Any:
    return jax.jit(lambda n: lax.fori_loop(0, n, lambda i, c: c, 1.0, unroll=2))(3)


def bounds_of_two_types() -> Any:
    low, high = jnp.asarray(0, "int8"), jnp.asarray(3, "int16")
    return jax.jit(lambda a, b: lax.fori_loop(a, b, lambda i, c: c, 1.0))(low, high)


def solved(solve: Callable[..., Any], transpose_solve: Any = None, **options: Any) -> Any:
    return jax.grad(
        lambda b: lax.custom_linear_solve(
            lambda x: 2 * x, b, solve, transpose_solve, **options
        ).sum()
    )(X)


CASES: dict[str, Mistake] = {
    "scan of no function": (
        lambda: lax.scan(NONE, 0.0, X),
        TypeError,
        "lax.scan: f argument should be a callable, got None.",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "map of no function": (
        lambda: lax.map(NONE, X),
        TypeError,
        "lax.map: f argument should be callable, got None.",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "while_loop of a condition": (
        lambda: lax.while_loop(TRUE, lambda c: c, 1.0),
        TypeError,
        "lax.while_loop: body_fun and cond_fun arguments should be callable, got True.",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "fori_loop of no function": (
        lambda: lax.fori_loop(0, 3, NONE, 1.0),
        TypeError,
        "lax.fori_loop: body_fun argument should be callable, got None.",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "cond of values": (
        lambda: lax.cond(True, lambda: X, VECTOR),
        TypeError,
        "lax.cond: true_fun and false_fun arguments should be callable, got f32[3].",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "switch of values": (
        lambda: lax.switch(0, [lambda: X, VECTOR]),
        TypeError,
        "lax.switch: branches argument should be a sequence of callables, got f32[3].",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "bounded_while of a condition": (
        lambda: lax.bounded_while(TRUE, lambda c: c, 1.0, max_steps=3),
        TypeError,
        "lax.bounded_while: body_fun and cond_fun arguments should be callable, got True.",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "associative_scan of no function": (
        lambda: lax.associative_scan(NONE, X),
        TypeError,
        "lax.associative_scan: fn argument should be callable, got None.",
        "Pass the function itself, f, and not what it returns, f(x).",
    ),
    "associative_scan of a scalar": (
        lambda: lax.associative_scan(jnp.add, 1.0),
        ValueError,
        "got a scalar",
        "Stack the elements first: jnp.stack([a, b, c]).",
    ),
    "associative_scan of two lengths": (
        lambda: lax.associative_scan(lambda a, b: a, (X, X[:2])),
        ValueError,
        "must have the same first dimension. (saw: [(3,), (2,)])",
        "Cut or pad them to one size along the scanned axis.",
    ),
    "associative_scan of another tree": (
        lambda: lax.associative_scan(lambda a, b: (a, b), X),
        ValueError,
        "a tree like that of each argument",
        "Return the containers that fn got as its first argument.",
    ),
    "scan of a scalar": (
        lambda: lax.scan(same, 0.0, {"a": 1.0}),
        ValueError,
        "no leading axis to scan over: xs['a'] is a scalar",
        "Close over what is the same in all steps, or put it into the carry.",
    ),
    "scan of another length": (
        lambda: lax.scan(same, 0.0, X, length=5),
        ValueError,
        "`length` argument of 5",
        "Leave `length` out, or cut or pad xs to it.",
    ),
    "scan of two lengths": (
        lambda: lax.scan(same, 0.0, (X, X[:2])),
        ValueError,
        "different leading axis sizes: xs[0]: 3, xs[1]: 2",
        "Cut or pad them to one length; close over what is the same in all steps.",
    ),
    "scan of unknown length": (
        lambda: lax.scan(same, 0.0),
        ValueError,
        "`length` not provided",
        "Say how many steps there are: length=n.",
    ),
    "scan without outputs": (
        lambda: lax.scan(lambda c, x: c, 0.0, X),
        TypeError,
        "must be a pair (carry, y)",
        "Return (carry, None) where there is nothing to collect.",
    ),
    "scan of no steps in Python": (
        lambda: scan_in_python(),
        ValueError,
        "zero-length scan is not supported with jit disabled",
        "Leave the loop out if there are no steps, or run it within jax.disable_jit(False).",
    ),
    "loop with a float bound": (
        lambda: lax.fori_loop(0, 3.0, lambda i, c: c, 1.0),
        TypeError,
        "must be integer scalars, got f32[] for upper",
        "Convert it: int(upper), or upper.astype(int) if it is traced.",
    ),
    "unrolled loop of unknown length": (
        lambda: unrolled_loop(),
        ValueError,
        "Can only use `unroll` in `fori_loop`",
        "Give the bounds as Python ints (static arguments of jit), or leave `unroll` out.",
    ),
    "loop with bounds of two types": (
        lambda: bounds_of_two_types(),
        TypeError,
        "must have equal types, got int8 and int16",
        "Convert one of them, as in upper.astype('int8'), or give a Python int.",
    ),
    "operand by keyword and position": (
        lambda: lax.cond(True, same, same, 1.0, operand=2.0),
        TypeError,
        "no positional operands can be passed",
        "Pass all of them by position.",
    ),
    "complex condition": (
        lambda: lax.cond(1j, lambda: 1, lambda: 2),
        TypeError,
        "Pred type must be either boolean or number, got c64[]",
        "Compare it with something, as in x == y.",
    ),
    "branches that are no list": (
        lambda: lax.switch(0, NONE),
        TypeError,
        "switch branches must be a sequence of functions, got None",
        "Pass a list: lax.switch(index, [f, g], *operands).",
    ),
    "no branches": (
        lambda: lax.switch(0, []),
        ValueError,
        "Empty branch sequence",
        "Pass a list with a function for each value of the index.",
    ),
    "vector of branches": (
        lambda: lax.switch(np.zeros(3, int), [lambda: 1, lambda: 2]),
        TypeError,
        "Branch index must be scalar",
        "Use jax.vmap for an index per example.",
    ),
    "float for a branch": (
        lambda: lax.switch(0.5, [lambda: 1, lambda: 2]),
        TypeError,
        "Index type must be an integer, got f32[]",
        "Convert it with .astype(int); a condition is for lax.cond.",
    ),
    "function for another platform": (
        lambda: lax.platform_dependent(X, tpu=jnp.sin),
        NotImplementedError,
        "has functions for tpu, none for cpu",
        "Pass one as cpu=f or default=f.",
    ),
    "permutation of two axes": (
        lambda: over_names(lambda x: lax.ppermute(x, ("i", "j"), [(0, 0)]), "i", "j"),
        NotImplementedError,
        "ppermute over several axes at once is not supported",
        "Apply it to one after the other.",
    ),
    "scattered sum of another size": (
        lambda: over_names(lambda x: lax.psum_scatter(x[:3], "i"), "i"),
        ValueError,
        "scatter dimension size 3 must match the size 2 of axis 'i'",
        "Pad or reshape the operand so that the size of its axis 0 is 2.",
    ),
    "scattered sum of a multiple": (
        lambda: over_names(lambda x: lax.psum_scatter(x, "i"), "i"),
        ValueError,
        "scatter dimension size 4 must match the size 2 of axis 'i'",
        "Pass tiled=True to divide the axis.",
    ),
    "tiled sum of another size": (
        lambda: over_names(lambda x: lax.psum_scatter(x[:3], "i", tiled=True), "i"),
        ValueError,
        "must be divisible by the size 2",
        "Pad or reshape the operand so that the size of its axis 0 is a multiple of 2.",
    ),
    "all_to_all of another size": (
        lambda: over_names(lambda x: lax.all_to_all(x[:3], "i", 0, 0), "i"),
        ValueError,
        "they are 2 and 3 respectively",
        "Pad or reshape the operand so that the size of its axis 0 is 2.",
    ),
    "permutation that sends twice": (
        lambda: over_names(lambda x: lax.ppermute(x, "i", [(0, 0), (0, 1)]), "i"),
        ValueError,
        "sources and destinations must be unique, got ((0, 0), (0, 1))",
        "Let each send once and receive once; lax.all_gather gives all values to all.",
    ),
    "permutation out of range": (
        lambda: over_names(lambda x: lax.ppermute(x, "i", [(0, 2)]), "i"),
        ValueError,
        "for axis 'i' of size 2",
        "Sources and destinations are counted from 0 to 1.",
    ),
    "shuffle that is no permutation": (
        lambda: over_names(lambda x: lax.pshuffle(x, "i", [1, 1]), "i"),
        ValueError,
        "`perm` does not represent a permutation: [1, 1] for axis 'i' of size 2",
        "Name each of 0 to 1 once.",
    ),
    "solve of another structure": (
        lambda: solved(lambda f, b: (b, b)),
        TypeError,
        "solve() output pytree structure must match b",
        "Return the containers of b from solve.",
    ),
    "solve of another shape": (
        lambda: solved(lambda f, b: b[:2]),
        ValueError,
        "solve() output shapes must match b, got [(2,)] and [(3,)]",
        "Reshape what solve returns like b, array by array.",
    ),
    "solve without aux": (
        lambda: solved(lambda f, b: b, has_aux=True),
        ValueError,
        "auxiliary output was expected",
        "Return (x, aux) from solve, or leave has_aux out.",
    ),
    "solve without its transpose": (
        lambda: solved(lambda f, b: b / 2),
        TypeError,
        "transpose_solve required for backwards mode",
        "Pass transpose_solve to custom_linear_solve, or symmetric=True if the matrix is.",
    ),
    "squeeze of an axis with several": (
        lambda: lax.squeeze(X, (0,)),
        ValueError,
        "got shape=(3,) and dimensions=(0,)",
        "Reduce the axis (lax.reduce_sum), or take one index of it (lax.index_in_dim).",
    ),
    "nothing to concatenate": (
        lambda: lax.concatenate([], 0),
        ValueError,
        "concatenate requires a non-empty sequences of arrays",
        "Make an empty array with jnp.zeros((0,), dtype).",
    ),
    "nothing to stack": (
        lambda: lax.stack([]),
        ValueError,
        "stack requires a non-empty sequence of arrays",
        "Make an empty array with jnp.zeros((0,), dtype).",
    ),
    "padding with an array": (
        lambda: lax.pad(X, X, ((0, 0, 0),)),
        ValueError,
        "padding_value must be a scalar; got shape (3,)",
        "Join arrays with lax.concatenate, or write them with lax.dynamic_update_slice.",
    ),
    "slice larger than its axis": (
        lambda: lax.dynamic_slice_in_dim(X, 0, 5),
        TypeError,
        "slice size 5 is larger than axis 0 of shape (3,)",
        "Give a smaller size, or pad the operand first (lax.pad).",
    ),
    "argmax of nothing": (
        lambda: lax.argmax(X[:0], 0, np.int32),
        ValueError,
        "non-empty reduced dimension, got axis 0 of shape (0,)",
        "Pad the axis first, or test its size in Python.",
    ),
    "index of floats": (
        lambda: lax.argmax(X, 0, np.float32),
        TypeError,
        "index_dtype must be an integer type, but got float32",
        "Give jnp.int32, and convert the result with .astype.",
    ),
    "sort of nothing": (
        lambda: lax.sort(()),
        TypeError,
        "sort requires at least one operand",
        "Pass an array, or a tuple of keys and values.",
    ),
    "sort of two shapes": (
        lambda: lax.sort((X, X[:2])),
        TypeError,
        "must have equal shapes, got: (3,), (2,).",
        "Sort indices along with the keys, and take other arrays by them.",
    ),
    "largest complex": (
        lambda: lax.top_k(X * 1j, 1),
        ValueError,
        "not compatible with complex inputs, got c64[3]",
        "Take them by magnitude: lax.top_k(jnp.abs(x), k).",
    ),
    "largest of a scalar": (
        lambda: lax.top_k(1.0, 1),
        TypeError,
        "top_k operand must have >= 1 dimension",
        "Give it one: jnp.atleast_1d(x).",
    ),
    "more than there are": (
        lambda: lax.top_k(X, 4),
        ValueError,
        "got k=4 with shape (3,)",
        "Take min(k, x.shape[axis]).",
    ),
    "about the largest of a scalar": (
        lambda: lax.approx_max_k(1.0, 1),
        TypeError,
        "approx_top_k operand must have >= 1 dimension",
        "Give it one: jnp.atleast_1d(x).",
    ),
    "about the largest integer": (
        lambda: lax.approx_max_k(np.arange(3), 1),
        ValueError,
        "operand must be a floating type, got i32[3]",
        "Convert it with .astype(float), or use lax.top_k.",
    ),
    "real transform of complex numbers": (
        lambda: lax.fft(X * 1j, "RFFT", (3,)),
        ValueError,
        "RFFT input must be float32 or float64, got complex64",
        "Use FFT for complex numbers; convert others with .astype(float).",
    ),
    "decomposition of a vector": (
        lambda: lax.linalg.qr(X),
        ValueError,
        "Argument to qr must have ndims >= 2, got shape (3,)",
        "Give it two axes: jnp.atleast_2d(x).",
    ),
    "qr with pivots": (
        lambda: lax.linalg.qr(M, pivoting=True),
        ValueError,
        "qr with pivoting=True needs a LAPACK routine",
        "Call scipy.linalg.qr through jax.pure_callback.",
    ),
    "subset of full matrices": (
        lambda: lax.linalg.svd(M, full_matrices=True, subset_by_index=(0, 1)),
        ValueError,
        "cannot both be set",
        "Pass full_matrices=False: a subset has no added vectors.",
    ),
    "pivots that are floats": (
        lambda: lax.linalg.lu_pivots_to_permutation(X, 3),
        TypeError,
        "pivots must be an array of integers, got f32[3]",
        "Pass the second result of lax.linalg.lu.",
    ),
    "pivots of more rows": (
        lambda: lax.linalg.lu_pivots_to_permutation(np.arange(3), 2),
        ValueError,
        "Got pivots size 3",
        "Give the number of rows of the matrix.",
    ),
    "integer to a negative power": (
        lambda: lax.integer_pow(2, -1),
        TypeError,
        "Integers cannot be raised to negative powers",
        "Convert the base with .astype(float).",
    ),
    "no cases": (
        lambda: lax.select_n(True),
        ValueError,
        "select_n requires at least one case",
        "Pass the cases after `which`: lax.select_n(which, on_false, on_true).",
    ),
    "cases of two shapes": (
        lambda: lax.select_n(True, X, X[:2]),
        TypeError,
        "select cases must have the same shapes, got [(3,), (2,)].",
        "Use jnp.where, which broadcasts.",
    ),
    "choice of another shape": (
        lambda: lax.select_n(X[:2] > 0, X, X),
        TypeError,
        "got `which` shape (2,) but case shape (3,).",
        "Use jnp.where, which broadcasts.",
    ),
    "choice by a float": (
        lambda: lax.select_n(0.5, X, X),
        TypeError,
        "must be of boolean or integer type, got float32",
        "Compare it, as in which > 0, or convert it with .astype(int).",
    ),
    "three cases for two values": (
        lambda: lax.select_n(True, X, X, X),
        TypeError,
        "takes at most two cases",
        "Convert it with .astype(int) for more.",
    ),
    "limit of another shape": (
        lambda: lax.clamp(X[:2], X, 1.0),
        TypeError,
        "got min.shape=(2,), operand.shape=(3,).",
        "Use jnp.clip, which broadcasts.",
    ),
    "accuracy that is a number": (
        lambda: lax.exp(X, accuracy=TRUE),
        TypeError,
        "accuracy must be a Tolerance, an AccuracyMode or None, got True",
        "Leave it out, or pass lax.AccuracyMode.HIGHEST or lax.Tolerance(...).",
    ),
    "strides of another rank": (
        lambda: lax.conv_shape_tuple((1, 2, 3), (1, 2, 3), (1, 1), ((0, 0),)),
        TypeError,
        "Wrong number of strides for 1 spatial dimensions",
        "Give one stride per spatial axis, without batch and features.",
    ),
    "offset of groups": (
        lambda: lax.ragged_dot(M.T, M[None], np.array([4]), group_offset=np.array([0])),
        ValueError,
        "group_offset is for shards of groups",
        "Leave it out.",
    ),
    "groups of floats": (
        lambda: lax.ragged_dot(M.T, M[None], np.array([4.0])),
        TypeError,
        "ragged_dot group_sizes must be integers",
        "Convert them with .astype(int).",
    ),
    "special function of integers": (
        lambda: lax.igamma(1, 2),
        TypeError,
        "igamma does not accept dtype int32",
        "Convert it with .astype(float).",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_comes_with_what_to_do(name: str) -> None:
    tells(CASES[name], __file__)
