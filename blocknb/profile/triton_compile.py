"""A script for a Python that has Triton: prints how many milliseconds its compiler takes for the kernels of `bench compile`.

It is run in a process of its own, by `bench compile`, and imports nothing of blocknb. Needs no GPU. One line a kernel: its name and
the median of five compiles, in a warm process with an empty cache.
"""

import os
import statistics
import tempfile
import time

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=inside) + tl.load(y + offsets, mask=inside), mask=inside)


@triton.jit
def softmax(x, y, x_stride, y_stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    values = tl.load(x + row * x_stride + columns, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * y_stride + columns, powers / tl.sum(powers, axis=0), mask=inside)


@triton.jit
def matmul(
    a, b, c, m, n, k, a_row, a_column, b_row, b_column, c_row, c_column,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    width = GROUP * tl.cdiv(n, BLOCK_N)
    first = pid // width * GROUP
    rows_in_group = min(tl.cdiv(m, BLOCK_M) - first, GROUP)
    tile_m = first + (pid % width) % rows_in_group
    tile_n = (pid % width) // rows_in_group
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % m
    columns = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % n
    inner = tl.arange(0, BLOCK_K)
    a_tile = a + rows[:, None] * a_row + inner[None, :] * a_column
    b_tile = b + inner[:, None] * b_row + columns[None, :] * b_column
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        left = k - step * BLOCK_K
        x = tl.load(a_tile, mask=inner[None, :] < left, other=0.0)
        y = tl.load(b_tile, mask=inner[:, None] < left, other=0.0)
        total = tl.dot(x, y, total)
        a_tile += BLOCK_K * a_column
        b_tile += BLOCK_K * b_row
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * c_row + columns[None, :] * c_column, total.to(tl.float16), mask=inside)


ALIGNED = [["tt.divisibility", 16]]


def compile_ms(kernel, signature, constants, **options):
    """One compile for sm_90a into an empty cache, in milliseconds; every run-time argument is divisible by 16."""
    triton.knobs.cache.dir = tempfile.mkdtemp()
    kinds = dict(zip(kernel.arg_names, signature, strict=True))
    places = {(i,): ALIGNED for i, kind in enumerate(signature) if kind != "constexpr"}
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature=kinds, constexprs=values, attrs=places)
    begin = time.perf_counter()
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return (time.perf_counter() - begin) * 1e3


JOBS = {
    "add": lambda: compile_ms(add, ["*fp32"] * 3 + ["i32", "constexpr"], {"BLOCK": 1024}, num_warps=4),
    "softmax": lambda: compile_ms(softmax, ["*fp32"] * 2 + ["i32"] * 3 + ["constexpr"], {"BLOCK": 1024}, num_warps=4),
    "matmul": lambda: compile_ms(
        matmul,
        ["*fp16"] * 3 + ["i32"] * 4 + ["constexpr", "i32", "constexpr", "i32"] + ["constexpr"] * 5,
        {"a_column": 1, "b_column": 1, "c_column": 1, "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP": 8},
        num_warps=4, num_stages=3,
    ),
}  # fmt: skip


if __name__ == "__main__":
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"
    compile_ms(add, ["*fp64"] * 3 + ["i32", "constexpr"], {"BLOCK": 512}, num_warps=4)
    for name, job in JOBS.items():
        print(name, statistics.median(job() for _ in range(5)))
