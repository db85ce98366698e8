"""The source of a kernel: its text, its AST, its parameters, and what the names in it refer to.

A `Source` wraps a Python function. The text is read through `linecache`, where IPython keeps its cells, and parsed in place: line
numbers are those of the file and columns those of the line, also for a function that is indented. It is read when it is first
needed, and once.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blocknb.errors import Loc, SyntaxUnsupported
from blocknb.language.constants import constexpr, unwrap

MISSING: Any = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """One parameter: `constexpr` when it is annotated so; `default` is MISSING or a plain value."""

    name: str
    constexpr: bool = False
    default: Any = MISSING
    keyword_only: bool = False


class Source:
    """A Python function as the front end sees it. Cheap to make; text and AST are read on first use."""

    def __init__(self, function: Any):
        self.function = function
        self.name: str = function.__name__
        self.file: str = function.__code__.co_filename
        self.first_line: int = function.__code__.co_firstlineno
        self.answer: Any = None  # the last answer of dependencies()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Source of {self.name}, {self.file}:{self.first_line}>"

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters in order. Raises SyntaxUnsupported for *args and **kwargs."""
        found = []
        for p in inspect.signature(self.function).parameters.values():
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                star = "*" if p.kind == p.VAR_POSITIONAL else "**"
                raise SyntaxUnsupported(
                    f"`{self.name}` takes {star}{p.name}",
                    self.loc(),
                    "give every parameter of a kernel a name of its own",
                )
            found.append(Parameter(p.name, _is_constexpr(p.annotation), unwrap(p.default), p.kind == p.KEYWORD_ONLY))
        return tuple(found)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the definition, decorators included. Raises SyntaxUnsupported when the source cannot be found."""
        if self.name == "<lambda>":
            raise SyntaxUnsupported("a lambda cannot be a kernel", self.loc(), "write it as a function with `def`")
        linecache.checkcache(self.file)
        lines = linecache.getlines(self.file, self.function.__globals__)
        if not lines or self.first_line > len(lines):
            raise SyntaxUnsupported(
                f"the source of `{self.name}` cannot be found (in {self.file})",
                hint="define kernels in a file or in a notebook cell, not through exec",
            )
        return inspect.getblock(lines[self.first_line - 1 :])

    @cached_property
    def text(self) -> str:
        """The definition as it stands in the file, indentation and decorators included."""
        return "".join(self.lines)

    @cached_property
    def node(self) -> ast.FunctionDef:
        """The definition's AST; lines count from the file's beginning."""
        with self._lock:
            indented = self.lines[0][:1].isspace()
            padding = self.first_line - 1 - indented
            module = ast.parse("\n" * padding + ("if 1:\n" if indented else "") + self.text, self.file)
            statement = module.body[0]
            node = statement.body[0] if isinstance(statement, ast.If) and indented else statement
            if isinstance(node, ast.FunctionDef) and node.name == self.name:
                return node
            if isinstance(node, ast.AsyncFunctionDef):
                raise SyntaxUnsupported("a kernel cannot be async", self.loc(), "write `def` instead of `async def`")
            raise SyntaxUnsupported(
                f"{self.file} has changed since `{self.name}` was defined", self.loc(), "run the definition again"
            )

    def loc(self, node: ast.AST | None = None, caller: Loc | None = None) -> Loc:
        """The place of a node of this function; without one, of the definition's first line."""
        if node is None:
            return Loc(self.file, self.first_line, 0, 0, 0, self.name, caller)
        return Loc(self.file, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, self.name, caller)  # type: ignore[attr-defined]

    @cached_property
    def local_names(self) -> frozenset[str]:
        """Parameters and every name that is assigned anywhere in the body: Python's own rule for what is local."""
        names = {p.name for p in self.parameters}
        names.update(n.id for n in ast.walk(self.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        return frozenset(names)

    @cached_property
    def closure(self) -> dict[str, Any]:
        """The cells of the enclosing functions, by name."""
        return dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))

    @property
    def builtins(self) -> dict[str, Any]:
        return vars(builtins)

    def lookup(self, name: str) -> Any:
        """What a name that is not local refers to at this moment. Raises KeyError."""
        if name in self.closure:
            try:
                return self.closure[name].cell_contents
            except ValueError:
                raise KeyError(name) from None
        if name in self.function.__globals__:
            return self.function.__globals__[name]
        return self.builtins[name]

    def visible(self) -> Iterator[str]:
        """The names `lookup` knows, for did-you-mean hints; Python's builtins last."""
        yield from self.closure
        yield from self.function.__globals__
        yield from self.builtins

    @cached_property
    def references(self) -> tuple[tuple[str, ...], ...]:
        """What the function reads from outside, as dotted paths: `tl.load` is ("tl", "load"). Sorted, without repetitions."""
        paths: set[tuple[str, ...]] = set()
        body = [*self.node.body, *self.node.args.defaults, *(d for d in self.node.args.kw_defaults if d)]
        for statement in body:
            _collect_paths(statement, self.local_names, paths)
        return tuple(sorted(paths))


def _collect_paths(node: ast.AST, local: frozenset[str], paths: set[tuple[str, ...]]) -> None:
    attributes: list[str] = []
    current = node
    while isinstance(current, ast.Attribute):
        attributes.append(current.attr)
        current = current.value
    if isinstance(current, ast.Name):
        if current.id not in local:
            paths.add((current.id, *reversed(attributes)))
        return
    for child in ast.iter_child_nodes(current):
        _collect_paths(child, local, paths)


def _is_constexpr(annotation: Any) -> bool:
    """Also under `from __future__ import annotations`, where annotations are text."""
    return annotation is constexpr or (
        isinstance(annotation, str) and annotation.rpartition(".")[2].strip("'\" ") == "constexpr"
    )


_library: dict[Any, Source] = {}


def source_of(thing: Any) -> Source | None:
    """The Source of a kernel, a helper or a function of the language's library; None for anything else."""
    source = getattr(thing, "source", None)
    if isinstance(source, Source):
        return source
    if getattr(thing, "inline", False) is True:
        if thing not in _library:
            _library[thing] = Source(thing)
        return _library[thing]
    return None
