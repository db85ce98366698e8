"""Expressions: operators, comparisons, conditions, subscripts, attributes, tuples.

Python itself computes everything that is known at compile time; only operations on run-time values emit ops. `and`, `or` and the
ternary evaluate their condition first, so the front end never visits an arm that is not taken.
"""

from __future__ import annotations

import ast
import linecache
import operator
import types
from dataclasses import dataclass
from typing import Any

from blocknb.errors import KernelError, SyntaxUnsupported
from blocknb.frontend import shapes
from blocknb.frontend.assignment import assign_target
from blocknb.frontend.emitter import COMPARISONS, NUMBERS, Mismatch, describe, is_pointer
from blocknb.frontend.hints import did_you_mean, instead_of
from blocknb.frontend.merge import merge_arms, unequal_arms
from blocknb.frontend.records import BlockPointer, DescriptorValue, RecordValue
from blocknb.frontend.scope import Frame, as_constant, expression
from blocknb.frontend.source import source_of
from blocknb.ir.core import Value
from blocknb.language import types as t
from blocknb.language.declarations import BUILTINS, MEMBERS
from blocknb.language.library import LIBRARY
from blocknb.language.refused import REFUSED

SYMBOLS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.MatMult: "@",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not",
}  # fmt: skip


@dataclass(frozen=True)
class Method:
    """A builtin or library function looked up on a tile: `x.sum`."""

    function: Any
    receiver: Any


@dataclass(frozen=True)
class Operator:
    """An operator looked up on a value by the name of its method: `x.__lshift__`."""

    symbol: str
    receiver: Value

    def __call__(self, frame: Frame, other: Any) -> Any:
        compares = self.symbol in COMPARISONS
        return (frame.emit.compare if compares else frame.emit.binary)(self.symbol, self.receiver, other)


#: Operator methods that kernels call by name to avoid parentheses: `x.__lshift__(4).to(tl.int8)`.
OPERATORS = {
    "__add__": "+", "__sub__": "-", "__mul__": "*", "__truediv__": "/", "__floordiv__": "//", "__mod__": "%",
    "__and__": "&", "__or__": "|", "__xor__": "^", "__lshift__": "<<", "__rshift__": ">>",
    "__eq__": "==", "__ne__": "!=", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">=",
}  # fmt: skip


@expression(ast.Name)
def visit_name(frame: Frame, node: ast.Name) -> Any:
    return frame.lookup(node.id)


@expression(ast.Tuple, ast.List)
def visit_tuple(frame: Frame, node: ast.Tuple | ast.List) -> tuple:
    return tuple(frame.expr(element) for element in node.elts)


@expression(ast.ListComp)
def visit_comprehension(frame: Frame, node: ast.ListComp) -> tuple:
    """A comprehension over a tuple gives a tuple. As in Python, its variables are local to it."""
    loop = node.generators[0]
    function = frame.expr(loop.iter.func) if isinstance(loop.iter, ast.Call) else None
    counts = function is range or getattr(function, "builtin", None) in ("range", "static_range")
    items = None if counts or len(node.generators) > 1 else frame.expr(loop.iter)
    if not isinstance(items, tuple):
        raise frame.unsupported(node)
    names, found = frame.names, []
    frame.names = dict(names)
    try:
        for item in items:
            assign_target(frame, loop.target, item)
            tests = [condition(frame, test) for test in loop.ifs]
            if any(isinstance(test, Value) for test in tests):
                error = Mismatch(
                    "the condition of a comprehension must be known at compile time", "select with tl.where"
                )
                error.loc = frame.loc(loop.ifs[0])
                raise error
            if all(tests):
                found.append(frame.expr(node.elt))
    finally:
        frame.names = names
    return tuple(found)


