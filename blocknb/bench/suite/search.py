"""Searches the fastest configuration of a kernel, for Triton and for blocknb, over the same grid of configurations.

Triton's users choose rows per program and warps by autotuning. So the peer is measured in the best configuration of a sweep over the
grid of the benchmark. The file `triton_best.json` keeps it for a GPU, a version of Triton and the source of a kernel. Our own kernels
are measured with their default configuration. A sweep shows it next to the best one, as a guide for tuning the default.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blocknb.bench.suite.definition import Config
from blocknb.bench.suite.measure import OURS, TRITON, Bench, Contender, one_line
from blocknb.bench.suite.triton_source import source
from blocknb.runtime import whole_files

FILE = Path(__file__).with_name("triton_best.json")
ROUNDS = 12


@dataclass
class TileSweep:
    """Milliseconds by compiler and configuration. `default` is the time of our default configuration; `problems` lists failures."""

    case: str
    times: dict[str, list[tuple[Config, float]]] = field(default_factory=dict)
    default: float | None = None
    problems: list[str] = field(default_factory=list)

    def best(self, compiler: str) -> tuple[Config, float] | None:
        return min(self.times.get(compiler, []), key=lambda item: item[1], default=None)


def sweep(bench: Bench, compilers: tuple[str, ...]) -> TileSweep:
    """Checks and times every configuration of the benchmark's grid with each compiler, interleaved. Raises KeyboardInterrupt after an
    interrupt, because the best of some configurations is not the best one."""
    session, found = bench.session, TileSweep(str(bench.case))
    calls: dict[str, Callable[[], Any]] = {}
    places: dict[str, tuple[str, Config]] = {}
    for compiler in compilers:
        variant = bench.benchmark.variants.get(compiler)
        if variant is not None and variant.sweep is not None:
            grid = list(variant.sweep(bench.case.shape))
        else:
            grid = session.sources[compiler].configurations(bench.benchmark, bench.case.shape)
        for config in grid if session.device == "gpu" else _without_warps(grid):
            label = f"{compiler} {text(config)}"
            try:
                call = bench.configured(compiler, config)
                wrong = bench.verify(Contender(call, lambda _: bench.outputs))[0]
            except Exception as error:  # too much shared memory or too many registers
                wrong = one_line(error)
            if wrong:
                found.problems.append(f"{label}: {wrong}")
            else:
                calls[label], places[label] = call, (compiler, config)
    if OURS in compilers:
        calls["default"] = bench.candidate(OURS, None).call
    times = session.time(calls, ROUNDS)
    if session.cancelled:
        raise KeyboardInterrupt
    for label, timing in times.items():
        if label == "default":
            found.default = timing.median
        else:
            compiler, config = places[label]
            found.times.setdefault(compiler, []).append((config, timing.median))
    return found


def _without_warps(grid: list[Config]) -> list[Config]:
    """The configurations without num_warps, which a CPU ignores."""
    found: list[Config] = []
    for config in grid:
        rest = {key: value for key, value in config.items() if key != "num_warps"}
        if rest and rest not in found:
            found.append(rest)
    return found


def text(config: Config) -> str:
    return " ".join(f"{key}={value}" for key, value in config.items())


def _cells(found: TileSweep) -> dict[tuple[str, int], dict[str, float]]:
    """Maps (rest of the configuration, num_warps) to microseconds by compiler."""
    cells: dict[tuple[str, int], dict[str, float]] = {}
    for compiler, items in found.times.items():
        for config, ms in items:
            rest = text({key: value for key, value in config.items() if key != "num_warps"})
            cells.setdefault((rest, config.get("num_warps", 0)), {})[compiler] = ms * 1e3
    return cells


def grid(found: TileSweep) -> list[str]:
    """The lines of a table: a column per num_warps, a row per remaining configuration, microseconds of each compiler in a cell."""
    compilers = list(found.times)
    wide = 5 + 8 * len(compilers)
    cells = _cells(found)
    columns = sorted({warps for _, warps in cells})
    rests = list(dict.fromkeys(rest for rest, _ in cells))
    width = max([len(rest) for rest in rests], default=0)
    lines = [f"  {found.case}, us: {' | '.join(compilers)}"]
    if any(columns):
        lines.append(f"    {'num_warps':{max(width, 9)}}" + "".join(f"{warps:>{wide}}" for warps in columns))
    for rest in rests:
        parts = []
        for warps in columns:
            held = cells.get((rest, warps), {})
            parts.append(" | ".join(f"{held[c]:.2f}" if c in held else "-" for c in compilers) if held else "")
        lines.append(f"    {rest:{max(width, 9)}}" + "".join(f"{part:>{wide}}" for part in parts))
    for compiler in compilers:
        best = found.best(compiler)
        if best is not None:
            lines.append(f"    best {compiler}: {best[1] * 1e3:.2f} with {text(best[0])}")
    if found.default is not None:
        lines.append(f"    our default: {found.default * 1e3:.2f}")
    return [line.rstrip() for line in lines] + [f"    {problem}" for problem in found.problems]


class Best:
    """The best configurations of searched peers, from the file, or from a sweep that is then added to the file.

    An entry is valid for a `device` and a kernel source. With `fresh`, every case is swept with both compilers, and `show` prints the
    lines of the sweep. A variant with a `known` configuration is swept only with `fresh`; otherwise an old entry, or `known`, is used.
    `sweeps` collects all sweeps.
    """

    def __init__(self, device: str, *, fresh: bool, show: Callable[[str], None] = print, path: Path = FILE) -> None:
        self.device, self.fresh, self.show, self.path = device, fresh, show, path
        self.sweeps: list[TileSweep] = []
        self.kept: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def before(self, bench: Bench) -> None:
        """In a fresh search, sweeps our kernel and the peers that share its source, and shows and keeps the results."""
        if not self.fresh:
            return
        variants = bench.benchmark.variants
        peers = [
            p
            for p in bench.session.columns(bench.benchmark)
            if bench.searched(p) or (p in bench.session.sources and not variants)
        ]
        found = sweep(bench, (OURS, *peers))
        self._keep(bench, found)
        for line in grid(found):
            self.show(line)

    def __call__(self, bench: Bench, peer: str = TRITON) -> Config:
        """Returns the best configuration of the peer. Raises RuntimeError if no configuration runs."""
        if (known := self._known(bench, peer)) is None:
            self._keep(bench, sweep(bench, (peer,)))
            known = self._known(bench, peer)
        if known is None:
            raise RuntimeError(f"no configuration runs: {'; '.join(self.sweeps[-1].problems[:2])}")
        return known

    def _known(self, bench: Bench, peer: str) -> Config | None:
        entry = self.kept.get(self.device, {}).get(_name(bench, peer))
        variant = bench.benchmark.variants.get(peer)
        if entry and (entry["source"] == _digest(bench, peer) or (variant is not None and variant.known is not None)):
            found: Config = entry["config"]
            return found
        return (
            variant.known(bench.case.shape, bench.case.dtype)
            if variant is not None and variant.known is not None
            else None
        )

    def _keep(self, bench: Bench, found: TileSweep) -> None:
        self.sweeps.append(found)
        for peer in found.times:
            best = found.best(peer) if bench.searched(peer) else None
            if best is not None:
                entry = {"config": best[0], "ms": round(best[1], 5), "source": _digest(bench, peer)}
                self.kept.setdefault(self.device, {})[_name(bench, peer)] = entry
        with contextlib.suppress(OSError):  # the installation may be read-only; `kept` serves this run
            whole_files.write_text(self.path, json.dumps(self.kept, indent=1, sort_keys=True) + "\n")


def _name(bench: Bench, peer: str) -> str:
    return str(bench.case) if peer == TRITON else f"{bench.case}, {peer}"


def _digest(bench: Bench, peer: str) -> str:
    variant = bench.benchmark.variants.get(peer)
    return hashlib.sha256(source(bench.benchmark.module if variant is None else variant.module).encode()).hexdigest()[
        :12
    ]
