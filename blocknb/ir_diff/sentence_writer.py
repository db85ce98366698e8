"""The base of the rules of `sentences`: the sentence, the matches that no sentence describes yet, and words for ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from blocknb.ir.core import Op
from blocknb.ir_diff.matching import Matching, OpMatch
from blocknb.language.ops import OPS, REDUCTIONS

#: Weights of sentences, by subject.
STRUCTURE, MEMORY, SYNCHRONIZATION, COMPUTE, LAYOUT, PLACE, ARITHMETIC = 90, 80, 70, 60, 50, 30, 10
#: Ops whose names have a plural that a reader expects. All others are named as code.
NOUNS = frozenset(["load", "store", "barrier", "fence", "dot", "loop"])
MOST_LINES = 4  # lines named in a sentence
MOST_NAMES = 6  # kinds of ops counted in a sentence
_WORDS = {"for": "loop", "while": "loop"}


@dataclass(frozen=True)
class ChangeSentence:
    """One change: a sentence without a period, the ops on both sides by id, and the lines of the user's source.

    Sentences with a greater `weight` are more important (0 to 100). Backquotes mark names of the IR.
    """

    text: str
    weight: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()


@dataclass
class SentenceWriter:
    """Writes the sentences on one comparison. It marks the matches that a sentence describes, so that each is described once."""

    matching: Matching
    compared: bool = False
    described: set[int] = field(default_factory=set)  # positions of matches

    def __post_init__(self) -> None:
        combining = [match for match in self.matching.matches if self._combines(match)]
        self.mark(combining)

    def _combines(self, match: OpMatch) -> bool:
        """Whether the ops stand in the block of a reduction, whose own sentences suffice."""
        sides = ((self.matching.before, match.before), (self.matching.after, match.after))
        ops = [(side, side.ops[id].parent) for side, ids in sides for id in ids]
        return all(parent >= 0 and side.ops[parent].op.name in REDUCTIONS for side, parent in ops)

    def undescribed(self, *kinds: str) -> list[OpMatch]:
        """The matches of some kinds that no sentence describes yet."""
        matches = enumerate(self.matching.matches)
        return [match for i, match in matches if match.kind in kinds and i not in self.described]

    def mark(self, matches: Iterable[OpMatch]) -> None:
        """Marks matches as described."""
        ids = set(map(id, matches))
        self.described |= {i for i, match in enumerate(self.matching.matches) if id(match) in ids}

    def sentence(self, text: str, weight: int, matches: Sequence[OpMatch], lines: bool = True) -> ChangeSentence:
        """A sentence on matches, which it marks as described. The lines of their ops follow the text, if `lines`."""
        self.mark(matches)
        left = tuple(dict.fromkeys(id for match in matches for id in match.before))
        right = tuple(dict.fromkeys(id for match in matches for id in match.after))
        right = tuple(sorted(right, key=lambda id: is_arithmetic(self.matching.op_after(id).name)))
        places = self.lines(left, right)
        return ChangeSentence(text + (_places(places) if lines else ""), weight, left, right, places)

    def lines(self, left: Iterable[int], right: Iterable[int]) -> tuple[int, ...]:
        """The source lines of ops of the left side; where there are none, of the right side."""
        one, two = self.matching.before, self.matching.after
        found = {line for id in left if (line := one.line(id))}
        if self.compared or not found:
            found = {line for id in right if (line := two.line(id))} or found
        return tuple(sorted(found))

    def op(self, match: OpMatch) -> Op:
        """The first op of a match: of the right side, if it has one."""
        return self.matching.op_after(match.after[0]) if match.after else self.matching.op_before(match.before[0])

    @property
    def now(self) -> str:
        """The verb for ops that differ: "became", or "are now" for two compilations."""
        return "are on the right" if self.compared else "became"


def _places(lines: Sequence[int]) -> str:
    if not lines:
        return ""
    if len(lines) == 1:
        return f" (line {lines[0]})"
    shown = ", ".join(map(str, lines[:MOST_LINES]))
    return f" (lines {shown}{', …' if len(lines) > MOST_LINES else ''})"


def ops_text(count: int, name: str) -> str:
    """ "2 loads", "1 `splat`"."""
    noun = _WORDS.get(name, name)
    if noun in NOUNS:
        return f"{count} {noun}{'s' if count != 1 else ''}"
    return f"{count} `{name}`"


def counted(names: Iterable[str]) -> str:
    """ "3 `add`, 2 loads", the most frequent first."""
    found = Counter(names).most_common()
    shown = ", ".join(ops_text(count, name) for name, count in found[:MOST_NAMES])
    rest = sum(count for _, count in found[MOST_NAMES:])
    return f"{shown}, and {rest} more" if rest else shown


def plural(count: int, noun: str) -> str:
    """ "1 op", "2 ops"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def joined(words: Sequence[Any]) -> str:
    """ "a, b and c"."""
    texts = [*map(str, words)]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def is_arithmetic(name: str) -> bool:
    """Whether an op only computes a value: such ops are counted, not named one by one."""
    return OPS[name].pure and OPS[name].kind not in ("dot", "reduce", "move", "distributed")


def is_structural(name: str) -> bool:
    """Whether an op only ends or holds a block."""
    return name in ("yield", "condition")
