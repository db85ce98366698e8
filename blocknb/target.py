"""Compilation targets: `Target.parse("sm_90a")`, `Target.parse("cpu")`, `Target.parse("cpu:haswell")`, `Target.parse("cpu:aarch64")`.

A target is plain data that cache keys, test parameters and notes can use. Tables hold the GPU limits (CUDA C++ Programming Guide,
"Technical Specifications per Compute Capability") and the tested CPUs. Only the name "cpu" queries LLVM for the host CPU.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from blocknb.errors import Unsupported

CLUSTER = 2  # CTAs that share tiles, if a launch asks for clusters (num_ctas)


class UnknownTarget(Unsupported, ValueError):
    """Raised for an unknown target name. The message lists the known names."""


@dataclass(frozen=True)
class Target:
    """A GPU architecture or a CPU.

    `kind` is "cuda" or "cpu"; `arch` LLVM's name ("sm_90a", "znver4"); `features` LLVM's feature string ("+ptx88", "+avx2,+fma").
    `isa` is the instruction set of a CPU, as LLVM's triples name it ("x86_64", "aarch64"), and "" for GPUs.
    `capability` is 90 for sm_90a and 0 for CPUs. `specific` is true if the name ends in "a"; such a target has architecture-specific
    instructions (wgmma on 90a). `max_shared` is the limit of shared memory per CTA, and `shared_per_sm` that per SM, in bytes.
    `max_warps` and `max_ctas` are the limits of resident warps and CTAs per SM, and `registers` is the number of 32-bit registers per
    SM. For CPUs these limits are 0.
    """

    kind: str
    arch: str
    features: str = ""
    isa: str = ""
    capability: int = 0
    specific: bool = False
    warp_size: int = 1
    max_shared: int = 0
    shared_per_sm: int = 0
    max_warps: int = 0
    max_ctas: int = 0
    registers: int = 0

    @staticmethod
    def parse(name: str | Target) -> Target:
        """The target of that name. Raises UnknownTarget with the known names."""
        if isinstance(name, Target):
            return name
        if not isinstance(name, str):
            hint = f"known targets: {', '.join(known())}"
            raise UnknownTarget(f"a target is a name, not of type {type(name).__name__}", hint=hint)
        if name == "cpu":
            return _host()
        if name.startswith("cpu:"):
            return _named_cpu(name.removeprefix("cpu:"))
        if name in _GPUS:
            return _gpu(name)
        raise UnknownTarget(f"unknown target {name!r}", hint=f"known targets: {', '.join(known())}")

    def __str__(self) -> str:
        return self.arch if self.kind == "cuda" else f"cpu:{self.arch}"

    @property
    def llvm_cpu(self) -> str:
        """LLVM's name of a CPU. It calls the baseline of Arm "generic"."""
        return "generic" if self.arch == "aarch64" else self.arch

    @property
    def is_gpu(self) -> bool:
        return self.kind == "cuda"

    @property
    def ptx_version(self) -> tuple[int, int]:
        """The PTX ISA version of the features: (8, 8) for "+ptx88"."""
        digits = self.features.removeprefix("+ptx")
        return (int(digits[:-1]), int(digits[-1]))

    def has(self, feature: str) -> bool:
        """Whether a CPU has an LLVM feature, such as "fma", "avx2" or "avx512f"."""
        return f"+{feature}" in self.features.split(",")

    @property
    def vector_bits(self) -> int:
        """The width of the widest vector register of a CPU, in bits."""
        return 512 if self.has("avx512f") else 256 if self.has("avx2") or self.has("avx") else 128


def known() -> list[str]:
    """All names that `Target.parse` accepts."""
    return [*_GPUS, "cpu", *(f"cpu:{name}" for name in [*_CPUS, *_ARM_CPUS])]


