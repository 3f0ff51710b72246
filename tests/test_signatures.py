"""Names and parameters of the public functions, against JAX's: `inspect.signature` of the two must
agree, or the difference stands in a table with its reason."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

MODULES = [
    "", "ad_checkpoint", "api_util", "core", "custom_batching", "custom_derivatives", "debug",
    "export", "extend.core", "extend.linear_util", "flatten_util", "lax", "lax.linalg", "stages", "test_util", "tree", "tree_util",
    "experimental.checkify", "checkpoint_policies",
]  # fmt: skip
NUMERICAL = [  # their `device`, `out_sharding` and `copy` are answered in one place, for all
    "dlpack", "dtypes", "nn", "nn.initializers", "numpy", "numpy.fft", "numpy.linalg", "ops",
    "random",
]  # fmt: skip
UFUNCS = (
    "add bitwise_and bitwise_or bitwise_xor logaddexp logaddexp2 logical_and logical_or "
    "logical_xor maximum minimum multiply negative subtract"
).split()
SINGLE = [  # of modules that are not compared as a whole
    ("experimental", "io_callback"), ("experimental.jet", "jet"), ("experimental.ode", "odeint"),
    ("numpy", "vectorize"), ("scipy.linalg", "expm"), ("scipy.linalg", "expm_frechet"),
]  # fmt: skip

MADE_HERE = "made by the library, not by users"
DIFFERENT: dict[str, str] = {
    # sentinels and older forms
    "checking_leaks": "the same object as check_tracer_leaks",
    "checkpoint": "without fun it is a decorator",
    "remat": "the same function as checkpoint",
    "jit": "in_shardings and out_shardings may be None, which means the same; max_traces is ours",
    "lax.random_gamma_grad": "named parameters where JAX has *args",
    "transfer_guard": "all states have the same form",
    # what does not exist here
    "lax.linalg.eig": "use_magma is for GPUs; derivatives of eigenvectors need no permission",
    "ShapeDtypeStruct": "manual_axis_type and is_ref belong to meshes and Pallas",
    "core.ShapedArray": "manual_axis_type and memory_space belong to meshes and Pallas",
    "core.AbstractValue": "the same class as ShapedArray",
    "export.export": "_override_lowering_rules is private",
    "stages.Traced.lower": "_private_parameters is private",
    "stages.Compiled.call": "an ordinary method",
    "api_util.flatten_fun": "options that are private",
    "api_util.flatten_fun_nokwargs": "options that are private",
    "extend.linear_util.WrappedFun": "no stack of transformations",
    # other defaults
    "api_util.debug_info": "no default paths of results",
    "test_util.check_jvp": "eps is chosen by dtype",
    "test_util.check_vjp": "eps is chosen by dtype",
    "experimental.checkify.checkify": "the default is our FailedCheckError",
    # plain functions; `out` and `where` of JAX's may only be None
    **{f"numpy.{name}": "a function with a ufunc's methods" for name in UFUNCS},
    "numpy.einsum": "_dot_general is private",
    # more is accepted
    "numpy.ndarray": "the same class as Array",
    "numpy.result_type": "the same function as dtypes.result_type, which returns the weak flag too",
    "nn.softmax": "initial, of older releases",
    "nn.log_softmax": "initial, of older releases",
    "nn.initializers.Initializer": "a protocol",
    "random.lognormal": "a default that is a Python number",
    "debug.breakpoint": "stdin and stdout, for tests; token is XLA's",
    "debug.print": "_use_logging is private",
    "debug.log": "_use_logging is private",
    "api_util.shaped_abstractify": "a name for messages",
    "extend.core.Literal": "the aval follows from the value",
    "extend.core.gensym": "the suffix of older releases",
    "extend.core.jaxpr_as_fun": "the arguments go to what it returns, as they must in JAX",
    "extend.core.new_jaxpr_eqn": "effects are empty by default",
}
CONSTRUCTORS = {  # classes that the library makes; their attributes are compared
    "Array", "Device", "Ref", "Shard", "export.DisabledSafetyCheck", "export.Exported",
    "experimental.checkify.Error", "extend.core.ClosedJaxpr", "extend.core.DebugInfo",
    "extend.core.Effect", "extend.core.Jaxpr", "extend.core.JaxprEqn", "extend.core.Primitive",
    "extend.core.Var", "stages.Compiled", "stages.Lowered", "stages.Traced", "stages.Wrapped",
    "core.Tracer", "tree_util.DictKey", "tree_util.FlattenedIndexKey", "tree_util.GetAttrKey",
    "tree_util.PyTreeDef", "tree_util.SequenceKey", "tree_util.Partial",
}  # fmt: skip

MESH = "needs a mesh of devices"
PALLAS = "Pallas"
XLA = "names a part of XLA or of its programs"
INTERPRETER = "an interpreter is a loop over equations here (docs/writing_an_interpreter.md)"
INTERNAL = "internal to JAX"
OTHER = "not a transformation; not written yet"
OLD = "an older name"
ABSENT: dict[str, str] = {
    **dict.fromkeys(
        ("NamedSharding", "P", "make_mesh", "make_array_from_process_local_data", "reshard",
         "set_mesh", "shard_map", "smap", "remove_size_one_mesh_axis_from_type", "lax.pcast",
         "lax.psend", "lax.precv", "debug.inspect_array_sharding", "debug.visualize_array_sharding",
         "debug.visualize_sharding", "memory"), MESH),
    **dict.fromkeys(("ds",), PALLAS),
    **dict.fromkeys(
        ("jax2tf_associative_scan_reductions", "make_user_context", "extend.core.AbstractToken",
         "extend.core.Token", "lax.after_all", "lax.create_token", "lax.dce_sink", "lax.stage",
         "lax.composite", "lax.RandomAlgorithm", "lax.rng_bit_generator", "lax.rng_uniform",
         "lax.DotAlgorithm", "lax.DotAlgorithmPreset", "ad"), XLA),
    **dict.fromkeys(
        ("extend.core.CallPrimitive", "extend.core.TraceTag", "extend.core.call_impl",
         "extend.core.find_top_trace", "extend.core.set_current_trace",
         "extend.core.take_current_trace", "core.Trace", "extend.linear_util.cache",
         "extend.linear_util.merge_linear_aux", "extend.linear_util.transformation",
         "extend.linear_util.transformation2", "extend.linear_util.transformation_with_aux",
         "extend.linear_util.transformation_with_aux2"), INTERPRETER),
    **dict.fromkeys(
        ("api_util.argnums_partial", "api_util.donation_vector", "api_util.flatten_axes",
         "api_util.rebase_donate_argnums", "extend.linear_util.Callable", "core.ParamDict", "core.Value", "debug.DebugEffect", "debug.OrderedDebugEffect",
         "experimental.checkify.ErrorCategory"), INTERNAL),
    **dict.fromkeys(
        ("lax.RaggedDotDimensionNumbers", "lax.ragged_all_to_all", "lax.ragged_dot_general",
         "lax.scaled_dot", "print_environment_info", "lax.linalg.cholesky_update",
         "lax.linalg.hessenberg", "lax.linalg.ormqr", "lax.linalg.qdwh", "lax.linalg.schur",
         "lax.linalg.tridiagonal", "nn.get_scaled_dot_general_config", "nn.scaled_dot_general",
         "nn.scaled_matmul", "numpy.int1", "numpy.uint1"), OTHER),
    **dict.fromkeys(("host_count", "host_id", "host_ids"), OLD),
}  # fmt: skip

ABSENT_ATTRIBUTES: dict[str, str] = {
    **dict.fromkeys(
        ("Device.addressable_memories", "Device.client", "Device.default_memory",
         "Device.get_stream_for_external_ready_events", "Device.live_buffers", "Device.memory",
         "Device.poison_execution", "Device.task_id", "stages.Compiled.input_formats",
         "stages.Compiled.output_formats", "stages.Traced.lojax", "export.Exported.in_shardings_jax",
         "export.Exported.out_shardings_jax", "export.Exported.mlir_module",
         "ShapeDtypeStruct.format", "ShapeDtypeStruct.is_ref",
         "ShapeDtypeStruct.manual_axis_type"), XLA),
}  # fmt: skip
REFS = {"new_ref", "empty_ref", "free_ref"}  # their options are memory spaces of accelerators
COMPARED_ATTRIBUTES = (
    "Array", "Device", "ShapeDtypeStruct", "custom_jvp", "custom_vjp", "export.Exported",
    "stages.Compiled", "stages.Lowered", "stages.Traced", "stages.Wrapped",
    "custom_batching.custom_vmap",
)  # fmt: skip


def module(root: str, name: str) -> Any:
    if name == "checkpoint_policies":
        return importlib.import_module(root).checkpoint_policies
    return importlib.import_module(f"{root}.{name}" if name else root)


def public() -> Iterator[tuple[str, Any, Any]]:
    """(name, JAX's object, ours or None): what JAX's modules show, primitives and modules aside."""
    names = MODULES + NUMERICAL
    pairs = [(m, n) for m in names for n in dir(module("jax", m)) if not n.startswith("_")]
    for name, attribute in pairs + SINGLE:
        theirs = getattr(module("jax", name), attribute, None)
        if theirs is None or inspect.ismodule(theirs) or attribute.endswith("_p"):
            continue
        yield f"{name}.{attribute}".lstrip("."), theirs, getattr(module("tinyjax", name), attribute, None)  # fmt: skip


NAMES = {name: (theirs, ours) for name, theirs, ours in public()}


def parameters(function: Any) -> list[tuple[str, str, str]] | None:
    """Name, kind and default of each parameter; sentinels are all the same."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    rows = []
    for p in found:
        default = "" if p.default is p.empty else repr(p.default)
        if any(mark in default for mark in (" object at ", "missing", "not-specified", "Deprec")):
            default = "<missing>"
        unnamed = p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY)
        rows.append(("" if unnamed else p.name, p.kind.name, default))
    return rows


