"""`blocknb.widgets`: traits that agree with the document, requests of a page, and outputs that show a widget without a kernel."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import ipywidgets
import numpy as np
import pytest
import traitlets

import blocknb
import blocknb.language as tl
from blocknb import widgets
from blocknb.errors import LaunchError
from blocknb.notebook.blobs import unpack
from blocknb.notebook.document import MIME
from blocknb.widgets import Card, Code, Diff, Tiles, outputs

ROOT = Path(__file__).parents[2]
VIEW_MIME = "application/vnd.jupyter.widget-view+json"


@blocknb.kernel
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@blocknb.kernel
def total(x, out, BLOCK: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, BLOCK)), axis=0))


x = np.ones(1000, np.float32)
out = np.empty_like(x)


@pytest.fixture(scope="module", autouse=True)
def launched() -> None:
    launch()
    total[1,](x, out, BLOCK=512)


def launch() -> None:
    with widgets.record():
        double[lambda c: (blocknb.cdiv(1000, c["BLOCK"]),)](x, out, 1000, BLOCK=256)


def document(widget: Any) -> Any:
    return json.loads(gzip.decompress(widget.document.packed))


def test_the_traits_of_a_stage_and_its_number_follow_each_other() -> None:
    diff = Diff(double, stage="coalesce")
    assert diff.stages[diff.stage_index] == "coalesce"
    diff.stage_index = 0
    assert diff.stage == diff.stages[0] == "parse"
    diff.stage_index = 1000  # a slider that is longer than the list
    assert diff.stage == diff.stages[-1]


def test_a_target_and_a_stage_that_the_kernel_does_not_have_are_refused_with_a_hint() -> None:
    diff = Diff(double)
    with pytest.raises(traitlets.TraitError, match="no pass 'coalesc'; did you mean 'coalesce'"):
        diff.stage = "coalesc"
    with pytest.raises(traitlets.TraitError, match="no target 'sm_42'.*sm_90a"):
        diff.target = "sm_42"
    diff.target = "cpu"
    assert diff.target in diff.targets and diff.target.startswith("cpu:")
    assert "coalesce" not in diff.stages  # the stages are those of the target


def test_a_widget_of_something_else_says_what_it_shows_instead() -> None:
    @blocknb.kernel
    def fresh(x):
        tl.store(x, 0)

    with pytest.raises(LaunchError, match="has not been launched"):
        Card(fresh)
    with pytest.raises(TypeError, match="a kernel or the document of a card, not a value of type int"):
        Card(3)
    with pytest.raises(TypeError, match="no document"):
        Card({"a": 1})


def test_another_kernel_replaces_the_first_in_place_and_keeps_what_it_has() -> None:
    code = Code(double, stage="coalesce", target="sm_90a")
    model = code.model_id
    code.kernel = total
    assert (code.model_id, code.stage, code.target) == (model, "coalesce", "sm_90a")
    assert document(code)["kernel"] == "total" and code.constants == {"BLOCK": 512}
    code.target, code.stage = "cpu", "unroll"
    code.kernel = {MIME: {**code.document.content, "views": code.document.content["views"][1:]}}
    assert (code.stage, code.target) == ("unroll", None)  # this document has no view for the CPU
    code.kernel = None
    assert (code.stage, code.stage_index, code.stages, code.constants) == (None, None, [], {})


def test_views_of_a_kernel_share_a_document_until_its_next_launch() -> None:
    launch()
    one, two = Code(double), Diff(double)
    assert one.document is two.document
    launch()
    one.kernel = double
    assert one.document is not two.document
    before = two.document
    two.kernel = double
    assert before.comm is None and one.document is two.document  # no view needs the old one
    one.close()
    assert two.document.comm is not None


def test_every_view_of_the_page_is_a_widget_and_every_widget_is_a_view_of_the_page() -> None:
    core = ROOT / "labextension/src/core"
    specs = [path.read_text() for path in [*(core / "views").glob("*.ts"), core / "stage_diff.ts"]]
    keys = {key for text in specs if ": ViewSpec" in text for key in re.findall(r"^  key: '(\w+)',$", text, re.M)}
    assert {found.key for found in widgets.VIEWS.values()} == {*keys, "card"} - {"compare"}
    assert all(found.__doc__ and found.__name__ == name for name, found in widgets.VIEWS.items())


def ask(widget: Any, what: str, **content: Any) -> Any:
    """Sends a request as the page does, and returns the answer, which is the last message."""
    sent: list[Any] = []
    shared = widget.document
    shared.send, send = lambda content, buffers=None: sent.append(content), shared.send
    try:
        shared._handle_custom_msg({"id": 7, "what": what, **content}, [])
    finally:
        shared.send = send
    *reports, found = sent
    assert found["id"] == 7 and all("progress" in report for report in reports), sent
    return found


def test_a_request_of_the_page_is_answered_as_for_a_card() -> None:
    tiles = Tiles(double)
    assert ask(tiles, "tiles", program=3, iteration=0)["accesses"]
    assert "program" in ask(tiles, "tiles", program=10**6, iteration=0)["error"]
    saved = Tiles(tiles.document.content)
    assert ask(saved, "tiles", program=0)["error"] == "this document has no kernel"


def test_a_changed_knob_reaches_all_views_of_the_kernel_and_their_observers() -> None:
    launch()
    knobs, diff = widgets.Knobs(double), Diff(double)
    heard: list[Any] = []
    diff.observe(lambda change: heard.append(change.new), "constants")
    settings = {"constants": {"BLOCK": 128}, "num_warps": None, "num_stages": None, "without": []}
    assert ask(knobs, "turn", knobs=settings)["document"]
    assert heard == [{"BLOCK": 128}]
    assert document(diff)["views"][0]["constants"]["BLOCK"] == "128"
    assert diff.trace is not None and diff.trace.constants == {"BLOCK": 128} and str(diff.trace.target) == "sm_90a"


def test_the_output_of_a_view_is_a_document_with_what_it_shows_and_not_the_id_of_a_model_alone() -> None:
    big = np.ones(10_000, np.float32)
    with widgets.record():
        double[100,](big, big, 10_000, BLOCK=128)
    tiles = Tiles(double, program=50)
    found = tiles._repr_mimebundle_()
    assert set(found) == {"text/plain", "text/html", MIME} and found["text/plain"] == "Tiles(double, program=50)"
    assert found[MIME]["widget"]["root"] == {
        "view": "tiles",
        "document": 0,
        "model": tiles.model_id,
        "state": {"program": 50},
    }
    (inner,) = found[MIME]["widget"]["documents"]
    assert "50" in unpack(inner["tiles"]["packed"])["programs"]
    assert "50" not in unpack(tiles.document.content["tiles"]["packed"])["programs"]
    assert inner["blobs"] == {} and "history" not in inner and inner["model"] is None
    assert len(json.dumps(found[MIME])) < len(json.dumps(Card(double)._repr_mimebundle_()[MIME]))


def test_the_output_of_a_box_has_the_views_the_boxes_and_the_words_of_other_widgets() -> None:
    slider = ipywidgets.IntSlider(3, description="stage")
    box = ipywidgets.VBox([slider, ipywidgets.HBox([Diff(double), Diff(total)]), ipywidgets.Label("so"), Code(double)])
    widget = outputs.bundle(box)[MIME]["widget"]
    assert [part["kernel"] for part in widget["documents"]] == ["double", "total"]
    first, row, label, code = widget["root"]["children"]
    assert widget["root"]["box"] == "column" and row["box"] == "row"
    assert first == {"text": "stage: 3", "model": slider.model_id} and label["text"] == "so"
    assert [part["document"] for part in row["children"]] == [0, 1] and code["document"] == 0


def test_a_picture_in_a_box_is_in_its_output() -> None:
    plot = ipywidgets.Output()
    plot.outputs = ({"output_type": "display_data", "data": {"image/png": "AAAA", "text/plain": "f"}, "metadata": {}},)
    root = outputs.bundle(ipywidgets.HBox([plot, Code(double)]))[MIME]["widget"]["root"]
    assert root["children"][0] == {"png": "AAAA", "model": plot.model_id}


def test_boxes_and_controls_that_concern_no_view_are_left_to_ipywidgets() -> None:
    diff = Diff(double)
    unrelated = ipywidgets.interactive(lambda n: n, n=(0, 3))
    related = ipywidgets.interactive(lambda n: setattr(diff, "stage_index", n), n=(0, 3))
    assert VIEW_MIME in outputs._show_box(ipywidgets.HBox([ipywidgets.IntSlider()]))
    assert VIEW_MIME in outputs._show_box(unrelated)
    assert outputs._show_box(related)[MIME]["widget"]["root"]["children"][0]["text"] == "n: 1"
    assert MIME in outputs._show_box(ipywidgets.HBox([ipywidgets.VBox([diff])]))


def test_the_page_without_scripts_shows_a_diff_with_signs_and_escapes_it() -> None:
    text = outputs.bundle(Diff(double, stage="coalesce", compared_with="parse"))["text/html"]
    assert "--- parse" in text and "+++ coalesce" in text and re.search(r"^\+.*load", text, re.M)
    assert "<1024" not in text and "ptr&lt;f32&gt;" in text


def test_voila_gets_the_output_of_ipywidgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5.13")
    code = Code(double)
    assert code._repr_mimebundle_()[VIEW_MIME]["model_id"] == code.model_id
    assert VIEW_MIME in outputs._show_box(ipywidgets.HBox([code]))
