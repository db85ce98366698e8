"""The card: its contents, size, safety and readability, and the document that the page reads."""

from __future__ import annotations

import html as html_module
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed import observed

import blocknb
import blocknb.language as tl
from blocknb.errors import Unsupported
from blocknb.kernels.matmul import matmul_kernel
from blocknb.notebook import card, completion, document, html, numbers, sections
from blocknb.notebook.blobs import read
from blocknb.notebook.observe import record_of


@blocknb.kernel
def row_sum(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + tl.program_id(0) * columns + at, mask=at < columns)
    tl.store(out + tl.program_id(0), tl.sum(values, axis=0))  # "a" < 'b' & <script>


def launch_sum(rows=8, columns=96, block=128):
    x = np.ones((rows, columns), np.float32)
    row_sum[rows,](x, np.empty(rows, np.float32), columns, BLOCK=block)


@pytest.fixture(scope="module")
def summed():
    return card.card_of(observed(launch_sum))


@pytest.fixture(scope="module")
def large():
    """The card of a matrix product, whose texts exceed the budget."""
    arrays = dict.fromkeys(("a", "b", "c"), "*fp16:16")
    sizes = dict.fromkeys(("m", "n", "k", "a_row", "b_row", "c_row"), "i32:16")
    strides = dict.fromkeys(("a_column", "b_column", "c_column"), 1)
    matmul_kernel.trace(**arrays, **sizes, **strides, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, GROUP=8)
    return card.card_of(record_of(matmul_kernel))


class Reader(HTMLParser):
    """The text without styles and scripts, and the tags in order."""

    def __init__(self, text):
        super().__init__()
        self.text, self.tags, self.hidden, self.open = "", [], False, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.hidden = tag == "style"
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.hidden = False

    def handle_data(self, data):
        self.text += "" if self.hidden else data


# ---- what it says ----------------------------------------------------------------------------------------------------------


def test_the_head_shows_the_device_the_rate_and_the_resources_on_a_gpu(summed):
    facts = dict(summed.facts)
    assert re.fullmatch(r"grid 8, \d+ threads? \(.+\)", facts["launch"])
    assert re.search(r"(ns|µs|ms).* GB/s of unique bytes", facts["time"])
    assert re.fullmatch(
        r"\d+ registers per thread, .* shared memory, no spills, occupancy \d+ % \(.*\)", facts["sm_90a"]
    )
    assert "front end" in facts["compiled, CPU"] and "ptxas" in facts["compiled, sm_90a"]
    assert summed.where == "ran on CPU; GPU view: sm_90a"


def test_gb_per_second_count_the_arguments_once_per_direction(summed):
    speed = numbers.rate(summed.main)
    assert speed.unit == "GB/s"
    assert speed.value * summed.main.timing.median * 1e6 == pytest.approx((8 * 96 + 8) * 4)


def test_every_stage_and_every_level_of_code_is_a_section(summed):
    stages = [stage.name for stage in summed.views[1].trace.stages]
    keys = [section.key for section in summed.sections]
    assert keys == ["source", "times", *stages, "llvm", "ptx", "sass", "llvm", "assembly"]
    assert {s.key for s in summed.sections if s.group == "GPU view: sm_90a"} == {*stages, "llvm", "ptx", "sass"}
    assert {s.key for s in summed.sections if s.group.startswith("ran on CPU")} == {"llvm", "assembly"}


def test_notes_appear_below_their_source_lines(summed):
    lines = summed.sections[0].lines
    load = next(i for i, line in enumerate(lines) if "tl.load" in line.text)
    below = list(itertools.takewhile(lambda line: line.note, lines[load + 1 :]))
    assert any("coalesce: load" in line.text for line in below)
    assert lines[load].line == row_sum.source.first_line + 3


def test_code_lines_carry_the_source_line_they_came_from(summed):
    by_key = {section.key: section for section in summed.sections if section.group == "GPU view: sm_90a"}
    load = row_sum.source.first_line + 3
    for key, text in (("parse", " = load %"), ("barriers", " = load %"), ("ptx", "ld.global"), ("sass", "LDG")):
        found = [line.line for line in by_key[key].lines if text in line.text]
        assert found and set(found) == {load}, key


def test_lines_that_a_stage_made_are_marked(summed):
    coalesce = next(s for s in summed.sections if s.key == "coalesce")
    assert any(line.new and "#a" in line.text for line in coalesce.lines)
    assert not any(line.new for line in next(s for s in summed.sections if s.key == "parse").lines)


