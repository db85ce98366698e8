"""Checks a card's document against the page's schema: the types of schema.ts, parts.ts and *_part.ts in labextension/src/core/.

The reader understands the part of TypeScript that these files use: interfaces, `extends Omit<...>`, aliases, unions of literals, arrays,
tuples, `Record`, `Partial` and inline objects. A document may have no fields that the schema lacks. Every blob must be readable, and every
hash that the document names must be the hash of a blob.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import blocknb

FILE = Path(blocknb.__file__).resolve().parents[1] / "labextension" / "src" / "core" / "schema.ts"
PARTS = (FILE, FILE.with_name("parts.ts"), *sorted(FILE.parent.glob("*_part.ts")))
_TOKEN = re.compile(r"'[^']*'|[A-Za-z_$][\w$]*|\d+|=>|[{}\[\]<>|;:,?()=]")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)


@dataclass
class Shape:
    """The fields of an object, each with its type; an `optional` field may be absent."""

    fields: dict[str, Any] = field(default_factory=dict)
    optional: set[str] = field(default_factory=set)


class SchemaReader:
    """Reads declarations from tokens. A type is a Shape or a tuple: ("union", ...), ("array", t), ("tuple", ...), ("record", k, v),
    ("partial", t), ("omit", t, name), ("literal", text), ("name", text)."""

    def __init__(self, text: str):
        self.tokens, self.at = _TOKEN.findall(_COMMENT.sub("", text)), 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        found = self.peek()
        if wanted and found != wanted:
            raise ValueError(f"schema.ts: {found!r} stands where {wanted!r} is expected")
        self.at += 1
        return found

    def accept(self, wanted: str) -> bool:
        if self.peek() != wanted:
            return False
        self.at += 1
        return True

    def type(self) -> Any:
        parts = [self.postfix()]
        while self.accept("|"):
            parts.append(self.postfix())
        return parts[0] if len(parts) == 1 else ("union", *parts)

    def postfix(self) -> Any:
        found = self.primary()
        while self.peek() == "[" and self.tokens[self.at + 1] == "]":
            self.at += 2
            found = ("array", found)
        return found

    def primary(self) -> Any:
        token = self.peek()
        if token == "{":
            return self.shape()
        if self.accept("["):
            parts = [self.type()]
            while self.accept(","):
                parts.append(self.type())
            self.take("]")
            return ("tuple", *parts)
        if self.accept("("):
            found = self.type()
            self.take(")")
            return found
        self.at += 1
        if token[0] == "'":
            return ("literal", token[1:-1])
        if self.accept("<"):
            given = [self.type()]
            while self.accept(","):
                given.append(self.type())
            self.take(">")
            return (token.lower(), *given)
        return ("name", token)

    def shape(self) -> Shape:
        found = Shape()
        self.take("{")
        while not self.accept("}"):
            name = self.take().strip("'")
            if self.accept("?"):
                found.optional.add(name)
            self.take(":")
            found.fields[name] = self.type()
            if self.peek() in ";,":
                self.take()
        return found


@cache
def declared() -> dict[str, Any]:
    """The interfaces and aliases of the schema by name; empty without a source tree."""
    if not FILE.is_file():
        return {}
    text = "\n".join(path.read_text() for path in PARTS)
    found: dict[str, Any] = {}
    for match in re.finditer(r"^(?:export )?(interface|type) (\w+)(?: extends ([^{]+))?", text, re.M):
        reader = SchemaReader(text[match.end() :])
        if match[1] == "type":
            reader.take("=")
            found[match[2]] = reader.type()
        else:
            shape = reader.shape()
            found[match[2]] = ("both", SchemaReader(match[3]).type(), shape) if match[3] else shape
    return found


def problem(document: Any) -> str:
    """Where a document differs from the schema; "" if nowhere, or without a source tree."""
    known = declared()
    if not known:
        return ""
    return _wrong(document, ("name", "Document"), known, "document") or _blobs(document)


_PLAIN: dict[str, tuple[type, ...]] = {"string": (str,), "number": (int, float), "boolean": (bool,)}


def _wrong(value: Any, kind: Any, known: dict[str, Any], where: str) -> str:
    """Why a value does not have a type; "" if it does."""
    if isinstance(kind, Shape):
        return _object(value, kind, known, where)
    match kind:
        case ("name", "null"):
            return "" if value is None else f"{where} is {value!r:.80}, not null"
        case ("name", "unknown"):
            return ""
        case ("name", str(name)) if name in _PLAIN:
            fits = isinstance(value, _PLAIN[name]) and (name == "boolean" or not isinstance(value, bool))
            return "" if fits else f"{where} is {value!r:.80}, not a {name}"
        case ("name", str(name)):
            return _wrong(value, known[name], known, where)
        case ("literal", text):
            return "" if value == text else f"{where} is {value!r:.80}, not {text!r}"
        case ("union", *parts):
            reasons = [_wrong(value, part, known, where) for part in parts]
            return "" if "" in reasons else min(reasons, key=lambda r: -len(r.split(" is ")[0]))
        case ("array", part):
            return _elements(value, (part,) * len(value) if isinstance(value, list) else (), known, where)
        case ("tuple", *parts):
            return _elements(value, tuple(parts), known, where)
        case ("record", key, part):
            return _record(value, key, part, known, where)
    shape = _shape(kind, known)
    return _wrong(value, shape, known, where)


def _shape(kind: Any, known: dict[str, Any]) -> Any:
    """The Shape of a type that is made of others."""
    match kind:
        case ("name", str(name)):
            return _shape(known[name], known)
        case ("both", base, own):
            base = _shape(base, known)
            return Shape({**base.fields, **own.fields}, base.optional | own.optional)
        case ("omit", base, ("literal", name)):
            base = _shape(base, known)
            return Shape({n: t for n, t in base.fields.items() if n != name}, base.optional)
        case ("partial", ("record", key, part)):
            names = [text for _, text in known[key[1]][1:]]
            return Shape(dict.fromkeys(names, part), set(names))
    return kind


def _object(value: Any, shape: Shape, known: dict[str, Any], where: str) -> str:
    if not isinstance(value, dict):
        return f"{where} is {value!r:.80}, not an object"
    for name in value:
        if name not in shape.fields:
            return f"{where}.{name} is not in the schema"
    for name, kind in shape.fields.items():
        if name not in value:
            if name not in shape.optional:
                return f"{where}.{name} is missing"
        elif found := _wrong(value[name], kind, known, f"{where}.{name}"):
            return found
    return ""


def _elements(value: Any, kinds: tuple[Any, ...], known: dict[str, Any], where: str) -> str:
    if not isinstance(value, list | tuple) or len(value) != len(kinds):
        return f"{where} is {value!r:.80}, not an array of {len(kinds)}"
    found = (
        _wrong(part, kind, known, f"{where}[{i}]") for i, (part, kind) in enumerate(zip(value, kinds, strict=True))
    )
    return next((reason for reason in found if reason), "")


def _record(value: Any, key: Any, part: Any, known: dict[str, Any], where: str) -> str:
    if not isinstance(value, dict):
        return f"{where} is {value!r:.80}, not an object"
    for name, one in value.items():
        if found := _wrong(name, key, known, f"the key {name!r} of {where}") or _wrong(
            one, part, known, f"{where}.{name}"
        ):
            return found
    return ""


def _blobs(document: dict[str, Any]) -> str:
    """Whether every blob is readable, and every text of a view is a blob."""
    from blocknb.notebook.blobs import read

    blobs = document["blobs"]
    for name in blobs:
        try:
            content = read(blobs, name)
        except (KeyError, ValueError, OSError, EOFError) as error:
            return f"blob {name} is not readable: {type(error).__name__}: {error}"
        if len(content["lines"]) != content["text"].count("\n") + 1:
            return f"blob {name} has {len(content['lines'])} line numbers for its text"
    for view in document["views"]:
        texts = [stage["text"] for stage in view.get("stages", ())] + list(view.get("code", {}).values())
        if missing := [text for text in texts if text is not None and text not in blobs]:
            return f"the view {view['label']} names the blob {missing[0]}, which is missing"
    return ""
