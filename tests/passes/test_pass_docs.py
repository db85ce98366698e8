"""The docstring of a pass is text for the user: a title, four short paragraphs, and IR before and after."""

from __future__ import annotations

import re

import pytest

from blocknb import passes
from blocknb.language.ops import OPS

PARAGRAPHS = ("When: ", "What: ", "Why: ", "Limits: ")
WORDS = {"func", *OPS}
FORM = "the docstring of a pass has a form: blocknb/passes/memory/barriers.py is an example"


def parts(entry: str) -> tuple[str, list[str], list[str]]:
    """The title, the paragraphs, and the lines of IR of a pass."""
    title, *lines = passes.load(entry).doc.split("\n")
    code = [line.strip() for line in lines if line.startswith("        ")]
    prose = "\n".join(line.strip() for line in lines if not line.startswith("        "))
    return title, [x for x in prose.split("\n\n") if x.strip()], code


@pytest.mark.parametrize("entry", passes.ORDER)
def test_the_title_is_short_and_begins_with_a_verb(entry: str) -> None:
    title, *_ = parts(entry)
    assert len(title) <= 80
    assert re.match(r"[A-Z][a-z]+s\b", title) and not title.endswith("."), FORM


@pytest.mark.parametrize("entry", passes.ORDER)
def test_docstring_has_paragraphs_when_what_why_and_limits_in_this_order(entry: str) -> None:
    _, paragraphs, _ = parts(entry)
    found = [next((k for k in PARAGRAPHS if x.startswith(k)), "") for x in (p.strip() for p in paragraphs)]
    assert [k for k in found if k] == list(PARAGRAPHS), FORM
    assert [x.strip() for x in paragraphs if x.strip() in ("Before:", "After:")] == ["Before:", "After:"]


@pytest.mark.parametrize("entry", passes.ORDER)
def test_example_is_short_and_uses_existing_ops(entry: str) -> None:
    *_, code = parts(entry)
    assert 5 <= len(code) <= 15, f"{len(code)} lines of IR; {FORM}"
    for line in code:
        words = re.sub(r"^.*? = ", "", line).split(" ")
        assert words[0] in WORDS or not words[0][0].isalpha() or "=" in words[0], f"{line}: no op"
