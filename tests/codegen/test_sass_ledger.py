"""The machine code of every kernel for sm_90a is what the ledger says: `--full`; a quick run has a sample.

After a change that is meant, `python scripts/sass_ledger.py --update` shows what became better and worse, and writes the ledger.
"""

from __future__ import annotations

import pytest
from ledger import comparison, counters
from ledger.requests import TARGET, named_requests, specimens
from sampling import chosen

from blocknb.codegen.toolchain import PtxasResources, find_ptxas

ONE_IN = 60  # specimens of the quick sample


def check(names: list[str], whole: bool) -> None:
    version, expected = comparison.read()
    tool = find_ptxas(TARGET)
    if tool is None or ".".join(map(str, tool.version)) != version:
        pytest.skip(f"the ledger is that of ptxas {version}, and this machine has {tool}")
    found = dict(counters.counted(named_requests(names)))
    if changes := comparison.changes(expected, found, whole):
        hint = "if the change is meant: python scripts/sass_ledger.py --update"
        pytest.fail("\n".join([*changes, comparison.summary(changes), hint]), pytrace=False)


def test_machine_code_of_a_sample_is_that_of_the_ledger() -> None:
    check([name for name in specimens() if chosen(name, ONE_IN)], whole=False)


@pytest.mark.full
def test_machine_code_of_all_kernels_is_that_of_the_ledger() -> None:
    check(list(specimens()), whole=True)


CODE = """\
    LDC R1, c[0x0][0x28]
    @!P0 LDG.E.128.CONSTANT R4, desc[UR6][R2.64]
    @P0 LDG.E.U16 R5, desc[UR6][R2.64]
    LDG.E R5, desc[UR6][R2.64]
    LDGSTS.E.BYPASS.128 [R7], desc[UR6][R2.64]
    UTMALDG.2D [UR4], [UR6]
    STG.E.64 desc[UR6][R2.64], R4
    @UP0 SYNCS.ARRIVE.TRANS64 RZ, [UR4], R0
    HGMMA.64x128x16.F32 R24, gdesc[UR4], !UPT
    HMMA.16816.F32 R24, R4, R6, R24
    BAR.SYNC.DEFER_BLOCKING 0x0
    REDG.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR6][R2.64], R4
    LDSM.16.M88.4 R4, [R5]
    EXIT"""


def test_a_line_counts_instructions_by_width_and_name() -> None:
    line = counters.line_of(PtxasResources(40, 8, 4, 16, 1024, 1), 512, CODE.split("\n"))
    assert line == (
        "regs 40  spill 12  smem 1536  code 14  mma HGMMA:1,HMMA:1  ldg 16:1,32:1,128:1  stg 64:1  async UTMALDG:1,128:1  "
        "atom REDG:1  lds LDSM:1  bar BAR:1,SYNCS:1"
    )


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("regs 40  code 90", "regs 32  code 90", "better"),
        ("regs 40  code 90", "regs 32  code 91", "worse"),
        ("regs 255  spill 8  code 90", "regs 255  code 120", "better"),
        ("regs 40  ldg 32:4  code 9", "regs 40  ldg 128:1  code 9", "better"),
        ("regs 40  code 9", "refused Unsupported", "worse"),
        ("regs 40  code 9  mma HMMA:2", "regs 40  code 9  mma HGMMA:2", "other"),
    ],
)
def test_a_change_is_better_or_worse_by_its_most_important_counter(before: str, after: str, verdict: str) -> None:
    assert comparison.verdict(before, after) == verdict
    back = {"better": "worse", "worse": "better", "other": "other"}[verdict]
    assert comparison.verdict(after, before) == back


def test_changes_name_new_and_missing_kernels_and_the_file_keeps_its_lines(tmp_path) -> None:
    before, after = {"a x": "regs 8", "b x": "regs 9"}, {"b x": "regs 10", "c x": "regs 1"}
    found = comparison.changes(before, after, whole=True)
    assert [text.split()[0:2] for text in found] == [["worse", "b"], ["new", "c"], ["gone", "a"]]
    assert comparison.summary(found) == "1 worse, 1 new, 1 gone"
    assert comparison.changes(before, {"b x": "regs 9"}, whole=False) == []
    comparison.write("13.5.37", before, tmp_path / "ledger.txt")
    assert comparison.read(tmp_path / "ledger.txt") == ("13.5.37", before)
