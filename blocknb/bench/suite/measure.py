"""Measures one case: makes the arrays, checks the results of every peer against float64, and times the correct peers, interleaved.

A peer that is missing, fails or gives wrong results is not timed; the row has the reason. Outputs are poisoned before every check, which
detects missing writes. `OURS` is the name of blocknb in a row. A ratio is a peer's time divided by ours.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blocknb import kernel, kernels
from blocknb.bench.suite import attention, decoding
from blocknb.bench.suite.definition import Arrays, BenchmarkCase, Config, Make, MakeTorch, SuiteBenchmark
from blocknb.bench.suite.triton_source import Sources
from blocknb.bench.unmeasured import LEFT_OUT
from blocknb.profile.timing import Timing, clock_of, interleaved
from blocknb.runtime.host import thread_count

OURS = "blocknb"
#: Seconds; threads of OpenBLAS spin for 2^26 cycles after a call, which took 0.13 s on a machine with an H200.
PAUSE = 0.2
COPY, TORCH, COMPILED, TRITON, NUMPY, NUMBA = "copy", "torch", "torch.compile", "Triton", "NumPy", "numba"
CUPY, CUDNN, FLASH = "CuPy", attention.CUDNN, attention.FLASH
WHOLE_CASE = "all"  # in `MeasuredRow.problems`: an error before any peer ran, such as missing memory for the inputs
CEILING = "ceiling"  # the time of an empty kernel plus that of the bytes at the speed of a large copy; the ratio is our share of it
PEERS = {"gpu": (COPY, TORCH, COMPILED, TRITON), "cpu": (NUMPY, NUMBA, TORCH)}
#: Peers of any benchmark.
GENERAL = frozenset({COPY, TORCH, COMPILED, TRITON, NUMPY, NUMBA, CUPY, CUDNN, FLASH, CEILING, *decoding.PEERS})
Call = Callable[[], Any]
Clock = Callable[[Call], float]
COPIED = 256 << 20  # bytes, enough for the full speed of an H200's memory


@kernel
def nothing(x):  # type: ignore[no-untyped-def]
    """Does nothing: its time is that of a launch on the device."""


@dataclass
class Ratio:
    """A peer's time over ours: the ratio of the medians, and the quartiles of the ratios of single rounds."""

    value: float
    low: float
    high: float


def ratio_of(ours: Timing, other: Timing) -> Ratio:
    """The ratio of another time to ours."""
    value = other.median / ours.median
    rounds = [b / a for a, b in zip(ours.values, other.values, strict=False)]
    if len(rounds) < 2:
        return Ratio(value, value, value)
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return Ratio(value, low, high)


@dataclass
class MeasuredRow:
    """The measurement of one case: times by peer, including ours. `problems` gives the reason for a missing time; `amount` is bytes or
    operations."""

    case: BenchmarkCase
    amount: int
    unit: str = "GB/s"
    times: dict[str, Timing] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    configs: dict[str, Config] = field(default_factory=dict)

    @property
    def rate(self) -> float | None:
        """Our rate, in GB/s or TFLOP/s."""
        if OURS not in self.times:
            return None
        return self.amount / self.times[OURS].median / (1e6 if self.unit == "GB/s" else 1e9)

    @property
    def failures(self) -> dict[str, str]:
        """The problems by peer without those of peers that do not take part: the benchmark or the device does not have them."""
        return {peer: why for peer, why in self.problems.items() if why != "none" and not why.startswith(LEFT_OUT)}

    def took_part(self, peer: str) -> bool:
        """Whether a peer took part in this case, even if it failed."""
        return peer in self.times or peer in self.failures

    def ratio(self, peer: str, ours_as: str = OURS) -> Ratio | None:
        """The ratio of a peer's time to ours, or to that of our variant `ours_as`."""
        ours, other = self.times.get(ours_as), self.times.get(peer)
        return None if ours is None or other is None else ratio_of(ours, other)


def refuse_unknown(peers: Sequence[str]) -> None:
    """Raises ValueError for a name that is not a peer on any device."""
    from blocknb.bench.suite.catalogue import BENCHMARKS

    own = dict.fromkeys(name for benchmark in BENCHMARKS.values() for name in benchmark.variants)
    known = [*sorted(GENERAL), *(name for name in own if name not in GENERAL)]
    if unknown := [peer for peer in peers if peer not in known]:
        raise ValueError(f"no peer {unknown[0]!r}; there are {', '.join(known)}")