def test_every_public_name_is_here_or_has_a_reason():
    missing = {name for name, (_, ours) in NAMES.items() if ours is None}
    assert missing <= ABSENT.keys(), "new in JAX, or lost here"
    assert ABSENT.keys() <= NAMES.keys(), "no longer in JAX"


def is_class(x: Any) -> bool:
    return inspect.isclass(x) and not issubclass(x, BaseException)


@pytest.mark.parametrize("name", [n for n, (_, ours) in NAMES.items() if callable(ours)])
def test_parameters_are_those_of_jax(name: str):
    theirs, ours = NAMES[name]
    if inspect.isclass(theirs) and issubclass(theirs, BaseException):
        assert issubclass(ours, BaseException)
        return
    if name in CONSTRUCTORS:
        assert is_class(ours), MADE_HERE
        return
    want, got = parameters(theirs), parameters(ours)
    if want is None:  # an alias of typing, or a function in C
        return
    assert (want != got) == (name in DIFFERENT), (
        f"{name}: JAX has {want}, here is {got}; {DIFFERENT.get(name, 'no reason is stated')}"
    )


METHODS = sorted(
    f"{name}.{attribute}"
    for name in COMPARED_ATTRIBUTES
    for attribute in dir(NAMES[name][0])
    if not attribute.startswith("_")
)


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_those_of_jax(name: str):
    owner, attribute = name.rsplit(".", 1)
    theirs, ours = NAMES[owner]
    if not hasattr(ours, attribute):
        fields = [f for base in ours.__mro__ for f in getattr(base, "__annotations__", ())]
        assert attribute in fields or name in ABSENT_ATTRIBUTES
        return
    assert name not in ABSENT_ATTRIBUTES, "it is here now"
    want, got = getattr(theirs, attribute), getattr(ours, attribute)
    if inspect.isfunction(want) and owner != "Array":  # those of arrays: tests/numpy
        assert (parameters(want) != parameters(got)) == (name in DIFFERENT)


