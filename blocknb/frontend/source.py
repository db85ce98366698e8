"""The source of a kernel: its text, its AST, its parameters, and the objects that its names refer to.

A `Source` wraps a Python function. It reads the file at once, through `linecache`, where IPython keeps its cells: a later edit of the file
does not change the function. It parses the text on first use. The AST has the line numbers of the file and the columns of the line, even
if the function is indented.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import linecache
import operator
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blocknb import forks
from blocknb.errors import Loc, SyntaxUnsupported
from blocknb.frontend.imported_text import matches_source, modified_since_start, snapshot
from blocknb.ir.traversal import reachable
from blocknb.language.constants import const, constexpr, unwrap

MISSING: Any = inspect.Parameter.empty
_WRITTEN = itertools.count(1)


@dataclass(frozen=True)
class Parameter:
    """One parameter. `constexpr` and `const` tell whether it has that annotation. `default` is MISSING or a plain value."""

    name: str
    constexpr: bool = False
    default: Any = MISSING
    keyword_only: bool = False
    const: bool = False


def _assigned(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The names and values of a closure, except those that the enclosing function has not assigned yet."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the cell is empty
            continue


def written(text: str, like: types.FunctionType) -> types.FunctionType:
    """The function that a text defines, with the globals and the closure of `like`. Errors show lines of the text."""
    file = f"<{like.__name__}, written {next(_WRITTEN)}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    cells = dict(_assigned(like))
    found: dict[str, Any] = {}
    exec(compile(text, file, "exec"), {**like.__globals__, **cells} if cells else like.__globals__, found)
    return next(f for f in reversed(found.values()) if isinstance(f, types.FunctionType))


class Source:
    """A Python function with its text, and its AST, which is made on first use."""

    def __init__(self, function: Any):
        self.function = function
        self.name: str = function.__name__
        self.file: str = function.__code__.co_filename
        self.first_line: int = function.__code__.co_firstlineno
        self._code: types.CodeType = function.__code__
        self._lines = snapshot(self.file, function.__globals__)
        self.answer: Any = None  # the last answer of dependencies()
        self.kernel: Any = None  # the Kernel that launches the function
        self._parameters: tuple[tuple[Any, ...], tuple[Parameter, ...]] | None = None
        self.survivors: dict[str, bool] = {}  # loop variables -> whether they are read after their loops
        self._lock = threading.Lock()
        forks.renewed(self, _lock=threading.Lock)

    def __repr__(self) -> str:
        return f"<Source of {self.name}, {self.file}:{self.first_line}>"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters in order, with the defaults that the function has now. Raises SyntaxUnsupported for *args and **kwargs."""
        function = self.function
        given = tuple(map(unwrap, (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())))
        known = self._parameters
        if known is None or len(given) != len(known[0]) or any(map(operator.is_not, given, known[0])):
            known = self._parameters = given, self._read_parameters()
        return known[1]

    def _read_parameters(self) -> tuple[Parameter, ...]:
        found = []
        for p in inspect.signature(self.function).parameters.values():
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                star = "*" if p.kind == p.VAR_POSITIONAL else "**"
                arguments = self.node.args
                raise SyntaxUnsupported(
                    f"`{self.name}` takes {star}{p.name}",
                    self.loc(arguments.vararg if star == "*" else arguments.kwarg),
                    "give each parameter of a kernel its own name",
                )
            names = [is_annotation(p.annotation, kind) for kind in (constexpr, const)]
            found.append(Parameter(p.name, names[0], unwrap(p.default), p.kind == p.KEYWORD_ONLY, names[1]))
        return tuple(found)

    @cached_property
    def _file_lines(self) -> list[str]:
        if self.name == "<lambda>":
            raise SyntaxUnsupported("a lambda cannot be a kernel", self.loc(), "write it as a function with `def`")
        lines = self._lines = self._lines or snapshot(self.file, self.function.__globals__)
        if not lines or self.first_line > len(lines):
            raise SyntaxUnsupported(
                f"the source of `{self.name}` cannot be found (in {self.file})",
                hint="define kernels in a file or in a notebook cell, not through exec",
            )
        return lines

    @cached_property
    def _parsed(self) -> tuple[str, ast.FunctionDef]:
        """Text and AST of the definition."""
        with self._lock:
            lines, start = self._file_lines, self.first_line - 1
            text = "".join(lines[start : last_line(self.function.__code__, lines)])
            try:
                return text, self._parse(text)
            except SyntaxError:
                # The function ends with an unused string of several lines; only the slow `inspect` finds its end.
                text = "".join(inspect.getblock(lines[start:]))
            try:
                return text, self._parse(text)
            except SyntaxError:  # Python has compiled this function, so the file must have changed
                raise self._changed() from None

    def use_text(self, text: str) -> None:
        """Makes `text` the definition. For a function that another process has read: the file may not exist here, or be another one."""
        vars(self)["_parsed"] = text, self._parse(text, trusted=True)

    def _parse(self, text: str, trusted: bool = False) -> ast.FunctionDef:
        """Parses the definition in place. An indented definition goes under an `if`, so that lines and columns stay the same."""
        indented = text[:1].isspace()
        padding = self.first_line - 1 - indented
        statement = ast.parse("\n" * padding + ("if 1:\n" if indented else "") + text, self.file).body[0]
        node = statement.body[0] if isinstance(statement, ast.If) and indented else statement
        if isinstance(node, ast.AsyncFunctionDef):
            raise SyntaxUnsupported("a kernel cannot be async", self.loc(node), "write `def` instead of `async def`")
        if not isinstance(node, ast.FunctionDef) or node.name != self.function.__code__.co_name:
            raise self._changed()
        if not trusted and modified_since_start(self.file) and not matches_source(self._lines, self._code):
            raise self._changed()
        return node

    def _changed(self) -> SyntaxUnsupported:
        message = f"{self.file} has changed since Python compiled `{self.name}`, so its text cannot be found"
        hint = "import the file again, with importlib.reload, or restart Python; run a cell again"
        return SyntaxUnsupported(message, self.loc(), hint)

    @property
    def text(self) -> str:
        """The text of the definition in the file, with indentation and decorators.

        Raises SyntaxUnsupported if the text cannot be found, or if the file has changed.
        """
        return self._parsed[0]

    @property
    def lines(self) -> list[str]:
        """The lines of the definition, with their line ends."""
        return self.text.splitlines(keepends=True)

    @property
    def node(self) -> ast.FunctionDef:
        """The definition's AST; lines count from the file's beginning."""
        return self._parsed[1]

    def loc(self, node: ast.AST | None = None, caller: Loc | None = None) -> Loc:
        """The place of a node of this function, by default of the first line."""
        if node is None:
            return Loc(self.file, self.first_line, 0, 0, 0, self.name, caller)
        return Loc(self.file, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, self.name, caller)  # type: ignore[attr-defined]

    @cached_property
    def _names(self) -> tuple[frozenset[str], frozenset[tuple[str, ...]]]:
        """The names assigned anywhere in the body, and every dotted path read in body and defaults."""
        stored: set[str] = set()
        paths: set[tuple[str, ...]] = set()
        # A Python AST has no shared nodes. This walk is several times faster than `ast.walk`.
        todo: list[Any] = [*self.node.body, *self.node.args.defaults, *self.node.args.kw_defaults]
        while todo:
            node = todo.pop()
            attributes: list[str] = []
            while type(node) is ast.Attribute:
                attributes.append(node.attr)
                node = node.value
            if type(node) is ast.Name:
                if type(node.ctx) is ast.Load:
                    paths.add((node.id, *reversed(attributes)))
                else:
                    stored.add(node.id)
            elif type(node) is list:
                todo.extend(node)
            elif isinstance(node, ast.AST):
                todo.extend(map(node.__dict__.get, node._fields))
        return frozenset(stored), frozenset(paths)

    @cached_property
    def local_names(self) -> frozenset[str]:
        """The parameters, and every name that the body assigns: Python's rule for local names."""
        return self._names[0].union(p.name for p in self.parameters)

    @cached_property
    def references(self) -> tuple[tuple[str, ...], ...]:
        """The dotted paths that the function reads from outside, sorted and unique: `tl.load` is ("tl", "load")."""
        return tuple(sorted(path for path in self._names[1] if path[0] not in self.local_names))

    @cached_property
    def _modulos_and_calls(self) -> tuple[Any, ...]:
        """The `a % b`, the `a %= b` and the calls of names."""
        found: list[ast.AST] = []
        todo: list[Any] = [self.node]
        while todo:  # as in `_names`
            node = todo.pop()
            if type(node) is list:
                todo.extend(node)
            elif isinstance(node, ast.AST):
                modulo = type(node) in (ast.BinOp, ast.AugAssign) and isinstance(node.op, ast.Mod)  # type: ignore[attr-defined]
                if modulo or (type(node) is ast.Call and isinstance(node.func, ast.Name)):
                    found.append(node)
                todo.extend(map(node.__dict__.get, node._fields))
        return tuple(found)

    @cached_property
    def moduli(self) -> frozenset[str]:
        """The parameters that are the right operand of a `%`, here or in a kernel to which this one passes them."""
        return frozenset(self._moduli(frozenset()))

    def _moduli(self, callers: frozenset[Source]) -> Iterator[str]:
        if self in callers:
            return
        own = {p.name for p in self.parameters}
        for node in self._modulos_and_calls:
            if isinstance(node, ast.BinOp):
                yield from own.intersection(_named(node.right))
            elif isinstance(node, ast.AugAssign):
                yield from own.intersection(_named(node.value))
            else:
                try:
                    called = source_of(self.lookup(node.func.id))
                except KeyError:
                    continue
                if called is None:
                    continue
                names = [p.name for p in called.parameters]
                passed = [*zip(names, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
                wanted = frozenset(called._moduli(callers | {self}))
                for name, value in passed:
                    if name in wanted:
                        yield from own.intersection(_named(value))

    @cached_property
    def closure(self) -> dict[str, Any]:
        """The cells of the enclosing functions, by name."""
        return dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))

    @property
    def builtins(self) -> dict[str, Any]:
        return vars(builtins)

    def lookup(self, name: str) -> Any:
        """The object that a non-local name currently refers to. Raises KeyError."""
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


def last_line(code: types.CodeType, lines: list[str]) -> int:
    """The last line of a definition: the end of its code, and all following lines with deeper indentation than its first line.

    Takes a tenth of the time of `inspect.getblock`, which runs the tokenizer.
    """
    last = code.co_firstlineno
    for current in reachable([code], lambda code: (x for x in code.co_consts if isinstance(x, types.CodeType))):
        last = max(last, max((end or 0 for _, end, _, _ in current.co_positions()), default=0))
    indent = len(lines[code.co_firstlineno - 1]) - len(lines[code.co_firstlineno - 1].lstrip())
    at = last
    while at < len(lines):
        line = lines[at]
        if line.strip():
            if len(line) - len(line.lstrip()) <= indent:
                break
            last = at + 1
        at += 1
    return last


def is_annotation(annotation: Any, kind: type) -> bool:
    """Whether an annotation is `constexpr` or `const`. Under `from __future__ import annotations` it is a string."""
    return annotation is kind or (
        isinstance(annotation, str) and annotation.rpartition(".")[2].strip("'\" ") == kind.__name__
    )


def _named(node: ast.AST) -> tuple[str, ...]:
    return (node.id,) if isinstance(node, ast.Name) else ()


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
