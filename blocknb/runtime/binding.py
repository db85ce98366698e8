"""Bindings: which value of a call belongs to which parameter of a kernel, cached by the way of calling.

Every call `kernel[grid](x, y, n=3, BLOCK=8)` is made in the same way: two positional values, then `n` and `BLOCK`. A `Binding` assigns
each value of `(*args, *kwargs.values(), *defaults)` to a parameter and holds the launch plans for this way of calling. Creating a
Binding checks all names of the call and reports every error in one message.
"""

from __future__ import annotations

import functools
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from blocknb.errors import KernelError, LaunchError, Loc
from blocknb.frontend.source import MISSING, Parameter, Source
from blocknb.runtime.divisor_specialization import moduli

#: The launch options and their defaults. `checked` and `debug` are None for: as the device has it (see `passes.bounds_checks`); `num_warps`
#: and `num_stages` for: nobody names a number (see `passes.choose_num_warps` and `passes.support.stages`).
OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "num_warps": None,
        "num_stages": None,
        "checked": None,
        "debug": None,
        "fast_math": False,
        "without": (),
    }
)
#: Triton's further launch keywords, accepted so that kernels written there run; they change nothing here.
ACCEPTED = frozenset(
    {
        "num_ctas",
        "maxnreg",
        "enable_fp_fusion",
        "launch_cooperative_grid",
        "launch_pdl",
        "sanitize_overflow",
        "warmup",
        "interpret",
    }
)
#: What stands for an argument that a call does not give.
LEFT_OUT = object()
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(eq=False)
class Binding:
    """One way of calling the kernel of a source: `names` are the parameters or options in the order of the values, the first
    `positional` of which are given without their names, then `keywords`; `fixed` says which values are constants, `unspecialized`
    which are never taken for a constant 1 or a multiple of 16; `moduli` are the places of those
    by which the kernel takes remainders; `defaults` are the values of the parameters left out; `plans` are the
    launch plans by the kinds of the values, `fast_launches` how to see that a launch is like another one with the same plan and the same
    Python types (a FastLaunch; None after one launch, or where it cannot be seen)."""

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
        """What makes of a dict of every argument by name what the grid's function sees."""
        return arguments("the grid's function", self.source.name)

    def bound(self, values: tuple[Any, ...]) -> Arguments:
        """Every argument by name, for the grid's function."""
        return self.arguments(zip(self.names, values, strict=True))


class UnknownArgument(LaunchError, KeyError):
    """A function of the arguments asks for one that the launch does not have."""


class Arguments(dict[str, Any]):
    """The arguments of a launch by name, as the functions of grids and heuristics (`reader`) see them. A name that is not there is
    an error at the line that asks for it."""

    reader: str
    kernel: str

    def __missing__(self, name: Any) -> Any:
        message = f"{self.reader} asks for `{name}`, which is no argument of the kernel {self.kernel}"
        names = [n for n in self if n not in ("grid", "warmup")]
        hint = similar([str(name)], names) or f"its arguments are {', '.join(names)}"
        raise UnknownArgument(message, caller(), hint)


@functools.cache
def arguments(reader: str, kernel: str) -> type[Arguments]:
    """The class of Arguments for a reader and the kernel of that name, made once: to call it is quick."""
    return type("Arguments", (Arguments,), {"reader": reader, "kernel": kernel})


def _check_names(source: Source, positions: list[str], positional: int, keywords: tuple[str, ...]) -> None:
    """Raises LaunchError for too many values, for a value given twice, and for a keyword that no parameter has. `positions` are the
    parameters that may be given by position."""
    names, title = [p.name for p in source.parameters], f"the kernel {source.name}"
    if positional > len(positions):
        raise launch_error(
            source, None, f"{title} takes {len(positions)} arguments, and {positional} were given", _signature(source)
        )
    given = positions[:positional]
    if twice := [n for n in keywords if n in given]:
        raise launch_error(
            source, twice[0], f"{title} got two values for {quoted(twice)}", "pass it by position or by name, not both"
        )
    if unknown := [n for n in keywords if n not in names and n not in OPTIONS and n not in ACCEPTED]:
        raise launch_error(
            source,
            None,
            f"{title} has no parameter {quoted(unknown)}",
            similar(unknown, [*names, *OPTIONS]) or _signature(source),
        )


def bind(source: Source, unspecialized: frozenset[str], positional: int, keywords: tuple[str, ...]) -> Binding:
    """The Binding of a call with that many positional values and those keywords; raises LaunchError naming what is wrong."""
    parameters = source.parameters
    by_name = {p.name: p for p in parameters}
    title = f"the kernel {source.name}"
    positions = [p.name for p in parameters if not p.keyword_only]
    _check_names(source, positions, positional, keywords)
    given = positions[:positional]
    left_out = [p for p in parameters if p.name not in given and p.name not in keywords]
    if missing := [p.name for p in left_out if p.default is MISSING]:
        raise launch_error(
            source,
            missing[0],
            f"{title} misses the argument{'s' * (len(missing) > 1)} {quoted(missing)}",
            f"launch it as {_example(source)}",
        )
    order = (*given, *keywords, *(p.name for p in left_out))
    fixed = tuple(n not in by_name or by_name[n].constexpr for n in order)
    plain, defaults = tuple(n in unspecialized for n in order), tuple(p.default for p in left_out)
    wrapping = moduli(source)
    closely = tuple(i for i, n in enumerate(order) if n in wrapping and not fixed[i] and not plain[i])
    return Binding(source, positional, keywords, order, fixed, plain, closely, defaults)


