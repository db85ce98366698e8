"""Emits tile IR from Triton's loosely typed operands: constants, casts, broadcasts, arithmetic.

An operand is either a run-time `Value` with a type, or a plain Python number (a literal or a constexpr), which is weak in promotion. The
functions here convert operands to a common type by Triton's rules. They emit the explicit `cast`, `splat`, `expand_dims` and `broadcast`
ops that the IR requires. Errors have no place; the visitor of the syntax node adds it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from blocknb.frontend import float8
from blocknb.frontend.constants import Mismatch, convert_number, held, own_dtype, saturated
from blocknb.frontend.dependencies import HostCall
from blocknb.frontend.description import ValueCheck
from blocknb.frontend.promotion import in_triton, incompatible, invalid_operands, refuse_float8, result_dtype
from blocknb.frontend.records import RecordValue
from blocknb.ir.build import Builder
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.language.check_modes import parse_checks
from blocknb.language.float8 import FORMATS
from blocknb.language.ops import OPS
from blocknb.language.types import DType, Pointer, Tile
from blocknb.target import Target

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


class Emitter(Builder):
    """A Builder that remembers which values are constants, and that can roll back emitted ops."""

    def __init__(self, target: Target | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().__init__("parse")
        self.target, self.options = target, dict(options or {})  # the target that the kernel may query
        self.known: dict[Value, Any] = {}
        self.calls: list[HostCall] = []
        self.invoke: Callable[..., Any] = lambda function, args, kwargs: function(*args, **kwargs)
        self.printed: list[str] = []
        self.padded: set[Value] = set()  # results of loads that are 0 outside of their array by definition
        self.elements = 0  # nesting depth of functions on elements (of a reduction, a scan or a map)
        self.promised: dict[Value, int] = {}  # parameters -> divisors that the kernel promises
        self.limits: dict[
            Value, tuple[int | None, int | None]
        ] = {}  # parameters -> the least and the most that it promises
        self.counters: dict[Value, int] = {}  # indices of open loops -> divisors promised of them
        self.runs: Callable[..., Any] | None = (
            None  # (frame, source, args, kwargs): set if helpers run instead of being visited
        )
        self._places: dict[Value, tuple[list[Op], int]] = {}  # value -> the block it was made in, and where

    def host(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls a host function and records its result, which becomes a constant in the generated code."""
        result = self.invoke(function, args, kwargs)
        self.calls.append(HostCall(function, tuple(args), kwargs, ValueCheck.of(result), self.loc))
        return result

    @property
    def depth(self) -> int:
        """The number of open blocks."""
        return len(self._open)

    def mark(self) -> tuple[int, int, int]:
        return self.next_id, len(self._open[-1]), len(self.printed)

    def rewind(self, mark: tuple[int, int, int]) -> None:
        """Removes all ops that were emitted into the open block since the mark."""
        self.next_id, length, printed = mark
        del self._open[-1][length:]
        del self.printed[printed:]

    def drop_unused(self, results: Sequence[Any]) -> None:
        """Removes the pure ops of the open block that no other op uses and that are not among the results."""
        ops, used, kept = self._open[-1], set(map(id, results)), []
        if any(op.blocks for op in ops):
            return
        for op in reversed(ops):
            if not OPS[op.name].pure or any(id(x) in used for x in op.results):
                used.update(map(id, op.args))
                kept.append(op)
        ops[:] = reversed(kept)

    def append(self, op: Op) -> Op:
        ops = self._open[-1]
        self._places.update((value, (ops, len(ops))) for value in op.results)
        return super().append(op)

    def _place(self, x: Value) -> int | None:
        """The index in the open block of the op that defines a value."""
        ops, at = self._places.get(x, (None, 0))
        return at if ops is self._open[-1] and at < len(ops) and x in ops[at].results else None

    def definition(self, x: Value) -> Op | None:
        """The op of this block that defines a value."""
        at = self._place(x)
        return None if at is None else self._open[-1][at]

    def promise(self, x: Value, **promises: Any) -> bool:
        """Attaches a promise of the author about x to the op that defines it, to the parameter, or to the loop with this index.

        The op must be in the open block, because there the promise holds whenever the op runs. Returns False if no place exists.
        """
        at, ops = self._place(x), self._open[-1]
        if at is not None and ops[at].results == (x,):
            attrs = {**ops[at].attrs, **joined(ops[at].attrs, promises)}
            ops[at] = ops[at].replace(attrs=MappingProxyType(attrs))
            return True
        divisor = promises.get("multiple_of", (1,))[0]
        if x in self.counters and len(promises) == 1 and "multiple_of" in promises:
            self.counters[x] = max(self.counters[x], divisor & -divisor)
            return True
        if len(self._open) > 1 or x not in self.promised:
            return False
        self.promised[x] = max(self.promised[x], divisor & -divisor)
        found = joined(dict(zip(("least", "most"), self.limits.get(x, (None, None)), strict=True)), promises)
        self.limits[x] = found.get("least"), found.get("most")
        return True

    def tests_hints(self, x: Value) -> bool:
        """Whether a hint about x is tested where it stands, as in checked launches. Otherwise the compiler relies on it."""
        return bool(parse_checks(self.options.get("checked"))) and not self.elements

    # -- constants and conversions -------------------------------------------------------------------------------------

    def number(self, value: bool | int | float, dtype: DType, shape: tuple[int, ...] = ()) -> Value:
        """A constant of a dtype; floats are truncated for integers, integers must fit."""
        converted = convert_number(value, dtype)
        bits = FORMATS[dtype.name].pattern(converted) if dtype == t.float8e4b15 else converted
        made = self.const(bits, Tile(dtype, shape))
        self.known[made] = held(converted, dtype)
        return made

    def value(self, name: str, *args: Value, **attrs: Any) -> Value:
        return self.op(name, *args, **attrs).results[0]

    def runtime(self, x: Any) -> Value:
        """A Value for any operand. Python numbers take their default dtype."""
        if isinstance(x, Value):
            return x
        if isinstance(x, NUMBERS):
            return self.number(x, own_dtype(x))
        raise Mismatch(f"{describe(x)} is not a number or a tile")

    def constant(self, x: Any) -> Any:
        """The Python number of an operand that is known at compile time; otherwise the operand itself."""
        return self.known.get(x, x) if isinstance(x, Value) and not x.type.shape else x

    def cast(self, x: Any, dtype: Any) -> Value:
        if not isinstance(x, Value):
            return self.number(x, dtype)
        if x.type.dtype == dtype:
            return x
        if x.type.is_pointer or isinstance(dtype, Pointer):
            return self._cast_pointer(x, dtype)
        if x in self.known:
            number = self.known[x]
            whole = dtype.kind in ("int", "uint") and isinstance(number, float)
            return self.number(saturated(number, dtype) if whole else number, dtype, x.type.shape)
        if t.float8e4b15 in (x.type.dtype, dtype):
            return float8.convert(self, x, dtype)
        return self.value("cast", x, dtype=dtype)

    def widened(self, x: Any) -> Any:
        """Converts fp8 to fp16, which holds every number of every fp8 format. Returns other dtypes unchanged."""
        return self.cast(x, t.float16) if isinstance(x, Value) and x.type.dtype.is_fp8() else x

    def _cast_pointer(self, x: Value, dtype: Any) -> Value:
        if isinstance(dtype, Pointer) and dtype.element == t.int1:
            dtype = t.BoolPointer()
        if isinstance(dtype, Pointer):
            dtype = dtype.as_const(False)  # as a cast in C, it drops the mark
        source = x.type.dtype
        if isinstance(dtype, Pointer) and isinstance(source, DType) and source.is_integer and source.bits < 64:
            x = self.value("cast", x, dtype=t.int64)
        elif not (
            x.type.is_pointer and (isinstance(dtype, Pointer) or dtype in (t.int64, t.uint64))
        ) and source not in (t.int64, t.uint64):
            raise Mismatch(
                f"{describe(x)} cannot become {describe(dtype)}",
                "load the numbers first: tl.load(pointer); the address itself converts to int64 and to other pointers"
                if x.type.is_pointer
                else "addresses are integers of 64 bits",
            )
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
                    ).in_triton(incompatible(shape, x.type.shape)) from None
        return shape

    def agree(self, dtype: Any, *operands: Any) -> list[Value]:
        """Converts all operands to one dtype and one shape. Casts precede broadcasts, because they are cheaper on the smaller tile."""
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
            hint = (
                "write tl.dot(x, y)"
                if symbol == "@"
                else "write x * x for a square, or tl.exp2(y * tl.log2(x)) for a positive x"
            )
            raise Mismatch(f"`{symbol}` works on constants only", hint)
        dtype = result_dtype(x, y, division=symbol in ("/", "//", "%"))
        if symbol in ("//", "%") and not dtype.is_float and type(y) is int and y == 0:
            raise Mismatch(f"{describe(x)} {symbol} 0 divides by zero")
        refuse_float8(f"`{symbol}`", dtype)
        for v in (x, y) if symbol == "//" else ():
            refuse_float8("`//`", v.type.dtype if isinstance(v, Value) else dtype)
        if symbol == "/" and not dtype.is_float:
            dtype = t.float32
        a, b = self.agree(dtype, x, y)
        if symbol in ("&", "|", "^", "<<", ">>"):
            return self._bits(symbol, a, b, x)
        if dtype.kind == "bool":
            return self._bool_arithmetic(symbol, a, b)
        if symbol == "//" and dtype.is_float:  # 6.0 // 3.0 is 2, so the quotient may not be an approximation from below
            return self.value("floor", self.value("div", a, b, nearest=True))
        return self.value(ARITHMETIC[symbol], a, b)

    def _bits(self, symbol: str, a: Value, b: Value, left: Any) -> Value:
        if symbol == ">>" and a.type.dtype.kind == "uint" and isinstance(left, Value) and left.type.dtype.kind == "int":
            return self._arithmetic_shift(a, b)
        if a.type.dtype.is_float:
            raise Mismatch(
                f"`{symbol}` works on integers and conditions, not on {a.type.dtype}",
                "convert with .to(tl.int32), or bitcast=True for the bits",
            ).in_triton(invalid_operands(a, b))
        if symbol in ("<<", ">>") and a.type.dtype.kind == "bool":
            found = self.value(ARITHMETIC[symbol], self.cast(a, t.int32), self.cast(b, t.int32))
            return self.truth(self.value("and", found, self.number(1, t.int32, found.type.shape)))
        return self.value(ARITHMETIC[symbol], a, b)

    def _arithmetic_shift(self, a: Value, b: Value) -> Value:
        """`a >> b` of unsigned values where a was signed: Triton chooses the shift by the dtype of the left operand."""
        unsigned = a.type.dtype
        signed = t.integer_dtype(unsigned.bits, signed=True)
        return self.cast(self.value("shr", self.cast(a, signed), self.cast(b, signed)), unsigned)

    def _bool_arithmetic(self, symbol: str, a: Value, b: Value) -> Value:
        """Triton's i1 arithmetic is modulo 2, with results of int1: sum and difference are exclusive or, the product is and."""
        if symbol in ("+", "-", "*"):
            return self.value("and" if symbol == "*" else "xor", a, b)
        return self.truth(self.value(ARITHMETIC[symbol], self.cast(a, t.int32), self.cast(b, t.int32)))

    def _pointer_arithmetic(self, symbol: str, x: Any, y: Any) -> Value:
        pointer, offset = (x, y) if is_pointer(x) else (y, x)
        if symbol not in ("+", "-") or (symbol == "-" and pointer is y) or is_pointer(offset):
            raise Mismatch(
                f"`{symbol}` cannot combine {describe(x)} and {describe(y)}",
                "pointers support only `+ integer` and `- integer`; to compute with the numbers, load first: tl.load(pointer)",
            ).in_triton(invalid_operands(x, y))
        dtype = offset.type.dtype if isinstance(offset, Value) else own_dtype(offset)
        if dtype.is_float:
            raise Mismatch(
                f"a pointer moves by whole elements, but the offset is {dtype}", "use // instead of /, or .to(tl.int32)"
            ).in_triton(invalid_operands(x, y))
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
        x, y = self.widened(x), self.widened(y)
        a, b = self.agree(result_dtype(x, y), x, y)
        return self.value("cmp", a, b, pred=COMPARISONS[symbol])

    def truth(self, x: Any) -> Any:
        """x as a condition: a Python bool or an int1 Value."""
        if not isinstance(x, Value):
            return bool(x)
        if x.type.is_pointer:  # the null pointer is false
            x = self.cast(x, t.int64)
        if x.type.dtype == t.int1:
            return x
        x = self.widened(x)
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
            word = {"-": "minus", "~": "invert"}.get(symbol, "plus")
            said = f"wrong type argument to unary {word} ({in_triton(x.type.dtype)})"
            raise Mismatch(f"`{symbol}` does not take a pointer").in_triton(said)
        if symbol == "~":
            if x.type.dtype.is_float:
                raise Mismatch(
                    f"`~` works on integers and conditions, not on {x.type.dtype}",
                    "convert with .to(tl.int32), or bitcast=True for the bits",
                ).in_triton(f"wrong type argument to unary invert ({in_triton(x.type.dtype)})")
            return self.value("not", x)
        if symbol == "+":
            return x
        if x.type.dtype.is_fp8():
            return float8.signed(self, x, "xor", 0x80)
        return x if x.type.dtype.kind == "bool" else self.value("neg", x)  # modulo 2, -1 is 1


