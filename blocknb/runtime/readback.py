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

#: What a thread on the CPU is said to need of registers: a 32nd part of a warp's share of a nominal multiprocessor, so that formulas of
#: occupancy give at least one program a core.
CPU_REGISTERS = NOMINAL_REGISTERS // NOMINAL_WARP // 32
#: What `metadata.shared` tells of a program that uses no shared memory: such formulas divide by it.
LEAST_SHARED = 1
#: What `metadata.num_stages` tells where nobody named a number, as in Triton.
STAGES = 3


class Texts(Mapping[str, Any]):
    """`asm`: "source", "ttir" (the tile IR), "ttgir" (the IR that code is generated from), "llir", "ptx", "cubin", "sass" as far as
    they exist, and under our names "llvm", "object" and "assembly"."""

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
            case "sass" if "cubin" in trace.artifacts:
                return str(trace.sass)
            case "assembly" if "object" in trace.artifacts:
                return trace.assembly
        if key in trace.artifacts:
            return trace.artifacts[key]
        hint = (
            '; it was compiled for the CPU: .retarget("sm_90a").asm has it' if key in ("ptx", "cubin", "sass") else ""
        )
        raise KeyError(f"{trace.name} has no {key!r}, only {', '.join(self._keys())}{hint}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())


@dataclass(frozen=True)
class Metadata:
    """Triton's record of a compiled kernel. `shared` is bytes of shared memory a program, and at least 1."""

    name: str
    target: GPUTarget
    shared: int
    num_warps: int
    num_stages: int
    num_ctas: int = 1
    cluster_dims: tuple[int, int, int] = (1, 1, 1)


@dataclass(frozen=True)
class Specialization:
    """What `@jit(repr=...)` is called with: the kernel's `fn` and the constants and signature it was compiled for."""

    fn: Any
    constants: Mapping[str, Any]
    signature: Mapping[str, str]
