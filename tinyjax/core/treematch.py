"""Comparing trees: prefixes, broadcasting them, and errors that name the place where trees differ.

A *prefix* of a tree is the tree with some subtrees replaced by leaves; `in_axes`, `out_axes`,
shardings and donation are given as prefixes. Messages begin as JAX's do and then name function,
argument and key path and show only the subtrees that differ.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinyjax.core.treedef import (
    MISSING,
    DictKey,
    GetAttrKey,
    IsLeaf,
    KeyPath,
    NodeType,
    PyTreeDef,
    brief,
    flat_keys,
    keystr,
    node_type,
    read_up_to,
    same_aux,
    sequence_keys,
    tree_flatten,
)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One place where a tree that should be a prefix is not. Call it with a name for the error."""

    path: KeyPath
    headline: str
    prefix: str
    full: str
    details: tuple[str, ...] = ()

    def message(self, name: str, full_name: str | None = None) -> str:
        """JAX's headline and key path, then the two subtrees."""
        here = name + keystr(self.path)
        there = "the full pytree" if full_name is None else full_name + keystr(self.path)
        lines = [
            f"pytree structure error: {self.headline} at key path",
            f"    {here}",
            f"At that key path, {here} is {self.prefix},",
            f"but {there} is {self.full}",
            *self.details,
        ]
        return "\n".join(lines)

    def error(self, name: str, full_name: str | None = None, rule: str = "") -> ValueError:
        """The error to raise; `rule` is what should have held."""
        message = self.message(name, full_name)
        return ValueError(f"{message}\n{rule}" if rule else message)

    def __call__(self, name: str) -> ValueError:
        return self.error(name)


def describe(x: Any) -> str:
    """A subtree for people: its type and structure; a leaf by its value."""
    kind = type(x)
    if node_type(kind) is None:
        return f"a leaf of type {kind}: {brief(x, 60)}"
    if x is None:
        return "None (a node without children; not a leaf)"
    try:
        return f"{kind} = {brief(tree_flatten(x)[1], 80)}"
    except ValueError:  # it cannot be flattened, deeper down: dict keys that have no order
        return f"{kind}"


def metadata(node: NodeType, aux: Any) -> Any:
    """Metadata as shown in messages."""
    return node.type if node.kind == "namedtuple" else aux


def compare_nodes(prefix: Any, full: Any, path: KeyPath) -> Mismatch | None:
    """Compare two roots; `prefix` is a node. Their children are not looked at."""
    if type(prefix) is not type(full):
        return Mismatch(path, "different types", describe(prefix), describe(full))
    node = node_type(type(prefix))
    assert node is not None
    keys, _, aux = node.flatten_with_keys(prefix)
    full_keys, _, full_aux = node.flatten_with_keys(full)
    both = describe(prefix), describe(full)
    if len(keys) != len(full_keys):
        if node.kind in ("tuple", "list"):
            name = node.type.__name__
            sizes = (f"a {name} of length {len(keys)}", f"one of length {len(full_keys)}")
            return Mismatch(path, f"different lengths of {name}", *sizes)
        differing = sorted(map(keystr_bare, set(keys) ^ set(full_keys)))
        missing = sorted(map(keystr_bare, set(full_keys) - set(keys)))
        extra = sorted(map(keystr_bare, set(keys) - set(full_keys)))
        details = ["so the symmetric difference on key sets is", f"    {' '.join(differing)}"]
        details += [f"missing in the prefix: {' '.join(missing)}"] if missing else []
        details += [f"only in the prefix: {' '.join(extra)}"] if extra else []
        return Mismatch(path, "different numbers of pytree children", *both, tuple(details))
    if not same_aux(aux, full_aux):
        lines = difflib.ndiff([f"{metadata(node, aux)}"], [f"{metadata(node, full_aux)}"])
        diff = [f"    {line.rstrip()}" for line in lines]
        details = ["so the diff in the metadata at these pytree nodes is", *diff]
        return Mismatch(path, "different pytree metadata", *both, tuple(details))
    return None


def keystr_bare(key: Any) -> str:
    """A key without brackets."""
    return keystr((key,), simple=True)


def prefix_mismatches(
    prefix: Any, full: Any, is_leaf: IsLeaf | None = None, path: KeyPath = ()
) -> Iterator[Mismatch]:
    """The places where `prefix` is not a prefix of `full`, outermost only, left to right."""
    node = None if is_leaf is not None and is_leaf(prefix) else node_type(type(prefix))
    if node is None:
        return
    found = compare_nodes(prefix, full, path)
    if found is not None:
        yield found
        return
    keys, children, _ = node.flatten_with_keys(prefix)
    _, full_children, _ = node.flatten_with_keys(full)
    for key, child, full_child in zip(keys, children, full_children):
        yield from prefix_mismatches(child, full_child, is_leaf, (*path, key))


