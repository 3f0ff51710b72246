"""tinyjax.lax: the layer of explicit operations, control flow and collectives (JAX's names)."""

from tinyjax.lax.control_flow import cond as cond
from tinyjax.lax.control_flow import fori_loop as fori_loop
from tinyjax.lax.control_flow import map as map
from tinyjax.lax.control_flow import scan as scan
from tinyjax.lax.control_flow import switch as switch
from tinyjax.lax.control_flow import while_loop as while_loop
