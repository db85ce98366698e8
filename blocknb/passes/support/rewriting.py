"""The interface between the peephole rules and the walk that applies them.

The rules (`peephole`, `tile_modulo`) know only this interface. The pass `simplify` implements it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from blocknb.analysis.affine import Facts
from blocknb.ir.core import Op, Value
from blocknb.language.types import Tile


class RewriteContext(Protocol):
    """The walk at the current op. `definition` has the op of each new value; `another_round` requests another round."""

    definition: dict[Value, Op]
    another_round: bool

    @property
    def facts(self) -> Facts:
        """The affine facts about the function before this round."""

    def constant(self, value: Value) -> Any:
        """The number that every element of a value is, None when it is not constant."""

    def fold(self, op: Op, constants: Sequence[Any]) -> Any:
        """The constant result of an elementwise op, None if there is none."""

    def used_here_only(self, value: Value) -> bool:
        """Whether the current op is the only user of a value, and runs as often as the op that made it."""

    def count(self, kind: str, name: str) -> None:
        """Counts an op for the summary in the notes."""

    def note(self, op: Op, text: str, kind: str = "info") -> None:
        """Records a note, once."""

    def const(self, value: Any, type: Tile) -> Value:
        """A new constant."""

    def make(self, name: str, *args: Value, **attrs: Any) -> Value:
        """Emits a new op in the place of the current one, and simplifies it in turn."""
