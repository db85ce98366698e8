"""Texts of a document are stored once, as differences where these are shorter, and read back exactly."""

from __future__ import annotations

import base64
import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed import observed

import blocknb
import blocknb.language as tl
from blocknb.bench.suite.steps import STEPS, matmul, run_step
from blocknb.notebook import card, document, sections
from blocknb.notebook.blobs import Blobs, InflationLimit, pack, read, unpack


def test_a_text_that_two_stages_share_is_stored_once():
    blobs = Blobs(10_000)
    first = blobs.add({"text": "same"}, "a", "call")
    assert blobs.add({"text": "same"}, "b", "call") == first and len(blobs.stored) == 1


def test_the_next_document_does_not_pack_a_text_again(monkeypatch):
    content = {"text": "the same in both documents", "lines": [1]}
    stored = []
    for _ in range(2):
        made = Blobs(10_000)
        made.add(content, "a", "call")
        stored.append(made.stored)
        monkeypatch.setattr(Blobs, "_packed", None)  # the first document has packed it
    assert stored[0] == stored[1] and len(stored[0]) == 1


def test_a_blob_that_does_not_fit_is_listed_with_its_call():
    blobs = Blobs(100)
    noise = "".join(chr(33 + i * i % 90) for i in range(4000))
    name = blobs.add({"text": noise}, "PTX", "k.latest.trace.ptx")
    assert name not in blobs.stored
    (entry,) = blobs.left_out
    assert entry["what"] == "PTX" and entry["call"] == "k.latest.trace.ptx" and entry["text"] == name


def listing(lines):
    """A listing with these lines; each has its own source line and op."""
    return {"text": "\n".join(f"%{n} = op" for n in lines), "lines": [n % 7 for n in lines], "ops": [*lines]}


LINES = st.lists(st.integers(0, 12), min_size=1, max_size=30)


@given(st.lists(LINES, min_size=1, max_size=5))
def test_a_chain_of_differences_restores_every_listing(versions):
    blobs, base, named = Blobs(1 << 40), None, []
    for lines in versions:
        base = blobs.add(listing(lines), "", "", base)
        named.append(base)
    for name, lines in zip(named, versions, strict=True):
        assert read(blobs.stored, name) == listing(lines)


def test_a_listing_that_differs_in_a_line_is_stored_as_that_line():
    noise = np.random.default_rng(0).integers(10**6, size=300).tolist()
    before, after = noise, [*noise[:150], 999, *noise[150:299]]
    blobs = Blobs(1 << 40)
    base = blobs.add(listing(before), "", "")
    name = blobs.add(listing(after), "", "", base)
    packed, _, named = blobs.stored[name].partition(" ")
    assert named == base and unpack(packed) == [[0, 150], listing([999]), [150, 299]]
    assert len(packed) < len(blobs.stored[base]) / 10


#: Lines with numbers as code has them: leading zeros, long ones, other digits than 0 to 9, and the mark of a template.
CODE = st.lists(
    st.text(st.sampled_from("ab%, 0019٣\x7f"), max_size=9)
    | st.integers(0, 10**12).map(lambda n: f"add %r{n}, %r{n + 8}, 0x00{n}")
)


@given(CODE, st.booleans())
def test_a_packed_listing_is_restored_exactly(lines, ir):
    content = {"text": "\n".join(lines), "lines": [n * n % 7 for n in range(max(len(lines), 1))]}
    content |= {"ops": [-1 for _ in content["lines"]]} if ir else {}
    assert unpack(pack(content)) == content


def unrolled(count):
    """The code of a loop of two statements that was unrolled."""
    lines = [
        f"  {op} %r{4 * n + k}, %r{4 * n + k - 3}, {n}" for n in range(count) for k, op in enumerate(("mul", "add"))
    ]
    return {"text": "\n".join(lines), "lines": [n % 2 for n in range(len(lines))]}


def test_an_unrolled_loop_takes_about_as_much_as_its_body():
    plain = gzip.compress(json.dumps(unrolled(5000)).encode())
    assert len(pack(unrolled(5000))) < len(plain) / 50
    assert len(pack(unrolled(5000))) < 3 * len(pack(unrolled(50)))


