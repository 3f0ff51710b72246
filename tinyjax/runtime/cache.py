"""Object code kept on disk between processes, found by the hash of everything it depends on.

One file per entry, named by the hash of its key. A file is

    magic "tinyjax object 1\\n" | u32 length of the manifest | manifest (JSON) | object code |
    blake2b-256 of all that precedes

Writing goes to a temporary file in the same folder, then `os.replace`: readers see the old file, no
file, or the new one, and several processes may write the same entry. Reading checks length, hash
and key; an entry that fails is removed and made again, never loaded, and nothing is ever unpickled.
The folder holds machine code that we run, so it must not be writable by strangers: it is made with
mode 0700, and one that others may write to is not used.

When the total exceeds the limit the least recently used entries go (reading touches the time stamp)
until 80% of the limit is left. Summing sizes takes milliseconds, so it is done once per eighth of
the limit written (64 MB at most): a file `written` grows by one byte per started 4 KB of entries,
appended by every process, and is emptied by whoever sums.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"tinyjax object 1\n"
DIGEST_BYTES = 32
LENGTH_BYTES = 4
KEEP_SHARE = 0.8
DEFAULT_MAX_BYTES = 1 << 30
SCAN_EVERY_BYTES = 64 << 20
JOURNAL_UNIT = 4096
SUFFIX = ".tjo"


def key_of(parts: Mapping[str, str]) -> str:
    """Hex key of what an entry depends on; the order of the parts does not matter."""
    text = json.dumps(dict(parts), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def _digest(*pieces: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def pack_entry(key: str, manifest: Mapping[str, str], data: bytes) -> bytes:
    """The bytes of an entry's file."""
    text = json.dumps({"key": key, **manifest}, sort_keys=True).encode()
    head = MAGIC + len(text).to_bytes(LENGTH_BYTES, "little") + text
    return head + data + _digest(head, data)


def unpack_entry(key: str, content: bytes) -> bytes | None:
    """The object code, or None if the file is damaged or is another key's."""
    start = len(MAGIC) + LENGTH_BYTES
    if len(content) < start + DIGEST_BYTES or not content.startswith(MAGIC):
        return None
    body, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
    if _digest(body) != digest:
        return None
    length = int.from_bytes(body[len(MAGIC) : start], "little")
    try:
        manifest = json.loads(body[start : start + length])
    except ValueError:
        return None
    if not isinstance(manifest, dict) or manifest.get("key") != key:
        return None
    return body[start + length :]


@dataclass(slots=True)
class CacheStats:
    """What happened in this process."""

    hits: int = 0
    misses: int = 0
    writes: int = 0
    damaged: int = 0
    evicted: int = 0


class DiskCache:
    """Entries in one folder. A failure of the file system means "not cached", never an error."""

    def __init__(self, directory: str | os.PathLike[str], max_bytes: int = DEFAULT_MAX_BYTES):
        self.directory = Path(directory)
        self.max_bytes = max_bytes
        self.stats = CacheStats()
        self._usable: bool | None = None

    def path(self, key: str) -> Path:
        """Where the entry of `key` lies; 256 folders keep them short."""
        return self.directory / key[:2] / (key + SUFFIX)

    def usable(self) -> bool:
        """Whether the folder is there (made if need be) and only its owner may write to it."""
        if self._usable is None:
            self._usable = self._prepare()
        return self._usable

    def _prepare(self) -> bool:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            stat = self.directory.stat()
        except OSError as error:
            warnings.warn(f"tinyjax keeps no compiled kernels: {error}", stacklevel=2)
            return False
        if not hasattr(os, "getuid"):
            return True
        if stat.st_mode & 0o002 or stat.st_uid not in (os.getuid(), 0):
            warnings.warn(
                f"tinyjax keeps no compiled kernels: {self.directory} belongs to someone else or "
                "is writable by everyone, and machine code is loaded from it; set "
                "TINYJAX_CACHE_DIR to a folder of your own",
                stacklevel=2,
            )
            return False
        return True

    def get(self, key: str) -> bytes | None:
        """The object code stored under `key`; a damaged entry is removed and counts as a miss."""
        path = self.path(key)
        if not self.usable():
            return None
        try:
            content = path.read_bytes()
        except OSError:
            self.stats.misses += 1
            return None
        data = unpack_entry(key, content)
        if data is None:
            self.stats.damaged += 1
            self.stats.misses += 1
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        self.stats.hits += 1
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def put(self, key: str, manifest: Mapping[str, str], data: bytes) -> None:
        """Store an entry, then evict if the limit is passed."""
        if not self.usable():
            return
        content = pack_entry(key, manifest, data)
        path = self.path(key)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError:  # full or read-only: the kernel is in memory, only the next process pays
            return
        self.stats.writes += 1
        self._after_write(len(content))

    def _after_write(self, nbytes: int) -> None:
        """Enter the bytes in the journal; sum up if enough came together."""
        journal = self.directory / "written"
        try:
            with open(journal, "ab", buffering=0) as file:
                file.write(b"." * -(-nbytes // JOURNAL_UNIT))
                written = file.tell() * JOURNAL_UNIT
            if written > min(SCAN_EVERY_BYTES, self.max_bytes // 8):
                journal.write_bytes(b"")
                self.evict()
        except OSError:  # cannot keep the books: the next process that can will
            pass

    def entries(self) -> Iterator[tuple[Path, os.stat_result]]:
        """All files of the cache, temporary ones that a killed process left behind included."""
        for path in self.directory.glob("??/*"):
            if path.suffix in (SUFFIX, ".tmp"):
                with contextlib.suppress(OSError):
                    yield path, path.stat()

    def evict(self) -> None:
        """If the entries exceed the limit, remove the least recently used down to 80% of it."""
        found = sorted(self.entries(), key=lambda entry: entry[1].st_mtime_ns)
        total = sum(stat.st_size for _, stat in found)
        if total <= self.max_bytes:
            return
        for path, stat in found:
            if total <= self.max_bytes * KEEP_SHARE:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                self.stats.evicted += 1
            total -= stat.st_size

    def clear(self) -> None:
        """Remove every entry."""
        for path, _ in self.entries():
            with contextlib.suppress(OSError):
                path.unlink()


def default_directory(environment: Mapping[str, str]) -> Path:
    """~/.cache/tinyjax, or where the platform's variables put caches."""
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        if environment.get(variable):
            return Path(environment[variable]) / "tinyjax"
    return Path(os.path.expanduser("~")) / ".cache" / "tinyjax"