def joined(known: Mapping[str, Any], promises: Mapping[str, Any]) -> dict[str, Any]:
    """Merges promises with earlier ones, and keeps the tighter bounds."""
    found = dict(promises)
    for name, tighter in (("least", max), ("most", min)):
        given = [x for x in (known.get(name), promises.get(name)) if x is not None]
        if given:
            found[name] = tighter(given)
    return found


# -- rules that emit nothing -------------------------------------------------------------------------------------------------


def is_pointer(x: Any) -> bool:
    return isinstance(x, Value) and x.type.is_pointer


def check_operands(symbol: str, *operands: Any) -> None:
    for x in operands:
        if not isinstance(x, (Value, *NUMBERS)):
            other = next((y for y in operands if y is not x), x)
            raise Mismatch(
                f"`{symbol}` cannot combine {describe(other)} and {describe(x)}"
                if other is not x
                else f"`{symbol}` does not take {describe(x)}",
                _none_hint(x),
            )


def fold(symbol: str, x: Any, y: Any) -> Any:
    """Computes `x symbol y` at compile time, by Python's rules."""
    try:
        return PYTHON[symbol](x, y)
    except ZeroDivisionError:
        raise Mismatch(f"{x!r} {symbol} {y!r} divides by zero") from None
    except (TypeError, ValueError, OverflowError):
        raise Mismatch(
            f"`{symbol}` cannot combine {describe(x)} and {describe(y)}", _none_hint(x) or _none_hint(y)
        ) from None


