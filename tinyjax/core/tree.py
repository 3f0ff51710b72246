"""Pytrees: mapping, paths and registration. The entrance to all of the tree modules.

Structures are in `treedef.py`, prefixes and the errors of comparisons in `treematch.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from tinyjax.core.treedef import (
    LEAF,
    MISSING,
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    IsLeaf,
    KeyPath,
    NodeType,
    PyTreeDef,
    SequenceKey,
    are_leaves,
    brief,
    keystr,
    node_type,
    read_paths,
    register,
    tree_flatten,
    treedef,
)
from tinyjax.core.treematch import (
    Mismatch,
    broadcast_prefix,
    equality_errors,
    equality_errors_pytreedef,
    flatten_axes,
    match_rest,
    prefix_errors,
    tree_broadcast,
)

T = TypeVar("T")
C = TypeVar("C", bound=type)
KeyEntry = TypeVar("KeyEntry", bound=Hashable)


# --- flattening, mapping ------------------------------------------------------------------------


def tree_unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """The tree with this structure and these leaves."""
    return expect_treedef(treedef).unflatten(leaves)


def expect_treedef(treedef: Any) -> PyTreeDef:
    """Raises: TypeError for what is no structure."""
    if not isinstance(treedef, PyTreeDef):
        raise TypeError(f"treedef must be a PyTreeDef (tree.structure), got {brief(treedef)}.")
    return treedef


def tree_leaves(tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaves of a tree, in order."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: IsLeaf | None = None) -> PyTreeDef:
    """The structure of a tree."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Apply `f` to the leaves of `tree`, and to the subtrees of `rest` in the same places.

    Raises: `ValueError` if `tree`'s structure is not a prefix of one of `rest`.
    """
    leaves, structure = tree_flatten(tree, is_leaf)
    if not rest:
        return structure.unflatten([f(x) for x in leaves])
    others = match_rest("tree_map", tree, structure, rest, is_leaf)
    return structure.unflatten(list(map(f, leaves, *others)))


def tree_flatten_with_path(
    tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """Pairs (key path, leaf), and the structure.

    With `is_leaf_takes_path`, `is_leaf(path, subtree)` is asked instead of `is_leaf(subtree)`.
    """
    leaves: list[tuple[KeyPath, Any]] = []
    stop: Callable[[KeyPath, Any], bool] | None = None
    if is_leaf is not None:
        plain = is_leaf
        stop = plain if is_leaf_takes_path else lambda path, x: plain(x)
    return leaves, read_paths(tree, (), stop, leaves)


def tree_leaves_with_path(
    tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> list[tuple[KeyPath, Any]]:
    """Pairs (key path, leaf) in order."""
    return tree_flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


def leaf_paths(name: str, treedef: PyTreeDef) -> list[str]:
    """`name['a'][0]` for each leaf of a structure, for messages."""
    example = treedef.unflatten(range(treedef.num_leaves))
    return [name + keystr(path) for path, _ in tree_leaves_with_path(example)]


def tree_map_with_path(
    f: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[..., bool] | None = None,
    is_leaf_takes_path: bool = False,
) -> Any:
    """`tree_map` for a function that takes the key path first."""
    pairs, structure = tree_flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    plain = None if is_leaf_takes_path else is_leaf
    others = match_rest("tree_map_with_path", tree, structure, rest, plain)
    paths, leaves = [p for p, _ in pairs], [x for _, x in pairs]
    return structure.unflatten(list(map(f, paths, leaves, *others)))


def tree_all(tree: Any, *, is_leaf: IsLeaf | None = None) -> bool:
    """Whether all leaves are true."""
    return all(tree_leaves(tree, is_leaf))


def tree_reduce(
    function: Callable[[T, Any], T],
    tree: Any,
    initializer: Any = MISSING,
    is_leaf: IsLeaf | None = None,
) -> T:
    """Fold the leaves from the left."""
    leaves = tree_leaves(tree, is_leaf)
    if initializer is MISSING:
        return functools.reduce(function, leaves)  # type: ignore[no-any-return]
    return functools.reduce(function, leaves, initializer)  # type: ignore[no-any-return]


def tree_reduce_associative(
    operation: Callable[[T, T], T],
    tree: Any,
    *,
    identity: Any = MISSING,
    is_leaf: IsLeaf | None = None,
) -> T:
    """Combine the leaves as a balanced tree: depth log2(n), for associative operations."""
    leaves = tree_leaves(tree, is_leaf)
    if not leaves:
        if identity is MISSING:
            raise TypeError("Must specify identity for parallel reduction of empty sequence.")
        return identity  # type: ignore[no-any-return]

    def combine(start: int, stop: int) -> Any:
        if stop - start == 1:
            return leaves[start]
        middle = start + (stop - start) // 2
        return operation(combine(start, middle), combine(middle, stop))

    return combine(0, len(leaves))  # type: ignore[no-any-return]


def tree_transpose(
    outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, pytree_to_transpose: Any
) -> Any:
    """A tree of structure outer-of-inner as inner-of-outer.

    Without `inner_treedef` the inner structure is that of the first subtree.
    Raises: `TypeError` if the tree is not outer-of-inner.
    """
    leaves, found = tree_flatten(pytree_to_transpose)
    if inner_treedef is None:
        inner_treedef = tree_structure(outer_treedef.flatten_up_to(pytree_to_transpose)[0])
    inner, outer = inner_treedef.num_leaves, outer_treedef.num_leaves
    if len(leaves) != inner * outer:
        expected = outer_treedef.compose(inner_treedef)
        raise TypeError(
            f"Mismatch\n{found}\n != \n{expected}\n  tree_transpose: pytree_to_transpose must be "
            f"a tree of outer_treedef with a tree of inner_treedef at each of its {outer} leaves."
        )
    columns = [leaves[i::inner] for i in range(inner)] if outer else []
    return inner_treedef.unflatten([outer_treedef.unflatten(c) for c in columns])


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple of trees of these structures."""
    from_parts = tuple(treedefs)
    for part in from_parts:
        if not isinstance(part, PyTreeDef):
            raise TypeError(f"treedef_tuple takes PyTreeDefs, got {brief(part)}")
    return treedef(node_type(tuple), None, from_parts)


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """The structures of the root's children."""
    return expect_treedef(treedef).children()


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Whether the structure is one node: a leaf, None or an empty container."""
    return expect_treedef(treedef).num_nodes == 1


def treedef_is_strict_leaf(treedef: PyTreeDef) -> bool:
    """Whether the structure is a leaf (None and empty containers are not)."""
    return expect_treedef(treedef) is LEAF


def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf | None = None) -> bool:
    """Whether no element is a node."""
    if is_leaf is None:
        return are_leaves(iterable)
    xs = list(iterable)
    return len(xs) == len(leaves := tree_leaves(xs, is_leaf)) and all(
        a is b for a, b in zip(leaves, xs)
    )


def is_tree_node(typ: type) -> bool:
    """Whether values of this type are nodes."""
    return node_type(typ) is not None


# --- one level ----------------------------------------------------------------------------------


def flatten_one_level(tree: Any) -> tuple[Iterable[Any], Hashable]:
    """The children of the root, and its metadata (a namedtuple's are its class)."""
    node = node_type(type(tree))
    if node is None:
        raise ValueError(f"can't tree-flatten type: {type(tree)}")
    children, aux = node.flatten(tree)
    if node.kind == "none" or node.kind == "tuple":
        return children, aux
    return list(children), node.type if node.kind == "namedtuple" else aux


def flatten_one_level_with_keys(tree: Any) -> tuple[Iterable[tuple[Any, Any]], Hashable]:
    """Pairs (key, child) of the root, and its metadata."""
    node = node_type(type(tree))
    if node is None:
        raise ValueError(f"can't tree-flatten type: {type(tree)}")
    keys, children, aux = node.flatten_with_keys(tree)
    return list(zip(keys, children)), node.type if node.kind == "namedtuple" else aux


# --- registration -------------------------------------------------------------------------------


def checked_pair(result: Any, takes: str) -> tuple[tuple[Any, ...], Any]:
    """(children, aux) as returned by a user's flatten function, with the children as a tuple."""
    if type(result) is not tuple or len(result) != 2:
        raise ValueError(
            f"The {takes} function for a custom PyTree node should return a (children, aux_data) "
            f"tuple, got {result!r}"
        )
    children, aux = result
    if type(children) is not tuple:
        try:
            children = tuple(children)
        except TypeError:
            raise ValueError(
                f"The {takes} function for a custom PyTree node should return a (children, "
                f"aux_data) tuple where 'children' is iterable, got {result!r}"
            ) from None
    return children, aux


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_with_keys_func: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]] | None = None,
) -> None:
    """Make values of `nodetype` nodes: `flatten_func(x)` gives (children, metadata) and
    `unflatten_func(metadata, children)` rebuilds. Metadata are static and compared with `==`.

    Raises: `ValueError` if the type is registered already.
    """
    if not isinstance(nodetype, type):
        raise TypeError(f"register_pytree_node: nodetype must be a class, got {brief(nodetype)}")
    if not callable(flatten_func) or not callable(unflatten_func):
        raise TypeError(
            f"register_pytree_node({nodetype.__name__}): flatten_func and unflatten_func must be "
            f"functions, got {brief(flatten_func)} and {brief(unflatten_func)}"
        )

    def flatten(x: Any) -> tuple[tuple[Any, ...], Any]:
        return checked_pair(flatten_func(x), "to_iterable")

    with_keys = None
    if flatten_with_keys_func is not None:
        keyed = flatten_with_keys_func

        def with_keys(x: Any) -> tuple[KeyPath, tuple[Any, ...], Any]:
            pairs, aux = checked_pair(keyed(x), "to_iterable_with_keys")
            return tuple([k for k, _ in pairs]), tuple([c for _, c in pairs]), aux

    register(NodeType(nodetype, "custom", flatten, unflatten_func, with_keys))


