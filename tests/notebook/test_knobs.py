"""Knobs: a change gives the result of a fresh compilation, keeps the user's data, and on failure keeps the card."""

from __future__ import annotations

import types
import weakref

import numpy as np
import pytest
from observed import observed

import blocknb
import blocknb.language as tl
from blocknb.errors import KernelError, LaunchError
from blocknb.kernels.softmax import softmax_kernel
from blocknb.notebook import card, document, knobs, live
from blocknb.notebook.observe import record_of


@blocknb.kernel
def accumulate(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(out + at, mask=at < n) + tl.load(x + at, mask=at < n), mask=at < n)


@blocknb.kernel
def accumulate_pair(arrays, sizes, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < sizes[0]
    tl.store(arrays[1] + i, tl.load(arrays[1] + i, mask=mask) + tl.load(arrays[0] + i, mask=mask) * sizes[1], mask=mask)


def carded(launch):
    return card.card_of(observed(launch))


def accumulated(n=1000, block=128):
    x, out = np.ones(n, np.float32), np.zeros(n, np.float32)
    shown = carded(lambda: accumulate[lambda meta: (blocknb.cdiv(n, meta["BLOCK"]),)](x, out, n, BLOCK=block))
    return shown, x, out


def test_an_accumulating_kernel_gives_the_same_result_with_and_without_a_card():
    shown, _, out = accumulated()
    assert (out == 1).all()
    bundle = live.bundle(shown)
    for block in (64, 256, 1024):
        shown = knobs.with_knobs(shown, {"constants": {"BLOCK": block}})
        assert shown.main.launches > 1 and shown.main.grid[0] == blocknb.cdiv(1000, block)
    assert (out == 1).all() and bundle


def test_a_kernel_with_tuple_arguments_has_a_card_with_knobs():
    x, out = np.ones(1000, np.float32), np.zeros(1000, np.float32)

    def grid(meta):
        return (blocknb.cdiv(meta["sizes"][0], meta["BLOCK"]),)

    shown = carded(lambda: accumulate_pair[grid]((x, out), (1000, 1), BLOCK=128))
    assert live.bundle(shown)
    assert [knob["name"] for knob in knobs.offered(shown)["constants"]] == ["BLOCK"]
    assert shown.main.arguments["arrays.0"]["bytes"] == 4000
    shown = knobs.with_knobs(shown, {"constants": {"BLOCK": 256}})
    assert shown.main.launches > 1 and shown.main.grid[0] == 4
    assert (out == 1).all()


def test_after_a_knob_change_the_card_equals_that_of_a_new_compilation():
    shown, *_ = accumulated()
    changed = knobs.with_knobs(shown, {"constants": {"BLOCK": 512}, "num_warps": 8, "without": ["coalesce"]})
    view = changed.views[1].trace
    fresh = accumulate.trace("*fp32:16", "*fp32:16", "i32:8", BLOCK=512, num_warps=8, without=["coalesce"])
    assert view.ptx.split("// -- End")[0] == fresh.ptx.split("// -- End")[0]
    assert view.resources == fresh.resources and [n.text for n in view.notes] == [n.text for n in fresh.notes]
    assert [s.text for s in view.stages] == [s.text for s in fresh.stages]


def test_an_option_that_is_not_set_is_the_compilers_choice_and_can_be_reset():
    x, out = np.ones((8, 256), np.float32), np.empty((8, 256), np.float32)
    first = carded(lambda: softmax_kernel[8,](x, out, 256, 256, 256, BLOCK=256))
    assert [knobs.offered(first)["num_warps"][what] for what in ("value", "named")] == [1, False]  # the GPU's
    asked = {"num_warps": None, "num_stages": None}
    longer = knobs.with_knobs(first, {"constants": {"BLOCK": 8192}, **asked})
    assert [knobs.offered(longer)["num_warps"][what] for what in ("value", "named")] == [4, False]
    named = knobs.with_knobs(longer, {"constants": {"BLOCK": 256}, "num_warps": 4, "num_stages": 1})
    assert knobs.offered(named)["num_warps"]["named"] and knobs.offered(named)["num_stages"]["named"]
    assert "num_warps=4" in named.views[1].trace.stages[0].text
    again = knobs.with_knobs(named, {"constants": {"BLOCK": 256}, **asked})
    assert [s.text for s in again.views[1].trace.stages] == [s.text for s in first.views[1].trace.stages]
    assert again.views[1].trace.resources == first.views[1].trace.resources


def test_a_knob_change_does_not_replace_the_kernels_last_launch():
    shown, *_ = accumulated()
    latest, record = accumulate.latest, record_of(accumulate)
    knobs.with_knobs(shown, {"constants": {"BLOCK": 256}})
    assert accumulate.latest is latest and record_of(accumulate) is record


def test_nothing_of_a_live_card_keeps_an_array(collect):
    shown, x, out = accumulated()
    found = live.bundle(shown)
    shown = knobs.with_knobs(shown, {"constants": {"BLOCK": 256}})
    references = [weakref.ref(x), weakref.ref(out)]
    del x, out
    collect()
    assert [reference() for reference in references] == [None, None]
    again = knobs.with_knobs(shown, {"constants": {"BLOCK": 512}})  # compiles, and does not run
    assert again.main.launches == 0 and again.views[1].trace.constants["BLOCK"] == 512
    assert "no longer available" in knobs.offered(again)["why"] or "not launched" in knobs.offered(again)["why"]
    assert found


def test_a_value_that_fails_shows_the_error_and_keeps_the_card():
    shown, *_ = accumulated()
    with pytest.raises(KernelError):
        knobs.with_knobs(shown, {"constants": {"BLOCK": 100}})
    with pytest.raises(LaunchError, match="num_warps"):
        knobs.with_knobs(shown, {"num_warps": 3})
    with pytest.raises(LaunchError, match="has no constant"):
        knobs.with_knobs(shown, {"constants": {"SIZE": 1}})
    assert knobs.with_knobs(shown, {"constants": {"BLOCK": 64}}).main.launches


def test_the_card_warns_about_a_fixed_grid():
    x, out = np.ones(256, np.float32), np.zeros(256, np.float32)
    shown = carded(lambda: accumulate[2,](x, out, 256, BLOCK=128))
    assert "the grid (2, 1, 1) is fixed" in knobs.offered(shown)["why"] and knobs.offered(shown)["runs"]


def test_constants_of_an_autotuner_have_knobs():
    tuned = blocknb.autotune([blocknb.Config({"BLOCK": b}) for b in (64, 128)], key=["n"], restore_value=["out"])(
        accumulate
    )
    x, out = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    shown = carded(lambda: tuned[lambda meta: (blocknb.cdiv(1000, meta["BLOCK"]),)](x, out, 1000))
    assert (out == 1).all()
    assert [k["name"] for k in knobs.offered(shown)["constants"]] == ["BLOCK"]
    assert knobs.with_knobs(shown, {"constants": {"BLOCK": 512}}).main.grid == (2, 1, 1)
    assert (out == 1).all()


def test_constants_of_heuristics_follow_the_knobs():
    @blocknb.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
    @blocknb.kernel
    def fill(out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        if EVEN:
            tl.store(out + at, 1.0)
        else:
            tl.store(out + at, 1.0, mask=at < n)

    out = np.zeros(384, np.float32)
    shown = carded(lambda: fill[lambda meta: (blocknb.cdiv(384, meta["BLOCK"]),)](out, 384, BLOCK=128))
    assert [k["name"] for k in knobs.offered(shown)["constants"]] == ["BLOCK"]
    changed = knobs.with_knobs(shown, {"constants": {"BLOCK": 256}})
    assert changed.main.compiled.trace.constants["EVEN"] is False and changed.main.grid == (2, 1, 1)


def test_a_request_that_fails_is_answered_with_the_error():
    class Comm:
        sent: list = []

        def send(self, data):
            self.sent.append(data)

    x, out = np.ones((8, 100), np.float32), np.empty((8, 100), np.float32)
    shown = carded(lambda: softmax_kernel[8,](x, out, 100, 100, 100, BLOCK=128))
    card_id, comm = live.register(shown), Comm()
    live._answer(comm, card_id, {"id": 1, "what": "turn", "knobs": {"num_warps": 5}})
    live._answer(comm, card_id, {"id": 2, "what": "nothing"})
    live._answer(comm, card_id, {"id": 3, "what": "turn", "knobs": {"constants": {"BLOCK": 256}}})
    assert "num_warps is 5" in comm.sent[0]["error"] and "nothing" in comm.sent[1]["error"]
    first, answer = comm.sent[2:]
    assert (
        first["progress"] and first["document"]["views"][0]["resources"] == answer["document"]["views"][0]["resources"]
    )
    assert first["document"]["modified"]["text"] == knobs.MEASURING and "deferred" not in first["document"]
    for content in (first, answer):
        assert content["document"]["knobs"]["constants"][0]["value"] == 256
    assert answer["document"]["modified"]["ratio"] or answer["document"]["modified"]["verdict"] == "wrong"


def test_an_interrupted_comparison_shows_the_card_from_before(monkeypatch):
    from blocknb.notebook import comparison

    def interrupted(*args):
        raise KeyboardInterrupt

    shown, *_arrays = accumulated(block=32)
    sent, page = [], live.register(shown)
    monkeypatch.setattr(comparison, "compare", interrupted)
    comm = types.SimpleNamespace(send=sent.append)
    live._answer(comm, page, {"id": 1, "what": "turn", "knobs": {"constants": {"BLOCK": 64}}})
    values = [content["document"]["knobs"]["constants"][0]["value"] for content in sent[:2]]
    assert values == [64, 32] and sent[2] == {"id": 1, "error": "interrupted"} and page.card is shown


def test_a_page_requests_the_disassembly_after_the_card(monkeypatch):
    from blocknb.notebook import extension

    def view(bundle, number=1):
        return bundle[document.MIME]["views"][number]

    monkeypatch.setattr(extension, "answers", [])
    shown, *_ = accumulated(block=32)
    assert view(live.bundle(shown))["later"] == [] and view(live.bundle(shown))["code"]["sass"]
    monkeypatch.setattr(extension, "answers", [extension.Announcement("0.1.0", 2)])
    vars(shown.views[1].trace).pop("sass")
    vars(shown.views[0].trace).pop("assembly")
    found = live.bundle(shown)
    assert view(found)["later"] == ["sass"] and "sass" not in view(found)["code"]
    assert view(found, 0)["later"] == ["assembly"] and "assembly" not in view(found, 0)["code"]
    assert "sass" in found["text/plain"]
    card_of_page = live._cards[found[document.MIME]["model"]]
    whole = live.REQUESTS["whole"](card_of_page, {})["document"]
    assert whole["views"][0]["later"] == [] and whole["views"][0]["code"]["assembly"]
    assert (
        whole["views"][1]["later"] == [] and "EXIT" in card_of_page.listing(whole["views"][1]["code"]["sass"])["text"]
    )


def test_knobs_override_the_options_of_the_launch():
    x, out = np.ones(256, np.float32), np.zeros(256, np.float32)
    shown = carded(lambda: accumulate[2,](x, out, 256, BLOCK=128, num_warps=8))
    changed = knobs.with_knobs(shown, {"num_warps": 2})
    assert changed.main.launches and changed.main.compiled.options["num_warps"] == 2
    assert changed.views[1].trace.options["num_warps"] == 2


def scaled(n=1000, fixed=False, block=128):
    """A card of a kernel that writes an array and does not read it."""

    @blocknb.kernel
    def scale(x, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, 2.0 * tl.load(x + at, mask=at < n), mask=at < n)

    x, out = np.ones(n, np.float32), np.zeros(n, np.float32)
    grid = (blocknb.cdiv(n, block),) if fixed else lambda meta: (blocknb.cdiv(n, meta["BLOCK"]),)
    return carded(lambda: scale[grid](x, out, n, BLOCK=block)), x, out


def test_a_change_is_compared_with_the_cell_in_turns_and_its_outputs_are_judged():
    shown, _, out = scaled()
    changed = knobs.with_knobs(shown, {"constants": {"BLOCK": 256}, "num_warps": 8})
    part = changed.parts["modified"]
    assert f"(median of {part['now']['n']}, warm, " in dict(changed.facts)["time"]
    assert (
        part["settings"] == "BLOCK=256, num_warps=8"
        and part["outputs"] == "the outputs equal those of the cell’s kernel"
    )
    assert part["verdict"] in ("faster", "slower", "noise") and part["ratio"]["pairs"] >= 12
    assert part["cell"]["n"] == part["now"]["n"] > 12 and not part["now"]["cold"]
    assert (out == 2).all()


def test_a_change_that_leaves_holes_is_wrong_and_has_no_time():
    shown, _, out = scaled(fixed=True)
    changed = knobs.with_knobs(shown, {"constants": {"BLOCK": 64}})
    part = changed.parts["modified"]
    assert part["verdict"] == "wrong" and part["text"].startswith("✗ WRONG: 49 % of `out` differs")
    assert part["ratio"] is None and part["now"] is None and changed.main.timing is None
    assert ("knobs", f"`BLOCK=64`, changed after the cell ran: {part['text']}") in changed.facts
    assert (out == 2).all()


def test_a_switch_that_the_cpu_ignores_says_so_and_what_the_model_predicts_for_the_gpu():
    shown, *_ = scaled(block=512)
    notes = knobs.with_knobs(shown, {"without": ["coalesce"]}).parts["modified"]["notes"]
    assert "no effect on the CPU: the code is the same" in notes
    assert any(
        note.startswith("sm_90a: the code differs, and its time is not predicted. The kernel has no MMA")
        for note in notes
    )
    same = knobs.with_knobs(shown, {"without": ["mma_softmax_overlap"]}).parts["modified"]["notes"]
    assert "no effect on sm_90a: the code is the same" in same


def test_the_timelines_model_compares_the_gpu_code_of_a_product():
    a = np.ones((64, 64), np.float16)

    @blocknb.kernel
    def product(a, b, c, K, BLOCK: tl.constexpr):
        i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
        total = tl.zeros((BLOCK, BLOCK), tl.float32)
        for k in range(0, K, BLOCK):
            total += tl.dot(tl.load(a + i * K + k + j), tl.load(b + (k + i) * BLOCK + j))
        tl.store(c + i * BLOCK + j, total)

    c = np.zeros((64, 64), np.float32)
    shown = carded(lambda: product[1,](a, a, c, 64, BLOCK=64))
    notes = knobs.with_knobs(shown, {"without": ["select_wgmma", "select_mma"]}).parts["modified"]["notes"]
    assert any(note.startswith("sm_90a: the timeline's model predicts ") for note in notes), notes


def test_the_notebook_saves_the_card_of_the_cell_and_names_the_change_in_it():
    shown, *_ = scaled()
    page = live._cards[live.bundle(shown)[document.MIME]["model"]]
    cell = page.card
    wanted = {"constants": {"BLOCK": 256}, "num_warps": None, "num_stages": None, "without": []}
    answer = live.REQUESTS["turn"](page, {"knobs": wanted})
    shown_now, kept = answer["document"], answer["saved"]
    assert (
        shown_now["launches"][-1]["constants"]["BLOCK"] == "256" and kept["launches"][-1]["constants"]["BLOCK"] == "128"
    )
    assert kept["modified"] == shown_now["modified"] and kept["modified"]["settings"] == "BLOCK=256"
    assert any(label == "knobs" and "changed after the cell ran" in text for label, text in kept["facts"])
    assert kept["launches"][-1]["time"]["n"] > 1
    back = live.REQUESTS["turn"](page, {"knobs": {**wanted, "constants": {"BLOCK": 128}}})
    assert page.card is page.cell and page.cell.record is cell.record
    assert "saved" not in back and "modified" not in back["document"]


def test_a_page_that_connects_again_shows_the_card_of_the_cell():
    class Comm:
        def send(self, data):
            pass

        def on_msg(self, handler):
            pass

    shown, *_ = scaled()
    page = live._cards[live.bundle(shown)[document.MIME]["model"]]
    live.REQUESTS["turn"](page, {"knobs": {"constants": {"BLOCK": 256}}})
    assert page.card is not page.cell
    live.opened(Comm(), {"content": {"data": {"card": page.id}}})
    assert page.card is page.cell


def test_copies_that_do_not_fit_leave_the_change_unmeasured(monkeypatch):
    from blocknb.notebook import repeats

    monkeypatch.setattr(repeats, "MOST_BYTES", 100)
    shown, *_ = scaled()
    changed = knobs.with_knobs(shown, {"constants": {"BLOCK": 256}})
    part = changed.parts["modified"]
    assert part["verdict"] == "unmeasured" and "copies of what the kernel writes take" in part["text"]
    assert not changed.main.launches
