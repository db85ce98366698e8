"""One compilation: front end, passes, code generation, worker; from a Request to Code and a Trace.

Any error of ours on the way is a CompilerBug that carries the Trace up to where it broke.
"""

from __future__ import annotations

import contextlib
import difflib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from blocknb import forks, passes
from blocknb.codegen import llvm
from blocknb.errors import AssemblyError, CompilerBug, KernelError, LaunchError, Loc, OutOfResources
from blocknb.frontend.calls import in_language
from blocknb.frontend.dependencies import HostCall
from blocknb.frontend.parse import ArgType, Argument, Constant, TupleArgument, parse
from blocknb.ir.core import Func
from blocknb.language.types import Descriptor, Tile
from blocknb.runtime import failures
from blocknb.runtime.binding import definition
from blocknb.runtime.effects import memory_use
from blocknb.runtime.kinds import Kind, Tuple
from blocknb.runtime.request import KernelCode, Request
from blocknb.trace import Note, Resources, Stage, Trace


def front_argument(kind: Kind) -> Argument:
    """An argument of this Kind as the front end takes it."""
    if kind.type is None:
        return Constant(kind.constant[0])
    if isinstance(kind.type, Tuple):
        return TupleArgument(tuple(map(front_argument, kind.type.parts)), kind.type.make)
    return ArgType(kind.type if isinstance(kind.type, Descriptor) else Tile(kind.type), kind.divisibility)


