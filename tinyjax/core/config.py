"""Options: one table, one object, thread-local overrides.

`config` is a `threading.local`: the value everybody sees is a class attribute, an override made by
a `with` block is an attribute of this thread's instance dictionary and shadows it. So reading
`config.jax_enable_x64` is one attribute read (39 ns; a `__getattr__` on the class would make it
94 ns, which is why unknown names get Python's own AttributeError, "Did you mean" included).

Names and meanings are JAX's. Options that steer XLA, TPUs or JAX's internals are accepted and do
nothing (`NO_EFFECT`), so that programs which set them run; so do those of `IDLE`, which say why. An option `jax_foo` starts from the
environment variable TINYJAX_FOO, else JAX_FOO; `tinyjax_foo` from TINYJAX_FOO. The environment is
read once, here, at import.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from tinyjax.core.locks import shared_lock
from tinyjax.core.source import api_boundary

F = TypeVar("F", bound=Callable[..., Any])
Parser = Callable[[Any], Any]


# Parsers: value or environment string -> value, or ValueError saying what is allowed.

TRUE_WORDS = ("y", "yes", "t", "true", "on", "1")
FALSE_WORDS = ("n", "no", "f", "false", "off", "0")


def parse_bool(value: Any) -> bool:
    """True, False, 0, 1 or one of the words JAX's environment variables accept."""
    word = str(value).lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError("expected True or False")


def parse_number(kind: type) -> Parser:
    """A parser for numbers of `kind` (int or float); numeric strings come from the environment."""

    def parse(value: Any) -> Any:
        try:
            number = kind(value)
        except (TypeError, ValueError):
            raise ValueError(f"expected {kind.__name__}") from None
        if not isinstance(value, str) and number != value:
            raise ValueError(f"expected {kind.__name__}")
        return number

    return parse


def parse_enum(*allowed: str | None) -> Parser:
    """A parser for one of `allowed`."""

    def parse(value: Any) -> str | None:
        if value not in allowed:
            raise ValueError("expected one of " + ", ".join(map(repr, allowed)))
        return None if value is None else str(value)

    return parse


def parse_text(value: Any) -> str | None:
    """A string, a path, or None."""
    if value is None or isinstance(value, (str, os.PathLike)):
        return None if value is None else os.fspath(value)
    raise ValueError("expected a string or None")


def parse_anything(value: Any) -> Any:
    """Any hashable object: option values are part of trace keys."""
    hash(value)
    return value


