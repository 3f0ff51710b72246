"""Tree structures: node types, `PyTreeDef`, and taking trees apart and putting them together.

A pytree is a container of a registered type whose children are pytrees; every other value is a
leaf. Types are looked up exactly (no inheritance), except that any namedtuple class is a node.
`None` is a node without children, dicts are read in the order of their sorted keys.

Flattening is the hot path of every call of a transformed function, so
- a container whose children are all leaves of known types is recognised by one set operation;
- a `PyTreeDef` is interned where its metadata allows, so that equality is usually identity. Equal
  metadata are not always the same thing (`1 == True`; a user's `__eq__` may ignore fields), and
  `unflatten` must give back what was flattened. So only strings, integers, bools, types, None and
  tuples of them are interned, by type and value; other structures compare field by field;
- `PyTreeDef.flattener` compiles a function that checks one structure and reads its leaves, and
  `unflatten` compiles itself after `COMPILE_AFTER` uses.

The recursion is as deep as the tree is nested, as JAX's is.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinyjax.core.locks import shared_lock
from tinyjax.core.treecompile import (
    COMPILE_AFTER,
    COMPILE_MAX_NODES,
    SEQUENCES,
    compile_flatten,
    compile_unflatten,
    values_getter,
)

IsLeaf = Callable[[Any], bool]
Reader = Callable[[Any, list[Any]], "PyTreeDef"]


# --- key paths ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """Position `idx` in a tuple or list; written `[0]`."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"


@dataclass(frozen=True, slots=True)
class DictKey:
    """Key of a dict; written `['name']`."""

    key: Hashable

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(frozen=True, slots=True)
class GetAttrKey:
    """Attribute of a namedtuple, dataclass or user's node; written `.name`."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclass(frozen=True, slots=True)
class FlattenedIndexKey:
    """Position among the children of a node whose type was registered without keys."""

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"

    def __hash__(self) -> int:
        return hash((FlattenedIndexKey, self.key))


KeyPath = tuple[Any, ...]


def keystr(keys: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """The text of a key path: `['a'][0].b`; with `simple` and a separator `a/0/b`."""
    return separator.join([simple_key(k) if simple else str(k) for k in keys])


def simple_key(key: Any) -> str:
    """The bare index, key or name of a path entry."""
    match key:
        case SequenceKey(k) | DictKey(k) | GetAttrKey(k) | FlattenedIndexKey(k):
            return str(k)
        case _:
            return str(key)


def sequence_keys(count: int) -> tuple[SequenceKey, ...]:
    """`[0]`, `[1]`, …"""
    return tuple(map(SequenceKey, range(count)))


def flat_keys(count: int) -> tuple[FlattenedIndexKey, ...]:
    """The keys of a node whose type has none."""
    return tuple(map(FlattenedIndexKey, range(count)))


# --- node types and their registry --------------------------------------------------------------


class NodeType:
    """How values of one Python type are taken apart and rebuilt.

    `flatten(x)` gives (children, aux), `flatten_with_keys(x)` (keys, children, aux), and
    `unflatten(aux, children)` rebuilds; children and keys are tuples. `read(x, leaves)` is the
    fast form: it appends the leaves and returns the structure. `fields` is set for dataclasses.
    """

    __slots__ = (
        "_flatten_with_keys", "fields", "flat", "flatten", "kind", "nested", "read", "type",
        "unflatten",
    )  # fmt: skip

    def __init__(
        self,
        type_: type,
        kind: str,
        flatten: Callable[[Any], tuple[tuple[Any, ...], Any]],
        unflatten: Callable[[Any, tuple[Any, ...]], Any],
        flatten_with_keys: Callable[[Any], tuple[KeyPath, tuple[Any, ...], Any]] | None = None,
        fields: tuple[tuple[str, ...], tuple[str, ...]] | None = None,
    ) -> None:
        self.type, self.kind, self.fields = type_, kind, fields
        self.flatten, self.unflatten = flatten, unflatten
        self._flatten_with_keys = flatten_with_keys
        # Structures of this type in front of the intern table: by length if all children are
        # leaves, else by the identity of the children.
        self.flat: dict[int, PyTreeDef] = {}
        self.nested: dict[tuple[int, ...], PyTreeDef] = {}
        self.read: Reader = generic_reader(self)

    def flatten_with_keys(self, x: Any) -> tuple[KeyPath, tuple[Any, ...], Any]:
        """Keys, children and metadata of `x`."""
        if self._flatten_with_keys is not None:
            return self._flatten_with_keys(x)
        children, aux = self.flatten(x)
        return flat_keys(len(children)), children, aux

    def __repr__(self) -> str:
        return f"NodeType({self.type.__name__})"


NODES: dict[type, NodeType] = {}
"""Node types: the built-in ones, registered ones, and namedtuple classes as they are met."""

READERS: dict[type, Reader] = {}
"""`NODES[t].read`, one lookup nearer."""

LEAF_TYPES: set[type] = set()
"""Types met so far that are not nodes. A cache: bounded, and corrected by registration."""

MAX_LEAF_TYPES = 4096
REGISTERED: set[type] = set()

_lock = shared_lock()


def node_type(of: type) -> NodeType | None:
    """The node type of values of type `of`, or None if they are leaves."""
    node = NODES.get(of)
    if node is not None:
        return node
    if of in LEAF_TYPES:
        return None
    if issubclass(of, tuple) and hasattr(of, "_fields"):
        return add_node(namedtuple_node(of))
    if len(LEAF_TYPES) >= MAX_LEAF_TYPES:
        LEAF_TYPES.clear()
    LEAF_TYPES.add(of)
    return None


def add_node(node: NodeType) -> NodeType:
    """Make values of `node.type` nodes from now on."""
    with _lock:
        NODES[node.type] = node
        READERS[node.type] = node.read
        LEAF_TYPES.discard(node.type)
    return node


def register(node: NodeType) -> None:
    """Register a user's type, once. Raises ValueError if it was registered before."""
    if node.type in REGISTERED:
        raise ValueError(
            f"Duplicate custom PyTreeDef type registration for {node.type}: a type can be "
            "registered as a pytree node once."
        )
    REGISTERED.add(node.type)
    add_node(node)


