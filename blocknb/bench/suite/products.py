"""The benchmarks of matrix products, `blocknb bench gemm`: storage orders, fused activations, 8-bit dtypes, batches and groups.

The peers are cuBLAS through torch and CuPy, and Triton with two of our kernels. One has pointers, as in Triton's matmul tutorial. The other
is persistent and has tensor descriptors, as in Triton's persistent-matmul tutorial. Our own variants are the kernel with pointers, and
`matmul` without warp specialization. Shapes are M x N x K.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from blocknb.bench.suite.definition import Arrays, Config, Make, Shape, SuiteBenchmark, Variant

CUBES: tuple[Shape, ...] = tuple((n, n, n) for n in (2048, 4096, 8192))
FURTHER: tuple[Shape, ...] = (
    (4096, 4096, 512), (8192, 8192, 1024), (1024, 1024, 1024), (256, 4096, 4096), (16384, 4096, 4096),
)  # fmt: skip
SMALLEST: Shape = (512, 512, 512)
LARGE: Shape = (4096, 4096, 4096)
CPU: tuple[Shape, ...] = ((1024, 1024, 1024), (1000, 1000, 1000))
PRODUCTS = ("gemm", "ragged", "skinny")  # the first words of the names of benchmarks that multiply matrices
PEERS = ("torch", "CuPy", "Triton", "Triton TMA", "pointers", "unspecialized")
#: rtol and atol for the rounding of results, and of sums of up to 16384 products of normal numbers in each format. Hopper's tensor cores
#: keep about 14 bits of fp8 sums. A few of 67 million results at K = 8192 differ by more than 1, also in torch.
TOLERANCE = {
    "fp32": (1e-4, 1e-3), "fp16": (5e-3, 5e-2), "bf16": (2e-2, 1e-1), "tf32": (2e-3, 0.3), "fp8": (2e-2, 3.0), "int8": (0.0, 0.0),
}  # fmt: skip
SCALES = (0.37, 1.9)  # of a and b, in the benchmarks with scales
#: For products that torch may split along K: it adds up the parts in fp16 (`allow_fp16_reduced_precision_reduction`).
SPLIT_TOLERANCE = {"fp16": (5e-3, 0.25), "fp32": TOLERANCE["fp32"]}
#: One rounding of a result, and of operands in bf16 whose sums may cancel.
QUANTIZED_TOLERANCE = {"fp32": (2e-3, 2e-2), "fp16": (2e-3, 2e-2), "bf16": (2e-2, 0.1)}
BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}

#: Tiles (M, N, bytes of K), warps and stages that a search tries; Triton refuses those that do not fit.
TILES = (
    ((128, 256, 128), 8, 3), ((128, 256, 128), 8, 4), ((256, 128, 128), 8, 3), ((128, 128, 128), 4, 4), ((128, 128, 128), 8, 3),
    ((128, 128, 64), 4, 4), ((128, 128, 256), 8, 3), ((64, 256, 128), 4, 4), ((64, 128, 128), 4, 4), ((64, 128, 256), 4, 4),
    ((64, 64, 128), 4, 5), ((64, 64, 256), 4, 4), ((128, 128, 128), 4, 3), ((64, 128, 128), 4, 8), ((64, 64, 128), 4, 8),
    ((64, 32, 128), 4, 8),
)  # fmt: skip


def grid(itemsize: int, **more: tuple[Any, ...]) -> Callable[[Shape], Iterable[Config]]:
    """Configurations for operands of `itemsize` bytes per element, with every combination of `more`."""

    def configurations(shape: Shape) -> Iterable[Config]:
        for (m, n, inner), warps, stages in TILES:
            tile = (m, n, inner // itemsize)
            for values in itertools.product(*more.values()):
                yield {"tile": tile, "num_warps": warps, "num_stages": stages, **dict(zip(more, values, strict=True))}

    return configurations


def known(**more: Any) -> Callable[[Shape, str], Config]:
    """A configuration that is good for Triton on Hopper, by shape and dtype. Used before a search."""

    def configuration(shape: Shape, dtype: str) -> Config:
        m, n = shape[-3:-1]
        tiles = (m // 128) * (n // 128)
        inner = 128 // BYTES[dtype]
        if tiles >= 256:
            return {"tile": (128, 256, inner), "num_warps": 8, "num_stages": 4 if dtype == "fp8" else 3, **more}
        if tiles > 64:
            return {"tile": (128, 128, inner), "num_warps": 4, "num_stages": 4, **more}
        return {"tile": (64, 128, inner) if tiles > 16 else (64, 64, inner), "num_warps": 4, "num_stages": 4, **more}

    return configuration


def _operand(make: Make, rows: int, columns: int, transposed: bool) -> Any:
    return make.normal(columns, rows).T if transposed else make.normal(rows, columns)


def _arrays(order: str, result: str | None, scaled: bool) -> Callable[..., tuple[Arrays, Arrays]]:
    def arrays(make: Make, m: int, n: int, k: int) -> tuple[Arrays, Arrays]:
        inputs = {"a": _operand(make, m, k, order[0] == "t"), "b": _operand(make, k, n, order[1] == "t")}
        if scaled:
            for name, scale in zip(("a_scale", "b_scale"), SCALES, strict=True):
                inputs[name] = make.poison(1, dtype="float32")
                inputs[name][...] = scale
        kept = None if make.dtype == "float32" else result
        return inputs, {"out": make.poison(m, n, dtype=kept)}

    return arrays


def product(
    name: str, order: str, gpu: dict[str, tuple[Shape, ...]], *, activation: str = "", result: str | None = None,
    scaled: bool = False, peers: tuple[str, ...] = PEERS, drawn: Callable[[int], tuple[Shape, ...]] | None = None,
    tolerance: Mapping[str, tuple[float, float]] = TOLERANCE,
) -> SuiteBenchmark:  # fmt: skip
    """A benchmark of a @ b, each stored row by row (n) or column by column (t)."""
    after: dict[str, Any] = {"activation": activation} if activation else {}

    def calling(wrapper: str, **fixed: Any) -> Callable[..., Any]:
        def call(k: Any, a: Arrays, **c: Any) -> Any:
            scales = {x: a[x] for x in ("a_scale", "b_scale") if x in a}
            return getattr(k, wrapper)(a["a"], a["b"], a["out"], **after, **scales, **fixed, **c)

        return call

    def exact(xp: Any, a: Any, b: Any, *scales: Any) -> Any:
        found = a @ b
        for scale in scales:
            found = found * scale
        return xp.where(found >= 0, found, 0.01 * found) if activation else found

    itemsize = BYTES[next(iter(gpu))]
    pointers, persistent = calling("matmul_pointers"), calling("matmul_descriptors", strategy="persistent")
    variants = {
        "Triton": Variant("triton", pointers, "matmul", grid(itemsize), known()),
        "Triton TMA": Variant(
            "triton",
            persistent,
            "descriptors",
            grid(itemsize, epilogue_subtiles=(False, True)),
            known(epilogue_subtiles=True),
        ),
        "pointers": Variant("blocknb", pointers, "matmul"),
        "unspecialized": Variant("unspecialized", calling("matmul"), "gemm"),
    }
    return SuiteBenchmark(
        name, "gemm", _arrays(order, result, scaled), calling("matmul"), exact, gpu, CPU, grid(itemsize), tolerance,
        flops=lambda m, n, k: 2 * m * n * k, variants=variants, peers=peers, drawn=drawn,
    )  # fmt: skip


def any_sizes(seed: int) -> tuple[Shape, ...]:
    """16 shapes of random sizes from 100 to 6000, and one cube of rows that are no multiple of a line."""
    draw = random.Random(seed)
    return (
        (3000, 3000, 3000),
        *((draw.randint(100, 6000), draw.randint(100, 6000), draw.randint(100, 6000)) for _ in range(16)),
    )


def multiples_of_64(seed: int) -> tuple[Shape, ...]:
    """16 shapes of random multiples of 64, up to 5952."""
    draw = random.Random(seed)
    return tuple((64 * draw.randint(2, 93), 64 * draw.randint(2, 93), 64 * draw.randint(2, 93)) for _ in range(16))


#: Products of decoding: few rows by the weights of a layer.
SKINNY: tuple[Shape, ...] = tuple(
    (m, n, k) for m in (1, 2, 4, 8, 16, 32, 64) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336))
)


def _int8_arrays(make: Make, m: int, n: int, k: int) -> tuple[Arrays, Arrays]:
    """Rows of activations, and int8 weights with a scale per column."""
    kind = "float16" if make.dtype == "float32" else None  # a CPU's cases are fp32
    scales = make.cast(make.integers_below(1000, n), "float32") / 1e5
    weights = make.normal(n, k, dtype="int8")
    return {"x": make.normal(m, k, dtype=kind), "w": weights, "scales": scales}, {"out": make.poison(m, n, dtype=kind)}


def _int4_arrays(make: Make, m: int, n: int, k: int) -> tuple[Arrays, Arrays]:
    """Rows of activations, and weights of 4 bits, two per byte along K, with a scale per 128 of them."""
    kind = "float16" if make.dtype == "float32" else None
    scales = make.cast(make.cast(make.integers_below(1000, n, k // 128), "float32") / 1e4, kind)
    weights = make.cast(make.integers_below(256, n, k // 2), "uint8")
    return {"x": make.normal(m, k, dtype=kind), "w": weights, "scales": scales}, {"out": make.poison(m, n, dtype=kind)}


def unpacked(xp: Any, w: Any, scales: Any) -> Any:
    """The numbers that weights of 4 bits stand for, (N, K) in float64. A zero point is 8."""
    n, packed = w.shape
    high = xp.floor(w / 16)
    numbers = xp.stack([w - 16 * high, high], 2).reshape(n, scales.shape[1], -1) - 8
    return (numbers * scales[:, :, None]).reshape(n, 2 * packed)


def quantized(name: str, arrays: Callable[..., tuple[Arrays, Arrays]], exact: Callable[..., Any]) -> SuiteBenchmark:
    """A benchmark of few rows by quantized weights; `name` ends in that of the wrapper."""
    wrapper = f"matmul_{name.partition('_')[2]}"
    return SuiteBenchmark(
        name, "quantized", arrays, lambda k, a, **c: getattr(k, wrapper)(a["x"], a["w"], a["scales"], out=a["out"], **c), exact,
        {"fp16": SKINNY, "bf16": SKINNY}, ((4, 1024, 1024),), lambda shape: (), QUANTIZED_TOLERANCE,
        flops=lambda m, n, k: 2 * m * n * k, peers=("torch", "ceiling"),
    )  # fmt: skip


def _batches(make: Make, batch: int, m: int, n: int, k: int) -> tuple[Arrays, Arrays]:
    return {"a": make.normal(batch, m, k), "b": make.normal(batch, k, n)}, {"out": make.poison(batch, m, n)}


def _several(k: Any, a: Arrays, **c: Any) -> Any:
    return k.matmul(a["a"], a["b"], a["out"], **c)


def _several_pointers(k: Any, a: Arrays, **c: Any) -> Any:
    return k.matmul_pointers(a["a"], a["b"], a["out"], **c)


def _groups(make: Make, groups: int, m: int, n: int, k: int) -> tuple[Arrays, Arrays]:
    """Rows in groups of random sizes, as a mixture-of-experts router assigns them."""
    ends = make.cast(make.integers_below(1, groups), "int32")
    for g, end in enumerate(sorted(int(x) for x in make.integers_below(m + 1, groups - 1))):
        ends[g] = end
    ends[groups - 1] = m
    inputs = {"a": make.normal(m, k), "b": make.normal(groups, k, n), "ends": ends}
    return inputs, {"out": make.poison(m, n)}


def _grouped(k: Any, a: Arrays, **c: Any) -> Any:
    return k.grouped_matmul(a["a"], a["b"], a["ends"], a["out"], **c)


def by_groups(multiply: Callable[[Any, Any], Any], a: Any, b: Any, ends: Any) -> list[Any]:
    """The products of each group's rows, one after another."""
    found, begin = [], 0
    for g, end in enumerate(int(x) for x in ends):
        found.append(multiply(a[begin:end], b[g]))
        begin = end
    return found


