"""From a Python function to tile IR: `parse(source, arguments, options) -> Func`.

The front end runs the kernel's syntax with two kinds of values: what is known at compile time (constexpr parameters, literals, shapes,
dtypes) is computed by Python itself, and what is known at run time becomes ops. Calls of other kernels are inlined on the way. So the
result holds no trace of constants, branches on them, or calls; only straight ops and structured `for`, `while` and `if`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from blocknb.errors import TypeMismatch
from blocknb.frontend import dot, loops, returns, scaled, scans, statements  # noqa: F401 (they register their visitors)
from blocknb.frontend.dependencies import HostCall
from blocknb.frontend.descriptors import passed_descriptor
from blocknb.frontend.emitter import Emitter
from blocknb.frontend.scope import Frame, as_constant
from blocknb.frontend.source import MISSING, Source
from blocknb.ir.core import Block, Func, Hint, Value
from blocknb.language import types as t
from blocknb.language.types import BoolPointer, Descriptor, Tile
from blocknb.target import Target


@dataclass(frozen=True)
class ArgType:
    """A run-time argument: its scalar type, and a divisor of its value (of its address in bytes, for a pointer; of the size of the last
    axis, for a tensor descriptor)."""

    type: Tile | Descriptor
    divisibility: int = 1


@dataclass(frozen=True)
class Constant:
    """An argument that is known at compile time: a constexpr, None, or an integer equal to 1."""

    value: Any


@dataclass(frozen=True)
class TupleArgument:
    """A tuple of arguments; `make` gives what the kernel sees of it from what it sees of its elements."""

    parts: tuple[Argument, ...]
    make: Callable[[Iterable[Any]], tuple] = tuple


Argument = ArgType | Constant | TupleArgument


def parse(
    source: Source,
    arguments: Mapping[str, Argument],
    options: Mapping[str, Any] | None = None,
    target: Target | None = None,
    calls: list[HostCall] | None = None,
) -> Func:
    """Runs the kernel's Python on symbols: constants fold, the rest becomes tile IR

    Branches on constants keep the arm that is taken, static_range unrolls, calls of other kernels are inlined with their lines
    kept, and Triton's promotion and broadcasting become explicit casts, splats and broadcasts.

    `arguments` has an ArgType, a Constant or a TupleArgument for each parameter (those with defaults may be missing); `options` become
    the Func's attrs; `target` is what the kernel is told that it is compiled for; to `calls` each call of a
    host function is added. Raises SyntaxUnsupported or TypeMismatch, with the
    place in the source and a hint.
    """
    emit = Emitter(target, options)
    emit.calls = [] if calls is None else calls
    frame = Frame(source, emit)
    params: list[Value] = []
    for parameter in source.parameters:
        argument = arguments.get(parameter.name)
        if argument is None:
            if parameter.default is MISSING:
                raise TypeMismatch(
                    f"the argument `{parameter.name}` of `{source.name}` is missing",
                    source.loc(),
                    f"pass it: {parameter.name}=...",
                )
            argument = Constant(parameter.default)
        frame.names[parameter.name], parts = passed(parameter.name, argument)
        params.extend(parts)
        emit.promised.update(parts)
    try:
        frame.run(source.node.body)
    finally:  # what was printed before an error may explain it
        print(*emit.printed, sep="", end="")
    body = Block((), emit.finish())
    hints = [Hint(p.name, emit.promised[p], *emit.limits.get(p, (None, None))) for p in params]
    return Func(
        source.name,
        tuple(params),
        body,
        "tile",
        MappingProxyType(emit.options),
        tuple(hints),
        source.loc(source.node),
    )


def passed(name: str, argument: Argument) -> tuple[Any, dict[Value, int]]:
    """What an argument stands for in the kernel, and the parameters of the Func that it becomes, with their divisors."""
    if isinstance(argument, Constant):
        return as_constant(name, argument.value), {}
    if isinstance(argument, TupleArgument):
        found = [passed(f"{name}.{i}", part) for i, part in enumerate(argument.parts)]
        return argument.make(value for value, _ in found), {p: d for _, parts in found for p, d in parts.items()}
    if isinstance(argument.type, Descriptor):
        return passed_descriptor(name, argument.type, argument.divisibility)
    value = Value(parameter_type(argument.type), name)
    return value, {value: argument.divisibility}


def parameter_type(kind: Tile) -> Tile:
    """The IR type of a parameter: bools in memory are bytes."""
    return Tile(BoolPointer()) if kind.is_pointer and kind.dtype.element == t.int1 else kind