class MeasuringSession:
    """The state that all cases of a run share: the device ("gpu" or "cpu"), the installed peers, and the clock.

    `missing` gives the reason for each peer that is not installed. Arrays are NumPy arrays on a CPU; on a GPU they are torch tensors, or
    CuPy arrays without torch. With `clean_cache`, the L2 cache is flushed by reading. `torch_device` and `clock` are for tests, which run
    the peers of a GPU elsewhere.
    """

    def __init__(
        self,
        device: str,
        peers: Sequence[str] | None = None,
        *,
        rounds: int = 30,
        clean_cache: bool = False,
        torch_device: str = "cuda",
        clock: Clock | None = None,
    ) -> None:
        self.device, self.rounds, self.clock, self.torch_device = device, rounds, clock, torch_device
        self.clean_cache = clean_cache
        self.peers_given = peers is not None  # otherwise each benchmark has its own peers
        self.peers = tuple(PEERS[device] if peers is None else peers)
        self.missing: dict[str, str] = {}
        self.torch = self._optional("torch", device == "gpu" or {TORCH, COMPILED} & set(self.peers))
        self.functions: dict[str, dict[str, Callable[..., Any]]] = {}
        self.sources = {OURS: Sources("blocknb")}  # copies for searches; measurements use blocknb.kernels
        self.prepared: set[str] = set()
        self.peers = tuple(peer for peer in self.peers if self._prepared(peer))
        self.cancelled = False  # an interrupt ended a measurement

    def _optional(self, name: str, wanted: Any) -> Any:
        try:
            return __import__(name) if wanted else None
        except ImportError:
            return None

    def _prepared(self, peer: str) -> bool:
        """Prepares a peer at the first request. Returns False if it is not installed."""
        if peer not in self.prepared:
            self.prepared.add(peer)
            try:
                self._prepare(peer)
            except ImportError as error:
                self.missing[peer] = f"not installed ({error})"
        return peer not in self.missing

    def source(self, language: str) -> Sources:
        """Our kernels in a language, loaded at the first request. Raises ImportError without its compiler."""
        name = {"triton": TRITON, "blocknb": OURS}.get(language, language)
        if name not in self.sources:
            self.sources[name] = Sources(language)
        return self.sources[name]

    def columns(self, benchmark: SuiteBenchmark) -> tuple[str, ...]:
        """The peers of a benchmark: those requested, or its own, if they are installed."""
        if self.device == "cpu" or self.peers_given or not benchmark.peers:
            return tuple(p for p in self.peers if p in GENERAL or p in benchmark.variants)
        return tuple(p for p in benchmark.peers if self._prepared(p))

    def _prepare(self, peer: str) -> None:
        from blocknb.bench.suite import peers_numpy, peers_torch
        from blocknb.bench.suite.catalogue import BENCHMARKS

        for benchmark in BENCHMARKS.values():
            if peer in benchmark.variants and peer not in GENERAL:
                self.source(benchmark.variants[peer].language)
                return
        match peer:
            case "torch":
                self.functions[peer] = peers_torch.eager()
            case "torch.compile":
                self.functions[peer] = peers_torch.formulas()
            case "NumPy":
                self.functions[peer] = peers_numpy.NUMPY
            case "numba":
                self.functions[peer] = peers_numpy.numba_peers()
            case "Triton":
                __import__("torch")
                self.source("triton")
            case "CuPy":
                self.functions[peer] = peers_torch.with_cupy()
            case attention.CUDNN | attention.FLASH:
                __import__("torch")
                self.functions[peer] = attention.torch_peers(peer) | decoding.torch_peers(peer)
            case name if name in decoding.PEERS:
                __import__("torch")
                self.functions[peer] = decoding.torch_peers(peer)
            case "copy" | "ceiling":
                pass
            case _:
                refuse_unknown([peer])

    def absent(self, peer: str, benchmark: SuiteBenchmark, dtype: str) -> str:
        """Why a peer does not measure a benchmark for a dtype: "" if it does, and "none" if it does not implement it.

        torch.compile is no peer of matrix products, and a copy only of those that name it. Triton needs a configuration to search."""
        if benchmark.flops is not None and peer in (COPY, COMPILED) and peer not in benchmark.peers:
            return "none"
        if peer == TRITON and not (
            TRITON in benchmark.variants if benchmark.variants else tuple(benchmark.sweep(benchmark.cpu[0]))
        ):
            return "none"
        if peer not in self.functions:
            return ""
        if benchmark.name not in self.functions[peer]:
            return "none"
        function = self.functions[peer][benchmark.name]
        if self.device == "cpu" or self.torch_device == "cpu":
            return getattr(function, "only_gpu", "")
        return "" if dtype in getattr(function, "dtypes", (dtype,)) else "none"

    def make(self, dtype: str) -> Make:
        if self.device == "cpu":
            return Make(np, dtype)
        if self.torch is not None:
            return MakeTorch(self.torch_device, dtype)
        import cupy

        return Make(cupy, dtype)

    def wait(self) -> None:
        if self.device == "gpu" and self.torch_device == "cuda":
            import cupy

            cupy.cuda.runtime.deviceSynchronize()

    @functools.cached_property
    def limits(self) -> tuple[float, float]:
        """The milliseconds of an empty kernel on the GPU, and the bytes per millisecond that a copy of `COPIED` bytes reads and writes."""
        make = self.make("fp32")
        source, target = make.normal(COPIED // 4), make.poison(COPIED // 4)
        times = self.time({"nothing": lambda: nothing[1,](target), "copy": lambda: kernels.copy(source, target)})
        return times["nothing"].median, 2 * COPIED / times["copy"].median

    def time(self, calls: dict[str, Call], rounds: int | None = None) -> dict[str, Timing]:
        gpu = self.device == "gpu"
        clock = self.clock if gpu or self.clock is not None else _rested(clock_of(gpu=False))
        found = interleaved(calls, gpu=gpu, rounds=rounds or self.rounds, warmup=2, clean=self.clean_cache, clock=clock)
        self.cancelled = self.cancelled or found.cancelled
        return found


def _rested(clock: Clock) -> Clock:
    """The clock with a pause before each call, if there are several threads. The threads of NumPy's BLAS spin for a while after a call, and
    would take the cores from the next peer."""

    def measure(call: Call) -> float:
        if thread_count() > 1:
            time.sleep(PAUSE)
        return clock(call)

    return measure


@dataclass
class Contender:
    """`call()` computes, and `results` maps its return value to arrays by output name."""

    call: Call
    results: Callable[[Any], Arrays]


class Bench:
    """The arrays of one case, and the calls of all peers."""

    def __init__(self, session: MeasuringSession, benchmark: SuiteBenchmark, case: BenchmarkCase) -> None:
        self.session, self.benchmark, self.case = session, benchmark, case
        self.make = session.make(case.dtype)
        self.inputs, self.outputs = benchmark.arrays(self.make, *case.shape)
        self.arrays = self.inputs | self.outputs
        self.bytes = sum(self.make.nbytes(array) for array in self.arrays.values())

    def candidate(self, peer: str, config: Config | None) -> Contender:
        """The call of a peer; Triton and variants take a configuration. Raises KeyError if the peer lacks the benchmark."""
        session, name = self.session, self.benchmark.name
        outputs = lambda _: self.outputs  # noqa: E731
        if peer == OURS:
            return Contender(functools.partial(self.benchmark.ours, kernels, self.arrays), outputs)
        variant = self.benchmark.variants.get(peer)
        if variant is not None and variant.language == "blocknb" and config is None:
            return Contender(functools.partial(variant.call, kernels, self.arrays), outputs)
        if variant is not None or peer in session.sources:
            return Contender(self.configured(peer, config), outputs)
        if peer == COPY:
            return self._copy()
        function = session.functions[peer][name]
        if peer in (NUMPY, NUMBA):
            return Contender(functools.partial(function, *self.arrays.values()), outputs)
        if peer == COMPILED:
            session.torch._dynamo.reset()  # torch recompiles for each shape, up to a limit
            function = session.torch.compile(function, dynamic=False)
        convert = session.torch.from_numpy if session.device == "cpu" else (lambda array: array)
        tensors = [convert(array) for array in self.inputs.values()]
        return Contender(functools.partial(function, *tensors), self._returned)

    def configured(self, peer: str, config: Config | None) -> Call:
        """A call of our own kernels in a configuration, by the compiler and the wrapper of the peer."""
        variant = self.benchmark.variants.get(peer)
        source = self.session.sources[peer] if variant is None else self.session.source(variant.language)
        return source.call(self.benchmark, self.arrays, config, None if variant is None else variant.call)

    def _returned(self, value: Any) -> Arrays:
        values = value if isinstance(value, tuple | list) else (value,)
        convert = (lambda t: t.numpy()) if self.session.device == "cpu" else (lambda t: t)
        return {name: convert(array) for name, array in zip(self.outputs, values, strict=False)}

    def _copy(self) -> Contender:
        """A copy that moves as many bytes as the case: half of them reads, half writes."""
        n = self.bytes // 8
        source, target = self.make.normal(n, dtype="float32"), self.make.poison(n, dtype="float32")
        if hasattr(target, "copy_"):
            return Contender(lambda: target.copy_(source), lambda _: {})
        return Contender(lambda: self.make.xp.copyto(target, source), lambda _: {})

    def searched(self, peer: str) -> bool:
        """Whether the peer runs in its best searched configuration instead of the default of our wrapper."""
        variant = self.benchmark.variants.get(peer)
        return peer == TRITON if variant is None else variant.sweep is not None

    @functools.cached_property
    def exact(self) -> tuple[Any, ...]:
        assert self.benchmark.exact is not None
        with np.errstate(all="ignore"):
            found = self.benchmark.exact(self.make.xp, *(self.make.wide(array) for array in self.inputs.values()))
        return found if isinstance(found, tuple) else (found,)

    def verify(self, candidate: Contender) -> tuple[str, float]:
        """Returns an error text ("" if the results are correct) and the relative error, a ratio of norms."""
        for array in self.outputs.values():
            self.make.spoil(array)
        got = {name: self.make.wide(array) for name, array in candidate.results(candidate.call()).items()}
        self.session.wait()
        xp, worst = self.make.xp, 0.0
        if not got:
            return "", 0.0
        if self.benchmark.check is not None:
            return self.benchmark.check(xp, {k: self.make.wide(v) for k, v in self.inputs.items()}, got), 0.0
        rtol, atol = self.benchmark.tolerance[self.case.dtype]
        for (name, value), exact in zip(got.items(), self.exact, strict=False):
            if tuple(value.shape) != tuple(exact.shape):
                return f"{name} has the shape {tuple(value.shape)} instead of {tuple(exact.shape)}", worst
            off = xp.abs(value - exact)
            error = float(xp.sqrt(xp.sum(off * off)) / (xp.sqrt(xp.sum(exact * exact)) + 1e-300))
            worst = max(worst, error)
            if not bool((off <= atol + rtol * xp.abs(exact)).all()):
                return f"{name} is wrong: relative error {error:.2g}", worst
        return "", worst


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200]


