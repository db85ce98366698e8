"""`import triton` imports blocknb in rewritten source, and nowhere else; names, lines and columns stay."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language
import blocknb.testing
from blocknb import compat
from blocknb.codegen import toolchain
from blocknb.compat.facade import NotInBlocknb
from blocknb.compat.names import MISSING, NAMES

ROOT = Path(__file__).resolve().parents[2]


def run(source: str) -> dict[str, Any]:
    """The names that a source binds after its imports were rewritten."""
    names: dict[str, Any] = {}
    tree = compat.rewrite(ast.parse(textwrap.dedent(source)))
    exec(compile(tree, "source", "exec"), names)
    del names["__builtins__"]
    return names


def test_every_form_of_import_binds_the_same_names() -> None:
    found = run("""
        import triton
        import triton.language as tl, math
        import triton.testing
        from triton import language, cdiv as up, Config
        from triton.runtime import driver as d
        from triton.runtime.jit import JITFunction
        import os.path
    """)
    assert set(found) == {"triton", "tl", "math", "language", "up", "Config", "d", "JITFunction", "os"}
    assert found["tl"] is found["language"] is found["triton"].language is blocknb.language
    assert found["triton"].testing is blocknb.testing
    assert found["up"] is blocknb.cdiv
    assert found["JITFunction"] is blocknb.Kernel
    assert found["d"] is found["triton"].runtime.driver
    assert found["math"].__name__ == "math" and found["os"].__name__ == "os"


def test_dotted_import_binds_the_root_package_and_import_as_the_submodule() -> None:
    assert run("import triton.runtime.driver")["triton"].jit is blocknb.jit
    assert run("import triton.runtime.driver as x")["x"].active.get_current_device() >= 0
    assert run("import triton.language.core as core")["core"] is blocknb.language.core


def test_libdevice_is_importable_by_every_path() -> None:
    pytest.importorskip("blocknb.language.extra")
    found = run("""
        from triton.language.extra import libdevice
        from triton.language.extra.cuda import libdevice as other
        from triton.language.extra.libdevice import rsqrt
        import triton.language.extra.cuda.libdevice as third
    """)
    assert found["libdevice"].rsqrt is found["other"].rsqrt is found["third"].rsqrt is found["rsqrt"]


def test_star_import_binds_tritons_public_names() -> None:
    found = run("from triton import *")
    assert {"jit", "autotune", "Config", "cdiv", "language", "testing"} <= set(found)
    assert run("from triton.language import *")["load"] is blocknb.language.load


def test_imports_inside_functions_classes_and_try_are_rewritten_too() -> None:
    found = run("""
        def later():
            import triton.language as tl
            return tl
        class Holder:
            from triton import jit
        try:
            from triton.no_such_module import thing
        except ImportError:
            thing = None
        try:
            import triton
            HAS_TRITON = True
        except ImportError:
            HAS_TRITON = False
    """)
    assert found["later"]() is blocknb.language
    assert found["Holder"].jit is blocknb.jit
    assert found["thing"] is None
    assert found["HAS_TRITON"] is True


def test_rewriting_keeps_lines_and_columns() -> None:
    source = "import math; import triton, os\nif 1:\n    from triton import (jit,\n        cdiv)\nx = math.pi\n"
    before = [(n.lineno, n.col_offset, n.end_lineno, n.end_col_offset) for n in ast.parse(source).body]
    tree = compat.rewrite(ast.parse(source))
    places = [(n.lineno, n.col_offset, n.end_lineno, n.end_col_offset) for n in tree.body]
    assert sorted(set(places)) == sorted(before)
    assert ast.unparse(tree.body[-1]) == "x = math.pi"


def test_modules_with_similar_names_and_relative_imports_are_unchanged() -> None:
    for source in (
        "import tritonclient",
        "from triton_kernels import x",
        "from . import triton",
        "from .triton import y",
    ):
        assert ast.unparse(compat.rewrite(ast.parse(source))) == source


def test_sys_modules_is_unchanged() -> None:
    before = {name for name in sys.modules if name.split(".")[0] == "triton"}
    run("import triton, triton.language, triton.testing, triton.runtime.driver")
    assert {name for name in sys.modules if name.split(".")[0] == "triton"} == before


@pytest.mark.parametrize("module", sorted(NAMES))
def test_every_name_of_the_table_is_found(module: str) -> None:
    facade = sys.modules["blocknb.compat." + module]
    for name, place in NAMES[module].items():
        assert getattr(facade, name) is not None


@pytest.mark.parametrize("name", sorted(MISSING))
def test_missing_name_can_be_imported_and_its_use_is_an_error_with_an_alternative(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    facade: Any = sys.modules["blocknb.compat." + module]
    thing = getattr(facade, attribute)
    if isinstance(thing, ModuleType):
        thing = thing.something
    for use in (lambda: thing(), lambda: thing.attribute, lambda: thing[0], lambda: setattr(thing, "x", 1)):
        with pytest.raises(NotInBlocknb) as error:
            use()
        assert error.value.hint == MISSING[name]
        assert name in error.value.message


def test_a_missing_class_cannot_be_a_base_class() -> None:
    with pytest.raises(NotInBlocknb, match="triton.FutureKernel"):
        run("import triton\nclass Mine(triton.FutureKernel): pass")


def test_name_unknown_to_triton_is_an_import_error() -> None:
    with pytest.raises(ImportError, match="no_such_name"):
        run("from triton import no_such_name")
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        run("import triton\ntriton.no_such_name")


def test_version_has_tritons_format() -> None:
    version = run("import triton")["triton"].__version__
    assert tuple(map(int, version.split("."))) >= (3, 6, 0)


def test_a_loaded_file_runs_with_blocknb_and_its_errors_point_into_it(tmp_path: Path) -> None:
    file = tmp_path / "scale.py"
    file.write_text(
        textwrap.dedent('''\
        """Scales a vector."""
        import numpy as np
        import triton
        import triton.language as tl

        @triton.jit
        def scale_kernel(x, out, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
            offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n) * FACTOR, mask=offsets < n)

        def scale(x, factor):
            from triton import cdiv
            out = np.empty_like(x)
            scale_kernel[(cdiv(x.size, 64),)](x, out, x.size, FACTOR=factor, BLOCK=64)
            return out

        @triton.jit
        def broken(x):
            tl.store(x, nowhere)
        ''')
    )
    module = blocknb.load(file)
    assert module.__doc__ == "Scales a vector."
    x = np.arange(100, dtype=np.float32)
    np.testing.assert_array_equal(module.scale(x, 3.0), x * 3)
    with pytest.raises(blocknb.KernelError, match="unknown name `nowhere`") as error:
        module.broken[(1,)](x)
    assert (error.value.loc.file, error.value.loc.line) == (str(file), 19)  # type: ignore[union-attr]


def test_install_applies_to_the_process_and_uninstall_reverts_it() -> None:
    code = """
    import sys, blocknb, importlib.util
    blocknb.compat.install()
    import triton, triton.language as tl, triton.runtime.driver, triton.language.math
    from triton.language.math import exp
    assert tl is blocknb.language and exp is tl.exp
    assert importlib.util.find_spec("triton") is not None
    blocknb.compat.uninstall()
    assert not [name for name in sys.modules if name.split(".")[0] == "triton"]
    sys.modules["triton"] = type(sys)("triton")
    try:
        blocknb.compat.install()
    except ImportError as error:
        print(error)
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "imported already" in answer.stdout


