"""`--check`, `--baseline`, `--without`, and the line magics: their results are on the card, and the user's data does not change."""

from __future__ import annotations

import json
import weakref

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

from blocknb.notebook import document, history
from blocknb.notebook.blobs import read
from blocknb.notebook.completion import candidates
from blocknb.notebook.register import register

DOUBLE = """@blocknb.kernel
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, {factor} * tl.load(x + at, mask=at < n), mask=at < n)

double[lambda meta: (blocknb.cdiv(1000, meta["BLOCK"]),)](x, out, 1000, BLOCK=128)
"""


class Shell:
    def __init__(self):
        self.ip = InteractiveShell()
        self.displayed = []
        self.ip.display_pub.publish = lambda data, *args, **kwargs: self.displayed.append(data)
        register(self.ip)
        self.run("import blocknb, blocknb.language as tl, numpy as np")

    def run(self, cell):
        self.displayed.clear()
        return self.ip.run_cell(cell, store_history=True)

    @property
    def documents(self):
        return [d[document.MIME] for d in self.displayed if document.MIME in d]


@pytest.fixture(scope="module")
def shared_shell():
    return Shell()


@pytest.fixture
def shell(shared_shell):
    history._histories.clear()
    shared_shell.ip.user_ns.update(x=np.arange(1000, dtype=np.float32), out=np.zeros(1000, np.float32))
    shared_shell.ip.user_ns.pop("double", None)
    return shared_shell


def launch(shell, factor=2.0, options=""):
    result = shell.run(f"%%blockkernel {options}\n" + DOUBLE.format(factor=factor))
    return result, shell.documents[0]


# ---- history ---------------------------------------------------------------------------------------------------------------


def test_a_changed_source_is_a_version_and_a_rerun_is_a_measurement(shell):
    launch(shell, 2.0)
    launch(shell, 2.0)
    _, made = launch(shell, 3.0)
    versions = made["history"]["versions"]
    assert [(v["number"], v["measurements"]) for v in versions] == [(1, 2), (2, 1)]
    assert versions[1]["note"] == "+1 −1 lines" and versions[1]["version"] == made["version"]
    assert "2.0 * tl.load" in read(made["blobs"], versions[0]["source"])["text"]
    assert all(v["time"]["median"] > 0 and v["registers"] > 0 for v in versions)
    _, made = launch(shell, 2.0)  # back to the first text
    assert [v["measurements"] for v in made["history"]["versions"]] == [3, 1]


def test_the_stages_of_the_version_before_are_stored_with_the_card(shell):
    launch(shell, 2.0)
    _, made = launch(shell, 3.0)
    view = next(v for v in made["history"]["versions"][0]["views"] if v["target"] == "sm_90a")
    assert [s["name"] for s in view["stages"]] == [s["name"] for s in made["views"][1]["stages"]]
    assert "parse" == view["stages"][0]["name"]
    assert "2" in read(made["blobs"], view["stages"][0]["text"])["text"]


def test_history_fits_into_its_budget(shell):
    for factor in range(1, 6):
        _, made = launch(shell, float(factor))
    kernel, sizes = shell.ip.user_ns["double"], []
    for budget in (4_000, 6_000, 12_000, 24_000, 48_000):
        found = history.part(kernel, made["version"], {}, budget)
        sizes.append(len(json.dumps(found, ensure_ascii=False)))
        assert sizes[-1] <= budget
    assert sizes[0] < sizes[1] < sizes[2] < sizes[3]


def test_history_is_bounded_and_holds_no_array(shell, monkeypatch, collect):
    monkeypatch.setattr(history, "KEPT_VERSIONS", 3)
    for factor in range(1, 6):
        _, made = launch(shell, float(factor))
    assert [v["number"] for v in made["history"]["versions"]] == [3, 4, 5]
    reference = weakref.ref(shell.ip.user_ns["x"])
    del shell.ip.user_ns["x"]
    collect()
    assert reference() is None


# ---- options ---------------------------------------------------------------------------------------------------------------


def test_check_shows_on_the_card_and_in_the_history_whether_the_result_was_right(shell):
    _, made = launch(shell, 2.0, "--check np.allclose(out, 2 * x)")
    assert ["check", "correct: `np.allclose(out, 2 * x)`"] in made["facts"]
    _, made = launch(shell, 3.0, '--check "out == 2 * x"')
    assert ["check", "✗ WRONG: `out == 2 * x`"] in made["facts"]
    assert [v["ok"] for v in made["history"]["versions"]] == [True, False]


def test_an_error_in_a_check_is_the_cells_error_after_its_card(shell, capsys):
    result, made = launch(shell, 2.0, "--check missing_name")
    assert isinstance(result.error_in_exec, NameError) and made["kernel"] == "double"


