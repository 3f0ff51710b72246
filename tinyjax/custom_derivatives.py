"""Derivative rules written by the user, by JAX's names: `tinyjax.custom_derivatives`."""

from tinyjax.engine.closures import closure_convert, custom_gradient
from tinyjax.engine.custom_rules import (
    CustomVJPException,
    CustomVJPPrimal,
    SymbolicZero,
    custom_jvp,
    custom_vjp,
)

__all__ = [
    "CustomVJPException",
    "CustomVJPPrimal",
    "SymbolicZero",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
]
