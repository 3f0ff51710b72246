"""Options: names, values, threads, contexts, the environment, and the epoch of a trace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tinyjax.core import config as options
from tinyjax.core.config import OPTIONS, Option, config


@pytest.fixture(autouse=True)
def everything_is_put_back() -> Iterator[None]:
    before = config.values
    yield
    for name, value in before.items():
        if getattr(config, name) != value:
            config.update(name, value)


def in_another_thread(function: Callable[[], Any]) -> Any:
    """`function()` as another thread sees it."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


# Names and values.


def test_every_option_of_jax_is_accepted() -> None:
    jax = pytest.importorskip("jax")
    jax_only = set(jax.config.values) - set(OPTIONS)
    assert jax_only == set()


def test_every_context_manager_of_jax_exists() -> None:
    jax = pytest.importorskip("jax")
    kind = type(jax.enable_x64)
    names = {name for name in dir(jax) if isinstance(getattr(jax, name), kind)}
    ours = {name for name in names if hasattr(options, name)}
    internal = {"jax2tf_associative_scan_reductions", "remove_size_one_mesh_axis_from_type"}
    assert names - ours == internal


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("jax_enable_x64", False),
        ("jax_explicit_x64_dtypes", "warn"),
        ("jax_numpy_dtype_promotion", "standard"),
        ("jax_numpy_rank_promotion", "allow"),
        ("jax_default_matmul_precision", None),
        ("jax_default_prng_impl", "threefry2x32"),
        ("jax_threefry_partitionable", True),
        ("jax_num_cpu_devices", -1),
        ("jax_platforms", None),
        ("jax_enable_compilation_cache", True),
    ],
)
def test_defaults_are_those_of_jax(name: str, default: Any) -> None:
    assert OPTIONS[name].default == default


def test_defaults_are_values_that_the_option_accepts() -> None:
    for option in OPTIONS.values():
        assert option.parse(option.default) == option.default, option.name


def test_update_sets_and_attribute_reads() -> None:
    config.update("jax_numpy_rank_promotion", "raise")
    assert config.jax_numpy_rank_promotion == "raise"
    assert config.read("jax_numpy_rank_promotion") == "raise"
    assert config.values["jax_numpy_rank_promotion"] == "raise"


def test_an_unknown_option_names_its_near_matches() -> None:
    with pytest.raises(AttributeError, match="jax_enable_x46; near matches: jax_enable_x64"):
        config.update("jax_enable_x46", True)
    with pytest.raises(AttributeError, match="near matches: jax_debug_nans"):
        config.read("jax_debug_nan")
    with pytest.raises(AttributeError, match="jax_enable_x46"):
        _ = config.jax_enable_x46


def test_assigning_an_option_says_to_update() -> None:
    with pytest.raises(AttributeError, match=r"config.update\('jax_enable_x64', True\)"):
        config.jax_enable_x64 = True


@pytest.mark.parametrize(
    ("name", "bad", "words"),
    [
        ("jax_enable_x64", "maybe", "'maybe' for jax_enable_x64: expected True or False"),
        ("jax_enable_x64", None, "expected True or False"),
        ("jax_numpy_rank_promotion", "forbid", "expected one of 'allow', 'warn', 'raise'"),
        ("jax_default_matmul_precision", "f32", "expected one of None, 'default'"),
        ("jax_num_cpu_devices", "two", "expected int"),
        ("jax_num_cpu_devices", 1.5, "expected int"),
        ("jax_platforms", 3, "expected a string or None"),
        ("jax_default_device", [], "unhashable"),
    ],
)
def test_a_value_the_option_does_not_have_is_refused(name: str, bad: Any, words: str) -> None:
    before = config.read(name)
    with pytest.raises(ValueError, match=words):
        config.update(name, bad)
    assert config.read(name) == before


def test_values_are_normalised() -> None:
    config.update("jax_debug_nans", 1)
    assert config.jax_debug_nans is True
    config.update("jax_debug_nans", "off")
    assert config.jax_debug_nans is False
    before = config.jax_compilation_cache_max_size
    config.update("jax_compilation_cache_max_size", "8")
    assert config.jax_compilation_cache_max_size == 8
    config.update("jax_compilation_cache_max_size", before)


def test_a_hook_can_refuse_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options.Config, "_hooks", {})

    def devices_exist(value: int) -> None:
        raise RuntimeError(f"cannot become {value}: devices exist")

    before = config.jax_num_cpu_devices
    config.before_update("jax_num_cpu_devices", devices_exist)
    with pytest.raises(RuntimeError, match="cannot become 3"):
        config.update("jax_num_cpu_devices", 3)
    assert config.jax_num_cpu_devices == before


# The environment.


@pytest.mark.parametrize(
    ("variables", "name", "value"),
    [
        ({}, "jax_enable_x64", False),
        ({"JAX_ENABLE_X64": "1"}, "jax_enable_x64", True),
        ({"TINYJAX_ENABLE_X64": "Yes"}, "jax_enable_x64", True),
        ({"TINYJAX_ENABLE_X64": "0", "JAX_ENABLE_X64": "1"}, "jax_enable_x64", False),
        ({"JAX_NUM_CPU_DEVICES": "4"}, "jax_num_cpu_devices", 4),
        ({"JAX_PLATFORMS": "cuda,cpu"}, "jax_platforms", "cuda,cpu"),
        ({"TINYJAX_VERIFY": "2"}, "tinyjax_verify", 2),
        ({"JAX_VERIFY": "2"}, "tinyjax_verify", 0),
    ],
)
def test_the_environment_gives_the_starting_value(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str, value: Any
) -> None:
    for prefix in ("TINYJAX_", "JAX_"):
        stem = name.removeprefix("tinyjax_").removeprefix("jax_").upper()
        monkeypatch.delenv(prefix + stem, raising=False)
    for variable, text in variables.items():
        monkeypatch.setenv(variable, text)
    assert options.from_environment(OPTIONS[name]) == value


