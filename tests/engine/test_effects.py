"""Callbacks happen as often, in the order, and with the values that JAX's do.

A program gets the library and a `Log`; what its callbacks saw is compared with JAX's. XLA starts
callbacks of one step in any order: SHUFFLED programs are compared as multisets, and the order is
tinyjax's own: that of the program's text.
"""

from __future__ import annotations

import io as io_module
from collections import Counter

import jax as oracle
import numpy as np
import pytest

import tinyjax
from tests.oracle import assert_same
from tinyjax.core.ops import Op
from tinyjax.core.uop import toposort
from tinyjax.errors import JaxRuntimeError
from tinyjax.experimental import checkify

# the oracle's eager_io modules are not imported with jax itself
from jax.experimental import io_callback as oracle_io  # isort: skip

x3 = np.arange(3.0, dtype="f4")
PROGRAMS = {}
SHUFFLED = set()


class Log:
    """Callbacks of one library that note what they are called with."""

    def __init__(self, J):
        self.J, self.seen = J, []

    def note(self, tag):
        def callback(*args):
            self.seen.append((tag, *(np.round(np.asarray(a, float), 4).tolist() for a in args)))

        return callback

    def __call__(self, tag, *args, **options):
        self.J.debug.callback(self.note(tag), *args, **options)

    def io(self, tag, x, ordered=True):
        def callback(v):
            self.note(tag)(v)
            return np.asarray(v) * 2

        io = oracle_io if self.J is oracle else tinyjax.experimental.io_callback
        return io(callback, self.J.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=ordered)


def program(f):
    PROGRAMS[f.__name__] = f
    return f


def shuffled(f):
    SHUFFLED.add(f.__name__)
    return program(f)


def step(log):
    def scanned(c, x):
        log("s", c, x)
        return log.J.numpy.sin(c) * x, c + x

    return scanned


# --- jit and control flow -------------------------------------------------------------------------


@program
def jit_of_two_equal_prints_and_an_unused_value(J, log):
    same = log.note("same")

    def f(x):
        J.debug.callback(same, x)
        J.debug.callback(same, x)
        log("unused", J.numpy.sin(x).sum())
        return 1.0

    return J.jit(f)(x3), J.jit(lambda x: log("only", x))(x3)


@program
def nested_jit(J, log):
    g = J.jit(lambda x: (log("g", x), x + 1)[1])

    def f(x):
        log("before", x)
        y = g(g(x))
        log("after", y)
        return y

    return J.jit(f)(x3), g(x3)


@program
def scan(J, log):
    def f(x):
        log("before")
        out = J.lax.scan(step(log), 2.0, x)
        log("after", out[0])
        return out

    return f(x3), J.jit(f)(x3), J.lax.scan(step(log), 2.0, x3, reverse=True)


@program
def scan_with_nothing_but_effects(J, log):
    return J.lax.scan(lambda c, x: (log("s", x), (c, None))[1], None, x3)


@program
def loops(J, log):
    def body(i, v):
        log("i", i, v)
        return v * 2

    return (
        J.lax.fori_loop(0, 3, body, 1.0),
        J.jit(lambda n: J.lax.fori_loop(0, n, body, 1.0))(3),
        J.lax.while_loop(lambda c: c < 5, lambda c: (log("w", c), c + 2)[1], 0),
        J.lax.map(lambda x: (log("m", x), x + 1)[1], x3),
    )


@program
def while_loop_whose_condition_prints(J, log):
    def condition(c):
        log("c", c)
        return c < 5

    def body(c):
        log("w", c)
        return c + 2

    f = lambda x: J.lax.while_loop(condition, body, x)
    return f(0), J.jit(f)(0)


@program
def cond_and_switch(J, log):
    f = lambda p, x: J.lax.cond(
        p, lambda x: (log("t", x), x + 1)[1], lambda x: (log("f", x), x - 1)[1], x
    )
    one = lambda p, x: J.lax.cond(p, lambda x: (log("t", x), x + 1)[1], lambda x: x - 1, x)
    bare = J.jit(lambda p: J.lax.cond(p, lambda: log("t"), lambda: None))
    pick = J.jit(lambda i: J.lax.switch(i, [lambda: log("0"), lambda: log("1"), lambda: None]))
    for i in range(3):
        pick(i)
    bare(True), bare(False)
    return f(True, 1.0), J.jit(f)(False, 2.0), J.jit(one)(True, 2.0), J.jit(one)(False, 2.0)


@program
def nothing_is_run_by_looking(J, log):
    f = lambda x: (log("no", x), x)[1]
    J.eval_shape(f, x3), J.make_jaxpr(f)(x3)
    return J.jit(f).lower(x3).compile()(x3)


# --- vmap -----------------------------------------------------------------------------------------


@program
def vmap(J, log):
    f = lambda x, y: (log("v", x, y), log("const"), x * y)[2]
    return J.vmap(f, (0, None))(x3, 7.0)


@shuffled
def vmap_under_and_over_jit(J, log):
    f = lambda x: (log("v", x), log("w", x * 3), x * 2)[2]
    return J.jit(J.vmap(f))(x3), J.vmap(J.jit(f))(x3)


@program
def vmap_of_vmap(J, log):
    f = lambda x: (log("v", x), log("w", x), x * 2)[2]
    g = lambda a: J.vmap(lambda b: (log("ab", a, b), a * b)[1])(x3)
    return J.vmap(J.vmap(f))(np.arange(6.0).reshape(2, 3)), J.vmap(g)(x3[:2])


@shuffled
def vmap_of_loops(J, log):
    J.vmap(lambda n: J.lax.fori_loop(0, n, lambda i, v: (log("i", i, v), v * 2)[1], 1.0))(
        np.array([1, 3])
    )
    J.vmap(lambda n: J.lax.while_loop(lambda c: c < 5, lambda c: (log("w", c), c + n)[1], 0))(
        np.array([2, 3])
    )
    return J.vmap(lambda c: J.lax.scan(step(log), c, x3))(x3[:2])


