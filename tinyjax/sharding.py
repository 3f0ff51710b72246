"""How arrays lie on devices, by JAX's names: `tinyjax.sharding`. Meshes come later."""

from tinyjax.engine.devices import Sharding, SingleDeviceSharding

__all__ = ["Sharding", "SingleDeviceSharding"]
