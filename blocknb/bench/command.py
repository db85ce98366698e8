"""`blocknb bench`: lists the benchmarks and runs them one after another. If one fails, the others still run.

The package `suite` defines `launch` and the benchmarks of ready-made kernels. The functions of this module are the other benchmarks; each
prints a table and returns its rows.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from blocknb.bench.rows import Row, show
from blocknb.bench.suite.runner import BenchOptions
from blocknb.bench.unmeasured import summary, unmeasured
from blocknb.errors import KernelError, Unsupported
from blocknb.runtime import whole_files

BENCHMARKS: dict[str, Callable[..., list[Row]]] = {}
#: The fields of BenchOptions that a benchmark takes: those of BENCHMARKS as keyword arguments. Others take the whole.
TAKES: dict[str, tuple[str, ...]] = {
    "launch": ("device",),
    "plan_check": ("device", "rounds", "seed", "shapes_count"),
    "zoo": ("rounds", "seed", "library", "configs", "compile"),
}
#: The benchmarks of compiled PyTorch code: what they measure, and the module whose `run(name, options, keep)` measures it.
TORCH: dict[str, tuple[str, str]] = {
    "torch_layers": ("layers against Liger-Kernel, forward and backward", "blocknb.bench.torch_layers.run"),
    "torch_llama": ("a Llama of 1 B parameters against torch.compile", "blocknb.bench.torch_layers.run"),
    "torch_overheads": ("host time of launches and operators in torch", "blocknb.bench.torch_layers.run"),
    "torch_fused": ("torch.compile by blocknb and by Triton: fused functions", "blocknb.bench.torch_steps.run"),
    "torch_models": ("torch.compile by both: training steps of models", "blocknb.bench.torch_steps.run"),
    "torch_templates": ("torch.compile by both: products by templates", "blocknb.bench.torch_steps.run"),
}
FAMILIES = ("gemm", "ragged", "skinny", "attention", "decode", "kinds")
INTERRUPTED = 130  # the exit status, as of a shell


def benchmark(*options: str) -> Callable[[Callable[..., list[Row]]], Callable[..., list[Row]]]:
    """Registers a benchmark, which takes these fields of BenchOptions as keyword arguments."""

    def register(function: Callable[..., list[Row]]) -> Callable[..., list[Row]]:
        BENCHMARKS[function.__name__], TAKES[function.__name__] = function, options
        return function

    return register


# -- the limits of this machine


@benchmark()
def ceilings() -> list[Row]:
    """Measures the ceilings of this machine for rooflines: memory, caches, FP32, tensor cores."""
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


@benchmark()
def compile() -> list[Row]:
    """Compile times, compared with Triton's if BLOCKNB_TRITON_PYTHON names a Python that has it. Needs no GPU."""
    from blocknb.bench import compile_times

    return compile_times.run()


@benchmark()
def scaling() -> list[Row]:
    """Compile times by stage, for kernels of 125 to 2000 statements and for tiles of 2^16 elements."""
    from blocknb.bench import scaling

    rows = scaling.statements()
    show("Milliseconds by stage, and the exponent of their growth over the larger sizes (1: linear)", rows)
    sizes = scaling.tiles()
    show("Milliseconds by stage for one operation on a tile of 2^16 elements", sizes)
    return rows + sizes


# -- from multiply-adds to warp specialization


@benchmark("device", "rounds", "peers", "shapes")
def gemm_steps(device: str, rounds: int, peers: Sequence[str], shapes: Sequence[str]) -> list[Row]:
    """One matrix product in eight steps, from multiply-adds to a persistent, warp-specialized kernel. Needs a GPU."""
    from blocknb.bench.suite import steps

    _needs_gpu("gemm_steps", device)
    rows = steps.measure(
        shapes=steps.chosen(shapes), rounds=rounds, library=not peers or not steps.PEERS.isdisjoint(peers)
    )
    for shape in dict.fromkeys(row["shape"] for row in rows):
        mine = [{k: v for k, v in row.items() if k != "device"} for row in rows if row["shape"] == shape]
        show(f"C = A B^T, fp16, {shape}, {rows[0]['device']}: one optimization per step", mine)
    return rows


# -- kernels of other projects


@benchmark("device", "rounds", "peers")
def attention_tutorial(device: str, rounds: int, peers: Sequence[str]) -> list[Row]:
    """The backward pass of Triton's attention tutorial as it stands, compiled by blocknb and by Triton. Needs a GPU."""
    from blocknb.bench.suite import tutorial

    _needs_gpu("attention_tutorial", device)
    rows = tutorial.measure(rounds, triton=not peers or tutorial.TRITON in peers)
    show("Backward pass of Triton's tutorial 06, fp16, one batch of 16384 tokens", rows)
    return rows


def _needs_gpu(name: str, device: str) -> None:
    """Raises Unsupported for `--device cpu`, and without a GPU."""
    from blocknb.runtime import machine

    if device == "cpu":
        raise Unsupported(f"{name} has no measurement on a CPU", hint="leave out --device cpu on a machine with a GPU")
    if not machine.has_gpu():
        raise Unsupported(f"{name} needs a GPU, and CuPy found none")


