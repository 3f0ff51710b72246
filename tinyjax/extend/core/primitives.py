"""The primitives by JAX's names: `primitives.add_p`, `primitives.scan_p`, ..."""

from tinyjax.engine.primitives import Primitive, by_attribute


def __getattr__(name: str) -> Primitive:
    return by_attribute(name, __name__)
