"""The disk cache of compiled kernels: `cache.get(key(...))`, `cache.put(key(...), meta, blobs)`.

A key is the SHA-256 of a canonical encoding of all inputs that determine the result. A hit is not verified against the inputs, so
`key` rejects parts that it cannot encode. An entry is one file: magic, SHA-256 of the key and the rest, and a frame (JSON and raw bytes,
never pickle). A writer creates the file under a temporary name and renames it. A reader therefore sees a complete entry or none, and no
process needs a lock. The cache drops a damaged entry, and the kernel is compiled again.

Entries hold machine code, so only this user may be able to write them (`private_files`). Without such a folder, entries stay in memory
and one warning reports it. A miss looks into the folders of BLOCKNB_SHARED_CACHE, which an administrator fills (`shared_cache`).
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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blocknb.codegen.toolchain import Tool, installed
from blocknb.runtime import private_files, shared_cache
from blocknb.runtime.private_files import UntrustedFile, UntrustedFolder, warn_once

if TYPE_CHECKING:
    from pathlib import Path

    from blocknb.runtime.shared_cache import SharedFolder

_MAGIC = b"bnbcach2"
_HEAD = struct.Struct("<8s32sI")  # magic, digest of the key and of what follows the digest, length of the JSON
#: Bytes of the largest entry on disk. The largest kernels of the tests have 2 MB.
ENTRY_LIMIT = 1 << 28
_ADVICE = "Compiled kernels stay in memory. To keep them on disk,"


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

    `root` defaults to `$BLOCKNB_CACHE_DIR`, or else to the user's cache folder; "" stands for no folder. Above `limit` bytes, the least
    recently used entries are removed. Every method is safe in many threads and processes. `second` are the folders that a miss
    reads but never writes; the default are none for a given `root`, else those of `$BLOCKNB_SHARED_CACHE`.
    """

    def __init__(
        self,
        root: str | os.PathLike | None = None,
        limit: int = 1 << 30,
        second: Sequence[SharedFolder] | None = None,
    ):
        self.root = os.path.abspath(root) if root is not None else default_root()
        self.limit = limit
        self.second = tuple(second) if second is not None else shared_cache.folders() if root is None else ()
        self._memory: dict[str, Entry] = {}
        self._dropped: set[str] = set()

    def path(self, key: str) -> Path:
        """The file of an entry."""
        from pathlib import Path

        return Path(self.root, _name(key))

    def get(self, key: str) -> Entry | None:
        """Returns an entry, or None if there is none. Removes a damaged entry."""
        if (entry := self._memory.get(key)) is not None:
            return entry
        data = self.read(_name(key), ENTRY_LIMIT)
        if data is not None:
            if (entry := unpack(key, data)) is not None:
                return entry
            private_files.remove(self.root, _name(key))
        return None if key in self._dropped else self._shared_entry(key)

    def _shared_entry(self, key: str) -> Entry | None:
        for folder in self.second:
            data = folder.read(_name(key), ENTRY_LIMIT)
            if data is not None:
                if (entry := unpack(key, data)) is not None:
                    return entry
                folder.refuse(f"{_name(key)} is damaged")
        return None

    def read(self, name: str, limit: int) -> bytes | None:
        """The content of a file of the folder, or None. Removes what is no private file. Warns once about a folder of other users."""
        if not self.root:
            return None
        try:
            return private_files.read(self.root, name, limit)
        except UntrustedFile as error:
            if error.foreign:
                warn_once(
                    self.root,
                    f"blocknb ignores a file in its cache, {self.root}: {error}. It writes the file again.",
                    3,
                )
            private_files.remove(self.root, name)
        except UntrustedFolder as error:
            self._warn(error, 3)
        except OSError:
            pass
        return None

    def write(self, name: str, data: bytes) -> OSError | None:
        """Writes a file of the folder. Returns the error if this fails."""
        try:
            if not self.root:
                raise NotADirectoryError("there is no folder for the cache")
            private_files.write(self.root, name, data)
        except OSError as error:
            return error
        return None

    def drop(self, key: str) -> None:
        """Removes an unreadable entry. An entry of a shared folder stays there, but `get` no longer returns it."""
        self._memory.pop(key, None)
        if self.second:
            self._dropped.add(key)
        if self.root:
            private_files.remove(self.root, _name(key))

    def put(self, key: str, meta: dict, blobs: dict[str, bytes]) -> None:
        """Stores an entry. Without a writable folder, it stays in memory."""
        data = _pack(key, meta, blobs)
        if len(data) > ENTRY_LIMIT:
            self._keep_in_memory(key, Entry(meta, blobs))
            return
        if (error := self.write(_name(key), data)) is not None:
            self._keep_in_memory(key, Entry(meta, blobs))
            self._warn(error, 3)
            return
        # A scan of all files is expensive, so about one put in 64 does it. Keys are uniformly distributed.
        if int(key[:2], 16) < 4:
            threading.Thread(target=self.shrink, daemon=True).start()

    def shrink(self) -> None:
        """Removes the least recently used entries down to three quarters of the limit, and the files of interrupted writes."""
        files, total, now = [], 0, time.time()
        for name in self.names():
            try:
                status = os.lstat(os.path.join(self.root, name))
            except OSError:
                continue  # another process removed it
            if "/.new-" in name and now - status.st_mtime > 3600:
                private_files.remove(self.root, name)
            elif name.endswith(".bnb"):
                files.append((status.st_mtime, status.st_size, name))
                total += status.st_size
        if total <= self.limit:
            return
        for _, size, name in sorted(files):
            if total <= self.limit * 3 // 4:
                return
            private_files.remove(self.root, name)
            total -= size

    def clear(self) -> None:
        """Removes every entry."""
        self._memory.clear()
        for name in self.names():
            if name.endswith(".bnb"):
                private_files.remove(self.root, name)

    def names(self) -> Iterator[str]:
        """The files in the folders of entries, relative to the root. Other folders of the root are not this cache's."""
        for folder in (f"{number:02x}" for number in range(256) if self.root):
            with contextlib.suppress(OSError):
                yield from (f"{folder}/{name}" for name in os.listdir(os.path.join(self.root, folder)))

    def _keep_in_memory(self, key: str, entry: Entry) -> None:
        while len(self._memory) >= 512:
            self._memory.pop(next(iter(self._memory)), None)
        self._memory[key] = entry

    def _warn(self, error: OSError, stacklevel: int) -> None:
        """Reports once why the folder is not used, and what to do."""
        if not self.root:
            why, advice = "blocknb finds no folder for its cache: neither HOME nor BLOCKNB_CACHE_DIR names one", ""
        elif isinstance(error, UntrustedFolder):
            why = f"blocknb does not use the cache folder {self.root}, because {error}, and a cache holds machine code"
            advice = f"run `{error.fix}` if no other user has written to it, or " if error.fix else ""
        else:
            why, advice = f"compiled kernels cannot be stored in {self.root}: {error.strerror or error}", ""
        warn_once(self.root, f"{why}. {_ADVICE} {advice}set BLOCKNB_CACHE_DIR to a folder of your own.", stacklevel + 1)


