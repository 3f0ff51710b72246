"""A function's stages, by JAX's names: `tinyjax.stages`."""

from tinyjax.engine.jit import Jitted as Wrapped
from tinyjax.engine.stages import Compiled, Lowered
from tinyjax.engine.stages import Stages as Traced

__all__ = ["Compiled", "Lowered", "Traced", "Wrapped"]
