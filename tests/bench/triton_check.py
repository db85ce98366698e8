"""A script for a Python that has Triton, run by test_suite_triton: compiles the benchmarks' kernels with Triton, without a GPU.

It takes every launch from the wrappers themselves, with NumPy arrays in place of GPU arrays; the types of the arguments make the
signature. It prints one line per kernel and configuration; an error ends the script.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton
from benchmark_shapes import PARTIAL_TILES, small_shape
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from blocknb.bench.suite import attention, fused_triton, launching
from blocknb.bench.suite.catalogue import BENCHMARKS
from blocknb.bench.suite.definition import Make, Shape, SuiteBenchmark
from blocknb.bench.suite.triton_source import Sources, kernel_for_triton

ELEMENTS = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv", "int8": "i8", "int32": "i32", "int64": "i64",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages")
count = 0


class Array(np.ndarray):
    """Tells its address as a tensor does."""

    def data_ptr(self) -> int:
        return self.ctypes.data


def kind(value: Any, constexpr: bool) -> Any:
    if isinstance(value, tuple):
        return tuple(kind(element, constexpr) for element in value)
    if constexpr or value is None or value is True or value is False or (isinstance(value, int) and value == 1):
        return "constexpr"
    if isinstance(value, np.ndarray):
        return f"*{ELEMENTS[str(value.dtype)]}"
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{ELEMENTS[str(value.base.dtype)]}[{', '.join(map(str, value.block_shape))}]>"
    return "fp32" if isinstance(value, float) else "i32"


def compiled(self: JITFunction, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
    """Stands in for JITFunction.run."""
    global count
    options = {name: kwargs.pop(name) for name in OPTIONS if kwargs.get(name) is not None}
    given = dict(zip(self.arg_names, args, strict=False)) | kwargs
    given |= {p.name: p.default for p in self.params if p.name not in given and p.has_default}
    assert set(given) == set(self.arg_names), (list(given), self.arg_names)
    assert all(isinstance(axis, int) and axis > 0 for axis in grid)
    kinds = {p.name: kind(given[p.name], p.is_constexpr) for p in self.params}
    constants = {(i,): given[name] for i, name in enumerate(kinds) if kinds[name] == "constexpr"}
    for i, name in enumerate(kinds):
        if isinstance(kinds[name], tuple):
            constants |= {(i, j): given[name][j] for j, found in enumerate(kinds[name]) if found == "constexpr"}
    source = ASTSource(self, signature=kinds, constexprs=constants)
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    count += 1


def others(sources: Sources) -> None:
    """Ready-made kernels that no benchmark launches through Triton."""
    a, b, out = (np.zeros(shape, np.float16).view(Array) for shape in ((2, 64, 32), (2, 32, 64), (2, 64, 64)))
    options = {"tile": (32, 32, 32), "bias": np.zeros(64, np.float16), "activation": "gelu"}
    sources.matmul_descriptors(a, b, out, **options)
    for way in ("kernel", "host", "persistent"):
        sources.matmul_descriptors(a[0], b[0], out[0], strategy=way, **options)
    sources.matmul_split(a[0], b[0], out[0], splits=2, **options)
    sources.grouped_matmul(a[0], b, np.zeros(2, np.int32), out[0], tile=(32, 32, 32))
    sources.matmul_many(list(a), list(b), list(out), tile=(32, 32, 32))


def compile_one(sources: Sources, benchmark: SuiteBenchmark, shape: Shape, dtype: str) -> int:
    """Compiles what a benchmark launches through Triton for a shape and a dtype. Returns the number of its configurations."""
    made = benchmark.arrays(Make(np, dtype), *shape)
    inputs, outputs = ({name: array.view(Array) for name, array in arrays.items()} for arrays in made)
    grid = sources.configurations(benchmark, shape) if benchmark.module else []
    for config in (None, grid[0], grid[-1]) if grid else ():  # without a search, Triton is no peer
        before = count
        sources.call(benchmark, inputs | outputs, config)()
        assert count > before
    for peer, variant in benchmark.variants.items():
        if isinstance(variant.call, attention.Fused):
            for config in list(variant.sweep(shape))[1 if variant.call.roles else 0 :: 2]:
                fused_triton.compile(
                    f"torch.{made[0]['q'].dtype}", 64, config["tile"], variant.call.causal, variant.call.roles
                )
        elif variant.language == "triton":
            for config in (None,) if variant.sweep is None else list(variant.sweep(shape))[::5]:
                before = count
                sources.call(benchmark, inputs | outputs, config, variant.call)()
                assert count > before, peer
    return len(grid)


def main(names: Sequence[str] = ()) -> None:
    """Compiles the kernels of the named benchmarks; without names, of all, and those that no benchmark launches."""
    triton.knobs.cache.dir = tempfile.mkdtemp()
    JITFunction.run = compiled
    attention.run_forward = lambda *_: None  # ours, and what it writes is not looked at
    sources = Sources("triton")
    for name in names or BENCHMARKS:
        shape = small_shape(name, PARTIAL_TILES, attention=(256, 64))
        for dtype in BENCHMARKS[name].gpu:
            print(name, dtype, compile_one(sources, BENCHMARKS[name], shape, dtype), flush=True)
    if names:
        return
    others(sources)
    x = np.ones(64, np.float32)
    launching._launcher(kernel_for_triton(launching.five_arguments), (x, x, x))()
    print("launch", count)


if __name__ == "__main__":
    main(sys.argv[1:])
