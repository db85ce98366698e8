"""Bindings: which value of a call belongs to which parameter of a kernel. A kernel keeps one for each form of call.

All calls `kernel[grid](x, y, n=3, BLOCK=8)` have one form: two positional values, then `n` and `BLOCK`. A `Binding` assigns each value of
`(*args, *kwargs.values(), *defaults)` to a parameter and holds the launch plans for this form of call. The creation of a Binding checks
all names of the call, and its error names all wrong ones.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from blocknb.errors import ImpossibleNumWarps, KernelError, LaunchError, Loc
from blocknb.frontend.source import MISSING, Parameter, Source
from blocknb.language.check_modes import NAMES, parse_checks
from blocknb.runtime.divisor_specialization import moduli
from blocknb.trace import Note

#: The launch options and their defaults. The compiler decides where the default is None. `checked` and `debug` follow from the device (see
#: `passes.bounds_checks`). `num_warps` and `num_stages` follow from the kernel (see `passes.choose_num_warps`, `passes.pipelining.stages`).
#: `num_ctas` has an effect only if it is 2 (see `passes.pipelining.multicast`).
OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "num_warps": None,
        "num_stages": None,
        "num_ctas": None,
        "maxnreg": None,
        "checked": None,
        "debug": None,
        "fast_math": False,
        "without": (),
    }
)
#: Other launch keywords of Triton, which have no effect.
ACCEPTED = frozenset(("enable_fp_fusion", "launch_cooperative_grid", "launch_pdl"))
ACCEPTED |= {"sanitize_overflow", "warmup", "interpret"}
#: Options of Triton's back end for AMD, which tutorials and configurations of autotuners pass. The targets here ignore them.
AMD = frozenset(
    (
        "matrix_instr_nonkdim",
        "waves_per_eu",
        "kpack",
        "schedule_hint",
        "allow_flush_denorm",
        "instruction_sched_variant",
    )
)
ACCEPTED |= AMD
#: Replaces an argument that a call leaves out.
LEFT_OUT = object()
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(eq=False)
class Binding:
    """One form of call of a kernel.

    `names`: the parameters or options, in the order of the values. The first `positional` values have no keyword; the `keywords` follow.
    `fixed`: which values are constants. `unspecialized`: which values are not specialized on 1 or on multiples of 16. `moduli`: the
    indices of the values by which the kernel takes remainders. `defaults`: the values of parameters that the call leaves out. `plans`:
    the launch plans, by the Kinds of the values. `fast_launches`: a FastLaunch by plan and types of the values; None after one launch.
    `attempts`: the functions of recent fast launches, for calls that the newest one does not recognise."""

    source: Source
    positional: int
    keywords: tuple[str, ...]
    names: tuple[str, ...]
    fixed: tuple[bool, ...]
    unspecialized: tuple[bool, ...]
    moduli: tuple[int, ...]
    defaults: tuple[Any, ...]
    plans: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    fast_launches: dict[Any, Any] = field(default_factory=dict)
    attempts: tuple[Callable[..., Any], ...] = ()

    @functools.cached_property
    def arguments(self) -> type[Arguments]:
        """The class of the mapping that a grid function receives."""
        return arguments("the grid's function", self.source.name)

    def bound(self, values: tuple[Any, ...]) -> Arguments:
        """Returns every argument by name, for the grid function."""
        return self.arguments(zip(self.names, values, strict=True))


class UnknownArgument(LaunchError, KeyError):
    """A function of the launch's arguments reads a name that is not an argument."""


class Arguments(dict[str, Any]):
    """The arguments of a launch by name, for a grid function or a heuristic (`reader`). Raises UnknownArgument for other names."""

    reader: str
    kernel: str

    def __missing__(self, name: Any) -> Any:
        message = f"{self.reader} asks for `{name}`, which is not an argument of the kernel {self.kernel}"
        names = [n for n in self if n not in ("grid", "warmup")]
        hint = similar([str(name)], names) or f"its arguments are {', '.join(names)}"
        raise UnknownArgument(message, caller(), hint)


@functools.cache
def arguments(reader: str, kernel: str) -> type[Arguments]:
    """The class of Arguments for a reader and a kernel. It is cached, because launches need it."""
    return type("Arguments", (Arguments,), {"reader": reader, "kernel": kernel})