MATMUL_PRECISIONS = (
    None,
    "default", "high", "highest", "bfloat16", "tensorfloat32", "float32",
    "ANY_F8_ANY_F8_F32", "ANY_F8_ANY_F8_F32_FAST_ACCUM", "ANY_F8_ANY_F8_ANY",
    "ANY_F8_ANY_F8_ANY_FAST_ACCUM", "F16_F16_F16", "F16_F16_F32", "BF16_BF16_BF16",
    "BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "BF16_BF16_F32_X9", "TF32_TF32_F32",
    "TF32_TF32_F32_X3", "F32_F32_F32", "F64_F64_F64",
)  # fmt: skip
PRNG_IMPLS = ("threefry2x32", "threefry4x32", "rbg", "unsafe_rbg", "philox2x32", "philox4x32")
TRANSFER_LEVELS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")
TRACEBACK_MODES = ("off", "tracebackhide", "remove_frames", "quiet_remove_frames", "auto")


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table. `traces`: two values may give two programs, so it is in the epoch."""

    name: str
    default: Any
    parse: Parser
    traces: bool
    meaning: str


def flag(name: str, default: bool, meaning: str, traces: bool = False) -> Option:
    """A bool option."""
    return Option(name, default, parse_bool, traces, meaning)


def choice(
    name: str,
    default: str | None,
    allowed: tuple[str | None, ...],
    meaning: str,
    traces: bool = False,
) -> Option:
    """An option with a closed list of values."""
    return Option(name, default, parse_enum(*allowed), traces, meaning)


def idle(option: Option) -> Option:
    """An option that is accepted and changes nothing; its meaning says why."""
    return replace(option, meaning=f"no effect: {option.meaning}")


# Options that change the traced graph or the program made from it.
TRACED = (
    flag("jax_enable_x64", False, "64-bit dtypes are kept; off: narrowed at user entry", True),
    choice(
        "jax_explicit_x64_dtypes",
        "warn",
        ("warn", "error", "allow"),
        "what an explicit 64-bit dtype does with x64 off",
        True,
    ),
    choice(
        "jax_numpy_dtype_promotion",
        "standard",
        ("standard", "strict"),
        "implicit promotion rules",
        True,
    ),
    choice(
        "jax_numpy_rank_promotion",
        "allow",
        ("allow", "warn", "raise"),
        "implicit rank promotion",
        True,
    ),
    choice(
        "jax_default_matmul_precision",
        None,
        MATMUL_PRECISIONS,
        "precision of dots that do not say",
        True,
    ),
    choice(
        "jax_default_prng_impl", "threefry2x32", PRNG_IMPLS, "implementation of new PRNG keys", True
    ),
    Option("jax_random_seed_offset", 0, parse_number(int), True, "added to every PRNG seed"),
    flag("jax_enable_custom_prng", False, "PRNGKey makes typed keys", True),
    flag("jax_disable_jit", False, "jit runs the Python function; control flow is Python's", True),
    flag("jax_debug_nans", False, "an operation that makes a NaN raises FloatingPointError", True),
    flag("jax_debug_infs", False, "an operation that makes an inf raises FloatingPointError", True),
    flag(
        "tinyjax_hardened", False, "programs check indices and buffer bounds while they run", True
    ),
)

# Options that are read when something is compiled, run or reported.
UNTRACED = (
    Option("jax_num_cpu_devices", -1, parse_number(int), False, "CPU devices; -1: one"),
    flag("jax_enable_checks", False, "the same as tinyjax_verify = 1, if that is 0"),
    flag("jax_log_compiles", False, "each trace of a jitted function is logged as a warning"),
    flag("jax_explain_cache_misses", False, "and so is the reason why it was needed"),
    flag("jax_no_tracing", False, "tracing a jitted function raises"),
    choice(
        "jax_traceback_filtering",
        "auto",
        TRACEBACK_MODES,
        "how our frames are hidden in tracebacks",
    ),
    choice(
        "jax_legacy_prng_key", "allow", ("allow", "warn", "error"), "what a raw uint32 key does"
    ),
    flag("jax_enable_compilation_cache", True, "compiled programs may be kept on disk"),
    Option("jax_compilation_cache_dir", None, parse_text, False, "where they are kept"),
    Option("jax_compilation_cache_max_size", -1, parse_number(int), False, "bytes; -1: no limit"),
    Option(
        "tinyjax_verify",
        0,
        parse_number(int),
        False,
        "stage verifiers: 0 off, 1 between stages, 2 after every pass",
    ),
    Option(
        "tinyjax_cache_dir",
        None,
        parse_text,
        False,
        "program cache; None: jax_compilation_cache_dir, else the user's cache folder",
    ),
    Option(
        "tinyjax_num_threads", 0, parse_number(int), False, "threads per CPU device; 0: all cores"
    ),
    Option("tinyjax_traceback", 0, parse_number(int), False, "1: user tracebacks keep our frames"),
)

# JAX's options whose values are checked, and then change nothing.
IDLE = (
    idle(
        flag(
            "jax_threefry_partitionable", True, "random bits are always a function of key and index"
        )
    ),
    idle(flag("jax_high_dynamic_range_gumbel", False, "one method")),
    idle(Option("jax_default_device", None, parse_anything, False, "there is one memory")),
    idle(flag("jax_debug_key_reuse", False, "keys are not tracked")),
    idle(flag("jax_softmax_custom_jvp", False, "softmax always has a rule of its own")),
    idle(
        flag("jax_allow_f16_reductions", True, "sums of narrow floats are accumulated in float32")
    ),
    idle(
        flag("jax_check_static_indices", False, "out of bounds, constant indices do what others do")
    ),
    idle(
        choice(
            "jax_error_checking_behavior_nan",
            "ignore",
            ("ignore", "raise"),
            "use checkify or jax_debug_nans",
        )
    ),
    idle(
        choice("jax_error_checking_behavior_divide", "ignore", ("ignore", "raise"), "use checkify")
    ),
    idle(choice("jax_error_checking_behavior_oob", "ignore", ("ignore", "raise"), "use checkify")),
    idle(flag("jax_auto_pcast", True, "there are no meshes yet")),
    idle(flag("jax_no_execution", False, "only tracing can be forbidden (jax_no_tracing)")),
    idle(Option("jax_platforms", None, parse_text, False, "there is the CPU")),
    idle(Option("jax_platform_name", "", parse_text, False, "there is the CPU")),
    idle(
        flag(
            "jax_check_tracer_leaks",
            False,
            "a tracer that outlives its trace always raises when it is used",
        )
    ),
    idle(flag("jax_disable_most_optimizations", False, "there is one way to compile")),
    idle(flag("jax_pprint_use_color", True, "jaxprs are printed plain")),
    idle(flag("jax_raise_persistent_cache_errors", False, "a broken cache entry is made again")),
    idle(
        Option(
            "jax_persistent_cache_min_compile_time_secs",
            1.0,
            parse_number(float),
            False,
            "every kernel is kept",
        )
    ),
    idle(
        Option(
            "jax_persistent_cache_min_entry_size_bytes",
            0,
            parse_number(int),
            False,
            "every kernel is kept",
        )
    ),
    idle(
        Option(
            "jax_captured_constants_warn_bytes",
            2_000_000_000,
            parse_number(int),
            False,
            "captured arrays are arguments, never constants",
        )
    ),
    idle(
        choice(
            "jax_transfer_guard",
            None,
            (None, *TRANSFER_LEVELS),
            "nothing is copied between devices",
        )
    ),
    idle(
        choice(
            "jax_transfer_guard_host_to_device",
            None,
            (None, *TRANSFER_LEVELS),
            "nothing is copied between devices",
        )
    ),
    idle(
        choice(
            "jax_transfer_guard_device_to_device",
            None,
            (None, *TRANSFER_LEVELS),
            "nothing is copied between devices",
        )
    ),
    idle(
        choice(
            "jax_transfer_guard_device_to_host",
            None,
            (None, *TRANSFER_LEVELS),
            "nothing is copied between devices",
        )
    ),
    idle(
        choice(
            "jax_array_garbage_collection_guard",
            None,
            (None, "allow", "log", "fatal"),
            "memory goes back when the last reference goes",
        )
    ),
    idle(
        choice(
            "jax_logging_level",
            "NOTSET",
            ("NOTSET", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
            "set the level of the logger tinyjax",
        )
    ),
    idle(Option("jax_debug_log_modules", "", parse_text, False, "there is one logger, tinyjax")),
)

# JAX's options that steer what does not exist here: XLA, TPU and GPU clients, JAX's internals.
NO_EFFECT: Mapping[str, bool | int | float | str | None] = {
    "check_vma": False,
    "eager_constant_folding": False,
    "jax2tf_associative_scan_reductions": False,
    "jax2tf_default_native_serialization": True,
    "jax_backend_target": "",
    "jax_bcoo_cusparse_lowering": False,
    "jax_captured_constants_report_frames": 0,
    "jax_check_proxy_envs": True,
    "jax_compilation_cache_check_contents": False,
    "jax_compilation_cache_expect_pgle": False,
    "jax_compilation_cache_include_metadata_in_key": False,
    "jax_compiler_detailed_logging_min_ops": 10,
    "jax_compiler_enable_remat_pass": True,
    "jax_cpu_collectives_implementation": "gloo",
    "jax_cpu_enable_async_dispatch": True,
    "jax_cpu_get_global_topology_timeout_minutes": 5,
    "jax_cpu_get_local_topology_timeout_minutes": 2,
    "jax_cross_host_transfer_socket_address": "",
    "jax_cross_host_transfer_timeout_seconds": None,
    "jax_cross_host_transfer_transfer_size": None,
    "jax_cross_host_transport_addresses": "",
    "jax_cuda_visible_devices": "all",
    "jax_custom_vjp3": False,
    "jax_debug_leaked_clients_on_clear_backends": False,
    "jax_disable_bwd_checks": False,
    "jax_disable_vmap_shmap_error": False,
    "jax_disallow_mesh_context_manager": False,
    "jax_distributed_debug": False,
    "jax_dump_ir_modes": "stablehlo",
    "jax_dump_ir_to": "",
    "jax_embedded_constants_max_bytes": 32,
    "jax_enable_pgle": False,
    "jax_enable_preemption_service": True,
    "jax_enable_recoverability": False,
    "jax_exec_time_optimization_effort": 0.0,
    "jax_experimental_unsafe_xla_runtime_errors": False,
    "jax_export_calling_convention_version": 10,
    "jax_export_ignore_forward_compatibility": False,
    "jax_force_dcn_cross_host_transfers": False,
    "jax_hlo_source_file_canonicalization_regex": None,
    "jax_include_debug_info_in_dumps": True,
    "jax_include_full_tracebacks_in_locations": True,
    "jax_log_checkpoint_residuals": False,
    "jax_memory_fitting_effort": 0.0,
    "jax_memory_fitting_level": "O2",
    "jax_mock_gpu_topology": "",
    "jax_mosaic_allow_hlo": False,
    "jax_mutable_array_checks": True,
    "jax_oneapi_visible_devices": "all",
    "jax_optimization_level": "UNKNOWN",
    "jax_pallas_enable_debug_checks": False,
    "jax_pallas_poison_buffers": False,
    "jax_pallas_use_mosaic_gpu": True,
    "jax_pallas_verbose_errors": False,
    "jax_persistent_cache_enable_xla_caches": "xla_gpu_per_fusion_autotune_cache_dir",
    "jax_pgle_aggregation_percentile": 90,
    "jax_pgle_profiling_runs": 3,
    "jax_pjrt_client_create_options": None,
    "jax_ragged_dot_use_gpu_pallas_triton_lowering": False,
    "jax_ragged_dot_use_ragged_dot_instruction": True,
    "jax_refs_to_pins": False,
    "jax_remat3": False,
    "jax_remove_custom_partitioning_ptr_from_cache_key": False,
    "jax_remove_size_one_mesh_axis_from_type": False,
    "jax_rocm_visible_devices": "all",
    "jax_scan3": False,
    "jax_send_traceback_to_runtime": "off",
    "jax_serialization_version": 0,
    "jax_share_binary_between_hosts": False,
    "jax_share_binary_between_hosts_timeout_ms": 1_200_000,
    "jax_sort_devices_by_process_index": True,
    "jax_source_url_schema": None,
    "jax_thread_guard": False,
    "jax_threefry_gpu_kernel_lowering": False,
    "jax_traceback_in_locations_limit": 100,
    "jax_tracer_error_num_traceback_frames": 5,
    "jax_use_direct_linearize": True,
    "jax_use_emit_pipeline_primitive": False,
    "jax_use_magma": "auto",
    "jax_use_shardy_partitioner": True,
    "jax_use_simplified_jaxpr_constants": False,
    "jax_xla_backend": "",
    "jax_xla_profile_version": 0,
    "mock_num_gpu_processes": 0,
}

OPTIONS: dict[str, Option] = {option.name: option for option in TRACED + UNTRACED + IDLE}
OPTIONS |= {
    name: Option(name, default, parse_anything, False, "no effect: it is for XLA or other hardware")
    for name, default in NO_EFFECT.items()
}
TRACE_NAMES = tuple(option.name for option in TRACED)
CHECKS_OFF = {"jax_debug_nans": False, "jax_debug_infs": False}


def parsed(name: str, value: Any, source: str = "") -> Any:
    """`value` as option `name` stores it; errors name the option, the value and what is allowed."""
    try:
        return OPTIONS[name].parse(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"invalid value {value!r} for {source or name}: {error}") from None


def unknown_option(name: str) -> AttributeError:
    """JAX's "Unrecognized config option", with the nearest names."""
    import difflib  # 1 ms, needed on this path only

    near = difflib.get_close_matches(name, OPTIONS, n=3)
    hint = f"; near matches: {', '.join(near)}" if near else "; see tinyjax.config.values"
    return AttributeError(f"Unrecognized config option: {name}{hint}")


