"""`blocknb compile FILE[:KERNEL] NAME=VALUE ...`: compiles a kernel without a launch, and prints the IR after passes or the code.

The options follow LLVM's `opt`. `--print-after` writes the IR after a pass to stderr as soon as the pass ends, so it is there even if a
later pass fails. `--stop-after` ends the compilation and writes that IR to stdout. `--edit` continues from a text, such as one that
`--stop-after` has written.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blocknb import passes
from blocknb.errors import KernelError, LaunchError
from blocknb.ir.core import Func
from blocknb.ir.reader import close_to
from blocknb.ir.text import print_func
from blocknb.runtime import compile as compiler
from blocknb.runtime.compile import Compiled
from blocknb.runtime.job import Job
from blocknb.runtime.kernel import Kernel
from blocknb.runtime.plan import parse_type, typed
from blocknb.runtime.request import Request, StageEdit
from blocknb.target import Target
from blocknb.testing import captured
from blocknb.testing.captured import CapturedLaunch
from blocknb.trace import Stage

FRONT_END = "parse"
_TYPE_LIKE = re.compile(r"\*.*|[a-z]+\d+\w*(:.*)?")  # also misspelled types, such as *fp33 and i31


class UsageProblem(Exception):
    """The command line names something that does not exist. The message says what does."""


@dataclass(frozen=True)
class CompileOptions:
    """`kernel` is FILE or FILE:KERNEL; `arguments` are texts NAME=VALUE; `target` "" is that of the launch, or sm_90a.

    `edit` is PASS=FILE or "". `emit` is ir, llvm, ptx, sass, assembly, or "" for machine code as text.
    """

    kernel: str
    arguments: Sequence[str] = ()
    target: str = ""
    without: Sequence[str] = ()
    print_after: Sequence[str] = ()
    stop_after: str = ""
    edit: str = ""
    emit: str = ""
    locs: bool = False


class Stopped(BaseException):
    """The compilation has reached the pass after which it stops. It is no error, which a compilation would report as its own."""


class PrintingJob(Job):
    """A compilation that prints the IR after some passes, and may stop after one of them."""

    def __init__(self, request: Request, options: CompileOptions):
        super().__init__(request)
        self.order = stage_names(request.target)
        self.print_after, self.stop_after, self.locs = options.print_after, options.stop_after, options.locs

    def lowered(self) -> Func:
        """The IR after the last pass, or after the one at which the compilation stops."""
        try:
            with self._locating_errors():
                return self.front()
        except Stopped:
            return self.stages[-1].after

    def _add_stage(self, stage: Stage) -> Stage:
        last = self.order.index(self.stop_after) if self.stop_after else len(self.order)
        if self.order.index(stage.name) > last:
            print(f"the pass {self.stop_after} does not apply to this kernel", file=sys.stderr)
            raise Stopped
        stage = super()._add_stage(stage)
        if stage.name in self.print_after:
            self._print(stage, "")
        elif "all" in self.print_after:
            self._print(stage, "" if stage.changed or stage.name == FRONT_END else " (no change)")
        if self.order.index(stage.name) == last:
            raise Stopped
        return stage

    def _print(self, stage: Stage, why_not: str) -> None:
        print(f"// -----// IR after {stage.name}{why_not} //----- //", file=sys.stderr)
        if not why_not:
            print(print_func(stage.after, locs=self.locs), file=sys.stderr)


def run(options: CompileOptions) -> int:
    """Runs the command. Returns 1 if the kernel does not compile, and 2 for a wrong command line."""
    try:
        print(_output(options), end="")
    except UsageProblem as problem:
        print(problem, file=sys.stderr)
        return 2
    except KernelError as error:
        if isinstance(error, LaunchError) and error.loc is not None:
            error.loc = replace(error.loc, caller=None)  # this command, not a line of the user's, is the caller
        print(error.render(), file=sys.stderr)
        return 1
    return 0


def _output(options: CompileOptions) -> str:
    request = requested(options)
    known = stage_names(request.target)
    for name in (*options.print_after, *filter(None, [options.stop_after])):
        if name not in (*known, "all"):
            hint = close_to(name, known) or f"the passes are {', '.join(known)}"
            raise UsageProblem(f"{request.target} has no pass {name}; {hint}")
    job = PrintingJob(request, options)
    func = job.lowered()
    emit = options.emit or ("ir" if options.stop_after else "ptx" if request.target.is_gpu else "assembly")
    if emit == "ir":
        return print_func(func, locs=options.locs)
    if emit == "llvm":
        return job.generate(func)[1]
    compiled = compiler.compile(request.source, request.kinds, request.options, request.target, request.edit)
    return _code(compiled, emit)


def _code(compiled: Compiled, emit: str) -> str:
    trace = compiled.trace
    if emit == "sass" and trace.sass is not None:
        return "".join(f"{line.text}\n" for line in trace.sass.lines)
    text = {"ptx": trace.ptx, "assembly": trace.assembly}.get(emit)
    if text is None:
        raise UsageProblem(
            f"there is no {emit} for {trace.target}; a GPU has ptx and (with nvdisasm) sass, a CPU has assembly"
        )
    return text if text.endswith("\n") else text + "\n"


def stage_names(target: Target) -> tuple[str, ...]:
    """The names of the front end and of every pass of a target, in order."""
    return (FRONT_END, *(found.name for found in passes.pipeline(target)))


def requested(options: CompileOptions) -> Request:
    """The compilation that a command line asks for. Without arguments, the file is run, and its first launch gives them."""
    file, name = _parts(options.kernel)
    edit = None
    if options.edit:
        stage, _, path = options.edit.partition("=")
        if not path or not Path(path).is_file():
            raise UsageProblem(f"--edit takes PASS=FILE, and {options.edit!r} names no file with IR")
        edit = StageEdit(stage, Path(path).read_text(encoding="utf-8"))
    source, kinds, given, target = (
        _of_types(file, name, options) if options.arguments else _of_launch(file, name, options)
    )
    if edit is not None and edit.stage not in stage_names(target):
        raise UsageProblem(f"{target} has no pass {edit.stage}; {close_to(edit.stage, stage_names(target))}")
    return Request(source, kinds, given, target, edit)


def _parts(text: str) -> tuple[str, str]:
    """FILE and KERNEL of FILE[:KERNEL]."""
    file, _, name = text.rpartition(":")
    if not file or not name.isidentifier():
        file, name = text, ""
    if not Path(file).is_file():
        raise UsageProblem(f"there is no file {file}")
    return file, name


def _of_types(file: str, name: str, options: CompileOptions) -> tuple[Any, ...]:
    space = runpy.run_path(file, run_name="blocknb_compile")
    kernels = {key: found for key, value in space.items() if (found := _unwrapped(value)) is not None}
    if name not in kernels and (name or len(kernels) != 1):
        which = ", ".join(kernels) or "none"
        raise UsageProblem(f"{file} has {'no kernel ' + name if name else 'several kernels'}; its kernels are: {which}")
    kernel = kernels[name or next(iter(kernels))]
    given: dict[str, Any] = {}
    for text in options.arguments:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageProblem(f"{text!r} is no NAME=VALUE, such as x='*fp32:16' or BLOCK=1024")
        given[key] = _value(value)
    target = Target.parse(options.target or "sm_90a")
    binding, values = kernel.bound_call((), given)
    for parameter, value, fixed in zip(binding.names, values, binding.fixed, strict=True):
        if isinstance(value, str) and not fixed and _TYPE_LIKE.fullmatch(value) and parse_type(value) is None:
            raise UsageProblem(
                f"{parameter}={value} is no type; write *fp32 for a pointer, *fp32:16 for one to a multiple of 16 bytes, or i32"
            )
    kinds, _ = kernel.describe(binding, tuple(map(typed, values, binding.fixed)))
    return (kernel.source, *kernel._compile_arguments(binding, kinds, target, options.without or None), target)


def _unwrapped(value: Any) -> Kernel | None:
    """The kernel behind an autotuner or heuristics; None for another object."""
    while not isinstance(value, Kernel) and type(value).__module__.startswith("blocknb.") and hasattr(value, "fn"):
        value = value.fn
    return value if isinstance(value, Kernel) else None


def _value(text: str) -> Any:
    """A Python literal, or the text itself: a type text, or a constant text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _of_launch(file: str, name: str, options: CompileOptions) -> tuple[Any, ...]:
    found: list[Compiled] = []

    def take(launch: CapturedLaunch) -> None:
        if not found and name in ("", launch.compiled.name):
            found.append(launch.compiled)

    captured.run_script(file, take, lambda text: print(text, file=sys.stderr))
    if not found:
        example = "x='*fp32:16' n=i32 BLOCK=1024"
        raise UsageProblem(
            f"{file} launches no kernel{name and f' {name}'}; give the types of its arguments, such as {example}"
        )
    compiled = found[0]
    target = Target.parse(options.target) if options.target else compiled.target
    given = {**compiled.options} | ({"without": tuple(sorted(options.without))} if options.without else {})
    return compiled.source, compiled.kinds, given, target
