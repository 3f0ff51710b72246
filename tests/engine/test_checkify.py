"""checkify: the first error of a program as a value, its text as JAX gives it."""

from __future__ import annotations

import jax as oracle
import numpy as np
import pytest
from jax.experimental import checkify as oracle_checkify

import tinyjax
from tests.oracle import assert_same
from tinyjax.experimental import checkify

x3 = np.arange(3.0, dtype="f4")
one, minus = np.float32(1), np.float32(-1)
CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


def positive(J, C):
    def f(x):
        C.check(x > 0, "must be positive, got {x} and {}", x * 2, x=x)
        return J.numpy.log(x)

    return f


def small(J, C):
    def f(c):
        C.check(c < 3, "c={c}", c=c)
        return c + 1

    return f


def both(J, f, *args):
    """Called at once and under jit, with one argument list for both."""
    args = [J.numpy.asarray(a) for a in args]
    return f(*args), J.jit(f)(*args)


@case
def plain(J, C):
    f = C.checkify(positive(J, C))
    return both(J, f, one), both(J, f, minus)


@case
def of_jit_and_of_derivatives(J, C):
    f = positive(J, C)
    return both(J, C.checkify(J.jit(f)), minus), both(J, C.checkify(J.grad(f)), minus)


@case
def the_first_of_two_checks_counts(J, C):
    def f(x):
        C.check(x > 0, "first {}", x)
        C.check(x > 1, "second {}", x)
        return x

    f = C.checkify(f)
    return both(J, f, minus), both(J, f, np.float32(0.5)), both(J, f, np.float32(2))


@case
def scans(J, C):
    def step(c, x):
        C.check(x < 3, "x is {x} at {c}", x=x, c=c)
        return c + x, x

    f = C.checkify(lambda xs: J.lax.scan(step, np.float32(0), xs))
    return both(J, f, np.arange(6, dtype="f4")), both(J, f, x3)


@case
def loops(J, C):
    def condition(c):
        C.check(c < 3, "condition {c}", c=c)
        return c < 6

    zero = np.int32(0)
    return (
        both(J, C.checkify(lambda c: J.lax.while_loop(lambda c: c < 6, small(J, C), c)), zero),
        both(J, C.checkify(lambda c: J.lax.while_loop(condition, lambda c: c + 1, c)), zero),
        both(J, C.checkify(lambda c: J.lax.fori_loop(0, 5, lambda i, c: small(J, C)(c), c)), zero),
    )


@case
def branches(J, C):
    def branch(x):
        C.check(x > 0, "branch {x}", x=x)
        return x

    f = C.checkify(lambda p, x: J.lax.cond(p, branch, lambda x: x + 1, x))
    return both(J, f, True, minus), both(J, f, False, minus)


@case
def per_example(J, C):
    f = J.vmap(C.checkify(positive(J, C)))
    return both(J, f, np.array([1, -1, 2, -3], "f4")), both(J, f, np.array([1, 2], "f4"))


@case
def nans(J, C):
    ck = lambda f: C.checkify(f, errors=C.nan_checks)
    return (
        both(J, ck(lambda x: J.numpy.log(x)), minus),
        both(J, ck(lambda x: J.lax.scan(lambda c, _: (J.numpy.log(c), None), x, None, length=5)[0]),
             np.float32(3)),
        both(J, ck(lambda x: x.sum()), x3 * np.float32(np.nan)),
        both(J, ck(lambda x: J.numpy.log(x)), one),
    )  # fmt: skip


@case
def divisions(J, C):
    ck = lambda f: C.checkify(f, errors=C.div_checks)
    return (
        both(J, ck(lambda x, y: x / y), one, np.float32(0)),
        both(J, ck(lambda x, y: J.lax.div(x, y)), np.int32(1), np.int32(0)),
        both(J, ck(lambda x, y: x / y), one, one),
    )


@case
def indices(J, C):
    ck = lambda f: C.checkify(f, errors=C.index_checks)
    many = np.array([0, 7], "i4")
    slice_ = lambda x, i: J.lax.dynamic_slice(x, (i,), (2,))
    update = lambda x, i: J.lax.dynamic_update_slice(x, x[:2], (i,))
    five, two, low = np.int32(5), np.int32(2), np.int32(-5)
    return (
        both(J, ck(lambda x, i: x[i]), x3, five), both(J, ck(lambda x, i: x[i]), x3, low),
        both(J, ck(lambda x, i: x[i]), x3, np.int32(-1)), both(J, ck(lambda x, i: x[i]), x3, two),
        both(J, ck(lambda x, i: x[0, i]), np.ones((2, 3), "f4"), many),
        both(J, ck(lambda x, i: x.at[i].set(1.0)), x3, five),
        both(J, ck(lambda x, i: x.at[i].add(1.0)), x3, many),
        both(J, ck(slice_), x3, two), both(J, ck(update), x3, two),
    )  # fmt: skip


