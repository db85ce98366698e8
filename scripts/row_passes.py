"""The effect of three passes on kernels of one row per program: `python scripts/row_passes.py [rematerialization sinking strip_mining]`.

A line gives the registers and spilled bytes per thread without and with the pass. ptxas reports them for sm_90a or the GPU of this machine.
With a GPU, the line also gives the time without the pass divided by the time with it; above 1, the pass pays. It is the median of
`--rounds` rounds, with its 95 % interval. A round runs both sides in random order, on rows of random numbers. They have 2^28 elements, much
more than fit into the L2 cache. docs/design/gpu_rows.md shows the figures.
"""

from __future__ import annotations

import argparse
import random
import statistics
from typing import Any

import paired

import blocknb
import blocknb.language as tl
from blocknb.kernels.softmax import softmax_kernel
from blocknb.runtime import machine, plan

ELEMENTS = 1 << 28  # of an array
LAUNCHES = 5  # per measurement
TARGET = "sm_90a"  # without a GPU
ROW = ("n", "BLOCK", "x_stride", "y_stride")  # parameters that are the length of a row


@blocknb.kernel
def log_softmax(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * n
    v = tl.load(x + start + at, mask=at < n, other=-float("inf")).to(tl.float32)
    v = v - tl.max(v, axis=0)
    tl.store(y + start + at, v - tl.log(tl.sum(tl.exp(v), axis=0)), mask=at < n)


@blocknb.kernel
def l2_norm(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * n
    v = tl.load(x + start + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + start + at, v * tl.rsqrt(tl.sum(v * v, axis=0)), mask=at < n)


@blocknb.kernel
def standardize(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * n
    v = tl.load(x + start + at, mask=at < n, other=0.0).to(tl.float32)
    v = tl.where(at < n, v - tl.sum(v, axis=0) / n, 0.0)
    tl.store(y + start + at, v * tl.rsqrt(tl.sum(v * v, axis=0) / n + 1e-5), mask=at < n)


@blocknb.kernel
def layer_norm(x, w, b, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * n
    v = tl.load(x + start + at, mask=at < n, other=0.0).to(tl.float32)
    v = tl.where(at < n, v - tl.sum(v, axis=0) / n, 0.0)
    v = v * tl.rsqrt(tl.sum(v * v, axis=0) / n + 1e-5)
    scaled = v * tl.load(w + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + start + at, scaled + tl.load(b + at, mask=at < n, other=0.0).to(tl.float32), mask=at < n)


@blocknb.kernel
def rms_norm(x, w, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * n
    v = tl.load(x + start + at, mask=at < n, other=0.0).to(tl.float32)
    v = v * tl.rsqrt(tl.sum(v * v, axis=0) / n + 1e-5)
    tl.store(y + start + at, v * tl.load(w + at, mask=at < n, other=0.0).to(tl.float32), mask=at < n)


@blocknb.kernel
def rms_norm_of_sum(x, r, w, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * n
    v = tl.load(x + start + at, mask=at < n, other=0.0).to(tl.float32)
    v += tl.load(r + start + at, mask=at < n, other=0.0).to(tl.float32)
    v = v * tl.rsqrt(tl.sum(v * v, axis=0) / n + 1e-5)
    tl.store(y + start + at, v * tl.load(w + at, mask=at < n, other=0.0).to(tl.float32), mask=at < n)


@blocknb.kernel
def softmax_gradient(y, d, g, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * n
    v = tl.load(y + start + at, mask=at < n, other=0.0).to(tl.float32)
    dv = tl.load(d + start + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(g + start + at, v * (dv - tl.sum(v * dv, axis=0)), mask=at < n)


@blocknb.kernel
def cross_entropy(x, label, loss, g, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    start = row.to(tl.int64) * n
    v = tl.load(x + start + at, mask=at < n, other=-float("inf")).to(tl.float32)
    target = tl.load(label + row)
    most = tl.max(v, axis=0)
    e = tl.exp(v - most)
    total = tl.sum(e, axis=0)
    tl.store(loss + row, tl.log(total) + most - tl.sum(tl.where(at == target, v, 0.0), axis=0))
    tl.store(g + start + at, e / total - tl.where(at == target, 1.0, 0.0), mask=at < n)


Case = tuple[Any, int, int, str]  # the kernel, the length of a row, the warps, the dtype of the rows
CASES: dict[str, tuple[Case, ...]] = {
    "rematerialization": (
        (softmax_kernel, 32768, 16, "fp16"),
        (log_softmax, 32768, 16, "fp16"),
        (standardize, 32768, 16, "fp16"),
        (rms_norm, 32768, 16, "fp16"),
        (l2_norm, 32768, 16, "fp16"),
        (cross_entropy, 16384, 8, "fp16"),
        (softmax_gradient, 16384, 8, "fp16"),
    ),
    "sinking": (
        (layer_norm, 8192, 8, "fp32"),
        (layer_norm, 8192, 4, "fp32"),
        (layer_norm, 4096, 4, "fp16"),
        (rms_norm, 16384, 8, "fp16"),
        (rms_norm_of_sum, 4096, 4, "fp16"),
        (cross_entropy, 16384, 8, "fp16"),
    ),
    "strip_mining": (
        (softmax_kernel, 65536, 4, "fp32"),
        (layer_norm, 65536, 4, "fp32"),
        (rms_norm, 65536, 4, "fp16"),
        (softmax_gradient, 65536, 4, "fp16"),
    ),
}


def kind_of(name: str, dtype: str) -> str:
    """The type text of an array argument."""
    return {"label": "*i32:16", "loss": "*fp32:16"}.get(name, f"*{dtype}:16")


def registers(kernel: Any, n: int, warps: int, dtype: str, without: tuple[str, ...]) -> str:
    """The registers per thread and the spilled bytes, in short."""
    names = [p.name for p in kernel.source.parameters]
    given: dict[str, Any] = {name: "i32:16" if name in ROW else kind_of(name, dtype) for name in names} | {"BLOCK": n}
    target = str(plan.target_of(0)) if machine.has_gpu() else TARGET
    found = kernel.trace(**given, num_warps=warps, without=without, target=target).resources
    return f"{found.registers} and {found.spill_bytes} bytes" if found.spill_bytes else str(found.registers)


def ratios(kernel: Any, n: int, warps: int, dtype: str, without: str, rounds: int) -> list[float]:
    """The time without the pass over the time with it, by round."""
    import cupy

    rows = ELEMENTS // n
    element = {"fp16": cupy.float16, "fp32": cupy.float32}[dtype]
    arguments: dict[str, Any] = {}
    for name in (p.name for p in kernel.source.parameters):
        if name in ROW:
            arguments[name] = n
        elif name in ("w", "b"):
            arguments[name] = cupy.random.standard_normal(n, dtype=cupy.float32).astype(element)
        elif name == "label":
            arguments[name] = cupy.random.randint(0, n, rows, dtype=cupy.int32)
        elif name == "loss":
            arguments[name] = cupy.empty(rows, cupy.float32)
        else:
            arguments[name] = cupy.random.standard_normal((rows, n), dtype=cupy.float32).astype(element)

    def milliseconds(passes: tuple[str, ...]) -> float:
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        for _ in range(LAUNCHES):
            kernel[(rows,)](**arguments, num_warps=warps, without=passes)
        end.record()
        end.synchronize()
        return cupy.cuda.get_elapsed_time(begin, end)

    sides: list[tuple[str, ...]] = [(without,), ()]
    for side in (*sides, *sides):
        milliseconds(side)
    found = []
    for _ in range(rounds):
        times = {side: milliseconds(side) for side in random.sample(sides, 2)}
        found.append(times[without,] / times[()])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("passes", nargs="*", metavar="PASS", help=f"of {', '.join(CASES)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    if unknown := set(options.passes) - set(CASES):
        parser.error(f"no cases for {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    for name in options.passes or CASES:
        print(name)
        for kernel, n, warps, dtype in CASES[name]:
            sides = [registers(kernel, n, warps, dtype, off) for off in ((name,), ())]
            line = f"  {kernel.source.name:18} {n:6} {dtype} {warps:2} warps   {sides[0]} -> {sides[1]} registers"
            if machine.has_gpu():
                found = ratios(kernel, n, warps, dtype, name, options.rounds)
                low, high = paired.interval(found)
                line += f"   {statistics.median(found):.3f} [{low:.3f}, {high:.3f}]"
            print(line, flush=True)


if __name__ == "__main__":
    main()
