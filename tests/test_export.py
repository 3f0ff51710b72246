"""export: a staged function as bytes and back, in this process and another; derivatives; damage."""

from __future__ import annotations

import base64
import functools
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.export as oracle_export
import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, check, numbers, raises
from tinyjax import Dim, export, jit, lax
from tinyjax import numpy as jnp
from tinyjax.core.avals import aval
from tinyjax.core.dims import bounds_of, maximum, minimum
from tinyjax.core.serialize import decode, encode

assert oracle_export  # jax loads it on request only
X = numbers(3)
M = numbers(3, 3)


def around(f: Callable[..., Any], *args: Any, order: int = 0) -> Any:
    """Through bytes."""
    return export.deserialize(export.export(jit(f))(*args).serialize(vjp_order=order))


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "elementwise": (lambda x: {"a": jnp.sin(x) * 2.5, "b": (x > 0, x.astype("bfloat16"))}, (X,)),
    "constants": (lambda x: x * jnp.inf + jnp.array([1.0, np.nan, -0.0]), (X,)),
    "captured": (lambda x: x @ jnp.asarray(M), (X,)),
    "scan": (lambda x: lax.scan(lambda c, v: (c * v, c), x[0], x), (X,)),
    "while": (lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1.5, x), (X,)),
    "cond": (lambda x, p: lax.cond(p, jnp.sin, jnp.cos, x), (X, True)),
    "sort": (lambda x: (jnp.sort(x), jnp.argsort(x), jnp.argmax(x)), (X,)),
    "indexing": (lambda x: x[jnp.array([2, 0])].at[0].add(1.0), (X,)),
    "linalg": (lambda m: jnp.linalg.solve(m, m.T), (M,)),
    "random": (lambda k: tinyjax.random.normal(k, (4,)), (tinyjax.random.key(1),)),
    "calls": (lambda x: jit(jnp.sin)(x) + tinyjax.checkpoint(jnp.cos)(x), (X,)),
    "custom": (lambda x: tinyjax.nn.relu(x) + tinyjax.nn.softmax(x), (X,)),
    "complex": (lambda x: jnp.fft.fft(x * 1j), (X,)),
    "integers": (lambda n: n // 3 + n % 3 + (n << 2), (np.arange(5, dtype="i4"),)),
    "nothing": (lambda x: [], (X,)),
    "trees": (lambda t, *, k: (None, [t["a"][0] + k], {1: t["b"]}), ({"a": (X,), "b": 2},)),
}  # fmt: skip


def keywords(name: str) -> dict[str, Any]:
    return {"k": 3.0} if name == "trees" else {}


@pytest.mark.parametrize("name", PROGRAMS)
def test_bytes_compute_what_the_function_does(name: str):
    f, args = PROGRAMS[name]
    named = keywords(name)
    exported = export.export(jit(f))(*args, **named)
    back = export.deserialize(exported.serialize())
    want = jit(f)(*args, **named)
    assert tinyjax.tree.structure(want) == back.out_tree == exported.out_tree
    for out in (exported.call(*args, **named), back.call(*args, **named)):
        for got, of in zip(tinyjax.tree.leaves(out), tinyjax.tree.leaves(want), strict=True):
            assert got.dtype == of.dtype
            np.testing.assert_array_equal(np.asarray(got), np.asarray(of))
    if name not in ("calls", "custom"):  # their derivative rules stay behind
        assert back.body is exported.body, "the graph that comes back is the same object"
    assert [str(a) for a in back.in_avals] == [str(a) for a in exported.in_avals]


def test_equal_functions_have_equal_bytes():
    f = lambda x: jnp.tanh(x) * M
    assert export.export(jit(f))(X).serialize() == export.export(jit(f))(X).serialize()


CASES: dict[str, Case] = {
    "call": lambda J: made(J).call(X),
    "under jit": lambda J: J.jit(made(J).call)(X),
    "grad": lambda J: J.grad(lambda x: made(J).call(x)["a"].sum())(X),
    "custom rule": lambda J: J.grad(lambda x: J.export.export(J.jit(ruled(J)))(2.0).call(x))(2.0),
    "vjp": lambda J: made(J).vjp().call(X, X, X),
    "attributes": lambda J: (
        made(J).fun_name, made(J).has_vjp(), list(made(J).platforms), made(J).nr_devices,
        str(made(J).in_tree), str(made(J).out_tree), [a.shape for a in made(J).in_avals],
    ),
}  # fmt: skip


