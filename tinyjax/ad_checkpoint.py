"""Rematerialisation by JAX's names: `tinyjax.ad_checkpoint`."""

from tinyjax.engine.checkpoint import (
    checkpoint,
    checkpoint_name,
    checkpoint_policies,
    print_saved_residuals,
    remat,
    saved_residuals,
)
from tinyjax.engine.policies import Offloadable, Recompute, Saveable

__all__ = [
    "Offloadable",
    "Recompute",
    "Saveable",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "print_saved_residuals",
    "remat",
    "saved_residuals",
]
