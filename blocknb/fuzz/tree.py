"""A kernel as data: typed expressions, statements, arguments and helpers, which the printer and the evaluator read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Type:
    """A tile of `dtype` (a name of `dtypes.DTYPES`) and `shape`, () for a scalar; with `pointer`, a tile of addresses of such elements."""

    dtype: str
    shape: tuple[int, ...] = ()
    pointer: bool = False


@dataclass(frozen=True, eq=False)
class SyntaxNode:
    """An expression. `op` is a key of the printer's and the evaluator's tables; `attrs` holds compile-time values."""

    op: str
    type: Any  # a Type, or a tuple of Types for ops with several results
    args: tuple[SyntaxNode, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)

    def walk(self) -> Iterator[SyntaxNode]:
        yield self
        for arg in self.args:
            yield from arg.walk()


def op(name: str, dtype: str, shape: tuple[int, ...], /, *args: SyntaxNode, **attrs: Any) -> SyntaxNode:
    """The op `name` with one result, a tile of `dtype` and `shape`."""
    return SyntaxNode(name, Type(dtype, shape), args, attrs)


def expand(node: SyntaxNode, axis: int) -> SyntaxNode:
    """Inserts an axis of size one."""
    shape = node.type.shape
    return op("expand", node.type.dtype, (*shape[:axis], 1, *shape[axis:]), node, axis=axis)


def offset(base: SyntaxNode, index: SyntaxNode) -> SyntaxNode:
    """The pointers `base + index`."""
    shape = base.type.shape if index.op == "literal" else index.type.shape or base.type.shape
    return SyntaxNode("offset", Type(base.type.dtype, shape, True), (base, index))


def arange(size: int) -> SyntaxNode:
    """0 to size - 1, as int32."""
    return op("arange", "i32", (size,), start=0, end=size)


def var(name: str, type: Any) -> SyntaxNode:
    return SyntaxNode("var", type, attrs={"name": name})


def number(value: Any, dtype: str = "i32", shape: tuple[int, ...] = ()) -> SyntaxNode:
    """A typed constant, printed as `tl.full(shape, value, dtype)`."""
    return op("full", dtype, shape, value=value)


def literal(value: Any) -> SyntaxNode:
    """A Python number in the source, which takes the dtype of the other operand."""
    return op("literal", "weak", (), value=value)


def int32(value: int) -> SyntaxNode:
    """A Python integer in the source that stands alone: a size, a stride or a bound."""
    return op("literal", "i32", (), value=value)


@dataclass(frozen=True, eq=False)
class Let:
    names: tuple[str, ...]
    value: SyntaxNode


@dataclass(frozen=True, eq=False)
class StoreStatement:
    pointer: SyntaxNode
    value: SyntaxNode
    mask: SyntaxNode | None = None
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Atomic:
    """`op` is add, max, min, and, or, xor, xchg or cas; `result` is the name of the old value, "" if unused."""

    op: str
    pointer: SyntaxNode
    value: SyntaxNode
    mask: SyntaxNode | None = None
    result: str = ""
    compare: SyntaxNode | None = None


@dataclass(frozen=True, eq=False)
class If:
    condition: SyntaxNode
    then: tuple[Any, ...]
    other: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class For:
    """`flavour`: range, tl.range or tl.static_range; `options` are keywords of tl.range."""

    name: str
    low: SyntaxNode
    high: SyntaxNode
    step: SyntaxNode
    body: tuple[Any, ...]
    flavour: str = "range"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class While:
    condition: SyntaxNode
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Barrier:
    """A debug_barrier, which prevents a race of GPU lanes. `always` False omits it on the CPU, which runs in program order."""

    always: bool = True


@dataclass(frozen=True, eq=False)
class Return:
    """Ends a program, or a helper with the values that it returns."""

    values: tuple[SyntaxNode, ...] = ()


@dataclass(frozen=True)
class Array:
    """An array argument with `size` elements, at `offset` elements from an aligned address; `fill` is the kind of its inputs.

    `base` names another array of the same dtype, of which this one is a view from element `offset` on.
    """

    name: str
    dtype: str
    size: int
    fill: str = "small"
    offset: int = 0
    base: str = ""
    written: bool = False


@dataclass(frozen=True)
class Scalar:
    """A run-time scalar argument with its value in each launch; `constexpr` makes it a constexpr, `none` a None pointer."""

    name: str
    dtype: str
    values: tuple[Any, ...]
    constexpr: bool = False


@dataclass(frozen=True, eq=False)
class Helper:
    """A kernel function that other functions call: parameters, statements, results, and `defaults` of its last parameters."""

    name: str
    params: tuple[tuple[str, Type], ...]
    body: tuple[Any, ...]
    results: tuple[SyntaxNode, ...]
    defaults: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class KernelTree:
    """One kernel and its launches; launch i takes value i of each scalar."""

    name: str
    arguments: tuple[Any, ...]
    body: tuple[Any, ...]
    grid: tuple[int, ...]
    helpers: tuple[Helper, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    launches: int = 1
    seed: int = 0

    @property
    def arrays(self) -> list[Array]:
        return [a for a in self.arguments if isinstance(a, Array)]

    @property
    def scalars(self) -> list[Scalar]:
        return [a for a in self.arguments if isinstance(a, Scalar)]


def nodes(statement: Any) -> list[SyntaxNode]:
    """The expressions of one statement, except those in its body."""
    match statement:
        case Let():
            return [statement.value]
        case StoreStatement(pointer, value, mask, attrs):
            return [n for n in (pointer, value, mask, *attrs.get("offsets", ())) if n is not None]
        case Atomic():
            parts = (statement.pointer, statement.value, statement.mask, statement.compare)
            return [n for n in parts if n is not None]
        case If() | While():
            return [statement.condition]
        case For():
            return [statement.low, statement.high, statement.step]
        case Return():
            return list(statement.values)
    return []


def blocks(statement: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """The bodies of a statement by the names of their fields."""
    match statement:
        case If():
            return [("then", statement.then), ("other", statement.other)]
        case For() | While():
            return [("body", statement.body)]
    return []


def statements(body: tuple[Any, ...]) -> Iterator[Any]:
    """Every statement, outer ones first."""
    for statement in body:
        yield statement
        for _, inner in blocks(statement):
            yield from statements(inner)