def zoo(options: BenchOptions) -> list[Row]:
    """The Triton kernels of public libraries that are installed, compiled by blocknb and by Triton. Only by name: it takes long."""
    from blocknb.bench.zoo import run

    chosen = run.ZooOptions(options.library, options.rounds, options.seed or 1, options.configs)
    return run.compile_only(chosen, options.compile) if options.compile else run.run(chosen)


def names() -> list[str]:
    """The names of all benchmarks, those of ready-made kernels first."""
    from blocknb.bench.suite.catalogue import BENCHMARKS as kernels

    return [*kernels, "launch", "plan_check", *BENCHMARKS, *TORCH, "zoo"]


def groups() -> dict[str, list[str]]:
    """Names of groups. They are "kernels" (all ready-made kernels), "gemm", "ragged" and "skinny" (matrix products), "attention" (forward
    and backward), and "decode" (attention over a cache). "kinds" has kinds of public kernels, and "torch" compiled PyTorch code."""
    from blocknb.bench.suite.catalogue import BENCHMARKS as kernels

    families = {family: [name for name in kernels if name.startswith(f"{family}_")] for family in FAMILIES}
    return {"kernels": [name for name in kernels if name not in families["kinds"]], **families, "torch": [*TORCH]}


def listing() -> str:
    """The text of `blocknb bench --list`: groups, benchmarks of ready-made kernels with their dtypes on a GPU, and the others."""
    from blocknb.bench import plan_check
    from blocknb.bench.suite import launching
    from blocknb.bench.suite.catalogue import BENCHMARKS as kernels

    several = {name: f"{len(members)} of the benchmarks below" for name, members in groups().items()}
    ours = {
        name: ", ".join(f"{dtype} ({len(shapes)} size{'s' * (len(shapes) > 1)})" for dtype, shapes in one.gpu.items())
        for name, one in kernels.items()
    }
    rest = {"launch": launching.run, "plan_check": plan_check.run, **BENCHMARKS, "zoo": zoo}
    others = {name: (function.__doc__ or "").strip().split("\n")[0] for name, function in rest.items()}
    others = {name: TORCH[name][0] if name in TORCH else others[name] for name in names() if name not in ours}
    width = max(map(len, (*several, *names())))
    return "\n\n".join(
        "\n".join(f"{name:{width}}  {what}" for name, what in part.items()) for part in (several, ours, others)
    )


def run(wanted: Sequence[str], options: BenchOptions, path: str = "") -> int:
    """Runs the named benchmarks or groups; without names, all but those of "torch" and the zoo. Returns an exit status. It is 0 if
    everything was measured, 1 if something was not, 2 for a wrong name or file, and 130 after an interrupt.

    The benchmarks of kernels run first, as one job. If `path` is given, the rows are written to that file as JSON. It also gets the rows of
    an unfinished benchmark of "torch".
    """
    if not (chosen := known_names(wanted, options)) or not writable(path):
        return 2
    for line in unused(chosen, options) if wanted else ():
        print(line, file=sys.stderr)
    found: dict[str, list[Row]] = {}

    def keep(name: str, rows: list[Row]) -> None:
        found[name] = rows
        if path:
            whole_files.write_text(path, json.dumps(found, indent=1, default=str) + "\n")

    status, complete = measured(jobs(chosen, options, keep))
    found |= complete
    if path:
        whole_files.write_text(path, json.dumps(found, indent=1, default=str) + "\n")
        print(f"written: {path}")
    return status


def known_names(wanted: Sequence[str], options: BenchOptions) -> list[str]:
    """The benchmarks of names and groups; without names, all but those of "torch" and the zoo. Prints an error and returns none for an
    unknown name, and for shapes without a name."""
    if options.shapes and not wanted:
        print(_shapes_without_names(options.shapes), file=sys.stderr)
        return []
    wanted = list(dict.fromkeys(one for name in wanted for one in groups().get(name, [name])))
    if unknown := [name for name in wanted if name not in names()]:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join([*groups(), *names()])}", file=sys.stderr)
        return []
    return wanted or [name for name in names() if name != "zoo" and name not in TORCH]


def _shapes_without_names(shapes: Sequence[str]) -> str:
    """The error of `--shapes` without a name: an example, and the benchmarks by the number of sizes that they take."""
    from blocknb.bench.suite.definition import parse_shape

    takers = _takers_of_shapes()
    ranks = [len(parse_shape(shape)) for shape in shapes]
    fitting = [name for rank in ranks for name in takers.get(rank, ("", ()))[1]]
    lines = [
        f"--shapes {','.join(shapes)} needs the names of the benchmarks that take these shapes"
        + (f", such as: blocknb bench {fitting[0]} --shapes {shapes[0]}" if fitting else "")
    ]
    for rank, (example, members) in sorted(takers.items()):
        lines.append(f"  {rank} size{'s' * (rank > 1)}, such as {example}: {', '.join(members)}")
    return "\n".join([*lines, "  only sizes of its own layers: torch_layers"])


