"""export: a staged function as bytes and back, in this process and another; derivatives; damage."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.export as oracle_export
import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, check, numbers, raises
from tinyjax import export, jit, lax
from tinyjax import numpy as jnp

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
