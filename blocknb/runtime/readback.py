"""Triton's attributes of a compiled kernel: `asm`, `metadata`, registers and spills.

A `Texts` holds every text and binary of a compilation under Triton's keys and our own. It prints the texts of IR on first access. A
kernel that ran on the CPU has no PTX; its KeyError explains how to generate some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from blocknb.runtime.machine import NOMINAL_REGISTERS, NOMINAL_WARP, GPUTarget
from blocknb.trace import Trace

#: The nominal number of registers per thread on the CPU. With it, 32 warps share the registers of a nominal multiprocessor, and the usual
#: occupancy formulas give at least one program per core.
CPU_REGISTERS = NOMINAL_REGISTERS // NOMINAL_WARP // 32
#: The value of `metadata.shared` without shared memory. Occupancy formulas divide by it.
LEAST_SHARED = 1
#: The value of `metadata.num_stages` if the launch names no number, as in Triton.
STAGES = 3


class Texts(Mapping[str, Any]):
    """The texts and binaries of a compilation. Triton's keys are "source", "ttir" (the tile IR), "ttgir" (the last IR), "llir", "ptx",
    "cubin" and "sass". blocknb adds "llvm", "object" and "assembly"."""

    def __init__(self, trace: Trace):
        self._trace = trace

    def _keys(self) -> list[str]:
        artifacts = self._trace.artifacts
        more = ["sass"] if "cubin" in artifacts else ["assembly"] if "object" in artifacts else []
        return ["source", "ttir", "ttgir", "llir", *more, *artifacts]

    def __getitem__(self, key: str) -> Any:
        trace = self._trace
        match key:
            case "source":
                return trace.source
            case "ttir":
                return trace.stages[0].text
            case "ttgir":
                return trace.stages[-1].text
            case "llir":
                return trace.artifacts["llvm"]
            case "sass" if "cubin" in trace.artifacts and (listing := trace.sass):
                return listing.text
            case "assembly" if "object" in trace.artifacts:
                return trace.assembly
        if key in trace.artifacts:
            return trace.artifacts[key]
        hint = '; it was compiled for the CPU: use .retarget("sm_90a").asm' if key in ("ptx", "cubin", "sass") else ""
        raise KeyError(f"{trace.name} has no {key!r}, only {', '.join(self._keys())}{hint}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())


@dataclass(frozen=True)
class Metadata:
    """Triton's record of a compiled kernel. `shared` is the bytes of shared memory per program, and at least 1."""

    name: str
    target: GPUTarget
    shared: int
    num_warps: int
    num_stages: int
    num_ctas: int = 1
    cluster_dims: tuple[int, int, int] = (1, 1, 1)


@dataclass(frozen=True)
class Specialization:
    """The argument of `@jit(repr=...)`: the kernel as `fn`, and the constants and the signature of the compilation."""

    fn: Any
    constants: Mapping[str, Any]
    signature: Mapping[str, str]