def test_several_launches_show_their_number_and_their_median_without_the_first():
    found = card.card_of(observed(launch_sum, launch_sum, launch_sum))
    assert dict(found.facts)["launch"].startswith("3 launches, grid 8, ")
    assert "median of 2, warm" in dict(found.facts)["time"] and "(1 launch, " in dict(found.facts)["first launch"]


def test_specializations_are_rows_that_show_their_differences():
    found = card.card_of(observed(launch_sum, lambda: launch_sum(block=256), lambda: launch_sum(4, 97)))
    head, *rows = found.rows
    assert head[0] == "specialization" and len(rows) == 3
    assert rows[0][0] == "`columns=i32:16, BLOCK=128`" and rows[2][0] == "`columns=i32, BLOCK=128`"


def test_a_target_that_fails_to_compile_shows_its_error_next_to_the_rest(monkeypatch):
    record = observed(launch_sum)

    def refuse(self, target, without=()):
        raise Unsupported(f"not on {target}", hint="take another")

    monkeypatch.setattr(type(record.latest.compiled), "retarget", refuse)
    found = card.card_of(record, "sm_75")
    assert ("sm_75", "unsupported by the target: not on sm_75 (take another)") in found.facts
    assert "assembly" in [section.key for section in found.sections]
    view = found.bundle()[document.MIME]["views"][1]
    assert view["error"] == "unsupported by the target: not on sm_75 (take another)" and "stages" not in view


def test_tflops_are_counted_from_the_dots():
    @blocknb.kernel
    def product(a, b, c, BLOCK: tl.constexpr):
        i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
        at = i * BLOCK + j
        tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))

    a = np.ones((32, 32), np.float32)
    record = observed(lambda: product[4,](a, a, np.empty_like(a), BLOCK=32))
    speed = numbers.rate(record.latest)
    assert speed.unit == "TFLOP/s"
    assert speed.value * record.latest.timing.median * 1e9 == pytest.approx(4 * 2 * 32**3)


# ---- the page --------------------------------------------------------------------------------------------------------------


def test_the_static_page_has_the_source_with_notes_and_the_final_ir_and_every_tag_is_closed(summed):
    reader = Reader(summed.html())
    assert reader.open == []
    details = [attrs for tag, attrs in reader.tags if tag == "details"]
    assert ["open" in attrs for attrs in details] == [True, False]
    assert "coalesce: load" in reader.text
    final = summed.views[1].trace.stages[-1]
    assert final.name in reader.text and "#a" in reader.text and "store" in reader.text


def test_the_static_page_names_how_to_install_the_extension(summed):
    text = Reader(summed.html()).text
    assert text.count("pip install blocknb") == 1


def test_nothing_from_the_source_is_markup(summed):
    page = summed.html()
    assert "<script" not in page
    assert """# "a" < 'b' & <script>""" in Reader(page).text


def test_the_page_loads_nothing_and_runs_nothing(summed):
    assert not re.search(
        r"https?:|src=|href=|url\(|@import|\bon\w+=", re.sub(r"<pre>.*?</pre>", "", summed.html(), flags=re.S)
    )


def test_the_facts_are_readable_without_styles(summed):
    text = Reader(summed.html()).text
    for label, fact in summed.facts:
        assert label in text and fact in text


def test_colours_are_the_notebooks_own_with_fallbacks():
    assert re.findall(r"(?<!-)color:(?!var\(--jp-)", html.STYLE) == []
    assert all("," in variable for variable in re.findall(r"var\([^)]*\)", html.STYLE))


@pytest.mark.parametrize("opened", [(), ("all",)])
@pytest.mark.parametrize("name", ["summed", "large"])
def test_the_static_page_has_at_most_30_kb(name, opened, request):
    made = replace(request.getfixturevalue(name), opened=opened)
    assert len(made.html().encode()) <= 30_000


@pytest.mark.parametrize("name", ["summed", "large"])
def test_a_card_has_at_most_150_kb(name, request):
    bundle = request.getfixturevalue(name).bundle()
    assert len(json.dumps(bundle, ensure_ascii=False).encode()) <= 150_000


def test_omitted_texts_are_listed_with_the_call_that_returns_them(large):
    page = replace(large, opened=("all",)).html()
    left_out = re.findall(r"… (\d+) of (\d+) lines are omitted. All lines: <code>(.*?)</code>", page)
    assert left_out
    for missing, count, call in left_out:
        assert 0 < int(missing) <= int(count)
        shown = eval(html_module.unescape(call), {"matmul_kernel": matmul_kernel})
        if isinstance(shown, str):
            assert shown.rstrip("\n").count("\n") + 1 >= int(count)  # a listing leaves out debug sections
        else:
            assert shown in (matmul_kernel.latest.trace.notes, matmul_kernel.latest.trace.milliseconds)


