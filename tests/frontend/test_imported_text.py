"""A kernel of a file that is edited after its import runs the text that was imported, or says that the file has changed."""

import importlib
import linecache
import pkgutil
import sys

import numpy as np
import pytest

import blocknb.language as tl
from blocknb import kernel, kernels
from blocknb.errors import SyntaxUnsupported
from blocknb.frontend import imported_text
from blocknb.frontend.source import Source, source_of

MODULE = """
import blocknb, blocknb.language as tl

@blocknb.kernel
def helper(x):
    return x * 2

@blocknb.kernel
def first(x):
    tl.store(x, helper(tl.load(x)) + 1)

@blocknb.kernel
def second(x):
    tl.store(x, helper(tl.load(x)) + 10)

def factory(n):
    @blocknb.kernel
    def made(x):
        tl.store(x, tl.load(x) + n)
    return made

def plain(x):
    tl.store(x, tl.load(x) + 3)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # its time stamps tell whole seconds apart
    path = tmp_path / "edited_kernels.py"
    path.write_text(MODULE)
    importlib.invalidate_caches()
    yield importlib.import_module("edited_kernels")
    del sys.modules["edited_kernels"]


def edit(module, old, new):
    with open(module.__file__) as file:
        text = file.read()
    assert old in text
    with open(module.__file__, "w") as file:
        file.write(text.replace(old, new))


def result(k):
    x = np.full(1, 5, np.float32)
    k[(1,)](x)
    return x[0]


@pytest.mark.parametrize(
    "edit_", [("* 2", "* 3"), ("+ 10", "+ 20"), ("import", "\n\n\nimport"), ("def second", "def other"), (MODULE, "")]
)
def test_a_kernel_runs_the_text_that_was_imported(module, edit_):
    assert result(module.first) == 11  # one kernel before the edit
    edit(module, *edit_)
    linecache.checkcache()  # as a traceback does
    assert (result(module.first), result(module.second)) == (11, 20)


def test_a_kernel_that_was_imported_again_runs_the_new_text(module):
    assert result(module.second) == 20
    edit(module, "* 2", "* 3")
    edit(module, "+ 10", "+ 20")
    assert result(importlib.reload(module).second) == 35


def test_a_removed_file_does_not_matter(module, tmp_path):
    (tmp_path / "edited_kernels.py").unlink()
    linecache.checkcache()
    assert result(module.second) == 20


@pytest.mark.parametrize("edit_", [
    ("tl.load(x) + n", "tl.load(x) - n"), ("tl.load(x) + n", "tl.load(x) + n * 2"), ("tl.load(x) + n", "n + tl.load(x)"),
    ("def made(x)", "def mode(x)"), ("import", "\nimport"), ("def factory", "# a comment\ndef factory"),
])  # fmt: skip
def test_a_factory_of_an_edited_file_says_that_it_changed(module, edit_):
    assert result(module.factory(4)) == 9
    edit(module, *edit_)
    with pytest.raises(SyntaxUnsupported, match="(?s)has changed since Python compiled `made`.*importlib.reload"):
        result(module.factory(4))


def test_a_factory_is_right_if_other_lines_of_the_file_changed(module):
    edit(module, "* 2", "* 3")
    edit(module, "+ 10", "- 10")
    edit(module, "tl.load(x) + n)", "tl.load(x)  +  n)")  # the same code
    assert result(module.factory(4)) == 9


def test_a_function_that_becomes_a_kernel_late_says_that_its_file_changed(module):
    edit(module, "+ 3", "+ 4")
    with pytest.raises(SyntaxUnsupported, match="has changed since Python compiled `plain`"):
        result(kernel(module.plain))


def nested_functions():
    n = 3

    def with_closure(x, BLOCK: tl.constexpr = 4):
        """Text."""
        return [x + n + i for i in range(BLOCK)], lambda y: y * n, f"{x}", {"a": (1, 2.0, True, None)}

    def with_defaults(x: int, *, y: "str" = "s") -> int:
        while x:
            x -= 1
            if x == 7 and y in ("a", "b"):
                break
        else:
            return 1 << 70
        return x if y else -x

    def with_nonlocal():
        nonlocal n
        n += 1

    return with_closure, with_defaults, with_nonlocal


@pytest.mark.parametrize("function", nested_functions(), ids=lambda f: f.__name__)
def test_the_text_of_a_function_agrees_with_its_bytecode(function):
    assert imported_text.matches_source(Source(function)._lines, function.__code__)


@pytest.mark.parametrize(
    "change", [("x + n", "x + m"), ("+ i", "- i"), ("True", "1"), ("2.0", "2"), ("y * n", "n * y"), ('"a":', '"b":')]
)
def test_a_changed_text_disagrees_with_the_bytecode(change):
    function = nested_functions()[0]
    lines = [line.replace(*change) for line in Source(function)._lines]
    assert not imported_text.matches_source(lines, function.__code__)


def test_the_ready_made_kernels_agree_with_their_bytecode():
    """The comparison accuses no function of the library."""
    found = 0
    for module in [
        importlib.import_module(f"blocknb.kernels.{name}") for _, name, _ in pkgutil.iter_modules(kernels.__path__)
    ]:
        for thing in vars(module).values():
            if (source := source_of(thing)) is not None:
                assert imported_text.matches_source(source._lines, source.function.__code__), source
                found += 1
    assert found > 20