def _none_hint(x: Any) -> str | None:
    if x is None:
        return "it is None: guard the line with `if ... is not None:`"
    if hasattr(x, "__array__") or hasattr(x, "data_ptr"):
        return "pass the array as an argument of the kernel, which receives a pointer"
    return None


def describe(x: Any) -> str:
    """Describes an operand in the words of the language, for messages."""
    if isinstance(x, Value):
        kind = x.type
        what = (
            repr(kind.dtype)
            if not kind.is_pointer
            else f"a {'constant ' * kind.dtype.const}pointer to {kind.dtype.element_ty}"
        )
        return f"{what} of shape {kind.shape}" if kind.shape else what
    if x is None:
        return "None"
    if isinstance(x, tuple):
        return "a tuple"
    if isinstance(x, RecordValue):
        return str(x)
    if isinstance(x, (*NUMBERS, str)):
        return f"the constant {x!r}"
    if isinstance(x, type):
        return f"the class `{x.__name__}`"
    if callable(x) and hasattr(x, "__name__"):
        return f"the function `{x.__name__}`"
    if isinstance(x, (DType, Pointer)):
        return f"the dtype {x}"
    return f"a {type(x).__name__}"


def check_size(shape: tuple[int, ...]) -> None:
    size = math.prod(shape)
    if size > t.MAX_TILE_ELEMENTS:
        raise Mismatch(
            f"a tile of shape {shape} has {size} elements; the maximum is {t.MAX_TILE_ELEMENTS}",
            "make the block smaller and loop over the blocks, or launch more programs",
        )


def _shape_hint(a: tuple[int, ...], b: tuple[int, ...]) -> str | None:
    if len(a) == len(b) == 1:
        return "to combine every element of one with every element of the other, write x[:, None] and y[None, :]"
    if len(a) != len(b) and a and b:
        return "add the missing axis by hand: x[:, None] makes a column, x[None, :] a row"
    for axis, (m, n) in enumerate(zip(a, b, strict=False)):
        if len(a) == len(b) and m != n and 1 not in (m, n):
            return f"axis {axis} has {m} elements in one and {n} in the other; sizes must be equal, or one of them must be 1"
    return None
