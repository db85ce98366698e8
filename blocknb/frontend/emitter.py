"""Emits tile IR from Triton's loosely typed operands: constants, casts, broadcasts, arithmetic.

An operand is either a `Value` (known at run time, with a type) or a plain Python number (a literal or a constexpr, which is weak in
promotion). The functions here make operands agree, by Triton's rules, and emit the explicit `cast`, `splat`, `expand_dims` and
`broadcast` ops that the IR wants. Errors carry no place; whoever visits the syntax adds it.
"""

from __future__ import annotations

import math
import operator
from types import MappingProxyType
from typing import Any

from blocknb.errors import TypeMismatch
from blocknb.ir.build import Builder
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.language.types import DType, Pointer, Tile

NUMBERS = (bool, int, float)
ARITHMETIC = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "div",
    "%": "rem",
    "&": "and",
    "|": "or",
    "^": "xor",
    "<<": "shl",
    ">>": "shr",
}
PYTHON = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "**": operator.pow,
    "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift, "@": operator.matmul,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
COMPARISONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


class Mismatch(TypeMismatch):
    """A TypeMismatch that may name the argument of the call at fault, so that the carets go there."""

    title = TypeMismatch.title

    def __init__(self, message: str, hint: str | None = None, argument: str | None = None):
        super().__init__(message, hint=hint)
        self.argument = argument


