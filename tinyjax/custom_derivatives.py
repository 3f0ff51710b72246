"""Derivative rules written by the user, by JAX's names: `tinyjax.custom_derivatives`."""

from tinyjax.engine.closures import closure_convert, custom_gradient
from tinyjax.engine.custom_rules import (
    CustomVJPException,
    CustomVJPPrimal,
    SymbolicZero,
    custom_jvp,
    custom_vjp,
    custom_vjp_primal_tree_values,
    zero_from_primal,
)
from tinyjax.engine.linear_call import linear_call
from tinyjax.engine.primitives import PRIMITIVES

custom_jvp_call_p = PRIMITIVES["custom_jvp_call"]
custom_vjp_call_p = PRIMITIVES["custom_vjp_call"]

__all__ = [
    "CustomVJPException",
    "CustomVJPPrimal",
    "SymbolicZero",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_jvp_call_p",
    "custom_vjp",
    "custom_vjp_call_p",
    "custom_vjp_primal_tree_values",
    "linear_call",
    "zero_from_primal",
]
