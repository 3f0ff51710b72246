"""Checkpoint policies: which intermediate values of a checkpointed function are kept.

A policy is called per value with the primitive that makes it, the avals of its operands and its
parameters, as in JAX: `policy(prim, *avals, **params)`. It returns a bool, or `Saveable`,
`Recompute`, `Offloadable(src, dst)`. Device memory is the host's here, so what may be offloaded is
kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinyjax.core.ops import Op
from tinyjax.core.source import api_boundary
from tinyjax.core.uop import UOp

Policy = Callable[..., Any]


class SaveableType:
    """The value may be kept."""

    def __repr__(self) -> str:
        return "Saveable"


class RecomputeType:
    """The value is computed again."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "Recompute"


Saveable, Recompute = SaveableType(), RecomputeType()


@dataclass(frozen=True, slots=True)
class Offloadable:
    """The value may be kept in another memory."""

    src: str
    dst: str


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """A policy as a predicate on nodes."""

    policy: Policy

    def __call__(self, node: UOp) -> bool:
        """Whether the value of the node may be kept."""
        from tinyjax.engine.jaxprs import shown  # only if there is a policy

        prim, operands, params = shown(node)
        return bool(self.policy(prim, *(o.aval for o in operands), **params))


def node_policy(policy: Any) -> NodePolicy | None:
    """A user's policy as what a CALL holds."""
    if policy is None or isinstance(policy, NodePolicy):
        return policy
    if not callable(policy):
        raise TypeError(
            f"checkpoint: policy must be callable or None, got {policy!r}.\n"
            "  Pass one of jax.checkpoint_policies, as save_only_these_names('h') is."
        )
    return NodePolicy(policy)


def everything_saveable(*_: Any, **__: Any) -> bool:
    """Save all (no recomputation)."""
    return True


def nothing_saveable(*_: Any, **__: Any) -> bool:
    """Save the inputs only."""
    return False


def dots_saveable(prim: Any, *_: Any, **params: Any) -> bool:
    """Save results of contractions."""
    return prim.name in ("dot_general", "conv_general_dilated")


def dots_with_no_batch_dims_saveable(prim: Any, *_: Any, **params: Any) -> bool:
    """Save results of contractions without batch axes (weights times activations)."""
    return prim.name == "dot_general" and not params["dimension_numbers"][1][0]


def _named(prim: Any, params: Any) -> str | None:
    """What `checkpoint_name` called the value."""
    return params["name"] if prim.name == Op.NAME.name.lower() else None


@functools.lru_cache(maxsize=256)
def save_only_these_names(*names_which_can_be_saved: str) -> Policy:
    """Save values that `checkpoint_name` gave one of these names."""

    def policy(prim: Any, *_: Any, **params: Any) -> bool:
        return _named(prim, params) in names_which_can_be_saved

    return policy


@functools.lru_cache(maxsize=256)
def save_any_names_but_these(*names_not_to_save: str) -> Policy:
    """Save named values except these."""

    def policy(prim: Any, *_: Any, **params: Any) -> bool:
        name = _named(prim, params)
        return name is not None and name not in names_not_to_save

    return policy


@functools.lru_cache(maxsize=256)
def save_anything_except_these_names(*names_not_to_save: str) -> Policy:
    """Save all but values with these names."""

    def policy(prim: Any, *_: Any, **params: Any) -> bool:
        return _named(prim, params) not in names_not_to_save

    return policy


@functools.lru_cache(maxsize=256)
def save_from_both_policies(policy_1: Policy, policy_2: Policy) -> Policy:
    """Save what either policy saves."""

    def policy(prim: Any, *args: Any, **params: Any) -> bool:
        return bool(policy_1(prim, *args, **params)) or bool(policy_2(prim, *args, **params))

    return policy


@functools.lru_cache(maxsize=256)
def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """Offload results of contractions without batch axes (kept: there is one memory)."""

    def policy(prim: Any, *args: Any, **params: Any) -> Any:
        if dots_with_no_batch_dims_saveable(prim, *args, **params):
            return Offloadable(offload_src, offload_dst)
        return Recompute

    return policy


@api_boundary
def save_and_offload_only_these_names(
    *,
    names_which_can_be_saved: Sequence[str],
    names_which_can_be_offloaded: Sequence[str],
    offload_src: str,
    offload_dst: str,
) -> Policy:
    """Save some names, offload others (kept: there is one memory). Raises: ValueError if they meet."""
    saved, offloaded = tuple(names_which_can_be_saved), tuple(names_which_can_be_offloaded)
    both = sorted(set(saved) & set(offloaded))
    if both:
        raise ValueError(
            f"The names should be exclusive and should not intersect. Got {both}\n"
            "  List each as one to be saved or as one to be offloaded."
        )
    return _save_and_offload(saved, offloaded, offload_src, offload_dst)


@functools.lru_cache(maxsize=256)
def _save_and_offload(
    saved: tuple[str, ...], offloaded: tuple[str, ...], src: str, dst: str
) -> Policy:
    def policy(prim: Any, *_: Any, **params: Any) -> Any:
        name = _named(prim, params)
        if name in saved:
            return Saveable
        return Offloadable(src, dst) if name in offloaded else Recompute

    return policy


class checkpoint_policies:
    """The named policies, and functions that make one."""

    everything_saveable = staticmethod(everything_saveable)
    nothing_saveable = staticmethod(nothing_saveable)
    dots_saveable = staticmethod(dots_saveable)
    checkpoint_dots = staticmethod(dots_saveable)
    dots_with_no_batch_dims_saveable = staticmethod(dots_with_no_batch_dims_saveable)
    checkpoint_dots_with_no_batch_dims = staticmethod(dots_with_no_batch_dims_saveable)
    offload_dot_with_no_batch_dims = staticmethod(offload_dot_with_no_batch_dims)
    save_only_these_names = staticmethod(save_only_these_names)
    save_any_names_but_these = staticmethod(save_any_names_but_these)
    save_anything_except_these_names = staticmethod(save_anything_except_these_names)
    save_from_both_policies = staticmethod(save_from_both_policies)
    save_and_offload_only_these_names = staticmethod(save_and_offload_only_these_names)
