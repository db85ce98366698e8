"""What this machine has of what blocknb can use, and how to get the rest: `blocknb doctor`.

Every part is examined on its own and may be absent: the one dependency of this file is Python (the Makefile runs it as a
script before anything is installed, to choose between CUDA 12, CUDA 13 and neither). A part that is missing names its fix, the
right extra for the driver that is there. Nothing here is needed to run a kernel on the CPU but llvmlite.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

OLDEST_CUDA = 12  # the oldest major version that CuPy, and so an extra, is made for
LLVMLITE = "0.50"  # LLVM 22; the text that codegen writes is for this version


@dataclass(frozen=True, slots=True)
class Finding:
    """One part: what was found (None: nothing), and how to get or mend it ("" when all is well)."""

    name: str
    found: str | None
    fix: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class InstalledGpu:
    name: str
    capability: tuple[int, int]
    memory: int  # bytes


@dataclass(frozen=True, slots=True)
class InstalledDriver:
    """The NVIDIA driver: the newest CUDA it serves, its own version where the kernel module tells it, and its GPUs.
    `trouble` is what its initialisation said when it failed."""

    cuda: tuple[int, int]
    version: str | None = None
    devices: tuple[InstalledGpu, ...] = ()
    trouble: str = ""


def own_version() -> str:
    try:
        return importlib.metadata.version("blocknb")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def find_driver() -> InstalledDriver | None:
    """Asks libcuda itself, so that neither nvidia-smi nor CuPy is needed. None without a driver."""
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(number)):
        return None
    newest = (number.value // 1000, number.value % 1000 // 10)
    status = cuda.cuInit(0)
    if status:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(status, ctypes.byref(text))
        return InstalledDriver(newest, kernel_module(), trouble=(text.value or b"unknown error").decode())
    cuda.cuDeviceGetCount(ctypes.byref(number))
    return InstalledDriver(newest, kernel_module(), tuple(describe(cuda, index) for index in range(number.value)))


def describe(cuda: ctypes.CDLL, index: int) -> InstalledGpu:
    """Name, compute capability (device attributes 75 and 76) and memory of one GPU."""
    device, major, minor, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    return InstalledGpu(name.value.decode(), (major.value, minor.value), memory.value)


def kernel_module() -> str | None:
    """The driver's own version, such as 580.95.05, as Linux shows it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"\b(\d{3,}\.\d+(\.\d+)?)\b", text)
    return found[1] if found else None


def fitting_extra(driver: InstalledDriver | None) -> str:
    """The extra for this machine: CuPy and assembler of the driver's CUDA, or the assembler alone."""
    if driver is None or not driver.devices or driver.cuda[0] < OLDEST_CUDA:
        return "toolchain"
    return "cuda12" if driver.cuda[0] == 12 else "cuda13"


def install(extra: str) -> str:
    return f'pip install "blocknb[{extra}]"'


def examine() -> list[Finding]:
    """All findings, in the order in which one depends on the other."""
    driver = find_driver()
    extra = fitting_extra(driver)
    return [
        examine_gpu(driver),
        examine_driver(driver),
        examine_cupy(driver, extra),
        *examine_toolchain(extra),
        examine_llvmlite(),
        examine_lab_extension(),
    ]


def examine_gpu(driver: InstalledDriver | None) -> Finding:
    if driver is None or not driver.devices:
        return Finding("GPU", None, "none needed: kernels run on the CPU, and compile for any GPU to be read")
    names = [f"{d.name} (sm_{d.capability[0]}{d.capability[1]}, {d.memory / 2**30:.0f} GiB)" for d in driver.devices]
    same = len(names) if len(set(names)) == 1 else 0
    return Finding("GPU", f"{same} x {names[0]}" if same > 1 else "; ".join(names))


