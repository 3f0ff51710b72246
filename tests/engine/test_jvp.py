"""jvp: the results are those of JAX, and so are the refusals."""

from __future__ import annotations

import jax
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


@case("an integer primal has a float0 tangent")
def jvp_int(J):
    return J.jvp(lambda x, n: x * n, (2.0, 3), (1.0, np.zeros((), jax.dtypes.float0)))


@case("an integer output has a float0 tangent")
def jvp_int_out(J):
    return J.jvp(lambda x: (x, J.numpy.int32(3) * J.numpy.ones(2, "int32")), (2.0,), (1.0,))


@case("aux")
def jvp_aux(J):
    return J.jvp(lambda x: (x * x, {"k": x + 1}), (3.0,), (1.0,), has_aux=True)


@case("complex values")
def jvp_complex(J):
    return J.jvp(lambda z: J.numpy.conj(z) * z, (np.complex64(1 + 2j),), (np.complex64(1j),))


@case("a constant of the inner level")
def perturb3(J):
    return J.jvp(lambda x: J.jvp(lambda y: x, (1.0,), (1.0,))[1], (2.0,), (1.0,))


@case("a loop of unknown length")
def fori_dyn(J):
    return J.jvp(
        lambda w: J.lax.fori_loop(0, J.numpy.int32(3), lambda i, v: v * w + i, w), (0.5,), (1.0,)
    )


@case("while_loop")
def while_loop(J):
    return J.jvp(lambda w: J.lax.while_loop(lambda v: v < 10, lambda v: v * w, w), (1.5,), (1.0,))


@case("jvp of while under vmap")
def while_vmap_jvp(J):
    return J.vmap(
        lambda w: J.jvp(
            lambda w: J.lax.while_loop(lambda v: v < 10, lambda v: v * 2 + w, w), (w,), (1.0,)
        )
    )(x3)


@case("a loop that closes over the variable")
def closure_convert_like(J):
    def solver(w):
        return J.lax.while_loop(lambda c: c[1] < 5, lambda c: (c[0] * w, c[1] + 1), (w, 0))[0]

    return J.jvp(solver, (2.0,), (1.0,)), J.jit(J.vmap(lambda w: J.jvp(solver, (w,), (1.0,))))(x3)


@case("a jitted function")
def jvp_jit(J):
    return J.jvp(J.jit(lambda x: J.numpy.sin(x)), (x3,), (x3,))


@case("jvp of scan jvp")
def jvp_of_scan_jvp(J):
    return J.jvp(
        lambda w: J.lax.scan(lambda c, x: (J.jvp(lambda z: z * w * z, (c,), (x,))[1], c), w, x3)[0],
        (2.0,),
        (1.0,),
    )


@case("ckpt jvp")
def ckpt_jvp(J):
    return J.jvp(J.checkpoint(lambda x: J.numpy.sin(x)), (2.0,), (1.0,)), J.vmap(
        J.checkpoint(lambda x: J.numpy.sin(x))
    )(x3)


@pytest.mark.parametrize("name", CASES)
def test_results_are_jaxs(name):
    check(CASES[name], weak=False)


REFUSED = {
    "jvp shape": lambda J: J.jvp(lambda x: x, (x3,), (x3[:2],)),
    "jvp dtype": lambda J: J.jvp(lambda x: x, (x3,), (x3.astype("int32"),)),
    "jvp tree": lambda J: J.jvp(lambda x: x, (x3,), ((x3,),)),
    "jvp nontuple": lambda J: J.jvp(lambda x: x, x3, x3),
    "jvp intprimal": lambda J: J.jvp(lambda x: x, (3,), (1,)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_refuses_is_refused_with_its_type(name):
    assert str(raises(REFUSED[name]))
