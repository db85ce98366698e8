"""Compiled kernels: finds them in memory or on disk, or compiles them.

The memory cache uses the full key of a request. The disk cache leaves out file names, so a cell finds its entry in the next session.
A disk hit needs a key and a file but no compiler; the module loads the compiler (`job`) on a miss. A hit restores the code, the
resources and the times. The front end and the passes recreate the stages of its Trace when they are first read.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import pkgutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from blocknb import forks
from blocknb.codegen import maps, toolchain
from blocknb.frontend.dependencies import Dependencies, HostCall
from blocknb.frontend.source import Source
from blocknb.runtime import cache, compile_progress, machine, readback, record
from blocknb.runtime.kinds import Kind
from blocknb.runtime.request import NOMINAL_WARPS, KernelCode, Request, StageEdit, described, finding_tools
from blocknb.target import Target
from blocknb.trace import Resources, Stages, Trace

if TYPE_CHECKING:
    from blocknb.runtime.job import Job

#: Compiled kernels of this process, the oldest first.
_memory: collections.OrderedDict[tuple[str, str], Compiled] = collections.OrderedDict()
_MEMORY_LIMIT = 512
#: One lock per key, and one for both dictionaries.
_locks: dict[tuple[str, str], threading.Lock] = {}
_lock = threading.Lock()
forks.renewed(sys.modules[__name__], _locks=dict, _lock=threading.Lock)
_BINARY = ("cubin", "object")


@dataclass(eq=False)
class Compiled:
    """A kernel compiled for the Kinds of its arguments (`kinds`, by parameter), options and one target.

    `trace` holds every stage and text. Triton's attributes are `asm`, `metadata`, `n_regs` (nominal on the CPU, see `readback`) and
    `n_spills` (in 32-bit words). `compiled[grid](*args)` launches the kernel with these constants and options. `kernel` is the Kernel that
    requested it. `reached` are the names that the code depends on. `calls` are the host calls during the compilation whose results may
    change while `reached` does not.
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
        """Shows nothing, so that a launch in the last line of a cell has no output."""

    @property
    def name(self) -> str:
        """The kernel's name, or the name that `@jit(repr=...)` derives from the constants."""
        rename = getattr(self.kernel, "rename", None)
        if rename is None:
            return self.source.name
        signature, constants = described(self.kinds)
        return str(rename(readback.Specialization(self.kernel, constants, signature)))

    @property
    def parameters(self) -> tuple[tuple[str, Any], ...]:
        """(name, type) of the run-time parameters, in the order of the machine code's arguments."""
        return self.code.parameters

    @property
    def stored(self) -> frozenset[str]:
        """The names of the arrays that the kernel stores to."""
        return self.code.stored

    @property
    def loaded(self) -> frozenset[str]:
        """The names of the arrays that the kernel loads from."""
        return self.code.loaded

    @property
    def artifacts(self) -> Any:
        """The code and texts by name, as an `Artifacts` of `runtime.artifacts`: another process can `load` it."""
        return forks.imported("blocknb.runtime.artifacts").Artifacts(self.trace, self)

    def __reduce__(self) -> tuple[Any, ...]:
        module = forks.imported("blocknb.runtime.artifacts")
        return module.unpickled, (module.Shipped.of(self),)

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
            self.name, machine.describe(self.target), shared, warps, readback.STAGES if stages is None else stages
        )

    def __getitem__(self, grid: Any) -> Callable[..., Compiled]:
        """`compiled[grid](*args)` launches the kernel with the constants and options of this compilation."""
        names = [p.name for p in self.source.parameters]

        def launch(*args: Any) -> Compiled:
            given = dict(zip(names, args, strict=False))
            constants = {n: k.constant[0] for n, k in self.kinds.items() if k.constant and n not in given}
            options = {n: value for n, value in self.options.items() if n not in names}
            return self.kernel.launch(grid, **given, **constants, **options)

        return launch

    def _init_handles(self) -> None:
        """Does nothing. Older wrappers of Triton call it before they read `n_regs`."""

    def stale(self) -> bool:
        """Whether a helper or a captured value was redefined since the compilation, or a host call now returns another result."""
        for reached in self.reached:
            if not reached.current():
                return True
        return not self.repeats()

    def repeats(self) -> bool:
        """Whether the host calls still return the same results."""
        return all(call.repeats() for call in self.calls)

    def with_options(self, **options: Any) -> Compiled:
        """Compiles the same kernel and kinds for the same target, with other values of some options."""
        found = compile(self.source, self.kinds, {**self.options, **options}, self.target)
        found.kernel = self.kernel
        return found

    def retarget(self, target: str | Target, without: Iterable[str] = ()) -> Compiled:
        """Compiles the same kernel, kinds and options for another target."""
        options = {**self.options, "without": tuple(sorted(without))}
        found = compile(self.source, self.kinds, options, Target.parse(target))
        found.kernel = self.kernel
        return found