def measure(
    session: MeasuringSession,
    benchmark: SuiteBenchmark,
    case: BenchmarkCase,
    *,
    before: Callable[[Bench], Any] = lambda bench: None,
    best: Callable[[Bench, str], Config | None] = lambda bench, peer: None,
) -> MeasuredRow:
    """Checks and times a case. `best(bench, peer)` returns the configuration of a searched peer. `before(bench)` is called first."""
    bench = Bench(session, benchmark, case)
    flops = benchmark.flops
    row = MeasuredRow(
        case, bench.bytes if flops is None else flops(*case.shape), "GB/s" if flops is None else "TFLOP/s"
    )
    before(bench)
    calls: dict[str, Call] = {}
    for peer in (OURS, *(peer for peer in session.columns(benchmark) if peer != CEILING)):
        if reason := session.absent(peer, benchmark, case.dtype):
            row.problems[peer] = reason
            continue
        try:
            config = best(bench, peer) if bench.searched(peer) else None
            if config is not None:
                row.configs[peer] = config
            candidate = bench.candidate(peer, config)
            wrong, error = bench.verify(candidate)
        except Exception as failure:  # a peer's library may raise anything; the other peers are measured anyway
            row.problems[peer] = f"failed: {one_line(failure)}"
            continue
        row.errors[peer] = error
        if wrong:
            row.problems[peer] = f"wrong: {wrong}"
        else:
            calls[peer] = candidate.call
    bench.__dict__.pop("exact", None)  # frees the float64 arrays before the timing
    row.times = dict(session.time(calls, None if benchmark.timed is None else min(benchmark.timed, session.rounds)))
    if CEILING in session.columns(benchmark) and session.device == "gpu":
        empty, rate = session.limits
        least = empty + bench.bytes / rate
        row.times[CEILING] = Timing(least, least, least)
    return row
