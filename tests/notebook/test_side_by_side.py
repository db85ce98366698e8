"""`blocknb.compare`: two or more compilations on one page, with the first place where they part."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

import blocknb
import blocknb.language as tl
from blocknb.errors import LaunchError
from blocknb.notebook import card, extension, history, live
from blocknb.notebook.blobs import read, unpack
from blocknb.notebook.document import MIME
from blocknb.notebook.observe import record_of
from blocknb.notebook.register import register
from blocknb.notebook.side_by_side import MOST_SIDES

X = np.zeros(4096, np.float32)


@blocknb.kernel
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2.0 * tl.load(x + at, mask=at < n), mask=at < n)


@blocknb.kernel
def triple(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 3.0 * tl.load(x + at, mask=at < n), mask=at < n)


@pytest.fixture(scope="module")
def compiled():
    return double.compile(X, X, 4096, BLOCK=256, target="sm_90a")


@pytest.fixture(scope="module")
def page(compiled):
    return blocknb.compare(compiled, double.compile(X, X, 4096, BLOCK=1024, target="sm_90a"))


def pairs(found):
    return unpack(found[MIME]["compare"]["packed"])


def level(pair, key):
    return next(one for one in pair["levels"] if one["key"] == key)


def test_settings_of_a_knob_part_in_the_front_end_and_have_labels_that_tell_them_apart(page):
    assert [side.label for side in page.sides] == ["double (BLOCK=256)", "double (BLOCK=1024)"]
    (pair,) = pairs(page.bundle())
    assert pair["parts_at"] == "parse" and pair["first"].startswith(
        "the source is the same; they part in the IR of the front end"
    )
    assert not level(pair, "source")["differs"]
    registers = [side.trace.resources.registers for side in page.sides]
    texts = [told["text"] for told in level(pair, "sass")["sentences"]]
    assert texts[0] == f"{registers[1]} registers per thread instead of {registers[0]}"


def test_the_widths_of_global_accesses_are_those_of_the_machine_code(page):
    """256 elements on four warps are two per thread: the PTX has 64-bit accesses, that of 1024 elements 128-bit ones."""
    (pair,) = pairs(page.bundle())
    widths = [set(re.findall(r"ld\.global\S*\.v(\d)\.", side.trace.ptx)) for side in page.sides]
    assert widths == [{"2"}, {"4"}]
    texts = [told["text"] for told in level(pair, "ptx")["sentences"]]
    assert {f"global {what}s of 128 bits instead of 64 bits" for what in ("load", "store")} <= set(texts)


def test_two_sources_part_at_the_line_that_differs(compiled):
    found = blocknb.compare(compiled, triple.compile(X, X, 4096, BLOCK=256, target="sm_90a"))
    (pair,) = pairs(found.bundle())
    assert pair["parts_at"] == "source" and "`def triple" in pair["first"]
    told = level(pair, "parse")["sentences"]
    assert [one["text"] for one in told] == [f"1 `const` has `value` = 3.0 instead of 2.0 (line {told[0]['lines'][0]})"]


def test_targets_are_sides_and_the_matched_lines_are_inside_the_texts(compiled):
    found = blocknb.compare(compiled, targets=("sm_80", "sm_90a"))
    assert [side.label for side in found.sides] == ["double on sm_80", "double on sm_90a"]
    bundle = found.bundle()
    made = bundle[MIME]
    (pair,) = pairs(bundle)
    for one in pair["levels"]:
        texts = []
        for side in made["compare"]["sides"]:
            name = (
                side["source"]
                if one["key"] == "source"
                else next(x["text"] for x in side["levels"] if x["key"] == one["key"])
            )
            texts.append(read(made["blobs"], name)["text"].split("\n"))
        for runs in (one["same"], one["aligned"]):
            assert all(i + n <= len(texts[0]) and j + n <= len(texts[1]) for i, j, n in runs)
            assert runs == sorted(runs)
    assert made["left_out"] == [] and len(json.dumps(made)) < 300_000


def test_equal_compilations_have_no_difference(compiled):
    (pair,) = pairs(blocknb.compare(compiled, compiled.trace).bundle())
    assert pair["first"] == "all levels are the same" and pair["parts_at"] is None


def test_a_comparison_needs_two_to_six_sides_that_were_compiled(compiled):
    with pytest.raises(LaunchError, match="2 to 6 sides, not 1"):
        blocknb.compare(compiled)
    with pytest.raises(LaunchError, match="not 7"):
        blocknb.compare(*[compiled] * (MOST_SIDES + 1))

    @blocknb.kernel
    def fresh(x):
        tl.store(x, 1.0)

    with pytest.raises(LaunchError, match="has not been launched"):
        blocknb.compare(compiled, fresh)
    with pytest.raises(LaunchError, match="cannot be compiled for other targets"):
        blocknb.compare(compiled.trace, targets=["sm_80", "sm_90a"])
    with pytest.raises(LaunchError, match="1 labels for 2 sides"):
        blocknb.compare(compiled, compiled, labels=["a"])


@pytest.mark.parametrize("item", [3, None, [], np.zeros(2)])
def test_what_is_no_kernel_cannot_be_compared(compiled, item):
    with pytest.raises(LaunchError, match=f"compare takes kernels, and got an object of type {type(item).__name__}"):
        blocknb.compare(compiled, item)


def test_a_name_needs_a_notebook(compiled, monkeypatch):
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: None)
    with pytest.raises(LaunchError, match="'double@1' names a kernel of a notebook, and this program runs in none"):
        blocknb.compare(compiled, "double@1")


def test_the_exported_page_is_one_file_with_all_texts(page, tmp_path, monkeypatch):
    folder = tmp_path / "blocknb"
    (folder / "viewer").mkdir(parents=True)
    (folder / "viewer" / "viewer.js").write_text("")
    (folder / "viewer" / "blocknb.css").write_text("")
    monkeypatch.setattr(extension, "installed", lambda: ("0.1.0", folder))
    assert "model" not in page.bundle()[MIME], "no page can ask"
    text = page.export_html(tmp_path / "compare.html").read_text("utf-8")
    found = json.loads(re.search(rf'<script type="{re.escape(MIME)}">(.*?)</script>', text, re.DOTALL)[1])
    assert found["kind"] == "compare" and found["left_out"] == []
    assert "http:" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    monkeypatch.setattr(extension, "answers", True)
    sent, listeners = [], []
    comm = SimpleNamespace(send=sent.append, on_msg=listeners.append)
    live.opened(comm, {"content": {"data": {"card": page.bundle()[MIME]["model"]}}})
    for what in ("export", "turn"):
        listeners[0]({"content": {"data": {"id": 1, "what": what}}})
    assert "hello" in sent[0] and sent[1] == {"id": 1, "page": text} and "error" in sent[2]


VERSION = """%%blockkernel --target sm_80
@blocknb.kernel
def scaled(x, n):
    at = tl.arange(0, 64)
    tl.store(x + at, {}.0 * tl.load(x + at, mask=at < n), mask=at < n)

scaled[1](np.zeros(64, np.float32), 64)"""


def test_two_versions_are_compared_for_the_page_of_their_card():
    ip = InteractiveShell()
    register(ip)
    ip.run_cell("import blocknb, blocknb.language as tl, numpy as np")
    for factor in (2, 3):
        assert ip.run_cell(VERSION.format(factor), store_history=True).success
    kernel = ip.user_ns["scaled"]
    page = live.LiveCard(card.newest(record_of(kernel)))
    keys = [version.key for version in history.versions(kernel)]
    found = live.REQUESTS["compare"](page, {"versions": keys})["document"]
    assert found["kernel"] == "scaled@1 and scaled@2"
    (pair,) = unpack(found["compare"]["packed"])
    assert level(pair, "ptx")["differs"] and level(pair, "source")["differs"]
    assert "earlier session" in live.REQUESTS["compare"](page, {"versions": [keys[0], "gone"]})["error"]
