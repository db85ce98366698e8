"""Finds NVIDIA's ptxas and nvdisasm, and parses the log of ptxas.

Candidates, in order, are the tool that a person names (`BLOCKNB_PTXAS`, `BLOCKNB_NVDISASM`), those that pip installed, and the one on PATH.
The one of a CUDA toolkit, and a second named one (`BLOCKNB_PTXAS12`), follow. The first one that is new enough for the generated PTX, and
not too new (13 dropped sm_70), is used. A driver does not load the cubins of a newer major version of CUDA ("CUDA Compatibility",
NVIDIA). With a driver, a ptxas of a major version that it supports therefore comes first, unless a person names another. The names of
dist-info folders give the versions of pip's tools, so this module starts no process for them. It runs a system's tool once to get its
version.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from blocknb.target import Target


@dataclass(frozen=True)
class Tool:
    """A program found: `name` (ptxas, nvdisasm), `path`, `origin` (an environment variable, "PyPI", "PATH", "toolkit")."""

    name: str
    path: str
    origin: str
    known_version: tuple[int, ...] = ()

    @property
    def version(self) -> tuple[int, ...]:
        """The version, such as (13, 0, 88); empty if it is not known. Runs the program if pip's metadata does not have it."""
        return self.known_version or _ask_version(self.path)

    @property
    def number(self) -> str:
        """The version as text, such as "13.0.88"."""
        return ".".join(map(str, self.version)) or "unknown version"

    def __str__(self) -> str:
        return f"{self.name} {self.number} ({self.origin})"


@dataclass(frozen=True)
class PtxasResources:
    """The resources of one kernel in the log of ptxas: registers per thread, bytes of stack and spills per thread, static shared bytes,
    barriers."""

    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    shared: int = 0
    barriers: int = 0


# The CUDA release that brought a version of the PTX ISA (PTX ISA, "Release Notes").
_CUDA_OF_PTX = {(8, 0): (12, 0), (8, 1): (12, 1), (8, 6): (12, 7), (8, 7): (12, 8), (8, 8): (12, 9), (9, 0): (13, 0)}
# Folders under site-packages/nvidia, with the wheels that fill them.
_WHEELS = {
    "ptxas": {"cu13/bin": "nvidia_cuda_nvcc", "cuda_nvcc/bin": "nvidia_cuda_nvcc_cu12"},
    "nvdisasm": {"cu13/bin": "nvidia_cuda_nvdisasm", "cuda_nvdisasm/bin": "nvidia_cuda_nvdisasm_cu12"},
}


@dataclass(frozen=True)
class PtxasChoice:
    """The ptxas for a target (None if there is none), and why it is preferred. `loads` is False if this machine's driver supports only
    older major versions of CUDA."""

    tool: Tool | None
    reason: str = ""
    loads: bool = True


def find_ptxas(target: Target) -> Tool | None:
    """The ptxas that can assemble our PTX for the target; None if there is none (the driver may do it then)."""
    return choose_ptxas(target).tool


@functools.cache
def choose_ptxas(target: Target) -> PtxasChoice:
    """The ptxas for a target, with the reason. It runs the tools of a system until one fits."""
    least = _CUDA_OF_PTX[target.ptx_version]
    before = (13,) if target.capability < 75 else (1000,)
    able = (tool for tool in _search("ptxas") if least <= tool.version[:2] < before)
    first = next(able, None)
    if first is None:
        return PtxasChoice(None)
    newest = driver_cuda()
    loads = newest is None or first.version[0] <= newest
    if first.origin == "BLOCKNB_PTXAS":
        return PtxasChoice(first, "BLOCKNB_PTXAS names it", loads)
    if newest is None:
        return PtxasChoice(first, "the first that fits, and no driver is present")
    if loads:
        return PtxasChoice(first, f"the first that fits; the driver supports CUDA {newest}")
    if older := next((tool for tool in able if tool.version[0] <= newest), None):
        return PtxasChoice(older, f"the driver supports CUDA {newest}, and loads no code of {first}")
    return PtxasChoice(
        first, f"no other fits, but the driver supports only CUDA {newest}, and loads no code of it", False
    )