def bomb(content):
    return base64.b64encode(gzip.compress(json.dumps(content).encode())).decode()


BOMBS = {
    "zeros": {"h": bomb({"text": "0" * 2_000_000, "lines": [0]})},
    "templates": {
        "h": bomb({"templates": ["0" * 20_000], "rows": [0] * 2_000, "numbers": [], "lines": [0] * 2_000}),
    },
    "differences": {
        "h": bomb([[0, 500]] * 500) + " base",
        "base": bomb({"text": "\n".join(["0" * 100] * 500), "lines": [0] * 500, "ops": [0] * 500}),
    },
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_reader_inflates_at_most_its_limit(name):
    assert sum(map(len, BOMBS[name].values())) < 10_000
    with pytest.raises(InflationLimit, match="more than 1000000 characters"):
        read(BOMBS[name], "h", limit=1_000_000)


def test_a_damaged_document_is_no_endless_work():
    with pytest.raises(ValueError, match="in a circle"):
        read({"a": bomb([[0, 1]]) + " b", "b": bomb([[0, 1]]) + " a"}, "a")
    whole = pack(unrolled(50))
    with pytest.raises(ValueError, match="ends too early"):
        unpack(whole[: len(whole) // 8 * 4])


def test_a_difference_is_copied_only_with_its_base():
    blobs = Blobs(1 << 40)
    base = blobs.add(listing(range(300)), "", "")
    name = blobs.add(listing(range(299)), "", "", base)
    other = Blobs(1 << 40)
    assert not other.add_packed(name, blobs.stored[name]) and not other.stored
    assert other.add_packed(base, blobs.stored[base]) and other.add_packed(name, blobs.stored[name])


def test_a_saved_card_has_every_stage_of_a_large_kernel_for_hopper():
    a, b, c = np.zeros((256, 512), np.float16), np.zeros((256, 512), np.float16), np.zeros((256, 256), np.float16)
    made = card.card_of(observed(lambda: run_step(matmul, STEPS[-1], a, b, c)))
    bundle = made.bundle()
    assert_complete(made, bundle, card.ORDINARY)


def assert_complete(made, bundle, limit):
    """A card's output holds every stage and every code, in at most `limit` bytes."""
    assert len(json.dumps(bundle, ensure_ascii=False).encode()) <= limit
    found = bundle[document.MIME]
    assert found["left_out"] == []
    for view, shown in zip(made.views, found["views"], strict=True):
        listed = {s.key: s for s in sections.stage_sections(view.trace, "", "")}
        for stage in shown["stages"]:
            assert read(found["blobs"], stage["text"]) == document.content_of(listed[stage["name"]])
        code = {s.key: document.content_of(s) for s in sections.code_sections(view.trace, "", "")}
        assert {key: read(found["blobs"], name) for key, name in shown["code"].items()} == code
        assert code.keys() >= ({"llvm", "ptx"} if view.trace.target.is_gpu else {"llvm", "assembly"})


@blocknb.kernel
def unrolled_loop(x, y, out, n, BLOCK: tl.constexpr, COUNT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    a, b = tl.load(x + at, mask=inside), tl.load(y + at, mask=inside)
    for i in tl.static_range(COUNT):
        a = a * b + i
        b = b - a * 0.5
        a = tl.where(a > b, a, b)
        b = tl.exp(b) + a
    tl.store(out + at, a + b, mask=inside)


@pytest.mark.parametrize(
    ("count", "ops"),
    [(60, 550), pytest.param(300, 2700, marks=pytest.mark.full), pytest.param(335, 3000, marks=pytest.mark.full)],
)
def test_a_saved_card_has_every_text_of_an_unrolled_loop(count, ops):
    x, y, out = np.ones((3, 4096), np.float32)
    made = card.card_of(observed(lambda: unrolled_loop[4,](x, y, out, 4096, BLOCK=1024, COUNT=count)))
    assert sum(1 for _ in made.views[1].trace.stages[-1].after.ops()) > ops
    assert_complete(made, made.bundle(), 600_000)
