"""Writes requirements/torch-cpu.txt, the lock file of `make test-torch`: requirements/torch.txt without the CUDA libraries.

The build of torch for the CPU is no file of PyPI, so its version and its hash stand here. Where nothing offers that version, pip says so
before any download.
"""

from __future__ import annotations

import re
from pathlib import Path

#: torch 2.13.0+cpu for Python 3.11 on x86-64, 183 MiB.
CPU_BUILD = "sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
LOCKS = Path(__file__).resolve().parent.parent / "requirements"
LEFT_OUT = re.compile("nvidia-|triton|cuda-")


def main() -> None:
    """Reads one lock file and writes the other."""
    head, *packages = re.split(r"\n(?=[a-z])", (LOCKS / "torch.txt").read_text())
    lines = [head.rstrip()]
    for package in packages:
        if not LEFT_OUT.match(package):
            text = package.rstrip()
            lines.append(f"{text.split()[0]}+cpu \\\n    --hash={CPU_BUILD}" if text.startswith("torch==") else text)
    (LOCKS / "torch-cpu.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
