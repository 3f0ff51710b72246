"""Science: densities, integrators, linear algebra, transforms."""

from __future__ import annotations

import numpy as np

from tests.programs.registry import normals, program, tree_of


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


@program(tree_of(factor=normals(3, 3), x=normals(3)))
def gaussian_log_density_by_cholesky(jax):
    jnp = jax.numpy

    def f(p, _):
        covariance = p["factor"] @ p["factor"].T + 2.0 * jnp.eye(3)
        factor = jnp.linalg.cholesky(covariance)
        white = jax.scipy.linalg.solve_triangular(factor, p["x"], lower=True)
        return -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diag(factor)))

    return f


@program(tree_of(a=normals(3, 3), b=normals(3, 2)))
def linear_systems_and_determinants(jax):
    jnp = jax.numpy

    def f(p, _):
        a = p["a"] + 3.0 * jnp.eye(3)
        sign, log_determinant = jnp.linalg.slogdet(a)
        return jnp.linalg.solve(a, p["b"]), sign * log_determinant, jnp.linalg.inv(a)[0]

    return f


@program(tree_of(a=normals(4, 2), b=normals(4)))
def least_squares_by_qr(jax):
    jnp = jax.numpy

    def f(p, _):
        q, r = jnp.linalg.qr(p["a"])
        fit = jax.scipy.linalg.solve_triangular(r, q.T @ p["b"])
        return fit, jnp.sum((p["a"] @ fit - p["b"]) ** 2)

    return f


@program(tree_of(a=normals(3, 3), x=normals(3)))
def function_of_a_symmetric_matrix(jax):
    jnp = jax.numpy

    def f(p, _):
        values, vectors = jnp.linalg.eigh(p["a"] + p["a"].T + jnp.diag(jnp.arange(0.0, 9.0, 3.0)))
        return vectors @ (jnp.tanh(0.3 * values) * (vectors.T @ p["x"])), values

    return f


@program(tree_of(signal=normals(8), response=normals(5)))
def fourier_filter(jax):
    jnp = jax.numpy

    def f(p, _):
        spectrum = jnp.fft.rfft(p["signal"]) * jnp.exp(1j * p["response"])
        power = jnp.abs(spectrum) ** 2 + 1.0
        return jnp.fft.irfft(spectrum, 8), jnp.log(power), jnp.fft.ifft(spectrum).real

    return f


@program(tree_of(re=normals(3), im=normals(3)))
def complex_intermediate_values(jax):
    jnp, lax = jax.numpy, jax.lax

    def f(p, _):
        z = lax.complex(p["re"], p["im"] + 2.0)
        w = jnp.exp(0.3 * z) * jnp.conj(z[::-1]) + jnp.sin(z) / (z * z + 5.0)
        return w.real * jnp.abs(z), jnp.angle(z), (w @ jnp.sqrt(z)).imag

    return f


@program(normals(2, 2))
def matrix_exponential_by_series(jax):
    jnp = jax.numpy

    def f(a, _):
        def add_term(i, state):
            total, term = state
            term = term @ a / i
            return total + term, term

        total, _ = jax.lax.fori_loop(1, 5, add_term, (jnp.eye(2), jnp.eye(2)))
        return total, jnp.linalg.matrix_power(a, 3)

    return f


@program(tree_of(at=normals(4), values=normals(5)))
def interpolation_and_piecewise(jax):
    jnp = jax.numpy

    def f(p, _):
        knots = np.linspace(-2.0, 2.0, 5)
        smooth = jnp.interp(p["at"], knots, p["values"])
        cell = jnp.clip(jnp.searchsorted(knots, p["at"]), 0, 4)
        return smooth * p["at"], p["values"][cell] ** 2, cell

    return f


@program(normals(5))
def quantiles_and_median(jax):
    jnp = jax.numpy

    def f(x, _):
        middle = jnp.median(x)
        deviation = jnp.median(jnp.abs(x - jnp.mean(x)))
        return jnp.quantile(x**2, np.array([0.3, 0.85])), middle * deviation, jnp.std(x)

    return f


@program(tree_of(q=normals(2), v=normals(2)))
def double_pendulum_by_its_lagrangian(jax):
    jnp = jax.numpy

    def f(p, _):
        def lagrangian(q, v):
            kinetic = v[0] ** 2 + 0.5 * v[1] ** 2 + v[0] * v[1] * jnp.cos(q[0] - q[1])
            return kinetic + 2.0 * jnp.cos(q[0]) + jnp.cos(q[1])

        mass = jax.hessian(lagrangian, 1)(p["q"], p["v"])
        turn = jax.jacfwd(jax.grad(lagrangian, 1), 0)(p["q"], p["v"])
        force = jax.grad(lagrangian, 0)(p["q"], p["v"])
        return jnp.linalg.solve(mass, force - turn @ p["v"])

    return f


@program(tree_of(y=normals(2), rates=normals(2)))
def runge_kutta_4(jax):
    jnp = jax.numpy

    def f(p, _):
        def slope(t, y):
            return jnp.stack([y[1] * p["rates"][0], -jnp.sin(y[0]) + p["rates"][1] * jnp.cos(t)])

        def step(y, t):
            h = 0.2
            k1 = slope(t, y)
            k2 = slope(t + h / 2, y + h / 2 * k1)
            k3 = slope(t + h / 2, y + h / 2 * k2)
            k4 = slope(t + h, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return y, y

        return jax.lax.scan(step, p["y"], jnp.arange(3) * 0.2)[1]

    return f


@program(tree_of(scores=normals(3, 3), cost=normals(3)))
def sinkhorn_normalisation(jax):
    jnp = jax.numpy

    def f(p, _):
        def normalise(i, scores):
            scores = scores - jax.nn.logsumexp(scores, axis=1, keepdims=True)
            return scores - jax.nn.logsumexp(scores, axis=0, keepdims=True)

        plan = jnp.exp(jax.lax.fori_loop(0, 2, normalise, p["scores"]))
        return plan @ p["cost"], -jnp.sum(plan * jnp.log(plan))

    return f


@program(tree_of(w=normals(2), x=normals(4, 2)))
def newton_step_of_logistic_regression(jax):
    jnp = jax.numpy

    def f(p, _):
        loss = lambda w: jnp.sum(jax.nn.softplus(-(p["x"] @ w))) + 0.5 * jnp.sum(w**2)
        gradient, hessian = jax.grad(loss)(p["w"]), jax.hessian(loss)(p["w"])
        return p["w"] - jnp.linalg.solve(hessian, gradient)

    return f


@program(tree_of(positions=normals(3, 2), charges=normals(3)))
def pairwise_forces(jax):
    jnp = jax.numpy

    def f(p, _):
        def energy(positions):
            apart = positions[:, None] - positions[None]
            diagonal = jnp.eye(3, dtype=bool)
            distance = jnp.sqrt(jnp.where(diagonal, 1.0, jnp.sum(apart**2, axis=-1)))
            pairs = p["charges"][:, None] * p["charges"] * jnp.exp(-distance) / distance
            return 0.5 * jnp.sum(jnp.where(diagonal, 0.0, pairs))

        return -jax.grad(energy)(p["positions"])

    return f


@program(tree_of(coefficients=normals(4), x=normals(5)))
def polynomials_and_convolution(jax):
    jnp = jax.numpy

    def f(p, _):
        smoothed = jnp.convolve(p["x"], p["coefficients"], mode="same")
        slopes = jnp.gradient(p["x"] ** 2)
        return jnp.polyval(p["coefficients"], p["x"]), smoothed, jnp.trapezoid(slopes * p["x"])

    return f
