"""Python's own functions in a kernel: `max`, `len`, `isinstance`, `hasattr`, `print` and the like.

On run-time values they emit ops or ask for types. On constants Python computes them.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from blocknb.frontend import debug, numeric, shapes
from blocknb.frontend.calls import PYTHON, call_python, contains_value, static_print
from blocknb.frontend.emitter import NUMBERS, Mismatch, describe
from blocknb.frontend.expressions import attribute, has_attribute
from blocknb.frontend.records import RecordValue
from blocknb.frontend.scope import HANDLERS, Frame
from blocknb.ir.core import Value
from blocknb.language import types as t
from blocknb.language.constants import constexpr


def _extremum(name: str) -> Callable:
    def handler(frame: Frame, *args: Any) -> Any:
        args = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
        if len(args) == 1 and isinstance(args[0], Value):
            return HANDLERS[name](frame, args[0])
        if not args:
            raise Mismatch(f"`{name}` has no arguments", f"pass a tile, or two values: {name}(a, b)")
        result = args[0]
        for x in args[1:]:
            if not isinstance(result, (Value, *NUMBERS)) or not isinstance(x, (Value, *NUMBERS)):
                raise Mismatch(f"`{name}` cannot compare {describe(result)} with {describe(x)}", "pass numbers")
            result = numeric.extremum(frame.emit, name, result, x)
        return result

    return handler


def _absolute(frame: Frame, x: Any) -> Any:
    return numeric.absolute(frame, x) if isinstance(x, Value) else abs(x)


def _convert(kind: type, dtype: t.DType) -> Callable:
    def handler(frame: Frame, x: Any = 0) -> Any:
        x = frame.emit.constant(x)
        return shapes.cast(frame, x, dtype) if isinstance(x, Value) else call_python(frame, kind, [x], {})

    return handler


def _length(frame: Frame, x: Any) -> int:
    if isinstance(x, Value):
        if not x.type.shape:
            raise Mismatch(f"{describe(x)} has no length", "pass the size as an argument: k[grid](x, ..., len(x))")
        return x.type.shape[0]
    return len(x) if isinstance(x, tuple) else call_python(frame, len, [x], {})


def _isinstance(frame: Frame, x: Any, kinds: Any) -> bool:
    """A run-time value is an instance of tl.tensor only. A constant is an instance of its own class and of tl.constexpr."""
    from blocknb import language

    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if isinstance(x, Value):
        return language.tensor in kinds
    if (t.block_type in kinds and isinstance(x, t.Tile) and x.shape) or (t.DType in kinds and isinstance(x, t.Pointer)):
        return True
    if isinstance(x, RecordValue):
        return any(getattr(language, name) in kinds for name in x.CLASSES)
    return constexpr in kinds or isinstance(x, tuple(k for k in kinds if isinstance(k, type)))


def _attribute(frame: Frame, x: Any, name: str, *default: Any) -> Any:
    if not isinstance(x, (Value, RecordValue)):
        return call_python(frame, getattr, [x, name, *default], {})
    return default[0] if default and not has_attribute(x, name) else attribute(frame, x, name)


def _has_attribute(frame: Frame, x: Any, name: str) -> bool:
    """For a run-time value: whether the language gives it this attribute or method."""
    return has_attribute(x, name) if isinstance(x, (Value, RecordValue)) else call_python(frame, hasattr, [x, name], {})


def _print(frame: Frame, *values: Any, **kwargs: Any) -> None:
    """Prints constants at compile time, and run-time values in the running kernel. The first argument may be a label."""
    if not any(map(contains_value, values)):
        static_print(frame, *values, **kwargs)
        return
    if unknown := sorted(kwargs.keys() - {"hex"}):
        raise Mismatch(
            f"`print` of run-time values takes no `{unknown[0]}`",
            "leave it out: the kernel prints each element on its own line",
        )
    labelled = isinstance(values[0], str)
    debug.device_print(frame, values[0] if labelled else "", *values[labelled:], **kwargs)


def _range(frame: Frame, *args: Any) -> Any:
    if any(map(contains_value, args)):
        raise Mismatch("use a range with run-time bounds only in `for ... in`")
    return call_python(frame, range, args, {})


def _tuple(frame: Frame, x: Any = ()) -> tuple:
    if isinstance(x, Value):
        raise Mismatch(f"{describe(x)} is not a sequence", "write the elements out: (a, b)")
    return x if isinstance(x, tuple) else call_python(frame, tuple, [x], {})


PYTHON.update(
    {
        builtins.min: _extremum("min"),
        builtins.max: _extremum("max"),
        builtins.abs: _absolute,
        builtins.int: _convert(int, t.int32),
        builtins.float: _convert(float, t.float32),
        builtins.bool: _convert(bool, t.int1),
        builtins.len: _length,
        builtins.isinstance: _isinstance,
        builtins.getattr: _attribute,
        builtins.hasattr: _has_attribute,
        builtins.print: _print,
        builtins.range: _range,
        builtins.tuple: _tuple,
        builtins.list: _tuple,
    }
)