@program
def vmap_of_cond_runs_both_branches(J, log):
    f = lambda p, x: J.lax.cond(
        p, lambda x: (log("t", x), x + 1)[1], lambda x: (log("f", x), x - 1)[1], x
    )
    return J.vmap(f)(np.array([True, False]), x3[:2]), J.vmap(f, (None, 0))(True, x3[:2])


# --- derivatives ----------------------------------------------------------------------------------


@program
def grad(J, log):
    f = lambda x: (log("g", x), log("h", x * x), J.numpy.sin(x) ** 2)[2]
    return (
        J.grad(f)(3.0), J.grad(J.jit(f))(3.0), J.jit(J.grad(f))(3.0), J.value_and_grad(f)(3.0),
        J.jvp(f, (3.0,), (1.0,)), J.jvp(J.jit(f), (3.0,), (1.0,)),
    )  # fmt: skip


@program
def second_derivatives(J, log):
    f = lambda x: (log("g", x), x**3)[1]
    return J.grad(J.grad(f))(3.0), J.grad(J.grad(J.jit(f)))(3.0), J.jit(J.grad(J.grad(f)))(3.0)


@program
def python_looks_at_values(J, log):
    g = J.jit(lambda x: (log("g", x), x * x)[1])

    def f(x):
        y = g(x)
        return y * 3 if y > 1 else y

    return J.grad(f)(3.0), J.value_and_grad(f)(0.5)


@program
def grad_of_loops(J, log):
    f = lambda x: J.lax.scan(step(log), x, x3 + 1)[0]
    g = lambda x: J.lax.fori_loop(0, 3, lambda i, v: (log("i", i, v), v * v)[1], x)
    h = lambda x: J.lax.while_loop(lambda c: c < 50, lambda c: (log("w", c), c * x)[1], x)
    return (
        J.grad(f)(2.0), J.jit(J.grad(f))(2.0), J.jit(J.value_and_grad(g))(1.5),
        J.jvp(h, (3.0,), (1.0,)), J.jit(lambda x: J.jvp(h, (x,), (1.0,)))(3.0),
    )  # fmt: skip


@program
def grad_of_cond(J, log):
    f = lambda p, x: J.lax.cond(
        p, lambda x: (log("t", x), J.numpy.sin(x))[1], lambda x: (log("f", x), x - 1)[1], x
    )
    return J.grad(f, 1)(True, 1.0), J.jit(J.grad(f, 1))(True, 2.0), J.jit(J.grad(f, 1))(False, 2.0)


@program
def vjp_and_linearize(J, log):
    f = lambda x: (log("v", x), J.numpy.sin(x))[1]
    _, back = J.vjp(f, 1.0)
    log("between")
    _, forward = J.linearize(f, 1.0)
    return back(1.0), back(2.0), forward(2.0)


@shuffled
def jacobians(J, log):
    f = lambda x: (log("j", x), J.numpy.sin(x) * x.sum())[1]
    return J.jacrev(f)(x3), J.jacfwd(f)(x3), J.vmap(J.grad(lambda x: (log("p", x), x * x)[1]))(x3)


@program
def checkpoint_repeats_prints(J, log):
    f = J.checkpoint(lambda x: (log("k", x), J.numpy.sin(J.numpy.sin(x)))[1])
    saving = J.checkpoint(
        lambda x: (log("all", x), J.numpy.sin(J.numpy.sin(x)))[1],
        policy=J.checkpoint_policies.everything_saveable,
    )
    const = J.checkpoint(lambda x: (log("const"), J.numpy.sin(J.numpy.sin(x)))[1])
    return (
        f(3.0), J.grad(f)(3.0), J.jit(J.grad(f))(3.0), J.jit(J.grad(saving))(3.0),
        J.jvp(f, (3.0,), (1.0,)), J.jit(lambda x: J.jvp(f, (x,), (1.0,)))(3.0),
        J.jit(J.grad(const))(3.0),
    )  # fmt: skip


@program
def checkpointed_scan(J, log):
    f = lambda x: J.lax.scan(J.checkpoint(step(log)), x, x3 + 1)[0]
    return J.grad(f)(2.0), J.jit(J.grad(f))(2.0)


@shuffled
def checkpoints_in_a_row(J, log):
    b = lambda tag: J.checkpoint(lambda x: (log(tag, x), J.numpy.sin(J.numpy.sin(x)))[1])
    f = lambda x: J.numpy.sin(b("q")(b("p")(x * 2)))
    return J.jit(J.grad(f))(3.0), J.vmap(J.grad(b("v")))(x3)


# --- custom rules ---------------------------------------------------------------------------------


def with_vjp(J, log, primal=True):
    @J.custom_vjp
    def f(x):
        if primal:
            log("primal", x)
        return J.numpy.sin(x)

    def fwd(x):
        log("fwd", x)
        return J.numpy.sin(x), x

    def bwd(x, ct):
        log("bwd", x, ct)
        log("residual", x)
        return (J.numpy.cos(x) * ct,)

    f.defvjp(fwd, bwd)
    return f


@shuffled
def custom_vjp(J, log):
    f = with_vjp(J, log)
    _, back = J.vjp(f, 1.0)
    log("between")
    return (
        f(1.0), J.jit(f)(1.0), J.grad(f)(1.0), J.jit(J.grad(f))(1.0), J.grad(J.jit(f))(1.0),
        back(1.0), back(2.0),
    )  # fmt: skip


@shuffled
def custom_vjp_among_prints(J, log):
    f = with_vjp(J, log)

    def g(x):
        log("A", x)
        y = f(x)
        log("C", y)
        return y * y

    return J.grad(g)(1.0), J.jit(J.grad(g))(1.0)


