"""`Config`: one configuration of an autotuner, with the constants and launch options of a trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from blocknb.errors import LaunchError

DEFAULT_STAGES = 3  # `num_stages` of a configuration that sets none, as in Triton


class Config:
    """Constants by parameter (`kwargs`), launch options, and `pre_hook(arguments)`, which runs before each launch.

    Configurations are equal if their constants, options and hooks are. `num_stages` reads 3 if it is not set, as in Triton; then the
    compiler chooses the number of stages. Raises LaunchError for an `ir_override`.
    """

    def __init__(
        self,
        kwargs: dict[str, Any],
        num_warps: int = 4,
        num_stages: int | None = None,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Callable[[dict[str, Any]], Any] | None = None,
        ir_override: None = None,
    ):
        if ir_override is not None:
            raise LaunchError("Config does not support ir_override", hint="leave it out")
        self.kwargs = kwargs
        self.num_warps, self.num_ctas, self.maxnreg = num_warps, num_ctas, maxnreg
        self.sets_stages = num_stages is not None
        self.num_stages = DEFAULT_STAGES if num_stages is None else num_stages
        self.pre_hook = pre_hook

    @property
    def options(self) -> dict[str, Any]:
        """The launch options by name; an option that is not set is None."""
        return {name: getattr(self, name) for name in ("num_warps", "num_ctas", "num_stages", "maxnreg")}

    def all_kwargs(self) -> dict[str, Any]:
        """The constants and the launch options by name."""
        return {**self.kwargs, **{name: value for name, value in self.options.items() if value is not None}}

    def launched(self, parameters: Iterable[str]) -> dict[str, Any]:
        """The keyword arguments for a launch of a kernel with these parameters.

        `num_stages` is among them if the configuration sets it, or if it is a parameter of the kernel.
        """
        found = self.all_kwargs()
        unset = not self.sets_stages and self.num_stages == DEFAULT_STAGES
        if unset and "num_stages" not in (*parameters, *self.kwargs):
            del found["num_stages"]
        return found

    @property
    def compile_cost(self) -> float:
        """An estimate that orders configurations by the time that their compilation takes: the elements per warp of the largest tile.

        The compiler unrolls a tile over the registers of a thread. Long code takes LLVM and ptxas longer, and spills even more so.
        """
        sizes = [value for value in self.kwargs.values() if isinstance(value, int) and value > 0]
        return math.prod(sizes) / max(self.num_warps or 1, 1)

    def __str__(self) -> str:
        return ", ".join(f"{name}: {value}" for name, value in {**self.kwargs, **self.options}.items())

    def __repr__(self) -> str:
        return f"Config({self})"

    def _identity(self) -> tuple[Any, ...]:
        return (*self.all_kwargs().items(), self.sets_stages, self.pre_hook)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())
