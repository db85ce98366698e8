"""The second run of ptxas for a kernel of which it has kept nearly all values in memory, with recorded logs instead of the tool."""

from __future__ import annotations

from typing import Any

import pytest

from blocknb.codegen import worker

PTX = ".version 8.8\n.target sm_90a\n.visible .entry k(\n)\n.reqntid 64\n{\n\tret;\n}\n"
LOG = """    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers"""
GAVE_UP = LOG.format(stack=11776, stores=18562, loads=20688, registers=32)
FITS = LOG.format(stack=1728, stores=2464, loads=2520, registers=255)
SMALL = LOG.format(stack=0, stores=0, loads=0, registers=12)


def assembled(monkeypatch: pytest.MonkeyPatch, logs: list[str], ptx: str = PTX) -> tuple[dict[str, Any], list[str]]:
    """The answer of the worker when ptxas writes these logs in turn, and the texts that ptxas got."""
    seen: list[str] = []

    def tool(arguments: list[str], source: bytes, suffix: list[str]) -> tuple[int, bytes, str]:
        seen.append(source.decode())
        return 0, f"cubin {len(seen)}".encode(), logs[len(seen) - 1]

    monkeypatch.setattr(worker, "run_tool", tool)
    return worker._assemble(ptx, {"ptxas": "ptxas", "arch": "sm_90a"}, worker.Clock()), seen


def test_second_plan_replaces_one_that_keeps_all_values_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, seen = assembled(monkeypatch, [GAVE_UP, FITS])
    assert answer == {"cubin": b"cubin 2", "log": FITS}
    assert seen == [PTX, PTX.replace(".reqntid 64\n", ".reqntid 64\n.minnctapersm 1\n")]


def test_first_plan_stays_if_the_second_is_no_better(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, seen = assembled(monkeypatch, [GAVE_UP, GAVE_UP])
    assert answer["cubin"] == b"cubin 1"
    assert len(seen) == 2


@pytest.mark.parametrize("log", [FITS, SMALL, f"{GAVE_UP}\n{SMALL}"])
def test_other_kernels_are_assembled_once(monkeypatch: pytest.MonkeyPatch, log: str) -> None:
    answer, seen = assembled(monkeypatch, [log])
    assert answer == {"cubin": b"cubin 1", "log": log}
    assert len(seen) == 1


def test_kernel_that_promises_the_number_of_programs_is_assembled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ptx = PTX.replace(".reqntid 64\n", ".reqntid 64\n.minnctapersm 2\n")
    assert assembled(monkeypatch, [GAVE_UP], ptx)[1] == [ptx]
