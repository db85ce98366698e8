"""Replaces a stage's IR by the text that a user edited: reads it, checks it, and keeps the source lines of its ops.

The text of a stage (`Stage.text`) has op ids, but no source lines. An op of the edited text that keeps its id therefore takes the source
line and the origin of the op that had the id. A text with source lines (`print_func(func, locs=True)`) keeps its own.
"""

from __future__ import annotations

import linecache
from dataclasses import replace

from blocknb.errors import CompilationError, Loc
from blocknb.ir.core import Block, Func, Op
from blocknb.ir.reader import read_func
from blocknb.ir.tokens import IRSyntaxError, TextSpan, span
from blocknb.ir.verify import InvalidIR, verify
from blocknb.runtime.request import StageEdit
from blocknb.trace import Note, Stage


class EditError(CompilationError):
    """The edited text of a stage is not valid IR of its level. `loc` is the place in the text, whose `file` names the stage."""

    title = "edited IR"


def apply(edit: StageEdit, stage: Stage) -> Stage:
    """The stage with the IR that an edited text describes. Raises EditError."""
    name = f"<{stage.after.name} edited after {stage.name}>"
    lines = edit.text.splitlines(keepends=True)
    linecache.cache[name] = (len(edit.text), None, lines, name)  # an error shows the line of the text

    def error(problem: str, place: TextSpan, hint: str | None) -> EditError:
        loc = Loc(name, place.line, place.column, place.line, place.end_column)
        return EditError(f"line {place.line}, column {place.column + 1} of the edited IR: {problem}", loc, hint)

    level = stage.after.level
    try:
        func, spans = read_func(edit.text)
    except IRSyntaxError as found:
        hint = found.hint or f"compare the line with the stage's own text, stages[{stage.name!r}].text"
        raise error(found.problem, found.span, hint) from found
    header = span(edit.text, max(edit.text.find("func @"), 0), len("func"))
    if func.level != level:
        hint = f"write {level}: the next pass takes IR of the level at which the stage ends"
        raise error(f"the function is at the {func.level} level", header, hint)
    if _parameters(func) != _parameters(stage.after):
        given = ", ".join(f"%{name}: {type}" for name, type in _parameters(stage.after))
        raise error("the parameters differ from the kernel's", header, f"keep their names, order and types: {given}")
    try:
        verify(func)
    except InvalidIR as found:
        place = header if found.op is None else spans.get(found.op, header)
        raise error(
            found.rule, place, f"the verifier checks the rules of the {level} level, which a pass may assume"
        ) from found
    func = with_places(func, stage.after)
    note = Note("the IR after this pass was edited by hand", stage.name)
    return replace(stage, after=func, edited=True, notes=(*stage.notes, note))


def _parameters(func: Func) -> list[tuple[str, str]]:
    names = [hint.name for hint in func.hints] if func.hints else [value.name for value in func.params]
    return [(name, value.type.dtype.short) for name, value in zip(names, func.params, strict=True)]


def with_places(func: Func, original: Func) -> Func:
    """A function whose ops without a source line take the line and the origin of the op with their id and name in `original`."""
    known = {op.id: op for op in original.ops()}

    def placed(op: Op) -> Op:
        blocks = tuple(Block(block.args, tuple(map(placed, block.ops))) for block in op.blocks)
        before = known.get(op.id)
        if before is None or before.name != op.name:
            return op.replace(blocks=blocks)
        return op.replace(blocks=blocks, loc=op.loc or before.loc, origin=op.origin or before.origin)

    body = Block(func.body.args, tuple(map(placed, func.body.ops)))
    return func.replace(body=body, loc=func.loc or original.loc)
