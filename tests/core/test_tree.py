"""Pytrees against JAX's `jax.tree_util`, and what is ours: interning, guards, errors with paths."""

import collections
import dataclasses
import enum
import functools
import gc
import pickle
import time
import weakref
from typing import Any

import jax
import jax.tree_util as ju
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyjax.tree as tj
import tinyjax.tree_util as tu
from tinyjax.core import treedef as td
from tinyjax.core.tree import (
    broadcast_prefix,
    equality_errors,
    equality_errors_pytreedef,
    flatten_axes,
    prefix_errors,
)

Pair = collections.namedtuple("Pair", "first second")
Nothing = collections.namedtuple("Nothing", "")


class Point:
    """A registered node with keys; `meta` is metadata."""

    def __init__(self, x: Any, y: Any, meta: Any = "m") -> None:
        self.x, self.y, self.meta = x, y, meta

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)


class Bag:
    """A registered node without keys, whose flatten function returns an iterator."""

    def __init__(self, *xs: Any) -> None:
        self.xs = xs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bag) and self.xs == other.xs


@dataclasses.dataclass
class Layer:
    """A dataclass node with a static field."""

    w: Any
    b: Any
    name: str = tj.static(default="layer")


@dataclasses.dataclass(frozen=True)
class Tag:
    """A static value."""

    n: int


@dataclasses.dataclass
class BlackBox:
    """Equal to every other one: metadata that are equal without being interchangeable."""

    value: int

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlackBox)


for util in (tu, ju):
    util.register_pytree_with_keys(
        Point,
        lambda p, util=util: (
            ((util.GetAttrKey("x"), p.x), (util.GetAttrKey("y"), p.y)),
            p.meta,
        ),
        lambda meta, xy: Point(*xy, meta),
    )
    util.register_pytree_node(Bag, lambda b: (iter(b.xs), len(b.xs)), lambda n, xs: Bag(*xs))
    util.register_dataclass(Layer)
    util.register_static(Tag)
    util.register_static(BlackBox)

leaves = st.integers(0, 9) | st.text(max_size=2) | st.floats(allow_nan=False)
names = st.sampled_from(["b", "a", "c", "zeta", ""])


def containers(children):
    """One more level around trees."""
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(names, children, max_size=4),
        st.dictionaries(st.integers(-3, 3), children, max_size=3),
        st.dictionaries(st.booleans(), children, max_size=2),
        st.dictionaries(st.tuples(st.integers(0, 2), names), children, max_size=2),
        st.dictionaries(names, children, max_size=3).map(collections.OrderedDict),
        st.dictionaries(names, children, max_size=3).map(
            lambda d: collections.defaultdict(list, d)
        ),
        st.builds(Pair, children, children),
        st.builds(Point, children, children, st.sampled_from(["m", 1, (1, "a"), 2.5])),
        st.builds(Layer, children, children, names),
        st.lists(children, max_size=3).map(lambda xs: Bag(*xs)),
        st.builds(Tag, st.integers(0, 1)),
        st.just(Nothing()),
        st.none(),
    )


trees = st.recursive(leaves | st.none(), containers, max_leaves=20)


@settings(max_examples=300, deadline=None)
@given(trees)
def test_flattening_agrees_with_jax(tree):
    theirs, their_def = ju.tree_flatten(tree)
    ours, our_def = tu.tree_flatten(tree)
    assert [id(x) for x in ours] == [id(x) for x in theirs]
    assert repr(our_def) == repr(their_def)
    assert (our_def.num_leaves, our_def.num_nodes) == (their_def.num_leaves, their_def.num_nodes)
    assert list(map(repr, our_def.children())) == list(map(repr, their_def.children()))
    assert our_def.node_data() == their_def.node_data()
    with_path, path_def = tu.tree_flatten_with_path(tree)
    their_paths = ju.tree_flatten_with_path(tree)[0]
    assert path_def == our_def
    assert [repr(p) for p, _ in with_path] == [repr(p) for p, _ in their_paths]
    assert [tu.keystr(p) for p, _ in with_path] == [ju.keystr(p) for p, _ in their_paths]
    assert [id(x) for _, x in with_path] == [id(x) for x in theirs]