def made(J: Any) -> Any:
    def f(x: Any) -> Any:
        return {"a": J.numpy.sin(x) * 2, "b": x**2}

    return J.export.export(J.jit(f))(J.ShapeDtypeStruct((3,), np.float32))


def ruled(J: Any) -> Any:
    f = J.custom_vjp(lambda x: x**2)
    f.defvjp(lambda x: (x**2, x), lambda x, ct: (ct * 100 * x,))
    return lambda x: f(x) * 1.0


@pytest.mark.parametrize("name", CASES)
def test_exported_functions_are_like_those_of_jax(name: str):
    check(CASES[name], 1e-6, weak=False)


def test_derivatives_travel_to_the_order_that_was_asked_for():
    loss = lambda e: lambda x: e.call(x).sum()
    f = lambda x: jnp.sin(x) * x
    none, once, twice = (around(f, X, order=n) for n in (0, 1, 2))
    assert (none.has_vjp(), once.has_vjp(), once.vjp().has_vjp()) == (False, True, False)
    with pytest.raises(ValueError, match="No VJP is available"):
        tinyjax.grad(loss(none))(X)
    want = tinyjax.grad(lambda x: f(x).sum())(X)
    np.testing.assert_allclose(tinyjax.grad(loss(once))(X), want, rtol=1e-6)
    with pytest.raises(ValueError, match="No VJP is available"):
        tinyjax.grad(lambda x: tinyjax.grad(loss(once))(x).sum())(X)
    second = tinyjax.grad(lambda x: tinyjax.grad(loss(twice))(x).sum())(X)
    np.testing.assert_allclose(second, 2 * np.cos(X) - X * np.sin(X), rtol=1e-5)


def test_custom_rules_travel_as_derivatives():
    back = around(ruled(tinyjax), 2.0, order=1)
    assert float(tinyjax.grad(back.call)(2.0)) == 200.0


def test_integer_arguments_have_no_derivative():
    back = around(lambda x, n: x * n, X, 3, order=1)
    np.testing.assert_allclose(tinyjax.grad(lambda x: back.call(x, 3).sum())(X), [3, 3, 3])


def test_called_under_vmap():
    back = around(lambda x: jnp.sin(x) * 2, X)
    np.testing.assert_allclose(tinyjax.vmap(back.call)(M), np.sin(M) * 2, rtol=1e-6)


def test_another_process_reads_the_file(tmp_path):
    path = tmp_path / "model.bin"
    weight = jnp.asarray(M)
    exported = export.export(jit(lambda x: jnp.tanh(x @ weight)))(X)
    path.write_bytes(exported.serialize(vjp_order=1))
    code = (
        "import sys, pathlib, tinyjax, numpy as np\n"
        "f = tinyjax.export.deserialize(pathlib.Path(sys.argv[1]).read_bytes())\n"
        f"x = np.array({X.tolist()}, 'f4')\n"
        "print(np.asarray(f.call(x)).tolist())\n"
        "print(np.asarray(tinyjax.grad(lambda x: f.call(x).sum())(x)).tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    value, slope = map(eval, done.stdout.splitlines())
    np.testing.assert_allclose(value, np.tanh(X @ M), rtol=1e-5)
    np.testing.assert_allclose(slope, M @ (1 - np.tanh(X @ M) ** 2), rtol=1e-4, atol=1e-6)


# --- damage -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def blob() -> bytes:
    return bytes(export.export(jit(lambda x: jnp.sin(x) + jnp.asarray(X)))(X).serialize())


def test_foreign_bytes_are_refused(blob: bytes):
    for data in (b"", b"abc", blob[1:]):
        with pytest.raises(ValueError, match="not an exported function"):
            export.deserialize(data)


def test_every_damaged_byte_is_noticed(blob: bytes):
    start = len(export.MAGIC) + 4
    for place in [*range(start, len(blob), 97), len(blob) - 1]:
        broken = bytearray(blob)
        broken[place] ^= 1
        with pytest.raises(ValueError, match="damaged"):
            export.deserialize(broken)


def test_a_file_that_was_cut_off_is_noticed(blob: bytes):
    for size in (len(export.MAGIC) + 4, len(blob) // 2, len(blob) - 1):
        with pytest.raises(ValueError, match="damaged"):
            export.deserialize(blob[:size])


def test_another_version_is_named(blob: bytes):
    place = len(export.MAGIC)
    later = blob[:place] + (99).to_bytes(4, "little") + blob[place + 4 :]
    with pytest.raises(ValueError, match=r"format version 99; this release reads versions 1 to"):
        export.deserialize(later)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "the last node is not a body"),
        ([["SIN", [0], None]], "reads a later node"),
        ([["NO_SUCH_OP", [], None]], "node 0 is not valid"),
        ([["PARAM", [], {"t": [0, {"a": [[3], {"d": "int32"}, False]}]}], ["SIN", [0], None]], "1"),
        ([["CONST", [], {"z": 3}]], "unknown tag 'z'"),
        ([["CONST", [], {"i": ["System", {}]}]], "unknown info"),
    ],
)
def test_a_text_that_is_no_body_is_refused(rows: Any, words: str):
    from tinyjax.core.serialize import SerializationError, decode_body

    with pytest.raises(SerializationError, match=words):
        decode_body(rows)