def test_every_section_has_a_name_for_show(summed, large):
    names = {*completion.section_names(), *(stage.name for stage in summed.views[0].trace.stages)}
    assert {section.key for one in (summed, large) for section in one.sections} <= names


def test_an_unchanged_stage_is_listed_if_it_is_requested(large):
    def listing(opened):
        return re.search(r"<b>program_swizzle</b>.*?</details>", replace(large, opened=opened).html(), flags=re.S)[0]

    assert "unchanged from the previous stage" in listing(("all",)) and "func @" not in listing(("all",))
    assert "unchanged from the previous stage" not in listing(("program_swizzle",))


@given(st.lists(st.integers(0, 1000), max_size=12), st.integers(0, 5000))
def test_fair_shares_fit_and_leave_nothing_over(sizes, budget):
    level = html.fair_share(sizes, budget)
    used = sum(min(size, level) for size in sizes)
    assert used <= budget
    assert used == sum(sizes) or budget - used < len(sizes)


# ---- the document ----------------------------------------------------------------------------------------------------------


def test_blobs_restore_the_texts_of_stages_with_lines_and_ops(summed):
    made = summed.bundle()[document.MIME]
    assert (made["kind"], made["schema"]) == ("compile", 4)
    trace = summed.views[1].trace
    view = made["views"][1]
    for stage, entry in zip(trace.stages, view["stages"], strict=True):
        content = read(made["blobs"], entry["text"])
        ids = [op.id for op in stage.after.ops()]
        shown = [op for op in content["ops"] if op >= 0]
        assert set(shown) <= set(ids) and len(content["lines"]) == content["text"].count("\n") + 1
        assert len(entry["notes"]) == len(stage.notes)
    assert "ld.global" in read(made["blobs"], view["code"]["ptx"])["text"]


# ---- numbers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0.0000512, "51.2 ns"),
        (0.00312, "3.12 µs"),
        (0.9994, "999 µs"),
        (1.234, "1.23 ms"),
        (123.4, "123 ms"),
        (45678, "45.7 s"),
    ],
)
def test_times_have_three_digits_and_a_fitting_unit(milliseconds, text):
    assert numbers.time(milliseconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(16, "16 B"), (32768, "32 KiB"), (12_000_000, "11.4 MiB"), (2**40, "1024 GiB")]
)
def test_sizes_have_binary_units(count, text):
    assert numbers.size(count) == text


def test_marked_text_is_escaped_and_unbalanced_quotes_are_left():
    assert html.marked("`a<b>` c") == "<code>a&lt;b&gt;</code> c"
    assert html.marked("it's `odd") == "it&#x27;s `odd"


def test_a_place_outside_of_the_kernels_file_is_the_line_of_its_call():
    from blocknb.errors import Loc

    call = Loc("cell", 7)
    assert sections.line_of(Loc("library.py", 3, caller=call), "cell") == 7
    assert sections.line_of(Loc("library.py", 3), "cell") is None


def test_a_card_shows_which_lab_extension_the_page_has_loaded(monkeypatch):
    from blocknb.notebook import extension

    monkeypatch.setattr(extension, "answers", [])
    assert extension.page() is None
    monkeypatch.setattr(extension, "installed", lambda: ("0.1.0", None))
    extension.answers.append(extension.Announcement("0.1.0", 1))
    assert extension.page() == "lab extension 0.1.0 loaded"
    extension.answers.append(extension.Announcement("0.0.9", 1))
    assert extension.page() == "lab extension 0.0.9 loaded; this environment has 0.1.0"


def test_the_head_counts_the_accesses_that_are_checked(summed):
    facts, trace = dict(summed.facts), summed.views[0].trace
    accesses = sum(op.name in ("load", "store") for op in trace.stages[-1].after.ops())
    assert facts["bounds, CPU"] == f"{accesses} of {accesses} accesses checked"
    assert "bounds, sm_90a" not in facts  # a GPU checks only if the user asks for it
    bare = {"x": {"kind": "array", "extent": "unknown"}, "n": {"kind": "scalar"}}
    assert numbers.checked(trace, bare).endswith("accesses checked; no bounds are known for `x`")
