"""The notebook docs/widgets.ipynb in a browser: its sources, its views, and a journey that JupyterLab and Voila share."""

from __future__ import annotations

import json
from collections.abc import Callable

from browser import Page, Part, eventually
from laboratory import ROOT, Listing

NOTEBOOK = json.loads((ROOT / "docs" / "widgets.ipynb").read_text("utf-8"))
SOURCES = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
KERNEL, DIFFS, ACCESSES, KNOBS = range(4)


def view(place: Part, key: str, nth: int = 0) -> Part:
    """The view with a key in a cell or in a page."""
    return place(f"[data-view='{key}']")[nth]


def compared(diff: Part) -> list[str]:
    return diff(".bnb-sides span").texts


def stages() -> list[str]:
    """The names of the passes, from the saved notebook."""
    for cell in NOTEBOOK["cells"]:
        for output in cell.get("outputs", []):
            for document in output.get("data", {}).get("application/vnd.blocknb.v1+json", {})["widget"]["documents"]:
                return [stage["name"] for stage in document["views"][-1]["stages"]]
    raise AssertionError("the notebook has no saved output")


def follow_each_other(page: Page, place_of: Callable[[int], Part]) -> None:
    """Drives the widgets. `place_of` returns the place that contains the output of a code cell."""
    names = stages()
    start = names.index("coalesce")
    diffs = place_of(DIFFS)
    one, two = view(diffs, "diff"), view(diffs, "diff", 1)
    eventually(lambda: compared(one), lambda found: found == [f"IR after {names[start - 1]}", "IR after coalesce"])
    diffs("[role=slider]")[0].press("ArrowRight", "ArrowRight")  # jslink
    after = f"IR after {names[start + 2]}"
    eventually(lambda: compared(two), lambda found: found == ["IR after parse", after])
    eventually(lambda: compared(one), lambda found: found == [f"IR after {names[start + 1]}", after])

    accesses = place_of(ACCESSES)
    tiles, code = view(accesses, "tiles"), view(accesses, "code")
    tiles(".bnb-program-name").until_text("program 5 ")
    accesses(".widget-interact [role=slider]").press("ArrowRight")  # interact
    tiles(".bnb-program-name").until_text("program 6 ")
    tiles(".bnb-stage").having("store out").click()
    line = next(i for i, text in enumerate(SOURCES[KERNEL].split("\n"), 1) if "tl.store(" in text)
    accesses(".widget-label").having(f"line {line}: op").wait()  # observe, in Python
    ir = Listing(page, code('.cm-content[aria-label="IR"]').selector)
    lit = eventually(lambda: ir.lit, bool)
    assert any("store" in ir.code.split("\n")[i - 1] for i in lit)
