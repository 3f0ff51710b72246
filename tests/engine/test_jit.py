"""jit and control flow: signatures, static and donated arguments, caches."""

from __future__ import annotations

import functools
import gc
import warnings
import weakref

import numpy as np
import pytest

import tinyjax
from tests.oracle import check, raises
from tinyjax import jit
from tinyjax import numpy as jnp

x3 = np.array([1.0, 2.0, 3.0], np.float32)
m = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
CASES = {}


def case(name):
    def register(f):
        CASES[name] = f
        return f

    return register


@case("jit static types")
def jit_static_types(J):
    f = J.jit(lambda x, n: x * n, static_argnums=1)
    return f(x3, 1), f(x3, True), f(x3, 1.0), f(x3, 2)


@case("jit statname")
def jit_statname(J):
    f = J.jit(lambda x, *, mode="a": x if mode == "a" else -x, static_argnames="mode")
    return f(x3), f(x3, mode="b")


@case("jit kwargs")
def jit_kwargs(J):
    f = J.jit(lambda x, y=2.0, **k: x * y + k.get("z", 0))
    return f(x3), f(x3, y=3.0), f(x3, 3.0, z=1.0)


@case("jit varargs")
def jit_varargs(J):
    return J.jit(lambda *a: sum(a))(x3, x3, 1.0)


@case("jit none")
def jit_none(J):
    return J.jit(lambda x, n: (x, n))(x3, None)


@case("jit empty")
def jit_empty(J):
    return J.jit(lambda: ())()


@case("jit const")
def jit_const(J):
    return J.jit(lambda: 3)()


@case("jit pass")
def jit_pass(J):
    return J.jit(lambda x: (x, x))(x3)


@case("jit identity np")
def jit_identity_np(J):
    return J.jit(lambda x: x)(5)


@case("disable")
def disable(J):
    with J.disable_jit():
        return J.jit(lambda x: x * 2)(x3), J.lax.scan(lambda c, x: (c + x, c), 0.0, x3)


@case("bound method")
def bound_method(J):
    class M:
        def __init__(s):
            s.w = J.numpy.asarray(2.0)

        def f(s, x):
            return s.w * x

    m = M()
    return J.jit(m.f)(x3), J.grad(m.f)(1.0), J.vmap(m.f)(x3)


@case("partial")
def partials(J):
    return J.jit(functools.partial(lambda a, b: a * b, 2.0))(x3), J.vmap(
        functools.partial(lambda a, b: a * b, b=2.0)
    )(x3)


@case("method static")
def method_static(J):
    class M:
        w = 2.0

        @functools.partial(J.jit, static_argnums=0)
        def f(s, x):
            return s.w * x

    return M().f(x3)


@case("donate")
def donate(J):
    f = J.jit(lambda x: x + 1, donate_argnums=0)
    a = J.numpy.ones(3)
    f(a)
    return bool(a.is_deleted())


@case("donate names")
def donate_names(J):
    f = J.jit(lambda x, y: x + y, donate_argnames="y")
    a = J.numpy.ones(3)
    b = J.numpy.ones(3)
    f(a, y=b)
    return str((a.is_deleted(), b.is_deleted()))


@case("cache capture")
def cache_capture(J):
    # jit inside grad capturing variables: not reused wrongly
    @J.jit
    def dummy(y):
        return y

    def outer(x):
        @J.jit
        def g(y):
            return x * y

        return g(2.0) + g(3.0)

    return J.grad(outer)(1.0), J.grad(outer)(5.0)


@case("scan empty")
def scan_empty(J):
    return J.lax.scan(lambda c, x: ((), x * 2), (), x3)


@case("scan none")
def scan_none(J):
    return J.lax.scan(lambda c, x: (c + 1, c), 0.0, None, length=3)


@case("scan zero")
def scan_zero(J):
    return J.lax.scan(lambda c, x: (c + x, c * 2), 0.0, np.zeros((0,), np.float32))


@case("scan ynone")
def scan_ynone(J):
    return J.lax.scan(lambda c, x: (c + x, None), 0.0, x3)


@case("scan rev")
def scan_rev(J):
    return J.lax.scan(lambda c, x: (c + x, c), 0.0, x3, reverse=True)


@case("scan weak")
def scan_weak(J):
    return J.lax.scan(lambda c, x: (c + x, c), 0, x3)


