"""The input of a compilation (`Request`) with its cache keys, and the output that a launch needs (`KernelCode`).

The digest of a request is the key on disk. It covers the source of the kernel and all names that it reaches. It also covers the Kinds of
the arguments, the options, the target and the versions of the tools. It leaves out file names, so a cell finds its entry in the next
session.
"""

from __future__ import annotations

import collections
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blocknb import forks
from blocknb.codegen import toolchain
from blocknb.frontend.dependencies import Dependencies, dependencies, of_constant
from blocknb.frontend.description import MADE
from blocknb.frontend.source import Source, source_of
from blocknb.ir.shadow import ShadowPlan
from blocknb.runtime import cache, record
from blocknb.runtime.kinds import Kind, Tuple, flat
from blocknb.target import Target
from blocknb.trace import Stages, Trace

if TYPE_CHECKING:
    from concurrent.futures import Future

#: Held by a thread that looks for versions and tools, so that the search runs only once.
finding_tools = threading.Lock()
forks.renewed(sys.modules[__name__], finding_tools=threading.Lock)
NOMINAL_WARPS = 4  # of a kernel on the CPU


@dataclass(frozen=True, eq=False)
class KernelCode:
    """The data that a launch needs in addition to the artifacts. The disk cache stores it as JSON.

    `parameters` are (name, DType or Pointer) of the run-time parameters, in the order of the entry's arguments. `stored` and `loaded` are
    the names of the arrays written and read. On a GPU: `threads` per CTA, which include those of producer warps, while `warps` is the
    number chosen for the kernel; `shared_bytes` of dynamic shared memory; how many `programs` may share a CTA. On the CPU:
    `scratch_bytes` per thread; `may_loop`, whether a program may run for long. `sites` are the places of prints, assertions and checked
    accesses. `reports`, `extents` and `maps` describe hidden parameters of GPU code (see `codegen.gpu.module`). `launch_kind`:
    "persistent", with the grid as hidden parameters; "paired", the same with clusters of two CTAs; "dependent", if the kernel waits for the
    previous launch itself (see `dependent_launch`); or "".
    """

    entry: str
    parameters: tuple[tuple[str, Any], ...]
    stored: frozenset[str]
    loaded: frozenset[str]
    threads: int = 1
    shared_bytes: int = 0
    scratch_bytes: int = 0
    sites: tuple[Any, ...] = ()
    may_loop: bool = True
    reports: bool = False
    extents: tuple[int, ...] = ()
    programs: int = 1
    maps: tuple[Any, ...] = ()
    launch_kind: str = ""
    warps: int = NOMINAL_WARPS

    @property
    def persistent(self) -> bool:
        """Whether as many CTAs as are resident run all programs."""
        return self.launch_kind in ("persistent", "paired")

    @property
    def cluster(self) -> int:
        """The CTAs per cluster."""
        return 2 if self.launch_kind == "paired" else 1

    @property
    def shadow(self) -> ShadowPlan | None:
        """The plan of a launch that looks for races, the last entry of `sites`; None for other launches."""
        last = self.sites[-1] if self.sites else None
        return last if isinstance(last, ShadowPlan) else None


def described(kinds: Mapping[str, Kind]) -> tuple[dict[str, str], dict[str, Any]]:
    """Returns (the type texts of run-time arguments, the values of constants) by name. Elements of tuples are called `x.0`, `x.1`, ..."""
    leaves = list(flat(kinds, kinds.values()))
    return {n: str(k) for n, k in leaves if k.type}, {n: k.constant[0] for n, k in leaves if not k.type}


def dependencies_of_constant(value: Any) -> Dependencies:
    source = source_of(value)
    return dependencies(source) if source is not None else of_constant(value)


#: The attributes of a tuple class or namedtuple without methods of its own.
_PLAIN = MADE.union(vars(tuple), vars(collections.namedtuple("_PLAIN", "")))


def _classes(kind: Kind) -> Iterator[type]:
    """Yields the tuple classes of an argument that have methods of their own, which a kernel may call."""
    if isinstance(kind.type, Tuple):
        tuple_class = kind.type.tuple_class
        if not set(vars(tuple_class)) <= _PLAIN.union(getattr(tuple_class, "_fields", ())):
            yield tuple_class
        for part in kind.type.parts:
            yield from _classes(part)