class Emitter(Builder):
    """A Builder that remembers which values are constants, and that can take back what it emitted."""

    def __init__(self) -> None:
        super().__init__("parse")
        self.known: dict[Value, Any] = {}
        self.printed: list[str] = []
        self.promised: dict[Value, int] = {}  # parameters -> divisors that the kernel promises

    def mark(self) -> tuple[int, int, int]:
        return self.next_id, len(self._open[-1]), len(self.printed)

    def rewind(self, mark: tuple[int, int, int]) -> None:
        """Forgets everything emitted into the open block since the mark."""
        self.next_id, length, printed = mark
        del self._open[-1][length:]
        del self.printed[printed:]

    def maker(self, x: Value) -> Op | None:
        """The op of this block that made a value."""
        return next((op for op in reversed(self._open[-1]) if x in op.results), None)

    def promise(self, x: Value, name: str, values: tuple[int, ...]) -> None:
        """Keeps a promise of the author's about x: on the op that made it, if that stands in this very block (where the promise is
        made whenever the op runs), or on the parameter it is."""
        for i, made in enumerate(reversed(self._open[-1])):
            if made.results == (x,):
                self._open[-1][-1 - i] = made.replace(attrs=MappingProxyType({**made.attrs, name: values}))
                return
        if name == "multiple_of" and len(self._open) == 1 and x in self.promised:
            self.promised[x] = max(self.promised[x], values[0] & -values[0])

    # -- constants and conversions -------------------------------------------------------------------------------------

    def number(self, value: bool | int | float, dtype: DType, shape: tuple[int, ...] = ()) -> Value:
        """A constant of a dtype; floats are truncated for integers, integers must fit."""
        converted = convert_number(value, dtype)
        made = self.const(converted, Tile(dtype, shape))
        self.known[made] = converted
        return made

    def value(self, name: str, *args: Value, **attrs: Any) -> Value:
        return self.op(name, *args, **attrs).results[0]

    def runtime(self, x: Any) -> Value:
        """A Value for any operand: Python numbers take the dtype they have on their own."""
        if isinstance(x, Value):
            return x
        if isinstance(x, NUMBERS):
            return self.number(x, own_dtype(x))
        raise Mismatch(f"{describe(x)} is not a number or a tile")

    def constant(self, x: Any) -> Any:
        """The Python number behind an operand that is known while compiling; the operand itself otherwise."""
        return self.known.get(x, x) if isinstance(x, Value) and not x.type.shape else x

    def cast(self, x: Any, dtype: Any) -> Value:
        if not isinstance(x, Value):
            return self.number(x, dtype)
        if x.type.dtype == dtype:
            return x
        if x.type.is_pointer or isinstance(dtype, Pointer):
            return self._cast_pointer(x, dtype)
        if x in self.known:
            return self.number(self.known[x], dtype, x.type.shape)
        return self.value("cast", x, dtype=dtype)

    def _cast_pointer(self, x: Value, dtype: Any) -> Value:
        if isinstance(dtype, Pointer) and dtype.element == t.int1:
            dtype = t.BoolPointer()
        source = x.type.dtype
        if isinstance(dtype, Pointer) and isinstance(source, DType) and source.is_integer and source.bits < 64:
            x = self.value("cast", x, dtype=t.int64)
        elif not (
            x.type.is_pointer and (isinstance(dtype, Pointer) or dtype in (t.int64, t.uint64))
        ) and source not in (t.int64, t.uint64):
            raise Mismatch(f"{source} cannot become {dtype}", "pointers convert to int64 and to other pointers only")
        return self.value("bitcast", x, dtype=dtype)

    def broadcast(self, x: Value, shape: tuple[int, ...]) -> Value:
        """A tile of the given shape from a scalar, a tile of lower rank, or one with axes of size one."""
        have = x.type.shape
        if have == shape:
            return x
        if len(have) > len(shape) or any(n not in (1, m) for n, m in zip(have[::-1], shape[::-1], strict=False)):
            raise Mismatch(f"a tile of shape {have} does not broadcast to {shape}", _shape_hint(have, shape))
        check_size(shape)
        if x in self.known:
            return self.number(self.known[x], x.type.dtype, shape)
        if not have:
            return self.value("splat", x, shape=shape)
        for _ in range(len(shape) - len(have)):
            x = self.value("expand_dims", x, axis=0)
        return x if x.type.shape == shape else self.value("broadcast", x, shape=shape)

    def common_shape(self, *operands: Any) -> tuple[int, ...]:
        shape: tuple[int, ...] = ()
        for x in operands:
            if isinstance(x, Value) and x.type.shape != shape:
                try:
                    shape = t.broadcast_shapes(shape, x.type.shape)
                except ValueError as error:
                    raise Mismatch(
                        f"shapes {shape} and {x.type.shape} do not fit together ({error})",
                        _shape_hint(shape, x.type.shape),
                    ) from None
        return shape

    def agree(self, dtype: Any, *operands: Any) -> list[Value]:
        """All operands in one dtype and one shape. Casts come before broadcasts: they are cheaper there."""
        shape = self.common_shape(*operands)
        return [
            self.broadcast(self.cast(x, dtype), shape) if isinstance(x, Value) else self.number(x, dtype, shape)
            for x in operands
        ]

    # -- operators -----------------------------------------------------------------------------------------------------

    def binary(self, symbol: str, x: Any, y: Any) -> Any:
        """`x symbol y`, for any mixture of numbers, tiles and pointers."""
        if not isinstance(x, Value) and not isinstance(y, Value):
            return fold(symbol, x, y)
        check_operands(symbol, x, y)
        if is_pointer(x) or is_pointer(y):
            return self._pointer_arithmetic(symbol, x, y)
        if symbol not in ARITHMETIC:
            raise Mismatch(
                f"`{symbol}` works on constants only",
                "use tl.dot for matrices" if symbol == "@" else "write x * x, or tl.exp2(y * tl.log2(x))",
            )
        dtype = result_dtype(x, y, division=symbol in ("/", "//", "%"))
        if symbol == "/" and not dtype.is_float:
            dtype = t.float32
        a, b = self.agree(dtype, x, y)
        if symbol in ("&", "|", "^", "<<", ">>"):
            return self._bits(symbol, a, b)
        if dtype.kind == "bool":
            return self._bool_arithmetic(symbol, a, b)
        result = self.value(ARITHMETIC[symbol], a, b)
        return self.value("floor", result) if symbol == "//" and dtype.is_float else result

    def _bits(self, symbol: str, a: Value, b: Value) -> Value:
        if a.type.dtype.is_float:
            raise Mismatch(
                f"`{symbol}` works on integers and conditions, not on {a.type.dtype}",
                "convert with .to(tl.int32), or bitcast=True for the bits",
            )
        if symbol in ("<<", ">>") and a.type.dtype.kind == "bool":
            a, b = self.cast(a, t.int32), self.cast(b, t.int32)
        return self.value(ARITHMETIC[symbol], a, b)

    def _bool_arithmetic(self, symbol: str, a: Value, b: Value) -> Value:
        """Triton's i1 arithmetic is modulo 2: sum and difference are exclusive or, the product is and."""
        if symbol in ("+", "-", "*"):
            return self.value("and" if symbol == "*" else "xor", a, b)
        return self.value(ARITHMETIC[symbol], self.cast(a, t.int32), self.cast(b, t.int32))

    def _pointer_arithmetic(self, symbol: str, x: Any, y: Any) -> Value:
        pointer, offset = (x, y) if is_pointer(x) else (y, x)
        if symbol not in ("+", "-") or (symbol == "-" and pointer is y) or is_pointer(offset):
            raise Mismatch(
                f"`{symbol}` between {describe(x)} and {describe(y)}",
                "a pointer takes `+ integer` and `- integer` only",
            )
        dtype = offset.type.dtype if isinstance(offset, Value) else own_dtype(offset)
        if dtype.is_float:
            raise Mismatch(
                f"a pointer moves by whole elements, but the offset is {dtype}", "use // instead of /, or .to(tl.int32)"
            )
        if dtype.kind == "bool":
            dtype = t.int32
        if symbol == "-":
            dtype = t.int64 if dtype.kind == "uint" or dtype.bits < 32 else dtype
            offset = -int(offset) if not isinstance(offset, Value) else self.value("neg", self.cast(offset, dtype))
        shape = self.common_shape(pointer, offset)
        pointer = self.broadcast(pointer, shape)
        if not isinstance(offset, Value):
            return self.value("ptradd", pointer, self.number(offset, own_dtype(int(offset)), shape))
        return self.value("ptradd", pointer, self.broadcast(self.cast(offset, dtype), shape))

    def compare(self, symbol: str, x: Any, y: Any) -> Any:
        if not isinstance(x, Value) and not isinstance(y, Value):
            return fold(symbol, x, y)
        if symbol in ("==", "!=") and not (isinstance(x, (Value, *NUMBERS)) and isinstance(y, (Value, *NUMBERS))):
            return symbol == "!="  # a run-time value never equals None, a dtype or a string
        check_operands(symbol, x, y)
        if is_pointer(x) or is_pointer(y):
            x, y = (self.cast(v, t.int64) if isinstance(v, Value) else v for v in (x, y))
        a, b = self.agree(result_dtype(x, y), x, y)
        return self.value("cmp", a, b, pred=COMPARISONS[symbol])

    def truth(self, x: Any) -> Any:
        """x as a condition: a Python bool or an int1 Value."""
        if not isinstance(x, Value):
            return bool(x)
        if x.type.is_pointer:
            raise Mismatch("a pointer is not a condition", "compare with `is not None`")
        if x.type.dtype == t.int1:
            return x
        return self.value("cmp", x, self.number(0, x.type.dtype, x.type.shape), pred="ne")

    def unary(self, symbol: str, x: Any) -> Any:
        if not isinstance(x, Value):
            functions: dict[str, Any] = {
                "-": operator.neg,
                "+": operator.pos,
                "~": operator.invert,
                "not": operator.not_,
            }
            try:
                return functions[symbol](x)
            except TypeError:
                raise Mismatch(f"`{symbol}` does not take {describe(x)}") from None
        if symbol == "not":
            return self.value("not", self.truth(x))
        if x.type.is_pointer:
            raise Mismatch(f"`{symbol}` does not take a pointer")
        if symbol == "~":
            if x.type.dtype.is_float:
                raise Mismatch(f"`~` works on integers and conditions, not on {x.type.dtype}")
            return self.value("not", x)
        if symbol == "+":
            return x
        return self.value("neg", self.cast(x, t.int32) if x.type.dtype.kind == "bool" else x)