@case("scan grad closure")
def scan_grad_closure(J):
    return J.grad(lambda w: J.lax.scan(lambda c, x: (c * w + x, c), w, x3)[1].sum())(0.5)


@case("scan unroll")
def scan_unroll(J):
    return J.lax.scan(lambda c, x: (c + x, c), 0.0, x3, unroll=2)


@case("scan int carry")
def scan_int_carry(J):
    return J.grad(
        lambda w: J.lax.scan(lambda c, x: ((c[0] + 1, c[1] * w * x), c[0]), (0, w), x3)[0][1]
    )(0.5)


@case("fori")
def fori(J):
    return J.grad(lambda w: J.lax.fori_loop(0, 3, lambda i, v: v * w + i, w))(0.5)


@case("fori tree")
def fori_tree(J):
    return J.lax.fori_loop(
        0, 4, lambda i, d: {"a": d["a"] + i, "b": d["b"] * 2}, {"a": 0, "b": 1.0}
    )


@case("cond")
def cond(J):
    return J.grad(lambda x: J.lax.cond(x > 0, lambda x: x * x, lambda x: -x, x))(3.0)


@case("cond noargs")
def cond_noargs(J):
    return J.grad(lambda x: J.lax.cond(True, lambda: x * x, lambda: x))(3.0)


@case("cond int")
def cond_int(J):
    return J.lax.cond(1, lambda: 1.0, lambda: 2.0)


@case("switch grad")
def switch_grad(J):
    return J.grad(lambda x: J.lax.switch(2, [lambda x: x, lambda x: x * 2, lambda x: x * x], x))(
        3.0
    )


@case("while carries what it does not change")
def while_unchanged(J):
    def loop(x):
        return J.lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1]), (0, x))[1]

    first = J.grad(loop)(2.0), J.grad(J.jit(loop))(2.0), J.vmap(J.grad(loop))(x3)
    return *first, J.grad(J.grad(lambda x: loop(x) ** 3))(2.0), J.jvp(loop, (2.0,), (1.0,))


@pytest.mark.parametrize("name", CASES)
def test_results_are_jaxs(name):
    check(CASES[name], weak=False)


