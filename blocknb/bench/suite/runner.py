"""Runs the benchmarks of a command line, prints their tables, and returns JSON documents.

GPU benchmarks run in this process. On a CPU, each number of threads gets its own process, because BLAS, OpenMP and numba read the number
once. The environment of that process also makes malloc keep freed memory, so that no peer pays for page faults.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from blocknb.bench.suite import floors, table
from blocknb.bench.suite.catalogue import BENCHMARKS
from blocknb.bench.suite.definition import BenchmarkCase, SuiteBenchmark, parse_shape
from blocknb.bench.suite.measure import WHOLE_CASE, MeasuredRow, MeasuringSession, measure, one_line, refuse_unknown
from blocknb.bench.suite.search import Best, text
from blocknb.cpus import cpu_count
from blocknb.errors import Unsupported
from blocknb.profile.ceilings import name_of
from blocknb.runtime.cache import versions_of
from blocknb.runtime.kinds import HOST

THREADS = ("BLOCKNB_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=2000000000"}  # freed memory is kept
LIBRARIES = ("blocknb", "numpy", "torch", "triton", "numba", "cupy-cuda13x", "cupy-cuda12x", "llvmlite")


@dataclass(frozen=True)
class BenchOptions:
    """The options of the command line. `device` is "gpu", "cpu" or "" (the GPU if there is one). `threads` are numbers of CPU threads; ()
    means one, and all. `peers`, `shapes` and `dtypes` select; () means all. `search` sweeps configurations. `clean_cache` flushes the L2
    cache of a GPU by reading. `seed` draws other random shapes, and `shapes_count` is how many of them `plan_check` draws. `library`,
    `configs` and `compile` are for the zoo (`ZooOptions`). They are the libraries, the most configurations of an autotuner, and the target
    for which kernels are only compiled. `layers` is for the models of `torch_models`; 0 means all of them."""

    device: str = ""
    threads: tuple[int, ...] = ()
    peers: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    search: bool = False
    rounds: int = 30
    clean_cache: bool = False
    seed: int | None = None
    shapes_count: int = 40
    library: tuple[str, ...] = ()
    configs: int = 0
    compile: str = ""
    layers: int = 0


def run(names: Sequence[str], options: BenchOptions) -> list[dict[str, Any]]:
    """Measures the named benchmarks and prints them. Returns a JSON document for each device and number of threads.

    Raises KeyError for an unknown name, ValueError for an unknown peer, an invalid shape or an empty selection, and Unsupported without
    a GPU.
    """
    from blocknb.runtime import machine

    chosen(names, options, "cpu")
    device = options.device or ("gpu" if machine.has_gpu() else "cpu")
    if device == "gpu" and not machine.has_gpu():
        raise Unsupported("CuPy found no GPU for these benchmarks", hint="blocknb bench --device cpu")
    refuse_unknown(options.peers)
    if not any(cases for _, cases in chosen(names, options, device)):
        dtypes = {name: ", ".join(dict.fromkeys(c.dtype for c in BENCHMARKS[name].cases(device))) for name in names}
        raise ValueError(
            f"nothing to measure: no benchmark has these shapes and dtypes on a {device.upper()} "
            f"({'; '.join(f'{name}: {found}' for name, found in dtypes.items())})"
        )
    if device == "gpu":
        return [on_gpu(names, options)]
    counts = options.threads or tuple(sorted({1, cpu_count()}))
    documents: list[dict[str, Any]] = []
    for n in counts:
        try:
            documents.append(_in_a_process(names, replace(options, threads=(n,))))
        except (
            subprocess.CalledProcessError
        ) as error:  # it has said why; the other numbers of threads are measured anyway
            missing = {f"all peers on {n} threads": f"the process ended with status {error.returncode}"}
            documents.append(
                {"device": name_of(HOST), "threads": n, "missing": missing, "rows": [], "interrupted": False}
            )
        if documents[-1]["interrupted"]:
            break
    return documents


def chosen(
    names: Sequence[str], options: BenchOptions, device: str
) -> list[tuple[SuiteBenchmark, list[BenchmarkCase]]]:
    """The benchmarks with the cases that the options select. A named shape is measured even if the benchmark does not list it."""
    shapes = [parse_shape(shape) for shape in options.shapes]
    found = []
    for name in names:
        benchmark = BENCHMARKS[name]
        cases = benchmark.cases(device, options.seed)
        if shapes:
            dtypes = dict.fromkeys(case.dtype for case in cases)
            rank = len(cases[0].shape)
            cases = [BenchmarkCase(name, shape, dtype) for dtype in dtypes for shape in shapes if len(shape) == rank]
        cases = [case for case in cases if not options.dtypes or case.dtype in options.dtypes]
        found.append((benchmark, cases))
    return found


def on_gpu(names: Sequence[str], options: BenchOptions) -> dict[str, Any]:
    import cupy

    number = cupy.cuda.runtime.getDevice()
    properties, bus = cupy.cuda.runtime.getDeviceProperties(number), cupy.cuda.Device(number).pci_bus_id
    name = properties["name"].decode()
    session = MeasuringSession("gpu", options.peers or None, rounds=options.rounds, clean_cache=options.clean_cache)
    best = Best(f"{name}, Triton {versions().get('triton', '')}", fresh=options.search)
    return _measured(names, options, session, best, name, functools.partial(gpu_state, bus))


def on_cpu(names: Sequence[str], options: BenchOptions) -> dict[str, Any]:
    """Measures in this process, whose environment sets the number of threads."""
    threads = options.threads[0]
    session = MeasuringSession("cpu", options.peers or None, rounds=options.rounds)
    if session.torch is not None:
        session.torch.set_num_threads(threads)
    name = name_of(HOST)
    return _measured(
        names, options, session, Best(name, fresh=options.search), name, lambda: {"load": os.getloadavg()[0]}
    )


def _measured(
    names: Sequence[str],
    options: BenchOptions,
    session: MeasuringSession,
    best: Best,
    device: str,
    state: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Measures, prints and returns the rows of one session. An interrupt ends it and keeps its rows."""
    begin, rows, states = time.time(), [], [state()]
    print(f"\n{device}: {', '.join(f'{k} {v}' for k, v in versions().items())}; {_state_text(states[0])}", flush=True)
    print(*_remarks(names, options, session), sep="", end="", flush=True)
    try:
        for benchmark, cases in chosen(names, options, session.device):
            rows += _one(benchmark, cases, session, best)
            states.append(state())
            print(f"  {_state_text(states[-1])}, {time.time() - begin:.0f} s", flush=True)
            if session.cancelled:
                break
    except KeyboardInterrupt:
        session.cancelled = True
    if session.cancelled:
        print("interrupted", file=sys.stderr)
    verdicts = floors.check_floors(session.device, rows)
    if verdicts:
        print("\nTargets (a peer's time over ours)")
        print("\n".join(map(str, verdicts)), flush=True)
    if session.device == "gpu" and best.sweeps:
        print(f"Triton's best configurations: {best.path}")
    return {
        "device": device,
        "threads": options.threads[0] if session.device == "cpu" else None,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "seconds": time.time() - begin,
        "clean_cache": session.clean_cache,
        "seed": options.seed or 1,
        "versions": versions(),
        "missing": session.missing,
        "states": states,
        "rows": [table.as_json(row, session.columns(BENCHMARKS[row.case.name])) for row in rows],
        "means": {
            name: {
                peer: {"mean": mean, "lowest": low, "where": where, "cases": count}
                for peer, (mean, low, where, count) in table.means(own, session.columns(BENCHMARKS[name])).items()
            }
            for name in names
            if (own := [row for row in rows if row.case.name == name])
        },
        "promises": [
            {"said": str(v).strip(), "figure": v.figure, "floor": v.floor.floor, "goal": v.floor.goal, "word": v.word}
            for v in verdicts
        ],
        "sweeps": [asdict(sweep) for sweep in best.sweeps],
        "interrupted": session.cancelled,
    }


