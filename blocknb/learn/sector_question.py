"""`%%blockkernel --predict sectors:x`: a question about the launch of the cell itself, whose answer the compiled code gives.

A run of the cell asks anew, because the kernel may have changed. So the answers are no part of the progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError

from blocknb.learn.exercise import Prediction
from blocknb.notebook.accesses import accesses

PREFIX = "sectors:"


@dataclass(frozen=True)
class SectorQuestion:
    """The question of a running cell: how many sectors a program touches in an array."""

    array: str

    def about(self, record: Any) -> Prediction:
        """The question about the newest launch of a kernel. Raises UsageError for an array that it does not access."""
        rows = accesses(record.kernel).rows
        mine = [row for row in rows if row.array == self.array]
        if not mine or any(row.sectors is None for row in mine):
            why = "depends on loaded data" if mine else "is in no load or store of program 0"
            names = ", ".join(dict.fromkeys(row.array for row in rows if row.sectors is not None))
            raise UsageError(
                f"--predict {PREFIX}{self.array}: `{self.array}` {why}; ask about one of {names or 'another kernel'}"
            )
        sectors, ideal, requests = (
            sum(getattr(row, what) for row in mine) for what in ("sectors", "ideal", "requests")
        )
        verbs = " and ".join(
            dict.fromkeys({"load": "loads", "store": "stores"}.get(row.name, row.name) for row in mine)
        )
        wrong = {
            ideal: f"{ideal} would be enough for these elements, if they were neighbours",
            requests: f"{requests} is the number of requests: one of a warp may touch many sectors",
        }
        return Prediction(
            name=PREFIX + self.array,
            title=f"How many sectors of `{self.array}`?",
            question=f"Program 0 {verbs} elements of `{self.array}`. How many sectors of 32 bytes do its requests touch, in all warps? "
            "If a loop contains the access, count one iteration.",
            answer=sectors,
            wrong=tuple((number, text) for number, text in wrong.items() if number != sectors),
            reveals="Tiles",
        )
