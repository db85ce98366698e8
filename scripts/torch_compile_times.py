"""Cold compile times of the CUDA kernels of a GPT-2 training step: blocknb against the installed Triton. Needs torch, and no GPU.

`python scripts/torch_compile_times.py [--layers 2] [--workers 1 16] [--rounds 3]` lets Inductor generate the kernels once (124 M parameters
with 12 layers, bf16, fake tensors), and compiles all configurations for sm_90a with empty caches. Every measurement is a new process, in
turns; its time leaves out imports. One thread compiles one kernel after another, and loads the generated files before. With workers,
blocknb uses the pool of its backend, and Triton a pool of processes, which Inductor starts before it needs them; both have started before
the time begins, and the loading is part of it. blocknb's configurations have times by phase.

`--memory 16` instead compiles the kernels once on a pool of 16 processes, and prints the memory of the pool, by `smaps_rollup` of Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NAMES = {"parse": "front end", "codegen": "code generation", "ptxas": "ptxas", "worker": "transfer"}
WIDTH, HEADS, VOCABULARY, CONTEXT, BATCH = 768, 12, 50257, 1024, 8


def model(layers: int) -> Any:
    """GPT-2 with its loss, from tokens of shape (BATCH, CONTEXT)."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            heads = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(self.first(x)).chunk(3, -1))
            attended = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(-2)
            x = x + F.dropout(self.out(attended), 0.1)
            return x + F.dropout(self.down(F.gelu(self.up(self.second(x)), approximate="tanh")), 0.1)

    class Gpt2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(layers))), nn.LayerNorm(WIDTH)

        def forward(self, x: Any) -> Any:
            h = F.dropout(self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device)), 0.1)
            logits = self.norm(self.blocks(h))[:, :-1] @ self.tokens.weight.t()
            return F.cross_entropy(logits.flatten(0, 1).float(), x[:, 1:].flatten())

    torch.set_default_dtype(torch.bfloat16)
    return Gpt2()


def generate(layers: int, folder: str) -> int:
    """Writes the generated files of the step to a folder, and returns their number. Raises KernelError if one does not compile."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from blocknb.torch.inductor.without_gpu import CudaKernels

    found = CudaKernels()
    with FakeTensorMode(allow_non_fake_inputs=True):
        step, tokens = model(layers), torch.zeros(BATCH, CONTEXT, dtype=torch.long)
        torch.compile(step, backend=found.backend)(tokens).backward()
    for i, kernel in enumerate(found.kernels):
        if kernel.error is not None:
            raise kernel.error
        Path(folder, f"{i}.{kernel.name}.py").write_text(kernel.source)
    return len(found.kernels)


def kernel_of(path: Path) -> str:
    return path.name.split(".")[1]


def load_module(path: Path) -> Any:
    """A generated file as a module of blocknb."""
    from blocknb.torch.inductor import results, sources

    results.install()
    return sources.load(path.stem, str(path), path.read_text())


def load(path: Path, peer: str) -> Any:
    """Inductor's autotuner of a generated file, with the kernel for blocknb or for Triton."""
    name, text = kernel_of(path), path.read_text()
    if peer == "blocknb":
        return getattr(load_module(path), name)
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime import triton_helpers

    triton_helpers.set_driver_to_gpu = lambda: (
        None
    )  # a file selects the GPU's driver when it is loaded; here there may be none
    return getattr(PyCodeCache.load(text), name)


def import_for(peer: str, path: Path) -> None:
    """Imports in this process what the files of a peer need."""
    load(path, peer)


def compiled(autotuner: Any) -> int:
    """Compiles all configurations of a kernel, and returns their number."""
    autotuner.precompile(warm_cache_only=True)
    return len(autotuner.compile_results)


def compile_one(path: Path, peer: str) -> int:
    """Compiles all configurations of a file, and returns their number."""
    return compiled(load(path, peer))


def phases(milliseconds: Iterable[dict[str, float]]) -> dict[str, float]:
    """Seconds by phase, summed over the times of the configurations, which may overlap with several workers."""
    sums: dict[str, float] = {}
    for times in milliseconds:
        for stage, value in times.items():
            named = stage.startswith("llvm ") or stage in ("parse", "codegen", "ptxas", "worker")
            phase = NAMES.get(stage, "LLVM") if named else "passes"
            sums[phase] = sums.get(phase, 0.0) + value / 1e3
    return sums


