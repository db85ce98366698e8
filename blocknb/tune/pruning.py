"""Which configurations an autotuner measures: `prune_configs_by` of `autotune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blocknb.errors import KernelError
from blocknb.tune.config import Config


class AutotunerError(KernelError):
    """The autotuner was given nothing that it could try."""

    title = "autotuning"


class Pruning:
    """Two ways to leave configurations out before they are measured: a function of the caller's, and a model of their times with the
    number (or the share) of those to keep."""

    def __init__(self, by: Mapping[str, Any] | None):
        by = by or {}
        self.early_config_prune: Callable[..., Any] | None = by.get("early_config_prune")
        self.perf_model: Callable[..., Any] | None = by.get("perf_model")
        self.top_k: int | float = by.get("top_k", 1.0)

    def pruned(
        self, name: str, configs: Sequence[Config], nargs: dict[str, Any], kwargs: dict[str, Any]
    ) -> list[Config]:
        """The configurations of a kernel worth measuring for these arguments. Raises AutotunerError when none is left."""
        chosen = list(configs)
        if self.early_config_prune is not None:
            chosen = list(self.early_config_prune(configs, nargs, **kwargs))
            if not chosen:
                raise AutotunerError(f"early_config_prune leaves no configuration of {name}")
        if self.perf_model is not None:
            top = self.top_k
            if isinstance(top, float) and top <= 1.0:
                top = max(int(len(configs) * top), 1)
            elif not isinstance(top, int):
                raise TypeError(f"top_k is a share of at most 1.0 or a number of configurations, not {top!r}")
            if len(chosen) > top:
                times = {c: self.perf_model(**nargs, **kwargs, **c.all_kwargs()) for c in chosen}
                chosen = sorted(times, key=times.__getitem__)[:top]
        return chosen