def _check_names(source: Source, positions: list[str], positional: int, keywords: tuple[str, ...]) -> None:
    """Raises LaunchError for too many values, two values of one parameter, or an unknown keyword. `positions` are the names of parameters
    that are not keyword-only."""
    names, title = [p.name for p in source.parameters], f"the kernel {source.name}"
    if positional > len(positions):
        message = f"{title} takes {len(positions)} arguments, and {positional} were given"
        raise launch_error(source, None, message, _signature(source))
    given = positions[:positional]
    if twice := [n for n in keywords if n in given]:
        hint = "pass it by position or by name, not both"
        raise launch_error(source, twice[0], f"{title} got two values for {quoted(twice)}", hint)
    if unknown := [n for n in keywords if n not in names and n not in OPTIONS and n not in ACCEPTED]:
        hint = similar(unknown, [*names, *OPTIONS]) or _signature(source)
        raise launch_error(source, None, f"{title} has no parameter {quoted(unknown)}", hint)


def bind(source: Source, do_not_specialize: frozenset[str], positional: int, keywords: tuple[str, ...]) -> Binding:
    """Returns the Binding of a call with this number of positional values and these keywords. Raises LaunchError for wrong names."""
    parameters = source.parameters
    by_name = {p.name: p for p in parameters}
    positions = [p.name for p in parameters if not p.keyword_only]
    _check_names(source, positions, positional, keywords)
    given = positions[:positional]
    left_out = [p for p in parameters if p.name not in given and p.name not in keywords]
    if missing := [p.name for p in left_out if p.default is MISSING]:
        message = f"the kernel {source.name} misses the argument{'s' * (len(missing) > 1)} {quoted(missing)}"
        raise launch_error(source, missing[0], message, f"launch it as {_example(source)}")
    order = (*given, *keywords, *(p.name for p in left_out))
    fixed = tuple(n not in by_name or by_name[n].constexpr for n in order)
    unspecialized, defaults = tuple(n in do_not_specialize for n in order), tuple(p.default for p in left_out)
    divisors = moduli(source)
    places = tuple(i for i, n in enumerate(order) if n in divisors and not fixed[i] and not unspecialized[i])
    return Binding(source, positional, keywords, order, fixed, unspecialized, places, defaults)


def ignored_options(binding: Binding) -> Note | None:
    """The note about keywords of a call that mean something to Triton's back end for AMD only."""
    if not (names := sorted(AMD.intersection(binding.keywords))):
        return None
    return Note(f"{quoted(names)}: options of Triton's back end for AMD GPUs, without effect here", "launch")


def unspecialized_names(parameters: tuple[Parameter, ...], wanted: Any) -> frozenset[str]:
    """The names of the parameters in `do_not_specialize`, which holds names or indices."""
    names = [p.name for p in parameters]
    return frozenset(names[w] if isinstance(w, int) else w for w in wanted or ())