@dataclass(frozen=True)
class StageEdit:
    """The text that replaces the IR after the stage of this name."""

    stage: str
    text: str


class Request:
    """The input of one compilation, its `digest` (the key on disk), and its `key` in memory."""

    def __init__(
        self,
        source: Source,
        kinds: Mapping[str, Kind],
        options: Mapping[str, Any],
        target: Target,
        edit: StageEdit | None = None,
    ):
        self.source, self.kinds, self.options, self.target, self.edit = source, kinds, options, target, edit
        leaves = list(flat(kinds, kinds.values()))
        constants = {n: dependencies_of_constant(k.constant[0]) for n, k in leaves if k.constant}
        classes = [of_constant(tuple_class) for k in kinds.values() for tuple_class in _classes(k)]
        watched = (d for d in (*constants.values(), *classes) if d.places or d.fields or d.checks)
        self.reached = (dependencies(source), *watched)
        everything = (self.reached[0], *constants.values(), *classes)
        self.unknown = tuple(dict.fromkeys(name for d in everything for name in d.unknown))
        sources = [s for d in self.reached for s in d.sources]
        self.files = tuple(dict.fromkeys(s.file for s in sources))
        # Debug data in the code holds lines and columns. It also holds file names, which a disk hit replaces.
        places = [(s.first_line, len(s.text) - len(s.text.lstrip())) for s in sources]
        parts = ([d.key for d in self.reached], places, self._kinds_key(constants), dict(options), target)
        with finding_tools:
            edits = () if edit is None else (edit,)
            self.digest = cache.key(*parts, cache.environment_parts(self.ptxas()), *edits)
        self.key = self.digest, source.file  # in memory

    def ptxas(self) -> toolchain.Tool | None:
        return toolchain.find_ptxas(self.target) if self.target.is_gpu else None

    def _kinds_key(self, constants: Mapping[str, Dependencies]) -> list[Any]:
        tuples = [(n, k.type.structure) for n, k in self.kinds.items() if isinstance(k.type, Tuple)]
        leaves = [
            (n, str(k) if k.type else None, constants[n].key if k.constant else None)
            for n, k in flat(self.kinds, self.kinds.values())
        ]
        return [*leaves, *tuples]

    def trace(self, stages: Stages, milliseconds: dict[str, float], from_cache: bool = False) -> Trace:
        signature, constants = described(self.kinds)
        source = self.source
        options = dict(self.options)
        location = source.text, source.file, source.first_line
        trace = Trace(source.name, self.target, *location, signature, constants, options)
        trace.stages, trace.milliseconds, trace.from_cache = stages, milliseconds, from_cache
        trace.disassemble, trace.list_code = self.disassemble, self._list
        return trace

    def _list(self, text: str) -> str:
        from blocknb.codegen import llvm

        names = [f"/source{i}/{i}.py" for i in range(len(self.files))]  # a cell has another file name in each session
        text = record.relocated(text, self.files, names)
        key = cache.key("listing", text, self.target, cache.environment_parts())
        return record.relocated(_kept(key, lambda: llvm.list_cpu(text, self.target)), names, self.files)

    def disassemble(self, cubin: bytes) -> Any:
        """Returns the SASS, or None without an nvdisasm for the target."""
        from blocknb.codegen import sass

        tool = toolchain.find_nvdisasm(self.target)
        if tool is None:
            return None
        key = cache.key("sass", cubin, cache.tool_parts(tool))
        return sass.Listing("sass", sass.sass_lines(_kept(key, lambda: sass.disassembly(cubin, self.target))))


def _kept(key: str, make: Callable[[], Future[str]]) -> str:
    """A text of the disk cache, or else of a worker. nvdisasm takes 0.3 s for any kernel, and a card asks for its text after each hit."""
    from blocknb.codegen import llvm

    entry = cache.shared().get(key)
    if entry is not None and "text" in entry.blobs:
        return entry.blobs["text"].decode("utf-8", "replace")
    text: str = llvm.shared().wait(make())
    cache.shared().put(key, {}, {"text": text.encode()})
    return text
