"""Kernels with typical mistakes: the error message, its place, and that following the hint works.

The cases are in bad_kernels/*.txt. A case is a source, the expected place marked with carets below the line, and fragments of the message
and the hint. Often it has the corrected source (`right`), which must run and give what `gives` says. A source without a `def` is the body
of a kernel `k(x, y, i, out, n, s, BLOCK)`.
"""

from __future__ import annotations

import linecache
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.errors import CompilerBug, KernelError
from blocknb.runtime import cache
from blocknb.runtime import compile as compiler

HERE = Path(__file__).parent
HEAD = "@kernel\ndef k(x, y, i, out, n, s, BLOCK: tl.constexpr = 16):\n"
LAUNCH = "\nk[(1,)](x, y, i, out, n, s)\n"
CARETS = re.compile(r"\s*\^+\s*")


def double(v):
    return v * 2


@dataclass
class Bad:
    """One case; `line` and `carets` are the expected place of the error (1 is the first line), None for an error without a place."""

    name: str
    source: str
    line: int | None
    carets: tuple[int, int]
    parts: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> Iterator[Bad]:
    for text in re.split(r"^== ", path.read_text(), flags=re.MULTILINE)[1:]:
        name, _, rest = text.partition("\n")
        sections = re.split(r"^-- (\w+)\n", rest, flags=re.MULTILINE)
        parts = {key: body.strip("\n") for key, body in zip(sections[1::2], sections[2::2], strict=True)}
        source = whole(sections[0])
        lines, line, carets = [], None, (0, 0)
        for text_line in source.splitlines():
            if CARETS.fullmatch(text_line):
                line, carets = len(lines), (text_line.index("^"), text_line.rindex("^") + 1)
            else:
                lines.append(text_line)
        yield Bad(name, "\n".join(lines) + "\n", line, carets, parts)


def whole(source: str) -> str:
    """A complete source: adds a kernel around a body."""
    if re.search(r"^@kernel|= kernel\(", source, re.MULTILINE):
        return source.strip("\n") + "\n"
    return HEAD + textwrap.indent(source.strip("\n"), "    ") + LAUNCH


CASES = {bad.name: bad for path in sorted(HERE.glob("bad_kernels/*.txt")) for bad in read(path)}


