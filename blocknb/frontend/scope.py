"""Scopes of names during parsing: a `Frame` per function or inlined call, and the possible values of a name.

A name holds a run-time `Value`, or a compile-time Python object: a number, None, a dtype, a function or a tuple of these. A name that
only one arm of an `if` assigns becomes `Undefined` after it, and reading it raises an error.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from blocknb.errors import KernelError, Loc, SyntaxUnsupported, TypeMismatch
from blocknb.frontend.emitter import NUMBERS, Emitter, Mismatch
from blocknb.frontend.hints import hint_for_unknown_name
from blocknb.frontend.source import Source
from blocknb.ir.core import Value
from blocknb.language.constants import constexpr
from blocknb.language.ops import TypeRule


@dataclass(frozen=True)
class Undefined:
    """The value of a name that is no longer defined. `why` completes the message "`x` ...". `triton` is Triton's message, if it differs."""

    why: str
    hint: str | None = None
    triton: str | None = None


@dataclass(frozen=True)
class Returned:
    """A function has returned `value` (a Value, a constant, a tuple of them, or None)."""

    value: Any


@dataclass(frozen=True)
class ConditionalReturn:
    """A function has returned `value` if the condition `flag` holds, and continues otherwise."""

    flag: Value
    value: Any


Outcome = Returned | ConditionalReturn | None

#: How often a helper may call itself, with different constants each time.
RECURSION = 32

EXPRESSIONS: dict[type, Callable[[Frame, Any], Any]] = {}
STATEMENTS: dict[type, Callable[..., Any]] = {}


def expression(*kinds: type) -> Callable:
    """Registers the visitor of expression nodes: (frame, node) -> Value or constant."""
    return lambda visit: EXPRESSIONS.update((kind, visit) for kind in kinds) or visit


def statement(*kinds: type) -> Callable:
    """Registers the visitor of statement nodes: (frame, node, following statements) -> how the function ended, or None.

    The visitor may insert statements at the front of the following ones.
    """
    return lambda visit: STATEMENTS.update((kind, visit) for kind in kinds) or visit


HANDLERS: dict[str, Callable[..., Any]] = {}


def emits(*names: str) -> Callable:
    """Registers the handler of builtins: (frame, arguments as declared) -> Value or constant."""
    return lambda handler: HANDLERS.update((name, handler) for name in names) or handler


class Frame:
    """One function being parsed: its names, its place in the chain of calls, and the emitter all frames share."""

    handlers: Mapping[str, Callable[..., Any]] = HANDLERS

    def __init__(self, source: Source, emit: Emitter, caller: Loc | None = None, parent: Frame | None = None):
        self.source, self.emit, self.caller, self.parent = source, emit, caller, parent
        self.names: dict[str, Any] = {}
        self.known: dict[str, Any] = {}  # the compile-time arguments of a helper
        self.where: dict[str, ast.AST] = {}  # the last assignment to each name, for messages
        self.loops = 0  # how many loops are open in this function
        self.ranks: dict[str, int] = {}  # names in the order in which they first got a meaning
        self.copies = 1  # how often the current statement is visited in total
        self.flagged = False  # whether the visited statements may end with ConditionalReturn

    def loc(self, node: Any) -> Loc:
        """The place of a node of this function, with the chain of calls that led here."""
        source = self.source
        return Loc(
            source.file, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, source.name, self.caller
        )

    def refuse_endless(self) -> None:
        """Raises SyntaxUnsupported for a recursive call whose constants do not change, because such a recursion never ends."""
        same = 0
        above = self.parent
        while above is not None:
            if above.source.function is self.source.function:
                same += 1
                if above.known == self.known or same == RECURSION:
                    times = f" {same} times" if same > 1 else ""
                    raise SyntaxUnsupported(
                        f"recursion: `{self.source.name}` calls itself{times}",
                        replace(self.caller, caller=above.caller) if times and self.caller else self.caller,
                        "the compiler inlines calls, so only compile-time constants can end a recursion; write a `for` or `while`",
                    )
            above = above.parent

    # -- visiting ------------------------------------------------------------------------------------------------------

    def expr(self, node: ast.expr) -> Any:
        """The value of an expression. An error without a place gets that of the innermost node."""
        if type(node) is ast.Constant:
            return node.value
        visit = EXPRESSIONS.get(type(node))
        if visit is None:
            raise self.unsupported(node)
        emit = self.emit
        saved = emit.loc
        emit.loc = self.loc(node)
        try:
            return visit(self, node)
        except KernelError as error:
            if error.loc is None:
                error.loc = self.loc(node)
            raise
        except TypeRule as error:
            raise TypeMismatch(str(error), self.loc(node)) from None
        finally:
            emit.loc = saved

    def run(self, statements: Iterable[ast.stmt]) -> Outcome:
        """Visits statements in order. Returns how they ended the function, or None if it continues after them."""
        remaining = deque(statements)  # a visit may remove or insert statements
        if not self.ranks:
            self.ranks.update((name, i) for i, name in enumerate(self.names))
        while remaining:
            node = remaining.popleft()
            visit = STATEMENTS.get(type(node))
            if visit is None:
                raise self.unsupported(node)
            emit = self.emit
            saved = emit.loc
            emit.loc = self.loc(node)
            try:
                outcome = visit(self, node, remaining)
            except KernelError as error:
                if error.loc is None:
                    error.loc = self.loc(node)
                raise
            except TypeRule as error:
                raise TypeMismatch(str(error), self.loc(node)) from None
            finally:
                emit.loc = saved
            if outcome is not None:
                return outcome
        return None

    # -- names ---------------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> Any:
        if name in self.names:
            found = self.names[name]
            if isinstance(found, Undefined):
                error = Mismatch(f"`{name}` {found.why}", found.hint)
                raise error.in_triton(found.triton) if found.triton else error
            return found
        if name in self.source.local_names:
            before = f"assign `{name}` on every path that leads here"
            raise Mismatch(f"`{name}` is used before it is assigned", before).in_triton(f"{name} is not defined")
        try:
            return as_constant(name, self.source.lookup(name))
        except KeyError:
            hint = hint_for_unknown_name([*self.names, *self.source.visible()], name)
            raise Mismatch(f"unknown name `{name}`", hint).in_triton(f"{name} is not defined") from None

    def assign(self, name: str, value: Any, node: ast.AST) -> None:
        if isinstance(value, Value) and not value.name:
            value.name = name
        self.names[name] = value
        self.where[name] = node
        self.ranks.setdefault(name, len(self.ranks))

    def ordered(self, names: Iterable[str]) -> list[str]:
        """The names in the order in which they first got a meaning."""
        return sorted(names, key=lambda name: self.ranks.get(name, len(self.ranks)))

    def unsupported(self, node: ast.AST) -> SyntaxUnsupported:
        what, hint = UNSUPPORTED.get(
            type(node).__name__,
            (f"`{type(node).__name__}`", "a kernel may contain assignments, if, for, while and calls"),
        )
        return SyntaxUnsupported(f"{what} is not supported in a kernel", self.loc(node), hint)


