"""tinyjax: JAX's function transformations, and a compiler you can read."""

import importlib as _importlib
from typing import Any as _Any

from tinyjax import core as core
from tinyjax import lax as lax
from tinyjax import nn as nn
from tinyjax import numpy as numpy
from tinyjax import random as random
from tinyjax import tree as tree
from tinyjax import tree_util as tree_util
from tinyjax.core import dims as _dims
from tinyjax.core.avals import Aval as ShapedArray
from tinyjax.core.config import allow_f16_reductions as allow_f16_reductions
from tinyjax.core.config import array_garbage_collection_guard as array_garbage_collection_guard
from tinyjax.core.config import auto_pcast as auto_pcast
from tinyjax.core.config import check_tracer_leaks as check_tracer_leaks
from tinyjax.core.config import checking_leaks as checking_leaks
from tinyjax.core.config import config as config
from tinyjax.core.config import debug_infs as debug_infs
from tinyjax.core.config import debug_key_reuse as debug_key_reuse
from tinyjax.core.config import debug_nans as debug_nans
from tinyjax.core.config import default_device as default_device
from tinyjax.core.config import default_matmul_precision as default_matmul_precision
from tinyjax.core.config import default_prng_impl as default_prng_impl
from tinyjax.core.config import disable_jit as disable_jit
from tinyjax.core.config import enable_checks as enable_checks
from tinyjax.core.config import enable_custom_prng as enable_custom_prng
from tinyjax.core.config import enable_x64 as enable_x64
from tinyjax.core.config import explain_cache_misses as explain_cache_misses
from tinyjax.core.config import legacy_prng_key as legacy_prng_key
from tinyjax.core.config import log_compiles as log_compiles
from tinyjax.core.config import no_execution as no_execution
from tinyjax.core.config import no_tracing as no_tracing
from tinyjax.core.config import numpy_dtype_promotion as numpy_dtype_promotion
from tinyjax.core.config import numpy_rank_promotion as numpy_rank_promotion
from tinyjax.core.config import softmax_custom_jvp as softmax_custom_jvp
from tinyjax.core.config import thread_guard as thread_guard
from tinyjax.core.config import threefry_partitionable as threefry_partitionable
from tinyjax.core.config import transfer_guard as transfer_guard
from tinyjax.core.config import transfer_guard_device_to_device as transfer_guard_device_to_device
from tinyjax.core.config import transfer_guard_device_to_host as transfer_guard_device_to_host
from tinyjax.core.config import transfer_guard_host_to_device as transfer_guard_host_to_device
from tinyjax.core.dims import Dim as Dim
from tinyjax.core.dtypes import float0 as float0
from tinyjax.core.record import record_rewrites as record_rewrites
from tinyjax.core.source import named_scope as named_scope
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.engine.array import Array as Array
from tinyjax.engine.array import Tracer
from tinyjax.engine.callbacks import effects_barrier as effects_barrier
from tinyjax.engine.callbacks import pure_callback as pure_callback
from tinyjax.engine.checkpoint import checkpoint as checkpoint
from tinyjax.engine.checkpoint import checkpoint_policies as checkpoint_policies
from tinyjax.engine.checkpoint import remat as remat
from tinyjax.engine.closures import closure_convert as closure_convert
from tinyjax.engine.closures import custom_gradient as custom_gradient
from tinyjax.engine.custom_rules import custom_jvp as custom_jvp
from tinyjax.engine.custom_rules import custom_vjp as custom_vjp
from tinyjax.engine.derivatives import grad as grad
from tinyjax.engine.derivatives import jvp as jvp
from tinyjax.engine.derivatives import linear_transpose as linear_transpose
from tinyjax.engine.derivatives import linearize as linearize
from tinyjax.engine.derivatives import value_and_grad as value_and_grad
from tinyjax.engine.derivatives import vjp as vjp
from tinyjax.engine.devices import Device as Device
from tinyjax.engine.devices import copy_to_host_async as copy_to_host_async
from tinyjax.engine.devices import default_backend as default_backend
from tinyjax.engine.devices import device_count as device_count
from tinyjax.engine.devices import device_get as device_get
from tinyjax.engine.devices import device_put as device_put
from tinyjax.engine.devices import devices as devices
from tinyjax.engine.devices import live_arrays as live_arrays
from tinyjax.engine.devices import local_device_count as local_device_count
from tinyjax.engine.devices import local_devices as local_devices
from tinyjax.engine.devices import make_array_from_callback as make_array_from_callback
from tinyjax.engine.devices import (
    make_array_from_single_device_arrays as make_array_from_single_device_arrays,
)
from tinyjax.engine.devices import process_count as process_count
from tinyjax.engine.devices import process_index as process_index
from tinyjax.engine.devices import process_indices as process_indices
from tinyjax.engine.explain import explain as explain
from tinyjax.engine.function import function as function
from tinyjax.engine.jacobians import fwd_and_bwd as fwd_and_bwd
from tinyjax.engine.jacobians import hessian as hessian
from tinyjax.engine.jacobians import jacfwd as jacfwd
from tinyjax.engine.jacobians import jacobian as jacobian
from tinyjax.engine.jacobians import jacrev as jacrev
from tinyjax.engine.jit import jit as jit
from tinyjax.engine.placement import Shard as Shard
from tinyjax.engine.pmap import pmap as pmap
from tinyjax.engine.refs import Ref as Ref
from tinyjax.engine.refs import empty_ref as empty_ref
from tinyjax.engine.refs import free_ref as free_ref
from tinyjax.engine.refs import freeze as freeze
from tinyjax.engine.refs import new_ref as new_ref
from tinyjax.engine.scopes import clear_caches as clear_caches
from tinyjax.engine.scopes import ensure_compile_time_eval as ensure_compile_time_eval
from tinyjax.engine.scopes import named_call as named_call
from tinyjax.engine.scopes import typeof as typeof
from tinyjax.engine.stages import ShapeDtypeStruct as ShapeDtypeStruct
from tinyjax.engine.stages import eval_shape as eval_shape
from tinyjax.engine.stages import make_jaxpr as make_jaxpr
from tinyjax.engine.values import block_until_ready as block_until_ready
from tinyjax.engine.vectorize import vmap as vmap
from tinyjax.numpy import array_methods as _array_methods