@expression(ast.BinOp)
def visit_binary(frame: Frame, node: ast.BinOp) -> Any:
    x, y = frame.expr(node.left), frame.expr(node.right)
    if isinstance(node.op, ast.MatMult) and isinstance(x, Value) and isinstance(y, Value):
        product = f"tl.dot({ast.unparse(node.left)}, {ast.unparse(node.right)})"
        raise Mismatch("`@` does not multiply tiles", f"write {product}")
    return frame.emit.binary(SYMBOLS[type(node.op)], x, y)


@expression(ast.UnaryOp)
def visit_unary(frame: Frame, node: ast.UnaryOp) -> Any:
    return frame.emit.unary(SYMBOLS[type(node.op)], frame.expr(node.operand))


@expression(ast.Compare)
def visit_compare(frame: Frame, node: ast.Compare) -> Any:
    if len(node.ops) > 1 and (meant := _meant_conjunction(frame, node)):
        middle = f"{ast.unparse(node.comparators[0])}"
        message = f"this compares with `{middle}`, because `&` and `|` bind more tightly than comparisons"
        raise SyntaxUnsupported(message, frame.loc(node), f"write {meant}, or parentheses around `{middle}`")
    result: Any = True
    x = frame.expr(node.left)
    for i, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
        y = frame.expr(right)
        link = compare_one(frame, op, x, y)
        result = link if i == 0 else conjunction(frame, "and", result, link)
        if not isinstance(result, Value) and not result:
            return result
        x = y
    return result


def _meant_conjunction(frame: Frame, node: ast.Compare) -> str:
    """The likely meaning of `a < m & b < n`, with parentheses; empty if the operands of `&` have some, or one of them is a constant."""
    middle = node.comparators[0]
    if not isinstance(middle, ast.BinOp) or not isinstance(middle.op, (ast.BitAnd, ast.BitOr)) or len(node.ops) != 2:
        return ""
    zero = isinstance(middle.left, ast.Constant) and middle.left.value == 0
    if isinstance(middle.right, ast.Constant) or (isinstance(node.left, ast.Constant) and not zero):
        return ""
    before, after = frame.loc(node.left), frame.loc(middle)
    if before is None or after is None or before.end_line != after.line:
        return ""
    between = linecache.getline(after.file, after.line).encode()[before.end_column : after.column]
    if not between or b"(" in between:
        return ""
    first = ast.Compare(node.left, node.ops[:1], [middle.left])
    second = ast.Compare(middle.right, node.ops[1:], node.comparators[1:])
    symbol = "&" if isinstance(middle.op, ast.BitAnd) else "|"
    return f"({ast.unparse(first)}) {symbol} ({ast.unparse(second)})"


def compare_one(frame: Frame, op: ast.cmpop, x: Any, y: Any) -> Any:
    if isinstance(op, (ast.Is, ast.IsNot)):
        if isinstance(x, Value) and isinstance(y, Value):
            raise Mismatch("`is` cannot compare a run-time value", "use == for numbers, and `is` only with None")
        same = x is y or (isinstance(x, t.TypeQueries) and x == y)
        return same == isinstance(op, ast.Is)
    if isinstance(op, (ast.In, ast.NotIn)):
        if (
            isinstance(x, Value)
            or not isinstance(y, (tuple, str, dict, frozenset))
            or any(isinstance(e, Value) for e in y)
        ):
            raise Mismatch("`in` works on constants only", "write (x == a) | (x == b) for run-time values")
        return (x in y) == isinstance(op, ast.In)
    return frame.emit.compare(SYMBOLS[type(op)], x, y)


@expression(ast.BoolOp)
def visit_bool(frame: Frame, node: ast.BoolOp) -> Any:
    """Constants short-circuit as in Python. Run-time operands are all evaluated and combined bitwise, as in Triton."""
    word = "and" if isinstance(node.op, ast.And) else "or"
    result = frame.expr(node.values[0])
    for operand in node.values[1:]:
        if not isinstance(result, Value):
            if bool(result) == (word == "or"):
                return result
            result = frame.expr(operand)
        else:
            result = conjunction(frame, word, result, frame.expr(operand))
    return result


