"""Compiled kernels: what a launch needs of one, and finding one, in memory, on disk, or by compiling it.

Results are kept in memory by everything that decides them, and on disk by the same without the names of files, so that a cell keeps
its entry in the next session. Finding one on disk takes a key and a file, and none of the compiler, which is loaded (`job`) when there
is something to compile. It brings the code, the resources and the times back at once; the stages of its Trace are made again by
running the front end and the passes, but only when somebody looks.
"""

from __future__ import annotations

import collections
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from blocknb import forks
from blocknb.codegen import toolchain
from blocknb.frontend.dependencies import Dependencies, HostCall, dependencies, of_constant
from blocknb.frontend.description import MADE
from blocknb.frontend.source import Source, source_of
from blocknb.runtime import cache, machine, readback, record
from blocknb.runtime.arguments import Kind, Tuple, flat
from blocknb.target import Target
from blocknb.trace import DeferredStages, Stage, Trace

#: Compiled kernels of this process, the least recently used first.
_memory: collections.OrderedDict[tuple[str, str], Compiled] = collections.OrderedDict()
_MEMORY_LIMIT = 512
#: One lock for each key, and one for these and `_memory`.
_locks: dict[tuple[str, str], threading.Lock] = {}
_lock = threading.Lock()
_looking_around = threading.Lock()  # for versions and tools: once is enough
forks.renewed(sys.modules[__name__], _locks=dict, _lock=threading.Lock, _looking_around=threading.Lock)
_BINARY = ("cubin", "object")
NOMINAL_WARPS = 4  # on a CPU, which has none


@dataclass(frozen=True, eq=False)
class Code:
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


@dataclass(eq=False)
class Compiled:
    """A kernel compiled for the kinds of its arguments (`kinds`, by parameter), options and one target.

    `trace` holds every stage and text; for wrappers that read what Triton's kernels carry there are `asm`, `metadata`, `n_regs` (on
    the CPU a nominal figure, see `readback`), `n_spills` (in 32-bit words), and `compiled[grid](*args)`, which launches as the kernel
    does, with the constants and options this was compiled for. `kernel` is the Kernel that asked for it. `reached` is what the code
    depends on; `calls` are those made while compiling whose results may change without a trace in that.
    """

    source: Source
    kinds: Mapping[str, Kind]
    options: Mapping[str, Any]
    target: Target
    code: Code
    trace: Trace
    reached: tuple[Dependencies, ...]
    kernel: Any = None
    calls: tuple[HostCall, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.name} compiled for {self.target}>"

    def _ipython_display_(self) -> None:
        """Shows nothing: a launch as the last line of a cell has no value worth a line."""

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def parameters(self) -> tuple[tuple[str, Any], ...]:
        """The run-time parameters, in the order of the machine code's arguments: names and types."""
        return self.code.parameters

    @property
    def stored(self) -> frozenset[str]:
        """The names of the arrays that are stored through."""
        return self.code.stored

    @property
    def loaded(self) -> frozenset[str]:
        """The names of the arrays that are loaded from."""
        return self.code.loaded

    @property
    def artifacts(self) -> Mapping[str, Any]:
        return self.trace.artifacts

    @property
    def asm(self) -> Mapping[str, Any]:
        return readback.Texts(self.trace)

    @property
    def n_regs(self) -> int | None:
        return self.trace.resources.registers if self.target.is_gpu else readback.CPU_REGISTERS

    @property
    def n_spills(self) -> int:
        return (self.trace.resources.spill_bytes or 0) // 4

    @property
    def metadata(self) -> readback.Metadata:
        shared = max(self.code.shared_bytes, readback.LEAST_SHARED)
        warps, stages = self.trace.options["num_warps"], self.options["num_stages"]
        return readback.Metadata(
            self.title, machine.describe(self.target), shared, warps, readback.STAGES if stages is None else stages
        )

    @property
    def title(self) -> str:
        """The kernel's name, or what `@jit(repr=...)` makes of the constants."""
        rename = getattr(self.kernel, "rename", None)
        if rename is None:
            return self.name
        signature, constants = described(self.kinds)
        return str(rename(readback.Specialization(self.kernel, constants, signature)))

    def __getitem__(self, grid: Any) -> Callable[..., Compiled]:
        """`compiled[grid](*args)`: a launch of the kernel with the constants and options of this compilation."""
        names = [p.name for p in self.source.parameters]

        def launch(*args: Any) -> Compiled:
            given = dict(zip(names, args, strict=False))
            constants = {n: k.constant[0] for n, k in self.kinds.items() if k.constant and n not in given}
            options = {n: value for n, value in self.options.items() if n not in names}
            return self.kernel.launch(grid, **given, **constants, **options)

        return launch

    def _init_handles(self) -> None:
        """Triton's older wrappers call this before they read `n_regs`, which here is known already."""

    def stale(self) -> bool:
        """Whether a helper or a captured value has been redefined since, or a call that cannot be described gives another result."""
        for dependencies_ in self.reached:
            if not dependencies_.current():
                return True
        return bool(self.calls) and not self.repeats()

    def repeats(self) -> bool:
        """Whether the calls give the same results once more."""
        return all(call.repeats() for call in self.calls)

    def retarget(self, target: str | Target, without: Iterable[str] = ()) -> Compiled:
        """The same kernel, kinds and options for another target."""
        options = {**self.options, "without": tuple(sorted(without))}
        found = compile(self.source, self.kinds, options, Target.parse(target))
        found.kernel = self.kernel
        return found