class Job:
    """One compilation: the stages and times as they come."""

    def __init__(self, request: Request):
        self.request, self.source, self.options, self.target = request, request.source, request.options, request.target
        self.stages: list[Stage] = []
        self.milliseconds: dict[str, float] = {}
        self.select = 1
        self.calls: tuple[HostCall, ...] = ()
        self.func: Func
        self.code: KernelCode
        self.text: str
        self.future: Future[Any]

    def trace(self) -> Trace:
        """The trace of what has been done so far."""
        return self.request.trace(tuple(self.stages), self.milliseconds)

    def stages_again(self) -> tuple[Stage, ...]:
        """The stages alone: front end and passes, no worker."""
        self.generate(self.front())  # which may have notes
        return tuple(self.stages)

    def run(self) -> tuple[KernelCode, Trace]:
        """Compiles, and waits for it."""
        self.begin()
        return self.finish()

    def begin(self) -> None:
        """Does what this process does of it; afterwards a worker has the text."""
        with self._blamed():
            self.func = self.front()
            self.code, self.text = self.generate(self.func)
            self.future = self.assemble()

    @property
    def done(self) -> bool:
        """Whether `finish` need not wait."""
        return self.future.done()

    def finish(self) -> tuple[KernelCode, Trace]:
        """Waits for the worker; returns what a launch needs, and the trace with all artifacts."""
        with self._blamed():
            begin = time.perf_counter()
            made = llvm.shared().wait(self.future)
            trace = self.assembled(made, (time.perf_counter() - begin) * 1e3)
        failures.record(trace)
        return self.code, trace

    def abandon(self) -> None:
        """Stops the worker, if it is busy with this."""
        llvm.shared().abandon(self.future)

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        """Errors inside get their place, and those that are ours the trace so far."""
        try:
            yield
        except KernelError as error:
            error.loc = users_place(error.loc)
            if isinstance(error, AssemblyError) and error.loc is None:
                error.loc = assembly_loc(self.func, error.line, error.column)
                if error.loc is None:  # none of the kernel's: the assembly is ours, and so is the mistake
                    raise CompilerBug(error.message, definition(self.source), trace=self.trace()) from error
            if isinstance(error, CompilerBug) and error.trace is None:
                error.trace = self.trace()
            raise
        except Exception as error:
            message = f"{type(error).__name__} while compiling {self.source.name} for {self.target}: {error}"
            raise CompilerBug(message, definition(self.source), trace=self.trace()) from error

    def front(self) -> Func:
        """Front end and passes; fills `stages` and `milliseconds`."""
        begin = time.perf_counter()
        attributes = {name: value for name, value in self.options.items() if name != "without" and value is not None}
        made: list[HostCall] = []
        func = parse(self.source, self._front_arguments(), attributes, self.target, made)
        notes = self._ask_again(made)
        elapsed = (time.perf_counter() - begin) * 1e3
        doc = (parse.__doc__ or "").strip()
        self._done(Stage("parse", doc.split("\n")[0], doc, func, func, notes, elapsed))
        try:
            return passes.run(func, self.target, self.options["without"], self._done)[0]
        except ValueError as error:
            if "cannot switch off" not in str(error):
                raise
            unknown = sorted(set(self.options["without"]) - set(passes.optional()))
            near = difflib.get_close_matches(unknown[0], passes.optional(), 1)
            hint = f"did you mean {near[0]!r}?" if near else "name passes as the card's tab Passes does"
            raise LaunchError(str(error), definition(self.source), hint=hint) from None

    def _ask_again(self, made: Sequence[HostCall]) -> tuple[Note, ...]:
        """Keeps the calls whose results may change unseen, and says so."""
        if not (unknown := self.request.unknown):
            return ()
        names = ", ".join(f"`{name}`" for name in unknown[:3])
        notes: dict[str, Loc | None] = {
            f"not kept on disk: another process cannot tell whether {names} is the same": None
        }
        calls = []
        for call in made:
            if why := call.unknown():
                calls.append(call)
                name = getattr(call.function, "__name__", type(call.function).__name__)
                notes[f"`{name}` is called again at each launch, since its result may change with `{why[0]}`"] = (
                    call.loc
                )
        self.calls = tuple(calls)
        return tuple(Note(text, "parse", loc=loc, kind="missed") for text, loc in notes.items())

    def _done(self, stage: Stage) -> None:
        self.stages.append(stage)
        self.milliseconds[stage.name] = stage.milliseconds

    def _front_arguments(self) -> dict[str, Argument]:
        return {name: front_argument(kind) for name, kind in self.request.kinds.items()}

    def generate(self, func: Func) -> tuple[KernelCode, str]:
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
        return KernelCode(entry, parameters, stored, loaded, **more), text

    def _generate_gpu(self, func: Func) -> tuple[str, str, dict[str, Any], tuple[Note, ...]]:
        """Writes LLVM text for one thread"""
        with forks.guard:
            from blocknb.codegen import gpu

        made = gpu.generate(func, self.target)
        if made.shared_bytes > self.target.max_shared:
            needs = f"needs {made.shared_bytes} bytes of shared memory a program, and {self.target} has {self.target.max_shared}"
            hint = "smaller tiles, or fewer num_stages, need less"
            raise OutOfResources(f"{self.source.name} {needs}", definition(self.source), hint)
        more: dict[str, Any] = {"threads": made.threads, "shared_bytes": made.shared_bytes}
        more |= {"sites": made.sites, "reports": made.reports, "extents": made.extents, "programs": made.programs}
        more |= {"maps": made.maps, "persistent": made.persistent, "warps": func.attrs["num_warps"]}
        self.select = made.select
        return made.text, made.entry, more, made.notes

    def _generate_cpu(self, func: Func) -> tuple[str, str, dict[str, Any], tuple[Note, ...]]:
        """Fuses tiles into vector loops and writes them as LLVM text"""
        with forks.guard:
            from blocknb.codegen import cpu
            from blocknb.codegen.cpu import redzones

        checked = self.options["checked"] is not False
        made = cpu.generate(func, self.target, checked, redzones=redzones.wanted())
        more = {"scratch_bytes": made.scratch_bytes, "sites": tuple(made.sites), "may_loop": made.may_loop}
        return made.text, made.entry, more, made.notes

    def assemble(self) -> Future[Any]:
        """Has a worker turn the text into machine code."""
        if self.target.is_gpu:
            return llvm.compile_cuda(self.text, self.target, select=self.select, tool=self.request.ptxas())
        return llvm.compile_cpu(self.text, self.target)

    def assembled(self, made: Any, waited: float) -> Trace:
        """The trace with what the worker made: artifacts, resources and times. `waited` are milliseconds."""
        trace = self.trace()
        trace.artifacts["llvm"] = self.text
        if self.target.is_gpu:
            trace.artifacts["ptx"] = made.ptx
            if made.cubin is not None:
                trace.artifacts["cubin"] = made.cubin
            trace.resources = _gpu_resources(self.code, made)
        else:
            trace.artifacts["object"] = made.object
        for stage, milliseconds in made.ms.items():
            self.milliseconds["ptxas" if stage == "ptxas" else f"llvm {stage}"] = milliseconds
        # What is left is the worker's start, if it was not yet there, and the pipes.
        self.milliseconds["worker"] = max(waited - sum(made.ms.values()), 0.0)
        return trace


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


def _gpu_resources(code: KernelCode, made: llvm.CudaCode) -> Resources:
    found = made.resources.get(code.entry)
    if found is None:
        return Resources(
            shared_bytes=code.shared_bytes, threads=code.threads, warnings=made.warnings, programs=code.programs
        )
    spills = found.spill_stores + found.spill_loads
    shared = code.shared_bytes + found.shared
    return Resources(found.registers, spills, found.stack, shared, code.threads, made.warnings, code.programs)
