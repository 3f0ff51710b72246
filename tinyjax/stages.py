"""A function's stages, by JAX's names: `tinyjax.stages`."""

from tinyjax.engine.jit import Jitted as Wrapped
from tinyjax.engine.stages import ArgInfo, Compiled, Lowered
from tinyjax.engine.stages import Stages as Traced

CompilerOptions = dict[str, str | bool]

__all__ = ["ArgInfo", "Compiled", "CompilerOptions", "Lowered", "Traced", "Wrapped"]