def conjunction(frame: Frame, word: str, x: Any, y: Any) -> Any:
    """`x and y` or `x or y`, where at least one condition is a run-time value."""
    emit = frame.emit
    if not isinstance(x, Value):
        return y if bool(x) == (word == "and") else x
    x, y = emit.truth(x), emit.truth(y)
    return emit.value(word, *emit.agree(t.int1, x, y))


@expression(ast.IfExp)
def visit_ternary(frame: Frame, node: ast.IfExp) -> Any:
    test = condition(frame, node.test)
    if not isinstance(test, Value):
        return frame.expr(node.body if test else node.orelse)
    emit, arms = frame.emit, []
    for arm in (node.body, node.orelse):
        with emit.block() as block:
            value = frame.expr(arm)
        arms.append((block.done.ops, value))
    merged = merge_arms(emit, test, arms[0][0], [arms[0][1]], arms[1][0], [arms[1][1]])[0]
    if isinstance(merged, Exception):
        raise unequal_arms(merged)
    return merged


def condition(frame: Frame, node: ast.expr) -> Any:
    """The condition of an `if`, a ternary or a `while`: a Python bool or a scalar int1 Value."""
    test = frame.expr(node)
    try:
        return one_answer(frame, test)
    except KernelError as error:
        error.loc = error.loc or frame.loc(node)
        raise


def one_answer(frame: Frame, test: Any) -> Any:
    """The condition of a branch on `test`: a Python bool or a scalar int1 Value. Raises Mismatch for tiles of several elements."""
    test = frame.emit.constant(test)
    if not isinstance(test, Value):
        if hasattr(test, "__array__"):
            raise Mismatch("an array cannot be a condition")
        return (
            bool(test)
            if isinstance(test, (*NUMBERS, str, tuple, types.NoneType))
            else frame.emit.host(bool, (test,), {})
        )
    test = frame.emit.truth(test)
    if test.type.size == 1:
        return shapes.to_scalar(frame.emit, test)
    raise Mismatch(
        f"the condition is a tile of shape {test.type.shape}, but a branch needs one scalar per program",
        "select per element with tl.where(condition, a, b), or reduce the condition with tl.max or tl.sum",
    )


@expression(ast.JoinedStr)
def visit_fstring(frame: Frame, node: ast.JoinedStr) -> str:
    return "".join(str(frame.expr(part)) for part in node.values)


@expression(ast.FormattedValue)
def visit_formatted(frame: Frame, node: ast.FormattedValue) -> str:
    value = printable(frame.expr(node.value))
    if node.conversion == ord("r"):
        value = repr(value)
    elif node.conversion == ord("s"):
        value = str(value)
    spec = frame.expr(node.format_spec) if node.format_spec else ""
    try:
        return format(value, spec)
    except (TypeError, ValueError) as error:
        hint = "the compiler knows the dtype of a run-time value, not its number: tl.device_print shows that"
        raise Mismatch(f"an f-string cannot format {value} as `{spec}`", hint) from error


def printable(x: Any) -> Any:
    """The text of static_print and f-strings: constants by value, run-time values by type."""
    if isinstance(x, tuple):
        return tuple(printable(element) for element in x)
    return str(x.type) if isinstance(x, (Value, RecordValue)) else x


# -- subscripts ------------------------------------------------------------------------------------------------------------


@expression(ast.Subscript)
def visit_subscript(frame: Frame, node: ast.Subscript) -> Any:
    base = frame.expr(node.value)
    if source_of(base) is not None:
        raise SyntaxUnsupported(
            f"a kernel cannot launch `{base.__name__}`",
            frame.loc(node),
            f"call it without a grid, and the compiler inlines it: {base.__name__}(...)",
        )
    if isinstance(base, Value):
        return index_tile(frame, base, node)
    index = subscript_constant(frame, node.slice)
    if base == () and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        raise _no_shape(frame, node.value.value)
    try:
        if type(base) in (tuple, str):
            return as_constant("it", base[index])
        return as_constant("it", frame.emit.host(operator.getitem, (base, index), {}))
    except (IndexError, KeyError):
        what = f"a tuple of {len(base)} elements" if isinstance(base, tuple) else repr(base)
        raise Mismatch(f"index {index!r} is out of range for {what}") from None
    except TypeError:
        raise Mismatch(
            f"{describe(base)} cannot be indexed with {describe(index)}",
            "only tuples can be indexed, and only with constants",
        ) from None