def _remarks(names: Sequence[str], options: BenchOptions, session: MeasuringSession) -> list[str]:
    """The indented lines above the first table: peers that are left out, and the seed of random shapes."""
    missing = [f"{peer} left out: {why}" for peer, why in session.missing.items()]
    return [f"  {line}\n" for line in (*missing, *seed_lines(names, options, session.device))]


def seed_lines(names: Sequence[str], options: BenchOptions, device: str) -> list[str]:
    """A line that names the seed of random shapes, or, on a CPU, says that a given seed has no effect. Empty without such benchmarks."""
    drawn = [name for name in names if BENCHMARKS[name].drawn]
    if not drawn or options.shapes or (device == "cpu" and options.seed is None):
        return []
    if device == "cpu":
        return [f"--seed has no effect on a CPU: the sizes of {', '.join(drawn)} are fixed there"]
    return [f"seed {options.seed or 1} has drawn the shapes of {', '.join(drawn)}"]


def _one(
    benchmark: SuiteBenchmark, cases: list[BenchmarkCase], session: MeasuringSession, best: Best
) -> list[MeasuredRow]:
    """Measures and prints one benchmark."""
    rows: list[MeasuredRow] = []
    peers = session.columns(benchmark)
    print(f"\n{table.header(benchmark.name, peers, 'TFLOP/s' if benchmark.flops else 'GB/s')}", flush=True)
    for case in cases:
        try:
            row = measure(session, benchmark, case, before=best.before, best=best)
        except KeyboardInterrupt:  # in a search; the rows before it count
            session.cancelled = True
            break
        except Exception as error:  # e.g. out of memory; the next case may fit
            row = MeasuredRow(case, 0, problems={WHOLE_CASE: f"failed: {one_line(error)}"})
        rows.append(row)
        print(table.line(row, peers))
        tail = [f"    {peer}: {text(config)}" for peer, config in row.configs.items() if best.fresh]
        for line in [*table.problems(row), *tail]:
            print(line)
        sys.stdout.flush()
        if session.device == "gpu" and session.torch is not None:
            session.torch.cuda.empty_cache()
        if session.cancelled:
            break
    for line in table.summary(benchmark.name, rows, peers):
        print(line)
    return rows


