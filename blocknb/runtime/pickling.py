"""Pickling of kernels: a kernel that another process receives compiles there, and finds the code that any process of the host has cached.

A kernel that the other process can import travels as its name. Any other kernel (of a notebook cell, a script, a function, a file that is
no module) travels by value. The value has the text of its definition, its options, and the objects that its names refer to. Helpers are
such objects. The receiver makes a function of the text, and adds the lines to `linecache`, so that errors show them. `pickle` suffices if
it can pickle these objects; functions of `__main__` among them need cloudpickle, which Dask uses.

The receiver keeps the latest kernels by their content. A kernel that arrives with every task is therefore made once per process.
"""

from __future__ import annotations

import ast
import collections
import importlib
import sys
import threading
import types
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from blocknb.errors import keep_lines
from blocknb.frontend.dependencies import dependencies
from blocknb.frontend.source import Source
from blocknb.language.constants import const, constexpr

_KEPT = 256  # received kernels that stay alive
#: Kernels that were sent or received by value, by their content.
_known: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
_alive: collections.deque[Picklable] = collections.deque(maxlen=_KEPT)
_lock = threading.Lock()
Path = tuple[str, str, int]  # module, qualified name, and how many wrappers are around the object


@dataclass(frozen=True)
class KernelText:
    """The text of a kernel's definition with its place, its names, and the arguments of the decorator."""

    name: str
    qualname: str
    module: str
    doc: str | None
    file: str
    first_line: int
    text: str
    annotations: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class ModuleReference:
    """A module in the place of a captured object, because `pickle` cannot pickle modules."""

    name: str


def reduced(kernel: Any) -> tuple[Any, ...]:
    """The answer of a kernel's `__reduce__`. Raises SyntaxUnsupported if the kernel has no text."""
    if kernel.source.function is vars(kernel).get("__wrapped__") and (path := path_of(kernel)) is not None:
        return find, path
    source = kernel.source
    options = {"do_not_specialize": kernel._do_not_specialize, "repr": kernel.rename, "interpret": kernel.interpreted}
    found = KernelText(
        source.name,
        getattr(kernel, "__qualname__", source.name),
        getattr(kernel, "__module__", None) or "__main__",
        source.function.__doc__,
        source.file,
        source.first_line,
        source.text,
        tuple((p.name, "constexpr" if p.constexpr else "const") for p in source.parameters if p.constexpr or p.const),
        tuple({**kernel.options, **options}.items()),
    )
    function = source.function
    state = {
        "captured": dict(_captured(source)),
        "defaults": (function.__defaults__, function.__kwdefaults__),
        "heuristics": vars(kernel).get("heuristics", ()),
    }
    token = _token(source, found)
    if token is not None:
        with _lock:
            _known.setdefault(token, kernel)
    return receive, (type(kernel), found, token), state


def path_of(thing: Any) -> Path | None:
    """Where another process finds an object by an import: module, name and depth. None if it cannot."""
    module, name = getattr(thing, "__module__", None) or "", getattr(thing, "__qualname__", None) or ""
    if not module or not name or "<" in name or not importable(module):
        return None
    outer: Any = sys.modules[module]
    for attribute in name.split("."):
        outer = getattr(outer, attribute, None)
    for depth in range(8):
        if outer is thing:
            return module, name, depth
        outer = getattr(outer, "fn", None)  # `@autotune` and `@heuristics` give the name to a wrapper
    return None


def find(module: str, name: str, depth: int) -> Any:
    """The object at a path of `path_of`. Raises ImportError or AttributeError."""
    found: Any = importlib.import_module(module)
    for attribute in (*name.split("."), *["fn"] * depth):
        found = getattr(found, attribute)
    return found


def importable(name: str) -> bool:
    """Whether an import in another process finds the module. A module that `cloudpickle.register_pickle_by_value` names counts as not."""
    module = sys.modules.get(name)
    parts = name.split(".")
    parents = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    if module is None or name in ("__main__", "__mp_main__") or parents & _sent_by_value():
        return False
    if name in sys.builtin_module_names:
        return True
    path = getattr(sys.modules.get(name.rpartition(".")[0]), "__path__", None)
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path, None) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return getattr(getattr(module, "__spec__", None), "origin", None) == spec.origin
    return False


