"""The disk cache returns what was stored or nothing, whatever happens to its files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from tests.runtime.ir import ROOT
from tinyjax.runtime.cache import DiskCache, default_directory, key_of, pack_entry, unpack_entry

KEY = key_of({"ir": "text", "machine": "here"})


def fill(cache, count, nbytes=1000, start=0):
    """Store numbered entries, each one nanosecond younger on the clock of the file system."""
    keys = [key_of({"n": str(n)}) for n in range(start, start + count)]
    for number, key in enumerate(keys, start):
        cache.put(key, {"name": "n"}, bytes([number % 256]) * nbytes)
        os.utime(cache.path(key), ns=(10**18 + number, 10**18 + number))
    return keys


def test_what_is_stored_is_found_by_its_key_alone(tmp_path):
    cache = DiskCache(tmp_path / "cache")
    data = bytes(range(256)) * 5
    assert cache.get(KEY) is None
    cache.put(KEY, {"name": "softmax"}, data)
    assert DiskCache(tmp_path / "cache").get(KEY) == data
    assert cache.get(key_of({"ir": "text", "machine": "elsewhere"})) is None


def test_the_order_of_a_keys_parts_does_not_matter():
    assert key_of({"a": "1", "b": "2"}) == key_of({"b": "2", "a": "1"})
    assert key_of({"a": "1", "b": "2"}) != key_of({"a": "2", "b": "1"})


def test_an_entry_with_any_byte_changed_or_cut_is_nothing():
    content = pack_entry(KEY, {"name": "k"}, b"object code")
    assert unpack_entry(KEY, content) == b"object code"
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 0x20
        assert unpack_entry(KEY, bytes(changed)) is None
        assert unpack_entry(KEY, content[:place]) is None
    assert unpack_entry(KEY, content + b"\0") is None


def test_an_entry_under_another_keys_name_is_nothing(tmp_path):
    cache = DiskCache(tmp_path)
    other = key_of({"ir": "other"})
    cache.put(other, {}, b"other's code")
    cache.path(KEY).parent.mkdir(exist_ok=True)
    os.replace(cache.path(other), cache.path(KEY))
    assert cache.get(KEY) is None
    assert cache.stats.damaged == 1
    assert not cache.path(KEY).exists()


def test_the_least_recently_used_entries_go_first(tmp_path):
    cache = DiskCache(tmp_path, max_bytes=1 << 30)
    keys = fill(cache, 10)
    assert cache.get(keys[0]) is not None  # now the youngest
    cache.max_bytes = 10_000
    cache.evict()
    left = [key for key in keys if cache.path(key).exists()]
    assert left == [keys[0], *keys[4:]]
    assert sum(stat.st_size for _, stat in cache.entries()) <= 8000
    assert cache.stats.evicted == 3


def test_writing_keeps_the_total_near_the_limit(tmp_path):
    cache = DiskCache(tmp_path, max_bytes=20_000)
    fill(cache, 100)
    assert sum(stat.st_size for _, stat in cache.entries()) <= 20_000 * 1.25


def test_a_new_folder_is_private_and_a_public_one_is_not_used(tmp_path):
    if not hasattr(os, "getuid"):
        pytest.skip("POSIX modes")
    cache = DiskCache(tmp_path / "a" / "b")
    cache.put(KEY, {}, b"code")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert stat.S_IMODE(cache.path(KEY).stat().st_mode) == 0o600

    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o777)
    cache = DiskCache(public)
    with pytest.warns(UserWarning, match="writable by everyone"):
        cache.put(KEY, {}, b"code")
    assert cache.get(KEY) is None
    assert list(public.iterdir()) == []


def test_a_folder_that_cannot_be_made_means_no_cache(tmp_path):
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "cache")
    with pytest.warns(UserWarning, match="keeps no compiled kernels"):
        assert cache.get(KEY) is None
    cache.put(KEY, {}, b"code")


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.put(KEY, {}, b"code")
    monkeypatch.undo()
    assert cache.get(KEY) is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_clearing_removes_entries_and_what_killed_processes_left(tmp_path):
    cache = DiskCache(tmp_path)
    (key,) = fill(cache, 1)
    cache.path(key).with_name("left.tmp").write_bytes(b"half")
    cache.clear()
    assert list(cache.entries()) == []


PROCESS = """
import sys
from tinyjax.runtime.cache import DiskCache, key_of
cache = DiskCache(sys.argv[1], max_bytes=40_000)
bad = 0
for round_ in range(15):
    for n in range(12):
        key, data = key_of({"n": str(n)}), bytes([n]) * 4000
        cache.put(key, {}, data)
        found = cache.get(key)
        bad += found is not None and found != data
print(bad, cache.stats.damaged)
"""


def test_several_processes_write_evict_and_read_the_same_entries(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
        )
        for _ in range(3)
    ]
    assert [process.communicate(timeout=30)[0] for process in processes] == [b"0 0\n"] * 3


def test_the_default_folder_follows_the_platforms_variables(tmp_path):
    assert default_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "tinyjax"
    assert default_directory({}).parts[-2:] == (".cache", "tinyjax")