@case
def all_at_once(J, C):
    f = C.checkify(positive(J, C), errors=C.all_checks)
    return both(J, f, minus), both(J, f, one)


@case
def checking_an_error_again(J, C):
    inner = C.checkify(positive(J, C))

    def f(x):
        err, y = inner(x)
        C.check_error(err)
        return y

    return both(J, C.checkify(f), minus), both(J, C.checkify(f), one)


def texts(J, C, run):
    """Messages instead of errors (JAX's end in a space or not)."""

    def flat(x):
        if isinstance(x, C.Error):
            text = x.get()
            return [text and text.strip()]
        if isinstance(x, tuple):
            return [y for part in x for y in flat(part)]
        return [x]

    return flat(run(J, C))


@pytest.mark.parametrize("name", CASES)
def test_errors_and_results_are_jaxs(name):
    ours = texts(tinyjax, checkify, CASES[name])
    theirs = texts(oracle, oracle_checkify, CASES[name])
    assert [x for x in ours if isinstance(x, str)] == [x for x in theirs if isinstance(x, str)]
    assert any(isinstance(x, str) for x in ours)
    values = lambda xs: [x for x in xs if not isinstance(x, str)]
    assert_same(values(ours), values(theirs))


# --- errors that are raised -----------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda f: f, tinyjax.jit, tinyjax.grad])
def test_a_check_that_nobody_collects_raises_when_the_program_runs(wrap):
    f = wrap(positive(tinyjax, checkify))
    f(1.0)
    with pytest.raises(checkify.JaxRuntimeError, match=r"got -1.0 and -2.0 \(`check` failed\)"):
        f(-1.0)
    f(1.0)


def test_throw_raises_and_get_is_none_without_an_error():
    err, _ = checkify.checkify(positive(tinyjax, checkify))(1.0)
    assert err.get() is None and err.throw() is None and err.get_exception() is None
    err, _ = checkify.checkify(positive(tinyjax, checkify))(-1.0)
    assert isinstance(err.get_exception(), checkify.FailedCheckError)
    with pytest.raises(ValueError, match="must be positive, got -1.0"):
        err.throw()


def test_throw_under_jit_raises_when_the_program_runs():
    @tinyjax.jit
    def f(x):
        err, y = checkify.checkify(positive(tinyjax, checkify))(x)
        err.throw()
        return y

    f(1.0)
    with pytest.raises(checkify.JaxRuntimeError, match="got -1.0"):
        f(-1.0)


@pytest.mark.parametrize("form", ["vmap", "of checkify", "vmap twice", "under jit"])
def test_of_several_examples_the_last_that_fails_is_named_as_in_jax(form: str):
    x = np.array([1, -1, 2, -3, 4], "f4")

    def case(J, C):
        f = positive(J, C)
        error, _ = {
            "vmap": lambda: lambda y: (None, J.vmap(f)(y)),
            "of checkify": lambda: J.vmap(C.checkify(f)),
            "vmap twice": lambda: J.jit(
                C.checkify(lambda y: J.vmap(J.vmap(f))(J.numpy.stack([y, -y])))
            ),
            "under jit": lambda: J.jit(C.checkify(J.vmap(f))),
        }[form]()(x)
        error.throw()

    messages = []
    for J, C in ((oracle, oracle_checkify), (tinyjax, checkify)):
        with pytest.raises(C.JaxRuntimeError) as caught:
            case(J, C)
        messages.append(str(caught.value).splitlines()[0])
    assert messages[0] == messages[1]


def test_debug_checks_exist_only_under_checkify():
    @tinyjax.jit
    def f(x):
        checkify.debug_check(x > 0, "no")
        return x

    assert f(-1.0) == -1.0
    assert checkify.checkify(f)(-1.0)[0].get() == "no (`check` failed)"
    assert f(-1.0) == -1.0


def test_error_if_guards_a_value():
    @tinyjax.jit
    def f(x):
        return checkify.error_if(x, x < 0, "negative") * 2

    np.testing.assert_allclose(f(x3), x3 * 2)
    with pytest.raises(checkify.JaxRuntimeError, match="negative"):
        f(x3 - 1)
    with pytest.raises(checkify.JaxRuntimeError, match="negative"):
        tinyjax.grad(lambda x: f(x).sum())(x3 - 1)


