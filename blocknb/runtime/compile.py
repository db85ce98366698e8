"""From a kernel and the kinds of its arguments to machine code: front end, passes, code generation, worker, caches.

`compile` returns a `Compiled`, which holds what a launch needs and the Trace of how it came about. Results are kept in memory by
everything that decides them, and on disk by the same without the names of files, so that a cell keeps its entry in the next
session. A disk hit brings the code, the resources and the times back at once; the stages of its Trace are made again by running
the front end and the passes, but only when somebody looks. Any error of ours on the way is a CompilerBug that carries the Trace
up to where it broke.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blocknb import passes
from blocknb.codegen import llvm, toolchain
from blocknb.errors import AssemblyError, CompilerBug, KernelError, LaunchError, Loc, OutOfResources
from blocknb.frontend.calls import in_language
from blocknb.frontend.dependencies import Dependencies, constant_key, dependencies
from blocknb.frontend.parse import ArgType, Argument, Constant, Group, parse
from blocknb.frontend.source import Source, source_of
from blocknb.ir.core import Func
from blocknb.language.types import Descriptor, Tile
from blocknb.runtime import cache, machine, readback, record
from blocknb.runtime.arguments import Kind, Tuple, flat
from blocknb.runtime.binding import definition
from blocknb.runtime.effects import memory_use
from blocknb.target import Target
from blocknb.trace import DeferredStages, Note, Resources, Stage, Trace

#: Compiled kernels of this process, the least recently used first.
_memory: collections.OrderedDict[tuple[str, str], Compiled] = collections.OrderedDict()
_MEMORY_LIMIT = 512
_locks: dict[tuple[str, str], threading.Lock] = {}
_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class Code:
    """What a launch needs beside the artifacts, and what the disk cache stores as JSON.

    `parameters` are the run-time parameters (name, DType or Pointer) in the order of the entry's arguments; `stored` and
    `loaded` the names of the arrays written and read. GPU: `threads` a CTA and bytes of dynamic shared memory. CPU: bytes of
    scratch a thread, and `may_loop`, whether a program may run for long. `sites` are the places that the kernel may tell of, and on a
    GPU `reports` and `extents` its hidden parameters (see `codegen.gpu.Module`).
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


@dataclass(eq=False)
class Compiled:
    """A kernel compiled for the kinds of its arguments (`kinds`, by parameter), options and one target.

    `trace` holds every stage and text; for wrappers that read what Triton's kernels carry there are `asm`, `metadata`, `n_regs` (on
    the CPU a nominal figure, see `readback`), `n_spills` (in 32-bit words), and `compiled[grid](*args)`, which launches as the kernel
    does, with the constants and options this was compiled for. `kernel` is the Kernel that asked for it.
    """

    source: Source
    kinds: Mapping[str, Kind]
    options: Mapping[str, Any]
    target: Target
    code: Code
    trace: Trace
    reached: tuple[Dependencies, ...]
    kernel: Any = None

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
        warps, stages = self.options["num_warps"], self.options["num_stages"]
        return readback.Metadata(self.title, machine.describe(self.target), shared, warps, stages)

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
        """Whether a helper or a captured value has been redefined since."""
        for dependencies_ in self.reached:  # noqa: SIM110 (runs at every launch, and a generator costs more than the loop)
            if not dependencies_.current():
                return True
        return False

    def retarget(self, target: str | Target, without: Iterable[str] = ()) -> Compiled:
        """The same kernel, kinds and options for another target."""
        options = {**self.options, "without": tuple(sorted(without))}
        found = compile(self.source, self.kinds, options, Target.parse(target))
        found.kernel = self.kernel
        return found


def compile(source: Source, kinds: Mapping[str, Kind], options: Mapping[str, Any], target: Target) -> Compiled:
    """Compiles a kernel, or finds it compiled. Raises KernelError: the kernel's, the target's, or a CompilerBug with its Trace."""
    job = _Job(source, kinds, options, target)
    key = job.digest, source.file
    with _lock:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        found = _memory.get(key)
        if found is None:
            try:
                found = job.from_disk() or job.run()
            except BaseException:
                with _lock:
                    _locks.pop(key, None)
                raise
            with _lock:
                _memory[key] = found
                while len(_memory) > _MEMORY_LIMIT:
                    _locks.pop(_memory.popitem(last=False)[0], None)
    return found


def front_argument(kind: Kind) -> Argument:
    """An argument of this Kind as the front end takes it."""
    if kind.type is None:
        return Constant(kind.constant[0])
    if isinstance(kind.type, Tuple):
        return Group(tuple(map(front_argument, kind.type.parts)), kind.type.make)
    return ArgType(kind.type if isinstance(kind.type, Descriptor) else Tile(kind.type), kind.divisibility)


def described(kinds: Mapping[str, Kind]) -> tuple[dict[str, str], dict[str, Any]]:
    """(the types of the run-time arguments as texts, the values of the constants), the elements of tuples as `x.0`, `x.1`, ..."""
    leaves = list(flat(kinds, kinds.values()))
    return {n: str(k) for n, k in leaves if k.type}, {n: k.constant[0] for n, k in leaves if not k.type}


