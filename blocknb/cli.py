"""The command `blocknb`. Each subcommand is one row of COMMANDS; what it does lives in the room that owns it.

A command imports what it needs when it runs, so that `blocknb doctor` works on a machine where almost nothing does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def doctor(options: argparse.Namespace) -> int:
    """Says what blocknb finds on this machine: GPU, driver, toolchain, lab extension; and how to get what is missing."""
    from blocknb.doctor import examine, render, render_failures

    findings = examine()
    print(render(findings))
    if options.report:
        print(render_failures())
    return 1 if any(finding.required and finding.fix for finding in findings) else 0


def bench(options: argparse.Namespace) -> int:
    """Measures blocknb against its peers on this machine: `blocknb bench softmax add`, `kernels` (all of them), `gemm` (products of
    matrices), `attention`, `launch`, `compile`, `ceilings`, `scaling`; all without a name."""
    from blocknb.profile.bench import listing, run
    from blocknb.profile.suite.runner import BenchOptions

    if options.list:
        print(listing())
        return 0
    given = BenchOptions(
        options.device, options.threads, options.peers, options.shapes, options.dtypes, options.search, options.rounds
    )
    return run(options.names, given, options.json)


def _bench_arguments(command: argparse.ArgumentParser) -> None:
    def listed(kind: Callable[[str], object]) -> Callable[[str], tuple]:
        return lambda text: tuple(kind(part) for part in text.split(",") if part)

    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
        return int(text)

    def shape(text: str) -> str:
        from blocknb.profile.suite.definition import parse_shape

        try:
            parse_shape(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no shape such as 4096x1024 or 2^26") from None
        return text

    add = command.add_argument
    add("names", nargs="*", metavar="name", help="which benchmarks; all when none is named")
    add("--list", action="store_true", help="say which benchmarks there are, and measure nothing")
    add("--json", default="", metavar="FILE", help="write what is measured to this file, too")
    add("--device", choices=("cpu", "gpu"), default="", help="of kernels and launches; the GPU where there is one")
    add("--threads", type=listed(count), default=(), metavar="N,...", help="on a CPU; one and all of them if not given")
    add(
        "--peers",
        type=listed(str),
        default=(),
        metavar="NAME,...",
        help="only these: copy, torch, torch.compile, Triton, CuPy...",
    )
    add(
        "--shapes",
        type=listed(shape),
        default=(),
        metavar="MxN,...",
        help="these instead of the benchmark's own: 4096x1024,2^26",
    )
    add("--dtypes", type=listed(str), default=(), metavar="NAME,...", help="only these: fp32, fp16, bf16...")
    add("--search", action="store_true", help="first sweep configurations, ours and Triton's, and keep Triton's best")
    add("--rounds", type=count, default=30, metavar="N", help="how often each peer is timed (30)")


def reference(options: argparse.Namespace) -> int:
    """Writes docs/language.md, the table of the language: runs every name's example in the interpreter and on the CPU (`--gpu`: on this
    machine's GPU, into docs/language_gpu.json, before)."""
    from blocknb.testing import reference as table

    if options.gpu:
        table.record()
    print(table.write())
    return 0


def fuzz(options: argparse.Namespace) -> int:
    """Runs random kernels over the whole language, compares with an independent evaluator, and makes a short script of each that fails:
    `blocknb fuzz --seconds 60 --seed 1`."""
    import secrets

    from blocknb.fuzz.run import FuzzOptions, run
    from blocknb.fuzz.worker import Setup
    from blocknb.runtime.machine import cpu_count

    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    features = "" if options.features == "native" else options.features
    setup = Setup(options.target, features, threads=8 if options.target == "cuda" else 2)
    seconds = options.seconds or (0.0 if options.count else 60.0)
    jobs = options.jobs or (2 if options.target == "cuda" else cpu_count())
    return run(FuzzOptions(seed, setup, seconds, options.count, options.first, jobs, options.out))


def _fuzz_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--seconds", type=float, default=0.0, metavar="N", help="how long to run (60 without a count)")
    add("--count", type=int, default=0, metavar="N", help="how many kernels to run, instead")
    add("--seed", type=int, default=None, metavar="S", help="which kernels; the same seed gives the same ones")
    add("--first", type=int, default=0, metavar="I", help="the number of the first kernel of the seed")
    add(
        "--target",
        default="cpu",
        choices=("cpu", "cuda", "sm_80", "sm_86", "sm_90a", "sm_100a", "sm_120a"),
        help="where kernels run: cuda takes CuPy; sm_90a and others need no GPU: their last IR is interpreted",
    )
    add(
        "--features",
        choices=("native", "x86-64-v2", "x86-64-v3", "x86-64-v4"),
        default="native",
        help="the CPU features that code may use (all of this machine)",
    )
    add("--out", default="fuzz-findings", metavar="DIR", help="where scripts of findings are written")
    add(
        "--jobs", type=int, default=0, metavar="N", help="processes that run kernels (one for each core; two for a GPU)"
    )


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "doctor": doctor,
    "bench": bench,
    "reference": reference,
    "fuzz": fuzz,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    from blocknb.doctor import own_version

    parser = argparse.ArgumentParser(
        prog="blocknb", description="Write GPU kernels in a notebook, and see them compile."
    )
    parser.add_argument("--version", action="version", version=f"blocknb {own_version()}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for name, run in COMMANDS.items():
        text = (run.__doc__ or "").strip()
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if run is doctor:
            command.add_argument("--report", action="store_true", help="list the optimizations that failed, too")
        if run is bench:
            _bench_arguments(command)
        if run is fuzz:
            _fuzz_arguments(command)
        if run is reference:
            command.add_argument("--gpu", action="store_true", help="run the examples on the GPU, too")
    options = parser.parse_args(arguments)
    return int(options.run(options))