class Config(threading.local):
    """The options as attributes: class attribute = everybody's value, instance = this thread's."""

    # (generation of the global values this was computed at, interned id of the trace options)
    _epoch: ClassVar[tuple[int, int]] = (-1, 0)
    _generation: ClassVar[int] = 0
    _interned: ClassVar[dict[tuple[Any, ...], int]] = {}
    _unchecked: ClassVar[dict[int, int]] = {}
    _hooks: ClassVar[dict[str, list[Callable[[Any], None]]]] = {}
    _lock: ClassVar[Any] = shared_lock()

    @api_boundary
    def update(self, name: str, value: Any) -> None:
        """Set an option for every thread; a `with` block that is open somewhere keeps its value.

        Raises: AttributeError for an unknown name (with near matches), ValueError for a value that
        the option does not have; a hook may raise too, and then nothing changes.
        """
        if name not in OPTIONS:
            raise unknown_option(name)
        value = parsed(name, value)
        with self._lock:
            for hook in self._hooks.get(name, ()):
                hook(value)
            setattr(Config, name, value)
            Config._generation += 1

    def before_update(self, name: str, hook: Callable[[Any], None]) -> None:
        """Call `hook(new value)` before each `update` of `name`; it raises to refuse.

        For options that other layers cannot follow once they have started, such as
        `jax_num_cpu_devices` after the devices exist.
        """
        if name not in OPTIONS:
            raise unknown_option(name)
        self._hooks.setdefault(name, []).append(hook)

    def read(self, name: str) -> Any:
        """The value in this thread, by name."""
        if name not in OPTIONS:
            raise unknown_option(name)
        return getattr(self, name)

    @property
    def values(self) -> dict[str, Any]:
        """Every option with its value in this thread."""
        return {name: getattr(self, name) for name in OPTIONS}

    def epoch(self) -> int:
        """A small int that is equal exactly when all options that affect tracing are equal.

        Cost: one attribute read and a comparison; after a change, one tuple of the trace options
        (about 1 us), interned for the life of the process.
        """
        generation, epoch = self._epoch
        return epoch if generation == Config._generation else self._intern_epoch()

    def trace_epoch(self) -> int:
        """`epoch` as it would be without the options that only check results: Python's functions are
        not traced again for those."""
        return self._unchecked[self.epoch()]

    def trace_options(self) -> dict[str, Any]:
        """The options of which `trace_epoch` tells whether they are equal."""
        return {name: getattr(self, name) for name in TRACE_NAMES if name not in CHECKS_OFF}

    def _intern_epoch(self) -> int:
        with self._lock:
            generation = Config._generation
            options = {name: getattr(self, name) for name in TRACE_NAMES}
            ids = self._interned
            epoch = ids.setdefault(tuple(options.values()), len(ids))
            options.update(CHECKS_OFF)
            self._unchecked[epoch] = ids.setdefault(tuple(options.values()), len(ids))
        self.__dict__["_epoch"] = (generation, epoch)
        return epoch

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in OPTIONS:
            raise unknown_option(name)
        raise AttributeError(f"set options with config.update({name!r}, {value!r})")