@settings(max_examples=300, deadline=None)
@given(trees)
def test_structures_round_trip(tree):
    found, structure = tu.tree_flatten(tree)
    again = tu.tree_structure(tree)
    assert structure == again and hash(structure) == hash(again)
    for _ in range(td.COMPILE_AFTER + 2):  # interpreted, then compiled
        rebuilt = structure.unflatten(found)
        assert rebuilt == tree and type(rebuilt) is type(tree)
        assert repr(tu.tree_structure(rebuilt)) == repr(structure)
    assert structure.unflatten(iter(found)) == tree
    assert structure.flatten_up_to(tree) == found
    copy = pickle.loads(pickle.dumps(structure))
    assert copy == structure and repr(copy) == repr(structure) and hash(copy) == hash(structure)
    assert td.build(structure, iter(found)) == tree
    data = structure.node_data()
    assert tu.PyTreeDef.from_node_data_and_children(None, data, structure.children()) == structure


@settings(max_examples=300, deadline=None)
@given(trees, trees)
def test_the_guard_accepts_exactly_its_structure(one, other):
    structure = tu.tree_structure(one)
    for guard in (structure.flattener(), td.exact_flattener(structure)):
        found = guard(one)
        assert found is not None and [id(x) for x in found] == [id(x) for x in tu.tree_leaves(one)]
        same = tu.tree_structure(other) == structure
        assert (guard(other) is not None) == same
    assert same == (ju.tree_structure(one) == ju.tree_structure(other))


@settings(max_examples=300, deadline=None)
@given(trees, trees)
def test_prefixes_agree_with_jax(one, other):
    structure, theirs = tu.tree_structure(one), ju.tree_structure(one)
    try:
        expected = theirs.flatten_up_to(other)
    except ValueError:
        with pytest.raises(ValueError):
            structure.flatten_up_to(other)
        with pytest.raises(ValueError, match="pytree structure error|Custom|custom"):
            tu.tree_map(lambda x, y: y, one, other)
        assert prefix_errors(one, other)
        return
    assert structure.flatten_up_to(other) == expected
    assert not prefix_errors(one, other)
    assert tu.tree_map(lambda x, y: (x, y), one, other) == ju.tree_map(
        lambda x, y: (x, y), one, other
    )


@settings(max_examples=200, deadline=None)
@given(trees)
def test_is_leaf_agrees_with_jax(tree):
    def stop(x):
        return isinstance(x, (dict, Pair)) or x is None

    ours, theirs = tu.tree_flatten(tree, stop), ju.tree_flatten(tree, stop)
    assert ours[0] == theirs[0] and repr(ours[1]) == repr(theirs[1])

    def deep(path, x):
        return len(path) >= 2

    ours = tu.tree_flatten_with_path(tree, deep, is_leaf_takes_path=True)
    theirs = ju.tree_flatten_with_path(tree, deep, is_leaf_takes_path=True)
    assert [x for _, x in ours[0]] == [x for _, x in theirs[0]]
    assert repr(ours[1]) == repr(theirs[1])


@settings(max_examples=200, deadline=None)
@given(trees, trees)
def test_compose_and_tuple_agree_with_jax(one, other):
    ours = tu.tree_structure(one).compose(tu.tree_structure(other))
    theirs = ju.tree_structure(one).compose(ju.tree_structure(other))
    assert repr(ours) == repr(theirs) and ours.num_nodes == theirs.num_nodes
    pair = tu.treedef_tuple([tu.tree_structure(one), tu.tree_structure(other)])
    assert pair == tu.tree_structure((one, other))
    assert tu.treedef_children(pair) == [tu.tree_structure(one), tu.tree_structure(other)]
    assert tu.treedef_is_leaf(tu.tree_structure(one)) == ju.treedef_is_leaf(ju.tree_structure(one))


# --- what unflatten must give back --------------------------------------------------------------


