"""Prints the text form of the IR. `reader` is the exact inverse.

The form resembles MLIR. Layouts have short names, which are declared at the top. The comment after each op has its id and the ids that
it replaces, which connect the lines of successive snapshots. With `locs` it also has the source:

    #a = <1024: reg 1,2 lane 4,8,16,32,64 warp 128,256>

    func @scale(%x: ptr<f32> div 16, %n: i32 div 1) distributed {num_warps=4} {
      %0 = program_id 0 : i32  // 0
      %mask = cmp lt %offs, %4 : tile<1024xi1, #a>  // 5 was 2
      %sum = for %i = %lo to %hi step %one iter(%acc = %zero) : f32 {  // 9
        ...
      }
      %m = reduce %v {axis=0} max : f32  // 14 (12; 13)
    }

A value without a name gets the id of its defining op as its name, which stays the same from pass to pass. A duplicate name gets that id
as a suffix after a dot. The printer only joins strings, because the card prints every stage of every kernel.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

from blocknb.errors import Loc
from blocknb.ir.core import Block, Func, Op, Value
from blocknb.ir.reader import LEADING, implied, parse_func
from blocknb.language.bulk import Barriers, TensorMap
from blocknb.language.ops import REDUCTIONS
from blocknb.language.types import Buffer, DType, Pointer, Tile
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import SharedLayout

__all__ = ["parse_func", "print_func", "print_lines", "print_op"]

INDENT = "  "


def print_func(func: Func, ids: bool = True, locs: bool = False) -> str:
    """The text of a function. Without `ids`, values are numbered in order and `parse_func` gives new ids."""
    return "\n".join(line for line, _ in _lines(func, ids, locs)) + "\n"


def print_lines(func: Func, ids: bool = True) -> list[tuple[str, int | None, int | None]]:
    """Each line of the text, with the id of its op and the op's line in the kernel's file (None for lines without an op).

    Code inlined from another file counts as the line of the kernel that called it.
    """
    file = func.loc.file if func.loc else None
    return [(line, op.id if op else None, _line(op.loc, file) if op else None) for line, op in _lines(func, ids, False)]


@functools.lru_cache(maxsize=32)  # the stages of a card; each needs its text, its lines and its changes
def _lines(func: Func, ids: bool, locs: bool) -> tuple[tuple[str, Op | None], ...]:
    return tuple(_Printer(func, ids, locs).run())


def print_op(func: Func, op: Op) -> str:
    """The line of one op, for a message. Values have the same names as in the whole text."""
    for line, other in _Printer(func, True, False).run():
        if other is op:
            return line.strip()
    raise KeyError(f"the function has no such {op.name}")


def _line(loc: Loc | None, file: str | None) -> int | None:
    if loc is None:
        return None
    while loc.file != file and loc.caller is not None:
        loc = loc.caller
    return loc.line


class _Printer:
    """One walk over the function. `names` are unique texts for values, `aliases` are the layouts so far."""

    def __init__(self, func: Func, ids: bool, locs: bool):
        self.func, self.ids, self.locs = func, ids, locs
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.aliases: dict[Any, str] = {}
        self.types: dict[Any, str] = {}
        self.counter = -1
        self.lines: list[tuple[str, Op | None]] = []

    def run(self) -> list[tuple[str, Op | None]]:
        func = self.func
        params = []
        for i, value in enumerate(func.params):
            self.name(value, f"arg{i}")
            params.append(f"{self.names[value]}: {self.type(value.type)}{self.hint(i)}")
        name = func.name if re.fullmatch(r"[^\W\d]\w*", func.name) else json.dumps(func.name)
        place = f"  // at {_chain(func.loc)}" if self.locs and func.loc else ""
        header = f"func @{name}({', '.join(params)}) {func.level}{self.attrs(func.attrs)} {{{place}"
        self.block(func.body, INDENT)
        declared: list[tuple[str, Op | None]] = [
            (f"{alias} = {layout}", None) for layout, alias in self.aliases.items()
        ]
        return declared + ([("", None)] if declared else []) + [(header, None), *self.lines, ("}", None)]

    def hint(self, i: int) -> str:
        if i >= len(self.func.hints):
            return ""
        hint = self.func.hints[i]
        bounds = f" least {hint.least}" * (hint.least is not None) + f" most {hint.most}" * (hint.most is not None)
        read = self.names[self.func.params[i]][1:].split(".")[0]  # the name that the reader takes from the value's
        name = "" if hint.name == read else f" {json.dumps(hint.name)}"
        return f" div {hint.divisibility}{bounds}{name}"

    # -- names, types, attributes

    def name(self, value: Value, number: str) -> str:
        """The name of a new value: its own, or `number`. A duplicate gets `number` as a suffix."""
        base = re.sub(r"\W", "_", value.name) if value.name else number
        if value.name and base[0].isdecimal():
            base = "_" + base
        text, repeats = f"%{base}", 0
        while text in self.taken:
            text = f"%{base}.{number}" + (f".{repeats}" if repeats else "")
            repeats += 1
        self.taken.add(text)
        self.names[value] = text
        return text

    def define(self, op: Op) -> str:
        """Names the results and then the block arguments of an op; the text of the results."""
        inner = () if _simple(op) else op.blocks  # a short reduce shows no block
        values = [*op.results, *(arg for block in inner for arg in block.args)]
        if not values:
            return ""
        self.counter += 1
        number = op.id if self.ids else self.counter
        for i, value in enumerate(values):
            self.name(value, f"{number}.{i}" if i else str(number))
        return ", ".join([self.names[r] for r in op.results]) + " = " if op.results else ""

    def use(self, values: tuple[Value, ...]) -> str:
        """The names of operands. An undefined value is marked, because the verifier also prints invalid IR."""
        names = self.names
        return ", ".join([names.get(v) or f"%undefined.{v.name}" for v in values])

    def type(self, type: Any) -> str:
        text = self.types.get(type)
        if text is None:
            text = self.types[type] = self.type_text(type)
        return text

    def type_text(self, type: Any) -> str:
        if isinstance(type, Tile) and not type.shape and type.layout is None:
            return type.dtype.short
        if isinstance(type, (TensorMap, Barriers)):
            return str(type)
        form = "tile" if isinstance(type, Tile) else "buffer"
        dims = "".join(f"{n}x" for n in type.shape)
        if isinstance(type, Buffer) and type.stages > 1:
            dims = f"{type.stages}*{dims}"
        return f"{form}<{dims}{type.dtype.short}{'' if type.layout is None else ', ' + self.alias(type.layout)}>"

    def alias(self, layout: Any) -> str:
        """#a to #z, then #aa and so on, in the order of appearance."""
        alias = self.aliases.get(layout)
        if alias is None:
            number, letters = len(self.aliases), ""
            while number >= 0:
                letters = chr(ord("a") + number % 26) + letters
                number = number // 26 - 1
            alias = self.aliases[layout] = "#" + letters
        return alias

    def typed(self, values: tuple[Value, ...]) -> str:
        return " : " + ", ".join([self.type(v.type) for v in values]) if values else ""

    def attrs(self, attrs: Any) -> str:
        if not attrs:
            return ""
        return " {" + ", ".join([f"{key}={self.literal(value)}" for key, value in attrs.items()]) + "}"

    def literal(self, value: Any) -> str:
        match value:
            case bool() | int() | float() | None:
                return repr(value)
            case str():
                return json.dumps(value, ensure_ascii=False)
            case tuple() | list():
                return "(" + ", ".join(map(self.literal, value)) + ")"
            case dict():
                return "{" + ", ".join(f"{self.literal(k)}: {self.literal(v)}" for k, v in value.items()) + "}"
            case DType() | Pointer():
                return value.short
            case Layout() | SharedLayout():
                return self.alias(value)
            case Tile(layout=None, shape=()):
                return f"tile<{value.dtype.short}>"  # a bare f32 is a dtype here
            case Tile() | Buffer() | TensorMap() | Barriers():
                return self.type_text(value)
        if hasattr(value, "dtype") and hasattr(value, "item"):
            return self.literal(value.item())  # a NumPy number
        raise TypeError(f"an attribute of type {type(value).__name__} has no text: {value!r}")

    # -- ops

    def block(self, block: Block, indent: str) -> None:
        for op in block.ops:
            self.op(op, indent)

    def put(self, indent: str, text: str, op: Op | None, note: str = "") -> None:
        self.lines.append((f"{indent}{text}{note}", op))

    def op(self, op: Op, indent: str) -> None:
        if op.blocks:
            self.blocks(op, indent)
            return
        left = self.define(op)
        attrs, leading = op.attrs, ""
        if attrs:
            known, first = implied(op.name, tuple(r.type for r in op.results)), LEADING.get(op.name, ())
            for key in first:
                leading += f" {attrs[key] if key == 'pred' else self.literal(attrs[key])}"
            attrs = {k: v for k, v in attrs.items() if k not in first and not (k in known and _same(known[k], v))}
        args = f" {self.use(op.args)}" if op.args else ""
        self.put(
            indent, f"{left}{op.name}{leading}{args}{self.attrs(attrs)}{self.typed(op.results)}", op, self.note(op)
        )

    def blocks(self, op: Op, indent: str) -> None:
        left = self.define(op)
        known = implied(op.name, tuple(r.type for r in op.results))
        attrs = self.attrs({k: v for k, v in op.attrs.items() if not (k in known and _same(known[k], v))})
        types, note, inner = self.typed(op.results), self.note(op), indent + INDENT
        match op.name:
            case "for":
                lower, upper, step = (self.use((arg,)) for arg in op.args[:3])
                iv, *carried = op.blocks[0].args
                index = self.names[iv] + ("" if iv.type == op.args[0].type else f": {self.type(iv.type)}")
                iters = f" iter({self.carried(carried, op.args[3:])})" if carried else ""
                self.put(
                    indent, f"{left}for {index} = {lower} to {upper} step {step}{iters}{attrs}{types} {{", op, note
                )
                self.block(op.blocks[0], inner)
            case "while":
                before, after = op.blocks
                self.put(indent, f"{left}while ({self.carried(before.args, op.args)}){attrs}{types} {{", op, note)
                self.block(before, inner)
                self.put(indent, f"}} do ({self.arguments(after.args)}) {{", None)
                self.block(after, inner)
            case "if":
                self.put(indent, f"{left}if {self.use(op.args)}{attrs}{types} {{", op, note)
                self.block(op.blocks[0], inner)
                self.put(indent, "} else {", None)
                self.block(op.blocks[1], inner)
            case "roles":
                self.put(indent, f"roles{attrs} {{", op, note)
                self.block(op.blocks[0], inner)
                self.put(indent, "} else {", None)
                self.block(op.blocks[1], inner)
            case name if name in REDUCTIONS and _simple(op):
                combine = op.blocks[0].ops[0]
                short = f"{left}{op.name} {self.use(op.args)}{attrs} {combine.name}{self.attrs(combine.attrs)}{types}"
                self.put(indent, short, op, note)
                return
            case _:
                arguments = self.arguments(op.blocks[0].args)
                self.put(indent, f"{left}{op.name} {self.use(op.args)}{attrs} ({arguments}){types} {{", op, note)
                self.block(op.blocks[0], inner)
        self.put(indent, "}", None)

    def carried(self, values: Any, inits: tuple[Value, ...]) -> str:
        def one(value: Value, init: Value) -> str:
            type = "" if value.type == init.type else f": {self.type(value.type)}"
            return f"{self.names[value]}{type} = {self.use((init,))}"

        return ", ".join(one(value, init) for value, init in zip(values, inits, strict=False))

    def arguments(self, values: tuple[Value, ...]) -> str:
        return ", ".join(f"{self.names[v]}: {self.type(v.type)}" for v in values)

    def note(self, op: Op) -> str:
        if not self.ids:
            return f"  //{self.place(op)}" if self.locs else ""
        text = f"  // {_number(op)}"
        if _simple(op):
            text += f" ({'; '.join(map(_number, op.blocks[0].ops))})"
        return text + self.place(op) if self.locs else text

    def place(self, op: Op) -> str:
        return (f" by {op.origin}" if op.origin else "") + (f" at {_chain(op.loc)}" if op.loc else "")


def _number(op: Op) -> str:
    return f"{op.id} was {','.join(map(str, op.was))}" if op.was else str(op.id)


def _same(a: Any, b: Any) -> bool:
    return a == (tuple(b) if isinstance(b, list) else b)


def _simple(op: Op) -> bool:
    """Whether a reduction or scan of one operand combines by one op on the two arguments of its block, in order."""
    if op.name not in REDUCTIONS:
        return False
    block = op.blocks[0]
    if len(op.args) != 1 or len(block.ops) != 2 or len(block.args) != 2:
        return False
    combine, end = block.ops
    return (
        combine.args == block.args
        and len(combine.results) == 1
        and end.args == combine.results
        and all(value.type == Tile(op.args[0].type.dtype) for value in (*block.args, *combine.results))
    )


def _chain(loc: Loc | None) -> str:
    """The text of a place and of its chain of inlined calls."""
    parts = []
    while loc is not None:
        span = f"{loc.line}:{loc.column}-{loc.end_line}:{loc.end_column}"
        parts.append(f"{json.dumps(loc.file)}:{span} in {json.dumps(loc.function)}")
        loc = loc.caller
    return " from ".join(parts)
