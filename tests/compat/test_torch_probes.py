"""How torch and other libraries probe Triton: after `install()`, each probe succeeds, or fails where it is used.

torch need not be installed: the tests repeat its probes in a process of their own.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def probe(code: str) -> str:
    """The output of code that runs after `install()` in a new process."""
    head = "import importlib.util, inspect, os, sys, types\nimport blocknb\nblocknb.compat.install()\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_package_and_its_version_are_found() -> None:
    assert probe("""
        print(importlib.util.find_spec("triton") is not None, importlib.util.find_spec("triton.language") is not None)
        import triton
        major, minor = (int(part) for part in triton.__version__.split(".")[:2])
        print((major, minor) >= (3, 6))
        import triton.language.core, triton.compiler.compiler, triton.backends.compiler
        print(hasattr(triton.compiler.compiler, "AttrsDescriptor"), hasattr(triton.backends.compiler, "AttrsDescriptor"))
    """).split() == ["True", "True", "True", "False", "False"]


def test_only_backend_is_blocknb_with_an_active_driver() -> None:
    assert probe("""
        import triton.backends
        from triton.backends import backends
        from triton.backends.compiler import GPUTarget
        print(sorted(triton.backends.backends), "nvidia" in backends, "cpu" in backends)
        print([name for name, backend in backends.items() if backend.driver and backend.driver.is_active()])
        from triton.runtime import driver
        from triton.runtime.driver import driver as same
        target = driver.active.get_current_target()
        print(isinstance(target, GPUTarget), target.backend in ("cpu", "cuda"), driver.active is same.active)
        print(driver.active.get_current_device() >= 0, driver.active.utils.get_device_properties(0)["multiprocessor_count"] > 0)
    """).splitlines() == ["['blocknb'] False False", "['blocknb']", "True True True", "True True"]


def test_class_of_a_kernel_can_be_tested() -> None:
    assert probe("""
        import triton
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction
        def kernel(x):
            pass
        kinds = JITFunction, Autotuner, InterpretedFunction
        print(*(isinstance(triton.jit(kernel), kind) for kind in kinds), isinstance(kernel, kinds))
    """).split() == ["True", "False", "False", "False"]


def test_names_imported_by_inductor_exist_and_triton_key_is_a_string() -> None:
    assert probe("""
        import triton
        import triton.language as tl
        from triton import Config, knobs
        from triton.compiler import CompiledKernel
        from triton.compiler.compiler import ASTSource, triton_key
        from triton.language.extra import libdevice
        from triton.language.standard import _log2
        from triton.runtime.autotuner import Autotuner, OutOfResources
        from triton.runtime.cache import triton_key as again
        from triton.runtime.jit import JITFunction, KernelInterface
        from triton.tools.tensor_descriptor import TensorDescriptor
        class Own(KernelInterface): pass
        print(issubclass(OutOfResources, Exception), libdevice is tl.extra.libdevice, tl.math is not None)
        print("pre_hook" in inspect.signature(triton.Config.__init__).parameters)
        print("_semantic" in inspect.signature(triton.language.core.view).parameters)
        print(type(triton_key()).__name__, triton_key() == again(), len(triton_key()) > 16)
    """).splitlines() == ["True True True", "True", "False", "str True True"]


@pytest.mark.parametrize(
    "line",
    [
        "from triton.runtime.errors import IntelGPUError",
        "import triton.backends.intel.driver",
        "from triton._C.libtriton import ir",
        "from triton.language.extra.cuda import experimental_device_tensormap_create1d",
    ],
)
def test_names_of_other_triton_builds_are_import_errors(line: str) -> None:
    assert (
        probe(f"""
        try:
            {line}
        except ImportError as error:
            print("refused")
    """)
        == "refused"
    )


def test_functions_of_tritons_compiler_raise_at_their_use() -> None:
    assert probe("""
        from triton.compiler.compiler import make_backend
        from triton.runtime.cache import get_cache_manager
        from triton.runtime.driver import driver
        for use in (lambda: make_backend(driver.active.get_current_target()), lambda: get_cache_manager("x")):
            try:
                use()
            except NotImplementedError as error:
                print(str(error).splitlines()[0])
    """).splitlines() == [
        "blocknb does not have triton.compiler.compiler.make_backend",
        "blocknb does not have triton.runtime.cache.get_cache_manager",
    ]


def test_tools_that_inspect_all_modules_work() -> None:
    """pickle and inspect ask every module for a name."""
    assert probe("""
        import pickle, triton
        class Outer:
            class torch: pass
        Outer.torch.__module__ = None
        print(pickle.whichmodule(Outer.torch, "Outer.torch"), len(pickle.dumps(Outer.torch)) > 10)
        print(hasattr(triton.knobs, "runtime"), getattr(triton.knobs.runtime, "launch_hook", None))
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] == "triton":
                assert getattr(module, "__file__", None) is None or module.__file__.startswith(blocknb.__path__[0]), name
                assert inspect.unwrap(module) is module
    """).splitlines() == ["__main__ True", "True None"]


FAKE = """
config = types.ModuleType("torch._inductor.config")
config.triton_disable_device_detection = os.environ.get("TORCHINDUCTOR_TRITON_DISABLE_DEVICE_DETECTION", "0") == "1"
asked = types.ModuleType("torch.utils._triton")
import functools
@functools.cache
def has_triton():
    return importlib.util.find_spec("triton") is not None and not config.triton_disable_device_detection