def test_equal_metadata_are_not_confused():
    """`1 == True == 1.0`, and users' types: an interned structure must not stand for another."""
    for one, other in [({1: 0}, {True: 0}), ({True: 0}, {1: 0}), ({1.0: 0}, {1: 0})]:
        for tree in (one, other, {**one}):
            found, structure = tu.tree_flatten(tree)
            assert list(map(repr, structure.unflatten(found))) == list(map(repr, tree))
        assert tu.tree_structure(one) == tu.tree_structure(other)
        assert hash(tu.tree_structure(one)) == hash(tu.tree_structure(other))
    for meta in (1, True, 1.0):
        assert type(tu.tree_map(lambda x: x, Point(0, 0, meta)).meta) is type(meta)
    for value in (1, 2):
        assert tu.tree_map(lambda x: x, [BlackBox(value)])[0].value == value
    assert tu.tree_structure(BlackBox(1)) == tu.tree_structure(BlackBox(2))
    Kind = enum.StrEnum("Kind", ["a", "b"])
    tu.tree_structure({"a": 0, "b": 0})
    keys = tu.tree_map(lambda x: x, {Kind.a: 0, Kind.b: 0})
    assert all(type(k) is Kind for k in keys)


def test_equal_structures_are_one_object():
    def make():
        return {"b": (1, [2, None]), "a": Pair(1, {"x": 2})}

    assert tu.tree_structure(make()) is tu.tree_structure(make())
    assert tu.tree_structure({"a": 1, "b": 2}) is tu.tree_structure({"b": 1, "a": 2})
    assert tu.tree_structure(Layer(1, 2)) is tu.tree_structure(Layer(3, 4))
    assert pickle.loads(pickle.dumps(tu.tree_structure(make()))) is tu.tree_structure(make())


def test_structures_stay_equal_when_the_tables_are_emptied():
    tree = {"b": (1, [2, None]), "a": Pair(1, {"x": 3})}
    before = tu.tree_structure(tree)
    td.forget_structures()
    after = tu.tree_structure(tree)
    assert before is not after and before == after and hash(before) == hash(after)
    assert {before: 1}[after] == 1
    assert tu.tree_structure((tree, tree)) == tu.treedef_tuple([before, after])


def test_the_tables_are_bounded(monkeypatch):
    monkeypatch.setattr(td, "MAX_INTERNED_NODES", 1000)
    for n in range(200):
        tu.tree_structure([0] * n)
    assert sum(d.num_nodes for d in td.INTERNED.values()) <= 1000


def test_functions_in_metadata_are_not_kept_alive():
    def make():
        def f(x):
            return x

        tu.tree_flatten(tu.Partial(f, 1))
        return weakref.ref(f)

    ref = make()
    gc.collect()
    assert ref() is None


def test_registering_a_type_after_it_was_a_leaf():
    class Late:
        pass

    assert tu.tree_leaves([Late()]) != []
    guard = tu.tree_structure([1]).flattener()
    assert guard([Late()]) is not None
    tu.register_pytree_node(Late, lambda x: ((), None), lambda aux, xs: Late())
    assert tu.tree_leaves([Late()]) == []
    assert guard([Late()]) is None


def test_registering_a_namedtuple_class_replaces_its_default():
    Custom = collections.namedtuple("Custom", "a b")
    structure = tu.tree_structure(Custom(1, 2))
    guard = structure.flattener()
    assert guard(Custom(1, 2)) == [1, 2]
    tu.register_pytree_node(Custom, lambda x: ((x.a,), x.b), lambda b, xs: Custom(xs[0], b))
    assert tu.tree_leaves(Custom(1, 2)) == [1]
    assert guard(Custom(1, 2)) is None
    assert tu.tree_map(lambda x: x + 1, Custom(1, 2)) == Custom(2, 2)


@pytest.mark.parametrize(
    "tree",
    [
        type("L", (list,), {})([1, 2]),
        type("T", (tuple,), {})((1, 2)),
        type("D", (dict,), {})(a=1),
        type("O", (collections.OrderedDict,), {})(a=1),
        time.localtime(),
        Pair,
    ],
)
def test_subclasses_of_containers_are_leaves(tree):
    assert tu.tree_leaves(tree) == [tree] and not tu.is_tree_node(type(tree))


def test_a_subclass_of_a_namedtuple_is_a_node():
    class Sub(Pair):
        pass

    assert tu.tree_map(lambda x: x + 1, Sub(1, 2)) == Sub(2, 3)
    assert type(tu.tree_map(lambda x: x + 1, Sub(1, 2))) is Sub
    assert repr(tu.tree_structure(Sub(1, 2))) == repr(ju.tree_structure(Sub(1, 2)))


