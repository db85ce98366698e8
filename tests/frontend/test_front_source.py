"""Where the source text of a kernel comes from, and which changes a cache key must reflect."""

import importlib.util
import linecache
import textwrap

import pytest
from frontend_helpers import kernel

import blocknb.language as tl
from blocknb.errors import SyntaxUnsupported
from blocknb.frontend.dependencies import dependencies, of_constant
from blocknb.frontend.source import Source, source_of

CELLS = iter(range(1000))


def cell(text, namespace):
    """Runs a notebook cell as IPython does: linecache has its text under a name of its own."""
    name = f"<ipython-input-{next(CELLS)}-front>"
    text = textwrap.dedent(text)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), namespace)
    return namespace


def notebook():
    return {"kernel": kernel, "tl": tl, "__name__": "__main__"}


def test_a_cells_kernel_is_found_with_its_lines():
    space = cell(
        """
        x = 1

        @kernel
        def k(out,
              n):
            tl.store(out, n)
        y = 2
        """,
        notebook(),
    )
    source = space["k"].source
    assert source.first_line == 4
    assert source.text == "@kernel\ndef k(out,\n      n):\n    tl.store(out, n)\n"
    assert source.node.body[0].lineno == 7
    assert source.file.startswith("<ipython-input-")


def test_indented_definitions_keep_their_columns():
    class Holder:
        @staticmethod
        @kernel
        def k(out):
            # an unindented comment does not end the definition
            tl.store(out, 1)

    node = Holder.k.source.node
    assert node.body[0].col_offset == 12
    assert linecache.getline(__file__, node.body[0].lineno).strip() == "tl.store(out, 1)"


def test_end_of_a_definition_includes_lines_without_bytecode():
    space = cell(
        """
        @kernel
        def k(
            out,
        ):
            tl.store(
                out, 1
        )
            # a comment at the end
            '''a string
        without use'''
            pass

        # not part of it
        other = 1
        """,
        notebook(),
    )
    assert space["k"].source.lines[-1] == "    pass\n"
    assert len(space["k"].source.node.body) == 3


def test_two_definitions_of_one_name_are_distinguished_by_line(tmp_path):
    path = tmp_path / "twice.py"
    path.write_text(
        "if True:\n    def f(x): return x\nelse:\n    def f(x): return 2 * x\n\ng = f\ndef f(x):\n    return 3 * x\n"
    )
    spec = importlib.util.spec_from_file_location("twice", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert Source(module.g).text == "    def f(x): return x\n"
    assert Source(module.f).text == "def f(x):\n    return 3 * x\n"


def test_file_that_changed_after_its_import_is_detected(tmp_path):
    path = tmp_path / "edited.py"
    path.write_text("def f(x):\n    return x\n")
    spec = importlib.util.spec_from_file_location("edited", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path.write_text("import os\n\ndef f(x):\n    return x\n")
    with pytest.raises(SyntaxUnsupported, match="has changed since Python compiled `f`"):
        _ = Source(module.f).node


def test_functions_without_source_are_an_error():
    space = {}
    exec("def f(x):\n    return x\n", space)
    with pytest.raises(SyntaxUnsupported, match="the source of `f` cannot be found") as caught:
        _ = Source(space["f"]).text
    assert "notebook cell" in caught.value.hint
    with pytest.raises(SyntaxUnsupported, match="a lambda cannot be a kernel"):
        _ = Source(lambda x: x).node


def test_parameters_have_constexpr_marks_and_defaults():
    space = cell(
        """
        from __future__ import annotations
        @kernel
        def k(x, n, B: tl.constexpr, C: "tl.constexpr" = tl.constexpr(4), *, flag=None): pass
        """,
        notebook(),
    )
    found = [(p.name, p.constexpr, p.default if p.name in ("C", "flag") else "-") for p in space["k"].source.parameters]
    assert found == [("x", False, "-"), ("n", False, "-"), ("B", True, "-"), ("C", True, 4), ("flag", False, None)]


def test_kernels_and_library_functions_have_sources_and_others_have_none():
    @kernel
    def k(x):
        pass

    assert source_of(k) is k.source
    assert source_of(tl.cdiv).name == "cdiv"
    assert source_of(tl.cdiv) is source_of(tl.cdiv)
    assert source_of(tl.load) is None
    assert source_of(3) is None


# -- dependencies --------------------------------------------------------------------------------------------------------------


HELPER = """
    @kernel
    def helper(x):
        return x * {factor}
    """
MAIN = """
    SCALE = 3
    LIST = [1, 2]
    def host(n):
        return n + OFFSET
    @kernel
    def main(out, n, B: tl.constexpr = 4):
        local = n
        tl.store(out, helper(local) * SCALE + host(B) + LIST[0])
    """


def fresh():
    space = notebook()
    cell(HELPER.format(factor=2), space)
    space["OFFSET"] = 5
    return cell(MAIN, space)


def test_dependencies_are_cached():
    space = fresh()
    first = dependencies(space["main"].source)
    assert dependencies(space["main"].source) is first
    assert [s.name for s in first.sources] == ["main", "helper"]
    assert "def host" in first.text  # a host function is known by its bytecode


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda space: cell(HELPER.format(factor=7), space), True),  # a helper redefined in another cell
        (lambda space: cell(HELPER.format(factor=2), space), False),  # ... to the same text
        (lambda space: space.update(SCALE=4), True),
        (lambda space: space.update(SCALE=3.0), True),
        (lambda space: space["LIST"].append(9), True),  # changed in place
        (lambda space: space.update(OFFSET=6), True),  # read by a host function that is called at compile time
        (lambda space: space.update(out=1, local=2, unrelated=3), False),
        (lambda space: space.update(tl=None), True),
        (lambda space: space.update(LIST=[1, 2]), False),
    ],
)
def test_key_depends_only_on_what_the_kernel_reads(change, differs):
    space = fresh()
    before = dependencies(space["main"].source).key
    change(space)
    assert (dependencies(space["main"].source).key != before) == differs


