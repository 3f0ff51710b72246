"""For libraries that work on jaxprs: `tinyjax.extend.core`."""

from tinyjax.extend import core as core

__all__ = ["core"]
