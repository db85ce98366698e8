"""The command line of blocknb. COMMANDS lists the subcommands, which are implemented in other modules.

A subcommand imports its modules when it runs. So `blocknb doctor` works even if other parts of the installation are broken.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import select
import sys
from collections.abc import Callable, Sequence


def doctor(options: argparse.Namespace) -> int:
    """Lists what blocknb finds on this machine (GPU, driver, toolchain, lab extension), and how to install missing parts."""
    from blocknb.doctor import examine, render, render_failures

    findings = examine()
    print(render(findings))
    if options.report:
        print(render_failures())
    return 1 if any(finding.required and finding.fix for finding in findings) else 0


def _doctor_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--report", action="store_true", help="also list the optimizations that failed")


def bench(options: argparse.Namespace) -> int:
    """Measures blocknb and other libraries on this machine: `blocknb bench softmax add`. The groups are `kernels` (all ready-made kernels),
    `gemm`, `ragged` and `skinny` (matrix products), `attention`, `decode`, `kinds` and `torch`; `--list` has all names. Without a name,
    everything is measured but `torch` and `zoo`. The exit status is 1 if something could not be measured."""
    from blocknb.bench.command import listing, run
    from blocknb.bench.suite.runner import BenchOptions
    from blocknb.bench.visible_gpu import select

    if options.list:
        print(listing())
        return 0
    if options.client and options.device.isdecimal():
        print("--client takes --device cpu or gpu: each worker has GPUs of its own", file=sys.stderr)
        return 2
    try:
        options.device = select(options.device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    chosen = {field.name: getattr(options, field.name) for field in dataclasses.fields(BenchOptions)}
    if options.client:
        from blocknb.bench import cluster

        return cluster.run(options.names, BenchOptions(**chosen), options.json, options.client)
    return run(options.names, BenchOptions(**chosen), options.json)


def _bench_arguments(command: argparse.ArgumentParser) -> None:
    from blocknb.bench.visible_gpu import device

    def listed(kind: Callable[[str], object]) -> Callable[[str], tuple[object, ...]]:
        return lambda text: tuple(kind(part) for part in text.split(",") if part)

    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
        return int(text)

    def shape(text: str) -> str:
        from blocknb.bench.suite.definition import parse_shape

        try:
            parse_shape(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a shape; write 4096x1024 or 2^26") from None
        return text

    add = command.add_argument

    def add_list(name: str, kind: Callable[[str], object], metavar: str, text: str) -> None:
        add(name, type=listed(kind), default=(), metavar=metavar, help=text)

    add("names", nargs="*", metavar="name", help="the benchmarks to run (all)")
    add("--list", action="store_true", help="list the benchmarks, and measure nothing")
    add("--json", default="", metavar="FILE", help="also write the results to this file")
    add("--client", default="", metavar="ADDRESS", help="measure on each kind of device of this Dask cluster")
    add("--device", type=device, default="", help="where kernels run: cpu, gpu, or the number of a GPU (the first GPU)")
    add_list("--threads", count, "N,...", "numbers of threads on a CPU (one, and all)")
    add_list("--peers", str, "NAME,...", "measure only these: copy, torch, torch.compile, Triton, CuPy...")
    add_list("--shapes", shape, "MxN,...", "shapes instead of the named benchmarks' own: 4096x1024,2^26")
    add_list("--dtypes", str, "NAME,...", "measure only these: fp32, fp16, bf16...")
    add(
        "--search", action="store_true", help="first measure configurations of blocknb and Triton; Triton uses its best"
    )
    add("--rounds", type=count, default=30, metavar="N", help="the number of measurements per peer (30)")
    add(
        "--clean-cache",
        action="store_true",
        help="flush the L2 cache of a GPU by reading, which leaves no modified lines",
    )
    add(
        "--seed", type=count, default=None, metavar="N",
        help="draw the random shapes of `ragged` and `plan_check`, and the inputs of `zoo` and `torch`, from this seed (1)",
    )  # fmt: skip
    add("--shapes-count", type=count, default=40, metavar="N", help="the number of random shapes of `plan_check` (40)")
    add_list("--library", str, "NAME,...", "`zoo`: only these libraries: liger, fla, xformers...")
    add("--configs", type=count, default=0, metavar="N", help="`zoo`: at most N configurations of each autotuner (all)")
    add("--compile", default="", metavar="TARGET", help="`zoo`: only compile the kernels, for sm_90a say; needs no GPU")
    add("--layers", type=count, default=0, metavar="N", help="`torch_models`: the layers of GPT-2 and ViT (12)")


def reference(options: argparse.Namespace) -> int:
    """Runs the example of every name in the interpreter and on the CPU, and writes docs/language.md, the table of the language. `--gpu`
    first runs the examples on this machine's GPU and writes docs/language_gpu.json; `--gpu --new` runs only those without a record."""
    from blocknb.testing import reference as table

    if options.gpu or options.new:
        table.record(options.new)
    print(table.write())
    return 0


