"""The peak rates of a GPU by its data sheet, under the names of triton.testing; `blocknb.profile.ceilings` measures the rates instead.

The tables hold the operations per clock of one multiprocessor (CUDA C++ Programming Guide, "Arithmetic Instructions", and NVIDIA's papers
on each architecture). A multiply-add counts as two operations; sparsity is not used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from blocknb.errors import LaunchError, Unsupported
from blocknb.language import types as t
from blocknb.runtime import machine
from blocknb.runtime.arguments import dtype_of

# The rates by compute capability: the operations per clock of one multiprocessor, of tensor cores in fp16, of CUDA cores in fp32, fp16,
# bf16, fp64.
_RATES = {
    70: (1024, 128, 256, 0, 64),
    75: (1024, 128, 256, 0, 4),
    80: (2048, 128, 512, 256, 64),
    86: (1024, 256, 256, 256, 4),
    87: (2048, 256, 512, 256, 4),
    89: (1024, 256, 256, 256, 4),
    90: (4096, 256, 512, 512, 128),
    100: (8192, 256, 512, 512, 128),
    120: (1024, 256, 256, 256, 4),
}
_SIMD = {t.float32: 1, t.float16: 2, t.bfloat16: 3, t.float64: 4}
# The dtypes: the rate on tensor cores relative to fp16, and the first capability that supports it.
_TENSOR = {
    t.float16: (1, 70),
    t.bfloat16: (1, 80),
    t.float32: (0.5, 80),  # as tf32
    t.int8: (2, 75),
    t.uint8: (2, 75),
    t.float8e4nv: (2, 89),
    t.float8e5: (2, 89),
}


def get_dram_gbps(device: int | None = None) -> float:
    """The peak bandwidth of a GPU's memory by its clock and bus width, in GB/s. Raises LaunchError without a GPU."""
    _needs_gpu("get_dram_gbps")
    found = machine.properties(device)
    return found["mem_clock_rate"] * found["mem_bus_width"] * 2 / 1e6 / 8


def get_max_tensorcore_tflops(dtype: Any, clock_rate: float, device: int | None = None) -> float:
    """TFLOP/s (10^12 operations on integers) of a GPU's tensor cores for operands of a dtype at `clock_rate` kHz; fp32 counts as tf32.

    `dtype` is one of the language, torch or NumPy. Raises LaunchError without a GPU, Unsupported for a dtype that its tensor cores lack.
    """
    _needs_gpu("get_max_tensorcore_tflops")
    kind, capability = dtype_of(dtype), _capability(device)
    share, since = _TENSOR.get(kind, (0, 0))
    if not share or capability < since:
        raise Unsupported(f"tensor cores of capability {_point(capability)} do not multiply {kind}")
    return _tflops(_rates(capability)[0] * share, clock_rate, device)


def get_max_simd_tflops(dtype: Any, clock_rate: float, device: int | None = None) -> float:
    """TFLOP/s of a GPU without its tensor cores, for a float dtype at `clock_rate` kHz.

    `dtype` is one of the language, torch or NumPy. Raises LaunchError without a GPU, Unsupported for other dtypes.
    """
    _needs_gpu("get_max_simd_tflops")
    kind, capability = dtype_of(dtype), _capability(device)
    rate = _rates(capability)[_SIMD[kind]] if kind in _SIMD else 0
    if not rate:
        raise Unsupported(
            f"no rate of {kind} is known for capability {_point(capability)}", hint="use fp32, fp16, bf16 or fp64"
        )
    return _tflops(rate, clock_rate, device)


def nvsmi(attrs: Sequence[str]) -> list[int | float]:
    """The numbers that nvidia-smi reports for attributes of the first GPU, such as "clocks.max.sm" or "power.draw".

    Raises LaunchError without a GPU, and for an attribute that is not a number.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise LaunchError("nvsmi needs a GPU, and nvidia-smi is not installed", hint="install an NVIDIA driver")
    command = [program, "-i", "0", f"--query-gpu={','.join(attrs)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        raise LaunchError(f"nvidia-smi does not report {', '.join(attrs)}: {(done.stdout + done.stderr).strip()}")
    try:
        return [_number(text) for text in done.stdout.strip().split(",")]
    except ValueError:
        raise LaunchError(f"nvidia-smi reports no numbers for {', '.join(attrs)}: {done.stdout.strip()}") from None


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _needs_gpu(name: str) -> None:
    if not machine.has_gpu():
        raise LaunchError(f"{name} needs a GPU", hint="do_bench also measures on a CPU")


def _capability(device: int | None) -> int:
    from blocknb.runtime import cuda

    return cuda.target(machine.current_gpu() if device is None else device).capability


def _rates(capability: int) -> tuple[int, ...]:
    """The rates of an architecture, or of the newest known one before it."""
    return _RATES[max(known for known in _RATES if known <= max(capability, min(_RATES)))]


def _tflops(rate: float, clock_rate: float, device: int | None) -> float:
    return rate * machine.properties(device)["multiprocessor_count"] * clock_rate * 1e3 / 1e12


def _point(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"
