"""One compilation: front end, passes, code generation and worker, from a Request to a KernelCode and a Trace.

A fault of the compiler raises CompilerBug with the Trace of the stages so far.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from blocknb import forks, passes
from blocknb.analysis.masked_lanes import masked_lanes_that_matter
from blocknb.codegen import llvm
from blocknb.errors import (
    AssemblyError,
    CompilationInterrupted,
    CompilerBug,
    KernelError,
    LaunchError,
    Loc,
    OutOfResources,
    stands_for_triton,
)
from blocknb.frontend.calls import in_language
from blocknb.frontend.dependencies import HostCall
from blocknb.frontend.parse import ArgType, Argument, Constant, TupleArgument, parse
from blocknb.ir.core import Func, Value
from blocknb.ir.shadow import plan_of
from blocknb.language.types import Descriptor, Tile
from blocknb.runtime import failures, gc_pause
from blocknb.runtime.binding import definition, similar
from blocknb.runtime.compile_progress import CompileProgress
from blocknb.runtime.dependent_launch import waits_first
from blocknb.runtime.effects import memory_use
from blocknb.runtime.kinds import Kind, Tuple
from blocknb.runtime.request import KernelCode, Request, StageEdit
from blocknb.trace import Note, Resources, Stage, Stages, Trace


def undefined_in_triton(func: Func, padded: Container[Value]) -> tuple[Note, ...]:
    """Notes about masked loads whose result is defined here and not in Triton. `padded` are results that it defines, too."""
    text = "Triton leaves the masked lanes of this load undefined, and they reach {}; blocknb gives 0: write other=0 to say so"
    found = masked_lanes_that_matter(func, padded)
    return tuple(Note(text.format(reached), "parse", op.id, op.loc) for op, reached in found)


def front_argument(kind: Kind) -> Argument:
    """Returns the front end's form of an argument of this Kind."""
    if kind.type is None:
        return Constant(kind.constant[0])
    if isinstance(kind.type, Tuple):
        return TupleArgument(tuple(map(front_argument, kind.type.parts)), kind.type.make)
    return ArgType(kind.type if isinstance(kind.type, Descriptor) else Tile(kind.type), kind.divisibility)