def execute(name: str, source: str) -> dict[str, Any]:
    """Runs a source as a file of its own with new arrays; returns its names."""
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    floats = np.arange(64, dtype=np.float32)
    names: dict[str, Any] = {
        "blocknb": blocknb, "kernel": blocknb.kernel, "tl": tl, "np": np, "math": math, "double": double,
        "x": floats, "y": floats[::-1].copy(), "i": np.arange(64, dtype=np.int32), "out": np.zeros(64, np.float32),
        "n": 40, "s": 0.5, "WEIGHTS": np.arange(4, dtype=np.float32), "FROZEN": np.zeros(4, np.float32),
    }  # fmt: skip
    if "torch." in source:
        names["torch"] = pytest.importorskip("torch")
    exec(compile(source, file, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty disk cache and an empty memory cache."""
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path))
    cache.shared.cache_clear()
    compiler.forget()
    yield tmp_path
    cache.shared.cache_clear()
    compiler.forget()


def shown(error: KernelError) -> tuple[int, int]:
    """The columns under the carets of a report."""
    carets = error.loc.excerpt().splitlines()[1][4:]
    return carets.index("^"), carets.rindex("^") + 1


def stored(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


GOOD = HEAD + "    tl.store(out + tl.arange(0, BLOCK), tl.load(x + tl.arange(0, BLOCK)) * n + s)" + LAUNCH
#: Errors at a launch, of kernels that compile.
AT_LAUNCH = {"a grid larger than there are programs", "an access outside", "an array that may not be written"}


@pytest.mark.parametrize("name", sorted(CASES))
def test_mistake_is_reported_at_its_place(name, folder):
    bad = CASES[name]
    for _ in range(2):  # the first time must leave no state
        with pytest.raises(KernelError) as caught:
            execute(name, bad.source)
        error = caught.value
        assert not isinstance(error, CompilerBug)
        assert bad.parts["message"] in error.message
        assert bad.parts.get("hint", "") in (error.hint or "")
        assert error.loc is not None and error.loc.file == f"<{name}>"
        assert (error.loc.line, shown(error)) == (bad.line, bad.carets)
        assert "blocknb/" not in str(error)
    assert name in AT_LAUNCH or not stored(folder)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(CASES))
def test_mistake_leaves_no_state(name, folder):
    with pytest.raises(KernelError):
        execute(name, CASES[name].source)
    out = execute(name, GOOD)["out"]  # under the name of the file with the mistake
    np.testing.assert_array_equal(out[:17], [*(np.arange(16) * 40 + 0.5), 0])
    assert stored(folder)


@pytest.mark.parametrize("name", sorted(n for n, bad in CASES.items() if "right" in bad.parts))
def test_the_hint_can_be_followed(name):
    with pytest.raises(KernelError):
        execute(name, CASES[name].source)
    names = execute(name, whole(CASES[name].parts["right"]))
    if "gives" in CASES[name].parts:
        assert eval(CASES[name].parts["gives"], {"abs": abs}, names)


def test_there_are_enough_cases():
    assert len(CASES) >= 100
    assert sum("right" in bad.parts for bad in CASES.values()) >= 60
    assert all(bad.line is not None for bad in CASES.values())


# -- where errors of inlined code are shown ----------------------------------------------------------------------------------

CHAIN = """@kernel
def innermost(p, SIZE: tl.constexpr):
    return tl.load(p + tl.arange(0, SIZE))

@kernel
def middle(p, SIZE: tl.constexpr):
    return innermost(p, SIZE) * 2

@kernel
def k(x, out, BLOCK: tl.constexpr):
    tl.store(out, tl.sum(middle(x, BLOCK)))

k[(1,)](x, out, BLOCK=24)
"""


def test_the_chain_of_calls_leads_from_the_helper_to_the_kernel():
    with pytest.raises(KernelError) as caught:
        execute("chain", CHAIN)
    error = caught.value
    chain, loc = [], error.loc
    while loc is not None:
        chain.append((loc.function, loc.line, loc.excerpt().splitlines()[0].strip()))
        loc = loc.caller
    assert chain == [
        ("innermost", 3, "return tl.load(p + tl.arange(0, SIZE))"),
        ("middle", 7, "return innermost(p, SIZE) * 2"),
        ("k", 11, "tl.store(out, tl.sum(middle(x, BLOCK)))"),
    ]
    assert error.message == "arange(0, 24) has 24 elements, which is not a power of two"
    assert str(error).count("called from") == 2
    assert execute("chain", CHAIN.replace("24", "32"))["out"][0] == 2 * sum(range(32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("tl.softmax(tl.load(x))", "in `softmax`: a scalar cannot be reduced"),
        ("tl.softmax(tl.load(x + tl.arange(0, 16)), 3)", "in `softmax`: a tile with 1 axis has no axis 3"),
        ("tl.sigmoid(x)", "in `sigmoid`: a pointer to fp32 cannot become the dtype fp32"),
        ("tl.sort(tl.load(x))", "in `sort`"),
        ("tl.split(tl.load(x + tl.arange(0, 16)))", "in `split`: split takes a tile whose last axis has size two"),
        ("tl.rand(x, tl.arange(0, 16))", "in `rand`: the seed is a pointer"),
    ],
)
def test_errors_in_the_languages_own_library_are_shown_at_the_call(call, message):
    body = f"v = {call}"
    with pytest.raises(KernelError) as caught:
        execute("library", whole(body))
    error = caught.value
    assert error.message.startswith(message)
    assert (error.loc.line, shown(error), error.loc.caller) == (3, (4 + 4, 4 + 4 + len(call)), None)
    assert "language/" not in str(error) and "library.py" not in str(error)


def test_softmax_of_integers_is_no_error():
    body = "o = tl.arange(0, BLOCK)\ntl.store(out + o, tl.softmax(tl.load(i + o)))"
    got = execute("softmax", whole(body))["out"][:16]
    wide = np.exp(np.arange(16.0) - 15)
    np.testing.assert_allclose(got, wide / wide.sum(), rtol=1e-5)


def test_error_in_a_combine_function_is_shown_inside_it():
    source = """@kernel
def combine(a, b):
    return a + undefined

@kernel
def k(x, out):
    tl.store(out, tl.reduce(tl.load(x + tl.arange(0, 16)), 0, combine))
k[(1,)](x, out)
"""
    with pytest.raises(KernelError) as caught:
        execute("combine", source)
    loc = caught.value.loc
    assert (loc.function, loc.line) == ("combine", 3) and loc.outermost.line == 7
