"""Times and checks kernels, under the names of triton.testing: `do_bench`, `perf_report`, `assert_close`."""

from blocknb.runtime.unwritten import uninitialized
from blocknb.testing.benching import do_bench, do_bench_cudagraph
from blocknb.testing.check import assert_close
from blocknb.testing.limits import get_dram_gbps, get_max_simd_tflops, get_max_tensorcore_tflops, nvsmi
from blocknb.testing.report import Benchmark, Mark, perf_report

__all__ = [
    "Benchmark",
    "Mark",
    "assert_close",
    "do_bench",
    "do_bench_cudagraph",
    "get_dram_gbps",
    "get_max_simd_tflops",
    "get_max_tensorcore_tflops",
    "nvsmi",
    "perf_report",
    "uninitialized",
]