def from_environment(option: Option) -> Any:
    """The starting value: TINYJAX_FOO, else JAX_FOO (for jax_foo), else the default."""
    stem = option.name.removeprefix("tinyjax_").removeprefix("jax_").upper()
    variables = [f"TINYJAX_{stem}"]
    if option.name.startswith("jax_"):
        variables.append(f"JAX_{stem}")
    for variable in variables:
        text = os.environ.get(variable)
        if text is not None:
            return parsed(option.name, text, f"environment variable {variable}")
    return option.default


for _option in OPTIONS.values():
    setattr(Config, _option.name, from_environment(_option))

config = Config()


class _Missing:
    """The default of a parameter for which None is a value."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING: Any = _Missing()


class OptionContext:
    """One `with` block (or decorated function) in which an option has another value.

    Thread-local and re-entrant; on leaving, the value and the epoch of before are back.
    """

    __slots__ = ("name", "saved", "value")

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = parsed(name, value)
        self.saved: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        own = config.__dict__
        self.saved.append((own.get(self.name, MISSING), own.get("_epoch", MISSING)))
        own[self.name] = self.value
        own["_epoch"] = (-1, 0)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        own = config.__dict__
        value, epoch = self.saved.pop()
        for key, old in ((self.name, value), ("_epoch", epoch)):
            if old is MISSING:
                own.pop(key, None)
            else:
                own[key] = old

    def __call__(self, function: F) -> F:
        """As a decorator: each call runs in a block of its own."""

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with OptionContext(self.name, self.value):
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


class OptionState:
    """What JAX calls a state: `state(value)` makes a context, `state.value` reads the option."""

    def __init__(self, name: str) -> None:
        option = OPTIONS[name]
        self.name = name
        self.__name__ = name.removeprefix("jax_")
        self.__doc__ = f"Context manager for `{name}`: {option.meaning}."
        self.default = True if option.parse is parse_bool else MISSING

    def __call__(self, new_val: Any = MISSING) -> OptionContext:
        if new_val is MISSING:
            new_val = self.default
        if new_val is MISSING:
            raise TypeError(
                f"{self.__name__}() needs the value that {self.name} has inside the block"
            )
        return OptionContext(self.name, new_val)

    @property
    def value(self) -> Any:
        """The option's value in this thread."""
        return getattr(config, self.name)

    def __bool__(self) -> bool:
        raise TypeError(f"bool() of {self.__name__} is always a mistake; use {self.__name__}.value")

    def __repr__(self) -> str:
        return f"<option {self.name}={self.value!r}>"


