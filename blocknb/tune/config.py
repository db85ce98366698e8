"""`Config`: one candidate of an autotuner, the constants and launch options that a kernel is tried with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from blocknb.errors import LaunchError

DEFAULT_STAGES = 3  # what Triton's wrappers find in a configuration that names none


class Config:
    """Constants (`kwargs`, by parameter) and launch options; `pre_hook(arguments)` is called before each launch with them.

    Equal configurations hold equal constants and options, and the same hook. `num_stages` is 3 where none is named, as in Triton, and
    such a configuration leaves it to the compiler.
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
            raise LaunchError("a Config cannot bring IR of its own (ir_override)", hint="leave it out")
        self.kwargs = kwargs
        self.num_warps, self.num_ctas, self.maxnreg = num_warps, num_ctas, maxnreg
        self.names_stages, self.num_stages = (
            num_stages is not None,
            DEFAULT_STAGES if num_stages is None else num_stages,
        )
        self.pre_hook = pre_hook

    def all_kwargs(self) -> dict[str, Any]:
        """Everything that this configuration says, by name."""
        options = {name: getattr(self, name) for name in ("num_warps", "num_ctas", "num_stages", "maxnreg")}
        return {**self.kwargs, **{name: value for name, value in options.items() if value is not None}}

    def launched(self, parameters: Iterable[str]) -> dict[str, Any]:
        """What a launch of a kernel with these parameters gets by keyword: a number of stages only where it is named, or a parameter."""
        found = self.all_kwargs()
        if (
            not self.names_stages
            and self.num_stages == DEFAULT_STAGES
            and "num_stages" not in (*parameters, *self.kwargs)
        ):
            del found["num_stages"]
        return found

    def __str__(self) -> str:
        options = {name: getattr(self, name) for name in ("num_warps", "num_ctas", "num_stages", "maxnreg")}
        return ", ".join(f"{name}: {value}" for name, value in {**self.kwargs, **options}.items())

    def __repr__(self) -> str:
        return f"Config({self})"

    def _identity(self) -> tuple[Any, ...]:
        return (*self.all_kwargs().items(), self.names_stages, self.pre_hook)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())
