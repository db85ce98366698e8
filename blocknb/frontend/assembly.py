"""Inline PTX: the builtin `inline_asm_elementwise`."""

from __future__ import annotations

from typing import Any

from blocknb.frontend.emitter import Mismatch, describe
from blocknb.frontend.scope import Frame, emits
from blocknb.frontend.shapes import constant_int, dtype_of, flag, tile_of
from blocknb.ir.core import Value
from blocknb.language import assembly
from blocknb.language.types import Pointer


def _text(frame: Frame, x: Any, argument: str) -> str:
    x = frame.emit.constant(x)
    if isinstance(x, Value) or not isinstance(x, str):
        raise Mismatch(f"`{argument}` must be a string known at compile time, not {describe(x)}", None, argument)
    return x


@emits("inline_asm_elementwise")
def inline_asm_elementwise(
    frame: Frame, asm: Any, constraints: Any, args: Any, dtype: Any, is_pure: Any, pack: Any
) -> Any:
    emit = frame.emit
    text, constraints = _text(frame, asm, "asm"), _text(frame, constraints, "constraints")
    dtypes = tuple(dtype_of(d) for d in (dtype if isinstance(dtype, tuple) else (dtype,)))
    if not dtypes or any(isinstance(d, Pointer) for d in dtypes):
        raise Mismatch("inline assembly cannot return a pointer", "return tl.int64, and cast it to a pointer", "dtype")
    pack = constant_int(frame, pack, "pack")
    if pack < 1:
        raise Mismatch(f"`pack` must be a positive number of elements, not {pack}", None, "pack")
    tiles = [tile_of(frame, x, "args") for x in (args if isinstance(args, tuple) else (args,))]
    shape = emit.common_shape(*tiles)
    numbers = [n if isinstance(n := emit.constant(x), int) else None for x in tiles]
    pure = flag(frame, is_pure, "is_pure")
    try:
        text, constraints, left = assembly.immediates(text, constraints, [x.type.dtype for x in tiles], numbers, pack)
        tiles = [emit.broadcast(tiles[i], shape) for i in left]
        attrs = {"text": text, "constraints": constraints, "dtypes": dtypes, "pure": pure}
        results = emit.op("asm", *tiles, **attrs, pack=pack).results
    except assembly.InvalidAssembly as error:
        raise Mismatch(str(error), error.hint, error.argument) from None
    return results if isinstance(dtype, tuple) else results[0]
