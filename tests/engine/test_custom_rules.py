"""custom_jvp and custom_vjp in every nesting: rules run once, then batch and differentiate as graphs."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

import tinyjax
from tests.oracle import check
from tinyjax import grad, jit, jvp, vmap
from tinyjax import numpy as jnp


def mkjvp(J):
    @J.custom_jvp
    def f(x, y):
        return x * y

    @f.defjvp
    def _(p, t):
        x, y = p
        dx, dy = t
        return f(x, y), 10 * dx * y + x * dy

    return f


def mkvjp(J):
    @J.custom_vjp
    def f(x, y):
        return x * y

    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda r, ct: (10 * ct * r[1], ct * r[0]))
    return f


x3 = np.array([1.0, 2.0, 3.0], np.float32)
m = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
CASES = {}


def case(name):
    def register(f):
        CASES[name] = f
        return f

    return register


@case("cj")
def cj(J):
    f = mkjvp(J)
    return (
        J.grad(f, (0, 1))(2.0, 3.0),
        J.jvp(f, (2.0, 3.0), (1.0, 1.0)),
        J.vmap(J.grad(f), (0, None))(x3, 2.0),
        J.jit(J.grad(f))(2.0, 3.0),
        J.grad(J.jit(f))(2.0, 3.0),
    )


@case("cj2")
def cj2(J):
    f = mkjvp(J)
    return (
        J.grad(J.grad(f))(2.0, 3.0),
        J.grad(J.grad(f), 1)(2.0, 3.0),
        J.grad(lambda x: J.vmap(f, (0, None))(x3 * x, x).sum())(2.0),
    )


@case("cv")
def cv(J):
    f = mkvjp(J)
    return (
        J.grad(f, (0, 1))(2.0, 3.0),
        J.vmap(J.grad(f), (0, None))(x3, 2.0),
        J.jit(J.grad(f))(2.0, 3.0),
        J.grad(J.jit(f))(2.0, 3.0),
    )


@case("cv2")
def cv2(J):
    f = mkvjp(J)
    return (
        J.grad(J.grad(f))(2.0, 3.0),
        J.grad(J.grad(f), 1)(2.0, 3.0),
        J.grad(lambda x: J.vmap(f, (0, None))(x3 * x, x).sum())(2.0),
        J.grad(lambda x: J.vmap(f, (None, 0))(x, x3).sum())(2.0),
    )


@case("cvvm")
def cvvm(J):
    f = mkvjp(J)
    return (
        J.vmap(J.vmap(J.grad(f, (0, 1)), (0, None)), (None, 0))(x3, x3),
        J.jit(J.vmap(J.grad(f, (0, 1)), (0, None)))(x3, 2.0),
        J.grad(lambda y: J.jit(J.vmap(f, (0, None)))(x3, y).sum())(2.0),
    )


@case("cv scan")
def cv_scan(J):
    f = mkvjp(J)
    return J.grad(lambda y: J.lax.scan(lambda c, x: (f(c, x) + y, c), y, x3)[0])(2.0)


@case("cj scan")
def cj_scan(J):
    f = mkjvp(J)
    return J.grad(lambda y: J.lax.scan(lambda c, x: (f(c, x) + y, c), y, x3)[0])(2.0)


@case("cv cond")
def cv_cond(J):
    f = mkvjp(J)
    return J.grad(lambda y: J.lax.cond(y > 0, lambda y: f(y, y), lambda y: y, y))(2.0)


@case("cv ckpt")
def cv_ckpt(J):
    f = mkvjp(J)
    return J.grad(J.checkpoint(lambda y: J.numpy.sin(f(y, y))))(2.0), J.vmap(
        J.grad(J.checkpoint(lambda y: f(y, y)))
    )(x3)


@case("cv nondiff")
def cv_nondiff(J):
    @functools.partial(J.custom_vjp, nondiff_argnums=(0,))
    def g(fn, x):
        return fn(x)

    g.defvjp(lambda fn, x: (fn(x), x), lambda fn, x, ct: (ct * fn(x) * 100,))
    return (
        J.grad(lambda x: g(J.numpy.sin, x))(2.0),
        J.vmap(J.grad(lambda x: g(J.numpy.sin, x)))(x3),
        J.jit(J.grad(lambda x: g(J.numpy.sin, x)))(2.0),
    )


@case("cv nondiff1")
def cv_nondiff1(J):
    @functools.partial(J.custom_vjp, nondiff_argnums=(1,))
    def g(x, n):
        return x * n

    g.defvjp(lambda x, n: (x * n, x), lambda n, x, ct: (ct * n * 100,))
    return J.grad(g)(2.0, 3), J.grad(lambda x: g(x, n=3))(2.0)


@case("cj nondiff")
def cj_nondiff(J):
    @functools.partial(J.custom_jvp, nondiff_argnums=(0,))
    def g(fn, x):
        return fn(x)

    @g.defjvp
    def _(fn, p, t):
        return fn(p[0]), t[0] * 100

    return J.grad(lambda x: g(J.numpy.sin, x))(2.0), J.jit(
        J.vmap(J.grad(lambda x: g(J.numpy.sin, x)))
    )(x3)


@case("cv none")
def cv_none(J):
    @J.custom_vjp
    def g(x, y):
        return x * y

    g.defvjp(lambda x, y: (x * y, None), lambda r, ct: (ct, None))
    return J.grad(g, (0, 1))(2.0, 3.0)


@case("cv tree")
def cv_tree(J):
    @J.custom_vjp
    def g(d):
        return {"o": d["a"] * d["b"], "n": d["n"]}

    g.defvjp(
        lambda d: (g(d), d),
        lambda d, ct: ({"a": ct["o"] * d["b"] * 2, "b": ct["o"] * d["a"], "n": None},),
    )
    return J.grad(lambda d: g(d)["o"], allow_int=True)({"a": 2.0, "b": 3.0, "n": np.int32(1)})


@case("cv nested")
def cv_nested(J):
    f = mkvjp(J)

    @J.custom_vjp
    def g(x):
        return f(x, x)

    g.defvjp(lambda x: (g(x), x), lambda x, ct: (ct * J.grad(lambda z: f(z, z))(x),))
    return J.grad(g)(2.0), J.grad(J.grad(g))(2.0), J.vmap(J.grad(g))(x3)


@case("rules of rules")
def rules_of_rules(J):
    """What a rule calls has rules of its own: here itself, whose derivative differs from them."""
    root, cube = J.custom_jvp(lambda x: J.numpy.sqrt(x * x + 1)), J.custom_jvp(lambda x: x**3)
    root.defjvp(lambda p, t: (root(p[0]), 1.5 * p[0] * t[0] / root(p[0])))
    cube.defjvps(lambda dx, y, x: 2.5 * x**2 * dx)
    clipped = J.custom_vjp(lambda x: cube(x) * root(x))
    clipped.defvjp(
        lambda x: (clipped(x), (x, root(x))), lambda res, ct: (J.grad(cube)(res[0]) * res[1] * ct,)
    )
    functions = [root, lambda x: root(x) * x, lambda x: J.grad(lambda y: cube(y) ** 2)(x)]
    functions.append(lambda x: clipped(x) * x)
    twice = [J.grad(J.grad(f))(0.7) for f in functions]
    forward = [J.jvp(J.grad(f), (0.7,), (1.0,))[1] for f in functions[:3]]
    return twice, forward, [J.grad(J.grad(J.grad(f)))(0.7) for f in functions]


@case("cj defjvps")
def cj_defjvps(J):
    @J.custom_jvp
    def f(x, y):
        return J.numpy.sin(x) * y

    f.defjvps(lambda t, o, x, y: J.numpy.cos(x) * t * y * 2, None)
    return J.grad(f, (0, 1))(2.0, 3.0)


@case("cj closure const")
def cj_closure_const(J):
    w = J.numpy.asarray(x3)

    @J.custom_jvp
    def f(x):
        return (x * w).sum()

    @f.defjvp
    def _(p, t):
        return f(p[0]), (t[0] * w * 5).sum()

    return J.grad(f)(x3), J.jit(J.grad(f))(x3), J.vmap(J.grad(f))(np.stack([x3, x3]))


@case("cj closure jit")
def cj_closure_jit(J):
    def outer(w, x):
        @J.custom_jvp
        def f(x):
            return x * w

        @f.defjvp
        def _(p, t):
            return f(p[0]), t[0] * w * 5

        return J.grad(f)(x)

    return J.jit(outer)(2.0, 3.0), J.vmap(outer)(x3, x3), J.jit(J.vmap(outer))(x3, x3)


@case("cv int")
def cv_int(J):
    @J.custom_vjp
    def f(x, n):
        return x * n

    f.defvjp(lambda x, n: (f(x, n), n), lambda n, ct: (ct * n, np.zeros((), jax.dtypes.float0)))
    return J.grad(f)(2.0, np.int32(3)), J.vmap(J.grad(f), (0, None))(x3, np.int32(3))


@case("cj symz")
def cj_symz(J):
    @J.custom_jvp
    def f(x, y):
        return x * y

    def rule(p, t):
        out = p[0] * p[1]
        zs = [type(u).__name__ == "SymbolicZero" for u in t]
        return out, (0 if zs[0] else t[0] * p[1]) + (0 if zs[1] else 9 * t[1])

    f.defjvp(rule, symbolic_zeros=True)
    return J.grad(f)(2.0, 3.0), J.grad(f, 1)(2.0, 3.0), J.jit(J.grad(f))(2.0, 3.0)


@pytest.mark.parametrize("name", CASES)
def test_results_are_jaxs(name):
    check(CASES[name], weak=False)


def both():
    """A function with unlike rules for the two modes, so that each can be told apart."""

    @tinyjax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda r, ct: (ct * 2 * jnp.cos(r),))
    f.defjvp(lambda p, t: (f(p[0]), t[0] * 3 * jnp.cos(p[0])))
    return f


def test_with_both_rules_each_mode_uses_its_own():
    f, c = both(), np.cos(0.7)
    forward = lambda x: jvp(f, (x,), (1.0,))[1]
    for outer in (lambda g: g, jit):
        np.testing.assert_allclose(float(outer(grad(f))(0.7)), 2 * c, rtol=1e-6)
        np.testing.assert_allclose(float(outer(forward)(0.7)), 3 * c, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(vmap(grad(f))(np.full(2, 0.7, "f4"))), 2 * c, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(vmap(forward)(np.full(2, 0.7, "f4"))), 3 * c, rtol=1e-6)
    np.testing.assert_allclose(float(jvp(grad(f), (0.7,), (1.0,))[1]), -2 * np.sin(0.7), rtol=1e-6)


@pytest.mark.parametrize("outer", [lambda f: f, jit])
def test_forward_mode_without_a_forward_rule_says_which_is_missing(outer):
    f = mkvjp(tinyjax)
    with pytest.raises(
        TypeError, match=r"forward-mode differentiation \(jvp\) to a custom_vjp.*defjvp"
    ):
        outer(lambda x: jvp(lambda y: f(y, y), (x,), (1.0,)))(2.0)


@pytest.mark.parametrize(
    "outer", [lambda f: f, jit, lambda f: lambda w: vmap(f)(w * np.ones(2, "f4")).sum()]
)
def test_a_closed_over_value_that_is_differentiated_is_refused(outer):
    def loss(w):
        @tinyjax.custom_vjp
        def f(x):
            return x * w

        f.defvjp(lambda x: (f(x), None), lambda r, ct: (ct * w,))
        return f(w)

    with pytest.raises(tinyjax.errors.UnexpectedTracerError, match="closed-over value"):
        grad(outer(loss))(2.0)


def test_rules_run_once_and_may_look_at_values():
    ran = []

    @tinyjax.custom_vjp
    def f(x):
        return x * x

    def fwd(x):
        ran.append("fwd" if x > 0 else "negative")
        return f(x), x

    f.defvjp(fwd, lambda x, ct: (ct * 2 * x,))
    assert float(grad(f)(3.0)) == 6.0 and ran == ["fwd"]


def test_the_function_is_not_run_when_its_rule_is():
    ran = []

    @tinyjax.custom_jvp
    def f(x):
        ran.append("f")
        return x

    f.defjvp(lambda p, t: (p[0] * 1.0, t[0]))
    grad(f)(1.0)
    assert ran == []
    f(1.0)
    assert ran == ["f"]


WRONG = {
    "no rule": (None, "No VJP defined"),
    "fwd returns one value": ((lambda x: x, lambda r, ct: (ct,)), "must produce a pair"),
    "bwd returns no tuple": ((lambda x: (x, None), lambda r, ct: ct), "must produce a tuple"),
    "bwd returns too many": ((lambda x: (x, None), lambda r, ct: (ct, ct)), "must produce a tuple"),
    "wrong tree": ((lambda x: (x, None), lambda r, ct: ((ct, ct),)), "tree structure"),
    "wrong shape": ((lambda x: (x, None), lambda r, ct: (jnp.ones(3),)), "shapes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_that_does_not_fit_is_named(name):
    rules, message = WRONG[name]

    @tinyjax.custom_vjp
    def my_function(x):
        return x * 1.0

    if rules:
        my_function.defvjp(*rules)
    with pytest.raises((TypeError, ValueError, AttributeError), match=message) as e:
        grad(my_function)(1.0)
    assert "my_function" in str(e.value)


def with_rule(kind, scale):
    """x -> scale * x, which closes over scale, by a rule that knows x only."""
    f = getattr(tinyjax, kind)(lambda x: scale * x)
    if kind == "custom_jvp":
        f.defjvps(lambda dx, value, x: dx)
    else:
        f.defvjp(lambda x: (f(x), None), lambda held, ct: (ct,))
    return f


@pytest.mark.parametrize("argument", ["constant", "active"])
@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
@pytest.mark.parametrize("stage", [lambda f: f, tinyjax.jit], ids=["eager", "jit"])
def test_an_active_capture_raises_and_is_never_zero(stage, kind, argument):
    loss = stage(lambda s: with_rule(kind, s)(2.0 if argument == "constant" else s))
    with pytest.raises(tinyjax.errors.UnexpectedTracerError, match=r"closed-over value \(s\)"):
        tinyjax.grad(loss)(3.0)


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
@pytest.mark.parametrize("stage", [lambda f: f, tinyjax.jit], ids=["eager", "jit"])
def test_a_capture_behind_stop_gradient_is_allowed(stage, kind):
    loss = stage(lambda s: with_rule(kind, tinyjax.lax.stop_gradient(s))(s))
    assert float(tinyjax.grad(loss)(3.0)) == 1.0


@pytest.mark.parametrize("stage", ["eager", "jit", "vmap", "scan", "checkpoint"])
def test_python_numbers_among_residuals_stay_numbers(stage):
    """Users keep shapes and flags there; bwd makes shapes of them and branches on them."""

    def gradient(J):
        @J.custom_vjp
        def pick(x, i):
            return x[i]

        def fwd(x, i):
            return x[i], {"shape": x.shape, "index": i, "double": True, "nothing": None}

        def bwd(held, ct):
            factor = 2.5 if held["double"] else 0.0
            return J.numpy.zeros(held["shape"]).at[held["index"]].set(ct * factor), None

        pick.defvjp(fwd, bwd)
        x, two = J.numpy.arange(4.0), J.numpy.array([1, 3])
        if stage == "vmap":
            return J.jit(J.vmap(J.grad(pick), (None, 0)))(x, two)
        if stage == "scan":
            step = lambda x: J.lax.scan(lambda c, i: (c + pick(x, i), None), 0.0, two)[0]
            return J.grad(step)(x)
        wrap = {"eager": lambda f: f, "jit": J.jit, "checkpoint": J.checkpoint}[stage]
        return J.grad(lambda x: wrap(pick)(x, 1))(x)

    np.testing.assert_array_equal(gradient(tinyjax), gradient(jax))


def test_keyword_only_parameters_keep_their_defaults():
    def results(J):
        @J.custom_jvp
        def power(x, *, n=2):
            return x**n

        power.defjvp(lambda primals, tangents: (primals[0] ** 2, 7 * tangents[0]))
        with pytest.raises(TypeError, match="could not be resolved to positions"):
            power(2.0, n=3)
        return float(power(3.0)), float(J.grad(power)(3.0))

    assert results(tinyjax) == results(jax) == (9.0, 7.0)


def test_a_rule_that_is_not_linear_in_its_tangent_cannot_be_transposed():
    def slope(J):
        f = J.custom_jvp(lambda x: x)
        f.defjvp(lambda primals, tangents: (primals[0], J.numpy.sin(tangents[0])))
        return J.grad(f)(1.0)

    for J in (jax, tinyjax):
        with pytest.raises(NotImplementedError, match="Transpose rule .* 'sin' not implemented"):
            slope(J)


def rule_closing_over(J, w, kind):
    """Functions whose rules, and in one case they themselves, close over `w`."""
    if kind == "custom_jvp":
        f = J.custom_jvp(lambda x: x * 2.0)
        f.defjvp(lambda primals, tangents: (primals[0] * 2.0, tangents[0] * w * 10.0))
        return f
    f = J.custom_vjp(lambda x: x * w if kind == "function" else x * 2.0)
    if kind == "residual":
        f.defvjp(lambda x: (f(x), w * 3.0), lambda res, ct: (ct * res * w,))
    else:
        f.defvjp(lambda x: (f(x), None), lambda res, ct: (ct * w * 10.0,))
    return f


CLOSING = ["custom_jvp", "function", "bwd", "residual"]


@pytest.mark.parametrize("kind", CLOSING)
@pytest.mark.parametrize("order", ["jit", "vmap", "jit.vmap", "vmap.jit", "jit.grad"])
def test_rules_may_close_over_traced_values_that_are_not_differentiated(kind, order):
    """A gradient scaled by an argument of an outer jit, for one: bwd is staged with that as input."""

    def results(J):
        numpy = np.array([0.3, -0.5, 0.8], "f4")
        slope = J.grad(lambda w, x: rule_closing_over(J, w, kind)(x), 1)
        if order == "jit.grad":
            return J.jit(J.grad(lambda w, x: slope(w, x) * x, 1))(2.0, 3.0)
        for name in reversed(order.split(".")):
            slope = getattr(J, name)(slope)
        return slope(numpy, numpy + 1) if "vmap" in order else slope(2.0, 3.0)

    np.testing.assert_allclose(results(tinyjax), results(jax), rtol=1e-6)
