"""Indexing, sorting and movement."""

from __future__ import annotations

import numpy as np

from tests.programs.registry import normals, program, tree_of


@program(
    tree_of(values=normals(5, 2), updates=normals(4, 2)),
    lambda rng: {"rows": np.array([0, 3, 3, 1]), "to": np.array([2, 2, 0, 4])},
)
def gather_and_scatter_add(jax):
    def f(p, at):
        picked = p["values"][at["rows"]] * p["updates"]
        return p["values"].at[at["to"]].add(picked).at[at["rows"], 0].multiply(0.5)

    return f


@program(tree_of(x=normals(6), update=normals(2)), lambda rng: np.array([1, 3]))
def dynamic_slice_and_update(jax):
    lax = jax.lax

    def f(p, at):
        window = lax.dynamic_slice(p["x"], (at[0],), (3,))
        x = lax.dynamic_update_slice(p["x"] * 2.0, p["update"] * window[0], (at[1],))
        return x, lax.dynamic_index_in_dim(x * x, at[1], keepdims=False)

    return f


@program(normals(6))
def sort_and_top_k(jax):
    jnp = jax.numpy

    def f(x, _):
        order = jnp.argsort(x)
        largest, where = jax.lax.top_k(jnp.sin(x), 2)
        return jnp.sort(x) ** 2 * jnp.arange(1.0, 7.0), x[order][::2] * x[0], largest * x[where]

    return f


@program(normals(2, 5))
def cumulative_sums_and_products(jax):
    jnp = jax.numpy

    def f(x, _):
        return jnp.cumsum(x, axis=1) * x, jnp.cumprod(x, axis=0), jax.lax.cumlogsumexp(x, axis=1)

    return f


@program(normals(3, 4))
def max_min_and_argmax(jax):
    jnp = jax.numpy

    def f(x, _):
        best = jnp.argmax(x, axis=1)
        chosen = jnp.take_along_axis(x, best[:, None], axis=1)[:, 0]
        extremes = jnp.max(x, axis=0) ** 2 - jnp.min(x)
        return extremes, chosen**3, jnp.maximum(x, 0.3) * jnp.minimum(x, jnp.tanh(x.T).T)

    return f


@program(normals(3, 4))
def movement(jax):
    """Reshape, transpose, pad (negative and interior), flip, concatenate, stack, roll, tile."""
    jnp, lax = jax.numpy, jax.lax

    def f(x, _):
        padded = lax.pad(x, 0.5, ((1, -1, 0), (-1, 2, 1)))
        stacked = jnp.stack([x.T.reshape(3, 4), jnp.roll(x, 1, axis=0)])
        joined = jnp.concatenate([jnp.flip(x, 1)[:, ::2], jnp.tile(x[:, :1], (1, 2))], axis=1)
        return jnp.sin(padded), jnp.sum(stacked**2, axis=0) * joined

    return f


@program(lambda rng: np.array([0.0, 0.4, -0.7, 2.0]))
def double_where(jax):
    """A square root and a quotient whose derivatives are infinite where they are not chosen."""
    jnp = jax.numpy

    def f(x, _):
        safe = jnp.where(x > 0, x, 1.0)
        nonzero = jnp.where(x == 0, 1.0, x)
        return jnp.where(x > 0, jnp.sqrt(safe), x**2), jnp.where(x == 0, 1.0, jnp.sin(x) / nonzero)

    return f


@program(normals(3), lambda rng: np.array([3, 0, 2]))
def integers_and_powers(jax):
    jnp = jax.numpy

    def f(x, n):
        bits = ((n ^ 5) & 6) + n // 2 - n % 3
        return x**2 * bits + jnp.where(n > 1, x**3, x) + x.astype(int) * n, jnp.sum(n) * x[0] ** -1

    return f


@program(tree_of(x=normals(6), weights=normals(6)))
def histogram_by_scatter_add(jax):
    jnp = jax.numpy

    def f(p, _):
        bins = jnp.clip(jnp.floor(p["x"] + 2.0), 0, 3).astype(int)
        sums = jnp.zeros(4).at[bins].add(p["weights"] * p["x"])
        counts = jnp.zeros(4, int).at[bins].add(1)
        return sums**2 / jnp.maximum(counts, 1), counts, counts > 1

    return f


@program(tree_of(values=normals(5, 2), scale=normals(3)), lambda rng: np.array([0, 2, 2, 0, 1]))
def segment_softmax(jax):
    """What message passing on a graph does at the nodes."""
    jnp = jax.numpy

    def f(p, segments):
        score = jnp.exp(jnp.sin(p["values"][:, 0]))
        total = jnp.zeros(3).at[segments].add(score)
        weighted = (score / total[segments])[:, None] * p["values"]
        return jnp.zeros((3, 2)).at[segments].add(weighted) * p["scale"][:, None]

    return f


@program(normals(3, 4), lambda rng: np.array([-1, 5, 2, -9]))
def indices_out_of_range(jax):
    """Filled, clipped and wrapped; a scatter drops them."""
    jnp = jax.numpy

    def f(x, at):
        rows = jnp.take(x, at, axis=0, mode="fill", fill_value=0.25)
        wrapped = jnp.take(x, at, axis=1, mode="wrap")
        clipped = x.at[:, at].get(mode="clip")
        dropped = (x**2).at[at, 1].set(jnp.sin(x[0]), mode="drop")
        return rows, wrapped * clipped, dropped

    return f


@program(tree_of(keys=normals(5), values=normals(5)), lambda rng: np.array([1, 0, 1, 2, 0]))
def sort_of_several_operands(jax):
    jnp = jax.numpy

    def f(p, major):
        first, second, third = jax.lax.sort((major, p["keys"], p["values"]), num_keys=2)
        ranks = jnp.argsort(jnp.argsort(p["keys"]))
        return second * third, jnp.exp(0.1 * third) * ranks, first

    return f


@program(tree_of(a=normals(3, 3), b=normals(2)))
def triangles_diagonals_and_outer_products(jax):
    jnp = jax.numpy

    def f(p, _):
        a, b = p["a"], p["b"]
        outer = jnp.outer(jnp.sin(b), jnp.diag(a))
        return jnp.tril(a, -1) @ jnp.triu(a), jnp.kron(b, b * b), outer, jnp.trace(a @ a.T)

    return f


@program(normals(2, 3, 4), lambda rng: {"i": np.array([[0], [1]]), "j": np.array([2, 0, 2])})
def advanced_and_basic_indices_together(jax):
    jnp = jax.numpy

    def f(x, at):
        mixed = x[at["i"], :, at["j"]]
        mask = np.array([True, False, True])
        masked = x[:, mask, 1:]
        updated = (2.0 * x).at[at["i"][:, 0], 1, ::2].set(jnp.cos(x[:, 0, :2]))
        return mixed**2, masked * x[..., None, 0, 1:], updated[..., -1]

    return f


@program(tree_of(x=normals(2, 4), y=normals(4)))
def selections_and_conditions(jax):
    jnp = jax.numpy

    def f(p, _):
        x, y = p["x"], p["y"]
        chosen = jnp.select([x > 1.0, x > y], [x * y, jnp.sin(x)], y**2)
        positive = jnp.all(x > -1.0, axis=0)
        return chosen, jnp.clip(x, -0.5, y + 2.0) * jnp.sign(y), positive, jnp.argmin(x, axis=1)

    return f
