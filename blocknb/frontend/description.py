"""Describes Python objects by text for cache keys, and checks cheaply whether an object still matches its description.

A `Collector` walks over everything that an object reaches: elements, attributes, closures, defaults, classes, and the globals that
functions name. State that two processes can compare becomes text. State that may change in place gets a check that compares object
identities. An object is opaque if its state cannot be read. Examples are a generator, a file, the cache of `functools.lru_cache`, and a C
function that depends on more than its arguments. Other processes must not use a text with opaque objects, and every launch repeats calls
that reach one.
"""

from __future__ import annotations

import builtins
import copyreg
import enum
import functools
import hashlib
import inspect
import operator
import types
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.frontend.bytecode_reads import digest, reads
from blocknb.frontend.libraries import (
    VALUES,
    is_blocknb,
    is_importable,
    is_pure,
    library_class,
    library_file,
    library_module,
    version,
)
from blocknb.frontend.source import MISSING, Source, source_of
from blocknb.language.constants import constexpr
from blocknb.language.types import TypeQueries

ATOMS = (bool, int, float, complex, str, bytes, type(None))
EXACT = frozenset(ATOMS)
_FIXED = (*ATOMS, constexpr, TypeQueries)  # their description includes the attributes
_METHODS = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)
_MEMORIES = (type(functools.lru_cache(len)),)
#: Attributes that Python adds to every class.
MADE = frozenset((
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__dataclass_fields__",
    "__dataclass_params__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__orig_bases__", "__parameters__",
    "__static_attributes__", "__type_params__", "__weakref__", "_abc_impl", "_value2member_map_",
))  # fmt: skip
_MOST = 5_000  # a larger object graph is opaque
_ARRAY = 1 << 16  # bytes; each check reads arrays up to this size