@pytest.mark.parametrize("primal", [True, False])
def test_custom_vjp_in_loops(primal):
    def run(J, log):
        f = with_vjp(J, log, primal)
        loop = lambda x: J.lax.scan(lambda c, _: (f(c) * 2, None), x, None, length=2)[0]
        branch = lambda x: J.lax.cond(x > 0, lambda x: f(x) * 2, lambda x: x, x)
        return J.jit(J.grad(loop))(1.0), J.grad(loop)(1.0), J.jit(J.grad(branch))(1.0)

    agree(run)


@shuffled
def custom_vjp_under_vmap(J, log):
    return J.vmap(J.grad(with_vjp(J, log)))(x3), J.jit(J.vmap(J.grad(with_vjp(J, log))))(x3)


@program
def custom_jvp(J, log):
    @J.custom_jvp
    def f(x):
        log("primal", x)
        return J.numpy.sin(x)

    @f.defjvp
    def rule(primals, tangents):
        log("rule", primals[0])
        return J.numpy.sin(primals[0]), J.numpy.cos(primals[0]) * tangents[0]

    forward = lambda x: J.jvp(f, (x,), (2.0,))
    return f(1.0), J.jit(f)(1.0), forward(1.0), J.jit(forward)(1.0), J.grad(f)(1.0)


@program
def custom_jvp_that_prints_tangents(J, log):
    @J.custom_jvp
    def f(x):
        return J.numpy.sin(x)

    @f.defjvp
    def rule(primals, tangents):
        log("rule", primals[0], tangents[0])
        return J.numpy.sin(primals[0]), J.numpy.cos(primals[0]) * tangents[0]

    forward = lambda x: J.jvp(f, (x,), (2.0,))
    return forward(1.0), J.jit(forward)(1.0)


# --- callbacks with results -----------------------------------------------------------------------


@program
def io_callback(J, log):
    chain = lambda x: log.io("b", log.io("a", x))
    unused = lambda x: (log.io("a", x, False), log.io("b", x, False), x)[2]
    return log.io("io", J.numpy.asarray(x3)), J.jit(chain)(x3), J.jit(unused)(x3)


@program
def io_callback_in_loops(J, log):
    scan = lambda x: J.lax.scan(lambda c, v: (log.io("s", c), c + v), 1.0, x)
    loop = lambda x: J.lax.while_loop(lambda c: c < 9, lambda c: log.io("w", c), x)
    return (
        J.jit(scan)(x3),
        J.jit(loop)(np.float32(1.0)),
        J.vmap(lambda x: log.io("v", x, False))(x3),
    )


@program
def io_callback_of_inactive_values(J, log):
    f = lambda x: J.numpy.sin(x) * log.io("g", J.numpy.float32(2.0))
    return J.grad(f)(1.0), J.jit(J.grad(f))(1.0), J.grad(J.jit(f))(1.0)


@program
def ordered_debug_callbacks(J, log):
    J.jit(lambda x: (log("v", x, ordered=True), log("w", x, ordered=True)))(x3)
    J.vmap(lambda x: log("b", x, ordered=True))(x3)


def seen(J, run):
    log = Log(J)
    out = run(J, log)
    J.effects_barrier()
    return log.seen, out


def agree(run, in_order=True):
    (ours, mine), (theirs, other) = seen(tinyjax, run), seen(oracle, run)
    if in_order:
        assert ours == theirs
    else:
        assert Counter(map(repr, ours)) == Counter(map(repr, theirs))
    assert_same(mine, other)


# --- callbacks whose results are needed again, in derivatives outside of jit --------------------


def told(J, log, tag, x):
    return log.io(tag, J.lax.stop_gradient(x))


def two(J):
    return J.numpy.float32(2), J.numpy.float32(1)


def looped(J, log):
    """The number of steps depends on what callbacks return."""

    def body(c):
        i, y = c
        k = told(J, log, "w", y)
        return i + k, y * 2 + k

    return lambda x: J.lax.while_loop(lambda c: c[0] < 20, body, (J.numpy.float32(0), x))[1]


def looped_in_loops(J, log):
    """Steps of an inner loop after steps of an outer one."""

    def outer(y, i):
        body = lambda c: (c[0] + 1, c[1] / 2 + y + told(J, log, "in", c[1]))
        y = J.lax.while_loop(lambda c: c[0] <= i, body, (0, y))[1]
        return J.lax.cond(i > 1, lambda y: y + told(J, log, "c", y), lambda y: y, y), y

    def f(x):
        y, ys = J.lax.scan(outer, x, J.numpy.arange(3))
        return J.lax.fori_loop(0, 2, lambda i, v: v + told(J, log, "f", v), y) + ys.sum()

    return f


def by_rule(J, log, kind):
    f = getattr(J, kind)(lambda x: x * told(J, log, "f", x))

    def fwd(x):
        k = told(J, log, "fwd", x)
        return x * k, (x, k)

    def rule(primals, tangents):
        k = told(J, log, "rule", primals[0])
        return primals[0] * k, tangents[0] * k * 10

    f.defjvp(rule) if kind == "custom_jvp" else f.defvjp(fwd, lambda r, ct: (ct * r[1] * 10,))
    return lambda x: f(x) * x


@program
def io_in_while_loops_that_are_differentiated_forwards(J, log):
    f, g = looped(J, log), looped_in_loops(J, log)
    x, t = two(J)
    both = lambda h: (J.jvp(h, (x,), (t,)), J.jvp(J.jit(h), (x,), (t,)))
    under = lambda h: J.jit(lambda x: J.jvp(J.jit(h), (x,), (x,)))(x)
    twice = J.jvp(lambda y: J.jvp(g, (y,), (t,)), (x,), (t,))
    return both(f), both(g), under(f), under(g), twice