def _takers_of_shapes() -> dict[int, tuple[str, list[str]]]:
    """An example of a shape, and the names of the benchmarks that take such shapes, by the number of sizes."""
    from blocknb.bench.suite import steps
    from blocknb.bench.suite.catalogue import BENCHMARKS as kernels
    from blocknb.bench.suite.definition import shape_text

    found: dict[int, tuple[str, list[str]]] = {}
    own = {name: next(iter(one.gpu.values()))[0] for name, one in kernels.items()} | {"gemm_steps": steps.SHAPES[0]}
    for name, shape in own.items():
        found.setdefault(len(shape), (shape_text(shape), []))[1].append(name)
    return found


def unused(chosen: Sequence[str], options: BenchOptions) -> list[str]:
    """A line for the benchmarks that do not take the same options: "add, copy take no --compile". It has at most four names."""
    named: dict[str, list[str]] = {}
    for name in chosen:
        if found := ignored(name, options):
            named.setdefault(", ".join(found), []).append(name)
    return [
        f"{', '.join(names[:4])}{f' and {len(names) - 4} others' if len(names) > 4 else ''} "
        f"take{'s' * (len(names) == 1)} no {text}"
        for text, names in named.items()
    ]


def ignored(name: str, options: BenchOptions) -> list[str]:
    """The options that were set, and that a benchmark does not take, as the command line writes them. The benchmarks of "torch" name
    none."""
    from blocknb.bench.suite.catalogue import BENCHMARKS as kernels

    usual = BenchOptions()
    given = [
        field.name
        for field in dataclasses.fields(options)
        if getattr(options, field.name) != getattr(usual, field.name)
    ]
    if name in kernels:
        never = {"shapes_count", "library", "configs", "compile", "layers"}
        takes: Collection[str] = set(given) - never - (set() if kernels[name].drawn else {"seed"})
    else:
        takes = TAKES.get(name, given)
    return [f"--{field.replace('_', '-')}" for field in given if field not in takes]


def writable(path: str) -> bool:
    """Whether the results can be written to a file, so that an error comes before the measurements."""
    try:
        if path:
            Path(path).open("a").close()
    except OSError as error:
        print(f"--json {path}: {error.strerror}", file=sys.stderr)
        return False
    return True


def jobs(
    chosen: Sequence[str], options: BenchOptions, keep: Callable[[str, list[Row]], None] = lambda name, rows: None
) -> dict[str, Callable[[], list[Row]]]:
    """The functions that measure the chosen benchmarks, by name; "kernels" measures those of ready-made kernels. `keep(name, rows)` gets
    the rows of a benchmark of "torch" so far, after each row."""
    from blocknb.bench import plan_check
    from blocknb.bench.suite import launching, runner
    from blocknb.bench.suite.catalogue import BENCHMARKS as kernels

    found: dict[str, Callable[[], list[Row]]] = {}
    if ours := [name for name in chosen if name in kernels]:
        found["kernels"] = lambda: runner.run(ours, options)
    found |= {"launch": lambda: launching.run(options.device)} if "launch" in chosen else {}
    found |= {"plan_check": lambda: plan_check.run(options)} if "plan_check" in chosen else {}
    for name in (one for one in chosen if one in BENCHMARKS):
        found[name] = functools.partial(BENCHMARKS[name], **{field: getattr(options, field) for field in TAKES[name]})
    found |= {
        name: functools.partial(_torch, name, options, functools.partial(keep, name))
        for name in chosen
        if name in TORCH
    }
    return found | ({"zoo": lambda: zoo(options)} if "zoo" in chosen else {})


def _torch(name: str, options: BenchOptions, keep: Callable[[list[Row]], None]) -> list[Row]:
    found: list[Row] = importlib.import_module(TORCH[name][1]).run(name, options, keep)
    return found


def measured(jobs: dict[str, Callable[[], list[Row]]]) -> tuple[int, dict[str, list[Row]]]:
    """Runs benchmarks one after another, and then lists what they could not measure. Returns the exit status, and the rows of the
    completed ones."""
    status, found = 0, {}
    missing: dict[str, list[str]] = {}
    for name, job in jobs.items():
        try:
            found[name] = job()
            if lines := unmeasured(found[name]):
                missing[name], status = lines, 1
            if any(row.get("interrupted") for row in found[name]):
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            status = INTERRUPTED
            break
        except (KernelError, ValueError) as error:  # a missing device or library; other benchmarks may run
            print(f"{name}: {error}", file=sys.stderr)
            missing[name], status = [str(error)], 1
        except Exception as error:  # a bug of the benchmark must not lose the results of the others
            traceback.print_exc()
            missing[name], status = [f"{type(error).__name__}: {error}"], 1
    if text := summary(missing):
        print(text, flush=True)
    return status, found