def test_large_structures_are_not_compiled(monkeypatch):
    monkeypatch.setattr(td, "COMPILE_MAX_NODES", 3)
    tree = {"a": [1, 2, 3], "unlikely name": 0}
    structure = tu.tree_structure(tree)
    for _ in range(td.COMPILE_AFTER + 2):
        assert structure.unflatten([1, 2, 3, 0]) == tree
    assert structure._unflatten is None
    assert structure.flattener()(tree) == [1, 2, 3, 0]
    assert structure.flattener()([tree]) is None


def test_deep_nesting_compiles():
    """Compiled code names every node: Python's parser limits nesting, not statements."""
    tree: Any = 1
    for i in range(300):
        tree = [tree, {"x": (i,)}]
    found, structure = tu.tree_flatten(tree)
    assert td.compile_unflatten(structure, Exception)(found) == tree
    assert structure.flattener()(tree) == found


# --- mapping ------------------------------------------------------------------------------------


def test_tree_map_with_path_gives_paths():
    tree = {"a": (1, [2]), "b": Pair(3, tu.Partial(print, 4, end="x"))}
    text = tu.tree_map_with_path(lambda path, x, y: (tu.keystr(path), x, y), tree, tree)
    flat = tu.tree_leaves(text, is_leaf=lambda x: isinstance(x, tuple) and len(x) == 3)
    assert [f[0] for f in flat] == [
        "['a'][0]", "['a'][1][0]", "['b'].first",
        "['b'].second[<flat index 0>][0]", "['b'].second[<flat index 1>]['end']",
    ]  # fmt: skip
    simple = [tu.keystr(p, simple=True, separator="/") for p, _ in tu.tree_leaves_with_path(tree)]
    assert simple == ["a/0", "a/1/0", "b/first", "b/second/0/0", "b/second/1/end"]


def test_reductions():
    assert tu.tree_reduce(lambda a, b: a + b, {"x": 1, "y": (2, 3)}) == 6
    assert tu.tree_reduce(lambda a, b: a + b, {"x": 1, "y": (2, 3)}, 10) == 16
    assert tu.tree_reduce(lambda a, b: a + b, (), None) is None
    with pytest.raises(TypeError, match="empty"):
        tu.tree_reduce(lambda a, b: a + b, ())
    text = tj.reduce_associative(lambda a, b: f"({a}{b})", [1, 2, 3, 4, 5])
    assert text == jax.tree.reduce_associative(lambda a, b: f"({a}{b})", [1, 2, 3, 4, 5])
    assert tj.reduce_associative(lambda a, b: a + b, [], identity=7) == 7
    with pytest.raises(TypeError, match="Must specify identity"):
        tj.reduce_associative(lambda a, b: a + b, [])
    assert tj.all([True, (1, {"a": 2})]) and not tj.all([True, (0,)])


def test_transpose():
    outer, inner = tu.tree_structure({"a": 0, "b": 0}), tu.tree_structure((0, 0, 0))
    nested = {"a": (1, 2, 3), "b": (4, 5, 6)}
    expected = ({"a": 1, "b": 4}, {"a": 2, "b": 5}, {"a": 3, "b": 6})
    assert tu.tree_transpose(outer, inner, nested) == expected
    assert tu.tree_transpose(outer, None, nested) == expected
    with pytest.raises(TypeError, match="Mismatch"):
        tu.tree_transpose(outer, tu.tree_structure([0, 0]), nested)


def test_all_leaves():
    assert tu.all_leaves([1, "a", object()])
    assert not tu.all_leaves([1, None]) and not tu.all_leaves([[]])
    assert tu.all_leaves([(1, 2), 3], is_leaf=lambda x: isinstance(x, tuple))
    assert not tu.all_leaves([[1], 3], is_leaf=lambda x: isinstance(x, tuple))


def test_one_level():
    assert tu.flatten_one_level((1, (2,))) == ((1, (2,)), None)
    assert tu.flatten_one_level({"b": 1, "a": 2}) == ([2, 1], ("a", "b"))
    assert tu.flatten_one_level(Pair(1, 2)) == ([1, 2], Pair)
    pairs, aux = tu.flatten_one_level_with_keys(Point(1, 2))
    assert list(pairs) == [(tu.GetAttrKey("x"), 1), (tu.GetAttrKey("y"), 2)] and aux == "m"
    for f in (tu.flatten_one_level, tu.flatten_one_level_with_keys):
        with pytest.raises(ValueError, match="can't tree-flatten type: <class 'int'>"):
            f(1)


