"""One compilation: front end, passes, code generation, worker; from a Request to a Compiled.

Any error of ours on the way is a CompilerBug that carries the Trace up to where it broke.
"""

from __future__ import annotations

import time
from typing import Any

from blocknb import passes
from blocknb.codegen import llvm
from blocknb.errors import AssemblyError, CompilerBug, KernelError, LaunchError, Loc, OutOfResources
from blocknb.frontend.calls import in_language
from blocknb.frontend.parse import ArgType, Argument, Constant, Group, parse
from blocknb.ir.core import Func
from blocknb.language.types import Descriptor, Tile
from blocknb.runtime.arguments import Kind, Tuple
from blocknb.runtime.binding import definition
from blocknb.runtime.compile import Code, Compiled, Request
from blocknb.runtime.effects import memory_use
from blocknb.trace import Note, Resources, Stage, Trace


def front_argument(kind: Kind) -> Argument:
    """An argument of this Kind as the front end takes it."""
    if kind.type is None:
        return Constant(kind.constant[0])
    if isinstance(kind.type, Tuple):
        return Group(tuple(map(front_argument, kind.type.parts)), kind.type.make)
    return ArgType(kind.type if isinstance(kind.type, Descriptor) else Tile(kind.type), kind.divisibility)


class Job:
    """One compilation: the stages and times as they come."""

    def __init__(self, request: Request):
        self.request, self.source, self.options, self.target = request, request.source, request.options, request.target
        self.stages: list[Stage] = []
        self.milliseconds: dict[str, float] = {}
        self.select = 1

    def trace(self) -> Trace:
        """The trace of what has been done so far."""
        return self.request.trace(tuple(self.stages), self.milliseconds)

    def stages_again(self) -> tuple[Stage, ...]:
        """The stages alone: front end and passes, no worker."""
        self.generate(self.front())  # which may have notes
        return tuple(self.stages)

    def run(self) -> Compiled:
        """Compiles, and stores the result on disk."""
        try:
            func = self.front()
            code, text = self.generate(func)
            trace = self.trace()
            trace.artifacts["llvm"] = text
            self.assemble(code, text, trace)
        except KernelError as error:
            error.loc = users_place(error.loc)
            if isinstance(error, AssemblyError) and error.loc is None:
                error.loc = assembly_loc(func, error.line, error.column)
                if error.loc is None:  # none of the kernel's: the assembly is ours, and so is the mistake
                    trace = self.trace()
                    raise CompilerBug(error.message, definition(self.source), trace=trace) from error
            if isinstance(error, CompilerBug) and error.trace is None:
                error.trace = self.trace()
            raise
        except Exception as error:
            message = f"{type(error).__name__} while compiling {self.source.name} for {self.target}: {error}"
            raise CompilerBug(message, definition(self.source), trace=self.trace()) from error
        self.request.to_disk(code, trace)
        return self.request.compiled(code, trace)

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
        return {name: front_argument(kind) for name, kind in self.request.kinds.items()}

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
            job = llvm.compile_cuda(text, self.target, select=self.select, tool=self.request.ptxas(), workers=workers)
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


def _gpu_resources(code: Code, made: llvm.CudaCode) -> Resources:
    found = made.resources.get(code.entry)
    if found is None:
        return Resources(shared_bytes=code.shared_bytes, threads=code.threads, warnings=made.warnings)
    spills = found.spill_stores + found.spill_loads
    return Resources(
        found.registers, spills, found.stack, code.shared_bytes + found.shared, code.threads, made.warnings
    )
