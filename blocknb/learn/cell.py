"""The learner's cell: runs its source, finds the kernel in it, and matches the kernel's parameters with the arguments of an exercise.

Names are free. An argument goes to the parameter of its name; the others go to the remaining parameters in their order.
"""

from __future__ import annotations

import ast
import itertools
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from blocknb.errors import KernelError
from blocknb.frontend.source import MISSING, Parameter
from blocknb.learn.exercise import Exercise, listed
from blocknb.runtime.kernel import Kernel

_NUMBERS = itertools.count(1)
IMPORTS = "import numpy as np, blocknb, blocknb.language as tl\n"


class WrongCell(Exception):
    """The cell holds no answer that can run. The text is one sentence; `line` is 1-based, or None."""

    def __init__(self, text: str, line: int | None = None):
        super().__init__(text)
        self.text, self.line = text, line


@dataclass(frozen=True, eq=False)
class Answer:
    """The kernel of a cell, as a new Kernel of the same function, and the names that its cell sees."""

    kernel: Any
    names: Mapping[str, Any]

    @property
    def base(self) -> Kernel:
        """The kernel below an autotuner."""
        found = self.kernel
        while not isinstance(found, Kernel):
            found = found.fn
        return found

    def defaults(self) -> dict[str, Any]:
        """The default values of the kernel's parameters."""
        return {p.name: p.default for p in self.base.source.parameters if p.default is not MISSING}


def answer_of(exercise: Exercise, given: Any, own: bool = False) -> Answer:
    """The answer in a kernel or in the source of a cell. `own`: with the kernel of the cell itself, not a copy. Raises WrongCell."""
    if isinstance(given, str):
        given = kernel_in(exercise, run(given, exercise.setup, exercise.name))
    if given is None:
        raise WrongCell("the cell defines no kernel: write @blocknb.kernel above `def`")
    if isinstance(given, FunctionType):
        raise WrongCell(f"`{given.__name__}` is a Python function: write @blocknb.kernel above `def`")
    if not is_kernel(given):
        raise WrongCell(f"the answer is a {type(given).__name__}, not a kernel: write @blocknb.kernel above `def`")
    base = Answer(given, {}).base
    names = base.source.function.__globals__
    found = Answer(given, names)
    if given is base and not own:  # a new one, so that nothing that the cell set on the kernel counts
        options = {name: value for name, value in base.options.items() if value is not None}
        found = Answer(Kernel(base.fn, **options), names)
    for line in blanks_left(base):
        raise WrongCell("`...` is still there: replace it", line)
    return found


def is_kernel(value: Any) -> bool:
    """Whether a value is a kernel, or an autotuner of one."""
    for _ in range(4):
        if isinstance(value, Kernel):
            return True
        if not type(value).__module__.startswith("blocknb.tune"):
            return False
        value = value.fn
    return False


def run(source: str, setup: str, name: str) -> dict[str, Any]:
    """Runs a cell and returns its names. Raises WrongCell for an error."""
    file = f"<{name}, answer {next(_NUMBERS)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names: dict[str, Any] = {"__name__": "__main__", "__file__": file}
    exec(IMPORTS + setup, names)
    try:
        exec(compile(source, file, "exec"), names)
    except SyntaxError as error:
        raise WrongCell(f"the cell is not Python: {error.msg}", error.lineno) from None
    except KernelError as error:
        raise WrongCell(error.message, line_of(error.loc)) from None
    except Exception as error:
        raise WrongCell(f"the cell raises {type(error).__name__}: {error}", _line_in(error, file)) from None
    return names


def kernel_in(exercise: Exercise, names: Mapping[str, Any]) -> Any:
    """The answer among the names of a cell: the kernel called like the exercise, else `kernel`, else the last one."""
    file = names.get("__file__")
    found = {
        name: value
        for name, value in names.items()
        if is_kernel(value) and Answer(value, names).base.fn.__code__.co_filename == file
    }
    for name in (exercise.name.rsplit("-", 1)[0].replace("-", "_"), "kernel"):
        if name in found:
            return found[name]
    if found:
        return max(found.values(), key=lambda value: Answer(value, names).base.fn.__code__.co_firstlineno)
    functions = [
        value for value in names.values() if isinstance(value, FunctionType) and value.__code__.co_filename == file
    ]
    return functions[-1] if functions else None


def blanks_left(kernel: Kernel) -> Iterator[int]:
    """The lines of a kernel that still hold the `...` of a skeleton, outside of subscripts."""
    inside = {
        id(inner)
        for node in ast.walk(kernel.source.node)
        if isinstance(node, ast.Subscript)
        for inner in ast.walk(node)
    }
    for node in ast.walk(kernel.source.node):
        if isinstance(node, ast.Constant) and node.value is ... and id(node) not in inside:
            yield node.lineno


def matching(answer: Answer, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The name of the argument for each of the kernel's parameters. Raises WrongCell if they do not fit."""
    parameters = answer.base.source.parameters
    found = {p.name: p.name for p in parameters if p.name in arguments}
    rest = [name for name in arguments if name not in found]
    free = [p for p in parameters if p.name not in found]
    needed = [p for p in free if _needed(answer, p)]
    arrays = [name for name in rest if isinstance(arguments[name], np.ndarray)]
    open_ = free if len(rest) >= len(free) else needed
    pairs = list(zip(open_, rest, strict=False))
    fits = len(open_) == len(rest) and not any(p.constexpr and name in arrays for p, name in pairs)
    if not fits and (needed or arrays):
        raise WrongCell(_signature(answer, arguments), answer.base.fn.__code__.co_firstlineno)
    return found | ({p.name: name for p, name in pairs} if fits else {})


def _needed(answer: Answer, parameter: Parameter) -> bool:
    """Whether a launch must give a parameter. An autotuner or heuristics choose constants."""
    chosen = answer.kernel is not answer.base and parameter.constexpr
    return parameter.default is MISSING and not chosen


def matched(answer: Answer, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the kernel's parameters. Raises WrongCell if they do not fit."""
    return {parameter: arguments[name] for parameter, name in matching(answer, arguments).items()}


def _signature(answer: Answer, arguments: Mapping[str, Any]) -> str:
    own = listed([p.name for p in answer.base.source.parameters]) or "no parameters"
    return f"the kernel takes {own}, and the exercise passes {listed(list(arguments))}: take these parameters in this order"


def line_of(loc: Any) -> int | None:
    """The line of an error in the launched kernel."""
    return loc.outermost.line if loc is not None else None


def _line_in(error: BaseException, file: str) -> int | None:
    """The last line of a file in the traceback of an error."""
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
