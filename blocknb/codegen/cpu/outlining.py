"""Outlining: a long program becomes several functions of bounded length.

The time of LLVM's optimizer grows faster than the length of a function. So as soon as the text of a block is long, it
becomes a function of its own, and a call replaces it. Tiles live in scratch, so only scalars cross the cut. A register that the part uses
and does not define becomes a parameter of the same name. A register that later text reads comes back through a stack slot, again under its
own name. A part that ends the program early returns true, and its caller jumps to `leave`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from blocknb.codegen.cpu.builder import KernelBuilder

LINES = 1500  # of LLVM text, after which a part ends; kernels up to this length are one function
COMMON = "ptr %grid, ptr %arguments, ptr noalias %scratch, ptr %status"
_COMMON = frozenset(re.findall(r"%\w+", COMMON))
_NAME = re.compile(r"%[\w.$-]+")
_DEFINED = re.compile(r"^  (%[\w.$-]+) =", re.MULTILINE)
_LABEL = re.compile(r"^([\w.$-]+):", re.MULTILINE)
_PLACE = re.compile(r"!dbg (!\d+)")


class OutlineStart(NamedTuple):
    """Where a part would begin: the lines and stack slots of the function so far, and the nodes of the block in them."""

    lines: int
    slots: int
    node: int


class Outliner:
    """The parts of one function `name`; `types` has the LLVM type of each scalar register, and `texts` are the definitions."""

    def __init__(self, name: str, code: KernelBuilder, types: Mapping[str, str]):
        self.name, self.code, self.types = name, code, types
        self.texts: list[str] = []

    def start(self, node: int) -> OutlineStart:
        """A part that begins here, before a node of the block."""
        w = self.code.w
        return OutlineStart(len(w.lines), len(w.slots), node)

    def cut(self, start: OutlineStart, node: int, made: Iterable[str]) -> OutlineStart:
        """Where the next part begins. Enough lines since `start` become a part; later code reads the scalars `made` in them."""
        w = self.code.w
        if len(w.lines) - start.lines < LINES:
            return start
        text = "\n".join([*w.slots[start.slots :], *w.lines[start.lines :]])
        del w.slots[start.slots :], w.lines[start.lines :]
        defined = set(_DEFINED.findall(text))
        known = defined | {f"%{label}" for label in _LABEL.findall(text)} | _COMMON | {"%leave"}
        inputs = {name: self.types[name] for name in _NAME.findall(text) if name not in known}
        names = dict.fromkeys(made)
        outputs = {name: self.types[name] for name in names if name in defined}
        self._call(self._define(text, inputs, outputs), "label %leave" in text, inputs, outputs)
        return self.start(node)

    def _define(self, text: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
        """Writes the function; returns its name."""
        name = f"@{self.name}.part{len(self.texts) + 1}"
        params = [COMMON, *(f"{type} {x}" for x, type in inputs.items()), *(f"ptr noalias {x}.out" for x in outputs)]
        ending = [f"store {type} {x}, ptr {x}.out" for x, type in outputs.items()]
        leaves, scope, here = "label %leave" in text, "", ""
        if self.code.debug:
            debug = self.code.debug
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
        w = self.code.w
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
