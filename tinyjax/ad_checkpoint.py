"""Rematerialisation by JAX's names: `tinyjax.ad_checkpoint`."""

from tinyjax.engine.checkpoint import checkpoint, checkpoint_name, checkpoint_policies, remat

__all__ = ["checkpoint", "checkpoint_name", "checkpoint_policies", "remat"]