def _reference_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--gpu", action="store_true", help="also run the examples on the GPU")
    command.add_argument(
        "--new", action="store_true", help="run on the GPU only the examples that have no record there"
    )


def fuzz(options: argparse.Namespace) -> int:
    """Runs random kernels, compares the results with an independent evaluator, and writes a short script for each failure:
    `blocknb fuzz --seconds 60 --seed 1`. With `--cells`, it runs random cells of a notebook."""
    import secrets

    if options.cells or options.replay:
        return _fuzz_cells(options, secrets.randbelow(10**6) if options.seed is None else options.seed)

    from blocknb.cpus import cpu_count
    from blocknb.fuzz.run import FuzzOptions, run
    from blocknb.fuzz.worker import Setup

    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    features = "" if options.features == "native" else options.features
    setup = Setup(options.target, features, threads=8 if options.target == "cuda" else 2)
    seconds = options.seconds or (0.0 if options.count else 60.0)
    jobs = options.jobs or (2 if options.target == "cuda" else cpu_count())
    return run(FuzzOptions(seed, setup, seconds, options.count, options.first, jobs, options.out))


def _fuzz_cells(options: argparse.Namespace, seed: int) -> int:
    from blocknb.cell_fuzz.run import CellFuzzOptions, replay, run

    if missing := [file for file in options.replay if not os.path.isfile(file)]:
        print(f"blocknb fuzz: there is no file {', '.join(missing)}", file=sys.stderr)
        return 2
    if options.replay:
        return replay(options.replay)
    seconds = options.seconds or (0.0 if options.count else 60.0)
    return run(CellFuzzOptions(seed, seconds, options.count, options.first, options.jobs or 1, options.out))


def _fuzz_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    targets = ("cpu", "cuda", "sm_80", "sm_86", "sm_90a", "sm_100a", "sm_120a")
    features = ("native", "x86-64-v2", "x86-64-v3", "x86-64-v4")
    add("--seconds", type=float, default=0.0, metavar="N", help="the time to run (60 without --count)")
    add("--count", type=int, default=0, metavar="N", help="the number of kernels to run")
    add("--seed", type=int, default=None, metavar="S", help="the same seed gives the same kernels")
    add("--first", type=int, default=0, metavar="I", help="the number of the first kernel of the seed")
    where = "where kernels run: cuda needs CuPy; sm_90a and the like need no GPU, because their last IR is interpreted"
    add("--target", default="cpu", choices=targets, help=where)
    add("--features", choices=features, default="native", help="the CPU features that code may use (all of this CPU)")
    add("--out", default="fuzz-findings", metavar="DIR", help="the folder for the scripts")
    add(
        "--cells",
        action="store_true",
        help="run sequences of notebook cells instead of kernels; --count counts sequences",
    )
    add("--replay", nargs="+", default=[], metavar="FILE", help="run the cells of these findings of --cells again")
    add("--jobs", type=int, default=0, metavar="N", help="processes that run kernels (one per core; two for a GPU)")