def test_walk_and_iterable_trees():
    tree = {"b": 2, "a": (1, None)}
    found, structure = tu.tree_flatten(tree)
    nodes: list[Any] = []
    assert structure.walk(lambda xs, data: nodes.append((xs, data)), lambda x: x, found) is None
    assert nodes == [((), None), ((1, None), None), ((None, 2), ["a", "b"])]
    with pytest.raises(ValueError, match="Too few leaves"):
        structure.walk(lambda xs, data: None, None, [1])
    with pytest.raises(ValueError, match="Too many leaves"):
        structure.walk(lambda xs, data: None, None, [1, 2, 3])
    assert tu.tree_structure((1, [2])).from_iterable_tree([7, (8,)]) == (7, [8])


def test_keys():
    pairs = [
        (tu.SequenceKey(1), ju.SequenceKey(1)), (tu.DictKey("a"), ju.DictKey("a")),
        (tu.GetAttrKey("a"), ju.GetAttrKey("a")),
        (tu.FlattenedIndexKey(1), ju.FlattenedIndexKey(1)),
    ]  # fmt: skip
    for ours, theirs in pairs:
        assert str(ours) == str(theirs) and repr(ours) == repr(theirs)
        assert pickle.loads(pickle.dumps(ours)) == ours
        assert hash(ours) == hash(pickle.loads(pickle.dumps(ours)))
        assert type(ours).__match_args__ == type(theirs).__match_args__
    assert tu.SequenceKey(1) != tu.FlattenedIndexKey(1)
    assert hash(tu.SequenceKey(1)) != hash(tu.FlattenedIndexKey(1))


def test_partial_keeps_its_own_arguments_apart():
    inner = functools.partial(print, 1)
    p = tu.Partial(inner, 2, end="")
    assert p.args == (2,) and p.func == inner and hash(p.func) == hash(inner)
    assert tu.Partial(inner).func == tu.Partial(inner).func
    found, structure = tu.tree_flatten(p)
    assert found == [2, ""]
    assert structure == tu.tree_structure(tu.Partial(inner, 3, end="y"))
    assert structure != tu.tree_structure(tu.Partial(functools.partial(print, 1), 3, end="y"))
    assert tu.Partial(tu.Partial(lambda *a: a, 1), 2)(3) == (1, 2, 3)
    assert structure.unflatten([5, "z"]).keywords == {"end": "z"}


# --- registration -------------------------------------------------------------------------------


def test_register_dataclass_infers_fields():
    layer = Layer((1, 2), 3, "q")
    assert tu.tree_leaves(layer) == [1, 2, 3]
    assert repr(tu.tree_structure(layer)) == "PyTreeDef(CustomNode(Layer[('q',)], [(*, *), *]))"
    guard = tu.tree_structure(layer).flattener()
    assert guard(Layer((4, 5), 6, "q")) == [4, 5, 6]
    assert guard(Layer((4, 5), 6, "other")) is None and guard(Layer(4, 6, "q")) is None


def test_register_dataclass_checks_its_fields():
    def make():
        @dataclasses.dataclass
        class D:
            a: Any
            b: Any = 0

        return D

    with pytest.raises(ValueError, match="Missing fields: {'b'}.*drop_fields"):
        tu.register_dataclass(make(), ["a"], [])
    with pytest.raises(ValueError, match="Unexpected fields: {'c'}"):
        tu.register_dataclass(make(), ["a", "b", "c"], [])
    with pytest.raises(ValueError, match="must not overlap.*{'b'}"):
        tu.register_dataclass(make(), ["a", "b"], ["b"])
    with pytest.raises(TypeError, match="must both be specified"):
        tu.register_dataclass(make(), ["a", "b"])
    with pytest.raises(TypeError, match="required when nodetype is not a dataclass"):
        tu.register_dataclass(type("Plain", (), {}))
    D = tu.register_dataclass(make(), ["a"], [], drop_fields=["b"])
    assert tu.tree_map(lambda x: x + 1, D(1, 5)) == D(2, 0)
    E = tu.register_dataclass(make(), drop_fields=["b"])  # inferred without what is dropped
    assert tu.tree_leaves(E(1, 5)) == [1]