enable_x64 = OptionState("jax_enable_x64")
debug_nans = OptionState("jax_debug_nans")
debug_infs = OptionState("jax_debug_infs")
debug_key_reuse = OptionState("jax_debug_key_reuse")
check_tracer_leaks = OptionState("jax_check_tracer_leaks")
checking_leaks = check_tracer_leaks
enable_checks = OptionState("jax_enable_checks")
enable_custom_prng = OptionState("jax_enable_custom_prng")
softmax_custom_jvp = OptionState("jax_softmax_custom_jvp")
log_compiles = OptionState("jax_log_compiles")
explain_cache_misses = OptionState("jax_explain_cache_misses")
no_tracing = OptionState("jax_no_tracing")
no_execution = OptionState("jax_no_execution")
default_device = OptionState("jax_default_device")
default_matmul_precision = OptionState("jax_default_matmul_precision")
default_prng_impl = OptionState("jax_default_prng_impl")
legacy_prng_key = OptionState("jax_legacy_prng_key")
threefry_partitionable = OptionState("jax_threefry_partitionable")
numpy_dtype_promotion = OptionState("jax_numpy_dtype_promotion")
numpy_rank_promotion = OptionState("jax_numpy_rank_promotion")
explicit_x64_dtypes = OptionState("jax_explicit_x64_dtypes")
allow_f16_reductions = OptionState("jax_allow_f16_reductions")
auto_pcast = OptionState("jax_auto_pcast")
thread_guard = OptionState("jax_thread_guard")
array_garbage_collection_guard = OptionState("jax_array_garbage_collection_guard")
transfer_guard = OptionState("jax_transfer_guard")
transfer_guard_host_to_device = OptionState("jax_transfer_guard_host_to_device")
transfer_guard_device_to_device = OptionState("jax_transfer_guard_device_to_device")
transfer_guard_device_to_host = OptionState("jax_transfer_guard_device_to_host")
hardened = OptionState("tinyjax_hardened")
verify = OptionState("tinyjax_verify")


def disable_jit(disable: bool = True) -> OptionContext:
    """Inside the block, jit runs the Python function and control flow is Python's."""
    return OptionContext("jax_disable_jit", disable)


def disable_x64() -> OptionContext:
    """Inside the block, 64-bit dtypes are narrowed (JAX's `experimental.disable_x64`)."""
    return OptionContext("jax_enable_x64", False)
