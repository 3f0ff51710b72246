"""Sharing memory with other libraries by DLPack, by JAX's names: `tinyjax.dlpack`."""

from tinyjax.engine.dlpack import from_dlpack, is_supported_dtype

__all__ = ["from_dlpack", "is_supported_dtype"]