def compile(
    source: Source,
    kinds: Mapping[str, Kind],
    options: Mapping[str, Any],
    target: Target,
    edit: StageEdit | None = None,
) -> Compiled:
    """Finds a compiled kernel in a cache, or compiles it, with the `edit` of a stage. Raises KernelError; a CompilerBug carries its
    Trace."""
    request = Request(source, kinds, options, target, edit)
    with _lock:
        lock = _locks.setdefault(request.key, threading.Lock())
    with lock:
        try:
            if (found := find(request)) is None:
                job = load().Job(request)
                with compile_progress.running(job.progress):
                    found = keep(request, stored(job, *job.run()))
            return found
        except BaseException:
            with _lock:
                _locks.pop(request.key, None)
            raise


def find(request: Request) -> Compiled | None:
    """Returns the kernel from the memory or the disk cache, or None."""
    found = _memory.get(request.key)
    if found is None:
        return (found := from_disk(request)) and keep(request, found)
    if not found.repeats():
        return None
    if found.source is not request.source or list(map(id, found.reached)) != list(map(id, request.reached)):
        # A kernel that was defined again, or uses other objects with the same text. It must watch its own objects.
        found = keep(request, replace(found, source=request.source, reached=request.reached))
    return found


def keep(request: Request, compiled: Compiled) -> Compiled:
    """Puts a compiled kernel into the memory cache and returns it."""
    with _lock:
        _memory[request.key] = compiled
        while len(_memory) > _MEMORY_LIMIT:
            _locks.pop(_memory.popitem(last=False)[0], None)
    return compiled


def newest() -> list[Compiled]:
    """The kernels in the memory cache, the newest first."""
    with _lock:
        return list(reversed(_memory.values()))


def load() -> ModuleType:
    """Imports `blocknb.runtime.job`, and with it the compiler."""
    with forks.guard:
        from blocknb.codegen import llvm

        llvm.shared().start()  # the worker loads LLVM while this process imports the compiler
        from blocknb.runtime import job
    return job