def test_registration_errors():
    class Once:
        pass

    tu.register_pytree_node(Once, lambda x: ((), None), lambda aux, xs: Once())
    with pytest.raises(ValueError, match="Duplicate custom PyTreeDef type registration"):
        tu.register_static(Once)
    with pytest.raises(ValueError, match="Duplicate"):
        tu.register_pytree_node(list, lambda x: ((), None), lambda aux, xs: [])
    with pytest.raises(TypeError, match="must be a class, got 3"):
        tu.register_pytree_node(3, lambda x: ((), None), lambda aux, xs: 3)
    with pytest.raises(TypeError, match="must be functions"):
        tu.register_pytree_node(type("X", (), {}), None, None)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("hello", "should return a \\(children, aux_data\\) tuple, got 'hello'"),
        ((2, 3, 4), "should return a \\(children, aux_data\\) tuple, got \\(2, 3, 4\\)"),
        ((7, 7), "where 'children' is iterable, got \\(7, 7\\)"),
    ],
)
def test_bad_flatten_functions(result, message):
    Bad = type("Bad", (), {})
    tu.register_pytree_node(Bad, lambda x: result, lambda aux, xs: Bad())
    with pytest.raises(ValueError, match=message):
        tu.tree_flatten(Bad())


def test_class_decorators():
    @tu.register_pytree_node_class
    class A:
        def __init__(self, x):
            self.x = x

        def tree_flatten(self):
            return (self.x,), "aux"

        @classmethod
        def tree_unflatten(cls, aux, children):
            assert type(children) is tuple
            return cls(*children)

    @tu.register_pytree_with_keys_class
    class B(A):
        def tree_flatten_with_keys(self):
            return ((tu.GetAttrKey("x"), self.x),), "aux"

    assert tu.tree_map(lambda v: v + 1, [A(1), B(2)])[1].x == 3
    paths = [tu.keystr(p) for p, _ in tu.tree_leaves_with_path([A(1), B(2)])]
    assert paths == ["[0][<flat index 0>]", "[1].x"]
    assert repr(tu.tree_structure(A(1))) == "PyTreeDef(CustomNode(A[aux], [*]))"


# --- errors -------------------------------------------------------------------------------------


def message_of(f) -> str:
    with pytest.raises(ValueError) as caught:
        f()
    return str(caught.value)


def test_tree_map_names_the_path_and_shows_only_what_differs():
    first = {"w": [1, {"k": (1, 2)}], "big": list(range(50))}
    second = {"w": [1, {"k": (1, 2, 3)}], "big": list(range(50))}
    text, _, line = message_of(lambda: tu.tree_map(max, first, first, second)).rpartition("\n")
    assert line.startswith("  at test_tree.py:")
    assert text == (
        "pytree structure error: different lengths of tuple at key path\n"
        "    tree_map tree['w'][1]['k']\n"
        "At that key path, tree_map tree['w'][1]['k'] is a tuple of length 2,\n"
        "but rest[1]['w'][1]['k'] is one of length 3\n"
        "tree_map: the first tree's structure must be a prefix of every further tree's."
    )


def test_tree_map_says_when_types_differ():
    text = message_of(lambda: tu.tree_map(max, {"a": {"c": 1}}, {"a": 3}))
    assert "different types at key path\n    tree_map tree['a']" in text
    assert (
        "<class 'dict'> = PyTreeDef({'c': *})" in text and "leaf of type <class 'int'>: 3" in text
    )
    text = message_of(lambda: tu.tree_map(max, (1, None), (1, 2)))
    assert "None (a node without children; not a leaf)" in text


def test_prefix_errors_are_listed_outermost_left_to_right():
    found = prefix_errors(((1, 2), (2, 3)), ((1, 2, 3), [2, 3]))
    texts = [str(e("in_axes")) for e in found]
    assert len(texts) == 2
    assert "different lengths of tuple at key path\n    in_axes[0]" in texts[0]
    assert "different types at key path\n    in_axes[1]" in texts[1]
    for ours, theirs in zip(found, jax_prefix_errors(((1, 2), (2, 3)), ((1, 2, 3), [2, 3]))):
        assert str(ours("x")).splitlines()[:2] == str(theirs("x")).splitlines()[:2]