# -- a CPU's processes


def _in_a_process(names: Sequence[str], options: BenchOptions) -> dict[str, Any]:
    count = str(options.threads[0])
    environment = os.environ | dict.fromkeys(THREADS, count) | ALLOCATOR
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        arguments = json.dumps({"names": list(names), "options": asdict(options), "path": str(path)})
        sys.stdout.flush()
        command = [sys.executable, "-m", "blocknb.bench.suite.runner", arguments]
        with subprocess.Popen(command, env=environment) as process:
            try:
                status = process.wait()
            except KeyboardInterrupt:  # the child gets the signal, too, and writes its rows
                if status := process.wait():
                    raise
        if status:
            raise subprocess.CalledProcessError(status, command)
        document: dict[str, Any] = json.loads(path.read_text())
        return document


def _child(arguments: str) -> None:
    given = json.loads(arguments)
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given["options"].items()}
    options = BenchOptions(**fields)
    Path(given["path"]).write_text(json.dumps(on_cpu(given["names"], options)))


# -- the state of the machine


def versions() -> dict[str, str]:
    return {"Python": platform.python_version(), **versions_of(LIBRARIES)}


def gpu_state(bus: str) -> dict[str, Any]:
    """Clocks in MHz, watts and degrees Celsius from nvidia-smi; {} without it.

    `bus` is the PCI address of the GPU: nvidia-smi ignores CUDA_VISIBLE_DEVICES, so its numbers are not those of CUDA."""
    fields = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", f"--id={bus}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return readings(fields, answer)


def readings(fields: Sequence[str], answer: str) -> dict[str, float]:
    """The numeric fields of a line of nvidia-smi. A virtual machine may not report all of them."""
    found = {}
    for name, value in zip(fields, answer.split(","), strict=False):
        with contextlib.suppress(ValueError):
            found[name] = float(value)
    return found


def _state_text(state: dict[str, Any]) -> str:
    units = {"clocks.sm": "SM {:.0f} MHz", "clocks.mem": "memory {:.0f} MHz", "power.draw": "{:.0f} W"}
    units |= {"temperature.gpu": "{:.0f} C", "load": "load {:.1f}"}
    return ", ".join(units[key].format(value) for key, value in state.items()) or "clocks unknown"


if __name__ == "__main__":
    _child(sys.argv[1])