def measure_pool(workers: int, paths: list[Path]) -> tuple[float, int, dict[str, float]]:
    """(seconds, configurations, seconds by phase) of a cold compile on the pool of torch.compile."""
    from blocknb.torch.inductor import compile_ahead, compile_pool

    load(paths[0], "blocknb")  # imports the rest, as in each process of the peer
    pool = compile_pool.start(workers)
    pool.wait_for_all(180)
    loading = 0.0

    def loaded() -> Iterator[tuple[Any, str]]:
        nonlocal loading
        for path in paths:
            begin = time.perf_counter()
            module = load_module(path)
            loading += time.perf_counter() - begin
            yield module, kernel_of(path)

    begin = time.perf_counter()
    found = compile_ahead.compile_modules(loaded())
    seconds = time.perf_counter() - begin
    for one in found:
        if isinstance(one, Exception):
            raise one
    times = phases(one.trace.milliseconds for one in found)
    return seconds, len(found), {"loading of files, in this process": loading, **times}


def measure(peer: str, workers: int, paths: list[Path]) -> tuple[float, int, dict[str, float]]:
    """(seconds, configurations, seconds by phase) of a cold compile in this process. The phases of Triton are not known."""
    import torch._inductor.runtime.triton_heuristics  # noqa: F401 (not part of the time)

    if peer == "blocknb":
        from blocknb.runtime import compile as compiler

        compiler.load_all()
        if workers > 1:
            return measure_pool(workers, paths)
    elif workers > 1:
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(import_for, ["triton"] * workers, paths[:1] * workers))  # once in each process
            begin = time.perf_counter()
            count = sum(pool.map(compile_one, paths, ["triton"] * len(paths)))
            return time.perf_counter() - begin, count, {}
    autotuners = [load(path, peer) for path in paths]
    begin = time.perf_counter()
    count = sum(map(compiled, autotuners))
    seconds = time.perf_counter() - begin
    return seconds, count, phases(one.trace.milliseconds for one in compiler.newest()) if peer == "blocknb" else {}


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for child in children for found in family(int(child)))]


def memory_of(pids: list[int]) -> tuple[float, list[float]]:
    """The memory that processes share, and what each has of its own, in MB. Linux divides shared pages among their processes."""
    shared, private = 0.0, []
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        private.append((kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]) * 1024 / 1e6)
        shared += kilobytes["Pss"] * 1024 / 1e6 - private[-1]
    return shared, private


def print_memory(workers: int, paths: list[Path]) -> None:
    """Compiles all files on a pool, and prints the memory of its processes."""
    from blocknb.torch.inductor import compile_pool

    count = measure_pool(workers, paths)[1]
    pool = compile_pool.running()
    assert pool is not None, "the pool has ended"
    shared, private = memory_of(family(pool.pid))
    print(f"{workers} processes and their server, after {count} configurations: they share {shared:.0f} MB,")
    print(
        f"and each has {min(private):.0f} to {max(private):.0f} MB of its own, {statistics.median(private):.0f} in the median"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=int, metavar="N", help="only print the memory of a pool of N processes")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        print(json.dumps(measure(given.peer, given.workers[0], sorted(Path(given.folder).iterdir()))))
        return
    peers = ["blocknb", *(["triton"] if find_spec("triton") else [])]
    with tempfile.TemporaryDirectory() as folder:
        print(f"GPT-2 step, {given.layers} layers: {generate(given.layers, folder)} different kernels")
        if given.memory:
            os.environ["BLOCKNB_CACHE_DIR"] = tempfile.mkdtemp(dir=folder, prefix="cache")
            print_memory(given.memory, sorted(Path(folder).glob("*.py")))
            return
        for workers in given.workers:
            times: dict[str, list[float]] = {peer: [] for peer in peers}
            counts, parts = {}, {}
            for _ in range(given.rounds):
                for peer in peers:
                    with tempfile.TemporaryDirectory() as cache:
                        caches = {f"{name}_CACHE_DIR": cache for name in ("BLOCKNB", "TRITON", "TORCHINDUCTOR")}
                        command = [
                            sys.executable,
                            __file__,
                            "--peer",
                            peer,
                            "--workers",
                            str(workers),
                            "--folder",
                            folder,
                        ]
                        answer = subprocess.run(
                            command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **caches}
                        )
                    seconds, counts[peer], parts[peer] = json.loads(answer.stdout.splitlines()[-1])
                    times[peer].append(seconds)
            for peer in peers:
                median = statistics.median(times[peer])
                ratio = (
                    f", {median / statistics.median(times['blocknb']):.2f} times blocknb's" if peer == "triton" else ""
                )
                print(f"{workers} workers, {peer}: {counts[peer]} configurations in {median:.2f} s{ratio}")
                if parts[peer]:
                    shown = ", ".join(f"{name} {value:.2f}" for name, value in parts[peer].items())
                    print(f"    sums of the last round, in s: {shown}")


if __name__ == "__main__":
    main()