asked.has_triton = has_triton
sys.modules |= {config.__name__: config, asked.__name__: asked}
"""


def test_torch_compile_sees_no_triton() -> None:
    """This holds whether torch is imported before or after `install()`, with or without the real Triton."""
    real = importlib.util.find_spec("triton") is not None
    code = FAKE + textwrap.dedent("""
        print(has_triton(), config.triton_disable_device_detection)
        blocknb.compat.install()
        blocknb.compat.uninstall()
        print(has_triton(), config.triton_disable_device_detection, "TORCHINDUCTOR_TRITON_DISABLE_DEVICE_DETECTION" in os.environ)
        sys.modules["triton"] = types.ModuleType("triton")
        sys.modules["triton"].__spec__ = importlib.util.find_spec("blocknb")
        has_triton.cache_clear()
        print(has_triton())
        del sys.modules["triton"]
        blocknb.compat.install()
        print(has_triton())
        os.environ["TORCHINDUCTOR_TRITON_DISABLE_DEVICE_DETECTION"] = "1"
    """)
    assert probe(code).splitlines() == ["False True", f"{real} False False", "True", "False"]


def test_users_own_environment_setting_is_kept() -> None:
    assert probe("""
        name = "TORCHINDUCTOR_TRITON_DISABLE_DEVICE_DETECTION"
        blocknb.compat.uninstall()
        for own in ("0", "1"):
            os.environ[name] = own
            blocknb.compat.install()
            blocknb.compat.install()
            print(os.environ[name])
            blocknb.compat.uninstall()
            print(os.environ[name])
    """).split() == ["1", "0", "1", "1"]


def test_kernel_runs_while_the_replacement_is_installed() -> None:
    assert (
        probe("""
        import linecache, numpy as np
        source = '''
        import triton, triton.language as tl
        @triton.jit
        def k(out, N: tl.constexpr):
            tl.store(out + tl.arange(0, N), tl.arange(0, N) * 2)
        '''.replace(chr(10) + "        ", chr(10))
        linecache.cache["<k>"] = (len(source), None, source.splitlines(True), "<k>")
        names = {}
        exec(compile(source, "<k>", "exec"), names)
        out = np.zeros(4, np.int32)
        names["k"][(1,)](out, N=4)
        print(out.tolist())
    """)
        == "[0, 2, 4, 6]"
    )


def test_torch_loads_its_compiler_and_finds_no_triton() -> None:
    pytest.importorskip("torch")
    assert (
        probe("""
        import torch
        from torch.utils._triton import has_triton, has_triton_package
        import torch._inductor.codegen.triton, torch._inductor.runtime.triton_heuristics, torch._inductor.scheduler
        from torch._inductor.codecache import FxGraphHashDetails
        print(has_triton_package(), has_triton())
    """).splitlines()[-1]
        == "True False"
    )


def test_gluon_is_not_found() -> None:
    assert probe("""
        try:
            from triton.experimental import gluon
        except ImportError as error:
            print(type(error).__name__)
        print(importlib.util.find_spec("triton.experimental"))
    """).split() == ["ModuleNotFoundError", "None"]


def test_subclass_of_the_autotuner_reads_the_arguments_of_the_decorator() -> None:
    assert (
        probe("""
        import triton
        from triton.runtime.autotuner import Autotuner
        @triton.jit
        def kernel(x, n): pass
        prune = lambda configs, named, **more: configs
        made = Autotuner(kernel, ["x", "n"], [], ["n"], ["x"], None, prune_configs_by={"early_config_prune": prune})
        print(made.reset_to_zero, made.restore_value, made.early_config_prune is prune, made.user_defined_pre_hook)
    """)
        == "['x'] [] True False"
    )
