"""For libraries that work on jaxprs: `tinyjax.extend.core` and `tinyjax.extend.linear_util`."""

from tinyjax.extend import core as core
from tinyjax.extend import linear_util as linear_util

__all__ = ["core", "linear_util"]
