"""The state of asynchronous MMAs (wgmma) at the op that the generator is lowering."""

from __future__ import annotations

from blocknb.ir.core import Value


class MmaState:
    """`in_flight`: words of register operands that wgmma may still read. `kept`: words of operands that an open loop does not change.
    `unread`: words that need a use after the next wait (see `loop_operands`). An accumulator in `unset_while_zero` is undefined while the
    named iteration count is 0. An accumulator in `unset_unless` is undefined unless the named i1 is true."""

    def __init__(self) -> None:
        self.in_flight: list[str] = []
        self.kept: dict[Value, list[str]] = {}
        self.unread: list[str] = []
        self.unset_while_zero: dict[Value, str] = {}
        self.unset_unless: dict[Value, str] = {}
