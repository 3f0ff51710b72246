"""Tables of what is alive: equal keys share an entry, and entries go with what they are of."""

import gc
import os
import sys
import threading

import pytest

from tinyjax.core.weak import WeakKeys, WeakValues, dead, forget_dead


class Key:
    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return self.name == other.name

    def __hash__(self):
        return hash(self.name)


def test_equal_keys_share_an_entry_that_goes_with_the_first():
    table = WeakKeys()
    first, second = Key("a"), Key("a")
    value = table.setdefault(first, [])
    assert table.setdefault(second, [1]) is value and table.get(second) is value
    assert table.get(Key("b")) is None and len(table) == 1
    del first
    assert len(table) == 0 and table.get(second) is None
    other = table.setdefault(second, [])
    forget_dead()
    assert table.get(second) is other and len(table) == 1


def test_what_an_entry_alone_kept_goes_in_the_same_sweep():
    outer, inner = WeakKeys(), WeakKeys()
    one, other = Key(1), Key(2)
    outer.setdefault(one, other)
    inner.setdefault(other, [])
    del one, other
    assert len(inner._entries) == 1
    forget_dead()
    assert not outer._entries and not inner._entries and not dead


def test_values_go_and_a_new_one_takes_the_place():
    table = WeakValues()
    first, second = Key("a"), Key("b")
    assert table.setdefault("k", first) is first and table.setdefault("k", second) is first
    del first
    assert table.get("k") is None and len(table) == 0
    assert table.setdefault("k", second) is second
    forget_dead()
    assert table.get("k") is second and len(table) == 1


@pytest.mark.parametrize("key", [[], 1])
def test_keys_that_cannot_be_held_weakly_are_refused(key):
    with pytest.raises(TypeError):
        WeakKeys().setdefault(key, 1)


def test_nothing_of_python_runs_when_a_key_or_a_value_goes():
    """An interrupt that came there would be lost: the interpreter reports exceptions of a finalizer
    and goes on."""
    keys, values = WeakKeys(), WeakValues()
    kept = [Key(i) for i in range(10)]
    for i, key in enumerate(kept):
        keys.setdefault(key, key.name)
        values.setdefault(i, key)
    called = []
    sys.setprofile(lambda frame, event, arg: event == "call" and called.append(frame.f_code))
    try:
        del key
        kept.clear()
    finally:
        sys.setprofile(None)
    assert not called and len(keys) == len(values) == 0
    forget_dead()
    assert not keys._entries and not values._entries


def test_a_function_and_its_compiled_program_go_without_python_code_of_ours():
    import tinyjax

    tinyjax.numpy.ones(2)
    called = set()

    def make():
        f = tinyjax.jit(lambda x: tinyjax.numpy.sin(x) + 1)
        f(tinyjax.numpy.ones(2))
        return [f]

    kept = make()

    def note(frame, event, arg):
        if event == "call" and "tinyjax" in frame.f_code.co_filename.split(os.sep)[:-1]:
            called.add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        kept.clear()
        gc.collect()
    finally:
        sys.setprofile(None)
    assert not {name for name in called if "test_a_function" not in name}
    forget_dead()


def test_many_threads_get_one_value_for_a_key():
    table = WeakKeys()
    key, found = Key("a"), []
    start = threading.Barrier(8)

    def ask():
        start.wait()
        found.append(table.setdefault(key, []))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({id(value) for value in found}) == 1