@program
def io_in_a_while_loop_beside_what_is_differentiated(J, log):
    f = looped(J, log)
    g = lambda x: f(J.lax.stop_gradient(x)) * x * x
    x = J.numpy.float32(2)
    return J.grad(g)(x), J.grad(J.jit(g))(x), J.grad(J.grad(g))(x)


@program
def io_in_a_while_loop_in_a_checkpoint(J, log):
    x, t = two(J)
    f = J.checkpoint(looped(J, log))
    return J.jvp(f, (x,), (t,)), J.jit(lambda x: J.jvp(f, (x,), (x,)))(x)


@program
def io_in_a_reverse_rule_of_a_jitted_function(J, log):
    f = by_rule(J, log, "custom_vjp")
    scanned = lambda x: J.lax.scan(lambda c, a: (f(c) * a, c), x, J.numpy.arange(1.0, 3.0))[0]
    chosen = lambda x: J.lax.cond(x > 0, f, lambda x: x, x)
    g = J.grad
    back = J.vjp(J.jit(f), J.numpy.float32(2))[1]
    more = back(J.numpy.float32(1)), back(J.numpy.float32(2))
    x = J.numpy.float32(2)
    return [g(h)(x) for h in (J.jit(f), scanned, chosen, g(J.jit(f)))], more


@program
def io_in_a_forward_rule_of_a_jitted_function(J, log):
    f = by_rule(J, log, "custom_jvp")
    x, t = two(J)
    scanned = lambda x: J.lax.scan(lambda c, a: (f(c) * a, c), x, J.numpy.arange(1.0, 3.0))[0]
    repeated = lambda x: J.lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, f(c[1])), (0, x)
    )[1]
    reverse = [J.grad(h)(x) for h in (J.jit(f), scanned)]
    return reverse, [J.jvp(h, (x,), (t,)) for h in (J.jit(f), scanned, repeated)]


def squared(J, log):
    """x*x with a jvp rule that logs both of what it gets."""
    f = J.custom_jvp(lambda x: x * x)

    @f.defjvp
    def rule(primals, tangents):
        log("rule", primals[0], tangents[0])
        return primals[0] ** 2, 2 * primals[0] * tangents[0]

    return f


@program
def effects_that_see_tangents(J, log):
    """They happen where there are tangents: in reverse mode there are none."""
    f = squared(J, log)
    x, _ = two(J)
    t = J.numpy.float32(3)
    scanned = lambda x: J.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]
    repeated = lambda x: J.lax.while_loop(lambda c: c < 20, f, x)
    forms = (f, J.jit(f), scanned, J.jit(scanned), repeated)
    forward = [J.jvp(h, (x,), (t,)) for h in forms]
    staged = [J.jit(lambda x, h=h: J.jvp(h, (x,), (t,)))(x) for h in forms]
    return forward, staged, [(J.grad(h)(x), J.jit(J.grad(h))(x)) for h in forms[:4]]


@program
def a_print_in_a_while_loop_of_a_jitted_function(J, log):
    def f(x):
        def body(c):
            log("w", c)
            return c * x

        return J.lax.while_loop(lambda c: c < 20, body, x) * 2

    x, t = two(J)
    under = J.jit(lambda x: J.jvp(J.jit(f), (x,), (x,)))(x)
    return J.jvp(J.jit(f), (x,), (t,)), under, J.jit(lambda x: J.linearize(f, x)[0])(x)


@program
def mutable_arrays_printed_in_branches_of_loops(J, log):
    r = J.new_ref(J.numpy.zeros(()))

    def step(c, x):
        def add(c):
            r[...] += x
            log("r", r[...])
            return c * 2

        return J.lax.cond(x > 0.5, add, lambda c: c, c), r[...]

    f = lambda x: J.lax.scan(step, x, J.numpy.asarray(x3))
    return f(1.0), r[...], J.jit(f)(1.0), r[...], J.jvp(f, (1.0,), (1.0,)), r[...]


def of_ones(J, f, transform):
    def g(x):
        y, derived = transform(f, x)
        slope = derived(J.numpy.ones_like(x))
        return y + (slope[0] if isinstance(slope, tuple) else slope)

    return g


@program
def linearize_of_a_checkpoint_in_a_checkpoint(J, log):
    inner = J.checkpoint(lambda x: J.numpy.sin((log("k", x), x)[1]))
    f = of_ones(J, J.checkpoint(lambda x: inner(x) * x), J.linearize)
    x, _ = two(J)
    return f(x), J.jit(f)(x)


