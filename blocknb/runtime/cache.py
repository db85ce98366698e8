"""The disk cache of compiled kernels: `cache.get(key(...))`, `cache.put(key(...), meta, blobs)`.

A key is the SHA-256 of a canonical encoding of all inputs that determine the result. A hit is not verified against the inputs, so
`key` rejects parts that it cannot encode. An entry is one file: magic, SHA-256 of the rest, and a frame (JSON and raw bytes, never
pickle). A writer creates the file under a temporary name and renames it. A reader therefore sees a complete entry or none, and no
process needs a lock. The cache drops a damaged entry, and the kernel is compiled again. Without a writable folder, entries stay in
memory and one warning reports it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import struct
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blocknb.codegen.toolchain import Tool, installed

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC = b"bnbcach1"
_HEAD = struct.Struct("<8s32sI")  # magic, digest of what follows the digest, length of the JSON


@dataclass(frozen=True)
class Entry:
    """The value of a key: JSON values and named bytes."""

    meta: dict
    blobs: dict[str, bytes]


def key(*parts: object) -> str:
    """64 hexadecimal digits for parts: None, bool, int, float, str, bytes, Path, and tuples, lists, dicts, sets and dataclasses of them.

    Different parts never share an encoding (1, 1.0, True and "1" differ, as do ("a", "bc") and ("ab", "c")). Raises TypeError for
    anything else: an address or a counter in a `repr` would cause false misses or false hits.
    """
    return hashlib.sha256(_encode(parts)).hexdigest()


def _encode(value: Any) -> bytes:
    match value:
        case None:
            return b"n"
        case bool():
            return b"t" if value else b"f"
        case int():
            return _tagged(b"i", str(int(value)).encode())
        case float():
            return b"d" + struct.pack("<d", value)
        case str():
            return _tagged(b"s", value.encode("utf-8", "surrogatepass"))
        case bytes():
            return _tagged(b"b", value)
        case os.PathLike():
            return _tagged(b"p", os.fsencode(value))
        case tuple() | list():
            return _tagged(b"l", b"".join(map(_encode, value)))
        case dict():
            return _tagged(b"m", b"".join(sorted(_encode(k) + _encode(v) for k, v in value.items())))
        case set() | frozenset():
            return _tagged(b"e", b"".join(sorted(map(_encode, value))))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [type(value).__qualname__, *(f.name for f in dataclasses.fields(value))]
        return _tagged(b"c", _encode(names) + b"".join(_encode(getattr(value, name)) for name in names[1:]))
    raise TypeError(f"a {type(value).__name__} cannot be part of a cache key")


def _tagged(tag: bytes, data: bytes) -> bytes:
    return tag + struct.pack("<Q", len(data)) + data


class Cache:
    """A folder of entries.

    `root` defaults to `$BLOCKNB_CACHE_DIR`, or else to the user's cache folder. Above `limit` bytes, the least recently used entries are
    removed. Every method is safe in many threads and processes.
    """

    def __init__(self, root: str | os.PathLike | None = None, limit: int = 1 << 30):
        self.root = os.fspath(root) if root is not None else default_root()
        self.limit = limit
        self._memory: dict[str, Entry] = {}
        self._warned = False

    def path(self, key: str) -> Path:
        """The file of an entry."""
        from pathlib import Path

        return Path(self._file(key))

    def _file(self, key: str) -> str:
        return f"{self.root}/{key[:2]}/{key[2:]}.bnb"

    def get(self, key: str) -> Entry | None:
        """Returns an entry, or None if there is none. Removes a damaged entry."""
        if (entry := self._memory.get(key)) is not None:
            return entry
        path = self._file(key)
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read()
        except OSError:
            return None
        entry = _unpack(data)
        if entry is None:
            _remove(path)
        else:
            with contextlib.suppress(OSError):  # another process removed the file, or the folder is read-only
                os.utime(path)  # the time of the last use, for `shrink`
        return entry

    def drop(self, key: str) -> None:
        """Removes an unreadable entry."""
        self._memory.pop(key, None)
        _remove(self._file(key))

    def put(self, key: str, meta: dict, blobs: dict[str, bytes]) -> None:
        """Stores an entry. Without a writable folder, it stays in memory."""
        data = _pack(meta, blobs)
        try:
            _write(self._file(key), data)
        except OSError as error:
            self._keep_in_memory(key, Entry(meta, blobs), error)
            return
        # A scan of all files is expensive, so about one put in 64 does it. Keys are uniformly distributed.
        if int(key[:2], 16) < 4:
            threading.Thread(target=self.shrink, daemon=True).start()

    def shrink(self) -> None:
        """Removes the least recently used entries down to three quarters of the limit, and the files of interrupted writes."""
        files, total, now = [], 0, time.time()
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    status = os.stat(path)
                except OSError:
                    continue  # another process removed it
                if name.startswith(".new-") and now - status.st_mtime > 3600:
                    _remove(path)
                elif name.endswith(".bnb"):
                    files.append((status.st_mtime, status.st_size, path))
                    total += status.st_size
        if total <= self.limit:
            return
        for _, size, path in sorted(files):
            if total <= self.limit * 3 // 4:
                return
            _remove(path)
            total -= size

    def clear(self) -> None:
        """Removes every entry."""
        self._memory.clear()
        for folder, _, names in os.walk(self.root):
            for name in names:
                if name.endswith(".bnb"):
                    _remove(os.path.join(folder, name))

    def _keep_in_memory(self, key: str, entry: Entry, error: OSError) -> None:
        while len(self._memory) >= 512:
            self._memory.pop(next(iter(self._memory)), None)
        self._memory[key] = entry
        if not self._warned:
            self._warned = True
            message = f"compiled kernels cannot be stored in {self.root}: {error.strerror or error}"
            warnings.warn(f"{message}; set BLOCKNB_CACHE_DIR to another folder", RuntimeWarning, stacklevel=3)


def _write(path: str, data: bytes) -> None:
    """Writes a file under a temporary name and renames it. If the folder disappears meanwhile, it is created once more."""
    folder = os.path.dirname(path)
    temporary = f"{folder}/.new-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    for last in (False, True):
        os.makedirs(folder, exist_ok=True)
        try:
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(data)
            os.replace(temporary, path)
            return
        except FileNotFoundError:
            if last:
                raise
        except BaseException:
            _remove(temporary)
            raise


def _remove(path: str | os.PathLike) -> None:
    with contextlib.suppress(OSError):  # another process removed it, or this user may not: `shrink` will see it again
        os.unlink(path)


def _pack(meta: dict, blobs: dict[str, bytes]) -> bytes:
    head = json.dumps([meta, [(name, len(blob)) for name, blob in blobs.items()]], separators=(",", ":")).encode()
    body = b"".join([struct.pack("<I", len(head)), head, *blobs.values()])
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unpack(data: bytes) -> Entry | None:
    if len(data) < _HEAD.size:
        return None
    magic, digest, head_size = _HEAD.unpack_from(data)
    if magic != _MAGIC or hashlib.sha256(memoryview(data)[40:]).digest() != digest:
        return None
    at = _HEAD.size + head_size
    try:
        meta, sizes = json.loads(data[_HEAD.size : at])
    except ValueError:  # complete, but written by another version
        return None
    blobs = {}
    for name, size in sizes:
        blobs[name] = data[at : at + size]
        at += size
    return Entry(meta, blobs)


def default_root() -> str:
    """`$BLOCKNB_CACHE_DIR`, or the cache folder of the system."""
    if folder := os.environ.get("BLOCKNB_CACHE_DIR"):
        return folder
    if sys.platform == "linux":  # the same as platformdirs, whose import takes longer than a disk hit
        return os.path.join(os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache"), "blocknb")
    import platformdirs

    return platformdirs.user_cache_dir("blocknb", appauthor=False)


@functools.cache
def shared() -> Cache:
    """The cache of this process."""
    return Cache()


def environment_parts(tool: Tool | None = None) -> tuple:
    """The versions that compiled code depends on, as parts of a key: blocknb and its sources, llvmlite, the given ptxas, and
    whether CPU code has redzones."""
    ptxas = (str(tool.path) if tool.origin != "PyPI" else "", tool.version) if tool else None
    redzones = os.environ.get("BLOCKNB_REDZONES", "0")  # see `codegen.cpu.redzones`; a launch does not import it
    return ("blocknb", _source_stamp(), "llvmlite", _version_of("llvmlite"), "ptxas", ptxas, "redzones", redzones)


#: Packages whose code does not affect compilation. Ready-made kernels enter the key by their text, like every kernel.
_NO_COMPILER = frozenset(("compat", "eager", "kernels", "notebook", "profile", "testing", "tune", "__pycache__"))


@functools.cache
def _source_stamp() -> str:
    """A digest of the names, sizes and times of blocknb's own files. Any edit of the compiler changes it; no file is read."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return key(_version_of("blocknb"), "\n".join(sorted(_stamps(package, ""))))


def _stamps(folder: str, place: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.endswith(".py"):
                status = entry.stat()
                yield f"{place}{name} {status.st_size} {status.st_mtime_ns}"
            elif "." not in name and name not in _NO_COMPILER and entry.is_dir():
                yield from _stamps(entry.path, f"{place}{name}/")


@functools.cache
def _version_of(package: str) -> str:
    if version := installed().get(package):
        return version
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
