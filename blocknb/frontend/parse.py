"""Translates a Python function to tile IR: `parse(source, arguments, options) -> Func`.

The front end executes the kernel's AST by partial evaluation, with two kinds of values. Python itself computes compile-time values
(constexpr parameters, literals, shapes, dtypes). Operations on run-time values become ops. The front end inlines calls of other
kernels. The result therefore has no branches on constants and no calls. It contains straight-line ops and structured `for`, `while`
and `if`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from blocknb.errors import TypeMismatch
from blocknb.frontend import (  # noqa: F401 (they register their visitors)
    dot,
    loops,
    python_functions,
    returns,
    scaled,
    scans,
    statements,
)
from blocknb.frontend.dependencies import HostCall
from blocknb.frontend.descriptors import passed_descriptor
from blocknb.frontend.emitter import Emitter
from blocknb.frontend.scope import Frame, as_constant
from blocknb.frontend.source import MISSING, Source
from blocknb.ir.core import Block, Func, Hint, Value, blocks
from blocknb.language import types as t
from blocknb.language.types import BoolPointer, Descriptor, Tile
from blocknb.target import Target


@dataclass(frozen=True)
class ArgType:
    """A run-time argument: its scalar type, and a divisor.

    The divisor divides the value of an integer, the address of a pointer in bytes, or the last size of a tensor descriptor.
    """

    type: Tile | Descriptor
    divisibility: int = 1


@dataclass(frozen=True)
class Constant:
    """An argument that is known at compile time: a constexpr, None, or an integer equal to 1."""

    value: Any


@dataclass(frozen=True)
class TupleArgument:
    """A tuple of arguments. `make` builds the kernel's value of the tuple from the values of its elements."""

    parts: tuple[Argument, ...]
    make: Callable[[Iterable[Any]], tuple] = tuple


Argument = ArgType | Constant | TupleArgument


def parse(
    source: Source,
    arguments: Mapping[str, Argument],
    options: Mapping[str, Any] | None = None,
    target: Target | None = None,
    calls: list[HostCall] | None = None,
    invoke: Callable[..., Any] | None = None,
    padded: set[Value] | None = None,
) -> Func:
    """Executes the kernel's Python symbolically: constants fold, the rest becomes tile IR

    Branches on constants keep one arm, static_range unrolls, and calls of other kernels are inlined with their own lines. Triton's
    promotion and broadcasting become explicit casts, splats and broadcasts.

    `arguments` has an ArgType, a Constant or a TupleArgument for each parameter (those with defaults may be missing); `options` become the
    Func's attrs. `target` is the target that queries in the kernel return. The parser appends each call of a host function to `calls`;
    `invoke(function, args, kwargs)` makes the calls, by default directly. Loads of tensor descriptors, and of block pointers with
    padding_option="zero", are 0 outside of their array by definition. The parser adds their results to `padded`. Raises SyntaxUnsupported
    or TypeMismatch, with the place in the source and a hint.
    """
    emit = Emitter(target, options)
    emit.calls = [] if calls is None else calls
    emit.invoke = invoke or emit.invoke
    emit.padded = set() if padded is None else padded
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
        frame.names[parameter.name], parts = passed(parameter.name, argument, parameter.const)
        params.extend(parts)
        emit.promised.update(parts)
    try:
        frame.run(source.node.body)
    finally:  # output of static_print may explain the error
        print(*emit.printed, sep="", end="")
    body = Block((), emit.finish())
    if any(parameter.const for parameter in source.parameters):
        _allow_stores(params, body)
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


def passed(name: str, argument: Argument, const: bool = False) -> tuple[Any, dict[Value, int]]:
    """The value of an argument in the kernel, and its parameters of the Func with their divisors.

    A store through a `const` one is an error.
    """
    if isinstance(argument, Constant):
        return as_constant(name, argument.value), {}
    if isinstance(argument, TupleArgument):
        found = [passed(f"{name}.{i}", part) for i, part in enumerate(argument.parts)]
        return argument.make(value for value, _ in found), {p: d for _, parts in found for p, d in parts.items()}
    if isinstance(argument.type, Descriptor):
        return passed_descriptor(name, argument.type, argument.divisibility)
    kind = parameter_type(argument.type)
    value = Value(kind.with_dtype(kind.dtype.as_const(True)) if const and kind.is_pointer else kind, name)
    return value, {value: argument.divisibility}


def parameter_type(kind: Tile) -> Tile:
    """The IR type of a parameter: bools in memory are bytes."""
    return Tile(BoolPointer()) if kind.is_pointer and kind.dtype.element == t.int1 else kind


def _allow_stores(params: Iterable[Value], body: Block) -> None:
    """Drops the mark of `tl.const` from the types of all pointers: the front end has found no store through them."""
    inner = (
        value
        for block in blocks(body)
        for op in block.ops
        for value in (*op.results, *(a for b in op.blocks for a in b.args))
    )
    for value in (*params, *inner):
        if isinstance(value.type, Tile) and value.type.is_pointer and value.type.dtype.const:
            value.type = value.type.with_dtype(value.type.dtype.as_const(False))