__version__ = "0.1.0"
__version_info__ = (0, 1, 0)

_publish_functions(globals())

_array_methods.install(Array)

# Names that live here for users, while their definitions are in layers above `core`.
core.Tracer = Tracer  # type: ignore[attr-defined]
core.ShapedArray = ShapedArray  # type: ignore[attr-defined]
core.ensure_compile_time_eval = ensure_compile_time_eval  # type: ignore[attr-defined]
core.eval_context = ensure_compile_time_eval  # type: ignore[attr-defined]
core.AbstractValue = ShapedArray  # type: ignore[attr-defined]
core.max_dim = _dims.max_dim  # type: ignore[attr-defined]
core.min_dim = _dims.min_dim  # type: ignore[attr-defined]


def _core_name(name: str) -> _Any:
    """Names of `core` whose modules only people who look at jaxprs load."""
    if name in ("eval_jaxpr", "Atom"):
        return getattr(_importlib.import_module("tinyjax.engine.jaxprs"), name)
    raise AttributeError(f"module 'tinyjax.core' has no attribute {name!r}")


vars(core)["__getattr__"] = _core_name

# Loaded when first used: an import of tinyjax does not pay for them.
_LAZY = (
    "ad_checkpoint", "api_util", "custom_batching", "custom_derivatives", "debug", "dlpack", "dtypes",
    "errors", "experimental", "export", "extend", "flatten_util", "ops", "ref", "scipy",
    "sharding", "stages", "test_util", "typing",
)  # fmt: skip


def __getattr__(name: str) -> _Any:
    if name in _LAZY:
        return _importlib.import_module(f"tinyjax.{name}")
    raise AttributeError(f"module 'tinyjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
