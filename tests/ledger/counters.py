"""What the machine code of a kernel has: `counted` assembles kernels in batches, and gives a line of counters for each.

| counter | meaning |
|---|---|
| regs | registers per thread |
| spill | bytes that a thread stores to local memory and loads from it because it has no register for them |
| smem | bytes of shared memory of a CTA, static and dynamic |
| code | instructions |
| mma | tensor core instructions by name: HGMMA (wgmma) or HMMA, IMMA, ... (mma.sync) |
| ldg, stg | loads and stores of global memory by bits per thread |
| async | LDGSTS (cp.async) by bits per thread, UTMALDG and UTMASTG (TMA) |
| atom | atomic operations on global memory |
| lds, sts | loads and stores of shared memory by bits per thread |
| bar | barriers: BAR of a CTA, SYNCS (mbarriers), and WARPSYNC |
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from blocknb.codegen import gpu, llvm, sass
from blocknb.codegen.batch_assembly import merge_ptx
from blocknb.codegen.toolchain import PtxasResources, find_ptxas, read_ptxas_log
from blocknb.errors import KernelError
from blocknb.runtime.job import Job
from blocknb.runtime.request import Request
from ledger.requests import TARGET

BATCH = 24  # kernels per run of ptxas and nvdisasm
_CODE = re.compile(r"^\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
_MEMORY = {"LDG": "ldg", "LD": "ldg", "STG": "stg", "ST": "stg", "LDS": "lds", "STS": "sts", "LDGSTS": "async"}
_WIDTHS = {"U8": "8", "S8": "8", "U16": "16", "S16": "16", "64": "64", "128": "128", "256": "256"}
_NAMED = {
    **dict.fromkeys(("HGMMA", "IGMMA", "QGMMA", "BGMMA", "HMMA", "IMMA", "QMMA", "DMMA"), "mma"),
    **dict.fromkeys(("UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKPF"), "async"),
    **dict.fromkeys(("BAR", "SYNCS", "WARPSYNC"), "bar"),
    **dict.fromkeys(("LDSM", "STSM"), "lds"),
}  # fmt: skip
_ATOMIC = ("ATOM", "ATOMG", "RED", "REDG")
GROUPS = ("mma", "ldg", "stg", "async", "atom", "lds", "sts", "bar")


@dataclass
class AssembledKernel:
    """A kernel between code generation and assembly: its name in the ledger, its PTX, and its dynamic shared memory."""

    name: str
    entry: str
    ptx: Future[dict[str, Any]]
    shared: int


def counted(requests: Iterable[tuple[str, Request]]) -> Iterator[tuple[str, str]]:
    """The lines of named compilations, by name, in any order; a kernel that the target refuses has the kind of the error.

    Compilations that are the same are done once.
    """
    names: dict[Any, list[str]] = {}  # by compilation
    kinds = {}
    for name, request in requests:
        names.setdefault(request.key, []).append(name)
        kinds.setdefault(names[request.key][0], request)
    for first, line in _counted(kinds):
        for name in names[kinds[first].key]:
            yield name, line


def _counted(requests: Mapping[str, Request]) -> Iterator[tuple[str, str]]:
    batch: list[AssembledKernel] = []
    waiting: list[tuple[list[AssembledKernel], Future[dict[str, Any]]]] = []
    for number, (name, request) in enumerate(requests.items()):
        entry = f"k{number}_" + re.sub(r"\W", "_", request.source.name)
        try:
            batch.append(_generated(name, entry, request))
        except KernelError as error:
            yield name, f"refused {type(error).__name__}"
        if len(batch) == BATCH:
            waiting.append((batch, _assembled(batch)))
            batch = []
    waiting.extend([(batch, _assembled(batch))] if batch else [])
    for kernels, future in waiting:
        yield from _lines(kernels, llvm.shared().wait(future))


def _generated(name: str, entry: str, request: Request) -> AssembledKernel:
    module = gpu.generate((job := Job(request)).front().replace(name=entry), job.target)
    features = {"arch": TARGET.arch, "features": TARGET.features, "select": module.select}
    ptx = llvm.shared().submit({"kind": "ptx", "text": module.text, "opt": 1, "llvm": False, **features})
    return AssembledKernel(name, entry, ptx, module.shared_bytes)


def _assembled(batch: Sequence[AssembledKernel]) -> Future[dict[str, Any]]:
    tool = find_ptxas(TARGET)
    assert tool is not None
    text = merge_ptx([kernel.ptx.result()["ptx"] for kernel in batch])
    return llvm.shared().submit({"kind": "assemble", "ptx": text, "arch": TARGET.arch, "ptxas": str(tool.path)})


def _lines(batch: Sequence[AssembledKernel], answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    resources, _ = read_ptxas_log(answer["log"])
    code: dict[str, list[str]] = {}
    for line in llvm.shared().wait(sass.disassemble(answer["cubin"], TARGET)).lines:
        if line.text.endswith(":") and not line.text.startswith("."):
            code[line.text[:-1]] = found = []
        elif not line.text.startswith(".L_"):
            found.append(line.text)
    for kernel in batch:
        yield kernel.name, line_of(resources[kernel.entry], kernel.shared, code[kernel.entry])


def line_of(used: PtxasResources, shared: int, code: Sequence[str]) -> str:
    """The counters of a kernel that are not zero, in one line."""
    groups = counts(code)
    words = [f"regs {used.registers}"]
    words += [f"spill {used.spill_stores + used.spill_loads}"] if used.spill_stores + used.spill_loads else []
    words += [f"smem {used.shared + shared}"] if used.shared + shared else []
    words.append(f"code {len(code)}")
    for group in GROUPS:
        if found := groups.get(group):
            words.append(
                f"{group} " + ",".join(f"{what}:{count}" for what, count in sorted(found.items(), key=_by_width))
            )
    return "  ".join(words)


def counts(code: Iterable[str]) -> dict[str, Counter[str]]:
    """The counted instructions by group, and in it by width or name."""
    found: dict[str, Counter[str]] = {}
    for line in code:
        if (match := _CODE.match(line)) is None:
            continue
        name, *rest = match[1].split(".")
        if name in _MEMORY:
            width = next((_WIDTHS[part] for part in rest if part in _WIDTHS), "32")
            found.setdefault(_MEMORY[name], Counter())[width] += 1
        elif name in _NAMED:
            found.setdefault(_NAMED[name], Counter())[name] += 1
        elif name in _ATOMIC:
            found.setdefault("atom", Counter())[name] += 1
    return found


def _by_width(item: tuple[str, int]) -> tuple[int, str]:
    return (int(item[0]), "") if item[0].isdigit() else (0, item[0])
