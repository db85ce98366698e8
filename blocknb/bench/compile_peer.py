"""A script that times one compiler, blocknb or Triton, on the same kernels: `python compile_peer.py blocknb|triton MODE ...`.

`compile_times` starts one process per compiler and alternates between them. The script imports only the named package and needs no GPU:
the target is an H100 (sm_90a).

`first KERNEL [PAUSE]` prints the milliseconds of the import, the decorator, and the first compile, which follows PAUSE seconds later. The
package's own environment variable names the cache directory. If the kernel is in it, the compile is a cache hit. `launch KERNEL [PAUSE]`
does the same with a launch of `add` on NumPy arrays (blocknb only). `serve` is a warm process. It reads lines `cold KERNEL` (compile with
an empty cache) and `hit KERNEL` (compile again, from the disk cache). It answers each with the milliseconds of the decorator and the
compile.
"""

import time

BEGIN = time.perf_counter()

import importlib  # noqa: E402
import sys  # noqa: E402

PACKAGE = sys.argv[1]
package = importlib.import_module(PACKAGE)
tl = importlib.import_module(PACKAGE + ".language")
IMPORTED = time.perf_counter()


def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=inside) + tl.load(y + offsets, mask=inside), mask=inside)


def softmax(x, y, x_row, y_row, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    values = tl.load(x + row * x_row + columns, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * y_row + columns, powers / tl.sum(powers, axis=0), mask=inside)


def layer_norm(x, y, weight, bias, mean, rstd, x_row, y_row, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    values = tl.load(x + row * x_row + columns, mask=inside, other=0.0).to(tl.float32)
    average = tl.sum(values, axis=0) / n
    centred = tl.where(inside, values - average, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    tl.store(mean + row, average)
    tl.store(rstd + row, scale)
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * y_row + columns, centred * scale * factor + offset, mask=inside)


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


# The types of run-time arguments, and the constants. Pointers and integers are divisible by 16.
SIZES = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP": 8}
STRIDES = {"a_row": "i32", "a_column": 1, "b_row": "i32", "b_column": 1, "c_row": "i32", "c_column": 1}
JOBS = {
    "add": (add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": 1024}),
    "softmax": (softmax, {"x": "*fp32", "y": "*fp32", "x_row": "i32", "y_row": "i32", "n": "i32", "BLOCK": 1024}),
    "layer norm": (
        layer_norm,
        dict.fromkeys(("x", "y", "weight", "bias"), "*fp16")
        | dict.fromkeys(("mean", "rstd"), "*fp32")
        | {"x_row": "i32", "y_row": "i32", "n": "i32", "eps": "fp32", "BLOCK": 1024},
    ),
    "matmul": (matmul, dict.fromkeys("abc", "*fp16") | dict.fromkeys("mnk", "i32") | STRIDES | SIZES),
}


def divisible(kind):
    return not isinstance(kind, int) and not kind.startswith("fp")


def compile_blocknb(kernel, kinds):
    given = {n: f"{k}:16" if divisible(k) else k for n, k in kinds.items()}
    kernel.trace(**given, target="sm_90a", num_warps=4, num_stages=3)


def compile_triton(kernel, kinds):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {name: "constexpr" if isinstance(kind, int) else kind for name, kind in kinds.items()}
    places = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(kinds.values()) if divisible(kind)}
    values = {(i,): kind for i, kind in enumerate(kinds.values()) if isinstance(kind, int)}
    source = ASTSource(kernel, signature=types, constexprs=values, attrs=places)
    package.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 3})


compile_one = {"blocknb": compile_blocknb, "triton": compile_triton}[PACKAGE]


def milliseconds(call, *args):
    begin = time.perf_counter()
    call(*args)
    return (time.perf_counter() - begin) * 1e3


def launch(kernel, kinds):
    import numpy as np

    x = np.ones(4096, np.float32)
    kernel[4,](x, x, np.empty_like(x), 4096, BLOCK=1024)


def decorated(name):
    function, kinds = JOBS[name]
    return package.jit(function), kinds


def compile_named(name):
    compile_one(*decorated(name))


def first(call, name, pause="0"):
    begin = time.perf_counter()
    given = decorated(name)
    decorating = (time.perf_counter() - begin) * 1e3
    time.sleep(float(pause))
    print((IMPORTED - BEGIN) * 1e3, decorating, milliseconds(call, *given))


def forget(folder):
    """Clears the in-memory caches. `folder`, if given, becomes the disk cache."""
    if PACKAGE == "triton":
        if folder:
            package.knobs.cache.dir = folder
        return
    from blocknb.runtime import cache
    from blocknb.runtime import compile as compiler

    compiler.forget()
    if folder:
        cache.shared().root = folder


def serve():
    import tempfile

    for line in sys.stdin:
        what, _, name = line.strip().partition(" ")
        with tempfile.TemporaryDirectory() as folder:
            forget(folder)
            times = [milliseconds(compile_named, name)]
            for _ in range(what == "hit"):
                forget(None)
                times.append(milliseconds(compile_named, name))
        print(times[-1], flush=True)


if __name__ == "__main__":
    mode, *rest = sys.argv[2:]
    if mode == "serve":
        serve()
    else:
        first(launch if mode == "launch" else compile_one, *rest)