@program
def effects_that_see_tangents_when_a_linear_part_is_applied(J, log):
    f = squared(J, log)
    x, _ = two(J)
    scanned = lambda x: J.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]
    chosen = lambda x: J.lax.cond(x > 0, f, lambda x: x, x)
    return [J.jit(of_ones(J, g, J.linearize))(x) for g in (f, J.jit(f), scanned, chosen)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_effects_are_jaxs(name):
    agree(PROGRAMS[name], name not in SHUFFLED)


# --- what tinyjax promises beyond -----------------------------------------------------------------


def test_effects_of_examples_come_in_order():
    f = lambda J, log: J.jit(J.vmap(lambda x: (log("v", x), log("w", x))))(x3)
    assert seen(tinyjax, f)[0] == [(t, v) for t in "vw" for v in (0.0, 1.0, 2.0)]


def test_a_while_loop_under_vmap_checks_its_condition_once_per_step():
    def f(J, log):
        condition = lambda c: (log("c", c), c < 5)[1]
        return J.vmap(lambda n: J.lax.while_loop(condition, lambda c: c + n, 0))(np.array([2, 3]))

    found, out = seen(tinyjax, f)
    assert [v for _, v in found] == [0, 2, 3, 4, 6, 6, 6] and out.tolist() == [6, 6]


def test_a_condition_under_vmap_is_asked_about_the_results_of_examples_that_are_done():
    def f(n):
        def condition(c):
            checkify.check(c < n + 1, "one step too many: {c}", c=c)
            return c < n

        return tinyjax.lax.while_loop(condition, lambda c: c + 1, 0)

    limits = np.array([1, 3])
    for g in (tinyjax.vmap(f), tinyjax.jit(tinyjax.vmap(f)), tinyjax.vmap(tinyjax.jit(f))):
        assert g(limits).tolist() == [1, 3]
    error, out = tinyjax.vmap(checkify.checkify(f))(limits)
    assert error.get() is None and out.tolist() == [1, 3]


def test_a_loop_whose_condition_has_effects_works_in_place():
    def loop(x):
        def condition(carry):
            tinyjax.debug.callback(lambda i: None, carry[0])
            return carry[0] < 5

        return tinyjax.lax.while_loop(condition, lambda c: (c[0] + 1, c[1].at[c[0]].set(7)), (0, x))

    lowered = tinyjax.jit(loop, donate_argnums=0).lower(tinyjax.numpy.zeros(1000))
    assert "main.while: scatter f32[1000] in place in in0" in lowered.cost["decisions"]


def test_a_precompiled_function_has_its_effects_at_each_call():
    def f(J, log):
        g = J.function(lambda x: (log("g", x), J.numpy.sin(x))[1], precompile=True)
        h = J.jit(lambda x: g(g(x)) + g(x))
        return h(1.0), J.jit(J.grad(lambda x: g(g(x))))(1.0)

    found, _ = seen(tinyjax, f)
    s = round(float(np.sin(1.0)), 4)
    assert found == [("g", 1.0), ("g", s), ("g", 1.0), ("g", 1.0), ("g", s)]


def test_two_traces_with_prints_are_one_body():
    def f(x):
        tinyjax.debug.print("x = {}", x)
        return x * 2

    def g(x):
        tinyjax.debug.print("x = {}", x)
        return x * 2

    first, second = (tinyjax.jit(h).trace(x3).body for h in (f, g))
    assert first is second


def test_programs_without_effects_have_no_tokens():
    body = tinyjax.jit(lambda x: tinyjax.lax.scan(lambda c, v: (c + v, c), 0.0, x)).trace(x3).body
    assert str(tinyjax.make_jaxpr(lambda x: x + 1)(x3)).count("token") == 0
    nodes = toposort([body], bodies=True)
    assert not any(n.op is Op.PARAM and n.aval.str_short() == "token" for n in nodes)


def test_the_text_of_effects():
    def f(x):
        tinyjax.debug.print("x = {}", x)
        tinyjax.debug.print("x = {}", x)
        return tinyjax.lax.scan(
            lambda c, v: (tinyjax.debug.print("{}", c), (c + v, None))[1], np.float32(0), x
        )[0]

    assert (
        str(tinyjax.make_jaxpr(f)(x3))
        == """\
{ lambda a:f32[3] b:token. let
    c:token = callback[callback=print 'x = {}' kind=debug] a b
    d:token = callback[callback=print 'x = {}' kind=debug] a c
    e:f32[] f:token = scan[
      body={ lambda a:f32[] b:token c:f32[]. let
          d:f32[] = add a c
          e:token = callback[callback=print '{}' kind=debug] a b
        in (d, e) }
      num_consts=0
      num_carry=2
      length=3
    ] 0.0:f32[] d a
  in (e, f) }"""
    )


def test_a_derivative_keeps_the_print_of_the_primal():
    def f(x):
        tinyjax.debug.print("{}", x)
        return tinyjax.numpy.sin(x)

    assert (
        str(tinyjax.make_jaxpr(tinyjax.grad(f))(np.float32(1)))
        == """\
{ lambda a:f32[] b:token. let
    c:f32[] = cos a
    d:token = callback[callback=print '{}' kind=debug] a b
  in (c, d) }"""
    )


# --- errors ---------------------------------------------------------------------------------------


def io(x, ordered=False):
    return tinyjax.experimental.io_callback(
        lambda v: v, tinyjax.ShapeDtypeStruct((), np.float32), x, ordered=ordered
    )


@pytest.mark.parametrize(
    "run, error, text",
    [
        (lambda: tinyjax.grad(io)(1.0), ValueError, "IO callbacks do not support JVP"),
        (lambda: tinyjax.jit(tinyjax.grad(io))(1.0), ValueError, "IO callbacks do not support JVP"),
        (lambda: tinyjax.vmap(lambda x: io(x, True))(x3), ValueError, "Cannot `vmap` ordered IO"),
        (
            lambda: tinyjax.vmap(
                lambda p: tinyjax.lax.cond(p, lambda: io(1.0, True), lambda: 2.0 * np.float32(1))
            )(np.array([True, False])),
            NotImplementedError,
            "IO effect not supported in vmap-of-cond",
        ),
        (lambda: tinyjax.debug.print("x", 1.0), ValueError, "Unused positional arguments"),
        (lambda: tinyjax.debug.print("x", x=1.0), ValueError, "Unused keyword arguments"),
        (lambda: tinyjax.debug.print("{y}"), KeyError, "y"),
    ],
)
def test_errors(run, error, text):
    with pytest.raises(error, match=text):
        run()


@pytest.mark.parametrize("wrap", [lambda f: f, tinyjax.jit, tinyjax.vmap, tinyjax.grad])
def test_what_a_callback_raises_reaches_the_caller_and_leaves_no_state(wrap):
    fail = [True]

    def callback(x):
        if fail[0]:
            raise KeyError("boom")

    def f(x):
        tinyjax.debug.callback(callback, x)
        return x * x

    x = x3 if wrap is tinyjax.vmap else 2.0
    for _ in range(2):
        with pytest.raises(KeyError, match="boom"):
            wrap(f)(x)
    fail[0] = False
    assert_same(wrap(f)(x), wrap(lambda x: x * x)(x))


def test_an_exception_ends_a_loop():
    steps = []

    def callback(i):
        steps.append(int(i))
        if i == 2:
            raise JaxRuntimeError("enough")

    @tinyjax.jit
    def f(x):
        return tinyjax.lax.fori_loop(
            0, 5, lambda i, v: (tinyjax.debug.callback(callback, i), v + 1)[1], x
        )

    with pytest.raises(JaxRuntimeError, match="enough"):
        f(0.0)
    assert steps == [0, 1, 2]


# --- printing -------------------------------------------------------------------------------------

PRINTS = [
    lambda J, x: J.debug.print("x={x} {:.3f} {y[a]}", x.sum(), x=x, y={"a": x[0]}),
    lambda J, x: J.debug.print("{} {} {} {}", 3, 2.5, True, "s"),
    lambda J, x: J.debug.print("{0} {0!r} {1:>5}|", x.astype("bfloat16"), J.numpy.int32(3)),
    lambda J, x: J.debug.print("{} {}", None, {"a": x, "b": (x, 1)}["a"]),
    lambda J, x: J.debug.print("{x.shape}", x=x),
]


@pytest.mark.parametrize("wrap", ["eager", "jit"])
@pytest.mark.parametrize("case", range(len(PRINTS)))
def test_printed_text_is_jaxs(case, wrap, capsys):
    texts = []
    for J in (tinyjax, oracle):
        f = lambda x, J=J: PRINTS[case](J, x)
        (J.jit(f) if wrap == "jit" else f)(J.numpy.asarray(x3))
        J.effects_barrier()
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[0]


def test_print_options_are_those_of_the_call(capsys):
    with np.printoptions(precision=2):
        f = tinyjax.jit(lambda x: tinyjax.debug.print("{}", x / 3))
        f(x3)
    assert capsys.readouterr().out == "[0.   0.33 0.67]\n"


def test_typed_keys_reach_callbacks_as_keys():
    found = []
    f = tinyjax.jit(lambda k: tinyjax.debug.callback(lambda k: found.append(k), k))
    f(tinyjax.random.key(3))
    assert tinyjax.random.key_data(found[0]).tolist() == [0, 3]


def test_leaves_that_are_no_arrays_are_passed_as_they_are():
    found = []
    mark = object()
    f = tinyjax.jit(
        lambda x: tinyjax.debug.callback(lambda *a, **k: found.append((a, k)), x, mark, n="a")
    )
    f(1.0)
    assert found[0][0][1] is mark and found[0][1] == {"n": "a"}


# --- breakpoints ----------------------------------------------------------------------------------


def stopped(commands, wrap):
    """What the prompt says, and the function's result."""

    def inner(x):
        y = tinyjax.numpy.sin(x)
        scale = 3
        tinyjax.debug.breakpoint(stdin=io_module.StringIO(commands), stdout=out)
        return y * scale

    def outer(x):
        z = x + 1
        return inner(z)

    out = io_module.StringIO()
    return wrap(outer)(tinyjax.numpy.float32(1)), out.getvalue()


@pytest.mark.parametrize("wrap", [lambda f: f, tinyjax.jit, tinyjax.grad])
def test_a_breakpoint_shows_values_of_the_running_program(wrap):
    _, said = stopped("p y\nscale\np nothing\nu\np z\nd\nd\nl\nbt\nc\n", wrap)
    assert "Entering jdb:" in said and "tinyjax.debug.breakpoint(" in said
    lines = said.splitlines()
    assert "(jdb) Array(0.9092974, dtype=float32)" in lines and "(jdb) 3" in lines
    assert "(jdb) *** NameError: name 'nothing' is not defined" in lines
    assert "(jdb) Array(2., dtype=float32)" in lines
    assert "(jdb) *** no further frame" in lines
    assert sum("in outer" in line or ") outer" in line for line in lines) == 2  # u, bt


def test_quitting_ends_the_program():
    with pytest.raises(SystemExit):
        stopped("q\n", tinyjax.jit)


def test_effects_do_not_hinder_donation():
    f = tinyjax.jit(
        lambda x: (tinyjax.debug.callback(lambda v: None, x), x + 1)[1], donate_argnums=0
    )
    x = tinyjax.numpy.asarray(x3)
    f(x)
    assert x.is_deleted()


# --- compositions ---------------------------------------------------------------------------------


def repeats(J, log):
    f = J.checkpoint(lambda x: (log("k", x), J.numpy.sin(J.numpy.sin(x)))[1])
    tangent = lambda x: J.jvp(f, (x,), (J.numpy.ones_like(x),))[1]
    return J.grad(J.grad(f))(0.5), J.grad(tangent)(0.5), J.jit(J.grad(tangent))(0.5)


def branch_twice(J, log):
    f = lambda x: J.lax.cond(
        x > 1,
        lambda x: (log("t", x), J.numpy.sin(x))[1],
        lambda x: (log("f", x), J.numpy.cos(x))[1],
        x,
    )
    tangent = lambda x: J.jvp(f, (x,), (J.numpy.ones_like(x),))[1]
    return J.grad(J.jit(tangent))(0.5), J.vmap(J.jit(tangent))(x3), J.grad(J.grad(f))(0.5)


def test_linearizing_a_while_loop_keeps_what_its_callbacks_returned():
    """They are called again at each application, as in JAX, but the derivative is that of the program
    that ran. Under jit nothing can be kept."""

    def case(J, log, wrap=lambda f: f):
        calls = iter(range(2, 100))

        def told(v):
            log.note("w")(v)
            return np.float32(next(calls))

        def body(c):
            i, y = c
            io = oracle_io if J is oracle else J.experimental.io_callback
            k = io(told, J.ShapeDtypeStruct((), np.float32), J.lax.stop_gradient(y))
            return i + 1, y * k

        f = lambda x: J.lax.while_loop(lambda c: c[0] < 3, body, (0, x))[1]

        def both(x):
            y, linear = J.linearize(f, x)
            return y, linear(J.numpy.ones_like(x))

        return wrap(both)(J.numpy.float32(1))

    (calls, (y, slope)), (want, _) = (seen(J, case) for J in (tinyjax, oracle))
    assert (y, slope) == (24, 24) and len(calls) == len(want) == 6 and calls[:3] == want[:3]
    (calls, out), (want, other) = (
        seen(J, lambda J, log: case(J, log, J.jit)) for J in (tinyjax, oracle)
    )
    assert calls == want and [*map(float, out)] == [*map(float, other)] == [24, 5 * 6 * 7]


METHODS = ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized"]


@pytest.mark.parametrize("method", METHODS)
def test_vmap_of_a_pure_callback_calls_it_as_its_method_says(method):
    def case(J):
        shapes = []

        def host(x, y):
            shapes.append((np.shape(x), np.shape(y)))
            return np.asarray(x) * (np.asarray(y) if np.ndim(y) else 2)

        spec = J.ShapeDtypeStruct((), np.float32)
        f = lambda x: J.pure_callback(host, spec, x, J.numpy.float32(2), vmap_method=method)
        out = J.vmap(f)(x3), J.jit(J.vmap(J.jit(f)))(x3)
        return out, sorted(map(str, shapes))

    (ours, seen), (theirs, want) = case(tinyjax), case(oracle)
    assert_same(ours, theirs)
    assert seen == want


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: lambda x: tinyjax.jit(f)(x)])
def test_vmap_of_a_pure_callback_without_method_says_what_to_do(wrap):
    spec = tinyjax.ShapeDtypeStruct((), np.float32)
    f = lambda x: tinyjax.pure_callback(lambda v: np.asarray(v) * 2, spec, x)
    assert tinyjax.vmap(lambda x: f(np.float32(2)) + x)(x3).tolist() == [4, 5, 6]
    with pytest.raises(NotImplementedError, match='Pass vmap_method="sequential"') as caught:
        tinyjax.vmap(wrap(f))(x3)
    assert "Got vmap_method=None" in str(caught.value) and "test_effects.py" in str(caught.value)