ERRORS: dict[str, Case] = {
    "not jitted": lambda J: J.export.export(lambda x: x)(1.0),
    "shape": lambda J: made(J).call(np.ones(4, "f4")),
    "dtype": lambda J: made(J).call(np.ones(3, "i4")),
    "tree": lambda J: made(J).call([X]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_jax(name: str):
    raises(ERRORS[name])


def test_other_platforms_are_refused():
    with pytest.raises(ValueError, match="cannot export for platforms"):
        export.export(jit(lambda x: x), platforms=["cpu", "gpu"])


def test_python_callbacks_are_refused():
    f = lambda x: tinyjax.pure_callback(np.sin, tinyjax.ShapeDtypeStruct((3,), np.float32), x)
    with pytest.raises(ValueError, match="calls back into Python"):
        export.export(jit(f))(X).serialize()


def test_mutable_arrays_from_outside_are_refused():
    ref = tinyjax.new_ref(jnp.zeros(3))
    f = lambda x: ref.__setitem__(0, x)
    with pytest.raises(ValueError, match="reads or writes a Ref of this process"):
        export.export(jit(f))(2.0)


# --- trees of the user's ----------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


class Other(NamedTuple):
    only: Any


def test_registered_nodes_travel():
    export.register_namedtuple_serialization(Pair, serialized_name="tests.Pair")
    back = around(lambda p: Pair(p.right, p.left * 2), Pair(X, 1.0))
    out = back.call(Pair(X, 5.0))
    assert type(out) is Pair and float(out.left) == 5.0
    with pytest.raises(ValueError, match="Duplicate"):
        export.register_namedtuple_serialization(Pair, serialized_name="tests.Pair")
    with pytest.raises(ValueError, match="Cannot serialize PyTree node"):
        around(lambda p: p.only, Other(X))


def test_a_node_class_with_auxiliary_data():
    class Box:
        def __init__(self, value: Any, label: str) -> None:
            self.value, self.label = value, label

    tinyjax.tree_util.register_pytree_node(
        Box, lambda b: ((b.value,), b.label), lambda label, children: Box(children[0], label)
    )
    export.register_pytree_node_serialization(
        Box,
        serialized_name="tests.Box",
        serialize_auxdata=lambda aux: aux.encode(),
        deserialize_auxdata=lambda data: data.decode(),
    )
    out = around(lambda b: Box(b.value + 1, "out"), Box(X, "in")).call(Box(X, "in"))
    assert out.label == "out"
    np.testing.assert_allclose(out.value, X + 1)


# --- forward mode and what is told of an exported function ---------------------------------------------------


def polynomial(x: Any, n: Any) -> Any:
    return {"a": jnp.sin(x) @ x * n, "n": n + 1, "s": lax.scan(lambda c, v: (c * v, c), x[0], x)}


@pytest.mark.parametrize("travelled", [False, True])
def test_forward_mode_is_the_transpose_of_the_exported_reverse_mode(travelled: bool):
    exported = export.export(jit(polynomial))(X, 2)
    e = export.deserialize(exported.serialize(vjp_order=2)) if travelled else exported
    value = lambda call: lambda x: call(x, 2)["a"]
    for apply in (
        lambda call: tinyjax.jvp(lambda x: call(x, 2)["s"], (X,), (X[::-1],)),
        lambda call: tinyjax.jvp(lambda x: call(x, 2), (X,), (X,))[1]["n"].dtype == tinyjax.float0,
        lambda call: tinyjax.jacfwd(value(call))(X),
        lambda call: tinyjax.linearize(value(call), X)[1](X),
        lambda call: tinyjax.hessian(value(call))(X),
        lambda call: tinyjax.jit(tinyjax.vmap(tinyjax.jacfwd(value(call))))(np.stack([X, -X])),
    ):
        got, want = tinyjax.tree.leaves(apply(e.call)), tinyjax.tree.leaves(apply(polynomial))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_forward_mode_of_what_travelled_keeps_rules_and_its_order():
    back = around(ruled(tinyjax), 2.0, order=1)
    assert float(tinyjax.jvp(back.call, (3.0,), (1.0,))[1]) == 300
    with pytest.raises(ValueError, match=r"differentiate the reverse one, as in jacfwd\(jacrev"):
        tinyjax.jacfwd(tinyjax.jacfwd(back.call))(3.0)
    with pytest.raises(ValueError, match="No VJP is available"):
        tinyjax.jvp(around(ruled(tinyjax), 2.0).call, (3.0,), (1.0,))


def test_there_is_no_mlir_and_the_error_says_what_there_is():
    e = export.export(jit(jnp.sin))(X)
    for name in ("mlir_module", "mlir_module_serialized"):
        assert not hasattr(e, name)
        with pytest.raises(AttributeError, match="`jaxpr` shows the program"):
            getattr(e, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = e.nonsense


EFFECTS: dict[str, Callable[..., Any]] = {
    "print": lambda x: tinyjax.debug.print("{}", x),
    "callback": lambda x: tinyjax.debug.callback(print, x),
    "ordered": lambda x: tinyjax.debug.print("{}", x, ordered=True),
    "io": lambda x: tinyjax.experimental.io_callback(
        np.sin, tinyjax.ShapeDtypeStruct((3,), np.float32), x
    ),
    "check": lambda x: tinyjax.experimental.checkify.check(x[0] > 0, "negative"),
}  # fmt: skip


@pytest.mark.parametrize("name", EFFECTS)
def test_a_program_with_effects_is_refused_and_the_error_says_what_to_do(name: str):
    with pytest.raises(
        ValueError, match="cannot export .*calls back into Python(.|\n)*  Remove debug.print"
    ):
        export.export(jit(EFFECTS[name]))(X)


def test_what_is_no_bytes_is_refused():
    with pytest.raises(TypeError, match="takes the bytes of `serialize`, got str"):
        export.deserialize("file.bin")


def test_disabled_checks_are_recorded_and_equal_by_value():
    check = export.DisabledSafetyCheck.custom_call("lapack")
    assert check == export.DisabledSafetyCheck.custom_call("lapack") != check.platform()
    assert (check.is_custom_call(), check.platform().is_custom_call()) == ("lapack", None)
    e = export.export(jit(jnp.sin), disabled_checks=[check])(X)
    assert e.disabled_safety_checks == (check,)


# --- symbolic sizes ------------------------------------------------------------------------------------------

N, E = Dim("n", 1, 16), Dim("e", 4, 32, multiple_of=4)
WEIGHT = jnp.asarray(numbers(4, 4))


def varied(x: Any, i: Any, *, k: Any) -> Any:
    y = jnp.tanh(x @ WEIGHT) * k
    carry, sums = lax.scan(lambda c, v: (c + v.sum(), c * v.mean()), 0.0, y)
    return {
        "taken": y[i], "counted": i + x.shape[0], "sums": sums, "carry": carry,
        "both": jnp.concatenate([x, y]), "soft": tinyjax.nn.softmax(y, axis=0),
        "flat": y.reshape(-1), "mean": y.mean(), "range": jnp.arange(x.shape[0]),
    }  # fmt: skip


def inputs(size: int) -> tuple[Any, Any, float]:
    return numbers(size, 4), np.arange(size, dtype="i4")[::-1], 1.5


def symbolic(size: Any, f: Any = varied) -> export.Exported:
    return export.export(jit(f))(
        tinyjax.ShapeDtypeStruct((size, 4), "float32"),
        tinyjax.ShapeDtypeStruct((size,), "int32"),
        k=tinyjax.ShapeDtypeStruct((), "float32"),
    )


def loss(f: Any) -> Any:
    def summed(x: Any, i: Any, k: Any) -> Any:
        out = f(x, i, k=k)
        parts = ("taken", "sums", "both", "soft", "flat")
        return sum((out[p] ** 2).sum() for p in parts) + out["carry"] * out["mean"]

    return summed


USES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "call": lambda f, x, i, k: f(x, i, k=k),
    "jit": lambda f, x, i, k: jit(f)(x, i, k=k),
    "grad": lambda f, x, i, k: tinyjax.grad(loss(f), argnums=(0, 2))(x, i, k),
    "jit of grad": lambda f, x, i, k: jit(tinyjax.grad(loss(f)))(x, i, k),
    "jvp": lambda f, x, i, k: tinyjax.jvp(lambda x: f(x, i, k=k)["both"], (x,), (x,)),
    "vmap": lambda f, x, i, k: tinyjax.vmap(lambda x: f(x, i, k=k))(jnp.stack([x, 2 * x])),
    "symbolic": lambda f, x, i, k: jit(
        tinyjax.grad(loss(f), argnums=(0, 2)), dynamic_shapes=({0: around_of(x)}, {0: around_of(x)})
    )(x, i, k),
}


def around_of(x: Any) -> Any:
    """A symbolic size that this array may have: another than the exported one, if it can be."""
    return N if len(x) % 4 else 4 * Dim("m", 1, 4)


def assert_same(got: Any, want: Any) -> None:
    assert tinyjax.tree.structure(got) == tinyjax.tree.structure(want)
    for a, b in zip(tinyjax.tree.leaves(got), tinyjax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


@functools.cache
def pair(name: str) -> tuple[export.Exported, export.Exported]:
    """An exported function of symbolic sizes, and what comes back from its bytes."""
    exported = symbolic({"n": N, "e": E}[name])
    return exported, export.deserialize(exported.serialize(vjp_order=1))


@pytest.mark.parametrize(("name", "size"), [("n", 1), ("n", 4), ("n", 16), ("e", 4), ("e", 16)])
@pytest.mark.parametrize("use", USES)
def test_a_function_of_symbolic_sizes_is_what_it_was(use: str, name: str, size: int):
    args = inputs(size)
    want = USES[use](varied, *args)
    for exported in pair(name):
        assert_same(USES[use](exported.call, *args), want)


@pytest.mark.parametrize("name", ["n", "e"])
def test_avals_are_symbolic_and_come_back_as_the_same_objects(name: str):
    exported, back = pair(name)
    size = exported.in_avals[0].shape[0]
    shapes = [a.shape for a in exported.out_avals]
    assert (2 * size, 4) in shapes and (4 * size,) in shapes
    for of, again in ((exported, back), (exported.vjp(), back.vjp())):
        assert all(a is b for a, b in zip(of.in_avals, again.in_avals, strict=True))
        assert all(a is b for a, b in zip(of.out_avals, again.out_avals, strict=True))


def test_calls_at_once_share_one_trace_and_one_program():
    traced = []
    exported = export.export(
        jit(lambda x: traced.append(x) or jnp.sin(x) * x.shape[0], dynamic_shapes=({0: N},))
    )(numbers(3))
    assert exported.in_avals[0].shape == (N,)
    back = export.deserialize(exported.serialize())
    assert back.body is exported.body
    for size in (1, 3, 16, 3):
        for e in (exported, back):
            np.testing.assert_allclose(
                e.call(numbers(size)), np.sin(numbers(size)) * size, rtol=1e-5
            )
    for e in (exported, back):
        flat = e._flat()
        assert len({id(entry.executable.compiled) for entry in flat._entries.values()}) == 1
        assert flat.history.misses == 1
    assert len(traced) == 1


def test_inside_another_trace_the_graph_is_bound_once_per_size():
    exported = export.export(jit(jnp.sin))(tinyjax.ShapeDtypeStruct((N,), "float32"))
    for size in (2, 3, 2):
        tinyjax.grad(lambda x: exported.call(x).sum())(numbers(size))
    bound = [e for key, e in exported._cache.items() if isinstance(key, tuple)]
    assert [e.in_avals[0].shape for e in bound] == [(2,), (3,)]
    text = str(tinyjax.make_jaxpr(exported.call)(numbers(2)))
    assert "sin" in text and "f32[2]" in text and "[n]" not in text


def test_called_by_a_symbolic_function_it_has_the_sizes_of_that_one():
    exported = symbolic(N)
    m = Dim("m", 1, 5)
    outer = export.export(jit(lambda x, i: exported.call(x, i, k=2.0)["flat"]))
    made = outer(
        tinyjax.ShapeDtypeStruct((3 * m, 4), "float32"), tinyjax.ShapeDtypeStruct((3 * m,), "int32")
    )
    assert made.out_avals[0].shape == (12 * m,)
    x, i, _ = inputs(6)
    assert_same(made.call(x, i), varied(x, i, k=2.0)["flat"])
    wide = Dim("wide", 1, 17)
    with pytest.raises(
        ValueError, match=r"size wide with 1 <= wide <= 17, but .* with 1 <= n <= 16"
    ):
        outer(
            tinyjax.ShapeDtypeStruct((wide, 4), "float32"),
            tinyjax.ShapeDtypeStruct((wide,), "int32"),
        )


SIZE_ERRORS: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "too large": ((N,), (17,), "axis 0 of argument args[0] has size 17, but its dimension is symbolic "
                  "with 1 <= n <= 16."),
    "too small": ((4, N), (4, 0), "axis 1 of argument args[0] has size 0, but"),
    "no multiple": ((E,), (6,), "size 6, but its dimension is symbolic with 4 <= e <= 32, a multiple"),
    "two sizes": ((N, N), (3, 4), "axis 1 of argument args[0] has size 4, but axis 0 of argument "
                  "args[0] has size 3; both are n."),
    "rank": ((N,), (3, 4), "Shape mismatch for args[0]: expected (n,) and called with (3, 4)"),
    "fixed size": ((N, 4), (3, 5), "Shape mismatch for args[0]: expected (n, 4) and called with"),
    "odd": ((2 * N,), (5,), "axis 0 of argument args[0] has size 5, but it is 2*n = 4 where n = 2."),
    "half": ((2 * N,), (34,), "n (from axis 0 of argument args[0], which is 2*n) has size 17, but"),
    "not told": ((N * N,), (9,), "has size 9 and is n*n, from which n cannot be told."),
    "not that sum": ((N, N + 1), (3, 5), "axis 1 of argument args[0] has size 5, but it is n + 1 = 4 "
                     "where n = 3."),
}  # fmt: skip


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", SIZE_ERRORS)
def test_sizes_that_do_not_fit_are_named(name: str, traced: bool):
    shape, given, words = SIZE_ERRORS[name]
    exported = export.export(jit(jnp.sin))(tinyjax.ShapeDtypeStruct(shape, "float32"))
    call = jit(exported.call) if traced else exported.call
    with pytest.raises(ValueError, match=re.escape(words)):
        call(np.zeros(given, "f4"))


@pytest.mark.parametrize(
    ("shapes", "given"),
    [
        (((2 * N,),), ((6,),)),
        (((E,), (E // 4,)), ((8,), (2,))),
        (((N + Dim("m", 1, 4),), (N,)), ((5,), (3,))),
        (((N * Dim("m", 1, 4),), (N,)), ((6,), (3,))),
        (((N + Dim("m", 1, 4), N),), ((5, 3),)),
        (((N, N // 2, N % 3),), ((5, 2, 2),)),
    ],
)
def test_sizes_are_told_by_expressions(shapes: Any, given: Any):
    exported = export.export(jit(lambda *xs: [jnp.cos(x) + x.shape[-1] for x in xs]))(
        *(tinyjax.ShapeDtypeStruct(s, "float32") for s in shapes)
    )
    args = [np.zeros(g, "f4") for g in given]
    assert_same(exported.call(*args), [jnp.cos(x) + x.shape[-1] for x in args])


def test_another_process_reads_a_function_of_symbolic_sizes(tmp_path):
    path = tmp_path / "model.bin"
    exported = export.export(jit(lambda x: jnp.tanh(x @ WEIGHT)))(
        tinyjax.ShapeDtypeStruct((N, 4), "float32")
    )
    path.write_bytes(exported.serialize(vjp_order=1))
    code = (
        "import sys, pathlib, tinyjax, numpy as np\n"
        "f = tinyjax.export.deserialize(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "for n in (2, 7):\n"
        "    x = np.linspace(-1, 1, 4 * n, dtype='f4').reshape(n, 4)\n"
        "    print(np.asarray(f.call(x)).tolist())\n"
        "    print(np.asarray(tinyjax.grad(lambda x: f.call(x).sum())(x)).tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    lines = list(map(eval, done.stdout.splitlines()))
    for n, value, slope in zip((2, 7), lines[::2], lines[1::2], strict=True):
        x, w = np.linspace(-1, 1, 4 * n, dtype="f4").reshape(n, 4), np.asarray(WEIGHT)
        np.testing.assert_allclose(value, np.tanh(x @ w), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(slope, (1 - np.tanh(x @ w) ** 2) @ w.T, rtol=1e-4, atol=1e-6)


def test_forward_mode_keeps_the_arrays_that_were_closed_over():
    exported = export.export(jit(lambda x: jnp.sin(x @ jnp.asarray(M))))(X)
    back = export.deserialize(exported.serialize(vjp_order=1))
    want = np.cos(X @ M) * (X @ M)
    for e in (exported, back):
        for apply in (tinyjax.jvp, jit(tinyjax.jvp, static_argnums=0)):
            np.testing.assert_allclose(apply(e.call, (X,), (X,))[1], want, rtol=1e-5, atol=1e-6)


FIRST_VERSION = (
    "c-jl`^o#UzjL>zB2=EUI;bLR}g82u{jr7HY^Kvg{Cdj|h`F2DhRyr#?|No(bx_Td0-n$J}#K2Ikl$V&Bs$`{PlarX6l#*z"
    "tq@$FX7hh783KWc1Dk&|<NmbIxE6vH#iALipX(`3V0;!bD<Ps&FYNZ^YhS*x2=vW{C8<JR-m{SZCtX4_{lF`PoKt(A)tI~"
    "4v6HAPZlxlU-fC^G$Yk|u1OG}`Z0*!@mNzq=AlUS0LUz7_{uasO+sst3v%TGxK@uQUj9D^Kvm4Ge-not51G0-7wW-Z8T!J"
    "d9VZ3eMmAA<zYO)@0bB;QaUpf*DtBZOHYp#eUwKtW@u5YWlV`FX`9U^f#q7DF7U7Gy+OR)LZg$h=wxh6a0J3_Adk0|0I$s"
    "$u"
)
"""sin(x) * [1, 2, 3] in format version 1, zlib and base 85."""


def test_bytes_of_the_first_version_are_read():
    data = zlib.decompress(base64.b85decode(FIRST_VERSION))
    assert int.from_bytes(data[len(export.MAGIC) :][:4], "little") == 1
    np.testing.assert_allclose(export.deserialize(data).call(X), np.sin(X) * [1, 2, 3], rtol=1e-6)


SIZES = [
    N, E, 2 * N + 1, N * E - 3, N // 3, N % 5, E // 4, (N + 3) // E, 5 - (N * N) % 7,
    maximum(N, 4) * minimum(E, 2 * N), maximum(N // 2, E % 5) + N * (N // 2), -N + 20,
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_size_comes_back_as_the_same_object(size: Any):
    assert decode(json.loads(json.dumps(encode(size)))) is size
    of = aval((3, size, N), jnp.float32.dtype)
    assert decode(json.loads(json.dumps(encode(of)))) is of


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="min < max"):
        decode({"s": [[1, [["n", 5, 2, 1]]]]})


# --- shapes as text ------------------------------------------------------------------------------------------

TEXTS: dict[str, Any] = {
    "b, 2*n": None, "(b, 2*n)": None, "b, 2*n,": None, "": None, "()": None, "b, _": (3, 4),
    "b, ...": (3, 4, 5), "...": (3, 4), "_, 4": (3, 4), "b, 2*b - 1": None, "b, -n + 4": None,
    "b, floordiv(n, 2), mod(n, 2), max(n, b), min(n, 3)": None, "3, b*n": None, "n - n": None,
    "mod(floordiv(n, 2), max(b, 3))": None,
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_the_shape_that_it_is_in_jax(text: str):
    like = TEXTS[text]
    ours, theirs = (J.symbolic_shape(text, like=like) for J in (export, oracle_export))
    assert str(ours).replace("-n", "- n") == str(theirs)
    assert [*map(export.is_symbolic_dim, ours)] == [*map(oracle_export.is_symbolic_dim, theirs)]


def test_texts_that_only_this_library_reads():
    b, n = export.symbolic_shape("b, n")
    assert export.symbolic_shape("2*(b + n), n^2, -(n - b), ((b))*(n)") == (
        2 * b + 2 * n, n * n, b - n, b * n,
    )  # fmt: skip
    assert export.symbolic_shape("(b), (n)") == (b, n)
    assert export.symbolic_shape(None, like=(3, n)) == (3, n)


WRONG_TEXTS: dict[str, tuple[Any, str, int]] = {
    "b, n +": (None, "found the end", 6),
    "b n": (None, "found 'n'", 2),
    "b, n//2": (None, "found '/'", 4),
    "b, 2^n": (None, "expected a number as the exponent, found 'n'", 5),
    "b, sin(n)": (None, "sin is no function of sizes", 3),
    "max(b)": (None, "expected ',', found ')'", 5),
    "(b, n": (None, "this '(' is not closed", 0),
    "b)": (None, "found ')'", 1),
    "b,, n": (None, "found ','", 2),
    "b, _": (None, "a placeholder needs the shape that it stands for", 3),
    "b, ..., n": ((3, 4, 5), "found 'n'", 8),
    "b, 5": ((3, 4), "axis 1 of the shape (3, 4) has size 4", 3),
    "b, _, _": ((3, 4), "the shape (3, 4) has no axis 2", 6),
    "b": ((3, 4), "it has 1 axes, but the shape (3, 4) has others", 0),
    "b, -1": (None, "the size -1 is negative", 3),
    "floordiv(b, n - 4)": (None, "division of b by n - 4, which may be 0", 0),
}


@pytest.mark.parametrize("text", WRONG_TEXTS)
def test_a_text_that_is_no_shape_is_refused_with_the_place(text: str):
    like, words, place = WRONG_TEXTS[text]
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        export.symbolic_shape(text, like=like)
    lines = str(caught.value).splitlines()
    shown = lines.index(f"  {text}")
    assert lines[shown + 1].index("^") - 2 == place


def bounds(*constraints: str, text: str = "n") -> Any:
    (size,) = export.symbolic_shape(text, constraints=constraints)
    return (size, *bounds_of(size))


def test_constraints_give_dimensions_their_bounds():
    assert bounds() == (Dim("n", 1, 4096), 1, 4096)
    assert bounds("n >= 4", "512 >= n") == (Dim("n", 4, 512), 4, 512)
    assert bounds("2*n + 1 <= 100", "3*n >= 7")[1:] == (3, 49)
    assert bounds("n >= 0")[1:] == (0, 4096)
    assert bounds("n >= 10000")[1:] == (10000, 20000)
    assert bounds("mod(n, 8) == 0", "mod(n, 6) == 0", "n <= 100") == (
        Dim("n", 24, 96, multiple_of=24), 24, 96,
    )  # fmt: skip
    assert bounds("n == 4")[0] == 4
    assert bounds("n <= 7", "n >= 7")[0] == 7


def test_constraints_define_dimensions_by_others():
    n, m = export.symbolic_shape("n, m", constraints=("n == 2*m + 1", "n <= 21", "m + n >= 4"))
    assert n == 2 * m + 1 and m == Dim("m", 1, 10)
    assert (
        str(export.symbolic_shape("a, b, c", constraints=("a == b", "8*c == b"))) == "(8*c, 8*c, c)"
    )


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        (("n > 4",), "expected '==', '>=' or '<=', found '>'"),
        (("n",), "expected '==', '>=' or '<=', found the end"),
        (("n >= ",), "found the end"),
        (("n >= m",), "n >= m relates dimensions as bounds cannot.\n  at test_export.py:"),
        (("n >= m",), "\n  A constraint may bound a dimension"),
        (("max(n, m) == n",), "relates dimensions as bounds cannot"),
        (("n >= 5", "n <= 4"), "No size of n meets the constraints"),
        (("2*n == 7",), "2*n == 7 holds for no size"),
        (("n == 3", "n == 4"), "contradicts the others"),
        ("n >= 4", "should be a sequence of strings"),
    ],
)
def test_constraints_that_cannot_be_kept_are_refused(constraints: Any, words: str):
    with pytest.raises(ValueError, match=re.escape(words)):
        export.symbolic_shape("n, m", constraints=constraints)


def test_shapes_of_one_scope_share_dimensions():
    scope = export.SymbolicScope(("b >= 2", "b <= 8"))
    (b,) = export.symbolic_shape("b", scope=scope)
    assert export.symbolic_shape("3*b", scope=scope) == (3 * b,)
    with pytest.raises(ValueError, match="Cannot specify both"):
        export.symbolic_shape("b", scope=scope, constraints=("b >= 3",))


SPECS: dict[str, Case] = {
    "text per argument": lambda J: specs(J, ("b, _", "b")),
    "None": lambda J: specs(J, ("b, _", None)),
    "one for all": lambda J: specs(J, "b, ..."),
}


def specs(J: Any, texts: Any) -> str:
    args = (np.ones((3, 4), "f4"), {"a": np.ones(3, "i4")})
    return str(J.export.symbolic_args_specs(args, texts, constraints=("b <= 9",)))


@pytest.mark.parametrize("name", SPECS)
def test_specifications_of_arguments_are_those_of_jax(name: str):
    check(SPECS[name])


def test_specifications_can_be_exported():
    args = (numbers(3, 4), {"a": numbers(3)})
    spec = export.symbolic_args_specs(args, ("b, _", "b"), constraints=("b <= 9",))
    exported = export.export(jit(lambda x, t: x.sum(1) + t["a"]))(*spec)
    for size in (3, 9):
        x, a = numbers(size, 4), numbers(size)
        np.testing.assert_allclose(exported.call(x, {"a": a}), x.sum(1) + a, rtol=1e-5)
    with pytest.raises(ValueError, match=r"argument args\[1\]\['a'\] has size 2, but axis 0 of"):
        exported.call(x, {"a": a[:2]})
    with pytest.raises(ValueError, match="shapes_specs"):
        export.symbolic_args_specs(args, ("b, _",))