FEW = tuple(peer for peer in PEERS if peer != "CuPy")  # for dtypes that CuPy does not multiply
BENCHMARKS: tuple[SuiteBenchmark, ...] = (
    product("ragged_any", "nn", {"fp16": any_sizes(1)}, peers=("torch",), drawn=any_sizes, tolerance=SPLIT_TOLERANCE),
    product("ragged_multiples", "nn", {"fp16": multiples_of_64(1)}, peers=("torch",), drawn=multiples_of_64, tolerance=SPLIT_TOLERANCE),
    *(product(f"skinny_{order}", order, {"fp16": SKINNY}, peers=("torch", "ceiling"), tolerance=SPLIT_TOLERANCE) for order in ("nn", "nt")),
    quantized("skinny_int8", _int8_arrays, lambda xp, x, w, scales: x @ (w * scales[:, None]).T),
    quantized("skinny_int4", _int4_arrays, lambda xp, x, w, scales: x @ unpacked(xp, w, scales).T),
    product("gemm_plain", "nn", {"fp16": (*CUBES, *FURTHER, SMALLEST), "bf16": CUBES}),
    product("gemm_leaky", "nn", {"fp16": FURTHER}, activation="leaky_relu"),
    product("gemm_fp8", "nt", {"fp8": CUBES}, result="bfloat16", scaled=True, peers=FEW),
    product("gemm_tf32", "nt", {"tf32": CUBES[:2]}, peers=FEW),
    product("gemm_tf32_nn", "nn", {"tf32": CUBES[:2]}, peers=FEW),
    product("gemm_int8", "nt", {"int8": (LARGE,)}, result="int32", peers=FEW),
    *(product(f"gemm_{order}", order, {"fp16": (LARGE,)}) for order in ("nt", "tn", "tt")),
    SuiteBenchmark(
        "gemm_batch", "gemm", _batches, _several, lambda xp, a, b: a @ b, {"fp16": ((32, 1024, 1024, 1024),)},
        ((8, 256, 256, 256),), grid(2), TOLERANCE, flops=lambda batch, m, n, k: 2 * batch * m * n * k,
        variants={
            "Triton": Variant("triton", _several_pointers, "matmul", grid(2), known()),
            "pointers": Variant("blocknb", _several_pointers, "matmul"),
            "unspecialized": Variant("unspecialized", _several, "gemm"),
        },
        peers=tuple(peer for peer in PEERS if peer != "Triton TMA"),
    ),
    SuiteBenchmark(
        "gemm_grouped", "grouped", _groups, _grouped,
        lambda xp, a, b, ends: xp.concatenate(by_groups(lambda x, y: x @ y, a, b, ends)),
        {"bf16": ((8, 16384, 4096, 2048),)}, ((4, 512, 256, 256),), grid(2), TOLERANCE,
        flops=lambda groups, m, n, k: 2 * m * n * k,
        variants={
            "Triton": Variant("triton", _grouped, "grouped", grid(2), known()),
            "unspecialized": Variant("unspecialized", _grouped, "grouped"),
        },
        peers=("torch", "Triton", "unspecialized"),
    ),
)  # fmt: skip