# -- rules that emit nothing -------------------------------------------------------------------------------------------------


def is_pointer(x: Any) -> bool:
    return isinstance(x, Value) and x.type.is_pointer


def own_dtype(x: bool | int | float) -> DType:
    try:
        return t.literal_dtype(x)
    except OverflowError as error:
        raise Mismatch(str(error)) from None


def convert_number(value: bool | int | float, dtype: DType) -> bool | int | float:
    """A Python number as the Python number a constant of the dtype holds."""
    if dtype.is_float:
        return float(value)
    if dtype.kind == "bool":
        return bool(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Mismatch(
                f"{value} cannot become {dtype}",
                "integers have no infinity; take the smallest or largest integer instead",
            )
        value = int(value)
    value = int(value) & ((1 << dtype.bits) - 1)
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def result_dtype(x: Any, y: Any, division: bool = False) -> DType:
    """The dtype in which `x op y` is computed: Triton's promotion, with Python numbers weak."""
    if isinstance(x, Value) and isinstance(y, Value):
        a, b = x.type.dtype, y.type.dtype
        dtype = t.promote(a, b)
        if dtype == t.bfloat16 and a != b and not (a.is_float and b.is_float):
            dtype = t.float32  # as Triton: bf16 stays only among its own
        if division and not dtype.is_float and (a.kind == "int") != (b.kind == "int"):
            raise Mismatch(
                f"division of {a} by {b}: one is signed, the other is not",
                "cast one of them, so that both are signed or both unsigned",
            )
    else:
        tile, literal = (x, y) if isinstance(x, Value) else (y, x)
        dtype = t.promote_literal(tile.type.dtype, literal)
        _check_literal(literal, dtype)
    return t.float32 if division and dtype in (t.float16, t.bfloat16) else dtype


def _check_literal(value: Any, dtype: DType) -> None:
    if dtype.is_float or dtype.kind == "bool":
        return
    low, high = (
        (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)
    )
    if not low <= value <= high:
        raise Mismatch(
            f"the number {value} does not fit in {dtype} (from {low} to {high})",
            "cast the tile to a wider dtype first, for example .to(tl.int32)",
        )


def check_operands(symbol: str, *operands: Any) -> None:
    for x in operands:
        if not isinstance(x, (Value, *NUMBERS)):
            other = next((y for y in operands if y is not x), x)
            raise Mismatch(
                f"`{symbol}` between {describe(other)} and {describe(x)}"
                if other is not x
                else f"`{symbol}` of {describe(x)}",
                _none_hint(x),
            )


def fold(symbol: str, x: Any, y: Any) -> Any:
    """`x symbol y` while compiling, as Python has it."""
    try:
        return PYTHON[symbol](x, y)
    except ZeroDivisionError:
        raise Mismatch(f"{x!r} {symbol} {y!r} divides by zero") from None
    except (TypeError, ValueError, OverflowError):
        raise Mismatch(f"`{symbol}` between {describe(x)} and {describe(y)}", _none_hint(x) or _none_hint(y)) from None


def _none_hint(x: Any) -> str | None:
    if x is None:
        return "it is None: guard the line with `if ... is not None:`"
    if hasattr(x, "__array__") or hasattr(x, "data_ptr"):
        return "arrays from outside must be arguments of the kernel; it sees them as pointers"
    return None


def describe(x: Any) -> str:
    """An operand in the user's own terms."""
    if isinstance(x, Value):
        kind = x.type
        what = repr(kind.dtype) if not kind.is_pointer else f"a pointer to {kind.dtype.element_ty}"
        return f"{what} of shape {kind.shape}" if kind.shape else what
    if x is None:
        return "None"
    if isinstance(x, tuple):
        return "a tuple"
    if isinstance(x, (*NUMBERS, str)):
        return f"the constant {x!r}"
    if callable(x) and hasattr(x, "__name__"):
        return f"the function `{x.__name__}`"
    if isinstance(x, (DType, Pointer)):
        return f"the dtype {x}"
    return f"a {type(x).__name__}"


def spelled(dtype: Any) -> str:
    """A dtype as one writes it in a kernel: tl.float32."""
    name = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}.get(getattr(dtype, "name", ""))
    return f"tl.{name or dtype}"


def check_size(shape: tuple[int, ...]) -> None:
    size = math.prod(shape)
    if size > t.MAX_TILE_ELEMENTS:
        raise Mismatch(
            f"a tile of shape {shape} has {size} elements; the most is {t.MAX_TILE_ELEMENTS}",
            "make the block smaller and loop over the blocks, or launch more programs",
        )


def _shape_hint(a: tuple[int, ...], b: tuple[int, ...]) -> str | None:
    if len(a) == len(b) == 1:
        return "to combine every element of one with every element of the other, write x[:, None] and y[None, :]"
    if len(a) != len(b) and a and b:
        return "add the missing axis by hand: x[:, None] makes a column, x[None, :] a row"
    return None
