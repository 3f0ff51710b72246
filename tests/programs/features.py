"""Features of the library: custom rules, keys, checkpoints, trees, transformations inside."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from tests.programs.registry import normals, program, submodule, tree_of


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


@program(normals(3), jvp="after grad")
def custom_jvp_within_custom_vjp(jax):
    jnp = jax.numpy

    def f(x, _):
        @jax.custom_jvp
        def cube(x):
            return x**3

        cube.defjvps(lambda dx, y, x: 2.5 * x**2 * dx)

        @jax.custom_vjp
        def clipped(x, limit):
            return jnp.sum(cube(x)) * limit

        def backward(residuals, ct):
            x, limit = residuals
            return jnp.clip(jax.grad(lambda x: jnp.sum(cube(x)))(x), -3.0, 3.0) * ct * limit, None

        clipped.defvjp(lambda x, limit: (jnp.sum(cube(x)) * limit, (x, limit)), backward)
        return cube(x) * clipped(x * 0.7, 2.0)

    return f


@program(tree_of(x=normals(3), scale=normals()), jvp="after grad")
def custom_vjp_with_static_arguments(jax):
    jnp = jax.numpy

    def f(p, _):
        def repeat(function, x, times):
            for _ in range(times):
                x = function(x)
            return x

        apply = jax.custom_vjp(repeat, nondiff_argnums=(0, 2))

        def forward(function, x, times):
            return repeat(function, x, times), x

        def backward(function, times, x, ct):
            return (jax.vjp(function, x)[1](ct)[0] * times,)

        apply.defvjp(forward, backward)
        return apply(jnp.sin, p["x"], 2) * p["scale"]

    return f


@program(normals(3))
def custom_jvp_of_trees(jax):
    """Trees in and out, a static argument; the rule calls the function and differs from jvp."""
    jnp = jax.numpy

    def f(x, _):
        @partial(jax.custom_jvp, nondiff_argnums=(1,))
        def norm_and_direction(p, power):
            norm = jnp.sqrt(jnp.sum(p["x"] ** power) + 1.0)
            return norm, {"direction": p["x"] / norm}

        @norm_and_direction.defjvp
        def rule(power, primals, tangents):
            (p,), (dp,) = primals, tangents
            norm, out = norm_and_direction(p, power)
            d_norm = 1.5 * jnp.vdot(p["x"], dp["x"]) / norm
            d_direction = dp["x"] / norm - out["direction"] * d_norm / norm
            return (norm, out), (d_norm, {"direction": d_direction})

        norm, out = norm_and_direction({"x": jnp.exp(0.2 * x)}, 2)
        return norm * x, jnp.cos(out["direction"])

    return f


@program(tree_of(w=normals(2, 2), x=normals(2)))
def checkpoint_policies(jax):
    jnp, policies = jax.numpy, jax.checkpoint_policies
    checkpoint_name = submodule(jax, "ad_checkpoint").checkpoint_name

    def f(p, _):
        def layer(w, x):
            hidden = checkpoint_name(jnp.sin(w @ x), "hidden")
            return jnp.tanh(w.T @ hidden) + x

        by_name = jax.checkpoint(layer, policy=policies.save_only_these_names("hidden"))
        dots = jax.checkpoint(layer, policy=policies.dots_with_no_batch_dims_saveable)
        nothing = jax.checkpoint(lambda w, x: dots(w, layer(w, x)))
        return by_name(p["w"], nothing(p["w"], p["x"]))

    return f


@program(tree_of(w=normals(2, 3), x=normals(3)))
def linear_maps_and_their_transposes(jax):
    jnp = jax.numpy

    def f(p, _):
        linear = lambda x: p["w"] @ jnp.cumsum(x)
        (back,) = jax.linear_transpose(linear, p["x"])(linear(p["x"]))
        value, tangent_map = jax.linearize(lambda x: jnp.sin(x) * linear(x)[0], p["x"])
        _, pullback = jax.vjp(lambda w: jnp.tanh(w @ p["x"]), p["w"])
        return back * value, tangent_map(back), pullback(jnp.ones(2))[0]

    return f


@program(normals(3))
def jacobians(jax):
    jnp = jax.numpy

    def f(x, _):
        g = lambda x: jnp.sin(x[:2]) * x[2] + x[0] ** 3
        return jax.jacfwd(g)(x), jax.jacrev(jax.jacrev(lambda x: jnp.prod(g(x))))(x)

    return f


@program(tree_of(x=normals(2, 3), y=normals(3)))
def vmap_with_axes_and_collectives(jax):
    jnp = jax.numpy

    def f(p, _):
        def one(column, y):
            centred = column - jax.lax.pmean(column, "batch")
            weight = jax.lax.psum(jnp.sin(y), "batch")
            return centred * weight * y, jax.lax.axis_index("batch")

        per_column = jax.vmap(one, in_axes=(1, 0), out_axes=(1, 0), axis_name="batch")
        pairs = jax.vmap(jax.vmap(lambda a, b: jnp.cos(a * b), (0, None)), (None, 0))
        return per_column(p["x"], p["y"]), pairs(p["x"][0], p["y"])

    return f


class Particle(NamedTuple):
    position: object
    momentum: object
    label: object


@program(tree_of(q=normals(2), p=normals(2)), lambda rng: np.array([4, 1]))
def named_tuples_and_raveled_trees(jax):
    jnp, ravel_pytree = jax.numpy, submodule(jax, "flatten_util").ravel_pytree

    def f(x, label):
        particle = Particle(x["q"], {"linear": x["p"], "none": None}, label)
        flat, unravel = ravel_pytree((particle.position, particle.momentum))
        moved = unravel(jnp.sin(flat) * jnp.roll(flat, 1))
        halves = jax.tree.map(lambda leaf: 0.5 * leaf, particle)
        return Particle(moved[0], moved[1], particle.label + 1), halves.position * moved[0]

    return f


@program(normals(4), lambda rng: np.int64(5))
def random_draws_of_many_kinds(jax):
    jnp, random = jax.numpy, jax.random

    def f(x, seed):
        keys = random.split(random.fold_in(random.key(0), seed), 5)
        class_ = random.categorical(keys[0], x)
        shuffled = random.permutation(keys[1], x)
        kept = random.bernoulli(keys[2], 0.7, x.shape)
        cut = random.truncated_normal(keys[3], -1.0, 1.0, x.shape, x.dtype)
        exponential = random.exponential(keys[4], (), x.dtype)
        return shuffled * cut, jnp.where(kept, x / 0.7, 0.0) * exponential, class_, kept

    return f


@program(normals(4))
def integer_and_boolean_results(jax):
    jnp = jax.numpy

    def f(x, _):
        rounded = jnp.round(3 * x).astype(jnp.int32)
        where_large = jnp.abs(x) > 0.5
        return {
            "smooth": jnp.sin(x) * rounded,
            "rounded": rounded,
            "large": where_large,
            "count": jnp.sum(where_large),
            "finite": jnp.isfinite(1.0 / x),
        }

    return f


@program(tree_of(x=normals(3), y=normals(3)))
def scopes_partials_and_static_arguments(jax):
    jnp = jax.numpy

    def f(p, _):
        @partial(jax.jit, static_argnames=("power", "flip"))
        def inner(x, *, power, flip=False):
            with jax.named_scope("inner"):
                return jnp.sum(x[::-1] * x**power if flip else x**power)

        named = jax.named_call(lambda x, y: x * inner(y, power=2, flip=True), name="named")
        bound = jax.tree_util.Partial(named, p["x"])
        applied = jax.jit(lambda function, y: function(jnp.sin(y)))(bound, p["y"])
        return applied + inner(p["y"], power=3)

    return f


@program(tree_of(x=normals(2), a=normals(2)), jvp="never")
def implicit_gradient_by_converted_closure(jax):
    """A fixed point whose function closes over what is differentiated."""
    jnp = jax.numpy

    def f(p, _):
        def solve(function, start):
            converted, closed_over = jax.closure_convert(function, start)

            @partial(jax.custom_vjp, nondiff_argnums=(0,))
            def fixed_point(function, start, *closed_over):
                for _ in range(25):
                    start = function(start, *closed_over)
                return start

            def forward(function, start, *closed_over):
                end = fixed_point(function, start, *closed_over)
                return end, (end, closed_over)

            def backward(function, residuals, ct):
                end, closed_over = residuals
                _, pull = jax.vjp(lambda end: function(end, *closed_over), end)
                u = ct
                for _ in range(25):
                    u = ct + pull(u)[0]
                _, pull = jax.vjp(lambda *closed_over: function(end, *closed_over), *closed_over)
                return (jnp.zeros_like(end), *pull(u))

            fixed_point.defvjp(forward, backward)
            return fixed_point(converted, start, *closed_over)

        return solve(lambda y: 0.1 * jnp.sin(p["a"] * y) + p["x"], jnp.zeros(2))

    return f