def register_pytree_with_keys(
    nodetype: type,
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]] | None = None,
) -> None:
    """`register_pytree_node` for a flatten function that gives pairs (key, child)."""
    if flatten_func is None:

        def flatten_func(x: Any) -> tuple[Iterable[Any], Any]:
            pairs, aux = flatten_with_keys(x)
            return [child for _, child in pairs], aux

    register_pytree_node(nodetype, flatten_func, unflatten_func, flatten_with_keys)


def register_pytree_node_class(cls: C) -> C:
    """Class decorator: `tree_flatten(self)` and classmethod `tree_unflatten(aux, children)`."""
    node: Any = cls
    register_pytree_node(cls, lambda x: x.tree_flatten(), node.tree_unflatten)
    return cls


def register_pytree_with_keys_class(cls: C) -> C:
    """Class decorator: `tree_flatten_with_keys`, `tree_unflatten`, optionally `tree_flatten`."""
    node: Any = cls
    flatten = (lambda x: x.tree_flatten()) if hasattr(cls, "tree_flatten") else None
    register_pytree_with_keys(
        cls, lambda x: x.tree_flatten_with_keys(), node.tree_unflatten, flatten
    )
    return cls


def dataclass_fields(
    nodetype: Any,
    data_fields: Sequence[str] | None,
    meta_fields: Sequence[str] | None,
    drop_fields: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Data and metadata fields of a dataclass node, given or inferred, checked for completeness."""
    if (data_fields is None) != (meta_fields is None):
        raise TypeError(
            "register_dataclass: data_fields and meta_fields must both be specified when either "
            f"is specified. Got {data_fields=} {meta_fields=}."
        )
    if data_fields is None or meta_fields is None:
        if not dataclasses.is_dataclass(nodetype):
            raise TypeError(
                "register_dataclass: data_fields and meta_fields are required when nodetype is "
                f"not a dataclass. Got {nodetype=}."
            )
        fields = [f for f in dataclasses.fields(nodetype) if f.name not in drop_fields]
        meta_fields = [f.name for f in fields if f.metadata.get("static", False)]
        data_fields = [f.name for f in fields if f.name not in meta_fields]
    data, meta = tuple(data_fields), tuple(meta_fields)
    if dataclasses.is_dataclass(nodetype):
        wanted = {f.name for f in dataclasses.fields(nodetype) if f.init} - set(drop_fields)
        missing, unexpected = wanted - {*data, *meta}, {*data, *meta} - wanted
        if missing or unexpected:
            text = (
                "data_fields and meta_fields must include all dataclass fields with ``init=True`` "
                "and only them."
            )
            if missing:
                text += (
                    f" Missing fields: {missing}. Add them to drop_fields to suppress this error."
                )
            if unexpected:
                text += f" Unexpected fields: {unexpected}."
            raise ValueError(text)
    overlap = set(data) & set(meta)
    if overlap:
        raise ValueError(
            f"data_fields and meta_fields must not overlap. Overlapping fields: {overlap}."
        )
    return data, meta


def register_dataclass(
    nodetype: C,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> C:
    """Make a dataclass (or a class that takes its fields as keywords) a node.

    Data fields are children with attribute keys, meta fields are static. Without the lists, a
    field is data unless declared with `tree.static(...)` or `field(metadata={"static": True})`.
    """
    data, meta = dataclass_fields(nodetype, data_fields, meta_fields, drop_fields)
    keys = tuple(map(GetAttrKey, data))

    def flatten(x: Any) -> tuple[tuple[Any, ...], Any]:
        return tuple([getattr(x, f) for f in data]), tuple([getattr(x, f) for f in meta])

    def flatten_with_keys(x: Any) -> tuple[KeyPath, tuple[Any, ...], Any]:
        return (keys, *flatten(x))

    def unflatten(aux: Any, children: tuple[Any, ...]) -> Any:
        return nodetype(**dict(zip(meta, aux)), **dict(zip(data, children)))

    fields = (data, meta)
    register(NodeType(nodetype, "custom", flatten, unflatten, flatten_with_keys, fields))
    return nodetype


def static(**kwargs: Any) -> Any:
    """A dataclass field that is metadata: `op: str = tree.static(default="add")`."""
    metadata = {"static": True, **(kwargs.pop("metadata", None) or {})}
    return dataclasses.field(metadata=metadata, **kwargs)


def register_static(cls: C) -> C:
    """Class decorator: values are nodes without children whose metadata is the value itself.

    They are static under `jit` wherever they stand in an argument; `==` and `hash` decide.
    """
    register(NodeType(cls, "custom", lambda x: ((), x), lambda x, _: x, lambda x: ((), (), x)))
    return cls


class PyTreeRegistry:
    """JAX's registry object. There is one registry here; this is a handle to it."""

    __slots__ = ()

    flatten = staticmethod(tree_flatten)
    flatten_with_path = staticmethod(tree_flatten_with_path)
    is_node = staticmethod(is_tree_node)
    register_node = staticmethod(register_pytree_node)
    register_dataclass_node = staticmethod(register_dataclass)

    @staticmethod
    def flatten_one_level(tree: Any) -> tuple[Iterable[Any], Hashable] | None:
        """The children of the root and its metadata; None for a leaf, where the function raises."""
        return flatten_one_level(tree) if is_tree_node(type(tree)) else None

    @staticmethod
    def flatten_one_level_with_keys(
        tree: Any,
    ) -> tuple[Iterable[tuple[Any, Any]], Hashable] | None:
        """The same with pairs (key, child)."""
        return flatten_one_level_with_keys(tree) if is_tree_node(type(tree)) else None


default_registry = PyTreeRegistry()


# --- Partial ------------------------------------------------------------------------------------


class WrappedPartial:
    """A `functools.partial` under another type, equal to it and hashed like it.

    `functools.partial(partial(f, 1), 2)` merges both into one; `Partial` must keep them apart,
    since its own arguments are children and the inner ones are not. Merging looks for the type.
    """

    __slots__ = ("fun",)

    def __init__(self, fun: functools.partial[Any]) -> None:
        self.fun = fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fun(*args, **kwargs)

    def __hash__(self) -> int:
        return hash(self.fun)

    def __eq__(self, other: object) -> bool:
        return bool(self.fun == (other.fun if isinstance(other, WrappedPartial) else other))

    def __getattr__(self, name: str) -> Any:
        if name == "fun":  # copying makes an empty instance first
            raise AttributeError(name)
        return getattr(self.fun, name)

    def __repr__(self) -> str:
        return repr(self.fun)


class Partial(functools.partial[Any]):
    """`functools.partial` as a pytree: the arguments are children, the function is metadata."""

    def __new__(cls, func: Callable[..., Any], /, *args: Any, **kw: Any) -> Partial:
        if isinstance(func, functools.partial):
            func = WrappedPartial(func)
        return super().__new__(cls, func, *args, **kw)


register_pytree_node(
    Partial,
    lambda x: ((x.args, x.keywords), x.func),
    lambda func, children: Partial(func, *children[0], **children[1]),
)


__all__ = [
    "LEAF", "DictKey", "FlattenedIndexKey", "GetAttrKey", "KeyEntry", "KeyPath", "Mismatch",
    "Partial", "PyTreeDef", "SequenceKey", "all_leaves", "broadcast_prefix", "default_registry",
    "equality_errors", "equality_errors_pytreedef", "flatten_axes", "flatten_one_level",
    "flatten_one_level_with_keys", "is_tree_node", "keystr", "leaf_paths", "prefix_errors", "register_dataclass",
    "register_pytree_node", "register_pytree_node_class", "register_pytree_with_keys",
    "register_pytree_with_keys_class", "register_static", "static", "tree_all", "tree_broadcast",
    "tree_flatten", "tree_flatten_with_path", "tree_leaves", "tree_leaves_with_path", "tree_map",
    "tree_map_with_path", "tree_reduce", "tree_reduce_associative", "tree_structure",
    "tree_transpose", "tree_unflatten", "treedef_children", "treedef_is_leaf",
    "treedef_is_strict_leaf", "treedef_tuple",
]  # fmt: skip
