"""The state of an autotuner: how it measures, and the searches that run or were interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blocknb import forks
from blocknb.errors import KernelError
from blocknb.tune.fast_choice import FastChoices
from blocknb.tune.race import Race

WARMUP, REP = 25, 100  # milliseconds per configuration


@dataclass(frozen=True)
class Measuring:
    """How configurations are timed: `warmup` and `rep` in milliseconds, by replays of a CUDA graph, or by the caller's `do_bench`."""

    warmup: float = WARMUP
    rep: float = REP
    use_cuda_graph: bool = False
    do_bench: Callable[..., Any] | None = None


class Searches:
    """The searches of an autotuner: a lock, races by tuning key, the error of the last configuration that could not run, whether the user
    was warned of arrays that trials update, and the choices for launches that are repeated."""

    def __init__(self) -> None:
        self.races: dict[tuple[Any, ...], Race] = {}
        self.refused: KernelError | None = None
        self.warned = False
        self.choices = FastChoices((), ())
        self.lock = threading.RLock()
        forks.renewed(self, lock=threading.RLock)
