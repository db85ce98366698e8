"""Writes the API reference: a page in MyST Markdown for each package, from the signatures and docstrings of its public names.

The docstrings of blocknb are Markdown, so each becomes the text of a directive of Sphinx's Python domain (`py:function`, `py:class`).
sphinx.ext.autodoc reads reStructuredText only. The domain makes the names findable: the index, the search, and links to them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from inspect import Parameter, Signature
from types import ModuleType
from typing import Any

from sphinx.util.inspect import object_description, signature, stringify_signature

#: The packages with a page.
PACKAGES = (
    "blocknb",
    "blocknb.language",
    "blocknb.kernels",
    "blocknb.torch",
    "blocknb.torch.nn",
    "blocknb.testing",
    "blocknb.learn",
)
SECTIONS = ("Functions", "Classes", "Errors", "Modules", "Constants")
#: The path of a page in a docstring, which becomes a link with the title of the page.
_PAGE = re.compile(r"(?<![\w/(`\[])docs/[\w/]+\.md\b")
_INDENTED = re.compile(r"(?:^(?: {4}.*)?\n)*^ {4}.*$", re.MULTILINE)


def page(package: str) -> str:
    """The page of a package in MyST Markdown."""
    module = importlib.import_module(package)
    names = [name for name in module.__all__ if not name.startswith("_")]
    groups: dict[str, list[str]] = {section: [] for section in SECTIONS}
    for name in sorted(names, key=str.lower):
        value = getattr(module, name)
        if not getattr(value, "__module__", "blocknb").startswith("blocknb"):
            continue  # Python's own `slice` and `tuple`, which the language exports for Triton's sake
        groups[_section(value)].append(name)
    blocks = [f"# {package}", f"```{{py:module}} {package}\n```", markdown(module)]
    for section, members in groups.items():
        if members:
            blocks += [f"## {section}", *(entry(name, getattr(module, name)) for name in members)]
    return "\n\n".join(blocks) + "\n"


def _section(value: Any) -> str:
    """The section that lists a value."""
    if isinstance(value, type):
        return "Errors" if issubclass(value, BaseException) else "Classes"
    return "Modules" if isinstance(value, ModuleType) else "Functions" if callable(value) else "Constants"


def entry(name: str, value: Any) -> str:
    """The directive of a public name: its signature and its docstring, for a class also its members. A module is a line."""
    if isinstance(value, ModuleType):
        path = value.__name__
        about = inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0]
        return f"- {f'[{path}]({path}.md)' if path in PACKAGES else f'`{path}`'}: {' '.join(about.split())}"
    if isinstance(value, type):
        kind = "py:exception" if issubclass(value, BaseException) else "py:class"
        return fence(kind, name + arguments(value), "\n\n".join([markdown(value), *members(value)]))
    if not callable(value):
        return fence("py:data", name, getattr(value, "says", ""), type=type(value).__name__)  # of a rule, its sentence
    return fence("py:function", name + arguments(value), markdown(value))


def members(cls: type) -> Iterator[str]:
    """The directives of the documented methods and properties that a class itself defines."""
    for name, found in vars(cls).items():
        value = getattr(found, "__func__", found)  # of a classmethod or a staticmethod
        if name.startswith("_") or not (text := markdown(value)):
            continue
        if isinstance(value, property | cached_property):
            yield fence("py:property", name, text)
        elif inspect.isfunction(value):
            flags = {} if value is found else {type(found).__name__: ""}
            yield fence("py:method", name + arguments(value, bound="staticmethod" not in flags), text, **flags)


def arguments(value: Any, bound: bool = False) -> str:
    """The parameters as their source has them, without `self`; empty for an enumeration, and where Python knows no signature."""
    if isinstance(value, type) and issubclass(value, Enum):
        return ""
    try:
        found = signature(value)
    except (TypeError, ValueError):
        return ""
    given = [_readable(parameter) for parameter in found.parameters.values()]
    returned = Signature.empty if isinstance(value, type) else found.return_annotation
    found = found.replace(parameters=given[1:] if bound else given, return_annotation=returned)
    return stringify_signature(found, unqualified_typehints=True)


class _Omitted:
    """A default that a signature shows as `...`."""

    def __repr__(self) -> str:
        """The text in the signature."""
        return "..."


def _readable(parameter: Parameter) -> Parameter:
    """The parameter, with `...` for a default that Python cannot read back, such as a function; Sphinx then cannot parse the others."""
    if parameter.default is Parameter.empty:
        return parameter
    try:
        ast.parse(object_description(parameter.default), mode="eval")
    except SyntaxError:
        return parameter.replace(default=_Omitted())
    return parameter


def markdown(value: Any) -> str:
    """The docstring of an object itself, not of its base class, with blocks of code in fences."""
    if not vars(value).get("__doc__") if isinstance(value, type) else not getattr(value, "__doc__", None):
        return ""
    text = _PAGE.sub(r"[](../\g<0>)", inspect.cleandoc(value.__doc__))
    return _INDENTED.sub(lambda match: f"\n```default\n{inspect.cleandoc(match[0])}\n```", text)


def fence(directive: str, argument: str, content: str, **options: str) -> str:
    """A directive. Its fence is longer than those of the content."""
    ticks = "`" * (1 + max((len(run) for run in re.findall(r"`{3,}", content)), default=2))
    flags = "".join(f"\n:{key}: {value}".rstrip() for key, value in options.items())
    return f"{ticks}{{{directive}}} {argument}{flags}\n\n{content}\n{ticks}"