def as_constant(name: str, found: Any) -> Any:
    """Converts a global or captured object: constexprs to their value, NumPy scalars to Python numbers, lists to tuples."""
    if isinstance(found, Value):
        return found
    if isinstance(found, constexpr):
        return found.value
    if isinstance(found, list):
        return tuple(found)
    if (hasattr(found, "__array__") or hasattr(found, "data_ptr")) and not isinstance(found, type):
        if getattr(found, "shape", None) == () and hasattr(found, "item") and isinstance(found.item(), NUMBERS):
            return found.item()
        raise Mismatch(
            f"`{name}` is an array from outside the kernel",
            "make it an argument; the kernel then receives a pointer to its elements",
        )
    return found


UNSUPPORTED = {
    **dict.fromkeys(("Try", "TryStar"), ("`try`", "kernels do not raise exceptions; test the condition with `if`")),
    "With": ("`with`", "call what you need directly"),
    "AsyncWith": ("`async with`", "call what you need directly"),
    "AsyncFor": ("`async for`", "write a plain `for`"),
    "Break": ("`break`", "end the loop by the condition of a `while`, or mask the rest of its body"),
    "Continue": ("`continue`", "put the rest of the loop's body under an `if`"),
    "FunctionDef": (
        "another function",
        "define it outside, decorated with @blocknb.kernel; the compiler inlines its calls",
    ),
    "AsyncFunctionDef": ("another function", "define it outside, decorated with @blocknb.kernel"),
    "ClassDef": ("a class", "keep data in tiles, scalars and tuples"),
    "Lambda": ("a lambda", "define a helper outside, decorated with @blocknb.kernel"),
    "ListComp": ("a list comprehension", "only over a tuple; write a `for` over tl.static_range, or use a tile"),
    "SetComp": ("a set comprehension", "write a `for` over tl.static_range"),
    "DictComp": ("a dict comprehension", "write a `for` over tl.static_range"),
    "GeneratorExp": ("a generator expression", "write a `for` over tl.static_range, or reduce a tile with tl.sum"),
    "Dict": ("a dict", "use separate names, or a tuple"),
    "Set": ("a set", "use separate names, or a tuple"),
    "NamedExpr": ("`:=`", "assign on a line of its own"),
    "Starred": ("`*`", "write the elements out"),
    "Yield": ("`yield`", "store results with tl.store"),
    "YieldFrom": ("`yield from`", "store results with tl.store"),
    "Await": ("`await`", "kernels cannot be suspended"),
    **dict.fromkeys(("Import", "ImportFrom"), ("`import`", "import at the top of the file or cell")),
    "Global": ("`global`", "pass values as arguments and return them"),
    "Nonlocal": ("`nonlocal`", "pass values as arguments and return them"),
    "Delete": ("`del`", "leave it out: values need no deletion in a kernel"),
    "Match": ("`match`", "write if/elif"),
}
