"""Measures whether the knobs of a card can mislead, on a machine that other processes load.

    python scripts/knob_trials.py [--trials 20] [--wrong 50] [--load 2]

Three kinds of trials, with `--load` other processes that compute in bursts:

- away and back: a knob moves away and back. Both sides of the last comparison are the cell's kernel, so a gain or a loss is noise.
- gain: a knob makes the kernel 15 % faster with the same outputs.
- wrong: a knob breaks the outputs: holes, stale values, missing columns, sums that count twice. Its time must never count as a gain.

The exit status is 1 if "away and back" fails at all, or if a wrong change counts as a gain. It is also 1 if more than one of ten gains is
missed.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import blocknb
import blocknb.language as tl
from blocknb.notebook import card, knobs
from blocknb.notebook.observe import Observation

GAIN = 1.15
FAST, SLOW = 200, 230  # iterations; GAIN apart


@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@blocknb.kernel
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + at, values / tl.sum(values, axis=0), mask=at < columns)


@blocknb.kernel
def accumulate(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(out + at, mask=inside) + tl.load(x + at, mask=inside), mask=inside)


@blocknb.kernel
def smallest(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=float("inf"))
    tl.store(out + row, tl.argmin(values, axis=0))


@blocknb.kernel
def positive(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) > 0.5, mask=at < n)


@blocknb.kernel
def total(x, out, n, STEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + at, mask=at < n, other=0.0), axis=0))


@blocknb.kernel
def iterate(x, out, factor, summand, n, WORK: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n)
    for _ in range(WORK):
        values = values * factor + summand
    tl.store(out + at, values, mask=at < n)


def carded(launch: Callable[[], Any]) -> Any:
    """The card of a launch, as a cell shows it."""
    observation = Observation()
    observation.start()
    try:
        launch()
    finally:
        observation.stop()
    (record,) = observation.records.values()
    return card.card_of(record)


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape, np.float32)


def rows(kernel: Any, count: int, columns: int, block: int, dtype: Any = np.float32) -> Any:
    """A card of a kernel with one program per row."""
    x = _floats(count, columns)
    out = np.zeros((count, columns) if kernel is softmax else count, dtype)
    return carded(lambda: kernel[(count,)](x, out, columns, BLOCK=block)), (x, out)


def flat(kernel: Any, n: int, block: int, computed: bool, dtype: Any = np.float32) -> Any:
    """A card of an elementwise kernel, with a grid that follows BLOCK or a fixed one."""
    arrays = [_floats(n) for _ in range(2 if kernel is add else 1)]
    out = np.zeros(n, dtype)
    grid = (lambda meta: (blocknb.cdiv(n, meta["BLOCK"]),)) if computed else (blocknb.cdiv(n, block),)
    return carded(lambda: kernel[grid](*arrays, out, n, BLOCK=block)), (arrays, out)


def work(n: int, block: int = 256) -> Any:
    """A card of the kernel whose time is proportional to WORK, with the slow value. Its outputs do not depend on WORK."""
    x, out = _floats(n), np.zeros(n, np.float32)
    grid = (blocknb.cdiv(n, block),)
    return carded(lambda: iterate[grid](x, out, 1.0, 0.0, n, WORK=SLOW, BLOCK=block)), (x, out)


def summed(n: int, block: int) -> Any:
    x, out = _floats(n), np.zeros(1, np.float32)
    grid = (blocknb.cdiv(n, block),)
    return carded(lambda: total[grid](x, out, n, STEP=block, BLOCK=block)), (x, out)


def modified(shown: Any, **constants: int) -> Mapping[str, Any]:
    """The comparison with the cell after a change of constants."""
    found: Mapping[str, Any] = knobs.with_knobs(shown, {"constants": constants}).parts["modified"]
    return found


def away_and_back(number: int) -> Mapping[str, Any]:
    """Turns BLOCK away and back; returns the last comparison, in which both sides are the kernel of the cell."""
    kinds = [
        lambda: flat(add, 100_000, 1024, True),
        lambda: flat(accumulate, 1 << 20, 2048, True),
        lambda: rows(softmax, 512, 1000, 1024),
        lambda: work(1 << 16),
    ]
    shown, _kept = kinds[number % len(kinds)]()
    block = shown.main.compiled.trace.constants["BLOCK"]
    modified(shown, BLOCK=2 * block)
    return modified(shown, BLOCK=block)


def gain(number: int) -> Mapping[str, Any]:
    """Turns WORK from SLOW to FAST."""
    shown, _kept = work(1 << (14 + number % 5))
    found = modified(shown, WORK=FAST)
    return {**found, "settings": f"{found['settings']} of {shown.main.grid[0]} programs"}


@dataclass(frozen=True)
class WrongKnob:
    """A card, and constants that break its outputs."""

    make: Callable[[], Any]
    constants: Mapping[str, int]


def wrong_knobs(count: int) -> list[WrongKnob]:
    """Changes that break the outputs."""
    found: list[WrongKnob] = []
    for columns in (700, 1000, 1024, 1500):
        block = 1 << (columns - 1).bit_length()
        for smaller in (block >> 1, block >> 2):
            found.append(WrongKnob(lambda c=columns, b=block: rows(softmax, 64, c, b), {"BLOCK": smaller}))
            found.append(WrongKnob(lambda c=columns, b=block: rows(smallest, 64, c, b, np.int32), {"BLOCK": smaller}))
    for n in (10_000, 65_536, 100_000):
        for smaller in (512, 256, 64):
            found.append(WrongKnob(lambda n=n: flat(add, n, 1024, False), {"BLOCK": smaller}))
            found.append(WrongKnob(lambda n=n: flat(accumulate, n, 1024, False), {"BLOCK": smaller}))
            found.append(WrongKnob(lambda n=n: flat(positive, n, 1024, False, np.bool_), {"BLOCK": smaller}))
        for step in (128, 256, 512):
            found.append(WrongKnob(lambda n=n: summed(n, 1024), {"STEP": step}))
    random.Random(0).shuffle(found)
    return [found[i % len(found)] for i in range(count)]


def wrong(change: WrongKnob) -> Mapping[str, Any]:
    shown, _kept = change.make()
    return modified(shown, **change.constants)


def _burn(seed: int) -> None:
    """Computes in bursts, like another user's programs."""
    pause = random.Random(seed)
    while True:
        end = time.perf_counter() + pause.uniform(0.005, 0.3)
        while time.perf_counter() < end:
            sum(range(2000))
        time.sleep(pause.uniform(0, 0.05))