@pytest.mark.parametrize("run", [repeats, branch_twice])
def test_derivatives_of_derivatives(run):
    agree(run, in_order=False)


# --- linear parts: a table of orders --------------------------------------------------------------

KINDS = {
    "debug": lambda J, log, x: (log("e", x), x)[1],
    "ordered": lambda J, log, x: (log("e", x, ordered=True), x)[1],
    "io": lambda J, log, x: x + log.io("e", J.lax.stop_gradient(x), False),
    "ordered io": lambda J, log, x: x + log.io("e", J.lax.stop_gradient(x)),
    "io of a differentiated value": lambda J, log, x: x + log.io("e", x, False),
}
INSIDE = {
    "jit": lambda J, f: J.jit(lambda x: f(x) * f(x * 2)),
    "scan": lambda J, f: lambda x: J.lax.scan(lambda c, _: (f(c), c), x, None, length=2)[0],
    "while": lambda J, f: lambda x: J.lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, f(c[1]) * x), (0, x)
    )[1],
    "while in cond": lambda J, f: lambda x: J.lax.cond(
        x > 0, INSIDE["while"](J, f), lambda x: x, x
    ),
    "cond": lambda J, f: lambda x: J.lax.cond(x > 1, lambda x: x, f, x),
    "checkpoint": lambda J, f: J.checkpoint(f),
    "checkpoint in scan": lambda J, f: INSIDE["scan"](J, J.checkpoint(f)),
}  # fmt: skip