def jax_prefix_errors(a, b):
    from jax._src.tree_util import prefix_errors

    return prefix_errors(a, b)


def test_prefix_errors_show_differing_keys_and_metadata():
    (e,) = prefix_errors({"hi": 1}, {"hi": 2, "bye": 3})
    text = str(e("in_axes"))
    assert "different numbers of pytree children at key path\n    in_axes" in text
    assert "so the symmetric difference on key sets is\n    bye" in text
    assert "missing in the prefix: bye" in text
    (e,) = prefix_errors([{1: 2}], [{3: 4}])
    assert "different pytree metadata at key path\n    in_axes[0]" in str(e("in_axes"))
    assert prefix_errors((1, None), ((1, 2), 3), is_leaf=lambda x: x is None) == []


@settings(max_examples=200, deadline=None)
@given(trees, trees)
def test_prefix_errors_are_where_jax_says(one, other):
    ours = [str(e("name")).splitlines()[:2] for e in prefix_errors(one, other)]
    theirs = [str(e("name")).splitlines()[:2] for e in jax_prefix_errors(one, other)]
    # JAX 0.10.2 gives all fields of a namedtuple the first one's key in this one function.
    assert [o[1].replace(".second", ".first") for o in ours] == [t[1] for t in theirs]


@pytest.mark.parametrize(
    ("tree", "other", "message"),
    [
        ([1, 2], [7], "List arity mismatch: 1 != 2; list: [7]."),
        ((1,), (7, 8), "Tuple arity mismatch: 2 != 1; tuple: (7, 8)."),
        ({"a": 1}, {"b": 7}, "Dict key mismatch; expected keys: ['a']; dict: {'b': 7}."),
        ([(1,)], [7], "Expected tuple, got 7.\n  at key path [0], where the structure is (*,)"),
        ([Pair(1, 2)], [(1, 2)], "Expected named tuple, got (1, 2)."),
        ([Pair(1, 2)], [Nothing()], "Named tuple type mismatch"),
        ([Layer(1, 2)], [(1, 2)], "Custom node type mismatch"),
        ([Layer(1, 2, "a")], [Layer(1, 2, "b")], "Mismatch custom node data: ('a',) != ('b',)"),
        ({"x": {"y": Bag(1)}}, {"x": {"y": Bag(1, 2)}}, "at key path ['x']['y']"),
        ([None], [[2]], "Expected None, got [2]."),
    ],
)
def test_flatten_up_to_errors(tree, other, message):
    assert message in message_of(lambda: tu.tree_structure(tree).flatten_up_to(other))


def test_flatten_up_to_does_not_look_below_its_leaves():
    unsortable = {"a": 1, 2: 3}
    assert tu.tree_structure((1, 2)).flatten_up_to((unsortable, 4)) == [unsortable, 4]
    assert tu.tree_map(lambda x, y: y, [1], [unsortable]) == [unsortable]


def test_leaf_counts():
    structure = tu.tree_structure((1, {"a": 2}))
    for _ in range(td.COMPILE_AFTER + 2):
        text = message_of(lambda: structure.unflatten([1]))
        assert text.startswith("Too few leaves for PyTreeDef; expected 2, got 1.")
        assert "PyTreeDef((*, {'a': *}))" in text
        assert message_of(lambda: structure.unflatten(range(3))).startswith("Too many leaves")
        structure.unflatten([1, 2])


def test_unsortable_keys_are_named():
    text = message_of(lambda: tu.tree_flatten([{"a": 1, 2: 3}]))
    assert "Comparator raised exception while sorting pytree dictionary keys" in text
    assert "int, str" in text and "['a', 2]" in text and "OrderedDict" in text


def test_metadata_that_cannot_be_compared():
    make = functools.partial(Layer, 1, 2)
    one, other = (tu.tree_structure(make(np.arange(3))) for _ in range(2))
    assert hash(one) == hash(other)
    text = message_of(lambda: one == other)
    assert "Exception raised while checking equality of metadata fields of pytree" in text


# --- axes ---------------------------------------------------------------------------------------


def test_flatten_axes_broadcasts_a_prefix():
    structure = tu.tree_structure(({"a": 1, "b": (2, 3)}, 4, None))
    assert flatten_axes("vmap in_axes", structure, 0) == [0, 0, 0, 0]
    assert flatten_axes("vmap in_axes", structure, None) == [None] * 4
    assert flatten_axes("vmap in_axes", structure, (0, None, None)) == [0, 0, 0, None]
    axes = ({"a": None, "b": (1, 2)}, 3, 5)
    assert flatten_axes("vmap in_axes", structure, axes) == [None, 1, 2, 3]


