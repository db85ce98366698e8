"""Reads the text form of the IR, which `blocknb.ir.text` prints.

A line is an op: `%r = name %a, %b {attributes} : result types  // id was ids`. The text omits attributes that follow from the result
types, such as the shape of a splat (see `implied`). Hand-written IR may also omit ids, and result types that the op table infers. The
reader then assigns fresh ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

from blocknb.ir.core import EMPTY, LEVELS, Block, Func, Hint, Op, Value
from blocknb.ir.tokens import IRSyntaxError, OpAnnotation, TextSpan, Tokens, span
from blocknb.language import ops as table
from blocknb.language import types as t
from blocknb.language.bulk import Barriers, TensorMap
from blocknb.language.types import Buffer, Pointer, Tile
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import SharedLayout

# Attributes written bare between the op's name and its operands.
LEADING = {"const": ("value",), "program_id": ("axis",), "num_programs": ("axis",), "arange": ("start", "end")}
LEADING |= {"cmp": ("pred",)}

WORDS = {"True": True, "False": False, "None": None}


def implied(name: str, types: tuple) -> dict[str, Any]:
    """The attributes of an op that follow from its result types."""
    first: Any = types[0] if types else None
    layout = {} if getattr(first, "layout", None) is None else {"layout": first.layout}
    match name:
        case "const" | "alloc" | "tensor_map":
            return {"type": first}
        case "splat" | "broadcast":
            return {"shape": first.shape, **layout}
        case "arange" | "convert" | "local_load":
            return layout
        case "reshape":
            return {"shape": first.shape}
        case "cast" | "bitcast":
            return {"dtype": first.dtype}
        case "if":
            return {"types": tuple(types)}
    return {}


def parse_func(text: str) -> Func:
    """The function that a text describes. Raises IRSyntaxError, a ValueError with the line, if the text is not valid IR."""
    return read_func(text)[0]


def read_func(text: str) -> tuple[Func, dict[Op, TextSpan]]:
    """The function that a text describes, and the place of each op in the text. Raises IRSyntaxError."""
    reader = _Reader(text)
    try:
        return reader.func(), reader.spans
    except IRSyntaxError:
        raise
    except (ValueError, TypeError, AttributeError, LookupError, AssertionError) as error:
        # A type, a layout or an attribute that its own parser refuses. Only this reader knows the line.
        raise reader.fail(f"this is not valid IR ({type(error).__name__}: {error})") from error


def close_to(name: str, names: Iterable[str]) -> str | None:
    """The hint that names what a misspelled name may stand for, or None if no name is similar."""
    import difflib

    close = difflib.get_close_matches(name, list(names), 3)
    return f"did you mean {' or '.join(close)}?" if close else None


class _Reader(Tokens):
    """Recursive descent over the tokens, one token of lookahead."""

    def __init__(self, text: str):
        super().__init__(text)
        self.values: dict[str, Value] = {}
        self.aliases: dict[str, Any] = {}
        self.types: dict[str, Any] = {}
        self.spans: dict[Op, TextSpan] = {}

    # -- names, types, attributes

    def define(self, name: str, type: Any) -> Value:
        if name in self.values:
            raise self.fail(f"{name} is defined twice")
        hint = name[1:].split(".")[0]
        value = self.values[name] = Value(type, "" if hint.isdecimal() else hint)
        return value

    def use(self) -> Value:
        name = self.next("value")
        if name not in self.values:
            hint = close_to(name, self.values) or "define a value above its first use"
            raise self.fail(f"{name} is not defined", hint=hint)
        return self.values[name]

    def layout(self, text: str) -> Any:
        if text.startswith("#"):
            if text not in self.aliases:
                declared = ", ".join(self.aliases) or "none is"
                raise self.fail(
                    f"no layout is called {text}", hint=f"declare it above the function; {declared} declared"
                )
            return self.aliases[text]
        return parse_layout(text)

    def type(self) -> Any:
        if self.kind == "word":
            return Tile(self.dtype(self.next("word")))
        text = self.next("type")
        if text not in self.types:
            self.types[text] = self.read_type(text)
        return self.types[text]

    def read_type(self, text: str) -> Any:
        if text.startswith("ptr"):
            return Tile(self.dtype(text))
        form, rest = text[:-1].split("<", 1)
        if form == "mbarriers":
            return Barriers(int(rest))
        if form == "map":
            dims, _, swizzle = rest.rpartition(", ")
            *box, dtype = dims.split("x")
            return TensorMap(self.dtype(dtype), tuple(map(int, box)), int(swizzle))
        dims, _, layout = rest.partition(", ")
        match = re.fullmatch(r"(?:(\d+)\*)?((?:\d+x)*)(.*)", dims)
        assert match is not None
        shape = tuple(int(n) for n in match[2].split("x")[:-1])
        parts = self.dtype(match[3]), shape, self.layout(layout) if layout else None
        return Tile(*parts) if form == "tile" else Buffer(*parts, int(match[1] or 1))

    def dtype(self, text: str) -> Any:
        if text.startswith("ptr<"):
            return Pointer(self.dtype(text[4:-1]))
        if text not in t.BY_SHORT:
            raise self.fail(f"no dtype is called {text}", hint=close_to(text, t.BY_SHORT))
        return t.BY_SHORT[text]

    def literal(self) -> Any:
        kind = self.kind
        if kind == "number":
            text = self.next("number")
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        if kind == "string":
            return json.loads(self.next("string"))
        if kind in ("alias", "layout"):
            return self.layout(self.next(kind))
        if kind == "type":
            return self.dtype(self.next("type")) if self.word.startswith("ptr") else self.type()
        if kind == "word":
            word = self.next("word")
            return WORDS[word] if word in WORDS else self.dtype(word)
        if self.accept("("):
            return tuple(self.listed(self.literal, ")"))
        if self.accept("{"):
            return dict(self.listed(self.item, "}"))
        raise self.fail(f"{self.word!r} is not a value", ahead=1)

    def item(self) -> tuple[Any, Any]:
        key = self.literal()
        self.expect(":")
        return key, self.literal()

    def attrs(self) -> dict[str, Any]:
        """`{name=value, ...}`, or nothing. A block also opens with a brace, but it never starts with `name =`."""
        following = [token[1] for token in self.tokens[self.position + 1 : self.position + 3]]
        if self.word == "{" and self.tokens[self.position + 1][0] == "word" and following[1] == "=":
            self.expect("{")
            return dict(self.listed(self.attr, "}"))
        return {}

    def attr(self) -> tuple[str, Any]:
        name = self.next("word")
        self.expect("=")
        return name, self.literal()

    # -- functions, blocks, ops

    def func(self) -> Func:
        while self.kind == "alias":
            name = self.next("alias")
            self.expect("=")
            self.aliases[name] = parse_layout(self.next("layout"))
        self.expect("func")
        self.expect("@")
        name = json.loads(self.next("string")) if self.kind == "string" else self.next("word")
        self.expect("(")
        params = self.listed(self.param, ")")
        level = self.next("word")
        if level not in LEVELS:
            raise self.fail(f"no level is called {level}", hint=f"the levels are {', '.join(LEVELS)}")
        attrs = self.attrs()
        self.expect("{")
        loc = self.note().loc
        body = self.block(())
        if self.kind != "end":
            raise self.fail(f"unexpected {self.word!r} after the function", ahead=1)
        hints = tuple(hint for _, hint in params if hint)
        frozen = MappingProxyType(attrs) if attrs else EMPTY
        func = Func(name, tuple(value for value, _ in params), body, level, frozen, hints, loc)
        self.number(func)
        return func

    def number(self, func: Func) -> None:
        """Assigns ids to the ops without one in the text."""
        free = func.next_id
        for op in func.ops():
            if op.id < 0:
                object.__setattr__(op, "id", free)  # no other object refers to the op yet
                free += 1
        func.__dict__.pop("next_id", None)

    def param(self) -> tuple[Value, Hint | None]:
        name = self.next("value")
        self.expect(":")
        value = self.define(name, self.type())
        if not self.accept("div"):
            return value, None
        divisibility = int(self.next("number"))
        least, most = (int(self.next("number")) if self.accept(word) else None for word in ("least", "most"))
        name = json.loads(self.next("string")) if self.kind == "string" else value.name
        return value, Hint(name, divisibility, least, most)

    def block(self, args: tuple[Value, ...]) -> Block:
        """The ops up to the closing brace, which it consumes."""
        ops = []
        while not self.accept("}"):
            ops.append(self.op())
        return Block(args, tuple(ops))

    def op(self) -> Op:
        begin = self.tokens[self.position][2]
        op = self.one_op()
        self.spans[op] = span(
            self.text, begin, len(self.text[begin : self.text.find("\n", begin)].split("//")[0].rstrip())
        )
        return op

    def one_op(self) -> Op:
        names = []
        if self.kind == "value":
            names = self.series(lambda: self.next("value"))
            self.expect("=")
        name = self.next("word")
        match name:
            case "for":
                return self.for_(names)
            case "while":
                return self.while_(names)
            case "if":
                return self.if_(names)
            case "roles":
                return self.roles()
            case name if name in table.REDUCTIONS:
                return self.reduce(name, names)
        if name not in table.OPS:
            raise self.fail(f"no op is called {name}", hint=close_to(name, table.OPS))
        attrs = {key: self.next("word") if key == "pred" else self.literal() for key in LEADING.get(name, ())}
        args = self.series(self.use) if self.kind == "value" and not self.starts_op() else []
        return self.finish(name, args, names, attrs | self.attrs(), ())

    def starts_op(self) -> bool:
        """Whether the current value is the result of the next op. This occurs after an op without operands and note."""
        ahead = self.position + 1
        while self.tokens[ahead][1] == ",":
            ahead += 2
        return self.tokens[ahead][1] == "="

    def finish(
        self,
        name: str,
        args: list,
        names: list[str],
        attrs: dict,
        blocks: tuple,
        note: OpAnnotation | None = None,
        types: tuple | None = None,
    ) -> Op:
        if types is None:
            types = self.result_types()
        if note is None:
            note = self.note()
        if types is None and not names:
            types = ()
        if types is None:
            try:
                types = table.infer(name, tuple(a.type for a in args), attrs)
            except (table.TypeRule, KeyError) as error:
                raise self.fail(
                    f"the result types of {name} are not written and cannot be inferred ({error})"
                ) from error
        if len(types) != len(names):
            raise self.fail(f"{len(names)} results of {len(types)} types")
        results = tuple(self.define(n, type) for n, type in zip(names, types, strict=True))
        attrs = {**implied(name, types), **attrs}
        frozen = MappingProxyType(attrs) if attrs else EMPTY
        return Op(name, tuple(args), results, frozen, blocks, note.loc, note.origin, note.id, note.was)

    def result_types(self) -> tuple | None:
        return tuple(self.series(self.type)) if self.accept(":") else None

    def typed(self) -> Value:
        """`%x: type`"""
        name = self.next("value")
        self.expect(":")
        return self.define(name, self.type())

    def carried(self) -> tuple[Value, Value]:
        """`%x = %init` or `%x: type = %init`"""
        name = self.next("value")
        type = self.type() if self.accept(":") else None
        self.expect("=")
        init = self.use()
        return self.define(name, type or init.type), init

    def for_(self, names: list[str]) -> Op:
        iv = self.next("value")
        type = self.type() if self.accept(":") else None
        self.expect("=")
        lower = self.use()
        self.expect("to")
        upper = self.use()
        self.expect("step")
        args = [lower, upper, self.use()]
        carried = []
        if self.accept("iter"):
            self.expect("(")
            carried = self.listed(self.carried, ")")
        inner = (self.define(iv, type or lower.type), *(value for value, _ in carried))
        attrs, types = self.attrs(), self.result_types()
        self.expect("{")
        note = self.note()
        block = self.block(inner)
        return self.finish(
            "for",
            args + [init for _, init in carried],
            names,
            attrs,
            (block,),
            note,
            types or tuple(v.type for _, v in carried),
        )

    def while_(self, names: list[str]) -> Op:
        self.expect("(")
        carried = self.listed(self.carried, ")")
        attrs, types = self.attrs(), self.result_types()
        self.expect("{")
        note = self.note()
        before = self.block(tuple(value for value, _ in carried))
        self.expect("do")
        self.expect("(")
        inner = tuple(self.listed(self.typed, ")"))
        self.expect("{")
        after = self.block(inner)
        return self.finish(
            "while",
            [init for _, init in carried],
            names,
            attrs,
            (before, after),
            note,
            types or tuple(v.type for _, v in carried),
        )

    def if_(self, names: list[str]) -> Op:
        args = [self.use()]
        attrs, types = self.attrs(), self.result_types()
        self.expect("{")
        note = self.note()
        then = self.block(())
        self.expect("else")
        self.expect("{")
        return self.finish("if", args, names, attrs, (then, self.block(())), note, types or ())

    def roles(self) -> Op:
        attrs = self.attrs()
        self.expect("{")
        note = self.note()
        consumers = self.block(())
        self.expect("else")
        self.expect("{")
        return self.finish("roles", [], [], attrs, (consumers, self.block(())), note, ())

    def reduce(self, op: str, names: list[str]) -> Op:
        args = self.series(self.use)
        attrs = self.attrs()
        if self.accept("("):
            inner = tuple(self.listed(self.typed, ")"))
            types = self.result_types()
            self.expect("{")
            note = self.note()
            return self.finish(op, args, names, attrs, (self.block(inner),), note, types)
        name = self.next("word")
        extra = self.attrs()
        types = self.result_types()
        note = self.note()
        combine, end = note.inner or ((-1, ()), (-1, ()))
        scalar = Tile(args[0].type.dtype)
        a, b, c = Value(scalar, "a"), Value(scalar, "b"), Value(scalar)
        frozen = MappingProxyType(extra) if extra else EMPTY
        ops = (
            Op(name, (a, b), (c,), frozen, (), note.loc, note.origin, *combine),
            Op("yield", (c,), (), EMPTY, (), note.loc, note.origin, *end),
        )
        return self.finish(op, args, names, attrs, (Block((a, b), ops),), note, types)


def parse_layout(text: str) -> Any:
    """A register layout or a layout of shared memory; only the first has lanes."""
    if " lane " in text:
        return Layout.parse(text)
    return SharedLayout.parse(text)
