"""Features 2 and 11: the effect of each pass on each op, and the reasons of passes without effect."""

from __future__ import annotations

import pytest
from browser import eventually
from softmax import COMMENTED, fresh, listing


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """The trace of version 3, compiled in the test process."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("fresh")
        patch.setenv("BLOCKNB_CACHE_DIR", str(folder / "cache"))
        yield fresh(folder, COMMENTED)


@pytest.fixture
def passes(softmax):
    card = softmax.card(3)
    card.open("Passes")(".bnb-stage").having("parse").click()
    return card


def ops_of(stage):
    return {op.id for op in stage.after.ops()}


def effects(card):
    return dict(zip(card.panel(".bnb-stage-name").texts, card.panel(".bnb-stage-effect").texts, strict=True))


def choose(card, name):
    """Selects a pass by its name."""
    card.panel(f'.bnb-stage[data-name="{name}"]').click()
    card.panel(".bnb-about strong").wait()


def test_pipeline_view_equals_that_of_a_fresh_compile(passes, trace):
    names = passes.panel(".bnb-stage-name").texts
    assert names == [stage.name for stage in trace.stages]
    for stage in (trace.stages[0], trace.stages[-1]):
        choose(passes, stage.name)
        code = passes.listing("IR")
        eventually(lambda code=code: code.code, lambda text, stage=stage: text == listing(stage))
    assert effects(passes)["parse"] == f"{len(ops_of(trace.stages[0]))} ops"


def test_an_op_shows_which_pass_created_it_and_which_removed_it(passes, trace):
    by_stage = [(stage.name, ops_of(stage)) for stage in trace.stages]
    created: dict[int, str] = {}
    gone: dict[int, str] = {}
    for (_, before), (name, after) in zip([("", set()), *by_stage], by_stage, strict=False):
        created |= dict.fromkeys(after - before, name)
        gone |= dict.fromkeys(before - after, name)
    assert len(by_stage) > 5
    late = next(op for op in sorted(by_stage[-1][1]) if created[op] != "parse")
    removed = next(op for op in sorted(by_stage[0][1]) if op in gone)

    def history(stage, op):
        choose(passes, stage.name)
        code = passes.listing("IR")
        eventually(lambda: code.code, lambda text: text == listing(stage))
        from blocknb.ir.text import print_lines

        number = next(i for i, (_, found, _) in enumerate(print_lines(stage.after), 1) if found == op)
        code.line(number).hover()
        return passes.panel(".bnb-details").until_text(f"op {op}: ")

    assert f"created by {created[late]}" in history(trace.stages[-1], late)
    assert f"removed by {gone[removed]}" in history(trace.stages[0], removed)
    passes.leave()


def test_two_passes_side_by_side_show_changed_added_and_removed_ops(passes, trace):
    at = next(i for i, stage in enumerate(trace.stages) if stage.name == "coalesce")
    before, after = trace.stages[at - 1], trace.stages[at]
    choose(passes, "coalesce")
    passes.panel("[aria-label='Compare with']").choose(f"{before.name} (previous pass)")
    summary = passes.panel(".bnb-summary").until_text("Ops:")
    added = len(ops_of(after) - ops_of(before))
    assert (f"{added} added" in summary) if added else ("added" not in summary)
    assert passes.panel(".bnb-sides span").texts == [f"IR after {before.name}", f"IR after {after.name}"]
    left, right = passes.panel(".cm-merge-a .cm-content"), passes.panel(".cm-merge-b .cm-content")
    assert "#" in right.text and "#" not in left.text  # this pass adds the layouts
    passes.panel("[aria-label='Compare with']").choose("nothing")


def test_search_finds_the_first_pass_that_adds_a_text(passes, trace):
    has = ["barrier" in stage.text for stage in trace.stages]
    first = trace.stages[has.index(True)].name
    passes.panel("[aria-label='Text to find in the IR']").fill("barrier")
    passes.panel("[aria-label='Text to find in the IR']").press("Enter")
    passes.panel(".bnb-finder [role=status]").until_text(f"{first} adds it.")
    passes.panel("[aria-label='Compare with']").choose("nothing")


def test_pass_without_effect_gives_a_reason(passes, trace):
    idle = [stage for stage in trace.stages[1:] if stage.before is not None and not stage.changed]
    assert idle, "every pass changes this kernel: choose another kernel"
    for stage in idle:
        assert effects(passes)[stage.name] == "no change"
        choose(passes, stage.name)
        said = passes.panel(".bnb-about").until_text(stage.title.rstrip("."))
        reasons = [note.text for note in stage.notes] or ["The pass does not apply to this kernel."]
        assert all(reason in said for reason in reasons)
    passes.panel("text=hide passes without changes").click()
    choose(passes, "parse")
    shown = passes.panel(".bnb-stage-name").texts
    assert not {stage.name for stage in idle} & set(shown) and "layout_assignment" in shown
    passes.panel("text=hide passes without changes").click()


def test_keys_j_k_slash_and_d_work_on_the_list_of_passes(passes, trace):
    names = [stage.name for stage in trace.stages]
    chosen = passes.panel(".bnb-stage[aria-selected=true] .bnb-stage-name")
    listbox = passes.panel("[role=listbox]")
    listbox.focus()
    listbox.press("j", "j", "k")
    assert chosen.text == names[1]
    listbox.press("d")
    passes.panel(".bnb-sides").until_text(f"IR after {names[0]}", f"IR after {names[1]}")
    listbox.press("d", "/")
    passes.page.type("barrier")
    assert passes.panel("[aria-label='Filter passes and notes']").value == "barrier"
    assert len(passes.panel(".bnb-stage-name").texts) < len(names)
    passes.panel("[aria-label='Filter passes and notes']").fill("")
    assert passes.panel(".bnb-stage-name").texts == names
