"""The Memory view: `--memory` opens it, its rows are the arrays of the cell, and a copy is linked to its line."""

from __future__ import annotations

KERNEL = """@blocknb.kernel
def scale(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * 2)

x = np.ones(1024, np.float32)
out = np.empty_like(x)
scale[4](x, out, BLOCK=256);"""
LAUNCH = "scale[4](x, out, BLOCK=256);"


def rows(panel):
    """The cells of the rows of arrays, by the first cell."""
    found = panel("table:has(caption:has-text('Arrays by name')) tbody tr")
    return {cells[0]: cells[1:] for cells in (found[i]("th, td").texts for i in range(found.count))}


def test_memory_view_shows_the_arrays_of_the_cell(notebook):
    notebook.run(notebook.add(f"%%blockkernel\n{KERNEL}"))
    number = notebook.add(
        f"%%blockkernel --memory\nkept = np.ones((1000, 100))\nview = kept[1:]\nkept.T.copy()\n{LAUNCH}"
    )
    notebook.run(number)
    card = notebook.card(number)
    card.until_state("live")
    panel = card("[role=tabpanel]:not([hidden])")
    panel.until_text("Before and after the cell", "Python and NumPy", "Arrays by name: 781 KiB of this cell outlive it")
    found = rows(panel)
    assert found["kept, view"] == ["781 KiB", "", "float64 (1000, 100)", "CPU", "this cell"]
    assert found["x"][-1] == found["out"][-1] == "before"
    traced = panel("tbody tr").having("Python and NumPy")("td").texts
    assert traced[1].endswith("KiB") and traced[3].endswith("MiB")  # the copy exists at the peak and not after the cell
    number = notebook.add(f"%%blockkernel\ndel kept, view\n{LAUNCH}")
    notebook.run(number)
    panel = notebook.card(number).open("Memory")
    panel.until_text("none of this cell outlives it", "also measures the peak")
    assert "kept, view" not in rows(panel)
