"""The data of the Step, Launch and Footprint views: the bytes are those of the footprint, and the values those of the interpreter."""

from __future__ import annotations

import base64
import math
import sys
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
from observed import observed

import blocknb
import blocknb.language as tl
from blocknb.frontend.calls import in_language
from blocknb.kernels.add import add
from blocknb.kernels.attention import attention
from blocknb.kernels.matmul import matmul_pointers
from blocknb.kernels.softmax import softmax
from blocknb.kernels.transpose import transpose
from blocknb.notebook import card, live
from blocknb.notebook.blobs import unpack
from blocknb.notebook.helper_sources import LINES
from blocknb.notebook.teaching import part
from blocknb.notebook.teaching.arguments import arguments_of
from blocknb.notebook.teaching.step_view import recorded


@blocknb.kernel
def stencil_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x + at - 1, mask=(at > 0) & (at < n), other=0.0)
    here = tl.load(x + at, mask=at < n)
    right = tl.load(x + at + 1, mask=at + 1 < n, other=0.0)
    tl.store(out + at, left + here + right, mask=at < n)


@blocknb.kernel
def clashing_kernel(out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * (BLOCK - 1) + tl.arange(0, BLOCK)
    tl.store(out + at, pid, mask=at < n)


random = np.random.default_rng(0)
X, Y, Z = (random.standard_normal(1000).astype(np.float32) for _ in range(3))
A, B, C = (random.standard_normal((96, 80)).astype(np.float32) for _ in range(3))
S, P, Q = (random.standard_normal((64, 64)).astype(np.float32) for _ in range(3))
HEADS = [random.standard_normal((1, 2, 64, 16)).astype(np.float32) for _ in range(4)]
TURNED = np.empty((80, 96), np.float32)

LAUNCHES = {
    "add": lambda: add(X, Y, Z, block=128),
    "softmax": lambda: softmax(A, C),
    "matmul": lambda: matmul_pointers(S, P, Q, tile=(32, 32, 16)),
    "transpose": lambda: transpose(A, TURNED, tile=32),
    "stencil": lambda: stencil_kernel[(8,)](X, Z, 1000, BLOCK=128),
    "attention": lambda: attention(*HEADS, tile={"ROWS": 32, "COLUMNS": 16, "num_warps": 4, "num_stages": 2}),
}


@pytest.fixture(scope="module", params=LAUNCHES)
def launched(request):
    return card.card_of(observed(LAUNCHES[request.param]))


def shown(made, view, **asked):
    """The part that a page gets."""
    (found,) = part.parts_of(made, view, asked, (part.LIVE,))
    assert "packed" in found, found
    return unpack(found["packed"])


def rebound(made):
    return made.record.kernel.footprint(made.main.grid)(**arguments_of(made.record.kernel, made.main))


def area(rects):
    return sum((bottom - top) * (right - left) for top, bottom, left, right in np.reshape(rects, (-1, 4)).tolist())


def test_the_bytes_of_all_steps_are_those_of_the_footprint(launched):
    found, seen = shown(launched, "launch"), rebound(launched)
    assert not found["cut"]
    loaded = sum(int(seen[name].loads.count.sum()) * np.dtype("f4").itemsize for name in seen)
    first = sum(seen[name].loads.elements * 4 for name in seen)
    stored = sum(int(seen[name].stores.count.sum()) * 4 for name in seen)
    sums = [sum(step[2][i] for step in found["steps"]) for i in range(3)]
    assert sums == found["totals"] == [loaded, first, stored]
    assert first > 0 and stored > 0


def test_the_tiles_of_a_step_are_the_elements_of_the_footprint(launched):
    found, seen = shown(launched, "launch"), rebound(launched)
    maps = {"load": "loads", "store": "stores", "atomic": "atomics"}
    by_program = {}
    for (_, program), _, _, events in found["steps"]:
        for op, rects in events:
            array, kind, _ = found["ops"][op]
            elements = by_program.setdefault((program, found["arrays"][array]["name"], maps[kind]), set())
            columns = found["arrays"][array]["columns"]
            for top, bottom, left, right in np.reshape(found["rects"][rects], (-1, 4)).tolist():
                elements |= {row * columns + column for row in range(top, bottom) for column in range(left, right)}
    for program in range(math.prod(launched.main.grid)):
        for name in seen:
            for kind in maps.values():
                expected = getattr(seen[name], kind).of(program).tolist()
                assert sorted(by_program.get((program, name, kind), ())) == expected


def test_a_loop_is_a_step_per_iteration():
    made = card.card_of(observed(LAUNCHES["matmul"]))
    found = shown(made, "launch")
    mine = [step for step in found["steps"] if step[0][1] == 3]
    assert [step[1] for step in mine] == [0, 1, 2, 3]
    kinds = [[found["ops"][op][1] for op, _ in step[3]] for step in mine]
    assert kinds == [["load", "load"]] * 3 + [["load", "load", "store"]]
    a = rebound(made)["a"].loads
    for step in mine:
        (rects,) = [found["rects"][r] for op, r in step[3] if found["arrays"][found["ops"][op][0]]["name"] == "a"]
        assert area(rects) == len(a.of(3, iteration=step[1]))


def test_a_later_window_of_a_launch_goes_on_counting(launched):
    whole = shown(launched, "launch")
    late = shown(launched, "launch", first=whole["programs"] // 2)
    counted = [sum(step[2][i] for step in late["steps"]) + late["before"][i] for i in range(3)]
    assert counted == whole["totals"]


def decoded(table, index):
    """The elements of a value of a Step part, and how far apart they are in the tile."""
    value = table[index]
    data = np.frombuffer(base64.b64decode(value["data"]), {"u1": "u1"}.get(value["kind"], "<" + value["kind"]))
    return data.reshape(value["shown"]), value["every"]


def test_the_values_of_a_step_are_those_of_the_interpreter(launched):
    found = shown(launched, "step", programs=[0, 1])
    kernel, made, compared = launched.record.kernel, launched.main, 0
    for run, ids in zip(found["runs"], [(0, 0, 0), None], strict=True):
        if ids is None:
            ids = np.unravel_index(run["program"], made.grid[::-1])[::-1]
        record = recorded(kernel, made, tuple(map(int, ids)), arguments_of(kernel, made, made.compiled.stored))
        own = [one for one in record.assigned if not in_language(one.loc)]
        events = [event for event in run["events"] if event[1] == "set"]
        assert [(e[0] % LINES, e[2]) for e in events] == [(one.line, one.name) for one in own]
        assert not run["cut"] and not run["error"]
        for (_, _, _, text, index, _), one in zip(events, own, strict=True):
            if one.type is None or one.type.is_pointer:
                continue
            if not one.value.ndim:
                assert text == str(one.value.item())
                continue
            data, (rows, columns) = decoded(found["values"], index)
            flat = np.asarray(one.value)
            flat = flat.reshape(-1, flat.shape[-1]) if flat.ndim > 1 else flat.reshape(1, -1)
            np.testing.assert_array_equal(data, flat[::rows, ::columns])
            compared += 1
    assert compared > 4


def test_what_a_step_stores_is_in_the_result(launched):
    found = shown(launched, "step", programs=[0])
    names = [name for name, _ in found["results"]]
    assert names == sorted(names) and set(names) == set(launched.main.compiled.stored)
    stores = [event for event in found["runs"][0]["events"] if event[1] == "store"]
    assert stores and {event[2] for event in stores} == set(names)


def test_pointers_are_named_by_their_elements():
    made = card.card_of(observed(LAUNCHES["add"]))
    events = shown(made, "step", programs=[7])["runs"][0]["events"]
    assert [event[3] for event in events if event[1] == "load"] == [
        "x[896:1000], 104 of 128 on",
        "y[896:1000], 104 of 128 on",
    ]
    tiled = shown(card.card_of(observed(LAUNCHES["matmul"])), "step", programs=[1])["runs"][0]["events"]
    pointers = [event[3] for event in tiled if event[2] == "a_tile"]
    assert pointers[:4] == [f"a[32:64, {at}:{at + 16}]" for at in (0, 16, 32, 48)]
    assert pointers[4] == "a[33:65, 0:16], partly outside"


def test_a_long_recording_says_where_it_was_cut():
    made = card.card_of(observed(LAUNCHES["matmul"]))
    (small,) = part.parts_of(made, "step", {"programs": [0]}, (6000,))
    assert len(small["packed"]) <= 6000
    run = unpack(small["packed"])["runs"][0]
    assert run["cut"] == "the values are larger than what a card holds"
    whole = shown(made, "step", programs=[0])["runs"][0]
    assert [e[:4] for e in run["events"]] == [e[:4] for e in whole["events"][: len(run["events"])]]


def test_the_recording_leaves_the_arrays_of_the_user_alone(launched):
    arrays = {
        n: np.array(a) for n, a in arguments_of(launched.record.kernel, launched.main).items() if hasattr(a, "shape")
    }
    shown(launched, "step", programs=[0, 1])
    for name, value in arguments_of(launched.record.kernel, launched.main).items():
        if name in arrays:
            np.testing.assert_array_equal(value, arrays[name])


def test_the_footprint_view_has_the_owner_of_each_element(launched):
    found, seen = shown(launched, "footprint"), rebound(launched)
    assert {(m["array"], m["kind"]) for m in found["maps"]} == {
        (name, kind) for name in seen for kind in ("loads", "stores", "atomics") if getattr(seen[name], kind)
    }
    for one in found["maps"]:
        table = getattr(seen[one["array"]], one["kind"]).to_numpy().reshape(-1)
        moved = dict(np.reshape(one["moved"], (-1, 2)).tolist())
        for cell, (first, last) in enumerate(zip(one["first"], one["last"], strict=True)):
            corner = cell // one["columns"] * one["tall"] * one["width"] + cell % one["columns"] * one["wide"]
            element = moved.get(cell, corner if corner < len(table) else -1)
            assert (first, last) == (tuple(table[element])[:2] if element >= 0 else (-1, -1))


def test_clashes_and_holes_are_marked_with_their_line():
    out = np.zeros(40, np.int32)
    made = card.card_of(observed(lambda: clashing_kernel[(4,)](out, 40, BLOCK=8)))
    found = shown(made, "footprint")
    (one,) = found["maps"]
    assert [i for i, mark in enumerate(one["marks"]) if mark & 1] == [7, 14, 21]
    assert [i for i, mark in enumerate(one["marks"]) if mark & 2] == list(range(29, 40))
    assert (one["first"][7], one["last"][7], one["shared"], one["holes"]) == (0, 1, 3, 11)
    race = next(finding for finding in found["findings"] if finding["kind"] == "race")
    line = next(
        i
        for i, text in enumerate(made.source.split("\n"), clashing_kernel.source.node.lineno - 1)
        if "tl.store" in text
    )
    assert race["level"] == "error" and race["lines"] == [line] and one["lines"] == [line]


def test_a_page_gets_a_view_and_the_notebook_saves_it():
    made = live.register(card.card_of(observed(LAUNCHES["add"])))
    before = made.card.document(1 << 20)
    assert part.KEY not in before
    answer = live.REQUESTS["teach"](made, {"part": "launch"})
    assert answer["part"] == answer["saved"] == made.card.document(1 << 20)[part.KEY]["launch"]
    assert "error" in live.REQUESTS["teach"](made, {"part": "nothing"})


def test_a_launch_without_its_arrays_has_a_reason():
    made = card.card_of(observed(lambda: add(X, Y, np.empty(1000, np.float32), block=128)))
    (found,) = part.parts_of(made, "step", {}, (part.LIVE,))
    assert found == {"why": "the arrays of the launch are no longer available; run the cell again."}


def test_several_targets_are_views_of_one_card():
    record = observed(LAUNCHES["add"])
    made = card.card_of(record, "sm_80,sm_90a,sm_80")
    assert [view.label for view in made.views] == ["CPU", "sm_80", "sm_90a"]
    assert all(view.trace is not None and view.trace.ptx for view in made.views[1:])
    assert shown(made, "launch")["machine"]["chip"] == "A100"


@blocknb.kernel
def printing_kernel(out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.static_print("compiled", BLOCK)
    print("at", at)
    tl.device_print("device", at)
    tl.store(out + at, at)


def test_a_recording_prints_nothing_and_leaves_the_output_of_other_threads_alone(capsys):
    out = np.zeros(4, np.int32)
    made = card.card_of(observed(lambda: printing_kernel[(1,)](out, BLOCK=4)))
    capsys.readouterr()
    stdout = sys.stdout
    seen = []
    given = arguments_of(made.record.kernel, made.main)
    original = recorded.__globals__["interpreted"].run

    def run(*args, **kwargs):
        seen.append(sys.stdout is stdout)
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blocknb.runtime.interpreted.run", run)
        record = recorded(made.record.kernel, made.main, (0, 0, 0), given)
    assert seen == [True] and [one.name for one in record.assigned] == ["out", "BLOCK", "at"]
    assert capsys.readouterr().out == ""


@blocknb.kernel
def asserting_kernel(out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, helper(at))


@blocknb.kernel
def helper(x):
    twice = x * 2
    return twice + x


def test_a_program_that_fails_or_does_not_exist_has_a_reason():
    out = np.zeros(8, np.int32)
    made = card.card_of(observed(lambda: asserting_kernel[(1,)](out, BLOCK=8)))
    (found,) = part.parts_of(made, "step", {"programs": [1]}, (part.LIVE,))
    assert "program 1 is out of range: the grid has 1 programs" in found["why"]
    (ran,) = shown(made, "step", programs=[0])["runs"]
    assert [event[2] for event in ran["events"]] == ["out", "BLOCK", "at", "x", "twice", "out"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blocknb.runtime.interpreted.run", lambda *a, **k: 1 / 0)
        (failed,) = shown(made, "step", programs=[0])["runs"]
    assert failed["error"] == "ZeroDivisionError: division by zero" and failed["events"] == []


def line_of(kernel, text):
    """The number of the first line of a kernel's file, from the kernel on, that contains a text."""
    source = kernel.source
    return source.first_line + next(i for i, line in enumerate(source.text.split("\n")) if text in line)


@blocknb.kernel
def outer_helper(x):
    once = helper(x) - 1
    return once + 0


@blocknb.kernel
def nesting_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = outer_helper(tl.load(x + at))
    tl.store(out + at, loading(value, x + at))


@blocknb.kernel
def loading(value, pointers):
    return value + tl.load(pointers)


def places_of(found):
    """For each event of the first run the functions of its calls and its own, with the text of its line; and what it did with what."""
    (run,) = found["runs"]
    source = nesting_kernel.source
    texts = {
        "": (source.first_line, source.text),
        **{k: (h["first_line"], h["text"]) for k, h in found["helpers"].items()},
    }
    names = {"": "nesting_kernel", **{k: h["name"] for k, h in found["helpers"].items()}}

    def place(number):
        key, line = divmod(number, LINES)
        first, text = texts[str(key or "")]
        return names[str(key or "")], text.split("\n")[line - first].strip()

    return [
        ([place(n)[0] for n in calls], *place(e[0]), *e[1:3])
        for e, calls in zip(run["events"], run["calls"], strict=True)
    ]


def test_a_step_enters_helpers_and_returns_in_the_order_of_execution():
    x, out = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    made = card.card_of(observed(lambda: nesting_kernel[(1,)](x, out, BLOCK=8)))
    found = shown(made, "step", programs=[0])
    kernel, value, store = (
        "nesting_kernel",
        "value = outer_helper(tl.load(x + at))",
        "tl.store(out + at, loading(value, x + at))",
    )
    inside = [kernel, "outer_helper"]
    assert places_of(found)[3:] == [
        ([], kernel, "at = tl.arange(0, BLOCK)", "set", "at"),
        ([], kernel, value, "load", "x"),
        ([kernel], "outer_helper", "def outer_helper(x):", "set", "x"),
        (inside, "helper", "def helper(x):", "set", "x"),
        (inside, "helper", "twice = x * 2", "set", "twice"),
        ([kernel], "outer_helper", "once = helper(x) - 1", "set", "once"),
        ([], kernel, value, "set", "value"),
        ([kernel], "loading", "def loading(value, pointers):", "set", "value"),
        ([kernel], "loading", "def loading(value, pointers):", "set", "pointers"),
        ([kernel], "loading", "return value + tl.load(pointers)", "load", "x"),
        ([], kernel, store, "store", "out"),
    ]
    np.testing.assert_array_equal(out, 4 * x - 1)
    twice = next(e for e in found["runs"][0]["events"] if e[2] == "twice")
    np.testing.assert_array_equal(decoded(found["values"], twice[4])[0][0], 2 * x)


def test_a_step_enters_a_helper_of_another_cell_and_not_the_library(tmp_path):
    """The file stands for a cell: the helper has another file than the kernel. `tl.softmax` is written in the language."""
    (tmp_path / "elsewhere.py").write_text(
        "import blocknb\nimport blocknb.language as tl\n\n@blocknb.kernel\ndef activated(values):\n"
        "    best = tl.softmax(values)\n    return best\n"
    )
    spec = spec_from_file_location("elsewhere", tmp_path / "elsewhere.py")
    elsewhere = module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    activated = elsewhere.activated

    @blocknb.kernel
    def calling(x, out, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, activated(tl.load(x + at)))

    x, out = np.ones(8, np.float32), np.zeros(8, np.float32)
    made = card.card_of(observed(lambda: calling[(1,)](x, out, BLOCK=8)))
    found = shown(made, "step", programs=[0])
    (run,) = found["runs"]
    ((key, one),) = found["helpers"].items()
    assert (one["name"], one["file"], one["first_line"]) == ("activated", str(tmp_path / "elsewhere.py"), 4)
    number = int(key) * LINES
    call = line_of(calling, "activated(")
    inside = [(e[0], e[2], calls) for e, calls in zip(run["events"], run["calls"], strict=True) if calls]
    assert inside == [(number + 5, "values", [call]), (number + 6, "best", [call])]
    assert found["helpers"].keys() == made.document(1 << 20)["helpers"].keys()  # so that the lines of the cell light up


@blocknb.kernel
def two_loops(x, out, n, B: tl.constexpr):
    total = tl.zeros((B,), tl.float32)
    for at in range(0, n, B):
        total += tl.load(x + at + tl.arange(0, B))
    for at in range(0, n, B):
        for half in range(2):
            tl.store(out + at + half * B + tl.arange(0, B), total)


def test_two_loops_are_two_runs_of_steps_with_the_lines_of_their_loops():
    x, out = np.ones(256, np.float32), np.zeros(320, np.float32)
    found = shown(card.card_of(observed(lambda: two_loops[1](x, out, 256, B=64))), "launch")
    lines = [[found["ops"][op][2] for op, _ in step[3]] for step in found["steps"]]
    first = two_loops.source.first_line
    relative = [[line - first for line in step] for step in lines]
    assert relative == [[4]] * 4 + [[7]] * 8
    assert [[line - first for line in loop] for loop in found["loops"]] == [[3], [5, 6]]