def match_rest(
    name: str, tree: Any, structure: PyTreeDef, rest: tuple[Any, ...], is_leaf: IsLeaf | None
) -> list[list[Any]]:
    """The subtrees of each of `rest` at the leaves of `tree`, or an error that says where not."""
    found = []
    for i, other in enumerate(rest):
        subtrees: list[Any] = []
        if not read_up_to(structure, other, subtrees):
            for mismatch in prefix_mismatches(tree, other, is_leaf):
                raise mismatch.error(
                    f"{name} tree",
                    f"rest[{i}]",
                    f"{name}: the first tree's structure must be a prefix of every further tree's.",
                )
            structure.flatten_up_to(other)
        found.append(subtrees)
    return found


def prefix_errors(
    prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf | None = None
) -> list[Callable[[str], ValueError]]:
    """Functions from a name to the error, one per place where the prefix does not fit."""
    return list(prefix_mismatches(prefix_tree, full_tree, is_leaf))


def broadcast_prefix(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The prefix's leaves, each repeated for the leaves of the full tree below it.

    `is_leaf` applies to both trees, as in JAX.
    Raises: `ValueError` naming the first place where `prefix_tree` is not a prefix.
    """
    leaves, structure = tree_flatten(prefix_tree, is_leaf)
    subtrees: list[Any] = []
    if not read_up_to(structure, full_tree, subtrees):
        for mismatch in prefix_mismatches(prefix_tree, full_tree, is_leaf):
            raise mismatch.error("broadcast_prefix prefix_tree", "full_tree")
        structure.flatten_up_to(full_tree)
    return repeat_leaves(leaves, [tree_flatten(t, is_leaf)[1].num_leaves for t in subtrees])


def repeat_leaves(leaves: Iterable[Any], counts: Iterable[int]) -> list[Any]:
    """Leaf i, counts[i] times."""
    out: list[Any] = []
    for leaf, count in zip(leaves, counts):
        out.extend([leaf] * count)
    return out


def tree_broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf | None = None) -> Any:
    """A tree of the full tree's structure with the prefix's leaves."""
    leaves = broadcast_prefix(prefix_tree, full_tree, is_leaf)
    return tree_flatten(full_tree, is_leaf)[1].unflatten(leaves)


def is_none(x: Any) -> bool:
    """None as a leaf: the meaning of None in `in_axes` and its kin."""
    return x is None


def flatten_axes(
    name: str,
    tree_def: PyTreeDef,
    prefix: Any,
    *,
    is_leaf: IsLeaf = is_none,
    value_name: str = "the corresponding value",
) -> list[Any]:
    """Broadcast a prefix such as `in_axes` over a structure: one entry per leaf.

    None counts as a leaf of the prefix, so `None` means "not mapped" for everything below it.
    Raises: `ValueError` naming the paths (in `name`) where the prefix does not fit.
    """
    if node_type(type(prefix)) is None or is_leaf(prefix):
        return [prefix] * tree_def.num_leaves
    out: list[Any] = []
    mismatches: list[Mismatch] = []
    spread_axes(prefix, tree_def, is_leaf, (), out, mismatches)
    if mismatches:
        shown = "\n".join([m.message(name, value_name) for m in mismatches])
        raise ValueError(
            f"{name} specification must be a tree prefix of {value_name}; "
            f"got {brief(prefix, 200)} for {brief(tree_def, 200)}.\n"
            f"Mismatch details ({len(mismatches)} found):\n{shown}"
        )
    return out


def spread_axes(
    prefix: Any,
    part: PyTreeDef,
    is_leaf: IsLeaf,
    path: KeyPath,
    out: list[Any],
    mismatches: list[Mismatch],
) -> None:
    """`flatten_axes` below one path.

    The structure is followed itself, not a dummy tree made from it: users' constructors may
    refuse dummies. Metadata of a prefix's own nodes must equal those of the structure.
    """
    node = None if is_leaf(prefix) else node_type(type(prefix))
    if node is None:
        out.extend([prefix] * part.num_leaves)
        return
    keys, children, aux = node.flatten_with_keys(prefix)
    fits = part._node is not None and part._node.type is node.type
    if fits and len(children) == len(part._children) and same_aux(aux, part._aux):
        for key, child, sub in zip(keys, children, part._children):
            spread_axes(child, sub, is_leaf, (*path, key), out, mismatches)
        return
    mismatches.append(axes_mismatch(prefix, node, keys, aux, part, path))


def axes_mismatch(
    prefix: Any, node: NodeType, keys: KeyPath, aux: Any, part: PyTreeDef, path: KeyPath
) -> Mismatch:
    """What differs between the root of a prefix and the root of a structure."""
    mine, theirs = describe(prefix), f"{part}"
    other = part._node
    if other is None:
        return Mismatch(path, "different types", mine, "a leaf")
    if other.type is not node.type:
        return Mismatch(path, "different types", mine, f"{other.type} = {brief(theirs, 80)}")
    theirs = f"{other.type} = {brief(theirs, 80)}"
    if node.kind == "dict":
        have, want = {k.key for k in keys}, set(part._aux)
        details = [
            "so the symmetric difference on key sets is",
            f"    {' '.join(sorted(map(str, have ^ want)))}",
        ]
        headline = "different numbers of pytree children"
        if len(have) == len(want):
            headline = "different pytree metadata"
        missing = sorted([repr(k) for k in want - have])
        if missing and have < want:
            details.append(f"Perhaps add {', '.join(missing)} (None where it does not apply).")
        return Mismatch(path, headline, mine, theirs, tuple(details))
    if len(keys) != len(part._children):
        name = node.type.__name__
        sizes = (f"a {name} of length {len(keys)}", f"one of length {len(part._children)}")
        return Mismatch(path, f"different lengths of {name}", *sizes)
    return Mismatch(path, "different pytree metadata", f"{mine} {aux}", f"{theirs} {part._aux}")


# --- equality -----------------------------------------------------------------------------------

Difference = tuple[KeyPath, str, str, str]


def equality_errors(tree1: Any, tree2: Any, is_leaf: IsLeaf | None = None) -> Iterator[Difference]:
    """Places where two structures differ: (path, first, second, why), for a caller's sentence.

    The texts fit "{path} of the first is {first} but that of the second is {second}, so {why}".
    """
    yield from structure_differences(
        tree_flatten(tree1, is_leaf)[1], tree_flatten(tree2, is_leaf)[1], tree1, tree2, ()
    )


def equality_errors_pytreedef(tree1: PyTreeDef, tree2: PyTreeDef) -> Iterator[Difference]:
    """`equality_errors` of two structures."""
    yield from structure_differences(tree1, tree2, MISSING, MISSING, ())


def structure_differences(
    a: PyTreeDef, b: PyTreeDef, x: Any, y: Any, path: KeyPath
) -> Iterator[Difference]:
    """Walk two structures; `x` and `y` are the trees where known (they describe the leaves)."""
    if a is b or a == b:
        return
    left, right = root_name(a, x), root_name(b, y)
    if a._node is None or b._node is None or a._node.type is not b._node.type:
        yield path, left, right, "their Python types differ"
        return
    node = a._node
    keys, other_keys = child_keys(a), child_keys(b)
    if len(keys) != len(other_keys):
        left = f"{left} with {counted(len(keys))}"
        right = f"{right} with {counted(len(other_keys))}"
        if node.kind in ("tuple", "list"):
            yield path, left, right, f"the lengths do not match: {len(keys)} and {len(other_keys)}"
            return
        difference = sorted(map(keystr_bare, set(keys) ^ set(other_keys)))
        yield (
            path, left, right,
            "the numbers of children do not match, with the symmetric difference of key sets: "
            f"{{{', '.join([repr(k) for k in difference])}}}",
        )  # fmt: skip
        return
    if not same_aux(a._aux, b._aux):
        yield (
            path,
            f"{left} with pytree metadata {a._aux}",
            f"{right} with pytree metadata {b._aux}",
            "the pytree node metadata does not match",
        )
        return
    xs = children_of(node, x, len(keys))
    ys = children_of(node, y, len(keys))
    for key, sub_a, sub_b, sub_x, sub_y in zip(keys, a._children, b._children, xs, ys):
        yield from structure_differences(sub_a, sub_b, sub_x, sub_y, (*path, key))


def root_name(of: PyTreeDef, value: Any) -> str:
    """How a message names a subtree: its type, or that it is a leaf."""
    if of._node is not None:
        return f"{of._node.type}"
    return "a pytree leaf" if value is MISSING else f"{type(value)}"


def counted(n: int) -> str:
    """ "1 child", "2 children"."""
    return "1 child" if n == 1 else f"{n} children"


def child_keys(of: PyTreeDef) -> KeyPath:
    """The keys of a structure's children, as far as the structure alone tells."""
    node, count = of._node, len(of._children)
    assert node is not None
    if node.kind == "dict":
        return tuple(map(DictKey, of._aux))
    if node.kind in ("tuple", "list"):
        return sequence_keys(count)
    if node.kind == "namedtuple":
        return tuple([GetAttrKey(f) for f in node.type._fields])  # type: ignore[attr-defined]
    if node.fields is not None:
        return tuple(map(GetAttrKey, node.fields[0]))
    return flat_keys(count)


def children_of(node: NodeType, value: Any, count: int) -> Sequence[Any]:
    """The children of a tree, if it is known."""
    if value is MISSING or type(value) is not node.type:
        return [MISSING] * count
    return node.flatten(value)[0]