def load_all() -> None:
    """Imports every module of the compiler. Without it, the first kernel with a feature imports the feature's modules."""
    load()
    for part in ("frontend", "analysis", "layouts", "passes", "codegen.gpu"):
        package = forks.imported(f"blocknb.{part}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            forks.imported(found.name)


_prepared = False
_START_DELAY = 0.05  # seconds; a launch that follows at once may hit the disk cache, and needs no worker
#: The modules of the compiler. They are imported one by one, because a launch waits for the current import to end.
_COMPILER_MODULES = (
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
    """Starts a worker in the background after the first kernel is defined. In an interactive session it imports the compiler, too."""
    global _prepared
    if not _prepared:
        _prepared = True
        threading.Thread(target=_prepare, name="blocknb-warm", daemon=True).start()


def _prepare() -> None:
    with finding_tools:
        cache.environment_parts(toolchain.find_ptxas(Target.parse("sm_90a")))
    time.sleep(_START_DELAY)
    with forks.guard:
        from blocknb.codegen import llvm

        llvm.shared().start()
    if hasattr(sys, "ps1") or "IPython" in sys.modules:
        for name in _COMPILER_MODULES:
            with forks.guard:
                importlib.import_module(name)


def forget() -> None:
    """Empties the memory cache, but not the disk cache."""
    with _lock:
        _memory.clear()
        _locks.clear()


# ---- the disk cache -----------------------------------------------------------------------------------------------------


def from_disk(request: Request) -> Compiled | None:
    """Returns the kernel that an earlier process stored for a request, or None if there is none or it is unreadable."""
    entry = None if request.unknown else cache.shared().get(request.digest)
    if entry is None:
        return None
    try:
        return read_entry(request, entry)
    except (AttributeError, ImportError, LookupError, TypeError, ValueError, RecursionError):
        cache.shared().drop(request.digest)  # complete, but written by another version
        return None


def recompiled(compiled: Compiled) -> Compiled:
    """Compiles a kernel again whose code from the disk cannot be started, and drops that entry."""
    request = Request(compiled.source, compiled.kinds, compiled.options, compiled.target)
    cache.shared().drop(request.digest)
    with _lock:
        _memory.pop(request.key, None)
    found = compile(compiled.source, compiled.kinds, compiled.options, compiled.target)
    found.kernel = compiled.kernel
    return found


def read_entry(request: Request, entry: cache.Entry) -> Compiled:
    """The kernel of an entry. Raises TypeError, ValueError and others for an entry of another version."""
    files, stored_files = request.files, entry.meta["files"]
    code = record.decode(entry.meta["code"], files)
    _check(code, entry)
    stages = Stages(lambda: load().Job(request).recreate_stages())
    trace = request.trace(stages, dict(entry.meta["milliseconds"]), from_cache=True)
    trace.resources = record.decode(entry.meta["resources"], files)
    if not isinstance(trace.resources, Resources):
        raise TypeError("the entry holds no Resources")
    for name, text in texts(entry.blobs).items():
        trace.artifacts[name] = text if name in _BINARY else record.relocated(text, stored_files, files)
    if stored_files != list(files):
        trace.disassemble = lambda cubin: _relocated_listing(request.disassemble(cubin), stored_files, files)
    return _compiled(request, code, trace, ())


def _check(code: Any, entry: cache.Entry) -> None:
    """Raises TypeError or ValueError for an entry of another shape than `to_disk` writes."""
    if not isinstance(code, KernelCode):
        raise TypeError("the entry holds no KernelCode")
    files, milliseconds = entry.meta["files"], entry.meta["milliseconds"]
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise TypeError("the files of the entry are no list of names")
    if not all(isinstance(time, (int, float)) for time in milliseconds.values()):
        raise TypeError("the times of the entry are no numbers")
    if not entry.blobs.keys() & {"ptx", *_BINARY}:
        raise ValueError("the entry holds no code")
    if not all(map(dataclasses.is_dataclass, (*code.sites, *code.maps))):
        raise TypeError("the entry holds a site or a map that is none")
    places = {index: index for index in range(len(code.parameters))}
    for spec in code.maps:
        for expression in (("arg", spec.base), *spec.dims, *spec.strides):
            maps.evaluator(expression, places)


def to_disk(request: Request, code: KernelCode, trace: Trace) -> None:
    """Stores a kernel on disk, unless it depends on a value that another process cannot recognise."""
    if not request.unknown:
        cache.shared().put(request.digest, *entry_of(request, code, trace))


def entry_of(request: Request, code: KernelCode, trace: Trace) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The metadata and the blobs of an entry."""
    files = request.files
    meta = {
        "files": list(files),
        "code": record.encode(code, files),
        "resources": record.encode(trace.resources, files),
        "milliseconds": trace.milliseconds,
    }
    return meta, {name: data.encode() if isinstance(data, str) else data for name, data in trace.artifacts.items()}


def texts(blobs: Mapping[str, bytes]) -> dict[str, Any]:
    """The artifacts of an entry: binaries as bytes, and the others as texts."""
    return {name: bytes(blob) if name in _BINARY else blob.decode() for name, blob in blobs.items()}


def stored(job: Job, code: KernelCode, trace: Trace) -> Compiled:
    """Stores the result of a compilation on disk and returns it."""
    to_disk(job.request, code, trace)
    return _compiled(job.request, code, trace, job.calls)


def _compiled(request: Request, code: KernelCode, trace: Trace, calls: tuple[HostCall, ...]) -> Compiled:
    if trace.options["num_warps"] is None:
        trace.options = {**trace.options, "num_warps": code.warps if request.target.is_gpu else NOMINAL_WARPS}
    source, kinds, options = request.source, request.kinds, request.options
    return Compiled(source, kinds, options, request.target, code, trace, request.reached, calls=calls)


def _relocated_listing(listing: Any, old: Sequence[str], new: Sequence[str]) -> Any:
    """Returns a Listing with the file names of this session."""
    if listing is None:
        return None
    names = dict(zip(old, new, strict=True))
    lines = []
    for line in listing.lines:
        callers = tuple((names.get(file, file), number) for file, number in line.callers)
        lines.append(line._replace(file=names.get(line.file, line.file), callers=callers))
    return replace(listing, lines=tuple(lines))