def test_a_bad_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYJAX_ENABLE_X64", "perhaps")
    with pytest.raises(ValueError, match="environment variable TINYJAX_ENABLE_X64"):
        options.from_environment(OPTIONS["jax_enable_x64"])


# Contexts and threads.


def test_a_context_changes_this_thread_only() -> None:
    with options.debug_nans(True):
        assert config.jax_debug_nans is True
        assert in_another_thread(lambda: config.jax_debug_nans) is False
    assert config.jax_debug_nans is False


def test_an_update_is_seen_by_every_thread_but_not_inside_an_open_context() -> None:
    with options.numpy_rank_promotion("warn"):
        config.update("jax_numpy_rank_promotion", "raise")
        assert config.jax_numpy_rank_promotion == "warn"
        assert in_another_thread(lambda: config.jax_numpy_rank_promotion) == "raise"
    assert config.jax_numpy_rank_promotion == "raise"


def test_contexts_nest_and_are_left_on_errors() -> None:
    inner = options.enable_x64(False)
    with options.enable_x64(True):
        with inner, inner:
            assert config.jax_enable_x64 is False
        assert config.jax_enable_x64 is True
        with pytest.raises(ZeroDivisionError), options.disable_x64():
            assert config.jax_enable_x64 is False
            raise ZeroDivisionError
        assert config.jax_enable_x64 is True


def test_a_flags_context_needs_no_value_and_a_choices_does() -> None:
    with options.enable_x64(), options.disable_jit(), options.check_tracer_leaks():
        assert config.jax_enable_x64 and config.jax_disable_jit and config.jax_check_tracer_leaks
    with options.disable_jit(), options.disable_jit(False):
        assert not config.jax_disable_jit
    with pytest.raises(TypeError, match="numpy_dtype_promotion\\(\\) needs the value"):
        options.numpy_dtype_promotion()


def test_a_context_refuses_bad_values_before_it_is_entered() -> None:
    with pytest.raises(ValueError, match="jax_default_matmul_precision"):
        options.default_matmul_precision("best")


def test_a_context_decorates_a_function() -> None:
    @options.default_matmul_precision("highest")
    def precision() -> Any:
        """Reads the option."""
        return config.jax_default_matmul_precision

    assert precision() == "highest"
    assert precision.__doc__ == "Reads the option."
    assert in_another_thread(precision) == "highest"
    assert config.jax_default_matmul_precision is None


def test_a_state_has_a_value_but_no_truth() -> None:
    with options.log_compiles():
        assert options.log_compiles.value is True
    with pytest.raises(TypeError, match=r"log_compiles\.value"):
        bool(options.log_compiles)


# The epoch.


@pytest.mark.parametrize("option", options.TRACED, ids=lambda option: option.name)
def test_the_epoch_differs_exactly_while_a_tracing_option_does(option: Option) -> None:
    others = {
        "jax_default_device": "cpu:1",
        "jax_random_seed_offset": 7,
        "jax_default_prng_impl": "rbg",
        "jax_explicit_x64_dtypes": "allow",
        "jax_numpy_dtype_promotion": "strict",
        "jax_default_matmul_precision": "highest",
    }
    other = others.get(option.name, "raise" if option.default == "ignore" else None)
    if other is None:
        other = "raise" if option.default == "allow" else not config.read(option.name)
    before = config.epoch()
    with options.OptionContext(option.name, other):
        inside = config.epoch()
        assert inside != before
        assert in_another_thread(config.epoch) == before
    assert config.epoch() == before
    config.update(option.name, other)
    assert config.epoch() == inside
    assert in_another_thread(config.epoch) == inside


def test_options_that_do_not_trace_leave_the_epoch() -> None:
    before = config.epoch()
    config.update("jax_log_compiles", True)
    config.update("jax_scan3", True)
    with options.check_tracer_leaks():
        assert config.epoch() == before
    assert config.epoch() == before


def test_an_update_during_a_context_reaches_the_epoch_inside_and_after() -> None:
    start = config.epoch()
    with options.debug_nans():
        inside = config.epoch()
        config.update("jax_debug_infs", True)
        assert config.epoch() not in (inside, start)
    after = config.epoch()
    assert after not in (inside, start)
    config.update("jax_debug_infs", False)
    assert config.epoch() == start


def test_equal_settings_reached_in_different_orders_have_one_epoch() -> None:
    with options.enable_x64(), options.debug_nans():
        one = config.epoch()
    with options.debug_nans(), options.disable_x64(), options.enable_x64():
        assert config.epoch() == one
    with options.enable_x64(config.jax_enable_x64):
        assert config.epoch() != one


def test_an_option_is_read_somewhere_or_says_that_it_has_no_effect() -> None:
    folder = Path(options.__file__).parent.parent
    files = [p for p in folder.rglob("*.py") if p.name != "config.py"]
    text = "\n".join(p.read_text() for p in files)
    for name, option in OPTIONS.items():
        assert (name in text) != option.meaning.startswith("no effect: "), name