class Collector:
    """One walk over the objects that a kernel reaches. `sources` are the kernels by function, and `parts` are their texts.

    There are three kinds of checks, from cheap to expensive. `places` are (dictionary, name, object) and `fields` are (object,
    attribute, value). Both compare identities. `checks` are functions that return whether the state is unchanged.
    """

    def __init__(self) -> None:
        self.sources: dict[Any, Source] = {}
        self.parts: list[str] = []
        self.places: list[tuple[Any, str, Any]] = []
        self.fields: list[tuple[Any, str, Any]] = []
        self.checks: list[Callable[[], bool]] = []
        self.unknown: list[str] = []  # names of opaque objects
        self._seen: dict[int, tuple[int, Any]] = {}  # objects that may reach themselves; the list keeps them alive
        self._visited = 0

    @property
    def persistent(self) -> bool:
        """Whether the text means the same in another process."""
        return not self.unknown

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.parts).encode("utf-8", "backslashreplace")).hexdigest()

    # ---- kernels -------------------------------------------------------------------------------------------------------------

    def reach(self, source: Source) -> str:
        """Adds a kernel, its defaults and its references. Returns the text that represents it in other descriptions."""
        if source.function not in self.sources:
            text = inspect.cleandoc(source.text)
            self.sources[source.function] = source
            self.parts.append(f"def {source.name}:\n{text}")
            self._watch_defaults(source.function)
            for parameter in source.parameters:
                if parameter.default is not MISSING:
                    self.parts.append(f"{source.name}({parameter.name}={self.describe(parameter.default)})")
            for path in source.references:
                self.parts.append(f"{source.name}: {'.'.join(path)} = {self._name(source.function, path)}")
        return f"<function {list(self.sources).index(source.function)}>"

    def _watch_defaults(self, function: types.FunctionType) -> None:
        """Adds checks for the defaults of a function.

        Callers pass all arguments to a function without defaults, so new defaults would not matter. The launch reads the parameters of
        a kernel without its constexprs, so these need a check here.
        """
        if function.__defaults__ is not None:
            self.fields.append((function, "__defaults__", function.__defaults__))
        if function.__kwdefaults__ is not None:
            self.fields.append((function, "__kwdefaults__", function.__kwdefaults__))
            self._watch_items(function.__kwdefaults__)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            if isinstance(default, constexpr):
                self.fields.append((default, "value", default.value))

    # ---- names and attributes ------------------------------------------------------------------------------------------------

    def _name(self, function: types.FunctionType, path: tuple[str, ...]) -> str:
        """The text of the object that a dotted path refers to in a function."""
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        if path[0] in cells:
            cell = cells[path[0]]
            found = _contents(cell)
            self.checks.append(lambda: _contents(cell) is found)
        else:
            place = function.__globals__
            if path[0] not in place:
                self.places.append((place, path[0], MISSING))
                place = vars(builtins)
            found = place.get(path[0], MISSING)
            self.places.append((place, path[0], found))
        return self.follow(found, path[1:])

    def follow(self, found: Any, names: tuple[str, ...]) -> str:
        """Follows attributes from an object and describes the last one.

        Attributes are read by Python's rules, so properties are evaluated. Every check reads each property again.
        """
        for i, name in enumerate(names):
            if found is MISSING or isinstance(found, _FIXED):
                break
            if isinstance(found, types.ModuleType):
                place = vars(found)
                if is_blocknb(found.__name__):
                    value = _read(found, name)
                    if not isinstance(value, types.ModuleType) and is_blocknb(
                        getattr(value, "__module__", None) or "blocknb"
                    ):
                        return f"{found.__name__}.{'.'.join(names[i:])}"
                if name in place or "__getattr__" not in place:
                    self.places.append((place, name, place.get(name, MISSING)))
                    found = place.get(name, MISSING)
                    continue
            value, once_more = _read(found, name), _read(found, name)
            if value is once_more:
                self.checks.append(functools.partial(_is_same, found, name, value))
            elif isinstance(value, _METHODS) and value == once_more:
                self.checks.append(functools.partial(_is_equal, found, name, value))
            else:  # a property: the check compares its result
                return self._computed(functools.partial(_read_all, found, names[i:]))
            found = value
        return self.describe(found)

    def _computed(self, read: Callable[[], Any]) -> str:
        check = ValueCheck.of(read())
        self.unknown += check.unknown
        self.checks.append(lambda: check(read()))
        return check.text

    # ---- objects -------------------------------------------------------------------------------------------------------------

    def describe(self, x: Any) -> str:
        if type(x) in EXACT or isinstance(x, (TypeQueries, np.generic)):
            return f"{type(x).__name__} {x!r}"
        if x is MISSING:
            return "<undefined>"
        if isinstance(x, constexpr):
            self.fields.append((x, "value", x.value))
            return f"constexpr {self.describe(x.value)}"
        self._visited += 1
        if self._visited > _MOST:
            return self.opaque(x)
        if type(x) is tuple:
            return f"tuple ({', '.join(map(self.describe, x))})"
        if isinstance(x, types.ModuleType):  # code may look up any entry by a computed name
            return f"module {x.__name__}" if is_blocknb(x.__name__) or is_pure(x.__name__, "") else self.opaque(x)
        if isinstance(x, _METHODS):
            return self._method(x)
        source = source_of(x)
        if source is not None:
            if getattr(x, "inline", False) and is_blocknb(x.__module__):
                return f"{x.__module__}.{x.__qualname__}"
            return self.reach(source)
        if id(x) in self._seen:
            return f"<{self._seen[id(x)][0]}>"
        self._seen[id(x)] = len(self._seen), x
        return self._object(x)

    def opaque(self, x: Any) -> str:
        """The text of an object that only this process can identify."""
        named = x if hasattr(x, "__qualname__") else type(x)
        module = getattr(named, "__module__", None) or getattr(getattr(x, "__self__", None), "__name__", "")
        self.unknown.append(f"{module}.{named.__qualname__}".removeprefix("builtins.").removeprefix("__main__."))
        return f"<{type(x).__module__}.{type(x).__qualname__} at {id(x)}>"

    def _object(self, x: Any) -> str:
        if isinstance(x, types.FunctionType):
            return self._function(x)
        if isinstance(x, type):
            return self._class(x)
        if isinstance(x, (staticmethod, classmethod)):
            return f"{type(x).__name__} {self.describe(x.__func__)}"
        if isinstance(x, property):
            return f"property {self.describe((x.fget, x.fset, x.fdel))}"
        if isinstance(x, functools.cached_property):
            return f"cached_property {self.describe(x.func)}"
        if isinstance(x, functools.partial):
            return f"partial {self.describe((x.func, x.args, x.keywords))}"
        if isinstance(x, _MEMORIES):
            return (
                f"memory of {self.describe(x.__wrapped__)} {self.opaque(x)}"  # the contents of the cache cannot be read
            )
        if isinstance(x, np.ndarray) and type(x) is np.ndarray:
            return self._array(x)
        if isinstance(x, _SLOTS) or (callable(x) and library_module(type(x).__module__)):
            return self._library(x, getattr(x, "__module__", None) or type(x).__module__)
        return self._instance(x)

    def _function(self, function: types.FunctionType) -> str:
        """The text of a host function: its bytecode, its defaults and everything that it names."""
        module, name = function.__module__ or "", function.__qualname__
        if is_blocknb(module):
            return f"{module}.{name}"
        code = function.__code__
        if library_file(code.co_filename):
            made_in = str(function.__globals__.get("__name__"))
            if not is_pure(made_in, name):
                return self.opaque(function)
            if is_importable(module, name, function):
                return f"{module}.{name} {version(module)}"
            held = [
                self.describe(_contents(cell)) for cell in function.__closure__ or ()
            ]  # a wrapper of a user's function
            return f"{made_in} {version(made_in)} {digest(code)} [{'; '.join(held)}]"
        self.fields.append((function, "__code__", code))
        self._watch_defaults(function)
        found = reads(code)
        lines = [f"def {name} {digest(code)}", self.describe((function.__defaults__, function.__kwdefaults__))]
        lines += [f"{'.'.join(path)} = {self._name(function, path)}" for path in (*found.names, *found.cells)]
        for imported in found.modules:
            if not is_pure(imported, "") and not is_blocknb(imported):
                self.unknown.append(imported)
        return f"[{'; '.join(lines)}]"

    def _method(self, method: Any) -> str:
        """The text of a bound method. If it is a Python function that only reads attributes of its object, the text covers these alone."""
        owner = method.__self__
        if isinstance(method, types.MethodType):
            function = method.__func__
            text = f"method {self.describe(function)}"
            if isinstance(function, types.FunctionType) and not library_file(function.__code__.co_filename):
                paths = reads(function.__code__).first
                if paths is not None:
                    return f"{text} of {'; '.join(f'{path} = {self.follow(owner, path)}' for path in paths)}"
            return f"{text} of {self.describe(owner)}"
        if isinstance(owner, types.ModuleType):
            return self._library(method, method.__module__ or owner.__name__)
        if isinstance(owner, type):
            return self._library(method, owner.__module__)
        return f"method {method.__name__} of {self.describe(owner)}"

    def _library(self, x: Any, module: str) -> str:
        """The text of a library's callable: its name and version."""
        name = getattr(x, "__qualname__", None) or getattr(x, "__name__", None)
        known = isinstance(x, (*_SLOTS, *_METHODS)) or (name is not None and is_importable(module, name, x))
        if name is None or not known or not (is_pure(module, name) or isinstance(x, _SLOTS)):
            return self.opaque(x)
        return f"{module}.{name} {version(module)}"

    def _class(self, cls: type) -> str:
        if is_blocknb(cls.__module__):
            return f"{cls.__module__}.{cls.__qualname__}"
        if library_class(cls):
            return f"{cls.__module__}.{cls.__qualname__}" if is_pure(cls.__module__, "") else self.opaque(cls)
        lines = [f"class {cls.__qualname__}"]
        for each in cls.__mro__:
            if library_class(each) or is_blocknb(each.__module__):
                lines.append(f"{each.__module__}.{each.__qualname__} {version(each.__module__)}")
                continue
            held = vars(each)
            self._watch_items(held)
            lines += [f"{name}: {self.describe(held[name])}" for name in sorted(set(held) - MADE)]
        if not library_class(type(cls)):
            lines.append(self.describe(type(cls)))
        return f"[{'; '.join(lines)}]"

    def _instance(self, x: Any) -> str:
        """The text of an object's state: its contents as a container or number, its attributes and slots, and its class."""
        cls = type(x)
        lines: list[str] = []
        if isinstance(x, (list, deque)):
            self._watch_elements(x)
            lines += map(self.describe, x)
        elif isinstance(x, tuple):
            lines += map(self.describe, tuple.__iter__(x))
        elif isinstance(x, dict):
            self._watch_items(x)
            lines += [f"{self.describe(k)}: {self.describe(v)}" for k, v in list(dict.items(x))]
            lines.append(self.describe(getattr(x, "default_factory", None)))
        elif isinstance(x, (set, frozenset)):
            self.checks.append(functools.partial(operator.eq, x, frozenset(x)))
            lines += sorted(map(self.describe, x))
        elif isinstance(x, (int, float, complex, str, bytes)):
            kind = next(k for k in (int, float, complex, str, bytes) if isinstance(x, k))
            lines.append(kind.__repr__(x))
        elif library_class(cls) and cls is not types.SimpleNamespace:
            return self._value(x)
        lines += self._attributes(x)
        known = library_class(cls) or is_blocknb(cls.__module__)
        shown = f"{cls.__module__}.{cls.__qualname__} {version(cls.__module__)}" if known else self._class_of(x)
        return f"{shown} ({', '.join(lines)})"

    def _class_of(self, x: Any) -> str:
        text = self.describe(type(x))
        libraries = (base.__module__.split(".")[0] for base in type(x).__mro__ if library_class(base))
        if set(libraries) <= VALUES:
            return text
        return f"{text} {self.opaque(x)}"  # such a base may have state that Python cannot read

    def _attributes(self, x: Any) -> list[str]:
        lines = []
        held = getattr(x, "__dict__", None)
        if isinstance(held, dict):
            self._watch_items(held)
            lines += [f"{name}={self.describe(held[name])}" for name in sorted(held, key=str)]
        for name in copyreg._slotnames(type(x)):  # type: ignore[attr-defined]
            value = _read(x, name)
            self.checks.append(functools.partial(_is_same, x, name, value))
            lines.append(f"{name}={self.describe(value)}")
        return lines

    def _value(self, x: Any) -> str:
        """The text of an object of a library's class, as `pickle` reduces it."""
        module = type(x).__module__
        if isinstance(x, enum.Enum) or (module == "torch" and type(x).__name__ == "dtype"):
            return f"{module}.{type(x).__qualname__} {x!r}"
        if module.split(".")[0] not in VALUES or module.startswith("numpy.random"):
            return self.opaque(x)
        try:
            state = x.__reduce_ex__(4)[1:3]
        except TypeError:  # the state of an object that cannot be pickled is opaque
            return self.opaque(x)
        self.checks.append(lambda: x.__reduce_ex__(4)[1:3] == state)
        return f"{module}.{type(x).__qualname__} {version(module)} {self.describe(state)}"

    def _array(self, x: np.ndarray) -> str:
        if x.nbytes > _ARRAY or x.dtype.hasobject:
            return self.opaque(x)
        text = _contents_of_array(x)
        self.checks.append(lambda: _contents_of_array(x) == text)
        return text

    # ---- checks --------------------------------------------------------------------------------------------------------------

    def _watch_elements(self, x: Collection[Any]) -> None:
        before = tuple(x)
        self.checks.append(lambda: _same_elements(x, before))

    def _watch_items(self, x: Mapping[Any, Any]) -> None:
        keys, values = tuple(x.keys()), tuple(x.values())
        self.checks.append(lambda: _same_elements(x.keys(), keys) and _same_elements(x.values(), values))