@contextlib.contextmanager
def loaded(processes: int) -> Iterator[None]:
    """A context in which other processes compute."""
    others = [subprocess.Popen([sys.executable, __file__, "--burn", str(seed)]) for seed in range(processes)]
    try:
        yield
        assert all(other.poll() is None for other in others), "the load has ended early"
    finally:
        for other in others:
            other.terminate()
            other.wait()


def report(name: str, found: list[Mapping[str, Any]], good: Callable[[str], bool]) -> int:
    """Prints the verdicts of one kind of trials; returns how many were good."""
    right = sum(good(part["verdict"]) for part in found)
    print(f"{name}: {right} of {len(found)} ({dict(Counter(part['verdict'] for part in found))})")
    for part in found:
        if not good(part["verdict"]):
            print(f"  {part['settings']}: {part['text']}")
    sys.stdout.flush()
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--wrong", type=int, default=50)
    parser.add_argument("--load", type=int, default=2, help="other processes that compute")
    parser.add_argument("--burn", type=int, help=argparse.SUPPRESS)  # what such a process does
    options = parser.parse_args()
    if options.burn is not None:
        _burn(options.burn)
    with loaded(options.load):
        noise = report("away and back within noise", [away_and_back(i) for i in range(options.trials)], "noise".__eq__)
        gains = report("gain of 15 % shown", [gain(i) for i in range(options.trials)], "faster".__eq__)
        broken = report("wrong, not a gain", [wrong(w) for w in wrong_knobs(options.wrong)], "wrong".__eq__)
    return 0 if noise == options.trials and gains >= 0.9 * options.trials and broken == options.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
