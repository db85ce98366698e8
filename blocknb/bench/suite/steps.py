"""One matrix product in eight steps, `blocknb bench gemm_steps`: the effect of each optimization for tensor cores.

All steps run the same kernel, C = A B^T in fp16. Each step enables one more optimization, or a larger tile, so adjacent rows differ in
one respect. notebooks/reference/tensor_cores.ipynb explains the steps. Without a GPU it shows the times that `recorded` reads from
blocknb/bench/suite/gemm_steps.json, a result of `blocknb bench gemm_steps --json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import blocknb
import blocknb.language as tl
from blocknb.bench.suite.definition import Shape, parse_shape, shape_text
from blocknb.bench.suite.products import TOLERANCE
from blocknb.errors import Unsupported
from blocknb.profile.timing import interleaved

RECORD = Path(__file__).parent / "gemm_steps.json"
SHAPES: tuple[Shape, ...] = ((4096, 4096, 4096), (4096, 4096, 512))  # M, N, K
LIBRARY = "cuBLAS"
PEERS = {LIBRARY, "CuPy"}  # the names of `--peers`, because CuPy calls cuBLAS
Row = dict[str, Any]


@blocknb.kernel
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr = 8):  # type: ignore[no-untyped-def]
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = tl.program_id(0) // (GROUP * across) * GROUP
    height = min(down - first, GROUP)
    inside = tl.program_id(0) % (GROUP * across)
    m, n = (first + inside % height) * BM, inside // height * BN

    x_at = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    y_at = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    z_at = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = x_at.load([m, k])
        y = y_at.load([n, k])
        total = tl.dot(x, y.T, total)
    z_at.store([m, n], total.to(tl.float16))


#: The passes that steps switch on, in turn; each entry is one step.
SWITCHES: tuple[tuple[str, ...], ...] = (
    ("select_mma",), ("software_pipelining",), ("select_wgmma",), ("warp_specialization",), ("persistent_grid",),
    ("epilogue_subtiling", "tma_store"),
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """`name` is the new optimization; `without` lists the disabled passes."""

    name: str
    without: tuple[str, ...] = ()
    tile: tuple[int, int, int] = (128, 128, 64)
    num_warps: int = 8

    @property
    def launch(self) -> dict[str, Any]:
        """The constants and options of a launch."""
        m, n, k = self.tile
        return {"BM": m, "BN": n, "BK": k, "num_warps": self.num_warps, "without": self.without}


def _off(step: int) -> tuple[str, ...]:
    return tuple(name for names in SWITCHES[step:] for name in names)


STEPS: tuple[Step, ...] = (
    Step("multiply-adds", _off(0)),
    Step("tensor cores", _off(1)),
    Step("copies ahead", _off(2)),
    Step("wgmma", _off(3)),
    Step("a warp that copies", _off(4)),
    Step("persistent programs", _off(5)),
    Step("results by TMA", _off(6)),
    Step("larger tiles", tile=(128, 256, 64)),
)
#: An alternative to the last step: smaller tiles, two of which alternate.
PING_PONG = Step("ping-pong", tile=(128, 128, 64), num_warps=4)


def run_step(kernel: Any, step: Step, a: Any, b: Any, c: Any) -> None:
    """c = a @ b.T as a step does it: fp16 matrices (M, K), (N, K) and (M, N), contiguous; `kernel` is `matmul` or one like it."""
    (m, k), n = a.shape, b.shape[0]
    tiles = blocknb.cdiv(m, step.tile[0]) * blocknb.cdiv(n, step.tile[1])
    kernel[tiles,](a, b, c, m, n, k, **step.launch)


def chosen(shapes: Sequence[str]) -> Sequence[Shape]:
    """The shapes of the option `--shapes`, MxNxK; without any, `SHAPES`. Raises ValueError for another number of sizes."""
    found = [parse_shape(text) for text in shapes]
    if wrong := [text for text, shape in zip(shapes, found, strict=True) if len(shape) != 3]:
        raise ValueError(f"--shapes {wrong[0]}: the steps of a matrix product need MxNxK, such as 4096x4096x512")
    return found or SHAPES


def measure(
    kernel: Any = matmul, shapes: Sequence[Shape] = SHAPES, rounds: int = 30, library: bool = True
) -> list[Row]:
    """Times all steps, ping-pong and (with `library`) cuBLAS on this GPU, interleaved, with cold caches and fresh random numbers.

    Returns a row per shape and step. Its keys are `shape`, `step` (None for ping-pong and cuBLAS), `name` and `device`. `ms` is the median,
    and `low` and `high` are the quartiles. The others are `TFLOP/s`, and `gain` over the previous step. Raises ArithmeticError for a wrong
    result, and Unsupported without a GPU.
    """
    from blocknb.runtime import machine

    if not machine.has_gpu():
        raise Unsupported("CuPy found no GPU on which to time the steps of a matrix product")
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    found = []
    for m, n, k in shapes:
        a, b = (cupy.random.standard_normal((rows, k), dtype=cupy.float32).astype(cupy.float16) for rows in (m, n))
        c = cupy.empty((m, n), cupy.float16)
        exact = a.astype(cupy.float64) @ b.astype(cupy.float64).T
        calls: dict[str, Callable[[], Any]] = {
            step.name: partial(run_step, kernel, step, a, b, c) for step in (*STEPS, PING_PONG)
        }
        for name, call in calls.items():
            c.fill(cupy.nan)
            call()
            rtol, atol = TOLERANCE["fp16"]
            if not bool(cupy.allclose(c.astype(cupy.float64), exact, rtol, atol)):
                raise ArithmeticError(f"{name}, {shape_text((m, n, k))}: the result is wrong")
        del exact
        if library:
            calls[LIBRARY] = partial(cupy.matmul, a, b.T, out=cupy.empty((m, n), cupy.float16))
        times = interleaved(calls, gpu=True, rounds=rounds, warmup=2).complete()
        found += rows((m, n, k), times, properties["name"].decode())
    return found


def rows(shape: Shape, times: dict[str, Any], device: str) -> list[Row]:
    """The rows of a shape from its Timings by name."""
    order = {step.name: number for number, step in enumerate(STEPS, 1)}
    found: list[Row] = []
    for name, time in times.items():
        number = order.get(name)
        before = times.get(STEPS[number - 2].name) if number is not None and number > 1 else None
        found.append(
            {
                "shape": shape_text(shape), "step": number, "name": name, "ms": time.median, "low": time.low, "high": time.high,
                "TFLOP/s": 2 * shape[0] * shape[1] * shape[2] / time.median / 1e9,
                "gain": before.median / time.median if before else None, "device": device,
            }
        )  # fmt: skip
    return found


def recorded() -> list[Row]:
    """The recorded GPU rows that ship with blocknb; [] without the file."""
    if not RECORD.exists():
        return []
    found: list[Row] = json.loads(RECORD.read_text()).get("gemm_steps", [])
    return found
