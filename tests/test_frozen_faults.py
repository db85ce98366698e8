"""scripts/faults.py: the frozen faults follow the code: found in their module, found where they moved to, or named as gone."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
MOST_GONE = 5  # of 100 faults; more would make the measurement too coarse

ROWS = [
    {"part": "seen", "module": "blocknb/passes/near.py", "line": "if a < b:", "change": "Lt -> LtE"},
    {
        "part": "held-out",
        "module": "blocknb/passes/near.py",
        "line": "return a + 7  # old comment",
        "change": "Add -> Sub",
    },
    {"part": "held-out", "module": "blocknb/passes/near.py", "line": "return a - b - a", "change": "Sub -> Add"},
    {"part": "seen", "module": "blocknb/passes/deleted.py", "line": "return twice == b", "change": "Eq -> NotEq"},
]
NEAR = "def f(a, b):\n    if a < b:\n        return a + 7  # new comment\n    return twice != b\n"
FAR = "def g(b, twice):\n    return twice == b\n"


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield runpy.run_path(str(SCRIPTS / "faults.py"))
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture
def small(script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script on a package of two modules, with the faults of ROWS."""
    for name, text in (("passes/near.py", NEAR), ("runtime/far.py", FAR)):
        path = tmp_path / "blocknb" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    within = script["faults"].__globals__
    monkeypatch.setitem(within, "ROOT", tmp_path)
    monkeypatch.setitem(within, "rows", lambda: ROWS)
    within["_lines"].cache_clear()
    yield script
    within["_lines"].cache_clear()


def test_faults_that_moved_are_found_and_those_that_are_gone_are_named(
    small: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found, gone = small["faults"]()
    assert [(fault.number, fault.module.as_posix(), fault.line) for fault in found] == [
        (0, "blocknb/passes/near.py", 2),
        (1, "blocknb/passes/near.py", 3),
        (3, "blocknb/runtime/far.py", 2),
    ]
    assert [fault.moved for fault in found] == [False, False, True]
    assert gone == 1
    said = capsys.readouterr().out
    assert "gone: 2 blocknb/passes/near.py: Sub -> Add" in said
    assert "moved: 3 blocknb/passes/deleted.py -> blocknb/runtime/far.py:2" in said


def test_parts_and_numbers_select_faults_and_count_only_their_own_gone_ones(small: dict[str, Any]) -> None:
    assert [len(small["faults"]("seen")[0]), small["faults"]("seen")[1]] == [2, 0]
    assert [len(small["faults"]("held-out")[0]), small["faults"]("held-out")[1]] == [1, 1]
    assert [fault.number for fault in small["faults"]("", [1, 2])[0]] == [1]
    assert small["faults"]("", [1, 2])[1] == 1


def test_the_summary_counts_gone_faults_apart(small: dict[str, Any]) -> None:
    assert small["summary"](49, 2, 0) == "47 of 49 faults found"
    assert small["summary"](49, 2, 1).startswith("47 of 49 faults found; 1 more are gone")


def test_a_line_that_several_other_modules_have_is_gone(small: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "blocknb" / "passes" / "twin.py").write_text(FAR)
    assert [fault.number for fault in small["faults"]()[0]] == [0, 1]


def test_gone_faults_are_drawn_again_by_chance_into_their_part_and_the_others_stay(small: dict[str, Any]) -> None:
    first, second, drawn, moved = small["follow"](ROWS, 1)
    assert first == ROWS[0]
    assert second == ROWS[1] | {"line": "return a + 7  # new comment"}
    assert moved == ROWS[3] | {"module": "blocknb/runtime/far.py"}
    assert (drawn["part"], drawn["module"]) == ("held-out", "blocknb/passes/near.py")
    assert drawn not in ROWS
    assert list(small["follow"](ROWS, 1))[2] == drawn
    assert len({tuple(list(small["follow"](ROWS, seed))[2].values()) for seed in range(20)}) > 1


def test_no_fault_is_followed_or_drawn_twice(small: dict[str, Any], tmp_path: Path) -> None:
    """Two rows have moved to the same line, a third one was there before, and a gone one is drawn from the same module."""
    (tmp_path / "blocknb" / "runtime" / "far.py").write_text(FAR + "def h(b):\n    return b < 3\n")
    moved, here = ROWS[3] | {"module": "blocknb/runtime/old.py"}, ROWS[3] | {"module": "blocknb/runtime/far.py"}
    gone = {"part": "seen", "module": "blocknb/runtime/far.py", "line": "return b + 1", "change": "Add -> Sub"}
    for seed in range(20):
        found = list(small["follow"]([gone, moved, ROWS[3], ROWS[0]], seed))
        assert len({(row["module"], row["line"], row["change"]) for row in found}) == 4
        found = list(small["follow"]([moved, here, ROWS[0]], seed))
        assert found[1] is not here and found[1] == here and found[0] != here


def test_the_faults_of_the_package_are_still_in_its_code(script: dict[str, Any]) -> None:
    script["_lines"].cache_clear()
    found, gone = script["faults"]()
    assert len(found) + gone == 100
    assert gone <= MOST_GONE, "too many faults are gone: run scripts/faults.py follow"