def without_left_out(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of a call without those that are LEFT_OUT."""
    if all(value is not LEFT_OUT for value in (*args, *kwargs.values())):
        return args, kwargs
    given = tuple(value for value in args if value is not LEFT_OUT)
    return given, {name: value for name, value in kwargs.items() if value is not LEFT_OUT}


def normal_grid(source: Source, grid: Any, bound: dict[str, Any]) -> tuple[int, int, int]:
    """The three sizes of a grid, which is an int, up to three ints, or a function of the bound arguments."""
    if callable(grid):
        try:
            grid = grid(bound)
        except TypeError as error:
            _refuse_uncallable(source, error)
            raise
    sizes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    if not 1 <= len(sizes) <= 3:
        hint = "a grid has one to three axes; fold two of them into one and separate them with // and % in the kernel"
        raise launch_error(source, None, f"the grid {sizes} has {len(sizes)} axes", hint)
    found = []
    for size in sizes:
        try:
            number = operator.index(size)
        except TypeError:
            hint = "pass an int, a tuple of ints, or a function of the arguments that returns one"
            if isinstance(size, float):
                hint = "use blocknb.cdiv(n, BLOCK), which divides rounding up to an int"
            raise launch_error(source, None, f"the grid holds {size!r}, which is not an int", hint) from None
        if number < 0 or isinstance(size, bool):
            raise launch_error(source, None, f"the grid {sizes} holds {size!r}, which is not a number of programs")
        found.append(number)
    return (*found, 1, 1)[:3]  # type: ignore[return-value]


def _refuse_uncallable(source: Source, error: TypeError) -> None:
    """Raises LaunchError if a grid's function does not take one argument. An error inside the function is none of that."""
    if error.__traceback__ is not None and error.__traceback__.tb_next is None:
        hint = "it takes one argument, those of the launch by name: lambda meta: (blocknb.cdiv(n, meta['BLOCK']),)"
        raise launch_error(source, None, f"the grid's function cannot be called: {error}", hint) from None


def launch_error(source: Source, name: str | None, message: str, hint: str | None = None) -> LaunchError:
    """Returns a LaunchError at a parameter or, without a name, at the `def` line. The launching line is its caller."""
    return LaunchError(message, place(source, name), hint)


def place(source: Source, name: str | None = None) -> Loc:
    """The location of a parameter or, without a name, of the `def` line. The launching line is its caller."""
    found = definition(source)
    if name is not None and found.column + found.end_column:
        arguments = source.node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        parameter = re.split(r"[.\[]", name)[0]  # the name may be that of an element of a tuple
        found = source.loc(next((a for a in every if a.arg == parameter), source.node))
    return replace(found, caller=caller())


def definition(source: Source) -> Loc:
    """The location of the `def` line, or of the first line if the source cannot be parsed."""
    try:
        return source.loc(source.node)
    except KernelError:  # the compilation reports errors of the source
        return source.loc()


def caller() -> Loc | None:
    """The location of the expression outside blocknb that is being executed."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return None
    code, unknown = frame.f_code, (None, None, None, None)
    position = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), unknown)
    line, end_line, column, end_column = (number or 0 for number in position)
    function = "" if code.co_name == "<module>" else code.co_name
    return Loc(code.co_filename, line or frame.f_lineno, column, end_line, end_column, function)


def quoted(names: list[str]) -> str:
    """Names for a message: `a`, `b` and `c`."""
    marked = [f"`{n}`" for n in names]
    return marked[0] if len(marked) == 1 else f"{', '.join(marked[:-1])} and {marked[-1]}"


def _signature(source: Source) -> str:
    return f"its parameters are {', '.join(p.name for p in source.parameters)}; the launch options {', '.join(OPTIONS)}"


def similar(unknown: Sequence[str], names: Sequence[str]) -> str | None:
    """The hint for a misspelled name, or None if no name is similar."""
    import difflib

    close = difflib.get_close_matches(unknown[0], names, 1)
    return f"did you mean `{close[0]}`?" if close else None


def _example(source: Source) -> str:
    shown = [
        f"{p.name}=..." if p.constexpr or p.keyword_only else p.name for p in source.parameters if p.default is MISSING
    ]
    return f"{source.name}[grid]({', '.join(shown)})"


def check_options(source: Source, options: Mapping[str, Any]) -> None:
    """Raises LaunchError for an option with an invalid value."""
    warps, stages = options["num_warps"], options["num_stages"]
    if warps is not None and (type(warps) is not int or warps not in (1, 2, 4, 8, 16, 32)):
        hint = "a program has 1, 2, 4, 8, 16 or 32 warps"
        error = ImpossibleNumWarps(f"num_warps is {warps!r}", place(source), hint)
        raise error.in_triton("num_warps must be a power of 2")
    most = options["maxnreg"]
    if most is not None and (type(most) is not int or most < 1):
        raise launch_error(source, None, f"maxnreg is {most!r}", "it is the most registers per thread, or None")
    if options["debug"] not in (None, True, False, "trap"):
        hint = 'debug is True, False, "trap", or None for the default of the device'
        raise launch_error(source, None, f"debug is {options['debug']!r}", hint)
    try:
        parse_checks(options["checked"])
    except ValueError as error:
        hint = f"checked is True, False, None for the default of the device, or some of {', '.join(NAMES)} in a string"
        raise launch_error(source, None, str(error), hint) from None
    if stages is not None and (not isinstance(stages, int) or not 0 <= stages <= 16):
        raise launch_error(source, None, f"num_stages is {stages!r}", "a loop has at most 16 stages")


def switched_off(given: Any) -> tuple[str, ...]:
    """The names of the passes in `without=`, sorted. Raises LaunchError if it is no name and no collection of names."""
    try:
        return tuple(sorted({given} if isinstance(given, str) else set(given)))
    except TypeError:
        hint = "write without='coalesce' or without=('coalesce', 'simplify')"
        raise LaunchError(f"without= takes names of passes, not {given!r}", hint=hint) from None


def interpret_options(given: Any) -> Mapping[str, Any]:
    """The options of a launch's `interpret=`, which is a dict or a condition. Raises LaunchError for an unknown one."""
    options = given if isinstance(given, dict) else {}
    if unknown := [name for name in options if name not in ("programs", "program", "watch", "record")]:
        raise LaunchError(f"interpret= has no option {unknown[0]!r}", hint="write programs, program, watch or record")
    return options
