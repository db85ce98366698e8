"""What an autotuner tried: a `Tuning` is one choice, with a `Trial` for each configuration, its times, and why it got no further.

It prints as a table, the fastest first; a notebook shows it in the look of a card. Times are milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blocknb.tune.config import Config

#: What became of a configuration: it was measured to the end; it was stopped early, being hopeless; it was left out, because it cannot
#: run or should not; nobody got to it before an interrupt.
MEASURED, STOPPED, LEFT_OUT, WAITING = "measured", "stopped early", "left out", "not measured"
FATES = (MEASURED, STOPPED, LEFT_OUT, WAITING)
NO_TIMES = (math.inf,) * 3


@dataclass(frozen=True)
class Trial:
    """One configuration: median, 20 % and 80 % of its times (infinities where there are none) in `rounds` rounds (0: by a `do_bench`
    that does not say), what became of it, and why."""

    config: Config
    times: Any = NO_TIMES
    rounds: int = 0
    fate: str = MEASURED
    reason: str = ""

    @property
    def median(self) -> float:
        return float(self.times[0] if isinstance(self.times, (list, tuple)) else self.times)


@dataclass(frozen=True)
class Tuning:
    """One choice of an autotuner. `key` says for what, `best` is None after an interrupt; `seconds` is how long it took, and 0 where
    the times came `from_disk`."""

    kernel: str
    key: Mapping[str, Any]
    trials: tuple[Trial, ...]
    best: Config | None = None
    seconds: float = 0.0
    from_disk: bool = False

    @property
    def timings(self) -> dict[Config, Any]:
        """The times by configuration, as Triton has them."""
        return {trial.config: list(t) if isinstance(t := trial.times, tuple) else t for trial in self.trials}

    @property
    def headline(self) -> str:
        """What was chosen out of how many, in one line."""
        count = {fate: sum(trial.fate == fate for trial in self.trials) for fate in FATES}
        chosen = f"interrupted, {count[MEASURED] + count[STOPPED]} of {len(self.trials)} measured"
        if self.best is not None:
            time = min(t.median for t in self.trials if t.config is self.best)
            chosen = f"{spelled(self.best)} ({time:.4g} ms), the best of {len(self.trials)}"
        rest = [
            f"{count[fate]} {text}"
            for fate, text in ((STOPPED, "stopped early"), (LEFT_OUT, "left out"))
            if count[fate]
        ]
        rest.append("from disk" if self.from_disk else f"{self.seconds:.1f} s")
        return "; ".join([chosen, *rest])

    def rows(self) -> list[list[str]]:
        """The table with its head: those measured to the end, the fastest first, then the others."""
        names = list(dict.fromkeys(name for trial in self.trials for name in trial.config.all_kwargs()))
        values = [trial.config.all_kwargs() for trial in self.trials]
        shown = [n for n in names if any(v.get(n) != values[0].get(n) for v in values)] or names
        table = [[*shown, "ms", "20 %", "80 %", "to the best", "rounds", ""]]
        medians = [t.median for t in self.trials if t.fate == MEASURED or t.config is self.best]
        least = min(medians, default=math.inf)
        for trial in sorted(self.trials, key=lambda trial: (FATES.index(trial.fate), trial.median)):
            given = trial.config.all_kwargs()
            table.append([*(str(given.get(name, "")) for name in shown), *self._figures(trial, least)])
        return table

    def _figures(self, trial: Trial, least: float) -> list[str]:
        """The cells of a trial behind its configuration: times, the ratio to the least median, rounds, and a remark."""
        known = math.isfinite(trial.median)
        spread = trial.times[1:3] if known and isinstance(trial.times, (list, tuple)) else ()
        figures = [f"{time:.4g}" for time in ((trial.median, *spread) if known else ())]
        remark = "the best" if trial.config is self.best else f"{trial.fate}: {trial.reason}" if trial.reason else ""
        return [
            *(figures + [""] * 3)[:3],
            f"{trial.median / least:.2f}" if known and 0 < least < math.inf else "",
            str(trial.rounds or ""),
            remark or ("" if trial.fate == MEASURED else trial.fate),
        ]

    @property
    def title(self) -> str:
        """The kernel and what it was tuned for."""
        return ", ".join([self.kernel, *(f"{name} = {value}" for name, value in self.key.items())])

    def text(self) -> str:
        """The headline and the table."""
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [[*(t.rjust(w) for t, w in zip(row[:-1], widths, strict=False)), row[-1]] for row in rows]
        return "\n".join([f"{self.title}: {self.headline}", *(("  " + "  ".join(line)).rstrip() for line in lines)])

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Tuning of {self.title}: {self.headline}>"


def spelled(config: Config) -> str:
    """A configuration as it would be written at a launch, without what is as everywhere."""
    plain = Config({}).all_kwargs()
    named = {n: v for n, v in config.all_kwargs().items() if n in config.kwargs or v != plain.get(n)}
    return ", ".join(f"{name}={value}" for name, value in named.items()) or "the defaults"