def forget() -> None:
    """Empties the cache in memory; the one on disk stays."""
    with _lock:
        _memory.clear()
        _locks.clear()


class _Job:
    """One compilation: what goes in, the stages and times as they come, and the ways to a Compiled."""

    def __init__(self, source: Source, kinds: Mapping[str, Kind], options: Mapping[str, Any], target: Target):
        self.source, self.kinds, self.options, self.target = source, kinds, options, target
        self.stages: list[Stage] = []
        self.milliseconds: dict[str, float] = {}
        self.select = 1
        constants = [k.constant[0] for _, k in flat(kinds, kinds.values()) if k.constant]
        functions = [f for x in constants if (f := source_of(x)) is not None]
        self.reached = tuple(map(dependencies, (source, *functions)))
        sources = [s for d in self.reached for s in d.sources]
        self.files = tuple(dict.fromkeys(s.file for s in sources))
        # Lines and columns are in the code's debug data, the names of files are put right when code comes from the cache.
        places = [(s.first_line, len(s.text) - len(s.text.lstrip())) for s in sources]
        parts = ([d.key for d in self.reached], places, self._kinds_key(), dict(options), target)
        self.digest = cache.key(*parts, cache.environment_parts(self._ptxas()))

    def _ptxas(self) -> toolchain.Tool | None:
        return toolchain.find_ptxas(self.target) if self.target.is_gpu else None

    def _kinds_key(self) -> list[Any]:
        tuples = [(n, k.type.structure) for n, k in self.kinds.items() if isinstance(k.type, Tuple)]
        leaves = [
            (n, str(k) if k.type else None, constant_key(k.constant[0]) if k.constant else None)
            for n, k in flat(self.kinds, self.kinds.values())
        ]
        return [*leaves, *tuples]

    # ---- the way through the compiler ----

    def run(self) -> Compiled:
        """Compiles, and stores the result on disk."""
        try:
            func = self.front()
            code, text = self.generate(func)
            trace = self.trace(tuple(self.stages))
            trace.artifacts["llvm"] = text
            self.assemble(code, text, trace)
        except KernelError as error:
            error.loc = users_place(error.loc)
            if isinstance(error, AssemblyError) and error.loc is None:
                error.loc = assembly_loc(func, error.line, error.column)
                if error.loc is None:  # none of the kernel's: the assembly is ours, and so is the mistake
                    trace = self.trace(tuple(self.stages))
                    raise CompilerBug(error.message, definition(self.source), trace=trace) from error
            if isinstance(error, CompilerBug) and error.trace is None:
                error.trace = self.trace(tuple(self.stages))
            raise
        except Exception as error:
            message = f"{type(error).__name__} while compiling {self.source.name} for {self.target}: {error}"
            raise CompilerBug(message, definition(self.source), trace=self.trace(tuple(self.stages))) from error
        self.to_disk(code, trace)
        return self.compiled(code, trace)

    def front(self) -> Func:
        """Front end and passes; fills `stages` and `milliseconds`."""
        begin = time.perf_counter()
        attributes = {name: value for name, value in self.options.items() if name != "without" and value is not None}
        func = parse(self.source, self._front_arguments(), attributes, self.target)
        elapsed = (time.perf_counter() - begin) * 1e3
        doc = (parse.__doc__ or "").strip()
        self._done(Stage("parse", doc.split("\n")[0], doc, func, func, (), elapsed))
        try:
            return passes.run(func, self.target, self.options["without"], self._done)[0]
        except ValueError as error:
            if "cannot switch off" not in str(error):
                raise
            raise LaunchError(str(error), definition(self.source)) from None

    def _done(self, stage: Stage) -> None:
        self.stages.append(stage)
        self.milliseconds[stage.name] = stage.milliseconds

    def _front_arguments(self) -> dict[str, Argument]:
        return {name: front_argument(kind) for name, kind in self.kinds.items()}

    def generate(self, func: Func) -> tuple[Code, str]:
        """LLVM text, and what a launch has to know of it."""
        begin = time.perf_counter()
        stored, loaded = memory_use(self.stages[0].after)
        parameters = tuple((hint.name, value.type.dtype) for value, hint in zip(func.params, func.hints, strict=True))
        make = self._generate_gpu if self.target.is_gpu else self._generate_cpu
        text, entry, more, notes = make(func)
        elapsed = self.milliseconds["codegen"] = (time.perf_counter() - begin) * 1e3
        if notes:  # the CPU's code generator decides as passes do
            doc = (make.__doc__ or "").strip()
            self.stages.append(Stage("codegen", doc, doc, func, func, notes, elapsed))
        return Code(entry, parameters, stored, loaded, **more), text

    def _generate_gpu(self, func: Func) -> tuple[str, str, dict[str, Any], tuple[Note, ...]]:
        """Writes LLVM text for one thread"""
        from blocknb.codegen import gpu

        made = gpu.generate(func, self.target)
        if made.shared_bytes > self.target.max_shared:
            needs = f"needs {made.shared_bytes} bytes of shared memory a program, and {self.target} has {self.target.max_shared}"
            hint = "smaller tiles, or fewer num_stages, need less"
            raise OutOfResources(f"{self.source.name} {needs}", definition(self.source), hint)
        more: dict[str, Any] = {"threads": made.threads, "shared_bytes": made.shared_bytes}
        more |= {"sites": made.sites, "reports": made.reports, "extents": made.extents}
        self.select = made.select
        return made.text, made.entry, more, made.notes

    def _generate_cpu(self, func: Func) -> tuple[str, str, dict[str, Any], tuple[Note, ...]]:
        """Fuses tiles into vector loops and writes them as LLVM text"""
        from blocknb.codegen import cpu

        made = cpu.generate(func, self.target, checked=self.options["checked"] is not False)
        more = {"scratch_bytes": made.scratch_bytes, "sites": tuple(made.sites), "may_loop": made.may_loop}
        return made.text, made.entry, more, made.notes

    def assemble(self, code: Code, text: str, trace: Trace) -> None:
        """Has a worker turn the text into machine code; fills artifacts, resources and times of the trace."""
        begin, workers = time.perf_counter(), llvm.shared()
        if self.target.is_gpu:
            job = llvm.compile_cuda(text, self.target, select=self.select, tool=self._ptxas(), workers=workers)
            cuda = workers.wait(job)
            trace.artifacts["ptx"], times = cuda.ptx, cuda.ms
            if cuda.cubin is not None:
                trace.artifacts["cubin"] = cuda.cubin
            trace.resources = _gpu_resources(code, cuda)
        else:
            host = workers.wait(llvm.compile_cpu(text, self.target, workers=workers))
            trace.artifacts["object"], times = host.object, host.ms
        elapsed = (time.perf_counter() - begin) * 1e3
        for stage, milliseconds in times.items():
            self.milliseconds["ptxas" if stage == "ptxas" else f"llvm {stage}"] = milliseconds
        # What is left is the worker's start, if it was not yet there, and the pipes.
        self.milliseconds["worker"] = max(elapsed - sum(times.values()), 0.0)

    def trace(self, stages: Sequence[Stage], from_cache: bool = False) -> Trace:
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
        trace.stages, trace.milliseconds, trace.from_cache = stages, self.milliseconds, from_cache
        trace.disassemble, trace.list_code = self._disassemble, self._list
        return trace

    def _list(self, text: str) -> str:
        return llvm.shared().wait(llvm.list_cpu(text, self.target))

    def _disassemble(self, cubin: bytes) -> Any:
        """The SASS, or None where there is no nvdisasm for the target."""
        from blocknb.codegen import sass

        if toolchain.find_nvdisasm(self.target) is None:
            return None
        return llvm.shared().wait(sass.disassemble(cubin, self.target))

    def compiled(self, code: Code, trace: Trace) -> Compiled:
        return Compiled(self.source, self.kinds, self.options, self.target, code, trace, self.reached)

    # ---- the disk cache ----

    def to_disk(self, code: Code, trace: Trace) -> None:
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
        entry = cache.shared().get(self.digest)
        if entry is None:
            return None
        files, stored_files = self.files, entry.meta["files"]
        self.milliseconds = dict(entry.meta["milliseconds"])
        trace = self.trace(DeferredStages(self._stages_again), from_cache=True)
        trace.resources = record.decode(entry.meta["resources"], files)
        for name, blob in entry.blobs.items():
            trace.artifacts[name] = bytes(blob) if name in _BINARY else record.moved(blob.decode(), stored_files, files)
        if stored_files != list(files):
            trace.disassemble = lambda cubin: _moved_listing(self._disassemble(cubin), stored_files, files)
        return self.compiled(record.decode(entry.meta["code"], files), trace)

    def _stages_again(self) -> tuple[Stage, ...]:
        """The stages of a kernel whose code came from the cache: front end and passes, run when somebody looks."""
        job = _Job(self.source, self.kinds, self.options, self.target)
        func = job.front()
        job.generate(func)  # which may have notes
        return tuple(job.stages)


def assembly_loc(func: Func, line: int, column: int) -> Loc | None:
    """The place of the inline assembly that stands at a line and column of the kernel (its first one where that is not known)."""
    found = [op.loc for op in func.ops() if op.name == "asm" and op.loc]
    places = [(loc.outermost.line, loc.outermost.column + 1) for loc in found]
    return found[places.index((line, column))] if (line, column) in places else next(iter(found), None)


def users_place(loc: Loc | None) -> Loc | None:
    """The place of the call, for a place in a function of the language that is written in the language: it says nothing to its user."""
    while in_language(loc) and loc is not None and loc.caller is not None:
        loc = loc.caller
    return loc


_BINARY = ("cubin", "object")


def _gpu_resources(code: Code, made: llvm.CudaCode) -> Resources:
    found = made.resources.get(code.entry)
    if found is None:
        return Resources(shared_bytes=code.shared_bytes, threads=code.threads, warnings=made.warnings)
    spills = found.spill_stores + found.spill_loads
    return Resources(
        found.registers, spills, found.stack, code.shared_bytes + found.shared, code.threads, made.warnings
    )


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