def compile(source: Source, kinds: Mapping[str, Kind], options: Mapping[str, Any], target: Target) -> Compiled:
    """Compiles a kernel, or finds it compiled. Raises KernelError: the kernel's, the target's, or a CompilerBug with its Trace."""
    request = Request(source, kinds, options, target)
    with _lock:
        lock = _locks.setdefault(request.key, threading.Lock())
    with lock:
        try:
            return find(request) or keep(request, load().Job(request).run())
        except BaseException:
            with _lock:
                _locks.pop(request.key, None)
            raise


def find(request: Request) -> Compiled | None:
    """What was compiled before, in this process or another; None if nothing was."""
    found = _memory.get(request.key)
    if found is None:
        return (found := request.from_disk()) and keep(request, found)
    if not found.repeats():
        return None
    if found.source is not request.source or list(map(id, found.reached)) != list(map(id, request.reached)):
        # The same code for a kernel defined again, or with other objects that have the same text: its own are to be watched.
        found = keep(request, replace(found, source=request.source, reached=request.reached))
    return found


def keep(request: Request, compiled: Compiled) -> Compiled:
    """Puts a compiled kernel where `find` finds it, and returns it."""
    with _lock:
        _memory[request.key] = compiled
        while len(_memory) > _MEMORY_LIMIT:
            _locks.pop(_memory.popitem(last=False)[0], None)
    return compiled


def load() -> ModuleType:
    """The module that compiles, `blocknb.runtime.job`."""
    with forks.guard:
        from blocknb.codegen import llvm

        llvm.shared().start()  # a process that needs a while to load LLVM, and has it while the compiler is loaded here
        from blocknb.runtime import job
    return job


_prepared = False
_PATIENCE = 0.05  # seconds: who launches at once may find everything on disk, and is not disturbed
#: What a first compile loads, in pieces: a launch does not wait for more than one.
_PIECES = (
    "blocknb.codegen.llvm",
    "blocknb.ir.core",
    "blocknb.frontend.scope",
    "blocknb.frontend.calls",
    "blocknb.frontend.parse",
    "blocknb.runtime.job",
    "blocknb.analysis.affine",
    "blocknb.layouts.convert",
    "blocknb.codegen.gpu",
    "blocknb.passes.assign",
)


def prepare() -> None:
    """For somebody who has just defined a kernel, and will launch it soon: starts a worker, and where a person types, loads the
    compiler, too. Once, in the background."""
    global _prepared
    if not _prepared:
        _prepared = True
        threading.Thread(target=_prepare, name="blocknb-warm", daemon=True).start()


def _prepare() -> None:
    with _looking_around:
        cache.environment_parts(toolchain.find_ptxas(Target.parse("sm_90a")))
    time.sleep(_PATIENCE)
    with forks.guard:
        from blocknb.codegen import llvm

        llvm.shared().start()
    if hasattr(sys, "ps1") or "IPython" in sys.modules:
        for name in _PIECES:
            with forks.guard:
                importlib.import_module(name)


