"""What the peephole rules ask of the walk that applies them.

The rules (`peephole`, `tile_modulo`) know this interface only. The pass `simplify` implements it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from blocknb.analysis.affine import Facts
from blocknb.ir.core import Op, Value
from blocknb.language.types import Tile


class RewriteContext(Protocol):
    """The walk at the op at hand. `definition` has the op of each new value; `again` asks for another round."""

    definition: dict[Value, Op]
    again: bool

    @property
    def facts(self) -> Facts:
        """What the affine analysis knows about the function as it was before this round."""

    def constant(self, value: Value) -> Any:
        """The number that every element of a value is, None when it is not constant."""

    def fold(self, op: Op, constants: Sequence[Any]) -> Any:
        """The constant that an elementwise op comes to, None when there is none."""

    def used_here_only(self, value: Value) -> bool:
        """Whether the op at hand is the only one that uses a value, and runs as often as the one that made it."""

    def count(self, kind: str, name: str) -> None:
        """Counts an op for the summary in the notes."""

    def note(self, op: Op, text: str, kind: str = "info") -> None:
        """Records a note, once."""

    def const(self, value: Any, type: Tile) -> Value:
        """A new constant."""

    def make(self, name: str, *args: Value, **attrs: Any) -> Value:
        """A new op in the place of the one at hand, simplified in turn."""