def test_baselines_and_variants_are_measured_together_on_copies(shell):
    _, made = launch(
        shell, 2.0, '--baseline "np.multiply(x, 2, out=out)" --baseline out.fill(7) --without coalesce simplify'
    )
    np.testing.assert_array_equal(shell.ip.user_ns["out"], 2 * np.arange(1000))
    rows = made["bench"]["rows"]
    assert [(r["label"], r["kind"]) for r in rows] == [
        ("double", "kernel"),
        ("without coalesce, simplify", "without"),
        ("np.multiply(x, 2, out=out)", "baseline"),
        ("out.fill(7)", "baseline"),
    ]
    times = [r["time"] for r in rows]
    assert all(0 < t["low"] <= t["median"] <= t["high"] and t["cold"] and t["device"] == "CPU" for t in times)
    assert "ratio" not in rows[0] and all(r["ratio"]["pairs"] >= 12 for r in rows[1:])
    assert any(label == "baseline" and "`out.fill(7)`: " in text for label, text in made["facts"])
    assert made["launches"][0]["launches"] == 1  # repetitions are not launches of the cell


# ---- line magics -----------------------------------------------------------------------------------------------------------


def test_blockview_shows_a_kernel_or_one_of_its_versions_again(shell):
    launch(shell, 2.0)
    launch(shell, 3.0)
    shell.run("%blockview double")
    assert "3.0 *" in shell.documents[0]["source"]["text"]
    shell.run("%blockview double@1")
    assert "2.0 *" in shell.documents[0]["source"]["text"]


def test_blockbench_times_expressions_on_copies_of_their_arrays(shell):
    shell.run('%blockbench np.exp(x) "np.add(x, 1, out=out)"')
    (made,) = shell.documents
    assert made["kind"] == "bench" and [r["label"] for r in made["bench"]["rows"]] == [
        "np.exp(x)",
        "np.add(x, 1, out=out)",
    ]
    assert "np.exp(x)" in shell.displayed[0]["text/plain"] and "median" in shell.displayed[0]["text/plain"]
    assert (shell.ip.user_ns["out"] == 0).all()


def test_blockbench_times_an_expression_twice_to_show_the_noise(shell):
    shell.run("%blockbench np.exp(x) np.exp(x) np.exp(x)")
    (made,) = shell.documents
    assert [row["label"] for row in made["bench"]["rows"]] == ["np.exp(x)", "np.exp(x) (2)", "np.exp(x) (3)"]


def test_blockdiff_compares_versions_and_passes(shell):
    launch(shell, 2.0)
    launch(shell, 3.0)
    shell.run("%blockdiff double@1 double@2")
    text = shell.displayed[0]["text/plain"]
    assert "-    tl.store(out + at, 2.0 *" in text and "+    tl.store(out + at, 3.0 *" in text
    (made,) = shell.documents
    assert made["kind"] == "compare" and [side["label"] for side in made["compare"]["sides"]] == [
        "double@1",
        "double@2",
    ]
    assert "2.0 *" in read(made["blobs"], made["compare"]["sides"][0]["source"])["text"]
    for option in ("--target sm_80", "--target=sm_80"):
        shell.run(f"%blockdiff double@1 {option} double@2@sm_90a")
        (made,) = shell.documents
        assert [side["target"] for side in made["compare"]["sides"]] == ["sm_80", "sm_90a"]
    shell.run("%blockdiff double:parse double:coalesce")
    (made,) = shell.documents
    assert made["diff"]["b"]["language"] == "ir"
    assert "#a" in read(made["blobs"], made["diff"]["b"]["text"])["text"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%blockview nothing", "is not a kernel"),
        ("%blockdiff double", "two sides"),
        ("%blockdiff double double --target", "softmax@sm_80 softmax@sm_90a"),
        ("%blockdiff double double --target sm_80,sm_90a", "softmax@sm_80 softmax@sm_90a"),
        ("%blockdiff double double --show sass", "one option, --target"),
        ("%blockdiff double@1 double@7", "double@1"),
        ("%blockdiff double:parse double:nothing", "coalesce"),
        ("%blockbench", "expressions"),
        ("%blockbench x+", "not an expression"),
    ],
)
def test_a_wrong_line_is_a_usage_error_that_lists_the_choices(shell, capsys, line, says):
    launch(shell)
    result = shell.run(line)
    assert type(result.error_in_exec).__name__ == "UsageError" and says in str(result.error_in_exec)


@pytest.mark.parametrize("name", ["blockview", "blockbench", "blockdiff"])
def test_help_of_a_line_magic_shows_how_to_write_it(shell, capsys, name):
    assert shell.run(f"%{name}?").success
    assert f"%{name} softmax" in capsys.readouterr().out


def test_names_of_kernels_versions_and_passes_complete(shell):
    launch(shell, 2.0)
    assert candidates("%blockview dou", shell.ip) == ("dou", ["double"])
    assert candidates("%blockdiff double@", shell.ip) == ("double@", ["double@1"])
    assert candidates("%blockdiff double@1 double:si", shell.ip) == ("double:si", ["double:simplify"])
    assert candidates("%blockbench dou", shell.ip) == ("dou", [])


# ---- times and verdicts ----------------------------------------------------------------------------------------------------


def facts(made):
    return dict(map(tuple, made["facts"]))


