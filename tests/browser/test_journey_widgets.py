"""The notebook docs/widgets.ipynb: widgets that follow each other and Python in JupyterLab, and the same views without a kernel."""

from __future__ import annotations

import json
import re
from typing import Any

from browser import eventually
from laboratory import MIME, Notebook
from widgets_notebook import ACCESSES, DIFFS, KERNEL, KNOBS, SOURCES, compared, follow_each_other, stages, view


def test_widgets_follow_each_other_and_python_and_a_saved_notebook_shows_them_without_a_kernel(lab, page):
    notebook = Notebook(page, lab.write("widgets.ipynb", SOURCES))
    notebook.run(KERNEL, DIFFS, ACCESSES, KNOBS)

    follow_each_other(page, notebook.show)

    knobs = notebook.show(KNOBS)
    picture = "() => document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea img')?.src ?? ''"
    before = eventually(lambda: page.run(picture), bool)
    view(knobs, "knobs")("[data-knob='BLOCK']").press("ArrowRight")
    eventually(lambda: page.run(picture), lambda now: now not in ("", before))

    names = stages()
    after = names.index("coalesce") + 2
    # What the page shows is what the notebook saves.
    eventually(
        lambda: saved_states(notebook, DIFFS), lambda found: [one["stage_index"] for one in found] == [after] * 2
    )
    eventually(lambda: saved_states(notebook, ACCESSES), lambda found: found[0]["program"] == 6)
    eventually(lambda: json.dumps(notebook.output(ACCESSES)[0]), lambda found: '"program: 6"' in found)
    notebook.save()
    cells = json.loads((lab.folder / notebook.path).read_text("utf-8"))["cells"]
    notebook.close()

    alone = Notebook(page, lab.write("widgets_alone.ipynb", cells), start=False)
    assert page.run("() => !blocknb.panel().sessionContext.session")
    place = alone.show(DIFFS)
    eventually(
        lambda: compared(view(place, "diff", 1)), lambda found: found == ["IR after parse", f"IR after {names[after]}"]
    )
    place(".bnb-composed-text").having(f"stage: {after}").wait()
    place = alone.show(ACCESSES)
    view(place, "tiles")(".bnb-stage[aria-selected=true]").until_text("store out")
    place(".bnb-composed-text").having("program: 6").wait()
    knobs = alone.show(KNOBS)
    eventually(lambda: knobs("img").count, lambda count: count == 1)
    text = page.run("() => blocknb.panel().node.textContent")
    assert "model not found" not in text and "Loading widget" not in text
    alone.close(shut_down=False)


def saved_states(notebook: Notebook, cell: int) -> list[dict[str, Any]]:
    """The states of the views in the last output of a cell, as the notebook would save them."""
    widget = notebook.output(cell)[-1]["data"][MIME]["widget"]
    return [json.loads(state) for state in re.findall(r'"state": ({.*?})', json.dumps(widget["root"]))]
