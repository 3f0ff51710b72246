"""grad and value_and_grad: the results are those of JAX, and so are the refusals."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracle import check, raises

x3 = np.array([1.0, 2.0, 3.0], np.float32)
m = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
CASES = {}


def case(name):
    def register(f):
        CASES[name] = f
        return f

    return register


@case("aux may hold anything")
def grad_aux_python(J):
    g, a = J.grad(lambda x: (x**2, {"a": x * 2, "n": 3}), has_aux=True)(2.0)
    return g, a["a"]


@case("value and gradient with aux")
def vag_aux(J):
    return J.value_and_grad(lambda x: (x**2, x * 2), has_aux=True)(2.0)


@case("a negative argnum")
def argnums_neg(J):
    return J.grad(lambda a, b: (a * b * b).sum(), argnums=-1)(x3, x3)


@case("several argnums")
def argnums_tuple(J):
    return J.grad(lambda a, b: (a * b * b).sum(), argnums=(0, 1))(x3, x3)


@case("a list of argnums")
def argnums_list(J):
    return J.grad(lambda a, b: (a * b * b).sum(), argnums=[1])(x3, x3)


@case("integers have float0 gradients if allowed")
def allow_int(J):
    return J.grad(lambda a, b: (a * b * b).sum(), argnums=(0, 1), allow_int=True)(
        x3, np.array([1, 2, 3])
    )


@case("real functions through complex values")
def absz2(J):
    return J.grad(lambda z: (J.numpy.abs(z) ** 2).real, holomorphic=False, allow_int=False)(2.0)


@case("real functions of complex numbers: no conjugate is taken")
def complex_argument(J):
    f = lambda z: J.numpy.sum(J.numpy.abs(z) ** 2 + z.imag)
    z = np.array([1 + 2j, -3j], np.complex64)
    return J.grad(f)(z), J.value_and_grad(f)(z), J.jacrev(f)(z)


@case("holomorphic functions")
def holo(J):
    return J.grad(lambda z: z**3 * J.numpy.sin(z), holomorphic=True)(np.complex64(1 + 2j))


@case("the conjugate is not holomorphic but has a convention")
def conj_holo(J):
    return J.grad(lambda z: J.numpy.conj(z), holomorphic=True)(np.complex64(1 + 2j))


@case("perturbations are not confused")
def perturb(J):
    return J.grad(lambda x: x * J.grad(lambda y: x + y)(2.0))(3.0)


@case("perturbations of mixed modes are not confused")
def perturb2(J):
    return J.grad(lambda x: x * J.jvp(lambda y: x * y * y, (2.0,), (1.0,))[1])(3.0)


@case("three levels of grad")
def perturb4(J):
    return J.grad(lambda x: J.grad(lambda y: J.grad(lambda z: x * y * z + x * x * z * z)(y))(x))(
        1.5
    )


@case("ties of max share")
def maxties(J):
    return J.grad(lambda x: J.numpy.max(x))(np.array([1.0, 3.0, 3.0], np.float32))


@case("products with zeros")
def prod0(J):
    return [
        J.grad(lambda x: J.numpy.prod(x))(np.array(v, np.float32))
        for v in ([1, 2, 3], [0, 2, 3], [0, 0, 3], [0, 0, 0])
    ]


@case("half a gradient at the kink of maximum")
def relu_tie(J):
    return J.grad(lambda x: J.numpy.maximum(x, 0.0).sum())(np.array([-1.0, 0.0, 1.0], np.float32))


@case("stop_gradient is a constant")
def stopg(J):
    return J.grad(lambda x: x * J.lax.stop_gradient(x))(3.0)


@case("keyword arguments are not differentiated")
def grad_kwargs(J):
    return J.grad(lambda x, y=1.0, *, z=2.0: x * x * y * z)(3.0, z=4.0)


@case("gradients have the dtype of the argument")
def mixed_dtype(J):
    return J.grad(lambda x: (x.astype("float16") * 2).astype("float32").sum())(x3)


@case("bfloat16")
def bf16(J):
    return J.grad(lambda x: (x * x).sum())(J.numpy.asarray(x3, "bfloat16"))


@case("masks")
def grad_bool_mask(J):
    return J.grad(lambda x: J.numpy.where(x > 1.5, x * x, 0.0).sum())(x3)


@case("python control flow on values")
def value_if(J):
    def f(x):
        if x > 1:
            return x * x
        return -x

    return J.grad(f)(2.0), J.jvp(f, (0.5,), (1.0,))


@case("empty arrays")
def emptygrad(J):
    return J.grad(lambda x: 1.0 * x.sum())(np.zeros((0,), np.float32))


@case("leaves that are not used and None")
def ct_none_grads(J):
    return J.grad(lambda d: d["a"] ** 2)({"a": 1.0, "b": 2.0, "c": None})


@case("second derivatives through complex values")
def complex_nest(J):
    f = lambda z: (J.numpy.exp(1j * z) * z).real
    return J.grad(J.grad(f))(1.2), J.jvp(J.grad(f), (1.2,), (1.0,))


@case("softmax and logsumexp")
def logsum(J):
    return (
        J.grad(lambda x: J.nn.logsumexp(x))(x3),
        J.grad(lambda x: J.nn.softmax(x)[0])(x3),
        J.grad(lambda x: J.nn.log_softmax(x)[0])(x3),
        J.grad(J.grad(lambda x: J.nn.logsumexp(x * x3)))(1.0),
    )


@case("sort")
def sorting(J):
    return J.grad(lambda x: (J.numpy.sort(x) * x3).sum())(
        np.array([3.0, 1.0, 2.0], np.float32)
    ), J.vmap(J.grad(lambda x: J.numpy.sort(x)[0]))(
        np.array([[3.0, 1.0, 2.0], [1, 2, 3]], np.float32)
    )


@case("cumulative products and maxima")
def cumprod(J):
    return J.grad(lambda x: J.numpy.cumprod(x).sum())(x3), J.grad(lambda x: J.lax.cummax(x).sum())(
        np.array([1.0, 3.0, 2.0], np.float32)
    )


@case("scatters and gathers")
def segment(J):
    return (
        J.grad(lambda x: J.numpy.zeros(3).at[np.array([0, 1, 0])].add(x)[0])(x3),
        J.grad(lambda x: J.numpy.zeros(3).at[np.array([0, 1, 0])].set(x).sum())(x3),
        J.grad(lambda x: (x[np.array([0, 0, 2])] * x3).sum())(x3),
    )


@case("scatter_max")
def at_max(J):
    return J.grad(lambda x: J.numpy.ones(3).at[np.array([0, 1])].max(x[:2]).sum())(x3)


@case("scatter_min")
def at_min(J):
    return J.grad(lambda x: x.at[np.array([0, 1])].min(1.5).sum())(x3)


@case("a jitted function with static arguments")
def grad_of_jit_static(J):
    f = J.jit(lambda x, n: x**n, static_argnums=1)
    return J.grad(f)(2.0, 3)


@case("closures over outer variables")
def vmapgrad_closure(J):
    return J.grad(lambda w: J.vmap(lambda x: w * x * x)(x3).sum())(2.0), J.vmap(
        lambda w: J.grad(lambda x: w * x * x)(3.0)
    )(x3)


@case("hessians by every composition")
def hessian_nest(J):
    def f(x):
        return J.numpy.sum(J.numpy.sin(x) ** 2) * x[0]

    g = J.grad(f)
    return (
        J.vmap(lambda v: J.jvp(g, (x3,), (v,))[1])(np.eye(3, dtype=np.float32)),
        J.vmap(lambda v: J.vjp(g, x3)[1](v)[0])(np.eye(3, dtype=np.float32)),
        J.vmap(J.linearize(g, x3)[1])(np.eye(3, dtype=np.float32)),
    )


@case("vmap in scan in grad")
def grad_scan_vmap_inner(J):
    return J.grad(
        lambda w: J.lax.scan(lambda c, x: (c + J.vmap(lambda y: y * w * x)(x3).sum(), c), 0.0, x3)[
            0
        ]
    )(2.0)


@case("grad in scan in jit")
def jit_scan_closure(J):
    @J.jit
    def f(w, xs):
        def body(c, x):
            g = J.grad(lambda w: J.numpy.sin(w * x) * c)(w)
            return c + g, g

        return J.lax.scan(body, w, xs)

    return f(0.3, x3), J.grad(lambda w: f(w, x3)[0])(0.3)


@case("branches that close over the variable")
def cond_grad_closure(J):
    return (
        J.grad(lambda w: J.lax.cond(w > 0, lambda x: x * w * w, lambda x: x + w, w))(3.0),
        J.vmap(J.grad(lambda w: J.lax.cond(w > 1.5, lambda x: x * w * w, lambda x: x + w, w)))(x3),
        J.jit(J.grad(lambda w: J.lax.cond(w > 0, lambda x: x * w * w, lambda x: x + w, w)))(3.0),
    )


@case("Python may read what has no derivative")
def read_steps(J):
    """Once rounding refused to become a Python number, as if its gradient would be lost."""
    steps = [J.numpy.floor, J.numpy.ceil, round, J.numpy.trunc, J.numpy.sign, lambda x: x // 1.5]
    inside = [
        J.jit(lambda x: J.numpy.floor(x) * 3),
        lambda x: J.lax.cond(x > 0, J.numpy.floor, J.numpy.ceil, x),
        lambda x: J.lax.scan(lambda c, _: (c + J.numpy.floor(x), None), 0.0, None, length=2)[0],
    ]
    return [
        (
            J.grad(lambda x, f=f: float(f(x)) * x)(2.7),
            J.jvp(lambda x, f=f: np.asarray(f(x)) * x, (2.7,), (1.0,)),
            J.grad(J.grad(lambda x, f=f: float(f(x)) * x**3))(2.7),
        )
        for f in (*steps, *inside)
    ]


@case("device_get gives traced values back")
def get_traced(J):
    return (
        J.grad(lambda x: J.device_get(x) * x)(2.0),
        J.jit(lambda x: J.device_get({"x": x})["x"] * 2)(2.0),
        J.vmap(lambda x: J.device_get(x) + 1)(x3),
    )


@pytest.mark.parametrize("name", CASES)
def test_results_are_jaxs(name):
    check(CASES[name], weak=False)


REFUSED = {
    "grad vec": lambda J: J.grad(lambda x: x)(x3),
    "grad int": lambda J: J.grad(lambda x: x * 2.0)(3),
    "grad tuple": lambda J: J.grad(lambda x: (x, x))(3.0),
    "grad cplx": lambda J: J.grad(lambda x: x)(np.complex64(1j)),
    "grad cplxout": lambda J: J.grad(lambda x: x * 1j)(1.0),
    "grad holo real": lambda J: J.grad(lambda x: x, holomorphic=True)(1.0),
    "grad intout": lambda J: J.grad(lambda x: J.numpy.int32(3))(1.0),
    "grad argnum": lambda J: J.grad(lambda x: x, argnums=1)(1.0),
    "grad str": lambda J: J.grad(lambda x: x[0])((1.0, "a")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_refuses_is_refused_with_its_type(name):
    assert str(raises(REFUSED[name]))


def test_messages_name_the_argument_and_the_fix():
    import tinyjax
    from tinyjax import grad

    with pytest.raises(TypeError, match=r"for params\['n'\].*allow_int"):
        grad(lambda params: 1.0 * params["w"])({"w": 1.0, "n": np.arange(3)})
    with pytest.raises(TypeError, match="write 3.0 instead of 3"):
        grad(lambda x: x * 2.0)(3)
    with pytest.raises(TypeError, match=r"(?s)had shape: \(3,\).*jacrev"):
        grad(lambda x: x)(x3)
    with pytest.raises(TypeError, match="has_aux=True"):
        grad(lambda x: (x, x))(1.0)
    with pytest.raises(TypeError, match="Keyword arguments cannot be differentiated"):
        grad(lambda x: x, argnums=1)(1.0)
    assert tinyjax.grad is grad
