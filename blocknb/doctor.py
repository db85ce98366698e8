"""`blocknb doctor`: lists which parts that blocknb can use are installed on this machine, and how to install the missing ones.

Each part is examined separately and may be missing. On a CPU, kernels need only llvmlite. The fix of a missing part names the extra of the
package that fits the driver. This file imports only the standard library. The Makefile runs it as a script before the installation, to
choose between CUDA 12, CUDA 13 and neither.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

OLDEST_CUDA = 12  # the oldest major version with CuPy wheels, hence with an extra
LLVMLITE = "0.50"  # LLVM 22, whose text format the code generators write


@dataclass(frozen=True, slots=True)
class Finding:
    """One part: a description of what was found (None: nothing), and how to install or repair it ("" if it works)."""

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
    """The NVIDIA driver: the newest CUDA version that it supports, its own version (None if unknown), and its GPUs.

    `error` is the message of a failed initialization.
    """

    cuda: tuple[int, int]
    version: str | None = None
    devices: tuple[InstalledGpu, ...] = ()
    error: str = ""


def own_version() -> str:
    try:
        return importlib.metadata.version("blocknb")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def find_driver() -> InstalledDriver | None:
    """Queries libcuda directly, which needs neither nvidia-smi nor CuPy. None without a driver."""
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
        return InstalledDriver(newest, kernel_module(), error=(text.value or b"unknown error").decode())
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
    """The driver's own version, such as 580.95.05, from Linux's /proc. None on other systems."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"\b(\d{3,}\.\d+(\.\d+)?)\b", text)
    return found[1] if found else None


def fitting_extra(driver: InstalledDriver | None) -> str:
    """The extra of the package for this machine: CuPy and ptxas for the driver's CUDA version, or ptxas alone."""
    if driver is None or not driver.devices or driver.cuda[0] < OLDEST_CUDA:
        return "toolchain"
    return "cuda12" if driver.cuda[0] == 12 else "cuda13"


def install(extra: str) -> str:
    return f'pip install "blocknb[{extra}]"'


def examine() -> list[Finding]:
    """All findings; a part comes after the parts that it depends on."""
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
        return Finding("GPU", None, "not required: kernels run on the CPU, and the card shows code for any GPU")
    names = [f"{d.name} (sm_{d.capability[0]}{d.capability[1]}, {d.memory / 2**30:.0f} GiB)" for d in driver.devices]
    same = len(names) if len(set(names)) == 1 else 0
    return Finding("GPU", f"{same} x {names[0]}" if same > 1 else "; ".join(names))


def examine_driver(driver: InstalledDriver | None) -> Finding:
    if driver is None:
        return Finding("driver", None, "required for an NVIDIA GPU: install the driver (pip installs the rest of CUDA)")
    found = f"{driver.version + ', ' if driver.version else ''}CUDA {driver.cuda[0]}.{driver.cuda[1]}"
    if driver.error:
        fix = "check that a GPU is visible in this environment"
        return Finding("driver", f"{found}, but its initialization failed: {driver.error}", fix)
    old = driver.cuda[0] < OLDEST_CUDA
    return Finding("driver", found, f"install a driver for CUDA {OLDEST_CUDA} or newer" if old else "")


def examine_cupy(driver: InstalledDriver | None, extra: str) -> Finding:
    """Whether CuPy can be imported, and whether the driver supports the CUDA version that it was built for."""
    try:
        import cupy
    except ImportError as error:
        why = None if error.name == "cupy" else f"cannot be imported: {error}"
        if extra == "toolchain":
            return Finding("CuPy", why, "" if why is None else "uninstall it, or install a GPU driver")
        with_torch = "; launches on torch tensors need none" if importlib.util.find_spec("torch") else ""
        return Finding("CuPy", why, install(extra) + with_torch)
    major, minor = divmod(cupy.cuda.runtime.runtimeGetVersion() // 10, 100)
    newer = driver is not None and driver.devices and major > driver.cuda[0]
    fix = f"newer than the driver: pip uninstall cupy-cuda{major}x; {install(extra)}" if newer else ""
    return Finding("CuPy", f"{cupy.__version__}, CUDA {major}.{minor}", fix)


def examine_toolchain(extra: str) -> list[Finding]:
    """The copies of ptxas and nvdisasm that the compiler finds, in the order of the search, and which ptxas it uses for sm_90a."""
    from blocknb.codegen.toolchain import candidates, choose_ptxas, find_nvdisasm, how_to_get
    from blocknb.target import Target

    target = Target.parse("sm_90a")
    choice = choose_ptxas(target)
    findings = []
    for name, tool in (("ptxas", choice.tool), ("nvdisasm", find_nvdisasm(target))):
        copies = [f"{t.number} ({t.origin})" for t in candidates(name)]
        fix = "" if tool else install(extra) if sys.platform == "linux" else how_to_get(name)
        if fix and copies:
            fix = f"{target} needs a newer version: {fix}"
        findings.append(Finding(name, ", ".join(copies) or None, fix))
    if choice.tool:
        used = f"uses {choice.tool.number} ({choice.tool.origin}): {choice.reason}"
        fix = "" if choice.loads or extra == "toolchain" else f"get a ptxas that fits the driver: {install(extra)}"
        findings[0] = Finding("ptxas", f"{findings[0].found}; {used}", fix)
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

    sources = Path(__file__).parents[1] / "labextension" / "src"
    found, fix = (
        installed(),
        "make lab builds it" if sources.is_dir() else "pip install --force-reinstall --no-deps blocknb",
    )
    if found is None:
        return Finding("lab extension", None, fix)
    version, folder = found
    same = version == own_version()
    return Finding("lab extension", f"{version} ({folder})", "" if same else f"blocknb is {own_version()}: {fix}")


def render(findings: list[Finding]) -> str:
    """The findings as text: one line per part, followed by a line with its fix if it has one."""
    width = max(len(finding.name) for finding in findings)
    lines = [f"blocknb {own_version()}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"]
    for finding in findings:
        lines.append(f"  {finding.name:<{width}}  {finding.found or 'missing'}")
        if finding.fix:
            lines.append(f"  {'':<{width}}  -> {finding.fix}")
    return "\n".join(lines)


def render_failures() -> str:
    """The optimizations that failed on this machine and were left out, one per line."""
    from blocknb.runtime.failures import recorded

    lines = [f"  {line}" for line in recorded()]
    return "\n".join(["optimizations that failed and were left out:", *(lines or ["  none"])])


if __name__ == "__main__":
    # The Makefile reads the name of the fitting extra before the installation.
    print(fitting_extra(find_driver()))