ORDERS = {
    "linearize": lambda J, f: of_ones(J, f, J.linearize),
    "jit of linearize": lambda J, f: J.jit(of_ones(J, f, J.linearize)),
    "linearize of jit": lambda J, f: of_ones(J, J.jit(f), J.linearize),
    "value of linearize in jit": lambda J, f: J.jit(lambda x: J.linearize(f, x)[0]),
    "value of vjp in jit": lambda J, f: J.jit(lambda x: J.vjp(f, x)[0]),
    "vjp": lambda J, f: of_ones(J, f, J.vjp),
    "jit of grad": lambda J, f: J.jit(J.grad(f)),
    "grad of the value of linearize": lambda J, f: J.grad(lambda x: J.linearize(f, x)[0]),
    "linearize of vmap": lambda J, f: of_ones(
        J, lambda x: J.vmap(f)(x * np.array([1, 2], "f4")).sum(), J.linearize
    ),
}  # fmt: skip


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("kind", KINDS)
def test_orders_of_linear_parts(kind, inside):
    """Values, calls and errors are JAX's. Beyond it: io_callback in a checkpoint."""
    for name, order in ORDERS.items():
        found = []
        for J in (tinyjax, oracle):
            log = Log(J)
            effect = lambda x, J=J, log=log: J.numpy.sin(KINDS[kind](J, log, x))
            try:
                out = order(J, INSIDE[inside](J, effect))(np.float32(0.8))
                J.effects_barrier()
                found.append((out, log.seen))
            except Exception as error:
                found.append(error)
        ours, theirs = found
        if isinstance(theirs, Exception):
            if "partial-eval of `checkpoint`" not in str(theirs):
                assert isinstance(ours, type(theirs)), (name, ours, theirs)
            continue
        assert not isinstance(ours, Exception), (name, ours)
        assert_same(ours[0], theirs[0], weak=False)
        if kind.startswith("ordered"):
            assert ours[1] == theirs[1], name
        else:
            assert Counter(map(repr, ours[1])) == Counter(map(repr, theirs[1])), name


