"""`blocknb fuzz --cells`: random cells have no defect, seeded faults are found and reduced, and found defects stay fixed."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from blocknb import cli
from blocknb.cell_fuzz import inside, mutate, oracles, run, schema, zoo
from blocknb.cell_fuzz.cell import SETUP, CellSequence, FuzzCell, parse
from blocknb.cell_fuzz.generate import PROBE, generate
from blocknb.cell_fuzz.kernels import TEMPLATES, fill
from blocknb.cell_fuzz.oracles import CellOutcome, Usage
from blocknb.cell_fuzz.run import SETUP as WORKER
from blocknb.cell_fuzz.run import outcome_of
from blocknb.fuzz.numbers import Ambiguous
from blocknb.fuzz.worker import Setup, Worker

HERE = Path(__file__).parent
FOUND = sorted((HERE / "found").glob("*.txt"))
FIXTURES = HERE.parents[1] / "labextension" / "tests" / "fixtures"


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker(WORKER)
    yield made
    made.stop()


def check(worker: Worker, request: str, *args: object) -> None:
    outcome, _ = outcome_of(worker, request, *args)
    assert not outcome.failed, f"{outcome.kind} in cell {outcome.cell}: {outcome.detail}\n{args}"


@pytest.mark.parametrize("number", [*range(5), *(pytest.param(n, marks=pytest.mark.full) for n in range(5, 10))])
def test_a_sample_of_random_cells_has_no_defect(worker: Worker, number: int) -> None:
    check(worker, "generated", 2026, number)


@pytest.mark.full
@pytest.mark.parametrize("part", range(20))
def test_more_random_cells_have_no_defect(worker: Worker, part: int) -> None:
    for number in range(20 * part, 20 * part + 20):
        check(worker, "generated", 2027, number)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_defect_that_was_found_stays_fixed(worker: Worker, path: Path) -> None:
    check(worker, "given", parse(path.read_text(), path.name))


def test_every_template_is_right(worker: Worker) -> None:
    from random import Random

    cells = [FuzzCell(SETUP, "sane")]
    for template in TEMPLATES:
        cell = fill(Random(template.name), template)
        cells += [FuzzCell(cell.data, "sane"), FuzzCell(f"{cell.source}\n{cell.launch}", "sane")]
        cells += [FuzzCell(f"assert {cell.check}, (x, out)", "sane")]
    check(worker, "given", CellSequence(tuple(cells)))


@pytest.mark.parametrize(
    "fault",
    ["wrong", *(pytest.param(name, marks=pytest.mark.full) for name in ("crashed", "document", "traceback", "leaked"))],
)
def test_a_seeded_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("CELL_FUZZ_FAULT", fault)
    worker = Worker(Setup(prepare="broken_notebook"))
    card = FuzzCell(PROBE.replace("--quiet", "--target cpu"))
    code, checked = PROBE.rsplit("\n", 1)
    cells = (FuzzCell(SETUP, "sane"), FuzzCell("1 + 1"), FuzzCell(code), FuzzCell(checked, "check"), card)
    try:
        outcome, _ = outcome_of(worker, "given", CellSequence(cells))
        assert outcome.kind == fault, outcome
        if fault == "wrong":  # the second cell is not needed
            again = lambda s: outcome_of(worker, "given", s)[0]  # noqa: E731
            small, found = run.reduced(CellSequence(cells), outcome, again, 20.0)
            assert found.key == outcome.key
            assert len(small.cells) == 3
    finally:
        worker.stop()


@pytest.mark.full
def test_a_hanging_cell_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PATIENCE", 6.0)
    worker = Worker(WORKER)
    try:
        deaf = "import time\nwhile True:\n    try:\n        time.sleep(9)\n    except KeyboardInterrupt:\n        pass"
        outcome, cells = outcome_of(worker, "given", CellSequence((FuzzCell("1"), FuzzCell(deaf, "", 0.1))))
        assert (outcome.kind, outcome.cell, cells) == ("hung", 1, 2)
    finally:
        worker.stop()


def test_an_interrupted_cell_ends_and_the_next_one_works(worker: Worker) -> None:
    endless = (
        "%%blockkernel\n@blocknb.kernel\ndef k(out):\n    while tl.load(out) < 1:\n        tl.store(out, 0)\nk[2](out)"
    )
    cells = (
        FuzzCell(SETUP, "sane"),
        FuzzCell("out = np.zeros(8, np.int32)", "sane"),
        FuzzCell(endless, "", 0.3),
        FuzzCell(PROBE, "sane"),
    )
    check(worker, "given", CellSequence(cells))


def test_a_finding_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["fuzz", "--replay", str(tmp_path / "none.txt")]) == 2
    assert capsys.readouterr().err == f"blocknb fuzz: there is no file {tmp_path / 'none.txt'}\n"


@pytest.mark.full
def test_the_command_reports_the_number_of_cells(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "cells.txt"
    file.write_text(CellSequence((FuzzCell(SETUP, "sane"), FuzzCell("1 / 0"))).text())
    assert cli.main(["fuzz", "--cells", "--seed", "1", "--count", "1", "--out", str(tmp_path / "out")]) == 0
    assert re.search(r"\d+ cells in 1 sequences in .* cells/s: 0 wrong, 0 dead", capfd.readouterr().out)
    assert not (tmp_path / "out").exists()
    assert cli.main(["fuzz", "--replay", str(file)]) == 0
    file.write_text(CellSequence((FuzzCell("1 / 0", "sane"),)).text())
    assert cli.main(["fuzz", "--replay", str(file)]) == 1
    assert "dead in cell 0: ZeroDivisionError" in capfd.readouterr().out


# ---- the parts -------------------------------------------------------------------------------------------------------------


def test_a_sequence_depends_only_on_its_seed_and_number_and_survives_its_text_form() -> None:
    for number in range(40):
        made = generate(3, number)
        assert generate(3, number) == made
        if not any("\r" in cell.code for cell in made.cells):
            again = parse(made.text(), made.name)
            assert [(c.code, c.role) for c in again.cells] == [(c.code, c.role) for c in made.cells]
    assert generate(3, 1) != generate(4, 1)


def test_mutations_change_the_source_and_are_often_valid_python() -> None:
    from random import Random

    valid = changed = 0
    source = TEMPLATES[0].source.format(k="k", f="2.0")
    for i in range(100):
        found = mutate.mutated(Random(i), source)
        changed += found != source
        try:
            compile(found, "cell", "exec")
            valid += 1
        except SyntaxError:
            pass
    assert changed > 90
    assert 60 < valid < 100


def test_the_zoo_gives_cells_and_the_text_of_each_is_whole() -> None:
    cuts = zoo.cuts()
    assert len(cuts) > 30
    for cut in cuts:
        compile(cut.text, cut.name, "exec")
        assert all("def " in cut.text.split("\n")[first - 1] for first, _ in cut.kernels)


@pytest.mark.parametrize("name", ["scale", "versions", "diff", "bench"])
def test_the_documents_of_the_page_match_its_schema(name: str) -> None:
    assert schema.problem(json.loads((FIXTURES / f"{name}.json").read_text())) == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.pop("facts"), "document.facts is missing"),
        (lambda d: d.update(extra=1), "document.extra is not in the schema"),
        (lambda d: d.update(schema="3"), "document.schema is '3', not a number"),
        (lambda d: d["views"][0].update(role="none"), "document.views[0].role is 'none'"),
        (lambda d: d["views"][0]["stages"][0].update(made=[1, None]), "document.views[0].stages[0].made[1] is None"),
        (lambda d: d["launches"][0].update(rate={"value": 1}), "document.launches[0].rate.unit is missing"),
        (lambda d: d["facts"].append(["one"]), "not an array of 2"),
        (lambda d: d["blobs"].update({next(iter(d["blobs"])): "junk"}), "is not readable"),
        (lambda d: d["views"][0]["stages"][0].update(text="nothing"), "names the blob nothing"),
        (lambda d: d["knobs"]["num_warps"].update(name="n"), "document.knobs.num_warps.name is not in the schema"),
        (lambda d: d["views"][0]["code"].update(binary="x"), "document.views[0].code.binary is not in the schema"),
    ],
)
def test_a_wrong_document_is_refused(change, says: str) -> None:
    document = json.loads((FIXTURES / "scale.json").read_text())
    change(document)
    assert says in schema.problem(document)


def test_an_outcome_has_the_same_key_with_other_numbers() -> None:
    assert CellOutcome("wrong", "element 3 is 4.5").key == CellOutcome("wrong", "element 17 is 2.0").key
    assert CellOutcome("wrong", "element 3").key != CellOutcome("dead", "element 3").key


def test_growth_of_threads_and_files_is_named_and_little_growth_is_not() -> None:
    before = Usage(threads=4, descriptors=10, children=1, files=0, megabytes=100)
    assert before.grown(Usage(6, 12, 2, 1, 150), 20) == ""
    assert before.grown(Usage(30, 12, 2, 9, 150), 20) == "26 more threads, 9 more files"


def test_the_threads_that_launches_keep_are_no_growth() -> None:
    before, end = Usage.now(), threading.Event()
    for name in ("blocknb-cpu", "other"):
        threading.Thread(target=end.wait, name=name, daemon=True).start()
    assert Usage.now().threads == before.threads + 1
    end.set()


# ---- compiled and interpreted ------------------------------------------------------------------------------------------------


def test_a_launch_that_differs_from_its_interpretation_is_silent_and_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    import blocknb
    import blocknb.language as tl
    from blocknb.runtime.host import HostKernel

    @blocknb.kernel
    def store(out):
        tl.store(out + tl.program_id(0), 1.0)

    @blocknb.kernel
    def race(out):
        tl.store(out, tl.program_id(0))

    out = np.zeros(4, np.float32)
    inside.both(lambda: store[4](out))
    assert out.tolist() == [1, 1, 1, 1]
    with pytest.raises(Ambiguous, match="order of the programs"):
        inside.both(lambda: race[4](np.zeros(1, np.int32)))
    with pytest.raises(blocknb.AccessError):
        inside.both(lambda: store[5](out))
    plain = HostKernel.launch
    monkeypatch.setattr(HostKernel, "launch", lambda self, grid, *args: plain(self, (2, 1, 1), *args))
    with pytest.raises(inside.Silent, match="2 of 4 elements of `out` differ"):
        inside.both(lambda: store[4](np.zeros(4, np.float32)))


@pytest.mark.parametrize("clone", ["/home/ada/blocknb", "/home/ada/src", "/srv/blocknb"])
def test_a_frame_belongs_to_the_package_whatever_the_clone_is_called(
    clone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    package = Path(clone, "blocknb")
    frames = lambda file: oracles.frames_of_package(f"File {file}, line 7, in run", package)  # noqa: E731
    for folder in (clone, clone.replace("/home/ada", "~")):
        assert frames(f"{folder}/blocknb/runtime/host.py") == ["runtime/host.py"]
        assert not frames(f"{folder}/blocknb/cell_fuzz/inside.py")
        assert not frames(f"{folder}/tests/zoo/registry.py")
        assert not frames(f"/mnt{folder}/blocknb/runtime/host.py")


def test_an_interrupt_that_python_drops_in_a_callback_is_no_defect() -> None:
    lines = [
        "Exception ignored in: <function WeakKeyDictionary.__init__.<locals>.remove at 0x7f>",
        "Traceback (most recent call last):",
    ]
    lines += ['  File "/python/weakref.py", line 370, in remove', "    self = selfref()", "KeyboardInterrupt: ", "4"]
    assert oracles.DROPPED.sub("", "\n".join(lines)) == "4"
    assert "Exception ignored" in oracles.DROPPED.sub(
        "", "\n".join(lines).replace("KeyboardInterrupt: ", "TypeError: no")
    )
