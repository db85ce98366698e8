"""Compiled kernels: finds them in memory or on disk, or compiles them.

The memory cache uses the full key of a request. The disk cache leaves out file names, so a cell finds its entry in the next session.
A disk hit needs a key and a file but no compiler; the module loads the compiler (`job`) on a miss. A hit restores the code, the
resources and the times. The front end and the passes recreate the stages of its Trace when they are first read.
"""

from __future__ import annotations

import collections
import functools
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from blocknb import forks
from blocknb.codegen import toolchain
from blocknb.frontend.dependencies import Dependencies, HostCall
from blocknb.frontend.source import Source
from blocknb.runtime import cache, machine, readback, record
from blocknb.runtime.kinds import Kind
from blocknb.runtime.request import NOMINAL_WARPS, KernelCode, Request, described, finding_tools
from blocknb.target import Target
from blocknb.trace import DeferredStages, Stage, Trace

if TYPE_CHECKING:
    from blocknb.runtime.job import Job

#: Compiled kernels of this process, the least recently used first.
_memory: collections.OrderedDict[tuple[str, str], Compiled] = collections.OrderedDict()
_MEMORY_LIMIT = 512
#: One lock for each key, and one for these and `_memory`.
_locks: dict[tuple[str, str], threading.Lock] = {}
_lock = threading.Lock()
forks.renewed(sys.modules[__name__], _locks=dict, _lock=threading.Lock)
_BINARY = ("cubin", "object")


@dataclass(eq=False)
class Compiled:
    """A kernel compiled for the kinds of its arguments (`kinds`, by parameter), options and one target.

    `trace` holds every stage and text; for wrappers that read what Triton's kernels carry there are `asm`, `metadata`, `n_regs` (on
    the CPU a nominal figure, see `readback`), `n_spills` (in 32-bit words), and `compiled[grid](*args)`, which launches as the kernel
    does, with the constants and options this was compiled for. `kernel` is the Kernel that requested it. `reached` are the names that
    the code depends on; `calls` are host calls during compilation whose results may change while `reached` does not.
    """

    source: Source
    kinds: Mapping[str, Kind]
    options: Mapping[str, Any]
    target: Target
    code: KernelCode
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
            if (found := find(request)) is None:
                job = load().Job(request)
                found = keep(request, stored(job, *job.run()))
            return found
        except BaseException:
            with _lock:
                _locks.pop(request.key, None)
            raise


def find(request: Request) -> Compiled | None:
    """What was compiled before, in this process or another; None if nothing was."""
    found = _memory.get(request.key)
    if found is None:
        return (found := from_disk(request)) and keep(request, found)
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
    "blocknb.codegen.gpu.shared_memory",
    "blocknb.codegen.gpu.generator",
    "blocknb.passes.tile.layout_assignment",
)


def prepare() -> None:
    """Starts a worker in the background, once, because a kernel was just defined. In an interactive session it loads the compiler too."""
    global _prepared
    if not _prepared:
        _prepared = True
        threading.Thread(target=_prepare, name="blocknb-warm", daemon=True).start()


def _prepare() -> None:
    with finding_tools:
        cache.environment_parts(toolchain.find_ptxas(Target.parse("sm_90a")))
    time.sleep(_PATIENCE)
    with forks.guard:
        from blocknb.codegen import llvm

        llvm.shared().start()
    if hasattr(sys, "ps1") or "IPython" in sys.modules:
        for name in _PIECES:
            with forks.guard:
                importlib.import_module(name)


def forget() -> None:
    """Empties the cache in memory; the one on disk stays."""
    with _lock:
        _memory.clear()
        _locks.clear()


# ---- the disk cache -----------------------------------------------------------------------------------------------------


def from_disk(request: Request) -> Compiled | None:
    """What an earlier process stored for a request; None if it stored nothing, or nothing that can be read."""
    entry = None if request.unknown else cache.shared().get(request.digest)
    if entry is None:
        return None
    try:
        return _read(request, entry)
    except (AttributeError, ImportError, LookupError, TypeError, ValueError):
        cache.shared().drop(request.digest)  # whole, but of another making: the compiler makes a new one
        return None


def _read(request: Request, entry: cache.Entry) -> Compiled:
    files, stored_files = request.files, entry.meta["files"]
    code = record.decode(entry.meta["code"], files)
    if not isinstance(code, KernelCode):
        raise TypeError("this is no code")
    stages = DeferredStages(functools.partial(_stages_again, request))
    trace = request.trace(stages, dict(entry.meta["milliseconds"]), from_cache=True)
    trace.resources = record.decode(entry.meta["resources"], files)
    for name, blob in entry.blobs.items():
        trace.artifacts[name] = bytes(blob) if name in _BINARY else record.relocated(blob.decode(), stored_files, files)
    if stored_files != list(files):
        trace.disassemble = lambda cubin: _moved_listing(request.disassemble(cubin), stored_files, files)
    return _compiled(request, code, trace, ())


def _stages_again(request: Request) -> tuple[Stage, ...]:
    """The stages of a kernel whose code came from the cache. The front end and the passes recreate them when they are first read."""
    return load().Job(request).stages_again()


def to_disk(request: Request, code: KernelCode, trace: Trace) -> None:
    """Stores what another process may find; nothing where something cannot be described to it."""
    if request.unknown:
        return
    files = request.files
    meta = {
        "files": list(files),
        "code": record.encode(code, files),
        "resources": record.encode(trace.resources, files),
        "milliseconds": trace.milliseconds,
    }
    blobs = {name: made.encode() if isinstance(made, str) else made for name, made in trace.artifacts.items()}
    cache.shared().put(request.digest, meta, blobs)


def stored(job: Job, code: KernelCode, trace: Trace) -> Compiled:
    """The result of a compilation, which is stored on disk."""
    to_disk(job.request, code, trace)
    return _compiled(job.request, code, trace, job.calls)


def _compiled(request: Request, code: KernelCode, trace: Trace, calls: tuple[HostCall, ...]) -> Compiled:
    if trace.options["num_warps"] is None:
        trace.options = {**trace.options, "num_warps": code.warps if request.target.is_gpu else NOMINAL_WARPS}
    source, kinds, options = request.source, request.kinds, request.options
    return Compiled(source, kinds, options, request.target, code, trace, request.reached, calls=calls)


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