def _name(key: str) -> str:
    return f"{key[:2]}/{key[2:]}.bnb"


def _pack(key: str, meta: dict, blobs: dict[str, bytes]) -> bytes:
    head = json.dumps([meta, [(name, len(blob)) for name, blob in blobs.items()]], separators=(",", ":")).encode()
    body = b"".join([struct.pack("<I", len(head)), head, *blobs.values()])
    return _MAGIC + _digest(key, body) + body


def _digest(key: str, body: bytes | memoryview) -> bytes:
    """Covers the key, so that an entry under the name of another one is damaged, too."""
    digest = hashlib.sha256(key.encode())
    digest.update(body)
    return digest.digest()


def unpack(key: str, data: bytes) -> Entry | None:
    """The entry of a file; None for a damaged file, and for one of another shape."""
    if len(data) < _HEAD.size:
        return None
    magic, digest, head_size = _HEAD.unpack_from(data)
    if magic != _MAGIC or _digest(key, memoryview(data)[40:]) != digest:
        return None
    at = _HEAD.size + head_size
    try:
        meta, sizes = json.loads(data[_HEAD.size : at])
        sizes = {str(name): size for name, size in sizes}
    except (ValueError, TypeError, RecursionError):  # complete, but written by another version
        return None
    if not isinstance(meta, dict) or not all(type(size) is int and size >= 0 for size in sizes.values()):
        return None
    if at + sum(sizes.values()) != len(data):
        return None
    blobs = {}
    for name, size in sizes.items():
        blobs[name] = data[at : at + size]
        at += size
    return Entry(meta, blobs)


def default_root() -> str:
    """`$BLOCKNB_CACHE_DIR`, or the cache folder of the system, as an absolute path; "" if the user has no home folder."""
    if folder := os.environ.get("BLOCKNB_CACHE_DIR", "").strip():
        folder = os.path.expanduser(folder)
        return "" if folder.startswith("~") else os.path.abspath(folder)  # a user without a home folder
    if sys.platform == "linux":  # the same as platformdirs, whose import takes longer than a disk hit
        folder = os.environ.get("XDG_CACHE_HOME", "").strip()
        if not os.path.isabs(folder):  # the specification of XDG ignores a relative path
            folder = os.path.expanduser("~/.cache")
        return os.path.join(folder, "blocknb") if os.path.isabs(folder) else ""
    import platformdirs

    return os.path.abspath(platformdirs.user_cache_dir("blocknb", appauthor=False))


@functools.cache
def shared() -> Cache:
    """The cache of this process."""
    return Cache()


def environment_parts(tool: Tool | None = None) -> tuple:
    """The versions that compiled code depends on, as parts of a key. They are those of blocknb and its sources, of llvmlite, and of the
    given ptxas. Another part is whether CPU code has redzones."""
    ptxas = tool_parts(tool) if tool else None
    redzones = os.environ.get("BLOCKNB_REDZONES", "0")  # see `codegen.cpu.redzones`; a launch does not import it
    return ("blocknb", _source_stamp(), "llvmlite", version_of("llvmlite"), "ptxas", ptxas, "redzones", redzones)


def tool_parts(tool: Tool) -> tuple:
    """The identity of a ptxas or nvdisasm, as parts of a key. Tools of PyPI are the same in every environment."""
    return str(tool.path) if tool.origin != "PyPI" else "", tool.version


#: Packages whose code does not affect compilation. Ready-made kernels enter the key by their text, like every kernel.
_NO_COMPILER = frozenset(("compat", "eager", "kernels", "notebook", "profile", "testing", "tune", "__pycache__"))


@functools.cache
def _source_stamp() -> str:
    """A digest of the names, sizes and times of blocknb's own files. Any edit of the compiler changes it; no file is read."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return key(version_of("blocknb"), "\n".join(sorted(_stamps(package, ""))))


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
def version_of(package: str) -> str:
    """The version of an installed package, or ""."""
    if version := installed().get(package):
        return version
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed, by name."""
    return {name: version for name in packages if (version := version_of(name))}
