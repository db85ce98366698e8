"""docs/design/proofs.md names every pass, as proved or as only tested, and the tests and files that it cites exist."""

from __future__ import annotations

import re
from pathlib import Path

from blocknb.passes import ORDER

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/design/proofs.md").read_text()
TESTS = {path.name for path in (ROOT / "tests").rglob("test_*.py")}


def rows(section: str) -> list[list[str]]:
    """The cells of the tables of a section."""
    part = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in found[2:]]


def test_every_pass_is_listed_as_proved_or_only_tested():
    names = {entry.split(".")[1] for entry in ORDER}
    words = set(
        re.findall(r"`(\w+)`", " ".join(cell for s in ("Proved", "Only tested") for row in rows(s) for cell in row))
    )
    assert not names - words, (
        f"docs/design/proofs.md does not say how these passes are checked: {sorted(names - words)}"
    )


def test_each_row_cites_tests_that_exist():
    for section in ("Proved", "Only tested"):
        for row in rows(section):
            cited = re.findall(r"(test_\w+\.py)`", row[-1])
            assert cited and set(cited) <= TESTS, row


def test_files_that_the_list_names_exist():
    paths = re.findall(r"`((?:tests|analysis|passes|layouts)/[\w/]+\.py)`", TEXT)
    assert len(paths) > 8
    for path in paths:
        assert (ROOT / path).exists() or (ROOT / "blocknb" / path).exists(), path


def test_proofs_of_the_list_are_in_the_folder_of_proofs():
    proofs = {path.name for path in Path(__file__).parent.glob("test_*_proofs.py")} | {"test_conversion_proofs.py"}
    cited = {name for row in rows("Proved") for name in re.findall(r"(test_\w+\.py)`", row[-1])}
    assert cited == proofs