def described(kinds: Mapping[str, Kind]) -> tuple[dict[str, str], dict[str, Any]]:
    """(the types of the run-time arguments as texts, the values of the constants), the elements of tuples as `x.0`, `x.1`, ..."""
    leaves = list(flat(kinds, kinds.values()))
    return {n: str(k) for n, k in leaves if k.type}, {n: k.constant[0] for n, k in leaves if not k.type}


def forget() -> None:
    """Empties the cache in memory; the one on disk stays."""
    with _lock:
        _memory.clear()
        _locks.clear()


def _of_constant(value: Any) -> Dependencies:
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
    """What a compilation is asked for, its `digest` (the key on disk), and the ways to a Compiled that need no compiler."""

    def __init__(self, source: Source, kinds: Mapping[str, Kind], options: Mapping[str, Any], target: Target):
        self.source, self.kinds, self.options, self.target = source, kinds, options, target
        leaves = list(flat(kinds, kinds.values()))
        constants = {n: _of_constant(k.constant[0]) for n, k in leaves if k.constant}
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
        with _looking_around:
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
        trace.disassemble, trace.list_code = self._disassemble, self._list
        return trace

    def _list(self, text: str) -> str:
        from blocknb.codegen import llvm

        return llvm.shared().wait(llvm.list_cpu(text, self.target))

    def _disassemble(self, cubin: bytes) -> Any:
        """The SASS, or None where there is no nvdisasm for the target."""
        from blocknb.codegen import llvm, sass

        if toolchain.find_nvdisasm(self.target) is None:
            return None
        return llvm.shared().wait(sass.disassemble(cubin, self.target))

    def compiled(self, code: Code, trace: Trace, calls: tuple[HostCall, ...] = ()) -> Compiled:
        if trace.options["num_warps"] is None:
            warps = code.warps if self.target.is_gpu else NOMINAL_WARPS
            trace.options = {**trace.options, "num_warps": warps}
        return Compiled(self.source, self.kinds, self.options, self.target, code, trace, self.reached, calls=calls)

    # ---- the disk cache ----

    def to_disk(self, code: Code, trace: Trace) -> None:
        """Stores what another process may find; nothing where something cannot be described to it."""
        if self.unknown:
            return
        files = self.files
        meta = {
            "files": list(files),
            "code": record.encode(code, files),
            "resources": record.encode(trace.resources, files),
            "milliseconds": trace.milliseconds,
        }
        cache.shared().put(
            self.digest, meta, {n: a.encode() if isinstance(a, str) else a for n, a in trace.artifacts.items()}
        )

    def from_disk(self) -> Compiled | None:
        """What was stored for this; None if nothing was, or nothing that can be read."""
        entry = None if self.unknown else cache.shared().get(self.digest)
        if entry is None:
            return None
        try:
            return self._read(entry)
        except (AttributeError, ImportError, LookupError, TypeError, ValueError):
            cache.shared().drop(self.digest)  # whole, but of another making: the compiler makes a new one
            return None

    def _read(self, entry: cache.Entry) -> Compiled:
        files, stored_files = self.files, entry.meta["files"]
        code = record.decode(entry.meta["code"], files)
        if not isinstance(code, Code):
            raise TypeError("this is no code")
        trace = self.trace(DeferredStages(self._stages_again), dict(entry.meta["milliseconds"]), from_cache=True)
        trace.resources = record.decode(entry.meta["resources"], files)
        for name, blob in entry.blobs.items():
            trace.artifacts[name] = bytes(blob) if name in _BINARY else record.moved(blob.decode(), stored_files, files)
        if stored_files != list(files):
            trace.disassemble = lambda cubin: _moved_listing(self._disassemble(cubin), stored_files, files)
        return self.compiled(code, trace)

    def _stages_again(self) -> tuple[Stage, ...]:
        """The stages of a kernel whose code came from the cache: front end and passes, run when somebody looks."""
        from blocknb.runtime import job

        return job.Job(self).stages_again()


def _moved_listing(listing: Any, old: Sequence[str], new: Sequence[str]) -> Any:
    """A Listing whose lines name the files of now."""
    if listing is None:
        return None
    names = dict(zip(old, new, strict=True))
    lines = tuple(
        line._replace(
            file=names.get(line.file, line.file), callers=tuple((names.get(f, f), n) for f, n in line.callers)
        )
        for line in listing.lines
    )
    return replace(listing, lines=lines)