def test_prints_stay_effects(capsys):
    def f(x):
        tinyjax.debug.print("x = {}", x)
        checkify.check(x > 0, "no")
        return x

    err, _ = tinyjax.jit(checkify.checkify(f))(-1.0)
    assert capsys.readouterr().out == "x = -1.0\n" and err.get() == "no (`check` failed)"


def test_a_custom_rule_survives():
    @tinyjax.custom_vjp
    def f(x):
        checkify.check(x > 0, "f of {}", x)
        return tinyjax.numpy.log(x)

    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * 100,))

    def loss(x):
        err, y = checkify.checkify(f)(x)
        return y, err

    g, err = tinyjax.jit(tinyjax.grad(loss, has_aux=True))(-2.0)
    assert g == 100 and err.get() == "f of -2.0 (`check` failed)"


@pytest.mark.parametrize("wrap", ["jit", "scan", "cond"])
def test_checks_that_are_not_asked_for_are_dropped(wrap):
    def case(J, C):
        def f(x):
            C.check(x > 0, "negative")
            return J.numpy.sin(x)

        g = {
            "jit": J.jit(f),
            "scan": lambda x: J.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
            "cond": lambda x: J.lax.cond(x < 0, f, lambda x: x, x),
        }[wrap]
        error, y = C.checkify(g, errors=C.div_checks)(J.numpy.float32(-1))
        assert error.get() is None
        return y

    assert_same(case(tinyjax, checkify), case(oracle, oracle_checkify), weak=False)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("x", [np.float32(0), np.zeros(2, "f4"), 0, True], ids=repr)
def test_arguments_that_are_no_arrays_reach_the_function_as_they_are(x, jit):
    """So what NumPy divides is no division of ours; within a jitted function all are arrays."""

    def run(J, C, x):
        def f(x, kind):
            assert jit or kind == "as it is"
            return 1 / (x * 1 - x * 1 + (x > 0) + np.float32(0)), J.numpy.sum(x)

        if jit:
            f = J.jit(f, static_argnums=1)
            return C.checkify(lambda x: f(x, None), errors=C.automatic_checks)(x)
        return C.checkify(f, errors=C.automatic_checks)(x, "as it is")

    with np.errstate(divide="ignore"):
        for given in (lambda J: x, lambda J: J.numpy.asarray(x)):
            error, value = run(tinyjax, checkify, given(tinyjax))
            theirs, want = run(oracle, oracle_checkify, given(oracle))
            first = [e.get() and e.get().splitlines()[0].split(" (")[0] for e in (error, theirs)]
            assert first[0] == first[1]
            assert_same(value, want, weak=False)


@pytest.mark.parametrize("i", [5, -4, 1, np.int32(3)], ids=repr)
def test_a_static_index_out_of_bounds_is_an_error_as_well(i):
    found = []
    for J, C in ((tinyjax, checkify), (oracle, oracle_checkify)):
        f = lambda x, i: (x[i], x.at[i].set(9))
        error, value = C.checkify(f, errors=C.index_checks)(J.numpy.asarray(x3), i)
        text = error.get()
        found.append((text and text.splitlines()[0].split(". ")[0].rstrip("."), value))
    (ours, values), (theirs, others) = found
    assert ours == theirs
    assert_same(values, others, weak=False)


def test_a_function_without_checks_left_has_no_effects():
    """So a jitted checkified function can be exported, and its derivatives cost nothing more."""

    def f(x):
        checkify.check(x > 0, "negative")
        return tinyjax.numpy.sqrt(x)

    g = tinyjax.jit(lambda x: checkify.checkify(tinyjax.jit(f))(x)[1])
    x = np.float32(4)
    assert "token" not in str(tinyjax.make_jaxpr(g)(x))
    assert tinyjax.export.export(g)(x).call(x) == 2
    whole = tinyjax.export.export(tinyjax.jit(checkify.checkify(f)))(x)
    assert whole.call(-x)[0].get() == "negative (`check` failed)"


@pytest.mark.parametrize(
    "run, text",
    [
        (lambda: checkify.check(1, "x"), "scalar pred"),
        (lambda: checkify.check(x3 > 0, "x"), "scalar pred"),
        (lambda: checkify.check(True, "{}", "s"), "need to be PyTrees of arrays"),
    ],
)
def test_mistakes(run, text):
    with pytest.raises(TypeError, match=text):
        run()