def test_flatten_axes_does_not_construct_users_nodes():
    class Picky:
        def __init__(self, x):
            assert isinstance(x, float)
            self.x = x

    tu.register_pytree_node(Picky, lambda p: ((p.x,), None), lambda aux, xs: Picky(*xs))
    structure = tu.tree_structure([Picky(1.0)])
    assert flatten_axes("in_axes", structure, [0]) == [0]


def test_flatten_axes_errors_name_every_path():
    structure = tu.tree_structure(({"a": 1, "b": 2}, [3]))
    text = message_of(lambda: flatten_axes("vmap in_axes", structure, ({"a": 0}, (None,))))
    assert text.startswith("vmap in_axes specification must be a tree prefix of")
    assert "Mismatch details (2 found)" in text
    assert "children at key path\n    vmap in_axes[0]" in text and "Perhaps add 'b'" in text
    assert "different types at key path\n    vmap in_axes[1]" in text
    text = message_of(lambda: flatten_axes("out_axes", tu.tree_structure((1, 2)), (0, 1, 2)))
    assert "different lengths of tuple at key path\n    out_axes\n" in text
    text = message_of(lambda: flatten_axes("out_axes", tu.tree_structure((1, 2)), ((0,), 1)))
    assert "but the corresponding value[0] is a leaf" in text


def test_broadcasting():
    assert tj.broadcast((1, 2, 3), (0, {"a": 0, "b": 0}, (0, 0))) == (1, {"a": 2, "b": 2}, (3, 3))
    assert broadcast_prefix((1, None), ((1, 2), None)) == [1, 1]
    text = message_of(lambda: tj.broadcast((1, [2, 3]), ((1, 1), [2])))
    assert "different lengths of list at key path\n    broadcast_prefix prefix_tree[1]" in text


# --- equality -----------------------------------------------------------------------------------


def test_equality_errors_agree_with_jax():
    from jax._src import tree_util as private

    cases = [
        ({"a": (1, 2)}, {"a": [1, 2], "b": 3}),
        ({"a": (1, 2), "b": (1,)}, {"a": [1, 2], "b": 3}),
        ([1, {"x": 2}], [1, {"x": (2,)}]),
        ((1, 2), (1, 2, 3)),
        ([1], [1]),
    ]
    for one, other in cases:
        ours, theirs = list(equality_errors(one, other)), list(private.equality_errors(one, other))
        assert [tu.keystr(o[0]) for o in ours] == [ju.keystr(t[0]) for t in theirs]
        assert [o[1] for o in ours if "length" not in o[3]] == [
            t[1] for t, o in zip(theirs, ours) if "length" not in o[3]
        ]


def test_equality_errors_of_structures():
    one, other = tu.tree_structure([1, (2, 3)]), tu.tree_structure([1, {"a": 2}])
    ((path, left, right, why),) = equality_errors_pytreedef(one, other)
    assert tu.keystr(path) == "[1]" and (left, right) == ("<class 'tuple'>", "<class 'dict'>")
    assert why == "their Python types differ"
    (error,) = equality_errors(Layer(1, 2, "a"), Layer(1, 2, "b"))
    assert error[3] == "the pytree node metadata does not match"
    assert "('a',)" in error[1] and "('b',)" in error[2]


# --- the public modules -------------------------------------------------------------------------


def test_public_names_are_jax_s():
    def public(module):
        return {n for n in dir(module) if not n.startswith("_")}

    assert public(ju) <= public(tu)
    assert public(jax.tree) <= public(tj)


def test_the_registry_handle():
    registry = tu.default_registry
    assert registry.flatten((1, 2)) == tu.tree_flatten((1, 2))
    assert registry.is_node(dict) and not registry.is_node(int)
    for one_level in (registry.flatten_one_level, registry.flatten_one_level_with_keys):
        assert one_level(np.ones(2)) is None and one_level([1, 2]) is not None
    assert registry.flatten_one_level({"b": 1, "a": 2}) == ([2, 1], ("a", "b"))