@pytest.mark.parametrize("branch", [False, True])
def test_io_of_examples_that_do_not_ask_for_it_is_refused(branch):
    """All branches run for all examples, and a loop until the last is done."""
    for J in (tinyjax, oracle):
        log = Log(J)
        call = lambda x, J=J, log=log: log.io("io", x, False)
        loop = lambda x, J=J: J.lax.while_loop(lambda c: c < 9, lambda c: call(c) + c, x)
        choice = lambda x, J=J: J.lax.cond(x > 1, call, lambda x: x, x)
        with pytest.raises(Exception, match="IO effects? not supported in"):
            J.vmap(choice if branch else loop)(J.numpy.asarray(x3) + 1)
        assert not log.seen


@pytest.mark.parametrize("around", ["jit", "scan", "cond"])
@pytest.mark.parametrize("derive", ["grad", "vjp"])
def test_what_effects_need_is_computed_once(around, derive):
    """Counted by a pure callback, which runs as often as its value is computed."""
    J, calls, seen = tinyjax, [], []
    spec = J.ShapeDtypeStruct((), np.float32)
    sin = J.custom_jvp(
        lambda x: J.pure_callback(lambda v: (calls.append(1), np.sin(v))[1], spec, x)
    )
    sin.defjvp(lambda p, t: (sin(p[0]), J.numpy.cos(p[0]) * t[0]))

    def f(x):
        y = sin(x) * 2
        J.debug.callback(lambda v: seen.append(float(v)), y)
        return J.numpy.exp(y)

    g = INSIDE[around](J, f) if around != "jit" else J.jit(f)
    x = np.float32(0.5)
    got = J.grad(g)(x) if derive == "grad" else J.vjp(g, x)[1](np.float32(1))[0]
    assert len(calls) == len(seen) == (2 if around == "scan" else 1)
    assert_same(got, J.jit(J.grad(g))(x), weak=False)


def test_a_backward_rule_may_look_at_its_cotangents():
    def case(J, derive):
        seen = []
        f = J.custom_vjp(lambda x: x * x)

        def bwd(x, ct):
            seen.append(float(ct))
            return (ct * 2 * x if ct > 0 else ct * 0,)

        f.defvjp(lambda x: (x * x, x), bwd)
        return derive(J, f), seen

    for derive in (
        lambda J, f: J.grad(lambda x: -3 * f(x) + f(f(x)))(2.0),
        lambda J, f: [J.vjp(f, np.float32(2))[1](np.float32(v))[0] for v in (1, -2)],
        lambda J, f: J.grad(J.grad(f))(2.0),
    ):
        (ours, seen), (theirs, want) = (case(J, derive) for J in (tinyjax, oracle))
        assert seen == want
        assert_same(ours, theirs, weak=False)


# --- the forms of debug.print ---------------------------------------------------------------------


def test_options_may_be_given_apart(capsys):
    found = []
    for J in (tinyjax, oracle):
        seen = []

        def f(x, J=J, seen=seen):
            J.debug.print(ordered=True)("{x} {}", 1, x=x)
            J.debug.callback(ordered=True)(lambda v, k: seen.append((float(v), int(k))), x, k=2)
            J.debug.print("a", x, 2, skip_format_check=True, ordered=True)

        J.jit(f)(np.float32(1))
        J.effects_barrier()
        found.append((capsys.readouterr().out, seen))
    assert found[0] == found[1]
    for wrong in (lambda d: d.callback(1.0, 2), lambda d: d.callback(x=1), lambda d: d.log(x=1)):
        for J in (tinyjax, oracle):
            with pytest.raises(TypeError, match="must be callable|two-call form"):
                wrong(J.debug)


def test_a_log_names_the_line(caplog):
    with caplog.at_level("INFO", logger="tinyjax.debug"):
        tinyjax.jit(lambda x: tinyjax.debug.log("x = {}", x))(np.float32(1))
    (record,) = caplog.records
    assert record.getMessage() == "x = 1.0" and record.filename == "test_effects.py"
    assert record.lineno == test_a_log_names_the_line.__code__.co_firstlineno + 2


def printing_rule(J, log):
    """sin, whose forward rule notes what it is given."""
    f = J.custom_jvp(lambda x: (log("f", x, ordered=True), J.numpy.sin(x))[1])

    @f.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        log("primal", x, ordered=True)
        log("tangent", t, ordered=True)
        return J.numpy.sin(x), J.numpy.cos(x) * t

    return f


AROUND_RULES = {
    "checkpoint": lambda J, f: J.checkpoint(f),
    "while": lambda J, f: (
        lambda x: J.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]
    ),
}


@pytest.mark.parametrize("around", AROUND_RULES)
@pytest.mark.parametrize("jit", [False, True])
def test_a_rule_that_prints_tangents_prints_what_jax_prints(around, jit):
    """One after the other, in an order of its own; what is cached for one mode serves no other."""

    def seen(J):
        log = Log(J)
        f = AROUND_RULES[around](J, printing_rule(J, log))
        modes = {
            "jvp": lambda x: J.jvp(f, (x,), (1.0,)),
            "linearize": lambda x: J.linearize(f, x)[1](2.0),
        }
        if around == "checkpoint":
            modes = {"grad": J.grad(f), **modes, "again": J.grad(f)}
        found = {}
        for name, mode in modes.items():
            value = (J.jit(mode) if jit else mode)(0.5)
            J.effects_barrier()
            found[name] = J.tree.map(lambda x: round(float(x), 4), value), sorted(log.seen)
            log.seen.clear()
        return found

    assert seen(tinyjax) == seen(oracle)
