"""Lines that come from a helper in another cell name the helper and its line, in every listing that a document stores."""

from __future__ import annotations

import pytest

from blocknb.notebook.blobs import read
from blocknb.notebook.document import MIME
from blocknb.notebook.helper_sources import LINES, helper_at

HELPER = """\
import blocknb.language as tl
@blocknb.kernel
def scaled(values, factor):
    doubled = values * factor
    return tl.exp(doubled)
"""
KERNEL = """\
%%blockkernel --target sm_90a
@blocknb.kernel
def apply(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n)
    tl.store(out + at, scaled(values, 3.0), mask=at < n)
apply[1,](x, out, 64, BLOCK=64)
"""


@pytest.fixture
def made(notebook):
    """A function that runs cells and returns the document of the last one."""

    def run(*cells):
        answers = [notebook.run(cell) for cell in cells]
        assert [answer.status for answer in answers] == ["ok"] * len(answers), [
            a.error_text for a in answers if a.errors
        ]
        return answers[-1].cards[-1][MIME]

    return run


def test_each_line_of_the_ir_names_the_line_of_the_helper_and_that_of_the_call(made):
    document = made(HELPER, KERNEL)
    ((key, helper),) = document["helpers"].items()
    assert helper["name"] == "scaled" and helper["first_line"] == 2
    assert helper["text"] == HELPER.partition("\n")[2]
    lines = helper["text"].split("\n")
    stages = document["views"][0]["stages"]
    for stage in (stages[0], stages[-1]):
        content = read(document["blobs"], stage["text"])
        found = {}
        for text, line, inner in zip(content["text"].split("\n"), content["lines"], content["inner"], strict=True):
            if inner:
                assert (inner // LINES, line) == (int(key), 6)
                found[text.split(" = ")[1].split()[0]] = lines[inner % LINES - helper["first_line"]].strip()
        assert found["exp"] == "return tl.exp(doubled)"
        assert found.get("mul", found.get("mulf")) == "doubled = values * factor"
    at = [int(key) * LINES + line for line in (4, 5)]
    assert document["inlined"] == {"6": at}


def test_a_kernel_without_helpers_in_other_cells_has_none(made):
    document = made(KERNEL.replace("@blocknb", HELPER.partition("\n")[2] + "@blocknb", 1))
    assert "helpers" not in document and "inlined" not in document
    assert all("inner" not in read(document["blobs"], stage["text"]) for stage in document["views"][0]["stages"])


def test_functions_of_the_language_and_lines_outside_of_functions_are_no_helpers(tmp_path):
    from blocknb.language import ops

    assert helper_at(ops.__file__, 40) is None
    file = tmp_path / "helpers.py"
    file.write_text("A = 1\ndef outer():\n    def inner():\n        return A\n    return inner\n")
    assert helper_at(str(file), 1) is None
    assert [helper_at(str(file), line).name for line in (2, 4, 5)] == ["outer", "inner", "outer"]
    file.write_text("def broken(:\n")
    assert helper_at(str(tmp_path / "absent.py"), 1) is None