def described(x: Any) -> tuple[str, tuple[str, ...]]:
    """The text of an object, and the names of the opaque objects in it."""
    collector = Collector()
    text = collector.describe(x)
    return text if not collector.parts else f"{text} {collector.digest()}", tuple(collector.unknown)


@dataclass(frozen=True, eq=False)
class ValueCheck:
    """Compares a later value with an earlier one: by text, or by identity if the object is opaque."""

    value: Any
    text: str
    unknown: tuple[str, ...]

    @staticmethod
    def of(value: Any) -> ValueCheck:
        return ValueCheck(value, *described(value))

    def __call__(self, now: Any) -> bool:
        if now is self.value and (self.unknown or type(now) in EXACT):
            return True
        return not self.unknown and described(now)[0] == self.text


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the enclosing function has not assigned it yet
        return MISSING


def _read(owner: Any, name: str) -> Any:
    """The value of an attribute, MISSING if there is none, or a text if a property raises an exception."""
    try:
        return getattr(owner, name, MISSING)
    except Exception as error:  # the compilation reads it as well and reports the error
        return f"<raises {type(error).__name__}: {error}>"


def _read_all(owner: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if owner is MISSING or isinstance(owner, _FIXED):
            break
        owner = _read(owner, name)
    return owner


def _is_same(owner: Any, name: str, value: Any) -> bool:
    return _read(owner, name) is value


def _is_equal(owner: Any, name: str, method: Any) -> bool:
    found = _read(owner, name)
    return type(found) is type(method) and found == method


def _same_elements(x: Collection[Any], before: tuple[Any, ...]) -> bool:
    return len(x) == len(before) and all(map(operator.is_, list(x), before))


def _contents_of_array(x: np.ndarray) -> str:
    return f"ndarray {x.dtype.str} {x.shape} {hashlib.sha256(x.tobytes()).hexdigest()}"
