"""Exception classes against JAX's, and the house form of messages."""

import pickle
import types

import jax
import numpy as np
import pytest

import tinyjax.errors as public
from tinyjax.core import errors, source

OURS = """
from tinyjax.core import errors

def dot(a, b):
    raise errors.make_error(
        errors.DotShapeError,
        "dot contracts axis 1 of a (size 4) with axis 0 of b (size 3)",
        rule="sizes must be equal",
        operands={"a": a, "b": b},
        fix="Perhaps b should be transposed.",
    )

def solve(a, b):
    return dot(b, a[0])

def plain():
    raise errors.make_error(errors.AxisError, "unbound axis name: i.")

class Array:
    def __init__(self, *shape):
        self.shape, self.dtype = shape, "float32"
    def __getitem__(self, index):
        return Array(*self.shape[1:])
    def __matmul__(self, other):
        return dot(self, other)
    def dot(self, other):
        return dot(self, other)

class Tracer(Array):
    def _origin_msg(self):
        return "  x is argument 0 of loss at train.py:3, traced for jit."
    def __bool__(self):
        raise errors.TracerBoolConversionError(self)
"""

ours = types.ModuleType("ours")
exec(compile(OURS, source.PACKAGE + "/somewhere/below.py", "exec"), ours.__dict__)


def lines_of(f) -> list[str]:
    with pytest.raises(Exception) as caught:
        f()
    return str(caught.value).splitlines()


# --- classes ------------------------------------------------------------------------------------


ALSO_CONCRETIZATION = ("TracerIntegerConversionError", "TracerArrayConversionError")


def test_jax_s_classes_have_jax_s_bases():
    for name in dir(jax.errors):
        theirs = getattr(jax.errors, name)
        if not isinstance(theirs, type):
            continue
        mine = getattr(public, name)

        def bases(cls):
            found = [c.__name__ for c in cls.__mro__]
            return [n for n in found if n not in ("_JAXErrorMixin", "TracerMessage")]

        more = ["ConcretizationTypeError"] if name in ALSO_CONCRETIZATION else []
        wanted = bases(theirs)
        assert bases(mine) == wanted[:1] + more + wanted[1:], name
        assert mine.__module__ == "tinyjax.errors"


def raised_by_jax():
    """(our class, a program that makes JAX raise in the same place)."""
    import jax.numpy as jnp

    ones = jnp.ones
    return [
        (errors.BroadcastError, lambda: ones(3) + ones(4)),
        (errors.DotShapeError, lambda: ones(3) @ ones(4)),
        (errors.ReshapeError, lambda: ones((3, 2)).reshape(4)),
        (errors.ConcatenateError, lambda: jnp.concatenate([ones(3), ones((3, 1))])),
        (errors.AxisError, lambda: jax.lax.axis_index("i")),
        (errors.GradTypeError, lambda: jax.grad(lambda x: x)(ones(3))),
        (errors.GradTypeError, lambda: jax.grad(lambda x: x)(1)),
        (errors.LeafTypeError, lambda: jax.jit(lambda x: x)("a")),
        (errors.AxisSizeError, lambda: jax.vmap(lambda x, y: x)(ones(3), ones(4))),
        (errors.AxesPrefixError, lambda: jax.vmap(lambda x: x, in_axes=((0, 0),))([ones(3)])),
        (errors.CarryTypeError, lambda: jax.lax.scan(lambda c, x: ((c, c), x), 1, ones(3))),
        (errors.StaticArgumentError, lambda: jax.jit(lambda x: 1, static_argnums=0)([1])),
        (errors.ConfigError, lambda: jax.config.update("no_such_option", 1)),
        (errors.DtypeError, lambda: jax.lax.add(ones(3), ones(3, "int32"))),
        (errors.IndexTypeError, lambda: ones(3)["a"]),
    ]


@pytest.mark.parametrize(("ours", "program"), raised_by_jax())
def test_our_classes_subclass_what_jax_raises(ours, program):
    with pytest.raises(Exception) as caught:
        program()
    assert issubclass(ours, caught.type), caught.type