def bisect(options: argparse.Namespace) -> int:
    """Names the pass that makes a wrong result: `blocknb bisect script.py`. The script launches kernels; the interpreter runs the IR after
    each pass on the same inputs. The exit status is 1 if a pass or code generation is wrong, and 0 if none is."""
    from blocknb.fuzz.bisect import BisectOptions, run

    return run(BisectOptions(options.file, options.target, options.rtol, options.launches))


def _bisect_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "file",
        metavar="FILE",
        help="a Python script that launches kernels on small inputs, or a script of `blocknb fuzz`",
    )
    where = "check the passes for this target, such as sm_90a, instead of those of the launch; its code does not run"
    add("--target", default="", metavar="NAME", help=where)
    add(
        "--rtol",
        type=float,
        default=0.0,
        metavar="X",
        help="how far floats may differ, relative to the largest (by dtype)",
    )
    add("--launches", type=int, default=20, metavar="N", help="the number of launches to check (20)")


def compile(options: argparse.Namespace) -> int:
    """Compiles a kernel and prints its code or the IR after passes: `blocknb compile add.py:add x='*fp32:16' n=i32 BLOCK=1024`. Without
    arguments, the file is run, and its first launch of the kernel gives them."""
    from blocknb.testing.compile_command import CompileOptions, run

    names = ("kernel", "arguments", "target", "without", "print_after", "stop_after", "edit", "emit", "locs")
    return run(CompileOptions(**{name: getattr(options, name) for name in names}))


def _compile_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("kernel", metavar="FILE[:KERNEL]", help="a Python file, and the name of a kernel in it")
    what = "a type text for an array or a number, the value for a constant, or an option such as num_warps=8"
    add("arguments", nargs="*", metavar="NAME=VALUE", help=what)
    add("--target", default="", metavar="NAME", help="cpu, sm_80, sm_90a, ... (sm_90a, or that of the launch)")
    add("--without", action="append", default=[], metavar="PASS", help="leave an optional pass out (repeatable)")
    after = "write the IR after this pass to stderr; repeatable; `all` for every pass, `parse` for the front end"
    add("--print-after", action="append", default=[], metavar="PASS", help=after)
    add("--stop-after", default="", metavar="PASS", help="end the compilation after this pass, and print its IR")
    add("--edit", default="", metavar="PASS=FILE", help="continue from this text of the IR after a pass")
    forms = ("ir", "llvm", "ptx", "sass", "assembly")
    add("--emit", default="", choices=forms, help="what to print (ptx or assembly; ir with --stop-after)")
    add("--locs", action="store_true", help="write the source line of each op into the IR")


def report(options: argparse.Namespace) -> int:
    """Writes one HTML page with all cards of a saved notebook: `blocknb report notebook.ipynb`. The page needs no network, no kernel and no
    Jupyter."""
    from blocknb.notebook.report import command

    return command(options.notebook, options.out)


def _report_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("notebook", metavar="NOTEBOOK", help="a notebook with outputs (.ipynb)")
    command.add_argument("-o", "--out", default=None, metavar="PAGE", help="the page (the notebook's name with .html)")


def cache(options: argparse.Namespace) -> int:
    """A cache of compiled kernels for all users of a machine: `build` fills it from notebooks, `check` lists what users' processes refuse.
    BLOCKNB_SHARED_CACHE names the folder in the environment of the users."""
    from blocknb.notebook import shared_cache_command

    if options.what == "build":
        return shared_cache_command.build(options.folder, options.notebooks)
    return shared_cache_command.check(options.folder, options.fix)


