"""What is known of asynchronous MMAs (wgmma) while code is written."""

from __future__ import annotations

from blocknb.ir.core import Value


class MmaState:
    """`in_flight` are the words of operands in registers that wgmma may still read. An accumulator in `unset_while_zero` holds no number
    while the named iteration count is 0. A sum in `unset_unless` holds no number unless the named i1 is true."""

    def __init__(self) -> None:
        self.in_flight: list[str] = []
        self.unset_while_zero: dict[Value, str] = {}
        self.unset_unless: dict[Value, str] = {}