def test_the_time_is_repeated_on_copies_and_the_first_launch_is_named_cold(shell):
    _, made = launch(shell, 2.0)
    (row,) = made["launches"]
    assert row["launches"] == 1 and row["first"]["n"] == 1 and row["first"]["cold"] and row["not_repeated"] == ""
    assert row["time"]["n"] > 3 and not row["time"]["cold"] and row["time"]["device"] == "CPU"
    assert (
        f"median of {row['time']['n']}, warm, " in facts(made)["time"]
        and "(1 launch, cold, CPU)" in facts(made)["first launch"]
    )
    assert made["history"]["versions"][0]["time"] == row["time"]
    np.testing.assert_array_equal(shell.ip.user_ns["out"], 2 * np.arange(1000))


def test_the_next_launch_of_the_same_code_is_not_cold(shell):
    launch(shell, 2.0)
    shell.run("%%blockkernel\ndouble[8](x, out, 1000, BLOCK=128);")
    (row,) = shell.documents[0]["launches"]
    assert row["first"]["n"] == 1 and not row["first"]["cold"]


def test_what_is_not_repeated_says_why(shell, monkeypatch):
    from blocknb.notebook import repeats

    monkeypatch.setattr(repeats, "MOST_BYTES", 1000)
    _, made = launch(shell, 2.0)
    assert "copies of what the kernel writes take 3.91 KiB" in facts(made)["not repeated"]
    assert facts(made)["time"].count("(1 launch, cold, CPU)") == 1 and "first launch" not in facts(made)
    monkeypatch.undo()
    monkeypatch.setattr(repeats, "SECONDS", 0.0)
    _, made = launch(shell, 3.0)
    assert facts(made)["not repeated"].startswith("one launch takes ")


def test_a_kernel_that_may_wait_for_its_own_writes_is_not_repeated(shell):
    body = """@blocknb.kernel
def spin(lock, out):
    while tl.load(lock) == 0:
        tl.store(lock, 1)
    tl.store(out, tl.load(lock))
spin[1](lock, out);"""
    shell.ip.user_ns["lock"] = np.zeros(1, np.int32)
    assert shell.run(f"%%blockkernel\n{body}").success
    assert "`while` loop" in facts(shell.documents[0])["not repeated"]


def test_a_verdict_stays_with_its_source_constants_target_and_types(shell):
    launch(shell, 2.0, "--check np.allclose(out, 2 * x)")
    _, made = launch(shell, 2.0)
    assert facts(made)["check"] == "correct (in an earlier run of the same code): `np.allclose(out, 2 * x)`"
    assert made["history"]["versions"][0]["ok"] is True
    _, made = launch(shell, 3.0)
    assert facts(made)["last checked"] == "version 1, correct: `np.allclose(out, 2 * x)`" and "check" not in facts(made)
    assert [v["ok"] for v in made["history"]["versions"]] == [True, None]
    shell.run("%%blockkernel\n" + DOUBLE.format(factor=2.0).replace("BLOCK=128", "BLOCK=256").replace("[8", "[4"))
    (made,) = shell.documents
    assert facts(made)["last checked"].startswith("this version with other constants, types or target, correct")
    assert made["history"]["versions"][0]["ok"] is None
    _, made = launch(shell, 2.0)
    assert made["history"]["versions"][0]["ok"] is True


def test_a_row_of_the_history_names_the_target_that_ran_before_one_that_is_displayed(shell):
    _, made = launch(shell, 2.0, "--target sm_80")
    (row,) = made["history"]["versions"]
    assert row["target"] == "sm_80" and row["time"]["device"] == "CPU"


@pytest.mark.parametrize("option", ["--target sm_80", "--check True", "--launch 1", "--checked race"])
def test_an_option_that_takes_one_value_is_refused_twice(shell, capsys, option):
    result, _ = shell.run(f"%%blockkernel {option} {option}\nout[0]"), None
    assert type(result.error_in_exec).__name__ == "UsageError"
    assert f"{option.split()[0]} is given twice" in str(result.error_in_exec)


def test_a_variant_that_its_target_ignores_says_so_with_the_gpus_prediction(shell):
    _, made = launch(shell, 2.0, "--without coalesce")
    row = made["bench"]["rows"][1]
    assert row["note"].startswith("no effect on the CPU: the code is the same. ") and "sm_90a" in row["note"]
    assert row["note"] in facts(made)["without coalesce"]


def test_an_interrupted_comparison_ends_the_cell_and_the_kernel_remains(shell):
    def interrupted(calls=iter([0, 0])):  # the warm-up calls it twice
        if next(calls, 1):
            raise KeyboardInterrupt

    shell.ip.user_ns["interrupted"] = interrupted
    result = shell.run("%%blockkernel --baseline interrupted()\n" + DOUBLE.format(factor=2.0))
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert np.array_equal(shell.ip.user_ns["out"], 2 * shell.ip.user_ns["x"])
    assert shell.run("%%blockkernel\n" + DOUBLE.format(factor=3.0)).success