def examine_driver(driver: InstalledDriver | None) -> Finding:
    if driver is None:
        return Finding("driver", None, "to run on an NVIDIA GPU, install its driver; CUDA itself comes from PyPI")
    found = f"{driver.version + ', ' if driver.version else ''}CUDA {driver.cuda[0]}.{driver.cuda[1]}"
    if driver.trouble:
        return Finding(
            "driver", f"{found}, but it does not start: {driver.trouble}", "check that the GPU is visible here"
        )
    if driver.cuda[0] < OLDEST_CUDA:
        return Finding("driver", found, f"install a driver for CUDA {OLDEST_CUDA} or newer")
    return Finding("driver", found)


def examine_cupy(driver: InstalledDriver | None, extra: str) -> Finding:
    """CuPy is there when it imports, and right when it is built for a CUDA that the driver serves."""
    try:
        import cupy
    except ImportError as error:
        why = None if error.name == "cupy" else f"does not import: {error}"
        if extra == "toolchain":
            return Finding("CuPy", why, "" if why is None else "uninstall it, or install a GPU driver")
        return Finding("CuPy", why, install(extra))
    build = cupy.cuda.runtime.runtimeGetVersion()
    found = f"{cupy.__version__}, CUDA {build // 1000}.{build % 1000 // 10}"
    if driver is not None and driver.devices and build // 1000 > driver.cuda[0]:
        return Finding(
            "CuPy", found, f"newer than the driver: pip uninstall cupy-cuda{build // 1000}x; {install(extra)}"
        )
    return Finding("CuPy", found)


def examine_toolchain(extra: str) -> list[Finding]:
    """ptxas and nvdisasm, as the compiler itself looks for them: the preferred copy first, then the others."""
    from blocknb.codegen.toolchain import candidates, find_nvdisasm, find_ptxas
    from blocknb.target import Target

    target = Target.parse("sm_90a")
    findings = []
    for name, find in (("ptxas", find_ptxas), ("nvdisasm", find_nvdisasm)):
        tools = [
            f"{'.'.join(map(str, tool.version)) or 'unknown version'} ({tool.origin})" for tool in candidates(name)
        ]
        fix = "" if find(target) else install(extra)
        findings.append(
            Finding(name, ", ".join(tools) or None, f"none is new enough for {target}: {fix}" if fix and tools else fix)
        )
    return findings


def examine_llvmlite() -> Finding:
    fix = f'pip install "llvmlite=={LLVMLITE}.*"'
    try:
        version = importlib.metadata.version("llvmlite")
    except importlib.metadata.PackageNotFoundError:
        return Finding("llvmlite", None, fix, required=True)
    return Finding("llvmlite", version, "" if version.startswith(f"{LLVMLITE}.") else fix, required=True)


def examine_lab_extension() -> Finding:
    from blocknb.notebook.extension import installed

    found = installed()
    if found is None:
        return Finding("lab extension", None, "pip install --force-reinstall --no-deps blocknb")
    version, folder = found
    fix = (
        ""
        if version == own_version()
        else f"blocknb is {own_version()}: pip install --force-reinstall --no-deps blocknb"
    )
    return Finding("lab extension", f"{version} ({folder})", fix)


def render(findings: list[Finding]) -> str:
    """The findings as a table of text: a line a part, and its fix on a line of its own."""
    width = max(len(finding.name) for finding in findings)
    lines = [f"blocknb {own_version()}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"]
    for finding in findings:
        lines.append(f"  {finding.name:<{width}}  {finding.found or 'missing'}")
        if finding.fix:
            lines.append(f"  {'':<{width}}  -> {finding.fix}")
    return "\n".join(lines)


def render_failures() -> str:
    """The optimizations that failed on this machine and were left out, a line each."""
    from blocknb.runtime.failures import recorded

    lines = [f"  {line}" for line in recorded()]
    return "\n".join(["optimizations that failed and were left out:", *(lines or ["  none"])])


if __name__ == "__main__":
    # For the Makefile, before anything is installed: the extra that fits, and nothing else.
    print(fitting_extra(find_driver()))
