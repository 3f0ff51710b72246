"""tinyjax: JAX's function transformations, and a compiler you can read."""

from tinyjax import lax as lax
from tinyjax import nn as nn
from tinyjax import numpy as numpy
from tinyjax import random as random
from tinyjax import tree as tree
from tinyjax import tree_util as tree_util
from tinyjax.core.config import check_tracer_leaks as check_tracer_leaks
from tinyjax.core.config import checking_leaks as checking_leaks
from tinyjax.core.config import config as config
from tinyjax.core.config import debug_infs as debug_infs
from tinyjax.core.config import debug_nans as debug_nans
from tinyjax.core.config import default_device as default_device
from tinyjax.core.config import default_matmul_precision as default_matmul_precision
from tinyjax.core.config import default_prng_impl as default_prng_impl
from tinyjax.core.config import disable_jit as disable_jit
from tinyjax.core.config import enable_x64 as enable_x64
from tinyjax.core.config import log_compiles as log_compiles
from tinyjax.core.config import numpy_dtype_promotion as numpy_dtype_promotion
from tinyjax.core.config import numpy_rank_promotion as numpy_rank_promotion
from tinyjax.core.config import threefry_partitionable as threefry_partitionable
from tinyjax.core.config import transfer_guard as transfer_guard
from tinyjax.core.source import named_scope as named_scope
from tinyjax.engine.array import Array as Array
from tinyjax.engine.checkpoint import checkpoint as checkpoint
from tinyjax.engine.checkpoint import checkpoint_policies as checkpoint_policies
from tinyjax.engine.checkpoint import remat as remat
from tinyjax.engine.custom_rules import custom_jvp as custom_jvp
from tinyjax.engine.custom_rules import custom_vjp as custom_vjp
from tinyjax.engine.derivatives import grad as grad
from tinyjax.engine.derivatives import jvp as jvp
from tinyjax.engine.derivatives import linear_transpose as linear_transpose
from tinyjax.engine.derivatives import linearize as linearize
from tinyjax.engine.derivatives import value_and_grad as value_and_grad
from tinyjax.engine.derivatives import vjp as vjp
from tinyjax.engine.explain import explain as explain
from tinyjax.engine.function import function as function
from tinyjax.engine.jit import jit as jit
from tinyjax.engine.stages import ShapeDtypeStruct as ShapeDtypeStruct
from tinyjax.engine.stages import eval_shape as eval_shape
from tinyjax.engine.stages import make_jaxpr as make_jaxpr
from tinyjax.engine.values import block_until_ready as block_until_ready
from tinyjax.engine.vectorize import vmap as vmap
from tinyjax.numpy import array_methods as _array_methods

__version__ = "0.1.0"
__version_info__ = (0, 1, 0)

_array_methods.install(Array)