def test_language_modules_are_found_by_their_triton_names() -> None:
    found = run("""
        import triton.language.standard as standard
        from triton.language import core, target_info
        from triton.language.core import get_int_dtype, arange
        from triton.language.extra.cuda import globaltimer, smid
        from triton.language.extra.cuda.gdc import gdc_wait
        from triton.language.extra.cuda.utils import num_warps
        from triton.language.target_info import cuda_capability_geq
    """)
    assert found["arange"] is found["core"].arange is blocknb.language.arange
    assert found["standard"]._log2(8) == 3
    assert found["cuda_capability_geq"] is found["target_info"].cuda_capability_geq
    assert found["smid"] is blocknb.language.extra.cuda.smid
    with pytest.raises(ImportError, match="convert_custom_float8"):
        run("from triton.language.extra.cuda import convert_custom_float8")


def test_knobs_report_no_launch_hooks_and_keep_their_values() -> None:
    from blocknb.compat import triton

    assert triton.knobs.runtime.launch_enter_hook is None and not triton.knobs.runtime.interpret
    triton.knobs.runtime.launch_exit_hook = None
    with pytest.raises(NotInBlocknb, match="triton.knobs.runtime.launch_enter_hook is None in blocknb"):
        triton.knobs.runtime.launch_enter_hook = print
    with pytest.raises(NotInBlocknb, match="blocknb does not have triton.knobs.runtime.add_stages"):
        triton.knobs.runtime.add_stages
    with pytest.raises(NotInBlocknb, match="blocknb does not have triton.knobs.amd"):
        triton.knobs.amd.use_buffer_ops
    with pytest.raises(NotInBlocknb, match="blocknb does not have triton.knobs.nvidia.libcuda_path"):
        triton.knobs.nvidia.libcuda_path


def test_knobs_name_the_tools_of_the_cuda_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    from blocknb.compat import triton

    found = {"ptxas": (toolchain.Tool("ptxas", "/opt/ptxas", "PATH", (12, 9, 86)),), "nvdisasm": ()}
    monkeypatch.setattr(toolchain, "candidates", found.get)
    assert triton.knobs.nvidia.ptxas == ("/opt/ptxas", "12.9") and triton.knobs.nvidia.ptxas.version == "12.9"
    with pytest.raises(NotInBlocknb, match="this machine has no nvdisasm"):
        triton.knobs.nvidia.nvdisasm
    with pytest.raises(NotInBlocknb, match="triton.knobs.nvidia.ptxas is .* in blocknb"):
        triton.knobs.nvidia.ptxas = "/opt/other"


def test_the_knobs_of_the_autotuner_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from blocknb.compat import triton

    for name in ("cache", "print"):
        variable = f"TRITON_{name.upper()}_AUTOTUNING"
        monkeypatch.setenv(variable, "")  # put back in the end
        assert getattr(triton.knobs.autotuning, name) is False
        setattr(triton.knobs.autotuning, name, True)
        assert os.environ[variable] == "1" and getattr(triton.knobs.autotuning, name) is True
        setattr(triton.knobs.autotuning, name, False)
        assert os.environ[variable] == "0" and getattr(triton.knobs.autotuning, name) is False
    with pytest.raises(AttributeError, match="tune"):
        triton.knobs.autotuning.tune = True
