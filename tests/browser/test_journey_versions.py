"""Features 3 and 4: the history of a kernel, and comparisons between any passes of any versions."""

from __future__ import annotations

import pytest
from browser import eventually
from softmax import COMMENTED, RIGHT, WRONG, fresh, milliseconds


@pytest.fixture
def history(softmax):
    card = softmax.card(3)
    card.open("History")(".bnb-table tbody tr").having("this card").wait()
    return card


def pick(card, left, right, what="source"):
    card.panel(f"[aria-label='version {left} on the left']").check()
    card.panel(f"[aria-label='version {right} on the right']").check()
    card.panel("[aria-label='What to compare']").choose(what)


def sides(card):
    """Returns the visible parts of the two texts. The diff folds unchanged lines."""
    return card.panel(".cm-merge-a .cm-content").text, card.panel(".cm-merge-b .cm-content").text


def test_each_version_is_listed_with_its_measurements_and_correctness(history, softmax, tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path / "cache"))
    table = history.panel(".bnb-table >> nth=0")  # the second one has the runs of knobs
    titles = table("thead th").texts
    rows = [
        dict(zip(titles[2:], table(f"tbody tr >> nth={i}")("th, td:not(:has(input))").texts, strict=True))
        for i in range(3)
    ]
    assert [row["version"] for row in rows] == ["1", "2", "3 (this card)"]
    assert [row["changes"] for row in rows] == ["first", "+1 −1 lines", "+1 −0 lines"]
    assert [row["result"] for row in rows] == ["✗ wrong", "✓ correct", "not checked"]
    for row, source, values in zip(rows, (WRONG, RIGHT, COMMENTED), ({}, {"without": ("coalesce",)}, {}), strict=True):
        resources = fresh(tmp_path, source, **values).resources
        assert row["registers"] == f"{resources.registers} (sm_90a)"
        assert row["shared memory"] == f"{resources.shared_bytes} B" and row["spills"] == f"{resources.spill_bytes} B"
        assert row["rate"].endswith("GB/s") and row["first run"].endswith("UTC")
    shown = [v["time"]["median"] for v in softmax.notebook.document(3)["history"]["versions"]]
    assert [milliseconds(row["time"]) for row in rows] == pytest.approx(shown, rel=0.01)


def test_two_versions_can_be_compared(history):
    pick(history, 1, 2)
    history.panel(".bnb-summary").until_text("1 on the left, 1 on the right")
    left, right = sides(history)
    assert "other=0.0" in left and 'other=-float("inf")' in right
    pick(history, 2, 3)
    history.panel(".bnb-summary").until_text("0 on the left, 1 on the right")
    left, right = sides(history)
    assert "# one row, one program" in right and "# one row" not in left


def test_any_pass_of_any_version_can_be_compared_with_any_other(history, softmax):
    pick(history, 1, 2, "IR after layout_assignment")
    labels = ["version 1, IR after layout_assignment", "version 2, IR after layout_assignment"]
    eventually(lambda: history.panel(".bnb-sides span").texts, lambda found: found == labels)
    eventually(lambda: sides(history), lambda found: "-inf" in found[1] and "-inf" not in found[0])
    number = softmax.notebook.add("%blockdiff softmax@1:parse softmax@3:coalesce")
    softmax.notebook.run(number)
    asked = softmax.notebook.card(number)
    asked.panel(".bnb-summary").until_text("Changed lines")
    labels = asked.panel(".bnb-sides span").texts
    assert ["1" in labels[0], "parse" in labels[0], "3" in labels[1], "coalesce" in labels[1]] == [True] * 4
    left, right = sides(asked)
    assert "-inf" in right and "-inf" not in left


def test_first_pass_in_which_two_versions_differ_is_found(history):
    pick(history, 1, 2)
    history.panel("text=Find first differing pass").click()
    history.panel("[role=status]").until_text("Versions 1 and 2 first differ after parse.")
    pick(history, 2, 3)  # the same kernel; the older version was launched without a pass
    history.panel("text=Find first differing pass").click()
    history.panel("[role=status]").until_text("Versions 2 and 3 first differ after coalesce.")
    eventually(lambda: sides(history), lambda found: "#" not in found[0] and "#" in found[1])  # layouts


def test_the_machine_code_of_two_versions_is_compared_from_their_rows(history):
    pick(history, 1, 2)
    history.panel("text=Compare LLVM, PTX and SASS").click()
    history.panel(".bnb-parting").until_text("First difference: they part in the source")
    levels = history.panel("[aria-label=Level] option").texts
    assert {"source", "LLVM", "PTX"} <= {level.removesuffix(" (same)") for level in levels}
