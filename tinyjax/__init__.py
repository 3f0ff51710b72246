"""tinyjax: JAX's function transformations, and a compiler you can read."""

from tinyjax import lax as lax
from tinyjax import tree as tree
from tinyjax import tree_util as tree_util
from tinyjax.core.config import config as config
from tinyjax.core.config import disable_jit as disable_jit
from tinyjax.core.config import enable_x64 as enable_x64
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
from tinyjax.engine.vectorize import vmap as vmap
