"""Programs that users write, for tests that must hold for each of them.

A `Program` builds, from a JAX-like module, a function `f(x, extra) -> tree` of float64 arrays:
`x` is a tree of float64 arrays to differentiate, `extra` a tree of integers (possibly empty) that
are arguments all the same. Arguments and results are small, values and the first derivatives of
every program are finite and not all zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

Tree = Any
Function = Callable[[Tree, Tree], Tree]


@dataclass(frozen=True)
class Program:
    """`make(jax)` gives the function; `x()` and `extra()` make its arguments, always the same."""

    name: str
    make: Callable[[ModuleType], Function]
    x: Callable[[np.random.Generator], Tree]
    extra: Callable[[np.random.Generator], Tree]
    grad: str = "always"  # where JAX allows it: always, or never (a while loop)
    jvp: str = "always"  # or "after grad" (a custom vjp rule), or never (one whose fwd uses it)

    def arguments(self) -> tuple[Tree, Tree]:
        rng = np.random.default_rng(sum(map(ord, self.name)))
        return self.x(rng), self.extra(rng)


PROGRAMS: dict[str, Program] = {}


def program(x, extra=lambda rng: (), **limits):
    """Register the decorated `make(jax) -> f` under its name."""

    def register(make):
        PROGRAMS[make.__name__] = Program(make.__name__, make, x, extra, **limits)
        return make

    return register


def normals(*shape: int):
    return lambda rng: rng.standard_normal(shape)


def tree_of(**makers):
    return lambda rng: {name: make(rng) for name, make in makers.items()}


# ---- networks -----------------------------------------------------------------------------------


@program(tree_of(w1=normals(3, 4), b1=normals(4), w2=normals(4, 2), inputs=normals(2, 3)))
def mlp(jax):
    def f(p, _):
        return jax.numpy.tanh(p["inputs"] @ p["w1"] + p["b1"]) @ p["w2"]

    return f


@program(tree_of(image=normals(1, 5, 5, 1), kernel=normals(3, 3, 1, 2), dense=normals(8, 2)))
def convolutional_network(jax):
    lax = jax.lax

    def f(p, _):
        layout = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(
            p["image"], p["kernel"], (1, 1), "SAME", dimension_numbers=layout
        )
        y = jax.nn.gelu(y, approximate=False)
        y = lax.reduce_window(y, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        return y.reshape(1, 8) @ p["dense"]

    return f


@program(tree_of(x=normals(4, 3), q=normals(3, 3), k=normals(3, 3), v=normals(3, 2)))
def causal_attention(jax):
    jnp = jax.numpy

    def f(p, _):
        x = p["x"]
        scores = (x @ p["q"]) @ (x @ p["k"]).T / np.sqrt(3.0)
        mask = jnp.tril(jnp.ones((4, 4), bool))
        return jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1) @ (x @ p["v"])

    return f


@program(tree_of(x=normals(2, 5), scale=normals(5), shift=normals(5)))
def layer_norm(jax):
    jnp = jax.numpy

    def f(p, _):
        x = p["x"]
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        return p["scale"] * centred * jax.lax.rsqrt(variance + 1e-5) + p["shift"]

    return f


@program(
    tree_of(table=normals(6, 3), readout=normals(3, 6)),
    lambda rng: {"tokens": rng.integers(0, 6, 4), "targets": rng.integers(0, 6, 4)},
)
def embedding_and_cross_entropy(jax):
    jnp = jax.numpy

    def f(p, tokens):
        logits = p["table"][tokens["tokens"]] @ p["readout"]
        log_p = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(log_p, tokens["targets"][:, None], axis=-1))

    return f


# ---- loops and branches -------------------------------------------------------------------------


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


# ---- scientific ---------------------------------------------------------------------------------


@program(normals(4))
def rosenbrock(jax):
    def f(x, _):
        return jax.numpy.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)

    return f


@program(tree_of(weights=normals(3), means=normals(3), log_scales=normals(3), x=normals(4)))
def mixture_log_density(jax):
    jnp = jax.numpy

    def f(p, _):
        z = (p["x"][:, None] - p["means"]) * jnp.exp(-p["log_scales"])
        log_normal = -0.5 * z**2 - p["log_scales"] - 0.5 * np.log(2 * np.pi)
        return jax.nn.logsumexp(jax.nn.log_softmax(p["weights"]) + log_normal, axis=-1)

    return f


@program(tree_of(q=normals(3), p=normals(3)))
def leapfrog_energy(jax):
    """Three steps of a symplectic integrator that itself calls grad."""
    jnp = jax.numpy

    def f(state, _):
        potential = lambda q: jnp.sum(q**4) / 4 + jnp.sin(q[0] * q[1])
        force = jax.grad(potential)
        q, p = state["q"], state["p"]
        for _ in range(3):
            p = p - 0.05 * force(q)
            q = q + 0.1 * p
            p = p - 0.05 * force(q)
        return potential(q) + 0.5 * jnp.dot(p, p)

    return f


@program(lambda rng: {"x": rng.uniform(0.5, 1.5, 4), "y": rng.uniform(0.5, 1.5, 4)})
def special_functions(jax):
    jnp, lax = jax.numpy, jax.lax

    def f(p, _):
        x, y = p["x"], p["y"]
        smooth = lax.erf(x) + jnp.log1p(y) + jnp.expm1(x * 0.1) + jnp.cbrt(y) + jnp.arcsinh(x)
        return smooth + x**y + jnp.arctan2(y, x) + jnp.hypot(x, y) + lax.logistic(x - y)

    return f


@program(tree_of(a=normals(2, 3), b=normals(3, 4), c=normals(4, 2)))
def einsum_of_three(jax):
    def f(p, _):
        product = jax.numpy.einsum("ij,jk,kl->il", p["a"], p["b"], p["c"])
        trace = jax.numpy.einsum("ij,jk,ki->", p["a"], p["b"], p["c"])
        return {"product": product, "trace": trace}

    return f


# ---- indexing -----------------------------------------------------------------------------------


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


# ---- library features ---------------------------------------------------------------------------


@program(normals(4), lambda rng: np.uint32(7))
def random_normals(jax):
    def f(x, seed):
        key, other = jax.random.split(jax.random.key(seed))
        noise = jax.random.normal(key, (4,), x.dtype)
        return x * noise + jax.random.uniform(other, (), x.dtype) * jax.numpy.sin(x)

    return f


@program(normals(3))
def custom_jvp_log1pexp(jax):
    jnp = jax.numpy

    def f(x, _):
        @jax.custom_jvp
        def log1pexp(x):
            return jnp.log(1.0 + jnp.exp(x))

        @log1pexp.defjvp
        def rule(primals, tangents):
            (x,), (dx,) = primals, tangents
            return log1pexp(x), (1.0 - 1.0 / (1.0 + jnp.exp(x))) * dx

        return log1pexp(x * x) * x

    return f


@program(normals(3), jvp="after grad")
def custom_vjp_with_scaled_gradient(jax):
    """The backward rule differs from the derivative, so that a rule not used is seen."""
    jnp = jax.numpy

    def f(x, _):
        @jax.custom_vjp
        def scaled(x, y):
            return jnp.sin(x) * y

        def forward(x, y):
            return jnp.sin(x) * y, (jnp.cos(x), y)

        def backward(residuals, ct):
            cos_x, y = residuals
            return 3.0 * ct * cos_x * y, ct * cos_x

        scaled.defvjp(forward, backward)
        return scaled(x, x * x) + scaled(x[::-1], jnp.exp(0.1 * x))

    return f


@program(lambda rng: rng.uniform(1.0, 4.0, 3), jvp="never")
def while_loop_with_implicit_gradient(jax):
    """The square root by iteration, its derivative by the implicit function theorem."""
    jnp = jax.numpy

    def f(a, _):
        @jax.custom_vjp
        def root(a):
            unfinished = lambda y: jnp.max(jnp.abs(y * y - a)) > 1e-13
            return jax.lax.while_loop(unfinished, lambda y: 0.5 * (y + a / y), 1.0 + 0.0 * a)

        def backward(y, ct):
            return (ct / (2.0 * y),)

        root.defvjp(lambda a: (root(a),) * 2, backward)
        return root(a * a + 1.0) * a

    return f


@program(tree_of(w=normals(3, 3), x=normals(3)))
def checkpointed_layers(jax):
    jnp = jax.numpy

    def f(p, _):
        layer = jax.checkpoint(lambda w, x: jnp.sin(w @ x))
        return layer(p["w"], layer(p["w"], layer(p["w"].T, p["x"])))

    return f


@program(tree_of(a=normals(3), b=normals(3)))
def closures_over_outer_variables(jax):
    """Inner transformations whose functions capture variables of the outer ones."""
    jnp = jax.numpy

    def f(p, _):
        a, b = p["a"], p["b"]
        inner = jax.jit(lambda x: jnp.sum(jnp.sin(x * a) * b))
        outer_product = jax.vmap(lambda s: s * a + b[0])(b)
        directional = jax.jvp(lambda x: x * a * x, (b,), (a,))[1]
        return jax.grad(inner)(b) + jnp.sum(outer_product, axis=0) * directional

    return f


@program(normals(4))
def hessian_vector_product(jax):
    jnp = jax.numpy

    def f(x, _):
        energy = lambda x: jnp.sum(jnp.cos(x) * x**2) + jnp.prod(x)
        return jax.jvp(jax.grad(energy), (x,), (jnp.ones_like(x),))[1]

    return f


@program(lambda rng: (rng.standard_normal(2), [rng.standard_normal(2), {"z": rng.random((2, 2))}]))
def nested_trees_in_and_out(jax):
    jnp = jax.numpy

    def f(x, _):
        first, (second, last) = x
        return {"sum": [first + second, None], "product": (last["z"] @ first, jnp.sum(second) ** 2)}

    return f


@program(normals(3))
def stop_gradient_and_unused(jax):
    def f(x, _):
        return jax.lax.stop_gradient(x) * x[::-1], jax.numpy.arange(3.0) + 0 * x[0] ** 2

    return f
