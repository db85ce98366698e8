"""The tokenizer of IR text, and the parser of the comments after ops, which hold ids and sources.

A whole type is one token, and so is a whole layout, which keeps the parser small. A comment is a token only if it is a note
(`// 12 was 7,8`). Other comments count as space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from blocknb.errors import Loc

BRACKETS = r"<[^<>]*(?:<[^<>]*>[^<>]*)*>"
TOKEN = re.compile(
    rf"""(?P<space>\s+)
    |(?P<note>//[^\n]*)
    |(?P<type>(?:tile|buffer|ptr|map|mbarriers){BRACKETS})
    |(?P<layout><[^<>]*>)
    |(?P<value>%[\w.]+)
    |(?P<alias>\#\w+)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<number>-?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|(?:inf|nan)\b(?!=)))
    |(?P<word>[^\W\d]\w*)
    |(?P<sign>[-=@:,(){{}}])""",
    re.VERBOSE,
)
NOTE = re.compile(r"(?: (\d+))?(?: was ([\d,]+))?(?: \(([^)]*)\))?(?: by (\S+))?(?: at (\".*))?")
PLACE = re.compile(r'("(?:[^"\\]|\\.)*"):(\d+):(\d+)-(\d+):(\d+) in ("(?:[^"\\]|\\.)*")(?: from )?')


class TextSpan(NamedTuple):
    """A part of one line of a text. The line is 1-based, the columns are 0-based."""

    line: int
    column: int
    end_column: int


class IRSyntaxError(ValueError):
    """A text is not valid IR. `span` is the place in the text, `problem` the message without it, `hint` what to write instead."""

    def __init__(self, problem: str, text: str, span: TextSpan, hint: str | None = None):
        self.problem, self.span, self.hint = problem, span, hint
        lines = text.splitlines()
        line = lines[span.line - 1].strip() if span.line <= len(lines) else ""
        super().__init__(f"line {span.line}: {problem}" + (f": {line}" if line else ""))


class OpAnnotation(NamedTuple):
    """The contents of the comment after an op. `inner` are the (id, was) of the combine and the yield of a short reduce."""

    id: int = -1
    was: tuple[int, ...] = ()
    inner: tuple[tuple[int, tuple[int, ...]], ...] = ()
    origin: str = ""
    loc: Loc | None = None


class Tokens:
    """The tokens (kind, word, position) of a text, and the current position."""

    def __init__(self, text: str):
        self.text = text
        self.tokens = list(self._tokenize(text))
        self.position = 0

    def _tokenize(self, text: str) -> Iterator[tuple[str, str, int]]:
        position = 0
        while position < len(text):
            match = TOKEN.match(text, position)
            if match is None:
                raise IRSyntaxError(
                    f"cannot read {text[position : position + 20].split(chr(10))[0]!r}", text, span(text, position)
                )
            kind, word = match.lastgroup or "", match.group()
            if kind == "note" and not (word[2:].strip() and NOTE.fullmatch(word[2:].rstrip())):
                kind = "space"  # a plain comment
            if kind != "space":
                yield kind, word, position
            position = match.end()
        yield "end", "", position

    def fail(self, message: str, ahead: int = 0, hint: str | None = None) -> IRSyntaxError:
        """The error for the last token, or for the next one."""
        _, word, position = self.tokens[max(self.position - 1 + ahead, 0)]
        return IRSyntaxError(message, self.text, span(self.text, position, len(word)), hint)

    @property
    def kind(self) -> str:
        return self.tokens[self.position][0]

    @property
    def word(self) -> str:
        return self.tokens[self.position][1]

    @property
    def shown(self) -> str:
        """The current token in a message."""
        return repr(self.word) if self.word else "the end of the text"

    def next(self, kind: str) -> str:
        if self.kind != kind:
            raise self.fail(f"expected a {kind}, not {self.shown}", ahead=1)
        self.position += 1
        return self.tokens[self.position - 1][1]

    def accept(self, word: str) -> bool:
        if self.word != word:
            return False
        self.position += 1
        return True

    def expect(self, word: str) -> None:
        if not self.accept(word):
            raise self.fail(f"expected {word!r}, not {self.shown}", ahead=1)

    def listed(self, item: Callable[[], Any], end: str) -> list:
        """Comma-separated items up to the sign `end`, which it consumes."""
        found = []
        while not self.accept(end):
            found.append(item())
            if not self.accept(","):
                self.expect(end)
                break
        return found

    def series(self, item: Callable[[], Any]) -> list:
        """One or more comma-separated items."""
        found = [item()]
        while self.accept(","):
            found.append(item())
        return found

    def note(self) -> OpAnnotation:
        if self.kind != "note":
            return OpAnnotation()
        match = NOTE.fullmatch(self.next("note")[2:].rstrip())
        assert match is not None
        number, was, inner, origin, place = match.groups()
        both = tuple(_numbers(part) for part in inner.split("; ")) if inner else ()
        return OpAnnotation(int(number or -1), _ids(was), both, origin or "", _place(place) if place else None)


def span(text: str, position: int, length: int = 1) -> TextSpan:
    """The part of a text's line that begins at a position. The end of the text counts as the end of its last line with a word."""
    if not text[position:].strip():
        position = max(len(text.rstrip()) - 1, 0)
    begin = text.rfind("\n", 0, position) + 1
    column = position - begin
    return TextSpan(text.count("\n", 0, position) + 1, column, column + max(length, 1))


def _ids(text: str | None) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",")) if text else ()


def _numbers(text: str) -> tuple[int, tuple[int, ...]]:
    number, _, was = text.partition(" was ")
    return int(number), _ids(was)


def _place(text: str) -> Loc | None:
    """The chain of places after `at`, from the innermost to the outermost."""
    loc = None
    for file, line, column, end_line, end_column, function in reversed(PLACE.findall(text)):
        loc = Loc(json.loads(file), int(line), int(column), int(end_line), int(end_column), json.loads(function), loc)
    return loc