def test_equal_programs_in_other_places_have_equal_keys():
    """The disk cache is shared with other processes, whose cells have other numbers."""
    assert dependencies(fresh()["main"].source).key == dependencies(fresh()["main"].source).key


def test_captured_variables_are_part_of_the_key():
    def make(n):
        @kernel
        def k(out):
            tl.store(out, n)

        return k

    keys = {dependencies(make(n).source).key for n in (1, 2, 2.0)}
    assert len(keys) == 3


def test_change_of_a_captured_variable_is_detected():
    n = 1

    @kernel
    def k(out):
        tl.store(out, n)

    before = dependencies(k.source).key
    n = 2
    assert dependencies(k.source).key != before


def test_attributes_of_modules_and_objects_are_followed():
    import types

    settings = types.ModuleType("settings")
    settings.BLOCK = 16
    config = types.SimpleNamespace(inner=types.SimpleNamespace(width=4))
    space = notebook() | {"settings": settings, "config": config}
    cell(
        """
        @kernel
        def k(out):
            tl.store(out, settings.BLOCK + config.inner.width)
        """,
        space,
    )
    source, keys = space["k"].source, []
    for change in (lambda: None, lambda: setattr(settings, "BLOCK", 32), lambda: setattr(config.inner, "width", 8)):
        change()
        keys.append(dependencies(source).key)
    assert len(set(keys)) == 3


def test_key_of_a_function_argument_covers_its_dependencies():
    space = fresh()
    before = of_constant(space["helper"]).key
    assert of_constant(space["helper"]).key == before
    cell(HELPER.format(factor=8), space)
    assert of_constant(space["helper"]).key != before
    assert of_constant(1).key != of_constant(1.0).key != of_constant(True).key
    assert of_constant(tl.float32).key != of_constant(tl.float16).key


def test_dependency_check_takes_microseconds():
    """It runs at every launch."""
    import time
    import timeit

    source = fresh()["main"].source
    dependencies(source)
    assert min(timeit.repeat(lambda: dependencies(source), timer=time.process_time, number=100, repeat=5)) / 100 < 50e-6
