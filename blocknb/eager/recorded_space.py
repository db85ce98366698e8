"""An address space that adds each access of the recorded program to the Run, with the line of the kernel that made it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.eager.record import Run
from blocknb.errors import Loc
from blocknb.ir.address import AddressSpace
from blocknb.ir.core import Op


class RecordingAddressSpace(AddressSpace):
    """The memory of an interpreted launch whose program `run.record` is recorded. `where` gives the place that runs now."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.where: Callable[[], Loc | None] = lambda: None

    def load(self, op: Op, program: tuple, addresses: np.ndarray, dtype: np.dtype, mask: Any, other: Any) -> np.ndarray:
        found = super().load(op, program, addresses, dtype, mask, other)
        self._keep(op, program, addresses, mask, found)
        return found

    def store(self, op: Op, program: tuple, addresses: np.ndarray, values: np.ndarray, mask: Any) -> None:
        super().store(op, program, addresses, values, mask)
        self._keep(op, program, addresses, mask, values)

    def update(self, op: Op, program: tuple, addresses: np.ndarray, values: list[np.ndarray], mask: Any) -> np.ndarray:
        found = super().update(op, program, addresses, values, mask)
        self._keep(op, program, addresses, mask, values[-1])
        return found

    def _keep(self, op: Op, program: tuple, addresses: np.ndarray, mask: Any, values: np.ndarray) -> None:
        if program != self.run.record:
            return
        loc, shape = self.where(), np.shape(addresses)
        on = np.ones(shape, bool) if mask is None else np.broadcast_to(np.asarray(mask, bool), shape)
        self.run.keep_access(
            program, loc, op.name, self._known(np.array(addresses)), on, np.broadcast_to(values, shape)
        )