def test_the_tables_name_nothing_that_is_gone():
    assert DIFFERENT.keys() <= NAMES.keys() | set(METHODS)
    assert CONSTRUCTORS <= NAMES.keys()
    assert ABSENT_ATTRIBUTES.keys() <= set(METHODS)


def idle_parameters(function: Any) -> list[str]:
    """Parameters that the function never reads and its docstring does not mention."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if not isinstance(tree, ast.FunctionDef):  # a lambda
        return []
    read = {n.id for part in tree.body for n in ast.walk(part) if isinstance(n, ast.Name)}
    text = ast.get_docstring(tree) or ""
    names = [a.arg for a in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
    return [n for n in names if n not in {*read, "self"} and f"`{n}`" not in text]


def test_an_option_that_changes_nothing_says_so():
    numerical = tuple(f"{name}." for name in NUMERICAL)
    public = [ours for name, (_, ours) in NAMES.items() if not name.startswith(numerical)]
    for owner in [x for x in public if is_class(x)]:
        public += [getattr(owner, name) for name in dir(owner) if not name.startswith("_")]
    functions = {inspect.unwrap(x) for x in public if inspect.isfunction(x)}
    functions = {f for f in functions if f.__module__.startswith("tinyjax.")}
    assert len(functions) > 250
    found = {f.__qualname__: idle_parameters(f) for f in functions if f.__name__ not in REFS}
    assert {name: idle for name, idle in found.items() if idle} == {}