def _cache_arguments(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(dest="what", metavar="what", required=True)
    text = "run notebooks, and store the kernels that they compile for all users to read"
    build = commands.add_parser("build", help=text, description=text)
    build.add_argument("folder", metavar="FOLDER", help="a folder that root or the installer of blocknb owns")
    build.add_argument("notebooks", nargs="+", metavar="NOTEBOOK", help="the notebooks of the class")
    text = "list what is wrong with owners, permissions and contents of a shared cache"
    check = commands.add_parser("check", help=text, description=text)
    check.add_argument("folder", metavar="FOLDER", help="the shared cache")
    check.add_argument(
        "--fix", action="store_true", help="correct the modes of folders, and remove files that are refused"
    )


def learn(options: argparse.Namespace) -> int:
    """The course: `blocknb learn start` opens its notebooks; `list`, `test`, `assignment` and `report` are for authors and teachers."""
    from blocknb.learn import command

    if options.what == "list":
        return command.show_list()
    if options.what == "test":
        return command.test(options.file, options.only, options.quick)
    if options.what == "assignment":
        return command.assign(options.name, options.out, options.points, options.student)
    if options.what == "report":
        return command.report(options.files, options.out)
    return command.start(options.folder, options.browser)


def _points(text: str) -> float:
    """A value of --points. Raises ArgumentTypeError for another text than that of a number from 0 on."""
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of points, such as 2 or 0.5")
    return float(text)


def _learn_arguments(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(dest="what", metavar="what", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text)

    add("list", "list all exercises, with your progress")
    test = add("test", "prove the exercises of a file: its solutions pass, and its wrong answers are refused")
    test.add_argument("file", metavar="FILE", help="a Python file with EXERCISES, a unit, or the name of an exercise")
    test.add_argument("--only", default="", metavar="NAME", help="test this exercise only")
    test.add_argument(
        "--quick", action="store_true", help="only interpret wrong answers, and compile nothing for a GPU"
    )
    assign = add("assignment", "write the exercises of a unit as a notebook for nbgrader")
    assign.add_argument("name", metavar="UNIT", help="unit8, a Python file with EXERCISES, or the name of an exercise")
    assign.add_argument("-o", "--out", default="", metavar="NOTEBOOK", help="the notebook (UNIT.ipynb)")
    assign.add_argument("--points", type=_points, default=1, metavar="N", help="the points of each exercise (1)")
    assign.add_argument("--student", action="store_true", help="write the notebook for students, without solutions")
    report = add("report", "write one page from the progress files of a class")
    report.add_argument("files", nargs="+", metavar="FILE", help="progress files, each named after its learner")
    report.add_argument("-o", "--out", default="class.html", metavar="PAGE", help="the page (class.html)")
    start = add("start", "copy the notebooks of the course to a folder, and open JupyterLab on the first one")
    start.add_argument("folder", nargs="?", default="blocknb-course", metavar="FOLDER", help="blocknb-course")
    start.add_argument("--no-browser", dest="browser", action="store_false", help="copy the notebooks only")


#: The function that runs a command, and the one that adds its arguments to a parser.
COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], int], Callable[[argparse.ArgumentParser], None]]] = {
    "doctor": (doctor, _doctor_arguments),
    "bench": (bench, _bench_arguments),
    "reference": (reference, _reference_arguments),
    "fuzz": (fuzz, _fuzz_arguments),
    "bisect": (bisect, _bisect_arguments),
    "compile": (compile, _compile_arguments),
    "report": (report, _report_arguments),
    "learn": (learn, _learn_arguments),
    "cache": (cache, _cache_arguments),
}


PIPE_CLOSED = 141  # the exit status of a program that SIGPIPE ends, in a shell


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    from blocknb.doctor import own_version

    parser = argparse.ArgumentParser(
        prog="blocknb", description="Write GPU kernels in a notebook, and inspect every stage of their compilation."
    )
    parser.add_argument("--version", action="version", version=f"blocknb {own_version()}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for name, (run, add_arguments) in COMMANDS.items():
        text = (run.__doc__ or "").strip()
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        add_arguments(command)
    options = parser.parse_args(arguments)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not _reader_has_ended():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its exit
        return PIPE_CLOSED


def _reader_has_ended() -> bool:
    """Whether standard output is a pipe that nothing reads any more, as after `| head`."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
    except (AttributeError, OSError):  # Windows has no poll, and standard output in a notebook is no file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