# --- structures ---------------------------------------------------------------------------------


class PyTreeDef:
    """The structure of a tree: its node types, their metadata and where the leaves are.

    Hashable, comparable, picklable (if the metadata are). Prints as the tree with `*` for leaves.
    """

    __slots__ = (
        "_aux", "_children", "_flattener", "_hash", "_node", "_unflatten", "_uses", "interned",
        "num_leaves", "num_nodes",
    )  # fmt: skip

    num_leaves: int
    num_nodes: int
    interned: bool
    _node: NodeType | None
    _aux: Any
    _children: tuple[PyTreeDef, ...]

    def __init__(self, node: NodeType | None, aux: Any, children: tuple[PyTreeDef, ...]) -> None:
        self._node, self._aux, self._children = node, aux, children
        if node is None:
            self.num_leaves = self.num_nodes = 1
        else:
            self.num_leaves = sum([c.num_leaves for c in children])
            self.num_nodes = 1 + sum([c.num_nodes for c in children])
        self.interned = False
        self._hash: int | None = None
        self._uses = 0
        self._unflatten: Callable[[Iterable[Any]], Any] | None = None
        self._flattener: Callable[[Any], list[Any] | None] | None = None

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree of this structure with these leaves.

        Raises: `ValueError` unless there are exactly `num_leaves` of them.
        """
        compiled = self._unflatten
        if compiled is not None:
            return compiled(leaves)
        if type(leaves) is not list and type(leaves) is not tuple:
            leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise leaf_count_error(self, leaves)
        self._uses += 1
        if self._uses > COMPILE_AFTER and self.num_nodes <= COMPILE_MAX_NODES:
            self._unflatten = compile_unflatten(self, functools.partial(leaf_count_error, self))
        return build(self, iter(leaves))

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """The subtrees of `tree` at the places where this structure has leaves.

        Raises: `ValueError` naming the path where `tree` differs.
        """
        out: list[Any] = []
        if not read_up_to(self, tree, out):
            raise up_to_error(self, tree)
        return out

    def flattener(self) -> Callable[[Any], list[Any] | None]:
        """A compiled function: the leaves of a tree of exactly this structure, else None.

        Cost: compiling takes about 10 µs a node, once per structure; a call about half of
        `tree_flatten`. It is the structure guard of a jitted call. Dict keys and metadata are
        compared with `==`, as `PyTreeDef`s are.
        """
        if self._flattener is None:
            small = self.num_nodes <= COMPILE_MAX_NODES
            self._flattener = compile_flatten(self, GUARD_NAMES) if small else exact_flattener(self)
        return self._flattener

    def children(self) -> list[PyTreeDef]:
        """The structures of the root's children; none for a leaf."""
        return list(self._children)

    def node_data(self) -> tuple[type, Any] | None:
        """Type and metadata of the root, or None for a leaf."""
        if self._node is None:
            return None
        aux = list(self._aux) if self._node.kind == "dict" else self._aux
        return self._node.type, aux

    def compose(self, inner: PyTreeDef) -> PyTreeDef:
        """This structure with `inner` in place of every leaf."""
        if self is LEAF:
            return inner
        return treedef(self._node, self._aux, tuple([c.compose(inner) for c in self._children]))

    def walk(
        self,
        f_node: Callable[[Any, Any], Any],
        f_leaf: Callable[[Any], Any] | None,
        leaves: Iterable[Any],
    ) -> Any:
        """Call `f_leaf` at leaves and `f_node(results of the children, node data)` at nodes,
        children first; returns the result at the root.
        """
        feed = iter(leaves)

        def visit(part: PyTreeDef) -> Any:
            if part is LEAF:
                leaf = next(feed, MISSING)
                if leaf is MISSING:
                    raise ValueError(f"Too few leaves for PyTreeDef; expected {self.num_leaves}.")
                return leaf if f_leaf is None else f_leaf(leaf)
            results = tuple([visit(c) for c in part._children])
            data = part.node_data()
            assert data is not None
            return f_node(results, data[1])

        result = visit(self)
        if next(feed, MISSING) is not MISSING:
            raise ValueError(f"Too many leaves for PyTreeDef; expected {self.num_leaves}.")
        return result

    def from_iterable_tree(self, xs: Any) -> Any:
        """The tree of this structure from the same nesting of plain iterables."""
        if self is LEAF:
            return xs
        assert self._node is not None
        parts = tuple(xs)
        if len(parts) != len(self._children):
            raise ValueError(f"expected {len(self._children)} children for {self}, got {xs!r}")
        children = [c.from_iterable_tree(x) for c, x in zip(self._children, parts)]
        return self._node.unflatten(self._aux, tuple(children))

    @staticmethod
    def from_node_data_and_children(
        registry: Any, node_data: tuple[type, Any] | None, children: Iterable[PyTreeDef]
    ) -> PyTreeDef:
        """The structure with this root; the inverse of `node_data` and `children`.

        `registry` changes nothing: there is one.
        """
        parts = tuple(children)
        if node_data is None:
            if parts:
                raise ValueError("a leaf has no children")
            return LEAF
        kind, aux = node_data
        node = node_type(kind)
        if node is None:
            raise ValueError(f"{kind} is not registered as a pytree node")
        if node.kind == "dict":
            aux = tuple(aux)
        return treedef(node, aux, parts)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PyTreeDef):
            return NotImplemented
        return same_structure(self, other)

    def __hash__(self) -> int:
        found = self._hash
        if found is None:
            found = self._hash = structure_hash(self)
        return found

    def __repr__(self) -> str:
        return f"PyTreeDef({show(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._node is None:
            return rebuild, (None, None, ())
        return rebuild, (self._node.type, self._aux, self._children)


