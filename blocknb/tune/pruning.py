"""Selects the configurations that an autotuner measures: `prune_configs_by` of `autotune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blocknb.errors import KernelError
from blocknb.tune.config import Config


class AutotunerError(KernelError):
    """The autotuner has no configuration to measure, or a launch passes a value that it chooses."""

    title = "autotuning"


class Pruning:
    """Removes configurations before the measurement: by the user's `early_config_prune`, and by a `perf_model` that keeps the best `top_k`.

    `top_k` is a number of configurations, or a share of at most 1.0.
    """

    def __init__(self, by: Mapping[str, Any] | None):
        by = by or {}
        self.early_config_prune: Callable[..., Any] | None = by.get("early_config_prune")
        self.perf_model: Callable[..., Any] | None = by.get("perf_model")
        self.top_k: int | float = by.get("top_k", 1.0)

    def pruned(
        self, name: str, configs: Sequence[Config], nargs: dict[str, Any], kwargs: dict[str, Any]
    ) -> list[Config]:
        """The configurations to measure for these arguments. Raises AutotunerError if none is left, TypeError for a wrong `top_k`."""
        chosen = list(configs)
        if self.early_config_prune is not None:
            chosen = list(self.early_config_prune(configs, nargs, **kwargs))
            if not chosen:
                hint = "return at least one of the configurations"
                raise AutotunerError(f"early_config_prune returned no configuration of {name}", hint=hint)
        if self.perf_model is not None:
            top = self.top_k
            if isinstance(top, float) and top <= 1.0:
                top = max(int(len(configs) * top), 1)
            elif not isinstance(top, int):
                raise TypeError(
                    f"top_k must be an int (configurations) or a float up to 1.0 (their share), not {top!r}"
                )
            if len(chosen) > top:
                times = {c: self.perf_model(**nargs, **kwargs, **c.all_kwargs()) for c in chosen}
                chosen = sorted(times, key=times.__getitem__)[:top]
        return chosen
