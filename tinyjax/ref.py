"""Mutable arrays: `tinyjax.ref`, as `jax.ref`."""

from tinyjax.engine.refs import AbstractRef as AbstractRef
from tinyjax.engine.refs import Ref as Ref
from tinyjax.engine.refs import addupdate as addupdate
from tinyjax.engine.refs import empty_ref as empty_ref
from tinyjax.engine.refs import free_ref as free_ref
from tinyjax.engine.refs import freeze as freeze
from tinyjax.engine.refs import get as get
from tinyjax.engine.refs import new_ref as new_ref
from tinyjax.engine.refs import set as set
from tinyjax.engine.refs import swap as swap
