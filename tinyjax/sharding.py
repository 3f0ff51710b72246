"""How arrays lie on devices, by JAX's names: `tinyjax.sharding`. Meshes come later."""

from tinyjax.engine.placement import PmapSharding, Sharding, SingleDeviceSharding

__all__ = ["PmapSharding", "Sharding", "SingleDeviceSharding"]