def _no_shape(frame: Frame, node: ast.expr) -> Mismatch:
    """The error for `x.shape[0]` of a pointer or a scalar."""
    x, name = frame.expr(node), ast.unparse(node)
    if isinstance(x, Value) and is_pointer(x):
        message = f"`{name}` is a pointer and does not know the sizes of its array"
    else:
        message = f"`{name}` is a scalar and has the shape ()"
    return Mismatch(message, "pass the size as an argument of the kernel: k[grid](x, ..., x.shape[0])")


def subscript_constant(frame: Frame, node: ast.expr) -> Any:
    if isinstance(node, ast.Slice):
        return slice(*(frame.expr(part) if part else None for part in (node.lower, node.upper, node.step)))
    return frame.emit.constant(frame.expr(node))


def index_tile(frame: Frame, x: Value, node: ast.Subscript) -> Value:
    """`x[:, None]` and the like: None makes an axis of size one, `:` keeps one, `...` keeps the rest."""
    parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    named = isinstance(node.value, ast.Name) and len(parts) == 1 and not isinstance(node.slice, ast.Slice)
    load = f"tl.load({ast.unparse(node.value)} + {ast.unparse(node.slice)})" if named else ""
    return new_axes(frame, x, [Ellipsis if is_ellipsis(p) else slice_or_none(frame, x, p, load) for p in parts])


def new_axes(frame: Frame, x: Value, entries: list[Any]) -> Value:
    """Indexes a tile: None adds an axis, slice(None) keeps one, and `...` keeps the rest.

    Next to a None, `:` on a scalar is allowed and keeps nothing, as in Triton: kernels write `index[:, None]` for program ids.
    """
    if not x.type.shape and None in entries:
        entries = [e for e in entries if e is None or e is Ellipsis]
    kept = sum(e is not None and e is not Ellipsis for e in entries)
    rank = len(x.type.shape)
    if Ellipsis not in entries:
        entries.append(Ellipsis)
    if kept > rank or entries.count(Ellipsis) > 1:
        raise Mismatch(
            f"{kept} axes are indexed, but the tile has shape {x.type.shape}",
            "write one `:` per axis, and None for each new axis",
        ).in_triton(f"too many indices for tensor of rank {rank}")
    at = entries.index(Ellipsis)
    entries[at : at + 1] = [slice(None)] * (rank - kept)
    for axis, entry in enumerate(entries):
        if entry is None:
            x = frame.emit.value("expand_dims", x, axis=axis)
    return x


def is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def slice_or_none(frame: Frame, x: Value, node: ast.expr, load: str = "") -> Any:
    if isinstance(node, ast.Slice) and node.lower is node.upper is node.step is None:
        return slice(None)
    if not isinstance(node, ast.Slice) and (entry := frame.expr(node)) in (None, slice(None)):
        return entry
    error = no_elements(x, load).in_triton(f"unsupported tensor index: {ast.unparse(node)}")
    error.loc = frame.loc(node)
    raise error


def no_elements(x: Value, load: str = "") -> Mismatch:
    """The error for `x[i]`; `load` is the call to write instead, if it is known."""
    what = "a pointer" if is_pointer(x) and not x.type.shape else "a tile"
    hint = (
        f"load the element with {load or 'tl.load(pointer + index)'}"
        if is_pointer(x)
        else "tiles have no element access: select the element with tl.where and reduce, or load it from memory"
    )
    return Mismatch(f"{what} cannot be indexed with numbers or slices; only `:` and None are allowed", hint)


