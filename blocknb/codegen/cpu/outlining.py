"""Long programs in parts: functions of bounded length, however long the kernel is.

LLVM takes a time that grows faster than the length of a function, so what the nodes of a block have written leaves the function as
soon as it is long, and becomes a function of its own that is called where it stood. That is a matter of text. Tiles live in scratch,
so only scalars cross the cut: each name that the part uses and does not define is a parameter of the same name, and each one that is
read later comes back through a stack slot, again under its own name. What leaves the kernel early makes a part say so, and its caller
goes on to `leave`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from blocknb.codegen.scalar_math.register_types import register_type
from blocknb.ir.core import Value

if TYPE_CHECKING:
    from blocknb.codegen.cpu.blocks import Emitter

LINES = 1500  # of LLVM text, after which a part ends; kernels up to this length are one function
COMMON = "ptr %grid, ptr %arguments, ptr noalias %scratch, ptr %status"
_COMMON = frozenset(re.findall(r"%\w+", COMMON))
_NAME = re.compile(r"%[\w.$-]+")
_DEFINED = re.compile(r"^  (%[\w.$-]+) =", re.MULTILINE)
_LABEL = re.compile(r"^([\w.$-]+):", re.MULTILINE)
_PLACE = re.compile(r"!dbg (!\d+)")


class Scalars(dict[Value, str]):
    """The names of scalars; `types` has the LLVM type of each."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[str, str] = {f"%{id}{axis}": "i32" for id in ("pid", "grid") for axis in range(3)}

    def __setitem__(self, value: Value, name: str) -> None:
        super().__setitem__(value, name)
        self.types[name] = register_type(value.type.dtype)


class Mark(NamedTuple):
    """Where a part would begin: lines and stack slots of the function so far, and how many nodes of the block are in them."""

    lines: int
    slots: int
    node: int


class Parts:
    """The parts of one function `name`; `texts` are their definitions."""

    def __init__(self, emitter: Emitter, name: str):
        self.e, self.name = emitter, name
        self.texts: list[str] = []

    def mark(self, node: int) -> Mark:
        w = self.e.code.w
        return Mark(len(w.lines), len(w.slots), node)

    def cut(self, mark: Mark, node: int, made: Iterable[str]) -> Mark:
        """Where the next part begins. If there are enough lines since `mark`, they become a part; `made` are the scalars they make
        that are read after them."""
        w = self.e.code.w
        if len(w.lines) - mark.lines < LINES:
            return mark
        text = "\n".join([*w.slots[mark.slots :], *w.lines[mark.lines :]])
        del w.slots[mark.slots :], w.lines[mark.lines :]
        defined = set(_DEFINED.findall(text))
        known = defined | {f"%{label}" for label in _LABEL.findall(text)} | _COMMON | {"%leave"}
        types = self.e.scalars.types
        inputs = {name: types[name] for name in _NAME.findall(text) if name not in known}
        names = dict.fromkeys(made)
        outputs = {name: types[name] for name in names if name in defined}
        self._call(self._define(text, inputs, outputs), "label %leave" in text, inputs, outputs)
        return self.mark(node)

    def _define(self, text: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
        """Writes the function; returns its name."""
        name = f"@{self.name}.part{len(self.texts) + 1}"
        params = [COMMON, *(f"{type} {x}" for x, type in inputs.items()), *(f"ptr noalias {x}.out" for x in outputs)]
        ending = [f"store {type} {x}, ptr {x}.out" for x, type in outputs.items()]
        leaves, scope, here = "label %leave" in text, "", ""
        if self.e.debug:
            debug = self.e.debug
            function = debug.function(name[1:])
            text = _PLACE.sub(lambda found: f"!dbg {debug.moved(found[1], function)}", text)
            scope, here = f" !dbg {function}", f", !dbg {debug.moved(debug.location(None), function)}"
        ending += ["ret i1 false", "", "leave:", "ret i1 true"] if leaves else ["ret void"]
        lines = "\n".join(f"  {line}{here}" if line and not line.endswith(":") else line for line in ending)
        self.texts.append(
            f"define internal {'i1' if leaves else 'void'} {name}({', '.join(params)}) noinline nounwind{scope} {{\n"
            f"entry:\n{text}\n{lines}\n}}\n"
        )
        return name

    def _call(self, name: str, leaves: bool, inputs: dict[str, str], outputs: dict[str, str]) -> None:
        w = self.e.code.w
        slots = [w.slot(type, "out") for type in outputs.values()]
        args = [
            COMMON.replace(" noalias", ""),
            *(f"{type} {x}" for x, type in inputs.items()),
            *(f"ptr {s}" for s in slots),
        ]
        call = f"call {'i1' if leaves else 'void'} {name}({', '.join(args)})"
        if leaves:
            on = w.fresh("on")
            w.branch(w.value(call), "leave", on)
            w.place(on)
        else:
            w.do(call)
        for (x, type), slot in zip(outputs.items(), slots, strict=True):
            w.lines.append(f"  {x} = load {type}, ptr {slot}{w.location}")
