"""Times and checks kernels, under the names of triton.testing: `do_bench`, `perf_report`, `assert_close`."""

from typing import NoReturn

from blocknb.runtime.uninitialized import uninitialized
from blocknb.testing.benching import cuda_graph_without_gc, do_bench, do_bench_cudagraph
from blocknb.testing.check import assert_close
from blocknb.testing.limits import get_dram_gbps, get_max_simd_tflops, get_max_tensorcore_tflops, nvsmi
from blocknb.testing.report import Benchmark, Mark, perf_report

__all__ = [
    "Benchmark",
    "Mark",
    "assert_close",
    "cuda_graph_without_gc",
    "do_bench",
    "do_bench_cudagraph",
    "get_dram_gbps",
    "get_max_simd_tflops",
    "get_max_tensorcore_tflops",
    "nvsmi",
    "perf_report",
    "uninitialized",
]

#: Names of triton.testing that blocknb does not have, with what to use instead.
REFUSED = {
    "cublas": "torch.matmul and cupy.matmul call cuBLAS",
    "cuda_memcheck": "launch with checked=True, which finds accesses outside an array on every device",
    "do_bench_cudagraph_proton": "do_bench_cudagraph measures with a CUDA graph, without a profiler",
    "do_bench_proton": "do_bench measures with CUDA events, without a profiler",
    "set_gpu_clock": "an administrator locks the clocks: nvidia-smi --lock-gpu-clocks; do_bench reports what it measures",
}


def __getattr__(name: str) -> NoReturn:
    if name in REFUSED:
        raise AttributeError(f"blocknb.testing does not have {name}: {REFUSED[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
