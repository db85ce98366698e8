"""The language documents itself: every name has a description and an example that runs, and docs/language.md is up to date."""

from __future__ import annotations

import ast
import inspect
import json
import pydoc
from pathlib import Path

import pytest

import blocknb.language as tl
from blocknb.errors import KernelError
from blocknb.language import versions
from blocknb.testing import reference
from blocknb.testing.examples import Example, documented, dtypes, examples, outcome

EXAMPLES = examples()
TABLE = reference.read(reference.TABLE.read_text())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_of_a_name_gives_the_documented_result(name):
    example = EXAMPLES[name]
    assert example is not None, f"the docstring of {name} ends without an example"
    assert example.claims
    found = tuple(reference.state(example, room, reference.recorded()) for room in reference.COLUMNS)
    assert TABLE.get(name) == found, "blocknb reference writes the table anew"


def test_the_reference_lists_every_name_in_a_group():
    assert TABLE.keys() == EXAMPLES.keys(), "blocknb reference writes the table anew"
    assert reference.render(TABLE) == reference.TABLE.read_text(), "blocknb reference writes the table anew"
    lost = [name for name in EXAMPLES if reference.group(name) == "Other names"]
    assert lost == [], "give these a place in reference.GROUPS"
    assert {name.rpartition(".")[2] for name in EXAMPLES} >= set(dtypes())


@pytest.mark.parametrize(("name", "function"), list(documented()))
def test_every_name_has_a_description(name, function):
    text = inspect.getdoc(function) or ""
    assert text
    assert str(inspect.signature(function)).startswith("(")
    assert len(reference.summary(function)) > 6


@pytest.mark.parametrize(
    "body",
    [
        "tl.fma(tl.arange(0, 4), 1, 2)",
        "tl.fdiv(tl.arange(0, 4), 2)",
        "tl.div_rn(tl.arange(0, 4), 2)",
        "tl.atomic_and(a_ptr, 1)",
        "tl.xor_sum(tl.load(a_ptr + tl.arange(0, 4)), 0)",
        "tl.reduce_or(tl.load(a_ptr + tl.arange(0, 4)), 0)",
        "tl.arange(0, 3)",
        "tl.load(i_ptr, other=1)",
        "tl.store(i_ptr, tl.arange(0, 4))",
        "tl.dot(tl.zeros((16, 16), tl.float32), tl.zeros((32, 16), tl.float32))",
        "tl.atomic_add(i_ptr.to(tl.pointer_type(tl.int16)), 1)",
        "tl.atomic_cas(i_ptr.to(tl.pointer_type(tl.int8)), 1, 1)",
        "tl.xor_shuffle(tl.arange(0, 4), 0, 7)",
        "tl.cast(1.0, tl.int64, bitcast=True)",
        "tl.broadcast_to(tl.arange(0, 4), (2, 2))",
        "tl.static_assert(tl.load(i_ptr) > 0)",
    ],
)
def test_errors_stated_in_the_help_are_raised(body):
    assert outcome(Example("x", body), "cpu") != "yes"


def test_stub_file_lists_the_names_of_libdevice():
    tree = ast.parse(Path(tl.libdevice.__file__).with_suffix(".pyi").read_text())
    seen = {node.name: [a.arg for a in node.args.args] for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert seen == {n: list(inspect.signature(getattr(tl.libdevice, n)).parameters) for n in tl.libdevice.__all__}


# -- the checker


def test_wrong_claim_in_an_example_is_detected():
    for text in (
        "tl.arange(0, 2)  # [0, 2]",
        "tl.load(a_ptr + 1)  # 1.001",
        "x = tl.arange(0, 2)\nx.dtype  # tl.int64",
    ):
        for room in ("interpreter", "python", "cpu"):
            with pytest.raises((AssertionError, KernelError)):
                Example("wrong", text).run(room)


def test_claims_in_examples_are_literals():
    with pytest.raises(ValueError, match="not a literal"):
        _ = Example("wrong", "tl.arange(0, 2)  # two numbers").claims


def test_rendered_reference_can_be_read_back():
    found = dict.fromkeys(EXAMPLES, ("yes", "a | b", "yes", "not run"))
    assert reference.read(reference.render(found)) == found


def test_help_contains_signature_and_example():
    text = pydoc.render_doc(tl.load, renderer=pydoc.plaintext)
    assert "load(pointer,mask=None,other=None" in "".join(text.split())  # from Python 3.13, a parameter per line
    assert "tl.load(a_ptr + i)  # [0.0, 1.0, 2.0, 3.0]" in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tl.load", "3.6 or earlier"),
        ("tl.squeeze", "3.7"),
        ("tl.atomic_poll", "3.9"),
        ("tl.make_block_ptr", "3.6 or earlier, not in 3.9"),
        ("libdevice.powi", "blocknb only"),
    ],
)
def test_the_reference_says_which_version_of_triton_has_a_name(name, said):
    (line,) = [line for line in reference.TABLE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    assert line.split(" | ")[5] == said


def test_the_table_of_versions_holds_names_of_the_language_only():
    known = {name.rpartition(".")[2] for name in EXAMPLES}
    assert {*versions.SINCE, *versions.OWN, *versions.REMOVED} <= known


def test_a_run_of_new_examples_keeps_the_others_and_names_its_gpu(monkeypatch, tmp_path):
    known, changed, unknown = [example for example in EXAMPLES.values() if example is not None][:3]
    file, ran = tmp_path / "gpu.json", []
    names = {known.name: [reference.digest(known), "yes"], changed.name: ["before", "yes"]}
    file.write_text(json.dumps({"device": "GPU A", "names": names}))
    monkeypatch.setattr(reference, "GPU", file)
    monkeypatch.setattr(reference, "device_name", lambda: "GPU B")
    monkeypatch.setattr(reference.examples, "examples", lambda: {x.name: x for x in (known, changed, unknown)})
    monkeypatch.setattr(reference.examples, "outcome", lambda example, backend: ran.append(example.name) or "yes")
    found = reference.record(new=True)
    assert ran == [changed.name, unknown.name] and found == reference.recorded()
    assert found["names"][known.name] == names[known.name]
    assert all(reference.state(x, "gpu", found) == "yes" for x in (known, changed, unknown))
    assert reference.devices(found) == f"The GPU was an GPU A. For `{changed.name}`, `{unknown.name}` it was an GPU B."