# PTX 8.1 is CUDA 12.1. From sm_90 on, the version is PTX 8.8 (CUDA 12.9), which has all instructions of LLVM 22.
# name: capability, PTX version, KB of shared memory per CTA and per SM, warps and CTAs per SM
_GPUS = {
    "sm_70": (70, 81, 96, 96, 64, 32),
    "sm_75": (75, 81, 64, 64, 32, 16),
    "sm_80": (80, 81, 163, 164, 64, 32),
    "sm_86": (86, 81, 99, 100, 48, 16),
    "sm_87": (87, 81, 163, 164, 48, 16),
    "sm_89": (89, 81, 99, 100, 48, 24),
    "sm_90": (90, 88, 227, 228, 64, 32),
    "sm_90a": (90, 88, 227, 228, 64, 32),
    "sm_100": (100, 88, 227, 228, 64, 32),
    "sm_100a": (100, 88, 227, 228, 64, 32),
    "sm_120": (120, 88, 99, 100, 48, 24),
    "sm_120a": (120, 88, 99, 100, 48, 24),
}

_V2 = "+cx16,+popcnt,+sse3,+sse4.1,+sse4.2,+ssse3"
_V3 = _V2 + ",+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe"
_V4 = _V3 + ",+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl"
# CPUs by name, to show code for other machines and to test code for old ones. The table lists the implied features, because `has`
# needs them and llvmlite does not report them.
_CPUS = {
    "x86-64": "",
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": _V4,
    "haswell": _V3,
    "skylake-avx512": _V4,
    "sapphirerapids": _V4 + ",+avx512bf16,+avx512fp16,+avx512vnni",
    "znver3": _V3,
    "znver4": _V4 + ",+avx512bf16,+avx512vnni",
}

_NEON = "+fp-armv8,+neon"  # the baseline of 64-bit Arm
_V8_2 = _NEON + ",+crc,+dotprod,+fullfp16,+lse,+rdm"
_ARM_CPUS = {
    "aarch64": _NEON,
    "cortex-a72": _NEON + ",+crc",  # Raspberry Pi 4, AWS Graviton 1
    "neoverse-n1": _V8_2,  # AWS Graviton 2, Ampere Altra
    "neoverse-v2": _V8_2 + ",+bf16,+i8mm,+sve,+sve2",  # NVIDIA Grace, AWS Graviton 4
    "apple-m1": _V8_2,
}


@functools.cache
def _gpu(name: str) -> Target:
    capability, ptx, cta_kb, sm_kb, warps, ctas = _GPUS[name]
    return Target(
        kind="cuda",
        arch=name,
        features=f"+ptx{ptx}",
        capability=capability,
        specific=name.endswith("a"),
        warp_size=32,
        max_shared=cta_kb * 1024,
        shared_per_sm=sm_kb * 1024,
        max_warps=warps,
        max_ctas=ctas,
        registers=65536,
    )


@functools.cache
def _named_cpu(name: str) -> Target:
    if name in _ARM_CPUS:
        return Target(kind="cpu", arch=name, features=_ARM_CPUS[name], isa="aarch64")
    if name not in _CPUS:
        raise UnknownTarget(
            f"unknown CPU {name!r}", hint="known CPUs: " + ", ".join(name for name in known() if name.startswith("cpu"))
        )
    return Target(kind="cpu", arch=name, features=_CPUS[name], isa="x86_64")


#: The CPU that "cpu" means instead of the host CPU, or "".
_assumed = ""


def assume_host(name: str) -> None:
    """Makes "cpu" mean the CPU of that name ("x86-64-v2") in this process. The host CPU must have its features.

    Raises UnknownTarget.
    """
    global _assumed
    _named_cpu(name)
    _assumed = name
    _host.cache_clear()


@functools.cache
def _host() -> Target:
    if _assumed:
        return _named_cpu(_assumed)
    import llvmlite.binding as binding

    name, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    isa = instruction_set(binding.get_process_triple())
    if isa == "aarch64":  # LLVM reads /proc/cpuinfo, which containers and emulators may hide; each such CPU has NEON
        features = ",".join(filter(None, [_NEON, features]))
        name = "aarch64" if name == "generic" else name
    return Target(kind="cpu", arch=name, features=features, isa=isa)


def instruction_set(triple: str) -> str:
    """The instruction set of an LLVM triple: "aarch64" for "arm64-apple-darwin23", which is Apple's name for it."""
    first = triple.partition("-")[0]
    return "aarch64" if first == "arm64" else first