MISSING: Any = object()
LEAF = PyTreeDef(None, None, ())
LEAF.interned = True


def rebuild(kind: type | None, aux: Any, children: tuple[PyTreeDef, ...]) -> PyTreeDef:
    """Unpickle a structure."""
    if kind is None:
        return LEAF
    node = node_type(kind)
    if node is None:
        raise ValueError(f"cannot unpickle a PyTreeDef: {kind} is not registered as a pytree node")
    return treedef(node, aux, children)


def same_structure(a: PyTreeDef, b: PyTreeDef) -> bool:
    """Field by field equality; metadata compare with `==`."""
    if a is b:
        return True
    if a._node is None or b._node is None or a._node.type is not b._node.type:
        return False
    if a.num_nodes != b.num_nodes or len(a._children) != len(b._children):
        return False
    return same_aux(a._aux, b._aux) and all(map(same_structure, a._children, b._children))


def same_aux(a: Any, b: Any) -> bool:
    """Whether two nodes' metadata are equal."""
    if a is b:
        return True
    try:
        return bool(a == b)
    except Exception as error:
        raise ValueError(
            "Exception raised while checking equality of metadata fields of pytree. Metadata are "
            "static: they are compared when structures are, so they must not contain arrays. Make "
            f"the field a data field, or give its type an __eq__.\n  metadata: {brief(a)}\n"
            f"  {type(error).__name__}: {error}"
        ) from error