def _sent_by_value() -> set[str]:
    registry = getattr(sys.modules.get("cloudpickle"), "list_registry_pickle_by_value", set)
    return set(registry())


def _captured(source: Source) -> Iterator[tuple[str, Any]]:
    """The names that a kernel reads from outside, with their objects. Builtins and names without an object are left out."""
    space = {**source.function.__globals__}
    for name, cell in source.closure.items():
        try:
            space[name] = cell.cell_contents
        except ValueError:  # the enclosing function has not assigned it yet
            space.pop(name, None)
    for name in dict.fromkeys(path[0] for path in source.references):
        if name in space:
            value = space[name]
            by_name = isinstance(value, types.ModuleType) and importable(value.__name__)
            yield name, ModuleReference(value.__name__) if by_name else value


def _token(source: Source, definition: KernelText) -> Any:
    """A text that identifies a kernel by its content; None if it reaches objects that only this process knows."""
    reached = dependencies(source)
    if not reached.persistent or dict(definition.options)["repr"] is not None:
        return None
    options = tuple((name, repr(value)) for name, value in definition.options)
    return reached.key, definition.file, definition.first_line, definition.module, definition.qualname, options


def receive(kernel_class: type[Any], definition: KernelText, token: Any) -> Any:
    """The kernel of this content, or a new one, which `fill` completes."""
    with _lock:
        known = None if token is None else _known.get(token)
    if known is not None and dependencies(known.source).key == token[0]:
        return known
    first, lines = definition.first_line, definition.text.splitlines()
    keep_lines(definition.file, {first + i: line for i, line in enumerate(lines)}, replace=True)
    kernel = kernel_class(_function(definition), **dict(definition.options))
    kernel.source.use_text(definition.text)
    vars(kernel)["received"] = token
    return kernel


def fill(kernel: Any, state: Mapping[str, Any]) -> None:
    """Gives a new kernel its captured objects and its defaults. A kernel that was known already keeps its own."""
    if "received" not in vars(kernel):
        return
    token = vars(kernel).pop("received")
    function = kernel.source.function
    for name, value in state["captured"].items():
        found = importlib.import_module(value.name) if isinstance(value, ModuleReference) else value
        function.__globals__[name] = found
    function.__defaults__, function.__kwdefaults__ = state["defaults"]
    if state["heuristics"]:
        vars(kernel)["heuristics"] = state["heuristics"]
    with _lock:
        _alive.append(kernel)
        if token is not None:
            _known[token] = kernel


def _function(definition: KernelText) -> types.FunctionType:
    """The function of a definition, without decorators, with empty globals. Free variables become globals."""
    indented = definition.text[:1].isspace()
    padding = "\n" * (definition.first_line - 1 - indented)
    tree = ast.parse(padding + ("if 1:\n" if indented else "") + definition.text, definition.file)
    node: Any = tree.body[0]
    node = node.body[0] if indented else node
    node.decorator_list, node.returns = [], None
    node.args.defaults, node.args.kw_defaults = [], [None] * len(node.args.kwonlyargs)
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        argument.annotation = None
    module = compile(tree, definition.file, "exec", dont_inherit=True)
    code = next(x for x in module.co_consts if isinstance(x, types.CodeType) and x.co_name == node.name)
    code = code.replace(co_firstlineno=definition.first_line, co_qualname=definition.qualname)
    space = {"__name__": definition.module, "__builtins__": __builtins__}
    function = types.FunctionType(code, space, definition.name)
    function.__qualname__, function.__module__, function.__doc__ = (
        definition.qualname,
        definition.module,
        definition.doc,
    )
    kinds = {"constexpr": constexpr, "const": const}
    function.__annotations__ = {name: kinds[kind] for name, kind in definition.annotations}
    return function


class Picklable:
    """The base class of `Kernel` for `pickle`, cloudpickle and `copy`. A copy is the kernel itself, as for a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        fill(self, state)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
