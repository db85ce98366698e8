"""What a compilation is asked for (`Request`), the keys under which its result is kept, and what it hands to a launch (`KernelCode`).

The digest of a request is the key on disk. It covers the source and all that the kernel reaches, the kinds of the arguments, the
options, the target and the versions of the tools, but not the names of files: a cell finds its entry in the next session.
"""

from __future__ import annotations

import collections
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb import forks
from blocknb.codegen import toolchain
from blocknb.frontend.dependencies import Dependencies, dependencies, of_constant
from blocknb.frontend.description import MADE
from blocknb.frontend.source import Source, source_of
from blocknb.runtime import cache
from blocknb.runtime.kinds import Kind, Tuple, flat
from blocknb.target import Target
from blocknb.trace import Stage, Trace

#: Held while a thread looks for versions and tools: once is enough.
finding_tools = threading.Lock()
forks.renewed(sys.modules[__name__], finding_tools=threading.Lock)
NOMINAL_WARPS = 4  # on a CPU, which has none


@dataclass(frozen=True, eq=False)
class KernelCode:
    """What a launch needs beside the artifacts, and what the disk cache stores as JSON.

    `parameters` are the run-time parameters (name, DType or Pointer) in the order of the entry's arguments; `stored` and
    `loaded` the names of the arrays written and read. GPU: `threads` a program, of which the `warps` that were asked for are a part,
    bytes of dynamic shared memory, and how many `programs` may share a CTA. CPU: bytes of scratch a thread, and `may_loop`, whether a
    program may run for long. `sites` are the places that the kernel may tell of, and on a GPU `reports`, `extents`, `persistent` and
    `maps` its hidden parameters (see `codegen.gpu.module`).
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
    persistent: bool = False
    warps: int = NOMINAL_WARPS


def described(kinds: Mapping[str, Kind]) -> tuple[dict[str, str], dict[str, Any]]:
    """(the types of the run-time arguments as texts, the values of the constants), the elements of tuples as `x.0`, `x.1`, ..."""
    leaves = list(flat(kinds, kinds.values()))
    return {n: str(k) for n, k in leaves if k.type}, {n: k.constant[0] for n, k in leaves if not k.type}


def dependencies_of_constant(value: Any) -> Dependencies:
    source = source_of(value)
    return dependencies(source) if source is not None else of_constant(value)


#: What is in the class of a tuple without methods of its own.
_PLAIN = MADE.union(vars(tuple), vars(collections.namedtuple("_PLAIN", "")))


def _classes(kind: Kind) -> Iterator[type]:
    """The classes of tuples of arguments that have methods of their own, which a kernel may call."""
    if isinstance(kind.type, Tuple):
        made_by = kind.type.made_by
        if not set(vars(made_by)) <= _PLAIN.union(getattr(made_by, "_fields", ())):
            yield made_by
        for part in kind.type.parts:
            yield from _classes(part)


class Request:
    """What a compilation is asked for, its `digest` (the key on disk), and its `key` in memory."""

    def __init__(self, source: Source, kinds: Mapping[str, Kind], options: Mapping[str, Any], target: Target):
        self.source, self.kinds, self.options, self.target = source, kinds, options, target
        leaves = list(flat(kinds, kinds.values()))
        constants = {n: dependencies_of_constant(k.constant[0]) for n, k in leaves if k.constant}
        classes = [of_constant(made_by) for k in kinds.values() for made_by in _classes(k)]
        watched = (d for d in (*constants.values(), *classes) if d.places or d.fields or d.checks)
        self.reached = (dependencies(source), *watched)
        everything = (self.reached[0], *constants.values(), *classes)
        self.unknown = tuple(dict.fromkeys(name for d in everything for name in d.unknown))
        sources = [s for d in self.reached for s in d.sources]
        self.files = tuple(dict.fromkeys(s.file for s in sources))
        # Lines and columns are in the code's debug data, the names of files are put right when code comes from the cache.
        places = [(s.first_line, len(s.text) - len(s.text.lstrip())) for s in sources]
        parts = ([d.key for d in self.reached], places, self._kinds_key(constants), dict(options), target)
        with finding_tools:
            self.digest = cache.key(*parts, cache.environment_parts(self.ptxas()))
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

    def trace(self, stages: Sequence[Stage], milliseconds: dict[str, float], from_cache: bool = False) -> Trace:
        signature, constants = described(self.kinds)
        source = self.source
        trace = Trace(
            source.name,
            self.target,
            source.text,
            source.file,
            source.first_line,
            signature,
            constants,
            dict(self.options),
        )
        trace.stages, trace.milliseconds, trace.from_cache = stages, milliseconds, from_cache
        trace.disassemble, trace.list_code = self.disassemble, self._list
        return trace

    def _list(self, text: str) -> str:
        from blocknb.codegen import llvm

        return llvm.shared().wait(llvm.list_cpu(text, self.target))

    def disassemble(self, cubin: bytes) -> Any:
        """The SASS, or None where there is no nvdisasm for the target."""
        from blocknb.codegen import llvm, sass

        if toolchain.find_nvdisasm(self.target) is None:
            return None
        return llvm.shared().wait(sass.disassemble(cubin, self.target))
