"""Assembles the PTX of many kernels in one run of ptxas: `merge_ptx` makes one module of several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from blocknb.codegen.llvm import shared
from blocknb.codegen.toolchain import PtxasResources, _numbers, find_ptxas, read_ptxas_log
from blocknb.errors import CompilerBug
from blocknb.target import Target

_HEADER = r"(?m)^\.(version|target|address_size)\s+(.*?)\s*$"
# Directives for debugging, and names that another module may define differently.
_DEBUG = r"(?m)^\s*\.(?:loc|file)\s.*$|^\s*\.section\s[^{]*\{[^}]*\}"
_ENTRY = r"\.entry\s+([\w$]+)"
_GLOBAL = r"(?m)^(?:\.(?:visible|extern|weak|common)\s+)*\.(?:global|shared|const)\s[^\n=;(]*?([\w$]+)\s*(?:\[[^\n\]]*\]\s*)*(?:=|;)"


def merge_ptx(modules: Sequence[str]) -> str:
    """One PTX module of several for the same target: one header, globals renamed apart, no line information.

    Raises ValueError if targets differ or two modules define the same kernel.
    """
    versions, targets, bodies = set(), set(), []
    kernels: set[str] = set()
    for number, text in enumerate(modules):
        header = dict(re.findall(_HEADER, text))
        versions.add(_numbers(header["version"]))
        targets.add(re.sub(r",\s*debug", "", header["target"]))
        names = set(re.findall(_ENTRY, text))
        if both := names & kernels:
            raise ValueError(f"kernel {sorted(both)[0]!r} is defined twice")
        kernels |= names
        body = re.sub(_DEBUG, "", re.sub(_HEADER, "", text))
        if shared := set(re.findall(_GLOBAL, body)):
            pattern = r"(?<![\w$.%])(" + "|".join(map(re.escape, sorted(shared, key=len, reverse=True))) + r")(?![\w$])"
            body = re.sub(pattern, rf"\1_m{number}", body)
        bodies.append(body)
    if len(targets) != 1:
        raise ValueError(f"modules for different targets: {sorted(targets)}")
    version = ".".join(map(str, max(versions)))
    return f".version {version}\n.target {targets.pop()}\n.address_size 64\n" + "\n".join(bodies)


@dataclass(frozen=True)
class Assembly:
    """Several kernels assembled at once: the cubin, resources by kernel, warnings."""

    cubin: bytes
    resources: dict[str, PtxasResources]
    warnings: tuple[str, ...]


def assemble_many(modules: Sequence[str], target: Target) -> Assembly:
    """Assembles the PTX of many kernels, all for one target, in one run of ptxas (most of a small kernel's time is its start).

    Raises CompilerBug with ptxas's message if it refuses one, and ValueError as `merge_ptx` does.
    """
    tool = find_ptxas(target)
    if tool is None:
        raise CompilerBug(f"there is no ptxas for {target} on this machine", hint="pip install 'blocknb[toolchain]'")
    job = {"kind": "assemble", "ptx": merge_ptx(modules), "arch": target.arch, "ptxas": str(tool.path)}
    answer = shared().wait(shared().submit(job))
    return Assembly(answer["cubin"], *read_ptxas_log(answer["log"]))