REFUSED = {
    "jit bool": lambda J: J.jit(lambda x: x if x > 1 else x)(2.0),
    "jit int": lambda J: J.jit(lambda x: list(range(x)))(2),
    "jit float": lambda J: J.jit(lambda x: float(x))(2.0),
    "jit np": lambda J: J.jit(lambda x: np.asarray(x))(x3),
    "jit str": lambda J: J.jit(lambda x: x)("a"),
    "jit obj": lambda J: J.jit(lambda x: x)(object()),
    "jit unhash": lambda J: J.jit(lambda x, n: x, static_argnums=1)(1.0, [1]),
    "jit badnum": lambda J: J.jit(lambda x: x, static_argnums=3),
    "jit badname": lambda J: J.jit(lambda x: x, static_argnames="q"),
    "jit static donated": lambda J: J.jit(lambda x: x, static_argnums=0, donate_argnums=0),
    "jit static donated name": lambda J: J.jit(
        lambda x, y: x, static_argnums=(0,), donate_argnames=("y", "x")
    ),
    "jit ret": lambda J: J.jit(lambda x: "s")(x3),
    "scan carry": lambda J: J.lax.scan(lambda c, x: (c[None], x), x3, x3),
    "scan tree": lambda J: J.lax.scan(lambda c, x: ((c, c), x), 0.0, x3),
    "scan pair": lambda J: J.lax.scan(lambda c, x: c, 0.0, x3),
    "scan len": lambda J: J.lax.scan(lambda c, x: (c, x), 0.0, (x3, x3[:2])),
    "scan len2": lambda J: J.lax.scan(lambda c, x: (c, x), 0.0, x3, length=5),
    "scan dtype": lambda J: J.lax.scan(lambda c, x: (c + 1.5, x), np.int32(0), x3),
    "while bool": lambda J: J.lax.while_loop(lambda x: x, lambda x: x, 1.0),
    "while rev": lambda J: J.grad(lambda x: J.lax.while_loop(lambda x: x < 10, lambda x: x * 2, x))(
        1.0
    ),
    "cond tree": lambda J: J.lax.cond(True, lambda: 1.0, lambda: (1.0,)),
    "cond types": lambda J: J.lax.cond(True, lambda: 1.0, lambda: x3),
    "psum unbound": lambda J: J.lax.psum(x3, "i"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_refuses_is_refused_with_its_type(name):
    assert str(raises(REFUSED[name]))


def counted(f):
    """`f`, and a list that grows when it is traced."""
    traces = []

    @functools.wraps(f)
    def wrapped(*args, **kwargs):
        traces.append(1)
        return f(*args, **kwargs)

    return wrapped, traces


def test_one_trace_per_signature():
    f, traces = counted(lambda x, y: x + y)
    g = jit(f)
    for x, y in [(x3, x3), (jnp.asarray(x3), x3), (x3, 2.0), (x3, 3.0), (x3, 2), (x3[:2], x3[:2])]:
        np.testing.assert_allclose(np.asarray(g(x, y)), np.asarray(x) + y)
    assert len(traces) == 4  # (f32, f32), (f32, float), (f32, int), another shape


def test_jit_of_one_function_twice_shares_its_traces():
    f, traces = counted(lambda x: x * 2)
    jit(f)(x3)
    jit(f)(x3)
    assert len(traces) == 1


def test_a_jitted_bound_method_is_traced_once_and_another_one_anew():
    """By then the object may hold something else."""
    traces = []

    class Model:
        def __init__(self, w):
            self.w = w

        def apply(self, x):
            traces.append(1)
            return x * self.w

    a = Model(2.0)
    f = jit(a.apply)
    assert [float(f(1.0)) for _ in range(3)] == [2.0] * 3
    assert len(traces) == 1
    del f
    a.w = 3.0
    assert float(jit(a.apply)(1.0)) == 3.0
    assert len(traces) == 2


def test_partials_of_equal_arguments_share_a_trace():
    f, traces = counted(lambda k, x: x * k)
    for _ in range(3):
        assert float(jit(functools.partial(f, 2.0))(3.0)) == 6.0
    assert float(jit(functools.partial(f, 5.0))(3.0)) == 15.0
    assert float(jit(functools.partial(f, 2))(3.0)) == 6.0
    assert len(traces) == 3


def test_static_arguments_differ_by_type_as_well_as_value():
    f, traces = counted(lambda x, n: x * n)
    g = jit(f, static_argnums=1)
    assert [g(1, n).dtype.name for n in (1, True, 1.0)] == ["int32", "int32", "float32"]
    assert len(traces) == 3


def test_options_that_affect_tracing_make_new_traces():
    f, traces = counted(lambda x: x * 2)
    g = jit(f)
    g(x3)
    with tinyjax.enable_x64(True):
        assert g(np.ones(3)).dtype == np.float64
    g(x3)
    assert len(traces) == 2


def test_a_captured_array_is_an_input_not_a_constant():
    w = jnp.asarray(x3)
    traced = jit(lambda x: x * w).trace(x3)
    assert len(traced.traced.captured) == 1


def test_the_traces_of_a_function_die_with_it():
    def make():
        big = jnp.ones(1000)
        return jit(lambda x: x + big), weakref.ref(big._buffer)

    f, alive = make()
    f(1.0)
    assert alive() is not None
    del f
    gc.collect()
    jnp.zeros(1) + 1  # what is gone leaves the tables with the next operation
    assert alive() is None


def test_a_donated_array_is_gone():
    f = jit(lambda x, y: (x + 1, y.sum()), donate_argnums=(0, 1))
    a, b = jnp.ones(4), jnp.ones(5)
    f(a, b)
    assert a.is_deleted() and not b.is_deleted()  # no result could use the memory of b
    with pytest.raises(RuntimeError, match="deleted"):
        a + 1
    with pytest.raises(RuntimeError, match="deleted"):
        f(a, b)


def test_what_numpy_sees_or_is_passed_twice_is_not_donated():
    f = jit(lambda x: x + 1, donate_argnums=0)
    a = jnp.ones(4)
    view = np.asarray(a)
    f(a)
    assert not a.is_deleted() and view.sum() == 4
    g = jit(lambda x, y: x + y, donate_argnums=0)
    b = jnp.ones(4)
    g(b, b)
    assert not b.is_deleted()


def test_max_traces_raises_with_the_difference():
    f = jit(lambda x: x + 1, max_traces=1)
    f(x3)
    with pytest.raises(RuntimeError, match=r"x: f32\[3\] -> f32\[2\]"):
        f(x3[:2])


def test_the_short_path_and_the_general_path_agree():
    """Random trees of arrays, numbers and None, several calls each: every path gives the same."""
    draw = np.random.default_rng(0)

    def leaf():
        kind = draw.integers(5)
        if kind == 0:
            return float(draw.integers(9))
        if kind == 1:
            return np.full(int(draw.integers(1, 3)), draw.integers(9), "f4")
        if kind == 2:
            return None
        return jnp.full(
            int(draw.integers(1, 3)), int(draw.integers(9)), ["f4", "i4"][draw.integers(2)]
        )

    def tree(depth):
        if depth == 0 or draw.random() < 0.3:
            return leaf()
        kind = draw.integers(3)
        parts = [tree(depth - 1) for _ in range(int(draw.integers(0, 4)))]
        return (parts, tuple(parts), {f"k{i}": p for i, p in enumerate(parts)})[kind]

    fun = lambda *args: tinyjax.tree.map(lambda v: v * 2 + 1, args)
    f = jit(fun)
    for _ in range(60):
        args = tuple(tree(3) for _ in range(int(draw.integers(0, 3))))
        want = jit(lambda *a: fun(*a))(*args)
        for given in (args, args, tinyjax.tree.map(jnp.asarray, args)):
            got = f(*given)
            assert tinyjax.tree.structure(got) == tinyjax.tree.structure(want)
            for a, b in zip(tinyjax.tree.leaves(got), tinyjax.tree.leaves(want)):
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("fold", ["sum", "max", "argmax"])
def test_a_fold_read_alone_and_at_the_end_of_a_concatenation(fold):
    """The kernel has a loop for each; one loop of both was a vector inside another vector."""
    x, y = np.arange(7, dtype="f4"), np.arange(3, 10, dtype="f4")

    def shifted(J, x, y):
        last = getattr(J, fold)(y)
        return J.append(x[1:], last.astype(x.dtype)), last

    got = tinyjax.jit(lambda x, y: shifted(tinyjax.numpy, x, y))(x, y)
    for out, want in zip(got, shifted(np, x, y), strict=True):
        np.testing.assert_array_equal(out, want)


RESHAPED = {
    "reshape": lambda c: (c * 2 + 1).reshape(4, 3),
    "reshape alone": lambda c: c.reshape(2, 6),
    "ravel": lambda c: c.reshape(-1) * 2,
    "new axis": lambda c: (c + 1)[:, None],
    "update": lambda c: c.at[1].set(0).reshape(6, 2),
    "other dtype": lambda c: tinyjax.lax.bitcast_convert_type(c.reshape(12) * 2, jnp.int32),
}


@pytest.mark.parametrize("form", RESHAPED)
def test_a_result_in_donated_memory_has_its_own_shape_and_dtype(form):
    x = np.arange(12, dtype="f4").reshape(3, 4)
    want = np.asarray(RESHAPED[form](jnp.asarray(x)))
    f = tinyjax.jit(RESHAPED[form], donate_argnums=0)
    assert "lies in the donated" in str(f.lower(x).schedule)
    got = f(jnp.asarray(x))
    assert (np.asarray(got).shape, np.asarray(got).dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(np.asarray(got), want)
    np.testing.assert_array_equal(np.asarray(got[0]), want[0])


def test_a_compilation_warns_of_nothing():
    x = np.ones((4, 6), np.float16)
    f = lambda x: (jnp.where(jnp.arange(6) % 3 == 1, x, 0) * jnp.float16(2)).sum(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(np.asarray(tinyjax.jit(f)(x)), np.full(4, 4, np.float16))


def test_inlined_functions_leave_their_operations():
    def f(x):
        return jnp.sin(x) * 2

    inlined = jit(f, inline=True)

    def outer(of):
        return lambda x: of(x) + 1

    x = jnp.arange(3.0)
    for way in (lambda g: g, tinyjax.vmap, lambda g: tinyjax.grad(lambda x: g(x).sum())):
        want = tinyjax.make_jaxpr(way(outer(f)))(x)
        assert str(tinyjax.make_jaxpr(way(outer(inlined)))(x)) == str(want)
    np.testing.assert_array_equal(inlined(x), jit(f)(x))
