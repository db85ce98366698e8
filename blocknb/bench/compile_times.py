"""`blocknb bench compile`: compile times, compared with Triton's if BLOCKNB_TRITON_PYTHON names a Python that has it.

Each compiler compiles the same kernels in its own process (`compile_peer`). The processes alternate, so other load on the machine affects
both. The ratio divides our median by Triton's; below one, blocknb is faster. The target is sm_90a and includes ptxas. Needs no GPU.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from blocknb.bench.rows import Row, show

SCRIPT = Path(__file__).with_name("compile_peer.py")
KERNELS = ("add", "softmax", "layer norm", "matmul")
ROUNDS = 7


def run(rounds: int = ROUNDS) -> list[Row]:
    """Measures compile times, prints the tables, and returns their rows, in milliseconds. Raises ValueError if a compiler's process ends
    without an answer."""
    peers = {"ours": sys.executable}
    missing: list[Row] = []
    other = os.environ.get("BLOCKNB_TRITON_PYTHON", "")
    if other and (why := _without_triton(other)):
        missing.append({"what": "Triton", "problem": why})
        print(f"Triton left out: {why}", flush=True)
    elif other:
        peers["Triton"] = other
    hint = "" if other else " (set BLOCKNB_TRITON_PYTHON to a Python with Triton to compare)"
    warm = in_warm_processes(peers, rounds)
    show("Compiles for sm_90a, milliseconds: in a warm process" + hint, warm)
    new = in_new_processes(peers, rounds)
    show("In a new process", new)
    return warm + new + missing


def _without_triton(python: str) -> str:
    """Why a Python cannot import Triton; "" if it can."""
    try:
        said = subprocess.run([python, "-c", "import triton"], capture_output=True, text=True, env=_environment())
    except OSError as error:
        return f"BLOCKNB_TRITON_PYTHON is {python!r}: {error.strerror}"
    return (said.stderr.strip().splitlines() or ["import triton failed"])[-1] if said.returncode else ""


def in_warm_processes(peers: dict[str, str], rounds: int) -> list[Row]:
    """Times compiles in a warm process of each compiler: with an empty cache, and again from the disk cache."""
    rows = []
    with contextlib.ExitStack() as stack:
        servers = {peer: stack.enter_context(_server(peer, python)) for peer, python in peers.items()}
        for what, title in (("cold", "empty cache"), ("hit", "on disk")):
            for kernel in KERNELS:
                times: dict[str, list[float]] = {peer: [] for peer in peers}
                for turn in range(rounds + 1):
                    for peer, server in servers.items():
                        time = _ask(peer, server, f"{what} {kernel}")
                        if turn:  # the first turn is the warm-up
                            times[peer].append(time)
                rows.append(_row(f"{kernel}, {title}", times))
    return rows


def in_new_processes(peers: dict[str, str], rounds: int) -> list[Row]:
    """Times calls in new processes. The time includes the import but not the start of Python."""
    columns: dict[str, dict[str, list[float]]] = {}

    def add(title: str, peer: str, time: float) -> None:
        columns.setdefault(title, {p: [] for p in peers})[peer].append(time)

    with tempfile.TemporaryDirectory() as folder:
        filled = {peer: os.path.join(folder, peer) for peer in peers}
        for turn in range(rounds + 1):
            for peer, python in peers.items():
                for kernel in ("add", "layer norm"):
                    with tempfile.TemporaryDirectory() as empty:
                        compiled = _call(peer, python, empty, "first", kernel)
                    hit = _call(peer, python, filled[peer], "first", kernel)
                    rested = _call(peer, python, filled[peer], "first", kernel, "1")
                    if turn:  # the first turn fills the caches, including those of the system
                        add(f"import, decorator, first compile: {kernel}", peer, sum(compiled))
                        add(f"import, decorator, first call, on disk: {kernel}", peer, sum(hit))
                        add(f"first call, on disk: {kernel}", peer, hit[2])
                        add(f"first call, on disk, a second after the decorator: {kernel}", peer, rested[2])
                if peer == "ours":
                    launched = _call(peer, python, filled[peer], "launch", "add")
                    if turn:
                        add("first launch on the CPU, on disk: add", peer, launched[2])
                        add("import blocknb, beyond numpy's", peer, _import_time(python))
    return [_row(title, times) for title, times in sorted(columns.items())]


def _row(name: str, times: dict[str, list[float]]) -> Row:
    medians = {peer: statistics.median(values) for peer, values in times.items() if values}
    row: Row = {"what": name, "ms": medians["ours"], "least": min(times["ours"])}
    if "Triton" in medians:
        row |= {
            "Triton ms": medians["Triton"],
            "its least": min(times["Triton"]),
            "ours / Triton": medians["ours"] / medians["Triton"],
        }
    return row


def _command(peer: str, python: str, *arguments: str) -> list[str]:
    return [python, "-P", str(SCRIPT), "blocknb" if peer == "ours" else "triton", *arguments]


def _environment(**more: str) -> dict[str, str]:
    """Variables that select this blocknb, not an installed one, and that keep byte code, as a user's Python does."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    paths = [str(SCRIPT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths)} | more


@contextlib.contextmanager
def _server(peer: str, python: str) -> Iterator[subprocess.Popen[str]]:
    command = _command(peer, python, "serve")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def _ask(peer: str, server: subprocess.Popen[str], request: str) -> float:
    assert server.stdin
    assert server.stdout
    with contextlib.suppress(BrokenPipeError):  # then there is no answer
        print(request, file=server.stdin, flush=True)
    answer = server.stdout.readline()
    if not answer:
        raise ValueError(f"the process of {peer} ended without an answer to {request!r}")
    return float(answer)


def _call(peer: str, python: str, folder: str, *arguments: str) -> list[float]:
    """Milliseconds of the import, the decorator and the call, in a new process with the cache directory `folder`."""
    environment = _environment(BLOCKNB_CACHE_DIR=folder, TRITON_CACHE_DIR=folder)
    said = subprocess.run(
        _command(peer, python, *arguments), stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    return [float(number) for number in said.stdout.split()]


def _import_time(python: str) -> float:
    code = "import time, numpy; begin = time.perf_counter(); import blocknb; print((time.perf_counter() - begin) * 1e3)"
    said = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=_environment())
    return float(said.stdout)
