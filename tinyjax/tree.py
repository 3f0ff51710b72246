"""Functions on pytrees by their short names: `tinyjax.tree.map`, `tinyjax.tree.leaves`, …"""

from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.core.tree import static
from tinyjax.core.tree import tree_all as all
from tinyjax.core.tree import tree_broadcast as broadcast
from tinyjax.core.tree import tree_flatten as flatten
from tinyjax.core.tree import tree_flatten_with_path as flatten_with_path
from tinyjax.core.tree import tree_leaves as leaves
from tinyjax.core.tree import tree_leaves_with_path as leaves_with_path
from tinyjax.core.tree import tree_map as map
from tinyjax.core.tree import tree_map_with_path as map_with_path
from tinyjax.core.tree import tree_reduce as reduce
from tinyjax.core.tree import tree_reduce_associative as reduce_associative
from tinyjax.core.tree import tree_structure as structure
from tinyjax.core.tree import tree_transpose as transpose
from tinyjax.core.tree import tree_unflatten as unflatten

__all__ = [
    "all",
    "broadcast",
    "flatten",
    "flatten_with_path",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "reduce_associative",
    "static",
    "structure",
    "transpose",
    "unflatten",
]

_publish_functions(globals())