def test_every_class_is_public():
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception) and name != "TracerMessage":
            assert getattr(public, name) is value and name in public.__all__


def test_exceptions_can_be_pickled():
    for name in public.__all__:
        error = getattr(public, name)("what happened")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == "what happened"


# --- the form -----------------------------------------------------------------------------------


def test_an_error_says_what_operands_rule_line_and_fix():
    params, x = {"w1": ours.Array(8, 4)}, ours.Array(3)

    def layer():
        h = params["w1"] @ x
        return h

    line = layer.__code__.co_firstlineno + 1
    function = "test_an_error_says_what_operands_rule_line_and_fix.<locals>.layer"
    assert lines_of(layer) == [
        "dot contracts axis 1 of a (size 4) with axis 0 of b (size 3); sizes must be equal.",
        "  a = params['w1']  f32[8,4]      b = x  f32[3]",
        f'  at test_errors.py:{line} in {function}:  h = params["w1"] @ x',
        "  Perhaps b should be transposed.",
    ]


def test_operands_of_calls_and_methods():
    a, x = ours.Array(8, 4), ours.Array(3)
    expected = "  a  f32[8,4]      b = x  f32[3]"
    assert lines_of(lambda: ours.dot(a, x))[1] == expected
    assert lines_of(lambda: ours.dot(b=x, a=a))[1] == expected
    assert lines_of(lambda: a.dot(x))[1] == expected
    values = [a, x]
    assert lines_of(lambda: ours.dot(*values))[1] == "  a  f32[8,4]      b  f32[3]"


def test_texts_of_another_function_are_not_blamed():
    """`solve(a, b)` ends in a dot of other operands: the user's names must not label them."""
    left, right = ours.Array(8, 4), ours.Array(3)
    assert lines_of(lambda: ours.solve(left, right))[1] == "  a  f32[3]      b  f32[4]"


def test_an_error_without_operands():
    (what, at) = lines_of(lambda: ours.plain())
    assert what == "unbound axis name: i." and at.startswith("  at test_errors.py:")


def test_values_are_described_shortly():
    assert errors.describe_value(np.ones((2, 3), np.int8)) == "i8[2,3]"
    assert errors.describe_value(np.ones((), np.complex64)) == "c64[]"
    assert errors.describe_value("text") == "'text'"
    assert len(errors.describe_value("x" * 1000)) == 60


def test_tracer_errors_name_origin_line_and_remedy():
    def program():
        if ours.Tracer(3):
            pass

    head, origin, at, fix = lines_of(program)
    assert head == "Attempted boolean conversion of traced array with shape float32[3]."
    assert origin == "  x is argument 0 of loss at train.py:3, traced for jit."
    assert at.endswith("if ours.Tracer(3):")
    assert "static_argnames" in fix and "lax.cond" in fix


def test_tracer_errors_take_a_context_or_a_whole_message():
    error = errors.ConcretizationTypeError(ours.Tracer(3), "The problem arose with `float`.")
    assert "The problem arose with `float`." in str(error).splitlines()
    assert str(errors.TracerArrayConversionError("all of it")) == "all of it"


def test_the_first_lines_keep_jax_s_sense():
    import jax.numpy as jnp

    programs = {
        errors.TracerBoolConversionError: lambda x: 1 if x[0] else 2,
        errors.ConcretizationTypeError: lambda x: float(x[0]),
        errors.TracerIntegerConversionError: lambda x: range(x[0]),
        errors.TracerArrayConversionError: lambda x: np.asarray(x[0]),
    }

    class Scalar(ours.Tracer):
        def __init__(self):
            self.shape, self.dtype = (), "int32"

    for cls, program in programs.items():
        with pytest.raises(getattr(jax.errors, cls.__name__)) as caught:
            jax.jit(program)(jnp.ones(3, "int32"))
        theirs = str(caught.value).splitlines()[0].split("traced")[0]
        assert str(cls(Scalar())).splitlines()[0].startswith(theirs)
