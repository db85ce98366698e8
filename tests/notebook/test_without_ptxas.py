"""The card where there is no ptxas, as on macOS. PTX is there, and the SASS tab says why it is empty and what to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import blocknb
import blocknb.language as tl
from blocknb import doctor
from blocknb.codegen import toolchain
from blocknb.notebook.sections import code_sections


@pytest.fixture
def without_tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which no search finds ptxas or nvdisasm."""
    monkeypatch.setattr(toolchain, "_search", lambda name: iter(()))
    toolchain.forget()
    yield
    toolchain.forget()


@blocknb.kernel
def halved(x, BLOCK: tl.constexpr):
    at = x + tl.arange(0, BLOCK)
    tl.store(at, tl.load(at) * 0.5)


@pytest.mark.usefixtures("without_tools")
@pytest.mark.parametrize(
    ("system", "fix"),
    [("linux", "pip install 'blocknb[toolchain]'"), ("darwin", "NVIDIA has no ptxas for macOS; blocknb on Linux")],
)
def test_the_sass_tab_says_why_it_is_empty(system: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.sys, "platform", system)
    found = {made.key: made for made in code_sections(halved.trace("*fp32", BLOCK=256), "halved", "code")}
    assert ".target sm_90a" in "\n".join(line.text for line in found["ptx"].lines)
    (line,) = found["sass"].lines
    assert line.text.startswith("SASS needs ptxas, and there is none for sm_90a here: ")
    assert fix in line.text
    assert found["sass"].detail == "not assembled"


@pytest.mark.usefixtures("without_tools")
def test_doctor_on_macos_recommends_no_package_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.sys, "platform", "darwin")
    findings = doctor.examine_toolchain("toolchain")
    assert [finding.found for finding in findings] == [None, None]
    assert all("for macOS" in finding.fix and "pip install" not in finding.fix for finding in findings)
