"""The builtins `device_print` and `device_assert`. `print` and `assert` on run-time values become these."""

from __future__ import annotations

from typing import Any

from blocknb.errors import Unsupported
from blocknb.frontend.emitter import NUMBERS, Mismatch, describe
from blocknb.frontend.scope import Frame, emits
from blocknb.frontend.shapes import flag
from blocknb.ir.core import Value
from blocknb.language import types as t


def _text(frame: Frame, x: Any, name: str, argument: str, example: str) -> str:
    """A string that is known at compile time."""
    x = frame.emit.constant(x)
    if not isinstance(x, str):
        raise Mismatch(
            f"the {argument} of `{name}` must be a string known at compile time, not {describe(x)}", example, argument
        )
    return x


def _refuse_on_elements(frame: Frame, name: str) -> None:
    if frame.emit.elements:
        raise Unsupported(
            f"`{name}` is not supported in a function on elements, because the order and the number of its calls are undefined",
            hint="use it outside, on the operands or on the result of the reduction, scan or map",
        )


@emits("device_print")
def device_print(frame: Frame, prefix: Any, *args: Any, hex: Any = False) -> None:
    _refuse_on_elements(frame, "device_print")
    text = _text(frame, prefix, "device_print", "prefix", 'put a label first: tl.device_print("x", x)')
    values: list[Value] = []
    for x in args:
        for element in x if isinstance(x, tuple) else (x,):
            if not isinstance(element, (Value, *NUMBERS)):
                raise Mismatch(
                    f"`device_print` prints numbers and tiles, not {describe(element)}",
                    "write one call per label; use tl.static_print for compile-time values",
                    "args",
                )
            values.append(frame.emit.runtime(element))
    frame.emit.op("print", *values, prefix=text, hex=flag(frame, hex, "hex"))


@emits("device_assert")
def device_assert(frame: Frame, cond: Any, msg: Any = "", mask: Any = None) -> None:
    _refuse_on_elements(frame, "device_assert")
    emit = frame.emit
    text = _text(frame, msg, "device_assert", "msg", 'write tl.device_assert(x > 0, "x must be positive")')
    holds = emit.constant(cond)
    if not isinstance(holds, (Value, *NUMBERS)):
        raise Mismatch(f"`device_assert` needs a condition, not {describe(holds)}", None, "cond")
    holds, mask = emit.truth(holds), emit.constant(mask)
    if holds is True or mask is False:
        return
    if not isinstance(holds, Value):
        holds = emit.number(False, t.int1)
    if mask is not None and mask is not True:
        if not isinstance(mask, Value) or mask.type.dtype != t.int1:
            raise Mismatch(f"the mask must be a condition, not {describe(mask)}", "compare: mask=offsets < n", "mask")
        holds = emit.value("or", *emit.agree(t.int1, holds, emit.value("not", mask)))
    emit.op("assert", holds, message=text)