class Job:
    """One compilation, which collects its stages and their times."""

    def __init__(self, request: Request):
        self.request, self.source, self.options, self.target = request, request.source, request.options, request.target
        self.progress = CompileProgress(self.source.name, str(self.target) if self.target.is_gpu else "CPU")
        self.stages: list[Stage] = []
        self.milliseconds: dict[str, float] = {}
        self.select = 1
        self.calls: tuple[HostCall, ...] = ()
        self.func: Func
        self.code: KernelCode
        self.text: str
        self.future: Future[Any]

    def trace(self) -> Trace:
        """The trace of the stages so far."""
        stages = tuple(self.stages)
        return self.request.trace(Stages(lambda: stages), self.milliseconds)

    def failed_trace(self) -> Trace:
        """The trace of a failed compilation: the stages that ran, and the LLVM text if they are complete."""
        trace = self.trace()
        if "text" in vars(self):
            trace.artifacts["llvm"] = self.text
        return trace

    def recreate_stages(self) -> tuple[Stage, ...]:
        """Runs the front end, the passes and code generation, but no worker, and returns the stages."""
        self.generate(self.front())  # adds a stage if it has notes
        return tuple(self.stages)

    def run(self) -> tuple[KernelCode, Trace]:
        """Compiles and waits for the result."""
        self.begin()
        return self.finish()

    def begin(self) -> None:
        """Generates the LLVM text in this process and passes it to a worker."""
        with self._locating_errors(), gc_pause.paused():
            self.func = self.front()
            self.progress.begin_stage("code generation")
            self.code, self.text = self.generate(self.func)
            self.progress.begin_stage("LLVM and ptxas" if self.target.is_gpu else "LLVM")
            self.future = self.assemble()

    @property
    def done(self) -> bool:
        """Whether the worker has finished."""
        return self.future.done()

    def finish(self) -> tuple[KernelCode, Trace]:
        """Waits for the worker. Returns the KernelCode and the trace with all artifacts."""
        with self._locating_errors():
            begin = time.perf_counter()
            result = llvm.shared().wait(self.future, self.progress.check)
            trace = self.assembled(result, (time.perf_counter() - begin) * 1e3)
        if self.request.edit is None:  # a pass may fail on IR that no pass makes
            failures.record(trace)
        return self.code, trace

    def abandon(self) -> None:
        """Stops the worker, if it is busy with this compilation."""
        llvm.shared().abandon(self.future)

    @contextlib.contextmanager
    def _locating_errors(self) -> Iterator[None]:
        """Adds the source location to errors, and the trace to a CompilerBug. Other exceptions become a CompilerBug.

        The kernel's definition is the location of an error that has none, for example if LLVM stops its process. An interrupt gets the
        trace, too."""
        try:
            yield
        except KeyboardInterrupt:
            raise CompilationInterrupted(self.source.name, self.progress.step, self.failed_trace()) from None
        except KernelError as error:
            error.loc = location_of_caller(error.loc)
            if isinstance(error, AssemblyError) and error.loc is None:
                error.loc = assembly_loc(self.func, error.line, error.column)
                if error.loc is None:  # the kernel has no inline assembly, so the compiler wrote the faulty one
                    raise CompilerBug(error.message, definition(self.source), trace=self.trace()) from error
            if error.loc is None:
                error.loc = definition(self.source)
            if error.triton and error.__cause__ is None and stands_for_triton():
                error.__cause__ = ValueError(error.triton)
            if error.trace is None and self.stages:
                error.trace = self.failed_trace()
            if isinstance(error, OutOfResources) and error.buffers:
                with forks.guard:
                    from blocknb.runtime.shared_memory_hints import explained

                error.hint = explained(error, error.trace.constants)
            raise
        except Exception as error:
            message = f"{type(error).__name__} while compiling {self.source.name} for {self.target}: {error}"
            hint = None if self.request.edit is None else after_edit(self.request.edit)
            raise CompilerBug(message, definition(self.source), hint, trace=self.trace()) from error

    def front(self) -> Func:
        """Runs the front end and the passes, which fill `stages` and `milliseconds`."""
        begin = time.perf_counter()
        attributes = {name: value for name, value in self.options.items() if name != "without" and value is not None}
        calls: list[HostCall] = []
        arguments = {name: front_argument(kind) for name, kind in self.request.kinds.items()}
        padded: set[Value] = set()
        func = parse(self.source, arguments, attributes, self.target, calls, padded=padded)
        notes = (*self._watch_calls(calls), *undefined_in_triton(func, padded))
        elapsed = (time.perf_counter() - begin) * 1e3
        doc = (parse.__doc__ or "").strip()
        func = self._add_stage(Stage("parse", doc.split("\n")[0], doc, func, func, notes, elapsed)).after
        try:
            self.progress.total = len(passes.pipeline(self.target))
            return passes.run(func, self.target, self.options["without"], self._add_stage, self.progress.begin_pass)[0]
        except passes.NotOptional as error:
            hint = similar(error.names, passes.optional()) or "the tab Passes of the card shows the names"
            raise LaunchError(str(error), definition(self.source), hint=hint) from None

    def _watch_calls(self, host_calls: Sequence[HostCall]) -> tuple[Note, ...]:
        """Keeps the host calls whose results may change while no dependency does, and returns notes about them."""
        if not (unknown := self.request.unknown):
            return ()
        names = ", ".join(f"`{name}`" for name in unknown[:3])
        text = f"the disk cache does not store this kernel, because another process cannot compare {names}; capture plain values instead"
        notes: dict[str, Loc | None] = {text: None}
        watched = []
        for call in host_calls:
            if why := call.unknown():
                watched.append(call)
                name = getattr(call.function, "__name__", type(call.function).__name__)
                text = f"each launch calls `{name}` again, because its result may change with `{why[0]}`"
                notes[text] = call.loc
        self.calls = tuple(watched)
        return tuple(Note(text, "parse", loc=loc, kind="missed") for text, loc in notes.items())

    def _add_stage(self, stage: Stage) -> Stage:
        """Adds a stage, with the edit of its IR if the request has one, and returns it."""
        edit = self.request.edit
        if edit is not None and edit.stage == stage.name:
            with forks.guard:
                from blocknb.runtime import stage_edit

            stage = stage_edit.apply(edit, stage)
        stage = replace(stage, resume=self._resumed(stage.name))
        self.stages.append(stage)
        self.milliseconds[stage.name] = stage.milliseconds
        return stage

    def _resumed(self, stage: str) -> Callable[[str], Any] | None:
        """The function that compiles on from another text of the IR after a stage; None for a source without a Kernel."""
        kernel = self.source.kernel
        return None if kernel is None else functools.partial(kernel.resume, self.request, stage)

    def generate(self, func: Func) -> tuple[KernelCode, str]:
        """Returns the KernelCode and the LLVM text of a function."""
        begin = time.perf_counter()
        stored, loaded = memory_use(self.stages[0].after)
        if self.request.edit is not None:  # the user may have added an access
            more_stored, more_loaded = memory_use(func)
            stored, loaded = stored | more_stored, loaded | more_loaded
        parameters = tuple((hint.name, value.type.dtype) for value, hint in zip(func.params, func.hints, strict=True))
        generate = self._generate_gpu if self.target.is_gpu else self._generate_cpu
        text, entry, fields, notes = generate(func)
        elapsed = self.milliseconds["codegen"] = (time.perf_counter() - begin) * 1e3
        if notes:  # its decisions are shown like those of a pass
            doc = (generate.__doc__ or "").strip()
            resumed = self._resumed(self.stages[-1].name)  # its IR is that of the last pass
            self.stages.append(Stage("codegen", doc, doc, func, func, notes, elapsed, resume=resumed))
        if (plan := plan_of(func)) is not None:
            fields["sites"] = (*fields["sites"], plan)
        return KernelCode(entry, parameters, stored, loaded, **fields), text

    def _generate_gpu(self, func: Func) -> tuple[str, str, dict[str, Any], tuple[Note, ...]]:
        """Writes LLVM text for one thread"""
        with forks.guard:
            from blocknb.codegen import gpu

        module = gpu.generate(func, self.target)
        if module.shared_bytes > self.target.max_shared:
            needs = f"needs {module.shared_bytes} bytes of shared memory per program, but {self.target} has {self.target.max_shared}"
            hint = "use smaller tiles or fewer num_stages"
            raise OutOfResources(f"{self.source.name} {needs}", definition(self.source), hint)
        fields: dict[str, Any] = {"threads": module.threads, "shared_bytes": module.shared_bytes}
        fields |= {
            "sites": module.sites,
            "reports": module.reports,
            "extents": module.extents,
            "programs": module.programs,
        }
        persistent = "paired" if module.cluster == 2 else "persistent"
        fields |= {"maps": module.maps, "warps": func.attrs["num_warps"]}
        fields["launch_kind"] = persistent if module.persistent else "dependent" if waits_first(func) else ""
        self.select = module.select
        return module.text, module.entry, fields, module.notes

    def _generate_cpu(self, func: Func) -> tuple[str, str, dict[str, Any], tuple[Note, ...]]:
        """Fuses tiles into vector loops and writes them as LLVM text"""
        with forks.guard:
            from blocknb.codegen import cpu
            from blocknb.codegen.cpu import redzones

        checked = self.options["checked"] is not False
        module = cpu.generate(func, self.target, checked, redzones=redzones.wanted())
        fields = {"scratch_bytes": module.scratch_bytes, "sites": tuple(module.sites), "may_loop": module.may_loop}
        return module.text, module.entry, fields, module.notes

    def assemble(self) -> Future[Any]:
        """Passes the text to a worker, which returns machine code."""
        if self.target.is_gpu:
            return llvm.compile_cuda(self.text, self.target, select=self.select, tool=self.request.ptxas())
        return llvm.compile_cpu(self.text, self.target)

    def assembled(self, result: Any, waited: float) -> Trace:
        """Returns the trace with the worker's artifacts, resources and times. `waited` is in milliseconds."""
        trace = self.trace()
        trace.artifacts["llvm"] = self.text
        if self.target.is_gpu:
            trace.artifacts["ptx"] = result.ptx
            if result.cubin is not None:
                trace.artifacts["cubin"] = result.cubin
            trace.resources = _gpu_resources(self.code, result)
        else:
            trace.artifacts["object"] = result.object
        for stage, milliseconds in result.ms.items():
            self.milliseconds["ptxas" if stage == "ptxas" else f"llvm {stage}"] = milliseconds
        # The rest is the start of the worker, if it was not running yet, and the transfer of text and code.
        self.milliseconds["worker"] = max(waited - sum(result.ms.values()), 0.0)
        return trace


