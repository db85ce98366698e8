"""Runs a sample of the CPU tests on an emulated 64-bit Arm machine: `python scripts/test_aarch64.py`, or `make test-aarch64`.

QEMU emulates the processor for one process (user mode), and passes system calls to this kernel. The script builds a folder with a Python
for Arm. QEMU and Python come from Debian's packages. NumPy, llvmlite and pytest come as wheels for Arm, at the versions of
requirements/toolchain.lock. It needs Debian or Ubuntu with apt-get, and no root. Nothing outside of the folder changes. The emulated Python
is slow: 250 tests take half an hour. A stable hash chooses one test in `--one-in`; names of tests or files run all of them:

    python scripts/test_aarch64.py tests/cpu/test_cpu_casts.py -k fp16
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zlib import crc32

ROOT = Path(__file__).resolve().parents[1]
#: The packages that the tests of the CPU need: nothing of Jupyter, CUDA or PyTorch. Tests that import those fail or are skipped.
WHEELS = {
    *("execnet", "hypothesis", "iniconfig", "llvmlite", "ml-dtypes", "numpy", "packaging", "platformdirs"),
    *("pluggy", "pygments", "pytest", "pytest-xdist", "sortedcontainers"),
}
DEBIAN = ("python3", "libstdc++6", "zlib1g")
TESTS = ("cpu", "language", "matrix", "runtime", "zoo", "codegen/test_llvm.py", "test_ready_made_rows.py")
ONE_IN = 16
SAMPLE = "BLOCKNB_ARM_SAMPLE"  # for `pytest_collection_modifyitems`, in the emulated process


def run(*command: str | Path, **options: object) -> None:
    """Runs a command, and stops the script with its output if it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nends with status {done.returncode}:\n{done.stdout}{done.stderr}")


def install_qemu(folder: Path) -> Path:
    """The emulator of this system, or that of Debian's package, unpacked into the folder."""
    for name in ("qemu-aarch64-static", "qemu-aarch64"):
        if found := shutil.which(name):
            return Path(found)
    qemu = folder / "qemu" / "usr" / "bin" / "qemu-aarch64-static"
    if not qemu.exists():
        place = folder / "qemu"
        place.mkdir(parents=True, exist_ok=True)
        run("apt-get", "download", "qemu-user-static", cwd=place)
        unpack(place, place)
        for other in qemu.parent.iterdir():  # the package has an emulator of each processor: 370 MB
            if other != qemu:
                other.unlink()
    return qemu


def unpack(packages: Path, place: Path) -> None:
    """Unpacks all Debian packages of a folder, without their scripts."""
    for package in sorted(packages.glob("*.deb")):
        run("dpkg-deb", "-x", package, place)
        package.unlink()


def install_python(folder: Path) -> Path:
    """Debian's Python for Arm with its libraries, unpacked into the folder. apt-get keeps its state there, too."""
    system = folder / "system"
    if not (system / "usr" / "bin" / "python3").exists():
        state, cache = folder / "apt", folder / "apt" / "cache"
        for place in (state / "lists" / "partial", cache / "archives" / "partial", system):
            place.mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        settings = {
            "APT::Architecture": "arm64",
            "APT::Architectures::": "arm64",
            "APT::Sandbox::User": "",
            "Dir::State": state,
            "Dir::State::status": state / "status",
            "Dir::Cache": cache,
        }
        apt = ["apt-get", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
        subprocess.run([*apt, "update"], capture_output=True, check=False)  # a source without arm64 is no failure
        run(*apt, "install", "-y", "--download-only", "--no-install-recommends", *DEBIAN)
        unpack(cache / "archives", system)
    return Path(os.path.realpath(system / "usr" / "bin" / "python3"))


def install_wheels(folder: Path, python: Path) -> None:
    """The packages of WHEELS for Arm, at the versions of the lock file, in the folder of Debian's Python for local packages."""
    version = re.search(r"3\.\d+", python.name)
    assert version, f"{python} names no version"
    site = folder / "system" / "usr" / "local" / "lib" / python.name / "dist-packages"
    if not site.exists():
        lock = (ROOT / "requirements" / "toolchain.lock").read_text()
        blocks = re.findall(r"^[a-z].*(?:\n .*)*", lock, re.MULTILINE)
        chosen = [block for block in blocks if block.partition("==")[0] in WHEELS]
        (folder / "wheels.lock").write_text("\n".join(chosen) + "\n")
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or sys.exit(
            "pip install uv"
        )
        platform = ("--python-platform", "aarch64-manylinux_2_28", "--python-version", version[0])
        source = ("--only-binary", ":all:", "--no-deps", "--require-hashes", "-r", folder / "wheels.lock")
        run(uv, "pip", "install", "-q", *platform, "--target", folder / "site.part", *source)
        site.parent.mkdir(parents=True, exist_ok=True)
        (folder / "site.part").rename(site)


def launcher(folder: Path, qemu: Path, python: Path) -> Path:
    """A script that starts the emulated Python. Python takes it for itself, so workers start emulated, too: Linux cannot execute Arm's
    programs itself."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{qemu}" -L "{folder / "system"}" -E PYTHONEXECUTABLE="{path}" "{python}" "$@"\n')
    path.chmod(0o755)
    return path


def environment(folder: Path, one_in: int) -> dict[str, str]:
    """The environment of the emulated process: this tree, and caches of its own."""
    return os.environ | {
        "PYTHONDONTWRITEBYTECODE": "",  # emulated, compiling the modules takes minutes
        "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}",
        "PYTHONPYCACHEPREFIX": str(folder / "pycache"),
        "BLOCKNB_CACHE_DIR": str(folder / "cache"),
        SAMPLE: str(one_in),
    }


def pytest_collection_modifyitems(config, items) -> None:  # type: ignore[no-untyped-def]
    """In the emulated process: keeps a share of the tests."""
    one_in = int(os.environ[SAMPLE])
    kept: dict[bool, list[object]] = {True: [], False: []}
    for item in items:
        kept[crc32(item.nodeid.encode()) % one_in == 0].append(item)
    items[:] = kept[True]
    config.hook.pytest_deselected(items=kept[False])


def main() -> int:
    """Installs what is missing, and runs the tests; the exit status is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "aarch64", help="where the emulated system is")
    parser.add_argument("--one-in", type=int, default=ONE_IN, metavar="N", help=f"run one test in N ({ONE_IN})")
    parser.add_argument(
        "--python", action="store_true", help="start the emulated Python with the other arguments, not pytest"
    )
    options, arguments = parser.parse_known_args()
    folder = options.folder.resolve()
    qemu, python = install_qemu(folder), install_python(folder)
    install_wheels(folder, python)
    command = [str(launcher(folder, qemu, python))]
    named = any(not word.startswith("-") and Path(word.partition("::")[0]).exists() for word in arguments)
    if not options.python:
        tests = [] if named else [str(ROOT / "tests" / name) for name in TESTS]
        command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "test_aarch64", *arguments, *tests]
    else:
        command += arguments
    return subprocess.run(command, env=environment(folder, 1 if named else options.one_in), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
