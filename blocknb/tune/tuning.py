"""The report of an autotuner: a `Tuning` is one choice, with one `Trial` per configuration.

A Tuning prints as a table, the fastest configuration first. A notebook shows the same table in the style of a card. Times are in
milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.tune.config import Config
from blocknb.tune.pruning import AutotunerError

#: The status of a configuration: fully measured; stopped early, because it was hopeless; left out, because it cannot run or spills; not
#: measured, because of an interrupt.
MEASURED, STOPPED, LEFT_OUT, NOT_MEASURED = "measured", "stopped early", "left out", "not measured"
STATUSES = (MEASURED, STOPPED, LEFT_OUT, NOT_MEASURED)
NO_TIMES = (math.inf,) * 3


@dataclass(frozen=True)
class Trial:
    """One configuration with its status and the reason for it.

    `times` holds the median and the 20 % and 80 % quantiles, or infinities without a measurement. `rounds` is 0 for a user's `do_bench`.
    """

    config: Config
    times: Any = NO_TIMES
    rounds: int = 0
    status: str = MEASURED
    reason: str = ""

    @property
    def median(self) -> float:
        return float(self.times[0] if isinstance(self.times, (list, tuple)) else self.times)


@dataclass(frozen=True)
class Tuning:
    """One choice of an autotuner for the tuning key `key`.

    `best` is None after an interrupt. `seconds` is the duration of the tuning, 0 for a choice `from_disk`. `parameters` are those of the
    kernel.
    """

    kernel: str
    key: Mapping[str, Any]
    trials: tuple[Trial, ...]
    best: Config | None = None
    seconds: float = 0.0
    from_disk: bool = False
    parameters: Sequence[str] = ()

    def launch_kwargs(self) -> dict[str, Any]:
        """The keyword arguments that a launch with `best` takes: the constants and options that its trial passed.

        The launch does not run the configuration's `pre_hook`. Raises AutotunerError after an interrupt."""
        if self.best is None:
            message = f"the tuning of {self.kernel} was interrupted, so it has no best configuration"
            raise AutotunerError(message, hint="call tune again with the same arguments: it continues")
        return self.best.launched(self.parameters)

    @property
    def timings(self) -> dict[Config, Any]:
        """The times by configuration, in Triton's form."""
        return {trial.config: list(t) if isinstance(t := trial.times, tuple) else t for trial in self.trials}

    @property
    def headline(self) -> str:
        """The choice and the number of configurations, in one line."""
        count = {status: sum(trial.status == status for trial in self.trials) for status in STATUSES}
        chosen = f"interrupted, {count[MEASURED] + count[STOPPED]} of {len(self.trials)} measured"
        if self.best is not None:
            time = min(t.median for t in self.trials if t.config is self.best)
            chosen = f"{as_keywords(self.best)} ({time:.4g} ms), the best of {len(self.trials)}"
        rest = [f"{count[status]} {status}" for status in (STOPPED, LEFT_OUT) if count[status]]
        rest.append("from disk" if self.from_disk else f"{self.seconds:.1f} s")
        return "; ".join([chosen, *rest])

    def rows(self) -> list[list[str]]:
        """The table with its head: the fully measured configurations, the fastest first, then the others."""
        names = list(dict.fromkeys(name for trial in self.trials for name in trial.config.all_kwargs()))
        values = [trial.config.all_kwargs() for trial in self.trials]
        shown = [n for n in names if any(v.get(n) != values[0].get(n) for v in values)] or names
        table = [[*shown, "ms", "20 %", "80 %", "ratio", "rounds", ""]]
        medians = [t.median for t in self.trials if t.status == MEASURED or t.config is self.best]
        least = min(medians, default=math.inf)
        for trial in sorted(self.trials, key=lambda trial: (STATUSES.index(trial.status), trial.median)):
            given = trial.config.all_kwargs()
            table.append([*(str(given.get(name, "")) for name in shown), *self._figures(trial, least)])
        return table

    def _figures(self, trial: Trial, least: float) -> list[str]:
        """The cells of a trial after its configuration: times, the ratio to the least median, rounds, and a remark."""
        known = math.isfinite(trial.median)
        spread = trial.times[1:3] if known and isinstance(trial.times, (list, tuple)) else ()
        figures = [f"{time:.4g}" for time in ((trial.median, *spread) if known else ())]
        remark = "the best" if trial.config is self.best else f"{trial.status}: {trial.reason}" if trial.reason else ""
        return [
            *(figures + [""] * 3)[:3],
            f"{trial.median / least:.2f}" if known and 0 < least < math.inf else "",
            str(trial.rounds or ""),
            remark or ("" if trial.status == MEASURED else trial.status),
        ]

    @property
    def title(self) -> str:
        """The kernel and the tuning key."""
        return ", ".join([self.kernel, *(f"{name} = {value}" for name, value in self.key.items())])

    def text(self, most: int | None = None) -> str:
        """The headline and the table, with a limited number of configurations."""
        rows = self.rows()
        more = (
            []
            if most is None or len(rows) - 1 <= most
            else [f"  and {len(rows) - 1 - most} more; print(...) shows all"]
        )
        rows = rows[: None if most is None else most + 1]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [[*(t.rjust(w) for t, w in zip(row[:-1], widths, strict=False)), row[-1]] for row in rows]
        return "\n".join(
            [f"{self.title}: {self.headline}", *(("  " + "  ".join(line)).rstrip() for line in lines), *more]
        )

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Tuning of {self.title}: {self.headline}>"


def as_keywords(config: Config) -> str:
    """A configuration as the keywords of a launch, without options that have their default values."""
    default = Config({}).all_kwargs()
    named = {n: v for n, v in config.all_kwargs().items() if n in config.kwargs or v != default.get(n)}
    return ", ".join(f"{name}={value}" for name, value in named.items()) or "the defaults"
