"""Compares the speed of two checkouts of blocknb: `python scripts/paired.py BASE HEAD --device cpu`.

Each checkout runs in a process of its own, on the same seeds. In every round both time the same case, in a random order, with cold caches.
Where arrays lie in memory stays the same for the life of a process, so both processes are started anew `--restarts` times. Each restart
gives one ratio: the median over its rounds of BASE's time over HEAD's (above 1: HEAD is faster). `--jobs` runs several pairs of processes
at a time, each pair on its own share of the cores. A row shows the median of these ratios and its 95 % interval. The interval comes from
order statistics (binomial with p = 1/2), so it assumes nothing about the noise; with fewer than 6 restarts it is the range. The exit
status is 1 if an interval does not exclude a loss larger than `--loss`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

CALLS = 3  # of one case in one round; the median counts


def worker(device: str) -> None:
    """Answers JSON lines: {"cases": names}, {"prepare": [name, index]}, {"time": calls}."""
    from blocknb.profile.suite.catalogue import BENCHMARKS
    from blocknb.profile.suite.measure import OURS, Bench, MeasuringSession
    from blocknb.profile.timing import clock_of

    session, clock, call = MeasuringSession(device, peers=()), clock_of(device == "gpu"), None
    replies, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        ((verb, value),) = json.loads(line).items()
        answer: Any = None
        if verb == "cases":
            wanted = value or list(BENCHMARKS)
            answer = [(name, i, str(case)) for name in wanted for i, case in enumerate(BENCHMARKS[name].cases(device))]
        elif verb == "prepare":
            call = None
            name, index = value
            bench = Bench(session, BENCHMARKS[name], BENCHMARKS[name].cases(device)[index])
            call = bench.candidate(OURS, None).call
            for _ in range(3):
                call()
            session.wait()
        elif verb == "time":
            assert call is not None
            answer = [clock(call) for _ in range(value)]
        print(json.dumps(answer), file=replies, flush=True)


class Checkout:
    """A checkout's worker process, with a cache of compiled code of its own."""

    def __init__(self, path: str, device: str, cores: set[int]) -> None:
        root = Path(path).resolve()
        self.cache = tempfile.TemporaryDirectory()
        environment = {**os.environ, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"}
        environment["BLOCKNB_CACHE_DIR"] = self.cache.name
        command = [sys.executable, __file__, "--worker", device]
        self.process = subprocess.Popen(
            command, cwd=root, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        os.sched_setaffinity(self.process.pid, cores)

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"the worker ended while it was asked for {request}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.cache.cleanup()


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The median of the ratios, and the ends of its 95 % interval: the order statistics whose binomial coverage is at least 95 %."""
    ordered, n = sorted(ratios), len(ratios)
    tail, rank = 0.0, 0
    while rank < n // 2 and tail + math.comb(n, rank) / 2**n <= 0.025:
        tail += math.comb(n, rank) / 2**n
        rank += 1
    rank = max(rank - 1, 0)
    return statistics.median(ordered), ordered[rank], ordered[n - 1 - rank]


def compare(base: Checkout, head: Checkout, case: tuple[str, int, str], rounds: int) -> float:
    """The median over the rounds of BASE's time over HEAD's."""
    for checkout in (base, head):
        checkout.ask(prepare=case[:2])
    ratios = []
    for _ in range(rounds):
        order = [base, head]
        random.shuffle(order)
        times = {checkout: statistics.median(checkout.ask(time=CALLS)) for checkout in order}
        ratios.append(times[base] / times[head])
    return statistics.median(ratios)


def restarted(options: argparse.Namespace, cores: set[int]) -> dict[str, float]:
    """By case: the ratio that one pair of fresh processes gives on these cores."""
    base, head = (Checkout(path, options.device, cores) for path in (options.base, options.head))
    try:
        known = {tuple(case) for case in base.ask(cases=options.benchmarks)}
        wanted = [tuple(case) for case in head.ask(cases=options.benchmarks)[:: options.every]]
        return {case[2]: compare(base, head, case, options.rounds) for case in wanted if case in known}
    finally:
        for checkout in (base, head):
            checkout.close()


def measured(options: argparse.Namespace) -> dict[str, list[float]]:
    """By case: the ratio that each restart gave."""
    found: dict[str, list[float]] = {}
    every = sorted(os.sched_getaffinity(0))
    shares: Queue[set[int]] = Queue()
    for job in range(options.jobs):
        shares.put(set(every[job * len(every) // options.jobs : (job + 1) * len(every) // options.jobs]))

    def restart(_: int) -> dict[str, float]:
        cores = shares.get()
        try:
            return restarted(options, cores)
        finally:
            shares.put(cores)

    with ThreadPoolExecutor(options.jobs) as pool:
        for at, ratios in enumerate(pool.map(restart, range(options.restarts)), 1):
            for case, ratio in ratios.items():
                found.setdefault(case, []).append(ratio)
            print(f"restart {at} of {options.restarts}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base")
    parser.add_argument("head")
    parser.add_argument("benchmarks", nargs="*", help="all benchmarks of kernels if none is named")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--restarts", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=1, help="pairs at a time, each on its own share of the cores")
    parser.add_argument("--loss", type=float, default=0.03, help="the loss that each interval must exclude")
    parser.add_argument("--every", type=int, default=1, help="only every so many cases")
    options = parser.parse_args()
    lost, medians = [], []
    for case, ratios in measured(options).items():
        middle, low, high = interval(ratios)
        medians.append(middle)
        lost += [case] if low < 1 - options.loss else []
        print(f"{case:40} {middle:.3f} [{low:.3f}, {high:.3f}]", flush=True)
    print(f"geometric mean of {len(medians)} cases: {statistics.geometric_mean(medians):.4f}")
    print(f"intervals that do not exclude a loss of {options.loss:.0%}: {', '.join(lost) or 'none'}")
    return 1 if lost else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2])
    else:
        sys.exit(main())