# -- attributes --------------------------------------------------------------------------------------------------------------


@expression(ast.Attribute)
def visit_attribute(frame: Frame, node: ast.Attribute) -> Any:
    return attribute(frame, frame.expr(node.value), node.attr)


def attribute(frame: Frame, base: Any, name: str) -> Any:
    """The meaning of `base.name` in a kernel."""
    if isinstance(base, Value):
        return value_attribute(frame, base, name)
    if isinstance(base, RecordValue):
        return record_attribute(base, name)
    if name == "value" and isinstance(base, (*NUMBERS, str, tuple, types.NoneType)):
        return base  # constexpr.value of a constexpr that is already unwrapped
    if isinstance(base, (*NUMBERS, types.NoneType)):
        return constant_attribute(frame, base, name)
    try:
        return as_constant(name, getattr(base, name))
    except AttributeError:
        if isinstance(base, types.ModuleType) and name in REFUSED and base.__name__.startswith("blocknb.language"):
            raise Mismatch(f"blocknb does not have `{name}`", REFUSED[name]) from None
        what = f"module `{base.__name__}`" if isinstance(base, types.ModuleType) else describe(base)
        hint = instead_of(name) or did_you_mean(name, dir(base)) or _none_hint(base)
        raise Mismatch(f"{what} has no `{name}`", hint) from None


def _none_hint(base: Any) -> str | None:
    return "it is None: guard the line with `if ... is not None:`" if base is None else None


def constant_attribute(frame: Frame, base: Any, name: str) -> Any:
    """The methods of numbers are those of scalars: a literal 1 has `.to(tl.float32)`."""
    if base is None or name in ("real", "imag", "numerator", "denominator"):
        raise Mismatch(f"{describe(base)} has no `{name}`", _none_hint(base))
    return value_attribute(frame, frame.emit.runtime(base), name)


def value_attribute(frame: Frame, x: Value, name: str) -> Any:
    match name:
        case "dtype":
            return x.type.dtype
        case "shape":
            return x.type.shape
        case "type":
            return x.type
        case "numel":
            return x.type.size
        case "T":
            return shapes.trans(frame, x)
    if name in OPERATORS:
        return Operator(OPERATORS[name], x)
    if name in MEMBERS:
        return Method(BUILTINS.get(name) or LIBRARY[name], x)
    hint = instead_of(name) or did_you_mean(name, [*PROPERTIES, *MEMBERS])
    raise Mismatch(f"{describe(x)} has no `{name}`", hint)


PROPERTIES = ("dtype", "shape", "type", "numel", "T")


def has_attribute(x: Value | RecordValue, name: str) -> bool:
    """The meaning of `hasattr(x, name)` for a run-time value."""
    if isinstance(x, RecordValue):
        return name in ATTRIBUTES[type(x)] or name in METHODS[type(x)]
    return name in PROPERTIES or name in OPERATORS or name in MEMBERS


ATTRIBUTES: dict[type[RecordValue], tuple[str, ...]] = {
    BlockPointer: ("type", "dtype"),
    DescriptorValue: ("type", "dtype", "shape", "strides", "block_shape", "block_type"),
}
METHODS: dict[type[RecordValue], dict[str, Any]] = {
    BlockPointer: {name: BUILTINS[name] for name in ("advance", "store")},
    DescriptorValue: {
        n.removeprefix("tensor_descriptor."): f for n, f in BUILTINS.items() if "tensor_descriptor." in n
    },
}


def record_attribute(x: RecordValue, name: str) -> Any:
    attributes, methods = ATTRIBUTES[type(x)], METHODS[type(x)]
    if name in methods:
        return Method(methods[name], x)
    if name not in attributes:
        raise Mismatch(f"{x} has no `{name}`", did_you_mean(name, [*attributes, *methods]))
    return x.type if isinstance(x, BlockPointer) else getattr(x, name)
