"""The public namespace: its names, their help, and their errors outside a kernel."""

import inspect
import subprocess
import sys

import pytest

import blocknb.language as tl
from blocknb.errors import KernelError
from blocknb.frontend.scope import HANDLERS
from blocknb.language.declarations import BUILTINS, MEMBERS
from blocknb.language.library import LIBRARY

LOOPS = {"range", "static_range"}  # the front end treats them as iterators
BELOW = ("blocknb.language.target_info", "blocknb.language.extra.cuda")  # modules that have builtins of their own


def test_every_builtin_has_a_handler():
    assert set(HANDLERS) == set(BUILTINS) - LOOPS


@pytest.mark.parametrize("name", sorted(set(BUILTINS) - LOOPS))
def test_handlers_take_the_arguments_that_are_declared(name):
    declared = list(inspect.signature(BUILTINS[name]).parameters.items())
    handler = list(inspect.signature(HANDLERS[name]).parameters.items())[1:]
    assert [(n, p.default, p.kind) for n, p in handler] == [(n, p.default, p.kind) for n, p in declared]


def test_every_builtin_and_library_function_is_in_the_namespace_or_a_method():
    own = {n.split(".")[0] for n in BUILTINS if not BUILTINS[n].__module__.startswith(BELOW)}
    named = {*own, *LIBRARY} - MEMBERS
    assert {n for n in named if n not in tl.__all__ and not (n.startswith("_") and hasattr(tl, n))} == set()


def test_namespace_contains_only_names_of_the_language():
    modules = {name for name in tl.__all__ if inspect.ismodule(getattr(tl, name))}
    assert modules == {"extra", "libdevice", "math", "target_info"}
    assert "annotations" not in tl.__all__


@pytest.mark.parametrize("name", sorted({*BUILTINS, *LIBRARY}))
def test_every_function_has_help_and_a_signature(name):
    function = BUILTINS.get(name) or LIBRARY[name]
    assert function.__doc__
    assert function.__qualname__ == name
    assert inspect.signature(function) is not None


def test_builtin_called_outside_a_kernel_is_an_error_with_an_explanation():
    with pytest.raises(KernelError, match="`load` computes on blocks and works only inside a kernel"):
        tl.load(None)


def test_constexprs_compute_like_their_values_outside_kernels():
    block = tl.constexpr(16)
    assert (block * 2).value == 32
    assert (2**block // 3).value == 2**16 // 3
    assert block == 16
    assert not block != 16
    assert list(range(tl.constexpr(3))) == [0, 1, 2]
    assert tl.constexpr(block).value == 16
    assert {tl.constexpr(1): "one"}[1] == "one"


def test_the_language_imports_nothing_heavy():
    code = "import sys, blocknb.language; print(sorted({'llvmlite', 'ml_dtypes', 'IPython', 'blocknb.frontend.parse'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