def structure_hash(of: PyTreeDef) -> int:
    """Hash of a structure; metadata that cannot be hashed count by type only."""
    if of._node is None:
        return hash((PyTreeDef, "leaf"))
    try:
        aux = hash(of._aux)
    except Exception:  # list metadata, or a frozen dataclass that holds an array
        aux = 0
    return hash((of._node.type, aux, of._children))


def show(of: PyTreeDef) -> str:
    """The text inside `PyTreeDef(…)`."""
    node = of._node
    if node is None:
        return "*"
    parts = [show(c) for c in of._children]
    match node.kind:
        case "none":
            return "None"
        case "tuple":
            return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
        case "list":
            return f"[{', '.join(parts)}]"
        case "dict":
            return "{" + ", ".join([f"{k!r}: {p}" for k, p in zip(of._aux, parts)]) + "}"
        case "namedtuple":
            return f"CustomNode(namedtuple[{node.type.__name__}], [{', '.join(parts)}])"
        case _:
            return f"CustomNode({node.type.__name__}[{of._aux}], [{', '.join(parts)}])"


def brief(x: Any, limit: int = 100) -> str:
    """A value's repr, cut; arrays and structures inside keep their own short forms."""
    return shorten(repr(x), limit)


def shorten(text: str, limit: int = 100) -> str:
    """One line of at most `limit` characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


# --- interning ----------------------------------------------------------------------------------

INTERNED: dict[tuple[Any, ...], PyTreeDef] = {}
PLANS: dict[tuple[Any, ...], DictPlan] = {}

MAX_INTERNED_NODES = 2_000_000
"""The tables are emptied when the structures in them have this many nodes (about 50 MB): a program
that flattens a list as it grows makes a new structure each time. Only speed is lost: identity is a
shortcut for equality, never its definition."""

_interned_nodes = [0]


def exact(aux: Any) -> Any:
    """A key that only interchangeable metadata share, or MISSING if there is none.

    Numbers carry their type (1, True and 1.0 are equal); functions would be kept alive with all
    they capture; for other objects `==` does not say that they are interchangeable.
    """
    kind = type(aux)
    if aux is None or kind is str or kind is type:
        return aux
    if kind is int or kind is bool:
        return (kind, aux)
    if kind is tuple:
        parts = tuple([exact(a) for a in aux])
        return MISSING if MISSING in parts else parts
    return MISSING


def treedef(node: NodeType | None, aux: Any, children: tuple[PyTreeDef, ...]) -> PyTreeDef:
    """The structure with this root: the interned one if it can be."""
    if node is None:
        return LEAF
    part = exact(aux)
    if part is MISSING or not all(c.interned for c in children):
        return PyTreeDef(node, aux, children)
    # Children by identity: the entry keeps them alive, so an id in a key names one structure.
    key = (node, part, *map(id, children))
    found = INTERNED.get(key)
    if found is None:
        new = PyTreeDef(node, aux, children)
        new.interned = True
        _interned_nodes[0] += new.num_nodes
        if _interned_nodes[0] > MAX_INTERNED_NODES:
            forget_structures()
            _interned_nodes[0] = new.num_nodes
        found = INTERNED.setdefault(key, new)
    return found


def forget_structures() -> None:
    """Empty the intern table and the tables in front of it."""
    INTERNED.clear()
    PLANS.clear()
    for node in list(NODES.values()):
        node.flat.clear()
        node.nested.clear()


# --- reading: tree -> leaves, structure ---------------------------------------------------------


def tree_flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], PyTreeDef]:
    """The leaves of a tree, and its structure.

    `is_leaf` is asked at every node and stops the descent where it holds.
    """
    leaves: list[Any] = []
    if is_leaf is not None:
        return leaves, read_until(tree, is_leaf, leaves)
    reader = READERS.get(type(tree))
    if reader is not None:
        return leaves, reader(tree, leaves)
    return leaves, read_any(tree, leaves)


def read_any(x: Any, leaves: list[Any]) -> PyTreeDef:
    """Read a value of a type that may not have been met before."""
    node = node_type(type(x))
    if node is not None:
        return node.read(x, leaves)
    leaves.append(x)
    return LEAF


def read_each(xs: Iterable[Any], leaves: list[Any]) -> list[PyTreeDef]:
    """Read children in order."""
    found: list[PyTreeDef] = []
    for x in xs:
        kind = type(x)
        if kind in LEAF_TYPES:
            leaves.append(x)
            found.append(LEAF)
        else:
            found.append(READERS.get(kind, read_any)(x, leaves))
    return found


def read_until(x: Any, is_leaf: IsLeaf, leaves: list[Any]) -> PyTreeDef:
    """Read, stopping where `is_leaf` holds."""
    node = None if is_leaf(x) else node_type(type(x))
    if node is None:
        leaves.append(x)
        return LEAF
    children, aux = node.flatten(x)
    return treedef(node, aux, tuple([read_until(c, is_leaf, leaves) for c in children]))


def read_paths(
    x: Any,
    path: KeyPath,
    is_leaf: Callable[[KeyPath, Any], bool] | None,
    leaves: list[tuple[KeyPath, Any]],
) -> PyTreeDef:
    """Read, recording the path of each leaf."""
    node = None if is_leaf is not None and is_leaf(path, x) else node_type(type(x))
    if node is None:
        leaves.append((path, x))
        return LEAF
    keys, children, aux = node.flatten_with_keys(x)
    parts = [read_paths(c, (*path, k), is_leaf, leaves) for k, c in zip(keys, children)]
    return treedef(node, aux, tuple(parts))


def generic_reader(node: NodeType) -> Reader:
    """Read through `node.flatten`."""

    def read(x: Any, leaves: list[Any]) -> PyTreeDef:
        children, aux = node.flatten(x)
        return treedef(node, aux, tuple(read_each(children, leaves)))

    return read


def sequence_reader(node: NodeType) -> Reader:
    """Read tuples, lists and namedtuples: the value is iterable over its children."""
    flat, nested = node.flat, node.nested
    all_leaves = LEAF_TYPES.issuperset

    def read(xs: Any, leaves: list[Any]) -> PyTreeDef:
        if all_leaves(map(type, xs)):
            leaves.extend(xs)
            count = len(xs)
            found = flat.get(count)
            if found is None:
                found = flat[count] = treedef(node, None, (LEAF,) * count)
            return found
        parts = read_each(xs, leaves)
        key = tuple(map(id, parts))
        found = nested.get(key)
        if found is None:
            found = treedef(node, None, tuple(parts))
            if found.interned:
                nested[key] = found
        return found

    return read


class DictPlan:
    """What is known of dicts with these keys: sorted keys, how to read the values, structures."""

    __slots__ = ("flat", "key_types", "keys", "nested", "values")

    def __init__(self, keys: tuple[Any, ...], key_type: type) -> None:
        self.keys, self.key_types = keys, frozenset((key_type,))
        self.values = values_getter(keys)
        self.flat = treedef(DICT, keys, (LEAF,) * len(keys))
        self.nested: dict[tuple[int, ...], PyTreeDef] = {}


def sorted_keys(d: dict[Any, Any]) -> tuple[Any, ...]:
    """The keys of a dict node in order."""
    try:
        return tuple(sorted(d))
    except Exception as error:
        kinds = sorted({type(k).__name__ for k in d})
        raise ValueError(
            "Comparator raised exception while sorting pytree dictionary keys: the keys of a dict "
            f"in a pytree are sorted, so they must be comparable; got keys of type "
            f"{', '.join(kinds)}: {brief(list(d))}. Use one type of key, or an OrderedDict, which "
            f"keeps its order.\n  {type(error).__name__}: {error}"
        ) from error


def dict_plan(d: dict[Any, Any]) -> DictPlan | None:
    """The plan of a dict whose keys all are strings or all integers; None for others.

    Other keys can be equal without being interchangeable (1.0 and 1, a StrEnum and its string).
    """
    kinds = set(map(type, d))
    if len(kinds) > 1 or not kinds <= {str, int}:
        return None
    keys = sorted_keys(d)
    plan = PLANS.get(keys)
    if plan is None or not plan.key_types.issuperset(kinds):
        plan = PLANS.setdefault(keys, DictPlan(keys, *kinds or {str}))
    if not plan.key_types.issuperset(kinds):  # the entry belongs to equal keys of another type
        return None
    return PLANS.setdefault(tuple(d), plan)


def read_dict(d: dict[Any, Any], leaves: list[Any]) -> PyTreeDef:
    """Read a dict; `PLANS` is asked by the keys in insertion order, and their types."""
    if not d:  # the keyword arguments of most calls
        return EMPTY_DICT_DEF
    plan = PLANS.get(tuple(d))
    if plan is None or not plan.key_types.issuperset(map(type, d)):
        plan = dict_plan(d)
        if plan is None:
            keys = sorted_keys(d)
            parts = read_each([d[k] for k in keys], leaves)
            return treedef(DICT, keys, tuple(parts))
    values = plan.values(d)
    if LEAF_TYPES.issuperset(map(type, values)):
        leaves.extend(values)
        return plan.flat
    parts = read_each(values, leaves)
    key = tuple(map(id, parts))
    found = plan.nested.get(key)
    if found is None:
        found = treedef(DICT, plan.keys, tuple(parts))
        if found.interned:
            plan.nested[key] = found
    return found


# --- the built-in node types --------------------------------------------------------------------


def flatten_dict(d: dict[Any, Any]) -> tuple[tuple[Any, ...], Any]:
    keys = sorted_keys(d)
    return tuple([d[k] for k in keys]), keys


def flatten_dict_with_keys(d: dict[Any, Any]) -> tuple[KeyPath, tuple[Any, ...], Any]:
    children, keys = flatten_dict(d)
    return tuple(map(DictKey, keys)), children, keys


def flatten_ordered(d: OrderedDict[Any, Any]) -> tuple[tuple[Any, ...], Any]:
    return tuple(d.values()), tuple(d)


def flatten_ordered_with_keys(d: OrderedDict[Any, Any]) -> tuple[KeyPath, tuple[Any, ...], Any]:
    return tuple(map(DictKey, d)), tuple(d.values()), tuple(d)


def flatten_default(d: defaultdict[Any, Any]) -> tuple[tuple[Any, ...], Any]:
    keys = sorted_keys(d)
    return tuple([d[k] for k in keys]), (d.default_factory, keys)


def flatten_default_with_keys(d: defaultdict[Any, Any]) -> tuple[KeyPath, tuple[Any, ...], Any]:
    children, aux = flatten_default(d)
    return tuple(map(DictKey, aux[1])), children, aux


def flatten_sequence(x: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    return tuple(x), None


def flatten_sequence_with_keys(x: Sequence[Any]) -> tuple[KeyPath, tuple[Any, ...], Any]:
    return sequence_keys(len(x)), tuple(x), None


def namedtuple_node(of: Any) -> NodeType:
    """Namedtuple classes are nodes whose children have attribute keys."""
    keys = tuple(map(GetAttrKey, of._fields))
    node = NodeType(
        of,
        "namedtuple",
        flatten_sequence,
        lambda aux, children: of(*children),
        lambda x: (keys, tuple(x), None),
    )
    node.read = sequence_reader(node)
    return node


def flat_node(of: type, kind: str, unflatten: Callable[[Any, tuple[Any, ...]], Any]) -> NodeType:
    """Tuples and lists."""
    node = NodeType(of, kind, flatten_sequence, unflatten, flatten_sequence_with_keys)
    node.read = sequence_reader(node)
    return node


NONE = NodeType(type(None), "none", lambda x: ((), None), lambda aux, xs: None)
TUPLE = flat_node(tuple, "tuple", lambda aux, xs: xs)
LIST = flat_node(list, "list", lambda aux, xs: list(xs))
DICT = NodeType(
    dict, "dict", flatten_dict, lambda keys, xs: dict(zip(keys, xs)), flatten_dict_with_keys
)
ORDERED_DICT = NodeType(
    OrderedDict,
    "custom",
    flatten_ordered,
    lambda keys, xs: OrderedDict(zip(keys, xs)),
    flatten_ordered_with_keys,
)
DEFAULT_DICT = NodeType(
    defaultdict,
    "custom",
    flatten_default,
    lambda aux, xs: defaultdict(aux[0], zip(aux[1], xs)),
    flatten_default_with_keys,
)

NONE_DEF = treedef(NONE, None, ())
EMPTY_DICT_DEF = treedef(DICT, (), ())
NONE.read = lambda x, leaves: NONE_DEF
DICT.read = read_dict
for _node in (NONE, TUPLE, LIST, DICT, ORDERED_DICT, DEFAULT_DICT):
    register(_node)


# --- writing: structure, leaves -> tree ---------------------------------------------------------


def build(of: PyTreeDef, feed: Iterator[Any]) -> Any:
    """The tree of a structure, taking leaves from `feed`."""
    node = of._node
    if node is None:
        return next(feed)
    return node.unflatten(
        of._aux, tuple([next(feed) if c is LEAF else build(c, feed) for c in of._children])
    )


def leaf_count_error(of: PyTreeDef, leaves: Sequence[Any]) -> ValueError:
    """The error for a wrong number of leaves."""
    few = "few" if len(leaves) < of.num_leaves else "many"
    return ValueError(
        f"Too {few} leaves for PyTreeDef; expected {of.num_leaves}, got {len(leaves)}.\n"
        f"  structure: {brief(of)}"
    )


def read_up_to(of: PyTreeDef, x: Any, out: list[Any]) -> bool:
    """Append the subtrees of `x` at the leaves of `of`; False where `x` does not match."""
    node = of._node
    if node is None:
        out.append(x)
        return True
    kind: type = type(x)
    if kind is not node.type:
        return False
    parts = of._children
    children: Sequence[Any]
    if node.kind == "dict":
        if len(x) != len(parts):
            return False
        try:
            children = [x[k] for k in of._aux]
        except KeyError:
            return False
    elif node.kind in SEQUENCES:
        if len(x) != len(parts):
            return False
        children = x
    else:
        children, aux = node.flatten(x)
        if len(children) != len(parts) or not same_aux(of._aux, aux):
            return False
    if of.num_leaves == len(parts) == of.num_nodes - 1:
        out.extend(children)
        return True
    return all(read_up_to(part, child, out) for part, child in zip(parts, children))


def up_to_error(of: PyTreeDef, x: Any) -> ValueError:
    """The error for a tree that does not have `of` as a prefix: the first place it differs."""
    path: KeyPath = ()
    while True:
        node = of._node
        assert node is not None, "a leaf matches everything"
        reason = up_to_reason(node, of, x)
        if reason is not None:
            if path:
                reason += (
                    f"\n  at key path {keystr(path)}, where the structure is {shorten(show(of))}"
                )
            return ValueError(reason)
        keys, children, _ = node.flatten_with_keys(x)
        for key, part, child in zip(keys, of._children, children):
            if not read_up_to(part, child, []):
                of, x, path = part, child, (*path, key)
                break
        else:
            raise AssertionError("flatten_up_to: mismatch not found again")


KIND_NAMES = {"tuple": "tuple", "list": "list", "dict": "dict", "namedtuple": "named tuple"}


def up_to_reason(node: NodeType, of: PyTreeDef, x: Any) -> str | None:
    """Why the root of `x` is not the root of `of`, in JAX's words."""
    kind: type = type(x)
    if kind is not node.type:
        if node.kind == "none":
            return (
                f"Expected None, got {brief(x)}. None is a node without children, not a leaf; "
                "to treat it as one pass is_leaf=lambda x: x is None."
            )
        if node.kind == "namedtuple" and isinstance(x, tuple) and hasattr(x, "_fields"):
            return f"Named tuple type mismatch: expected type: {node.type}, tuple: {brief(x)}."
        if node.kind in KIND_NAMES:
            return f"Expected {KIND_NAMES[node.kind]}, got {brief(x)}."
        return f"Custom node type mismatch: expected type: {node.type}, value: {brief(x)}."
    if node.kind == "dict":
        if set(x) != set(of._aux):
            return f"Dict key mismatch; expected keys: {list(of._aux)}; dict: {brief(x)}."
        return None
    if node.kind in SEQUENCES:
        if len(x) != len(of._children):
            name = "List" if node.kind == "list" else "Tuple"
            return (
                f"{name} arity mismatch: {len(x)} != {len(of._children)}; "
                f"{name.lower()}: {brief(x)}."
            )
        return None
    children, aux = node.flatten(x)
    if not same_aux(of._aux, aux):
        return f"Mismatch custom node data: {of._aux} != {aux}; value: {brief(x)}."
    if len(children) != len(of._children):
        counts = f"{len(children)} != {len(of._children)}"
        return f"Custom type arity mismatch: {counts}; value: {brief(x)}."
    return None


def are_leaves(xs: Iterable[Any]) -> bool:
    """Whether no element is a node."""
    return all(node_type(type(x)) is None for x in xs)


def exact_flattener(of: PyTreeDef) -> Callable[[Any], list[Any] | None]:
    """The uncompiled form of the structure guard."""

    def flatten(x: Any) -> list[Any] | None:
        leaves, found = tree_flatten(x)
        return leaves if found == of else None

    return flatten


GUARD_NAMES = {
    "nodes": NODES,
    "same": same_aux,
    "known": LEAF_TYPES.issuperset,
    "are_leaves": are_leaves,
}