def unspecialized_names(parameters: tuple[Parameter, ...], wanted: Any) -> frozenset[str]:
    """`do_not_specialize`: names or indices of parameters."""
    names = [p.name for p in parameters]
    return frozenset(names[w] if isinstance(w, int) else w for w in wanted or ())


def normal_grid(source: Source, grid: Any, bound: dict[str, Any]) -> tuple[int, int, int]:
    """The three sizes of a grid given as an int, up to three ints, or a function of the bound arguments."""
    if callable(grid):
        grid = grid(bound)
    sizes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    if not 1 <= len(sizes) <= 3:
        raise launch_error(
            source,
            None,
            f"the grid {sizes} has {len(sizes)} axes",
            "a grid has one to three axes; fold two of them into one and take them apart with // and %",
        )
    found = []
    for size in sizes:
        try:
            number = operator.index(size)
        except TypeError:
            hint = (
                "use blocknb.cdiv(n, BLOCK), which divides rounding up to an int"
                if isinstance(size, float)
                else "an int, a tuple of ints, or a function of the arguments that returns one"
            )
            raise launch_error(source, None, f"the grid holds {size!r}, which is no int", hint) from None
        if number < 0 or isinstance(size, bool):
            raise launch_error(
                source, None, f"the grid {sizes} holds {size!r}, which is no number of programs"
            ) from None
        found.append(number)
    return (*found, 1, 1)[:3]  # type: ignore[return-value]


def launch_error(source: Source, name: str | None, message: str, hint: str | None = None) -> LaunchError:
    """A LaunchError at a parameter (or at the def line), called from the line that launches."""
    return LaunchError(message, place(source, name), hint)


def place(source: Source, name: str | None = None) -> Loc:
    """The parameter's place (or the definition's), with the launching line as its caller."""
    found = definition(source)
    if name is not None and found.column + found.end_column:
        arguments = source.node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        parameter = re.split(r"[.\[]", name)[0]  # of an element of a tuple
        found = source.loc(next((a for a in every if a.arg == parameter), source.node))
    return replace(found, caller=caller())


def definition(source: Source) -> Loc:
    """The line of the `def`, below the decorators; the first line where the source cannot be read."""
    try:
        return source.loc(source.node)
    except KernelError:  # whatever is wrong with the source is told when it is compiled
        return source.loc()


def caller() -> Loc | None:
    """The line outside of blocknb that is being executed, with the columns of the expression."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return None
    positions = list(frame.f_code.co_positions())
    line, end_line, column, end_column = (
        positions[frame.f_lasti // 2] if frame.f_lasti // 2 < len(positions) else (frame.f_lineno, None, 0, None)
    )
    name = frame.f_code.co_name
    return Loc(
        frame.f_code.co_filename,
        line or frame.f_lineno,
        column or 0,
        end_line or 0,
        end_column or 0,
        "" if name == "<module>" else name,
    )


def quoted(names: list[str]) -> str:
    """Names for a message: `a`, `b` and `c`."""
    marked = [f"`{n}`" for n in names]
    return marked[0] if len(marked) == 1 else f"{', '.join(marked[:-1])} and {marked[-1]}"


def _signature(source: Source) -> str:
    return f"its parameters are {', '.join(p.name for p in source.parameters)}; the launch options {', '.join(OPTIONS)}"


def similar(unknown: list[str], names: list[str]) -> str | None:
    """The hint for a misspelled name."""
    import difflib

    close = difflib.get_close_matches(unknown[0], names, 1)
    return f"did you mean `{close[0]}`?" if close else None


def _example(source: Source) -> str:
    shown = [
        f"{p.name}=..." if p.constexpr or p.keyword_only else p.name for p in source.parameters if p.default is MISSING
    ]
    return f"{source.name}[grid]({', '.join(shown)})"


def check_options(source: Source, options: Mapping[str, Any]) -> None:
    """Raises LaunchError for an option whose value means nothing."""
    warps, stages = options["num_warps"], options["num_stages"]
    if warps is not None and (type(warps) is not int or warps not in (1, 2, 4, 8, 16, 32)):
        raise launch_error(source, None, f"num_warps is {warps!r}", "a program has 1, 2, 4, 8, 16 or 32 warps")
    for name in ("checked", "debug"):
        if options[name] not in (None, True, False):
            hint = f"{name} is True or False; left out, it is as the device has it"
            raise launch_error(source, None, f"{name} is {options[name]!r}", hint)
    if stages is not None and (not isinstance(stages, int) or not 0 <= stages <= 16):
        raise launch_error(source, None, f"num_stages is {stages!r}", "a loop has at most 16 stages")