@functools.cache
def driver_cuda() -> int | None:
    """The newest major version of CUDA that this machine's driver supports; None without a driver. It does not initialize CUDA."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    return None if library.cuDriverGetVersion(ctypes.byref(number)) else number.value // 1000 or None


@functools.cache
def find_nvdisasm(target: Target) -> Tool | None:
    """The nvdisasm that knows the target; None if there is none."""
    before = (13,) if target.capability < 75 else (1000,)
    return next((tool for tool in _search("nvdisasm") if tool.version[:2] < before), None)


@functools.cache
def candidates(name: str) -> tuple[Tool, ...]:
    """Every copy of ptxas or nvdisasm on this machine, the preferred first."""
    seen: dict[str, Tool] = {}
    for tool in _search(name):
        seen.setdefault(tool.path, tool)
    return tuple(seen.values())


def how_to_get(name: str) -> str:
    """The advice where ptxas or nvdisasm is missing. pip has wheels of both for Linux, on x86 and Arm, and NVIDIA has none for macOS."""
    if sys.platform == "linux":
        return "run pip install 'blocknb[toolchain]'"
    if sys.platform == "darwin":
        return f"NVIDIA has no {name} for macOS; blocknb on Linux shows SASS, in a container, too"
    return f"install NVIDIA's CUDA toolkit, and put {name} on PATH"


def forget() -> None:
    """Clears the cached tools, so that newly installed ones are found."""
    for function in (choose_ptxas, driver_cuda, find_nvdisasm, candidates, installed, _ask_version):
        function.cache_clear()


def _search(name: str) -> Iterator[Tool]:
    executable = name + (".exe" if os.name == "nt" else "")
    if named := os.environ.get(variable := f"BLOCKNB_{name.upper()}"):
        yield Tool(name, named, variable)
    for folder in dict.fromkeys(sys.path):
        for place, wheel in _WHEELS[name].items():
            path = os.path.join(folder, "nvidia", place, executable)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                yield Tool(name, path, "PyPI", _numbers(installed().get(wheel, "")))
    import shutil

    if found := shutil.which(name):
        yield Tool(name, found, "PATH")
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root and os.access(path := os.path.join(root, "bin", executable), os.X_OK):
            yield Tool(name, path, "toolkit")
    # A second ptxas, for architectures that the first one has dropped.
    if named := os.environ.get(variable := f"BLOCKNB_{name.upper()}12"):
        yield Tool(name, named, variable)


@functools.cache
def installed() -> dict[str, str]:
    """Versions of what pip installed, by name as in dist-info folders ("nvidia_cuda_nvcc"): one listing, no metadata read."""
    versions: dict[str, str] = {}
    for folder in dict.fromkeys(sys.path):
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in names:
            if entry.endswith(".dist-info"):
                name, _, version = entry.removesuffix(".dist-info").partition("-")
                versions.setdefault(name.lower().replace(".", "_"), version)
    return versions


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


@functools.cache
def _ask_version(path: str) -> tuple[int, ...]:
    import subprocess

    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found = re.search(r"\bV(\d+\.\d+\.\d+)", said)
    return _numbers(found[1]) if found else ()


def read_ptxas_log(log: str) -> tuple[dict[str, PtxasResources], tuple[str, ...]]:
    """Reads the output of `ptxas -v`: resources by kernel, and the warnings and performance advice (such as C7514)."""
    resources: dict[str, dict[str, int]] = {}
    warnings: list[str] = []
    kernel = properties = ""
    patterns = {
        "registers": r"Used (\d+) registers",
        "barriers": r"used (\d+) barriers",
        "shared": r"(\d+) bytes smem",
    }
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(.*?)'", line):
            kernel = found[1]
            resources[kernel] = {}
        elif found := re.search(r"Function properties for '?([^\s']+)", line):
            properties = found[1]
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if properties in resources:
                counts = map(int, found.groups())
                resources[properties] |= dict(zip(("stack", "spill_stores", "spill_loads"), counts, strict=True))
        elif kernel and "Used" in line and "registers" in line:
            for name, pattern in patterns.items():
                if found := re.search(pattern, line):
                    resources[kernel][name] = int(found[1])
        elif re.search(r"\bwarning\b|\(C\d{4}\)", line):
            warnings.append(re.sub(r"^ptxas\s*(?:/tmp\S*|/proc\S*)?[,\s]*", "", line).strip())
    return {name: PtxasResources(**counts) for name, counts in resources.items()}, tuple(warnings)