def after_edit(edit: StageEdit) -> str:
    """The hint for a failure of the compiler after an edit, which may be the cause."""
    return (
        f"the IR after {edit.stage} was edited; undo changes of the text to find the one that the compiler cannot take"
    )


def assembly_loc(func: Func, line: int, column: int) -> Loc | None:
    """The location of the inline assembly at a line and column of the kernel, or else of the first inline assembly."""
    found = [op.loc for op in func.ops() if op.name == "asm" and op.loc]
    places = [(loc.outermost.line, loc.outermost.column + 1) for loc in found]
    return found[places.index((line, column))] if (line, column) in places else next(iter(found), None)


def location_of_caller(loc: Loc | None) -> Loc | None:
    """For a location in a library function that is written in the language, returns the location of the user's call."""
    while in_language(loc) and loc is not None and loc.caller is not None:
        loc = loc.caller
    return loc


def _gpu_resources(code: KernelCode, result: llvm.CudaCode) -> Resources:
    found = result.resources.get(code.entry)
    if found is None:
        return Resources(
            shared_bytes=code.shared_bytes, threads=code.threads, warnings=result.warnings, programs=code.programs
        )
    spills = found.spill_stores + found.spill_loads
    shared = code.shared_bytes + found.shared
    return Resources(found.registers, spills, found.stack, shared, code.threads, result.warnings, code.programs)
