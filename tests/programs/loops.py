"""Loops and branches: recurrences, dynamic programmes, filters, each nested in the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.programs.registry import normals, program, tree_of


@program(tree_of(w=normals(3, 3), u=normals(2, 3), xs=normals(4, 2), h=normals(3)))
def recurrent_network(jax):
    jnp = jax.numpy

    def f(p, _):
        def cell(h, x):
            h = jnp.tanh(h @ p["w"] + x @ p["u"])
            return h, jnp.sum(h * h)

        return jax.lax.scan(cell, p["h"], p["xs"])

    return f


@program(tree_of(a=normals(4), b=normals(4)))
def reverse_scan_without_carry_of_floats(jax):
    """A linear recurrence from the right, with an integer in the carry."""
    jnp = jax.numpy

    def f(p, _):
        def body(carry, ab):
            count, y = carry
            a, b = ab
            y = jnp.cos(a) * y + b
            return (count + 1, y), y * count

        (_, last), ys = jax.lax.scan(body, (0, 1.0), (p["a"], p["b"]), reverse=True)
        return last, ys

    return f


@program(normals(3))
def fori_loop_logistic_map(jax):
    def f(x, _):
        rate = 2.5 + 0.1 * jax.numpy.tanh(x)
        return jax.lax.fori_loop(0, 4, lambda i, y: rate * y * (1 - y) + 0.01 * i, 0.3 + 0.0 * x)

    return f


@program(lambda rng: rng.uniform(1.0, 4.0, 3), grad="never")
def while_loop_newton_square_root(jax):
    jnp = jax.numpy

    def f(a, _):
        def unfinished(state):
            y, step = state
            return (jnp.max(jnp.abs(y * y - a)) > 1e-13) & (step < 20)

        def newton(state):
            y, step = state
            return 0.5 * (y + a / y), step + 1

        return jax.lax.while_loop(unfinished, newton, (1.0 + 0.0 * a, 0))[0]

    return f


@program(normals(3), lambda rng: np.int64(1))
def cond_and_switch(jax):
    jnp, lax = jax.numpy, jax.lax

    def f(x, which):
        y = lax.cond(jnp.sum(x) > 0, lambda x: jnp.sin(x), lambda x: x**3, x)
        branches = [jnp.exp, lambda z: z * jnp.flip(z), lambda z: 2.0 * z]
        return lax.switch(which, branches, y), lax.cond(which == 1, lambda: x[0] ** 2, lambda: x[1])

    return f


@program(tree_of(x=normals(3), xs=normals(4, 3)), lambda rng: np.array([0, 2, 1, 2]))
def cond_and_switch_in_scan(jax):
    jnp, lax = jax.numpy, jax.lax

    def f(p, choices):
        branches = [jnp.sin, lambda y: y * jnp.flip(y), lambda y: y[0] + 0.1 * y**2]

        def step(y, at):
            x, choice = at
            y = lax.switch(choice, branches, y) + x
            y = lax.cond(jnp.sum(y) > 0, lambda: jnp.tanh(y) * x[0], lambda: 0.5 * y)
            return y, y[1]

        return lax.scan(step, p["x"], (p["xs"], choices))

    return f


@program(normals(3), lambda rng: np.array([2, 0, 3]), grad="never")
def while_loops_of_different_lengths_under_vmap(jax):
    jnp = jax.numpy

    def f(x, counts):
        def power(base, count):
            unfinished = lambda state: state[1] < count
            grow = lambda state: (jnp.sin(state[0]) * base + 1.0, state[1] + 1)
            return jax.lax.while_loop(unfinished, grow, (base, 0))

        return jax.vmap(power)(x, counts)

    return f


@program(tree_of(grid=normals(3, 3), x=normals(3)))
def nested_scans(jax):
    jnp, lax = jax.numpy, jax.lax

    def f(p, _):
        def outer(total, row):
            def inner(y, a):
                y = jnp.cos(a) * y + total
                return y, y * a

            last, ys = lax.scan(inner, jnp.sum(row), row)
            return total + 0.1 * last, ys * p["x"]

        return lax.scan(outer, p["x"][0], p["grid"])

    return f


@program(tree_of(a=normals(5), b=normals(5)))
def associative_scan_of_a_linear_recurrence(jax):
    def f(p, _):
        def combine(left, right):
            (a, b), (c, d) = left, right
            return a * c, b * c + d

        return jax.lax.associative_scan(combine, (jax.numpy.tanh(p["a"]), p["b"]))[1]

    return f


@program(tree_of(costs=normals(3, 4)))
def dynamic_programme_in_a_table(jax):
    """Soft shortest paths: a table filled in place, read where it was written before."""
    jnp, lax = jax.numpy, jax.lax

    def f(p, _):
        def fill(i, table):
            above = lax.dynamic_index_in_dim(table, i - 1, keepdims=False)
            shifted = jnp.concatenate([above[:1], above[:-1]])
            row = jnp.logaddexp(above, shifted) + p["costs"][i]
            return lax.dynamic_update_slice(table, row[None], (i, 0))

        start = jnp.zeros((3, 4)).at[0].set(p["costs"][0])
        return lax.fori_loop(1, 3, fill, start)[1:]

    return f


@program(
    tree_of(start=normals(3), transition=normals(3, 3), emission=normals(3, 4)),
    lambda rng: np.array([3, 0, 0, 2]),
)
def hidden_markov_model_likelihood(jax):
    jnp = jax.numpy

    def f(p, observed):
        log_transition = jax.nn.log_softmax(p["transition"], axis=1)
        log_emission = jax.nn.log_softmax(p["emission"], axis=1)

        def forward(alpha, symbol):
            alpha = jax.nn.logsumexp(alpha[:, None] + log_transition, axis=0)
            return alpha + log_emission[:, symbol], jnp.argmax(alpha)

        alpha = jax.nn.log_softmax(p["start"]) + log_emission[:, observed[0]]
        alpha, likeliest = jax.lax.scan(forward, alpha, observed[1:])
        return jax.nn.logsumexp(alpha), likeliest

    return f


class Belief(NamedTuple):
    mean: object
    covariance: object


@program(tree_of(dynamics=normals(2, 2), sensor=normals(1, 2), seen=normals(3, 1)))
def kalman_filter(jax):
    jnp = jax.numpy

    def f(p, _):
        dynamics, sensor = 0.5 * p["dynamics"], p["sensor"]

        def step(belief, seen):
            mean = dynamics @ belief.mean
            covariance = dynamics @ belief.covariance @ dynamics.T + 0.1 * jnp.eye(2)
            innovation = sensor @ covariance @ sensor.T + 0.5 * jnp.eye(1)
            gain = jnp.linalg.solve(innovation, sensor @ covariance).T
            mean = mean + gain @ (seen - sensor @ mean)
            return Belief(mean, covariance - gain @ sensor @ covariance), mean

        last, means = jax.lax.scan(step, Belief(jnp.ones(2), jnp.eye(2)), p["seen"])
        return last, means

    return f


@program(
    tree_of(xs=normals(3, 2, 2), w=normals(2, 9), u=normals(3, 9)), lambda rng: np.array([3, 1])
)
def gated_recurrent_unit_over_padded_sequences(jax):
    jnp = jax.numpy

    def f(p, lengths):
        def step(h, at):
            i, x = at
            from_x = jnp.split(x @ p["w"], 3, axis=-1)
            from_h = jnp.split(h @ p["u"], 3, axis=-1)
            update, reset = (jax.nn.sigmoid(a + b) for a, b in zip(from_x[:2], from_h[:2]))
            candidate = jnp.tanh(from_x[2] + reset * from_h[2])
            new = (1 - update) * h + update * candidate
            return jnp.where((i < lengths)[:, None], new, h), None

        return jax.lax.scan(step, jnp.zeros((2, 3)), (jnp.arange(3), p["xs"]))[0]

    return f


@program(tree_of(xs=normals(3, 2), w=normals(2, 8), u=normals(2, 8), b=normals(8)))
def long_short_term_memory(jax):
    """Its body recomputed in the backward pass, two steps a turn."""
    jnp = jax.numpy

    def f(p, _):
        @jax.checkpoint
        def step(state, x):
            h, c = state
            i, g, o, keep = jnp.split(x @ p["w"] + h @ p["u"] + p["b"], 4)
            c = jax.nn.sigmoid(keep) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        return jax.lax.scan(step, (jnp.zeros(2), jnp.zeros(2)), p["xs"], unroll=2)

    return f


@program(tree_of(xs=normals(3, 2), scale=normals(2)))
def map_with_a_branch(jax):
    jnp = jax.numpy

    def f(p, _):
        def one(x):
            return jax.lax.cond(x[0] > x[1], lambda x: x * p["scale"], lambda x: jnp.sin(x), x)

        return jax.lax.map(one, p["xs"])

    return f
