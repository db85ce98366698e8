"""`blocknb bench`: which benchmarks there are, and how they are run one after another; a benchmark that cannot run leaves the others.

Those of ready-made kernels are `suite`'s, by name; `launch` is too. The rest are functions here, which print a table and return its rows.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from blocknb.errors import KernelError
from blocknb.profile.bench_table import Row, show
from blocknb.profile.suite.runner import BenchOptions

BENCHMARKS: dict[str, Callable[[], list[Row]]] = {}
INTERRUPTED = 130  # the exit status, as of a shell


def benchmark(function: Callable[[], list[Row]]) -> Callable[[], list[Row]]:
    BENCHMARKS[function.__name__] = function
    return function


# -- the limits of this machine


@benchmark
def ceilings() -> list[Row]:
    """Measures the limits of this machine's devices anew, which rooflines compare with: memory, caches, FP32, tensor cores."""
    from blocknb.profile import ceilings as limits
    from blocknb.runtime import machine
    from blocknb.runtime.kinds import HOST

    rows: list[Row] = []
    gpu = machine.current_gpu()
    for device in (HOST,) if gpu is None else (gpu, HOST):
        found = limits.ceilings(device, fresh=True)
        rows += [
            {
                "limit": item.name,
                "rate": item.value,
                "unit": item.unit,
                "quarter points": f"{item.low:.4g} to {item.high:.4g}",
                "measured by": item.how,
            }
            for item in found.items
        ]
        show(f"{found.device}, {found.measured}", rows[-len(found.items) :])
        for name, why in found.missing:
            print(f"  {name}: not measured ({why})")
    return rows


# -- compile times


@benchmark
def compile() -> list[Row]:
    """Compile times on this machine against Triton's, where BLOCKNB_TRITON_PYTHON names a Python that has it. Needs no GPU."""
    from blocknb.profile import bench_compile

    return bench_compile.run()


@benchmark
def scaling() -> list[Row]:
    """Compile times by stage as kernels get longer (125 to 2000 statements of many kinds), and on tiles of 2^16 elements."""
    from blocknb.profile import scaling

    rows = scaling.statements()
    show("Milliseconds by stage, and the power with which they grow over the larger sizes (1: linear)", rows)
    sizes = scaling.tiles()
    show("Milliseconds by stage for one operation on a tile of 2^16 elements", sizes)
    return rows + sizes


# -- from multiply-adds to warps with roles


@benchmark
def gemm_steps() -> list[Row]:
    """One matrix product in eight steps, from multiply-adds to tensor cores that never wait: what each step brings. Needs a GPU."""
    from blocknb.profile.suite import steps

    rows = steps.measure()
    for shape in dict.fromkeys(row["shape"] for row in rows):
        mine = [{k: v for k, v in row.items() if k != "device"} for row in rows if row["shape"] == shape]
        show(f"C = A B^T, fp16, {shape}, {rows[0]['device']}: a step at a time", mine)
    return rows


def names() -> list[str]:
    """Every benchmark: those of ready-made kernels, then the others. See `groups` for names of several."""
    from blocknb.profile.suite.catalogue import BENCHMARKS as kernels

    return [*kernels, "launch", *BENCHMARKS]


def groups() -> dict[str, list[str]]:
    """Names that stand for several benchmarks: "kernels" all ready-made kernels, "gemm" the products of matrices,
    "attention" attention and its gradients."""
    from blocknb.profile.suite.catalogue import BENCHMARKS as kernels

    families = {family: [name for name in kernels if name.startswith(f"{family}_")] for family in ("gemm", "attention")}
    return {"kernels": list(kernels), **families}


def listing() -> str:
    """What `blocknb bench` knows: names of several benchmarks, those of ready-made kernels with what they run on a GPU, the others."""
    from blocknb.profile.suite import launching
    from blocknb.profile.suite.catalogue import BENCHMARKS as kernels

    several = {name: f"{len(members)} of those below" for name, members in groups().items()}
    ours = {
        name: ", ".join(f"{dtype} ({len(shapes)} size{'s' * (len(shapes) > 1)})" for dtype, shapes in one.gpu.items())
        for name, one in kernels.items()
    }
    rest = {"launch": launching.run, **BENCHMARKS}
    others = {name: (function.__doc__ or "").strip().split("\n")[0] for name, function in rest.items()}
    width = max(map(len, (*several, *names())))
    return "\n\n".join(
        "\n".join(f"{name:{width}}  {what}" for name, what in part.items()) for part in (several, ours, others)
    )


def run(wanted: Sequence[str], options: BenchOptions, path: str = "") -> int:
    """Runs the named benchmarks (all of them when none is named; some names are of `groups`). Returns an exit status.

    Those of kernels run first and together. Rows go to the file `path`, as JSON, if it is given.
    """
    from blocknb.profile.suite import launching, runner
    from blocknb.profile.suite.catalogue import BENCHMARKS as kernels

    wanted = list(dict.fromkeys(one for name in wanted for one in groups().get(name, [name])))
    if unknown := [name for name in wanted if name not in names()]:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join([*groups(), *names()])}", file=sys.stderr)
        return 2
    if path:
        try:
            Path(path).open("a").close()  # hours of measuring should not end with a file that cannot be written
        except OSError as error:
            print(f"--json {path}: {error.strerror}", file=sys.stderr)
            return 2
    chosen = wanted or names()
    jobs: dict[str, Callable[[], list[Row]]] = {}
    if ours := [name for name in chosen if name in kernels]:
        jobs["kernels"] = lambda: runner.run(ours, options)
    jobs |= {"launch": lambda: launching.run(options.device)} if "launch" in chosen else {}
    jobs |= {name: BENCHMARKS[name] for name in chosen if name in BENCHMARKS}
    status, found = _measured(jobs)
    if path:
        Path(path).write_text(json.dumps(found, indent=1, default=str) + "\n")
        print(f"written: {path}")
    return status


def _measured(jobs: dict[str, Callable[[], list[Row]]]) -> tuple[int, dict[str, list[Row]]]:
    """Runs benchmarks one after another: the exit status, and the rows of those that ended."""
    status, found = 0, {}
    for name, job in jobs.items():
        try:
            found[name] = job()
            if any(row.get("interrupted") for row in found[name]):
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            status = INTERRUPTED
            break
        except (KernelError, ValueError) as error:  # what it measures is not there; the other benchmarks may be
            print(f"{name}: {error}", file=sys.stderr)
            status = 1
        except Exception:  # a fault of the benchmark: told in full, and the time that the others took is not lost
            traceback.print_exc()
            status = 1
    return status, found
